package benchmark

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/threshold"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/resources"
)

// planned is the status of a benchmark that has just been seen: what it intends,
// with a seed of its own where the spec has none.
func planned(b *v1alpha1.QTLSBenchmark, seed int64, now time.Time) v1alpha1.QTLSBenchmarkStatus {
	if b.Spec.Load.Seed != nil {
		seed = *b.Spec.Load.Seed
	}
	p := plan.Of(b.Spec, seed)
	after := v1alpha1.QTLSBenchmarkStatus{ObservedGeneration: b.Generation, Phase: v1alpha1.BenchmarkPending, Conditions: slices.Clone(b.Status.Conditions),
		Plan:     &v1alpha1.BenchmarkPlan{Seed: seed, Measurements: int32(len(p.Measurements)), Duration: metav1.Duration{Duration: p.Expected}},
		Progress: progress(p, nil)}
	conditions.Set(&after.Conditions, v1alpha1.ConditionComplete, metav1.ConditionFalse, v1alpha1.ReasonPending,
		fmt.Sprintf("%d measurements are planned, which take about %s", len(p.Measurements), p.Expected.Round(time.Second)), b.Generation, now)
	return after
}

func progress(p plan.Plan, rs records) string {
	return fmt.Sprintf("%d/%d", len(rs), len(p.Measurements))
}

// summarise says in a status what was done. It is pure.
func summarise(s state, a plan.Action, done outcome, problem *conditions.Problem) (v1alpha1.QTLSBenchmarkStatus, error) {
	b, now := s.benchmark, s.observed.Now
	after := *b.Status.DeepCopy()
	after.ObservedGeneration = b.Generation
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		conditions.Set(&after.Conditions, kind, status, reason, message, b.Generation, now)
	}
	complete := func(status metav1.ConditionStatus, reason, message string) {
		set(v1alpha1.ConditionComplete, status, reason, message)
	}

	maps.Copy(s.records, done.recorded)
	if p := progress(s.plan, s.records); !after.Phase.Over() && p != after.Progress || a.Kind == plan.Finish && s.aborted() && len(s.records) > 0 {
		points, err := pointsOf(s)
		if err != nil {
			return after, err
		}
		after.Progress, after.Points = p, points
		judged(points, set)
	}
	if problem != nil {
		message, never := problem.Message, problem.After == 0
		if s.plan.GivesUp(s.observed) {
			message, never = fmt.Sprintf("%s; it was waited for that for %s (spec.maxDuration)", message, s.plan.Most), true
		}
		complete(metav1.ConditionFalse, problem.Reason, message)
		if problem.Reason == v1alpha1.ReasonBaselineNotFound || problem.Reason == v1alpha1.ReasonBaselineInvalid {
			set(v1alpha1.ConditionCompared, metav1.ConditionFalse, problem.Reason, problem.Message)
		}
		if a.Kind == plan.Scale && s.observed.Started.IsZero() && never {
			after.Phase = v1alpha1.BenchmarkAborting
		}
		return after, nil
	}
	if done.before != nil { // what follows is the next step's
		after.ReplicasBefore = done.before
		complete(metav1.ConditionFalse, v1alpha1.ReasonScaling, fmt.Sprintf("QTLSGateway %q has %d replicas, which are put back in the end", b.Spec.GatewayRef.Name, *done.before))
		return after, nil
	}
	// Also where the gateway was scaled and that could not be written down.
	if a.Kind == plan.Scale || s.observed.Gateway.Held {
		if after.Phase == v1alpha1.BenchmarkPending {
			after.Phase = v1alpha1.BenchmarkRunning
		}
		if after.StartTime == nil {
			after.StartTime = &metav1.Time{Time: now.Truncate(time.Second)}
		}
		set(v1alpha1.ConditionRestored, metav1.ConditionFalse, v1alpha1.ReasonGatewayInUse, inUse(b))
	}

	switch a.Kind {
	case plan.Scale:
		complete(metav1.ConditionFalse, v1alpha1.ReasonScaling, fmt.Sprintf("the gateway is given %d replicas", a.Replicas))
	case plan.Wait, plan.WaitProgrammed, plan.CreateJob, plan.WaitJob, plan.Collect:
		complete(metav1.ConditionFalse, a.Reason, a.Message)
	case plan.RecordFailure:
		if a.Reason == v1alpha1.ReasonPeerNotReady {
			told := append(leftOut(after), a.Message)
			set(v1alpha1.ConditionPeersCompared, metav1.ConditionFalse, a.Reason, strings.Join(told, " | "))
		}
	case plan.Conclude:
		after.Phase = v1alpha1.BenchmarkRestoring
		complete(metav1.ConditionFalse, v1alpha1.ReasonMeasuring, "everything is measured; the gateway is put back")
	case plan.Abort:
		after.Phase = v1alpha1.BenchmarkAborting
		complete(metav1.ConditionFalse, a.Reason, a.Message)
	case plan.Finish:
		after.CompletionTime = &metav1.Time{Time: now.Truncate(time.Second)}
		if done.report != nil {
			after.Scaling = scalingOf(*done.report)
			after.ReportRef = &v1alpha1.BenchmarkReportReference{Name: reportName(b)}
			after.Peers = comparisons(b, *done.report)
			peersCompared(after, set)
		}
		against := compared(b, done)
		if against != nil {
			set(v1alpha1.ConditionCompared, against.status, against.reason, against.message)
		}
		if after.Phase != v1alpha1.BenchmarkAborting {
			after.Phase = v1alpha1.BenchmarkCompleted
			complete(metav1.ConditionTrue, v1alpha1.ReasonCompleted, fmt.Sprintf("%s measurements are made; ConfigMap %q has the report", after.Progress, reportName(b)))
			set(v1alpha1.ConditionFailed, metav1.ConditionFalse, v1alpha1.ReasonCompleted, "everything is measured")
			if done.report != nil {
				passed(*done.report, against, set)
			}
			break
		}
		reason, why := abortReason(b), whyAborted(b)
		if len(b.Spec.Thresholds) > 0 || b.Spec.BaselineRef != nil {
			// Whatever was measured before: it is not what was to be decided.
			set(v1alpha1.ConditionPassed, metav1.ConditionFalse, reason, "the run was aborted, so nothing is decided: "+why)
		}
		if reason == v1alpha1.ReasonCancelled {
			after.Phase = v1alpha1.BenchmarkCancelled
			complete(metav1.ConditionTrue, reason, fmt.Sprintf("spec.cancel is true: %s measurements are made", after.Progress))
			set(v1alpha1.ConditionFailed, metav1.ConditionFalse, reason, "it was cancelled")
			break
		}
		after.Phase = v1alpha1.BenchmarkFailed // Complete says why already
		set(v1alpha1.ConditionFailed, metav1.ConditionTrue, reason, why)
	}
	restored(&after, s, done, set)
	return after, nil
}

// verdict is what a condition says.
type verdict struct {
	status          metav1.ConditionStatus
	reason, message string
}

// compared says what became of the comparison with the baseline; nil where there was
// none to be made.
func compared(b *v1alpha1.QTLSBenchmark, done outcome) *verdict {
	if p := done.noBaseline; p != nil {
		return &verdict{metav1.ConditionFalse, p.Reason, p.Message}
	}
	if done.report == nil || done.report.Comparison == nil {
		return nil
	}
	c := done.report.Comparison
	if c.Refused {
		return &verdict{metav1.ConditionFalse, v1alpha1.ReasonRefused, fmt.Sprintf("spec.baselineRef: %q is of other machines, quotas or load: %s; measure a baseline here, or set force", b.Spec.BaselineRef.Name, strings.Join(c.Differences, "; "))}
	}
	tolerance := math.Round(100 * c.Tolerance)
	change, rows := c.Verdict()
	var told []string
	for _, r := range rows {
		told = append(told, r.String())
	}
	v := &verdict{status: metav1.ConditionTrue}
	switch change {
	case report.Worse:
		v.reason, v.message = v1alpha1.ReasonWorse, fmt.Sprintf("%d figures are worse than those of %q by more than %v %%: %s", len(rows), c.Baseline, tolerance, strings.Join(told, " | "))
	case report.Better:
		v.reason, v.message = v1alpha1.ReasonBetter, fmt.Sprintf("%d figures are better than those of %q by more than %v %%, and none is worse: %s", len(rows), c.Baseline, tolerance, strings.Join(told, " | "))
	case report.Same:
		v.reason, v.message = v1alpha1.ReasonSame, fmt.Sprintf("no figure is better or worse than that of %q by more than %v %%", c.Baseline, tolerance)
	default:
		v.status, v.reason, v.message = metav1.ConditionFalse, v1alpha1.ReasonIncomparable, fmt.Sprintf("spec.baselineRef: not every figure can be compared with those of %q, and one that cannot may be worse; both need the modes, the numbers of replicas, valid points and 2 repetitions: %s", b.Spec.BaselineRef.Name, strings.Join(told, " | "))
	}
	return v
}

// passed says whether the thresholds hold, and nothing is worse than the baseline;
// nothing where there are neither. A point that is no result could hide that it is
// worse.
func passed(r report.Report, against *verdict, set func(kind string, status metav1.ConditionStatus, reason, message string)) {
	if len(r.Thresholds) == 0 && against == nil {
		return
	}
	reason, told := "", []string(nil)
	valid, all := r.ValidPoints()
	for _, t := range r.Thresholds {
		if t.Verdict != threshold.Passed {
			reason = v1alpha1.ReasonThresholdsNotPassed
			told = append(told, fmt.Sprintf("%s: %s: %s", t.Text, t.Verdict, strings.Join(t.Told(), "; ")))
		}
	}
	switch {
	case against == nil:
	case against.status != metav1.ConditionTrue || against.reason == v1alpha1.ReasonWorse:
		reason, told = cmp.Or(reason, against.reason), append(told, against.message)
	case valid < all:
		reason, told = cmp.Or(reason, v1alpha1.ReasonPointsInvalid), append(told, "not every point is valid, so some cannot be compared with the baseline; the condition Valid has why")
	}
	if reason != "" {
		set(v1alpha1.ConditionPassed, metav1.ConditionFalse, reason, strings.Join(told, " | "))
		return
	}
	if len(r.Thresholds) == 0 {
		set(v1alpha1.ConditionPassed, metav1.ConditionTrue, v1alpha1.ReasonNotWorse, "nothing is worse than the baseline")
		return
	}
	message := fmt.Sprintf("each of %d thresholds holds", len(r.Thresholds))
	if against != nil {
		message += ", and nothing is worse than the baseline"
	}
	set(v1alpha1.ConditionPassed, metav1.ConditionTrue, v1alpha1.ReasonThresholdsPassed, message)
}

// abortReason and whyAborted are what the condition Complete says of a run that
// was aborted.
func abortReason(b *v1alpha1.QTLSBenchmark) string {
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionComplete); c != nil {
		return c.Reason
	}
	return v1alpha1.ReasonThresholdsNotPassed
}

func whyAborted(b *v1alpha1.QTLSBenchmark) string {
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionComplete); c != nil {
		return c.Reason + ": " + c.Message
	}
	return "the status does not say why"
}

func inUse(b *v1alpha1.QTLSBenchmark) string {
	if b.Spec.GatewayRef.Use == v1alpha1.BenchmarkUseInPlace {
		return fmt.Sprintf("the replicas of QTLSGateway %q are the benchmark's to set; they are put back in the end", b.Spec.GatewayRef.Name)
	}
	return fmt.Sprintf("QTLSGateway %q is a copy of %q; it is deleted in the end", copyName(b), b.Spec.GatewayRef.Name)
}

// restored says how the gateway was put back: what was just done or, where that
// could not be written down, what is there now.
func restored(after *v1alpha1.QTLSBenchmarkStatus, s state, done outcome, set func(kind string, status metav1.ConditionStatus, reason, message string)) {
	b, g, name := s.benchmark, s.measured, s.benchmark.Spec.GatewayRef.Name
	back := func(format string, args ...any) {
		set(v1alpha1.ConditionRestored, metav1.ConditionTrue, v1alpha1.ReasonRestored, fmt.Sprintf(format, args...))
	}
	changed := func(format string, args ...any) {
		set(v1alpha1.ConditionRestored, metav1.ConditionTrue, v1alpha1.ReasonLeftAsChanged, fmt.Sprintf(format, args...))
	}
	c := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionRestored)
	if !done.restored && (c == nil || c.Status == metav1.ConditionTrue || after.CompletionTime == nil) {
		return
	}
	if b.Spec.GatewayRef.Use != v1alpha1.BenchmarkUseInPlace {
		if done.restored || g == nil || g.DeletionTimestamp != nil || !metav1.IsControlledBy(g, b) {
			back("QTLSGateway %q, the copy, is deleted", copyName(b))
		}
		return
	}
	if g == nil {
		changed("QTLSGateway %q is gone: there is nothing to put back", name)
		return
	}
	now := resources.Replicas(g)
	switch h, _ := holdOf(g); {
	case h != nil && h.UID != b.UID:
		set(v1alpha1.ConditionRestored, metav1.ConditionFalse, v1alpha1.ReasonGatewayBusy, fmt.Sprintf("QTLSBenchmark %q measures QTLSGateway %q, which had %d replicas before this one; see that it gets them back", h.Benchmark, name, ptr.Deref(after.ReplicasBefore, 0)))
	case h != nil: // it is put back in the next step
	case after.ReplicasBefore != nil && now == *after.ReplicasBefore:
		back("QTLSGateway %q has the replicas that it had before: %d", name, now)
	default:
		changed("QTLSGateway %q has %d replicas, which are neither the benchmark's nor those that it had before: somebody has changed them, so they stay", name, now)
	}
}

// peersCompared says whether there is a ratio of each comparison, in a status that has
// them all.
func peersCompared(after v1alpha1.QTLSBenchmarkStatus, set func(kind string, status metav1.ConditionStatus, reason, message string)) {
	told, without, reason := leftOut(after), 0, v1alpha1.ReasonPeersNotCompared
	isTold := len(told) > 0
	for _, c := range after.Peers {
		if c.Ratio != nil {
			continue
		}
		without++
		why := strings.Join(c.InvalidBecause, "; ")
		notReady := strings.Contains(why, v1alpha1.ReasonPeerNotReady)
		if notReady {
			reason = v1alpha1.ReasonPeerNotReady
		}
		if !notReady || !isTold {
			told = append(told, fmt.Sprintf("peer %q in mode %s with %d replicas: %s", c.Peer, c.Mode, c.Replicas, why))
		}
	}
	switch {
	case without > 0:
		set(v1alpha1.ConditionPeersCompared, metav1.ConditionFalse, reason, fmt.Sprintf("%d of %d comparisons with peers have no result: %s", without, len(after.Peers), strings.Join(told, " | ")))
	case len(after.Peers) > 0:
		set(v1alpha1.ConditionPeersCompared, metav1.ConditionTrue, v1alpha1.ReasonPeersCompared, fmt.Sprintf("each of %d comparisons with peers has a result", len(after.Peers)))
	}
}

// leftOut is what the condition PeersCompared says of peers that do not run.
func leftOut(after v1alpha1.QTLSBenchmarkStatus) []string {
	c := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionPeersCompared)
	if c == nil || c.Reason != v1alpha1.ReasonPeerNotReady {
		return nil
	}
	return []string{c.Message}
}

// judged says of all points together whether they are results.
func judged(points []v1alpha1.BenchmarkPoint, set func(kind string, status metav1.ConditionStatus, reason, message string)) {
	var invalid []string
	for _, point := range points {
		if !point.Valid {
			invalid = append(invalid, fmt.Sprintf("%s with %d replicas: %s", point.Mode, point.Replicas, strings.Join(point.InvalidBecause, "; ")))
		}
	}
	if len(invalid) > 0 {
		set(v1alpha1.ConditionValid, metav1.ConditionFalse, v1alpha1.ReasonPointsInvalid, fmt.Sprintf("%d of %d points are no results: %s", len(invalid), len(points), strings.Join(invalid, " | ")))
		return
	}
	set(v1alpha1.ConditionValid, metav1.ConditionTrue, v1alpha1.ReasonPointsValid, fmt.Sprintf("each of %d points measures the gateway and nothing else", len(points)))
}
