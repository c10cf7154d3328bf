//go:build integration

package certificate_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
)

// An operator is killed after each write that it does, and its answer comes or
// is lost; the next one goes on, and nothing is there twice.
func TestKilledAtEveryStep(t *testing.T) {
	for _, late := range []bool{false, true} {
		for writes := 0; ; writes++ {
			ended := false
			t.Run(fmt.Sprintf("after %d writes, answer lost: %t", writes, late), func(t *testing.T) {
				ended = killed(t, newFuse(writes, late))
			})
			if t.Failed() {
				return
			}
			if ended { // it came to the end before it was killed
				if writes < 6 {
					t.Errorf("only %d writes: the test cuts nothing", writes)
				}
				break
			}
		}
	}
}

// killed lets an operator with a fuse issue and another one end it; ended says
// that the first one came to the end.
func killed(t *testing.T, f *fuse) (ended bool) {
	w := stoppedWorld(t)
	c := ca("root", "self", "ECDSA-P256")
	w.create(selfSigned("self"), c)
	w.start(f)
	w.eventually(func() error {
		w.get(c)
		ended = slices.ContainsFunc(c.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == v1alpha1.ConditionReady && c.Status == metav1.ConditionTrue
		})
		if ended || f.burnt() {
			return nil
		}
		return fmt.Errorf("neither killed nor done: %+v", c.Status)
	})
	time.Sleep(50 * time.Millisecond)
	ended = ended && !f.burnt()
	w.stop()
	w.start(nil)
	w.revision(c, 1)
	w.eventually(func() error {
		if names := w.secretNames(); !slices.Equal(names, []string{"root-ecdsa-p256"}) {
			return fmt.Errorf("Secrets %v", names)
		}
		if requests := w.requests(); len(requests) != 1 || requests[0].Name != "root-ecdsa-p256-1" {
			return fmt.Errorf("%d CertificateRequests: %+v", len(requests), requests)
		}
		return nil
	})
	// The one request there is is that of the certificate that is served.
	if w.pair("root-ecdsa-p256").SerialNumber() != c.Status.Certificates[0].SerialNumber {
		t.Error("the status tells of another certificate")
	}
	return ended
}
