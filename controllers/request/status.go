package request

import (
	"context"
	"errors"
	"fmt"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/pki"
)

// verdict is how a request stands. Without a certificate it has failed, was
// denied, or is pending, as the reason says.
type verdict struct {
	reason  string
	message string
	issued  *pki.Issued
}

// judge turns the end of signing into a verdict and when to look again; no
// verdict for an error of the moment.
func judge(cr *cmapi.CertificateRequest, issued *pki.Issued, err error) (*verdict, time.Duration) {
	var refused refusedError
	if errors.As(err, &refused) {
		return &verdict{reason: cmapi.CertificateRequestReasonFailed, message: refused.Error()}, 0
	}
	if p, ok := conditions.AsProblem(err); ok {
		return &verdict{reason: cmapi.CertificateRequestReasonPending, message: p.Message}, p.After
	}
	if err != nil {
		return nil, 0
	}
	message := fmt.Sprintf("signed by %s %q until %s", cr.Spec.IssuerRef.Kind, cr.Spec.IssuerRef.Name, issued.Chain.Leaf().NotAfter.UTC().Format(time.RFC3339))
	if issued.Shortened {
		message += ", where the authority's own validity ends: shorter than requested"
	}
	return &verdict{reason: cmapi.CertificateRequestReasonIssued, message: message, issued: issued}, 0
}

// report writes a verdict into the request's status, if it is not there yet,
// and says it in an event.
func (r *Reconciler) report(ctx context.Context, cr *cmapi.CertificateRequest, v verdict, now time.Time) error {
	if ready := readyCondition(cr); ready != nil && ready.Reason == v.reason && ready.Message == v.message {
		return nil
	}
	u, err := statusOf(cr, v, now)
	if err != nil {
		return err
	}
	err = r.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
	if apierrors.IsConflict(err) {
		return nil // what changed it wakes us again
	}
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("status of CertificateRequest %s: %w", client.ObjectKeyFromObject(cr), err))
	}
	kind := corev1.EventTypeNormal
	if v.issued == nil && v.reason != cmapi.CertificateRequestReasonPending {
		kind = corev1.EventTypeWarning
	}
	r.Recorder.Eventf(cr, nil, kind, v.reason, "Sign", "%s", conditions.Shorten(v.message, 900))
	return nil
}

// statusOf is what to apply. The resource version keeps a request that has
// meanwhile been signed, or deleted and made anew, from being signed again.
func statusOf(cr *cmapi.CertificateRequest, v verdict, now time.Time) (*unstructured.Unstructured, error) {
	at := metav1.NewTime(now.Truncate(time.Second))
	ready := cmapi.CertificateRequestCondition{
		Type: cmapi.CertificateRequestConditionReady, Status: "False", Reason: v.reason,
		Message: conditions.Shorten(v.message, conditions.MaxMessage), LastTransitionTime: &at,
	}
	if old := readyCondition(cr); old != nil && old.Status == ready.Status && old.LastTransitionTime != nil {
		ready.LastTransitionTime = old.LastTransitionTime
	}
	status := cmapi.CertificateRequestStatus{}
	switch {
	case v.issued != nil:
		ready.Status = "True"
		ready.LastTransitionTime = &at
		status.Certificate = pki.CertificatesPEM(v.issued.Chain.Certificates...)
		status.CA = pki.CertificatesPEM(v.issued.Chain.Anchor)
	case v.reason != cmapi.CertificateRequestReasonPending:
		status.FailureTime = &at
	}
	status.Conditions = []cmapi.CertificateRequestCondition{ready}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": object}}
	u.SetGroupVersionKind(cmapi.SchemeGroupVersion.WithKind(cmapi.CertificateRequestKind))
	u.SetNamespace(cr.Namespace)
	u.SetName(cr.Name)
	u.SetUID(cr.UID)
	u.SetResourceVersion(cr.ResourceVersion)
	return u, nil
}

func readyCondition(cr *cmapi.CertificateRequest) *cmapi.CertificateRequestCondition {
	for i, c := range cr.Status.Conditions {
		if c.Type == cmapi.CertificateRequestConditionReady {
			return &cr.Status.Conditions[i]
		}
	}
	return nil
}
