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

// A gateway and other servers in one run. A plain HAProxy, and in a run of its own an nginx, get what the gateway's copy
// has: certificate, resources, node. One that cannot start, for the gateway's image has no nginx, is named and left out,
// and the others are measured; an image that nobody has allowed is refused. Whether the machine is idle enough for a ratio
// is not looked at: that there is either one, of two repetitions with its interval, or the reason why not.
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
	// While the other benchmark waits for the one that cannot start.
	other := benchmark("other")
	other.Spec.GatewayRef, other.Spec.Load.Duration = b.Spec.GatewayRef, b.Spec.Load.Duration
	other.Spec.Modes = append(other.Spec.Modes, v1alpha1.BenchmarkMode{Name: "resumed", Groups: b.Spec.Modes[0].Groups, SignatureSchemes: b.Spec.Modes[0].SignatureSchemes, Handshake: v1alpha1.BenchmarkHandshakeResumed})
	other.Spec.Peers = []v1alpha1.BenchmarkPeer{{Name: "nginx", Server: v1alpha1.BenchmarkPeerNGINX, Image: image("nginx")}}
	n.create(evil, b, other)

	n.refusedImage(evil)
	n.besideTheGateway(other, "nginx", image("nginx"), g, quota)
	n.besideTheGateway(b, "haproxy", image("gateway"), g, quota)
	n.completed(other)
	n.comparedWithNGINX(other)
	n.completed(b)
	n.comparedWithPlain(b)
	n.leftOut(b)
	n.noPeersLeft(b)
	n.noPeersLeft(other)
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

// besideTheGateway checks the pod of a benchmark's first peer, while it is there: that it runs a program of an image.
func (n namespace) besideTheGateway(b *v1alpha1.QTLSBenchmark, program, image string, g *v1alpha1.QTLSGateway, quota corev1.ResourceRequirements) {
	n.Helper()
	peer := b.Spec.Peers[0].Name
	var its, ours corev1.Pod
	eventually(n.T, forReady, "the peer runs beside the gateway's copy", func(ctx context.Context) (bool, string) {
		peers := n.pods(ctx, map[string]string{v1alpha1.LabelPeer: peer})
		copies := n.pods(ctx, map[string]string{v1alpha1.LabelGateway: b.Name + "-gateway"})
		if len(peers) != 1 || len(copies) != 1 || !isReady(&peers[0]) || !isReady(&copies[0]) {
			_, state := get(ctx, b)
			return false, fmt.Sprintf("%d and %d pods; %s %s", len(peers), len(copies), state, describe(b))
		}
		its, ours = peers[0], copies[0]
		return true, ""
	})
	i := slices.IndexFunc(ours.Spec.Containers, func(c corev1.Container) bool { return c.Name == "haproxy" })
	c, like := its.Spec.Containers[0], ours.Spec.Containers[i]
	if its.Spec.NodeName != ours.Spec.NodeName || c.Image != image || !reflect.DeepEqual(c.Resources, like.Resources) || !c.Resources.Limits.Cpu().Equal(*quota.Limits.Cpu()) {
		n.Errorf("it is on node %s, of image %s, with %v, and the gateway on %s with %v", its.Spec.NodeName, c.Image, c.Resources, ours.Spec.NodeName, like.Resources)
	}
	// The namespace takes only pods that say that they are restricted. This is what it is.
	status, err := execIn(n.Context(), n.name, its.Name, peer, nil, "cat", "/proc/1/comm", "/proc/1/status")
	if err != nil || !strings.HasPrefix(status.stdout, program+"\n") {
		n.Fatalf("%v: %s%s", err, status.stdout, status.stderr)
	}
	for _, line := range []string{"Uid:\t65532\t65532\t65532\t65532", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status.stdout, line) {
			n.Errorf("want %q in\n%s", line, status.stdout)
		}
	}
	if out, err := execIn(n.Context(), n.name, its.Name, peer, nil, "touch", "/file"); err != nil || out.code == 0 {
		n.Errorf("its root can be written: %v", err)
	}

	// The same leaf, and so the same key, by the name that clients ask for.
	trusted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "trusted"}}
	if ok, state := get(n.Context(), trusted); !ok {
		n.Fatal(state)
	}
	r := request{address: address(g, 443), name: "web.example", ca: n.give("ca.pem", []byte(trusted.Data["ca.crt"]))}
	want := n.waitServed(openssl35, r)
	r.address = fmt.Sprintf("%s-peer-%s.%s.svc:8443", b.Name, peer, n.name)
	got := n.waitServed(openssl35, r)
	if got.Serial == "" || got.Serial != want.Serial || got.Algorithm != want.Algorithm || got.Group != want.Group {
		n.Errorf("it serves %s with serial %s, the gateway %s with serial %s", got, got.Serial, want, want.Serial)
	}
}

// measuredSubject checks that a server was asked in each repetition of a mode, and answered as that wants.
func (n namespace) measuredSubject(b *v1alpha1.QTLSBenchmark, subject, host string, resumed bool) {
	n.Helper()
	records := n.recorded(b)
	handshakes := int64(0) // of all, and of a mode that resumes those that did: on a busy machine a window may have none
	for repetition := range *b.Spec.Load.Repetitions {
		for _, phase := range []string{"Capacity", "Latency"} {
			name := fmt.Sprintf("r%d-n1-%s-%s", repetition+1, subject, phase)
			one := records[name]
			if one == nil {
				n.Fatalf("%s has no result\n%s", name, describe(b))
			}
			if !strings.HasPrefix(one.Target.Host, host+".") || one.Target.SNI != "web.example" {
				n.Errorf("%s is of %+v", name, one.Target)
			}
			for _, h := range one.Handshakes {
				if h.Resumed == resumed {
					handshakes += h.Count
				}
				if h.Group != "X25519MLKEM768" || h.Resumed != (h.SignatureAlgorithm == "") || !h.Resumed && h.SignatureAlgorithm != "mldsa65" || h.Resumed && !resumed {
					n.Errorf("%s has %d handshakes of %+v", name, h.Count, h.Kind)
				}
			}
		}
	}
	if handshakes == 0 {
		n.Errorf("%s has no handshakes\n%s", subject, describe(b))
	}
}

// comparedWithNGINX checks what came of that: it makes full handshakes, and resumes its sessions.
func (n namespace) comparedWithNGINX(b *v1alpha1.QTLSBenchmark) {
	n.Helper()
	for _, mode := range []string{"hybrid", "resumed"} {
		n.measuredSubject(b, mode, b.Name+"-gateway-gateway", mode == "resumed")
		n.measuredSubject(b, mode+".nginx", b.Name+"-peer-nginx", mode == "resumed")
		c := n.comparison(b, "nginx", mode)
		if (c.Ratio == nil) != (len(c.InvalidBecause) > 0) {
			n.Errorf("%+v", c)
		}
		ratio := "none"
		if c.Ratio != nil {
			ratio = c.Ratio.Mean
		}
		result(n.T, "%s: gateway to nginx: %s, because of %q", mode, ratio, c.InvalidBecause)
	}
	if images := n.reportOf(b).Environment.Images; !slices.ContainsFunc(images, func(i report.Image) bool { return i.Name == "peer nginx" && i.Digest != "" }) {
		n.Errorf("images %+v", images)
	}
	told := condition(b, v1alpha1.ConditionPeersCompared)
	if told == nil || told.Reason == v1alpha1.ReasonPeerNotReady {
		n.Errorf("it ran\n%s", describe(b))
	}
}

// comparedWithPlain checks what came of it.
func (n namespace) comparedWithPlain(b *v1alpha1.QTLSBenchmark) {
	n.Helper()
	n.measuredSubject(b, "hybrid", "compared-gateway-gateway", false)
	n.measuredSubject(b, "hybrid.plain", "compared-peer-plain", false)

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
	c := n.comparison(b, "plain", "hybrid")
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

// comparison with a peer in a mode.
func (n namespace) comparison(b *v1alpha1.QTLSBenchmark, peer, mode string) v1alpha1.BenchmarkComparison {
	n.Helper()
	i := slices.IndexFunc(b.Status.Peers, func(c v1alpha1.BenchmarkComparison) bool { return c.Peer == peer && c.Mode == mode })
	if len(b.Status.Peers) != 2 || i < 0 || b.Status.Peers[i].Replicas != 1 {
		n.Fatalf("comparisons %+v", b.Status.Peers)
	}
	return b.Status.Peers[i]
}

// leftOut checks that the peer that cannot start is named, with the words of whoever tried to start it.
func (n namespace) leftOut(b *v1alpha1.QTLSBenchmark) {
	n.Helper()
	broken := n.comparison(b, "broken", "hybrid")
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
