package shard

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"qtls.dev/qtls/internal/machine"
)

// histogram counts milliseconds.
func histogram(ms ...float64) *Histogram {
	h := &Histogram{}
	for _, v := range ms {
		h.Record(time.Duration(v * float64(time.Millisecond)))
	}
	return h
}

// hybrid is a pod's result of some handshakes that took so many milliseconds.
func hybrid(segment, of int, ms ...float64) Shard {
	return Shard{
		Version: Version, Point: "run-1/r2/capacity/3", Segment: Segment{segment, of},
		Start: 1_000_000_000, End: 31_000_000_000,
		Target:     Target{Host: "gateway.default:443", SNI: "www.example"},
		Iterations: int64(len(ms)) + 1,
		Failures:   map[Failure]int64{Alert("handshake_failure"): 1},
		StartLag:   histogram(0.1),
		Handshakes: []Series{{
			Kind:  Kind{Group: "X25519MLKEM768", SignatureAlgorithm: "mldsa65", Version: "TLSv1.3"},
			Count: int64(len(ms)), Handshake: histogram(ms...), Server: histogram(ms...),
			BytesSent: 1500 * int64(len(ms)), BytesReceived: 9000 * int64(len(ms)), CertificateBytes: 7000 * int64(len(ms)),
		}},
		CPU:      CPU{Client: 873_000 * int64(len(ms)), Periods: 300},
		TCP:      TCP{Segments: 2000, Retransmitted: 3},
		Versions: map[string]string{"k6": "v2.2.0"},
	}
}

func TestALineReadsBackAsItWas(t *testing.T) {
	s := hybrid(0, 2, 1, 2.5, 59_000)
	line, err := s.Line()
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(line, "\n\r") || !strings.HasPrefix(line, "qtls-bench-result: {") {
		t.Errorf("line %q", line)
	}
	log := "time=x level=info msg=\"" + Prefix + "not at the beginning\"\n" + line + "\r\nmore"
	shards, err := Read(strings.NewReader(log))
	if err != nil || len(shards) != 1 {
		t.Fatalf("%d shards, %v", len(shards), err)
	}
	if diff := cmp.Diff(s, shards[0], histograms); diff != "" {
		t.Error(diff)
	}
}

// One of a release of before does not tell what it sent.
func TestALineWithoutWhatWasSentIsRead(t *testing.T) {
	s := hybrid(0, 1, 1)
	s.TCP = TCP{}
	line, err := s.Line()
	if err != nil || strings.Contains(line, "tcp") {
		t.Fatalf("%s, %v", line, err)
	}
	if back, err := Parse(line); err != nil || back.TCP != (TCP{}) {
		t.Errorf("%+v, %v", back.TCP, err)
	}
}

// histograms are equal when their encodings are.
var histograms = cmp.Transformer("encoding", func(h *Histogram) string {
	text, err := h.MarshalText()
	if err != nil {
		panic(err)
	}
	return string(text)
})

func TestTheLastLineNeedsNoEnd(t *testing.T) {
	line, _ := hybrid(0, 1, 1).Line()
	if shards, err := Read(strings.NewReader("x\n" + line)); err != nil || len(shards) != 1 {
		t.Errorf("%d shards, %v", len(shards), err)
	}
}

func TestTheLineOfALongMeasurementIsShort(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var ms []float64
	for range 20_000 {
		ms = append(ms, 0.8*math.Exp(rng.NormFloat64()))
	}
	line, err := hybrid(0, 1, ms...).Line()
	if err != nil {
		t.Fatal(err)
	}
	if len(line) > 16<<10 {
		t.Errorf("%d bytes: kubelets cut lines in parts of 16 KiB", len(line))
	}
}

func TestMergingIsRecordingAllInOneHistogram(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var shards []Shard
	var all []float64
	for i := range 5 {
		var ms []float64
		for range 1000 * (i + 1) {
			ms = append(ms, 0.001+10*rng.ExpFloat64()*float64(i+1))
		}
		shards, all = append(shards, hybrid(i, 5, ms...)), append(all, ms...)
	}
	slices.Reverse(shards)
	r, err := Merge(shards)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Handshakes) != 1 {
		t.Fatalf("%d kinds", len(r.Handshakes))
	}
	got, want := r.Handshakes[0], histogram(all...)
	if diff := cmp.Diff(want, got.Handshake, histograms); diff != "" {
		t.Error(diff)
	}
	n := int64(len(all))
	if got.Count != n || r.Iterations != n+5 || r.Failures[Alert("handshake_failure")] != 5 ||
		got.BytesSent != 1500*n || got.BytesReceived != 9000*n || got.CertificateBytes != 7000*n || r.CPU != (CPU{Client: 873_000 * n, Periods: 1500}) || r.TCP != (TCP{Segments: 10_000, Retransmitted: 15}) || len(r.CPUOfPods) != 5 || r.StartLag.Count() != 5 || r.Pods != 5 {
		t.Errorf("sums: %+v of %+v", got, r)
	}
	if want := float64(n) / 30; math.Abs(r.PerSecond-want) > 1e-9 {
		t.Errorf("%v a second, want %v", r.PerSecond, want)
	}
	if shards[0].Handshakes[0].Count == n {
		t.Error("a shard was changed")
	}
}

// Four pods, one of which is on a slow path: the mean of their p99s is a figure
// that no client saw.
func TestPercentilesAreOfAllHandshakesAndNotMeans(t *testing.T) {
	var shards []Shard
	var mean time.Duration
	for pod := range 4 {
		var ms []float64
		for i := range 1000 {
			v := 5 + float64(i)/1000 // 5 to 6
			if pod == 3 && i >= 900 {
				v = 20 + float64(i-900)/10 // a tenth of it: 20 to 30
			}
			ms = append(ms, v)
		}
		shards = append(shards, hybrid(pod, 4, ms...))
		mean += shards[pod].Handshakes[0].Handshake.Percentile(99) / 4
	}
	r, err := Merge(shards)
	if err != nil {
		t.Fatal(err)
	}
	// 40 of 4000 are the slowest 1 %: those above 26 ms.
	near(t, "p99 of all", r.Handshakes[0].Handshake.Percentile(99), 25900*time.Microsecond)
	near(t, "mean of p99s", mean, (3*5989+28900)/4*time.Microsecond)
}

func near(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if math.Abs(float64(got-want)) > 0.002*float64(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestKindsAreKeptApart(t *testing.T) {
	a, b := hybrid(0, 2, 1, 2), hybrid(1, 2, 3)
	b.Handshakes[0].Resumed, b.Handshakes[0].SignatureAlgorithm = true, ""
	r, err := Merge([]Shard{b, a})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Handshakes) != 2 || r.Handshakes[0].Resumed || !r.Handshakes[1].Resumed || r.Handshakes[0].Count != 2 || r.Handshakes[1].Count != 1 {
		t.Fatalf("kinds: %+v", r.Handshakes)
	}
	if full := r.Total(func(k Kind) bool { return !k.Resumed }); full.Count != 2 || full.Handshake.Max() < 1999*time.Microsecond {
		t.Errorf("full ones: %+v", full)
	}
	if r.Count() != 3 {
		t.Errorf("%d handshakes", r.Count())
	}
	if all := r.Total(func(Kind) bool { return true }); all.Count != 3 {
		t.Errorf("all: %+v", all)
	}
}

func TestThePodsWindowsNeedNotBeTheSame(t *testing.T) {
	a, b := hybrid(0, 2, make([]float64, 300)...), hybrid(1, 2, make([]float64, 200)...)
	b.Start, b.End = b.Start+1e9, b.End-9e9 // 20 s
	r, err := Merge([]Shard{a, b})
	if err != nil {
		t.Fatal(err)
	}
	if r.PerSecond != 300.0/30+200.0/20 || r.Start != a.Start || r.End != a.End || r.Common != 20*time.Second {
		t.Errorf("%+v", r)
	}
}

func TestShardsThatAreNotOneLoadAreNotMerged(t *testing.T) {
	pair := func(change func(b *Shard)) []Shard {
		b := hybrid(1, 2, 2)
		change(&b)
		return []Shard{hybrid(0, 2, 1), b}
	}
	for _, c := range []struct {
		name   string
		shards []Shard
		want   string
	}{
		{"none", nil, "no shards"},
		{"another point", pair(func(b *Shard) { b.Point = "run-1/r4/capacity/3" }), `segment 1/2 is of point "run-1/r4/capacity/3", segment 0/2 of "run-1/r2/capacity/3"`},
		{"another target", pair(func(b *Shard) { b.Target.SNI = "other" }), "segment 1/2 measured"},
		{"another count", pair(func(b *Shard) { b.Segment.Count = 3 }), "segments 0/2 and 1/3 are not of one load"},
		{"twice", pair(func(b *Shard) { b.Segment.Index = 0 }), "segment 0/2 is there twice"},
		{"missing", []Shard{hybrid(1, 3, 1)}, "2 segments are missing: 0/3 2/3"},
		{"another time", pair(func(b *Shard) { b.Start, b.End = 40e9, 70e9 }), "no time in common: one ended 9s before another began"},
		{"another version", pair(func(b *Shard) { b.Version = 2 }), "segment 1/2: version 2: want 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r, err := Merge(c.shards); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q; result %+v", err, c.want, r)
			}
		})
	}
}

func TestShardsThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *Shard)
		want   string
	}{
		"no point":             {func(s *Shard) { s.Point = "" }, `point ""`},
		"a line in a text":     {func(s *Shard) { s.Target.SNI = "a\nb" }, `target.sni "a\nb": want printable text`},
		"segment out of range": {func(s *Shard) { s.Segment.Index = 1 }, "segment 1/1"},
		"no segments":          {func(s *Shard) { s.Segment = Segment{} }, "segment 0/0"},
		"no window":            {func(s *Shard) { s.End = s.Start }, "window"},
		"negative count":       {func(s *Shard) { s.Dropped = -1 }, "dropped -1"},
		"unknown failure":      {func(s *Shard) { s.Failures = map[Failure]int64{"Bad": 3} }, `failures "Bad": want one of [Connect`},
		"an alert elsewhere":   {func(s *Shard) { s.Failures = map[Failure]int64{"HTTP(500)": 3} }, `failures "HTTP(500)"`},
		"count and histogram":  {func(s *Shard) { s.Handshakes[0].Count = 3; s.Iterations = 0 }, "handshakes[0].handshake 2: want one for each of 3"},
		"more in a part":       {func(s *Shard) { s.Handshakes[0].Client = histogram(1, 1, 1) }, "handshakes[0].client 3"},
		"a kind twice":         {func(s *Shard) { s.Handshakes = append(s.Handshakes, s.Handshakes[0]) }, "each kind once"},
		"lost iterations":      {func(s *Shard) { s.Iterations = 4 }, "iterations 4"},
		"idle without end":     {func(s *Shard) { s.CPU.MachineIdle, s.CPU.MachineTotal = 11, 10 }, "cpu.machineIdle 11: want 0 to 10"},
		"a machine of many words": {func(s *Shard) {
			s.Machine = &machine.Machine{CPUModel: "x", Flags: slices.Repeat([]string{"aes"}, 65)}
		}, "machine.flags 65: want at most 64"},
		"a machine of no kind":   {func(s *Shard) { s.Machine = &machine.Machine{CPUModel: strings.Repeat("x", 257)} }, "machine.cpuModel"},
		"throttled without":      {func(s *Shard) { s.CPU.ThrottledPeriods = 301 }, "cpu.throttledPeriods 301"},
		"more segments again":    {func(s *Shard) { s.TCP.Retransmitted = 2001 }, "tcp.retransmitted 2001: want 0 to 2000"},
		"segments of no number":  {func(s *Shard) { s.TCP.Segments = -1 }, "tcp.segments -1"},
		"sums that overflow":     {func(s *Shard) { s.Failures = map[Failure]int64{HTTP: math.MaxInt64, Reset: math.MaxInt64} }, "failures.HTTP"},
		"a name without an end":  {func(s *Shard) { s.Handshakes[0].Group = strings.Repeat("x", 300) }, "at most 256 bytes"},
		"lags without iteration": {func(s *Shard) { s.StartLag = histogram(1, 1, 1, 1) }, "startLag 4"},
	} {
		t.Run(name, func(t *testing.T) {
			s := hybrid(0, 1, 1, 2)
			c.change(&s)
			if line, err := s.Line(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q; line %q", err, c.want, line)
			}
		})
	}
}

func TestLinesThatCannotBeRead(t *testing.T) {
	line, err := hybrid(0, 1, 1).Line()
	if err != nil {
		t.Fatal(err)
	}
	wide, err := (&Histogram{}).MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ line, want string }{
		"another prefix":   {"result: {}", "does not begin with"},
		"no JSON":          {Prefix + "{", "not JSON"},
		"a newer version":  {Prefix + `{"version":2,"new":1}`, "version 2: this operator reads 1"},
		"an unknown field": {strings.Replace(line, `"dropped"`, `"droppd"`, 1), `unknown field "droppd"`},
		"two values":       {line + "{}", "not JSON"},
		"cut off":          {line[:len(line)-3], "not JSON"},
		"a bad segment":    {strings.Replace(line, `"0/1"`, `"00/1"`, 1), `segment "00/1": want INDEX/COUNT`},
		"a bad histogram":  {strings.Replace(line, `"handshake":"H`, `"handshake":"X`, 1), "handshakes[0].handshake"},
		"too long":         {Prefix + strings.Repeat(" ", mostLine+1), "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "a bad histogram" {
				// A well-formed one with nothing in it.
				at := strings.Index(line, `"handshake":"`) + len(`"handshake":"`)
				c.line = line[:at] + string(wide) + line[at+strings.Index(line[at:], `"`):]
			}
			if _, err := Parse(c.line); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	if _, err := Read(strings.NewReader("\n\n" + Prefix + "{}\n" + line)); err == nil || !strings.Contains(err.Error(), "line 3 of the log: version 0") {
		t.Errorf("a log with a bad line: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []Shard{hybrid(0, 1), hybrid(3, 4, 1, 2, 1000, 70_000)} {
		line, err := s.Line()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line)
		f.Add(strings.Replace(line, "H", "J", 3))
	}
	for _, seed := range []string{"", Prefix, Prefix + "{}", Prefix + `{"version":1}`, Prefix + `{"version":1,"handshakes":[{"handshake":"HISTFAAAAA"}]}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		s, err := Parse(line)
		if err != nil {
			return
		}
		again, err := s.Line()
		if err != nil {
			t.Fatalf("%q is taken, and cannot be written: %v", line, err)
		}
		back, err := Parse(again)
		if err != nil {
			t.Fatalf("%q is written as %q, which is refused: %v", line, again, err)
		}
		if diff := cmp.Diff(s, back, histograms); diff != "" {
			t.Errorf("%q: %s", line, diff)
		}
		if s.Segment.Count == 1 {
			if _, err := Merge([]Shard{s}); err != nil {
				t.Errorf("%q is not merged: %v", line, err)
			}
		}
	})
}
