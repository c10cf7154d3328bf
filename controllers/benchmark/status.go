package benchmark

import (
	"fmt"
	"maps"
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
		Progress: progress(p, 0)}
	conditions.Set(&after.Conditions, v1alpha1.ConditionComplete, metav1.ConditionFalse, v1alpha1.ReasonPending,
		fmt.Sprintf("%d measurements are planned, which take about %s", len(p.Measurements), p.Expected.Round(time.Second)), b.Generation, now)
	return after
}

func progress(p plan.Plan, made int) string {
	return fmt.Sprintf("%d/%d", made, len(p.Measurements))
}

// made are how many measurements are recorded when something is done.
func (s state) made(done outcome) int {
	made := len(s.observed.Records)
	for name := range done.recorded {
		if _, was := s.observed.Records[name]; !was {
			made++
		}
	}
	return made
}

// retold says whether a status is to have all points anew: something was recorded since,
// or will not be any more.
func (s state) retold(a plan.Action, done outcome) bool {
	before, made := s.benchmark.Status, s.made(done)
	return !before.Phase.Over() && progress(s.plan, made) != before.Progress || a.Kind == plan.Finish && s.aborted() && made > 0
}

// summarise says in a status what was done. It is pure.
func summarise(s state, a plan.Action, done outcome, problem *conditions.Problem) (v1alpha1.QTLSBenchmarkStatus, error) {
	b, now := s.benchmark, s.observed.Now
	after := *b.Status.DeepCopy()
	after.ObservedGeneration = b.Generation
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		conditions.Set(&after.Conditions, kind, status, reason, message, b.Generation, now)
	}
	incomplete := func(reason, message string) {
		set(v1alpha1.ConditionComplete, metav1.ConditionFalse, reason, message)
	}

	if s.retold(a, done) {
		records := maps.Clone(s.records)
		maps.Copy(records, done.recorded)
		s.records = records
		points, err := pointsOf(s)
		if err != nil {
			return after, err
		}
		after.Progress, after.Points = progress(s.plan, s.made(done)), points
		judged(points, set)
	}
	if problem != nil {
		message, never := problem.Message, problem.After == 0
		if s.plan.GivesUp(s.observed) {
			message, never = fmt.Sprintf("%s; it was waited for that for %s (spec.maxDuration)", message, s.plan.Most), true
		}
		if a.Kind == plan.Restore || a.Kind == plan.DeleteJob && s.ending() { // Complete says why the run was aborted, where it was
			set(v1alpha1.ConditionRestored, metav1.ConditionFalse, problem.Reason, problem.Message)
			return after, nil
		}
		incomplete(problem.Reason, message)
		if problem.Reason == v1alpha1.ReasonBaselineNotFound || problem.Reason == v1alpha1.ReasonBaselineInvalid {
			set(v1alpha1.ConditionCompared, metav1.ConditionFalse, problem.Reason, problem.Message)
		}
		if a.Kind == plan.Scale && s.observed.Started.IsZero() && never {
			after.Phase = v1alpha1.BenchmarkAborting
		}
		return after, nil
	}
	if n := done.note; n != nil { // what follows is the next step's
		after.GatewayUID, after.ReplicasBefore, after.ReplicasSet = n.gateway, &n.before, &n.set
		incomplete(v1alpha1.ReasonScaling, fmt.Sprintf("QTLSGateway %q had %d replicas, which are put back in the end; it is given %d", b.Spec.GatewayRef.Name, n.before, n.set))
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

	if len(done.leftOut) > 0 {
		told := append(leftOut(after), done.leftOut...)
		set(v1alpha1.ConditionPeersCompared, metav1.ConditionFalse, v1alpha1.ReasonPeerNotReady, strings.Join(told, " | "))
	}

	switch a.Kind {
	case plan.Scale:
		if len(done.recorded) > 0 { // it may not be scaled so, and has what it had
			if b.Spec.GatewayRef.Use == v1alpha1.BenchmarkUseInPlace {
				after.ReplicasSet = ptr.To(s.observed.Gateway.Replicas)
			}
			break
		}
		incomplete(v1alpha1.ReasonScaling, fmt.Sprintf("the gateway is given %d replicas", a.Replicas))
	case plan.Wait, plan.WaitProgrammed, plan.CreateJob, plan.WaitJob, plan.Collect:
		incomplete(a.Reason, a.Message)
	case plan.Conclude:
		after.Phase = v1alpha1.BenchmarkRestoring
		incomplete(v1alpha1.ReasonMeasuring, "everything is measured; the gateway is put back")
	case plan.Abort:
		after.Phase = v1alpha1.BenchmarkAborting
		incomplete(a.Reason, a.Message)
	case plan.Finish:
		finish(&after, s, done, set)
	}
	restored(&after, s, done, set)
	return after, nil
}

// setCondition of a status.
type setCondition func(kind string, status metav1.ConditionStatus, reason, message string)

// finish says what came of a run: its report, and whether it was one of all that was planned.
func finish(after *v1alpha1.QTLSBenchmarkStatus, s state, done outcome, set setCondition) {
	b := s.benchmark
	after.CompletionTime = &metav1.Time{Time: s.observed.Now.Truncate(time.Second)}
	say := func(kind string, j *report.Judgement) {
		if j == nil {
			return
		}
		status := metav1.ConditionFalse
		if j.Holds {
			status = metav1.ConditionTrue
		}
		set(kind, status, j.Reason, j.Message)
	}
	if done.report != nil {
		after.Scaling = scalingOf(*done.report)
		if done.unstored == nil {
			after.ReportRef = &v1alpha1.BenchmarkReportReference{Name: reportName(b)}
		}
		compared := comparisons(s, *done.report)
		after.Peers = nil
		for _, c := range compared {
			after.Peers = append(after.Peers, c.BenchmarkComparison)
		}
		peersCompared(compared, leftOut(*after), set)
		say(v1alpha1.ConditionCompared, done.report.Compared())
		say(v1alpha1.ConditionPassed, done.report.Passed())
	} else {
		say(v1alpha1.ConditionPassed, unmeasured(b).Passed())
	}
	why := whyAborted(b)
	switch {
	case !s.aborted():
		after.Phase = v1alpha1.BenchmarkCompleted
		set(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted, fmt.Sprintf("%s measurements are made; %s", after.Progress, whereReportIs(b, done)))
		set(v1alpha1.ConditionFailed, metav1.ConditionFalse, v1alpha1.ReasonCompleted, "everything is measured")
	case why.Reason == v1alpha1.ReasonCancelled:
		after.Phase = v1alpha1.BenchmarkCancelled
		set(v1alpha1.ConditionComplete, metav1.ConditionTrue, why.Reason, fmt.Sprintf("spec.cancel is true: %s measurements are made; %s", after.Progress, whereReportIs(b, done)))
		set(v1alpha1.ConditionFailed, metav1.ConditionFalse, why.Reason, "it was cancelled")
	default:
		after.Phase = v1alpha1.BenchmarkFailed // Complete says why already
		told := why.String()
		if done.unstored != nil {
			told += "; " + whereReportIs(b, done)
		}
		set(v1alpha1.ConditionFailed, metav1.ConditionTrue, why.Reason, told)
	}
}

// whyAborted is what the condition Complete says of a run that was aborted.
func whyAborted(b *v1alpha1.QTLSBenchmark) report.Why {
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionComplete); c != nil {
		return report.Why{Reason: c.Reason, Message: c.Message}
	}
	return report.Why{Reason: v1alpha1.ReasonThresholdsNotPassed, Message: "the status does not say why"}
}

// whereReportIs of a run that is over.
func whereReportIs(b *v1alpha1.QTLSBenchmark, done outcome) string {
	switch {
	case done.report == nil:
		return "there is no report"
	case done.unstored != nil:
		return fmt.Sprintf("status.points has what they say, and no ConfigMap the report: %v", done.unstored)
	}
	return fmt.Sprintf("ConfigMap %q has the report", reportName(b))
}

// unmeasured is the report of a run that was aborted before it measured anything:
// nobody reads it, and it decides as one does that has measurements.
func unmeasured(b *v1alpha1.QTLSBenchmark) report.Report {
	r := report.Report{Aborted: ptr.To(whyAborted(b))}
	for _, t := range b.Spec.Thresholds {
		r.Thresholds = append(r.Thresholds, report.Threshold{Text: string(t), Verdict: threshold.Unmeasured})
	}
	if b.Spec.BaselineRef != nil {
		r.NotCompared = r.Aborted
	}
	return r
}

func inUse(b *v1alpha1.QTLSBenchmark) string {
	if b.Spec.GatewayRef.Use == v1alpha1.BenchmarkUseInPlace {
		return fmt.Sprintf("the replicas of QTLSGateway %q are the benchmark's to set; they are put back in the end", b.Spec.GatewayRef.Name)
	}
	return fmt.Sprintf("QTLSGateway %q is a copy of %q; it is deleted in the end", copyName(b), b.Spec.GatewayRef.Name)
}

// restored says how the gateway was put back: what was just done or, where that
// could not be written down, what is there now.
func restored(after *v1alpha1.QTLSBenchmarkStatus, s state, done outcome, set setCondition) {
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
	case after.GatewayUID != "" && g.UID != after.GatewayUID:
		changed("QTLSGateway %q is another one than was measured: its %d replicas stay", name, now)
	default:
		changed("QTLSGateway %q has %d replicas, which are neither the benchmark's nor those that it had before: somebody has changed them, so they stay", name, now)
	}
}

// peersCompared says whether there is a ratio of each comparison, of all repetitions that
// a peer could have; told is what was said already of peers that do not run.
func peersCompared(compared []comparison, told []string, set setCondition) {
	without, reason, isTold := 0, v1alpha1.ReasonPeersNotCompared, len(told) > 0
	for _, c := range compared {
		if c.Ratio != nil {
			continue
		}
		without++
		if c.notReady {
			reason = v1alpha1.ReasonPeerNotReady
		}
		if !c.notReady || !isTold {
			told = append(told, fmt.Sprintf("peer %q in mode %s with %d replicas: %s", c.Peer, c.Mode, c.Replicas, strings.Join(c.InvalidBecause, "; ")))
		}
	}
	switch {
	case without > 0:
		set(v1alpha1.ConditionPeersCompared, metav1.ConditionFalse, reason, fmt.Sprintf("%d of %d comparisons with peers have no result: %s", without, len(compared), strings.Join(told, " | ")))
	case len(compared) > 0 && isTold:
		set(v1alpha1.ConditionPeersCompared, metav1.ConditionFalse, v1alpha1.ReasonPeerNotReady, fmt.Sprintf("each of %d comparisons with peers has a result, of fewer repetitions: %s", len(compared), strings.Join(told, " | ")))
	case len(compared) > 0:
		set(v1alpha1.ConditionPeersCompared, metav1.ConditionTrue, v1alpha1.ReasonPeersCompared, fmt.Sprintf("each of %d comparisons with peers has a result", len(compared)))
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
func judged(points []v1alpha1.BenchmarkPoint, set setCondition) {
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
