//go:build crypto

package haproxy

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/model"
)

func TestOneLineForEachHandshakeWhateverBecomesOfIt(t *testing.T) {
	p := newPod(t)
	i := newIssuer(t, "ECDSA-P256")
	ecdsa := p.certificate(i, "ECDSA-P256", anyScheme, host)
	p.start(gateway(prefer,
		model.Port{Number: port, Listeners: []model.Listener{https("web", []model.Hostname{host}, ecdsa)}},
		model.Port{Number: port + 1, Listeners: []model.Listener{https("dual", []model.Hostname{host}, p.certificate(i, "ML-DSA-65", anyScheme, host), ecdsa)}},
		model.Port{Number: port + 2, Listeners: []model.Listener{{Name: "bytes", Protocol: v1alpha1.ProtocolTLS, Certificates: []model.Certificate{ecdsa}, Backends: shop}}},
	), nil)
	for _, tc := range []struct {
		what   string
		atOnce bool
		then   func(*tls.Conn)
	}{
		{"closed", false, func(c *tls.Conn) { c.Close() }},
		{"cut", false, func(c *tls.Conn) { c.NetConn().Close() }},
		{"reset", false, func(c *tls.Conn) { _ = c.NetConn().(*net.TCPConn).SetLinger(0); c.NetConn().Close() }},
		{"cut within a request", false, func(c *tls.Conn) { _, _ = c.Write([]byte("GET / HT")); c.NetConn().Close() }},
		{"garbage", false, func(c *tls.Conn) {
			_, _ = c.NetConn().Write([]byte("garbage instead of a record"))
			time.Sleep(20 * time.Millisecond)
			c.NetConn().Close()
		}},
		{"a bad request", false, func(c *tls.Conn) {
			_, _ = c.Write([]byte("\x00\x01\r\n\r\n"))
			_, _ = c.Read(make([]byte, 1))
			c.Close()
		}},
		{"two requests", false, func(c *tls.Conn) {
			for range 2 {
				_, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n"))
				_ = c.SetReadDeadline(time.Now().Add(patience))
				_, _ = c.Read(make([]byte, 4096))
			}
			c.Close()
		}},
		// The last, for a line of these may come late.
		{"gone before the server has sent its tickets", true, func(c *tls.Conn) { c.NetConn().Close() }},
	} {
		for n := range 3 {
			for range 20 {
				tickets := &ticketCounter{}
				conn, err := p.dial(port+n, host, func(c *tls.Config) { c.ClientSessionCache = tickets })
				if err != nil {
					t.Fatal(err)
				}
				if !tc.atOnce { // the server has finished, too, once it has sent its tickets
					for deadline := time.Now().Add(patience); tickets.n < 2 && time.Now().Before(deadline); {
						_ = conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
						_, _ = conn.Read(make([]byte, 1))
					}
					_ = conn.SetReadDeadline(time.Time{})
					time.Sleep(10 * time.Millisecond)
				}
				tc.then(conn)
			}
			counts := map[bool]int{}
			for {
				wait := 300 * time.Millisecond // for one too many
				if !tc.atOnce && counts[false]+counts[true] < 20 {
					wait = patience
				}
				h, ok := p.handshakeWithin(wait)
				if !ok {
					break
				}
				counts[h.Failed]++
				if h.Failed && counts[true] == 1 {
					t.Logf("%+v", h)
				}
			}
			if tc.atOnce { // which is a failure to HAProxy, or not; one line at most
				t.Logf("port %d, %s: of 20 handshakes %d are logged, and %d failures", port+n, tc.what, counts[false], counts[true])
				if counts[false]+counts[true] > 20*(n+1) {
					t.Errorf("port %d, %s: %d lines for 20 handshakes", port+n, tc.what, counts[false]+counts[true])
				}
			} else if counts[false] != 20 || counts[true] != 0 {
				t.Errorf("port %d, %s: of 20 handshakes %d are logged, and %d failures", port+n, tc.what, counts[false], counts[true])
			}
		}
	}
}

// ticketCounter holds no sessions.
type ticketCounter struct{ n int }

func (c *ticketCounter) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (c *ticketCounter) Put(string, *tls.ClientSessionState)        { c.n++ }

func TestAConnectionThatSendsNothingIsNoFailure(t *testing.T) { // such as a probe of a load balancer
	p := newPod(t)
	p.start(gateway(prefer, model.Port{Number: port, Listeners: []model.Listener{https("web", nil, p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", anyScheme, host))}}), nil)
	for range 10 {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", "8443"))
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	if h, ok := p.handshakeWithin(300 * time.Millisecond); ok {
		t.Errorf("logged: %+v", h)
	}
}

// An agent that is away is no reason to wait, not even when the ring is full.
func TestHandshakesGoOnWithoutAReaderOfTheLog(t *testing.T) {
	p := newPod(t)
	g := gateway(prefer, model.Port{Number: port, Listeners: []model.Listener{https("web", nil, p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", anyScheme, host))}})
	p.change = func(config string) string { return strings.Replace(config, "size 1048576", "size 16384", 1) }
	p.listener.Close()
	p.start(g, nil)
	start := time.Now()
	const handshakes = 1000 // of more than 90 bytes each
	for range handshakes {
		conn, err := p.dial(port, host, nil)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	t.Logf("%d handshakes in %s", handshakes, time.Since(start).Round(time.Millisecond))
}

// A burst is logged to its last line by a reader that keeps up.
func TestNoLineIsLostInABurst(t *testing.T) {
	p := newPod(t)
	p.start(gateway(prefer, model.Port{Number: port, Listeners: []model.Listener{https("web", nil, p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", anyScheme, host))}}), nil)
	const each, workers = 250, 8
	failed := make(chan error, workers)
	for range workers {
		go func() {
			for range each {
				conn, err := p.dial(port, host, nil)
				if err != nil {
					failed <- err
					return
				}
				leave(conn)
			}
			failed <- nil
		}()
	}
	counted := 0
	for counted < each*workers {
		if _, ok := p.handshakeWithin(patience); !ok {
			break
		}
		counted++
	}
	for range workers {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d handshakes, %d lines", each*workers, counted)
	if counted != each*workers {
		t.Errorf("%d of %d handshakes are logged", counted, each*workers)
	}
}
