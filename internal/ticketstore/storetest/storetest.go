// Package storetest gives tests a real ticket store: the server of the redis
// image, configured as the operator does.
package storetest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
	"qtls.dev/qtls/internal/ticketstore/internal/limit"
)

// Variable names the folder with the root file system of the redis image.
const Variable = "QTLS_REDIS_ROOTFS"

// host is what the certificates are for: tests reach each server by its port.
const host = "localhost"

// patience is with what has to happen; how soon it does is not tested.
const patience = time.Minute

// A machine that runs tests may be too busy for what is long elsewhere.
func init() {
	limit.Dial, limit.Command, limit.Operation = 10*time.Second, 10*time.Second, 25*time.Second
}

// admin is a user that may do everything; only tests have one.
const admin = "admin"

// Server is one that runs.
type Server struct {
	t           testing.TB
	credentials *embedded.Credentials
	dir         string
	port        int
	extra       []string // lines of configuration
	users       string   // empty: those of an embedded store
	arguments   []string
	environment []string
	listens     bool // is all that is waited for
	process     *exec.Cmd
	ended       chan struct{} // closed when the process has
	admin       *redis.Client
}

// Option changes how a server is started.
type Option func(*Server)

// Config adds lines to the server's configuration.
func Config(lines ...string) Option {
	return func(s *Server) { s.extra = append(s.extra, lines...) }
}

// Arguments adds words to the command line.
func Arguments(words ...string) Option {
	return func(s *Server) { s.arguments = append(s.arguments, words...) }
}

// Users replaces the access control list; the probe's user and the tests' own
// are there in any case.
func Users(lines ...string) Option {
	return func(s *Server) {
		s.users = strings.Join(append(lines, "user probe reset on nopass +ping"), "\n") + "\n"
	}
}

// Environment adds variables, as NAME=VALUE.
func Environment(variables ...string) Option {
	return func(s *Server) { s.environment = append(s.environment, variables...) }
}

// UntilItListens is for a server that does not answer as it should.
func UntilItListens(s *Server) { s.listens = true }

// Start one server. The test is skipped where the image's root file system is
// not built.
func Start(t testing.TB, options ...Option) *Server {
	t.Helper()
	return StartMembers(t, 1, options...)[0]
}

// StartMembers starts several with the same credentials, as the members of one
// store have them.
func StartMembers(t testing.TB, n int, options ...Option) []*Server {
	t.Helper()
	if os.Getenv(Variable) == "" {
		t.Skip(Variable + " is not set: `make test-unit` sets it to the redis image's root file system")
	}
	credentials, err := embedded.New([]string{host}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = start(t, credentials, options)
	}
	return servers
}

// Peer starts another server with the same credentials.
func (s *Server) Peer(options ...Option) *Server {
	s.t.Helper()
	return start(s.t, s.credentials, options)
}

func start(t testing.TB, credentials *embedded.Credentials, options []Option) *Server {
	t.Helper()
	s := &Server{t: t, credentials: credentials, dir: t.TempDir()}
	for _, o := range options {
		o(s)
	}
	s.prepare()
	t.Cleanup(s.end)
	s.launch()
	return s
}

// prepare writes the server's files and chooses a port.
func (s *Server) prepare() {
	s.t.Helper()
	data, err := s.credentials.Data()
	if err != nil {
		s.t.Fatal(err)
	}
	s.port = FreePort(s.t)
	if s.users != "" {
		data[embedded.KeyUsers] = []byte(s.users)
	}
	data[embedded.KeyUsers] = append(data[embedded.KeyUsers], "user "+admin+" reset on nopass ~* &* +@all\n"...)
	data[embedded.KeyConfig] = []byte(embedded.Config(s.dir, s.dir, s.port) + strings.Join(s.extra, "\n") + "\n")
	for _, name := range embedded.ServerFiles() {
		if err := os.WriteFile(filepath.Join(s.dir, name), data[name], 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	s.admin = redis.NewClient(&redis.Options{Addr: s.Address(), Username: admin, Password: admin, Protocol: 2, DisableIdentity: true,
		PoolSize: 1, MaxRetries: 3, TLSConfig: s.TLS(), DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience})
}

// FreePort is a port of the test's own until that ends, also while no server
// listens there: it is none of those that the system gives to clients, and other
// tests, which may be other processes, see by an abstract socket that it is
// taken.
func FreePort(t testing.TB) int {
	t.Helper()
	var err error
	for range 100 {
		port := 20000 + rand.N(12000)
		var taken, l net.Listener
		if taken, err = net.Listen("unix", fmt.Sprintf("@qtls-test-port-%d", port)); err != nil {
			continue
		}
		if l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err != nil {
			taken.Close()
			continue
		}
		l.Close()
		t.Cleanup(func() { taken.Close() })
		return port
	}
	t.Fatalf("no free port: %v", err)
	return 0
}

// TLS is how a client of the server may be configured.
func (s *Server) TLS() *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.Connection(embedded.Agent).CA)
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: host}
}

// program of the image, run with the image's libraries.
func program(ctx context.Context, path string, arguments ...string) *exec.Cmd {
	root := os.Getenv(Variable)
	loader := []string{"--library-path", filepath.Join(root, "usr/lib/x86_64-linux-gnu"), filepath.Join(root, path)}
	return exec.CommandContext(ctx, filepath.Join(root, "lib64/ld-linux-x86-64.so.2"), append(loader, arguments...)...)
}

// Probe runs what the kubelet does to find out whether a server answers.
func (s *Server) Probe(ctx context.Context) (string, error) {
	command := embedded.ProbeCommand(s.dir, s.port)
	out, err := program(ctx, command[0], command[1:]...).CombinedOutput()
	return string(out), err
}

func (s *Server) launch() {
	s.t.Helper()
	s.process = program(context.Background(), embedded.ServerCommand()[0], append([]string{filepath.Join(s.dir, embedded.KeyConfig)}, s.arguments...)...)
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.process.Env = append(os.Environ(), s.environment...)
	s.process.Stdout, s.process.Stderr = log, log
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.ended = make(chan struct{})
	go func(process *exec.Cmd, ended chan struct{}) {
		defer close(ended)
		_ = process.Wait()
	}(s.process, s.ended)
	deadline := time.After(patience)
	for err = s.ping(); err != nil; err = s.ping() {
		select {
		case <-time.After(5 * time.Millisecond):
			continue
		case <-s.ended:
		case <-deadline:
		}
		text, _ := os.ReadFile(s.log())
		s.t.Fatalf("the server does not answer: %v; its log:\n%s", err, text)
	}
}

func (s *Server) log() string { return filepath.Join(s.dir, "log") }

// ping says whether the server is ready.
func (s *Server) ping() error {
	if s.listens {
		conn, err := net.Dial("tcp", s.Address())
		if err == nil {
			conn.Close()
		}
		return err
	}
	conn, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: s.TLS()}).Dial("tcp", s.Address())
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(conn, "AUTH %s any\r\nPING\r\n", embedded.Probe); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	for _, want := range []string{"+OK\r\n", "+PONG\r\n"} {
		if line, err := r.ReadString('\n'); err != nil || line != want {
			return fmt.Errorf("answer %q, want %q: %w", line, want, err)
		}
	}
	return nil
}

// Address is host:port.
func (s *Server) Address() string { return fmt.Sprintf("%s:%d", host, s.port) }

// Port of the server.
func (s *Server) Port() int { return s.port }

// Dir holds the server's files.
func (s *Server) Dir() string { return s.dir }

// Connection of a role to this server.
func (s *Server) Connection(role embedded.Role) ticketstore.Connection {
	return Connection(role, s)
}

// Connection of a role to a store with these members.
func Connection(role embedded.Role, members ...*Server) ticketstore.Connection {
	c := members[0].credentials.Connection(role, nil)
	for _, m := range members {
		c.Addresses = append(c.Addresses, m.Address())
	}
	return c
}

// Admin is a client that may do everything. It ends with the test.
func (s *Server) Admin() *redis.Client { return s.admin }

// Do a command as a user that may do everything.
func (s *Server) Do(words ...any) any {
	s.t.Helper()
	reply, err := s.admin.Do(context.Background(), words...).Result()
	if err != nil {
		s.t.Fatalf("%v: %v", words, err)
	}
	return reply
}

// FlushAll empties the server.
func (s *Server) FlushAll() {
	s.t.Helper()
	s.Do("FLUSHALL")
}

// Clients counts the connections of a role.
func (s *Server) Clients(role embedded.Role) int {
	s.t.Helper()
	return strings.Count(s.Do("CLIENT", "LIST").(string), " user="+string(role)+" ")
}

// Memory is the server's resident set in bytes.
func (s *Server) Memory() int {
	s.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kib int
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	s.t.Fatalf("no VmRSS in:\n%s", status)
	return 0
}

// Stop kills the server; with it goes all that it holds.
func (s *Server) Stop() {
	s.t.Helper()
	if s.ended == nil { // it was never started
		return
	}
	_ = s.process.Process.Kill()
	<-s.ended
}

// Restart starts it again, empty, on the same port.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.launch()
}

// Cut makes the server as one behind a network that drops every packet:
// connections stay, and nothing answers. Mend ends that.
func (s *Server) Cut() { s.signal(syscall.SIGSTOP) }

// Mend ends a Cut.
func (s *Server) Mend() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(n syscall.Signal) {
	s.t.Helper()
	if err := s.process.Process.Signal(n); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) end() {
	s.Stop()
	s.admin.Close()
	if text, _ := os.ReadFile(s.log()); s.t.Failed() {
		lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
		s.t.Logf("the end of the log of %s:\n%s", s.Address(), bytes.Join(lines[max(0, len(lines)-20):], []byte("\n")))
	}
}

// Logged says whether the server's log has a text in it.
func (s *Server) Logged(text string) bool {
	s.t.Helper()
	log, err := os.ReadFile(s.log())
	if err != nil {
		s.t.Fatal(err)
	}
	return slices.ContainsFunc(strings.Split(string(log), "\n"), func(line string) bool { return strings.Contains(line, text) })
}
