package pki

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/keypair"
)

func TestAuthoritiesOfEveryAlgorithm(t *testing.T) {
	for _, a := range issued {
		ca := root(t, a.Name)
		if ca.Algorithm != a.Name || ca.Family != a.Family {
			t.Errorf("%s: read back as %s, %s", a.Name, ca.Algorithm, ca.Family)
		}
	}
}

func TestAuthoritiesThatAreRefused(t *testing.T) {
	k := key(t, "ECDSA-P256")
	keyPEM, err := keypair.MarshalKey(k)
	if err != nil {
		t.Fatal(err)
	}
	template := func(cn string) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cn}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	}
	made := func(template, parent *x509.Certificate, public, signer crypto.Signer) *x509.Certificate {
		c, err := create(template, parent, public.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	certificate := func(change func(*x509.Certificate)) []byte {
		c := template("CA")
		change(c)
		return CertificatesPEM(made(c, c, k, k))
	}
	// below is a CA under two others.
	below := func(change func(middle, top *x509.Certificate)) (chain, root []byte) {
		middle, top := template("Middle"), template("Root")
		change(middle, top)
		middleKey, topKey := key(t, "RSA-2048"), key(t, "ECDSA-P384")
		return CertificatesPEM(made(template("CA"), middle, k, middleKey), made(middle, top, middleKey, topKey)), CertificatesPEM(made(top, top, topKey, topKey))
	}
	good := certificate(func(*x509.Certificate) {})
	goodBelow, itsRoot := below(func(_, _ *x509.Certificate) {})
	expired, early := func(c *x509.Certificate) { c.NotAfter = now }, func(c *x509.Certificate) { c.NotBefore = now.Add(10 * time.Minute) }
	belowExpired, expiredRoot := below(func(_, top *x509.Certificate) { expired(top) })
	belowExpiredMiddle, _ := below(func(middle, _ *x509.Certificate) { expired(middle) })
	belowEarly, earlyRoot := below(func(_, top *x509.Certificate) { early(top) })
	otherKey, err := keypair.MarshalKey(newKey(t, "ECDSA-P256"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseAuthority(good, keyPEM, nil, now); err != nil {
		t.Fatalf("the good one: %v", err)
	}
	if _, err := ParseAuthority(goodBelow, keyPEM, itsRoot, now); err != nil {
		t.Fatalf("one below two others: %v", err)
	}
	for name, c := range map[string]struct {
		cert, key, ca []byte
		want          error
		says          string
	}{
		"no certificate": {nil, keyPEM, nil, nil, "tls.crt"},
		"no key":         {good, nil, nil, nil, "tls.key"},
		"a broken root":  {good, keyPEM, []byte("x"), nil, "ca.crt"},
		"another key":    {good, otherKey, nil, keypair.ErrKeyMismatch, "does not belong"},
		"a leaf":         {certificate(func(c *x509.Certificate) { c.IsCA = false }), keyPEM, nil, ErrNotAnAuthority, "CA:TRUE"},
		"may not sign":   {certificate(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign }), keyPEM, nil, ErrNotAnAuthority, "keyCertSign"},
		"without a name": {certificate(func(c *x509.Certificate) { c.Subject = pkix.Name{} }), keyPEM, nil, ErrNotAnAuthority, "subject is empty"},
		"expired":        {certificate(expired), keyPEM, nil, ErrAuthorityExpired, "the authority's certificate has expired at 2030-01-02T03:04:05Z"},
		"not yet valid":  {certificate(early), keyPEM, nil, nil, "the authority's certificate is not valid before 2030-01-02T03:14:05Z"},
		"an expired root": {belowExpired, keyPEM, expiredRoot, ErrAuthorityExpired,
			`the certificate of "CN=Root" above the authority has expired at 2030-01-02T03:04:05Z`},
		"an expired one between": {belowExpiredMiddle, keyPEM, itsRoot, ErrAuthorityExpired, `the certificate of "CN=Middle" above the authority has expired`},
		"a root to come":         {belowEarly, keyPEM, earlyRoot, nil, `the certificate of "CN=Root" above the authority is not valid before 2030-01-02T03:14:05Z`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseAuthority(c.cert, c.key, c.ca, now)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v; want %v that says %q", err, c.want, c.says)
			}
		})
	}
}

// What an authority signs is valid only as long as it and all above it are.
func TestWhenAnAuthorityEnds(t *testing.T) {
	k := newKey(t, "ML-DSA-65")
	issued := sign(t, root(t, "ML-DSA-87"), orderCA(t, k, "Intermediate"))
	a := authority(t, k, issued)
	if end := issued.Chain.Leaf().NotAfter; !a.End().Equal(end) {
		t.Errorf("it ends at %s, its certificate at %s", a.End(), end)
	}
	a.Chain.Anchor = rootUntil(t, "ML-DSA-87", now.Add(time.Hour))
	if !a.End().Equal(now.Add(time.Hour)) {
		t.Errorf("it ends at %s, after its root", a.End())
	}
}

// The clock may be a little behind that of who issued the authority, and one of
// a whole chain that has just been issued.
func TestNothingIsValidBeforeItsAuthorities(t *testing.T) {
	k := newKey(t, "ML-DSA-65")
	a := authority(t, k, sign(t, root(t, "ML-DSA-87"), orderCA(t, k, "Intermediate")))
	begin := now.Add(time.Minute)
	top := *a.Chain.Anchor
	top.NotBefore = begin
	a.Chain.Anchor = &top
	if leaf := sign(t, a, order(t, key(t, "ML-DSA-44"))).Chain.Leaf(); !leaf.NotBefore.Equal(begin) {
		t.Errorf("valid from %s, the root from %s", leaf.NotBefore, begin)
	}
}

func FuzzParseAuthority(f *testing.F) {
	k := newKey(f, "ML-DSA-44")
	issued, err := SelfSign(orderCA(f, k, "CA"), k, now)
	if err != nil {
		f.Fatal(err)
	}
	keyPEM, err := keypair.MarshalKey(k)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(CertificatesPEM(issued.Chain.Leaf()), string(keyPEM), CertificatesPEM(issued.Chain.Anchor))
	f.Add(CertificatesPEM(issued.Chain.Leaf()), string(keyPEM), []byte{})
	f.Fuzz(func(t *testing.T, cert []byte, key string, ca []byte) {
		a, err := ParseAuthority(cert, []byte(key), ca, now)
		if err != nil {
			if len(key) > 30 && strings.Contains(err.Error(), key[:30]) {
				t.Fatal("key material in an error")
			}
			return
		}
		if !a.Certificate().IsCA || !SameKey(a.Certificate().PublicKey, a.key.Public()) || a.Chain.Anchor == nil {
			t.Fatal("an authority that cannot sign was taken")
		}
	})
}
