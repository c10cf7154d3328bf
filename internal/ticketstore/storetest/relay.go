package storetest

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
)

// Relay is a network between a server and its clients that can hold back what
// the server says.
type Relay struct {
	t        testing.TB
	server   *Server
	listener net.Listener
	// hold is locked while nothing gets through.
	hold sync.RWMutex
	// dialled and said tell that a connection was made, and that the server said
	// something.
	dialled, said chan struct{}
}

// Relay starts one to the server. It ends with the test.
func (s *Server) Relay() *Relay {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	r := &Relay{t: s.t, server: s, listener: l, dialled: make(chan struct{}, 1), said: make(chan struct{}, 1)}
	s.t.Cleanup(func() { l.Close() })
	go func() {
		for client, err := l.Accept(); err == nil; client, err = l.Accept() {
			tell(r.dialled)
			go r.connect(client)
		}
	}()
	return r
}

func (r *Relay) connect(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", r.server.Address())
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		tell(r.said)
		r.hold.RLock()
		_, err = client.Write(buffer[:n])
		r.hold.RUnlock()
		if err != nil {
			return
		}
	}
}

func tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it has not been heard yet that there was one before
	}
}

// Connection of a role through the relay.
func (r *Relay) Connection(role embedded.Role) ticketstore.Connection {
	c := r.server.Connection(role)
	c.Addresses, c.ServerName = []string{r.listener.Addr().String()}, host
	return c
}

// Hold what the server says from now on.
func (r *Relay) Hold() {
	r.hold.Lock()
	for _, before := range []chan struct{}{r.dialled, r.said} {
		select {
		case <-before:
		default:
		}
	}
}

// Release it.
func (r *Relay) Release() { r.hold.Unlock() }

// AwaitAnswer waits, while it holds, for the server to say something.
func (r *Relay) AwaitAnswer() { r.await(r.said, "an answer of the server") }

// AwaitDial waits, while it holds, for a client to connect.
func (r *Relay) AwaitDial() { r.await(r.dialled, "a new connection") }

func (r *Relay) await(c chan struct{}, what string) {
	r.t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		r.t.Fatalf("%s did not come within %v", what, patience)
	}
}
