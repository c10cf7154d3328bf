package main

import (
	"bytes"
	"debug/buildinfo"
	"maps"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func sampleBOM(t *testing.T) *cdx.BOM {
	t.Helper()
	agent := goProgram{"qtls-agent", strings.Repeat("ab", 32), &buildinfo.BuildInfo{
		GoVersion: "go1.27.4",
		Main:      debug.Module{Path: "qtls.dev/qtls"},
		Deps: []*debug.Module{
			{Path: "k8s.io/api", Version: "v0.36.3"},
			{Path: "example.com/old", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.0.1+incompatible"}},
			{Path: "example.com/local", Version: "v0.0.0", Replace: &debug.Module{Path: "../local"}},
			{Path: "example.com/checkout", Version: "v0.0.0", Replace: &debug.Module{Path: "../", Version: "(devel)"}},
		},
	}}
	second := goProgram{"qtls-probe", strings.Repeat("cd", 32), &buildinfo.BuildInfo{GoVersion: "go1.27.4"}}
	return billOfMaterials("ghcr.io/qtls-dev/qtls-gateway", "1.2.3", "trixie", sampleStatus(t), []goProgram{agent, second}, []rustModule{
		{"oqsprovider.so", strings.Repeat("ef", 32), []crate{
			{"kpqc", "0.2.1", "MIT", strings.Repeat("01", 32)},
			{"oqs-sys", "0.11.0+liboqs-0.13.0", "MIT OR Apache-2.0", strings.Repeat("23", 32)},
			{"toml", "1.2.1+spec-1.1.0", "MIT", strings.Repeat("45", 32)},
			{"unlicensed", "1.0.0", "", ""},
		}},
	})
}

func TestBillOfMaterialsNamesPackagesProgramsAndModules(t *testing.T) {
	bom := sampleBOM(t)
	versions := map[string]string{}
	for _, c := range *bom.Components {
		versions[c.BOMRef] = c.Version
	}
	for ref, version := range map[string]string{
		"pkg:deb/debian/haproxy@3.2.26-1?arch=amd64&distro=debian-13":                 "3.2.26-1",
		"pkg:deb/debian/libcrypt1@1:4.4.38-1?arch=amd64&distro=debian-13":             "1:4.4.38-1",
		"pkg:deb/debian/libstdc%2B%2B6@14.2.0-19%2Bb1?arch=amd64&distro=debian-13":    "14.2.0-19+b1",
		"pkg:deb/debian/ca-certificates@20250419%2Bdeb13u1?arch=all&distro=debian-13": "20250419+deb13u1",
		"program:qtls-agent":                                "1.2.3",
		"program:qtls-probe":                                "1.2.3",
		"pkg:golang/stdlib@1.27.4":                          "1.27.4",
		"pkg:golang/k8s.io/api@v0.36.3":                     "v0.36.3",
		"pkg:golang/example.com/fork@v1.0.1%2Bincompatible": "v1.0.1+incompatible",
		"pkg:golang/example.com/local":                      "",
		"pkg:golang/example.com/checkout":                   "",
		"module:oqsprovider.so":                             "1.2.3",
		"pkg:cargo/kpqc@0.2.1":                              "0.2.1",
		"pkg:cargo/oqs-sys@0.11.0%2Bliboqs-0.13.0":          "0.11.0+liboqs-0.13.0",
		"pkg:generic/liboqs@0.13.0":                         "0.13.0",
		"pkg:cargo/toml@1.2.1%2Bspec-1.1.0":                 "1.2.1+spec-1.1.0",
		"pkg:cargo/unlicensed@1.0.0":                        "1.0.0",
	} {
		if got, ok := versions[ref]; !ok || got != version {
			t.Errorf("component %s has version %q (there: %t), want %q", ref, got, ok, version)
		}
		delete(versions, ref)
	}
	if len(versions) > 0 {
		t.Errorf("unexpected components %v", versions)
	}
}

func TestBillOfMaterialsKeepsTheSourcePackage(t *testing.T) {
	for _, c := range *sampleBOM(t).Components {
		if c.Name != "libstdc++6" {
			continue
		}
		for _, p := range *c.Properties {
			if p.Name == "debian:source" && p.Value == "gcc-14" {
				return
			}
		}
		t.Errorf("libstdc++6 has properties %v, want debian:source gcc-14", *c.Properties)
	}
}

func TestBillOfMaterialsHasLicencesAndChecksumsOfCrates(t *testing.T) {
	got := map[string]string{}
	for _, c := range *sampleBOM(t).Components {
		if !strings.HasPrefix(c.BOMRef, "pkg:cargo/") {
			continue
		}
		licence, sum := "none", "none"
		if c.Licenses != nil {
			licence = (*c.Licenses)[0].Expression
		}
		if c.Hashes != nil {
			sum = (*c.Hashes)[0].Value[:4]
		}
		got[c.Name] = licence + ", " + sum
	}
	want := map[string]string{"kpqc": "MIT, 0101", "oqs-sys": "MIT OR Apache-2.0, 2323", "toml": "MIT, 4545", "unlicensed": "none, none"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestBillOfMaterialsIsConsistentAndReadable(t *testing.T) {
	document, err := encode(sampleBOM(t))
	if err != nil {
		t.Fatal(err)
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(document), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if bom.SpecVersion != cdx.SpecVersion1_6 || bom.Metadata.Component.Name != "ghcr.io/qtls-dev/qtls-gateway" {
		t.Errorf("version %v of %v", bom.SpecVersion, bom.Metadata.Component)
	}
	if !regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(bom.SerialNumber) {
		t.Errorf("serial number %q is not a UUID of version 8", bom.SerialNumber)
	}
	refs := map[string]bool{bom.Metadata.Component.BOMRef: true}
	for _, c := range *bom.Components {
		if refs[c.BOMRef] {
			t.Errorf("reference %s is used twice", c.BOMRef)
		}
		refs[c.BOMRef] = true
	}
	for _, d := range *bom.Dependencies {
		for _, ref := range append([]string{d.Ref}, *d.Dependencies...) {
			if !refs[ref] {
				t.Errorf("dependency %s names no component", ref)
			}
		}
	}
}

func TestSerialNumberFollowsTheContent(t *testing.T) {
	a, b := sampleBOM(t), sampleBOM(t)
	if a.SerialNumber != b.SerialNumber {
		t.Error("equal content, different serial numbers")
	}
	c := billOfMaterials("ghcr.io/qtls-dev/qtls-gateway", "1.2.3", "trixie", sampleStatus(t), nil, nil)
	if a.SerialNumber == c.SerialNumber {
		t.Error("different content, equal serial numbers")
	}
}

func TestReadProgramOfThisTest(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := readProgram(self)
	if err != nil {
		t.Fatal(err)
	}
	var modules []string
	for _, m := range goModules(p.info) {
		modules = append(modules, m.Name)
	}
	if got := strings.Join(modules, " "); !strings.HasPrefix(got, "stdlib") || !strings.Contains(got, "github.com/CycloneDX/cyclonedx-go") {
		t.Errorf("modules %q, want the standard library and cyclonedx-go", got)
	}
	if _, err := readProgram("testdata/status"); err == nil {
		t.Error("a text file passes for a Go executable")
	}
}

func TestPackageList(t *testing.T) {
	got := string(packageList(sampleStatus(t)[:2], []goProgram{{"qtls-agent", "abcd", &buildinfo.BuildInfo{GoVersion: "go1.27.4"}}},
		[]rustModule{{"oqsprovider.so", "ef01", []crate{{Name: "kpqc", Version: "0.2.1"}}}}))
	if want := "haproxy 3.2.26-1\nlibcrypt1 1:4.4.38-1\nqtls-agent go1.27.4 sha256:abcd\noqsprovider.so sha256:ef01\nkpqc 0.2.1\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestALicenseOfAProgramsOwnIsTold(t *testing.T) {
	k6 := goProgram{"qtls-k6", strings.Repeat("ab", 32), &buildinfo.BuildInfo{GoVersion: "go1.27.4"}}
	for _, c := range *billOfMaterials("ghcr.io/qtls-dev/qtls-k6", "1.2.3", "trixie", nil, []goProgram{k6}, nil).Components {
		if c.BOMRef == "program:qtls-k6" && (c.Licenses == nil || (*c.Licenses)[0].Expression != "AGPL-3.0-only") {
			t.Errorf("got %+v", c.Licenses)
		}
	}
}
