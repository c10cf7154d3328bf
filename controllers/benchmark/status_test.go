package benchmark

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/stats"
	"qtls.dev/qtls/internal/bench/threshold"
	"qtls.dev/qtls/internal/bench/validity"
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
	wantCondition(t, after, v1alpha1.ConditionFailed, "True", v1alpha1.ReasonDeadlineExceeded, "spec.maxDuration: over")
	if after.Phase != v1alpha1.BenchmarkFailed || after.ReportRef == nil {
		t.Errorf("%+v", after)
	}
	if full.Passed().Holds || full.Aborted.Reason != v1alpha1.ReasonDeadlineExceeded || !strings.Contains(full.Markdown(), "The run was aborted: DeadlineExceeded") {
		t.Errorf("the report: %v, notes %q", full.Aborted, full.Notes)
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

func TestACancelledRunIsOverAndHasNotPassed(t *testing.T) {
	s := stateIn(t, inPlace(v1alpha1.BenchmarkRunning), 2)
	s.benchmark.Spec.Cancel, s.observed.Cancelled = true, true
	a := s.plan.Next(s.observed, plan.DefaultLimits)
	s.benchmark.Status = summarised(t, s, a, outcome{})
	full, err := fullReport(s)
	if err != nil {
		t.Fatal(err)
	}
	after := summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{report: &full})
	wantCondition(t, after, v1alpha1.ConditionComplete, "True", v1alpha1.ReasonCancelled, "2/8 measurements are made")
	wantCondition(t, after, v1alpha1.ConditionFailed, "False", v1alpha1.ReasonCancelled, "")
	wantCondition(t, after, v1alpha1.ConditionPassed, "False", v1alpha1.ReasonCancelled, "2 of 8 measurements")
	if after.Phase != v1alpha1.BenchmarkCancelled || after.ReportRef == nil || after.CompletionTime == nil || full.Aborted.Reason != v1alpha1.ReasonCancelled {
		t.Errorf("%+v, report %v", after, full.Aborted)
	}
}

// What the comparison with a baseline says, and whether the run passes then.
func TestARunIsComparedWithItsBaseline(t *testing.T) {
	row := func(change report.Change, low, high float64) report.Row {
		return report.Row{Mode: "hybrid", Replicas: 2, Figure: "handshakes/s", Baseline: "100", Now: "80", Change: change, Ratio: stats.Estimate{Value: (low + high) / 2, Interval: &stats.Interval{Low: low, High: high}, N: 5}}
	}
	missing := &report.Why{Reason: v1alpha1.ReasonBaselineNotFound, Message: "there is no such ConfigMap"}
	for name, c := range map[string]struct {
		rows             []report.Row
		refused          []string
		notCompared      *report.Why
		compared, passed string
		says             string
	}{
		"a figure is worse":               {[]report.Row{row(report.Better, 1.3, 1.4), row(report.Worse, .75, .85)}, nil, nil, "True/Worse", "False/Worse", "hybrid with 2 replicas: handshakes/s: 100, and now 80 (0.80 (0.75 to 0.85) times it)"},
		"none is":                         {[]report.Row{row(report.Same, .85, .95)}, nil, nil, "True/Same", "True/NotWorse", "10 %"},
		"one may be worse":                {[]report.Row{row(report.Better, 1.3, 1.4), row(report.Undecided, .6, 1.1)}, nil, nil, "False/Undecided", "False/Undecided", "1 figures are worse than those of \"earlier\" by more than 10 %, but not with all of their intervals"},
		"one is better":                   {[]report.Row{row(report.Better, 1.3, 1.4), row(report.Same, .9, 1.1)}, nil, nil, "True/Better", "True/NotWorse", "none is worse"},
		"some cannot be compared":         {[]report.Row{row(report.Better, 1.3, 1.4), row(report.Same, .9, 1.1), {Mode: "hybrid", Replicas: 1, Figure: "capacity", Change: report.Incomparable, Reason: "not valid in both"}}, nil, nil, "False/Incomparable", "False/Incomparable", "hybrid with 1 replicas: capacity: not valid in both"},
		"one of those is worse":           {[]report.Row{row(report.Worse, .75, .85), {Mode: "hybrid", Figure: "all", Change: report.Incomparable, Reason: "the baseline does not have this mode"}}, nil, nil, "True/Worse", "False/Worse", "1 figures are worse"},
		"none can be compared":            {[]report.Row{{Mode: "hybrid", Figure: "all", Change: report.Incomparable, Reason: "the baseline does not have this mode"}}, nil, nil, "False/Incomparable", "False/Incomparable", "hybrid: all: the baseline does not have this mode"},
		"the machines are others":         {nil, []string{"machines: A, and now B"}, nil, "False/Refused", "False/Refused", "machines: A, and now B; measure a baseline here, or set force"},
		"the baseline is gone by the end": {nil, nil, missing, "False/BaselineNotFound", "False/BaselineNotFound", "there is no such ConfigMap"},
	} {
		b := inPlace(v1alpha1.BenchmarkRestoring)
		b.Spec.Thresholds, b.Spec.BaselineRef = nil, &v1alpha1.BenchmarkBaseline{Name: "earlier-report"}
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionValid, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPointsValid})
		b.Status.Progress = "8/8"
		s := stateIn(t, b, 8)
		full := report.Report{Comparison: &report.Comparison{Baseline: "earlier", Refused: len(c.refused) > 0, Differences: c.refused, Rows: c.rows, Tolerance: .1}, Points: []report.Point{{Mode: "hybrid", Replicas: 1, Valid: true}}}
		if c.notCompared != nil {
			full.Comparison, full.NotCompared = nil, c.notCompared
		}
		check := func(kind, want, says string, after v1alpha1.QTLSBenchmarkStatus) {
			t.Helper()
			status, reason, _ := strings.Cut(want, "/")
			wantCondition(t, after, kind, metav1.ConditionStatus(status), reason, says)
			// The page says what the condition does.
			page, err := full.HTML()
			if passed := meta.IsStatusConditionTrue(after.Conditions, v1alpha1.ConditionPassed); err != nil || strings.Contains(page, "✓ Passed</strong> ") != passed || strings.Contains(page, "✗ Not passed</strong> ") == passed {
				t.Errorf("%s: the page says something else than that passed is %v, %v", name, passed, err)
			}
		}
		after := summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{report: &full})
		check(v1alpha1.ConditionCompared, c.compared, c.says, after)
		check(v1alpha1.ConditionPassed, c.passed, "", after)
		check(v1alpha1.ConditionComplete, "True/Completed", "", after)

		// A threshold that fails is the first thing to say, and one that holds does not
		// make up for a baseline that was better.
		full.Thresholds = []report.Threshold{{Text: "p99 <= 1ms", Verdict: threshold.Failed}}
		after = summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{report: &full})
		check(v1alpha1.ConditionPassed, "False/ThresholdsNotPassed", "p99 <= 1ms", after)
		full.Thresholds[0].Verdict = threshold.Passed
		after = summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{report: &full})
		check(v1alpha1.ConditionPassed, strings.Replace(c.passed, "NotWorse", "ThresholdsPassed", 1), "", after)

		// Nor does a point that is no result.
		full.Points[0].Valid = false
		after = summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{report: &full})
		if check(v1alpha1.ConditionCompared, c.compared, c.says, after); meta.IsStatusConditionTrue(after.Conditions, v1alpha1.ConditionPassed) {
			t.Errorf("%s: it passes with a point that is no result", name)
		}
	}
}

// What was measured is not lost with the report.
func TestARunWhoseReportIsTooLargeSaysSo(t *testing.T) {
	for phase, kind := range map[v1alpha1.BenchmarkPhase]string{v1alpha1.BenchmarkRestoring: v1alpha1.ConditionComplete, v1alpha1.BenchmarkAborting: v1alpha1.ConditionFailed} {
		s := stateIn(t, inPlace(phase), 8)
		full, err := fullReport(s)
		if err != nil {
			t.Fatal(err)
		}
		after := summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{report: &full, unstored: fmt.Errorf("%w: it has much", report.ErrTooLarge)})
		wantCondition(t, after, kind, "True", meta.FindStatusCondition(after.Conditions, kind).Reason, "status.points has what they say, and no ConfigMap the report: the report is too large: it has much")
		if after.ReportRef != nil || len(after.Points) != 2 || after.CompletionTime == nil || len(after.Scaling) != len(full.Scaling) {
			t.Errorf("%s: %+v", phase, after)
		}
	}
}

// A run whose report has no room anywhere is over all the same.
func TestARunEndsThoughItsReportIsTooLarge(t *testing.T) {
	b := inPlace(v1alpha1.BenchmarkAborting)
	random := make([]byte, 3<<20) // which nothing compresses
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonDeadlineExceeded, Message: base64.StdEncoding.EncodeToString(random)})
	s := stateIn(t, b, 2)
	done, err := onFake(t, interceptor.Funcs{}, b).act(t.Context(), s, plan.Action{Kind: plan.Finish})
	if err != nil || done.report == nil || !errors.Is(done.unstored, report.ErrTooLarge) {
		t.Fatalf("%v: unstored %v", err, done.unstored)
	}
	after := summarised(t, s, plan.Action{Kind: plan.Finish}, done)
	if after.Phase != v1alpha1.BenchmarkFailed || after.CompletionTime == nil || after.ReportRef != nil {
		t.Errorf("phase %s, completed %v, report %v", after.Phase, after.CompletionTime, after.ReportRef)
	}
}

// The gateway that a copy is made of may be edited or deleted while the copy is measured.
func TestTheQuotaOfAReportIsThatOfThePodsThatWereMeasured(t *testing.T) {
	s := stateIn(t, inPlace(v1alpha1.BenchmarkRestoring), 2)
	s.source = &v1alpha1.QTLSGateway{Spec: v1alpha1.QTLSGatewaySpec{Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}}}}
	if got := environment(s).Quotas[0]; got != (report.Quota{Container: "haproxy", CPU: "2"}) {
		t.Errorf("nothing was observed: %+v, want the gateway's", got)
	}
	was := report.Quota{Container: "haproxy", CPU: "50m", Memory: "1Gi"}
	for name, one := range s.records {
		one.Usage = &usage{Quota: &was}
		s.records[name] = one
	}
	if got := environment(s).Quotas[0]; got != was {
		t.Errorf("%+v, want %+v", got, was)
	}
	s.source = nil
	if got := environment(s).Quotas[0]; got != was {
		t.Errorf("the gateway is gone: %+v, want %+v", got, was)
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
	if all := measurements(s, func(plan.Measurement) bool { return true }); len(all) != 2 {
		t.Errorf("%d measurements", len(all))
	}
}

func TestAPointThatIsHalfMeasuredSaysSo(t *testing.T) {
	half := report.Point{Mode: "hybrid", Replicas: 2, Valid: true, Capacity: &report.Capacity{Phase: report.Phase{Valid: true, Repetitions: []report.Repetition{{Block: 1, PerSecond: 20}}}}}
	if p := pointOf(half); p.Valid || len(p.InvalidBecause) != 1 || !strings.HasPrefix(p.InvalidBecause[0], string(validity.NotMeasured)) {
		t.Errorf("valid: %v, because %q", p.Valid, p.InvalidBecause)
	}
	whole := half
	whole.Latency = &report.Latency{Phase: half.Capacity.Phase}
	if p := pointOf(whole); !p.Valid || len(p.InvalidBecause) > 0 {
		t.Errorf("valid: %v, because %q", p.Valid, p.InvalidBecause)
	}
}
