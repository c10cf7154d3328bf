package gateway

import (
	"strings"
	"testing"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
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
