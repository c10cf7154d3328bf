//go:build integration

package testenv_test

import (
	"testing"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestKindsAreServed(t *testing.T) {
	c := testenv.Client(t)
	ns := testenv.Namespace(t, c)
	issuer := &v1alpha1.PQCIssuer{Spec: v1alpha1.IssuerSpec{SelfSigned: &v1alpha1.SelfSignedIssuer{}}}
	issuer.Namespace, issuer.Name = ns, "root"
	if err := c.Create(t.Context(), issuer); err != nil {
		t.Errorf("a kind of Q-TLS: %v", err)
	}
	var requests cmapi.CertificateRequestList
	if err := c.List(t.Context(), &requests); err != nil {
		t.Errorf("a kind of cert-manager: %v", err)
	}
}
