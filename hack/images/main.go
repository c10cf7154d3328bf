// Command images builds the project's container images on a machine without a registry: Debian bases from mmdebstrap,
// the same Dockerfiles that anybody else builds, and tars to load into a cluster. See images/README.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const usage = `Usage: images COMMAND [IMAGE...]     (no IMAGE: all of them)
       images provider | pkcs11 | hsmd | kryoptic
       images cargo [-write] -- ARGUMENT...
       images handshake ARGUMENT...
       images k6 ARGUMENT...
       images program NAME
       images asan cargo|handshake ARGUMENT...

  build [-fresh]   build images; -fresh takes in what Debian has published since the last build
  list [-tars]     show the images built last; -tars prints the paths of their tars alone
  rootfs           print a folder with the root file system of an image's Debian packages, for tests
  verify           check the images built last: versions, user, rights, and a post-quantum handshake
  provider         print the path of the OpenSSL provider, oqsprovider.so, built from crypto/
  pkcs11           print the path of libqtls_pkcs11.so, the PKCS#11 module over several HSMs
  hsmd             print the path of hsmd, the daemon that serves a token to other machines
  kryoptic         print the path of libkryoptic_pkcs11.so, a token in software for development and tests
  cargo [-write]   run cargo on crypto/ as the provider is built, for its tests; -write lets it change the checkout
  handshake        run crypto/handshake with the HAProxy, OpenSSL and provider of the gateway: demo, cost, resumption, hsm, operations
  k6               run go on k6/ with Debian's OpenSSL at hand: images k6 test ./...
  program          print the path of a program of the images, such as qtls-k6, for tests
  asan             cargo and handshake with AddressSanitizer in what is compiled; what it finds is a failure

Images: %s ("client" is both clients).
The cache is $QTLS_CACHE or, when it is not set, qtls in the user's cache folder.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("no command\n"+usage, strings.Join(ids(), ", "))
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	fresh := flags.Bool("fresh", false, "")
	tars := flags.Bool("tars", false, "")
	write := flags.Bool("write", false, "")
	if err := flags.Parse(args[1:]); err != nil {
		return fmt.Errorf("%w\n"+usage, err, strings.Join(ids(), ", "))
	}
	if args[0] == "asan" {
		return runASan(ctx, args[1:], out)
	}
	if args[0] == "k6" {
		b, err := newBuilder(ctx)
		if err != nil {
			return err
		}
		return b.k6(ctx, args[1:], out)
	}
	if args[0] == "program" {
		name := flags.Arg(0)
		if _, known := programs[name]; !known || flags.NArg() != 1 {
			return fmt.Errorf("program: name one of %s", strings.Join(sortedKeys(programs), ", "))
		}
		b, err := newBuilder(ctx)
		if err != nil {
			return err
		}
		if err := b.lock(); err != nil {
			return err
		}
		path, err := b.compile(ctx, b.root, name)
		if err == nil {
			fmt.Fprintln(out, path)
		}
		return err
	}
	if args[0] == "handshake" { // its options are its own
		return runRust(ctx, args[0], args[1:], false, false, out)
	}
	if _, library := libraries[args[0]]; library || args[0] == "cargo" {
		return runRust(ctx, args[0], flags.Args(), *fresh, *write, out)
	}
	images, err := selectImages(flags.Args())
	if err != nil {
		return err
	}
	commands := map[string]func(*builder, image) error{
		"build": func(b *builder, i image) error {
			r, err := b.build(ctx, i)
			if err == nil {
				show(out, r)
			}
			return err
		},
		"list": func(b *builder, i image) error {
			r, ok := b.latest(i)
			switch {
			case !ok:
				return fmt.Errorf("image %s has not been built: images build %s", i.id, i.id)
			case *tars:
				fmt.Fprintln(out, r.Tar)
			default:
				show(out, r)
			}
			return nil
		},
		"rootfs": func(b *builder, i image) error {
			dir, err := b.rootfs(ctx, i)
			if err == nil {
				fmt.Fprintln(out, dir)
			}
			return err
		},
		"verify": func(b *builder, i image) error { return b.verify(ctx, i, out) },
	}
	do, known := commands[args[0]]
	if !known {
		return fmt.Errorf("no command %q\n"+usage, args[0], strings.Join(ids(), ", "))
	}
	if args[0] == "rootfs" {
		if len(flags.Args()) == 0 {
			return errors.New("rootfs: name an image")
		}
		// One folder is wanted; a name that stands for several images means the first.
		images = images[:1]
	}
	b, err := newBuilder(ctx)
	if err != nil {
		return err
	}
	b.fresh = *fresh
	for _, i := range images {
		if err := do(b, i); err != nil {
			return err
		}
	}
	return nil
}

// libraries are the commands that print where a library was built.
var libraries = map[string]rustLibrary{"provider": oqsprovider, "pkcs11": pkcs11, "hsmd": hsmd, "kryoptic": kryoptic}

// runRust runs the commands that are about the Rust workspace rather than images.
func runRust(ctx context.Context, command string, args []string, fresh, write bool, out io.Writer) error {
	l, library := libraries[command]
	switch {
	case command == "cargo" && len(args) == 0:
		return errors.New("cargo: say what it is to do, as in: images cargo -- test")
	case library && len(args) > 0:
		return fmt.Errorf("%s: unexpected argument %q", command, args[0])
	}
	b, err := newBuilder(ctx)
	if err != nil {
		return err
	}
	b.fresh = fresh
	switch command {
	case "cargo":
		return b.cargo(ctx, args, write, out)
	case "handshake":
		return b.handshake(ctx, args, out)
	}
	p, err := b.library(ctx, l)
	if err == nil {
		fmt.Fprintln(out, p.module)
	}
	return err
}

func newBuilder(ctx context.Context) (*builder, error) {
	root, err := repositoryRoot()
	if err != nil {
		return nil, err
	}
	version, err := projectVersion(root)
	if err != nil {
		return nil, err
	}
	c, err := openCache()
	if err != nil {
		return nil, err
	}
	policy, err := hostPolicy(ctx)
	if err != nil {
		return nil, err
	}
	return &builder{cache: c, buildah: &buildah{c}, root: root, version: version, policy: policy}, nil
}

// repositoryRoot is the nearest folder upwards whose go.mod is the root module's.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		mod, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && strings.HasPrefix(string(mod), "module qtls.dev/qtls\n") {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is not inside a checkout of Q-TLS (no go.mod of module qtls.dev/qtls upwards)", dir)
		}
	}
}

// show writes a built image's summary.
func show(out io.Writer, r result) {
	fmt.Fprintf(out, "%s\n  id        %s\n  size      %.1f MB\n  tar       %s\n  sbom      %s\n  packages  %s\n",
		r.Reference, r.ID, float64(r.Size)/1e6, r.Tar, r.SBOM, cmp.Or(strings.Join(r.Packages, ", "), "none"))
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
