//go:build crypto

package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
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
	"syscall"
	"testing"
	"time"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy/runtime"
	"qtls.dev/qtls/internal/mtls"
	"qtls.dev/qtls/internal/testcert"
)

// These tests run the agent's own program and the gateway image's HAProxy as a
// pod does: two processes without privileges, each process 1 of its own PID
// namespace, in the image's root file system, with /run/qtls between them. The
// API server is the one thing that is not real. They need root, to make the
// namespaces, and the gateway's root file system: QTLS_GATEWAY_ROOTFS, or where
// hack/images unpacks it.

const inNamespace = "QTLS_TEST_IN_NETWORK_NAMESPACE"

// TestMain moves into namespaces of its own: of the network, so that ports and
// abstract sockets are the test's alone, and of processes, so that whatever kills
// the test ends all that it has started. What a container runs outlives it
// otherwise: with its privileges a process gives up the signal of its parent's
// death.
func TestMain(m *testing.M) {
	if os.Getenv(inNamespace) != "" {
		if out, err := exec.Command("sh", "-c", "ip link set lo up && mount --make-rprivate / && mount -t proc proc /proc").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "namespaces: %v\n%s", err, out)
			os.Exit(1)
		}
		code := m.Run()
		_ = os.RemoveAll(binaryDir)
		os.Exit(code)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "tests with the tag crypto need root: they make namespaces, as a container runtime does")
		os.Exit(1)
	}
	self := exec.Command("/proc/self/exe", os.Args[1:]...)
	self.Env = append(os.Environ(), inNamespace+"=1")
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
	self.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := self.Run(); err != nil {
		if self.ProcessState == nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
}

func gatewayRootfs(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("QTLS_GATEWAY_ROOTFS")
	if dir == "" {
		cache := os.Getenv("QTLS_CACHE")
		if cache == "" {
			user, err := os.UserCacheDir()
			if err != nil {
				t.Fatal(err)
			}
			cache = filepath.Join(user, "qtls")
		}
		dir = filepath.Join(cache, "images", "rootfs", "gateway")
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatalf("the gateway's root file system is not there (build it: cd hack/images && go run . rootfs gateway): %v", err)
	}
	return dir
}

// binaryDir is where agentBinary puts it.
var binaryDir string

// agentBinary is built once, statically, as for the image.
var agentBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "qtls-agent-test-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(dir, "qtls-agent"), "qtls.dev/qtls/cmd/qtls-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return dir, os.Chmod(dir, 0o755)
})

const (
	podUser = 65532
	podName = "web-1"
)

// pod is a gateway pod.
type pod struct {
	t    *testing.T
	name string
	api  *apiServer
	// network namespace that it is in; nil: the test's.
	network *network
	// ahead is by how much its clock is.
	ahead time.Duration
	// group that HAProxy's container is in; nil: the test's.
	group *controlGroup
	// env is added to the containers' environment.
	env []string
	// hsm, if any, is what HAProxy's container alone has at /run/secrets/hsm.
	hsm     string
	rootfs  string
	dir     string // holds what is mounted into both containers
	agent   *exec.Cmd
	haproxy *exec.Cmd
	status  *http.Client
	health  *http.Client
	tls     mutualTLS
}

func newPod(t *testing.T) *pod {
	t.Helper()
	return newPodOf(t, newAPIServer(t), podName, nil)
}

func newPodOf(t *testing.T, api *apiServer, name string, n *network) *pod {
	t.Helper()
	p := &pod{t: t, name: name, api: api, network: n, rootfs: gatewayRootfs(t), dir: t.TempDir()}
	for parent := p.dir; parent != "/tmp" && parent != "/"; parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"run", "token", "agent-tls"} {
		if err := os.Mkdir(filepath.Join(p.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(p.dir, "run"), podUser, podUser); err != nil {
		t.Fatal(err)
	}
	p.write("token/token", []byte(testToken))
	p.write("token/ca.crt", testcert.PEM(p.api.Certificate()))
	p.tls = newMutualTLS(t)
	for name, content := range p.tls.agent {
		p.write("agent-tls/"+name, content)
	}
	p.status = &http.Client{Timeout: 2 * patience, Transport: &http.Transport{TLSClientConfig: p.tls.operator, DialContext: p.network.dial}}
	p.health = &http.Client{Transport: &http.Transport{DialContext: p.network.dial}}
	return p
}

func (p *pod) write(name string, content []byte) {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Chown(path, podUser, podUser); err != nil {
		p.t.Fatal(err)
	}
}

// container starts a program as a container would.
func (p *pod) container(name string, command ...string) *exec.Cmd {
	p.t.Helper()
	binary, err := agentBinary()
	if err != nil {
		p.t.Fatal(err)
	}
	script := `set -e
mount --make-rprivate /
mount -t tmpfs none "$ROOT/run"
mkdir -p "$ROOT/run/qtls" "$ROOT/run/bin" "$ROOT/run/agent-tls" "$ROOT/run/secrets/kubernetes.io/serviceaccount"
mount --bind "$DIR/run" "$ROOT/run/qtls"
mount --bind "$BIN" "$ROOT/run/bin"
mount --bind "$DIR/agent-tls" "$ROOT/run/agent-tls"
mount --bind "$DIR/token" "$ROOT/run/secrets/kubernetes.io/serviceaccount"
if [ -n "$HSM" ]; then mkdir "$ROOT/run/secrets/hsm"; mount --bind "$HSM" "$ROOT/run/secrets/hsm"; fi
mount -t proc proc "$ROOT/proc"
` + mountControlGroups + `
mount -o remount,bind,ro "$ROOT" 2>/dev/null || true
exec ${AHEAD:+unshare --time --monotonic $AHEAD --boottime $AHEAD} chroot --userspec=` + fmt.Sprintf("%d:%d", podUser, podUser) + ` "$ROOT" "$@"`
	host, port, err := net.SplitHostPort(p.api.Listener.Addr().String())
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, command...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "ROOT=" + p.rootfs, "DIR=" + p.dir, "BIN=" + binary,
		"POD_NAME=" + p.name, "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	cmd.Env = append(cmd.Env, p.env...)
	if name == "haproxy" {
		cmd.Env = append(cmd.Env, "HSM="+p.hsm)
	}
	if name == "haproxy" && p.group != nil {
		cmd.Env = append(cmd.Env, "CGROUPS="+p.group.hierarchies())
	}
	if p.ahead != 0 {
		cmd.Env = append(cmd.Env, fmt.Sprintf("AHEAD=%d", int(p.ahead.Seconds())))
	}
	output, err := os.OpenFile(filepath.Join(p.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := p.network.do(cmd.Start); err != nil {
		p.t.Fatal(err)
	}
	output.Close()
	p.t.Cleanup(func() {
		p.kill(cmd)
		if log, _ := os.ReadFile(filepath.Join(p.dir, name+".log")); p.t.Failed() {
			p.t.Logf("%s:\n%s", name, log)
		}
	})
	return cmd
}

// kill a container at once.
func (p *pod) kill(c *exec.Cmd) {
	if c.ProcessState == nil {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}

func (p *pod) startAgent() {
	p.t.Helper()
	p.agent = p.container("agent", "/run/bin/qtls-agent", "run", "--namespace", "shop", "--gateway", "web", "--agent-tls", "/run/agent-tls")
}

func (p *pod) startHAProxy() {
	p.t.Helper()
	p.haproxy = p.container("haproxy", "/run/bin/qtls-agent", "haproxy")
}

// start the pod as the kubelet does: HAProxy when the agent's start-up probe
// succeeds; and wait until it is ready.
func (p *pod) start() {
	p.t.Helper()
	p.startAgent()
	p.eventually("/startupz", func() error { return p.probe("/startupz") })
	p.startHAProxy()
	p.eventually("/readyz", func() error { return p.probe("/readyz") })
}

func (p *pod) probe(path string) error {
	response, err := p.health.Get(fmt.Sprintf("http://127.0.0.1:%d%s", mtls.HealthPort, path))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", path, response.Status, body)
	}
	return nil
}

func (p *pod) metrics() string {
	p.t.Helper()
	response, err := p.health.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", mtls.HealthPort))
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(body)
}

// metric is the value of one sample, by its name and labels as they are
// written; 0 where there is none.
func (p *pod) metric(sample string) float64 {
	p.t.Helper()
	for line := range strings.Lines(p.metrics()) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), sample+" "); ok {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return f
		}
	}
	return 0
}

// getStatus asks as the operator does; with after, it waits for news.
func (p *pod) getStatus(after uint64, wait time.Duration) (dataplane.Status, error) {
	var s dataplane.Status
	response, err := p.status.Get(fmt.Sprintf("https://127.0.0.1:%d/v1/status?after=%d&wait=%s", mtls.StatusPort, after, wait))
	if err != nil {
		return s, err
	}
	defer response.Body.Close()
	return s, json.NewDecoder(response.Body).Decode(&s)
}

// look at the status once. A busy agent may let go of who asks: its TLS handshakes
// have 5 seconds.
func (p *pod) look() (s dataplane.Status) {
	p.t.Helper()
	p.eventually("the agent tells its status", func() (err error) {
		s, err = p.getStatus(0, 0)
		return err
	})
	return s
}

// statusIs waits until the status is as wanted, by the long poll.
func (p *pod) statusIs(what string, good func(dataplane.Status) bool) dataplane.Status {
	p.t.Helper()
	var last dataplane.Status
	var err error
	for deadline := time.Now().Add(2 * patience); time.Now().Before(deadline); {
		last, err = p.getStatus(last.Sequence, time.Second)
		if err == nil && good(last) {
			return last
		}
		if err != nil {
			time.Sleep(20 * time.Millisecond)
		}
	}
	p.t.Fatalf("the status never says: %s; last: %+v, %v", what, last, err)
	return last
}

func (p *pod) runs(target dataplane.Target) dataplane.Status {
	p.t.Helper()
	return p.statusIs(fmt.Sprintf("running %v", target), func(s dataplane.Status) bool { return s.Running == target })
}

func (p *pod) eventually(what string, try func() error) {
	p.t.Helper()
	var err error
	for deadline := time.Now().Add(2 * patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	p.t.Fatalf("%s: %v", what, err)
}

// admin is the socket of the worker that runs the current tree.
func (p *pod) admin() runtime.Admin {
	return runtime.Admin{Socket: runtime.Socket(filepath.Join(p.dir, "run", currentLink, adminSocket))}
}

func (p *pod) master() runtime.Master {
	return runtime.Master{Socket: runtime.Socket(filepath.Join(p.dir, "run", "master.sock"))}
}

// exec runs a command in a container that runs, as the kubelet does for a hook.
func (p *pod) exec(c *exec.Cmd, command ...string) *exec.Cmd {
	user := strconv.Itoa(podUser)
	return exec.Command("nsenter", append([]string{"-t", strconv.Itoa(c.Process.Pid), "-m", "-p", "-r", "-S", user, "-G", user, "--"}, command...)...)
}

// memory is a process' resident set in MiB, all and without what it shares
// with its file.
func memory(pid int) (resident, anonymous float64) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kib); n == 1 {
			resident = kib / 1024
		}
		if n, _ := fmt.Sscanf(line, "RssAnon: %f kB", &kib); n == 1 {
			anonymous = kib / 1024
		}
	}
	return resident, anonymous
}

// mutualTLS is what the operator issues for itself and for the agent.
type mutualTLS struct {
	agent    map[string][]byte // files
	operator *tls.Config
}

func newMutualTLS(t *testing.T) mutualTLS {
	ca := newFamily(t, "ECDSA-P256")
	issue := func(name string, usage x509.ExtKeyUsage) ([]byte, []byte) {
		key := testcert.Key(t, "ECDSA-P256")
		c := testcert.Sign(t, &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name},
			ExtKeyUsage: []x509.ExtKeyUsage{usage}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}, ca.cert, key.Public(), ca.key)
		return testcert.PEM(c), testcert.KeyPEM(t, key)
	}
	name := mtls.AgentName("shop", "web")
	cert, key := issue(name, x509.ExtKeyUsageServerAuth)
	operator, err := tls.X509KeyPair(issue(mtls.OperatorName, x509.ExtKeyUsageClientAuth))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return mutualTLS{
		agent:    map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": testcert.PEM(ca.cert)},
		operator: mtls.ClientConfig(name, pool, operator),
	}
}

// asleep is how many requests servers behind gateways sleep over.
var asleep atomic.Int64

// backend is a server behind the gateway. It answers with its name.
func backend(t *testing.T, name string) dataplane.Endpoint {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d, err := time.ParseDuration(r.URL.Query().Get("sleep")); err == nil {
			asleep.Add(1)
			time.Sleep(d)
			asleep.Add(-1)
		}
		fmt.Fprint(w, name)
	}))
	t.Cleanup(s.Close)
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return dataplane.Endpoint{Address: host, Port: int32(n)}
}

// client makes one new connection for each request, and verifies it.
type client struct {
	port   int32
	config *tls.Config
}

func newClient(port int32, f *family) client {
	pool := x509.NewCertPool()
	pool.AddCert(f.cert)
	return client{port, &tls.Config{RootCAs: pool, ServerName: testHost, MinVersion: tls.VersionTLS13}}
}

// get is the answer and the serial number of the certificate that was served.
func (c client) get(path string) (body, serial string, err error) {
	var state tls.ConnectionState
	transport := &http.Transport{DisableKeepAlives: true, DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := tls.Dialer{Config: c.config}
		conn, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", c.port))
		if err == nil {
			state = conn.(*tls.Conn).ConnectionState()
		}
		return conn, err
	}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, Timeout: patience}).Get("https://" + testHost + path)
	if err != nil {
		return "", "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("HTTP status %s", response.Status)
	}
	return string(content), state.PeerCertificates[0].SerialNumber.Text(16), err
}

// traffic makes connections until it is ended, and counts.
type traffic struct {
	done, failed atomic.Int64
	first        atomic.Pointer[string] // the first failure
	stop         chan struct{}
	workers      sync.WaitGroup
	serials      sync.Map
}

func startTraffic(workers int, clients ...client) *traffic {
	l := &traffic{stop: make(chan struct{})}
	for i := range workers {
		l.workers.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				default:
				}
				_, serial, err := clients[i%len(clients)].get("/")
				l.done.Add(1)
				if err != nil {
					l.failed.Add(1)
					text := err.Error()
					l.first.CompareAndSwap(nil, &text)
					continue
				}
				l.serials.Store(serial, true)
			}
		})
	}
	return l
}

// end stops it and checks that nothing failed.
func (l *traffic) end(t *testing.T, during string) {
	t.Helper()
	close(l.stop)
	l.workers.Wait()
	serials := 0
	l.serials.Range(func(any, any) bool { serials++; return true })
	t.Logf("%s: %d new connections, %d failed, %d serial numbers seen", during, l.done.Load(), l.failed.Load(), serials)
	if l.failed.Load() != 0 {
		t.Errorf("%s: the first failure: %s", during, *l.first.Load())
	}
	if l.done.Load() == 0 {
		t.Error("no connection was made")
	}
}
