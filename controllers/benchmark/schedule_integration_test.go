//go:build integration

package benchmark

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/schedule"
	"qtls.dev/qtls/internal/testenv"
)

// nightly is a schedule of 3 o'clock, UTC, and a clock that a test sets.
type nightly struct {
	*world
	clock    *clocktesting.FakePassiveClock
	schedule *v1alpha1.QTLSBenchmarkSchedule
}

func newNightly(t *testing.T, change func(*v1alpha1.QTLSBenchmarkScheduleSpec)) *nightly {
	t.Helper()
	w := newWorld(t)
	n := &nightly{world: w, schedule: &v1alpha1.QTLSBenchmarkSchedule{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "nightly"},
		Spec:       v1alpha1.QTLSBenchmarkScheduleSpec{Schedule: "0 3 * * *", Template: v1alpha1.QTLSBenchmarkTemplate{Spec: w.spec()}}}}
	change(&n.schedule.Spec)
	w.create(n.schedule)
	n.clock = clocktesting.NewFakePassiveClock(n.schedule.CreationTimestamp.Time)
	n.tonight()
	return n
}

// tonight is the next time of the schedule. The clock is set to it.
func (n *nightly) tonight() time.Time {
	now := n.clock.Now().UTC()
	at := time.Date(now.Year(), now.Month(), now.Day(), 3, 0, 0, 0, time.UTC)
	if !at.After(now) {
		at = at.AddDate(0, 0, 1)
	}
	n.clock.SetTime(at)
	return at
}

func (n *nightly) step(c client.Client) error {
	r := &ScheduleReconciler{Client: c, APIReader: n.world.Client, Clock: n.clock, Recorder: events.NewFakeRecorder(100)}
	_, err := r.Reconcile(n.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(n.schedule)})
	return err
}

// do a step, and what follows of it.
func (n *nightly) do() {
	n.t.Helper()
	if err := n.step(n.world.Client); err != nil {
		n.t.Fatal(err)
	}
	n.get(n.schedule)
}

func (n *nightly) names() []string {
	n.t.Helper()
	var list v1alpha1.QTLSBenchmarkList
	if err := n.List(n.t.Context(), &list, client.InNamespace(n.namespace)); err != nil {
		n.t.Fatal(err)
	}
	var names []string
	for _, b := range list.Items {
		names = append(names, b.Name)
	}
	slices.Sort(names)
	return names
}

// end a benchmark.
func (n *nightly) end(name string, phase v1alpha1.BenchmarkPhase, passed metav1.ConditionStatus) {
	n.t.Helper()
	n.endFor(name, phase, passed, "Because")
}

func (n *nightly) endFor(name string, phase v1alpha1.BenchmarkPhase, passed metav1.ConditionStatus, reason string) {
	n.t.Helper()
	b := &v1alpha1.QTLSBenchmark{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: name}}
	n.get(b)
	now := metav1.NewTime(n.clock.Now().Truncate(time.Second))
	b.Status.Phase, b.Status.CompletionTime, b.Status.ReportRef = phase, &now, &v1alpha1.BenchmarkReportReference{Name: name + "-report"}
	for kind, status := range map[string]metav1.ConditionStatus{v1alpha1.ConditionValid: "True", v1alpha1.ConditionPassed: passed} {
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason})
	}
	if err := n.Status().Update(n.t.Context(), b); err != nil {
		n.t.Fatal(err)
	}
}

func (n *nightly) ready(status metav1.ConditionStatus, reason, says string) {
	n.t.Helper()
	c := meta.FindStatusCondition(n.schedule.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, says) || c.ObservedGeneration != n.schedule.Generation {
		n.t.Errorf("%+v, want %s for %s saying %q", c, status, reason, says)
	}
}

func TestAScheduleMakesOneBenchmarkAtATimeAndKeepsTheLatest(t *testing.T) {
	n := newNightly(t, func(s *v1alpha1.QTLSBenchmarkScheduleSpec) {
		s.SuccessfulHistoryLimit, s.FailedHistoryLimit = ptr.To[int32](2), ptr.To[int32](1)
	})
	n.clock.SetTime(n.clock.Now().Add(-time.Minute))
	if n.do(); len(n.names()) != 0 {
		t.Fatalf("before it is due there are %q", n.names())
	}
	at := n.tonight()
	n.ready("True", v1alpha1.ReasonScheduled, "the next benchmark is made at "+at.Format(time.RFC3339))

	first := schedule.Name("nightly", at)
	n.do()
	if n.do(); !slices.Equal(n.names(), []string{first}) || n.schedule.Status.Active != first || !n.schedule.Status.LastScheduleTime.Time.Equal(at) {
		t.Fatalf("%q, %+v", n.names(), n.schedule.Status)
	}
	b := &v1alpha1.QTLSBenchmark{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: first}}
	n.get(b)
	if !metav1.IsControlledBy(b, n.schedule) || b.Spec.GatewayRef.Name != "web" || b.Spec.BaselineRef != nil {
		t.Errorf("%+v", b)
	}

	// The next one waits for it.
	next := n.tonight()
	if n.do(); len(n.names()) != 1 {
		t.Errorf("two at a time: %q", n.names())
	}
	n.ready("True", v1alpha1.ReasonScheduled, fmt.Sprintf("the benchmark of %s begins when QTLSBenchmark %q is over", next.Format(time.RFC3339), first))
	n.end(first, v1alpha1.BenchmarkCompleted, "True")
	made := []string{first}
	for night := range 6 { // completed by turns, and failed
		n.do()
		name := schedule.Name("nightly", next)
		if n.schedule.Status.Active != name {
			t.Fatalf("night %d: %+v, want %s", night, n.schedule.Status, name)
		}
		made = append(made, name)
		phase := v1alpha1.BenchmarkCompleted
		if night%2 == 0 {
			phase = v1alpha1.BenchmarkFailed
		}
		n.end(name, phase, "True")
		next = n.tonight()
	}
	n.schedule.Spec.Suspend = true
	if err := n.Update(t.Context(), n.schedule); err != nil {
		t.Fatal(err)
	}
	n.do()
	n.do()
	n.ready("False", v1alpha1.ReasonSuspended, "spec.suspend is true")
	// made: 0 completed, 1 failed, 2 completed, and so on.
	if want := []string{made[4], made[5], made[6]}; !slices.Equal(n.names(), want) {
		t.Errorf("%q are kept, want %q of %q", n.names(), want, made)
	}
	if n.schedule.Status.Active != "" || n.schedule.Status.LastSuccessfulTime == nil {
		t.Errorf("%+v", n.schedule.Status)
	}
}

func TestABenchmarkIsComparedWithTheLastGoodOneOfItsSchedule(t *testing.T) {
	n := newNightly(t, func(s *v1alpha1.QTLSBenchmarkScheduleSpec) {
		s.Baseline, s.SuccessfulHistoryLimit = v1alpha1.ScheduledBaselinePrevious, ptr.To[int32](1)
		s.Template.Spec.BaselineRef = &v1alpha1.BenchmarkBaseline{Name: "release", Tolerance: ptr.To[int32](3)}
	})
	var made []string
	for night, want := range []string{"release", "0-report", "0-report", "2-report", "3-report"} {
		n.do()
		b := &v1alpha1.QTLSBenchmark{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: n.schedule.Status.Active}}
		n.get(b)
		made = append(made, b.Name)
		if index := int(want[0] - '0'); index >= 0 && index < len(made) {
			want = made[index] + want[1:]
		}
		if ref := b.Spec.BaselineRef; ref == nil || ref.Name != want || *ref.Tolerance != 3 {
			t.Errorf("night %d: %+v, want %s", night, ref, want)
		}
		passed, reason := metav1.ConditionTrue, v1alpha1.ReasonSame
		switch night {
		case 1:
			passed, reason = metav1.ConditionFalse, v1alpha1.ReasonWorse
		case 3: // of other machines: what was before says nothing of them
			passed, reason = metav1.ConditionFalse, v1alpha1.ReasonRefused
		}
		n.endFor(b.Name, v1alpha1.BenchmarkCompleted, passed, reason)
		n.tonight()
	}
}

// An operator dies after each effect that it has, and the next one makes nothing
// twice.
func TestAnOperatorThatDiesMakesNoBenchmarkTwice(t *testing.T) {
	n := newNightly(t, func(s *v1alpha1.QTLSBenchmarkScheduleSpec) { s.FailedHistoryLimit = ptr.To[int32](0) })
	watching, err := client.NewWithWatch(testenv.Config(), client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	killed, effects, made := errors.New("the operator is killed"), 0, map[string]int{}
	dies := func(err error) error {
		if effects++; err == nil && effects%2 == 1 {
			return killed
		}
		return err
	}
	c := interceptor.NewClient(watching, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			err := c.Create(ctx, o, opts...)
			if err == nil {
				made[o.GetName()]++
			}
			return dies(err)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return dies(c.Delete(ctx, o, opts...))
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return dies(c.SubResource(sub).Patch(ctx, o, p, opts...))
		},
	})
	for night := range 3 {
		name := schedule.Name("nightly", n.clock.Now())
		for range 6 {
			if err := n.step(c); err != nil && !errors.Is(err, killed) {
				t.Fatal(err)
			}
			if slices.Contains(n.names(), name) {
				n.end(name, v1alpha1.BenchmarkFailed, "False") // and so it is deleted at once
			}
		}
		if made[name] != 1 || len(n.names()) != 0 {
			t.Errorf("night %d: made %v, and there are %q", night, made, n.names())
		}
		n.tonight()
	}
}

// A quota has room for two benchmarks. Both are over when the third is due, and one of them
// is to go.
func TestAScheduleMakesRoomBeforeItNeedsIt(t *testing.T) {
	n := newNightly(t, func(s *v1alpha1.QTLSBenchmarkScheduleSpec) { s.SuccessfulHistoryLimit = ptr.To[int32](1) })
	watching, err := client.NewWithWatch(testenv.Config(), client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	quota := interceptor.NewClient(watching, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if there := n.names(); len(there) >= 2 {
			return apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("qtlsbenchmarks").GroupResource(), o.GetName(), errors.New("exceeded quota: count"))
		}
		return c.Create(ctx, o, opts...)
	}})
	var made []string
	for night := range 3 {
		name := schedule.Name("nightly", n.clock.Now())
		if err := n.step(quota); err != nil {
			t.Fatal(err)
		}
		if n.get(n.schedule); n.schedule.Status.Active != name {
			t.Fatalf("night %d: %q are there, and not %s: %+v", night, n.names(), name, n.schedule.Status)
		}
		made = append(made, name)
		n.end(name, v1alpha1.BenchmarkCompleted, "True")
		n.tonight()
	}
	if want := made[1:]; !slices.Equal(n.names(), want) {
		t.Errorf("%q are there, want %q", n.names(), want)
	}
}

// A benchmark that waits for what is not there keeps the next one waiting too. It does
// not go unsaid.
func TestAScheduleWhoseBenchmarkDoesNotBeginIsNotReady(t *testing.T) {
	n := newNightly(t, func(*v1alpha1.QTLSBenchmarkScheduleSpec) {})
	n.do()
	b := &v1alpha1.QTLSBenchmark{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: n.schedule.Status.Active}}
	n.get(b)
	b.Status.Phase = v1alpha1.BenchmarkPending
	meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionComplete, Status: "False", Reason: v1alpha1.ReasonAuthorityNotFound, Message: `there is no ConfigMap "ca"`})
	if err := n.Status().Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	n.do()
	n.ready("True", v1alpha1.ReasonScheduled, "the next benchmark is made at")
	due := n.tonight()
	n.do()
	n.ready("False", v1alpha1.ReasonAuthorityNotFound, fmt.Sprintf(`QTLSBenchmark %q has not begun, and the benchmark of %s is due: there is no ConfigMap "ca"`, b.Name, due.Format(time.RFC3339)))
	n.end(b.Name, v1alpha1.BenchmarkFailed, "False")
	n.do()
	n.ready("True", v1alpha1.ReasonScheduled, "the next benchmark is made at")
}

func TestABadScheduleIsSaidInACondition(t *testing.T) {
	n := newNightly(t, func(s *v1alpha1.QTLSBenchmarkScheduleSpec) { s.Schedule = "0 25 * * *" })
	n.do()
	n.ready("False", v1alpha1.ReasonInvalid, `spec.schedule: "0 25 * * *": end of range (25) above maximum (23)`)
	if len(n.names()) > 0 {
		t.Errorf("%q", n.names())
	}
}
