package keypair

import (
	"crypto"
	"crypto/rsa"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Reference names a private key that lies in the tokens of an HSMPool. It
// stands where a Secret has a private key, in the PEM form that pkcs11-provider
// reads: a PKCS #11 URI (RFC 7512).
type Reference struct {
	// Pool is the HSMPool's name; URIs have it for the token's label.
	Pool string
	// Label of the key.
	Label string
}

// ErrInHSM says that a private key is one that only an HSM has.
var ErrInHSM = errors.New("the private key lies in an HSM")

const (
	referenceType        = "PKCS#11 PROVIDER URI"
	referenceDescription = "PKCS#11 Provider URI v1.0"

	tagVisibleString = 26
)

// referenceContent of the PEM block.
type referenceContent struct {
	Description asn1.RawValue
	URI         string `asn1:"utf8"`
}

// URI of the key.
func (r Reference) URI() string {
	return "pkcs11:token=" + url.PathEscape(r.Pool) + ";object=" + url.PathEscape(r.Label) + ";type=private"
}

// PEM form.
func (r Reference) PEM() []byte {
	der, err := asn1.Marshal(referenceContent{asn1.RawValue{Tag: tagVisibleString, Bytes: []byte(referenceDescription)}, r.URI()})
	if err != nil {
		panic(err) // two strings, one of them made of ASCII
	}
	return pem.EncodeToMemory(&pem.Block{Type: referenceType, Bytes: der})
}

// IsReference says whether what stands for a private key is a reference.
func IsReference(data []byte) bool {
	block, _ := pem.Decode(data)
	return block != nil && block.Type == referenceType
}

// ParseReference reads what PEM wrote.
func ParseReference(data []byte) (Reference, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != referenceType || len(strings.TrimSpace(string(rest))) > 0 {
		return Reference{}, fmt.Errorf("not one PEM block of type %q", referenceType)
	}
	var content referenceContent
	if rest, err := asn1.Unmarshal(block.Bytes, &content); err != nil || len(rest) > 0 {
		return Reference{}, errors.New("the PKCS #11 URI's PEM block does not parse")
	}
	return ParseURI(content.URI)
}

// ParseURI reads what URI wrote. One that says more is refused: it would name
// a key that is not the one that is used.
func ParseURI(uri string) (Reference, error) {
	var r Reference
	attributes, ok := strings.CutPrefix(uri, "pkcs11:")
	for part := range strings.SplitSeq(attributes, ";") {
		name, escaped, _ := strings.Cut(part, "=")
		value, err := url.PathUnescape(escaped)
		switch {
		case err != nil:
			ok = false
		case name == "token":
			r.Pool = value
		case name == "object":
			r.Label = value
		}
	}
	// The URI is not told: what makes it another one may be a PIN.
	if !ok || r.Pool == "" || r.Label == "" || r.URI() != uri {
		return Reference{}, errors.New("the PKCS #11 URI is not of the form pkcs11:token=POOL;object=LABEL;type=private; it has nothing else, and no PIN")
	}
	for _, name := range []struct{ of, value string }{{"pool", r.Pool}, {"label", r.Label}} {
		if err := checkName(name.value); err != nil {
			return Reference{}, fmt.Errorf("the PKCS #11 URI names the %s %q, which %w; use another name", name.of, name.value, err)
		}
	}
	return r, nil
}

// checkName refuses what would not be read back as it is from the line
// `[key NAME]` of the PKCS #11 module's configuration: it takes white space from
// the ends of names, and a blank and # for the beginning of a comment.
func checkName(name string) error {
	switch {
	case !utf8.ValidString(name):
		return errors.New("is not UTF-8")
	case strings.TrimSpace(name) != name:
		return errors.New("begins or ends with white space")
	case strings.ContainsFunc(name, func(c rune) bool { return unicode.In(c, unicode.C, unicode.Zl, unicode.Zp) }):
		return errors.New("has a control character or a line separator")
	case strings.Contains(" "+name, " #"):
		return errors.New("has a # at the beginning or after a blank")
	case strings.HasSuffix(name, "]"):
		return errors.New("ends with ]")
	}
	return nil
}

// ReferencedKey stands for the private key that a reference names. It signs
// nothing.
type ReferencedKey struct {
	Reference
	public crypto.PublicKey
}

// Public key, as the certificate has it.
func (k *ReferencedKey) Public() crypto.PublicKey { return k.public }

// Sign fails.
func (k *ReferencedKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, fmt.Errorf("%w (pool %q, label %q): what signs with it asks the pool", ErrInHSM, k.Pool, k.Label)
}

// PoolOf is the HSMPool that a private key lies in; empty where it lies in none.
func PoolOf(key crypto.Signer) string {
	if k, ok := key.(*ReferencedKey); ok {
		return k.Pool
	}
	return ""
}

// mostRSABits of a key that the PKCS #11 module serves (crypto/pkcs11/src/spki.rs).
const mostRSABits = 8192

// servedByHSM says whether the PKCS #11 module serves a key of a known algorithm.
func servedByHSM(public crypto.PublicKey) bool {
	switch k := public.(type) {
	case *ProviderPublicKey:
		return false
	case *rsa.PublicKey:
		return k.N.BitLen() <= mostRSABits
	}
	return true
}

// ParseStored reads what Parse does, and also takes a reference for a private
// key: whether the HSM's key is the certificate's, it cannot tell.
func ParseStored(certPEM, keyPEM []byte) (*KeyPair, error) {
	if !IsReference(keyPEM) {
		return Parse(certPEM, keyPEM)
	}
	certs, err := ParseCertificates(certPEM)
	if err != nil {
		return nil, err
	}
	reference, err := ParseReference(keyPEM)
	if err != nil {
		return nil, err
	}
	leaf := certs[0]
	algorithm, err := AlgorithmOf(leaf.PublicKey)
	if err != nil {
		return nil, err
	}
	if !servedByHSM(leaf.PublicKey) {
		return nil, fmt.Errorf("pool %q cannot have the key of a certificate of %s: keys in HSMs are of ML-DSA, ECDSA or RSA of at most %d bits", reference.Pool, algorithm, mostRSABits)
	}
	return &KeyPair{Chain: order(leaf, certs[1:]), Key: &ReferencedKey{reference, leaf.PublicKey}, Algorithm: algorithm}, nil
}
