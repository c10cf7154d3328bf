package benchmark

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/shard"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// inPlace is a run of one mode with 1 and 2 replicas, twice.
func inPlace(phase v1alpha1.BenchmarkPhase) *v1alpha1.QTLSBenchmark {
	b := &v1alpha1.QTLSBenchmark{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: "scaling", UID: "7d1c", Generation: 1}, Spec: v1alpha1.QTLSBenchmarkSpec{
		GatewayRef: v1alpha1.BenchmarkGateway{Name: "web", Use: v1alpha1.BenchmarkUseInPlace},
		Replicas:   []int32{1, 2},
		Modes:      []v1alpha1.BenchmarkMode{{Name: "hybrid", Groups: []v1alpha1.Group{"X25519MLKEM768"}, SignatureSchemes: []v1alpha1.SignatureScheme{"mldsa65"}}},
		Load:       v1alpha1.BenchmarkLoad{Preset: v1alpha1.BenchmarkPresetShort},
		Thresholds: []v1alpha1.BenchmarkThreshold{"failures == 0"},
	}}
	b.Status = planned(b, 7, noon)
	b.Status.Phase = phase
	b.Status.StartTime = &metav1.Time{Time: noon}
	return b
}

// recorded has a good result of the first measurements of a plan.
func recorded(t *testing.T, p plan.Plan, n int) records {
	t.Helper()
	all := records{}
	for _, m := range p.Measurements[:n] {
		h := &shard.Histogram{}
		for range 100 {
			h.Record(time.Millisecond)
		}
		one, err := measured(1, shard.Result{Pods: 1, CPUOfPods: []shard.CPU{{Used: int64(time.Second), MachineTotal: 1000, MachineIdle: 500}}, Common: p.Load.Duration, PerSecond: 20, Handshakes: []shard.Series{
			{Kind: shard.Kind{Group: "X25519MLKEM768", SignatureAlgorithm: "mldsa65", Version: "TLSv1.3"}, Count: 100, Handshake: h}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		all[m.Name()] = one
	}
	return all
}

func stateIn(t *testing.T, b *v1alpha1.QTLSBenchmark, done int) state {
	t.Helper()
	s := state{benchmark: b, plan: plan.Of(b.Spec, b.Status.Plan.Seed)}
	s.records = recorded(t, s.plan, done)
	s.observed = plan.Observed{Now: noon.Add(time.Minute), Phase: b.Status.Phase, Records: s.records.summary(), Started: noon}
	return s
}

func summarised(t *testing.T, s state, a plan.Action, done outcome) v1alpha1.QTLSBenchmarkStatus {
	t.Helper()
	after, err := summarise(s, a, done, nil)
	if err != nil {
		t.Fatal(err)
	}
	return after
}

func wantCondition(t *testing.T, after v1alpha1.QTLSBenchmarkStatus, kind string, status metav1.ConditionStatus, reason, says string) {
	t.Helper()
	c := meta.FindStatusCondition(after.Conditions, kind)
	if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, says) {
		t.Errorf("%s: %+v, want %s for %s saying %q", kind, c, status, reason, says)
	}
}

// Two of eight measurements are made, both good, and nothing failed in them: that
// decides no threshold of the run.
func TestAnAbortedRunDoesNotPass(t *testing.T) {
	s := stateIn(t, inPlace(v1alpha1.BenchmarkRunning), 2)
	s.benchmark.Status = summarised(t, s, plan.Action{Kind: plan.Abort, Reason: v1alpha1.ReasonDeadlineExceeded, Message: "spec.maxDuration: over"}, outcome{})
	full, err := fullReport(s)
	if err != nil {
		t.Fatal(err)
	}
	after := summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{report: &full})
	wantCondition(t, after, v1alpha1.ConditionPassed, "False", v1alpha1.ReasonDeadlineExceeded, "spec.maxDuration: over")
	wantCondition(t, after, v1alpha1.ConditionComplete, "False", v1alpha1.ReasonDeadlineExceeded, "spec.maxDuration: over")
	if after.Phase != v1alpha1.BenchmarkFailed || after.ReportRef == nil {
		t.Errorf("%+v", after)
	}
	if full.Passed() || !strings.Contains(full.Aborted, v1alpha1.ReasonDeadlineExceeded) || !strings.Contains(full.Markdown(), "The run was aborted: DeadlineExceeded") {
		t.Errorf("the report: %q, notes %q", full.Aborted, full.Notes)
	}
	// All that was planned is in the status and in the report, as no result.
	if len(after.Points) != 2 || len(full.Points) != 2 {
		t.Fatalf("%d points, %d in the report", len(after.Points), len(full.Points))
	}
	for _, p := range after.Points {
		if p.Valid || !strings.Contains(strings.Join(p.InvalidBecause, " "), neverMade) {
			t.Errorf("%+v", p)
		}
	}
}

func TestARunThatIsAbortedBeforeItMeasuresDoesNotPassEither(t *testing.T) {
	s := stateIn(t, inPlace(v1alpha1.BenchmarkPending), 0)
	s.benchmark.Status = summarised(t, s, plan.Action{Kind: plan.Abort, Reason: v1alpha1.ReasonPlanTooLong, Message: "too long"}, outcome{})
	after := summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{})
	wantCondition(t, after, v1alpha1.ConditionPassed, "False", v1alpha1.ReasonPlanTooLong, "too long")
	if len(after.Points) != 0 || after.ReportRef != nil {
		t.Errorf("%+v", after)
	}
	s.benchmark.Spec.Thresholds = nil
	s.benchmark.Status.Conditions = slicesWithout(s.benchmark.Status.Conditions, v1alpha1.ConditionPassed)
	if after := summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{}); meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionPassed) != nil {
		t.Error("without thresholds there is nothing to pass")
	}
}

func slicesWithout(list []metav1.Condition, kind string) []metav1.Condition {
	meta.RemoveStatusCondition(&list, kind)
	return list
}

// While it runs, what is not measured yet is no reason against what is.
func TestARunningPointIsJudgedByWhatIsMeasured(t *testing.T) {
	b := inPlace(v1alpha1.BenchmarkRunning)
	b.Spec.Load.Repetitions = ptr.To[int32](5)
	s := stateIn(t, b, 2)
	all, err := measurements(s, func(plan.Measurement) bool { return true })
	if err != nil || len(all) != 2 {
		t.Errorf("%d measurements, %v", len(all), err)
	}
}
