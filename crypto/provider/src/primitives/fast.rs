//! ML-KEM (FIPS 203), ML-DSA (FIPS 204) and the elliptic curves of the TLS hybrids, from AWS-LC: AVX2 and ADX code where
//! the CPU has it, portable code elsewhere. AWS-LC asks the CPU when the module is loaded, and takes away from that what
//! OPENSSL_ia32cap(3) says, as libcrypto does: `OPENSSL_ia32cap='~0:~0x20'` runs without AVX2.
//!
//! The functions called are the deterministic ones that AWS-LC's EVP layer is made of. That layer would draw from AWS-LC's
//! own random generator; here randomness is an argument, and comes from the library context that asks. AWS-LC wipes what
//! it leaves on the stack.

use super::{Failed, Result};
use aws_lc_sys as aws_lc;
use libc::c_int;
use std::ptr::{null, null_mut, NonNull};

/// Whether AVX2 code runs.
pub fn uses_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        extern "C" {
            #[link_name = "aws_lc_0_47_0_OPENSSL_ia32cap_P"]
            static CAPABILITIES: [u32; 4];
        }
        const AVX2: u32 = 1 << 5; // of EBX, CPUID leaf 7
        prepare();
        // SAFETY: AWS-LC writes it before anything of this module runs.
        (unsafe { CAPABILITIES[2] } & AVX2) != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Sees to it that AWS-LC knows the CPU. On x86-64 its constructor has done so, which only runs if this is called.
fn prepare() {
    // SAFETY: may be called at any time, by any thread.
    unsafe { aws_lc::CRYPTO_library_init() }
}

fn outcome(ok: bool) -> Result {
    if ok {
        Ok(())
    } else {
        Err(Failed)
    }
}

fn expect(bytes: &[u8], len: usize) -> Result {
    outcome(bytes.len() == len)
}

/// Declares functions of AWS-LC that its bindings leave out. The version in their names is that of the crate, pinned.
macro_rules! aws_lc_functions {
    ($(fn $name:ident($($argument:ty),*);)*) => {
        extern "C" { $(
            #[link_name = concat!("aws_lc_0_47_0_", stringify!($name))]
            fn $name($(_: $argument),*) -> c_int;
        )* }
    };
}

// ML-KEM. Its functions answer 0 for success.

type KemKeypair = unsafe extern "C" fn(*mut u8, *mut usize, *mut u8, *mut usize, *const u8) -> c_int;
type KemEncapsulate = unsafe extern "C" fn(*mut u8, *mut usize, *mut u8, *mut usize, *const u8, *const u8) -> c_int;
type KemDecapsulate = unsafe extern "C" fn(*mut u8, *mut usize, *const u8, *const u8) -> c_int;
type KemCheck = unsafe extern "C" fn(*const u8, usize) -> c_int;

aws_lc_functions! {
    fn ml_kem_512_keypair_deterministic(*mut u8, *mut usize, *mut u8, *mut usize, *const u8);
    fn ml_kem_512_encapsulate_deterministic(*mut u8, *mut usize, *mut u8, *mut usize, *const u8, *const u8);
    fn ml_kem_512_decapsulate(*mut u8, *mut usize, *const u8, *const u8);
    fn ml_kem_512_check_pk(*const u8, usize);
    fn ml_kem_512_check_sk(*const u8, usize);
    fn ml_kem_768_keypair_deterministic(*mut u8, *mut usize, *mut u8, *mut usize, *const u8);
    fn ml_kem_768_encapsulate_deterministic(*mut u8, *mut usize, *mut u8, *mut usize, *const u8, *const u8);
    fn ml_kem_768_decapsulate(*mut u8, *mut usize, *const u8, *const u8);
    fn ml_kem_768_check_pk(*const u8, usize);
    fn ml_kem_768_check_sk(*const u8, usize);
    fn ml_kem_1024_keypair_deterministic(*mut u8, *mut usize, *mut u8, *mut usize, *const u8);
    fn ml_kem_1024_encapsulate_deterministic(*mut u8, *mut usize, *mut u8, *mut usize, *const u8, *const u8);
    fn ml_kem_1024_decapsulate(*mut u8, *mut usize, *const u8, *const u8);
    fn ml_kem_1024_check_pk(*const u8, usize);
    fn ml_kem_1024_check_sk(*const u8, usize);
}

/// A parameter set of ML-KEM. Its private key is the expanded decapsulation key, which holds the public key.
#[derive(Clone, Copy)]
pub struct MlKem {
    pub public_key: usize,
    pub private_key: usize,
    pub ciphertext: usize,
    keypair: KemKeypair,
    encapsulate: KemEncapsulate,
    decapsulate: KemDecapsulate,
    check_public: KemCheck,
    check_private: KemCheck,
}

pub static ML_KEM_512: MlKem = MlKem {
    public_key: 800,
    private_key: 1632,
    ciphertext: 768,
    keypair: ml_kem_512_keypair_deterministic,
    encapsulate: ml_kem_512_encapsulate_deterministic,
    decapsulate: ml_kem_512_decapsulate,
    check_public: ml_kem_512_check_pk,
    check_private: ml_kem_512_check_sk,
};

pub static ML_KEM_768: MlKem = MlKem {
    public_key: 1184,
    private_key: 2400,
    ciphertext: 1088,
    keypair: ml_kem_768_keypair_deterministic,
    encapsulate: ml_kem_768_encapsulate_deterministic,
    decapsulate: ml_kem_768_decapsulate,
    check_public: ml_kem_768_check_pk,
    check_private: ml_kem_768_check_sk,
};

pub static ML_KEM_1024: MlKem = MlKem {
    public_key: 1568,
    private_key: 3168,
    ciphertext: 1568,
    keypair: ml_kem_1024_keypair_deterministic,
    encapsulate: ml_kem_1024_encapsulate_deterministic,
    decapsulate: ml_kem_1024_decapsulate,
    check_public: ml_kem_1024_check_pk,
    check_private: ml_kem_1024_check_sk,
};

impl MlKem {
    /// Length of a seed, `d || z`, in bytes.
    pub const SEED: usize = 64;
    pub const SHARED_SECRET: usize = 32;
    /// Length of the randomness of an encapsulation, in bytes.
    pub const ENTROPY: usize = 32;

    /// The key pair of a seed.
    pub fn keypair(&self, seed: &[u8; Self::SEED], public: &mut [u8], private: &mut [u8]) -> Result {
        expect(public, self.public_key)?;
        expect(private, self.private_key)?;
        prepare();
        let (mut public_len, mut private_len) = (public.len(), private.len());
        // SAFETY: the buffers have the lengths of this parameter set.
        let failed = unsafe {
            (self.keypair)(public.as_mut_ptr(), &mut public_len, private.as_mut_ptr(), &mut private_len, seed.as_ptr())
        };
        outcome(failed == 0)
    }

    /// Fails also if the public key is not valid (FIPS 203, section 7.2).
    pub fn encapsulate(
        &self,
        entropy: &[u8; Self::ENTROPY],
        public: &[u8],
        ciphertext: &mut [u8],
        shared: &mut [u8],
    ) -> Result {
        expect(public, self.public_key)?;
        expect(ciphertext, self.ciphertext)?;
        expect(shared, Self::SHARED_SECRET)?;
        prepare();
        let (mut ciphertext_len, mut shared_len) = (ciphertext.len(), shared.len());
        // SAFETY: the buffers have the lengths of this parameter set.
        let failed = unsafe {
            (self.encapsulate)(
                ciphertext.as_mut_ptr(),
                &mut ciphertext_len,
                shared.as_mut_ptr(),
                &mut shared_len,
                public.as_ptr(),
                entropy.as_ptr(),
            )
        };
        outcome(failed == 0)
    }

    /// Fails only if a length is wrong or the private key is not valid: a ciphertext of somebody else's gives a secret
    /// that nobody else knows.
    pub fn decapsulate(&self, private: &[u8], ciphertext: &[u8], shared: &mut [u8]) -> Result {
        expect(private, self.private_key)?;
        expect(ciphertext, self.ciphertext)?;
        expect(shared, Self::SHARED_SECRET)?;
        prepare();
        let mut shared_len = shared.len();
        // SAFETY: the buffers have the lengths of this parameter set.
        let failed =
            unsafe { (self.decapsulate)(shared.as_mut_ptr(), &mut shared_len, ciphertext.as_ptr(), private.as_ptr()) };
        outcome(failed == 0)
    }

    /// Whether every coefficient of a public key is reduced (FIPS 203, section 7.2).
    pub fn check_public(&self, public: &[u8]) -> Result {
        prepare();
        // SAFETY: the length is the slice's.
        outcome(unsafe { (self.check_public)(public.as_ptr(), public.len()) } == 0)
    }

    /// Whether a private key holds the hash of its public key (FIPS 203, section 7.3).
    pub fn check_private(&self, private: &[u8]) -> Result {
        prepare();
        // SAFETY: the length is the slice's.
        outcome(unsafe { (self.check_private)(private.as_ptr(), private.len()) } == 0)
    }

    /// The public key that a private key holds: it is `dk_PKE || ek || H(ek) || z`.
    pub fn public_of<'a>(&self, private: &'a [u8]) -> std::result::Result<&'a [u8], Failed> {
        expect(private, self.private_key)?;
        let end = self.private_key - 64;
        Ok(&private[end - self.public_key..end])
    }
}

// ML-DSA. Its functions answer 1 for success.

type DsaKeypair = unsafe extern "C" fn(*mut u8, *mut u8, *const u8) -> c_int;
type DsaPublic = unsafe extern "C" fn(*mut u8, *const u8) -> c_int;
type DsaSign =
    unsafe extern "C" fn(*const u8, *mut u8, *mut usize, *const u8, usize, *const u8, usize, *const u8) -> c_int;
type DsaVerify = unsafe extern "C" fn(*const u8, *const u8, usize, *const u8, usize, *const u8, usize) -> c_int;

aws_lc_functions! {
    fn ml_dsa_44_keypair_internal(*mut u8, *mut u8, *const u8);
    fn ml_dsa_44_pack_pk_from_sk(*mut u8, *const u8);
    fn ml_dsa_44_sign_internal(*const u8, *mut u8, *mut usize, *const u8, usize, *const u8, usize, *const u8);
    fn ml_dsa_extmu_44_sign_internal(*const u8, *mut u8, *mut usize, *const u8, usize, *const u8, usize, *const u8);
    fn ml_dsa_44_verify_internal(*const u8, *const u8, usize, *const u8, usize, *const u8, usize);
    fn ml_dsa_extmu_44_verify_internal(*const u8, *const u8, usize, *const u8, usize, *const u8, usize);
    fn ml_dsa_65_keypair_internal(*mut u8, *mut u8, *const u8);
    fn ml_dsa_65_pack_pk_from_sk(*mut u8, *const u8);
    fn ml_dsa_65_sign_internal(*const u8, *mut u8, *mut usize, *const u8, usize, *const u8, usize, *const u8);
    fn ml_dsa_extmu_65_sign_internal(*const u8, *mut u8, *mut usize, *const u8, usize, *const u8, usize, *const u8);
    fn ml_dsa_65_verify_internal(*const u8, *const u8, usize, *const u8, usize, *const u8, usize);
    fn ml_dsa_extmu_65_verify_internal(*const u8, *const u8, usize, *const u8, usize, *const u8, usize);
    fn ml_dsa_87_keypair_internal(*mut u8, *mut u8, *const u8);
    fn ml_dsa_87_pack_pk_from_sk(*mut u8, *const u8);
    fn ml_dsa_87_sign_internal(*const u8, *mut u8, *mut usize, *const u8, usize, *const u8, usize, *const u8);
    fn ml_dsa_extmu_87_sign_internal(*const u8, *mut u8, *mut usize, *const u8, usize, *const u8, usize, *const u8);
    fn ml_dsa_87_verify_internal(*const u8, *const u8, usize, *const u8, usize, *const u8, usize);
    fn ml_dsa_extmu_87_verify_internal(*const u8, *const u8, usize, *const u8, usize, *const u8, usize);
}

/// A parameter set of ML-DSA. Its private key is the expanded one.
#[derive(Clone, Copy)]
pub struct MlDsa {
    pub public_key: usize,
    pub private_key: usize,
    pub signature: usize,
    keypair: DsaKeypair,
    public_of: DsaPublic,
    sign: DsaSign,
    sign_mu: DsaSign,
    verify: DsaVerify,
    verify_mu: DsaVerify,
}

pub static ML_DSA_44: MlDsa = MlDsa {
    public_key: 1312,
    private_key: 2560,
    signature: 2420,
    keypair: ml_dsa_44_keypair_internal,
    public_of: ml_dsa_44_pack_pk_from_sk,
    sign: ml_dsa_44_sign_internal,
    sign_mu: ml_dsa_extmu_44_sign_internal,
    verify: ml_dsa_44_verify_internal,
    verify_mu: ml_dsa_extmu_44_verify_internal,
};

pub static ML_DSA_65: MlDsa = MlDsa {
    public_key: 1952,
    private_key: 4032,
    signature: 3309,
    keypair: ml_dsa_65_keypair_internal,
    public_of: ml_dsa_65_pack_pk_from_sk,
    sign: ml_dsa_65_sign_internal,
    sign_mu: ml_dsa_extmu_65_sign_internal,
    verify: ml_dsa_65_verify_internal,
    verify_mu: ml_dsa_extmu_65_verify_internal,
};

pub static ML_DSA_87: MlDsa = MlDsa {
    public_key: 2592,
    private_key: 4896,
    signature: 4627,
    keypair: ml_dsa_87_keypair_internal,
    public_of: ml_dsa_87_pack_pk_from_sk,
    sign: ml_dsa_87_sign_internal,
    sign_mu: ml_dsa_extmu_87_sign_internal,
    verify: ml_dsa_87_verify_internal,
    verify_mu: ml_dsa_extmu_87_verify_internal,
};

/// What ML-DSA signs.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// A message with a context of at most 255 bytes (FIPS 204, algorithm 2).
    Message { message: &'a [u8], context: &'a [u8] },
    /// A message that the caller has formatted (FIPS 204, algorithm 7): OpenSSL's `message-encoding` 0.
    Formatted(&'a [u8]),
    /// The 64 bytes that stand for key and message: OpenSSL's `mu`.
    Mu(&'a [u8]),
}

impl Input<'_> {
    /// Hands the input to a function as AWS-LC has it: what to sign, and what to put before it.
    fn with<T>(self, f: impl FnOnce(&[u8], &[u8]) -> T) -> std::result::Result<T, Failed> {
        match self {
            Input::Message { message, context } => {
                let mut prefix = [0; 2 + 255];
                prefix[1] = context.len().try_into().map_err(|_| Failed)?;
                prefix[2..][..context.len()].copy_from_slice(context);
                Ok(f(message, &prefix[..2 + context.len()]))
            }
            Input::Formatted(message) => Ok(f(message, &[])),
            Input::Mu(mu) => Ok(f(mu, &[])),
        }
    }

    fn is_mu(self) -> bool {
        matches!(self, Input::Mu(_))
    }
}

impl MlDsa {
    /// Length of a seed in bytes.
    pub const SEED: usize = 32;
    /// Length of a signature's randomness in bytes.
    pub const ENTROPY: usize = 32;
    /// The randomness of deterministic signatures.
    pub const DETERMINISTIC: [u8; Self::ENTROPY] = [0; Self::ENTROPY];

    /// The key pair of a seed.
    pub fn keypair(&self, seed: &[u8; Self::SEED], public: &mut [u8], private: &mut [u8]) -> Result {
        expect(public, self.public_key)?;
        expect(private, self.private_key)?;
        prepare();
        // SAFETY: the buffers have the lengths of this parameter set.
        outcome(unsafe { (self.keypair)(public.as_mut_ptr(), private.as_mut_ptr(), seed.as_ptr()) } == 1)
    }

    /// The public key of a private one; fails if that is not valid.
    pub fn public_of(&self, private: &[u8], public: &mut [u8]) -> Result {
        expect(private, self.private_key)?;
        expect(public, self.public_key)?;
        prepare();
        // SAFETY: the buffers have the lengths of this parameter set.
        outcome(unsafe { (self.public_of)(public.as_mut_ptr(), private.as_ptr()) } == 1)
    }

    pub fn sign(&self, entropy: &[u8; Self::ENTROPY], private: &[u8], input: Input, signature: &mut [u8]) -> Result {
        expect(private, self.private_key)?;
        expect(signature, self.signature)?;
        prepare();
        let sign = if input.is_mu() { self.sign_mu } else { self.sign };
        let mut len = signature.len();
        // SAFETY: the buffers have the lengths of this parameter set, or those that are told.
        let ok = input.with(|message, prefix| unsafe {
            sign(
                private.as_ptr(),
                signature.as_mut_ptr(),
                &mut len,
                message.as_ptr(),
                message.len(),
                prefix.as_ptr(),
                prefix.len(),
                entropy.as_ptr(),
            )
        })?;
        outcome(ok == 1)
    }

    pub fn verify(&self, public: &[u8], input: Input, signature: &[u8]) -> Result {
        expect(public, self.public_key)?;
        expect(signature, self.signature)?;
        prepare();
        let verify = if input.is_mu() { self.verify_mu } else { self.verify };
        // SAFETY: the buffers have the lengths of this parameter set, or those that are told.
        let ok = input.with(|message, prefix| unsafe {
            verify(
                public.as_ptr(),
                signature.as_ptr(),
                signature.len(),
                message.as_ptr(),
                message.len(),
                prefix.as_ptr(),
                prefix.len(),
            )
        })?;
        outcome(ok == 1)
    }
}

// Elliptic curves.

/// A curve, with what the key exchange of TLS 1.3 makes of it (RFC 8446, section 4.2.8.2 and 7.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    P256,
    P384,
    X25519,
}

impl Curve {
    /// The length of a private key, and of a shared secret, in bytes.
    pub const fn secret(self) -> usize {
        match self {
            Curve::P256 | Curve::X25519 => 32,
            Curve::P384 => 48,
        }
    }

    /// The length of a public key, in bytes: points are not compressed.
    pub const fn public_key(self) -> usize {
        match self {
            Curve::X25519 => 32,
            _ => 1 + 2 * self.secret(),
        }
    }

    /// Makes a key pair; `random` fills a buffer.
    pub fn generate(self, random: impl Fn(&mut [u8]) -> Result, public: &mut [u8], private: &mut [u8]) -> Result {
        expect(private, self.secret())?;
        // Nearly every string of bytes is less than the order of its curve: a second attempt happens once in 2^32.
        for _ in 0..64 {
            random(private)?;
            if self.public_of(private, public).is_ok() {
                return Ok(());
            }
        }
        Err(Failed)
    }

    /// The public key of a private one, which is a number in big-endian order, or X25519's string of bytes.
    pub fn public_of(self, private: &[u8], public: &mut [u8]) -> Result {
        expect(private, self.secret())?;
        expect(public, self.public_key())?;
        prepare();
        let Some(group) = self.group() else {
            // SAFETY: both have 32 bytes.
            unsafe { aws_lc::X25519_public_from_private(public.as_mut_ptr(), private.as_ptr()) };
            return Ok(());
        };
        tidy(|| {
            let key = Key::new(group, private)?;
            let point = Point::new(group)?;
            // SAFETY: the objects belong to one group, and the buffer has the length of a point.
            outcome(unsafe {
                let scalar = aws_lc::EC_KEY_get0_private_key(key.0.as_ptr());
                aws_lc::EC_POINT_mul(group, point.0.as_ptr(), scalar, null(), null(), null_mut()) == 1
                    && aws_lc::EC_POINT_point2oct(
                        group,
                        point.0.as_ptr(),
                        aws_lc::point_conversion_form_t::POINT_CONVERSION_UNCOMPRESSED,
                        public.as_mut_ptr(),
                        public.len(),
                        null_mut(),
                    ) == public.len()
            })
        })
    }

    /// The secret shared with a peer; fails if its public key is not a point of the curve, or of small order.
    pub fn agree(self, private: &[u8], peer: &[u8], shared: &mut [u8]) -> Result {
        expect(private, self.secret())?;
        expect(peer, self.public_key())?;
        expect(shared, self.secret())?;
        prepare();
        let Some(group) = self.group() else {
            // SAFETY: all have 32 bytes.
            return outcome(unsafe { aws_lc::X25519(shared.as_mut_ptr(), private.as_ptr(), peer.as_ptr()) } == 1);
        };
        tidy(|| {
            let key = Key::new(group, private)?;
            let point = Point::read(group, peer)?;
            // SAFETY: the objects belong to one group, and the length is the slice's.
            let written = unsafe {
                let out = shared.as_mut_ptr().cast();
                aws_lc::ECDH_compute_key(out, shared.len(), point.0.as_ptr(), key.0.as_ptr(), None)
            };
            outcome(written as usize == shared.len())
        })
    }

    /// Whether a peer's public key is a point of the curve. Each of X25519's is; small orders are seen with the secret.
    pub fn check_public(self, public: &[u8]) -> Result {
        expect(public, self.public_key())?;
        prepare();
        let Some(group) = self.group() else { return Ok(()) };
        tidy(|| Point::read(group, public).map(drop))
    }

    fn group(self) -> Option<*const aws_lc::EC_GROUP> {
        // SAFETY: these are constants.
        unsafe {
            match self {
                Curve::P256 => Some(aws_lc::EC_group_p256()),
                Curve::P384 => Some(aws_lc::EC_group_p384()),
                Curve::X25519 => None,
            }
        }
    }
}

/// Runs an operation that may put errors on AWS-LC's queue, and leaves none there: nobody reads it.
fn tidy(f: impl FnOnce() -> Result) -> Result {
    let result = f();
    if result.is_err() {
        // SAFETY: may be called at any time.
        unsafe { aws_lc::ERR_clear_error() };
    }
    result
}

/// A private key on a curve; AWS-LC wipes it when it is freed.
struct Key(NonNull<aws_lc::EC_KEY>);

impl Key {
    /// Fails unless the number is from 1 to the order of the curve, less one.
    fn new(group: *const aws_lc::EC_GROUP, private: &[u8]) -> std::result::Result<Key, Failed> {
        // SAFETY: the group is a constant; what is made here is freed here or with the key.
        unsafe {
            let key = Key(NonNull::new(aws_lc::EC_KEY_new()).ok_or(Failed)?);
            let scalar = aws_lc::BN_bin2bn(private.as_ptr(), private.len(), null_mut());
            let ok = !scalar.is_null()
                && aws_lc::BN_is_zero(scalar) == 0
                && aws_lc::EC_KEY_set_group(key.0.as_ptr(), group) == 1
                && aws_lc::EC_KEY_set_private_key(key.0.as_ptr(), scalar) == 1;
            aws_lc::BN_clear_free(scalar);
            outcome(ok).map(|()| key)
        }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: the key is ours.
        unsafe { aws_lc::EC_KEY_free(self.0.as_ptr()) }
    }
}

struct Point(NonNull<aws_lc::EC_POINT>);

impl Point {
    fn new(group: *const aws_lc::EC_GROUP) -> std::result::Result<Point, Failed> {
        // SAFETY: the group is a constant.
        NonNull::new(unsafe { aws_lc::EC_POINT_new(group) }).map(Point).ok_or(Failed)
    }

    fn read(group: *const aws_lc::EC_GROUP, bytes: &[u8]) -> std::result::Result<Point, Failed> {
        // AWS-LC also takes the hybrid form of a point, which no peer may send (RFC 8446, section 4.2.8.2).
        outcome(bytes.first() == Some(&4))?;
        let point = Point::new(group)?;
        // SAFETY: the point belongs to the group, and the length is the slice's.
        let ok =
            unsafe { aws_lc::EC_POINT_oct2point(group, point.0.as_ptr(), bytes.as_ptr(), bytes.len(), null_mut()) };
        outcome(ok == 1).map(|()| point)
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        // SAFETY: the point is ours.
        unsafe { aws_lc::EC_POINT_free(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests;
