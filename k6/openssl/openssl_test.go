package openssl_test

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/k6/haproxytest"
	"qtls.dev/qtls/k6/openssl"
	"qtls.dev/qtls/k6/options"
)

// trusting are options for a server with a certificate that signed itself.
func trusting(c haproxytest.Certificate) options.Options {
	return options.Options{Host: "127.0.0.1", SNI: "server.example", MinVersion: "1.3", MaxVersion: "1.3", Tickets: 1, CA: c.PEM}
}

func newClient(t testing.TB, o options.Options) *openssl.Client {
	t.Helper()
	c, err := openssl.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// handshake makes one connection and awaits tickets.
func handshake(c *openssl.Client, port, tickets int) openssl.Report {
	k, r := c.Connect("127.0.0.1", port, time.Minute)
	if k == nil {
		return r
	}
	defer k.Close()
	var failed *openssl.Failed
	if _, err := k.AwaitTickets(tickets); errors.As(err, &failed) {
		r.Failure, r.Message = failed.Class, failed.Message
	}
	r.Tickets = k.Tickets()
	return r
}

func TestHandshakesOfEachKindAreFullAndThenResumed(t *testing.T) {
	for _, key := range []struct {
		name, scheme string
		newkey       []string
		certificate  int64 // bytes that it has at least
	}{
		{"ML-DSA-65", "mldsa65", []string{"ml-dsa-65"}, 5000},
		{"ECDSA-P256", "ecdsa_secp256r1_sha256", haproxytest.ECDSA, 300},
		{"RSA-4096", "rsa_pss_rsae_sha256", []string{"rsa:4096"}, 1000},
	} {
		t.Run(key.name, func(t *testing.T) {
			c := haproxytest.NewCertificate(t, key.newkey...)
			server := haproxytest.Start(t, c, "curves X25519MLKEM768:MLKEM1024")
			for _, group := range []string{"X25519MLKEM768", "MLKEM1024"} {
				o := trusting(c)
				o.Groups, o.Resumption = []string{group}, true
				client := newClient(t, o)

				full := handshake(client, server.Port, 1)
				if full.Failure != "" || full.Group != group || full.SignatureAlgorithm != key.scheme || full.Version != "TLSv1.3" || full.Resumed || full.HelloRetry {
					t.Errorf("%s, full: %+v", group, full)
				}
				if full.CertificateBytes < key.certificate || full.BytesReceived <= full.CertificateBytes || full.BytesSent < 1000 {
					t.Errorf("%s, full: certificate of %d bytes, %d received, %d sent", group, full.CertificateBytes, full.BytesReceived, full.BytesSent)
				}
				waited(t, group+", full", full, 1)
				if full.Client <= 0 || full.Network < 0 || full.Client > full.Handshake || full.Client+full.Network+full.Server > full.Handshake+full.Network {
					t.Errorf("%s, full: the time is split as %+v", group, full)
				}

				resumed := handshake(client, server.Port, 1)
				if resumed.Failure != "" || resumed.Group != group || resumed.SignatureAlgorithm != "" || !resumed.Resumed || resumed.CertificateBytes != 0 {
					t.Errorf("%s, resumed: %+v", group, resumed)
				}
				waited(t, group+", resumed", resumed, 1)
				if resumed.BytesReceived >= full.BytesReceived {
					t.Errorf("%s: resumed it received %d bytes, %d in full", group, resumed.BytesReceived, full.BytesReceived)
				}
			}
		})
	}
}

// waited checks whose time a handshake was: the network's are so many round trips, and the server has what is left.
func waited(t testing.TB, name string, r openssl.Report, roundTrips int) {
	t.Helper()
	network := min(time.Duration(roundTrips)*r.RoundTrip, r.Handshake)
	if r.RoundTrip <= 0 || r.Network != network || r.Server != max(r.Handshake-r.Client-network, 0) {
		t.Errorf("%s: want %d round trips in %+v", name, roundTrips, r)
	}
}

func TestWithoutResumptionEveryHandshakeIsFull(t *testing.T) {
	c := haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	server := haproxytest.Start(t, c, "")
	client := newClient(t, trusting(c))
	for i := range 3 {
		if r := handshake(client, server.Port, 1); r.Failure != "" || r.Resumed || r.Tickets == 0 {
			t.Errorf("handshake %d: %+v", i, r)
		}
	}
}

// A server that is given its ticket keys, as the gateway's HAProxy is, sends no new ticket when it resumes. One that makes
// them by itself does.
func TestSessionsAreResumedAgainAndAgain(t *testing.T) {
	c := haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	keys := filepath.Join(t.TempDir(), "keys")
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 80))
	if err := os.WriteFile(keys, []byte(key+"\n"+key+"\n"+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, words := range map[string]string{"keys of its own": "", "keys that it is given": "tls-ticket-keys " + keys} {
		server := haproxytest.Start(t, c, words)
		o := trusting(c)
		o.Resumption = true
		client := newClient(t, o)
		if r := handshake(client, server.Port, 1); r.Failure != "" || r.Resumed || r.Tickets == 0 {
			t.Errorf("%s, full: %+v", name, r)
		}
		for range 4 {
			if r := handshake(client, server.Port, 1); r.Failure != "" || !r.Resumed {
				t.Errorf("%s, resumed: %+v", name, r)
			}
		}
	}
}

func TestASessionOfTLS12IsResumedAgainAndAgain(t *testing.T) {
	c := haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	server := haproxytest.Start(t, c, "ssl-max-ver TLSv1.2")
	o := trusting(c)
	o.MinVersion, o.MaxVersion, o.Resumption = "1.2", "1.2", true
	client := newClient(t, o)
	full := handshake(client, server.Port, 1)
	if full.Failure != "" || full.Resumed || full.Version != "TLSv1.2" || full.SignatureAlgorithm != "ecdsa_secp256r1_sha256" || full.Tickets != 1 {
		t.Errorf("full: %+v", full)
	}
	waited(t, "full", full, 2)
	for range 3 {
		r := handshake(client, server.Port, 1)
		if r.Failure != "" || !r.Resumed || r.Version != "TLSv1.2" {
			t.Errorf("resumed: %+v", r)
		}
		waited(t, "resumed", r, 1)
	}
}

// counter counts the bytes that go by.
type counter struct{ atomic.Int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.Add(int64(len(b)))
	return len(b), nil
}

// No ticket follows a full handshake of TLS 1.2: what went by until it is over are its bytes, and all of them.
func TestTheBytesOfAHandshakeAreThoseOnTheWire(t *testing.T) {
	c := haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	server := haproxytest.Start(t, c, "ssl-max-ver TLSv1.2")
	var sent, received counter
	port := serve(t, func(conn net.Conn) {
		to, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(server.Port)))
		if err != nil {
			return // the client tells
		}
		defer to.Close()
		go func() {
			_, _ = io.Copy(to, io.TeeReader(conn, &sent))
			to.Close()
		}()
		_, _ = io.Copy(conn, io.TeeReader(to, &received))
	})
	o := trusting(c)
	o.MinVersion, o.MaxVersion = "1.2", "1.2"
	k, r := newClient(t, o).Connect("127.0.0.1", port, time.Minute)
	if k == nil {
		t.Fatalf("%+v", r)
	}
	defer k.Close()
	if r.Resumed || r.BytesSent != sent.Load() || r.BytesReceived != received.Load() || r.CertificateBytes <= 0 {
		t.Errorf("%d bytes were sent and %d received: %+v", sent.Load(), received.Load(), r)
	}
}

func TestAHelloRetryRequestIsSeenAndIsARoundTrip(t *testing.T) {
	c := haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	server := haproxytest.Start(t, c, "curves X25519MLKEM768")
	o := trusting(c)
	o.Groups = []string{"*X25519", "X25519MLKEM768"} // a key share for the first alone
	r := handshake(newClient(t, o), server.Port, 1)
	if r.Failure != "" || !r.HelloRetry || r.Group != "X25519MLKEM768" {
		t.Errorf("got %+v", r)
	}
	waited(t, "with a HelloRetryRequest", r, 2)
}

// Without a ticket to wait for, the server is waited for until it closes: then it has seen the handshake to its end.
func TestAClientThatWaitsForNoTickets(t *testing.T) {
	c := haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	server := haproxytest.Start(t, c, "")
	if r := handshake(newClient(t, trusting(c)), server.Port, 0); r.Failure != "" {
		t.Errorf("got %+v", r)
	}
}

func TestAGroupOfTheProvider(t *testing.T) {
	provider := os.Getenv("QTLS_PROVIDER")
	c := haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	server := haproxytest.Start(t, c, "curves smaug_t1", "ssl-provider-path "+strings.TrimSuffix(provider, "/oqsprovider.so"), "ssl-provider oqsprovider", "ssl-provider default")
	t.Setenv("OPENSSL_MODULES", filepath.Dir(provider)) // in an image it is where OpenSSL looks without
	for name, properties := range map[string]string{provider: "", "oqsprovider": "?provider=oqsprovider"} {
		o := trusting(c)
		o.Groups, o.Provider, o.Properties = []string{"smaug_t1"}, name, properties
		if r := handshake(newClient(t, o), server.Port, 1); r.Failure != "" || r.Group != "smaug_t1" {
			t.Errorf("%s: got %+v", name, r)
		}
	}
}

func TestFailuresHaveTheirClass(t *testing.T) {
	c, other := haproxytest.NewCertificate(t, haproxytest.ECDSA...), haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	server := haproxytest.Start(t, c, "curves X25519MLKEM768")
	mutual := haproxytest.Start(t, c, "ca-file "+other.File+" verify required")
	with := func(change func(*options.Options)) options.Options {
		o := trusting(c)
		change(&o)
		return o
	}
	plain := with(func(*options.Options) {})
	for name, test := range map[string]struct {
		o       options.Options
		port    int
		class   shard.Failure
		message string
	}{
		"another authority":     {with(func(o *options.Options) { o.CA = other.PEM }), server.Port, shard.Verify, "self-signed certificate"},
		"another name":          {with(func(o *options.Options) { o.SNI = "other.example" }), server.Port, shard.Verify, "hostname mismatch"},
		"no name":               {with(func(o *options.Options) { o.SNI = "" }), server.Port, shard.Verify, "IP address mismatch"},
		"no group in common":    {with(func(o *options.Options) { o.Groups = []string{"MLKEM1024"} }), server.Port, shard.Alert("handshake_failure"), "alert handshake failure"},
		"no version in common":  {with(func(o *options.Options) { o.MinVersion, o.MaxVersion = "1.2", "1.2" }), haproxytest.Start(t, c, "ssl-min-ver TLSv1.3").Port, shard.Alert("protocol_version"), "alert protocol version"},
		"no client certificate": {plain, mutual.Port, shard.Alert("certificate_required"), "certificate required"},
		"refused port":          {plain, refusingPort(t), shard.Connect, "Connection refused"},
		"the server hangs up":   {plain, serve(t, func(conn net.Conn) { conn.Close() }), shard.Reset, ""},
		"not TLS":               {plain, serve(t, func(conn net.Conn) { fmt.Fprint(conn, "220 mail.example ready\r\n"); _, _ = io.Copy(io.Discard, conn) }), shard.Handshake, "wrong version number"},
	} {
		t.Run(name, func(t *testing.T) {
			r := handshake(newClient(t, test.o), test.port, 1)
			if r.Failure != test.class && !(test.class == shard.Handshake && r.Failure.Class() == shard.Handshake) || !strings.Contains(r.Message, test.message) {
				t.Errorf("got %q: %q, want %q: %q", r.Failure, r.Message, test.class, test.message)
			}
		})
	}
	t.Run("with the client certificate", func(t *testing.T) {
		o := with(func(o *options.Options) { o.Certificate, o.Key = other.PEM, other.Key })
		if r := handshake(newClient(t, o), mutual.Port, 1); r.Failure != "" {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("nothing is verified when that is said", func(t *testing.T) {
		o := with(func(o *options.Options) { o.CA, o.InsecureSkipVerify, o.SNI = "", true, "other.example" })
		if r := handshake(newClient(t, o), server.Port, 1); r.Failure != "" {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("a silent server", func(t *testing.T) {
		port := serve(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		if k, r := newClient(t, plain).Connect("127.0.0.1", port, 50*time.Millisecond); k != nil || r.Failure != shard.Timeout {
			t.Errorf("got %+v", r)
		}
	})
}

// A server that always has more to say is never waited for. The time limit holds all the same.
func TestAServerThatNeverStopsTalkingIsLeft(t *testing.T) {
	t.Parallel()                               // it waits, mostly
	began, limit := time.Now(), 15*time.Second // for the handshake, too, and a machine may stand still meanwhile
	c := haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	pair, err := tls.X509KeyPair([]byte(c.PEM), []byte(c.Key))
	if err != nil {
		t.Fatal(err)
	}
	port := serve(t, func(conn net.Conn) {
		_ = conn.SetDeadline(time.Now().Add(haproxytest.Patience)) // else a client that stays would keep the test
		server := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{pair}})
		if err := server.Handshake(); err != nil {
			return
		}
		time.Sleep(time.Until(began.Add(limit - 2*time.Second))) // else it would keep two processors from all others
		for words := make([]byte, 16<<10); ; {
			if _, err := server.Write(words); err != nil {
				return
			}
		}
	})
	k, r := newClient(t, trusting(c)).Connect("127.0.0.1", port, limit)
	if k == nil {
		t.Fatalf("%+v", r)
	}
	defer k.Close()
	var failed *openssl.Failed
	if _, err := k.AwaitTickets(0); !errors.As(err, &failed) || failed.Class != shard.Timeout {
		t.Errorf("got %v, want %s", err, shard.Timeout)
	}
}

// refusingPort is one that this process has bound, so that nobody else gets it, and on which nobody listens.
func refusingPort(t testing.TB) int {
	t.Helper()
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(s) })
	if err := syscall.Bind(s, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(s)
	if err != nil {
		t.Fatal(err)
	}
	return name.(*syscall.SockaddrInet4).Port
}

// serve runs a server for one test.
func serve(t testing.TB, do func(net.Conn)) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				do(conn)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func TestOptionsThatOpenSSLRefusesAreNamed(t *testing.T) {
	c, other := haproxytest.NewCertificate(t, haproxytest.ECDSA...), haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	for want, change := range map[string]func(*options.Options){
		"option groups: ":             func(o *options.Options) { o.Groups = []string{"smaug_t1"} }, // without the provider
		"option signatureAlgorithms:": func(o *options.Options) { o.SignatureAlgorithms = []string{"mldsa66"} },
		"option ca: ":                 func(o *options.Options) { o.CA = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n" },
		"option certificate: ":        func(o *options.Options) { o.Certificate, o.Key = "-----BEGIN X-----", c.Key },
		"option key: ":                func(o *options.Options) { o.Certificate, o.Key = c.PEM, other.Key },
		"option provider: ":           func(o *options.Options) { o.Provider = "/nowhere/oqsprovider.so" },
		"option properties: ":         func(o *options.Options) { o.Properties = "provider=nowhere" },
	} {
		o := trusting(c)
		change(&o)
		if _, err := openssl.NewClient(o); err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), ": give ") {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func TestABulkTransferArrivesWhole(t *testing.T) {
	c := haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	server := haproxytest.Start(t, c, "")
	k, r := newClient(t, trusting(c)).Connect("127.0.0.1", server.Port, time.Minute)
	if k == nil {
		t.Fatalf("%+v", r)
	}
	defer k.Close()
	const size = 1 << 20
	if _, err := fmt.Fprintf(k, "POST / HTTP/1.1\r\nHost: server.example\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("x", size)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(k)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") || !strings.HasSuffix(string(answer), "hello, world") {
		t.Errorf("%q, %v", answer, err)
	}
}

// The server's counters are the judge of the client's. On the way nothing may be left behind: files, ports, memory.
func TestCountsAreTheServersAndNothingLeaks(t *testing.T) {
	total := 3000
	if n, err := strconv.Atoi(os.Getenv("QTLS_TEST_HANDSHAKES")); err == nil {
		total = n
	}
	c := haproxytest.NewCertificate(t, haproxytest.ECDSA...)
	server := haproxytest.Start(t, c, "curves X25519MLKEM768")
	o := trusting(c)
	resuming, full := newClient(t, func() options.Options { o := o; o.Resumption = true; return o }()), newClient(t, o)

	// Always the same thread, whose memory the C library keeps apart.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	resumed := 0
	run := func(n int) {
		for i := range n {
			client := full
			if i%4 != 0 {
				client = resuming
			}
			r := handshake(client, server.Port, 1)
			if r.Failure != "" {
				t.Fatalf("handshake %d: %+v", i, r)
			}
			if r.Resumed {
				resumed++
			}
		}
	}
	const warmUp = 500
	run(warmUp)
	files, memory := openFiles(t), resident(t)
	run(total - warmUp)
	if now := openFiles(t); now > files {
		t.Errorf("%d files are open, %d were", now, files)
	}
	// A session that is left behind is 1.4 KB, a connection much more.
	grown := resident(t) - memory
	t.Logf("the process grew by %d KB in %d handshakes", grown>>10, total-warmUp)
	if most := (total - warmUp) << 10; grown > most {
		t.Errorf("the process grew by %d KB in %d handshakes, want %d KB at most", grown>>10, total-warmUp, most>>10)
	}
	if want := total*3/4 - 1; resumed != want {
		t.Errorf("%d were resumed, want %d", resumed, want)
	}
	// The server counts when it is done with a connection.
	deadline := time.Now().Add(haproxytest.Patience)
	for server.Counter(t, "ssl_sess")+server.Counter(t, "ssl_reused_sess") < total && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	for name, want := range map[string]int{"ssl_sess": total - resumed, "ssl_reused_sess": resumed, "ssl_failed_handshake": 0} {
		if got := server.Counter(t, name); got != want {
			t.Errorf("HAProxy counts %s %d, the client %d", name, got, want)
		}
	}
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// resident is this process's memory in bytes.
func resident(t testing.TB) int {
	t.Helper()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
