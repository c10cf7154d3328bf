package certificate

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/pki"
)

const (
	// defaultDuration of validity, as the API defaults it.
	defaultDuration = 2160 * time.Hour
	// leastInterval between two renewals, whatever renewBefore and an
	// authority's end leave of a certificate's life.
	leastInterval = time.Minute
)

// Reasons why a certificate has to be issued: the action of the event that says
// so.
const (
	reasonMissing       = "SecretMissing"
	reasonInvalid       = "SecretInvalid"
	reasonKeyMismatch   = "KeyMismatch"
	reasonAlgorithm     = "AlgorithmChanged"
	reasonSpecChanged   = "SpecChanged"
	reasonNotItsOwn     = "CertificateChanged"
	reasonExpired       = "Expired"
	reasonRenewalAsked  = "RenewalRequested"
	reasonRenewalIsDue  = "RenewalDue"
	reasonRequestedLost = "RequestedLost"
	reasonKeyLost       = "KeyLost"
)

// state is what there is of one certificate, and what is wanted. It is the
// input of every policy.
type state struct {
	Algorithm   v1alpha1.KeyAlgorithm
	Want        record
	RenewBefore time.Duration // 0: the default
	// Secret is nil when there is none.
	Secret *corev1.Secret
	// Pair is what the Secret holds, or PairError why it cannot be read.
	Pair      *keypair.KeyPair
	PairError error
	// Has is what the Secret says was asked for it.
	Has record
}

// observe reads a certificate's Secret, which may be nil.
func observe(algorithm v1alpha1.KeyAlgorithm, want record, renewBefore time.Duration, secret *corev1.Secret) state {
	s := state{Algorithm: algorithm, Want: want, RenewBefore: renewBefore, Secret: secret}
	if secret != nil {
		s.Pair, s.PairError = keypair.ParseStored(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
		s.Has = parseRecord(secret.Annotations[v1alpha1.AnnotationRequested])
	}
	return s
}

// policy says whether a certificate has to be issued, and why.
type policy func(s state, now time.Time) (reason, message string, violated bool)

// unusable are the policies of a certificate that is not what the spec says:
// until it is issued the PQCCertificate is not ready.
var unusable = []policy{secretMissing, secretInvalid, algorithmDiffers, requestedLost, specChanged, notItsOwn, expired}

// renewal are those of a certificate that serves on until the next one comes.
var renewal = []policy{renewalRequested, renewalDue}

// evaluate returns the first violation of a chain of policies. Each policy may
// rely on those before it.
func evaluate(chain []policy, s state, now time.Time) (reason, message string, violated bool) {
	for _, p := range chain {
		if reason, message, violated := p(s, now); violated {
			return reason, message, true
		}
	}
	return "", "", false
}

func secretMissing(s state, _ time.Time) (string, string, bool) {
	return reasonMissing, "its Secret is not there", s.Secret == nil
}

func secretInvalid(s state, _ time.Time) (string, string, bool) {
	if s.PairError == nil {
		return "", "", false
	}
	reason := reasonInvalid
	if errors.Is(s.PairError, keypair.ErrKeyMismatch) {
		reason = reasonKeyMismatch
	}
	return reason, fmt.Sprintf("its Secret %q was changed: %v", s.Secret.Name, s.PairError), true
}

func algorithmDiffers(s state, _ time.Time) (string, string, bool) {
	return reasonAlgorithm, fmt.Sprintf("its Secret was changed: it holds a key of algorithm %s", s.Pair.Algorithm), s.Pair.Algorithm != s.Algorithm
}

func requestedLost(s state, _ time.Time) (string, string, bool) {
	return reasonRequestedLost, fmt.Sprintf("its Secret was changed: the annotation %s is gone or does not parse", v1alpha1.AnnotationRequested), s.Has.Issued == nil
}

func specChanged(s state, _ time.Time) (string, string, bool) {
	fields := s.Has.changes(s.Want)
	return reasonSpecChanged, fmt.Sprintf("the spec changed in %s", strings.Join(fields, ", ")), len(fields) > 0
}

// notItsOwn is a sound pair that somebody has put in place of the one that was
// issued: the annotation says what was asked for, and the certificate what it is.
func notItsOwn(s state, _ time.Time) (string, string, bool) {
	err := pki.Wanted{Names: s.Want.names(), IsCA: s.Want.IsCA, Usages: s.Want.extendedUsages()}.Describes(s.Pair.Chain[0])
	return reasonNotItsOwn, fmt.Sprintf("its Secret was changed: of the certificate that is there now: %v", err), err != nil
}

func expired(s state, now time.Time) (string, string, bool) {
	end := s.Pair.Chain[0].NotAfter
	return reasonExpired, fmt.Sprintf("it expired at %s", stamp(end)), !now.Before(end)
}

func renewalRequested(s state, _ time.Time) (string, string, bool) {
	return reasonRenewalAsked, fmt.Sprintf("annotation %s has the new value %q", v1alpha1.AnnotationRenew, s.Want.Renew), s.Want.Renew != "" && s.Want.Renew != s.Has.Renew
}

func renewalDue(s state, now time.Time) (string, string, bool) {
	at := s.renewalTime()
	return reasonRenewalIsDue, fmt.Sprintf("it was due for renewal at %s", stamp(at)), !now.Before(at)
}

// serves says whether clients take what the Secret holds, whatever the spec says by
// now.
func (s state) serves(now time.Time) bool {
	return s.Pair != nil && !now.Before(s.Pair.Chain[0].NotBefore) && now.Before(s.Pair.Chain[0].NotAfter)
}

// renewalTime is renewBefore, by default a third of the life that the issuer
// gave it, before the end. It is only asked of a certificate that is usable.
func (s state) renewalTime() time.Time {
	end := s.Pair.Chain[0].NotAfter
	life := end.Sub(s.Has.Issued.Time)
	before := s.RenewBefore
	if before <= 0 || before >= life {
		before = life / 3
	}
	at := end.Add(-before)
	if earliest := s.Has.Issued.Add(leastInterval); at.Before(earliest) {
		at = earliest
	}
	return at.Truncate(time.Second)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
