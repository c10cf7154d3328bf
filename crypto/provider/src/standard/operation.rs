//! What an encapsulation and a signature under way have in common.

use super::key::OwnedKey;
use crate::openssl::abi::{c_char, Opaque};
use std::ptr::null_mut;

/// What an operation works with; OpenSSL keeps the key alive for as long.
pub(super) struct Operation<T> {
    key: *mut OwnedKey,
    pub(super) settings: T,
}

impl<T: Clone + Default> Operation<T> {
    pub(super) unsafe extern "C" fn new_kem(_: Opaque) -> Opaque {
        Box::into_raw(Box::new(Operation { key: null_mut(), settings: T::default() })).cast()
    }

    pub(super) unsafe extern "C" fn new_signature(context: Opaque, _properties: *const c_char) -> Opaque {
        Self::new_kem(context)
    }

    pub(super) unsafe extern "C" fn free(operation: Opaque) {
        if !operation.is_null() {
            drop(Box::from_raw(operation.cast::<Self>()));
        }
    }

    pub(super) unsafe extern "C" fn dup(operation: Opaque) -> Opaque {
        let Operation { key, settings } = Self::borrow(operation);
        Box::into_raw(Box::new(Operation { key: *key, settings: settings.clone() })).cast()
    }

    pub(super) unsafe fn borrow<'a>(operation: Opaque) -> &'a mut Self {
        &mut *operation.cast()
    }

    /// Takes a key, or keeps the one it has.
    pub(super) fn set_key(&mut self, key: Opaque) -> bool {
        if !key.is_null() {
            self.key = key.cast();
        }
        !self.key.is_null()
    }

    pub(super) fn key(&self) -> Option<&'static OwnedKey> {
        // SAFETY: OpenSSL keeps it alive.
        unsafe { self.key.as_ref() }
    }
}

pub(super) unsafe fn slice<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, len)
    }
}
