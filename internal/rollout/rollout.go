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
	// Pending pods have not started HAProxy yet.
	Pending bool
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

// Hold is the next assignment while nothing new may be published. A candidate
// that its pod runs was found good, and becomes stable; one that its pod does not
// run is dropped, and what is known of neither is left as it is.
func Hold(published dataplane.Assignment, pods []Pod) dataplane.Assignment {
	if published.Candidate == nil {
		return published
	}
	for _, p := range pods {
		switch {
		case p.Name != published.CandidatePod || p.Terminating:
		case p.Status == nil:
			return published
		case p.Status.Running.Revision == published.Candidate.Revision:
			return dataplane.Assignment{Stable: *published.Candidate}
		}
	}
	return dataplane.Assignment{Stable: published.Stable}
}

// MayServe says whether a pod serves the revision, or may: whether there is one
// that has started, and has not said that it runs another.
func MayServe(revision string, pods []Pod) bool {
	return slices.ContainsFunc(pods, func(p Pod) bool {
		if p.Terminating || p.Pending {
			return false
		}
		return p.Status == nil || p.Status.Running.Revision == "" || p.Status.Running.Revision == revision
	})
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
