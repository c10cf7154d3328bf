package pki

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"net"

	"qtls.dev/qtls/internal/keypair"
)

// Names of a certificate.
type Names struct {
	CommonName  string
	DNSNames    []string
	IPAddresses []net.IP
}

// NewRequest makes a certificate request (PKCS #10) in PEM form.
func NewRequest(key crypto.Signer, names Names) ([]byte, error) {
	return createRequest(key, names.template())
}

func (n Names) template() *x509.CertificateRequest {
	return &x509.CertificateRequest{
		Subject:     pkix.Name{CommonName: n.CommonName},
		DNSNames:    n.DNSNames,
		IPAddresses: n.IPAddresses,
	}
}

func createRequest(key crypto.Signer, template *x509.CertificateRequest) ([]byte, error) {
	var der []byte
	var err error
	if k, ok := key.(*keypair.ProviderKey); ok {
		der, err = createProviderRequest(k, template)
	} else {
		der, err = x509.CreateCertificateRequest(rand.Reader, template, key)
	}
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// Extensions that a request may carry (RFC 5280, section 4.2.1).
var (
	oidSubjectKeyIdentifier = asn1.ObjectIdentifier{2, 5, 29, 14}
	oidKeyUsage             = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidSubjectAltName       = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidBasicConstraints     = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidNameConstraints      = asn1.ObjectIdentifier{2, 5, 29, 30}
	oidExtKeyUsage          = asn1.ObjectIdentifier{2, 5, 29, 37}
)

// ParseRequest reads a certificate request in PEM form, and refuses one that
// is not signed with its own key or asks for what would silently be left out.
func ParseRequest(data []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(data)
	switch {
	case block == nil:
		return nil, errors.New("the request holds no certificate request in PEM form (-----BEGIN CERTIFICATE REQUEST-----)")
	case block.Type != "CERTIFICATE REQUEST" && block.Type != "NEW CERTIFICATE REQUEST":
		return nil, fmt.Errorf("the request holds a PEM block of type %q; CERTIFICATE REQUEST belongs there", block.Type)
	case len(bytes.TrimSpace(rest)) > 0:
		return nil, errors.New("the request holds more than one certificate request in PEM form; one belongs there")
	}
	csr, err := keypair.ParseRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the certificate request does not parse: %w", err)
	}
	if _, err := keypair.AlgorithmOf(csr.PublicKey); err != nil {
		return nil, fmt.Errorf("the certificate request's key: %w", err)
	}
	if k, ok := csr.PublicKey.(*keypair.ProviderPublicKey); ok {
		err = checkSignature(csr.Raw, k)
	} else {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("the certificate request is not signed with its own key: %w", err)
	}
	return csr, checkExtensions(csr)
}

func checkExtensions(csr *x509.CertificateRequest) error {
	for _, e := range csr.Extensions {
		switch {
		case e.Id.Equal(oidSubjectAltName):
			if err := checkAlternativeNames(csr, e.Value); err != nil {
				return err
			}
		case e.Id.Equal(oidNameConstraints):
			return errors.New("the certificate request asks for name constraints, which this issuer does not support; leave them out")
		case e.Id.Equal(oidBasicConstraints), e.Id.Equal(oidKeyUsage), e.Id.Equal(oidExtKeyUsage), e.Id.Equal(oidSubjectKeyIdentifier):
			// What is approved is spec.isCA and spec.usages, not these.
		case e.Critical:
			return fmt.Errorf("the certificate request asks for the critical extension %s, which this issuer does not support; leave it out", e.Id)
		}
	}
	return nil
}

// checkAlternativeNames refuses kinds of names that crypto/x509 passes over,
// such as otherName: they would be missing in the certificate.
func checkAlternativeNames(csr *x509.CertificateRequest, value []byte) error {
	var names []asn1.RawValue
	if rest, err := asn1.Unmarshal(value, &names); err != nil || len(rest) > 0 {
		return errors.New("the certificate request's subjectAltName does not parse")
	}
	if known := len(csr.DNSNames) + len(csr.IPAddresses) + len(csr.EmailAddresses) + len(csr.URIs); known != len(names) {
		return fmt.Errorf("%d of the %d names in the certificate request's subjectAltName are of a kind that this issuer does not support; use DNS names, IP addresses, e-mail addresses and URIs",
			len(names)-known, len(names))
	}
	return nil
}

// asksForCA is what a request's basicConstraints say; absent, found is false.
func asksForCA(csr *x509.CertificateRequest) (isCA, found bool, err error) {
	for _, e := range csr.Extensions {
		if !e.Id.Equal(oidBasicConstraints) {
			continue
		}
		var constraints struct {
			IsCA       bool `asn1:"optional"`
			MaxPathLen int  `asn1:"optional,default:-1"`
		}
		if rest, err := asn1.Unmarshal(e.Value, &constraints); err != nil || len(rest) > 0 {
			return false, true, errors.New("the certificate request's basicConstraints do not parse")
		}
		return constraints.IsCA, true, nil
	}
	return false, false, nil
}
