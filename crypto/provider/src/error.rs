//! Errors, as OpenSSL's error queue shows them.

use crate::openssl::abi::Item;
use std::ptr;

/// Why an operation failed; the numbers are this provider's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    InvalidKey = 1,
    InvalidEncoding,
    InvalidLength,
    MissingKey,
    SignatureMismatch,
    PrimitiveFailed,
    ClassicalFailed,
    UnsupportedParameter,
    Internal,
}

pub const REASON_ITEMS: [Item; 10] = [
    Item { id: Reason::InvalidKey as u32, ptr: c"invalid key".as_ptr() },
    Item { id: Reason::InvalidEncoding as u32, ptr: c"invalid encoding".as_ptr() },
    Item { id: Reason::InvalidLength as u32, ptr: c"invalid length".as_ptr() },
    Item { id: Reason::MissingKey as u32, ptr: c"missing key".as_ptr() },
    Item { id: Reason::SignatureMismatch as u32, ptr: c"signature mismatch".as_ptr() },
    Item { id: Reason::PrimitiveFailed as u32, ptr: c"post-quantum primitive failed".as_ptr() },
    Item { id: Reason::ClassicalFailed as u32, ptr: c"classical half failed".as_ptr() },
    Item { id: Reason::UnsupportedParameter as u32, ptr: c"unsupported parameter".as_ptr() },
    Item { id: Reason::Internal as u32, ptr: c"internal error".as_ptr() },
    Item { id: 0, ptr: ptr::null() },
];

/// A reason and what it is about. It never holds secret data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub reason: Reason,
    pub detail: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(reason: Reason, detail: impl Into<String>) -> Error {
        Error { reason, detail: detail.into() }
    }

    pub fn internal(detail: impl Into<String>) -> Error {
        Error::new(Reason::Internal, detail)
    }
}

/// Fails unless a length is the one that an algorithm has.
pub fn expect_length(what: &str, name: &str, is: usize, want: usize) -> Result<()> {
    if is == want {
        return Ok(());
    }
    Err(Error::new(Reason::InvalidLength, format!("{what} of {name} has {is} bytes, not {want}")))
}
