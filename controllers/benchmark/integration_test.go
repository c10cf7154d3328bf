//go:build integration

package benchmark

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/testenv"
)

// wholeRun checks what a run of benchmark() leaves behind: 8 measurements, each
// made once.
func wholeRun(w *world, b *v1alpha1.QTLSBenchmark) {
	w.t.Helper()
	w.condition(b, v1alpha1.ConditionComplete, "True", v1alpha1.ReasonCompleted, "8/8")
	if b.Status.StartTime == nil || b.Status.CompletionTime == nil || b.Status.ObservedGeneration != 1 || b.Status.Plan.Measurements != 8 {
		w.t.Errorf("status %+v", b.Status)
	}
	if len(b.Status.Points) != 2 {
		w.t.Fatalf("points %+v", b.Status.Points)
	}
	for i, p := range b.Status.Points {
		n := int32(i + 1)
		want := v1alpha1.BenchmarkEstimate{Mean: fmt.Sprintf("%d.0", 100*n), Low: fmt.Sprintf("%d.0", 100*n), High: fmt.Sprintf("%d.0", 100*n)}
		if p.Mode != "hybrid" || p.Replicas != n || p.Repetitions != 2 || *p.HandshakesPerSecond != want || p.Efficiency != nil { // of points that are no results
			w.t.Errorf("point %d: %+v, %+v, %+v", i, p, p.HandshakesPerSecond, p.Efficiency)
		}
		// 50 and 100 a second for 5 seconds, twice: too few for a p99.
		if l := p.Latency; l == nil || l.P50.Duration.Round(100*time.Microsecond) != 1400*time.Microsecond || l.P99 != nil {
			w.t.Errorf("point %d: latency %+v", i, l)
		}
	}
	files, r := w.files(b)
	if len(r.Points) != 2 || r.Name != "scaling" || r.Seed != b.Status.Plan.Seed || !strings.Contains(files.Data["report.md"], "hybrid") || !strings.Contains(files.Data["report.html"], "</html>") {
		w.t.Errorf("the report: %+v", r)
	}
	var jobs batchv1.JobList
	if err := w.List(w.t.Context(), &jobs, client.InNamespace(w.namespace)); err != nil || len(jobs.Items) > 0 {
		w.t.Errorf("Jobs that are left: %v, %v", jobs.Items, err)
	}
}

func TestARunInPlaceMeasuresAndPutsTheGatewayBack(t *testing.T) {
	w := newWorld(t)
	w.start()
	b := w.benchmark()
	w.reaches(b, v1alpha1.BenchmarkCompleted)
	wholeRun(w, b)
	w.condition(b, v1alpha1.ConditionRestored, "True", v1alpha1.ReasonRestored, `QTLSGateway "web" has the replicas that it had before`)
	if err := w.untouched(); err != nil {
		t.Error(err)
	}
	if len(w.made) != 8 {
		t.Errorf("Jobs %q", w.made)
	}
	// Nobody observes the machines here, and a result without is none.
	w.condition(b, v1alpha1.ConditionValid, "False", v1alpha1.ReasonPointsInvalid, "NotObserved")
}

func TestARunOnACopyDoesNotTouchTheGateway(t *testing.T) {
	w := newWorld(t)
	before := w.gateway("web").ResourceVersion
	b := w.benchmark(func(s *v1alpha1.QTLSBenchmarkSpec) {
		s.GatewayRef = v1alpha1.BenchmarkGateway{Name: "web", Use: v1alpha1.BenchmarkUseCopy, Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}}}
	})
	seen := false
	w.result = func(l load.Load, s shard.Segment) (string, error) {
		g := w.gateway("scaling-gateway")
		if seen = true; g.Spec.Resources.Limits.Cpu().String() != "50m" || l.Client.Host != "scaling-gateway-gateway."+w.namespace+".svc" || l.Client.Port != 443 || l.Client.SNI != "web.example.com" {
			t.Errorf("the copy has %+v, the load %+v", g.Spec.Resources, l.Client)
		}
		return ideal(l, s)
	}
	w.start()
	w.reaches(b, v1alpha1.BenchmarkCompleted)
	wholeRun(w, b)
	w.condition(b, v1alpha1.ConditionRestored, "True", v1alpha1.ReasonRestored, `QTLSGateway "scaling-gateway", the copy, is deleted`)
	err := w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "scaling-gateway"}, &v1alpha1.QTLSGateway{})
	if !apierrors.IsNotFound(err) || !seen {
		t.Errorf("the copy: %v, seen %v", err, seen)
	}
	g := w.gateway("web")
	if g.Generation != 1 || len(g.Annotations) > 0 {
		t.Errorf("the gateway was touched: %+v (at first version %s)", g.ObjectMeta, before)
	}
}

func isDryRun(opts []client.CreateOption) bool {
	var o client.CreateOptions
	return len(o.ApplyOptions(opts).DryRun) > 0
}

// An operator dies at each step after it has done what is to be done and before it
// has written that down. Whoever comes next neither loses nor repeats anything.
func TestAnOperatorThatDiesAtEachStepLosesAndRepeatsNothing(t *testing.T) {
	w := newWorld(t)
	b := w.benchmark()
	died, patches := 0, 0
	watching, err := client.NewWithWatch(testenv.Config(), client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	dies := interceptor.NewClient(watching, interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if patches++; patches%2 == 1 {
				died++
				return errors.New("the operator is killed")
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		}})
	created := 0
	counted := interceptor.NewClient(dies, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		err := c.Create(ctx, o, opts...)
		if _, isJob := o.(*batchv1.Job); isJob && err == nil && !isDryRun(opts) {
			created++
		}
		return err
	}})
	for steps := 0; ; steps++ {
		if steps > 500 {
			t.Fatalf("no end: %+v", b.Status)
		}
		if _, err := w.step(counted, b); err != nil && !strings.Contains(err.Error(), "killed") {
			t.Fatal(err)
		}
		if err := w.play(t.Context()); err != nil {
			t.Fatal(err)
		}
		if w.get(b); b.Status.Phase == v1alpha1.BenchmarkCompleted {
			break
		}
	}
	if died < 10 || created != 8 {
		t.Errorf("it died %d times and made %d Jobs, want 8", died, created)
	}
	wholeRun(w, b)
	if err := w.untouched(); err != nil {
		t.Error(err)
	}
}

// An operator is killed right after each effect that it has, once: nothing that
// would follow in the same step is done. Whoever comes next goes on from there.
func TestAnOperatorThatDiesAfterEachEffectLosesAndRepeatsNothing(t *testing.T) {
	w := newWorld(t)
	b := w.benchmark()
	watching, err := client.NewWithWatch(testenv.Config(), client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	killed := errors.New("the operator is killed")
	died, created := map[string]bool{}, 0
	dies := func(effect string, err error) error {
		if err != nil || died[effect] {
			return err
		}
		died[effect] = true
		return killed
	}
	patch := func(o client.Object, p client.Patch) string {
		data, err := p.Data(o)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	c := interceptor.NewClient(watching, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			err := c.Create(ctx, o, opts...)
			if isDryRun(opts) { // which has no effect
				return err
			}
			if _, isJob := o.(*batchv1.Job); isJob && err == nil {
				created++
			}
			return dies(fmt.Sprintf("create %T %s", o, o.GetName()), err)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return dies(fmt.Sprintf("update %T %s %s", o, o.GetName(), o.GetResourceVersion()), c.Update(ctx, o, opts...))
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return dies(fmt.Sprintf("delete %T %s", o, o.GetName()), c.Delete(ctx, o, opts...))
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			effect := fmt.Sprintf("patch %T %s: %s", o, o.GetName(), patch(o, p))
			return dies(effect, c.Patch(ctx, o, p, opts...))
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			var which metav1.PartialObjectMetadata // a report says when it was written
			data, err := json.Marshal(o)
			if err == nil {
				err = json.Unmarshal(data, &which)
			}
			if err != nil {
				t.Fatal(err)
			}
			return dies("apply "+which.Kind+" "+which.Name, c.Apply(ctx, o, opts...))
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			effect := fmt.Sprintf("patch %s of %T %s: %s", sub, o, o.GetName(), patch(o, p))
			return dies(effect, c.SubResource(sub).Patch(ctx, o, p, opts...))
		},
	})
	for steps := 0; b.Status.Phase != v1alpha1.BenchmarkCompleted; steps++ {
		if steps > 1000 {
			t.Fatalf("no end after %d deaths: %+v", len(died), b.Status)
		}
		if _, err := w.step(c, b); err != nil && !errors.Is(err, killed) && !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
		if err := w.play(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.get(b)
	}
	kinds := map[string]int{}
	for effect := range died {
		verb, _, _ := strings.Cut(effect, " ")
		kinds[verb]++
	}
	// Each of 8 Jobs is made and deleted; its record is made; files and the report are
	// applied; statuses and the gateway are patched.
	if created != 8 || kinds["create"] != 16 || kinds["delete"] < 8 || kinds["update"] > 0 || kinds["apply"] != 2 || kinds["patch"] < 3 {
		t.Errorf("it made %d Jobs, and died after %v", created, kinds)
	}
	wholeRun(w, b)
	if err := w.untouched(); err != nil {
		t.Error(err)
	}
}

func TestARunThatIsCancelledPutsTheGatewayBackAndKeepsWhatWasMeasured(t *testing.T) {
	w := newWorld(t)
	hold := make(chan struct{})
	measured := 0
	w.result = func(l load.Load, s shard.Segment) (string, error) {
		if measured++; measured > 3 {
			<-hold
		}
		return ideal(l, s)
	}
	w.start()
	t.Cleanup(sync.OnceFunc(func() { close(hold) }))
	b := w.benchmark(func(s *v1alpha1.QTLSBenchmarkSpec) { s.Thresholds = []v1alpha1.BenchmarkThreshold{"failures == 0"} })
	testenv.Eventually(t, func(ctx context.Context) error {
		if err := w.Get(ctx, client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		if b.Status.Progress != "3/8" {
			return fmt.Errorf("%+v", b.Status)
		}
		b.Spec.Cancel = true
		return w.Update(ctx, b)
	})
	w.reaches(b, v1alpha1.BenchmarkCancelled)
	w.condition(b, v1alpha1.ConditionComplete, "True", v1alpha1.ReasonCancelled, "3/8 measurements are made")
	w.condition(b, v1alpha1.ConditionPassed, "False", v1alpha1.ReasonCancelled, "spec.cancel is true")
	w.condition(b, v1alpha1.ConditionRestored, "True", v1alpha1.ReasonRestored, "")
	if err := w.untouched(); err != nil {
		t.Error(err)
	}
	if _, r := w.files(b); len(r.Points) != 2 || r.Aborted == nil || r.Aborted.Reason != v1alpha1.ReasonCancelled {
		t.Errorf("the report: %+v", r)
	}
}

func TestAGeneratorThatCannotStartFailsTheRunAndSaysWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		node         string
		waits        func(*corev1.Pod)
		reason, says string
	}{
		"no node": {"", func(pod *corev1.Pod) {
			pod.Status.Phase = corev1.PodPending
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available: 1 Insufficient cpu."}}
		}, v1alpha1.ReasonGeneratorUnschedulable, "0/1 nodes are available: 1 Insufficient cpu.; free or add nodes, or change spec.generator"},
		"no image": {"n1", func(pod *corev1.Pod) {
			pod.Status.Phase = corev1.PodPending
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: generator.Container, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image"}}}}
		}, v1alpha1.ReasonGeneratorFailed, "waits: ImagePullBackOff: Back-off pulling image; the image is the chart's k6Image"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.limits.Unschedulable = time.Second
			w.clock = clocktesting.NewFakePassiveClock(time.Now())
			w.node, w.waits = c.node, c.waits
			b := w.benchmark()
			clock := w.clock.(*clocktesting.FakePassiveClock)
			w.stepsToEnd(w.Client, b, func() {
				clock.SetTime(clock.Now().Add(5 * time.Second))
			})
			w.condition(b, v1alpha1.ConditionFailed, "True", c.reason, c.says)
			w.condition(b, v1alpha1.ConditionRestored, "True", v1alpha1.ReasonRestored, "")
			if err := w.untouched(); err != nil || b.Status.Progress != "5/8" {
				t.Errorf("%v, %s", err, b.Status.Progress)
			}
		})
	}
}

func TestAGeneratorThatAQuotaForbidsFailsTheRunAndSaysSo(t *testing.T) {
	w := newWorld(t)
	w.create(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "no-jobs"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/jobs.batch": resource.MustParse("0")}}})
	// Its own controller does not run here: it is what counts.
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "no-jobs"}}
	w.get(quota)
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{"count/jobs.batch": resource.MustParse("0")}}
	if err := w.Status().Update(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	w.start()
	b := w.benchmark()
	w.reaches(b, v1alpha1.BenchmarkFailed)
	w.condition(b, v1alpha1.ConditionFailed, "True", v1alpha1.ReasonGeneratorUnschedulable, "exceeded quota: no-jobs")
	w.condition(b, v1alpha1.ConditionRestored, "True", v1alpha1.ReasonRestored, "")
	if err := w.untouched(); err != nil || len(w.made) > 0 {
		t.Errorf("%v, %q", err, w.made)
	}
}

// A rule that was not there when the run began: a webhook refuses as the API server
// itself does.
func TestAGeneratorThatIsInvalidFailsTheRunAndSaysSo(t *testing.T) {
	w := newWorld(t)
	watching, err := client.NewWithWatch(testenv.Config(), client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	refuses := interceptor.NewClient(watching, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if _, isJob := o.(*batchv1.Job); isJob && !isDryRun(opts) {
			return apierrors.NewInvalid(batchv1.SchemeGroupVersion.WithKind("Job").GroupKind(), o.GetName(), nil)
		}
		return c.Create(ctx, o, opts...)
	}})
	b := w.benchmark()
	w.stepsToEnd(refuses, b, func() {})
	w.condition(b, v1alpha1.ConditionFailed, "True", v1alpha1.ReasonGeneratorUnschedulable, "is invalid")
	w.condition(b, v1alpha1.ConditionRestored, "True", v1alpha1.ReasonRestored, "")
	if err := w.untouched(); err != nil {
		t.Error(err)
	}
}

// A quota for ConfigMaps is full when a measurement is to be recorded, has room then, and is full again when the report is to
// be stored: what is recorded is whole, and the run ends.
func TestARunWhoseConfigMapsAreForbiddenSaysSoAndEnds(t *testing.T) {
	w := newWorld(t)
	watching, err := client.NewWithWatch(testenv.Config(), client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	full := true
	forbidden := func(name string) error {
		return apierrors.NewForbidden(corev1.Resource("configmaps"), name, errors.New("exceeded quota: count/configmaps"))
	}
	quota := interceptor.NewClient(watching, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if o.GetLabels()[componentLabel] == componentRecords && full {
				return forbidden(o.GetName())
			}
			return c.Create(ctx, o, opts...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if named, is := o.(interface{ GetName() string }); is && strings.Contains(named.GetName(), "-report") {
				return forbidden(named.GetName())
			}
			return c.Apply(ctx, o, opts...)
		},
	})
	b := w.benchmark()
	w.stepsToEnd(quota, b, func() {
		if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionComplete); full && c != nil && strings.Contains(c.Message, "exceeded quota: count/configmaps") {
			w.condition(b, v1alpha1.ConditionComplete, "False", v1alpha1.ReasonNotApplied, fmt.Sprintf("allow it in namespace %q", w.namespace))
			full = false
		}
	})
	if full {
		t.Error("nothing was said of the record that could not be made")
	}
	w.condition(b, v1alpha1.ConditionComplete, "True", v1alpha1.ReasonCompleted, "8/8 measurements are made; status.points has what they say, and no ConfigMap the report")
	w.condition(b, v1alpha1.ConditionComplete, "True", v1alpha1.ReasonCompleted, "exceeded quota: count/configmaps")
	if b.Status.ReportRef != nil || len(b.Status.Points) != 2 {
		t.Errorf("report %+v, points %+v", b.Status.ReportRef, b.Status.Points)
	}
	if err := w.untouched(); err != nil {
		t.Error(err)
	}
}

// What has the name of the report's ConfigMap is somebody else's: that is said before
// the run, and does not keep one from ending that has begun.
func TestAReportWhoseNameIsTaken(t *testing.T) {
	w := newWorld(t)
	taken := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "scaling-report"}, Data: map[string]string{"whose": "another's"}}
	w.create(taken.DeepCopy())
	b := w.benchmark()
	w.steps(b, 2) // the plan, and the first step
	const says = `ConfigMap "scaling-report" exists in namespace`
	w.condition(b, v1alpha1.ConditionComplete, "False", v1alpha1.ReasonNotApplied, says)
	if err := w.untouched(); err != nil {
		t.Error(err)
	}
	if err := w.Delete(t.Context(), taken.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	back := false
	w.stepsToEnd(w.Client, b, func() {
		if b.Status.StartTime != nil && !back {
			back = true
			w.create(taken.DeepCopy())
		}
	})
	w.condition(b, v1alpha1.ConditionComplete, "True", v1alpha1.ReasonCompleted, "8/8 measurements are made; status.points has what they say, and no ConfigMap the report")
	w.condition(b, v1alpha1.ConditionComplete, "True", v1alpha1.ReasonCompleted, says)
	if b.Status.ReportRef != nil || len(b.Status.Points) != 2 {
		t.Errorf("report %+v, points %+v", b.Status.ReportRef, b.Status.Points)
	}
	if w.get(taken); taken.Data["whose"] != "another's" || len(taken.Data) != 1 {
		t.Errorf("what was another's is %v", taken.Data)
	}
	if err := w.untouched(); err != nil {
		t.Error(err)
	}
}

func TestAJobThatFailsIsMadeAgainAndAllThatFailEndTheRun(t *testing.T) {
	w := newWorld(t)
	w.result = func(l load.Load, s shard.Segment) (string, error) {
		return "", errors.New("libssl: no group X25519MLKEM768")
	}
	w.start()
	b := w.benchmark()
	w.reaches(b, v1alpha1.BenchmarkFailed)
	w.condition(b, v1alpha1.ConditionComplete, "False", v1alpha1.ReasonGeneratorFailed, "libssl: no group X25519MLKEM768")
	w.condition(b, v1alpha1.ConditionRestored, "True", v1alpha1.ReasonRestored, "")
	if err := w.untouched(); err != nil {
		t.Error(err)
	}
	// Three attempts at each of three capacities, and none at a latency without one.
	if b.Status.Progress != "5/8" || len(w.made) != 9 || !strings.HasSuffix(w.made[1], "-2") {
		t.Errorf("%s after %q", b.Status.Progress, w.made)
	}
	if p := b.Status.Points[0]; p.Valid || !strings.Contains(strings.Join(p.InvalidBecause, " "), v1alpha1.ReasonGeneratorFailed) {
		t.Errorf("%+v", p)
	}
}

func TestADeletedBenchmarkGivesItsGatewayBack(t *testing.T) {
	w := newWorld(t)
	w.runs = func(n int32) bool { return n == 3 } // it hangs in the middle
	w.start()
	b := w.benchmark()
	testenv.Eventually(t, func(context.Context) error {
		if h, err := holdOf(w.gateway("web")); h == nil || err != nil {
			return fmt.Errorf("the gateway is not scaled: %v", err)
		}
		return nil
	})
	if err := w.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func(context.Context) error { return w.untouched() })
}

func TestAnOperatorThatStartsPutsGatewaysOfDeletedBenchmarksBack(t *testing.T) {
	w := newWorld(t)
	b := w.benchmark()
	w.steps(b, 3)
	if w.untouched() == nil {
		t.Fatal("the gateway is not scaled")
	}
	if err := w.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	w.start()
	testenv.Eventually(t, func(context.Context) error { return w.untouched() })
}

func TestAGatewayThatNeverRunsIsPutBack(t *testing.T) {
	w := newWorld(t)
	w.limits.Programmed = time.Second
	w.runs = func(n int32) bool { return n == 3 }
	w.start()
	b := w.benchmark()
	w.reaches(b, v1alpha1.BenchmarkFailed)
	w.condition(b, v1alpha1.ConditionComplete, "False", v1alpha1.ReasonGatewayNotProgrammed, "0 of 1 pods are ready")
	w.condition(b, v1alpha1.ConditionRestored, "True", v1alpha1.ReasonRestored, "")
	if err := w.untouched(); err != nil || len(w.made) > 0 {
		t.Errorf("%v; Jobs %q", err, w.made)
	}
}

func TestReplicasThatSomebodyElseSetsStay(t *testing.T) {
	w := newWorld(t)
	w.runs = func(n int32) bool { return n >= 3 }
	w.start()
	b := w.benchmark()
	w.reaches(b, v1alpha1.BenchmarkRunning)
	testenv.Eventually(t, func(ctx context.Context) error {
		g := w.gateway("web")
		g.Spec.Replicas = ptr.To[int32](5)
		return w.Update(ctx, g)
	})
	w.reaches(b, v1alpha1.BenchmarkFailed)
	w.condition(b, v1alpha1.ConditionComplete, "False", v1alpha1.ReasonGatewayChanged, "somebody else (an autoscaler?) has set it to 5")
	w.condition(b, v1alpha1.ConditionRestored, "True", v1alpha1.ReasonLeftAsChanged, "")
	if g := w.gateway("web"); *g.Spec.Replicas != 5 || len(g.Annotations) > 0 {
		t.Errorf("%d replicas, %v", *g.Spec.Replicas, g.Annotations)
	}
}

func TestTwoBenchmarksMeasureAGatewayOneAfterTheOther(t *testing.T) {
	w := newWorld(t)
	hold := make(chan struct{})
	w.result = func(l load.Load, s shard.Segment) (string, error) {
		<-hold
		return ideal(l, s)
	}
	first := w.benchmark()
	w.start()
	release := sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	w.reaches(first, v1alpha1.BenchmarkRunning)
	second := first.DeepCopy()
	second.ObjectMeta = metav1.ObjectMeta{Namespace: w.namespace, Name: "other"}
	second.Status = v1alpha1.QTLSBenchmarkStatus{}
	w.create(second)
	w.waitsFor(second, v1alpha1.ReasonGatewayBusy, `QTLSBenchmark "scaling" measures`)
	release()
	w.reaches(first, v1alpha1.BenchmarkCompleted)
	w.reaches(second, v1alpha1.BenchmarkCompleted)
	if err := w.untouched(); err != nil {
		t.Error(err)
	}
}

func TestPodsShareALoad(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	segments := map[string][]string{} // by measurement
	w.result = func(l load.Load, s shard.Segment) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		segments[l.Point] = append(segments[l.Point], s.String())
		return ideal(l, s)
	}
	b := w.benchmark(func(s *v1alpha1.QTLSBenchmarkSpec) { s.Generator.Pods = ptr.To[int32](2) })
	w.start()
	w.reaches(b, v1alpha1.BenchmarkCompleted)
	wholeRun(w, b)
	mu.Lock()
	defer mu.Unlock()
	if len(segments) != 8 {
		t.Errorf("%d measurements", len(segments))
	}
	for point, of := range segments {
		if !slices.Equal(of, []string{"0/2", "1/2"}) {
			t.Errorf("%s: segments %q", point, of)
		}
	}
}

// Somebody mangles a record in the middle of a run: that measurement has no result, and
// the others have; the run ends, and the gateway is put back.
func TestARecordThatCannotBeReadIsNoEnd(t *testing.T) {
	w := newWorld(t)
	b := w.benchmark()
	mangled := ""
	w.stepsToEnd(w.Client, b, func() {
		if b.Status.Progress == "3/8" && mangled == "" {
			m := plan.Of(b.Spec, b.Status.Plan.Seed).Measurements[2]
			c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: recordName(b, m)}}
			w.get(c)
			mangled = m.Name()
			c.Data[mangled] = c.Data[mangled][:100]
			if err := w.Update(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	})
	w.condition(b, v1alpha1.ConditionComplete, "True", v1alpha1.ReasonCompleted, "8/8")
	w.condition(b, v1alpha1.ConditionRestored, "True", v1alpha1.ReasonRestored, "")
	if err := w.untouched(); err != nil {
		t.Error(err)
	}
	missing := 0
	_, r := w.files(b)
	for _, p := range r.Points {
		for _, one := range p.Capacity.Repetitions {
			if one.Missing {
				missing++
			}
			if says := fmt.Sprintf("ResultUnreadable: ConfigMap %q, key %q, is not what the operator wrote", "scaling-0003-record", mangled); one.Missing && (one.Reasons[0].Rule != validity.NotMeasured || !strings.HasPrefix(one.Reasons[0].Message, says)) {
				t.Errorf("%+v, want one that says %s", one.Reasons, says)
			}
		}
		for _, one := range p.Latency.Repetitions {
			if one.Missing {
				t.Errorf("%+v", one)
			}
		}
	}
	if missing != 1 {
		t.Errorf("%d measurements are missing", missing)
	}
}

func TestABadMeasurementIsNoResult(t *testing.T) {
	for name, c := range map[string]struct {
		result func(l load.Load, s shard.Segment) (string, error)
		says   string
	}{
		"a result that is cut off": {func(l load.Load, s shard.Segment) (string, error) {
			text, err := ideal(l, s)
			return text[:len(text)-10] + "\n", err
		}, v1alpha1.ReasonResultUnreadable},
		"none at all": {func(load.Load, shard.Segment) (string, error) { return "running\n", nil }, "printed 0 lines"},
		"that of another measurement": {func(l load.Load, s shard.Segment) (string, error) {
			l.Point = "another"
			return ideal(l, s)
		}, `measured \"another\"`},
		"another group than the mode's": {func(l load.Load, s shard.Segment) (string, error) {
			l.Client.Groups = []string{"X25519"}
			return ideal(l, s)
		}, "OtherMode"},
		"no handshake": {func(l load.Load, s shard.Segment) (string, error) { return print(l, s, 0) }, "NoHandshakes"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.result = c.result
			w.start()
			b := w.benchmark(func(s *v1alpha1.QTLSBenchmarkSpec) { s.Replicas, s.Load.Repetitions = []int32{1}, ptr.To[int32](1) })
			w.until(b, func() bool { return b.Status.CompletionTime != nil })
			p := b.Status.Points[0]
			if p.Valid || !slices.ContainsFunc(p.InvalidBecause, func(s string) bool { return strings.Contains(strings.ReplaceAll(s, `"`, `\"`), c.says) }) {
				t.Errorf("%q, want one that says %q", p.InvalidBecause, c.says)
			}
		})
	}
}

func TestWhatTheSpecNamesIsWaitedForBeforeAnythingIsTouched(t *testing.T) {
	w := newWorld(t)
	w.start()
	b := w.benchmark(func(s *v1alpha1.QTLSBenchmarkSpec) {
		s.Target.CARefs[0].Name = "later"
		s.Target.Listener = "https"
	})
	w.waitsFor(b, v1alpha1.ReasonAuthorityNotFound, `spec.target.caRefs[0]: there is no ConfigMap "later" with key "ca.crt"`)
	if err := w.untouched(); err != nil || b.Status.Phase != v1alpha1.BenchmarkPending {
		t.Errorf("%s, %v", b.Status.Phase, err)
	}
	w.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "later"}, Data: map[string]string{"ca.crt": authority(t)}})
	w.reaches(b, v1alpha1.BenchmarkCompleted)
}

func TestWhatTheSpecNamesIsNotWaitedForLongerThanTheRunMayTake(t *testing.T) {
	w := newWorld(t)
	b := w.benchmark(func(s *v1alpha1.QTLSBenchmarkSpec) { s.Target.CARefs[0].Name = "never" })
	clock := clocktesting.NewFakePassiveClock(b.CreationTimestamp.Time)
	w.clock = clock
	w.steps(b, toEnd)
	if b.Status.Phase != v1alpha1.BenchmarkPending {
		t.Errorf("at first it is %s", b.Status.Phase)
	}
	clock.SetTime(clock.Now().Add(b.Spec.MaxDuration.Duration + time.Second))
	w.steps(b, toEnd)
	w.condition(b, v1alpha1.ConditionFailed, "True", v1alpha1.ReasonAuthorityNotFound, `there is no ConfigMap "never" with key "ca.crt" in namespace`)
	w.condition(b, v1alpha1.ConditionFailed, "True", v1alpha1.ReasonAuthorityNotFound, "it was waited for that for 1h0m0s (spec.maxDuration)")
	if err := w.untouched(); err != nil || b.Status.Phase != v1alpha1.BenchmarkFailed {
		t.Errorf("%s, %v", b.Status.Phase, err)
	}
}
