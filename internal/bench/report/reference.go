package report

import (
	"fmt"
	"slices"
	"strings"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/bench/stats"
)

// Source is a report that the reference page takes figures from.
type Source struct {
	Path   string // as the page links it
	Report Report
}

// The reference page's rows. Each is shown, whether anybody has measured it or not.
var (
	referenceReplicas = []int{1, 2, 4, 8, 16}
	referenceSizes    = []int64{1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20}
	referenceKinds    = []referenceKind{
		{"hybrid", "hybrid key exchange, ML-DSA certificate", func(m Mode) bool { return groups(m, hybrid) && schemes(m, algorithms.PostQuantum) && !m.HSM }},
		{"hybrid, HSM", "the same, with the private key in an HSM", func(m Mode) bool { return groups(m, hybrid) && schemes(m, algorithms.PostQuantum) && m.HSM }},
		{"classical", "ECDHE, RSA or ECDSA certificate", func(m Mode) bool { return groups(m, classical) && schemes(m, algorithms.Classical) && !m.HSM }},
		{"PQC only", "ML-KEM alone, ML-DSA certificate", func(m Mode) bool { return groups(m, pqcOnly) && schemes(m, algorithms.PostQuantum) && !m.HSM }},
	}
)

type referenceKind struct {
	name, meaning string
	is            func(Mode) bool
}

// exchange is what a group's key exchange rests on.
type exchange int

const (
	classical exchange = iota + 1
	hybrid
	pqcOnly
)

func exchangeOf(group string) exchange {
	g, known := algorithms.LookupGroup(v1alpha1.Group(group))
	if !known {
		g, known = algorithms.GroupReportedAs(group)
	}
	switch {
	case !known:
		return 0
	case g.Family == algorithms.Classical:
		return classical
	case strings.HasPrefix(string(g.Name), "MLKEM"):
		return pqcOnly
	case strings.Contains(string(g.Name), "MLKEM"):
		return hybrid
	}
	return 0
}

func groups(m Mode, want exchange) bool {
	return len(m.Groups) > 0 && !slices.ContainsFunc(m.Groups, func(g string) bool { return exchangeOf(g) != want })
}

func schemes(m Mode, want algorithms.Family) bool {
	return len(m.SignatureSchemes) > 0 && !slices.ContainsFunc(m.SignatureSchemes, func(name string) bool {
		s, known := algorithms.LookupSignatureScheme(v1alpha1.SignatureScheme(name))
		return !known || s.Family != want
	})
}

// found is a mode of a source.
type found struct {
	source int // counted from 1
	report Report
	mode   Mode
}

// find the modes of all sources that are of a kind, in the sources' order.
func find(sources []Source, is func(Mode) bool) []found {
	var all []found
	for i, s := range sources {
		for _, m := range s.Report.Modes {
			if m.Peer == "" && is(m) {
				all = append(all, found{i + 1, s.Report, m})
			}
		}
	}
	return all
}

// results are how many points of a mode are some: of one replica, or of any number.
func (f found) results(oneReplica bool) int {
	n := 0
	for _, p := range f.report.Points {
		if p.Mode == f.mode.Name && p.Capacity != nil && p.Capacity.Valid && (p.Replicas == 1 || !oneReplica) {
			n++
		}
	}
	return n
}

// scaled is the one with most results, of runs with several numbers of replicas; the
// first of those that have as many. Replicas of another run have another size, and rows
// are compared.
func scaled(all []found) []found {
	all = slices.DeleteFunc(all, func(f found) bool {
		first := slices.IndexFunc(f.report.Points, func(p Point) bool { return p.Mode == f.mode.Name })
		return first < 0 || !slices.ContainsFunc(f.report.Points, func(p Point) bool { return p.Mode == f.mode.Name && p.Replicas != f.report.Points[first].Replicas })
	})
	slices.SortStableFunc(all, func(a, b found) int { return b.results(false) - a.results(false) })
	return all[:min(1, len(all))]
}

// ofOneRun are those of the run with most results of one replica; the first of those
// that have as many.
func ofOneRun(all []found) func([]found) []found {
	results := map[int]int{}
	best := 0
	for _, f := range all {
		results[f.source] += f.results(true)
	}
	for _, f := range all {
		if best == 0 || results[f.source] > results[best] {
			best = f.source
		}
	}
	return func(some []found) []found {
		return slices.DeleteFunc(some, func(f found) bool { return f.source != best })
	}
}

// Why there is no figure.
const (
	notMeasured = "not measured"
	notValid    = "measured, and no result"
	tooFew      = "too few handshakes"
)

// figure of a mode, or why there is none.
type figure func(found) (text, why string)

// show the first figure that there is; else why there is none.
func show(candidates []found, f figure) string {
	said := notMeasured
	for _, c := range candidates {
		text, why := f(c)
		if why == "" {
			return fmt.Sprintf("%s [%d]", text, c.source)
		}
		if why != notMeasured {
			said = why
		}
	}
	return said
}

func validOr(valid bool, text string) (string, string) {
	if !valid {
		return "", notValid
	}
	return text, ""
}

// capacity, with its efficiency, at a number of replicas.
func capacity(replicas int) figure {
	return func(f found) (string, string) {
		p, ok := f.report.point(f.mode.Name, replicas)
		if !ok || p.Capacity == nil {
			return "", notMeasured
		}
		text := withInterval(p.Capacity.PerSecond, figure3)
		_, toOne := f.report.efficiency(f.mode.Name, 1)
		if e, ok := f.report.efficiency(f.mode.Name, replicas); ok && toOne && replicas > 1 {
			text += "; E " + withInterval(e, share3)
		}
		return validOr(p.Capacity.Valid, text)
	}
}

// latency of one replica.
func latency(of func(Latency) (text, why string)) figure {
	return func(f found) (string, string) {
		p, ok := f.report.point(f.mode.Name, 1)
		if !ok || p.Latency == nil {
			return "", notMeasured
		}
		if !p.Latency.Valid {
			return "", notValid
		}
		return of(*p.Latency)
	}
}

func ofMean(l Latency) (string, string) { return withInterval(l.Mean, seconds), "" }

func ofPercentile(p float64) func(Latency) (string, string) {
	return func(l Latency) (string, string) {
		q := l.Percentile(p)
		if !q.Available() {
			return "", tooFew
		}
		return cell{duration(q.Value), between(q.Low.Seconds(), q.High.Seconds(), seconds)}.String(), ""
	}
}

func ofExchange(l Latency) (string, string) {
	c := l.exchange()
	if c.Text == none {
		return "", notMeasured
	}
	return c.String(), ""
}

// ofServerCPU is what a handshake takes of it, with one replica.
func ofServerCPU(f found) (string, string) {
	p, ok := f.report.point(f.mode.Name, 1)
	if !ok || p.Capacity == nil || p.Capacity.ServerCPU == nil {
		return "", notMeasured
	}
	text := withInterval(*p.Capacity.ServerCPU, seconds)
	if f.mode.HSM && p.Capacity.Observed.LeastSeen == nil { // older reports have HAProxy's threads alone
		text = "at least " + text
	}
	return validOr(p.Capacity.Valid, text)
}

// resumedToFull is the ratio of the handshakes per second, with one replica and in
// the same blocks of a run.
func resumedToFull(full []found) figure {
	return func(resumed found) (string, string) {
		said := notMeasured
		for _, f := range full {
			if f.source != resumed.source {
				continue
			}
			at := map[int]float64{}
			for _, s := range samples(f.report, f.mode.Name) {
				if s.Replicas == 1 {
					at[s.Block] = s.PerSecond
				}
			}
			var a, b []float64
			for _, s := range samples(resumed.report, resumed.mode.Name) {
				if v, paired := at[s.Block]; paired && s.Replicas == 1 {
					a, b = append(a, s.PerSecond), append(b, v)
				}
			}
			if ratio, err := stats.PairedRatio(a, b); err == nil {
				return withInterval(ratio, figure3), ""
			}
			said = notValid // both are in the run
		}
		return "", said
	}
}

// Reference is docs/benchmarks/reference.md: the tables that one asks of a gateway
// like this first, with what was measured of them, and where nothing was.
func Reference(sources []Source) string {
	var b strings.Builder
	table := func(header []string, rows [][]string) {
		for i, cells := range append([][]string{header}, rows...) {
			b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
			if i == 0 {
				b.WriteString("|" + strings.Repeat("---|", len(header)) + "\n")
			}
		}
		b.WriteByte('\n')
	}
	plain := func(k referenceKind, resumed bool) []found {
		return find(sources, func(m Mode) bool { return k.is(m) && m.Resumed == resumed && m.Operation == "" && m.Transfer == 0 })
	}
	handshakes := []string{"full", "resumed"}
	var all []found
	for _, k := range referenceKinds {
		all = append(append(all, plain(k, false)...), plain(k, true)...)
	}
	compared := ofOneRun(all)

	b.WriteString(`# Reference tables

<!-- Made by go run ./hack/reference (make generate) of docs/benchmarks/*/report.json: do not edit. -->

What is asked of a gateway first: how it scales from 1 to 16 servers, what hybrid, HSM, classical and purely post-quantum handshakes take, what resumption saves, and what data of several sizes takes. A cell is filled where a committed report has a valid point for it, with the interval at 95 % and the number of the report: one report for each column of the first table, and one for all of the second, those with most results, beside which others may have measured more; "measured, and no result" is a point that broke a rule of [how it is measured](method.md), a percentile of "too few handshakes" has less than 100 beyond it, and "not measured" is what it says. CPU of "at least" so much is without the threads of the library that speaks to the HSM. Figures belong to the machine and the quotas that the report names: compare ratios, and measure on your own.

`)
	table([]string{"kind", "what it is"}, rowsOf(referenceKinds, func(k referenceKind) []string { return []string{k.name, k.meaning} }))

	b.WriteString("## Servers\n\nFull handshakes a second of all replicas together, and the scaling efficiency E, of runs with several numbers of replicas.\n\n")
	header := []string{"servers"}
	for _, k := range referenceKinds {
		header = append(header, k.name)
	}
	table(header, rowsOf(referenceReplicas, func(n int) []string {
		row := []string{fmt.Sprint(n)}
		for _, k := range referenceKinds {
			row = append(row, show(scaled(plain(k, false)), capacity(n)))
		}
		return row
	}))

	b.WriteString("## Handshakes\n\nOf one server: latency at the part of its capacity that the report names, handshakes a second at all of it, and the server's CPU time for one.\n\n")
	var rows [][]string
	for _, k := range referenceKinds {
		for i, kind := range handshakes {
			modes := compared(plain(k, i == 1))
			rows = append(rows, []string{k.name, kind,
				show(modes, latency(ofMean)),
				show(modes, latency(ofPercentile(50))), show(modes, latency(ofPercentile(95))), show(modes, latency(ofPercentile(99))),
				show(modes, capacity(1)), show(modes, ofServerCPU)})
		}
	}
	table([]string{"kind", "handshake", "mean", "p50", "p95", "p99", "a second", "server CPU"}, rows)

	b.WriteString("## Resumption\n\nResumed handshakes a second, to full ones of the same run.\n\n")
	table([]string{"kind", "resumed to full"}, rowsOf(referenceKinds, func(k referenceKind) []string {
		return []string{k.name, show(plain(k, true), resumedToFull(plain(k, false)))}
	}))

	b.WriteString("## Data\n\nA request with a body of that size on a connection of its own, hybrid with a full handshake, of one server: the time from the request to the end of the response, and connections a second.\n\n")
	table([]string{"size", "time", "a second"}, rowsOf(referenceSizes, func(size int64) []string {
		modes := find(sources, func(m Mode) bool { return referenceKinds[0].is(m) && !m.Resumed && m.Transfer == size })
		name := fmt.Sprintf("%d KiB", size>>10)
		if size >= 1<<20 {
			name = fmt.Sprintf("%d MiB", size>>20)
		}
		return []string{name, show(modes, latency(ofExchange)), show(modes, capacity(1))}
	}))

	b.WriteString("## Where it was measured\n\n")
	if len(sources) == 0 {
		b.WriteString("Nowhere yet: no report is committed.\n")
	}
	for i, s := range sources {
		fmt.Fprintf(&b, "%d. [%s](%s): benchmark %s, %s%s; %s; %s.\n", i+1, escape(s.Path), s.Path, escape(s.Report.Name), s.Report.Finished.UTC().Format("2006-01-02"), escape(preset(s.Report.Preset)), escape(machines(s.Report)), escape(modes(s.Report)))
	}
	return b.String()
}

func rowsOf[T any](list []T, row func(T) []string) [][]string {
	var rows [][]string
	for _, v := range list {
		rows = append(rows, row(v))
	}
	return rows
}

// machines and quotas of a report, in short.
func machines(r Report) string {
	var all []string
	for _, m := range r.Environment.Machines {
		all = appendNew(all, fmt.Sprintf("%s, %d CPUs", m.CPUModel, m.CPUs))
	}
	text := fmt.Sprintf("machines: %d (%s)", len(r.Environment.Machines), strings.Join(all, "; "))
	for _, q := range r.Environment.Quotas {
		if q.CPU != "" {
			text += fmt.Sprintf(", %s has %s CPU", q.Container, q.CPU)
		}
	}
	return text
}

// modes of a report, with what was negotiated.
func modes(r Report) string {
	var all []string
	for _, m := range r.Modes {
		if m.Peer == "" {
			all = append(all, fmt.Sprintf("%s is %s with %s", m.Name, strings.Join(m.Groups, ", "), strings.Join(m.SignatureSchemes, ", ")))
		}
	}
	return strings.Join(all, "; ")
}
