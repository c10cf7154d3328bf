package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestGoInTheRootSeesNothingElseOfTheEnvironment(t *testing.T) {
	env := goEnvironment(
		[]string{"HTTPS_PROXY=http://proxy", "https_proxy=http://proxy", "GOFLAGS=-mod=mod", "CGO_CFLAGS=-I/elsewhere", "QTLS_TEST_HANDSHAKES=5", "HOME=/somebody"},
		map[string]string{"GOROOT": "/go"},
	)
	for _, want := range []string{"HTTPS_PROXY=http://proxy", "https_proxy=http://proxy", "QTLS_TEST_HANDSHAKES=5", "HOME=/tmp", "GOROOT=/go", "PATH=/go/bin:/usr/sbin:/usr/bin:/sbin:/bin"} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is not in %q", want, env)
		}
	}
	for _, v := range env {
		if strings.HasPrefix(v, "CGO_CFLAGS=") || v == "GOFLAGS=-mod=mod" || v == "HOME=/somebody" {
			t.Errorf("%s reaches it", v)
		}
	}
}

// What k6/ imports of the root module is part of the program's key.
func TestTheKeyOfK6CoversWhatItImports(t *testing.T) {
	imports := regexp.MustCompile(`"qtls\.dev/qtls/(internal/[^"]+)"`)
	root := filepath.Join("..", "..")
	used := map[string]bool{}
	var look func(dir string)
	look = func(dir string) {
		files, err := goSources(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(filepath.Join(root, dir, f))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range imports.FindAllStringSubmatch(string(text), -1) {
				if strings.HasSuffix(f, ".go") && !used[m[1]] {
					used[m[1]] = true
					look(m[1])
				}
			}
		}
	}
	look(k6Module)
	if got := sortedKeys(used); !slices.Equal(got, programs["qtls-k6"].uses) {
		t.Errorf("k6/ imports %q, the catalogue says %q", got, programs["qtls-k6"].uses)
	}
}
