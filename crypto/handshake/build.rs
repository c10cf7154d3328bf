//! Compiles the token that does as it is told, of the PKCS#11 module's tests: `hsm` carries it.

use std::{env, path::PathBuf, process::Command};

fn main() {
    let source = "../pkcs11/tests/fake/token.c";
    let module = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("token.so");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(module)
        .args([source, "-lcrypto"])
        .status();
    assert!(
        status.is_ok_and(|s| s.success()),
        "cc does not compile {source}; it needs a C compiler and OpenSSL's headers"
    );
    println!("cargo:rerun-if-changed={source}");
    println!("cargo:rerun-if-changed=build.rs");
}
