//! The slot's objects: what is told of them, and which a search finds. No member is asked.

use super::{config, public};
use crate::{
    config::Key,
    keys::{read, Keys},
    library::lock,
    slot::{attribute, mechanisms, object, signable, Attribute, Object},
    spki::{self, Kind, PublicKey},
    token::Mechanism,
};
use cryptoki_sys::*;
use std::{
    fs,
    sync::{Arc, Mutex},
};

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
    assert_eq!(
        value("mail", true, CKA_ID),
        Attribute::Value(b"mail".into()),
        "a key without an ID has its label for one"
    );
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
    let keys = Keys::new(&config().keys, None);
    let object = |handle| object(&keys, handle).map(|(object, _)| object);
    assert_eq!(object(0), None, "CK_INVALID_HANDLE");
    assert_eq!(object(1), Some(Object { key: 0, private: true }));
    assert_eq!(object(2), Some(Object { key: 0, private: false }));
    assert_eq!(object(6), Some(Object { key: 2, private: false }));
    assert_eq!(object(7), None);
    assert_eq!(object(CK_ULONG::MAX), None);
}

#[test]
fn a_key_keeps_its_handle_while_others_come_and_go() {
    let [web, mail, pq]: [Arc<Key>; 3] = config().keys.clone().try_into().unwrap();
    let keys = Keys::new(&[web.clone(), mail.clone()], None);
    let handles = |keys: &Keys| keys.all().into_iter().map(|(n, k)| (n, k.label.clone())).collect::<Vec<_>>();
    let named = |list: &[(usize, &str)]| list.iter().map(|(n, k)| (*n, k.to_string())).collect::<Vec<_>>();
    keys.set(&[pq.clone(), mail.clone()]);
    assert_eq!(handles(&keys), named(&[(1, "mail"), (2, "pq")]));
    assert_eq!(keys.get(0), Some(web.clone()), "who has found it signs with it yet");
    assert_eq!(keys.get(3), None);
    // A renewed key may have the label of the one before.
    let renewed = Arc::new(Key { public: mail.public.clone(), ..(*web).clone() });
    keys.set(&[renewed, mail]);
    assert_eq!(handles(&keys), named(&[(1, "mail"), (3, "web")]));
    keys.set(&[web]);
    assert_eq!(handles(&keys), named(&[(0, "web")]), "it is back");
}

#[test]
fn keys_follow_the_file_and_stay_while_it_is_wrong() {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let dir = std::env::temp_dir().join(format!("qtls-keys-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join("qtls.conf");
    // As an agent writes it: another file in its place.
    let write = |text: &str| {
        fs::write(dir.join("new"), text).unwrap();
        fs::rename(dir.join("new"), &path).unwrap();
    };
    let testdata = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
    let key = |name: &str| format!("[key {name}]\npublic-key = {testdata}/{name}.pem\n");
    let member = "[member a]\nmodule = /a.so\ntoken = t\npin-file = /pin\n";
    write(&format!("{member}{}", key("rsa")));
    let (config, file) = read(&path, |m| lock(&TOLD).push(m.into())).unwrap();
    let keys = Keys::new(&config.keys, Some(file));
    let labels = || keys.all().iter().map(|(_, key)| key.label.clone()).collect::<Vec<_>>();
    assert!(!keys.reload(), "it is as it was");

    write(&format!("{member}{}{}", key("rsa"), key("p256")));
    assert!(keys.reload());
    assert_eq!(labels(), ["rsa", "p256"]);
    write(&format!("{member}{}{}", key("p256"), key("none")));
    (0..3).for_each(|_| assert!(!keys.reload()));
    assert_eq!(labels(), ["rsa", "p256"], "the last good ones stay");
    let told = lock(&TOLD).clone();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("qtls.conf: line 8: [key none]: public-key = "), "{told:?}");
    fs::remove_file(&path).unwrap();
    assert!(!keys.reload());
    write(&format!("{member}{}", key("p256")));
    assert!(keys.reload());
    assert_eq!(labels(), ["p256"]);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn mechanisms_are_those_that_keys_have_a_use_for() {
    let types: Vec<_> = mechanisms(&Keys::new(&config().keys, None), false).iter().map(|m| m.0).collect();
    assert_eq!(types, [CKM_ECDSA, CKM_RSA_PKCS, CKM_RSA_PKCS_PSS, CKM_RSA_X_509, CKM_ML_DSA]);
    assert!(mechanisms(&Keys::new(&[], None), false).is_empty());
}

/// RSA-2048: PKCS #1 v1.5 padding takes 11 bytes of 256, and PSS with SHA-256 leaves 256 - 32 - 2 for the salt.
#[test]
fn a_token_is_asked_for_what_its_key_can_sign_alone() {
    let (rsa, p256) = (public("/keys/rsa.pem").kind, public("/keys/p256.pem").kind);
    let Kind::Rsa { modulus, .. } = &rsa else { panic!("{rsa:?}") };
    let mut less = modulus.clone();
    *less.last_mut().unwrap() -= 1;
    let pss = |hash, salt| Mechanism::RsaPss { hash, mgf: CKG_MGF1_SHA256, salt };
    let long = Err(CKR_DATA_LEN_RANGE);
    for (mechanism, data, kind, want) in [
        (Mechanism::RsaRaw, &less[..], &rsa, Ok(())),
        (Mechanism::RsaRaw, &modulus[..], &rsa, Err(CKR_DATA_INVALID)),
        (Mechanism::RsaRaw, &[0; 255], &rsa, long),
        (Mechanism::RsaRaw, &[0; 257], &rsa, long),
        (Mechanism::RsaPkcs, &[1; 245], &rsa, Ok(())),
        (Mechanism::RsaPkcs, &[1; 246], &rsa, long),
        (pss(CKM_SHA256, 32), &[1; 32], &rsa, Ok(())),
        (pss(CKM_SHA256, 222), &[1; 32], &rsa, Ok(())),
        (pss(CKM_SHA256, 223), &[1; 32], &rsa, Err(CKR_MECHANISM_PARAM_INVALID)),
        (pss(CKM_SHA512, 190), &[1; 64], &rsa, Ok(())),
        (pss(CKM_SHA512, 191), &[1; 64], &rsa, Err(CKR_MECHANISM_PARAM_INVALID)),
        (pss(CKM_SHA256, 32), &[1; 31], &rsa, long),
        (pss(CKM_SHA256, 32), &[1; 33], &rsa, long),
        (pss(CKM_ECDSA, 32), &[1; 32], &rsa, Err(CKR_MECHANISM_PARAM_INVALID)),
        (Mechanism::Ecdsa, &[1; 66], &p256, Ok(())),
        (Mechanism::Ecdsa, &[1; 67], &p256, long),
        (Mechanism::Ecdsa, &[], &p256, long),
    ] {
        assert_eq!(signable(&mechanism, data, kind), want, "{mechanism:?} of {} bytes", data.len());
    }
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
