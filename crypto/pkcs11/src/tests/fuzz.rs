//! Malformed input by the thousand: it is refused, and never ends the process. QTLS_PKCS11_FUZZ says how many of each.

use super::{files, public, CONFIG};
use crate::{
    config::Config,
    inputs::{mechanism, template},
    spki::{self, Kind, PublicKey},
};
use cryptoki_sys::*;

/// xorshift64*: the same inputs in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    /// A few bytes changed, removed, doubled or cut off.
    pub fn damage(&mut self, input: &[u8]) -> Vec<u8> {
        let mut out = input.to_vec();
        for _ in 0..=self.below(4) {
            if out.is_empty() {
                break;
            }
            let at = self.below(out.len());
            match self.below(5) {
                0 => out[at] = self.below(256) as u8,
                1 => drop(out.remove(at)),
                2 => out.insert(at, b"[]= \n#/0\xff"[self.below(9)]),
                3 => out.truncate(at),
                _ => {
                    let end = (at + self.below(40)).min(out.len());
                    out.splice(at..at, input[at.min(input.len())..end.min(input.len())].to_vec());
                }
            }
        }
        out
    }
}

pub fn rounds() -> usize {
    std::env::var("QTLS_PKCS11_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(5000)
}

#[test]
fn damaged_configurations() {
    let mut random = Random(1);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..rounds() {
        let text = random.damage(CONFIG.as_bytes());
        match Config::parse(&String::from_utf8_lossy(&text), &files) {
            Ok(config) => {
                assert!(!config.members.is_empty() && !config.keys.is_empty() && config.label.len() <= 32);
                assert!(config.members.iter().all(|m| (1..=64).contains(&m.sessions)));
                read += 1;
            }
            Err(e) => {
                assert!(!e.message.is_empty() && e.line <= 80);
                refused += 1;
            }
        }
    }
    assert!(read > 0 && refused > read / 10, "{read} were read and {refused} refused");
}

#[test]
fn damaged_public_keys() {
    let mut random = Random(2);
    for file in ["/keys/rsa.pem", "/keys/p256.pem", "/keys/p384.pem", "/keys/mldsa65.pem"] {
        let key = public(file);
        for _ in 0..rounds() {
            let der = random.damage(&key.der);
            if let Ok(read) = PublicKey::from_der(&der) {
                assert_eq!(read.der, der);
                assert!((64..=4627).contains(&read.signature_len()));
            }
        }
    }
}

/// What a token tells of a public key: its attributes, in whatever form it has them.
#[test]
fn damaged_attributes_of_public_keys() {
    let mut random = Random(4);
    let (mut whole, mut damaged) = (0, 0);
    for file in ["/keys/rsa.pem", "/keys/p256.pem", "/keys/p384.pem", "/keys/mldsa65.pem"] {
        let key = public(file);
        for _ in 0..rounds() {
            let mut attribute = |value: &[u8]| match random.below(3) {
                0 => value.to_vec(),
                _ => random.damage(value),
            };
            let der = match &key.kind {
                Kind::Rsa { modulus, exponent } => Some(spki::rsa(&attribute(modulus), &attribute(exponent))),
                Kind::Ec { curve, point, .. } => Some(spki::ec(&attribute(curve), &attribute(point))),
                Kind::MlDsa { set, value, .. } => spki::ml_dsa(*set, &attribute(value)),
            };
            match der.map(|der| PublicKey::from_der(&der)) {
                Some(Ok(read)) if read == key => whole += 1,
                Some(Ok(read)) => assert!((64..=4627).contains(&read.signature_len())),
                _ => damaged += 1,
            }
        }
    }
    assert!(whole > 0 && damaged > 0, "{whole} were as they are, {damaged} were refused");
}

#[test]
fn mechanisms_with_parameters_of_any_size() {
    let mut random = Random(3);
    let types = [CKM_RSA_PKCS, CKM_RSA_X_509, CKM_RSA_PKCS_PSS, CKM_ECDSA, CKM_ML_DSA, CKM_SHA256_RSA_PKCS, 77];
    for _ in 0..rounds() {
        let mut parameter: Vec<u8> = (0..random.below(40)).map(|_| random.below(256) as u8).collect();
        if parameter.len() >= 16 {
            parameter[8..16].fill(0); // a context's address: null
        }
        let from = CK_MECHANISM {
            mechanism: types[random.below(types.len())],
            pParameter: if random.below(4) == 0 { std::ptr::null_mut() } else { parameter.as_mut_ptr().cast() },
            ulParameterLen: parameter.len() as CK_ULONG,
        };
        // SAFETY: as many bytes are there as it says, or none at all.
        if unsafe { mechanism(&from) }.is_ok() {
            assert!([0, size_of::<CK_RSA_PKCS_PSS_PARAMS>()].contains(&parameter.len()), "{}", parameter.len());
        }
    }
}

#[test]
fn templates_without_values_or_with_impossible_sizes() {
    for (address, len) in [(0usize, 1), (8, CK_ULONG::MAX), (0, CK_ULONG::MAX), (8, 1 << 63)] {
        let attribute = CK_ATTRIBUTE { type_: CKA_LABEL, pValue: address as *mut _, ulValueLen: len };
        // SAFETY: the value is not read: its size is refused first.
        assert_eq!(unsafe { template(&attribute, 1) }, Err(CKR_ARGUMENTS_BAD), "{address} {len}");
    }
    // SAFETY: nothing is there, and nothing is read.
    assert_eq!(unsafe { template(std::ptr::null(), 1) }, Err(CKR_ARGUMENTS_BAD));
    assert_eq!(unsafe { template(std::ptr::null(), 0) }, Ok(vec![]));
    // SAFETY: as before.
    assert_eq!(unsafe { template(8 as *const _, CK_ULONG::MAX) }, Err(CKR_ARGUMENTS_BAD));
}
