package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
)

// goFlags make the same sources give the same bytes: no paths of this machine, no state of the checkout.
var goFlags = []string{"-trimpath", "-buildvcs=false", "-ldflags=-s -w"}

// compile builds the named program, unless the cache holds it for these sources, and returns the executable's path.
func (c *cache) compile(ctx context.Context, root, name string) (string, error) {
	p, known := programs[name]
	if !known {
		return "", fmt.Errorf("the catalogue has no program %q", name)
	}
	dir := filepath.Join(root, p.module)
	if _, err := os.Stat(filepath.Join(dir, p.pkg)); err != nil {
		return "", fmt.Errorf("program %s: its sources are missing: %w", name, err)
	}
	toolchain := p.toolchain
	if toolchain == "" {
		mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
		if err != nil {
			return "", err
		}
		if toolchain, err = toolchainOf(string(mod)); err != nil {
			return "", err
		}
	}
	b := newKey("program/1").text("toolchain", toolchain).text("arch", runtime.GOARCH).text("flags", fmt.Sprint(goFlags)).
		text("package", p.pkg)
	if err := b.files(dir, goSources); err != nil {
		return "", fmt.Errorf("program %s: read its sources: %w", name, err)
	}
	path, want := c.path("bin", name), b.sum()
	if _, err := os.Stat(path); err == nil && has(path+".key", want) {
		return path, nil
	}
	cmd := command(ctx, "go", append(append([]string{"build"}, goFlags...), "-o", path, p.pkg)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN="+toolchain, "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=", "GOWORK=off")
	if err := c.logged(ctx, fmt.Sprintf("compile %s (%s)", name, toolchain), name, cmd); err != nil {
		return "", err
	}
	return path, os.WriteFile(path+".key", []byte(want), 0o644)
}

var toolchainLine = regexp.MustCompile(`(?m)^toolchain (go\S+)`)

// toolchainOf finds the toolchain line of a go.mod. It is passed on as GOTOOLCHAIN, because an environment with
// GOTOOLCHAIN=local refuses a newer toolchain line.
func toolchainOf(mod string) (string, error) {
	m := toolchainLine.FindStringSubmatch(mod)
	if m == nil {
		return "", fmt.Errorf("go.mod has no toolchain line; it names the Go release that images are built with")
	}
	return m[1], nil
}

var versionConst = regexp.MustCompile(`(?m)^const Version = "([^"]+)"`)

// projectVersion reads the constant of internal/version. Importing it would tie this module to all that the root module
// requires.
func projectVersion(root string) (string, error) {
	path := filepath.Join(root, "internal", "version", "version.go")
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	m := versionConst.FindSubmatch(source)
	if m == nil {
		return "", fmt.Errorf(`%s: no line of the form const Version = "1.2.3"`, path)
	}
	return string(m[1]), nil
}
