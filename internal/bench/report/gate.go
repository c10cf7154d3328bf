package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/stats"
	"qtls.dev/qtls/internal/bench/threshold"
)

// Threshold is what became of one.
type Threshold struct {
	Text    string            `json:"text"`
	Verdict threshold.Verdict `json:"verdict"`
	// Details say it of each point that it is about.
	Details []Detail `json:"details,omitempty"`
	// Message says why there is no detail.
	Message string `json:"message,omitempty"`
}

// Detail is a threshold at one point.
type Detail struct {
	Mode     string            `json:"mode"`
	Replicas int               `json:"replicas"`
	Verdict  threshold.Verdict `json:"verdict"`
	Message  string            `json:"message"`
}

// Told is what a person reads of the points: those that did not pass, and how many
// did.
func (t Threshold) Told() []string {
	if len(t.Details) == 0 {
		return []string{t.Message}
	}
	var told []string
	passed, undecided := 0, false
	for _, d := range t.Details {
		if d.Verdict == threshold.Passed && len(t.Details) > 1 {
			passed++
			continue
		}
		text := fmt.Sprintf("%s at %d: %s", d.Mode, d.Replicas, d.Message)
		undecided = undecided || d.Verdict == threshold.Undecided
		if d.Verdict != t.Verdict {
			text = string(d.Verdict) + ": " + text
		}
		told = append(told, text)
	}
	if undecided {
		told = append(told, "Undecided: the limit is inside the interval. Measure longer or more often.")
	}
	switch {
	case passed == len(t.Details):
		told = append(told, fmt.Sprintf("at all %d points", passed))
	case passed == 1:
		told = append(told, "passed at one other point")
	case passed > 1:
		told = append(told, fmt.Sprintf("passed at %d other points", passed))
	}
	return told
}

// severity of verdicts: a threshold has its points' worst.
var severity = []threshold.Verdict{threshold.Passed, threshold.Undecided, threshold.Unmeasured, threshold.Failed}

// Evaluate compares the report with thresholds and keeps what became of them.
func (r *Report) Evaluate(thresholds []threshold.Threshold) {
	r.Thresholds = nil
	for _, t := range thresholds {
		r.Thresholds = append(r.Thresholds, r.evaluate(t))
	}
}

// Judgement is what a condition of the benchmark says: whether it holds, and why.
type Judgement struct {
	Holds bool
	Why
}

// Compared says what became of the comparison with the baseline; nil where none was
// to be made.
func (r Report) Compared() *Judgement {
	c := r.Comparison
	switch {
	case r.NotCompared != nil:
		return &Judgement{false, *r.NotCompared}
	case c == nil:
		return nil
	case c.Refused:
		return &Judgement{false, Why{v1alpha1.ReasonRefused, fmt.Sprintf("spec.baselineRef: the report of %q is of other machines, quotas or load: %s; measure a baseline here, or set force", c.Baseline, strings.Join(c.Differences, "; "))}}
	}
	change, rows := c.Verdict()
	var told []string
	for _, r := range rows {
		told = append(told, r.String())
	}
	which := strings.Join(told, " | ")
	switch change {
	case Worse:
		return &Judgement{true, Why{v1alpha1.ReasonWorse, fmt.Sprintf("%d figures are worse than those of %q by more than %v: %s", len(rows), c.Baseline, c.tolerance(), which)}}
	case Better:
		return &Judgement{true, Why{v1alpha1.ReasonBetter, fmt.Sprintf("%d figures are better than those of %q by more than %v, and none is worse: %s", len(rows), c.Baseline, c.tolerance(), which)}}
	case Same:
		return &Judgement{true, Why{v1alpha1.ReasonSame, fmt.Sprintf("no figure is better or worse than that of %q by more than %v", c.Baseline, c.tolerance())}}
	case Undecided:
		return &Judgement{false, Why{v1alpha1.ReasonUndecided, fmt.Sprintf("%d figures are worse than those of %q by more than %v, but not with all of their intervals; measure longer or more often: %s", len(rows), c.Baseline, c.tolerance(), which)}}
	}
	return &Judgement{false, Why{v1alpha1.ReasonIncomparable, fmt.Sprintf("spec.baselineRef: not every figure can be compared with those of %q, and one that cannot may be worse; both need the modes, the numbers of replicas, valid points and 2 repetitions: %s", c.Baseline, which)}}
}

// Passed says whether every threshold holds and, where there is a baseline, every
// point is a result and no figure is worse, or may be: a point that is no result
// could hide that it is. A run that was aborted decides nothing, and has not passed. It is nil
// where there is nothing to pass. The condition Passed and the page's badge are this.
func (r Report) Passed() *Judgement {
	compared := r.Compared()
	if len(r.Thresholds) == 0 && compared == nil {
		return nil
	}
	if r.Aborted != nil {
		return &Judgement{false, Why{r.Aborted.Reason, "the run was aborted, so nothing is decided: " + r.Aborted.String()}}
	}
	reason, told := "", []string(nil)
	valid, all := r.ValidPoints()
	for _, t := range r.Thresholds {
		if t.Verdict != threshold.Passed {
			reason = v1alpha1.ReasonThresholdsNotPassed
			told = append(told, fmt.Sprintf("%s: %s: %s", t.Text, t.Verdict, strings.Join(t.Told(), "; ")))
		}
	}
	switch {
	case compared == nil:
	case !compared.Holds || compared.Reason == v1alpha1.ReasonWorse:
		reason, told = cmp.Or(reason, compared.Reason), append(told, compared.Message)
	case valid < all:
		reason, told = cmp.Or(reason, v1alpha1.ReasonPointsInvalid), append(told, "not every point is valid, so some cannot be compared with the baseline; the condition Valid has why")
	}
	if reason != "" {
		return &Judgement{false, Why{reason, strings.Join(told, " | ")}}
	}
	if len(r.Thresholds) == 0 {
		return &Judgement{true, Why{v1alpha1.ReasonNotWorse, "nothing is worse than the baseline"}}
	}
	message := fmt.Sprintf("each of %d thresholds holds", len(r.Thresholds))
	if compared != nil {
		message += ", and nothing is worse than the baseline"
	}
	return &Judgement{true, Why{v1alpha1.ReasonThresholdsPassed, message}}
}

func (r Report) evaluate(t threshold.Threshold) Threshold {
	result := Threshold{Text: t.String(), Verdict: threshold.Unmeasured}
	for _, p := range r.Points {
		if t.Mode != "" && p.Mode != t.Mode || t.Replicas != 0 && p.Replicas != t.Replicas {
			continue
		}
		if r.ofPeer(p) && t.Mode == "" {
			continue // another server's figures decide nothing of the gateway
		}
		if t.Metric == threshold.Efficiency && t.Replicas == 0 && p.Replicas == 1 {
			continue // 1 by definition
		}
		if m, _ := r.mode(p.Mode); t.Metric == threshold.Resumption && t.Mode == "" && !m.Resumed {
			continue // full handshakes are not meant to be resumed
		}
		d := Detail{Mode: p.Mode, Replicas: p.Replicas}
		low, high, text, reason := r.figure(t.Metric, p)
		if reason != "" {
			d.Verdict, d.Message = threshold.Unmeasured, reason
		} else {
			d.Verdict, d.Message = t.Compare(low, high), text
		}
		if len(result.Details) == 0 || slices.Index(severity, d.Verdict) > slices.Index(severity, result.Verdict) {
			result.Verdict = d.Verdict
		}
		result.Details = append(result.Details, d)
	}
	if len(result.Details) == 0 {
		result.Message = "no point that was measured is one of these; the run has " + r.extent()
	}
	return result
}

// extent of what was measured.
func (r Report) extent() string {
	var modes, replicas []string
	for _, p := range r.Points {
		modes, replicas = appendNew(modes, p.Mode), appendNew(replicas, fmt.Sprint(p.Replicas))
	}
	return fmt.Sprintf("modes %v at %v replicas", modes, replicas)
}

// figure of a point: its interval and what to say of it, or the reason why there
// is none.
func (r Report) figure(m threshold.Metric, p Point) (low, high float64, text, reason string) {
	estimate := func(e stats.Estimate, format func(float64) string) (float64, float64, string, string) {
		if e.N == 0 {
			return 0, 0, "", "nothing was measured"
		}
		if e.Interval == nil && e.N > 1 {
			return 0, 0, "", fmt.Sprintf("%s, the mean of %d repetitions, one of which had nothing: there is no interval", format(e.Value), e.N)
		}
		if e.Interval == nil {
			return 0, 0, "", fmt.Sprintf("%s, measured once: a verdict needs an interval, and an interval 2 repetitions", format(e.Value))
		}
		return e.Interval.Low, e.Interval.High, withInterval(e, format), ""
	}
	switch m {
	case threshold.Failures: // failures count wherever they happen
		if missing, of := p.missing(); missing > 0 {
			return 0, 0, "", fmt.Sprintf("%d of %d measurements have no result: what failed in them is not known; in the others %d of %d attempts did", missing, of, p.Failed(), p.Attempts)
		}
		if p.Attempts == 0 {
			return 0, 0, "", nothingAttempted
		}
		n := float64(p.Failed())
		return n, n, fmt.Sprintf("%d of %d attempts", p.Failed(), p.Attempts), ""
	case threshold.Efficiency:
		// The curve of fewer points relates to another base. A gate does not change its
		// meaning with what happened to be valid.
		if s, _ := r.scaling(p.Mode); s.Base > 1 {
			return 0, 0, "", fmt.Sprintf("the efficiency is relative to 1 replica, and that has no valid capacity: the least that has is %d", s.Base)
		}
		e, ok := r.efficiency(p.Mode, p.Replicas)
		if !ok {
			return 0, 0, "", "no efficiency: this point or the one that it relates to is not valid"
		}
		return estimate(e, share3)
	case threshold.HandshakesPerSecond, threshold.ServerCPU:
		c := p.Capacity
		if c == nil || !c.Valid {
			return 0, 0, "", invalid(c == nil, "capacity")
		}
		if m == threshold.HandshakesPerSecond {
			return estimate(c.PerSecond, figure3)
		}
		if c.ServerCPU == nil {
			return 0, 0, "", "the server's CPU time was not observed"
		}
		return estimate(*c.ServerCPU, seconds)
	}
	l := p.Latency
	if m == threshold.Resumption {
		if !p.Valid {
			return 0, 0, "", "the point is not valid"
		}
		return p.Resumption, p.Resumption, percent(p.Resumption), ""
	}
	if l == nil || !l.Valid {
		return 0, 0, "", invalid(l == nil, "latency")
	}
	switch m {
	case threshold.Min:
		return l.Min.Seconds(), l.Min.Seconds(), duration(l.Min), ""
	case threshold.Max:
		if l.Failed > 0 {
			return 0, 0, "", fmt.Sprintf("%s of the handshakes, but %d attempts failed, and how long those would have taken is not known", duration(l.Max), l.Failed)
		}
		return l.Max.Seconds(), l.Max.Seconds(), duration(l.Max), ""
	case threshold.Mean:
		return estimate(l.Mean, seconds)
	}
	q := l.Percentile(map[threshold.Metric]float64{threshold.P50: 50, threshold.P95: 95, threshold.P99: 99, threshold.P999: 99.9}[m])
	if !q.Available() {
		return 0, 0, "", q.Unavailable
	}
	if l.results() < 2 {
		return 0, 0, "", fmt.Sprintf("%s, measured once: a verdict needs an interval over 2 repetitions", duration(q.Value))
	}
	return q.Low.Seconds(), q.High.Seconds(), fmt.Sprintf("%s (%s)", duration(q.Value), between(q.Low.Seconds(), q.High.Seconds(), seconds)), ""
}

func invalid(missing bool, phase string) string {
	if missing {
		return "the " + phase + " was not measured"
	}
	return "the " + phase + " phase is not valid"
}
