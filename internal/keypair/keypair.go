// Package keypair reads a certificate chain and its private key as a Secret of
// type kubernetes.io/tls holds them, finds them sound or says why not, and
// says which clients can verify them.
package keypair

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/mldsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
)

// KeyPair is a sound chain and key.
type KeyPair struct {
	// Chain as a server sends it: the leaf, then each one's issuer. A
	// self-signed root above the leaf is left out: clients have it, and it
	// would only fill the initial congestion window.
	Chain []*x509.Certificate
	// Key of the leaf.
	Key crypto.Signer
	// Algorithm of the leaf's key.
	Algorithm v1alpha1.KeyAlgorithm
}

// ErrKeyMismatch says that the key is not the leaf's.
var ErrKeyMismatch = errors.New("the private key does not belong to the first certificate")

// Parse reads a chain and a key in PEM form. Of several certificates the first
// is the leaf; the others may come in any order.
func Parse(certPEM, keyPEM []byte) (*KeyPair, error) {
	certs, err := ParseCertificates(certPEM)
	if err != nil {
		return nil, err
	}
	key, err := ParseKey(keyPEM)
	if err != nil {
		return nil, err
	}
	leaf := certs[0]
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(leaf.PublicKey) {
		return nil, ErrKeyMismatch
	}
	algorithm, err := AlgorithmOf(key.Public())
	if err != nil {
		return nil, err
	}
	return &KeyPair{Chain: order(leaf, certs[1:]), Key: key, Algorithm: algorithm}, nil
}

// order follows the issuers from the leaf; it stops before a self-signed root
// and leaves out what is not part of the chain. It uses each certificate once: a
// CA's old and new keys may each have signed the other (RFC 4210, section 4.4).
func order(leaf *x509.Certificate, others []*x509.Certificate) []*x509.Certificate {
	chain := []*x509.Certificate{leaf}
	others = slices.Clone(others)
	for last := leaf; !SelfSigned(last); {
		i := slices.IndexFunc(others, func(c *x509.Certificate) bool {
			return bytes.Equal(c.RawSubject, last.RawIssuer) && !SelfSigned(c) && signed(last, c)
		})
		if i < 0 {
			break
		}
		last = others[i]
		others = slices.Delete(others, i, i+1)
		chain = append(chain, last)
	}
	return chain
}

// signed says whether a certificate is signed by an authority's key. Of the
// provider's algorithms, which Go cannot verify, the key's identifier is taken
// for it.
func signed(c, authority *x509.Certificate) bool {
	if _, ok := signedBy(c); ok {
		return bytes.Equal(c.AuthorityKeyId, authority.SubjectKeyId)
	}
	return c.CheckSignatureFrom(authority) == nil
}

// SelfSigned says whether a certificate is signed with its own key. Its being an
// authority does not matter, and the same name is not enough: a CA that takes up a
// new key signs that with the old one, under one name (RFC 5280, section 3.2), and
// clients that trust the old one need this link. Where Go cannot verify the
// signature, which is the provider's or long broken, the key's identifier tells: all
// but self-signed certificates have their signer's (RFC 5280, section 4.2.1.1).
func SelfSigned(c *x509.Certificate) bool {
	if !bytes.Equal(c.RawSubject, c.RawIssuer) {
		return false
	}
	err := c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature)
	var insecure x509.InsecureAlgorithmError
	if errors.As(err, &insecure) || errors.Is(err, x509.ErrUnsupportedAlgorithm) {
		return len(c.AuthorityKeyId) == 0 || bytes.Equal(c.AuthorityKeyId, c.SubjectKeyId)
	}
	return err == nil
}

// ParseCertificates reads one or more certificates in PEM form.
func ParseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("a PEM block of type %q among the certificates; only CERTIFICATE belongs there", block.Type)
		}
		c, err := ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d does not parse: %w", len(certs)+1, err)
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, errors.New("no certificate in PEM form (-----BEGIN CERTIFICATE-----)")
	}
	return certs, nil
}

// ParseKey reads a private key in PEM form: PKCS#8, SEC 1 or PKCS#1. Its
// errors never carry key material.
func ParseKey(data []byte) (crypto.Signer, error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return nil, errors.New("no private key in PEM form (-----BEGIN PRIVATE KEY-----)")
		}
		var key any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			if key, err = parseProviderKey(block.Bytes); errors.Is(err, errNotProviders) {
				key, err = x509.ParsePKCS8PrivateKey(seedOnly(block.Bytes))
			}
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "EC PARAMETERS":
			continue // openssl ecparam writes them before the key
		case referenceType:
			r, err := ParseReference(pem.EncodeToMemory(block))
			if err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("%w (%s): it cannot be read", ErrInHSM, r.URI())
		case "ENCRYPTED PRIVATE KEY":
			return nil, errors.New("the private key is encrypted; store it without a passphrase")
		default:
			return nil, fmt.Errorf("a PEM block of type %q where a private key belongs", block.Type)
		}
		if err != nil {
			return nil, fmt.Errorf("the private key does not parse: %w", err) // crypto/x509 says no more than what is wrong with its form
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("a private key of type %T cannot sign", key)
		}
		return signer, nil
	}
}

// AlgorithmOf names the algorithm of a public key.
func AlgorithmOf(public crypto.PublicKey) (v1alpha1.KeyAlgorithm, error) {
	switch k := public.(type) {
	case *ProviderPublicKey:
		return k.Algorithm.Name, nil
	case *mldsa.PublicKey:
		return v1alpha1.KeyAlgorithm(k.Parameters().String()), nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return "ECDSA-P256", nil
		case elliptic.P384():
			return "ECDSA-P384", nil
		}
		return "", fmt.Errorf("ECDSA keys on curve %s are not supported; use P-256 or P-384", k.Curve.Params().Name)
	case *rsa.PublicKey:
		bits := k.N.BitLen()
		// A modulus may lack its top bit or be of an unusual size: it counts as
		// the next smaller size that the table has.
		for _, a := range []struct {
			bits int
			name v1alpha1.KeyAlgorithm
		}{{4096, "RSA-4096"}, {3072, "RSA-3072"}, {2048, "RSA-2048"}} {
			if bits >= a.bits {
				return a.name, nil
			}
		}
		return "", fmt.Errorf("RSA keys of %d bits are too short; use 2048 or more", bits)
	}
	return "", fmt.Errorf("keys of type %T are not supported", public)
}

// HandshakeSchemes are the TLS code points of what the key can sign a
// handshake with, of those that accept takes.
func (k *KeyPair) HandshakeSchemes(accept func(v1alpha1.SignatureScheme) bool) []uint16 {
	var codes []uint16
	algorithm, _ := algorithms.LookupKeyAlgorithm(k.Algorithm)
	for _, name := range algorithm.Schemes {
		if s, ok := algorithms.LookupSignatureScheme(name); ok && accept(name) {
			codes = append(codes, s.CodePoint)
		}
	}
	return codes
}

// ChainSchemes are the TLS code points (RFC 8446, 4.2.3) of the signatures in
// the chain that is sent. A self-signed leaf is a trust anchor itself: its own
// signature is not checked, and it has none.
func (k *KeyPair) ChainSchemes() ([]uint16, error) {
	var codes []uint16
	for _, c := range k.Chain {
		if SelfSigned(c) {
			continue
		}
		code, ok := certificateSchemes[c.SignatureAlgorithm]
		if a, is := signedBy(c); is {
			s, _ := algorithms.LookupSignatureScheme(a.Schemes[0])
			code, ok = s.CodePoint, true
		}
		if !ok {
			return nil, fmt.Errorf("certificate %q is signed with %s, which TLS 1.3 has no code point for", c.Subject, c.SignatureAlgorithm)
		}
		if !slices.Contains(codes, code) {
			codes = append(codes, code)
		}
	}
	slices.Sort(codes)
	return codes, nil
}

var certificateSchemes = map[x509.SignatureAlgorithm]uint16{
	x509.MLDSA44:          0x0904,
	x509.MLDSA65:          0x0905,
	x509.MLDSA87:          0x0906,
	x509.ECDSAWithSHA256:  0x0403,
	x509.ECDSAWithSHA384:  0x0503,
	x509.ECDSAWithSHA512:  0x0603,
	x509.SHA256WithRSA:    0x0401,
	x509.SHA384WithRSA:    0x0501,
	x509.SHA512WithRSA:    0x0601,
	x509.SHA256WithRSAPSS: 0x0804,
	x509.SHA384WithRSAPSS: 0x0805,
	x509.SHA512WithRSAPSS: 0x0806,
	x509.PureEd25519:      0x0807,
}

// ChainPEM is the chain in PEM form.
func (k *KeyPair) ChainPEM() []byte {
	var b bytes.Buffer
	for _, c := range k.Chain {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) // a bytes.Buffer does not fail
	}
	return b.Bytes()
}

// MarshalKey writes a private key as PKCS #8 in PEM form. ML-DSA keys take the
// seed-only form of RFC 9881, section 6.
func MarshalKey(key crypto.Signer) ([]byte, error) {
	if k, ok := key.(*ProviderKey); ok {
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k.pkcs8}), nil
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("a private key of type %T: %w", key, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// SerialNumber of the leaf in lower-case hex.
func (k *KeyPair) SerialNumber() string { return k.Chain[0].SerialNumber.Text(16) }
