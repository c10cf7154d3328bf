package resolve

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/testcert"
)

// now is a time at which the certificates of ../keypair/testdata are valid.
var now = time.Date(2030, 6, 1, 0, 0, 0, 0, time.UTC)

// fixture is a sound gateway `web` with a dual certificate and a Service; each
// test breaks one thing.
type fixture struct {
	gateway *v1alpha1.QTLSGateway
	objects Objects
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	suites := []v1alpha1.CipherSuite{"TLS_AES_256_GCM_SHA384"}
	return &fixture{
		gateway: &v1alpha1.QTLSGateway{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Generation: 3},
			Spec: v1alpha1.QTLSGatewaySpec{
				PolicyRef: v1alpha1.PolicyReference{Name: "hybrid-v1", Mode: v1alpha1.PolicyModePrefer},
				Listeners: []v1alpha1.Listener{{
					Name: "https", Port: 443, Protocol: v1alpha1.ProtocolHTTPS, Hostnames: []v1alpha1.Hostname{"shop.example.com"},
					CertificateRefs: []v1alpha1.CertificateReference{{Kind: v1alpha1.CertificateKindPQCCertificate, Name: "shop"}},
					Backends:        []v1alpha1.BackendReference{{Name: "shop", Port: intstr.FromString("http")}},
				}},
			},
		},
		objects: Objects{
			Policies: map[string]*v1alpha1.QTLSPolicy{
				"hybrid-v1": {ObjectMeta: metav1.ObjectMeta{Name: "hybrid-v1"}, Spec: v1alpha1.QTLSPolicySpec{
					Versions: []v1alpha1.TLSVersion{"TLS1.3"}, Groups: []v1alpha1.Group{"X25519MLKEM768"},
					SignatureSchemes: []v1alpha1.SignatureScheme{"mldsa65", "ecdsa_secp256r1_sha256"}, CipherSuites: suites}},
				"strict": {ObjectMeta: metav1.ObjectMeta{Name: "strict"}, Spec: v1alpha1.QTLSPolicySpec{
					Versions: []v1alpha1.TLSVersion{"TLS1.3"}, Groups: []v1alpha1.Group{"MLKEM1024"},
					SignatureSchemes: []v1alpha1.SignatureScheme{"mldsa87"}, CipherSuites: suites}},
				FallbackPolicy: {ObjectMeta: metav1.ObjectMeta{Name: FallbackPolicy}, Spec: v1alpha1.QTLSPolicySpec{
					Versions: []v1alpha1.TLSVersion{"TLS1.3"}, Groups: []v1alpha1.Group{"X25519MLKEM768", "x25519"},
					SignatureSchemes: []v1alpha1.SignatureScheme{"mldsa65", "mldsa87", "ecdsa_secp256r1_sha256"}, CipherSuites: suites}},
			},
			Certificates: map[string]*v1alpha1.PQCCertificate{
				"shop": {ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: v1alpha1.PQCCertificateSpec{Algorithms: []v1alpha1.KeyAlgorithm{"ECDSA-P256", "ML-DSA-65"}}},
			},
			Secrets: map[string]*corev1.Secret{
				"shop-ml-dsa-65":  tlsSecret(t, "shop-ml-dsa-65", "ML-DSA-65", "shop.example.com"),
				"shop-ecdsa-p256": tlsSecret(t, "shop-ecdsa-p256", "ECDSA-P256", "shop.example.com"),
			},
			ConfigMaps: map[string]*corev1.ConfigMap{},
			Services: map[string]*corev1.Service{"shop": {ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: corev1.ServiceSpec{
				Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}}}}},
		},
	}
}

func tlsSecret(t *testing.T, name string, algorithm v1alpha1.KeyAlgorithm, hostname string) *corev1.Secret {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(0x5e), Subject: pkix.Name{CommonName: name}, DNSNames: []string{hostname},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour)}
	return testcert.Secret(t, "", name, template, testcert.Key(t, algorithm))
}

func TestASoundGatewayResolvesWithoutProblems(t *testing.T) {
	f := newFixture(t)
	m, problems := Resolve(f.gateway, f.objects, now)
	if len(problems) > 0 {
		t.Fatalf("problems: %+v", problems)
	}
	if len(m.Ports) != 1 || m.Ports[0].Number != 443 || len(m.Ports[0].Listeners) != 1 {
		t.Fatalf("ports %+v, want one listener on 443", m.Ports)
	}
	l := m.Ports[0].Listeners[0]
	if len(l.Certificates) != 2 || l.Certificates[0].Algorithm != "ML-DSA-65" || l.Certificates[1].Algorithm != "ECDSA-P256" {
		t.Errorf("certificates %+v, want ML-DSA-65 before ECDSA-P256", l.Certificates)
	}
	if c := l.Certificates[0]; !c.PostQuantum || !slices.Equal(c.HandshakeSchemes, []uint16{0x0905}) || c.SerialNumber != "5e" {
		t.Errorf("certificate %+v, want post-quantum, scheme 0905, serial 5e", c)
	}
	if l.Backends[0].Group != "shop:http" || l.Backends[0].Weight != 1 {
		t.Errorf("backend %+v, want shop:http of weight 1", l.Backends[0])
	}
}

// providerSecret holds a chain and key of one of the provider's algorithms.
func providerSecret(t *testing.T, algorithm string) *corev1.Secret {
	t.Helper()
	s := &corev1.Secret{Data: map[string][]byte{}}
	s.Name = "shop-" + algorithm
	for key, file := range map[string]string{"tls.crt": algorithm + ".crt", "tls.key": algorithm + ".key"} {
		data, err := os.ReadFile(filepath.Join("..", "keypair", "testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		s.Data[key] = data
	}
	return s
}

func TestCertificatesThatThePolicyItselfAcceptsComeFirst(t *testing.T) {
	f := newFixture(t)
	f.objects.Policies["kpqc"] = &v1alpha1.QTLSPolicy{Spec: v1alpha1.QTLSPolicySpec{Versions: []v1alpha1.TLSVersion{"TLS1.3"}, Groups: []v1alpha1.Group{"smaug_t1"},
		SignatureSchemes: []v1alpha1.SignatureScheme{"haetae2", "p256_aimer128f"}, CipherSuites: []v1alpha1.CipherSuite{"TLS_AES_256_GCM_SHA384"}}}
	f.objects.Secrets["shop-haetae2"] = providerSecret(t, "haetae2")
	f.gateway.Spec.Listeners[0].Hostnames = nil
	f.gateway.Spec.Listeners[0].CertificateRefs = append(f.gateway.Spec.Listeners[0].CertificateRefs, v1alpha1.CertificateReference{Kind: v1alpha1.CertificateKindSecret, Name: "shop-haetae2"})
	for _, tc := range []struct {
		policy string
		mode   v1alpha1.PolicyMode
		want   []v1alpha1.KeyAlgorithm
	}{
		{"kpqc", "Prefer", []v1alpha1.KeyAlgorithm{"haetae2", "ML-DSA-65", "ECDSA-P256"}},
		{"kpqc", "Require", []v1alpha1.KeyAlgorithm{"haetae2"}},
		{"kpqc", "Observe", []v1alpha1.KeyAlgorithm{"ML-DSA-65", "ECDSA-P256"}},
		{"hybrid-v1", "Prefer", []v1alpha1.KeyAlgorithm{"ML-DSA-65", "ECDSA-P256"}},
	} {
		f.gateway.Spec.PolicyRef = v1alpha1.PolicyReference{Name: tc.policy, Mode: tc.mode}
		m, problems := Resolve(f.gateway, f.objects, now)
		if len(problems) > 0 {
			t.Fatalf("%s, %s: problems %+v", tc.policy, tc.mode, problems)
		}
		var got []v1alpha1.KeyAlgorithm
		for _, c := range m.Ports[0].Listeners[0].Certificates {
			got = append(got, c.Algorithm)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s, %s: certificates %v, want %v", tc.policy, tc.mode, got, tc.want)
		}
		if want := slices.Contains(tc.want, "haetae2"); m.TLS.Provider != want {
			t.Errorf("%s, %s: the provider is loaded: %t, want %t", tc.policy, tc.mode, m.TLS.Provider, want)
		}
	}
}

func TestWhatNeedsTheProviderHasItLoaded(t *testing.T) {
	kpqcCA := func(f *fixture) []v1alpha1.CAReference {
		f.objects.ConfigMaps["cas"] = &corev1.ConfigMap{Data: map[string]string{"ca.crt": string(providerSecret(t, "haetae2").Data["tls.crt"])}}
		return []v1alpha1.CAReference{{Kind: v1alpha1.CAKindConfigMap, Name: "cas", Key: "ca.crt"}}
	}
	for _, tc := range []struct {
		name   string
		change func(*fixture)
		want   bool
	}{
		{"none of it", func(*fixture) {}, false},
		{"a group of the policy", func(f *fixture) { f.objects.Policies["hybrid-v1"].Spec.Groups[0] = "p256_smaug_t1" }, true},
		{"a scheme of the policy", func(f *fixture) { f.objects.Policies["hybrid-v1"].Spec.SignatureSchemes[0] = "p384_haetae3" }, true},
		{"a CA of clients", func(f *fixture) {
			f.gateway.Spec.Listeners[0].ClientAuthentication = &v1alpha1.ClientAuthentication{CARefs: kpqcCA(f)}
		}, true},
		{"a CA of a backend", func(f *fixture) {
			f.gateway.Spec.Listeners[0].Backends[0].TLS = &v1alpha1.BackendTLS{Hostname: "shop.internal", CARefs: kpqcCA(f)}
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t)
			tc.change(f)
			m, problems := Resolve(f.gateway, f.objects, now)
			if len(problems) > 0 || m.TLS.Provider != tc.want {
				t.Errorf("loaded: %t, want %t (problems %+v)", m.TLS.Provider, tc.want, problems)
			}
		})
	}
}

func TestEachFaultIsNamedWithItsRemedy(t *testing.T) {
	listener := func(f *fixture) *v1alpha1.Listener { return &f.gateway.Spec.Listeners[0] }
	for _, tc := range []struct {
		name      string
		fault     func(*fixture)
		condition string
		reason    string
		says      string
		holds     bool
		served    bool // the listener is in the model all the same
	}{
		{"a policy that does not exist", func(f *fixture) { f.gateway.Spec.PolicyRef.Name = "hybird-v1" },
			"Accepted", "PolicyNotFound", `spec.policyRef.name: there is no QTLSPolicy "hybird-v1"`, true, false},
		{"no policy to fall back to", func(f *fixture) { delete(f.objects.Policies, FallbackPolicy) },
			"Accepted", "FallbackPolicyNotFound", "restart the operator, or use mode Require", true, false},
		{"a policy that accepts none of the certificates", func(f *fixture) {
			f.gateway.Spec.PolicyRef = v1alpha1.PolicyReference{Name: "strict", Mode: v1alpha1.PolicyModeRequire}
		}, "Accepted", "CertificateAgainstPolicy", "accepts none of shop-ml-dsa-65 (ML-DSA-65), shop-ecdsa-p256 (ECDSA-P256)", true, false},
		{"a host name that would break out of the configuration", func(f *fixture) { listener(f).Hostnames = []v1alpha1.Hostname{"a\n  bind :80"} },
			"Accepted", "Invalid", "is not a host name", true, false},
		{"a PQCCertificate that does not exist", func(f *fixture) { delete(f.objects.Certificates, "shop") },
			"ResolvedRefs", "CertificateNotFound", `no PQCCertificate "shop" in namespace "shop"`, true, false},
		{"a PQCCertificate for clients", func(f *fixture) {
			f.objects.Certificates["shop"].Spec.Usages = []v1alpha1.CertificateUsage{v1alpha1.UsageClientAuth}
		}, "ResolvedRefs", "CertificateInvalid", `PQCCertificate "shop" is for clients alone`, true, false},
		{"a certificate of which one half is not issued yet", func(f *fixture) { delete(f.objects.Secrets, "shop-ml-dsa-65") },
			"ResolvedRefs", "CertificateNotReady", `has not issued Secret "shop-ml-dsa-65" yet`, true, true},
		{"a Secret that does not exist", func(f *fixture) {
			listener(f).CertificateRefs = []v1alpha1.CertificateReference{{Kind: v1alpha1.CertificateKindSecret, Name: "mine"}}
		}, "ResolvedRefs", "CertificateNotFound", `no Secret "mine"`, true, false},
		{"a key of another certificate", func(f *fixture) {
			f.objects.Secrets["shop-ecdsa-p256"].Data["tls.key"] = f.objects.Secrets["shop-ml-dsa-65"].Data["tls.key"]
		}, "ResolvedRefs", "KeyMismatch", `Secret "shop-ecdsa-p256": the private key does not belong`, true, true},
		{"a Secret of nonsense", func(f *fixture) { f.objects.Secrets["shop-ecdsa-p256"].Data["tls.crt"] = []byte("hello") },
			"ResolvedRefs", "CertificateInvalid", "no certificate in PEM form", true, true},
		{"a host name that no certificate covers", func(f *fixture) { listener(f).Hostnames = []v1alpha1.Hostname{"*.example.org"} },
			"ResolvedRefs", "HostnameNotCovered", `do not cover the listener's host name "*.example.org"`, false, true},
		{"two certificates of one algorithm", func(f *fixture) {
			f.objects.Secrets["more"] = tlsSecret(t, "more", "ECDSA-P256", "shop.example.com")
			listener(f).CertificateRefs = append(listener(f).CertificateRefs, v1alpha1.CertificateReference{Kind: v1alpha1.CertificateKindSecret, Name: "more"})
		}, "Accepted", "Invalid", `Secret "more" is a second ECDSA-P256 certificate`, true, true},
		{"a client CA that does not exist", func(f *fixture) {
			listener(f).ClientAuthentication = &v1alpha1.ClientAuthentication{CARefs: []v1alpha1.CAReference{{Kind: v1alpha1.CAKindConfigMap, Name: "cas", Key: "ca.crt"}}}
		}, "ResolvedRefs", "AuthorityNotFound", `no ConfigMap "cas" with key "ca.crt"`, true, false},
		{"a client CA of nonsense", func(f *fixture) {
			f.objects.ConfigMaps["cas"] = &corev1.ConfigMap{Data: map[string]string{"ca.crt": "x"}}
			listener(f).ClientAuthentication = &v1alpha1.ClientAuthentication{CARefs: []v1alpha1.CAReference{{Kind: v1alpha1.CAKindConfigMap, Name: "cas", Key: "ca.crt"}}}
		}, "ResolvedRefs", "AuthorityInvalid", "no certificate in PEM form", true, false},
		{"a backend whose CA does not exist", func(f *fixture) {
			listener(f).Backends[0].TLS = &v1alpha1.BackendTLS{Hostname: "shop.internal", CARefs: []v1alpha1.CAReference{{Kind: v1alpha1.CAKindSecret, Name: "ca", Key: "ca.crt"}}}
		}, "ResolvedRefs", "AuthorityNotFound", `backends[0].tls.caRefs: there is no Secret "ca"`, true, false},
		{"a Service of a name that none can have", func(f *fixture) { listener(f).Backends[0].Name = "shop,other" },
			"Accepted", "Invalid", `listeners[https].backends[0].name: "shop,other" is no name of a Service`, true, false},
		{"a port of a name that none can have", func(f *fixture) { listener(f).Backends[0].Port = intstr.FromString("ht tp") },
			"Accepted", "Invalid", `listeners[https].backends[0].port: "ht tp" is no name of a Service's port`, true, false},
		{"a Service of a name that none can have, but a configuration", func(f *fixture) { listener(f).Backends[0].Name = "Shop" },
			"ResolvedRefs", "BackendNotFound", `listeners[https].backends[0]: there is no Service "Shop"`, false, true},
		{"a Service that does not exist", func(f *fixture) { delete(f.objects.Services, "shop") },
			"ResolvedRefs", "BackendNotFound", `listeners[https].backends[0]: there is no Service "shop"`, false, true},
		{"a port that the Service does not have", func(f *fixture) { listener(f).Backends[0].Port = intstr.FromInt32(8080) },
			"ResolvedRefs", "BackendPortNotFound", "no TCP port 8080; it has 80 (http), 53 (dns)", false, true},
		{"a UDP port", func(f *fixture) { listener(f).Backends[0].Port = intstr.FromString("dns") },
			"ResolvedRefs", "BackendPortNotFound", "no TCP port dns", false, true},
		{"an ExternalName Service", func(f *fixture) { f.objects.Services["shop"].Spec.Type = corev1.ServiceTypeExternalName },
			"ResolvedRefs", "BackendNotSupported", "has no endpoints", false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t)
			tc.fault(f)
			m, problems := Resolve(f.gateway, f.objects, now)
			if len(problems) == 0 {
				t.Fatal("no problem was found")
			}
			p := problems[0]
			if p.Condition != tc.condition || p.Reason != tc.reason || p.Holds != tc.holds {
				t.Errorf("problem %s/%s, holds %v; want %s/%s, holds %v (%s)", p.Condition, p.Reason, p.Holds, tc.condition, tc.reason, tc.holds, p.Message)
			}
			if !strings.Contains(p.Message, tc.says) {
				t.Errorf("message %q, want one that says %q", p.Message, tc.says)
			}
			if served := len(m.Ports) > 0; served != tc.served {
				t.Errorf("listener served: %v, want %v", served, tc.served)
			}
		})
	}
}

// issued is a Secret with a certificate that an intermediate authority has issued,
// and that authority's. change is of the templates of both.
func issued(t *testing.T, algorithm, authority v1alpha1.KeyAlgorithm, change func(leaf, intermediate *x509.Certificate)) *corev1.Secret {
	t.Helper()
	template := func(name string, ca bool) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(0x5e), Subject: pkix.Name{CommonName: name}, IsCA: ca, BasicConstraintsValid: true,
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour)}
	}
	root, intermediate, leaf := template("root", true), template("intermediate", true), template("leaf", false)
	leaf.DNSNames = []string{"shop.example.com"}
	change(leaf, intermediate)
	rootKey, intermediateKey, key := testcert.Key(t, authority), testcert.Key(t, authority), testcert.Key(t, algorithm)
	chain := testcert.PEM(testcert.Sign(t, leaf, intermediate, key.Public(), intermediateKey), testcert.Sign(t, intermediate, root, intermediateKey.Public(), rootKey))
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: testcert.KeyPEM(t, key)}}
}

// serving is the fixture with a certificate of its own.
func serving(t *testing.T, s *corev1.Secret) *fixture {
	t.Helper()
	f := newFixture(t)
	f.objects.Secrets["mine"] = s
	f.gateway.Spec.Listeners[0].CertificateRefs = []v1alpha1.CertificateReference{{Kind: v1alpha1.CertificateKindSecret, Name: "mine"}}
	return f
}

// A policy that is required is about the signatures of a chain as well.
func TestAChainAgainstThePolicyIsServedAndSaidToBe(t *testing.T) {
	for _, tc := range []struct {
		leaf, authority v1alpha1.KeyAlgorithm
		accepts         []v1alpha1.SignatureScheme
		mode            v1alpha1.PolicyMode
		says            string // of the problem; empty: there is none
	}{
		{"ML-DSA-87", "ML-DSA-87", []v1alpha1.SignatureScheme{"mldsa87"}, "Require", ""},
		{"ML-DSA-87", "ML-DSA-65", []v1alpha1.SignatureScheme{"mldsa87"}, "Require", `Secret "mine": policy strict (Require) does not accept mldsa65, by which certificates of the chain are signed`},
		{"ML-DSA-87", "ECDSA-P256", []v1alpha1.SignatureScheme{"mldsa87"}, "Require", "does not accept ecdsa_secp256r1_sha256"},
		{"ML-DSA-87", "ECDSA-P256", []v1alpha1.SignatureScheme{"mldsa87"}, "Prefer", ""},
		{"ECDSA-P256", "RSA-2048", []v1alpha1.SignatureScheme{"ecdsa_secp256r1_sha256", "rsa_pss_rsae_sha256"}, "Require", ""},
		{"ECDSA-P256", "RSA-2048", []v1alpha1.SignatureScheme{"ecdsa_secp256r1_sha256"}, "Require", "does not accept rsa_pss_rsae_sha256"},
	} {
		f := serving(t, issued(t, tc.leaf, tc.authority, func(_, _ *x509.Certificate) {}))
		f.objects.Policies["strict"].Spec.SignatureSchemes = tc.accepts
		f.gateway.Spec.PolicyRef = v1alpha1.PolicyReference{Name: "strict", Mode: tc.mode}
		m, problems := Resolve(f.gateway, f.objects, now)
		if len(m.Ports) != 1 {
			t.Errorf("%s of %s, %v: it is not served", tc.leaf, tc.authority, tc.accepts)
		}
		switch {
		case tc.says == "" && len(problems) > 0:
			t.Errorf("%s of %s, %v, %s: %+v", tc.leaf, tc.authority, tc.accepts, tc.mode, problems)
		case tc.says != "" && (len(problems) != 1 || problems[0].Reason != v1alpha1.ReasonCertificateAgainstPolicy || problems[0].Holds || !strings.Contains(problems[0].Message, tc.says)):
			t.Errorf("%s of %s, %v, %s: %+v, want one that says %q", tc.leaf, tc.authority, tc.accepts, tc.mode, problems, tc.says)
		}
	}
}

func TestAnExpiredCertificateIsServedAndSaidToBe(t *testing.T) {
	f := newFixture(t)
	m, problems := Resolve(f.gateway, f.objects, now.Add(25*time.Hour))
	if len(problems) != 2 || problems[0].Reason != v1alpha1.ReasonCertificateExpired || problems[0].Holds {
		t.Fatalf("problems %+v, want both certificates expired and nothing held", problems)
	}
	if len(m.Ports) != 1 || len(m.Ports[0].Listeners[0].Certificates) != 2 {
		t.Error("the expired certificates are not served")
	}
}

// What every client refuses, or every client is refused by, is told, and served on:
// the clock that says so may be ours.
func TestWhatPeersRefuseIsServedAndSaidToBe(t *testing.T) {
	authorities := func(ends ...time.Duration) *corev1.ConfigMap {
		var bundle []byte
		for _, end := range ends {
			key := testcert.Key(t, "ECDSA-P256")
			ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, NotBefore: now.Add(-100 * time.Hour), NotAfter: now.Add(end)}
			bundle = append(bundle, testcert.PEM(testcert.Sign(t, ca, ca, key.Public(), key))...)
		}
		return &corev1.ConfigMap{Data: map[string]string{"ca.crt": string(bundle)}}
	}
	refs := []v1alpha1.CAReference{{Kind: v1alpha1.CAKindConfigMap, Name: "cas", Key: "ca.crt"}}
	verifying := func(f *fixture, m *corev1.ConfigMap) {
		f.objects.ConfigMaps["cas"] = m
		f.gateway.Spec.Listeners[0].ClientAuthentication = &v1alpha1.ClientAuthentication{CARefs: refs}
		f.gateway.Spec.Listeners[0].Backends[0].TLS = &v1alpha1.BackendTLS{Hostname: "shop.internal", CARefs: refs}
	}
	for _, tc := range []struct {
		name   string
		leaf   func(leaf, intermediate *x509.Certificate)
		also   func(*fixture)
		reason string
		says   []string // of each problem; none: there is none
	}{
		{"nothing", nil, nil, "", nil},
		{"not valid yet", func(leaf, _ *x509.Certificate) { leaf.NotBefore = now.Add(time.Hour) }, nil,
			v1alpha1.ReasonCertificateNotYetValid, []string{`Secret "mine": the certificate is not valid before 2030-06-01T01:00:00Z`}},
		{"an authority that has expired", func(_, intermediate *x509.Certificate) { intermediate.NotAfter = now.Add(-time.Minute) }, nil,
			v1alpha1.ReasonCertificateExpired, []string{`the certificate of the authority "CN=intermediate" in its chain expired at 2030-05-31T23:59:00Z`}},
		{"an authority that is not valid yet", func(_, intermediate *x509.Certificate) { intermediate.NotBefore = now.Add(time.Hour) }, nil,
			v1alpha1.ReasonCertificateNotYetValid, []string{`the certificate of the authority "CN=intermediate" in its chain is not valid before`}},
		{"for clients", func(leaf, _ *x509.Certificate) { leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, nil,
			v1alpha1.ReasonCertificateInvalid, []string{"the certificate is not one for servers"}},
		{"for both", func(leaf, _ *x509.Certificate) {
			leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
		}, nil, "", nil},
		{"authorities that have expired", nil, func(f *fixture) { verifying(f, authorities(-time.Hour, -time.Minute)) },
			v1alpha1.ReasonAuthorityExpired, []string{"listeners[https].clientAuthentication.caRefs: none of the authorities is valid", "listeners[https].backends[0].tls.caRefs: none of the authorities is valid"}},
		{"some that have", nil, func(f *fixture) { verifying(f, authorities(-time.Hour, time.Minute)) }, "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := serving(t, issued(t, "ECDSA-P256", "ECDSA-P256", func(leaf, intermediate *x509.Certificate) {
				if tc.leaf != nil {
					tc.leaf(leaf, intermediate)
				}
			}))
			if tc.also != nil {
				tc.also(f)
			}
			m, problems := Resolve(f.gateway, f.objects, now)
			if len(m.Ports) != 1 || len(problems) != len(tc.says) {
				t.Fatalf("%d ports and the problems %+v, want 1 and %d", len(m.Ports), problems, len(tc.says))
			}
			for i, p := range problems {
				if p.Reason != tc.reason || p.Holds || p.Condition != v1alpha1.ConditionResolvedRefs || !strings.Contains(p.Message, tc.says[i]) {
					t.Errorf("%+v; want %s saying %q", p, tc.reason, tc.says[i])
				}
			}
		})
	}
}

// Time alone changes what is told: it is looked again when each begins or ends.
func TestTheTimesOfCertificatesAreKnown(t *testing.T) {
	f := serving(t, issued(t, "ECDSA-P256", "ECDSA-P256", func(leaf, intermediate *x509.Certificate) {
		leaf.NotBefore, intermediate.NotAfter = now.Add(time.Hour), now.Add(2*time.Hour)
	}))
	f.objects.ConfigMaps["cas"] = &corev1.ConfigMap{Data: map[string]string{"ca.crt": string(tlsSecret(t, "ca", "ECDSA-P256", "ca").Data["tls.crt"])}}
	f.gateway.Spec.Listeners[0].ClientAuthentication = &v1alpha1.ClientAuthentication{CARefs: []v1alpha1.CAReference{{Kind: v1alpha1.CAKindConfigMap, Name: "cas", Key: "ca.crt"}}}
	m, _ := Resolve(f.gateway, f.objects, now)
	var hours []float64
	for _, at := range m.Times {
		hours = append(hours, at.Sub(now).Hours())
	}
	if want := []float64{1, 24, -1, 2, -1, 24}; !slices.Equal(hours, want) { // the certificate, the authority of its chain, and that of clients
		t.Errorf("%v hours from now, want %v", hours, want)
	}
}

func TestEndpointsOfAGroup(t *testing.T) {
	f := newFixture(t)
	endpointSlice := func(conditions discoveryv1.EndpointConditions, addresses ...string) discoveryv1.EndpointSlice {
		s := discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: "shop"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("metrics"), Port: ptr.To[int32](9090)}, {Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
		}
		for _, a := range addresses {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, Conditions: conditions})
		}
		return s
	}
	ready := discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true)}
	ending := discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}
	unready := discoveryv1.EndpointConditions{Ready: ptr.To(false)}

	for _, tc := range []struct {
		name   string
		slices []discoveryv1.EndpointSlice
		want   []string
	}{
		{"ready ones, over several slices, once each and in order", []discoveryv1.EndpointSlice{endpointSlice(ready, "10.0.0.2", "10.0.0.3"), endpointSlice(ready, "10.0.0.1", "10.0.0.2")}, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}},
		{"not those that are not ready", []discoveryv1.EndpointSlice{endpointSlice(ready, "10.0.0.1"), endpointSlice(unready, "10.0.0.2"), endpointSlice(ending, "10.0.0.3")}, []string{"10.0.0.1"}},
		{"those that serve while they end, when no other is ready", []discoveryv1.EndpointSlice{endpointSlice(unready, "10.0.0.2"), endpointSlice(ending, "10.0.0.3")}, []string{"10.0.0.3"}},
		{"readiness that is not said counts as ready", []discoveryv1.EndpointSlice{endpointSlice(discoveryv1.EndpointConditions{}, "10.0.0.4")}, []string{"10.0.0.4"}},
		{"none", nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Endpoints(Groups(f.gateway, nil), f.objects.Services, tc.slices)
			var want []dataplane.Endpoint
			for _, a := range tc.want {
				want = append(want, dataplane.Endpoint{Address: a, Port: 8080})
			}
			if group, ok := got["shop:http"]; !ok || !slices.Equal(group, want) {
				t.Errorf("endpoints %v, want %v", got, want)
			}
		})
	}
}

// Pods run an earlier revision until they have taken up the next: what it needs is
// asked for as long as it is published.
func TestGroupsAreThoseOfTheSpecAndOfRevisions(t *testing.T) {
	f := newFixture(t)
	revision := func(groups ...string) dataplane.Revision {
		b := dataplane.Backend{Name: "backend.web"}
		for _, name := range groups {
			b.Groups = append(b.Groups, dataplane.ServerGroup{Name: name})
		}
		return dataplane.Revision{Backends: []dataplane.Backend{b}}
	}
	groups := Groups(f.gateway, map[string]dataplane.Revision{"1": revision("former:8080", "shop:80"), "2": revision("shop:http", "former:metrics")})
	if want := []string{"former:8080", "former:metrics", "shop:80", "shop:http"}; !slices.Equal(groups, want) {
		t.Errorf("groups %v, want %v", groups, want)
	}
	if got, want := ServicesOf(groups), []string{"former", "shop"}; !slices.Equal(got, want) {
		t.Errorf("Services %v, want %v", got, want)
	}
}

// A group without endpoints is named all the same: pods go on with those that they
// have of a group that is not.
func TestEveryGroupIsNamed(t *testing.T) {
	f := newFixture(t)
	slice := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: "shop"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
	}
	got := Endpoints([]string{"shop:http", "shop:80", "shop:dns", "shop:9999", "gone:http"}, f.objects.Services, []discoveryv1.EndpointSlice{slice})
	some, none := []dataplane.Endpoint{{Address: "10.0.0.1", Port: 8080}}, []dataplane.Endpoint{}
	want := dataplane.Endpoints{"shop:http": some, "shop:80": some, "shop:dns": none, "shop:9999": none, "gone:http": none}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

func TestReferencesAreListedOnce(t *testing.T) {
	f := newFixture(t)
	f.gateway.Spec.Listeners = append(f.gateway.Spec.Listeners, f.gateway.Spec.Listeners[0])
	f.gateway.Spec.Listeners[1].CertificateRefs = []v1alpha1.CertificateReference{{Kind: v1alpha1.CertificateKindSecret, Name: "mine"}}
	refs := ReferencesOf(f.gateway)
	if !slices.Equal(refs.Services, []string{"shop"}) || !slices.Equal(refs.Secrets, []string{"mine"}) ||
		!slices.Equal(refs.Certificates, []string{"shop"}) || !slices.Equal(refs.Policies, []string{FallbackPolicy, "hybrid-v1"}) {
		t.Errorf("references %+v", refs)
	}
}
