package pki

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/openssl/openssltest"
)

// providerOrder asks for a certificate with a request as a PQCCertificate's
// controller makes it.
func providerOrder(t testing.TB, k crypto.Signer, names Names, change ...func(*Order)) Order {
	t.Helper()
	data, err := NewRequest(k, names)
	if err != nil {
		t.Fatal(err)
	}
	request, err := ParseRequest(data)
	if err != nil {
		t.Fatal(err)
	}
	o := Order{Request: request, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, Duration: 24 * time.Hour}
	for _, f := range change {
		f(&o)
	}
	return o
}

// providerAuthority is self-signed, or signed by another.
func providerAuthority(t testing.TB, algorithm v1alpha1.KeyAlgorithm, by *Authority) *Authority {
	t.Helper()
	k := newKey(t, algorithm)
	o := providerOrder(t, k, Names{CommonName: "Authority " + string(algorithm)}, func(o *Order) { o.IsCA, o.Duration = true, 240*time.Hour })
	if by != nil {
		return authority(t, k, sign(t, by, o))
	}
	issued, err := SelfSign(o, k, now)
	if err != nil {
		t.Fatal(err)
	}
	return authority(t, k, issued)
}

func write(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Authorities and leaves of the provider's algorithms and of Go's, each above
// and below the other.
func TestCertificatesOfTheProvidersAlgorithms(t *testing.T) {
	openssltest.Use(t)
	for _, tc := range []struct{ top, middle, leaf v1alpha1.KeyAlgorithm }{
		{"haetae2", "aimer128f", "p256_haetae2"},
		{"ML-DSA-65", "ML-DSA-44", "haetae3"},
		{"ML-DSA-65", "p256_falconpadded512", "ML-DSA-65"},
		{"p384_haetae3", "ML-DSA-44", "falcon512"},
		{"mayo1", "CROSSrsdp128fast", "rsa3072_mldsa44"},
	} {
		t.Run(string(tc.top)+" above "+string(tc.middle)+" above "+string(tc.leaf), func(t *testing.T) {
			top := providerAuthority(t, tc.top, nil)
			middle := providerAuthority(t, tc.middle, top)
			k := newKey(t, tc.leaf)
			names := Names{DNSNames: []string{"www.example.com"}, IPAddresses: addresses("192.0.2.1")}
			issued := sign(t, middle, providerOrder(t, k, names))
			want := Wanted{Key: k.Public(), Names: names}
			if err := issued.Chain.Check(want, []*x509.Certificate{top.Certificate()}, now); err != nil {
				t.Errorf("the chain is not fit for use: %v", err)
			}
			if err := issued.Chain.Check(want, []*x509.Certificate{providerAuthority(t, "haetae2", nil).Certificate()}, now); err == nil {
				t.Error("it leads to another authority, too")
			}
			if err := issued.Chain.Check(want, nil, now.AddDate(1, 0, 0)); err == nil {
				t.Error("it is valid after its end")
			}

			leaf := issued.Chain.Leaf()
			switch {
			case len(issued.Chain.Certificates) != 2 || !issued.Chain.Anchor.Equal(top.Certificate()):
				t.Errorf("a chain of %d under %s", len(issued.Chain.Certificates), issued.Chain.Anchor.Subject)
			case leaf.KeyUsage != x509.KeyUsageDigitalSignature || leaf.IsCA || !leaf.BasicConstraintsValid:
				t.Errorf("keyUsage %b, CA:%t", leaf.KeyUsage, leaf.IsCA)
			case len(leaf.SubjectKeyId) != 20 || !bytes.Equal(leaf.AuthorityKeyId, middle.Certificate().SubjectKeyId):
				t.Errorf("subjectKeyIdentifier %x, authorityKeyIdentifier %x", leaf.SubjectKeyId, leaf.AuthorityKeyId)
			case leaf.VerifyHostname("www.example.com") != nil || leaf.VerifyHostname("192.0.2.1") != nil:
				t.Error("it lacks its names")
			}

			// A Secret with them is what a gateway serves.
			keyPEM, err := keypair.MarshalKey(k)
			if err != nil {
				t.Fatal(err)
			}
			pair, err := keypair.Parse(CertificatesPEM(issued.Chain.Certificates...), keyPEM)
			if err != nil || pair.Algorithm != tc.leaf || len(pair.Chain) != 2 {
				t.Errorf("%+v, %v", pair, err)
			}
			if _, err := pair.ChainSchemes(); err != nil {
				t.Error(err)
			}
		})
	}
}

// What crypto/x509 made for a key of its own has no trace of that key.
func TestOpenSSLTakesWhatIsMadeWithTheProvider(t *testing.T) {
	openssltest.Use(t)
	run := func(arguments ...string) (string, error) {
		out, err := exec.Command("openssl", append(arguments[:1:1], append([]string{"-provider", "default", "-provider", "oqsprovider"}, arguments[1:]...)...)...).CombinedOutput()
		return string(out), err
	}
	dir := t.TempDir()
	top := providerAuthority(t, "haetae2", nil)
	issued := sign(t, top, providerOrder(t, newKey(t, "p384_haetae3"), Names{DNSNames: []string{"www.example.com"}}))
	root, leaf := write(t, dir, "root.pem", CertificatesPEM(top.Certificate())), write(t, dir, "leaf.pem", CertificatesPEM(issued.Chain.Leaf()))
	out, err := run("verify", "-x509_strict", "-check_ss_sig", "-policy_check", "-purpose", "sslserver", "-attime",
		strconv.FormatInt(now.Unix(), 10), "-CAfile", root, "-verify_hostname", "www.example.com", leaf)
	if err != nil {
		t.Errorf("openssl verify: %v\n%s", err, out)
	}
	if out, err = run("x509", "-in", leaf, "-noout", "-text"); err != nil || strings.Contains(out, "ED25519") || strings.Count(out, "Signature Algorithm: haetae2") != 2 ||
		!strings.Contains(out, "Public Key Algorithm: p384_haetae3") {
		t.Errorf("%v\n%s", err, out)
	}
	request, err := NewRequest(newKey(t, "haetae2"), Names{CommonName: "a", DNSNames: []string{"a.b"}})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := run("req", "-in", write(t, dir, "request.pem", request), "-noout", "-verify"); err != nil || !strings.Contains(out, "verify OK") {
		t.Errorf("openssl req: %v\n%s", err, out)
	}
}

func TestEveryAlgorithmOfTheProvidersHasKeysThatAreRead(t *testing.T) {
	openssltest.Use(t)
	for _, a := range algorithms.KeyAlgorithms {
		if a.Provider == nil || a.Provider.Hybrid && strings.HasPrefix(string(a.Name), "rsa") { // which take long: TestCertificates has one
			continue
		}
		k, err := GenerateKey(a.Name)
		if err != nil {
			t.Errorf("%s: %v", a.Name, err)
			continue
		}
		if got, err := keypair.AlgorithmOf(k.Public()); err != nil || got != a.Name {
			t.Errorf("a key of %s is one of %s, %v", a.Name, got, err)
		}
	}
}

func TestCarriersOfTheProvidersRequests(t *testing.T) {
	openssltest.Use(t)
	k := newKey(t, "haetae2")
	request, err := NewRequest(k, Names{CommonName: "a", DNSNames: []string{"a.b"}})
	if err != nil {
		t.Fatal(err)
	}
	carrier, err := NewCarrier(request)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := OpenCarrier(carrier, request)
	if err != nil || !SameKey(csr.PublicKey, k.Public()) {
		t.Errorf("%+v, %v", csr, err)
	}
	other, err := NewRequest(newKey(t, "haetae2"), Names{CommonName: "a", DNSNames: []string{"a.b"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCarrier(carrier, other); err == nil {
		t.Error("a carrier carries another key's request")
	}
}

func TestARequestThatAnotherKeySignedIsRefused(t *testing.T) {
	openssltest.Use(t)
	request, err := NewRequest(newKey(t, "haetae2"), Names{CommonName: "a"})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(request)
	block.Bytes[len(block.Bytes)-1] ^= 1
	if _, err := ParseRequest(pem.EncodeToMemory(block)); err == nil || !strings.Contains(err.Error(), "not signed with its own key") {
		t.Errorf("%v", err)
	}
}
