//! The standard algorithms, which OpenSSL has too: whose serve, and that it makes no other difference.

mod common;
#[path = "common/libcrypto.rs"]
#[allow(dead_code)]
mod libcrypto;

use common::{module, Dir, Server};
use libcrypto::Context;
use oqsprovider::{
    openssl::abi::Param,
    standard::{Standard, ALGORITHMS},
};
use std::{
    ffi::{c_char, c_int, c_void, CStr, CString},
    ptr::{self, null, null_mut},
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
    fn EVP_PKEY_CTX_new_from_name(ctx: Ptr, name: *const c_char, properties: *const c_char) -> Ptr;
    fn EVP_PKEY_CTX_new_from_pkey(ctx: Ptr, key: Ptr, properties: *const c_char) -> Ptr;
    fn EVP_PKEY_CTX_set_params(ctx: Ptr, params: *const Param) -> c_int;
    fn EVP_PKEY_CTX_free(ctx: Ptr);
    fn EVP_PKEY_keygen_init(ctx: Ptr) -> c_int;
    fn EVP_PKEY_paramgen_init(ctx: Ptr) -> c_int;
    fn EVP_PKEY_generate(ctx: Ptr, key: *mut Ptr) -> c_int;
    fn EVP_PKEY_set_params(key: Ptr, params: *const Param) -> c_int;
    fn EVP_PKEY_get_octet_string_param(
        key: Ptr,
        name: *const c_char,
        out: *mut u8,
        size: usize,
        len: *mut usize,
    ) -> c_int;
    fn EVP_PKEY_free(key: Ptr);
    fn EVP_PKEY_encapsulate_init(ctx: Ptr, params: *const c_void) -> c_int;
    fn EVP_PKEY_encapsulate(ctx: Ptr, out: *mut u8, len: *mut usize, secret: *mut u8, n: *mut usize) -> c_int;
    fn EVP_MD_CTX_new() -> Ptr;
    fn EVP_MD_CTX_free(ctx: Ptr);
    fn EVP_DigestSignInit_ex(
        ctx: Ptr,
        pctx: *mut Ptr,
        md: *const c_char,
        lib: Ptr,
        properties: *const c_char,
        key: Ptr,
        params: *const c_void,
    ) -> c_int;
    fn EVP_DigestSign(ctx: Ptr, signature: *mut u8, len: *mut usize, data: *const u8, n: usize) -> c_int;
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

/// A key of one provider's.
struct Key(Ptr);

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        unsafe { EVP_PKEY_free(self.0) }
    }
}

impl Key {
    /// A key pair made with a parameter, or an empty key.
    fn new(context: &Context, name: &CStr, query: &CStr, seed: Option<Param>) -> Option<Key> {
        let mut key = null_mut();
        // SAFETY: the context is freed after its last use.
        unsafe {
            let c = EVP_PKEY_CTX_new_from_name(context.ctx.cast(), name.as_ptr(), query.as_ptr());
            let ok = match seed {
                None => EVP_PKEY_paramgen_init(c) == 1,
                Some(seed) => {
                    assert_eq!(EVP_PKEY_keygen_init(c), 1);
                    EVP_PKEY_CTX_set_params(c, [seed, Param::END].as_ptr()) == 1
                }
            };
            if ok {
                EVP_PKEY_generate(c, &mut key);
            }
            EVP_PKEY_CTX_free(c);
        }
        (!key.is_null()).then_some(Key(key))
    }

    fn public(&self) -> Option<Vec<u8>> {
        let (mut out, mut len) = (vec![0; 4096], 0);
        // SAFETY: the length is the vector's.
        let ok =
            unsafe { EVP_PKEY_get_octet_string_param(self.0, c"pub".as_ptr(), out.as_mut_ptr(), out.len(), &mut len) };
        out.truncate(len);
        (ok == 1).then_some(out)
    }

    /// Whether the key takes a parameter.
    fn takes(&self, param: Param) -> bool {
        // SAFETY: the array ends with Param::END.
        unsafe { EVP_PKEY_set_params(self.0, [param, Param::END].as_ptr()) == 1 }
    }

    /// The deterministic signature of 64 bytes.
    fn sign(&self, context: &Context, param: Param) -> Option<Vec<u8>> {
        let (message, mut out, mut len) = ([7; 64], vec![0; 8192], 8192);
        let params = [param, Param::integer(c"deterministic", &1), Param::END];
        // SAFETY: the lengths are the buffers'.
        let ok = unsafe {
            let c = EVP_MD_CTX_new();
            let (lib, params) = (context.ctx.cast(), params.as_ptr().cast());
            let ok = EVP_DigestSignInit_ex(c, null_mut(), null(), lib, null(), self.0, params) == 1
                && EVP_DigestSign(c, out.as_mut_ptr(), &mut len, message.as_ptr(), message.len()) == 1;
            EVP_MD_CTX_free(c);
            ok
        };
        out.truncate(len);
        ok.then_some(out)
    }

    fn encapsulate(&self, context: &Context, param: Param) -> Option<Vec<u8>> {
        let (mut out, mut len, mut secret, mut n) = (vec![0; 4096], 4096, [0; 64], 64);
        // SAFETY: the lengths are the buffers'.
        let ok = unsafe {
            let c = EVP_PKEY_CTX_new_from_pkey(context.ctx.cast(), self.0, null());
            let ok = EVP_PKEY_encapsulate_init(c, [param, Param::END].as_ptr().cast()) == 1
                && EVP_PKEY_encapsulate(c, out.as_mut_ptr(), &mut len, secret.as_mut_ptr(), &mut n) == 1;
            EVP_PKEY_CTX_free(c);
            ok
        };
        out.truncate(len);
        ok.then_some(out)
    }
}

/// Otherwise a signature would have another context, or a key another seed, than was asked for, and nobody would know.
#[test]
fn a_parameter_of_another_type_is_refused_as_by_openssl() {
    let own = Dir::new();
    let context = Context::new(own.path());
    const TEXT: &CStr = c"0123456789abcdef0123456789abcdef";
    const LONG: &CStr = c"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let octets = |key| Param::octets(key, TEXT.to_bytes());
    let string = |key| Param::string(key, TEXT);
    let queries = [c"provider=default", c"provider=oqsprovider"];
    // What both make of it, and whether it is something.
    let same = |what: &str, [theirs, ours]: [Option<Vec<u8>>; 2], done: bool| {
        assert_eq!(theirs.is_some(), done, "{what}: OpenSSL");
        assert!(ours == theirs, "{what}: another result");
    };

    let made = |seed: fn() -> Param| queries.map(|q| Key::new(&context, c"ML-DSA-44", q, Some(seed()))?.public());
    same("seed", made(|| Param::octets(c"seed", TEXT.to_bytes())), true);
    same("seed: a string", made(|| Param::string(c"seed", TEXT)), false);
    same("seed: nothing", made(|| Param::octets_named(c"seed")), false);

    let keys = queries.map(|q| Key::new(&context, c"ML-DSA-44", q, Some(octets(c"seed"))).unwrap());
    let signed = |param: &dyn Fn() -> Param| [0, 1].map(|i| keys[i].sign(&context, param()));
    same("context", signed(&|| octets(c"context-string")), true);
    same("context: a string", signed(&|| string(c"context-string")), false);
    same("context: nothing", signed(&|| Param::octets_named(c"context-string")), false);
    same("test-entropy: a string", signed(&|| string(c"test-entropy")), false);
    for (name, values) in [(c"mu", 0..=1), (c"message-encoding", 0..=1), (c"deterministic", 1..=1)] {
        for value in values {
            same(&format!("{name:?}: {value}"), signed(&|| Param::unsigned(name, &value)), true);
        }
        same(&format!("{name:?}: a string"), signed(&|| string(name)), false);
        same(&format!("{name:?}: bytes"), signed(&|| octets(name)), false);
    }

    let seed = || Some(Param::octets(c"seed", LONG.to_bytes()));
    let keys = queries.map(|q| Key::new(&context, c"ML-KEM-768", q, seed()).unwrap());
    let encapsulated = |param: fn() -> Param| [0, 1].map(|i| keys[i].encapsulate(&context, param()));
    same("ikme", encapsulated(|| Param::octets(c"ikme", TEXT.to_bytes())), true);
    same("ikme: a string", encapsulated(|| Param::string(c"ikme", TEXT)), false);

    let share = keys[0].public().unwrap();
    for query in queries {
        let empty = || Key::new(&context, c"ML-KEM-768", query, None).unwrap();
        assert!(empty().takes(Param::octets(c"encoded-pub-key", &share)), "{query:?}");
        assert!(!empty().takes(Param::octets_named(c"encoded-pub-key")), "{query:?}: nothing");
        assert!(!empty().takes(string(c"encoded-pub-key")), "{query:?}: a string");
    }
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
