package pki

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"qtls.dev/qtls/internal/keypair"
)

// skew is by how much clocks may differ: certificates are valid from that much
// before they are issued.
const skew = 5 * time.Minute

// Order is what an approved request asks for.
type Order struct {
	Request     *x509.CertificateRequest
	IsCA        bool
	KeyUsage    x509.KeyUsage
	ExtKeyUsage []x509.ExtKeyUsage
	// Duration of validity from now on.
	Duration time.Duration
}

// Issued is a signed certificate.
type Issued struct {
	// Chain of the certificate. Its anchor is the CA certificate to hand out.
	Chain Chain
	// Shortened says that the end of an authority above cut the validity short.
	Shortened bool
}

// Sign issues what is ordered. An error says why the order is refused.
func (a *Authority) Sign(o Order, now time.Time) (*Issued, error) {
	own := a.Certificate()
	family, err := FamilyOf(o.Request.PublicKey)
	switch {
	case err != nil:
		return nil, err
	case family != a.Family:
		return nil, fmt.Errorf("the request's key is of the family %s, the authority's of the family %s", family, a.Family)
	case bytes.Equal(o.Request.RawSubject, own.RawSubject):
		return nil, fmt.Errorf("the request's subject %q is the authority's own; choose another commonName", own.Subject)
	}
	template, err := template(o, now)
	if err != nil {
		return nil, err
	}
	above := a.path()
	if err := limitPath(template, above); err != nil {
		return nil, err
	}
	shortened := false
	for _, c := range above {
		if template.NotAfter.After(c.NotAfter) {
			template.NotAfter, shortened = c.NotAfter, true
		}
		if template.NotBefore.Before(c.NotBefore) {
			template.NotBefore = c.NotBefore
		}
	}
	leaf, err := create(template, own, o.Request.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	issued := &Issued{Chain: a.chainOf(leaf), Shortened: shortened}
	if err := issued.verify(o, now); err != nil {
		return nil, fmt.Errorf("no client would take the certificate under the authority %q: %w", own.Subject, err)
	}
	return issued, nil
}

// verify that a client which trusts the anchor takes the certificate: what is above
// an authority may limit names and usages, and expire.
func (i *Issued) verify(o Order, now time.Time) error {
	usage := x509.ExtKeyUsageAny
	if !o.IsCA && slices.Contains(o.ExtKeyUsage, x509.ExtKeyUsageServerAuth) {
		usage = x509.ExtKeyUsageServerAuth
	}
	at := now
	if begin := i.Chain.Leaf().NotBefore; at.Before(begin) {
		at = begin
	}
	return i.Chain.verify([]*x509.Certificate{i.Chain.Anchor}, usage, at)
}

// path is the authority's own certificate and all that are above it, the anchor
// last.
func (a *Authority) path() []*x509.Certificate {
	path := slices.Clone(a.Chain.Certificates)
	if path[len(path)-1] != a.Chain.Anchor {
		path = append(path, a.Chain.Anchor)
	}
	return path
}

// chainOf puts a certificate on top of the authority's own chain.
func (a *Authority) chainOf(leaf *x509.Certificate) Chain {
	chain := Chain{Certificates: []*x509.Certificate{leaf}, Anchor: a.Chain.Anchor}
	if !keypair.SelfSigned(a.Certificate()) {
		chain.Certificates = append(chain.Certificates, a.Chain.Certificates...)
	}
	return chain
}

// limitPath keeps a new authority's pathLenConstraint below those of the ones above
// it, from its own signer on: each counts the authorities between (RFC 5280, section
// 4.2.1.9), but for those that sign themselves anew under one name.
func limitPath(template *x509.Certificate, above []*x509.Certificate) error {
	if !template.IsCA {
		return nil
	}
	between := 0
	for _, c := range above {
		if limited := c.MaxPathLen > 0 || c.MaxPathLen == 0 && c.MaxPathLenZero; limited {
			left := c.MaxPathLen - between - 1
			if left < 0 {
				return fmt.Errorf("the authority %q may sign no other authorities here (its pathLenConstraint is %d), and the request has isCA", c.Subject, c.MaxPathLen)
			}
			if template.MaxPathLen < 0 || left < template.MaxPathLen {
				template.MaxPathLen, template.MaxPathLenZero = left, left == 0
			}
		}
		if !bytes.Equal(c.RawSubject, c.RawIssuer) {
			between++
		}
	}
	return nil
}

// SelfSign issues what is ordered, signed with the request's own key.
func SelfSign(o Order, key crypto.Signer, now time.Time) (*Issued, error) {
	if !SameKey(o.Request.PublicKey, key.Public()) {
		return nil, errors.New("the private key is not that of the certificate request")
	}
	if bytes.Equal(o.Request.RawSubject, emptyName) {
		return nil, errors.New("the request's subject is empty, and a self-signed certificate's issuer must not be (RFC 5280, section 4.1.2.4); set commonName")
	}
	template, err := template(o, now)
	if err != nil {
		return nil, err
	}
	leaf, err := create(template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &Issued{Chain: Chain{Certificates: []*x509.Certificate{leaf}, Anchor: leaf}}, nil
}

// template is the certificate that an order stands for, without its issuer.
func template(o Order, now time.Time) (*x509.Certificate, error) {
	csr := o.Request
	if isCA, found, err := asksForCA(csr); err != nil {
		return nil, err
	} else if found && isCA != o.IsCA {
		return nil, fmt.Errorf("the certificate request says CA:%t and spec.isCA is %t; make them agree", isCA, o.IsCA)
	}
	if bytes.Equal(csr.RawSubject, emptyName) && len(csr.DNSNames)+len(csr.IPAddresses)+len(csr.EmailAddresses)+len(csr.URIs) == 0 {
		return nil, errors.New("the certificate request names nobody: neither a subject nor a subjectAltName")
	}
	if o.IsCA && bytes.Equal(csr.RawSubject, emptyName) {
		return nil, errors.New("the certificate request's subject is empty, and an authority's must not be (RFC 5280, section 4.1.2.6); set commonName")
	}
	if o.Duration <= 0 {
		return nil, fmt.Errorf("duration %s: must be above zero", o.Duration)
	}
	id, err := keyIdentifier(csr.PublicKey)
	if err != nil {
		return nil, err
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber:          serial,
		RawSubject:            csr.RawSubject,
		SubjectKeyId:          id,
		DNSNames:              csr.DNSNames,
		IPAddresses:           csr.IPAddresses,
		EmailAddresses:        csr.EmailAddresses,
		URIs:                  csr.URIs,
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(o.Duration),
		KeyUsage:              keyUsage(csr.PublicKey, o.KeyUsage, o.IsCA),
		ExtKeyUsage:           o.ExtKeyUsage,
		BasicConstraintsValid: true,
		IsCA:                  o.IsCA,
		MaxPathLen:            -1,
	}, nil
}

// keyUsage leaves of the requested usages those that the kind of key can have:
// a signature key encrypts and agrees on nothing (RFC 9881, section 5, for
// ML-DSA; CA/Browser Forum, section 7.1.2.7.11, for ECDSA), RSA may encipher a
// key. An authority signs certificates and revocation lists; nobody else does.
func keyUsage(public crypto.PublicKey, requested x509.KeyUsage, isCA bool) x509.KeyUsage {
	const signing = x509.KeyUsageDigitalSignature | x509.KeyUsageContentCommitment
	const authority = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	able := signing
	if _, ok := public.(*rsa.PublicKey); ok {
		able |= x509.KeyUsageKeyEncipherment | x509.KeyUsageDataEncipherment
	}
	usage := requested & able
	switch {
	case isCA:
		return usage | authority
	case usage == 0:
		return x509.KeyUsageDigitalSignature
	}
	return usage
}

// serialNumber is a random number of 128 bits, above zero. RFC 5280, section
// 4.1.2.2, allows 159; CA/Browser Forum, section 7.1, wants 64 from a random
// generator.
func serialNumber() (*big.Int, error) {
	for {
		n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
		if err != nil {
			return nil, err
		}
		if n.Sign() > 0 {
			return n, nil
		}
	}
}

func create(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	create := func() ([]byte, error) { return x509.CreateCertificate(rand.Reader, template, parent, public, key) }
	_, subject := public.(*keypair.ProviderPublicKey)
	_, issuer := key.(*keypair.ProviderKey)
	if subject || issuer {
		create = func() ([]byte, error) { return createWithProvider(template, parent, public, key) }
	}
	der, err := create()
	if err != nil {
		return nil, fmt.Errorf("the certificate cannot be made: %w", err)
	}
	return keypair.ParseCertificate(der)
}
