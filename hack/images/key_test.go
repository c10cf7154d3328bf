package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// tree writes files, by relative path, into a new folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestKeyPartsDoNotRunIntoEachOther(t *testing.T) {
	keys := []key{
		newKey("k").sum(),
		newKey("k").text("a", "bc").sum(),
		newKey("k").text("ab", "c").sum(),
		newKey("k").text("a", "b").text("c", "").sum(),
		newKey("k").text("a", "b\n1:c=0:").sum(),
		newKey("l").text("a", "bc").sum(),
	}
	slices.Sort(keys)
	if unique := slices.Compact(slices.Clone(keys)); len(unique) != len(keys) {
		t.Errorf("%d different keys of %d lists of parts", len(unique), len(keys))
	}
}

func TestKeyDoesNotDependOnTheOrderOfArguments(t *testing.T) {
	a := newKey("k").args("arg", map[string]string{"A": "1", "B": "2"}).sum()
	b := newKey("k").text("arg A", "1").text("arg B", "2").sum()
	if a != b {
		t.Error("arguments are not taken in the order of their names")
	}
}

func TestKeyOfFilesCoversNameContentAndMode(t *testing.T) {
	keyOf := func(dir string) key {
		b := newKey("k")
		if err := b.files(dir, folderFiles); err != nil {
			t.Fatal(err)
		}
		return b.sum()
	}
	plain := tree(t, map[string]string{"Dockerfile": "FROM scratch"})
	executable := tree(t, map[string]string{"Dockerfile": "FROM scratch"})
	if keyOf(plain) != keyOf(executable) {
		t.Error("the key depends on where the folder is")
	}
	if err := os.Chmod(filepath.Join(executable, "Dockerfile"), 0o755); err != nil {
		t.Fatal(err)
	}
	for what, dir := range map[string]string{
		"mode":    executable,
		"content": tree(t, map[string]string{"Dockerfile": "FROM debian"}),
		"name":    tree(t, map[string]string{"Containerfile": "FROM scratch"}),
		"number":  tree(t, map[string]string{"Dockerfile": "FROM scratch", "more": ""}),
	} {
		if keyOf(dir) == keyOf(plain) {
			t.Errorf("another %s of files gives the same key", what)
		}
	}
}

func TestFilesOfAnImagesFolder(t *testing.T) {
	dir := tree(t, map[string]string{"Dockerfile": "", "main.go": "", "README.md": "", "openssl.cnf": "", ".hidden/x": ""})
	got, err := folderFiles(dir)
	if want := []string{"Dockerfile", "openssl.cnf"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
}

func TestSourcesOfAProgramAreWhatTheCompilerMayRead(t *testing.T) {
	dir := tree(t, map[string]string{
		"go.mod": "", "go.sum": "", "README.md": "",
		"cmd/agent/main.go": "", "cmd/agent/main_test.go": "", "cmd/agent/testdata/x": "",
		"cmd/agent/files/embedded.txt": "",
		"docs/index.md":                "",
		"hack/tool/go.mod":             "", "hack/tool/main.go": "",
		"crypto/target/x.go": "", ".git/x.go": "",
	})
	got, err := goSources(dir)
	want := []string{"cmd/agent/files/embedded.txt", "cmd/agent/main.go", "go.mod", "go.sum"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
}
