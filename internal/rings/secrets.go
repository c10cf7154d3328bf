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

// secrets keep the records, each under the ID of its ring. Gateways that share
// rings share the Secret: it goes with the last of them.
type secrets struct {
	client client.Client
	reader client.Reader
}

func recordKey(id string) string { return id + ".json" }

// read returns the Secret and the record of a ring; what does not parse counts
// as not there.
func (s secrets) read(ctx context.Context, namespace, name, id string) (*corev1.Secret, record, error) {
	secret := &corev1.Secret{}
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
	if json.Unmarshal(secret.Data[recordKey(id)], &r) != nil {
		r = record{}
	}
	return secret, r, nil
}

// write puts a record into the Secret as it was read: two operators cannot
// both. Records of rings that are not to be kept are taken out; nil keeps all.
func (s secrets) write(ctx context.Context, secret *corev1.Secret, id string, r record, keep []string, owners []metav1.OwnerReference) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	data := map[string][]byte{recordKey(id): content}
	for k, d := range secret.Data {
		if k != recordKey(id) && kept(k, keep) {
			data[k] = d
		}
	}
	secret.Data, secret.Type = data, corev1.SecretTypeOpaque
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

// kept says whether what is under a key is the record of one of these rings; nil
// stands for all that there may be.
func kept(key string, rings []string) bool {
	return rings == nil || slices.ContainsFunc(rings, func(id string) bool { return recordKey(id) == key })
}

// superfluous says whether a Secret has more than the records of these rings.
func superfluous(secret *corev1.Secret, rings []string) bool {
	for k := range secret.Data {
		if !kept(k, rings) {
			return true
		}
	}
	return false
}

// owns says whether a Secret goes with all of these.
func owns(secret *corev1.Secret, owners []metav1.OwnerReference) bool {
	return !slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool {
		return !slices.ContainsFunc(secret.OwnerReferences, func(has metav1.OwnerReference) bool { return has.UID == o.UID })
	})
}
