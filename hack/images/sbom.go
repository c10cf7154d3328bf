package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// goProgram is a Go executable in an image.
type goProgram struct {
	name, sha256 string
	info         *buildinfo.BuildInfo
}

// readProgram reads what the Go linker recorded in an executable.
func readProgram(path string) (goProgram, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return goProgram{}, fmt.Errorf("read the build information of %s: %w", path, err)
	}
	sum, err := hashFile(path)
	return goProgram{filepath.Base(path), sum, info}, err
}

// rustModule is a library that was compiled from Rust crates.
type rustModule struct {
	name, sha256 string
	crates       []crate
}

// readModule reads what is recorded of a library.
func readModule(p compiled) (rustModule, error) {
	crates, err := readCrates(p.crateList)
	if err != nil {
		return rustModule{}, err
	}
	sum, err := hashFile(p.module)
	return rustModule{filepath.Base(p.module), sum, crates}, err
}

// billOfMaterials lists what an image holds as CycloneDX 1.6: each Debian package, each Go program with the modules and
// the standard library in it, and each Rust library with its crates. Equal content gives an equal document, so it has no
// time stamp.
func billOfMaterials(name, version, suite string, packages []debPackage, programs []goProgram, modules []rustModule) *cdx.BOM {
	bom := cdx.NewBOM()
	subject := cdx.Component{Type: cdx.ComponentTypeContainer, BOMRef: "image", Name: name, Version: version}
	bom.Metadata = &cdx.Metadata{Component: &subject}

	var components []cdx.Component
	var dependencies []cdx.Dependency
	var top []string
	for _, p := range packages {
		c := debComponent(p, suite)
		components = append(components, c)
		top = append(top, c.BOMRef)
	}
	seen := map[string]bool{}
	built := func(c cdx.Component, sha256 string, parts []cdx.Component) {
		c.Version, c.Hashes = version, &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sha256}}
		components = append(components, c)
		top = append(top, c.BOMRef)
		var uses []string
		for _, p := range parts {
			uses = append(uses, p.BOMRef)
			if !seen[p.BOMRef] {
				seen[p.BOMRef] = true
				components = append(components, p)
			}
		}
		dependencies = append(dependencies, cdx.Dependency{Ref: c.BOMRef, Dependencies: &uses})
	}
	for _, p := range programs {
		c := cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: "program:" + p.name, Name: p.name}
		if license := licenseOf(p.name); license != "" {
			c.Licenses = &cdx.Licenses{{Expression: license}}
		}
		built(c, p.sha256, goModules(p.info))
	}
	for _, m := range modules {
		var parts []cdx.Component
		for _, c := range m.crates {
			parts = append(parts, crateComponents(c)...)
		}
		built(cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: "module:" + m.name, Name: m.name}, m.sha256, parts)
	}
	dependencies = append([]cdx.Dependency{{Ref: subject.BOMRef, Dependencies: &top}}, dependencies...)
	bom.Components, bom.Dependencies = &components, &dependencies
	bom.SerialNumber = serialNumber(components, name, version)
	return bom
}

// debComponent describes a package under its package URL of type deb, which vulnerability scanners match by.
func debComponent(p debPackage, suite string) cdx.Component {
	q := url.Values{"arch": {p.arch}, "distro": {"debian-" + bases[suite].release}}
	purl := "pkg:deb/debian/" + purlEscape(p.name) + "@" + purlEscape(p.version) + "?" + q.Encode()
	return cdx.Component{
		Type: cdx.ComponentTypeLibrary, BOMRef: purl, Name: p.name, Version: p.version, PackageURL: purl,
		Properties: &[]cdx.Property{
			{Name: "debian:source", Value: p.source},
			{Name: "debian:source-version", Value: p.sourceVersion},
		},
	}
}

// goModules describes the standard library and the modules of a program, replacements as what they were replaced by.
// The main module is the program itself.
func goModules(info *buildinfo.BuildInfo) []cdx.Component {
	modules := []cdx.Component{goComponent("stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		switch {
		case m.Replace == nil:
			modules = append(modules, goComponent(m.Path, m.Version))
		case m.Replace.Version == "", m.Replace.Version == "(devel)": // by a folder, which is the module as it is there
			modules = append(modules, goComponent(m.Path, ""))
		default:
			modules = append(modules, goComponent(m.Replace.Path, m.Replace.Version))
		}
	}
	return modules
}

func goComponent(path, version string) cdx.Component {
	purl := "pkg:golang/" + path
	if version != "" { // a module replaced by a folder has none
		purl += "@" + purlEscape(version)
	}
	return cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: purl, Name: path, Version: version, PackageURL: purl}
}

// crateComponents describes a crate, and the C library whose sources it carries: by convention the crate's version names
// that behind a plus sign, as in 0.11.0+liboqs-0.13.0; a specification, as in 1.2.1+spec-1.1.0, is none.
func crateComponents(c crate) []cdx.Component {
	purl := "pkg:cargo/" + c.Name + "@" + purlEscape(c.Version)
	component := cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: purl, Name: c.Name, Version: c.Version, PackageURL: purl}
	if c.SHA256 != "" {
		component.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: c.SHA256}}
	}
	if c.License != "" {
		component.Licenses = &cdx.Licenses{{Expression: c.License}}
	}
	_, carried, _ := strings.Cut(c.Version, "+")
	name, version, ok := strings.Cut(carried, "-")
	if !ok || name == "spec" {
		return []cdx.Component{component}
	}
	purl = "pkg:generic/" + name + "@" + purlEscape(version)
	return []cdx.Component{component, {Type: cdx.ComponentTypeLibrary, BOMRef: purl, Name: name, Version: version, PackageURL: purl}}
}

// purlEscape escapes a name or a version as the package URL specification asks: "+" is percent-encoded, ":" is not.
func purlEscape(v string) string { return strings.ReplaceAll(url.QueryEscape(v), "%3A", ":") }

// serialNumber derives the document's UUID (RFC 9562, version 8) from its content.
func serialNumber(components []cdx.Component, name, version string) string {
	h := sha256.New()
	fmt.Fprintln(h, name, version)
	for _, c := range components {
		fmt.Fprintln(h, c.BOMRef, c.Version)
		if c.Hashes != nil {
			fmt.Fprintln(h, *c.Hashes)
		}
	}
	u := h.Sum(nil)[:16]
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// encode writes a document as indented CycloneDX 1.6 JSON.
func encode(bom *cdx.BOM) ([]byte, error) {
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return out.Bytes(), err
}

// packageList is the plain form of the same: "name version" lines, as packages.txt holds them.
func packageList(packages []debPackage, programs []goProgram, modules []rustModule) []byte {
	var out bytes.Buffer
	for _, p := range packages {
		fmt.Fprintf(&out, "%s %s\n", p.name, p.version)
	}
	for _, p := range programs {
		fmt.Fprintf(&out, "%s %s sha256:%s\n", p.name, p.info.GoVersion, p.sha256)
	}
	for _, m := range modules {
		fmt.Fprintf(&out, "%s sha256:%s\n", m.name, m.sha256)
		for _, c := range m.crates {
			fmt.Fprintf(&out, "%s %s\n", c.Name, c.Version)
		}
	}
	return out.Bytes()
}
