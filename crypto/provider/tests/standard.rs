//! The standard algorithms, which OpenSSL has too: whose serve, and that it makes no other difference.

mod common;
#[path = "common/libcrypto.rs"]
#[allow(dead_code)]
mod libcrypto;

use common::{module, Dir, Server};
use libcrypto::Context;
use oqsprovider::standard::{Standard, ALGORITHMS};
use std::{
    ffi::{c_char, c_void, CStr, CString},
    ptr,
};

type Ptr = *mut c_void;

extern "C" {
    fn EVP_KEYMGMT_fetch(ctx: Ptr, name: *const c_char, properties: *const c_char) -> Ptr;
    fn EVP_KEYMGMT_get0_provider(keymgmt: Ptr) -> Ptr;
    fn EVP_KEYMGMT_free(keymgmt: Ptr);
    fn EVP_KEM_fetch(ctx: Ptr, name: *const c_char, properties: *const c_char) -> Ptr;
    fn EVP_KEM_get0_provider(kem: Ptr) -> Ptr;
    fn EVP_KEM_free(kem: Ptr);
    fn EVP_SIGNATURE_fetch(ctx: Ptr, name: *const c_char, properties: *const c_char) -> Ptr;
    fn EVP_SIGNATURE_get0_provider(signature: Ptr) -> Ptr;
    fn EVP_SIGNATURE_free(signature: Ptr);
    fn OSSL_PROVIDER_get0_name(provider: Ptr) -> *const c_char;
}

const QUERY: &str = "?provider=oqsprovider";

/// The providers whose keys and operations OpenSSL takes for a name.
fn serving(context: &Context, name: &CStr, is_signature: bool, query: &str) -> [String; 2] {
    let query = CString::new(query).unwrap();
    // SAFETY: each fetch is checked for null and freed.
    unsafe {
        let name_of = |provider| CStr::from_ptr(OSSL_PROVIDER_get0_name(provider)).to_str().unwrap().to_string();
        let keymgmt = EVP_KEYMGMT_fetch(context.ctx.cast(), name.as_ptr(), query.as_ptr());
        assert_ne!(keymgmt, ptr::null_mut(), "no keys of {name:?}");
        let keys = name_of(EVP_KEYMGMT_get0_provider(keymgmt));
        EVP_KEYMGMT_free(keymgmt);
        let operation = if is_signature {
            let signature = EVP_SIGNATURE_fetch(context.ctx.cast(), name.as_ptr(), query.as_ptr());
            assert_ne!(signature, ptr::null_mut(), "no signatures of {name:?}");
            let name = name_of(EVP_SIGNATURE_get0_provider(signature));
            EVP_SIGNATURE_free(signature);
            name
        } else {
            let kem = EVP_KEM_fetch(context.ctx.cast(), name.as_ptr(), query.as_ptr());
            assert_ne!(kem, ptr::null_mut(), "no encapsulation of {name:?}");
            let name = name_of(EVP_KEM_get0_provider(kem));
            EVP_KEM_free(kem);
            name
        };
        [keys, operation]
    }
}

fn names(s: &Standard) -> impl Iterator<Item = CString> + '_ {
    s.names.to_str().unwrap().split(':').map(|n| CString::new(n).unwrap())
}

#[test]
fn a_query_decides_whose_serve() {
    let own = Dir::new();
    let context = Context::new(own.path());
    assert!(module().exists());
    for s in &ALGORITHMS {
        for name in names(s) {
            assert_eq!(serving(&context, &name, s.is_signature(), ""), ["default"; 2], "{name:?} without a query");
            assert_eq!(serving(&context, &name, s.is_signature(), QUERY), ["oqsprovider"; 2], "{name:?} with {QUERY}");
        }
    }
    // What only OpenSSL has goes on as before.
    assert_eq!(serving(&context, c"X25519MLKEM768", false, "?provider=nobody"), ["default"; 2]);
}

/// A folder with a self-signed certificate of each ML-DSA.
fn prepared() -> Dir {
    prepare(Dir::new())
}

fn prepare(dir: Dir) -> Dir {
    for n in [44, 65, 87] {
        dir.openssl(&format!("req -x509 -newkey ML-DSA-{n} -nodes -keyout {n}.key -out {n}.crt -subj /CN=localhost"))
            .ok();
    }
    dir
}

fn groups() -> impl Iterator<Item = &'static str> {
    ALGORITHMS.iter().filter(|s| !s.is_signature()).map(|s| s.tls_name.to_str().unwrap())
}

/// Either side may be OpenSSL's alone: what goes over the wire is the same.
fn shake_hands(dir: &Dir) {
    for n in [44, 65, 87] {
        for (server, client) in [("-propquery ?provider=oqsprovider", ""), ("", "-propquery ?provider=oqsprovider")] {
            let list = groups().collect::<Vec<_>>().join(":");
            let server = Server::start(dir, &format!("-cert {n}.crt -key {n}.key -groups {list} {server}"));
            for group in groups() {
                server
                    .request(dir, &format!("-groups {group} -CAfile {n}.crt -verify_return_error {client}"))
                    .shows(&format!("Negotiated TLS1.3 group: {group}\n"))
                    .shows(&format!("Peer signature type: mldsa{n}\n"))
                    .shows("Verification: OK")
                    .ok();
            }
        }
    }
}

#[test]
fn both_implementations_shake_hands() {
    shake_hands(&prepared());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn both_implementations_shake_hands_on_a_processor_without_avx() {
    shake_hands(&prepare(Dir::on_nehalem()));
}

#[test]
fn classical_groups_and_certificates_go_on_with_the_query() {
    let dir = prepared();
    dir.openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ec.key -out ec.crt -subj /CN=localhost",
    )
    .ok();
    for certificate in ["ec", "65"] {
        let server = Server::start(&dir, &format!("-cert {certificate}.crt -key {certificate}.key -propquery {QUERY}"));
        for group in ["X25519", "P-256", "P-384", "X25519MLKEM768"] {
            server
                .request(
                    &dir,
                    &format!("-groups {group} -CAfile {certificate}.crt -verify_return_error -propquery {QUERY}"),
                )
                .shows("Verification: OK")
                .shows("HTTP/1.0 200 ok")
                .ok();
        }
    }
}

#[test]
fn the_same_seed_makes_the_same_file() {
    let dir = prepared();
    let seeds = [
        ("ML-DSA-44", 32),
        ("ML-DSA-65", 32),
        ("ML-DSA-87", 32),
        ("ML-KEM-512", 64),
        ("ML-KEM-768", 64),
        ("ML-KEM-1024", 64),
    ];
    for (algorithm, len) in seeds {
        let seed = "5a".repeat(len);
        for (query, file) in [("", "theirs"), ("-propquery ?provider=oqsprovider", "ours")] {
            dir.openssl(&format!("genpkey -algorithm {algorithm} -pkeyopt hexseed:{seed} {query} -out {file}.pem"))
                .ok();
        }
        assert_eq!(dir.text("ours.pem"), dir.text("theirs.pem"), "{algorithm}");
    }
}

#[test]
fn signatures_of_the_one_verify_with_the_other() {
    let dir = prepared();
    dir.write("message", "a message");
    for n in [44, 65, 87] {
        for (signer, verifier) in [("-propquery ?provider=oqsprovider", ""), ("", "-propquery ?provider=oqsprovider")] {
            dir.openssl(&format!("pkeyutl -sign -inkey {n}.key -rawin -in message -out signature {signer}")).ok();
            let verify = format!("pkeyutl -verify -certin -inkey {n}.crt -rawin -sigfile signature {verifier}");
            dir.openssl(&format!("{verify} -in message")).ok();
            dir.write("other", "another message");
            dir.openssl(&format!("{verify} -in other")).fails();
        }
    }
}

/// The portable code is chosen when the module is loaded: no instruction of AVX2 where the CPU is said to have none.
#[test]
fn it_works_without_avx2() {
    let dir = prepared();
    let mut command = dir.command(
        "openssl pkeyutl -sign -inkey 65.key -rawin -in openssl.cnf -out signature -propquery ?provider=oqsprovider",
    );
    command.env("OPENSSL_ia32cap", "~0:~0x20");
    common::run(command, "pkeyutl -sign without AVX2".into(), "").ok();
    dir.openssl("pkeyutl -verify -certin -inkey 65.crt -rawin -in openssl.cnf -sigfile signature").ok();
}
