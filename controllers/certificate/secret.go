package certificate

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/pki"
)

// ownSecret reads a Secret; nil if there is none. One that is not this
// PQCCertificate's is an error: it is never overwritten. One that was is so again.
func (i *issuance) ownSecret(ctx context.Context, name string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := i.r.APIReader.Get(ctx, client.ObjectKey{Namespace: i.certificate.Namespace, Name: name}, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("Secret %q: %w", name, err)
	case metav1.IsControlledBy(secret, i.certificate):
		return secret, nil
	case restored(secret, i.certificate):
		if name == i.secretName && secret.Type != corev1.SecretTypeTLS {
			return nil, conditions.Stalled(v1alpha1.ReasonSecretNotOwned,
				"Secret %q in namespace %q is of type %s, which cannot be changed, and so cannot be taken over; make it anew with type %s", name, secret.Namespace, secret.Type, corev1.SecretTypeTLS)
		}
		return secret, i.adopt(ctx, secret)
	}
	return nil, conditions.Stalled(v1alpha1.ReasonSecretNotOwned,
		"Secret %q exists in namespace %q and is not this PQCCertificate's; delete or rename it, or rename the PQCCertificate; or, for it to be taken over, give it the label %s=%s and no owner that controls it (metadata.ownerReferences)",
		name, secret.Namespace, v1alpha1.LabelCertificate, v1alpha1.LabelValue(i.certificate.Name))
}

// restored says whether a Secret comes from a backup of a PQCCertificate's, or was
// marked as its own: it has the label, and nobody controls it.
func restored(secret *corev1.Secret, c *v1alpha1.PQCCertificate) bool {
	return metav1.GetControllerOf(secret) == nil && secret.Labels[v1alpha1.LabelCertificate] == v1alpha1.LabelValue(c.Name)
}

// adopt a Secret as it is.
func (i *issuance) adopt(ctx context.Context, secret *corev1.Secret) error {
	before := secret.DeepCopy()
	secret.OwnerReferences = append(secret.OwnerReferences, *metav1.NewControllerRef(i.certificate, certificateKind))
	err := i.r.Patch(ctx, secret, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(v1alpha1.FieldManager))
	return notWritten(err, secret.Name)
}

// notWritten says what the error of writing a Secret means, if there is one.
func notWritten(err error, name string) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err):
		return conditions.Waiting(soon, v1alpha1.ReasonIssuing, "Secret %q has just been changed by somebody else", name)
	case isRefusal(err):
		return conditions.Waiting(leastBackoff, v1alpha1.ReasonRequestFailed, "the API server refuses Secret %q: %v", name, err)
	}
	return fmt.Errorf("Secret %q: %w", name, err)
}

// store writes the certificate's Secret. Without force, server-side apply
// refuses to take over a Secret of the name that somebody else has just made.
func (i *issuance) store(ctx context.Context, pending *corev1.Secret, chain pki.Chain, authorities []byte) error {
	r := i.state.Want
	r.Maker = makerOf(pending)
	issued := metav1.NewTime(i.now.Truncate(time.Second))
	r.Issued = &issued
	next, _ := keypair.ParseReference(pending.Data[corev1.TLSPrivateKeyKey])
	former, dropped := i.state.formerKeys(next, i.r.Clock.Now()) // HSMs may have taken long until here
	data := contents{chain: pki.CertificatesPEM(chain.Certificates...), key: pending.Data[corev1.TLSPrivateKeyKey], ca: authorities, former: former}
	options := []client.ApplyOption{client.FieldOwner(v1alpha1.FieldManager)}
	secret := buildSecret(i.certificate, i.algorithm, revisionOf(pending), r, data, "", "")
	if s := i.state.Secret; s != nil {
		secret = buildSecret(i.certificate, i.algorithm, revisionOf(pending), r, data, s.UID, s.ResourceVersion)
		options = append(options, client.ForceOwnership)
	}
	if err := notWritten(i.r.Apply(ctx, secret, options...), i.secretName); err != nil {
		return err
	}
	for _, k := range dropped {
		i.r.Recorder.Eventf(i.certificate, nil, corev1.EventTypeWarning, eventKeyLeft, "Retire",
			"HSMPool %q: former key %q stays in the token: there are more to destroy than the annotation %s takes; once nobody uses the key, destroy it with the HSM's own tools", k.Pool, k.Label, v1alpha1.AnnotationPreviousKeys)
	}
	verb := "issued"
	if revisionOf(pending) > 1 {
		verb = "renewed"
	}
	i.r.Recorder.Eventf(i.certificate, nil, corev1.EventTypeNormal, v1alpha1.ReasonIssued, "Issue", "%s the %s certificate (revision %d, serial number %s, until %s) into Secret %q",
		verb, i.algorithm, revisionOf(pending), chain.Leaf().SerialNumber.Text(16), stamp(chain.Leaf().NotAfter), i.secretName)
	if left := i.retireFormer(ctx, data.former); len(left) < len(data.former) && secret.UID != nil && secret.ResourceVersion != nil {
		data.former = left
		secret = buildSecret(i.certificate, i.algorithm, revisionOf(pending), r, data, *secret.UID, *secret.ResourceVersion)
		// Where this fails they are retired again, which does no harm.
		_ = i.r.Apply(ctx, secret, options...)
	}
	return nil
}
