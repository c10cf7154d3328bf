//! The standard algorithms, as OpenSSL knows them.

use crate::{
    error::{Error, Reason},
    openssl::abi::c_uint,
    primitives::fast::{Curve, MlDsa, MlKem, ML_DSA_44, ML_DSA_65, ML_DSA_87, ML_KEM_1024, ML_KEM_512, ML_KEM_768},
};
use std::ffi::CStr;

/// A standard algorithm as OpenSSL knows it.
pub struct Standard {
    /// Every name, with colons between.
    pub names: &'static CStr,
    pub name: &'static CStr,
    /// The TLS group or signature scheme.
    pub tls_name: &'static CStr,
    pub code_point: c_uint,
    pub security_bits: c_uint,
    /// Empty for groups, whose keys are in no certificate.
    pub oid: &'static CStr,
    /// The DER of its AlgorithmIdentifier.
    pub(super) identifier: &'static [u8],
    pub(super) primitive: Primitive,
}

#[derive(Clone, Copy)]
pub(super) enum Primitive {
    Kem(&'static MlKem, Option<Hybrid>),
    Signature(&'static MlDsa),
}
use Primitive::{Kem, Signature};

/// The classical half of a group.
#[derive(Clone, Copy)]
pub(super) struct Hybrid {
    pub(super) curve: Curve,
    /// Whether its share, ciphertext and secret come first.
    first: bool,
}

pub static ALGORITHMS: [Standard; 9] = [
    kem(
        c"ML-KEM-512:MLKEM512:id-alg-ml-kem-512:2.16.840.1.101.3.4.4.1",
        c"ML-KEM-512",
        c"MLKEM512",
        0x0200,
        128,
        Kem(&ML_KEM_512, None),
    ),
    kem(
        c"ML-KEM-768:MLKEM768:id-alg-ml-kem-768:2.16.840.1.101.3.4.4.2",
        c"ML-KEM-768",
        c"MLKEM768",
        0x0201,
        192,
        Kem(&ML_KEM_768, None),
    ),
    kem(
        c"ML-KEM-1024:MLKEM1024:id-alg-ml-kem-1024:2.16.840.1.101.3.4.4.3",
        c"ML-KEM-1024",
        c"MLKEM1024",
        0x0202,
        256,
        Kem(&ML_KEM_1024, None),
    ),
    kem(
        c"X25519MLKEM768",
        c"X25519MLKEM768",
        c"X25519MLKEM768",
        0x11ec,
        192,
        Kem(&ML_KEM_768, Some(Hybrid { curve: Curve::X25519, first: false })),
    ),
    kem(
        c"SecP256r1MLKEM768",
        c"SecP256r1MLKEM768",
        c"SecP256r1MLKEM768",
        0x11eb,
        192,
        Kem(&ML_KEM_768, Some(Hybrid { curve: Curve::P256, first: true })),
    ),
    kem(
        c"SecP384r1MLKEM1024",
        c"SecP384r1MLKEM1024",
        c"SecP384r1MLKEM1024",
        0x11ed,
        256,
        Kem(&ML_KEM_1024, Some(Hybrid { curve: Curve::P384, first: true })),
    ),
    Standard {
        names: c"ML-DSA-44:MLDSA44:2.16.840.1.101.3.4.3.17:id-ml-dsa-44",
        name: c"ML-DSA-44",
        tls_name: c"mldsa44",
        code_point: 0x0904,
        security_bits: 128,
        oid: c"2.16.840.1.101.3.4.3.17",
        identifier: &ml_dsa_identifier(17),
        primitive: Signature(&ML_DSA_44),
    },
    Standard {
        names: c"ML-DSA-65:MLDSA65:2.16.840.1.101.3.4.3.18:id-ml-dsa-65",
        name: c"ML-DSA-65",
        tls_name: c"mldsa65",
        code_point: 0x0905,
        security_bits: 192,
        oid: c"2.16.840.1.101.3.4.3.18",
        identifier: &ml_dsa_identifier(18),
        primitive: Signature(&ML_DSA_65),
    },
    Standard {
        names: c"ML-DSA-87:MLDSA87:2.16.840.1.101.3.4.3.19:id-ml-dsa-87",
        name: c"ML-DSA-87",
        tls_name: c"mldsa87",
        code_point: 0x0906,
        security_bits: 256,
        oid: c"2.16.840.1.101.3.4.3.19",
        identifier: &ml_dsa_identifier(19),
        primitive: Signature(&ML_DSA_87),
    },
];

const fn kem(
    names: &'static CStr,
    name: &'static CStr,
    tls_name: &'static CStr,
    code_point: c_uint,
    security_bits: c_uint,
    primitive: Primitive,
) -> Standard {
    Standard { names, name, tls_name, code_point, security_bits, oid: c"", identifier: &[], primitive }
}

/// SEQUENCE { OBJECT IDENTIFIER 2.16.840.1.101.3.4.3.last }: no parameters (RFC 9881, section 2).
const fn ml_dsa_identifier(last: u8) -> [u8; 13] {
    [0x30, 11, 0x06, 9, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, last]
}

impl Standard {
    pub fn is_signature(&self) -> bool {
        matches!(self.primitive, Signature(_))
    }

    pub(super) fn label(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    pub(crate) fn public_size(&self) -> usize {
        match self.primitive {
            Kem(k, h) => k.public_key + h.map_or(0, |h| h.curve.public_key()),
            Signature(s) => s.public_key,
        }
    }

    /// The length of a ciphertext or signature.
    pub(crate) fn output_size(&self) -> usize {
        match self.primitive {
            Kem(k, h) => k.ciphertext + h.map_or(0, |h| h.curve.public_key()),
            Signature(s) => s.signature,
        }
    }

    pub(crate) fn secret_size(&self) -> usize {
        match self.primitive {
            Kem(_, h) => MlKem::SHARED_SECRET + h.map_or(0, |h| h.curve.secret()),
            Signature(_) => 0,
        }
    }

    /// OpenSSL counts the bits of ML-DSA's public keys, and has names of ML-KEM's.
    pub(super) fn bits(&self) -> usize {
        match self.primitive {
            Kem(k, _) => k.public_key / 384 * 256, // 256 coefficients of 12 bits, for each of the rank's polynomials
            Signature(s) => 8 * s.public_key,
        }
    }

    pub(super) fn error(&self, reason: Reason, what: &str) -> Error {
        Error::new(reason, format!("{what} of {}", self.label()))
    }
}

impl Hybrid {
    /// The classical and the post-quantum half of a share, ciphertext or secret.
    pub(super) fn split<'a>(&self, whole: &'a [u8], classical: usize) -> (&'a [u8], &'a [u8]) {
        if self.first {
            return whole.split_at(classical);
        }
        let (post_quantum, classical) = whole.split_at(whole.len() - classical);
        (classical, post_quantum)
    }

    pub(super) fn split_mut<'a>(&self, whole: &'a mut [u8], classical: usize) -> (&'a mut [u8], &'a mut [u8]) {
        if self.first {
            return whole.split_at_mut(classical);
        }
        let (post_quantum, classical) = whole.split_at_mut(whole.len() - classical);
        (classical, post_quantum)
    }
}
