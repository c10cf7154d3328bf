package issuer

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/issuers"
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
