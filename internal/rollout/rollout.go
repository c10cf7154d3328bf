// Package rollout decides which pod of a gateway runs which revision. A new
// revision reaches one ready pod first; only when that pod runs it do the
// others follow. A revision that HAProxy refuses therefore never reaches a
// second pod, and new pods start from the last good one. It is pure.
package rollout

import (
	"cmp"
	"slices"

	"qtls.dev/qtls/internal/dataplane"
)

// Pod is a gateway pod as it was last observed.
type Pod struct {
	Name  string
	Ready bool
	// Terminating pods are to end: they are left alone.
	Terminating bool
	// Status of its agent; nil while it is not known.
	Status *dataplane.Status
}

// Plan is the next assignment, given the one that is published (nil: none) and
// the target that is wanted.
func Plan(published *dataplane.Assignment, wanted dataplane.Target, pods []Pod) dataplane.Assignment {
	if published == nil {
		return dataplane.Assignment{Stable: wanted}
	}
	if published.Stable.Revision == wanted.Revision {
		return dataplane.Assignment{Stable: wanted}
	}
	pods = slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return p.Terminating })
	if !worthKeeping(published.Stable, pods) {
		return dataplane.Assignment{Stable: wanted}
	}
	next := dataplane.Assignment{Stable: published.Stable, Candidate: &wanted}
	if published.Candidate != nil {
		next.CandidatePod = published.CandidatePod
	}
	if i := slices.IndexFunc(pods, func(p Pod) bool { return p.Name == next.CandidatePod }); i >= 0 {
		if s := pods[i].Status; s != nil && s.Running.Revision == wanted.Revision {
			return dataplane.Assignment{Stable: wanted}
		}
		return next
	}
	next.CandidatePod = choose(pods)
	if next.CandidatePod == "" { // nobody can try it yet
		return dataplane.Assignment{Stable: published.Stable}
	}
	return next
}

// worthKeeping says whether a pod runs the revision, or may: then a new one
// must be tried first. With no pod that does, there is nothing to protect.
func worthKeeping(stable dataplane.Target, pods []Pod) bool {
	return slices.ContainsFunc(pods, func(p Pod) bool {
		return p.Status == nil && p.Ready || p.Status != nil && p.Status.Running.Revision == stable.Revision
	})
}

// choose takes the first ready pod by name, so that every operator process
// takes the same.
func choose(pods []Pod) string {
	ready := slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return !p.Ready || p.Status == nil })
	if len(ready) == 0 {
		return ""
	}
	return slices.MinFunc(ready, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) }).Name
}

// Rejection of the wanted revision by a pod, if any.
func Rejection(wanted dataplane.Target, pods []Pod) *dataplane.Rejection {
	for _, p := range pods {
		if p.Status != nil && p.Status.Rejected != nil && p.Status.Rejected.Target.Revision == wanted.Revision {
			return p.Status.Rejected
		}
	}
	return nil
}

// Runs says whether the pod serves exactly the target.
func (p Pod) Runs(t dataplane.Target) bool { return p.Status != nil && p.Status.Running == t }
