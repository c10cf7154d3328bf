//go:build integration

package hsmpool_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	controller "qtls.dev/qtls/controllers/hsmpool"
	"qtls.dev/qtls/internal/hsm/hsmtest"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/testenv"
)

// world is a running controller and a namespace.
type world struct {
	*testing.T
	client.Client
	namespace string
}

func newWorld(t *testing.T) world {
	t.Helper()
	c := testenv.Client(t)
	w := world{t, c, testenv.Namespace(t, c)}
	ofPools, err := labels.Parse(v1alpha1.LabelHSMPool)
	if err != nil {
		t.Fatal(err)
	}
	mgr := testenv.Manager(t, func(o *ctrl.Options) { // as the operator has it
		o.Cache.ByObject = map[client.Object]cache.ByObject{&corev1.PersistentVolumeClaim{}: {Label: ofPools}}
	})
	r := &controller.Reconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Clock: clock.RealClock{}, Recorder: events.NewFakeRecorder(10000),
		Clients: &hsmpool.Clients{}, Interval: 100 * time.Millisecond,
		Settings: resources.Settings{HSMImage: "hsm:test", ImagePullPolicy: corev1.PullIfNotPresent, OperatorNamespace: "qtls-system"}}
	if err := r.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	testenv.Start(t, mgr)
	return w
}

func (w world) soft(name string, storage v1alpha1.SoftTokenStorage, members ...string) *v1alpha1.HSMPool {
	w.Helper()
	pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	for _, m := range members {
		pool.Spec.Members = append(pool.Spec.Members, v1alpha1.HSMMember{Name: m, SoftToken: &v1alpha1.SoftToken{Storage: storage}})
	}
	w.create(pool)
	return pool
}

// create a pool until the test ends: the controllers of other tests have nothing
// to do with it.
func (w world) create(pool *v1alpha1.HSMPool) {
	w.Helper()
	if err := w.Create(w.Context(), pool); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = w.Delete(context.Background(), pool) })
}

func (w world) get(name string, o client.Object) error {
	return w.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, o)
}

// change a pool, whatever its status has become since it was read.
func (w world) change(pool *v1alpha1.HSMPool, edit func()) error {
	before := pool.DeepCopy()
	edit()
	return w.Patch(w.Context(), pool, client.MergeFrom(before))
}

// is waits until a pool's condition is as it should be.
func (w world) is(pool *v1alpha1.HSMPool, condition string, status metav1.ConditionStatus, reason, says string) {
	w.Helper()
	testenv.Eventually(w.T, func(ctx context.Context) error {
		if err := w.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		c := meta.FindStatusCondition(pool.Status.Conditions, condition)
		if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, says) {
			return fmt.Errorf("%s is not %s for %s, saying %q: %+v", condition, status, reason, says, c)
		}
		return nil
	})
}

// The whole life of a pool of tokens in software, but for its pods: the API
// server runs none.
func TestTheDaemonOfASoftToken(t *testing.T) {
	w := newWorld(t)
	pool := w.soft("dev", v1alpha1.SoftTokenStorage{}, "soft-a", "soft-b")
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonDaemonNotReady, `the pod of StatefulSet "dev-soft-a-hsmd" is not ready`)
	w.is(pool, v1alpha1.ConditionDevelopment, "True", v1alpha1.ReasonSoftToken, `not for production: of member "soft-a", "soft-b"`)

	for _, name := range []string{"dev-soft-a-hsmd", "dev-soft-b-hsmd"} {
		for _, o := range []client.Object{&appsv1.StatefulSet{}, &corev1.Service{}, &corev1.ConfigMap{}, &corev1.ServiceAccount{},
			&networkingv1.NetworkPolicy{}, &corev1.PersistentVolumeClaim{}, &corev1.Secret{}} {
			if err := w.get(name, o); err != nil || !metav1.IsControlledBy(o, pool) {
				t.Errorf("%T: %v; owners %v", o, err, o.GetOwnerReferences())
			}
		}
	}
	if err := w.get("dev-hsm", &policyv1.PodDisruptionBudget{}); err != nil {
		t.Error(err)
	}

	// Who shows what to whom.
	whole := func(name string) *corev1.Secret {
		t.Helper()
		s := &corev1.Secret{}
		if err := w.get(name, s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	secret := func(name string) map[string][]byte { return whole(name).Data }
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret("dev-hsm-ca")["ca.crt"])
	for name, c := range map[string]struct {
		dns   string
		usage x509.ExtKeyUsage
	}{
		"dev-hsm-operator": {"operator", x509.ExtKeyUsageClientAuth},
		"dev-hsm-gateways": {"gateways", x509.ExtKeyUsageClientAuth},
		"dev-soft-a-hsmd":  {"dev-soft-a-hsmd." + w.namespace + ".svc", x509.ExtKeyUsageServerAuth},
	} {
		data := secret(name)
		pair, err := tls.X509KeyPair(data["tls.crt"], data["tls.key"])
		if err == nil {
			_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: c.dns, Roots: roots, KeyUsages: []x509.ExtKeyUsage{c.usage}})
		}
		if err != nil || !bytes.Equal(data["ca.crt"], secret("dev-hsm-ca")["ca.crt"]) {
			t.Errorf("Secret %s: %v", name, err)
		}
	}
	gateways, err := hsmpool.GatewayMembers(pool)
	want := hsmpool.GatewayMember{Name: "soft-a", Address: "dev-soft-a-hsmd." + w.namespace + ".svc:7443", ServerName: "dev-soft-a-hsmd." + w.namespace + ".svc", Secret: "dev-hsm-gateways", Sessions: 16}
	if err != nil || len(gateways.Members) != 2 || gateways.Members[0] != want {
		t.Errorf("for gateways: %+v, %v", gateways, err)
	}

	// What was changed or deleted is put back; PINs are what they were.
	pins := secret("dev-soft-a-hsmd-pin")
	if len(pins["pin"]) < 20 || len(pins["so-pin"]) < 20 || bytes.Equal(pins["pin"], pins["so-pin"]) || bytes.Equal(pins["pin"], secret("dev-soft-b-hsmd-pin")["pin"]) {
		t.Error("the PINs are short, or the same")
	}
	config := &corev1.ConfigMap{}
	if err := w.get("dev-soft-a-hsmd", config); err != nil {
		t.Fatal(err)
	}
	text := config.Data["hsmd.conf"]
	config.Data["hsmd.conf"] = "[daemon]\n"
	if err := w.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if err := w.Delete(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "dev-soft-a-hsmd"}}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func(context.Context) error {
		now := &corev1.ConfigMap{}
		if err := w.get("dev-soft-a-hsmd", now); err != nil || now.Data["hsmd.conf"] != text {
			return fmt.Errorf("the configuration is not put back (%v): %s", err, now.Data["hsmd.conf"])
		}
		return w.get("dev-soft-a-hsmd", &corev1.Service{})
	})
	if again := secret("dev-soft-a-hsmd-pin"); !bytes.Equal(again["pin"], pins["pin"]) {
		t.Error("another PIN")
	}

	// PINs that are gone are not made anew while the token is there.
	backup := whole("dev-soft-a-hsmd-pin")
	if err := w.Delete(t.Context(), backup.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonPINMissing, `restore the Secret, or give the token and its keys up by deleting PersistentVolumeClaim "dev-soft-a-hsmd"`)
	backup.ResourceVersion, backup.UID, backup.OwnerReferences, backup.Labels = "", "", nil, nil // as backups do
	if err := w.Create(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonDaemonNotReady, "soft-a")

	// A member that goes takes all of its own along, and nothing else.
	if err := w.change(pool, func() { pool.Spec.Members = pool.Spec.Members[1:] }); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func(context.Context) error {
		for _, o := range []client.Object{&appsv1.StatefulSet{}, &corev1.Service{}, &corev1.ConfigMap{}, &corev1.ServiceAccount{}, &networkingv1.NetworkPolicy{}, &corev1.Secret{}} {
			if err := w.get("dev-soft-a-hsmd", o); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%T is there still (%v)", o, err)
			}
		}
		claim := &corev1.PersistentVolumeClaim{} // its finalizer is for a controller that does not run here
		if err := w.get("dev-soft-a-hsmd", claim); !apierrors.IsNotFound(err) && claim.DeletionTimestamp == nil {
			return fmt.Errorf("the volume is there still (%v)", err)
		}
		if err := w.get("dev-soft-a-hsmd-pin", &corev1.Secret{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the PINs are there still (%v)", err)
		}
		return nil
	})
	for name, o := range map[string]client.Object{"dev-soft-b-hsmd": &appsv1.StatefulSet{}, "dev-soft-b-hsmd-pin": &corev1.Secret{}, "dev-hsm-ca": &corev1.Secret{}} {
		if err := w.get(name, o); err != nil {
			t.Error(err)
		}
	}
}

func TestASoftTokenWithoutAVolume(t *testing.T) {
	w := newWorld(t)
	pool := w.soft("dev", v1alpha1.SoftTokenStorage{Ephemeral: true}, "soft")
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonDaemonNotReady, "dev-soft-hsmd")
	if err := w.get("dev-soft-hsmd", &corev1.PersistentVolumeClaim{}); !apierrors.IsNotFound(err) {
		t.Errorf("there is a volume (%v)", err)
	}
	// PINs that are gone are made anew, and the token with them.
	pins := &corev1.Secret{}
	if err := w.get("dev-soft-hsmd-pin", pins); err != nil {
		t.Fatal(err)
	}
	if err := w.Delete(t.Context(), pins); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func(context.Context) error {
		again, set := &corev1.Secret{}, &appsv1.StatefulSet{}
		if err := errors.Join(w.get("dev-soft-hsmd-pin", again), w.get("dev-soft-hsmd", set)); err != nil {
			return err
		}
		if of := set.Spec.Template.Annotations[resources.AnnotationHsmdPINs]; again.UID == pins.UID || of != string(again.UID) {
			return fmt.Errorf("the pod is for the PINs %s; the Secret was %s and is %s", of, pins.UID, again.UID)
		}
		return nil
	})
	if err := w.change(pool, func() { pool.Spec.Members[0].SoftToken.Storage.Ephemeral = false }); err == nil || !strings.Contains(err.Error(), "add a member with another name") {
		t.Errorf("the storage can be changed: %v", err)
	}
}

func TestANameThatSomebodyElseHas(t *testing.T) {
	w := newWorld(t)
	other := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "dev-soft-hsmd"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if err := w.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	pool := w.soft("dev", v1alpha1.SoftTokenStorage{Ephemeral: true}, "soft")
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonNotApplied, `Service "dev-soft-hsmd" exists in namespace "`+w.namespace+`" and is not this HSMPool's`)
	if err := w.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonDaemonNotReady, "dev-soft-hsmd")
}

// volume is a claim that the test makes, and that a token's has the name of.
func (w world) volume(name string, labels map[string]string) *corev1.PersistentVolumeClaim {
	w.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: labels},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
	if err := w.Create(w.Context(), claim); err != nil {
		w.Fatal(err)
	}
	return claim
}

// pins are a Secret of those of a token, as a backup that knows no owner restores it.
func (w world) pins(name string) {
	w.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Data: map[string][]byte{"pin": []byte("user"), "so-pin": []byte("officer")}}
	if err := w.Create(w.Context(), secret); err != nil {
		w.Fatal(err)
	}
}

// It would be deleted with the pool.
func TestAVolumeOfSomebodyElse(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(world)
	}{
		{"of a new token", func(world) {}},
		{"of a token with PINs", func(w world) { w.pins("dev-soft-hsmd-pin") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			claim := w.volume("dev-soft-hsmd", map[string]string{"app": "theirs"})
			c.before(w)
			pool := w.soft("dev", v1alpha1.SoftTokenStorage{}, "soft")
			w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonNotApplied,
				`PersistentVolumeClaim "dev-soft-hsmd" exists in namespace "`+w.namespace+`" and is not this HSMPool's; delete it, or rename the HSMPool`)
			if err := w.get(claim.Name, claim); err != nil || len(claim.OwnerReferences) > 0 || len(claim.Labels) != 1 {
				t.Errorf("%v; owners %v, labels %v", err, claim.OwnerReferences, claim.Labels)
			}
		})
	}
}

// Pods that run keep it until they are deleted; there is nothing more to do about
// the volume itself.
func TestAVolumeThatIsBeingDeleted(t *testing.T) {
	for _, c := range []struct {
		name    string
		without bool // its PINs
	}{{"with its PINs", false}, {"without its PINs", true}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			pool := w.soft("dev", v1alpha1.SoftTokenStorage{}, "soft")
			w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonDaemonNotReady, "dev-soft-hsmd")
			if c.without {
				if err := w.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "dev-soft-hsmd-pin"}}); err != nil {
					t.Fatal(err)
				}
				w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonPINMissing, "dev-soft-hsmd-pin")
			}
			claim := &corev1.PersistentVolumeClaim{}
			if err := w.get("dev-soft-hsmd", claim); err != nil {
				t.Fatal(err)
			}
			claim.Finalizers = []string{"test.qtls.dev/pods-use-it"}
			if err := errors.Join(w.Update(t.Context(), claim), w.Delete(t.Context(), claim)); err != nil {
				t.Fatal(err)
			}
			w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonNotApplied,
				`PersistentVolumeClaim "dev-soft-hsmd" in namespace "`+w.namespace+`" is being deleted; it goes when the pods of StatefulSet "dev-soft-hsmd" are deleted`)
			gone := claim.UID
			if err := w.get("dev-soft-hsmd", claim); err != nil {
				t.Fatal(err)
			}
			claim.Finalizers = nil
			if err := w.Update(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
			w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonDaemonNotReady, "dev-soft-hsmd")
			if err := errors.Join(w.get("dev-soft-hsmd", claim), w.get("dev-soft-hsmd-pin", &corev1.Secret{})); err != nil || claim.UID == gone {
				t.Errorf("%v; the volume is another one: %t", err, claim.UID != gone)
			}
		})
	}
}

func TestAVolumeFromABackup(t *testing.T) {
	w := newWorld(t)
	claim := w.volume("dev-soft-hsmd", map[string]string{v1alpha1.LabelHSMPool: "dev"})
	w.pins("dev-soft-hsmd-pin")
	pool := w.soft("dev", v1alpha1.SoftTokenStorage{}, "soft")
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonDaemonNotReady, "dev-soft-hsmd")
	if err := w.get(claim.Name, claim); err != nil || !metav1.IsControlledBy(claim, pool) || claim.Labels[v1alpha1.LabelManagedBy] != v1alpha1.LabelManagedByValue {
		t.Errorf("%v; owners %v, labels %v", err, claim.OwnerReferences, claim.Labels)
	}
}

// One volume and one pair of PINs for the members that share a token, as long as
// there is one of them.
func TestMembersThatShareAToken(t *testing.T) {
	w := newWorld(t)
	pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "dev"}}
	for _, m := range []struct{ name, size string }{{"soft-a", "1Gi"}, {"soft-b", "2Gi"}} { // the first describes the volume, for ever
		storage := v1alpha1.SoftTokenStorage{Shared: true, Size: ptr.To(resource.MustParse(m.size))}
		pool.Spec.Members = append(pool.Spec.Members, v1alpha1.HSMMember{Name: m.name, SoftToken: &v1alpha1.SoftToken{Storage: storage}})
	}
	w.create(pool)
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonDaemonNotReady, "dev-soft-b-hsmd")
	pins, claim := &corev1.Secret{}, &corev1.PersistentVolumeClaim{}
	if err := errors.Join(w.get("dev-hsm-token", claim), w.get("dev-hsm-token-pin", pins)); err != nil || !slices.Equal(claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}) {
		t.Fatalf("%v, access modes %v", err, claim.Spec.AccessModes)
	}
	for _, name := range []string{"dev-soft-a-hsmd", "dev-soft-b-hsmd"} {
		set := &appsv1.StatefulSet{}
		if err := w.get(name, set); err != nil {
			t.Fatal(err)
		}
		var uses []string
		for _, v := range set.Spec.Template.Spec.Volumes {
			if c := v.PersistentVolumeClaim; c != nil {
				uses = append(uses, c.ClaimName)
			}
		}
		if !slices.Equal(uses, []string{"dev-hsm-token"}) {
			t.Errorf("StatefulSet %s uses the volumes %v", name, uses)
		}
	}

	if err := w.change(pool, func() { pool.Spec.Members = pool.Spec.Members[1:] }); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func(context.Context) error {
		if err := w.get("dev-soft-a-hsmd", &appsv1.StatefulSet{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the StatefulSet is there still (%v)", err)
		}
		return nil
	})
	again := &corev1.Secret{}
	if err := errors.Join(w.get("dev-hsm-token", claim), w.get("dev-hsm-token-pin", again)); err != nil || claim.DeletionTimestamp != nil || !bytes.Equal(again.Data["pin"], pins.Data["pin"]) {
		t.Errorf("the token that is left: %v, deleted at %v", err, claim.DeletionTimestamp)
	}
}

// Members are asked every few seconds; that alone writes nothing.
func TestWhatIsThereIsNotWrittenAgain(t *testing.T) {
	c := testenv.Client(t)
	w := world{t, c, testenv.Namespace(t, c)}
	mgr := testenv.Manager(t)
	counted := &testenv.Counting{Client: mgr.GetClient()}
	r := &controller.Reconciler{Client: counted, APIReader: mgr.GetAPIReader(), Clock: clock.RealClock{}, Recorder: events.NewFakeRecorder(10000),
		Clients: &hsmpool.Clients{}, Interval: time.Millisecond, Settings: resources.Settings{HSMImage: "hsm:test", OperatorNamespace: "qtls-system"}}
	testenv.Start(t, mgr)
	pool := w.soft("dev", v1alpha1.SoftTokenStorage{}, "soft")
	reconcile := func() (int, error) {
		before := counted.Applied
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(pool)})
		return counted.Applied - before, err
	}
	testenv.Eventually(t, func(context.Context) error {
		if n, err := reconcile(); err != nil || n == 0 { // the cache is behind
			return fmt.Errorf("%d objects are applied: %v", n, err)
		}
		return nil
	})
	testenv.Eventually(t, func(context.Context) error {
		n, err := reconcile()
		if err != nil || n > 0 {
			return fmt.Errorf("%d objects are applied again: %v", n, err)
		}
		return nil
	})
	if err := w.change(pool, func() { pool.Spec.Timeout = &metav1.Duration{Duration: 7 * time.Second} }); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func(context.Context) error {
		if n, err := reconcile(); err != nil || n == 0 {
			return fmt.Errorf("after a change %d objects are applied: %v", n, err)
		}
		return nil
	})
}

// Nor does a problem that lasts: what is written stays, and what cannot be is
// tried again.
func TestAProblemIsNoReasonToWriteAllAgain(t *testing.T) {
	c := testenv.Client(t)
	w := world{t, c, testenv.Namespace(t, c)}
	mgr := testenv.Manager(t)
	counted := &testenv.Counting{Client: mgr.GetClient()}
	r := &controller.Reconciler{Client: counted, APIReader: mgr.GetAPIReader(), Clock: clock.RealClock{}, Recorder: events.NewFakeRecorder(10000),
		Clients: &hsmpool.Clients{}, Interval: time.Millisecond, Settings: resources.Settings{HSMImage: "hsm:test", OperatorNamespace: "qtls-system"}}
	testenv.Start(t, mgr)
	other := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "dev-a-hsmd"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if err := w.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	pool := w.soft("dev", v1alpha1.SoftTokenStorage{}, "a", "b")
	// applies says how many objects are applied at a look, and why members are down.
	applies := func() (n int, reasons []string, err error) {
		before := counted.Applied
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(pool)}); err != nil {
			return 0, nil, err
		}
		err = w.get("dev", pool)
		for _, m := range pool.Status.Members {
			reasons = append(reasons, m.Reason)
		}
		return counted.Applied - before, reasons, err
	}
	is := func(n int, reasons ...string) {
		t.Helper()
		testenv.Eventually(t, func(context.Context) error { // the cache is behind
			if got, why, err := applies(); err != nil || got != n || !slices.Equal(why, reasons) {
				return fmt.Errorf("%d objects are applied, and the members say %v (%v), want %d and %v", got, why, err, n, reasons)
			}
			return nil
		})
	}
	is(0, v1alpha1.ReasonNotApplied, v1alpha1.ReasonDaemonNotReady)
	if err := w.get("dev-b-hsmd", &appsv1.StatefulSet{}); err != nil {
		t.Error(err)
	}
	// What somebody else changed is written again, and nothing else.
	service := &corev1.Service{}
	if err := w.get("dev-b-hsmd", service); err != nil {
		t.Fatal(err)
	}
	service.Spec.Ports[0].Name = "changed"
	if err := w.Update(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	is(1, v1alpha1.ReasonNotApplied, v1alpha1.ReasonDaemonNotReady)
	is(0, v1alpha1.ReasonNotApplied, v1alpha1.ReasonDaemonNotReady)
	if err := w.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	is(0, v1alpha1.ReasonDaemonNotReady, v1alpha1.ReasonDaemonNotReady)
}

// refusing is a client with which no Service can be written, for a reason.
type refusing struct {
	client.Client
	why error
}

func (c *refusing) Apply(ctx context.Context, o runtime.ApplyConfiguration, options ...client.ApplyOption) error {
	if c.why != nil && o.(interface{ GetKind() string }).GetKind() == "Service" {
		return c.why
	}
	return c.Client.Apply(ctx, o, options...)
}

// How members are is followed meanwhile, and what cannot be written is told, and
// tried again.
func TestWhatCannotBeWrittenKeepsNoMemberFromBeingLookedAt(t *testing.T) {
	c := testenv.Client(t)
	w := world{t, c, testenv.Namespace(t, c)}
	mgr := testenv.Manager(t)
	writer := &refusing{Client: mgr.GetClient()}
	r := &controller.Reconciler{Client: writer, APIReader: mgr.GetAPIReader(), Clock: clock.RealClock{}, Recorder: events.NewFakeRecorder(10000),
		Clients: &hsmpool.Clients{}, Interval: time.Millisecond, Settings: resources.Settings{HSMImage: "hsm:test", OperatorNamespace: "qtls-system"}}
	testenv.Start(t, mgr)
	authority := hsmtest.NewAuthority(t)
	remote := hsmtest.Serve(t, authority)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "hsm-client"}, Data: map[string][]byte{"ca.crt": authority.PEM()}}
	secret.Data["tls.crt"], secret.Data["tls.key"] = authority.Issue(t, hsmtest.ClientName)
	if err := w.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "dev"}, Spec: v1alpha1.HSMPoolSpec{
		Timeout: &metav1.Duration{Duration: 30 * time.Second}, Members: []v1alpha1.HSMMember{
			{Name: "hsm", Remote: &v1alpha1.RemoteHSM{Address: v1alpha1.StoreAddress(remote.Address), ServerName: hsmtest.ServerName, TLSSecretRef: v1alpha1.SecretReference{Name: "hsm-client"}}},
			{Name: "soft", SoftToken: &v1alpha1.SoftToken{Storage: v1alpha1.SoftTokenStorage{Ephemeral: true}}},
		}}}
	w.create(pool)
	is := func(state v1alpha1.HSMMemberState, reason string) {
		t.Helper()
		testenv.Eventually(t, func(context.Context) error { // the cache is behind
			_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(pool)})
			if !errors.Is(err, writer.why) {
				return fmt.Errorf("the reconciliation ends with %v, want %v", err, writer.why)
			}
			if err := w.get("dev", pool); err != nil {
				return err
			}
			m := pool.Status.Members
			if len(m) != 2 || m[0].State != state || m[1].Reason != reason || writer.why != nil && !strings.Contains(m[1].Message, "Service dev-soft-hsmd: "+writer.why.Error()) {
				return fmt.Errorf("members %+v, want the first %s and the second with the problem %s, of %v", m, state, reason, writer.why)
			}
			return nil
		})
	}
	for _, why := range []error{
		// What admission webhooks answer that give no reason of their own, and what is
		// answered in place of one that is away.
		&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 400, Message: `admission webhook "deny.example.com" denied the request: no Services here`}},
		apierrors.NewInternalError(errors.New(`failed calling webhook "deny.example.com": no endpoints available`)),
	} {
		writer.why = why
		remote.Token.Set("state", "Up")
		is(v1alpha1.HSMMemberUp, v1alpha1.ReasonNotApplied)
		remote.Token.Set("state", "Down")
		is(v1alpha1.HSMMemberDown, v1alpha1.ReasonNotApplied)
	}
	writer.why = nil
	is(v1alpha1.HSMMemberDown, v1alpha1.ReasonDaemonNotReady)
}

// daemon stands in for that of a member of the pool "dev", with the certificate that
// the operator has issued.
func (w world) daemon(member string) *hsmtest.Server {
	w.Helper()
	secret := &corev1.Secret{}
	if err := w.get("dev-"+member+"-hsmd", secret); err != nil {
		w.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		w.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(secret.Data["ca.crt"])
	return hsmtest.Serve(w.T, hsmtest.NewAuthority(w.T), func(c *tls.Config) {
		c.Certificates, c.ClientCAs = []tls.Certificate{certificate}, clients
	})
}

// A change that all daemons have to start anew for reaches one after the other, each
// when all others sign.
func TestDaemonsAreReplacedOneAtATime(t *testing.T) {
	c := testenv.Client(t)
	w := world{t, c, testenv.Namespace(t, c)}
	mgr := testenv.Manager(t)
	addresses := map[string]string{}
	clients := &hsmpool.Clients{Redirect: func(address string) string { return cmp.Or(addresses[address], address) }}
	r := &controller.Reconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Clock: clock.RealClock{}, Recorder: events.NewFakeRecorder(10000),
		Clients: clients, Interval: time.Millisecond, Settings: resources.Settings{HSMImage: "hsm:1", OperatorNamespace: "qtls-system"}}
	testenv.Start(t, mgr)
	pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "dev"}, Spec: v1alpha1.HSMPoolSpec{Timeout: &metav1.Duration{Duration: 30 * time.Second}}}
	for _, m := range []string{"a", "b"} {
		pool.Spec.Members = append(pool.Spec.Members, v1alpha1.HSMMember{Name: m, SoftToken: &v1alpha1.SoftToken{}})
	}
	w.create(pool)
	reconcile := func() {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(pool)}); err != nil && !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
	}
	// image that a member's pod is to have, as soon as there is one.
	image := func(member string) string {
		set := &appsv1.StatefulSet{}
		if err := w.get("dev-"+member+"-hsmd", set); err != nil {
			return err.Error()
		}
		return set.Spec.Template.Spec.Containers[0].Image
	}
	// runs plays the StatefulSet controller, which is not here.
	runs := func(member string, ready int32) {
		t.Helper()
		set := &appsv1.StatefulSet{}
		if err := w.get("dev-"+member+"-hsmd", set); err != nil {
			t.Fatal(err)
		}
		set.Status.ObservedGeneration, set.Status.Replicas, set.Status.UpdatedReplicas, set.Status.ReadyReplicas = set.Generation, 1, 1, ready
		if err := w.Status().Update(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
	are := func(when, a, b string) {
		t.Helper()
		for range 3 {
			reconcile()
		}
		if gotA, gotB := image("a"), image("b"); gotA != a || gotB != b {
			t.Errorf("%s: %s and %s, want %s and %s", when, gotA, gotB, a, b)
		}
	}
	testenv.Eventually(t, func(context.Context) error { // the cache is behind
		reconcile()
		if a, b := image("a"), image("b"); a != "hsm:1" || b != "hsm:1" {
			return fmt.Errorf("%s and %s", a, b)
		}
		return nil
	})
	runs("a", 1)
	runs("b", 1)
	a, b := w.daemon("a"), w.daemon("b")
	for member, daemon := range map[string]*hsmtest.Server{"a": a, "b": b} {
		addresses["dev-"+member+"-hsmd."+w.namespace+".svc:7443"] = daemon.Address
	}

	upgrade := func(to string) {
		r = &controller.Reconciler{Client: r.Client, APIReader: r.APIReader, Clock: r.Clock, Recorder: r.Recorder, Clients: r.Clients, Interval: r.Interval, Settings: r.Settings}
		r.Settings.HSMImage = to
	}
	upgrade("hsm:typo")
	are("another operator", "hsm:typo", "hsm:1")
	runs("a", 0)
	are("its image does not run", "hsm:typo", "hsm:1")
	upgrade("hsm:2")
	are("what does not run is corrected", "hsm:2", "hsm:1")
	runs("a", 1)
	a.Token.Set("state", "Down")
	are("it is ready, and its token is down", "hsm:2", "hsm:1")
	testenv.Eventually(t, func(ctx context.Context) error { // the cache is behind
		reconcile()
		if err := w.get("dev", pool); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
		if m := pool.Status.Members[1]; m.State != v1alpha1.HSMMemberUp || m.Reason != v1alpha1.ReasonProgressing || !strings.Contains(ready.Message, m.Message) ||
			!strings.HasPrefix(m.Message, `member "b": a change of its daemon waits, for the others have to sign while its pod is replaced: member "a" is Down; `) {
			return fmt.Errorf("nobody is told what is held: %+v", pool.Status)
		}
		return nil
	})
	a.Token.Set("state", "Up")
	are("it signs", "hsm:2", "hsm:2")
	runs("b", 1)

	// So does its configuration, which its container reads when it starts anew.
	timeout := func(member string) string {
		config := &corev1.ConfigMap{}
		if err := w.get("dev-"+member+"-hsmd", config); err != nil {
			return err.Error()
		}
		_, rest, _ := strings.Cut(config.Data["hsmd.conf"], "\ntimeout = ")
		line, _, _ := strings.Cut(rest, "\n")
		return line
	}
	come := func(when, toA, toB string) {
		t.Helper()
		testenv.Eventually(t, func(context.Context) error { // the cache is behind
			reconcile()
			if gotA, gotB := timeout("a"), timeout("b"); gotA != toA || gotB != toB {
				return fmt.Errorf("%s: %s and %s, want %s and %s", when, gotA, gotB, toA, toB)
			}
			return nil
		})
	}
	runs("a", 0)
	if err := w.change(pool, func() { pool.Spec.Timeout.Duration = 40 * time.Second }); err != nil {
		t.Fatal(err)
	}
	come("another timeout", "32000ms", "24000ms")
	for range 3 {
		reconcile()
	}
	come("the first is not ready", "32000ms", "24000ms")
	runs("a", 1)
	come("it signs", "32000ms", "32000ms")
}

func TestADaemonWithAVendorsLibrary(t *testing.T) {
	w := newWorld(t)
	pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "prod"}, Spec: v1alpha1.HSMPoolSpec{Members: []v1alpha1.HSMMember{{
		Name: "luna", Daemon: &v1alpha1.HSMDaemon{
			Module:   v1alpha1.HSMModule{Image: "luna:10", Folder: "/opt/luna", Path: "/opt/luna/libCryptoki2.so"},
			HSMToken: v1alpha1.HSMToken{Token: "gateways", PINSecretRef: v1alpha1.SecretReference{Name: "luna-pin"}},
		},
	}}}}
	w.create(pool)
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonPINMissing, `spec.members[luna].daemon.pinSecretRef: Secret "luna-pin" is not there in namespace "`+w.namespace)
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionDevelopment); c != nil {
		t.Errorf("an HSM is said to be for development: %+v", c)
	}
	pin := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "luna-pin"}, Data: map[string][]byte{"password": []byte("1234")}}
	if err := w.Create(t.Context(), pin); err != nil {
		t.Fatal(err)
	}
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonPINMissing, `has no key "pin"`)
	pin.Data["pin"] = []byte("1234")
	if err := w.Update(t.Context(), pin); err != nil {
		t.Fatal(err)
	}
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonDaemonNotReady, "prod-luna-hsmd")
	// So is a PIN that is taken away later.
	pin.Data["pin"] = nil
	if err := w.Update(t.Context(), pin); err != nil {
		t.Fatal(err)
	}
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonPINMissing, `has no key "pin"`)
	if err := w.Delete(t.Context(), pin); err != nil {
		t.Fatal(err)
	}
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonPINMissing, `Secret "luna-pin" is not there in namespace "`+w.namespace)
	set := &appsv1.StatefulSet{}
	if err := w.get("prod-luna-hsmd", set); err != nil {
		t.Fatal(err)
	}
	volume := set.Spec.Template.Spec.Volumes[slices.IndexFunc(set.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "module" })]
	if volume.Image == nil || volume.Image.Reference != "luna:10" {
		t.Errorf("the library's volume: %+v", volume)
	}
}

// The operator has a daemon of its own with a library that gateways have in
// their pods, and says what both wait for.
func TestALibraryInThePodsOfGateways(t *testing.T) {
	w := newWorld(t)
	pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "prod"}, Spec: v1alpha1.HSMPoolSpec{Members: []v1alpha1.HSMMember{{
		Name: "nshield", Module: &v1alpha1.HSMModuleMember{
			HSMModule: v1alpha1.HSMModule{Image: "nfast:13", Folder: "/opt/nfast", Path: "/opt/nfast/libcknfast.so", Files: []v1alpha1.HSMModuleFiles{
				{Folder: "/etc/nfast", ConfigMapRef: &v1alpha1.ConfigMapReference{Name: "nfast-config"}},
				{Folder: "/etc/nfast-tls", SecretRef: &v1alpha1.SecretReference{Name: "nfast-client"}},
				{Folder: "/srv/kmdata", PersistentVolumeClaimRef: &v1alpha1.PersistentVolumeClaimReference{Name: "world"}},
			}},
			HSMToken: v1alpha1.HSMToken{Serial: "42", PINSecretRef: v1alpha1.SecretReference{Name: "card-pin"}},
		},
	}}}}
	w.create(pool)
	const field = "spec.members[nshield].module"
	type lost struct {
		client.Object
		reason, says string
	}
	var given []lost
	for _, step := range []struct {
		reason, says string
		then         client.Object
	}{
		{v1alpha1.ReasonPINMissing, field + `.pinSecretRef: Secret "card-pin" is not there`,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "card-pin"}, Data: map[string][]byte{"pin": []byte("1234")}}},
		{v1alpha1.ReasonConfigMapNotFound, field + `, files of folder /etc/nfast: ConfigMap "nfast-config" is not there`,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "nfast-config"}}},
		{v1alpha1.ReasonSecretNotFound, field + `, files of folder /etc/nfast-tls: Secret "nfast-client" is not there`,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "nfast-client"}}},
		{v1alpha1.ReasonVolumeClaimNotFound, field + `, files of folder /srv/kmdata: PersistentVolumeClaim "world" is not there`,
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "world"}, Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}}}}},
	} {
		w.is(pool, v1alpha1.ConditionReady, "False", step.reason, step.says)
		step.then.SetNamespace(w.namespace)
		if err := w.Create(t.Context(), step.then); err != nil {
			t.Fatal(err)
		}
		given = append(given, lost{step.then, step.reason, step.says})
	}
	w.is(pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonDaemonNotReady, "prod-nshield-hsmd")
	// What is taken away later is told, too: the last first, for of several one is.
	slices.Reverse(given)
	for _, g := range given {
		if err := w.get(g.Object.GetName(), g.Object); err != nil {
			t.Fatal(err)
		}
		g.Object.SetFinalizers(nil) // a volume's is for a controller that does not run here
		if err := errors.Join(w.Update(t.Context(), g.Object), w.Delete(t.Context(), g.Object)); err != nil {
			t.Fatal(err)
		}
		w.is(pool, v1alpha1.ConditionReady, "False", g.reason, g.says)
	}
	set := &appsv1.StatefulSet{}
	if err := w.get("prod-nshield-hsmd", set); err != nil {
		t.Fatal(err)
	}
	mounts := set.Spec.Template.Spec.Containers[0].VolumeMounts
	if i := slices.IndexFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/srv/kmdata" }); i < 0 || mounts[i].ReadOnly {
		t.Errorf("the library's state: %+v", mounts)
	}
}

func TestWhatMembersMayNotBe(t *testing.T) {
	c := testenv.Client(t)
	w := world{t, c, testenv.Namespace(t, c)}
	daemon := func(change func(*v1alpha1.HSMDaemon)) v1alpha1.HSMMember {
		d := &v1alpha1.HSMDaemon{Module: v1alpha1.HSMModule{Image: "luna:10", Folder: "/opt/luna", Path: "/opt/luna/libCryptoki2.so"},
			HSMToken: v1alpha1.HSMToken{Token: "gateways", PINSecretRef: v1alpha1.SecretReference{Name: "luna-pin"}}}
		change(d)
		return v1alpha1.HSMMember{Name: "luna", Daemon: d}
	}
	module := func(change func(*v1alpha1.HSMModuleMember)) v1alpha1.HSMMember {
		d := daemon(func(*v1alpha1.HSMDaemon) {}).Daemon
		m := &v1alpha1.HSMModuleMember{HSMModule: d.Module, HSMToken: d.HSMToken}
		change(m)
		return v1alpha1.HSMMember{Name: "luna", Module: m}
	}
	variable := func(name string) v1alpha1.HSMMember {
		return module(func(m *v1alpha1.HSMModuleMember) {
			m.Environment = []v1alpha1.HSMModuleVariable{{Name: name, Value: "/x"}}
		})
	}
	soft := func(storage v1alpha1.SoftTokenStorage) v1alpha1.HSMMember {
		return v1alpha1.HSMMember{Name: "soft", SoftToken: &v1alpha1.SoftToken{Storage: storage}}
	}
	for name, tc := range map[string]struct {
		pool   string
		member v1alpha1.HSMMember
		says   string
	}{
		"nothing":                       {"dev", v1alpha1.HSMMember{Name: "none"}, "a member is one of remote, daemon, module and softToken"},
		"two things":                    {"dev", v1alpha1.HSMMember{Name: "both", SoftToken: &v1alpha1.SoftToken{}, Daemon: daemon(func(*v1alpha1.HSMDaemon) {}).Daemon}, "a member is one of remote, daemon, module and softToken"},
		"a pool that no Service may be": {"1dev", soft(v1alpha1.SoftTokenStorage{}), "a Service is named after it"},
		"another one":                   {"a.dev", soft(v1alpha1.SoftTokenStorage{}), "a Service is named after it"},
		"ephemeral, and shared":         {"dev", soft(v1alpha1.SoftTokenStorage{Ephemeral: true, Shared: true}), "ephemeral storage"},
		"ephemeral, with a size":        {"dev", soft(v1alpha1.SoftTokenStorage{Ephemeral: true, Size: ptr.To(resource.MustParse("1Gi"))}), "ephemeral storage"},
		"label and serial number":       {"dev", daemon(func(d *v1alpha1.HSMDaemon) { d.Serial = "1" }), "either token or serial"},
		"no token":                      {"dev", daemon(func(d *v1alpha1.HSMDaemon) { d.Token = "" }), "either token or serial"},
		"a library elsewhere":           {"dev", daemon(func(d *v1alpha1.HSMDaemon) { d.Module.Path = "/opt/other/lib.so" }), "path is a file below folder"},
		"a folder that is needed":       {"dev", daemon(func(d *v1alpha1.HSMDaemon) { d.Module.Folder, d.Module.Path = "/usr", "/usr/lib/x.so" }), "the container needs its own"},
		"a folder of HAProxy's":         {"dev", module(func(m *v1alpha1.HSMModuleMember) { m.Folder, m.Path = "/run/qtls/x", "/run/qtls/x/x.so" }), "the container needs its own"},
		"OpenSSL's configuration":       {"dev", variable("OPENSSL_CONF"), "about HAProxy itself"},
		"the loader's":                  {"dev", variable("LD_PRELOAD"), "about HAProxy itself"},
		"a library without a token":     {"dev", module(func(m *v1alpha1.HSMModuleMember) { m.Token = "" }), "either token or serial"},
		"two sources of files": {"dev", module(func(m *v1alpha1.HSMModuleMember) {
			m.Files = []v1alpha1.HSMModuleFiles{{Folder: "/etc/luna", SecretRef: &v1alpha1.SecretReference{Name: "a"}, ConfigMapRef: &v1alpha1.ConfigMapReference{Name: "a"}}}
		}), "one of a Secret, a ConfigMap and a PersistentVolumeClaim"},
		"a line break in a label": {"dev", daemon(func(d *v1alpha1.HSMDaemon) { d.Token = "a\nmodule = /x" }), "spec.members[0].daemon.token"},
		"files of nothing":        {"dev", daemon(func(d *v1alpha1.HSMDaemon) { d.Module.Files = []v1alpha1.HSMModuleFiles{{Folder: "/etc/luna"}} }), "one of a Secret, a ConfigMap and a PersistentVolumeClaim"},
	} {
		pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: tc.pool}, Spec: v1alpha1.HSMPoolSpec{Members: []v1alpha1.HSMMember{tc.member}}}
		if err := w.Create(t.Context(), pool); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v\nwant a refusal that says %q", name, err, tc.says)
		}
	}
	for name, m := range map[string]v1alpha1.HSMMember{
		"library": variable("ChrystokiConfigurationPath"), "label": daemon(func(*v1alpha1.HSMDaemon) {}), "serial": daemon(func(d *v1alpha1.HSMDaemon) { d.Token, d.Serial = "", "A 1" }), "shared": soft(v1alpha1.SoftTokenStorage{Shared: true}),
	} {
		w.create(&v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Spec: v1alpha1.HSMPoolSpec{Members: []v1alpha1.HSMMember{m}}})
	}
}
