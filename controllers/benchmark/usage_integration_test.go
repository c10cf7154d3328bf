//go:build integration

package benchmark

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/cgroup"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/machine"
	"qtls.dev/qtls/internal/resources"
)

// limited gives the gateway, whose quota is 50m, a pod with an agent.
func limited(w *world) {
	w.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "web-1", Labels: resources.Selector("web")},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "haproxy", Image: "gateway:test"}}}}
	w.create(pod)
	pod.Status.PodIP, pod.Status.PodIPs = "192.0.2.1", []corev1.PodIP{{IP: "192.0.2.1"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Date(2026, 6, 1, 11, 0, 0, 0, time.UTC))}}
	if err := w.Status().Update(w.t.Context(), pod); err != nil {
		w.t.Fatal(err)
	}
}

// runObserved runs a benchmark of one replica by hand, with a clock that goes to
// the moments at which the pods are sampled; late says by how much it misses them. To the
// connections that a pod has had by w.usage come 100 a second of the load.
func runObserved(w *world, late time.Duration, change ...func(*v1alpha1.QTLSBenchmarkSpec)) *v1alpha1.QTLSBenchmark {
	w.t.Helper()
	start := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	at := clocktesting.NewFakePassiveClock(start)
	w.clock = at
	if late > 0 {
		w.unobserved, w.limits.Attempts = true, 1 // the last
	}
	var loaded time.Time // since when there is a load
	others := w.usage
	w.usage = func(at time.Time) (dataplane.Usage, error) {
		u, err := others(at)
		u.TLSConnections += max(at.Sub(loaded), 0).Milliseconds() / 10
		return u, err
	}
	change = append(change, func(s *v1alpha1.QTLSBenchmarkSpec) { s.Replicas = []int32{1} })
	b := w.benchmark(change...)
	for steps := 0; ; steps++ {
		if steps > 100 {
			w.t.Fatalf("no end: %+v", b.Status)
		}
		step := func() (again time.Duration) {
			w.t.Helper()
			result, err := w.step(w.Client, b)
			if err != nil {
				w.t.Fatal(err)
			}
			return result.RequeueAfter
		}
		step()
		if w.get(b); b.Status.CompletionTime != nil {
			return b
		}
		if err := w.program(w.t.Context(), w.gateway("web")); err != nil {
			w.t.Fatal(err)
		}
		var jobs batchv1.JobList
		if err := w.List(w.t.Context(), &jobs, client.InNamespace(w.namespace)); err != nil {
			w.t.Fatal(err)
		}
		for i := range jobs.Items {
			job := &jobs.Items[i]
			if len(job.Status.Conditions) > 0 {
				continue
			}
			l, err := generator.LoadIn(job)
			if err != nil {
				w.t.Fatal(err)
			}
			loaded = time.Unix(0, l.Start)
			for _, due := range []time.Time{loaded.Add(-idleBefore), loaded.Add(-quietBefore), l.Begin(), l.End().Add(-500 * time.Millisecond)} {
				if again := step(); late == 0 && at.Now().Add(again).Sub(due).Abs() > 10*time.Millisecond {
					w.t.Errorf("at %s it is looked again after %s, and a sample is due at %s", at.Now(), again, due)
				}
				at.SetTime(due.Add(late + time.Millisecond))
				step()
			}
			at.SetTime(l.End().Add(time.Second))
			w.get(job)
			if err := w.work(w.t.Context(), job); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// used is a pod's usage since noon, of a share of its quota of 50m, and of a
// machine that is idle for another. Nobody connects to it.
func used(share, idle float64) func(time.Time) (dataplane.Usage, error) {
	return func(at time.Time) (dataplane.Usage, error) {
		since := at.Sub(time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC))
		ticks := since.Milliseconds()
		return dataplane.Usage{Versions: map[string]string{"HAProxy": "3.2.1"}, Time: at.UnixNano(), Worker: "8@1", CPU: int64(0.05 * share * float64(since)), Machine: machine.Machine{CPUModel: "Some CPU", CPUs: 2},
			MachineTotal: 2 * ticks, MachineIdle: int64(2 * idle * float64(ticks))}, nil
	}
}

// with adds evidence to a usage, since noon.
func with(usage func(time.Time) (dataplane.Usage, error), add func(u *dataplane.Usage, since time.Duration)) func(time.Time) (dataplane.Usage, error) {
	return func(at time.Time) (dataplane.Usage, error) {
		u, err := usage(at)
		add(&u, at.Sub(time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)))
		return u, err
	}
}

// Each is named by what the pods' agents and the load generator say alone.
func TestWhatLimitedAPointIsNamedFromWhatItsPodsSay(t *testing.T) {
	for name, c := range map[string]struct {
		share  float64
		add    func(u *dataplane.Usage, since time.Duration)
		change func(w *world)
		want   validity.Bottleneck
		says   string
		meant  v1alpha1.BenchmarkBottleneck
	}{
		"quota": {0.9, func(u *dataplane.Usage, since time.Duration) {
			periods := since.Milliseconds() / 100
			u.Container = &cgroup.Usage{Periods: periods, ThrottledPeriods: periods * 99 / 100, Memory: 60 << 20, MemoryLimit: 256 << 20}
		}, nil, validity.CPUQuota, "of its CPU periods", "CPUQuota"},
		"HSM": {0.3, func(u *dataplane.Usage, since time.Duration) {
			u.HSM = &dataplane.HSMUsage{Time: u.Time, Members: []dataplane.HSMMemberUsage{{Name: "a", Sessions: 4, Signatures: since.Milliseconds() / 10, Waited: since * 39 / 10}}}
		}, nil, validity.HSM, "HSM was busy for 97.5 %", "HSM"},
		"network": {0.3, func(u *dataplane.Usage, since time.Duration) {
			u.Network = &dataplane.Network{Segments: since.Milliseconds(), Retransmitted: since.Milliseconds() / 20}
		}, nil, validity.Network, "of the segments were lost", "Network"},
		"memory": {0.3, func(*dataplane.Usage, time.Duration) {}, killed, validity.Memory, "replica web-1 was killed once for lack of memory", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			limited(w)
			w.usage = with(used(c.share, 0.5), c.add)
			if c.change != nil {
				c.change(w)
			}
			b := runObserved(w, 0, func(s *v1alpha1.QTLSBenchmarkSpec) { s.Modes[0].Bottleneck = c.meant })
			if valid := b.Status.Points[0].Valid; valid != (c.meant != "") {
				t.Errorf("valid: %v, because %v", valid, b.Status.Points[0].InvalidBecause)
			}
			if got := limitOf(w, b); got.Bottleneck != c.want || !strings.Contains(strings.Join(got.Evidence, "; "), c.says) {
				t.Errorf("%+v, want %s: %s", got, c.want, c.says)
			}
		})
	}
}

// killed has the kubelet tell that the pod's HAProxy was, for lack of memory.
func killed(w *world) {
	w.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "web-1"}}
	w.get(pod)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "haproxy", RestartCount: 1, LastTerminationState: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", FinishedAt: metav1.NewTime(time.Date(2026, 6, 1, 13, 0, 0, 0, time.UTC))}}}}
	if err := w.Status().Update(w.t.Context(), pod); err != nil {
		w.t.Fatal(err)
	}
}

// limitOf the first point, in the report.
func limitOf(w *world, b *v1alpha1.QTLSBenchmark) validity.Finding {
	w.t.Helper()
	_, r := w.files(b)
	return r.Points[0].Capacity.Bottleneck
}

// The kubelet tells of it when the agent could not be asked in time.
func TestAReplicaThatIsKilledIsNamedThoughItIsNotSampled(t *testing.T) {
	w := newWorld(t)
	limited(w)
	killed(w)
	w.usage = used(0.3, 0.5)
	b := runObserved(w, 2*time.Second)
	if got := limitOf(w, b); got.Bottleneck != validity.Memory || !strings.Contains(strings.Join(got.Evidence, "; "), "replica web-1 was killed once") {
		t.Errorf("%+v, want %s", got, validity.Memory)
	}
}

// The operator does not run while the first load of each measurement is made.
func TestAPointThatNobodyObservedIsMeasuredAgain(t *testing.T) {
	w := newWorld(t)
	limited(w)
	w.usage = used(0.99, 0.5)
	w.unobserved = true
	at := clocktesting.NewFakePassiveClock(time.Now())
	w.clock = at
	b := w.benchmark(func(s *v1alpha1.QTLSBenchmarkSpec) { s.Replicas = []int32{1} })
	w.steps(b, toEnd)
	for _, attempt := range []string{"scaling-0001-1", "scaling-0001-2"} {
		if err := w.program(t.Context(), w.gateway("web")); err != nil {
			t.Fatal(err)
		}
		w.steps(b, 2)
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: attempt}}
		w.get(job)
		if progress := b.Status.Progress; progress != "0/4" {
			t.Errorf("progress %s: %s was recorded", progress, attempt)
		}
		if err := w.work(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		w.unobserved = false
		l, err := generator.LoadIn(job)
		if err != nil {
			t.Fatal(err)
		}
		at.SetTime(l.End()) // when it works again
	}
	w.steps(b, 2)
	if b.Status.Progress != "1/4" {
		t.Errorf("progress %s: %+v", b.Status.Progress, b.Status.Conditions)
	}
}

func TestAPointThatIsObservedToBeTheGatewaysIsAResult(t *testing.T) {
	w := newWorld(t)
	limited(w)
	w.usage = with(used(0.99, 0.5), func(u *dataplane.Usage, since time.Duration) {
		u.Connections = 32
		u.Container = &cgroup.Usage{Periods: since.Milliseconds() / 100, ThrottledPeriods: since.Milliseconds() / 100, Memory: 60<<20 + since.Milliseconds(), MemoryLimit: 256 << 20}
	})
	b := runObserved(w, 0, func(s *v1alpha1.QTLSBenchmarkSpec) {
		s.Thresholds = []v1alpha1.BenchmarkThreshold{"handshakesPerSecond@1 >= 90", "failures == 0", "p50 < 5ms"}
	})
	w.condition(b, v1alpha1.ConditionComplete, "True", v1alpha1.ReasonCompleted, "")
	w.condition(b, v1alpha1.ConditionValid, "True", v1alpha1.ReasonPointsValid, "each of 1 points")
	w.condition(b, v1alpha1.ConditionPassed, "True", v1alpha1.ReasonThresholdsPassed, "each of 3 thresholds holds")
	p := b.Status.Points[0]
	if !p.Valid || len(p.InvalidBecause) > 0 || p.Efficiency == nil || p.Efficiency.Mean != "1.0000" || p.Resumption != "0.0000" || len(p.FailuresByClass) > 0 || p.LimitedBy != string(validity.CPUQuota) {
		t.Errorf("%+v", p)
	}
	if s := p.Server; s == nil || s.CPUPerHandshake == nil || s.CPUPerHandshake.Round(10*time.Microsecond) != 500*time.Microsecond || s.HandshakesPerCPUSecond == nil || s.HandshakesPerCPUSecond.Mean != "2000.0" ||
		s.Memory == nil || s.Memory.Value() < 60<<20 || s.MemoryPerConnection == nil || s.MachineIdle != "0.5000" || s.Imbalance != "0.0000" {
		t.Errorf("%+v", s)
	}
	if l := p.Latency; l == nil || l.Min.Duration < 900*time.Microsecond || l.Min.Duration > l.Mean.Duration || l.Max.Duration < l.Mean.Duration {
		t.Errorf("%+v", l)
	}
	if s := b.Status.Scaling; len(s) != 1 || s[0].Mode != "hybrid" || !strings.Contains(s[0].Curve, "Each replica has a quota of 50m CPU, on one machine") || s[0].Unavailable == "" || len(s[0].Predictions) > 0 {
		t.Errorf("%+v", s)
	}
	c, r := w.files(b)
	if e := r.Environment; len(e.Machines) != 1 || e.Machines[0].CPUModel != "Some CPU" || e.Quotas[0] != (report.Quota{Container: "haproxy", CPU: "50m"}) || e.Quotas[1] != (report.Quota{Container: "k6", Memory: "1Gi"}) ||
		!slices.Contains(e.Versions, report.Program{Name: "HAProxy, gateway", Version: "3.2.1"}) || !slices.Contains(e.Versions, report.Program{Name: "k6, load generator", Version: "v2.2.0"}) {
		t.Errorf("environment %+v", e)
	}
	// 0.99 of 50m, and 100 handshakes a second.
	if cpu := r.Points[0].Capacity.ServerCPU; cpu == nil || math.Abs(cpu.Value-0.000495) > 1e-5 {
		t.Errorf("CPU of the server for a handshake: %+v s, want 495 µs", cpu)
	}

	// The next run is compared with this one; a threshold that does not hold fails it.
	if err := w.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	c.ObjectMeta = metav1.ObjectMeta{Namespace: w.namespace, Name: "baseline"}
	w.create(c)
	// The garbage collector's part:
	if err := w.DeleteAllOf(t.Context(), &corev1.ConfigMap{}, client.InNamespace(w.namespace), client.MatchingLabels{v1alpha1.LabelBenchmark: "scaling"}); err != nil {
		t.Fatal(err)
	}
	if err := w.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(w.namespace), client.HasLabels{batchv1.JobNameLabel}); err != nil {
		t.Fatal(err)
	}
	b = runObserved(w, 0, func(s *v1alpha1.QTLSBenchmarkSpec) {
		s.Thresholds = []v1alpha1.BenchmarkThreshold{"handshakesPerSecond >= 110", "failures == 0"}
		s.BaselineRef = &v1alpha1.BenchmarkBaseline{Name: "baseline"}
	})
	w.condition(b, v1alpha1.ConditionPassed, "False", v1alpha1.ReasonThresholdsNotPassed, "handshakesPerSecond >= 110: Failed: hybrid at 1")
	if _, r := w.files(b); r.Comparison == nil || r.Comparison.Refused || len(r.Comparison.Rows) == 0 || r.Comparison.Rows[0].Change != report.Same {
		t.Errorf("%+v", r.Comparison)
	}

	// One that is known beforehand to have nothing in common with it is not measured.
	if err := w.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.QTLSBenchmarkSpec)
		says   string
	}{
		"other numbers of replicas": {func(s *v1alpha1.QTLSBenchmarkSpec) { s.Replicas = []int32{1, 2} }, `mode "hybrid" with 2 replicas is not in it`},
		"another load": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			s.Replicas, s.Load.VirtualUsersPerReplica = []int32{1}, ptr.To[int32](7)
		}, "load: "},
	} {
		b := w.benchmark(func(s *v1alpha1.QTLSBenchmarkSpec) {
			c.change(s)
			s.BaselineRef = &v1alpha1.BenchmarkBaseline{Name: "baseline"}
		})
		w.steps(b, toEnd)
		w.condition(b, v1alpha1.ConditionFailed, "True", v1alpha1.ReasonInvalid, `spec.baselineRef: no comparison with the report of "scaling" could pass: `)
		w.condition(b, v1alpha1.ConditionFailed, "True", v1alpha1.ReasonInvalid, c.says)
		if err := w.untouched(); err != nil || b.Status.StartTime != nil {
			t.Errorf("%s: begun %v, %v", name, b.Status.StartTime, err)
		}
		if err := w.Delete(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
}

func cpu(quantity string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(quantity)}
}

func TestWhatCannotBeDoneTouchesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.QTLSBenchmarkSpec)
		reason string
		says   string
	}{
		"no such baseline":         {func(s *v1alpha1.QTLSBenchmarkSpec) { s.BaselineRef = &v1alpha1.BenchmarkBaseline{Name: "none"} }, v1alpha1.ReasonBaselineNotFound, `no ConfigMap "none" with key "report.json"`},
		"a baseline that is none":  {func(s *v1alpha1.QTLSBenchmarkSpec) { s.BaselineRef = &v1alpha1.BenchmarkBaseline{Name: "garbage"} }, v1alpha1.ReasonBaselineInvalid, "not a report"},
		"a mode that is not there": {func(s *v1alpha1.QTLSBenchmarkSpec) { s.Thresholds = []v1alpha1.BenchmarkThreshold{"other/p99 <= 5ms"} }, v1alpha1.ReasonInvalid, `spec.thresholds[0]: mode "other" is none of spec.modes`},
		"replicas that are not": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			s.Thresholds = []v1alpha1.BenchmarkThreshold{"efficiency@8 >= 0.9"}
		}, v1alpha1.ReasonInvalid, "8 is none of spec.replicas"},
		"an efficiency without one replica": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			s.Replicas, s.Thresholds = []int32{2, 4}, []v1alpha1.BenchmarkThreshold{"efficiency@4 >= 0.9"}
		}, v1alpha1.ReasonInvalid, `spec.thresholds[0]: "efficiency@4 >= 0.9": the efficiency is relative to 1 replica, and spec.replicas has no 1`},
		"an efficiency of nothing but one replica": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			s.Replicas, s.Thresholds = []int32{1}, []v1alpha1.BenchmarkThreshold{"efficiency >= 0.9"}
		}, v1alpha1.ReasonInvalid, "spec.replicas has no other number"},
		"a resumption of full handshakes": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			s.Thresholds = []v1alpha1.BenchmarkThreshold{"failures == 0", "resumption >= 99%"}
		}, v1alpha1.ReasonInvalid, `spec.thresholds[1]: "resumption >= 99%": no mode resumes`},
		"an interval of one repetition": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			s.Load.Repetitions, s.Thresholds = ptr.To[int32](1), []v1alpha1.BenchmarkThreshold{"failures == 0", "max < 1s", "p50 < 5ms"}
		}, v1alpha1.ReasonInvalid, `spec.thresholds[2]: "p50 < 5ms": its verdict needs an interval, and that 2 of spec.load.repetitions`},
		"a comparison of one repetition": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			s.Load.Repetitions, s.BaselineRef = ptr.To[int32](1), &v1alpha1.BenchmarkBaseline{Name: "garbage"}
		}, v1alpha1.ReasonInvalid, "spec.baselineRef: what is compared needs an interval"},
		"more clients than there can be": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			s.Replicas, s.Load.VirtualUsersPerReplica = []int32{100}, ptr.To[int32](256)
		}, v1alpha1.ReasonInvalid, "are 25600 clients, and a load has 10000 at most"},
		"a limit without a unit": {func(s *v1alpha1.QTLSBenchmarkSpec) { s.Thresholds = []v1alpha1.BenchmarkThreshold{"p99 <= 5"} }, v1alpha1.ReasonInvalid, "want a time above 0 with its unit"},
		"pods that request more than they may have": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			s.Generator.Resources = &corev1.ResourceRequirements{Requests: cpu("2"), Limits: cpu("1")}
		}, v1alpha1.ReasonInvalid, "spec.generator: Job.batch \"scaling-0001-1\" is invalid: spec.template.spec.containers[0].resources.requests"},
		"nodes of no label": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			s.Generator.NodeSelector = map[string]string{"not a key": "yes"}
		}, v1alpha1.ReasonInvalid, "spec.template.spec.nodeSelector"},
		"a copy's pods that tolerate nothing": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			s.GatewayRef.Use = v1alpha1.BenchmarkUseCopy
			s.Generator.Tolerations = []corev1.Toleration{{Key: "a", Operator: "Never"}}
		}, v1alpha1.ReasonInvalid, "spec.template.spec.tolerations[0].operator"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "garbage"}, Data: map[string]string{report.JSONFile: "garbage"}})
			b := w.benchmark(c.change)
			w.steps(b, toEnd)
			w.condition(b, v1alpha1.ConditionComplete, "False", c.reason, c.says)
			phase := v1alpha1.BenchmarkPending
			if c.reason == v1alpha1.ReasonInvalid { // a spec does not change
				phase = v1alpha1.BenchmarkFailed
				w.condition(b, v1alpha1.ConditionFailed, "True", c.reason, c.says)
			}
			if err := w.untouched(); err != nil || b.Status.Phase != phase {
				t.Errorf("%s, not %s, %v", b.Status.Phase, phase, err)
			}
		})
	}
}

// Half an hour of load beside production would end without one capacity.
func TestAGatewayWithoutTheQuotaThatIsToLimitItIsNotMeasured(t *testing.T) {
	const says = `spec.modes[0]: the CPU quota of replicas is to limit mode "hybrid" (bottleneck: CPUQuota), and QTLSGateway "web" has none`
	for name, c := range map[string]struct {
		change  func(*v1alpha1.QTLSBenchmarkSpec)
		refused bool
	}{
		"in place": {func(*v1alpha1.QTLSBenchmarkSpec) {}, true},
		"a copy":   {func(s *v1alpha1.QTLSBenchmarkSpec) { s.GatewayRef.Use = v1alpha1.BenchmarkUseCopy }, true},
		"a copy with a quota of its own": {func(s *v1alpha1.QTLSBenchmarkSpec) {
			s.GatewayRef = v1alpha1.BenchmarkGateway{Name: "web", Use: v1alpha1.BenchmarkUseCopy, Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}}}
		}, false},
		"limited by its HSM": {func(s *v1alpha1.QTLSBenchmarkSpec) { s.Modes[0].Bottleneck = "HSM" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			g := w.gateway("web")
			g.Spec.Resources = nil
			if err := w.Update(t.Context(), g); err != nil {
				t.Fatal(err)
			}
			b := w.benchmark(c.change)
			w.steps(b, 3)
			if began := b.Status.StartTime != nil; began == c.refused {
				t.Fatalf("begun: %t\n%+v", began, b.Status)
			}
			if !c.refused {
				return
			}
			w.condition(b, v1alpha1.ConditionComplete, "False", v1alpha1.ReasonInvalid, says)
			g = w.gateway("web")
			g.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}}
			if err := w.Update(t.Context(), g); err != nil {
				t.Fatal(err)
			}
			if w.steps(b, 2); b.Status.StartTime == nil {
				t.Errorf("with a quota it does not begin: %+v", b.Status)
			}
		})
	}
}

// It runs, and its agent answers; but no client reaches it.
func TestAPointOfAPodThatIsNotReadyIsNone(t *testing.T) {
	w := newWorld(t)
	limited(w)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "web-1"}}
	w.get(pod)
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	if err := w.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	w.usage = used(0.99, 0.5)
	b := runObserved(w, 0)
	w.condition(b, v1alpha1.ConditionValid, "False", v1alpha1.ReasonPointsInvalid, "ReplicasDisturbed: replica web-1 restarted, or was not ready all the time")
}

func TestAPointThatIsNotTheGatewaysAloneIsNone(t *testing.T) {
	for name, c := range map[string]struct {
		usage func(time.Time) (dataplane.Usage, error)
		late  time.Duration
		says  string
	}{
		"the machine is full":              {used(0.99, 0.05), 0, "MachineBusy"},
		"the replica could have done more": {used(0.6, 0.5), 0, "NotSaturated: replica web-1 used 60 % of its CPU quota"},
		"the samples come too late":        {used(0.99, 0.5), 2 * time.Second, "NotObserved"},
		"the HSM is what the replica waits for": {with(used(0.3, 0.5), func(u *dataplane.Usage, since time.Duration) {
			u.HSM = &dataplane.HSMUsage{Time: u.Time, Members: []dataplane.HSMMemberUsage{{Name: "a", Sessions: 4, Signatures: since.Milliseconds() / 10, Waited: since * 39 / 10}}}
		}), 0, "NotSaturated"},
		"others connect to the gateway, twice a second": {with(used(0.99, 0.5), func(u *dataplane.Usage, since time.Duration) {
			u.TLSConnections = since.Milliseconds() / 500
		}), 0, "OtherTraffic: just before the load the replicas had 2.0 TLS connections a second, 2 % of its rate"},
		"HAProxy is restarted": {func(at time.Time) (dataplane.Usage, error) {
			u, err := used(0.99, 0.5)(at)
			u.Worker = at.String()
			return u, err
		}, 0, "ReplicasDisturbed: replica web-1 restarted"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			limited(w)
			w.usage = c.usage
			b := runObserved(w, c.late)
			w.condition(b, v1alpha1.ConditionValid, "False", v1alpha1.ReasonPointsInvalid, c.says)
		})
	}
}

// A listener may have one key in an HSM and another in a Secret: what is told of a mode is what its clients were served with.
func TestAModeIsOfAnHSMWhereTheCertificateThatItGetsIs(t *testing.T) {
	w := newWorld(t)
	w.create(&v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "vault"}, Spec: v1alpha1.HSMPoolSpec{Members: []v1alpha1.HSMMember{
		{Name: "a", SoftToken: &v1alpha1.SoftToken{Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("300m")}}}},
		{Name: "b", Remote: &v1alpha1.RemoteHSM{Address: "hsm.example.com:7443", TLSSecretRef: v1alpha1.SecretReference{Name: "clients"}, GatewayTLSSecretRef: &v1alpha1.SecretReference{Name: "clients"}, Sessions: 8}},
	}}})
	inHSM := pairIn(t, w.namespace, "in-hsm", "ECDSA-P384")
	inHSM.Data["tls.key"] = keypair.Reference{Pool: "vault", Label: "web"}.PEM()
	w.create(pairIn(t, w.namespace, "web-tls", "ECDSA-P256"), inHSM)
	g := w.gateway("web")
	g.Spec.HSMRef = &v1alpha1.HSMPoolReference{Name: "vault"}
	g.Spec.Listeners[0].CertificateRefs = append(g.Spec.Listeners[0].CertificateRefs, v1alpha1.CertificateReference{Kind: v1alpha1.CertificateKindSecret, Name: "in-hsm"})
	if err := w.Update(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	w.start()
	b := w.benchmark(func(s *v1alpha1.QTLSBenchmarkSpec) {
		s.Modes[0].SignatureSchemes = []v1alpha1.SignatureScheme{"ecdsa_secp384r1_sha384"}
		other := s.Modes[0]
		other.Name, other.SignatureSchemes = "in-secret", []v1alpha1.SignatureScheme{"ecdsa_secp256r1_sha256"}
		s.Modes = append(s.Modes, other)
	})
	w.reaches(b, v1alpha1.BenchmarkCompleted)
	_, r := w.files(b)
	told := map[string]bool{}
	for _, m := range r.Modes {
		told[m.Name] = m.HSM
	}
	if len(r.Notes) > 0 {
		t.Errorf("notes %q: the gateway itself was measured", r.Notes)
	}
	if want := map[string]bool{"hybrid": true, "in-secret": false}; !maps.Equal(told, want) {
		t.Errorf("in an HSM: %v, want %v", told, want)
	}
	want := []report.HSMMember{{Name: "a", Kind: "soft token", CPU: "300m", Memory: "unlimited", Sessions: 16}, {Name: "b", Kind: "remote", Sessions: 8}}
	if !slices.Equal(r.Environment.HSM, want) {
		t.Errorf("the HSM is %+v, want %+v", r.Environment.HSM, want)
	}
}
