//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/api/v1alpha1"
)

// Two gateways that differ in whose ML-KEM and ML-DSA they use serve the same clients with the same names. What a
// handshake and request cost their HAProxy, all of it, is measured by turns; `make bench-crypto` measures the handshake.
func TestVectorizedImplementation(t *testing.T) {
	n := newNamespace(t)
	r := n.withWeb()
	gateways := map[v1alpha1.PostQuantumImplementation]*v1alpha1.QTLSGateway{}
	for name, implementation := range map[string]v1alpha1.PostQuantumImplementation{"openssl": v1alpha1.ImplementationOpenSSL, "vectorized": v1alpha1.ImplementationVectorized} {
		g := gateway(name, https("web", 443, "web.example"))
		g.Spec.PostQuantumImplementation = implementation
		n.create(g)
		gateways[implementation] = g
	}
	for implementation, g := range gateways {
		waitReady(t, g, forReady)
		loaded := n.inHAProxy(n.gatewayPods(g)[0], "cat /proc/[0-9]*/maps | grep -c oqsprovider.so")
		if (loaded != "0") != (implementation == v1alpha1.ImplementationVectorized) {
			t.Errorf("%s: the provider is mapped %s times", implementation, loaded)
		}
	}
	const rounds, handshakes = 5, 150
	costs := map[v1alpha1.PostQuantumImplementation][]float64{}
	var ratios []float64
	for range rounds {
		for implementation, g := range gateways {
			pod := n.gatewayPods(g)[0]
			before := n.cpu(pod)
			out := n.shell(trixie, fmt.Sprintf(`curl -sS --http1.1 --no-sessionid --cacert %s --resolve web.example:443:%s -H 'Connection: close' -o /dev/null -w '%%{http_code}\n' 'https://web.example/?[1-%d]' | sort | uniq -c; curl -sSv --cacert %[1]s --resolve web.example:443:%[2]s https://web.example/ 2>&1 | grep 'SSL connection'`,
				r.ca, pod.Status.PodIP, handshakes))
			costs[implementation] = append(costs[implementation], 1e6*(n.cpu(pod)-before)/handshakes)
			if f := strings.Fields(out.stdout); len(f) < 2 || f[0] != fmt.Sprint(handshakes) || f[1] != "200" || !strings.Contains(out.stdout, "X25519MLKEM768 / id-ml-dsa-65") {
				t.Fatalf("%s: %s%s", implementation, out.stdout, out.stderr)
			}
		}
		last := len(costs[v1alpha1.ImplementationOpenSSL]) - 1
		ratios = append(ratios, costs[v1alpha1.ImplementationOpenSSL][last]/costs[v1alpha1.ImplementationVectorized][last])
	}
	for _, all := range [][]float64{costs[v1alpha1.ImplementationOpenSSL], costs[v1alpha1.ImplementationVectorized], ratios} {
		slices.Sort(all)
	}
	result(t, "CPU of HAProxy for a handshake (X25519MLKEM768, ML-DSA-65) and request, %d rounds of %d by turns, median (least to greatest): OpenSSL %.0f (%.0f to %.0f) us, Vectorized %.0f (%.0f to %.0f) us, ratio %.2f (%.2f to %.2f)",
		rounds, handshakes, costs[v1alpha1.ImplementationOpenSSL][rounds/2], costs[v1alpha1.ImplementationOpenSSL][0], costs[v1alpha1.ImplementationOpenSSL][rounds-1],
		costs[v1alpha1.ImplementationVectorized][rounds/2], costs[v1alpha1.ImplementationVectorized][0], costs[v1alpha1.ImplementationVectorized][rounds-1],
		ratios[rounds/2], ratios[0], ratios[rounds-1])
}

// inHAProxy runs a script in a pod's haproxy container.
func (n namespace) inHAProxy(pod corev1.Pod, script string) string {
	n.Helper()
	out, err := execIn(n.Context(), n.name, pod.Name, "haproxy", nil, "sh", "-c", script)
	if err != nil {
		n.Fatalf("%s in pod %s: %v", script, pod.Name, err)
	}
	return strings.TrimSpace(out.stdout)
}

// cpu that the processes of a pod's haproxy container have used, in seconds.
func (n namespace) cpu(pod corev1.Pod) float64 {
	n.Helper()
	var sum float64
	for line := range strings.Lines(n.inHAProxy(pod, "cat /proc/[0-9]*/task/*/schedstat")) {
		var nanoseconds float64
		if _, err := fmt.Sscan(line, &nanoseconds); err != nil {
			n.Fatalf("schedstat: %q", line)
		}
		sum += nanoseconds / 1e9
	}
	return sum
}
