//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/report"
)

// A gateway and other servers in one run. A plain HAProxy gets what the gateway's copy has: certificate, image, resources,
// node. One that cannot start, for the gateway's image has no nginx, is named and left out, and the others are measured;
// an image that nobody has allowed is refused. Whether the machine is idle enough for a ratio is not looked at: that there
// is either one, with its interval, or the reason why not.
func TestBenchmarkPeers(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	g := n.benchmarked()

	evil := benchmark("refused")
	evil.Spec.GatewayRef.Use = v1alpha1.BenchmarkUseCopy
	evil.Spec.Peers = []v1alpha1.BenchmarkPeer{{Name: "evil", Server: v1alpha1.BenchmarkPeerNGINX, Image: "registry.example.com/evil:1"}}
	quota := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
	b := benchmark("compared")
	b.Spec.GatewayRef = v1alpha1.BenchmarkGateway{Name: "web", Use: v1alpha1.BenchmarkUseCopy, Resources: &quota}
	b.Spec.Load.Repetitions, b.Spec.Load.Duration = ptr.To[int32](2), &metav1.Duration{Duration: 2 * time.Second} // two, for an interval
	b.Spec.Peers = []v1alpha1.BenchmarkPeer{
		{Name: "plain", Server: v1alpha1.BenchmarkPeerHAProxy},
		{Name: "broken", Server: v1alpha1.BenchmarkPeerNGINX, Image: image("gateway")},
	}
	n.create(evil, b)

	n.refusedImage(evil)
	n.besideTheGateway(b, g, quota)
	n.completed(b)
	n.comparedWithPlain(b)
	n.leftOut(b)
	n.noPeersLeft(b)
}

// refusedImage checks that a benchmark fails, before anything is made, for the image of its peer.
func (n namespace) refusedImage(b *v1alpha1.QTLSBenchmark) {
	n.Helper()
	eventually(n.T, forChange, "the benchmark has failed", func(ctx context.Context) (bool, string) {
		ok, state := get(ctx, b)
		return ok && b.Status.Phase == v1alpha1.BenchmarkFailed, state + describe(b)
	})
	c := condition(b, v1alpha1.ConditionFailed)
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonImageNotAllowed {
		n.Fatalf("it failed for another reason\n%s", describe(b))
	}
	tells(n.T, c.Message, "spec.peers[0].image", `peer "evil"`, `"registry.example.com/evil:1"`, "benchmarks.peerImages")
	if b.Status.StartTime != nil {
		n.Errorf("it began\n%s", describe(b))
	}
}

// besideTheGateway checks the pod of the plain peer, while it is there.
func (n namespace) besideTheGateway(b *v1alpha1.QTLSBenchmark, g *v1alpha1.QTLSGateway, quota corev1.ResourceRequirements) {
	n.Helper()
	var its, ours corev1.Pod
	eventually(n.T, forReady, "the peer runs beside the gateway's copy", func(ctx context.Context) (bool, string) {
		peers := n.pods(ctx, map[string]string{v1alpha1.LabelPeer: "plain"})
		copies := n.pods(ctx, map[string]string{v1alpha1.LabelGateway: "compared-gateway"})
		if len(peers) != 1 || len(copies) != 1 || !isReady(&peers[0]) || !isReady(&copies[0]) {
			_, state := get(ctx, b)
			return false, fmt.Sprintf("%d and %d pods; %s %s", len(peers), len(copies), state, describe(b))
		}
		its, ours = peers[0], copies[0]
		return true, ""
	})
	i := slices.IndexFunc(ours.Spec.Containers, func(c corev1.Container) bool { return c.Name == "haproxy" })
	c, like := its.Spec.Containers[0], ours.Spec.Containers[i]
	if its.Spec.NodeName != ours.Spec.NodeName || c.Image != like.Image || !reflect.DeepEqual(c.Resources, like.Resources) || !c.Resources.Limits.Cpu().Equal(*quota.Limits.Cpu()) {
		n.Errorf("it is on node %s, of image %s, with %v, and the gateway on %s, of %s, with %v", its.Spec.NodeName, c.Image, c.Resources, ours.Spec.NodeName, like.Image, like.Resources)
	}
	// The namespace takes only pods that say that they are restricted. This is what it is.
	status, err := execIn(n.Context(), n.name, its.Name, "plain", nil, "cat", "/proc/1/comm", "/proc/1/status")
	if err != nil || !strings.HasPrefix(status.stdout, "haproxy\n") {
		n.Fatalf("%v: %s%s", err, status.stdout, status.stderr)
	}
	for _, line := range []string{"Uid:\t65532\t65532\t65532\t65532", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status.stdout, line) {
			n.Errorf("want %q in\n%s", line, status.stdout)
		}
	}
	if out, err := execIn(n.Context(), n.name, its.Name, "plain", nil, "touch", "/file"); err != nil || out.code == 0 {
		n.Errorf("its root can be written: %v", err)
	}

	// The same leaf, and so the same key, by the name that clients ask for.
	trusted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "trusted"}}
	if ok, state := get(n.Context(), trusted); !ok {
		n.Fatal(state)
	}
	r := request{address: address(g, 443), name: "web.example", ca: n.give("ca.pem", []byte(trusted.Data["ca.crt"]))}
	want := n.waitServed(openssl35, r)
	r.address = "compared-peer-plain." + n.name + ".svc:8443"
	got := n.waitServed(openssl35, r)
	if got.Serial == "" || got.Serial != want.Serial || got.Algorithm != want.Algorithm || got.Group != want.Group {
		n.Errorf("it serves %s with serial %s, the gateway %s with serial %s", got, got.Serial, want, want.Serial)
	}
}

// comparedWithPlain checks what came of it.
func (n namespace) comparedWithPlain(b *v1alpha1.QTLSBenchmark) {
	n.Helper()
	// Each was asked, and answered as the mode wants.
	records := n.recorded(b)
	for subject, host := range map[string]string{"hybrid": "compared-gateway-gateway", "hybrid.plain": "compared-peer-plain"} {
		handshakes := int64(0) // of all: on a busy machine a window may have none
		for _, name := range []string{"r1-n1-%s-Capacity", "r1-n1-%s-Latency", "r2-n1-%s-Capacity", "r2-n1-%s-Latency"} {
			one := records[fmt.Sprintf(name, subject)]
			if one == nil {
				n.Fatalf("%s has no result\n%s", fmt.Sprintf(name, subject), describe(b))
			}
			if !strings.HasPrefix(one.Target.Host, host+".") || one.Target.SNI != "web.example" {
				n.Errorf("%s is of %+v", fmt.Sprintf(name, subject), one.Target)
			}
			for _, h := range one.Handshakes {
				handshakes += h.Count
				if h.Group != "X25519MLKEM768" || h.SignatureAlgorithm != "mldsa65" || h.Resumed {
					n.Errorf("%s has %d handshakes of %+v", fmt.Sprintf(name, subject), h.Count, h.Kind)
				}
			}
		}
		if handshakes == 0 {
			n.Errorf("%s has no handshakes\n%s", subject, describe(b))
		}
	}

	// The gateway's own point is measured, whatever became of its peers.
	if len(b.Status.Points) != 1 {
		n.Fatalf("%d points\n%s", len(b.Status.Points), describe(b))
	}
	p := b.Status.Points[0]
	if p.Mode != "hybrid" || p.HandshakesPerSecond == nil || p.Valid != (len(p.InvalidBecause) == 0) || strings.Contains(strings.Join(p.InvalidBecause, " "), "peer") {
		n.Errorf("the gateway's point is %+v", p)
	}

	r := n.reportOf(b)
	var images []string
	for _, i := range r.Environment.Images {
		if i.Name == "peer plain" || i.Name == "haproxy" {
			images = append(images, i.Digest)
		}
	}
	if len(images) != 2 || images[0] == "" || images[0] != images[1] {
		n.Errorf("images %+v", r.Environment.Images)
	}
	c := n.comparison(b, "plain")
	i := slices.IndexFunc(r.Peers, func(x report.Peer) bool { return x.Peer == "plain" && x.Mode == "hybrid" && x.Replicas == 1 })
	switch {
	case c.Ratio == nil && len(c.InvalidBecause) == 0, (c.Ratio == nil) != (i < 0):
		n.Errorf("the status has %+v, the report %+v", c, r.Peers)
	case c.Ratio == nil:
		result(n.T, "no ratio of the gateway to a plain HAProxy, because of %q", c.InvalidBecause)
	default:
		result(n.T, "gateway to plain HAProxy: %s (%s to %s)", c.Ratio.Mean, c.Ratio.Low, c.Ratio.High)
		of := r.Peers[i].Ratio
		if of.Interval == nil || of.N != 2 || c.Ratio.Low == "" || c.Ratio.High == "" || c.Ratio.Mean != fmt.Sprintf("%.3f", of.Value) {
			n.Errorf("the status has %+v, the report %+v", c.Ratio, of)
		}
	}
}

// comparison with a peer.
func (n namespace) comparison(b *v1alpha1.QTLSBenchmark, peer string) v1alpha1.BenchmarkComparison {
	n.Helper()
	i := slices.IndexFunc(b.Status.Peers, func(c v1alpha1.BenchmarkComparison) bool { return c.Peer == peer })
	if len(b.Status.Peers) != 2 || i < 0 {
		n.Fatalf("comparisons %+v", b.Status.Peers)
	}
	c := b.Status.Peers[i]
	if c.Mode != "hybrid" || c.Replicas != 1 {
		n.Errorf("%+v", c)
	}
	return c
}

// leftOut checks that the peer that cannot start is named, with the words of whoever tried to start it.
func (n namespace) leftOut(b *v1alpha1.QTLSBenchmark) {
	n.Helper()
	broken := n.comparison(b, "broken")
	tells(n.T, strings.Join(broken.InvalidBecause, " "), "NotMeasured", v1alpha1.ReasonPeerNotReady, `peer "broken"`)
	c := condition(b, v1alpha1.ConditionPeersCompared)
	if broken.Ratio != nil || c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonPeerNotReady {
		n.Fatalf("%+v\n%s", broken, describe(b))
	}
	tells(n.T, c.Message, `peer "broken"`, "nginx", "executable file not found")
}

// noPeersLeft checks that nothing of them is there.
func (n namespace) noPeersLeft(b *v1alpha1.QTLSBenchmark) {
	n.Helper()
	for _, list := range []client.ObjectList{&appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}, &corev1.PodList{}, &corev1.ServiceList{}, &corev1.ConfigMapList{}, &corev1.SecretList{}} {
		eventually(n.T, forChange, fmt.Sprintf("no %T of a peer is there", list), func(ctx context.Context) (bool, string) {
			if err := cluster.List(ctx, list, client.InNamespace(n.name)); err != nil {
				return false, err.Error()
			}
			var left []string
			_ = meta.EachListItem(list, func(o runtime.Object) error {
				if o := o.(client.Object); o.GetLabels()[v1alpha1.LabelPeer] != "" || strings.HasPrefix(o.GetName(), b.Name+"-peer-") {
					left = append(left, o.GetName())
				}
				return nil
			})
			return len(left) == 0, fmt.Sprintf("%q", left)
		})
	}
}
