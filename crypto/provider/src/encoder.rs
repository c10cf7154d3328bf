//! OSSL_OP_ENCODER (provider-encoder(7)): keys as DER, PEM and text.

use crate::{
    der,
    error::{Error, Reason, Result},
    key::Key,
    keymgmt::{self, OwnedKey},
    openssl::{
        abi::{c_int, encoder as id, entry, select, Dispatch, Opaque, Param, PassphraseCallback},
        params::{Mismatch, Params},
    },
    provider::Provider,
};
use std::{ffi::CString, fmt::Write};
use zeroize::Zeroizing;

/// A form that keys are written in.
pub struct Form {
    pub format: &'static str,
    pub structure: &'static str,
    pub functions: &'static [Dispatch],
}

macro_rules! form {
    ($format:literal, $structure:literal, $encode:expr, $selects:expr) => {
        Form {
            format: $format,
            structure: $structure,
            functions: &[
                entry!(id::NEWCTX, new_context),
                entry!(id::FREECTX, free_context),
                entry!(id::SET_CTX_PARAMS, set_params),
                entry!(id::SETTABLE_CTX_PARAMS, settable),
                entry!(id::DOES_SELECTION, $selects),
                entry!(id::ENCODE, $encode),
                entry!(id::IMPORT_OBJECT, import_object),
                entry!(id::FREE_OBJECT, keymgmt::free),
                Dispatch::END,
            ],
        }
    };
}

/// Of those that may be, OpenSSL takes the last: who names no structure and no cipher wants no EncryptedPrivateKeyInfo.
pub static FORMS: [Form; 7] = [
    form!("der", "EncryptedPrivateKeyInfo", private_der::<true>, selects::<true>),
    form!("pem", "EncryptedPrivateKeyInfo", private_pem::<true>, selects::<true>),
    form!("der", "PrivateKeyInfo", private_der::<false>, selects::<true>),
    form!("pem", "PrivateKeyInfo", private_pem::<false>, selects::<true>),
    form!("der", "SubjectPublicKeyInfo", public_der, selects::<false>),
    form!("pem", "SubjectPublicKeyInfo", public_pem, selects::<false>),
    form!("text", "", text, selects_any),
];

struct Context {
    provider: &'static Provider,
    /// With a cipher, private keys are written encrypted.
    cipher: Option<CString>,
    properties: Option<CString>,
}

unsafe extern "C" fn new_context(provider: Opaque) -> Opaque {
    Box::into_raw(Box::new(Context { provider: Provider::from_context(provider), cipher: None, properties: None }))
        .cast()
}

unsafe extern "C" fn free_context(context: Opaque) {
    if !context.is_null() {
        drop(Box::from_raw(context.cast::<Context>()));
    }
}

unsafe extern "C" fn settable(_: Opaque) -> *const Param {
    static SETTABLE: [Param; 3] = [Param::string_named(c"cipher"), Param::string_named(c"properties"), Param::END];
    SETTABLE.as_ptr()
}

unsafe extern "C" fn set_params(context: Opaque, params: *const Param) -> c_int {
    (*context.cast::<Context>()).set(Params::new(params)).is_ok() as c_int
}

/// Whether a structure of private keys, or one of public keys, is what is asked for. A private key implies its public one, as
/// with OpenSSL's own encoders and decoders: whoever asks for both does not get the public key alone.
pub unsafe extern "C" fn selects<const PRIVATE: bool>(_: Opaque, selection: c_int) -> c_int {
    let private = selection & select::PRIVATE_KEY != 0;
    let public = selection & select::PUBLIC_KEY != 0;
    (selection == 0 || if PRIVATE { private } else { public && !private }) as c_int
}

unsafe extern "C" fn selects_any(_: Opaque, selection: c_int) -> c_int {
    (selection == 0 || selection & select::KEYPAIR != 0) as c_int
}

/// A key of another provider, to be written by this one.
unsafe extern "C" fn import_object(_: Opaque, _selection: c_int, _: *const Param) -> Opaque {
    std::ptr::null_mut() // no other provider has these algorithms
}

/// What an encoder is called with, but for the key and where to write.
struct Passphrase {
    callback: Option<PassphraseCallback>,
    arg: Opaque,
}

impl Passphrase {
    fn ask(&self) -> Result<Zeroizing<Vec<u8>>> {
        let callback = self
            .callback
            .ok_or_else(|| Error::new(Reason::UnsupportedParameter, "a cipher, but no way to ask for a passphrase"))?;
        let mut pass = Zeroizing::new(vec![0u8; 1024]);
        let mut len = 0;
        // SAFETY: the size is the vector's; there are no parameters.
        let ok = unsafe { callback(pass.as_mut_ptr().cast(), pass.len(), &mut len, [Param::END].as_ptr(), self.arg) };
        if ok != 1 || len > pass.len() {
            return Err(Error::new(Reason::UnsupportedParameter, "no passphrase was given"));
        }
        pass.truncate(len);
        Ok(pass)
    }
}

impl Context {
    fn set(&mut self, params: Params) -> std::result::Result<(), Mismatch> {
        let (cipher, properties) = (params.string(c"cipher")?, params.string(c"properties")?);
        if params.asks_for(c"cipher") {
            self.cipher = cipher.map(Into::into);
        }
        if params.asks_for(c"properties") {
            self.properties = properties.map(Into::into);
        }
        Ok(())
    }

    fn identifier(&self, key: &Key) -> Result<&'static [u8]> {
        self.provider.registered(key.algorithm).identifier.as_deref().ok_or_else(|| {
            Error::new(Reason::UnsupportedParameter, format!("{} has no object identifier", key.algorithm.name))
        })
    }

    /// The private key, and whether it is encrypted: with a cipher it is, and where it must be there has to be one.
    fn private(&self, key: &Key, pass: &Passphrase, must_be_encrypted: bool) -> Result<(Zeroizing<Vec<u8>>, bool)> {
        let der = der::private_key_info(self.identifier(key)?, &key.private_bytes()?);
        let Some(cipher) = &self.cipher else {
            if must_be_encrypted {
                let detail = format!("an EncryptedPrivateKeyInfo of {} without a cipher", key.algorithm.name);
                return Err(Error::new(Reason::UnsupportedParameter, detail));
            }
            return Ok((der, false));
        };
        let sealed = self
            .provider
            .library
            .encrypt_pkcs8(&der, cipher, self.properties.as_deref(), &pass.ask()?)
            .map_err(|_| Error::new(Reason::UnsupportedParameter, format!("encryption with {cipher:?} failed")))?;
        Ok((Zeroizing::new(sealed), true))
    }

    fn public(&self, key: &Key) -> Result<Vec<u8>> {
        Ok(der::subject_public_key_info(self.identifier(key)?, &key.public_bytes()?))
    }
}

/// Writes what f makes of a key.
unsafe fn write(
    context: Opaque,
    bio: Opaque,
    key: Opaque,
    abstract_object: *const Param,
    f: impl FnOnce(&Context, &OwnedKey) -> Result<Zeroizing<Vec<u8>>>,
) -> c_int {
    if !abstract_object.is_null() || key.is_null() {
        return 0; // keys come as keys, not as parameters
    }
    let context = &*context.cast::<Context>();
    let core = &context.provider.core;
    context.provider.reported(f(context, keymgmt::borrow(key)).and_then(|bytes| core.write_all(bio, &bytes))).is_some()
        as c_int
}

unsafe extern "C" fn private_der<const ENCRYPTED: bool>(
    context: Opaque,
    bio: Opaque,
    key: Opaque,
    abstract_object: *const Param,
    _selection: c_int,
    callback: Option<PassphraseCallback>,
    arg: Opaque,
) -> c_int {
    write(context, bio, key, abstract_object, |c, k| Ok(c.private(k, &Passphrase { callback, arg }, ENCRYPTED)?.0))
}

unsafe extern "C" fn private_pem<const ENCRYPTED: bool>(
    context: Opaque,
    bio: Opaque,
    key: Opaque,
    abstract_object: *const Param,
    _selection: c_int,
    callback: Option<PassphraseCallback>,
    arg: Opaque,
) -> c_int {
    write(context, bio, key, abstract_object, |c, k| {
        let (der, encrypted) = c.private(k, &Passphrase { callback, arg }, ENCRYPTED)?;
        let label = if encrypted { "ENCRYPTED PRIVATE KEY" } else { "PRIVATE KEY" };
        Ok(Zeroizing::new(der::pem(label, &der).as_bytes().to_vec()))
    })
}

unsafe extern "C" fn public_der(
    context: Opaque,
    bio: Opaque,
    key: Opaque,
    abstract_object: *const Param,
    _selection: c_int,
    _: Option<PassphraseCallback>,
    _: Opaque,
) -> c_int {
    write(context, bio, key, abstract_object, |c, k| Ok(Zeroizing::new(c.public(k)?)))
}

unsafe extern "C" fn public_pem(
    context: Opaque,
    bio: Opaque,
    key: Opaque,
    abstract_object: *const Param,
    _selection: c_int,
    _: Option<PassphraseCallback>,
    _: Opaque,
) -> c_int {
    write(context, bio, key, abstract_object, |c, k| {
        Ok(Zeroizing::new(der::pem("PUBLIC KEY", &c.public(k)?).as_bytes().to_vec()))
    })
}

unsafe extern "C" fn text(
    context: Opaque,
    bio: Opaque,
    key: Opaque,
    abstract_object: *const Param,
    selection: c_int,
    _: Option<PassphraseCallback>,
    _: Opaque,
) -> c_int {
    write(context, bio, key, abstract_object, |_, k| {
        let private = selection & select::PRIVATE_KEY != 0;
        let kind = if private { "Private-Key" } else { "Public-Key" };
        let name = k.algorithm.name;
        let mut out = Zeroizing::new(String::with_capacity(64));
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name} {kind}: ({} bit)", k.algorithm.security_bits());
        if private {
            hexdump(&mut out, "priv", &k.private_bytes()?);
        }
        hexdump(&mut out, "pub", &k.public_bytes()?);
        Ok(Zeroizing::new(out.as_bytes().to_vec()))
    })
}

/// Bytes as OpenSSL prints those of keys: fifteen to a line.
fn hexdump(out: &mut Zeroizing<String>, label: &str, bytes: &[u8]) {
    // Growing it would leave a copy behind.
    let mut all = Zeroizing::new(String::with_capacity(out.len() + label.len() + bytes.len() * 4 + 64));
    all.push_str(out);
    all.push_str(label);
    all.push(':');
    for (i, b) in bytes.iter().enumerate() {
        if i % 15 == 0 {
            all.push_str("\n    ");
        }
        let _ = write!(all, "{b:02x}");
        if i + 1 < bytes.len() {
            all.push(':');
        }
    }
    all.push('\n');
    *out = all;
}
