package main

// buildHsmd is what a Dockerfile's stage runs, too.
const buildHsmd = `cargo build --release --locked --package qtls-hsmd && \
    install -D -m 755 /target/release/hsmd /out/usr/bin/hsmd`

// hsmd is the daemon that serves a token to other machines. It speaks to the token as the PKCS#11 module does.
var hsmd = rustLibrary{
	name: "hsmd", crate: "hsmd", workspace: ".", command: buildHsmd, sources: hsmdSources, pattern: "usr/bin/hsmd",
}

// hsmdSources lists the files that can reach it.
func hsmdSources(dir string) ([]string, error) { return crateSources(dir, "hsmd", "pkcs11") }
