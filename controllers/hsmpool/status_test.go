package hsmpool

import (
	"slices"
	"strings"
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
	o := hsmpool.Observation{Member: name, State: v1alpha1.HSMMemberUp, Status: hsm.Status{Token: "gw", State: v1alpha1.HSMMemberUp, Sessions: 4, Signatures: signatures}}
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
	expect("one of them is back", step(up("a", 0), down("b", v1alpha1.ReasonPINWrong)), normal+"MemberUp", normal+v1alpha1.ReasonDegraded)
	expect("it goes again", step(down("a", v1alpha1.ReasonPINWrong), down("b", v1alpha1.ReasonPINWrong)), warning+v1alpha1.ReasonPINWrong, warning+v1alpha1.ReasonPINWrong)
	expect("both are back", step(up("a", 0), up("b", 0)), normal+"MemberUp", normal+"MemberUp", normal+v1alpha1.ReasonReady)
}

// A member that signs may have a problem: that is no news of its being back.
func TestEventsTellOfProblemsOfMembersThatSign(t *testing.T) {
	troubled := up("a", 1)
	troubled.Problem = &conditions.Problem{Reason: v1alpha1.ReasonNotApplied, Message: "its Service is somebody else's"}
	pool := &v1alpha1.HSMPool{}
	for _, step := range []struct {
		what string
		hsmpool.Observation
		want []string
	}{
		{"new", up("a", 1), []string{v1alpha1.ReasonReady}},
		{"a problem appears", troubled, []string{v1alpha1.ReasonNotApplied}},
		{"it stays", troubled, nil},
		{"it goes", up("a", 2), nil},
		{"the member goes", down("a", v1alpha1.ReasonPINWrong), []string{v1alpha1.ReasonPINWrong, v1alpha1.ReasonPINWrong}},
		{"it is back, with the problem", troubled, []string{eventMemberUp, v1alpha1.ReasonNotApplied, v1alpha1.ReasonReady}},
	} {
		before := pool.Status
		pool.Status = summarise(pool, []hsmpool.Observation{step.Observation}, noon)
		var got []string
		for _, p := range news(before, pool.Status) {
			got = append(got, p.reason)
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
}

// Each of several daemons waits for its turn.
func TestThatAChangeWaitsIsToldAndNoWarning(t *testing.T) {
	const says = `member "b": a change of its daemon waits`
	waiting := up("b", 1)
	waiting.Problem = &conditions.Problem{Reason: v1alpha1.ReasonProgressing, Message: says}
	pool := &v1alpha1.HSMPool{}
	pool.Status = summarise(pool, []hsmpool.Observation{up("a", 1), up("b", 1)}, noon)
	before := pool.Status
	pool.Status = summarise(pool, []hsmpool.Observation{up("a", 1), waiting}, noon)
	if got := news(before, pool.Status); !slices.Equal(got, []piece{{corev1.EventTypeNormal, v1alpha1.ReasonProgressing, says}}) {
		t.Errorf("events %+v", got)
	}
	ready := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
	if ready.Status != "True" || ready.Reason != v1alpha1.ReasonReady || ready.Message != "each of 2 members can sign; "+says {
		t.Errorf("%+v", ready)
	}
}

// Whoever looks after a failure sees what it was, though the member is up again.
func TestTheLastErrorOfAMemberStays(t *testing.T) {
	const failure = "sign: CKR_DEVICE_REMOVED (0x32)"
	pool := &v1alpha1.HSMPool{}
	told := func(state v1alpha1.HSMMemberState, lastError string) v1alpha1.HSMMemberStatus {
		o := hsmpool.Observation{Member: "a", State: state, Status: hsm.Status{State: state, LastError: lastError}}
		pool.Status = summarise(pool, []hsmpool.Observation{o}, noon)
		return pool.Status.Members[0]
	}
	for _, state := range []v1alpha1.HSMMemberState{v1alpha1.HSMMemberDown, v1alpha1.HSMMemberUp} {
		if m := told(state, failure); m.LastError != failure || m.Message != "" {
			t.Errorf("%s: %+v", state, m)
		}
	}
	if m := told(v1alpha1.HSMMemberUp, ""); m.LastError != "" {
		t.Errorf("of a daemon that has just started: %+v", m)
	}
	if m := told(v1alpha1.HSMMemberUp, strings.Repeat("x", 5000)); len(m.LastError) != 1024 || !strings.HasSuffix(m.LastError, "…") {
		t.Errorf("of %d bytes: %q", len(m.LastError), m.LastError)
	}
}

// Under load counters differ at each look.
func TestCountersAloneAreWrittenOnceAMinute(t *testing.T) {
	pool := &v1alpha1.HSMPool{}
	pool.Status = summarise(pool, []hsmpool.Observation{up("a", 1)}, noon)
	faster, failed := up("a", 2), up("a", 1)
	faster.Status.Latency.P50, failed.Status.Failures, failed.Status.LastError = 800, 1, "sign: CKR_DEVICE_MEMORY (0x31)"
	for name, c := range map[string]struct {
		hsmpool.Observation
		ago  time.Duration
		want bool
	}{
		"nothing is new":                 {up("a", 1), time.Hour, false},
		"a signature":                    {up("a", 2), 10 * time.Second, false},
		"a faster one":                   {faster, 10 * time.Second, false},
		"a failure":                      {failed, 59 * time.Second, false},
		"a signature, after a minute":    {up("a", 2), time.Minute, true},
		"the member goes":                {down("a", v1alpha1.ReasonPINWrong), time.Second, true},
		"it is not known how long since": {up("a", 2), noon.Sub(time.Time{}), true},
	} {
		if got := worthWriting(pool.Status, summarise(pool, []hsmpool.Observation{c.Observation}, noon), c.ago); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

func TestAPoolOfSoftTokensIsMarked(t *testing.T) {
	pool := &v1alpha1.HSMPool{Spec: v1alpha1.HSMPoolSpec{Members: []v1alpha1.HSMMember{
		{Name: "a", SoftToken: &v1alpha1.SoftToken{}}, {Name: "b", Remote: &v1alpha1.RemoteHSM{}},
	}}}
	pool.Status = summarise(pool, []hsmpool.Observation{up("a", 1), up("b", 1)}, noon)
	c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionDevelopment)
	if c == nil || c.Status != "True" || c.Reason != v1alpha1.ReasonSoftToken || c.Message != `not for production: of member "a" the keys are in software, for development and tests` {
		t.Errorf("%+v", c)
	}
	if !meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("it is not ready for that: %+v", pool.Status.Conditions)
	}
	pool.Spec.Members = pool.Spec.Members[1:]
	pool.Status = summarise(pool, []hsmpool.Observation{up("b", 1)}, noon)
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionDevelopment); c != nil {
		t.Errorf("it is marked without one: %+v", c)
	}
}

// What is known of a daemon is told rather than what follows of it.
func TestWhatIsBlamed(t *testing.T) {
	pool := &v1alpha1.HSMPool{Spec: v1alpha1.HSMPoolSpec{Members: []v1alpha1.HSMMember{
		{Name: "remote", Remote: &v1alpha1.RemoteHSM{}}, {Name: "soft", SoftToken: &v1alpha1.SoftToken{}}, {Name: "luna", Daemon: &v1alpha1.HSMDaemon{}},
	}}}
	unreachable := func(name string) hsmpool.Observation {
		o := down(name, v1alpha1.ReasonHSMUnreachable)
		o.State = v1alpha1.HSMMemberUnknown
		return o
	}
	waits := func(member string) *conditions.Problem {
		return &conditions.Problem{Reason: v1alpha1.ReasonDaemonNotReady, Message: member}
	}
	for name, c := range map[string]struct {
		observations []hsmpool.Observation
		problems     map[string]*conditions.Problem
		want         []string
	}{
		"nobody answers": {[]hsmpool.Observation{unreachable("remote"), unreachable("soft"), unreachable("luna")}, nil,
			[]string{v1alpha1.ReasonHSMUnreachable, v1alpha1.ReasonDaemonNotReady, v1alpha1.ReasonDaemonNotReady}},
		"a member's objects": {[]hsmpool.Observation{up("remote", 1), unreachable("soft"), down("luna", v1alpha1.ReasonTokenFailed)},
			map[string]*conditions.Problem{"soft": {Reason: v1alpha1.ReasonNotApplied}}, []string{"", v1alpha1.ReasonNotApplied, v1alpha1.ReasonTokenFailed}},
		"the pool's objects": {[]hsmpool.Observation{up("remote", 1), up("soft", 1), down("luna", v1alpha1.ReasonPINWrong)},
			map[string]*conditions.Problem{"": {Reason: v1alpha1.ReasonNotApplied}}, []string{"", v1alpha1.ReasonNotApplied, v1alpha1.ReasonNotApplied}},
		"changes that wait": {[]hsmpool.Observation{up("remote", 1), up("soft", 1), down("luna", v1alpha1.ReasonTokenFailed)},
			map[string]*conditions.Problem{"soft": {Reason: v1alpha1.ReasonProgressing}, "luna": {Reason: v1alpha1.ReasonProgressing}}, []string{"", v1alpha1.ReasonProgressing, v1alpha1.ReasonTokenFailed}},
	} {
		for i, o := range blame(pool, c.observations, c.problems, waits) {
			reason := ""
			if o.Problem != nil {
				reason = o.Problem.Reason
			}
			if reason != c.want[i] || o.State != c.observations[i].State {
				t.Errorf("%s: member %s is %s for %q, want %s for %q", name, o.Member, o.State, reason, c.observations[i].State, c.want[i])
			}
		}
	}
}
