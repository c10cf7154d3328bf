//go:build integration

package benchmark

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// world is a namespace in which the test plays everybody but the controller: the
// gateways' controller, that of Jobs, and the load generator.
type world struct {
	client.Client
	t         *testing.T
	namespace string
	limits    plan.Limits

	mu   sync.Mutex
	logs map[string]string // by pod
	made []string          // Jobs, in order

	// runs says whether a gateway comes to run with so many replicas, result what
	// a pod of a load prints; an error ends it with exit code 1.
	runs func(replicas int32) bool
	// usage is what a pod of a gateway has used at a time.
	usage  func(at time.Time) (dataplane.Usage, error)
	clock  clock.PassiveClock
	result func(l load.Load, segment shard.Segment) (string, error)
	// answers of result, by the Job's UID and the pod's index; of whoever plays alone.
	answers map[string]answer
	// rolls says whether a Deployment's pods come to run.
	rolls func(*appsv1.Deployment) bool
	// unobserved: Jobs end without the samples of their windows.
	unobserved bool
	// waits, where it is set, makes a pod one that does not run, and its Job with it.
	waits func(*corev1.Pod)
	// node that the pods of Jobs are bound to; empty: none.
	node string
}

type answer struct {
	text string
	err  error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, Client: testenv.Client(t), limits: plan.DefaultLimits, logs: map[string]string{}, answers: map[string]answer{}, clock: clock.RealClock{},
		usage: func(time.Time) (dataplane.Usage, error) { return dataplane.Usage{}, errors.New("no agent") },
		runs:  func(int32) bool { return true }, rolls: func(*appsv1.Deployment) bool { return true }, result: ideal}
	w.namespace = testenv.Namespace(t, w)
	w.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "ca"}, Data: map[string]string{"ca.crt": authority(t)}})
	w.create(&v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "web"},
		Spec: v1alpha1.QTLSGatewaySpec{Replicas: ptr.To[int32](3), Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}}, Listeners: []v1alpha1.Listener{{
			Name: "https", Port: 443, Protocol: v1alpha1.ProtocolHTTPS, Hostnames: []v1alpha1.Hostname{"web.example.com"},
			CertificateRefs: []v1alpha1.CertificateReference{{Kind: v1alpha1.CertificateKindSecret, Name: "web-tls"}},
			Backends:        []v1alpha1.BackendReference{{Name: "web", Port: intstr.FromInt32(80)}},
		}}}})
	return w
}

func (w *world) create(objects ...client.Object) {
	w.t.Helper()
	for _, o := range objects {
		if err := w.Create(w.t.Context(), o); err != nil {
			w.t.Fatalf("%T %s: %v", o, o.GetName(), err)
		}
	}
}

// spec of a benchmark of 1 and 2 replicas, one mode, twice.
func (w *world) spec() v1alpha1.QTLSBenchmarkSpec {
	return v1alpha1.QTLSBenchmarkSpec{
		GatewayRef: v1alpha1.BenchmarkGateway{Name: "web", Use: v1alpha1.BenchmarkUseInPlace},
		Target:     v1alpha1.BenchmarkTarget{CARefs: []v1alpha1.CAReference{{Kind: v1alpha1.CAKindConfigMap, Name: "ca"}}},
		Replicas:   []int32{1, 2},
		Modes:      []v1alpha1.BenchmarkMode{{Name: "hybrid", Groups: []v1alpha1.Group{"X25519MLKEM768"}, SignatureSchemes: []v1alpha1.SignatureScheme{"mldsa65"}}},
		Load:       v1alpha1.BenchmarkLoad{Preset: v1alpha1.BenchmarkPresetShort},
	}
}

// benchmark of that spec, changed.
func (w *world) benchmark(change ...func(*v1alpha1.QTLSBenchmarkSpec)) *v1alpha1.QTLSBenchmark {
	w.t.Helper()
	b := &v1alpha1.QTLSBenchmark{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "scaling"}, Spec: w.spec()}
	for _, f := range change {
		f(&b.Spec)
	}
	w.create(b)
	return b
}

// reconciler as the operator has it, on a client of its own.
func (w *world) reconciler(c client.Client, reader client.Reader, recorder events.EventRecorder) *Reconciler {
	return &Reconciler{Client: c, APIReader: reader, Clock: w.clock, Recorder: recorder, Limits: w.limits, Logs: w.log,
		Usages: func(context.Context, types.NamespacedName, string) (dataplane.Usage, error) {
			return w.usage(w.clock.Now())
		},
		Settings: generator.Settings{Image: "k6:test", GatewayImage: "gateway:test", PeerImages: []string{"peers/*"}, ImagePullPolicy: corev1.PullIfNotPresent}}
}

func (w *world) log(_ context.Context, _, pod, container string) (io.ReadCloser, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text, ok := w.logs[pod]
	if !ok || container != generator.Container {
		return nil, fmt.Errorf("pod %s has no log of %s", pod, container)
	}
	return io.NopCloser(strings.NewReader(text)), nil
}

// ideal is what a load generator would print of a gateway that scales perfectly:
// 100 handshakes a second with each replica, of 32 clients each.
func ideal(l load.Load, segment shard.Segment) (string, error) {
	perSecond := float64(l.VUs) / 32 * 100
	if l.Phase == load.Latency {
		perSecond = float64(l.Rate)
	}
	return print(l, segment, int(perSecond*l.Window.Seconds())/l.Pods)
}

func print(l load.Load, segment shard.Segment, handshakes int) (string, error) {
	h := shard.Series{Kind: shard.Kind{Group: l.Client.Groups[0], SignatureAlgorithm: l.Client.SignatureAlgorithms[0], Version: "TLSv1.3"}, Count: int64(handshakes), Handshake: &shard.Histogram{}}
	if l.Client.Resumption {
		h.Resumed, h.SignatureAlgorithm = true, ""
	}
	for i := range handshakes {
		h.Handshake.Record(time.Millisecond + time.Duration(i%10)*100*time.Microsecond)
	}
	line, err := shard.Shard{Version: shard.Version, Point: l.Point, Segment: segment, Start: l.Begin().UnixNano(), End: l.End().UnixNano(),
		Target: shard.Target{Host: fmt.Sprintf("%s:%d", l.Client.Host, l.Client.Port), SNI: l.Client.SNI}, Iterations: int64(handshakes), Handshakes: []shard.Series{h},
		Versions: map[string]string{"k6": "v2.2.0"}, CPU: shard.CPU{Used: l.Window.Nanoseconds() / 4, MachineTotal: 2 * int64(l.Window/shard.Tick), MachineIdle: int64(l.Window / shard.Tick)}}.Line()
	return "running\n" + line + "\n", err
}

// play everybody's part once. Conflicts are for the next time.
func (w *world) play(ctx context.Context) error {
	var gateways v1alpha1.QTLSGatewayList
	if err := w.List(ctx, &gateways, client.InNamespace(w.namespace)); err != nil {
		return err
	}
	for i := range gateways.Items {
		if err := w.program(ctx, &gateways.Items[i]); err != nil {
			return err
		}
	}
	if err := w.roll(ctx); err != nil {
		return err
	}
	var jobs batchv1.JobList
	if err := w.List(ctx, &jobs, client.InNamespace(w.namespace)); err != nil {
		return err
	}
	for i := range jobs.Items {
		if err := w.work(ctx, &jobs.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func unimportant(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// program a gateway, as its controller does.
func (w *world) program(ctx context.Context, g *v1alpha1.QTLSGateway) error {
	status := metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProgrammed, ObservedGeneration: g.Generation}
	n := *g.Spec.Replicas
	if !w.runs(n) {
		status.Status, status.Reason, status.Message, n = metav1.ConditionFalse, v1alpha1.ReasonPodsNotReady, "0 of 1 pods are ready", 0
	}
	if g.Status.ObservedGeneration == g.Generation && g.Status.ReadyReplicas == n && meta.IsStatusConditionPresentAndEqual(g.Status.Conditions, status.Type, status.Status) {
		return nil
	}
	g.Status.ObservedGeneration, g.Status.Replicas, g.Status.ReadyReplicas = g.Generation, n, n
	meta.SetStatusCondition(&g.Status.Conditions, status)
	return unimportant(w.Status().Update(ctx, g))
}

// work off a Job. The controller writes to Jobs too, so a conflict is as usual here as in
// a cluster, and nobody comes back for what it left undone.
func (w *world) work(ctx context.Context, job *batchv1.Job) error {
	if stateOf(job) != plan.JobActive {
		return nil
	}
	w.mu.Lock()
	if !slices.Contains(w.made, job.Name) {
		w.made = append(w.made, job.Name)
	}
	w.mu.Unlock()
	l, err := load.Parse(job.Spec.Template.Spec.Containers[0].Env[0].Value)
	if err != nil {
		return fmt.Errorf("Job %s: %w", job.Name, err)
	}
	failed := false
	for i := range l.Pods {
		text, failure := w.printed(job, l, i)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: fmt.Sprintf("%s-%d", job.Name, i), Labels: map[string]string{batchv1.JobNameLabel: job.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}}, Spec: job.Spec.Template.Spec}
		pod.Spec.NodeName = w.node
		if err := w.Create(ctx, pod); err != nil && !apierrors.IsAlreadyExists(err) {
			return unimportant(err)
		}
		w.mu.Lock()
		w.logs[pod.Name] = text
		w.mu.Unlock()
		if err := w.tell(ctx, pod, func() {
			if w.waits != nil {
				w.waits(pod)
				return
			}
			pod.Status.Phase = corev1.PodSucceeded
			if failure != nil {
				pod.Status.Phase = corev1.PodFailed
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: generator.Container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: failure.Error()}}}}
			}
		}); err != nil {
			return unimportant(err)
		}
		failed = failed || failure != nil
	}
	if w.waits != nil {
		return nil
	}
	if !w.unobserved && !observed(job) { // it ends at once, and has no time for them
		nobody, err := samples{}.text()
		if err != nil {
			return err
		}
		before := job.DeepCopy()
		for _, which := range moments {
			metav1.SetMetaDataAnnotation(&job.ObjectMeta, which, nobody)
		}
		if err := w.Patch(ctx, job, client.MergeFrom(before)); err != nil {
			return unimportant(err)
		}
	}
	return unimportant(w.tell(ctx, job, func() {
		if stateOf(job) == plan.JobActive {
			end(job, failed)
		}
	}))
}

// printed is what a pod of a Job prints; the result is asked for once, however often the
// Job is looked at.
func (w *world) printed(job *batchv1.Job, l load.Load, index int) (string, error) {
	key := fmt.Sprintf("%s/%d", job.UID, index)
	one, known := w.answers[key]
	if !known {
		one.text, one.err = w.result(l, shard.Segment{Index: index, Count: l.Pods})
		w.answers[key] = one
	}
	return one.text, one.err
}

// tell the status of an object as it is now.
func (w *world) tell(ctx context.Context, o client.Object, set func()) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := w.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		set()
		return w.Status().Update(ctx, o)
	})
}

// end a Job as its controller does.
func end(job *batchv1.Job, failed bool) {
	now := metav1.Now()
	job.Status.StartTime = &now
	is := func(kind batchv1.JobConditionType, reason, message string) {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: now})
	}
	if failed {
		is(batchv1.JobFailureTarget, "BackoffLimitExceeded", "")
		is(batchv1.JobFailed, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
		job.Status.Failed = 1
		return
	}
	is(batchv1.JobSuccessCriteriaMet, "CompletionsReached", "")
	is(batchv1.JobComplete, "CompletionsReached", "")
	job.Status.CompletionTime, job.Status.Succeeded, job.Status.CompletedIndexes = &now, *job.Spec.Completions, fmt.Sprintf("0-%d", *job.Spec.Completions-1)
	if *job.Spec.Completions == 1 {
		job.Status.CompletedIndexes = "0"
	}
}

// start the controller as the operator does, with everybody else around it.
func (w *world) start() (stop func()) {
	w.t.Helper()
	mgr := testenv.Manager(w.t, func(o *ctrl.Options) {
		o.Cache.DefaultTransform = func(o any) (any, error) {
			if d, whole := o.(*appsv1.Deployment); whole {
				w.t.Errorf("Deployment %s/%s is kept in memory, whose ever it is", d.Namespace, d.Name)
			}
			return o, nil
		}
	})
	if err := w.reconciler(mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder("test")).SetupWithManager(mgr); err != nil {
		w.t.Fatal(err)
	}
	stop = testenv.Start(w.t, mgr)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := w.play(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
				w.t.Errorf("the world does not play: %v", err)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	return stop
}

// step the controller once, as one that has just started does.
func (w *world) step(c client.Client, b *v1alpha1.QTLSBenchmark) (ctrl.Result, error) {
	return w.reconciler(c, w.Client, events.NewFakeRecorder(100)).Reconcile(w.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(b)})
}

func (w *world) get(o client.Object) {
	w.t.Helper()
	if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) gateway(name string) *v1alpha1.QTLSGateway {
	w.t.Helper()
	g := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	w.get(g)
	return g
}

// toEnd are the steps of a run that cannot begin: the plan, the first step, and what
// ends it.
const toEnd = 4

// steps of the controller, one after the other; the benchmark is then as they have
// left it.
func (w *world) steps(b *v1alpha1.QTLSBenchmark, n int) {
	w.t.Helper()
	for range n {
		if _, err := w.step(w.Client, b); err != nil {
			w.t.Fatal(err)
		}
	}
	w.get(b)
}

// stepsToEnd takes steps by a client until the run has ended, with everybody else's part
// and then something else after each.
func (w *world) stepsToEnd(c client.Client, b *v1alpha1.QTLSBenchmark, then func()) {
	w.t.Helper()
	for steps := 0; b.Status.CompletionTime == nil; steps++ {
		if steps > 300 {
			w.t.Fatalf("no end: %+v", b.Status)
		}
		if _, err := w.step(c, b); err != nil {
			w.t.Fatal(err)
		}
		if err := w.play(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
		w.get(b)
		then()
	}
}

// until waits for a benchmark that is as it shall be.
func (w *world) until(b *v1alpha1.QTLSBenchmark, is func() bool) {
	w.t.Helper()
	testenv.Eventually(w.t, func(ctx context.Context) error {
		if err := w.Get(ctx, client.ObjectKeyFromObject(b), b); err != nil {
			return err
		}
		if !is() {
			return fmt.Errorf("%s: %+v", b.Name, b.Status)
		}
		return nil
	})
}

// reaches waits until the benchmark is in a phase.
func (w *world) reaches(b *v1alpha1.QTLSBenchmark, phase v1alpha1.BenchmarkPhase) {
	w.t.Helper()
	w.until(b, func() bool { return b.Status.Phase == phase })
}

// waitsFor waits until a condition of the benchmark says so.
func (w *world) waitsFor(b *v1alpha1.QTLSBenchmark, reason, says string) {
	w.t.Helper()
	w.until(b, func() bool {
		return slices.ContainsFunc(b.Status.Conditions, func(c metav1.Condition) bool { return c.Reason == reason && strings.Contains(c.Message, says) })
	})
}

// condition of a benchmark has to have a status and reason, and to say something.
func (w *world) condition(b *v1alpha1.QTLSBenchmark, kind string, status metav1.ConditionStatus, reason, says string) {
	w.t.Helper()
	wantCondition(w.t, b.Status, kind, status, reason, says)
}

// files of the benchmark's report, and what they say.
func (w *world) files(b *v1alpha1.QTLSBenchmark) (*corev1.ConfigMap, report.Report) {
	w.t.Helper()
	files := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: b.Status.ReportRef.Name}}
	w.get(files)
	r, err := report.Parse([]byte(files.Data[report.JSONFile]))
	if err != nil {
		w.t.Fatal(err)
	}
	return files, r
}

// untouched says that the gateway is as it was made.
func (w *world) untouched() error {
	g := &v1alpha1.QTLSGateway{}
	if err := w.Get(context.Background(), client.ObjectKey{Namespace: w.namespace, Name: "web"}, g); err != nil {
		return err
	}
	if h, err := holdOf(g); *g.Spec.Replicas != 3 || h != nil || err != nil {
		return fmt.Errorf("%d replicas, %+v, %v", *g.Spec.Replicas, h, err)
	}
	return nil
}

// The controller writes samples into a Job while that is worked off. What the world was
// kept from it makes up for, and no load is made twice.
func TestAJobThatIsWrittenMeanwhileEnds(t *testing.T) {
	w := newWorld(t)
	asked := map[string]int{}
	w.result = func(l load.Load, segment shard.Segment) (string, error) {
		asked[l.Point]++
		return ideal(l, segment)
	}
	b := w.benchmark()
	direct, err := client.NewWithWatch(testenv.Config(), client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	conflicts := map[string]int{}
	w.Client = interceptor.NewClient(direct, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			kind := fmt.Sprintf("%T", o)
			_, isJob := o.(*batchv1.Job)
			_, isPod := o.(*corev1.Pod)
			if most := retry.DefaultBackoff.Steps; isJob && conflicts[kind] < 1 || isPod && conflicts[kind] < most { // the pod's for longer than anybody tries
				conflicts[kind]++
				other := o.DeepCopyObject().(client.Object)
				other.SetAnnotations(map[string]string{"written": fmt.Sprint(conflicts[kind])})
				if err := c.Patch(ctx, other, client.MergeFrom(o)); err != nil {
					return err
				}
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		}})
	var jobs batchv1.JobList
	for round := 0; len(jobs.Items) == 0 || stateOf(&jobs.Items[0]) == plan.JobActive; round++ {
		if round > 20 {
			t.Fatalf("it does not end, after conflicts %v: %+v", conflicts, jobs.Items)
		}
		if len(jobs.Items) == 0 {
			if _, err := w.step(direct, b); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.play(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := w.List(t.Context(), &jobs, client.InNamespace(w.namespace)); err != nil {
			t.Fatal(err)
		}
	}
	if stateOf(&jobs.Items[0]) != plan.JobComplete || len(conflicts) != 2 {
		t.Errorf("%+v after conflicts %v", jobs.Items[0].Status, conflicts)
	}
	for point, n := range asked {
		if n != 1 {
			t.Errorf("the load %s was made %d times", point, n)
		}
	}
}
