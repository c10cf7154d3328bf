//! The part of libcrypto that the tests call.
#![allow(non_camel_case_types)]

use oqsprovider::{algorithm::Algorithm, der, openssl::abi::Param};
use std::{
    ffi::{c_char, c_int, c_ulong, c_void, CStr, CString},
    path::Path,
    ptr::{null, null_mut},
};

type Ptr = *mut c_void;

#[link(name = "crypto")]
extern "C" {
    fn OSSL_LIB_CTX_new() -> Ptr;
    fn OSSL_LIB_CTX_free(ctx: Ptr);
    fn OSSL_PROVIDER_set_default_search_path(ctx: Ptr, path: *const c_char) -> c_int;
    fn OSSL_PROVIDER_load(ctx: Ptr, name: *const c_char) -> Ptr;
    fn OSSL_PROVIDER_unload(provider: Ptr) -> c_int;
    fn OSSL_PROVIDER_get_capabilities(
        provider: Ptr,
        capability: *const c_char,
        callback: unsafe extern "C" fn(*const c_void, Ptr) -> c_int,
        arg: Ptr,
    ) -> c_int;
    fn EVP_PKEY_Q_keygen(ctx: Ptr, propq: *const c_char, kind: *const c_char, ...) -> Ptr;
    fn EVP_PKEY_free(key: Ptr);
    fn EVP_PKEY_get1_encoded_public_key(key: Ptr, out: *mut *mut u8) -> usize;
    fn EVP_PKEY_CTX_new_from_pkey(ctx: Ptr, key: Ptr, propq: *const c_char) -> Ptr;
    fn EVP_PKEY_CTX_free(ctx: Ptr);
    fn EVP_PKEY_encapsulate_init(ctx: Ptr, params: *const c_void) -> c_int;
    fn EVP_PKEY_encapsulate(ctx: Ptr, out: *mut u8, len: *mut usize, secret: *mut u8, n: *mut usize) -> c_int;
    fn EVP_PKEY_decapsulate_init(ctx: Ptr, params: *const c_void) -> c_int;
    fn EVP_PKEY_decapsulate(ctx: Ptr, secret: *mut u8, n: *mut usize, data: *const u8, len: usize) -> c_int;
    fn EVP_MD_CTX_new() -> Ptr;
    fn EVP_MD_CTX_free(ctx: Ptr);
    fn EVP_DigestSignInit_ex(
        ctx: Ptr,
        pctx: *mut Ptr,
        md: *const c_char,
        lib: Ptr,
        propq: *const c_char,
        key: Ptr,
        params: *const c_void,
    ) -> c_int;
    fn EVP_DigestVerifyInit_ex(
        ctx: Ptr,
        pctx: *mut Ptr,
        md: *const c_char,
        lib: Ptr,
        propq: *const c_char,
        key: Ptr,
        params: *const c_void,
    ) -> c_int;
    fn EVP_DigestSign(ctx: Ptr, sig: *mut u8, len: *mut usize, data: *const u8, n: usize) -> c_int;
    fn EVP_DigestVerify(ctx: Ptr, sig: *const u8, len: usize, data: *const u8, n: usize) -> c_int;
    fn BIO_new_mem_buf(data: *const c_void, len: c_int) -> Ptr;
    fn BIO_free(bio: Ptr) -> c_int;
    fn PEM_read_bio_PrivateKey_ex(b: Ptr, out: *mut Ptr, cb: Ptr, arg: Ptr, ctx: Ptr, propq: *const c_char) -> Ptr;
    fn OSSL_ENCODER_CTX_new_for_pkey(
        key: Ptr,
        selection: c_int,
        output: *const c_char,
        structure: *const c_char,
        propq: *const c_char,
    ) -> Ptr;
    fn OSSL_ENCODER_CTX_set_params(ctx: Ptr, params: *const Param) -> c_int;
    fn OSSL_ENCODER_CTX_set_passphrase(ctx: Ptr, passphrase: *const u8, len: usize) -> c_int;
    fn OSSL_ENCODER_CTX_free(ctx: Ptr);
    fn OSSL_ENCODER_to_data(ctx: Ptr, data: *mut *mut u8, len: *mut usize) -> c_int;
    fn OSSL_DECODER_CTX_new_for_pkey(
        key: *mut Ptr,
        input: *const c_char,
        structure: *const c_char,
        kind: *const c_char,
        selection: c_int,
        ctx: Ptr,
        propq: *const c_char,
    ) -> Ptr;
    fn OSSL_DECODER_CTX_free(ctx: Ptr);
    fn OSSL_DECODER_from_data(ctx: Ptr, data: *mut *const u8, len: *mut usize) -> c_int;
    fn PEM_read_bio_PUBKEY_ex(b: Ptr, out: *mut Ptr, cb: Ptr, arg: Ptr, ctx: Ptr, propq: *const c_char) -> Ptr;
    fn i2d_PUBKEY(key: Ptr, out: *mut *mut u8) -> c_int;
    fn i2d_PrivateKey(key: Ptr, out: *mut *mut u8) -> c_int;
    fn CRYPTO_free(p: Ptr, file: *const c_char, line: c_int);
    fn ERR_clear_error();
    fn ERR_get_error_all(
        file: *mut *const c_char,
        line: *mut c_int,
        func: *mut *const c_char,
        data: *mut *const c_char,
        flags: *mut c_int,
    ) -> c_ulong;
    fn ERR_reason_error_string(code: c_ulong) -> *const c_char;
    fn ASYNC_init_thread(max: usize, init: usize) -> c_int;
    fn ASYNC_cleanup_thread();
    fn ASYNC_set_mem_functions(
        alloc: unsafe extern "C" fn(*mut usize) -> Ptr,
        free: unsafe extern "C" fn(Ptr),
    ) -> c_int;
    fn ASYNC_WAIT_CTX_new() -> Ptr;
    fn ASYNC_WAIT_CTX_free(ctx: Ptr);
    fn ASYNC_start_job(
        job: *mut Ptr,
        ctx: Ptr,
        ret: *mut c_int,
        f: unsafe extern "C" fn(Ptr) -> c_int,
        args: Ptr,
        size: usize,
    ) -> c_int;
    fn ASYNC_pause_job() -> c_int;
}

/// A library context with the default provider and the module.
pub struct Context {
    pub ctx: Ptr,
    providers: [Ptr; 2],
}

// SAFETY: library contexts and keys may be used by several threads.
unsafe impl Send for Context {}
unsafe impl Sync for Context {}
unsafe impl Send for Key {}
unsafe impl Sync for Key {}

impl Context {
    pub fn new(modules: &Path) -> Context {
        let path = CString::new(modules.to_str().unwrap()).unwrap();
        // SAFETY: the strings live for the calls.
        unsafe {
            let ctx = OSSL_LIB_CTX_new();
            assert_eq!(OSSL_PROVIDER_set_default_search_path(ctx, path.as_ptr()), 1);
            let providers = [c"default", c"oqsprovider"].map(|name| OSSL_PROVIDER_load(ctx, name.as_ptr()));
            assert!(providers.iter().all(|p| !p.is_null()), "{:?}", errors());
            Context { ctx, providers }
        }
    }

    pub fn generate(&self, algorithm: &Algorithm) -> Result<Key, String> {
        self.generate_by_name(algorithm.name)
    }

    /// Also of algorithms that OpenSSL has.
    pub fn generate_by_name(&self, name: &str) -> Result<Key, String> {
        let name = CString::new(name).unwrap();
        // SAFETY: these kinds have no variable argument.
        let key = unsafe { EVP_PKEY_Q_keygen(self.ctx, null(), name.as_ptr()) };
        if key.is_null() {
            return Err(errors());
        }
        Ok(Key { ctx: self.ctx, key })
    }

    /// A key from DER, by way of PEM as programs read it; an error is what OpenSSL's queue then has.
    pub fn decode(&self, der: &[u8], private: bool) -> Result<Key, String> {
        let pem = der::pem(if private { "PRIVATE KEY" } else { "PUBLIC KEY" }, der);
        // SAFETY: the length is the string's.
        let key = unsafe {
            ERR_clear_error();
            let bio = BIO_new_mem_buf(pem.as_ptr().cast(), pem.len() as c_int);
            let read = if private { PEM_read_bio_PrivateKey_ex } else { PEM_read_bio_PUBKEY_ex };
            let key = read(bio, null_mut(), null_mut(), null_mut(), self.ctx, null());
            BIO_free(bio);
            key
        };
        if key.is_null() {
            return Err(errors());
        }
        Ok(Key { ctx: self.ctx, key })
    }

    /// A key from DER, of which there are to be those parts: it may be of any structure.
    pub fn decode_selected(&self, der: &[u8], selection: c_int) -> Result<Key, String> {
        let (mut key, mut data, mut len) = (null_mut(), der.as_ptr(), der.len());
        // SAFETY: the length is the slice's.
        unsafe {
            ERR_clear_error();
            let input = c"DER".as_ptr();
            let ctx = OSSL_DECODER_CTX_new_for_pkey(&mut key, input, null(), null(), selection, self.ctx, null());
            let ok = OSSL_DECODER_from_data(ctx, &mut data, &mut len);
            OSSL_DECODER_CTX_free(ctx);
            check("decoding", ok)?;
        }
        Ok(Key { ctx: self.ctx, key })
    }

    /// How many groups and signature schemes the module offers to TLS.
    pub fn capabilities(&self) -> (usize, usize) {
        unsafe extern "C" fn count(_: *const c_void, arg: Ptr) -> c_int {
            *arg.cast::<usize>() += 1;
            1
        }
        let [groups, schemes] = [c"TLS-GROUP", c"TLS-SIGALG"].map(|name| {
            let mut n = 0usize;
            // SAFETY: the argument is the counter.
            let ok =
                unsafe { OSSL_PROVIDER_get_capabilities(self.providers[1], name.as_ptr(), count, (&raw mut n).cast()) };
            assert_eq!(ok, 1);
            n
        });
        (groups, schemes)
    }

    /// Leaves it, and its providers, where they are.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: both are ours.
        unsafe {
            for p in self.providers {
                assert_eq!(OSSL_PROVIDER_unload(p), 1);
            }
            OSSL_LIB_CTX_free(self.ctx);
        }
    }
}

pub struct Key {
    ctx: Ptr,
    key: Ptr,
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        unsafe { EVP_PKEY_free(self.key) }
    }
}

fn check(what: &str, code: c_int) -> Result<(), String> {
    if code == 1 {
        Ok(())
    } else {
        Err(format!("{what}: {}", errors()))
    }
}

const MESSAGE: &[u8] = b"message";

impl Key {
    fn der(&self, f: unsafe extern "C" fn(Ptr, *mut *mut u8) -> c_int) -> Vec<u8> {
        let mut out = null_mut();
        // SAFETY: libcrypto allocates what it returns.
        unsafe {
            let len = f(self.key, &mut out);
            assert!(len > 0, "{}", errors());
            let bytes = std::slice::from_raw_parts(out, len as usize).to_vec();
            CRYPTO_free(out.cast(), c"".as_ptr(), 0);
            bytes
        }
    }

    pub fn public_der(&self) -> Vec<u8> {
        self.der(i2d_PUBKEY)
    }

    pub fn private_der(&self) -> Vec<u8> {
        self.der(i2d_PrivateKey)
    }

    pub fn share(&self) -> Vec<u8> {
        let mut out = null_mut();
        // SAFETY: libcrypto allocates what it returns.
        unsafe {
            let len = EVP_PKEY_get1_encoded_public_key(self.key, &mut out);
            assert!(len > 0, "{}", errors());
            let bytes = std::slice::from_raw_parts(out, len).to_vec();
            CRYPTO_free(out.cast(), c"".as_ptr(), 0);
            bytes
        }
    }

    /// Those parts of the key, in a structure if one is named, with parameters for the encoder.
    pub fn encode(&self, selection: c_int, structure: Option<&CStr>, params: &[Param]) -> Result<Vec<u8>, String> {
        let (mut data, mut len) = (null_mut(), 0);
        // SAFETY: libcrypto allocates what it returns.
        unsafe {
            ERR_clear_error();
            let (der, structure) = (c"DER".as_ptr(), structure.map_or(null(), CStr::as_ptr));
            let ctx = OSSL_ENCODER_CTX_new_for_pkey(self.key, selection, der, structure, null());
            assert_eq!(OSSL_ENCODER_CTX_set_passphrase(ctx, b"pass".as_ptr(), 4), 1);
            let mut ok = 1;
            if let [.., end] = params {
                assert!(end.key.is_null());
                ok = OSSL_ENCODER_CTX_set_params(ctx, params.as_ptr());
            }
            if ok == 1 {
                ok = OSSL_ENCODER_to_data(ctx, &mut data, &mut len);
            }
            OSSL_ENCODER_CTX_free(ctx);
            check("encoding", ok)?;
            let bytes = std::slice::from_raw_parts(data, len).to_vec();
            CRYPTO_free(data.cast(), c"".as_ptr(), 0);
            Ok(bytes)
        }
    }

    /// Encapsulates and decapsulates, or signs and verifies. It runs on small stacks, too: no large frames here.
    pub fn work(&self, algorithm: &Algorithm) -> Result<(), String> {
        if algorithm.is_signature() {
            let mut signature = vec![0; algorithm.output_size()];
            let len = self.sign(&mut signature)?;
            self.verify(&signature[..len])
        } else {
            let mut ciphertext = vec![0; algorithm.output_size()];
            let mut secret = vec![0; algorithm.secret_size()];
            let mut got = vec![0; algorithm.secret_size()];
            self.encapsulate(&mut ciphertext, &mut secret)?;
            self.decapsulate(&ciphertext, &mut got)?;
            if got == secret {
                Ok(())
            } else {
                Err("the secrets differ".into())
            }
        }
    }

    pub fn sign(&self, signature: &mut [u8]) -> Result<usize, String> {
        let mut len = signature.len();
        // SAFETY: the lengths are the slices'.
        unsafe {
            let ctx = EVP_MD_CTX_new();
            let mut ok = EVP_DigestSignInit_ex(ctx, null_mut(), null(), self.ctx, null(), self.key, null());
            if ok == 1 {
                ok = EVP_DigestSign(ctx, signature.as_mut_ptr(), &mut len, MESSAGE.as_ptr(), MESSAGE.len());
            }
            EVP_MD_CTX_free(ctx);
            check("signing", ok).map(|()| len)
        }
    }

    fn verify(&self, signature: &[u8]) -> Result<(), String> {
        // SAFETY: the lengths are the slices'.
        unsafe {
            let ctx = EVP_MD_CTX_new();
            let mut ok = EVP_DigestVerifyInit_ex(ctx, null_mut(), null(), self.ctx, null(), self.key, null());
            if ok == 1 {
                ok = EVP_DigestVerify(ctx, signature.as_ptr(), signature.len(), MESSAGE.as_ptr(), MESSAGE.len());
            }
            EVP_MD_CTX_free(ctx);
            check("verification", ok)
        }
    }

    pub fn encapsulate(&self, ciphertext: &mut [u8], secret: &mut [u8]) -> Result<(), String> {
        let (mut len, mut n) = (ciphertext.len(), secret.len());
        // SAFETY: the lengths are the slices'.
        unsafe {
            let ctx = EVP_PKEY_CTX_new_from_pkey(self.ctx, self.key, null());
            let mut ok = EVP_PKEY_encapsulate_init(ctx, null());
            if ok == 1 {
                ok = EVP_PKEY_encapsulate(ctx, ciphertext.as_mut_ptr(), &mut len, secret.as_mut_ptr(), &mut n);
            }
            EVP_PKEY_CTX_free(ctx);
            check("encapsulation", ok)
        }
    }

    pub fn decapsulate(&self, ciphertext: &[u8], secret: &mut [u8]) -> Result<(), String> {
        let mut n = secret.len();
        // SAFETY: the lengths are the slices'.
        unsafe {
            let ctx = EVP_PKEY_CTX_new_from_pkey(self.ctx, self.key, null());
            let mut ok = EVP_PKEY_decapsulate_init(ctx, null());
            if ok == 1 {
                ok = EVP_PKEY_decapsulate(ctx, secret.as_mut_ptr(), &mut n, ciphertext.as_ptr(), ciphertext.len());
            }
            EVP_PKEY_CTX_free(ctx);
            check("decapsulation", ok)
        }
    }
}

/// What OpenSSL's error queue has: "reason: detail; ...".
pub fn errors() -> String {
    let mut all = vec![];
    let text = |p: *const c_char| {
        // SAFETY: a string of the queue, which is copied at once.
        if p.is_null() {
            String::new()
        } else {
            unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
        }
    };
    loop {
        let mut data = null();
        let mut flags = 0;
        // SAFETY: what is null is not told.
        let code = unsafe { ERR_get_error_all(null_mut(), null_mut(), null_mut(), &mut data, &mut flags) };
        if code == 0 {
            return all.join("; ");
        }
        // SAFETY: it gives a string or null.
        all.push(format!("{}: {}", text(unsafe { ERR_reason_error_string(code) }), text(data)));
    }
}

/// The stacks of OpenSSL's fibres: OpenSSL asks for 32 KiB. A page that cannot be touched is below each.
pub mod fibre {
    use super::*;
    use std::sync::Mutex;

    const PAGE: usize = 4096;
    const PATTERN: u8 = 0xa5;
    static STACKS: Mutex<Vec<(usize, usize)>> = Mutex::new(vec![]);

    unsafe extern "C" fn alloc(size: *mut usize) -> Ptr {
        let len = *size + PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base = libc::mmap(null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert!(base != libc::MAP_FAILED && libc::mprotect(base, PAGE, libc::PROT_NONE) == 0);
        let stack = base.add(PAGE);
        libc::memset(stack, PATTERN.into(), *size);
        STACKS.lock().unwrap().push((stack as usize, *size));
        stack
    }

    unsafe extern "C" fn free(_: Ptr) {} // it is looked at afterwards

    /// One fibre for this thread.
    pub fn prepare() {
        // SAFETY: no fibre has been made yet.
        unsafe {
            assert_eq!(ASYNC_set_mem_functions(alloc, free), 1);
            assert_eq!(ASYNC_init_thread(2, 0), 1);
        }
    }

    pub fn finish() {
        // SAFETY: no job is under way.
        unsafe { ASYNC_cleanup_thread() };
    }

    /// The sizes of the stacks, and how much of each was touched, in bytes.
    pub fn touched() -> Vec<(usize, usize)> {
        let look = |(stack, size): &(usize, usize)| {
            // SAFETY: they are never unmapped.
            let bytes = unsafe { std::slice::from_raw_parts(*stack as *const u8, *size) };
            (*size, size - bytes.iter().position(|b| *b != PATTERN).unwrap_or(*size))
        };
        STACKS.lock().unwrap().iter().map(look).collect()
    }

    /// Makes the stacks as if nobody had used them. Only between jobs.
    pub fn forget() {
        for (stack, size) in STACKS.lock().unwrap().iter() {
            // What is above is in use by the fibre's own context.
            let used = 1024;
            // SAFETY: they are never unmapped, and no job is under way.
            unsafe { libc::memset(*stack as Ptr, PATTERN.into(), size - used) };
        }
    }

    pub struct Job {
        job: Ptr,
        wait: Ptr,
        f: Option<Box<dyn FnMut() -> c_int>>,
    }

    unsafe extern "C" fn call(arg: Ptr) -> c_int {
        let job = *arg.cast::<*mut Job>();
        ((*job).f.as_mut().unwrap())()
    }

    impl Job {
        pub fn new(f: impl FnMut() -> c_int + 'static) -> Box<Job> {
            // SAFETY: it makes a new one.
            Box::new(Job { job: null_mut(), wait: unsafe { ASYNC_WAIT_CTX_new() }, f: Some(Box::new(f)) })
        }

        /// Runs it until it is over: its result. None where it pauses before.
        pub fn run(self: &mut Box<Job>) -> Option<c_int> {
            let mut result = -1;
            let mut this: *mut Job = &mut **self;
            // SAFETY: OpenSSL copies the argument, which is a pointer to this job, which stays.
            let status = unsafe {
                ASYNC_start_job(
                    &mut (*this).job,
                    (*this).wait,
                    &mut result,
                    call,
                    (&raw mut this).cast(),
                    size_of::<*mut Job>(),
                )
            };
            match status {
                3 => Some(result), // ASYNC_FINISH
                2 => None,         // ASYNC_PAUSE
                other => panic!("ASYNC_start_job: {other}: {}", errors()),
            }
        }
    }

    impl Drop for Job {
        fn drop(&mut self) {
            // SAFETY: it is ours.
            unsafe { ASYNC_WAIT_CTX_free(self.wait) }
        }
    }

    pub fn pause() {
        // SAFETY: it returns when the job is run again.
        unsafe { ASYNC_pause_job() };
    }
}
