package hsmpool

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/hsmpool"
)

// referenceIndex finds the pools that name a Secret or ConfigMap: its values are
// `<kind>/<name>`.
const referenceIndex = "spec.members.references"

// workers are so many that pools whose members hang hold up no other.
const workers = 8

// retries after errors of the moment: at once, and later and later, but not later
// than members are asked again.
func retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, Interval)
}

// SetupWithManager registers the controller and its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.HSMPool{}, referenceIndex, references); err != nil {
		return fmt.Errorf("index of HSMPools by what they name: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.HSMPool{}). // its status too: conditions.Write
		// What a pool owns, by metadata: enough to put back what was changed or
		// deleted. A StatefulSet's status tells that a daemon is ready.
		Owns(&appsv1.StatefulSet{}, builder.OnlyMetadata).
		Owns(&networkingv1.NetworkPolicy{}, builder.OnlyMetadata).
		Owns(&policyv1.PodDisruptionBudget{}, builder.OnlyMetadata).
		Owns(&corev1.ServiceAccount{}, builder.OnlyMetadata).
		Owns(&corev1.PersistentVolumeClaim{}, builder.OnlyMetadata).
		Owns(&corev1.ConfigMap{}, builder.OnlyMetadata).
		Owns(&corev1.Service{}, builder.OnlyMetadata).
		Owns(&corev1.Secret{}, builder.OnlyMetadata).
		// Metadata only: no Secret's content stays in memory.
		WatchesMetadata(&corev1.Secret{}, r.naming("Secret")).
		WatchesMetadata(&corev1.ConfigMap{}, r.naming("ConfigMap")).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, RateLimiter: retries()}).
		Complete(r)
}

func references(o client.Object) []string {
	var names []string
	for _, m := range o.(*v1alpha1.HSMPool).Spec.Members {
		if m.Remote != nil {
			names = append(names, "Secret/"+m.Remote.TLSSecretRef.Name)
		}
		l, ok := hsmpool.LibraryOf(m)
		if !ok {
			continue
		}
		names = append(names, "Secret/"+l.Token.PINSecretRef.Name)
		for _, f := range l.Module.Files {
			switch {
			case f.SecretRef != nil:
				names = append(names, "Secret/"+f.SecretRef.Name)
			case f.ConfigMapRef != nil:
				names = append(names, "ConfigMap/"+f.ConfigMapRef.Name)
			}
		}
	}
	return names
}

// naming brings the pools that name an object of a kind.
func (r *Reconciler) naming(kind string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		var pools v1alpha1.HSMPoolList
		if err := r.List(ctx, &pools, client.InNamespace(o.GetNamespace()), client.MatchingFields{referenceIndex: kind + "/" + o.GetName()}); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "cannot find the HSMPools that name an object", "kind", kind, "object", client.ObjectKeyFromObject(o))
			return nil
		}
		var requests []reconcile.Request
		for i := range pools.Items {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pools.Items[i])})
		}
		return requests
	})
}
