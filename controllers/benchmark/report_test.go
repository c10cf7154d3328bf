package benchmark

import (
	"slices"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/validity"
)

// saturating usage of so many replicas: each has used all of its quota, and the
// machine has CPU to spare.
func saturating(p plan.Plan, replicas int32) *usage {
	idle := 0.5
	u := &usage{MachineIdle: &idle}
	for range replicas {
		u.Replicas = append(u.Replicas, validity.Replica{Name: "web", Quota: 0.05, Observed: p.Load.Duration, CPU: p.Load.Duration / 20})
	}
	return u
}

func TestALatencyAtAPartOfNoCapacityIsNoResult(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*usage)
		says  string
	}{
		"the capacity is a result":        {func(*usage) {}, ""},
		"the replicas could do more":      {func(u *usage) { u.Replicas[0].CPU /= 2 }, "NotSaturated: replica web used 50 %"},
		"the machine had no CPU to spare": {func(u *usage) { *u.MachineIdle = 0.01 }, "MachineBusy: the busiest machine was idle for 1 %"},
	} {
		s := stateIn(t, inPlace("Running"), 2)
		capacity, latency := s.plan.Measurements[0], s.plan.Measurements[1]
		for _, m := range []plan.Measurement{capacity, latency} {
			one := s.records[m.Name()]
			if one.Usage = saturating(s.plan, m.Replicas); m.Phase == plan.Capacity {
				c.spoil(one.Usage)
			}
			s.records[m.Name()] = one
		}
		s.plan.Load.LatencyLoad = 50
		all, err := measurements(s, func(plan.Measurement) bool { return true })
		if err != nil || len(all) != 2 {
			t.Fatalf("%d measurements, %v", len(all), err)
		}
		if e := all[1].Evidence; all[1].Phase != validity.Latency || !strings.HasPrefix(e.CapacityInvalid, c.says) || (c.says == "") != (e.CapacityInvalid == "") {
			t.Errorf("%s: %q, want %q", name, e.CapacityInvalid, c.says)
		}
		if reasons := validity.Judge(all[1].Evidence); (len(reasons) == 0) != (c.says == "") {
			t.Errorf("%s: %+v", name, reasons)
		}
		if all[0].Evidence.CapacityInvalid != "" {
			t.Errorf("%s: the capacity itself is no part of one: %q", name, all[0].Evidence.CapacityInvalid)
		}
	}
}

// A pod that began late measured a load that the others made without it.
func TestPodsThatMeasuredApartHaveNoResult(t *testing.T) {
	s := stateIn(t, inPlace("Running"), 1)
	m := s.plan.Measurements[0]
	l := load.Load{Start: time.Unix(1_700_000_000, 0).UnixNano(), WarmUp: 2 * time.Second, Window: s.plan.Load.Duration}
	pod := func(i int, late time.Duration) shard.Shard {
		return shard.Shard{Version: shard.Version, Point: m.Name(), Segment: shard.Segment{Index: i, Count: 2}, Start: l.Begin().Add(late).UnixNano(), End: l.End().UnixNano(),
			Target: shard.Target{Host: "web:443"}}
	}
	for late, apart := range map[time.Duration]bool{0: false, l.Window / 20: false, l.Window / 5: true} {
		merged, err := shard.Merge([]shard.Shard{pod(0, 0), pod(1, late)})
		if err != nil {
			t.Fatal(err)
		}
		reasons := validity.Judge(evidenceOf(modeOf(s.benchmark, m.Mode), m, s.plan, merged, nil, 0))
		if got := slices.ContainsFunc(reasons, func(r validity.Reason) bool { return r.Rule == validity.WindowsApart }); got != apart {
			t.Errorf("one began %v late in a window of %v: %+v", late, l.Window, reasons)
		}
	}
}
