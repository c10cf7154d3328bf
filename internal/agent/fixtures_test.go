package agent

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"math/big"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/testcert"
)

// patience is with what has to happen; how soon it does is not tested.
const patience = time.Minute

// family is an ECDSA CA and the kind of key that its leaves have. Go's own TLS
// client, which the tests use, takes ML-DSA in a handshake but not in a chain
// (https://go.dev/issue/82536).
type family struct {
	algorithm v1alpha1.KeyAlgorithm
	key       crypto.Signer
	cert      *x509.Certificate
}

func newFamily(t testing.TB, algorithm v1alpha1.KeyAlgorithm) *family {
	t.Helper()
	f := &family{algorithm: algorithm, key: testcert.Key(t, "ECDSA-P256")}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA " + string(algorithm)}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	f.cert = testcert.Sign(t, template, template, f.key.Public(), f.key)
	return f
}

// leaf issues a new certificate with a new key. The root is in the chain, as
// many issuers have it.
func (f *family) leaf(t testing.TB, dnsNames ...string) (certPEM, keyPEM []byte, serial string) {
	t.Helper()
	key := testcert.Key(t, f.algorithm)
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	c := testcert.Sign(t, &x509.Certificate{SerialNumber: number, DNSNames: dnsNames, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(12 * time.Hour)}, f.cert, key.Public(), f.key)
	return testcert.PEM(c, f.cert), testcert.KeyPEM(t, key), c.SerialNumber.Text(16)
}

// secret is a Secret with a new leaf of the family.
func (f *family) secret(t testing.TB, name string) (s *corev1.Secret, serial string) {
	t.Helper()
	certPEM, keyPEM, serial := f.leaf(t, testHost)
	return tlsSecret(name, certPEM, keyPEM), serial
}

func tlsSecret(name string, certPEM, keyPEM []byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "1"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: certPEM, corev1.TLSPrivateKeyKey: keyPEM}}
}

const testHost = "shop.example.com"

const (
	// dualPort serves both certificates, classicalPort the classical one alone.
	dualPort      = 10443
	classicalPort = 10444
)

// testGateway is a gateway with a post-quantum and a classical certificate and
// one Service behind it.
func testGateway() model.Gateway {
	pq := model.Certificate{Secret: pqSecret, Algorithm: "ML-DSA-65", PostQuantum: true, HandshakeSchemes: []uint16{0x0905}, ChainSchemes: []uint16{0x0403}}
	classical := model.Certificate{Secret: classicalSecret, Algorithm: "ECDSA-P256", HandshakeSchemes: []uint16{0x0403}, ChainSchemes: []uint16{0x0403}}
	listener := func(name string, certificates ...model.Certificate) []model.Listener {
		return []model.Listener{{Name: name, Protocol: v1alpha1.ProtocolHTTPS, Hostnames: []model.Hostname{testHost},
			Preference: v1alpha1.PreferPostQuantum, Certificates: certificates, Backends: []model.Backend{{Group: testGroup, Weight: 1}}}}
	}
	return model.Gateway{
		Namespace: "shop", Name: "web", DrainTimeoutSeconds: 10,
		TLS: model.TLS{MinVersion: "TLSv1.3", MaxVersion: "TLSv1.3", Curves: "X25519MLKEM768/X25519:P-256",
			SignatureAlgorithms: "mldsa65:ecdsa_secp256r1_sha256", CipherSuites: "TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256"},
		Ports: []model.Port{
			{Number: dualPort, Listeners: listener("web", pq, classical)},
			{Number: classicalPort, Listeners: listener("classic", classical)},
		},
	}
}

const (
	pqSecret        = "web-ml-dsa-65"
	classicalSecret = "web-ecdsa-p256"
	testGroup       = "shop:http"
)

func render(t testing.TB, g model.Gateway) dataplane.Revision {
	t.Helper()
	r, err := haproxy.Render(g)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// publication is what an operator publishes.
type publication struct {
	assignment dataplane.Assignment
	revisions  []dataplane.Revision
	endpoints  dataplane.Endpoints
}

func (p publication) data(t testing.TB) map[string]string {
	t.Helper()
	data := map[string]string{dataplane.KeyAssignment: encode(t, p.assignment), dataplane.KeyEndpoints: encode(t, p.endpoints)}
	for _, r := range p.revisions {
		data[dataplane.RevisionKey(r.Name())] = encode(t, r)
	}
	return data
}

func (p publication) configMap(t testing.TB) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: dataplane.ObjectName("web"), UID: "1"}, Data: p.data(t)}
}

func encode(t testing.TB, value any) string {
	t.Helper()
	b, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
