// Package plan says what a benchmark measures, in which order, and what comes
// next. It is pure: where a run stands follows from what is observed, so that an
// operator that starts anew goes on where the one before it was.
package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
)

// Phase of a measurement.
type Phase string

const (
	// Capacity: clients make one handshake after the other.
	Capacity Phase = "Capacity"
	// Latency: handshakes begin at a fixed rate, of part of the capacity.
	Latency Phase = "Latency"
)

// Measurement is one run of the load generator.
type Measurement struct {
	// Number in the plan, from 1.
	Number     int
	Repetition int32
	Replicas   int32
	Mode       string
	Phase      Phase
	// Peer that is measured in the place of the gateway; empty: the gateway.
	Peer string
	// Resumes: clients resume sessions of the gateway.
	Resumes bool
}

// Subject is what is measured: a mode of the gateway or, as MODE.PEER, of a peer.
func (m Measurement) Subject() string { return Subject(m.Mode, m.Peer) }

// Subject of a mode and a peer. Names of modes have no dots.
func Subject(mode, peer string) string {
	if peer == "" {
		return mode
	}
	return mode + "." + peer
}

// Name tells a measurement from all others of its plan.
func (m Measurement) Name() string {
	return fmt.Sprintf("r%d-n%d-%s-%s", m.Repetition, m.Replicas, m.Subject(), m.Phase)
}

func (m Measurement) String() string {
	return fmt.Sprintf("measurement %d (repetition %d, %d replicas, mode %s, phase %s)", m.Number, m.Repetition, m.Replicas, m.Subject(), m.Phase)
}

// capacity is the measurement that says what rate one of latency has.
func (m Measurement) capacity() Measurement {
	m.Phase = Capacity
	return m
}

// Plan of a run.
type Plan struct {
	Measurements []Measurement
	Load         Load
	// Expected is how long all of it takes.
	Expected time.Duration
	// Most is how long it may take.
	Most time.Duration
}

// Rate of the latency phase, in handshakes per second, of a capacity.
func (p Plan) Rate(capacity float64) float64 { return capacity * float64(p.Load.LatencyLoad) / 100 }

// Load is spec.load with everything said.
type Load struct {
	VirtualUsersPerReplica int32
	LatencyLoad            int32 // percent
	WarmUp, Duration       time.Duration
	Repetitions            int32
}

// preset is what a preset says where the spec is silent.
type preset struct {
	warmUp, duration time.Duration
	repetitions      int32
}

var presets = map[v1alpha1.BenchmarkPreset]preset{
	v1alpha1.BenchmarkPresetShort:    {2 * time.Second, 5 * time.Second, 2},
	v1alpha1.BenchmarkPresetNormal:   {5 * time.Second, 20 * time.Second, 3},
	v1alpha1.BenchmarkPresetThorough: {10 * time.Second, 30 * time.Second, 5},
}

// What things take beyond the load itself: seen on one machine of two cores.
const (
	// scaling to another number of replicas: a pod's start, and the drain of one
	// that leaves.
	scaling = 15 * time.Second
	// overhead of a measurement: the end of the generator's pods, and the reading
	// of their logs.
	overhead = 3 * time.Second
	// readyInASecond are the clients that a pod of the generator makes ready in a
	// second: half of those that it did beside much else.
	readyInASecond = 400
)

// StartDelay is how long the pods of a load generator are given to start, make their
// clients ready, and wait for each other. Each attempt gives them three times as long as
// the one before it: who came too late may have had an image to pull, or a busy machine.
func StartDelay(pods, clients, attempt int32) time.Duration {
	delay := 10 * time.Second
	if pods > 1 {
		delay *= 2
	}
	delay += time.Duration(clients/max(pods, 1)/readyInASecond) * time.Second
	for ; attempt > 1; attempt-- {
		delay *= 3
	}
	return delay
}

// LoadOf a spec.
func LoadOf(spec v1alpha1.BenchmarkLoad) Load {
	p, ok := presets[spec.Preset]
	if !ok {
		p = presets[v1alpha1.BenchmarkPresetNormal]
	}
	l := Load{VirtualUsersPerReplica: 32, LatencyLoad: 50, WarmUp: p.warmUp, Duration: p.duration, Repetitions: p.repetitions}
	set(&l.VirtualUsersPerReplica, spec.VirtualUsersPerReplica)
	set(&l.LatencyLoad, spec.LatencyLoad)
	set(&l.Repetitions, spec.Repetitions)
	if spec.WarmUp != nil {
		l.WarmUp = spec.WarmUp.Duration
	}
	if spec.Duration != nil {
		l.Duration = spec.Duration.Duration
	}
	return l
}

func set(into, value *int32) {
	if value != nil {
		*into = *value
	}
}

// Of a spec and a seed. A repetition visits each number of replicas once, in an
// order of its own, and measures each mode of the gateway and of its peers there,
// in an order of its own too: what drifts, such as a machine's heat, falls on all
// alike.
func Of(spec v1alpha1.QTLSBenchmarkSpec, seed int64) Plan {
	p := Plan{Load: LoadOf(spec.Load), Most: time.Hour}
	if spec.MaxDuration != nil {
		p.Most = spec.MaxDuration.Duration
	}
	pods := int32(1)
	set(&pods, spec.Generator.Pods)
	one := p.Load.WarmUp + p.Load.Duration + overhead
	order := rand.NewPCG(uint64(seed), 0)
	before := int32(-1)
	for repetition := int32(1); repetition <= p.Load.Repetitions; repetition++ {
		replicas := slices.Sorted(slices.Values(spec.Replicas))
		shuffle(replicas, order)
		for _, n := range replicas {
			if n != before {
				p.Expected += scaling
			}
			before = n
			subjects := subjectsOf(spec)
			shuffle(subjects, order)
			for _, subject := range subjects {
				for _, phase := range []Phase{Capacity, Latency} {
					p.Measurements = append(p.Measurements, Measurement{Number: len(p.Measurements) + 1,
						Repetition: repetition, Replicas: n, Mode: subject.mode, Peer: subject.peer, Phase: phase, Resumes: subject.resumes})
					p.Expected += StartDelay(pods, p.Load.VirtualUsersPerReplica*n, 1) + one
				}
			}
		}
	}
	p.Expected += scaling // back to what was before
	return p
}

type subject struct {
	mode, peer string
	resumes    bool
}

func subjectsOf(spec v1alpha1.QTLSBenchmarkSpec) []subject {
	var all []subject
	for _, m := range spec.Modes {
		all = append(all, subject{m.Name, "", m.Handshake == v1alpha1.BenchmarkHandshakeResumed})
	}
	for _, p := range spec.Peers {
		for _, m := range spec.Modes {
			if p.MeasuredIn(m.Name) {
				all = append(all, subject{m.Name, p.Name, false})
			}
		}
	}
	return all
}

// shuffle by Fisher and Yates. It is written out, on a generator whose numbers
// are specified, for an order must be the same with every release of Go.
func shuffle[T any](list []T, order *rand.PCG) {
	for i := len(list) - 1; i > 0; i-- {
		j := int(order.Uint64() % uint64(i+1))
		list[i], list[j] = list[j], list[i]
	}
}
