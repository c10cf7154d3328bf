package benchmark

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/resources"
)

// hold is what the annotation of a gateway that is measured says. It is written
// together with spec.replicas, in one request, so that what is there always says
// how to put it back, whoever dies in between.
type hold struct {
	// Benchmark that measures the gateway.
	Benchmark string    `json:"benchmark"`
	UID       types.UID `json:"uid"`
	// Before is spec.replicas as it was, and Set as the benchmark has made it.
	Before int32 `json:"before"`
	Set    int32 `json:"set"`
	// Generation that the gateway has by that: another one is somebody else's.
	Generation int64 `json:"generation"`
	// Since is when it was set.
	Since time.Time `json:"since"`
}

// holdOf a gateway; nil if nobody measures it.
func holdOf(g *v1alpha1.QTLSGateway) (*hold, error) {
	text, ok := g.Annotations[v1alpha1.AnnotationBenchmark]
	if !ok {
		return nil, nil
	}
	h := &hold{}
	if err := json.Unmarshal([]byte(text), h); err != nil || h.Benchmark == "" {
		return nil, fmt.Errorf("QTLSGateway %q: the annotation %s is none of a benchmark's: %.100q; remove it", g.Name, v1alpha1.AnnotationBenchmark, text)
	}
	return h, nil
}

// take scales a gateway for a benchmark and writes down how to put it back.
func take(g *v1alpha1.QTLSGateway, b *v1alpha1.QTLSBenchmark, replicas int32, now time.Time) error {
	h := hold{Benchmark: b.Name, UID: b.UID, Before: resources.Replicas(g), Set: replicas, Generation: g.Generation, Since: now.UTC().Truncate(time.Second)}
	old, err := holdOf(g)
	if err != nil {
		return err
	}
	if old != nil {
		h.Before = old.Before
	}
	if g.Generation == 0 || g.Spec.Replicas == nil || *g.Spec.Replicas != replicas {
		h.Generation++
	}
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	metav1.SetMetaDataAnnotation(&g.ObjectMeta, v1alpha1.AnnotationBenchmark, string(text))
	g.Spec.Replicas = ptr.To(replicas)
	return nil
}

// note is what the status has to say of a gateway in place before that is scaled.
type note struct {
	gateway     types.UID
	before, set int32
}

// noteFor a gateway that is to have so many replicas; nil where the status says so
// already, and it can be scaled.
func noteFor(b *v1alpha1.QTLSBenchmark, g *v1alpha1.QTLSGateway, replicas int32) *note {
	if b.Spec.GatewayRef.Use != v1alpha1.BenchmarkUseInPlace {
		return nil
	}
	n := note{gateway: g.UID, before: resources.Replicas(g), set: replicas}
	if h, err := holdOf(g); err == nil && h != nil {
		n.before = h.Before
	}
	before, set := b.Status.ReplicasBefore, b.Status.ReplicasSet
	if before != nil && set != nil && n == (note{gateway: b.Status.GatewayUID, before: *before, set: *set}) {
		return nil
	}
	return &n
}

// heldBy is how a benchmark holds a gateway: what the annotation says or, where that
// is lost, what the status does.
func heldBy(b *v1alpha1.QTLSBenchmark, g *v1alpha1.QTLSGateway) *hold {
	if h, err := holdOf(g); err == nil && h != nil {
		return h
	}
	now := resources.Replicas(g)
	return &hold{Benchmark: b.Name, UID: b.UID, Before: ptr.Deref(b.Status.ReplicasBefore, now), Set: ptr.Deref(b.Status.ReplicasSet, now)}
}

// giveBack puts replicas back, unless somebody else has changed them: then his
// number stays.
func giveBack(g *v1alpha1.QTLSGateway, h *hold) {
	delete(g.Annotations, v1alpha1.AnnotationBenchmark)
	if resources.Replicas(g) == h.Set {
		g.Spec.Replicas = ptr.To(h.Before)
	}
}

// copyName of the temporary copy of a gateway.
func copyName(b *v1alpha1.QTLSBenchmark) string { return b.Name + "-gateway" }

// copyOf a gateway for a benchmark. Nothing outside the cluster leads to it, and
// it shares no keys of session tickets with the one that serves.
func copyOf(g *v1alpha1.QTLSGateway, b *v1alpha1.QTLSBenchmark) *v1alpha1.QTLSGateway {
	c := &v1alpha1.QTLSGateway{ObjectMeta: generator.Meta(b, copyName(b)), Spec: *g.Spec.DeepCopy()}
	c.Spec.Service = v1alpha1.ServiceSpec{}
	c.Spec.SessionResumption.Ring = ""
	if r := b.Spec.GatewayRef.Resources; r != nil {
		c.Spec.Resources = r.DeepCopy()
	}
	return c
}

// observe the gateway that is measured: g, which is the one that the spec names
// or its copy, nil where it is not there. source is the one that the spec names.
func observe(b *v1alpha1.QTLSBenchmark, source, g *v1alpha1.QTLSGateway, now time.Time) plan.Gateway {
	started := b.Status.StartTime != nil
	if g == nil || g.DeletionTimestamp != nil {
		switch {
		case b.Spec.GatewayRef.Use == v1alpha1.BenchmarkUseInPlace || source == nil && !started:
			return plan.Gateway{Missing: fmt.Sprintf("QTLSGateway %q", b.Spec.GatewayRef.Name)}
		case started:
			return plan.Gateway{Missing: fmt.Sprintf("QTLSGateway %q, the copy of %q,", copyName(b), b.Spec.GatewayRef.Name)}
		case g != nil:
			return plan.Gateway{Busy: fmt.Sprintf("QTLSGateway %q is being deleted, and the copy needs its name", g.Name)}
		}
		return plan.Gateway{}
	}
	if b.Spec.GatewayRef.Use != v1alpha1.BenchmarkUseInPlace && !metav1.IsControlledBy(g, b) {
		return plan.Gateway{Busy: fmt.Sprintf("QTLSGateway %q exists and is not this benchmark's copy of %q; delete or rename it, or rename the benchmark", g.Name, b.Spec.GatewayRef.Name)}
	}
	h, err := holdOf(g)
	switch {
	case started && (err != nil || h == nil || h.UID != b.UID):
		return unmarked(b, g, h)
	case err != nil:
		return plan.Gateway{Busy: err.Error()}
	case h == nil:
		return plan.Gateway{}
	case h.UID != b.UID:
		return plan.Gateway{Queued: true, Busy: fmt.Sprintf("QTLSBenchmark %q measures QTLSGateway %q; this one begins when that is over", h.Benchmark, g.Name)}
	}
	o := plan.Gateway{Held: true, Replicas: h.Set, Since: h.Since}
	switch {
	case resources.Replicas(g) != h.Set:
		o.Changed = fmt.Sprintf("QTLSGateway %q: spec.replicas was set to %d for the benchmark, and somebody else (an autoscaler?) has set it to %d", g.Name, h.Set, resources.Replicas(g))
	case g.Generation != h.Generation:
		o.Changed = fmt.Sprintf("QTLSGateway %q: its spec was changed during the run", g.Name)
	}
	o.Programmed, o.Message, o.Unprogrammed = programmed(g, h.Set, now)
	o.Unshared, o.UnsharedSince = unshared(g)
	return o
}

// unmarked is a gateway whose mark is gone, or another's, though the run has begun.
// When it is over that is as it should be.
func unmarked(b *v1alpha1.QTLSBenchmark, g *v1alpha1.QTLSGateway, h *hold) plan.Gateway {
	if h != nil {
		return plan.Gateway{Changed: fmt.Sprintf("QTLSGateway %q: somebody has removed this benchmark's annotation %s, and QTLSBenchmark %q measures it now", g.Name, v1alpha1.AnnotationBenchmark, h.Benchmark)}
	}
	o := plan.Gateway{Changed: fmt.Sprintf("QTLSGateway %q: somebody has removed this benchmark's annotation %s", g.Name, v1alpha1.AnnotationBenchmark)}
	before, set := b.Status.ReplicasBefore, b.Status.ReplicasSet
	switch {
	case b.Spec.GatewayRef.Use != v1alpha1.BenchmarkUseInPlace:
		o.Held = true // the copy is to be deleted
	case meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionRestored) || before == nil || set == nil:
	default:
		// Another gateway is somebody else's, and so is another number.
		now := resources.Replicas(g)
		o.Held = g.UID == b.Status.GatewayUID && now == *set && now != *before
	}
	return o
}

// programmed says whether all pods of a gateway run what it says, and no others;
// where they do not, what is missing and since when. That is zero where it is since
// the spec was changed.
func programmed(g *v1alpha1.QTLSGateway, replicas int32, now time.Time) (ok bool, message string, since time.Time) {
	c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionProgrammed)
	switch {
	case g.Status.ObservedGeneration != g.Generation || c == nil || c.ObservedGeneration != g.Generation:
		return false, fmt.Sprintf("QTLSGateway %q: generation %d is not observed yet", g.Name, g.Generation), time.Time{}
	case c.Status != metav1.ConditionTrue:
		return false, fmt.Sprintf("QTLSGateway %q: %s: %s", g.Name, c.Reason, c.Message), c.LastTransitionTime.Time
	case g.Status.ReadyReplicas != replicas || g.Status.Replicas != replicas:
		// Programmed is True, so this is since the gateway is not Ready. One that is has
		// pods too many, which come and go with a rollout.
		since := now
		if c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionReady); c != nil && c.Status != metav1.ConditionTrue {
			since = c.LastTransitionTime.Time
		}
		return false, fmt.Sprintf("QTLSGateway %q: %d of %d pods are ready, %d are there", g.Name, g.Status.ReadyReplicas, replicas, g.Status.Replicas), since
	}
	return true, "", time.Time{}
}

// unshared says what keeps clients from resuming on each pod, and since when; zero where it
// is since the spec was changed. Where sessions are not to be resumed, nothing will change.
func unshared(g *v1alpha1.QTLSGateway) (message string, since time.Time) {
	c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionSessionResumption)
	switch {
	case c == nil || c.Reason == v1alpha1.ReasonDisabled:
		return "", time.Time{}
	case c.ObservedGeneration != g.Generation:
		return fmt.Sprintf("QTLSGateway %q: generation %d is not observed yet", g.Name, g.Generation), time.Time{}
	case c.Status != metav1.ConditionTrue:
		return fmt.Sprintf("QTLSGateway %q: %s: %s", g.Name, c.Reason, c.Message), c.LastTransitionTime.Time
	}
	return "", time.Time{}
}
