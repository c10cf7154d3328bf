package xqtls

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/k6/openssl"
	"qtls.dev/qtls/k6/options"
)

// lookingUpWith replaces the machine's resolver in a test.
func lookingUpWith(t *testing.T, ask func(ctx context.Context, network, host string) ([]netip.Addr, error)) {
	t.Helper()
	was := lookUpNetIP
	lookUpNetIP = ask
	t.Cleanup(func() { lookUpNetIP = was })
}

// named are options for a host that has to be looked up.
func named(port int, timeout time.Duration) options.Options {
	return options.Options{
		Host: "server.example", Port: port, SNI: "server.example", MinVersion: "1.3", MaxVersion: "1.3", Tickets: 1, InsecureSkipVerify: true, Timeout: timeout,
	}
}

// callers are those who make connections: a script's client, and a session. Each tells how its call failed.
var callers = map[string]func(context.Context, options.Options, *openssl.Client) shard.Failure{
	"a script": func(ctx context.Context, o options.Options, c *openssl.Client) shard.Failure {
		return (&client{o: o, c: c}).connect(ctx, func(*openssl.Connection) error { return nil }).Failure
	},
	"a session": func(ctx context.Context, o options.Options, c *openssl.Client) shard.Failure {
		_, err := (&sampler{options: sessionOptions{client: o}, client: c}).ask(ctx)
		if err == nil {
			return ""
		}
		class, _ := classify(err)
		return class
	},
}

// failures of all callers, which call at a time: a test's time passes once.
func failures(t *testing.T, o options.Options, each func(caller string, failure shard.Failure, took time.Duration)) {
	t.Helper()
	addresses.Clear()
	defer addresses.Clear()
	var calls sync.WaitGroup
	defer calls.Wait()
	for name, call := range callers {
		c, err := openssl.NewClient(o)
		if err != nil {
			t.Fatal(err)
		}
		calls.Go(func() {
			began := time.Now()
			each(name, call(t.Context(), o, c), time.Since(began))
		})
	}
}

func TestANameServerThatHangsIsATimeout(t *testing.T) {
	hangs := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	lookingUpWith(t, hangs.LookupNetIP)
	failures(t, named(443, 50*time.Millisecond), func(caller string, failure shard.Failure, _ time.Duration) {
		if failure != shard.Timeout {
			t.Errorf("%s: %q", caller, failure)
		}
	})
}

func TestANameThatIsNotThereIsNoTimeout(t *testing.T) {
	lookingUpWith(t, func(_ context.Context, _, host string) ([]netip.Addr, error) {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	})
	failures(t, named(443, time.Minute), func(caller string, failure shard.Failure, _ time.Duration) {
		if failure != shard.Connect {
			t.Errorf("%s: %q", caller, failure)
		}
	})
}

// What a name server takes is no more there for the connection: a call lasts as long as its time limit, and not twice.
func TestACallHasOneTimeLimit(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts: connections are made, and nothing answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const slow, limit = 25 * time.Second, 30 * time.Second // a machine may stand still for as long as slow
	lookingUpWith(t, func(context.Context, string, string) ([]netip.Addr, error) {
		time.Sleep(slow)
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	})
	failures(t, named(l.Addr().(*net.TCPAddr).Port, limit), func(caller string, failure shard.Failure, took time.Duration) {
		if failure != shard.Timeout || took < limit || took >= slow+limit {
			t.Errorf("%s: %q after %v, want %s after %v", caller, failure, took, shard.Timeout, limit)
		}
	})
}

func TestAHostIsLookedUpOnceForAllVirtualUsers(t *testing.T) {
	asked := 0
	lookingUpWith(t, func(context.Context, string, string) ([]netip.Addr, error) {
		asked++
		if asked == 1 {
			return nil, errors.New("not yet")
		}
		return []netip.Addr{netip.MustParseAddr("::ffff:192.0.2.1")}, nil
	})
	defer addresses.Clear()
	deadline := time.Now().Add(time.Minute)
	if _, err := resolve(t.Context(), "once.example", deadline); err == nil {
		t.Error("a look-up that failed has an address")
	}
	for range 3 {
		if got, err := resolve(t.Context(), "once.example", deadline); err != nil || got != "192.0.2.1" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times", asked)
	}
	for range 2 {
		if got, err := lookUp(t.Context(), "once.example", deadline); err != nil || got != "192.0.2.1" {
			t.Errorf("now: %q, %v", got, err)
		}
	}
	if asked != 4 {
		t.Errorf("asked %d times: a session looks a name up for each sample", asked)
	}
}
