package rings

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/internal/tickets"
	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/storetest"
)

// sharing is what another gateway wants that names the same ring.
func sharing(gateway string, w *Wanted) *Wanted {
	w.Owner.Name, w.Owner.UID = gateway, types.UID(gateway)
	return w
}

// secret of a ring, as it is in the API server.
func (w *world) secret(ring string) *corev1.Secret {
	w.t.Helper()
	s := &corev1.Secret{}
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Namespace: "shop", Name: SecretName(ring)}, s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) record(ring string) record {
	w.t.Helper()
	_, r, err := secrets{w.api, w.api}.read(w.t.Context(), ringKey{"shop", ring})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// An operator that has just started learns of its gateways one by one. What the
// others want is remembered until then.
func TestAnOperatorThatStartsForgetsNothingOfGatewaysThatItHasNotSeenYet(t *testing.T) {
	const another = "00000000000000000000000000000001"
	server := storetest.Start(t)
	w := newWorld(t)
	first, stop := w.operator()
	green := sharing("green", wanted(server))
	green.Rings = []string{ringID, another} // its policy is changing
	first.Want(name(web), wanted(server))
	first.Want(name("green"), green)
	r := eventually(t, first, "a ring", anyRing, server)
	await(t, "both have a record", func() bool {
		return len(w.record(ringID).Dropped) == 2 && len(w.record(another).Dropped) == 1
	})
	changing := w.record(another)
	stop()

	second, _ := w.operator()
	second.Want(name(web), wanted(server))
	w.pass(period)
	second.rings[ringKey{"shop", ringID}].nudge()
	r = eventually(t, second, "the next", func(n tickets.Ring) bool { return n.Epoch > r.Epoch }, server)
	if again := w.record(another); again.Name != changing.Name {
		t.Errorf("the record of a ring of a gateway that is not known yet: %q after %q", again.Name, changing.Name)
	}
	green.Drop = "a key leaked" // it was asked for meanwhile
	second.Want(name("green"), green)
	await(t, "its tickets are dropped", func() bool { return w.record(ringID).LeastEpoch > r.Epoch })

	// Who has left for good is forgotten.
	second.Want(name("green"), nil)
	await(t, "the garbage collector takes it from the owners", func() bool {
		s := w.secret(ringID)
		s.OwnerReferences = slices.DeleteFunc(s.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Name == "green" })
		return w.api.Update(t.Context(), s) == nil
	})
	w.pass(period)
	second.rings[ringKey{"shop", ringID}].nudge()
	await(t, "it is forgotten", func() bool { return len(w.record(ringID).Dropped) == 1 })
}

// The Secret of a gateway that is made anew under its name would go with the
// former one.
func TestTheRecordsOfAGatewayThatIsMadeAnewAreItsOwn(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	k, _ := w.operator()
	k.Want(name(web), wanted(server))
	r := eventually(t, k, "a ring", anyRing, server)
	anew := wanted(server)
	anew.Owner.UID = "2"
	k.Want(name(web), anew)
	await(t, "the new one owns it", func() bool {
		return slices.ContainsFunc(w.secret(ringID).OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == "2" })
	})
	if again := eventually(t, k, "the ring", anyRing, server); again != r {
		t.Error("it has another ring")
	}
}

// A Secret that was deleted, perhaps for the same reason, does not keep tickets
// from being dropped.
func TestTicketsAreDroppedAlsoWhenTheRecordIsGone(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	k, _ := w.operator()
	k.Want(name(web), wanted(server))
	r := eventually(t, k, "a ring", anyRing, server)
	if err := w.api.Delete(context.Background(), w.secret(ringID)); err != nil {
		t.Fatal(err)
	}
	drop := wanted(server)
	drop.Drop = "a key leaked"
	k.Want(name(web), drop)
	await(t, "agents may use no earlier epoch", func() bool { return k.State(name(web)).Access[ringID].LeastEpoch > r.Epoch })
	eventually(t, k, "a new ring", func(n tickets.Ring) bool { return n.Epoch > r.Epoch }, server)
}

// How old keys may get is what the gateways of a ring say together, whichever of
// them an operator that has just started learns of first.
func TestAnOperatorThatStartsKnowsHowLongKeysWereToEncrypt(t *testing.T) {
	const slow = 6 * period
	for _, after := range []time.Duration{3 * period / 2, 7 * period / 2} { // for blue, it is time to rotate; to renew
		t.Run(after.String(), func(t *testing.T) {
			server := storetest.Start(t)
			w := newWorld(t)
			first, stop := w.operator()
			green := sharing("green", wanted(server))
			green.Rotation = slow
			first.Want(name("green"), green)
			first.Want(name(web), wanted(server))
			await(t, "both have a record, and the ring is stored", func() bool {
				return len(w.record(ringID).Dropped) == 2 && first.State(name(web)).Epochs[ringID] > 0 && first.State(name("green")).Epochs[ringID] > 0
			})
			before := w.record(ringID)
			stop()

			w.pass(after)
			second, _ := w.operator()
			second.Want(name(web), wanted(server))
			await(t, "it goes on with a ring", func() bool { return second.State(name(web)).Epochs[ringID] > 0 })
			if r := w.record(ringID); r.Epoch != before.Epoch || !r.Rotated.Equal(before.Rotated) {
				t.Errorf("epoch %d of %v; it was %d of %v", r.Epoch, r.Rotated, before.Epoch, before.Rotated)
			}
			if s := second.State(name(web)).Access[ringID].RotationSeconds; s != int(slow.Seconds()) {
				t.Errorf("agents are told that a key encrypts for %d seconds", s)
			}

			// Once all are known, it is their word.
			green.Rotation = period
			second.Want(name("green"), green)
			await(t, "what is too old for both is replaced", func() bool { return w.record(ringID).Epoch > before.Epoch })
		})
	}
}

// A ring that gateways share is where one of them has it.
func TestARingIsNotLostBeforeAllGatewaysAreKnown(t *testing.T) {
	here, there := storetest.Start(t), storetest.Start(t)
	w := newWorld(t)
	first, stop := w.operator()
	first.Want(name(web), wanted(here))
	first.Want(name("green"), sharing("green", wanted(there)))
	r := eventually(t, first, "a ring", anyRing, here)
	await(t, "the other store has it too", func() bool { return first.State(name("green")).Epochs[ringID] == r.Epoch })
	stop()
	here.Restart() // empty, on a node that was drained with the operator

	w.pass(period) // it is also time to rotate
	second, _ := w.operator()
	second.Want(name(web), wanted(here))
	await(t, "it has looked for the ring", func() bool { return len(second.State(name(web)).Access) == 1 })
	if epoch := w.record(ringID).Epoch; epoch != r.Epoch {
		t.Errorf("epoch %d: there are new keys in place of those of epoch %d", epoch, r.Epoch)
	}
	second.Want(name("green"), sharing("green", wanted(there)))
	next := eventually(t, second, "the next", anyRing, here)
	if next.Epoch != r.Epoch+1 || next.Keys[1] != r.Keys[2] {
		t.Errorf("epoch %d after %d: the ring was lost", next.Epoch, r.Epoch)
	}
}

// One that nobody says anything about is not waited for without end.
func TestARingThatNobodyHasIsMadeAnewAfterAWhile(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	first, stop := w.operator()
	first.Want(name(web), wanted(server))
	first.Want(name("green"), sharing("green", wanted(server)))
	await(t, "both have a record", func() bool { return len(w.record(ringID).Dropped) == 2 })
	r := eventually(t, first, "a ring", anyRing, server)
	stop()
	server.Restart()

	second, _ := w.operator()
	second.Want(name(web), wanted(server))
	await(t, "it has looked for the ring", func() bool { return len(second.State(name(web)).Access) == 1 })
	w.pass(learnsFor)
	second.rings[ringKey{"shop", ringID}].nudge()
	eventually(t, second, "another ring", func(n tickets.Ring) bool { return n.Epoch > r.Epoch }, server)
}

// Of two servers, the one that does not answer may be the one that has the ring.
func TestARingIsNotLostBeforeAllServersHaveAnswered(t *testing.T) {
	servers := storetest.StartMembers(t, 2)
	w := newWorld(t)
	first, stop := w.operator()
	first.Want(name(web), wanted(servers...))
	r := eventually(t, first, "a ring", anyRing, servers...)
	await(t, "both servers have it", func() bool { return first.State(name(web)).Epochs[ringID] == r.Epoch })
	stop()
	servers[0].Restart()
	servers[1].Cut()

	second, _ := w.operator()
	second.Want(name(web), wanted(servers...))
	await(t, "the operator says that one is away", func() bool { return errors.Is(second.State(name(web)).Err, ticketstore.ErrUnreachable) })
	if epoch := w.record(ringID).Epoch; epoch != r.Epoch {
		t.Errorf("epoch %d: there are new keys in place of those of epoch %d", epoch, r.Epoch)
	}
	servers[1].Mend()
	if again := eventually(t, second, "the ring", anyRing, servers[0]); again != r {
		t.Errorf("epoch %d after %d: the ring was lost", again.Epoch, r.Epoch)
	}
}

// An operator that ends between the record and the store leaves the ring there
// under the wrapping key that its record has just replaced.
func TestAnOperatorThatEndsWhileTheWrappingKeyIsReplacedLosesNoRing(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	first, stop := w.operator()
	first.Want(name(web), wanted(server))
	eventually(t, first, "a ring", anyRing, server)
	w.pass(wrappingKeyLife)
	first.rings[ringKey{"shop", ringID}].nudge()
	await(t, "a wrapping key is to come", func() bool { return w.record(ringID).Coming != "" })
	coming, epoch := w.record(ringID).Coming, w.record(ringID).Epoch
	r := eventually(t, first, "a ring that lives as long as it", func(r tickets.Ring) bool { return r.Epoch == epoch }, server)
	server.Cut()
	w.pass(period)
	first.rings[ringKey{"shop", ringID}].nudge()
	await(t, "it is to seal", func() bool { return w.record(ringID).Current == coming })
	await(t, "the store has not got what it seals", func() bool { return errors.Is(first.State(name(web)).Err, ticketstore.ErrUnreachable) })
	if n := len(w.record(ringID).WrappingKeys); n != 2 {
		t.Errorf("there are %d wrapping keys", n)
	}
	stop()
	// What it was writing may get there all the same.
	goesOn := func(n tickets.Ring) bool { return n == r || n.Keys[0] == r.Keys[1] && n.Keys[1] == r.Keys[2] }
	server.Mend()

	second, _ := w.operator()
	second.Want(name(web), wanted(server))
	if again := eventually(t, second, "the ring", anyRing, server); !goesOn(again) {
		t.Errorf("epoch %d after %d: the ring was lost", again.Epoch, r.Epoch)
	}
	await(t, "the store has it under the new one, and the old one is forgotten", func() bool {
		keys := w.record(ringID).WrappingKeys
		_, ok := keys[coming]
		return ok && len(keys) == 1 && len(second.State(name(web)).Access[ringID].WrappingKeys) == 1
	})
	if again := eventually(t, second, "the ring", anyRing, server); !goesOn(again) {
		t.Errorf("epoch %d after %d: the ring was lost", again.Epoch, r.Epoch)
	}
}

// While a gateway's pods go over to another ring, it needs both: what it looks up
// of the one is never what is remembered of the other.
func TestAGatewayThatLeavesASharedRingTakesNothingFromThoseThatStay(t *testing.T) {
	const another = "00000000000000000000000000000001"
	server := storetest.Start(t)
	w := newWorld(t)
	var looks atomic.Int64
	w.api = interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, o, opts...)
			if key.Name == SecretName(ringID) {
				looks.Add(1)
			}
			return err
		},
	})
	k, _ := w.operator()
	k.Want(name(web), wanted(server))
	k.Want(name("green"), sharing("green", wanted(server)))
	r := eventually(t, k, "a ring", anyRing, server)
	await(t, "it is remembered for both", func() bool { return len(w.record(ringID).Dropped) == 2 })
	before := w.record(ringID).Name

	for _, rings := range [][]string{{another, ringID}, {ringID, another}, {another}, {another, ringID}, {another}} {
		green := sharing("green", wanted(server))
		green.Rings = rings
		seen := looks.Load()
		k.Want(name("green"), green)
		await(t, "the ring is looked up again", func() bool { return looks.Load() > seen })
		await(t, "it is remembered for those that need it", func() bool {
			_, needs := w.record(ringID).Dropped["green"]
			return needs == slices.Contains(rings, ringID) && w.record(another).Name != ""
		})
		if again := w.record(ringID).Name; again != before {
			t.Fatalf("with rings %v, the shared one is %q after %q", rings, again, before)
		}
		if again := eventually(t, k, "the ring", anyRing, server); again != r {
			t.Fatalf("with rings %v, who stays has epoch %d after %d", rings, again.Epoch, r.Epoch)
		}
	}
	if owners := w.secret(another).OwnerReferences; len(owners) != 1 || owners[0].Name != "green" {
		t.Errorf("the other ring is remembered for %v", owners)
	}
}

// A gateway that has left a ring is no owner of its Secret any more; one that
// comes back is one again, whatever the operator remembers.
func TestAGatewayThatComesBackToARingOwnsItsSecret(t *testing.T) {
	server := storetest.Start(t)
	w := newWorld(t)
	k, _ := w.operator()
	k.Want(name(web), wanted(server))
	k.Want(name("green"), sharing("green", wanted(server)))
	owned := func() bool {
		return slices.ContainsFunc(w.secret(ringID).OwnerReferences, func(o metav1.OwnerReference) bool { return o.Name == "green" })
	}
	eventually(t, k, "a ring", anyRing, server)
	await(t, "both own it", func() bool { return len(w.secret(ringID).OwnerReferences) == 2 })
	elsewhere := sharing("green", wanted(server))
	elsewhere.Rings = nil
	k.Want(name("green"), elsewhere)
	await(t, "it is forgotten", func() bool { return len(w.record(ringID).Dropped) == 1 })
	await(t, "it is taken off the owners", func() bool {
		s := w.secret(ringID)
		s.OwnerReferences = slices.DeleteFunc(s.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Name == "green" })
		return w.api.Update(t.Context(), s) == nil
	})
	k.Want(name("green"), sharing("green", wanted(server)))
	await(t, "it owns it again", owned)
}
