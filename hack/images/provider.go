package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// buildProvider is what the Dockerfiles' provider stage runs, too.
const buildProvider = `cargo build --release --locked --package oqsprovider && \
    install -D -m 644 /target/release/liboqsprovider.so "/out/usr/lib/$(gcc -print-multiarch)/ossl-modules/oqsprovider.so"`

// listCrates tells what the library is made of, on the platform that it is for.
const listCrates = `cargo metadata --quiet --locked --format-version 1 --filter-platform "$(rustc --print host-tuple)"`

// provider is the OpenSSL provider as it was built for this machine's platform.
type provider struct {
	// dir is what the Dockerfiles' provider stage leaves, below out/.
	dir string
	// module is oqsprovider.so in it, crateList the record of what it is made of.
	module, crateList string
}

// providerSources lists the files of the Rust workspace in dir that can reach the provider: all but the workspace's other
// crates, whose dependencies are in Cargo.lock, and tests, by Rust's names for them.
func providerSources(dir string) ([]string, error) {
	files, err := rustSources(dir)
	return slices.DeleteFunc(files, func(f string) bool {
		parts := strings.Split(filepath.ToSlash(f), "/")
		if len(parts) > 1 && parts[0] != "provider" && parts[0] != ".cargo" {
			return true
		}
		return filepath.Ext(f) == ".md" || slices.ContainsFunc(parts, func(name string) bool {
			return name == "tests" || name == "tests.rs" || name == "testdata"
		})
	}), err
}

// providerKey names the provider by all that it is made from: the sources lie in src.
func providerKey(t key, src string) (key, error) {
	k := newKey("provider/1").text("toolchain", string(t)).text("command", buildProvider)
	if err := k.files(src, providerSources); err != nil {
		return "", err
	}
	return k.sum(), nil
}

// provider compiles the OpenSSL provider, unless the cache holds it for these sources.
func (b *builder) provider(ctx context.Context) (provider, error) {
	src, err := b.sourceFolder()
	if err != nil {
		return provider{}, err
	}
	t, err := b.toolchain(ctx)
	if err != nil {
		return provider{}, err
	}
	k, err := providerKey(t.key, src)
	if err != nil {
		return provider{}, err
	}
	if p, ok := b.cachedProvider(k); ok {
		return p, nil
	}
	lock, err := b.lockCargo(t)
	if err != nil {
		return provider{}, err
	}
	defer lock.Close()
	copied := b.path("cargo", "src")
	if err := mirror(src, copied); err != nil {
		return provider{}, err
	}
	// What is compiled is the copy; the checkout may have changed since.
	if k, err = providerKey(t.key, copied); err != nil {
		return provider{}, err
	}
	if p, ok := b.cachedProvider(k); ok {
		return p, nil
	}
	dir := b.path("provider", k.short())
	if err := b.compileProvider(ctx, t, copied, dir); err != nil {
		return provider{}, err
	}
	p, ok := findProvider(dir)
	if !ok {
		return provider{}, fmt.Errorf("%s: no oqsprovider.so in it after a build that succeeded", dir)
	}
	return p, removeUnused(b.path("provider"), "", k.short())
}

// cachedProvider returns what the cache holds for a key, if it may be used, and notes that it is.
func (b *builder) cachedProvider(k key) (provider, bool) {
	dir := b.path("provider", k.short())
	p, ok := findProvider(dir)
	return p, ok && !b.fresh && touch(dir) == nil
}

// compileProvider compiles what lies in src into dir, which appears only when it is whole.
func (b *builder) compileProvider(ctx context.Context, t toolchain, src, dir string) error {
	part := dir + ".part"
	out := filepath.Join(part, "out")
	if err := errors.Join(os.RemoveAll(part), os.MkdirAll(out, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(part)
	build, err := b.inBuildRoot(ctx, cargoRun{toolchain: t, src: src, out: out, args: []string{"sh", "-c", buildProvider}})
	if err != nil {
		return err
	}
	if err := b.logged(ctx, "compile oqsprovider", "provider", build); err != nil {
		return err
	}
	list, err := b.inBuildRoot(ctx, cargoRun{toolchain: t, src: src, args: []string{"sh", "-c", listCrates}})
	if err != nil {
		return err
	}
	metadata, err := output(list)
	if err != nil {
		return err
	}
	lock, err := os.ReadFile(filepath.Join(src, "Cargo.lock"))
	if err != nil {
		return err
	}
	checksums, err := parseCargoLock(lock)
	if err != nil {
		return err
	}
	crates, err := linkedCrates([]byte(metadata), "oqsprovider", checksums)
	if err != nil {
		return err
	}
	record, err := json.MarshalIndent(crates, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFiles(part, map[string][]byte{"crates.json": record}); err != nil {
		return err
	}
	return replace(part, dir)
}

// findProvider returns what was built into dir. The folder that OpenSSL looks for modules in carries the platform's name.
func findProvider(dir string) (provider, bool) {
	found, err := filepath.Glob(filepath.Join(dir, "out/usr/lib/*/ossl-modules/oqsprovider.so"))
	if err != nil || len(found) != 1 {
		return provider{}, false
	}
	return provider{dir: dir, module: found[0], crateList: filepath.Join(dir, "crates.json")}, true
}

// crate is a Rust package, as it was published, whose code is in the provider.
type crate struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// License is an SPDX expression; empty when the crate names none.
	License string `json:"license,omitempty"`
	// SHA256 is that of the published archive.
	SHA256 string `json:"sha256,omitempty"`
}

func readCrates(path string) ([]crate, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var crates []crate
	if err := json.Unmarshal(content, &crates); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return crates, nil
}

// crateID tells apart what a lock file holds: several versions of a crate may be in use.
type crateID struct{ name, version string }

// parseCargoLock reads the checksums of a Cargo.lock. Cargo alone writes that file, with one key a line.
func parseCargoLock(text []byte) (map[crateID]string, error) {
	checksums := map[crateID]string{}
	var c crateID
	format := ""
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "[") { // [[package]], [metadata], ...
			c = crateID{}
		}
		name, value, ok := strings.Cut(lines.Text(), " = ")
		if !ok {
			continue
		}
		value = strings.Trim(value, `"`)
		switch {
		case name == "version" && format == "":
			format = value
		case name == "name":
			c.name = value
		case name == "version":
			c.version = value
		case name == "checksum":
			checksums[c] = value
		}
	}
	if format != "3" && format != "4" {
		return nil, fmt.Errorf("Cargo.lock: its format is %q, want version = 3 or 4", format)
	}
	return checksums, lines.Err()
}

// linkedCrates reads the output of `cargo metadata` and lists the published crates whose code gets into the library of the
// given name: no tools of the build, no tests, and no procedural macros, which the compiler runs.
func linkedCrates(metadata []byte, library string, checksums map[crateID]string) ([]crate, error) {
	type target struct {
		Name string
		Kind []string
	}
	var m struct {
		Packages []struct {
			ID, Name, Version, License string
			Source                     string // empty: one of the workspace's own
			Targets                    []target
		}
		Resolve struct {
			Nodes []struct {
				ID   string
				Deps []struct {
					Pkg      string
					DepKinds []struct{ Kind string } `json:"dep_kinds"`
				}
			}
		}
	}
	if err := json.Unmarshal(metadata, &m); err != nil {
		return nil, fmt.Errorf("cargo metadata: %w", err)
	}
	uses := map[string][]string{}
	for _, n := range m.Resolve.Nodes {
		for _, d := range n.Deps {
			for _, k := range d.DepKinds {
				if k.Kind == "" {
					uses[n.ID] = append(uses[n.ID], d.Pkg)
				}
			}
		}
	}
	linked, macros := map[string]bool{}, map[string]bool{}
	var add func(id string)
	add = func(id string) {
		if linked[id] || macros[id] {
			return
		}
		linked[id] = true
		for _, d := range uses[id] {
			add(d)
		}
	}
	root := ""
	for _, p := range m.Packages {
		for _, t := range p.Targets {
			if slices.Contains(t.Kind, "proc-macro") {
				macros[p.ID] = true
			}
			if t.Name == library && slices.Contains(t.Kind, "cdylib") {
				root = p.ID
			}
		}
	}
	if root == "" {
		return nil, fmt.Errorf("cargo metadata: no package makes a cdylib %s", library)
	}
	add(root)
	crates := []crate{}
	for _, p := range m.Packages {
		if linked[p.ID] && p.Source != "" {
			crates = append(crates, crate{
				// Before SPDX expressions, crates separated alternatives by a slash.
				p.Name, p.Version, strings.ReplaceAll(p.License, "/", " OR "), checksums[crateID{p.Name, p.Version}],
			})
		}
	}
	slices.SortFunc(crates, func(a, b crate) int {
		return strings.Compare(a.Name+" "+a.Version, b.Name+" "+b.Version)
	})
	return crates, nil
}
