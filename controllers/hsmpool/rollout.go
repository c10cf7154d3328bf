package hsmpool

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/resources"
)

// run a member's daemon, unless that replaces its pod while another's is being
// replaced, or cannot sign: one at a time, for the others have to sign meanwhile.
// Its configuration waits with it, for a container that starts anew reads it
// beside the mounts of before. So do the sections [client], which hsmd reads at
// once: other ones are for a member of another kind, and so for another pod. What
// waits is looked at again.
func (r *Reconciler) run(ctx context.Context, pool *v1alpha1.HSMPool, m v1alpha1.HSMMember, pins types.UID, p *provided) error {
	config, wanted := resources.HsmdConfig(pool, m), resources.HsmdStatefulSet(pool, m, r.Settings)
	if m.SoftToken != nil && m.SoftToken.Storage.Ephemeral {
		wanted = resources.WithPINs(wanted, pins)
	}
	existing, err := r.daemon(ctx, pool, m.Name)
	if err != nil {
		return err
	}
	if replaces(existing, wanted) {
		own, others, err := r.standings(ctx, pool, m, existing, p)
		if err != nil {
			return err
		}
		if why := hindrance(own, others); why != "" {
			p.leave(config, wanted)
			p.problems[m.Name] = &conditions.Problem{Reason: v1alpha1.ReasonProgressing, After: Interval, Message: fmt.Sprintf(
				"member %q: a change of its daemon waits, for the others have to sign while its pod is replaced: %s; where that lasts, see to that member, or take it from the pool", m.Name, why)}
			return nil
		}
	}
	return r.apply(ctx, pool, p, config, wanted)
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

// replaces says whether what is wanted replaces a pod.
func replaces(existing, wanted *appsv1.StatefulSet) bool {
	return existing != nil && existing.Annotations[resources.AnnotationHsmdTemplate] != wanted.Annotations[resources.AnnotationHsmdTemplate]
}

// standing is how a member is when the pod of a daemon is to be replaced.
type standing struct {
	name string
	// state is what its hsmd says at that moment.
	state v1alpha1.HSMMemberState
	// ready is its pod, and settled says that it is to stay as it is. A remote member
	// has none that the operator replaces.
	ready, settled bool
}

func standingOf(name string, state v1alpha1.HSMMemberState, set *appsv1.StatefulSet) standing {
	return standing{name, state, ready(set), ready(set) && rolledOut(set)}
}

func remoteStanding(name string, state v1alpha1.HSMMemberState) standing {
	return standing{name, state, true, true}
}

// standings of a member and of the others. All are asked once in a pass, which may
// replace one pod that signs: that one is not settled then.
func (r *Reconciler) standings(ctx context.Context, pool *v1alpha1.HSMPool, m v1alpha1.HSMMember, existing *appsv1.StatefulSet, p *provided) (own standing, others []standing, err error) {
	if p.asked == nil {
		members, err := r.Clients.Open(ctx, r.APIReader, pool)
		if err != nil {
			return own, nil, err
		}
		p.asked = hsmpool.Observe(ctx, members)
	}
	for i, other := range pool.Spec.Members {
		state := p.asked[i].State
		switch {
		case other.Name == m.Name:
			own = standingOf(m.Name, state, existing)
		case other.Remote != nil:
			others = append(others, remoteStanding(other.Name, state))
		default:
			set, err := r.daemon(ctx, pool, other.Name)
			if err != nil {
				return own, nil, err
			}
			others = append(others, standingOf(other.Name, state, set))
		}
	}
	return own, others, nil
}

// hindrance is why the pod of a member's daemon is not replaced now; empty if it
// may be. One that cannot sign may: what is broken can be corrected. One that can
// needs all others to sign meanwhile. Of one that is ready and gives the operator
// no answer it is not known who else reaches it: so one pod at a time. It is pure.
func hindrance(own standing, others []standing) string {
	if !own.ready || own.state == v1alpha1.HSMMemberDown || own.state == v1alpha1.HSMMemberStarting {
		return ""
	}
	for _, o := range others {
		switch {
		case !o.settled:
			return fmt.Sprintf("the pod of member %q is being replaced, or not ready", o.name)
		case own.state == v1alpha1.HSMMemberUp && o.state != v1alpha1.HSMMemberUp:
			return fmt.Sprintf("member %q is %s", o.name, o.state)
		}
	}
	return ""
}

func ready(set *appsv1.StatefulSet) bool {
	return set != nil && set.Status.ReadyReplicas > 0
}

// rolledOut says whether the pod is that of the StatefulSet's template.
func rolledOut(set *appsv1.StatefulSet) bool {
	return set.Status.ObservedGeneration >= set.Generation && set.Status.UpdatedReplicas > 0
}
