package xqtls

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"qtls.dev/qtls/internal/bench/session"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/k6/openssl"
)

// Session asks a gateway for something every so often, until the context ends, and writes summaries to out, and to what the
// command line names. A sample that fails is counted, and the session goes on. Memory does not grow: samples are counted in
// one histogram (internal/bench/session).
func Session(ctx context.Context, args []string, getenv func(string) string, out io.Writer) error {
	o, err := parseSession(args, getenv, out)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	c, err := openssl.NewClient(o.client)
	if err != nil {
		return err
	}
	target := hostPort(o.client.Host, o.client.Port)
	if o.client.SNI != "" && o.client.SNI != o.client.Host {
		target += " (" + o.client.SNI + ")"
	}
	s := &sampler{options: o, client: c, session: session.Begin(target, time.Now()), metrics: newSessionMetrics(target), console: out}
	if o.file != "" {
		f, err := os.OpenFile(o.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("--file: %w", err)
		}
		defer f.Close()
		s.file = f
	}
	if o.metrics != "" {
		stop, err := s.metrics.serve(o.metrics, out)
		if err != nil {
			return fmt.Errorf("--metrics: %w", err)
		}
		defer stop()
	}
	if o.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	return s.run(ctx)
}

// sampler is a session that goes on.
type sampler struct {
	options sessionOptions
	client  *openssl.Client
	session *session.Session
	metrics *sessionMetrics
	console io.Writer
	file    io.Writer // nil without one
	// messages are what the first failure of each class has said since the last summary.
	messages map[shard.Failure]string
}

// run until the context ends. The sample that is being made then is the last one, and the last summary has it.
func (s *sampler) run(ctx context.Context) error {
	summaries := time.NewTicker(s.options.every)
	defer summaries.Stop()
	written := false
	for due := time.Now(); ctx.Err() == nil; {
		s.sample(ctx)
		var missed int64
		due, missed = next(due, time.Now(), s.options.interval)
		s.session.Miss(missed)
		s.metrics.missed.Add(float64(missed))
		wait := time.After(time.Until(due))
		for waiting := true; waiting; {
			select {
			case <-wait:
				waiting = false
			case <-summaries.C:
				if err := s.write(s.cut(time.Now())); err != nil {
					return err
				}
				written = true
			case <-ctx.Done():
				waiting = false
			}
		}
	}
	last := s.cut(time.Now())
	if written && last.Empty() { // the session ends with a summary that was due
		return nil
	}
	return s.write(last)
}

// next sample is due when, after the one that was and is made now; and how many were due in between, which one that takes
// long keeps from being made.
func next(was, now time.Time, interval time.Duration) (due time.Time, missed int64) {
	due = was.Add(interval)
	if late := now.Sub(due); late >= interval {
		missed = int64(late / interval)
		due = due.Add(time.Duration(missed) * interval)
	}
	return due, missed
}

func (s *sampler) sample(ctx context.Context) {
	one, err := s.ask(ctx)
	if err != nil {
		s.fail(classify(err))
		return
	}
	s.session.Add(one)
	s.metrics.samples.Inc()
}

// fail counts a failure. That there are some is no news without what one of them said.
func (s *sampler) fail(failure shard.Failure, message string) {
	class := failure.Class()
	s.session.Fail(class)
	s.metrics.failures.WithLabelValues(string(class)).Inc()
	if _, told := s.messages[class]; told {
		return
	}
	if s.messages == nil {
		s.messages = map[shard.Failure]string{}
	}
	if r := []rune(message); len(r) > longestMessage {
		message = string(r[:longestMessage]) + "…"
	}
	s.messages[class] = message
}

// longestMessage of a failure, in characters: a server's own words can be in it.
const longestMessage = 160

// ask makes one sample. The name is resolved for each, as peers may move: that is no part of the sample, but of its time limit.
func (s *sampler) ask(ctx context.Context) (session.Sample, error) {
	o := s.options.client
	deadline := time.Now().Add(o.Timeout)
	// The sample is made to its end though the session ends.
	address, err := lookUp(context.WithoutCancel(ctx), o.Host, deadline)
	if err != nil {
		return session.Sample{}, err
	}
	k, report := s.client.Connect(address, o.Port, time.Until(deadline))
	if k == nil {
		return session.Sample{}, &openssl.Failed{Class: report.Failure, Message: report.Message}
	}
	defer k.Close()
	var x exchange
	if s.options.request == nil {
		_, err = k.AwaitTickets(o.Tickets)
	} else {
		err = x.run(k, authority(o), *s.options.request)
	}
	return sampleOf(report, x.time), err
}

// sampleOf adds up the parts: TCP's handshake is the network's, for kernels answer it, and of the exchange one round trip is.
func sampleOf(r openssl.Report, exchange time.Duration) session.Sample {
	roundTrip := min(r.RoundTrip, exchange)
	return session.Sample{
		Total:   r.Connect + r.Handshake + exchange,
		Network: r.Connect + r.Network + roundTrip,
		Server:  r.Server + exchange - roundTrip,
	}
}

// summary is a session's, with what the first failure of each class said.
type summary struct {
	session.Summary
	Messages map[shard.Failure]string `json:"messages,omitempty"`
}

// String is a line for a console: what a server said is quoted, and cannot end the line.
func (s summary) String() string {
	text := s.Summary.String()
	for _, class := range slices.Sorted(maps.Keys(s.Messages)) {
		text += fmt.Sprintf("; %s: %q", class, s.Messages[class])
	}
	return text
}

// cut ends the session and begins the next one.
func (s *sampler) cut(now time.Time) summary {
	sum := summary{s.session.Cut(now), s.messages}
	s.messages = nil
	return sum
}

// write a summary everywhere.
func (s *sampler) write(sum summary) error {
	s.metrics.show(sum.Summary)
	if _, err := fmt.Fprintln(s.console, sum); err != nil {
		return err
	}
	if s.file == nil {
		return nil
	}
	line, err := json.Marshal(sum)
	if err == nil {
		_, err = s.file.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("--file: %w", err)
	}
	return nil
}

// sessionMetrics are what Prometheus gets: samples and failures as they come, the rest of the last summary.
type sessionMetrics struct {
	registry *prometheus.Registry
	samples  prometheus.Counter
	failures *prometheus.CounterVec
	missed   prometheus.Counter
	latency  *prometheus.GaugeVec
	share    *prometheus.GaugeVec
	end      prometheus.Gauge
}

func newSessionMetrics(target string) *sessionMetrics {
	labels := prometheus.Labels{"target": target}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}
	}
	m := &sessionMetrics{
		registry: prometheus.NewRegistry(),
		samples:  prometheus.NewCounter(prometheus.CounterOpts{Name: "qtls_session_samples_total", Help: "Samples that succeeded.", ConstLabels: labels}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "qtls_session_failures_total", Help: "Samples that failed, by class.", ConstLabels: labels}, []string{"class"}),
		missed:   prometheus.NewCounter(prometheus.CounterOpts{Name: "qtls_session_missed_total", Help: "Samples that were due while another one took its time.", ConstLabels: labels}),
		latency:  prometheus.NewGaugeVec(gauge("qtls_session_latency_seconds", "Time of a sample in the last whole session: min, mean, p50, p95, p99, max."), []string{"statistic"}),
		share:    prometheus.NewGaugeVec(gauge("qtls_session_time_share", "Share of the last whole session's time, by whose it was: server or network. The rest is the client's."), []string{"of"}),
		end:      prometheus.NewGauge(gauge("qtls_session_end_timestamp_seconds", "When the last whole session ended, in Unix time; 0 before.")),
	}
	m.registry.MustRegister(m.samples, m.failures, m.missed, m.latency, m.share, m.end)
	for _, class := range shard.Failures {
		m.failures.WithLabelValues(string(class))
	}
	return m
}

// show a summary. Without a sample there is no latency.
func (m *sessionMetrics) show(s session.Summary) {
	m.end.Set(float64(s.End.UnixMilli()) / 1000)
	m.latency.Reset()
	m.share.Reset()
	if s.Samples == 0 {
		return
	}
	for name, d := range map[string]time.Duration{"min": s.Min, "mean": s.Mean, "p50": s.P50, "p95": s.P95, "p99": s.P99, "max": s.Max} {
		m.latency.WithLabelValues(name).Set(d.Seconds())
	}
	m.share.WithLabelValues("server").Set(s.ServerShare)
	m.share.WithLabelValues("network").Set(s.NetworkShare)
}

// serve metrics at an address, and say where; stop ends it.
func (m *sessionMetrics) serve(address string, out io.Writer) (stop func(), err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }() // until it is closed
	_, err = fmt.Fprintf(out, "metrics: http://%s/metrics\n", l.Addr())
	return func() { _ = server.Close() }, err
}
