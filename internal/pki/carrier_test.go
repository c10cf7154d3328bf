package pki

import (
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"strings"
	"testing"

	"qtls.dev/qtls/api/v1alpha1"
)

func keyAlgorithm(s string) v1alpha1.KeyAlgorithm { return v1alpha1.KeyAlgorithm(s) }

func TestCarriersLookClassicalAndBringTheRequest(t *testing.T) {
	for _, a := range []v1alpha1.KeyAlgorithm{"ML-DSA-44", "ML-DSA-65", "ML-DSA-87"} {
		request, err := NewRequest(key(t, a), Names{CommonName: "web", DNSNames: []string{"www.example.com"}})
		if err != nil {
			t.Fatal(err)
		}
		carrier, err := NewCarrier(request)
		if err != nil {
			t.Fatal(err)
		}
		outer, err := ParseRequest(carrier)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := outer.PublicKey.(*ecdsa.PublicKey); !ok || outer.Subject.CommonName != "web" || outer.DNSNames[0] != "www.example.com" {
			t.Errorf("%s: the carrier does not show the names under a classical key: %+v", a, outer)
		}
		inner, err := OpenCarrier(carrier, request)
		if err != nil || !SameKey(inner.PublicKey, key(t, a).Public()) {
			t.Errorf("%s: %v", a, err)
		}
	}
}

func TestCarriersBringNothingElse(t *testing.T) {
	k := key(t, "ML-DSA-44")
	request, err := NewRequest(k, Names{CommonName: "web", DNSNames: []string{"www.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	carrier, err := NewCarrier(request)
	if err != nil {
		t.Fatal(err)
	}
	otherKey, err := NewRequest(newKey(t, "ML-DSA-44"), Names{CommonName: "web", DNSNames: []string{"www.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	inner, err := ParseRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	classical, err := NewRequest(key(t, "RSA-2048"), Names{CommonName: "web", DNSNames: []string{"www.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	ofClassical, err := NewCarrier(classical)
	if err != nil {
		t.Fatal(err)
	}
	sameKeyIdentifier := func(template x509.CertificateRequest) []byte {
		template.ExtraExtensions = []pkix.Extension{extension(oidSubjectKeyIdentifier, false, fullKeyIdentifier(inner))}
		return requestPEM(csr(t, key(t, "ECDSA-P256"), template))
	}
	for name, c := range map[string]struct {
		carrier, request []byte
		want             string
	}{
		"another key":       {carrier, otherKey, "subjectKeyIdentifier"},
		"no carrier":        {requestPEM(csr(t, key(t, "ECDSA-P256"), serverNames)), request, "subjectKeyIdentifier"},
		"another subject":   {sameKeyIdentifier(x509.CertificateRequest{Subject: pkix.Name{CommonName: "bank"}, DNSNames: []string{"www.example.com"}}), request, "different subjects"},
		"another host name": {sameKeyIdentifier(x509.CertificateRequest{Subject: pkix.Name{CommonName: "web"}, DNSNames: []string{"bank.example.com"}}), request, "different subjects"},
		"no host name":      {sameKeyIdentifier(x509.CertificateRequest{Subject: pkix.Name{CommonName: "web"}}), request, "different subjects"},
		"a classical key":   {ofClassical, classical, "needs no carrier"},
		"nothing inside":    {carrier, nil, "carried beside it"},
		"no outside":        {nil, request, "no certificate request"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := OpenCarrier(c.carrier, c.request); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v; want one that says %q", err, c.want)
			}
		})
	}
}

func TestKeyIdentifiersAreOfTheWholeKey(t *testing.T) {
	r := csr(t, key(t, "ML-DSA-44"), serverNames)
	id := fullKeyIdentifier(r)
	if len(id) != 32 {
		t.Errorf("%d bytes", len(id))
	}
	r.RawSubjectPublicKeyInfo = append([]byte(nil), r.RawSubjectPublicKeyInfo...)
	r.RawSubjectPublicKeyInfo[len(r.RawSubjectPublicKeyInfo)-1] ^= 1
	if string(fullKeyIdentifier(r)) == string(id) {
		t.Error("another key has the same identifier")
	}
	if der, err := asn1.Marshal(id); err != nil || len(der) != 34 {
		t.Errorf("as an extension: %d bytes, %v", len(der), err)
	}
}

func FuzzOpenCarrier(f *testing.F) {
	request, err := NewRequest(newKey(f, "ML-DSA-44"), Names{DNSNames: []string{"a.b"}})
	if err != nil {
		f.Fatal(err)
	}
	carrier, err := NewCarrier(request)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(carrier, request)
	f.Add(request, carrier)
	f.Fuzz(func(t *testing.T, carrier, request []byte) {
		r, err := OpenCarrier(carrier, request)
		if err != nil {
			return
		}
		outer, err := ParseRequest(carrier)
		if err != nil || string(outer.RawSubject) != string(r.RawSubject) {
			t.Fatal("a carrier brought another subject than it shows")
		}
	})
}
