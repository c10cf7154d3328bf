package issuer

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/issuers"
)

// secretIndex finds the issuers that name a Secret.
const secretIndex = "spec.ca.secretRefs.name"

// workers reconcile so many issuers of a kind at a time: an HSM that hangs holds
// up none of another pool.
const workers = 4

// SetupWithManager registers a controller and its watches for each kind.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	for kind, list := range map[string]func() client.ObjectList{
		issuers.Kind:        func() client.ObjectList { return &v1alpha1.PQCIssuerList{} },
		issuers.ClusterKind: func() client.ObjectList { return &v1alpha1.PQCClusterIssuerList{} },
	} {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), issuers.New(kind), secretIndex, issuers.SecretNames); err != nil {
			return fmt.Errorf("index of %s by Secret: %w", kind, err)
		}
		err := ctrl.NewControllerManagedBy(mgr).
			Named(strings.ToLower(kind)).
			For(issuers.New(kind)). // its status too: conditions.Write
			// Metadata only: no Secret's content stays in memory.
			WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, secret client.Object) []reconcile.Request {
				return r.concerned(ctx, kind, list(), secret, client.MatchingFields{secretIndex: secret.GetName()})
			})).
			// Which of a namespace's issuers have a key in a pool, only their Secrets
			// say.
			Watches(&v1alpha1.HSMPool{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, pool client.Object) []reconcile.Request {
				return r.concerned(ctx, kind, list(), pool)
			}), builder.WithPredicates(hsmpool.Notable())).
			WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
			Complete(reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
				issuer := issuers.New(kind)
				issuer.SetNamespace(request.Namespace)
				issuer.SetName(request.Name)
				return r.reconcile(ctx, issuer)
			}))
		if err != nil {
			return fmt.Errorf("controller of %s: %w", kind, err)
		}
	}
	return nil
}

// concerned lists the issuers of a kind that an object in the namespace of their
// Secrets and HSMPools concerns.
func (r *Reconciler) concerned(ctx context.Context, kind string, list client.ObjectList, o client.Object, which ...client.ListOption) []reconcile.Request {
	namespace := o.GetNamespace()
	if kind == issuers.ClusterKind {
		if namespace != r.Namespace {
			return nil
		}
		namespace = ""
	}
	if err := r.List(ctx, list, append(which, client.InNamespace(namespace))...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the issuers that an object concerns", "kind", kind, "object", client.ObjectKeyFromObject(o))
		return nil
	}
	var requests []reconcile.Request
	add := func(o client.Object) {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
	}
	switch l := list.(type) {
	case *v1alpha1.PQCIssuerList:
		for i := range l.Items {
			add(&l.Items[i])
		}
	case *v1alpha1.PQCClusterIssuerList:
		for i := range l.Items {
			add(&l.Items[i])
		}
	}
	return requests
}
