package benchmark

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/bench/evidence"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/stats"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/conditions"
)

// measured makes a record of a result.
func measured(attempt int32, result shard.Result, used *usage) (record, error) {
	text, err := json.Marshal(result)
	return record{Attempt: attempt, PerSecond: result.PerSecond, Result: text, Usage: used, Versions: result.Versions}, err
}

// pointsOf what is recorded, by mode as in the spec, and number of replicas. They
// are what the report says of them; each is made on its own, for all results at
// once take much memory.
func pointsOf(s state) ([]v1alpha1.BenchmarkPoint, error) {
	var points []v1alpha1.BenchmarkPoint
	for _, mode := range s.benchmark.Spec.Modes {
		var throughput []stats.Sample
		first := len(points)
		for _, n := range slices.Sorted(slices.Values(s.benchmark.Spec.Replicas)) {
			made := measurements(s, func(m plan.Measurement) bool { return m.Subject() == mode.Name && m.Replicas == n })
			if len(made) == 0 {
				continue
			}
			r, err := report.Build(report.Report{Modes: []report.Mode{{Name: mode.Name, Resumed: resumes(mode)}}}, made)
			if err != nil {
				return nil, err
			}
			points = append(points, pointOf(r.Points[0]))
			if c := r.Points[0].Capacity; c != nil && c.Valid {
				for _, one := range c.Repetitions {
					if one.Valid() {
						throughput = append(throughput, stats.Sample{Block: one.Block, Replicas: int(n), PerSecond: one.PerSecond})
					}
				}
			}
		}
		for i := first; i < len(points); i++ {
			if e, err := stats.Efficiency(throughput, 1, int(points[i].Replicas)); err == nil { // without valid pairs there is none
				points[i].Efficiency = estimate(e, 4)
			}
		}
	}
	return points, nil
}

// pointOf a report, for the status.
func pointOf(p report.Point) v1alpha1.BenchmarkPoint {
	one := v1alpha1.BenchmarkPoint{Mode: p.Mode, Replicas: int32(p.Replicas), Valid: p.Valid && p.Capacity != nil && p.Latency != nil, Failures: p.Failed()}
	for _, class := range shard.Failures {
		f := v1alpha1.BenchmarkFailures{Class: string(class)}
		for failure, n := range p.Failures {
			if shard.Failure(failure).Class() == class {
				f.Count += n
			}
		}
		if f.Count > 0 {
			one.FailuresByClass = append(one.FailuresByClass, f)
		}
	}
	if p.Attempts > p.Failed() {
		one.Resumption = decimal(p.Resumption, 4)
	}
	var reasons because
	if c := p.Capacity; c != nil {
		reasons.add(c.Repetitions)
		if c.PerSecond.N > 0 {
			one.HandshakesPerSecond = estimate(c.PerSecond, 1)
			one.Server, one.LimitedBy = serverOf(*c), string(c.Bottleneck.Bottleneck)
		}
	}
	if l := p.Latency; l != nil {
		reasons.add(l.Repetitions)
		for _, r := range l.Repetitions {
			if r.PerSecond > 0 {
				one.Repetitions++
			}
		}
		if l.Count > 0 {
			one.Latency = &v1alpha1.BenchmarkLatency{Mean: seconds(l.Mean.Value), Min: metav1.Duration{Duration: l.Min}, Max: metav1.Duration{Duration: l.Max},
				P50: percentile(*l, 50), P95: percentile(*l, 95), P99: percentile(*l, 99), P999: percentile(*l, 99.9)}
		}
	}
	if !one.Valid {
		one.InvalidBecause = reasons.list(250)
		if len(one.InvalidBecause) == 0 { // nothing is wrong with what there is
			one.InvalidBecause = []string{string(validity.NotMeasured) + ": one of its phases is not measured yet"}
		}
	}
	return one
}

func modeOf(b *v1alpha1.QTLSBenchmark, name string) v1alpha1.BenchmarkMode {
	return b.Spec.Modes[slices.IndexFunc(b.Spec.Modes, func(m v1alpha1.BenchmarkMode) bool { return m.Name == name })]
}

func capacityOf(m plan.Measurement) string {
	m.Phase = plan.Capacity
	return m.Name()
}

func resumes(mode v1alpha1.BenchmarkMode) bool {
	return mode.Handshake == v1alpha1.BenchmarkHandshakeResumed
}

// evidenceOf one measurement.
func evidenceOf(mode v1alpha1.BenchmarkMode, m plan.Measurement, p plan.Plan, result shard.Result, used *usage, capacity float64) validity.Evidence {
	e := validity.Evidence{Phase: validity.Phase(m.Phase), Window: p.Load.Duration, Common: result.Common, Resumes: resumes(mode), Limit: validity.Bottleneck(mode.Bottleneck),
		Dropped: result.Dropped, StartLagP99: result.StartLag.Percentile(99), WantedReplicas: int(m.Replicas)}
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
	if m.Peer != "" { // the gateway's pods are idle meanwhile, on the same machines
		e.Peer, e.Replicas = true, nil
	}
	evidence.Complete(&e, result)
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
	order []validity.Rule
	first map[validity.Rule]string
	count map[validity.Rule]int
	all   int
}

func (b *because) add(repetitions []report.Repetition) {
	if b.count == nil {
		b.first, b.count = map[validity.Rule]string{}, map[validity.Rule]int{}
	}
	for _, r := range repetitions {
		b.all++
		for _, reason := range r.Reasons {
			if b.count[reason.Rule]++; b.count[reason.Rule] == 1 {
				b.order, b.first[reason.Rule] = append(b.order, reason.Rule), reason.Message
			}
		}
	}
}

// list them, each in so many bytes: of the greatest plan a status has 160 points of the
// gateway and 480 of peers, and etcd takes 1.5 MiB.
func (b *because) list(most int) []string {
	var all []string
	for _, rule := range b.order {
		text := fmt.Sprintf("%s: %s", rule, b.first[rule])
		if b.count[rule] > 1 {
			text += fmt.Sprintf(" (%d times in %d measurements)", b.count[rule], b.all)
		}
		all = append(all, conditions.Shorten(text, most))
	}
	return all
}

// serverOf a capacity is what of it was observed; nil if nothing was.
func serverOf(c report.Capacity) *v1alpha1.BenchmarkServer {
	server := &v1alpha1.BenchmarkServer{}
	if c.ServerCPU != nil {
		server.CPUPerHandshake = ptr.To(seconds(c.ServerCPU.Value))
	}
	if c.PerCPUSecond != nil {
		server.HandshakesPerCPUSecond = estimate(*c.PerCPUSecond, 1)
	}
	if c.Memory > 0 {
		server.Memory = resource.NewQuantity(c.Memory, resource.BinarySI)
	}
	if c.MemoryPerConnection > 0 {
		server.MemoryPerConnection = resource.NewQuantity(c.MemoryPerConnection, resource.BinarySI)
	}
	if c.Imbalance != nil {
		server.Imbalance = decimal(*c.Imbalance, 4)
	}
	if c.Idle != nil {
		server.MachineIdle = decimal(*c.Idle, 4)
	}
	if *server == (v1alpha1.BenchmarkServer{}) {
		return nil
	}
	return server
}

// scalingOf the gateway in a report, for the status, which has no points of peers.
func scalingOf(r report.Report) []v1alpha1.BenchmarkScaling {
	var all []v1alpha1.BenchmarkScaling
	for _, s := range r.Scaling {
		if slices.ContainsFunc(r.Modes, func(m report.Mode) bool { return m.Name == s.Mode && m.Peer != "" }) {
			continue
		}
		one := v1alpha1.BenchmarkScaling{Mode: s.Mode, Curve: strings.TrimSpace(s.Label + " " + s.Note), Unavailable: s.Unavailable}
		if f := s.Fit; f != nil {
			one.Lambda, one.Sigma, one.Kappa = decimal(f.Lambda, 1), decimal(f.Sigma, 6), decimal(f.Kappa, 8)
		}
		for _, p := range s.Predictions {
			one.Predictions = append(one.Predictions, v1alpha1.BenchmarkPrediction{Replicas: int32(p.Replicas),
				HandshakesPerSecond: v1alpha1.BenchmarkEstimate{Mean: decimal(p.Value, 1), Low: decimal(p.PerSecond.Low, 1), High: decimal(p.PerSecond.High, 1)}})
		}
		all = append(all, one)
	}
	return all
}

func decimal(f float64, decimals int) string { return strconv.FormatFloat(f, 'f', decimals, 64) }

func seconds(f float64) metav1.Duration {
	return metav1.Duration{Duration: time.Duration(f * float64(time.Second)).Round(time.Microsecond)}
}

func estimate(e stats.Estimate, decimals int) *v1alpha1.BenchmarkEstimate {
	out := &v1alpha1.BenchmarkEstimate{Mean: decimal(e.Value, decimals)}
	if e.Interval != nil {
		out.Low, out.High = decimal(e.Interval.Low, decimals), decimal(e.Interval.High, decimals)
	}
	return out
}

func percentile(l report.Latency, p float64) *metav1.Duration {
	q := l.Percentile(p)
	if !q.Available() {
		return nil
	}
	return &metav1.Duration{Duration: q.Value}
}
