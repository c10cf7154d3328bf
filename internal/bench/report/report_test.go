package report

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/stats"
	"qtls.dev/qtls/internal/bench/threshold"
	"qtls.dev/qtls/internal/bench/validity"
)

var update = flag.Bool("update", false, "write the reports in testdata anew")

func golden(t *testing.T, name, got string) string {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(want)
}

func TestMarkdown(t *testing.T) {
	got := fullReport(t).Markdown()
	if diff := cmp.Diff(golden(t, "report.md", got), got); diff != "" {
		t.Errorf("go test ./internal/bench/report -update writes it anew\n%s", diff)
	}
}

// The JSON of one of the modes, with a threshold and a comparison.
func TestJSON(t *testing.T) {
	head := madeHead()
	head.Modes = head.Modes[1:2]
	var ms []Measurement
	for _, m := range measurements() {
		if m.Mode == "hybrid-full" && m.Block <= 3 {
			ms = append(ms, m)
		}
	}
	r, err := Build(head, ms)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := threshold.Parse("p99 <= 10ms")
	if err != nil {
		t.Fatal(err)
	}
	r.Evaluate([]threshold.Threshold{parsed})
	r.Compare(baseline(), tolerance, false)
	got, err := r.JSON()
	if err != nil {
		t.Fatal(err)
	}
	now, err := Parse(got)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Parse([]byte(golden(t, "report.json", string(got))))
	if err != nil {
		t.Fatal(err)
	}
	// Processors differ in the last digits.
	if diff := cmp.Diff(want, now, cmpopts.EquateApprox(1e-9, 1e-12), cmpopts.IgnoreUnexported(*now.Scaling[0].Fit)); diff != "" {
		t.Errorf("go test ./internal/bench/report -update writes it anew\n%s", diff)
	}
}

// measured is a good measurement of one replica and 1000 handshakes that took so
// many milliseconds.
func measured(phase validity.Phase, block int, perSecond, ms float64) Measurement {
	h := &shard.Histogram{}
	for range 1000 {
		h.Record(time.Duration(ms * float64(time.Millisecond)))
	}
	idle, spare := 0.5, 0.6
	return Measurement{
		Mode: "hybrid", Replicas: 1, Phase: phase, Block: block,
		Result: &shard.Result{PerSecond: perSecond, Handshakes: []shard.Series{{Kind: shard.Kind{Group: "X25519MLKEM768"}, Count: 1000, Handshake: h}}},
		Evidence: validity.Evidence{
			Phase: phase, Window: 30 * time.Second, Common: 30 * time.Second, Handshakes: 1000, MachineIdle: &idle, Generator: validity.Generator{MachineIdle: &spare}, WantedReplicas: 1,
			Replicas: []validity.Replica{{Name: "a", Quota: 0.05, Periods: 300, ThrottledPeriods: 300, CPU: time.Second, Handshakes: 1000}},
		},
	}
}

func build(t *testing.T, ms ...Measurement) Report {
	t.Helper()
	r, err := Build(Report{Name: "test", Modes: []Mode{{Name: "hybrid"}}}, ms)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// busy makes it no result.
func busy(m Measurement) Measurement {
	idle := 0.01
	m.Evidence.MachineIdle = &idle
	return m
}

func TestAPhaseIsAResultWhenFourInFiveRepetitionsAre(t *testing.T) {
	for _, c := range []struct {
		bad, of int
		valid   bool
	}{{0, 1, true}, {1, 1, false}, {1, 2, false}, {1, 4, false}, {1, 5, true}, {2, 5, false}, {2, 10, true}} {
		var ms []Measurement
		for block := 1; block <= c.of; block++ {
			m := measured(validity.Capacity, block, 100, 1)
			if block <= c.bad {
				m = busy(measured(validity.Capacity, block, 40, 1))
			}
			ms = append(ms, m)
		}
		p := build(t, ms...).Points[0]
		if p.Valid != c.valid || p.Capacity.Valid != c.valid {
			t.Errorf("%d of %d bad: valid %v", c.bad, c.of, p.Valid)
		}
		// A valid phase's figures are of its valid repetitions only.
		want := (100*float64(c.of-c.bad) + 40*float64(c.bad)) / float64(c.of)
		if c.valid {
			want = 100
		}
		if math.Abs(p.Capacity.PerSecond.Value-want) > 1e-9 || len(p.Capacity.Repetitions) != c.of {
			t.Errorf("%d of %d bad: %+v, want %v", c.bad, c.of, p.Capacity.PerSecond, want)
		}
	}
}

func TestOneBadPhaseMakesThePointInvalid(t *testing.T) {
	p := build(t, measured(validity.Capacity, 1, 100, 1), busy(measured(validity.Latency, 1, 50, 1))).Points[0]
	if p.Valid || !p.Capacity.Valid || p.Latency.Valid {
		t.Errorf("%+v", p)
	}
	if reasons := p.Latency.Reasons(); len(reasons) != 1 || !strings.HasPrefix(reasons[0], "repetition 1: the busiest machine was idle for 1 %") {
		t.Errorf("%q", reasons)
	}
}

func TestWhatWasNotMeasuredSaysWhy(t *testing.T) {
	missing := Measurement{Mode: "hybrid", Replicas: 1, Phase: validity.Latency, Block: 1, Missing: "the pods were evicted"}
	r := build(t, measured(validity.Capacity, 1, 100, 1), missing)
	p := r.Points[0]
	if p.Valid || p.Latency.Count != 0 || p.Latency.Percentile(99).Available() {
		t.Errorf("%+v", p.Latency)
	}
	if text := r.Markdown(); !strings.Contains(text, "the pods were evicted") {
		t.Error(text)
	}
}

func TestReasonsOfSeveralRepetitionsAreSaidOnce(t *testing.T) {
	reasons := build(t, busy(measured(validity.Capacity, 1, 1, 1)), measured(validity.Capacity, 2, 1, 1), busy(measured(validity.Capacity, 3, 1, 1)), busy(measured(validity.Capacity, 4, 1, 1))).Points[0].Capacity.Reasons()
	if len(reasons) != 1 || !strings.HasSuffix(reasons[0], "(repetitions 3 and 4 too)") {
		t.Errorf("%q", reasons)
	}
}

// 10 repetitions of 1000: 9 at 1 ms, one at 20 ms. The p95 of all is 20 ms; the
// mean of the p95s would be 2.9 ms.
func TestPercentilesAreOfAllRepetitionsTogether(t *testing.T) {
	var ms []Measurement
	for block := 1; block <= 10; block++ {
		latency := 1.0
		if block == 10 {
			latency = 20
		}
		ms = append(ms, measured(validity.Latency, block, 50, latency))
	}
	l := build(t, ms...).Points[0].Latency
	if q := l.Percentile(95); !q.Available() || q.Value < 19*time.Millisecond {
		t.Errorf("p95 %+v", q)
	}
	if q := l.Percentile(99.9); q.Available() || q.Unavailable != "p99.9 needs 100000 samples: there are 10000" {
		t.Errorf("p99.9 %+v", q)
	}
	if l.Count != 10_000 || math.Abs(l.Mean.Value-0.0029) > 1e-5 || l.Mean.N != 10 {
		t.Errorf("%d, mean %+v", l.Count, l.Mean)
	}
	// By hand: nine logarithms of 1 and one of 20 have the standard error ln(20)/10, and t is
	// 2.2622 with 9 degrees of freedom: e^0.67768 = 1.9693 times less or more. On the times
	// themselves it would be 0 to 7.2 ms.
	if i := l.Mean.Interval; math.Abs(i.Low-0.0014726) > 1e-5 || math.Abs(i.High-0.0057109) > 1e-5 {
		t.Errorf("mean between %v and %v", i.Low, i.High)
	}
}

// Of 1000 handshakes 500 were followed by a request.
func TestTheBytesOfAnExchangeAreApartFromTheHandshakes(t *testing.T) {
	with, without := measured(validity.Latency, 1, 50, 1), measured(validity.Latency, 1, 50, 1)
	for _, m := range []Measurement{with, without} {
		h := &m.Result.Handshakes[0]
		h.BytesSent, h.BytesReceived, h.CertificateBytes = 1000*1700, 1000*19800, 1000*17300
	}
	h := &with.Result.Handshakes[0]
	h.Exchange, h.ExchangeBytesSent, h.ExchangeBytesReceived = &shard.Histogram{}, 500*1214, 500*5310
	for range 500 {
		h.Exchange.Record(time.Millisecond)
	}
	for name, m := range map[string]Measurement{"with": with, "without": without} {
		r := build(t, m)
		page, err := r.HTML()
		if err != nil {
			t.Fatal(err)
		}
		p := r.Points[0]
		if want := (Bytes{1700, 19800, 17300}); p.Bytes != want {
			t.Errorf("%s: %+v, want %+v", name, p.Bytes, want)
		}
		if name == "with" && (p.ExchangeBytes == nil || *p.ExchangeBytes != Bytes{Sent: 1214, Received: 5310}) || name == "without" && p.ExchangeBytes != nil {
			t.Errorf("%s: %+v", name, p.ExchangeBytes)
		}
		text, err := r.JSON()
		if err != nil || strings.Contains(string(text), `"exchangeBytes": {`) != (name == "with") {
			t.Errorf("%s: %v, %s", name, err, text)
		}
		for text, of := range map[string]string{page: "page", r.Markdown(): "Markdown"} {
			if strings.Contains(text, "5.31 kB") != (name == "with") || !strings.Contains(text, "17.3 kB") {
				t.Errorf("%s: the %s has other bytes", name, of)
			}
		}
	}
}

// As the mean of the handshakes, that of what follows them differs from one repetition to the next.
func TestTheTimeOfAnExchangeHasAnInterval(t *testing.T) {
	run := func(ms ...float64) Report {
		var all []Measurement
		for block, exchange := range ms {
			m := measured(validity.Latency, block+1, 50, 1)
			h := &shard.Histogram{}
			for range 1000 {
				h.Record(time.Duration(exchange * float64(time.Millisecond)))
			}
			m.Result.Handshakes[0].Exchange = h
			all = append(all, m)
		}
		return build(t, all...)
	}
	r := run(1, 2, 3, 4, 5)
	l := r.Points[0].Latency
	// By hand: 3 ms, and as below 2.2014 times less or more.
	if i := l.ExchangeInterval; (l.Exchange-3*time.Millisecond).Abs() > 10*time.Microsecond || i == nil || math.Abs(i.Low-0.001363) > 1e-5 || math.Abs(i.High-0.006604) > 1e-5 {
		t.Errorf("%v between %+v", l.Exchange, i)
	}
	const want, once = "3.00 ms (1.36 to 6.61 ms)", "3.00 ms"
	page, err := r.HTML()
	if err != nil || !strings.Contains(page, `3.00 ms <span class="range">1.36 to 6.61 ms</span>`) || !strings.Contains(r.Markdown(), want) {
		t.Errorf("it is not told, %v:\n%s", err, r.Markdown())
	}
	text, err := r.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if back, err := Parse(text); err != nil || !cmp.Equal(back.Points[0].Latency.ExchangeInterval, l.ExchangeInterval) {
		t.Errorf("%v in %s", err, text)
	}
	if r := run(3); r.Points[0].Latency.ExchangeInterval != nil || r.Points[0].Latency.exchange().String() != once {
		t.Errorf("of one repetition: %+v", r.Points[0].Latency)
	}
}

// The handshakes of a repetition have much in common. Five repetitions of 1000 that
// differ by the run, and in themselves not at all, are five samples and not 5000.
func TestAPercentilesIntervalKnowsHowRepetitionsDiffer(t *testing.T) {
	var ms []Measurement
	for block, latency := range []float64{1, 2, 3, 4, 5} {
		ms = append(ms, measured(validity.Latency, block+1, 50, latency))
	}
	q := build(t, ms...).Points[0].Latency.Percentile(50)
	// By hand: 3 ms; the logarithms of 1 to 5 have s = 0.6355, t = 2.7764 with 4 degrees of
	// freedom, over root 5: e^0.7891 = 2.2014 times less or more.
	for got, want := range map[time.Duration]time.Duration{q.Value: 3 * time.Millisecond, q.Low: 1363 * time.Microsecond, q.High: 6604 * time.Microsecond} {
		if (got - want).Abs() > 10*time.Microsecond {
			t.Errorf("%v, want %v: %+v", got, want, q)
		}
	}
	// Two that have little in common bound nothing, and can be compared all the same.
	r := build(t, measured(validity.Latency, 1, 50, 1), measured(validity.Latency, 2, 50, 9))
	if q := r.Points[0].Latency.Percentile(50); q.Low != time.Microsecond || q.High != shard.Longest {
		t.Errorf("of two: %+v", q)
	}
	r.Compare(r, tolerance, true)
	if _, err := r.JSON(); err != nil {
		t.Error(err)
	}
	for text, c := range map[string]struct {
		ms   []Measurement
		want threshold.Verdict
	}{
		"p50 <= 4ms":  {ms, threshold.Undecided},
		"p50 <= 7ms":  {ms, threshold.Passed},
		"p50 <= 10ms": {ms[:1], threshold.Unmeasured}, // once
		"p50 >= 10ms": {ms, threshold.Failed},
	} {
		parsed, err := threshold.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		r := build(t, c.ms...)
		r.Evaluate([]threshold.Threshold{parsed})
		if got := r.Thresholds[0]; got.Verdict != c.want {
			t.Errorf("%s: %+v, want %s", text, got, c.want)
		}
	}
}

// One in twenty-five had no ticket, and its full handshake took ten times as long.
func TestALatencyOfAModeThatResumesIsOfResumedHandshakes(t *testing.T) {
	var ms []Measurement
	for block := 1; block <= 10; block++ {
		for _, phase := range []validity.Phase{validity.Capacity, validity.Latency} {
			m := measured(phase, block, 50, 1)
			full := measured(phase, block, 50, 10).Result.Handshakes[0]
			full.Count, full.Handshake, full.BytesReceived = 40, &shard.Histogram{}, 40*19800
			for range 40 {
				full.Handshake.Record(10 * time.Millisecond)
			}
			m.Result.Handshakes[0].Resumed, m.Result.Handshakes[0].BytesReceived = true, 1000*1400
			full.SignatureAlgorithm = "mldsa65"
			m.Result.Handshakes = append(m.Result.Handshakes, full)
			ms = append(ms, m)
		}
	}
	r, err := Build(Report{Modes: []Mode{{Name: "hybrid", Resumed: true}}}, ms)
	if err != nil {
		t.Fatal(err)
	}
	p := r.Points[0]
	if l := p.Latency; l.Count != 10_000 || l.Max/time.Millisecond != 1 || l.Percentile(99).Value/time.Millisecond != 1 || math.Abs(l.Mean.Value-0.001) > 1e-5 || math.Abs(l.Repetitions[0].Mean-0.001) > 1e-5 {
		t.Errorf("%+v", l)
	}
	if p.Bytes.Received != 1400 || p.Attempts != 20_800 || math.Abs(p.Resumption-1/1.04) > 1e-9 {
		t.Errorf("%+v", p)
	}
	if want := []Kind{{shard.Kind{Group: "X25519MLKEM768", Resumed: true}, 20_000}, {shard.Kind{Group: "X25519MLKEM768", SignatureAlgorithm: "mldsa65"}, 800}}; !slices.Equal(p.Kinds, want) {
		t.Errorf("%+v, want %+v", p.Kinds, want)
	}
	if text := r.Markdown(); !strings.Contains(text, "negotiated: 96.2 % X25519MLKEM768, resumed; 3.8 % X25519MLKEM768, mldsa65.") {
		t.Error(text)
	}
}

// A gateway that falls back from a hybrid group is faster, and not better.
func TestHandshakesOfAnotherKindAreIncomparable(t *testing.T) {
	before, now := compared(t, 100, 2), compared(t, 150, 1)
	now.Points[0].Kinds = []Kind{{shard.Kind{Group: "x25519"}, 9000}, {shard.Kind{Group: "X25519MLKEM768"}, 1000}}
	now.Compare(before, tolerance, false)
	const want = "the baseline's handshakes are of another kind: X25519MLKEM768, and now x25519"
	if change, rows := now.Comparison.Verdict(); change != Incomparable || len(rows) != 1 || rows[0].Reason != want {
		t.Errorf("%s for %+v, want %q", change, rows, want)
	}
	before.Points[0].Kinds = nil // an older report
	if now.Compare(before, tolerance, false); len(now.Comparison.Rows) < 3 {
		t.Errorf("%+v", now.Comparison.Rows)
	}
}

// Reports that do not say what was negotiated have, in a mode that resumes, the latency
// of the full handshakes, too.
func TestALatencyOfFullHandshakesIsNotComparedWithThatOfResumedOnes(t *testing.T) {
	for _, resumed := range []bool{true, false} {
		run := func() Report {
			r := compared(t, 100, 2)
			r.Modes[0].Resumed = resumed
			return r
		}
		before, now := run(), run()
		before.Points[0].Kinds = nil
		now.Compare(before, tolerance, false)
		change, rows := now.Comparison.Verdict()
		if resumed && (change != Incomparable || len(rows) != 1 || rows[0].Figure != "latency" || !strings.Contains(rows[0].Reason, "measure the baseline again")) {
			t.Errorf("a mode that resumes: %s for %+v", change, rows)
		}
		if !resumed && change != Same {
			t.Errorf("a mode of full handshakes: %s for %+v", change, rows)
		}
		if !slices.ContainsFunc(now.Comparison.Rows, func(r Row) bool { return r.Figure == "handshakes/s" && r.Change == Same }) {
			t.Errorf("no capacity in %+v", now.Comparison.Rows)
		}
		now.Points[0].Kinds = nil
		if now.Compare(before, tolerance, false); slices.ContainsFunc(now.Comparison.Rows, func(r Row) bool { return r.Figure == "latency" }) {
			t.Errorf("two older ones: %+v", now.Comparison.Rows)
		}
	}
}

// A server that accepts late is slow before the handshake begins.
func TestConnectingIsBesideTheHandshake(t *testing.T) {
	m := measured(validity.Latency, 1, 50, 2)
	if p := build(t, m).Points[0]; p.Latency.Connect != nil {
		t.Errorf("of a generator that does not tell: %+v", p.Latency.Connect)
	}
	m.Result.Handshakes[0].Connect = &shard.Histogram{}
	for range 999 {
		m.Result.Handshakes[0].Connect.Record(100 * time.Microsecond)
	}
	m.Result.Handshakes[0].Connect.Record(time.Second) // its SYN was sent again
	r := build(t, m)
	l := r.Points[0].Latency
	if l.Connect == nil || (l.Connect.Mean-1100*time.Microsecond).Abs() > 2*time.Microsecond || l.Connect.Max < time.Second || l.Max > 3*time.Millisecond {
		t.Errorf("%+v, handshakes up to %v", l.Connect, l.Max)
	}
	if page, err := r.HTML(); err != nil || !strings.Contains(page, "max 1.00 s") || !strings.Contains(r.Markdown(), "1.10 ms (max 1.00 s)") {
		t.Errorf("it is not told, %v", err)
	}
}

// What a stall hides is in no histogram: each attempt that failed would have been a slow
// one.
func TestAttemptsThatFailedAreLongerThanAnyHandshake(t *testing.T) {
	run := func(failures ...int64) Report {
		var ms []Measurement
		for block, n := range failures {
			m := measured(validity.Latency, block+1, 50, 1)
			h := m.Result.Handshakes[0].Handshake
			for range 9000 - n { // of 11,000 attempts
				h.Record(time.Millisecond)
			}
			for range 1000 {
				h.Record(2 * time.Millisecond)
			}
			m.Result.Handshakes[0].Count, m.Result.Handshakes[0].Connect = h.Count(), h
			m.Result.Failures = map[shard.Failure]int64{shard.Timeout: n}
			ms = append(ms, m)
		}
		return build(t, ms...)
	}
	for name, c := range map[string]struct {
		r        Report
		p95, p99 string
		max      threshold.Verdict
	}{
		"none failed":               {run(0, 0), "", "", threshold.Passed},
		"some failed":               {run(20, 20), "", "", threshold.Unmeasured},
		"a hundredth failed":        {run(130, 130), "", "p99, or the end of its interval, lies among the attempts that failed: 260 of 22000 did", threshold.Unmeasured},
		"a hundredth failed of one": {run(10, 130), "", "p99 of repetition 2 lies among its attempts that failed: 130", threshold.Unmeasured},
	} {
		l := c.r.Points[0].Latency
		for p, want := range map[float64]string{95: c.p95, 99: c.p99} {
			if got := l.Percentile(p); got.Unavailable != want || want == "" && got.Value/time.Millisecond != 2 {
				t.Errorf("%s: %+v, want unavailable %q", name, got, want)
			}
		}
		parsed, err := threshold.Parse("max <= 1s")
		if err != nil {
			t.Fatal(err)
		}
		c.r.Evaluate([]threshold.Threshold{parsed})
		if got := c.r.Thresholds[0]; got.Verdict != c.max {
			t.Errorf("%s: %+v, want %s", name, got, c.max)
		}
		if x := c.r.row(c.r.Points[0]); (x.Max == none) != (c.max == threshold.Unmeasured) || (x.P[2].Range == "among those that failed") != (c.p99 != "") {
			t.Errorf("%s: max %s, p99 %+v", name, x.Max, x.P[2])
		} else if (x.Connect.Range == "") != (x.Max == none) || x.Connect.Text == none {
			t.Errorf("%s: max %s, and TCP's connect %+v", name, x.Max, x.Connect)
		}
		chart := c.r.latencyChart()
		if end, legend := chart.Rows[0].Line[1], chart.Legend[4].Text; (end == "360") != (c.max == threshold.Unmeasured) || strings.Contains(legend, "attempts failed") != (end == "360") {
			t.Errorf("%s: the line ends at %s, and the legend says %q", name, end, legend)
		}
	}
}

func TestMeasurementsThatDoNotFit(t *testing.T) {
	other := measured(validity.Capacity, 1, 1, 1)
	other.Mode = "other"
	nothing := measured(validity.Capacity, 1, 1, 1)
	nothing.Result = nil
	phase := measured("Warm-up", 1, 1, 1)
	for want, ms := range map[string][]Measurement{
		`mode "other"`:               {other},
		"neither a result":           {nothing},
		`phase "Warm-up"`:            {phase},
		"in block 0":                 {measured(validity.Capacity, 0, 1, 1)},
		"phase Capacity has block 1": {measured(validity.Capacity, 1, 1, 1), measured(validity.Capacity, 1, 1, 1)},
	} {
		if _, err := Build(Report{Modes: []Mode{{Name: "hybrid"}}}, ms); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	if _, err := Build(Report{Modes: []Mode{{Name: "a"}, {Name: "a"}}}, nil); err == nil {
		t.Error("two modes of one name")
	}
}

// The order in which points are added does not matter, only that each is whole.
func TestAReportIsBuiltPointByPoint(t *testing.T) {
	build := func(points ...[]Measurement) (Report, error) {
		b, err := NewBuilder(madeHead())
		if err != nil {
			return Report{}, err
		}
		for _, p := range points {
			if err := b.Add(p); err != nil {
				return Report{}, err
			}
		}
		return b.Report(), nil
	}
	var points [][]Measurement
	for _, mode := range madeModes {
		for _, n := range []int{16, 2, 1, 8, 4} {
			points = append(points, slices.DeleteFunc(slices.Clone(measurements()), func(m Measurement) bool { return m.Mode != mode.mode.Name || m.Replicas != n }))
		}
	}
	slices.Reverse(points)
	got, err := build(points...)
	if err != nil {
		t.Fatal(err)
	}
	want, err := Build(madeHead(), measurements())
	if err != nil {
		t.Fatal(err)
	}
	// Blocks are paired in any order, and sums differ by it in the last digit.
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(1e-9, 1e-12), cmpopts.IgnoreUnexported(stats.USL{})); diff != "" {
		t.Error(diff)
	}
	some := points[len(points)-1]
	if _, err := build(some[:2], some[2:]); err == nil || !strings.Contains(err.Error(), "all measurements of a point at once") {
		t.Errorf("a point in two parts: %v", err)
	}
	if _, err := build(slices.Concat(some, points[0])); err == nil || !strings.Contains(err.Error(), "want those of one point") {
		t.Errorf("two points as one: %v", err)
	}
}

func TestOnlyValidPointsMakeTheCurve(t *testing.T) {
	r := fullReport(t)
	s, _ := r.scaling("pqc-only") // 16 replicas left the machine no idle time
	if s.Fit == nil || s.Fit.LargestReplicas != 8 || len(s.Efficiencies) != 4 {
		t.Errorf("%+v", s)
	}
	if s.Predictions[0].Replicas != 16 || s.Predictions[1].Replicas != 32 {
		t.Errorf("%+v", s.Predictions)
	}
	if !strings.Contains(s.Label, "quota of 50m CPU, on one machine") {
		t.Errorf("label %q", s.Label)
	}
	// Where another limit takes over, there is no law of both.
	s, _ = r.scaling("hybrid-hsm")
	if want := "No fit: the law is of one limit, and by the number of replicas that was the replicas' CPU quota with 1, 2, 4, the HSM with 8, 16."; s.Law() != want || s.Predicted() != "" || len(s.Efficiencies) != 5 {
		t.Errorf("%q, %q, %+v, want %q", s.Law(), s.Predicted(), s.Efficiencies, want)
	}
	if !strings.Contains(s.Note, "the HSM was the limit") {
		t.Errorf("note %q", s.Note)
	}
}

func TestTheLawThatMadeTheFiguresIsInsideItsIntervals(t *testing.T) {
	head := madeHead()
	head.Modes = slices.DeleteFunc(head.Modes, func(m Mode) bool { return m.Name != "hybrid-hsm" })
	var ms []Measurement
	for _, m := range measurements() {
		if m.Mode != "hybrid-hsm" {
			continue
		}
		m.Evidence.HSM, m.Evidence.Limit = nil, validity.CPUQuota // which it is with each number of replicas
		m.Evidence.Replicas = slices.Clone(m.Evidence.Replicas)
		for i := range m.Evidence.Replicas {
			m.Evidence.Replicas[i].ThrottledPeriods = m.Evidence.Replicas[i].Periods
		}
		ms = append(ms, m)
	}
	r, err := Build(head, ms)
	if err != nil {
		t.Fatal(err)
	}
	s := r.Scaling[0]
	if i := s.Fit.KappaInterval; i.Low > 0.012 || i.High < 0.012 || s.Peak < 7 || s.Peak > 11 {
		t.Errorf("κ in %+v, peak %v", i, s.Peak)
	}
	if !strings.Contains(s.Law(), "The law has its peak at ") || s.Predicted() == "" {
		t.Errorf("%q, %q", s.Law(), s.Predicted())
	}
}

func TestBottlenecksOfPointsAreNamed(t *testing.T) {
	r := fullReport(t)
	for _, c := range []struct {
		mode     string
		replicas int
		want     validity.Bottleneck
	}{{"hybrid-full", 16, validity.CPUQuota}, {"hybrid-hsm", 16, validity.HSM}, {"pqc-only", 16, validity.Machine}} {
		p, _ := r.point(c.mode, c.replicas)
		if f := p.Capacity.Bottleneck; f.Bottleneck != c.want || len(f.Evidence) == 0 {
			t.Errorf("%s at %d: %+v, want %s", c.mode, c.replicas, f, c.want)
		}
	}
}

// A repetition of which nothing came has no logarithm, and several are not one.
func TestSeveralRepetitionsWithoutAnIntervalAreNotCalledOne(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    string
	}{{[]float64{5}, "measured once"}, {[]float64{5, 0, 4}, "no interval"}} {
		e, err := stats.Amount(c.samples)
		if err != nil {
			t.Fatal(err)
		}
		if got := estimate(e, figure3); got.Range != c.want {
			t.Errorf("%v: %q, want %q", c.samples, got.Range, c.want)
		}
	}
}

func TestACurveIsLabelledWithWhatLimitedIt(t *testing.T) {
	for limit, want := range map[validity.Bottleneck]string{
		validity.CPUQuota: "",
		validity.HSM:      "At some points the HSM was the limit: there the curve is the HSM's.",
		validity.Network:  "At some points the network was the limit: there the curve is the network's.",
	} {
		point := Point{Mode: "hybrid", Replicas: 1, Capacity: &Capacity{Bottleneck: validity.Finding{Bottleneck: limit}}}
		point.Capacity.Valid = true
		if _, note := label(Report{Points: []Point{point}}, "hybrid"); note != want {
			t.Errorf("%s: %q, want %q", limit, note, want)
		}
	}
}

// Nobody observes the quotas of other servers' replicas, which have the gateway's.
func TestAQuotaThatWasNotObservedIsNotDenied(t *testing.T) {
	point := Point{Mode: "hybrid.plain", Replicas: 1, Capacity: &Capacity{}}
	point.Capacity.Valid = true
	r := Report{Points: []Point{point}}
	if text, _ := label(r, "hybrid.plain"); text != "Whether the replicas have a CPU quota was not observed; they are on machines that are not described." {
		t.Errorf("%q", text)
	}
	r.Points[0].Capacity.Quota = 0.4
	if text, _ := label(r, "hybrid.plain"); !strings.HasPrefix(text, "Each replica has a quota of 400m CPU") {
		t.Errorf("%q", text)
	}
}

func TestAWideIntervalDoesNotFlattenTheChart(t *testing.T) {
	e := stats.Estimate{Value: 100, N: 2, Interval: &stats.Interval{Low: 1, High: 10000}}
	r := Report{Modes: []Mode{{Name: "hybrid"}}, Points: []Point{{Mode: "hybrid", Replicas: 1, Capacity: &Capacity{PerSecond: e}}}}
	c, ok := r.scalingChart("hybrid")
	if !ok || len(c.Points) != 1 || len(c.YTicks) == 0 {
		t.Fatalf("%+v", c)
	}
	if last := c.YTicks[len(c.YTicks)-1].Text; last != "200" && last != "250" {
		t.Errorf("the axis reaches up to %s for a figure of 100", last)
	}
	// Nor does it look as if it ended there: it has an arrow, where others have a line across.
	const arrow, across = "m-3 4l3 -4l3 4", "m-3 0h6"
	ends := func(r Report) (arrows, lines int) {
		t.Helper()
		page, err := r.HTML()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(page, arrow), strings.Count(page, across)
	}
	if arrows, lines := ends(r); !c.Points[0].Cut || arrows != 1 || lines != 1 {
		t.Errorf("an interval that goes on above the chart has %d arrows and %d ends: %+v", arrows, lines, c.Points[0])
	}
	e.Interval = &stats.Interval{Low: 80, High: 125}
	r.Points[0].Capacity.PerSecond = e
	if arrows, lines := ends(r); arrows != 0 || lines != 2 {
		t.Errorf("one that ends in the chart has %d arrows and %d ends", arrows, lines)
	}
}

func TestPeersAreComparedInBlocks(t *testing.T) {
	peers := fullReport(t).Peers
	if len(peers) != 3 {
		t.Fatalf("%+v", peers)
	}
	for _, p := range peers { // made as 41 to 37
		if p.Peer != "nginx 1.28" || p.Ratio.N != 5 || math.Abs(p.Ratio.Value-41.0/37) > 0.04 {
			t.Errorf("%+v", p)
		}
	}
}

// What there is no ratio of is told, with the reason: that of the other server, or else
// the gateway's.
func TestAComparisonWithoutARatioSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*Report)
		says  string
	}{
		"the server was not measured": {func(*Report) {}, "PeerNotReady: peer \"nginx\""},
		"the gateway has no result": {func(r *Report) {
			for i := range r.Points {
				if p := &r.Points[i]; p.Mode == "nginx-hybrid" && p.Replicas == 8 {
					p.Capacity = &Capacity{Phase: Phase{Valid: true}}
				}
			}
		}, "the gateway has no valid capacity in the same repetitions"},
	} {
		r := fullReport(t)
		r.Points = slices.Clone(r.Points)
		c.spoil(&r)
		servers := r.servers()
		if len(servers) != 4 {
			t.Fatalf("%s: %+v", name, servers)
		}
		for _, s := range servers {
			without := s.Replicas == 8
			if (s.Ratio.Text == none) != without || (s.Why != "") != without || !without && (s.Gateway.Text == none || s.Other.Text == none) {
				t.Errorf("%s: %+v", name, s)
			}
			if without && !strings.Contains(s.Why, c.says) {
				t.Errorf("%s: %q, want %q", name, s.Why, c.says)
			}
		}
	}
}

// A server that is slower than in the baseline, or is no result, is nothing that the
// gateway did.
func TestAnotherServerDecidesNothingOfTheGateway(t *testing.T) {
	run := func(theirs float64, missing string) Report {
		r := Report{Name: "run", Modes: []Mode{{Name: "hybrid"}, {Name: "hybrid.plain", Peer: "plain", PeerOf: "hybrid"}}}
		var ms []Measurement
		for block := 1; block <= 5; block++ {
			for _, phase := range []validity.Phase{validity.Capacity, validity.Latency} {
				its := measured(phase, block, theirs, 1)
				if missing != "" {
					its = Measurement{Replicas: 1, Phase: phase, Block: block, Missing: missing}
				}
				its.Mode = "hybrid.plain"
				ms = append(ms, measured(phase, block, 100, 1), its)
			}
		}
		built, err := Build(r, ms)
		if err != nil {
			t.Fatal(err)
		}
		return built
	}
	before := run(100, "")
	for name, now := range map[string]Report{"slower": run(50, ""), "left out": run(100, "PeerNotReady: it does not run")} {
		now.Compare(before, tolerance, false)
		if change, rows := now.Comparison.Verdict(); change != Same || !now.Passed().Holds {
			t.Errorf("%s: %s for %+v, passed %+v", name, change, rows, now.Passed())
		}
		if !strings.HasPrefix(now.Headline(), "All 1 points are valid; ") {
			t.Errorf("%s: %s", name, now.Headline())
		}
	}
	if now := run(50, ""); len(now.Findings()) != 1 || now.Findings()[0] != "hybrid: with one replica the gateway makes 2.000 (2.000 to 2.000) times the handshakes of plain." {
		t.Errorf("%q", now.Findings())
	}
}

func TestThresholdsDecide(t *testing.T) {
	for _, c := range []struct {
		text string
		want threshold.Verdict
		says string
	}{
		{"hybrid-full/handshakesPerSecond@1 >= 20", threshold.Passed, "hybrid-full at 1: 4"},
		{"hybrid-full/handshakesPerSecond@1 >= 60", threshold.Failed, "hybrid-full at 1: 4"},
		{"hybrid-full/p99@8 <= 10ms", threshold.Passed, "hybrid-full at 8: "},
		{"hybrid-full/p99@8 <= 1ms", threshold.Failed, "hybrid-full at 8: "},
		{"hybrid-full/p99.9@8 <= 1s", threshold.Unmeasured, "needs 100000 samples"},
		{"hybrid-resumed/min@1 > 1us", threshold.Passed, ""},
		{"hybrid-resumed/max@1 < 100us", threshold.Failed, ""},
		{"hybrid-resumed/mean <= 2ms", threshold.Passed, "at all 5 points"},
		{"mean <= 2ms", threshold.Failed, "passed at 5 other points"},
		{"classical-full/serverCPU <= 2ms", threshold.Passed, "at all 5 points"},
		{"classical-full/failures == 0", threshold.Passed, "at all 5 points"},
		{"failures == 0", threshold.Failed, "hybrid-full at 4: 2 of "},
		{"pqc-only/efficiency@16 >= 0.5", threshold.Unmeasured, "not valid"},
		{"pqc-only/p50@16 <= 1s", threshold.Unmeasured, "the latency phase is not valid"},
		{"resumption >= 0.95", threshold.Passed, "at all 5 points"},
		{"hybrid-full/resumption >= 0.95", threshold.Failed, ""},
		{"absent/p99 <= 5ms", threshold.Unmeasured, "no point that was measured is one of these; the run has modes [classical-full"},
		{"p99@32 <= 5ms", threshold.Unmeasured, "at [1 2 4 8 16] replicas"},
	} {
		parsed, err := threshold.Parse(c.text)
		if err != nil {
			t.Fatal(err)
		}
		r := fullReport(t)
		r.Comparison = nil // which decides, too
		r.Evaluate([]threshold.Threshold{parsed})
		got := r.Thresholds[0]
		if got.Verdict != c.want || !strings.Contains(strings.Join(got.Told(), "; "), c.says) || r.Passed().Holds != (c.want == threshold.Passed) {
			t.Errorf("%s: %s, %q; want %s with %q", c.text, got.Verdict, got.Told(), c.want, c.says)
		}
	}
}

func TestOneRepetitionDecidesNothing(t *testing.T) {
	r := build(t, measured(validity.Capacity, 1, 100, 1))
	parsed, err := threshold.Parse("handshakesPerSecond >= 1")
	if err != nil {
		t.Fatal(err)
	}
	r.Evaluate([]threshold.Threshold{parsed})
	if got := r.Thresholds[0]; got.Verdict != threshold.Unmeasured || !strings.Contains(got.Details[0].Message, "measured once") {
		t.Errorf("%+v", got)
	}
}

// A gate is not green because nothing could fail.
func TestFailuresAreUnmeasuredWhereMeasurementsAreMissing(t *testing.T) {
	none := measured(validity.Latency, 1, 0, 1)
	none.Result.Handshakes = nil
	missing := Measurement{Mode: "hybrid", Replicas: 1, Phase: validity.Latency, Block: 2, Missing: "the pods were evicted"}
	capacity, latency := measured(validity.Capacity, 1, 100, 1), measured(validity.Latency, 1, 50, 1)
	failed := measured(validity.Capacity, 1, 100, 1)
	failed.Result.Failures = map[shard.Failure]int64{shard.Timeout: 3}
	for name, c := range map[string]struct {
		ms   []Measurement
		want threshold.Verdict
		says string
	}{
		"everything was measured":       {[]Measurement{capacity, latency}, threshold.Passed, "0 of 2000 attempts"},
		"something failed":              {[]Measurement{failed, latency}, threshold.Failed, "3 of 2003 attempts"},
		"nothing was attempted":         {[]Measurement{none}, threshold.Unmeasured, "nothing was attempted"},
		"one measurement has no result": {[]Measurement{failed, latency, missing}, threshold.Unmeasured, "1 of 3 measurements have no result: what failed in them is not known; in the others 3 of 2003 attempts did"},
		"none has a result":             {[]Measurement{missing}, threshold.Unmeasured, "1 of 1 measurements have no result"},
	} {
		parsed, err := threshold.Parse("failures == 0")
		if err != nil {
			t.Fatal(err)
		}
		r := build(t, c.ms...)
		r.Evaluate([]threshold.Threshold{parsed})
		if got := r.Thresholds[0]; got.Verdict != c.want || !strings.Contains(got.Details[0].Message, c.says) || r.Passed().Holds != (c.want == threshold.Passed) {
			t.Errorf("%s: %+v, want %s saying %q", name, got, c.want, c.says)
		}
	}
}

func TestRepetitionsThatWereNeverMadeCountAsPlanned(t *testing.T) {
	ms := []Measurement{measured(validity.Capacity, 1, 100, 1), measured(validity.Capacity, 2, 100, 1)}
	if p := build(t, ms...).Points[0]; !p.Valid {
		t.Errorf("2 of 2: %+v", p)
	}
	ms = append(ms, Measurement{Mode: "hybrid", Replicas: 1, Phase: validity.Capacity, Block: 3, Missing: "not measured"})
	if p := build(t, ms...).Points[0]; p.Valid || p.Capacity.Valid || !p.Capacity.Repetitions[2].Missing || p.Capacity.PerSecond.N != 2 {
		t.Errorf("2 of 3: %+v", p)
	}
}

func TestAnAbortedRunHasNotPassed(t *testing.T) {
	r := build(t, measured(validity.Capacity, 1, 100, 1), measured(validity.Latency, 1, 50, 1))
	parsed, err := threshold.Parse("failures == 0")
	if err != nil {
		t.Fatal(err)
	}
	r.Evaluate([]threshold.Threshold{parsed})
	if !r.Passed().Holds {
		t.Errorf("before: %+v", r.Passed())
	}
	r.Aborted = &Why{"DeadlineExceeded", "it took too long"}
	if got, want := *r.Passed(), (Judgement{false, Why{"DeadlineExceeded", "the run was aborted, so nothing is decided: DeadlineExceeded: it took too long"}}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Without a valid capacity of 1 replica the curve relates to more, and a gate that
// took that would pass a gateway that scales badly up to there.
func TestAnEfficiencyIsRelativeToOneReplicaOrUnmeasured(t *testing.T) {
	run := func(change func(Measurement) Measurement) Report {
		var ms []Measurement
		for block := 1; block <= 3; block++ {
			for replicas, perSecond := range map[int]float64{1: 100, 2: 100, 4: 200} {
				m := measured(validity.Capacity, block, perSecond*(1+0.001*float64(block)), 1)
				m.Replicas, m.Evidence.WantedReplicas = replicas, replicas
				for len(m.Evidence.Replicas) < replicas {
					m.Evidence.Replicas = append(m.Evidence.Replicas, m.Evidence.Replicas[0])
				}
				if replicas == 1 {
					m = change(m)
				}
				ms = append(ms, m)
			}
		}
		return build(t, ms...)
	}
	same := func(m Measurement) Measurement { return m }
	for text, c := range map[string]struct {
		r    Report
		want threshold.Verdict
	}{
		"efficiency@4 >= 0.95": {run(same), threshold.Failed},
		"efficiency@2 >= 0.4":  {run(same), threshold.Passed},
		"efficiency@4 >= 0.94": {run(busy), threshold.Unmeasured},
		"efficiency >= 0.93":   {run(busy), threshold.Unmeasured},
		"efficiency@2 >= 0.92": {run(busy), threshold.Unmeasured}, // the base of what is valid
	} {
		parsed, err := threshold.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		c.r.Evaluate([]threshold.Threshold{parsed})
		got := c.r.Thresholds[0]
		if got.Verdict != c.want {
			t.Errorf("%s: %+v, want %s", text, got, c.want)
		}
		if c.want == threshold.Unmeasured && !strings.Contains(strings.Join(got.Told(), " "), "relative to 1 replica, and that has no valid capacity: the least that has is 2") {
			t.Errorf("%s: %q", text, got.Told())
		}
	}
}

// Where one replica has no valid capacity, what is relative to more says so wherever it
// stands.
func TestAnEfficiencyThatIsRelativeToMoreReplicasSaysSo(t *testing.T) {
	run := func(least int) Report {
		var ms []Measurement
		for block := 1; block <= 3; block++ {
			for replicas := least; replicas <= 4; replicas *= 2 {
				m := measured(validity.Capacity, block, 50*float64(replicas), 1)
				m.Replicas, m.Evidence.WantedReplicas = replicas, replicas
				for len(m.Evidence.Replicas) < replicas {
					m.Evidence.Replicas = append(m.Evidence.Replicas, m.Evidence.Replicas[0])
				}
				ms = append(ms, m)
			}
		}
		return build(t, ms...)
	}
	for least, c := range map[int]struct{ markdown, finding, column, ideal string }{
		1: {"| efficiency |", "handshakes of one replica, efficiency 1.000 (", ">Efficiency<", ""},
		2: {"| efficiency relative to 2 replicas |", "handshakes of 2 replicas, efficiency relative to 2 replicas 1.000 (", ">Efficiency relative to 2 replicas<", "The ideal is relative to 2 replicas."},
	} {
		r := run(least)
		page, err := r.HTML()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{c.column, c.finding, c.ideal} {
			if !strings.Contains(page, want) {
				t.Errorf("from %d: the page does not say %q", least, want)
			}
		}
		if text := r.Markdown(); !strings.Contains(text, c.markdown) || !strings.Contains(text, c.finding) || least == 1 && strings.Contains(text+page, "relative to") {
			t.Errorf("from %d: %s", least, text)
		}
	}
}

// Without thresholds and a baseline a run neither passes nor fails: it has no
// condition Passed, and its page no badge.
func TestARunThatIsToDecideNothingHasNoJudgement(t *testing.T) {
	r := build(t, measured(validity.Capacity, 1, 100, 1))
	page, err := r.HTML()
	if err != nil {
		t.Fatal(err)
	}
	if r.Passed() != nil || r.Compared() != nil || strings.Contains(page, "assed</strong>") {
		t.Errorf("%+v, %+v, or a badge", r.Passed(), r.Compared())
	}
}

// compared is a report of five repetitions of both phases.
func compared(t *testing.T, perSecond, ms float64) Report {
	t.Helper()
	var all []Measurement
	for block := 1; block <= 5; block++ {
		wobble := 1 + 0.01*float64(block%3)
		all = append(all, measured(validity.Capacity, block, perSecond*wobble, ms), measured(validity.Latency, block, perSecond/2, ms*wobble))
	}
	r := build(t, all...)
	r.Environment = Environment{Machines: []Machine{{Name: "n1", CPUModel: "EPYC", CPUs: 2, Flags: []string{"avx2", "aes"}}}, Quotas: []Quota{{Container: "haproxy", CPU: "50m"}}, Images: []Image{{"gateway", "sha256:1"}, {"k6", "sha256:2"}}}
	return r
}

func TestComparisonTellsBetterFromWorse(t *testing.T) {
	for _, c := range []struct {
		perSecond, ms float64
		want          map[string]Change
	}{
		{100, 2, map[string]Change{"handshakes/s": Same, "mean latency": Same, "p50": Same}},
		{110, 1, map[string]Change{"handshakes/s": Better, "mean latency": Better, "p50": Better}},
		{90, 4, map[string]Change{"handshakes/s": Worse, "mean latency": Worse, "p50": Worse}},
	} {
		r := compared(t, c.perSecond, c.ms)
		r.Compare(compared(t, 100, 2), tolerance, false)
		for figure, want := range c.want {
			i := slices.IndexFunc(r.Comparison.Rows, func(r Row) bool { return r.Figure == figure })
			if i < 0 || r.Comparison.Rows[i].Change != want {
				t.Errorf("%v/s and %v ms: %s is %+v, want %s", c.perSecond, c.ms, figure, r.Comparison.Rows, want)
			}
		}
		if change, _ := r.Comparison.Verdict(); change != c.want["p50"] {
			t.Errorf("%v/s: the verdict is %s", c.perSecond, change)
		}
	}
}

// Of two repetitions an interval is wide, and half the time more is not worse with all
// of it. It is no pass either.
func TestAFigureThatMayBeWorseIsUndecided(t *testing.T) {
	run := func(ms ...float64) Report {
		var all []Measurement
		for block, latency := range ms {
			all = append(all, measured(validity.Capacity, block+1, 1000/latency, 1), measured(validity.Latency, block+1, 50, latency))
		}
		return build(t, all...)
	}
	for name, c := range map[string]struct {
		now    []float64
		change Change
		reason string
	}{
		"half as much again":                      {[]float64{7, 11}, Undecided, "Undecided"},
		"half as much again, measured often":      {[]float64{8, 8, 8, 9, 9, 9}, Worse, "Worse"},
		"an eleventh more":                        {[]float64{5.5, 6.6}, Undecided, "Undecided"},
		"less than the tolerance":                 {[]float64{5.1, 6.2}, Same, "NotWorse"},
		"as much":                                 {[]float64{5, 6}, Same, "NotWorse"},
		"a third, with an interval that is wider": {[]float64{1.5, 2.2}, Same, "NotWorse"},
	} {
		before := run(5, 6)
		if c.change == Worse {
			before = run(5, 5, 5, 6, 6, 6)
		}
		r := run(c.now...)
		r.Compare(before, tolerance, false)
		for _, row := range r.Comparison.Rows {
			if slices.Contains([]string{"handshakes/s", "mean latency", "p50"}, row.Figure) && row.Change != c.change {
				t.Errorf("%s: %+v %+v, want %s", name, row, row.Ratio.Interval, c.change)
			}
		}
		if got := r.Passed(); got.Holds != (c.reason == "NotWorse") || got.Reason != c.reason {
			t.Errorf("%s: %+v, want %s", name, got, c.reason)
		}
		want := map[Change]string{Worse: "worse", Undecided: "undecided", Same: "the same"}[c.change]
		if page, err := r.HTML(); err != nil || !strings.Contains(page, want+"<") || !strings.Contains(r.Markdown(), want) || !strings.Contains(page, "by more than 5 %") {
			t.Errorf("%s: the report does not say %q, %v", name, want, err)
		}
	}
}

// A gateway that makes too few handshakes for the percentile that it had is not as good
// for that, and one that makes enough for another not worse.
func TestAFigureThatIsNoLongerThereIsIncomparable(t *testing.T) {
	run := func(times int) Report {
		var all []Measurement
		for block := 1; block <= 5; block++ {
			latency := measured(validity.Latency, block, 50, 1)
			for range times - 1 { // 1000 more handshakes each
				latency.Result.Handshakes = append(latency.Result.Handshakes, latency.Result.Handshakes[0])
			}
			all = append(all, measured(validity.Capacity, block, 100, 1), latency)
		}
		return build(t, all...)
	}
	many, few := run(2), run(1)
	if !many.Points[0].Latency.Percentile(99).Available() || few.Points[0].Latency.Percentile(99).Available() {
		t.Fatal("want a p99 of 10,000 handshakes, and none of 5000")
	}
	with, without := run(1), run(1)
	without.Points[0].Capacity.ServerCPU = nil
	noLatency := run(1)
	noLatency.Points[0].Latency = nil
	for figure, c := range map[string]struct {
		before, now Report
		says        string
	}{
		"p99":        {many, few, "needs 10000 samples: there are 5000"},
		"server CPU": {with, without, notObserved},
		"latency":    {with, noLatency, "not valid in both"},
	} {
		c.now.Compare(c.before, tolerance, false)
		change, rows := c.now.Comparison.Verdict()
		if change != Incomparable || len(rows) != 1 || rows[0].Figure != figure || rows[0].Reason != c.says || c.now.Passed().Holds {
			t.Errorf("%s: %s for %+v", figure, change, rows)
		}
		c.before.Compare(c.now, tolerance, false)
		if change, rows := c.before.Comparison.Verdict(); change != Same || !c.before.Passed().Holds {
			t.Errorf("%s, the other way round: %s for %+v", figure, change, rows)
		}
	}
}

// A rate is a part of the capacity, which differs a little from run to run: a few
// handshakes too few for the baseline's percentile are no reason to fail.
func TestAPercentileThatJustHasNoSamplesIsNotCompared(t *testing.T) {
	run := func(handshakes, failed int64) Report {
		var all []Measurement
		for block := 1; block <= 5; block++ {
			m := measured(validity.Latency, block, 50, 1)
			times := &shard.Histogram{}
			for range handshakes / 5 {
				times.Record(time.Millisecond)
			}
			h := &m.Result.Handshakes[0]
			h.Count, h.Handshake = times.Count(), times
			m.Result.Failures = map[shard.Failure]int64{shard.Timeout: failed / 5}
			all = append(all, measured(validity.Capacity, block, 100, 1), m)
		}
		return build(t, all...)
	}
	for _, c := range []struct {
		handshakes, failed int64
		want               Change
	}{
		{9950, 0, Same},
		{9550, 0, Same},
		{9500, 0, Incomparable}, // beyond the tolerance of 5 %
		{10_000, 200, Worse},    // for the failures; the p99 is Incomparable
	} {
		before, now := run(10_050, 0), run(c.handshakes, c.failed)
		if !before.Points[0].Latency.Percentile(99).Available() || now.Points[0].Latency.Percentile(99).Available() {
			t.Fatal("want a p99 of the baseline only")
		}
		now.Compare(before, tolerance, false)
		change, rows := now.Comparison.Verdict()
		if change != c.want || now.Passed().Holds != (c.want == Same) || slices.ContainsFunc(now.Comparison.Rows, func(r Row) bool { return r.Figure == "p99" }) == (c.want == Same) {
			t.Errorf("%d handshakes, %d failed: %s for %+v", c.handshakes, c.failed, change, rows)
		}
	}
}

// A refusal is faster than a handshake, and a gateway that refuses more clients no better
// one. A few failures are chance, also where there were none.
func TestFailuresAreCompared(t *testing.T) {
	run := func(failed int64) Report { // of 10,000 attempts, in one of five repetitions of the latency
		var all []Measurement
		for block := 1; block <= 5; block++ {
			m := measured(validity.Latency, block, 50, 1)
			if block == 2 {
				m.Result.Handshakes[0].Count -= failed
				m.Result.Failures = map[shard.Failure]int64{shard.Timeout: failed}
			}
			all = append(all, measured(validity.Capacity, block, 100, 1), m)
		}
		return build(t, all...)
	}
	for _, c := range []struct {
		before, now int64
		want        Change
	}{
		{0, 0, Same}, {0, 1, Same}, {0, 5, Same}, {0, 6, Worse}, {6, 0, Better}, {5, 0, Same},
		{2, 2, Same}, {100, 110, Same}, {100, 130, Same}, {100, 150, Worse}, {150, 100, Better},
	} {
		r := run(c.now)
		r.Compare(run(c.before), tolerance, false)
		i := slices.IndexFunc(r.Comparison.Rows, func(r Row) bool { return r.Figure == "failures" })
		if i < 0 || r.Comparison.Rows[i].Change != c.want {
			t.Fatalf("%d failed, and now %d: %+v, want %s", c.before, c.now, r.Comparison.Rows, c.want)
		}
		if change, _ := r.Comparison.Verdict(); change != c.want || r.Passed().Holds != (c.want != Worse) {
			t.Errorf("%d failed, and now %d: the verdict is %s, passed %+v", c.before, c.now, change, r.Passed())
		}
	}
	r := run(6)
	r.Compare(run(0), tolerance, false)
	if want := `: hybrid with 1 replicas: failures: 0 % (0 of 10,000), and now 0.06 % (6 of 10,000)`; !strings.HasSuffix(r.Passed().Message, want) {
		t.Errorf("%q, want it to end with %q", r.Passed().Message, want)
	}
	r.Points[0].Attempts, r.Points[0].Failures = 0, nil
	if r.Compare(run(0), tolerance, false); !slices.ContainsFunc(r.Comparison.Rows, func(r Row) bool {
		return r.Figure == "failures" && r.Change == Incomparable && r.Reason == nothingAttempted
	}) {
		t.Errorf("of nothing: %+v", r.Comparison.Rows)
	}
}

// Where tickets are no longer taken, handshakes are full ones.
func TestWhatIsResumedIsComparedOfModesThatResume(t *testing.T) {
	for _, c := range []struct {
		resumes     bool
		before, now float64
		want        Change
	}{
		{true, 0.99, 0.97, Same}, {true, 0.99, 0.94, Worse}, {true, 0.9, 0.99, Better}, {true, 0, 0, Same}, {true, 0, 0.5, Better},
		{false, 0.99, 0.5, ""},
	} {
		r, before := compared(t, 100, 2), compared(t, 100, 2)
		r.Modes[0].Resumed, before.Modes[0].Resumed = c.resumes, c.resumes
		r.Points[0].Resumption, before.Points[0].Resumption = c.now, c.before
		r.Compare(before, tolerance, false)
		var got Change
		for _, row := range r.Comparison.Rows {
			if row.Figure == "resumption" {
				got = row.Change
			}
		}
		if got != c.want || r.Passed().Holds != (c.want != Worse) {
			t.Errorf("resumes %v, %v and now %v: %q, want %q; passed %+v", c.resumes, c.before, c.now, got, c.want, r.Passed())
		}
	}
}

// What is not measured any more may be worse. Other servers are compared within their own
// run.
func TestModesAndReplicasThatAreGoneAreIncomparable(t *testing.T) {
	run := func(points ...Point) Report {
		return Report{Name: "run", Modes: []Mode{{Name: "hybrid"}, {Name: "classical"}, {Name: "hybrid.plain", Peer: "plain", PeerOf: "hybrid"}}, Points: points}
	}
	at := func(mode string, replicas int) Point { return Point{Mode: mode, Replicas: replicas} }
	before := run(at("hybrid", 1), at("hybrid", 2), at("hybrid", 4), at("classical", 1), at("classical", 2), at("hybrid.plain", 1))
	now := run(at("hybrid", 1))
	now.Compare(before, tolerance, false)
	want := []Row{
		{Mode: "hybrid", Replicas: 2, Figure: "all", Change: Incomparable, Reason: "the baseline has this point, and now it is not measured"},
		{Mode: "hybrid", Replicas: 4, Figure: "all", Change: Incomparable, Reason: "the baseline has this point, and now it is not measured"},
		{Mode: "classical", Figure: "all", Change: Incomparable, Reason: "the baseline has this mode, and now it is not measured"},
	}
	if diff := cmp.Diff(want, now.Comparison.Rows); diff != "" {
		t.Error(diff)
	}
	if got := now.Passed(); got.Holds || got.Reason != "Incomparable" || !strings.HasSuffix(got.Message, " | classical: all: the baseline has this mode, and now it is not measured") {
		t.Errorf("%+v", got)
	}
	now = run(before.Points...)
	if now.Compare(run(before.Points[:5]...), tolerance, false); len(now.Comparison.Rows) != 0 {
		t.Errorf("nothing is gone: %+v", now.Comparison.Rows)
	}
}

// What the rows say, the headline and the condition say too.
func TestAllOfTheReportHasOneTolerance(t *testing.T) {
	for within, want := range map[float64]string{0.05: "1 better, 0 worse, 0 undecided, 0 not comparable, 5 the same", 0.2: "0 better, 0 worse, 0 undecided, 0 not comparable, 6 the same"} {
		r := compared(t, 115, 2)
		r.Compare(compared(t, 100, 2), within, false)
		if !strings.Contains(r.Headline(), want) {
			t.Errorf("within %v: %s", within, r.Headline())
		}
	}
}

func TestOtherMachinesAndQuotasAreNotComparedUnlessForced(t *testing.T) {
	for want, change := range map[string]func(e *Environment){
		"machines: EPYC with 2 CPUs (aes avx2), and now EPYC with 4 CPUs (aes avx2)":         func(e *Environment) { e.Machines[0].CPUs = 4 },
		"machines: EPYC with 2 CPUs (aes avx2), and now Xeon with 2 CPUs (aes avx2)":         func(e *Environment) { e.Machines[0].CPUModel = "Xeon" },
		"machines: EPYC with 2 CPUs (aes avx2), and now EPYC with 2 CPUs (aes)":              func(e *Environment) { e.Machines[0].Flags = []string{"aes"} },
		"quotas: haproxy 50m CPU unlimited memory, and now haproxy 30m CPU unlimited memory": func(e *Environment) { e.Quotas[0].CPU = "30m" },
		"quotas: haproxy 50m CPU unlimited memory, and now not described":                    func(e *Environment) { e.Quotas = nil },
	} {
		r := compared(t, 100, 2)
		change(&r.Environment)
		r.Compare(compared(t, 100, 2), tolerance, false)
		if c := r.Comparison; !c.Refused || len(c.Rows) != 0 || !slices.Equal(c.Differences, []string{want}) {
			t.Errorf("refused %v: %q, want %q", c.Refused, c.Differences, want)
		}
		r.Compare(compared(t, 100, 2), tolerance, true)
		if c := r.Comparison; c.Refused || len(c.Rows) == 0 || len(c.Differences) != 1 {
			t.Errorf("forced: refused %v: %q", c.Refused, c.Differences)
		}
	}
}

// A slower client looks like a slower gateway. Reports that are older do not tell of it.
func TestAnotherMachineOfTheLoadGeneratorIsNotComparedUnlessForced(t *testing.T) {
	xeon, epyc := []Machine{{Name: "c", CPUModel: "Xeon", CPUs: 8}}, []Machine{{Name: "d", CPUModel: "EPYC", CPUs: 8}}
	for _, c := range []struct {
		was, is []Machine
		want    []string
	}{
		{xeon, epyc, []string{"load generator's machines: Xeon with 8 CPUs (), and now EPYC with 8 CPUs ()"}},
		{xeon, xeon, nil}, {nil, xeon, nil}, {xeon, nil, nil},
	} {
		r, before := compared(t, 100, 2), compared(t, 100, 2)
		r.Environment.Generators, before.Environment.Generators = c.is, c.was
		r.Compare(before, tolerance, false)
		if got := r.Comparison; got.Refused != (c.want != nil) || !slices.Equal(got.Differences, c.want) {
			t.Errorf("%v and %v: refused %v: %q", c.was, c.is, got.Refused, got.Differences)
		}
		if c.is != nil && !strings.Contains(r.Markdown(), "Load generator's machine "+c.is[0].Name) {
			t.Errorf("the report does not say that it was made on %+v", c.is)
		}
	}
}

// An hour of load would end with a comparison that cannot pass.
func TestABaselineThatNoRunCouldBeComparedWithIsUnfit(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*Report)
		replicas []int
		force    bool
		want     string
	}{
		"the same":                  {func(*Report) {}, []int{1, 2}, false, ""},
		"another machine, perhaps":  {func(r *Report) { r.Environment.Machines = nil }, []int{1, 2}, false, ""},
		"another quota":             {func(r *Report) { r.Environment.Quotas = []Quota{{Container: "haproxy", CPU: "1"}} }, []int{1, 2}, false, "quotas: "},
		"another quota, by force":   {func(r *Report) { r.Environment.Quotas = []Quota{{Container: "haproxy", CPU: "1"}} }, []int{1, 2}, true, ""},
		"another load":              {func(r *Report) { r.Load = &Load{ClientsPerReplica: 7} }, []int{1, 2}, false, "load: "},
		"another mode":              {func(r *Report) { r.Modes[0].Name = "other" }, []int{1, 2}, true, `mode "other" is not in it`},
		"a mode that has changed":   {func(r *Report) { r.Modes[0].Groups = []string{"x25519"} }, []int{1, 2}, true, "is another one: "},
		"a mode fewer":              {func(r *Report) { r.Modes = nil }, []int{1, 2}, true, "which would not be measured"},
		"more replicas":             {func(*Report) {}, []int{1, 2, 4}, true, "with 4 replicas is not in it"},
		"fewer replicas":            {func(*Report) {}, []int{1}, true, "with 2 replicas, which would not be measured"},
		"another HSM, and the same": {func(r *Report) { r.Environment.HSM = []HSMMember{{Name: "a", Kind: "daemon"}} }, []int{1, 2}, false, ""}, // older ones do not tell
	} {
		before := compared(t, 100, 2)
		two := before.Points[0]
		two.Replicas = 2
		before.Points = append(slices.Clone(before.Points[:1]), two)
		planned := before
		planned.Points, planned.Modes = nil, slices.Clone(before.Modes)
		c.change(&planned)
		why := strings.Join(before.Unfit(planned, c.replicas, c.force), "; ")
		if (why == "") != (c.want == "") || !strings.Contains(why, c.want) {
			t.Errorf("%s: %q, want %q", name, why, c.want)
		}
	}
}

// Where the HSM is the limit, its quota is the result.
func TestAnotherHSMIsNotComparedUnlessForced(t *testing.T) {
	small, large := []HSMMember{{Name: "a", Kind: "soft token", CPU: "300m", Memory: "512Mi", Sessions: 8}}, []HSMMember{{Name: "a", Kind: "soft token", CPU: "600m", Memory: "512Mi", Sessions: 8}}
	for _, c := range []struct {
		was, is []HSMMember
		want    []string
	}{
		{small, large, []string{"HSM: a soft token, CPU 300m, memory 512Mi, 8 sessions of each replica, and now a soft token, CPU 600m, memory 512Mi, 8 sessions of each replica"}},
		{small, small, nil}, {nil, small, nil}, {small, nil, nil},
	} {
		r, before := compared(t, 100, 2), compared(t, 100, 2)
		r.Environment.HSM, before.Environment.HSM = c.is, c.was
		r.Compare(before, tolerance, false)
		if got := r.Comparison; got.Refused != (c.want != nil) || !slices.Equal(got.Differences, c.want) {
			t.Errorf("%v and %v: refused %v: %q", c.was, c.is, got.Refused, got.Differences)
		}
		if c.is != nil && !strings.Contains(r.Markdown(), c.is[0].CPU+", memory 512Mi, 8 sessions of each replica") {
			t.Errorf("the report does not say what the HSM was: %+v", c.is)
		}
	}
}

func TestAnotherLoadIsNotComparedUnlessForced(t *testing.T) {
	const was = "load: 4 clients for each replica, latency at 50 % of the capacity, and now "
	for want, change := range map[string]func(r *Report){
		"": func(r *Report) {
			r.Load.Window, r.Load.WarmUp, r.Load.Repetitions, r.Load.Pods = time.Minute, time.Second, 9, 2
		},
		was + "16 clients for each replica, latency at 50 % of the capacity": func(r *Report) { r.Load.ClientsPerReplica = 16 },
		was + "4 clients for each replica, latency at 80 % of the capacity":  func(r *Report) { r.Load.Percent = 80 },
		was + "not described": func(r *Report) { r.Load = nil },
	} {
		usual := Load{ClientsPerReplica: 4, Percent: 50, Pods: 1, WarmUp: 5 * time.Second, Window: 20 * time.Second, Repetitions: 5}
		r, before := compared(t, 100, 2), compared(t, 100, 2)
		here := usual
		r.Load, before.Load = &here, &usual
		change(&r)
		r.Compare(before, tolerance, false)
		if c := r.Comparison; c.Refused != (want != "") || want != "" && !slices.Equal(c.Differences, []string{want}) {
			t.Errorf("refused %v: %q, want %q", c.Refused, c.Differences, want)
		}
		if r.Compare(before, tolerance, true); r.Comparison.Refused || len(r.Comparison.Rows) == 0 {
			t.Errorf("forced: %q", r.Comparison.Differences)
		}
	}
}

// Replicas are where there is room for them: on two machines of five today, on three tomorrow.
func TestMachinesOfOneKindAreNotCounted(t *testing.T) {
	r := compared(t, 100, 2)
	another := r.Environment.Machines[0]
	another.Name = "n7"
	r.Environment.Machines = append(r.Environment.Machines, another)
	if r.Compare(compared(t, 100, 2), tolerance, false); r.Comparison.Refused {
		t.Errorf("two machines of the kind of one: %q", r.Comparison.Differences)
	}
	r.Environment.Machines[1].CPUModel = "Xeon"
	if r.Compare(compared(t, 100, 2), tolerance, false); !r.Comparison.Refused {
		t.Error("machines of two kinds are compared with those of one")
	}
}

func TestMachinesOfOneKindMayHaveOtherNames(t *testing.T) {
	r := compared(t, 100, 2)
	r.Environment.Machines[0].Name, r.Environment.Machines[0].Flags = "n9", []string{"aes", "avx2"}
	r.Compare(compared(t, 100, 2), tolerance, false)
	if r.Comparison.Refused {
		t.Errorf("%q", r.Comparison.Differences)
	}
}

func TestImagesThatChangedAreSaid(t *testing.T) {
	r := compared(t, 100, 2)
	r.Environment.Images = []Image{{"gateway", "sha256:9"}, {"agent", "sha256:3"}}
	r.Compare(compared(t, 100, 2), tolerance, false)
	want := []ChangedImage{{"gateway", "sha256:1", "sha256:9"}, {"agent", "", "sha256:3"}, {"k6", "sha256:2", ""}}
	if diff := cmp.Diff(want, r.Comparison.Images); diff != "" || r.Comparison.Refused {
		t.Errorf("refused %v, %s", r.Comparison.Refused, diff)
	}
}

func TestWhatCannotBeCompared(t *testing.T) {
	for want, change := range map[string]func(b *Report){
		"the baseline does not have this mode":                                              func(b *Report) { b.Modes, b.Points = nil, nil },
		"the baseline's mode of this name is another one: resumed, and now full handshakes": func(b *Report) { b.Modes[0].Resumed = true },
		"the baseline has no such point":                                                    func(b *Report) { b.Points[0].Replicas = 3 },
		"not valid in both":                                                                 func(b *Report) { b.Points[0].Capacity.Valid = false },
		measuredOnce: func(b *Report) {
			p := &b.Points[0]
			p.Capacity.Repetitions, p.Latency.Repetitions = p.Capacity.Repetitions[:1], p.Latency.Repetitions[:1]
		},
	} {
		r, b := compared(t, 100, 2), compared(t, 100, 2)
		change(&b)
		r.Compare(b, tolerance, false)
		if row := r.Comparison.Rows[0]; row.Change != Incomparable || row.Reason != want {
			t.Errorf("%+v, want %q", row, want)
		}
		// Not one figure of a repetition is judged, however many handshakes it had.
		for _, row := range r.Comparison.Rows {
			if want == measuredOnce && (row.Change != Incomparable || row.Reason != want) {
				t.Errorf("%+v, want %q", row, want)
			}
		}
	}
}

// A listener has its own certificate, a name may choose another one, and a path another
// backend. Reports that are older do not tell of them.
func TestModesAtAnotherTargetAreIncomparable(t *testing.T) {
	at := Mode{Name: "hybrid", Operation: "Request", Listener: "https", ServerName: "www.example.com", Path: "/"}
	listener, name, path := at, at, at
	listener.Listener, name.ServerName, path.Path = "admin", "api.example.com", "/large"
	older := Mode{Name: "hybrid", Operation: "Request"}
	for name, c := range map[string]struct {
		was, is Mode
		want    Change
	}{
		"the same":                   {at, at, Same},
		"another listener":           {at, listener, Incomparable},
		"another server name":        {at, name, Incomparable},
		"another path":               {at, path, Incomparable},
		"an older report":            {older, at, Same},
		"older, the other way round": {at, older, Same},
	} {
		before, now := compared(t, 100, 2), compared(t, 100, 2)
		before.Modes[0], now.Modes[0] = c.was, c.is
		now.Compare(before, tolerance, false)
		change, rows := now.Comparison.Verdict()
		says := fmt.Sprintf("another one: %s, and now %s", c.was.Describe(), c.is.Describe())
		if change != c.want || change == Incomparable && (len(rows) != 1 || !strings.HasSuffix(rows[0].Reason, says)) {
			t.Errorf("%s: %s for %+v, want %s", name, change, rows, c.want)
		}
	}
	if got, want := at.Describe(), "full handshakes; with an HTTP request; path /; listener https; server name www.example.com"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestIntervalsOfPercentilesMakeThatOfTheirRatio(t *testing.T) {
	p := func(value, low, high time.Duration) stats.Percentile {
		return stats.Percentile{P: 99, Value: value, Low: low, High: high}
	}
	e := percentileRatio(p(200, 180, 220), p(100, 95, 110))
	// By hand: below, hypot(ln 200/180, ln 110/100); above, hypot(ln 220/200, ln 100/95).
	low, high := math.Hypot(math.Log(200.0/180), math.Log(1.1)), math.Hypot(math.Log(1.1), math.Log(100.0/95))
	if math.Abs(e.Value-2) > 1e-9 || math.Abs(math.Log(e.Interval.Low)-(math.Log(2)-low)) > 1e-9 || math.Abs(math.Log(e.Interval.High)-(math.Log(2)+high)) > 1e-9 {
		t.Errorf("%+v %+v", e, e.Interval)
	}
}

func TestReportsThatCannotBeRead(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "not a report",
		`{"version":2,"new":1}`:         "a report of version 2: this release reads 1",
		`{"version":1,"surprise":1}`:    "surprise",
		`{"version":1}{}`:               "not a report",
		strings.Repeat(" ", MostJSON+1): "at most",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want an error with %q", text, err, want)
		}
	}
}

// tags of a page, without what their attributes hold.
func tags(page string) []string {
	all := regexp.MustCompile(`<[^>]*>`).FindAllString(page, -1)
	values := regexp.MustCompile(`"[^"]*"`)
	for i := range all {
		all[i] = values.ReplaceAllString(all[i], `""`)
	}
	return all
}

// Text from elsewhere makes neither tags nor attributes: the page has those that
// it has with harmless text.
func TestTextStaysText(t *testing.T) {
	r := awkwardReport(t)
	page, err := r.HTML()
	if err != nil {
		t.Fatal(err)
	}
	text, err := r.JSON()
	if err != nil {
		t.Fatal(err)
	}
	escaped, err := (Report{Name: injected}).JSON()
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`"name": "(.*)",`).FindStringSubmatch(string(escaped))[1]
	harmless, err := Parse([]byte(strings.ReplaceAll(string(text), name, "harmless")))
	if err != nil {
		t.Fatal(err)
	}
	want, err := harmless.HTML()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(want, "harmless") < 30 {
		t.Fatalf("the text is in few places:\n%s", want)
	}
	if diff := cmp.Diff(tags(want), tags(page)); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(page, "<script") {
		t.Error("the text is in the page as it is")
	}
}

func TestTextStaysTextInMarkdown(t *testing.T) {
	text := awkwardReport(t).Markdown()
	for _, forbidden := range []string{"<", "[x](", "\r", "\x00"} {
		if strings.Contains(text, forbidden) {
			t.Errorf("%q is in it", forbidden)
		}
	}
	pipes := func(line string) int { return strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") }
	columns := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "|") {
			columns = 0
			continue
		}
		if columns == 0 {
			columns = pipes(line)
		}
		if pipes(line) != columns {
			t.Errorf("%d cells, want %d: %s", pipes(line)-1, columns-1, line)
		}
	}
}

func TestThePageNeedsNothingElse(t *testing.T) {
	page, err := fullReport(t).HTML()
	if err != nil {
		t.Fatal(err)
	}
	for _, forbidden := range []string{"<script", "http://", "https://", "//cdn", "@import", "<iframe", "<img", " src=", " onclick", "url(\"", "NaN", "Inf", "ZgotmplZ"} {
		if strings.Contains(page, forbidden) {
			t.Errorf("%q is in it", forbidden)
		}
	}
	if !strings.Contains(page, `content="default-src &#39;none&#39;;`) && !strings.Contains(page, `content="default-src 'none';`) {
		t.Error("it has no policy")
	}
	if len(page) > 400<<10 {
		t.Errorf("%d bytes: a ConfigMap holds 1 MiB with the other two", len(page))
	}
}

func TestAnEmptyReport(t *testing.T) {
	r, err := Build(Report{Name: "empty"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	page, err := r.HTML()
	if err != nil || !strings.Contains(page, "Nothing was measured") || !strings.Contains(r.Markdown(), "Nothing was measured") {
		t.Errorf("%v: %s", err, page)
	}
}

func TestFigures(t *testing.T) {
	for want, got := range map[string]string{
		"1,234,568": figure3(1234567.8), "812": figure3(811.7), "100": figure3(99.97), "12.3": figure3(12.34), "1.23": figure3(1.234), "0": figure3(0), "-1.50": figure3(-1.5), "0.00123": figure3(0.001234),
		"1.20 ms": seconds(0.0012), "800 µs": seconds(0.0008), "1.50 s": seconds(1.5), "12.3 s": duration(12340 * time.Millisecond),
		"1.00 to 1.20 ms": between(0.001, 0.0012, seconds), "900 µs to 1.20 ms": between(0.0009, 0.0012, seconds), "1.00 to 2.00": between(1, 2, figure3),
		"517 B": byteCount(517), "19.8 kB": byteCount(19800), "1.05 MB": byteCount(1 << 20), "61.0 MiB": mebibytes(61 << 20), "50m": millicores(0.05),
		"0 %": percent(0), "100 %": percent(1), "3.1 %": percent(0.031), "1, 2 and 4": numbers([]int{1, 2, 4}), "8": numbers([]int{8}),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Whatever a report of this version holds, it can be shown.
func FuzzParse(f *testing.F) {
	r := Report{Version: 1, Name: "x", Modes: []Mode{{Name: "m"}}, Points: []Point{{Mode: "m", Replicas: 1, Capacity: &Capacity{PerSecond: stats.Estimate{Value: 1, N: 1}}, Latency: &Latency{Count: 1, Max: 5, Split: &Split{Server: 3}, Percentiles: []stats.Percentile{{P: 99, Value: 4}}}}},
		Scaling: []Scaling{{Mode: "m", Base: 1, Curve: []At{{1, stats.Interval{}, 2}, {2, stats.Interval{}, 3}}}}, Comparison: &Comparison{Rows: []Row{{Mode: "m", Ratio: stats.Estimate{Value: 1, Interval: &stats.Interval{Low: 1, High: 2}, N: 2}}}}}
	text, err := r.JSON()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"points":[{"mode":"m","capacity":{"perSecond":{"value":5e-324,"n":1}}}],"modes":[{"name":"m"}]}`))
	f.Add([]byte(`{"version":1,"points":[{"mode":"m","replicas":-1,"capacity":{"perSecond":{"value":1e308,"n":1,"interval":{"low":-1e308,"high":1e308}}}}],"modes":[{"name":"m"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Parse(text)
		if err != nil {
			return
		}
		if _, err := r.HTML(); err != nil {
			t.Error(err)
		}
		_ = r.Markdown()
		r.Compare(r, tolerance, true)
		if parsed, err := threshold.Parse("p99 <= 5ms"); err == nil {
			r.Evaluate([]threshold.Threshold{parsed})
		}
		if _, err := r.JSON(); err != nil {
			t.Error(err)
		}
	})
}
