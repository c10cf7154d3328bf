//! OSSL_OP_SIGNATURE (provider-signature(7)). Messages are signed as they are; where a caller names a digest, as CMS
//! does, its value is what is signed, as in oqs-provider.

use crate::{
    error::{Error, Reason, Result},
    keymgmt::{self, OwnedKey},
    openssl::{
        abi::{c_char, c_int, entry, signature as id, Dispatch, Opaque, Param},
        evp::{Digest, Failure},
        params::Params,
    },
};
use std::{
    ffi::CStr,
    ptr::{self, null_mut},
};

pub static FUNCTIONS: [Dispatch; 18] = [
    entry!(id::NEWCTX, new_context),
    entry!(id::FREECTX, free_context),
    entry!(id::DUPCTX, dup_context),
    entry!(id::SIGN_INIT, init),
    entry!(id::SIGN, sign),
    entry!(id::VERIFY_INIT, init),
    entry!(id::VERIFY, verify),
    entry!(id::DIGEST_SIGN_INIT, digest_init),
    entry!(id::DIGEST_SIGN_UPDATE, update),
    entry!(id::DIGEST_SIGN_FINAL, sign_final),
    entry!(id::DIGEST_SIGN, digest_sign),
    entry!(id::DIGEST_VERIFY_INIT, digest_init),
    entry!(id::DIGEST_VERIFY_UPDATE, update),
    entry!(id::DIGEST_VERIFY_FINAL, verify_final),
    entry!(id::DIGEST_VERIFY, digest_verify),
    entry!(id::GET_CTX_PARAMS, get_params),
    entry!(id::GETTABLE_CTX_PARAMS, gettable),
    Dispatch::END,
];

/// An operation; OpenSSL keeps the key alive for as long.
struct Context {
    key: *mut OwnedKey,
    message: Message,
}

/// What is signed: the message itself, or its digest.
enum Message {
    Whole(Vec<u8>),
    Digest(Digest),
}

impl Message {
    fn add(&mut self, data: &[u8]) -> std::result::Result<(), Failure> {
        match self {
            Message::Whole(all) => all.extend_from_slice(data),
            Message::Digest(d) => d.update(data)?,
        }
        Ok(())
    }

    fn bytes(&self) -> std::result::Result<Vec<u8>, Failure> {
        match self {
            Message::Whole(all) => Ok(all.clone()),
            Message::Digest(d) => d.value(),
        }
    }

    fn copy(&self) -> std::result::Result<Message, Failure> {
        Ok(match self {
            Message::Whole(all) => Message::Whole(all.clone()),
            Message::Digest(d) => Message::Digest(d.copy()?),
        })
    }
}

fn digest_failed(_: Failure) -> Error {
    Error::new(Reason::UnsupportedParameter, "the digest cannot be computed")
}

unsafe fn borrow<'a>(context: Opaque) -> &'a mut Context {
    &mut *context.cast()
}

impl Context {
    fn key(&self) -> Option<&OwnedKey> {
        // SAFETY: OpenSSL keeps it alive.
        (!self.key.is_null()).then(|| unsafe { keymgmt::borrow(self.key.cast()) })
    }
}

unsafe extern "C" fn new_context(_: Opaque, _properties: *const c_char) -> Opaque {
    Box::into_raw(Box::new(Context { key: null_mut(), message: Message::Whole(vec![]) })).cast()
}

unsafe extern "C" fn free_context(context: Opaque) {
    if !context.is_null() {
        drop(Box::from_raw(context.cast::<Context>()));
    }
}

unsafe extern "C" fn dup_context(context: Opaque) -> Opaque {
    let context = borrow(context);
    match context.message.copy() {
        Ok(message) => Box::into_raw(Box::new(Context { key: context.key, message })).cast(),
        Err(_) => null_mut(),
    }
}

unsafe extern "C" fn init(context: Opaque, key: Opaque, _: *const Param) -> c_int {
    let context = borrow(context);
    if !key.is_null() {
        context.key = key.cast();
    }
    context.message = Message::Whole(vec![]);
    (!context.key.is_null()) as c_int
}

unsafe extern "C" fn digest_init(context: Opaque, name: *const c_char, key: Opaque, params: *const Param) -> c_int {
    if init(context, key, params) == 0 {
        return 0;
    }
    if name.is_null() || *name == 0 {
        return 1;
    }
    let context = borrow(context);
    let name = CStr::from_ptr(name);
    let Some(key) = context.key() else { return 0 };
    let digest = key
        .provider
        .library
        .digest(name)
        .map_err(|_| Error::new(Reason::UnsupportedParameter, format!("the digest {name:?} is not known")));
    match key.provider.reported(digest) {
        Some(digest) => {
            context.message = Message::Digest(digest);
            1
        }
        None => 0,
    }
}

unsafe fn slice<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, len)
    }
}

unsafe extern "C" fn update(context: Opaque, data: *const u8, len: usize) -> c_int {
    borrow(context).message.add(slice(data, len)).is_ok() as c_int
}

/// Writes the signature of a message, or its greatest length.
unsafe fn put_signature(
    context: &Context,
    out: *mut u8,
    len: *mut usize,
    size: usize,
    message: impl FnOnce() -> Result<Vec<u8>>,
) -> c_int {
    let Some(key) = context.key() else { return 0 };
    if out.is_null() {
        *len = key.algorithm.output_size();
        return 1;
    }
    let signature = message().and_then(|m| key.sign(&m)).and_then(|s| {
        if s.len() > size {
            return Err(Error::new(
                Reason::InvalidLength,
                format!("the buffer has {size} bytes, the signature {}", s.len()),
            ));
        }
        Ok(s)
    });
    match key.provider.reported(signature) {
        Some(s) => {
            ptr::copy_nonoverlapping(s.as_ptr(), out, s.len());
            *len = s.len();
            1
        }
        None => 0,
    }
}

unsafe fn check_signature(context: &Context, signature: &[u8], message: impl FnOnce() -> Result<Vec<u8>>) -> c_int {
    let Some(key) = context.key() else { return 0 };
    key.provider.reported(message().and_then(|m| key.verify(&m, signature))).is_some() as c_int
}

unsafe extern "C" fn sign(
    context: Opaque,
    out: *mut u8,
    len: *mut usize,
    size: usize,
    message: *const u8,
    message_len: usize,
) -> c_int {
    put_signature(borrow(context), out, len, size, || Ok(slice(message, message_len).to_vec()))
}

unsafe extern "C" fn verify(
    context: Opaque,
    signature: *const u8,
    len: usize,
    message: *const u8,
    message_len: usize,
) -> c_int {
    check_signature(borrow(context), slice(signature, len), || Ok(slice(message, message_len).to_vec()))
}

unsafe extern "C" fn sign_final(context: Opaque, out: *mut u8, len: *mut usize, size: usize) -> c_int {
    let context = borrow(context);
    put_signature(context, out, len, size, || context.message.bytes().map_err(digest_failed))
}

unsafe extern "C" fn verify_final(context: Opaque, signature: *const u8, len: usize) -> c_int {
    let context = borrow(context);
    check_signature(context, slice(signature, len), || context.message.bytes().map_err(digest_failed))
}

/// What is signed in one call: the message, or its digest.
fn in_one(context: &Context, message: &[u8]) -> Result<Vec<u8>> {
    let mut copy = context.message.copy().map_err(digest_failed)?;
    copy.add(message).map_err(digest_failed)?;
    copy.bytes().map_err(digest_failed)
}

unsafe extern "C" fn digest_sign(
    context: Opaque,
    out: *mut u8,
    len: *mut usize,
    size: usize,
    message: *const u8,
    message_len: usize,
) -> c_int {
    let context = borrow(context);
    put_signature(context, out, len, size, || in_one(context, slice(message, message_len)))
}

unsafe extern "C" fn digest_verify(
    context: Opaque,
    signature: *const u8,
    len: usize,
    message: *const u8,
    message_len: usize,
) -> c_int {
    let context = borrow(context);
    check_signature(context, slice(signature, len), || in_one(context, slice(message, message_len)))
}

unsafe extern "C" fn gettable(_: Opaque, _: Opaque) -> *const Param {
    static GETTABLE: [Param; 2] = [Param::octets_named(c"algorithm-id"), Param::END];
    GETTABLE.as_ptr()
}

unsafe extern "C" fn get_params(context: Opaque, params: *const Param) -> c_int {
    let Some(key) = borrow(context).key() else { return 0 };
    let Some(identifier) = &key.provider.registered(key.algorithm).identifier else { return 0 };
    Params::new(params).set_octets(c"algorithm-id", identifier).is_ok() as c_int
}
