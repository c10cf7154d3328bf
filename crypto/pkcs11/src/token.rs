//! What a member can do, apart from how: a vendor's library ([`crate::library`]), or a test's stand-in.

use crate::{config::Key, verdict};
use cryptoki_sys::*;
use std::fmt;

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

/// One signature to be made.
#[derive(Clone, Debug)]
pub struct Request {
    /// The index of the key in the configuration.
    pub key: usize,
    pub mechanism: Mechanism,
    pub data: Vec<u8>,
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

    pub fn verdict(&self) -> verdict::Verdict {
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
}
