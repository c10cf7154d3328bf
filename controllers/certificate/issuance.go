package certificate

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/issuers"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/openssl"
	"qtls.dev/qtls/internal/pki"
)

const (
	// soon is when to look again at what is about to change anyway.
	soon = time.Second
	// lookForHSM is when to try again what an HSM did not do.
	lookForHSM = 10 * time.Second
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
	o := outcomeOf(c, i.state, now)
	if !o.violated() {
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

// advance takes the issuance to its end, or as far as it goes now: the error
// says what it waits for. It returns the revision under way, 0 if none is.
func (i *issuance) advance(ctx context.Context, o outcome) (underway int64, err error) {
	if !i.r.requests.Installed() {
		return 0, conditions.Waiting(10*time.Second, v1alpha1.ReasonCertManagerNotFound,
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

// pendingKey finds or makes the key of the revision under way.
func (i *issuance) pendingKey(ctx context.Context, o outcome) (*corev1.Secret, crypto.Signer, error) {
	last := o.status.Revision
	pending, err := i.ownSecret(ctx, pendingName(i.secretName))
	if err != nil {
		return nil, nil, err
	}
	kept, err := i.state.keptKey()
	if err != nil {
		return nil, nil, err
	}
	if pending != nil {
		if pendingFits(pending, i.state, last) {
			key, err := i.open(ctx, pending)
			return pending, key, err
		}
		// It was begun for another spec, or is done.
		present, _ := i.state.presentKey()
		if key, ok := abandonedKey(pending, last, present); ok {
			if problem := i.r.retire(ctx, i.certificate, key, makerOf(pending)); problem != nil {
				if err := i.retireLater(ctx, pending, key, problem); err != nil {
					return nil, nil, err
				}
			}
		}
		if err := i.r.delete(ctx, pending); err != nil {
			return nil, nil, err
		}
	}
	repairs := i.repairs(o.cause, last)
	if until := i.contestedUntil(last); repairs && i.now.Before(until) {
		return nil, nil, conditions.Waiting(until.Sub(i.now), v1alpha1.ReasonSecretNotOwned,
			"Secret %q is changed again and again by somebody else: revisions %d and %d were issued a short while ago for that, and it has something else; let only one write it; it is issued again at %s",
			i.secretName, last-1, last, stamp(until))
	}
	data, maker, err := i.newKey(last + 1)
	if err != nil {
		return nil, nil, err
	}
	requested := i.state.Want
	requested.Maker, requested.Kept, requested.Repair = maker, kept != nil, repairs
	pending = buildPending(i.certificate, i.algorithm, last+1, requested, data)
	if err := i.r.Create(ctx, pending, client.FieldOwner(v1alpha1.FieldManager)); apierrors.IsAlreadyExists(err) {
		return nil, nil, conditions.Waiting(soon, v1alpha1.ReasonIssuing, "Secret %q of an earlier attempt is being deleted", pending.Name)
	} else if err := notWritten(err, pending.Name); err != nil {
		return nil, nil, err
	}
	i.r.Recorder.Eventf(i.certificate, nil, corev1.EventTypeNormal, v1alpha1.ReasonIssuing, o.cause, "issuing the %s certificate (revision %d): %s", i.algorithm, last+1, conditions.Shorten(o.why(), 900))
	key, err := i.open(ctx, pending)
	return pending, key, err
}

// contestedFor is how long after two repairs there is no third, where somebody else
// puts something in the place of what is issued, such as a tool that keeps a cluster
// like a repository. Who changes or deletes a Secret by hand may do so twice.
const contestedFor = 5 * leastInterval

// repairs says whether an issuance is for what somebody else made of the Secret,
// rather than because its time has come, or for a wish. It is pure.
func (i *issuance) repairs(cause string, last int64) bool {
	switch cause {
	case reasonRenewalIsDue, reasonExpired, reasonRenewalAsked, reasonSpecChanged:
		// It has another revision than the last: that one was put back.
		return last > 0 && revisionOf(i.state.Secret) != last
	default:
		return last > 0
	}
}

// contestedUntil is when a Secret may be repaired again: later than now where the
// last two revisions were repairs of a short while ago. It is pure.
func (i *issuance) contestedUntil(last int64) (until time.Time) {
	for _, revision := range []int64{last, last - 1} {
		n := slices.IndexFunc(i.requests, func(cr cmapi.CertificateRequest) bool { return cr.Name == requestName(i.secretName, revision) })
		if n < 0 {
			return time.Time{}
		}
		p, asked := progressOf(&i.requests[n]), parseRecord(i.requests[n].Annotations[v1alpha1.AnnotationRequested])
		if p.phase != phaseSigned || !asked.Repair || !asked.fulfils(i.state.Want) {
			return time.Time{}
		}
		until = p.at.Add(contestedFor) // at last that of the earlier one
	}
	return until
}

// retireLater puts a key that was given up, and that a problem keeps from being
// destroyed now, among the former keys of the certificate's Secret, so that it is
// by a renewal to come. The pending Secret is all that names it: without a Secret
// of the certificate that has to stay.
func (i *issuance) retireLater(ctx context.Context, pending *corev1.Secret, key keypair.Reference, problem error) error {
	s := i.state.Secret
	if s == nil {
		if err := i.r.keep(ctx, pending, key); err != nil {
			return err
		}
		return conditions.Waiting(lookForHSM, v1alpha1.ReasonHSMNotReady,
			"a key that was begun for an earlier spec has to be destroyed first, which is tried again and again: %v; or delete Secret %q, which leaves the key in the token", problem, pending.Name)
	}
	former := parseFormerKeys(s.Annotations[v1alpha1.AnnotationPreviousKeys])
	if slices.ContainsFunc(former, func(k formerKey) bool { return k.Reference == key }) {
		return nil
	}
	data := contents{chain: s.Data[corev1.TLSCertKey], key: s.Data[corev1.TLSPrivateKeyKey], ca: s.Data[corev1.ServiceAccountRootCAKey], former: append(former, formerKey{key, i.now, makerOf(pending)})}
	secret := buildSecret(i.certificate, i.algorithm, revisionOf(s), i.state.Has, data, s.UID, s.ResourceVersion)
	err := i.r.Apply(ctx, secret, client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
	return notWritten(err, i.secretName)
}

// pendingFits says whether the key of an issuance begun before is still what
// is wanted.
func pendingFits(pending *corev1.Secret, s state, last int64) bool {
	requested := parseRecord(pending.Annotations[v1alpha1.AnnotationRequested])
	if revisionOf(pending) <= last || !requested.fulfils(s.Want) || requested.Kept && s.Secret == nil {
		return false
	}
	data := pending.Data[corev1.TLSPrivateKeyKey]
	if kept, err := s.keptKey(); err != nil || kept != nil {
		return bytes.Equal(kept, data)
	}
	if keyFits(data, s.Algorithm, s.Want.HSM) != nil {
		return false
	}
	reference, err := keypair.ParseReference(data)
	return err != nil || s.Want.Key != "" || madeFor(pending, reference) && !ofAnother(pending)
}

// makerOf the key that a Secret names, as its record says.
func makerOf(secret *corev1.Secret) types.UID {
	return parseRecord(secret.Annotations[v1alpha1.AnnotationRequested]).Maker
}

// ofAnother says whether a pending Secret's key was made for another
// PQCCertificate than the one it belongs to now: it comes from a backup.
func ofAnother(pending *corev1.Secret) bool {
	owner := metav1.GetControllerOf(pending)
	return makerOf(pending) != "" && owner != nil && makerOf(pending) != owner.UID
}

// labelPrefix begins the labels of the keys that are made for a revision, which
// labelRandom letters and digits end.
func labelPrefix(secretName string, revision int64) string {
	return fmt.Sprintf("%s-%d-", secretName, revision)
}

const labelRandom = 8

// madeUnder says whether a label is that of a key which was made for a
// certificate's Secret, in whichever revision.
func madeUnder(secretName, label string) bool {
	rest, _ := strings.CutPrefix(label, secretName+"-")
	number, random, _ := strings.Cut(rest, "-")
	revision, err := strconv.ParseInt(number, 10, 64)
	return err == nil && strings.HasPrefix(label, labelPrefix(secretName, revision)) && len(random) == labelRandom && !strings.Contains(random, "-")
}

// madeFor says whether a pending Secret's key is made for it: neither one that
// was there before, nor that of an earlier revision.
func madeFor(pending *corev1.Secret, key keypair.Reference) bool {
	secretName := strings.TrimSuffix(pending.Name, pendingSuffix)
	return parseRecord(pending.Annotations[v1alpha1.AnnotationRequested]).Key == "" &&
		strings.HasPrefix(key.Label, labelPrefix(secretName, revisionOf(pending)))
}

// abandonedKey is the key in an HSM of a Secret that keeps the key of a revision
// under way, where that was made for this revision and never came into use: the
// revision is after the last that was stored, and the certificate's Secret has
// another key at present. It is pure.
func abandonedKey(pending *corev1.Secret, last int64, present keypair.Reference) (key keypair.Reference, ok bool) {
	key, err := keypair.ParseReference(pending.Data[corev1.TLSPrivateKeyKey])
	return key, err == nil && madeFor(pending, key) && revisionOf(pending) > last && key.Label != present.Label
}

// newKey is what a revision's Secret has for its key: the key, or a reference
// to one that an HSM has or is going to make; and its maker, as in record.
func (i *issuance) newKey(revision int64) (data []byte, maker types.UID, err error) {
	s := i.state
	if s.Want.Key != "" {
		return keypair.Reference{Pool: s.Want.HSM, Label: s.Want.Key}.PEM(), "", nil
	}
	if kept, err := s.keptKey(); kept != nil || err != nil {
		return kept, s.Has.Maker, err
	}
	if s.Want.HSM != "" {
		// Nobody else has a key of this label: other clusters may have one of the
		// Secret's name.
		label := labelPrefix(i.secretName, revision) + strings.ToLower(rand.Text()[:labelRandom])
		return keypair.Reference{Pool: s.Want.HSM, Label: label}.PEM(), i.certificate.UID, nil
	}
	key, err := pki.GenerateKey(i.algorithm)
	if err != nil {
		return nil, "", err
	}
	data, err = keypair.MarshalKey(key)
	return data, "", err
}

// keptKey is the key of the certificate's Secret where it goes on to be used: an
// authority's, so that what it signed stays valid, whatever has become of the
// rest of the Secret. It is nil where a key is to be made: there is no Secret, or
// the spec says to keep keys elsewhere. Something else in place of an authority's
// key is an error: it is not overwritten, for it may be what is left of the key.
// It is pure.
func (s state) keptKey() ([]byte, error) {
	moved := s.Has.Issued != nil && (s.Has.HSM != s.Want.HSM || s.Has.Key != s.Want.Key)
	if !s.Want.IsCA || s.Want.Key != "" || s.Secret == nil || moved {
		return nil, nil
	}
	data := s.Secret.Data[corev1.TLSPrivateKeyKey]
	if err := keyFits(data, s.Algorithm, s.Want.HSM); err != nil {
		return nil, conditions.Stalled(v1alpha1.ReasonSecretInvalid,
			"Secret %q: what is in tls.key is not the authority's key (%v), and is not overwritten; restore the key, or delete the Secret, which makes a new one: what the authority signed has to be issued anew then", s.Secret.Name, err)
	}
	return data, nil
}

// keyFits says what keeps tls.key from being a key of an algorithm, or a
// reference to one in an HSMPool, where one is named.
func keyFits(data []byte, algorithm v1alpha1.KeyAlgorithm, pool string) error {
	if pool != "" {
		reference, err := keypair.ParseReference(data)
		if err == nil && reference.Pool != pool {
			err = fmt.Errorf("it is in HSMPool %q, not %q", reference.Pool, pool)
		}
		return err
	}
	key, err := keypair.ParseKey(data)
	if err != nil {
		return err
	}
	is, err := keypair.AlgorithmOf(key.Public())
	if err == nil && is != algorithm {
		err = fmt.Errorf("it is of algorithm %s, not %s", is, algorithm)
	}
	return err
}

// open the key of a revision under way. In an HSM it is made here, if it is to
// be made and not there yet: its label was stored before. The key that serves
// already, an authority's, is there or lost.
func (i *issuance) open(ctx context.Context, pending *corev1.Secret) (crypto.Signer, error) {
	data := pending.Data[corev1.TLSPrivateKeyKey]
	if i.state.Want.HSM == "" {
		return keypair.ParseKey(data)
	}
	reference, err := keypair.ParseReference(data)
	if err != nil {
		return nil, err
	}
	if present, ok := i.state.presentKey(); ok && present == reference {
		return i.keys().Keep(ctx, reference, i.algorithm)
	}
	if i.state.Want.Key != "" {
		return i.keys().Use(ctx, reference, i.algorithm)
	}
	return i.keys().Provide(ctx, reference, i.algorithm)
}

func (i *issuance) keys() hsmpool.Keys { return i.r.keys(i.certificate.Namespace) }

// keys of the HSMPools of a namespace.
func (r *Reconciler) keys(namespace string) hsmpool.Keys {
	return hsmpool.Keys{Clients: r.HSMs, Pools: r.Client, Secrets: r.APIReader, Namespace: namespace}
}

// presentKey is that of the certificate's Secret, where it is in an HSM.
func (s state) presentKey() (keypair.Reference, bool) {
	if s.Secret == nil {
		return keypair.Reference{}, false
	}
	r, err := keypair.ParseReference(s.Secret.Data[corev1.TLSPrivateKeyKey])
	return r, err == nil
}

// eventKeyInUse is the reason of the event that a former key is not destroyed,
// because a gateway signs with it.
const eventKeyInUse = "KeyInUse"

// eventKeyLeft is the reason of the event that a key stays in the token for ever:
// nothing says that it was made for this PQCCertificate, or too many were.
const eventKeyLeft = "KeyLeft"

// retireFormer destroys those former keys that nobody signs with any more, and
// returns the others. Of a pool where one cannot be destroyed the rest wait,
// too: its members may take long to say so.
func (i *issuance) retireFormer(ctx context.Context, keys []formerKey) (left []formerKey) {
	if !slices.ContainsFunc(keys, func(k formerKey) bool { return k.idle(i.now) }) {
		return keys
	}
	pods, err := i.r.gatewayPods(ctx, i.certificate.Namespace)
	if err != nil {
		i.r.Recorder.Eventf(i.certificate, nil, corev1.EventTypeWarning, eventKeyInUse, "Retire", "no former key is destroyed, for who signs with them cannot be told: %s", conditions.Shorten(err.Error(), 900))
		return keys
	}
	away := map[string]bool{}
	for _, k := range keys {
		if !k.idle(i.now) || away[k.Pool] {
			left = append(left, k)
		} else if who := whoKeeps(k, pods); who != "" {
			i.r.Recorder.Eventf(i.certificate, nil, corev1.EventTypeNormal, eventKeyInUse, "Retire", "HSMPool %q: former key %q is not destroyed before a renewal to come: %s", k.Pool, k.Label, who)
			left = append(left, k)
		} else if i.r.retire(ctx, i.certificate, k.Reference, k.maker) != nil {
			away[k.Pool] = true
			left = append(left, k)
		}
	}
	return left
}

// adopted says whether a PQCCertificate has been told to use a key of this
// label, in whatever pool: several may lead to the same token, also those of
// different namespaces. It is pure.
func adopted(label string, all []v1alpha1.PQCCertificate) bool {
	return slices.ContainsFunc(all, func(c v1alpha1.PQCCertificate) bool {
		return slices.ContainsFunc(c.Spec.KeyStorage.ExistingKeys, func(k v1alpha1.ExistingKey) bool { return k.Label == label })
	})
}

// retire a key that was made for a certificate, unless that was another object's
// or it has been adopted since. Without an error there is nothing left to do about
// it. One that cannot be destroyed keeps nothing from being issued. What it rests
// on is read past the cache: a PQCCertificate that was told to use the key a moment
// ago counts.
func (r *Reconciler) retire(ctx context.Context, c *v1alpha1.PQCCertificate, key keypair.Reference, maker types.UID) error {
	if maker != c.UID {
		r.Recorder.Eventf(c, nil, corev1.EventTypeWarning, eventKeyLeft, "Retire",
			"HSMPool %q: key %q serves no more, and stays in the token: nothing says that it was made for this PQCCertificate, for its Secret comes from a backup or from a release that did not record it; once nobody else uses the key, destroy it with the HSM's own tools", key.Pool, key.Label)
		return nil
	}
	all, err := r.everyCertificate(ctx)
	if err == nil && adopted(key.Label, all) {
		return nil
	}
	if err == nil {
		err = r.keys(c.Namespace).Retire(ctx, key)
	}
	if err != nil {
		r.Recorder.Eventf(c, nil, corev1.EventTypeWarning, v1alpha1.ReasonHSMNotReady, "Retire", "%s", conditions.Shorten(err.Error(), 900))
	}
	return err
}

// everyCertificate in the namespaces that the operator serves, past the cache.
func (r *Reconciler) everyCertificate(ctx context.Context) ([]v1alpha1.PQCCertificate, error) {
	namespaces := r.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	var all []v1alpha1.PQCCertificate
	for _, namespace := range namespaces {
		var list v1alpha1.PQCCertificateList
		if err := r.APIReader.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("who uses keys that were there before cannot be told: PQCCertificates: %w", err)
		}
		all = append(all, list.Items...)
	}
	return all, nil
}

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
		return nil, conditions.Waiting(10*time.Second, v1alpha1.ReasonCertManagerNotFound,
			"cert-manager is no longer installed: the kind CertificateRequest (cert-manager.io/v1) is gone")
	case isWebhookAway(err):
		return nil, conditions.Waiting(30*time.Second, v1alpha1.ReasonCertManagerNotFound, "cert-manager's webhook, which has to admit CertificateRequest %q, does not answer: %v", cr.Name, err)
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
