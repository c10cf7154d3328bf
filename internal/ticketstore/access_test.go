package ticketstore_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
	"qtls.dev/qtls/internal/ticketstore/storetest"
)

func TestWrongCredentialsAreSaidToBeWrong(t *testing.T) {
	server := storetest.Start(t)
	right := server.Connection(embedded.Operator)
	for name, change := range map[string]func(*ticketstore.Connection){
		"another password": func(c *ticketstore.Connection) { c.Password = "hunter2" },
		"the agents'":      func(c *ticketstore.Connection) { c.Password = server.Connection(embedded.Agent).Password },
		"another user":     func(c *ticketstore.Connection) { c.Username = "somebody" },
		"the default user": func(c *ticketstore.Connection) { c.Username = "" },
		"none":             func(c *ticketstore.Connection) { c.Username, c.Password = "", "" },
	} {
		t.Run(name, func(t *testing.T) {
			c := right
			change(&c)
			s := open(t, c)
			_, err := s.Read(t.Context(), ring)
			is(t, err, ticketstore.ErrCredentials, c)
			is(t, s.Publish(t.Context(), ring, document(1, "x")), ticketstore.ErrCredentials, c)
		})
	}
}

func TestEachUserMayDoWhatItHasToAndNoMore(t *testing.T) {
	server := storetest.Start(t)
	publish(t, open(t, server.Connection(embedded.Operator)), document(1, "one"))

	t.Run("an agent cannot publish", func(t *testing.T) {
		c := server.Connection(embedded.Agent)
		err := open(t, c).Publish(t.Context(), ring, document(2, "two"))
		is(t, err, ticketstore.ErrPermission, c)
		if !strings.Contains(err.Error(), "'watch'") || !strings.Contains(err.Error(), key) {
			t.Errorf("error %q does not name the command and the key", err)
		}
	})
	for _, role := range []embedded.Role{embedded.Operator, embedded.Agent} {
		t.Run(string(role)+" cannot reach other keys", func(t *testing.T) {
			c := server.Connection(role)
			c.Prefix = "other:"
			_, err := open(t, c).Read(t.Context(), ring)
			is(t, err, ticketstore.ErrPermission, c)
			if !strings.Contains(err.Error(), "other:ring:"+ring) {
				t.Errorf("error %q does not name the key", err)
			}
			is(t, open(t, c).Publish(t.Context(), ring, document(1, "x")), ticketstore.ErrPermission, c)
		})
	}

	refused := func(t *testing.T, role embedded.Role, commands ...string) {
		t.Helper()
		c := server.Connection(role)
		if role == embedded.Probe {
			c.Password = "any"
		}
		client := redis.NewClient(&redis.Options{Addr: server.Address(), Username: c.Username, Password: c.Password, Protocol: 2, TLSConfig: server.TLS(), MaxRetries: -1})
		defer client.Close()
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Fatalf("%s cannot even ping: %v", role, err)
		}
		for _, command := range commands {
			var words []any
			for _, w := range strings.Fields(command) {
				words = append(words, w)
			}
			if reply, err := client.Do(t.Context(), words...).Result(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") && !strings.HasPrefix(err.Error(), "ERR DEBUG command not allowed") {
				t.Errorf("%s: %s: %v, %v; want NOPERM", role, command, reply, err)
			}
		}
	}
	always := []string{"CONFIG GET *", "DEBUG SLEEP 0", "ACL LIST", "ACL WHOAMI", "KEYS *", "SCAN 0", "FLUSHALL", "SHUTDOWN", "CLIENT LIST", "MONITOR", "INFO",
		"EVAL return(1) 0", "FUNCTION LIST", "REPLICAOF 127.0.0.1 1", "PSYNC ? -1", "SAVE", "BGSAVE", "MODULE LIST", "SLOWLOG GET", "COMMANDLOG GET 1 slow", "SELECT 0",
		"DUMP " + key, "RENAME " + key + " other", "COPY " + key + " other", "PERSIST " + key, "DEL " + key, "GETRANGE other 0 1", "PTTL other", "SUBSCRIBE other", "PSUBSCRIBE *"}
	refused(t, embedded.Operator, append(always, "SET other x", "PUBLISH other x")...)
	refused(t, embedded.Agent, append(always, "SET "+key+" x", "PUBLISH "+key+" x", "WATCH "+key, "MULTI")...)
	refused(t, embedded.Probe, append(always, "GETRANGE "+key+" 0 1", "PTTL "+key, "SUBSCRIBE "+key)...)
	reads(t, open(t, server.Connection(embedded.Agent)), 1, "one")
}

func TestTheProbeOfThePod(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	if out, err := server.Probe(t.Context()); err != nil || strings.TrimSpace(out) != "PONG" {
		t.Errorf("of a server that is well: %q, %v", out, err)
	}
	server.Stop()
	if out, err := server.Probe(t.Context()); err == nil {
		t.Errorf("of one that is down: %q", out)
	}
	other := storetest.Start(t)
	other.Restart()
	other.Cut()
	defer other.Mend()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // as the kubelet does
	defer cancel()
	if out, err := other.Probe(ctx); err == nil {
		t.Errorf("of one that hangs: %q", out)
	}
}

func TestCertificatesAreVerified(t *testing.T) {
	server, other := storetest.Start(t), storetest.Start(t)
	right := server.Connection(embedded.Agent)
	for name, change := range map[string]func(*ticketstore.Connection){
		"another authority": func(c *ticketstore.Connection) { c.CA = other.Connection(embedded.Agent).CA },
		"the system's":      func(c *ticketstore.Connection) { c.CA = nil },
		"another name":      func(c *ticketstore.Connection) { c.ServerName = "redis.example" },
		"another address' host": func(c *ticketstore.Connection) {
			c.Addresses = []string{strings.Replace(c.Addresses[0], "localhost", "127.0.0.1", 1)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := right
			change(&c)
			_, err := open(t, c).Read(t.Context(), ring)
			is(t, err, ticketstore.ErrCertificate, c)
		})
	}
	t.Run("the name that is given", func(t *testing.T) {
		c := right
		c.Addresses, c.ServerName = []string{strings.Replace(c.Addresses[0], "localhost", "127.0.0.1", 1)}, "localhost"
		_, err := open(t, c).Read(t.Context(), ring)
		is(t, err, ticketstore.ErrNotFound, c)
	})
}

func TestConnectionsAreHybrid(t *testing.T) {
	server := storetest.Start(t)
	for _, require := range []bool{true, false} {
		c := server.Connection(embedded.Agent)
		c.RequireHybrid = require
		conn, err := c.Dial(t.Context(), server.Address())
		if err != nil {
			t.Fatal(err)
		}
		state := conn.ConnectionState()
		conn.Close()
		t.Logf("required: %v: %s, %s, %s", require, tls.VersionName(state.Version), state.CurveID, tls.CipherSuiteName(state.CipherSuite))
		if state.CurveID != tls.X25519MLKEM768 || state.Version != tls.VersionTLS13 {
			t.Errorf("required: %v: negotiated %s, %s", require, state.CurveID, tls.VersionName(state.Version))
		}
	}
}

// classical is an OpenSSL configuration without post-quantum groups.
const classical = `openssl_conf = init
[init]
ssl_conf = tls
[tls]
system_default = all
[all]
Groups = X25519
`

func TestAServerThatIsNotHybridIsRefusedWhereThatIsRequired(t *testing.T) {
	file := filepath.Join(t.TempDir(), "openssl.cnf")
	if err := os.WriteFile(file, []byte(classical), 0o600); err != nil {
		t.Fatal(err)
	}
	server := storetest.Start(t, storetest.Environment("OPENSSL_CONF="+file))
	c := server.Connection(embedded.Agent)
	_, err := open(t, c).Read(t.Context(), ring)
	is(t, err, ticketstore.ErrTLS, c)
	if !strings.Contains(err.Error(), "only X25519MLKEM768 was offered") {
		t.Errorf("error %q does not say why", err)
	}
	c.RequireHybrid = false
	_, err = open(t, c).Read(t.Context(), ring)
	is(t, err, ticketstore.ErrNotFound, c)
}

func TestServersWithoutTLS13AreRefused(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	c := server.Connection(embedded.Agent)
	listen := func(t *testing.T, serve func(net.Conn)) ticketstore.Connection {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
				go serve(conn)
			}
		}()
		c := c
		c.Addresses = []string{l.Addr().String()}
		return c
	}
	t.Run("a server without TLS", func(t *testing.T) {
		c := listen(t, func(conn net.Conn) {
			defer conn.Close()
			_, _ = conn.Read(make([]byte, 1)) // were it not read, the client's system could throw the answer away
			fmt.Fprint(conn, "-ERR unknown command\r\n")
			_, _ = io.Copy(io.Discard, conn)
		})
		_, err := open(t, c).Read(t.Context(), ring)
		is(t, err, ticketstore.ErrTLS, c)
	})
	t.Run("a server of TLS 1.2", func(t *testing.T) {
		server := storetest.Start(t, storetest.Config("tls-protocols TLSv1.2"), storetest.UntilItListens)
		c := server.Connection(embedded.Agent)
		_, err := open(t, c).Read(t.Context(), ring)
		is(t, err, ticketstore.ErrTLS, c)
	})
	t.Run("a server that hangs up", func(t *testing.T) {
		c := listen(t, func(conn net.Conn) { conn.Close() })
		_, err := open(t, c).Read(t.Context(), ring)
		is(t, err, ticketstore.ErrUnreachable, c)
	})
	t.Run("a server that says nothing", func(t *testing.T) {
		c := listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		began := time.Now()
		_, err := open(t, c).Read(t.Context(), ring)
		is(t, err, ticketstore.ErrUnreachable, c)
		if took := time.Since(began); took > patience {
			t.Errorf("it took %v", took)
		}
	})
	t.Run("no such host", func(t *testing.T) {
		c := c
		c.Addresses = []string{"redis.invalid:6379"}
		_, err := open(t, c).Read(t.Context(), ring)
		is(t, err, ticketstore.ErrUnreachable, c)
	})
}

func TestAsManyClientsAsAreLetInFitIntoThePodsMemory(t *testing.T) {
	const most, limit = 500, 64 << 20
	server := storetest.Start(t)
	c := server.Connection(embedded.Agent)
	subscribe := func() error {
		conn, err := c.Dial(t.Context(), server.Address())
		if err != nil {
			return err
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := fmt.Fprintf(conn, "AUTH %s %s\r\nSUBSCRIBE %s\r\n", c.Username, c.Password, key); err != nil {
			return err
		}
		answer := make([]byte, 5)
		if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "+OK\r\n" {
			return fmt.Errorf("answer %q: %w", answer, err)
		}
		return nil
	}
	for i := range most - 1 { // the test's own client is one
		if err := subscribe(); err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
	}
	if n := server.Clients(embedded.Agent); n != most-1 {
		t.Fatalf("%d clients, want %d", n, most-1)
	}
	memory := server.Memory()
	t.Logf("%d clients: %.1f MiB", most, float64(memory)/(1<<20))
	if memory > limit*9/10 {
		t.Errorf("with %d clients the server takes %d bytes; the pod has %d", most, memory, limit)
	}
	if err := subscribe(); err == nil {
		t.Error("one more is let in")
	}
}
