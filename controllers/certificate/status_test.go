package certificate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
)

func at(d time.Duration) *metav1.Time { return new(metav1.NewTime(issuedAt.Add(d))) }

// fine is the outcome of a certificate that serves until end.
func fine(algorithm v1alpha1.KeyAlgorithm, end time.Duration) outcome {
	return outcome{status: v1alpha1.IssuedCertificate{Algorithm: algorithm, SecretName: v1alpha1.CertificateSecretName("web", algorithm), Revision: 2,
		NotAfter: at(end), RenewalTime: at(end / 2)}}
}

func lacking(algorithm v1alpha1.KeyAlgorithm, err error) outcome {
	return outcome{status: v1alpha1.IssuedCertificate{Algorithm: algorithm, SecretName: v1alpha1.CertificateSecretName("web", algorithm)}, unusable: "its Secret is not there", underway: 1, err: err}
}

// doubtful is the outcome of a certificate with whose key something is wrong in some member.
func doubtful(algorithm v1alpha1.KeyAlgorithm, reason, message string) outcome {
	o := fine(algorithm, time.Hour)
	o.inHSM, o.doubt = true, &conditions.Problem{Reason: reason, Message: message}
	return o
}

// unread is the outcome of one that served, and cannot be read now.
func unread(algorithm v1alpha1.KeyAlgorithm) outcome {
	o := fine(algorithm, time.Hour)
	o.due, o.err, o.unknown = "etcd is away", errors.New("etcd is away"), true
	return o
}

func renewing(algorithm v1alpha1.KeyAlgorithm, err error) outcome {
	o := fine(algorithm, time.Hour)
	o.due, o.underway, o.err = "it is due", 3, err
	return o
}

func TestConditions(t *testing.T) {
	waiting := conditions.Waiting(time.Second, v1alpha1.ReasonWaitingForApproval, "not approved")
	denied := conditions.Waiting(time.Minute, v1alpha1.ReasonDenied, "denied by policy")
	foreign := conditions.Stalled(v1alpha1.ReasonSecretNotOwned, "not ours")
	momentary := errors.New("etcd is away")
	for name, c := range map[string]struct {
		outcomes               []outcome
		ready, readyReason     string
		issuing, issuingReason string
		readySays, issuingSays string
	}{
		"all is well": {[]outcome{fine("ML-DSA-65", time.Hour), fine("ECDSA-P256", 2*time.Hour)},
			"True", "Issued", "False", "Issued", "ML-DSA-65 until 2030-01-02T04:04:05Z, ECDSA-P256 until", "nothing is being issued"},
		"a member lacks one's key": {[]outcome{fine("ML-DSA-65", time.Hour), doubtful("ECDSA-P256", "KeyNotInEveryMember", "key k is not in b")},
			"True", "KeyNotInEveryMember", "False", "Issued", "issued: ML-DSA-65 until 2030-01-02T04:04:05Z, ECDSA-P256 until 2030-01-02T04:04:05Z; ECDSA-P256: key k is not in b", "nothing is being issued"},
		"a member lacks one's key, and another is lacking": {[]outcome{doubtful("ML-DSA-65", "KeyNotInEveryMember", "key k is not in b"), lacking("ECDSA-P256", waiting)},
			"False", "WaitingForApproval", "True", "WaitingForApproval", "ECDSA-P256: its Secret is not there: not approved", "not approved"},
		"another one in a member is graver": {[]outcome{doubtful("ML-DSA-65", "KeyNotInEveryMember", "key k is not in b"), doubtful("ECDSA-P256", "KeyMismatch", "key l is another one in b")},
			"True", "KeyMismatch", "False", "Issued", "; ML-DSA-65: key k is not in b; ECDSA-P256: key l is another one in b", "nothing is being issued"},
		"one is renewed": {[]outcome{renewing("ML-DSA-65", waiting), fine("ECDSA-P256", time.Hour)},
			"True", "Issued", "True", "WaitingForApproval", "issued: ML-DSA-65", "ML-DSA-65: it is due: not approved"},
		"one's renewal failed": {[]outcome{renewing("ML-DSA-65", denied), fine("ECDSA-P256", time.Hour)},
			"True", "Issued", "False", "Denied", "issued: ML-DSA-65", "denied by policy"},
		"one is lacking": {[]outcome{fine("ML-DSA-65", time.Hour), lacking("ECDSA-P256", waiting)},
			"False", "WaitingForApproval", "True", "WaitingForApproval", "ECDSA-P256: its Secret is not there: not approved", "not approved"},
		"the gravest names the condition": {[]outcome{lacking("ML-DSA-65", waiting), lacking("ECDSA-P256", denied)},
			"False", "WaitingForApproval", "False", "Denied", "ML-DSA-65", "ECDSA-P256"},
		"one trouble of two is told once": {[]outcome{lacking("ML-DSA-65", waiting), lacking("ECDSA-P256", waiting), lacking("RSA-2048", denied)},
			"False", "WaitingForApproval", "False", "Denied", "ML-DSA-65, ECDSA-P256: its Secret is not there: not approved; RSA-2048: its Secret is not there: denied by policy", "ML-DSA-65, ECDSA-P256: its"},
		"a Secret of somebody else's": {[]outcome{failed(web(), "ML-DSA-65", foreign, issuedAt), fine("ECDSA-P256", time.Hour)},
			"False", "SecretNotOwned", "False", "SecretNotOwned", "ML-DSA-65: not ours", "ML-DSA-65: not ours"},
		"an error of the moment": {[]outcome{lacking("ML-DSA-65", momentary)},
			"False", "Issuing", "True", "Issuing", "etcd is away", "etcd is away"},
	} {
		t.Run(name, func(t *testing.T) {
			s := summarise(web(), c.outcomes, issuedAt)
			for kind, want := range map[string][3]string{
				v1alpha1.ConditionReady: {c.ready, c.readyReason, c.readySays}, v1alpha1.ConditionIssuing: {c.issuing, c.issuingReason, c.issuingSays},
			} {
				got := meta.FindStatusCondition(s.Conditions, kind)
				if string(got.Status) != want[0] || got.Reason != want[1] || !strings.Contains(got.Message, want[2]) || got.ObservedGeneration != 4 {
					t.Errorf("%s: %+v, want %v", kind, got, want)
				}
			}
		})
	}
}

// What cannot be read for a moment is what it was: readiness is not lost and found
// again with every error.
func TestAnErrorOfTheMomentLeavesReadiness(t *testing.T) {
	momentary := errors.New("etcd is away")
	served := func(change func(*v1alpha1.PQCCertificate)) *v1alpha1.PQCCertificate {
		c := web()
		c.Status = summarise(c, []outcome{fine("ML-DSA-65", time.Hour), fine("ECDSA-P256", time.Hour)}, issuedAt)
		change(c)
		return c
	}
	as := func(*v1alpha1.PQCCertificate) {}
	for name, test := range map[string]struct {
		c     *v1alpha1.PQCCertificate
		err   error
		after time.Duration
		ready bool
	}{
		"that served":                       {served(as), momentary, time.Minute, true},
		"that served, and is somebody's":    {served(as), conditions.Stalled(v1alpha1.ReasonSecretNotOwned, "not ours"), time.Minute, false},
		"that served, and is being written": {served(as), conditions.Waiting(soon, v1alpha1.ReasonIssuing, "just changed"), time.Minute, true},
		"that served, and is not shown":     {served(as), fmt.Errorf("Secret: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "web", nil)), time.Minute, false},
		"that has expired since":            {served(as), momentary, time.Hour, false},
		"that served under another spec":    {served(func(c *v1alpha1.PQCCertificate) { c.Generation++ }), momentary, time.Minute, false},
		"that was not there":                {served(func(c *v1alpha1.PQCCertificate) { c.Status.Certificates = nil }), momentary, time.Minute, false},
		"of which nothing was ever known":   {web(), momentary, time.Minute, false},
		"of a PQCCertificate not ready": {served(func(c *v1alpha1.PQCCertificate) {
			c.Status.Conditions[0].Status = metav1.ConditionFalse
		}), momentary, time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			now := issuedAt.Add(test.after)
			o := failed(test.c, "ML-DSA-65", test.err, now)
			s := summarise(test.c, []outcome{o, fine("ECDSA-P256", 2*time.Hour)}, now)
			if ready := meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady); ready != test.ready {
				t.Errorf("ready: %t", ready)
			}
			if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionIssuing); !strings.Contains(c.Message, "ML-DSA-65: "+test.err.Error()) {
				t.Errorf("nothing tells of it: %s", c.Message)
			}
			if isMomentary(test.err) && o.failure() == nil {
				t.Error("it is not tried again")
			}
		})
	}
}

func TestStatusOfCertificates(t *testing.T) {
	s := summarise(web(), []outcome{fine("ML-DSA-65", 2*time.Hour), renewing("ECDSA-P256", nil)}, issuedAt)
	if !s.NotAfter.Equal(at(time.Hour)) {
		t.Errorf("notAfter %s is not the earliest", s.NotAfter)
	}
	if len(s.Certificates) != 2 || s.Certificates[0].RequestName != "" || s.Certificates[1].RequestName != "web-ecdsa-p256-3" || s.ObservedGeneration != 4 {
		t.Errorf("%+v", s.Certificates)
	}
}

func TestRenewedSaysWhenAllAre(t *testing.T) {
	c := web()
	c.Annotations = map[string]string{v1alpha1.AnnotationRenew: "2"}
	c.Status.Renewed = "1"
	done, todo := fine("ML-DSA-65", time.Hour), fine("ECDSA-P256", time.Hour)
	done.renewed, todo.renewed = "2", "1"
	if s := summarise(c, []outcome{done, todo}, issuedAt); s.Renewed != "1" {
		t.Errorf("one of two: %q", s.Renewed)
	}
	todo.renewed = "2"
	if s := summarise(c, []outcome{done, todo}, issuedAt); s.Renewed != "2" {
		t.Errorf("both: %q", s.Renewed)
	}
	long := strings.Repeat("ä", 300)
	c.Annotations[v1alpha1.AnnotationRenew], done.renewed = long, long
	if s := summarise(c, []outcome{done}, issuedAt); len(s.Renewed) > 253 || !strings.HasPrefix(long, s.Renewed) {
		t.Errorf("a long value: %d bytes", len(s.Renewed))
	}
}

func TestWhenToLookAgain(t *testing.T) {
	for name, c := range map[string]struct {
		outcome outcome
		want    time.Duration
	}{
		"at the renewal":                            {fine("ML-DSA-65", time.Hour), 30 * time.Minute},
		"as a problem says":                         {lacking("ML-DSA-65", conditions.Waiting(time.Minute, "Denied", "")), time.Minute},
		"at its end, when only a user can help":     {renewing("ML-DSA-65", conditions.Stalled("IssuerNotFound", "")), time.Hour},
		"as a problem says, before the end":         {renewing("ML-DSA-65", conditions.Waiting(time.Minute, "Denied", "")), time.Minute},
		"never, when only a user can help":          {lacking("ML-DSA-65", conditions.Stalled("SecretNotOwned", "")), 0},
		"at once, when it is past the renewal time": {fine("ML-DSA-65", -time.Hour), time.Second},
	} {
		if got := c.outcome.lookAfter(issuedAt); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	next, err := nextLook([]outcome{fine("ML-DSA-65", time.Hour), fine("ECDSA-P256", 4*time.Hour), lacking("RSA-2048", errors.New("etcd is away"))}, issuedAt)
	if next != 30*time.Minute || err == nil || !strings.Contains(err.Error(), "RSA-2048: etcd is away") {
		t.Errorf("all together: %s, %v", next, err)
	}
}
