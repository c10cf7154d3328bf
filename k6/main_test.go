package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/shard"
)

// TestMain lets the program of the tests be qtls-k6 itself.
func TestMain(m *testing.M) {
	if os.Getenv("QTLS_TEST_IS_K6") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program runs the program to its end.
func program(t testing.TB, environment []string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), append(environment, "QTLS_TEST_IS_K6=1")...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err = cmd.Run()
	return out.String(), log.String(), err
}

// server is Go's, with a certificate that signed itself.
type server struct {
	port       int
	ca         string // a file
	handshakes atomic.Int64
	received   atomic.Int64 // bytes of bodies
}

func startServer(t testing.TB) *server {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"server.example"}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{ca: filepath.Join(t.TempDir(), "ca.pem")}
	if err := os.WriteFile(s.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		s.received.Add(n)
		if r.URL.Path == "/missing" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, strings.Repeat("x", 5000))
	}))
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.TLS = &tls.Config{
		Certificates:     []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		VerifyConnection: func(tls.ConnectionState) error { s.handshakes.Add(1); return nil },
	}
	h.StartTLS()
	t.Cleanup(h.Close)
	s.port = h.Listener.Addr().(*net.TCPAddr).Port
	return s
}

// script runs a function of a script once and returns what it logs, which must be one line of JSON.
func script(t testing.TB, s *server, body string) (map[string]any, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.js")
	text := fmt.Sprintf(`import { Client } from 'k6/x/qtls';
const host = '127.0.0.1', port = %d, sni = 'server.example', ca = open(%q);
%s`, s.port, s.ca, body)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	_, stderr, err := program(t, nil, "run", "--quiet", "--address=", "--no-usage-report", "--summary-mode=disabled", "--log-format=raw", path)
	if err != nil {
		return nil, stderr
	}
	var logged map[string]any
	if err := json.Unmarshal([]byte(stderr), &logged); err != nil {
		t.Fatalf("logged %q: %v", stderr, err)
	}
	return logged, stderr
}

func TestAScriptSeesWhatWasNegotiated(t *testing.T) {
	s := startServer(t)
	got, log := script(t, s, `const client = new Client({ host, port, sni, ca, groups: ['X25519MLKEM768'], resumption: true });
export default function () {
  console.log(JSON.stringify({
    full: client.handshake(), resumed: client.handshake(), request: client.request({ path: '/x?y=z' }),
    transfer: client.transfer({ path: '/', size: 65536 }), missing: client.request({ path: '/missing' }), expected: client.request({ path: '/missing', status: 404 }),
    verify: new Client({ host, port, sni: 'other.example', ca }).handshake(),
  }));
}`)
	check := func(name string, want map[string]any) {
		t.Helper()
		result, _ := got[name].(map[string]any)
		for field, value := range want {
			if fmt.Sprint(result[field]) != fmt.Sprint(value) {
				t.Errorf("%s: %s is %v, want %v; it is\n%v", name, field, result[field], value, result)
			}
		}
	}
	if got == nil {
		t.Fatal(log)
	}
	check("full", map[string]any{"ok": true, "failure": "", "group": "X25519MLKEM768", "signatureAlgorithm": "ecdsa_secp256r1_sha256", "version": "TLSv1.3", "resumed": false, "helloRetryRequest": false, "tickets": 1})
	check("resumed", map[string]any{"ok": true, "resumed": true, "signatureAlgorithm": "", "certificateBytes": 0})
	check("request", map[string]any{"ok": true, "status": 200})
	check("transfer", map[string]any{"ok": true, "status": 200})
	check("missing", map[string]any{"ok": false, "failure": "HTTP", "message": "status 404", "status": 404})
	check("expected", map[string]any{"ok": true, "status": 404})
	check("verify", map[string]any{"ok": false, "failure": "Verify"})
	full, transfer := got["full"].(map[string]any), got["transfer"].(map[string]any)
	for _, field := range []string{"connect", "handshake", "client", "bytesSent", "bytesReceived", "certificateBytes"} {
		if n, ok := full[field].(float64); !ok || n <= 0 {
			t.Errorf("full: %s is %v", field, full[field])
		}
	}
	if sent, _ := transfer["exchangeSent"].(float64); sent < 65536 || sent > 66536 || s.received.Load() != 65536 {
		t.Errorf("sent %v, the server received %d", transfer["exchangeSent"], s.received.Load())
	}
	if received, _ := transfer["exchangeReceived"].(float64); received < 5000 || received > 6000 {
		t.Errorf("received %v of a response of 5000 bytes and its head", transfer["exchangeReceived"])
	}
}

func TestMistakesInAScriptEndTheRunAndAreNamed(t *testing.T) {
	s := startServer(t)
	for line, want := range map[string]string{
		`new Client({ host, port, sni, ca, sigalgs: 'mldsa65' });`:    `option "sigalgs" is unknown: there are`,
		`new Client({ host, port, sni, ca, groups: ['MLKEM1025'] });`: `option groups: `,
		`new Client();`: `0 arguments: give one object with the options`,
		`new Client({ host, port, sni, ca }).handshake();`:              `not while the script is loaded`,
		`new Client({ host, port, sni, ca }).handshake({ path: '/' });`: `handshake: argument 1 is more than it takes`,
		`new Client({ host, port, sni, ca }).request({}, 200);`:         `request: argument 2 is more than it takes`,
	} {
		if got, log := script(t, s, line+"\nexport default function () {}"); got != nil || !strings.Contains(log, want) {
			t.Errorf("%s\nlogged %s\nwant %s", line, log, want)
		}
	}
	if n := s.handshakes.Load(); n != 0 {
		t.Errorf("%d handshakes were made all the same", n)
	}
}

// measuring is a load against a server that fits a test.
func measuring(s *server) load.Load {
	return load.Load{
		Version: load.Version, Point: "run/1/capacity/1", Pods: 1, WarmUp: 2 * time.Second, Window: 3 * time.Second,
		Phase: load.Capacity, VUs: 2, Operation: load.Handshake,
		Client: load.Client{Host: "127.0.0.1", Port: s.port, SNI: "server.example", CAFile: s.ca, Groups: []string{"X25519MLKEM768"}},
	}
}

// measureWith runs all pods of a load. A machine may be too slow to begin in time, and they then say so: they get more time.
func measureWith(t testing.TB, l load.Load) []shard.Shard {
	t.Helper()
	for lead := time.Second; ; lead *= 2 {
		l.Start = time.Now().Add(lead).UnixNano()
		text, err := l.Text()
		if err != nil {
			t.Fatal(err)
		}
		shards, logs, late := make([]shard.Shard, l.Pods), make([]string, l.Pods), atomic.Bool{}
		var pods sync.WaitGroup
		for i := range l.Pods {
			pods.Go(func() {
				out, log, err := program(t, []string{load.Variable + "=" + text, load.IndexVariable + "=" + strconv.Itoa(i)}, "measure")
				if strings.Contains(log, "start passed") || strings.Contains(log, "after its window") {
					late.Store(true)
					return
				}
				found, readErr := shard.Read(strings.NewReader(out))
				if len(found) == 1 && found[0].Start != l.Begin().UnixNano() {
					late.Store(true)
					return
				}
				if err != nil || readErr != nil || len(found) != 1 {
					logs[i] = fmt.Sprintf("pod %d: %v, %v\n%s\n%s", i, err, readErr, out, log)
					return
				}
				shards[i] = found[0]
			})
		}
		pods.Wait()
		if !late.Load() {
			if all := strings.Join(logs, ""); all != "" {
				t.Fatal(all)
			}
			return shards
		}
		if lead > 5*time.Minute {
			t.Fatalf("the pods do not begin within %v", lead)
		}
	}
}

func TestPodsMeasureTheCapacityTogether(t *testing.T) {
	t.Parallel() // it waits, mostly
	s := startServer(t)
	l := measuring(s)
	l.Pods, l.Client.Resumption = 2, true
	shards := measureWith(t, l)
	r, err := shard.Merge(shards)
	if err != nil {
		t.Fatal(err)
	}
	all := r.Total(func(shard.Kind) bool { return true })
	for _, pod := range r.CPUOfPods {
		if pod.Used <= 0 || pod.MachineTotal <= 0 {
			t.Errorf("a pod has used %v of %d ticks", time.Duration(pod.Used), pod.MachineTotal)
		}
	}
	if r.Versions["k6"] == "" || r.Versions["OpenSSL"] == "" {
		t.Errorf("versions %v", r.Versions)
	}
	if all.Count == 0 || all.Count > s.handshakes.Load() || len(r.Failures) > 0 || r.Common != l.Window {
		t.Errorf("%d handshakes, failures %v, in common %v; the server had %d", all.Count, r.Failures, r.Common, s.handshakes.Load())
	}
	for _, h := range r.Handshakes {
		if h.Group != "X25519MLKEM768" || h.Version != "TLSv1.3" || h.Resumed != (h.SignatureAlgorithm == "") {
			t.Errorf("got %+v", h.Kind)
		}
	}
	if resumed := r.Total(func(k shard.Kind) bool { return k.Resumed }); resumed.Count < all.Count-2 {
		t.Errorf("%d of %d were resumed; only the first of each virtual user may be full", resumed.Count, all.Count)
	}
	if all.Handshake.Count() != all.Count || all.BytesReceived == 0 || r.CPU.Client == 0 || r.Iterations != all.Count {
		t.Errorf("got %+v, CPU %+v, %d iterations", all, r.CPU, r.Iterations)
	}
}

func TestPodsMeasureTheLatencyAtARate(t *testing.T) {
	t.Parallel() // it waits, mostly
	s := startServer(t)
	l := measuring(s)
	l.Phase, l.Rate, l.VUs, l.Operation, l.Path, l.Size = load.Latency, 40, 20, load.Transfer, "/", 1024
	l.Window = 15 * time.Second // a machine may stand still for most of it
	got := measureWith(t, l)[0]
	// 600 are due in the window; a busy machine may run them later, or drop them.
	if n := got.Iterations; n == 0 || got.StartLag.Count() != n {
		t.Errorf("%d iterations with %d lags, %d dropped", n, got.StartLag.Count(), got.Dropped)
	}
	for _, h := range got.Handshakes {
		if h.Exchange.Count() != h.Count || h.ExchangeBytesSent < h.Count*1024 || h.ExchangeBytesReceived < h.Count*5000 {
			t.Errorf("%d exchanges, %d bytes sent and %d received in %d handshakes", h.Exchange.Count(), h.ExchangeBytesSent, h.ExchangeBytesReceived, h.Count)
		}
	}
}

func TestIterationsThatFindNoVirtualUserAreDropped(t *testing.T) {
	t.Parallel()                               // it waits, mostly
	l, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts: connections are made, and nothing answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := startServer(t)
	asked := measuring(s)
	asked.Phase, asked.Rate, asked.VUs, asked.Client.Port, asked.Client.Timeout = load.Latency, 100, 1, l.Addr().(*net.TCPAddr).Port, "200ms"
	asked.Window = 15 * time.Second // a machine may stand still for most of it
	got := measureWith(t, asked)[0]
	if got.Dropped == 0 || got.Failures[shard.Timeout] == 0 || len(got.Handshakes) > 0 {
		t.Errorf("%d dropped, failures %v, handshakes %v", got.Dropped, got.Failures, got.Handshakes)
	}
}

func TestWhatCannotBeMeasuredIsRefused(t *testing.T) {
	s := startServer(t)
	for want, change := range map[string]func(*load.Load){
		"start passed 1h":                  func(l *load.Load) { l.Start = time.Now().Add(-time.Hour).UnixNano() },
		"client: CAFile":                   func(l *load.Load) { l.Client.CAFile = "/nowhere" },
		"client: option groups: ":          func(l *load.Load) { l.Client.Groups = []string{""} },
		"Client: option groups: ":          func(l *load.Load) { l.Client.Groups = []string{"MLKEM1025"} },
		`JOB_COMPLETION_INDEX "1": want 0`: func(l *load.Load) { l.Pods = 1 },
	} {
		l := measuring(s)
		l.Pods, l.Start = 2, time.Now().Add(time.Hour).UnixNano()
		change(&l)
		text, err := l.Text()
		if err != nil {
			t.Fatal(err)
		}
		out, log, err := program(t, []string{load.Variable + "=" + text, load.IndexVariable + "=1"}, "measure")
		if err == nil || strings.Contains(out, shard.Prefix) || !strings.Contains(log, strings.Replace(want, "CAFile", "caFile", 1)) {
			t.Errorf("%s: it ended with %v\n%s\n%s", want, err, out, log)
		}
	}
	l := measuring(s)
	l.Client.Host, l.Start = "nowhere.invalid", time.Now().Add(time.Second).UnixNano()
	text, err := l.Text()
	if err != nil {
		t.Fatal(err)
	}
	if out, log, err := program(t, []string{load.Variable + "=" + text, load.IndexVariable + "=0"}, "measure"); err == nil || strings.Contains(out, shard.Prefix) ||
		!strings.Contains(log, "nowhere.invalid:") && !strings.Contains(log, "start passed") { // on a machine that is too slow
		t.Errorf("a target that is not there: %v\n%s\n%s", err, out, log)
	}
	if _, log, err := program(t, nil, "measure"); err == nil || !strings.Contains(log, "QTLS_BENCH_LOAD is not set: the operator's Job sets it") {
		t.Errorf("without a load: %v\n%s", err, log)
	}
}
