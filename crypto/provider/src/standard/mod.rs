//! The standard algorithms, which OpenSSL has too: ML-KEM, ML-DSA and the hybrid groups of TLS 1.3, from the vectorised
//! code of [`fast`](crate::primitives::fast), under OpenSSL's own names. A property query chooses them, such as
//! `?provider=oqsprovider`; without one OpenSSL's serve, if its default provider was activated first.
//!
//! There are no encoders and decoders of these keys. OpenSSL's read and write them, so that files are the same to the
//! byte, and hand the keys over as parameters (import, export). A decoder here would not wait for a query: those of all
//! providers take part in every decoding.
//!
//! `table` has the algorithms, `key` what can be done with their keys, safely; `keymgmt`, `kem` and `signature` are the
//! entry points over them.

pub mod kem;
mod key;
pub mod keymgmt;
mod operation;
pub mod signature;
mod table;

pub use table::{Standard, ALGORITHMS};
