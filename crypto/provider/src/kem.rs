//! OSSL_OP_KEM (provider-kem(7)).

use crate::{
    error::{Error, Reason, Result},
    keymgmt::{self, OwnedKey},
    openssl::abi::{c_int, entry, kem as id, Dispatch, Opaque, Param},
};
use std::ptr::{self, null_mut};

pub static FUNCTIONS: [Dispatch; 8] = [
    entry!(id::NEWCTX, new_context),
    entry!(id::FREECTX, free_context),
    entry!(id::DUPCTX, dup_context),
    entry!(id::ENCAPSULATE_INIT, init),
    entry!(id::ENCAPSULATE, encapsulate),
    entry!(id::DECAPSULATE_INIT, init),
    entry!(id::DECAPSULATE, decapsulate),
    Dispatch::END,
];

/// An operation; OpenSSL keeps the key alive for as long.
struct Context {
    key: *mut OwnedKey,
}

unsafe extern "C" fn new_context(_: Opaque) -> Opaque {
    Box::into_raw(Box::new(Context { key: null_mut() })).cast()
}

unsafe extern "C" fn free_context(context: Opaque) {
    if !context.is_null() {
        drop(Box::from_raw(context.cast::<Context>()));
    }
}

unsafe extern "C" fn dup_context(context: Opaque) -> Opaque {
    let key = (*context.cast::<Context>()).key;
    Box::into_raw(Box::new(Context { key })).cast()
}

unsafe extern "C" fn init(context: Opaque, key: Opaque, _: *const Param) -> c_int {
    if key.is_null() {
        return 0;
    }
    (*context.cast::<Context>()).key = key.cast();
    1
}

unsafe fn key_of<'a>(context: Opaque) -> Option<&'a OwnedKey> {
    let key = (*context.cast::<Context>()).key;
    (!key.is_null()).then(|| keymgmt::borrow(key.cast()))
}

/// Copies a result out, if the caller's buffer is large enough.
unsafe fn put(what: &str, bytes: &[u8], out: *mut u8, len: *mut usize) -> Result<()> {
    if !len.is_null() && *len < bytes.len() {
        let (is, want) = (*len, bytes.len());
        return Err(Error::new(Reason::InvalidLength, format!("the buffer has {is} bytes, {what} {want}")));
    }
    ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len());
    if !len.is_null() {
        *len = bytes.len();
    }
    Ok(())
}

unsafe extern "C" fn encapsulate(
    context: Opaque,
    out: *mut u8,
    out_len: *mut usize,
    secret: *mut u8,
    secret_len: *mut usize,
) -> c_int {
    let Some(key) = key_of(context) else { return 0 };
    if out.is_null() {
        for (len, size) in [(out_len, key.algorithm.output_size()), (secret_len, key.algorithm.secret_size())] {
            if !len.is_null() {
                *len = size;
            }
        }
        return 1;
    }
    let result = key.encapsulate().and_then(|(ciphertext, shared)| {
        put("the ciphertext", &ciphertext, out, out_len)?;
        put("the secret", &shared, secret, secret_len)
    });
    key.provider.reported(result).is_some() as c_int
}

unsafe extern "C" fn decapsulate(
    context: Opaque,
    out: *mut u8,
    out_len: *mut usize,
    ciphertext: *const u8,
    ciphertext_len: usize,
) -> c_int {
    let Some(key) = key_of(context) else { return 0 };
    if out.is_null() {
        *out_len = key.algorithm.secret_size();
        return 1;
    }
    let ciphertext = std::slice::from_raw_parts(ciphertext, ciphertext_len);
    let result = key.decapsulate(ciphertext).and_then(|shared| put("the secret", &shared, out, out_len));
    key.provider.reported(result).is_some() as c_int
}
