//go:build integration

package certificate_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/issuers"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/openssl/openssltest"
	"qtls.dev/qtls/internal/pki"
	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/testenv"
)

var everyAlgorithm = []v1alpha1.KeyAlgorithm{"ML-DSA-44", "ML-DSA-65", "ML-DSA-87", "ECDSA-P256", "ECDSA-P384", "RSA-2048", "RSA-3072", "RSA-4096"}

func TestEveryAlgorithmIsIssued(t *testing.T) {
	w := newWorld(t)
	root := ca("root", "self", "ML-DSA-87", "RSA-3072")
	w.create(selfSigned("self"), root, caIssuer("ca", "root-ml-dsa-87", "root-rsa-3072"))
	web := server("web", "ca", everyAlgorithm...)
	w.create(web)
	w.issued(web)
	for _, a := range everyAlgorithm {
		name := v1alpha1.CertificateSecretName("web", a)
		if pair := w.pair(name); pair.Algorithm != a {
			t.Errorf("Secret %s holds a key of algorithm %s", name, pair.Algorithm)
		}
		for _, host := range []string{"www.example.com", "any.example.org", "192.0.2.1", "2001:db8::1"} {
			w.verify(name, host)
		}
		if s := w.secret(name); s.Type != corev1.SecretTypeTLS || !metav1.IsControlledBy(s, web) || s.Labels[v1alpha1.LabelCertificate] != "web" ||
			s.Annotations[v1alpha1.AnnotationAlgorithm] != string(a) || s.Annotations[v1alpha1.AnnotationRevision] != "1" {
			t.Errorf("Secret %s: type %s, metadata %+v", name, s.Type, s.ObjectMeta)
		}
	}
	for _, i := range web.Status.Certificates {
		pair := w.pair(i.SecretName)
		if i.SerialNumber != pair.SerialNumber() || !i.NotAfter.Time.Equal(pair.Chain[0].NotAfter) || i.RenewalTime == nil || i.Revision != 1 {
			t.Errorf("status: %+v", i)
		}
	}
	if web.Status.NotAfter == nil || web.Status.ObservedGeneration != web.Generation {
		t.Errorf("status: %+v", web.Status)
	}
	w.secretsStaySecret()
}

// Algorithms that Go lacks, for which OpenSSL's provider signs; and Go's own
// under an authority of such.
func TestTheProvidersAlgorithmsAreIssued(t *testing.T) {
	openssltest.Use(t)
	w := newWorld(t)
	root := ca("root", "self", "haetae2", "ECDSA-P256")
	w.create(selfSigned("self"), root, caIssuer("ca", "root-haetae2", "root-ecdsa-p256"))
	algorithms := []v1alpha1.KeyAlgorithm{"haetae3", "p256_aimer128f", "falconpadded512", "ML-DSA-65", "ECDSA-P256"}
	web := server("web", "ca", algorithms...)
	w.create(web)
	w.issued(web)
	anchor := w.pair("root-haetae2").Chain[0]
	for _, a := range algorithms[:4] {
		name := v1alpha1.CertificateSecretName("web", a)
		pair := w.pair(name)
		if pair.Algorithm != a || pair.Chain[0].VerifyHostname("www.example.com") != nil {
			t.Errorf("Secret %s holds a key of algorithm %s, names %v", name, pair.Algorithm, pair.Chain[0].DNSNames)
		}
		want := pki.Wanted{Key: pair.Key.Public(), Names: pki.Names{DNSNames: []string{"www.example.com"}}}
		chain, err := pki.NewChain(pair.Chain[0], pair.Chain[1:], w.clock.Now())
		if err == nil {
			err = chain.Check(want, []*x509.Certificate{anchor}, w.clock.Now())
		}
		if err != nil {
			t.Errorf("Secret %s: %v", name, err)
		}
		if s := w.secret(name); !bytes.Equal(s.Data["ca.crt"], pki.CertificatesPEM(anchor)) || s.Annotations[v1alpha1.AnnotationAlgorithm] != string(a) {
			t.Errorf("Secret %s: ca.crt is not the root, or metadata %+v", name, s.ObjectMeta)
		}
	}
	w.verify("web-ecdsa-p256", "www.example.com")

	// An authority is renewed under its own key.
	before := w.pair("root-haetae2")
	w.change(root, func() { annotate(root, v1alpha1.AnnotationRenew, "now") })
	w.revision(root, 2)
	if after := w.pair("root-haetae2"); after.SerialNumber() == before.SerialNumber() || !pki.SameKey(after.Key.Public(), before.Key.Public()) {
		t.Error("the renewed authority has another key")
	}
	w.secretsStaySecret()
}

// An authority below another: servers send it along, clients hold the root.
func TestChainsHoldIntermediatesAndNoRoot(t *testing.T) {
	w := withCA(t)
	middle := ca("middle", "ca", "ML-DSA-44", "RSA-2048")
	web := server("web", "below", "ML-DSA-65", "ECDSA-P256")
	w.create(middle, caIssuer("below", "middle-ml-dsa-44", "middle-rsa-2048"), web)
	w.issued(web)
	for name, root := range map[string]string{"web-ml-dsa-65": "root-ml-dsa-65", "web-ecdsa-p256": "root-ecdsa-p256"} {
		certs, err := keypair.ParseCertificates(w.secret(name).Data[corev1.TLSCertKey])
		if err != nil || len(certs) != 2 || certs[1].Subject.CommonName != "Test middle" {
			t.Errorf("Secret %s: %d certificates, %v", name, len(certs), err)
		}
		if !bytes.Equal(w.secret(name).Data["ca.crt"], w.secret(root).Data[corev1.TLSCertKey]) {
			t.Errorf("Secret %s: ca.crt is not the root", name)
		}
		w.verify(name, "www.example.com")
	}
}

func TestNothingIsSignedUnapproved(t *testing.T) {
	w := withCA(t)
	w.approving = false
	web := server("web", "ca", "ML-DSA-65")
	w.create(web)
	c := w.condition(web, v1alpha1.ConditionIssuing, metav1.ConditionTrue, v1alpha1.ReasonWaitingForApproval)
	if !strings.Contains(c.Message, `waiting for the approval of CertificateRequest "web-ml-dsa-65-1"`) {
		t.Error(c.Message)
	}
	w.pass(web, time.Hour) // the request was created by the API server's clock, which has gone on since the test's was set
	w.eventually(func() error {
		c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonWaitingForApproval)
		for _, says := range []string{`nothing approved CertificateRequest "web-ml-dsa-65-1" within 15 s`, "certManager.approver.enabled", "cmctl approve -n " + w.namespace} {
			if !strings.Contains(c.Message, says) {
				return fmt.Errorf("%q does not say %q", c.Message, says)
			}
		}
		return nil
	})
	testenv.Never(t, time.Second, func(context.Context) error {
		if cr := w.request(); len(cr.Status.Certificate) > 0 || len(cr.Status.Conditions) > 0 {
			return fmt.Errorf("an unapproved request was touched: %+v", cr.Status)
		}
		return nil
	})
	w.approving = true
	w.issued(web)
}

func TestDeniedRequestsAreTriedAgainLater(t *testing.T) {
	w := withCA(t)
	w.approving = false
	web := server("web", "ca", "ECDSA-P256")
	w.create(web)
	cr := w.request()
	w.decide(cr, cmapi.CertificateRequestConditionDenied, "policy.example.com", "these names are not yours")
	c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDenied)
	for _, says := range []string{"policy.example.com", "these names are not yours", "next attempt at " + w.clock.Now().Add(time.Minute).UTC().Format(time.RFC3339), v1alpha1.AnnotationRenew} {
		if !strings.Contains(c.Message, says) {
			t.Errorf("%q does not say %q", c.Message, says)
		}
	}
	w.condition(web, v1alpha1.ConditionIssuing, metav1.ConditionFalse, v1alpha1.ReasonDenied)
	w.eventually(func() error { // as cert-manager's conventions for issuers want it
		w.get(cr)
		for _, c := range cr.Status.Conditions {
			if c.Type == cmapi.CertificateRequestConditionReady && c.Status == cmmeta.ConditionFalse && c.Reason == cmapi.CertificateRequestReasonDenied && cr.Status.FailureTime != nil {
				return nil
			}
		}
		return fmt.Errorf("status of the request: %+v", cr.Status)
	})

	w.pass(web, 61*time.Second)
	var second *cmapi.CertificateRequest
	w.eventually(func() error {
		second = w.request()
		if second.UID == cr.UID || second.Annotations[v1alpha1.AnnotationAttempt] != "2" || second.Name != cr.Name {
			return fmt.Errorf("no second attempt: %+v", second.ObjectMeta)
		}
		return nil
	})
	w.decide(second, cmapi.CertificateRequestConditionDenied, "policy.example.com", "still not yours")
	w.eventually(func() error {
		c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDenied)
		if says := "next attempt at " + w.clock.Now().Add(2*time.Minute).UTC().Format(time.RFC3339); !strings.Contains(c.Message, says) {
			return fmt.Errorf("%q does not say %q", c.Message, says)
		}
		return nil
	})

	// Who does not want to wait says so.
	w.approving = true
	w.change(web, func() { annotate(web, v1alpha1.AnnotationRenew, "now") })
	w.revision(web, 1)
	if web.Status.Renewed != "now" {
		t.Errorf("status.renewed %q", web.Status.Renewed)
	}
}

func TestAFailedRenewalLeavesTheCertificate(t *testing.T) {
	w := withCA(t)
	web := server("web", "ca", "ML-DSA-44")
	w.create(web)
	w.issued(web)
	before := w.secret("web-ml-dsa-44")
	w.approving = false
	w.change(web, func() { annotate(web, v1alpha1.AnnotationRenew, "1") })
	w.decide(w.request(), cmapi.CertificateRequestConditionDenied, "policy", "not today")
	w.condition(web, v1alpha1.ConditionIssuing, metav1.ConditionFalse, v1alpha1.ReasonDenied)
	w.condition(web, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
	if after := w.secret("web-ml-dsa-44"); after.ResourceVersion != before.ResourceVersion {
		t.Error("the Secret was touched")
	}
	if web.Status.Renewed != "" {
		t.Errorf("status.renewed %q, though it is not", web.Status.Renewed)
	}
	w.pass(web, 2200*time.Hour)
	w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonWaitingForApproval) // it has expired
}

// An authority below the cluster's is not requested before that is allowed.
func TestAnAuthorityIsNotAllowed(t *testing.T) {
	w := newWorld(t)
	root, below := ca("root", "self", "ECDSA-P256"), ca("below", "ca-"+w.namespace, "ECDSA-P256")
	below.Spec.IssuerRef.Kind = issuers.ClusterKind
	cluster := &v1alpha1.PQCClusterIssuer{ObjectMeta: metav1.ObjectMeta{Name: below.Spec.IssuerRef.Name}, Spec: caIssuer("", "root-ecdsa-p256").Spec}
	w.create(selfSigned("self"), root)
	if err := w.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Delete(context.Background(), cluster) })
	w.issued(root)
	w.create(below)
	want := fmt.Sprintf("issuerRef: PQCClusterIssuer %q signs no certificates of authorities (isCA): its spec.ca.subordinateAuthorities is not set, which stands for Refuse; ", cluster.Name)
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionIssuing} {
		if c := w.condition(below, kind, metav1.ConditionFalse, v1alpha1.ReasonAuthorityNotAllowed); !strings.Contains(c.Message, want) {
			t.Errorf("%s: %q, want %q", kind, c.Message, want)
		}
	}
	if names := w.secretNames(); slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "below") }) {
		t.Errorf("a key was made all the same: Secrets %v", names)
	}
	w.change(cluster, func() { cluster.Spec.CA.SubordinateAuthorities = v1alpha1.SubordinatesAllow })
	w.issued(below)
}

func TestTheIssuerComesLater(t *testing.T) {
	w := newWorld(t)
	web := ca("web", "self", "ML-DSA-65")
	w.create(web)
	c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonIssuerNotFound)
	if !strings.Contains(c.Message, `PQCIssuer "self" is not there`) {
		t.Error(c.Message)
	}
	w.create(caIssuer("self", "nothing"))
	c = w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonIssuerNotReady)
	if !strings.Contains(c.Message, `Secret "nothing" is not there`) {
		t.Error(c.Message)
	}
	issuer := &v1alpha1.PQCIssuer{}
	issuer.Namespace, issuer.Name = w.namespace, "self"
	w.change(issuer, func() { issuer.Spec = v1alpha1.IssuerSpec{SelfSigned: &v1alpha1.SelfSignedIssuer{}} })
	w.issued(web)
}

func TestTheAuthorityIsReplaced(t *testing.T) {
	w := withCA(t)
	web := server("web", "ca", "ML-DSA-65", "ECDSA-P256")
	w.create(web)
	w.issued(web)
	first, old := w.pair("web-ml-dsa-65"), w.secret("root-ml-dsa-65").DeepCopy()

	other := ca("other", "self", "ML-DSA-65")
	w.create(other)
	w.issued(other)
	issuer := &v1alpha1.PQCIssuer{}
	issuer.Namespace, issuer.Name = w.namespace, "ca"
	w.change(issuer, func() { issuer.Spec.CA.SecretRefs[0].Name = "other-ml-dsa-65" })
	w.change(web, func() { annotate(web, v1alpha1.AnnotationRenew, "1") })
	w.revision(web, 2)
	w.verify("web-ml-dsa-65", "www.example.com")
	if issuer := w.pair("web-ml-dsa-65").Chain[0].Issuer.CommonName; issuer != "Test other" || first.Chain[0].Issuer.CommonName != "Test root" {
		t.Errorf("issued by %s", issuer)
	}
	if bytes.Equal(w.secret("web-ml-dsa-65").Data["ca.crt"], old.Data[corev1.TLSCertKey]) {
		t.Error("ca.crt is still the former authority")
	}
}

func TestRequestsThatCannotBeSigned(t *testing.T) {
	w := withCA(t)
	pqOnly := server("pq-only", "pq-only", "ECDSA-P256")
	nameless := server("nameless", "self", "ML-DSA-65")
	w.create(caIssuer("pq-only", "root-ml-dsa-65"), pqOnly, nameless)
	for c, says := range map[*v1alpha1.PQCCertificate]string{
		pqOnly:   `PQCIssuer "pq-only" has no authority for Classical keys; add the Secret of a CA with an ECDSA or RSA key`,
		nameless: "set commonName",
	} {
		if got := w.condition(c, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRequestFailed); !strings.Contains(got.Message, says) {
			t.Errorf("%q does not say %q", got.Message, says)
		}
	}
	issuer := &v1alpha1.PQCIssuer{}
	issuer.Namespace, issuer.Name = w.namespace, "pq-only"
	w.change(issuer, func() {
		issuer.Spec.CA.SecretRefs = append(issuer.Spec.CA.SecretRefs, v1alpha1.SecretReference{Name: "root-ecdsa-p256"})
	})
	w.change(nameless, func() { nameless.Spec.CommonName = "www.example.com" })
	w.issued(nameless)
	w.pass(pqOnly, 61*time.Second)
	w.issued(pqOnly)
}

// What one family's certificate waits for is not the other's trouble.
func TestOneAuthorityIsGone(t *testing.T) {
	w := withCA(t)
	issuer := caIssuer("half", "root-ml-dsa-65", "gone")
	w.create(issuer)
	w.eventually(func() error {
		w.get(issuer)
		if len(issuer.Status.Authorities) != 1 || !meta.IsStatusConditionFalse(issuer.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("issuer: %+v", issuer.Status)
		}
		return nil
	})
	w.approving = false
	pq, classical := server("pq", "half", "ML-DSA-65"), server("classical", "half", "ECDSA-P256")
	w.create(pq, classical)
	w.condition(pq, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonWaitingForApproval)
	if c := w.condition(classical, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonIssuerNotReady); !strings.Contains(c.Message, "gone") {
		t.Error(c.Message)
	}
	w.approving = true
	w.issued(pq)
}

func TestAnotherStatusIsPutBack(t *testing.T) {
	w := withCA(t)
	web := server("web", "ca", "ECDSA-P256")
	w.create(web)
	w.issued(web)
	before := web.DeepCopy()
	meta.SetStatusCondition(&web.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: "False", Reason: v1alpha1.ReasonIssuing})
	if err := w.Status().Patch(t.Context(), web, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	w.condition(web, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
}

func TestASecretThatCannotBeReadForAMoment(t *testing.T) {
	w := withCA(t)
	web := server("web", "ca", "ML-DSA-65", "ECDSA-P256")
	w.create(web)
	w.issued(web)
	before := *meta.FindStatusCondition(web.Status.Conditions, v1alpha1.ConditionReady)
	w.unreadable.Store(true)
	w.pass(web, time.Minute)
	if c := w.condition(web, v1alpha1.ConditionIssuing, metav1.ConditionTrue, v1alpha1.ReasonIssuing); !strings.Contains(c.Message, "etcd is away") {
		t.Error(c.Message)
	}
	if ready := *meta.FindStatusCondition(web.Status.Conditions, v1alpha1.ConditionReady); ready != before {
		t.Errorf("%+v, and was %+v", ready, before)
	}
	w.unreadable.Store(false)
	w.issued(web)
	if ready := *meta.FindStatusCondition(web.Status.Conditions, v1alpha1.ConditionReady); ready != before {
		t.Errorf("afterwards %+v, and was %+v", ready, before)
	}
}

// The API server refuses an event of more than 1024 bytes.
func TestEventsAreShort(t *testing.T) {
	w := withCA(t)
	web := server("web", "ca", "ECDSA-P256")
	w.create(web)
	w.issued(web)
	w.change(web, func() { annotate(web, v1alpha1.AnnotationRenew, strings.Repeat("now", 1000)) })
	w.revision(web, 2)
	told := w.told()
	if !slices.ContainsFunc(told, func(e string) bool {
		return strings.Contains(e, "issuing the ECDSA-P256 certificate (revision 2): annotation "+v1alpha1.AnnotationRenew)
	}) {
		t.Errorf("nothing tells of the renewal: %.200q", told)
	}
	for _, e := range told {
		if len(e) > 1024 {
			t.Errorf("%d bytes: %.200s", len(e), e)
		}
	}
}

func TestSecretsAreKeptAsIssued(t *testing.T) {
	w := withCA(t)
	web := server("web", "ca", "ML-DSA-65", "ECDSA-P256")
	w.create(web)
	w.issued(web)
	s := w.secret("web-ml-dsa-65")
	if err := w.Delete(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	revision := func(name string, want int64) {
		t.Helper()
		w.eventually(func() error {
			w.get(web)
			for _, i := range web.Status.Certificates {
				if i.SecretName == name && i.Revision == want && i.RequestName == "" {
					return nil
				}
			}
			return fmt.Errorf("%s is not at revision %d: %+v", name, want, web.Status)
		})
		w.issued(web)
		w.verify(name, "www.example.com")
	}
	revision("web-ml-dsa-65", 2)

	later := func() { w.clock.SetTime(w.clock.Now().Add(10 * time.Minute)) } // not as by somebody who does so again and again
	later()
	s = w.secret("web-ml-dsa-65")
	w.change(s, func() { s.Data[corev1.TLSPrivateKeyKey] = w.secret("web-ecdsa-p256").Data[corev1.TLSPrivateKeyKey] })
	revision("web-ml-dsa-65", 3)
	later()
	s = w.secret("web-ml-dsa-65")
	w.change(s, func() { s.Data[corev1.TLSCertKey] = []byte("hello") })
	revision("web-ml-dsa-65", 4)
	later()
	s = w.secret("web-ml-dsa-65")
	w.change(s, func() { delete(s.Annotations, v1alpha1.AnnotationRequested) })
	revision("web-ml-dsa-65", 5)
	for _, i := range web.Status.Certificates {
		if i.SecretName == "web-ecdsa-p256" && i.Revision != 1 {
			t.Errorf("the other one came to revision %d", i.Revision)
		}
	}

	// A bounded history.
	w.eventually(func() error {
		var names []string
		for _, cr := range w.requests() {
			if metav1.IsControlledBy(&cr, web) {
				names = append(names, cr.Name)
			}
		}
		if want := []string{"web-ecdsa-p256-1", "web-ml-dsa-65-4", "web-ml-dsa-65-5"}; !slices.Equal(sorted(names), want) {
			return fmt.Errorf("CertificateRequests %v, want %v", names, want)
		}
		return nil
	})
}

// A tool that keeps a cluster like a repository puts a former Secret back, each time.
func TestASecretThatIsPutBackAgainAndAgain(t *testing.T) {
	w := withCA(t)
	web := server("web", "ca", "ECDSA-P256")
	w.create(web)
	w.issued(web)
	former := w.secret("web-ecdsa-p256").DeepCopy()
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	w.change(web, func() { annotate(web, v1alpha1.AnnotationRenew, "1") })
	w.revision(web, 2)

	putBack := func() {
		t.Helper()
		if s := w.secret(former.Name); s.Annotations[v1alpha1.AnnotationRevision] != "1" {
			w.change(s, func() { s.Data, s.Annotations = former.Data, former.Annotations })
		}
	}
	contested := func() error {
		w.get(web)
		c := meta.FindStatusCondition(web.Status.Conditions, v1alpha1.ConditionIssuing)
		if c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonSecretNotOwned || !strings.Contains(c.Message, fmt.Sprintf(`Secret "web-ecdsa-p256" is changed again and again by somebody else: revisions %d and %d`, web.Status.Certificates[0].Revision-1, web.Status.Certificates[0].Revision)) {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	}
	w.eventually(func() error {
		putBack()
		return contested()
	})
	last := web.Status.Certificates[0].Revision
	if last < 4 || last > 5 { // one that begins as it is put back is of the wish, or of its repair
		t.Errorf("it came to revision %d", last)
	}
	testenv.Never(t, 2*time.Second, func(context.Context) error {
		w.approve()
		putBack()
		return contested()
	})
	if r := web.Status.Certificates[0].Revision; r != last || !meta.IsStatusConditionTrue(web.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("revision %d after %d, conditions %+v", r, last, web.Status.Conditions)
	}
	w.pass(web, 5*time.Minute) // and nobody puts it back any more
	w.revision(web, last+1)
}

func TestSomebodyElsesSecretIsNeverOverwritten(t *testing.T) {
	for _, name := range []string{"web-ml-dsa-65", "web-ml-dsa-65-next"} {
		w := withCA(t)
		theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"theirs": []byte("1")}}
		web := server("web", "ca", "ML-DSA-65", "ECDSA-P256")
		w.create(theirs, web)
		c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonSecretNotOwned)
		if !strings.Contains(c.Message, fmt.Sprintf("Secret %q exists in namespace %q and is not this PQCCertificate's", name, w.namespace)) {
			t.Error(c.Message)
		}
		w.eventually(func() error { // the other certificate is not held up
			if !slices.Contains(w.secretNames(), "web-ecdsa-p256") {
				return fmt.Errorf("Secrets %v", w.secretNames())
			}
			return nil
		})
		if s := w.secret(name); s.UID != theirs.UID || s.ResourceVersion != theirs.ResourceVersion {
			t.Errorf("it was touched: %+v", s)
		}
		if err := w.Delete(t.Context(), theirs); err != nil {
			t.Fatal(err)
		}
		w.issued(web)
		w.stop()
	}
}

// What the API server refuses for good is told, and the other certificate is renewed.
func TestASecretThatCannotBeWritten(t *testing.T) {
	w := withCA(t)
	web := server("web", "ca", "ML-DSA-65", "ECDSA-P256")
	w.create(web)
	w.issued(web)
	s := w.secret("web-ml-dsa-65")
	w.change(s, func() { s.Immutable = new(true) })
	w.pass(web, 1500*time.Hour)
	c := w.condition(web, v1alpha1.ConditionIssuing, metav1.ConditionFalse, v1alpha1.ReasonRequestFailed)
	if !strings.Contains(c.Message, `the API server refuses Secret "web-ml-dsa-65"`) || !strings.Contains(c.Message, "immutable") {
		t.Error(c.Message)
	}
	w.condition(web, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonIssued)
	w.eventually(func() error {
		if r := w.secret("web-ecdsa-p256").Annotations[v1alpha1.AnnotationRevision]; r != "2" {
			return fmt.Errorf("the other is at revision %s", r)
		}
		return nil
	})
	if err := w.Delete(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	w.revision(web, 2)
}

// A backup has labels and annotations, and owners that are no more are left out of
// it: what it restores is this PQCCertificate's again, with its key.
func TestSecretsFromABackupAreTakenOver(t *testing.T) {
	w := withCA(t)
	root := &v1alpha1.PQCCertificate{}
	root.Namespace, root.Name = w.namespace, "root"
	w.get(root)
	backup := func(name string) *corev1.Secret {
		s := w.secret(name)
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: s.Labels, Annotations: s.Annotations}, Type: s.Type, Data: s.Data}
	}
	saved := []client.Object{backup("root-ml-dsa-65"), backup("root-ecdsa-p256")}
	spec := root.Spec
	w.stop()
	if err := w.Delete(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	for _, s := range saved {
		if err := w.Delete(t.Context(), w.secret(s.GetName())); err != nil { // as the garbage collector does
			t.Fatal(err)
		}
	}

	again := &v1alpha1.PQCCertificate{ObjectMeta: metav1.ObjectMeta{Name: "root"}, Spec: spec}
	brought := saved[1].(*corev1.Secret)
	delete(brought.Annotations, v1alpha1.AnnotationRequested) // and one that never was: a CA's own key
	w.create(saved...)
	w.create(again)
	w.start(nil)
	w.issued(again)
	for _, s := range saved {
		now := w.secret(s.GetName())
		if !metav1.IsControlledBy(now, again) || !bytes.Equal(now.Data[corev1.TLSPrivateKeyKey], s.(*corev1.Secret).Data[corev1.TLSPrivateKeyKey]) {
			t.Errorf("Secret %s: owners %+v, or another key", now.Name, now.OwnerReferences)
		}
	}
	if now := w.secret("root-ml-dsa-65"); !bytes.Equal(now.Data[corev1.TLSCertKey], saved[0].(*corev1.Secret).Data[corev1.TLSCertKey]) {
		t.Error("it was issued anew, though it was whole")
	}
}

// The type of a Secret cannot be changed: what is of another could never be renewed.
func TestASecretOfAnotherTypeIsNotTakenOver(t *testing.T) {
	w := withCA(t)
	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "web-ecdsa-p256", Labels: map[string]string{v1alpha1.LabelCertificate: "web"}}, Type: corev1.SecretTypeOpaque})
	before := w.secret("web-ecdsa-p256")
	web := server("web", "ca", "ECDSA-P256")
	w.create(web)
	c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonSecretNotOwned)
	if want := fmt.Sprintf(`Secret "web-ecdsa-p256" in namespace %q is of type Opaque, which cannot be changed, and so cannot be taken over; make it anew with type kubernetes.io/tls`, w.namespace); !strings.Contains(c.Message, want) {
		t.Errorf("%q does not say %q", c.Message, want)
	}
	if s := w.secret("web-ecdsa-p256"); s.ResourceVersion != before.ResourceVersion {
		t.Errorf("it was touched: %+v", s)
	}
	if err := w.Delete(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	w.issued(web)
}

func TestRenewalByTheClock(t *testing.T) {
	w := withCA(t)
	web := server("web", "ca", "ML-DSA-65", "ECDSA-P256")
	early := server("early", "ca", "ECDSA-P256")
	early.Spec.RenewBefore = &metav1.Duration{Duration: 2000 * time.Hour}
	w.create(web, early)
	w.issued(web)
	w.issued(early)
	first := w.pair("web-ml-dsa-65")
	if due := w.clock.Now().Add(1440 * time.Hour); !web.Status.Certificates[0].RenewalTime.Time.Equal(due) {
		t.Errorf("renewalTime %s, want %s", web.Status.Certificates[0].RenewalTime, due)
	}
	w.pass(early, 161*time.Hour) // 2160 - 2000 = 160
	w.revision(early, 2)
	w.pass(web, 1200*time.Hour) // 1361 of 1440
	testenv.Never(t, time.Second, func(context.Context) error {
		w.get(web)
		if r := web.Status.Certificates[0].Revision; r != 1 {
			return fmt.Errorf("renewed early: revision %d", r)
		}
		return nil
	})
	w.pass(web, 80*time.Hour)
	w.revision(web, 2)
	w.verify("web-ml-dsa-65", "www.example.com")
	if second := w.pair("web-ml-dsa-65"); sameKey(first, second) || first.SerialNumber() == second.SerialNumber() {
		t.Error("the key or the serial number is the former one's")
	}
}

// A shorter life than was asked for is renewed by the life that was given.
func TestRenewalWhenTheAuthorityCutsTheLife(t *testing.T) {
	w := newWorld(t)
	root := ca("root", "self", "ECDSA-P256")
	root.Spec.Duration = &metav1.Duration{Duration: 30 * time.Hour}
	web := server("web", "ca", "ECDSA-P256")
	web.Spec.RenewBefore = &metav1.Duration{Duration: 720 * time.Hour} // longer than the whole life
	w.create(selfSigned("self"), root, caIssuer("ca", "root-ecdsa-p256"), web)
	w.issued(web)
	i := web.Status.Certificates[0]
	if end := w.pair("root-ecdsa-p256").Chain[0].NotAfter; !i.NotAfter.Time.Equal(end) {
		t.Errorf("notAfter %s, the authority's %s", i.NotAfter, end)
	}
	if due := w.clock.Now().Add(20 * time.Hour); !i.RenewalTime.Time.Equal(due) {
		t.Errorf("renewalTime %s, want %s", i.RenewalTime, due)
	}
	if cr := w.requests(); !slices.ContainsFunc(cr, func(cr cmapi.CertificateRequest) bool {
		return slices.ContainsFunc(cr.Status.Conditions, func(c cmapi.CertificateRequestCondition) bool {
			return strings.Contains(c.Message, "shorter than requested")
		})
	}) {
		t.Error("no request says that the life was cut")
	}
}

func TestAnAuthorityKeepsItsKey(t *testing.T) {
	w := withCA(t)
	web := server("web", "ca", "ML-DSA-65", "ECDSA-P256")
	w.create(web)
	w.issued(web)
	root := &v1alpha1.PQCCertificate{}
	root.Namespace, root.Name = w.namespace, "root"
	first := w.pair("root-ml-dsa-65")
	w.change(root, func() { annotate(root, v1alpha1.AnnotationRenew, "1") })
	w.revision(root, 2)
	second := w.pair("root-ml-dsa-65")
	if !sameKey(first, second) || first.SerialNumber() == second.SerialNumber() {
		t.Errorf("same key: %t, serial numbers %s and %s", sameKey(first, second), first.SerialNumber(), second.SerialNumber())
	}
	// What the authority signed before is valid under its new certificate.
	roots := x509.NewCertPool()
	roots.AddCert(second.Chain[0])
	if _, err := w.pair("web-ml-dsa-65").Chain[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: "www.example.com"}); err != nil {
		t.Error(err)
	}
}

// Who deletes an authority's Secret wants another key, also while a renewal with
// the former one waits for its approval.
func TestADeletedAuthorityHasAnotherKey(t *testing.T) {
	w := withCA(t)
	root := &v1alpha1.PQCCertificate{}
	root.Namespace, root.Name = w.namespace, "root"
	const name = "root-ecdsa-p256"
	first := w.pair(name)
	w.approving = false
	w.change(root, func() { annotate(root, v1alpha1.AnnotationRenew, "1") })
	w.eventually(func() error {
		if !slices.ContainsFunc(w.requests(), func(cr cmapi.CertificateRequest) bool { return cr.Name == name+"-2" }) {
			return errors.New("the renewal has not begun")
		}
		return nil
	})
	if err := w.Delete(t.Context(), w.secret(name)); err != nil {
		t.Fatal(err)
	}
	w.condition(root, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonWaitingForApproval)
	w.approving = true
	w.revision(root, 2)
	if sameKey(first, w.pair(name)) {
		t.Error("it has the former key")
	}
}

// Whatever becomes of the Secret of an authority, its key is not overwritten.
func TestAnAuthoritysKeyIsNeverOverwritten(t *testing.T) {
	w := withCA(t)
	root := &v1alpha1.PQCCertificate{}
	root.Namespace, root.Name = w.namespace, "root"
	const name = "root-ecdsa-p256"
	first := w.secret(name).DeepCopy()
	key := first.Data[corev1.TLSPrivateKeyKey]
	for damage, f := range map[string]func(*corev1.Secret){
		"a certificate that does not parse": func(s *corev1.Secret) { s.Data[corev1.TLSCertKey] = []byte("hello") },
		"no certificate":                    func(s *corev1.Secret) { s.Data[corev1.TLSCertKey] = []byte{} },
		"another key's certificate":         func(s *corev1.Secret) { s.Data[corev1.TLSCertKey] = w.secret("root-ml-dsa-65").Data[corev1.TLSCertKey] },
		"no annotation":                     func(s *corev1.Secret) { delete(s.Annotations, v1alpha1.AnnotationRequested) },
	} {
		revision := int64(0)
		w.clock.SetTime(w.clock.Now().Add(10 * time.Minute)) // not as by somebody who does so again and again
		s := w.secret(name)
		before := s.ResourceVersion
		w.change(s, func() { f(s) })
		w.eventually(func() error {
			now := w.secret(name)
			if now.ResourceVersion == before || now.ResourceVersion == s.ResourceVersion {
				return errors.New("it has not been issued anew")
			}
			revision, _ = strconv.ParseInt(now.Annotations[v1alpha1.AnnotationRevision], 10, 64)
			return nil
		})
		w.issued(root)
		if now := w.secret(name); !bytes.Equal(now.Data[corev1.TLSPrivateKeyKey], key) || revision < 2 {
			t.Errorf("%s: the authority has another key at revision %d", damage, revision)
		}
		w.pair(name)
	}

	s := w.secret(name)
	w.change(s, func() { s.Data[corev1.TLSPrivateKeyKey] = key[:len(key)/2] })
	c := w.condition(root, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonSecretInvalid)
	if !strings.Contains(c.Message, `Secret "root-ecdsa-p256": what is in tls.key is not the authority's key (no private key in PEM form`) || strings.Contains(c.Message, string(key[40:60])) {
		t.Error(c.Message)
	}
	if now := w.secret(name); now.ResourceVersion != s.ResourceVersion {
		t.Error("the Secret was touched")
	}
	w.change(s, func() { s.Data[corev1.TLSPrivateKeyKey] = key })
	w.issued(root)
}

// Gateways serve the certificate of a former algorithm until they have the new
// one, and need its Secret for every pod that starts.
func TestAFormerAlgorithmIsServedOn(t *testing.T) {
	w := withCA(t)
	revision, err := json.Marshal(dataplane.Revision{Certificates: []dataplane.Certificate{{Name: "web", Secret: "web-ecdsa-p256"}}})
	if err != nil {
		t.Fatal(err)
	}
	gateway := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "edge", UID: "uid-1"}}
	published := resources.DataPlane(gateway, map[string]string{dataplane.RevisionKey("r1"): string(revision)})
	published.OwnerReferences = nil
	web := server("web", "ca", "ECDSA-P256")
	w.create(published, web)
	w.issued(web)

	w.approving = false
	w.change(web, func() { web.Spec.Algorithms = []v1alpha1.KeyAlgorithm{"ML-DSA-65"} })
	w.request()
	stays := func() {
		t.Helper()
		testenv.Never(t, time.Second, func(context.Context) error {
			if !slices.Contains(w.secretNames(), "web-ecdsa-p256") {
				return errors.New("the Secret that the gateway serves is gone")
			}
			return nil
		})
	}
	stays() // nothing has taken its place
	w.approving = true
	w.issued(web)
	stays() // the gateway has not followed
	want := `Secret "web-ecdsa-p256" is not renewed any more, for spec.algorithms does not name its algorithm; it stays, because QTLSGateway "edge" serves it`
	if told := w.told(); !slices.ContainsFunc(told, func(e string) bool { return strings.HasPrefix(e, "Normal StillServed "+want) }) {
		t.Errorf("nobody tells that the gateway holds it: %q", told)
	}

	w.change(published, func() { published.Data = nil })
	w.pass(web, time.Second)
	w.eventually(func() error {
		if names := w.secretNames(); slices.Contains(names, "web-ecdsa-p256") {
			return fmt.Errorf("Secrets %v", names)
		}
		return nil
	})
}

func TestAnAuthoritysFormerAlgorithmStays(t *testing.T) {
	w := withCA(t)
	root := &v1alpha1.PQCCertificate{}
	root.Namespace, root.Name = w.namespace, "root"
	before := w.secret("root-ecdsa-p256")
	w.change(root, func() { root.Spec.Algorithms = []v1alpha1.KeyAlgorithm{"ML-DSA-65", "ECDSA-P384"} })
	w.issued(root)
	if after := w.secret("root-ecdsa-p256"); after.ResourceVersion != before.ResourceVersion {
		t.Error("it was touched")
	}
	// Wanted again, it is what it was.
	w.change(root, func() { root.Spec.Algorithms = []v1alpha1.KeyAlgorithm{"ML-DSA-65", "ECDSA-P256"} })
	w.issued(root)
	if after := w.secret("root-ecdsa-p256"); !bytes.Equal(after.Data[corev1.TLSPrivateKeyKey], before.Data[corev1.TLSPrivateKeyKey]) {
		t.Error("it has another key")
	}
}

func TestChangesOfTheSpec(t *testing.T) {
	w := withCA(t)
	web := server("web", "ca", "ML-DSA-65", "ECDSA-P256")
	w.create(web)
	w.issued(web)
	w.change(web, func() { web.Spec.DNSNames = []v1alpha1.Hostname{"new.example.com"} })
	w.revision(web, 2)
	w.verify("web-ml-dsa-65", "new.example.com")
	if err := w.pair("web-ml-dsa-65").Chain[0].VerifyHostname("www.example.com"); err == nil {
		t.Error("the former name is still there")
	}
	w.change(web, func() { web.Spec.Duration = &metav1.Duration{Duration: 48 * time.Hour} })
	w.revision(web, 3)
	if end := w.pair("web-ecdsa-p256").Chain[0].NotAfter; !end.Equal(w.clock.Now().Add(48 * time.Hour)) {
		t.Errorf("notAfter %s", end)
	}

	// When to renew, and a wish taken back, ask for nothing new.
	w.change(web, func() { web.Spec.RenewBefore = &metav1.Duration{Duration: time.Hour} })
	w.eventually(func() error {
		w.get(web)
		if at := web.Status.Certificates[0].RenewalTime; !at.Time.Equal(w.clock.Now().Add(47 * time.Hour)) {
			return fmt.Errorf("renewalTime %s", at)
		}
		return nil
	})
	w.revision(web, 3)

	w.change(web, func() { web.Spec.Algorithms = []v1alpha1.KeyAlgorithm{"ML-DSA-87", "ECDSA-P256"} })
	w.eventually(func() error {
		names := w.secretNames()
		if slices.Contains(names, "web-ml-dsa-65") || !slices.Contains(names, "web-ml-dsa-87") || slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, "-next") }) {
			return fmt.Errorf("Secrets %v", names)
		}
		return nil
	})
	w.issued(web)
	w.eventually(func() error {
		for _, cr := range w.requests() {
			if cr.Annotations[v1alpha1.AnnotationAlgorithm] == "ML-DSA-65" && metav1.IsControlledBy(&cr, web) {
				return fmt.Errorf("CertificateRequest %s is left over", cr.Name)
			}
		}
		return nil
	})
}

// The spec changes while a request is under way, which is then of no use.
func TestAChangeOfMind(t *testing.T) {
	w := withCA(t)
	w.approving = false
	web := server("web", "ca", "ML-DSA-65")
	w.create(web)
	first := w.request()
	w.change(web, func() { web.Spec.DNSNames = []v1alpha1.Hostname{"other.example.com"} })
	w.eventually(func() error {
		if cr := w.request(); cr.UID == first.UID || cr.Name != first.Name {
			return fmt.Errorf("still CertificateRequest %s (%s)", cr.Name, cr.UID)
		}
		return nil
	})
	w.approving = true
	w.revision(web, 1)
	w.verify("web-ml-dsa-65", "other.example.com")
}

// What is made for a PQCCertificate goes with it: Kubernetes deletes what its
// owner references say.
func TestEverythingIsOwned(t *testing.T) {
	w := withCA(t)
	w.approving = false
	web := server("web", "ca", "ML-DSA-65", "ECDSA-P256")
	w.create(web)
	w.request()
	owned := func(o client.Object) {
		t.Helper()
		ref := metav1.GetControllerOf(o)
		if ref == nil || ref.Kind != "PQCCertificate" || ref.BlockOwnerDeletion == nil || !*ref.BlockOwnerDeletion {
			t.Errorf("%T %s is not owned: %+v", o, o.GetName(), ref)
		}
		if o.GetLabels()[v1alpha1.LabelManagedBy] != v1alpha1.LabelManagedByValue {
			t.Errorf("%T %s has the labels %v", o, o.GetName(), o.GetLabels())
		}
	}
	all := func() {
		t.Helper()
		var secrets corev1.SecretList
		if err := w.List(t.Context(), &secrets, client.InNamespace(w.namespace)); err != nil {
			t.Fatal(err)
		}
		for i := range secrets.Items {
			owned(&secrets.Items[i])
		}
		for _, cr := range w.requests() {
			owned(&cr)
		}
	}
	all() // the keys under way
	w.approving = true
	w.issued(web)
	all()

	if err := w.Delete(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	testenv.Never(t, time.Second, func(context.Context) error {
		if n := len(w.requests()); n > 4 {
			return fmt.Errorf("%d CertificateRequests: something is issued for a PQCCertificate that is gone", n)
		}
		return nil
	})
}

// Another issuer's certificate is looked at before it is used.
func TestWhatOtherIssuersReturn(t *testing.T) {
	w := withCA(t)
	web := server("web", "theirs", "ECDSA-P256")
	web.Spec.IssuerRef = v1alpha1.IssuerReference{Name: "theirs", Kind: "ClusterIssuer", Group: "cert-manager.io"}
	w.create(web)
	root := w.secret("root-ecdsa-p256")
	authority, err := pki.ParseAuthority(root.Data[corev1.TLSCertKey], root.Data[corev1.TLSPrivateKeyKey], nil, w.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	// answer signs, as that issuer, for a key of the test's own or the one requested.
	answer := func(foreignKey, withCA bool) {
		t.Helper()
		var cr *cmapi.CertificateRequest
		w.eventually(func() error {
			if cr = w.request(); len(cr.Status.Conditions) != 1 {
				return fmt.Errorf("not just approved: %+v", cr.Status)
			}
			return nil
		})
		csr, err := pki.ParseRequest(cr.Spec.Request)
		if err != nil {
			t.Fatal(err)
		}
		if foreignKey {
			key, err := pki.GenerateKey("ECDSA-P256")
			if err != nil {
				t.Fatal(err)
			}
			other, err := pki.NewRequest(key, pki.Names{DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses})
			if err != nil {
				t.Fatal(err)
			}
			if csr, err = pki.ParseRequest(other); err != nil {
				t.Fatal(err)
			}
		}
		issued, err := authority.Sign(pki.Order{Request: csr, Duration: cr.Spec.Duration.Duration, KeyUsage: x509.KeyUsageDigitalSignature}, w.clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		// Some issuers send the root along, some tell their CA, some neither.
		cr.Status.Certificate = append(pki.CertificatesPEM(issued.Chain.Certificates...), pki.CertificatesPEM(issued.Chain.Anchor)...)
		if withCA {
			cr.Status.CA = pki.CertificatesPEM(issued.Chain.Anchor)
		}
		w.decide(cr, cmapi.CertificateRequestConditionReady, cmapi.CertificateRequestReasonIssued, "")
	}
	answer(true, true)
	c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRequestFailed)
	if !strings.Contains(c.Message, `ClusterIssuer.cert-manager.io "theirs" signed CertificateRequest "web-ecdsa-p256-1", but the certificate is of no use: it is for another key`) {
		t.Error(c.Message)
	}
	w.pass(web, 61*time.Second)
	answer(false, false)
	w.issued(web)
	w.verify("web-ecdsa-p256", "www.example.com")
	if certs, err := keypair.ParseCertificates(w.secret("web-ecdsa-p256").Data[corev1.TLSCertKey]); err != nil || len(certs) != 1 {
		t.Errorf("%d certificates in tls.crt, %v: the root does not belong there", len(certs), err)
	}
}

// Clients would refuse what another issuer signs with a clock that is ahead, and
// the present certificate serves.
func TestACertificateThatIsNotValidYetWaits(t *testing.T) {
	w := withCA(t)
	root := w.secret("root-ecdsa-p256")
	authority, err := pki.ParseAuthority(root.Data[corev1.TLSCertKey], root.Data[corev1.TLSPrivateKeyKey], nil, w.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	// sign as an issuer does whose certificates are valid from then on.
	sign := func(from time.Time) {
		t.Helper()
		cr := w.request()
		csr, err := pki.ParseRequest(cr.Spec.Request)
		if err != nil {
			t.Fatal(err)
		}
		issued, err := authority.Sign(pki.Order{Request: csr, Duration: cr.Spec.Duration.Duration, KeyUsage: x509.KeyUsageDigitalSignature}, from.Add(5*time.Minute)) // it dates back
		if err != nil {
			t.Fatal(err)
		}
		if begin := issued.Chain.Leaf().NotBefore; !begin.Equal(from) {
			t.Fatalf("it is valid from %s, not %s", begin, from)
		}
		w.eventually(func() error {
			w.get(cr)
			if len(cr.Status.Conditions) != 1 {
				return fmt.Errorf("not just approved: %+v", cr.Status)
			}
			return nil
		})
		cr.Status.Certificate = pki.CertificatesPEM(issued.Chain.Certificates...)
		cr.Status.CA = pki.CertificatesPEM(issued.Chain.Anchor)
		w.decide(cr, cmapi.CertificateRequestConditionReady, cmapi.CertificateRequestReasonIssued, "")
	}
	web := server("web", "theirs", "ECDSA-P256")
	web.Spec.IssuerRef = v1alpha1.IssuerReference{Name: "theirs", Kind: "ClusterIssuer", Group: "cert-manager.io"}
	w.create(web)
	sign(w.clock.Now().Add(4 * time.Minute))
	w.issued(web) // nothing else serves

	for n, change := range []func(){
		func() { annotate(web, v1alpha1.AnnotationRenew, "1") },
		func() { web.Spec.DNSNames = append(web.Spec.DNSNames, "more.example.com") }, // the former names are served until then
	} {
		present := w.pair("web-ecdsa-p256").SerialNumber()
		w.pass(web, 5*time.Minute)
		w.change(web, change)
		from := w.clock.Now().Add(4 * time.Minute)
		sign(from)
		w.eventually(func() error {
			w.get(web)
			if c := meta.FindStatusCondition(web.Status.Conditions, v1alpha1.ConditionIssuing); c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "valid from "+from.UTC().Format(time.RFC3339)) {
				return fmt.Errorf("condition %+v", c)
			}
			return nil
		})
		if w.pair("web-ecdsa-p256").SerialNumber() != present {
			t.Error("it was replaced by one that is not valid yet")
		}
		w.pass(web, 4*time.Minute)
		w.revision(web, int64(n)+2)
		if w.pair("web-ecdsa-p256").SerialNumber() == present {
			t.Error("it was not replaced")
		}
	}
}

func TestCertManagerComesLater(t *testing.T) {
	install := testenv.WithoutCertManager(t)
	w := newWorld(t)
	root := ca("root", "self", "ML-DSA-65")
	w.approving = false
	w.create(selfSigned("self"), root)
	c := w.condition(root, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonCertManagerNotFound)
	if !strings.Contains(c.Message, "install cert-manager") {
		t.Error(c.Message)
	}
	install()
	w.approving = true
	w.issued(root)
}

func TestCertManagersWebhookIsAway(t *testing.T) {
	w := withCA(t)
	w.withoutWebhook.Store(true)
	web := server("web", "ca", "ECDSA-P256")
	w.create(web)
	c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonCertManagerNotFound)
	if !strings.Contains(c.Message, `cert-manager's webhook, which has to admit CertificateRequest "web-ecdsa-p256-1", does not answer`) || !strings.Contains(c.Message, "no endpoints available") {
		t.Error(c.Message)
	}
	w.withoutWebhook.Store(false)
	w.pass(web, time.Minute)
	w.issued(web)
}
