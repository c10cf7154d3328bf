package main

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"os/exec"
	"strings"
)

// buildah runs buildah on a containers storage of its own.
type buildah struct{ cache *cache }

// build is one run of a Dockerfile.
type build struct {
	// tag names the outcome in storage; empty when it is only exported.
	tag string
	// dockerfile is the text of the Dockerfile.
	dockerfile []byte
	// context is the folder that COPY and ADD see.
	context string
	// stages replaces stages of the Dockerfile by folders.
	stages map[string]string
	args   map[string]string
	// target stops at a stage.
	target string
	// export is a folder to unpack the outcome's root file system to.
	export string
	// fresh ignores cached layers.
	fresh bool
}

// command prepares a buildah command. Storage is the cache's own, so that neither the user's images nor the machine's
// storage configuration play a part. STORAGE_DRIVER=vfs is for machines whose file system cannot carry overlay.
func (b *buildah) command(ctx context.Context, args ...string) *exec.Cmd {
	common := []string{
		"--root", b.cache.path("storage"), "--runroot", b.cache.path("run"),
		"--storage-driver", cmp.Or(os.Getenv("STORAGE_DRIVER"), "overlay"),
	}
	return inPrivateMounts(command(ctx, "buildah", append(common, args...)...))
}

// buildArgs are the arguments of `buildah build` for a run; the Dockerfile comes on standard input.
func buildArgs(r build) []string {
	// chroot isolation works without a container runtime and inside containers. Nothing is ever pulled.
	args := []string{"build", "--isolation=chroot", "--pull=never", "--force-rm", "--file=-"}
	if r.fresh {
		args = append(args, "--no-cache")
	} else {
		args = append(args, "--layers")
	}
	if r.tag != "" {
		args = append(args, "--tag="+r.tag)
	}
	if r.target != "" {
		args = append(args, "--target="+r.target)
	}
	if r.export != "" {
		args = append(args, "--output=type=local,dest="+r.export)
	}
	for _, name := range sortedKeys(r.stages) {
		args = append(args, "--build-context="+name+"="+r.stages[name])
	}
	for _, name := range sortedKeys(r.args) {
		args = append(args, "--build-arg="+name+"="+r.args[name])
	}
	return append(args, r.context)
}

func (b *buildah) build(ctx context.Context, title string, r build) error {
	cmd := b.command(ctx, buildArgs(r)...)
	cmd.Stdin = bytes.NewReader(r.dockerfile)
	return b.cache.logged(ctx, title, strings.ReplaceAll(title, " ", "-"), cmd)
}

// exists says whether storage has the image.
func (b *buildah) exists(ctx context.Context, reference string) bool {
	_, err := output(b.command(ctx, "inspect", "--type=image", "--format={{.FromImageID}}", reference))
	return err == nil
}

// id returns the digest of an image's configuration in hexadecimal.
func (b *buildah) id(ctx context.Context, reference string) (string, error) {
	id, err := output(b.command(ctx, "inspect", "--type=image", "--format={{.FromImageID}}", reference))
	return strings.TrimSpace(id), err
}

// save writes an image as a docker-archive with uncompressed layers, the form that loads fastest.
func (b *buildah) save(ctx context.Context, reference, tar string) error {
	if err := os.Remove(tar); err != nil && !os.IsNotExist(err) {
		return err
	}
	_, err := output(b.command(ctx, "push", "--quiet", "--disable-compression", reference, "docker-archive:"+tar+":"+reference))
	return err
}

// remove drops an image, and with it the layers that no other image uses.
func (b *buildah) remove(ctx context.Context, id string) error {
	_, err := output(b.command(ctx, "rmi", id))
	return err
}
