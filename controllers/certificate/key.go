package certificate

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/pki"
)

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
		return nil, nil, i.contested(o.cause, last, until)
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
// like a repository, or an HSM does not keep its keys. Who changes or deletes a Secret
// by hand may do so twice.
const contestedFor = 5 * leastInterval

// contested says what two repairs were of no use against.
func (i *issuance) contested(cause string, last int64, until time.Time) error {
	if cause == reasonKeyLost {
		return conditions.Waiting(until.Sub(i.now), v1alpha1.ReasonKeyNotFound,
			"HSMPool %q loses keys again and again: revisions %d and %d were issued a short while ago for that; see to its members' tokens; it is issued again at %s",
			i.state.Want.HSM, last-1, last, stamp(until))
	}
	return conditions.Waiting(until.Sub(i.now), v1alpha1.ReasonSecretNotOwned,
		"Secret %q is changed again and again by somebody else: revisions %d and %d were issued a short while ago for that, and it has something else; let only one write it; it is issued again at %s",
		i.secretName, last-1, last, stamp(until))
}

// repairs says whether an issuance is for what somebody else made of the Secret or
// an HSM of the key, rather than because its time has come, or for a wish. It is
// pure.
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

// withKey is an outcome with what HSMs say of the certificate's key, where nothing
// else keeps it from being used: it is issued anew then, or that says why not. An
// authority gets a certificate of another key only when somebody asks for it: what
// it signed would not be its own any more.
func (i *issuance) withKey(ctx context.Context, o outcome) outcome {
	reference, ok := i.state.presentKey()
	if !ok || o.unusable != "" {
		return o
	}
	lost, doubt := i.lostKey(ctx, reference)
	if lost == nil {
		o.doubt = doubt
		return o
	}
	o.unusable, o.cause = lost.Message, cmp.Or(o.cause, reasonKeyLost)
	if i.state.Want.IsCA && lost.Reason == v1alpha1.ReasonKeyMismatch && o.cause != reasonRenewalAsked {
		o.err = conditions.Waiting(lookForHSM, lost.Reason, "restore the authority's key with the HSM's own means; or renew with the annotation %s, for the key that is there now: what the authority signed has to be issued anew then", v1alpha1.AnnotationRenew)
	}
	return o
}

// lostKey says that no member has a key any more, or that it is another one than
// the certificate's; and if it is neither, what is wrong with it in some member: that it
// is not there, is another one, or could leave the token. Members that do not answer say
// nothing against it.
func (i *issuance) lostKey(ctx context.Context, reference keypair.Reference) (lost, doubt *conditions.Problem) {
	key, lacks, err := i.keys().Look(ctx, reference)
	p, isProblem := conditions.AsProblem(err)
	switch {
	case isProblem && p.Reason == v1alpha1.ReasonKeyNotFound:
		return &conditions.Problem{Reason: p.Reason, Message: hsmpool.Absent(reference)}, nil
	case isProblem && slices.Contains(doubts, p.Reason):
		return nil, p
	case err != nil:
		return nil, nil
	case !pki.SameKey(key.Public(), i.state.Pair.Chain[0].PublicKey):
		return &conditions.Problem{Reason: v1alpha1.ReasonKeyMismatch, Message: fmt.Sprintf(
			"HSMPool %q: key %q is another one than the certificate is for", reference.Pool, reference.Label)}, nil
	case lacks != "":
		return nil, &conditions.Problem{Reason: v1alpha1.ReasonKeyNotInEveryMember, Message: lacks}
	}
	return nil, nil
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
