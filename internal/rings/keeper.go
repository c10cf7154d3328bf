// Package rings keeps the rings of ticket keys: it makes their keys, renews them
// in time, and has them in the stores that the gateways' agents read. One
// goroutine per ring; what is wrong with a store never stops the others.
package rings

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/tickets"
	"qtls.dev/qtls/internal/ticketstore"
)

const (
	// refresh is how often a ring is written to its stores again: one that was
	// restarted has it back by then.
	refresh = 5 * time.Second
	// retryFirst to retryMost space the tries of what fails.
	retryFirst, retryMost = 250 * time.Millisecond, 3 * time.Second
	// learnsFor is how long an operator that has just started takes at most to
	// learn of all gateways, and to hear from all servers. What those that it has
	// heard from by then do not have counts as lost.
	learnsFor = time.Minute
	// lives is for how many rotation periods a store has a ring that is not
	// written again. It is written for one, until the next rotation is due.
	lives = tickets.MostPeriods - 1
)

// Wanted is what a gateway needs of its rings.
type Wanted struct {
	// Rings by ID: those of its revisions. One without any is known all the same:
	// nothing is remembered for it.
	Rings []string
	// Owner of the Secrets with their records, among others.
	Owner metav1.OwnerReference
	// Rotation is how long a key encrypts. Of gateways that share a ring, the
	// longest counts.
	Rotation time.Duration
	// Drop is the value of the annotation that drops all tickets.
	Drop string
	// Store to publish to; nil while there is none.
	Store *ticketstore.Connection
}

// State is how a gateway's rings are.
type State struct {
	// Access by ring's ID. A ring that has no record yet is not in it.
	Access map[string]dataplane.RingAccess
	// Epochs by ring's ID, of those that the gateway's store has.
	Epochs map[string]uint64
	// Err is why the store does not have all of them; nil when it does, and
	// while it has not been tried.
	Err error
}

// Keeper of the rings of many gateways. Its methods may be called from several
// goroutines.
type Keeper struct {
	ctx     context.Context
	secrets secrets
	clock   clock.PassiveClock
	changed func(gateway types.NamespacedName)

	mu       sync.Mutex
	gateways map[types.NamespacedName]*gateway
	rings    map[ringKey]*ring
}

// ringKey is a ring's ID; with its namespace, in which the ID is made.
type ringKey struct{ namespace, id string }

type gateway struct {
	Wanted
	store *openStore
	// epochs and errs are what came of publishing each ring.
	epochs map[string]uint64
	errs   map[string]error
}

// openStore is closed when its last user lets go.
type openStore struct {
	*ticketstore.Store
	connection ticketstore.Connection
}

// New makes a Keeper that lives as long as ctx. It reads and writes the records'
// Secrets, reading past the cache. changed is called after the State of a
// gateway has changed, and must not block for long.
func New(ctx context.Context, c client.Client, reader client.Reader, k clock.PassiveClock, changed func(types.NamespacedName)) *Keeper {
	return &Keeper{ctx: ctx, secrets: secrets{c, reader}, clock: k, changed: changed,
		gateways: map[types.NamespacedName]*gateway{}, rings: map[ringKey]*ring{}}
}

// Want sets what a gateway needs; nil lets it go. A ring that no gateway needs
// is forgotten, and ends in the stores by itself.
func (k *Keeper) Want(name types.NamespacedName, w *Wanted) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.gateways[name]
	if w == nil {
		if before != nil {
			before.close()
			delete(k.gateways, name)
			k.prune()
		}
		return
	}
	g := &gateway{Wanted: *w, epochs: map[string]uint64{}, errs: map[string]error{}}
	if before != nil {
		g.store = before.store
		for _, id := range w.Rings { // what is known of others is of no interest any more
			if e, ok := before.epochs[id]; ok {
				g.epochs[id] = e
			}
			if err, ok := before.errs[id]; ok {
				g.errs[id] = err
			}
		}
	}
	changed := before == nil || !equalWanted(before.Wanted, g.Wanted)
	if g.store == nil && w.Store != nil || g.store != nil && (w.Store == nil || !g.store.connection.Equal(*w.Store)) {
		g.close()
		g.store, g.epochs, g.errs = nil, map[string]uint64{}, map[string]error{}
		if w.Store != nil {
			opened, err := ticketstore.Open(*w.Store)
			if err != nil {
				for _, id := range w.Rings {
					g.errs[id] = err
				}
			} else {
				g.store = &openStore{opened, *w.Store}
			}
		}
	}
	k.gateways[name] = g
	k.prune()
	if before != nil && changed {
		k.reread(name.Namespace, before.Rings) // others may go on with them
	}
	for _, id := range w.Rings {
		key := ringKey{name.Namespace, id}
		r := k.rings[key]
		if r == nil {
			ctx, cancel := context.WithCancel(k.ctx)
			r = &ring{keeper: k, key: key, cancel: cancel, began: k.clock.Now(), wake: make(chan struct{}, 1)}
			k.rings[key] = r
			go r.run(ctx)
		}
	}
	if changed {
		k.reread(name.Namespace, w.Rings)
	}
}

func equalWanted(a, b Wanted) bool {
	stores := a.Store == nil && b.Store == nil || a.Store != nil && b.Store != nil && a.Store.Equal(*b.Store)
	return stores && slices.Equal(a.Rings, b.Rings) && a.Owner.UID == b.Owner.UID && a.Rotation == b.Rotation && a.Drop == b.Drop
}

func (g *gateway) close() {
	if g.store != nil {
		// Nothing is written any more that could be lost. The client waits for
		// sentinels that it is asking: nobody else is to.
		store := g.store
		go func() { _ = store.Close() }()
	}
}

// prune ends the goroutines of rings that nobody needs.
func (k *Keeper) prune() {
	for key, r := range k.rings {
		if len(k.users(key)) == 0 {
			r.cancel()
			delete(k.rings, key)
		}
	}
}

// reread has rings look at their Secrets again, whose owners may be others than
// they remember: a gateway that comes back to a ring has to be one of them again.
func (k *Keeper) reread(namespace string, ids []string) {
	for _, id := range ids {
		if r := k.rings[ringKey{namespace, id}]; r != nil {
			r.stale.Store(true)
			r.nudge()
		}
	}
}

// users of a ring.
func (k *Keeper) users(key ringKey) map[types.NamespacedName]*gateway {
	users := map[types.NamespacedName]*gateway{}
	for name, g := range k.gateways {
		if name.Namespace == key.namespace && slices.Contains(g.Rings, key.id) {
			users[name] = g
		}
	}
	return users
}

// State of a gateway's rings.
func (k *Keeper) State(name types.NamespacedName) State {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := State{Access: map[string]dataplane.RingAccess{}, Epochs: map[string]uint64{}}
	g := k.gateways[name]
	if g == nil {
		return s
	}
	for _, id := range g.Rings {
		if r := k.rings[ringKey{name.Namespace, id}]; r != nil && r.access != nil {
			s.Access[id] = *r.access
		}
	}
	maps.Copy(s.Epochs, g.epochs)
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(g.errs)) {
		errs = append(errs, g.errs[id])
	}
	s.Err = errors.Join(errs...)
	return s
}

// published notes what came of publishing a ring to a gateway's store.
func (k *Keeper) published(name types.NamespacedName, id string, store *openStore, epoch uint64, err error) {
	k.mu.Lock()
	g := k.gateways[name]
	if g == nil || g.store != store || !slices.Contains(g.Rings, id) {
		k.mu.Unlock()
		return
	}
	before, same := g.epochs[id], trouble(g.errs[id]) == trouble(err)
	switch {
	case err == nil:
		g.epochs[id] = epoch
		delete(g.errs, id)
	case !same:
		g.errs[id] = err
	}
	changed := g.epochs[id] != before || !same
	k.mu.Unlock()
	if changed {
		k.changed(name)
	}
}
