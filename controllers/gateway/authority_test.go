package gateway

import (
	"crypto/x509"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/mtls"
)

// Over more than a year, in which the authority changes, the operator and agents
// that see their Secret six hours late accept each other all the time.
func TestTheOperatorReachesAgentsWhileTheirAuthorityChanges(t *testing.T) {
	c := fake.NewClientBuilder().Build()
	clock := clocktesting.NewFakePassiveClock(now)
	r := &Reconciler{Client: c, APIReader: c, Authority: &Authority{Client: c, APIReader: c, Namespace: "qtls-system", Clock: clock}}
	g := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}

	var seen, next map[string][]byte // what the agents have mounted, and what they will see at the next step
	authorities := map[string]bool{}
	for at := now; at.Before(now.Add(380 * 24 * time.Hour)); at = at.Add(lookAgain) {
		clock.SetTime(at)
		secret, err := r.agentSecret(t.Context(), g, at)
		if err != nil {
			t.Fatal(err)
		}
		seen = next
		if secret != nil {
			next = secret.Data
			_ = c.Delete(t.Context(), secret.DeepCopy())
			if err := c.Create(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		}
		if seen == nil {
			continue
		}
		operator := r.Authority.HTTPClient(key(g)).Transport.(*http.Transport).TLSClientConfig
		trusted := x509.NewCertPool()
		trusted.AppendCertsFromPEM(seen["ca.crt"])
		if _, err := operator.Certificates[0].Leaf.Verify(x509.VerifyOptions{DNSName: mtls.OperatorName, Roots: trusted, CurrentTime: at,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Fatalf("after %s agents refuse the operator: %v", at.Sub(now), err)
		}
		agent, err := keypair.ParseCertificates(seen["tls.crt"])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := agent[0].Verify(x509.VerifyOptions{DNSName: operator.ServerName, Roots: operator.RootCAs, CurrentTime: at}); err != nil {
			t.Fatalf("after %s the operator refuses agents: %v", at.Sub(now), err)
		}
		authorities[string(agent[0].AuthorityKeyId)] = true
	}
	if len(authorities) != 2 {
		t.Errorf("agents had certificates of %d authorities, want 2: one a year", len(authorities))
	}
}

func TestAnAuthorityIsKeptUntilItIsOld(t *testing.T) {
	c := fake.NewClientBuilder().Build()
	clock := clocktesting.NewFakePassiveClock(now)
	get := func() corev1.Secret {
		t.Helper()
		a := &Authority{Client: c, APIReader: c, Namespace: "qtls-system", Clock: clock} // a new process
		if _, err := a.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		var secret corev1.Secret
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "qtls-system", Name: AuthoritySecret}, &secret); err != nil {
			t.Fatal(err)
		}
		return secret
	}
	first := get()
	clock.SetTime(now.Add(300 * 24 * time.Hour))
	if again := get(); again.ResourceVersion != first.ResourceVersion {
		t.Error("it is written again though it is not old")
	}
	clock.SetTime(now.Add(400 * 24 * time.Hour))
	aged := get()
	if string(aged.Data["tls.crt"]) != string(first.Data["tls.crt"]) || len(aged.Data["next.crt"]) == 0 {
		t.Error("when it is old it goes on signing, with a successor beside it that is trusted")
	}
}
