//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
)

// Figures of time are told, with what is aimed for, and not judged: they are the machine's as much as the product's.

// From the apply of a certificate and a gateway to the first answer over a post-quantum handshake.
func TestFigureApplyToServed(t *testing.T) {
	n := newNamespace(t)
	a := n.withIssuer()
	ca := n.give("ca.pem", a.bundle())
	n.waitPods(n.startEcho("echo", 1, ""), 1)
	const repetitions = 5
	const aim = 8 * time.Second
	var took []float64
	for i := range repetitions {
		name := fmt.Sprintf("web-%d", i)
		g := gateway(name, https(name, 443, "web.example"))
		start := time.Now()
		n.create(certificate(name, dual, "web.example"), g)
		eventually(t, forReady, "the gateway has an address", func(ctx context.Context) (bool, string) {
			if ok, state := get(ctx, g); !ok {
				return false, state
			}
			return address(g, 443) != "", describe(g)
		})
		host, _, _ := strings.Cut(address(g, 443), ":")
		// A loop in the pod, so that no time of the test's own is counted. The clock is the machine's.
		out := n.shell(trixie, fmt.Sprintf(`until curl -sS -v --connect-timeout 2 --max-time 30 --cacert %s --resolve web.example:443:%s https://web.example/ >/dev/null 2>/tmp/%s.log && grep -q 'X25519MLKEM768 / id-ml-dsa-65' /tmp/%[3]s.log; do sleep 0.02; [ $SECONDS -lt 240 ] || exit 1; done; date +%%s.%%N; grep 'SSL connection' /tmp/%[3]s.log`,
			ca, host, n.name))
		lines := strings.SplitN(strings.TrimSpace(out.stdout), "\n", 2)
		var at float64
		if _, err := fmt.Sscan(lines[0], &at); err != nil || len(lines) < 2 || !strings.Contains(lines[1], "X25519MLKEM768 / id-ml-dsa-65") {
			t.Fatalf("the first answer did not come over X25519MLKEM768 and ML-DSA-65: %s%s", out.stdout, out.stderr)
		}
		took = append(took, at-float64(start.UnixNano())/1e9)
		waitReady(t, g, forReady)
		result(t, "turn %d: served after %.2f s, seen to be Ready after %.2f s", i+1, took[i], time.Since(start).Seconds())
		remove(t, g)
	}
	slices.Sort(took)
	result(t, "apply of certificate and gateway to the first answer over X25519MLKEM768 and ML-DSA-65 (image present), %d times: median %.2f s, greatest %.2f s; aim %.0f s", repetitions, quantile(took, 0.5), took[len(took)-1], aim.Seconds())
}

// From the update of a Secret to its certificate being served by every pod.
func TestFigureCertificateChangeToServed(t *testing.T) {
	n := newNamespace(t)
	a := n.withIssuer()
	ca := n.give("ca.pem", a.bundle())
	n.startEcho("echo", 1, "")
	names := map[v1alpha1.KeyAlgorithm]string{mlDSA65: "pq", ecdsaP256: "classical"}
	issuers := map[v1alpha1.KeyAlgorithm]pair{mlDSA65: a.pq, ecdsaP256: a.classical}
	listener := https("web", 443, "web.example")
	listener.CertificateRefs = nil
	for _, algorithm := range dual {
		n.create(issuers[algorithm].issue(t, algorithm, "web.example").secret(t, names[algorithm]))
		listener.CertificateRefs = append(listener.CertificateRefs, v1alpha1.CertificateReference{Kind: v1alpha1.CertificateKindSecret, Name: names[algorithm]})
	}
	g := gateway("figures", listener)
	g.Spec.Replicas = ptr.To[int32](2)
	n.create(g)
	waitReady(t, g, forReady)
	n.waitServed(go127, request{address: address(g, 443), name: "web.example", ca: ca})

	watcher := &watcher{}
	command := []string{"timeout", "3000", "qtls-probe-go1.27", "-ca", ca, "-sni", "web.example", "-watch", "10ms"}
	var pods []string
	for _, p := range n.gatewayPods(g) {
		pods = append(pods, join(p.Status.PodIP, 443))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go streamFrom(ctx, clientsNamespace, trixie, "client", watcher, append(command, pods...)...)

	const changes = 25
	const aim = time.Second
	var delays, acknowledged []float64
	for range changes {
		next := issuers[ecdsaP256].issue(t, ecdsaP256, "web.example")
		nextPQ := issuers[mlDSA65].issue(t, mlDSA65, "web.example")
		start := time.Now()
		for secret, p := range map[string]pair{"classical": next, "pq": nextPQ} {
			o := p.secret(t, secret)
			o.Namespace = n.name
			if err := cluster.Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			acknowledged = append(acknowledged, time.Since(start).Seconds())
		}
		var served map[string]time.Time
		eventually(t, forChange, "every pod serves the new certificate", func(context.Context) (bool, string) {
			served = watcher.servedAt(next.serial())
			return len(served) == len(pods), fmt.Sprintf("%d of %d pods", len(served), len(pods))
		})
		for _, at := range served {
			delays = append(delays, at.Sub(start).Seconds())
		}
		for _, pod := range pods { // the post-quantum half, too
			n.waitSerial(openssl35, request{address: pod, name: "web.example", ca: ca}, nextPQ.serial(), forChange)
		}
	}
	slices.Sort(delays)
	result(t, "change of a certificate's Secret to served, %d changes of both halves on 2 pods: p50 %.3f s, p99 %.3f s, greatest %.3f s (resolution 10 ms; the API's own answers to the updates took up to %.3f s); aim p99 %.0f s",
		changes, quantile(delays, 0.5), quantile(delays, 0.99), delays[len(delays)-1], slices.Max(acknowledged), aim.Seconds())
}

// memory is what a kubelet says of a container, in MiB: the working set, and what of it is not page cache.
type memory struct{ workingSet, rss float64 }

// memoryOf asks the kubelets about a container of pods.
func memoryOf(ctx context.Context, t *testing.T, pods []corev1.Pod, container string) []memory {
	t.Helper()
	type container_ struct {
		Name   string
		Memory struct{ WorkingSetBytes, RSSBytes uint64 }
	}
	var found []memory
	for _, p := range pods {
		body, err := cluster.clientset.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + p.Spec.NodeName + "/proxy/stats/summary").DoRaw(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var stats struct {
			Pods []struct {
				PodRef     struct{ UID string }
				Containers []container_
			}
		}
		if err := json.Unmarshal(body, &stats); err != nil {
			t.Fatal(err)
		}
		for _, s := range stats.Pods {
			for _, c := range s.Containers {
				if s.PodRef.UID == string(p.UID) && c.Name == container && c.Memory.WorkingSetBytes > 0 {
					found = append(found, memory{float64(c.Memory.WorkingSetBytes) / (1 << 20), float64(c.Memory.RSSBytes) / (1 << 20)})
				}
			}
		}
	}
	return found
}

// waitMemory waits for the kubelet's next look at each container.
func waitMemory(t *testing.T, pods []corev1.Pod, container string) memory {
	t.Helper()
	var most memory
	eventually(t, forReady, "the kubelet knows the memory of container "+container, func(ctx context.Context) (bool, string) {
		all := memoryOf(ctx, t, pods, container)
		for _, m := range all {
			most.workingSet, most.rss = max(most.workingSet, m.workingSet), max(most.rss, m.rss)
		}
		return len(all) == len(pods), fmt.Sprintf("%d of %d containers", len(all), len(pods))
	})
	return most
}

// Memory of an idle gateway pod, of the operator, and of the operator with 100 gateways. Those have no pods of their own
// (replicas: 0): what is measured is what the operator keeps of the objects.
func TestFigureMemory(t *testing.T) {
	n := newNamespace(t)
	n.withIssuer()
	n.create(certificate("web", dual, "web.example"))
	g := gateway("idle", https("web", 443, "web.example"))
	n.create(g)
	waitCondition(t, g, v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, forReady)
	time.Sleep(15 * time.Second) // the kubelet looks every 10 s
	for _, container := range []string{"haproxy", "agent"} {
		m := waitMemory(t, n.gatewayPods(g), container)
		result(t, "idle gateway pod, container %s: working set %.1f MiB, RSS %.1f MiB", container, m.workingSet, m.rss)
	}
	operators, err := operatorPods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := waitMemory(t, operators, "operator")
	result(t, "operator before the 100 gateways: working set %.1f MiB, RSS %.1f MiB", m.workingSet, m.rss)

	const gateways = 100
	start := time.Now()
	for i := range gateways {
		g := gateway(fmt.Sprintf("many-%d", i), https("web", 443, "web.example"))
		g.Spec.Replicas = ptr.To[int32](0)
		n.create(g)
	}
	created := time.Since(start)
	eventually(t, 2*forReady, "the operator has dealt with every gateway", func(ctx context.Context) (bool, string) {
		var all v1alpha1.QTLSGatewayList
		if err := cluster.List(ctx, &all, client.InNamespace(n.name)); err != nil {
			return false, err.Error()
		}
		done := 0
		for i := range all.Items {
			if c := condition(&all.Items[i], v1alpha1.ConditionProgrammed); c != nil && c.Reason == v1alpha1.ReasonNoPods {
				done++
			}
		}
		return done == gateways, fmt.Sprintf("%d of %d", done, gateways)
	})
	settled := time.Since(start)
	time.Sleep(15 * time.Second)
	m = waitMemory(t, operators, "operator")
	const aim = 100.0
	result(t, "operator with %d gateways (replicas: 0; created in %.1f s, dealt with after %.1f s): working set %.1f MiB, RSS %.1f MiB; aim %.0f MiB", gateways, created.Seconds(), settled.Seconds(), m.workingSet, m.rss, aim)
	if m.workingSet > aim {
		t.Errorf("more than the aim of %.0f MiB", aim)
	}
}
