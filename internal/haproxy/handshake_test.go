//go:build crypto

package haproxy

import (
	"fmt"
	"strings"
	"testing"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/policy"
	"qtls.dev/qtls/internal/policy/shipped"
)

const (
	port    = 8443
	host    = "shop.example.com"
	refused = "refused"
)

func shippedPolicy(t testing.TB, name string) *v1alpha1.QTLSPolicy {
	t.Helper()
	policies, err := shipped.Policies()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range policies {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no policy %q is shipped", name)
	return nil
}

// served is what a client got, as HAProxy tells it.
func served(h Handshake) string {
	if h.Failed {
		return refused
	}
	key := map[string]string{"id-ecPublicKey": "ECDSA", "rsaEncryption": "RSA"}[h.KeyAlgorithm]
	if key == "" {
		key = strings.ToUpper(strings.TrimPrefix(h.KeyAlgorithm, "id-"))
	}
	return fmt.Sprintf("%s %s %s %s", h.Version, h.Group, key, h.CipherSuite)
}

// Each shipped policy in each mode, with a certificate of every kind that it
// accepts, before clients of every kind.
func TestPoliciesAreEnforced(t *testing.T) {
	const every = "MLKEM1024:SecP384r1MLKEM1024:X25519MLKEM768:MLKEM768:X25519:P-256:P-384"
	everything := openSSL("client", "-groups", every)
	defaults := openSSL("client") // its groups: X25519MLKEM768 and classical ones
	classicalGroups := openSSL("client", "-groups", "X25519:P-256")
	classicalSchemes := openSSL("client", "-groups", every, "-sigalgs", "ecdsa_secp256r1_sha256:rsa_pss_rsae_sha256")
	weakSuite := openSSL("client", "-groups", every, "-ciphersuites", "TLS_AES_128_GCM_SHA256")
	old := openSSL("client-bookworm")
	old12 := openSSL("client-bookworm", "-tls1_2")
	new12 := openSSL("client", "-tls1_2")
	p384 := openSSL("client", "-groups", "P-384")
	nist12 := openSSL("client-bookworm", "-tls1_2", "-groups", "P-384:P-256")
	go127 := goTLS(nil)

	const (
		aes256, aes128 = "TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"
		ecdsa12        = "ECDHE-ECDSA-AES256-GCM-SHA384"
	)
	for _, tc := range []struct {
		policy string
		mode   v1alpha1.PolicyMode
		want   map[*client]string
	}{
		{"cnsa2-v1", "Require", map[*client]string{
			&everything:       "TLSv1.3 MLKEM1024 ML-DSA-87 " + aes256,
			&defaults:         refused,
			&classicalGroups:  refused,
			&classicalSchemes: refused,
			&weakSuite:        refused,
			&old:              refused,
			&old12:            refused,
			&new12:            refused,
			&go127:            refused, // it has no mldsa87 in signature_algorithms_cert
		}},
		{"cnsa2-v1", "Prefer", map[*client]string{
			&everything:       "TLSv1.3 MLKEM1024 ML-DSA-87 " + aes256,
			&defaults:         "TLSv1.3 X25519MLKEM768 ML-DSA-87 " + aes256,
			&p384:             "TLSv1.3 P-384 ML-DSA-87 " + aes256,
			&nist12:           "TLSv1.2 P-256 ECDSA " + ecdsa12,
			&classicalGroups:  "TLSv1.3 X25519 ML-DSA-87 " + aes256,
			&classicalSchemes: "TLSv1.3 MLKEM1024 ECDSA " + aes256,
			&weakSuite:        "TLSv1.3 MLKEM1024 ML-DSA-87 " + aes128,
			&old:              "TLSv1.3 X25519 ECDSA " + aes256,
			&old12:            "TLSv1.2 X25519 ECDSA " + ecdsa12,
			&new12:            "TLSv1.2 X25519 ECDSA " + ecdsa12,
			&go127:            "TLSv1.3 SecP384r1MLKEM1024 ECDSA " + aes256,
		}},
		{"cnsa2-v1", "Observe", map[*client]string{
			&everything: "TLSv1.3 X25519MLKEM768 ML-DSA-87 " + aes256,
			&old:        "TLSv1.3 X25519 ECDSA " + aes256,
		}},
		{"hybrid-v1", "Require", map[*client]string{
			&everything:       "TLSv1.3 X25519MLKEM768 ML-DSA-87 " + aes256,
			&classicalGroups:  refused,
			&classicalSchemes: "TLSv1.3 X25519MLKEM768 ECDSA " + aes256,
			&weakSuite:        "TLSv1.3 X25519MLKEM768 ML-DSA-87 " + aes128,
			&old:              refused,
			&old12:            refused,
			&new12:            refused,
			&go127:            "TLSv1.3 X25519MLKEM768 ECDSA " + aes256,
		}},
		{"hybrid-v1", "Prefer", map[*client]string{
			&everything:       "TLSv1.3 X25519MLKEM768 ML-DSA-87 " + aes256,
			&classicalGroups:  "TLSv1.3 X25519 ML-DSA-87 " + aes256,
			&classicalSchemes: "TLSv1.3 X25519MLKEM768 ECDSA " + aes256,
			&old:              "TLSv1.3 X25519 ECDSA " + aes256,
			&old12:            "TLSv1.2 X25519 ECDSA " + ecdsa12,
			&new12:            "TLSv1.2 X25519 ECDSA " + ecdsa12,
			&go127:            "TLSv1.3 X25519MLKEM768 ECDSA " + aes256,
		}},
		{"hybrid-v1", "Observe", map[*client]string{
			&old:   "TLSv1.3 X25519 ECDSA " + aes256,
			&old12: "TLSv1.2 X25519 ECDSA " + ecdsa12,
		}},
		{"pqc-only-v1", "Require", map[*client]string{
			&everything:       "TLSv1.3 MLKEM1024 ML-DSA-87 " + aes256,
			&defaults:         refused,
			&classicalGroups:  refused,
			&classicalSchemes: refused,
			&weakSuite:        refused,
			&old:              refused,
			&go127:            refused,
		}},
		{"pqc-only-v1", "Prefer", map[*client]string{
			&everything: "TLSv1.3 MLKEM1024 ML-DSA-87 " + aes256,
			&old:        "TLSv1.3 X25519 ECDSA " + aes256,
		}},
		{"compatible-v1", "Require", map[*client]string{
			&everything:      "TLSv1.3 X25519MLKEM768 ML-DSA-87 " + aes256,
			&classicalGroups: "TLSv1.3 X25519 ML-DSA-87 " + aes256,
			&old:             "TLSv1.3 X25519 ECDSA " + aes256,
			&old12:           "TLSv1.2 X25519 ECDSA " + ecdsa12,
			&go127:           "TLSv1.3 X25519MLKEM768 ECDSA " + aes256,
		}},
	} {
		t.Run(tc.policy+" "+string(tc.mode), func(t *testing.T) {
			p := newPod(t)
			named, fallback := shippedPolicy(t, tc.policy), shippedPolicy(t, "compatible-v1")
			parameters, _ := policy.Resolve(named, fallback, tc.mode)
			accepted := policy.Accepts(named, fallback, tc.mode)
			var certificates []model.Certificate
			postQuantum, classical := newIssuer(t, "ML-DSA-87"), newIssuer(t, "ECDSA-P256")
			for _, c := range []model.Certificate{
				p.certificate(postQuantum, "ML-DSA-87", accepted, host),
				p.certificate(classical, "ECDSA-P256", accepted, host),
				p.certificate(classical, "RSA-2048", accepted, host),
			} {
				if len(c.HandshakeSchemes) > 0 { // as package resolve has it
					certificates = append(certificates, c)
				}
			}
			p.start(gateway(parameters, model.Port{Number: port, Listeners: []model.Listener{https("web", []model.Hostname{host}, certificates...)}}), nil)
			for c, want := range tc.want {
				out, err := c.connect(p, port, host)
				got := served(p.handshake())
				t.Logf("%-70s %s", c.name, got)
				if got != want {
					t.Errorf("%s: %s, want %s", c.name, got, want)
				}
				if (err != nil) != (want == refused) {
					t.Errorf("%s: %v, want %s\n%s", c.name, err, want, out)
				}
			}
			if h, more := p.handshakeWithin(200 * 1e6); more {
				t.Errorf("a line too many: %+v", h)
			}
		})
	}
}
