package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/openssl"
	"qtls.dev/qtls/internal/openssl/openssltest"
)

// three makes a chain of leaf, intermediate and root.
func three(t *testing.T) (leaf, middle, top *x509.Certificate) {
	t.Helper()
	authorityTop := root(t, "ML-DSA-87")
	k := newKey(t, "ML-DSA-65")
	m := authority(t, k, sign(t, authorityTop, orderCA(t, k, "Intermediate")))
	return sign(t, m, order(t, key(t, "ML-DSA-44"))).Chain.Leaf(), m.Certificate(), authorityTop.Certificate()
}

func newChain(t testing.TB, leaf *x509.Certificate, others []*x509.Certificate) Chain {
	t.Helper()
	chain, err := NewChain(leaf, others, now)
	if err != nil {
		t.Fatal(err)
	}
	return chain
}

func TestChainsAreFoundInAnyOrder(t *testing.T) {
	leaf, middle, top := three(t)
	stranger := root(t, "ECDSA-P256").Certificate()
	for name, c := range map[string]struct {
		others []*x509.Certificate
		length int
		anchor *x509.Certificate
	}{
		"in order":        {[]*x509.Certificate{middle, top}, 2, top},
		"reversed":        {[]*x509.Certificate{top, middle}, 2, top},
		"with a stranger": {[]*x509.Certificate{stranger, middle, top}, 2, top},
		"twice":           {[]*x509.Certificate{middle, middle, top, top}, 2, top},
		"without a root":  {[]*x509.Certificate{middle}, 2, middle},
		"without a link":  {[]*x509.Certificate{top}, 1, leaf},
		"alone":           {nil, 1, leaf},
	} {
		t.Run(name, func(t *testing.T) {
			chain := newChain(t, leaf, c.others)
			if len(chain.Certificates) != c.length || chain.Leaf() != leaf || chain.Anchor != c.anchor {
				t.Errorf("%d certificates, anchor %s", len(chain.Certificates), chain.Anchor.Subject)
			}
		})
	}
	if chain := newChain(t, top, []*x509.Certificate{middle, leaf}); len(chain.Certificates) != 1 || chain.Anchor != top {
		t.Errorf("a root's chain: %d certificates", len(chain.Certificates))
	}
}

// rootUntil is a certificate of a root's name and key that was issued a week ago.
func rootUntil(t *testing.T, algorithm v1alpha1.KeyAlgorithm, end time.Time) *x509.Certificate {
	t.Helper()
	return rootFrom(t, algorithm, now.Add(-7*24*time.Hour), end)
}

func rootFrom(t *testing.T, algorithm v1alpha1.KeyAlgorithm, begin, end time.Time) *x509.Certificate {
	t.Helper()
	k := key(t, algorithm)
	o := orderCA(t, k, "Root "+string(algorithm))
	o.Duration = end.Sub(begin)
	issued, err := SelfSign(o, k, begin)
	if err != nil {
		t.Fatal(err)
	}
	return issued.Chain.Leaf()
}

// Certificates of an authority that was renewed have one name and key.
func TestTheAuthorityThatIsValidLongestIsOfTheChain(t *testing.T) {
	leaf, middle, top := three(t)
	expired, later := rootUntil(t, "ML-DSA-87", now.Add(-time.Hour)), rootUntil(t, "ML-DSA-87", now.Add(1000*time.Hour))
	next := rootFrom(t, "ML-DSA-87", now.Add(time.Hour), now.Add(2000*time.Hour))
	for name, c := range map[string]struct {
		roots []*x509.Certificate
		want  *x509.Certificate
	}{
		"the last":                           {[]*x509.Certificate{expired, top, later}, later},
		"the first":                          {[]*x509.Certificate{later, top, expired}, later},
		"the next one is there already":      {[]*x509.Certificate{next, later}, later},
		"the next one is there, in the end":  {[]*x509.Certificate{later, next}, later},
		"there is none but one that is next": {[]*x509.Certificate{next}, next},
	} {
		chain := newChain(t, leaf, append([]*x509.Certificate{middle}, c.roots...))
		if len(chain.Certificates) != 2 || chain.Anchor != c.want {
			t.Errorf("%s: %d certificates, anchor from %s until %s", name, len(chain.Certificates), chain.Anchor.NotBefore, chain.Anchor.NotAfter)
		}
	}
}

func TestChainsAreChecked(t *testing.T) {
	leaf, middle, top := three(t)
	leafKey := key(t, "ML-DSA-44").Public()
	good := Wanted{Key: leafKey, Names: Names{DNSNames: []string{"WWW.example.com"}}}
	stranger := root(t, "ML-DSA-44").Certificate()
	whole := newChain(t, leaf, []*x509.Certificate{middle, top})
	for name, c := range map[string]struct {
		chain       Chain
		want        Wanted
		authorities []*x509.Certificate
		at          time.Time
		err         string
	}{
		"good":                     {whole, good, []*x509.Certificate{top}, now, ""},
		"several authorities":      {whole, good, []*x509.Certificate{stranger, top}, now, ""},
		"no authorities known":     {whole, good, nil, now, ""},
		"an intermediate as CA":    {whole, good, []*x509.Certificate{middle}, now, ""},
		"the issuer's clock ahead": {whole, good, []*x509.Certificate{top}, now.Add(-6 * time.Minute), ""},
		"another key":              {whole, Wanted{Key: key(t, "ML-DSA-65").Public()}, nil, now, "another key"},
		"a missing name":           {whole, Wanted{Key: leafKey, Names: Names{CommonName: "a", DNSNames: []string{"www.example.com", "b.c"}}}, nil, now, "lacks the requested names b.c"},
		"a server's common name":   {whole, Wanted{Key: leafKey, Names: Names{CommonName: "a", DNSNames: []string{"www.example.com"}}}, nil, now, ""},
		"an authority's":           {newChain(t, top, nil), Wanted{Key: key(t, "ML-DSA-87").Public(), IsCA: true, Names: Names{CommonName: "Root ML-DSA-87"}}, nil, now, ""},
		"another authority's":      {newChain(t, top, nil), Wanted{Key: key(t, "ML-DSA-87").Public(), IsCA: true, Names: Names{CommonName: "a"}}, nil, now, "lacks the requested names CN=a"},
		"not a CA":                 {whole, Wanted{Key: leafKey, IsCA: true}, nil, now, "CA:false"},
		"a CA":                     {newChain(t, top, nil), Wanted{Key: key(t, "ML-DSA-87").Public()}, nil, now, "CA:true"},
		"expired":                  {whole, good, nil, now.Add(25 * time.Hour), "expired"},
		"of the future":            {whole, good, nil, now.Add(-time.Hour), "not valid before"},
		"another CA":               {whole, good, []*x509.Certificate{stranger}, now, "does not lead to the issuer's CA"},
		"a missing link":           {newChain(t, leaf, nil), good, []*x509.Certificate{top}, now, "does not lead to the issuer's CA"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.chain.Check(c.want, c.authorities, c.at)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v; want %q", err, c.err)
			}
		})
	}
}

// A server's certificate that no TLS client takes is of no use, nor is that of an
// authority which may not sign. What no extension limits is allowed.
func TestUsagesAreChecked(t *testing.T) {
	openssltest.Use(t)
	const signing, enciphering = x509.KeyUsageDigitalSignature, x509.KeyUsageKeyEncipherment
	server, client, anything := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	both := append(client, server...)
	for name, c := range map[string]struct {
		isCA     bool
		usage    x509.KeyUsage
		extended []x509.ExtKeyUsage
		above    []x509.ExtKeyUsage // of the authority
		want     []x509.ExtKeyUsage
		err      string
	}{
		"a server":                            {false, signing, server, nil, server, ""},
		"a server that is a client, too":      {false, signing | enciphering, both, nil, server, ""},
		"a server of any kind":                {false, 0, nil, nil, server, ""},
		"a client for a server":               {false, signing, client, nil, server, "it lacks serverAuth in its extendedKeyUsage"},
		"a server for a client":               {false, signing, server, nil, client, "it lacks clientAuth in its extendedKeyUsage"},
		"a client":                            {false, signing, client, nil, client, ""},
		"one for both":                        {false, signing, both, both, both, ""},
		"one for both, of half use":           {false, signing, both, client, both, `"CN=CA" of its chain lacks serverAuth in its extendedKeyUsage`},
		"of any use, which OpenSSL refuses":   {false, signing, anything, nil, server, "it lacks serverAuth in its extendedKeyUsage"},
		"a server that cannot sign":           {false, enciphering, server, nil, server, "it lacks digitalSignature in its keyUsage"},
		"a server under one for servers":      {false, signing, server, server, server, ""},
		"a server under one for clients":      {false, signing, server, client, server, `"CN=CA" of its chain lacks serverAuth in its extendedKeyUsage`},
		"an authority":                        {true, x509.KeyUsageCertSign, nil, nil, nil, ""},
		"an authority of any kind":            {true, 0, nil, nil, nil, ""},
		"an authority that cannot sign":       {true, x509.KeyUsageCRLSign, nil, nil, nil, "it lacks keyCertSign in its keyUsage"},
		"an authority for clients, of itself": {true, x509.KeyUsageCertSign, client, client, nil, ""},
	} {
		for _, algorithm := range []v1alpha1.KeyAlgorithm{"ECDSA-P256", "haetae2"} {
			top, k := key(t, algorithm), key(t, "ML-DSA-44")
			above := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, NotBefore: now, NotAfter: now.Add(time.Hour),
				IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, ExtKeyUsage: c.above, SubjectKeyId: []byte{1}}
			anchor, err := create(above, above, top.Public(), top)
			if err != nil {
				t.Fatal(err)
			}
			template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "a"}, DNSNames: []string{"a.example.com"}, NotBefore: now, NotAfter: now.Add(time.Hour),
				IsCA: c.isCA, BasicConstraintsValid: true, KeyUsage: c.usage, ExtKeyUsage: c.extended}
			leaf, err := create(template, anchor, k.Public(), top)
			if err != nil {
				t.Fatal(err)
			}
			err = newChain(t, leaf, nil).Check(Wanted{Key: k.Public(), IsCA: c.isCA, Names: Names{CommonName: "a"}, Usages: c.want}, []*x509.Certificate{anchor}, now)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%s, under %s: error %v; want %q", name, algorithm, err, c.err)
			}
		}
	}
}

// Clients do not look at a server's common name; it may be all that a client has.
func TestWhoseCommonNameCounts(t *testing.T) {
	client, server := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	k := key(t, "ML-DSA-44")
	issued := sign(t, root(t, "ML-DSA-65"), order(t, k, func(o *Order) { o.ExtKeyUsage = nil }))
	for name, c := range map[string]struct {
		usages []x509.ExtKeyUsage
		counts bool
	}{"a server's": {server, false}, "a client's": {client, true}, "of both": {append(client, server...), true}} {
		err := issued.Chain.Check(Wanted{Key: k.Public(), Names: Names{CommonName: "a"}, Usages: c.usages}, nil, now)
		if (err != nil) != c.counts || err != nil && !strings.Contains(err.Error(), "CN=a") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAddressesCountAsNames(t *testing.T) {
	ca := root(t, "ML-DSA-65")
	k := key(t, "ML-DSA-44")
	chain := sign(t, ca, order(t, k)).Chain
	for address, there := range map[string]bool{"192.0.2.1": true, "::ffff:192.0.2.1": true, "192.0.2.2": false} {
		err := chain.Check(Wanted{Key: k.Public(), Names: Names{IPAddresses: addresses(address)}}, nil, now)
		if (err == nil) != there {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// A short chain would be a wrong one.
func TestNoChainIsMadeWhileOpenSSLFails(t *testing.T) {
	var certs []*x509.Certificate
	for _, name := range []string{"haetae2.crt", "middle.crt", "root.crt"} {
		data, err := os.ReadFile(filepath.Join("..", "keypair", "testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		more, err := keypair.ParseCertificates(data)
		if err != nil {
			t.Fatal(err)
		}
		certs = append(certs, more[0])
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "openssl"), []byte("#!/bin/sh\nkill -9 $$\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if chain, err := NewChain(certs[0], certs[1:], now); !errors.Is(err, openssl.ErrUnavailable) {
		t.Errorf("a chain of %d certificates, error %v", len(chain.Certificates), err)
	}
	if err := (Chain{Certificates: certs[:2], Anchor: certs[2]}).Check(Wanted{Key: certs[0].PublicKey}, nil, certs[0].NotBefore); !errors.Is(err, openssl.ErrUnavailable) {
		t.Errorf("it is checked: %v", err)
	}
}

func TestSelfSignedIsByKeyNotByName(t *testing.T) {
	top := root(t, "ML-DSA-87")
	k := newKey(t, "ML-DSA-65")
	// A new key of the same name, as in a CA's roll-over (RFC 5280, section 6.1).
	template := &x509.Certificate{SerialNumber: top.Certificate().SerialNumber, RawSubject: top.Certificate().RawSubject, NotBefore: now, NotAfter: now.Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	rollover, err := create(template, top.Certificate(), k.Public(), top.key)
	if err != nil {
		t.Fatal(err)
	}
	if keypair.SelfSigned(rollover) || !keypair.SelfSigned(top.Certificate()) {
		t.Error("a certificate of the same name, signed with another key, counts as self-signed, or the root does not")
	}
}
