//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// summary is what the probe prints of a load (e2e/probe).
type summary struct {
	Total, Succeeded, Failed                       int
	Seconds                                        float64
	ByClass, ByGroup, ByAlgorithm, BySerial, ByPod map[string]int
	HandshakeP50Ms, HandshakeP99Ms, HandshakeMaxMs float64
	Returning, Resumed                             int
	Tickets                                        map[string]map[string]struct{ Returning, Resumed int }
	Failures                                       []struct {
		Time         time.Time
		Class, Error string
	}
}

func (s summary) String() string {
	text := fmt.Sprintf("%d new connections in %.1f s, %d failed %v; handshake p50 %.1f ms, p99 %.1f ms, greatest %.1f ms; groups %v, certificates %v, %d serial numbers",
		s.Total, s.Seconds, s.Failed, s.ByClass, s.HandshakeP50Ms, s.HandshakeP99Ms, s.HandshakeMaxMs, s.ByGroup, s.ByAlgorithm, len(s.BySerial))
	for _, f := range s.Failures {
		text += fmt.Sprintf("\n  %s %s: %s", f.Time.Format("15:04:05.000"), f.Class, f.Error)
	}
	return text
}

// loader makes new connections in the background: each a whole handshake, a request and its answer, none tried again.
type loader struct {
	end     func() // ends the input of what runs in the pod
	done    chan struct{}
	summary summary
	err     error
}

// startLoad lets Go 1.27's client connect at a rate (connections a second) until stop, and at least so many times.
func (n namespace) startLoad(r request, rate float64, atLeast int) *loader {
	n.Helper()
	return n.startUntilStopped(r, "-n", fmt.Sprint(atLeast), "-rate", fmt.Sprint(rate), "-c", "64", r.address)
}

// startReturning lets so many clients connect at a rate until stop, and at least so many times: each with the session
// ticket of its last connection, each time to one of the addresses, whichever.
func (n namespace) startReturning(r request, clients int, rate float64, atLeast int, addresses ...string) *loader {
	n.Helper()
	return n.startUntilStopped(r, returning(clients, rate, atLeast, addresses)...)
}

// returning are the probe's arguments for clients that come back so many times.
func returning(clients int, rate float64, times int, addresses []string) []string {
	return append([]string{"-resume", "-n", fmt.Sprint(times), "-rate", fmt.Sprint(rate), "-c", fmt.Sprint(clients)}, addresses...)
}

func (n namespace) startUntilStopped(r request, arguments ...string) *loader {
	n.Helper()
	in, end := io.Pipe()
	return n.startProbe(r, in, func() { end.Close() }, append([]string{"-until-stdin-closes"}, arguments...)...)
}

func (n namespace) startProbe(r request, in io.Reader, end func(), arguments ...string) *loader {
	n.Helper()
	l := &loader{end: end, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(n.Context())
	n.Cleanup(cancel)
	go func() {
		defer close(l.done)
		command := []string{"qtls-probe-go1.27", "-ca", r.ca, "-sni", r.name, "-http", r.target(), "-timeout", r.patienceOrMinute().String()}
		out, err := execIn(ctx, clientsNamespace, trixie, "client", in, append(command, arguments...)...)
		if err == nil {
			if err = json.Unmarshal([]byte(out.stdout), &l.summary); err != nil {
				err = fmt.Errorf("%w: %s%s", err, out.stdout, out.stderr)
			}
		}
		l.err = err
	}()
	return l
}

// A machine that is busy with other things stands still for seconds; that is no failed connection.
func (r request) patienceOrMinute() time.Duration { return cmp.Or(r.patience, time.Minute) }

// curlLoad lets curl on OpenSSL 3.5, which takes the ML-DSA chain, do the same with some processes.
const curlLoad = `
cd "$(mktemp -d)"
( cat > /dev/null; touch over ) <&0 &
for process in $(seq %[1]d); do
  ( until [ -e over ]; do
      curl -sS --http1.1 --no-sessionid --cacert %[2]s --resolve %[3]s:%[5]s:%[4]s --max-time %[8]g --rate %[6]d/s -H 'Connection: close' -o /dev/null \
        -w '%%{stderr}%%{exitcode} %%{http_code} %%{time_appconnect} %%{errormsg}\n' 'https://%[3]s:%[5]s/?[1-%[7]d]' 2>> "$process.out"
    done ) &
done
wait
cat ./*.out`

// startCurlLoad lets processes of curl connect, each at a rate, until stop.
func (n namespace) startCurlLoad(r request, processes, rate int) *loader {
	n.Helper()
	in, end := io.Pipe()
	l := &loader{end: func() { end.Close() }, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(n.Context())
	n.Cleanup(cancel)
	host, port, _ := strings.Cut(r.address, ":")
	script := fmt.Sprintf(curlLoad, processes, r.ca, r.name, host, port, rate, rate, r.patienceOrMinute().Seconds())
	go func() {
		defer close(l.done)
		start := time.Now()
		out, err := execIn(ctx, clientsNamespace, trixie, "client", in, "bash", "-c", script)
		l.summary, l.err = summariseCurl(out.stdout, time.Since(start)), err
		if err == nil && l.summary.Total == 0 {
			l.err = fmt.Errorf("curl did nothing: %s", out.stderr)
		}
	}()
	return l
}

func summariseCurl(lines string, took time.Duration) summary {
	s := summary{Seconds: took.Seconds(), ByClass: map[string]int{}}
	var times []float64
	for line := range strings.Lines(lines) {
		var exit, status int
		var handshake float64
		if _, err := fmt.Sscan(line, &exit, &status, &handshake); err != nil {
			continue
		}
		s.Total++
		times = append(times, handshake*1000)
		if exit == 0 && status == 200 {
			s.Succeeded++
			s.ByClass["served"]++
			continue
		}
		s.Failed++
		s.ByClass[fmt.Sprintf("curl %d, status %d", exit, status)]++
		s.Failures = append(s.Failures, struct {
			Time         time.Time
			Class, Error string
		}{Class: fmt.Sprint(exit), Error: strings.TrimSpace(line)})
	}
	slices.Sort(times)
	s.HandshakeP50Ms, s.HandshakeP99Ms, s.HandshakeMaxMs = quantile(times, 0.5), quantile(times, 0.99), quantile(times, 1)
	return s
}

// stop ends a load and returns what became of it.
func (n namespace) stop(l *loader) summary {
	n.Helper()
	l.end()
	select {
	case <-l.done:
	case <-time.After(10 * time.Minute): // it may have to come to its least number yet
		n.Fatal("the load did not end")
	}
	if l.err != nil {
		n.Fatal(l.err)
	}
	return l.summary
}

// change is what a watching probe prints whenever a pod serves another certificate.
type change struct {
	Time                                    time.Time
	Address, SerialNumber, Algorithm, Error string
}

// watcher follows the certificates that pods serve to Go 1.27's client.
type watcher struct {
	mutex   sync.Mutex
	partial []byte
	changes []change
}

func (w *watcher) Write(b []byte) (int, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.partial = append(w.partial, b...)
	for {
		line, rest, complete := bytes.Cut(w.partial, []byte("\n"))
		if !complete {
			return len(b), nil
		}
		var c change
		if json.Unmarshal(line, &c) == nil {
			w.changes = append(w.changes, c)
		}
		w.partial = slices.Clone(rest)
	}
}

// servedAt says when each address served the serial number first.
func (w *watcher) servedAt(serial string) map[string]time.Time {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	first := map[string]time.Time{}
	for _, c := range w.changes {
		if _, seen := first[c.Address]; c.SerialNumber == serial && c.Error == "" && !seen {
			first[c.Address] = c.Time
		}
	}
	return first
}

// quantile of sorted values: the smallest that at least the share q of them does not exceed.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
