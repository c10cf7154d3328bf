// Package xqtls is the module k6/x/qtls: TLS handshakes for scripts of k6, and the measurement that the operator asks for.
package xqtls

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/grafana/sobek"
	"go.k6.io/k6/v2/js/common"
	"go.k6.io/k6/v2/js/modules"
	"go.k6.io/k6/v2/metrics"
	"go.k6.io/k6/v2/output"

	"qtls.dev/qtls/k6/openssl"
	"qtls.dev/qtls/k6/options"
)

func init() {
	modules.Register("k6/x/qtls", &root{})
	output.RegisterExtension(OutputName, newOutput)
}

// root makes a module for each virtual user.
type root struct{}

// module is that of one virtual user.
type module struct {
	vu        modules.VU
	durations *metrics.Metric
	failures  *metrics.Metric
	// iteration is the last one that an outcome was recorded of, from 1; 0 is none.
	iteration int64
}

// NewModuleInstance implements modules.Module.
func (*root) NewModuleInstance(vu modules.VU) modules.Instance {
	registry := vu.InitEnv().Registry
	return &module{
		vu:        vu,
		durations: registry.MustNewMetric("qtls_handshake_duration", metrics.Trend, metrics.Time),
		failures:  registry.MustNewMetric("qtls_failures", metrics.Counter),
	}
}

// Exports implements modules.Instance.
func (m *module) Exports() modules.Exports {
	return modules.Exports{Named: map[string]any{"Client": m.newClient, "load": m.load}}
}

// client is what a script calls a Client. Its methods are the script's, in lower case.
type client struct {
	module *module
	o      options.Options
	c      *openssl.Client
}

func (m *module) newClient(call sobek.ConstructorCall) *sobek.Object {
	rt := m.vu.Runtime()
	if len(call.Arguments) != 1 {
		common.Throw(rt, fmt.Errorf("Client: %d arguments: give one object with the options", len(call.Arguments)))
	}
	object, err := exportObject(call.Argument(0))
	if err != nil {
		common.Throw(rt, fmt.Errorf("Client: %w", err))
	}
	o, err := options.Parse(object)
	if err != nil {
		common.Throw(rt, fmt.Errorf("Client: %w", err))
	}
	c, err := openssl.NewClient(o)
	if err != nil {
		common.Throw(rt, fmt.Errorf("Client: %w", err))
	}
	return rt.ToValue(&client{module: m, o: o, c: c}).ToObject(rt)
}

// exportObject takes a plain object of a script.
func exportObject(value sobek.Value) (map[string]any, error) {
	if common.IsNullish(value) {
		return nil, errors.New("no options: give an object with them, {host: ...} at least")
	}
	object, ok := value.Export().(map[string]any)
	if !ok {
		return nil, fmt.Errorf("options of type %s: give an object with them, {host: ...} at least", value.ExportType())
	}
	return object, nil
}

// Result is what a script gets of a call. Times are milliseconds.
type Result struct {
	Ok bool `js:"ok"`
	// Failure is the class of a failure, as in "Handshake(handshake_failure)", and Message says more.
	Failure string `js:"failure"`
	Message string `js:"message"`

	Group              string `js:"group"`
	SignatureAlgorithm string `js:"signatureAlgorithm"`
	Version            string `js:"version"`
	Resumed            bool   `js:"resumed"`
	HelloRetryRequest  bool   `js:"helloRetryRequest"`
	Tickets            int    `js:"tickets"`

	Connect   float64 `js:"connect"`
	Handshake float64 `js:"handshake"`
	Client    float64 `js:"client"`
	Network   float64 `js:"network"`
	Server    float64 `js:"server"`

	BytesSent        int64 `js:"bytesSent"`
	BytesReceived    int64 `js:"bytesReceived"`
	CertificateBytes int64 `js:"certificateBytes"`

	// Of an exchange: its time, the status, and application data each way.
	Exchange         float64 `js:"exchange"`
	Status           int     `js:"status"`
	ExchangeSent     int64   `js:"exchangeSent"`
	ExchangeReceived int64   `js:"exchangeReceived"`
}

// Handshake makes a connection and ends it.
func (c *client) Handshake(arguments ...sobek.Value) (*Result, error) {
	if err := atMost(0, arguments); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return c.call(func(k *openssl.Connection, _ *exchange) error {
		_, err := k.AwaitTickets(c.o.Tickets)
		return err
	})
}

// Request makes a connection and asks for {path, status}: status is the one that is expected, any 2xx where it is left out.
func (c *client) Request(arguments ...sobek.Value) (*Result, error) {
	r, err := parseRequest(arguments, "path", "status")
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	return c.call(func(k *openssl.Connection, x *exchange) error { return x.run(k, authority(c.o), r) })
}

// Transfer makes a connection and sends {path, size, status}: a request with a body of so many bytes.
func (c *client) Transfer(arguments ...sobek.Value) (*Result, error) {
	r, err := parseRequest(arguments, "path", "size", "status")
	if err == nil && r.size == 0 {
		err = errors.New("size is missing: " + takesSize)
	}
	if err != nil {
		return nil, fmt.Errorf("transfer: %w", err)
	}
	return c.call(func(k *openssl.Connection, x *exchange) error { return x.run(k, authority(c.o), r) })
}

// authority is the Host of requests.
func authority(o options.Options) string {
	if o.SNI != "" {
		return o.SNI
	}
	return hostPort(o.Host, o.Port)
}

// call makes one connection and does something on it. What goes wrong with it is the result's, and is not tried again.
func (c *client) call(do func(*openssl.Connection, *exchange) error) (*Result, error) {
	if c.module.vu.State() == nil {
		return nil, errors.New("a connection can only be made by a function that k6 runs, and not while the script is loaded")
	}
	begin := time.Now()
	var x exchange
	report := c.connect(c.module.vu.Context(), func(k *openssl.Connection) error { return do(k, &x) })
	o := outcome{begin: begin, end: time.Now(), report: report, exchange: x}
	c.module.record(o)
	return o.result(), nil
}

// connect resolves the host and runs the call, both within its time limit.
func (c *client) connect(ctx context.Context, do func(*openssl.Connection) error) openssl.Report {
	deadline := time.Now().Add(c.o.Timeout)
	address, err := resolve(ctx, c.o.Host, deadline)
	if err != nil {
		class, message := classify(err)
		return openssl.Report{Failure: class, Message: message}
	}
	k, report := c.c.Connect(address, c.o.Port, time.Until(deadline))
	if k == nil {
		return report
	}
	defer k.Close()
	if err := do(k); err != nil {
		report.Failure, report.Message = classify(err)
	}
	report.Tickets = k.Tickets()
	return report
}

// record gives an outcome to the measurement, if there is one, and else to k6's metrics.
func (m *module) record(o outcome) {
	if current.recorder != nil {
		m.measure(o)
		return
	}
	state := m.vu.State()
	tags := state.Tags.GetCurrentValues().Tags
	sample := func(metric *metrics.Metric, value float64) {
		metrics.PushIfNotDone(m.vu.Context(), state.Samples, metrics.Sample{
			TimeSeries: metrics.TimeSeries{Metric: metric, Tags: tags}, Time: o.end, Value: value,
		})
	}
	if o.report.Failure != "" {
		tags = tags.With("class", string(o.report.Failure))
		sample(m.failures, 1)
		return
	}
	tags = tags.With("group", o.report.Group).With("resumed", fmt.Sprint(o.report.Resumed))
	sample(m.durations, milliseconds(o.report.Handshake))
}

// unknownKey names a key that is not one of those known.
func unknownKey(object map[string]any, known ...string) error {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if !slices.Contains(known, key) {
			return fmt.Errorf("%q is unknown: there are %s", key, strings.Join(known, ", "))
		}
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
