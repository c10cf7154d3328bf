// Package openssl is a TLS client on libssl: unlike Go's it offers any group and signature algorithm that OpenSSL or a
// provider has, resumes sessions, and tells what a handshake took of whom.
package openssl

/*
#cgo LDFLAGS: -lssl -lcrypto
#cgo CFLAGS: -O2 -Wall -Wextra -Werror
#include <stdlib.h>
#include <openssl/ssl.h>
#include "client.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/k6/options"
)

// contexts are what clients share whose options are equal in all that OpenSSL has of them. They live as long as the process.
var (
	contextsMutex sync.Mutex
	contexts      = map[string]*C.qtls_context{}
)

func contextOf(o options.Options) (*C.qtls_context, error) {
	key := fmt.Sprintf("%q %q %q %q %q %q %q %q %q %v", o.Groups, o.SignatureAlgorithms, o.MinVersion, o.MaxVersion, o.CA, o.Certificate, o.Key, o.Provider, o.Properties, o.Resumption)
	contextsMutex.Lock()
	defer contextsMutex.Unlock()
	if c := contexts[key]; c != nil {
		return c, nil
	}
	var free []unsafe.Pointer
	defer func() {
		for _, p := range free {
			C.free(p)
		}
	}()
	text := func(s string) *C.char {
		p := C.CString(s)
		free = append(free, unsafe.Pointer(p))
		return p
	}
	settings := C.qtls_settings{
		groups: text(strings.Join(o.Groups, ":")), signature_algorithms: text(strings.Join(o.SignatureAlgorithms, ":")),
		min_version: versions[o.MinVersion], max_version: versions[o.MaxVersion],
		ca: text(o.CA), certificate: text(o.Certificate), key: text(o.Key), properties: text(o.Properties),
		provider: text(""), provider_folder: text(""),
	}
	if o.Provider != "" {
		settings.provider = text(strings.TrimSuffix(filepath.Base(o.Provider), ".so"))
		if filepath.IsAbs(o.Provider) {
			settings.provider_folder = text(filepath.Dir(o.Provider))
		}
	}
	if o.Resumption {
		settings.resumption = 1
	}
	var problem C.qtls_problem
	c := C.qtls_context_new(&settings, &problem)
	if c == nil {
		return nil, fmt.Errorf("option %s: %s: %s", C.GoString(&problem.option[0]), C.GoString(&problem.reason[0]), remedy(C.GoString(&problem.option[0]), o))
	}
	contexts[key] = c
	return c, nil
}

var versions = map[string]C.int{"1.2": C.TLS1_2_VERSION, "1.3": C.TLS1_3_VERSION}

// remedy says what to do about an option that OpenSSL refuses.
func remedy(option string, o options.Options) string {
	switch option {
	case "groups", "signatureAlgorithms":
		if o.Provider == "" {
			return "give names as `openssl list` has them, or the provider that has more"
		}
		return "give names as `openssl list` has them with this provider"
	case "provider":
		return "give the name of a provider where OpenSSL looks for its own, or the path of a module, that this OpenSSL can load"
	case "properties":
		return "give a property query by which every algorithm of TLS is found, as in \"?provider=oqsprovider\""
	case "ca", "certificate", "key":
		return "give valid PEM"
	}
	return "give another one"
}

// Report is what was seen of a call.
type Report struct {
	// Failure is empty when there was none; Message says more.
	Failure shard.Failure
	Message string

	Group, SignatureAlgorithm, Version string
	Resumed, HelloRetry                bool
	// Tickets came so far.
	Tickets int

	// Connect is TCP's handshake. Handshake begins behind it: Client is the CPU time of its thread, Network the round
	// trips, Server the rest.
	Connect, Handshake, Client, Network, Server time.Duration
	// RoundTrip is the kernel's least RTT.
	RoundTrip time.Duration
	// BytesSent, BytesReceived and CertificateBytes are the handshake's, on the wire of TLS and without tickets.
	BytesSent, BytesReceived, CertificateBytes int64
}

// Client connects again and again, one connection at a time, and keeps the last one's session. It is not safe for use by
// several goroutines.
type Client struct {
	c   *C.qtls_client
	sni *C.char
	// report is C's: what it writes to must not move.
	report *C.qtls_report
}

// NewClient returns a client without a session. An error names the option that OpenSSL refuses.
func NewClient(o options.Options) (*Client, error) {
	context, err := contextOf(o)
	if err != nil {
		return nil, err
	}
	c := &Client{c: C.qtls_client_new(context), sni: C.CString(o.SNI), report: (*C.qtls_report)(C.calloc(1, C.sizeof_qtls_report))}
	runtime.AddCleanup(c, func(free func()) { free() }, freeing(c.c, c.sni, c.report))
	return c, nil
}

func freeing(c *C.qtls_client, sni *C.char, report *C.qtls_report) func() {
	return func() {
		C.qtls_client_free(c)
		C.free(unsafe.Pointer(sni))
		C.free(unsafe.Pointer(report))
	}
}

// Connection is one of a client.
type Connection struct {
	client *Client
	c      *C.qtls_connection
}

// Connect makes a connection to an address and shakes hands. Without a connection the report has a failure. The timeout
// is for all that is done on the connection.
func (c *Client) Connect(address string, port int, timeout time.Duration) (*Connection, Report) {
	a := C.CString(address)
	defer C.free(unsafe.Pointer(a))
	k := C.qtls_connect(c.c, a, C.int(port), c.sni, C.qtls_now()+C.int64_t(timeout), c.report)
	r := c.read()
	runtime.KeepAlive(c)
	if k == nil {
		return nil, r
	}
	return &Connection{c, k}, r
}

// read takes C's report over, and splits the time: whatever is neither the client's CPU time nor a round trip is the
// server's. That is only as true as the client gets its CPU.
func (c *Client) read() Report {
	r := c.report
	d := func(ns C.int64_t) time.Duration { return time.Duration(ns) }
	report := Report{
		Message: C.GoString(&r.message[0]),
		Group:   C.GoString(&r.group[0]), SignatureAlgorithm: C.GoString(&r.signature_algorithm[0]), Version: C.GoString(&r.version[0]),
		Resumed: r.resumed != 0, HelloRetry: r.hello_retry != 0, Tickets: int(r.tickets),
		Connect: d(r.connect_ns), Handshake: d(r.handshake_ns), Client: d(r.client_ns),
		BytesSent: int64(r.bytes_sent), BytesReceived: int64(r.bytes_received), CertificateBytes: int64(r.certificate_bytes),
	}
	if report.Version != "" {
		report.RoundTrip = d(r.min_rtt_ns)
		report.Network = min(d(r.min_rtt_ns*roundTrips(report)), report.Handshake)
		report.Server = max(report.Handshake-report.Client-report.Network, 0)
	}
	report.Failure = failure(r)
	return report
}

// roundTrips is how often a handshake waits for the other side.
func roundTrips(r Report) C.int64_t {
	n := C.int64_t(1)
	if r.HelloRetry {
		n++
	}
	if r.Version == "TLSv1.2" && !r.Resumed {
		n++
	}
	return n
}

func failure(r *C.qtls_report) shard.Failure {
	switch r.failure {
	case C.QTLS_OK:
		return ""
	case C.QTLS_CONNECT:
		return shard.Connect
	case C.QTLS_TIMEOUT:
		return shard.Timeout
	case C.QTLS_VERIFY:
		return shard.Verify
	case C.QTLS_RESET:
		return shard.Reset
	case C.QTLS_HANDSHAKE:
		if r.alert == 0 {
			return shard.Handshake
		}
		if name, known := alerts[int(r.alert)]; known {
			return shard.Alert(name)
		}
		return shard.Alert(strconv.Itoa(int(r.alert)))
	}
	return shard.Other
}

// Failed is the failure of a call on a connection.
type Failed struct {
	Class   shard.Failure
	Message string
}

func (f *Failed) Error() string { return string(f.Class) + ": " + f.Message }

// AwaitTickets reads until the server has sent so many, which also shows that it has accepted the client. With 0, and on a
// connection that has resumed a session, it says good-bye and reads until the server has closed its side.
func (k *Connection) AwaitTickets(n int) (int, error) {
	if C.qtls_await_tickets(k.c, C.int(n), k.client.report) < 0 {
		return 0, k.failed()
	}
	return int(k.client.report.tickets), nil
}

func (k *Connection) failed() error {
	r := k.client.read()
	return &Failed{r.Failure, r.Message}
}

// Read implements io.Reader.
func (k *Connection) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n := int(C.qtls_read(k.c, unsafe.Pointer(&b[0]), C.int(min(len(b), 1<<20)), k.client.report))
	switch {
	case n < 0:
		return 0, k.failed()
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements io.Writer.
func (k *Connection) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		n := int(C.qtls_write(k.c, unsafe.Pointer(&b[written]), C.int(min(len(b)-written, 1<<20)), k.client.report))
		if n < 0 {
			return written, k.failed()
		}
		written += n
	}
	return written, nil
}

// Close ends the connection; its session stays with the client.
func (k *Connection) Close() error {
	if k.c == nil {
		return errors.New("the connection is closed")
	}
	C.qtls_close(k.c)
	k.c = nil
	return nil
}

// Version is that of the OpenSSL in use.
func Version() string { return C.GoString(C.OpenSSL_version(C.OPENSSL_VERSION_STRING)) }

// Tickets came so far on this connection.
func (k *Connection) Tickets() int { return int(k.client.report.tickets) }
