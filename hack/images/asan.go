package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// compileForASan is the C compiler, with AddressSanitizer. One file goes without: where liboqs 0.13 asks the processor what
// it has (xgetbv_eax), it does not tell the compiler that EDX changes. What comes of that is up to the compiler: as the
// product has it the answers are right (a test of the provider sees to it), but with AddressSanitizer the processor has
// AVX-512 and no carry-less multiplication, and BIKE, for which there is no such processor, writes beyond a buffer.
const compileForASan = `#!/bin/sh
for argument; do
    case $argument in */src/common/common.c) exec gcc "$@" -fno-sanitize=address ;; esac
done
exec gcc -fsanitize=address -fno-omit-frame-pointer "$@"
`

// withASan runs a command so that cargo compiles C and Rust with AddressSanitizer, and runs what it compiled with its
// library. Rust has the switch for that in every compiler, and locks it in a stable one; that compiler's own copy of the
// library Debian does not have, and GCC's serves. Rust's standard library stays as it is, and assembly cannot be watched.
var withASan = `set -eu
compiler=$1; shift
printf %s "$compiler" >/target/cc
chmod +x /target/cc
triple=$(rustc --print host-tuple)
ln -sfn "$triple" /target/asan
failed=0
env CC=/target/cc RUSTC_BOOTSTRAP=1 RUSTFLAGS="--cfg asan -Zsanitizer=address -Zexternal-clangrt -Clink-arg=-lasan" \
    CARGO_BUILD_TARGET="$triple" OQSPROVIDER_MODULE=/target/asan/release/liboqsprovider.so \
    "CARGO_TARGET_$(echo "$triple" | tr a-z- A-Z_)_RUNNER=env LD_PRELOAD=` + asanLibrary + ` ASAN_OPTIONS=` + asanOptions + `" \
    "$@" || failed=$?
` + asanReports("/tmp") + `
exit $failed`

const (
	// asanLibrary is GCC's, by the name that Debian trixie has it under.
	asanLibrary = "libasan.so.8"
	// asanOptions has a fault end the process by a signal, which is no error that a test may want to see, and be told of in
	// a file: many a test throws away what its processes write. Leaks are left to valgrind, which the provider's tests run
	// themselves: it tells what is lost from what is kept.
	asanOptions = "detect_leaks=0:abort_on_error=1:log_path=/tmp/asan"
)

// asanReports is the part of a script that shows what AddressSanitizer found, and then fails. That OpenSSL's ASYNC changes
// stacks, it only warns of.
func asanReports(dir string) string {
	return `for report in "` + dir + `"/asan.*; do
    if grep -qs "ERROR: AddressSanitizer" "$report"; then
        cat "$report"
        failed=1
    fi
done`
}

// forASan is the toolchain with a folder of its own for what it compiles so.
func (t toolchain) forASan() toolchain {
	t.key = newKey("asan/1").text("toolchain", string(t.key)).text("compiler", compileForASan).text("command", withASan).sum()
	return t
}

// asanCargo runs cargo on a copy of the Rust workspace, with AddressSanitizer.
func (b *builder) asanCargo(ctx context.Context, args []string, out io.Writer) error {
	src, err := b.sourceFolder()
	if err != nil {
		return err
	}
	t, err := b.toolchain(ctx)
	if err != nil {
		return err
	}
	t = t.forASan()
	lock, err := b.lockCargo(t)
	if err != nil {
		return err
	}
	defer lock.Close()
	copied := b.path("cargo", "src")
	if err := mirror(src, copied); err != nil {
		return err
	}
	cmd, err := b.inBuildRoot(ctx, cargoRun{
		toolchain: t, src: copied, args: append([]string{"sh", "-c", withASan, "asan", compileForASan, "cargo"}, args...),
	})
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = out, out
	title := "cargo " + strings.Join(args, " ") + ", with AddressSanitizer"
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", title, err)
	}
	progress("%s: %.1f s", title, time.Since(start).Seconds())
	return nil
}

// withoutDeepbind is a library that lets a program load others with RTLD_DEEPBIND, as pkcs11-provider does, and drops that:
// AddressSanitizer ends a process that does so. It has to come before AddressSanitizer's own library, which says no first.
const withoutDeepbind = `#define _GNU_SOURCE
#include <dlfcn.h>
void *dlopen(const char *name, int flags) {
    void *(*real)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return real(name, flags & ~RTLD_DEEPBIND);
}
`

// asanHandshake runs crypto/handshake as handshake does, with AddressSanitizer in it, in the provider, in the PKCS#11 module
// and in hsmd. HAProxy, OpenSSL and their libraries are Debian's, and kryoptic is as it is without: of them it sees what they
// do to the heap, and what they have libc do.
func (b *builder) asanHandshake(ctx context.Context, args []string, out io.Writer) error {
	crates := []string{"oqsprovider", handshakeProgram}
	if needsToken(args) {
		crates = append(crates, "qtls-pkcs11", "qtls-hsmd")
	}
	for _, crate := range crates {
		if err := b.asanCargo(ctx, []string{"build", "--release", "--locked", "--package", crate}, os.Stderr); err != nil {
			return err
		}
	}
	t, err := b.toolchain(ctx)
	if err != nil {
		return err
	}
	library, err := filepath.Glob(filepath.Join(t.root, "usr/lib/*", asanLibrary))
	if err != nil || len(library) != 1 {
		return fmt.Errorf("%s: no usr/lib/*/%s in it; GCC brings it", t.root, asanLibrary)
	}
	target := b.path("cargo", t.forASan().target())
	release := filepath.Join(target, "asan", "release")
	r := gatewayRun{
		module: filepath.Join(release, "liboqsprovider.so"), program: filepath.Join(release, handshakeProgram),
		asan: library, args: args,
	}
	if needsToken(args) {
		token, err := b.library(ctx, kryoptic)
		if err != nil {
			return err
		}
		compile := []string{"sh", "-c", `printf %s "$0" | gcc -shared -fPIC -x c -o /target/deepbind.so -`, withoutDeepbind}
		cmd, err := b.inBuildRoot(ctx, cargoRun{toolchain: t.forASan(), src: b.path("cargo", "src"), args: compile})
		if err != nil {
			return err
		}
		if err := b.logged(ctx, "compile deepbind", "deepbind", cmd); err != nil {
			return err
		}
		r.asan = append([]string{filepath.Join(target, "deepbind.so")}, r.asan...)
		r.beside = []string{filepath.Join(release, "libqtls_pkcs11.so"), filepath.Join(release, "hsmd"), token.module}
	}
	return b.inGateway(ctx, r, out)
}

// runASan runs `images asan`.
func runASan(ctx context.Context, args []string, out io.Writer) error {
	if len(args) < 2 || args[0] != "cargo" && args[0] != "handshake" {
		return errors.New("asan: say what is to run, as in: images asan cargo test, or: images asan handshake demo")
	}
	b, err := newBuilder(ctx)
	if err != nil {
		return err
	}
	if args[0] == "cargo" {
		return b.asanCargo(ctx, args[1:], out)
	}
	return b.asanHandshake(ctx, args[1:], out)
}
