package keypair

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/testcert"
)

// testdata holds keys and chains that `openssl genpkey`, `req` and `x509` made
// with the provider: leaves under middle.crt (p256_aimer128f), which root.crt
// (haetae2) signed.
func file(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func anyScheme(v1alpha1.SignatureScheme) bool { return true }

func TestProviderKeysAndChains(t *testing.T) {
	for _, tc := range []struct {
		algorithm v1alpha1.KeyAlgorithm
		scheme    uint16
	}{
		{"haetae2", 0xfe4d},
		{"p521_mldsa87", 0xff09},
		{"rsa3072_falconpadded512", 0xfede},
	} {
		t.Run(string(tc.algorithm), func(t *testing.T) {
			crt, key := file(t, string(tc.algorithm)+".crt"), file(t, string(tc.algorithm)+".key")
			pair, err := Parse(slices.Concat(crt, file(t, "root.crt"), file(t, "middle.crt")), key)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := names(pair.Chain), []string{"www.example.com", "middle CA"}; !slices.Equal(got, want) {
				t.Errorf("chain %v, want %v", got, want)
			}
			if pair.Algorithm != tc.algorithm {
				t.Errorf("algorithm %s", pair.Algorithm)
			}
			if got := pair.HandshakeSchemes(anyScheme); !slices.Equal(got, []uint16{tc.scheme}) {
				t.Errorf("handshake schemes %x, want %x", got, tc.scheme)
			}
			// p256_aimer128f signed the leaf, haetae2 the authority.
			if got, err := pair.ChainSchemes(); err != nil || !slices.Equal(got, []uint16{0xfe4d, 0xfe57}) {
				t.Errorf("chain schemes %x, %v", got, err)
			}
			written, err := MarshalKey(pair.Key)
			if err != nil || string(written) != string(key) {
				t.Errorf("the key is not written as it was read (%v)", err)
			}
			if !NeedsProvider(pair.Chain[0]) {
				t.Error("it does not need the provider")
			}
			if _, err := pair.Key.Sign(nil, nil, nil); err == nil {
				t.Error("Go signs with it")
			}
		})
	}
}

func TestWhatNeedsTheProvider(t *testing.T) {
	parse := func(data []byte) *x509.Certificate {
		certs, err := ParseCertificates(data)
		if err != nil {
			t.Fatal(err)
		}
		return certs[0]
	}
	if c := issue(t, "leaf", "ML-DSA-65", nil).cert; NeedsProvider(c) {
		t.Error("a certificate of ML-DSA needs the provider")
	}
	for _, name := range []string{"root.crt", "middle.crt"} {
		if !NeedsProvider(issue(t, "leaf", "ECDSA-P256", nil).cert, parse(file(t, name))) {
			t.Errorf("%s does not need the provider", name)
		}
	}
}

func TestAProviderKeyMustBeTheCertificates(t *testing.T) {
	for _, key := range []string{"p521_mldsa87.key", "rsa3072_falconpadded512.key"} {
		if _, err := Parse(file(t, "haetae2.crt"), file(t, key)); !errors.Is(err, ErrKeyMismatch) {
			t.Errorf("the certificate of haetae2 with %s: %v; want %v", key, err, ErrKeyMismatch)
		}
	}
	if _, err := Parse(file(t, "haetae2.crt"), testcert.KeyPEM(t, testcert.Key(t, "ECDSA-P256"))); !errors.Is(err, ErrKeyMismatch) {
		t.Errorf("with a key of ECDSA: %v", err)
	}
	// One bit of the public key within the private one, and of a hybrid's halves.
	for _, name := range []string{"haetae2", "p521_mldsa87"} {
		block, _ := pem.Decode(file(t, name+".key"))
		block.Bytes[len(block.Bytes)-1] ^= 1
		if _, err := Parse(file(t, name+".crt"), pem.EncodeToMemory(block)); !errors.Is(err, ErrKeyMismatch) {
			t.Errorf("%s with another public key: %v; want %v", name, err, ErrKeyMismatch)
		}
	}
}

func TestAMalformedProviderKeyIsRefusedWithoutItsContent(t *testing.T) {
	for _, name := range []string{"haetae2", "p521_mldsa87", "rsa3072_falconpadded512"} {
		block, _ := pem.Decode(file(t, name+".key"))
		for _, change := range []func([]byte){
			func(b []byte) { b[25]++ },         // a length, or its tag
			func(b []byte) { clear(b[24:40]) }, // what follows it
			func(b []byte) { copy(b[24:], "\xff\xff\xff\xff\xff\xff\xff\xff") },
		} {
			der := slices.Clone(block.Bytes)
			change(der)
			_, err := ParseKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
			if err == nil && name == "haetae2" {
				continue // within the secret key, which nothing checks
			}
			if err == nil || !strings.Contains(err.Error(), "the private key does not parse: it is not a key of "+name) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// FuzzProviderKey: whatever stands in a Secret is read or refused, without a panic.
func FuzzProviderKey(f *testing.F) {
	for _, name := range []string{"haetae2.key", "p521_mldsa87.key", "rsa3072_falconpadded512.key"} {
		block, _ := pem.Decode(file(f, name))
		f.Add(block.Bytes)
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		if key, err := parseProviderKey(der); err == nil {
			if _, err := AlgorithmOf(key.Public()); err != nil {
				t.Error(err)
			}
		}
	})
}
