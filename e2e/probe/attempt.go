package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"
)

// Class says how far a connection came before it failed.
type Class string

const (
	// Served: everything that was asked for came.
	Served Class = "served"
	// Connect: no TCP connection.
	Connect Class = "connect"
	// Handshake: TCP, but no TLS connection.
	Handshake Class = "handshake"
	// Verify: the server's certificate was not accepted.
	Verify Class = "verify"
	// Request: a TLS connection, but not the answer that was asked for. In TLS 1.3 a server that refuses the client's
	// certificate is seen here, because the client's side of the handshake is over by then.
	Request Class = "request"
	// Partial: the ClientHello was cut off on purpose; Closed says what the server did.
	Partial Class = "partial"
)

// Result is what became of one connection.
type Result struct {
	OK    bool   `json:"ok"`
	Class Class  `json:"class"`
	Error string `json:"error,omitempty"`
	// Client is the release of Go.
	Client string `json:"client"`

	Version           string `json:"version,omitempty"`
	CipherSuite       string `json:"cipherSuite,omitempty"`
	Group             string `json:"group,omitempty"`
	HelloRetryRequest bool   `json:"helloRetryRequest,omitempty"`
	ALPN              string `json:"alpn,omitempty"`
	// Resumed: the server took a session ticket for proof. Issuer is the address that the ticket is from, Acceptor the one
	// that it was brought to; both are empty where there was none.
	Resumed  bool   `json:"resumed,omitempty"`
	Issuer   string `json:"-"`
	Acceptor string `json:"-"`
	// Certificate is the leaf, Chain the number of certificates that the server sent.
	Certificate *Certificate `json:"certificate,omitempty"`
	Chain       int          `json:"chain,omitempty"`

	// Status and Answer of the HTTP request; the answer is there when it is JSON.
	Status int             `json:"status,omitempty"`
	Answer json.RawMessage `json:"answer,omitempty"`
	// Pod that answered, from the answer.
	Pod string `json:"pod,omitempty"`

	// HandshakeMS is the time from the start to the end of the handshake, TotalMS to the end of the answer, both in
	// milliseconds.
	HandshakeMS float64 `json:"handshakeMs,omitempty"`
	TotalMS     float64 `json:"totalMs"`
	// Closed, after a partial ClientHello: how long until the server gave up, and what it sent.
	Closed *Closed `json:"closed,omitempty"`
	// Offered is what the ClientHello said.
	Offered *Hello `json:"offered,omitempty"`
}

// Certificate describes a leaf.
type Certificate struct {
	Algorithm    string    `json:"algorithm"`
	SerialNumber string    `json:"serialNumber"` // lower-case hex
	Subject      string    `json:"subject"`
	Issuer       string    `json:"issuer"`
	NotAfter     time.Time `json:"notAfter"`
}

// Closed says how a server gave up on a ClientHello that does not come.
type Closed struct {
	AfterMS  float64 `json:"afterMs"`
	Received string  `json:"received,omitempty"` // hex
	// StillOpen is set when the server had not given up when the time was over.
	StillOpen bool `json:"stillOpen,omitempty"`
}

// attempt makes one connection. It never tries again.
func attempt(ctx context.Context, o options, address string) Result {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	start := time.Now()
	r := Result{Class: Connect, Client: runtime.Version()}
	err := r.connect(ctx, o, address, start)
	r.TotalMS = since(start)
	if err != nil {
		r.Error = err.Error()
		return r
	}
	r.OK, r.Class = true, Served
	if o.wire.stopAfter > 0 {
		r.Class = Partial
	}
	return r
}

func (r *Result) connect(ctx context.Context, o options, address string, start time.Time) error {
	tcp, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer abort(tcp)
	deadline, _ := ctx.Deadline()
	if err := tcp.SetDeadline(deadline); err != nil {
		return err
	}
	r.Class = Handshake
	wired := &wiredConn{Conn: tcp, wire: o.wire}
	conn := tls.Client(wired, o.config)
	err = conn.HandshakeContext(ctx)
	r.Offered = wired.hello()
	if wired.stopped {
		r.Closed, err = wired.waitForClose(deadline)
		return err
	}
	if err != nil {
		var refused *tls.CertificateVerificationError
		if errors.As(err, &refused) {
			r.Class = Verify
			r.describe(refused.UnverifiedCertificates)
		}
		return err
	}
	r.HandshakeMS = since(start)
	state := conn.ConnectionState()
	r.Version, r.CipherSuite = tls.VersionName(state.Version), tls.CipherSuiteName(state.CipherSuite)
	r.Group, r.ALPN, r.HelloRetryRequest = groupName(uint16(state.CurveID)), state.NegotiatedProtocol, state.HelloRetryRequest
	r.Resumed = state.DidResume
	r.describe(state.PeerCertificates)
	r.Class = Request
	return r.request(conn, o)
}

func (r *Result) describe(chain []*x509.Certificate) {
	if len(chain) == 0 {
		return
	}
	leaf := chain[0]
	r.Chain = len(chain)
	r.Certificate = &Certificate{
		Algorithm: keyAlgorithm(leaf), SerialNumber: leaf.SerialNumber.Text(16),
		Subject: leaf.Subject.String(), Issuer: leaf.Issuer.String(), NotAfter: leaf.NotAfter,
	}
}

// request asks for what the options say and reads the answer to its end.
func (r *Result) request(conn *tls.Conn, o options) error {
	lines := bufio.NewReader(conn)
	switch {
	case o.echo != "":
		if _, err := io.WriteString(conn, o.echo+"\n"); err != nil {
			return err
		}
		back, err := lines.ReadString('\n')
		if err != nil {
			return fmt.Errorf("the echo did not come: %w", err)
		}
		if strings.TrimSuffix(back, "\n") != o.echo {
			return fmt.Errorf("sent %q, got back %q", o.echo, back)
		}
	case o.path != "":
		request, err := http.NewRequest(http.MethodGet, "https://"+o.host+o.path, nil)
		if err != nil {
			return err
		}
		request.Header, request.Close = o.header, true
		if err := request.Write(conn); err != nil {
			return err
		}
		answer, err := http.ReadResponse(lines, request)
		if err != nil {
			return fmt.Errorf("no HTTP response: %w", err)
		}
		defer answer.Body.Close()
		r.Status = answer.StatusCode
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			return fmt.Errorf("the HTTP response ended early: %w", err)
		}
		if json.Valid(body) {
			r.Answer = body
			var who struct{ Pod string }
			if json.Unmarshal(body, &who) == nil {
				r.Pod = who.Pod
			}
		}
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("HTTP status %s", answer.Status)
		}
	}
	return nil
}

// abort closes a connection at once with a reset: a client that makes thousands would run out of ports, which rest for a
// minute in TIME_WAIT after an orderly close.
func abort(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // without it the close is only slower
	}
	_ = conn.Close()
}

func since(start time.Time) float64 { return float64(time.Since(start).Microseconds()) / 1000 }

// isTimeout tells a deadline from an end.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
