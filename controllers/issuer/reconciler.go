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
	"qtls.dev/qtls/internal/issuers"
)

// +kubebuilder:rbac:groups=qtls.dev,resources=pqcissuers;pqcclusterissuers,verbs=get;list;watch
// +kubebuilder:rbac:groups=qtls.dev,resources=pqcissuers/status;pqcclusterissuers/status,verbs=get;update;patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler reconciles both kinds of issuers.
type Reconciler struct {
	client.Client
	// APIReader reads Secrets past the cache, which holds their metadata only.
	APIReader client.Reader
	Clock     clock.PassiveClock
	// Namespace of the operator, where PQCClusterIssuers' Secrets lie.
	Namespace string
	Recorder  events.EventRecorder
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
		authorities, err = issuers.Load(ctx, r.APIReader, issuers.SecretNamespace(issuer, r.Namespace), spec.CA, now)
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := r.report(ctx, issuer, summarise(spec, authorities, *status, issuer.GetGeneration(), now)); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: nextExpiry(authorities, now)}, nil
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

// nextExpiry is when time alone changes the status.
func nextExpiry(authorities issuers.Authorities, now time.Time) time.Duration {
	var next time.Duration
	for _, a := range authorities.List {
		if left := a.Certificate().NotAfter.Sub(now); next == 0 || left < next {
			next = max(left, time.Second)
		}
	}
	return next
}
