// Package certificate keeps the certificates of PQCCertificates: one Secret
// for each algorithm, issued through cert-manager CertificateRequests.
//
// For each certificate, policies (policy.go) decide from what there is whether
// one has to be issued. If so, a new key is kept in a Secret of its own, a
// CertificateRequest is made for it, and when that is signed and the
// certificate is what was asked for, key and chain go into the certificate's
// Secret at once (issuance.go). Everything is found by its name, so that an
// operator that is started again goes on where it was.
package certificate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/latewatch"
)

// +kubebuilder:rbac:groups=qtls.dev,resources=pqccertificates,verbs=get;list;watch
// +kubebuilder:rbac:groups=qtls.dev,resources=pqccertificates/status,verbs=patch
// +kubebuilder:rbac:groups=qtls.dev,resources=pqccertificates/finalizers,verbs=update
// +kubebuilder:rbac:groups=qtls.dev,resources=pqcissuers;pqcclusterissuers,verbs=get;list;watch
// +kubebuilder:rbac:groups=qtls.dev,resources=hsmpools,verbs=get;list;watch
// +kubebuilder:rbac:groups=cert-manager.io,resources=certificaterequests,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=list
// +kubebuilder:rbac:groups="",resources=pods,verbs=list
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler reconciles PQCCertificates.
type Reconciler struct {
	client.Client
	// APIReader reads Secrets past the cache, which holds their metadata only, and
	// what decides whether a key is destroyed, which may be a moment old.
	APIReader client.Reader
	// Namespaces that the operator serves; empty: all. APIReader may list in no
	// others.
	Namespaces []string
	Clock      clock.PassiveClock
	Recorder   events.EventRecorder
	// HSMs are the clients of HSMPools' members.
	HSMs *hsmpool.Clients
	// Agents tell which keys gateways sign with.
	Agents Agents

	requests *latewatch.Kind
}

// Reconcile brings the certificates of one PQCCertificate from what is to what
// is wanted, as far as it goes now, and says in its status how far that is.
func (r *Reconciler) Reconcile(ctx context.Context, key ctrl.Request) (ctrl.Result, error) {
	c := &v1alpha1.PQCCertificate{}
	if err := r.Get(ctx, key.NamespacedName, c); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !c.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil // what belongs to it goes by owner references
	}
	if !r.requests.Known() {
		return ctrl.Result{RequeueAfter: soon}, nil // the operator has just started
	}
	now := r.Clock.Now()
	requests, err := r.ownRequests(ctx, c)
	if err != nil {
		return ctrl.Result{}, err
	}
	var outcomes []outcome
	for _, algorithm := range c.Spec.Algorithms {
		outcomes = append(outcomes, r.issue(ctx, c, algorithm, requests, now))
	}
	sweepAfter, sweepErr := r.sweep(ctx, c, requests, outcomes)
	if err := r.report(ctx, c, summarise(c, outcomes, now)); err != nil {
		return ctrl.Result{}, err
	}
	after, err := nextLook(outcomes, now)
	if sweepAfter > 0 && (after == 0 || after > sweepAfter) {
		after = sweepAfter
	}
	return ctrl.Result{RequeueAfter: after}, errors.Join(err, sweepErr)
}

// ownRequests lists the CertificateRequests of a PQCCertificate; none while
// cert-manager is not installed.
func (r *Reconciler) ownRequests(ctx context.Context, c *v1alpha1.PQCCertificate) ([]cmapi.CertificateRequest, error) {
	if !r.requests.Installed() {
		return nil, nil
	}
	var list cmapi.CertificateRequestList
	if err := r.List(ctx, &list, client.InNamespace(c.Namespace), byLabel(c)); err != nil {
		return nil, fmt.Errorf("CertificateRequests: %w", err)
	}
	var own []cmapi.CertificateRequest
	for _, cr := range list.Items {
		if metav1.IsControlledBy(&cr, c) {
			own = append(own, cr)
		}
	}
	return own, nil
}

// sweep deletes what belongs to the PQCCertificate and is of no use any more.
// again is when to look again at a key that could not be destroyed, or at a
// certificate that a gateway still serves; 0 where there is none.
func (r *Reconciler) sweep(ctx context.Context, c *v1alpha1.PQCCertificate, requests []cmapi.CertificateRequest, outcomes []outcome) (again time.Duration, err error) {
	secrets := &metav1.PartialObjectMetadataList{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := r.List(ctx, secrets, client.InNamespace(c.Namespace), byLabel(c)); err != nil {
		return 0, fmt.Errorf("Secrets: %w", err)
	}
	objects := leftovers(c, secrets.Items, requests, outcomes)
	// Whether a key is used, its certificate's Secret tells: that goes after it.
	for _, o := range objects {
		if isPending(o) {
			abandoned, err := r.abandon(ctx, c, o)
			if err != nil {
				return 0, err
			}
			if !abandoned {
				again = lookForHSM
			}
		}
	}
	served, err := r.served(ctx, c.Namespace, objects)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, o := range objects {
		gateway, isServed := served[o.GetName()]
		switch {
		case isPending(o):
		case isSecret(o) && isServed:
			r.Recorder.Eventf(c, nil, corev1.EventTypeNormal, eventStillServed, "Delete",
				"Secret %q is not renewed any more, for spec.algorithms does not name its algorithm; it stays, because QTLSGateway %q serves it: see to what holds that gateway, or let its listeners name another certificate", o.GetName(), gateway)
			again = cmp.Or(again, lookForGateway)
		default:
			errs = append(errs, r.delete(ctx, o))
		}
	}
	return again, errors.Join(errs...)
}

// eventStillServed is the reason of the event that the certificate of a former
// algorithm stays, because a gateway serves it.
const eventStillServed = "StillServed"

// served are the Secrets that a published revision of a gateway names, and the
// gateway's name: without one of them no new pod of it starts. Where no
// certificate's Secret is among the objects to delete nothing is looked up.
func (r *Reconciler) served(ctx context.Context, namespace string, objects []client.Object) (map[string]string, error) {
	if !slices.ContainsFunc(objects, func(o client.Object) bool { return isSecret(o) && !isPending(o) }) {
		return nil, nil
	}
	var published corev1.ConfigMapList
	if err := r.APIReader.List(ctx, &published, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelGateway}); err != nil {
		return nil, fmt.Errorf("ConfigMaps of gateways: %w", err)
	}
	return secretsOf(published.Items)
}

// secretsOf the revisions in gateways' ConfigMaps, and a gateway that names each.
// It is pure.
func secretsOf(published []corev1.ConfigMap) (map[string]string, error) {
	names := map[string]string{}
	for _, cm := range published {
		for key, value := range cm.Data {
			if !strings.HasPrefix(key, dataplane.KeyRevisionPrefix) {
				continue
			}
			var revision dataplane.Revision
			if err := json.Unmarshal([]byte(value), &revision); err != nil {
				return nil, fmt.Errorf("ConfigMap %q, key %s: %w", cm.Name, key, err)
			}
			for _, certificate := range revision.Certificates {
				names[certificate.Secret] = cm.Labels[v1alpha1.LabelGateway]
			}
		}
	}
	return names, nil
}

// abandon destroys the key that was made in an HSM for a revision that was given
// up, and deletes the Secret that names it: nothing else does, so that it stays
// (done is false) while the key cannot be destroyed.
func (r *Reconciler) abandon(ctx context.Context, c *v1alpha1.PQCCertificate, o client.Object) (done bool, err error) {
	if parseRecord(o.GetAnnotations()[v1alpha1.AnnotationRequested]).HSM == "" {
		return true, r.delete(ctx, o)
	}
	pending, secret := &corev1.Secret{}, &corev1.Secret{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(o), pending); err != nil {
		return true, client.IgnoreNotFound(err)
	}
	if pending.UID != o.GetUID() {
		return true, nil // it belongs to another issuance
	}
	name := client.ObjectKey{Namespace: c.Namespace, Name: strings.TrimSuffix(o.GetName(), pendingSuffix)}
	if err := r.APIReader.Get(ctx, name, secret); client.IgnoreNotFound(err) != nil {
		return false, err
	}
	present, _ := keypair.ParseReference(secret.Data[corev1.TLSPrivateKeyKey])
	algorithm := v1alpha1.KeyAlgorithm(pending.Annotations[v1alpha1.AnnotationAlgorithm])
	last := max(formerStatus(c, algorithm).Revision, revisionOf(secret))
	if key, ok := abandonedKey(pending, last, present); ok && r.retire(ctx, c, key, makerOf(pending)) != nil {
		return false, r.keep(ctx, pending, key)
	}
	return true, r.delete(ctx, o)
}

// keep a Secret whose key is to be destroyed and could not be, for no issuance to
// take it up again: some members may have destroyed theirs.
func (r *Reconciler) keep(ctx context.Context, pending *corev1.Secret, key keypair.Reference) error {
	before := pending.DeepCopy()
	pending.Annotations[v1alpha1.AnnotationRequested] = record{HSM: key.Pool, Maker: makerOf(pending)}.String()
	if err := r.Patch(ctx, pending, client.MergeFrom(before), client.FieldOwner(v1alpha1.FieldManager)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("Secret %q: %w", pending.Name, err)
	}
	return nil
}

func isSecret(o client.Object) bool { return o.GetObjectKind().GroupVersionKind().Kind == "Secret" }

func isPending(o client.Object) bool {
	return isSecret(o) && strings.HasSuffix(o.GetName(), pendingSuffix)
}

// leftovers are the objects to delete: of algorithms that the spec no longer
// names, keys of finished issuances, and CertificateRequests other than the
// one under way, the last and the one before. The certificate of a former
// algorithm stays until those of all others are there, and an authority's for
// ever: what its key signed is still about. It is pure.
func leftovers(c *v1alpha1.PQCCertificate, secrets []metav1.PartialObjectMetadata, requests []cmapi.CertificateRequest, outcomes []outcome) []client.Object {
	wanted := map[string]bool{}
	byAlgorithm := map[string]outcome{}
	for _, o := range outcomes {
		wanted[o.status.SecretName] = true
		wanted[pendingName(o.status.SecretName)] = o.underway != 0 || o.unknown
		byAlgorithm[string(o.status.Algorithm)] = o
	}
	replaced := !c.Spec.IsCA && !slices.ContainsFunc(outcomes, func(o outcome) bool { return o.unusable != "" || o.unknown })
	var objects []client.Object
	for i := range secrets {
		s := &secrets[i]
		s.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
		if metav1.IsControlledBy(s, c) && !wanted[s.Name] && (replaced || isPending(s)) {
			objects = append(objects, s)
		}
	}
	for i := range requests {
		cr := &requests[i]
		o, ok := byAlgorithm[cr.Annotations[v1alpha1.AnnotationAlgorithm]]
		revision := revisionOf(cr)
		switch {
		case ok && o.unknown, ok && revision == o.underway:
		case ok && revision <= o.status.Revision && revision >= o.status.Revision-1:
		default:
			objects = append(objects, cr)
		}
	}
	return objects
}

// delete deletes exactly the object that was looked at.
func (r *Reconciler) delete(ctx context.Context, o client.Object) error {
	uid := o.GetUID()
	err := r.Delete(ctx, o, client.Preconditions{UID: &uid})
	if apierrors.IsConflict(err) {
		return nil // another one of the name has taken its place
	}
	return client.IgnoreNotFound(err)
}

func byLabel(c *v1alpha1.PQCCertificate) client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelCertificate: v1alpha1.LabelValue(c.Name)}
}

// nextLook is when time alone changes something; the error is of those
// certificates that failed for a reason of the moment.
func nextLook(outcomes []outcome, now time.Time) (time.Duration, error) {
	var next time.Duration
	var errs []error
	for _, o := range outcomes {
		errs = append(errs, o.failure())
		if after := o.lookAfter(now); after > 0 && (next == 0 || after < next) {
			next = after
		}
	}
	return next, errors.Join(errs...)
}
