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

// importsOfK6 are the packages of the root module that k6/ is linked with.
func importsOfK6(t *testing.T) []string {
	t.Helper()
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
	return sortedKeys(used)
}

// What k6/ imports of the root module is part of the program's key.
func TestTheKeyOfK6CoversWhatItImports(t *testing.T) {
	if got := importsOfK6(t); !slices.Equal(got, programs["qtls-k6"].uses) {
		t.Errorf("k6/ imports %q, the catalogue says %q", got, programs["qtls-k6"].uses)
	}
}

// Who gets the image has to be told of all that is in the program, under the AGPL-3.0 as a whole.
func TestTheNoticeOfK6NamesWhatItIsLinkedWith(t *testing.T) {
	linked := importsOfK6(t)
	for _, path := range []string{"images/k6/NOTICE", "k6/README.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", path))
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile(`internal/[a-z/]*[a-z]`).FindAllString(string(text), -1)
		slices.Sort(named)
		if named = slices.Compact(named); !slices.Equal(named, linked) {
			t.Errorf("%s names %q, k6/ is linked with %q", path, named, linked)
		}
	}
}
