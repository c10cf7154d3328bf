package xqtls

import (
	"encoding/json"
	"maps"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"qtls.dev/qtls/internal/bench/session"
	"qtls.dev/qtls/internal/bench/shard"
)

// A sample that takes long makes the next one late, and those due before that are missed.
func TestSamplesThatAreDueMeanwhileAreMissed(t *testing.T) {
	was := time.Unix(1_700_000_000, 0)
	at := func(seconds float64) time.Time { return was.Add(time.Duration(seconds * float64(time.Second))) }
	for took, want := range map[float64]struct {
		due    float64
		missed int64
	}{0.1: {1, 0}, 1: {1, 0}, 1.9: {1, 0}, 2: {2, 1}, 3.5: {3, 2}, 10.2: {10, 9}} {
		if due, missed := next(was, at(took), time.Second); !due.Equal(at(want.due)) || missed != want.missed {
			t.Errorf("one that took %v s: the next after %v, %d missed, want %+v", took, due.Sub(was), missed, want)
		}
	}
}

// Some thousand failures of a night have a few reasons: a line has that of the first one of each class.
func TestASummaryHasTheFirstMessageOfEachClass(t *testing.T) {
	noon := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	s := &sampler{session: session.Begin("edge:443", noon), metrics: newSessionMetrics("edge:443")}
	s.fail(shard.Alert("handshake_failure"), "no group in common")
	s.fail(shard.Alert("internal_error"), "another alert")
	s.fail(shard.HTTP, "not an HTTP response: \n\x1b[2J"+strings.Repeat("x", 1000))
	first := s.cut(noon.Add(time.Minute))
	long := "not an HTTP response: \n\x1b[2J" + strings.Repeat("x", 160-27) + "…"
	want := `2026-06-01T12:01:00Z edge:443: 0 samples in 1m0s, HTTP failed 1, Handshake failed 2; HTTP: ` + strconv.Quote(long) + `; Handshake: "no group in common"`
	if got := first.String(); got != want || strings.ContainsAny(got, "\n\x1b") {
		t.Errorf("the console has\n%s\nwant\n%s", got, want)
	}
	line, err := json.Marshal(first)
	if err != nil {
		t.Fatal(err)
	}
	var back summary
	if err := json.Unmarshal(line, &back); err != nil || back.Failures[shard.Handshake] != 2 ||
		!maps.Equal(back.Messages, map[shard.Failure]string{shard.Handshake: "no group in common", shard.HTTP: long}) {
		t.Errorf("the file has %s, %v", line, err)
	}

	s.fail(shard.Handshake, "another reason")
	if second := s.cut(noon.Add(2 * time.Minute)); !maps.Equal(second.Messages, map[shard.Failure]string{shard.Handshake: "another reason"}) {
		t.Errorf("the second summary has %q", second.Messages)
	}
	if third := s.cut(noon.Add(3 * time.Minute)); strings.Contains(third.String(), ";") {
		t.Errorf("without failures: %s", third)
	}
}

// shown are the metrics that Prometheus would read.
func shown(t *testing.T, m *sessionMetrics) map[string]float64 {
	t.Helper()
	response := httptest.NewRecorder()
	promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}).ServeHTTP(response, httptest.NewRequest("GET", "/metrics", nil))
	all := map[string]float64{}
	for line := range strings.Lines(response.Body.String()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "#" {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all[name] = v
	}
	return all
}

func TestMetricsAreThoseOfTheLastSummary(t *testing.T) {
	m := newSessionMetrics("edge:443")
	m.samples.Add(60)
	m.missed.Add(2)
	m.failures.WithLabelValues("Timeout").Inc()
	m.show(session.Summary{
		End: time.UnixMilli(1_700_000_000_500), Samples: 60,
		Min: time.Millisecond, Mean: 2 * time.Millisecond, P50: 3 * time.Millisecond, P95: 4 * time.Millisecond, P99: 5 * time.Millisecond, Max: 6 * time.Millisecond,
		ServerShare: 0.5, NetworkShare: 0.25,
	})
	want := map[string]float64{
		`qtls_session_samples_total{target="edge:443"}`:                    60,
		`qtls_session_missed_total{target="edge:443"}`:                     2,
		`qtls_session_end_timestamp_seconds{target="edge:443"}`:            1_700_000_000.5,
		`qtls_session_latency_seconds{statistic="min",target="edge:443"}`:  0.001,
		`qtls_session_latency_seconds{statistic="mean",target="edge:443"}`: 0.002,
		`qtls_session_latency_seconds{statistic="p50",target="edge:443"}`:  0.003,
		`qtls_session_latency_seconds{statistic="p95",target="edge:443"}`:  0.004,
		`qtls_session_latency_seconds{statistic="p99",target="edge:443"}`:  0.005,
		`qtls_session_latency_seconds{statistic="max",target="edge:443"}`:  0.006,
		`qtls_session_time_share{of="server",target="edge:443"}`:           0.5,
		`qtls_session_time_share{of="network",target="edge:443"}`:          0.25,
		`qtls_session_failures_total{class="Timeout",target="edge:443"}`:   1,
	}
	for _, class := range shard.Failures {
		if name := `qtls_session_failures_total{class="` + string(class) + `",target="edge:443"}`; class != shard.Timeout {
			want[name] = 0 // before the first one, so that Prometheus sees an increase
		}
	}
	if got := shown(t, m); !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}

	m.show(session.Summary{End: time.Unix(1_700_000_060, 0)}) // nothing succeeded
	maps.DeleteFunc(want, func(name string, _ float64) bool {
		return strings.Contains(name, "latency") || strings.Contains(name, "share")
	})
	want[`qtls_session_end_timestamp_seconds{target="edge:443"}`] = 1_700_000_060
	if got := shown(t, m); !maps.Equal(got, want) {
		t.Errorf("without samples: got %v\nwant %v", got, want)
	}
}
