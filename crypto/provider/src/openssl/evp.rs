//! The part of libcrypto's EVP interface that the classical halves, encryption of keys and randomness need.

use super::abi::{c_char, c_int, c_long, c_uint, c_void, Dispatch, Param};
use std::{
    ffi::CStr,
    ptr::{null, null_mut},
};
use zeroize::Zeroizing;

pub enum LibCtx {}
pub enum EvpPkey {}
enum EvpPkeyCtx {}
enum EvpMdCtx {}
enum EvpCipher {}
enum EvpMd {}
enum Pkcs8PrivKeyInfo {}
enum X509Sig {}

#[link(name = "crypto")]
extern "C" {
    fn OPENSSL_version_major() -> c_uint;
    fn OSSL_LIB_CTX_new_child(handle: *const c_void, functions: *const Dispatch) -> *mut LibCtx;
    fn OSSL_LIB_CTX_free(ctx: *mut LibCtx);
    fn RAND_priv_bytes_ex(ctx: *mut LibCtx, buf: *mut u8, n: usize, strength: c_uint) -> c_int;
    fn EVP_PKEY_Q_keygen(ctx: *mut LibCtx, propq: *const c_char, kind: *const c_char, ...) -> *mut EvpPkey;
    fn EVP_PKEY_free(key: *mut EvpPkey);
    fn EVP_PKEY_up_ref(key: *mut EvpPkey) -> c_int;
    fn EVP_PKEY_get_bits(key: *const EvpPkey) -> c_int;
    fn EVP_PKEY_is_a(key: *const EvpPkey, name: *const c_char) -> c_int;
    fn EVP_PKEY_get_group_name(key: *const EvpPkey, name: *mut c_char, size: usize, len: *mut usize) -> c_int;
    fn EVP_PKEY_eq(a: *const EvpPkey, b: *const EvpPkey) -> c_int;
    fn EVP_PKEY_get1_encoded_public_key(key: *mut EvpPkey, out: *mut *mut u8) -> usize;
    fn EVP_PKEY_get_raw_private_key(key: *const EvpPkey, out: *mut u8, len: *mut usize) -> c_int;
    fn EVP_PKEY_new_raw_private_key_ex(
        ctx: *mut LibCtx,
        kind: *const c_char,
        propq: *const c_char,
        key: *const u8,
        len: usize,
    ) -> *mut EvpPkey;
    fn EVP_PKEY_new_raw_public_key_ex(
        ctx: *mut LibCtx,
        kind: *const c_char,
        propq: *const c_char,
        key: *const u8,
        len: usize,
    ) -> *mut EvpPkey;
    fn EVP_PKEY_CTX_new_from_name(ctx: *mut LibCtx, name: *const c_char, propq: *const c_char) -> *mut EvpPkeyCtx;
    fn EVP_PKEY_CTX_new_from_pkey(ctx: *mut LibCtx, key: *mut EvpPkey, propq: *const c_char) -> *mut EvpPkeyCtx;
    fn EVP_PKEY_CTX_free(ctx: *mut EvpPkeyCtx);
    fn EVP_PKEY_fromdata_init(ctx: *mut EvpPkeyCtx) -> c_int;
    fn EVP_PKEY_fromdata(ctx: *mut EvpPkeyCtx, key: *mut *mut EvpPkey, selection: c_int, params: *mut Param) -> c_int;
    fn EVP_PKEY_derive_init(ctx: *mut EvpPkeyCtx) -> c_int;
    fn EVP_PKEY_derive_set_peer(ctx: *mut EvpPkeyCtx, peer: *mut EvpPkey) -> c_int;
    fn EVP_PKEY_derive(ctx: *mut EvpPkeyCtx, out: *mut u8, len: *mut usize) -> c_int;
    fn d2i_AutoPrivateKey_ex(
        key: *mut *mut EvpPkey,
        der: *mut *const u8,
        len: c_long,
        ctx: *mut LibCtx,
        propq: *const c_char,
    ) -> *mut EvpPkey;
    fn i2d_PrivateKey(key: *const EvpPkey, out: *mut *mut u8) -> c_int;
    fn i2d_PublicKey(key: *const EvpPkey, out: *mut *mut u8) -> c_int;
    fn EVP_MD_CTX_new() -> *mut EvpMdCtx;
    fn EVP_MD_CTX_free(ctx: *mut EvpMdCtx);
    fn EVP_MD_CTX_copy_ex(out: *mut EvpMdCtx, from: *const EvpMdCtx) -> c_int;
    fn EVP_MD_fetch(ctx: *mut LibCtx, name: *const c_char, propq: *const c_char) -> *mut EvpMd;
    fn EVP_MD_free(md: *mut EvpMd);
    fn EVP_MD_get_size(md: *const EvpMd) -> c_int;
    fn EVP_DigestInit_ex2(ctx: *mut EvpMdCtx, md: *const EvpMd, params: *const Param) -> c_int;
    fn EVP_DigestUpdate(ctx: *mut EvpMdCtx, data: *const c_void, len: usize) -> c_int;
    fn EVP_DigestFinal_ex(ctx: *mut EvpMdCtx, out: *mut u8, len: *mut c_uint) -> c_int;
    fn EVP_DigestSignInit_ex(
        ctx: *mut EvpMdCtx,
        pctx: *mut *mut EvpPkeyCtx,
        md: *const c_char,
        lib: *mut LibCtx,
        propq: *const c_char,
        key: *mut EvpPkey,
        params: *const Param,
    ) -> c_int;
    fn EVP_DigestVerifyInit_ex(
        ctx: *mut EvpMdCtx,
        pctx: *mut *mut EvpPkeyCtx,
        md: *const c_char,
        lib: *mut LibCtx,
        propq: *const c_char,
        key: *mut EvpPkey,
        params: *const Param,
    ) -> c_int;
    fn EVP_DigestSign(ctx: *mut EvpMdCtx, sig: *mut u8, len: *mut usize, data: *const u8, n: usize) -> c_int;
    fn EVP_DigestVerify(ctx: *mut EvpMdCtx, sig: *const u8, len: usize, data: *const u8, n: usize) -> c_int;
    fn EVP_Q_mac(
        ctx: *mut LibCtx,
        name: *const c_char,
        propq: *const c_char,
        subalg: *const c_char,
        params: *const Param,
        key: *const c_void,
        keylen: usize,
        data: *const u8,
        datalen: usize,
        out: *mut u8,
        outsize: usize,
        outlen: *mut usize,
    ) -> *mut u8;
    fn EVP_CIPHER_fetch(ctx: *mut LibCtx, name: *const c_char, propq: *const c_char) -> *mut EvpCipher;
    fn EVP_CIPHER_free(cipher: *mut EvpCipher);
    fn d2i_PKCS8_PRIV_KEY_INFO(
        out: *mut *mut Pkcs8PrivKeyInfo,
        der: *mut *const u8,
        len: c_long,
    ) -> *mut Pkcs8PrivKeyInfo;
    fn PKCS8_PRIV_KEY_INFO_free(info: *mut Pkcs8PrivKeyInfo);
    fn PKCS8_encrypt_ex(
        pbe: c_int,
        cipher: *const EvpCipher,
        pass: *const c_char,
        passlen: c_int,
        salt: *mut u8,
        saltlen: c_int,
        iterations: c_int,
        info: *mut Pkcs8PrivKeyInfo,
        ctx: *mut LibCtx,
        propq: *const c_char,
    ) -> *mut X509Sig;
    fn i2d_X509_SIG(sig: *const X509Sig, out: *mut *mut u8) -> c_int;
    fn X509_SIG_free(sig: *mut X509Sig);
    fn CRYPTO_clear_free(p: *mut c_void, len: usize, file: *const c_char, line: c_int);
    fn ERR_set_mark() -> c_int;
    fn ERR_pop_to_mark() -> c_int;
}

/// A failure of libcrypto; its own errors are on OpenSSL's queue already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure;

type Result<T> = std::result::Result<T, Failure>;

fn succeeded(code: c_int) -> Result<()> {
    if code == 1 {
        Ok(())
    } else {
        Err(Failure)
    }
}

/// What libcrypto allocated, as bytes, wiped there and here.
///
/// # Safety
/// `p` is an allocation of libcrypto's of at least `len` bytes, or null.
unsafe fn take_bytes(p: *mut u8, len: usize) -> Result<Zeroizing<Vec<u8>>> {
    if p.is_null() || len == 0 {
        return Err(Failure);
    }
    let bytes = Zeroizing::new(std::slice::from_raw_parts(p, len).to_vec());
    CRYPTO_clear_free(p.cast(), len, c"".as_ptr(), 0);
    Ok(bytes)
}

macro_rules! owned {
    ($name:ident, $raw:ident, $free:ident) => {
        struct $name(*mut $raw);
        impl $name {
            fn new(p: *mut $raw) -> Result<Self> {
                if p.is_null() {
                    Err(Failure)
                } else {
                    Ok($name(p))
                }
            }
        }
        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: it is owned and not null.
                unsafe { $free(self.0) }
            }
        }
    };
}
owned!(PkeyCtx, EvpPkeyCtx, EVP_PKEY_CTX_free);
owned!(MdCtx, EvpMdCtx, EVP_MD_CTX_free);
owned!(Md, EvpMd, EVP_MD_free);
owned!(Cipher, EvpCipher, EVP_CIPHER_free);
owned!(Pkcs8, Pkcs8PrivKeyInfo, PKCS8_PRIV_KEY_INFO_free);
owned!(EncryptedPkcs8, X509Sig, X509_SIG_free);

/// The provider's own library context: algorithms and randomness come from the providers of the application's.
pub struct Library(*mut LibCtx);

// SAFETY: library contexts may be used by several threads.
unsafe impl Send for Library {}
unsafe impl Sync for Library {}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: it is owned; null, the default one, is left alone.
        unsafe { OSSL_LIB_CTX_free(self.0) }
    }
}

impl Library {
    /// # Safety
    /// The arguments are those of OSSL_provider_init.
    pub unsafe fn child(handle: *const c_void, functions: *const Dispatch) -> Result<Library> {
        let ctx = OSSL_LIB_CTX_new_child(handle, functions);
        if ctx.is_null() {
            Err(Failure)
        } else {
            Ok(Library(ctx))
        }
    }

    /// The major version of the libcrypto that the module is linked with.
    pub fn major_version() -> u32 {
        // SAFETY: it only answers.
        unsafe { OPENSSL_version_major() }
    }

    /// The process's default context: for tests, which run without a provider.
    #[cfg(test)]
    pub fn process_default() -> Library {
        Library(null_mut())
    }

    /// A context of its own, whose generator fails on every thread that has not called `repeat`.
    #[cfg(test)]
    pub fn without_randomness() -> Library {
        extern "C" {
            fn OSSL_LIB_CTX_new() -> *mut LibCtx;
            fn RAND_set_DRBG_type(
                ctx: *mut LibCtx,
                drbg: *const c_char,
                propq: *const c_char,
                cipher: *const c_char,
                digest: *const c_char,
            ) -> c_int;
        }
        // SAFETY: the context is new. TEST-RAND gives what it was given before: nothing.
        unsafe {
            let ctx = OSSL_LIB_CTX_new();
            assert_eq!(RAND_set_DRBG_type(ctx, c"TEST-RAND".as_ptr(), null(), null(), null()), 1);
            Library(ctx)
        }
    }

    /// From now on, this thread's numbers of a context `without_randomness` follow from `stream` (EVP_RAND-TEST-RAND(7)):
    /// that many KiB of one sequence are left out.
    #[cfg(test)]
    pub fn repeat(&self, stream: usize) {
        enum EvpRandCtx {}
        extern "C" {
            fn RAND_get0_public(ctx: *mut LibCtx) -> *mut EvpRandCtx;
            fn RAND_get0_private(ctx: *mut LibCtx) -> *mut EvpRandCtx;
            fn EVP_RAND_instantiate(
                rand: *mut EvpRandCtx,
                strength: c_uint,
                prediction_resistance: c_int,
                personalization: *const u8,
                len: usize,
                params: *const Param,
            ) -> c_int;
            fn EVP_RAND_generate(
                rand: *mut EvpRandCtx,
                out: *mut u8,
                len: usize,
                strength: c_uint,
                prediction_resistance: c_int,
                additional: *const u8,
                additional_len: usize,
            ) -> c_int;
        }
        assert!(!self.0.is_null(), "the process's default context is everybody's");
        let params = [Param::unsigned(c"generate", &1), Param::unsigned(c"strength", &256), Param::END];
        let mut left_out = vec![0; stream << 10];
        // SAFETY: both generators are this thread's; the lengths are those of what is passed.
        unsafe {
            for rand in [RAND_get0_public(self.0), RAND_get0_private(self.0)] {
                assert_eq!(EVP_RAND_instantiate(rand, 0, 0, null(), 0, params.as_ptr()), 1);
                assert_eq!(EVP_RAND_generate(rand, left_out.as_mut_ptr(), left_out.len(), 0, 0, null(), 0), 1);
            }
        }
    }

    /// Secret random bytes of the context's generator.
    pub fn random(&self, out: &mut [u8]) -> Result<()> {
        // SAFETY: the length is the slice's.
        succeeded(unsafe { RAND_priv_bytes_ex(self.0, out.as_mut_ptr(), out.len(), 0) })
    }

    /// HMAC with SHA-256.
    pub fn hmac_sha256(&self, key: &[u8], data: &[u8]) -> Result<Zeroizing<[u8; 32]>> {
        let mut out = Zeroizing::new([0u8; 32]);
        let mut len = 0;
        // SAFETY: the lengths are the slices'.
        let p = unsafe {
            EVP_Q_mac(
                self.0,
                c"HMAC".as_ptr(),
                null(),
                c"SHA256".as_ptr(),
                null(),
                key.as_ptr().cast(),
                key.len(),
                data.as_ptr(),
                data.len(),
                out.as_mut_ptr(),
                out.len(),
                &mut len,
            )
        };
        if p.is_null() || len != out.len() {
            return Err(Failure);
        }
        Ok(out)
    }

    /// A new EC key on a curve.
    pub fn generate_ec(&self, curve: &CStr) -> Result<Pkey> {
        // SAFETY: the variable argument of "EC" is the curve's name.
        Pkey::new(unsafe { EVP_PKEY_Q_keygen(self.0, null(), c"EC".as_ptr(), curve.as_ptr()) })
    }

    /// A new X25519 or X448 key.
    pub fn generate_xdh(&self, kind: &CStr) -> Result<Pkey> {
        // SAFETY: these kinds have no variable argument.
        Pkey::new(unsafe { EVP_PKEY_Q_keygen(self.0, null(), kind.as_ptr()) })
    }

    /// A new RSA key.
    pub fn generate_rsa(&self, bits: usize) -> Result<Pkey> {
        // SAFETY: the variable argument of "RSA" is a size_t.
        Pkey::new(unsafe { EVP_PKEY_Q_keygen(self.0, null(), c"RSA".as_ptr(), bits) })
    }

    pub fn xdh_public(&self, kind: &CStr, bytes: &[u8]) -> Result<Pkey> {
        // SAFETY: the length is the slice's.
        Pkey::new(unsafe { EVP_PKEY_new_raw_public_key_ex(self.0, kind.as_ptr(), null(), bytes.as_ptr(), bytes.len()) })
    }

    pub fn xdh_private(&self, kind: &CStr, bytes: &[u8]) -> Result<Pkey> {
        // SAFETY: the length is the slice's.
        Pkey::new(unsafe {
            EVP_PKEY_new_raw_private_key_ex(self.0, kind.as_ptr(), null(), bytes.as_ptr(), bytes.len())
        })
    }

    /// An EC public key from an encoded point; libcrypto checks that it is on the curve.
    pub fn ec_public(&self, curve: &CStr, point: &[u8]) -> Result<Pkey> {
        self.import(c"EC", &mut [Param::string(c"group", curve), Param::octets(c"pub", point), Param::END])
    }

    /// An RSA public key from a PKCS#1 RSAPublicKey.
    pub fn rsa_public(&self, modulus: &[u8], exponent: &[u8]) -> Result<Pkey> {
        // Integers of a Param are in the machine's order.
        let native = |big_endian: &[u8]| {
            let mut v = big_endian.to_vec();
            if cfg!(target_endian = "little") {
                v.reverse();
            }
            v
        };
        let (n, e) = (native(modulus), native(exponent));
        self.import(c"RSA", &mut [Param::big_integer(c"n", &n), Param::big_integer(c"e", &e), Param::END])
    }

    fn import(&self, kind: &CStr, params: &mut [Param]) -> Result<Pkey> {
        const EVP_PKEY_PUBLIC_KEY: c_int = 0x86;
        // SAFETY: the parameters end with Param::END and live for the call.
        unsafe {
            let ctx = PkeyCtx::new(EVP_PKEY_CTX_new_from_name(self.0, kind.as_ptr(), null()))?;
            succeeded(EVP_PKEY_fromdata_init(ctx.0))?;
            let mut key = null_mut();
            succeeded(EVP_PKEY_fromdata(ctx.0, &mut key, EVP_PKEY_PUBLIC_KEY, params.as_mut_ptr()))?;
            Pkey::new(key)
        }
    }

    /// A private key from its traditional DER form (ECPrivateKey, RSAPrivateKey).
    pub fn private_key(&self, der: &[u8]) -> Result<Pkey> {
        let mut p = der.as_ptr();
        // SAFETY: the length is the slice's.
        let key = Pkey::new(unsafe { d2i_AutoPrivateKey_ex(null_mut(), &mut p, der.len() as c_long, self.0, null()) })?;
        if p != der.as_ptr_range().end {
            return Err(Failure); // something follows it
        }
        Ok(key)
    }

    /// The shared secret of a Diffie-Hellman agreement, of a length that is known.
    pub fn derive(&self, private: &Pkey, peer: &Pkey, secret: &mut [u8]) -> Result<()> {
        let mut len = secret.len();
        // SAFETY: the length is the slice's.
        unsafe {
            let ctx = PkeyCtx::new(EVP_PKEY_CTX_new_from_pkey(self.0, private.0, null()))?;
            succeeded(EVP_PKEY_derive_init(ctx.0))?;
            succeeded(EVP_PKEY_derive_set_peer(ctx.0, peer.0))?;
            succeeded(EVP_PKEY_derive(ctx.0, secret.as_mut_ptr(), &mut len))?;
        }
        if len != secret.len() {
            return Err(Failure);
        }
        Ok(())
    }

    pub fn sign(&self, key: &Pkey, digest: &CStr, message: &[u8]) -> Result<Vec<u8>> {
        // SAFETY: the lengths are the slices'; the first call asks for the length.
        unsafe {
            let ctx = MdCtx::new(EVP_MD_CTX_new())?;
            succeeded(EVP_DigestSignInit_ex(ctx.0, null_mut(), digest.as_ptr(), self.0, null(), key.0, null()))?;
            let mut len = 0;
            succeeded(EVP_DigestSign(ctx.0, null_mut(), &mut len, message.as_ptr(), message.len()))?;
            let mut signature = vec![0; len];
            succeeded(EVP_DigestSign(ctx.0, signature.as_mut_ptr(), &mut len, message.as_ptr(), message.len()))?;
            signature.truncate(len);
            Ok(signature)
        }
    }

    pub fn verify(&self, key: &Pkey, digest: &CStr, message: &[u8], signature: &[u8]) -> bool {
        // SAFETY: the lengths are the slices'.
        unsafe {
            let Ok(ctx) = MdCtx::new(EVP_MD_CTX_new()) else { return false };
            succeeded(EVP_DigestVerifyInit_ex(ctx.0, null_mut(), digest.as_ptr(), self.0, null(), key.0, null()))
                .is_ok()
                && EVP_DigestVerify(ctx.0, signature.as_ptr(), signature.len(), message.as_ptr(), message.len()) == 1
        }
    }

    /// A running digest.
    pub fn digest(&self, name: &CStr) -> Result<Digest> {
        // SAFETY: both are checked for null.
        unsafe {
            let md = Md::new(EVP_MD_fetch(self.0, name.as_ptr(), null()))?;
            let ctx = MdCtx::new(EVP_MD_CTX_new())?;
            succeeded(EVP_DigestInit_ex2(ctx.0, md.0, null()))?;
            Ok(Digest { ctx, size: EVP_MD_get_size(md.0) as usize })
        }
    }

    /// An EncryptedPrivateKeyInfo (RFC 5958, section 3) of a PrivateKeyInfo, by PBES2 with a cipher.
    pub fn encrypt_pkcs8(&self, der: &[u8], cipher: &CStr, properties: Option<&CStr>, pass: &[u8]) -> Result<Vec<u8>> {
        let properties = properties.map_or(null(), CStr::as_ptr);
        let mut p = der.as_ptr();
        // SAFETY: each result is checked for null; the lengths are the slices'.
        unsafe {
            let cipher = Cipher::new(EVP_CIPHER_fetch(self.0, cipher.as_ptr(), properties))?;
            let info = Pkcs8::new(d2i_PKCS8_PRIV_KEY_INFO(null_mut(), &mut p, der.len() as c_long))?;
            let sealed = EncryptedPkcs8::new(PKCS8_encrypt_ex(
                -1,
                cipher.0,
                pass.as_ptr().cast(),
                pass.len() as c_int,
                null_mut(),
                0,
                0,
                info.0,
                self.0,
                properties,
            ))?;
            let mut out = null_mut();
            let len = i2d_X509_SIG(sealed.0, &mut out);
            Ok(take_bytes(out, usize::try_from(len).map_err(|_| Failure)?)?.to_vec())
        }
    }
}

/// Runs f, whose failure is no error: what it leaves on OpenSSL's error queue is dropped.
pub fn quietly<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: both only touch this thread's queue.
    unsafe { ERR_set_mark() };
    let result = f();
    unsafe { ERR_pop_to_mark() };
    result
}

/// A digest in progress.
pub struct Digest {
    ctx: MdCtx,
    size: usize,
}

impl Digest {
    pub fn update(&mut self, data: &[u8]) -> Result<()> {
        // SAFETY: the length is the slice's.
        succeeded(unsafe { EVP_DigestUpdate(self.ctx.0, data.as_ptr().cast(), data.len()) })
    }

    /// The digest of what there was so far; more may follow.
    pub fn value(&self) -> Result<Vec<u8>> {
        let copy = self.copy()?;
        let mut out = vec![0; self.size];
        let mut len = 0;
        // SAFETY: the digest has that size.
        succeeded(unsafe { EVP_DigestFinal_ex(copy.ctx.0, out.as_mut_ptr(), &mut len) })?;
        Ok(out)
    }

    pub fn copy(&self) -> Result<Digest> {
        // SAFETY: both contexts are valid.
        unsafe {
            let ctx = MdCtx::new(EVP_MD_CTX_new())?;
            succeeded(EVP_MD_CTX_copy_ex(ctx.0, self.ctx.0))?;
            Ok(Digest { ctx, size: self.size })
        }
    }
}

/// A classical key.
pub struct Pkey(*mut EvpPkey);

// SAFETY: keys may be used by several threads once they are made.
unsafe impl Send for Pkey {}
unsafe impl Sync for Pkey {}

impl Drop for Pkey {
    fn drop(&mut self) {
        // SAFETY: it is owned and not null.
        unsafe { EVP_PKEY_free(self.0) }
    }
}

impl Clone for Pkey {
    fn clone(&self) -> Pkey {
        // SAFETY: it is valid; the count of references cannot fail.
        unsafe { EVP_PKEY_up_ref(self.0) };
        Pkey(self.0)
    }
}

impl PartialEq for Pkey {
    fn eq(&self, other: &Pkey) -> bool {
        // SAFETY: both are valid.
        unsafe { EVP_PKEY_eq(self.0, other.0) == 1 }
    }
}

impl Pkey {
    fn new(p: *mut EvpPkey) -> Result<Pkey> {
        if p.is_null() {
            Err(Failure)
        } else {
            Ok(Pkey(p))
        }
    }

    pub fn bits(&self) -> usize {
        // SAFETY: it is valid.
        unsafe { EVP_PKEY_get_bits(self.0) }.max(0) as usize
    }

    pub fn is_a(&self, kind: &CStr) -> bool {
        // SAFETY: it is valid.
        unsafe { EVP_PKEY_is_a(self.0, kind.as_ptr()) == 1 }
    }

    /// Whether it is on a curve, by OpenSSL's name (prime256v1, secp384r1, ...).
    pub fn on_curve(&self, curve: &CStr) -> bool {
        let mut name = [0u8; 64];
        let mut len = 0;
        // SAFETY: the size is the array's.
        let ok = unsafe { EVP_PKEY_get_group_name(self.0, name.as_mut_ptr().cast(), name.len(), &mut len) } == 1;
        ok && CStr::from_bytes_until_nul(&name).is_ok_and(|n| n == curve)
    }

    /// The public key of an EC or XDH key as TLS has it.
    pub fn encoded_public(&self) -> Result<Vec<u8>> {
        let mut out = null_mut();
        // SAFETY: libcrypto allocates what it returns.
        unsafe {
            let len = EVP_PKEY_get1_encoded_public_key(self.0, &mut out);
            Ok(take_bytes(out, len)?.to_vec())
        }
    }

    /// The public key in its traditional form (RSAPublicKey).
    pub fn public_der(&self) -> Result<Vec<u8>> {
        let mut out = null_mut();
        // SAFETY: libcrypto allocates what it returns.
        unsafe {
            let len = i2d_PublicKey(self.0, &mut out);
            Ok(take_bytes(out, usize::try_from(len).map_err(|_| Failure)?)?.to_vec())
        }
    }

    /// The private key in its traditional form (ECPrivateKey, RSAPrivateKey).
    pub fn private_der(&self) -> Result<Zeroizing<Vec<u8>>> {
        let mut out = null_mut();
        // SAFETY: libcrypto allocates what it returns.
        unsafe {
            let len = i2d_PrivateKey(self.0, &mut out);
            take_bytes(out, usize::try_from(len).map_err(|_| Failure)?)
        }
    }

    /// The private key of an XDH key.
    pub fn raw_private(&self, len: usize) -> Result<Zeroizing<Vec<u8>>> {
        let mut out = Zeroizing::new(vec![0; len]);
        let mut n = len;
        // SAFETY: the length is the vector's.
        succeeded(unsafe { EVP_PKEY_get_raw_private_key(self.0, out.as_mut_ptr(), &mut n) })?;
        if n != len {
            return Err(Failure);
        }
        Ok(out)
    }
}
