package xqtls

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"time"

	"go.k6.io/k6/v2/js/common"

	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/k6/options"
)

// The scripts of the two phases.
var (
	//go:embed scripts/capacity.js
	capacityScript string
	//go:embed scripts/latency.js
	latencyScript string
)

// Measurement is how k6 is to be run for a load.
type Measurement struct {
	Arguments []string // of k6
	Script    string   // on its standard input
}

// Prepare reads the load that the environment has for this pod, and prepares this process to measure it.
func Prepare(getenv func(string) string) (Measurement, error) {
	text := getenv(load.Variable)
	if text == "" {
		return Measurement{}, fmt.Errorf("%s is not set: the operator's Job sets it; to run a script of your own: qtls-k6 run SCRIPT", load.Variable)
	}
	l, err := load.Parse(text)
	if err != nil {
		return Measurement{}, fmt.Errorf("%s: %w", load.Variable, err)
	}
	segment, err := l.Segment(getenv(load.IndexVariable))
	if err != nil {
		return Measurement{}, err
	}
	if _, err := l.Wait(time.Now()); err != nil { // before the minute that k6 takes for many virtual users
		return Measurement{}, err
	}
	object, err := clientObject(l.Client, os.ReadFile)
	if err != nil {
		return Measurement{}, fmt.Errorf("%s: client: %w", load.Variable, err)
	}
	o, err := options.Parse(object)
	if err != nil {
		return Measurement{}, fmt.Errorf("%s: client: %w", load.Variable, err)
	}
	l.Client.SNI = o.SNI
	// A virtual user waits in C, on a thread of its own: with the last of Go's 10,000 the program would end.
	debug.SetMaxThreads(2 * load.MostVUs)
	current.recorder, current.err = newRecorder(l, segment), errors.New("the run ended without a result")
	script := capacityScript
	if l.Phase == load.Latency {
		script = latencyScript
	}
	return Measurement{append(arguments(segment), "-"), script}, nil
}

// arguments of k6: nothing but the result is printed, nothing is kept for a summary, nobody is told, and no port is open.
func arguments(s shard.Segment) []string {
	all := []string{"run", "--quiet", "--no-color", "--address=", "--no-usage-report", "--summary-mode=disabled", "--no-thresholds", "--out=" + OutputName}
	if s.Count == 1 {
		return all
	}
	sequence := "0"
	for i := range s.Count {
		sequence += "," + bound(i+1, s.Count)
	}
	return append(all, "--execution-segment="+bound(s.Index, s.Count)+":"+bound(s.Index+1, s.Count), "--execution-segment-sequence="+sequence)
}

// bound is an end of a segment, as k6 writes fractions.
func bound(i, n int) string {
	switch i {
	case 0:
		return "0"
	case n:
		return "1"
	}
	return fmt.Sprintf("%d/%d", i, n)
}

// clientObject is what a script would give a Client.
func clientObject(c load.Client, read func(string) ([]byte, error)) (map[string]any, error) {
	object := map[string]any{"host": c.Host, "port": int64(c.Port)}
	for name, value := range map[string]string{
		"sni": c.SNI, "minVersion": c.MinVersion, "maxVersion": c.MaxVersion, "provider": c.Provider, "properties": c.Properties, "timeout": c.Timeout,
	} {
		if value != "" {
			object[name] = value
		}
	}
	for name, list := range map[string][]string{"groups": c.Groups, "signatureAlgorithms": c.SignatureAlgorithms} {
		if len(list) > 0 {
			values := make([]any, len(list))
			for i, v := range list {
				values[i] = v
			}
			object[name] = values
		}
	}
	for name, value := range map[string]bool{"resumption": c.Resumption, "insecureSkipVerify": c.InsecureSkipVerify} {
		if value {
			object[name] = true
		}
	}
	if c.Tickets != nil {
		object["tickets"] = int64(*c.Tickets)
	}
	for name, path := range map[string]string{"ca": c.CAFile, "certificate": c.CertificateFile, "key": c.KeyFile} {
		if path == "" {
			continue
		}
		text, err := read(path)
		if err != nil {
			return nil, fmt.Errorf("%sFile: %w", name, err)
		}
		object[name] = string(text)
	}
	return object, nil
}

// loadObject is what a script sees of a load.
type loadObject struct {
	module *module
	load   load.Load

	Client    map[string]any `js:"client"`
	Vus       int            `js:"vus"`
	Rate      int            `js:"rate"`
	Duration  string         `js:"duration"`
	Operation string         `js:"operation"`
	Request   map[string]any `js:"request"`
	MaxWait   string         `js:"maxWait"`
}

// load gives a script the load of this pod.
func (m *module) load() *loadObject {
	if current.recorder == nil {
		common.Throw(m.vu.Runtime(), errors.New("load: there is none: it is for `qtls-k6 measure`"))
	}
	l := current.recorder.load
	object, err := clientObject(l.Client, os.ReadFile)
	if err != nil {
		common.Throw(m.vu.Runtime(), fmt.Errorf("load: client: %w", err))
	}
	o := &loadObject{
		module: m, load: l, Client: object, Vus: l.VUs, Rate: l.Rate, Duration: (l.WarmUp + l.Window).String(),
		MaxWait: (time.Until(time.Unix(0, l.Start)) + time.Minute).Round(time.Second).String(),
	}
	switch l.Operation {
	case load.Handshake:
		o.Operation = "handshake"
	case load.Request:
		o.Operation, o.Request = "request", map[string]any{"path": l.Path}
	case load.Transfer:
		o.Operation, o.Request = "transfer", map[string]any{"path": l.Path, "size": int64(l.Size)}
	}
	return o
}

// WaitForStart is the barrier: it returns when all pods begin. Until then it looks for the target: a name that is not known
// yet, or an address that leads nowhere yet, as those of a new Service are for a moment, would keep the first connections
// waiting, and so all virtual users.
func (o *loadObject) WaitForStart() error {
	wait, err := o.load.Wait(time.Now())
	if err != nil {
		return err
	}
	current.recorder.watch()
	start := time.After(wait)
	if err := reach(o.module.vu.Context(), o.load.Client.Host, o.load.Client.Port, time.Unix(0, o.load.Start)); err != nil {
		return err
	}
	select {
	case <-start:
		return nil
	case <-o.module.vu.Context().Done():
		return o.module.vu.Context().Err()
	}
}

const (
	// oneTry at the target is given up after so long,
	oneTry = time.Second
	// and another one is made after that.
	nextTry = 100 * time.Millisecond
)

// reach tries to connect to a target until that works.
func reach(ctx context.Context, host string, port int, until time.Time) error {
	for {
		err := dial(ctx, host, port)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(until) {
			return fmt.Errorf("the target %s cannot be reached: %w", hostPort(host, port), err)
		}
		time.Sleep(nextTry)
	}
}

// dial makes one connection, and ends it.
func dial(ctx context.Context, host string, port int) error {
	deadline := time.Now().Add(oneTry)
	address, err := resolve(ctx, host, deadline)
	if err != nil {
		return err
	}
	connection, err := (&net.Dialer{Deadline: deadline}).DialContext(ctx, "tcp", hostPort(address, port))
	if err != nil {
		return err
	}
	return connection.Close()
}
