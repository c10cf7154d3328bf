package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// bases are the Debian releases that images start from. The date is part of the key: raise it to take in what Debian
// has published since. (Every build of a Dockerfile upgrades too; this only keeps that step short.)
var bases = map[string]struct {
	release   string // Debian's number of it
	refreshed string
	options   []string // of mmdebstrap
}{
	"trixie": {release: "13", refreshed: "2026-11-21"},
	// Without these bookworm merges /usr by a package that needs all of perl.
	"bookworm": {release: "12", refreshed: "2026-11-21", options: []string{
		"--include=usr-is-merged", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
	}},
}

// baseReference is the public name of Debian's slim image, under which the local base is stored, so that a Dockerfile
// need not know where its base came from.
func baseReference(suite string) string { return "docker.io/library/debian:" + suite + "-slim" }

// slimOptions are the dpkg options of Debian's own slim images: no documentation but the licences.
var slimOptions = []string{
	"path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright",
	"path-exclude=/usr/share/groff/*", "path-exclude=/usr/share/info/*", "path-exclude=/usr/share/linda/*",
	"path-exclude=/usr/share/lintian/*", "path-exclude=/usr/share/locale/*", "path-exclude=/usr/share/man/*",
}

// aptPolicy says where Debian packages come from, and whether an archive past its validity is accepted. Empty mirrors mean
// Debian's own.
type aptPolicy struct{ mirror, securityMirror, checkValidUntil string }

// hostPolicy reads the mirrors from the environment (DEBIAN_MIRROR, DEBIAN_SECURITY_MIRROR) and the validity check from
// the machine's own apt configuration: a machine that accepts an old archive for itself does so for the images too.
func hostPolicy(ctx context.Context) (aptPolicy, error) {
	p := aptPolicy{os.Getenv("DEBIAN_MIRROR"), os.Getenv("DEBIAN_SECURITY_MIRROR"), "true"}
	if (p.mirror == "") != (p.securityMirror == "") {
		return p, errors.New("set both DEBIAN_MIRROR and DEBIAN_SECURITY_MIRROR, or neither: one date of packages, not two")
	}
	dump, err := output(command(ctx, "apt-config", "dump", "Acquire::Check-Valid-Until"))
	if err == nil && strings.Contains(dump, `"false"`) {
		p.checkValidUntil = "false"
	}
	return p, nil
}

// args are the Dockerfiles' arguments that carry the policy.
func (p aptPolicy) args() map[string]string {
	return map[string]string{
		"DEBIAN_MIRROR": p.mirror, "DEBIAN_SECURITY_MIRROR": p.securityMirror, "CHECK_VALID_UNTIL": p.checkValidUntil,
	}
}

// bootstrapArgs are mmdebstrap's arguments for a base that equals Debian's slim image in all that matters here.
func bootstrapArgs(suite, tar string, p aptPolicy) []string {
	args := append([]string{"--variant=minbase", "--format=tar"}, bases[suite].options...)
	for _, o := range slimOptions {
		args = append(args, "--dpkgopt="+o)
	}
	args = append(args,
		"--aptopt=Acquire::Check-Valid-Until \""+p.checkValidUntil+"\"",
		// What this machine had to say to apt ends with the bootstrap.
		`--customize-hook=rm "$1/etc/apt/apt.conf.d/99mmdebstrap"`,
		suite, tar)
	if p.mirror == "" {
		return args // mmdebstrap knows Debian's own, updates and security included
	}
	for _, line := range []string{p.mirror + " " + suite, p.mirror + " " + suite + "-updates", p.securityMirror + " " + suite + "-security"} {
		args = append(args, "deb "+line+" main")
	}
	return args
}

// baseKey names the base of a suite by all that it is made from.
func baseKey(suite string, p aptPolicy) key {
	return newKey("base/1").text("refreshed", bases[suite].refreshed).
		text("options", strings.Join(bootstrapArgs(suite, "", p), "\n")).sum()
}

// base makes the Debian base image of a suite, unless storage has it.
func (c *cache) base(ctx context.Context, b *buildah, suite string, p aptPolicy, fresh bool) error {
	k, keyFile, tar := baseKey(suite, p), c.path("base", suite+".key"), c.path("base", suite+".tar")
	if !fresh && has(keyFile, k) && b.exists(ctx, baseReference(suite)) {
		return nil
	}
	defer os.Remove(tar)
	if err := c.logged(ctx, "bootstrap Debian "+suite, "bootstrap-"+suite,
		inPrivateMounts(command(ctx, "mmdebstrap", bootstrapArgs(suite, tar, p)...))); err != nil {
		return err
	}
	dockerfile := fmt.Sprintf("FROM scratch\nADD %s.tar /\nCMD [\"bash\"]\n", suite)
	if err := b.build(ctx, "import Debian "+suite, build{
		tag: baseReference(suite), dockerfile: []byte(dockerfile), context: c.path("base"),
	}); err != nil {
		return err
	}
	return os.WriteFile(keyFile, []byte(k), 0o644)
}

// debPackage is an installed Debian package.
type debPackage struct{ name, version, arch, source, sourceVersion string }

// parseStatus reads dpkg's status file (deb822 stanzas, deb-control(5)) and returns the installed packages in its order.
func parseStatus(status []byte) ([]debPackage, error) {
	var packages []debPackage
	fields := map[string]string{}
	flush := func() error {
		defer clear(fields)
		if len(fields) == 0 || !strings.HasSuffix(fields["Status"], " installed") {
			return nil
		}
		p := debPackage{name: fields["Package"], version: fields["Version"], arch: fields["Architecture"]}
		if p.name == "" || p.version == "" || p.arch == "" {
			return fmt.Errorf("dpkg status: an installed package without name, version or architecture: %q", fields)
		}
		p.source, p.sourceVersion = p.name, p.version
		if source := strings.Fields(fields["Source"]); len(source) > 0 {
			p.source = source[0]
			if len(source) > 1 {
				p.sourceVersion = strings.Trim(source[1], "()")
			}
		}
		packages = append(packages, p)
		return nil
	}
	lines := bufio.NewScanner(bytes.NewReader(status))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			if err := flush(); err != nil {
				return nil, err
			}
			continue
		}
		// A line that begins with white space continues a field; no field of interest has one.
		if name, value, ok := strings.Cut(line, ":"); ok && line[0] != ' ' && line[0] != '\t' {
			fields[name] = strings.TrimSpace(value)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("dpkg status: %w", err)
	}
	return packages, flush()
}
