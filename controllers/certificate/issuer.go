package certificate

import (
	"context"
	"slices"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/issuers"
)

// waitForIssuer says what an approved request waits for.
func (i *issuance) waitForIssuer(ctx context.Context, cr *cmapi.CertificateRequest, p progress) error {
	if err := i.issuerProblem(ctx); err != nil {
		return err
	}
	return conditions.Waiting(0, v1alpha1.ReasonIssuing, "%s has not signed CertificateRequest %q yet%s", i.state.Want.issuer(), cr.Name, p.message)
}

// issuer that is named, if it is one of ours. Of others, nil, their message in the
// CertificateRequest says what is wrong.
func (i *issuance) issuer(ctx context.Context) (client.Object, error) {
	ref := i.state.Want.Issuer
	issuer := issuers.New(ref.Kind)
	if ref.Group != v1alpha1.GroupName || issuer == nil {
		return nil, nil
	}
	key := client.ObjectKey{Name: ref.Name}
	if ref.Kind == issuers.Kind {
		key.Namespace = i.certificate.Namespace
	}
	if err := i.r.Get(ctx, key, issuer); apierrors.IsNotFound(err) {
		return nil, conditions.Stalled(v1alpha1.ReasonIssuerNotFound, "issuerRef: %s is not there; create it", i.state.Want.issuer())
	} else if err != nil {
		return nil, err
	}
	return issuer, nil
}

// authorityRefused says that the issuer does not sign what is wanted, an authority.
// Whether it is there is told later.
func (i *issuance) authorityRefused(ctx context.Context) error {
	if !i.state.Want.IsCA {
		return nil
	}
	issuer, err := i.issuer(ctx)
	switch _, missing := conditions.AsProblem(err); {
	case missing:
		return nil
	case err != nil, issuer == nil:
		return err
	}
	if err := issuers.RefusesAuthorities(issuer); err != nil {
		return conditions.Stalled(v1alpha1.ReasonAuthorityNotAllowed, "issuerRef: %v", err)
	}
	return nil
}

// issuerProblem is what keeps an issuer from signing.
func (i *issuance) issuerProblem(ctx context.Context) error {
	issuer, err := i.issuer(ctx)
	if err != nil || issuer == nil {
		return err
	}
	_, status := issuers.Parts(issuer)
	if ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady); ready != nil && ready.Status == metav1.ConditionFalse && !signsFor(status.Authorities, i.algorithm) {
		return conditions.Stalled(v1alpha1.ReasonIssuerNotReady, "issuerRef: %s is not ready: %s", i.state.Want.issuer(), ready.Message)
	}
	return nil
}

// signsFor says whether there is an authority for keys of an algorithm: an issuer
// that is not ready may lack the other family's alone.
func signsFor(authorities []v1alpha1.Authority, algorithm v1alpha1.KeyAlgorithm) bool {
	own, ok := algorithms.LookupKeyAlgorithm(algorithm)
	return ok && slices.ContainsFunc(authorities, func(a v1alpha1.Authority) bool {
		is, ok := algorithms.LookupKeyAlgorithm(v1alpha1.KeyAlgorithm(a.Algorithm))
		return ok && is.Family == own.Family
	})
}
