//go:build integration

package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/mtls"
	"qtls.dev/qtls/internal/observe"
	"qtls.dev/qtls/internal/policy/shipped"
	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/rings"
	"qtls.dev/qtls/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// start runs the controller, as the operator does, against the real API server.
func start(t *testing.T) (c client.Client, namespace string, stop func()) {
	t.Helper()
	c = testenv.Client(t)
	namespace = testenv.Namespace(t, c)
	policies, err := shipped.Policies()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range policies {
		if err := c.Create(t.Context(), p.DeepCopy()); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { // the next test's controller would go on with them
		_ = c.DeleteAllOf(context.Background(), &v1alpha1.QTLSGateway{}, client.InNamespace(namespace))
	})
	return c, namespace, run(t, namespace)
}

func run(t *testing.T, namespace string) (stop func()) {
	t.Helper()
	mgr := testenv.Manager(t)
	authority := &Authority{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Namespace: namespace, Clock: clock.RealClock{}}
	changes := make(chan event.GenericEvent, 100)
	observer := observe.New(t.Context(), mtls.StatusPort, authority.HTTPClient, func(n types.NamespacedName) {})
	r := &Reconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Clock: clock.RealClock{}, Recorder: mgr.GetEventRecorder("test"),
		Settings: resources.Settings{Image: "gateway:test", RedisImage: "redis:test", ImagePullPolicy: corev1.PullIfNotPresent, OperatorNamespace: namespace},
		Observer: observer, Authority: authority, Changes: changes,
		Rings: rings.New(t.Context(), mgr.GetClient(), mgr.GetAPIReader(), clock.RealClock{}, func(n types.NamespacedName) {
			g := &v1alpha1.QTLSGateway{}
			g.Namespace, g.Name = n.Namespace, n.Name
			select {
			case changes <- event.GenericEvent{Object: g}:
			case <-t.Context().Done():
			}
		})}
	if err := r.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	return testenv.Start(t, mgr)
}

func create(t *testing.T, c client.Client, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatalf("%T %s: %v", o, o.GetName(), err)
		}
	}
}

func webGateway(namespace string) *v1alpha1.QTLSGateway {
	return &v1alpha1.QTLSGateway{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
		Spec: v1alpha1.QTLSGatewaySpec{Listeners: []v1alpha1.Listener{{
			Name: "https", Port: 443, Protocol: v1alpha1.ProtocolHTTPS, Hostnames: []v1alpha1.Hostname{"web.example.com"},
			CertificateRefs: []v1alpha1.CertificateReference{{Kind: v1alpha1.CertificateKindSecret, Name: "web-tls"}},
			Backends:        []v1alpha1.BackendReference{{Name: "web", Port: intstr.FromInt32(80)}},
		}}},
	}
}

func webService(namespace string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
}

// has waits until a condition of the gateway has a reason and says something.
func has(t *testing.T, c client.Client, g *v1alpha1.QTLSGateway, kind, reason, says string) {
	t.Helper()
	testenv.Eventually(t, func(ctx context.Context) error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(g), g); err != nil {
			return err
		}
		got := meta.FindStatusCondition(g.Status.Conditions, kind)
		if got == nil || got.Reason != reason || !strings.Contains(got.Message, says) || got.ObservedGeneration != g.Generation {
			return fmt.Errorf("condition %s is %+v at generation %d; want reason %s saying %q", kind, got, g.Generation, reason, says)
		}
		return nil
	})
}

// assignment reads what the agents of the gateway are told.
func assignment(ctx context.Context, c client.Client, namespace string) (dataplane.Assignment, dataplane.Endpoints, error) {
	cm := &corev1.ConfigMap{}
	var a dataplane.Assignment
	var e dataplane.Endpoints
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: dataplane.ObjectName("web")}, cm); err != nil {
		return a, e, err
	}
	if err := json.Unmarshal([]byte(cm.Data[dataplane.KeyEndpoints]), &e); err != nil {
		return a, e, err
	}
	return a, e, json.Unmarshal([]byte(cm.Data[dataplane.KeyAssignment]), &a)
}

// endpointSlice is of a Service with a port without a name.
func endpointSlice(namespace, service, address string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To[int32](8080)}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
	}
}

// reached waits until the agents are told exactly these endpoints, of all groups.
func reached(t *testing.T, c client.Client, namespace string, groups ...string) {
	t.Helper()
	want := strings.Join(groups, " ")
	testenv.Eventually(t, func(ctx context.Context) error {
		_, endpoints, err := assignment(ctx, c, namespace)
		if err != nil {
			return err
		}
		var all []string
		for _, group := range slices.Sorted(maps.Keys(endpoints)) {
			all = append(all, fmt.Sprintf("%s=%v", group, endpoints[group]))
		}
		if got := strings.Join(all, " "); got != want {
			return fmt.Errorf("endpoints %s, want %s", got, want)
		}
		return nil
	})
}

// serving makes a pod of the gateway that is ready, and whose agent has not said
// what it runs: it may be what is published.
func serving(t *testing.T, c client.Client, g *v1alpha1.QTLSGateway) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: g.Name + "-1", Labels: resources.Selector(g.Name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "haproxy", Image: "none"}}}}
	create(t, c, pod)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if err := c.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	has(t, c, g, v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgressing, "pod "+pod.Name)
	return pod
}

// Pods run an earlier revision until they have taken up the next. So long they are
// told the endpoints of its backends, as these come and go.
func TestEndpointsOfAnEarlierRevisionAreFollowed(t *testing.T) {
	c, ns, _ := start(t)
	former, next := webService(ns), webService(ns)
	next.Name = "next"
	slice, g := endpointSlice(ns, "web", "10.0.0.9"), webGateway(ns)
	create(t, c, webSecret(t, ns), former, next, slice, endpointSlice(ns, "next", "10.0.1.1"), g)
	reached(t, c, ns, "web:80=[{10.0.0.9 8080}]")
	pod := serving(t, c, g)
	before, _, err := assignment(t.Context(), c, ns)
	if err != nil {
		t.Fatal(err)
	}

	change(t, c, g, func() { g.Spec.Listeners[0].Backends[0].Name = "next" })
	reached(t, c, ns, "next:80=[{10.0.1.1 8080}]", "web:80=[{10.0.0.9 8080}]")
	if now, _, err := assignment(t.Context(), c, ns); err != nil || now != before {
		t.Errorf("the pods are told %+v (%v), want what they may run: %+v", now, err, before)
	}
	change(t, c, slice, func() { slice.Endpoints[0].Addresses[0] = "10.0.0.10" })
	reached(t, c, ns, "next:80=[{10.0.1.1 8080}]", "web:80=[{10.0.0.10 8080}]")

	// Also while a problem holds it.
	change(t, c, g, func() { g.Spec.Listeners[0].CertificateRefs[0].Name = "nowhere" })
	has(t, c, g, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonCertificateNotFound, "nowhere")
	change(t, c, slice, func() { slice.Endpoints[0].Addresses[0] = "10.0.0.11" })
	reached(t, c, ns, "next:80=[{10.0.1.1 8080}]", "web:80=[{10.0.0.11 8080}]")

	// A Service that is gone has none; its EndpointSlices go later.
	if err := c.Delete(t.Context(), former); err != nil {
		t.Fatal(err)
	}
	reached(t, c, ns, "next:80=[{10.0.1.1 8080}]", "web:80=[]")

	// When no pod runs it any more, it is forgotten.
	if err := c.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	change(t, c, g, func() { g.Spec.Listeners[0].CertificateRefs[0].Name = "web-tls" })
	reached(t, c, ns, "next:80=[{10.0.1.1 8080}]")
}

// Clients reach pods on the ports that these listen on, whatever the spec says,
// until they have taken that up.
func TestAServiceKeepsThePortsOfAnEarlierRevision(t *testing.T) {
	c, ns, _ := start(t)
	g := webGateway(ns)
	create(t, c, webSecret(t, ns), webService(ns), g)
	ports := func(want ...int32) {
		t.Helper()
		testenv.Eventually(t, func(ctx context.Context) error {
			s := &corev1.Service{}
			if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "web-gateway"}, s); err != nil {
				return err
			}
			var got []int32
			for _, p := range s.Spec.Ports {
				got = append(got, p.Port)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				return fmt.Errorf("ports %v, want %v", got, want)
			}
			return nil
		})
	}
	pod := serving(t, c, g)
	ports(443)
	change(t, c, g, func() {
		g.Spec.Listeners[0].Port = 8443
		g.Spec.Listeners[0].CertificateRefs[0].Name = "nowhere"
	})
	has(t, c, g, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPending, "is served on")
	ports(443, 8443)
	change(t, c, g, func() { g.Spec.Listeners[0].CertificateRefs[0].Name = "web-tls" })
	has(t, c, g, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonResolvedRefs, "")
	ports(443, 8443) // the pod has not taken it up
	if err := c.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	ports(8443)
}

func TestAGatewayBecomesItsObjects(t *testing.T) {
	c, ns, _ := start(t)
	create(t, c, webSecret(t, ns), webService(ns), webGateway(ns))
	g := webGateway(ns)
	has(t, c, g, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "")
	has(t, c, g, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonResolvedRefs, "")
	has(t, c, g, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPodsNotReady, "pods are being created")
	if g.Status.Pods != "0/2" || g.Status.Policy != "hybrid-v1 (Prefer)" || g.Status.CertificateAlgorithms != "ECDSA-P256" {
		t.Errorf("status: pods %q, policy %q, certificates %q", g.Status.Pods, g.Status.Policy, g.Status.CertificateAlgorithms)
	}
	if len(g.Status.Certificates) != 1 || g.Status.Certificates[0].SerialNumber != "77" {
		t.Errorf("certificates %+v, want the one of serial 77", g.Status.Certificates)
	}
	for name, o := range map[string]client.Object{
		"web-gateway": &appsv1.Deployment{}, "web-gateway ": &corev1.Service{}, "web-gateway  ": &corev1.ServiceAccount{},
		"web-gateway   ": &rbacv1.Role{}, "web-gateway    ": &rbacv1.RoleBinding{}, "web-gateway     ": &policyv1.PodDisruptionBudget{},
		"web-dataplane": &corev1.ConfigMap{}, "web-agent-tls": &corev1.Secret{},
	} {
		testenv.Eventually(t, func(ctx context.Context) error {
			return c.Get(ctx, client.ObjectKey{Namespace: ns, Name: strings.TrimSpace(name)}, o)
		})
		if !metav1.IsControlledBy(o, g) {
			t.Errorf("%T %s is not the gateway's: deleting the gateway would leave it", o, o.GetName())
		}
	}
	a, _, err := assignment(t.Context(), c, ns)
	if err != nil || a.Stable.Generation != g.Generation || a.Stable.Revision != g.Status.Revision {
		t.Errorf("assignment %+v (%v), want the status's revision %s at generation %d", a, err, g.Status.Revision, g.Generation)
	}
}

func TestDriftIsPutBack(t *testing.T) {
	c, ns, _ := start(t)
	create(t, c, webSecret(t, ns), webService(ns), webGateway(ns))
	d := &appsv1.Deployment{}
	key := client.ObjectKey{Namespace: ns, Name: "web-gateway"}
	testenv.Eventually(t, func(ctx context.Context) error {
		if err := c.Get(ctx, key, d); err != nil {
			return err
		}
		d.Spec.Template.Spec.Containers[0].Image = "evil:1"
		return c.Update(ctx, d) // the controller may have written it meanwhile
	})
	testenv.Eventually(t, func(ctx context.Context) error {
		if err := c.Get(ctx, key, d); err != nil {
			return err
		}
		if got := d.Spec.Template.Spec.Containers[0].Image; got != "gateway:test" {
			return fmt.Errorf("image %s", got)
		}
		return nil
	})
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web-gateway"}}
	testenv.Eventually(t, func(ctx context.Context) error { return c.Get(ctx, key, role) })
	first := role.UID
	if err := c.Delete(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func(ctx context.Context) error {
		if err := c.Get(ctx, key, role); err != nil {
			return err
		}
		if role.UID == first {
			return errors.New("the Role is not deleted yet")
		}
		return nil
	})
}

// A reconciliation that read an old gateway from its cache finds nothing to
// write: what another has written since must bring the next.
func TestAnotherStatusIsPutBack(t *testing.T) {
	c, ns, _ := start(t)
	g := webGateway(ns)
	create(t, c, webSecret(t, ns), webService(ns), g)
	has(t, c, g, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPodsNotReady, "pods are being created")
	before := g.DeepCopy()
	g.Status.Pods = "9/9"
	meta.SetStatusCondition(&g.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: "True", Reason: v1alpha1.ReasonProgrammed})
	if err := c.Status().Patch(t.Context(), g, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	has(t, c, g, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPodsNotReady, "pods are being created")
	if g.Status.Pods != "0/2" {
		t.Errorf("status.pods is %q", g.Status.Pods)
	}
}

func TestWhatBelongsToSomebodyElseIsLeftAlone(t *testing.T) {
	c, ns, _ := start(t)
	theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web-gateway"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}}
	create(t, c, webSecret(t, ns), webService(ns), theirs, webGateway(ns))
	g := webGateway(ns)
	has(t, c, g, v1alpha1.ConditionProgrammed, v1alpha1.ReasonNotApplied, `Service "web-gateway" exists in namespace`)
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil || theirs.Spec.Ports[0].Port != 1 || len(theirs.OwnerReferences) > 0 {
		t.Errorf("their Service was changed: %+v (%v)", theirs.Spec, err)
	}
	// It keeps nothing else from being written.
	change(t, c, g, func() { g.Spec.Replicas = ptr.To[int32](5) })
	testenv.Eventually(t, func(ctx context.Context) error {
		d := &appsv1.Deployment{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(theirs), d); err != nil {
			return err
		}
		if *d.Spec.Replicas != 5 {
			return fmt.Errorf("%d replicas, want 5", *d.Spec.Replicas)
		}
		return c.Get(ctx, client.ObjectKeyFromObject(theirs), &policyv1.PodDisruptionBudget{})
	})
	if err := c.Delete(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	has(t, c, g, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPodsNotReady, "")
}

// behind is a cache that has nothing yet.
type behind struct{ client.Client }

func (b behind) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// An apply takes over what there is: what the cache does not have yet may be there
// all the same.
func TestACacheThatIsBehindTakesNothingFromSomebodyElse(t *testing.T) {
	c := testenv.Client(t)
	ns := testenv.Namespace(t, c)
	theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web-gateway"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}}
	g := webGateway(ns)
	create(t, c, theirs, g)
	r := &Reconciler{Client: behind{c}, APIReader: c}
	if err := r.applyObject(t.Context(), g, resources.Service(g, nil)); err == nil || !strings.Contains(err.Error(), `Service "web-gateway" exists in namespace`) {
		t.Errorf("%v; want that it is somebody else's", err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil || theirs.Spec.Ports[0].Port != 1 || len(theirs.OwnerReferences) > 0 {
		t.Errorf("their Service was changed: %+v (%v)", theirs.Spec, err)
	}
	if err := c.Delete(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	if err := r.applyObject(t.Context(), g, resources.Service(g, nil)); err != nil {
		t.Error(err)
	}
}

// Each change of an endpoint brings a reconciliation: it writes the endpoints, and
// nothing that is as it was.
func TestWhatIsAsItWasAppliedIsNotAppliedAgain(t *testing.T) {
	c := &testenv.Counting{Client: testenv.Client(t)}
	g := webGateway(testenv.Namespace(t, c))
	create(t, c, g)
	r := &Reconciler{Client: c, APIReader: c}
	service := &corev1.Service{}
	apply := func(when string, ports []int32, want int) {
		t.Helper()
		if err := r.applyObject(t.Context(), g, resources.Service(g, ports)); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if c.Applied != want {
			t.Errorf("%s: applied %d times, want %d", when, c.Applied, want)
		}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: g.Namespace, Name: resources.Name(g.Name)}, service); err != nil || service.Spec.Selector["app"] != "" {
			t.Errorf("%s: %+v (%v)", when, service.Spec, err)
		}
	}
	apply("first", nil, 1)
	apply("again", nil, 1)
	apply("another", []int32{8443}, 2)
	apply("the other again", []int32{8443}, 2)
	service.Spec.Selector["app"] = "other"
	if err := c.Update(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	apply("changed by somebody else", []int32{8443}, 3)
	if err := c.Delete(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	apply("deleted by somebody else", []int32{8443}, 4)
	r.applied.Forget(key(g))
	apply("forgotten", []int32{8443}, 5)
}

func TestReferencesAreFollowedAsTheyAppearAndGo(t *testing.T) {
	c, ns, _ := start(t)
	g := webGateway(ns)
	create(t, c, g)
	has(t, c, g, v1alpha1.ConditionReady, v1alpha1.ReasonCertificateNotFound, `there is no Secret "web-tls"`)
	if _, _, err := assignment(t.Context(), c, ns); !apierrors.IsNotFound(err) {
		t.Errorf("without a certificate something is published: %v", err)
	}
	secret := webSecret(t, ns)
	create(t, c, secret)
	has(t, c, g, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonBackendNotFound, `there is no Service "web"`)
	create(t, c, webService(ns))
	has(t, c, g, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonResolvedRefs, "")

	create(t, c, endpointSlice(ns, "web", "10.0.0.9"))
	reached(t, c, ns, "web:80=[{10.0.0.9 8080}]")

	before, _, err := assignment(t.Context(), c, ns)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	has(t, c, g, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPending, "as it was published last, is kept, but no pod is ready")
	after, _, err := assignment(t.Context(), c, ns)
	if err != nil || after.Stable != before.Stable {
		t.Errorf("without its Secret the gateway is told %+v (%v), want what it was: %+v", after, err, before)
	}
}

// Objects that an earlier release let through may name what cannot be asked for.
func TestANameThatNothingCanHaveIsOfWhatIsNotThere(t *testing.T) {
	c := testenv.Client(t)
	ns := testenv.Namespace(t, c)
	create(t, c, webSecret(t, ns))
	found, err := getAll[corev1.Secret](t.Context(), c, ns, []string{"", "..", "a%2fb", "team-a/clients-ca", "web-tls"})
	if err != nil || len(found) != 1 || found["web-tls"] == nil {
		t.Errorf("%v, %v; want the one that there is", found, err)
	}
}

// secretless may read no Secret.
type secretless struct{ client.Client }

func (r secretless) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, secret := o.(*corev1.Secret); secret {
		return errors.New("secrets is forbidden")
	}
	return r.Client.Get(ctx, key, o, options...)
}

func TestWhatKeepsAGatewayFromBeingDecidedIsTold(t *testing.T) {
	c := testenv.Client(t)
	g := webGateway(testenv.Namespace(t, c))
	create(t, c, g)
	meta.SetStatusCondition(&g.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, ObservedGeneration: g.Generation})
	g.Status.Pods = "2/2"
	if err := c.Status().Update(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	now := clocktesting.NewFakePassiveClock(time.Now())
	r := &Reconciler{Client: c, APIReader: secretless{c}, Clock: now, Recorder: events.NewFakeRecorder(10)}
	reconcile := func() {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key(g)}); err == nil {
			t.Error("it is not tried again")
		}
	}
	reconcile()
	has(t, c, g, v1alpha1.ConditionReady, v1alpha1.ReasonReady, "") // it may be over in a moment

	now.SetTime(now.Now().Add(failureGrace))
	reconcile()
	for _, kind := range []string{v1alpha1.ConditionProgrammed, v1alpha1.ConditionReady} {
		has(t, c, g, kind, v1alpha1.ReasonNotApplied, "secrets is forbidden")
	}
	if g.Status.ObservedGeneration != g.Generation || g.Status.Pods != "2/2" {
		t.Errorf("status %+v: want this generation's, and the pods that there were", g.Status)
	}
}

func TestARestartChangesNothing(t *testing.T) {
	c, ns, stop := start(t)
	create(t, c, webSecret(t, ns), webService(ns), webGateway(ns))
	g := webGateway(ns)
	has(t, c, g, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonResolvedRefs, "")
	versions := func() string {
		var out []string
		for _, o := range []client.Object{&appsv1.Deployment{}, &corev1.Service{}, &rbacv1.Role{}} {
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "web-gateway"}, o); err != nil {
				t.Fatal(err)
			}
			out = append(out, o.GetResourceVersion())
		}
		for _, o := range []client.Object{&corev1.ConfigMap{}} {
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "web-dataplane"}, o); err != nil {
				t.Fatal(err)
			}
			out = append(out, o.GetResourceVersion())
		}
		secret := &corev1.Secret{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "web-agent-tls"}, secret); err != nil {
			t.Fatal(err)
		}
		return strings.Join(append(out, secret.ResourceVersion), " ")
	}
	testenv.Eventually(t, func(ctx context.Context) error {
		return c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "web-gateway"}, &appsv1.Deployment{})
	})
	before := versions()
	stop()
	run(t, ns)
	testenv.Never(t, 2*time.Second, func(context.Context) error {
		if now := versions(); now != before {
			return fmt.Errorf("resource versions %s, before the restart %s", now, before)
		}
		return nil
	})
}

func TestAPolicyThatAppearsIsTaken(t *testing.T) {
	c, ns, _ := start(t)
	g := webGateway(ns)
	g.Spec.PolicyRef = v1alpha1.PolicyReference{Name: "own-" + ns, Mode: v1alpha1.PolicyModeRequire}
	create(t, c, webSecret(t, ns), webService(ns), g)
	has(t, c, g, v1alpha1.ConditionAccepted, v1alpha1.ReasonPolicyNotFound, "there is no QTLSPolicy")
	create(t, c, &v1alpha1.QTLSPolicy{ObjectMeta: metav1.ObjectMeta{Name: "own-" + ns}, Spec: v1alpha1.QTLSPolicySpec{
		Versions: []v1alpha1.TLSVersion{"TLS1.3"}, Groups: []v1alpha1.Group{"MLKEM768"},
		SignatureSchemes: []v1alpha1.SignatureScheme{"mldsa65"}, CipherSuites: []v1alpha1.CipherSuite{"TLS_AES_256_GCM_SHA384"}}})
	has(t, c, g, v1alpha1.ConditionAccepted, v1alpha1.ReasonCertificateAgainstPolicy, "accepts none of web-tls (ECDSA-P256)")
}
