package ticketstore_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
	"qtls.dev/qtls/internal/ticketstore/storetest"
)

// follower notes what Follow says.
type follower struct {
	t     testing.TB
	woken chan string
	end   func()
}

func follow(t testing.TB, s *ticketstore.Store, rings ...string) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{t: t, woken: make(chan string, 100)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Follow(ctx, rings, func(ring string) { f.woken <- ring })
	}()
	f.end = func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Errorf("%v after its context, Follow has not returned", patience)
		}
	}
	t.Cleanup(f.end)
	return f
}

// patience is with what has to happen; how soon it does is not tested.
const patience = time.Minute

func (f *follower) wakes(ring, why string) {
	f.t.Helper()
	began := time.Now()
	select {
	case got := <-f.woken:
		if got != ring {
			f.t.Errorf("%s: woken for ring %s, want %s", why, got, ring)
		}
		f.t.Logf("%s: after %v", why, time.Since(began).Round(time.Millisecond))
	case <-time.After(patience):
		f.t.Fatalf("%s: not woken within %v", why, patience)
	}
}

// sleeps is for when nothing can wake it, however long it takes.
func (f *follower) sleeps(why string) {
	f.t.Helper()
	select {
	case got := <-f.woken:
		f.t.Errorf("%s: woken for ring %s", why, got)
	case <-time.After(200 * time.Millisecond):
	}
}

func TestFollowersWakeWhenARingChanges(t *testing.T) {
	t.Parallel()
	operator, agent := both(t, storetest.Start(t))
	f := follow(t, agent, ring, "other")
	got := []string{<-f.woken, <-f.woken} // when it is connected: what was before is read now
	if got[0] == got[1] {
		t.Errorf("connected, it says %v; want both rings", got)
	}
	// What is said comes in its order: no wake that there should not be is before
	// that for the other ring.
	other := func(content string) {
		t.Helper()
		if err := operator.Publish(t.Context(), "other", document(1, content)); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, operator, document(1, "one"))
	f.wakes(ring, "a new ring")
	publish(t, operator, document(1, "one"))
	other("x")
	f.wakes("other", "what is there already, and the other ring")
	publish(t, operator, document(1, "one, sealed anew"))
	f.wakes(ring, "another content")
	if err := operator.Publish(t.Context(), "not followed", document(1, "x")); err == nil {
		t.Error("a ring with blanks in its name is taken")
	}
	if err := operator.Publish(t.Context(), "not-followed", document(1, "x")); err != nil {
		t.Fatal(err)
	}
	other("y")
	f.wakes("other", "a ring that is not followed, and the other ring")
}

func TestFollowersWakeForEachMember(t *testing.T) {
	servers := storetest.StartMembers(t, 2)
	_, agent := both(t, servers...)
	f := follow(t, agent, ring)
	f.wakes(ring, "a connection")
	f.wakes(ring, "the other connection")
	for i, s := range servers {
		operator, _ := both(t, s)
		publish(t, operator, document(1, "one"))
		f.wakes(ring, fmt.Sprintf("member %d", i))
	}
	servers[0].Stop()
	operator, _ := both(t, servers[1])
	publish(t, operator, document(2, "two"))
	f.wakes(ring, "the member that is left")
}

func TestFollowersWakeWhenAServerIsBack(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	operator, agent := both(t, server)
	f := follow(t, agent, ring)
	f.wakes(ring, "a connection")
	publish(t, operator, document(1, "one"))
	f.wakes(ring, "a new ring")

	server.Restart()
	f.wakes(ring, "a server that was restarted")
	publish(t, operator, document(2, "two"))
	f.wakes(ring, "a new ring after that")
	reads(t, agent, 2, "two")

	server.Stop()
	time.Sleep(3 * time.Second) // the pauses are at their longest
	server.Restart()
	f.wakes(ring, "a server that was away for long")
}

func TestFollowersWakeWhenANetworkIsMended(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	operator := open(t, server.Connection(embedded.Operator))
	relay := server.Relay()
	f := follow(t, open(t, relay.Connection(embedded.Agent)), ring)
	f.wakes(ring, "a connection")

	relay.Hold()
	publish(t, operator, document(1, "one"))
	relay.AwaitDial() // nothing came, and no answer to a ping
	relay.Release()
	f.wakes(ring, "a network that was cut")
	publish(t, operator, document(2, "two"))
	f.wakes(ring, "a new ring after that")
}

func TestAFollowerOfAServerThatIsNotThereWaits(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	_, agent := both(t, server)
	server.Stop()
	f := follow(t, agent, ring)
	f.sleeps("nobody there")
	server.Restart()
	f.wakes(ring, "a server that came later")
	f.end()

	wrong := server.Connection(embedded.Agent)
	wrong.Password = "hunter2"
	f = follow(t, open(t, wrong), ring)
	f.sleeps("a wrong password")
	f.end()
	follow(t, agent).end() // no ring at all
}

// TestMain also looks for goroutines that any test has left: of each mode.
func TestMain(m *testing.M) {
	code := m.Run()
	var left []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if left = stacks(); len(left) == 0 {
			os.Exit(code)
		}
	}
	fmt.Printf("%d goroutines are left when everything is closed:\n%s\n", len(left), strings.Join(left, "\n\n"))
	os.Exit(1)
}

// stacks of this package's and the client's goroutines.
func stacks() []string {
	buffer := make([]byte, 1<<20)
	var found []string
	for _, s := range strings.Split(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		if strings.Contains(s, "go-redis") || strings.Contains(s, "ticketstore.(*Store)") {
			found = append(found, s)
		}
	}
	return found
}

func TestNothingIsLeftBehind(t *testing.T) {
	servers := storetest.StartMembers(t, 2)
	before := len(stacks()) // the tests' own clients
	for range 5 {
		operator, agent := both(t, servers...)
		f := follow(t, agent, ring)
		f.wakes(ring, "a connection")
		for i := range uint64(20) {
			publish(t, operator, document(i+1, fmt.Sprint(i)))
			if _, err := agent.Read(t.Context(), ring); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range servers {
			if n := s.Clients(embedded.Operator); n > 2 {
				t.Errorf("the operator has %d connections to a member", n)
			}
			if n := s.Clients(embedded.Agent); n > 3 {
				t.Errorf("an agent has %d connections to a member", n)
			}
		}
		servers[0].Restart()
		_, _ = agent.Read(t.Context(), ring)
		servers[0].Stop()
		_, _ = agent.Read(t.Context(), ring)
		servers[0].Restart()
		f.end()
		if err := operator.Close(); err != nil {
			t.Error(err)
		}
		if err := agent.Close(); err != nil {
			t.Error(err)
		}
		for _, s := range servers {
			s.FlushAll()
		}
	}
	var left []string
	clients := 0
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		clients = 0
		for _, s := range servers {
			clients += s.Clients(embedded.Operator) + s.Clients(embedded.Agent)
		}
		if left = stacks(); len(left) <= before && clients == 0 {
			return
		}
	}
	t.Errorf("%d connections, and %d goroutines more than before:\n%s", clients, len(left)-before, strings.Join(left, "\n\n"))
}
