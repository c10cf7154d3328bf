//go:build crypto

package haproxy

import (
	"bytes"
	"encoding/pem"
	"os"
	"slices"
	"strings"
	"testing"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/policy"
)

// withProvider is OpenSSL 3.5 with the provider, and with more arguments.
func withProvider(args ...string) client {
	c := openSSL("client", append(args, "-provider", "default", "-provider", "oqsprovider")...)
	c.name = strings.TrimSpace("the provider " + strings.Join(args, " "))
	return c
}

// carryProvider gives the pod, and the clients, the OpenSSL provider, as the
// images have it.
func (p *pod) carryProvider() {
	p.t.Helper()
	module, err := os.ReadFile(provider(p.t))
	if err != nil {
		p.t.Fatal(err)
	}
	p.write("ossl-modules/oqsprovider.so", module)
	p.modules = RunDir + "/ossl-modules"
}

// selfSignedByProvider is a certificate that the clients trust itself.
func (p *pod) selfSignedByProvider(algorithm v1alpha1.KeyAlgorithm, accept func(v1alpha1.SignatureScheme) bool) model.Certificate {
	p.t.Helper()
	both := providerChainAndKey(p.t, algorithm, host)
	block, key := pem.Decode(both)
	return p.serve(pem.EncodeToMemory(block), key, pem.EncodeToMemory(block), accept)
}

// The policy of the provider's algorithms, before clients that have them and
// clients that do not.
func TestTheProvidersAlgorithmsAreServed(t *testing.T) {
	everything := withProvider("-groups", "X25519MLKEM768:p521_smaug_t5:p256_smaug_t1:smaug_t1:X25519")
	alone := withProvider("-groups", "ntru_plus_kem864")
	weaker := withProvider("-groups", "p521_ntru_plus_kem1152", "-sigalgs", "haetae2:ecdsa_secp256r1_sha256")
	classicalScheme := withProvider("-groups", "smaug_t3", "-sigalgs", "mldsa65:ecdsa_secp256r1_sha256")
	stock := openSSL("client")
	bookworm := openSSL("client-bookworm")

	const aes256 = " TLS_AES_256_GCM_SHA384"
	for _, tc := range []struct {
		mode v1alpha1.PolicyMode
		want map[*client]string
	}{
		{"Require", map[*client]string{
			&everything:      "TLSv1.3 p256_smaug_t1 P384_HAETAE3" + aes256, // after a HelloRetryRequest
			&alone:           "TLSv1.3 ntru_plus_kem864 P384_HAETAE3" + aes256,
			&weaker:          "TLSv1.3 p521_ntru_plus_kem1152 HAETAE2" + aes256,
			&classicalScheme: "TLSv1.3 smaug_t3 ECDSA" + aes256,
			&stock:           refused,
			&bookworm:        refused,
		}},
		{"Prefer", map[*client]string{
			&everything:      "TLSv1.3 p256_smaug_t1 P384_HAETAE3" + aes256,
			&classicalScheme: "TLSv1.3 smaug_t3 ML-DSA-65" + aes256,
			&stock:           "TLSv1.3 X25519MLKEM768 ML-DSA-65" + aes256,
			&bookworm:        "TLSv1.3 X25519 ECDSA" + aes256,
		}},
		{"Observe", map[*client]string{
			&everything: "TLSv1.3 X25519MLKEM768 ML-DSA-65" + aes256,
			&alone:      refused,
			&bookworm:   "TLSv1.3 X25519 ECDSA" + aes256,
		}},
	} {
		t.Run(string(tc.mode), func(t *testing.T) {
			p := newPod(t)
			p.carryProvider()
			named, fallback := shippedPolicy(t, "kpqc-v1"), shippedPolicy(t, "compatible-v1")
			parameters, _ := policy.Resolve(named, fallback, tc.mode)
			accepted := policy.Accepts(named, fallback, tc.mode)
			certificates := []model.Certificate{
				p.selfSignedByProvider("p384_haetae3", accepted),
				p.selfSignedByProvider("haetae2", accepted),
				p.certificate(newIssuer(t, "ML-DSA-65"), "ML-DSA-65", accepted, host),
				p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", accepted, host),
			}
			certificates = slices.DeleteFunc(certificates, func(c model.Certificate) bool { return len(c.HandshakeSchemes) == 0 })
			p.start(gateway(parameters, model.Port{Number: port, Listeners: []model.Listener{https("web", []model.Hostname{host}, certificates...)}}), nil)
			for c, want := range tc.want {
				out, err := c.connect(p, port, host)
				got := served(p.handshake())
				t.Logf("%-80s %s", c.name, got)
				if got != want || (err != nil) != (want == refused) {
					t.Errorf("%s: %s (%v), want %s\n%s", c.name, got, err, want, out)
				}
			}
			if loaded := bytes.Contains([]byte(p.revision.Config), []byte("ssl-provider oqsprovider")); loaded != (tc.mode != "Observe") {
				t.Errorf("the provider is loaded: %t", loaded)
			}
		})
	}
}

// The largest key share makes a hello of two records and the largest signature
// a certificate of 50 KB, through the stage that reads hellos.
func TestTheLargestOfTheProvidersAreServed(t *testing.T) {
	const group, algorithm = "p521_frodo1344shake", "p521_sphincsshake256fsimple"
	p := newPod(t)
	p.carryProvider()
	parameters := model.TLS{MinVersion: "TLSv1.3", MaxVersion: "TLSv1.3", Curves: group + "/X25519", CipherSuites: "TLS_AES_256_GCM_SHA384",
		SignatureAlgorithms: algorithm + ":ecdsa_secp256r1_sha256", Provider: true}
	certificates := []model.Certificate{
		p.selfSignedByProvider(algorithm, anyScheme),
		p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", anyScheme, host),
	}
	p.start(gateway(parameters, model.Port{Number: port, Listeners: []model.Listener{https("web", []model.Hostname{host}, certificates...)}}), nil)
	large := withProvider("-groups", group)
	if out, err := large.connect(p, port, host); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if got, want := served(p.handshake()), "TLSv1.3 "+group+" "+strings.ToUpper(algorithm)+" TLS_AES_256_GCM_SHA384"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A running HAProxy gets the provider with a reload, a certificate of it
// without one, and goes back.
func TestAPolicyOfTheProvidersComesAndGoes(t *testing.T) {
	p := newPod(t)
	p.carryProvider()
	of := func(name string) model.Gateway {
		named, fallback := shippedPolicy(t, name), shippedPolicy(t, "compatible-v1")
		parameters, _ := policy.Resolve(named, fallback, v1alpha1.PolicyModePrefer)
		certificates := []model.Certificate{p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", anyScheme, host)}
		if parameters.Provider {
			certificates = append([]model.Certificate{p.selfSignedByProvider("haetae2", anyScheme)}, certificates...)
		}
		return gateway(parameters, model.Port{Number: port, Listeners: []model.Listener{https("web", []model.Hostname{host}, certificates...)}})
	}
	client := withProvider("-groups", "X25519MLKEM768:smaug_t1")
	expect := func(want string) {
		t.Helper()
		out, err := client.connect(p, port, host)
		if got := served(p.handshake()); err != nil || got != want+" TLS_AES_256_GCM_SHA384" {
			t.Errorf("%s (%v), want %s\n%s", got, err, want, out)
		}
	}
	p.start(of("hybrid-v1"), nil)
	expect("TLSv1.3 X25519MLKEM768 ECDSA")
	kpqc := of("kpqc-v1")
	p.configure(kpqc, nil)
	p.reload()
	expect("TLSv1.3 smaug_t1 HAETAE2")

	secret := kpqc.Ports[0].Listeners[0].Certificates[0].Secret
	both := providerChainAndKey(t, "haetae2", host)
	block, _ := pem.Decode(both)
	p.roots = pem.EncodeToMemory(block) // the one that was served is no longer trusted
	p.write("roots.pem", p.roots)
	if err := p.admin().SetCertificate(t.Context(), CertificateFile(secret), both); err != nil {
		t.Fatal(err)
	}
	expect("TLSv1.3 smaug_t1 HAETAE2")

	p.configure(of("hybrid-v1"), nil)
	p.reload()
	expect("TLSv1.3 X25519MLKEM768 ECDSA")
}
