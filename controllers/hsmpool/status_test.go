package hsmpool

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/hsmpool"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func up(name string, signatures int64) hsmpool.Observation {
	o := hsmpool.Observation{Member: name, State: v1alpha1.HSMMemberUp, Status: hsm.Status{Token: "gw", State: hsm.Up, Sessions: 4, Signatures: signatures}}
	o.Status.Latency.P50, o.Status.Latency.P99 = 900, 1200
	return o
}

func down(name, reason string) hsmpool.Observation {
	return hsmpool.Observation{Member: name, State: v1alpha1.HSMMemberDown, Problem: &conditions.Problem{Reason: reason, Message: "member " + name + " is down"}}
}

func TestAPoolIsReadyWhileOneMemberCanSign(t *testing.T) {
	for name, c := range map[string]struct {
		observations []hsmpool.Observation
		status       metav1.ConditionStatus
		reason, says string
		up           string
	}{
		"all are up":      {[]hsmpool.Observation{up("a", 1), up("b", 1)}, "True", v1alpha1.ReasonReady, "each of 2 members can sign", "2/2"},
		"one is not":      {[]hsmpool.Observation{down("a", v1alpha1.ReasonPINWrong), up("b", 1)}, "True", v1alpha1.ReasonDegraded, "1 of 2 members can sign; member a is down", "1/2"},
		"none is":         {[]hsmpool.Observation{down("a", v1alpha1.ReasonPINWrong), down("b", v1alpha1.ReasonPINLocked)}, "False", v1alpha1.ReasonPINWrong, "member a is down; member b is down", "0/2"},
		"the only one is": {[]hsmpool.Observation{up("a", 1)}, "True", v1alpha1.ReasonReady, "each of 1 members can sign", "1/1"},
	} {
		pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Generation: 3}}
		s := summarise(pool, c.observations, noon)
		ready := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Status != c.status || ready.Reason != c.reason || ready.Message != c.says || ready.ObservedGeneration != 3 || s.Up != c.up {
			t.Errorf("%s: %+v, up %s", name, ready, s.Up)
		}
	}
}

func TestAMembersStatus(t *testing.T) {
	pool := &v1alpha1.HSMPool{}
	pool.Status = summarise(pool, []hsmpool.Observation{up("a", 1)}, noon)
	want := v1alpha1.HSMMemberStatus{Name: "a", State: v1alpha1.HSMMemberUp, Since: metav1.NewTime(noon), Token: "gw", Sessions: 4, Signatures: 1}
	got := pool.Status.Members[0]
	if l := got.Latency; l == nil || l.P50.Duration != 900*time.Microsecond || l.P99.Duration != 1200*time.Microsecond {
		t.Errorf("latency %+v", l)
	}
	if got.Latency = nil; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	// The state is as old as it is, whatever else changes.
	pool.Status = summarise(pool, []hsmpool.Observation{up("a", 2)}, noon.Add(time.Minute))
	if m := pool.Status.Members[0]; m.Signatures != 2 || !m.Since.Time.Equal(noon) {
		t.Errorf("a minute later: %+v", m)
	}
	pool.Status = summarise(pool, []hsmpool.Observation{down("a", v1alpha1.ReasonPINLocked)}, noon.Add(time.Hour))
	if m := pool.Status.Members[0]; m.State != v1alpha1.HSMMemberDown || m.Reason != v1alpha1.ReasonPINLocked || !m.Since.Time.Equal(noon.Add(time.Hour)) || m.Latency != nil {
		t.Errorf("down: %+v", m)
	}
}

func TestEventsTellOfMembersThatComeAndGo(t *testing.T) {
	pool := &v1alpha1.HSMPool{}
	step := func(observations ...hsmpool.Observation) []piece {
		before := pool.Status
		pool.Status = summarise(pool, observations, noon)
		return news(before, pool.Status)
	}
	expect := func(what string, got []piece, want ...string) {
		t.Helper()
		var said []string
		for _, p := range got {
			said = append(said, p.kind+" "+p.reason)
		}
		if len(said) != len(want) {
			t.Fatalf("%s: %q, want %q", what, said, want)
		}
		for i := range want {
			if said[i] != want[i] {
				t.Errorf("%s: %q, want %q", what, said, want)
			}
		}
	}
	const normal, warning = corev1.EventTypeNormal + " ", corev1.EventTypeWarning + " "
	expect("new", step(up("a", 0), up("b", 0)), normal+v1alpha1.ReasonReady)
	expect("a signature", step(up("a", 1), up("b", 0)))
	expect("a member goes", step(down("a", v1alpha1.ReasonTokenFailed), up("b", 0)), warning+v1alpha1.ReasonTokenFailed)
	expect("it stays away", step(down("a", v1alpha1.ReasonTokenFailed), up("b", 5)))
	expect("for another reason", step(down("a", v1alpha1.ReasonPINWrong), up("b", 5)), warning+v1alpha1.ReasonPINWrong)
	expect("the other goes", step(down("a", v1alpha1.ReasonPINWrong), down("b", v1alpha1.ReasonPINWrong)), warning+v1alpha1.ReasonPINWrong, warning+v1alpha1.ReasonPINWrong)
	expect("both are back", step(up("a", 0), up("b", 0)), normal+"MemberUp", normal+"MemberUp", normal+v1alpha1.ReasonReady)
}
