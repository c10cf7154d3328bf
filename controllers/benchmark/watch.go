package benchmark

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"qtls.dev/qtls/api/v1alpha1"
)

// gatewayIndex finds the benchmarks that name a gateway.
const gatewayIndex = "spec.gatewayRef.name"

// workers: benchmarks share the machines that they measure, and a step is short.
const workers = 2

// mostRetry is how long an error of the moment is waited after at most: samples are due at
// moments, and a run has an end.
const mostRetry = 30 * time.Second

// retries after errors of the moment: at once, and later and later.
func retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, mostRetry)
}

// SetupWithManager registers the controller and its watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.QTLSBenchmark{}, gatewayIndex, func(o client.Object) []string {
		return []string{o.(*v1alpha1.QTLSBenchmark).Spec.GatewayRef.Name}
	})
	if err != nil {
		return fmt.Errorf("index of QTLSBenchmarks by gateway: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("benchmark").
		For(&v1alpha1.QTLSBenchmark{}). // its status too: conditions.Write
		Owns(&batchv1.Job{}).
		Owns(&v1alpha1.QTLSGateway{}). // copies
		// Peers, by metadata: of Deployments there are many that are not ours. That of
		// their status changes with it.
		Owns(&appsv1.Deployment{}, builder.OnlyMetadata).
		Watches(&v1alpha1.QTLSGateway{}, handler.EnqueueRequestsFromMapFunc(r.ofGateway)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, RateLimiter: retries()}).
		Complete(r)
}

// heeds says whether a benchmark does anything, or says anything else, when its gateway
// changes: until it is over, and the gateway is put back.
func heeds(b *v1alpha1.QTLSBenchmark) bool {
	return !b.Status.Phase.Over() || meta.IsStatusConditionFalse(b.Status.Conditions, v1alpha1.ConditionRestored)
}

// ofGateway lists the benchmarks that name a gateway and heed it, and the one that has it: that
// one also where it is there no more, for then the gateway has to be put back.
func (r *Reconciler) ofGateway(ctx context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	if h, err := holdOf(o.(*v1alpha1.QTLSGateway)); err == nil && h != nil {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: h.Benchmark}})
	}
	var list v1alpha1.QTLSBenchmarkList
	if err := r.List(ctx, &list, client.InNamespace(o.GetNamespace()), client.MatchingFields{gatewayIndex: o.GetName()}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find the QTLSBenchmarks that name a gateway", "gateway", client.ObjectKeyFromObject(o))
		return requests
	}
	for i := range list.Items {
		if heeds(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}
