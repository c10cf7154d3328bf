//! OSSL_OP_SIGNATURE: signatures of messages.

use super::operation::{slice, Operation};
use crate::{
    openssl::{
        abi::{c_char, c_int, entry, signature as id, Dispatch, Opaque, Param},
        params::{Mismatch, Params},
    },
    primitives::fast::{Input, MlDsa},
};
use zeroize::Zeroizing;

/// The parameters of EVP_SIGNATURE-ML-DSA(7).
#[derive(Clone, Default)]
struct Signing {
    context: Vec<u8>,
    /// For tests.
    entropy: Option<[u8; MlDsa::ENTROPY]>,
    deterministic: bool,
    formatted: bool,
    mu: bool,
}
type SignatureOperation = Operation<Signing>;

pub static FUNCTIONS: [Dispatch; 16] = [
    entry!(id::NEWCTX, SignatureOperation::new_signature),
    entry!(id::FREECTX, SignatureOperation::free),
    entry!(id::DUPCTX, SignatureOperation::dup),
    entry!(id::SIGN_MESSAGE_INIT, init),
    entry!(id::SIGN, sign),
    entry!(id::VERIFY_MESSAGE_INIT, init),
    entry!(id::VERIFY, verify),
    entry!(id::DIGEST_SIGN_INIT, digest_init),
    entry!(id::DIGEST_SIGN, sign),
    entry!(id::DIGEST_VERIFY_INIT, digest_init),
    entry!(id::DIGEST_VERIFY, verify),
    entry!(id::GET_CTX_PARAMS, get_params),
    entry!(id::GETTABLE_CTX_PARAMS, gettable),
    entry!(id::SET_CTX_PARAMS, set_params),
    entry!(id::SETTABLE_CTX_PARAMS, settable),
    Dispatch::END,
];

unsafe extern "C" fn init(operation: Opaque, key: Opaque, params: *const Param) -> c_int {
    let o = SignatureOperation::borrow(operation);
    o.settings.mu = false;
    (o.set_key(key) && set_params(operation, params) == 1) as c_int
}

unsafe extern "C" fn digest_init(operation: Opaque, name: *const c_char, key: Opaque, params: *const Param) -> c_int {
    if !name.is_null() && *name != 0 {
        return 0; // it signs messages
    }
    init(operation, key, params)
}

unsafe extern "C" fn set_params(operation: Opaque, params: *const Param) -> c_int {
    SignatureOperation::borrow(operation).settings.set(Params::new(params)).is_ok() as c_int
}

unsafe extern "C" fn settable(_: Opaque, _: Opaque) -> *const Param {
    static SETTABLE: [Param; 6] = [
        Param::octets_named(c"context-string"),
        Param::octets_named(c"test-entropy"),
        Param::integer_named(c"deterministic"),
        Param::integer_named(c"message-encoding"),
        Param::integer_named(c"mu"),
        Param::END,
    ];
    SETTABLE.as_ptr()
}

impl Signing {
    fn set(&mut self, params: Params) -> Result<(), Mismatch> {
        if let Some(context) = params.octets(c"context-string")? {
            if context.len() > 255 {
                return Err(Mismatch);
            }
            self.context = context.to_vec();
        }
        if let Some(entropy) = params.octets(c"test-entropy")? {
            self.entropy = Some(entropy.try_into().map_err(|_| Mismatch)?);
        }
        if let Some(n) = params.integer(c"deterministic")? {
            self.deterministic = n == 1;
        }
        if let Some(n) = params.integer(c"message-encoding")? {
            self.formatted = n == 0;
        }
        if let Some(n) = params.integer(c"mu")? {
            self.mu = n != 0;
        }
        Ok(())
    }

    fn input<'a>(&'a self, message: &'a [u8]) -> Input<'a> {
        match self {
            Signing { mu: true, .. } => Input::Mu(message),
            Signing { formatted: true, .. } => Input::Formatted(message),
            _ => Input::Message { message, context: &self.context },
        }
    }
}

unsafe extern "C" fn sign(
    operation: Opaque,
    out: *mut u8,
    len: *mut usize,
    size: usize,
    message: *const u8,
    message_len: usize,
) -> c_int {
    let o = SignatureOperation::borrow(operation);
    let Some(key) = o.key() else { return 0 };
    *len = key.algorithm.output_size();
    if out.is_null() {
        return 1;
    }
    if size < *len {
        return 0;
    }
    let signature = std::slice::from_raw_parts_mut(out, *len);
    let entropy = match o.settings.entropy {
        Some(entropy) => Ok(Zeroizing::new(entropy)),
        None if o.settings.deterministic => Ok(Zeroizing::new(MlDsa::DETERMINISTIC)),
        None => key.entropy(),
    };
    let message = o.settings.input(slice(message, message_len));
    let result = entropy.and_then(|entropy| key.sign(&entropy, message, signature));
    key.provider.reported(result).is_some() as c_int
}

unsafe extern "C" fn verify(
    operation: Opaque,
    signature: *const u8,
    len: usize,
    message: *const u8,
    message_len: usize,
) -> c_int {
    let o = SignatureOperation::borrow(operation);
    let Some(key) = o.key() else { return 0 };
    let message = o.settings.input(slice(message, message_len));
    key.provider.reported(key.verify(message, slice(signature, len))).is_some() as c_int
}

unsafe extern "C" fn gettable(_: Opaque, _: Opaque) -> *const Param {
    static GETTABLE: [Param; 2] = [Param::octets_named(c"algorithm-id"), Param::END];
    GETTABLE.as_ptr()
}

unsafe extern "C" fn get_params(operation: Opaque, params: *const Param) -> c_int {
    let Some(key) = SignatureOperation::borrow(operation).key() else { return 0 };
    Params::new(params).set_octets(c"algorithm-id", key.algorithm.identifier).is_ok() as c_int
}
