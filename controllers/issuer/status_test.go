package issuer

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/issuers"
	"qtls.dev/qtls/internal/pki"
)

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func TestSelfSignedIssuersAreReady(t *testing.T) {
	s := summarise(&v1alpha1.IssuerSpec{SelfSigned: &v1alpha1.SelfSignedIssuer{}}, issuers.Authorities{}, v1alpha1.IssuerStatus{}, 3, now)
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
	if c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonReady || c.ObservedGeneration != 3 || s.ObservedGeneration != 3 || !c.LastTransitionTime.Time.Equal(now) {
		t.Errorf("%+v", s)
	}
}

func TestTheFirstProblemGivesTheReason(t *testing.T) {
	problems := issuers.Authorities{Problems: []*conditions.Problem{
		{Reason: v1alpha1.ReasonSecretNotFound, Message: "no a"}, {Reason: v1alpha1.ReasonKeyMismatch, Message: "bad b"}}}
	s := summarise(&v1alpha1.IssuerSpec{CA: &v1alpha1.CAIssuer{}}, problems, v1alpha1.IssuerStatus{}, 1, now)
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
	if c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonSecretNotFound || c.Message != "no a; bad b" {
		t.Errorf("%+v", c)
	}
	again := summarise(&v1alpha1.IssuerSpec{CA: &v1alpha1.CAIssuer{}}, problems, s, 2, now.Add(time.Hour))
	if c := again.Conditions[0]; !c.LastTransitionTime.Time.Equal(now) || c.ObservedGeneration != 2 {
		t.Errorf("seen again: %+v", c)
	}
	if !strings.Contains(s.Conditions[0].Message, "a") || len(s.Conditions) != 1 {
		t.Errorf("%+v", s.Conditions)
	}
}

func TestWhenToLookAgain(t *testing.T) {
	below := func(leaf, root time.Duration, pool string) issuers.Authority {
		c, top := &x509.Certificate{NotAfter: now.Add(leaf)}, &x509.Certificate{NotAfter: now.Add(root)}
		return issuers.Authority{HSMPool: pool, Authority: &pki.Authority{Chain: pki.Chain{Certificates: []*x509.Certificate{c}, Anchor: top}}}
	}
	early := &conditions.Problem{Reason: v1alpha1.ReasonCertificateNotYetValid, After: 30 * time.Minute}
	for name, c := range map[string]struct {
		authorities issuers.Authorities
		want        time.Duration
	}{
		"at the end of the authority":      {issuers.Authorities{List: []issuers.Authority{below(time.Hour, 2*time.Hour, "")}}, time.Hour},
		"at the end of the one above it":   {issuers.Authorities{List: []issuers.Authority{below(3*time.Hour, 2*time.Hour, "")}}, 2 * time.Hour},
		"at its HSMs":                      {issuers.Authorities{List: []issuers.Authority{below(3*time.Hour, 2*time.Hour, "pool")}}, hsmInterval},
		"at the beginning of one":          {issuers.Authorities{List: []issuers.Authority{below(time.Hour, 2*time.Hour, "")}, Problems: []*conditions.Problem{early}}, 30 * time.Minute},
		"never, when only a user can help": {issuers.Authorities{Problems: []*conditions.Problem{{Reason: v1alpha1.ReasonSecretNotFound}}}, 0},
	} {
		if got := nextLook(c.authorities, now); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
