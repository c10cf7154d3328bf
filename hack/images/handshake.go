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
const inGateway = `set -eu
root=$1 module=$2 program=$3; shift 3
mount --bind "$root" "$root"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir "$root/tmp/bin"
cp "$module" "$program" "$root/tmp/bin/"
mount -o remount,bind,ro "$root"
exec chroot "$root" "/tmp/bin/${program##*/}" "$@"`

// handshake runs crypto/handshake with the HAProxy, OpenSSL and provider of the gateway's image.
func (b *builder) handshake(ctx context.Context, args []string, out io.Writer) error {
	p, err := b.provider(ctx)
	if err != nil {
		return err
	}
	gateway, err := selectImages([]string{"gateway"})
	if err != nil {
		return err
	}
	root, err := b.rootfs(ctx, gateway[0])
	if err != nil {
		return err
	}
	const program = "qtls-handshake"
	if err := b.cargo(ctx, []string{"build", "--release", "--locked", "--package", program}, false, io.Discard); err != nil {
		return err
	}
	t, err := b.toolchain(ctx)
	if err != nil {
		return err
	}
	path := filepath.Join(b.path("cargo", t.target()), "release", program)
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("cargo left no %s: %w", program, err)
	}
	cmd := inPrivateMounts(command(ctx, "sh", append([]string{"-c", inGateway, program, root, p.module, path}, args...)...))
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "TMPDIR=/tmp", "OPENSSL_MODULES=/tmp/bin"}
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	return nil
}
