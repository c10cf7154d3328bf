package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// authority signs the certificates of a test.
type authority struct {
	file string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Test CA"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{writePEM(t, "CERTIFICATE", der), cert, key}
}

// issue makes a certificate for web.example.
func (a authority) issue(t *testing.T, serial int64) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "leaf"}, NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"web.example"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func writePEM(t *testing.T, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// patience is with what has to happen; how soon it does is not tested.
const patience = time.Minute

// writePair writes a certificate and its key to files.
func writePair(t *testing.T, pair tls.Certificate) (cert, key string) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return writePEM(t, "CERTIFICATE", pair.Certificate[0]), writePEM(t, "PRIVATE KEY", der)
}

// webServer answers like the echo backend and returns its address.
func webServer(t *testing.T, config *tls.Config) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host == "elsewhere.example" {
			w.WriteHeader(http.StatusMisdirectedRequest)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"pod": "echo-7", "path": r.URL.Path, "headers": r.Header})
	}))
	s.TLS = config
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // refusals are what is tested
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// probe runs a command line and returns whether it succeeded and its answer.
func probe[T any](t *testing.T, in io.Reader, args ...string) (bool, T) {
	t.Helper()
	var out bytes.Buffer
	ok, err := run(t.Context(), args, in, &out)
	if err != nil {
		t.Fatalf("probe %s: %v", strings.Join(args, " "), err)
	}
	var answer T
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		t.Fatalf("probe %s: printed %q: %v", strings.Join(args, " "), out.String(), err)
	}
	return ok, answer
}

func TestOneConnectionTellsWhatWasNegotiatedAndWhoAnswered(t *testing.T) {
	ca := newAuthority(t)
	address := webServer(t, &tls.Config{Certificates: []tls.Certificate{ca.issue(t, 0xabc)}, NextProtos: []string{"http/1.1"}})
	ok, r := probe[Result](t, nil, "-ca", ca.file, "-sni", "web.example", "-alpn", "http/1.1", "-http", "/a", "-header", "X-A: b", address)
	if !ok || r.Class != Served {
		t.Fatalf("not served: %+v", r)
	}
	if r.Version != "TLS 1.3" || r.Group != "X25519MLKEM768" || r.ALPN != "http/1.1" || r.Status != 200 || r.Pod != "echo-7" || r.HelloRetryRequest {
		t.Errorf("wrong description: %+v", r)
	}
	if c := r.Certificate; c.Algorithm != "ECDSA-P256" || c.SerialNumber != "abc" || c.Issuer != "CN=Test CA" || r.Chain != 1 {
		t.Errorf("wrong certificate: %+v, chain of %d", c, r.Chain)
	}
	if !strings.Contains(string(r.Answer), `"X-A":["b"]`) {
		t.Errorf("the header was not sent: %s", r.Answer)
	}
}

func TestTheOptionsBoundTheOffer(t *testing.T) {
	ca := newAuthority(t)
	address := webServer(t, &tls.Config{Certificates: []tls.Certificate{ca.issue(t, 2)}})
	for _, c := range []struct {
		name, group, version string
		args                 []string
	}{
		{"groups", "X25519", "TLS 1.3", []string{"-groups", "X25519"}},
		{"another group", "P-384", "TLS 1.3", []string{"-groups", "P-384"}},
		{"version", "X25519", "TLS 1.2", []string{"-groups", "X25519", "-versions", "1.2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ok, r := probe[Result](t, nil, append(c.args, "-ca", ca.file, "-sni", "web.example", address)...)
			if !ok || r.Group != c.group || r.Version != c.version {
				t.Errorf("got %s over %s, want %s over %s (%s)", r.Group, r.Version, c.group, c.version, r.Error)
			}
		})
	}
}

func TestEachFailureHasItsClass(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	leaf := ca.issue(t, 2)
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	plain := webServer(t, &tls.Config{Certificates: []tls.Certificate{leaf}})
	strict := webServer(t, &tls.Config{Certificates: []tls.Certificate{leaf}, CurvePreferences: []tls.CurveID{tls.X25519MLKEM768}})
	mutual := webServer(t, &tls.Config{Certificates: []tls.Certificate{leaf}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool})
	for _, c := range []struct {
		name string
		want Class
		says string
		args []string
	}{
		{"nobody listens", Connect, "refused", []string{"-ca", ca.file, "-sni", "web.example", "127.0.0.1:1"}},
		{"no group in common", Handshake, "handshake failure", []string{"-ca", ca.file, "-sni", "web.example", "-groups", "X25519", strict}},
		{"another CA", Verify, "unknown authority", []string{"-ca", other.file, "-sni", "web.example", plain}},
		{"another name", Verify, "not other.example", []string{"-ca", ca.file, "-sni", "other.example", plain}},
		{"no client certificate", Request, "certificate required", []string{"-ca", ca.file, "-sni", "web.example", "-http", "/", mutual}},
		{"a status that is not OK", Request, "421", []string{"-ca", ca.file, "-sni", "web.example", "-http", "/", "-host", "elsewhere.example", plain}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ok, r := probe[Result](t, nil, c.args...)
			if ok || r.Class != c.want || !strings.Contains(r.Error, c.says) {
				t.Errorf("got %s %q, want %s with %q", r.Class, r.Error, c.want, c.says)
			}
		})
	}
}

func TestAClientCertificateIsSent(t *testing.T) {
	ca := newAuthority(t)
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	address := webServer(t, &tls.Config{Certificates: []tls.Certificate{ca.issue(t, 2)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool})
	cert, key := writePair(t, ca.issue(t, 3))
	if ok, r := probe[Result](t, nil, "-ca", ca.file, "-sni", "web.example", "-cert", cert, "-key", key, "-http", "/", address); !ok {
		t.Errorf("refused: %s", r.Error)
	}
}

func TestAnEchoIsCompared(t *testing.T) {
	ca := newAuthority(t)
	config := &tls.Config{Certificates: []tls.Certificate{ca.issue(t, 2)}}
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
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
			line, _ := bufio.NewReader(conn).ReadString('\n')
			fmt.Fprint(conn, strings.ReplaceAll(line, "bad", "good"))
			conn.Close()
		}
	}()
	if ok, r := probe[Result](t, nil, "-ca", ca.file, "-sni", "web.example", "-echo", "hello", l.Addr().String()); !ok {
		t.Errorf("the echo of hello was refused: %s", r.Error)
	}
	if ok, r := probe[Result](t, nil, "-ca", ca.file, "-sni", "web.example", "-echo", "bad", l.Addr().String()); ok || !strings.Contains(r.Error, `got back "good\n"`) {
		t.Errorf("another line was taken for the echo: %+v", r)
	}
}

func TestAHelloInPiecesIsTheSameHello(t *testing.T) {
	ca := newAuthority(t)
	address := webServer(t, &tls.Config{Certificates: []tls.Certificate{ca.issue(t, 2)}})
	for _, pieces := range [][]string{{"-fragment", "1"}, {"-fragment", "100"}, {"-segment", "1"}, {"-segment", "700", "-fragment", "333"}} {
		t.Run(strings.Join(pieces, " "), func(t *testing.T) {
			ok, r := probe[Result](t, nil, append(pieces, "-ca", ca.file, "-sni", "web.example", "-http", "/", address)...)
			if !ok {
				t.Errorf("%s: %s", r.Class, r.Error)
			}
		})
	}
}

func TestRecordsAreReframedNotChanged(t *testing.T) {
	record := func(kind byte, body string) string { return string([]byte{kind, 3, 1, 0, byte(len(body))}) + body }
	in := record(22, "abcdefg") + record(23, "encrypted") + record(22, "h")
	want := record(22, "abc") + record(22, "def") + record(22, "g") + record(23, "encrypted") + record(22, "h")
	if got := string(refragment([]byte(in), 3)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAHelloThatIsNeverFinished(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	type seen struct {
		bytes int
		eof   bool
	}
	got := make(chan seen, 100)
	var wait atomic.Int64 // for more, before it sends an alert and closes
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			hello := make([]byte, 100)
			n, _ := io.ReadFull(conn, hello)
			_ = conn.SetReadDeadline(time.Now().Add(time.Duration(wait.Load())))
			more, err := io.ReadAll(conn)
			got <- seen{n + len(more), err == nil}
			_, _ = conn.Write([]byte{21, 3, 1, 0, 2, 2, 40})
			conn.Close()
		}
	}()
	ca := newAuthority(t)
	args := []string{"-ca", ca.file, "-sni", "web.example", "-stop-after", "100", "-timeout", patience.String()}
	wait.Store(int64(200 * time.Millisecond))
	start := time.Now()
	ok, r := probe[Result](t, nil, append(args, l.Addr().String())...)
	took := float64(time.Since(start)) / float64(time.Millisecond)
	if s := <-got; s != (seen{100, false}) {
		t.Errorf("the server saw %+v, want 100 bytes and no end", s)
	}
	if !ok || r.Class != Partial || r.Closed.Received != "15030100020228" || r.Closed.AfterMS <= 0 || r.Closed.AfterMS > took || r.Closed.StillOpen {
		t.Errorf("wrong account of the end: %+v %+v", r, r.Closed)
	}
	wait.Store(int64(patience))
	_, _ = probe[Result](t, nil, append(args, "-hang-up", l.Addr().String())...)
	if s := <-got; s != (seen{100, true}) {
		t.Errorf("the server saw %+v, want 100 bytes and the end", s)
	}
	// On a busy machine a short time may be over before the hello is sent.
	r = Result{}
	for timeout := 50 * time.Millisecond; r.Closed == nil && timeout < patience; timeout *= 4 {
		_, r = probe[Result](t, nil, append(args, "-timeout", timeout.String(), l.Addr().String())...)
	}
	if r.Closed == nil || !r.Closed.StillOpen {
		t.Errorf("a server that waits longer was taken for one that closed: %+v", r.Closed)
	}
}

func TestLoadCountsEveryConnection(t *testing.T) {
	ca := newAuthority(t)
	var connections atomic.Int64
	leaves := []tls.Certificate{ca.issue(t, 0x11), ca.issue(t, 0x22)}
	config := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		n := connections.Add(1)
		if n%5 == 0 {
			return nil, fmt.Errorf("none today")
		}
		return &leaves[n%2], nil
	}}
	address := webServer(t, config)
	ok, s := probe[Summary](t, nil, "-ca", ca.file, "-sni", "web.example", "-http", "/", "-n", "50", address)
	if ok || s.Total != 50 || s.Succeeded != 40 || s.Failed != 10 || s.ByClass[Handshake] != 10 || s.ByClass[Served] != 40 {
		t.Errorf("wrong counts: %+v", s)
	}
	if s.BySerial["11"] != 20 || s.BySerial["22"] != 20 || s.ByPod["echo-7"] != 40 || s.ByAlgorithm["ECDSA-P256"] != 40 || s.ByGroup["X25519MLKEM768"] != 40 {
		t.Errorf("wrong division: %+v", s)
	}
	if len(s.Failures) != 10 || s.HandshakeP50 <= 0 || s.HandshakeP99 < s.HandshakeP50 || s.HandshakeMost < s.HandshakeP99 {
		t.Errorf("wrong times or failures: %+v", s)
	}
}

func TestLoadGoesOnUntilInputEndsAtItsRate(t *testing.T) {
	ca := newAuthority(t)
	in, stop := io.Pipe()
	var connections atomic.Int64
	certificate := ca.issue(t, 2)
	address := webServer(t, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if connections.Add(1) == 20 {
			stop.Close()
		}
		return &certificate, nil
	}})
	const rate = 50
	ok, s := probe[Summary](t, in, "-ca", ca.file, "-sni", "web.example", "-n", "5", "-until-stdin-closes", "-rate", fmt.Sprint(rate), "-c", "4", address)
	if !ok || s.Total < 20 || float64(s.Total) > s.Seconds*rate+1 {
		t.Errorf("want 20 connections or more, and %d a second at most: %+v", rate, s)
	}
}

func TestQuantiles(t *testing.T) {
	values := make([]float64, 100)
	for i := range values {
		values[i] = float64(i + 1)
	}
	for q, want := range map[float64]float64{0.5: 50, 0.99: 99, 1: 100, 0.001: 1} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile %v of 1..100 is %v, want %v", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("quantile of nothing is %v", got)
	}
}

func TestWatchPrintsEachChangeOnce(t *testing.T) {
	ca := newAuthority(t)
	leaves := []tls.Certificate{ca.issue(t, 0x11), ca.issue(t, 0x22)}
	turn := make(chan int, 1)
	turn <- 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	address := webServer(t, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		n := <-turn
		turn <- n + 1
		if n == 10 {
			cancel()
		}
		return &leaves[min(n/3, 1)], nil
	}})
	var out bytes.Buffer
	if _, err := run(ctx, []string{"-ca", ca.file, "-sni", "web.example", "-watch", "10ms", address}, nil, &out); err != nil {
		t.Fatal(err)
	}
	var serials []string
	for line := range strings.Lines(out.String()) {
		var c Change
		if err := json.Unmarshal([]byte(line), &c); err != nil || c.Address != address || c.Algorithm != "ECDSA-P256" || c.Error != "" {
			t.Errorf("unexpected line %q (%v)", line, err)
		}
		serials = append(serials, c.SerialNumber)
	}
	if !slices.Equal(serials, []string{"11", "22"}) {
		t.Errorf("saw %v, want 11 and then 22", serials)
	}
}

func TestTheOfferIsToldAsSent(t *testing.T) {
	ca := newAuthority(t)
	address := webServer(t, &tls.Config{Certificates: []tls.Certificate{ca.issue(t, 2)}})
	_, r := probe[Result](t, nil, "-ca", ca.file, "-sni", "web.example", "-groups", "X25519MLKEM768,X25519", "-versions", "1.3", address)
	h := r.Offered
	if h.ServerName != "web.example" || !slices.Equal(h.Versions, []string{"0x0304"}) ||
		!slices.Equal(h.Groups, []string{"X25519MLKEM768", "X25519"}) || !slices.Equal(h.KeyShares, []string{"X25519MLKEM768", "X25519"}) {
		t.Errorf("wrong offer: %+v", h)
	}
	if !slices.Contains(h.SignatureAlgorithms, "ecdsa_secp256r1_sha256") {
		t.Errorf("wrong signature algorithms: %v", h.SignatureAlgorithms)
	}
	// Releases of Go differ in signature_algorithms; none so far says in extension 50 that it verifies ML-DSA chains.
	if slices.Contains(h.SignatureAlgorithmsCert, "mldsa65") {
		t.Errorf("Go offers to verify ML-DSA chains now: revise the e2e tests' expectations (%v)", h.SignatureAlgorithmsCert)
	}
}

func TestObserveReadsAnotherClientsHello(t *testing.T) {
	address := freeAddress(t)
	go func() {
		for t.Context().Err() == nil {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				time.Sleep(10 * time.Millisecond)
				continue
			}
			_ = tls.Client(&wiredConn{Conn: conn, wire: wire{fragment: 50, segment: 30}}, &tls.Config{ServerName: "seen.example", RootCAs: x509.NewCertPool()}).Handshake()
			return
		}
	}()
	ok, h := probe[Hello](t, nil, "-timeout", patience.String(), "-observe", address)
	if !ok || h.ServerName != "seen.example" || !slices.Contains(h.KeyShares, "X25519MLKEM768") {
		t.Errorf("wrong offer: %+v", h)
	}
}

func TestRelayCutsUpAnotherClientsHello(t *testing.T) {
	ca := newAuthority(t)
	server := webServer(t, &tls.Config{Certificates: []tls.Certificate{ca.issue(t, 0x5)}})
	for _, pieces := range [][]string{{"-segment", "3"}, {"-fragment", "10"}} {
		address := freeAddress(t)
		done := make(chan error, 1)
		go func() {
			_, err := run(t.Context(), append(pieces, "-relay", address, server), nil, io.Discard)
			done <- err
		}()
		var r Result
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
			if _, r = probe[Result](t, nil, "-ca", ca.file, "-sni", "web.example", "-http", "/", address); r.Class != Connect {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if !r.OK || r.Certificate.SerialNumber != "5" {
			t.Errorf("%v: %s %s", pieces, r.Class, r.Error)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestRelayAnswersLater(t *testing.T) {
	const delay = 50 * time.Millisecond
	ca := newAuthority(t)
	server := webServer(t, &tls.Config{Certificates: []tls.Certificate{ca.issue(t, 0x6)}})
	address := freeAddress(t)
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = run(ctx, []string{"-relay", address, "-delay", delay.String(), server}, nil, io.Discard)
	}()
	for range 2 { // it takes more than one
		var r Result
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
			if _, r = probe[Result](t, nil, "-ca", ca.file, "-sni", "web.example", "-http", "/", address); r.Class != Connect {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if !r.OK || r.HandshakeMS < float64(delay.Milliseconds()) {
			t.Errorf("%s %s, after %v ms", r.Class, r.Error, r.HandshakeMS)
		}
	}
	end()
	<-done
}

func TestADamagedHelloIsAnError(t *testing.T) {
	for name, records := range map[string][]byte{
		"nothing":       nil,
		"not TLS":       []byte("GET / HTTP/1.1\r\n\r\n"),
		"a ServerHello": {22, 3, 3, 0, 4, 2, 0, 0, 0},
		"cut off":       {22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3},
		"empty body":    {22, 3, 1, 0, 4, 1, 0, 0, 0},
	} {
		if h, err := readHello(records); err == nil {
			t.Errorf("%s: read as %+v", name, h)
		}
	}
}

func TestACommandLineThatCannotVerifyIsRefused(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"-sni", "a", "127.0.0.1:1"},
		{"-ca", "f", "127.0.0.1:1"},
		{"-ca", "f", "-sni", "a", "127.0.0.1:1", "127.0.0.1:2"},
		{"-ca", "f", "-sni", "a", "-cert", "x", "127.0.0.1:1"},
		{"-ca", "/nowhere", "-sni", "a", "127.0.0.1:1"},
		{"-ca", os.Args[0], "-sni", "a", "127.0.0.1:1"},
	} {
		if _, err := run(t.Context(), args, nil, io.Discard); err == nil {
			t.Errorf("accepted: %v", args)
		}
	}
}

// freeAddress is on an address of the machine's own that nobody else is likely
// to use: a port of 127.0.0.1 could be given to another program's client.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+mathrand.N(254), mathrand.N(256), 1+mathrand.N(254)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Two servers share the keys of their tickets, a third has its own.
func TestReturningClients(t *testing.T) {
	a := newAuthority(t)
	certificate := a.issue(t, 7)
	var addresses []string
	for i := range 3 {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
		server.TLS.SetSessionTicketKeys([][32]byte{{byte(max(1, i))}})
		server.StartTLS()
		t.Cleanup(server.Close)
		addresses = append(addresses, server.Listener.Addr().String())
	}
	args := append([]string{"-ca", a.file, "-sni", "web.example", "-http", "/", "-n", "200", "-c", "4", "-resume"}, addresses...)
	var out bytes.Buffer
	if ok, err := run(t.Context(), args, nil, &out); err != nil || !ok {
		t.Fatalf("%v %v: %s", ok, err, out.String())
	}
	var s Summary
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	shares := func(a, b string) bool { return (a == addresses[2]) == (b == addresses[2]) }
	returning, resumed := 0, 0
	for _, from := range addresses {
		for _, to := range addresses {
			tally := s.Tickets[from][to]
			if tally == nil {
				t.Fatalf("of 200 connections none went from %s to %s", from, to)
			}
			returning, resumed = returning+tally.Returning, resumed+tally.Resumed
			if want := map[bool]int{true: tally.Returning}[shares(from, to)]; tally.Resumed != want {
				t.Errorf("from %s to %s: %+v, want %d resumed", from, to, *tally, want)
			}
		}
	}
	if s.Failed != 0 || s.Succeeded != 200 || s.Returning < 196 || s.Returning != returning || s.Resumed != resumed {
		t.Errorf("%s; want 196 returning, or more", out.String())
	}
}
