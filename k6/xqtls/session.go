package xqtls

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"qtls.dev/qtls/internal/bench/session"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/k6/openssl"
	"qtls.dev/qtls/k6/options"
)

// SessionCA is the environment variable with the authorities of a session, in PEM, where no file has them.
const SessionCA = "QTLS_SESSION_CA"

// sessionOptions are what the command line says.
type sessionOptions struct {
	client   options.Options
	request  *request      // nil: nothing but a handshake
	interval time.Duration // from the beginning of a sample to that of the next one
	every    time.Duration // from one summary to the next
	duration time.Duration // 0: until it is told to end
	file     string
	metrics  string
}

// listFlag is a list with commas.
type listFlag struct{ names *[]any }

func (l listFlag) String() string { return "" }
func (l listFlag) Set(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		*l.names = append(*l.names, name)
	}
	return nil
}

// parseSession reads the command line of `qtls-k6 session`.
func parseSession(args []string, getenv func(string) string, help io.Writer) (sessionOptions, error) {
	var s sessionOptions
	flags := flag.NewFlagSet("qtls-k6 session", flag.ContinueOnError)
	flags.SetOutput(help)
	object := map[string]any{}
	text := func(name, option, usage string) {
		flags.Func(name, usage, func(value string) error { object[option] = value; return nil })
	}
	text("host", "host", "name or address of the gateway (required)")
	port := flags.Int64("port", 443, "its port")
	text("sni", "sni", "name in the ClientHello, which the certificate must carry (default: the host, if that is a name)")
	text("provider", "provider", "path of an OpenSSL provider's module")
	text("timeout", "timeout", `of a sample, as in "10s"`)
	var groups, algorithms []any
	flags.Var(listFlag{&groups}, "groups", "groups to offer, with commas between them (default: OpenSSL's)")
	flags.Var(listFlag{&algorithms}, "signature-algorithms", "signature algorithms to offer, with commas between them (default: OpenSSL's)")
	resumption := flags.Bool("resumption", false, "resume the session of the sample before")
	ca := flags.String("ca", "", "file with the authorities, in PEM (default: what the environment variable "+SessionCA+" holds)")
	path := flags.String("path", "/", `what to ask for by HTTP; "" makes handshakes only`)
	status := flags.Int("status", 0, "HTTP status that is expected (default: any 2xx)")
	flags.DurationVar(&s.interval, "interval", time.Second, "time from one sample to the next")
	flags.DurationVar(&s.every, "every", time.Minute, "time from one summary to the next")
	flags.DurationVar(&s.duration, "duration", 0, "how long; 0 goes on until SIGTERM or SIGINT")
	flags.StringVar(&s.file, "file", "", "file to which each summary is added as a line of JSON")
	flags.StringVar(&s.metrics, "metrics", "", `address where Prometheus finds metrics, as in ":9090"`)
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("%q: there are flags only, such as --host", flags.Arg(0))
	}
	pem := getenv(SessionCA)
	if *ca != "" {
		content, err := os.ReadFile(*ca)
		if err != nil {
			return s, fmt.Errorf("--ca: %w", err)
		}
		pem = string(content)
	}
	if pem == "" {
		return s, fmt.Errorf("there are no authorities, and the certificate is always verified: name a file with --ca, or set %s", SessionCA)
	}
	object["ca"], object["port"] = pem, *port
	if len(groups) > 0 {
		object["groups"] = groups
	}
	if len(algorithms) > 0 {
		object["signatureAlgorithms"] = algorithms
	}
	if *resumption {
		object["resumption"] = true
	}
	var err error
	if s.client, err = options.Parse(object); err != nil {
		return s, err
	}
	if *path != "" {
		s.request = &request{path: *path, status: *status}
		err = s.request.validate()
	}
	for name, d := range map[string]time.Duration{"interval": s.interval, "every": s.every} {
		if d < time.Millisecond {
			err = errors.Join(err, fmt.Errorf("--%s %v: give 1ms or more", name, d))
		}
	}
	if s.duration < 0 {
		err = errors.Join(err, fmt.Errorf("--duration %v: give 0 or more", s.duration))
	}
	return s, err
}

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
}

// run until the context ends. The sample that is being made then is the last one, and the last summary has it.
func (s *sampler) run(ctx context.Context) error {
	summaries := time.NewTicker(s.options.every)
	defer summaries.Stop()
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
				if err := s.write(s.session.Cut(time.Now())); err != nil {
					return err
				}
			case <-ctx.Done():
				waiting = false
			}
		}
	}
	return s.write(s.session.Cut(time.Now()))
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
	one, failed := s.ask(ctx)
	if failed != "" {
		s.session.Fail(failed)
		s.metrics.failures.WithLabelValues(string(failed.Class())).Inc()
		return
	}
	s.session.Add(one)
	s.metrics.samples.Inc()
}

// ask makes one sample. The name is resolved for each, as peers may move, and not counted.
func (s *sampler) ask(ctx context.Context) (session.Sample, shard.Failure) {
	address, err := lookUp(ctx, s.options.client.Host, s.options.client.Timeout)
	if err != nil {
		return session.Sample{}, shard.Connect
	}
	k, report := s.client.Connect(address, s.options.client.Port, s.options.client.Timeout)
	if k == nil {
		return session.Sample{}, report.Failure
	}
	defer k.Close()
	var x exchange
	if s.options.request == nil {
		_, err = k.AwaitTickets(s.options.client.Tickets)
	} else {
		err = x.run(k, authority(s.options.client), *s.options.request)
	}
	if err != nil {
		class, _ := classify(err)
		return session.Sample{}, class
	}
	return sampleOf(report, x.time), ""
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

// lookUp finds an address of a host now.
func lookUp(ctx context.Context, host string, timeout time.Duration) (string, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.String(), nil
	}
	// The sample is made to its end though the session ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return "", err
	}
	return found[0].Unmap().String(), nil
}

// write a summary everywhere.
func (s *sampler) write(sum session.Summary) error {
	s.metrics.show(sum)
	if _, err := fmt.Fprintln(s.console, sum); err != nil {
		return err
	}
	if s.file == nil {
		return nil
	}
	line, err := sum.Line()
	if err == nil {
		_, err = s.file.Write(line)
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
