package report

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/stats"
	"qtls.dev/qtls/internal/bench/validity"
)

// Measurement is one repetition of one phase of a point.
type Measurement struct {
	Mode     string
	Replicas int
	Phase    validity.Phase
	// Block is the repetition, from 1: what has the same one was measured close
	// together.
	Block int
	// Result is nil where there is none, and Missing says why then: a measurement
	// that was planned and never made is one of these.
	Result   *shard.Result
	Missing  string
	Evidence validity.Evidence
}

// ValidShare of a phase's planned repetitions have to be results for its figures
// to be one. Fewer, and leaving the others out would be a choice of the better ones.
const ValidShare = 0.8

// LeastConnections of a replica for memory to be told by connection: what fewer
// take is lost in what the allocator keeps.
const LeastConnections = 16

// Percentiles that a report has.
var Percentiles = []float64{50, 95, 99, 99.9}

// Builder makes a report point by point: the measurements of one take much memory,
// and what the report says of it takes little.
type Builder struct {
	report Report
	modes  map[string]int // where each is in the report
}

// NewBuilder begins a report with a head, which has all that is not measured: the
// name, the environment, the modes.
func NewBuilder(head Report) (*Builder, error) {
	b := &Builder{report: head, modes: map[string]int{}}
	b.report.Version = Version
	b.report.Points, b.report.Scaling, b.report.Peers = nil, nil, nil
	for i, m := range head.Modes {
		if _, twice := b.modes[m.Name]; twice || m.Name == "" {
			return nil, fmt.Errorf("mode %q: want names, each once", m.Name)
		}
		b.modes[m.Name] = i
	}
	return b, nil
}

// Add all measurements of one point. It keeps none of them.
func (b *Builder) Add(measurements []Measurement) error {
	if len(measurements) == 0 {
		return nil
	}
	mode, replicas := measurements[0].Mode, measurements[0].Replicas
	for _, m := range measurements {
		if _, known := b.modes[m.Mode]; !known {
			return fmt.Errorf("a measurement of mode %q, which the report does not have", m.Mode)
		}
		if m.Replicas < 1 || m.Block < 1 {
			return fmt.Errorf("a measurement of mode %s with %d replicas in block %d: want both from 1", m.Mode, m.Replicas, m.Block)
		}
		if m.Result == nil && m.Missing == "" {
			return fmt.Errorf("a measurement of mode %s with %d replicas has neither a result nor a reason", m.Mode, m.Replicas)
		}
		if m.Phase != validity.Capacity && m.Phase != validity.Latency {
			return fmt.Errorf("a measurement of mode %s in phase %q: want %s or %s", m.Mode, m.Phase, validity.Capacity, validity.Latency)
		}
		if m.Mode != mode || m.Replicas != replicas {
			return fmt.Errorf("measurements of mode %s with %d replicas and of mode %s with %d: want those of one point", mode, replicas, m.Mode, m.Replicas)
		}
	}
	if _, twice := b.report.point(mode, replicas); twice {
		return fmt.Errorf("mode %s with %d replicas twice: want all measurements of a point at once", mode, replicas)
	}
	p, err := buildPoint(b.report.Modes[b.modes[mode]], replicas, measurements)
	if err != nil {
		return fmt.Errorf("mode %s with %d replicas: %w", mode, replicas, err)
	}
	b.report.Points = append(b.report.Points, p)
	return nil
}

// Report of the points that were added.
func (b *Builder) Report() Report {
	r := b.report
	r.Points = slices.SortedFunc(slices.Values(r.Points), func(p, q Point) int {
		return cmp.Or(cmp.Compare(b.modes[p.Mode], b.modes[q.Mode]), cmp.Compare(p.Replicas, q.Replicas))
	})
	for _, m := range r.Modes {
		if s, ok := buildScaling(r, m.Name); ok {
			r.Scaling = append(r.Scaling, s)
		}
	}
	r.Peers = buildPeers(r)
	return r
}

// Build makes a report of measurements that are all at hand.
func Build(head Report, measurements []Measurement) (Report, error) {
	b, err := NewBuilder(head)
	if err != nil {
		return Report{}, err
	}
	type key struct {
		mode     string
		replicas int
	}
	var keys []key
	points := map[key][]Measurement{}
	for _, m := range measurements {
		k := key{m.Mode, m.Replicas}
		if points[k] == nil {
			keys = append(keys, k)
		}
		points[k] = append(points[k], m)
	}
	for _, k := range keys {
		if err := b.Add(points[k]); err != nil {
			return Report{}, err
		}
	}
	return b.Report(), nil
}

func buildPoint(mode Mode, replicas int, measurements []Measurement) (Point, error) {
	p := Point{Mode: mode.Name, Replicas: replicas}
	var handshakes, resumed, ofMode, exchanges int64
	kinds := map[shard.Kind]int64{}
	var sum, exchanged Bytes
	for _, m := range measurements {
		if m.Result == nil {
			continue
		}
		for i := range m.Result.Handshakes {
			h := &m.Result.Handshakes[i]
			handshakes += h.Count
			kinds[h.Kind] += h.Count
			if mode.has(h.Kind) {
				ofMode += h.Count
				sum.Sent += float64(h.BytesSent)
				sum.Received += float64(h.BytesReceived)
				sum.Certificate += float64(h.CertificateBytes)
			}
			exchanges += h.Exchange.Count()
			exchanged.Sent += float64(h.ExchangeBytesSent)
			exchanged.Received += float64(h.ExchangeBytesReceived)
			if h.Resumed {
				resumed += h.Count
			}
		}
		for f, n := range m.Result.Failures {
			if p.Failures == nil {
				p.Failures = map[string]int64{}
			}
			p.Failures[string(f)] += n
		}
	}
	p.Attempts = handshakes + p.Failed()
	if handshakes > 0 {
		p.Resumption = float64(resumed) / float64(handshakes)
	}
	for kind, n := range kinds {
		p.Kinds = append(p.Kinds, Kind{kind, n})
	}
	slices.SortFunc(p.Kinds, func(a, b Kind) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(describe(a.Kind), describe(b.Kind)))
	})
	p.Kinds = p.Kinds[:min(len(p.Kinds), mostKinds)]
	if n := float64(ofMode); n > 0 {
		p.Bytes = Bytes{Sent: sum.Sent / n, Received: sum.Received / n, Certificate: sum.Certificate / n}
	}
	if exchanges > 0 {
		n := float64(exchanges)
		p.ExchangeBytes = &Bytes{Sent: exchanged.Sent / n, Received: exchanged.Received / n}
	}
	of := func(phase validity.Phase) []Measurement {
		chosen := slices.DeleteFunc(slices.Clone(measurements), func(m Measurement) bool { return m.Phase != phase })
		slices.SortStableFunc(chosen, func(a, b Measurement) int { return cmp.Compare(a.Block, b.Block) })
		return chosen
	}
	p.Valid = true
	if ms := of(validity.Capacity); len(ms) > 0 {
		c, err := buildCapacity(ms, mode)
		if err != nil {
			return Point{}, err
		}
		p.Capacity, p.Valid = c, p.Valid && c.Valid
	}
	if ms := of(validity.Latency); len(ms) > 0 {
		l, err := buildLatency(ms, mode)
		if err != nil {
			return Point{}, err
		}
		p.Latency, p.Valid = l, p.Valid && l.Valid
	}
	for _, phase := range []validity.Phase{validity.Capacity, validity.Latency} {
		planned := of(phase)
		var evidence []validity.Evidence
		for _, m := range planned {
			if m.Result != nil {
				evidence = append(evidence, m.Evidence)
			}
		}
		for _, remark := range validity.Remarks(len(planned), evidence...) {
			p.Remarks = appendNew(p.Remarks, remark)
		}
	}
	return p, nil
}

// judge makes the repetitions of a phase, and chooses the measurements that its
// figures are of.
func judge(ms []Measurement, mode Mode) (Phase, []Measurement, error) {
	var phase Phase
	var measured, valid []Measurement
	blocks := map[int]bool{}
	for _, m := range ms {
		if blocks[m.Block] {
			return Phase{}, nil, fmt.Errorf("phase %s has block %d twice", m.Phase, m.Block)
		}
		blocks[m.Block] = true
		r := Repetition{Block: m.Block, Idle: m.Evidence.MachineIdle}
		if m.Result == nil {
			r.Missing, r.Reasons = true, []validity.Reason{{Rule: validity.NotMeasured, Message: m.Missing}}
		} else {
			r.PerSecond, r.Mean, r.ServerCPU = m.Result.PerSecond, handshakesOf(m, mode).Handshake.Mean().Seconds(), serverCPU(m)
			r.Reasons = validity.Judge(m.Evidence)
			measured = append(measured, m)
			if r.Valid() {
				valid = append(valid, m)
			}
		}
		phase.Repetitions = append(phase.Repetitions, r)
	}
	phase.Valid = len(valid) > 0 && float64(len(valid)) >= ValidShare*float64(len(ms))
	if phase.Valid {
		return phase, valid, nil
	}
	return phase, measured, nil
}

// serverCPU is the CPU time of all replicas for a handshake, in seconds.
func serverCPU(m Measurement) float64 {
	handshakes := m.Result.Count()
	var total time.Duration
	for _, r := range m.Evidence.Replicas {
		used := r.CPU
		if r.Observed > 0 { // not all of the window
			used = time.Duration(float64(used) * float64(m.Evidence.Window) / float64(r.Observed))
		}
		total += used
	}
	if handshakes == 0 {
		return 0
	}
	return total.Seconds() / float64(handshakes)
}

func buildCapacity(ms []Measurement, mode Mode) (*Capacity, error) {
	phase, chosen, err := judge(ms, mode)
	if err != nil {
		return nil, err
	}
	c := &Capacity{Phase: phase, Bottleneck: validity.Finding{Bottleneck: validity.Unknown}}
	if len(chosen) == 0 {
		return c, nil
	}
	var rates, perCPU, cpu, perConnection []float64
	var findings []validity.Finding
	for i, m := range chosen {
		var held, connections int64
		rates = append(rates, m.Result.PerSecond)
		if t := serverCPU(m); t > 0 {
			cpu = append(cpu, t)
		}
		var quotas float64
		for j, replica := range m.Evidence.Replicas {
			quotas += replica.Quota
			if i == 0 && j == 0 {
				c.Quota = replica.Quota
			} else if c.Quota != replica.Quota {
				c.Quota = 0
			}
			c.Memory = max(c.Memory, replica.Memory)
			if replica.Connections >= LeastConnections && replica.IdleMemory > 0 && replica.LoadedMemory > 0 {
				held, connections = held+replica.LoadedMemory-replica.IdleMemory, connections+replica.Connections
			}
		}
		if held > 0 && connections > 0 { // one that did not grow tells of what the allocator had kept
			perConnection = append(perConnection, float64(held)/float64(connections))
		}
		if quotas > 0 {
			perCPU = append(perCPU, m.Result.PerSecond/quotas)
		}
		if share, known := validity.Imbalance(m.Evidence.Replicas); known && (c.Imbalance == nil || share > *c.Imbalance) {
			c.Imbalance = &share
		}
		if idle := m.Evidence.MachineIdle; idle != nil && (c.Idle == nil || *idle < *c.Idle) {
			c.Idle = idle
		}
		findings = append(findings, validity.Name(m.Evidence))
		c.Observed.add(m.Evidence)
	}
	memory, err := meanOf(perConnection)
	if err != nil {
		return nil, err
	}
	if memory != nil {
		c.MemoryPerConnection, c.MemoryInterval = int64(memory.Value), memory.Interval
	}
	c.Bottleneck = most(findings)
	if c.PerSecond, err = stats.Amount(rates); err != nil {
		return nil, err
	}
	if c.ServerCPU, err = meanOf(cpu); err != nil {
		return nil, err
	}
	c.PerCPUSecond, err = meanOf(perCPU)
	return c, err
}

// add what was seen of one measurement.
func (o *Observed) add(e validity.Evidence) {
	least := func(into **float64, share *float64) {
		if share != nil && (*into == nil || *share < **into) {
			*into = share
		}
	}
	greatest := func(into **float64, share *float64) {
		if share != nil && (*into == nil || *share > **into) {
			*into = share
		}
	}
	of := func(part, whole float64) *float64 {
		if whole <= 0 {
			return nil
		}
		share := part / whole
		return &share
	}
	var bytes float64
	for _, r := range e.Replicas {
		least(&o.Throttled, of(float64(r.ThrottledPeriods), float64(r.Periods)))
		greatest(&o.MemoryUse, of(float64(r.Memory), float64(r.MemoryLimit)))
		greatest(&o.MemoryStalled, r.MemoryStalled)
		o.OOMKills += r.OOMKills
		if r.Observed > 0 {
			seen := of(float64(r.Observed), float64(e.Window))
			least(&o.LeastSeen, seen)
			greatest(&o.MostSeen, seen)
		}
		if r.Traffic != nil && r.Observed > 0 {
			bytes += float64(r.Traffic.BytesReceived+r.Traffic.BytesSent) / r.Observed.Seconds()
		}
	}
	if bytes > 0 {
		greatest(&o.BytesPerSecond, &bytes)
	}
	if e.HSM != nil {
		greatest(&o.HSMUse, e.HSM.Use)
		greatest(&o.HSMWait, e.HSM.WaitShare)
	}
	if e.Redis != nil {
		without := e.Redis.Without
		if o.WithoutTicketKeys != nil {
			without = max(without, *o.WithoutTicketKeys)
		}
		o.WithoutTicketKeys = &without
	}
	greatest(&o.Retransmitted, e.Network.Retransmitted)
	greatest(&o.Network, e.Network.Share)
	greatest(&o.GeneratorUse, e.Generator.Use)
	o.GeneratorThrottled += e.Generator.ThrottledPeriods
	least(&o.GeneratorIdle, e.Generator.MachineIdle)
}

// most is the first finding of the bottleneck that most repetitions had.
func most(findings []validity.Finding) validity.Finding {
	counts := map[validity.Bottleneck]int{}
	best := findings[0]
	for _, f := range findings {
		counts[f.Bottleneck]++
	}
	for _, f := range findings {
		if counts[f.Bottleneck] > counts[best.Bottleneck] {
			best = f
		}
	}
	return best
}

// meanOf is nil where nothing was observed.
func meanOf(samples []float64) (*stats.Estimate, error) {
	if len(samples) == 0 {
		return nil, nil
	}
	e, err := stats.Amount(samples)
	return &e, err
}

func buildLatency(ms []Measurement, mode Mode) (*Latency, error) {
	phase, chosen, err := judge(ms, mode)
	if err != nil {
		return nil, err
	}
	l := &Latency{Phase: phase}
	if len(chosen) == 0 {
		for _, p := range Percentiles {
			l.Percentiles = append(l.Percentiles, stats.Percentile{P: p, Unavailable: "nothing was measured"})
		}
		return l, nil
	}
	var all shard.Series
	var means, exchanges []float64
	var each []repetition
	for _, m := range chosen {
		one := handshakesOf(m, mode)
		if one.Count > 0 {
			means = append(means, one.Handshake.Mean().Seconds())
		}
		if one.Exchange.Count() > 0 {
			exchanges = append(exchanges, one.Exchange.Mean().Seconds())
		}
		all.Add(&one)
		each = append(each, repetition{m.Block, one.Handshake, failed(m)})
		l.Failed += failed(m)
		l.Rate += m.Result.PerSecond / float64(len(chosen))
	}
	l.Count, l.Min, l.Max = all.Count, all.Handshake.Min(), all.Handshake.Max()
	if len(means) > 0 {
		if l.Mean, err = stats.Amount(means); err != nil {
			return nil, err
		}
	}
	for _, p := range Percentiles {
		l.Percentiles = append(l.Percentiles, percentile(all.Handshake, l.Failed, each, p))
	}
	if all.Server.Count() > 0 {
		l.Split = &Split{Client: all.Client.Mean(), Network: all.Network.Mean(), Server: all.Server.Mean()}
	}
	if all.Connect.Count() > 0 {
		l.Connect = &Connect{all.Connect.Mean(), all.Connect.Max()}
	}
	l.Exchange = all.Exchange.Mean()
	l.ExchangeInterval = stats.Around(l.Exchange.Seconds(), exchanges)
	return l, nil
}

// repetition of a latency, with the attempts that failed in it.
type repetition struct {
	block  int
	times  *shard.Histogram
	failed int64
}

// percentile of all repetitions together. Handshakes of one repetition are not
// independent of each other, so the interval is at least that over the repetitions'
// own percentiles.
func percentile(all *shard.Histogram, failures int64, repetitions []repetition, p float64) stats.Percentile {
	q := stats.PercentileOf(all, failures, p)
	var each []float64
	for _, r := range repetitions {
		if r.times.Count() == 0 {
			continue
		}
		at, ok := stats.Among(r.times.Count(), r.failed, p)
		if !ok && q.Available() {
			q = stats.Percentile{P: p, Unavailable: fmt.Sprintf("%s of repetition %d lies among its attempts that failed: %d", q.Name(), r.block, r.failed)}
		}
		each = append(each, r.times.Percentile(at).Seconds())
	}
	if !q.Available() {
		return q
	}
	if i := stats.Around(q.Value.Seconds(), each); i != nil {
		// No time is outside of what a histogram keeps.
		of := func(seconds float64) time.Duration {
			return time.Duration(min(max(seconds, time.Microsecond.Seconds()), shard.Longest.Seconds()) * float64(time.Second))
		}
		q.Low, q.High = min(q.Low, of(i.Low)), max(q.High, of(i.High))
	}
	return q
}

// has says whether handshakes of a kind are what the mode measures. One that resumes has
// some full ones too, of clients that had no ticket yet, which take several times as
// long: with them its p95 could be theirs.
func (m Mode) has(k shard.Kind) bool { return k.Resumed == m.Resumed }

// handshakesOf a measurement that the mode measures.
func handshakesOf(m Measurement, mode Mode) shard.Series { return m.Result.Total(mode.has) }

// failed attempts of a measurement.
func failed(m Measurement) int64 {
	var n int64
	for _, count := range m.Result.Failures {
		n += count
	}
	return n
}

// samples of a mode's valid measurements of capacity.
func samples(r Report, mode string) []stats.Sample {
	var s []stats.Sample
	for _, p := range r.Points {
		if p.Mode != mode || p.Capacity == nil || !p.Capacity.Valid {
			continue
		}
		for _, repetition := range p.Capacity.Repetitions {
			if repetition.Valid() {
				s = append(s, stats.Sample{Block: repetition.Block, Replicas: p.Replicas, PerSecond: repetition.PerSecond})
			}
		}
	}
	return s
}

// Predicted are the multiples of the most replicas measured that a report gives a
// prediction for.
var Predicted = []int{2, 4}

// curveSteps is in how many steps the fitted curve is drawn.
const curveSteps = 32

func buildScaling(r Report, mode string) (Scaling, bool) {
	s := Scaling{Mode: mode}
	s.Label, s.Note = label(r, mode)
	points := samples(r, mode)
	sizes := map[int]bool{}
	for _, p := range points {
		sizes[p.Replicas] = true
	}
	if len(sizes) == 0 {
		return s, false
	}
	counts := slices.Sorted(maps.Keys(sizes))
	s.Base = counts[0]
	for _, n := range counts {
		// Without a common block there is no pair, and no efficiency.
		if e, err := stats.Efficiency(points, s.Base, n); err == nil {
			s.Efficiencies = append(s.Efficiencies, Efficiency{n, e})
		}
	}
	if why := limitsApart(r, mode); why != "" {
		s.Unavailable = why
		return s, true
	}
	fit, err := stats.FitUSL(points)
	if err != nil {
		s.Unavailable = err.Error()
		return s, true
	}
	s.Fit = &fit
	// A κ that may be 0 says nothing of a peak.
	if peak, exists := fit.Peak(); exists && fit.KappaInterval.Low > 0 {
		s.Peak = peak
	}
	at := func(n int) (At, error) {
		e, err := fit.Predict(n)
		if err != nil {
			return At{}, err
		}
		return At{Replicas: n, PerSecond: *e.Interval, Value: e.Value}, nil
	}
	last := counts[len(counts)-1]
	var errs error
	end := last * Predicted[0]
	for n := 1; n <= end; n += max(1, end/curveSteps) {
		a, err := at(n)
		s.Curve, errs = append(s.Curve, a), errors.Join(errs, err)
	}
	for _, times := range Predicted {
		a, err := at(last * times)
		s.Predictions, errs = append(s.Predictions, a), errors.Join(errs, err)
	}
	if errs != nil {
		s.Unavailable, s.Fit, s.Curve, s.Predictions = errs.Error(), nil, nil, nil
	}
	return s, true
}

// limitsApart says which limits a mode's valid points have, where that is not one for all:
// the law is of one, and where another takes over it knows nothing of what comes.
func limitsApart(r Report, mode string) string {
	var limits []string
	of := map[string][]string{}
	for _, p := range r.Points {
		if p.Mode != mode || p.Capacity == nil || !p.Capacity.Valid {
			continue
		}
		limit := p.Capacity.Bottleneck.Bottleneck.Text()
		limits = appendNew(limits, limit)
		of[limit] = append(of[limit], strconv.Itoa(p.Replicas))
	}
	if len(limits) < 2 {
		return ""
	}
	var parts []string
	for _, limit := range limits {
		parts = append(parts, fmt.Sprintf("the %s with %s", limit, strings.Join(of[limit], ", ")))
	}
	return "the law is of one limit, and by the number of replicas that was " + strings.Join(parts, ", ")
}

// label says what kind of curve a mode's is: that of replicas which each have a
// machine is another than that of replicas which share one under quotas.
func label(r Report, mode string) (text, note string) {
	machines := fmt.Sprintf("%d machines", len(r.Environment.Machines))
	switch len(r.Environment.Machines) {
	case 0:
		machines = "machines that are not described"
	case 1:
		machines = "one machine"
	}
	quota, same := 0.0, true
	var limits []string
	for _, p := range r.Points {
		if p.Mode != mode || p.Capacity == nil || !p.Capacity.Valid {
			continue
		}
		if quota == 0 {
			quota = p.Capacity.Quota
		}
		same = same && p.Capacity.Quota == quota
		limits = appendNew(limits, string(p.Capacity.Bottleneck.Bottleneck))
	}
	text = "Whether the replicas have a CPU quota was not observed; they are on " + machines + "."
	switch {
	case quota > 0 && same:
		text = fmt.Sprintf("Each replica has a quota of %s CPU, on %s: this is how replicas of that size add up, and not how machines do.", millicores(quota), machines)
	case !same:
		text = "Replicas with different CPU quotas, on " + machines + "."
	}
	for _, limit := range limits {
		switch validity.Bottleneck(limit) {
		case validity.HSM:
			note = "At some points the HSM was the limit: there the curve is the HSM's."
		case validity.Network:
			note = "At some points the network was the limit: there the curve is the network's."
		}
	}
	return text, note
}

func buildPeers(r Report) []Peer {
	var peers []Peer
	for _, m := range r.Modes {
		if m.PeerOf == "" {
			continue
		}
		ours, theirs := samples(r, m.PeerOf), samples(r, m.Name)
		at := map[[2]int]float64{}
		sizes := map[int]bool{}
		for _, s := range ours {
			at[[2]int{s.Block, s.Replicas}] = s.PerSecond
			sizes[s.Replicas] = true
		}
		for _, n := range slices.Sorted(maps.Keys(sizes)) {
			var a, b []float64
			for _, s := range theirs {
				if v, paired := at[[2]int{s.Block, n}]; paired && s.Replicas == n {
					a, b = append(a, v), append(b, s.PerSecond)
				}
			}
			if ratio, err := stats.PairedRatio(a, b); err == nil {
				peers = append(peers, Peer{Mode: m.PeerOf, Peer: m.Peer, Replicas: n, Ratio: ratio})
			}
		}
	}
	return peers
}
