//! OSSL_OP_DECODER (provider-decoder(7)): keys from DER. OpenSSL's own decoders have dealt with PEM and encryption.

use crate::{
    algorithm::{for_each_algorithm, ALGORITHMS, COUNT},
    der,
    encoder::selects,
    key::Key,
    keymgmt,
    openssl::abi::{
        c_int, c_void, decoder as id, entry, select, Dispatch, Opaque, Param, ParamCallback, PassphraseCallback,
    },
    openssl::evp::quietly,
    provider::Provider,
};
use std::{cell::Cell, ptr::null_mut};

macro_rules! table {
    ($name:ident, $private:literal) => {
        pub static $name: [&[Dispatch]; COUNT] = {
            macro_rules! functions {
                ($index:literal) => {
                    &[
                        entry!(id::NEWCTX, new_context),
                        entry!(id::FREECTX, free_context),
                        entry!(id::DOES_SELECTION, selects::<$private>),
                        entry!(id::DECODE, decode::<$index, $private>),
                        entry!(id::EXPORT_OBJECT, export_object),
                        Dispatch::END,
                    ]
                };
            }
            for_each_algorithm!(functions)
        };
    };
}
table!(PRIVATE_FUNCTIONS, true);
table!(PUBLIC_FUNCTIONS, false);

/// The provider's context is the decoder's.
unsafe extern "C" fn new_context(provider: Opaque) -> Opaque {
    provider
}

unsafe extern "C" fn free_context(_: Opaque) {}

unsafe extern "C" fn decode<const INDEX: usize, const PRIVATE: bool>(
    context: Opaque,
    bio: Opaque,
    _selection: c_int,
    callback: ParamCallback,
    arg: Opaque,
    _: Option<PassphraseCallback>,
    _: Opaque,
) -> c_int {
    const NOT_OURS: c_int = 1; // "empty-handed": OpenSSL goes on to the next decoder
    const OBJECT_PKEY: c_int = 2;
    let provider = Provider::from_context(context);
    let registered = &provider.registered[INDEX];
    let Some(identifier) = &registered.identifier else { return NOT_OURS };
    let Some(der) = provider.core.read_all(bio) else { return NOT_OURS };
    let algorithm = &ALGORITHMS[INDEX];
    let key = if PRIVATE {
        let Some(bytes) = der::parse_private_key_info(&der, identifier) else { return NOT_OURS };
        quietly(|| Key::from_private_bytes(provider, algorithm, bytes))
    } else {
        let Some(bytes) = der::parse_subject_public_key_info(&der, identifier) else { return NOT_OURS };
        quietly(|| Key::from_public_bytes(provider, algorithm, bytes))
    };
    // It is ours by its identifier: what is wrong with it is worth telling.
    let Some(key) = provider.reported(key) else { return 0 };
    // The constructor that OpenSSL calls takes the key out of here.
    let reference = Cell::new(keymgmt::into_raw(key));
    let bytes = std::slice::from_raw_parts(reference.as_ptr().cast::<u8>(), size_of::<Opaque>());
    let params = [
        Param::integer(c"type", &OBJECT_PKEY),
        Param::string(c"data-type", &registered.name),
        Param::octets(c"reference", bytes),
        Param::END,
    ];
    let result = callback(params.as_ptr(), arg);
    keymgmt::free(reference.replace(null_mut()));
    result
}

unsafe extern "C" fn export_object(
    _: Opaque,
    reference: *const c_void,
    size: usize,
    callback: ParamCallback,
    arg: Opaque,
) -> c_int {
    if size != size_of::<Opaque>() {
        return 0;
    }
    keymgmt::export(*reference.cast::<Opaque>(), select::KEYPAIR, callback, arg)
}
