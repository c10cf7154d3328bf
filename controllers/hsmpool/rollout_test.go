package hsmpool

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
)

// Of several daemons one at a time is replaced, while all others sign; what is
// broken can always be.
func TestWhenADaemonsPodMayBeReplaced(t *testing.T) {
	set := func(generation, observed int64, updated, ready int32) *appsv1.StatefulSet {
		return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Generation: generation}, Status: appsv1.StatefulSetStatus{
			ObservedGeneration: observed, Replicas: 1, UpdatedReplicas: updated, ReadyReplicas: ready}}
	}
	const up, down, starting, unknown = v1alpha1.HSMMemberUp, v1alpha1.HSMMemberDown, v1alpha1.HSMMemberStarting, v1alpha1.HSMMemberUnknown
	is := func(state v1alpha1.HSMMemberState, set *appsv1.StatefulSet) standing {
		return standingOf("a", state, set)
	}
	remote := func(state v1alpha1.HSMMemberState) standing { return remoteStanding("a", state) }
	running, changed := set(2, 2, 1, 1), set(3, 2, 1, 1)
	runs, broken, none := is(up, running), is(unknown, set(2, 2, 1, 0)), is(unknown, nil)
	// The pod of before may answer still.
	applied, replacing := is(up, changed), is(up, set(3, 3, 0, 1))
	for name, c := range map[string]struct {
		existing standing
		others   []standing
		may      bool
	}{
		"the only one":                    {runs, nil, true},
		"the others run":                  {runs, []standing{runs, runs}, true},
		"another was changed just now":    {runs, []standing{runs, applied}, false},
		"another's pod is being replaced": {runs, []standing{replacing, runs}, false},
		"another is not ready":            {runs, []standing{runs, broken}, false},
		"another is not there yet":        {runs, []standing{none}, false},
		"there is none yet":               {none, []standing{runs, none}, true},
		"it is broken":                    {broken, []standing{runs}, true},
		"it is broken, and others are":    {broken, []standing{broken, none, replacing}, true},

		"another's pod is ready and its token is down":     {runs, []standing{runs, is(down, running)}, false},
		"another has not reached its token yet":            {runs, []standing{is(starting, running)}, false},
		"another is ready and gives no answer":             {runs, []standing{is(unknown, running)}, false},
		"a remote member signs":                            {runs, []standing{remote(up)}, true},
		"a remote member is down":                          {runs, []standing{runs, remote(down)}, false},
		"a remote member gives no answer":                  {runs, []standing{remote(unknown)}, false},
		"its token is down":                                {is(down, running), []standing{runs}, true},
		"its token is down, and others are broken":         {is(down, running), []standing{broken, replacing, remote(down)}, true},
		"it has not reached its token":                     {is(starting, running), []standing{broken}, true},
		"nobody answers, but gateways may be able to sign": {is(unknown, running), []standing{is(unknown, running), remote(unknown)}, true},
		"nobody answers, and one is replaced already":      {is(unknown, running), []standing{is(unknown, changed)}, false},
	} {
		if why := hindrance(c.existing, c.others); (why == "") != c.may {
			t.Errorf("%s: %t (%s), want %t", name, why == "", why, c.may)
		}
	}
}
