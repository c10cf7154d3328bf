package hsmpool

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/resources"
)

// run a member's daemon, unless that replaces its pod and another member's is
// being replaced, or does not run: one at a time, for another has to sign
// meanwhile. What is held is looked at again.
func (r *Reconciler) run(ctx context.Context, pool *v1alpha1.HSMPool, m v1alpha1.HSMMember, p provided) error {
	wanted := resources.HsmdStatefulSet(pool, m, r.Settings)
	if m.SoftToken != nil && m.SoftToken.Storage.Ephemeral {
		pins, err := r.secret(ctx, pool, hsmpool.PINSecretName(pool.Name, m))
		if err != nil {
			return err
		}
		if pins != nil {
			wanted = resources.WithPINs(wanted, pins.UID)
		}
	}
	existing, err := r.daemon(ctx, pool, m.Name)
	if err != nil {
		return err
	}
	if !sameTemplate(existing, wanted) && ready(existing) {
		var others []*appsv1.StatefulSet
		for _, other := range managed(pool) {
			if other.Name == m.Name {
				continue
			}
			set, err := r.daemon(ctx, pool, other.Name)
			if err != nil {
				return err
			}
			others = append(others, set)
		}
		if !mayReplace(existing, others) {
			p.held[m.Name] = true
			p.versions[object{appsv1.SchemeGroupVersion.WithKind("StatefulSet"), existing.Name}] = existing.ResourceVersion
			return nil
		}
	}
	return r.apply(ctx, pool, p, []client.Object{wanted})
}

// daemon is the StatefulSet of a member's daemon, past the cache, which knows
// nothing of what was applied a moment ago; nil if there is none.
func (r *Reconciler) daemon(ctx context.Context, pool *v1alpha1.HSMPool, member string) (*appsv1.StatefulSet, error) {
	set := &appsv1.StatefulSet{}
	name := hsmpool.DaemonName(pool.Name, member)
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: pool.Namespace, Name: name}, set)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("StatefulSet %s/%s: %w", pool.Namespace, name, err)
	}
	return set, nil
}

// sameTemplate says whether what is wanted leaves the pod alone.
func sameTemplate(existing, wanted *appsv1.StatefulSet) bool {
	return existing != nil && existing.Annotations[resources.AnnotationHsmdTemplate] == wanted.Annotations[resources.AnnotationHsmdTemplate]
}

// mayReplace says whether the pod of a member's daemon may be replaced now: if
// it does not run anyway, or each of the others does, and is as it should be.
// So what is broken can be corrected, and what is not does not end while
// something else is. It is pure.
func mayReplace(existing *appsv1.StatefulSet, others []*appsv1.StatefulSet) bool {
	if !ready(existing) {
		return true
	}
	for _, other := range others {
		if !ready(other) || !rolledOut(other) {
			return false
		}
	}
	return true
}

func ready(set *appsv1.StatefulSet) bool {
	return set != nil && set.Status.ReadyReplicas > 0
}

// rolledOut says whether the pod is that of the StatefulSet's template.
func rolledOut(set *appsv1.StatefulSet) bool {
	return set.Status.ObservedGeneration >= set.Generation && set.Status.UpdatedReplicas > 0
}
