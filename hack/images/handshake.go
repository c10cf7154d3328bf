package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// inGateway enters the gateway's root with the provider and a program, which lie in its /tmp like all that they write:
// keys never touch the disk.
var inGateway = `set -eu
root=$1 module=$2 program=$3 beside=$4 asan=$5; shift 5
mount --bind "$root" "$root"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir "$root/tmp/bin"
cp "$module" "$root/tmp/bin/oqsprovider.so"
printf '%s\n' "$program" "$beside" "$asan" | while read -r file; do if [ -n "$file" ]; then cp "$file" "$root/tmp/bin/"; fi; done
mount -o remount,bind,ro "$root"
set -- "/tmp/bin/${program##*/}" "$@"
if [ -z "$asan" ]; then exec chroot "$root" "$@"; fi
failed=0
chroot "$root" env "LD_PRELOAD=$(printf '%s\n' "$asan" | sed 's#.*/#/tmp/bin/#' | paste -sd:)" \
    "ASAN_OPTIONS=` + asanOptions + `:verify_asan_link_order=0" "$@" || failed=$?
` + asanReports("$root/tmp") + `
exit $failed`

const handshakeProgram = "qtls-handshake"

// gatewayRun is a program that runs where the gateway's HAProxy and OpenSSL are.
type gatewayRun struct {
	// module is the OpenSSL provider, and beside what else the program finds in its own folder.
	module, program string
	beside          []string
	// asan are the libraries of AddressSanitizer that all processes are started with.
	asan []string
	args []string
}

// needsToken says whether the handshakes of a command are with keys in HSMs.
func needsToken(args []string) bool {
	return len(args) > 0 && (args[0] == "hsm" || args[0] == "resumption")
}

// handshake runs crypto/handshake with the HAProxy, OpenSSL and provider of the gateway's image.
func (b *builder) handshake(ctx context.Context, args []string, out io.Writer) error {
	p, err := b.provider(ctx)
	if err != nil {
		return err
	}
	r := gatewayRun{module: p.module, args: args}
	if needsToken(args) {
		for _, l := range []rustLibrary{pkcs11, hsmd, kryoptic} {
			c, err := b.library(ctx, l)
			if err != nil {
				return err
			}
			r.beside = append(r.beside, c.module)
		}
	}
	build := []string{"build", "--release", "--locked", "--package", handshakeProgram}
	if err := b.cargo(ctx, build, false, io.Discard); err != nil {
		return err
	}
	t, err := b.toolchain(ctx)
	if err != nil {
		return err
	}
	r.program = filepath.Join(b.path("cargo", t.target()), "release", handshakeProgram)
	return b.inGateway(ctx, r, out)
}

// inGateway runs a program in the gateway's root.
func (b *builder) inGateway(ctx context.Context, r gatewayRun, out io.Writer) error {
	gateway, err := selectImages([]string{"gateway"})
	if err != nil {
		return err
	}
	root, err := b.rootfs(ctx, gateway[0])
	if err != nil {
		return err
	}
	if _, err := os.Stat(r.program); err != nil {
		return fmt.Errorf("cargo left no %s: %w", handshakeProgram, err)
	}
	script := []string{"-c", inGateway, handshakeProgram, root, r.module, r.program, strings.Join(r.beside, "\n"), strings.Join(r.asan, "\n")}
	cmd := inPrivateMounts(command(ctx, "sh", append(script, r.args...)...))
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "TMPDIR=/tmp", "OPENSSL_MODULES=/tmp/bin"}
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", handshakeProgram, err)
	}
	return nil
}
