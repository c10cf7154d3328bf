package rings

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/internal/tickets"
	"qtls.dev/qtls/internal/ticketstore/storetest"
)

// sharing is what another gateway wants that names the same ring.
func sharing(gateway string, w *Wanted) *Wanted {
	w.Owner.Name, w.Owner.UID = gateway, types.UID(gateway)
	return w
}

// secret of the records, as it is in the API server.
func (w *world) secret() *corev1.Secret {
	w.t.Helper()
	s := &corev1.Secret{}
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Namespace: "shop", Name: "web-ticket-ring"}, s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) record(ring string) record {
	w.t.Helper()
	_, r, err := secrets{w.api, w.api}.read(w.t.Context(), "shop", "web-ticket-ring", ring)
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
		s := w.secret()
		s.OwnerReferences = slices.DeleteFunc(s.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Name == "green" })
		return w.api.Update(t.Context(), s) == nil
	})
	w.pass(period)
	second.rings[ringKey{"shop", ringID}].nudge()
	await(t, "it is forgotten", func() bool { return len(w.record(ringID).Dropped) == 1 && w.record(another).Name == "" })
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
		return slices.ContainsFunc(w.secret().OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == "2" })
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
	if err := w.api.Delete(context.Background(), w.secret()); err != nil {
		t.Fatal(err)
	}
	drop := wanted(server)
	drop.Drop = "a key leaked"
	k.Want(name(web), drop)
	await(t, "agents may use no earlier epoch", func() bool { return k.State(name(web)).Access[ringID].LeastEpoch > r.Epoch })
	eventually(t, k, "a new ring", func(n tickets.Ring) bool { return n.Epoch > r.Epoch }, server)
}
