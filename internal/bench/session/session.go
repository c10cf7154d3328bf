// Package session sums up what a client sees of a running gateway that it asks
// for an echo every so often: light enough to leave on, and no benchmark.
package session

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"qtls.dev/qtls/internal/bench/shard"
)

// Sample is one request and its answer. Network and Server are parts of Total;
// the rest is the client's own.
type Sample struct {
	Total   time.Duration
	Network time.Duration
	Server  time.Duration
}

// Session sums samples up, from its start until it is cut. It keeps no samples but
// counts them in a histogram, so that it never takes more memory than one does
// (140 KB), however long it goes on. Goroutines may share it.
type Session struct {
	target string

	mu       sync.Mutex
	start    time.Time
	times    shard.Histogram
	total    time.Duration
	network  time.Duration
	server   time.Duration
	failures map[shard.Failure]int64
	missed   int64
}

// Begin a session with a target.
func Begin(target string, now time.Time) *Session {
	return &Session{target: target, start: now}
}

// Add a sample. Parts that were measured as more than the whole are cut to it.
func (s *Session) Add(sample Sample) {
	total := max(sample.Total, 0)
	network := min(max(sample.Network, 0), total)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times.Record(total)
	s.total += total
	s.network += network
	s.server += min(max(sample.Server, 0), total-network)
}

// Fail counts a request that got no answer. Alerts are counted as one class, so
// that a server cannot make the session grow.
func (s *Session) Fail(class shard.Failure) {
	class = class.Class()
	if !slices.Contains(shard.Failures, class) {
		class = shard.Other
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures == nil {
		s.failures = map[shard.Failure]int64{}
	}
	s.failures[class]++
}

// Miss counts samples that were due while another one took its time. What those would
// have waited is in no percentile.
func (s *Session) Miss(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missed += n
}

// Summary is a session so far. Percentiles are those of its own samples: of a few
// they say little of the next ones, which is why Samples stands beside them.
type Summary struct {
	Target  string    `json:"target"`
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	Samples int64     `json:"samples"`
	// Times are in nanoseconds, and 0 without samples.
	Min  time.Duration `json:"min"`
	Mean time.Duration `json:"mean"`
	P50  time.Duration `json:"p50"`
	P95  time.Duration `json:"p95"`
	P99  time.Duration `json:"p99"`
	Max  time.Duration `json:"max"`
	// Shares of all the time that was waited.
	ServerShare  float64                 `json:"serverShare"`
	NetworkShare float64                 `json:"networkShare"`
	Failures     map[shard.Failure]int64 `json:"failures,omitempty"`
	// Missed samples were due while another one took its time.
	Missed int64 `json:"missed,omitempty"`
}

// Empty says that there was neither a sample nor the want of one.
func (s Summary) Empty() bool { return s.Samples == 0 && len(s.Failures) == 0 && s.Missed == 0 }

// Summary of the session until now; it goes on.
func (s *Session) Summary(now time.Time) Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.summary(now)
}

// Cut ends the session and begins the next one. No sample is in both, or in none.
func (s *Session) Cut(now time.Time) Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.summary(now)
	s.times.Reset()
	s.start, s.total, s.network, s.server, s.failures, s.missed = now, 0, 0, 0, nil, 0
	return sum
}

func (s *Session) summary(now time.Time) Summary {
	sum := Summary{
		Target: s.target, Start: s.start, End: now, Samples: s.times.Count(), Failures: maps.Clone(s.failures), Missed: s.missed,
		Min: s.times.Min(), Max: s.times.Max(),
		P50: s.times.Percentile(50), P95: s.times.Percentile(95), P99: s.times.Percentile(99),
	}
	if sum.Samples > 0 {
		sum.Mean = s.total / time.Duration(sum.Samples)
	}
	if s.total > 0 {
		sum.ServerShare, sum.NetworkShare = float64(s.server)/float64(s.total), float64(s.network)/float64(s.total)
	}
	return sum
}

// Failed requests of all classes.
func (s Summary) Failed() int64 {
	var n int64
	for _, count := range s.Failures {
		n += count
	}
	return n
}

// String is a line for a console.
func (s Summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: %d samples in %v", s.End.UTC().Format(time.RFC3339), s.Target, s.Samples, s.End.Sub(s.Start).Round(time.Second))
	if s.Samples > 0 {
		short := func(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
		fmt.Fprintf(&b, ", min %v mean %v p50 %v p95 %v p99 %v max %v, server %.0f %% network %.0f %%",
			short(s.Min), short(s.Mean), short(s.P50), short(s.P95), short(s.P99), short(s.Max), s.ServerShare*100, s.NetworkShare*100)
	}
	for _, class := range slices.Sorted(maps.Keys(s.Failures)) {
		fmt.Fprintf(&b, ", %s failed %d", class, s.Failures[class])
	}
	if s.Missed > 0 {
		fmt.Fprintf(&b, ", %d missed", s.Missed)
	}
	return b.String()
}

// Line is a line of JSON for a file, with its end.
func (s Summary) Line() ([]byte, error) {
	text, err := json.Marshal(s)
	return append(text, '\n'), err
}
