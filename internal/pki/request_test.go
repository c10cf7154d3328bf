package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestRequestsCarryTheirNames(t *testing.T) {
	names := Names{CommonName: "web", DNSNames: []string{"www.example.com", "*.example.com"}, IPAddresses: []net.IP{net.ParseIP("192.0.2.1"), net.ParseIP("2001:db8::1")}}
	for _, a := range issued {
		data, err := NewRequest(key(t, a.Name), names)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ParseRequest(data)
		if err != nil {
			t.Fatalf("%s: %v", a.Name, err)
		}
		if r.Subject.CommonName != "web" || !slices.Equal(r.DNSNames, names.DNSNames) || len(r.IPAddresses) != 2 || !SameKey(r.PublicKey, key(t, a.Name).Public()) {
			t.Errorf("%s: %+v", a.Name, r)
		}
	}
}

func extension(id asn1.ObjectIdentifier, critical bool, value any) pkix.Extension {
	der, err := asn1.Marshal(value)
	if err != nil {
		panic(err)
	}
	return pkix.Extension{Id: id, Critical: critical, Value: der}
}

func TestRequestsThatAreRefused(t *testing.T) {
	k := key(t, "ECDSA-P256")
	good := requestPEM(csr(t, k, serverNames))
	with := func(e ...pkix.Extension) []byte {
		return requestPEM(csr(t, k, x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}, ExtraExtensions: e}))
	}
	forged := csr(t, k, serverNames)
	forged.Raw[len(forged.Raw)-1] ^= 1

	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"nothing":           {nil, "no certificate request in PEM form"},
		"not PEM":           {[]byte("hello"), "no certificate request in PEM form"},
		"another type":      {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE"}), `PEM block of type "CERTIFICATE"`},
		"two of them":       {append(slices.Clone(good), good...), "more than one"},
		"not DER":           {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte{1}}), "does not parse"},
		"a forged one":      {requestPEM(forged), "not signed with its own key"},
		"an Ed25519 key":    {requestPEM(csr(t, edKey(t), serverNames)), "the certificate request's key"},
		"name constraints":  {with(extension(oidNameConstraints, true, struct{}{})), "name constraints"},
		"unknown, critical": {with(extension(asn1.ObjectIdentifier{1, 2, 3}, true, 1)), "critical extension 1.2.3"},
		"an otherName": {with(extension(oidSubjectAltName, false, []asn1.RawValue{
			{Class: asn1.ClassContextSpecific, Tag: 2, Bytes: []byte("a.example.com")},
			{Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true, Bytes: []byte{6, 1, 42, 0xa0, 2, 5, 0}},
		})), "1 of the 2 names"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseRequest(c.data); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v; want one that says %q", err, c.want)
			}
		})
	}
}

func TestRequestsThatAreTaken(t *testing.T) {
	k := key(t, "ECDSA-P256")
	uri, err := url.Parse("spiffe://example.com/a")
	if err != nil {
		t.Fatal(err)
	}
	for name, template := range map[string]x509.CertificateRequest{
		"every kind of name": {DNSNames: []string{"a.b"}, IPAddresses: []net.IP{{192, 0, 2, 1}}, EmailAddresses: []string{"a@b.c"}, URIs: []*url.URL{uri}},
		"unknown, not critical": {Subject: pkix.Name{CommonName: "a"},
			ExtraExtensions: []pkix.Extension{extension(asn1.ObjectIdentifier{1, 2, 3}, false, 1)}},
		"usages that spec.usages repeats": {Subject: pkix.Name{CommonName: "a"},
			ExtraExtensions: []pkix.Extension{extension(oidKeyUsage, true, asn1.BitString{Bytes: []byte{0x80}, BitLength: 1})}},
	} {
		if _, err := ParseRequest(requestPEM(csr(t, k, template))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, a := range []string{"ECDSA-P256", "ML-DSA-44"} {
		data, err := NewRequest(newKey(f, keyAlgorithm(a)), Names{CommonName: "a", DNSNames: []string{"a.b"}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		if carrier, err := NewCarrier(data); err == nil {
			f.Add(carrier)
		}
	}
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRequest(data)
		if (r == nil) && err == nil {
			t.Fatal("neither a request nor an error")
		}
		if err == nil && r.CheckSignature() != nil {
			t.Fatal("a request that is not signed with its own key was taken")
		}
	})
}
