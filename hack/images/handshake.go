package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// inGateway enters the gateway's root with the provider and a program, which lie in its /tmp like all that they write:
// keys never touch the disk.
var inGateway = `set -eu
root=$1 module=$2 program=$3 asan=$4; shift 4
mount --bind "$root" "$root"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir "$root/tmp/bin"
cp "$module" "$root/tmp/bin/oqsprovider.so"
cp "$program" $asan "$root/tmp/bin/"
mount -o remount,bind,ro "$root"
set -- "/tmp/bin/${program##*/}" "$@"
if [ -z "$asan" ]; then exec chroot "$root" "$@"; fi
failed=0
chroot "$root" env "LD_PRELOAD=/tmp/bin/${asan##*/}" "ASAN_OPTIONS=` + asanOptions + `" "$@" || failed=$?
` + asanReports("$root/tmp") + `
exit $failed`

const handshakeProgram = "qtls-handshake"

// handshake runs crypto/handshake with the HAProxy, OpenSSL and provider of the gateway's image.
func (b *builder) handshake(ctx context.Context, args []string, out io.Writer) error {
	p, err := b.provider(ctx)
	if err != nil {
		return err
	}
	build := []string{"build", "--release", "--locked", "--package", handshakeProgram}
	if err := b.cargo(ctx, build, false, io.Discard); err != nil {
		return err
	}
	t, err := b.toolchain(ctx)
	if err != nil {
		return err
	}
	return b.inGateway(ctx, p.module, filepath.Join(b.path("cargo", t.target()), "release", handshakeProgram), "", args, out)
}

// inGateway runs a program with a module and, if it is named, with the library of AddressSanitizer.
func (b *builder) inGateway(ctx context.Context, module, program, asan string, args []string, out io.Writer) error {
	gateway, err := selectImages([]string{"gateway"})
	if err != nil {
		return err
	}
	root, err := b.rootfs(ctx, gateway[0])
	if err != nil {
		return err
	}
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("cargo left no %s: %w", handshakeProgram, err)
	}
	cmd := inPrivateMounts(command(ctx, "sh", append([]string{"-c", inGateway, handshakeProgram, root, module, program, asan}, args...)...))
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "TMPDIR=/tmp", "OPENSSL_MODULES=/tmp/bin"}
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", handshakeProgram, err)
	}
	return nil
}
