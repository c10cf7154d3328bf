package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"fmt"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/keypair"
)

// keyGenerators make a key of each algorithm of the table in package algorithms
// that is not the provider's.
var keyGenerators = map[v1alpha1.KeyAlgorithm]func() (crypto.Signer, error){
	"ML-DSA-44":  mldsaKey(mldsa.MLDSA44()),
	"ML-DSA-65":  mldsaKey(mldsa.MLDSA65()),
	"ML-DSA-87":  mldsaKey(mldsa.MLDSA87()),
	"ECDSA-P256": ecdsaKey(elliptic.P256()),
	"ECDSA-P384": ecdsaKey(elliptic.P384()),
	"RSA-2048":   rsaKey(2048),
	"RSA-3072":   rsaKey(3072),
	"RSA-4096":   rsaKey(4096),
}

func mldsaKey(p mldsa.Parameters) func() (crypto.Signer, error) {
	return func() (crypto.Signer, error) { return mldsa.GenerateKey(p) }
}

func ecdsaKey(c elliptic.Curve) func() (crypto.Signer, error) {
	return func() (crypto.Signer, error) { return ecdsa.GenerateKey(c, rand.Reader) }
}

func rsaKey(bits int) func() (crypto.Signer, error) {
	return func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, bits) }
}

// GenerateKey makes a new private key.
func GenerateKey(algorithm v1alpha1.KeyAlgorithm) (crypto.Signer, error) {
	generate, ok := keyGenerators[algorithm]
	if a, known := algorithms.LookupKeyAlgorithm(algorithm); known && a.Provider != nil {
		generate, ok = func() (crypto.Signer, error) { return generateProviderKey(a) }, true
	}
	if !ok {
		return nil, fmt.Errorf("there is no key algorithm %q", algorithm)
	}
	key, err := generate()
	if err != nil {
		return nil, fmt.Errorf("a key of algorithm %s: %w", algorithm, err)
	}
	return key, nil
}

// SameKey says whether two public keys are the same.
func SameKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// FamilyOf a public key. Keys that no PQCCertificate may have are an error.
func FamilyOf(public crypto.PublicKey) (algorithms.Family, error) {
	name, err := keypair.AlgorithmOf(public)
	if err != nil {
		return "", err
	}
	a, ok := algorithms.LookupKeyAlgorithm(name)
	if !ok {
		return "", fmt.Errorf("key algorithm %s is in no family", name)
	}
	return a.Family, nil
}

// keyIdentifier is the subject key identifier of a public key: the leftmost
// 160 bits of the SHA-256 hash of its bits (RFC 7093, section 2, method 1).
func keyIdentifier(public crypto.PublicKey) ([]byte, error) {
	der, err := publicKeyInfo(public)
	if err != nil {
		return nil, err
	}
	var info struct {
		Algorithm asn1.RawValue
		PublicKey asn1.BitString
	}
	if _, err := asn1.Unmarshal(der, &info); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(info.PublicKey.Bytes)
	return sum[:20], nil
}

// CertificatesPEM writes certificates in PEM form.
func CertificatesPEM(certs ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certs {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) // a bytes.Buffer does not fail
	}
	return b.Bytes()
}
