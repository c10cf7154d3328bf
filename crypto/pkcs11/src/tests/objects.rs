//! The slot's objects: what is told of them, and which a search finds. No member is asked.

use super::{config, public};
use crate::{
    slot::{attribute, mechanisms, object, Attribute, Object},
    spki::{self, Kind, PublicKey},
};
use cryptoki_sys::*;

fn value(label: &str, private: bool, type_: CK_ATTRIBUTE_TYPE) -> Attribute {
    let config = config();
    attribute(config.keys.iter().find(|k| k.label == label).unwrap(), private, type_)
}

fn number(n: CK_ULONG) -> Attribute {
    Attribute::Value(n.to_ne_bytes().into())
}

#[test]
fn a_public_key_is_read_as_openssl_wrote_it() {
    let Kind::Rsa { modulus, exponent } = public("/keys/rsa.pem").kind else { panic!() };
    assert_eq!((modulus.len(), modulus[0] >= 0x80, exponent.as_slice()), (256, true, &[1, 0, 1][..]));
    let Kind::Ec { curve, point, half } = public("/keys/p384.pem").kind else { panic!() };
    assert_eq!((curve.as_slice(), point.len(), half), (&[6, 5, 0x2b, 0x81, 4, 0, 0x22][..], 97, 48));
    let Kind::MlDsa { set, value, signature } = public("/keys/mldsa65.pem").kind else { panic!() };
    assert_eq!((set, value.len(), signature), (CKP_ML_DSA_65, 1952, 3309));
}

#[test]
fn a_public_key_that_was_cut_or_has_more_behind_it_is_refused() {
    for file in ["/keys/rsa.pem", "/keys/p256.pem", "/keys/mldsa65.pem"] {
        let der = public(file).der;
        for len in 0..der.len() {
            assert!(PublicKey::from_der(&der[..len]).is_err(), "{file}: {len} bytes");
        }
        assert!(PublicKey::from_der(&[&der[..], &[0]].concat()).is_err(), "{file}: one byte more");
    }
}

#[test]
fn a_type_of_key_that_is_not_served_is_told_so() {
    let ed25519 = [&[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0][..], &[7; 32]].concat();
    let message = PublicKey::from_der(&ed25519).unwrap_err();
    assert!(message.starts_with("keys of this type are not served; there are RSA"), "{message}");
}

#[test]
fn objects_have_what_their_public_key_tells() {
    assert_eq!(value("web", true, CKA_CLASS), number(CKO_PRIVATE_KEY));
    assert_eq!(value("web", false, CKA_CLASS), number(CKO_PUBLIC_KEY));
    assert_eq!(value("web", true, CKA_KEY_TYPE), number(CKK_EC));
    assert_eq!(value("mail", true, CKA_KEY_TYPE), number(CKK_RSA));
    assert_eq!(value("mail", false, CKA_MODULUS_BITS), number(2048));
    assert_eq!(value("pq", true, CKA_PARAMETER_SET), number(CKP_ML_DSA_65));
    assert_eq!(value("web", true, CKA_ID), Attribute::Value(vec![1, 255]));
    let Attribute::Value(point) = value("web", false, CKA_EC_POINT) else { panic!() };
    assert_eq!((point.len(), &point[..3]), (67, &[4, 65, 4][..]), "an OCTET STRING around the point");
}

#[test]
fn nothing_private_is_told_of_a_private_key() {
    for label in ["web", "mail", "pq"] {
        assert_eq!(value(label, true, CKA_SENSITIVE), Attribute::Value(vec![1]));
        assert_eq!(value(label, true, CKA_EXTRACTABLE), Attribute::Value(vec![0]));
        for type_ in [CKA_VALUE, CKA_PRIVATE_EXPONENT, CKA_PRIME_1, CKA_PRIME_2, CKA_COEFFICIENT, CKA_SEED] {
            assert_eq!(value(label, true, type_), Attribute::Sensitive, "{label}: {type_:#x}");
        }
    }
}

#[test]
fn handles_are_of_the_configuration() {
    let config = config();
    assert_eq!(object(&config, 0), None, "CK_INVALID_HANDLE");
    assert_eq!(object(&config, 1), Some(Object { key: 0, private: true }));
    assert_eq!(object(&config, 2), Some(Object { key: 0, private: false }));
    assert_eq!(object(&config, 6), Some(Object { key: 2, private: false }));
    assert_eq!(object(&config, 7), None);
    assert_eq!(object(&config, CK_ULONG::MAX), None);
}

#[test]
fn mechanisms_are_those_that_keys_have_a_use_for() {
    let types: Vec<_> = mechanisms(&config()).iter().map(|m| m.0).collect();
    assert_eq!(types, [CKM_ECDSA, CKM_RSA_PKCS, CKM_RSA_PKCS_PSS, CKM_RSA_X_509, CKM_ML_DSA]);
}

#[test]
fn a_public_key_is_put_together_from_what_a_token_tells() {
    for file in ["/keys/rsa.pem", "/keys/p256.pem", "/keys/p384.pem", "/keys/mldsa65.pem"] {
        let key = public(file);
        let made = match &key.kind {
            Kind::Rsa { modulus, exponent } => spki::rsa(&[&[0], &modulus[..]].concat(), exponent),
            Kind::Ec { curve, point, .. } => {
                let quoted = [&[4, point.len() as u8], &point[..]].concat();
                assert_eq!(spki::ec(curve, &quoted), spki::ec(curve, point), "tokens differ in how they quote a point");
                spki::ec(curve, point)
            }
            Kind::MlDsa { set, value, .. } => spki::ml_dsa(*set, value).unwrap(),
        };
        assert_eq!(made, key.der, "{file}");
    }
    assert_eq!(spki::ml_dsa(9, &[0; 1952]), None);
}
