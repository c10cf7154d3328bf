package operatortest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"qtls.dev/qtls/internal/ticketstore/redisoperator"
	"qtls.dev/qtls/internal/ticketstore/storetest"
)

// Places are where a server finds what it is given.
type Places struct{ TLS, Users, Include, Data string }

// Mounted is where the Redis Operator mounts it.
var Mounted = Places{TLS: "/tls", Users: "/etc/redis/" + redisoperator.KeyUsers, Include: "/etc/redis/external.conf.d/" + redisoperator.KeyConfig, Data: "/data"}

// Config is what the Redis Operator's images make of a RedisReplication's fields
// (release v0.26, internal/agent/bootstrap/redis): the server's password is the
// default user's, TLS is offered to clients without a certificate, and the
// additional configuration is included last.
func (p Places) Config(password string, port int) string {
	return fmt.Sprintf(`bind 0.0.0.0 ::
tcp-keepalive 60
daemonize no
masterauth %[1]s
requirepass %[1]s
protected-mode yes
tls-cert-file %[2]s/%[3]s
tls-key-file %[2]s/%[4]s
tls-ca-cert-file %[2]s/%[5]s
tls-auth-clients optional
tls-replication yes
aclfile %[6]s
port 0
tls-port %[7]d
dir %[8]s
include %[9]s
`, password, p.TLS, redisoperator.KeyCertificate, redisoperator.KeyPrivateKey, redisoperator.KeyAuthority, p.Users, port, p.Data, p.Include)
}

// Server is one that runs.
type Server struct {
	t    testing.TB
	dir  string
	Port int
}

// Start a server of the redis image with the files of a Secret, included
// configuration, and more lines. The test is skipped where the image's root file
// system is not built.
func Start(t testing.TB, secret map[string][]byte, include string, more ...string) *Server {
	t.Helper()
	if os.Getenv(storetest.Variable) == "" {
		t.Skip(storetest.Variable + " is not set: `make test-unit` sets it to the redis image's root file system")
	}
	s := &Server{t: t, dir: t.TempDir(), Port: storetest.FreePort(t)}
	files := maps.Clone(secret)
	files[redisoperator.KeyConfig] = []byte(include)
	places := Places{TLS: s.dir, Users: filepath.Join(s.dir, redisoperator.KeyUsers), Include: filepath.Join(s.dir, redisoperator.KeyConfig), Data: s.dir}
	config := places.Config(string(secret[redisoperator.KeyPassword]), s.Port)
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(s.dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.run([]byte(config + strings.Join(more, "\n") + "\n"))
	return s
}

// run the server until the test ends.
func (s *Server) run(config []byte, arguments ...string) {
	s.t.Helper()
	file := filepath.Join(s.dir, "redis.conf")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		s.t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	process := program("usr/bin/valkey-server", append([]string{file}, arguments...)...)
	process.Stdout, process.Stderr = log, log
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := process.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = process.Wait()
	}()
	s.t.Cleanup(func() {
		_ = process.Process.Kill()
		<-ended
		if text, _ := os.ReadFile(log.Name()); s.t.Failed() {
			lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
			s.t.Logf("the end of the log of %d:\n%s", s.Port, bytes.Join(lines[max(0, len(lines)-20):], []byte("\n")))
		}
	})
	deadline := time.After(time.Minute)
	for {
		conn, err := net.Dial("tcp", fmt.Sprintf("localhost:%d", s.Port))
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ended:
			s.t.Fatal("the server has ended")
		case <-deadline:
			s.t.Fatalf("the server does not listen: %v", err)
		}
	}
}

// StartSentinel watches a server, as `mymaster`. It speaks TLS, as of a release
// of the Redis Operator that tells it to, and has no password.
func StartSentinel(t testing.TB, secret map[string][]byte, primary *Server) *Server {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir(), Port: storetest.FreePort(t)}
	file := func(name string) string { return filepath.Join(primary.dir, name) }
	s.run([]byte(fmt.Sprintf(`port 0
tls-port %d
protected-mode no
tls-cert-file %s
tls-key-file %s
tls-ca-cert-file %s
tls-auth-clients optional
tls-replication yes
dir %s
sentinel monitor mymaster 127.0.0.1 %d 1
sentinel auth-pass mymaster %s
`, s.Port, file(redisoperator.KeyCertificate), file(redisoperator.KeyPrivateKey), file(redisoperator.KeyAuthority), s.dir, primary.Port, secret[redisoperator.KeyPassword])), "--sentinel")
	return s
}

// program of the image, run with the image's libraries.
func program(path string, arguments ...string) *exec.Cmd {
	root := os.Getenv(storetest.Variable)
	loader := []string{"--library-path", filepath.Join(root, "usr/lib/x86_64-linux-gnu"), filepath.Join(root, path)}
	return exec.CommandContext(context.Background(), filepath.Join(root, "lib64/ld-linux-x86-64.so.2"), append(loader, arguments...)...)
}

// Do a command as the Redis Operator's probes do: as the default user, with its
// password, and with the server's certificate as the client's.
func (s *Server) Do(password []byte, words ...string) (string, error) {
	s.t.Helper()
	file := func(name string) string { return filepath.Join(s.dir, name) }
	c := program("usr/bin/valkey-cli", slices.Concat([]string{"-e", "-h", "localhost", "-p", fmt.Sprint(s.Port), "-a", string(password), "--no-auth-warning", "--tls",
		"--cert", file(redisoperator.KeyCertificate), "--key", file(redisoperator.KeyPrivateKey), "--cacert", file(redisoperator.KeyAuthority)}, words)...)
	out, err := c.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}
