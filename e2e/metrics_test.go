//go:build e2e

package e2e

import (
	"bufio"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/internal/mtls"
)

// metric is the sum of the series of a gateway pod's metric that have all of the labels, each in the form `name="value"`.
func (n namespace) metric(pod corev1.Pod, name string, labels ...string) float64 {
	n.Helper()
	text, ok := n.scrape(join(pod.Status.PodIP, mtls.HealthPort))
	if !ok {
		n.Fatalf("metrics of pod %s: %s", pod.Name, text)
	}
	return n.sum(text, name, labels...)
}

// scrape returns the metrics at an address, or why there are none.
func (n namespace) scrape(address string) (text string, ok bool) {
	n.Helper()
	out := n.runIn(trixie, "curl", "-sS", "--fail", "--max-time", "60", "http://"+address+"/metrics")
	if out.code != 0 {
		return out.stderr, false
	}
	return out.stdout, true
}

// sum of the series of a metric that have all of the labels.
func (n namespace) sum(text, name string, labels ...string) float64 {
	n.Helper()
	var sum float64
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		series, value, found := strings.Cut(lines.Text(), " ")
		if !found || series != name && !strings.HasPrefix(series, name+"{") || !containsAll(series, labels) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			n.Fatalf("metric %s: %v", lines.Text(), err)
		}
		sum += v
	}
	return sum
}

func containsAll(s string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}
