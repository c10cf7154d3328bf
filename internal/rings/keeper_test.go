package rings

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/internal/tickets"
	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
	"qtls.dev/qtls/internal/ticketstore/storetest"
)

const (
	web    = "web"
	ringID = "5f0c9b6f3c1d4e7a8b2d6e9f0a1b2c3d"
)

// world is an operator's side of things: the API server's Secrets, real
// stores, and a clock.
type world struct {
	t     *testing.T
	api   client.WithWatch
	clock *clocktesting.FakePassiveClock
}

func newWorld(t *testing.T) *world {
	return &world{t: t, api: fake.NewClientBuilder().Build(), clock: clocktesting.NewFakePassiveClock(start)}
}

// operator starts one; stop is its end.
func (w *world) operator() (k *Keeper, stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(cancel)
	return New(ctx, w.api, w.api, w.clock, func(types.NamespacedName) {}), cancel
}

func init() { ctrl.SetLogger(logr.Discard()) }

func name(gateway string) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: gateway}
}

func wanted(servers ...*storetest.Server) *Wanted {
	w := &Wanted{Rings: []string{ringID}, Rotation: period,
		Owner: metav1.OwnerReference{APIVersion: "qtls.dev/v1alpha1", Kind: "QTLSGateway", Name: web, UID: "1"}}
	if len(servers) > 0 {
		c := storetest.Connection(embedded.Operator, servers...)
		w.Store = &c
	}
	return w
}

// agent reads a ring from a store as the gateway's agents do.
func agent(t *testing.T, k *Keeper, gateway string, servers ...*storetest.Server) (tickets.Ring, error) {
	t.Helper()
	store, err := ticketstore.Open(storetest.Connection(embedded.Agent, servers...))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	access, ok := k.State(name(gateway)).Access[ringID]
	if !ok {
		return tickets.Ring{}, errors.New("the agents may not open the ring yet")
	}
	d, err := store.Read(t.Context(), access.Stored)
	if err != nil {
		return tickets.Ring{}, err
	}
	if d.ExpiresIn > lives*period {
		t.Errorf("the ring is to end after %v", d.ExpiresIn)
	}
	return tickets.Open(d.Content, ringID, access.WrappingKeys, access.LeastEpoch)
}

// patience is with what has to happen; how soon it does is not tested.
const patience = 2 * time.Minute

// await fails the test when it does not become true.
func await(t *testing.T, what string, good func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !good(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so within %v", what, patience)
		}
	}
}

// eventually the agents read a ring that is as wanted.
func eventually(t *testing.T, k *Keeper, what string, good func(tickets.Ring) bool, servers ...*storetest.Server) tickets.Ring {
	t.Helper()
	var last string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		r, err := agent(t, k, web, servers...)
		if err == nil && good(r) {
			return r
		}
		last = fmt.Sprintf("epoch %d, %v; state %+v", r.Epoch, err, k.State(name(web)))
	}
	t.Fatalf("%s does not come; at last: %s", what, last)
	return tickets.Ring{}
}

func anyRing(tickets.Ring) bool { return true }

func (w *world) pass(d time.Duration) { w.clock.SetTime(w.clock.Now().Add(d)) }

func TestAgentsGetARingAndItsRotations(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	k, _ := w.operator()
	k.Want(name(web), wanted(server))
	r := eventually(t, k, "a ring", anyRing, server)
	for range 3 {
		w.pass(period)
		k.rings[ringKey{"shop", ringID}].nudge()
		before := r
		r = eventually(t, k, "the next", func(r tickets.Ring) bool { return r.Epoch > before.Epoch }, server)
		if r.Keys[0] != before.Keys[1] || r.Keys[1] != before.Keys[2] {
			t.Error("a rotation does not keep what encrypts and what comes next")
		}
	}
	await(t, "the state says so", func() bool {
		s := k.State(name(web))
		return s.Err == nil && s.Epochs[ringID] == r.Epoch
	})
	secret := &corev1.Secret{}
	if err := w.api.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: SecretName(ringID)}, secret); err != nil {
		t.Fatal(err)
	}
	for _, key := range r.Keys {
		if strings.Contains(string(secret.Data[recordKey]), key.Base64()[:20]) {
			t.Error("the Secret holds a key of the ring")
		}
	}
	if len(secret.OwnerReferences) != 1 {
		t.Errorf("owners: %v", secret.OwnerReferences)
	}
}

func TestANewOperatorGoesOnWithTheRing(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	first, stop := w.operator()
	first.Want(name(web), wanted(server))
	r := eventually(t, first, "a ring", anyRing, server)
	stop()
	second, _ := w.operator()
	second.Want(name(web), wanted(server))
	if again := eventually(t, second, "the ring", anyRing, server); again != r {
		t.Error("the new operator has another ring")
	}
	w.pass(period)
	second.rings[ringKey{"shop", ringID}].nudge()
	eventually(t, second, "its next", func(n tickets.Ring) bool { return n.Epoch == r.Epoch+1 && n.Keys[1] == r.Keys[2] }, server)
}

func TestAnEmptyStoreGetsTheRingBack(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	k, _ := w.operator()
	k.Want(name(web), wanted(server))
	r := eventually(t, k, "a ring", anyRing, server)
	server.Restart()
	if again := eventually(t, k, "the ring", anyRing, server); again != r {
		t.Error("after the store was restarted it has another ring")
	}
}

func TestWhenStoreAndOperatorAreGoneTheRingIsNew(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	first, stop := w.operator()
	first.Want(name(web), wanted(server))
	r := eventually(t, first, "a ring", anyRing, server)
	stop()
	server.Restart()
	second, _ := w.operator()
	second.Want(name(web), wanted(server))
	if n := eventually(t, second, "another ring", anyRing, server); n.Epoch <= r.Epoch || n.Keys == r.Keys {
		t.Errorf("epoch %d after %d", n.Epoch, r.Epoch)
	}
}

func TestAStoreThatIsAwayIsNotEmpty(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	first, stop := w.operator()
	first.Want(name(web), wanted(server))
	r := eventually(t, first, "a ring", anyRing, server)
	stop()
	server.Cut()
	second, _ := w.operator()
	second.Want(name(web), wanted(server))
	await(t, "the operator says that it is away", func() bool { return errors.Is(second.State(name(web)).Err, ticketstore.ErrUnreachable) })
	server.Mend()
	if again := eventually(t, second, "the ring", anyRing, server); again != r {
		t.Error("an operator that could not read the ring made another")
	}
}

func TestDroppingTicketsNeedsNoStore(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	k, _ := w.operator()
	k.Want(name(web), wanted(server))
	r := eventually(t, k, "a ring", anyRing, server)
	server.Stop()
	drop := wanted(server)
	drop.Drop = "a key leaked"
	k.Want(name(web), drop)
	await(t, "agents may no longer use it", func() bool { return k.State(name(web)).Access[ringID].LeastEpoch > r.Epoch })
	server.Restart()
	n := eventually(t, k, "a new ring", anyRing, server)
	for _, key := range n.Keys {
		for _, old := range r.Keys {
			if key == old {
				t.Error("a key was kept")
			}
		}
	}
	time.Sleep(time.Second)
	if again := eventually(t, k, "the ring", anyRing, server); again != n {
		t.Error("they were dropped twice")
	}
}

// Of two operators that both believe to be the one, each number belongs to one
// alone, and no store ever goes back.
func TestTwoOperatorsNeverShareANumber(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	given := map[uint64]bool{}
	one, _ := w.operator()
	two, _ := w.operator()
	one.Want(name(web), wanted(server))
	r := eventually(t, one, "a ring", anyRing, server)
	two.Want(name(web), wanted(server))
	for range 20 {
		given[r.Epoch] = true
		w.pass(period)
		for _, k := range []*Keeper{one, two} {
			k.rings[ringKey{"shop", ringID}].nudge()
		}
		next := eventually(t, one, "the next", func(n tickets.Ring) bool { return n.Epoch > r.Epoch }, server)
		if given[next.Epoch] {
			t.Errorf("epoch %d twice", next.Epoch)
		}
		r = next
	}
	await(t, "in the end both have the same", func() bool {
		a, b := one.State(name(web)), two.State(name(web))
		return a.Err == nil && b.Err == nil && a.Epochs[ringID] == b.Epochs[ringID] && a.Epochs[ringID] > 0
	})
}

func TestADeletedSecretMakesANewRing(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	k, stop := w.operator()
	k.Want(name(web), wanted(server))
	r := eventually(t, k, "a ring", anyRing, server)
	if err := w.api.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: SecretName(ringID)}}); err != nil {
		t.Fatal(err)
	}
	w.pass(period)
	k.rings[ringKey{"shop", ringID}].nudge()
	n := eventually(t, k, "a new ring", func(n tickets.Ring) bool { return n.Epoch > r.Epoch }, server)
	stop()
	// Also with an operator that never saw the record.
	if err := w.api.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: SecretName(ringID)}}); err != nil {
		t.Fatal(err)
	}
	w.pass(10 * time.Second)
	other, _ := w.operator()
	other.Want(name(web), wanted(server))
	eventually(t, other, "one with a higher number", func(o tickets.Ring) bool { return o.Epoch > n.Epoch }, server)
}

// Two clusters may use one store, by accident too: their rings have nothing to
// do with each other.
func TestTwoClustersShareAStore(t *testing.T) {
	server := storetest.Start(t)
	var keepers []*Keeper
	var first []tickets.Ring
	for range 2 {
		k, _ := newWorld(t).operator()
		k.Want(name(web), wanted(server))
		keepers, first = append(keepers, k), append(first, eventually(t, k, "a ring", anyRing, server))
	}
	time.Sleep(2 * refresh)
	for i, k := range keepers {
		if again := eventually(t, k, "the ring", anyRing, server); again != first[i] {
			t.Errorf("cluster %d has epoch %d after %d", i, again.Epoch, first[i].Epoch)
		}
		await(t, "nothing is wrong with it", func() bool { return k.State(name(web)).Err == nil })
	}
	if first[0].Keys == first[1].Keys {
		t.Error("both have the same keys")
	}
}

func TestASecretOfSomebodyElsesIsLeftAlone(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: SecretName(ringID)}, Data: map[string][]byte{"a": []byte("b")}}
	if err := w.api.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	k, _ := w.operator()
	k.Want(name(web), wanted(server))
	await(t, "something is wrong", func() bool { return k.State(name(web)).Err != nil })
	if err := k.State(name(web)).Err; !strings.Contains(err.Error(), `Secret "ticket-ring.`+ringID+`" exists in namespace "shop" and is not the operator's`) {
		t.Errorf("%v", err)
	}
}

// What differs from one try to the next is no news: each would have a status
// written.
func TestTheSameTroubleIsToldOnce(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	var k *Keeper
	var stopped atomic.Bool
	var told atomic.Int32
	k = New(t.Context(), w.api, w.api, w.clock, func(types.NamespacedName) {
		if stopped.Load() && k.State(name(web)).Err != nil {
			told.Add(1)
		}
	})
	k.Want(name(web), wanted(server))
	eventually(t, k, "a ring", anyRing, server)
	await(t, "nothing is wrong with it", func() bool { s := k.State(name(web)); return s.Err == nil && s.Epochs[ringID] > 0 })
	stopped.Store(true)
	server.Stop()
	await(t, "it is told", func() bool { return told.Load() > 0 })
	time.Sleep(2 * retryMost)
	if n := told.Load(); n != 1 || k.State(name(web)).Err == nil {
		t.Errorf("told %d times: %v", n, k.State(name(web)).Err)
	}
	a := &ticketstore.MemberError{Member: "a:1", Kind: ticketstore.ErrUnreachable, Err: errors.New("port 1")}
	b := &ticketstore.MemberError{Member: "a:1", Kind: ticketstore.ErrUnreachable, Err: errors.New("port 2")}
	c := &ticketstore.MemberError{Member: "a:1", Kind: ticketstore.ErrCredentials}
	if trouble(errors.Join(a, c)) != trouble(errors.Join(b, c)) || trouble(a) == trouble(c) || trouble(a) == trouble(errors.Join(a, c)) || trouble(nil) != "" {
		t.Errorf("%q, %q, %q", trouble(a), trouble(c), trouble(errors.Join(a, c)))
	}
}

// Gateways that share a ring have it in each one's store, and a store that is
// away is the trouble of its own gateway alone.
func TestASharedRingIsInEveryStore(t *testing.T) {
	here, there := storetest.Start(t), storetest.Start(t)
	w := newWorld(t)
	k, _ := w.operator()
	k.Want(name(web), wanted(here))
	k.Want(name("blue"), wanted(there))
	r := eventually(t, k, "a ring", anyRing, here)
	await(t, "the other store has it too", func() bool {
		other, err := agent(t, k, "blue", there)
		return err == nil && other == r
	})
	there.Stop()
	w.pass(period)
	k.rings[ringKey{"shop", ringID}].nudge()
	eventually(t, k, "the next", func(n tickets.Ring) bool { return n.Epoch > r.Epoch }, here)
	await(t, "it is the trouble of one alone", func() bool {
		return k.State(name(web)).Err == nil && errors.Is(k.State(name("blue")).Err, ticketstore.ErrUnreachable)
	})
	k.Want(name(web), nil)
	k.Want(name("blue"), nil)
	if len(k.rings) != 0 || len(k.gateways) != 0 {
		t.Errorf("%d rings and %d gateways are left", len(k.rings), len(k.gateways))
	}
}

func TestAnAPIServerThatIsAwayChangesNothing(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	var away atomic.Bool
	w.api = interceptor.NewClient(w.api, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if away.Load() {
				return errors.New("the API server is away")
			}
			return c.Update(ctx, o, opts...)
		},
	})
	k, _ := w.operator()
	k.Want(name(web), wanted(server))
	r := eventually(t, k, "a ring", anyRing, server)
	away.Store(true)
	w.pass(period)
	k.rings[ringKey{"shop", ringID}].nudge()
	time.Sleep(time.Second)
	if again := eventually(t, k, "the ring", anyRing, server); again != r {
		t.Errorf("epoch %d after %d", again.Epoch, r.Epoch)
	}
	away.Store(false)
	eventually(t, k, "the next", func(n tickets.Ring) bool { return n.Epoch == r.Epoch+1 }, server)
}
