package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestProviderKeyCoversToolchainAndSources(t *testing.T) {
	keyOf := func(toolchain key, files map[string]string) key {
		t.Helper()
		k, err := oqsprovider.key(toolchain, tree(t, files))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	sources := map[string]string{
		"Cargo.toml": "a", "Cargo.lock": "b", "algorithms.csv": "c", ".cargo/config.toml": "d",
		"provider/Cargo.toml": "e", "provider/build.rs": "f", "provider/src/lib.rs": "g", "provider/src/der.rs": "h",
	}
	k := keyOf("t", sources)
	if k != keyOf("t", sources) {
		t.Error("equal inputs give different keys")
	}
	if k == keyOf("u", sources) {
		t.Error("another toolchain gives the same key")
	}
	for name := range sources {
		changed := maps.Clone(sources)
		changed[name] = "changed"
		if k == keyOf("t", changed) {
			t.Errorf("another %s gives the same key", name)
		}
	}
	for what, name := range map[string]string{
		"what cargo left behind":           "target/release/liboqsprovider.so",
		"another crate":                    "handshake/src/main.rs",
		"another crate's manifest":         "handshake/Cargo.toml",
		"tests of the module":              "provider/tests/tls.rs",
		"unit tests":                       "provider/src/tests/kem.rs",
		"unit tests of one source":         "provider/src/primitives/fast/tests.rs",
		"what tests compare with":          "provider/testdata/smaugt128.rsp",
		"documentation":                    "README.md",
		"documentation of what tests read": "provider/testdata/README.md",
	} {
		more := maps.Clone(sources)
		more[name] = "added"
		if k != keyOf("t", more) {
			t.Errorf("the key depends on %s: %s", what, name)
		}
	}
}

// What has a test's name must be a test, or a change of it would not reach the images.
func TestWhatTheProvidersKeyLeavesOutIsNoneOfItsCode(t *testing.T) {
	root, err := repositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "crypto")
	files, err := providerSources(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile(filepath.Join(dir, "provider", "Cargo.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`.*\bpath *= *".*`).Find(manifest); m != nil {
		t.Errorf("provider/Cargo.toml: %s: the key leaves that crate out", m)
	}
	// A module in a file of its own, or a file that is compiled in, with the line before.
	uses := regexp.MustCompile(`(?m)^(.*)\n.*(\bmod tests;|include\w*!\(.*(?:\.md|tests|testdata|handshake)\b.*)$`)
	found := 0
	for _, f := range files {
		if filepath.Ext(f) != ".rs" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range uses.FindAllStringSubmatch(string(text), -1) {
			found++
			if m[1] != "#[cfg(test)]" {
				t.Errorf("%s: %s is compiled into the provider, and the key leaves it out", f, m[2])
			}
		}
	}
	if found < 2 {
		t.Errorf("%d modules of unit tests, want those of lib.rs and primitives/fast.rs at least", found)
	}
}

func TestTheProviderIsFoundUnderThePlatformsName(t *testing.T) {
	dir := tree(t, map[string]string{"out/usr/lib/aarch64-linux-gnu/ossl-modules/oqsprovider.so": "", "crates.json": "[]"})
	p, ok := oqsprovider.find(dir)
	if want := filepath.Join(dir, "out/usr/lib/aarch64-linux-gnu/ossl-modules/oqsprovider.so"); !ok || p.module != want || p.dir != dir {
		t.Errorf("got %+v, %t", p, ok)
	}
	if p, ok := oqsprovider.find(t.TempDir()); ok {
		t.Errorf("found in an empty folder: %+v", p)
	}
}

// Two checkouts share a cache: what one compiles must not take away what the other's tests run.
func TestAProviderStaysForADayAfterItsLastUse(t *testing.T) {
	b := &builder{cache: newCache(t)}
	const module = "out/usr/lib/x86_64-linux-gnu/ossl-modules/oqsprovider.so"
	aged := func(k key, age time.Duration) {
		t.Helper()
		dir := b.path("provider", k.short())
		at := time.Now().Add(-age)
		if err := errors.Join(
			os.MkdirAll(filepath.Join(dir, filepath.Dir(module)), 0o755),
			writeFiles(dir, map[string][]byte{module: nil}),
			os.Chtimes(dir, at, at),
		); err != nil {
			t.Fatal(err)
		}
	}
	own, theirs, used, former := newKey("own").sum(), newKey("theirs").sum(), newKey("used").sum(), newKey("former").sum()
	aged(own, 48*time.Hour)
	aged(theirs, 23*time.Hour)
	aged(used, 48*time.Hour)
	aged(former, 25*time.Hour)
	if _, ok := b.cached(oqsprovider, used); !ok {
		t.Fatal("a provider in the cache is not found")
	}
	if _, ok := b.cached(oqsprovider, newKey("none").sum()); ok {
		t.Error("one that is not there is found")
	}
	if err := removeUnused(b.path("provider"), "", own.short()); err != nil {
		t.Fatal(err)
	}
	for what, k := range map[string]key{"its own": own, "one of yesterday": theirs, "an old one that is in use": used} {
		if _, ok := oqsprovider.find(b.path("provider", k.short())); !ok {
			t.Errorf("%s is gone", what)
		}
	}
	if _, ok := oqsprovider.find(b.path("provider", former.short())); ok {
		t.Error("what nobody used for a day is still there")
	}
	b.fresh = true
	if _, ok := b.cached(oqsprovider, used); ok {
		t.Error("-fresh uses the cache")
	}
}

const cargoLock = `# This file is automatically @generated by Cargo.
# It is not intended for manual editing.
version = 4

[[package]]
name = "kpqc"
version = "0.2.1"
source = "registry+https://github.com/rust-lang/crates.io-index"
checksum = "fff5"
dependencies = [
 "zeroize",
]

[[package]]
name = "oqsprovider"
version = "0.1.0"
dependencies = [
 "kpqc",
 "shlex 1.3.0",
]

[[package]]
name = "shlex"
version = "1.3.0"
checksum = "1300"

[[package]]
name = "shlex"
version = "2.0.1"
checksum = "2001"
`

func TestCargoLockGivesChecksums(t *testing.T) {
	want := map[crateID]string{{"kpqc", "0.2.1"}: "fff5", {"shlex", "1.3.0"}: "1300", {"shlex", "2.0.1"}: "2001"}
	if got, err := parseCargoLock([]byte(cargoLock)); err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
	for _, text := range []string{"", strings.Replace(cargoLock, "version = 4", "version = 5", 1)} {
		if got, err := parseCargoLock([]byte(text)); err == nil || !strings.Contains(err.Error(), "Cargo.lock") {
			t.Errorf("an unknown format gives %v, %v", got, err)
		}
	}
}

func TestCratesAreThoseWhoseCodeIsInTheLibrary(t *testing.T) {
	metadata, err := os.ReadFile("testdata/metadata.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := linkedCrates(metadata, "oqsprovider", map[crateID]string{{"kpqc", "0.2.1"}: "fff5"})
	// Neither the workspace's own, nor what builds (cmake), tests (hex) or generates code (derive, and syn below it).
	want := []crate{{"kpqc", "0.2.1", "MIT", "fff5"}, {"oqs-sys", "0.11.0+liboqs-0.13.0", "MIT OR Apache-2.0", ""}, {"zeroize", "1.9.1", "Apache-2.0 OR MIT", ""}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got  %v (%v)\nwant %v", got, err, want)
	}
	if _, err := linkedCrates(metadata, "other", nil); err == nil || !strings.Contains(err.Error(), "no package makes a cdylib other") {
		t.Errorf("a library that nothing makes: %v", err)
	}
	if _, err := linkedCrates([]byte("error: no such command"), "oqsprovider", nil); err == nil {
		t.Error("text passes for metadata")
	}
}
