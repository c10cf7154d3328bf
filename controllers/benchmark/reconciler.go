// Package benchmark runs QTLSBenchmarks: it scales a gateway, or a copy of it, has
// a load generator measure it, and puts it back. What comes next follows from what
// is there (internal/bench/plan): the gateway's annotation, Jobs, and records of
// what was measured. Nothing of it is kept in memory.
package benchmark

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/conditions"
)

// +kubebuilder:rbac:groups=qtls.dev,resources=qtlsbenchmarks,verbs=get;list;watch
// +kubebuilder:rbac:groups=qtls.dev,resources=qtlsbenchmarks/status,verbs=patch
// +kubebuilder:rbac:groups=qtls.dev,resources=qtlsbenchmarks/finalizers,verbs=update
// +kubebuilder:rbac:groups=qtls.dev,resources=qtlsgateways,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods/log,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler reconciles QTLSBenchmarks.
type Reconciler struct {
	client.Client
	// APIReader reads past the cache: ConfigMaps and Secrets, of which that holds
	// metadata only, pods of load generators, of which it holds none, and gateways
	// as they are now.
	APIReader client.Reader
	Clock     clock.PassiveClock
	Recorder  events.EventRecorder
	Settings  generator.Settings
	Limits    plan.Limits
	// Kubernetes is the API server's version; empty where it is not known.
	Kubernetes string
	// Usages of the gateways' pods.
	Usages Usages
	// Logs of a pod's container, its last lines.
	Logs func(ctx context.Context, namespace, pod, container string) (io.ReadCloser, error)

	// since is when it took its first step, and was no longer another one that worked.
	since time.Time
	first sync.Once
}

// soon is when to look again after something was done whose effect comes back as
// an event; at the latest.
const soon = 100 * time.Millisecond

// lookAgain bounds how long nothing is looked at during a run.
const lookAgain = time.Minute

// Reconcile takes one step of a run.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	r.first.Do(func() { r.since = r.Clock.Now() })
	b := &v1alpha1.QTLSBenchmark{}
	err := r.Get(ctx, request.NamespacedName, b)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	gone := err != nil || b.DeletionTimestamp != nil
	// No finalizer: what has to be put back says so itself.
	if err := r.release(ctx, request.NamespacedName, b.UID, gone); err != nil {
		return ctrl.Result{}, err
	}
	if gone {
		return ctrl.Result{}, nil // its objects go by owner references
	}
	now := r.Clock.Now()
	if b.Status.Plan == nil {
		return ctrl.Result{RequeueAfter: soon}, r.report(ctx, b, planned(b, rand.Int64N(1<<31-1)+1, now))
	}

	s, err := r.fetch(ctx, b, now)
	if err != nil {
		return ctrl.Result{}, err
	}
	a := s.plan.Next(s.observed, r.Limits)
	if a.Kind == plan.Finish { // the report is of all
		if s.records, err = r.records(ctx, b); err != nil {
			return ctrl.Result{}, err
		}
	}
	done, actErr := r.act(ctx, s, a)
	problem, isProblem := conditions.AsProblem(actErr)
	if actErr != nil && !isProblem {
		return ctrl.Result{}, actErr
	}
	if s.records == nil && s.retold(a, done) {
		if s.records, err = r.records(ctx, b); err != nil {
			return ctrl.Result{}, err
		}
	}
	status, err := summarise(s, a, done, problem)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := r.report(ctx, b, status); err != nil {
		return ctrl.Result{}, err
	}
	switch {
	case problem != nil:
		return ctrl.Result{RequeueAfter: problem.After}, nil
	case a.Kind == plan.Nothing:
		return ctrl.Result{}, nil
	case a.Kind == plan.Wait, a.Kind == plan.WaitJob, a.Kind == plan.WaitProgrammed:
		after := lookAgain
		if a.After > 0 {
			after = min(after, a.After+time.Millisecond)
		}
		if done.next > 0 {
			after = min(after, done.next+time.Millisecond)
		}
		return ctrl.Result{RequeueAfter: after}, nil
	}
	return ctrl.Result{RequeueAfter: soon}, nil
}

// report writes the status if it has changed, and an event of a new phase.
func (r *Reconciler) report(ctx context.Context, b *v1alpha1.QTLSBenchmark, after v1alpha1.QTLSBenchmarkStatus) error {
	if equality.Semantic.DeepEqual(b.Status, after) {
		return nil
	}
	before := b.DeepCopy()
	b.Status = after
	if written, err := conditions.Write(ctx, r.Status(), before, b); !written {
		return err
	}
	if before.Status.Phase == after.Phase {
		return nil
	}
	kind, c := corev1.EventTypeNormal, meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionComplete)
	if after.Phase == v1alpha1.BenchmarkFailed || after.Phase == v1alpha1.BenchmarkAborting && c.Reason != v1alpha1.ReasonCancelled {
		kind = corev1.EventTypeWarning
	}
	r.Recorder.Eventf(b, nil, kind, string(after.Phase), "Measure", "%s", conditions.Shorten(fmt.Sprintf("%s: %s", c.Reason, c.Message), 900))
	return nil
}
