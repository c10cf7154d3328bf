// Package refusal tells whether measurements were refused with cause. A test on a cluster cannot ask for a valid point,
// for its machine may be busy; it can ask that what is refused contradicts nothing that was observed.
package refusal

import (
	"fmt"
	"slices"

	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/validity"
)

const (
	// busy is the share of its CPU with which a generator is at its limit.
	busy = 0.9
	// quiet is the idle share of a machine on which an operator has had time to look at its gateways now and then.
	quiet = 0.3
)

// Unfounded are reasons why the capacity of a point, which CPU quotas were to limit and which was measured once, is no
// result, that the figures of the same point contradict.
func Unfounded(p report.Point) []string {
	if p.Capacity == nil {
		return nil
	}
	var all []string
	for _, r := range p.Capacity.Repetitions {
		for _, reason := range r.Reasons {
			if !founded(reason.Rule, r, p) {
				all = append(all, fmt.Sprintf("%s: %s", reason.Rule, reason.Message))
			}
		}
	}
	return all
}

func founded(rule validity.Rule, r report.Repetition, p report.Point) bool {
	c, o := p.Capacity, p.Capacity.Observed
	below := func(share *float64, limit float64) bool { return share != nil && *share < limit }
	atLeast := func(share *float64, limit float64) bool { return share != nil && *share >= limit }
	switch rule {
	case validity.NoHandshakes:
		return r.Mean == 0 // of none
	case validity.NotObserved:
		return c.Idle == nil || o.GeneratorIdle == nil || below(o.LeastSeen, validity.LeastObserved) || o.MostSeen != nil && *o.MostSeen > validity.MostObserved
	case validity.MachineBusy:
		return below(c.Idle, validity.LeastIdle)
	case validity.GeneratorLimited:
		return below(o.GeneratorIdle, validity.LeastIdle) || o.GeneratorThrottled > 0 || atLeast(o.GeneratorUse, busy)
	case validity.TooManyFailures:
		return p.Failed() > 0
	case validity.NotSaturated:
		// The figures are of all replicas that were there, and the reason may be of one.
		several := p.Replicas > 1 || slices.ContainsFunc(r.Reasons, func(other validity.Reason) bool { return other.Rule == validity.ReplicasDisturbed })
		return several || c.Quota > 0 && !atLeast(o.Throttled, validity.Saturated)
	case validity.OtherLimit, validity.LateStarts, validity.RateMissed, validity.CapacityInvalid:
		return false // these are of latencies, and of what something else was to limit
	}
	return true
}

// Unobserved says that not one measurement of a run was observed, though a machine was not busy; empty where it is not so.
func Unobserved(r report.Report) string {
	made := 0
	var idle *float64
	for _, p := range r.Points {
		if p.Capacity != nil {
			made += len(p.Capacity.Repetitions)
			if p.Capacity.Idle != nil {
				return ""
			}
			if share := p.Capacity.Observed.GeneratorIdle; share != nil && (idle == nil || *share > *idle) {
				idle = share
			}
		}
		if p.Latency != nil {
			made += len(p.Latency.Repetitions)
			for _, one := range p.Latency.Repetitions {
				if one.Idle != nil {
					return ""
				}
			}
		}
	}
	if idle == nil || *idle < quiet {
		return ""
	}
	return fmt.Sprintf("not one of %d measurements was observed, and yet a machine was idle for %.0f %%", made, 100**idle)
}
