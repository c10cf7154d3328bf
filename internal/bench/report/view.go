package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"qtls.dev/qtls/internal/bench/stats"
	"qtls.dev/qtls/internal/bench/threshold"
)

// What follows is how figures are told, in Markdown and on the page alike.

// Headline says in a sentence how the run ended.
func (r Report) Headline() string {
	var parts []string
	switch valid, all := r.ValidPoints(); {
	case all == 0:
		parts = append(parts, "Nothing was measured")
	case valid == all:
		parts = append(parts, fmt.Sprintf("All %d points are valid", all))
	default:
		parts = append(parts, fmt.Sprintf("%d of %d points are valid", valid, all))
	}
	if servers := r.servers(); len(servers) > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d comparisons with other servers have a result", len(r.Peers), len(servers)))
	}
	if len(r.Thresholds) > 0 {
		counts := map[threshold.Verdict]int{}
		for _, t := range r.Thresholds {
			counts[t.Verdict]++
		}
		var verdicts []string
		for _, v := range []threshold.Verdict{threshold.Passed, threshold.Failed, threshold.Undecided, threshold.Unmeasured} {
			if counts[v] > 0 {
				verdicts = append(verdicts, fmt.Sprintf("%d %s", counts[v], strings.ToLower(string(v))))
			}
		}
		parts = append(parts, fmt.Sprintf("thresholds: %s", strings.Join(verdicts, ", ")))
	}
	if c := r.Comparison; c != nil {
		if c.Refused {
			parts = append(parts, "the comparison with the baseline is refused")
		} else {
			counts := map[Change]int{}
			for _, row := range c.Rows {
				counts[row.Change]++
			}
			parts = append(parts, fmt.Sprintf("against %s: %d better, %d worse, %d undecided, %d not comparable, %d the same", c.Baseline, counts[Better], counts[Worse], counts[Undecided], counts[Incomparable], counts[Same]))
		}
	}
	return strings.Join(parts, "; ") + "."
}

// Findings are what the curves say, a sentence for each mode, and the ratios to other
// servers.
func (r Report) Findings() []string {
	var all []string
	for _, s := range r.Scaling {
		if m, _ := r.mode(s.Mode); m.Peer != "" || len(s.Efficiencies) == 0 {
			continue
		}
		e := s.Efficiencies[len(s.Efficiencies)-1]
		if e.Replicas == s.Base {
			continue
		}
		text := fmt.Sprintf("%s: with %d replicas %s times the handshakes of %s, efficiency%s %s.", s.Mode, e.Replicas,
			figure3(e.Estimate.Value*float64(e.Replicas)/float64(s.Base)), replicas(s.Base), s.relative(), withInterval(e.Estimate, share3))
		if e.Estimate.Interval != nil && e.Estimate.Interval.Low > 1 {
			text += " More than 1 says that the first replica was dear, and not that replicas help each other."
		}
		all = append(all, text)
	}
	for i, p := range r.Peers {
		if next := i + 1; next < len(r.Peers) && r.Peers[next].Mode == p.Mode && r.Peers[next].Peer == p.Peer {
			continue // there is a ratio with more replicas
		}
		all = append(all, fmt.Sprintf("%s: with %s the gateway makes %s times the handshakes of %s.", p.Mode, replicas(p.Replicas), withInterval(p.Ratio, share3), p.Peer))
	}
	return all
}

// server is a comparison with another one, in words.
type server struct {
	Mode, Name string
	Replicas   int
	// Gateway and Other are the handshakes per second of each, and Ratio of the first to
	// the second.
	Gateway, Other, Ratio cell
	// Why there is no ratio.
	Why string
}

// Where it was measured.
func (s server) Where() string { return s.Mode + ", " + s.Name + ", " + replicas(s.Replicas) }

// servers that were measured in the same run, one at each point.
func (r Report) servers() []server {
	var all []server
	for _, m := range r.Modes {
		if m.PeerOf == "" {
			continue
		}
		for _, p := range r.Points {
			if p.Mode != m.Name {
				continue
			}
			gateway, _ := r.point(m.PeerOf, p.Replicas)
			s := server{Mode: m.PeerOf, Name: m.Peer, Replicas: p.Replicas, Gateway: perSecond(gateway), Other: perSecond(p), Ratio: cell{Text: none}}
			i := slices.IndexFunc(r.Peers, func(x Peer) bool { return x.Mode == m.PeerOf && x.Peer == m.Peer && x.Replicas == p.Replicas })
			if i >= 0 {
				s.Ratio = estimate(r.Peers[i].Ratio, share3)
			} else if s.Why = noCapacity(p); s.Why == "" {
				s.Why = "the gateway has no valid capacity in the same repetitions"
			}
			all = append(all, s)
		}
	}
	return all
}

// perSecond of a point's capacity.
func perSecond(p Point) cell {
	if p.Capacity == nil {
		return cell{Text: none}
	}
	return estimate(p.Capacity.PerSecond, figure3)
}

// noCapacity says why a point has none that is a result; empty where it has.
func noCapacity(p Point) string {
	switch {
	case p.Capacity == nil:
		return "it was not measured"
	case p.Capacity.Valid:
		return ""
	}
	return strings.Join(p.Capacity.Reasons(), "; ")
}

// Describe is what a mode consists of.
func (m Mode) Describe() string {
	var parts []string
	if m.Peer != "" {
		parts = append(parts, "another server, "+m.Peer)
	}
	if len(m.Groups) > 0 {
		parts = append(parts, strings.Join(m.Groups, ", "))
	}
	if len(m.SignatureSchemes) > 0 {
		parts = append(parts, strings.Join(m.SignatureSchemes, ", "))
	}
	if m.Resumed {
		parts = append(parts, "resumed")
	} else {
		parts = append(parts, "full handshakes")
	}
	if m.HSM {
		parts = append(parts, "key in an HSM")
	}
	if m.Operation == "Request" {
		parts = append(parts, "with an HTTP request")
	}
	if m.Transfer > 0 {
		parts = append(parts, fmt.Sprintf("with %s of data", byteCount(float64(m.Transfer))))
	}
	for _, p := range [][2]string{{"path", m.Path}, {"listener", m.Listener}, {"server name", m.ServerName}} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+p[1])
		}
	}
	return strings.Join(parts, "; ")
}

// Law is the fitted law in figures.
func (s Scaling) Law() string {
	if s.Fit == nil {
		return "No fit: " + s.Unavailable + "."
	}
	f := s.Fit
	text := fmt.Sprintf("λ = %s/s (%s to %s), σ = %s (%s to %s), κ = %s (%s to %s), R² = %.4f.",
		figure3(f.Lambda), figure3(f.LambdaInterval.Low), figure3(f.LambdaInterval.High),
		significant3(f.Sigma), significant3(f.SigmaInterval.Low), significant3(f.SigmaInterval.High),
		significant3(f.Kappa), significant3(f.KappaInterval.Low), significant3(f.KappaInterval.High), f.RSquared)
	if s.Peak > 0 {
		text += fmt.Sprintf(" The law has its peak at %s replicas.", figure3(s.Peak))
	}
	return text
}

// Predicted says what the law gives for more replicas than were measured.
func (s Scaling) Predicted() string {
	var parts []string
	for _, p := range s.Predictions {
		parts = append(parts, fmt.Sprintf("%d replicas %s/s (%s to %s)", p.Replicas, figure3(p.Value), figure3(p.PerSecond.Low), figure3(p.PerSecond.High)))
	}
	if len(parts) == 0 {
		return ""
	}
	return "Predicted, if the law holds: " + strings.Join(parts, ", ") + "."
}

// section is a table of points.
type section struct {
	Mode Mode
	Rows []row
	// Relative says what their efficiencies relate to.
	Relative string
	// Exchanges followed the handshakes.
	Exchanges bool
	// Notes are about points: of several that have the same one, it is there once.
	Notes []note
}

type note struct {
	Points string
	Text   string
	Bad    bool
}

// notes collects those of all rows.
func notes(rows []row) []note {
	var all []note
	points := map[note][]int{}
	add := func(replicas int, text string, bad bool) {
		n := note{Text: text, Bad: bad}
		if points[n] == nil {
			all = append(all, n)
		}
		points[n] = append(points[n], replicas)
	}
	for _, x := range rows {
		for _, reason := range x.Reasons {
			add(x.Replicas, reason, true)
		}
	}
	for _, x := range rows {
		for _, remark := range x.Remarks {
			add(x.Replicas, remark, false)
		}
		if x.Kinds != "" {
			add(x.Replicas, fmt.Sprintf("negotiated: %s.", x.Kinds), false)
		}
		if x.Evidence != "" {
			add(x.Replicas, fmt.Sprintf("limited by %s: %s.", x.Limit, x.Evidence), false)
		}
	}
	for i, n := range all {
		all[i].Points = replicas(points[n][0])
		if len(points[n]) > 1 {
			all[i].Points = numbers(points[n]) + " replicas"
		}
	}
	return all
}

// row is a point in words.
type row struct {
	Replicas   int
	Valid      bool
	PerSecond  cell
	Efficiency cell
	ServerCPU  cell
	PerCPU     cell
	Min        string
	Mean       cell
	P          []cell
	Max        string
	Connect    cell
	Resumption string
	Failures   string
	Kinds      string
	Memory     cell
	Balance    string
	Idle       string
	Limit      string
	Evidence   string
	Reasons    []string
	Remarks    []string

	// Bytes of a handshake; the mean time of the exchange after it, and its bytes.
	Sent, Received, ExchangeSent, ExchangeReceived string
	Exchange                                       cell
}

// cell is a figure with its interval, or what it lacks.
type cell struct{ Text, Range string }

func (c cell) String() string {
	if c.Range == "" {
		return c.Text
	}
	return c.Text + " (" + c.Range + ")"
}

func estimate(e stats.Estimate, format func(float64) string) cell {
	switch {
	case e.N == 0:
		return cell{Text: none}
	case e.Interval == nil && e.N == 1:
		return cell{format(e.Value), "measured once"}
	case e.Interval == nil: // one of them was nothing
		return cell{format(e.Value), "no interval"}
	default:
		return cell{format(e.Value), between(e.Interval.Low, e.Interval.High, format)}
	}
}

const none = "–"

// sections has a table for each mode.
func (r Report) sections() []section {
	var all []section
	for _, m := range r.Modes {
		curve, _ := r.scaling(m.Name)
		s := section{Mode: m, Relative: curve.relative()}
		for _, p := range r.Points {
			if p.Mode == m.Name {
				s.Rows, s.Exchanges = append(s.Rows, r.row(p)), s.Exchanges || p.exchanged()
			}
		}
		s.Notes = notes(s.Rows)
		if len(s.Rows) > 0 {
			all = append(all, s)
		}
	}
	return all
}

func (r Report) row(p Point) row {
	x := row{
		Replicas: p.Replicas, Valid: p.Valid, PerSecond: cell{Text: none}, Efficiency: cell{Text: none}, ServerCPU: cell{Text: none}, PerCPU: cell{Text: none}, Min: none, Mean: cell{Text: none}, Max: none, Connect: cell{Text: none},
		Resumption: percent(p.Resumption), Failures: "0", Memory: cell{Text: none}, Balance: none, Idle: none, Limit: none, Remarks: p.Remarks, Kinds: p.kinds(),
		Sent: byteCount(p.Bytes.Sent), Received: byteCount(p.Bytes.Received), Exchange: cell{Text: none}, ExchangeSent: none, ExchangeReceived: none,
	}
	if n := p.Failed(); n > 0 {
		x.Failures = fmt.Sprintf("%s (%s)", whole(n), strings.Join(classes(p.Failures), ", "))
	}
	if e, ok := r.efficiency(p.Mode, p.Replicas); ok {
		x.Efficiency = estimate(e, share3)
		if s, _ := r.scaling(p.Mode); s.Base == p.Replicas {
			x.Efficiency = cell{Text: "1"}
		}
	}
	if c := p.Capacity; c != nil {
		x.PerSecond = estimate(c.PerSecond, figure3)
		if c.ServerCPU != nil {
			x.ServerCPU = estimate(*c.ServerCPU, seconds)
		}
		if c.PerCPUSecond != nil {
			x.PerCPU = estimate(*c.PerCPUSecond, figure3)
		}
		if c.Memory > 0 {
			x.Memory.Text = mebibytes(c.Memory)
			if c.MemoryPerConnection > 0 {
				x.Memory.Range = byteCount(float64(c.MemoryPerConnection)) + " a connection"
				if i := c.MemoryInterval; i != nil {
					x.Memory.Range += ", " + between(i.Low, i.High, byteCount)
				}
			}
		}
		if c.Imbalance != nil {
			x.Balance = "+" + percent(*c.Imbalance)
		}
		if c.Idle != nil {
			x.Idle = percent(*c.Idle)
		}
		x.Limit, x.Evidence = string(c.Bottleneck.Bottleneck), strings.Join(c.Bottleneck.Evidence, "; ")
		for _, reason := range c.Reasons() {
			x.Reasons = append(x.Reasons, "capacity, "+reason)
		}
	}
	if l := p.Latency; l != nil {
		if l.Count > 0 {
			x.Min, x.Mean = duration(l.Min), estimate(l.Mean, seconds)
			if l.Failed == 0 {
				x.Max = duration(l.Max)
			}
		}
		if c := l.Connect; c != nil {
			x.Connect.Text = duration(c.Mean)
			if l.Failed == 0 { // else one of those may have waited for longer
				x.Connect.Range = "max " + duration(c.Max)
			}
		}
		x.Exchange = l.exchange()
		for _, reason := range l.Reasons() {
			x.Reasons = append(x.Reasons, "latency, "+reason)
		}
	}
	if b := p.ExchangeBytes; b != nil {
		x.ExchangeSent, x.ExchangeReceived = byteCount(b.Sent), byteCount(b.Received)
	}
	for _, p100 := range Percentiles {
		c := cell{Text: none}
		if l := p.Latency; l != nil {
			if q := l.Percentile(p100); q.Available() {
				c = cell{duration(q.Value), between(q.Low.Seconds(), q.High.Seconds(), seconds)}
			} else if attempts, need := l.Count+l.Failed, stats.SamplesFor(p100); attempts < need {
				c.Range = fmt.Sprintf("%s of %s", whole(attempts), whole(need))
			} else {
				c.Range = "among those that failed"
			}
		}
		x.P = append(x.P, c)
	}
	return x
}

// exchange is the time of what followed the handshake.
func (l Latency) exchange() cell {
	c := cell{Text: none}
	if l.Exchange > 0 {
		c.Text = duration(l.Exchange)
	}
	if i := l.ExchangeInterval; i != nil {
		c.Range = between(i.Low, i.High, seconds)
	}
	return c
}

// evidence is a table of what was observed beside the capacities: a header, and a row
// for each point. A column that no point has is not there.
func (r Report) evidence() (header []string, rows [][]string) {
	share := func(s *float64) string {
		if s == nil {
			return none
		}
		return percent(*s)
	}
	count := func(n int64) string {
		if n == 0 {
			return none
		}
		return whole(n)
	}
	columns := []struct {
		name string
		of   func(Observed) string
	}{
		{"throttled periods", func(o Observed) string { return share(o.Throttled) }},
		{"memory of its limit", func(o Observed) string { return share(o.MemoryUse) }},
		{"waited for memory", func(o Observed) string { return share(o.MemoryStalled) }},
		{"killed for memory", func(o Observed) string { return count(o.OOMKills) }},
		{"HSM's sessions busy", func(o Observed) string { return share(o.HSMUse) }},
		{"server waited for HSM", func(o Observed) string { return share(o.HSMWait) }},
		{"replicas without ticket keys", func(o Observed) string {
			if o.WithoutTicketKeys == nil {
				return none
			}
			return fmt.Sprint(*o.WithoutTicketKeys)
		}},
		{"segments lost", func(o Observed) string { return share(o.Retransmitted) }},
		{"network's part of a handshake", func(o Observed) string { return share(o.Network) }},
		{"traffic a second", func(o Observed) string {
			if o.BytesPerSecond == nil {
				return none
			}
			return byteCount(*o.BytesPerSecond)
		}},
		{"generator's CPU", func(o Observed) string { return share(o.GeneratorUse) }},
		{"generator throttled", func(o Observed) string { return count(o.GeneratorThrottled) }},
		{"generator's machine idle", func(o Observed) string { return share(o.GeneratorIdle) }},
		{"part of the window that was seen", func(o Observed) string {
			if o.LeastSeen == nil || o.MostSeen == nil {
				return none
			}
			return fmt.Sprintf("%s to %s", percent(*o.LeastSeen), percent(*o.MostSeen))
		}},
	}
	var points []Point
	for _, p := range r.Points {
		if p.Capacity != nil && p.Capacity.Observed != (Observed{}) {
			points = append(points, p)
			rows = append(rows, []string{p.Mode, fmt.Sprint(p.Replicas)})
		}
	}
	header = []string{"mode", "replicas"}
	for _, c := range columns {
		if !slices.ContainsFunc(points, func(p Point) bool { return c.of(p.Capacity.Observed) != none }) {
			continue
		}
		header = append(header, c.name)
		for i, p := range points {
			rows[i] = append(rows[i], c.of(p.Capacity.Observed))
		}
	}
	return header, rows
}

// environment in lines of a name and what it is.
func (r Report) environment() [][2]string {
	var lines [][2]string
	describe := func(what string, machines []Machine) {
		for _, m := range machines {
			text := fmt.Sprintf("%s, %d CPUs", m.CPUModel, m.CPUs)
			if m.Memory > 0 {
				text += ", " + figure3(float64(m.Memory)/(1<<30)) + " GiB"
			}
			if m.Kernel != "" {
				text += ", Linux " + m.Kernel
			}
			if len(m.Flags) > 0 {
				text += "; " + strings.Join(m.Flags, " ")
			}
			lines = append(lines, [2]string{what + " " + m.Name, text})
		}
	}
	describe("Machine", r.Environment.Machines)
	describe("Load generator's machine", r.Environment.Generators)
	for _, q := range r.Environment.Quotas {
		lines = append(lines, [2]string{"Limits of " + q.Container, fmt.Sprintf("CPU %s, memory %s", orNone(q.CPU), orNone(q.Memory))})
	}
	for _, m := range r.Environment.HSM {
		lines = append(lines, [2]string{"HSM member " + m.Name, m.String()})
	}
	for _, v := range r.Environment.Versions {
		lines = append(lines, [2]string{v.Name, v.Version})
	}
	for _, i := range r.Environment.Images {
		lines = append(lines, [2]string{"Image " + i.Name, i.Digest})
	}
	if r.Load != nil {
		lines = append(lines, [2]string{"Load", r.Load.String()})
	}
	lines = append(lines, [2]string{"Order", fmt.Sprintf("random within each repetition, seed %d", r.Seed)})
	return lines
}

func classes(failures map[string]int64) []string {
	var all []string
	for _, class := range sortedKeys(failures) {
		all = append(all, fmt.Sprintf("%s %s", class, whole(failures[class])))
	}
	return all
}

// method says how to read the figures.
var method = []string{
	"Intervals are at 95 %. Times, rates and ratios are above 0 and vary by factors, so theirs are Student's t over repetitions on logarithms: as many times above the figure as below it, and very wide of two repetitions. For efficiencies and for ratios to another server it is of pairs within repetitions; for percentiles, the wider of that and of ranks; for the fitted law, of a bootstrap.",
	"A percentile is quoted when at least 100 samples lie beyond it: a p99 of 10,000 handshakes and more. Percentiles are of all handshakes of a point together, never means of percentiles. An attempt that failed took longer than any handshake, and where there is one there is no max. Where a percentile is missing, the table has how many samples there are of those that it needs, or that it lies among those that failed.",
	"The time of a handshake begins when TCP is connected. How long that took stands beside it.",
	"Capacity is measured in a closed loop, latency at a fixed rate below it. An invalid point says why; it is no result, and no curve or threshold uses it.",
	"The curve is Gunther's universal scalability law, X(N) = λN / (1 + σ(N−1) + κN(N−1)), by least squares with σ and κ at least 0.",
}

// tolerance in words.
func (c Comparison) tolerance() string { return fmt.Sprintf("%v %%", math.Round(100*c.Tolerance)) }

// others says why a comparison is refused.
const others = "The machines, quotas or load are not the same"

// reading says how to read a comparison.
func (c Comparison) reading() string {
	return fmt.Sprintf("A figure is better or worse when it is so by more than %s with all of the interval of its ratio (Welch's, on logarithms), undecided when it is worse by more than that but part of the interval is not, and else the same. Failures, of which a few are chance, are better or worse when they are so by more than that and in fewer than one of 40 runs by chance (binomial test); the resumption by more than that.", c.tolerance())
}

// beside says how to read a comparison with other servers.
const beside = "Each has the gateway's certificate, nodes, resources and load, in the same repetitions. A ratio above 1 says that the gateway makes more handshakes. What the pods of other servers use is not observed, nor whether their quotas limited them."

// exchanging says what the bytes of an exchange are.
const exchanging = "Bytes of a handshake are those on the wire of TLS; those of the exchange after it are application data: the request and the response, with their heads."

// observing says what the evidence is.
const observing = "What limited a point is named from these: the worst of all repetitions of its capacity, of all replicas, and of all pods of the load generator."
