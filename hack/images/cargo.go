package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// toolchainStage is the stage of the gateway's Dockerfile in which the OpenSSL provider is compiled. The other
// Dockerfiles have the same.
const toolchainStage = "toolchain"

// testTools are added to that stage here, for the rest of the workspace, tests and linters, and the folders that cargo sees.
// Of the many processors of qemu-user one is needed.
const testTools = `
FROM ` + toolchainStage + ` AS tests
RUN DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends openssl pkg-config qemu-user rust-clippy rustfmt softhsm2 valgrind && \
    find /usr/bin -name 'qemu-*' ! -name qemu-x86_64 -delete
RUN mkdir -p /cargo /gateway /kryoptic /out /src /target
`

// toolchain is the root file system that cargo runs in.
type toolchain struct {
	root string
	// key covers what compiles, not the tools for tests: those change without everything being compiled again.
	key key
}

// target is the folder of what was compiled by a toolchain, below the cache's folder of cargo: to another it is of no use.
func (t toolchain) target() string { return "target-" + t.key.short() }

// dockerfileStage cuts a stage out of a Dockerfile, from its FROM to the next one.
func dockerfileStage(dockerfile, name string) (string, error) {
	var stage strings.Builder
	inside := false
	for line := range strings.Lines(dockerfile) {
		if strings.HasPrefix(line, "FROM ") {
			inside = strings.HasSuffix(strings.TrimSpace(line), " AS "+name)
		}
		if inside && !strings.HasPrefix(line, "#") {
			stage.WriteString(line)
		}
	}
	if stage.Len() == 0 {
		return "", fmt.Errorf("no line FROM ... AS %s", name)
	}
	return stage.String(), nil
}

// toolchainKey names the root by all that it is made from.
func toolchainKey(dockerfile string, p aptPolicy) key {
	return newKey("toolchain/1").text("base", string(baseKey("trixie", p))).text("dockerfile", dockerfile).sum()
}

// toolchain returns the root in which cargo runs, making it unless the cache holds it.
func (b *builder) toolchain(ctx context.Context) (toolchain, error) {
	path := filepath.Join(b.root, "images", "gateway", "Dockerfile")
	text, err := os.ReadFile(path)
	if err != nil {
		return toolchain{}, err
	}
	stage, err := dockerfileStage(string(text), toolchainStage)
	if err != nil {
		return toolchain{}, fmt.Errorf("%s: %w", path, err)
	}
	dockerfile := stage + testTools
	name := "toolchain-" + toolchainKey(dockerfile, b.policy).short()
	t := toolchain{root: b.path("rootfs", name), key: toolchainKey(stage, b.policy)}
	cached := func() bool {
		return touch(t.root) == nil && (!b.fresh || b.refreshed)
	}
	if cached() {
		return t, nil
	}
	if err := errors.Join(b.lock(), requireCommands("buildah", "mmdebstrap")); err != nil {
		return toolchain{}, err
	}
	if cached() { // made while this process waited for the lock
		return t, nil
	}
	if err := b.base(ctx, b.buildah, "trixie", b.policy, b.fresh); err != nil {
		return toolchain{}, err
	}
	const tag = "localhost/qtls-toolchain"
	if err := b.buildah.build(ctx, "build toolchain", build{
		tag: tag, dockerfile: []byte(dockerfile), context: b.path("base"), args: b.policy.args(), fresh: b.fresh,
	}); err != nil {
		return toolchain{}, err
	}
	if err := b.unpack(ctx, "toolchain", t.root, tag); err != nil {
		return toolchain{}, err
	}
	// It is larger than all images together, and nothing starts from it.
	if id, err := b.buildah.id(ctx, tag); err == nil {
		_ = b.buildah.remove(ctx, id)
	}
	if b.fresh { // other compilers, perhaps, though the key is the same
		err = os.RemoveAll(b.path("cargo", t.target()))
	}
	b.refreshed = true
	return t, errors.Join(
		err,
		removeUnused(b.path("cargo"), "target", t.target()),
		removeUnused(b.path("rootfs"), "toolchain-", name),
	)
}

// sourceFolder is where the Rust workspace lies in a checkout.
func (b *builder) sourceFolder() (string, error) {
	dir := filepath.Join(b.root, "crypto")
	if _, err := os.Stat(filepath.Join(dir, "Cargo.toml")); err != nil {
		return "", fmt.Errorf("the Rust workspace is missing: %w", err)
	}
	return dir, nil
}

// rustSources lists all files of the Rust workspace in dir but build output, version control and editors' folders.
func rustSources(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && path != dir && (name == "target" || strings.HasPrefix(name, ".") && name != ".cargo") {
			return fs.SkipDir
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		files = append(files, rel)
		return err
	})
	return files, err
}

// mirror makes dst a copy of the Rust workspace in src. Files that are as they were keep their time stamps, and changed
// ones get the present time: cargo goes by time stamps, and those of another checkout may well be older than what was
// compiled from the last one.
func mirror(src, dst string) error {
	wanted, err := rustSources(src)
	if err != nil {
		return err
	}
	present, err := rustSources(dst)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range present {
		if !slices.Contains(wanted, name) {
			if err := os.Remove(filepath.Join(dst, name)); err != nil {
				return err
			}
		}
	}
	for _, name := range wanted {
		info, err := os.Stat(filepath.Join(src, name))
		if err != nil {
			return err
		}
		content, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			return err
		}
		path := filepath.Join(dst, name)
		if old, err := os.ReadFile(path); err != nil || !bytes.Equal(old, content) {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
				return err
			}
		}
		if err := os.Chmod(path, info.Mode().Perm()); err != nil {
			return err
		}
	}
	return nil
}

// inToolchain enters the root. It is read-only but for what cargo writes, and sees the network as the machine does.
const inToolchain = `set -eu
root=$1 src=$2 access=$3 out=$4 gateway=$5 kryoptic=$6 home=$7 target=$8 authorities=$9; shift 9
mount --bind "$root" "$root"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$src" "$root/src"
mount -o "remount,bind,$access" "$root/src"
mount --bind "$home" "$root/cargo"
mount --bind "$target" "$root/target"
if [ -n "$out" ]; then mount --bind "$out" "$root/out"; fi
if [ -n "$gateway" ]; then mount -o bind,ro "$gateway" "$root/gateway"; fi
if [ -n "$kryoptic" ]; then mount -o bind,ro "$kryoptic" "$root/kryoptic"; fi
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
see() { if [ -e "$1" ]; then touch "$root$2"; mount --bind "$1" "$root$2"; mount -o remount,bind,ro "$root$2"; fi; }
see /etc/resolv.conf /etc/resolv.conf
see /etc/hosts /etc/hosts
see "$authorities" /etc/ssl/certs/ca-certificates.crt
mount -o remount,bind,ro "$root"
exec chroot "$root" env -C /src "$@"`

// cargoRun is one command in the build root.
type cargoRun struct {
	toolchain toolchain
	// src is seen as /src, and written to only when it may be.
	src      string
	writable bool
	// out, if there is one, is seen as /out.
	out string
	// with is what tests are run with besides.
	with testModules
	args []string
}

// testModules are modules of OpenSSL and of PKCS#11 that tests of the workspace use. Their folders are seen under fixed
// names, and the tests find the modules in the environment.
type testModules struct {
	// gateway is the root of the gateway's packages, for its pkcs11-provider; kryoptic what its build left.
	gateway, kryoptic string
	environment       []string
}

// testModules makes them, unless the cache holds them. Not while cargo's lock is held.
func (b *builder) testModules(ctx context.Context) (testModules, error) {
	images, err := selectImages([]string{"gateway"})
	if err != nil {
		return testModules{}, err
	}
	gateway, err := b.rootfs(ctx, images[0])
	if err != nil {
		return testModules{}, err
	}
	provider, err := filepath.Glob(filepath.Join(gateway, "usr/lib/*/ossl-modules/pkcs11.so"))
	if err != nil || len(provider) != 1 {
		return testModules{}, fmt.Errorf("%s: no pkcs11-provider in it", gateway)
	}
	token, err := b.library(ctx, kryoptic)
	if err != nil {
		return testModules{}, err
	}
	out := filepath.Join(token.dir, "out")
	return testModules{gateway: gateway, kryoptic: out, environment: []string{
		"QTLS_PKCS11_PROVIDER=/gateway" + strings.TrimPrefix(provider[0], gateway),
		"QTLS_KRYOPTIC=/kryoptic" + strings.TrimPrefix(token.module, out),
	}}, nil
}

// inBuildRoot prepares a command in the build root.
func (c *cache) inBuildRoot(ctx context.Context, r cargoRun) (*exec.Cmd, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("running cargo in its build root needs root: run this command as root")
	}
	access := "ro"
	if r.writable {
		access = "rw"
	}
	authorities := cmp.Or(os.Getenv("SSL_CERT_FILE"), "/etc/ssl/certs/ca-certificates.crt")
	args := append([]string{
		"-c", inToolchain, "cargo", r.toolchain.root, r.src, access, r.out, r.with.gateway, r.with.kryoptic, c.path("cargo", "home"),
		c.path("cargo", r.toolchain.target()), authorities,
	}, r.args...)
	cmd := inPrivateMounts(command(ctx, "sh", args...))
	cmd.Env = append(cargoEnvironment(os.Environ()), r.with.environment...)
	return cmd, nil
}

// cargoEnvironment is what cargo, the compilers and the tests see of an environment: how to reach the registry, and what
// tests are told. The rest stays outside, so that the same sources give the same library.
func cargoEnvironment(environ []string) []string {
	env := []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/cargo", "CARGO_HOME=/cargo", "CARGO_TARGET_DIR=/target",
		"SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt", "CARGO_HTTP_CAINFO=/etc/ssl/certs/ca-certificates.crt",
	}
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case strings.HasSuffix(strings.ToLower(name), "_proxy"), name == "CARGO_NET_OFFLINE", name == "CARGO_BUILD_JOBS",
			strings.HasPrefix(name, "RUST_"), strings.HasPrefix(name, "QTLS_"):
			env = append(env, v)
		}
	}
	return env
}

// lockCargo waits until no other process works in the folders that cargo uses, and makes them. Closing the file releases
// them. Whoever holds this lock must not wait for the cache's.
func (c *cache) lockCargo(t toolchain) (*os.File, error) {
	for _, sub := range []string{"home", "src", t.target()} {
		if err := os.MkdirAll(c.path("cargo", sub), 0o755); err != nil {
			return nil, err
		}
	}
	if err := touch(c.path("cargo", t.target())); err != nil {
		return nil, err
	}
	return lockFile(c.path("cargo", "lock"))
}

// cargo runs cargo on the Rust workspace and shows its output as it comes; the log has it too. With write it works on the
// checkout itself, to format it for instance, else on a copy that it cannot change.
func (b *builder) cargo(ctx context.Context, args []string, write bool, out io.Writer) error {
	src, err := b.sourceFolder()
	if err != nil {
		return err
	}
	t, err := b.toolchain(ctx)
	if err != nil {
		return err
	}
	var with testModules
	if args[0] == "test" {
		if with, err = b.testModules(ctx); err != nil {
			return err
		}
	}
	lock, err := b.lockCargo(t)
	if err != nil {
		return err
	}
	defer lock.Close()
	if !write {
		if err := mirror(src, b.path("cargo", "src")); err != nil {
			return err
		}
		src = b.path("cargo", "src")
	}
	cmd, err := b.inBuildRoot(ctx, cargoRun{toolchain: t, src: src, writable: write, with: with, args: append([]string{"cargo"}, args...)})
	if err != nil {
		return err
	}
	path := b.path("log", "cargo.log")
	log, err := os.Create(path)
	if err != nil {
		return err
	}
	defer log.Close()
	// One writer keeps cargo's own lines and those of the tests in their order.
	all := io.MultiWriter(out, log)
	cmd.Stdout, cmd.Stderr = all, all
	title := "cargo " + strings.Join(args, " ")
	start := time.Now()
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s: interrupted", title)
		}
		return fmt.Errorf("%s: %w; its output is in %s", title, err, path)
	}
	progress("%s: %.1f s", title, time.Since(start).Seconds())
	return nil
}
