package peer

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

var groups = []string{"X25519MLKEM768", "X25519"}

func TestConfigurations(t *testing.T) {
	for server, file := range configFile {
		got := Config(server, 3, 2, groups)
		golden := filepath.Join("testdata", file)
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s: go test ./internal/bench/peer -update writes it anew\n%s", file, diff)
		}
	}
}

// Like the gateway's HAProxy: threads in excess of a quota use it up at once.
func TestAServerHasTheThreadsThatItsQuotaIsFor(t *testing.T) {
	for quota, want := range map[string]int{"0": 0, "50m": 1, "1": 1, "1500m": 2, "2": 2, "9000": 1024} {
		if got := threads(ptr.To(resource.MustParse(quota))); got != want {
			t.Errorf("%s: %d, want %d", quota, got, want)
		}
	}
	for server, says := range map[v1alpha1.BenchmarkPeerServer][2]string{
		v1alpha1.BenchmarkPeerHAProxy: {"", "    thread-hard-limit 2\n"},
		v1alpha1.BenchmarkPeerNGINX:   {"worker_processes auto;\n", "worker_processes 2;\n"},
	} {
		without, with := Config(server, 0, 1, groups), Config(server, 2, 1, groups)
		if !strings.Contains(without, says[0]) || strings.Contains(without, says[1]) || !strings.Contains(with, says[1]) {
			t.Errorf("%s\n%s", without, with)
		}
	}
}

// patience is a guard against hanging.
const patience = 2 * time.Minute

// inImage prepares a program of the gateway's image, which ends with the test.
func inImage(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	root := os.Getenv("QTLS_GATEWAY_ROOTFS")
	if root == "" {
		if os.Getenv("QTLS_REQUIRE_ROOTFS") != "" {
			t.Fatal("QTLS_GATEWAY_ROOTFS is not set")
		}
		t.Skip("QTLS_GATEWAY_ROOTFS is not set: `make test-unit` sets it to the gateway image's root file system")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(root, "lib64/ld-linux-x86-64.so.2"), append([]string{"--library-path", filepath.Join(root, "usr/lib/x86_64-linux-gnu"), filepath.Join(root, program)}, args...)...)
	cmd.Env = append(os.Environ(), "OPENSSL_CONF=/dev/null")
	return cmd
}

// newCertificate makes one for web.example.com in a folder, as a Secret's volume
// has it.
func newCertificate(t *testing.T, dir string, key ...string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := inImage(t, "usr/bin/openssl", append([]string{"req", "-x509", "-nodes", "-subj", "/CN=web.example.com", "-addext", "subjectAltName=DNS:web.example.com", "-days", "2",
		"-out", filepath.Join(dir, chainFile), "-keyout", filepath.Join(dir, keyFile), "-newkey"}, key...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("openssl req -newkey %v: %v\n%s", key, err, out)
	}
}

// The HAProxy of the gateway's image takes the configuration, and serves each
// certificate at its own address to post-quantum and classical clients.
func TestHAProxyServesEachCertificate(t *testing.T) {
	dir := t.TempDir()
	newCertificate(t, filepath.Join(dir, "0"), "ml-dsa-65")
	newCertificate(t, filepath.Join(dir, "1"), "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
	config := strings.ReplaceAll(Config(v1alpha1.BenchmarkPeerHAProxy, 2, 2, groups), certificates, dir)
	file := filepath.Join(dir, "haproxy.cfg")
	write := func() {
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write()
	if out, err := inImage(t, "usr/sbin/haproxy", "-c", "-f", file).CombinedOutput(); err != nil || bytes.Contains(out, []byte("WARNING")) {
		t.Fatalf("haproxy -c: %v\n%s\n%s", err, out, config)
	}
	// Sockets instead of ports, which somebody else may have.
	socket := func(i int) string { return filepath.Join(dir, fmt.Sprintf("s%d", i)) }
	for i := range 2 {
		config = strings.Replace(config, fmt.Sprintf(":::%d v4v6", Port(i)), "unix@"+socket(i), 1)
	}
	write()
	server := inImage(t, "usr/sbin/haproxy", "-db", "-f", file)
	var said bytes.Buffer
	server.Stdout, server.Stderr = &said, &said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Wait() }()
	t.Cleanup(func() { _ = server.Process.Kill(); <-ended })
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("unix", socket(1)); err == nil {
			conn.Close()
			break
		}
		select {
		case <-ended:
			t.Fatalf("HAProxy ended: %s", said.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("HAProxy does not come up")
		}
	}
	for i, want := range [][]string{{"X25519MLKEM768", "mldsa65"}, {"X25519", "ecdsa_secp256r1_sha256"}} {
		client := inImage(t, "usr/bin/openssl", "s_client", "-unix", socket(i), "-brief", "-servername", "web.example.com", "-verify_hostname", "web.example.com",
			"-CAfile", filepath.Join(dir, fmt.Sprint(i), chainFile), "-verify_return_error", "-groups", want[0], "-sigalgs", want[1], "-ign_eof")
		client.Stdin = strings.NewReader("GET / HTTP/1.1\r\nHost: web.example.com\r\nConnection: close\r\n\r\n")
		out, err := client.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("HTTP/1.1 200")) || !bytes.Contains(out, []byte(want[0])) || !bytes.Contains(out, []byte("Signature type: "+want[1])) {
			t.Errorf("certificate %d: %v\n%s", i, err, out)
		}
	}
}
