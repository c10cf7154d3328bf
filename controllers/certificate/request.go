package certificate

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/openssl"
	"qtls.dev/qtls/internal/pki"
)

// request finds or makes the CertificateRequest of the revision under way.
func (i *issuance) request(ctx context.Context, pending *corev1.Secret, key crypto.Signer) (*cmapi.CertificateRequest, error) {
	name := requestName(i.secretName, revisionOf(pending))
	for n := range i.requests {
		cr := &i.requests[n]
		if cr.Name != name {
			continue
		}
		fits, err := requestIsFor(cr, key.Public())
		if err != nil {
			return nil, err
		}
		if fits && parseRecord(cr.Annotations[v1alpha1.AnnotationRequested]).fulfils(i.state.Want) {
			return cr, nil
		}
		// It is of an earlier key, which is gone.
		if err := i.r.delete(ctx, cr); err != nil {
			return nil, err
		}
	}
	return i.create(ctx, pending, key, 1)
}

// requestIsFor says whether a CertificateRequest is for a key. Its error is
// openssl.ErrUnavailable: that could not be found out.
func requestIsFor(cr *cmapi.CertificateRequest, public crypto.PublicKey) (bool, error) {
	read := func() (*x509.CertificateRequest, error) { return pki.ParseRequest(cr.Spec.Request) }
	if carried := cr.Annotations[v1alpha1.AnnotationRequest]; carried != "" {
		read = func() (*x509.CertificateRequest, error) { return pki.OpenCarrier(cr.Spec.Request, []byte(carried)) }
	}
	csr, err := read()
	if errors.Is(err, openssl.ErrUnavailable) {
		return false, err
	}
	return err == nil && pki.SameKey(csr.PublicKey, public), nil
}

func (i *issuance) create(ctx context.Context, pending *corev1.Secret, key crypto.Signer, attempt int64) (*cmapi.CertificateRequest, error) {
	want := i.state.Want
	want.Repair = parseRecord(pending.Annotations[v1alpha1.AnnotationRequested]).Repair
	cr, err := buildRequest(i.certificate, i.algorithm, revisionOf(pending), attempt, want, key)
	if err != nil {
		return nil, err
	}
	err = i.r.Create(ctx, cr, client.FieldOwner(v1alpha1.FieldManager))
	switch {
	case err == nil:
		return cr, nil
	case apierrors.IsAlreadyExists(err):
		return nil, i.inTheWay(ctx, pending, cr.Name)
	case meta.IsNoMatchError(err):
		return nil, conditions.Waiting(lookForCertManager, v1alpha1.ReasonCertManagerNotFound,
			"cert-manager is no longer installed: the kind CertificateRequest (cert-manager.io/v1) is gone")
	case isWebhookAway(err):
		return nil, conditions.Waiting(lookForWebhook, v1alpha1.ReasonCertManagerNotFound, "cert-manager's webhook, which has to admit CertificateRequest %q, does not answer: %v", cr.Name, err)
	case isRefusal(err):
		return nil, conditions.Waiting(i.asLongAgain(pending), v1alpha1.ReasonRequestFailed, "the API server refuses CertificateRequest %q: %v", cr.Name, err)
	}
	return nil, fmt.Errorf("CertificateRequest %q: %w", cr.Name, err)
}

// asLongAgain is when to try again what has not been possible since the key was
// made.
func (i *issuance) asLongAgain(pending *corev1.Secret) time.Duration {
	return asLongAgain(i.now.Sub(pending.CreationTimestamp.Time))
}

// isRefusal says whether the API server, or an admission webhook, will not have
// an object, as opposed to being away or busy.
func isRefusal(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// isWebhookAway says whether the API server could not ask cert-manager's webhook,
// which it names: its chart has the name.
func isWebhookAway(err error) bool {
	return apierrors.IsInternalError(err) && strings.Contains(err.Error(), `failed calling webhook "webhook.cert-manager.io"`)
}

// inTheWay says what to do about a CertificateRequest of the name that is
// needed, which the cache did not show.
func (i *issuance) inTheWay(ctx context.Context, pending *corev1.Secret, name string) error {
	cr := &cmapi.CertificateRequest{}
	err := i.r.APIReader.Get(ctx, client.ObjectKey{Namespace: i.certificate.Namespace, Name: name}, cr)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("CertificateRequest %q: %w", name, err)
	}
	if err == nil && !metav1.IsControlledBy(cr, i.certificate) {
		return conditions.Waiting(i.asLongAgain(pending), v1alpha1.ReasonRequestFailed, "CertificateRequest %q exists in namespace %q and is not this PQCCertificate's; delete it", name, cr.Namespace)
	}
	return conditions.Waiting(soon, v1alpha1.ReasonIssuing, "CertificateRequest %q was made a moment ago", name)
}

// accept reads the certificate that was issued and finds it fit, or says why
// not.
func (i *issuance) accept(cr *cmapi.CertificateRequest, key crypto.Signer) (chain pki.Chain, authorities []byte, err error) {
	certs, err := keypair.ParseCertificates(cr.Status.Certificate)
	if err != nil {
		return chain, nil, fmt.Errorf("status.certificate: %w", err)
	}
	var cas []*x509.Certificate
	if len(cr.Status.CA) > 0 {
		if cas, err = keypair.ParseCertificates(cr.Status.CA); err != nil {
			return chain, nil, fmt.Errorf("status.ca: %w", err)
		}
	}
	if chain, err = pki.NewChain(certs[0], slices.Concat(certs[1:], cas), i.now); err != nil {
		return chain, nil, err
	}
	anchors := cas
	if len(anchors) == 0 {
		anchors = []*x509.Certificate{chain.Anchor}
	}
	return chain, pki.CertificatesPEM(anchors...), chain.Check(i.wanted(key), cas, i.now)
}

func (i *issuance) wanted(key crypto.Signer) pki.Wanted {
	want := i.state.Want
	return pki.Wanted{Key: key.Public(), Names: want.names(), IsCA: want.IsCA, Usages: want.extendedUsages()}
}

// retry makes a new CertificateRequest in place of one that failed, when it is
// time.
func (i *issuance) retry(ctx context.Context, cr *cmapi.CertificateRequest, pending *corev1.Secret, key crypto.Signer, p progress) error {
	next := p.at.Add(backoff(attemptOf(cr)))
	if i.now.Before(next) {
		reason := v1alpha1.ReasonRequestFailed
		if p.phase == phaseDenied {
			reason = v1alpha1.ReasonDenied
		}
		return conditions.Waiting(next.Sub(i.now), reason, "%s; next attempt at %s (to try at once, give annotation %s a new value)", p.message, stamp(next), v1alpha1.AnnotationRenew)
	}
	if err := i.r.delete(ctx, cr); err != nil {
		return err
	}
	fresh, err := i.create(ctx, pending, key, attemptOf(cr)+1)
	if err != nil {
		return err
	}
	return waitForApproval(fresh, i.now)
}
