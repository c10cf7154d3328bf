package rollout

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"qtls.dev/qtls/internal/dataplane"
)

var (
	a1 = dataplane.Target{Revision: "a", Generation: 1}
	a2 = dataplane.Target{Revision: "a", Generation: 2}
	b2 = dataplane.Target{Revision: "b", Generation: 2}
	c3 = dataplane.Target{Revision: "c", Generation: 3}
)

func runs(name string, t dataplane.Target) Pod {
	return Pod{Name: name, Ready: true, Status: &dataplane.Status{Pod: name, Running: t}}
}

func rejects(name string, running, rejected dataplane.Target) Pod {
	p := runs(name, running)
	p.Status.Rejected = &dataplane.Rejection{Target: rejected, Message: "unknown keyword 'x'"}
	return p
}

func TestPlan(t *testing.T) {
	stable := func(t dataplane.Target) dataplane.Assignment { return dataplane.Assignment{Stable: t} }
	trying := func(s, c dataplane.Target, pod string) dataplane.Assignment {
		return dataplane.Assignment{Stable: s, Candidate: &c, CandidatePod: pod}
	}
	published := func(a dataplane.Assignment) *dataplane.Assignment { return &a }

	for _, tc := range []struct {
		name      string
		published *dataplane.Assignment
		wanted    dataplane.Target
		pods      []Pod
		want      dataplane.Assignment
	}{
		{"the first revision is stable at once", nil, a1, nil, stable(a1)},
		{"a new generation of the same content needs no trial", published(stable(a1)), a2, []Pod{runs("p", a1)}, stable(a2)},
		{"without a pod there is nobody to try it and nothing to protect", published(stable(a1)), b2, nil, stable(b2)},
		{"when no pod runs the stable revision, the new one replaces it", published(stable(a1)), b2,
			[]Pod{rejects("p", dataplane.Target{}, a1)}, stable(b2)},
		{"one ready pod tries first, the first by name", published(stable(a1)), b2,
			[]Pod{runs("q", a1), runs("p", a1)}, trying(a1, b2, "p")},
		{"an unready pod does not try", published(stable(a1)), b2,
			[]Pod{{Name: "p", Status: &dataplane.Status{Running: a1}}, runs("q", a1)}, trying(a1, b2, "q")},
		{"a pod of unknown status may run the stable revision: wait for it", published(stable(a1)), b2,
			[]Pod{{Name: "p", Ready: true}}, stable(a1)},
		{"the trial goes on with the same pod", published(trying(a1, b2, "q")), b2,
			[]Pod{runs("p", a1), runs("q", a1)}, trying(a1, b2, "q")},
		{"the trial succeeds: everybody follows", published(trying(a1, b2, "q")), b2,
			[]Pod{runs("p", a1), runs("q", b2)}, stable(b2)},
		{"a refused revision stays with its one pod", published(trying(a1, b2, "q")), b2,
			[]Pod{runs("p", a1), rejects("q", a1, b2)}, trying(a1, b2, "q")},
		{"a newer revision takes a refused one's place", published(trying(a1, b2, "q")), c3,
			[]Pod{runs("p", a1), rejects("q", a1, b2)}, trying(a1, c3, "q")},
		{"going back to the stable content ends the trial", published(trying(a1, b2, "q")), dataplane.Target{Revision: "a", Generation: 3},
			[]Pod{runs("p", a1), rejects("q", a1, b2)}, stable(dataplane.Target{Revision: "a", Generation: 3})},
		{"when the trying pod goes, another tries", published(trying(a1, b2, "gone")), b2,
			[]Pod{runs("p", a1)}, trying(a1, b2, "p")},
		{"a terminating pod does not try", published(trying(a1, b2, "q")), b2,
			[]Pod{runs("p", a1), {Name: "q", Ready: true, Terminating: true, Status: &dataplane.Status{Running: a1}}}, trying(a1, b2, "p")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Plan(tc.published, tc.wanted, tc.pods)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("assignment (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHold(t *testing.T) {
	trial := dataplane.Assignment{Stable: a1, Candidate: &b2, CandidatePod: "q"}
	for _, tc := range []struct {
		name      string
		published dataplane.Assignment
		pods      []Pod
		want      dataplane.Assignment
	}{
		{"without a candidate nothing changes", dataplane.Assignment{Stable: a1}, []Pod{runs("p", a1)}, dataplane.Assignment{Stable: a1}},
		{"a candidate that is not taken up yet is dropped", trial, []Pod{runs("p", a1), runs("q", a1)}, dataplane.Assignment{Stable: a1}},
		{"one that was refused, too", trial, []Pod{runs("p", a1), rejects("q", a1, b2)}, dataplane.Assignment{Stable: a1}},
		{"and one whose pod is gone", trial, []Pod{runs("p", a1)}, dataplane.Assignment{Stable: a1}},
		{"or goes", trial, []Pod{runs("p", a1), {Name: "q", Terminating: true, Status: &dataplane.Status{Running: b2}}}, dataplane.Assignment{Stable: a1}},
		{"one that its pod runs is good", trial, []Pod{runs("p", a1), runs("q", b2)}, dataplane.Assignment{Stable: b2}},
		{"of a pod of unknown status it is not known", trial, []Pod{runs("p", a1), {Name: "q", Ready: true}}, trial},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Hold(tc.published, tc.pods)); diff != "" {
				t.Errorf("assignment (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMayServe(t *testing.T) {
	for _, tc := range []struct {
		name string
		pod  Pod
		want bool
	}{
		{"a pod that runs it", runs("p", a1), true},
		{"a pod that runs another", runs("p", b2), false},
		{"a pod of which nothing is known, ready or not", Pod{Name: "p"}, true},
		{"a pod whose HAProxy does not run just now", runs("p", dataplane.Target{}), true},
		{"a pod that has not started", Pod{Name: "p", Pending: true}, false},
		{"a pod that ends", Pod{Name: "p", Ready: true, Terminating: true, Status: &dataplane.Status{Running: a1}}, false},
	} {
		if got := MayServe("a", []Pod{runs("other", b2), tc.pod}); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	if MayServe("a", nil) {
		t.Error("no pod serves")
	}
}

func TestRejectionIsOfTheWantedRevision(t *testing.T) {
	pods := []Pod{runs("p", a1), rejects("q", a1, b2)}
	if r := Rejection(b2, pods); r == nil || r.Message != "unknown keyword 'x'" {
		t.Errorf("Rejection(b) = %+v, want HAProxy's message", r)
	}
	if r := Rejection(c3, pods); r != nil {
		t.Errorf("Rejection(c) = %+v, want none: it was b that was refused", r)
	}
}
