package gateway

import (
	"fmt"
	"strings"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
)

// signing says whether the pods have signatures made by the members of the
// gateway's HSMPool. It is false where no key lies in one. What the pool's own
// conditions say is how the operator reaches the members.
func signing(in inputs, p plan) (verdict, bool) {
	h := p.Revisions[p.Assignment.Stable.Revision].HSM
	if h == nil {
		return verdict{}, false
	}
	ready := 0
	var none, some, silent []string
	for _, pod := range in.Observed {
		if !pod.Ready || pod.Terminating {
			continue
		}
		ready++
		down, up := membersOf(pod.Status)
		switch {
		case len(down) == 0 && up == 0:
			silent = append(silent, "pod "+pod.Name+" has not said yet how the members are")
		case up == 0:
			none = append(none, "pod "+pod.Name+": "+strings.Join(down, ", "))
		case len(down) > 0:
			some = append(some, "pod "+pod.Name+": "+strings.Join(down, ", "))
		}
	}
	switch {
	case len(none) > 0:
		return verdict{false, v1alpha1.ReasonHSMNotReady, fmt.Sprintf("HSMPool %q: handshakes with its keys fail: %s", h.Pool, strings.Join(append(none, some...), "; "))}, true
	case len(some) > 0:
		return verdict{false, v1alpha1.ReasonDegraded, fmt.Sprintf("HSMPool %q: other members sign, but not all do: %s", h.Pool, strings.Join(some, "; "))}, true
	case len(silent) > 0:
		return verdict{false, v1alpha1.ReasonPending, strings.Join(silent, "; ")}, true
	case ready == 0:
		return verdict{false, v1alpha1.ReasonPending, "no pod is ready (see the other conditions)"}, true
	}
	return verdict{true, v1alpha1.ReasonReady, fmt.Sprintf("each pod that is ready has signatures made by every member of HSMPool %q", h.Pool)}, true
}

// membersOf are those that a pod does not have up, with why, and how many are.
func membersOf(s *dataplane.Status) (down []string, up int) {
	if s == nil {
		return nil, 0
	}
	for _, m := range s.HSM {
		switch {
		case m.State == dataplane.HSMMemberUp:
			up++
		case m.Error != "":
			down = append(down, fmt.Sprintf("member %q is %s: %s", m.Name, m.State, m.Error))
		default:
			down = append(down, fmt.Sprintf("member %q is %s", m.Name, m.State))
		}
	}
	return down, up
}
