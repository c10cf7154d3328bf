// Package haproxytest runs the HAProxy of the gateway's image in tests, on this machine.
package haproxytest

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Patience is how long a test waits for something that happens by itself. A busy machine may be slow.
const Patience = 2 * time.Minute

// Gateway is the root file system of the gateway's image. It sees the same /tmp.
func Gateway(t testing.TB) string {
	t.Helper()
	root := os.Getenv("QTLS_GATEWAY_ROOTFS")
	if root == "" {
		t.Fatal("QTLS_GATEWAY_ROOTFS is not set: run the tests by `go -C hack/images run . k6 test ./...`")
	}
	return root
}

// InGateway prepares a command of the gateway's image, which ends with the test.
func InGateway(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "/usr/bin/env", args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin", "OPENSSL_MODULES=" + filepath.Dir(os.Getenv("QTLS_PROVIDER"))}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: Gateway(t), Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = Patience
	return cmd
}

// Certificate is one that signed itself, so that it is its own authority.
type Certificate struct {
	// File has both of PEM, the certificate, and Key.
	File, PEM, Key string
}

// NewCertificate makes one for server.example with a key as `openssl req -newkey` takes it.
func NewCertificate(t testing.TB, key ...string) Certificate {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	out, err := InGateway(t, append([]string{"openssl", "req", "-x509", "-nodes", "-subj", "/CN=server.example", "-days", "2",
		"-addext", "subjectAltName=DNS:server.example", "-keyout", at("key"), "-out", at("crt"), "-newkey"}, key...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("openssl req -newkey %v: %v\n%s", key, err, out)
	}
	read := func(name string) string {
		text, err := os.ReadFile(at(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	c := Certificate{at("pem"), read("crt"), read("key")}
	if err := os.WriteFile(c.File, []byte(c.PEM+c.Key), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// ECDSA is an argument of NewCertificate.
var ECDSA = []string{"ec", "-pkeyopt", "ec_paramgen_curve:P-256"}

// HAProxy is one of the gateway's image.
type HAProxy struct {
	Port  int
	stats string
}

// Start serves a certificate with some more words on its bind line; globals go into the global section.
func Start(t testing.TB, c Certificate, bind string, globals ...string) HAProxy {
	t.Helper()
	dir := t.TempDir()
	h := HAProxy{stats: filepath.Join(dir, "stats")}
	// HAProxy gets the port as a socket: nobody can take it in between.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h.Port = l.Addr().(*net.TCPAddr).Port
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	config := fmt.Sprintf(`global
    nbthread 1
    tune.bufsize 65536
    stats socket %s mode 600
    %s
defaults
    mode http
    timeout connect 1m
    timeout client 5m
    timeout server 5m
frontend server
    bind fd@3 ssl crt %s %s
    http-request wait-for-body time 5m at-least 1m if METH_POST
    http-request return status 404 if { path /missing }
    http-request return status 200 content-type text/plain string "hello, world"
`, h.stats, strings.Join(globals, "\n    "), c.File, bind)
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := InGateway(t, "haproxy", "-db", "-f", file)
	cmd.ExtraFiles = []*os.File{socket}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // what it says is shown
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	for deadline := time.Now().Add(Patience); ; time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("unix", h.stats); err == nil {
			conn.Close()
			return h
		}
		select {
		case <-ended:
			t.Fatalf("HAProxy ended: %v\n%s\n%s", cmd.ProcessState, said.String(), config)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("HAProxy does not come up in %v", Patience)
		}
	}
}

// Counter reads one of the frontend's counters.
func (h HAProxy) Counter(t testing.TB, name string) int {
	t.Helper()
	conn, err := net.Dial("unix", h.stats)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "show stat server 1 -1\n"); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(conn).ReadAll()
	if err != nil || len(rows) != 2 {
		t.Fatalf("show stat: %q, %v", rows, err)
	}
	for i, column := range rows[0] {
		if column == name {
			n, err := strconv.Atoi(rows[1][i])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("show stat has no %s: %q", name, rows[0])
	return 0
}
