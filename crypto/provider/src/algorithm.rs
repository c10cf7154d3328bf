//! The algorithms, as crypto/algorithms.csv lists them.

use crate::{
    classical::Classical,
    primitives::{kpqc, liboqs, Kem, Signature},
};

/// One row of the table: a post-quantum algorithm, alone or with a classical one.
pub struct Algorithm {
    /// Name in OpenSSL and in TLS.
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    /// NIST security level, 1 to 5.
    pub level: u8,
    pub primitive: Primitive,
    /// The other half of a hybrid.
    pub classical: Option<Classical>,
    /// Key shares of hybrid groups have the classical half first but for those with X25519 and X448 of ML-KEM.
    pub post_quantum_first: bool,
    /// TLS group or signature scheme, unless OQS_CODEPOINT_<NAME> says otherwise.
    pub code_point: u16,
    /// Object identifier of keys and signatures, unless OQS_OID_<NAME> says otherwise.
    pub oid: Option<&'static str>,
}

#[derive(Clone, Copy)]
pub enum Primitive {
    Kem(&'static dyn Kem),
    Signature(&'static dyn Signature),
}

include!(concat!(env!("OUT_DIR"), "/registry.rs"));

/// The largest certificate chain that OpenSSL's peers accept by default, in bytes (SSL_CTX_set_max_cert_list(3)).
const MAX_CERTIFICATES: usize = 100 << 10;

impl Algorithm {
    pub fn is_signature(&self) -> bool {
        matches!(self.primitive, Primitive::Signature(_))
    }

    /// Lengths of the post-quantum half's public and secret keys, in bytes.
    pub fn key_sizes(&self) -> (usize, usize) {
        match self.primitive {
            Primitive::Kem(k) => (k.sizes().public_key, k.sizes().secret_key),
            Primitive::Signature(s) => (s.sizes().public_key, s.sizes().secret_key),
        }
    }

    /// The greatest length of what an operation puts out, a ciphertext or a signature, in bytes.
    pub fn output_size(&self) -> usize {
        match (self.primitive, self.classical) {
            (Primitive::Kem(k), None) => k.sizes().ciphertext,
            (Primitive::Kem(k), Some(c)) => c.public_length() + k.sizes().ciphertext,
            (Primitive::Signature(s), None) => s.sizes().signature,
            (Primitive::Signature(s), Some(c)) => 4 + c.signature_length() + s.sizes().signature,
        }
    }

    /// The length of a shared secret, in bytes; none for signatures.
    pub fn secret_size(&self) -> usize {
        match self.primitive {
            Primitive::Kem(k) => self.classical.map_or(0, Classical::secret_length) + k.sizes().shared_secret,
            Primitive::Signature(_) => 0,
        }
    }

    /// Security in bits, as OpenSSL's security levels count it.
    pub fn security_bits(&self) -> usize {
        match self.level {
            1 | 2 => 128,
            3 => 192,
            _ => 256,
        }
    }

    /// Whether TLS can use it: a certificate and its CA's signature must fit what a peer accepts.
    pub fn fits_tls(&self) -> bool {
        !self.is_signature() || self.key_sizes().0 + self.output_size() < MAX_CERTIFICATES
    }
}
