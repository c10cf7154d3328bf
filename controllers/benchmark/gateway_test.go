package benchmark

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
)

// The time since when a gateway does not run is what its conditions say, so that a
// short one long after it was scaled is not taken for a long one.
func TestSinceWhenAGatewayDoesNotRun(t *testing.T) {
	before, lately := noon.Add(-time.Hour), noon.Add(-time.Second)
	condition := func(kind string, status metav1.ConditionStatus, since time.Time) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: "Because", ObservedGeneration: 4, LastTransitionTime: metav1.NewTime(since)}
	}
	programmedSince := condition(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, before)
	for name, c := range map[string]struct {
		observed        int64
		conditions      []metav1.Condition
		pods, readyPods int32
		ok              bool
		since           time.Time
		says            string
	}{
		"it runs":                 {4, []metav1.Condition{programmedSince}, 2, 2, true, time.Time{}, ""},
		"it is not programmed":    {4, []metav1.Condition{condition(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, lately)}, 2, 2, false, lately, "Because"},
		"a pod is not ready":      {4, []metav1.Condition{programmedSince, condition(v1alpha1.ConditionReady, metav1.ConditionFalse, lately)}, 2, 1, false, lately, "1 of 2 pods are ready"},
		"there is a pod too many": {4, []metav1.Condition{programmedSince, condition(v1alpha1.ConditionReady, metav1.ConditionTrue, before)}, 3, 2, false, noon, "3 are there"},
		"it was just changed":     {3, []metav1.Condition{programmedSince}, 2, 2, false, time.Time{}, "generation 4 is not observed yet"},
	} {
		g := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 4},
			Status: v1alpha1.QTLSGatewayStatus{ObservedGeneration: c.observed, Conditions: c.conditions, Replicas: c.pods, ReadyReplicas: c.readyPods}}
		ok, message, since := programmed(g, 2, noon)
		if ok != c.ok || !since.Equal(c.since) || !strings.Contains(message, c.says) {
			t.Errorf("%s: %v since %v: %q", name, ok, since, message)
		}
	}
}

// Pods run before the ticket store does, and then each has keys of its own.
func TestWhatKeepsClientsFromResuming(t *testing.T) {
	lately := noon.Add(-time.Second)
	condition := func(status metav1.ConditionStatus, reason string, generation int64) *metav1.Condition {
		return &metav1.Condition{Type: v1alpha1.ConditionSessionResumption, Status: status, Reason: reason, Message: "because", ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(lately)}
	}
	for name, c := range map[string]struct {
		condition *metav1.Condition
		says      string
		since     time.Time
	}{
		"the keys are shared":         {condition("True", v1alpha1.ReasonShared, 4), "", time.Time{}},
		"the store does not run yet":  {condition("False", v1alpha1.ReasonStoreNotReady, 4), "StoreNotReady: because", lately},
		"it was just changed":         {condition("True", v1alpha1.ReasonShared, 3), "generation 4 is not observed yet", time.Time{}},
		"nothing is to be resumed":    {condition("False", v1alpha1.ReasonDisabled, 4), "", time.Time{}},
		"nobody says what is resumed": {nil, "", time.Time{}},
	} {
		b := inPlace(v1alpha1.BenchmarkRunning)
		g := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Name: "web", Generation: 3}}
		if err := take(g, b, 2, noon); err != nil {
			t.Fatal(err)
		}
		g.Generation = 4
		if c.condition != nil {
			g.Status.Conditions = []metav1.Condition{*c.condition}
		}
		o := observe(b, g, g, noon)
		if !strings.Contains(o.Unshared, c.says) || (c.says == "") != (o.Unshared == "") || !o.UnsharedSince.Equal(c.since) {
			t.Errorf("%s: since %v: %q", name, o.UnsharedSince, o.Unshared)
		}
	}
}
