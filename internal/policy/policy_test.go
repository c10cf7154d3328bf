package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/policy/shipped"
)

// shippedPolicy is a policy that comes with Q-TLS.
func shippedPolicy(t *testing.T, name string) *v1alpha1.QTLSPolicy {
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
	t.Fatalf("no shipped policy is named %q", name)
	return nil
}

const (
	suites13   = "TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256"
	ciphers12  = "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256"
	kpqcGroups = "p256_smaug_t1/p384_smaug_t3/p521_smaug_t5/p384_ntru_plus_kem768/p384_ntru_plus_kem864/p521_ntru_plus_kem1152/" +
		"smaug_t1/smaug_t3/smaug_t5/ntru_plus_kem768/ntru_plus_kem864/ntru_plus_kem1152"
	kpqcSchemes = "p256_haetae2:p384_haetae3:p521_haetae5:haetae2:haetae3:haetae5:p256_aimer128f:p384_aimer192f:p521_aimer256f:" +
		"p256_aimer128s:p384_aimer192s:p521_aimer256s:aimer128f:aimer192f:aimer256f:aimer128s:aimer192s:aimer256s:ecdsa_secp256r1_sha256:ecdsa_secp384r1_sha384"
	allSchemes = "mldsa65:mldsa87:mldsa44:ecdsa_secp256r1_sha256:ecdsa_secp384r1_sha384:rsa_pss_rsae_sha256:rsa_pss_rsae_sha384:rsa_pss_rsae_sha512"
)

func TestShippedPoliciesInEveryMode(t *testing.T) {
	compatible := model.TLS{MinVersion: "TLSv1.2", MaxVersion: "TLSv1.3",
		Curves: "X25519MLKEM768/SecP384r1MLKEM1024/SecP256r1MLKEM768/X25519/P-256/P-384", SignatureAlgorithms: allSchemes, CipherSuites: suites13, Ciphers: ciphers12}
	for _, tc := range []struct {
		policy string
		mode   v1alpha1.PolicyMode
		want   model.TLS
	}{
		{"hybrid-v1", "Prefer", model.TLS{MinVersion: "TLSv1.2", MaxVersion: "TLSv1.3",
			Curves: "X25519MLKEM768/SecP384r1MLKEM1024/SecP256r1MLKEM768/X25519:P-256:P-384", SignatureAlgorithms: allSchemes, CipherSuites: suites13, Ciphers: ciphers12}},
		{"hybrid-v1", "Require", model.TLS{MinVersion: "TLSv1.3", MaxVersion: "TLSv1.3",
			Curves: "X25519MLKEM768/SecP384r1MLKEM1024/SecP256r1MLKEM768", SignatureAlgorithms: allSchemes, CipherSuites: suites13}},
		{"hybrid-v1", "Observe", compatible},
		{"cnsa2-v1", "Prefer", model.TLS{MinVersion: "TLSv1.2", MaxVersion: "TLSv1.3",
			Curves:              "MLKEM1024/SecP384r1MLKEM1024/X25519MLKEM768:SecP256r1MLKEM768/X25519:P-256:P-384",
			SignatureAlgorithms: "mldsa87:mldsa65:mldsa44:ecdsa_secp256r1_sha256:ecdsa_secp384r1_sha384:rsa_pss_rsae_sha256:rsa_pss_rsae_sha384:rsa_pss_rsae_sha512",
			CipherSuites:        suites13, Ciphers: ciphers12}},
		{"cnsa2-v1", "Require", model.TLS{MinVersion: "TLSv1.3", MaxVersion: "TLSv1.3",
			Curves: "MLKEM1024/SecP384r1MLKEM1024", SignatureAlgorithms: "mldsa87", CipherSuites: "TLS_AES_256_GCM_SHA384"}},
		{"cnsa2-v1", "Observe", compatible},
		{"pqc-only-v1", "Require", model.TLS{MinVersion: "TLSv1.3", MaxVersion: "TLSv1.3",
			Curves: "MLKEM1024/MLKEM768", SignatureAlgorithms: "mldsa65:mldsa87:mldsa44", CipherSuites: "TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"}},
		{"compatible-v1", "Require", compatible},
		{"kpqc-v1", "Prefer", model.TLS{MinVersion: "TLSv1.2", MaxVersion: "TLSv1.3", Provider: true,
			Curves:              kpqcGroups + "/X25519MLKEM768:SecP384r1MLKEM1024:SecP256r1MLKEM768/X25519:P-256:P-384",
			SignatureAlgorithms: kpqcSchemes + ":mldsa65:mldsa87:mldsa44:rsa_pss_rsae_sha256:rsa_pss_rsae_sha384:rsa_pss_rsae_sha512",
			CipherSuites:        suites13, Ciphers: ciphers12}},
		{"kpqc-v1", "Require", model.TLS{MinVersion: "TLSv1.3", MaxVersion: "TLSv1.3", Provider: true,
			Curves: kpqcGroups, SignatureAlgorithms: kpqcSchemes, CipherSuites: suites13}},
		{"kpqc-v1", "Observe", compatible},
	} {
		t.Run(tc.policy+" "+string(tc.mode), func(t *testing.T) {
			got, observe := Resolve(shippedPolicy(t, tc.policy), shippedPolicy(t, "compatible-v1"), tc.mode)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("parameters (-want +got):\n%s", diff)
			}
			if (observe != nil) != (tc.mode == v1alpha1.PolicyModeObserve) {
				t.Errorf("what the policy would accept: %v; it is said in mode Observe alone", observe)
			}
		})
	}
}

func TestRequireNeedsNoFallback(t *testing.T) {
	got, _ := Resolve(shippedPolicy(t, "cnsa2-v1"), nil, v1alpha1.PolicyModeRequire)
	if got.Curves != "MLKEM1024/SecP384r1MLKEM1024" {
		t.Errorf("curves %q", got.Curves)
	}
	if !Accepts(shippedPolicy(t, "cnsa2-v1"), nil, v1alpha1.PolicyModeRequire)("mldsa87") {
		t.Error("cnsa2-v1 does not accept its own mldsa87")
	}
}

func TestObserveSaysWhatThePolicyWouldAccept(t *testing.T) {
	_, got := Resolve(shippedPolicy(t, "cnsa2-v1"), shippedPolicy(t, "compatible-v1"), v1alpha1.PolicyModeObserve)
	want := &model.Acceptable{Versions: []string{"TLSv1.3"}, Groups: []string{"MLKEM1024", "SecP384r1MLKEM1024"},
		Suites: []string{"TLS_AES_256_GCM_SHA384"}, Algorithms: []v1alpha1.KeyAlgorithm{"ML-DSA-87"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("acceptable (-want +got):\n%s", diff)
	}
}

func TestCertificatesAreAcceptedByMode(t *testing.T) {
	strict, fallback := shippedPolicy(t, "cnsa2-v1"), shippedPolicy(t, "compatible-v1")
	for _, tc := range []struct {
		mode   v1alpha1.PolicyMode
		scheme v1alpha1.SignatureScheme
		want   bool
	}{
		{"Require", "mldsa87", true},
		{"Require", "mldsa65", false},
		{"Require", "ecdsa_secp256r1_sha256", false},
		{"Prefer", "ecdsa_secp256r1_sha256", true},
		{"Observe", "ecdsa_secp256r1_sha256", true},
	} {
		if got := Accepts(strict, fallback, tc.mode)(tc.scheme); got != tc.want {
			t.Errorf("cnsa2-v1 in mode %s accepts %s: %v, want %v", tc.mode, tc.scheme, got, tc.want)
		}
	}
}

func TestPostQuantumCertificatesNeedTLS13(t *testing.T) {
	old := shippedPolicy(t, "compatible-v1").DeepCopy()
	old.Spec.Versions = []v1alpha1.TLSVersion{v1alpha1.TLS12}
	accepts := Accepts(old, nil, v1alpha1.PolicyModeRequire)
	if accepts("mldsa65") || !accepts("ecdsa_secp256r1_sha256") {
		t.Errorf("a policy of TLS 1.2 alone accepts mldsa65: %v, ecdsa_secp256r1_sha256: %v; want false, true", accepts("mldsa65"), accepts("ecdsa_secp256r1_sha256"))
	}
}
