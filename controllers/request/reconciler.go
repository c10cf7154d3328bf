// Package request signs approved cert-manager CertificateRequests whose
// issuerRef names a PQCIssuer or a PQCClusterIssuer: the external issuer of
// cert-manager's conventions.
package request

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/issuers"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/openssl"
	"qtls.dev/qtls/internal/pki"
)

// +kubebuilder:rbac:groups=cert-manager.io,resources=certificaterequests,verbs=get;list;watch
// +kubebuilder:rbac:groups=cert-manager.io,resources=certificaterequests/status,verbs=patch
// +kubebuilder:rbac:groups=qtls.dev,resources=pqcissuers;pqcclusterissuers;hsmpools,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// lookAgain is when a request is looked at again that waits for an object
// which is not watched for it.
const lookAgain = 15 * time.Second

// Reconciler signs CertificateRequests.
type Reconciler struct {
	client.Client
	// APIReader reads Secrets past the cache, which holds their metadata only.
	APIReader client.Reader
	Clock     clock.PassiveClock
	// Namespace of the operator, where PQCClusterIssuers' Secrets and HSMPools lie.
	Namespace string
	Recorder  events.EventRecorder
	// HSMs are the clients of HSMPools' members.
	HSMs *hsmpool.Clients

	// found are the authorities' keys that lie in HSMs.
	found hsmpool.Found
}

// Reconcile signs one request, or says why not.
func (r *Reconciler) Reconcile(ctx context.Context, key ctrl.Request) (ctrl.Result, error) {
	cr := &cmapi.CertificateRequest{}
	if err := r.Get(ctx, key.NamespacedName, cr); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !isOpen(cr) || !cr.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	now := r.Clock.Now()
	if denied := condition(cr, cmapi.CertificateRequestConditionDenied); denied != nil {
		return ctrl.Result{}, r.report(ctx, cr, verdict{reason: cmapi.CertificateRequestReasonDenied, message: "the request was denied: " + denied.Message}, now)
	}
	if condition(cr, cmapi.CertificateRequestConditionApproved) == nil {
		return ctrl.Result{}, nil // approval, when it comes, wakes us
	}

	issued, err := r.sign(ctx, cr, now)
	v, after := judge(cr, issued, err)
	if v == nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: after}, r.report(ctx, cr, *v, now)
}

// refusedError says that a request can never be signed as it is.
type refusedError struct{ error }

// refused is the error of a request that is refused, unless it says that what
// would sign it cannot do so at the moment.
func refused(err error) error {
	if _, told := conditions.AsProblem(err); told || errors.Is(err, openssl.ErrUnavailable) {
		return err
	}
	return refusedError{err}
}

// sign issues what a request asks for. Its error is a refusedError, a
// *conditions.Problem to wait for, or one of the moment.
func (r *Reconciler) sign(ctx context.Context, cr *cmapi.CertificateRequest, now time.Time) (*pki.Issued, error) {
	issuer := issuers.New(cr.Spec.IssuerRef.Kind)
	if issuer == nil {
		return nil, refusedError{fmt.Errorf("issuerRef.kind %q: group %s has the issuers %s and %s", cr.Spec.IssuerRef.Kind, v1alpha1.GroupName, issuers.Kind, issuers.ClusterKind)}
	}
	order, err := orderOf(cr)
	if err != nil {
		return nil, refused(err)
	}
	name := client.ObjectKey{Name: cr.Spec.IssuerRef.Name}
	if cr.Spec.IssuerRef.Kind == issuers.Kind {
		name.Namespace = cr.Namespace
	}
	if err := r.Get(ctx, name, issuer); apierrors.IsNotFound(err) {
		return nil, conditions.Stalled(v1alpha1.ReasonIssuerNotFound, "%s %q is not there; create it, and this request goes on", cr.Spec.IssuerRef.Kind, name)
	} else if err != nil {
		return nil, err
	}
	if order.IsCA {
		if err := issuers.RefusesAuthorities(issuer); err != nil {
			return nil, refusedError{err}
		}
	}
	spec, _ := issuers.Parts(issuer)
	if spec.SelfSigned != nil {
		return r.selfSign(ctx, cr, order, now)
	}
	keys := r.keys(issuers.SecretNamespace(issuer, r.Namespace))
	keys.Found = &r.found
	authorities, err := issuers.Load(ctx, keys, spec.CA, now)
	if err != nil {
		return nil, err
	}
	return signByFamily(cr, order, authorities, now)
}

// signByFamily signs with the authority of the key's family. It is pure but
// for the random numbers.
func signByFamily(cr *cmapi.CertificateRequest, order pki.Order, authorities issuers.Authorities, now time.Time) (*pki.Issued, error) {
	family, err := pki.FamilyOf(order.Request.PublicKey)
	if err != nil {
		return nil, refusedError{err}
	}
	authority, ok := authorities.For(family)
	switch {
	case ok:
	case len(authorities.Problems) > 0:
		return nil, conditions.Waiting(lookAgain, v1alpha1.ReasonIssuerNotReady, "%s %q is not ready: %s", cr.Spec.IssuerRef.Kind, cr.Spec.IssuerRef.Name, authorities.Problems[0].Message)
	default:
		return nil, refusedError{fmt.Errorf("%s %q has no authority for %s keys; add the Secret of a CA with %s key to its spec.ca.secretRefs",
			cr.Spec.IssuerRef.Kind, cr.Spec.IssuerRef.Name, family, keysOf[family])}
	}
	issued, err := authority.Sign(order, now)
	if err != nil {
		return nil, refused(err)
	}
	return issued, nil
}

// selfSign signs with the request's own key, which lies in the Secret that an
// annotation of cert-manager's names.
func (r *Reconciler) selfSign(ctx context.Context, cr *cmapi.CertificateRequest, order pki.Order, now time.Time) (*pki.Issued, error) {
	name := cr.Annotations[cmapi.CertificateRequestPrivateKeyAnnotationKey]
	if name == "" {
		return nil, refusedError{fmt.Errorf("annotation %s is missing: a self-signed issuer needs the name of the Secret with the request's private key", cmapi.CertificateRequestPrivateKeyAnnotationKey)}
	}
	secret := &corev1.Secret{}
	if err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: cr.Namespace, Name: name}, secret); apierrors.IsNotFound(err) {
		return nil, conditions.Waiting(lookAgain, v1alpha1.ReasonSecretNotFound, "Secret %q, which annotation %s names, is not there", name, cmapi.CertificateRequestPrivateKeyAnnotationKey)
	} else if err != nil {
		return nil, err
	}
	key, err := r.key(ctx, cr.Namespace, secret.Data[corev1.TLSPrivateKeyKey])
	if _, told := conditions.AsProblem(err); told {
		return nil, err
	} else if err != nil {
		return nil, conditions.Waiting(lookAgain, v1alpha1.ReasonSecretInvalid, "Secret %q, key %s: %v", name, corev1.TLSPrivateKeyKey, err)
	}
	issued, err := pki.SelfSign(order, key, now)
	if err != nil {
		return nil, refused(err)
	}
	return issued, nil
}

// key of a Secret, or of the HSM that it refers to.
func (r *Reconciler) key(ctx context.Context, namespace string, data []byte) (crypto.Signer, error) {
	if !keypair.IsReference(data) {
		return keypair.ParseKey(data)
	}
	reference, err := keypair.ParseReference(data)
	if err != nil {
		return nil, err
	}
	return r.keys(namespace).Find(ctx, reference)
}

func (r *Reconciler) keys(namespace string) hsmpool.Keys {
	return hsmpool.Keys{Clients: r.HSMs, Pools: r.Client, Secrets: r.APIReader, Namespace: namespace}
}

// isOpen says whether a request still waits for its end.
func isOpen(cr *cmapi.CertificateRequest) bool {
	if cr.Spec.IssuerRef.Group != v1alpha1.GroupName || len(cr.Status.Certificate) > 0 || cr.Status.FailureTime != nil {
		return false
	}
	if condition(cr, cmapi.CertificateRequestConditionInvalidRequest) != nil {
		return false
	}
	for _, c := range cr.Status.Conditions {
		if c.Type == cmapi.CertificateRequestConditionReady {
			return c.Status != cmmeta.ConditionTrue && c.Reason != cmapi.CertificateRequestReasonFailed && c.Reason != cmapi.CertificateRequestReasonDenied
		}
	}
	return true
}

// condition finds a condition that is true.
func condition(cr *cmapi.CertificateRequest, kind cmapi.CertificateRequestConditionType) *cmapi.CertificateRequestCondition {
	for i, c := range cr.Status.Conditions {
		if c.Type == kind && c.Status == cmmeta.ConditionTrue {
			return &cr.Status.Conditions[i]
		}
	}
	return nil
}
