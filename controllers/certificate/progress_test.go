package certificate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
)

func requestWith(conditions ...cmapi.CertificateRequestCondition) *cmapi.CertificateRequest {
	cr := &cmapi.CertificateRequest{}
	cr.Namespace, cr.Name = "ns", "web-ml-dsa-65-1"
	cr.CreationTimestamp = metav1.NewTime(issuedAt)
	cr.Status.Conditions = conditions
	return cr
}

func condition(kind cmapi.CertificateRequestConditionType, status cmmeta.ConditionStatus, reason, message string) cmapi.CertificateRequestCondition {
	return cmapi.CertificateRequestCondition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: new(metav1.NewTime(issuedAt.Add(time.Minute)))}
}

func TestProgressOfRequests(t *testing.T) {
	approved := condition(cmapi.CertificateRequestConditionApproved, "True", "cert-manager.io", "")
	pending := condition(cmapi.CertificateRequestConditionReady, "False", "Pending", "waiting for the order")
	signed := requestWith(approved, condition(cmapi.CertificateRequestConditionReady, "True", "Issued", ""))
	signed.Status.Certificate = []byte("x")
	failed := requestWith(approved, condition(cmapi.CertificateRequestConditionReady, "False", "Failed", "no such CA"))
	failed.Status.FailureTime = new(metav1.NewTime(issuedAt.Add(time.Hour)))
	for name, c := range map[string]struct {
		cr    *cmapi.CertificateRequest
		phase phase
		says  string
		after time.Duration
	}{
		"new":                         {requestWith(), phaseUnapproved, "", 0},
		"pending, not approved":       {requestWith(pending), phaseUnapproved, "", 0},
		"approved":                    {requestWith(approved), phaseApproved, "", 0},
		"approved and pending":        {requestWith(approved, pending), phaseApproved, "waiting for the order", 0},
		"ready without a certificate": {requestWith(approved, condition(cmapi.CertificateRequestConditionReady, "True", "Issued", "")), phaseApproved, "", 0},
		"signed":                      {signed, phaseSigned, "", time.Minute},
		"denied":                      {requestWith(condition(cmapi.CertificateRequestConditionDenied, "True", "policy.cert-manager.io", "not these names")), phaseDenied, `denied by policy.cert-manager.io: not these names`, time.Minute},
		"denied, says the issuer":     {requestWith(condition(cmapi.CertificateRequestConditionReady, "False", "Denied", "no")), phaseDenied, "no", time.Minute},
		"failed":                      {failed, phaseFailed, "no such CA", time.Hour},
		"invalid":                     {requestWith(approved, condition(cmapi.CertificateRequestConditionInvalidRequest, "True", "Bad", "no RSA here")), phaseFailed, "no RSA here", time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			p := progressOf(c.cr)
			if p.phase != c.phase || !strings.Contains(p.message, c.says) || c.after != 0 && !p.at.Equal(issuedAt.Add(c.after)) {
				t.Errorf("%+v; want phase %d, %q, %s", p, c.phase, c.says, issuedAt.Add(c.after))
			}
		})
	}
}

func TestWaitingForApprovalSaysHowToApprove(t *testing.T) {
	cr := requestWith()
	p, _ := conditions.AsProblem(waitForApproval(cr, issuedAt.Add(5*time.Second)))
	if p.Reason != v1alpha1.ReasonWaitingForApproval || p.After != 10*time.Second || strings.Contains(p.Message, "cmctl") {
		t.Errorf("at first: %+v", p)
	}
	p, _ = conditions.AsProblem(waitForApproval(cr, issuedAt.Add(15*time.Second)))
	if p.After != 0 || !strings.Contains(p.Message, "cmctl approve -n ns web-ml-dsa-65-1") || strings.Contains(p.Message, "qtls.dev") {
		t.Errorf("another's issuer: %+v", p)
	}
	cr.Spec.IssuerRef.Group = v1alpha1.GroupName
	p, _ = conditions.AsProblem(waitForApproval(cr, issuedAt.Add(15*time.Second)))
	for _, says := range []string{`"web-ml-dsa-65-1" within 15 s`, "pqcissuers.qtls.dev", "certManager.approver.enabled", "cmctl approve"} {
		if !strings.Contains(p.Message, says) {
			t.Errorf("%q does not say %q", p.Message, says)
		}
	}
}

func TestRefusalsAreNotErrorsOfTheMoment(t *testing.T) {
	resource := schema.GroupResource{Group: "cert-manager.io", Resource: "certificaterequests"}
	for name, c := range map[string]struct {
		err     error
		refusal bool
	}{
		"no right":               {apierrors.NewForbidden(resource, "a", errors.New("no right to create")), true},
		"bad request":            {apierrors.NewBadRequest("no"), true},
		"a webhook's denial":     {&apierrors.StatusError{ErrStatus: metav1.Status{Code: 406, Reason: metav1.StatusReasonNotAcceptable, Message: "admission webhook denied the request"}}, true},
		"wrapped":                {fmt.Errorf("create: %w", apierrors.NewBadRequest("no")), true},
		"a webhook that is away": {apierrors.NewInternalError(errors.New("failed calling webhook")), false},
		"conflict":               {apierrors.NewConflict(resource, "a", errors.New("changed")), false},
		"too many requests":      {apierrors.NewTooManyRequests("later", 1), false},
		"no such namespace":      {apierrors.NewNotFound(resource, "a"), false},
		"no answer":              {errors.New("connection refused"), false},
	} {
		if got := isRefusal(c.err); got != c.refusal {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// What one certificate's Secret meets may last, and the other's renewal may be due.
func TestErrorsOfTheMomentAreTriedAgainSoon(t *testing.T) {
	limiter, last := retries(), time.Duration(0)
	for range 100 {
		last = limiter.When(reconcile.Request{})
	}
	if last != mostRetry || mostRetry > leastInterval {
		t.Errorf("after many errors it is tried again after %s", last)
	}
}

// Each certificate costs a CA, an HSM and an approver something. To issue one for the
// third time because somebody puts a former Secret back would never end.
func TestWhichSecretsAreContested(t *testing.T) {
	signed := func(revision int64, ago time.Duration, r record) cmapi.CertificateRequest {
		cr := *requestWith(condition(cmapi.CertificateRequestConditionReady, cmmeta.ConditionTrue, "Issued", ""))
		cr.Name, cr.Annotations, cr.Status.Certificate = requestName("web-x", revision), annotationsOf("ECDSA-P256", revision, r), []byte("x")
		cr.Status.Conditions[0].LastTransitionTime = new(metav1.NewTime(issuedAt.Add(-ago)))
		return cr
	}
	all := func(requests ...cmapi.CertificateRequest) []cmapi.CertificateRequest { return requests }
	r, asked := wanted(), wanted()
	asked.Renew = "now"
	repair, askedRepair := r, asked
	repair.Repair, askedRepair.Repair = true, true
	open := signed(3, time.Minute, repair)
	open.Status.Certificate = nil
	two := all(signed(2, 2*time.Minute, repair), signed(3, time.Minute, repair))
	for name, c := range map[string]struct {
		requests []cmapi.CertificateRequest
		want     record
		after    time.Duration
	}{
		"repaired twice":                     {two, r, 3 * time.Minute},
		"repaired twice after a wish":        {all(signed(2, 2*time.Minute, askedRepair), signed(3, time.Minute, askedRepair)), asked, 3 * time.Minute},
		"repaired, and renewed":              {all(signed(2, 2*time.Minute, repair), signed(3, time.Minute, r)), r, 0},
		"renewed, and repaired":              {all(signed(2, 2*time.Minute, r), signed(3, time.Minute, repair)), r, 0},
		"renewed every minute":               {all(signed(2, 2*time.Minute, r), signed(3, time.Minute, r)), r, 0},
		"repaired twice, of another wish":    {two, asked, 0},
		"repaired now and an hour ago":       {all(signed(2, time.Hour, repair), signed(3, time.Minute, repair)), r, 0},
		"repaired now and five minutes ago":  {all(signed(2, 5*time.Minute, repair), signed(3, time.Minute, repair)), r, 0},
		"repaired right after it was made":   {all(signed(3, time.Minute, repair)), r, 0},
		"whose last request came to nothing": {all(signed(2, 2*time.Minute, repair), open), r, 0},
	} {
		i := issuance{secretName: "web-x", requests: c.requests, now: issuedAt, state: state{Want: c.want}}
		if until := i.contestedUntil(3); until.After(issuedAt) != (c.after > 0) || c.after > 0 && until.Sub(issuedAt) != c.after {
			t.Errorf("a Secret %s: until %s", name, until)
		}
	}
}

func TestWhatIsARepair(t *testing.T) {
	for name, c := range map[string]struct {
		last, has int64 // has: the revision in the Secret; 0: there is none
		cause     string
		want      bool
	}{
		"the first":             {0, 0, reasonMissing, false},
		"the first of a copy":   {0, 3, reasonInvalid, false},
		"deleted":               {3, 0, reasonMissing, true},
		"changed":               {3, 3, reasonInvalid, true},
		"its key is another":    {3, 3, reasonKeyMismatch, true},
		"put back, and due":     {3, 2, reasonRenewalIsDue, true},
		"put back, and asked":   {3, 2, reasonRenewalAsked, true},
		"due":                   {3, 3, reasonRenewalIsDue, false},
		"expired":               {3, 3, reasonExpired, false},
		"asked for":             {3, 3, reasonRenewalAsked, false},
		"wanted in another way": {3, 3, reasonSpecChanged, false},
	} {
		i := issuance{}
		if c.has > 0 {
			i.state.Secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Annotations: annotationsOf("ECDSA-P256", c.has, wanted())}}
		}
		if got := i.repairs(c.cause, c.last); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestBackoffDoublesUpToAnHour(t *testing.T) {
	for attempt, want := range map[int64]time.Duration{0: time.Minute, 1: time.Minute, 2: 2 * time.Minute, 5: 16 * time.Minute, 6: 32 * time.Minute, 7: time.Hour, 1000: time.Hour} {
		if got := backoff(attempt); got != want {
			t.Errorf("after attempt %d: %s, want %s", attempt, got, want)
		}
	}
}

// What the API server refuses leaves no attempts to count.
func TestRefusalsAreTriedLessAndLessOften(t *testing.T) {
	for failing, want := range map[time.Duration]time.Duration{-time.Second: time.Minute, 0: time.Minute, time.Minute: time.Minute, 7 * time.Minute: 7 * time.Minute, 72 * time.Hour: time.Hour} {
		if got := asLongAgain(failing); got != want {
			t.Errorf("failing for %s: again after %s, want %s", failing, got, want)
		}
	}
	i := issuance{now: issuedAt}
	pending := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(issuedAt.Add(-10 * time.Minute))}}
	if got := i.asLongAgain(pending); got != 10*time.Minute {
		t.Errorf("ten minutes after the key was made: again after %s", got)
	}
}
