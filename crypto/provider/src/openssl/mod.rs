//! What the provider needs of OpenSSL: the provider ABI and a few functions of libcrypto. Everything unsafe about them
//! stays here and in the entry points that OpenSSL calls.

pub mod abi;
pub mod core;
pub mod evp;
pub mod params;
