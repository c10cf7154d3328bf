//! Public keys as their SubjectPublicKeyInfo tells them: what the slot's objects are made from.

use cryptoki_sys::{CKP_ML_DSA_44, CKP_ML_DSA_65, CKP_ML_DSA_87, CK_ULONG};

/// What PKCS#11 wants to know of a key, by its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// The curve's object identifier in DER, the point, and the bytes of one half of a signature.
    Ec {
        curve: Vec<u8>,
        point: Vec<u8>,
        half: usize,
    },
    MlDsa {
        set: CK_ULONG,
        value: Vec<u8>,
        signature: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    /// The whole SubjectPublicKeyInfo.
    pub der: Vec<u8>,
    pub kind: Kind,
}

impl PublicKey {
    /// The bytes of a signature, which PKCS#11 says without making one.
    pub fn signature_len(&self) -> usize {
        match &self.kind {
            Kind::Rsa { modulus, .. } => modulus.len(),
            Kind::Ec { half, .. } => 2 * half,
            Kind::MlDsa { signature, .. } => *signature,
        }
    }

    /// Reads a PEM file with one `PUBLIC KEY`. What is wrong with it is told with the remedy.
    pub fn from_pem(pem: &[u8]) -> Result<PublicKey, String> {
        const REMEDY: &str = "want one PEM block PUBLIC KEY, as `openssl pkey -pubout` writes it";
        let text = std::str::from_utf8(pem).map_err(|_| REMEDY)?;
        let (_, rest) = text.split_once("-----BEGIN PUBLIC KEY-----").ok_or(REMEDY)?;
        let (body, rest) = rest.split_once("-----END PUBLIC KEY-----").ok_or(REMEDY)?;
        if rest.contains("-----BEGIN") {
            return Err(REMEDY.into());
        }
        PublicKey::from_der(&base64(body).ok_or(REMEDY)?)
    }

    pub fn from_der(der: &[u8]) -> Result<PublicKey, String> {
        const DAMAGED: &str = "the key in it is damaged; write it again with `openssl pkey -pubout`";
        let kind = kind(der).ok_or(DAMAGED)?;
        match kind {
            Some(kind) => Ok(PublicKey { der: der.to_vec(), kind }),
            None => {
                Err("keys of this type are not served; there are RSA of 2048 to 8192 bits, ECDSA over P-256, P-384 \
                         and P-521, and ML-DSA"
                    .into())
            }
        }
    }
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;

const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// The curves' identifiers, and the bytes of a coordinate.
const CURVES: [(&[u8], usize); 3] = [
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07], 32),
    (&[0x2b, 0x81, 0x04, 0x00, 0x22], 48),
    (&[0x2b, 0x81, 0x04, 0x00, 0x23], 66),
];
/// 2.16.840.1.101.3.4.3 and the last arc, the parameter set, the bytes of a public key and of a signature (FIPS 204).
const ML_DSA: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03];
const ML_DSA_SETS: [(u8, CK_ULONG, usize, usize); 3] =
    [(17, CKP_ML_DSA_44, 1312, 2420), (18, CKP_ML_DSA_65, 1952, 3309), (19, CKP_ML_DSA_87, 2592, 4627)];
/// The bytes of the longest signature that is served. RSA's have 1024 at most.
pub const LONGEST_SIGNATURE: usize = ML_DSA_SETS[2].3;

/// Takes one element of DER off the front.
fn take<'a>(input: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (&found, rest) = input.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (first as usize, rest),
        0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(first as usize & 0x7f)?;
            let len = bytes.iter().fold(0, |n, &b| (n << 8) | b as usize);
            // DER has one way to write a length: the shortest.
            if len < 0x80 || bytes[0] == 0 {
                return None;
            }
            (len, rest)
        }
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(len)?;
    *input = rest;
    (found == tag).then_some(value)
}

/// All of an input is one element.
fn only(mut input: &[u8], tag: u8) -> Option<&[u8]> {
    let value = take(&mut input, tag)?;
    input.is_empty().then_some(value)
}

/// A positive INTEGER without its sign's zero.
fn positive<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    match take(input, INTEGER)? {
        [0, rest @ ..] if rest.first().is_some_and(|b| b & 0x80 != 0) => Some(rest),
        value @ [1..=0x7f, ..] => Some(value),
        _ => None,
    }
}

/// None if it is no SubjectPublicKeyInfo, Some(None) if it is one of a type that is not served.
fn kind(der: &[u8]) -> Option<Option<Kind>> {
    let mut info = only(der, SEQUENCE)?;
    let mut algorithm = take(&mut info, SEQUENCE)?;
    let (0, key) = only(info, BIT_STRING)?.split_first().map(|(unused, key)| (*unused, key))? else { return None };
    let oid = take(&mut algorithm, OID)?;
    if oid == RSA {
        let mut numbers = only(key, SEQUENCE)?;
        let (modulus, exponent) = (positive(&mut numbers)?, positive(&mut numbers)?);
        if !numbers.is_empty() {
            return None;
        }
        let served = (256..=1024).contains(&modulus.len());
        return Some(served.then(|| Kind::Rsa { modulus: modulus.into(), exponent: exponent.into() }));
    }
    if oid == EC {
        let curve = algorithm;
        let name = only(algorithm, OID)?;
        let Some((_, half)) = CURVES.iter().find(|c| c.0 == name) else { return Some(None) };
        let whole = key.len() == 1 + 2 * half && key[0] == 4;
        return whole.then(|| Some(Kind::Ec { curve: curve.into(), point: key.into(), half: *half }));
    }
    let Some([arc]) = oid.strip_prefix(ML_DSA) else { return Some(None) };
    let Some(&(_, set, len, signature)) = ML_DSA_SETS.iter().find(|s| s.0 == *arc) else { return Some(None) };
    (key.len() == len && algorithm.is_empty()).then(|| Some(Kind::MlDsa { set, value: key.into(), signature }))
}

/// DER's element with a tag.
fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    let mut der = vec![tag];
    match len {
        0..=0x7f => der.push(len as u8),
        0x80..=0xff => der.extend([0x81, len as u8]),
        _ => der.extend([0x82, (len >> 8) as u8, len as u8]),
    }
    parts.iter().for_each(|p| der.extend(*p));
    der
}

fn integer(number: &[u8]) -> Vec<u8> {
    let zeros = number.iter().take_while(|b| **b == 0).count();
    let number = &number[zeros..];
    let sign: &[u8] = if number.first().is_none_or(|b| b & 0x80 != 0) { &[0] } else { &[] };
    element(INTEGER, &[sign, number])
}

fn info(algorithm: &[&[u8]], key: &[u8]) -> Vec<u8> {
    element(SEQUENCE, &[&element(SEQUENCE, algorithm), &element(BIT_STRING, &[&[0], key])])
}

/// The SubjectPublicKeyInfo of what a token tells of a public key, in the words of PKCS#11. Whether there is such a key is
/// seen when it is read.
pub fn rsa(modulus: &[u8], exponent: &[u8]) -> Vec<u8> {
    info(&[&element(OID, &[RSA]), &[5, 0]], &element(SEQUENCE, &[&integer(modulus), &integer(exponent)]))
}

/// CKA_EC_POINT is an OCTET STRING with the point; some tokens leave that away.
pub fn ec(curve: &[u8], point: &[u8]) -> Vec<u8> {
    info(&[&element(OID, &[EC]), curve], only(point, OCTET_STRING).unwrap_or(point))
}

/// None for a parameter set that is not known.
pub fn ml_dsa(set: CK_ULONG, value: &[u8]) -> Option<Vec<u8>> {
    let (arc, ..) = ML_DSA_SETS.iter().find(|s| s.1 == set)?;
    Some(info(&[&element(OID, &[ML_DSA, &[*arc]])], value))
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let body = text.strip_suffix(b"==").or(text.strip_suffix(b"=")).unwrap_or(&text);
    if text.len() % 4 != 0 || text.is_empty() {
        return None;
    }
    let mut out = Vec::with_capacity(body.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    for b in body {
        let value = match b {
            b'A'..=b'Z' => b - b'A',
            b'a'..=b'z' => b - b'a' + 26,
            b'0'..=b'9' => b - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    (bits == 0).then_some(out)
}
