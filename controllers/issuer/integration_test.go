//go:build integration

package issuer_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/controllers/issuer"
	"qtls.dev/qtls/internal/hsm/hsmtest"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/issuers"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/pki"
	"qtls.dev/qtls/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// start an operator whose own namespace is given.
func start(t *testing.T, namespace string) (*clocktesting.FakePassiveClock, *events.FakeRecorder) {
	mgr := testenv.Manager(t)
	clock := clocktesting.NewFakePassiveClock(time.Now())
	recorder := events.NewFakeRecorder(1000)
	r := &issuer.Reconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Clock: clock, Namespace: namespace, Recorder: recorder, HSMs: &hsmpool.Clients{}}
	if err := r.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	testenv.Start(t, mgr)
	return clock, recorder
}

// authority is the data of a CA's Secret.
func authority(t *testing.T, algorithm v1alpha1.KeyAlgorithm, life time.Duration) map[string][]byte {
	t.Helper()
	key, err := pki.GenerateKey(algorithm)
	if err != nil {
		t.Fatal(err)
	}
	requestPEM, err := pki.NewRequest(key, pki.Names{CommonName: "Test " + string(algorithm)})
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.ParseRequest(requestPEM)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := pki.SelfSign(pki.Order{Request: request, IsCA: true, KeyUsage: x509.KeyUsageCertSign, Duration: life}, key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := keypair.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{corev1.TLSCertKey: pki.CertificatesPEM(issued.Chain.Leaf()), corev1.TLSPrivateKeyKey: keyPEM}
}

func await(t *testing.T, c client.Client, o client.Object, status metav1.ConditionStatus, reason, says string) *v1alpha1.IssuerStatus {
	t.Helper()
	_, s := issuers.Parts(o)
	testenv.Eventually(t, func(ctx context.Context) error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Status != status || ready.Reason != reason || ready.ObservedGeneration != o.GetGeneration() || !strings.Contains(ready.Message, says) {
			return fmt.Errorf("not %s for %s, saying %q: %+v", status, reason, says, ready)
		}
		return nil
	})
	return s
}

func TestBothKindsFollowTheirSecrets(t *testing.T) {
	c := testenv.Client(t)
	for _, kind := range []string{issuers.Kind, issuers.ClusterKind} {
		t.Run(kind, func(t *testing.T) {
			namespace := testenv.Namespace(t, c)
			clock, _ := start(t, namespace)
			o := issuers.New(kind)
			o.SetName("ca-" + namespace)
			if kind == issuers.Kind {
				o.SetNamespace(namespace)
			}
			spec, _ := issuers.Parts(o)
			spec.CA = &v1alpha1.CAIssuer{SecretRefs: []v1alpha1.SecretReference{{Name: "pq"}, {Name: "classical"}}}
			if err := c.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Delete(context.Background(), o) })
			await(t, c, o, metav1.ConditionFalse, v1alpha1.ReasonSecretNotFound, `Secret "pq" is not there in namespace "`+namespace)

			secret := func(name string, data map[string][]byte) *corev1.Secret {
				s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeTLS, Data: data}
				if err := c.Create(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				return s
			}
			update := func(s *corev1.Secret, data map[string][]byte) {
				s.Data = data
				if err := c.Update(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
			good := authority(t, "ML-DSA-65", 24*time.Hour)
			pq := secret("pq", good)
			await(t, c, o, metav1.ConditionFalse, v1alpha1.ReasonSecretNotFound, `Secret "classical"`)
			classical := secret("classical", authority(t, "ECDSA-P256", 48*time.Hour))
			status := await(t, c, o, metav1.ConditionTrue, v1alpha1.ReasonReady, "PostQuantum keys")
			if a := status.Authorities; len(a) != 2 || status.Algorithms != "ML-DSA-65,ECDSA-P256" || a[0].Algorithm != "ML-DSA-65" || a[0].Subject != "CN=Test ML-DSA-65" || a[1].SecretName != "classical" || a[1].NotAfter.IsZero() {
				t.Errorf("authorities: %+v", a)
			}

			update(classical, authority(t, "ML-DSA-44", 24*time.Hour))
			await(t, c, o, metav1.ConditionFalse, v1alpha1.ReasonSameFamily, `"pq" and "classical"`)
			update(classical, map[string][]byte{corev1.TLSCertKey: good[corev1.TLSCertKey], corev1.TLSPrivateKeyKey: authority(t, "ML-DSA-65", time.Hour)[corev1.TLSPrivateKeyKey]})
			await(t, c, o, metav1.ConditionFalse, v1alpha1.ReasonKeyMismatch, `Secret "classical"`)
			update(classical, map[string][]byte{corev1.TLSCertKey: []byte("x"), corev1.TLSPrivateKeyKey: []byte("y")})
			await(t, c, o, metav1.ConditionFalse, v1alpha1.ReasonSecretInvalid, "tls.crt")
			update(classical, authority(t, "RSA-2048", 48*time.Hour))
			await(t, c, o, metav1.ConditionTrue, v1alpha1.ReasonReady, "Classical keys")

			clock.SetTime(time.Now().Add(25 * time.Hour))
			update(pq, good) // unchanged; time passes without an event
			pq.Labels = map[string]string{"touched": "yes"}
			update(pq, good)
			await(t, c, o, metav1.ConditionFalse, v1alpha1.ReasonCertificateExpired, `Secret "pq"`)
		})
	}
}

// An authority whose key lies in an HSM: both kinds follow their HSMPool, which
// lies where their Secret does.
func TestBothKindsFollowTheirHSMPools(t *testing.T) {
	c := testenv.Client(t)
	for _, kind := range []string{issuers.Kind, issuers.ClusterKind} {
		t.Run(kind, func(t *testing.T) {
			namespace := testenv.Namespace(t, c)
			start(t, namespace)
			create := func(objects ...client.Object) {
				t.Helper()
				for _, o := range objects {
					if err := c.Create(t.Context(), o); err != nil {
						t.Fatal(err)
					}
				}
			}
			label := keypair.Reference{Pool: "pool", Label: "ca-1"}
			data := authority(t, "ML-DSA-65", 24*time.Hour)
			key, err := keypair.ParseKey(data[corev1.TLSPrivateKeyKey])
			if err != nil {
				t.Fatal(err)
			}
			data[corev1.TLSPrivateKeyKey] = label.PEM()
			o := issuers.New(kind)
			o.SetName("ca-" + namespace)
			if kind == issuers.Kind {
				o.SetNamespace(namespace)
			}
			spec, _ := issuers.Parts(o)
			spec.CA = &v1alpha1.CAIssuer{SecretRefs: []v1alpha1.SecretReference{{Name: "ca"}}}
			create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ca"}, Type: corev1.SecretTypeTLS, Data: data}, o)
			t.Cleanup(func() { _ = c.Delete(context.Background(), o) })
			await(t, c, o, metav1.ConditionFalse, v1alpha1.ReasonHSMPoolNotFound, `HSMPool "pool" is not there in namespace "`+namespace)

			hsms := hsmtest.NewAuthority(t)
			credentials := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "client"}, Data: map[string][]byte{"ca.crt": hsms.PEM()}}
			credentials.Data["tls.crt"], credentials.Data["tls.key"] = hsms.Issue(t, hsmtest.ClientName)
			server := hsmtest.Serve(t, hsms)
			pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pool"}}
			pool.Spec.Members = []v1alpha1.HSMMember{{Name: "hsm-a", Remote: &v1alpha1.RemoteHSM{
				Address: v1alpha1.StoreAddress(server.Address), ServerName: hsmtest.ServerName, TLSSecretRef: v1alpha1.SecretReference{Name: "client"}}}}
			timeout := 50 * time.Second
			// touch the pool, as its status does that is watched
			touch := func() {
				t.Helper()
				timeout += time.Second
				pool.Spec.Timeout = &metav1.Duration{Duration: timeout}
				if err := c.Update(t.Context(), pool); err != nil {
					t.Fatal(err)
				}
			}
			create(credentials, pool)
			await(t, c, o, metav1.ConditionFalse, v1alpha1.ReasonKeyNotFound, `HSMPool "pool": no member has key "ca-1"`)
			other, err := pki.GenerateKey("ML-DSA-65")
			if err != nil {
				t.Fatal(err)
			}
			for _, step := range []struct {
				key    crypto.Signer
				flags  byte
				status metav1.ConditionStatus
				reason string
				says   string
			}{
				{other, 1, metav1.ConditionFalse, v1alpha1.ReasonKeyMismatch, `Secret "ca"`},
				{key, 3, metav1.ConditionFalse, v1alpha1.ReasonKeyNotProtected, "CKA_EXTRACTABLE true"},
				{key, 1, metav1.ConditionTrue, v1alpha1.ReasonReady, `Secret "ca", key in HSMPool "pool"`},
			} {
				server.Token.Put("ca-1", step.key, step.flags)
				touch()
				status := await(t, c, o, step.status, step.reason, step.says)
				if a := status.Authorities; step.status == metav1.ConditionTrue && (len(a) != 1 || a[0].HSMPool != "pool") {
					t.Errorf("authorities: %+v", a)
				}
			}
			server.Stop()
			touch()
			await(t, c, o, metav1.ConditionFalse, v1alpha1.ReasonHSMNotReady, server.Address)
		})
	}
}

// A PQCClusterIssuer reads its Secrets in the operator's namespace only.
func TestClusterIssuersReadNoOtherNamespace(t *testing.T) {
	c := testenv.Client(t)
	own, other := testenv.Namespace(t, c), testenv.Namespace(t, c)
	start(t, own)
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: other, Name: "pq"}, Type: corev1.SecretTypeTLS, Data: authority(t, "ML-DSA-44", time.Hour)}
	o := &v1alpha1.PQCClusterIssuer{ObjectMeta: metav1.ObjectMeta{Name: "ca-" + own}, Spec: v1alpha1.IssuerSpec{CA: &v1alpha1.CAIssuer{SecretRefs: []v1alpha1.SecretReference{{Name: "pq"}}}}}
	for _, object := range []client.Object{s, o} {
		if err := c.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	await(t, c, o, metav1.ConditionFalse, v1alpha1.ReasonSecretNotFound, fmt.Sprintf("in namespace %q", own))
}

func TestAnotherStatusIsPutBack(t *testing.T) {
	c := testenv.Client(t)
	namespace := testenv.Namespace(t, c)
	start(t, namespace)
	o := &v1alpha1.PQCIssuer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "self"}, Spec: v1alpha1.IssuerSpec{SelfSigned: &v1alpha1.SelfSignedIssuer{}}}
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	await(t, c, o, metav1.ConditionTrue, v1alpha1.ReasonReady, "its own key")
	before := o.DeepCopy()
	meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: "False", Reason: v1alpha1.ReasonSecretNotFound})
	if err := c.Status().Patch(t.Context(), o, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	await(t, c, o, metav1.ConditionTrue, v1alpha1.ReasonReady, "its own key")
}

func TestChangesOfReadinessAreTold(t *testing.T) {
	c := testenv.Client(t)
	namespace := testenv.Namespace(t, c)
	_, recorder := start(t, namespace)
	o := &v1alpha1.PQCIssuer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "self"}, Spec: v1alpha1.IssuerSpec{SelfSigned: &v1alpha1.SelfSignedIssuer{}}}
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	await(t, c, o, metav1.ConditionTrue, v1alpha1.ReasonReady, "its own key")
	var seen []string // also of issuers that earlier tests left
	testenv.Eventually(t, func(context.Context) error {
		for len(recorder.Events) > 0 {
			seen = append(seen, <-recorder.Events)
		}
		if !slices.ContainsFunc(seen, func(e string) bool { return strings.HasPrefix(e, "Normal Ready") }) {
			return fmt.Errorf("events %q", seen)
		}
		return nil
	})
}
