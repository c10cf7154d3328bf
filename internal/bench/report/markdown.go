package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Markdown of the report, for a pull request or a terminal.
func (r Report) Markdown() string {
	var b strings.Builder
	line := func(format string, args ...any) {
		for i, a := range args {
			if s, ok := a.(string); ok {
				args[i] = escape(s)
			}
		}
		fmt.Fprintf(&b, format+"\n", args...)
	}
	table := func(header []string, rows [][]string) {
		for i, cells := range append([][]string{header}, rows...) {
			b.WriteByte('|')
			for _, c := range cells {
				b.WriteString(" " + escape(c) + " |")
			}
			b.WriteByte('\n')
			if i == 0 {
				b.WriteString("|" + strings.Repeat("---|", len(header)) + "\n")
			}
		}
		b.WriteByte('\n')
	}

	line("# Benchmark %s\n", r.Name)
	line("%s\n", r.Headline())
	line("Gateway %s, measured %s to %s%s.\n", r.Gateway, r.Started.UTC().Format("2006-01-02 15:04"), r.Finished.UTC().Format("2006-01-02 15:04 UTC"), preset(r.Preset))
	for _, f := range r.Findings() {
		line("- %s", f)
	}
	for _, n := range r.Notes {
		line("- %s", n)
	}
	if len(r.Findings())+len(r.Notes) > 0 {
		line("")
	}

	if len(r.Thresholds) > 0 {
		line("## Thresholds\n")
		var rows [][]string
		for _, t := range r.Thresholds {
			rows = append(rows, []string{t.Text, string(t.Verdict), strings.Join(t.Told(), "; ")})
		}
		table([]string{"threshold", "verdict", "measured"}, rows)
	}

	if c := r.Comparison; c != nil {
		line("## Compared with %s\n", c.Baseline)
		if c.Refused {
			line("Refused. %s, and the figures would be theirs.\n", others)
		}
		for _, d := range c.Differences {
			line("- %s", d)
		}
		for _, i := range c.Images {
			line("- image %s: %s, and now %s", i.Name, orNothing(i.Baseline), orNothing(i.Now))
		}
		if len(c.Differences)+len(c.Images) > 0 {
			line("")
		}
		if len(c.Rows) > 0 {
			line("%s\n", c.reading())
			var rows [][]string
			same := 0
			for _, x := range c.Rows {
				if x.Change == Same {
					same++
					continue
				}
				rows = append(rows, []string{x.Mode, replicasText(x.Replicas), x.Figure, x.Baseline, x.Now, withInterval(x.Ratio, share3), changeText(x)})
			}
			if len(rows) > 0 {
				table([]string{"mode", "replicas", "figure", "baseline", "now", "ratio", "change"}, rows)
			}
			line("%d figures are the same.\n", same)
		}
	}

	for _, s := range r.sections() {
		line("## %s\n", s.Mode.Name)
		line("%s.\n", s.Mode.Describe())
		var capacity, latency [][]string
		for _, x := range s.Rows {
			capacity = append(capacity, []string{fmt.Sprint(x.Replicas), validText(x.Valid), x.PerSecond.String(), x.Efficiency.String(), x.ServerCPU.String(), x.PerCPU.String(), x.Balance, x.Idle, x.Memory.String(), x.Limit})
			cells := []string{fmt.Sprint(x.Replicas), x.Min, x.Mean.String()}
			for _, p := range x.P {
				cells = append(cells, p.String())
			}
			latency = append(latency, append(cells, x.Max, x.Connect.String(), x.Resumption, x.Failures))
		}
		table([]string{"replicas", "valid", "handshakes/s", "efficiency" + s.Relative, "server CPU a handshake", "a granted CPU-second", "busiest replica above its part", "machine idle", "memory of a pod", "limit"}, capacity)
		table([]string{"replicas", "min", "mean", "p50", "p95", "p99", "p99.9", "max", "TCP's connect before it", "resumed", "failures"}, latency)
		if curve, ok := r.scaling(s.Mode.Name); ok {
			line("%s %s\n", curve.Label, curve.Note)
			line("%s %s\n", curve.Law(), curve.Predicted())
		}
		for _, n := range s.Notes {
			line("- %s: %s", n.Points, n.Text)
		}
		line("")
	}

	if servers := r.servers(); len(servers) > 0 {
		line("## Other servers in the same run\n")
		line("%s\n", beside)
		var rows [][]string
		for _, s := range servers {
			rows = append(rows, []string{s.Mode, s.Name, fmt.Sprint(s.Replicas), s.Gateway.String(), s.Other.String(), s.Ratio.String()})
		}
		table([]string{"mode", "server", "replicas of each", "gateway, handshakes/s", "server, handshakes/s", "gateway to server"}, rows)
		for _, s := range servers {
			if s.Why != "" {
				line("- %s: no ratio, %s", s.Where(), s.Why)
			}
		}
		line("")
	}

	line("## Where a handshake's time and bytes go\n")
	var rows [][]string
	exchanges := slices.ContainsFunc(r.Points, Point.exchanged)
	for _, p := range r.Points {
		client, network, server := none, none, none
		if p.Latency != nil && p.Latency.Split != nil {
			s := p.Latency.Split
			client, network, server = duration(s.Client), duration(s.Network), duration(s.Server)
		}
		cells := []string{p.Mode, fmt.Sprint(p.Replicas), client, network, server, byteCount(p.Bytes.Sent), byteCount(p.Bytes.Received), byteCount(p.Bytes.Certificate)}
		if exchanges {
			x := r.row(p)
			cells = append(cells, x.Exchange.String(), x.ExchangeSent, x.ExchangeReceived)
		}
		rows = append(rows, cells)
	}
	header := []string{"mode", "replicas", "client", "network", "server", "sent", "received", "of it certificates"}
	if exchanges {
		line("%s\n", exchanging)
		header = append(header, "exchange after it", "sent in it", "received in it")
	}
	table(header, rows)

	if header, rows := r.evidence(); len(rows) > 0 {
		line("## Evidence\n")
		line("%s\n", observing)
		table(header, rows)
	}

	line("## Environment\n")
	rows = nil
	for _, l := range r.environment() {
		rows = append(rows, l[:])
	}
	table([]string{"", ""}, rows)
	line("## How to read this\n")
	for _, m := range method {
		line("- %s", m)
	}
	return b.String()
}

func preset(name string) string {
	if name == "" {
		return ""
	}
	return ", preset " + name
}

// replicasText of a row that is about a mode is all of them.
func replicasText(n int) string {
	if n == 0 {
		return "all"
	}
	return fmt.Sprint(n)
}

func orNothing(digest string) string {
	if digest == "" {
		return "none"
	}
	return digest
}

func validText(valid bool) string {
	if valid {
		return "yes"
	}
	return "NO"
}

func changeText(r Row) string {
	switch {
	case r.Reason != "":
		return "not comparable: " + r.Reason
	case r.Change == Same:
		return "the same"
	default:
		return strings.ToLower(string(r.Change))
	}
}

// escape keeps text from being more than text: in Markdown, and in the HTML that
// Markdown lets through.
func escape(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, escaper.Replace(s))
}

var escaper = strings.NewReplacer(
	`\`, `\\`, "`", "\\`", "|", `\|`, "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`, "<", "&lt;", ">", "&gt;", "&", "&amp;",
)
