package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"

	"qtls.dev/qtls/internal/algorithms"
)

// cert-manager's webhook verifies the signature of every certificate request,
// and as long as it is built with a Go before 1.27 (v1.21.2 is) it knows no
// ML-DSA and refuses the object. A carrier brings such a request past it: a
// request for the same names, signed with an ECDSA key that is thrown away,
// whose subjectKeyIdentifier is the SHA-256 hash of the real key's
// SubjectPublicKeyInfo (RFC 7093, section 2, method 4). What is approved is
// thus the names and the real key, though the real request travels in an
// annotation beside it.

// NewCarrier makes the carrier of a request; both are in PEM form.
func NewCarrier(request []byte) ([]byte, error) {
	csr, err := ParseRequest(request)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	id, err := asn1.Marshal(fullKeyIdentifier(csr))
	if err != nil {
		return nil, err
	}
	return createRequest(key, &x509.CertificateRequest{
		RawSubject:      csr.RawSubject,
		DNSNames:        csr.DNSNames,
		IPAddresses:     csr.IPAddresses,
		EmailAddresses:  csr.EmailAddresses,
		URIs:            csr.URIs,
		ExtraExtensions: []pkix.Extension{{Id: oidSubjectKeyIdentifier, Value: id}},
	})
}

// OpenCarrier returns the request that a carrier carries, after it has found
// that the two belong together; both are in PEM form. What needs no carrier is not
// carried: an approver with rules for keys looks at that of the carrier.
func OpenCarrier(carrier, request []byte) (*x509.CertificateRequest, error) {
	outer, err := ParseRequest(carrier)
	if err != nil {
		return nil, err
	}
	inner, err := ParseRequest(request)
	if err != nil {
		return nil, fmt.Errorf("carried beside it: %w", err)
	}
	id, err := asn1.Marshal(fullKeyIdentifier(inner))
	if err != nil {
		return nil, err
	}
	switch {
	case !bytes.Equal(requestedExtension(outer, oidSubjectKeyIdentifier), id):
		return nil, errors.New("the certificate request's subjectKeyIdentifier is not that of the key carried beside it")
	case !bytes.Equal(outer.RawSubject, inner.RawSubject),
		!bytes.Equal(requestedExtension(outer, oidSubjectAltName), requestedExtension(inner, oidSubjectAltName)):
		return nil, errors.New("the certificate request and the one carried beside it name different subjects")
	}
	if family, err := FamilyOf(inner.PublicKey); err != nil {
		return nil, fmt.Errorf("carried beside it: %w", err)
	} else if family != algorithms.PostQuantum {
		return nil, fmt.Errorf("the key carried beside the certificate request is of the family %s, and needs no carrier; put its request into spec.request", family)
	}
	return inner, nil
}

func fullKeyIdentifier(csr *x509.CertificateRequest) []byte {
	sum := sha256.Sum256(csr.RawSubjectPublicKeyInfo)
	return sum[:]
}

func requestedExtension(csr *x509.CertificateRequest, id asn1.ObjectIdentifier) []byte {
	for _, e := range csr.Extensions {
		if e.Id.Equal(id) {
			return e.Value
		}
	}
	return nil
}
