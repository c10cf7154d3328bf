//! The provider ABI: <openssl/core.h> and <openssl/core_dispatch.h>. Its numbers never change (provider-base(7)).

pub use libc::{c_char, c_int, c_long, c_uint, c_void};

/// A pointer that OpenSSL hands around without looking at it: our context, key or operation.
pub type Opaque = *mut c_void;
pub type Function = unsafe extern "C" fn();
pub type ParamCallback = unsafe extern "C" fn(params: *const Param, arg: Opaque) -> c_int;
pub type PassphraseCallback =
    unsafe extern "C" fn(pass: *mut c_char, size: usize, len: *mut usize, params: *const Param, arg: Opaque) -> c_int;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dispatch {
    pub id: c_int,
    pub function: Option<Function>,
}

impl Dispatch {
    pub const END: Dispatch = Dispatch { id: 0, function: None };
}

/// An entry of a dispatch table.
macro_rules! entry {
    ($id:expr, $function:expr) => {
        $crate::openssl::abi::Dispatch {
            id: $id,
            // SAFETY: OpenSSL calls it with the type that belongs to the number.
            function: Some(unsafe {
                ::core::mem::transmute::<*const (), $crate::openssl::abi::Function>($function as *const ())
            }),
        }
    };
}
pub(crate) use entry;

#[repr(C)]
pub struct Param {
    pub key: *const c_char,
    pub data_type: c_uint,
    pub data: Opaque,
    pub data_size: usize,
    pub return_size: usize,
}
// SAFETY: static tables of parameters hold no data, only keys that live as long.
unsafe impl Sync for Param {}

#[repr(C)]
pub struct AlgorithmEntry {
    pub names: *const c_char,
    pub properties: *const c_char,
    pub implementation: *const Dispatch,
    pub description: *const c_char,
}

impl AlgorithmEntry {
    pub const END: AlgorithmEntry = AlgorithmEntry {
        names: std::ptr::null(),
        properties: std::ptr::null(),
        implementation: std::ptr::null(),
        description: std::ptr::null(),
    };
}

#[repr(C)]
pub struct Item {
    pub id: c_uint,
    pub ptr: *const c_char,
}
// SAFETY: its strings are static.
unsafe impl Sync for Item {}

/// Functions that the core offers (OSSL_FUNC_CORE_*, OSSL_FUNC_BIO_*).
pub mod from_core {
    use super::c_int;
    pub const GET_PARAMS: c_int = 2;
    pub const NEW_ERROR: c_int = 5;
    pub const SET_ERROR_DEBUG: c_int = 6;
    pub const VSET_ERROR: c_int = 7;
    pub const OBJ_ADD_SIGID: c_int = 11;
    pub const OBJ_CREATE: c_int = 12;
    pub const BIO_READ_EX: c_int = 42;
    pub const BIO_WRITE_EX: c_int = 43;
}

/// Functions of a provider (OSSL_FUNC_PROVIDER_*).
pub mod provider {
    use super::c_int;
    pub const TEARDOWN: c_int = 1024;
    pub const GETTABLE_PARAMS: c_int = 1025;
    pub const GET_PARAMS: c_int = 1026;
    pub const QUERY_OPERATION: c_int = 1027;
    pub const GET_REASON_STRINGS: c_int = 1029;
    pub const GET_CAPABILITIES: c_int = 1030;
}

/// Operations (OSSL_OP_*).
pub mod operation {
    use super::c_int;
    pub const KEYMGMT: c_int = 10;
    pub const SIGNATURE: c_int = 12;
    pub const KEM: c_int = 14;
    pub const ENCODER: c_int = 20;
    pub const DECODER: c_int = 21;
}

/// OSSL_FUNC_KEYMGMT_*.
pub mod keymgmt {
    use super::c_int;
    pub const NEW: c_int = 1;
    pub const GEN_INIT: c_int = 2;
    pub const GEN_SET_PARAMS: c_int = 4;
    pub const GEN_SETTABLE_PARAMS: c_int = 5;
    pub const GEN: c_int = 6;
    pub const GEN_CLEANUP: c_int = 7;
    pub const LOAD: c_int = 8;
    pub const FREE: c_int = 10;
    pub const GET_PARAMS: c_int = 11;
    pub const GETTABLE_PARAMS: c_int = 12;
    pub const SET_PARAMS: c_int = 13;
    pub const SETTABLE_PARAMS: c_int = 14;
    pub const HAS: c_int = 21;
    pub const VALIDATE: c_int = 22;
    pub const MATCH: c_int = 23;
    pub const IMPORT: c_int = 40;
    pub const IMPORT_TYPES: c_int = 41;
    pub const EXPORT: c_int = 42;
    pub const EXPORT_TYPES: c_int = 43;
    pub const DUP: c_int = 44;
}

/// OSSL_FUNC_KEM_*.
pub mod kem {
    use super::c_int;
    pub const NEWCTX: c_int = 1;
    pub const ENCAPSULATE_INIT: c_int = 2;
    pub const ENCAPSULATE: c_int = 3;
    pub const DECAPSULATE_INIT: c_int = 4;
    pub const DECAPSULATE: c_int = 5;
    pub const FREECTX: c_int = 6;
    pub const DUPCTX: c_int = 7;
    pub const SET_CTX_PARAMS: c_int = 10;
    pub const SETTABLE_CTX_PARAMS: c_int = 11;
}

/// OSSL_FUNC_SIGNATURE_*.
pub mod signature {
    use super::c_int;
    pub const NEWCTX: c_int = 1;
    pub const SIGN_INIT: c_int = 2;
    pub const SIGN: c_int = 3;
    pub const VERIFY_INIT: c_int = 4;
    pub const VERIFY: c_int = 5;
    pub const DIGEST_SIGN_INIT: c_int = 8;
    pub const DIGEST_SIGN_UPDATE: c_int = 9;
    pub const DIGEST_SIGN_FINAL: c_int = 10;
    pub const DIGEST_SIGN: c_int = 11;
    pub const DIGEST_VERIFY_INIT: c_int = 12;
    pub const DIGEST_VERIFY_UPDATE: c_int = 13;
    pub const DIGEST_VERIFY_FINAL: c_int = 14;
    pub const DIGEST_VERIFY: c_int = 15;
    pub const FREECTX: c_int = 16;
    pub const DUPCTX: c_int = 17;
    pub const GET_CTX_PARAMS: c_int = 18;
    pub const GETTABLE_CTX_PARAMS: c_int = 19;
    pub const SET_CTX_PARAMS: c_int = 20;
    pub const SETTABLE_CTX_PARAMS: c_int = 21;
    pub const SIGN_MESSAGE_INIT: c_int = 27;
    pub const VERIFY_MESSAGE_INIT: c_int = 30;
}

/// OSSL_FUNC_ENCODER_*.
pub mod encoder {
    use super::c_int;
    pub const NEWCTX: c_int = 1;
    pub const FREECTX: c_int = 2;
    pub const SET_CTX_PARAMS: c_int = 5;
    pub const SETTABLE_CTX_PARAMS: c_int = 6;
    pub const DOES_SELECTION: c_int = 10;
    pub const ENCODE: c_int = 11;
    pub const IMPORT_OBJECT: c_int = 20;
    pub const FREE_OBJECT: c_int = 21;
}

/// OSSL_FUNC_DECODER_*.
pub mod decoder {
    use super::c_int;
    pub const NEWCTX: c_int = 1;
    pub const FREECTX: c_int = 2;
    pub const DOES_SELECTION: c_int = 10;
    pub const DECODE: c_int = 11;
    pub const EXPORT_OBJECT: c_int = 20;
}

/// Which parts of a key are meant (OSSL_KEYMGMT_SELECT_*).
pub mod select {
    use super::c_int;
    pub const PRIVATE_KEY: c_int = 1;
    pub const PUBLIC_KEY: c_int = 2;
    pub const KEYPAIR: c_int = 3;
}
