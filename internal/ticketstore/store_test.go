package ticketstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
	"qtls.dev/qtls/internal/ticketstore/internal/limit"
	"qtls.dev/qtls/internal/ticketstore/storetest"
)

// These tests run the redis image's server, as an embedded store does.

const (
	ring = "0123abcd"
	key  = embedded.Prefix + "ring:" + ring
)

func open(t testing.TB, c ticketstore.Connection) *ticketstore.Store {
	t.Helper()
	s, err := ticketstore.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// both is a store as its two users have it.
func both(t testing.TB, members ...*storetest.Server) (operator, agent *ticketstore.Store) {
	t.Helper()
	return open(t, storetest.Connection(embedded.Operator, members...)), open(t, storetest.Connection(embedded.Agent, members...))
}

func document(epoch uint64, content string) ticketstore.Document {
	return ticketstore.Document{Content: []byte(content), Epoch: epoch, ExpiresIn: time.Minute}
}

func publish(t testing.TB, s *ticketstore.Store, d ticketstore.Document) {
	t.Helper()
	if err := s.Publish(t.Context(), ring, d); err != nil {
		t.Fatal(err)
	}
}

// reads checks what a store has.
func reads(t testing.TB, s *ticketstore.Store, epoch uint64, content string) {
	t.Helper()
	d, err := s.Read(t.Context(), ring)
	if err != nil {
		t.Fatal(err)
	}
	if d.Epoch != epoch || string(d.Content) != content {
		t.Errorf("read %q of epoch %d, want %q of %d", d.Content, d.Epoch, content, epoch)
	}
}

// is checks an error's kind, that it names the member, and that it shows no
// secret.
func is(t testing.TB, err, kind error, c ticketstore.Connection) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error %v, want one that is %q", err, kind)
	}
	named := false
	for _, a := range c.Addresses {
		named = named || strings.Contains(err.Error(), a)
	}
	if !named {
		t.Errorf("error %q names no member of %v", err, c.Addresses)
	}
	if c.Password != "" && strings.Contains(err.Error(), c.Password) {
		t.Errorf("error %q shows the password", err)
	}
	t.Logf("%v", err)
}

func TestAgentsReadWhatTheOperatorPublishes(t *testing.T) {
	operator, agent := both(t, storetest.Start(t))
	publish(t, operator, document(7, "sealed\nring"))
	reads(t, agent, 7, "sealed\nring")
	if _, err := agent.Read(t.Context(), "another"); !errors.Is(err, ticketstore.ErrNotFound) {
		t.Errorf("another ring: %v", err)
	}
	largest := strings.Repeat("x", ticketstore.MaxValue-len("8\n"))
	publish(t, operator, document(8, largest))
	reads(t, agent, 8, largest)
}

func TestARingsIDIsChecked(t *testing.T) {
	operator, agent := both(t, storetest.Start(t))
	for _, id := range []string{"", "a b", "a\r\nDEL x", "a:b", strings.Repeat("a", 129)} {
		if _, err := agent.Read(t.Context(), id); err == nil || !strings.Contains(err.Error(), "ring ") {
			t.Errorf("read of %q: %v", id, err)
		}
		if err := operator.Publish(t.Context(), id, document(1, "x")); err == nil {
			t.Errorf("publication of %q is accepted", id)
		}
	}
}

func TestARingExpires(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	operator, agent := both(t, server)
	d := document(1, "x")
	d.ExpiresIn = 100 * time.Millisecond
	publish(t, operator, d)
	eventually(t, "the ring is gone", func() error {
		if _, err := agent.Read(t.Context(), ring); !errors.Is(err, ticketstore.ErrNotFound) {
			return fmt.Errorf("a read gives %w", err)
		}
		return nil
	})

	d.ExpiresIn = 10 * time.Minute
	publish(t, operator, d)
	if read, err := agent.Read(t.Context(), ring); err != nil || read.ExpiresIn <= 0 || read.ExpiresIn > d.ExpiresIn {
		t.Errorf("published for %v, it expires in %v (%v)", d.ExpiresIn, read.ExpiresIn, err)
	}
	d.ExpiresIn = time.Hour
	publish(t, operator, d)
	if read, err := agent.Read(t.Context(), ring); err != nil || read.ExpiresIn < 30*time.Minute {
		t.Errorf("refreshed for an hour, it expires in %v (%v)", read.ExpiresIn, err)
	}
}

func TestARingEndsHereNoLaterThanThereAlsoWhenTheAnswerIsSlow(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	relay := server.Relay()
	agent := open(t, relay.Connection(embedded.Agent))
	d := document(1, "x")
	publish(t, open(t, server.Connection(embedded.Operator)), d)
	reads(t, agent, 1, "x") // it is connected

	relay.Hold()
	type result struct {
		ticketstore.Document
		err error
	}
	answer := make(chan result)
	go func() {
		read, err := agent.Read(t.Context(), ring)
		answer <- result{read, err}
	}()
	relay.AwaitAnswer()
	const slow = 300 * time.Millisecond
	time.Sleep(slow)
	relay.Release()
	if read := <-answer; read.err != nil || read.ExpiresIn <= 0 || read.ExpiresIn > d.ExpiresIn-slow {
		t.Errorf("of %v, with an answer that took %v: %v (%v)", d.ExpiresIn, slow, read.ExpiresIn, read.err)
	}
}

func TestANewerRingIsNeverOverwritten(t *testing.T) {
	server := storetest.Start(t)
	operator, agent := both(t, server)
	publish(t, operator, document(5, "five"))
	err := operator.Publish(t.Context(), ring, document(4, "four"))
	is(t, err, ticketstore.ErrNewer, server.Connection(embedded.Operator))
	var newer *ticketstore.NewerError
	if !errors.As(err, &newer) || newer.Stored.Epoch != 5 || string(newer.Stored.Content) != "five" {
		t.Errorf("error %v does not carry what is stored", err)
	}
	reads(t, agent, 5, "five")
	publish(t, operator, document(5, "five, sealed anew"))
	reads(t, agent, 5, "five, sealed anew")
}

// Two operators that both hold themselves for the leader, 1000 publications:
// what the server says on the channel, in the order in which it was stored.
func TestEpochsNeverGoBackUnderARace(t *testing.T) {
	server := storetest.Start(t)
	told := server.Admin().Subscribe(t.Context(), key)
	defer told.Close()
	if _, err := told.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	messages := told.Channel(redis.WithChannelSize(2000), redis.WithChannelHealthCheckInterval(0))

	const each = 500
	var refused atomic.Int64
	var writers sync.WaitGroup
	for w := range uint64(2) {
		operator, _ := both(t, server)
		writers.Go(func() {
			for i := range uint64(each) {
				switch err := operator.Publish(t.Context(), ring, document(2*i+w+1, fmt.Sprint(w, i))); {
				case errors.Is(err, ticketstore.ErrNewer):
					refused.Add(1)
				case err != nil:
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	publish(t, open(t, server.Connection(embedded.Operator)), document(2*each+1, "the end"))

	stored, last := 0, 0
	for last != 2*each+1 {
		select {
		case m := <-messages:
			var epoch int
			if _, err := fmt.Sscan(m.Payload, &epoch); err != nil {
				t.Fatal(err)
			}
			if epoch < last {
				t.Errorf("epoch %d was stored after %d", epoch, last)
			}
			stored, last = stored+1, epoch
		case <-time.After(patience):
			t.Fatalf("after %d messages nothing more, and the last is of epoch %d", stored, last)
		}
	}
	t.Logf("%d stored, %d refused as older", stored, refused.Load())
	if stored+int(refused.Load()) != 2*each+1 {
		t.Errorf("%d stored and %d refused, of %d", stored, refused.Load(), 2*each+1)
	}
	if refused.Load() == 0 {
		t.Error("the writers did not race")
	}
}

func TestTheNewestOfTheMembersIsRead(t *testing.T) {
	servers := storetest.StartMembers(t, 2)
	operator, agent := both(t, servers...)
	first, second := open(t, servers[0].Connection(embedded.Operator)), open(t, servers[1].Connection(embedded.Operator))
	publish(t, operator, document(1, "one"))
	for _, s := range servers {
		_, a := both(t, s)
		reads(t, a, 1, "one")
	}

	publish(t, second, document(2, "two"))
	reads(t, agent, 2, "two")
	publish(t, first, document(3, "three"))
	reads(t, agent, 3, "three")

	// The one that is behind catches up; of the one that is ahead it is said.
	err := operator.Publish(t.Context(), ring, document(2, "two again"))
	is(t, err, ticketstore.ErrNewer, servers[0].Connection(embedded.Operator))
	reads(t, second, 2, "two again")
	reads(t, agent, 3, "three")
	publish(t, operator, document(3, "three"))
	reads(t, second, 3, "three")

	// Of one epoch, the one that was written last: it is sealed under the key
	// that stays.
	later := document(3, "three, sealed anew")
	later.ExpiresIn = time.Hour
	publish(t, second, later)
	reads(t, agent, 3, "three, sealed anew")
}

func TestAMemberMayBeAway(t *testing.T) {
	servers := storetest.StartMembers(t, 2)
	operator, agent := both(t, servers...)
	connection := storetest.Connection(embedded.Operator, servers...)
	publish(t, operator, document(1, "one"))

	servers[0].Stop()
	reads(t, agent, 1, "one")
	err := operator.Publish(t.Context(), ring, document(2, "two"))
	is(t, err, ticketstore.ErrUnreachable, servers[0].Connection(embedded.Operator))
	if strings.Contains(err.Error(), servers[1].Address()) {
		t.Errorf("error %v names the member that is there", err)
	}
	reads(t, agent, 2, "two")

	// Back it is empty, until it is written to.
	servers[0].Restart()
	_, lonely := both(t, servers[0])
	if _, err := lonely.Read(t.Context(), ring); !errors.Is(err, ticketstore.ErrNotFound) || ticketstore.Unanswered(err) != nil {
		t.Errorf("a member that was restarted: %v", err)
	}
	reads(t, agent, 2, "two")
	publish(t, operator, document(2, "two"))
	reads(t, lonely, 2, "two")

	servers[0].Stop()
	servers[1].Stop()
	_, err = agent.Read(t.Context(), ring)
	is(t, err, ticketstore.ErrUnreachable, connection)
	for _, s := range servers {
		if !strings.Contains(err.Error(), s.Address()) {
			t.Errorf("error %v does not name %s", err, s.Address())
		}
	}
	if errors.Is(err, ticketstore.ErrNotFound) {
		t.Errorf("error %v says that there is no ring, which nobody knows", err)
	}

	// One that is there and empty, and one that is away.
	servers[1].Restart()
	_, err = agent.Read(t.Context(), ring)
	is(t, err, ticketstore.ErrUnreachable, connection)
	is(t, err, ticketstore.ErrNotFound, connection)
	if left := ticketstore.Unanswered(err); !errors.Is(left, ticketstore.ErrUnreachable) || errors.Is(left, ticketstore.ErrNotFound) {
		t.Errorf("of %v, this is of members that did not answer: %v", err, left)
	}

	// And it is found at once when it is back: nothing is remembered.
	servers[0].Restart()
	publish(t, operator, document(3, "three"))
	reads(t, agent, 3, "three")
}

func TestACutNetworkIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	servers := storetest.StartMembers(t, 2)
	operator, agent := both(t, servers...)
	publish(t, operator, document(1, "one"))
	reads(t, agent, 1, "one")
	inTime := func(what string, began time.Time) {
		if took := time.Since(began); took > patience {
			t.Errorf("%s took %v", what, took)
		}
	}

	servers[0].Cut()
	began := time.Now()
	reads(t, agent, 1, "one")
	inTime("a read", began)
	began = time.Now()
	err := operator.Publish(t.Context(), ring, document(2, "two"))
	inTime("a publication", began)
	is(t, err, ticketstore.ErrUnreachable, servers[0].Connection(embedded.Operator))
	reads(t, agent, 2, "two")

	servers[0].Mend()
	publish(t, operator, document(3, "three"))
	_, lonely := both(t, servers[0])
	reads(t, lonely, 3, "three")

	// A context that ends sooner is obeyed. Some try has to show it: a read by
	// itself takes longer, and a busy machine may take longer too, but not always.
	servers[0].Cut()
	defer servers[0].Mend()
	for try := 1; ; try++ {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		began := time.Now()
		_, err := lonely.Read(ctx, ring)
		took := time.Since(began)
		cancel()
		if err == nil {
			t.Fatal("a server that does not answer was read from")
		}
		if took < limit.Command {
			break
		}
		if try == 20 {
			t.Fatalf("of %d reads each outlasted its context, the last by %v", try, took)
		}
	}
}

func TestMalformedValuesAreRefusedAndOverwritten(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t, storetest.Config("maxmemory 0"))
	operator, agent := both(t, server)
	connection := server.Connection(embedded.Agent)
	for name, value := range map[string]string{
		"empty":                "",
		"no epoch":             "secret content",
		"an epoch alone":       "12",
		"no content":           "12\n",
		"epoch 0":              "0\nsecret content",
		"a negative epoch":     "-1\nsecret content",
		"epoch 007":            "007\nsecret content",
		"an epoch too large":   "18446744073709551616\nsecret content",
		"longer than a ring":   "1\n" + strings.Repeat("secret content", 2000),
		"a hundred megabytes":  "1\n" + strings.Repeat("x", 100<<20),
		"no text":              "\xff\x00\nsecret content",
		"a cut off number, \\": "\\",
	} {
		t.Run(name, func(t *testing.T) {
			server.Do("SET", key, value, "PX", 60000)
			_, err := agent.Read(t.Context(), ring)
			is(t, err, ticketstore.ErrMalformed, connection)
			if !strings.Contains(err.Error(), key) || strings.Contains(err.Error(), "secret content") {
				t.Errorf("error %q; want one that names the key, and does not show what is there", err)
			}
			publish(t, operator, document(1, "one"))
			reads(t, agent, 1, "one")
			server.FlushAll()
		})
	}
	t.Run("a list", func(t *testing.T) {
		server.Do("RPUSH", key, "x")
		server.Do("PEXPIRE", key, 60000)
		_, err := agent.Read(t.Context(), ring)
		is(t, err, ticketstore.ErrMalformed, connection)
		publish(t, operator, document(1, "one"))
		reads(t, agent, 1, "one")
	})
	t.Run("for ever", func(t *testing.T) {
		server.Do("SET", key, "1\nx")
		_, err := agent.Read(t.Context(), ring)
		is(t, err, ticketstore.ErrMalformed, connection)
		publish(t, operator, document(1, "one"))
		reads(t, agent, 1, "one")
	})
}

func TestAMalformedMemberDoesNotHideAnother(t *testing.T) {
	servers := storetest.StartMembers(t, 2)
	operator, agent := both(t, servers...)
	publish(t, operator, document(1, "one"))
	servers[0].Do("SET", key, "nonsense", "PX", 60000)
	reads(t, agent, 1, "one")
}

func TestAServerWithoutRoomSaysSo(t *testing.T) {
	server := storetest.Start(t)
	operator, _ := both(t, server)
	server.Do("CONFIG", "SET", "maxmemory", "1")
	err := operator.Publish(t.Context(), ring, document(1, "one"))
	is(t, err, ticketstore.ErrRefused, server.Connection(embedded.Operator))
	if !strings.Contains(err.Error(), "OOM") {
		t.Errorf("error %v does not hand on what the server says", err)
	}
}
