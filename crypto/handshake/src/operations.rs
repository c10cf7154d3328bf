//! What single operations cost, for every algorithm of the table and every provider that has it.

use crate::{stats::spread, Result};
use foreign_types::ForeignType;
use libc::{c_char, c_int, c_void};
use openssl::{
    pkey::{PKey, Private},
    provider::Provider,
};
use std::{
    ffi::CString,
    ptr::{null, null_mut},
    time::Duration,
};

const TABLE: &str = include_str!("../../algorithms.csv");
const PROVIDERS: [&str; 2] = ["default", "oqsprovider"];
/// Each operation is timed in so many batches of so long; a slow one takes one run for a batch.
const BATCHES: usize = 5;
const BATCH: Duration = Duration::from_millis(10);

enum Context {}

// Of OpenSSL 3.0 and later; the openssl crate has no safe form of these.
extern "C" {
    fn EVP_PKEY_CTX_new_from_name(lib: *mut c_void, name: *const c_char, properties: *const c_char) -> *mut Context;
    fn EVP_PKEY_CTX_new_from_pkey(
        lib: *mut c_void,
        key: *mut openssl_sys::EVP_PKEY,
        properties: *const c_char,
    ) -> *mut Context;
    fn EVP_PKEY_CTX_free(ctx: *mut Context);
    fn EVP_PKEY_CTX_set_group_name(ctx: *mut Context, name: *const c_char) -> c_int;
    fn EVP_PKEY_CTX_set_rsa_keygen_bits(ctx: *mut Context, bits: c_int) -> c_int;
    fn EVP_PKEY_keygen_init(ctx: *mut Context) -> c_int;
    fn EVP_PKEY_generate(ctx: *mut Context, key: *mut *mut openssl_sys::EVP_PKEY) -> c_int;
    fn EVP_PKEY_encapsulate_init(ctx: *mut Context, params: *const c_void) -> c_int;
    fn EVP_PKEY_encapsulate(
        ctx: *mut Context,
        out: *mut u8,
        len: *mut usize,
        secret: *mut u8,
        secret_len: *mut usize,
    ) -> c_int;
    fn EVP_PKEY_decapsulate_init(ctx: *mut Context, params: *const c_void) -> c_int;
    fn EVP_PKEY_decapsulate(
        ctx: *mut Context,
        secret: *mut u8,
        secret_len: *mut usize,
        ciphertext: *const u8,
        len: usize,
    ) -> c_int;
    fn EVP_PKEY_derive_init(ctx: *mut Context) -> c_int;
    fn EVP_PKEY_derive_set_peer(ctx: *mut Context, peer: *mut openssl_sys::EVP_PKEY) -> c_int;
    fn EVP_PKEY_derive(ctx: *mut Context, out: *mut u8, len: *mut usize) -> c_int;
    fn EVP_MD_CTX_new() -> *mut c_void;
    fn EVP_MD_CTX_free(ctx: *mut c_void);
    fn EVP_DigestSignInit_ex(
        ctx: *mut c_void,
        pctx: *mut c_void,
        md: *const c_char,
        lib: *mut c_void,
        properties: *const c_char,
        key: *mut openssl_sys::EVP_PKEY,
        params: *const c_void,
    ) -> c_int;
    fn EVP_DigestVerifyInit_ex(
        ctx: *mut c_void,
        pctx: *mut c_void,
        md: *const c_char,
        lib: *mut c_void,
        properties: *const c_char,
        key: *mut openssl_sys::EVP_PKEY,
        params: *const c_void,
    ) -> c_int;
    fn EVP_DigestSign(ctx: *mut c_void, sig: *mut u8, len: *mut usize, data: *const u8, n: usize) -> c_int;
    fn EVP_DigestVerify(ctx: *mut c_void, sig: *const u8, len: usize, data: *const u8, n: usize) -> c_int;
}

fn ok(code: c_int, what: &str) -> Result<()> {
    if code == 1 {
        return Ok(());
    }
    Err(format!("{what}: {}", openssl::error::ErrorStack::get()).into())
}

struct Ctx(*mut Context);

impl Drop for Ctx {
    fn drop(&mut self) {
        // SAFETY: it is owned; null is allowed.
        unsafe { EVP_PKEY_CTX_free(self.0) }
    }
}

struct MdCtx(*mut c_void);

impl Drop for MdCtx {
    fn drop(&mut self) {
        // SAFETY: it is owned; null is allowed.
        unsafe { EVP_MD_CTX_free(self.0) }
    }
}

/// An algorithm of one provider.
struct Subject {
    /// What EVP fetches, with a curve or a length for some.
    fetch: CString,
    group: Option<CString>,
    bits: Option<c_int>,
    digest: Option<CString>,
    properties: CString,
}

impl Subject {
    fn new(row: &[&str], provider: &str) -> Option<Subject> {
        let (name, kind, family, primitive, key) = (row[0], row[2], row[3], row[6], row[12]);
        let c = |s: &str| CString::new(s).ok();
        let mut s = Subject {
            fetch: c(name)?,
            group: None,
            bits: None,
            digest: None,
            properties: c(&format!("provider={provider}"))?,
        };
        match (kind, family) {
            ("group", _) if name.starts_with('x') => s.fetch = c(&name.to_uppercase())?,
            ("group", _) => (s.fetch, s.group) = (c("EC")?, c(row[1].split(' ').next()?)),
            ("signature", "ECDSA") => {
                let (curve, digest) = if key == "ECDSA-P384" { ("P-384", "SHA384") } else { ("P-256", "SHA256") };
                (s.fetch, s.group, s.digest) = (c("EC")?, c(curve), c(digest));
            }
            ("key", "RSA") => (s.fetch, s.bits, s.digest) = (c("RSA")?, name[4..].parse().ok(), c("SHA256")),
            ("scheme", _) => return None, // its cost is the key's
            (_, _) if row[5] == "openssl" && row[7].is_empty() => s.fetch = c(primitive)?,
            _ => {}
        }
        Some(s)
    }

    fn properties(&self) -> *const c_char {
        self.properties.as_ptr()
    }

    /// A generator of keys; none where the provider does not have the algorithm.
    fn generator(&self) -> Option<Ctx> {
        // SAFETY: the strings outlive the calls.
        unsafe {
            let ctx = Ctx(EVP_PKEY_CTX_new_from_name(null_mut(), self.fetch.as_ptr(), self.properties()));
            if ctx.0.is_null() || EVP_PKEY_keygen_init(ctx.0) != 1 {
                return None;
            }
            let named = self.group.as_ref().is_none_or(|g| EVP_PKEY_CTX_set_group_name(ctx.0, g.as_ptr()) == 1);
            let sized = self.bits.is_none_or(|b| EVP_PKEY_CTX_set_rsa_keygen_bits(ctx.0, b) == 1);
            (named && sized).then_some(ctx)
        }
    }
}

fn generate(generator: &Ctx) -> Result<PKey<Private>> {
    let mut key = null_mut();
    // SAFETY: the key is ours then.
    unsafe {
        ok(EVP_PKEY_generate(generator.0, &mut key), "key generation")?;
        Ok(PKey::from_ptr(key))
    }
}

/// CPU time of this thread so far: what else the machine does matters less for it.
fn cpu_time() -> Duration {
    // SAFETY: the structure is written.
    unsafe {
        let mut t = std::mem::zeroed::<libc::timespec>();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t);
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    }
}

/// Microseconds of CPU that an operation takes: the median of the batches.
fn time(mut operation: impl FnMut() -> Result<()>) -> Result<f64> {
    operation()?; // caches
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let (start, mut n) = (cpu_time(), 0);
        while n == 0 || cpu_time() - start < BATCH {
            operation()?;
            n += 1;
        }
        batches.push((cpu_time() - start).as_secs_f64() * 1e6 / n as f64);
    }
    Ok(spread(&batches).median)
}

/// Times of key generation and of the two operations: encapsulation or signing, decapsulation or verifying.
fn measure(s: &Subject, kind: &str) -> Result<Option<[f64; 3]>> {
    let Some(generator) = s.generator() else { return Ok(None) };
    let key = generate(&generator)?;
    let generation = time(|| generate(&generator).map(drop))?;
    // SAFETY: lengths are those that the first, sizing calls gave; the contexts live for the closures.
    let (first, second) = unsafe {
        match kind {
            "group" => {
                let peer = generate(&generator)?;
                let mut secret = [0u8; 128];
                let derivation = time(|| {
                    let ctx = Ctx(EVP_PKEY_CTX_new_from_pkey(null_mut(), key.as_ptr(), s.properties()));
                    let mut len = secret.len();
                    ok(EVP_PKEY_derive_init(ctx.0), "derivation")?;
                    ok(EVP_PKEY_derive_set_peer(ctx.0, peer.as_ptr()), "derivation")?;
                    ok(EVP_PKEY_derive(ctx.0, secret.as_mut_ptr(), &mut len), "derivation")
                })?;
                // A server makes a key and derives; a client derives with the one it made.
                (generation + derivation, derivation)
            }
            "kem" => {
                let ctx = Ctx(EVP_PKEY_CTX_new_from_pkey(null_mut(), key.as_ptr(), s.properties()));
                let (mut len, mut secret_len) = (0, 0);
                ok(EVP_PKEY_encapsulate_init(ctx.0, null()), "encapsulation")?;
                ok(EVP_PKEY_encapsulate(ctx.0, null_mut(), &mut len, null_mut(), &mut secret_len), "encapsulation")?;
                let (mut ciphertext, mut secret) = (vec![0; len], vec![0; secret_len]);
                let first = time(|| {
                    ok(
                        EVP_PKEY_encapsulate(
                            ctx.0,
                            ciphertext.as_mut_ptr(),
                            &mut len,
                            secret.as_mut_ptr(),
                            &mut secret_len,
                        ),
                        "encapsulation",
                    )
                })?;
                let ctx = Ctx(EVP_PKEY_CTX_new_from_pkey(null_mut(), key.as_ptr(), s.properties()));
                ok(EVP_PKEY_decapsulate_init(ctx.0, null()), "decapsulation")?;
                let second = time(|| {
                    ok(
                        EVP_PKEY_decapsulate(
                            ctx.0,
                            secret.as_mut_ptr(),
                            &mut secret_len,
                            ciphertext.as_ptr(),
                            ciphertext.len(),
                        ),
                        "decapsulation",
                    )
                })?;
                (first, second)
            }
            _ => {
                let digest = s.digest.as_ref().map_or(null(), |d| d.as_ptr());
                let message = [0x5a; 130]; // a CertificateVerify's, with SHA-256
                let (mut signature, mut len) = (Vec::new(), 0);
                let first = time(|| {
                    let ctx = MdCtx(EVP_MD_CTX_new());
                    ok(
                        EVP_DigestSignInit_ex(
                            ctx.0,
                            null_mut(),
                            digest,
                            null_mut(),
                            s.properties(),
                            key.as_ptr(),
                            null(),
                        ),
                        "signing",
                    )?;
                    ok(EVP_DigestSign(ctx.0, null_mut(), &mut len, message.as_ptr(), message.len()), "signing")?;
                    signature.resize(len, 0);
                    ok(
                        EVP_DigestSign(ctx.0, signature.as_mut_ptr(), &mut len, message.as_ptr(), message.len()),
                        "signing",
                    )
                })?;
                let second = time(|| {
                    let ctx = MdCtx(EVP_MD_CTX_new());
                    ok(
                        EVP_DigestVerifyInit_ex(
                            ctx.0,
                            null_mut(),
                            digest,
                            null_mut(),
                            s.properties(),
                            key.as_ptr(),
                            null(),
                        ),
                        "verifying",
                    )?;
                    ok(EVP_DigestVerify(ctx.0, signature.as_ptr(), len, message.as_ptr(), message.len()), "verifying")
                })?;
                (first, second)
            }
        }
    };
    Ok(Some([generation, first, second]))
}

pub fn run(only: &str) -> Result<()> {
    let _default = Provider::load(None, "default")?;
    let _ours = Provider::load(None, "oqsprovider")?;
    println!("Microseconds (operations per second) of CPU, median of {BATCHES} batches\n");
    println!(
        "{:<30} {:<12} {:>5} {:>22} {:>22} {:>22}",
        "algorithm", "provider", "level", "key generation", "encapsulate / sign", "decapsulate / verify"
    );
    for line in TABLE.lines().skip(1).filter(|l| l.contains(only)) {
        let row: Vec<&str> = line.split(',').collect();
        for provider in PROVIDERS {
            let Some(subject) = Subject::new(&row, provider) else { continue };
            let outcome = measure(&subject, row[2]).map_err(|e| format!("{} of {provider}: {e}", row[0]))?;
            let Some(times) = outcome else { continue };
            let cell = |t: f64| format!("{t:.1} ({:.0})", 1e6 / t);
            println!(
                "{:<30} {provider:<12} {:>5} {:>22} {:>22} {:>22}",
                row[0],
                row[4],
                cell(times[0]),
                cell(times[1]),
                cell(times[2])
            );
        }
    }
    Ok(())
}
