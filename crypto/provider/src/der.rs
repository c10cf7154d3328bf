//! The few DER structures of keys: AlgorithmIdentifier, SubjectPublicKeyInfo (RFC 5280), PrivateKeyInfo (RFC 5208), and
//! RSAPublicKey (RFC 8017).

use zeroize::Zeroizing;

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;

/// A value with its tag and length; it may hold a private key.
fn tlv(tag: u8, parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    let mut out = Zeroizing::new(Vec::with_capacity(len + 10)); // never grows: that would leave a copy behind
    out.push(tag);
    if len < 0x80 {
        out.push(len as u8);
    } else {
        let bytes = len.to_be_bytes();
        let used = &bytes[bytes.iter().position(|b| *b != 0).unwrap_or(bytes.len())..];
        out.push(0x80 | used.len() as u8);
        out.extend_from_slice(used);
    }
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

/// The content of an OBJECT IDENTIFIER from its dotted form; none if that is not one.
fn oid_content(dotted: &str) -> Option<Vec<u8>> {
    let arcs: Vec<u64> = dotted.split('.').map(|a| a.parse().ok()).collect::<Option<_>>()?;
    let (&[first, second], rest) = arcs.split_first_chunk::<2>()?;
    if first > 2 || first < 2 && second > 39 {
        return None;
    }
    let mut out = Vec::new();
    for arc in std::iter::once(first.checked_mul(40)?.checked_add(second)?).chain(rest.iter().copied()) {
        let groups = (64 - arc.leading_zeros()).div_ceil(7).max(1);
        for group in (0..groups).rev() {
            let more = if group > 0 { 0x80 } else { 0 };
            out.push(more | (arc >> (7 * group)) as u8 & 0x7f);
        }
    }
    Some(out)
}

/// An AlgorithmIdentifier without parameters; none if the OID is not one.
pub fn algorithm_identifier(oid: &str) -> Option<Vec<u8>> {
    Some(tlv(SEQUENCE, &[&tlv(OBJECT_IDENTIFIER, &[&oid_content(oid)?])]).to_vec())
}

/// A SubjectPublicKeyInfo around an algorithm identifier and a public key.
pub fn subject_public_key_info(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    tlv(SEQUENCE, &[algorithm, &tlv(BIT_STRING, &[&[0], key])]).to_vec()
}

/// A PrivateKeyInfo whose privateKey is an OCTET STRING in an OCTET STRING.
pub fn private_key_info(algorithm: &[u8], key: &[u8]) -> Zeroizing<Vec<u8>> {
    tlv(SEQUENCE, &[&tlv(INTEGER, &[&[0]]), algorithm, &tlv(OCTET_STRING, &[&tlv(OCTET_STRING, &[key])])])
}

/// The first value of a DER text, if it has the tag, and what follows.
fn take(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, &length) = (der.first()?, der.get(1)?);
    if first != tag {
        return None;
    }
    let (len, header) = match length {
        0..=0x7f => (length as usize, 2),
        0x81..=0x84 => {
            let n = (length & 0x7f) as usize;
            let bytes = der.get(2..2 + n)?;
            let len = bytes.iter().fold(0usize, |all, b| (all << 8) | *b as usize);
            if bytes[0] == 0 || len < 0x80 {
                return None; // DER has one length only
            }
            (len, 2 + n)
        }
        _ => return None,
    };
    let end = header.checked_add(len)?;
    Some((der.get(header..end)?, &der[end..]))
}

/// The public key in a SubjectPublicKeyInfo of an algorithm; none if it is another's, or malformed.
pub fn parse_subject_public_key_info<'a>(der: &'a [u8], algorithm: &[u8]) -> Option<&'a [u8]> {
    let (body, end) = take(der, SEQUENCE)?;
    let rest = body.strip_prefix(algorithm)?;
    let (bits, after) = take(rest, BIT_STRING)?;
    let (&unused, key) = bits.split_first()?;
    (end.is_empty() && after.is_empty() && unused == 0).then_some(key)
}

/// The private key in a PrivateKeyInfo of an algorithm; none if it is another's, or malformed. Attributes may follow.
pub fn parse_private_key_info<'a>(der: &'a [u8], algorithm: &[u8]) -> Option<&'a [u8]> {
    let (body, end) = take(der, SEQUENCE)?;
    let (version, rest) = take(body, INTEGER)?;
    let rest = rest.strip_prefix(algorithm)?;
    let (outer, _attributes) = take(rest, OCTET_STRING)?;
    let (key, after) = take(outer, OCTET_STRING)?;
    (end.is_empty() && after.is_empty() && matches!(version, [0 | 1])).then_some(key)
}

/// Modulus and public exponent of an RSAPublicKey, big-endian, without leading zeros.
pub fn rsa_public_key(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (body, end) = take(der, SEQUENCE)?;
    let (n, rest) = take(body, INTEGER)?;
    let (e, after) = take(rest, INTEGER)?;
    (end.is_empty() && after.is_empty()).then_some((positive(n)?, positive(e)?))
}

fn positive(integer: &[u8]) -> Option<&[u8]> {
    match integer {
        [0, rest @ ..] if rest.first()? & 0x80 != 0 => Some(rest),
        [first, ..] if *first != 0 && first & 0x80 == 0 => Some(integer),
        _ => None,
    }
}

/// PEM (RFC 7468) of a DER text; it may hold a private key.
pub fn pem(label: &str, der: &[u8]) -> Zeroizing<String> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Zeroizing::new(String::with_capacity(der.len() * 3 / 2 + 200)); // never grows
    out.push_str(&format!("-----BEGIN {label}-----\n"));
    for line in der.chunks(48) {
        for chunk in line.chunks(3) {
            let b = [chunk[0], *chunk.get(1).unwrap_or(&0), *chunk.get(2).unwrap_or(&0)];
            let n = u32::from_be_bytes([0, b[0], b[1], b[2]]);
            for i in 0..4 {
                let c = if i <= chunk.len() { ALPHABET[(n >> (18 - 6 * i)) as usize & 63] } else { b'=' };
                out.push(c as char);
            }
        }
        out.push('\n');
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_identifiers() {
        assert_eq!(oid_content("1.2.840.113549").unwrap(), [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d]);
        assert_eq!(oid_content("2.16.840.1.101.3.4.3.18").unwrap(), [0x60, 0x86, 0x48, 1, 0x65, 3, 4, 3, 0x12]);
        assert_eq!(oid_content("1.3.9999.0.1").unwrap(), [0x2b, 0xce, 0x0f, 0, 1]);
        for wrong in ["", "1", "3.1", "1.40", "1.3.", "1.3.x", "1.3.-1", "1.3.99999999999999999999"] {
            assert_eq!(oid_content(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn keys_survive_their_encoding() {
        let algorithm = algorithm_identifier("1.3.9999.3.11").unwrap();
        let other = algorithm_identifier("1.3.9999.3.12").unwrap();
        for len in [0, 1, 127, 128, 255, 256, 65535, 65536, 1 << 20] {
            let key = vec![7; len];
            let spki = subject_public_key_info(&algorithm, &key);
            assert_eq!(parse_subject_public_key_info(&spki, &algorithm), Some(&key[..]));
            assert_eq!(parse_subject_public_key_info(&spki, &other), None);
            let info = private_key_info(&algorithm, &key);
            assert_eq!(parse_private_key_info(&info, &algorithm), Some(&key[..]));
            assert_eq!(parse_private_key_info(&info, &other), None);
        }
    }

    #[test]
    fn nothing_but_the_encoding_is_accepted() {
        let algorithm = algorithm_identifier("1.3.9999.3.11").unwrap();
        let spki = subject_public_key_info(&algorithm, &[1, 2, 3]);
        let info = private_key_info(&algorithm, &[1, 2, 3]);
        for n in 0..spki.len() {
            assert_eq!(parse_subject_public_key_info(&spki[..n], &algorithm), None, "cut at {n}");
        }
        for n in 0..info.len() {
            assert_eq!(parse_private_key_info(&info[..n], &algorithm), None, "cut at {n}");
        }
        let mut longer = spki.clone();
        longer.push(0);
        assert_eq!(parse_subject_public_key_info(&longer, &algorithm), None);
        assert_eq!(take(&[0x30, 0x81, 0x01, 0x00], 0x30), None, "a length that DER writes shorter");
        assert_eq!(take(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], 0x30), None, "a length beyond the end");
    }

    #[test]
    fn pem_is_base64() {
        assert_eq!(pem("X", b"").as_str(), "-----BEGIN X-----\n-----END X-----\n");
        assert_eq!(pem("X", b"fooba").as_str(), "-----BEGIN X-----\nZm9vYmE=\n-----END X-----\n");
        assert_eq!(pem("X", &[0xfb; 49]).lines().nth(1).unwrap().len(), 64);
    }
}
