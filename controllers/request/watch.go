package request

import (
	"context"
	"fmt"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/issuers"
	"qtls.dev/qtls/internal/latewatch"
)

// workers sign so many requests at a time.
const workers = 4

// SetupWithManager registers the controller. Its watches begin when
// cert-manager's CertificateRequests are there.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	c, err := controller.New("certificaterequest", mgr, controller.Options{Reconciler: r, MaxConcurrentReconciles: workers})
	if err != nil {
		return err
	}
	_, err = latewatch.Add(mgr, cmapi.SchemeGroupVersion.WithKind(cmapi.CertificateRequestKind), func() error {
		requests := source.Kind[client.Object](mgr.GetCache(), &cmapi.CertificateRequest{}, &handler.EnqueueRequestForObject{},
			predicate.NewPredicateFuncs(func(o client.Object) bool { return isOpen(o.(*cmapi.CertificateRequest)) }))
		if err := c.Watch(requests); err != nil {
			return fmt.Errorf("watch of CertificateRequests: %w", err)
		}
		for _, kind := range []string{issuers.Kind, issuers.ClusterKind} {
			waiting := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, issuer client.Object) []reconcile.Request {
				return r.waitingFor(ctx, kind, issuer)
			})
			if err := c.Watch(source.Kind(mgr.GetCache(), issuers.New(kind), waiting)); err != nil {
				return fmt.Errorf("watch of %s: %w", kind, err)
			}
		}
		return nil
	})
	return err
}

// waitingFor lists the open requests to an issuer.
func (r *Reconciler) waitingFor(ctx context.Context, kind string, issuer client.Object) []reconcile.Request {
	var list cmapi.CertificateRequestList
	if err := r.List(ctx, &list, client.InNamespace(issuer.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the requests that wait for an issuer", "kind", kind, "issuer", client.ObjectKeyFromObject(issuer))
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		cr := &list.Items[i]
		ref := cr.Spec.IssuerRef
		if isOpen(cr) && ref.Group == v1alpha1.GroupName && ref.Kind == kind && ref.Name == issuer.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cr)})
		}
	}
	return requests
}
