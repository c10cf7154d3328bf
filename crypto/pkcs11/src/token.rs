//! What a member can do, apart from how: a vendor's library ([`crate::library`]), or a test's stand-in.

use crate::{
    config::Key,
    verdict::{self, Verdict},
};
use cryptoki_sys::*;
use std::{fmt, sync::Arc, time::Duration};

/// A mechanism with its parameter, owned: a signature may be made by another thread, and more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mechanism {
    RsaPkcs,
    RsaRaw,
    RsaPss {
        hash: CK_MECHANISM_TYPE,
        mgf: CK_RSA_PKCS_MGF_TYPE,
        salt: CK_ULONG,
    },
    Ecdsa,
    /// With hedging and a context where the caller gave them.
    MlDsa(Option<(CK_HEDGE_TYPE, Vec<u8>)>),
}

/// FIPS 204 allows a context of that many bytes.
pub const LONGEST_CONTEXT: usize = 255;
/// More salt than that fits no key.
const LONGEST_SALT: CK_ULONG = 1024;

/// The bytes of a digest.
pub fn digest_len(hash: CK_MECHANISM_TYPE) -> Option<usize> {
    Some(match hash {
        CKM_SHA_1 => 20,
        CKM_SHA224 | CKM_SHA512_224 | CKM_SHA3_224 => 28,
        CKM_SHA256 | CKM_SHA512_256 | CKM_SHA3_256 => 32,
        CKM_SHA384 | CKM_SHA3_384 => 48,
        CKM_SHA512 | CKM_SHA3_512 => 64,
        _ => return None,
    })
}

impl Mechanism {
    /// Whether a token may be asked with this parameter, whatever the key. How its vendor's library takes others nobody knows.
    pub fn has_valid_parameter(&self) -> bool {
        match self {
            Mechanism::RsaPkcs | Mechanism::RsaRaw | Mechanism::Ecdsa | Mechanism::MlDsa(None) => true,
            Mechanism::RsaPss { hash, mgf, salt } => {
                digest_len(*hash).is_some()
                    && (CKG_MGF1_SHA1..=CKG_MGF1_SHA3_512).contains(mgf)
                    && *salt <= LONGEST_SALT
            }
            Mechanism::MlDsa(Some((hedge, context))) => {
                *hedge <= CKH_DETERMINISTIC_REQUIRED && context.len() <= LONGEST_CONTEXT
            }
        }
    }
}

/// One signature to be made.
#[derive(Clone, Debug)]
pub struct Request {
    pub key: Arc<Key>,
    pub mechanism: Mechanism,
    pub data: Vec<u8>,
}

/// How a token knows a key: by its label, and by its ID if that is not empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyName {
    pub label: String,
    pub id: Vec<u8>,
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:?}", self.label)?;
        if self.id.is_empty() {
            return Ok(());
        }
        f.write_str(" with ID ")?;
        self.id.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// What a new key is to be. What can be asked for is in [`Algorithm::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Rsa {
        bits: CK_ULONG,
    },
    /// The curve's object identifier in DER.
    Ec {
        curve: &'static [u8],
    },
    MlDsa {
        set: CK_ULONG,
    },
}

impl Algorithm {
    /// By their names in the API. ECDSA-P521 is no certificate's there: programs ask for it.
    pub const ALL: [(&'static str, Algorithm); 9] = [
        ("ML-DSA-44", Algorithm::MlDsa { set: CKP_ML_DSA_44 }),
        ("ML-DSA-65", Algorithm::MlDsa { set: CKP_ML_DSA_65 }),
        ("ML-DSA-87", Algorithm::MlDsa { set: CKP_ML_DSA_87 }),
        ("ECDSA-P256", Algorithm::Ec { curve: &[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7] }),
        ("ECDSA-P384", Algorithm::Ec { curve: &[6, 5, 0x2b, 0x81, 4, 0, 0x22] }),
        ("ECDSA-P521", Algorithm::Ec { curve: &[6, 5, 0x2b, 0x81, 4, 0, 0x23] }),
        ("RSA-2048", Algorithm::Rsa { bits: 2048 }),
        ("RSA-3072", Algorithm::Rsa { bits: 3072 }),
        ("RSA-4096", Algorithm::Rsa { bits: 4096 }),
    ];

    pub fn by_name(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.iter().find(|a| a.0 == name).map(|a| a.1)
    }

    /// Its name; empty if it is none of those that can be asked for.
    pub fn name(self) -> &'static str {
        Algorithm::ALL.iter().find(|a| a.1 == self).map_or("", |a| a.0)
    }
}

/// The longest that a key may take to be made: RSA keys take tokens long, minutes sometimes.
pub const GENERATE_TIME: Duration = Duration::from_secs(300);

/// A key's public half, and what its token says of the private one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// SubjectPublicKeyInfo.
    pub public: Vec<u8>,
    pub sensitive: bool,
    pub extractable: bool,
    /// Generated in the token.
    pub local: bool,
}

/// A member's error: a code of PKCS#11, and what more is known for the log. Never a PIN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: CK_RV,
    pub detail: String,
}

impl Failure {
    pub fn new(code: CK_RV, detail: impl Into<String>) -> Failure {
        Failure { code, detail: detail.into() }
    }

    /// A name that stands for several keys of one token is of no use there; in another it may be that of one key.
    pub fn ambiguous(key: &KeyName) -> Failure {
        Failure::new(CKR_KEY_TYPE_INCONSISTENT, format!("several keys are {key}; name one by its ID"))
    }

    pub fn verdict(&self) -> Verdict {
        verdict::verdict(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", self.detail, verdict::name(self.code))
    }
}

pub type Result<T> = std::result::Result<T, Failure>;

/// A member's token. Any call may take as long as it likes: only worker threads make them.
pub trait Token: Send + Sync {
    /// Opens a session that is logged in.
    fn open(&self) -> Result<Box<dyn Session>>;
    /// Says that the device failed: the next session is to be opened as if it were the first. It must not block:
    /// callers whose time is over say it.
    fn failed(&self);
}

/// A session of a token. Dropping it closes it.
pub trait Session {
    /// Searches the private key; None if the token has no such key.
    fn find(&mut self, key: &Key) -> Result<Option<CK_OBJECT_HANDLE>>;
    fn sign(&mut self, key: CK_OBJECT_HANDLE, request: &Request, len: usize) -> Result<Vec<u8>>;
    /// Fails if the session, its login or its device is gone.
    fn check(&mut self) -> Result<()>;
    /// Whether the token shows any private key: of one that was taken away some libraries show none, and no error.
    fn has_keys(&mut self) -> Result<bool> {
        Ok(true)
    }

    /// The public half of a key; None if the token has no such private key.
    fn public(&mut self, _: &KeyName) -> Result<Option<Found>> {
        Err(Failure::new(CKR_FUNCTION_NOT_SUPPORTED, "this token looks up no keys"))
    }
    /// Makes a key that never leaves the token, unless there is one with its label.
    fn generate(&mut self, _: Algorithm, _: &KeyName) -> Result<Found> {
        Err(Failure::new(CKR_FUNCTION_NOT_SUPPORTED, "this token makes no keys"))
    }
    /// Destroys a key, both halves.
    fn retire(&mut self, _: &KeyName) -> Result<()> {
        Err(Failure::new(CKR_FUNCTION_NOT_SUPPORTED, "keys are retired by hsmd alone"))
    }
}
