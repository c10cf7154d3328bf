package certificate

import (
	"context"
	"errors"
	"fmt"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/openssl"
	"qtls.dev/qtls/internal/pki"
)

const (
	// soon is when to look again at what is about to change anyway.
	soon = time.Second
	// lookForHSM is when to try again what an HSM did not do.
	lookForHSM = 10 * time.Second
	// lookForCertManager is when to look again whether cert-manager is installed, and
	// lookForWebhook whether its webhook answers, which may just be starting.
	lookForCertManager = 10 * time.Second
	lookForWebhook     = 30 * time.Second
	// lookForKey is how often is looked whether a key is still in its HSMs.
	lookForKey = time.Minute
	// lookForGateway is when to look again whether gateways have followed, which
	// may be held for weeks.
	lookForGateway = time.Minute
)

// issue brings one certificate as far as it goes now.
func (r *Reconciler) issue(ctx context.Context, c *v1alpha1.PQCCertificate, algorithm v1alpha1.KeyAlgorithm, requests []cmapi.CertificateRequest, now time.Time) outcome {
	i := issuance{r: r, certificate: c, algorithm: algorithm, requests: requests, now: now,
		secretName: v1alpha1.CertificateSecretName(c.Name, algorithm)}
	secret, err := i.ownSecret(ctx, i.secretName)
	if err != nil {
		return failed(c, algorithm, err, now)
	}
	i.state = i.observe(secret)
	o := i.withKey(ctx, outcomeOf(c, i.state, now))
	if !o.violated() || o.err != nil {
		return o
	}
	if o.underway, o.err = i.advance(ctx, o); o.err != nil {
		o.unknown = o.underway == 0
		return o
	}

	// It is issued: say what there is now.
	if secret, err = i.ownSecret(ctx, i.secretName); err != nil {
		return failed(c, algorithm, err, now)
	}
	return outcomeOf(c, i.observe(secret), now)
}

// issuance is the work on one certificate.
type issuance struct {
	r           *Reconciler
	certificate *v1alpha1.PQCCertificate
	algorithm   v1alpha1.KeyAlgorithm
	secretName  string
	requests    []cmapi.CertificateRequest
	state       state
	now         time.Time
}

func (i *issuance) observe(secret *corev1.Secret) state {
	var before time.Duration
	if d := i.certificate.Spec.RenewBefore; d != nil {
		before = d.Duration
	}
	return observe(i.algorithm, recordOf(i.certificate, i.algorithm), before, secret)
}

// advance takes the issuance to its end, or as far as it goes now: the error
// says what it waits for. It returns the revision under way, 0 if none is.
func (i *issuance) advance(ctx context.Context, o outcome) (underway int64, err error) {
	if !i.r.requests.Installed() {
		return 0, conditions.Waiting(lookForCertManager, v1alpha1.ReasonCertManagerNotFound,
			"cert-manager is not installed: the kind CertificateRequest (cert-manager.io/v1) is not there; install cert-manager, and this goes on")
	}
	if err := i.authorityRefused(ctx); err != nil { // before a key is made
		return 0, err
	}
	pending, key, err := i.pendingKey(ctx, o)
	if err != nil {
		return 0, err
	}
	underway = revisionOf(pending)
	cr, err := i.request(ctx, pending, key)
	if err != nil {
		return underway, err
	}
	p := progressOf(cr)
	var chain pki.Chain
	var authorities []byte
	if p.phase == phaseSigned {
		if chain, authorities, err = i.accept(cr, key); errors.Is(err, openssl.ErrUnavailable) {
			return underway, err
		} else if err != nil {
			p = progress{phase: phaseFailed, at: p.at, message: fmt.Sprintf("%s signed CertificateRequest %q, but the certificate is of no use: %v", i.state.Want.issuer(), cr.Name, err)}
		}
	}
	switch p.phase {
	case phaseSigned:
		if begin := chain.Leaf().NotBefore; i.state.serves(i.now) && i.now.Before(begin) { // the issuer's clock is ahead
			return underway, conditions.Waiting(begin.Sub(i.now), v1alpha1.ReasonIssuing, "%s signed CertificateRequest %q; the certificate is valid from %s on, and the present one serves until then", i.state.Want.issuer(), cr.Name, stamp(begin))
		}
		return underway, i.store(ctx, pending, chain, authorities)
	case phaseDenied, phaseFailed:
		return underway, i.retry(ctx, cr, pending, key, p)
	case phaseApproved:
		return underway, i.waitForIssuer(ctx, cr, p)
	}
	if err := i.issuerProblem(ctx); err != nil {
		return underway, err
	}
	return underway, waitForApproval(cr, i.now)
}

// isMomentary says whether an error is one to try again after, later and later.
func isMomentary(err error) bool {
	var p *conditions.Problem
	return err != nil && !errors.As(err, &p)
}

// passes says whether an error of reading the Secret is gone in a moment, so that
// nothing is to be said of the certificate: the API server may be away, and somebody
// may write it just now. What it refuses to show, it may refuse for ever.
func passes(err error) bool {
	var p *conditions.Problem
	if errors.As(err, &p) {
		return p.Reason == v1alpha1.ReasonIssuing
	}
	return !isRefusal(err)
}
