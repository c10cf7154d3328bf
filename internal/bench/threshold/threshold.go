// Package threshold reads the conditions that decide whether a benchmark passed,
// as "p99 <= 5ms", "hybrid-full/efficiency@8 >= 0.95" or "failures == 0".
package threshold

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Metric is what a threshold limits.
type Metric string

const (
	Min                 Metric = "min"
	Mean                Metric = "mean"
	P50                 Metric = "p50"
	P95                 Metric = "p95"
	P99                 Metric = "p99"
	P999                Metric = "p99.9"
	Max                 Metric = "max"
	ServerCPU           Metric = "serverCPU"           // a handshake
	HandshakesPerSecond Metric = "handshakesPerSecond" // of all replicas
	Efficiency          Metric = "efficiency"
	Resumption          Metric = "resumption" // share of handshakes that were resumed
	Failures            Metric = "failures"
)

// Unit is how a metric's limit is written.
type Unit int

const (
	Duration Unit = iota // seconds inside
	Number
	Share // a number, or one with %
	Count
)

var units = map[Metric]Unit{
	Min: Duration, Mean: Duration, P50: Duration, P95: Duration, P99: Duration, P999: Duration, Max: Duration, ServerCPU: Duration,
	HandshakesPerSecond: Number, Efficiency: Share, Resumption: Share, Failures: Count,
}

// Metrics are all of them, as a message lists them.
var Metrics = []Metric{Min, Mean, P50, P95, P99, P999, Max, ServerCPU, HandshakesPerSecond, Efficiency, Resumption, Failures}

// Unit of the metric.
func (m Metric) Unit() Unit { return units[m] }

// Exact tells whether the metric is known from one repetition. Others have an interval, and
// that needs several.
func (m Metric) Exact() bool { return slices.Contains([]Metric{Min, Max, Resumption, Failures}, m) }

// Operator compares what was measured with the limit.
type Operator string

// Operators, those of two characters first, as a reader has to look for them.
var operators = []Operator{"<=", ">=", "==", "!=", "<", ">"}

// Threshold is [MODE/]METRIC[@REPLICAS] OPERATOR LIMIT.
type Threshold struct {
	// Mode is empty for all modes that were measured, Replicas 0 for all numbers
	// of replicas.
	Mode     string
	Metric   Metric
	Replicas int
	Operator Operator
	// Limit of a time is in seconds.
	Limit float64

	text string
}

// String is the threshold as it was written.
func (t Threshold) String() string { return t.text }

const (
	mostText     = 128
	mostReplicas = 1000
)

// modeName is that of an API object's list key.
var modeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Parse reads a threshold. Its errors say which part is wrong, and what it may be.
func Parse(text string) (Threshold, error) {
	t, err := parse(text)
	if err != nil {
		return Threshold{}, fmt.Errorf("threshold %s: %w", strconv.Quote(cut(text)), err)
	}
	return t, nil
}

func parse(text string) (Threshold, error) {
	t := Threshold{text: strings.TrimSpace(text)}
	if len(text) > mostText {
		return t, fmt.Errorf("%d characters: at most %d", len(text), mostText)
	}
	at := strings.IndexAny(text, "<>=!")
	if at < 0 {
		return t, fmt.Errorf("no operator: want METRIC OPERATOR LIMIT with one of %s, as in p99 <= 5ms", list(operators))
	}
	left, rest := strings.TrimSpace(text[:at]), text[at:]
	i := slices.IndexFunc(operators, func(o Operator) bool { return strings.HasPrefix(rest, string(o)) })
	if i < 0 {
		return t, fmt.Errorf("operator %q: want one of %s", rest[:1], list(operators))
	}
	t.Operator = operators[i]
	right := strings.TrimSpace(rest[len(t.Operator):])

	if mode, metric, found := strings.Cut(left, "/"); found {
		if t.Mode, left = mode, metric; !modeName.MatchString(t.Mode) {
			return t, fmt.Errorf("mode %q: want a mode's name before the /, as in hybrid-full/p99", cut(t.Mode))
		}
	}
	metric, replicas, found := strings.Cut(left, "@")
	if found {
		n, err := strconv.ParseUint(replicas, 10, 16)
		if err != nil || n < 1 || n > mostReplicas || strconv.FormatUint(n, 10) != replicas {
			return t, fmt.Errorf("replicas %q: want 1 to %d after the @, as in efficiency@8", cut(replicas), mostReplicas)
		}
		t.Replicas = int(n)
	}
	t.Metric = Metric(metric)
	unit, known := units[t.Metric]
	if !known {
		return t, fmt.Errorf("metric %q: want one of %s", cut(metric), list(Metrics))
	}
	if unit != Count && (t.Operator == "==" || t.Operator == "!=") {
		return t, fmt.Errorf("operator %s: %s is measured, and never just a number; want one of <= >= < >", t.Operator, t.Metric)
	}
	limit, err := parseLimit(unit, right)
	if err != nil {
		return t, fmt.Errorf("limit %q: %w", cut(right), err)
	}
	t.Limit = limit
	return t, nil
}

var decimal = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

func parseLimit(unit Unit, text string) (float64, error) {
	number := func(text string) (float64, bool) {
		f, err := strconv.ParseFloat(text, 64)
		return f, err == nil && decimal.MatchString(text) && f < 1e12
	}
	switch unit {
	case Duration:
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 || strings.HasPrefix(text, "+") || d == 0 {
			return 0, fmt.Errorf("want a time above 0 with its unit, as 5ms, 800us or 1.5s")
		}
		return d.Seconds(), nil
	case Share:
		if percent, found := strings.CutSuffix(text, "%"); found {
			if f, ok := number(strings.TrimSpace(percent)); ok {
				return f / 100, nil
			}
		} else if f, ok := number(text); ok && f <= 2 {
			return f, nil
		}
		return 0, fmt.Errorf("want a share, as 0.95 or 95%%")
	case Count:
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil || !decimal.MatchString(text) || n > 1<<50 {
			return 0, fmt.Errorf("want a whole number, as 0")
		}
		return float64(n), nil
	default:
		f, ok := number(text)
		if !ok {
			return 0, fmt.Errorf("want a number, as 500")
		}
		return f, nil
	}
}

// Verdict is what became of a threshold.
type Verdict string

const (
	Passed Verdict = "Passed"
	Failed Verdict = "Failed"
	// Undecided: the interval holds the limit. It is no pass.
	Undecided Verdict = "Undecided"
	// Unmeasured: nothing valid was measured that it could be compared with. It
	// is no pass.
	Unmeasured Verdict = "Unmeasured"
)

// Compare a value from low to high with the limit. An exact one has low and high
// alike.
func (t Threshold) Compare(low, high float64) Verdict {
	holds := func(v float64) bool {
		switch t.Operator {
		case "<=":
			return v <= t.Limit
		case ">=":
			return v >= t.Limit
		case "<":
			return v < t.Limit
		case ">":
			return v > t.Limit
		case "==":
			return v == t.Limit
		default:
			return v != t.Limit
		}
	}
	if math.IsNaN(low) || math.IsNaN(high) {
		return Unmeasured
	}
	switch l, h := holds(low), holds(high); {
	case l && h:
		return Passed
	case !l && !h:
		return Failed
	default:
		return Undecided
	}
}

func list[S ~string](of []S) string {
	var words []string
	for _, s := range of {
		words = append(words, string(s))
	}
	return strings.Join(words, " ")
}

func cut(s string) string {
	if len(s) > 48 {
		return s[:48] + "…"
	}
	return s
}
