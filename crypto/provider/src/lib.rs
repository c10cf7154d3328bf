//! `oqsprovider.so`: an OpenSSL 3 provider with the post-quantum and hybrid algorithms of crypto/algorithms.csv, drop-in
//! with oqs-provider's names, code points, object identifiers and encodings.
//!
//! OpenSSL enters through [`OSSL_provider_init`], which hands it the tables of [`provider`]; each operation has a module
//! of entry points (`keymgmt`, `kem`, `signature`, `encoder`, `decoder`, `capabilities`), thin and unsafe, over the safe
//! [`key`], which puts the halves of an algorithm together: `classical` through libcrypto, and `primitives`. The standard
//! algorithms, which OpenSSL has too, are in [`standard`], divided likewise: faster, and served to those who ask for them.

pub mod algorithm;
mod capabilities;
pub mod classical;
mod decoder;
pub mod der;
mod encoder;
pub mod error;
mod kem;
pub mod key;
mod keymgmt;
pub mod openssl;
pub mod primitives;
pub mod provider;
mod signature;
pub mod stack;
pub mod standard;
#[cfg(test)]
mod tests;

use openssl::{
    abi::{c_char, c_int, c_void, entry, provider as id, AlgorithmEntry, Dispatch, Item, Opaque, Param, ParamCallback},
    core::Core,
    evp::Library,
    params::Params,
};
use provider::Provider;
use std::{ffi::CStr, ptr::null};

static FUNCTIONS: [Dispatch; 7] = [
    entry!(id::TEARDOWN, teardown),
    entry!(id::GETTABLE_PARAMS, gettable_params),
    entry!(id::GET_PARAMS, get_params),
    entry!(id::QUERY_OPERATION, query_operation),
    entry!(id::GET_REASON_STRINGS, reason_strings),
    entry!(id::GET_CAPABILITIES, get_capabilities),
    Dispatch::END,
];

/// The entry point of the module: makes an instance for one library context.
///
/// # Safety
/// OpenSSL calls it with its core's handle and functions, and places for the answer.
#[no_mangle]
pub unsafe extern "C" fn OSSL_provider_init(
    handle: *const c_void,
    functions: *const Dispatch,
    out: *mut *const Dispatch,
    context: *mut Opaque,
) -> c_int {
    let core = Core::new(handle, functions);
    if let Err(e) = expect_own_openssl(&core) {
        core.raise(&e);
        return 0;
    }
    let Ok(library) = Library::child(handle, functions) else {
        core.raise(&error::Error::internal("no library context of its own"));
        return 0;
    };
    match Provider::new(core, library, provider::environment) {
        Ok(p) => {
            *context = p.into_context();
            *out = FUNCTIONS.as_ptr();
            1
        }
        Err((core, e)) => {
            core.raise(&e);
            0
        }
    }
}

/// Fails where another OpenSSL loads the module than the one whose libcrypto it is linked with: their contexts are not the
/// same, and the process would crash.
fn expect_own_openssl(core: &Core) -> error::Result<()> {
    let own = Library::major_version();
    match core.version() {
        Some(theirs) if theirs.split('.').next() != Some(own.to_string().as_str()) => {
            Err(error::Error::internal(format!("this is OpenSSL {theirs}, and the module was built for OpenSSL {own}")))
        }
        _ => Ok(()),
    }
}

unsafe extern "C" fn teardown(context: Opaque) {
    drop(Box::from_raw(context.cast::<Provider>()));
}

unsafe extern "C" fn gettable_params(_: Opaque) -> *const Param {
    static GETTABLE: [Param; 5] = [
        Param::string_pointer_named(c"name"),
        Param::string_pointer_named(c"version"),
        Param::string_pointer_named(c"buildinfo"),
        Param::integer_named(c"status"),
        Param::END,
    ];
    GETTABLE.as_ptr()
}

unsafe extern "C" fn get_params(_: Opaque, params: *const Param) -> c_int {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(v) => v,
        Err(_) => panic!(),
    };
    let params = Params::new(params);
    let answered = params.set_string(c"name", c"Q-TLS post-quantum provider (liboqs, KpqC)").is_ok()
        && params.set_string(c"version", VERSION).is_ok()
        && params.set_string(c"buildinfo", c"liboqs 0.13.0, kpqc 0.2.1").is_ok()
        && params.set_integer(c"status", 1).is_ok();
    answered as c_int
}

unsafe extern "C" fn query_operation(context: Opaque, operation: c_int, no_cache: *mut c_int) -> *const AlgorithmEntry {
    *no_cache = 0;
    Provider::from_context(context).query(operation).map_or(null(), <[_]>::as_ptr)
}

unsafe extern "C" fn reason_strings(_: Opaque) -> *const Item {
    openssl::core::REASONS.as_ptr()
}

unsafe extern "C" fn get_capabilities(
    context: Opaque,
    capability: *const c_char,
    callback: ParamCallback,
    arg: Opaque,
) -> c_int {
    if capability.is_null() {
        return 0;
    }
    capabilities::tell(Provider::from_context(context), CStr::from_ptr(capability), callback, arg)
}
