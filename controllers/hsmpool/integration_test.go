//go:build integration

package hsmpool_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	controller "qtls.dev/qtls/controllers/hsmpool"
	"qtls.dev/qtls/internal/hsm/hsmtest"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// The whole life of a pool of two, with daemons that come and go.
func TestAPoolFollowsItsMembers(t *testing.T) {
	c := testenv.Client(t)
	namespace := testenv.Namespace(t, c)
	mgr := testenv.Manager(t)
	recorder := events.NewFakeRecorder(1000)
	r := &controller.Reconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Clock: clock.RealClock{}, Recorder: recorder,
		Clients: &hsmpool.Clients{}, Interval: 100 * time.Millisecond}
	if err := r.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	testenv.Start(t, mgr)

	authority := hsmtest.NewAuthority(t)
	a, b := hsmtest.Serve(t, authority), hsmtest.Serve(t, authority)
	member := func(name string, s *hsmtest.Server) v1alpha1.HSMMember {
		return v1alpha1.HSMMember{Name: name, Remote: &v1alpha1.RemoteHSM{Address: v1alpha1.StoreAddress(s.Address),
			ServerName: hsmtest.ServerName, TLSSecretRef: v1alpha1.SecretReference{Name: "hsm-client"}}}
	}
	pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pool"},
		Spec: v1alpha1.HSMPoolSpec{Members: []v1alpha1.HSMMember{member("hsm-a", a), member("hsm-b", b)}, Timeout: &metav1.Duration{Duration: 30 * time.Second}}}
	if err := c.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	await := func(status metav1.ConditionStatus, reason, up, says string) {
		t.Helper()
		testenv.Eventually(t, func(ctx context.Context) error {
			if err := c.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
				return err
			}
			ready := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
			if ready == nil || ready.Status != status || ready.Reason != reason || ready.ObservedGeneration != pool.Generation ||
				pool.Status.Up != up || !strings.Contains(ready.Message, says) {
				return fmt.Errorf("not %s for %s with %s up, saying %q: %+v", status, reason, up, says, pool.Status)
			}
			return nil
		})
	}
	await("False", v1alpha1.ReasonSecretNotFound, "0/2", `Secret "hsm-client" is not there in namespace "`+namespace)

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "hsm-client"}, Data: map[string][]byte{"ca.crt": authority.PEM()}}
	secret.Data["tls.crt"], secret.Data["tls.key"] = authority.Issue(t, hsmtest.ClientName)
	if err := c.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	await("True", v1alpha1.ReasonReady, "2/2", "each of 2 members can sign")
	if m := pool.Status.Members[0]; m.Name != "hsm-a" || m.Token != "gw" || m.Sessions != 4 || m.Latency == nil || m.Latency.P99.Duration != 1200*time.Microsecond {
		t.Errorf("the first member: %+v", m)
	}

	a.Token.Set("lastError", "C_Login with the PIN in /run/secrets/pin: CKR_PIN_INCORRECT (0xa0)")
	a.Token.Set("state", "Down")
	await("True", v1alpha1.ReasonDegraded, "1/2", "put the token's PIN into the daemon's pin-file")
	if m := pool.Status.Members[0]; m.State != v1alpha1.HSMMemberDown || m.Reason != v1alpha1.ReasonPINWrong {
		t.Errorf("the first member: %+v", m)
	}
	b.Stop()
	await("False", v1alpha1.ReasonPINWrong, "0/2", b.Address)
	if m := pool.Status.Members[1]; m.State != v1alpha1.HSMMemberUnknown || m.Reason != v1alpha1.ReasonHSMUnreachable {
		t.Errorf("the second member: %+v", m)
	}
	a.Token.Set("state", "Up")
	await("True", v1alpha1.ReasonDegraded, "1/2", "cannot be reached")
	if m := pool.Status.Members[0]; m.Message != "" || !strings.Contains(m.LastError, "CKR_PIN_INCORRECT") {
		t.Errorf("the first member, up again: %+v", m)
	}
	if m := pool.Status.Members[1]; m.LastError != "" {
		t.Errorf("the second member, of which nothing is known: %+v", m)
	}

	// A Secret that is renewed is used.
	other := hsmtest.NewAuthority(t)
	secret.Data["tls.crt"], secret.Data["tls.key"] = other.Issue(t, hsmtest.ClientName)
	if err := c.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	await("False", v1alpha1.ReasonHSMRefusesAccess, "0/2", "client-ca-file")

	reasons := map[string]bool{}
	for len(recorder.Events) > 0 {
		e := <-recorder.Events
		reasons[strings.Join(strings.Fields(e)[:2], " ")] = true
	}
	// Whether both members came at once does not matter here: the Secret may have
	// come between the looks at the two.
	for _, want := range []string{"Warning SecretNotFound", "Normal Degraded", "Warning PINWrong", "Warning HSMUnreachable", "Normal MemberUp"} {
		if !reasons[want] {
			t.Errorf("no event %q among %v", want, reasons)
		}
	}
}
