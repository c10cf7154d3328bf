// Package gateway reconciles QTLSGateways. Data flows one way: what the user
// asks for and what it refers to (fetch) becomes a model (resolve), the model a
// revision (haproxy), and a decision which pod runs which revision (rollout);
// the objects are applied, the pods observed, and the status says the result.
package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/observe"
	"qtls.dev/qtls/internal/owned"
	"qtls.dev/qtls/internal/resolve"
	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/rings"
)

// +kubebuilder:rbac:groups=qtls.dev,resources=qtlsgateways,verbs=get;list;watch
// +kubebuilder:rbac:groups=qtls.dev,resources=qtlsgateways/status,verbs=patch
// +kubebuilder:rbac:groups=qtls.dev,resources=qtlsgateways/finalizers,verbs=update
// +kubebuilder:rbac:groups=qtls.dev,resources=qtlspolicies;pqccertificates;hsmpools,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets;configmaps;services;serviceaccounts,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=secrets,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=deployments;statefulsets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=redis.redis.opstreelabs.in,resources=redisreplications;redisclusters,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles;rolebindings,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// issuingGrace is how long a new gateway waits for all the algorithms of a
// certificate before it serves with those that there are.
const issuingGrace = 15 * time.Second

// lookAgain bounds how long nothing is looked at: for certificates that expire
// and for the agents' own, which are renewed long before their end.
const lookAgain = 6 * time.Hour

// afterConflict is how long what somebody else has just written is left alone: the
// cache has it by then.
const afterConflict = time.Second

// failureGrace is how long a gateway cannot be decided before that is told: an API
// server that is busy for a moment makes no gateway unready. It is tried again
// meanwhile, and a time-out lasts longer than this.
const failureGrace = 10 * time.Second

// Reconciler reconciles QTLSGateways.
type Reconciler struct {
	client.Client
	// APIReader reads Secrets and ConfigMaps past the cache, which holds their
	// metadata only.
	APIReader client.Reader
	Clock     clock.PassiveClock
	Recorder  events.EventRecorder
	Settings  resources.Settings
	// Observer says what the agents run.
	Observer *observe.Observer
	// Authority signs the agents' certificates.
	Authority *Authority
	// Rings keeps the keys of session tickets.
	Rings *rings.Keeper
	// Changes brings the gateways whose pods have news.
	Changes <-chan event.GenericEvent

	backends backends
	applied  owned.Memory
	failing  sync.Map // since when gateways could not be decided, by name
}

// Reconcile brings one gateway from what is to what is wanted, as far as it
// goes now, and says in its status how far that is.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	g := &v1alpha1.QTLSGateway{}
	if err := r.Get(ctx, request.NamespacedName, g); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(request.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !g.DeletionTimestamp.IsZero() {
		r.forget(request.NamespacedName)
		return ctrl.Result{}, nil // what belongs to it goes by owner references
	}

	now := r.Clock.Now()
	in, plan, err := r.plan(ctx, g, now)
	if err != nil {
		since, _ := r.failing.LoadOrStore(request.NamespacedName, now)
		if now.Sub(since.(time.Time)) < failureGrace {
			return ctrl.Result{}, err
		}
		return ctrl.Result{}, errors.Join(err, r.report(ctx, g, undecided(g, err, now)))
	}
	r.failing.Delete(request.NamespacedName)
	r.Rings.Want(request.NamespacedName, wantedRings(g, plan, in.Resumption))
	in.Resumption.State = r.Rings.State(request.NamespacedName)
	if in.Resumption.Err != nil && storesIn(g, v1alpha1.TicketStoreEmbedded) {
		in.Resumption.NotReady = r.storeWaitsFor(ctx, g)
	}
	applyErr := r.apply(ctx, g, in, plan, now)
	again, err := r.applyTickets(ctx, g, in, plan)
	in.Resumption.NotApplied = err
	r.Observer.Follow(request.NamespacedName, followed(in.Pods))
	if err := r.report(ctx, g, summarise(in, plan, applyErr, now)); err != nil {
		return ctrl.Result{}, err
	}
	for _, err := range []error{applyErr, in.Resumption.NotApplied} {
		if p, ok := conditions.AsProblem(err); ok {
			return ctrl.Result{RequeueAfter: p.After}, nil
		}
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	next := nextLook(in, plan, now)
	if again {
		next = min(next, afterConflict)
	}
	return ctrl.Result{RequeueAfter: next}, nil
}

// plan is what is to be done about a gateway, and what that rests on.
func (r *Reconciler) plan(ctx context.Context, g *v1alpha1.QTLSGateway, now time.Time) (inputs, plan, error) {
	in, err := r.fetch(ctx, g, now)
	if err != nil {
		return in, plan{}, err
	}
	in.Model, in.Problems = resolve.Resolve(g, in.Objects, now)
	in.Problems = append(in.Problems, oversize(in.Model)...)
	p, err := decide(in, now)
	return in, p, err
}

func (r *Reconciler) forget(gateway types.NamespacedName) {
	r.Observer.Follow(gateway, nil)
	r.Rings.Want(gateway, nil)
	r.backends.set(gateway, nil)
	r.applied.Forget(gateway)
	r.failing.Delete(gateway)
}

// nextLook is when time alone changes something.
func nextLook(in inputs, p plan, now time.Time) time.Duration {
	next := lookAgain
	soon := func(at time.Time) {
		if d := at.Sub(now); d > 0 && d < next {
			next = d + time.Second
		}
	}
	for _, at := range in.Model.Times {
		soon(at)
	}
	if renew := in.Resumption.Renew; !renew.IsZero() {
		soon(renew)
	}
	if again := in.Resumption.LookAgain; again > 0 {
		if in.Resumption.Err != nil {
			again = lookForServers // they may have moved
		}
		next = min(next, again)
	}
	for _, pod := range in.Pods {
		if since, ready := resources.ReadySince(&pod); pod.Name == p.Assignment.CandidatePod && !ready && !since.IsZero() {
			soon(since.Add(trialPatience))
		}
	}
	if p.Waiting {
		soon(in.Gateway.CreationTimestamp.Add(issuingGrace))
	}
	return next
}

func followed(pods []corev1.Pod) []observe.Pod {
	var out []observe.Pod
	for _, p := range pods {
		if p.Status.PodIP != "" && p.Status.Phase == corev1.PodRunning {
			out = append(out, observe.Pod{UID: p.UID, Name: p.Name, IP: p.Status.PodIP})
		}
	}
	return out
}

// report writes the status when it has changed, and an event when a condition
// has.
func (r *Reconciler) report(ctx context.Context, g *v1alpha1.QTLSGateway, status v1alpha1.QTLSGatewayStatus) error {
	before := g.DeepCopy()
	g.Status = status
	if equalStatus(before.Status, status) {
		return nil
	}
	if written, err := conditions.Write(ctx, r.Status(), before, g); !written {
		return err
	}
	said := map[string]bool{} // Ready repeats what another condition says
	for _, c := range changedConditions(before.Status.Conditions, status.Conditions) {
		if said[c.Message] {
			continue
		}
		said[c.Message] = true
		kind := corev1.EventTypeNormal
		if c.Status == "False" && !quietReasons[c.Reason] {
			kind = corev1.EventTypeWarning
		}
		r.Recorder.Eventf(g, nil, kind, c.Reason, c.Type, "%s", conditions.Shorten(c.Message, 900))
	}
	return nil
}

// quietReasons are False for a while in the ordinary course of things.
var quietReasons = map[string]bool{
	v1alpha1.ReasonPending: true, v1alpha1.ReasonProgressing: true, v1alpha1.ReasonPodsNotReady: true,
	v1alpha1.ReasonCertificateNotReady: true, v1alpha1.ReasonNoPods: true,
	v1alpha1.ReasonStoreNotReady: true, v1alpha1.ReasonDisabled: true, v1alpha1.ReasonNoTerminatedTLS: true,
}

func key(g *v1alpha1.QTLSGateway) types.NamespacedName { return client.ObjectKeyFromObject(g) }
