//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
)

// podUIDs of a gateway, to see that pods were replaced.
func (n namespace) podUIDs(g *v1alpha1.QTLSGateway) []string {
	n.Helper()
	var uids []string
	for _, p := range n.gatewayPods(g) {
		uids = append(uids, string(p.UID))
	}
	slices.Sort(uids)
	return uids
}

// replacePods changes what only new pods can follow.
func replacePods(t *testing.T, g *v1alpha1.QTLSGateway, turn int) {
	t.Helper()
	update(t, g, func(g *v1alpha1.QTLSGateway) {
		g.Spec.Resources = &corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: *resource.NewQuantity(int64(128+turn)<<20, resource.BinarySI)},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
		}
	})
}

// waitReplaced waits until none of the pods of before is left, not even ending, and the gateway is ready.
func (n namespace) waitReplaced(g *v1alpha1.QTLSGateway, before []string, within time.Duration) {
	n.Helper()
	eventually(n.T, within, "every pod is replaced", func(ctx context.Context) (bool, string) {
		left := 0
		for _, p := range n.pods(ctx, map[string]string{v1alpha1.LabelGateway: g.Name}) {
			if slices.Contains(before, string(p.UID)) {
				left++
			}
		}
		return left == 0, fmt.Sprintf("%d of the earlier pods are left", left)
	})
	waitReady(n.T, g, within)
}

func operatorPods(ctx context.Context) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := cluster.List(ctx, &pods, client.InNamespace(systemNamespace), client.MatchingLabels{"app.kubernetes.io/name": "qtls"})
	return pods.Items, err
}

// killOperator ends every operator pod at once. Where another test has just done so, it is the next pod that ends.
func killOperator(t *testing.T) {
	t.Helper()
	eventually(t, forReady, "the operator is killed", func(ctx context.Context) (bool, string) {
		pods, err := operatorPods(ctx)
		killed := 0
		for i := range pods {
			err := cluster.Delete(ctx, &pods[i], client.GracePeriodSeconds(0))
			if client.IgnoreNotFound(err) != nil {
				t.Fatalf("delete pod %s: %v", pods[i].Name, err)
			}
			if err == nil {
				killed++
			}
		}
		return killed > 0, fmt.Sprintf("%d operator pods in namespace %s (%v)", len(pods), systemNamespace, err)
	})
}

// faultyGateway is a gateway under a light load that the faults must not break.
func faultyGateway(n namespace, name string, replicas int32) (*v1alpha1.QTLSGateway, request) {
	n.Helper()
	a := n.withIssuer()
	ca := n.give("ca.pem", a.bundle())
	n.startEcho("echo", 1, "")
	n.create(certificate("web", dual, "web.example"))
	g := gateway(name, https("web", 443, "web.example"))
	g.Spec.Replicas = ptr.To(replicas)
	n.create(g)
	waitReady(n.T, g, forReady)
	r := request{address: address(g, 443), name: "web.example", ca: ca}
	n.waitServed(go126, r)
	return g, r
}

// The operator ends at moments of a rollout; whatever it was doing, the same state is reached, and nobody notices.
func operatorKilled(t *testing.T) {
	n := newNamespace(t)
	g, r := faultyGateway(n, "operator", 2)
	load := n.startLoad(r, 30, 1)
	for turn, delay := range []time.Duration{0, 300 * time.Millisecond, 2 * time.Second} {
		before := n.podUIDs(g)
		start := time.Now()
		replacePods(t, g, turn+1)
		time.Sleep(delay)
		killOperator(t)
		n.waitReplaced(g, before, forReady)
		result(t, "operator killed %s after a change that replaces the pods: all replaced and Ready after %.1f s", delay, time.Since(start).Seconds())
	}
	for turn, delay := range []time.Duration{0, 100 * time.Millisecond, 500 * time.Millisecond} {
		start := time.Now()
		update(t, g, func(g *v1alpha1.QTLSGateway) {
			g.Spec.Listeners[0].Hostnames = []v1alpha1.Hostname{"web.example", v1alpha1.Hostname(fmt.Sprintf("turn-%d.example", turn))}
			g.Spec.Listeners[0].Preference = []v1alpha1.CertificatePreference{v1alpha1.PreferClassical, v1alpha1.PreferPostQuantum}[turn%2]
		})
		time.Sleep(delay)
		killOperator(t)
		waitProgrammed(t, g, forReady)
		result(t, "operator killed %s after a change of the configuration: every pod runs it after %.1f s", delay, time.Since(start).Seconds())
	}
	s := n.stop(load)
	result(t, "meanwhile: %s", s)
	if s.Failed > 0 {
		t.Errorf("connections failed: %s", s)
	}
}

// waitProgrammed waits until every ready pod runs the present spec.
func waitProgrammed(t *testing.T, g *v1alpha1.QTLSGateway, within time.Duration) {
	t.Helper()
	waitCondition(t, g, v1alpha1.ConditionProgrammed, "True", v1alpha1.ReasonProgrammed, within)
}

// The agent crashes: HAProxy serves on; the Service sends new connections to the other pod meanwhile, for a pod whose
// agent does not run is not ready; the agent comes back and follows again.
func TestFaultAgentKilled(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	g, r := faultyGateway(n, "agent", 2)
	pod := n.gatewayPods(g)[0]
	direct := r
	direct.address = join(pod.Status.PodIP, 443)
	load, directLoad := n.startLoad(r, 30, 1), n.startLoad(direct, 30, 1)
	before := n.haproxyProcesses(pod.Name)
	certificate := &v1alpha1.PQCCertificate{}
	certificate.Namespace, certificate.Name = n.name, "web"
	for turn := range 2 {
		// PID 1 cannot be killed from inside its container; SIGQUIT makes the Go runtime give up on the spot.
		if _, err := execIn(t.Context(), n.name, pod.Name, "agent", nil, "sh", "-c", "kill -QUIT 1"); err != nil {
			t.Logf("the connection to the container ended with it: %v", err)
		}
		start := time.Now()
		eventually(t, forReady, "the agent is started again", func(ctx context.Context) (bool, string) {
			if ok, state := get(ctx, &pod); !ok {
				return false, state
			}
			for _, c := range pod.Status.InitContainerStatuses {
				if c.Name == "agent" && int(c.RestartCount) > turn && c.Ready && isReady(&pod) {
					return true, ""
				}
			}
			return false, fmt.Sprintf("%+v", pod.Status.InitContainerStatuses)
		})
		back := time.Since(start)
		renew(t, n, "web", fmt.Sprintf("agent-%d", turn))
		n.waitSerial(go126, direct, serialOf(t, certificate, ecdsaP256), forChange)
		waitReady(t, g, forReady)
		result(t, "agent killed, time %d: its pod is ready again after %.1f s (the kubelet's back-off included), and follows a certificate again", turn+1, back.Seconds())
	}
	if after := n.haproxyProcesses(pod.Name); after != before {
		t.Errorf("HAProxy's processes were %s and are %s: the agent's crash reached it", before, after)
	}
	for to, l := range map[string]*loader{"the Service": load, "the pod whose agent was killed": directLoad} {
		s := n.stop(l)
		result(t, "meanwhile, to %s: %s", to, s)
		if s.Failed > 0 {
			t.Errorf("connections to %s failed: %s", to, s)
		}
	}
}

// HAProxy's worker crashes: Kubernetes starts it again with the configuration and certificates of the day.
func TestFaultHAProxyKilled(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	g, r := faultyGateway(n, "haproxy", 1)
	pod := n.gatewayPods(g)[0]
	renew(t, n, "web", "before-the-crash")
	certificate := &v1alpha1.PQCCertificate{}
	certificate.Namespace, certificate.Name = n.name, "web"
	serial := serialOf(t, certificate, ecdsaP256)
	n.waitSerial(go126, r, serial, forChange)

	start := time.Now()
	const killWorkers = `for p in /proc/[0-9]*; do if [ "$(cat "$p/comm" 2>/dev/null)" = haproxy ] && [ "${p#/proc/}" != 1 ]; then kill -9 "${p#/proc/}"; fi; done`
	if _, err := execIn(t.Context(), n.name, pod.Name, "haproxy", nil, "sh", "-c", killWorkers); err != nil {
		t.Logf("the connection to the container ended with it: %v", err)
	}
	eventually(t, forReady, "HAProxy is started again and ready", func(ctx context.Context) (bool, string) {
		if ok, state := get(ctx, &pod); !ok {
			return false, state
		}
		s := pod.Status.ContainerStatuses[0]
		return s.RestartCount > 0 && isReady(&pod), fmt.Sprintf("%+v", s)
	})
	n.waitSerial(go126, r, serial, forChange)
	result(t, "HAProxy's worker killed: served again, with the renewed certificate, after %.1f s", time.Since(start).Seconds())
	waitReady(t, g, forReady)
	// It is driven as before.
	renew(t, n, "web", "after-the-crash")
	n.waitSerial(go126, r, serialOf(t, certificate, ecdsaP256), forChange)
}

// A pod goes without a word: the Service sends its connections to the other as soon as Kubernetes knows.
func TestFaultPodKilled(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	g, r := faultyGateway(n, "pod", 2)
	for turn := range 2 {
		losing := r
		losing.patience = 5 * time.Second
		load := n.startLoad(losing, 50, 1)
		time.Sleep(time.Second)
		victim := n.gatewayPods(g)[turn%2]
		start := time.Now()
		remove(t, &victim, client.GracePeriodSeconds(0))
		eventually(t, forReady, "two pods are ready again", func(context.Context) (bool, string) {
			ready := 0
			for _, p := range n.gatewayPods(g) {
				if p.UID != victim.UID && isReady(&p) {
					ready++
				}
			}
			return ready == 2, fmt.Sprintf("%d", ready)
		})
		replaced := time.Since(start)
		waitReady(t, g, forReady)
		s := n.stop(load)
		last := start
		for _, f := range s.Failures {
			if f.Time.After(last) {
				last = f.Time
			}
		}
		result(t, "pod killed without grace: replaced and ready after %.1f s; %d of %d connections failed, the last after %.1f s; aim 10 s", replaced.Seconds(), s.Failed, s.Total, last.Sub(start).Seconds())
		// A connection under way at that moment takes up to its time-out, 5 s, to be counted. How soon the Service knows is
		// the cluster's affair: that it comes to an end is what the next step waits for.
		eventually(t, forChange, "no connection fails any more", func(context.Context) (bool, string) {
			after := n.stop(n.startLoad(r, 50, 200))
			return after.Failed == 0, after.String()
		})
	}
}
