package rings

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/tickets"
	"qtls.dev/qtls/internal/ticketstore"
)

// ring is kept by a goroutine of its own.
type ring struct {
	keeper *Keeper
	key    ringKey
	cancel context.CancelFunc
	// began is since when it is kept by this operator.
	began time.Time
	wake  chan struct{}
	// stale says that the Secret is to be read again.
	stale atomic.Bool

	// access is what agents need; the Keeper's lock guards it.
	access *dataplane.RingAccess

	// What follows belongs to the goroutine.

	// secret and record as they were last read or written; secret is nil before,
	// and when somebody else may have written them.
	secret *corev1.Secret
	record record
	// keys are nil while they are not known. absent says that no store has them.
	keys   *tickets.Ring
	absent bool
	// unread is why it is not known whether a store has them.
	unread error
	// taken is the highest number that is known to have been given to a key,
	// whatever the record says: somebody may have deleted that.
	taken uint64
	// document is the ring, sealed under the current wrapping key; it stays the
	// same until the ring changes. everywhere says that every store has it.
	document   []byte
	everywhere bool
}

// trouble is what an error is about, without what differs from one try to the
// next, such as a port of the operator's own.
func trouble(err error) string {
	if err == nil {
		return ""
	}
	switch err := err.(type) { //nolint:errorlint // what is joined is looked at one by one
	case *ticketstore.MemberError:
		return err.Member + ": " + err.Kind.Error()
	case interface{ Unwrap() []error }:
		var all []string
		for _, e := range err.Unwrap() {
			all = append(all, trouble(e))
		}
		return strings.Join(all, "; ")
	}
	return err.Error()
}

func (r *ring) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *ring) run(ctx context.Context) {
	retry := retryFirst
	said := ""
	for ctx.Err() == nil {
		wait, err := r.step(ctx)
		if ctx.Err() != nil {
			return
		}
		if t := trouble(err); t != said {
			said = t
			log := ctrl.Log.WithName("rings").WithValues("namespace", r.key.namespace, "ring", r.key.id)
			if err != nil {
				log.Info("will be tried again, and again", "error", err.Error())
			} else {
				log.Info("is well again")
			}
		}
		if err != nil {
			wait, retry = retry, min(2*retry, retryMost)
		} else {
			retry = retryFirst
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// user is a gateway that needs the ring, as it was when a step began.
type user struct {
	name  types.NamespacedName
	store *openStore
}

// demand is what all users of the ring together want.
type demand struct {
	users    []user
	rotation time.Duration
	drops    map[string]string
	owners   []metav1.OwnerReference
	// known gateways of the namespace. An operator that has just started learns
	// of them one by one.
	known map[types.UID]bool
	// complete says that all gateways that own the Secret are known: what none of
	// them needs can be forgotten.
	complete bool
}

// remembering adds what is known of gateways that this operator has not seen
// yet: that they are there, and for how long keys were to encrypt. It is pure.
func (d demand) remembering(s *corev1.Secret, r record) demand {
	d.complete = !slices.ContainsFunc(s.OwnerReferences, func(o metav1.OwnerReference) bool { return !d.known[o.UID] })
	if !d.complete {
		d.rotation = max(d.rotation, r.Rotation)
	}
	return d
}

func (r *ring) demand() demand {
	k := r.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	d := demand{drops: map[string]string{}, known: map[types.UID]bool{}}
	users := k.users(r.key)
	for name, g := range users {
		d.users = append(d.users, user{name, g.store})
		d.rotation = max(d.rotation, g.Rotation)
		d.drops[name.Name] = g.Drop
		d.owners = append(d.owners, g.Owner)
	}
	for name, g := range k.gateways {
		if name.Namespace == r.key.namespace {
			d.known[g.Owner.UID] = true
		}
	}
	return d
}

// step does what there is to do, and says when there may be more.
func (r *ring) step(ctx context.Context) (time.Duration, error) {
	if r.stale.Swap(false) {
		r.secret = nil
	}
	d := r.demand()
	if len(d.users) == 0 {
		return refresh, nil // it is being ended
	}
	err := r.recall(ctx)
	if err == nil {
		d = d.remembering(r.secret, r.record)
		err = r.advance(ctx, d)
	}
	if err != nil {
		for _, u := range d.users {
			r.keeper.published(u.name, r.key.id, u.store, 0, err)
		}
		return 0, err
	}
	r.grant(d)
	if r.keys == nil {
		return refresh, r.unread
	}
	if err := r.publish(ctx, d); err != nil {
		return 0, err
	}
	return max(0, min(refresh, r.record.next(d.rotation).Sub(r.keeper.clock.Now()))), nil
}

// learns says whether there may be gateways and servers that this operator is
// yet to hear from.
func (r *ring) learns() bool { return r.keeper.clock.Since(r.began) < learnsFor }

// recall reads the Secret and the record, where they are not known.
func (r *ring) recall(ctx context.Context) error {
	if r.secret != nil {
		return nil
	}
	secret, rec, err := r.keeper.secrets.read(ctx, r.key)
	if err != nil {
		return err
	}
	if r.keys != nil && len(rec.WrappingKeys) > 0 && rec.Epoch != r.record.Epoch {
		r.keys = nil // another operator has made others
	}
	if len(rec.WrappingKeys) == 0 { // it is gone: what was asked for is known all the same
		rec.Dropped, rec.LeastEpoch = r.record.Dropped, r.record.LeastEpoch
	}
	rec.Epoch = max(rec.Epoch, r.taken)
	r.secret, r.record, r.everywhere = secret, rec, false
	return nil
}

// advance makes new keys when it is time to. The number of a key is written
// before the key is made.
func (r *ring) advance(ctx context.Context, d demand) error {
	r.unread = nil
	if r.keys == nil && !r.absent && len(r.record.WrappingKeys) > 0 {
		r.find(ctx, d)
	}
	at := r.keeper.clock.Now()
	next, do := advance(r.record, r.keys != nil || !r.absent, d.rotation, at, d.drops)
	if do == rotate && r.keys == nil {
		if r.learns() { // there is time
			next, do = advance(r.record, true, d.rotation, r.record.Rotated, d.drops)
		} else { // No store has said whether it has them, for a whole period.
			next, do = advance(r.record, false, d.rotation, at, d.drops)
		}
	}
	if do == keep && r.everywhere {
		next.forgetFormerWrappingKey()
	}
	if !d.complete {
		for gateway, value := range r.record.Dropped {
			if _, ok := next.Dropped[gateway]; !ok {
				next.Dropped[gateway] = value
			}
		}
	}
	if reflect.DeepEqual(next, r.record) && owns(r.secret, d.owners) {
		return nil
	}
	if err := r.keeper.secrets.write(ctx, r.secret, next, d.owners); err != nil {
		r.secret = nil
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
			r.nudge() // somebody else has written it, or it is gone: it is read again
			return nil
		}
		return err
	}
	r.record = next
	switch do {
	case rotate:
		r.seal(r.keys.Next(next.Epoch))
	case renew:
		r.seal(tickets.New(next.Epoch))
	}
	if do != keep {
		ctrl.Log.WithName("rings").Info("new keys", "namespace", r.key.namespace, "ring", r.key.id, "epoch", next.Epoch, "leastEpoch", next.LeastEpoch)
	}
	return nil
}

func (r *ring) seal(keys tickets.Ring) {
	r.keys, r.absent, r.taken = &keys, false, max(r.taken, keys.Epoch)
	r.document, r.everywhere = tickets.Seal(keys, r.key.id, r.record.Current, r.record.WrappingKeys[r.record.Current]), false
}

// sealed says whether the document is under the current wrapping key. One that an
// earlier operator wrote may be under the former.
func (r *ring) sealed() bool {
	current := tickets.WrappingKeys{r.record.Current: r.record.WrappingKeys[r.record.Current]}
	_, err := tickets.Open(r.document, r.key.id, current, 0)
	return err == nil
}

// stored is the name that the ring has in the stores.
func (r *ring) stored() string { return r.key.id + "." + r.record.Name }

// find looks for the ring in the stores, where an earlier operator put it. That
// those who answer do not have it says something only when they are all there
// are, or the others have had their time.
func (r *ring) find(ctx context.Context, d demand) {
	said, all := false, d.complete
	errs := make([]error, len(d.users))
	for i, u := range d.users {
		if u.store == nil {
			all = false
			continue
		}
		found, err := u.store.Read(ctx, r.stored())
		if err != nil {
			errs[i] = ticketstore.Unanswered(err)
			said, all = said || errors.Is(err, ticketstore.ErrNotFound) || errors.Is(err, ticketstore.ErrMalformed), all && errs[i] == nil
			continue
		}
		said = true
		keys, err := tickets.Open(found.Content, r.key.id, r.record.WrappingKeys, r.record.LeastEpoch)
		if err == nil && (r.keys == nil || keys.Epoch > r.keys.Epoch) {
			r.keys, r.document, r.everywhere = &keys, found.Content, false
		}
	}
	if r.keys != nil && !r.sealed() {
		r.seal(*r.keys)
	}
	r.absent = said && r.keys == nil && (all || !r.learns())
	if r.absent || r.keys != nil {
		return
	}
	for i, u := range d.users {
		if errs[i] != nil {
			r.keeper.published(u.name, r.key.id, u.store, 0, errs[i])
		}
	}
	r.unread = errors.Join(errs...)
}

// grant tells what agents need, and the gateways when that is something new.
func (r *ring) grant(d demand) {
	if len(r.record.WrappingKeys) == 0 {
		return
	}
	access := dataplane.RingAccess{Stored: r.stored(), WrappingKeys: maps.Clone(r.record.WrappingKeys), LeastEpoch: r.record.LeastEpoch,
		RotationSeconds: int(d.rotation.Seconds())}
	r.keeper.mu.Lock()
	changed := r.access == nil || !reflect.DeepEqual(*r.access, access)
	r.access = &access
	r.keeper.mu.Unlock()
	if changed {
		for _, u := range d.users {
			r.keeper.changed(u.name)
		}
	}
}

// publish writes the ring to every user's store. What fails at one is that
// one's.
func (r *ring) publish(ctx context.Context, d demand) error {
	document := ticketstore.Document{Content: r.document, Epoch: r.keys.Epoch, ExpiresIn: lives * d.rotation}
	errs := make([]error, len(d.users))
	everywhere := true
	var all sync.WaitGroup
	for i, u := range d.users {
		if u.store == nil {
			everywhere = false
			continue
		}
		all.Go(func() { errs[i] = u.store.Publish(ctx, r.stored(), document) })
	}
	all.Wait()
	var newer *ticketstore.NewerError
	for i, u := range d.users {
		if errors.As(errs[i], &newer) {
			break
		}
		if u.store != nil {
			r.keeper.published(u.name, r.key.id, u.store, document.Epoch, errs[i])
		}
	}
	if newer != nil {
		return r.overtaken(newer.Stored)
	}
	err := errors.Join(errs...)
	r.everywhere = everywhere && err == nil
	return err
}

// overtaken deals with a store that has a newer ring: that of another operator,
// or of one whose record is lost.
func (r *ring) overtaken(stored ticketstore.Document) error {
	if stored.Epoch > math.MaxUint64/2 {
		return fmt.Errorf("the store holds the key %q with epoch %d, which no operator wrote; delete it", "ring:"+r.stored(), stored.Epoch)
	}
	// Where it is of nobody's use, the next keys have a higher number.
	_, err := tickets.Open(stored.Content, r.key.id, r.record.WrappingKeys, r.record.LeastEpoch)
	r.secret, r.keys, r.absent, r.taken = nil, nil, err != nil, max(r.taken, stored.Epoch)
	r.nudge()
	return nil
}
