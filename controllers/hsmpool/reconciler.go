// Package hsmpool keeps HSMPools: it runs the daemons of members that are the
// operator's to run, and says in the status which members can sign, and of the
// others, why not. It asks each member's hsmd, again and again.
package hsmpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/owned"
	"qtls.dev/qtls/internal/resources"
)

// +kubebuilder:rbac:groups=qtls.dev,resources=hsmpools,verbs=get;list;watch
// +kubebuilder:rbac:groups=qtls.dev,resources=hsmpools/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Interval is how often members are asked.
const Interval = 10 * time.Second

// Reconciler reconciles HSMPools.
type Reconciler struct {
	client.Client
	// APIReader reads Secrets past the cache, which holds their metadata only.
	APIReader client.Reader
	Clock     clock.PassiveClock
	Recorder  events.EventRecorder
	// Clients of the members.
	Clients *hsmpool.Clients
	// Settings are what daemons run with.
	Settings resources.Settings
	// Interval is how often members are asked.
	Interval time.Duration

	mu sync.Mutex
	// looks are the latest at each pool's members: a status that was written
	// brings the next reconciliation, which asks nobody.
	looks map[types.NamespacedName]look
	// told is when each pool's status was last written.
	told map[types.NamespacedName]time.Time
	// daemons are what was last written for them.
	daemons map[types.NamespacedName]*provided
	applied owned.Memory
}

// look at a pool's members.
type look struct {
	at           time.Time
	clients      []*hsm.Client
	observations []hsmpool.Observation
}

// Reconcile observes the members of one pool and says in its status what was
// observed.
func (r *Reconciler) Reconcile(ctx context.Context, key ctrl.Request) (ctrl.Result, error) {
	pool := &v1alpha1.HSMPool{}
	if err := r.Get(ctx, key.NamespacedName, pool); err != nil {
		r.forget(key.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !pool.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	problems, failed := r.provide(ctx, pool) // how members are is told nevertheless
	members, err := r.Clients.Open(ctx, r.APIReader, pool)
	if err != nil {
		return ctrl.Result{}, errors.Join(failed, err)
	}
	l := r.look(ctx, key.NamespacedName, members)
	observations := blame(pool, l.observations, problems, func(member string) *conditions.Problem { return r.waitsFor(ctx, pool, member) })
	err = r.report(ctx, pool, summarise(pool, observations, r.Clock.Now()))
	if err := errors.Join(failed, err); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: max(r.Interval-time.Since(l.at), time.Millisecond)}, nil
}

// look at the members, unless these very ones were asked a moment ago.
func (r *Reconciler) look(ctx context.Context, pool types.NamespacedName, members []hsmpool.Member) look {
	var clients []*hsm.Client
	for _, m := range members {
		clients = append(clients, m.Client)
	}
	r.mu.Lock()
	last, ok := r.looks[pool]
	r.mu.Unlock()
	if ok && time.Since(last.at) < r.Interval && slices.Equal(last.clients, clients) {
		return last
	}
	l := look{clients: clients, observations: hsmpool.Observe(ctx, members), at: time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.looks == nil {
		r.looks = map[types.NamespacedName]look{}
	}
	r.looks[pool] = l
	return l
}

func (r *Reconciler) forget(pool types.NamespacedName) {
	r.Clients.Close(pool)
	r.applied.Forget(pool)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.looks, pool)
	delete(r.daemons, pool)
	delete(r.told, pool)
}

// countersEvery is how often a status is written of which nothing but counters
// has changed, as under load they always have; and with failures, what the last
// of them was.
const countersEvery = time.Minute

// report writes the status if it has changed, and events of members that come
// and go.
func (r *Reconciler) report(ctx context.Context, pool *v1alpha1.HSMPool, after v1alpha1.HSMPoolStatus) error {
	key, now := client.ObjectKeyFromObject(pool), r.Clock.Now()
	r.mu.Lock()
	last := r.told[key]
	r.mu.Unlock()
	if !worthWriting(pool.Status, after, now.Sub(last)) {
		return nil
	}
	before := pool.DeepCopy()
	pool.Status = after
	if written, err := conditions.Write(ctx, r.Status(), before, pool); !written {
		return err
	}
	r.mu.Lock()
	if r.told == nil {
		r.told = map[types.NamespacedName]time.Time{}
	}
	r.told[key] = now
	r.mu.Unlock()
	for _, n := range news(before.Status, after) {
		r.Recorder.Eventf(pool, nil, n.kind, n.reason, "Observe", "%s", conditions.Shorten(n.message, 900))
	}
	return nil
}

// worthWriting says whether a status is written that was last written so long
// ago. It is pure.
func worthWriting(before, after v1alpha1.HSMPoolStatus, ago time.Duration) bool {
	if equality.Semantic.DeepEqual(before, after) {
		return false
	}
	return ago >= countersEvery || !equality.Semantic.DeepEqual(withoutCounters(before), withoutCounters(after))
}

func withoutCounters(s v1alpha1.HSMPoolStatus) v1alpha1.HSMPoolStatus {
	s.Members = slices.Clone(s.Members)
	for i := range s.Members {
		m := &s.Members[i]
		m.Signatures, m.Failures, m.LastError, m.Latency = 0, 0, "", nil
	}
	return s
}

// eventMemberUp is the reason of the event that a member is back.
const eventMemberUp = "MemberUp"

// piece of news.
type piece struct{ kind, reason, message string }

// news are what events tell: a change of readiness, and of each member. It is
// pure.
func news(before, after v1alpha1.HSMPoolStatus) []piece {
	var all []piece
	for _, m := range after.Members {
		i := slices.IndexFunc(before.Members, func(o v1alpha1.HSMMemberStatus) bool { return o.Name == m.Name })
		known := i >= 0
		if known && before.Members[i].State != m.State && m.State == v1alpha1.HSMMemberUp {
			all = append(all, piece{corev1.EventTypeNormal, eventMemberUp, fmt.Sprintf("member %q can sign again", m.Name)})
		}
		if m.Reason != "" && (!known || before.Members[i].State != m.State || before.Members[i].Reason != m.Reason) {
			kind := corev1.EventTypeWarning
			if m.Reason == v1alpha1.ReasonProgressing {
				kind = corev1.EventTypeNormal // each of several daemons waits for its turn
			}
			all = append(all, piece{kind, m.Reason, m.Message})
		}
	}
	old, c := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionReady), meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionReady)
	if old == nil || old.Status != c.Status {
		kind := corev1.EventTypeNormal
		if c.Status != "True" {
			kind = corev1.EventTypeWarning
		}
		all = append(all, piece{kind, c.Reason, c.Message})
	}
	return all
}
