package keypair

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"qtls.dev/qtls/internal/algorithms"
)

// Go has none of the provider's algorithms. It still reads the keys' encodings,
// which is enough to tell whether a key is a certificate's, and to hand both to
// OpenSSL.

// ProviderPublicKey is a public key of one of the provider's algorithms.
type ProviderPublicKey struct {
	Algorithm algorithms.KeyAlgorithm
	// Bytes of the SubjectPublicKeyInfo's subjectPublicKey.
	Bytes []byte
}

// Equal says whether another key is the same.
func (k *ProviderPublicKey) Equal(other crypto.PublicKey) bool {
	o, ok := other.(*ProviderPublicKey)
	return ok && k.Algorithm.Name == o.Algorithm.Name && bytes.Equal(k.Bytes, o.Bytes)
}

// ProviderKey is a private key of one of the provider's algorithms.
type ProviderKey struct {
	public *ProviderPublicKey
	pkcs8  []byte
}

// Public is the public key.
func (k *ProviderKey) Public() crypto.PublicKey { return k.public }

// Sign fails: it is for OpenSSL to do.
func (k *ProviderKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, fmt.Errorf("Go cannot sign with %s; OpenSSL's provider can", k.public.Algorithm.Name)
}

// ParseCertificate reads a certificate in DER form. The public key is also
// there when it is the provider's (*ProviderPublicKey).
func ParseCertificate(der []byte) (*x509.Certificate, error) {
	c, err := x509.ParseCertificate(der)
	if err == nil && c.PublicKey == nil {
		if k := parsePublicKey(c.RawSubjectPublicKeyInfo); k != nil {
			c.PublicKey = k
		}
	}
	return c, err
}

// ParseRequest reads a certificate request likewise.
func ParseRequest(der []byte) (*x509.CertificateRequest, error) {
	r, err := x509.ParseCertificateRequest(der)
	if err == nil && r.PublicKey == nil {
		if k := parsePublicKey(r.RawSubjectPublicKeyInfo); k != nil {
			r.PublicKey = k
		}
	}
	return r, err
}

func parsePublicKey(der []byte) *ProviderPublicKey {
	var info struct {
		Algorithm pkix.AlgorithmIdentifier
		PublicKey asn1.BitString
	}
	if rest, err := asn1.Unmarshal(der, &info); err != nil || len(rest) > 0 {
		return nil
	}
	a, ok := algorithms.LookupOID(info.Algorithm.Algorithm.String())
	if !ok {
		return nil
	}
	return &ProviderPublicKey{a, info.PublicKey.Bytes}
}

var errNotProviders = errors.New("not a key of the provider's algorithms")

// parseProviderKey reads a private key in PKCS #8 form, or says that its
// algorithm is none of the provider's (errNotProviders). It holds the secret key and the public one; a
// hybrid's, before them, the classical private key after its length.
func parseProviderKey(der []byte) (*ProviderKey, error) {
	var info struct {
		Version    int
		Algorithm  pkix.AlgorithmIdentifier
		PrivateKey []byte
		Attributes asn1.RawValue `asn1:"optional,tag:0"`
	}
	if _, err := asn1.Unmarshal(der, &info); err != nil {
		return nil, errNotProviders // crypto/x509 says what is wrong
	}
	a, ok := algorithms.LookupOID(info.Algorithm.Algorithm.String())
	if !ok {
		return nil, errNotProviders
	}
	malformed := fmt.Errorf("it is not a key of %s", a.Name)
	var octets []byte // in an OCTET STRING of their own
	if rest, err := asn1.Unmarshal(info.PrivateKey, &octets); err != nil || len(rest) > 0 {
		return nil, malformed
	}
	var public []byte
	if a.Provider.Hybrid {
		if len(octets) < 4 {
			return nil, malformed
		}
		length := binary.BigEndian.Uint32(octets)
		octets = octets[4:]
		if uint64(length) > uint64(len(octets)) {
			return nil, malformed
		}
		classical, err := classicalPublic(octets[:length])
		if err != nil {
			return nil, malformed
		}
		public = append(binary.BigEndian.AppendUint32(nil, uint32(len(classical))), classical...)
		octets = octets[length:]
	}
	if len(octets) != a.Provider.SecretSize+a.Provider.PublicSize {
		return nil, malformed
	}
	public = append(public, octets[a.Provider.SecretSize:]...)
	return &ProviderKey{&ProviderPublicKey{a, public}, der}, nil
}

// classicalPublic is the public key, as a hybrid's has it, of an ECPrivateKey or
// an RSAPrivateKey.
func classicalPublic(der []byte) ([]byte, error) {
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key.PublicKey.Bytes()
	}
	key, err := x509.ParsePKCS1PrivateKey(der)
	if err != nil {
		return nil, errors.New("neither an ECPrivateKey nor an RSAPrivateKey")
	}
	return x509.MarshalPKCS1PublicKey(&key.PublicKey), nil
}

// signedBy finds the provider's algorithm that a certificate is signed with.
func signedBy(c *x509.Certificate) (algorithms.KeyAlgorithm, bool) {
	var whole struct {
		Certificate asn1.RawValue
		Algorithm   pkix.AlgorithmIdentifier
		Signature   asn1.BitString
	}
	if _, err := asn1.Unmarshal(c.Raw, &whole); err != nil {
		return algorithms.KeyAlgorithm{}, false
	}
	return algorithms.LookupOID(whole.Algorithm.Algorithm.String())
}

// NeedsProvider says whether OpenSSL needs its provider to use one of the
// certificates (of ParseCertificate): for its key, or to verify it.
func NeedsProvider(certs ...*x509.Certificate) bool {
	for _, c := range certs {
		_, signed := signedBy(c)
		if _, key := c.PublicKey.(*ProviderPublicKey); key || signed {
			return true
		}
	}
	return false
}
