package pki

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/openssl/openssltest"
)

// authorityOf is an algorithm for the authority of a family.
var authorityOf = map[algorithms.Family]v1alpha1.KeyAlgorithm{algorithms.PostQuantum: "ML-DSA-65", algorithms.Classical: "ECDSA-P384"}

func TestLeavesFollowRFC5280(t *testing.T) {
	for _, a := range issued {
		t.Run(string(a.Name), func(t *testing.T) {
			ca := root(t, authorityOf[a.Family])
			issued := sign(t, ca, order(t, key(t, a.Name)))
			leaf := issued.Chain.Leaf()

			roots := x509.NewCertPool()
			roots.AddCert(issued.Chain.Anchor)
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "www.example.com", CurrentTime: now}); err != nil {
				t.Errorf("a client does not take it: %v", err)
			}
			if err := leaf.VerifyHostname("192.0.2.1"); err != nil {
				t.Error(err)
			}
			usage := x509.KeyUsageDigitalSignature
			if strings.HasPrefix(string(a.Name), "RSA") {
				usage |= x509.KeyUsageKeyEncipherment
			}
			switch {
			case leaf.KeyUsage != usage:
				t.Errorf("keyUsage %b, want %b", leaf.KeyUsage, usage)
			case !slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}):
				t.Errorf("extKeyUsage %v", leaf.ExtKeyUsage)
			case !leaf.BasicConstraintsValid || leaf.IsCA:
				t.Error("basicConstraints do not say CA:FALSE")
			case len(leaf.SubjectKeyId) != 20 || !bytes.Equal(leaf.AuthorityKeyId, ca.Certificate().SubjectKeyId):
				t.Errorf("subjectKeyIdentifier %x, authorityKeyIdentifier %x of %x", leaf.SubjectKeyId, leaf.AuthorityKeyId, ca.Certificate().SubjectKeyId)
			case leaf.SerialNumber.Sign() <= 0 || leaf.SerialNumber.BitLen() > 128 || leaf.SerialNumber.BitLen() < 80:
				t.Errorf("serial number %x", leaf.SerialNumber)
			case !leaf.NotBefore.Equal(now.Add(-5 * time.Minute)):
				t.Errorf("notBefore %s", leaf.NotBefore)
			case !leaf.NotAfter.Equal(now.Add(24 * time.Hour)):
				t.Errorf("notAfter %s", leaf.NotAfter)
			case issued.Shortened:
				t.Error("said to be shortened")
			}
		})
	}
}

func TestNoTwoSerialNumbersAreTheSame(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		n, err := serialNumber()
		if err != nil || seen[n.String()] {
			t.Fatalf("%s, %v", n, err)
		}
		seen[n.String()] = true
	}
}

func TestEveryKindOfNameIsCopied(t *testing.T) {
	uri, err := url.Parse("spiffe://example.com/a")
	if err != nil {
		t.Fatal(err)
	}
	k := key(t, "ECDSA-P256")
	request := csr(t, k, x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "a", Organization: []string{"O"}}, DNSNames: []string{"a.b"}, EmailAddresses: []string{"a@b.c"}, URIs: []*url.URL{uri}})
	leaf := sign(t, root(t, "ECDSA-P384"), Order{Request: request, Duration: time.Hour}).Chain.Leaf()
	if leaf.Subject.String() != request.Subject.String() || leaf.DNSNames[0] != "a.b" || leaf.EmailAddresses[0] != "a@b.c" || leaf.URIs[0].String() != uri.String() {
		t.Errorf("%s %v %v %v", leaf.Subject, leaf.DNSNames, leaf.EmailAddresses, leaf.URIs)
	}
}

// RFC 5280, section 4.2.1.6: without a subject the names are critical.
func TestNamesAreCriticalWithoutASubject(t *testing.T) {
	for cn, critical := range map[string]bool{"": true, "a": false} {
		k := key(t, "ECDSA-P256")
		leaf := sign(t, root(t, "ECDSA-P384"), Order{Request: csr(t, k, x509.CertificateRequest{Subject: pkix.Name{CommonName: cn}, DNSNames: []string{"a.b"}}), Duration: time.Hour}).Chain.Leaf()
		for _, e := range leaf.Extensions {
			if e.Id.Equal(oidSubjectAltName) && e.Critical != critical {
				t.Errorf("commonName %q: subjectAltName critical %t", cn, e.Critical)
			}
		}
	}
}

func TestUsagesFitTheKey(t *testing.T) {
	all := x509.KeyUsageDigitalSignature | x509.KeyUsageContentCommitment | x509.KeyUsageKeyEncipherment | x509.KeyUsageDataEncipherment |
		x509.KeyUsageKeyAgreement | x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageEncipherOnly | x509.KeyUsageDecipherOnly
	signing := x509.KeyUsageDigitalSignature | x509.KeyUsageContentCommitment
	authority := x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	for _, c := range []struct {
		algorithm v1alpha1.KeyAlgorithm
		requested x509.KeyUsage
		isCA      bool
		want      x509.KeyUsage
	}{
		{"ML-DSA-65", all, false, signing},
		{"ECDSA-P256", all, false, signing},
		{"RSA-2048", all, false, signing | x509.KeyUsageKeyEncipherment | x509.KeyUsageDataEncipherment},
		{"ML-DSA-65", x509.KeyUsageKeyEncipherment, false, x509.KeyUsageDigitalSignature},
		{"ML-DSA-65", 0, true, authority},
		{"ML-DSA-65", x509.KeyUsageCertSign, false, x509.KeyUsageDigitalSignature}, // only spec.isCA makes an authority
		{"RSA-2048", x509.KeyUsageDigitalSignature, true, authority | x509.KeyUsageDigitalSignature},
	} {
		if got := keyUsage(key(t, c.algorithm).Public(), c.requested, c.isCA); got != c.want {
			t.Errorf("%s, requested %b, CA %t: %b, want %b", c.algorithm, c.requested, c.isCA, got, c.want)
		}
	}
}

func TestNothingOutlivesItsAuthority(t *testing.T) {
	ca := root(t, "ML-DSA-65")
	end := ca.Certificate().NotAfter
	issued := sign(t, ca, order(t, key(t, "ML-DSA-44"), func(o *Order) { o.Duration = 1000 * time.Hour }))
	if leaf := issued.Chain.Leaf(); !leaf.NotAfter.Equal(end) || !issued.Shortened {
		t.Errorf("notAfter %s, authority's %s, said to be shortened: %t", leaf.NotAfter, end, issued.Shortened)
	}
	// An authority may be younger than the clock skew that is allowed for.
	young := *ca
	certificate := *ca.Certificate()
	certificate.NotBefore = now.Add(-time.Minute).Truncate(time.Second)
	young.Chain = Chain{Certificates: []*x509.Certificate{&certificate}, Anchor: &certificate}
	if leaf := sign(t, &young, order(t, key(t, "ML-DSA-44"))).Chain.Leaf(); leaf.NotBefore.Before(certificate.NotBefore) {
		t.Errorf("notBefore %s, authority's %s", leaf.NotBefore, certificate.NotBefore)
	}
}

func TestAuthoritiesSignAuthorities(t *testing.T) {
	top := root(t, "ML-DSA-87")
	k := newKey(t, "ML-DSA-65")
	middle := authority(t, k, sign(t, top, orderCA(t, k, "Intermediate")))
	issued := sign(t, middle, order(t, key(t, "ML-DSA-44")))
	if chain := issued.Chain.Certificates; len(chain) != 2 || chain[1].Subject.CommonName != "Intermediate" {
		t.Errorf("a chain of %d certificates", len(chain))
	}
	if issued.Chain.Anchor.Subject.CommonName != "Root ML-DSA-87" {
		t.Errorf("the CA to hand out is %s", issued.Chain.Anchor.Subject)
	}
	if err := issued.Chain.Check(Wanted{Key: key(t, "ML-DSA-44").Public(), Names: Names{DNSNames: []string{"www.example.com"}}}, nil, now); err != nil {
		t.Error(err)
	}
}

func TestPathLengthShrinks(t *testing.T) {
	withPath := func(length int) *x509.Certificate {
		return &x509.Certificate{MaxPathLen: length, MaxPathLenZero: length == 0}
	}
	named := func(c *x509.Certificate, subject, issuer string) *x509.Certificate {
		c.RawSubject, c.RawIssuer = []byte(subject), []byte(issuer)
		return c
	}
	middle := named(withPath(-1), "middle", "top")
	link := named(withPath(-1), "middle", "middle")
	for name, c := range map[string]struct {
		above []*x509.Certificate
		want  int
		err   bool
	}{
		"without a limit":             {[]*x509.Certificate{withPath(-1)}, -1, false},
		"2":                           {[]*x509.Certificate{withPath(2)}, 1, false},
		"1":                           {[]*x509.Certificate{withPath(1)}, 0, false},
		"0":                           {[]*x509.Certificate{withPath(0)}, 0, true},
		"2 further up":                {[]*x509.Certificate{middle, withPath(2)}, 0, false},
		"1 further up":                {[]*x509.Certificate{middle, withPath(1)}, 0, true},
		"1 further up, beyond a link": {[]*x509.Certificate{link, withPath(1)}, 0, false},
		"1, and more further up":      {[]*x509.Certificate{named(withPath(1), "middle", "top"), withPath(5)}, 0, false},
		"more, and 2 further up":      {[]*x509.Certificate{named(withPath(5), "middle", "top"), withPath(2)}, 0, false},
	} {
		template := &x509.Certificate{IsCA: true, MaxPathLen: -1}
		err := limitPath(template, c.above)
		if (err != nil) != c.err || err == nil && (template.MaxPathLen != c.want || template.MaxPathLenZero != (c.want == 0)) {
			t.Errorf("below %s: %d, %v", name, template.MaxPathLen, err)
		}
	}
	if err := limitPath(&x509.Certificate{}, []*x509.Certificate{withPath(0)}); err != nil {
		t.Errorf("a leaf below an authority that may sign no authorities: %v", err)
	}
}

// What no client would take is not signed.
func TestWhatAnAuthorityIsLimitedTo(t *testing.T) {
	openssltest.Use(t)
	for _, algorithm := range []v1alpha1.KeyAlgorithm{"ML-DSA-65", "haetae2"} {
		k := key(t, algorithm)
		limited := func(change func(*x509.Certificate)) *Authority {
			template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
				IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: []byte{1}}
			change(template)
			c, err := create(template, template, k.Public(), k)
			if err != nil {
				t.Fatal(err)
			}
			return authority(t, k, &Issued{Chain: Chain{Certificates: []*x509.Certificate{c}, Anchor: c}})
		}
		for name, c := range map[string]struct {
			change func(*x509.Certificate)
			err    bool
		}{
			"to nothing":     {func(*x509.Certificate) {}, false},
			"to its names":   {func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"example.com"} }, false},
			"to other names": {func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"example.org"} }, true},
			"to servers":     {func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, false},
			"to clients":     {func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, true},
		} {
			issued, err := limited(c.change).Sign(order(t, key(t, "ML-DSA-44")), now)
			if (err != nil) != c.err || err != nil && !strings.Contains(err.Error(), `under the authority "CN=CA"`) {
				t.Errorf("%s, limited %s: %v, %v", algorithm, name, issued, err)
			}
		}
	}
}

func TestNothingOutlivesTheRoot(t *testing.T) {
	top := root(t, "ML-DSA-87")
	k := newKey(t, "ML-DSA-65")
	middle := authority(t, k, sign(t, top, orderCA(t, k, "Intermediate")))
	short := *top.Certificate()
	short.NotAfter = now.Add(time.Hour)
	middle.Chain.Anchor = &short
	if issued := sign(t, middle, order(t, key(t, "ML-DSA-44"))); !issued.Chain.Leaf().NotAfter.Equal(short.NotAfter) || !issued.Shortened {
		t.Errorf("until %s, the root until %s", issued.Chain.Leaf().NotAfter, short.NotAfter)
	}
	short.NotAfter = now.Add(-time.Hour)
	if _, err := middle.Sign(order(t, key(t, "ML-DSA-44")), now); err == nil {
		t.Error("it signs under a root that has expired")
	}
}

// A root that was renewed is there with the former one, which is at its end.
func TestTheFormerRootCutsNothingShort(t *testing.T) {
	top := root(t, "ML-DSA-87")
	k := newKey(t, "ML-DSA-65")
	keyPEM, err := keypair.MarshalKey(k)
	if err != nil {
		t.Fatal(err)
	}
	middle := sign(t, top, orderCA(t, k, "Intermediate")).Chain.Leaf()
	former := rootUntil(t, "ML-DSA-87", now.Add(time.Hour))
	a, err := ParseAuthority(CertificatesPEM(middle), keyPEM, CertificatesPEM(former, top.Certificate()), now)
	if err != nil {
		t.Fatal(err)
	}
	if issued := sign(t, a, order(t, key(t, "ML-DSA-44"))); issued.Shortened || !issued.Chain.Anchor.Equal(top.Certificate()) {
		t.Errorf("until %s, said to be shortened: %t", issued.Chain.Leaf().NotAfter, issued.Shortened)
	}
}

func TestSelfSignedCertificatesAreTheirOwnAnchor(t *testing.T) {
	for _, a := range issued {
		k := key(t, a.Name)
		issued, err := SelfSign(orderCA(t, k, "Own"), k, now)
		if err != nil {
			t.Fatal(err)
		}
		c := issued.Chain.Leaf()
		if !c.IsCA || len(issued.Chain.Certificates) != 1 || issued.Chain.Anchor != c || c.CheckSignatureFrom(c) != nil {
			t.Errorf("%s: %+v", a.Name, issued.Chain)
		}
	}
	// A server certificate may sign itself too; it is no authority.
	k := key(t, "ML-DSA-65")
	issued, err := SelfSign(Order{Request: csr(t, k, x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}, DNSNames: []string{"a.b"}}), Duration: time.Hour}, k, now)
	if err != nil || issued.Chain.Leaf().IsCA || issued.Chain.Anchor != issued.Chain.Leaf() {
		t.Errorf("%+v, %v", issued, err)
	}
}

func TestOrdersThatAreRefused(t *testing.T) {
	pq, classical := key(t, "ML-DSA-65"), key(t, "ECDSA-P256")
	ca := root(t, "ML-DSA-87")
	basic := func(isCA bool) x509.CertificateRequest {
		r := named("a")
		r.ExtraExtensions = []pkix.Extension{extension(oidBasicConstraints, true, struct {
			IsCA bool `asn1:"optional"`
		}{isCA})}
		return r
	}
	limited := *ca
	certificate := *ca.Certificate()
	certificate.MaxPathLen, certificate.MaxPathLenZero = 0, true
	limited.Chain = Chain{Certificates: []*x509.Certificate{&certificate}, Anchor: &certificate}

	for name, c := range map[string]struct {
		sign func() (*Issued, error)
		want string
	}{
		"of the other family": {func() (*Issued, error) { return ca.Sign(order(t, classical), now) }, "family Classical"},
		"for the authority":   {func() (*Issued, error) { return ca.Sign(orderCA(t, pq, "Root ML-DSA-87"), now) }, "the authority's own"},
		"of nobody": {func() (*Issued, error) {
			return ca.Sign(Order{Request: csr(t, pq, named("")), Duration: time.Hour}, now)
		}, "names nobody"},
		"of a CA without subject": {func() (*Issued, error) { return ca.Sign(order(t, pq, func(o *Order) { o.IsCA = true }), now) }, "set commonName"},
		"for no time":             {func() (*Issued, error) { return ca.Sign(order(t, pq, func(o *Order) { o.Duration = 0 }), now) }, "duration 0s"},
		"of a hidden CA": {func() (*Issued, error) {
			return ca.Sign(Order{Request: csr(t, pq, basic(true)), Duration: time.Hour}, now)
		}, "make them agree"},
		"of a CA that says not": {func() (*Issued, error) {
			return ca.Sign(Order{Request: csr(t, pq, basic(false)), IsCA: true, Duration: time.Hour}, now)
		}, "make them agree"},
		"of a CA too deep":            {func() (*Issued, error) { return limited.Sign(orderCA(t, pq, "deep"), now) }, "pathLenConstraint is 0"},
		"with another key":            {func() (*Issued, error) { return SelfSign(order(t, pq), classical, now) }, "not that of the certificate request"},
		"of an issuer without a name": {func() (*Issued, error) { return SelfSign(order(t, pq), pq, now) }, "set commonName"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := c.sign(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v; want one that says %q", err, c.want)
			}
		})
	}
}
