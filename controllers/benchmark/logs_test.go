package benchmark

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"qtls.dev/qtls/api/v1alpha1"
)

// The API server does not reach the kubelet of a node where a load was made: that is said,
// and after two minutes the run goes on without that measurement.
func TestALogThatCannotBeHadIsSaidAndThenGivenUp(t *testing.T) {
	s := startRun(t)
	s.r.Logs = func(context.Context, string, string, string) (io.ReadCloser, error) {
		return nil, errors.New("no route to host")
	}
	first := *s.gateway().Spec.Replicas
	ended := noon.Add(30 * time.Second)
	s.loaded(ended)
	for _, c := range []struct {
		after    time.Duration
		progress string
	}{{0, "0/8"}, {2*time.Minute - time.Second, "0/8"}, {2 * time.Minute, "1/8"}} {
		s.r.Clock = clocktesting.NewFakePassiveClock(ended.Add(c.after))
		s.step()
		after := s.benchmark().Status
		if after.Progress != c.progress {
			t.Errorf("after %s: %s, want %s", c.after, after.Progress, c.progress)
		}
		if c.progress == "0/8" {
			wantCondition(t, after, v1alpha1.ConditionComplete, "False", v1alpha1.ReasonResultUnreadable, `log of pod "load-0": no route to host`)
		}
	}
	for range 4 { // the Job is deleted, its latency is left out, and the gateway is scaled for the next
		s.step()
	}
	after := s.benchmark().Status
	wantCondition(t, after, v1alpha1.ConditionValid, "False", v1alpha1.ReasonPointsInvalid, "ResultUnreadable")
	if next := *s.gateway().Spec.Replicas; after.Progress != "2/8" || len(s.jobs()) > 0 || next != 3-first {
		t.Errorf("%s, %d Jobs, %d replicas", after.Progress, len(s.jobs()), next)
	}
}
