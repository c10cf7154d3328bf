//go:build e2e

package e2e

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
)

// pair is a certificate and its key.
type pair struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newKey(t *testing.T, algorithm v1alpha1.KeyAlgorithm) crypto.Signer {
	t.Helper()
	var key crypto.Signer
	var err error
	switch algorithm {
	case "ECDSA-P256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ML-DSA-65":
		key, err = mldsa.GenerateKey(mldsa.MLDSA65())
	case "ML-DSA-87":
		key, err = mldsa.GenerateKey(mldsa.MLDSA87())
	default:
		t.Fatalf("no test makes keys of %s", algorithm)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t *testing.T, template *x509.Certificate, key crypto.Signer, issuer *pair) pair {
	t.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, signer := template, key
	if issuer != nil {
		parent, signer = issuer.cert, issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return pair{cert, key}
}

// newCA makes a certificate authority.
func newCA(t *testing.T, name string, algorithm v1alpha1.KeyAlgorithm) pair {
	t.Helper()
	return sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}, newKey(t, algorithm), nil)
}

// issue makes a certificate for names, for servers and for clients.
func (ca pair) issue(t *testing.T, algorithm v1alpha1.KeyAlgorithm, names ...string) pair {
	t.Helper()
	return sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, DNSNames: names, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, newKey(t, algorithm), &ca)
}

func (p pair) certPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cert.Raw})
}

func (p pair) keyPEM(t *testing.T) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// serial in lower-case hex, as the API's status has it.
func (p pair) serial() string { return p.cert.SerialNumber.Text(16) }

// secret holds the pair as type kubernetes.io/tls.
func (p pair) secret(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: p.certPEM(), corev1.TLSPrivateKeyKey: p.keyPEM(t)},
	}
}

// bundle joins CA certificates.
func bundle(pairs ...pair) []byte {
	var all bytes.Buffer
	for _, p := range pairs {
		all.Write(p.certPEM())
	}
	return all.Bytes()
}

// firstCertificate finds and reads the first certificate in PEM form in a text.
func firstCertificate(text string) *x509.Certificate {
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE" {
		return nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return cert
}

// fingerprint is the SHA-256 of the certificate's DER form, in hex.
func fingerprint(p pair) string { return fmt.Sprintf("%x", sha256.Sum256(p.cert.Raw)) }

// structuredField is the certificate as RFC 9440 puts it into a header.
func structuredField(p pair) string {
	return ":" + base64.StdEncoding.EncodeToString(p.cert.Raw) + ":"
}
