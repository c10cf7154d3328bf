//go:build crypto

package haproxy

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/model"
)

// HAProxy is the one that makes connections of descriptors: as many as half of
// them, but for the few that it needs itself.
func TestHAProxyTakesConnectionsForItsDescriptors(t *testing.T) {
	backend := endpoint(t, mirror(t, "one"))
	for _, memory := range []int64{128 << 20, 256 << 20} {
		t.Run(fmt.Sprintf("%d MiB", memory>>20), func(t *testing.T) {
			p := newPod(t)
			p.limit = Descriptors(memory)
			ecdsa := p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", anyScheme, host)
			p.start(gateway(prefer, model.Port{Number: port, Listeners: []model.Listener{
				with(https("web", nil, ecdsa), func(l *model.Listener) { l.Backends = []model.Backend{{Group: "mirror:1", Weight: 1}} })}}),
				dataplane.Endpoints{"mirror:1": {backend}})
			for _, worker := range []string{"the first worker", "the next"} {
				info, err := p.admin().Info(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if most := int(p.limit / 2); info.MaxConnections > most || info.MaxConnections < most/2 {
					t.Errorf("%s takes %d connections, want nearly %d", worker, info.MaxConnections, most)
				}
				if _, err := p.get(port, nil); err != nil {
					t.Errorf("%s: %v", worker, err)
				}
				p.reload()
			}
		})
	}
}

// A worker that takes the place of another starts in the same environment.
func TestHAProxyStartsNoMoreThreadsThanItMayUseCPUs(t *testing.T) {
	p := newPod(t)
	p.environment = []string{ThreadsEnvironment + "=1"}
	p.start(gateway(prefer, model.Port{Number: port, Listeners: []model.Listener{https("web", nil, p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", anyScheme, host))}}), nil)
	for _, worker := range []string{"the first worker", "the next"} {
		info, err := p.admin().Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.Threads != 1 {
			t.Errorf("%s has %d threads, want 1", worker, info.Threads)
		}
		p.reload()
	}
}

// A connection that is handed on inside the pod needs a second one there. Clients
// that all connect before any of them says whom it is for could take all first.
func TestConnectionsAreLeftForThoseThatAreHandedOn(t *testing.T) {
	p := newPod(t)
	p.limit = Descriptors(0)
	p.environment = SelectionEnvironment(p.limit)
	p.change = func(config string) string { // their handshakes are all under way at once
		const usual, here = "timeout client-hs 10s", "timeout client-hs 10m"
		if !strings.Contains(config, usual) {
			t.Fatalf("no %q in:\n%s", usual, config)
		}
		return strings.ReplaceAll(config, usual, here)
	}
	ecdsa := p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", anyScheme, host)
	listener := func(name string, hostnames ...model.Hostname) model.Listener {
		return with(https(name, hostnames, ecdsa), func(l *model.Listener) { l.Backends = []model.Backend{{Group: "mirror:1", Weight: 1}} })
	}
	var ports []model.Port
	for n := range int32(2) {
		ports = append(ports, model.Port{Number: port + n, Listeners: []model.Listener{
			listener(fmt.Sprintf("web-%d", n), host), listener(fmt.Sprintf("others-%d", n))}})
	}
	p.start(gateway(prefer, ports...), dataplane.Endpoints{"mirror:1": {endpoint(t, mirror(t, "one"))}})

	var clients []net.Conn
	for n := range leastConnections + 100 {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port+n%len(ports)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		clients = append(clients, conn)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(p.roots)
	start := time.Now()
	failures := make(chan error, len(clients))
	for _, client := range clients {
		go func() {
			defer client.Close()
			_ = client.SetDeadline(start.Add(patience))
			conn := tls.Client(client, &tls.Config{RootCAs: pool, ServerName: host})
			_, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
			if err == nil {
				var response *http.Response
				response, err = http.ReadResponse(bufio.NewReader(conn), nil)
				// The listener of all other names answers one whose hello a busy machine kept for too long.
				if err == nil && response.StatusCode != http.StatusOK && response.StatusCode != http.StatusMisdirectedRequest {
					err = errors.New(response.Status)
				}
			}
			failures <- err
		}()
	}
	served := 0
	for range clients {
		if err := <-failures; err == nil {
			served++
		} else if !t.Failed() {
			t.Errorf("a client is not served: %v", err)
		}
	}
	t.Logf("%d of %d clients are served, within %s", served, len(clients), time.Since(start).Round(time.Second))
}
