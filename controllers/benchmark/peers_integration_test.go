//go:build integration

package benchmark

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/peer"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/testenv"
)

// certificate of the gateway's listener, ECDSA P-256.
func (w *world) certificate() {
	w.t.Helper()
	w.create(pairIn(w.t, w.namespace, "web-tls", "ECDSA-P256"))
}

// besidePeer is a benchmark with a plain HAProxy, whose modes take the gateway's
// certificate.
func besidePeer(s *v1alpha1.QTLSBenchmarkSpec) {
	s.Modes[0].SignatureSchemes = []v1alpha1.SignatureScheme{"ecdsa_secp256r1_sha256"}
	s.Peers = []v1alpha1.BenchmarkPeer{{Name: "plain", Server: v1alpha1.BenchmarkPeerHAProxy}}
}

// roll the peers' Deployments out, as their controller does; of those that do not roll the
// pods are there and not ready.
func (w *world) roll(ctx context.Context) error {
	var list appsv1.DeploymentList
	if err := w.List(ctx, &list, client.InNamespace(w.namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		d := &list.Items[i]
		n, ready := *d.Spec.Replicas, int32(0)
		available := appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}
		if w.rolls(d) {
			ready, available.Status = n, corev1.ConditionTrue
		}
		if s := d.Status; s.ObservedGeneration == d.Generation && s.ReadyReplicas == ready {
			continue
		}
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, ReadyReplicas: ready, UpdatedReplicas: n, AvailableReplicas: ready, Conditions: []appsv1.DeploymentCondition{available}}
		if err := unimportant(w.Status().Update(ctx, d)); err != nil {
			return err
		}
	}
	return nil
}

func TestPeersAreMeasuredInTheRunOfTheGateway(t *testing.T) {
	w := newWorld(t)
	w.certificate()
	b := w.benchmark(besidePeer)
	host := "scaling-peer-plain." + w.namespace + ".svc"
	var mu sync.Mutex
	loads := map[string]int{}
	w.result = func(l load.Load, segment shard.Segment) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		loads[fmt.Sprintf("%s:%d", l.Client.Host, l.Client.Port)]++
		if l.Client.Host == host {
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "scaling-peer-plain"}}
			w.get(d)
			if !strings.Contains(l.Point, fmt.Sprintf("-n%d-", *d.Spec.Replicas)) || l.Client.SNI != "web.example.com" {
				t.Errorf("%d replicas for the load %+v", *d.Spec.Replicas, l)
			}
			if image := d.Spec.Template.Spec.Containers[0].Image; image != "gateway:test" {
				t.Errorf("image %q", image)
			}
		}
		return ideal(l, segment)
	}
	w.start()
	w.reaches(b, v1alpha1.BenchmarkCompleted)
	if loads[fmt.Sprintf("%s:%d", host, peer.Port(0))] != 8 || loads["web-gateway."+w.namespace+".svc:443"] != 8 || len(loads) != 2 {
		t.Errorf("loads %v", loads)
	}
	// Nobody observes the machines here, so there is no ratio, and that is said.
	if len(b.Status.Points) != 2 || len(b.Status.Peers) != 2 || b.Status.Peers[0].Ratio != nil || !strings.Contains(strings.Join(b.Status.Peers[0].InvalidBecause, " "), "NotObserved") {
		t.Errorf("points %+v, comparisons %+v", b.Status.Points, b.Status.Peers)
	}
	// The run takes its peers away; they serve nobody.
	w.condition(b, v1alpha1.ConditionPeersCompared, "False", v1alpha1.ReasonPeersNotCompared, "NotObserved")
	w.noPeers()
	if err := w.untouched(); err != nil {
		t.Error(err)
	}
}

// noPeers says that nothing of them is left.
func (w *world) noPeers() {
	w.t.Helper()
	for _, list := range []client.ObjectList{&appsv1.DeploymentList{}, &corev1.ServiceList{}, &corev1.ConfigMapList{}, &corev1.SecretList{}} {
		testenv.Eventually(w.t, func(ctx context.Context) error {
			if err := w.List(ctx, list, client.InNamespace(w.namespace), client.HasLabels{v1alpha1.LabelPeer}); err != nil {
				return err
			}
			if n := meta.LenList(list); n > 0 {
				return fmt.Errorf("%d of %T are still there", n, list)
			}
			return nil
		})
	}
}

// A peer whose image is not there is said, and left out; the gateway and another peer are
// measured. Its objects go at once: what tries on and on disturbs the others.
func TestAPeerThatDoesNotRunIsLeftOut(t *testing.T) {
	w := newWorld(t)
	w.certificate()
	w.limits.Stuck = time.Second
	w.rolls = func(d *appsv1.Deployment) bool { return d.Name != "scaling-peer-bad" }
	var mu sync.Mutex
	measuredWith := map[string]bool{}
	w.result = func(l load.Load, segment shard.Segment) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		measuredWith[l.Client.Host] = true
		return ideal(l, segment)
	}
	// Its first pod, as the kubelet leaves it.
	w.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "bad", Labels: peer.Selector("scaling", "bad")}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "bad", Image: "peers/haproxy:0"}}}})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "bad"}}
	if err := w.tell(t.Context(), pod, func() {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "bad", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: `Back-off pulling image "peers/haproxy:0"`}}}}
	}); err != nil {
		t.Fatal(err)
	}
	b := w.benchmark(besidePeer, func(s *v1alpha1.QTLSBenchmarkSpec) {
		s.Peers = append(s.Peers, v1alpha1.BenchmarkPeer{Name: "bad", Server: v1alpha1.BenchmarkPeerHAProxy, Image: "peers/haproxy:0"})
	})
	w.start()
	w.reaches(b, v1alpha1.BenchmarkCompleted)
	w.condition(b, v1alpha1.ConditionPeersCompared, "False", v1alpha1.ReasonPeerNotReady, `Back-off pulling image "peers/haproxy:0"`)
	for _, c := range b.Status.Peers {
		notReady := strings.Contains(strings.Join(c.InvalidBecause, " "), v1alpha1.ReasonPeerNotReady)
		if notReady != (c.Peer == "bad") {
			t.Errorf("%+v", c)
		}
	}
	for _, p := range b.Status.Points {
		if p.HandshakesPerSecond == nil || p.Latency == nil || p.Repetitions != 2 {
			t.Errorf("the gateway was not measured: %+v", p)
		}
	}
	if len(b.Status.Peers) != 4 || len(b.Status.Points) != 2 || len(measuredWith) != 2 || measuredWith["scaling-peer-bad."+w.namespace+".svc"] {
		t.Errorf("comparisons %+v, points %+v, measured with %v", b.Status.Peers, b.Status.Points, measuredWith)
	}
	w.noPeers()
	if err := w.untouched(); err != nil {
		t.Error(err)
	}
}

// What a peer's objects say is accepted where pods have to be restricted.
func TestPodsOfPeersAreRestricted(t *testing.T) {
	w := newWorld(t)
	w.certificate()
	b := w.benchmark(besidePeer)
	r := w.reconciler(w.Client, w.Client, nil)
	g := w.gateway("web")
	server, err := r.serverOf(t.Context(), b, g, 0, 2)
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "restricted-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	w.create(namespace)
	w.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "default"}})
	spec := peer.Deployment(b, g, server, r.Settings).Spec.Template.Spec
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "peer"}, Spec: spec}
	if err := w.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Error(err)
	}
}

// Nothing is touched before it is known that the peers can be made.
func TestAPeerThatCannotBeMadeIsSaidBeforeTheRun(t *testing.T) {
	for name, c := range map[string]struct {
		change       func(*v1alpha1.QTLSBenchmarkSpec)
		certificate  bool
		passes       bool // once somebody changes what is beside the spec
		reason, says string
	}{
		"no certificate": {besidePeer, false, true, v1alpha1.ReasonCertificateNotFound, `Secret "web-tls", which listener "https" of the gateway serves`},
		"one of another family": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			besidePeer(s)
			s.Modes[0].SignatureSchemes = []v1alpha1.SignatureScheme{"mldsa65"}
		}, true, true, v1alpha1.ReasonInvalid, `mode "hybrid" accepts none of the certificates`},
		"an image that nobody allowed": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			besidePeer(s)
			s.Peers[0].Image = "evil/haproxy:1"
		}, true, false, v1alpha1.ReasonImageNotAllowed, `spec.peers[0].image: peer "plain" may not run "evil/haproxy:1"`},
		"no such mode": {func(s *v1alpha1.QTLSBenchmarkSpec) { besidePeer(s); s.Peers[0].Modes = []string{"other"} }, false, false, v1alpha1.ReasonInvalid, `mode "other" of peer "plain" is none of spec.modes`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if c.certificate {
				w.certificate()
			}
			b := w.benchmark(c.change)
			w.steps(b, 3) // the plan, the first step, and the end
			w.condition(b, v1alpha1.ConditionComplete, "False", c.reason, c.says)
			if failed := b.Status.Phase == v1alpha1.BenchmarkFailed; failed == c.passes {
				t.Errorf("phase %s, and a benchmark is immutable", b.Status.Phase)
			}
			if err := w.untouched(); err != nil {
				t.Error(err)
			}
		})
	}
}
