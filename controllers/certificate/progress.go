package certificate

import (
	"fmt"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
)

// phase of a CertificateRequest.
type phase int

const (
	phaseUnapproved phase = iota // nobody has approved or denied it
	phaseApproved                // the issuer has not signed it yet
	phaseSigned
	phaseDenied
	phaseFailed
)

// progress is how far a CertificateRequest is.
type progress struct {
	phase   phase
	message string
	// at is when it came to its end.
	at time.Time
}

// progressOf reads a CertificateRequest's status. It is pure.
func progressOf(cr *cmapi.CertificateRequest) progress {
	find := func(kind cmapi.CertificateRequestConditionType) cmapi.CertificateRequestCondition {
		for _, c := range cr.Status.Conditions {
			if c.Type == kind {
				return c
			}
		}
		return cmapi.CertificateRequestCondition{}
	}
	ready, denied, invalid := find(cmapi.CertificateRequestConditionReady), find(cmapi.CertificateRequestConditionDenied), find(cmapi.CertificateRequestConditionInvalidRequest)
	end := func(c cmapi.CertificateRequestCondition) time.Time {
		switch {
		case cr.Status.FailureTime != nil:
			return cr.Status.FailureTime.Time
		case c.LastTransitionTime != nil:
			return c.LastTransitionTime.Time
		}
		return cr.CreationTimestamp.Time
	}
	switch {
	case denied.Status == cmmeta.ConditionTrue:
		return progress{phaseDenied, fmt.Sprintf("CertificateRequest %q was denied by %s: %s", cr.Name, orNobody(denied.Reason), denied.Message), end(denied)}
	case ready.Reason == cmapi.CertificateRequestReasonDenied:
		return progress{phaseDenied, fmt.Sprintf("CertificateRequest %q was denied: %s", cr.Name, ready.Message), end(ready)}
	case invalid.Status == cmmeta.ConditionTrue:
		return progress{phaseFailed, fmt.Sprintf("CertificateRequest %q is invalid to its issuer: %s", cr.Name, invalid.Message), end(invalid)}
	case ready.Reason == cmapi.CertificateRequestReasonFailed:
		return progress{phaseFailed, fmt.Sprintf("CertificateRequest %q failed: %s", cr.Name, ready.Message), end(ready)}
	case ready.Status == cmmeta.ConditionTrue && len(cr.Status.Certificate) > 0:
		return progress{phaseSigned, "", end(ready)}
	case find(cmapi.CertificateRequestConditionApproved).Status == cmmeta.ConditionTrue:
		message := ""
		if ready.Message != "" {
			message = ": " + ready.Message
		}
		return progress{phase: phaseApproved, message: message}
	}
	return progress{phase: phaseUnapproved}
}

func orNobody(approver string) string {
	if approver == "" {
		return "an approver that gave no reason"
	}
	return approver
}

// approvalGrace is how long approval may take before its absence needs an
// explanation.
const approvalGrace = 15 * time.Second

// waitForApproval says what an unapproved request waits for.
func waitForApproval(cr *cmapi.CertificateRequest, now time.Time) error {
	waited := now.Sub(cr.CreationTimestamp.Time)
	if waited < approvalGrace {
		return conditions.Waiting(approvalGrace-max(waited, 0), v1alpha1.ReasonWaitingForApproval, "waiting for the approval of CertificateRequest %q", cr.Name)
	}
	message := fmt.Sprintf("waiting for approval: nothing approved CertificateRequest %q within %.0f s; run `cmctl approve -n %s %s`", cr.Name, approvalGrace.Seconds(), cr.Namespace, cr.Name)
	if cr.Spec.IssuerRef.Group == v1alpha1.GroupName {
		message = fmt.Sprintf("waiting for approval: nothing approved CertificateRequest %q within %.0f s; cert-manager's approver needs the right to approve signers pqcissuers.qtls.dev and pqcclusterissuers.qtls.dev (chart value certManager.approver.enabled), or run `cmctl approve -n %s %s`",
			cr.Name, approvalGrace.Seconds(), cr.Namespace, cr.Name)
	}
	return conditions.Stalled(v1alpha1.ReasonWaitingForApproval, "%s", message)
}

// A failed attempt is followed by another after leastBackoff at least, and
// mostBackoff at most.
const leastBackoff, mostBackoff = time.Minute, time.Hour

// backoff is how long to wait after a failed attempt: a minute, and twice as
// long after each further one, up to an hour.
func backoff(attempt int64) time.Duration {
	if attempt > 6 {
		return mostBackoff
	}
	return min(leastBackoff<<max(attempt-1, 0), mostBackoff)
}

// asLongAgain is how long to wait where attempts leave nothing to count them by:
// as long as they have failed already.
func asLongAgain(failing time.Duration) time.Duration {
	return min(max(failing, leastBackoff), mostBackoff)
}
