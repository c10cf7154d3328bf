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

// rustLibrary is a library, or a program, that is compiled in the toolchain's root and kept in the cache under a key of all that it is
// made from.
type rustLibrary struct {
	// name is that of its folder in the cache, and of its log.
	name string
	// command compiles it and leaves it below /out, at a place that fits the pattern.
	command, pattern string
	// crate is its name as cargo has it, and workspace the folder of its Cargo.lock, relative to crypto.
	crate, workspace string
	// sources lists the files in crypto that can reach it.
	sources func(dir string) ([]string, error)
}

var oqsprovider = rustLibrary{
	name: "provider", crate: "oqsprovider", workspace: ".", command: buildProvider, sources: providerSources,
	pattern: "usr/lib/*/ossl-modules/oqsprovider.so", // the folder that OpenSSL looks for modules in carries the platform's name
}

// compiled is a library as it was built for this machine's platform.
type compiled struct {
	// dir is what the Dockerfiles' stage of that name leaves, below out/.
	dir string
	// module is the library in it, crateList the record of what it is made of.
	module, crateList string
}

// providerSources lists the files that can reach the provider.
func providerSources(dir string) ([]string, error) { return crateSources(dir, "provider") }

// crateSources lists the files of the Rust workspace in dir that can reach what is made of some of its crates: all but the
// other crates, whose dependencies are in Cargo.lock, Go's view of them, and tests, by Rust's names for them.
func crateSources(dir string, crates ...string) ([]string, error) {
	files, err := rustSources(dir)
	return slices.DeleteFunc(files, func(f string) bool {
		parts := strings.Split(filepath.ToSlash(f), "/")
		if len(parts) > 1 && parts[0] != ".cargo" && !slices.Contains(crates, parts[0]) {
			return true
		}
		return filepath.Ext(f) == ".md" || filepath.Ext(f) == ".go" || slices.ContainsFunc(parts, func(name string) bool {
			return name == "tests" || name == "tests.rs" || name == "testdata"
		})
	}), err
}

// key names the library by all that it is made from: the sources lie in src.
func (l rustLibrary) key(t key, src string) (key, error) {
	k := newKey(l.name+"/1").text("toolchain", string(t)).text("command", l.command)
	if err := k.files(src, l.sources); err != nil {
		return "", err
	}
	return k.sum(), nil
}

// provider compiles the OpenSSL provider, unless the cache holds it for these sources.
func (b *builder) provider(ctx context.Context) (compiled, error) { return b.library(ctx, oqsprovider) }

// library compiles a library, unless the cache holds it for these sources.
func (b *builder) library(ctx context.Context, l rustLibrary) (compiled, error) {
	src, err := b.sourceFolder()
	if err != nil {
		return compiled{}, err
	}
	t, err := b.toolchain(ctx)
	if err != nil {
		return compiled{}, err
	}
	k, err := l.key(t.key, src)
	if err != nil {
		return compiled{}, err
	}
	if p, ok := b.cached(l, k); ok {
		return p, nil
	}
	lock, err := b.lockCargo(t)
	if err != nil {
		return compiled{}, err
	}
	defer lock.Close()
	copied := b.path("cargo", "src")
	if err := mirror(src, copied); err != nil {
		return compiled{}, err
	}
	// What is compiled is the copy; the checkout may have changed since.
	if k, err = l.key(t.key, copied); err != nil {
		return compiled{}, err
	}
	if p, ok := b.cached(l, k); ok {
		return p, nil
	}
	dir := b.path(l.name, k.short())
	if err := b.compileLibrary(ctx, l, t, copied, dir); err != nil {
		return compiled{}, err
	}
	p, ok := l.find(dir)
	if !ok {
		return compiled{}, fmt.Errorf("%s: no %s in it after a build that succeeded", dir, filepath.Base(l.pattern))
	}
	return p, removeUnused(b.path(l.name), "", k.short())
}

// cached returns what the cache holds of a library for a key, if it may be used, and notes that it is.
func (b *builder) cached(l rustLibrary, k key) (compiled, bool) {
	dir := b.path(l.name, k.short())
	p, ok := l.find(dir)
	return p, ok && !b.fresh && touch(dir) == nil
}

// compileLibrary compiles what lies in src into dir, which appears only when it is whole.
func (b *builder) compileLibrary(ctx context.Context, l rustLibrary, t toolchain, src, dir string) error {
	part := dir + ".part"
	out := filepath.Join(part, "out")
	if err := errors.Join(os.RemoveAll(part), os.MkdirAll(out, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(part)
	build, err := b.inBuildRoot(ctx, cargoRun{toolchain: t, src: src, out: out, args: []string{"sh", "-c", l.command}})
	if err != nil {
		return err
	}
	if err := b.logged(ctx, "compile "+l.crate, l.name, build); err != nil {
		return err
	}
	// On the platform that it is for.
	listCrates := `cargo metadata --quiet --locked --format-version 1 --manifest-path "$0/Cargo.toml" --filter-platform "$(rustc --print host-tuple)"`
	list, err := b.inBuildRoot(ctx, cargoRun{toolchain: t, src: src, args: []string{"sh", "-c", listCrates, l.workspace}})
	if err != nil {
		return err
	}
	metadata, err := output(list)
	if err != nil {
		return err
	}
	lock, err := os.ReadFile(filepath.Join(src, l.workspace, "Cargo.lock"))
	if err != nil {
		return err
	}
	checksums, err := parseCargoLock(lock)
	if err != nil {
		return err
	}
	crates, err := linkedCrates([]byte(metadata), l.crate, checksums)
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

// find returns what was built into dir.
func (l rustLibrary) find(dir string) (compiled, bool) {
	found, err := filepath.Glob(filepath.Join(dir, "out", l.pattern))
	if err != nil || len(found) != 1 {
		return compiled{}, false
	}
	return compiled{dir: dir, module: found[0], crateList: filepath.Join(dir, "crates.json")}, true
}

// crate is a Rust package, as it was published, whose code is in a library.
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
			if t.Name == library && (slices.Contains(t.Kind, "cdylib") || slices.Contains(t.Kind, "bin")) {
				root = p.ID
			}
		}
	}
	if root == "" {
		return nil, fmt.Errorf("cargo metadata: no package makes a cdylib %s, or a program of that name", library)
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
