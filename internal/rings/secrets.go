package rings

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
)

// secrets keep the records: each ring's in a Secret of its own, which belongs to
// all gateways that need the ring and goes with the last of them.
type secrets struct {
	client client.Client
	reader client.Reader
}

// SecretPrefix begins the names of the Secrets that remember rings. Its dot keeps
// them apart from those of gateways, whose names have none.
const SecretPrefix = "ticket-ring."

// SecretName names the Secret that remembers a ring, by the ring's ID: whoever
// needs the ring, for whichever of its revisions, looks into the same one.
func SecretName(id string) string { return SecretPrefix + id }

// recordKey is the Secret's key under which the record is.
const recordKey = "record.json"

// read returns the Secret and the record of a ring; what does not parse counts
// as not there.
func (s secrets) read(ctx context.Context, ring ringKey) (*corev1.Secret, record, error) {
	secret := &corev1.Secret{}
	namespace, name := ring.namespace, SecretName(ring.id)
	err := s.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		secret.Namespace, secret.Name = namespace, name
		return secret, record{}, nil
	}
	if err != nil {
		return nil, record{}, fmt.Errorf("Secret %s: %w", name, err)
	}
	if secret.Labels[v1alpha1.LabelManagedBy] != v1alpha1.LabelManagedByValue {
		return nil, record{}, fmt.Errorf("Secret %q exists in namespace %q and is not the operator's; delete or rename it", name, namespace)
	}
	var r record
	if json.Unmarshal(secret.Data[recordKey], &r) != nil {
		r = record{}
	}
	return secret, r, nil
}

// write puts a record into the Secret as it was read: two operators cannot
// both.
func (s secrets) write(ctx context.Context, secret *corev1.Secret, r record, owners []metav1.OwnerReference) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	secret.Data, secret.Type = map[string][]byte{recordKey: content}, corev1.SecretTypeOpaque
	for _, o := range owners {
		if !owns(secret, []metav1.OwnerReference{o}) {
			secret.OwnerReferences = append(secret.OwnerReferences, o)
		}
	}
	if secret.Labels == nil {
		secret.Labels = map[string]string{}
	}
	secret.Labels[v1alpha1.LabelManagedBy] = v1alpha1.LabelManagedByValue
	if secret.ResourceVersion == "" {
		err = s.client.Create(ctx, secret, client.FieldOwner(v1alpha1.FieldManager))
	} else {
		err = s.client.Update(ctx, secret, client.FieldOwner(v1alpha1.FieldManager))
	}
	if err != nil {
		return fmt.Errorf("Secret %s: %w", secret.Name, err)
	}
	return nil
}

// owns says whether a Secret goes with all of these.
func owns(secret *corev1.Secret, owners []metav1.OwnerReference) bool {
	return !slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool {
		return !slices.ContainsFunc(secret.OwnerReferences, func(has metav1.OwnerReference) bool { return has.UID == o.UID })
	})
}
