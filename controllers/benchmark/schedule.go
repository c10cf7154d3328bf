package benchmark

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/schedule"
	"qtls.dev/qtls/internal/conditions"
)

// +kubebuilder:rbac:groups=qtls.dev,resources=qtlsbenchmarkschedules,verbs=get;list;watch
// +kubebuilder:rbac:groups=qtls.dev,resources=qtlsbenchmarkschedules/status,verbs=patch
// +kubebuilder:rbac:groups=qtls.dev,resources=qtlsbenchmarkschedules/finalizers,verbs=update
// +kubebuilder:rbac:groups=qtls.dev,resources=qtlsbenchmarks,verbs=get;list;watch;create;delete

// ScheduleReconciler makes the benchmarks of QTLSBenchmarkSchedules, and deletes
// old ones.
type ScheduleReconciler struct {
	client.Client
	// APIReader reads past the cache: what is stale could be made twice.
	APIReader client.Reader
	Clock     clock.PassiveClock
	Recorder  events.EventRecorder
}

// SetupWithManager registers the controller and its watches.
func (r *ScheduleReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("benchmark-schedule").
		For(&v1alpha1.QTLSBenchmarkSchedule{}).
		Owns(&v1alpha1.QTLSBenchmark{}).
		Complete(r)
}

// Reconcile makes the benchmark that is due, and deletes those that are not kept.
func (r *ScheduleReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	s := &v1alpha1.QTLSBenchmarkSchedule{}
	if err := r.APIReader.Get(ctx, request.NamespacedName, s); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if s.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // its benchmarks go by owner references
	}
	now, after := r.Clock.Now(), *s.Status.DeepCopy()
	after.ObservedGeneration = s.Generation
	ready := func(status metav1.ConditionStatus, reason, message string) {
		conditions.Set(&after.Conditions, v1alpha1.ConditionReady, status, reason, message, s.Generation, now)
	}
	runs, err := r.runs(ctx, s, &after)
	if err != nil {
		return ctrl.Result{}, err
	}
	parsed, err := schedule.Parse(s.Spec.Schedule, ptr.Deref(s.Spec.TimeZone, ""))
	if err != nil {
		ready(metav1.ConditionFalse, v1alpha1.ReasonInvalid, err.Error())
		return ctrl.Result{}, r.report(ctx, s, after)
	}
	d := parsed.Decide(stateOfSchedule(s, runs, now))
	after.Active = d.Active
	// Before another one is made: a quota may have no room for it else.
	kept := r.deleteOld(ctx, s.Namespace, d.Delete)
	if !d.Make.IsZero() {
		b := scheduled(s, d.Make, d.Baseline)
		if err := r.create(ctx, s, b); err != nil {
			problem, is := conditions.AsProblem(err)
			if !is {
				return ctrl.Result{}, err
			}
			ready(metav1.ConditionFalse, problem.Reason, problem.Message)
			return ctrl.Result{RequeueAfter: problem.After}, r.report(ctx, s, after)
		}
		after.Active, after.LastScheduleTime = b.Name, &metav1.Time{Time: d.Make}
	}
	var wait time.Duration
	switch {
	case s.Spec.Suspend:
		ready(metav1.ConditionFalse, v1alpha1.ReasonSuspended, "spec.suspend is true: no benchmark is made")
	case !d.Waiting.IsZero():
		waits, err := r.waits(ctx, s.Namespace, d.Active)
		if err != nil {
			return ctrl.Result{}, err
		}
		if waits != nil {
			ready(metav1.ConditionFalse, waits.Reason, fmt.Sprintf("QTLSBenchmark %q has not begun, and the benchmark of %s is due: %s", d.Active, d.Waiting.Format(time.RFC3339), waits.Message))
			break
		}
		ready(metav1.ConditionTrue, v1alpha1.ReasonScheduled, fmt.Sprintf("the benchmark of %s begins when QTLSBenchmark %q is over", d.Waiting.Format(time.RFC3339), d.Active))
	default:
		// Only a minute at a time: clocks are set.
		wait = min(d.Next.Sub(now)+time.Second, time.Minute)
		ready(metav1.ConditionTrue, v1alpha1.ReasonScheduled, "the next benchmark is made at "+d.Next.Format(time.RFC3339))
	}
	return ctrl.Result{RequeueAfter: wait}, errors.Join(kept, r.report(ctx, s, after))
}

// deleteOld benchmarks, as many as can be.
func (r *ScheduleReconciler) deleteOld(ctx context.Context, namespace string, names []string) error {
	var errs []error
	for _, name := range names {
		b := &v1alpha1.QTLSBenchmark{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		if err := r.Delete(ctx, b, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("QTLSBenchmark %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// waits says what a benchmark waits for that has not begun; nil where it has.
func (r *ScheduleReconciler) waits(ctx context.Context, namespace, name string) (*metav1.Condition, error) {
	b := &v1alpha1.QTLSBenchmark{}
	if err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, b); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("QTLSBenchmark %s: %w", name, err)
	}
	if b.Status.Phase != v1alpha1.BenchmarkPending {
		return nil, nil
	}
	return meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionComplete), nil
}

// runs of a schedule. What follows from them goes into the status: what an operator
// before has made, and not noted.
func (r *ScheduleReconciler) runs(ctx context.Context, s *v1alpha1.QTLSBenchmarkSchedule, status *v1alpha1.QTLSBenchmarkScheduleStatus) ([]schedule.Run, error) {
	var list v1alpha1.QTLSBenchmarkList
	if err := r.APIReader.List(ctx, &list, client.InNamespace(s.Namespace), client.MatchingLabels{v1alpha1.LabelSchedule: s.Name}); err != nil {
		return nil, fmt.Errorf("QTLSBenchmarks of QTLSBenchmarkSchedule %s: %w", s.Name, err)
	}
	var runs []schedule.Run
	for i := range list.Items {
		b := &list.Items[i]
		at, err := time.Parse(time.RFC3339, b.Annotations[v1alpha1.AnnotationScheduledAt])
		if err != nil || !metav1.IsControlledBy(b, s) || b.DeletionTimestamp != nil {
			continue
		}
		runs = append(runs, runOf(b, at))
		if t := status.LastScheduleTime; t == nil || t.Time.Before(at) {
			status.LastScheduleTime = &metav1.Time{Time: at}
		}
		if t := status.LastSuccessfulTime; b.Status.Phase == v1alpha1.BenchmarkCompleted && (t == nil || t.Before(b.Status.CompletionTime)) {
			status.LastSuccessfulTime = b.Status.CompletionTime
		}
	}
	return runs, nil
}

// runOf a benchmark. It may be the measure of others when every point is a result,
// and it has passed where that was asked, or was refused a comparison and nothing else:
// with other machines, quotas or load another level begins.
func runOf(b *v1alpha1.QTLSBenchmark, at time.Time) schedule.Run {
	passed := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionPassed)
	completed := b.Status.Phase == v1alpha1.BenchmarkCompleted
	return schedule.Run{Name: b.Name, At: at, Over: b.Status.Phase.Over(), Completed: completed,
		Good: completed && b.Status.ReportRef != nil && meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionValid) &&
			(passed == nil || passed.Status == metav1.ConditionTrue || passed.Reason == v1alpha1.ReasonRefused)}
}

func stateOfSchedule(s *v1alpha1.QTLSBenchmarkSchedule, runs []schedule.Run, now time.Time) schedule.State {
	o := schedule.State{Now: now, Last: s.CreationTimestamp.Time, Suspended: s.Spec.Suspend,
		Deadline:   time.Duration(ptr.Deref(s.Spec.StartingDeadlineSeconds, 0)) * time.Second,
		Successful: int(ptr.Deref(s.Spec.SuccessfulHistoryLimit, v1alpha1.DefaultSuccessfulHistoryLimit)), Failed: int(ptr.Deref(s.Spec.FailedHistoryLimit, v1alpha1.DefaultFailedHistoryLimit)),
		Previous: s.Spec.Baseline == v1alpha1.ScheduledBaselinePrevious, Runs: runs}
	if t := s.Status.LastScheduleTime; t != nil {
		o.Last, o.Noted = t.Time, t.Time
	}
	return o
}

// scheduled is the benchmark of a time.
func scheduled(s *v1alpha1.QTLSBenchmarkSchedule, at time.Time, baseline string) *v1alpha1.QTLSBenchmark {
	b := &v1alpha1.QTLSBenchmark{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: schedule.Name(s.Name, at),
		Labels:          map[string]string{v1alpha1.LabelSchedule: s.Name},
		Annotations:     map[string]string{v1alpha1.AnnotationScheduledAt: at.UTC().Format(time.RFC3339)},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s, v1alpha1.GroupVersion.WithKind("QTLSBenchmarkSchedule"))},
	}, Spec: *s.Spec.Template.Spec.DeepCopy()}
	if baseline != "" {
		if b.Spec.BaselineRef == nil {
			b.Spec.BaselineRef = &v1alpha1.BenchmarkBaseline{}
		}
		b.Spec.BaselineRef.Name = reportName(&v1alpha1.QTLSBenchmark{ObjectMeta: metav1.ObjectMeta{Name: baseline}})
	}
	return b
}

// create a benchmark. One of the same name is the same one, if it is the schedule's.
func (r *ScheduleReconciler) create(ctx context.Context, s *v1alpha1.QTLSBenchmarkSchedule, b *v1alpha1.QTLSBenchmark) error {
	err := r.Create(ctx, b)
	if apierrors.IsAlreadyExists(err) {
		existing := &v1alpha1.QTLSBenchmark{}
		err = r.APIReader.Get(ctx, client.ObjectKeyFromObject(b), existing)
		if err == nil && !metav1.IsControlledBy(existing, s) {
			return conditions.Waiting(time.Minute, v1alpha1.ReasonNotApplied, "QTLSBenchmark %q exists and is not this schedule's; delete it", b.Name)
		}
		return err
	}
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		return conditions.Waiting(time.Minute, v1alpha1.ReasonNotApplied, "spec.template: QTLSBenchmark %q cannot be made: %v", b.Name, err)
	}
	if err != nil {
		return fmt.Errorf("QTLSBenchmark %s: %w", b.Name, err)
	}
	r.Recorder.Eventf(s, b, corev1.EventTypeNormal, v1alpha1.ReasonScheduled, "Create", "QTLSBenchmark %q is made", b.Name)
	return nil
}

func (r *ScheduleReconciler) report(ctx context.Context, s *v1alpha1.QTLSBenchmarkSchedule, after v1alpha1.QTLSBenchmarkScheduleStatus) error {
	if equality.Semantic.DeepEqual(s.Status, after) {
		return nil
	}
	before := s.DeepCopy()
	s.Status = after
	_, err := conditions.Write(ctx, r.Status(), before, s)
	return err
}
