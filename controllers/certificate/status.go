package certificate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
)

// outcome is how one certificate stands after a reconciliation.
type outcome struct {
	status v1alpha1.IssuedCertificate
	// unusable says why the PQCCertificate is not ready, due why the
	// certificate is to be renewed though it serves on.
	unusable, due string
	// cause is that policy's reason.
	cause string
	// underway is the revision that is being issued; 0 if none is.
	underway int64
	// unknown says that it could not be found out how far an issuance is:
	// nothing that may belong to it is swept away.
	unknown bool
	// renewed is the value of the annotation qtls.dev/renew that it was issued
	// for.
	renewed string
	// inHSM says that the key of the certificate lies in HSMs; doubt what is wrong with it
	// in some of them, while it serves.
	inHSM bool
	doubt *conditions.Problem
	// err says what is waited for, or what failed.
	err error
}

// outcomeOf judges what there is. It is pure.
func outcomeOf(c *v1alpha1.PQCCertificate, s state, now time.Time) outcome {
	o := outcome{status: v1alpha1.IssuedCertificate{
		Algorithm:  s.Algorithm,
		SecretName: v1alpha1.CertificateSecretName(c.Name, s.Algorithm),
		Revision:   formerStatus(c, s.Algorithm).Revision,
	}}
	if s.Secret != nil {
		o.status.Revision = max(o.status.Revision, revisionOf(s.Secret))
		o.renewed = s.Has.Renew
		_, o.inHSM = s.presentKey()
	}
	if s.Pair != nil {
		leaf := s.Pair.Chain[0]
		o.status.SerialNumber = s.Pair.SerialNumber()
		o.status.NotBefore, o.status.NotAfter = new(metav1.NewTime(leaf.NotBefore)), new(metav1.NewTime(leaf.NotAfter))
	}
	if cause, message, violated := evaluate(unusable, s, now); violated {
		o.cause, o.unusable = cause, message
		return o
	}
	o.status.RenewalTime = new(metav1.NewTime(s.renewalTime()))
	if cause, message, violated := evaluate(renewal, s, now); violated {
		o.cause, o.due = cause, message
	}
	return o
}

// failed is the outcome when it could not be found out how a certificate
// stands. One that served a moment ago serves on: an error of the moment says
// nothing against it.
func failed(c *v1alpha1.PQCCertificate, algorithm v1alpha1.KeyAlgorithm, err error, now time.Time) outcome {
	status := formerStatus(c, algorithm)
	status.Algorithm, status.SecretName = algorithm, v1alpha1.CertificateSecretName(c.Name, algorithm)
	o := outcome{status: status, err: err, unknown: true}
	ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionReady)
	served := ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == c.Generation && status.NotAfter != nil && now.Before(status.NotAfter.Time)
	if served && passes(err) {
		o.due = err.Error()
	} else {
		o.unusable = err.Error()
	}
	return o
}

func formerStatus(c *v1alpha1.PQCCertificate, algorithm v1alpha1.KeyAlgorithm) v1alpha1.IssuedCertificate {
	for _, s := range c.Status.Certificates {
		if s.Algorithm == algorithm {
			return s
		}
	}
	return v1alpha1.IssuedCertificate{}
}

func (o outcome) violated() bool { return o.unusable != "" || o.due != "" }

// why the certificate has to be issued.
func (o outcome) why() string { return cmp.Or(o.unusable, o.due) }

// failure is the error of the moment, if there is one.
func (o outcome) failure() error {
	if isMomentary(o.err) {
		return fmt.Errorf("%s: %w", o.status.Algorithm, o.err)
	}
	return nil
}

// lookAfter is when time alone changes the outcome; 0 for never.
func (o outcome) lookAfter(now time.Time) time.Duration {
	var next time.Duration
	at := func(after time.Duration) {
		if after = max(after, soon); next == 0 || after < next {
			next = after
		}
	}
	if p, ok := conditions.AsProblem(o.err); ok && p.After > 0 {
		at(p.After)
	}
	if o.inHSM {
		at(lookForKey)
	}
	if o.unusable == "" {
		at(o.status.NotAfter.Sub(now))
		if o.due == "" {
			at(o.status.RenewalTime.Sub(now))
		}
	}
	return next
}

// summarise says in a status how all the certificates stand. It is pure.
func summarise(c *v1alpha1.PQCCertificate, outcomes []outcome, now time.Time) v1alpha1.PQCCertificateStatus {
	status := v1alpha1.PQCCertificateStatus{
		ObservedGeneration: c.Generation,
		Conditions:         slices.Clone(c.Status.Conditions),
		Renewed:            c.Status.Renewed,
	}
	asked := c.Annotations[v1alpha1.AnnotationRenew]
	renewed := true
	for _, o := range outcomes {
		if o.underway != 0 {
			o.status.RequestName = requestName(o.status.SecretName, o.underway)
		}
		status.Certificates = append(status.Certificates, o.status)
		if end := o.status.NotAfter; end != nil && (status.NotAfter == nil || end.Before(status.NotAfter)) {
			status.NotAfter = end
		}
		renewed = renewed && o.unusable == "" && o.renewed == asked
	}
	if renewed && asked != "" {
		status.Renewed = strings.ToValidUTF8(asked[:min(len(asked), 253)], "")
	}
	ready, issuing := readiness(outcomes), progressing(outcomes)
	conditions.Set(&status.Conditions, v1alpha1.ConditionReady, ready.status, ready.reason, ready.message, c.Generation, now)
	conditions.Set(&status.Conditions, v1alpha1.ConditionIssuing, issuing.status, issuing.reason, issuing.message, c.Generation, now)
	return status
}

// verdict is what a condition says.
type verdict struct {
	status  metav1.ConditionStatus
	reason  string
	message string
}

// readiness is True while every certificate is what the spec says, also when
// one of them is being renewed.
func readiness(outcomes []outcome) verdict {
	v := verdict{status: metav1.ConditionTrue, reason: v1alpha1.ReasonIssued}
	var good, doubtful []string
	var bad []outcome
	for _, o := range outcomes {
		if o.unusable == "" {
			good = append(good, fmt.Sprintf("%s until %s", o.status.Algorithm, stamp(o.status.NotAfter.Time)))
			if o.doubt != nil {
				doubtful = append(doubtful, fmt.Sprintf("%s: %s", o.status.Algorithm, o.doubt.Message))
				if v.status == metav1.ConditionTrue && severity[o.doubt.Reason] > severity[v.reason] {
					v.reason = o.doubt.Reason
				}
			}
			continue
		}
		if v.status == metav1.ConditionTrue {
			v.status, v.reason = metav1.ConditionFalse, reasonOf(o.err)
		}
		bad = append(bad, o)
	}
	v.message = "issued: " + strings.Join(good, ", ")
	switch {
	case len(bad) > 0:
		v.message = describe(bad)
	case len(doubtful) > 0: // it serves, as far as others have the key
		v.message += "; " + strings.Join(doubtful, "; ")
	}
	return v
}

// progressing is True while a certificate is on its way, and False when there
// is nothing to do or the last attempt failed.
func progressing(outcomes []outcome) verdict {
	v := verdict{status: metav1.ConditionFalse, reason: v1alpha1.ReasonIssued, message: "nothing is being issued"}
	var underway []outcome
	for _, o := range outcomes {
		if !o.violated() {
			continue
		}
		reason := reasonOf(o.err)
		if len(underway) == 0 || severity[reason] > severity[v.reason] {
			v.reason, v.status = reason, metav1.ConditionTrue
			if severity[reason] >= failing {
				v.status = metav1.ConditionFalse
			}
		}
		underway = append(underway, o)
	}
	if len(underway) > 0 {
		v.message = describe(underway)
	}
	return v
}

// severity orders the reasons: the gravest names the condition. From failing
// on, nothing is under way until a user or time changes something.
const failing = 11

var severity = map[string]int{
	v1alpha1.ReasonIssuing:             1,
	v1alpha1.ReasonWaitingForApproval:  2,
	v1alpha1.ReasonIssuerNotReady:      3,
	v1alpha1.ReasonIssuerNotFound:      4,
	v1alpha1.ReasonHSMNotReady:         5,
	v1alpha1.ReasonHSMPoolNotFound:     6,
	v1alpha1.ReasonKeyNotInEveryMember: 7,
	v1alpha1.ReasonKeyNotFound:         8,
	v1alpha1.ReasonKeyMismatch:         9,
	v1alpha1.ReasonKeyNotProtected:     10,
	v1alpha1.ReasonRequestFailed:       failing,
	v1alpha1.ReasonDenied:              failing + 1,
	v1alpha1.ReasonAuthorityNotAllowed: failing + 2,
	v1alpha1.ReasonCertManagerNotFound: failing + 3,
	v1alpha1.ReasonSecretNotOwned:      failing + 4,
	v1alpha1.ReasonSecretInvalid:       failing + 5,
}

// doubts are what may be wrong with a key in some member of its pool while a certificate
// serves with it.
var doubts = []string{v1alpha1.ReasonKeyNotInEveryMember, v1alpha1.ReasonKeyMismatch, v1alpha1.ReasonKeyNotProtected}

func reasonOf(err error) string {
	if p, ok := conditions.AsProblem(err); ok {
		return p.Reason
	}
	return v1alpha1.ReasonIssuing
}

// describe says of certificates what they lack and what that waits for; of
// several with one trouble only once.
func describe(outcomes []outcome) string {
	var troubles []string
	algorithms := map[string][]string{}
	for _, o := range outcomes {
		trouble := o.why()
		if o.err != nil && o.err.Error() != trouble {
			trouble += ": " + o.err.Error()
		}
		if algorithms[trouble] == nil {
			troubles = append(troubles, trouble)
		}
		algorithms[trouble] = append(algorithms[trouble], string(o.status.Algorithm))
	}
	for i, trouble := range troubles {
		troubles[i] = strings.Join(algorithms[trouble], ", ") + ": " + trouble
	}
	return strings.Join(troubles, "; ")
}

// report writes the status if it has changed, and an event for each condition
// that has.
func (r *Reconciler) report(ctx context.Context, c *v1alpha1.PQCCertificate, after v1alpha1.PQCCertificateStatus) error {
	if equality.Semantic.DeepEqual(c.Status, after) {
		return nil
	}
	before := c.DeepCopy()
	c.Status = after
	if written, err := conditions.Write(ctx, r.Status(), before, c); !written {
		return err
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionIssuing} {
		was, is := meta.FindStatusCondition(before.Status.Conditions, kind), meta.FindStatusCondition(after.Conditions, kind)
		if was != nil && was.Status == is.Status && was.Reason == is.Reason || kind == v1alpha1.ConditionIssuing && is.Reason == v1alpha1.ReasonIssued {
			continue
		}
		level := corev1.EventTypeNormal
		if severity[is.Reason] >= failing || slices.Contains(doubts, is.Reason) {
			level = corev1.EventTypeWarning
		}
		r.Recorder.Eventf(c, nil, level, is.Reason, "Reconcile", "%s: %s", kind, conditions.Shorten(is.Message, 900))
	}
	return nil
}
