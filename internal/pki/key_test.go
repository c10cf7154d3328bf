package pki

import (
	"bytes"
	"crypto/mldsa"
	"encoding/pem"
	"testing"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/keypair"
)

func TestEveryAlgorithmOfTheTableHasKeys(t *testing.T) {
	for _, a := range issued {
		t.Run(string(a.Name), func(t *testing.T) {
			k := key(t, a.Name)
			if got, err := keypair.AlgorithmOf(k.Public()); err != nil || got != a.Name {
				t.Errorf("the key is of algorithm %q, %v", got, err)
			}
			if family, err := FamilyOf(k.Public()); err != nil || family != a.Family {
				t.Errorf("the key is of the family %q, %v; want %q", family, err, a.Family)
			}
			data, err := keypair.MarshalKey(k)
			if err != nil {
				t.Fatal(err)
			}
			back, err := keypair.ParseKey(data)
			if err != nil || !SameKey(back.Public(), k.Public()) {
				t.Errorf("the key does not survive PKCS #8: %v", err)
			}
		})
	}
	if len(keyGenerators) != len(issued) {
		t.Errorf("keys of %d algorithms can be made, the table has %d that are not the provider's", len(keyGenerators), len(issued))
	}
}

func TestKeysOfOneAlgorithmDiffer(t *testing.T) {
	for _, a := range []v1alpha1.KeyAlgorithm{"ML-DSA-44", "ECDSA-P256"} {
		if SameKey(newKey(t, a).Public(), newKey(t, a).Public()) {
			t.Errorf("%s: two keys are the same", a)
		}
	}
	if SameKey(key(t, "ML-DSA-44").Public(), key(t, "ECDSA-P256").Public()) {
		t.Error("keys of two algorithms are the same")
	}
}

func TestMLDSAKeysAreSeedOnly(t *testing.T) {
	k := key(t, "ML-DSA-87")
	data, err := keypair.MarshalKey(k)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	seed := k.(*mldsa.PrivateKey).Bytes()
	// RFC 9881, section 6: the seed as [0] IMPLICIT OCTET STRING of 32 bytes ends the structure.
	if want := append([]byte{0x80, 32}, seed...); len(block.Bytes) != 54 || !bytes.HasSuffix(block.Bytes, want) {
		t.Errorf("%d bytes of PKCS #8; want the 54 of the seed-only form", len(block.Bytes))
	}
}

func TestUnknownAlgorithmsHaveNoKeys(t *testing.T) {
	if _, err := GenerateKey("DSA-1024"); err == nil {
		t.Error("a key of algorithm DSA-1024 was made")
	}
	if _, err := FamilyOf(edKey(t).Public()); err == nil {
		t.Error("Ed25519 is in a family, though no PQCCertificate may have such keys")
	}
}
