// Package manifests holds the objects that a cluster is given at its start.
package manifests

import (
	"bytes"
	_ "embed"
	"fmt"
	"text/template"

	"qtls.dev/qtls/hack/cluster/internal/topology"
)

//go:embed base.yaml
var base string

//go:embed metrics-server.yaml
var metricsServer string

// Base is what every cluster has: DNS and a default storage class. image is that of CoreDNS.
func Base(image string) ([]byte, error) { return render("base.yaml", base, image) }

// MetricsServer serves the metrics API, which `kubectl top` and the horizontal autoscaler read.
func MetricsServer(image string) ([]byte, error) {
	return render("metrics-server.yaml", metricsServer, image)
}

func render(name, text, image string) ([]byte, error) {
	t, err := template.New(name).Parse(text)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	err = t.Execute(&buf, map[string]string{
		"Image":  image,
		"Domain": topology.ClusterDomain,
		"DNS":    topology.DNSServiceIP.String(),
	})
	if err != nil {
		return nil, fmt.Errorf("rendering %s: %w", name, err)
	}
	return buf.Bytes(), nil
}
