//go:build integration

package metrics

import (
	"context"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// From the manager's cache, which the fake client of the other tests is not.
func TestTheManagersCacheIsWhatIsTold(t *testing.T) {
	c := testenv.Client(t)
	pool := &v1alpha1.HSMPool{ObjectMeta: named(testenv.Namespace(t, c), "vault"), Spec: v1alpha1.HSMPoolSpec{
		Members: []v1alpha1.HSMMember{{Name: "soft", SoftToken: &v1alpha1.SoftToken{}}}}}
	if err := c.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	pool.Status.Members = []v1alpha1.HSMMemberStatus{{Name: "soft", State: v1alpha1.HSMMemberUp, Since: metav1.Now()}}
	pool.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, LastTransitionTime: metav1.Now()}}
	if err := c.Status().Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	mgr := testenv.Manager(t)
	objects := &Objects{Reader: mgr.GetCache(), Elected: mgr.Elected(), Benchmarks: true}
	if got := testutil.CollectAndCount(objects); got != 0 {
		t.Errorf("%d series before the manager leads", got)
	}
	testenv.Start(t, mgr)
	series := func(want int) {
		t.Helper()
		testenv.Eventually(t, func(context.Context) error {
			if got := testutil.CollectAndCount(objects); got != want {
				return fmt.Errorf("%d series, want %d", got, want)
			}
			return nil
		})
	}
	series(4)
	if err := c.Delete(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	series(0)
}
