//! The classical halves of hybrids, through libcrypto.

use crate::{
    der,
    error::{Error, Reason, Result},
    openssl::evp::{Failure, Library, Pkey},
};
use std::ffi::CStr;
use zeroize::Zeroizing;

/// A classical algorithm, as the prefix of a hybrid's name has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classical {
    P256,
    P384,
    P521,
    X25519,
    X448,
    Rsa3072,
}
use Classical::*;

const RSA_BITS: usize = 3072;

impl Classical {
    /// The length of a public key, in bytes; RSA's is the greatest there is with the exponent 65537.
    pub fn public_length(self) -> usize {
        match self {
            P256 => 65,
            P384 => 97,
            P521 => 133,
            X25519 => 32,
            X448 => 56,
            Rsa3072 => 398,
        }
    }

    /// The length of a shared secret; none for what only signs.
    pub fn secret_length(self) -> usize {
        match self {
            P256 | X25519 => 32,
            P384 => 48,
            P521 => 66,
            X448 => 56,
            Rsa3072 => 0,
        }
    }

    /// The greatest length of a signature; none for what only agrees on keys.
    pub fn signature_length(self) -> usize {
        match self {
            P256 => 72,
            P384 => 104,
            P521 => 141,
            Rsa3072 => 384,
            X25519 | X448 => 0,
        }
    }

    /// Curve in OpenSSL's names.
    fn curve(self) -> Option<&'static CStr> {
        match self {
            P256 => Some(c"prime256v1"),
            P384 => Some(c"secp384r1"),
            P521 => Some(c"secp521r1"),
            _ => None,
        }
    }

    fn xdh(self) -> &'static CStr {
        if self == X448 {
            c"X448"
        } else {
            c"X25519"
        }
    }

    fn failed(self, doing: &str) -> impl FnOnce(Failure) -> Error + use<'_> {
        move |_| Error::new(Reason::ClassicalFailed, format!("{doing} with {self:?}"))
    }

    pub fn generate(self, library: &Library) -> Result<Pkey> {
        match (self.curve(), self) {
            (Some(curve), _) => library.generate_ec(curve),
            (None, Rsa3072) => library.generate_rsa(RSA_BITS),
            (None, _) => library.generate_xdh(self.xdh()),
        }
        .map_err(self.failed("key generation"))
    }

    /// The public key as the wire formats have it: a point, or an RSAPublicKey.
    pub fn public_bytes(self, key: &Pkey) -> Result<Vec<u8>> {
        if self == Rsa3072 { key.public_der() } else { key.encoded_public() }
            .map_err(self.failed("encoding of a public key"))
    }

    /// The private key as the wire formats have it: raw for X25519 and X448, else ECPrivateKey or RSAPrivateKey.
    pub fn private_bytes(self, key: &Pkey) -> Result<Zeroizing<Vec<u8>>> {
        match self {
            X25519 | X448 => key.raw_private(self.public_length()),
            _ => key.private_der(),
        }
        .map_err(self.failed("encoding of a private key"))
    }

    pub fn from_public(self, library: &Library, bytes: &[u8]) -> Result<Pkey> {
        let invalid = |_| Error::new(Reason::InvalidKey, format!("the public key of {self:?} is not valid"));
        let key = match (self.curve(), self) {
            (Some(curve), _) => {
                // Only uncompressed points: one key has one encoding.
                if bytes.len() != self.public_length() || bytes[0] != 4 {
                    return Err(invalid(Failure));
                }
                library.ec_public(curve, bytes)
            }
            (None, Rsa3072) => {
                let (n, e) = der::rsa_public_key(bytes).ok_or_else(|| invalid(Failure))?;
                library.rsa_public(n, e)
            }
            (None, _) => library.xdh_public(self.xdh(), bytes),
        }
        .map_err(invalid)?;
        self.checked(key)
    }

    pub fn from_private(self, library: &Library, bytes: &[u8]) -> Result<Pkey> {
        let key = match self {
            X25519 | X448 => library.xdh_private(self.xdh(), bytes),
            _ => library.private_key(bytes),
        }
        .map_err(|_| Error::new(Reason::InvalidKey, format!("the private key of {self:?} is not valid")))?;
        self.checked(key)
    }

    /// Sees to it that a key is of this kind and size, and no other.
    fn checked(self, key: Pkey) -> Result<Pkey> {
        let fits = match (self.curve(), self) {
            (Some(curve), _) => key.is_a(c"EC") && key.on_curve(curve),
            (None, Rsa3072) => key.is_a(c"RSA") && key.bits() == RSA_BITS,
            (None, _) => key.is_a(self.xdh()),
        };
        if fits {
            Ok(key)
        } else {
            Err(Error::new(Reason::InvalidKey, format!("the key is not one of {self:?}")))
        }
    }

    /// The shared secret, into a buffer of secret_length bytes.
    pub fn derive(self, library: &Library, private: &Pkey, peer: &Pkey, secret: &mut [u8]) -> Result<()> {
        library.derive(private, peer, secret).map_err(self.failed("key agreement"))
    }

    /// RSA signs with PKCS #1 v1.5, as oqs-provider has it.
    pub fn sign(self, library: &Library, key: &Pkey, level: u8, message: &[u8]) -> Result<Vec<u8>> {
        library.sign(key, digest(level), message).map_err(self.failed("signing"))
    }

    pub fn verify(self, library: &Library, key: &Pkey, level: u8, message: &[u8], signature: &[u8]) -> bool {
        library.verify(key, digest(level), message, signature)
    }
}

/// The digest of the classical half goes by the NIST level of the other.
fn digest(level: u8) -> &'static CStr {
    match level {
        1 => c"SHA256",
        2 | 3 => c"SHA384",
        _ => c"SHA512",
    }
}
