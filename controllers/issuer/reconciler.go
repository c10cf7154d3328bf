// Package issuer keeps the status of PQCIssuers and PQCClusterIssuers: whether
// they can sign, with which authorities, and if not, why. What they sign is
// package request's matter.
package issuer

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/issuers"
)

// +kubebuilder:rbac:groups=qtls.dev,resources=pqcissuers;pqcclusterissuers;hsmpools,verbs=get;list;watch
// +kubebuilder:rbac:groups=qtls.dev,resources=pqcissuers/status;pqcclusterissuers/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler reconciles both kinds of issuers.
type Reconciler struct {
	client.Client
	// APIReader reads Secrets past the cache, which holds their metadata only.
	APIReader client.Reader
	Clock     clock.PassiveClock
	// Namespace of the operator, where PQCClusterIssuers' Secrets and HSMPools lie.
	Namespace string
	Recorder  events.EventRecorder
	// HSMs are the clients of HSMPools' members.
	HSMs *hsmpool.Clients
}

// reconcile observes one issuer and says in its status what was observed.
func (r *Reconciler) reconcile(ctx context.Context, issuer client.Object) (result ctrl.Result, err error) {
	if err := r.Get(ctx, client.ObjectKeyFromObject(issuer), issuer); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !issuer.GetDeletionTimestamp().IsZero() {
		return ctrl.Result{}, nil
	}
	now := r.Clock.Now()
	spec, status := issuers.Parts(issuer)
	var authorities issuers.Authorities
	if spec.CA != nil {
		authorities, err = issuers.Load(ctx, r.keys(issuers.SecretNamespace(issuer, r.Namespace)), spec.CA, now)
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := r.report(ctx, issuer, summarise(spec, authorities, *status, issuer.GetGeneration(), now)); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: nextLook(authorities, now)}, nil
}

func (r *Reconciler) keys(namespace string) hsmpool.Keys {
	return hsmpool.Keys{Clients: r.HSMs, Pools: r.Client, Secrets: r.APIReader, Namespace: namespace}
}

// report writes the status if it has changed, and an event if readiness has.
func (r *Reconciler) report(ctx context.Context, issuer client.Object, after v1alpha1.IssuerStatus) error {
	_, status := issuers.Parts(issuer)
	if equality.Semantic.DeepEqual(*status, after) {
		return nil
	}
	before := issuer.DeepCopyObject().(client.Object)
	old := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	*status = after
	if written, err := conditions.Write(ctx, r.Status(), before, issuer); !written {
		return err
	}
	c := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionReady)
	if old == nil || old.Status != c.Status || old.Reason != c.Reason {
		kind := corev1.EventTypeNormal
		if c.Status != "True" {
			kind = corev1.EventTypeWarning
		}
		r.Recorder.Eventf(issuer, nil, kind, c.Reason, "Observe", "%s", conditions.Shorten(c.Message, 900))
	}
	return nil
}

// hsmInterval is how often is looked whether a key is still in its HSMs.
const hsmInterval = time.Minute

// nextLook is when the status may change without an event.
func nextLook(authorities issuers.Authorities, now time.Time) time.Duration {
	var next time.Duration
	at := func(after time.Duration) {
		if next == 0 || after < next {
			next = max(after, time.Second)
		}
	}
	for _, a := range authorities.List {
		at(a.End().Sub(now))
		if a.HSMPool != "" {
			at(hsmInterval)
		}
	}
	for _, p := range authorities.Problems {
		if p.After > 0 {
			at(p.After)
		}
	}
	return next
}
