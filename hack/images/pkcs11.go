package main

// buildPKCS11 is what a Dockerfile's stage runs, too.
const buildPKCS11 = `cargo build --release --locked --package qtls-pkcs11 && \
    install -D -m 644 /target/release/libqtls_pkcs11.so /out/usr/lib/qtls/libqtls_pkcs11.so`

// pkcs11 is the module by which a gateway's keys can lie in HSMs.
var pkcs11 = rustLibrary{
	name: "pkcs11", crate: "qtls_pkcs11", workspace: ".", command: buildPKCS11, sources: pkcs11Sources,
	pattern: "usr/lib/qtls/libqtls_pkcs11.so",
}

// pkcs11Sources lists the files that can reach it.
func pkcs11Sources(dir string) ([]string, error) { return crateSources(dir, "pkcs11") }
