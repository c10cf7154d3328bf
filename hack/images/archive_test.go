package main

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tarOf makes a tar of files in the given order, "name content".
func tarOf(t *testing.T, files ...[2]string) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1])), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func archiveFile(t *testing.T, files ...[2]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(path, []byte(tarOf(t, files...)), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestArchiveGivesTheTopmostFileAndTheUser(t *testing.T) {
	// The order of layers is the manifest's, not that in the tar.
	path := archiveFile(t,
		[2]string{"top.tar", tarOf(t, [2]string{"etc/x", ""}, [2]string{"./var/lib/dpkg/status", "new"})},
		[2]string{"base.tar", tarOf(t, [2]string{"var/lib/dpkg/status", "old"})},
		[2]string{"last.tar", tarOf(t, [2]string{"usr/bin/qtls-agent", "elf"})},
		[2]string{"config.json", `{"config":{"User":"65532:65532"}}`},
		[2]string{"manifest.json", `[{"Config":"config.json","Layers":["base.tar","top.tar","last.tar"]}]`},
	)
	got, err := readArchive(path, "var/lib/dpkg/status")
	if err != nil || string(got.file) != "new" || got.user != "65532:65532" {
		t.Errorf("got %q, user %q, %v", got.file, got.user, err)
	}
	if got, err := readArchive(path, "var/lib/other"); err != nil || got.file != nil {
		t.Errorf("a file that no layer has: %q, %v", got.file, err)
	}
}

func TestArchiveErrorsNameTheFile(t *testing.T) {
	for name, path := range map[string]string{
		"no manifest":   archiveFile(t, [2]string{"config.json", "{}"}),
		"two images":    archiveFile(t, [2]string{"manifest.json", `[{"Config":"a.json"},{"Config":"b.json"}]`}),
		"broken layer":  archiveFile(t, [2]string{"a.tar", strings.Repeat("x", 1024)}, [2]string{"manifest.json", `[{}]`}),
		"broken config": archiveFile(t, [2]string{"manifest.json", `[{"Config":"a.json"}]`}),
		"missing":       filepath.Join(t.TempDir(), "none.tar"),
	} {
		if _, err := readArchive(path, "x"); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v does not name %s", name, err, path)
		}
	}
}

func TestSetIDFilesAreFound(t *testing.T) {
	dir := tree(t, map[string]string{"usr/bin/su": "", "usr/bin/wall": "", "usr/bin/ls": ""})
	for name, mode := range map[string]os.FileMode{"su": 0o755 | os.ModeSetuid, "wall": 0o755 | os.ModeSetgid} {
		if err := os.Chmod(filepath.Join(dir, "usr/bin", name), mode); err != nil {
			t.Fatal(err)
		}
	}
	got, err := setIDFiles(dir)
	if want := []string{"/usr/bin/su", "/usr/bin/wall"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
}
