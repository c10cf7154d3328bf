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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// The columns of sizes: of keys, then of a ciphertext and its shared secret, or of a signature. A hybrid's are
    /// those of both halves, as a key share, a SubjectPublicKeyInfo and a signature have them; its secret key is the
    /// classical half's scalar, or RSAPrivateKey, beside the other. What varies has its greatest length.
    fn sizes(a: &Algorithm) -> [(&'static str, String); 5] {
        let scalar = match a.classical {
            None => 0,
            Some(Classical::P256 | Classical::X25519) => 32,
            Some(Classical::P384) => 48,
            Some(Classical::P521) => 66,
            Some(Classical::X448) => 56,
            Some(Classical::Rsa3072) => 1769,
        };
        let length = if a.is_signature() && a.classical.is_some() { 4 } else { 0 };
        let (public, secret) = a.key_sizes();
        let (ciphertext, shared, signature) = if a.is_signature() {
            (String::new(), String::new(), a.output_size().to_string())
        } else {
            (a.output_size().to_string(), a.secret_size().to_string(), String::new())
        };
        [
            ("public_key", (length + a.classical.map_or(0, Classical::public_length) + public).to_string()),
            ("secret_key", (scalar + secret).to_string()),
            ("ciphertext", ciphertext),
            ("shared_secret", shared),
            ("signature", signature),
        ]
    }

    #[test]
    fn the_table_has_the_sizes_that_the_primitives_have() {
        let mut lines = include_str!("../../algorithms.csv").lines();
        let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
        let mut rows: HashMap<&str, HashMap<&str, &str>> = lines
            .map(|l| columns.iter().copied().zip(l.split(',')).collect())
            .map(|r: HashMap<_, _>| (r["name"], r))
            .collect();
        for a in &ALGORITHMS {
            let row = rows.remove(a.name).expect(a.name);
            for (column, size) in sizes(a) {
                assert_eq!(row.get(column), Some(&size.as_str()), "algorithms.csv: column {column} of {}", a.name);
            }
        }
        let rest: Vec<&str> = rows.values().filter(|r| r["library"] != "openssl").map(|r| r["name"]).collect();
        assert!(rest.is_empty(), "the table has {rest:?}, the registry does not");
    }
}
