package certificate

import (
	"crypto"
	"fmt"
	"strconv"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	metav1apply "k8s.io/client-go/applyconfigurations/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/pki"
)

var certificateKind = v1alpha1.GroupVersion.WithKind("PQCCertificate")

// pendingName is the Secret that keeps the key while its certificate is being
// issued.
func pendingName(secretName string) string { return secretName + pendingSuffix }

const pendingSuffix = "-next"

// requestName is the CertificateRequest of a revision: always the same one, so
// that an operator that is started again finds what it began.
func requestName(secretName string, revision int64) string {
	return secretName + "-" + strconv.FormatInt(revision, 10)
}

func labelsOf(c *v1alpha1.PQCCertificate) map[string]string {
	return map[string]string{
		v1alpha1.LabelManagedBy:   v1alpha1.LabelManagedByValue,
		v1alpha1.LabelCertificate: v1alpha1.LabelValue(c.Name),
	}
}

func annotationsOf(algorithm v1alpha1.KeyAlgorithm, revision int64, r record) map[string]string {
	return map[string]string{
		v1alpha1.AnnotationAlgorithm: string(algorithm),
		v1alpha1.AnnotationRevision:  strconv.FormatInt(revision, 10),
		v1alpha1.AnnotationRequested: r.String(),
	}
}

// revisionOf an object; 0 when it says none.
func revisionOf(o metav1.Object) int64 { return counter(o, v1alpha1.AnnotationRevision) }

func attemptOf(o metav1.Object) int64 { return max(counter(o, v1alpha1.AnnotationAttempt), 1) }

func counter(o metav1.Object, annotation string) int64 {
	n, err := strconv.ParseInt(o.GetAnnotations()[annotation], 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// buildPending is the Secret that keeps the key, or the reference to the key,
// of a revision under way.
func buildPending(c *v1alpha1.PQCCertificate, algorithm v1alpha1.KeyAlgorithm, revision int64, r record, key []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       c.Namespace,
			Name:            pendingName(v1alpha1.CertificateSecretName(c.Name, algorithm)),
			Labels:          labelsOf(c),
			Annotations:     annotationsOf(algorithm, revision, r),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c, certificateKind)},
		},
		Type:      corev1.SecretTypeOpaque,
		Immutable: new(true),
		Data:      map[string][]byte{corev1.TLSPrivateKeyKey: key},
	}
}

// buildRequest is the CertificateRequest of a revision.
func buildRequest(c *v1alpha1.PQCCertificate, algorithm v1alpha1.KeyAlgorithm, revision, attempt int64, r record, key crypto.Signer) (*cmapi.CertificateRequest, error) {
	secretName := v1alpha1.CertificateSecretName(c.Name, algorithm)
	annotations := annotationsOf(algorithm, revision, r)
	annotations[v1alpha1.AnnotationAttempt] = strconv.FormatInt(attempt, 10)
	annotations[cmapi.CertificateRequestPrivateKeyAnnotationKey] = pendingName(secretName)
	annotations[cmapi.CertificateRequestRevisionAnnotationKey] = strconv.FormatInt(revision, 10)

	request, err := pki.NewRequest(key, r.names())
	if err != nil {
		return nil, err
	}
	known, ok := algorithms.LookupKeyAlgorithm(algorithm)
	if !ok {
		return nil, fmt.Errorf("there is no key algorithm %q", algorithm)
	}
	// Only our issuers open a carrier; other issuers get the request itself.
	if known.Family == algorithms.PostQuantum && r.Issuer.Group == v1alpha1.GroupName {
		annotations[v1alpha1.AnnotationRequest] = string(request)
		if request, err = pki.NewCarrier(request); err != nil {
			return nil, err
		}
	}
	return &cmapi.CertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       c.Namespace,
			Name:            requestName(secretName, revision),
			Labels:          labelsOf(c),
			Annotations:     annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c, certificateKind)},
		},
		Spec: cmapi.CertificateRequestSpec{
			Duration:  &metav1.Duration{Duration: r.Duration.Duration},
			IssuerRef: cmmeta.IssuerReference{Name: r.Issuer.Name, Kind: r.Issuer.Kind, Group: r.Issuer.Group},
			Request:   request,
			IsCA:      r.IsCA,
			Usages:    r.keyUsages(),
		},
	}, nil
}

// contents of a certificate's Secret.
type contents struct {
	chain, key, ca []byte // PEM; ca may be empty
	// former are the keys in HSMs that were used before.
	former []formerKey
}

// buildSecret is the Secret of a certificate. Of one that is there already, it
// replaces exactly what was looked at: uid and resourceVersion say so.
func buildSecret(c *v1alpha1.PQCCertificate, algorithm v1alpha1.KeyAlgorithm, revision int64, r record, d contents, uid types.UID, resourceVersion string) *corev1apply.SecretApplyConfiguration {
	data := map[string][]byte{corev1.TLSCertKey: d.chain, corev1.TLSPrivateKeyKey: d.key}
	if len(d.ca) > 0 {
		data[corev1.ServiceAccountRootCAKey] = d.ca
	}
	annotations := annotationsOf(algorithm, revision, r)
	if former := formatFormerKeys(d.former); former != "" {
		annotations[v1alpha1.AnnotationPreviousKeys] = former
	}
	owner := metav1.NewControllerRef(c, certificateKind)
	secret := corev1apply.Secret(v1alpha1.CertificateSecretName(c.Name, algorithm), c.Namespace).
		WithLabels(labelsOf(c)).
		WithAnnotations(annotations).
		WithOwnerReferences(metav1apply.OwnerReference().
			WithAPIVersion(owner.APIVersion).WithKind(owner.Kind).WithName(owner.Name).WithUID(owner.UID).
			WithController(true).WithBlockOwnerDeletion(true)).
		WithType(corev1.SecretTypeTLS).
		WithData(data)
	if uid != "" {
		secret.WithUID(uid).WithResourceVersion(resourceVersion)
	}
	return secret
}
