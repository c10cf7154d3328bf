package benchmark

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/stats"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/conditions"
)

// measured makes a record of a result.
func measured(attempt int32, result shard.Result, used *usage) (record, error) {
	text, err := json.Marshal(result)
	return record{Attempt: attempt, PerSecond: result.PerSecond, Result: text, Usage: used}, err
}

// point is a mode at a number of replicas.
type point struct {
	mode     string
	replicas int32
}

// pointsOf what is recorded, by mode as in the spec, and number of replicas.
func pointsOf(b *v1alpha1.QTLSBenchmark, p plan.Plan, rs records) ([]v1alpha1.BenchmarkPoint, error) {
	measurements := map[point][]plan.Measurement{}
	throughput := map[string][]stats.Sample{} // by mode
	for _, m := range p.Measurements {
		one, ok := rs[m.Name()]
		if !ok {
			continue
		}
		at := point{m.Mode, m.Replicas}
		measurements[at] = append(measurements[at], m)
		if m.Phase == plan.Capacity && one.Reason == "" {
			throughput[m.Mode] = append(throughput[m.Mode], stats.Sample{Block: int(m.Repetition), Replicas: int(m.Replicas), PerSecond: one.PerSecond})
		}
	}
	var points []v1alpha1.BenchmarkPoint
	for _, mode := range b.Spec.Modes {
		for _, n := range slices.Sorted(slices.Values(b.Spec.Replicas)) {
			made := measurements[point{mode.Name, n}]
			if len(made) == 0 {
				continue
			}
			one, err := pointOf(mode, n, p, made, rs)
			if err != nil {
				return nil, err
			}
			if e, err := stats.Efficiency(throughput[mode.Name], 1, int(n)); err == nil { // without 1 replica there is none
				one.Efficiency = estimate(e, 4)
			}
			points = append(points, one)
		}
	}
	return points, nil
}

// pointOf what was measured of a mode with n replicas.
func pointOf(mode v1alpha1.BenchmarkMode, n int32, p plan.Plan, made []plan.Measurement, rs records) (v1alpha1.BenchmarkPoint, error) {
	one := v1alpha1.BenchmarkPoint{Mode: mode.Name, Replicas: n}
	var perSecond []float64
	var times shard.Histogram
	var reasons because
	phases := map[int32]int{} // measured, by repetition
	for _, m := range made {
		r := rs[m.Name()]
		if r.Reason != "" {
			reasons.add(r.Reason, r.Message)
			continue
		}
		result, err := r.decode()
		if err != nil {
			return one, fmt.Errorf("record of %s: %w", m, err)
		}
		if phases[m.Repetition]++; phases[m.Repetition] == 2 {
			one.Repetitions++
		}
		for _, count := range result.Failures {
			one.Failures += count
		}
		capacity := rs[capacityOf(m)]
		for _, reason := range validity.Judge(evidence(mode, m, p, result, r.Usage, capacity.PerSecond)) {
			reasons.add(string(reason.Rule), reason.Message)
		}
		if m.Phase == plan.Capacity {
			perSecond = append(perSecond, result.PerSecond)
			continue
		}
		total := result.Total(func(k shard.Kind) bool { return k.Resumed == resumes(mode) })
		if total.Handshake != nil {
			times.Merge(total.Handshake)
		}
	}
	one.InvalidBecause = reasons.list(len(made))
	one.Valid = len(reasons.order) == 0
	if e, err := stats.Mean(perSecond); err == nil {
		one.HandshakesPerSecond = estimate(e, 1)
	}
	if times.Count() > 0 {
		one.Latency = &v1alpha1.BenchmarkLatency{Mean: duration(times.Mean()), P50: duration(times.Percentile(50)), P95: duration(times.Percentile(95)),
			P99: percentile(&times, 99), P999: percentile(&times, 99.9)}
	}
	return one, nil
}

func capacityOf(m plan.Measurement) string {
	m.Phase = plan.Capacity
	return m.Name()
}

func resumes(mode v1alpha1.BenchmarkMode) bool {
	return mode.Handshake == v1alpha1.BenchmarkHandshakeResumed
}

// evidence of one measurement.
func evidence(mode v1alpha1.BenchmarkMode, m plan.Measurement, p plan.Plan, result shard.Result, used *usage, capacity float64) validity.Evidence {
	e := validity.Evidence{Phase: validity.Phase(m.Phase), Window: p.Load.Duration, Common: result.Common, Resumes: resumes(mode),
		Dropped: result.Dropped, StartLagP99: result.StartLag.Percentile(99), WantedReplicas: int(m.Replicas),
		Generator: validity.Generator{Periods: result.CPU.Periods, ThrottledPeriods: result.CPU.ThrottledPeriods}}
	for i := range result.Handshakes {
		h := &result.Handshakes[i]
		e.Handshakes += h.Count
		if h.Resumed {
			e.Resumed += h.Count
		}
		if !of(mode, h.Kind) {
			e.Strays += h.Count
		}
	}
	for _, count := range result.Failures {
		e.Failures += count
	}
	if used != nil {
		e.Replicas, e.MachineIdle = used.Replicas, used.MachineIdle
	}
	if m.Phase == plan.Latency {
		e.Rate, e.WantedRate = result.PerSecond, math.Max(1, math.Round(p.Rate(capacity)))
	}
	return e
}

// of says whether a handshake is one that the mode asks for.
func of(mode v1alpha1.BenchmarkMode, k shard.Kind) bool {
	group, ok := algorithms.GroupReportedAs(k.Group)
	if !ok || !slices.Contains(mode.Groups, group.Name) {
		return false
	}
	return k.Resumed || slices.ContainsFunc(mode.SignatureSchemes, func(s v1alpha1.SignatureScheme) bool {
		return strings.EqualFold(string(s), k.SignatureAlgorithm)
	})
}

// because collects why measurements are no results: each rule once.
type because struct {
	order []string
	first map[string]string
	count map[string]int
}

func (b *because) add(rule, message string) {
	if b.count == nil {
		b.first, b.count = map[string]string{}, map[string]int{}
	}
	if b.count[rule]++; b.count[rule] == 1 {
		b.order, b.first[rule] = append(b.order, rule), message
	}
}

func (b *because) list(measurements int) []string {
	var all []string
	for _, rule := range b.order {
		text := fmt.Sprintf("%s: %s", rule, b.first[rule])
		if b.count[rule] > 1 {
			text += fmt.Sprintf(" (%d times in %d measurements)", b.count[rule], measurements)
		}
		all = append(all, conditions.Shorten(text, 500))
	}
	return all
}

func estimate(e stats.Estimate, decimals int) *v1alpha1.BenchmarkEstimate {
	text := func(f float64) string { return strconv.FormatFloat(f, 'f', decimals, 64) }
	out := &v1alpha1.BenchmarkEstimate{Mean: text(e.Value)}
	if e.Interval != nil {
		out.Low, out.High = text(e.Interval.Low), text(e.Interval.High)
	}
	return out
}

func duration(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }

func percentile(times *shard.Histogram, p float64) *metav1.Duration {
	q := stats.PercentileOf(times, p)
	if !q.Available() {
		return nil
	}
	return &metav1.Duration{Duration: q.Value}
}
