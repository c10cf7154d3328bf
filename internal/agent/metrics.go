package agent

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/haproxy/runtime"
)

// Metrics of an agent and of its HAProxy. All names are here.
type Metrics struct {
	registry *prometheus.Registry

	handshakes        *prometheus.CounterVec
	handshakeFailures *prometheus.CounterVec
	wouldRefuse       *prometheus.CounterVec

	revision    *prometheus.GaugeVec
	generation  prometheus.Gauge
	ready       prometheus.Gauge
	reloads     prometheus.Counter
	rejections  prometheus.Counter
	endpoints   prometheus.Counter
	certificate *prometheus.GaugeVec
	unserved    *prometheus.GaugeVec
	apply       *prometheus.HistogramVec

	ticketRotations prometheus.Counter
	// tickets is what their metrics are made of; nil where no session is resumed.
	tickets atomic.Pointer[ticketMetrics]
	// hsm is what the worker says of HSMs; nil where it has no key in one.
	hsm atomic.Pointer[hsmStatus]
	// storeReached is when the store of ticket keys last answered, in Unix
	// seconds; 0: never.
	storeReached atomic.Int64
	// storeWaited is for how long it was waited for in total, in nanoseconds.
	storeWaited atomic.Int64

	// admin is the socket of the worker that serves; empty while none does.
	admin atomic.Pointer[runtime.Admin]
}

// NewMetrics registers them.
func NewMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		handshakes: counters("qtls_handshakes_total",
			"Completed TLS handshakes, by what was negotiated. certificate is the key algorithm of the certificate that was served.",
			"listener", "version", "group", "certificate", "resumed"),
		handshakeFailures: counters("qtls_handshake_failures_total",
			"TLS handshakes that failed, by why.", "listener", "reason"),
		wouldRefuse: counters("qtls_policy_would_refuse_total",
			"Completed handshakes that the gateway's policy, in mode Require, would have refused, by each aspect that it does not accept: version, group, suite or certificate.",
			"listener", "aspect"),
		revision: gauges("qtls_agent_revision_info",
			"The configuration that HAProxy runs: always 1.", "revision"),
		generation: gauge("qtls_agent_generation",
			"Generation of the QTLSGateway whose configuration HAProxy runs; 0 while it runs none."),
		ready: gauge("qtls_agent_haproxy_up",
			"1 while HAProxy serves, else 0."),
		reloads: counter("qtls_agent_reloads_total",
			"Reloads of HAProxy by this process of the agent."),
		rejections: counter("qtls_agent_rejections_total",
			"Configurations that HAProxy refused."),
		endpoints: counter("qtls_agent_server_changes_total",
			"Servers that were moved, added or taken out without a reload."),
		certificate: gauges("qtls_agent_certificate_not_after_timestamp_seconds",
			"End of validity of the certificate that is served, in Unix time.", "secret", "serial_number"),
		unserved: gauges("qtls_agent_certificate_problem",
			"1 while the present content of the Secret cannot be served, else 0.", "secret"),
		ticketRotations: counter("qtls_agent_ticket_rotations_total",
			"Changes of the keys of session tickets."),
		apply: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "qtls_agent_apply_duration_seconds",
			Help:    "Time to apply a change. certificate: from the agent's learning of the Secret's change until HAProxy serves it; endpoints: the moves; configuration: writing and checking; reload: until the new worker answers.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"change"}),
	}
	m.registry.MustRegister(
		m.handshakes, m.handshakeFailures, m.wouldRefuse, m.revision, m.generation, m.ready, m.reloads, m.rejections,
		m.endpoints, m.certificate, m.unserved, m.apply, m.ticketRotations, proxyCollector{m}, ticketCollector{m}, hsmCollector{m},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

func (m *Metrics) applied(change string, took time.Duration) {
	m.apply.WithLabelValues(change).Observe(took.Seconds())
}

// setState follows the status.
func (m *Metrics) setState(s dataplane.Status) {
	m.revision.Reset()
	if s.Running.Revision != "" {
		m.revision.WithLabelValues(s.Running.Revision).Set(1)
	}
	m.generation.Set(float64(s.Running.Generation))
	m.certificate.Reset()
	m.unserved.Reset()
	for _, c := range s.Certificates {
		if c.SerialNumber != "" {
			m.certificate.WithLabelValues(c.Secret, c.SerialNumber).Set(float64(c.NotAfter.Unix()))
		}
		problem := 0.0
		if c.Error != "" {
			problem = 1
		}
		m.unserved.WithLabelValues(c.Secret).Set(problem)
	}
}

// setProxy tells where to ask HAProxy; nil while it does not run.
func (m *Metrics) setProxy(admin *runtime.Admin) {
	m.admin.Store(admin)
	if admin == nil {
		m.ready.Set(0)
	} else {
		m.ready.Set(1)
	}
}

var (
	connections = prometheus.NewDesc("qtls_haproxy_connections",
		"Open client connections. One that is handed on inside the pod, for the choice of a certificate, counts twice.", nil, nil)
	connectionsLimit = prometheus.NewDesc("qtls_haproxy_connections_limit",
		"How many client connections there may be before new ones wait.", nil, nil)
	sessions = prometheus.NewDesc("qtls_haproxy_sessions",
		"Open TLS sessions.", []string{"listener"}, nil)
	servers = prometheus.NewDesc("qtls_haproxy_active_servers",
		"Servers that take connections.", []string{"listener"}, nil)
)

// proxyCollector asks HAProxy when Prometheus does.
type proxyCollector struct{ metrics *Metrics }

// scrapeTimeout bounds what a stuck HAProxy costs a scrape.
const scrapeTimeout = 2 * time.Second

func (c proxyCollector) Describe(d chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{connections, connectionsLimit, sessions, servers} {
		d <- desc
	}
}

func (c proxyCollector) Collect(out chan<- prometheus.Metric) {
	admin := c.metrics.admin.Load()
	if admin == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	info, err := admin.Info(ctx)
	if err != nil {
		return // qtls_agent_haproxy_up tells of it
	}
	gauge(connections, float64(info.Connections))
	gauge(connectionsLimit, float64(info.MaxConnections))
	proxies, err := admin.Proxies(ctx)
	if err != nil {
		return
	}
	open := map[string]int{}
	for _, p := range proxies {
		if listener, ok := haproxy.ListenerOfFrontend(p.Name); ok && p.Frontend {
			open[listener] += p.Sessions // of all its binds
		}
		if listener, ok := haproxy.ListenerOfBackend(p.Name); ok && !p.Frontend {
			gauge(servers, float64(p.ActiveServers), listener)
		}
	}
	for listener, n := range open {
		gauge(sessions, float64(n), listener)
	}
}

var (
	ticketEpoch = prometheus.NewDesc("qtls_agent_ticket_epoch",
		"Epoch of the session-ticket keys in use; 0 while they are the pod's own, and no other replica opens its tickets.", nil, nil)
	ticketKeyAge = prometheus.NewDesc("qtls_agent_ticket_key_age_seconds",
		"How long the key that encrypts session tickets has done so in this pod.", nil, nil)
	storeReached = prometheus.NewDesc("qtls_agent_ticket_store_reached_timestamp_seconds",
		"When the store of session-ticket keys last answered this agent, in Unix time; 0: not yet.", nil, nil)
)

// ticketMetrics are those of session tickets.
type ticketMetrics struct {
	epoch uint64
	since time.Duration
	clock func() time.Duration
}

// ticketCollector tells of tickets where there are any: an epoch of 0 means
// something.
type ticketCollector struct{ metrics *Metrics }

func (c ticketCollector) Describe(d chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{ticketEpoch, ticketKeyAge, storeReached} {
		d <- desc
	}
}

func (c ticketCollector) Collect(out chan<- prometheus.Metric) {
	t := c.metrics.tickets.Load()
	if t == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value)
	}
	gauge(ticketEpoch, float64(t.epoch))
	gauge(ticketKeyAge, (t.clock() - t.since).Seconds())
	gauge(storeReached, float64(c.metrics.storeReached.Load()))
}

var (
	hsmUp = prometheus.NewDesc("qtls_hsm_member_up",
		"1 while this pod has signatures made by the member of the HSMPool, else 0.", []string{"member"}, nil)
	hsmSessions = prometheus.NewDesc("qtls_hsm_sessions",
		"Sessions with the member that are open: so many signatures can be made at a time.", []string{"member"}, nil)
	hsmSignatures = prometheus.NewDesc("qtls_hsm_signature_duration_seconds",
		"Signatures that the member has made since HAProxy's worker started, and the time that each handshake waited for its own: the sum, and how many.", []string{"member"}, nil)
	hsmFailures = prometheus.NewDesc("qtls_hsm_signature_failures_total",
		"Signatures that the member was asked for and has not made, for no fault of the request.", []string{"member"}, nil)
	hsmFailovers = prometheus.NewDesc("qtls_hsm_failovers_total",
		"Those of the failures that another member was asked for then.", []string{"member"}, nil)
	hsmAbandoned = prometheus.NewDesc("qtls_hsm_abandoned_jobs",
		"Clients that left HAProxy's worker while an HSM signed for them. At 2000 the agent has HAProxy start another worker, once in ten minutes at most.", nil, nil)
)

// hsmCollector tells what HAProxy's worker last wrote of HSMs.
type hsmCollector struct{ metrics *Metrics }

func (c hsmCollector) Describe(d chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{hsmUp, hsmSessions, hsmSignatures, hsmFailures, hsmFailovers, hsmAbandoned} {
		d <- desc
	}
}

func (c hsmCollector) Collect(out chan<- prometheus.Metric) {
	s := c.metrics.hsm.Load()
	if s == nil {
		return
	}
	tell := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	tell(hsmAbandoned, prometheus.GaugeValue, float64(s.AbandonedJobs))
	for _, m := range s.Members {
		up := 0.0
		if m.State == v1alpha1.HSMMemberUp {
			up = 1
		}
		tell(hsmUp, prometheus.GaugeValue, up, m.Name)
		tell(hsmSessions, prometheus.GaugeValue, float64(m.Sessions), m.Name)
		tell(hsmFailures, prometheus.CounterValue, float64(m.Failures), m.Name)
		tell(hsmFailovers, prometheus.CounterValue, float64(m.Failovers), m.Name)
		out <- prometheus.MustNewConstSummary(hsmSignatures, m.Latency.Count, float64(m.Latency.Sum)/1e6, nil, m.Name)
	}
}

// resumedLabel is 1 in HAProxy and true in a label.
func resumedLabel(resumed bool) string { return strconv.FormatBool(resumed) }
