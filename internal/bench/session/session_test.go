package session

import (
	"encoding/json"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"qtls.dev/qtls/internal/bench/shard"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func ms(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

func TestASessionSumsUp(t *testing.T) {
	s := Begin("edge:443", noon)
	for i := 1; i <= 1000; i++ {
		s.Add(Sample{Total: ms(float64(i)), Network: ms(float64(i) / 4), Server: ms(float64(i) / 2)})
	}
	s.Fail(shard.Timeout)
	s.Fail(shard.Alert("internal_error"))
	s.Fail("something else")
	sum := s.Summary(noon.Add(time.Minute))
	for name, c := range map[string]struct{ got, want time.Duration }{
		"min": {sum.Min, ms(1)}, "mean": {sum.Mean, ms(500.5)}, "p50": {sum.P50, ms(500)}, "p95": {sum.P95, ms(950)}, "p99": {sum.P99, ms(990)}, "max": {sum.Max, ms(1000)},
	} {
		if math.Abs(float64(c.got-c.want)) > 0.001*float64(c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	if sum.Samples != 1000 || math.Abs(sum.NetworkShare-0.25) > 1e-6 || math.Abs(sum.ServerShare-0.5) > 1e-6 || sum.Failed() != 3 {
		t.Errorf("%+v", sum)
	}
	want := map[shard.Failure]int64{shard.Timeout: 1, shard.Handshake: 1, shard.Other: 1}
	if diff := cmp.Diff(want, sum.Failures); diff != "" {
		t.Error(diff)
	}
}

func TestCutBeginsTheNextSession(t *testing.T) {
	s := Begin("edge:443", noon)
	s.Add(Sample{Total: ms(1)})
	s.Fail(shard.Reset)
	s.Miss(2)
	s.Miss(1)
	if first := s.Cut(noon.Add(time.Minute)); first.Samples != 1 || first.Failed() != 1 || first.Missed != 3 || !first.Start.Equal(noon) {
		t.Errorf("%+v", first)
	}
	s.Add(Sample{Total: ms(2)})
	s.Add(Sample{Total: ms(2)})
	second := s.Cut(noon.Add(2 * time.Minute))
	if second.Samples != 2 || second.Failed() != 0 || second.Missed != 0 || !second.Start.Equal(noon.Add(time.Minute)) || second.Min < ms(1.9) {
		t.Errorf("%+v", second)
	}
	if third := s.Cut(noon.Add(3 * time.Minute)); !third.Empty() || second.Empty() {
		t.Errorf("%+v", third)
	}
	for what, happens := range map[string]func(){"a sample": func() { s.Add(Sample{Total: ms(2)}) }, "a failure": func() { s.Fail(shard.Reset) }, "one that is missed": func() { s.Miss(1) }} {
		if happens(); s.Cut(noon).Empty() {
			t.Errorf("%s is nothing", what)
		}
	}
}

func TestPartsAreNeverMoreThanTheWhole(t *testing.T) {
	s := Begin("edge:443", noon)
	s.Add(Sample{Total: ms(1), Network: ms(5), Server: ms(5)})
	s.Add(Sample{Total: ms(1), Network: -ms(5), Server: ms(5)})
	s.Add(Sample{Total: -ms(1), Network: ms(1)})
	if sum := s.Summary(noon); sum.NetworkShare != 0.5 || sum.ServerShare != 0.5 || sum.Min != 0 {
		t.Errorf("%+v", sum)
	}
}

func TestASessionWithoutSamplesHasNoTimes(t *testing.T) {
	sum := Begin("edge:443", noon).Summary(noon)
	if diff := cmp.Diff(Summary{Target: "edge:443", Start: noon, End: noon}, sum); diff != "" {
		t.Error(diff)
	}
	if got := sum.String(); got != "2026-06-01T12:00:00Z edge:443: 0 samples in 0s" {
		t.Error(got)
	}
}

// What a session keeps does not grow: a sample allocates nothing.
func TestMemoryIsBounded(t *testing.T) {
	s := Begin("edge:443", noon)
	s.Add(Sample{Total: ms(1)})
	s.Fail(shard.Timeout)
	n := 0
	if allocations := testing.AllocsPerRun(10_000, func() {
		n++
		s.Add(Sample{Total: time.Duration(n) * time.Microsecond, Server: time.Microsecond})
		s.Fail(shard.Timeout)
	}); allocations != 0 {
		t.Errorf("%v allocations a sample", allocations)
	}
	before := s.Cut(noon)
	if allocations := testing.AllocsPerRun(100, func() { s.Add(Sample{Total: ms(1)}); s.Cut(noon) }); allocations > 5 || before.Samples < 10_000 {
		t.Errorf("%v allocations a session of %d samples", allocations, before.Samples)
	}
	runtime.KeepAlive(s)
}

func TestNoSampleIsLostBetweenSessions(t *testing.T) {
	s := Begin("edge:443", noon)
	var adders sync.WaitGroup
	for range 4 {
		adders.Go(func() {
			for range 5000 {
				s.Add(Sample{Total: ms(1)})
			}
		})
	}
	var total int64
	for range 50 {
		total += s.Cut(noon).Samples
	}
	adders.Wait()
	if total += s.Cut(noon).Samples; total != 20_000 {
		t.Errorf("%d samples of 20000", total)
	}
}

func TestLines(t *testing.T) {
	s := Begin("edge:443", noon)
	s.Add(Sample{Total: ms(2), Network: ms(0.5), Server: ms(1)})
	s.Fail(shard.Timeout)
	s.Miss(9)
	sum := s.Summary(noon.Add(time.Minute))
	if got, want := sum.String(), "2026-06-01T12:01:00Z edge:443: 1 samples in 1m0s, min 2ms mean 2ms p50 2ms p95 2ms p99 2ms max 2ms, server 50 % network 25 %, Timeout failed 1, 9 missed"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	line, err := sum.Line()
	if err != nil || line[len(line)-1] != '\n' {
		t.Fatalf("%q, %v", line, err)
	}
	var back Summary
	if err := json.Unmarshal(line, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sum, back); diff != "" {
		t.Error(diff)
	}
}
