package agent

import (
	"crypto"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/keypair"
)

// certificate is a chain and key in the form that HAProxy reads, and what the
// status says of it.
type certificate struct {
	Secret          string `json:"secret"`
	ResourceVersion string `json:"resourceVersion"`
	Algorithm       string `json:"algorithm"`
	// HSMPool that has the private key; empty where PEM has it.
	HSMPool      string    `json:"hsmPool,omitempty"`
	SerialNumber string    `json:"serialNumber"`
	NotAfter     time.Time `json:"notAfter"`
	// Digest of PEM.
	Digest string `json:"digest"`
	// PEM holds the private key, or where it is. It is in a file of its own,
	// never in JSON.
	PEM []byte `json:"-"`
}

// parseCertificate reads a Secret of type kubernetes.io/tls. The error tells
// what is wrong and what to do, and carries no key material.
func parseCertificate(secret *corev1.Secret) (*certificate, error) {
	for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		if len(secret.Data[key]) == 0 {
			return nil, fmt.Errorf("Secret %q has no %s; it needs the keys tls.crt and tls.key", secret.Name, key)
		}
	}
	pair, err := keypair.ParseStored(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("Secret %q: %w; store a chain and its own key", secret.Name, err)
	}
	pool, key, err := storedKey(pair.Key)
	if err != nil {
		return nil, fmt.Errorf("Secret %q: %w", secret.Name, err)
	}
	content := append(pair.ChainPEM(), key...)
	return &certificate{
		Secret: secret.Name, ResourceVersion: secret.ResourceVersion, Algorithm: string(pair.Algorithm), HSMPool: pool,
		SerialNumber: pair.SerialNumber(), NotAfter: pair.Chain[0].NotAfter.UTC(),
		Digest: digest(content), PEM: content,
	}, nil
}

// storedKey is a private key as HAProxy reads it, and the HSMPool that has it, if
// one does: then it is a reference.
func storedKey(key crypto.Signer) (pool string, content []byte, err error) {
	if r, ok := key.(*keypair.ReferencedKey); ok {
		return r.Pool, r.PEM(), nil
	}
	// Of an ML-DSA key the seed alone, which keeps the file small enough for one
	// buffer of HAProxy.
	if content, err = keypair.MarshalKey(key); err != nil {
		err = errors.New("the private key cannot be written in PKCS#8 form") // which is all that may be told
	}
	return "", content, err
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// secret is what is known of a Secret: its certificate, or the problem with it.
type secret struct {
	Certificate *certificate
	// Problem with its present content, or with reading it.
	Problem string
	// Seen is when the present content was learnt of.
	Seen time.Time
}

// usable is the certificate of the Secret if it can stand where the revision
// names it; else the problem says why not.
func (s secret) usable(wanted dataplane.Certificate) (*certificate, string) {
	switch {
	case s.Certificate == nil && s.Problem == "":
		return nil, fmt.Sprintf("Secret %q has not been read yet", wanted.Secret)
	case s.Certificate == nil:
		return nil, s.Problem
	case s.Certificate.Algorithm != wanted.Algorithm:
		return nil, fmt.Sprintf("Secret %q holds a key of algorithm %s where the configuration expects %s; it is served when the operator has published a configuration for it",
			wanted.Secret, s.Certificate.Algorithm, wanted.Algorithm)
	case s.Certificate.HSMPool != wanted.HSMPool:
		return nil, fmt.Sprintf("the private key of Secret %q lies in %s where the configuration expects it in %s; it is served when the operator has published a configuration for it",
			wanted.Secret, keyPlace(s.Certificate.HSMPool), keyPlace(wanted.HSMPool))
	}
	return s.Certificate, s.Problem
}

func keyPlace(pool string) string {
	if pool == "" {
		return "the Secret"
	}
	return fmt.Sprintf("HSMPool %q", pool)
}
