package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/tickets"
	"qtls.dev/qtls/internal/ticketstore"
)

// storedName is what the test's ring is called in the store.
const storedName = testRing + ".one"

// fakeStore is one whose answers a test sets.
type fakeStore struct {
	mu     sync.Mutex
	err    error
	reads  int
	closed bool
	wake   func(string)
}

func (s *fakeStore) Read(_ context.Context, name string) (ticketstore.Document, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name != storedName {
		return ticketstore.Document{}, ticketstore.ErrNotFound
	}
	s.reads++
	return ticketstore.Document{ExpiresIn: time.Hour}, s.err
}

func (s *fakeStore) Follow(ctx context.Context, _ []string, wake func(string)) {
	s.mu.Lock()
	s.wake = wake
	s.mu.Unlock()
	<-ctx.Done()
}

func (s *fakeStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// did is the number of readings since it was last asked.
func (s *fakeStore) did() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.reads
	s.reads = 0
	return n
}

func (s *fakeStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func TestRingsAreReadAtOnceOnNewsAndFromTimeToTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store := &fakeStore{}
		var last reading
		go followRings(ctx, store, []string{testRing}, map[string]string{testRing: storedName}, func() time.Duration { return 100 * time.Hour }, func(r reading) { last = r })
		synctest.Wait()
		if n := store.did(); n != 1 {
			t.Errorf("%d readings at the start", n)
		}
		if last.ring != testRing || last.err != nil || last.until != 101*time.Hour {
			t.Errorf("read: %+v", last)
		}
		time.Sleep(time.Second)
		store.wake(testRing)
		store.wake(testRing)
		synctest.Wait()
		if n := store.did(); n < 1 || n > 2 {
			t.Errorf("%d readings on news", n)
		}
		time.Sleep(10 * ringPoll)
		synctest.Wait()
		if n := store.did(); n < 8 || n > 13 {
			t.Errorf("%d readings in %s", n, 10*ringPoll)
		}
		// What fails is tried again soon, then less and less often.
		store.fail(ticketstore.ErrUnreachable)
		store.wake(testRing)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := store.did(); n < 3 || n > 6 {
			t.Errorf("%d readings in 2 s that fail", n)
		}
		time.Sleep(10 * ringPoll)
		synctest.Wait()
		if n := store.did(); n < 8 || n > 18 {
			t.Errorf("%d readings in %s that fail", n, 10*ringPoll)
		}
		cancel()
		synctest.Wait()
		if !store.closed {
			t.Error("the store is left open")
		}
	})
}

const password = "the store's password"

// ringAgent is an agent that needs one ring, whose Secret it has read.
func ringAgent(t *testing.T) (a *agentAtRest, name string, k tickets.WrappingKey) {
	t.Helper()
	name, k = tickets.NewWrappingKey()
	a = &agentAtRest{t: t, Agent: New(Options{Gateway: "web", Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics()})}
	a.clock = func() time.Duration { return 100 * time.Hour }
	a.rings[testRing] = seenRing{}
	a.published = &published{Revision: dataplane.Revision{Tickets: &dataplane.Tickets{Ring: testRing, RotationSeconds: 3600}}}
	a.secret(dataplane.TicketAccess{
		Store: &ticketstore.Connection{Mode: ticketstore.Members, Addresses: []string{"redis:6379"}, Password: password, Prefix: "q:"},
		Rings: map[string]dataplane.RingAccess{testRing: {WrappingKeys: tickets.WrappingKeys{name: k}}},
	})
	return a, name, k
}

type agentAtRest struct {
	t *testing.T
	*Agent
}

func (a *agentAtRest) secret(access dataplane.TicketAccess) {
	a.t.Helper()
	a.ticketAccess(ticketsSecret(a.t, access), nil)
	if a.accessProblem != "" {
		a.t.Fatal(a.accessProblem)
	}
}

func ticketsSecret(t testing.TB, access dataplane.TicketAccess) *corev1.Secret {
	t.Helper()
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: dataplane.TicketsSecretName("web"), UID: "1"},
		Data: map[string][]byte{dataplane.KeyTickets: []byte(encode(t, access))}}
}

func (a *agentAtRest) reads(content []byte) {
	a.ringRead(reading{ring: testRing, document: ticketstore.Document{Content: content}, until: 101 * time.Hour})
}

func TestARingIsTakenIn(t *testing.T) {
	a, name, k := ringAgent(t)
	a.reads(tickets.Seal(epoch6, testRing, name, k))
	if seen := a.rings[testRing]; seen.Ring != epoch6 || seen.until != 101*time.Hour || seen.problem != "" {
		t.Fatalf("epoch %d until %s, problem %q", seen.Epoch, seen.until, seen.problem)
	}
	otherName, other := tickets.NewWrappingKey()
	for what, content := range map[string][]byte{
		"damaged":                  tickets.Seal(epoch9, testRing, name, k)[:200],
		"older than":               tickets.Seal(epoch5, testRing, name, k),
		"not known here":           tickets.Seal(epoch9, testRing, otherName, other),
		"damaged, or another ring": tickets.Seal(epoch9, otherRing, name, k),
	} {
		a.reads(content)
		seen := a.rings[testRing]
		if seen.Ring != epoch6 || !strings.Contains(seen.problem, what) || !strings.Contains(seen.problem, testRing) || !strings.Contains(seen.problem, "the operator writes") {
			t.Errorf("%s: epoch %d, problem %q", what, seen.Epoch, seen.problem)
		}
	}
	// The key comes with the Secret, the ring from then on with the store.
	a.secret(dataplane.TicketAccess{Rings: map[string]dataplane.RingAccess{testRing: {WrappingKeys: tickets.WrappingKeys{otherName: other}}}})
	a.reads(tickets.Seal(epoch9, testRing, otherName, other))
	if seen := a.rings[testRing]; seen.Ring != epoch9 || seen.problem != "" {
		t.Errorf("epoch %d, problem %q", seen.Epoch, seen.problem)
	}
}

// Whatever a store says that others than the operator write to.
func TestARingIsNotUsedForeverNorGoesBack(t *testing.T) {
	a, name, k := ringAgent(t)
	six := tickets.Seal(epoch6, testRing, name, k)
	read := func(at time.Duration, content []byte) seenRing {
		a.clock = func() time.Duration { return at }
		a.ringRead(reading{ring: testRing, document: ticketstore.Document{Content: content}, until: 1000 * time.Hour})
		return a.rings[testRing]
	}
	const longest = 3 * time.Hour
	for _, at := range []time.Duration{100 * time.Hour, 101 * time.Hour, 104 * time.Hour} {
		if seen := read(at, six); seen.Ring != epoch6 || seen.until != 100*time.Hour+longest {
			t.Errorf("at %s: epoch %d until %s", at, seen.Epoch, seen.until)
		}
	}
	if seen := read(105*time.Hour, tickets.Seal(epoch5, testRing, name, k)); seen.Ring != epoch6 || !strings.Contains(seen.problem, "older than") {
		t.Errorf("went back to epoch %d: %s", seen.Epoch, seen.problem)
	}
	if seen := read(106*time.Hour, tickets.Seal(epoch9, testRing, name, k)); seen.Ring != epoch9 || seen.until != 106*time.Hour+longest {
		t.Errorf("the next: epoch %d until %s", seen.Epoch, seen.until)
	}
}

func TestASharedRingIsUsedForAsLongAsTheOthersSay(t *testing.T) {
	a, name, k := ringAgent(t)
	a.secret(dataplane.TicketAccess{Rings: map[string]dataplane.RingAccess{testRing: {WrappingKeys: tickets.WrappingKeys{name: k}, RotationSeconds: 24 * 3600}}})
	a.ringRead(reading{ring: testRing, document: ticketstore.Document{Content: tickets.Seal(epoch6, testRing, name, k)}, until: 1000 * time.Hour})
	if seen := a.rings[testRing]; seen.until != 100*time.Hour+3*24*time.Hour {
		t.Errorf("until %s", seen.until)
	}
}

func TestDroppedRingsAreNotTakenIn(t *testing.T) {
	a, name, k := ringAgent(t)
	a.secret(dataplane.TicketAccess{Rings: map[string]dataplane.RingAccess{testRing: {WrappingKeys: tickets.WrappingKeys{name: k}, LeastEpoch: 9}}})
	a.reads(tickets.Seal(epoch6, testRing, name, k))
	if seen := a.rings[testRing]; seen.Epoch != 0 || !strings.Contains(seen.problem, "dropped") {
		t.Errorf("epoch %d, problem %q", seen.Epoch, seen.problem)
	}
}

func TestAProblemWithTheStoreIsToldOnceAndWithItsRemedy(t *testing.T) {
	for kind, remedy := range map[error]string{
		ticketstore.ErrUnreachable: "this pod may connect", ticketstore.ErrCertificate: "certificate", ticketstore.ErrTLS: "TLS 1.3",
		ticketstore.ErrCredentials: "correct the user name", ticketstore.ErrPermission: "under the prefix", ticketstore.ErrNotFound: "the operator writes it",
		ticketstore.ErrMalformed: "who else writes",
	} {
		a, _, _ := ringAgent(t)
		fail := func(port int) string {
			a.ringRead(reading{ring: testRing, err: errors.Join(
				&ticketstore.MemberError{Member: "redis:6379", Kind: kind, Err: fmt.Errorf("read from port %d", port)}, errors.New("another"))})
			return a.rings[testRing].problem
		}
		first := fail(40001)
		if !strings.Contains(first, "redis:6379") || !strings.Contains(first, remedy) || strings.Contains(first, "\n") || strings.Contains(first, password) {
			t.Errorf("%v: %s", kind, first)
		}
		if again := fail(40002); again != first {
			t.Errorf("told anew: %s, after %s", again, first)
		}
	}
}

func TestATicketsSecretThatCannotBeUsed(t *testing.T) {
	a, _, _ := ringAgent(t)
	known := a.access
	bad := func(content string) *corev1.Secret {
		s := ticketsSecret(t, dataplane.TicketAccess{})
		s.Data[dataplane.KeyTickets] = []byte(content)
		return s
	}
	for name, c := range map[string]struct {
		secret *corev1.Secret
		err    error
		want   string
	}{
		"gone":          {nil, nil, "does not exist"},
		"forbidden":     {nil, errors.New("the agent's Role does not allow it yet"), "Role"},
		"no JSON":       {bad(`{"store":{"password":"` + password), nil, "has no readable tickets.json"},
		"another type":  {bad(`{"store":"` + password + `"}`), nil, "has no readable tickets.json"},
		"without a key": {&corev1.Secret{}, nil, "has no readable tickets.json"},
	} {
		a.ticketAccess(c.secret, c.err)
		if !strings.Contains(a.accessProblem, `Secret "web-tickets"`) || !strings.Contains(a.accessProblem, c.want) || strings.Contains(a.accessProblem, password) {
			t.Errorf("%s: %s", name, a.accessProblem)
		}
		if a.access != known {
			t.Errorf("%s: what is known is forgotten", name)
		}
	}
	a.secret(*known)
	if a.access != known {
		t.Error("the same content is news: the store is left and opened again")
	}
}

// FuzzTicketAccess holds the reading of the Secret and of the store to a
// problem that tells nothing, or to a ring that was sealed.
func FuzzTicketAccess(f *testing.F) {
	name, k := tickets.NewWrappingKey()
	sealed := tickets.Seal(epoch6, testRing, name, k)
	f.Add([]byte(encode(f, dataplane.TicketAccess{Store: &ticketstore.Connection{}, Rings: map[string]dataplane.RingAccess{testRing: {WrappingKeys: tickets.WrappingKeys{name: k}}}})), sealed)
	f.Add([]byte(`{"rings":null}`), []byte(`{}`))
	f.Add([]byte(`null`), sealed[:100])
	metrics := NewMetrics()
	f.Fuzz(func(t *testing.T, secret, document []byte) {
		a := New(Options{Gateway: "web", Log: slog.New(slog.DiscardHandler), Metrics: metrics})
		a.rings[testRing] = seenRing{}
		a.ticketAccess(&corev1.Secret{Data: map[string][]byte{dataplane.KeyTickets: secret}}, nil)
		if a.access == nil {
			if a.accessProblem == "" {
				t.Error("no access, and no problem")
			}
			return
		}
		a.ringRead(reading{ring: testRing, document: ticketstore.Document{Content: document}, until: time.Hour})
		if seen := a.rings[testRing]; (seen.Ring != tickets.Ring{}) == (seen.problem != "") {
			t.Errorf("epoch %d, problem %q", seen.Epoch, seen.problem)
		}
	})
}
