package keypair

import (
	"crypto"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"unicode"
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
	// Names end up in the lines of configuration files.
	if strings.ContainsFunc(r.Pool+r.Label, unicode.IsControl) {
		return Reference{}, fmt.Errorf("the PKCS #11 URI of pool %q and label %q has a control character in a name; use another name", r.Pool, r.Label)
	}
	return r, nil
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
	return &KeyPair{Chain: order(leaf, certs[1:]), Key: &ReferencedKey{reference, leaf.PublicKey}, Algorithm: algorithm}, nil
}
