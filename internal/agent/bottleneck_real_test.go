//go:build crypto

package agent

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/evidence"
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

func handshakesOf(clients int, c client) *handshaking {
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
				d := tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: c.config}
				conn, err := d.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", c.port))
				if err != nil {
					continue
				}
				took := time.Since(begin)
				conn.Close()
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
		load := handshakesOf(clients, c)
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
		return after.HSM.Time > before.HSM.Time && after.HSM.Signatures-before.HSM.Signatures >= 10
	})
}

// Nothing waits for the store. But pods that have no keys of it resume none of each
// other's sessions, and make full handshakes instead.
func TestAStoreThatGivesNoTicketKeysIsNamed(t *testing.T) {
	p := newPair(t)
	p.startBoth()
	for _, pod := range p.pods() {
		pod.runs(p.assignment.Stable)
	}
	roaming := func() (e validity.Evidence) {
		e = validity.Evidence{Phase: validity.Capacity, Resumes: true, WantedReplicas: 2}
		var before []dataplane.Usage
		look := func() (all []dataplane.Usage) {
			for _, pod := range p.pods() {
				u, err := pod.used()
				if err != nil {
					t.Fatal(err)
				}
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
	p.tell()
	p.share()
	p.haveEpoch(p.ring.Epoch)
	if together := roaming(); validity.Name(together).Bottleneck != validity.Unknown || together.Resumed != together.Handshakes || together.Redis == nil || together.Redis.Without != 0 {
		t.Errorf("with one: %+v of %+v", validity.Name(together), together)
	}
}
