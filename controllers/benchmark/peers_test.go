package benchmark

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/plan"
)

// withPeer is a run whose gateway makes 20 handshakes a second, and a peer half as
// many; both did what their rules ask for.
func withPeer(t *testing.T) state {
	t.Helper()
	b := inPlace(v1alpha1.BenchmarkRestoring)
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
	s := withPeer(t)
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
	// The peer is no point of the gateway, in the status or for thresholds.
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
		s := withPeer(t)
		for _, m := range s.plan.Measurements {
			c.spoil(m, s.records[m.Name()].Usage)
		}
		full, err := fullReport(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range comparisons(s.benchmark, full) {
			if got.Ratio != nil || !strings.Contains(strings.Join(got.InvalidBecause, " "), c.says) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

// A gateway is ready to be measured when its peers are.
func TestThePeersAreThereWithTheGateway(t *testing.T) {
	b := inPlace(v1alpha1.BenchmarkRunning)
	b.Spec.Peers = []v1alpha1.BenchmarkPeer{{Name: "plain"}}
	g := plan.Gateway{Held: true, Replicas: 2, Since: noon, Programmed: true}
	lately := noon.Add(time.Second)
	deployment := func(replicas, there, ready int32, observed int64) map[string]*appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "scaling-peer-plain", Generation: 3}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To(replicas)},
			Status: appsv1.DeploymentStatus{ObservedGeneration: observed, Replicas: there, ReadyReplicas: ready, UpdatedReplicas: there}}
		if ready < replicas {
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(lately)}}
		}
		return map[string]*appsv1.Deployment{"plain": d}
	}
	for name, c := range map[string]struct {
		deployments map[string]*appsv1.Deployment
		ready       bool
		since       time.Time
		says        string
	}{
		"all pods":             {deployment(2, 2, 2, 3), true, time.Time{}, ""},
		"none":                 {nil, false, time.Time{}, `peer "plain" is not there yet`},
		"those of another":     {deployment(1, 1, 1, 3), false, time.Time{}, "not there yet"},
		"just changed":         {deployment(2, 2, 2, 2), false, time.Time{}, "is not observed yet"},
		"one is not ready":     {deployment(2, 2, 1, 3), false, lately, "1 of 2 pods"},
		"one that is to leave": {deployment(2, 3, 2, 3), false, noon, "3 are there"},
	} {
		got := withPeers(g, b, c.deployments, noon)
		if got.Programmed != c.ready || !got.Unprogrammed.Equal(c.since) || !strings.Contains(got.Message, c.says) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	g.Programmed, g.Message = false, "the gateway itself"
	if got := withPeers(g, b, deployment(2, 2, 2, 3), noon); got.Message != "the gateway itself" {
		t.Errorf("%+v", got)
	}
}
