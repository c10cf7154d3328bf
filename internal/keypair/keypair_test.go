package keypair

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/testcert"
)

type issued struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func issue(t testing.TB, name string, algorithm v1alpha1.KeyAlgorithm, by *issued) issued {
	t.Helper()
	k := testcert.Key(t, algorithm)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(0xabc), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: strings.Contains(name, "CA"), BasicConstraintsValid: true,
	}
	parent, signer := template, k
	if by != nil {
		parent, signer = by.cert, by.key
	}
	return issued{testcert.Sign(t, template, parent, k.Public(), signer), k}
}

func certPEM(certs ...issued) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, testcert.PEM(c.cert)...)
	}
	return out
}

func names(chain []*x509.Certificate) []string {
	var out []string
	for _, c := range chain {
		out = append(out, c.Subject.CommonName)
	}
	return out
}

func TestTheChainIsOrderedAndHasNoRoot(t *testing.T) {
	root := issue(t, "root CA", "ML-DSA-87", nil)
	middle := issue(t, "middle CA", "ML-DSA-65", &root)
	leaf := issue(t, "leaf", "ML-DSA-65", &middle)
	stranger := issue(t, "stranger CA", "ECDSA-P256", nil)

	pair, err := Parse(certPEM(leaf, root, stranger, middle), testcert.KeyPEM(t, leaf.key))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(pair.Chain), []string{"leaf", "middle CA"}; !slices.Equal(got, want) {
		t.Errorf("chain %v, want %v", got, want)
	}
	if pair.Algorithm != "ML-DSA-65" || pair.SerialNumber() != "abc" {
		t.Errorf("algorithm %s, serial %s, want ML-DSA-65, abc", pair.Algorithm, pair.SerialNumber())
	}
	again, err := ParseCertificates(pair.ChainPEM())
	if err != nil || len(again) != 2 {
		t.Errorf("the chain in PEM form reads back as %d certificates (%v), want 2", len(again), err)
	}
}

// A CA signs its new key with the old one, under one name: clients that trust the
// old one need that link (RFC 5280, section 3.2).
func TestTheLinkToAFormerKeyOfACAIsServed(t *testing.T) {
	old := issue(t, "root CA", "ECDSA-P384", nil)
	link := issue(t, "root CA", "ML-DSA-65", &old)
	leaf := issue(t, "leaf", "ML-DSA-44", &link)
	pair, err := Parse(certPEM(leaf, old, link), testcert.KeyPEM(t, leaf.key))
	if err != nil {
		t.Fatal(err)
	}
	if len(pair.Chain) != 2 || !pair.Chain[1].Equal(link.cert) {
		t.Errorf("chain %v, want the leaf and the link", names(pair.Chain))
	}
	if schemes, err := pair.ChainSchemes(); err != nil || !slices.Equal(schemes, []uint16{0x0503, 0x0905}) {
		t.Errorf("chain schemes %04x, %v: clients verify the link's signature, too", schemes, err)
	}
}

// Where the old key has signed the new one and the new one the old (RFC 4210, section
// 4.4), a chain does not go round.
func TestLinksBothWaysAreServedOnce(t *testing.T) {
	old := issue(t, "root CA", "ECDSA-P384", nil)
	link := issue(t, "root CA", "ECDSA-P256", &old)
	back := issued{testcert.Sign(t, old.cert, link.cert, old.key.Public(), link.key), old.key}
	leaf := issue(t, "leaf", "ECDSA-P256", &link)
	pair, err := Parse(certPEM(leaf, link, back), testcert.KeyPEM(t, leaf.key))
	if err != nil {
		t.Fatal(err)
	}
	if len(pair.Chain) != 3 || !pair.Chain[1].Equal(link.cert) || !pair.Chain[2].Equal(back.cert) {
		t.Errorf("chain %v, want the leaf and each link once", names(pair.Chain))
	}
}

func TestWhatIsSelfSigned(t *testing.T) {
	root := issue(t, "root CA", "ECDSA-P256", nil)
	name, id := []byte("a"), []byte{1}
	broken := func(subject, authority []byte) *x509.Certificate {
		return &x509.Certificate{RawSubject: name, RawIssuer: name, SignatureAlgorithm: x509.MD5WithRSA, PublicKey: testcert.Key(t, "RSA-2048").Public(), SubjectKeyId: subject, AuthorityKeyId: authority}
	}
	for what, c := range map[string]struct {
		cert *x509.Certificate
		want bool
	}{
		"a root":                               {root.cert, true},
		"a link to a former key":               {issue(t, "root CA", "ECDSA-P256", &root).cert, false},
		"a leaf":                               {issue(t, "leaf", "ECDSA-P256", &root).cert, false},
		"an old root, signed with MD5":         {broken(id, nil), true},
		"an old root that names its key":       {broken(id, id), true},
		"an old link to a former key":          {broken(id, []byte{2}), false},
		"a root of an algorithm that Go lacks": {readTestdata(t, "root.crt"), true},
		"a leaf of an algorithm that Go lacks": {readTestdata(t, "haetae2.crt"), false},
	} {
		if got := SelfSigned(c.cert); got != c.want {
			t.Errorf("%s is self-signed: %t", what, got)
		}
	}
}

func readTestdata(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	certs, err := ParseCertificates(file(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

func TestChainSchemesNameEverySignatureThatIsSent(t *testing.T) {
	root := issue(t, "root CA", "ECDSA-P384", nil)
	middle := issue(t, "middle CA", "ML-DSA-87", &root)
	leaf := issue(t, "leaf", "ML-DSA-44", &middle)
	alone := issue(t, "alone", "ML-DSA-65", nil)

	for _, tc := range []struct {
		name      string
		certs     []issued
		chain     []uint16
		handshake []uint16
	}{
		{"a leaf under a chain of mixed algorithms", []issued{leaf, middle, root}, []uint16{0x0503, 0x0906}, []uint16{0x0904}},
		{"a self-signed leaf: nobody checks its own signature", []issued{alone}, nil, []uint16{0x0905}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pair, err := Parse(certPEM(tc.certs...), testcert.KeyPEM(t, tc.certs[0].key))
			if err != nil {
				t.Fatal(err)
			}
			chain, err := pair.ChainSchemes()
			if err != nil || !slices.Equal(chain, tc.chain) {
				t.Errorf("chain schemes %04x (%v), want %04x", chain, err, tc.chain)
			}
			all := func(v1alpha1.SignatureScheme) bool { return true }
			if got := pair.HandshakeSchemes(all); !slices.Equal(got, tc.handshake) {
				t.Errorf("handshake schemes %04x, want %04x", got, tc.handshake)
			}
			none := func(v1alpha1.SignatureScheme) bool { return false }
			if got := pair.HandshakeSchemes(none); len(got) != 0 {
				t.Errorf("handshake schemes under a policy that accepts none: %04x", got)
			}
		})
	}
}

func TestEveryAlgorithmIsNamed(t *testing.T) {
	for _, a := range []v1alpha1.KeyAlgorithm{"ML-DSA-44", "ML-DSA-65", "ML-DSA-87", "ECDSA-P256", "ECDSA-P384", "RSA-2048"} {
		if got, err := AlgorithmOf(testcert.Key(t, a).Public()); got != a || err != nil {
			t.Errorf("AlgorithmOf(%s) = %s, %v", a, got, err)
		}
	}
}

func TestWhatIsUnsoundIsRefusedWithAReason(t *testing.T) {
	leaf := issue(t, "leaf", "ECDSA-P256", nil)
	other := issue(t, "other", "ECDSA-P256", nil)
	good := testcert.KeyPEM(t, leaf.key)
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name      string
		cert, key []byte
		says      string
	}{
		{"no certificate", nil, good, "no certificate in PEM form"},
		{"no key", certPEM(leaf), nil, "no private key in PEM form"},
		{"a key among the certificates", append(certPEM(leaf), good...), good, `PEM block of type "PRIVATE KEY"`},
		{"a certificate for a key", certPEM(leaf), certPEM(leaf), `PEM block of type "CERTIFICATE"`},
		{"a certificate that is cut off", []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), good, "does not parse"},
		{"an encrypted key", certPEM(leaf), []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"), "is encrypted"},
		{"a key of a curve that is not served", certPEM(leaf), testcert.KeyPEM(t, p521), ErrKeyMismatch.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse(tc.cert, tc.key)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one that says %q", err, tc.says)
			}
		})
	}
	if _, err := Parse(certPEM(leaf), testcert.KeyPEM(t, other.key)); !errors.Is(err, ErrKeyMismatch) {
		t.Errorf("the key of another certificate: %v, want ErrKeyMismatch", err)
	}
}

func FuzzParse(f *testing.F) {
	leaf := issue(f, "leaf", "ECDSA-P256", nil)
	der, err := x509.MarshalPKCS8PrivateKey(leaf.key)
	if err != nil {
		f.Fatal(err)
	}
	good := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	f.Add(certPEM(leaf), good)
	f.Add(certPEM(leaf, leaf), good)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n"), []byte("-----BEGIN EC PARAMETERS-----\n"))
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		pair, err := Parse(cert, key)
		if err != nil {
			return
		}
		if len(pair.Chain) == 0 || pair.Key == nil {
			t.Fatal("accepted without a chain or a key")
		}
		if _, err := ParseCertificates(pair.ChainPEM()); err != nil {
			t.Fatalf("what was accepted does not read back: %v", err)
		}
	})
}
