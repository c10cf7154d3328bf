package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"qtls.dev/qtls/internal/bench/stats"
)

// Comparison is with an earlier report, point by point.
type Comparison struct {
	Baseline string `json:"baseline"` // its name
	Finished string `json:"finished"` // and when it was measured
	// Differences are those of machines, quotas and load. Where there are any and the
	// comparison was not forced, it is refused, and there are no rows.
	Differences []string `json:"differences,omitempty"`
	Refused     bool     `json:"refused,omitempty"`
	// Tolerance is by how much a figure may differ and be the same: 0.1 is 10 %.
	Tolerance float64 `json:"tolerance,omitempty"`
	Rows      []Row   `json:"rows,omitempty"`
	// Images that changed.
	Images []ChangedImage `json:"images,omitempty"`
}

// ChangedImage is one that differs from the baseline's. A digest is empty where
// there was no such image.
type ChangedImage struct {
	Name     string `json:"name"`
	Baseline string `json:"baseline,omitempty"`
	Now      string `json:"now,omitempty"`
}

// Row compares one figure of one point. Replicas is 0 where it is about a mode.
type Row struct {
	Mode     string `json:"mode"`
	Replicas int    `json:"replicas"`
	Figure   string `json:"figure"`
	Baseline string `json:"baseline,omitempty"`
	Now      string `json:"now,omitempty"`
	// Ratio of now to the baseline; failures and shares have none.
	Ratio  stats.Estimate `json:"ratio"`
	Change Change         `json:"change"`
	// Reason why it cannot be compared.
	Reason string `json:"reason,omitempty"`
}

// Change of a figure.
type Change string

const (
	// Better and Worse is a figure that is so, with all of its interval, by more than
	// the tolerance.
	Better Change = "Better"
	Worse  Change = "Worse"
	// Undecided is one that is worse by more than the tolerance, but part of its
	// interval is not: it was measured too short or too rarely to say.
	Undecided Change = "Undecided"
	// Same are all others, also where the interval reaches further: that of few
	// repetitions is wider than any tolerance worth having, and no run would be.
	Same         Change = "Same"
	Incomparable Change = "Incomparable"
)

// changeOf a figure, by the ratio of now to before and its interval.
func changeOf(ratio stats.Estimate, tolerance float64, moreIsBetter bool) Change {
	more, less := 1+tolerance, 1-tolerance
	switch i := ratio.Interval; {
	case i.Low > more:
		return betterIf(moreIsBetter)
	case i.High < less:
		return betterIf(!moreIsBetter)
	case moreIsBetter && ratio.Value < less, !moreIsBetter && ratio.Value > more:
		return Undecided
	}
	return Same
}

// Compare puts a baseline beside the report, whose figures may differ by the
// tolerance. It refuses one of other machines, quotas or load, unless forced: the
// difference would be theirs.
func (r *Report) Compare(baseline Report, tolerance float64, force bool) {
	c := &Comparison{Baseline: baseline.Name, Finished: baseline.Finished.UTC().Format("2006-01-02 15:04 UTC"), Tolerance: tolerance}
	c.Differences = differences(baseline, *r)
	c.Images = changedImages(baseline.Environment.Images, r.Environment.Images)
	if c.Refused = len(c.Differences) > 0 && !force; !c.Refused {
		for _, p := range r.Points {
			if r.ofPeer(p) { // it is compared within its own run
				continue
			}
			was, known := baseline.mode(p.Mode)
			is, _ := r.mode(p.Mode)
			known = known && baseline.measures(p.Mode)
			if !known || !sameMode(was, is) {
				reason := fmt.Sprintf("the baseline's mode of this name is another one: %s, and now %s", was.Describe(), is.Describe())
				if !known {
					reason = "the baseline does not have this mode"
				}
				c.Rows = appendRow(c.Rows, Row{Mode: p.Mode, Figure: "all", Change: Incomparable, Reason: reason})
				continue
			}
			before, ok := baseline.point(p.Mode, p.Replicas)
			if !ok {
				c.Rows = append(c.Rows, Row{Mode: p.Mode, Replicas: p.Replicas, Figure: "all", Change: Incomparable, Reason: "the baseline has no such point"})
				continue
			}
			if before, now := mostly(before), mostly(p); before != now && before != "" && now != "" {
				c.Rows = append(c.Rows, Row{Mode: p.Mode, Replicas: p.Replicas, Figure: "all", Change: Incomparable, Reason: fmt.Sprintf("the baseline's handshakes are of another kind: %s, and now %s", before, now)})
				continue
			}
			c.Rows = append(c.Rows, comparePoints(before, p, is, tolerance)...)
		}
		for _, gone := range r.gone(baseline) {
			c.Rows = appendRow(c.Rows, gone)
		}
	}
	r.Comparison = c
}

// Unfit says why a run that is planned could not be compared with the report, nor pass for
// that, whatever it measures: modes, numbers of replicas, quotas and load are known before,
// and its machines are not.
func (r Report) Unfit(planned Report, replicas []int, force bool) []string {
	var why []string
	if !force {
		why = append(why, differencesOfPlans(r, planned)...)
	}
	for _, m := range planned.Modes {
		was, known := r.mode(m.Name)
		switch {
		case m.Peer != "":
		case !known || !r.measures(m.Name):
			why = append(why, fmt.Sprintf("mode %q is not in it", m.Name))
		case !sameMode(was, m):
			why = append(why, fmt.Sprintf("its mode %q is another one: %s, and now %s", m.Name, was.Describe(), m.Describe()))
		default:
			for _, n := range replicas {
				if _, there := r.point(m.Name, n); !there {
					why = append(why, fmt.Sprintf("mode %q with %d replicas is not in it", m.Name, n))
				}
			}
		}
	}
	for _, p := range r.Points {
		if _, still := planned.mode(p.Mode); !r.ofPeer(p) && (!still || !slices.Contains(replicas, p.Replicas)) {
			why = append(why, fmt.Sprintf("it has mode %q with %d replicas, which would not be measured", p.Mode, p.Replicas))
		}
	}
	return why
}

// gone are the modes and the numbers of replicas that the baseline has and the report has
// not: what is not measured any more may be worse.
func (r Report) gone(baseline Report) []Row {
	var rows []Row
	for _, b := range baseline.Points {
		if _, there := r.point(b.Mode, b.Replicas); there || baseline.ofPeer(b) {
			continue
		}
		row := Row{Mode: b.Mode, Replicas: b.Replicas, Figure: "all", Change: Incomparable, Reason: "the baseline has this point, and now it is not measured"}
		if !r.measures(b.Mode) {
			row.Replicas, row.Reason = 0, "the baseline has this mode, and now it is not measured"
		}
		rows = append(rows, row)
	}
	return rows
}

// mostly is the kind of a point's handshakes: a fallback to another group may be faster,
// and is no better gateway. It is empty where a report, an older one too, does not say.
func mostly(p Point) string {
	if len(p.Kinds) == 0 {
		return ""
	}
	return describe(p.Kinds[0].Kind)
}

// appendRow leaves out what was said of the mode before.
func appendRow(rows []Row, row Row) []Row {
	if n := len(rows); n > 0 && rows[n-1] == row {
		return rows
	}
	return append(rows, row)
}

// Verdict of all figures together: Worse where one is, else Incomparable or
// Undecided where one is, for that one may be worse, or where the comparison was
// refused; else Better where one is, else Same. The rows are those that decided it.
func (c Comparison) Verdict() (Change, []Row) {
	by := map[Change][]Row{}
	for _, r := range c.Rows {
		by[r.Change] = append(by[r.Change], r)
	}
	for _, change := range []Change{Worse, Incomparable, Undecided, Better, Same} {
		if len(by[change]) > 0 {
			return change, by[change]
		}
	}
	return Incomparable, nil
}

// String says what became of a figure.
func (r Row) String() string {
	where := r.Mode
	if r.Replicas > 0 {
		where = fmt.Sprintf("%s with %d replicas", r.Mode, r.Replicas)
	}
	if r.Reason != "" {
		return fmt.Sprintf("%s: %s: %s", where, r.Figure, r.Reason)
	}
	text := fmt.Sprintf("%s: %s: %s, and now %s", where, r.Figure, r.Baseline, r.Now)
	if r.Ratio.N > 0 {
		text += fmt.Sprintf(" (%s times it)", withInterval(r.Ratio, figure3))
	}
	return text
}

// sameMode as far as it is known: older reports do not tell of the listener, the server
// name and the path.
func sameMode(a, b Mode) bool {
	same := func(a, b string) bool { return a == b || a == "" || b == "" }
	return same(a.Listener, b.Listener) && same(a.ServerName, b.ServerName) && same(a.Path, b.Path) && a.Operation == b.Operation && slices.Equal(a.Groups, b.Groups) && slices.Equal(a.SignatureSchemes, b.SignatureSchemes) && a.Resumed == b.Resumed && a.HSM == b.HSM && a.Transfer == b.Transfer && a.Peer == b.Peer
}

// differences of what figures depend on, and that is not the product.
func differences(before, now Report) []string {
	was, is := before.Environment, now.Environment
	// Machines of one kind are alike, whatever they are called and however many of them
	// the replicas happened to be on.
	kinds := func(machines []Machine) string {
		var all []string
		for _, m := range machines {
			flags := slices.Clone(m.Flags)
			slices.Sort(flags)
			all = append(all, fmt.Sprintf("%s with %d CPUs (%s)", m.CPUModel, m.CPUs, strings.Join(flags, " ")))
		}
		if len(all) == 0 {
			return "not described"
		}
		slices.Sort(all)
		return strings.Join(slices.Compact(all), ", ")
	}
	d := differ("machines", kinds(was.Machines), kinds(is.Machines))
	// A slower client looks like a slower gateway.
	if len(was.Generators) > 0 && len(is.Generators) > 0 {
		d = append(d, differ("load generator's machines", kinds(was.Generators), kinds(is.Generators))...)
	}
	return append(d, differencesOfPlans(before, now)...)
}

// differencesOfPlans are those of what is known before anything is measured.
func differencesOfPlans(before, now Report) []string {
	was, is := before.Environment, now.Environment
	quotas := func(e Environment) string {
		var all []string
		for _, q := range e.Quotas {
			all = append(all, fmt.Sprintf("%s %s CPU %s memory", q.Container, orNone(q.CPU), orNone(q.Memory)))
		}
		if len(all) == 0 {
			return "not described"
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	d := differ("quotas", quotas(was), quotas(is))
	if len(was.HSM) > 0 && len(is.HSM) > 0 {
		members := func(all []HSMMember) string {
			var text []string
			for _, m := range all {
				text = append(text, m.Name+" "+m.String())
			}
			return strings.Join(text, "; ")
		}
		d = append(d, differ("HSM", members(was.HSM), members(is.HSM))...)
	}
	// Longer or more often is more exact, and the same figure. More clients, or a
	// rate nearer to the capacity, is another one.
	load := func(l *Load) string {
		if l == nil {
			return "not described"
		}
		return fmt.Sprintf("%d clients for each replica, latency at %d %% of the capacity", l.ClientsPerReplica, l.Percent)
	}
	return append(d, differ("load", load(before.Load), load(now.Load))...)
}

func differ(what, was, is string) []string {
	if was == is {
		return nil
	}
	return []string{fmt.Sprintf("%s: %s, and now %s", what, was, is)}
}

func orNone(limit string) string {
	if limit == "" {
		return "unlimited"
	}
	return limit
}

func changedImages(was, is []Image) []ChangedImage {
	var changed []ChangedImage
	before := map[string]string{}
	for _, i := range was {
		before[i.Name] = i.Digest
	}
	for _, i := range is {
		if before[i.Name] != i.Digest {
			changed = append(changed, ChangedImage{Name: i.Name, Baseline: before[i.Name], Now: i.Digest})
		}
		delete(before, i.Name)
	}
	for _, i := range was {
		if digest, gone := before[i.Name]; gone {
			changed = append(changed, ChangedImage{Name: i.Name, Baseline: digest})
		}
	}
	return changed
}

const (
	measuredOnce     = "one of them was measured once: there is no interval"
	notObserved      = "not observed in both"
	nothingAttempted = "nothing was attempted"
)

// comparePoints has a row for each figure that the baseline has: one that is not there
// any more may be worse. What only the report has is left out, as the p99 of a gateway
// that now makes enough handshakes for one, and so is a percentile that now lacks no
// more handshakes than the tolerance.
func comparePoints(was, is Point, mode Mode, tolerance float64) []Row {
	var rows []Row
	refuse := func(figure, reason string) {
		rows = append(rows, Row{Mode: is.Mode, Replicas: is.Replicas, Figure: figure, Change: Incomparable, Reason: reason})
	}
	add := func(figure string, before, now string, ratio stats.Estimate, reason string, moreIsBetter bool) {
		row := Row{Mode: is.Mode, Replicas: is.Replicas, Figure: figure, Baseline: before, Now: now, Ratio: ratio, Reason: reason}
		switch {
		case reason != "":
			row.Change = Incomparable
		case ratio.Interval == nil:
			row.Change, row.Reason = Incomparable, measuredOnce
		default:
			row.Change = changeOf(ratio, tolerance, moreIsBetter)
		}
		rows = append(rows, row)
	}
	of := func(figure string, before, now stats.Estimate, was, is Phase, value func(Repetition) float64, format func(float64) string, moreIsBetter bool) {
		ratio, err := stats.Ratio(valuesOf(is, value), valuesOf(was, value))
		reason := ""
		if err != nil {
			ratio, reason = stats.Estimate{}, notObserved
		}
		add(figure, withInterval(before, format), withInterval(now, format), ratio, reason, moreIsBetter)
	}
	if a, b := was.Capacity, is.Capacity; a != nil && (b == nil || !a.Valid || !b.Valid) {
		refuse("capacity", "not valid in both")
	} else if a != nil {
		of("handshakes/s", a.PerSecond, b.PerSecond, a.Phase, b.Phase, func(r Repetition) float64 { return r.PerSecond }, figure3, true)
		if a.ServerCPU != nil && b.ServerCPU == nil {
			refuse("server CPU", notObserved)
		} else if a.ServerCPU != nil {
			of("server CPU", *a.ServerCPU, *b.ServerCPU, a.Phase, b.Phase, func(r Repetition) float64 { return r.ServerCPU }, seconds, false)
		}
	}
	if a, b := was.Latency, is.Latency; a != nil && (b == nil || !a.Valid || !b.Valid) {
		refuse("latency", "not valid in both")
	} else if a != nil && mode.Resumed && len(was.Kinds) == 0 && len(is.Kinds) > 0 { // reports without Kinds have those of all handshakes
		refuse("latency", "the baseline's is of full handshakes, too, and now of resumed ones only: measure the baseline again")
	} else if a != nil {
		of("mean latency", a.Mean, b.Mean, a.Phase, b.Phase, func(r Repetition) float64 { return r.Mean }, seconds, false)
		for _, p := range Percentiles {
			before, now := a.Percentile(p), b.Percentile(p)
			if !before.Available() {
				continue
			}
			if !now.Available() {
				had, has := float64(a.attempts()), float64(b.attempts())
				if has < float64(stats.SamplesFor(p)) && has >= had*(1-tolerance) {
					continue
				}
				refuse(now.Name(), strings.TrimPrefix(now.Unavailable, now.Name()+" "))
				continue
			}
			ratio, reason := percentileRatio(now, before), ""
			if a.results() < 2 || b.results() < 2 { // its interval is of one repetition's handshakes, and not over repetitions
				ratio, reason = stats.Estimate{}, measuredOnce
			}
			add(now.Name(), duration(before.Value), duration(now.Value), ratio, reason, false)
		}
	}
	share := func(figure, before, now string, change Change) {
		row := Row{Mode: is.Mode, Replicas: is.Replicas, Figure: figure, Baseline: before, Now: now, Change: change}
		switch {
		case is.Attempts == 0:
			row.Change, row.Reason = Incomparable, nothingAttempted
		case min(was.repetitions(), is.repetitions()) < 2:
			row.Change, row.Reason = Incomparable, measuredOnce
		}
		rows = append(rows, row)
	}
	if was.Attempts > 0 {
		share("failures", was.failureShare(), is.failureShare(), changeOfFailures(was, is, tolerance))
		if mode.Resumed {
			share("resumption", percent(was.Resumption), percent(is.Resumption), changeOfShare(was.Resumption, is.Resumption, tolerance))
		}
	}
	return rows
}

// changeOfFailures goes without a ratio, which there is none of where nothing failed
// before, and allows for a few by chance. They are Worse when so many of both reports'
// failures would be of now in fewer than one of 40 runs, even if attempts failed more
// often than before by the tolerance: six, where none of as many did. Better is the same
// of the baseline's. Each failure counts, also of many that have one cause.
func changeOfFailures(was, is Point, tolerance float64) Change {
	const rare = (1 - stats.Confidence) / 2
	ofNow := func(times float64) float64 { // which share of the failures, if attempts fail so many times as often
		now := times * float64(is.Attempts)
		return now / (now + float64(was.Attempts))
	}
	switch before, now := was.Failed(), is.Failed(); {
	case stats.AtLeast(now, before+now, ofNow(1+tolerance)) < rare:
		return Worse
	case stats.AtLeast(before, before+now, 1-ofNow(1-tolerance)) < rare:
		return Better
	}
	return Same
}

// changeOfShare of what is better the greater it is, and of so many handshakes that chance
// is no part of it.
func changeOfShare(was, is, tolerance float64) Change {
	switch {
	case is < was*(1-tolerance):
		return Worse
	case is > was*(1+tolerance):
		return Better
	}
	return Same
}

// attempts of which percentiles are.
func (l Latency) attempts() int64 { return l.Count + l.Failed }

func betterIf(better bool) Change {
	if better {
		return Better
	}
	return Worse
}

func valuesOf(p Phase, value func(Repetition) float64) []float64 {
	var all []float64
	for _, r := range p.Repetitions {
		if r.Valid() {
			all = append(all, value(r))
		}
	}
	return all
}

// percentileRatio has the interval that follows from both percentiles' own, on
// the logarithms: distances add up as those of independent figures do.
func percentileRatio(a, b stats.Percentile) stats.Estimate {
	log := func(p stats.Percentile) (value, below, above float64) {
		value = math.Log(p.Value.Seconds())
		return value, value - math.Log(max(p.Low.Seconds(), 1e-9)), math.Log(p.High.Seconds()) - value
	}
	if a.Value <= 0 || b.Value <= 0 {
		return stats.Estimate{}
	}
	va, belowA, aboveA := log(a)
	vb, belowB, aboveB := log(b)
	return stats.Estimate{
		Value:    math.Exp(va - vb),
		Interval: &stats.Interval{Low: math.Exp(va - vb - math.Hypot(belowA, aboveB)), High: math.Exp(va - vb + math.Hypot(aboveA, belowB))},
		N:        2,
	}
}
