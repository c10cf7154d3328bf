package cluster

import (
	"context"
	"fmt"

	"qtls.dev/qtls/hack/cluster/internal/build"
)

const certManagerNamespace = "cert-manager"

// certManagerValues are what the installation sets of the chart's values.
func certManagerValues() []string {
	return []string{
		"crds.enabled=true",
		"imageRegistry=" + build.ImageRegistry,
		"imageNamespace=" + build.ImageNamespace,
		"startupapicheck.enabled=false", // done here
		"prometheus.enabled=false",      // the metrics port is not served
		// The chart's probes are for a cluster where nobody waits for them.
		"webhook.readinessProbe.initialDelaySeconds=0",
		"webhook.readinessProbe.periodSeconds=1",
	}
}

// probeIssuer is an object that only cert-manager's webhook can let pass.
const probeIssuer = `apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: probe, namespace: default}
spec:
  selfSigned: {}
`

// InstallCertManager installs cert-manager from its chart into the running cluster, or brings it to
// what the chart says, and waits until its webhook answers.
func (c *Cluster) InstallCertManager(ctx context.Context, b *build.Builder) error {
	s, err := c.loadUp()
	if err != nil {
		return err
	}
	archives, err := b.Images(ctx, build.CertManagerImages()...)
	if err != nil {
		return err
	}
	chart, err := b.CertManagerChart(ctx)
	if err != nil {
		return err
	}
	helm, err := b.Programs(ctx, build.Helm)
	if err != nil {
		return err
	}
	if err := c.Load(ctx, archives); err != nil {
		return err
	}
	err = c.Out.Step("installing cert-manager v"+build.CertManagerVersion, func() error {
		args := []string{"upgrade", "--install", "cert-manager", chart, "--namespace", certManagerNamespace, "--create-namespace"}
		for _, v := range certManagerValues() {
			args = append(args, "--set", v)
		}
		_, err := c.tool(ctx, helm[build.Helm], nil, args...)
		return err
	})
	if err != nil {
		return err
	}
	return c.Out.Step("cert-manager", func() error { return c.waitForCertManager(ctx, s) })
}

func (c *Cluster) waitForCertManager(ctx context.Context, s *state) error {
	a, err := c.api(s.Params.Port)
	if err != nil {
		return err
	}
	for _, name := range []string{"cert-manager", "cert-manager-webhook", "cert-manager-cainjector"} {
		err := until(ctx, readyWithin, pollEvery, func(ctx context.Context) error {
			return a.deploymentAvailable(ctx, certManagerNamespace, name)
		})
		if err != nil {
			return fmt.Errorf("%w; see: kubectl -n %s describe pods", err, certManagerNamespace)
		}
	}
	// An available pod is not enough: its certificate must have reached the webhook's registration.
	err = until(ctx, readyWithin, 4*pollEvery, func(ctx context.Context) error {
		_, err := c.kubectl(ctx, s, []byte(probeIssuer), "create", "--dry-run=server", "--filename=-")
		return err
	})
	if err != nil {
		return fmt.Errorf("cert-manager's webhook does not answer: %w; see: kubectl -n %s get pods", err, certManagerNamespace)
	}
	return nil
}
