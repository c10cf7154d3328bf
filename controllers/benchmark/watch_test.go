package benchmark

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"qtls.dev/qtls/api/v1alpha1"
)

// A run whose log, or whose agents, cannot be had for hours goes on soon when they can.
func TestErrorsOfTheMomentAreTriedAgainSoon(t *testing.T) {
	limiter, last := retries(), time.Duration(0)
	for range 100 {
		last = limiter.When(reconcile.Request{})
	}
	if last != mostRetry || mostRetry > lookAgain {
		t.Errorf("after many errors it is tried again after %s", last)
	}
}

// Benchmarks that are over stay for years, as the measure of others. What happens to
// their gateway is nothing to them, and their records, which may be many, are not read.
func TestABenchmarkThatIsOverLeavesItsGatewayAndItsRecordsAlone(t *testing.T) {
	of := func(name string, phase v1alpha1.BenchmarkPhase, restored metav1.ConditionStatus) *v1alpha1.QTLSBenchmark {
		b := inPlace("")
		b.Name, b.UID = name, ""
		b.Status = v1alpha1.QTLSBenchmarkStatus{ObservedGeneration: 1, Phase: phase, Progress: "8/8", ReplicasBefore: ptr.To[int32](3), Plan: &v1alpha1.BenchmarkPlan{Seed: 7}, CompletionTime: ptr.To(metav1.NewTime(noon)),
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionRestored, Status: restored, Reason: "Because"}}}
		return b
	}
	all := []client.Object{of("pending", v1alpha1.BenchmarkPending, "True"), of("running", v1alpha1.BenchmarkRunning, "False"), of("over", v1alpha1.BenchmarkCompleted, "True"),
		of("over-and-not-back", v1alpha1.BenchmarkFailed, "False"), of("over-and-marked", v1alpha1.BenchmarkCancelled, "True")}
	g := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: "web",
		Annotations: map[string]string{v1alpha1.AnnotationBenchmark: `{"benchmark": "over-and-marked"}`}}}
	r := onFake(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		switch list.(type) {
		case *corev1.ConfigMapList, *metav1.PartialObjectMetadataList:
			return errors.New("records are read")
		}
		return c.List(ctx, list, opts...)
	}}, all...)

	var names []string
	for _, request := range r.ofGateway(t.Context(), g) {
		names = append(names, request.Name)
	}
	slices.Sort(names)
	if want := []string{"over-and-marked", "over-and-not-back", "pending", "running"}; !slices.Equal(names, want) {
		t.Errorf("a change of the gateway concerns %q, not %q", names, want)
	}
	over := all[2].DeepCopyObject().(*v1alpha1.QTLSBenchmark)
	if err := r.Get(t.Context(), client.ObjectKeyFromObject(over), over); err != nil {
		t.Fatal(err)
	}
	before := over.ResourceVersion
	if result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(over)}); err != nil || result.RequeueAfter > 0 {
		t.Errorf("%+v, %v", result, err)
	}
	if err := r.Get(t.Context(), client.ObjectKeyFromObject(over), over); err != nil || over.ResourceVersion != before || over.Status.Progress != "8/8" {
		t.Errorf("its status has become %+v, %v", over.Status, err)
	}
}
