package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func sampleStatus(t *testing.T) []debPackage {
	t.Helper()
	status, err := os.ReadFile("testdata/status")
	if err != nil {
		t.Fatal(err)
	}
	packages, err := parseStatus(status)
	if err != nil {
		t.Fatal(err)
	}
	return packages
}

func TestStatusGivesTheInstalledPackages(t *testing.T) {
	want := []debPackage{
		{"haproxy", "3.2.26-1", "amd64", "haproxy", "3.2.26-1"},
		{"libcrypt1", "1:4.4.38-1", "amd64", "libxcrypt", "1:4.4.38-1"},
		{"libstdc++6", "14.2.0-19+b1", "amd64", "gcc-14", "14.2.0-19"},
		{"ca-certificates", "20250419+deb13u1", "all", "ca-certificates", "20250419+deb13u1"},
	}
	if got := sampleStatus(t); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestStatusRefusesAPackageWithoutVersion(t *testing.T) {
	_, err := parseStatus([]byte("Package: a\nStatus: install ok installed\nArchitecture: amd64\n\n"))
	if err == nil || !strings.Contains(err.Error(), "without name, version or architecture") {
		t.Errorf("error %v", err)
	}
}

func TestStatusOfAnImageFromScratchIsEmpty(t *testing.T) {
	if got, err := parseStatus(nil); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestBootstrapTakesPackagesFromTheGivenMirrorsAlone(t *testing.T) {
	args := bootstrapArgs("trixie", "out.tar", aptPolicy{"http://mirror.example/debian", "http://mirror.example/security", "false"})
	var sources []string
	for _, a := range args {
		if strings.HasPrefix(a, "deb ") {
			sources = append(sources, a)
		}
	}
	want := []string{
		"deb http://mirror.example/debian trixie main",
		"deb http://mirror.example/debian trixie-updates main",
		"deb http://mirror.example/security trixie-security main",
	}
	if !slices.Equal(sources, want) {
		t.Errorf("sources %q, want %q", sources, want)
	}
	if !slices.Contains(args, `--aptopt=Acquire::Check-Valid-Until "false"`) {
		t.Errorf("the validity check is not passed on: %q", args)
	}
	if !slices.ContainsFunc(args, func(a string) bool {
		return strings.HasPrefix(a, "--customize-hook=rm ") && strings.Contains(a, "99mmdebstrap")
	}) {
		t.Errorf("the machine's apt configuration is left in the base: %q", args)
	}
}

func TestMirrorsAreSetTogetherOrNotAtAll(t *testing.T) {
	t.Setenv("DEBIAN_MIRROR", "")
	t.Setenv("DEBIAN_SECURITY_MIRROR", "")
	p, err := hostPolicy(t.Context())
	if err != nil || p.mirror != "" || p.securityMirror != "" {
		t.Errorf("got %+v, %v", p, err)
	}
	if args := bootstrapArgs("trixie", "out.tar", p); args[len(args)-1] != "out.tar" {
		t.Errorf("mmdebstrap is not left to choose Debian's own mirrors: %q", args)
	}
	t.Setenv("DEBIAN_MIRROR", "http://mirror.example/debian")
	if p, err := hostPolicy(t.Context()); err == nil {
		t.Errorf("a mirror without one for security is accepted: %+v", p)
	}
	t.Setenv("DEBIAN_SECURITY_MIRROR", "http://mirror.example/security")
	if p, err := hostPolicy(t.Context()); err != nil || p.mirror != "http://mirror.example/debian" || p.securityMirror != "http://mirror.example/security" {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestBaseKeyCoversSuiteAndPolicy(t *testing.T) {
	policy := aptPolicy{"http://a.example", "http://b.example", "true"}
	other := policy
	other.mirror = "http://c.example"
	if baseKey("trixie", policy) != baseKey("trixie", policy) {
		t.Error("equal inputs give different keys")
	}
	for name, k := range map[string]key{"suite": baseKey("bookworm", policy), "mirror": baseKey("trixie", other)} {
		if k == baseKey("trixie", policy) {
			t.Errorf("another %s gives the same key", name)
		}
	}
}
