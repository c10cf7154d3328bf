package keypair

import (
	"bytes"
	"crypto/mldsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"testing"
)

// both writes a key as OpenSSL does by default. What stands in the place of
// the expanded key does not matter here.
func both(t *testing.T, oid asn1.ObjectIdentifier, seed, expanded []byte) []byte {
	t.Helper()
	inner, err := asn1.Marshal(struct{ Seed, Expanded []byte }{seed, expanded})
	if err != nil {
		t.Fatal(err)
	}
	der, err := asn1.Marshal(struct {
		Version    int
		Algorithm  pkix.AlgorithmIdentifier
		PrivateKey []byte
	}{0, pkix.AlgorithmIdentifier{Algorithm: oid}, inner})
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestKeysWithSeedAndExpandedKey(t *testing.T) {
	for arc, params := range map[int]mldsa.Parameters{17: mldsa.MLDSA44(), 18: mldsa.MLDSA65(), 19: mldsa.MLDSA87()} {
		key, err := mldsa.GenerateKey(params)
		if err != nil {
			t.Fatal(err)
		}
		der := both(t, asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 3, arc}, key.Bytes(), make([]byte, 2560))
		got, err := ParseKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
		if err != nil || !key.PublicKey().Equal(got.Public()) {
			t.Errorf("%s: %v", params, err)
		}
		own, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil || !bytes.Equal(seedOnly(own), own) || !bytes.Equal(seedOnly(der), own) {
			t.Errorf("%s: the seed-only form is not what crypto/x509 writes: %v", params, err)
		}
	}
}

func TestOtherKeysAreLeftAlone(t *testing.T) {
	mlKEM := asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 4, 2}
	for name, der := range map[string][]byte{
		"nothing":           nil,
		"no DER":            []byte("hello"),
		"another algorithm": both(t, mlKEM, make([]byte, 32), make([]byte, 10)),
		"a short seed":      both(t, asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 3, 17}, make([]byte, 31), make([]byte, 10)),
		"more behind it":    append(both(t, asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 3, 17}, make([]byte, 32), nil), 0),
	} {
		if !bytes.Equal(seedOnly(der), der) {
			t.Errorf("%s was changed", name)
		}
	}
}
