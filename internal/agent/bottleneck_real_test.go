//go:build crypto

package agent

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/evidence"
	benchload "qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/mtls"
)

// These tests bring about what limits a gateway, and have it named from what the
// agents say. They give no evidence of the machine's own CPU: it does other work,
// and would be named rightly.

// used asks the agent as the operator does.
func (p *pod) used() (dataplane.Usage, error) {
	var u dataplane.Usage
	response, err := p.status.Get(fmt.Sprintf("https://127.0.0.1:%d%s", mtls.StatusPort, dataplane.UsagePath))
	if err != nil {
		return u, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return u, fmt.Errorf("the agent answers %s: %s", response.Status, text)
	}
	return u, json.NewDecoder(response.Body).Decode(&u)
}

// handshakes in a closed loop of several clients, all of their time the server's:
// Go tells no threads' CPU time.
type handshaking struct {
	stop    chan struct{}
	clients sync.WaitGroup
	began   time.Time

	mu     sync.Mutex
	series shard.Series
}

func (p *pod) handshakesOf(clients int, c client) *handshaking {
	h := &handshaking{stop: make(chan struct{}), began: time.Now(), series: shard.Series{Handshake: &shard.Histogram{}, Server: &shard.Histogram{}}}
	for range clients {
		h.clients.Go(func() {
			for {
				select {
				case <-h.stop:
					return
				default:
				}
				begin := time.Now()
				if err := p.handshake(c); err != nil {
					continue
				}
				took := time.Since(begin)
				h.mu.Lock()
				h.series.Count++
				h.series.Handshake.Record(took)
				h.series.Server.Record(took)
				h.mu.Unlock()
			}
		})
	}
	return h
}

// handshake makes one, and ends the connection.
func (p *pod) handshake(c client) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := p.network.dial(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", c.port))
	if err != nil {
		return err
	}
	defer conn.Close()
	return tls.Client(conn, c.config).HandshakeContext(ctx)
}

func (h *handshaking) end() shard.Result {
	close(h.stop)
	h.clients.Wait()
	return shard.Result{Handshakes: []shard.Series{h.series}, PerSecond: float64(h.series.Count) / time.Since(h.began).Seconds()}
}

// limitedBy measures the pod under load until what limits it is named as wanted: from
// when the agent has told what is to be looked at until that is enough. How long that
// takes is the machine's matter: its other work takes from the load.
func (p *pod) limitedBy(want validity.Bottleneck, says string, clients int, c client, quota float64, told func(dataplane.Usage) bool, enough func(before, after dataplane.Usage) bool) validity.Replica {
	p.t.Helper()
	var found validity.Finding
	var last error // a pod without CPU does not always answer in time
	deadline := time.Now().Add(5 * patience)
	until := func(enough func(dataplane.Usage) bool) (dataplane.Usage, bool) {
		for time.Now().Before(deadline) {
			u, err := p.used()
			if err == nil && enough(u) {
				return u, true
			}
			if err != nil {
				last = err
			}
			time.Sleep(500 * time.Millisecond) // a look takes CPU of the quota, too
		}
		return dataplane.Usage{}, false
	}
	for time.Now().Before(deadline) {
		load := p.handshakesOf(clients, c)
		before, begun := until(told)
		after, ended := until(func(after dataplane.Usage) bool { return enough(before, after) })
		if !begun || !ended {
			load.end()
			break
		}
		e := validity.Evidence{Phase: validity.Capacity, Replicas: []validity.Replica{evidence.Replica(before, after)}, WantedReplicas: 1}
		result := load.end()
		e.Replicas[0].Name, e.Replicas[0].Quota, e.Handshakes = p.name, quota, result.Count()
		evidence.Complete(&e, result)
		found = validity.Name(e)
		if found.Bottleneck == want && strings.Contains(strings.Join(found.Evidence, "; "), says) {
			p.t.Logf("%s: %s; %.0f handshakes a second", found.Bottleneck, strings.Join(found.Evidence, "; "), result.PerSecond)
			return e.Replicas[0]
		}
	}
	p.t.Fatalf("%+v, want %s: %s; the last error: %v", found, want, says, last)
	return validity.Replica{}
}

func TestAQuotaThatIsUsedUpIsNamed(t *testing.T) {
	w := newWorld(t)
	const quota = 0.02
	w.group = newControlGroup(t)
	w.start()
	w.runs(w.assignment.Stable)
	w.group.limitCPU(quota)
	pq, _ := w.clients()
	r := w.limitedBy(validity.CPUQuota, "of its CPU periods", 4, pq, quota, func(u dataplane.Usage) bool { return u.Container != nil }, func(before, after dataplane.Usage) bool {
		return after.Container.Periods-before.Container.Periods >= 20
	})
	if r.Memory <= 0 || r.Throttled <= 0 || r.Traffic == nil || r.Traffic.Segments <= 0 {
		t.Errorf("%+v", r)
	}
}

func TestAnHSMThatIsFarAwayIsNamed(t *testing.T) {
	v := newVault(t)
	v.start()
	v.runs(v.assignment.Stable)
	pq, _, _ := v.clients()
	for _, way := range []*relay{v.a, v.b} {
		way.delay.Store(int64(400 * time.Millisecond))
	}
	v.limitedBy(validity.HSM, "of the server's time was spent waiting for HSM", 4, pq, 0, func(u dataplane.Usage) bool { return u.HSM != nil }, func(before, after dataplane.Usage) bool {
		return after.HSM.Time > before.HSM.Time && signed(after)-signed(before) >= 10
	})
}

// Nothing waits for the store. But pods that have no keys of it resume none of each
// other's sessions, and make full handshakes instead.
func TestAStoreThatGivesNoTicketKeysIsNamed(t *testing.T) {
	p := newPair(t)
	p.tell()
	p.store.Stop()
	p.startBoth()
	for _, pod := range p.pods() {
		pod.runs(p.assignment.Stable)
	}
	roaming := func() (e validity.Evidence) {
		e = validity.Evidence{Phase: validity.Capacity, Resumes: true, WantedReplicas: 2}
		var before []dataplane.Usage
		look := func() (all []dataplane.Usage) {
			for _, pod := range p.pods() {
				var u dataplane.Usage
				pod.eventually("the agent tells its usage", func() (err error) { // as pod.look
					u, err = pod.used()
					return err
				})
				all = append(all, u)
			}
			return all
		}
		v := p.visitor()
		if _, err := v.visit(p.pod, classicalPort); err != nil {
			t.Fatal(err)
		}
		before = look()
		for i := range 10 {
			resumed, err := v.visit(p.pods()[(i+1)%2], classicalPort)
			if err != nil {
				t.Fatal(err)
			}
			if e.Handshakes++; resumed {
				e.Resumed++
			}
		}
		for i, after := range look() {
			e.Replicas = append(e.Replicas, evidence.Replica(before[i], after))
		}
		evidence.Complete(&e, shard.Result{})
		e.Network = validity.Path{} // that of the first pod is all of the machine's
		return e
	}
	alone := roaming()
	if found := validity.Name(alone); found.Bottleneck != validity.Redis || !strings.Contains(strings.Join(found.Evidence, ""), "2 of 2 replicas had no ticket keys of the store, and 0 % of the handshakes were resumed") {
		t.Errorf("without a store: %+v of %+v", found, alone)
	}
	p.store.Restart()
	p.share()
	p.haveEpoch(p.ring.Epoch)
	if together := roaming(); validity.Name(together).Bottleneck != validity.Unknown || together.Resumed != together.Handshakes || together.Redis == nil || together.Redis.Without != 0 {
		t.Errorf("with one: %+v of %+v", validity.Name(together), together)
	}
}

// names measures the pod until what limits it is named, with that evidence: other work
// of the machine's may for a while be the limit instead. It never is one that is not
// to be named.
func (p *pod) names(g *generator, l benchload.Load, quota float64, want validity.Bottleneck, says string, never ...validity.Bottleneck) {
	p.t.Helper()
	var found validity.Finding
	for deadline := time.Now().Add(5 * patience); time.Now().Before(deadline); {
		e := p.measured(g, l, quota)
		found = validity.Name(e)
		p.t.Logf("%d handshakes: %s, others %v: %s", e.Handshakes, found.Bottleneck, found.Others, strings.Join(found.Evidence, "; "))
		if slices.Contains(never, found.Bottleneck) {
			p.t.Fatalf("%+v of %+v, which it is not", found, e)
		}
		if found.Bottleneck == want && strings.Contains(strings.Join(found.Evidence, "; "), says) {
			return
		}
	}
	p.t.Fatalf("%+v, want %s: %s", found, want, says)
}

func TestALoadGeneratorWithoutCPUIsNamed(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	g := newGenerator(t, w.pq)
	g.group, g.quota = newControlGroup(t), 0.05
	w.names(g, capacity("127.0.0.1", 8), 0, validity.Client, "the generator was throttled in")
}

// The same clients with CPU to spare leave the limit to the gateway.
func TestALoadGeneratorWithCPUToSpareIsNotNamed(t *testing.T) {
	w := newWorld(t)
	const quota = 0.05
	w.group = newControlGroup(t)
	w.start()
	w.runs(w.assignment.Stable)
	w.group.limitCPU(quota)
	w.names(newGenerator(t, w.pq), capacity("127.0.0.1", 8), quota, validity.CPUQuota, "of its CPU periods", validity.Client, validity.Memory)
}

func TestANetworkThatLosesPacketsOrIsSlowIsNamed(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	g := newGenerator(t, w.pq)
	g.network = newNetwork(t)
	way := newLine(t, g.network)
	l := capacity(nearEnd, 4)
	// Nothing that is observed is at its limit: the machine's CPU, which is, is not told.
	w.names(g, l, 0, validity.Unknown, "", validity.Client, validity.Memory)
	way.loses.Store(10)
	w.names(g, l, 0, validity.Network, "of the segments were lost", validity.Client, validity.Memory)
	// To the gateway: its own segments arrive.
	way.loses.Store(0)
	way.losesBack.Store(10)
	w.names(g, l, 0, validity.Network, "of the segments were lost", validity.Client, validity.Memory)
	way.losesBack.Store(0)
	way.delay.Store(int64(300 * time.Millisecond))
	w.names(g, l, 0, validity.Network, "of a handshake's time is the network's", validity.Client, validity.Memory)
}

// Replicas that share one HSM, which makes one signature at a time, are no faster than
// one: the curve is the HSM's, and the report says so. How fast it is does not matter,
// as long as it is slower than they.
func TestTheCurveOfASlowHSMBends(t *testing.T) {
	const most, clients, apart = 4, 4, 100 * time.Millisecond
	v := newVault(t)
	v.a.turns = &sync.Mutex{}
	v.b.turns = v.a.turns
	pods := []*pod{v.pod}
	for i := 2; i <= most; i++ {
		p := newPodOf(t, v.api, fmt.Sprintf("web-%d", i), newNetwork(t))
		p.env = v.env
		for _, address := range []string{v.api.Listener.Addr().String(), v.a.address, v.b.address, fmt.Sprintf("127.0.0.1:%d", v.backends["one"].Port)} {
			p.network.link(t, address)
		}
		pods = append(pods, p)
	}
	pq, _, _ := v.clients()
	var started sync.WaitGroup
	for _, p := range pods {
		started.Go(func() {
			p.start()
			p.runs(v.assignment.Stable)
			load := p.handshakesOf(clients, pq) // which opens all sessions, while that is quick
			p.hasSigned(4 * clients)
			load.end()
		})
	}
	started.Wait()
	for _, way := range []*relay{v.a, v.b} {
		way.delay.Store(int64(apart))
	}

	var last error // other work of the machine's may for a while be slower than the HSM
	for deadline := time.Now().Add(5 * patience); time.Now().Before(deadline); {
		measurements := make([]report.Measurement, 0, most)
		for n := 1; n <= most; n++ {
			measurements = append(measurements, ofSlowHSM(t, pods[:n], clients, pq))
		}
		r, err := report.Build(report.Report{Modes: []report.Mode{{Name: "hsm"}}}, measurements)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.Points {
			t.Logf("%d replicas: %.1f handshakes a second; %s: %s", p.Replicas, p.Capacity.PerSecond.Value, p.Capacity.Bottleneck.Bottleneck, strings.Join(p.Capacity.Bottleneck.Evidence, "; "))
		}
		if last = bends(r, most); last == nil {
			return
		}
		t.Log(last)
	}
	t.Fatal(last)
}

// bends tells whether a curve is one of an HSM that so many replicas share.
func bends(r report.Report, most int) error {
	for _, p := range r.Points {
		if found := p.Capacity.Bottleneck; found.Bottleneck != validity.HSM {
			return fmt.Errorf("%d replicas: %.1f handshakes a second: %+v, want %s", p.Replicas, p.Capacity.PerSecond.Value, found, validity.HSM)
		}
	}
	if len(r.Scaling) != 1 || r.Scaling[0].Fit == nil || len(r.Scaling[0].Efficiencies) != most {
		return fmt.Errorf("the curve is %+v", r.Scaling)
	}
	s := r.Scaling[0]
	if e := s.Efficiencies[most-1].Estimate.Value; e > 0.5 || s.Fit.Sigma < 0.3 || !strings.Contains(s.Note, "the curve is the HSM's") {
		return fmt.Errorf("E(%d) is %.2f, σ %.2f, which is no bend; the report says %q", most, e, s.Fit.Sigma, s.Note)
	}
	return nil
}

// ofSlowHSM measures the capacity of replicas that share one. What the machine and the
// clients have to spare is not theirs to tell here.
func ofSlowHSM(t *testing.T, pods []*pod, clients int, c client) report.Measurement {
	t.Helper()
	// Of each replica: a wait counts whole at its end, so how busy the HSM was is known to
	// one signature of these.
	const signatures = 16
	idle := 0.5
	m := report.Measurement{Mode: "hsm", Replicas: len(pods), Phase: validity.Capacity, Block: 1, Result: &shard.Result{},
		Evidence: validity.Evidence{Phase: validity.Capacity, Limit: validity.HSM, WantedReplicas: len(pods),
			MachineIdle: &idle, Generator: validity.Generator{MachineIdle: &idle}}}
	loads, before := make([]*handshaking, len(pods)), make([]dataplane.Usage, len(pods))
	for i, p := range pods {
		before[i] = p.hasSigned(0)
		loads[i] = p.handshakesOf(clients, c)
	}
	for i, p := range pods { // a worker that signs nothing does not tell so, and the last time is long ago
		before[i] = p.hasSigned(signed(before[i]) + 1)
	}
	for i, p := range pods {
		after := p.hasSigned(signed(before[i]) + signatures)
		one := evidence.Replica(before[i], after)
		one.Name = p.name
		m.Evidence.Replicas = append(m.Evidence.Replicas, one)
		m.Evidence.Window = max(m.Evidence.Window, one.Observed)
	}
	m.Evidence.Common = m.Evidence.Window
	for _, load := range loads {
		result := load.end()
		m.Result.PerSecond += result.PerSecond
		m.Result.Handshakes = append(m.Result.Handshakes, result.Handshakes...)
	}
	m.Evidence.Handshakes = m.Result.Count()
	evidence.Complete(&m.Evidence, *m.Result)
	return m
}

// signed by all members.
func signed(u dataplane.Usage) (signatures int64) {
	for _, m := range u.HSM.Members {
		signatures += m.Signatures
	}
	return signatures
}

// hasSigned waits until the agent tells that the HSM has made so many signatures.
func (p *pod) hasSigned(signatures int64) (u dataplane.Usage) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("the agent tells of %d signatures", signatures), func() (err error) {
		if u, err = p.used(); err == nil && (u.HSM == nil || signed(u) < signatures) {
			time.Sleep(200 * time.Millisecond) // a look takes CPU, too
			err = fmt.Errorf("it tells of %+v", u.HSM)
		}
		return err
	})
	return u
}
