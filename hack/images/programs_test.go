package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// hello puts a program into the table for one test and returns the root of its repository.
func hello(t *testing.T) string {
	t.Helper()
	programs["hello"] = program{module: "hello", pkg: ".", toolchain: runtime.Version()}
	t.Cleanup(func() { delete(programs, "hello") })
	return tree(t, map[string]string{
		"hello/go.mod": "module hello\n\ngo 1.27\n", "hello/main.go": "package main\n\nfunc main() { println(\"one\") }\n",
	})
}

func TestCompilesAStaticProgramOncePerSources(t *testing.T) {
	c, root := newCache(t), hello(t)
	source := filepath.Join(root, "hello", "main.go")

	path, err := c.compile(t.Context(), root, "hello")
	if err != nil {
		t.Fatal(err)
	}
	if err := static(path); err != nil {
		t.Error(err)
	}
	says := func() string {
		out, err := exec.Command(path).CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	if got := says(); got != "one" {
		t.Errorf("it says %q", got)
	}

	// Unchanged sources: the executable stays as it is.
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho cached\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := c.compile(t.Context(), root, "hello"); err != nil {
		t.Fatal(err)
	}
	if got := says(); got != "cached" {
		t.Errorf("compiled again though nothing changed: it says %q", got)
	}

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println(\"two\") }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.compile(t.Context(), root, "hello"); err != nil {
		t.Fatal(err)
	}
	if got := says(); got != "two" {
		t.Errorf("after a change it says %q", got)
	}
}

func TestAProgramThatDoesNotCompileShowsTheCompilersWords(t *testing.T) {
	c, root := newCache(t), hello(t)
	if err := os.WriteFile(filepath.Join(root, "hello", "main.go"), []byte("package main\n\nfunc main() { x }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.compile(t.Context(), root, "hello"); err == nil || !strings.Contains(err.Error(), "undefined: x") {
		t.Errorf("error %v, want the compiler's message", err)
	}
	if err := os.RemoveAll(filepath.Join(root, "hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.compile(t.Context(), root, "hello"); err == nil || !strings.Contains(err.Error(), "hello: its sources are missing") {
		t.Errorf("error %v, want one about missing sources", err)
	}
}
