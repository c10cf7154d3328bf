//! Algorithms of liboqs.

use super::{random, Failed, KemSizes, Result, SignatureSizes};
use oqs_sys::{common::OQS_STATUS, kem, sig};
use std::{ffi::CStr, ptr::NonNull, sync::OnceLock};

/// Prepares liboqs (CPU detection, randomness); any number of times.
fn initialise() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: the callback lives as long as the module, and nobody else calls this copy of liboqs.
        unsafe {
            oqs_sys::common::OQS_init();
            oqs_sys::rand::OQS_randombytes_custom_algorithm(Some(random::liboqs));
        }
    });
}

/// An object of liboqs that is made once and never changes.
struct Handle<T>(NonNull<T>);
// SAFETY: liboqs only reads it.
unsafe impl<T> Send for Handle<T> {}
unsafe impl<T> Sync for Handle<T> {}

fn outcome(status: OQS_STATUS) -> Result {
    if status == OQS_STATUS::OQS_SUCCESS {
        Ok(())
    } else {
        Err(Failed)
    }
}

/// A key encapsulation mechanism by its name in liboqs.
pub struct Kem(&'static CStr, OnceLock<Handle<kem::OQS_KEM>>);

impl Kem {
    pub const fn new(name: &'static CStr) -> Kem {
        Kem(name, OnceLock::new())
    }

    fn get(&self) -> &kem::OQS_KEM {
        let handle = self.1.get_or_init(|| {
            initialise();
            // SAFETY: the name is a string. The build has every algorithm of the table (a test makes each).
            Handle(NonNull::new(unsafe { kem::OQS_KEM_new(self.0.as_ptr()) }).expect("an algorithm of this liboqs"))
        });
        // SAFETY: it is never freed.
        unsafe { handle.0.as_ref() }
    }
}

impl super::Kem for Kem {
    fn sizes(&self) -> KemSizes {
        let k = self.get();
        KemSizes {
            public_key: k.length_public_key,
            secret_key: k.length_secret_key,
            ciphertext: k.length_ciphertext,
            shared_secret: k.length_shared_secret,
        }
    }

    fn generate(&self, public: &mut [u8], secret: &mut [u8]) -> Result {
        // SAFETY: the lengths are those of sizes().
        outcome(unsafe { kem::OQS_KEM_keypair(self.get(), public.as_mut_ptr(), secret.as_mut_ptr()) })
    }

    fn encapsulate(&self, public: &[u8], ciphertext: &mut [u8], shared: &mut [u8]) -> Result {
        // SAFETY: the lengths are those of sizes().
        outcome(unsafe {
            kem::OQS_KEM_encaps(self.get(), ciphertext.as_mut_ptr(), shared.as_mut_ptr(), public.as_ptr())
        })
    }

    fn decapsulate(&self, secret: &[u8], ciphertext: &[u8], shared: &mut [u8]) -> Result {
        // SAFETY: the lengths are those of sizes().
        outcome(unsafe { kem::OQS_KEM_decaps(self.get(), shared.as_mut_ptr(), ciphertext.as_ptr(), secret.as_ptr()) })
    }
}

/// A signature algorithm by its name in liboqs.
pub struct Signature(&'static CStr, OnceLock<Handle<sig::OQS_SIG>>);

impl Signature {
    pub const fn new(name: &'static CStr) -> Signature {
        Signature(name, OnceLock::new())
    }

    fn get(&self) -> &sig::OQS_SIG {
        let handle = self.1.get_or_init(|| {
            initialise();
            // SAFETY: as for Kem.
            Handle(NonNull::new(unsafe { sig::OQS_SIG_new(self.0.as_ptr()) }).expect("an algorithm of this liboqs"))
        });
        // SAFETY: it is never freed.
        unsafe { handle.0.as_ref() }
    }
}

impl super::Signature for Signature {
    fn sizes(&self) -> SignatureSizes {
        let s = self.get();
        SignatureSizes {
            public_key: s.length_public_key,
            secret_key: s.length_secret_key,
            signature: s.length_signature,
        }
    }

    fn generate(&self, public: &mut [u8], secret: &mut [u8]) -> Result {
        // SAFETY: the lengths are those of sizes().
        outcome(unsafe { sig::OQS_SIG_keypair(self.get(), public.as_mut_ptr(), secret.as_mut_ptr()) })
    }

    fn sign(&self, secret: &[u8], message: &[u8], signature: &mut [u8]) -> std::result::Result<usize, Failed> {
        let mut len = 0;
        // SAFETY: the lengths are those of sizes(), and the message's own.
        outcome(unsafe {
            sig::OQS_SIG_sign(
                self.get(),
                signature.as_mut_ptr(),
                &mut len,
                message.as_ptr(),
                message.len(),
                secret.as_ptr(),
            )
        })?;
        if len > signature.len() {
            return Err(Failed);
        }
        Ok(len)
    }

    fn verify(&self, public: &[u8], message: &[u8], signature: &[u8]) -> Result {
        // liboqs is not strict about lengths. CROSS reads beyond a short signature. Falcon takes a padded signature without
        // its padding, and one without padding that zeros bring to the padded length; its compression ends in a bit that is
        // set, so that a last byte of zero is padding.
        let fits = match self.0.to_bytes() {
            b"Falcon-512" | b"Falcon-1024" => !signature.ends_with(&[0]),
            _ => signature.len() == self.get().length_signature,
        };
        if !fits {
            return Err(Failed);
        }
        // SAFETY: the lengths are those of sizes(), and the message's and signature's own.
        outcome(unsafe {
            sig::OQS_SIG_verify(
                self.get(),
                message.as_ptr(),
                message.len(),
                signature.as_ptr(),
                signature.len(),
                public.as_ptr(),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::initialise;

    /// With AVX-512 and, as it thinks, without carry-less multiplication, BIKE writes beyond a buffer on its stack. liboqs
    /// 0.13 forgets that `xgetbv` changes EDX: whether it comes to think so is up to the compiler.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn liboqs_knows_the_processor() {
        use oqs_sys::common::{OQS_CPU_has_extension, OQS_CPU_EXT::*};
        initialise();
        for (extension, is_there) in [
            (OQS_CPU_EXT_AVX2, is_x86_feature_detected!("avx2")),
            (OQS_CPU_EXT_AVX512, is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512dq")),
            (OQS_CPU_EXT_PCLMULQDQ, is_x86_feature_detected!("pclmulqdq")),
            (OQS_CPU_EXT_POPCNT, is_x86_feature_detected!("popcnt")),
        ] {
            // SAFETY: it only answers.
            assert_eq!(unsafe { OQS_CPU_has_extension(extension) } == 1, is_there, "{extension:?}");
        }
    }
}
