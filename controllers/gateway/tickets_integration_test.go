//go:build integration

package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/rings"
	"qtls.dev/qtls/internal/testenv"
	"qtls.dev/qtls/internal/tickets"
	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
	"qtls.dev/qtls/internal/ticketstore/storetest"
)

// change an object as a user does, however often its status is written meanwhile.
func change(t *testing.T, c client.Client, o client.Object, edit func()) {
	t.Helper()
	testenv.Eventually(t, func(ctx context.Context) error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		edit()
		return c.Update(ctx, o)
	})
}

// access is what the agents of a gateway read.
func access(ctx context.Context, c client.Client, namespace, gateway string) (dataplane.TicketAccess, error) {
	var a dataplane.TicketAccess
	s := &corev1.Secret{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: dataplane.TicketsSecretName(gateway)}, s); err != nil {
		return a, err
	}
	err := json.Unmarshal(s.Data[dataplane.KeyTickets], &a)
	if err == nil && len(a.Rings) == 0 {
		err = fmt.Errorf("no ring yet")
	}
	return a, err
}

// ringOf is the one ring of a gateway.
func ringOf(t *testing.T, c client.Client, namespace, gateway string) (id string, ring dataplane.RingAccess) {
	t.Helper()
	testenv.Eventually(t, func(ctx context.Context) error {
		a, err := access(ctx, c, namespace, gateway)
		for id, ring = range a.Rings {
		}
		return err
	})
	return id, ring
}

func prepared(t *testing.T) (client.Client, string) {
	c, namespace, _ := start(t)
	create(t, c, webSecret(t, namespace), webService(namespace))
	return c, namespace
}

func TestTheEmbeddedStoreIsMadeAndGoes(t *testing.T) {
	c, namespace := prepared(t)
	g := webGateway(namespace)
	create(t, c, g)
	id, ring := ringOf(t, c, namespace, "web")
	var a dataplane.TicketAccess
	testenv.Eventually(t, func(ctx context.Context) (err error) {
		if a, err = access(ctx, c, namespace, "web"); err == nil && a.Store == nil {
			err = errors.New("the agents know of no store")
		}
		return err
	})
	if a.Store.Username != string(embedded.Agent) || !a.Store.RequireHybrid || len(ring.WrappingKeys) != 1 {
		t.Fatalf("agents: user %s, hybrid %v, %d wrapping keys", a.Store.Username, a.Store.RequireHybrid, len(ring.WrappingKeys))
	}
	at := metav1.ObjectMeta{Namespace: namespace, Name: "web-redis"}
	objects := []client.Object{&appsv1.StatefulSet{ObjectMeta: at}, &corev1.Service{ObjectMeta: at}, &corev1.Secret{ObjectMeta: at},
		&networkingv1.NetworkPolicy{ObjectMeta: at}, &policyv1.PodDisruptionBudget{ObjectMeta: at}}
	for _, o := range objects {
		testenv.Eventually(t, func(ctx context.Context) error { return c.Get(ctx, client.ObjectKeyFromObject(o), o) })
		if owner := metav1.GetControllerOf(o); owner == nil || owner.UID != g.UID {
			t.Errorf("%T is of %+v", o, owner)
		}
	}
	role := &rbacv1.Role{}
	testenv.Eventually(t, func(ctx context.Context) error {
		return c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "web-gateway"}, role)
	})
	for _, rule := range role.Rules {
		if slices.Contains(rule.Resources, "secrets") && (!slices.Contains(rule.ResourceNames, "web-tickets") ||
			slices.Contains(rule.ResourceNames, "web-redis") || slices.ContainsFunc(rule.ResourceNames, func(name string) bool { return strings.HasPrefix(name, rings.SecretPrefix) })) {
			t.Errorf("agents may read Secrets %v", rule.ResourceNames)
		}
	}
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonStoreNotReady, `0 of 1 pods of StatefulSet "web-redis" are ready`)

	// Nothing runs pods here. With the store away for good, and none wanted, everything goes.
	change(t, c, g, func() { g.Spec.SessionResumption.Mode = v1alpha1.SessionResumptionDisabled })
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonDisabled, "every handshake is a full one")
	objects = append(objects, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-tickets"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: rings.SecretName(id)}})
	for _, o := range objects {
		testenv.Eventually(t, func(ctx context.Context) error {
			if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%T %s is still there (%v)", o, o.GetName(), err)
			}
			return nil
		})
	}
}

func TestAStoreOfSomebodyElsesIsLeftAlone(t *testing.T) {
	c, namespace := prepared(t)
	theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-redis"}, Data: map[string][]byte{"a": []byte("b")}}
	create(t, c, theirs)
	g := webGateway(namespace)
	create(t, c, g)
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonNotApplied, `Secret "web-redis" exists`)
	has(t, c, g, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPodsNotReady, "")
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil || string(theirs.Data["a"]) != "b" || len(theirs.Data) != 1 {
		t.Errorf("%v, %d keys", err, len(theirs.Data))
	}
	if err := c.Delete(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonStoreNotReady, "")
}

// externalStore is a real one, and the Secrets with which to reach it.
func externalStore(t *testing.T, c client.Client, namespace string) (*storetest.Server, v1alpha1.TicketStore) {
	t.Helper()
	server := storetest.Start(t)
	writer, reader := server.Connection(embedded.Operator), server.Connection(embedded.Agent)
	secret := func(name string, connection ticketstore.Connection) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LabelTicketStore: v1alpha1.LabelTicketStoreValue}}, Type: corev1.SecretTypeBasicAuth,
			StringData: map[string]string{"username": connection.Username, "password": connection.Password}}
	}
	create(t, c, secret("writer", writer), secret("reader", reader),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "redis-ca"}, Data: map[string]string{"ca.crt": string(writer.CA)}})
	return server, v1alpha1.TicketStore{Type: v1alpha1.TicketStoreExternal, External: &v1alpha1.ExternalStore{
		Addresses: []v1alpha1.StoreAddress{v1alpha1.StoreAddress(server.Address())}, KeyPrefix: embedded.Prefix,
		CARefs:         []v1alpha1.CAReference{{Kind: v1alpha1.CAKindConfigMap, Name: "redis-ca", Key: "ca.crt"}},
		CredentialsRef: v1alpha1.SecretReference{Name: "writer"}, AgentCredentialsRef: v1alpha1.SecretReference{Name: "reader"}}}
}

// readRing as an agent does, with nothing but what its Secret says.
func readRing(ctx context.Context, c client.Client, namespace, gateway string) (string, tickets.Ring, error) {
	a, err := access(ctx, c, namespace, gateway)
	if err != nil {
		return "", tickets.Ring{}, err
	}
	store, err := ticketstore.Open(*a.Store)
	if err != nil {
		return "", tickets.Ring{}, err
	}
	defer store.Close()
	for id, ring := range a.Rings {
		d, err := store.Read(ctx, ring.Stored)
		if err != nil {
			return id, tickets.Ring{}, err
		}
		keys, err := tickets.Open(d.Content, id, ring.WrappingKeys, ring.LeastEpoch)
		return id, keys, err
	}
	return "", tickets.Ring{}, fmt.Errorf("no ring")
}

func TestAnExternalStoreHoldsTheRing(t *testing.T) {
	c, namespace := prepared(t)
	server, store := externalStore(t, c, namespace)
	g := webGateway(namespace)
	g.Spec.SessionResumption.Store = store
	create(t, c, g)
	var ring tickets.Ring
	testenv.Eventually(t, func(ctx context.Context) (err error) {
		_, ring, err = readRing(ctx, c, namespace, "web")
		return err
	})
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonPodsNotReady, "no pod is ready")
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "web-redis"}, &appsv1.StatefulSet{}); !apierrors.IsNotFound(err) {
		t.Errorf("there is an embedded store, too: %v", err)
	}

	t.Run("tickets are dropped", func(t *testing.T) {
		change(t, c, g, func() { g.Annotations = map[string]string{v1alpha1.AnnotationDropTickets: "now"} })
		testenv.Eventually(t, func(ctx context.Context) error {
			_, next, err := readRing(ctx, c, namespace, "web")
			if err != nil {
				return err
			}
			for _, k := range next.Keys {
				if slices.Contains(ring.Keys[:], k) {
					return fmt.Errorf("a key of epoch %d is in use in epoch %d", ring.Epoch, next.Epoch)
				}
			}
			a, err := access(ctx, c, namespace, "web")
			for _, r := range a.Rings {
				if r.LeastEpoch <= ring.Epoch {
					return fmt.Errorf("agents may still use epoch %d", r.LeastEpoch)
				}
			}
			return err
		})
	})
	t.Run("a wrong password is said", func(t *testing.T) {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "writer"}}
		right := server.Connection(embedded.Operator).Password
		for _, password := range []string{"wrong", right} {
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
				t.Fatal(err)
			}
			secret.Data["password"] = []byte(password)
			if err := c.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			reason := map[bool]string{true: v1alpha1.ReasonPodsNotReady, false: v1alpha1.ReasonStoreRefusesAccess}[password == right]
			has(t, c, g, v1alpha1.ConditionSessionResumption, reason, "")
			for _, condition := range g.Status.Conditions {
				if strings.Contains(condition.Message, "wrong") || strings.Contains(condition.Message, right) {
					t.Errorf("a password is in a message: %s", condition.Message)
				}
			}
		}
	})
	t.Run("a store that is away is said", func(t *testing.T) {
		server.Stop()
		has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonStoreUnreachable, server.Address())
		server.Restart()
		has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonPodsNotReady, "")
		testenv.Eventually(t, func(ctx context.Context) error {
			_, _, err := readRing(ctx, c, namespace, "web")
			return err
		})
	})
	t.Run("a missing Secret is said", func(t *testing.T) {
		if err := c.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "reader"}}); err != nil {
			t.Fatal(err)
		}
		has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonStoreInvalid, `agentCredentialsRef: there is no Secret "reader"`)
		if a, err := access(t.Context(), c, namespace, "web"); err != nil || a.Store == nil {
			t.Errorf("the pods lose their connection for it: store %v, %v", a.Store, err)
		}
	})
}

func TestGatewaysShareANamedRing(t *testing.T) {
	c, namespace := prepared(t)
	_, store := externalStore(t, c, namespace)
	keys := map[string]tickets.Ring{}
	ids := map[string]string{}
	for name, mode := range map[string]v1alpha1.PolicyMode{"blue": v1alpha1.PolicyModePrefer, "green": v1alpha1.PolicyModePrefer, "strict": v1alpha1.PolicyModeRequire} {
		g := webGateway(namespace)
		g.Name = name
		g.Spec.PolicyRef = v1alpha1.PolicyReference{Name: "hybrid-v1", Mode: mode}
		g.Spec.SessionResumption.Ring, g.Spec.SessionResumption.Store = "blue-green", store
		create(t, c, g)
	}
	for _, name := range []string{"blue", "green", "strict"} {
		testenv.Eventually(t, func(ctx context.Context) (err error) {
			ids[name], keys[name], err = readRing(ctx, c, namespace, name)
			return err
		})
	}
	if keys["blue"] != keys["green"] || ids["blue"] != ids["green"] {
		t.Errorf("blue and green have rings %s and %s", ids["blue"], ids["green"])
	}
	if ids["strict"] == ids["blue"] || keys["strict"] == keys["blue"] {
		t.Error("a gateway of another policy has their ring")
	}
	remembered := func(ring string, gateways ...string) {
		t.Helper()
		testenv.Eventually(t, func(ctx context.Context) error {
			secret := &corev1.Secret{}
			err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: rings.SecretName(ring)}, secret)
			if client.IgnoreNotFound(err) != nil || apierrors.IsNotFound(err) && len(gateways) == 0 {
				return client.IgnoreNotFound(err)
			}
			var owners []string
			for _, o := range secret.OwnerReferences {
				owners = append(owners, o.Name)
			}
			if slices.Sort(owners); !slices.Equal(owners, gateways) || len(gateways) == 0 {
				return fmt.Errorf("ring %s is remembered for %v, want %v (%v)", ring, owners, gateways, err)
			}
			return nil
		})
	}
	remembered(ids["blue"], "blue", "green")
	remembered(ids["strict"], "strict")

	// Who resumes no more leaves nothing behind.
	disable := func(name string) {
		g := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		change(t, c, g, func() { g.Spec.SessionResumption.Mode = v1alpha1.SessionResumptionDisabled })
	}
	disable("strict")
	remembered(ids["strict"])
	disable("blue")
	remembered(ids["blue"], "green")

	// Who is to have another ring needs the one that its pods serve with until they have.
	g := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "green"}}
	change(t, c, g, func() { g.Spec.SessionResumption.Ring = "another" })
	testenv.Eventually(t, func(ctx context.Context) error {
		a, err := access(ctx, c, namespace, "green")
		if _, former := a.Rings[ids["blue"]]; err == nil && (former || len(a.Rings) != 1) {
			err = fmt.Errorf("agents know of rings %v", a.Rings)
		}
		return err
	})
	remembered(ids["blue"])
}

func TestARingSurvivesTheOperator(t *testing.T) {
	c, namespace, stop := start(t)
	create(t, c, webSecret(t, namespace), webService(namespace))
	_, store := externalStore(t, c, namespace)
	g := webGateway(namespace)
	g.Spec.SessionResumption.Store = store
	g.Spec.SessionResumption.TicketLifetime = &metav1.Duration{Duration: time.Hour}
	create(t, c, g)
	var before tickets.Ring
	testenv.Eventually(t, func(ctx context.Context) (err error) {
		_, before, err = readRing(ctx, c, namespace, "web")
		return err
	})
	stop()
	run(t, namespace)
	change(t, c, g, func() { g.Spec.SessionResumption.TicketLifetime = &metav1.Duration{Duration: 2 * time.Hour} })
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonPodsNotReady, "")
	if _, after, err := readRing(t.Context(), c, namespace, "web"); err != nil || after != before {
		t.Errorf("epoch %d after %d, %v", after.Epoch, before.Epoch, err)
	}
}

// Pods that run drop their connection to the store when they are told of none,
// and pods that start take keys of their own.
func TestAnOperatorThatStartsTakesNothingFromTheAgents(t *testing.T) {
	c, namespace, stop := start(t)
	create(t, c, webSecret(t, namespace), webService(namespace))
	_, store := externalStore(t, c, namespace)
	g := webGateway(namespace)
	g.Spec.SessionResumption.Store = store
	create(t, c, g)
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonPodsNotReady, "no pod is ready")
	stop()
	watcher, err := client.NewWithWatch(testenv.Config(), client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	name := dataplane.TicketsSecretName("web")
	versions, err := watcher.Watch(t.Context(), &corev1.SecretList{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": name})
	if err != nil {
		t.Fatal(err)
	}
	defer versions.Stop()

	run(t, namespace)
	change(t, c, g, func() { g.Spec.Replicas = ptr.To[int32](3) }) // so that it can be seen when it has been reconciled
	has(t, c, g, v1alpha1.ConditionSessionResumption, v1alpha1.ReasonPodsNotReady, "no pod is ready")
	last := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	change(t, c, last, func() { last.Annotations = map[string]string{"test": "the last version"} })
	for version := range versions.ResultChan() {
		s, ok := version.Object.(*corev1.Secret)
		if !ok {
			t.Fatalf("%s: %v", version.Type, version.Object)
		}
		var a dataplane.TicketAccess
		if err := json.Unmarshal(s.Data[dataplane.KeyTickets], &a); err != nil || a.Store == nil || len(a.Rings) != 1 {
			t.Errorf("a version of the Secret has %d rings, and a store: %v (%v)", len(a.Rings), a.Store != nil, err)
		}
		if s.Annotations["test"] != "" {
			return
		}
	}
	t.Error("not every version of the Secret was seen")
}
