//go:build crypto

package haproxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy/runtime"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/testcert"
)

// The tests with the tag crypto run the gateway image's HAProxy as a pod does:
// without privileges, in the image's root file system, with /run/qtls mounted.
// They need root, to make namespaces.

const inNamespace = "QTLS_TEST_IN_NETWORK_NAMESPACE"

// TestMain moves into a network namespace of its own, so that ports and
// abstract sockets are the test's alone.
func TestMain(m *testing.M) {
	if os.Getenv(inNamespace) != "" {
		if out, err := exec.Command("sh", "-c", "ip link set lo up && sysctl -qw net.ipv4.ip_unprivileged_port_start=0").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "network namespace: %v\n%s", err, out)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "tests with the tag crypto need root: they make namespaces, as a container runtime does")
		os.Exit(1)
	}
	self := exec.Command("/proc/self/exe", os.Args[1:]...)
	self.Env = append(os.Environ(), inNamespace+"=1")
	for image, variable := range images {
		dir := os.Getenv(variable)
		if dir == "" { // while there is a network yet, for what has to be built
			build := exec.Command("go", "-C", "../../hack/images", "run", ".", "rootfs", image)
			build.Stderr = os.Stderr
			out, err := build.Output()
			if err != nil {
				fmt.Fprintf(os.Stderr, "the root file system of image %s: %v\n", image, err)
				os.Exit(1)
			}
			dir = strings.TrimSpace(string(out))
		}
		self.Env = append(self.Env, variable+"="+dir)
	}
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
	self.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := self.Run(); err != nil {
		if self.ProcessState == nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
}

// images by hack/images' names, and the variables that hold their root file
// systems: HAProxy's, and clients with OpenSSL 3.5 and 3.0.
var images = map[string]string{"gateway": "QTLS_GATEWAY_ROOTFS", "client": "QTLS_CLIENT_ROOTFS", "client-bookworm": "QTLS_CLIENT_BOOKWORM_ROOTFS"}

func rootfs(image string) string { return os.Getenv(images[image]) }

// program of an image, run from the host.
func program(image, path string, args ...string) *exec.Cmd {
	root := rootfs(image)
	lib := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	cmd := exec.Command(filepath.Join(root, "lib64/ld-linux-x86-64.so.2"), append([]string{"--library-path", lib, filepath.Join(root, path)}, args...)...)
	cmd.Env = []string{"OPENSSL_CONF=" + filepath.Join(root, "etc/ssl/openssl.cnf"), "OPENSSL_MODULES=" + modules(root), "HOME=/nonexistent"}
	return cmd
}

// issuer is a certification authority of one family.
type issuer struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newIssuer(t testing.TB, algorithm v1alpha1.KeyAlgorithm) issuer {
	t.Helper()
	key := testcert.Key(t, algorithm)
	return issuer{selfSigned(t, key, "authority "+string(algorithm), true), key}
}

func (i issuer) pem() []byte {
	return testcert.PEM(i.cert)
}

// issue a certificate and key in PEM form.
func (i issuer) issue(t testing.TB, algorithm v1alpha1.KeyAlgorithm, subject pkix.Name, names ...string) (cert, key []byte) {
	t.Helper()
	signer := testcert.Key(t, algorithm)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: serial, Subject: subject, DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	return testcert.PEM(testcert.Sign(t, template, i.cert, signer.Public(), i.key)), testcert.KeyPEM(t, signer)
}

// patience is with what has to happen; how soon it does is not tested.
const patience = time.Minute

// pod is a gateway pod without its agent.
type pod struct {
	t           testing.TB
	dir         string // on the host: what is /run/qtls in the pod
	log         chan string
	listener    net.Listener               // of the log
	change      func(config string) string // makes another configuration of the rendered one
	pairs       map[string][]byte          // certificate files by Secret
	modules     string                     // folder of OpenSSL's modules in the pod, if not the image's
	limit       uint64                     // of file descriptors, if not the test's own
	environment []string                   // of HAProxy, besides what it needs
	roots       []byte                     // PEM
	process     *exec.Cmd
	output      bytes.Buffer
	revisions   int
	revision    dataplane.Revision
	slots       Slots
}

func newPod(t testing.TB) *pod {
	t.Helper()
	p := &pod{t: t, dir: t.TempDir(), log: make(chan string, 100000), pairs: map[string][]byte{}}
	for dir := p.dir; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	log, err := net.Listen("unix", filepath.Join(p.dir, filepath.Base(LogSocket)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	p.listener = log
	go func() {
		for {
			conn, err := log.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					p.log <- lines.Text()
				}
			}()
		}
	}()
	return p
}

// certificate makes one that the pod serves, as package resolve finds it in a
// Secret. Its clients trust the issuer.
func (p *pod) certificate(i issuer, algorithm v1alpha1.KeyAlgorithm, accept func(v1alpha1.SignatureScheme) bool, names ...string) model.Certificate {
	p.t.Helper()
	cert, key := i.issue(p.t, algorithm, pkix.Name{CommonName: names[0]}, names...)
	return p.serve(cert, key, i.pem(), accept)
}

// serve a certificate, as package resolve finds it in a Secret.
func (p *pod) serve(cert, key, root []byte, accept func(v1alpha1.SignatureScheme) bool) model.Certificate {
	p.t.Helper()
	pair, err := keypair.Parse(cert, key)
	if err != nil {
		p.t.Fatal(err)
	}
	chain, err := pair.ChainSchemes()
	if err != nil {
		p.t.Fatal(err)
	}
	secret := fmt.Sprintf("secret-%d-%s", len(p.pairs), strings.ToLower(string(pair.Algorithm)))
	p.pairs[secret] = slices.Concat(pair.ChainPEM(), key)
	if !bytes.Contains(p.roots, root) {
		p.roots = append(p.roots, root...)
		p.write("roots.pem", p.roots)
	}
	algorithm, _ := algorithms.LookupKeyAlgorithm(pair.Algorithm)
	return model.Certificate{Secret: secret, Algorithm: pair.Algorithm, PostQuantum: algorithm.Family == algorithms.PostQuantum, Provider: algorithm.Provider != nil,
		HandshakeSchemes: pair.HandshakeSchemes(accept), ChainSchemes: chain}
}

func anyScheme(v1alpha1.SignatureScheme) bool { return true }

func (p *pod) write(name string, content []byte) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// configure writes what an agent writes and swaps the link.
func (p *pod) configure(g model.Gateway, endpoints dataplane.Endpoints) {
	p.t.Helper()
	revision, err := Render(g)
	if err != nil {
		p.t.Fatal(err)
	}
	if p.change != nil {
		revision.Config = p.change(revision.Config)
	}
	p.revisions++
	p.revision, p.slots = revision, Assign(revision, p.slots, endpoints)
	folder := fmt.Sprintf("rev-%d", p.revisions)
	p.write(filepath.Join(folder, ConfigFile), []byte(revision.Config))
	p.write(filepath.Join(folder, BackendsFile), []byte(Backends(revision, p.slots)))
	for name, content := range revision.Files {
		p.write(filepath.Join(folder, name), []byte(content))
	}
	for name, content := range ticketFiles(revision) {
		p.write(filepath.Join(folder, name), content)
	}
	for _, c := range revision.Certificates {
		p.write(filepath.Join(folder, CertificateFile(c.Name)), p.pairs[c.Secret])
	}
	link := filepath.Join(p.dir, filepath.Base(CurrentDir))
	if err := os.Symlink(folder, link+".next"); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(link+".next", link); err != nil {
		p.t.Fatal(err)
	}
	if out, err := exec.Command("chown", "-hR", "65532:65532", p.dir).CombinedOutput(); err != nil {
		p.t.Fatalf("%v\n%s", err, out)
	}
}

// start HAProxy with the pod's own command.
func (p *pod) start(g model.Gateway, endpoints dataplane.Endpoints) {
	p.t.Helper()
	p.configure(g, endpoints)
	script := `mount --make-rprivate / && mount -t tmpfs none "$ROOT/run" && mkdir "$ROOT/run/qtls" && mount --bind "$DIR" "$ROOT/run/qtls" &&
if [ "$LIMIT" != 0 ]; then ulimit -n "$LIMIT"; fi &&
exec chroot --userspec=65532:65532 "$ROOT" "$@"`
	p.process = exec.Command("sh", append([]string{"-c", script, "sh"}, Command()...)...)
	p.process.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "ROOT=" + rootfs("gateway"), "DIR=" + p.dir, fmt.Sprintf("LIMIT=%d", p.limit)}
	p.process.Env = append(p.process.Env, p.environment...)
	if p.modules != "" {
		p.process.Env = append(p.process.Env, "OPENSSL_MODULES="+p.modules)
	}
	p.process.Stdout, p.process.Stderr = &p.output, &p.output
	p.process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := p.process.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = p.process.Process.Kill()
		_ = p.process.Wait()
		if p.t.Failed() || strings.Contains(p.output.String(), "ALERT") {
			p.t.Errorf("HAProxy said:\n%s", p.output.String())
		}
	})
	p.eventually("HAProxy starts", func() error {
		_, err := p.master().Processes(p.t.Context())
		if err == nil {
			_, err = p.admin().Info(p.t.Context())
		}
		return err
	})
}

func (p *pod) master() runtime.Master {
	return runtime.Master{Socket: runtime.Socket(filepath.Join(p.dir, filepath.Base(MasterSocket)))}
}

func (p *pod) admin() runtime.Admin {
	return runtime.Admin{Socket: runtime.Socket(filepath.Join(p.dir, filepath.Base(AdminSocket)))}
}

func (p *pod) eventually(what string, try func() error) {
	p.t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	p.t.Fatalf("%s: %v\n%s", what, err, p.output.String())
}

// handshake is the next line of the log about one; the test fails when none
// comes.
func (p *pod) handshake() Handshake {
	p.t.Helper()
	h, ok := p.handshakeWithin(patience)
	if !ok {
		p.t.Fatal("HAProxy logs no handshake")
	}
	return h
}

func (p *pod) handshakeWithin(wait time.Duration) (Handshake, bool) {
	p.t.Helper()
	end := time.After(wait)
	for {
		select {
		case line := <-p.log:
			if h, err := ParseHandshake(line); err == nil {
				return h, true
			}
		case <-end:
			return Handshake{}, false
		}
	}
}

// forget the lines that were logged so far.
func (p *pod) forget() {
	for {
		if _, ok := p.handshakeWithin(50 * time.Millisecond); !ok {
			return
		}
	}
}

// client is a TLS client that trusts the pod's issuers, and no one else.
type client struct {
	name string
	// connect says how the handshake ended; body is what s_client prints.
	connect func(p *pod, port int, server string) (string, error)
}

// openSSL 3.5 or 3.0 with more arguments.
func openSSL(image string, args ...string) client {
	name := map[string]string{"client": "OpenSSL 3.5", "client-bookworm": "OpenSSL 3.0"}[image]
	return client{strings.TrimSpace(name + " " + strings.Join(args, " ")), func(p *pod, port int, server string) (string, error) {
		all := []string{"s_client", "-connect", fmt.Sprintf("127.0.0.1:%d", port), "-CAfile", filepath.Join(p.dir, "roots.pem"), "-verify_return_error", "-brief"}
		if server == "" {
			all = append(all, "-noservername")
		} else {
			all = append(all, "-servername", server, "-verify_hostname", server)
		}
		cmd := program(image, "usr/bin/openssl", append(append(all, "-ign_eof"), args...)...)
		cmd.Stdin = strings.NewReader("GET / HTTP/1.0\r\n\r\n") // it ends when the server has answered, and finished its handshake before
		out, err := cmd.CombinedOutput()
		if err != nil {
			return string(out), fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
		}
		if !strings.Contains(string(out), "Verification: OK") {
			return string(out), fmt.Errorf("not verified: %s", out)
		}
		return string(out), nil
	}}
}

// goTLS is crypto/tls.
func goTLS(change func(*tls.Config)) client {
	return client{"Go crypto/tls", func(p *pod, port int, server string) (string, error) {
		conn, err := p.dial(port, server, change)
		if err != nil {
			return "", err
		}
		defer leave(conn)
		state := conn.ConnectionState()
		return fmt.Sprintf("%s %s %s", tls.VersionName(state.Version), state.CurveID, state.PeerCertificates[0].PublicKeyAlgorithm), nil
	}}
}

// leave once the server has finished its handshake, too: to one whose client is
// gone before it has sent its tickets, the handshake has failed.
func leave(conn *tls.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_ = conn.CloseWrite()
	_, _ = io.Copy(io.Discard, conn)
}

func (p *pod) dial(port int, server string, change func(*tls.Config)) (*tls.Conn, error) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(p.roots)
	config := &tls.Config{RootCAs: pool, ServerName: server}
	if change != nil {
		change(config)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}
