package pki

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"
)

// three makes a chain of leaf, intermediate and root.
func three(t *testing.T) (leaf, middle, top *x509.Certificate) {
	t.Helper()
	authorityTop := root(t, "ML-DSA-87")
	k := newKey(t, "ML-DSA-65")
	m := authority(t, k, sign(t, authorityTop, orderCA(t, k, "Intermediate")))
	return sign(t, m, order(t, key(t, "ML-DSA-44"))).Chain.Leaf(), m.Certificate(), authorityTop.Certificate()
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
			chain := NewChain(leaf, c.others)
			if len(chain.Certificates) != c.length || chain.Leaf() != leaf || chain.Anchor != c.anchor {
				t.Errorf("%d certificates, anchor %s", len(chain.Certificates), chain.Anchor.Subject)
			}
		})
	}
	if chain := NewChain(top, []*x509.Certificate{middle, leaf}); len(chain.Certificates) != 1 || chain.Anchor != top {
		t.Errorf("a root's chain: %d certificates", len(chain.Certificates))
	}
}

func TestChainsAreChecked(t *testing.T) {
	leaf, middle, top := three(t)
	leafKey := key(t, "ML-DSA-44").Public()
	good := Wanted{Key: leafKey, Names: Names{DNSNames: []string{"WWW.example.com"}}}
	stranger := root(t, "ML-DSA-44").Certificate()
	whole := NewChain(leaf, []*x509.Certificate{middle, top})
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
		"a missing name":           {whole, Wanted{Key: leafKey, Names: Names{CommonName: "a", DNSNames: []string{"www.example.com", "b.c"}}}, nil, now, "lacks the requested names CN=a, b.c"},
		"not a CA":                 {whole, Wanted{Key: leafKey, IsCA: true}, nil, now, "CA:false"},
		"a CA":                     {NewChain(top, nil), Wanted{Key: key(t, "ML-DSA-87").Public()}, nil, now, "CA:true"},
		"expired":                  {whole, good, nil, now.Add(25 * time.Hour), "expired"},
		"of the future":            {whole, good, nil, now.Add(-time.Hour), "not valid before"},
		"another CA":               {whole, good, []*x509.Certificate{stranger}, now, "does not lead to the issuer's CA"},
		"a missing link":           {NewChain(leaf, nil), good, []*x509.Certificate{top}, now, "does not lead to the issuer's CA"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.chain.Check(c.want, c.authorities, c.at)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v; want %q", err, c.err)
			}
		})
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

func TestSelfSignedIsByKeyNotByName(t *testing.T) {
	top := root(t, "ML-DSA-87")
	k := newKey(t, "ML-DSA-65")
	// A new key of the same name, as in a CA's roll-over (RFC 5280, section 6.1).
	template := &x509.Certificate{SerialNumber: top.Certificate().SerialNumber, RawSubject: top.Certificate().RawSubject, NotBefore: now, NotAfter: now.Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	rollover, err := create(template, top.Certificate(), k.Public(), top.key)
	if err != nil {
		t.Fatal(err)
	}
	if selfSigned(rollover) || !selfSigned(top.Certificate()) {
		t.Error("a certificate of the same name, signed with another key, counts as self-signed, or the root does not")
	}
}
