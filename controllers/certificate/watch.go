package certificate

import (
	"context"
	"fmt"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/issuers"
	"qtls.dev/qtls/internal/latewatch"
)

const (
	// secretIndex finds the PQCCertificates whose certificates belong into a
	// Secret, also when it is not theirs.
	secretIndex = "certificateSecrets"
	// issuerIndex finds the PQCCertificates of an issuer: `<kind>/<name>`.
	issuerIndex = "spec.issuerRef"
	// poolIndex finds the PQCCertificates whose keys lie in an HSMPool.
	poolIndex = "spec.keyStorage.hsmRef.name"
)

// workers reconcile so many PQCCertificates at a time.
const workers = 4

// mostRetry is how long an error of the moment is waited after at most: the same
// PQCCertificate may have another certificate to renew meanwhile.
const mostRetry = 30 * time.Second

// retries after errors of the moment: at once, and later and later.
func retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, mostRetry)
}

// SetupWithManager registers the controller and its watches. That of
// cert-manager's CertificateRequests begins when they are there.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	for name, values := range map[string]client.IndexerFunc{secretIndex: secretNames, issuerIndex: issuerName, poolIndex: poolName} {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.PQCCertificate{}, name, values); err != nil {
			return fmt.Errorf("index %s: %w", name, err)
		}
	}
	owner := handler.EnqueueRequestForOwner(mgr.GetScheme(), mgr.GetRESTMapper(), &v1alpha1.PQCCertificate{}, handler.OnlyControllerOwner())
	b := ctrl.NewControllerManagedBy(mgr).
		Named("pqccertificate").
		For(&v1alpha1.PQCCertificate{}). // its status too: conditions.Write
		// Metadata only: no Secret's content stays in memory.
		WatchesMetadata(&corev1.Secret{}, owner).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.having(ctx, o.GetNamespace(), secretIndex, o.GetName())
		})).
		Watches(&v1alpha1.HSMPool{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.having(ctx, o.GetNamespace(), poolIndex, o.GetName())
		}), builder.WithPredicates(hsmpool.Notable())).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, RateLimiter: retries()})
	for _, kind := range []string{issuers.Kind, issuers.ClusterKind} {
		b = b.Watches(issuers.New(kind), handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.having(ctx, o.GetNamespace(), issuerIndex, kind+"/"+o.GetName())
		}))
	}
	c, err := b.Build(r)
	if err != nil {
		return err
	}
	r.requests, err = latewatch.Add(mgr, cmapi.SchemeGroupVersion.WithKind(cmapi.CertificateRequestKind), func() error {
		return c.Watch(source.Kind[client.Object](mgr.GetCache(), &cmapi.CertificateRequest{}, owner))
	})
	return err
}

func secretNames(o client.Object) []string {
	c := o.(*v1alpha1.PQCCertificate)
	var names []string
	for _, a := range c.Spec.Algorithms {
		name := v1alpha1.CertificateSecretName(c.Name, a)
		names = append(names, name, pendingName(name))
	}
	return names
}

func issuerName(o client.Object) []string {
	ref := o.(*v1alpha1.PQCCertificate).Spec.IssuerRef
	if ref.Group != v1alpha1.GroupName {
		return nil
	}
	return []string{ref.Kind + "/" + ref.Name}
}

func poolName(o client.Object) []string {
	if ref := o.(*v1alpha1.PQCCertificate).Spec.KeyStorage.HSMRef; ref != nil {
		return []string{ref.Name}
	}
	return nil
}

// having lists the PQCCertificates with a value in an index; of every
// namespace if it is empty.
func (r *Reconciler) having(ctx context.Context, namespace, index, value string) []reconcile.Request {
	var list v1alpha1.PQCCertificateList
	if err := r.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{index: value}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the PQCCertificates that an object concerns", "index", index, "value", value)
		return nil
	}
	requests := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		requests[i].NamespacedName = client.ObjectKeyFromObject(&list.Items[i])
	}
	return requests
}
