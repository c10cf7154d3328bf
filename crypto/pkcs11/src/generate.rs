//! What C_GenerateKeyPair is asked for: templates in, an algorithm and a name out, without any effect.
//!
//! Keys are made for signatures alone, in the token, private, sensitive and not extractable. Who asks for anything else of
//! that is refused; but that a key may also encrypt, wrap or derive is only not granted, for OpenSSL asks for all of it
//! unless it is told what a key is for.

use crate::{
    config::can_name,
    slot::Rv,
    token::{Algorithm, KeyName},
};
use cryptoki_sys::*;

pub type Template<'a> = [(CK_ATTRIBUTE_TYPE, &'a [u8])];

/// The mechanisms that make keys, with the types of those keys, and the smallest and the largest.
pub const MECHANISMS: [(CK_MECHANISM_TYPE, CK_KEY_TYPE, CK_ULONG, CK_ULONG); 3] = [
    (CKM_RSA_PKCS_KEY_PAIR_GEN, CKK_RSA, 2048, 4096),
    (CKM_EC_KEY_PAIR_GEN, CKK_EC, 256, 521),
    (CKM_ML_DSA_KEY_PAIR_GEN, CKK_ML_DSA, CKP_ML_DSA_44, CKP_ML_DSA_87),
];

/// The most bytes of a label, and of an ID. An hsmd allows as many.
const LONGEST_NAME: usize = 255;
/// 65537, which is what everybody takes.
const EXPONENT: [u8; 3] = [1, 0, 1];

/// What both templates say besides what every key is.
#[derive(Default)]
struct Asked<'a> {
    label: Option<&'a [u8]>,
    id: Option<&'a [u8]>,
    bits: Option<CK_ULONG>,
    exponent: Option<&'a [u8]>,
    curve: Option<&'a [u8]>,
    set: Option<CK_ULONG>,
}

fn is(value: &[u8]) -> Rv<bool> {
    match value {
        [CK_FALSE] => Ok(false),
        [CK_TRUE] => Ok(true),
        _ => Err(CKR_ATTRIBUTE_VALUE_INVALID),
    }
}

fn number(value: &[u8]) -> Rv<CK_ULONG> {
    value.try_into().map(CK_ULONG::from_ne_bytes).map_err(|_| CKR_ATTRIBUTE_VALUE_INVALID)
}

fn must(so: bool) -> Rv<()> {
    so.then_some(()).ok_or(CKR_TEMPLATE_INCONSISTENT)
}

/// Takes what was said, which may be said again but not otherwise.
fn take<T: PartialEq>(place: &mut Option<T>, value: T) -> Rv<()> {
    must(place.as_ref().is_none_or(|said| *said == value))?;
    *place = Some(value);
    Ok(())
}

/// What is to be made, and under which name, by the templates of the public and of the private key.
pub fn wanted(mechanism: CK_MECHANISM_TYPE, public: &Template, private: &Template) -> Rv<(Algorithm, KeyName)> {
    let key_type = MECHANISMS.iter().find(|m| m.0 == mechanism).ok_or(CKR_MECHANISM_INVALID)?.1;
    let mut asked = Asked::default();
    for &(type_, value) in public {
        match (type_, key_type) {
            (CKA_CLASS, _) => must(number(value)? == CKO_PUBLIC_KEY)?,
            (CKA_VERIFY, _) => must(is(value)?)?,
            (CKA_PRIVATE, _) => must(!is(value)?)?,
            (CKA_ENCRYPT | CKA_VERIFY_RECOVER | CKA_WRAP, _) => is(value).map(drop)?,
            (CKA_MODULUS_BITS, CKK_RSA) => take(&mut asked.bits, number(value)?)?,
            (CKA_PUBLIC_EXPONENT, CKK_RSA) => take(&mut asked.exponent, value)?,
            (CKA_EC_PARAMS, CKK_EC) => take(&mut asked.curve, value)?,
            _ => either(&mut asked, key_type, type_, value)?,
        }
    }
    for &(type_, value) in private {
        match type_ {
            CKA_CLASS => must(number(value)? == CKO_PRIVATE_KEY)?,
            CKA_PRIVATE | CKA_SENSITIVE | CKA_SIGN => must(is(value)?)?,
            CKA_EXTRACTABLE | CKA_ALWAYS_AUTHENTICATE => must(!is(value)?)?,
            CKA_DECRYPT | CKA_SIGN_RECOVER | CKA_UNWRAP => is(value).map(drop)?,
            _ => either(&mut asked, key_type, type_, value)?,
        }
    }
    let algorithm = algorithm(key_type, &asked)?;
    Ok((algorithm, name(&asked)?))
}

/// An attribute that both halves of a key have.
fn either<'a>(asked: &mut Asked<'a>, key_type: CK_KEY_TYPE, type_: CK_ATTRIBUTE_TYPE, value: &'a [u8]) -> Rv<()> {
    match type_ {
        CKA_KEY_TYPE => must(number(value)? == key_type),
        CKA_TOKEN => must(is(value)?),
        CKA_DERIVE => is(value).map(drop),
        CKA_LABEL => take(&mut asked.label, value),
        CKA_ID => take(&mut asked.id, value),
        CKA_PARAMETER_SET if key_type == CKK_ML_DSA => take(&mut asked.set, number(value)?),
        // A restriction that does not reach the token must not look as if it had.
        _ => Err(CKR_ATTRIBUTE_TYPE_INVALID),
    }
}

fn algorithm(key_type: CK_KEY_TYPE, asked: &Asked) -> Rv<Algorithm> {
    let listed = |fits: &dyn Fn(&Algorithm) -> bool| Algorithm::ALL.iter().map(|a| a.1).find(|a| fits(a));
    match key_type {
        CKK_RSA => {
            let exponent = asked.exponent.unwrap_or(&EXPONENT);
            let zeros = exponent.iter().take_while(|b| **b == 0).count();
            if exponent[zeros..] != EXPONENT {
                return Err(CKR_ATTRIBUTE_VALUE_INVALID);
            }
            let wanted = asked.bits.ok_or(CKR_TEMPLATE_INCOMPLETE)?;
            let fits = |a: &Algorithm| matches!(a, Algorithm::Rsa { bits } if *bits == wanted);
            listed(&fits).ok_or(CKR_ATTRIBUTE_VALUE_INVALID)
        }
        CKK_EC => {
            let wanted = asked.curve.ok_or(CKR_TEMPLATE_INCOMPLETE)?;
            let fits = |a: &Algorithm| matches!(a, Algorithm::Ec { curve } if *curve == wanted);
            listed(&fits).ok_or(CKR_CURVE_NOT_SUPPORTED)
        }
        _ => {
            let wanted = asked.set.ok_or(CKR_TEMPLATE_INCOMPLETE)?;
            let fits = |a: &Algorithm| matches!(a, Algorithm::MlDsa { set } if *set == wanted);
            listed(&fits).ok_or(CKR_ATTRIBUTE_VALUE_INVALID)
        }
    }
}

/// Members know keys by their labels: one without would never be found again, nor one that no file can name.
fn name(asked: &Asked) -> Rv<KeyName> {
    let label = asked.label.filter(|label| !label.is_empty()).ok_or(CKR_TEMPLATE_INCOMPLETE)?;
    let label = std::str::from_utf8(label).map_err(|_| CKR_ATTRIBUTE_VALUE_INVALID)?;
    let id = asked.id.unwrap_or_default();
    if label.len() > LONGEST_NAME || id.len() > LONGEST_NAME || !can_name(label) {
        return Err(CKR_ATTRIBUTE_VALUE_INVALID);
    }
    Ok(KeyName { label: label.into(), id: id.into() })
}
