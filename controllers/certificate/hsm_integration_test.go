//go:build integration

package certificate_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/hsm/hsmtest"
	"qtls.dev/qtls/internal/keypair"
)

// withPool makes an HSMPool of stand-ins for hsmd.
func (w *world) withPool(name string, members int) []*hsmtest.Server {
	w.t.Helper()
	authority := hsmtest.NewAuthority(w.t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name + "-client"}, Data: map[string][]byte{"ca.crt": authority.PEM()}}
	secret.Data["tls.crt"], secret.Data["tls.key"] = authority.Issue(w.t, hsmtest.ClientName)
	pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pool.Spec.Timeout = &metav1.Duration{Duration: 60e9}
	var servers []*hsmtest.Server
	for i := range members {
		s := hsmtest.Serve(w.t, authority)
		servers = append(servers, s)
		pool.Spec.Members = append(pool.Spec.Members, v1alpha1.HSMMember{Name: fmt.Sprintf("hsm-%d", i), Remote: &v1alpha1.RemoteHSM{
			Address: v1alpha1.StoreAddress(s.Address), ServerName: hsmtest.ServerName, TLSSecretRef: v1alpha1.SecretReference{Name: secret.Name}}})
	}
	w.create(secret, pool)
	return servers
}

func inHSM(c *v1alpha1.PQCCertificate, pool string) *v1alpha1.PQCCertificate {
	c.Spec.KeyStorage = v1alpha1.KeyStorage{Type: v1alpha1.KeyStorageHSM, HSMRef: &v1alpha1.HSMPoolReference{Name: pool}}
	return c
}

// reference in a certificate's Secret, which has no private key.
func (w *world) reference(secretName string) keypair.Reference {
	w.t.Helper()
	r, err := keypair.ParseReference(w.secret(secretName).Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// The life of certificates whose keys never leave an HSM: made there, used for
// the request, followed by new ones, and destroyed when nobody uses them.
func TestKeysStayInTheHSM(t *testing.T) {
	w := newWorld(t)
	token := w.withPool("pool", 1)[0].Token
	root := ca("root", "self", "ML-DSA-87", "ECDSA-P384")
	web := inHSM(server("web", "ca", "ML-DSA-65", "ECDSA-P256"), "pool")
	w.create(selfSigned("self"), root, caIssuer("ca", "root-ml-dsa-87", "root-ecdsa-p384"), web)
	w.issued(web)

	labels := map[int64]string{}
	for _, name := range []string{"web-ml-dsa-65", "web-ecdsa-p256"} {
		r := w.reference(name)
		if r.Pool != "pool" || !strings.HasPrefix(r.Label, name+"-1-") || !token.Has(r.Label) {
			t.Errorf("Secret %s refers to %+v, which the token has: %t", name, r, token.Has(r.Label))
		}
		s := w.secret(name)
		pair, err := keypair.ParseStored(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
		if err != nil || pair.Chain[0].VerifyHostname("www.example.com") != nil {
			t.Errorf("Secret %s: %v", name, err)
		}
		if s.Type != corev1.SecretTypeTLS || s.Annotations[v1alpha1.AnnotationPreviousKey] != "" {
			t.Errorf("Secret %s: type %s, annotations %v", name, s.Type, s.Annotations)
		}
	}
	labels[1] = w.reference("web-ml-dsa-65").Label

	// Each renewal makes a key; the one before stays, the one before that goes.
	for revision := int64(2); revision <= 3; revision++ {
		w.change(web, func() {
			web.Annotations = map[string]string{v1alpha1.AnnotationRenew: fmt.Sprint(revision)}
		})
		w.revision(web, revision)
		labels[revision] = w.reference("web-ml-dsa-65").Label
	}
	if token.Has(labels[1]) || !token.Has(labels[2]) || !token.Has(labels[3]) || labels[2] == labels[3] {
		t.Errorf("of the keys %v, the token has %t, %t and %t; want the last two", labels, token.Has(labels[1]), token.Has(labels[2]), token.Has(labels[3]))
	}
	if previous := w.secret("web-ml-dsa-65").Annotations[v1alpha1.AnnotationPreviousKey]; !strings.Contains(previous, "object="+labels[2]+";") {
		t.Errorf("annotation %s is %q, want the key %s", v1alpha1.AnnotationPreviousKey, previous, labels[2])
	}
	w.secretsStaySecret()

	// Back into a Secret: a new key.
	w.change(web, func() { web.Spec.KeyStorage = v1alpha1.KeyStorage{Type: v1alpha1.KeyStorageSecret} })
	w.revision(web, 4)
	w.verify("web-ml-dsa-65", "www.example.com")
}

// A self-signed certificate is signed by its own key, in the HSM.
func TestSelfSignedInTheHSM(t *testing.T) {
	w := newWorld(t)
	w.withPool("pool", 1)
	web := inHSM(server("web", "self", "ML-DSA-44"), "pool")
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.issued(web)
	leaf := w.secret("web-ml-dsa-44").Data[corev1.TLSCertKey]
	certs, err := keypair.ParseCertificates(leaf)
	if err != nil {
		t.Fatal(err)
	}
	if c := certs[0]; c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) != nil {
		t.Error("it is not signed with its own key")
	}
}

// Whatever is wrong with a pool is told, and goes on by itself.
func TestWhyAKeyCannotBeHad(t *testing.T) {
	w := newWorld(t)
	web := inHSM(server("web", "self", "ECDSA-P256"), "pool")
	web.Spec.CommonName = "www.example.com"
	w.create(selfSigned("self"), web)
	w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonHSMPoolNotFound)

	servers := w.withPool("pool", 2)
	// The first member made it; nobody can bring it to the other but its owner.
	c := w.condition(web, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonKeyNotInEveryMember)
	if !strings.Contains(c.Message, `is in member "hsm-0" and not in "hsm-1"`) {
		t.Error(c.Message)
	}
	label := w.reference("web-ecdsa-p256-next").Label
	servers[1].Token.Share(servers[0].Token, label)
	w.issued(web)
	if got := w.reference("web-ecdsa-p256").Label; got != label {
		t.Errorf("the key is %q, want %q, which was made first", got, label)
	}

	// With a member gone no key is made; the certificate stays.
	servers[1].Stop()
	w.change(web, func() { web.Annotations = map[string]string{v1alpha1.AnnotationRenew: "again"} })
	w.condition(web, v1alpha1.ConditionIssuing, metav1.ConditionTrue, v1alpha1.ReasonHSMNotReady)
	if got := w.reference("web-ecdsa-p256").Label; got != label {
		t.Errorf("the key is %q, want %q", got, label)
	}
}
