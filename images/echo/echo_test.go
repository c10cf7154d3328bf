package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAnswerDescribesTheRequest(t *testing.T) {
	request := httptest.NewRequest(http.MethodPost, "/a/b?c=d", strings.NewReader("hello"))
	request.Host = "shop.example"
	request.Header.Set("X-Client-Cert-CN", "alice")
	response := httptest.NewRecorder()
	handler("echo-0").ServeHTTP(response, request)

	var got reply
	if err := json.Unmarshal(response.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Pod != "echo-0" || got.Method != "POST" || got.Host != "shop.example" || got.Path != "/a/b?c=d" || got.BodyBytes != 5 {
		t.Errorf("the answer describes another request: %+v", got)
	}
	if got.Headers.Get("X-Client-Cert-CN") != "alice" {
		t.Errorf("headers %v lack X-Client-Cert-CN: alice", got.Headers)
	}
	if got.RemoteAddress != request.RemoteAddr {
		t.Errorf("remote address %q, want %q", got.RemoteAddress, request.RemoteAddr)
	}
	if got.TLS != nil {
		t.Errorf("a plain request is described as TLS: %+v", got.TLS)
	}
}

func TestServesHTTPAndHTTPSAndTCPUntilToldToStop(t *testing.T) {
	dir := t.TempDir()
	roots := writeCertificate(t, dir)
	servers := start(t, options{
		http: "127.0.0.1:0", https: "127.0.0.1:0", tcp: "127.0.0.2:0", // nobody else's, when it has ended
		cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key"),
	})

	t.Run("http", func(t *testing.T) {
		if got := get(t, http.DefaultClient, "http://"+servers.address["http"]+"/plain"); got.Path != "/plain" || got.TLS != nil {
			t.Errorf("unexpected answer %+v", got)
		}
	})
	t.Run("https", func(t *testing.T) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
			RootCAs: roots, ServerName: "echo.example", CurvePreferences: []tls.CurveID{tls.X25519MLKEM768},
		}}}
		got := get(t, client, "https://"+servers.address["https"]+"/secure")
		if got.TLS == nil || got.TLS.Version != "TLS 1.3" || got.TLS.ServerName != "echo.example" || got.TLS.Group != "X25519MLKEM768" {
			t.Errorf("unexpected answer %+v, TLS %+v", got, got.TLS)
		}
	})
	t.Run("tcp", func(t *testing.T) {
		conn, err := net.Dial("tcp", servers.address["tcp"])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		back := bufio.NewReader(conn)
		for _, line := range []string{"one\n", "two\n"} {
			if _, err := io.WriteString(conn, line); err != nil {
				t.Fatal(err)
			}
			if got, err := back.ReadString('\n'); got != line || err != nil {
				t.Errorf("sent %q, got %q (%v)", line, got, err)
			}
		}
	})

	servers.stop()
	if err := <-servers.ended; err != nil {
		t.Errorf("stopping gave %v", err)
	}
	if conn, err := net.Dial("tcp", servers.address["tcp"]); err == nil {
		conn.Close()
		t.Error("still listening after the end")
	}
}

func TestTCPEndsOnALineWithoutEnd(t *testing.T) {
	servers := start(t, options{tcp: "127.0.0.1:0"})
	conn, err := net.Dial("tcp", servers.address["tcp"])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	// The server may reset the connection while this is being written.
	_, _ = conn.Write(make([]byte, 2*maxLine))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || os.IsTimeout(err) {
		t.Errorf("read %d bytes (%v), want the connection closed", n, err)
	}
}

func TestRefusesAMeaninglessCommandLine(t *testing.T) {
	for args, want := range map[string]string{
		"":                             "nothing to serve",
		"-http :1 more":                `unexpected argument "more"`,
		"-https :1":                    "-https needs -cert and -key",
		"-https :1 -cert a":            "-https needs -cert and -key",
		"-http :1 -cert a -key b":      "-https, which has no address",
		"-http":                        "flag needs an argument",
		"-https :1 -cert a -key b -no": "not defined",
	} {
		if _, err := parse(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q in it", args, err, want)
		}
	}
}

func TestFailsWhenAnAddressIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o := options{http: "127.0.0.1:0", tcp: l.Addr().String()}
	if err := serve(t.Context(), o, "p", t.Logf); err == nil || !strings.Contains(err.Error(), "-tcp: ") {
		t.Errorf("error %v, want one that names -tcp", err)
	}
}

func TestFailsWhenTheCertificateCannotBeRead(t *testing.T) {
	o := options{https: "127.0.0.1:0", cert: "/nonexistent.crt", key: "/nonexistent.key"}
	if err := serve(t.Context(), o, "p", t.Logf); err == nil || !strings.Contains(err.Error(), "/nonexistent.crt") {
		t.Errorf("error %v, want one that names the file", err)
	}
}

// running is a set of servers under test; ended gets serve's outcome.
type running struct {
	address map[string]string
	stop    context.CancelFunc
	ended   chan error
}

// start runs the servers and learns their addresses from what they log.
func start(t *testing.T, o options) running {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	wanted := 0
	for _, a := range []string{o.http, o.https, o.tcp} {
		if a != "" {
			wanted++
		}
	}
	type listening struct{ kind, address string }
	logged := make(chan listening, wanted)
	r := running{address: map[string]string{}, stop: stop, ended: make(chan error, 1)}
	go func() {
		r.ended <- serve(ctx, o, "pod", func(_ string, args ...any) {
			logged <- listening{args[0].(string), fmt.Sprint(args[1])}
		})
	}()
	for range wanted {
		select {
		case l := <-logged:
			r.address[l.kind] = l.address
		case err := <-r.ended:
			t.Fatalf("serve ended: %v", err)
		}
	}
	return r
}

func get(t *testing.T, client *http.Client, url string) reply {
	t.Helper()
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var r reply
	if err := json.NewDecoder(response.Body).Decode(&r); err != nil {
		t.Fatal(err)
	}
	return r
}

// writeCertificate writes tls.crt and tls.key for echo.example and returns the pool that trusts them.
func writeCertificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"echo.example"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(certificate)
	return pool
}
