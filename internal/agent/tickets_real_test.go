//go:build crypto

package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/testcert"
	"qtls.dev/qtls/internal/tickets"
	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
	"qtls.dev/qtls/internal/ticketstore/storetest"
)

// A pair is two replicas of a gateway, each with an agent and a HAProxy, and
// the store that they have in common. The clock of the second one's machine is
// days ahead. The test stands in for the operator.
type pair struct {
	*world // the first replica
	second *pod
	store  *storetest.Server
	writer *ticketstore.Store

	ring   tickets.Ring
	life   time.Duration
	name   string
	key    tickets.WrappingKey
	access dataplane.TicketAccess
}

const secondPod = "web-2"

const (
	// securePort is that of a listener that requires a client certificate,
	// otherPort that of one that is like the classical one.
	securePort = 10446
	otherPort  = 10447
)

func resumingGateway(clientCA string) model.Gateway {
	g := testGateway()
	g.DrainTimeoutSeconds = 600 // old workers are there for as long as a test needs them
	g.Tickets = &model.Tickets{Ring: testRing, LifetimeSeconds: 7200, RotationSeconds: 7200}
	secure := g.Ports[1].Listeners[0]
	secure.Name, secure.ClientAuthentication = "secure", &model.ClientAuthentication{Required: true, CAs: clientCA}
	other := g.Ports[1].Listeners[0]
	other.Name = "other"
	g.Ports = append(g.Ports, model.Port{Number: securePort, Listeners: []model.Listener{secure}}, model.Port{Number: otherPort, Listeners: []model.Listener{other}})
	return g
}

// newPair prepares both; start starts them. There is no ring until one is
// published.
func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{world: newWorld(t), store: storetest.Start(t), ring: tickets.New(3), life: time.Hour}
	p.second = newPodOf(t, p.api, secondPod, newNetwork(t))
	p.second.ahead = 100 * time.Hour
	p.use(render(t, p.gateway()), 1)
	p.publish()
	var err error
	if p.writer, err = ticketstore.Open(p.store.Connection(embedded.Operator)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.writer.Close() })
	p.name, p.key = tickets.NewWrappingKey()
	for _, address := range []string{p.api.Listener.Addr().String(), p.storeAddress(), fmt.Sprintf("127.0.0.1:%d", p.backends["one"].Port)} {
		p.second.network.link(t, address)
	}
	connection := p.store.Connection(embedded.Agent)
	connection.ServerName, connection.Addresses = "localhost", []string{p.storeAddress()}
	p.access = dataplane.TicketAccess{Store: &connection, Rings: map[string]dataplane.RingAccess{testRing: {WrappingKeys: tickets.WrappingKeys{p.name: p.key}}}}
	return p
}

func (p *pair) gateway() model.Gateway {
	return resumingGateway(string(testcert.PEM(p.classical.cert)))
}

func (p *pair) storeAddress() string {
	_, port, _ := net.SplitHostPort(p.store.Address())
	return "127.0.0.1:" + port
}

func (p *pair) pods() []*pod { return []*pod{p.pod, p.second} }

// tell the agents where the ring is.
func (p *pair) tell() { p.api.put(ticketsSecret(p.t, p.access)) }

// share the ring through the store.
func (p *pair) share() {
	p.t.Helper()
	d := ticketstore.Document{Content: tickets.Seal(p.ring, testRing, p.name, p.key), Epoch: p.ring.Epoch, ExpiresIn: p.life}
	if err := p.writer.Publish(context.Background(), testRing, d); err != nil {
		p.t.Fatal(err)
	}
}

// rotate the ring, and wait until both have it.
func (p *pair) rotateRing() {
	p.t.Helper()
	p.ring = p.ring.Next(p.ring.Epoch + 1)
	p.share()
	p.haveEpoch(p.ring.Epoch)
}

func (p *pair) haveEpoch(epoch uint64) {
	p.t.Helper()
	for _, pod := range p.pods() {
		pod.statusIs(fmt.Sprintf("epoch %d", epoch), func(s dataplane.Status) bool {
			return s.Tickets != nil && s.Tickets.Epoch == epoch
		})
	}
}

func (p *pair) startBoth() {
	p.t.Helper()
	var both sync.WaitGroup
	for _, pod := range p.pods() {
		both.Go(pod.start)
	}
	both.Wait()
}

// startShared starts both with a ring.
func (p *pair) startShared() {
	p.t.Helper()
	p.tell()
	p.share()
	p.startBoth()
	p.haveEpoch(p.ring.Epoch)
}

// visitor makes one connection at a time, and keeps the last session that a
// server gave it.
type visitor struct {
	t           *testing.T
	family      *family
	session     *tls.ClientSessionState
	certificate *tls.Certificate
}

func (v *visitor) Get(string) (*tls.ClientSessionState, bool) { return v.session, v.session != nil }

func (v *visitor) Put(_ string, s *tls.ClientSessionState) {
	if s != nil {
		v.session = s
	}
}

// keeping is a visitor that presents this session again and again.
type keeping struct{ *visitor }

func (keeping) Put(string, *tls.ClientSessionState) {}

func (p *pair) visitor() *visitor { return &visitor{t: p.t, family: p.classical} }

// visit a pod: was the session resumed?
func (v *visitor) visit(p *pod, port int32) (resumed bool, err error) {
	conn, err := p.network.dial(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false, err
	}
	return v.request(conn, v)
}

// again presents the session that it has, and keeps it.
func (v *visitor) again(p *pod, port int32) bool {
	v.t.Helper()
	if v.session == nil {
		v.t.Fatal("no session to present")
	}
	conn, err := p.network.dial(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		v.t.Fatal(err)
	}
	resumed, err := v.request(conn, keeping{v})
	if err != nil {
		v.t.Fatal(err)
	}
	return resumed
}

func (v *visitor) request(conn net.Conn, sessions tls.ClientSessionCache) (resumed bool, err error) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	pool := x509.NewCertPool()
	pool.AddCert(v.family.cert)
	config := &tls.Config{RootCAs: pool, ServerName: testHost, MinVersion: tls.VersionTLS13, ClientSessionCache: sessions}
	if v.certificate != nil {
		config.Certificates = []tls.Certificate{*v.certificate}
	}
	secured := tls.Client(conn, config)
	if _, err := io.WriteString(secured, "GET / HTTP/1.1\r\nHost: "+testHost+"\r\nConnection: close\r\n\r\n"); err != nil {
		return false, err
	}
	answer, err := io.ReadAll(secured) // the tickets come before the answer
	if err == nil && !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
		err = fmt.Errorf("the answer is %.40q", answer)
	}
	return secured.ConnectionState().DidResume, err
}

// first makes a connection without a session.
func (v *visitor) first(p *pod) {
	v.t.Helper()
	v.session = nil
	if resumed, err := v.visit(p, classicalPort); err != nil || resumed {
		v.t.Fatalf("the first connection to %s: resumed %v, %v", p.name, resumed, err)
	}
}

// returns makes n connections, each to the other replica than the one that the
// session is of, and says how many were resumed.
func (p *pair) returns(n int) (resumed int) {
	p.t.Helper()
	v := p.visitor()
	v.first(p.pod)
	pods := p.pods()
	counts := map[string]int{}
	for i := range n {
		issuer, other := pods[i%2], pods[(i+1)%2]
		ok, err := v.visit(other, classicalPort)
		if err != nil {
			p.t.Fatalf("connection %d, to %s: %v", i, other.name, err)
		}
		if ok {
			resumed++
			counts[fmt.Sprintf("issued by %s, resumed by %s", issuer.name, other.name)]++
		}
	}
	p.t.Logf("%d of %d connections resumed on the other replica: %v", resumed, n, counts)
	return resumed
}

// resumeEachOther checks that either replica resumes what the other issued, or that
// neither does.
func (p *pair) resumeEachOther(want bool) {
	p.t.Helper()
	resumed, wanted := p.returns(4), 0
	if want {
		wanted = 4
	}
	if resumed != wanted {
		p.t.Errorf("%d of 4 resumed, want %d", resumed, wanted)
	}
}

// holds checks that HAProxy has the ring's keys, for each scope its own, and
// would have them if it started now.
func (p *pair) holds(pod *pod) error {
	r := render(p.t, p.gateway())
	if len(r.Tickets.Files) == 0 {
		p.t.Fatal("no listener has tickets")
	}
	for _, f := range r.Tickets.Files {
		want := p.ring.For(f.Scope)
		file := haproxy.TicketFile(f.Name)
		has, err := pod.admin().TicketKeys(p.t.Context(), file)
		if err != nil {
			return err
		}
		if has != want.Keys {
			return fmt.Errorf("%s: HAProxy has other keys of %s", pod.name, file)
		}
		content, err := os.ReadFile(filepath.Join(pod.dir, "run", currentLink, file))
		if err != nil {
			return err
		}
		if !bytes.Equal(content, want.File()) {
			return fmt.Errorf("%s: %s holds other keys", pod.name, file)
		}
	}
	return nil
}

func TestSessionsResumeOnEveryReplica(t *testing.T) {
	const visits = 200
	resumedBy := func(p *pod) (n float64) {
		for line := range strings.Lines(p.metrics()) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && strings.HasPrefix(name, "qtls_handshakes_total{") &&
				strings.Contains(name, `listener="classic"`) && strings.Contains(name, `resumed="true"`) {
				count, err := strconv.ParseFloat(value, 64)
				if err != nil {
					t.Fatal(err)
				}
				n += count
			}
		}
		return n
	}
	t.Run("with the store", func(t *testing.T) {
		p := newPair(t)
		p.startShared()
		if resumed := p.returns(visits); resumed < visits*99/100 {
			t.Errorf("%d of %d resumed", resumed, visits)
		}
		for _, pod := range p.pods() {
			p.eventually("counted as resumed", func() error {
				if n := resumedBy(pod); n < visits/2*99/100 {
					return fmt.Errorf("%s counts %v", pod.name, n)
				}
				return nil
			})
			if s := pod.look(); s.Tickets == nil || s.Tickets.Problem != "" || s.Waiting != "" || s.Tickets.Ring != testRing {
				t.Errorf("%s: %+v", pod.name, s.Tickets)
			}
			for sample, good := range map[string]func(float64) bool{
				"qtls_agent_ticket_epoch":                           func(v float64) bool { return v == 3 },
				"qtls_agent_ticket_key_age_seconds":                 func(v float64) bool { return v >= 0 && v < 3600 },
				"qtls_agent_ticket_store_reached_timestamp_seconds": func(v float64) bool { return time.Since(time.Unix(int64(v), 0)) < time.Hour },
			} {
				if v := pod.metric(sample); !good(v) {
					t.Errorf("%s: %s is %v", pod.name, sample, v)
				}
			}
		}
	})
	t.Run("without, as a control", func(t *testing.T) {
		p := newPair(t)
		p.startBoth()
		if resumed := p.returns(visits / 4); resumed != 0 {
			t.Errorf("%d resumed on the other replica", resumed)
		}
		for _, pod := range p.pods() {
			v := p.visitor()
			v.first(pod)
			if !v.again(pod, classicalPort) {
				t.Errorf("%s does not resume its own sessions", pod.name)
			}
			s := pod.look()
			if s.Tickets == nil || s.Tickets.Epoch != 0 || !strings.Contains(s.Tickets.Problem, `Secret "web-tickets"`) || !strings.Contains(s.Tickets.Problem, "own keys") {
				t.Errorf("%s: %+v", pod.name, s.Tickets)
			}
		}
	})
}

func TestATicketLivesThroughOneRotation(t *testing.T) {
	p := newPair(t)
	p.startShared()
	v := p.visitor()
	v.first(p.pod)
	_, classical := p.clients()
	load := startTraffic(2, classical)
	for rotations, want := range []bool{true, true, false} {
		if rotations > 0 {
			started := time.Now()
			p.rotateRing()
			t.Logf("both replicas have epoch %d %s after it was published", p.ring.Epoch, time.Since(started).Round(time.Millisecond))
		}
		for _, pod := range p.pods() {
			if resumed := v.again(pod, classicalPort); resumed != want {
				t.Errorf("after %d rotations, %s resumes the ticket of %s: %v, want %v", rotations, pod.name, p.name, resumed, want)
			}
		}
	}
	load.end(t, "two rotations")
	p.resumeEachOther(true)
	for _, pod := range p.pods() {
		if err := p.holds(pod); err != nil {
			t.Error(err)
		}
	}
	if got := p.metric("qtls_agent_ticket_rotations_total"); got != 2 {
		t.Errorf("%v changes of the keys are counted", got)
	}
	// Rotations that a replica misses are made up for in order.
	p.second.network.cut(p.storeAddress())
	for range 2 {
		p.ring = p.ring.Next(p.ring.Epoch + 1)
		p.share()
	}
	p.statusIs("both rotations", func(s dataplane.Status) bool { return s.Tickets != nil && s.Tickets.Epoch == p.ring.Epoch })
	p.second.statusIs("the store is away", func(s dataplane.Status) bool {
		return s.Tickets != nil && strings.Contains(s.Tickets.Problem, "stay in use")
	})
	v.first(p.second)
	p.second.network.link(t, p.storeAddress())
	p.haveEpoch(p.ring.Epoch)
	p.resumeEachOther(true)
}

func TestDroppedTicketsAreRefusedAtOnce(t *testing.T) {
	for name, storeIsThere := range map[string]bool{"with new keys": true, "while the store is away": false} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			p.life = time.Hour
			p.startShared()
			v := p.visitor()
			v.first(p.pod)

			// Connections that old workers have taken and that say nothing yet.
			connections := func(want int) {
				t.Helper()
				p.eventually(fmt.Sprintf("the worker has %d connections", want), func() error {
					info, err := p.admin().Info(t.Context())
					if err == nil && info.Connections != want {
						err = fmt.Errorf("it has %d", info.Connections)
					}
					return err
				})
			}
			connections(0) // the visitor's has ended
			var held []net.Conn
			for range 2 {
				conn, err := p.network.dial(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", classicalPort))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				held = append(held, conn)
			}
			connections(2)
			g := p.gateway()
			g.DrainTimeoutSeconds++
			target := p.use(render(t, g), 2)
			p.publish()
			p.runs(target)
			p.second.runs(target)
			processes, err := p.master().Processes(t.Context())
			if err != nil || len(processes.Workers) != 2 || !processes.Workers[1].Old {
				t.Fatalf("no old worker: %+v, %v", processes, err)
			}
			for _, pod := range p.pods() {
				if !v.again(pod, classicalPort) {
					t.Errorf("%s does not resume after a reload", pod.name)
				}
			}
			if resumed, err := v.request(held[0], keeping{v}); err != nil || !resumed {
				t.Fatalf("the old worker does not resume: %v", err)
			}

			_, classical := p.clients()
			load := startTraffic(2, classical)
			started := time.Now()
			p.name, p.key = tickets.NewWrappingKey()
			p.ring = tickets.New(p.ring.Epoch + 3)
			want := p.ring.Epoch
			if storeIsThere {
				p.share()
			} else {
				p.store.Stop()
				want = 0
			}
			p.access.Rings = map[string]dataplane.RingAccess{testRing: {WrappingKeys: tickets.WrappingKeys{p.name: p.key}, LeastEpoch: p.ring.Epoch}}
			p.tell()
			p.haveEpoch(want)
			p.eventually("the old worker is rid of its keys", func() error {
				state, err := os.ReadFile(filepath.Join(p.dir, "run", currentLink, stateFile))
				if err == nil && !strings.Contains(string(state), fmt.Sprintf(`"cleared":%d`, p.ring.Epoch)) {
					err = errors.New("not yet")
				}
				return err
			})
			t.Logf("refused everywhere after %s", time.Since(started).Round(time.Millisecond))
			for _, pod := range p.pods() {
				if v.again(pod, classicalPort) {
					t.Errorf("%s resumes a dropped ticket", pod.name)
				}
			}
			if resumed, err := v.request(held[1], keeping{v}); err != nil || resumed {
				t.Errorf("the old worker: resumed %v, %v", resumed, err)
			}
			load.end(t, "dropping all tickets")
			p.resumeEachOther(storeIsThere)
			if !storeIsThere {
				p.store.Restart()
				p.share()
				p.haveEpoch(p.ring.Epoch)
				p.resumeEachOther(true)
			}
			// A reload, and HAProxy's own start, bring nothing back.
			p.kill(p.haproxy)
			p.statusIs("down", func(s dataplane.Status) bool { return s.Tickets == nil })
			p.startHAProxy()
			p.runs(target)
			if v.again(p.pod, classicalPort) {
				t.Error("resumed after HAProxy's restart")
			}
		})
	}
}

func TestKeysOutliveProcesses(t *testing.T) {
	p := newPair(t)
	p.life = time.Hour
	p.startShared()
	p.rotateRing() // so that the keys are not those of the start
	v := p.visitor()
	v.first(p.second)
	keeps := func(what string) {
		t.Helper()
		if !v.again(p.pod, classicalPort) {
			t.Errorf("%s: the other replica's ticket is not resumed", what)
		}
		if s := p.look(); s.Tickets == nil || s.Tickets.Epoch != p.ring.Epoch {
			t.Errorf("%s: %+v", what, s.Tickets)
		}
		if err := p.holds(p.pod); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := p.master().Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	keeps("a reload")
	// From here on without the store: what is kept is kept in the pod.
	p.store.Stop()
	p.statusIs("the store is away", func(s dataplane.Status) bool {
		return s.Tickets != nil && strings.Contains(s.Tickets.Problem, "cannot be reached") && strings.Contains(s.Tickets.Problem, p.storeAddress())
	})
	keeps("the store is away")
	p.kill(p.haproxy)
	p.statusIs("down", func(s dataplane.Status) bool { return s.Tickets == nil })
	p.startHAProxy()
	p.runs(p.assignment.Stable)
	keeps("HAProxy was restarted")
	p.kill(p.agent)
	p.startAgent()
	p.runs(p.assignment.Stable)
	keeps("the agent was restarted")
	g := p.gateway()
	g.DrainTimeoutSeconds++
	target := p.use(render(t, g), 2)
	p.publish()
	p.runs(target)
	keeps("another configuration")
	// An agent that ended in mid-rotation leaves HAProxy with keys of its own.
	p.kill(p.agent)
	if err := p.admin().PushTicketKey(t.Context(), haproxy.TicketFile("classic"), tickets.NewKey()); err != nil {
		t.Fatal(err)
	}
	if p.holds(p.pod) == nil {
		t.Error("a key that was pushed is not there")
	}
	p.startAgent()
	p.eventually("the keys are as they should be", func() error { return p.holds(p.pod) })
	// What changed while no agent ran is made good.
	p.kill(p.agent)
	p.store.Restart()
	p.ring = p.ring.Next(p.ring.Epoch + 1)
	p.share()
	p.startAgent()
	p.haveEpoch(p.ring.Epoch)
	p.resumeEachOther(true)
	if s := p.look(); s.Tickets == nil || s.Tickets.Problem != "" {
		t.Errorf("problem: %+v", s.Tickets)
	}
}

func TestASessionIsOfOneListener(t *testing.T) {
	p := newPair(t)
	key := testcert.Key(t, "ECDSA-P256")
	leaf := testcert.Sign(t, &x509.Certificate{SerialNumber: big.NewInt(7), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}, p.classical.cert, key.Public(), p.classical.key)
	p.startShared()

	anonymous := p.visitor()
	resumes := func(port int32) (bool, error) {
		conn, err := p.second.network.dial(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		return anonymous.request(conn, keeping{anonymous})
	}
	refused := func(err error) bool { return err != nil && strings.Contains(err.Error(), "certificate required") }

	anonymous.first(p.pod)
	if resumed, err := resumes(classicalPort); err != nil || !resumed {
		t.Errorf("the same listener: resumed %v, %v", resumed, err)
	}
	if resumed, err := resumes(otherPort); err != nil || resumed {
		t.Errorf("another listener: resumed %v, %v", resumed, err)
	}
	if _, err := resumes(securePort); !refused(err) {
		t.Errorf("one that requires a client certificate: %v", err)
	}
	known := p.visitor()
	known.certificate = &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
	if _, err := known.visit(p.pod, securePort); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if resumed, err := known.visit(p.second, securePort); err != nil || !resumed {
		t.Errorf("the session of one that had a certificate: resumed %v, %v", resumed, err)
	}

	// The control: it is the scopes that make the difference.
	r := render(t, p.gateway())
	for i := range r.Tickets.Files {
		r.Tickets.Files[i].Scope = "all"
	}
	target := p.use(r, 2)
	p.publish()
	p.runs(target)
	p.second.runs(target)
	anonymous.first(p.pod)
	if resumed, err := resumes(otherPort); err != nil || !resumed {
		t.Errorf("another listener, with keys in common: resumed %v, %v", resumed, err)
	}
	// Here, HAProxy (3.2) sees to it as well.
	if _, err := resumes(securePort); !refused(err) {
		t.Errorf("one that requires a client certificate, with keys in common: %v", err)
	}
}

// A ticket says itself for how long it is good.
func TestALoweredLifetimeHoldsForTicketsThatAreOut(t *testing.T) {
	p := newPair(t)
	p.startShared()
	client := p.visitor()
	client.first(p.pod)
	if !client.again(p.second, classicalPort) {
		t.Error("before, the session is not resumed")
	}
	lowered := p.gateway()
	lowered.Tickets.LifetimeSeconds /= 2
	target := p.use(render(t, lowered), 2)
	p.publish()
	p.runs(target)
	p.second.runs(target)
	if resumed, err := client.visit(p.second, classicalPort); err != nil || resumed {
		t.Errorf("with a ticket of the longer lifetime: resumed %v, %v", resumed, err)
	}
	if !client.again(p.pod, classicalPort) {
		t.Error("nor is one of the shorter")
	}
}

func TestAStoreThatIsAwayDelaysNothing(t *testing.T) {
	p := newPair(t)
	p.tell()
	p.store.Cut() // neither an answer nor a refusal
	started := time.Now()
	p.startBoth()
	t.Logf("both replicas are ready after %s without the store", time.Since(started).Round(time.Millisecond))
	for _, pod := range p.pods() {
		s := pod.statusIs("own keys", func(s dataplane.Status) bool {
			return s.Tickets != nil && strings.Contains(s.Tickets.Problem, "cannot be reached")
		})
		t.Logf("%s: %s", pod.name, s.Tickets.Problem)
		if s.Tickets.Epoch != 0 || strings.Contains(s.Tickets.Problem, p.access.Store.Password) {
			t.Errorf("%s: %+v", pod.name, s.Tickets)
		}
	}
	p.resumeEachOther(false)
	p.store.Mend()
	_, classical := p.clients()
	load := startTraffic(2, classical)
	p.life = time.Minute // more than it takes to see that it is used
	p.share()
	p.haveEpoch(p.ring.Epoch)
	p.resumeEachOther(true)
	// Nobody keeps the ring alive: it ends, also where it was read.
	for _, pod := range p.pods() {
		pod.statusIs("own keys again", func(s dataplane.Status) bool { return s.Tickets != nil && s.Tickets.Epoch == 0 })
		pod.statusIs("why", func(s dataplane.Status) bool { return s.Tickets != nil && s.Tickets.Problem != "" })
	}
	p.resumeEachOther(false)
	p.life = time.Hour
	p.ring = p.ring.Next(p.ring.Epoch + 1)
	p.share()
	p.haveEpoch(p.ring.Epoch)
	p.resumeEachOther(true)
	load.end(t, "a store that comes, and a ring that ends")
}

func TestWhatIsWrongWithTheStoreIsTold(t *testing.T) {
	p := newPair(t)
	p.life = time.Hour
	p.startShared()
	good := *p.access.Store
	for _, c := range []struct {
		name  string
		spoil func()
		want  string
	}{
		{"a wrong password", func() { p.access.Store.Password = "wrong" }, "user name or password"},
		{"another authority", func() { p.access.Store.CA = testcert.PEM(p.classical.cert) }, "certificate is refused"},
		{"nobody there", func() { p.access.Store.Addresses = []string{"127.0.0.1:9"} }, "127.0.0.1:9: cannot be reached"},
		{"no permission", func() { p.access.Store.Prefix = "other:" }, "lacks a permission"},
		{"a damaged ring", func() {
			if err := p.writer.Publish(t.Context(), testRing, ticketstore.Document{Content: []byte("{}"), Epoch: p.ring.Epoch, ExpiresIn: time.Hour}); err != nil {
				t.Fatal(err)
			}
		}, "is damaged"},
		{"another wrapping key", func() {
			name, k := tickets.NewWrappingKey()
			p.access.Rings = map[string]dataplane.RingAccess{testRing: {WrappingKeys: tickets.WrappingKeys{name: k}}}
		}, "wrapping key that is not known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := good
			rings := p.access.Rings
			p.access.Store = &store
			c.spoil()
			p.tell()
			for _, pod := range p.pods() {
				s := pod.statusIs(c.want, func(s dataplane.Status) bool { return s.Tickets != nil && strings.Contains(s.Tickets.Problem, c.want) })
				if pod == p.pod {
					t.Log(s.Tickets.Problem)
				}
				if s.Tickets.Epoch != p.ring.Epoch || strings.Contains(s.Tickets.Problem, good.Password) {
					t.Errorf("%s: %+v", pod.name, s.Tickets)
				}
				pod.eventually("the status does not change while nothing does", func() error {
					before, err := pod.getStatus(0, 0)
					if err != nil {
						return err
					}
					time.Sleep(time.Second)
					if s, err := pod.getStatus(0, 0); err != nil || s.Sequence != before.Sequence {
						return fmt.Errorf("%s: %+v, %w", pod.name, s.Tickets, err)
					}
					return nil
				})
			}
			p.access.Store, p.access.Rings = &good, rings
			p.share()
			p.tell()
			for _, pod := range p.pods() {
				pod.statusIs("well", func(s dataplane.Status) bool { return s.Tickets != nil && s.Tickets.Problem == "" })
			}
			p.resumeEachOther(true)
		})
	}
}
