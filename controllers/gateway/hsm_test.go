package gateway

import (
	"strings"
	"testing"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/rollout"
)

func TestWhoSignsForThePods(t *testing.T) {
	up := func(name string) dataplane.HSMMemberStatus {
		return dataplane.HSMMemberStatus{Name: name, State: "Up"}
	}
	down := dataplane.HSMMemberStatus{Name: "a", State: "Down", Error: "Connection refused"}
	starting := dataplane.HSMMemberStatus{Name: "b", State: "Starting"}
	pod := func(name string, members ...dataplane.HSMMemberStatus) rollout.Pod {
		return rollout.Pod{Name: name, Ready: true, Status: &dataplane.Status{HSM: members}}
	}
	for name, c := range map[string]struct {
		pods   []rollout.Pod
		reason string
		says   string
	}{
		"all are up":                             {[]rollout.Pod{pod("web-1", up("a"), up("b")), pod("web-2", up("a"), up("b"))}, v1alpha1.ReasonReady, `every member of HSMPool "vault"`},
		"one is down":                            {[]rollout.Pod{pod("web-1", up("a"), up("b")), pod("web-2", down, up("b"))}, v1alpha1.ReasonDegraded, `pod web-2: member "a" is Down: Connection refused`},
		"none is up":                             {[]rollout.Pod{pod("web-1", up("a"), up("b")), pod("web-2", down, starting)}, v1alpha1.ReasonHSMNotReady, `pod web-2: member "a" is Down: Connection refused, member "b" is Starting`},
		"all start":                              {[]rollout.Pod{pod("web-1", up("a"), up("b")), pod("web-2", starting)}, v1alpha1.ReasonPending, `pod web-2: member "b" is Starting`},
		"one starts":                             {[]rollout.Pod{pod("web-1", up("a"), starting)}, v1alpha1.ReasonPending, `pod web-1: member "b" is Starting`},
		"one starts, and a pod has another down": {[]rollout.Pod{pod("web-1", starting), pod("web-2", down, up("b"))}, v1alpha1.ReasonDegraded, `pod web-2: member "a" is Down`},
		"a pod says nothing":                     {[]rollout.Pod{pod("web-1", up("a"), up("b")), pod("web-2")}, v1alpha1.ReasonPending, "pod web-2 has not said yet"},
		"an agent is away":                       {[]rollout.Pod{{Name: "web-1", Ready: true}}, v1alpha1.ReasonPending, "pod web-1 has not said yet"},
		"pods that do not count": {[]rollout.Pod{pod("web-1", up("a")), {Name: "web-2", Status: &dataplane.Status{HSM: []dataplane.HSMMemberStatus{down}}},
			{Name: "web-3", Ready: true, Terminating: true, Status: &dataplane.Status{HSM: []dataplane.HSMMemberStatus{down}}}}, v1alpha1.ReasonReady, ""},
		"no pods": {nil, v1alpha1.ReasonPending, "no pod is ready"},
	} {
		t.Run(name, func(t *testing.T) {
			revision := dataplane.Revision{HSM: &dataplane.HSM{Pool: "vault"}}
			p := plan{Assignment: dataplane.Assignment{Stable: dataplane.Target{Revision: "r"}}, Revisions: map[string]dataplane.Revision{"r": revision}}
			v, ok := signing(inputs{Observed: c.pods}, p)
			if !ok || v.reason != c.reason || v.ok != (c.reason == v1alpha1.ReasonReady) || !strings.Contains(v.message, c.says) {
				t.Errorf("%t, %+v; want %s, saying %q", ok, v, c.reason, c.says)
			}
		})
	}
	missing := pod("web-1", up("a"))
	missing.Status.HSMProblems = []string{`Secret vault-gateways does not exist; store in it …`}
	too, ends := missing, missing
	too.Name, ends.Name, ends.Terminating = "web-2", "web-3", true
	ends.Status = &dataplane.Status{HSMProblems: []string{"gone"}}
	p := plan{Assignment: dataplane.Assignment{Stable: dataplane.Target{Revision: "r"}}, Revisions: map[string]dataplane.Revision{"r": {HSM: &dataplane.HSM{Pool: "vault"}}}}
	if v, _ := signing(inputs{Observed: []rollout.Pod{missing, too, ends}}, p); !v.ok || !strings.HasSuffix(v.message, `HSMPool "vault"; Secret vault-gateways does not exist; store in it …`) {
		t.Errorf("a Secret that is missing: %+v", v)
	}
	if v, ok := signing(inputs{}, plan{}); ok {
		t.Errorf("a gateway without keys in HSMs has %+v", v)
	}
}

// Pods keep a library for as long as a pod may have to sign with it.
func TestWhenPodsKeepTheirLibraries(t *testing.T) {
	library := func(members ...string) (all []hsmpool.Library) {
		for _, m := range members {
			all = append(all, hsmpool.Library{Member: m})
		}
		return all
	}
	revision := func(members ...dataplane.HSMMember) dataplane.Revision {
		return dataplane.Revision{HSM: &dataplane.HSM{Pool: "vault", Members: members}}
	}
	luna, remote := dataplane.HSMMember{Name: "luna", InPod: true}, dataplane.HSMMember{Name: "remote"}
	stable := dataplane.Target{Revision: "luna"}
	// A revision without luna is to follow the one with it.
	replaced := func(rejection *dataplane.Rejection) plan {
		return plan{Assignment: dataplane.Assignment{Stable: stable, Candidate: &dataplane.Target{Revision: "remote"}, CandidatePod: "web-1"}, Rejection: rejection,
			Revisions: map[string]dataplane.Revision{"luna": revision(luna), "remote": revision(remote)}}
	}
	published := func(held bool, r dataplane.Revision) plan {
		return plan{Assignment: dataplane.Assignment{Stable: stable}, Revisions: map[string]dataplane.Revision{"luna": r}, Held: held}
	}
	serving := []rollout.Pod{{Name: "web-1"}, {Name: "web-2", Ready: true}}
	for name, c := range map[string]struct {
		plan      plan
		libraries []hsmpool.Library
		pods      []rollout.Pod
		want      bool
	}{
		"the pool has it":                              {published(false, revision(luna)), library("luna", "other"), serving, false},
		"its successor is not tried yet":               {replaced(nil), nil, serving, true},
		"its successor is tried, with another library": {replaced(nil), library("other"), serving, true},
		"its successor is refused":                     {replaced(&dataplane.Rejection{Message: "no"}), nil, serving, true},
		"its successor is taken up":                    {published(false, revision(remote)), nil, serving, false},
		"held, and the pool is gone":                   {published(true, revision(luna)), nil, serving, true},
		"held, and the pool has another of it":         {published(true, revision(luna)), library("luna"), serving, true},
		"held, with no pod ready":                      {published(true, revision(luna)), nil, nil, true},
		"held, and it is not in use":                   {published(true, revision(remote)), nil, serving, false},
		"held, without HSMs":                           {published(true, dataplane.Revision{}), nil, serving, false},
		"it keeps pods from becoming ready":            {replaced(nil), nil, []rollout.Pod{{Name: "web-1"}, {Name: "web-2", Ready: true, Terminating: true}}, false},
		"nothing is published":                         {plan{}, library("luna"), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.plan.keepsLibraries(c.libraries, c.pods); got != c.want {
				t.Errorf("%t, want %t", got, c.want)
			}
		})
	}
}
