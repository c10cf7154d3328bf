// Package validity judges a measurement from the evidence that was taken beside
// it: whether its figures may be called a result, and what limited them.
package validity

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The rules' limits; docs/benchmarks/method.md lists them with their reasons.
const (
	// StartLagP99 is by how much iterations may begin late: a later one measures
	// the generator's queue.
	StartLagP99 = 10 * time.Millisecond
	// FailureShare of all attempts that may fail.
	FailureShare = 0.001
	// OthersShare of the load's handshakes that come from elsewhere, as the rate of those
	// just before it tells.
	OthersShare = 0.01
	// LeastIdle is the share of each machine's CPU time that nobody used. With
	// less, replicas compete for the machine and not only for their quotas.
	LeastIdle = 0.10
	// Saturated is in which share of its CPU periods a replica is throttled, or which
	// share of its quota it uses, when it does all that its quota allows.
	Saturated = 0.95
	// ResumedShare of the handshakes of a mode that resumes; the rest are those
	// of clients that had no ticket yet.
	ResumedShare = 0.95
	// CommonShare of the window in which all generators measured.
	CommonShare = 0.90
	// RateShare of the rate that was asked for in the latency phase.
	RateShare = 0.98
	// LeastObserved and MostObserved is the time between a replica's samples as a part of
	// the window: what it used is scaled to that.
	LeastObserved, MostObserved = 0.5, 1.25

	// A result that has less is marked as indicative.
	ConclusiveWindow      = 30 * time.Second
	ConclusiveRepetitions = 5
	// MostImbalance is how much more than its part the busiest replica may take.
	MostImbalance = 0.20
)

// Phase is what a measurement is for.
type Phase string

const (
	// Capacity asks for all that the gateway can do, in a closed loop.
	Capacity Phase = "Capacity"
	// Latency measures times at a fixed rate below that.
	Latency Phase = "Latency"
)

// Evidence is what was seen in the window of one measurement. What a pointer
// stands for may not have been observed.
type Evidence struct {
	Phase Phase `json:"phase"`
	// Window is the shortest of the generators', Common the time that they share.
	Window time.Duration `json:"window"`
	Common time.Duration `json:"common"`

	// Attempts are Handshakes and Failures.
	Handshakes int64 `json:"handshakes"`
	Failures   int64 `json:"failures,omitempty"`
	// Resumes tells whether the mode resumes; Resumed are those handshakes that
	// did. Strays used another group or algorithm than the mode's.
	Resumes bool  `json:"resumes,omitempty"`
	Resumed int64 `json:"resumed,omitempty"`
	Strays  int64 `json:"strays,omitempty"`

	// Dropped iterations found no virtual user free. StartLagP99 is 0 in a closed
	// loop, and so are Rate and WantedRate, both in handshakes a second.
	Dropped     int64         `json:"dropped,omitempty"`
	StartLagP99 time.Duration `json:"startLagP99,omitempty"`
	Rate        float64       `json:"rate,omitempty"`
	WantedRate  float64       `json:"wantedRate,omitempty"`
	// OtherImages are containers, by name, that ran another image than in the run's first
	// measurement.
	OtherImages []string `json:"otherImages,omitempty"`
	// CapacityInvalid says, in the phase Latency, why the capacity that WantedRate is
	// a part of is no result; empty where it is one.
	CapacityInvalid string `json:"capacityInvalid,omitempty"`

	// MachineIdle is the idle share of the busiest node.
	MachineIdle *float64  `json:"machineIdle,omitempty"`
	Generator   Generator `json:"generator"`
	Replicas    []Replica `json:"replicas,omitempty"`
	// Peer says that the replicas are another server's, which nobody observes.
	Peer bool `json:"peer,omitempty"`
	// InPlace says that they are no copy's: they may have clients of their own.
	InPlace bool `json:"inPlace,omitempty"`
	// WantedReplicas were to be ready all the time.
	WantedReplicas int `json:"wantedReplicas"`

	// Limit is what is meant to limit the capacity: CPUQuota unless the benchmark
	// says otherwise.
	Limit Bottleneck `json:"limit,omitempty"`
	// HSM and Redis are nil where the mode has none.
	HSM     *Dependency `json:"hsm,omitempty"`
	Redis   *Dependency `json:"redis,omitempty"`
	Network Path        `json:"network"`
}

// Generator is the pods that make the load.
type Generator struct {
	// Periods of their CPU quotas, and those in which they were throttled.
	Periods          int64 `json:"periods,omitempty"`
	ThrottledPeriods int64 `json:"throttledPeriods,omitempty"`
	// Use is the share of the CPU that they may have, of the busiest one.
	Use *float64 `json:"use,omitempty"`
	// MachineIdle is the idle share of the busiest of their machines.
	MachineIdle *float64 `json:"machineIdle,omitempty"`
}

// Replica is one pod of the gateway.
type Replica struct {
	Name string `json:"name"`
	Node string `json:"node,omitempty"`
	// Quota is in CPUs, 0 without one.
	Quota            float64 `json:"quota,omitempty"`
	Periods          int64   `json:"periods,omitempty"`
	ThrottledPeriods int64   `json:"throttledPeriods,omitempty"`
	// Throttled is for how long its threads waited for the quota, in total.
	Throttled time.Duration `json:"throttled,omitempty"`
	// CPU that it used, of the time Observed.
	CPU        time.Duration `json:"cpu"`
	Observed   time.Duration `json:"observed,omitempty"`
	Handshakes int64         `json:"handshakes"`
	// Others are the TLS connections in a second just before the load, which are not its;
	// nil when not observed.
	Others *float64 `json:"others,omitempty"`
	// Memory is the most that was taken, in bytes, caches of files included where the
	// peak was reached meanwhile; IdleMemory the working set before the load, and
	// LoadedMemory the one when there were Connections. MemoryLimit is 0 without one.
	Memory       int64 `json:"memory,omitempty"`
	IdleMemory   int64 `json:"idleMemory,omitempty"`
	LoadedMemory int64 `json:"loadedMemory,omitempty"`
	MemoryLimit  int64 `json:"memoryLimit,omitempty"`
	// MemoryStalled is the share of the time that it waited for memory (PSI).
	MemoryStalled *float64 `json:"memoryStalled,omitempty"`
	OOMKills      int64    `json:"oomKills,omitempty"`
	// Connections at most at one time, 0 when not observed.
	Connections int64 `json:"connections,omitempty"`
	// Traffic, HSM and Tickets are nil when not observed, and the latter two where
	// there are none.
	Traffic *Traffic    `json:"traffic,omitempty"`
	HSM     *HSMWait    `json:"hsm,omitempty"`
	Tickets *TicketWait `json:"tickets,omitempty"`
	// Disturbed: restarted or replaced inside the window, not ready all the time, or
	// Silent, which is without an answer at its beginning or its end.
	Disturbed bool `json:"disturbed,omitempty"`
	Silent    bool `json:"silent,omitempty"`
}

// Traffic of a pod: segments of TCP sent, and sent again for not having arrived, and bytes.
type Traffic struct {
	Segments      int64 `json:"segments"`
	Retransmitted int64 `json:"retransmitted"`
	BytesReceived int64 `json:"bytesReceived"`
	BytesSent     int64 `json:"bytesSent"`
}

// HSMWait is for how long, in total, handshakes of a replica waited for so many
// signatures, which Sessions can make at a time: those of the members that made them.
type HSMWait struct {
	Observed   time.Duration `json:"observed"`
	Sessions   int64         `json:"sessions"`
	Signatures int64         `json:"signatures"`
	Waited     time.Duration `json:"waited"`
}

// TicketWait is how a replica came by the keys of session tickets. Own: it had none
// of the store's, and no other replica opens its tickets. StoreWaited is the agent's
// time, and no handshake's.
type TicketWait struct {
	Own         bool          `json:"own,omitempty"`
	StoreWaited time.Duration `json:"storeWaited,omitempty"`
}

// quotaUse is how near it was to its quota: the share of its periods in which it was
// throttled or, where that does not say that it was at its quota, of the CPU time that
// it was granted, if that is more. HAProxy has no more threads than its quota is for:
// with a whole number of CPUs they can use all of it, and are never throttled.
func (r Replica) quotaUse() (share float64, throttled bool) {
	if r.Periods > 0 {
		share, throttled = float64(r.ThrottledPeriods)/float64(r.Periods), true
	}
	if granted := r.Quota * float64(r.Observed); granted > 0 && share < Saturated {
		if used := min(float64(r.CPU)/granted, 1); used > share {
			share, throttled = used, false
		}
	}
	return share, throttled
}

// Dependency is something that handshakes wait for.
type Dependency struct {
	// Use is the busy share of what it has: sessions, or CPU.
	Use *float64 `json:"use,omitempty"`
	// WaitShare is the share of the server's time that waits for it.
	WaitShare *float64 `json:"waitShare,omitempty"`
	// Without it so many replicas had to do: handshakes do not wait for the store of
	// ticket keys, and those that it has not given any resume no session of others.
	Without int `json:"without,omitempty"`
}

// Path is the network between generators and gateway.
type Path struct {
	// Share is the mean network part of a handshake's time.
	Share *float64 `json:"share,omitempty"`
	// Retransmitted is the share of segments sent again for not having arrived.
	Retransmitted *float64 `json:"retransmitted,omitempty"`
}

// Rule is one of the reasons why a measurement is not a result.
type Rule string

const (
	NotMeasured       Rule = "NotMeasured" // there is no measurement to judge
	NotObserved       Rule = "NotObserved"
	NoHandshakes      Rule = "NoHandshakes"
	WindowsApart      Rule = "WindowsApart"
	DroppedIterations Rule = "DroppedIterations"
	LateStarts        Rule = "LateStarts"
	RateMissed        Rule = "RateMissed"
	CapacityInvalid   Rule = "CapacityInvalid"
	OtherImages       Rule = "OtherImages"
	TooManyFailures   Rule = "TooManyFailures"
	OtherMode         Rule = "OtherMode"
	OtherTraffic      Rule = "OtherTraffic"
	MachineBusy       Rule = "MachineBusy"
	GeneratorLimited  Rule = "GeneratorLimited"
	ReplicasDisturbed Rule = "ReplicasDisturbed"
	NotSaturated      Rule = "NotSaturated"
	OtherLimit        Rule = "OtherLimit"
)

// Rules are all of them.
var Rules = []Rule{NotMeasured, NoHandshakes, NotObserved, WindowsApart, DroppedIterations, LateStarts, RateMissed, CapacityInvalid, OtherImages, TooManyFailures, OtherMode, OtherTraffic, MachineBusy, GeneratorLimited, ReplicasDisturbed, NotSaturated, OtherLimit}

// Reason says which rule was broken, how, and what to do.
type Reason struct {
	Rule    Rule   `json:"rule"`
	Message string `json:"message"`
}

// Judge lists why a measurement is not a result. There is none when it is one.
func Judge(e Evidence) []Reason {
	var reasons []Reason
	bad := func(rule Rule, format string, args ...any) {
		reasons = append(reasons, Reason{rule, fmt.Sprintf(format, args...)})
	}

	if e.Handshakes == 0 {
		bad(NoHandshakes, "no handshake succeeded: see the failures by class")
	}
	if e.Window <= 0 {
		bad(NotObserved, "the window was not observed")
	} else if share := float64(e.Common) / float64(e.Window); share < CommonShare {
		bad(WindowsApart, "the generators measured together for %s of the window, want %s: they did not start at one time; look at the pods' events", percent(share), percent(CommonShare))
	}
	if e.Dropped > 0 {
		bad(DroppedIterations, "%d iterations were dropped, want 0: give the generator more virtual users or CPU, or ask for less", e.Dropped)
	}
	if e.StartLagP99 > StartLagP99 {
		bad(LateStarts, "1 %% of the iterations began %v late or more, want at most %v: give the generator more CPU, or ask for less", e.StartLagP99, StartLagP99)
	}
	// Of a rate that makes no whole number of handshakes in the window, one may lie outside.
	if lacks := (RateShare*e.WantedRate - e.Rate) * e.Window.Seconds(); e.Phase == Latency && lacks > 1 {
		bad(RateMissed, "%.1f handshakes a second of the %.1f that were asked for: the gateway was not below its capacity", e.Rate, e.WantedRate)
	}
	if e.CapacityInvalid != "" {
		bad(CapacityInvalid, "the rate is a part of a capacity that is no result: %s", e.CapacityInvalid)
	}
	if len(e.OtherImages) > 0 {
		bad(OtherImages, "the image of %s is another one than in the run's first measurement: figures of two programs are those of none; upgrade nothing meanwhile, and measure again", strings.Join(e.OtherImages, ", "))
	}
	if attempts := e.Handshakes + e.Failures; attempts > 0 && float64(e.Failures) > FailureShare*float64(attempts) {
		bad(TooManyFailures, "%d of %d attempts failed, want at most %s: see the failures by class", e.Failures, attempts, percent(FailureShare))
	}
	if e.Strays > 0 {
		bad(OtherMode, "%d handshakes used another group or signature algorithm than the mode's: check the gateway's policy and certificates", e.Strays)
	}
	if !e.Resumes && e.Resumed > 0 {
		bad(OtherMode, "%d handshakes were resumed in a mode of full handshakes", e.Resumed)
	}
	if e.resumesTooFew() {
		bad(OtherMode, "%s of the handshakes were resumed, want %s: look at the gateway's condition SessionResumption; with a longer load.warmUp each client has a session by its end", percent(e.resumedShare()), percent(ResumedShare))
	}
	if name := e.unseenBefore(); name != "" {
		bad(NotObserved, "how many TLS connections replica %s had just before the load was not observed: some that were measured may be of clients of the gateway's own; measure again, or a copy (gatewayRef.use: Copy)", name)
	}
	if others, share := e.others(); share > OthersShare {
		bad(OtherTraffic, "just before the load the replicas had %.1f TLS connections a second, %s of its rate, want at most %s: the gateway has clients of its own; measure a copy (gatewayRef.use: Copy), or when they are away", others, percent(share), percent(OthersShare))
	}
	if e.MachineIdle == nil {
		bad(NotObserved, "how idle the machines were was not observed: without it a full machine looks like a slow gateway")
	} else if *e.MachineIdle < LeastIdle {
		bad(MachineBusy, "the busiest machine was idle for %s, want %s: visit fewer replicas, give them smaller quotas, or add nodes", percent(*e.MachineIdle), percent(LeastIdle))
	}
	// A client that waits for CPU looks like a slow gateway too.
	if g := e.Generator; g.MachineIdle == nil {
		bad(NotObserved, "how idle the load generator's machines were was not observed: a client that waits for CPU looks like a slow gateway")
	} else if *g.MachineIdle < LeastIdle {
		bad(GeneratorLimited, "the busiest machine of the load generator was idle for %s, want %s: give it nodes of its own, or ask for less", percent(*g.MachineIdle), percent(LeastIdle))
	}
	if over(e.Generator.Use, busy) {
		bad(GeneratorLimited, "the generator used %s of the CPU that it may have, want less than %s: raise its CPU limit, or share the load among more pods", percent(*e.Generator.Use), percent(busy))
	}
	if e.Generator.ThrottledPeriods > 0 {
		bad(GeneratorLimited, "the generator was throttled in %d of %d CPU periods, want 0: raise its CPU limit", e.Generator.ThrottledPeriods, e.Generator.Periods)
	}
	reasons = append(reasons, judgeReplicas(e)...)
	return reasons
}

func judgeReplicas(e Evidence) []Reason {
	var reasons []Reason
	bad := func(rule Rule, format string, args ...any) {
		reasons = append(reasons, Reason{rule, fmt.Sprintf(format, args...)})
	}
	if e.Peer {
		return nil
	}
	if len(e.Replicas) != e.WantedReplicas {
		bad(ReplicasDisturbed, "%d replicas were observed, want %d", len(e.Replicas), e.WantedReplicas)
	}
	var disturbed, spare eachReplica
	for _, r := range e.Replicas {
		if r.OOMKills > 0 {
			disturbed.add("replica %s was killed for lack of memory: raise resources.limits.memory", r.Name)
		} else if r.Silent {
			disturbed.add("replica %s did not say what it used, at the beginning of the window or at its end: it was away, or HAProxy too busy to answer its agent in seconds: look at the pod's events, or have fewer virtual users", r.Name)
		} else if r.Disturbed {
			disturbed.add("replica %s restarted, or was not ready all the time: look at the pod's events", r.Name)
		}
	}
	for _, text := range disturbed.told() {
		bad(ReplicasDisturbed, "%s", text)
	}
	if name, observed := e.observedElsewhen(); name != "" {
		bad(NotObserved, "replica %s was observed for %v, and the window is of %v: HAProxy was too busy to answer its agent in time, and what it used is not the window's; have fewer virtual users, or a longer load.duration", name, observed.Round(100*time.Millisecond), e.Window.Round(100*time.Millisecond))
	}
	if e.Phase != Capacity {
		return reasons
	}
	switch limit, found := e.limit(), Name(e); {
	case found.Bottleneck == Memory: // a replica that waits for it may be at its quota all the same
		bad(OtherLimit, "the %s was meant to limit this point, and it was the %s: %s; raise resources.limits.memory", limit.Text(), Memory.Text(), found.Evidence[0])
		return reasons
	case limit == CPUQuota, found.Bottleneck == CPUQuota: // with another one meant, as long as replicas are at their quotas, there are too few of them to reach it: the curve has yet to bend
	case found.Bottleneck == limit: // replicas need not be at their quotas
		if left := e.spare(limit); left != "" {
			bad(NotSaturated, "the %s was meant to limit this point, and was waited for without being full: %s: it could have done more; add virtual users", limit.Text(), left)
		}
		return reasons
	default:
		bad(OtherLimit, "the %s was meant to limit this point, and it was the %s", limit.Text(), found.Bottleneck.Text())
		return reasons
	}
	for _, r := range e.Replicas {
		switch share, throttled := r.quotaUse(); {
		case r.Silent: // as is said above
		case r.Quota == 0 || r.Periods == 0 && r.Observed == 0:
			spare.add("replica %s has no CPU quota that was observed: one that limits it makes replicas comparable; set resources.limits.cpu", r.Name)
		case share < Saturated && !throttled:
			spare.add("replica %s used %s of its CPU quota, want %s: it could have done more; add virtual users, or see what it waited for", r.Name, percent(share), percent(Saturated))
		case share < Saturated:
			spare.add("replica %s was throttled in %s of its CPU periods, want %s: it could have done more; add virtual users, or see what it waited for", r.Name, percent(share), percent(Saturated))
		}
	}
	for _, text := range spare.told() {
		bad(NotSaturated, "%s", text)
	}
	return reasons
}

// eachReplica collects sentences about replicas. What is so of several is said of the
// first of them, and of how many more: there may be a hundred.
type eachReplica struct {
	formats, texts []string
	more           []int
}

func (e *eachReplica) add(format string, args ...any) {
	if i := slices.Index(e.formats, format); i >= 0 {
		e.more[i]++
		return
	}
	e.formats, e.texts, e.more = append(e.formats, format), append(e.texts, fmt.Sprintf(format, args...)), append(e.more, 0)
}

func (e *eachReplica) told() []string {
	for i, n := range e.more {
		switch {
		case n == 1:
			e.texts[i] += " (another replica too)"
		case n > 1:
			e.texts[i] += fmt.Sprintf(" (%d more replicas too)", n)
		}
	}
	return e.texts
}

// observedElsewhen is a replica whose two samples are of another time than the window;
// empty if there is none.
func (e Evidence) observedElsewhen() (name string, observed time.Duration) {
	for _, r := range e.Replicas {
		if !r.Disturbed && r.Observed > 0 && (float64(r.Observed) < LeastObserved*float64(e.Window) || float64(r.Observed) > MostObserved*float64(e.Window)) {
			return r.Name, r.Observed
		}
	}
	return "", 0
}

// unseenBefore the load is a replica that may have had clients then; empty if there is none.
func (e Evidence) unseenBefore() string {
	if !e.InPlace || e.Peer {
		return ""
	}
	for _, r := range e.Replicas {
		if r.Others == nil && !r.Disturbed { // of one that was there, and answered
			return r.Name
		}
	}
	return ""
}

// others are how many TLS connections a second all replicas had just before the load, and
// which share of its handshakes those are.
func (e Evidence) others() (perSecond, share float64) {
	for _, r := range e.Replicas {
		if r.Others != nil {
			perSecond += *r.Others
		}
	}
	if e.Handshakes > 0 {
		share = perSecond * e.Window.Seconds() / float64(e.Handshakes)
	}
	return perSecond, share
}

// resumesTooFew for a mode that resumes.
func (e Evidence) resumesTooFew() bool {
	return e.Resumes && e.Handshakes > 0 && e.resumedShare() < ResumedShare
}

func (e Evidence) resumedShare() float64 { return float64(e.Resumed) / float64(e.Handshakes) }

func (e Evidence) limit() Bottleneck {
	if e.Limit == "" {
		return CPUQuota
	}
	return e.Limit
}

// Remarks are what a reader of valid measurements should know: those of the
// repetitions of a phase, of which some may have no evidence.
func Remarks(repetitions int, of ...Evidence) []string {
	if len(of) == 0 {
		return nil
	}
	window, peer, greatest := of[0].Window, false, 0.0
	for _, e := range of {
		window, peer = min(window, e.Window), peer || e.Peer
		if imbalance, known := Imbalance(e.Replicas); known {
			greatest = max(greatest, imbalance)
		}
	}
	var remarks []string
	if window < ConclusiveWindow || repetitions < ConclusiveRepetitions {
		remarks = append(remarks, fmt.Sprintf("indicative only: %d measurements of %v; a conclusive result has %d of %v", repetitions, window.Round(time.Second), ConclusiveRepetitions, ConclusiveWindow))
	}
	if peer {
		remarks = append(remarks, "another server: what its pods used, and whether their quotas were the limit, is not observed")
	}
	if greatest > MostImbalance {
		remarks = append(remarks, fmt.Sprintf("the busiest replica did %s more than its part", percent(greatest)))
	}
	return remarks
}

// Imbalance is by how much the busiest replica did more handshakes in a second than its
// part. Each was observed for a time of its own: an agent answers when it has CPU.
func Imbalance(replicas []Replica) (share float64, known bool) {
	var total, most float64
	n := 0
	for _, r := range replicas {
		if r.Observed <= 0 {
			continue
		}
		perSecond := float64(r.Handshakes) / r.Observed.Seconds()
		total, most, n = total+perSecond, max(most, perSecond), n+1
	}
	if total == 0 {
		return 0, false
	}
	return most*float64(n)/total - 1, true
}

func percent(share float64) string { return fmt.Sprintf("%.4g %%", share*100) }
