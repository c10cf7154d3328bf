//! The Korean KpqC algorithms: NTRU+, SMAUG-T, HAETAE, AIMer. Their teams' reference code: not audited, and not claimed
//! to run in constant time.

use super::{Failed, KemSizes, Result, SignatureSizes};
use ::kpqc::{KeyEncapsulationAlgorithm, SignatureAlgorithm};
use zeroize::Zeroize;

pub struct Kem(pub &'static KeyEncapsulationAlgorithm);

impl super::Kem for Kem {
    fn sizes(&self) -> KemSizes {
        let s = self.0.sizes;
        KemSizes {
            public_key: s.public_key,
            secret_key: s.secret_key,
            ciphertext: s.ciphertext,
            shared_secret: s.shared_secret,
        }
    }

    fn generate(&self, public: &mut [u8], secret: &mut [u8]) -> Result {
        let pair = self.0.generate_key_pair().map_err(|_| Failed)?; // wiped by the crate when dropped
        public.copy_from_slice(&pair.public_key);
        secret.copy_from_slice(&pair.secret_key);
        Ok(())
    }

    fn encapsulate(&self, public: &[u8], ciphertext: &mut [u8], shared: &mut [u8]) -> Result {
        let out = self.0.encapsulate(public).map_err(|_| Failed)?;
        ciphertext.copy_from_slice(&out.ciphertext);
        shared.copy_from_slice(&out.shared_secret);
        Ok(())
    }

    fn decapsulate(&self, secret: &[u8], ciphertext: &[u8], shared: &mut [u8]) -> Result {
        let mut out = self.0.decapsulate(ciphertext, secret).map_err(|_| Failed)?;
        shared.copy_from_slice(&out);
        out.zeroize();
        Ok(())
    }
}

pub struct Signature(pub &'static SignatureAlgorithm);

impl super::Signature for Signature {
    fn sizes(&self) -> SignatureSizes {
        let s = self.0.sizes;
        SignatureSizes { public_key: s.public_key, secret_key: s.secret_key, signature: s.signature }
    }

    fn generate(&self, public: &mut [u8], secret: &mut [u8]) -> Result {
        let pair = self.0.generate_key_pair().map_err(|_| Failed)?;
        public.copy_from_slice(&pair.public_key);
        secret.copy_from_slice(&pair.secret_key);
        Ok(())
    }

    fn sign(&self, secret: &[u8], message: &[u8], signature: &mut [u8]) -> std::result::Result<usize, Failed> {
        let out = self.0.sign(message, secret).map_err(|_| Failed)?;
        signature[..out.len()].copy_from_slice(&out);
        Ok(out.len())
    }

    fn verify(&self, public: &[u8], message: &[u8], signature: &[u8]) -> Result {
        match self.0.verify(message, signature, public) {
            Ok(true) => Ok(()),
            _ => Err(Failed),
        }
    }
}
