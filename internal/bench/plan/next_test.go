package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// world does what the plan says, and what Kubernetes does.
type world struct {
	plan   Plan
	limits Limits
	o      Observed
	made   []string // Jobs, as measurement and attempt
	scale  []int32
	final  string
	// fails says whether a Job fails.
	fails func(Job) bool
	// unreadable: the logs of Jobs cannot be had.
	unreadable bool
	// misses says whether nobody looks at the window of a Job.
	misses func(Job) bool
	// capacity of a measurement, in handshakes per second.
	capacity func(Measurement) float64
	// stuck says at how many replicas the gateway never runs.
	stuck func(int32) bool
	// without says of a peer with so many replicas what keeps it from running, if
	// anything does.
	without func(name string, replicas int32) Peer
}

func newWorld(replicas []int32, modes ...string) *world {
	s := spec(replicas, modes...)
	s.Load.Repetitions = ptr.To[int32](2)
	return worldOf(s)
}

func worldOf(s v1alpha1.QTLSBenchmarkSpec) *world {
	return &world{plan: Of(s, 3), limits: DefaultLimits, o: Observed{Now: noon, Records: map[string]Record{}},
		fails: func(Job) bool { return false }, misses: func(Job) bool { return false }, capacity: func(Measurement) float64 { return 1000 }, stuck: func(int32) bool { return false }, without: func(string, int32) Peer { return Peer{} }}
}

// run until nothing is left to do.
func (w *world) run(t *testing.T) {
	t.Helper()
	for step := 0; ; step++ {
		if step > 10_000 {
			t.Fatalf("no end: %+v", w.o)
		}
		a := w.plan.Next(w.o, w.limits)
		if a.Kind == Nothing {
			return
		}
		w.do(t, a)
	}
}

func (w *world) job(name string) *Job {
	for i := range w.o.Jobs {
		if w.o.Jobs[i].Name == name {
			return &w.o.Jobs[i]
		}
	}
	return nil
}

func (w *world) do(t *testing.T, a Action) {
	t.Helper()
	w.o.Now = w.o.Now.Add(time.Second)
	switch a.Kind {
	case Scale:
		w.o.Phase = v1alpha1.BenchmarkRunning
		if w.o.Started.IsZero() {
			w.o.Started = w.o.Now
		}
		w.scale = append(w.scale, a.Replicas)
		w.o.Gateway = Gateway{Held: true, Replicas: a.Replicas, Since: w.o.Now, Message: "1/2 pods are ready"}
		w.o.Peers = nil
	case WaitProgrammed:
		if w.stuck(w.o.Gateway.Replicas) {
			if a.After <= 0 {
				t.Fatalf("nobody looks again: %+v", a)
			}
			w.o.Now = w.o.Now.Add(a.After)
		} else if !w.o.Gateway.Programmed {
			w.o.Gateway.Programmed = true
		} else {
			w.peers(t, a)
		}
	case CreateJob:
		m := a.Measurements[0]
		w.made = append(w.made, fmt.Sprintf("%s/%d", m.Name(), a.Attempt))
		if m.Phase == Latency && a.Rate != w.capacity(m)/2 {
			t.Errorf("%s at %v/s, want half of the capacity", m, a.Rate)
		}
		if !w.o.Gateway.Programmed || w.o.Gateway.Replicas != m.Replicas {
			t.Errorf("%s with the gateway %+v", m, w.o.Gateway)
		}
		for _, name := range w.plan.Awaited(m.Replicas, w.o.Records) {
			if !w.o.Peers[name].Ready {
				t.Errorf("%s while the peer %s begins to run", m, name)
			}
		}
		w.o.Jobs = append(w.o.Jobs, Job{Name: fmt.Sprintf("job-%d-%d", m.Number, a.Attempt), Measurement: m.Name(), Attempt: a.Attempt, State: JobActive})
	case WaitJob:
		j := w.job(a.Job)
		if j.State == JobGone {
			w.o.Jobs = slices.DeleteFunc(w.o.Jobs, func(o Job) bool { return o.Name == j.Name })
		} else if j.State, j.Unobserved = JobComplete, w.misses(*j); w.fails(*j) {
			j.State, j.Message = JobFailed, "exit code 107"
		}
	case Collect:
		for _, j := range w.o.Jobs {
			if j.Attempt > a.Attempt {
				t.Errorf("attempt %d is collected, and there is %+v", a.Attempt, j)
			}
		}
		r := Record{PerSecond: w.capacity(a.Measurements[0])}
		if w.unreadable {
			r = Record{Reason: v1alpha1.ReasonResultUnreadable, Message: "no route to host"}
		}
		w.record(t, a.Measurements[0], r)
	case RecordFailure:
		for _, m := range a.Measurements {
			w.record(t, m, Record{Reason: a.Reason, Message: a.Message})
		}
	case DeleteJob:
		w.o.Jobs = slices.DeleteFunc(w.o.Jobs, func(j Job) bool { return j.Name == a.Job })
	case Conclude:
		w.o.Phase = v1alpha1.BenchmarkRestoring
	case Abort:
		w.o.Phase, w.final = v1alpha1.BenchmarkAborting, a.Reason+": "+a.Message
	case Restore:
		if len(w.o.Jobs) > 0 {
			t.Errorf("the gateway is put back under load: %+v", w.o.Jobs)
		}
		w.o.Gateway = Gateway{}
	case Finish:
		if w.o.Gateway.Held {
			t.Error("it ends with the gateway in its hands")
		}
		switch {
		case w.o.Phase == v1alpha1.BenchmarkRestoring:
			w.o.Phase = v1alpha1.BenchmarkCompleted
		case strings.HasPrefix(w.final, v1alpha1.ReasonCancelled):
			w.o.Phase = v1alpha1.BenchmarkCancelled
		default:
			w.o.Phase = v1alpha1.BenchmarkFailed
		}
	default:
		t.Fatalf("%+v", a)
	}
}

// peers come to run, those that can; the others have come to nothing when it is looked
// again.
func (w *world) peers(t *testing.T, a Action) {
	t.Helper()
	missing := false
	w.o.Peers = map[string]Peer{}
	for _, name := range w.plan.Awaited(w.o.Gateway.Replicas, w.o.Records) {
		p := w.without(name, w.o.Gateway.Replicas)
		p.Ready, p.Since = p.Message == "", w.o.Gateway.Since
		w.o.Peers[name] = p
		missing = missing || !p.Ready
	}
	if missing && a.After <= 0 {
		t.Fatalf("nobody looks again: %+v", a)
	}
	if missing {
		w.o.Now = w.o.Now.Add(time.Second)
	}
}

func (w *world) record(t *testing.T, m Measurement, r Record) {
	t.Helper()
	if _, twice := w.o.Records[m.Name()]; twice {
		t.Errorf("%s is recorded twice", m)
	}
	w.o.Records[m.Name()] = r
}

func TestARunMeasuresEverythingOnceInTheOrderOfThePlan(t *testing.T) {
	w := newWorld([]int32{1, 2}, "full", "resumed")
	w.run(t)
	var want []string
	for _, m := range w.plan.Measurements {
		want = append(want, m.Name()+"/1")
	}
	if !slices.Equal(w.made, want) {
		t.Errorf("made %q, want %q", w.made, want)
	}
	if w.o.Phase != v1alpha1.BenchmarkCompleted || len(w.o.Jobs) > 0 || w.o.Gateway.Held {
		t.Errorf("in the end: %+v", w.o)
	}
	for _, m := range w.plan.Measurements {
		if w.o.Records[m.Name()].failed() {
			t.Errorf("%s failed", m)
		}
	}
	// Neighbours of one number of replicas need no scaling in between.
	if len(w.scale) != len(slices.Compact(slices.Clone(w.scale))) {
		t.Errorf("scaled to %v", w.scale)
	}
}

func TestAFailedJobIsTriedAgain(t *testing.T) {
	w := newWorld([]int32{1}, "full")
	w.fails = func(j Job) bool { return j.Attempt == 1 }
	w.run(t)
	if w.o.Phase != v1alpha1.BenchmarkCompleted || len(w.made) != 2*len(w.plan.Measurements) {
		t.Errorf("%s after %q", w.o.Phase, w.made)
	}
}

// The operator is started anew while a load is made: that costs an attempt, and no point.
func TestALoadThatNobodyObservedIsMadeAgain(t *testing.T) {
	for name, c := range map[string]struct {
		misses   func(Job) bool
		attempts int
	}{
		"once":   {func(j Job) bool { return j.Attempt == 1 }, 2},
		"always": {func(Job) bool { return true }, int(DefaultLimits.Attempts)},
	} {
		w := newWorld([]int32{1}, "full")
		w.misses = c.misses
		w.run(t)
		if w.o.Phase != v1alpha1.BenchmarkCompleted || len(w.made) != c.attempts*len(w.plan.Measurements) || len(w.o.Jobs) > 0 {
			t.Errorf("%s: %s: %s, made %q; Jobs %+v", name, w.o.Phase, w.final, w.made, w.o.Jobs)
		}
		for _, m := range w.plan.Measurements { // as well as it is observed
			if r := w.o.Records[m.Name()]; r.failed() || r.PerSecond != 1000 {
				t.Errorf("%s: %s: %+v", name, m, r)
			}
		}
	}
}

func TestAMeasurementWhoseJobsFailHasNoResultAndTheOthersHave(t *testing.T) {
	w := newWorld([]int32{1, 2}, "full")
	bad := Measurement{Repetition: 1, Replicas: 2, Mode: "full", Phase: Capacity}
	w.fails = func(j Job) bool { return j.Measurement == bad.Name() }
	w.run(t)
	if w.o.Phase != v1alpha1.BenchmarkCompleted {
		t.Fatalf("%s: %s", w.o.Phase, w.final)
	}
	for _, m := range w.plan.Measurements {
		r := w.o.Records[m.Name()]
		// Without a capacity there is no rate for the latency.
		if r.failed() != (m.Repetition == 1 && m.Replicas == 2) {
			t.Errorf("%s: %+v", m, r)
		}
		if r.failed() && (r.Reason != v1alpha1.ReasonGeneratorFailed || !strings.Contains(r.Message, "exit code 107")) {
			t.Errorf("%s: %+v", m, r)
		}
	}
}

func TestAGeneratorThatFailsAgainAndAgainEndsTheRun(t *testing.T) {
	w := newWorld([]int32{1, 2}, "full", "resumed")
	w.fails = func(Job) bool { return true }
	w.run(t)
	if w.o.Phase != v1alpha1.BenchmarkFailed || !strings.HasPrefix(w.final, v1alpha1.ReasonGeneratorFailed) || !strings.Contains(w.final, "exit code 107") {
		t.Errorf("%s: %s", w.o.Phase, w.final)
	}
	// A latency without a capacity is not tried, and none of those that failed in a row.
	if len(w.made) != w.limits.Failures*int(w.limits.Attempts) || len(w.o.Records) != 2*w.limits.Failures-1 || w.o.Gateway.Held {
		t.Errorf("%d records after %q, gateway %+v", len(w.o.Records), w.made, w.o.Gateway)
	}
}

// With a wrong authority, for instance: a gateway that is in use would be at other replicas for nothing.
func TestARunWithoutAnyHandshakeEndsEarly(t *testing.T) {
	for name, c := range map[string]struct {
		serves func(capacities int) bool // after so many
		ends   bool
	}{"never": {func(int) bool { return false }, true},
		"the third capacity alone": {func(n int) bool { return n == 2 }, false},
		"the first alone":          {func(n int) bool { return n == 0 }, false}} {
		w := newWorld([]int32{1, 2}, "full", "resumed")
		before := map[Measurement]float64{}
		w.capacity = func(m Measurement) float64 {
			m.Phase, m.Number = Capacity, 0
			if _, known := before[m]; !known {
				before[m] = 0
				if c.serves(len(before) - 1) {
					before[m] = 1000
				}
			}
			return before[m]
		}
		w.run(t)
		if ended := strings.HasPrefix(w.final, v1alpha1.ReasonNoHandshakes+": the first 3 capacities had not one handshake"); ended != c.ends || w.o.Gateway.Held {
			t.Errorf("%s: %s: %q, gateway %+v", name, w.o.Phase, w.final, w.o.Gateway)
		}
		if made := len(w.o.Records); c.ends != (made < len(w.plan.Measurements)) || c.ends && made > 5 {
			t.Errorf("%s: %d of %d measurements", name, made, len(w.plan.Measurements))
		}
	}
}

func TestWhereThereIsNoRoomForMoreReplicasTheFewerAreMeasured(t *testing.T) {
	w := newWorld([]int32{1, 2, 4, 8}, "full")
	w.stuck = func(n int32) bool { return n >= 4 }
	w.run(t)
	if w.o.Phase != v1alpha1.BenchmarkCompleted {
		t.Fatalf("%s: %s", w.o.Phase, w.final)
	}
	for _, m := range w.plan.Measurements {
		r := w.o.Records[m.Name()]
		if r.failed() != (m.Replicas >= 4) {
			t.Errorf("%s: %+v", m, r)
		}
		if r.failed() && (r.Reason != v1alpha1.ReasonGatewayNotProgrammed || !strings.Contains(r.Message, "1/2 pods are ready")) {
			t.Errorf("%s: %+v", m, r)
		}
	}
	if visits := len(slices.DeleteFunc(w.scale, func(n int32) bool { return n < 4 })); visits > 2 {
		t.Errorf("it was waited %d times for 4 replicas and more", visits)
	}
}

// A mode of clients that resume is not measured while each pod has ticket keys of its own;
// other modes are, and so is that one where they never come.
func TestResumedModesWaitForTheTicketKeys(t *testing.T) {
	s := spec([]int32{1}, "full", "resumed")
	s.Modes[1].Handshake = v1alpha1.BenchmarkHandshakeResumed
	full, resumed := slices.IndexFunc(Of(s, 3).Measurements, func(m Measurement) bool { return m.Mode == "full" }), slices.IndexFunc(Of(s, 3).Measurements, func(m Measurement) bool { return m.Mode == "resumed" })
	for name, c := range map[string]struct {
		measurement int
		gateway     Gateway
		after       time.Duration // 0: it is measured
	}{
		"full":                         {full, Gateway{Unshared: "StoreNotReady"}, 0},
		"shared":                       {resumed, Gateway{}, 0},
		"on their way":                 {resumed, Gateway{Unshared: "StoreNotReady", UnsharedSince: noon.Add(-time.Minute)}, 4 * time.Minute},
		"not observed since it scaled": {resumed, Gateway{Unshared: "not observed"}, 5*time.Minute - 2*time.Second},
		"in vain":                      {resumed, Gateway{Unshared: "StoreNotReady", UnsharedSince: noon.Add(-5 * time.Minute)}, 0},
	} {
		p := Of(s, 3)
		p.Measurements = p.Measurements[c.measurement:]
		g := c.gateway
		g.Held, g.Programmed, g.Replicas, g.Since = true, true, 1, noon.Add(-2*time.Second)
		a := p.Next(Observed{Now: noon, Created: noon, Started: noon, Phase: v1alpha1.BenchmarkRunning, Records: map[string]Record{}, Gateway: g}, DefaultLimits)
		if c.after == 0 && a.Kind != CreateJob || c.after > 0 && (a.Kind != WaitProgrammed || a.After != c.after || !strings.Contains(a.Message, g.Unshared)) {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

// A pod is unready for a moment, long after the gateway was scaled.
func TestAGatewayThatIsUnreadyForAMomentIsWaitedFor(t *testing.T) {
	w := newWorld([]int32{1, 2}, "full")
	moments := 0
	for step := 0; ; step++ {
		if step > 10_000 {
			t.Fatalf("no end: %+v", w.o)
		}
		a := w.plan.Next(w.o, w.limits)
		if a.Kind == Nothing {
			break
		}
		if a.Kind == CreateJob && w.o.Gateway.Unprogrammed.IsZero() {
			w.o.Now = w.o.Now.Add(2 * w.limits.Programmed)
			w.o.Started = w.o.Now // the deadline is another test's
			w.o.Gateway.Programmed, w.o.Gateway.Unprogrammed = false, w.o.Now
			moments++
			continue
		}
		w.do(t, a)
	}
	if w.o.Phase != v1alpha1.BenchmarkCompleted || moments < 2 {
		t.Fatalf("%s: %s, after %d moments", w.o.Phase, w.final, moments)
	}
	for _, m := range w.plan.Measurements {
		if r := w.o.Records[m.Name()]; r.failed() {
			t.Errorf("%s: %+v", m, r)
		}
	}
}

// The gateway breaks in the second repetition for good: that says nothing of more
// replicas, and what was measured before stays.
func TestWhereAGatewayRanBeforeOnlyWhatItMissesIsWrittenOff(t *testing.T) {
	w := newWorld([]int32{1, 2}, "full")
	measured := func() bool {
		_, done := w.o.Records[Measurement{Repetition: 1, Replicas: 1, Mode: "full", Phase: Latency}.Name()]
		return done
	}
	w.stuck = func(n int32) bool { return n == 1 && measured() }
	w.run(t)
	if w.o.Phase != v1alpha1.BenchmarkCompleted {
		t.Fatalf("%s: %s", w.o.Phase, w.final)
	}
	for _, m := range w.plan.Measurements {
		if r := w.o.Records[m.Name()]; r.failed() != (m.Replicas == 1 && m.Repetition == 2) {
			t.Errorf("%s: %+v", m, r)
		}
	}
}

func TestAGatewayThatNeverRunsFailsTheRunAndIsPutBack(t *testing.T) {
	w := newWorld([]int32{1, 2}, "full")
	w.stuck = func(int32) bool { return true }
	w.run(t)
	if w.o.Phase != v1alpha1.BenchmarkFailed || !strings.HasPrefix(w.final, v1alpha1.ReasonGatewayNotProgrammed) || w.o.Gateway.Held || len(w.made) > 0 {
		t.Errorf("%s: %s; %+v", w.o.Phase, w.final, w.o.Gateway)
	}
}

// A peer that does not run is waited for, the less where it says that it cannot, and
// left out with as many replicas and more. What is the gateway's, and other peers', is
// measured.
func TestAPeerThatDoesNotRunIsLeftOut(t *testing.T) {
	for name, c := range map[string]struct {
		peer  Peer
		waits time.Duration
	}{
		"no room":                 {Peer{Message: `peer "bad": 1 of 2 pods are ready`}, DefaultLimits.Programmed},
		"an image that is no one": {Peer{Message: `peer "bad": ErrImagePull`, Stuck: true}, DefaultLimits.Stuck},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec([]int32{1, 2, 4}, "full")
			s.Load.Repetitions = ptr.To[int32](3)
			s.Peers = []v1alpha1.BenchmarkPeer{{Name: "bad"}, {Name: "good"}}
			w := worldOf(s)
			// With 4 there is no room for the gateway either.
			w.stuck = func(n int32) bool { return n == 4 }
			w.without = func(name string, replicas int32) Peer {
				if name == "bad" && replicas >= 2 {
					return c.peer
				}
				return Peer{}
			}
			waited, gaveUp := time.Time{}, 0
			for step := 0; ; step++ {
				if step > 10_000 {
					t.Fatalf("no end: %+v", w.o)
				}
				a := w.plan.Next(w.o, w.limits)
				if a.Kind == Nothing {
					break
				}
				if a.Kind == WaitProgrammed && strings.Contains(a.Message, c.peer.Message) && waited.IsZero() {
					waited = w.o.Gateway.Since
				}
				if a.Kind == RecordFailure && a.Reason == v1alpha1.ReasonPeerNotReady {
					gaveUp++
					if took := w.o.Now.Sub(waited); took < c.waits || took > c.waits+10*time.Second {
						t.Errorf("it was waited for %v, want %v", took, c.waits)
					}
				}
				w.do(t, a)
			}
			if w.o.Phase != v1alpha1.BenchmarkCompleted || gaveUp != 1 {
				t.Fatalf("%s: %s; given up %d times", w.o.Phase, w.final, gaveUp)
			}
			for _, m := range w.plan.Measurements {
				r, want := w.o.Records[m.Name()], ""
				switch {
				case m.Peer == "bad" && m.Replicas == 2:
					want = v1alpha1.ReasonPeerNotReady
				case m.Replicas == 4:
					want = r.Reason // whichever was seen first
				}
				if r.Reason != want || m.Replicas == 4 && !r.failed() {
					t.Errorf("%s: %+v, want %q", m, r, want)
				}
				if r.Reason == v1alpha1.ReasonPeerNotReady && (m.Peer != "bad" || !strings.Contains(r.Message, c.peer.Message)) {
					t.Errorf("%s: %+v", m, r)
				}
			}
			if visits := len(slices.DeleteFunc(w.scale, func(n int32) bool { return n < 4 })); visits > 1 {
				t.Errorf("it was waited %d times for 4 replicas", visits)
			}
		})
	}
}

// A peer that may not run any more is left out in whatever is under way, its own load too,
// and the others are measured.
func TestAPeerThatIsRefusedIsLeftOutAtOnce(t *testing.T) {
	s := spec([]int32{1, 2}, "full")
	s.Load.Repetitions = ptr.To[int32](3)
	s.Peers = []v1alpha1.BenchmarkPeer{{Name: "bad"}, {Name: "good"}}
	w := worldOf(s)
	for a := w.plan.Next(w.o, w.limits); a.Kind != WaitJob || a.Measurements[0].Peer != "bad"; a = w.plan.Next(w.o, w.limits) {
		w.do(t, a)
	}
	w.o.Gateway.Programmed = false // as it may be under load
	w.o.Peers["bad"] = Peer{Refused: "its image is not allowed"}
	a := w.plan.Next(w.o, w.limits)
	if a.Kind != RecordFailure || a.Reason != v1alpha1.ReasonPeerNotReady || !strings.Contains(a.Message, "its image is not allowed") {
		t.Fatalf("%+v", a)
	}
	w.run(t)
	for _, m := range w.plan.Measurements {
		if r := w.o.Records[m.Name()]; r.failed() && m.Peer != "bad" || !r.failed() && m.Peer == "bad" && m.Number > a.Measurements[0].Number {
			t.Errorf("%s: %+v", m, r)
		}
	}
	if w.o.Phase != v1alpha1.BenchmarkCompleted {
		t.Errorf("%s: %s", w.o.Phase, w.final)
	}
}

// Whenever somebody cancels a run, it ends there: no load is made any more, what is
// recorded stays, and the gateway is put back.
func TestARunEndsWhereItIsCancelled(t *testing.T) {
	whole := newWorld([]int32{1, 2}, "full")
	steps := 0
	for whole.plan.Next(whole.o, whole.limits).Kind != Nothing {
		whole.do(t, whole.plan.Next(whole.o, whole.limits))
		steps++
	}
	for at := range steps {
		w := newWorld([]int32{1, 2}, "full")
		for range at {
			w.do(t, w.plan.Next(w.o, w.limits))
		}
		w.o.Cancelled = true
		over := w.o.Phase == v1alpha1.BenchmarkRestoring // too late
		made, recorded := len(w.made), len(w.o.Records)
		w.run(t)
		want := v1alpha1.BenchmarkCancelled
		if over {
			want = v1alpha1.BenchmarkCompleted
		}
		if w.o.Phase != want || w.o.Gateway.Held || len(w.o.Jobs) > 0 || len(w.made) != made || len(w.o.Records) != recorded {
			t.Errorf("cancelled after %d steps: %s (%s), %d Jobs then and %d after, %d records and %d: %+v", at, w.o.Phase, w.final, made, len(w.made), recorded, len(w.o.Records), w.o.Gateway)
		}
	}
}

// Pods that find no node: a Job of each of three capacities is waited for, and of a
// latency none is made.
func TestAGeneratorWithoutANodeEndsTheRunInTime(t *testing.T) {
	w := newWorld([]int32{1, 2}, "full", "resumed")
	begin := w.o.Now
	for step := 0; ; step++ {
		if step > 1000 {
			t.Fatalf("no end: %+v", w.o)
		}
		for i := range w.o.Jobs {
			if j := &w.o.Jobs[i]; j.Start.IsZero() {
				j.Stuck, j.StuckReason, j.Start = "pod \"p\" has no node", v1alpha1.ReasonGeneratorUnschedulable, w.o.Now
			}
		}
		a := w.plan.Next(w.o, w.limits)
		switch {
		case a.Kind == WaitJob && len(w.o.Jobs) > 0 && w.o.Jobs[0].State == JobActive:
			if !strings.Contains(a.Message, "has no node") || a.After <= 0 || a.After > w.limits.Unschedulable {
				t.Fatalf("%+v", a)
			}
			w.o.Now = w.o.Now.Add(a.After)
			continue
		case a.Kind == Nothing:
			if w.o.Phase != v1alpha1.BenchmarkFailed || !strings.HasPrefix(w.final, v1alpha1.ReasonGeneratorUnschedulable) || !strings.Contains(w.final, "has no node") || w.o.Gateway.Held {
				t.Errorf("%s: %s: %+v", w.o.Phase, w.final, w.o.Gateway)
			}
			if took := w.o.Now.Sub(begin); took > 15*time.Minute || len(w.made) != w.limits.Failures {
				t.Errorf("it took %s and %q", took, w.made)
			}
			return
		}
		w.do(t, a)
	}
}

// So do results that cannot be read: each took the time of a load.
func TestAGeneratorWhoseResultsCannotBeReadEndsTheRun(t *testing.T) {
	w := newWorld([]int32{1, 2}, "full", "resumed")
	w.unreadable = true
	w.run(t)
	if w.o.Phase != v1alpha1.BenchmarkFailed || !strings.HasPrefix(w.final, v1alpha1.ReasonResultUnreadable) || !strings.Contains(w.final, "no route to host") || w.o.Gateway.Held {
		t.Errorf("%s: %s: %+v", w.o.Phase, w.final, w.o.Gateway)
	}
	if len(w.made) != w.limits.Failures {
		t.Errorf("made %q", w.made)
	}
}

// Single steps.
func TestNext(t *testing.T) {
	p := newWorld([]int32{2}, "full").plan
	first := p.Measurements[0]
	running := func(change func(*Observed)) Observed {
		o := Observed{Now: noon, Phase: v1alpha1.BenchmarkRunning, Started: noon.Add(-time.Minute), Records: map[string]Record{},
			Gateway: Gateway{Held: true, Replicas: 2, Since: noon.Add(-time.Minute), Programmed: true}}
		change(&o)
		return o
	}
	job := func(state JobState) Job {
		return Job{Name: "job", Measurement: first.Name(), Attempt: 1, State: state, Message: "no more memory"}
	}
	all := map[string]Record{}
	for _, m := range p.Measurements {
		all[m.Name()] = Record{PerSecond: 1}
	}
	recently, longAgo := noon.Add(-59*time.Minute), noon.Add(-61*time.Minute)
	for name, c := range map[string]struct {
		o    Observed
		want Kind
		says string
	}{
		"the gateway is not there": {Observed{Now: noon, Created: recently, Gateway: Gateway{Missing: `QTLSGateway "web"`}}, Wait, `QTLSGateway "web" is not there`},
		"it never came":            {Observed{Now: noon, Created: longAgo, Gateway: Gateway{Missing: `QTLSGateway "web"`}}, Abort, `QTLSGateway "web" is not there, 1h0m0s after the benchmark was made`},
		"the copy's name is taken": {Observed{Now: noon, Created: recently, Gateway: Gateway{Busy: `QTLSGateway "a" exists`}}, Wait, `QTLSGateway "a" exists`},
		"and stays so":             {Observed{Now: noon, Created: longAgo, Gateway: Gateway{Busy: `QTLSGateway "a" exists`}}, Abort, `QTLSGateway "a" exists`},
		"another benchmark has it": {Observed{Now: noon, Created: longAgo, Gateway: Gateway{Busy: `QTLSBenchmark "other" measures it`, Queued: true}}, Wait, `QTLSBenchmark "other" measures`},
		"it came late":             {Observed{Now: noon, Created: longAgo}, Scale, ""},
		"it is free":               {Observed{Now: noon}, Scale, ""},
		"it is ready":              {running(func(*Observed) {}), CreateJob, first.String()},
		"it has other replicas":    {running(func(o *Observed) { o.Gateway.Replicas = 1 }), Scale, ""},
		"it is not ready":          {running(func(o *Observed) { o.Gateway.Programmed, o.Gateway.Message = false, "1/2" }), WaitProgrammed, "waiting for 2 replicas: 1/2"},
		"it is not ready any more": {running(func(o *Observed) {
			o.Gateway.Since, o.Gateway.Programmed, o.Gateway.Unprogrammed = noon.Add(-20*time.Minute), false, noon.Add(-time.Second)
		}), WaitProgrammed, "waiting for 2 replicas"},
		"it has not been ready for long": {running(func(o *Observed) {
			o.Gateway.Since, o.Gateway.Programmed, o.Gateway.Unprogrammed = noon.Add(-20*time.Minute), false, noon.Add(-6*time.Minute)
		}), RecordFailure, "did not run with 2 replicas"},
		"it is not ready under load": {running(func(o *Observed) {
			o.Gateway.Since, o.Gateway.Programmed, o.Jobs = noon.Add(-20*time.Minute), false, []Job{job(JobActive)}
		}), WaitJob, ""},
		"it is not ready after the load": {running(func(o *Observed) {
			o.Gateway.Since, o.Gateway.Programmed, o.Jobs = noon.Add(-20*time.Minute), false, []Job{job(JobComplete)}
		}), Collect, ""},
		"it is not ready after a load that nobody observed": {running(func(o *Observed) {
			o.Gateway.Programmed, o.Jobs = false, []Job{{Name: "job", Measurement: first.Name(), Attempt: 1, State: JobComplete, Unobserved: true}}
		}), WaitProgrammed, ""},
		"it is not ready, and the load failed": {running(func(o *Observed) {
			o.Gateway.Programmed, o.Jobs = false, []Job{job(JobFailed)}
		}), WaitProgrammed, ""},
		"its mark is lost":       {running(func(o *Observed) { o.Gateway = Gateway{} }), Abort, "no longer marked as this benchmark's"},
		"it goes away":           {running(func(o *Observed) { o.Gateway = Gateway{Missing: `QTLSGateway "web"`} }), Abort, `QTLSGateway "web" is gone`},
		"somebody changes it":    {running(func(o *Observed) { o.Gateway.Changed = "spec.replicas is 5" }), Abort, "spec.replicas is 5"},
		"a Job runs":             {running(func(o *Observed) { o.Jobs = []Job{job(JobActive)} }), WaitJob, ""},
		"a Job is complete":      {running(func(o *Observed) { o.Jobs = []Job{job(JobComplete)} }), Collect, ""},
		"a Job failed":           {running(func(o *Observed) { o.Jobs = []Job{job(JobFailed)} }), CreateJob, ""},
		"a Job is being deleted": {running(func(o *Observed) { o.Jobs = []Job{job(JobGone)} }), WaitJob, ""},
		"a Job is recorded":      {running(func(o *Observed) { o.Jobs, o.Records[first.Name()] = []Job{job(JobComplete)}, Record{PerSecond: 1} }), DeleteJob, ""},
		"a recorded Job stays for long": {running(func(o *Observed) {
			o.Jobs, o.Records[first.Name()], o.Started = []Job{job(JobComplete)}, Record{PerSecond: 1}, noon.Add(-61*time.Minute)
		}), Abort, "1 of 4 measurements"},
		"all is recorded, and a Job is there": {running(func(o *Observed) { o.Records, o.Jobs = all, []Job{job(JobComplete)} }), Conclude, ""},
		"it is cancelled":                     {running(func(o *Observed) { o.Cancelled, o.Jobs = true, []Job{job(JobComplete)} }), Abort, "0 of 4 measurements"},
		"it is cancelled too early":           {Observed{Now: noon, Cancelled: true}, Abort, "spec.cancel is true"},
		"it is cancelled too late":            {Observed{Now: noon, Cancelled: true, Phase: v1alpha1.BenchmarkFailed}, Nothing, ""},
		"it takes too long":                   {running(func(o *Observed) { o.Started = noon.Add(-61 * time.Minute) }), Abort, "0 of 4 measurements"},
		"all is recorded":                     {running(func(o *Observed) { o.Records = all }), Conclude, ""},
		"all is recorded, late":               {running(func(o *Observed) { o.Records, o.Started = all, noon.Add(-61*time.Minute) }), Conclude, ""},
		"aborting, with a Job":                {running(func(o *Observed) { o.Phase, o.Jobs = v1alpha1.BenchmarkAborting, []Job{job(JobActive)} }), DeleteJob, ""},
		"aborting":                            {running(func(o *Observed) { o.Phase = v1alpha1.BenchmarkAborting }), Restore, ""},
		"restoring":                           {running(func(o *Observed) { o.Phase, o.Records = v1alpha1.BenchmarkRestoring, all }), Restore, ""},
		"restored":                            {Observed{Now: noon, Phase: v1alpha1.BenchmarkRestoring, Records: all}, Finish, ""},
		"over":                                {Observed{Now: noon, Phase: v1alpha1.BenchmarkCompleted, Records: all}, Nothing, ""},
		"over, and marked all the same":       {running(func(o *Observed) { o.Phase = v1alpha1.BenchmarkFailed }), Restore, ""},
		"over, and a Job is left behind":      {Observed{Now: noon, Phase: v1alpha1.BenchmarkFailed, Jobs: []Job{job(JobComplete)}}, DeleteJob, ""},
	} {
		a := p.Next(c.o, DefaultLimits)
		if a.Kind != c.want || !strings.Contains(a.Message, c.says) {
			t.Errorf("%s: %+v, want %s saying %q", name, a, c.want, c.says)
		}
	}

	long := p
	long.Expected = 2 * time.Hour
	if a := long.Next(Observed{Now: noon}, DefaultLimits); a.Kind != Abort || a.Reason != v1alpha1.ReasonPlanTooLong || !strings.Contains(a.Message, "4 measurements take about 2h0m0s, more than 1h0m0s") {
		t.Errorf("a plan that takes too long: %+v", a)
	}
	if a := long.Next(running(func(*Observed) {}), DefaultLimits); a.Kind != CreateJob {
		t.Errorf("a run that has begun is not stopped by its own estimate: %+v", a)
	}
}
