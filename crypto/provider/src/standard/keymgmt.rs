//! OSSL_OP_KEYMGMT: keys as OpenSSL holds them.

use super::{
    key::{Key, OwnedKey},
    table::{
        Primitive::{Kem, Signature},
        ALGORITHMS,
    },
};
use crate::{
    error::expect_length,
    openssl::{
        abi::{c_int, entry, keymgmt as id, select, Dispatch, Opaque, Param, ParamCallback},
        params::{Mismatch, Params},
    },
    primitives::fast::{MlDsa, MlKem},
    provider::Provider,
};
use std::ptr::{self, null, null_mut};
use zeroize::Zeroizing;

/// The functions of an algorithm; OpenSSL does not say for which it calls `new` and `gen_init`.
pub static FUNCTIONS: [&[Dispatch]; ALGORITHMS.len()] = {
    macro_rules! functions {
        ($index:literal $($transfer:tt)*) => {
            &[
                entry!(id::NEW, new::<$index>),
                entry!(id::FREE, free),
                entry!(id::GEN_INIT, gen_init::<$index>),
                entry!(id::GEN_SET_PARAMS, gen_set_params),
                entry!(id::GEN_SETTABLE_PARAMS, gen_settable),
                entry!(id::GEN, gen),
                entry!(id::GEN_CLEANUP, gen_cleanup),
                entry!(id::GET_PARAMS, get_params),
                entry!(id::GETTABLE_PARAMS, gettable),
                entry!(id::SET_PARAMS, set_params),
                entry!(id::SETTABLE_PARAMS, settable),
                entry!(id::HAS, has),
                entry!(id::VALIDATE, validate),
                entry!(id::MATCH, matches),
                entry!(id::DUP, dup),
                $($transfer)*
                Dispatch::END,
            ]
        };
        (transferable $index:literal) => {
            functions!($index
                entry!(id::IMPORT, import),
                entry!(id::IMPORT_TYPES, transfer_types),
                entry!(id::EXPORT, export),
                entry!(id::EXPORT_TYPES, transfer_types),
            )
        };
    }
    // Hybrids' keys live for one handshake and have no common form outside a provider. That they cannot be exported has
    // OpenSSL use this provider's KEM with them, whatever a fetch without a query would find.
    [
        functions!(transferable 0),
        functions!(transferable 1),
        functions!(transferable 2),
        functions!(3),
        functions!(4),
        functions!(5),
        functions!(transferable 6),
        functions!(transferable 7),
        functions!(transferable 8),
    ]
};
fn into_raw(key: OwnedKey) -> Opaque {
    Box::into_raw(Box::new(key)).cast()
}

/// # Safety
/// `key` is one of `into_raw`, not freed yet, and nobody changes it meanwhile.
unsafe fn borrow<'a>(key: Opaque) -> &'a OwnedKey {
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

unsafe extern "C" fn free(key: Opaque) {
    if !key.is_null() {
        drop(Box::from_raw(key.cast::<OwnedKey>()));
    }
}

/// A generation under way: an empty key, and whether and from what to fill it.
struct Generation {
    key: OwnedKey,
    wanted: bool,
    seed: Option<Zeroizing<Vec<u8>>>,
}

unsafe extern "C" fn gen_init<const INDEX: usize>(context: Opaque, selection: c_int, params: *const Param) -> Opaque {
    let key = Key::empty(Provider::from_context(context), &ALGORITHMS[INDEX]);
    // libssl asks for nothing to be generated when it only wants a place for the peer's share.
    let generation = Generation { key, wanted: selection & select::KEYPAIR != 0, seed: None };
    let generation = Box::into_raw(Box::new(generation)).cast();
    if gen_set_params(generation, params) == 0 {
        gen_cleanup(generation);
        return null_mut();
    }
    generation
}

unsafe extern "C" fn gen_set_params(generation: Opaque, params: *const Param) -> c_int {
    let generation = &mut *generation.cast::<Generation>();
    let algorithm = generation.key.algorithm;
    let Ok(seed) = Params::new(params).octets(c"seed") else { return 0 };
    let Some(seed) = seed else { return 1 };
    let want = match algorithm.primitive {
        Kem(_, None) => MlKem::SEED,
        Kem(_, Some(_)) => return 0,
        Signature(_) => MlDsa::SEED,
    };
    let checked = expect_length("a seed", algorithm.label(), seed.len(), want);
    if generation.key.provider.reported(checked).is_none() {
        return 0;
    }
    generation.seed = Some(Zeroizing::new(seed.to_vec()));
    1
}

unsafe extern "C" fn gen_settable(_: Opaque, _: Opaque) -> *const Param {
    static SETTABLE: [Param; 3] = [Param::octets_named(c"seed"), Param::string_named(c"group"), Param::END];
    SETTABLE.as_ptr()
}

unsafe extern "C" fn gen(generation: Opaque, _: Opaque, _: Opaque) -> Opaque {
    let generation = &mut *generation.cast::<Generation>();
    let mut key = generation.key.clone();
    if generation.wanted {
        let seed = generation.seed.take(); // each key needs its own
        let generated = key.generate(seed.as_ref().map(|s| s.as_slice()));
        if key.provider.reported(generated).is_none() {
            return null_mut();
        }
    }
    into_raw(key)
}

unsafe extern "C" fn gen_cleanup(generation: Opaque) {
    if !generation.is_null() {
        drop(Box::from_raw(generation.cast::<Generation>()));
    }
}

unsafe extern "C" fn gettable(_: Opaque) -> *const Param {
    static GETTABLE: [Param; 9] = [
        Param::integer_named(c"bits"),
        Param::integer_named(c"security-bits"),
        Param::integer_named(c"max-size"),
        Param::string_named(c"mandatory-digest"),
        Param::octets_named(c"encoded-pub-key"),
        Param::octets_named(c"pub"),
        Param::octets_named(c"priv"),
        Param::octets_named(c"seed"),
        Param::END,
    ];
    GETTABLE.as_ptr()
}

unsafe extern "C" fn get_params(key: Opaque, params: *const Param) -> c_int {
    get(borrow(key), Params::new(params)).is_ok() as c_int
}

fn get(key: &OwnedKey, params: Params) -> std::result::Result<(), Mismatch> {
    let a = key.algorithm;
    params.set_integer(c"bits", a.bits())?;
    params.set_integer(c"security-bits", a.security_bits as usize)?;
    params.set_integer(c"max-size", a.output_size())?;
    if a.is_signature() {
        // It signs messages, not digests: X.509 then names no digest.
        params.set_string(c"mandatory-digest", c"")?;
    } else if key.has_public() {
        params.set_octets(c"encoded-pub-key", &key.public)?;
    }
    if matches!(a.primitive, Kem(_, Some(_))) {
        return Ok(());
    }
    if key.has_public() {
        params.set_octets(c"pub", &key.public)?;
    }
    if key.has_private() {
        params.set_octets(c"priv", &key.private)?;
    }
    if let Some(seed) = &key.seed {
        params.set_octets(c"seed", seed)?;
    }
    Ok(())
}

unsafe extern "C" fn settable(_: Opaque) -> *const Param {
    static SETTABLE: [Param; 2] = [Param::octets_named(c"encoded-pub-key"), Param::END];
    SETTABLE.as_ptr()
}

unsafe extern "C" fn set_params(key: Opaque, params: *const Param) -> c_int {
    let key = borrow_mut(key);
    let Ok(share) = Params::new(params).octets(c"encoded-pub-key") else { return 0 };
    let Some(share) = share else { return 1 };
    if key.has_public() {
        return 0; // a key does not change
    }
    let result = key.set_public(share);
    key.provider.reported(result).is_some() as c_int
}

unsafe extern "C" fn has(key: Opaque, selection: c_int) -> c_int {
    if key.is_null() {
        return 0;
    }
    let key = borrow(key);
    let public = selection & select::PUBLIC_KEY == 0 || key.has_public();
    let private = selection & select::PRIVATE_KEY == 0 || key.has_private();
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
    let (a, b) = (borrow(a), borrow(b));
    (ptr::eq(a.algorithm, b.algorithm) && (selection & select::KEYPAIR == 0 || a.public == b.public)) as c_int
}

unsafe extern "C" fn transfer_types(selection: c_int) -> *const Param {
    static TYPES: [Param; 4] =
        [Param::octets_named(c"seed"), Param::octets_named(c"pub"), Param::octets_named(c"priv"), Param::END];
    if selection & select::KEYPAIR == 0 {
        return null();
    }
    TYPES.as_ptr()
}

unsafe extern "C" fn import(key: Opaque, selection: c_int, params: *const Param) -> c_int {
    let (key, params) = (borrow_mut(key), Params::new(params));
    if selection & select::KEYPAIR == 0 || key.has_public() {
        return 0;
    }
    let private = |name| if selection & select::PRIVATE_KEY != 0 { params.octets(name) } else { Ok(None) };
    let (Ok(seed), Ok(private), Ok(public)) = (private(c"seed"), private(c"priv"), params.octets(c"pub")) else {
        return 0;
    };
    let result = key.import(seed, private, public);
    key.provider.reported(result).is_some() as c_int
}

unsafe extern "C" fn export(key: Opaque, selection: c_int, callback: ParamCallback, arg: Opaque) -> c_int {
    let key = borrow(key);
    let mut params = Vec::new();
    if selection & select::PRIVATE_KEY != 0 && key.has_private() {
        params.extend(key.seed.as_ref().map(|seed| Param::octets(c"seed", seed)));
        params.push(Param::octets(c"priv", &key.private));
    }
    if selection & select::PUBLIC_KEY != 0 && key.has_public() {
        params.push(Param::octets(c"pub", &key.public));
    }
    if params.is_empty() {
        return 0;
    }
    params.push(Param::END);
    callback(params.as_ptr(), arg)
}

unsafe extern "C" fn dup(key: Opaque, selection: c_int) -> Opaque {
    let key = borrow(key);
    let mut copy = Key::empty(key.provider, key.algorithm);
    if selection & select::KEYPAIR != 0 {
        copy.public = key.public.clone();
    }
    if selection & select::PRIVATE_KEY != 0 {
        (copy.private, copy.seed, copy.classical) = (key.private.clone(), key.seed.clone(), key.classical.clone());
    }
    into_raw(copy)
}
