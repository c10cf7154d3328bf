package algorithms

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"qtls.dev/qtls/api/v1alpha1"
)

// enumeration finds what the generated CRD admits for the items of a list of
// the spec.
func enumeration(t *testing.T, crdFile, field string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../config/crd", crdFile))
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(data, &crd); err != nil {
		t.Fatal(err)
	}
	list := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties[field]
	var values []string
	for _, v := range list.Items.Schema.Enum {
		var s string
		if err := yaml.Unmarshal(v.Raw, &s); err != nil {
			t.Fatal(err)
		}
		values = append(values, s)
	}
	return values
}

func names[T any](list []T, name func(T) string) []string {
	var out []string
	for _, e := range list {
		out = append(out, name(e))
	}
	return out
}

func TestTheAPIAdmitsWhatTheTableHas(t *testing.T) {
	for _, c := range []struct {
		file, field string
		table       []string
	}{
		{"qtls.dev_qtlspolicies.yaml", "groups", names(Groups, func(g Group) string { return string(g.Name) })},
		{"qtls.dev_qtlspolicies.yaml", "signatureSchemes", names(SignatureSchemes, func(s SignatureScheme) string { return string(s.Name) })},
		{"qtls.dev_qtlspolicies.yaml", "cipherSuites", names(CipherSuites, func(s CipherSuite) string { return string(s.Name) })},
		{"qtls.dev_pqccertificates.yaml", "algorithms", names(KeyAlgorithms, func(k KeyAlgorithm) string { return string(k.Name) })},
	} {
		admitted := enumeration(t, c.file, c.field)
		slices.Sort(admitted)
		slices.Sort(c.table)
		if len(admitted) == 0 || !slices.Equal(admitted, c.table) {
			t.Errorf("spec.%s of %s admits\n%v, the table has\n%v", c.field, c.file, admitted, c.table)
		}
	}
}

func TestKeysSignWithSchemesOfTheTable(t *testing.T) {
	for _, k := range KeyAlgorithms {
		if len(k.Schemes) == 0 {
			t.Errorf("%s has no scheme", k.Name)
		}
		for _, name := range k.Schemes {
			if s, ok := LookupSignatureScheme(name); !ok || s.Family != k.Family || s.Provider != (k.Provider != nil) {
				t.Errorf("%s: scheme %q is not in the table, of another family, or not of the same library", k.Name, name)
			}
		}
	}
	for _, s := range SignatureSchemes {
		if !slices.ContainsFunc(KeyAlgorithms, func(k KeyAlgorithm) bool { return slices.Contains(k.Schemes, s.Name) }) {
			t.Errorf("scheme %s is of no key: no certificate could serve it", s.Name)
		}
	}
}

func TestStrongerKeysComeFirst(t *testing.T) {
	for i, weaker := range KeyAlgorithms {
		for _, stronger := range KeyAlgorithms[:i] {
			if Strength(stronger.Name) <= Strength(weaker.Name) {
				t.Errorf("%s is not stronger than %s", stronger.Name, weaker.Name)
			}
			if stronger.Family == Classical && weaker.Family == PostQuantum {
				t.Errorf("classical %s comes before post-quantum %s", stronger.Name, weaker.Name)
			}
			if stronger.Provider != nil && weaker.Family == PostQuantum && weaker.Provider == nil {
				t.Errorf("%s, which is no standard, comes before %s, which is", stronger.Name, weaker.Name)
			}
		}
	}
	order := []v1alpha1.KeyAlgorithm{"ML-DSA-87", "ML-DSA-65", "ML-DSA-44", "p521_haetae5", "haetae5", "p384_haetae3", "haetae2", "ECDSA-P384", "ECDSA-P256", "RSA-4096", "RSA-2048", "DSA"}
	if !slices.IsSortedFunc(order, func(a, b v1alpha1.KeyAlgorithm) int { return Strength(b) - Strength(a) }) {
		t.Errorf("not in the order %v", order)
	}
}

// An object's name has neither capital letters nor underscores.
func TestSecretsOfEachAlgorithmHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]v1alpha1.KeyAlgorithm{}
	for _, k := range KeyAlgorithms {
		name := v1alpha1.CertificateSecretName("web", k.Name)
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			t.Errorf("%s: Secret %q: %v", k.Name, name, problems)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%s and %s have Secret %q", k.Name, other, name)
		}
		seen[name] = k.Name
	}
}

func TestCodePointsAndNamesAreUnique(t *testing.T) {
	codes, reported, oids := map[uint16]string{}, map[string]string{}, map[string]string{}
	check := func(name string, code uint16, others ...string) {
		if other, ok := codes[code]; ok || code == 0 {
			t.Errorf("%s and %s have the code point %#04x", name, other, code)
		}
		codes[code] = name
		for _, o := range append(others, name) { // OpenSSL does not tell upper case from lower
			o = strings.ToLower(o)
			if other, ok := reported[o]; ok && other != name {
				t.Errorf("%s and %s are both %s in OpenSSL", name, other, o)
			}
			reported[o] = name
		}
	}
	for _, g := range Groups {
		check(string(g.Name), g.CodePoint, g.Aliases...)
	}
	clear(codes)
	for _, s := range SignatureSchemes {
		check(string(s.Name), s.CodePoint)
	}
	for _, k := range KeyAlgorithms {
		if k.Provider == nil {
			continue
		}
		if other, ok := oids[k.Provider.OID]; ok || k.Provider.OID == "" {
			t.Errorf("%s and %s have the object identifier %q", k.Name, other, k.Provider.OID)
		}
		oids[k.Provider.OID] = string(k.Name)
	}
	for _, s := range CipherSuites {
		if s.Version != v1alpha1.TLS12 && s.Version != v1alpha1.TLS13 {
			t.Errorf("%s is of version %q", s.Name, s.Version)
		}
	}
}

func TestLookupsFindOnlyWhatTheTableHas(t *testing.T) {
	if g, ok := LookupGroup("X25519MLKEM768"); !ok || g.CodePoint != 0x11ec {
		t.Errorf("%+v, %t", g, ok)
	}
	if _, ok := LookupGroup("x25519mlkem768"); ok {
		t.Error("names are as the registry writes them")
	}
	for _, reported := range []string{"SECP256R1", "prime256v1", "P-256", "secp256r1"} {
		if g, ok := GroupReportedAs(reported); !ok || g.OpenSSL != "P-256" {
			t.Errorf("%s is reported of %+v, %t; want P-256", reported, g, ok)
		}
	}
	for _, reported := range []string{"P256_SMAUG_T1", "p256_smaug_t1"} {
		if g, ok := GroupReportedAs(reported); !ok || g.Name != "p256_smaug_t1" || !g.Provider {
			t.Errorf("%s is reported of %+v, %t; want the provider's p256_smaug_t1", reported, g, ok)
		}
	}
	if g, ok := GroupReportedAs("brainpoolP256r1"); ok {
		t.Errorf("%+v", g)
	}
	if k, ok := LookupOID("1.3.9999.14.2.1"); !ok || k.Name != "haetae3" {
		t.Errorf("%+v, %t", k, ok)
	}
	if k, ok := LookupOID(""); ok {
		t.Errorf("no object identifier is that of %s", k.Name)
	}
	if _, ok := LookupSignatureScheme("OV_V"); ok {
		t.Error("OV_V is a scheme of TLS: its certificates are too large for that")
	}
	if _, ok := LookupKeyAlgorithm("DSA"); ok {
		t.Error("DSA")
	}
	if s, ok := LookupCipherSuite("TLS_AES_128_GCM_SHA256"); !ok || s.Version != v1alpha1.TLS13 {
		t.Errorf("%+v, %t", s, ok)
	}
}
