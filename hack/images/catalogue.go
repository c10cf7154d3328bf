package main

import (
	"fmt"
	"slices"
	"strings"
)

// registry is the prefix under which releases are published; a local build carries the same names, so that charts and
// samples need no other.
const registry = "ghcr.io/qtls-dev/"

// image is one line of the catalogue: one image that this program builds.
type image struct {
	// id names the image on the command line.
	id string
	// folder, below images/, holds the Dockerfile. Besides the build stage's output a Dockerfile copies from its own
	// folder only: this folder is what the image's key covers.
	folder string
	// tag is empty for an image that carries the project's version.
	tag string
	// suite is the Debian release below the image; empty for one made from scratch.
	suite string
	// binaries are the programs, by name, that the Dockerfile takes from its build stage.
	binaries []string
	// libraries, and programs, compiled from Rust that the image carries. Each has a stage of its name in the Dockerfile.
	libraries []rustLibrary
	// shows are the Debian packages worth a line in the summary.
	shows []string
}

var catalogue = []image{
	{
		id: "gateway", folder: "gateway", suite: "trixie", libraries: []rustLibrary{oqsprovider, pkcs11},
		binaries: []string{"qtls-agent"},
		shows:    []string{"haproxy", "libssl3t64", "pkcs11-provider"},
	},
	{
		id: "operator", folder: "operator", suite: "trixie", libraries: []rustLibrary{oqsprovider},
		binaries: []string{"qtls-operator"},
		shows:    []string{"openssl"},
	},
	{
		id: "redis", folder: "redis", suite: "trixie",
		shows: []string{"valkey-server", "libssl3t64"},
	},
	{
		id: "hsm", folder: "hsm", suite: "trixie", libraries: []rustLibrary{hsmd, kryoptic},
		shows: []string{"libssl3t64"},
	},
	{
		id: "k6", folder: "k6", suite: "trixie", libraries: []rustLibrary{oqsprovider},
		binaries: []string{"qtls-k6"},
		shows:    []string{"libssl3t64"},
	},
	{
		id: "client-trixie", folder: "client", tag: "trixie", suite: "trixie", libraries: []rustLibrary{oqsprovider},
		binaries: []string{"qtls-probe-go1.26", "qtls-probe-go1.27"},
		shows:    []string{"openssl", "curl"},
	},
	{
		id: "client-bookworm", folder: "client", tag: "bookworm", suite: "bookworm",
		binaries: []string{"qtls-probe-go1.26", "qtls-probe-go1.27"},
		shows:    []string{"openssl", "curl"},
	},
	{
		id: "nginx", folder: "nginx", suite: "trixie",
		shows: []string{"nginx", "libssl3t64"},
	},
	{
		id: "echo", folder: "echo",
		binaries: []string{"qtls-echo"},
	},
}

// program says how one static Go executable is built.
type program struct {
	// module is the folder of the Go module, relative to the root of the repository.
	module string
	// pkg is the package in that module.
	pkg string
	// toolchain overrides the one that the root module names.
	toolchain string
	// linked says that it is linked with Debian's libraries, in the toolchain's root; uses are folders of the root module
	// that it imports.
	linked bool
	uses   []string
	// license is the SPDX identifier where it is not the project's own, and licenseOf the Go module whose LICENSE.md goes
	// with the program.
	license, licenseOf string
}

var programs = map[string]program{
	"qtls-agent":        {module: ".", pkg: "./cmd/qtls-agent"},
	"qtls-operator":     {module: ".", pkg: "./cmd/qtls-operator"},
	"qtls-echo":         {module: ".", pkg: "./images/echo"},
	"qtls-probe-go1.26": {module: "e2e/probe", pkg: ".", toolchain: "go1.26.8"},
	"qtls-probe-go1.27": {module: "e2e/probe", pkg: ".", toolchain: "go1.27.4"},
	"qtls-k6": {
		module: k6Module, pkg: ".", linked: true, uses: []string{"internal/bench/load", "internal/bench/session", "internal/bench/shard", "internal/cgroup", "internal/machine"},
		license: "AGPL-3.0-only", licenseOf: "go.k6.io/k6/v2",
	},
}

// licenseOf is a program's license where it is not the project's own.
func licenseOf(program string) string { return programs[program].license }

// name is the image's full name without its tag.
func (i image) name() string { return registry + "qtls-" + i.folder }

// reference is the image's full name and tag.
func (i image) reference(version string) string {
	if i.tag != "" {
		return i.name() + ":" + i.tag
	}
	return i.name() + ":" + version
}

// carries says whether the image carries a library.
func (i image) carries(name string) bool {
	return slices.ContainsFunc(i.libraries, func(l rustLibrary) bool { return l.name == name })
}

// buildArgs are the Dockerfile's arguments that are the image's own.
func (i image) buildArgs() map[string]string {
	if i.folder == "client" {
		return map[string]string{"DEBIAN": i.suite}
	}
	return nil
}

// selectImages finds the images that the words name: an id, or a folder, which stands for all images built from it.
// No words mean all images.
func selectImages(words []string) ([]image, error) {
	if len(words) == 0 {
		return catalogue, nil
	}
	for _, word := range words {
		if !slices.ContainsFunc(catalogue, func(i image) bool { return i.id == word || i.folder == word }) {
			return nil, fmt.Errorf("no image %q: there are %s", word, strings.Join(ids(), ", "))
		}
	}
	var found []image
	for _, i := range catalogue {
		if slices.Contains(words, i.id) || slices.Contains(words, i.folder) {
			found = append(found, i)
		}
	}
	return found, nil
}

func ids() []string {
	var all []string
	for _, i := range catalogue {
		all = append(all, i.id)
	}
	return all
}
