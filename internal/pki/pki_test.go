package pki

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/keypair"
)

// issued are the algorithms that Go itself has.
var issued = slices.DeleteFunc(slices.Clone(algorithms.KeyAlgorithms), func(a algorithms.KeyAlgorithm) bool { return a.Provider != nil })

// now is the time of every test.
var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

var keys sync.Map

// key makes one key of an algorithm for all tests: RSA keys take long.
func key(t testing.TB, algorithm v1alpha1.KeyAlgorithm) crypto.Signer {
	t.Helper()
	if k, ok := keys.Load(algorithm); ok {
		return k.(crypto.Signer)
	}
	k := newKey(t, algorithm)
	keys.Store(algorithm, k)
	return k
}

func newKey(t testing.TB, algorithm v1alpha1.KeyAlgorithm) crypto.Signer {
	t.Helper()
	k, err := GenerateKey(algorithm)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func edKey(t testing.TB) crypto.Signer {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// csr makes a certificate request out of a template.
func csr(t testing.TB, key crypto.Signer, template x509.CertificateRequest) *x509.CertificateRequest {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func requestPEM(r *x509.CertificateRequest) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: r.Raw})
}

func named(cn string) x509.CertificateRequest {
	return x509.CertificateRequest{Subject: pkix.Name{CommonName: cn}}
}

var serverNames = x509.CertificateRequest{DNSNames: []string{"www.example.com"}, IPAddresses: []net.IP{net.ParseIP("192.0.2.1").To4()}}

// order asks for a server certificate.
func order(t testing.TB, key crypto.Signer, change ...func(*Order)) Order {
	t.Helper()
	o := Order{
		Request:     csr(t, key, serverNames),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		Duration:    24 * time.Hour,
	}
	for _, f := range change {
		f(&o)
	}
	return o
}

func orderCA(t testing.TB, key crypto.Signer, cn string) Order {
	t.Helper()
	return Order{Request: csr(t, key, named(cn)), IsCA: true, Duration: 240 * time.Hour}
}

// root makes a self-signed authority.
func root(t testing.TB, algorithm v1alpha1.KeyAlgorithm) *Authority {
	t.Helper()
	k := key(t, algorithm)
	issued, err := SelfSign(orderCA(t, k, "Root "+string(algorithm)), k, now)
	if err != nil {
		t.Fatal(err)
	}
	return authority(t, k, issued)
}

// authority reads an authority back from PEM.
func authority(t testing.TB, key crypto.Signer, issued *Issued) *Authority {
	t.Helper()
	keyPEM, err := keypair.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a, err := ParseAuthority(CertificatesPEM(issued.Chain.Certificates...), keyPEM, CertificatesPEM(issued.Chain.Anchor), now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func sign(t testing.TB, a *Authority, o Order) *Issued {
	t.Helper()
	issued, err := a.Sign(o, now)
	if err != nil {
		t.Fatal(err)
	}
	return issued
}

func addresses(texts ...string) []net.IP {
	var ips []net.IP
	for _, a := range texts {
		ips = append(ips, net.ParseIP(a))
	}
	return ips
}
