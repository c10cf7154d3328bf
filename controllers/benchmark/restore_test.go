package benchmark

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/conditions"
)

// started is a benchmark whose gateway does not come to run.
type started struct {
	t *testing.T
	client.Client
	r *Reconciler
	// patches of the gateway, with what the status knew before each.
	patches []v1alpha1.QTLSBenchmarkStatus
	// refuse is why a gateway may not be made or written so; nil where it may.
	refuse func(*v1alpha1.QTLSGateway) error
	// keep is why an object may not be deleted; nil where it may.
	keep func(client.Object) error
}

// startRun of a benchmark in place that has just scaled its gateway from 3 replicas.
func startRun(t *testing.T) *started {
	t.Helper()
	s := toStart(t, v1alpha1.BenchmarkUseInPlace)
	for range 4 {
		s.step()
	}
	if h, err := holdOf(s.gateway()); h == nil || err != nil || h.Before != 3 || *s.gateway().Spec.Replicas > 2 {
		t.Fatalf("the gateway is not scaled: %+v, %v, %+v", h, err, s.benchmark().Status)
	}
	return s
}

// toStart is a benchmark of a gateway of 3 replicas, or of its copy, that was just made.
func toStart(t *testing.T, use v1alpha1.BenchmarkUse) *started {
	t.Helper()
	b := inPlace("")
	b.CreationTimestamp = metav1.NewTime(noon)
	b.Spec.GatewayRef.Use = use
	b.Status = v1alpha1.QTLSBenchmarkStatus{}
	b.Spec.Load.Seed = ptr.To[int64](7)
	b.Spec.Target = v1alpha1.BenchmarkTarget{CARefs: []v1alpha1.CAReference{{Kind: v1alpha1.CAKindConfigMap, Name: "ca", Key: "ca.crt"}}}
	g := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: "web", UID: "9b2e", Generation: 1}, Spec: v1alpha1.QTLSGatewaySpec{
		Replicas: ptr.To[int32](3), Listeners: []v1alpha1.Listener{{Name: "https", Port: 443, Protocol: v1alpha1.ProtocolHTTPS, Hostnames: []v1alpha1.Hostname{"web.example.com"}}}}}
	s := &started{t: t, refuse: func(*v1alpha1.QTLSGateway) error { return nil }, keep: func(client.Object) error { return nil }}
	// As the API server does, a change of the spec makes another generation.
	s.r = onFake(t, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if g, is := o.(*v1alpha1.QTLSGateway); is {
				if err := s.refuse(g); err != nil {
					return err
				}
				g.Generation = 1
			}
			return c.Create(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := s.keep(o); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if g, is := o.(*v1alpha1.QTLSGateway); is {
				if err := s.refuse(g); err != nil {
					return err
				}
				s.patches = append(s.patches, s.benchmark().Status)
				g.Generation++
			}
			return c.Patch(ctx, o, p, opts...)
		}}, b, g, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: "ca"}, Data: map[string]string{"ca.crt": authority(t)}})
	s.Client = s.r.Client
	return s
}

func (s *started) step() {
	s.t.Helper()
	if _, err := s.r.Reconcile(s.t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "bench", Name: "scaling"}}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *started) benchmark() *v1alpha1.QTLSBenchmark {
	s.t.Helper()
	b := &v1alpha1.QTLSBenchmark{}
	if err := s.Get(s.t.Context(), client.ObjectKey{Namespace: "bench", Name: "scaling"}, b); err != nil {
		s.t.Fatal(err)
	}
	return b
}

func (s *started) gateway() *v1alpha1.QTLSGateway {
	s.t.Helper()
	g := &v1alpha1.QTLSGateway{}
	if err := s.Get(s.t.Context(), client.ObjectKey{Namespace: "bench", Name: "web"}, g); err != nil {
		s.t.Fatal(err)
	}
	return g
}

// somebody changes the gateway.
func (s *started) somebody(change func(*v1alpha1.QTLSGateway)) {
	s.t.Helper()
	g := s.gateway()
	change(g)
	if err := s.Update(s.t.Context(), g); err != nil {
		s.t.Fatal(err)
	}
}

// loaded has the gateway run, and the load of the first measurement end at a time.
func (s *started) loaded(at time.Time) *batchv1.Job {
	s.t.Helper()
	s.somebody(func(g *v1alpha1.QTLSGateway) {
		g.Status = v1alpha1.QTLSGatewayStatus{ObservedGeneration: g.Generation, Replicas: *g.Spec.Replicas, ReadyReplicas: *g.Spec.Replicas,
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, ObservedGeneration: g.Generation}}}
	})
	s.step()
	jobs := s.jobs()
	if len(jobs) != 1 {
		s.t.Fatalf("%d Jobs: %+v", len(jobs), s.benchmark().Status)
	}
	job := &jobs[0]
	job.Status.CompletionTime = ptr.To(metav1.NewTime(at))
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	if err := s.Status().Update(s.t.Context(), job); err != nil {
		s.t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: "load-0", Labels: map[string]string{batchv1.JobNameLabel: job.Name},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
	if err := s.Create(s.t.Context(), pod); err != nil {
		s.t.Fatal(err)
	}
	return job
}

func (s *started) jobs() []batchv1.Job {
	s.t.Helper()
	var jobs batchv1.JobList
	if err := s.List(s.t.Context(), &jobs, client.InNamespace("bench")); err != nil {
		s.t.Fatal(err)
	}
	return jobs.Items
}

func (s *started) cancel() {
	s.t.Helper()
	b := s.benchmark()
	b.Spec.Cancel = true
	if err := s.Update(s.t.Context(), b); err != nil {
		s.t.Fatal(err)
	}
}

func (s *started) ends() v1alpha1.QTLSBenchmarkStatus {
	s.t.Helper()
	for range 20 {
		if b := s.benchmark(); b.Status.CompletionTime != nil {
			s.step() // what is over stays as it is
			return s.benchmark().Status
		}
		s.step()
	}
	s.t.Fatalf("no end: %+v", s.benchmark().Status)
	return v1alpha1.QTLSBenchmarkStatus{}
}

func TestTheStatusSaysHowToPutTheGatewayBackBeforeItIsTouched(t *testing.T) {
	s := startRun(t)
	if len(s.patches) != 1 || s.patches[0].ReplicasBefore == nil || *s.patches[0].ReplicasBefore != 3 || *s.patches[0].ReplicasSet != *s.gateway().Spec.Replicas || s.patches[0].GatewayUID != "9b2e" || s.patches[0].Phase != v1alpha1.BenchmarkPending {
		t.Errorf("before it was patched: %+v", s.patches)
	}
	if after := s.benchmark().Status; after.Phase != v1alpha1.BenchmarkRunning || after.StartTime == nil {
		t.Errorf("%+v", after)
	}
}

func TestReplicasThatChangeBeforeTheRunBeginsAreThoseThatArePutBack(t *testing.T) {
	b := inPlace(v1alpha1.BenchmarkPending)
	b.Status.ReplicasBefore, b.Status.ReplicasSet = ptr.To[int32](3), ptr.To[int32](1)
	g := &v1alpha1.QTLSGateway{Spec: v1alpha1.QTLSGatewaySpec{Replicas: ptr.To[int32](5)}}
	if n := noteFor(b, g, 1); n == nil || n.before != 5 {
		t.Errorf("%+v", n)
	}
	b.Status.ReplicasBefore = ptr.To[int32](5)
	if n := noteFor(b, g, 1); n != nil {
		t.Errorf("%+v, which the status has", n)
	}
	// What it is given next is noted too, and what it had before stays.
	if err := take(g, b, 1, noon); err != nil {
		t.Fatal(err)
	}
	if n := noteFor(b, g, 2); n == nil || *n != (note{before: 5, set: 2}) {
		t.Errorf("%+v", n)
	}
}

// What becomes of a gateway when somebody interferes with how it is held.
func TestAGatewayIsPutBackWithoutItsAnnotation(t *testing.T) {
	lose := func(g *v1alpha1.QTLSGateway) { delete(g.Annotations, v1alpha1.AnnotationBenchmark) }
	const scaled, other = 0, -1 // as the benchmark did, and the other number that it measures
	for name, c := range map[string]struct {
		change   func(*v1alpha1.QTLSGateway)
		replicas int32
		restored metav1.ConditionStatus
		reason   string
		says     string
	}{
		"it is lost":                             {lose, 3, "True", v1alpha1.ReasonRestored, "has the replicas that it had before: 3"},
		"it is mangled":                          {func(g *v1alpha1.QTLSGateway) { g.Annotations[v1alpha1.AnnotationBenchmark] = "{" }, 3, "True", v1alpha1.ReasonRestored, "before: 3"},
		"it is lost, and the replicas are back":  {func(g *v1alpha1.QTLSGateway) { lose(g); g.Spec.Replicas = ptr.To[int32](3) }, 3, "True", v1alpha1.ReasonRestored, "before: 3"},
		"it is lost, and somebody sets a number": {func(g *v1alpha1.QTLSGateway) { lose(g); g.Spec.Replicas = ptr.To[int32](9) }, 9, "True", v1alpha1.ReasonLeftAsChanged, "has 9 replicas"},
		"it is lost, and somebody sets a number that is to be measured": {func(g *v1alpha1.QTLSGateway) { lose(g); g.Spec.Replicas = ptr.To(3 - *g.Spec.Replicas) }, other, "True", v1alpha1.ReasonLeftAsChanged, "somebody has changed them"},
		"another gateway has its name":                                  {func(g *v1alpha1.QTLSGateway) { lose(g); g.UID = "c0de" }, scaled, "True", v1alpha1.ReasonLeftAsChanged, "is another one than was measured"},
		"another benchmark takes the gateway over": {func(g *v1alpha1.QTLSGateway) {
			g.Annotations[v1alpha1.AnnotationBenchmark] = `{"benchmark":"other","uid":"beef","before":1,"set":1,"generation":9,"since":"2026-06-01T12:00:00Z"}`
		}, scaled, "False", v1alpha1.ReasonGatewayBusy, `QTLSBenchmark "other" measures QTLSGateway "web", which had 3 replicas before`},
	} {
		t.Run(name, func(t *testing.T) {
			s := startRun(t)
			set := *s.gateway().Spec.Replicas
			s.somebody(c.change)
			after := s.ends()
			if after.Phase != v1alpha1.BenchmarkFailed {
				t.Errorf("%+v", after)
			}
			wantCondition(t, after, v1alpha1.ConditionComplete, "False", v1alpha1.ReasonGatewayChanged, v1alpha1.AnnotationBenchmark)
			wantCondition(t, after, v1alpha1.ConditionRestored, c.restored, c.reason, c.says)
			want := c.replicas
			switch want {
			case scaled:
				want = set
			case other:
				want = 3 - set
			}
			if g := s.gateway(); *g.Spec.Replicas != want || strings.Contains(g.Annotations[v1alpha1.AnnotationBenchmark], "scaling") {
				t.Errorf("%d replicas, %v", *g.Spec.Replicas, g.Annotations)
			}
		})
	}
}

func TestAGatewayThatIsGoneIsNotSaidToBeRestored(t *testing.T) {
	s := startRun(t)
	if err := s.Delete(t.Context(), s.gateway()); err != nil {
		t.Fatal(err)
	}
	after := s.ends()
	wantCondition(t, after, v1alpha1.ConditionComplete, "False", v1alpha1.ReasonGatewayNotFound, "is gone")
	wantCondition(t, after, v1alpha1.ConditionRestored, "True", v1alpha1.ReasonLeftAsChanged, "is gone: there is nothing to put back")
}

// The operator dies after it has put the gateway back and before it has said so.
func TestARestorationThatCouldNotBeWrittenDownIsSeen(t *testing.T) {
	for replicas, reason := range map[int32]string{3: v1alpha1.ReasonRestored, 8: v1alpha1.ReasonLeftAsChanged} {
		b := inPlace(v1alpha1.BenchmarkAborting)
		b.Status.ReplicasBefore = ptr.To[int32](3)
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionRestored, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonGatewayInUse})
		s := stateIn(t, b, 0)
		s.measured = &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.QTLSGatewaySpec{Replicas: &replicas}}
		s.observed.Gateway = observe(b, s.measured, s.measured, noon)
		a := s.plan.Next(s.observed, plan.DefaultLimits)
		if a.Kind != plan.Finish {
			t.Fatalf("%d replicas: %+v", replicas, a)
		}
		wantCondition(t, summarised(t, s, a, outcome{}), v1alpha1.ConditionRestored, "True", reason, "")
	}
}

// forbid a gateway, as a quota or a policy does.
func forbid(g *v1alpha1.QTLSGateway) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: "qtls.dev", Resource: "qtlsgateways"}, g.Name, errors.New("exceeded quota: count"))
}

// A run that may not have its gateway says so, begins when it may, and ends when it was
// waited for as long as the run itself may take.
func TestARunWaitsForAGatewayThatIsForbidden(t *testing.T) {
	for use, says := range map[v1alpha1.BenchmarkUse]string{
		v1alpha1.BenchmarkUseInPlace: "exceeded quota: count; allow it",
		v1alpha1.BenchmarkUseCopy:    `QTLSGateway "scaling-gateway", the copy of "web"`,
	} {
		t.Run(string(use), func(t *testing.T) {
			for name, c := range map[string]struct {
				then  func(*started)
				phase v1alpha1.BenchmarkPhase
			}{
				"it stays so":   {func(s *started) { s.r.Clock = clocktesting.NewFakePassiveClock(noon.Add(2 * time.Hour)) }, v1alpha1.BenchmarkFailed},
				"it is allowed": {func(s *started) { s.refuse = func(*v1alpha1.QTLSGateway) error { return nil } }, v1alpha1.BenchmarkRunning},
			} {
				s := toStart(t, use)
				s.refuse = forbid
				for range 4 {
					s.step()
				}
				if waits := s.benchmark().Status; waits.Phase != v1alpha1.BenchmarkPending {
					t.Errorf("%s: %s", name, waits.Phase)
				}
				wantCondition(t, s.benchmark().Status, v1alpha1.ConditionComplete, "False", v1alpha1.ReasonNotApplied, says)
				c.then(s)
				for range 4 {
					s.step()
				}
				if after := s.benchmark().Status; after.Phase != c.phase {
					t.Errorf("%s: %+v", name, after)
				}
				if g := s.gateway(); c.phase == v1alpha1.BenchmarkFailed && (*g.Spec.Replicas != 3 || len(s.patches) > 0) {
					t.Errorf("%s: the gateway was touched: %+v", name, g.Spec)
				}
			}
		})
	}
}

// Where a policy allows a gateway some replicas and not more, it is measured with those.
func TestReplicasThatAreForbiddenAreLeftOut(t *testing.T) {
	s := startRun(t)
	s.refuse = forbid
	b := s.benchmark()
	now, err := s.r.fetch(t.Context(), b, noon)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(now.plan.Measurements, func(m plan.Measurement) bool { return m.Replicas == 2 })
	done, err := s.r.act(t.Context(), now, plan.Action{Kind: plan.Scale, Replicas: 2, Measurements: now.plan.Measurements[i : i+1]})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range now.plan.Measurements {
		one, recorded := done.recorded[m.Name()]
		if recorded != (m.Replicas == 2) || recorded && (one.Reason != v1alpha1.ReasonGatewayNotProgrammed || !strings.Contains(one.Message, "the gateway may not have 2 replicas: ")) {
			t.Errorf("%s: %t, %+v", m, recorded, one)
		}
	}
}

// The status says before each scaling what the gateway is given. Where that is refused, the
// number that it has would look like somebody else's, and stay.
func TestReplicasThatAreForbiddenAreNotSaidToBeSet(t *testing.T) {
	s := startRun(t)
	s.refuse = forbid
	has := *s.gateway().Spec.Replicas
	wanted := 3 - has // of 1 and 2
	for _, set := range []int32{wanted, has} {
		b := s.benchmark()
		now, err := s.r.fetch(t.Context(), b, noon)
		if err != nil {
			t.Fatal(err)
		}
		now.records = records{}
		i := slices.IndexFunc(now.plan.Measurements, func(m plan.Measurement) bool { return m.Replicas == wanted })
		a := plan.Action{Kind: plan.Scale, Replicas: wanted, Measurements: now.plan.Measurements[i : i+1]}
		done, err := s.r.act(t.Context(), now, a)
		if err != nil {
			t.Fatal(err)
		}
		after := summarised(t, now, a, done)
		if after.ReplicasSet == nil || *after.ReplicasSet != set {
			t.Errorf("the status says that the gateway was given %d replicas, want %d: %+v", ptr.Deref(after.ReplicasSet, 0), set, done)
		}
		if err := s.r.report(t.Context(), b, after); err != nil {
			t.Fatal(err)
		}
	}
}

// A gateway that may not be put back is tried on, and that is said beside why the run ended.
func TestAGatewayThatMayNotBePutBackIsSaid(t *testing.T) {
	s := startRun(t)
	s.cancel()
	s.refuse = forbid
	for range 4 {
		s.step()
	}
	after := s.benchmark().Status
	wantCondition(t, after, v1alpha1.ConditionRestored, "False", v1alpha1.ReasonNotApplied, "exceeded quota: count")
	wantCondition(t, after, v1alpha1.ConditionComplete, "False", v1alpha1.ReasonCancelled, "")
	s.refuse = func(*v1alpha1.QTLSGateway) error { return nil }
	wantCondition(t, s.ends(), v1alpha1.ConditionRestored, "True", v1alpha1.ReasonRestored, "")
}

// A webhook, say, has Jobs stay. A gateway that is in use does not wait for it.
func TestAGatewayIsPutBackThoughAJobMayNotBeDeleted(t *testing.T) {
	s := startRun(t)
	job := s.loaded(noon)
	s.cancel()
	s.keep = func(o client.Object) error {
		if _, is := o.(*batchv1.Job); is {
			return apierrors.NewForbidden(schema.GroupResource{Group: "batch", Resource: "jobs"}, o.GetName(), errors.New("a policy keeps it"))
		}
		return nil
	}
	for range 3 {
		s.step()
	}
	if g := s.gateway(); *g.Spec.Replicas != 3 || g.Annotations[v1alpha1.AnnotationBenchmark] != "" {
		t.Errorf("%d replicas, %v", *g.Spec.Replicas, g.Annotations)
	}
	after := s.benchmark().Status
	wantCondition(t, after, v1alpha1.ConditionRestored, "False", v1alpha1.ReasonNotApplied, fmt.Sprintf("Job %q cannot be deleted", job.Name))
	wantCondition(t, after, v1alpha1.ConditionComplete, "False", v1alpha1.ReasonCancelled, "")
	s.keep = func(client.Object) error { return nil }
	wantCondition(t, s.ends(), v1alpha1.ConditionRestored, "True", v1alpha1.ReasonRestored, "has the replicas that it had before: 3")
	if jobs := s.jobs(); len(jobs) > 0 {
		t.Errorf("%d Jobs are left", len(jobs))
	}
}

// Nor for a peer that stays; and the other one goes.
func TestAGatewayIsPutBackThoughAPeerMayNotBeDeleted(t *testing.T) {
	r, s := twoPeers(t, interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
		if o.GetName() == "scaling-peer-of-p256" {
			return apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, o.GetName(), errors.New("a policy keeps it"))
		}
		return c.Delete(ctx, o, opts...)
	}})
	if _, err := r.applyPeers(t.Context(), s, 1); err != nil {
		t.Fatal(err)
	}
	done, err := r.act(t.Context(), s, plan.Action{Kind: plan.Restore})
	if problem, is := conditions.AsProblem(err); !is || problem.After <= 0 || !strings.Contains(problem.Message, "peer of-p256: ") || !strings.Contains(problem.Message, "a policy keeps it") || !done.restored {
		t.Errorf("%v, restored: %t", err, done.restored)
	}
	g := &v1alpha1.QTLSGateway{}
	if err := r.Get(t.Context(), client.ObjectKey{Namespace: "bench", Name: "web"}, g); err != nil || *g.Spec.Replicas != 3 || len(g.Annotations) > 0 {
		t.Errorf("%d replicas, %v, %v", *g.Spec.Replicas, g.Annotations, err)
	}
	if there := peersThere(t, r); !slices.Equal(there, []string{"Service scaling-peer-of-p256", "Deployment scaling-peer-of-p256"}) {
		t.Errorf("%q are there", there)
	}
}
