package gateway

import (
	"fmt"
	"slices"
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
	v := signatures(in, h.Pool)
	// A pod goes on with the credentials that it has: no handshake fails for that.
	v.message = strings.Join(append([]string{v.message}, credentialProblems(in)...), "; ")
	return v, true
}

// credentialProblems are what pods say of the Secrets with their credentials for
// members, each once.
func credentialProblems(in inputs) []string {
	var all []string
	for _, pod := range in.Observed {
		if pod.Status != nil && !pod.Terminating {
			all = append(all, pod.Status.HSMProblems...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// signatures says how many members sign for the pods that are ready.
func signatures(in inputs, pool string) verdict {
	ready := 0
	var none, some, pending []string
	for _, pod := range in.Observed {
		if !pod.Ready || pod.Terminating {
			continue
		}
		ready++
		down, starting, up := membersOf(pod.Status)
		says := "pod " + pod.Name + ": " + strings.Join(append(down, starting...), ", ")
		switch {
		case len(down) > 0 && up == 0:
			none = append(none, says)
		case len(down) > 0:
			some = append(some, says)
		case len(starting) > 0:
			pending = append(pending, says)
		case up == 0:
			pending = append(pending, "pod "+pod.Name+" has not said yet how the members are")
		}
	}
	switch {
	case len(none) > 0:
		return verdict{false, v1alpha1.ReasonHSMNotReady, fmt.Sprintf("HSMPool %q: handshakes with its keys fail: %s", pool, strings.Join(append(none, some...), "; "))}
	case len(some) > 0:
		return verdict{false, v1alpha1.ReasonDegraded, fmt.Sprintf("HSMPool %q: other members sign, but not all do: %s", pool, strings.Join(some, "; "))}
	case len(pending) > 0:
		return verdict{false, v1alpha1.ReasonPending, strings.Join(pending, "; ")}
	case ready == 0:
		return verdict{false, v1alpha1.ReasonPending, "no pod is ready (see the other conditions)"}
	}
	return verdict{true, v1alpha1.ReasonReady, fmt.Sprintf("each pod that is ready has signatures made by every member of HSMPool %q", pool)}
}

// membersOf are those that a pod has down, with why, those that it knows nothing
// of yet, and how many are up.
func membersOf(s *dataplane.Status) (down, starting []string, up int) {
	if s == nil {
		return nil, nil, 0
	}
	for _, m := range s.HSM {
		switch {
		case m.State == v1alpha1.HSMMemberUp:
			up++
		case m.State == v1alpha1.HSMMemberStarting:
			starting = append(starting, fmt.Sprintf("member %q is %s", m.Name, m.State))
		case m.Error != "":
			down = append(down, fmt.Sprintf("member %q is %s: %s", m.Name, m.State, m.Error))
		default:
			down = append(down, fmt.Sprintf("member %q is %s", m.Name, m.State))
		}
	}
	return down, starting, up
}
