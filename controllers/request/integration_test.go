//go:build integration

package request_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/controllers/request"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/pki"
	"qtls.dev/qtls/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// world is a namespace with the controller in it.
type world struct {
	client.Client
	t         *testing.T
	namespace string
	events    *events.FakeRecorder
}

func newWorld(t *testing.T) *world {
	c := testenv.Client(t)
	w := &world{Client: c, t: t, namespace: testenv.Namespace(t, c), events: events.NewFakeRecorder(1000)}
	mgr := testenv.Manager(t)
	r := &request.Reconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Clock: clocktesting.NewFakePassiveClock(time.Now()), Namespace: w.namespace, Recorder: w.events}
	if err := r.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	testenv.Start(t, mgr)
	return w
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	if o.GetNamespace() == "" {
		if _, cluster := o.(*v1alpha1.PQCClusterIssuer); !cluster {
			o.SetNamespace(w.namespace)
		}
	}
	if err := w.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

// request makes a CertificateRequest with a key of its own, which lies in a
// Secret of the same name.
func (w *world) request(name string, algorithm v1alpha1.KeyAlgorithm, kind, issuer string, change ...func(*cmapi.CertificateRequest)) *cmapi.CertificateRequest {
	w.t.Helper()
	key, err := pki.GenerateKey(algorithm)
	if err != nil {
		w.t.Fatal(err)
	}
	keyPEM, err := keypair.MarshalKey(key)
	if err != nil {
		w.t.Fatal(err)
	}
	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{corev1.TLSPrivateKeyKey: keyPEM}})
	csr, err := pki.NewRequest(key, pki.Names{CommonName: "Test " + name, DNSNames: []string{"www.example.com"}})
	if err != nil {
		w.t.Fatal(err)
	}
	cr := &cmapi.CertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{cmapi.CertificateRequestPrivateKeyAnnotationKey: name}},
		Spec: cmapi.CertificateRequestSpec{Request: csr, IssuerRef: cmmeta.IssuerReference{Group: v1alpha1.GroupName, Kind: kind, Name: issuer},
			Usages: []cmapi.KeyUsage{"digital signature", "server auth"}}}
	for _, f := range change {
		f(cr)
	}
	w.create(cr)
	return cr
}

func (w *world) decide(cr *cmapi.CertificateRequest, kind cmapi.CertificateRequestConditionType, message string) {
	w.t.Helper()
	cr.Status.Conditions = append(cr.Status.Conditions, cmapi.CertificateRequestCondition{Type: kind, Status: cmmeta.ConditionTrue, Reason: "test", Message: message})
	if err := w.Status().Update(w.t.Context(), cr); err != nil {
		w.t.Fatal(err)
	}
}

// ready waits for the condition Ready with a reason and a message.
func (w *world) ready(cr *cmapi.CertificateRequest, reason, says string) {
	w.t.Helper()
	testenv.Eventually(w.t, func(ctx context.Context) error {
		if err := w.Get(ctx, client.ObjectKeyFromObject(cr), cr); err != nil {
			return err
		}
		for _, c := range cr.Status.Conditions {
			if c.Type == cmapi.CertificateRequestConditionReady && c.Reason == reason && strings.Contains(c.Message, says) {
				return nil
			}
		}
		return fmt.Errorf("not Ready for %s, saying %q: %+v", reason, says, cr.Status.Conditions)
	})
	ended := reason == cmapi.CertificateRequestReasonFailed || reason == cmapi.CertificateRequestReasonDenied
	if ended != (cr.Status.FailureTime != nil) || (reason == cmapi.CertificateRequestReasonIssued) != (len(cr.Status.Certificate) > 0) {
		w.t.Errorf("%s: failureTime %v, %d bytes of certificate", reason, cr.Status.FailureTime, len(cr.Status.Certificate))
	}
}

func selfSigned(name string) *v1alpha1.PQCIssuer {
	return &v1alpha1.PQCIssuer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IssuerSpec{SelfSigned: &v1alpha1.SelfSignedIssuer{}}}
}

func isCA(cr *cmapi.CertificateRequest) { cr.Spec.IsCA = true }

// authority issues itself, and keeps key and certificate in a Secret.
func (w *world) authority(name string, algorithm v1alpha1.KeyAlgorithm) {
	w.t.Helper()
	cr := w.request(name+"-request", algorithm, "PQCIssuer", "self", isCA)
	w.decide(cr, cmapi.CertificateRequestConditionApproved, "")
	w.ready(cr, cmapi.CertificateRequestReasonIssued, "signed by PQCIssuer \"self\"")
	key := &corev1.Secret{}
	if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(cr), key); err != nil {
		w.t.Fatal(err)
	}
	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: cr.Status.Certificate, corev1.TLSPrivateKeyKey: key.Data[corev1.TLSPrivateKeyKey]}})
}

func TestBothKindsSign(t *testing.T) {
	w := newWorld(t)
	w.create(selfSigned("self"))
	w.authority("pq", "ML-DSA-65")
	w.authority("classical", "RSA-2048")
	spec := v1alpha1.IssuerSpec{CA: &v1alpha1.CAIssuer{SecretRefs: []v1alpha1.SecretReference{{Name: "pq"}, {Name: "classical"}}}}
	cluster := &v1alpha1.PQCClusterIssuer{ObjectMeta: metav1.ObjectMeta{Name: "ca-" + w.namespace}, Spec: spec}
	w.create(&v1alpha1.PQCIssuer{ObjectMeta: metav1.ObjectMeta{Name: "ca"}, Spec: spec})
	w.create(cluster)

	// A PQCClusterIssuer serves every namespace from the operator's Secrets.
	other := *w
	other.namespace = testenv.Namespace(t, w.Client)
	for _, c := range []struct {
		w            *world
		kind, issuer string
	}{{w, "PQCIssuer", "ca"}, {w, "PQCClusterIssuer", cluster.Name}, {&other, "PQCClusterIssuer", cluster.Name}} {
		for algorithm, by := range map[v1alpha1.KeyAlgorithm]string{"ML-DSA-44": "Test pq-request", "ECDSA-P256": "Test classical-request"} {
			cr := c.w.request(strings.ToLower(fmt.Sprintf("%s-%s", c.kind, algorithm)), algorithm, c.kind, c.issuer)
			c.w.decide(cr, cmapi.CertificateRequestConditionApproved, "looks good")
			c.w.ready(cr, cmapi.CertificateRequestReasonIssued, "signed by "+c.kind)
			block, _ := pem.Decode(cr.Status.Certificate)
			leaf, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(cr.Status.CA)
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "www.example.com"}); err != nil || leaf.Issuer.CommonName != by {
				t.Errorf("%s: issued by %s, %v", cr.Name, leaf.Issuer, err)
			}
			if len(cr.Status.Conditions) != 2 || cr.Status.Conditions[0].Message != "looks good" {
				t.Errorf("the approver's condition is not as it was: %+v", cr.Status.Conditions)
			}
		}
	}
}

// Who may create requests in some namespace gets no authority below the cluster's.
func TestTheClustersAuthoritiesSignNoOthers(t *testing.T) {
	w := newWorld(t)
	w.create(selfSigned("self"))
	w.authority("root", "ECDSA-P256")
	spec := v1alpha1.IssuerSpec{CA: &v1alpha1.CAIssuer{SecretRefs: []v1alpha1.SecretReference{{Name: "root"}}}}
	cluster := &v1alpha1.PQCClusterIssuer{ObjectMeta: metav1.ObjectMeta{Name: "ca-" + w.namespace}, Spec: spec}
	w.create(&v1alpha1.PQCIssuer{ObjectMeta: metav1.ObjectMeta{Name: "ca"}, Spec: spec})
	w.create(cluster)
	asked := func(name, kind, issuer, reason, says string) {
		t.Helper()
		cr := w.request(name, "ECDSA-P256", kind, issuer, isCA)
		w.decide(cr, cmapi.CertificateRequestConditionApproved, "")
		w.ready(cr, reason, says)
	}
	asked("namespaces", "PQCIssuer", "ca", cmapi.CertificateRequestReasonIssued, "signed by PQCIssuer")
	asked("refused", "PQCClusterIssuer", cluster.Name, cmapi.CertificateRequestReasonFailed, "its spec.ca.subordinateAuthorities is not set, which stands for Refuse")
	cluster.Spec.CA.SubordinateAuthorities = v1alpha1.SubordinatesAllow
	if err := w.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	asked("allowed", "PQCClusterIssuer", cluster.Name, cmapi.CertificateRequestReasonIssued, "signed by PQCClusterIssuer")
}

func TestWhatIsNotOurs(t *testing.T) {
	w := newWorld(t)
	w.create(selfSigned("self"))
	unapproved := w.request("unapproved", "ML-DSA-44", "PQCIssuer", "self")
	foreign := w.request("foreign", "ECDSA-P256", "PQCIssuer", "self", func(cr *cmapi.CertificateRequest) { cr.Spec.IssuerRef.Group = "example.com" })
	w.decide(foreign, cmapi.CertificateRequestConditionApproved, "")
	testenv.Never(t, 1500*time.Millisecond, func(ctx context.Context) error {
		for cr, conditions := range map[*cmapi.CertificateRequest]int{unapproved: 0, foreign: 1} {
			if err := w.Get(ctx, client.ObjectKeyFromObject(cr), cr); err != nil {
				return err
			}
			if len(cr.Status.Certificate) > 0 || len(cr.Status.Conditions) != conditions {
				return fmt.Errorf("%s was touched: %+v", cr.Name, cr.Status)
			}
		}
		return nil
	})
}

func TestDenied(t *testing.T) {
	w := newWorld(t)
	w.create(selfSigned("self"))
	cr := w.request("a", "ML-DSA-44", "PQCIssuer", "self")
	w.decide(cr, cmapi.CertificateRequestConditionDenied, "not these names")
	w.ready(cr, cmapi.CertificateRequestReasonDenied, "the request was denied: not these names")
}

func TestRefused(t *testing.T) {
	w := newWorld(t)
	w.create(selfSigned("self"))
	swap := func(cr *cmapi.CertificateRequest) { // after approval, as far as the signer knows
		carrier, err := pki.NewCarrier(cr.Spec.Request)
		if err != nil {
			t.Fatal(err)
		}
		key, err := pki.GenerateKey("ML-DSA-44")
		if err != nil {
			t.Fatal(err)
		}
		other, err := pki.NewRequest(key, pki.Names{CommonName: "Test swapped", DNSNames: []string{"www.example.com"}})
		if err != nil {
			t.Fatal(err)
		}
		cr.Spec.Request = carrier
		cr.Annotations[v1alpha1.AnnotationRequest] = string(other)
	}
	for name, c := range map[string]struct {
		kind   string
		change func(*cmapi.CertificateRequest)
		says   string
	}{
		"kind":     {"Issuer", func(*cmapi.CertificateRequest) {}, `issuerRef.kind "Issuer": group qtls.dev has the issuers PQCIssuer and PQCClusterIssuer`},
		"duration": {"PQCIssuer", func(cr *cmapi.CertificateRequest) { cr.Spec.Duration = &metav1.Duration{Duration: time.Second} }, "at least 5m0s"},
		"no-key": {"PQCIssuer", func(cr *cmapi.CertificateRequest) {
			delete(cr.Annotations, cmapi.CertificateRequestPrivateKeyAnnotationKey)
		},
			"annotation cert-manager.io/private-key-secret-name is missing"},
		"swapped": {"PQCIssuer", swap, "subjectKeyIdentifier is not that of the key carried beside it"},
	} {
		cr := w.request(name, "ML-DSA-44", c.kind, "self", c.change)
		w.decide(cr, cmapi.CertificateRequestConditionApproved, "")
		w.ready(cr, cmapi.CertificateRequestReasonFailed, c.says)
	}
	// Another's key: the Secret that is named is not the request's.
	w.request("other", "ML-DSA-44", "PQCIssuer", "nobody")
	cr := w.request("stolen", "ML-DSA-44", "PQCIssuer", "self", func(cr *cmapi.CertificateRequest) {
		cr.Annotations[cmapi.CertificateRequestPrivateKeyAnnotationKey] = "other"
	})
	w.decide(cr, cmapi.CertificateRequestConditionApproved, "")
	w.ready(cr, cmapi.CertificateRequestReasonFailed, "the private key is not that of the certificate request")
}

func TestWaitingForTheIssuerAndItsSecret(t *testing.T) {
	w := newWorld(t)
	cr := w.request("a", "ML-DSA-44", "PQCIssuer", "later", isCA)
	w.decide(cr, cmapi.CertificateRequestConditionApproved, "")
	w.ready(cr, cmapi.CertificateRequestReasonPending, "is not there; create it, and this request goes on")
	later := &v1alpha1.PQCIssuer{ObjectMeta: metav1.ObjectMeta{Name: "later"}, Spec: v1alpha1.IssuerSpec{CA: &v1alpha1.CAIssuer{SecretRefs: []v1alpha1.SecretReference{{Name: "missing"}}}}}
	w.create(later)
	w.ready(cr, cmapi.CertificateRequestReasonPending, `is not ready: spec.ca.secretRefs: Secret "missing" is not there`)
	later.Spec = v1alpha1.IssuerSpec{SelfSigned: &v1alpha1.SelfSignedIssuer{}}
	if err := w.Update(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	w.ready(cr, cmapi.CertificateRequestReasonIssued, "signed by")

	before := cr.DeepCopy()
	testenv.Never(t, time.Second, func(ctx context.Context) error { // signed once
		if err := w.Get(ctx, client.ObjectKeyFromObject(cr), cr); err != nil {
			return err
		}
		if cr.ResourceVersion != before.ResourceVersion {
			return fmt.Errorf("changed after it was signed: %+v", cr.Status)
		}
		return nil
	})
}
