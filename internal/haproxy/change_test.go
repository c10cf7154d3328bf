//go:build crypto

package haproxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/model"
)

// get makes a new connection and a request, and names the backend.
func (p *pod) get(port int, change func(*tls.Config)) (string, error) {
	response, seen, err := p.raw(port, host, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n", change)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", response.Status)
	}
	return seen.Name, err
}

func (p *pod) reload() {
	p.t.Helper()
	if err := p.master().Reload(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

// Every kind of connection goes through each reload: direct binds, those behind
// the stage that chooses, and connections that are kept.
func TestReloadsUnderLoadLoseNothing(t *testing.T) {
	p := newPod(t)
	postQuantum, classical := newIssuer(t, "ML-DSA-65"), newIssuer(t, "ECDSA-P256")
	ecdsa := p.certificate(classical, "ECDSA-P256", anyScheme, host)
	configuration := func(n int) model.Gateway {
		backends := []model.Backend{{Group: "mirror:1", Weight: 1}}
		g := gateway(prefer,
			model.Port{Number: port, Listeners: []model.Listener{with(https("dual", []model.Hostname{host}, p.certificate(postQuantum, "ML-DSA-65", anyScheme, host), ecdsa), func(l *model.Listener) { l.Backends = backends })}},
			model.Port{Number: port + 1, Listeners: []model.Listener{with(https("direct", nil, ecdsa), func(l *model.Listener) { l.Backends = backends })}},
			model.Port{Number: port + 2, Listeners: []model.Listener{with(https("mixed", nil, p.certificate(classical, "ML-DSA-65", anyScheme, host), ecdsa), func(l *model.Listener) { l.Backends = backends })}})
		g.DrainTimeoutSeconds = 600 + n // kept connections end by themselves, however slowly
		return g
	}
	endpoints := dataplane.Endpoints{"mirror:1": {endpoint(t, mirror(t, "one"))}}
	p.start(configuration(0), endpoints)

	var done, failed atomic.Int64
	var first atomic.Pointer[string]
	stop := make(chan struct{})
	var workers sync.WaitGroup
	note := func(what string, err error) {
		done.Add(1)
		if err != nil {
			failed.Add(1)
			text := what + ": " + err.Error()
			first.CompareAndSwap(nil, &text)
			p.t.Log(text)
		}
	}
	for n := range 6 {
		workers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, err := p.get(port+n%3, nil)
				note(fmt.Sprintf("a new connection to port %d", port+n%3), err)
			}
		})
	}
	for n := range 3 { // one connection for many requests; a client that is told to close opens another
		workers.Go(func() {
			var conn *tls.Conn
			var in *bufio.Reader
			var opened time.Time
			requests := 1
			for {
				select {
				case <-stop:
					return
				default:
				}
				if conn == nil {
					var err error
					if conn, err = p.dial(port+n, host, nil); err != nil {
						note("a kept connection", err)
						return
					}
					in, opened, requests = bufio.NewReader(conn), time.Now(), 1
				}
				_ = conn.SetDeadline(time.Now().Add(patience))
				_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
				var response *http.Response
				if err == nil {
					response, err = http.ReadResponse(in, nil)
				}
				if err == nil {
					_, err = io.Copy(io.Discard, response.Body)
				}
				note(fmt.Sprintf("request %d on a connection to port %d, kept for %s", requests, port+n, time.Since(opened)), err)
				requests++
				if err != nil || response.Close {
					conn.Close()
					conn = nil
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	const reloads, between = 12, 50 // requests
	more := func() {
		want := done.Load() + between
		p.eventually("requests go on", func() error {
			if n := done.Load(); n < want {
				return fmt.Errorf("%d of %d", n, want)
			}
			return nil
		})
	}
	for n := range reloads {
		more()
		p.configure(configuration(n+1), endpoints)
		p.reload()
	}
	more()
	close(stop)
	workers.Wait()
	t.Logf("%d reloads: %d requests, %d failed", reloads, done.Load(), failed.Load())
	if failed.Load() > 0 {
		t.Errorf("the first failure: %s", *first.Load())
	}
}

// Endpoints come and go without a reload, and a reload keeps them.
func TestEndpointsMoveAtRunTime(t *testing.T) {
	p := newPod(t)
	g := gateway(prefer, model.Port{Number: port, Listeners: []model.Listener{
		with(https("web", nil, p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", anyScheme, host)), func(l *model.Listener) {
			l.Backends = []model.Backend{{Group: "mirror:1", Weight: 1}, {Group: "mirror:2", Weight: 0}}
		})}})
	var all []dataplane.Endpoint
	for n := range 4 {
		all = append(all, endpoint(t, mirror(t, strconv.Itoa(n))))
	}
	p.start(g, dataplane.Endpoints{"mirror:1": all[:1], "mirror:2": all[3:]})
	process := func() int {
		processes, err := p.master().Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return processes.Workers[0].PID
	}
	worker := process()
	served := func() []string {
		seen := map[string]bool{}
		for range 40 {
			name, err := p.get(port, nil)
			if err != nil {
				t.Fatal(err)
			}
			seen[name] = true
		}
		var names []string
		for name := range seen {
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	for _, tc := range []struct {
		endpoints []dataplane.Endpoint
		want      []string
	}{
		{all[:1], []string{"0"}},
		{all[:3], []string{"0", "1", "2"}},
		{all[1:3], []string{"1", "2"}},
		{all[2:3], []string{"2"}},
		{append(slices.Clone(all[:1]), all[2]), []string{"0", "2"}},
	} {
		next := Assign(p.revision, p.slots, dataplane.Endpoints{"mirror:1": tc.endpoints, "mirror:2": all[3:]})
		changes, ok := Changes(p.revision, p.slots, next)
		if !ok {
			t.Fatal("three endpoints need a reload")
		}
		for _, c := range changes {
			var err error
			if c.Endpoint == nil {
				err = p.admin().DisableServer(t.Context(), c.Backend, c.Server)
			} else {
				err = p.admin().SetServer(t.Context(), c.Backend, c.Server, netip.AddrPortFrom(netip.MustParseAddr(c.Endpoint.Address), uint16(c.Endpoint.Port)))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		p.slots = next
		got := served()
		t.Logf("%d changes: served by %v", len(changes), got)
		if !slices.Equal(got, tc.want) {
			t.Errorf("served by %v, want %v", got, tc.want)
		}
	}
	if now := process(); now != worker {
		t.Errorf("worker %d is now %d: there was a reload", worker, now)
	}
	p.configure(g, dataplane.Endpoints{"mirror:1": {all[0], all[2]}, "mirror:2": all[3:]})
	p.reload()
	if got := served(); !slices.Equal(got, []string{"0", "2"}) {
		t.Errorf("after a reload: served by %v", got)
	}
}

// A weight is that of each endpoint.
func TestWeightsShareOutConnections(t *testing.T) {
	p := newPod(t)
	one, two, three := endpoint(t, mirror(t, "stable")), endpoint(t, mirror(t, "stable")), endpoint(t, mirror(t, "canary"))
	p.start(gateway(prefer, model.Port{Number: port, Listeners: []model.Listener{
		with(https("web", nil, p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", anyScheme, host)), func(l *model.Listener) {
			l.Backends = []model.Backend{{Group: "stable:1", Weight: 2}, {Group: "canary:1", Weight: 1}}
		})}}), dataplane.Endpoints{"stable:1": {one, two}, "canary:1": {three}})
	const requests = 1000
	counts := map[string]int{}
	for range requests {
		name, err := p.get(port, nil)
		if err != nil {
			t.Fatal(err)
		}
		counts[name]++
	}
	t.Logf("of %d requests: %v; two endpoints of weight 2 and one of weight 1", requests, counts)
	if share := float64(counts["canary"]) / requests; share < 0.16 || share > 0.24 { // a fifth
		t.Errorf("the endpoint of weight 1 gets %.3f, want 0.2", share)
	}
}

// What the stage that chooses costs: HAProxy's CPU for a handshake, by clients
// without a choice and with one, and what it would cost to have Lua read each.
func TestWhatTheChoiceCosts(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	p := newPod(t)
	i := newIssuer(t, "ECDSA-P256")
	ecdsa := p.certificate(i, "ECDSA-P256", anyScheme, host)
	mldsa65 := p.certificate(newIssuer(t, "ML-DSA-65"), "ML-DSA-65", anyScheme, host)
	mldsa65.HandshakeSchemes = []uint16{0x0999} // that no client has: no choice, no Lua
	always := mldsa65
	always.HandshakeSchemes = []uint16{0x0905} // Go's client has it, and does not take the chain
	g := gateway(prefer,
		model.Port{Number: port, Listeners: []model.Listener{https("direct", []model.Hostname{host}, ecdsa)}},
		model.Port{Number: port + 1, Listeners: []model.Listener{https("native", []model.Hostname{host}, mldsa65, ecdsa)}},
		model.Port{Number: port + 2, Listeners: []model.Listener{https("lua", []model.Hostname{host}, always, ecdsa)}})
	p.start(g, nil)
	pid := childOf(t, p.process.Process.Pid)
	// Several clients at a time, so that HAProxy is busy rather than woken up for
	// each packet, and each way in turn, so that what else the machine does falls
	// on all of them.
	const rounds, clients, each = 15, 4, 60
	cost := map[int][]float64{}
	for range rounds {
		for n := range 3 {
			before := cpu(t, pid)
			var all sync.WaitGroup
			for range clients {
				all.Go(func() {
					for range each {
						conn, err := p.dial(port+n, host, func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.X25519} })
						if err != nil {
							t.Error(err)
							return
						}
						conn.Close()
					}
				})
			}
			all.Wait()
			cost[n] = append(cost[n], (cpu(t, pid)-before).Seconds()*1e6/clients/each)
		}
	}
	median := func(n int) float64 { slices.Sort(cost[n]); return cost[n][len(cost[n])/2] }
	direct, native, withLua := median(0), median(1), median(2)
	t.Logf("CPU for a handshake (X25519, ECDSA P-256), ratio to a direct bind: chosen without Lua %.2f, with Lua %.2f; Lua adds %.1f %% to the choice (%.0f, %.0f, %.0f microseconds)",
		native/direct, withLua/direct, 100*(withLua/native-1), direct, native, withLua)
	if withLua > 1.5*native {
		t.Errorf("Lua costs %.0f %% of a handshake", 100*(withLua/native-1))
	}
}

func childOf(t testing.TB, parent int) int {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(content))
	if len(fields) == 0 {
		t.Fatalf("process %d has no child", parent)
	}
	pid, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// cpu that a process has used.
func cpu(t testing.TB, pid int) time.Duration {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err == nil {
		content, err = threads(pid)
	}
	if err != nil {
		t.Fatal(err)
	}
	var total time.Duration
	for line := range strings.Lines(string(content)) {
		n, err := strconv.ParseInt(strings.Fields(line)[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		total += time.Duration(n)
	}
	return total
}

// threads joins what the scheduler says of each thread: nanoseconds on a CPU
// come first.
func threads(pid int) ([]byte, error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	entries, err := os.ReadDir(dir)
	var all []byte
	for _, e := range entries {
		content, err := os.ReadFile(dir + "/" + e.Name() + "/schedstat")
		if err != nil {
			return nil, err
		}
		all = append(all, content...)
	}
	return all, err
}
