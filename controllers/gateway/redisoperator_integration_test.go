//go:build integration

package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/testenv"
	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/redisoperator"
	"qtls.dev/qtls/internal/ticketstore/redisoperator/operatortest"
)

// install the Redis Operator's kinds; remove takes them away again, at the
// latest when the test ends.
func installKinds(t *testing.T, c client.Client) (remove func()) {
	t.Helper()
	for _, k := range operatortest.Kinds() {
		create(t, c, k)
	}
	// Served: the API server has none of that name.
	testenv.Eventually(t, func(ctx context.Context) error {
		for _, kind := range []v1alpha1.RedisOperatorKind{v1alpha1.RedisOperatorReplication, v1alpha1.RedisOperatorCluster} {
			o := resources.RedisOperatorReference(webGateway("default"), kind)
			if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
	remove = func() {
		ctx := context.WithoutCancel(t.Context())
		for _, k := range operatortest.Kinds() {
			if err := c.Delete(ctx, k); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
			for c.Get(ctx, client.ObjectKeyFromObject(k), k) == nil { // the next test makes it again
				time.Sleep(50 * time.Millisecond)
			}
		}
	}
	t.Cleanup(remove)
	return remove
}

func operatedGateway(namespace string, store *v1alpha1.RedisOperatorStore) *v1alpha1.QTLSGateway {
	g := webGateway(namespace)
	g.Spec.SessionResumption.Store = v1alpha1.TicketStore{Type: v1alpha1.TicketStoreRedisOperator, RedisOperator: store}
	return g
}

// object of a kind for gateway web, when it is there.
func operatedObject(t *testing.T, c client.Client, g *v1alpha1.QTLSGateway, kind v1alpha1.RedisOperatorKind) *unstructured.Unstructured {
	t.Helper()
	o := resources.RedisOperatorReference(g, kind)
	testenv.Eventually(t, func(ctx context.Context) error { return c.Get(ctx, client.ObjectKeyFromObject(o), o) })
	return o
}

// says what the Redis Operator would.
func says(t *testing.T, c client.Client, o *unstructured.Unstructured, status map[string]any) {
	t.Helper()
	testenv.Eventually(t, func(ctx context.Context) error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		o.Object["status"] = status
		return c.Status().Update(ctx, o)
	})
}

// storeIs waits until the agents are told of a store.
func storeIs(t *testing.T, c client.Client, namespace string, mode ticketstore.Mode, address string) {
	t.Helper()
	testenv.Eventually(t, func(ctx context.Context) error {
		a, err := access(ctx, c, namespace, "web")
		switch {
		case err != nil:
			return err
		case a.Store == nil:
			return errors.New("the agents know of no store")
		case a.Store.Mode != mode || a.Store.Addresses[0] != address:
			return fmt.Errorf("the agents' store: %s %v", a.Store.Mode, a.Store.Addresses)
		}
		return nil
	})
}

func gone(t *testing.T, c client.Client, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		testenv.Eventually(t, func(ctx context.Context) error {
			if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
				return fmt.Errorf("%T %s is still there (%v)", o, o.GetName(), err)
			}
			return nil
		})
	}
}

// reconciliations of gateways, of all tests so far.
func reconciliations(t *testing.T) (n float64) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "controller_runtime_reconcile_total" {
			for _, m := range f.GetMetric() {
				n += m.GetCounter().GetValue()
			}
		}
	}
	if n == 0 {
		t.Fatal("no reconciliations are counted")
	}
	return n
}

func TestTheRedisOperatorMayBeInstalledLater(t *testing.T) {
	c, namespace := prepared(t)
	g := operatedGateway(namespace, nil)
	create(t, c, g)
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonStoreKindNotInstalled,
		"there is no kind RedisReplication in API group redis.redis.opstreelabs.in/v1beta2: install the Redis Operator (OT-CONTAINER-KIT/redis-operator) or choose store.type Embedded")
	has(t, c, g, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPodsNotReady, "") // it serves all the same
	ringOf(t, c, namespace, "web")                                              // and its pods have what they need

	// Waiting costs next to nothing, once what was done is known everywhere; and needs nobody's help.
	testenv.Eventually(t, func(context.Context) error {
		before := reconciliations(t)
		time.Sleep(5 * time.Second)
		if n := reconciliations(t) - before; n > 2 {
			return fmt.Errorf("%v reconciliations in 5 s in which nothing happened", n)
		}
		return nil
	})
	remove := installKinds(t, c)
	o := operatedObject(t, c, g, v1alpha1.RedisOperatorReplication)
	if !metav1.IsControlledBy(o, g) {
		t.Error("the object is not the gateway's: deleting the gateway would leave it")
	}
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonStoreNotReady, `RedisReplication "web-ticket-store" has no status.connectionInfo yet`)

	// And gone again: nothing fails but this.
	remove()
	change(t, c, g, func() { g.Spec.Replicas = ptr.To[int32](3) })
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonStoreKindNotInstalled, "there is no kind RedisReplication")
	has(t, c, g, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPodsNotReady, "")
	change(t, c, g, func() { g.Spec.SessionResumption.Store = v1alpha1.TicketStore{} })
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonStoreNotReady, `StatefulSet "web-redis"`)
	gone(t, c, resources.RedisOperatorConfigMap(g))
}

func TestTheRingIsWhereTheRedisOperatorSays(t *testing.T) {
	c, namespace := prepared(t)
	installKinds(t, c)
	g := operatedGateway(namespace, &v1alpha1.RedisOperatorStore{})
	create(t, c, g)
	o := operatedObject(t, c, g, v1alpha1.RedisOperatorReplication)

	// These definitions refuse what the Redis Operator does not document.
	wrong := o.DeepCopy()
	wrong.SetName("wrong")
	wrong.SetManagedFields(nil)
	wrong.SetResourceVersion("")
	wrong.SetUID("")
	wrong.Object["spec"].(map[string]any)["kubernetesConfig"].(map[string]any)["imageName"] = "x"
	if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(wrong), client.FieldOwner("test")); err == nil || !strings.Contains(err.Error(), "imageName") {
		t.Errorf("a field that is not documented: %v", err)
	}

	// A server with what the object names, as the Redis Operator would run it.
	named := func(path ...string) string {
		name, _, err := unstructured.NestedString(o.Object, append([]string{"spec"}, path...)...)
		if err != nil || name == "" {
			t.Fatalf("%v: %q, %v", path, name, err)
		}
		return name
	}
	secret, config := &corev1.Secret{}, &corev1.ConfigMap{}
	for name, into := range map[string]client.Object{named("TLS", "secret", "secretName"): secret, named("redisConfig", "additionalRedisConfig"): config} {
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, into); err != nil {
			t.Fatal(err)
		}
	}
	server := operatortest.Start(t, secret.Data, config.Data[redisoperator.KeyConfig])
	info := func(port int) map[string]any {
		return map[string]any{"connectionInfo": map[string]any{"host": "localhost", "port": int64(port)}}
	}
	says(t, c, o, info(server.Port))
	storeIs(t, c, namespace, ticketstore.Members, fmt.Sprintf("localhost:%d", server.Port))
	testenv.Eventually(t, func(ctx context.Context) error {
		_, _, err := readRing(ctx, c, namespace, "web")
		return err
	})
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonPodsNotReady, "no pod is ready")

	t.Run("a server away is said to be", func(t *testing.T) {
		says(t, c, o, info(1))
		change(t, c, g, func() { g.Spec.Replicas = ptr.To[int32](3) }) // sooner than in a minute
		has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonStoreUnreachable, "localhost:1")
	})

	t.Run("by its Sentinels", func(t *testing.T) {
		change(t, c, g, func() { g.Spec.SessionResumption.Store.RedisOperator.Sentinel = &v1alpha1.RedisSentinels{} })
		testenv.Eventually(t, func(ctx context.Context) error {
			err := c.Get(ctx, client.ObjectKeyFromObject(o), o)
			if size, _, _ := unstructured.NestedInt64(o.Object, "spec", "sentinel", "size"); size != 3 {
				err = errors.Join(err, fmt.Errorf("%d Sentinels", size))
			}
			return err
		})
		sentinel := operatortest.StartSentinel(t, secret.Data, server)
		status := info(sentinel.Port)
		status["connectionInfo"].(map[string]any)["masterName"] = "mymaster"
		says(t, c, o, status)
		storeIs(t, c, namespace, ticketstore.Sentinel, fmt.Sprintf("localhost:%d", sentinel.Port))
		testenv.Eventually(t, func(ctx context.Context) error {
			_, _, err := readRing(ctx, c, namespace, "web")
			return err
		})
		has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonPodsNotReady, "no pod is ready")
	})

	t.Run("another kind takes the place of the first", func(t *testing.T) {
		change(t, c, g, func() {
			g.Spec.SessionResumption.Store.RedisOperator = &v1alpha1.RedisOperatorStore{Kind: v1alpha1.RedisOperatorCluster}
		})
		cluster := operatedObject(t, c, g, v1alpha1.RedisOperatorCluster)
		gone(t, c, o)
		has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonStoreNotReady, `RedisCluster "web-ticket-store" has no status.connectionInfo yet`)
		says(t, c, cluster, map[string]any{"state": "Ready"})
		storeIs(t, c, namespace, ticketstore.Cluster, "web-ticket-store-leader."+namespace+".svc:6379")
	})

	t.Run("and another store that of both", func(t *testing.T) {
		change(t, c, g, func() { g.Spec.SessionResumption.Store = v1alpha1.TicketStore{} })
		gone(t, c, resources.RedisOperatorReference(g, v1alpha1.RedisOperatorCluster), resources.RedisOperatorConfigMap(g),
			resources.RedisOperatorSecret(g, "web-ticket-store", nil), resources.RedisOperatorSecret(g, "web-ticket-store-server", nil))
		at := client.ObjectKey{Namespace: namespace, Name: "web-redis"}
		testenv.Eventually(t, func(ctx context.Context) error { return c.Get(ctx, at, &appsv1.StatefulSet{}) })
	})
}

func TestAStoreOfTheRedisOperatorsOfSomebodyElsesIsLeftAlone(t *testing.T) {
	c, namespace := prepared(t)
	installKinds(t, c)
	g := operatedGateway(namespace, nil)
	theirs := resources.RedisOperatorReference(g, v1alpha1.RedisOperatorReplication)
	theirs.Object["spec"] = map[string]any{"clusterSize": int64(1)}
	create(t, c, theirs)
	create(t, c, g)
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonNotApplied, `RedisReplication "web-ticket-store" exists`)
	change(t, c, g, func() { g.Spec.SessionResumption.Store = v1alpha1.TicketStore{} })
	gone(t, c, resources.RedisOperatorConfigMap(g))
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil || len(theirs.GetOwnerReferences()) > 0 {
		t.Errorf("%v, owners %v", err, theirs.GetOwnerReferences())
	}
}
