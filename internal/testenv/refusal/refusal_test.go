package refusal

import (
	"strings"
	"testing"

	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/stats"
	"qtls.dev/qtls/internal/bench/validity"
)

func share(f float64) *float64 { return &f }

// saturated is a capacity with nothing wrong about it.
func saturated(refused ...validity.Rule) report.Point {
	r := report.Repetition{Block: 1, PerSecond: 20, Mean: 0.05}
	for _, rule := range refused {
		r.Reasons = append(r.Reasons, validity.Reason{Rule: rule, Message: "because"})
	}
	return report.Point{Mode: "hybrid", Replicas: 1, Capacity: &report.Capacity{
		Phase:     report.Phase{Valid: len(refused) == 0, Repetitions: []report.Repetition{r}},
		PerSecond: stats.Estimate{Value: 20, N: 1}, Quota: 0.05, Idle: share(0.8),
		Observed: report.Observed{Throttled: share(1), GeneratorIdle: share(0.8), LeastSeen: share(0.9), MostSeen: share(1.1)},
	}}
}

func TestWhatIsRefusedWithoutCauseIsTold(t *testing.T) {
	if got := Unfounded(saturated()); len(got) > 0 {
		t.Errorf("nothing is refused, and yet %q", got)
	}
	// However busy a machine is, these do not go with such figures.
	for _, rule := range []validity.Rule{validity.NoHandshakes, validity.NotObserved, validity.MachineBusy, validity.GeneratorLimited, validity.TooManyFailures,
		validity.NotSaturated, validity.OtherLimit, validity.RateMissed, validity.LateStarts, validity.CapacityInvalid} {
		if got := Unfounded(saturated(validity.WindowsApart, rule)); len(got) != 1 || got[0] != string(rule)+": because" {
			t.Errorf("%s: %q", rule, got)
		}
	}
	p := saturated(validity.NotSaturated)
	p.Capacity.Observed.Throttled, p.Capacity.Quota = share(0.1), 0
	if got := Unfounded(p); len(got) != 1 {
		t.Errorf("a quota that is there is not known: %q", got)
	}
}

// What a busy machine does is no contradiction.
func TestWhatIsRefusedWithCauseIsNot(t *testing.T) {
	for name, c := range map[string]struct {
		rule  validity.Rule
		cause func(*report.Point)
	}{
		"nothing succeeded":             {validity.NoHandshakes, func(p *report.Point) { p.Capacity.Repetitions[0].Mean = 0 }},
		"the gateway was not observed":  {validity.NotObserved, func(p *report.Point) { p.Capacity.Idle = nil }},
		"a replica was seen late":       {validity.NotObserved, func(p *report.Point) { p.Capacity.Observed.LeastSeen = share(0.4) }},
		"a replica was seen for longer": {validity.NotObserved, func(p *report.Point) { p.Capacity.Observed.MostSeen = share(1.3) }},
		"the clients were not observed": {validity.NotObserved, func(p *report.Point) { p.Capacity.Observed.GeneratorIdle = nil }},
		"the machine was full":          {validity.MachineBusy, func(p *report.Point) { p.Capacity.Idle = share(0.05) }},
		"the clients' machine was full": {validity.GeneratorLimited, func(p *report.Point) { p.Capacity.Observed.GeneratorIdle = share(0.05) }},
		"the clients were throttled":    {validity.GeneratorLimited, func(p *report.Point) { p.Capacity.Observed.GeneratorThrottled = 1 }},
		"the clients used all":          {validity.GeneratorLimited, func(p *report.Point) { p.Capacity.Observed.GeneratorUse = share(0.95) }},
		"some timed out":                {validity.TooManyFailures, func(p *report.Point) { p.Failures = map[string]int64{"Timeout": 1} }},
		"it had no CPU for its quota":   {validity.NotSaturated, func(p *report.Point) { p.Capacity.Observed.Throttled = share(0.9) }},
		"no periods were seen":          {validity.NotSaturated, func(p *report.Point) { p.Capacity.Observed.Throttled = nil }},
		"one of two replicas was spare": {validity.NotSaturated, func(p *report.Point) { p.Replicas = 2 }},
		"a replica came instead of one": {validity.NotSaturated, func(p *report.Point) {
			r := &p.Capacity.Repetitions[0]
			r.Reasons = append(r.Reasons, validity.Reason{Rule: validity.ReplicasDisturbed})
		}},
		"a replica was away":       {validity.ReplicasDisturbed, func(*report.Point) {}},
		"it was not measured":      {validity.NotMeasured, func(*report.Point) {}},
		"clients had no ticket":    {validity.OtherMode, func(*report.Point) {}},
		"there is only a latency":  {validity.MachineBusy, func(p *report.Point) { p.Capacity = nil }},
		"the clients began apart":  {validity.WindowsApart, func(*report.Point) {}},
		"the generator was behind": {validity.DroppedIterations, func(*report.Point) {}},
	} {
		p := saturated(c.rule)
		c.cause(&p)
		if got := Unfounded(p); len(got) > 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestARunThatNobodyLookedAtIsTold(t *testing.T) {
	unseen := func() report.Report {
		p := saturated(validity.NotObserved)
		p.Capacity.Idle = nil
		p.Latency = &report.Latency{Phase: report.Phase{Repetitions: []report.Repetition{{Block: 1}}}}
		return report.Report{Points: []report.Point{p, {Mode: "hybrid", Replicas: 2}}}
	}
	if got := Unobserved(unseen()); !strings.Contains(got, "not one of 2 measurements was observed") || !strings.Contains(got, "idle for 80 %") {
		t.Errorf("%q", got)
	}
	for name, spoil := range map[string]func(*report.Point){
		"a capacity was observed": func(p *report.Point) { p.Capacity.Idle = share(0.8) },
		"a latency was observed":  func(p *report.Point) { p.Latency.Repetitions[0].Idle = share(0.8) },
		"the machine was busy":    func(p *report.Point) { p.Capacity.Observed.GeneratorIdle = share(0.2) },
		"nothing is known":        func(p *report.Point) { p.Capacity.Observed.GeneratorIdle = nil },
	} {
		r := unseen()
		spoil(&r.Points[0])
		if got := Unobserved(r); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}
