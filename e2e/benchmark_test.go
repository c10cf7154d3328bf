//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/testenv/refusal"
)

// forRun is how long a small benchmark may take: many times its plan, for a machine may be busy with other things.
const forRun = 15 * time.Minute

// benchmarked is a gateway to measure, of two replicas, and the authorities of its certificates in a ConfigMap "trusted".
func (n namespace) benchmarked() *v1alpha1.QTLSGateway {
	n.Helper()
	a := n.withIssuer()
	n.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "trusted"}, Data: map[string]string{"ca.crt": string(a.bundle())}},
		certificate("web", dual, "web.example"))
	g := gateway("web", https("web", 443, "web.example"))
	g.Spec.Replicas = ptr.To[int32](2)
	g.Spec.Resources = &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}, Limits: corev1.ResourceList{corev1.ResourceCPU: wholeCPUs},
	}
	n.startEcho("echo", 1, "")
	n.create(g)
	waitReady(n.T, g, forReady)
	return g
}

// wholeCPUs are a quota that limits nothing on the machines of tests.
var wholeCPUs = resource.MustParse("2")

// benchmark of the gateway itself, with one replica and one mode, once.
func benchmark(name string) *v1alpha1.QTLSBenchmark {
	return &v1alpha1.QTLSBenchmark{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.QTLSBenchmarkSpec{
			GatewayRef: v1alpha1.BenchmarkGateway{Name: "web", Use: v1alpha1.BenchmarkUseInPlace},
			Target:     v1alpha1.BenchmarkTarget{CARefs: []v1alpha1.CAReference{{Kind: v1alpha1.CAKindConfigMap, Name: "trusted", Key: "ca.crt"}}},
			Replicas:   []int32{1},
			Modes:      []v1alpha1.BenchmarkMode{{Name: "hybrid", Groups: []v1alpha1.Group{"X25519MLKEM768"}, SignatureSchemes: []v1alpha1.SignatureScheme{"mldsa65"}}},
			Load:       v1alpha1.BenchmarkLoad{Preset: v1alpha1.BenchmarkPresetShort, Repetitions: ptr.To[int32](1)},
		},
	}
}

// generatorLogs follows what the pods of benchmarks' load generators print, by pod, until the test ends: the pods are gone
// when their results are recorded.
type generatorLogs struct {
	mu   sync.Mutex
	pods map[types.UID]*bytes.Buffer
	jobs map[string]map[types.UID]bool
	done sync.WaitGroup
}

func (n namespace) followGenerators() (logs *generatorLogs, stop func()) {
	logs = &generatorLogs{pods: map[types.UID]*bytes.Buffer{}, jobs: map[string]map[types.UID]bool{}}
	ctx, cancel := context.WithCancel(n.Context())
	logs.done.Go(func() {
		_ = poll(ctx, func(ctx context.Context) (bool, string) { // until it is stopped
			var jobs batchv1.JobList
			if err := cluster.List(ctx, &jobs, client.InNamespace(n.name)); err == nil {
				for _, j := range jobs.Items {
					if logs.jobs[j.Name] == nil {
						logs.jobs[j.Name] = map[types.UID]bool{}
					}
					logs.jobs[j.Name][j.UID] = true
				}
			}
			for _, p := range n.pods(ctx, map[string]string{"app.kubernetes.io/component": "load-generator"}) {
				if _, known := logs.pods[p.UID]; !known && (p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodSucceeded) {
					into := &bytes.Buffer{}
					logs.pods[p.UID] = into
					logs.done.Go(func() { logs.follow(ctx, n.name, p.Name, into) })
				}
			}
			return false, "it goes on"
		})
	})
	return logs, func() { cancel(); logs.done.Wait() }
}

func (l *generatorLogs) follow(ctx context.Context, namespace, pod string, into *bytes.Buffer) {
	stream, err := cluster.clientset.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		return // the pod is gone already; what is missing is counted
	}
	defer stream.Close()
	text, _ := io.ReadAll(stream)
	l.mu.Lock()
	defer l.mu.Unlock()
	into.Write(text)
}

// shards that were printed, by point.
func (l *generatorLogs) shards() map[string][]shard.Shard {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string][]shard.Shard{}
	for _, log := range l.pods {
		found, _ := shard.Read(bytes.NewReader(log.Bytes())) // one that was cut off is none
		for _, s := range found {
			all[s.Point] = append(all[s.Point], s)
		}
	}
	return all
}

// recorded results of a benchmark, by the measurements' names; the result is nil where there is none.
func (n namespace) recorded(b *v1alpha1.QTLSBenchmark) map[string]*shard.Result {
	n.Helper()
	var list corev1.ConfigMapList
	if err := cluster.List(n.Context(), &list, client.InNamespace(n.name), client.MatchingLabels{v1alpha1.LabelBenchmark: b.Name, "app.kubernetes.io/component": "records"}); err != nil {
		n.Fatal(err)
	}
	all := map[string]*shard.Result{}
	for _, c := range list.Items {
		for name, text := range c.Data {
			var one struct{ Result *shard.Result }
			if err := json.Unmarshal([]byte(text), &one); err != nil {
				n.Fatalf("record %s: %v", name, err)
			}
			if _, twice := all[name]; twice {
				n.Errorf("%s is recorded twice", name)
			}
			all[name] = one.Result
		}
	}
	return all
}

// exact checks that what is recorded is what the generators printed, and that there was one Job for each attempt. It
// returns how many measurements could be compared.
func (n namespace) exact(b *v1alpha1.QTLSBenchmark, logs *generatorLogs) int {
	n.Helper()
	for name, uids := range logs.jobs {
		if len(uids) != 1 {
			n.Errorf("Job %s was made %d times", name, len(uids))
		}
	}
	printed, compared := logs.shards(), 0
	for name, result := range n.recorded(b) {
		if result == nil {
			continue
		}
		shards := printed[result.Point]
		if len(shards) != result.Pods {
			continue // the log of a pod was cut off when that was deleted
		}
		if want := fmt.Sprintf("%s/%s", b.UID, name); result.Point != want {
			n.Errorf("%s has the result of %s", name, result.Point)
		}
		merged, err := shard.Merge(shards)
		if err != nil {
			n.Errorf("%s: %v", name, err)
			continue
		}
		a, _ := json.Marshal(merged)
		if b, _ := json.Marshal(result); !bytes.Equal(a, b) {
			n.Errorf("%s: recorded is\n%s\nand printed was\n%s", name, b, a)
		}
		compared++
	}
	return compared
}

// completed waits until a benchmark is over and has measured everything.
func (n namespace) completed(b *v1alpha1.QTLSBenchmark) {
	n.Helper()
	eventually(n.T, forRun, "the benchmark is over", func(ctx context.Context) (bool, string) {
		if ok, state := get(ctx, b); !ok {
			return false, state
		}
		return b.Status.CompletionTime != nil, fmt.Sprintf("%s %s\n%s", b.Status.Phase, b.Status.Progress, describe(b))
	})
	if want := fmt.Sprintf("%d/%d", b.Status.Plan.Measurements, b.Status.Plan.Measurements); b.Status.Phase != v1alpha1.BenchmarkCompleted || b.Status.Progress != want {
		n.Fatalf("%s, %s of %s\n%s", b.Status.Phase, b.Status.Progress, want, describe(b))
	}
	if c := condition(b, v1alpha1.ConditionRestored); c == nil || c.Status != metav1.ConditionTrue {
		n.Errorf("not put back\n%s", describe(b))
	}
}

// reportOf a benchmark, as it is stored.
func (n namespace) reportOf(b *v1alpha1.QTLSBenchmark) report.Report {
	n.Helper()
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: b.Status.ReportRef.Name}}
	if ok, state := get(n.Context(), c); !ok {
		n.Fatal(state)
	}
	r, err := report.Parse([]byte(c.Data["report.json"]))
	if err != nil {
		n.Fatal(err)
	}
	if !strings.Contains(c.Data["report.html"], "</html>") || !strings.Contains(c.Data["report.md"], "# Benchmark "+b.Name) {
		n.Errorf("the report has no page or no Markdown")
	}
	return r
}

// A benchmark as a user runs it, on a copy. How fast the machine is, and whether it is idle enough for a result, is not
// looked at: that each measurement is made, counted and judged, and that what is refused is so for a reason that its own
// figures bear out. What is a result has the efficiency that follows.
func TestBenchmark(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	g := n.benchmarked()
	logs, stop := n.followGenerators()
	b := benchmark("scaling")
	b.Spec.GatewayRef = v1alpha1.BenchmarkGateway{Name: "web", Use: v1alpha1.BenchmarkUseCopy, Resources: &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("1Gi")},
	}}
	b.Spec.Replicas, b.Spec.Load.Duration = []int32{1, 2}, &metav1.Duration{Duration: 1500 * time.Millisecond}
	b.Spec.Modes = append(b.Spec.Modes, v1alpha1.BenchmarkMode{Name: "resumed", Groups: b.Spec.Modes[0].Groups, SignatureSchemes: b.Spec.Modes[0].SignatureSchemes, Handshake: v1alpha1.BenchmarkHandshakeResumed})
	n.create(b)
	n.completed(b)
	stop()
	if planned := b.Status.Plan.Duration.Duration; planned > 3*time.Minute {
		t.Errorf("it is planned for %s, which is no small benchmark", planned)
	}

	compared := n.exact(b, logs)
	if records := n.recorded(b); len(records) != 8 || compared == 0 {
		t.Errorf("%d measurements are recorded, %d of them compared with what was printed", len(records), compared)
	}
	r := n.reportOf(b)
	if len(b.Status.Points) != 4 || len(r.Points) != 4 {
		t.Fatalf("%d points, in the report %d\n%s", len(b.Status.Points), len(r.Points), describe(b))
	}
	for _, p := range b.Status.Points {
		name := fmt.Sprintf("%s with %d replicas", p.Mode, p.Replicas)
		if p.HandshakesPerSecond == nil || p.Latency == nil || p.Repetitions != 1 {
			t.Errorf("%s was not measured: %+v", name, p)
			continue
		}
		if p.Valid != (len(p.InvalidBecause) == 0) {
			t.Errorf("%s: valid is %v because of %q", name, p.Valid, p.InvalidBecause)
		}
		// The load generator has all CPU that there is, and the replicas more memory than they need.
		if p.LimitedBy == string(validity.Client) || p.LimitedBy == string(validity.Memory) {
			t.Errorf("%s is limited by %s, which it is not", name, p.LimitedBy)
		}
		result(t, "%s: %s handshakes/s, mean %s, invalid because of %q", name, p.HandshakesPerSecond.Mean, p.Latency.Mean.Duration, p.InvalidBecause)
	}
	n.judgedFairly(b, r)
	resumed := int64(0)
	for name, one := range n.recorded(b) {
		for _, h := range one.Handshakes {
			if h.Group != "X25519MLKEM768" || h.Resumed != (h.SignatureAlgorithm == "") || !h.Resumed && h.SignatureAlgorithm != "mldsa65" || h.Resumed && !strings.Contains(name, "-resumed-") {
				t.Errorf("%s has %d handshakes of %+v", name, h.Count, h.Kind)
			}
			if h.Resumed {
				resumed += h.Count
			}
		}
	}
	if resumed == 0 {
		t.Error("no session was resumed")
	}
	if m := r.Environment.Machines; len(m) == 0 || m[0].CPUModel == "" || m[0].CPUs == 0 {
		t.Errorf("the report does not say of which machines it is: %+v", r.Environment)
	}

	eventually(t, forChange, "the copy is gone, and its pods", func(ctx context.Context) (bool, string) {
		err := cluster.Get(ctx, client.ObjectKey{Namespace: n.name, Name: "scaling-gateway"}, &v1alpha1.QTLSGateway{})
		pods := n.pods(ctx, map[string]string{v1alpha1.LabelGateway: "scaling-gateway"})
		return apierrors.IsNotFound(err) && len(pods) == 0, fmt.Sprintf("%v, %d pods", err, len(pods))
	})
	if ok, state := get(t.Context(), g); !ok || g.Generation != 1 {
		t.Errorf("the gateway itself was touched: generation %d %s", g.Generation, state)
	}
	n.waitEvents("QTLSBenchmark", b.Name, string(v1alpha1.BenchmarkPending), string(v1alpha1.BenchmarkRunning), string(v1alpha1.BenchmarkRestoring), string(v1alpha1.BenchmarkCompleted))
}

// judgedFairly checks that no capacity is refused without cause, on however busy a machine, and that those which are not
// give an efficiency.
func (n namespace) judgedFairly(b *v1alpha1.QTLSBenchmark, r report.Report) {
	n.Helper()
	if why := refusal.Unobserved(r); why != "" {
		n.Error(why)
	}
	valid := map[string]int{} // capacities, by mode
	for _, p := range r.Points {
		for _, reason := range refusal.Unfounded(p) {
			n.Errorf("%s with %d replicas is refused without cause: %s; its figures are %+v, observed %+v", p.Mode, p.Replicas, reason, p.Capacity, p.Capacity.Observed)
		}
		if p.Capacity != nil && p.Capacity.Valid {
			valid[p.Mode]++
		}
	}
	result(n.T, "of %d replicas, capacities that are results, by mode: %v", b.Spec.Replicas, valid)
	for mode, count := range valid {
		i := slices.IndexFunc(r.Scaling, func(s report.Scaling) bool { return s.Mode == mode })
		if i < 0 || len(r.Scaling[i].Efficiencies) == 0 || count == len(b.Spec.Replicas) && len(r.Scaling[i].Efficiencies) != count {
			n.Errorf("mode %s has %d valid capacities, and %+v", mode, count, r.Scaling)
			continue
		}
		for _, e := range r.Scaling[i].Efficiencies {
			if e.Estimate.Value <= 0 || e.Estimate.N != 1 {
				n.Errorf("mode %s: the efficiency of %d replicas is %+v", mode, e.Replicas, e.Estimate)
			}
		}
	}
}

// What limits a gateway is brought about, and named from what the kubelet and the containers tell. Both benchmarks run at
// once, each of pods of its own; neither minds what the other takes.
func TestBenchmarkNamesWhatLimits(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	g := n.benchmarked()

	// Clients whose container may have a tenth of a CPU, and a replica that may have all that there is.
	throttled := benchmark("client")
	throttled.Spec.GatewayRef.Use = v1alpha1.BenchmarkUseCopy
	throttled.Spec.Generator.Resources = &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
	n.create(throttled)

	// A replica with memory for itself, and not for 256 connections.
	limit := n.memoryTaken(g, 0) + 24<<20
	small := gateway("memory", https("web", 443, "web.example"))
	small.Spec.Resources = &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: *resource.NewQuantity(limit, resource.BinarySI)},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: wholeCPUs, corev1.ResourceMemory: *resource.NewQuantity(limit, resource.BinarySI)},
	}
	n.create(small)
	waitReady(t, small, forReady)
	t.Logf("of %d KiB of memory, %d KiB are left", limit>>10, (limit-n.memoryTaken(small, limit-6<<20))>>10)
	short := benchmark("memory")
	short.Spec.GatewayRef.Name, short.Spec.Load.VirtualUsersPerReplica = small.Name, ptr.To[int32](256)
	n.create(short)

	for _, c := range []struct {
		of    *v1alpha1.QTLSBenchmark
		limit validity.Bottleneck
		says  string
		rule  validity.Rule
	}{
		{throttled, validity.Client, "the generator was throttled in", validity.GeneratorLimited},
		{short, validity.Memory, "for lack of memory", validity.ReplicasDisturbed},
	} {
		n.completed(c.of)
		found := n.reportOf(c.of).Points[0].Capacity.Bottleneck
		result(t, "%s: %s: %s", c.of.Name, found.Bottleneck, strings.Join(found.Evidence, "; "))
		if found.Bottleneck != c.limit || !strings.Contains(strings.Join(found.Evidence, "; "), c.says) {
			t.Errorf("%s: %+v, want %s: %s", c.of.Name, found, c.limit, c.says)
		}
		because := c.of.Status.Points[0].InvalidBecause
		if !slices.ContainsFunc(because, func(reason string) bool { return strings.HasPrefix(reason, string(c.rule)+":") }) {
			t.Errorf("%s: invalid because of %q, want %s", c.of.Name, because, c.rule)
		}
	}
}

// memoryTaken by HAProxy's container in bytes, without what the kernel can take back; it is made at least so much, by a
// file on the volume in memory.
func (n namespace) memoryTaken(g *v1alpha1.QTLSGateway, atLeast int64) int64 {
	n.Helper()
	const script = `cd /sys/fs/cgroup
taken() {
	if [ -d memory ]; then
		echo $(($(cat memory/memory.usage_in_bytes) - $(awk '$1 == "total_cache" {c = $2} $1 == "total_shmem" {s = $2} END {print c - s}' memory/memory.stat)))
	else
		echo $(($(cat memory.current) - $(awk '$1 == "file" {c = $2} $1 == "shmem" {s = $2} END {print c - s}' memory.stat)))
	fi
}
while [ "$(taken)" -lt "$0" ]; do head -c 262144 /dev/zero >>/run/qtls/in-the-way || exit 1; done
taken`
	pod := n.gatewayPods(g)[0]
	r, err := execIn(n.Context(), n.name, pod.Name, "haproxy", nil, "sh", "-c", script, fmt.Sprint(atLeast))
	taken, notANumber := strconv.ParseInt(strings.TrimSpace(r.stdout), 10, 64)
	if err != nil || r.code != 0 || notANumber != nil {
		n.Fatalf("the memory of pod %s: %v, exit code %d: %s%s", pod.Name, err, r.code, r.stdout, r.stderr)
	}
	return taken
}

// Clients that do not trust the gateway's authorities make no handshake, and a replica with CPU to spare does not show what
// it can do. Neither is a result, and a gate on it is not passed, however quiet the machine is.
func TestBenchmarkThatIsNoResult(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	g := n.benchmarked()
	other := newCA(t, "Another CA", ecdsaP256)
	n.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "others"}, Data: map[string]string{"ca.crt": string(other.certPEM())}})
	b := benchmark("refused")
	b.Spec.Target.CARefs[0].Name = "others"
	b.Spec.Thresholds = []v1alpha1.BenchmarkThreshold{"failures == 0", "max <= 10s"}
	n.create(b)
	n.completed(b)
	for kind, says := range map[string]string{v1alpha1.ConditionValid: "NoHandshakes", v1alpha1.ConditionPassed: "failures == 0"} {
		if c := condition(b, kind); c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, says) {
			t.Errorf("%s, want False and %q\n%s", kind, says, describe(b))
		}
	}
	p := b.Status.Points[0]
	because := func(rule string) bool {
		return slices.ContainsFunc(p.InvalidBecause, func(reason string) bool { return strings.HasPrefix(reason, rule+":") })
	}
	for _, rule := range []string{"NoHandshakes", "TooManyFailures", "CapacityInvalid"} {
		if !because(rule) {
			t.Errorf("not invalid because of %s, but because of %q", rule, p.InvalidBecause)
		}
	}
	// A machine that is so busy that the replica was not observed in time is told, too.
	if !because("NotSaturated") && !(because("ReplicasDisturbed") && because("NotObserved")) {
		t.Errorf("neither not saturated nor not observed, but invalid because of %q", p.InvalidBecause)
	}
	r := n.reportOf(b).Points[0]
	if r.Failures[string(shard.Verify)] == 0 || r.Attempts != p.Failures {
		t.Errorf("%d failures, of %d attempts by class %v", p.Failures, r.Attempts, r.Failures)
	}
	waitProgrammed(t, g, forReady)
	if *g.Spec.Replicas != 2 || g.Annotations[v1alpha1.AnnotationBenchmark] != "" {
		t.Errorf("the gateway has %d replicas, annotations %v", *g.Spec.Replicas, g.Annotations)
	}
}

// Deleting a benchmark ends it: its load stops, and the gateway gets its replicas back.
func TestBenchmarkDeletedWhileItMeasures(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	g := n.benchmarked()
	b := benchmark("short-lived")
	b.Spec.Load.Duration = &metav1.Duration{Duration: 10 * time.Minute}
	n.create(b)
	n.waitMeasuring()
	if ok, state := get(t.Context(), g); !ok || *g.Spec.Replicas != 1 {
		t.Fatalf("measured with %d replicas %s", *g.Spec.Replicas, state)
	}
	remove(t, b)
	eventually(t, forChange, "the gateway has its replicas back, and the load is gone", func(ctx context.Context) (bool, string) {
		if ok, state := get(ctx, g); !ok {
			return false, state
		}
		generators := n.pods(ctx, map[string]string{"app.kubernetes.io/component": "load-generator"})
		return *g.Spec.Replicas == 2 && g.Annotations[v1alpha1.AnnotationBenchmark] == "" && len(generators) == 0,
			fmt.Sprintf("%d replicas, annotations %v, %d pods of the generator", *g.Spec.Replicas, g.Annotations, len(generators))
	})
}

// waitMeasuring waits until a pod of a load generator runs.
func (n namespace) waitMeasuring() {
	n.Helper()
	eventually(n.T, forReady, "a load generator runs", func(ctx context.Context) (bool, string) {
		pods := n.pods(ctx, map[string]string{"app.kubernetes.io/component": "load-generator"})
		return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }), fmt.Sprintf("%d pods", len(pods))
	})
}

// The operator ends while a load is made; the next one takes that measurement up, and none is made, or counted, twice.
func operatorKilledDuringABenchmark(t *testing.T) {
	n := newNamespace(t)
	g := n.benchmarked()
	logs, stop := n.followGenerators()
	b := benchmark("killed")
	n.create(b)
	n.waitMeasuring()
	killOperator(t)
	n.completed(b)
	stop()
	compared := n.exact(b, logs)
	if records := n.recorded(b); len(records) != 2 || compared == 0 {
		t.Errorf("%d measurements are recorded, %d of them compared with what was printed", len(records), compared)
	}
	waitProgrammed(t, g, forReady)
	if *g.Spec.Replicas != 2 {
		t.Errorf("the gateway has %d replicas", *g.Spec.Replicas)
	}
}
