package algorithms

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
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
	strengths := map[int]bool{}
	for _, k := range KeyAlgorithms {
		if len(k.Schemes) == 0 || strengths[k.Strength] {
			t.Errorf("%s has no scheme, or the strength of another", k.Name)
		}
		strengths[k.Strength] = true
		for _, name := range k.Schemes {
			if s, ok := LookupSignatureScheme(name); !ok || s.Family != k.Family {
				t.Errorf("%s: scheme %q is not in the table, or of another family", k.Name, name)
			}
		}
	}
	for _, s := range SignatureSchemes {
		if !slices.ContainsFunc(KeyAlgorithms, func(k KeyAlgorithm) bool { return slices.Contains(k.Schemes, s.Name) }) {
			t.Errorf("scheme %s is of no key: no certificate could serve it", s.Name)
		}
	}
}

func TestPostQuantumKeysAreStrongerThanClassicalOnes(t *testing.T) {
	for _, a := range KeyAlgorithms {
		for _, b := range KeyAlgorithms {
			if a.Family == PostQuantum && b.Family == Classical && a.Strength <= b.Strength {
				t.Errorf("%s does not come before %s", a.Name, b.Name)
			}
		}
	}
}

func TestCodePointsAndNamesAreUnique(t *testing.T) {
	codes, openssl := map[uint16]string{}, map[string]string{}
	check := func(name, alias string, code uint16) {
		if other, ok := codes[code]; ok {
			t.Errorf("%s and %s have the code point %#04x", name, other, code)
		}
		if other, ok := openssl[alias]; ok {
			t.Errorf("%s and %s are %s in OpenSSL", name, other, alias)
		}
		codes[code], openssl[alias] = name, name
	}
	for _, g := range Groups {
		check(string(g.Name), g.OpenSSL, g.CodePoint)
		if g.Family == PostQuantum && !g.TLS13Only {
			t.Errorf("%s: TLS 1.2 has no post-quantum groups", g.Name)
		}
	}
	clear(codes)
	for _, s := range SignatureSchemes {
		check(string(s.Name), s.OpenSSL, s.CodePoint)
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
	if _, ok := LookupKeyAlgorithm("DSA"); ok {
		t.Error("DSA")
	}
	if s, ok := LookupCipherSuite("TLS_AES_128_GCM_SHA256"); !ok || s.Version != v1alpha1.TLS13 {
		t.Errorf("%+v, %t", s, ok)
	}
}
