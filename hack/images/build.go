package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// builder makes images out of one checkout.
type builder struct {
	*cache
	buildah *buildah
	root    string // of the repository
	version string
	policy  aptPolicy
	fresh   bool // ignore what is cached of Debian packages
	// refreshed says that the toolchain has been made anew already.
	refreshed bool
}

// inputs is all that an image is made from.
type inputs struct {
	dockerfile []byte
	args       map[string]string
	programs   []string // paths of executables
	libraries  []compiled
	// system covers what lies below the programs, image the whole.
	system, image key
}

// systemInputs gathers what an image is made from, but for its programs.
func (b *builder) systemInputs(i image) (inputs, error) {
	var in inputs
	folder := filepath.Join(b.root, "images", i.folder)
	var err error
	if in.dockerfile, err = os.ReadFile(filepath.Join(folder, "Dockerfile")); err != nil {
		return in, err
	}
	in.args = i.buildArgs()
	k := newKey("system/2").text("image", i.id).args("arg", in.args)
	if i.suite != "" {
		args := b.policy.args()
		maps.Copy(args, in.args)
		in.args = args
		// The base in storage is made when it is needed; its key needs no build.
		k.text("base", string(baseKey(i.suite, b.policy)))
	}
	if err := k.files(folder, folderFiles); err != nil {
		return in, err
	}
	in.system = k.sum()
	return in, nil
}

// inputs gathers all that an image is made from, compiling its programs.
func (b *builder) inputs(ctx context.Context, i image, libraries []compiled) (inputs, error) {
	in, err := b.systemInputs(i)
	if err != nil {
		return in, err
	}
	in.libraries = libraries
	k := newKey("image/1").text("system", string(in.system)).text("reference", i.reference(b.version))
	for _, name := range i.binaries {
		path, err := b.compile(ctx, b.root, name)
		if err != nil {
			return in, err
		}
		if err := k.file(name, path); err != nil {
			return in, err
		}
		in.programs = append(in.programs, path)
	}
	for n, l := range i.libraries {
		if err := errors.Join(k.file(l.name, libraries[n].module), k.file("crates", libraries[n].crateList)); err != nil {
			return in, err
		}
	}
	in.image = k.sum()
	return in, nil
}

// build returns the image, building it unless the cache holds it for these inputs.
func (b *builder) build(ctx context.Context, i image) (result, error) {
	var libraries []compiled
	for _, l := range i.libraries {
		c, err := b.library(ctx, l)
		if err != nil {
			return result{}, err
		}
		libraries = append(libraries, c)
	}
	if err := b.lock(); err != nil {
		return result{}, err
	}
	in, err := b.inputs(ctx, i, libraries)
	if err != nil {
		return result{}, err
	}
	dir := b.path(i.id, in.image.short())
	if r, ok := readResult(dir); ok && !b.fresh {
		return r, link(in.image.short(), b.path(i.id, "current"))
	}
	if err := requireCommands("buildah", "mmdebstrap"); err != nil {
		return result{}, err
	}
	stage, err := b.stage(in.programs)
	if err != nil {
		return result{}, err
	}
	defer os.RemoveAll(stage)
	stages := map[string]string{"build": stage}
	for n, l := range i.libraries {
		stages[l.name] = libraries[n].dir
	}
	if err := b.ensureBase(ctx, i); err != nil {
		return result{}, err
	}
	r := result{Reference: i.reference(b.version)}
	replaced, _ := b.buildah.id(ctx, r.Reference)
	if err := b.buildah.build(ctx, "build "+i.id, build{
		tag: r.Reference, dockerfile: in.dockerfile, context: b.root, args: in.args, fresh: b.fresh,
		stages: stages,
	}); err != nil {
		return result{}, err
	}
	if r.ID, err = b.buildah.id(ctx, r.Reference); err != nil {
		return result{}, err
	}
	if replaced != "" && replaced != r.ID {
		// Only space is lost when something still uses it.
		_ = b.buildah.remove(ctx, replaced)
	}
	r.ID = "sha256:" + r.ID
	if err := b.export(ctx, i, in, dir, &r); err != nil {
		return result{}, err
	}
	if err := link(in.image.short(), b.path(i.id, "current")); err != nil {
		return result{}, err
	}
	return r, b.prune(i, in.image)
}

// stage lays out executables as the Dockerfiles' build stage leaves them, below out/.
func (b *builder) stage(paths []string) (string, error) {
	dir, err := os.MkdirTemp(b.dir, "stage-")
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(filepath.Join(dir, "out"), 0o755); err != nil {
		return "", err
	}
	for _, p := range paths {
		if err := os.Link(p, filepath.Join(dir, "out", filepath.Base(p))); err != nil {
			return "", err
		}
		if programs[filepath.Base(p)].licenseOf == "" {
			continue
		}
		if err := os.Link(p+licenseSuffix, filepath.Join(dir, "out", "LICENSE")); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func (b *builder) ensureBase(ctx context.Context, i image) error {
	if i.suite == "" {
		return nil
	}
	return b.base(ctx, b.buildah, i.suite, b.policy, b.fresh)
}

// export writes an image's tar and the documents about it into dir, which appears only when it is whole, and completes
// the record.
func (b *builder) export(ctx context.Context, i image, in inputs, dir string, r *result) error {
	part := dir + ".part"
	if err := errors.Join(os.RemoveAll(part), os.MkdirAll(part, 0o755)); err != nil {
		return err
	}
	tag := strings.TrimPrefix(r.Reference, i.name()+":")
	file := filepath.Base(i.name()) + "-" + tag
	tar, sbomFile := file+".tar", file+".cdx.json"
	r.Tar, r.SBOM = filepath.Join(dir, tar), filepath.Join(dir, sbomFile)
	progress("export %s ...", i.id)
	if err := b.buildah.save(ctx, r.Reference, filepath.Join(part, tar)); err != nil {
		return err
	}
	info, err := os.Stat(filepath.Join(part, tar))
	if err != nil {
		return err
	}
	r.Size = info.Size()
	contents, err := readArchive(filepath.Join(part, tar), "var/lib/dpkg/status")
	if err != nil {
		return err
	}
	packages, err := parseStatus(contents.file)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Reference, err)
	}
	if i.suite != "" && len(packages) == 0 {
		return fmt.Errorf("%s: no dpkg status in it, so its packages cannot be told", r.Reference)
	}
	for _, p := range packages {
		if slices.Contains(i.shows, p.name) {
			r.Packages = append(r.Packages, p.name+" "+p.version)
		}
	}
	var programs []goProgram
	for _, path := range in.programs {
		p, err := readProgram(path)
		if err != nil {
			return err
		}
		programs = append(programs, p)
	}
	var modules []rustModule
	for _, l := range in.libraries {
		m, err := readModule(l)
		if err != nil {
			return err
		}
		modules = append(modules, m)
	}
	sbom, err := encode(billOfMaterials(i.name(), tag, i.suite, packages, programs, modules))
	if err != nil {
		return err
	}
	record, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFiles(part, map[string][]byte{
		sbomFile: sbom, "packages.txt": packageList(packages, programs, modules), "image.json": record,
	}); err != nil {
		return err
	}
	return replace(part, dir)
}

// replace puts a folder in another's place.
func replace(part, dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(part, dir)
}

// prune removes earlier builds of an image: each is as large as the image.
func (b *builder) prune(i image, keep key) error {
	return removeOthers(b.path(i.id), "", keep.short(), "current")
}

// rootfs returns a folder with the root file system of an image's Debian packages, without the programs: tests run the
// very HAProxy and OpenSSL of the image from it, whatever state the programs are in.
func (b *builder) rootfs(ctx context.Context, i image) (string, error) {
	if i.suite == "" {
		return "", fmt.Errorf("image %s is made from scratch: it has no root file system of packages", i.id)
	}
	in, err := b.systemInputs(i)
	if err != nil {
		return "", err
	}
	name := i.id + "-" + in.system.short()
	dir, latest := b.path("rootfs", name), b.path("rootfs", i.id)
	// Tests ask for it often: what is there is found without waiting for a build.
	if at, err := os.Readlink(latest); err == nil && at == name && !b.fresh {
		return dir, nil
	}
	if err := b.lock(); err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err == nil && !b.fresh {
		return dir, link(name, latest)
	}
	if err := requireCommands("buildah", "mmdebstrap"); err != nil {
		return "", err
	}
	if err := b.ensureBase(ctx, i); err != nil {
		return "", err
	}
	tag := "localhost/qtls-" + i.id + "-system"
	// The stages are not built for this target; a folder keeps buildah from looking for their images.
	stages := map[string]string{"build": b.path("base")}
	for _, l := range i.libraries {
		stages[l.name] = b.path("base")
	}
	if err := b.buildah.build(ctx, "build "+i.id+" system", build{
		dockerfile: in.dockerfile, context: b.root, args: in.args, target: "system", fresh: b.fresh,
		stages: stages, tag: tag,
	}); err != nil {
		return "", err
	}
	if err := b.unpack(ctx, i.id, dir, tag); err != nil {
		return "", err
	}
	if err := link(name, latest); err != nil {
		return "", err
	}
	return dir, removeOthers(b.path("rootfs"), i.id+"-", name)
}

// unpack exports the root file system of an image in storage to dir, which appears only when it is whole.
func (b *builder) unpack(ctx context.Context, name, dir, reference string) error {
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	// A Dockerfile of its own: where every step of a longer one is cached, buildah exports no more than its base.
	if err := b.buildah.build(ctx, "unpack "+name, build{
		dockerfile: []byte("FROM " + reference + "\n"), context: b.path("base"), export: part,
	}); err != nil {
		return err
	}
	// buildah exports into a folder that only its owner may enter; a container's root is open to all users.
	if err := os.Chmod(part, 0o755); err != nil {
		return err
	}
	return replace(part, dir)
}

// removeOthers removes the folders in dir whose names begin with prefix, but for those to keep.
func removeOthers(dir, prefix string, keep ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), prefix) && !slices.Contains(keep, e.Name()) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
