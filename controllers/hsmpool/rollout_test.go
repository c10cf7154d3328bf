package hsmpool

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Of several daemons one at a time is replaced; what is broken can always be.
func TestWhenADaemonsPodMayBeReplaced(t *testing.T) {
	set := func(generation, observed int64, updated, ready int32) *appsv1.StatefulSet {
		return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Generation: generation}, Status: appsv1.StatefulSetStatus{
			ObservedGeneration: observed, Replicas: 1, UpdatedReplicas: updated, ReadyReplicas: ready}}
	}
	runs, broken := set(2, 2, 1, 1), set(2, 2, 1, 0)
	applied, replacing := set(3, 2, 1, 1), set(3, 3, 0, 1)
	for name, c := range map[string]struct {
		existing *appsv1.StatefulSet
		others   []*appsv1.StatefulSet
		may      bool
	}{
		"the only one":                    {runs, nil, true},
		"the others run":                  {runs, []*appsv1.StatefulSet{runs, runs}, true},
		"another was changed just now":    {runs, []*appsv1.StatefulSet{runs, applied}, false},
		"another's pod is being replaced": {runs, []*appsv1.StatefulSet{replacing, runs}, false},
		"another is not ready":            {runs, []*appsv1.StatefulSet{runs, broken}, false},
		"another is not there yet":        {runs, []*appsv1.StatefulSet{nil}, false},
		"there is none yet":               {nil, []*appsv1.StatefulSet{runs, nil}, true},
		"it is broken":                    {broken, []*appsv1.StatefulSet{runs}, true},
		"it is broken, and others are":    {broken, []*appsv1.StatefulSet{broken, nil, replacing}, true},
	} {
		if got := mayReplace(c.existing, c.others); got != c.may {
			t.Errorf("%s: %t, want %t", name, got, c.may)
		}
	}
}
