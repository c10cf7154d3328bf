package pki

import (
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
	certificate := func(change func(*x509.Certificate)) []byte {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
		change(template)
		c, err := create(template, template, k.Public(), k)
		if err != nil {
			t.Fatal(err)
		}
		return CertificatesPEM(c)
	}
	good := certificate(func(*x509.Certificate) {})
	otherKey, err := keypair.MarshalKey(newKey(t, "ECDSA-P256"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseAuthority(good, keyPEM, nil, now); err != nil {
		t.Fatalf("the good one: %v", err)
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
		"expired":        {certificate(func(c *x509.Certificate) { c.NotAfter = now }), keyPEM, nil, ErrAuthorityExpired, "2030-01-02T03:04:05Z"},
		"not yet valid":  {certificate(func(c *x509.Certificate) { c.NotBefore = now.Add(10 * time.Minute) }), keyPEM, nil, nil, "not valid before"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseAuthority(c.cert, c.key, c.ca, now)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v; want %v that says %q", err, c.want, c.says)
			}
		})
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
