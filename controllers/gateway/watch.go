package gateway

import (
	"context"
	"fmt"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/resolve"
)

// referenceIndex finds the gateways that name an object: its values are
// `<kind>/<name>`.
const referenceIndex = "references"

// workers reconcile so many gateways at a time.
const workers = 4

// SetupWithManager registers the controller and its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.QTLSGateway{}, referenceIndex, func(o client.Object) []string {
		return indexValues(resolve.ReferencesOf(o.(*v1alpha1.QTLSGateway)))
	})
	if err != nil {
		return fmt.Errorf("index of references: %w", err)
	}
	named := func(kind string) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.naming(ctx, o.GetNamespace(), kind, o.GetName())
		})
	}
	service := func(ctx context.Context, namespace, name string) []reconcile.Request {
		return append(r.naming(ctx, namespace, "Service", name), r.backends.reaching(namespace, name)...)
	}
	changedSpec := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	return ctrl.NewControllerManagedBy(mgr).
		Named("gateway").
		For(&v1alpha1.QTLSGateway{}). // its status too: conditions.Write
		// What the gateway owns, by metadata: enough to put back what was
		// changed or deleted, and no Secret's content stays in memory.
		Owns(&appsv1.Deployment{}, builder.OnlyMetadata, changedSpec).
		Owns(&appsv1.StatefulSet{}, builder.OnlyMetadata).
		Owns(&networkingv1.NetworkPolicy{}, builder.OnlyMetadata, changedSpec).
		Owns(&corev1.ServiceAccount{}, builder.OnlyMetadata).
		Owns(&rbacv1.Role{}, builder.OnlyMetadata).
		Owns(&rbacv1.RoleBinding{}, builder.OnlyMetadata).
		Owns(&policyv1.PodDisruptionBudget{}, builder.OnlyMetadata, changedSpec).
		Owns(&corev1.ConfigMap{}, builder.OnlyMetadata).
		Owns(&corev1.Secret{}, builder.OnlyMetadata).
		Owns(&corev1.Service{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(gatewayOfPod)).
		Watches(&v1alpha1.QTLSPolicy{}, named("QTLSPolicy")).
		Watches(&v1alpha1.PQCCertificate{}, named("PQCCertificate")).
		Watches(&v1alpha1.HSMPool{}, named("HSMPool"), changedSpec). // its status changes with each signature
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return service(ctx, o.GetNamespace(), o.GetName())
		})).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return service(ctx, o.GetNamespace(), o.GetLabels()[discoveryv1.LabelServiceName])
		})).
		WatchesMetadata(&corev1.ConfigMap{}, named("ConfigMap")).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			requests := r.naming(ctx, o.GetNamespace(), "Secret", o.GetName())
			if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "PQCCertificate" {
				requests = append(requests, r.naming(ctx, o.GetNamespace(), "PQCCertificate", owner.Name)...)
			}
			return requests
		})).
		WatchesRawSource(source.Channel(r.Changes, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
}

func indexValues(refs resolve.References) []string {
	var values []string
	for kind, names := range map[string][]string{
		"QTLSPolicy": refs.Policies, "PQCCertificate": refs.Certificates, "Secret": refs.Secrets,
		"ConfigMap": refs.ConfigMaps, "Service": refs.Services, "HSMPool": refs.HSMPools,
	} {
		for _, name := range names {
			values = append(values, kind+"/"+name)
		}
	}
	return values
}

// naming lists the gateways that name an object. For a cluster-scoped one the
// namespace is empty: gateways of every namespace.
func (r *Reconciler) naming(ctx context.Context, namespace, kind, name string) []reconcile.Request {
	if name == "" {
		return nil
	}
	var list v1alpha1.QTLSGatewayList
	if err := r.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{referenceIndex: kind + "/" + name}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the gateways that name an object", "kind", kind, "name", name)
		return nil
	}
	requests := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&list.Items[i])
	}
	return requests
}

// backends are the Services that gateways' endpoints are of. Those of revisions
// that are published still the spec may not name any more, so that its index
// does not find them. Each gateway's are known once it was reconciled, as each is
// when the operator starts. It may be used from several goroutines.
type backends struct {
	mu       sync.Mutex
	services map[types.NamespacedName][]string
}

func (b *backends) set(gateway types.NamespacedName, services []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(services) == 0 {
		delete(b.services, gateway)
		return
	}
	if b.services == nil {
		b.services = map[types.NamespacedName][]string{}
	}
	b.services[gateway] = services
}

// reaching lists the gateways with endpoints of a Service.
func (b *backends) reaching(namespace, service string) []reconcile.Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	var requests []reconcile.Request
	for gateway, services := range b.services {
		if gateway.Namespace == namespace && slices.Contains(services, service) {
			requests = append(requests, reconcile.Request{NamespacedName: gateway})
		}
	}
	return requests
}

func gatewayOfPod(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[v1alpha1.LabelGateway]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}
