package certificate

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/keypair"
)

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
			"HSMPool %q: key %q serves no more, and stays in the token: nothing says that it was made for this PQCCertificate, for its Secret comes from a backup or from a release that did not record it, or has lost the annotation that did; once nobody else uses the key, destroy it with the HSM's own tools", key.Pool, key.Label)
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
