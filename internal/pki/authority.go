package pki

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/keypair"
)

// Authority signs certificates of its family.
type Authority struct {
	// Chain of the authority's own certificate.
	Chain     Chain
	Algorithm v1alpha1.KeyAlgorithm
	Family    algorithms.Family
	key       crypto.Signer
}

// What may be wrong with an authority, besides what does not parse and
// keypair.ErrKeyMismatch.
var (
	ErrNotAnAuthority   = errors.New("the certificate is not that of an authority")
	ErrAuthorityExpired = errors.New("has expired") // or one above it
)

// NotYetValidError says that an authority's certificate, or one above it, is not
// valid yet.
type NotYetValidError struct {
	which string
	begin time.Time
}

func (e *NotYetValidError) Error() string {
	return fmt.Sprintf("%s is not valid before %s", e.which, stamp(e.begin))
}

// Wait is how long it takes until the certificate is used.
func (e *NotYetValidError) Wait(now time.Time) time.Duration { return e.begin.Add(-skew).Sub(now) }

// ParseAuthority reads an authority in PEM form: its certificate with those
// above it, its key, and the root, which may be missing.
func ParseAuthority(certPEM, keyPEM, rootPEM []byte, now time.Time) (*Authority, error) {
	return NewAuthority(certPEM, func() (crypto.Signer, error) { return keypair.ParseKey(keyPEM) }, rootPEM, now)
}

// NewAuthority reads one whose key is got elsewhere, as from an HSM. Where its
// error is openssl.ErrUnavailable nothing is wrong with it.
func NewAuthority(certPEM []byte, key func() (crypto.Signer, error), rootPEM []byte, now time.Time) (*Authority, error) {
	certs, err := keypair.ParseCertificates(certPEM)
	if err != nil {
		return nil, fmt.Errorf("tls.crt: %w", err)
	}
	signer, err := key()
	if err != nil {
		return nil, fmt.Errorf("tls.key: %w", err)
	}
	if len(rootPEM) > 0 {
		roots, err := keypair.ParseCertificates(rootPEM)
		if err != nil {
			return nil, fmt.Errorf("ca.crt: %w", err)
		}
		certs = append(certs, roots...)
	}
	own := certs[0]
	switch {
	case !SameKey(own.PublicKey, signer.Public()):
		return nil, keypair.ErrKeyMismatch
	case !own.BasicConstraintsValid || !own.IsCA:
		return nil, fmt.Errorf("%w: its basicConstraints do not say CA:TRUE", ErrNotAnAuthority)
	case own.KeyUsage != 0 && own.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, fmt.Errorf("%w: its keyUsage lacks keyCertSign", ErrNotAnAuthority)
	case len(own.RawSubject) <= len(emptyName):
		return nil, fmt.Errorf("%w: its subject is empty", ErrNotAnAuthority)
	}
	algorithm, err := keypair.AlgorithmOf(own.PublicKey)
	if err != nil {
		return nil, err
	}
	family, err := FamilyOf(own.PublicKey)
	if err != nil {
		return nil, err
	}
	chain, err := NewChain(own, certs[1:], now)
	if err != nil {
		return nil, err
	}
	a := &Authority{Chain: chain, Algorithm: algorithm, Family: family, key: signer}
	if err := a.inForce(now); err != nil {
		return nil, err
	}
	return a, nil
}

// inForce says which certificate of the path is not valid now: nobody takes what
// is signed below it.
func (a *Authority) inForce(now time.Time) error {
	for i, c := range a.path() {
		which := "the authority's certificate"
		if i > 0 {
			which = fmt.Sprintf("the certificate of %q above the authority", c.Subject)
		}
		switch {
		case !now.Before(c.NotAfter):
			return fmt.Errorf("%s %w at %s", which, ErrAuthorityExpired, stamp(c.NotAfter))
		case !hasBegun(c, now):
			return &NotYetValidError{which, c.NotBefore}
		}
	}
	return nil
}

// End is when the first certificate of the path expires.
func (a *Authority) End() time.Time {
	end := a.Certificate().NotAfter
	for _, c := range a.path() {
		if c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	return end
}

// Certificate of the authority itself.
func (a *Authority) Certificate() *x509.Certificate { return a.Chain.Leaf() }

// emptyName is the DER form of a name without parts.
var emptyName = []byte{0x30, 0x00}
