// Package testcert makes keys and certificates for tests.
package testcert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
)

// Key of an algorithm that Go has.
func Key(t testing.TB, algorithm v1alpha1.KeyAlgorithm) crypto.Signer {
	t.Helper()
	var key crypto.Signer
	var err error
	switch algorithm {
	case "ML-DSA-44":
		key, err = mldsa.GenerateKey(mldsa.MLDSA44())
	case "ML-DSA-65":
		key, err = mldsa.GenerateKey(mldsa.MLDSA65())
	case "ML-DSA-87":
		key, err = mldsa.GenerateKey(mldsa.MLDSA87())
	case "ECDSA-P256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSA-P384":
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "RSA-2048":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	default:
		t.Fatalf("no key of algorithm %q", algorithm)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Sign a certificate of a public key. Where the parent is the template, it is
// self-signed.
func Sign(t testing.TB, template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// PEM form of certificates.
func PEM(certificates ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range certificates {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

// KeyPEM is the PEM form of a private key, in PKCS#8.
func KeyPEM(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Secret of type kubernetes.io/tls with a self-signed certificate.
func Secret(t testing.TB, namespace, name string, template *x509.Certificate, key crypto.Signer) *corev1.Secret {
	t.Helper()
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		corev1.TLSCertKey:       PEM(Sign(t, template, template, key.Public(), key)),
		corev1.TLSPrivateKeyKey: KeyPEM(t, key),
	}}
}
