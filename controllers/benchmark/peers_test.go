package benchmark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/peer"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/conditions"
)

// withPeer is a run whose gateway makes 20 handshakes a second, and a peer half as
// many; both did what their rules ask for.
func withPeer(t *testing.T, repetitions int32) state {
	t.Helper()
	b := inPlace(v1alpha1.BenchmarkRestoring)
	b.Spec.Load.Repetitions = &repetitions
	b.Spec.Peers = []v1alpha1.BenchmarkPeer{{Name: "plain", Server: v1alpha1.BenchmarkPeerHAProxy}}
	b.Status = planned(b, 7, noon)
	b.Status.Phase, b.Status.StartTime = v1alpha1.BenchmarkRestoring, &metav1.Time{Time: noon}
	s := stateIn(t, b, int(b.Status.Plan.Measurements))
	for _, m := range s.plan.Measurements {
		one := s.records[m.Name()]
		one.Usage = saturating(s.plan, m.Replicas)
		if m.Peer != "" {
			one.Usage.Replicas = one.Usage.Replicas[:0] // the gateway was idle meanwhile
			halve(t, &one)
		}
		s.records[m.Name()] = one
	}
	s.plan.Load.LatencyLoad = 50
	return s
}

// halve the throughput of a record.
func halve(t *testing.T, one *record) {
	t.Helper()
	result, err := one.decode()
	if err != nil {
		t.Fatal(err)
	}
	result.PerSecond /= 2
	one.PerSecond = result.PerSecond
	if one.Result, err = json.Marshal(result); err != nil {
		t.Fatal(err)
	}
}

func TestAComparisonIsARatioOfOneRun(t *testing.T) {
	s := withPeer(t, 2)
	full, err := fullReport(s)
	if err != nil {
		t.Fatal(err)
	}
	after := summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{report: &full})
	if len(after.Peers) != 2 {
		t.Fatalf("comparisons %+v", after.Peers)
	}
	for i, c := range after.Peers {
		if c.Peer != "plain" || c.Mode != "hybrid" || c.Replicas != int32(i+1) || c.Ratio == nil || c.Ratio.Mean != "2.000" || c.Ratio.Low == "" || len(c.InvalidBecause) > 0 {
			t.Errorf("comparison %d: %+v, %+v", i, c, c.Ratio)
		}
	}
	// The peer is no point of the gateway, in the status or for thresholds; nor has the
	// status its curve, which the report has.
	if len(after.Scaling) != 1 || after.Scaling[0].Mode != "hybrid" || len(full.Scaling) != 2 {
		t.Errorf("curves %+v, %d in the report", after.Scaling, len(full.Scaling))
	}
	for _, p := range after.Points {
		if p.Mode != "hybrid" {
			t.Errorf("point %+v", p)
		}
	}
	for _, threshold := range full.Thresholds {
		for _, d := range threshold.Details {
			if strings.Contains(d.Mode, "plain") {
				t.Errorf("a threshold of the peer: %+v", d)
			}
		}
	}
	text := full.Markdown()
	if !strings.Contains(text, "Other servers in the same run") || !strings.Contains(text, "is not observed") {
		t.Errorf("the report does not compare, or does not say what is not known:\n%s", text)
	}
}

func TestAComparisonWithoutAResultSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(m plan.Measurement, u *usage)
		says  string
	}{
		"the peer's machine was busy": {func(m plan.Measurement, u *usage) {
			if m.Peer != "" {
				*u.MachineIdle = 0.01
			}
		}, "MachineBusy"},
		"the gateway could do more": {func(m plan.Measurement, u *usage) {
			for i := range u.Replicas {
				u.Replicas[i].CPU /= 2
			}
		}, "no repetition has a valid capacity of both"},
	} {
		s := withPeer(t, 2)
		for _, m := range s.plan.Measurements {
			c.spoil(m, s.records[m.Name()].Usage)
		}
		full, err := fullReport(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range comparisons(s, full) {
			if got.Ratio != nil || !strings.Contains(strings.Join(got.InvalidBecause, " "), c.says) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

// A peer is ready when all its pods are; else it says what they lack, and whether that is
// over by itself.
func TestAPeerSaysWhatItLacks(t *testing.T) {
	lately := noon.Add(-time.Second)
	deployment := func(replicas, there, ready int32, observed int64, more ...appsv1.DeploymentCondition) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "scaling-peer-plain", Generation: 3, CreationTimestamp: metav1.NewTime(lately)}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To(replicas)},
			Status: appsv1.DeploymentStatus{ObservedGeneration: observed, Replicas: there, ReadyReplicas: ready, UpdatedReplicas: there, Conditions: more}}
		if ready < replicas {
			d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(lately)})
		}
		return d
	}
	pod := func(state, before corev1.ContainerState) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: state, LastTerminationState: before}}}}
	}
	waits := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	ended := func(code int32, message string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: message}}
	}
	noNode := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}}}
	starts := pod(waits("ContainerCreating", ""), corev1.ContainerState{})
	for name, c := range map[string]struct {
		deployment *appsv1.Deployment
		pods       []corev1.Pod
		ready      bool
		since      time.Time
		stuck      bool
		says       string
	}{
		"all pods":             {deployment: deployment(2, 2, 2, 3), ready: true},
		"none":                 {since: noon, says: `peer "plain" is not there yet`},
		"those of another":     {deployment: deployment(1, 1, 1, 3), since: noon, says: "not there yet"},
		"just changed":         {deployment: deployment(2, 2, 2, 2), since: lately, says: "is not observed yet"},
		"one is not ready":     {deployment: deployment(2, 2, 1, 3), since: lately, says: "1 of 2 pods"},
		"one that is to leave": {deployment: deployment(2, 3, 2, 3), since: noon, says: "3 are there"},
		"one that starts":      {deployment: deployment(2, 2, 1, 3), pods: []corev1.Pod{starts}, since: lately, says: "ContainerCreating"},
		"one without a node":   {deployment: deployment(2, 2, 1, 3), pods: []corev1.Pod{noNode}, since: lately, says: "0/3 nodes are available"},
		"an image that is not there": {deployment: deployment(2, 2, 0, 3), pods: []corev1.Pod{starts, pod(waits("ImagePullBackOff", `Back-off pulling image "nginx:0"`), corev1.ContainerState{})},
			since: lately, stuck: true, says: `Back-off pulling image "nginx:0"`},
		"a program that ends again and again": {deployment: deployment(2, 2, 0, 3), pods: []corev1.Pod{pod(waits("CrashLoopBackOff", "back-off 10s"), ended(1, "[ALERT] config"))},
			since: lately, stuck: true, says: "waits (CrashLoopBackOff), for it ended with exit code 1 (Error): [ALERT] config"},
		"a program that has ended": {deployment: deployment(2, 2, 0, 3), pods: []corev1.Pod{pod(ended(1, "[ALERT] config"), corev1.ContainerState{})}, since: lately, stuck: true, says: "[ALERT] config"},
		"a program that was started again": {deployment: deployment(2, 2, 0, 3), pods: []corev1.Pod{{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{RestartCount: 1, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}}},
			since: lately, stuck: true, says: "0 of 2 pods"},
		"one that starts beside one that was started again": {deployment: deployment(2, 2, 1, 3), pods: []corev1.Pod{{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Ready: true, RestartCount: 1, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}}, starts},
			since: lately, says: "ContainerCreating"},
		"a quota": {deployment: deployment(2, 0, 0, 3, appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota: pods"}),
			since: lately, stuck: true, says: "exceeded quota: pods"},
	} {
		got := peerOf("plain", c.deployment, c.pods, 2, noon)
		if got.Ready != c.ready || !got.Since.Equal(c.since) || got.Stuck != c.stuck || !strings.Contains(got.Message, c.says) || !c.ready && !strings.Contains(got.Message, `peer "plain"`) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Peers of the gateway's run that are no result are said in a condition of their own.
func TestPeersThatAreNotComparedAreNamed(t *testing.T) {
	s := withPeer(t, 2)
	full, err := fullReport(s)
	if err != nil {
		t.Fatal(err)
	}
	after := summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{report: &full})
	is := func(status metav1.ConditionStatus, reason, says string) {
		t.Helper()
		c := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionPeersCompared)
		if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, says) {
			t.Errorf("%+v, want %s for %s, saying %q", c, status, reason, says)
		}
	}
	is(metav1.ConditionTrue, v1alpha1.ReasonPeersCompared, "each of 2")

	// It did not run with 2 replicas: that is said at once, and in the end.
	left := plan.Action{Kind: plan.RecordFailure, Reason: v1alpha1.ReasonPeerNotReady, Message: `peer "plain": ErrImagePull`}
	for _, m := range s.plan.Measurements {
		if m.Peer != "" && m.Replicas == 2 {
			s.records[m.Name()] = record{Reason: left.Reason, Message: left.Message}
		}
	}
	s.benchmark.Status.Phase = v1alpha1.BenchmarkRunning
	after = summarised(t, s, left, outcome{leftOut: []string{left.Message}})
	is(metav1.ConditionFalse, v1alpha1.ReasonPeerNotReady, `peer "plain": ErrImagePull`)
	after.Phase = v1alpha1.BenchmarkRestoring
	s.benchmark.Status = after
	if full, err = fullReport(s); err != nil {
		t.Fatal(err)
	}
	after = summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{report: &full})
	is(metav1.ConditionFalse, v1alpha1.ReasonPeerNotReady, `1 of 2 comparisons with peers have no result: peer "plain": ErrImagePull`)
	if c := after.Peers[1]; c.Ratio != nil || !strings.Contains(strings.Join(c.InvalidBecause, " "), "ErrImagePull") || after.Peers[0].Ratio == nil {
		t.Errorf("%+v", after.Peers)
	}
	// The gateway's own points are results all the same.
	if c := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionValid); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("%+v", c)
	}
	if valid, all := full.ValidPoints(); valid != 2 || all != 2 {
		t.Errorf("%d of %d points are valid", valid, all)
	}
}

// A peer that ran at first and then no more has ratios of fewer repetitions, and what kept
// it from the others is not forgotten.
func TestAPeerThatWasLeftOutLaterIsNamed(t *testing.T) {
	s := withPeer(t, 5)
	left := plan.Action{Kind: plan.RecordFailure, Reason: v1alpha1.ReasonPeerNotReady, Message: `peer "plain": OOMKilled`}
	for _, m := range s.plan.Measurements {
		if m.Peer != "" && m.Repetition == 5 {
			s.records[m.Name()] = record{Reason: left.Reason, Message: left.Message}
		}
	}
	s.benchmark.Status.Phase = v1alpha1.BenchmarkRunning
	s.benchmark.Status = summarised(t, s, left, outcome{leftOut: []string{left.Message}})
	s.benchmark.Status.Phase = v1alpha1.BenchmarkRestoring
	full, err := fullReport(s)
	if err != nil {
		t.Fatal(err)
	}
	after := summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{report: &full})
	for _, c := range after.Peers {
		if c.Ratio == nil {
			t.Errorf("the first repetitions are no ratio: %+v", c)
		}
	}
	wantCondition(t, after, v1alpha1.ConditionPeersCompared, metav1.ConditionFalse, v1alpha1.ReasonPeerNotReady, `each of 2 comparisons with peers has a result, of fewer repetitions: peer "plain": OOMKilled`)
}

// twoPeers are a run, at 1 replica, beside two HAProxies that are each measured in a mode
// of their own; the gateway's listener has a certificate for each mode.
func twoPeers(t *testing.T, calls interceptor.Funcs) (*Reconciler, state) {
	t.Helper()
	b := inPlace(v1alpha1.BenchmarkRunning)
	mode := func(name string, scheme v1alpha1.SignatureScheme) v1alpha1.BenchmarkMode {
		return v1alpha1.BenchmarkMode{Name: name, Groups: []v1alpha1.Group{"X25519MLKEM768"}, SignatureSchemes: []v1alpha1.SignatureScheme{scheme}}
	}
	b.Spec.Modes = []v1alpha1.BenchmarkMode{mode("p256", "ecdsa_secp256r1_sha256"), mode("p384", "ecdsa_secp384r1_sha384")}
	for _, name := range []string{"p256", "p384"} {
		b.Spec.Peers = append(b.Spec.Peers, v1alpha1.BenchmarkPeer{Name: "of-" + name, Server: v1alpha1.BenchmarkPeerHAProxy, Image: "peers/" + name, Modes: []string{name}})
	}
	b.Status = planned(b, 7, noon)
	b.Status.Phase, b.Status.StartTime = v1alpha1.BenchmarkRunning, &metav1.Time{Time: noon}
	g := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: "web", Generation: 1}, Spec: v1alpha1.QTLSGatewaySpec{
		Replicas: ptr.To[int32](3), Listeners: []v1alpha1.Listener{{Name: "https", Port: 443, Protocol: v1alpha1.ProtocolHTTPS, Hostnames: []v1alpha1.Hostname{"web.example.com"},
			CertificateRefs: []v1alpha1.CertificateReference{{Kind: v1alpha1.CertificateKindSecret, Name: "web-p256"}, {Kind: v1alpha1.CertificateKindSecret, Name: "web-p384"}}}}}}
	if err := take(g, b, 1, noon); err != nil {
		t.Fatal(err)
	}
	g.Generation++
	g.Status = v1alpha1.QTLSGatewayStatus{ObservedGeneration: g.Generation, Replicas: 1, ReadyReplicas: 1,
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, ObservedGeneration: g.Generation}}}
	r := onFake(t, calls, b, g, pairIn(t, "bench", "web-p256", "ECDSA-P256"), pairIn(t, "bench", "web-p384", "ECDSA-P384"))
	r.Settings = generator.Settings{GatewayImage: "gateway:test", PeerImages: []string{"peers/*"}}
	s, err := r.fetch(t.Context(), b, noon)
	if err != nil {
		t.Fatal(err)
	}
	return r, s
}

// A peer has the keys of what it is measured with, and of nothing else.
func TestAPeerHasTheKeysOfItsModesOnly(t *testing.T) {
	r, s := twoPeers(t, interceptor.Funcs{})
	for i, p := range s.benchmark.Spec.Peers {
		mode := p.Modes[0]
		server, err := r.serverOf(t.Context(), s.benchmark, s.measured, i, 1)
		if err != nil {
			t.Fatal(err)
		}
		var mounted []string
		for _, v := range peer.Deployment(s.benchmark, s.measured, server, r.Settings).Spec.Template.Spec.Volumes {
			if v.Secret != nil {
				mounted = append(mounted, v.Secret.SecretName)
			}
		}
		if !slices.Equal(mounted, []string{"web-" + mode}) {
			t.Errorf("peer %s mounts %q", p.Name, mounted)
		}
		var l load.Load
		if err := r.retarget(t.Context(), s, plan.Measurement{Mode: mode, Peer: p.Name, Replicas: 1}, &l); err != nil {
			t.Fatal(err)
		}
		ports := peer.Service(s.benchmark, server).Spec.Ports
		if len(ports) != 1 || l.Client.Port != int(ports[0].Port) || l.Client.Host != "scaling-peer-"+p.Name+".bench.svc" {
			t.Errorf("peer %s has the ports %+v, and the load goes to %s:%d", p.Name, ports, l.Client.Host, l.Client.Port)
		}
	}
}

// forbidding a Deployment, as a quota or a policy does.
func forbidding(name string) interceptor.Funcs {
	return interceptor.Funcs{Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
		if u, is := o.(interface{ GetKind() string }); is && u.GetKind() == "Deployment" && o.(client.Object).GetName() == name {
			return apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, name, errors.New("exceeded quota: count"))
		}
		return c.Apply(ctx, o, opts...)
	}}
}

// A peer that may not be made is left out, with the reason and whatever was made of it;
// another is made all the same.
func TestAPeerThatIsForbiddenIsLeftOutAlone(t *testing.T) {
	r, s := twoPeers(t, forbidding("scaling-peer-of-p256"))
	done, err := r.act(t.Context(), s, plan.Action{Kind: plan.WaitProgrammed, Measurements: []plan.Measurement{{Replicas: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	if s.records, err = r.records(t.Context(), s.benchmark); err != nil {
		t.Fatal(err)
	}
	after := summarised(t, s, plan.Action{Kind: plan.WaitProgrammed}, done)
	wantCondition(t, after, v1alpha1.ConditionPeersCompared, metav1.ConditionFalse, v1alpha1.ReasonPeerNotReady, "exceeded quota: count")
	for _, m := range s.plan.Measurements {
		one, recorded := done.recorded[m.Name()]
		if recorded != (m.Peer == "of-p256") || recorded && (one.Reason != v1alpha1.ReasonPeerNotReady || !strings.Contains(one.Message, `peer "of-p256" cannot be made`)) {
			t.Errorf("%s: %t, %+v", m, recorded, one)
		}
	}
	if done.next == 0 {
		t.Error("nobody goes on")
	}
	if there := peersThere(t, r); !slices.Equal(there, []string{"Service scaling-peer-of-p384", "Deployment scaling-peer-of-p384"}) {
		t.Errorf("%q are there", there)
	}
}

// A certificate that is renewed, or an object of the same name that somebody is deleting,
// may be over in a moment: a peer is left out only when it was waited for.
func TestAPeerThatCannotBeMadeYetIsWaitedFor(t *testing.T) {
	const p256 = "scaling-peer-of-p256"
	for name, c := range map[string]struct {
		stand func(*Reconciler, state) client.Object // in the way
		clear func(*Reconciler, client.Object) error
		says  string
		other bool // is made
	}{
		"its certificate is not there": {func(r *Reconciler, _ state) client.Object {
			secret := pairIn(t, "bench", "web-p256", "ECDSA-P256")
			if err := r.Delete(t.Context(), secret.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			return secret
		}, func(r *Reconciler, o client.Object) error { return r.Create(t.Context(), o) }, `Secret "web-p256"`, false}, // whose listener is the other's, too
		"its name is taken": {func(r *Reconciler, _ state) client.Object {
			other := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: p256}}
			if err := r.Create(t.Context(), other); err != nil {
				t.Fatal(err)
			}
			return other
		}, func(r *Reconciler, o client.Object) error { return r.Delete(t.Context(), o) }, fmt.Sprintf("Service %q exists", p256), true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, over := range []bool{true, false} {
				r, s := twoPeers(t, interceptor.Funcs{})
				inTheWay := c.stand(r, s)
				a := plan.Action{Kind: plan.WaitProgrammed, Measurements: []plan.Measurement{{Replicas: 1}}}
				done, err := r.act(t.Context(), s, a)
				if problem, is := conditions.AsProblem(err); !is || problem.After <= 0 || !strings.Contains(problem.Message, c.says) {
					t.Fatalf("%v, want a problem that says %q", err, c.says)
				}
				if len(done.recorded) > 0 || slices.Contains(peersThere(t, r), "Deployment scaling-peer-of-p384") != c.other {
					t.Errorf("recorded %v; %q are there", done.recorded, peersThere(t, r))
				}
				r.Clock = clocktesting.NewFakePassiveClock(noon.Add(r.Limits.Programmed - time.Second))
				if over {
					if err := c.clear(r, inTheWay); err != nil {
						t.Fatal(err)
					}
				} else {
					r.Clock = clocktesting.NewFakePassiveClock(noon.Add(r.Limits.Programmed))
				}
				if done, err = r.act(t.Context(), s, a); err != nil {
					t.Fatal(err)
				}
				if made := slices.Contains(peersThere(t, r), "Deployment "+p256); made != over || (len(done.leftOut) == 0) != over {
					t.Errorf("over: %t; made: %t; left out: %q", over, made, done.leftOut)
				}
			}
		})
	}
}

// peersThere are the Services and Deployments in the namespace.
func peersThere(t *testing.T, r *Reconciler) []string {
	t.Helper()
	var all []string
	var services corev1.ServiceList
	var deployments appsv1.DeploymentList
	for _, list := range []client.ObjectList{&services, &deployments} {
		if err := r.List(t.Context(), list, client.InNamespace("bench")); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range services.Items {
		all = append(all, "Service "+o.Name)
	}
	for _, o := range deployments.Items {
		all = append(all, "Deployment "+o.Name)
	}
	return all
}

// What is left of a peer whose Deployment somebody has deleted goes; what is somebody
// else's stays.
func TestAllOfAPeerIsTakenAway(t *testing.T) {
	r, s := twoPeers(t, interceptor.Funcs{})
	if _, err := r.applyPeers(t.Context(), s, 1); err != nil {
		t.Fatal(err)
	}
	if there := peersThere(t, r); len(there) != 4 {
		t.Fatalf("%q are there", there)
	}
	if err := r.Delete(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: "scaling-peer-of-p256"}}); err != nil {
		t.Fatal(err)
	}
	other := &corev1.Service{}
	if err := r.Get(t.Context(), client.ObjectKey{Namespace: "bench", Name: "scaling-peer-of-p384"}, other); err != nil {
		t.Fatal(err)
	}
	other.OwnerReferences = nil
	if err := r.Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	s, err := r.fetch(t.Context(), s.benchmark, noon)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.restore(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if there := peersThere(t, r); !slices.Equal(there, []string{"Service scaling-peer-of-p384"}) {
		t.Errorf("%q are there", there)
	}
}

// A peer whose image the operator does not allow any more, since it was started anew,
// loses its keys at once, whatever is under way. The others go on.
func TestAPeerWhoseImageIsNoLongerAllowedGoes(t *testing.T) {
	for name, start := range map[string]func(t *testing.T, r *Reconciler, s state){
		"while the gateway is ready": func(*testing.T, *Reconciler, state) {},
		"while the gateway is not": func(t *testing.T, r *Reconciler, s state) {
			s.measured.Status.ReadyReplicas = 0
			if err := r.Update(t.Context(), s.measured); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, s := twoPeers(t, interceptor.Funcs{})
			if _, err := r.applyPeers(t.Context(), s, 1); err != nil {
				t.Fatal(err)
			}
			start(t, r, s)
			r.Settings.PeerImages = []string{"peers/p384"}
			s, err := r.fetch(t.Context(), s.benchmark, noon)
			if err != nil {
				t.Fatal(err)
			}
			a := s.plan.Next(s.observed, r.Limits)
			done, err := r.act(t.Context(), s, a)
			if err == nil {
				s.records, err = r.records(t.Context(), s.benchmark)
			}
			if err != nil {
				t.Fatal(err)
			}
			after := summarised(t, s, a, done)
			wantCondition(t, after, v1alpha1.ConditionPeersCompared, metav1.ConditionFalse, v1alpha1.ReasonPeerNotReady, `ImageNotAllowed: spec.peers[0].image: peer "of-p256" may not run "peers/p256"`)
			for _, m := range s.plan.Measurements {
				if _, recorded := done.recorded[m.Name()]; recorded != (m.Peer == "of-p256") {
					t.Errorf("%s: %t", m, recorded)
				}
			}
			if there := peersThere(t, r); !slices.Equal(there, []string{"Service scaling-peer-of-p384", "Deployment scaling-peer-of-p384"}) {
				t.Errorf("%q are there", there)
			}
			if s, err = r.fetch(t.Context(), s.benchmark, noon); err != nil {
				t.Fatal(err)
			}
			if a := s.plan.Next(s.observed, r.Limits); a.Kind == plan.RecordFailure || a.Kind == plan.Abort {
				t.Errorf("the run does not go on: %+v", a)
			}
			var l load.Load
			if err := r.retarget(t.Context(), s, plan.Measurement{Mode: "p384", Peer: "of-p384", Replicas: 1}, &l); err != nil {
				t.Errorf("the other is not measured: %v", err)
			}
		})
	}
}

// What forbids a peer before the run may allow it then; all else is measured whatever.
func TestAPeerThatIsForbiddenKeepsNoRunFromItsBeginning(t *testing.T) {
	asked := 0
	r, s := twoPeers(t, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if _, is := o.(*appsv1.Deployment); is {
			asked++
			return apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, o.GetName(), errors.New("exceeded quota: count"))
		}
		return c.Create(ctx, o, opts...)
	}})
	if err := r.canBegin(t.Context(), s, 1); err != nil || asked != 2 {
		t.Errorf("%v, after %d Deployments", err, asked)
	}
}
