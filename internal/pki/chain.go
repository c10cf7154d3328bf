package pki

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"qtls.dev/qtls/internal/keypair"
)

// Chain is a certificate and what is above it.
type Chain struct {
	// Certificates as a server sends them: the leaf, then each one's issuer,
	// without a self-signed root (unless the leaf is one itself).
	Certificates []*x509.Certificate
	// Anchor is the certificate at the top: the self-signed root when it is
	// known, otherwise the last of Certificates.
	Anchor *x509.Certificate
}

// NewChain follows the issuers of a leaf among other certificates, in whatever
// order these are, each used once, and leaves out those that are no part of the
// chain. Which of an authority's certificates is in the chain depends on the time
// now, for one may be there before it is valid. Its error is openssl.ErrUnavailable: who signed what could not be found out.
func NewChain(leaf *x509.Certificate, others []*x509.Certificate, now time.Time) (Chain, error) {
	chain := Chain{Certificates: []*x509.Certificate{leaf}, Anchor: leaf}
	others = slices.Clone(others)
	for !keypair.SelfSigned(chain.Anchor) {
		i, err := issuerOf(chain.Anchor, others, now)
		if err != nil {
			return Chain{}, err
		}
		if i < 0 {
			break
		}
		issuer := others[i]
		others = slices.Delete(others, i, i+1)
		chain.Anchor = issuer
		if !keypair.SelfSigned(issuer) {
			chain.Certificates = append(chain.Certificates, issuer)
		}
	}
	return chain, nil
}

// issuerOf a certificate is the one that signed it, by its index; -1: none did.
// An authority that was renewed has several, of one name and key: it is the one
// that is valid longest, of those that are valid already.
func issuerOf(c *x509.Certificate, among []*x509.Certificate, now time.Time) (int, error) {
	found := -1
	for i, issuer := range among {
		if !bytes.Equal(issuer.RawSubject, c.RawIssuer) || found >= 0 && !outlasts(issuer, among[found], now) {
			continue
		}
		if signed, err := signedBy(c, issuer); err != nil {
			return -1, err
		} else if signed {
			found = i
		}
	}
	return found, nil
}

// outlasts says whether a is to be preferred to b.
func outlasts(a, b *x509.Certificate, now time.Time) bool {
	if begun := hasBegun(a, now); begun != hasBegun(b, now) {
		return begun
	}
	return a.NotAfter.After(b.NotAfter)
}

// hasBegun says whether a certificate is valid already, by a clock that may be a
// little behind.
func hasBegun(c *x509.Certificate, now time.Time) bool { return c.NotBefore.Sub(now) <= skew }

// Leaf is the first certificate.
func (c Chain) Leaf() *x509.Certificate { return c.Certificates[0] }

// Wanted is what a certificate must be to be of use.
type Wanted struct {
	Key   crypto.PublicKey
	Names Names
	IsCA  bool
	// Usages that it is to be good for, all of them; none of an authority.
	Usages []x509.ExtKeyUsage
}

// Check finds out whether the certificate is what was wanted, and whether its
// chain leads to one of the authorities (to its own anchor if there are none)
// at the time now.
func (c Chain) Check(want Wanted, authorities []*x509.Certificate, now time.Time) error {
	leaf := c.Leaf()
	switch missing := missingUsage(leaf, want.Usages); {
	case !SameKey(leaf.PublicKey, want.Key):
		return errors.New("it is for another key than the one requested")
	case missing != "":
		return fmt.Errorf("it lacks %s", missing)
	case !now.Before(leaf.NotAfter):
		return fmt.Errorf("it expired at %s", stamp(leaf.NotAfter))
	case !hasBegun(leaf, now):
		return fmt.Errorf("it is not valid before %s", stamp(leaf.NotBefore))
	}
	if err := want.Describes(leaf); err != nil {
		return err
	}
	if len(authorities) == 0 {
		authorities = []*x509.Certificate{c.Anchor}
	}
	at := now
	if at.Before(leaf.NotBefore) {
		at = leaf.NotBefore // the issuer's clock is a little ahead
	}
	usages := want.Usages
	if len(usages) == 0 {
		usages = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	}
	for _, usage := range usages {
		if err := c.verify(authorities, usage, at); err != nil {
			if a := c.notFor(authorities, usage); a != nil {
				return fmt.Errorf("%q of its chain lacks %s in its extendedKeyUsage: %w", a.Subject, usage, err)
			}
			return fmt.Errorf("its chain does not lead to the issuer's CA: %w", err)
		}
	}
	return nil
}

// notFor is an authority of the chain, up to those that are trusted, whose
// certificates are of no use for something; nil where there is none.
func (c Chain) notFor(authorities []*x509.Certificate, usage x509.ExtKeyUsage) *x509.Certificate {
	chain := slices.Clone(c.Certificates)
	for _, a := range authorities {
		if bytes.Equal(a.RawSubject, c.Certificates[len(c.Certificates)-1].RawIssuer) {
			chain = append(chain, a)
		}
	}
	for _, a := range chain[1:] {
		limited := len(a.ExtKeyUsage)+len(a.UnknownExtKeyUsage) > 0
		if limited && !slices.Contains(a.ExtKeyUsage, usage) && !slices.Contains(a.ExtKeyUsage, x509.ExtKeyUsageAny) {
			return a
		}
	}
	return nil
}

// Describes says in which way a certificate is not whose it should be: by its
// names, and by its being an authority's.
func (w Wanted) Describes(c *x509.Certificate) error {
	if c.IsCA != w.IsCA {
		return fmt.Errorf("it says CA:%t where CA:%t was requested", c.IsCA, w.IsCA)
	}
	if missing := missingNames(c, w); len(missing) > 0 {
		return fmt.Errorf("it lacks the requested names %s", strings.Join(missing, ", "))
	}
	return nil
}

// verify the chain as a peer does that trusts the authorities.
func (c Chain) verify(authorities []*x509.Certificate, usage x509.ExtKeyUsage, at time.Time) error {
	if keypair.NeedsProvider(c.Certificates...) || keypair.NeedsProvider(authorities...) {
		return verifyWithProvider(c, authorities, usage, at)
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	for _, a := range authorities {
		roots.AddCert(a)
	}
	for _, i := range c.Certificates[1:] {
		intermediates.AddCert(i)
	}
	_, err := c.Leaf().Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

// missingUsage is what keeps an authority's certificate from signing others, or
// another from being taken by TLS peers: an extension that is not there allows
// everything.
func missingUsage(c *x509.Certificate, wanted []x509.ExtKeyUsage) string {
	switch {
	case c.IsCA && c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0:
		return "keyCertSign in its keyUsage"
	case !c.IsCA && c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return "digitalSignature in its keyUsage"
	case len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) == 0:
		return ""
	}
	for _, usage := range wanted {
		if !slices.Contains(c.ExtKeyUsage, usage) {
			return usage.String() + " in its extendedKeyUsage"
		}
	}
	return ""
}

// missingNames are those that were requested and are not there. A server's common
// name is not missed: clients do not look at it, and public CAs leave it out.
func missingNames(leaf *x509.Certificate, want Wanted) []string {
	var missing []string
	server := !want.IsCA && !slices.Contains(want.Usages, x509.ExtKeyUsageClientAuth)
	if cn := want.Names.CommonName; cn != "" && !server && leaf.Subject.CommonName != cn {
		missing = append(missing, fmt.Sprintf("CN=%s", want.Names.CommonName))
	}
	for _, n := range want.Names.DNSNames {
		if !slices.ContainsFunc(leaf.DNSNames, func(m string) bool { return strings.EqualFold(m, n) }) {
			missing = append(missing, n)
		}
	}
	for _, a := range want.Names.IPAddresses {
		if !slices.ContainsFunc(leaf.IPAddresses, func(b net.IP) bool { return b.Equal(a) }) {
			missing = append(missing, a.String())
		}
	}
	return missing
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
