// Package owned writes the objects that one of ours owns, by server-side apply,
// and keeps its hands off those that somebody else does.
package owned

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
)

// lookForFreeName is how often it is looked whether a name that somebody else
// had is free: no event tells.
const lookForFreeName = 10 * time.Second

// Writer writes objects.
type Writer struct {
	Client client.Client
	// Cached reads what is there, and may be behind. Live does not: it is asked about
	// what the cache does not have, for an apply takes over what there is.
	Cached, Live client.Reader
	// Applied, if there is one, spares what is as it was applied last.
	Applied *Memory
}

// Memory of what was applied, and of the version that it has since. An object of
// another version, or of none, is applied again: somebody else has changed it. The
// zero value is empty.
type Memory struct {
	mu      sync.Mutex
	applied map[types.NamespacedName]map[string]mark // by owner and object
}

type mark struct {
	digest  [sha256.Size]byte
	version string
}

// Forget an owner that is gone.
func (m *Memory) Forget(owner types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.applied, owner)
}

func (m *Memory) is(owner client.Object, object string, is mark) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.applied[client.ObjectKeyFromObject(owner)][object] == is
}

func (m *Memory) set(owner client.Object, object string, to mark) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := client.ObjectKeyFromObject(owner)
	if m.applied[key] == nil {
		if m.applied == nil {
			m.applied = map[types.NamespacedName]map[string]mark{}
		}
		m.applied[key] = map[string]mark{}
	}
	m.applied[key][object] = to
}

// Apply one object, unless one of its name is there already that the owner does
// not control. It returns the resource version. What the owner is called, such as
// "gateway", is for the message.
func (w Writer) Apply(ctx context.Context, owner client.Object, called string, o client.Object) (string, error) {
	kind := o.GetObjectKind().GroupVersionKind()
	existing := &metav1.PartialObjectMetadata{}
	existing.SetGroupVersionKind(kind)
	err := w.Cached.Get(ctx, client.ObjectKeyFromObject(o), existing)
	if apierrors.IsNotFound(err) && w.Cached != w.Live {
		err = w.Live.Get(ctx, client.ObjectKeyFromObject(o), existing)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("%s %s: %w", kind.Kind, o.GetName(), err)
	}
	if err == nil && !metav1.IsControlledBy(existing, owner) {
		return "", conditions.Waiting(lookForFreeName, v1alpha1.ReasonNotApplied,
			"%s %q exists in namespace %q and is not this %s's; delete or rename it, or rename the %s", kind.Kind, o.GetName(), o.GetNamespace(), called, called)
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return "", err
	}
	u := &unstructured.Unstructured{Object: object}
	unstructured.RemoveNestedField(u.Object, "status") // what a typed object always writes and nobody meant
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(u.Object, "spec", "template", "metadata", "creationTimestamp")
	content, err := json.Marshal(u.Object)
	if err != nil {
		return "", err
	}
	name, now := kind.String()+"/"+o.GetNamespace()+"/"+o.GetName(), mark{sha256.Sum256(content), existing.ResourceVersion}
	if now.version != "" && w.Applied.is(owner, name, now) {
		return now.version, nil
	}
	err = w.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldManager), client.ForceOwnership)
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", kind.Kind, o.GetName(), err)
	}
	now.version = u.GetResourceVersion()
	w.Applied.set(owner, name, now)
	return now.version, nil
}

// Remove an object whose metadata was read, if it still is that very one.
func Remove(ctx context.Context, c client.Client, o client.Object) error {
	uid := o.GetUID()
	err := c.Delete(ctx, o, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
