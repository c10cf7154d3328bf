package benchmark

import (
	"testing"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/shard"
)

// A few of a mode that resumes had no ticket, and their handshakes took ten times as long.
func TestALatencyOfAModeThatResumesIsOfResumedHandshakes(t *testing.T) {
	b := inPlace(v1alpha1.BenchmarkRunning)
	b.Spec.Modes[0].Handshake = v1alpha1.BenchmarkHandshakeResumed
	s := stateIn(t, b, 8)
	series := func(kind shard.Kind, count int64, took time.Duration) shard.Series {
		h := &shard.Histogram{}
		for range count {
			h.Record(took)
		}
		return shard.Series{Kind: kind, Count: count, Handshake: h}
	}
	for _, m := range s.plan.Measurements {
		one, err := measured(1, shard.Result{Pods: 1, Common: s.plan.Load.Duration, PerSecond: 20, Handshakes: []shard.Series{
			series(shard.Kind{Group: "X25519MLKEM768", Version: "TLSv1.3", SignatureAlgorithm: "mldsa65"}, 4, 10*time.Millisecond),
			series(shard.Kind{Group: "X25519MLKEM768", Version: "TLSv1.3", Resumed: true}, 96, time.Millisecond)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.records[m.Name()] = one
	}
	points, err := pointsOf(s)
	if err != nil || len(points) != 2 {
		t.Fatalf("%d points: %v", len(points), err)
	}
	for _, p := range points {
		if p.Latency == nil || p.Latency.Max.Duration > 2*time.Millisecond || p.Latency.Mean.Duration > 2*time.Millisecond {
			t.Errorf("with %d replicas: %+v, want the resumed handshakes' 1 ms", p.Replicas, p.Latency)
		}
		if p.Resumption != "0.9600" {
			t.Errorf("with %d replicas %s are resumed", p.Replicas, p.Resumption)
		}
	}
}
