package plan

import (
	"fmt"
	"slices"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
)

// Observed is all that decides what comes next.
type Observed struct {
	Now time.Time
	// Phase that the status has; empty at first.
	Phase v1alpha1.BenchmarkPhase
	// Created is when the benchmark was made, Started when the gateway was first
	// scaled; zero before.
	Created, Started time.Time
	// Cancelled: somebody wants the run to end.
	Cancelled bool
	// Records of measurements, by name. One that is there is never made again.
	Records map[string]Record
	Gateway Gateway
	// Peers that are to be measured, by name.
	Peers map[string]Peer
	// PeersThere: some have objects that have to be taken away in the end.
	PeersThere bool
	// Jobs of the load generator that are there, of whichever measurement.
	Jobs []Job
}

// Record is how a measurement ended.
type Record struct {
	// PerSecond are the handshakes per second.
	PerSecond float64
	// Reason and Message say why there is no result; empty where there is one.
	Reason, Message string
}

func (r Record) failed() bool { return r.Reason != "" }

// Gateway is what is observed of the gateway that is measured: the one that the
// spec names, or its copy.
type Gateway struct {
	// Missing says which object is not there, Busy why the gateway cannot be had
	// now, and Changed what somebody else has changed in it since it was scaled.
	// Each is empty where it is not so.
	Missing, Busy, Changed string
	// Queued: it is busy with another benchmark, which ends.
	Queued bool
	// Held: this benchmark has scaled it, or made it, and has to put it back.
	Held bool
	// Replicas that it was scaled to, and when.
	Replicas int32
	Since    time.Time
	// Programmed: every pod is ready and runs what it shall, and as many are
	// there as it was scaled to. Message says what is missing, and Unprogrammed
	// since when; zero: since it was scaled.
	Programmed   bool
	Message      string
	Unprogrammed time.Time
	// Unshared says what keeps clients from resuming their sessions on each pod; empty
	// where nothing does, or ever will. UnsharedSince is since when; zero: since it was
	// scaled.
	Unshared      string
	UnsharedSince time.Time
}

// Peer is what is observed of another server that is measured beside the gateway.
type Peer struct {
	// Ready: as many of its pods are as the gateway was scaled to, and no others.
	Ready bool
	// Message says what is missing, and Since since when; zero: since the gateway was
	// scaled.
	Message string
	Since   time.Time
	// Refused says why it may not run any more, which no waiting changes; empty where it
	// may.
	Refused string
	// Stuck: its pods say what keeps them from running, such as an image that is not
	// there, and hardly ever is that over by itself.
	Stuck bool
}

// JobState is how far a Job is.
type JobState string

const (
	JobActive   JobState = "Active"
	JobComplete JobState = "Complete"
	JobFailed   JobState = "Failed"
	// JobGone is deleted, and its pods are not gone yet.
	JobGone JobState = "Gone"
)

// Job is one of the load generator.
type Job struct {
	Name string
	// Measurement that it makes, by name, and which attempt at it, from 1.
	Measurement string
	Attempt     int32
	State       JobState
	// Message says why it failed.
	Message string
	// Unobserved: nobody looked when its window began or ended, for the operator was
	// started anew meanwhile, so that what the gateway used is not known.
	Unobserved bool
	// Stuck says why some of its pods have no node, cannot start, or are not there,
	// though the load was to begin at Start; empty where it is not so. StuckReason is
	// the condition's for it.
	Stuck, StuckReason string
	Start              time.Time
}

// Kind of an action.
type Kind string

const (
	// Wait for a change of what is observed, or until After has passed.
	Wait Kind = "Wait"
	// Scale the gateway to Replicas; make the copy, where there is none.
	Scale Kind = "Scale"
	// WaitProgrammed until every pod of the gateway runs, and of the peers.
	WaitProgrammed Kind = "WaitProgrammed"
	// CreateJob makes the load of Measurements[0], Attempt, at Rate.
	CreateJob Kind = "CreateJob"
	// WaitJob until it has ended.
	WaitJob Kind = "WaitJob"
	// Collect what the pods of Job, the latest attempt, printed, and record it.
	Collect Kind = "Collect"
	// Record that Measurements have no result, for Reason and Message.
	RecordFailure Kind = "RecordFailure"
	// DeleteJob takes Job away.
	DeleteJob Kind = "DeleteJob"
	// Conclude: everything is measured. The phase becomes Restoring.
	Conclude Kind = "Conclude"
	// Abort for Reason and Message. The phase becomes Aborting.
	Abort Kind = "Abort"
	// Restore the gateway; delete the copy, and peers.
	Restore Kind = "Restore"
	// Finish: the phase becomes Completed, or Failed.
	Finish Kind = "Finish"
	// Nothing is left to do.
	Nothing Kind = "Nothing"
)

// Action is what comes next.
type Action struct {
	Kind Kind
	// Measurements that it is about.
	Measurements []Measurement
	Job          string
	Attempt      int32
	Replicas     int32
	// Rate of handshakes per second, in phase Latency.
	Rate float64
	// Reason and Message for the status.
	Reason, Message string
	// After so long time alone may change what comes next; 0: never.
	After time.Duration
}

// Limits of patience.
type Limits struct {
	// Programmed is how long a gateway may take until every pod runs, and a peer.
	Programmed time.Duration
	// Stuck is how long a peer may take that says that it cannot run. It counts from when
	// the peer was to run, for nothing tells since when it says so: an image may be pulled
	// meanwhile, in vain.
	Stuck time.Duration
	// Attempts at one measurement.
	Attempts int32
	// Failures of the generator in a row end the run, and as many capacities without a
	// handshake at its beginning.
	Failures int
	// Unschedulable is how long a generator's pods may be without a node, or unable to
	// start, after the load was to begin, and without a log that can be read after they have ended.
	// Such a Job ends by itself later than that, and then its pods cannot be
	// asked any more.
	Unschedulable time.Duration
}

// DefaultLimits are those of the operator.
var DefaultLimits = Limits{Programmed: 5 * time.Minute, Stuck: 2 * time.Minute, Attempts: 3, Failures: 3, Unschedulable: 2 * time.Minute}

// Next says what to do. Doing it changes what is observed; so does doing it twice,
// or not at all, for whoever asks again.
func (p Plan) Next(o Observed, limits Limits) Action {
	switch o.Phase {
	case v1alpha1.BenchmarkCompleted, v1alpha1.BenchmarkFailed, v1alpha1.BenchmarkCancelled:
		return o.cleanUp(Action{Kind: Nothing})
	case v1alpha1.BenchmarkRestoring, v1alpha1.BenchmarkAborting:
		return o.cleanUp(Action{Kind: Finish})
	}
	if o.Cancelled {
		return Action{Kind: Abort, Reason: v1alpha1.ReasonCancelled, Message: fmt.Sprintf("spec.cancel is true: the run ends with %d of %d measurements", len(o.Records), len(p.Measurements))}
	}
	current, ok := p.current(o.Records)
	if !ok {
		return p.conclude(o.Records)
	}
	if a, abort := p.mustAbort(o, limits); abort { // also where a Job may not be deleted
		return a
	}
	for _, j := range o.Jobs { // those of measurements that are recorded
		if j.Measurement != current.Name() && j.State != JobGone {
			return Action{Kind: DeleteJob, Job: j.Name}
		}
	}
	if a, refused := p.refuse(o); refused {
		return a
	}
	// Under load a gateway may be unready for a moment. The load goes on, and what
	// it measures is judged by the evidence.
	first, ready := p.prepare(o, current, limits)
	a := p.measure(o, current, limits)
	if !ready && (!o.underLoad(current) || a.Kind == CreateJob) {
		return first
	}
	return a
}

// current is the first measurement that is not recorded.
func (p Plan) current(records map[string]Record) (Measurement, bool) {
	for _, m := range p.Measurements {
		if _, done := records[m.Name()]; !done {
			return m, true
		}
	}
	return Measurement{}, false
}

// cleanUp before an action: no load, and the gateway as it was.
func (o Observed) cleanUp(then Action) Action {
	for _, j := range o.Jobs {
		if j.State != JobGone {
			return Action{Kind: DeleteJob, Job: j.Name}
		}
	}
	if o.Gateway.Held || o.PeersThere {
		return Action{Kind: Restore}
	}
	return then
}

// conclude a plan whose measurements are all recorded: with no result at all
// there is nothing to report.
func (p Plan) conclude(records map[string]Record) Action {
	var last Record
	for _, m := range p.Measurements {
		r := records[m.Name()]
		if !r.failed() {
			return Action{Kind: Conclude}
		}
		last = r
	}
	return Action{Kind: Abort, Reason: last.Reason, Message: last.Message}
}

// ofTheGenerator are the reasons of failures that the next measurement may well have too.
var ofTheGenerator = []string{v1alpha1.ReasonGeneratorFailed, v1alpha1.ReasonGeneratorUnschedulable, v1alpha1.ReasonResultUnreadable}

// mustAbort says whether going on makes no sense.
func (p Plan) mustAbort(o Observed, limits Limits) (Action, bool) {
	abort := func(reason, format string, args ...any) (Action, bool) {
		return Action{Kind: Abort, Reason: reason, Message: fmt.Sprintf(format, args...)}, true
	}
	if o.Started.IsZero() {
		if p.Expected > p.Most {
			return abort(v1alpha1.ReasonPlanTooLong,
				"spec.maxDuration: %d measurements take about %s, more than %s; have fewer replicas, modes or repetitions, shorter load.warmUp or load.duration, or a longer maxDuration",
				len(p.Measurements), p.Expected.Round(time.Second), p.Most)
		}
		switch g := o.Gateway; {
		case !p.GivesUp(o):
		case g.Missing != "":
			return abort(v1alpha1.ReasonGatewayNotFound, "%s is not there, %s after the benchmark was made (spec.maxDuration); create it, and then another benchmark", g.Missing, p.Most)
		case g.Busy != "" && !g.Queued:
			return abort(v1alpha1.ReasonGatewayBusy, "%s; it was waited for that for %s (spec.maxDuration)", g.Busy, p.Most)
		}
		return Action{}, false
	}
	if took := o.Now.Sub(o.Started); took > p.Most {
		return abort(v1alpha1.ReasonDeadlineExceeded, "spec.maxDuration: the run was planned for %s and is not done after %s: %d of %d measurements are made; allow more, or plan less",
			p.Expected.Round(time.Second), took.Round(time.Second), len(o.Records), len(p.Measurements))
	}
	if g := o.Gateway; g.Missing != "" {
		return abort(v1alpha1.ReasonGatewayNotFound, "%s is gone; it was there when the run began", g.Missing)
	}
	if o.Gateway.Changed == "" && !o.Gateway.Held {
		o.Gateway.Changed = "the gateway is no longer marked as this benchmark's"
	}
	if o.Gateway.Changed != "" {
		return abort(v1alpha1.ReasonGatewayChanged, "%s; what was measured before and after is not to be compared", o.Gateway.Changed)
	}
	inARow, silent := 0, 0 // capacities without a handshake, until there is one with some
	for _, m := range p.Measurements {
		r, done := o.Records[m.Name()]
		if done && m.Phase == Capacity && m.Peer == "" && !r.failed() && silent >= 0 {
			if silent++; r.PerSecond > 0 {
				silent = -1 // what the gateway serves is measured, whatever else it does not
			} else if silent >= limits.Failures {
				return abort(v1alpha1.ReasonNoHandshakes, "the first %d capacities had not one handshake, the last of them %s: status.points has the failures by class; correct spec.target, spec.modes or the gateway, and create another benchmark", silent, m)
			}
		}
		switch {
		case !done:
			return Action{}, false
		case m.Phase == Latency && o.Records[m.capacity().Name()].failed():
			// It was not tried: its capacity is counted.
		case !slices.Contains(ofTheGenerator, r.Reason):
			inARow = 0
		default:
			if inARow++; inARow >= limits.Failures {
				return abort(r.Reason, "%d measurements in a row failed, the last of them so: %s", inARow, r.Message)
			}
		}
	}
	return Action{}, false
}

// GivesUp says whether what a benchmark needs to begin was waited for long enough: as
// long as the run itself may take. Another benchmark of the gateway is waited for until
// that is over.
func (p Plan) GivesUp(o Observed) bool { return o.Started.IsZero() && o.Now.Sub(o.Created) > p.Most }

// latest Job of a measurement; nil if there is none.
func (o Observed) latest(m Measurement) *Job {
	var latest *Job
	for i := range o.Jobs {
		if j := &o.Jobs[i]; j.Measurement == m.Name() && (latest == nil || j.Attempt > latest.Attempt) {
			latest = j
		}
	}
	return latest
}

// underLoad tells whether the load of a measurement runs, or has just ended, on the
// gateway that it was made for.
func (o Observed) underLoad(m Measurement) bool {
	j := o.latest(m)
	return j != nil && (j.State == JobActive || j.State == JobComplete) && o.Gateway.Held && o.Gateway.Replicas == m.Replicas
}

// prepare the gateway for a measurement; true when it is ready for it.
func (p Plan) prepare(o Observed, m Measurement, limits Limits) (Action, bool) {
	g := o.Gateway
	switch {
	case g.Missing != "":
		return Action{Kind: Wait, Reason: v1alpha1.ReasonGatewayNotFound, Message: g.Missing + " is not there; create it, or name another one"}, false
	case g.Busy != "":
		return Action{Kind: Wait, Reason: v1alpha1.ReasonGatewayBusy, Message: g.Busy}, false
	case !g.Held || g.Replicas != m.Replicas:
		return Action{Kind: Scale, Replicas: m.Replicas, Measurements: []Measurement{m}}, false
	case g.Programmed:
		if a, waits := o.awaitShared(m, limits); waits {
			return a, false
		}
		return p.preparePeers(o, m, limits)
	}
	// A gateway that ran and no longer does is given as long as one that was scaled.
	since := g.Since
	if g.Unprogrammed.After(since) {
		since = g.Unprogrammed
	}
	waited := o.Now.Sub(since)
	if waited < limits.Programmed {
		return Action{Kind: WaitProgrammed, Measurements: []Measurement{m}, Reason: v1alpha1.ReasonScaling, After: limits.Programmed - waited,
			Message: fmt.Sprintf("%s: waiting for %d replicas: %s", m, m.Replicas, g.Message)}, false
	}
	return Action{Kind: RecordFailure, Measurements: p.NotProgrammed(m, o.Records), Reason: v1alpha1.ReasonGatewayNotProgrammed,
		Message: fmt.Sprintf("the gateway did not run with %d replicas within %s: %s", m.Replicas, limits.Programmed, g.Message)}, false
}

// awaitShared keys of session tickets, for a measurement of clients that resume. Where they
// do not come, it is made all the same: how many did resume says whether it is a result. A
// store that is broken for good is waited for once in a run.
func (o Observed) awaitShared(m Measurement, limits Limits) (Action, bool) {
	g := o.Gateway
	if !m.Resumes || g.Unshared == "" {
		return Action{}, false
	}
	since := g.UnsharedSince
	if since.IsZero() {
		since = g.Since
	}
	waited := o.Now.Sub(since)
	return Action{Kind: WaitProgrammed, Measurements: []Measurement{m}, Reason: v1alpha1.ReasonScaling, After: limits.Programmed - waited,
		Message: fmt.Sprintf("%s: waiting until sessions are resumed: %s", m, g.Unshared)}, waited < limits.Programmed
}

// NotProgrammed are the measurements that are left out when the gateway does not run for
// one: that one and, where it never ran with so many replicas, all with as many and more.
func (p Plan) NotProgrammed(m Measurement, records map[string]Record) []Measurement {
	if p.ranWith(m.Replicas, records) {
		return []Measurement{m}
	}
	return p.left(records, func(l Measurement) bool { return l.Replicas >= m.Replicas })
}

// ranWith tells whether the gateway ran with so many replicas before: only then is
// there any record of them but that it, or a peer with fewer, did not.
func (p Plan) ranWith(replicas int32, records map[string]Record) bool {
	for _, m := range p.Measurements {
		r, done := records[m.Name()]
		if done && m.Replicas == replicas && r.Reason != v1alpha1.ReasonGatewayNotProgrammed && r.Reason != v1alpha1.ReasonPeerNotReady {
			return true
		}
	}
	return false
}

// left lists what is to be measured yet, of what is chosen: where there is no room for
// some replicas, there is none for more.
func (p Plan) left(records map[string]Record, choose func(Measurement) bool) []Measurement {
	var all []Measurement
	for _, m := range p.Measurements {
		if _, done := records[m.Name()]; !done && choose(m) {
			all = append(all, m)
		}
	}
	return all
}

// Awaited are the peers that are to be measured yet with so many replicas.
func (p Plan) Awaited(replicas int32, records map[string]Record) []string {
	var names []string
	for _, m := range p.left(records, func(m Measurement) bool { return m.Peer != "" && m.Replicas == replicas }) {
		if !slices.Contains(names, m.Peer) {
			names = append(names, m.Peer)
		}
	}
	return names
}

// Without a peer, from some replicas on: what of it was to be measured yet.
func (p Plan) Without(peer string, replicas int32, records map[string]Record) []Measurement {
	return p.left(records, func(m Measurement) bool { return m.Peer == peer && m.Replicas >= replicas })
}

// preparePeers for a measurement, of whatever: they are there with the gateway, so that
// none begins to run while another is measured. The one that does not run is left out,
// and the others are measured.
func (p Plan) preparePeers(o Observed, m Measurement, limits Limits) (Action, bool) {
	for _, name := range p.Awaited(m.Replicas, o.Records) {
		peer := o.Peers[name]
		if peer.Ready {
			continue
		}
		since, limit := o.Gateway.Since, limits.Programmed
		if peer.Since.After(since) {
			since = peer.Since
		}
		if peer.Stuck {
			limit = limits.Stuck
		}
		waited := o.Now.Sub(since)
		if waited < limit {
			return Action{Kind: WaitProgrammed, Measurements: []Measurement{m}, Reason: v1alpha1.ReasonScaling, After: limit - waited,
				Message: fmt.Sprintf("%s: waiting for %d replicas: %s", m, m.Replicas, peer.Message)}, false
		}
		return Action{Kind: RecordFailure, Measurements: p.Without(name, m.Replicas, o.Records), Reason: v1alpha1.ReasonPeerNotReady,
			Message: fmt.Sprintf("%s: it did not run with %d replicas within %s, so it is left out with as many and more", peer.Message, m.Replicas, limit)}, false
	}
	return Action{}, true
}

// refuse a peer that may not run any more, whatever is under way: it has keys.
func (p Plan) refuse(o Observed) (Action, bool) {
	of := p.left(o.Records, func(m Measurement) bool { return o.Peers[m.Peer].Refused != "" })
	if len(of) == 0 {
		return Action{}, false
	}
	name := of[0].Peer
	return Action{Kind: RecordFailure, Measurements: p.Without(name, 0, o.Records), Reason: v1alpha1.ReasonPeerNotReady,
		Message: fmt.Sprintf("peer %q is left out: %s", name, o.Peers[name].Refused)}, true
}

// measure with a gateway that is ready.
func (p Plan) measure(o Observed, m Measurement, limits Limits) Action {
	a := Action{Measurements: []Measurement{m}, Reason: v1alpha1.ReasonMeasuring, Message: m.String(), Attempt: 1}
	if m.Phase == Latency {
		capacity := o.Records[m.capacity().Name()]
		if capacity.failed() {
			a.Kind, a.Reason, a.Message = RecordFailure, capacity.Reason, "the capacity, of which the rate is a part, could not be measured: "+capacity.Message
			return a
		}
		a.Rate = p.Rate(capacity.PerSecond)
	}
	latest := o.latest(m)
	if latest == nil {
		a.Kind = CreateJob
		return a
	}
	a.Job, a.Attempt = latest.Name, latest.Attempt
	switch latest.State {
	case JobActive, JobGone:
		a.Kind = WaitJob
		if latest.Stuck == "" {
			return a
		}
		if waited := o.Now.Sub(latest.Start); waited < limits.Unschedulable {
			a.Message, a.After = fmt.Sprintf("%s: %s", m, latest.Stuck), limits.Unschedulable-waited
			return a
		}
		a.Kind, a.Reason, a.Message = RecordFailure, latest.StuckReason, fmt.Sprintf("%s: %s", m, latest.Stuck)
	case JobComplete:
		if latest.Unobserved && latest.Attempt < limits.Attempts {
			return a.again()
		}
		a.Kind = Collect
	case JobFailed:
		if latest.Attempt < limits.Attempts {
			return a.again()
		}
		a.Kind, a.Reason, a.Message = RecordFailure, v1alpha1.ReasonGeneratorFailed, fmt.Sprintf("%s: %s", m, latest.Message)
	}
	return a
}

// again makes the load of a measurement once more. What the attempt before it printed is
// never collected.
func (a Action) again() Action {
	a.Kind, a.Job, a.Attempt = CreateJob, "", a.Attempt+1
	return a
}
