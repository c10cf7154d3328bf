//! What a program hands over, as Rust has it: pointers checked, parameters copied.

use crate::{
    slot::Rv,
    token::{Mechanism, LONGEST_CONTEXT},
};
use cryptoki_sys::*;
use std::slice;

/// A place for an answer. It stays a pointer: a program may hand one place over for two things, and two references to it must
/// never be.
pub fn place<T>(pointer: *mut T) -> Rv<*mut T> {
    if pointer.is_null() {
        Err(CKR_ARGUMENTS_BAD)
    } else {
        Ok(pointer)
    }
}

fn len<T>(count: CK_ULONG) -> Rv<usize> {
    let most = isize::MAX as usize / size_of::<T>();
    usize::try_from(count).ok().filter(|n| *n <= most).ok_or(CKR_ARGUMENTS_BAD)
}

unsafe fn items<'a, T>(pointer: *const T, count: CK_ULONG) -> Rv<&'a [T]> {
    match (pointer.is_null(), len::<T>(count)?) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(CKR_ARGUMENTS_BAD),
        (false, n) => Ok(slice::from_raw_parts(pointer, n)),
    }
}

/// # Safety
/// That many bytes are there, or the pointer is null.
pub unsafe fn bytes<'a>(pointer: *const u8, count: CK_ULONG) -> Rv<&'a [u8]> {
    items(pointer, count)
}

/// # Safety
/// There is room for that many, or the pointer is null.
pub unsafe fn room<'a, T>(pointer: *mut T, count: CK_ULONG) -> Rv<&'a mut [T]> {
    match (pointer.is_null(), len::<T>(count)?) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(CKR_ARGUMENTS_BAD),
        (false, n) => Ok(slice::from_raw_parts_mut(pointer, n)),
    }
}

/// # Safety
/// The attributes and their values are there.
pub unsafe fn template<'a>(pointer: *const CK_ATTRIBUTE, count: CK_ULONG) -> Rv<Vec<(CK_ATTRIBUTE_TYPE, &'a [u8])>> {
    let attributes: &'a [CK_ATTRIBUTE] = items(pointer, count)?;
    attributes.iter().map(|a| Ok((a.type_, bytes(a.pValue.cast(), a.ulValueLen)?))).collect()
}

/// The parameter of a mechanism, if it has exactly the size of a T. It need not be aligned.
unsafe fn parameter<T: Copy>(mechanism: &CK_MECHANISM) -> Rv<T> {
    match bytes(mechanism.pParameter.cast(), mechanism.ulParameterLen) {
        Ok(b) if b.len() == size_of::<T>() => Ok(b.as_ptr().cast::<T>().read_unaligned()),
        _ => Err(CKR_MECHANISM_PARAM_INVALID),
    }
}

/// # Safety
/// The parameter is there, and what it points to.
pub unsafe fn mechanism(from: &CK_MECHANISM) -> Rv<Mechanism> {
    let plain = from.pParameter.is_null() && from.ulParameterLen == 0;
    let mechanism = match from.mechanism {
        CKM_RSA_PKCS if plain => Mechanism::RsaPkcs,
        CKM_RSA_X_509 if plain => Mechanism::RsaRaw,
        CKM_ECDSA if plain => Mechanism::Ecdsa,
        CKM_RSA_PKCS_PSS => {
            let p: CK_RSA_PKCS_PSS_PARAMS = parameter(from)?;
            Mechanism::RsaPss { hash: p.hashAlg, mgf: p.mgf, salt: p.sLen }
        }
        CKM_ML_DSA if plain => Mechanism::MlDsa(None),
        CKM_ML_DSA => {
            let p: CK_SIGN_ADDITIONAL_CONTEXT = parameter(from)?;
            if p.ulContextLen > LONGEST_CONTEXT as CK_ULONG {
                return Err(CKR_MECHANISM_PARAM_INVALID); // before it is read
            }
            let context = bytes(p.pContext, p.ulContextLen).map_err(|_| CKR_MECHANISM_PARAM_INVALID)?;
            Mechanism::MlDsa(Some((p.hedgeVariant, context.to_vec())))
        }
        CKM_RSA_PKCS | CKM_RSA_X_509 | CKM_ECDSA => return Err(CKR_MECHANISM_PARAM_INVALID),
        _ => return Err(CKR_MECHANISM_INVALID),
    };
    if mechanism.has_valid_parameter() {
        Ok(mechanism)
    } else {
        Err(CKR_MECHANISM_PARAM_INVALID)
    }
}
