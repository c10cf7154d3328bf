//! OSSL_OP_KEM: encapsulation and decapsulation.

use super::operation::{slice, Operation};
use crate::{
    openssl::{
        abi::{c_int, entry, kem as id, Dispatch, Opaque, Param},
        params::Params,
    },
    primitives::fast::MlKem,
};
use zeroize::Zeroizing;

/// The randomness of the next encapsulation, for tests.
type Ikme = Option<Zeroizing<[u8; MlKem::ENTROPY]>>;
type Encapsulation = Operation<Ikme>;

pub static FUNCTIONS: [Dispatch; 10] = [
    entry!(id::NEWCTX, Encapsulation::new_kem),
    entry!(id::FREECTX, Encapsulation::free),
    entry!(id::DUPCTX, Encapsulation::dup),
    entry!(id::ENCAPSULATE_INIT, init),
    entry!(id::ENCAPSULATE, encapsulate),
    entry!(id::DECAPSULATE_INIT, init),
    entry!(id::DECAPSULATE, decapsulate),
    entry!(id::SET_CTX_PARAMS, set_params),
    entry!(id::SETTABLE_CTX_PARAMS, settable),
    Dispatch::END,
];

unsafe extern "C" fn init(operation: Opaque, key: Opaque, params: *const Param) -> c_int {
    (Encapsulation::borrow(operation).set_key(key) && set_params(operation, params) == 1) as c_int
}

unsafe extern "C" fn set_params(operation: Opaque, params: *const Param) -> c_int {
    let Ok(ikme) = Params::new(params).octets(c"ikme") else { return 0 };
    let Some(ikme) = ikme else { return 1 };
    let Ok(ikme) = ikme.try_into() else { return 0 };
    Encapsulation::borrow(operation).settings = Some(Zeroizing::new(ikme));
    1
}

unsafe extern "C" fn settable(_: Opaque, _: Opaque) -> *const Param {
    static SETTABLE: [Param; 2] = [Param::octets_named(c"ikme"), Param::END];
    SETTABLE.as_ptr()
}

unsafe extern "C" fn encapsulate(
    operation: Opaque,
    out: *mut u8,
    out_len: *mut usize,
    secret: *mut u8,
    secret_len: *mut usize,
) -> c_int {
    let operation = Encapsulation::borrow(operation);
    let Some(key) = operation.key() else { return 0 };
    let (size, secret_size) = (key.algorithm.output_size(), key.algorithm.secret_size());
    let (out_len, secret_len) = (out_len.as_mut(), secret_len.as_mut());
    let enough =
        out_len.as_ref().is_some_and(|l| **l >= size) && secret_len.as_ref().is_some_and(|l| **l >= secret_size);
    if let Some(l) = out_len {
        *l = size;
    }
    if let Some(l) = secret_len {
        *l = secret_size;
    }
    if out.is_null() {
        return 1;
    }
    if !enough || secret.is_null() {
        return 0;
    }
    let out = std::slice::from_raw_parts_mut(out, size);
    let secret = std::slice::from_raw_parts_mut(secret, secret_size);
    let result = match operation.settings.take() {
        Some(entropy) => key.encapsulate(&entropy, out, secret),
        None => key.entropy().and_then(|entropy| key.encapsulate(&entropy, out, secret)),
    };
    key.provider.reported(result).is_some() as c_int
}

unsafe extern "C" fn decapsulate(
    operation: Opaque,
    out: *mut u8,
    out_len: *mut usize,
    ciphertext: *const u8,
    ciphertext_len: usize,
) -> c_int {
    let Some(key) = Encapsulation::borrow(operation).key() else { return 0 };
    let size = key.algorithm.secret_size();
    let enough = out_len.as_ref().is_none_or(|l| *l >= size);
    if let Some(l) = out_len.as_mut() {
        *l = size;
    }
    if out.is_null() {
        return 1;
    }
    if !enough {
        return 0;
    }
    let secret = std::slice::from_raw_parts_mut(out, size);
    let result = key.decapsulate(slice(ciphertext, ciphertext_len), secret);
    key.provider.reported(result).is_some() as c_int
}
