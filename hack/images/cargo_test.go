package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const stagesOfADockerfile = `# A comment.
FROM docker.io/library/debian:trixie-slim AS toolchain
# Why so.
RUN apt-get install cargo

FROM toolchain AS provider
RUN cargo build

FROM docker.io/library/debian:trixie-slim AS system
COPY --from=provider /out/ /
`

func TestAStageIsCutOutOfADockerfile(t *testing.T) {
	got, err := dockerfileStage(stagesOfADockerfile, "toolchain")
	if want := "FROM docker.io/library/debian:trixie-slim AS toolchain\nRUN apt-get install cargo\n\n"; err != nil || got != want {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
	if _, err := dockerfileStage(stagesOfADockerfile, "build"); err == nil || !strings.Contains(err.Error(), "AS build") {
		t.Errorf("a stage that is not there: %v", err)
	}
}

func TestToolchainKeyCoversStageAndBase(t *testing.T) {
	policy, other := aptPolicy{checkValidUntil: "true"}, aptPolicy{checkValidUntil: "false"}
	k := toolchainKey("FROM a\n", policy)
	if k != toolchainKey("FROM a\n", policy) {
		t.Error("equal inputs give different keys")
	}
	for what, another := range map[string]key{"stage": toolchainKey("FROM b\n", policy), "base": toolchainKey("FROM a\n", other)} {
		if another == k {
			t.Errorf("another %s gives the same key", what)
		}
	}
}

func TestSourcesOfTheRustWorkspace(t *testing.T) {
	dir := tree(t, map[string]string{
		"Cargo.toml": "", "Cargo.lock": "", "algorithms.csv": "", "provider/src/lib.rs": "", "provider/tests/testdata/kat.rsp": "",
		".cargo/config.toml": "", ".git/x": "", ".idea/x": "", "target/release/x": "", "provider/target/x": "",
	})
	got, err := rustSources(dir)
	want := []string{".cargo/config.toml", "Cargo.lock", "Cargo.toml", "algorithms.csv", "provider/src/lib.rs", "provider/tests/testdata/kat.rsp"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
}

// Cargo compiles anew what is younger than the last build. Another checkout's files may be older than that and differ.
func TestOfACopyOnlyWhatChangedIsYoung(t *testing.T) {
	long := time.Now().Add(-time.Hour)
	age := func(path string) {
		t.Helper()
		if err := os.Chtimes(path, long, long); err != nil {
			t.Fatal(err)
		}
	}
	young := func(path string) bool {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime().After(long.Add(time.Minute))
	}
	first := tree(t, map[string]string{"same.rs": "same", "changed.rs": "one", "removed.rs": ""})
	copied := filepath.Join(t.TempDir(), "src")
	if err := mirror(first, copied); err != nil {
		t.Fatal(err)
	}
	second := tree(t, map[string]string{"same.rs": "same", "changed.rs": "two", "deep/new.rs": "new"})
	for _, path := range []string{filepath.Join(copied, "same.rs"), filepath.Join(copied, "changed.rs"), filepath.Join(second, "changed.rs")} {
		age(path)
	}
	if err := mirror(second, copied); err != nil {
		t.Fatal(err)
	}
	got, err := rustSources(copied)
	if want := []string{"changed.rs", "deep/new.rs", "same.rs"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("the copy has %q (%v), want %q", got, err, want)
	}
	if content, err := os.ReadFile(filepath.Join(copied, "changed.rs")); err != nil || string(content) != "two" {
		t.Errorf("a changed file holds %q, %v", content, err)
	}
	if !young(filepath.Join(copied, "changed.rs")) {
		t.Error("a changed file has the time stamp of the checkout: cargo would not compile it")
	}
	if young(filepath.Join(copied, "same.rs")) {
		t.Error("an unchanged file has a new time stamp: cargo would compile it again")
	}
}

func TestCargoSeesOfTheEnvironmentHowToReachTheRegistryAlone(t *testing.T) {
	env := cargoEnvironment([]string{
		"https_proxy=http://proxy.example:3128", "NO_PROXY=.example", "RUST_BACKTRACE=1", "QTLS_FUZZ_TIME=1s",
		"RUSTFLAGS=-Ctarget-cpu=native", "OPENSSL_CONF=/etc/own.cnf", "CFLAGS=-march=native", "HOME=/elsewhere",
	})
	for _, want := range []string{"https_proxy=http://proxy.example:3128", "NO_PROXY=.example", "RUST_BACKTRACE=1", "QTLS_FUZZ_TIME=1s", "HOME=/cargo"} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is not in %q", want, env)
		}
	}
	for _, v := range env {
		if strings.Contains(v, "native") || strings.Contains(v, "own.cnf") || strings.Contains(v, "elsewhere") {
			t.Errorf("%s gets in", v)
		}
	}
}

func TestWithoutTheRustWorkspaceTheErrorNamesIt(t *testing.T) {
	b := &builder{cache: newCache(t), root: tree(t, map[string]string{"go.mod": ""})}
	want := filepath.Join(b.root, "crypto", "Cargo.toml")
	if _, err := b.provider(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s in it", err, want)
	}
}
