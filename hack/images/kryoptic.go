package main

import (
	"path/filepath"
	"strings"
)

// buildKryoptic is what a Dockerfile's stage runs, too.
const buildKryoptic = `cargo build --release --locked --manifest-path kryoptic/Cargo.toml && \
    install -D -m 644 /target/release/libkryoptic_pkcs11.so /out/usr/lib/pkcs11/libkryoptic_pkcs11.so`

// kryoptic is a token in software for development and tests: unlike softhsm2 it has ML-DSA.
var kryoptic = rustLibrary{
	name: "kryoptic", crate: "kryoptic_pkcs11", workspace: kryopticFolder, command: buildKryoptic, sources: kryopticSources,
	pattern: "usr/lib/pkcs11/libkryoptic_pkcs11.so",
}

// kryopticSources lists the files of its crate, which is a workspace of its own.
func kryopticSources(dir string) ([]string, error) {
	files, err := rustSources(filepath.Join(dir, kryopticFolder))
	var found []string
	for _, f := range files {
		if !strings.HasSuffix(f, ".md") {
			found = append(found, filepath.Join(kryopticFolder, f))
		}
	}
	return found, err
}

const kryopticFolder = "kryoptic"
