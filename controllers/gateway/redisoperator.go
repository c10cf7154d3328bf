package gateway

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/resolve"
	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/ticketstore/embedded"
	"qtls.dev/qtls/internal/ticketstore/redisoperator"
)

// The Redis Operator's objects are not watched: an informer of a kind that is
// not installed, or is no more, would fail for ever.
const (
	// lookForServers is how often it is looked whether there are servers yet.
	lookForServers = 5 * time.Second
	// lookForMoves is how often it is looked whether they are elsewhere.
	lookForMoves = time.Minute
	// lookForKind is how often it is looked whether the kind is installed.
	lookForKind = 15 * time.Second
)

// redisOperatorStore makes what a store is made of that the Redis Operator runs,
// and finds out where that runs it.
func (r *Reconciler) redisOperatorStore(ctx context.Context, g *v1alpha1.QTLSGateway, now time.Time) (resumption, error) {
	name := resources.RedisOperatorName(g.Name)
	secret := &corev1.Secret{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: name}, secret)
	if client.IgnoreNotFound(err) != nil {
		return resumption{}, fmt.Errorf("Secret %s: %w", name, err)
	}
	credentials, reason, err := redisoperator.Ensure(secret.Data, resources.RedisOperatorHosts(g), now)
	if err != nil {
		return resumption{}, err
	}
	if reason != nil && secret.Data != nil {
		ctrl.LoggerFrom(ctx).Info("the ticket store gets new credentials", "secret", secret.Name, "reason", reason.Error())
	}
	s := resumption{Renew: credentials.RenewAt(), LookAgain: lookForServers}
	if s.Objects, err = resources.RedisOperator(g, r.Settings, credentials); err != nil {
		return resumption{}, err
	}
	object := resources.RedisOperatorReference(g, resources.RedisOperatorKind(g))
	err = r.APIReader.Get(ctx, client.ObjectKeyFromObject(object), object)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		s.NotReady = "it is being created"
		return s, nil
	case err != nil: // the gateway is served all the same, and pods keep the ring that they have
		s.NotReady = fmt.Sprintf("%s %s cannot be read: %v", object.GetKind(), name, err)
		return s, nil
	case !metav1.IsControlledBy(object, g): // applying says so
		return s, nil
	}
	at, notReady := resolve.RedisOperatorLocation(object)
	if at == nil {
		s.NotReady = notReady
		return s, nil
	}
	operator, agent := credentials.Connection(embedded.Operator, *at), credentials.Connection(embedded.Agent, *at)
	s.Operator, s.Agent, s.LookAgain = &operator, &agent, lookForMoves
	return s, nil
}

// notInstalled says of an error from applying an object that its kind is not
// installed, if that is why.
func notInstalled(o client.Object, err error) error {
	u, foreign := o.(*unstructured.Unstructured)
	// To apply creates: what is not found is the kind.
	if !foreign || !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return err
	}
	return conditions.Waiting(lookForKind, v1alpha1.ReasonStoreKindNotInstalled,
		"spec.sessionResumption.store: there is no kind %s in API group %s: install the Redis Operator (OT-CONTAINER-KIT/redis-operator) or choose store.type Embedded",
		u.GetKind(), redisoperator.GroupVersion)
}

// removeRedisOperator takes away what an earlier spec had the Redis Operator
// make. The ConfigMap goes last: without it, nobody asks the API server for
// kinds that it may not have.
func (r *Reconciler) removeRedisOperator(ctx context.Context, g *v1alpha1.QTLSGateway) error {
	config := resources.RedisOperatorConfigMap(g)
	there := &metav1.PartialObjectMetadata{}
	there.SetGroupVersionKind(config.GroupVersionKind())
	if err := r.Get(ctx, client.ObjectKeyFromObject(config), there); err != nil {
		return client.IgnoreNotFound(err)
	}
	wanted := storesIn(g, v1alpha1.TicketStoreRedisOperator)
	var objects []client.Object
	for _, kind := range []v1alpha1.RedisOperatorKind{v1alpha1.RedisOperatorReplication, v1alpha1.RedisOperatorCluster} {
		if !wanted || kind != resources.RedisOperatorKind(g) {
			objects = append(objects, resources.RedisOperatorReference(g, kind))
		}
	}
	if !wanted {
		objects = append(objects, resources.RedisOperatorSecret(g, resources.RedisOperatorServerName(g.Name), nil),
			resources.RedisOperatorSecret(g, resources.RedisOperatorName(g.Name), nil), config)
	}
	for _, o := range objects {
		if err := r.remove(ctx, g, o); err != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("%s %s: %w", o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), err)
		}
	}
	return nil
}
