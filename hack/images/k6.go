package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// k6Module is the folder of the load generator's Go module. It is linked with libssl, so it is compiled and tested where the
// Rust code is: in the toolchain's root, with Debian trixie's OpenSSL, whatever the machine has.
const k6Module = "k6"

// inGoRoot enters the toolchain's root with the machine's Go and its caches, under the paths that they have outside. The
// checkout is read-only, /tmp in memory. Behind the paths to mount there are, for tests, the gateway's root, which sees the
// same /tmp, and the provider.
const inGoRoot = `set -eu
root=$1 src=$2 dir=$3 out=$4 gateway=$5 provider=$6 program=$7 authorities=$8 paths=$9; shift 9
mount --bind "$root" "$root"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --bind "$src" "$root/src"
mount -o remount,bind,ro "$root/src"
if [ -n "$out" ]; then mount --bind "$out" "$root/out"; fi
if [ -n "$gateway" ]; then
    mount --bind "$gateway" "$root/gateway"
    mount --bind "$root/tmp" "$root/gateway/tmp"
    mount --rbind /dev "$root/gateway/dev"
    mount -o remount,bind,ro "$root/gateway"
fi
if [ -n "$provider" ]; then
    mkdir "$root/tmp/provider"
    cp "$provider" "$root/tmp/provider/oqsprovider.so"
fi
if [ -n "$program" ]; then cp "$program" "$root/tmp/program"; fi
for path in $paths; do
    mkdir -p "$root$path"
    mount --bind "$path" "$root$path"
done
see() { if [ -e "$1" ]; then touch "$root$2"; mount --bind "$1" "$root$2"; mount -o remount,bind,ro "$root$2"; fi; }
see /etc/resolv.conf /etc/resolv.conf
see /etc/hosts /etc/hosts
see "$authorities" /etc/ssl/certs/ca-certificates.crt
mount -o remount,bind,ro "$root"
exec chroot "$root" env -C "/src/$dir" "$@"`

// goRun is a go command in that root.
type goRun struct {
	toolchain toolchain
	// dir is the folder of the module in the checkout.
	dir string
	// out, if there is one, is seen as /out.
	out string
	// gateway and provider are for tests.
	gateway, provider string
	// program is run instead of go: a linter, which runs go itself.
	program string
	args    []string
}

// goInRoot prepares a go command in the toolchain's root.
func (b *builder) goInRoot(ctx context.Context, r goRun) (*exec.Cmd, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("running go in the toolchain's root needs root: run this command as root")
	}
	mod, err := os.ReadFile(filepath.Join(b.root, "go.mod"))
	if err != nil {
		return nil, err
	}
	release, err := toolchainOf(string(mod))
	if err != nil {
		return nil, err
	}
	ask := command(ctx, "go", "env", "GOROOT", "GOMODCACHE", "GOCACHE", "GOPROXY", "GONOSUMDB", "GOSUMDB")
	ask.Env = append(os.Environ(), "GOTOOLCHAIN="+release)
	answer, err := output(ask)
	if err != nil {
		return nil, err
	}
	at := strings.Split(answer, "\n")
	goroot, modules, compiled := at[0], at[1], at[2]
	for _, dir := range []string{modules, compiled} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	authorities := cmp.Or(os.Getenv("SSL_CERT_FILE"), "/etc/ssl/certs/ca-certificates.crt")
	paths := strings.Join([]string{goroot, modules, compiled}, " ")
	program := goroot + "/bin/go"
	if r.program != "" {
		program = "/tmp/program"
	}
	args := []string{"-c", inGoRoot, "go", r.toolchain.root, b.root, r.dir, r.out, r.gateway, r.provider, r.program, authorities, paths, program}
	cmd := inPrivateMounts(command(ctx, "sh", append(args, r.args...)...))
	cmd.Env = goEnvironment(os.Environ(), map[string]string{
		"GOROOT": goroot, "GOMODCACHE": modules, "GOCACHE": compiled, "GOPROXY": at[3], "GONOSUMDB": at[4], "GOSUMDB": at[5],
		"GOLANGCI_LINT_CACHE": filepath.Join(compiled, "golangci-lint"),
	})
	if r.gateway != "" {
		cmd.Env = append(cmd.Env, "QTLS_GATEWAY_ROOTFS=/gateway", "QTLS_PROVIDER=/tmp/provider/oqsprovider.so")
	}
	return cmd, nil
}

// goEnvironment is what go, the compiler and the tests see of an environment: how to reach modules, and what tests are told.
// With -trimpath in all commands what one has compiled serves the others, and paths of the machine are in no program.
func goEnvironment(environ []string, of map[string]string) []string {
	env := []string{
		"PATH=" + of["GOROOT"] + "/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "TMPDIR=/tmp", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
		"GOTOOLCHAIN=local", "GOFLAGS=-trimpath -buildvcs=false", "GOWORK=off", "GOOS=linux", "CGO_ENABLED=1",
	}
	for _, name := range sortedKeys(of) {
		env = append(env, name+"="+of[name])
	}
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		if strings.HasSuffix(strings.ToLower(name), "_proxy") || name == "GOMAXPROCS" || name == "QTLS_TEST_HANDSHAKES" {
			env = append(env, v)
		}
	}
	return env
}

// compile builds the named program: one that is linked with Debian's libraries in the toolchain's root, others as they are.
func (b *builder) compile(ctx context.Context, root, name string) (string, error) {
	p := programs[name]
	if !p.linked {
		return b.cache.compile(ctx, root, name)
	}
	t, err := b.toolchain(ctx)
	if err != nil {
		return "", err
	}
	k := newKey("linked/1").text("toolchain", string(t.key)).text("flags", fmt.Sprint(goFlags)).text("package", p.pkg)
	for _, dir := range append([]string{p.module}, p.uses...) {
		if err := k.files(filepath.Join(root, dir), goSources); err != nil {
			return "", fmt.Errorf("program %s: read its sources: %w", name, err)
		}
	}
	if err := k.file("go.mod", filepath.Join(root, "go.mod")); err != nil {
		return "", err
	}
	path, want := b.path("bin", name), k.sum()
	if _, err := os.Stat(path); err == nil && has(path+".key", want) {
		return path, nil
	}
	if err := b.copyLicense(ctx, filepath.Join(root, p.module), p.licenseOf, path+licenseSuffix); err != nil {
		return "", err
	}
	// What is replaced may be running, or linked into a stage: another file, not another content.
	out, err := os.MkdirTemp(b.path("bin"), name+"-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(out)
	cmd, err := b.goInRoot(ctx, goRun{
		toolchain: t, dir: p.module, out: out, args: append(append([]string{"build"}, goFlags...), "-o", "/out/"+name, p.pkg),
	})
	if err != nil {
		return "", err
	}
	if err := b.logged(ctx, "compile "+name, name, cmd); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(out, name), path); err != nil {
		return "", err
	}
	return path, os.WriteFile(path+".key", []byte(want), 0o644)
}

// licenseSuffix is that of a program's license in the cache.
const licenseSuffix = ".LICENSE"

// copyLicense takes the LICENSE.md of a module that the module in dir requires.
func (b *builder) copyLicense(ctx context.Context, dir, module, path string) error {
	download := command(ctx, "go", "mod", "download", "-json", module)
	download.Dir = dir
	answer, err := output(download)
	if err != nil {
		return err
	}
	var m struct{ Dir string }
	if err := json.Unmarshal([]byte(answer), &m); err != nil {
		return fmt.Errorf("go mod download %s: %w", module, err)
	}
	text, err := os.ReadFile(filepath.Join(m.Dir, "LICENSE.md"))
	if err != nil {
		return err
	}
	if err := os.RemoveAll(path); err != nil { // linked into a stage, perhaps
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// k6 runs a go command on the load generator's module: `images k6 test ./...`. Tests find the gateway's root and the
// provider as elsewhere. `images k6 -- PROGRAM ARGUMENT...` runs another program there.
func (b *builder) k6(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("k6: say what go is to do, as in: images k6 test ./...")
	}
	t, err := b.toolchain(ctx)
	if err != nil {
		return err
	}
	r := goRun{toolchain: t, dir: k6Module, args: args}
	if args[0] == "--" && len(args) > 1 {
		r.program, r.args = args[1], args[2:]
	}
	if args[0] == "test" {
		gateway, err := selectImages([]string{"gateway"})
		if err != nil {
			return err
		}
		if r.gateway, err = b.rootfs(ctx, gateway[0]); err != nil {
			return err
		}
		p, err := b.provider(ctx)
		if err != nil {
			return err
		}
		r.provider = p.module
	}
	cmd, err := b.goInRoot(ctx, r)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func k6HasModule(ctx context.Context, c *container) (string, error) {
	out, err := c.exec(ctx, "qtls-k6", "version")
	if err == nil && !strings.Contains(out, "k6/x/qtls") {
		err = fmt.Errorf("it says %q", out)
	}
	first, _, _ := strings.Cut(out, "\n")
	return first, err
}

func k6License(_ context.Context, c *container) (string, error) {
	for name, want := range map[string]string{"LICENSE": "AFFERO GENERAL PUBLIC LICENSE", "NOTICE": "The sources of the program"} {
		text, err := os.ReadFile(filepath.Join(c.root, "usr/share/doc/qtls-k6", name))
		if err != nil {
			return "", err
		}
		if !strings.Contains(string(text), want) {
			return "", fmt.Errorf("%s does not say %q", name, want)
		}
	}
	return "AGPL-3.0", nil
}

// k6Script connects once and logs what was negotiated.
const k6Script = `import { Client } from 'k6/x/qtls';
const client = new Client({ host: '127.0.0.1', port: Number(__ENV.PORT), sni: 'probe.example', ca: open('/mnt/k6.crt'), groups: ['X25519MLKEM768'], timeout: '1m' });
export default function () {
  const r = client.handshake();
  console.log(r.ok ? r.group + ' ' + r.signatureAlgorithm : r.failure + ': ' + r.message);
}
`

func k6Handshake(ctx context.Context, c *container) (string, error) {
	if err := writeFiles(c.files, map[string][]byte{"k6.js": []byte(k6Script)}); err != nil {
		return "", err
	}
	// The server finds a port by itself, and says which.
	out, err := c.exec(ctx, "sh", "-euc", `cd /mnt
		openssl req -x509 -newkey ml-dsa-65 -nodes -subj /CN=probe.example -addext subjectAltName=DNS:probe.example -days 1 -keyout k6.key -out k6.crt 2>/dev/null
		openssl s_server -accept 127.0.0.1:0 -cert k6.crt -key k6.key -groups X25519MLKEM768 -www >/tmp/server 2>&1 & server=$!
		trap 'kill $server' EXIT
		for wait in $(seq 300); do grep -q ^ACCEPT /tmp/server && break; sleep 0.2; done
		PORT=$(sed -n 's/^ACCEPT .*://p' /tmp/server) qtls-k6 run --quiet --address= --no-usage-report --summary-mode=disabled --log-format=raw k6.js 2>&1`)
	if err == nil && strings.TrimSpace(out) != "X25519MLKEM768 mldsa65" {
		err = fmt.Errorf("it says %q", out)
	}
	return strings.TrimSpace(out), err
}
