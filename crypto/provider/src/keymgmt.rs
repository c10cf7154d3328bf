//! OSSL_OP_KEYMGMT (provider-keymgmt(7)): making, importing, comparing and describing keys.

use crate::{
    algorithm::{for_each_algorithm, ALGORITHMS, COUNT},
    key::Key,
    openssl::{
        abi::{c_int, c_void, entry, keymgmt as id, select, Dispatch, Opaque, Param, ParamCallback},
        params::{Mismatch, Params},
    },
    provider::Provider,
};
use std::ptr::null_mut;
use zeroize::Zeroizing;

pub type OwnedKey = Key<'static>;

/// The functions of each algorithm.
pub static FUNCTIONS: [&[Dispatch]; COUNT] = {
    macro_rules! functions {
        ($index:literal) => {
            &[
                entry!(id::NEW, new::<$index>),
                entry!(id::FREE, free),
                entry!(id::GEN_INIT, gen_init::<$index>),
                entry!(id::GEN_SET_PARAMS, gen_set_params),
                entry!(id::GEN_SETTABLE_PARAMS, gen_settable),
                entry!(id::GEN, gen),
                entry!(id::GEN_CLEANUP, gen_cleanup),
                entry!(id::LOAD, load),
                entry!(id::GET_PARAMS, get_params),
                entry!(id::GETTABLE_PARAMS, gettable),
                entry!(id::SET_PARAMS, set_params),
                entry!(id::SETTABLE_PARAMS, settable),
                entry!(id::HAS, has),
                entry!(id::VALIDATE, validate),
                entry!(id::MATCH, matches),
                entry!(id::IMPORT, import),
                entry!(id::IMPORT_TYPES, transfer_types),
                entry!(id::EXPORT, export),
                entry!(id::EXPORT_TYPES, transfer_types),
                entry!(id::DUP, dup),
                Dispatch::END,
            ]
        };
    }
    for_each_algorithm!(functions)
};

pub fn into_raw(key: OwnedKey) -> Opaque {
    Box::into_raw(Box::new(key)).cast()
}

/// # Safety
/// `key` is one of `into_raw`, not freed yet, and nobody changes it meanwhile.
pub unsafe fn borrow<'a>(key: Opaque) -> &'a OwnedKey {
    &*key.cast()
}

/// # Safety
/// `key` is one of `into_raw`, not freed yet, and nobody else uses it meanwhile.
unsafe fn borrow_mut<'a>(key: Opaque) -> &'a mut OwnedKey {
    &mut *key.cast()
}

unsafe extern "C" fn new<const INDEX: usize>(context: Opaque) -> Opaque {
    into_raw(Key::empty(Provider::from_context(context), &ALGORITHMS[INDEX]))
}

pub unsafe extern "C" fn free(key: Opaque) {
    if !key.is_null() {
        drop(Box::from_raw(key.cast::<OwnedKey>()));
    }
}

/// A generation under way: an empty key, and whether to fill it.
struct Generation {
    key: OwnedKey,
    wanted: bool,
}

unsafe extern "C" fn gen_init<const INDEX: usize>(context: Opaque, selection: c_int, _: *const Param) -> Opaque {
    let key = Key::empty(Provider::from_context(context), &ALGORITHMS[INDEX]);
    // libssl asks for nothing to be generated when it only wants a place for the peer's share.
    Box::into_raw(Box::new(Generation { key, wanted: selection & select::KEYPAIR != 0 })).cast()
}

/// libssl names the group, which the algorithm is already.
unsafe extern "C" fn gen_set_params(_: Opaque, _: *const Param) -> c_int {
    1
}

unsafe extern "C" fn gen_settable(_: Opaque, _: Opaque) -> *const Param {
    static SETTABLE: [Param; 2] = [Param::string_named(c"group"), Param::END];
    SETTABLE.as_ptr()
}

unsafe extern "C" fn gen(generation: Opaque, _: Opaque, _: Opaque) -> Opaque {
    let generation = &*generation.cast::<Generation>();
    let mut key = Key::empty(generation.key.provider, generation.key.algorithm);
    if generation.wanted && key.provider.reported(key.generate()).is_none() {
        return null_mut();
    }
    into_raw(key)
}

unsafe extern "C" fn gen_cleanup(generation: Opaque) {
    if !generation.is_null() {
        drop(Box::from_raw(generation.cast::<Generation>()));
    }
}

/// Takes over the key that a decoder refers to.
unsafe extern "C" fn load(reference: *const c_void, size: usize) -> Opaque {
    if size != size_of::<Opaque>() {
        return null_mut();
    }
    let slot = reference.cast::<Opaque>().cast_mut();
    let key = *slot;
    *slot = null_mut();
    key
}

static GETTABLE: [Param; 9] = [
    Param::integer_named(c"bits"),
    Param::integer_named(c"security-bits"),
    Param::integer_named(c"security-category"),
    Param::integer_named(c"max-size"),
    Param::string_named(c"mandatory-digest"),
    Param::octets_named(c"encoded-pub-key"),
    Param::octets_named(c"pub"),
    Param::octets_named(c"priv"),
    Param::END,
];

unsafe extern "C" fn gettable(_: Opaque) -> *const Param {
    GETTABLE.as_ptr()
}

unsafe extern "C" fn get_params(key: Opaque, params: *const Param) -> c_int {
    let (key, params) = (borrow(key), Params::new(params));
    get(key, params).is_ok() as c_int
}

fn get(key: &OwnedKey, params: Params) -> Result<(), Mismatch> {
    let a = key.algorithm;
    params.set_integer(c"bits", a.security_bits())?;
    params.set_integer(c"security-bits", a.security_bits())?;
    params.set_integer(c"security-category", a.level.into())?;
    params.set_integer(c"max-size", a.output_size())?;
    if a.is_signature() {
        // It signs messages, not digests: X.509 then names no digest.
        params.set_string(c"mandatory-digest", c"")?;
    }
    if key.has_public() {
        let bytes = |r| key.provider.reported(r).ok_or(Mismatch);
        if params.asks_for(c"encoded-pub-key") {
            params.set_octets(c"encoded-pub-key", &bytes(key.share())?)?;
        }
        if params.asks_for(c"pub") {
            params.set_octets(c"pub", &bytes(key.public_bytes())?)?;
        }
    }
    if key.has_secret() && params.asks_for(c"priv") {
        params.set_octets(c"priv", &key.provider.reported(key.private_bytes()).ok_or(Mismatch)?)?;
    }
    Ok(())
}

static SETTABLE: [Param; 2] = [Param::octets_named(c"encoded-pub-key"), Param::END];

unsafe extern "C" fn settable(_: Opaque) -> *const Param {
    SETTABLE.as_ptr()
}

unsafe extern "C" fn set_params(key: Opaque, params: *const Param) -> c_int {
    let key = borrow_mut(key);
    let Ok(share) = Params::new(params).octets(c"encoded-pub-key") else { return 0 };
    let Some(share) = share else { return 1 };
    let result = key.set_share(share);
    key.provider.reported(result).is_some() as c_int
}

unsafe extern "C" fn has(key: Opaque, selection: c_int) -> c_int {
    if key.is_null() {
        return 0;
    }
    let key = borrow(key);
    let public = selection & select::PUBLIC_KEY == 0 || key.has_public();
    let private = selection & select::PRIVATE_KEY == 0 || key.has_secret();
    (public && private) as c_int
}

unsafe extern "C" fn validate(key: Opaque, selection: c_int, _check: c_int) -> c_int {
    if has(key, selection) == 0 {
        return 0;
    }
    let key = borrow(key);
    if selection & select::KEYPAIR != select::KEYPAIR {
        return 1; // each half was checked when it came
    }
    key.provider.reported(key.validate()).is_some() as c_int
}

unsafe extern "C" fn matches(a: Opaque, b: Opaque, selection: c_int) -> c_int {
    if selection & select::KEYPAIR == 0 {
        return 1;
    }
    borrow(a).has_same_public(borrow(b)) as c_int
}

unsafe extern "C" fn transfer_types(selection: c_int) -> *const Param {
    static TYPES: [Param; 3] = [Param::octets_named(c"pub"), Param::octets_named(c"priv"), Param::END];
    if selection & select::KEYPAIR == 0 {
        return std::ptr::null();
    }
    TYPES.as_ptr()
}

unsafe extern "C" fn import(key: Opaque, selection: c_int, params: *const Param) -> c_int {
    let (key, params) = (borrow_mut(key), Params::new(params));
    let private = if selection & select::PRIVATE_KEY != 0 { params.octets(c"priv") } else { Ok(None) };
    let imported = match (private, params.octets(c"pub")) {
        (Ok(Some(bytes)), Ok(_)) => Key::from_private_bytes(key.provider, key.algorithm, bytes),
        (Ok(None), Ok(Some(bytes))) => Key::from_public_bytes(key.provider, key.algorithm, bytes),
        _ => return 0,
    };
    match key.provider.reported(imported) {
        Some(imported) => {
            *key = imported;
            1
        }
        None => 0,
    }
}

pub unsafe extern "C" fn export(key: Opaque, selection: c_int, callback: ParamCallback, arg: Opaque) -> c_int {
    let key = borrow(key);
    let (mut public, mut private) = (Vec::new(), Zeroizing::default());
    let mut params = Vec::new();
    if key.has_public() {
        let Some(bytes) = key.provider.reported(key.public_bytes()) else { return 0 };
        public = bytes;
        params.push(Param::octets(c"pub", &public));
    }
    if selection & select::PRIVATE_KEY != 0 && key.has_secret() {
        let Some(bytes) = key.provider.reported(key.private_bytes()) else { return 0 };
        private = bytes;
        params.push(Param::octets(c"priv", &private));
    }
    params.push(Param::END);
    let result = callback(params.as_ptr(), arg);
    drop((public, private));
    result
}

unsafe extern "C" fn dup(key: Opaque, selection: c_int) -> Opaque {
    let key = borrow(key);
    let copy = key.copy(selection & select::PUBLIC_KEY != 0, selection & select::PRIVATE_KEY != 0);
    key.provider.reported(copy).map_or(null_mut(), into_raw)
}
