//! OpenSSL's own implementation is the reference: equal keys, ciphertexts, secrets and signatures, also where it refuses.

use super::*;
use std::{
    ffi::{c_char, c_uint, c_void, CStr},
    process::Command,
};

/// The little of libcrypto's EVP that these tests compare with, declared apart from the provider's own use of it.
#[allow(clashing_extern_declarations)]
mod openssl {
    use super::*;

    pub enum EvpPkey {}
    enum EvpPkeyCtx {}
    enum EvpMdCtx {}

    #[repr(C)]
    pub struct Param {
        key: *const c_char,
        data_type: c_uint,
        data: *mut c_void,
        data_size: usize,
        return_size: usize,
    }

    const END: Param = Param { key: null(), data_type: 0, data: null_mut(), data_size: 0, return_size: 0 };

    pub fn octets(key: &'static CStr, value: &[u8]) -> Param {
        Param { key: key.as_ptr(), data_type: 5, data: value.as_ptr() as _, data_size: value.len(), return_size: 0 }
    }

    pub fn string(key: &'static CStr, value: &'static CStr) -> Param {
        Param {
            key: key.as_ptr(),
            data_type: 4,
            data: value.as_ptr() as _,
            data_size: value.count_bytes(),
            return_size: 0,
        }
    }

    pub fn integer(key: &'static CStr, value: &'static c_int) -> Param {
        Param { key: key.as_ptr(), data_type: 1, data: value as *const c_int as _, data_size: 4, return_size: 0 }
    }

    /// A non-negative number in the machine's byte order.
    pub fn unsigned(key: &'static CStr, value: &[u8]) -> Param {
        Param { data_type: 2, ..octets(key, value) }
    }

    fn list<const N: usize>(params: [Param; N]) -> Vec<Param> {
        params.into_iter().chain([END]).collect()
    }

    #[link(name = "crypto")]
    extern "C" {
        fn EVP_PKEY_CTX_new_from_name(l: *mut c_void, name: *const c_char, q: *const c_char) -> *mut EvpPkeyCtx;
        fn EVP_PKEY_CTX_new_from_pkey(l: *mut c_void, key: *mut EvpPkey, q: *const c_char) -> *mut EvpPkeyCtx;
        fn EVP_PKEY_CTX_free(c: *mut EvpPkeyCtx);
        fn EVP_PKEY_fromdata_init(c: *mut EvpPkeyCtx) -> c_int;
        fn EVP_PKEY_fromdata(c: *mut EvpPkeyCtx, key: *mut *mut EvpPkey, selection: c_int, p: *const Param) -> c_int;
        fn EVP_PKEY_free(key: *mut EvpPkey);
        fn EVP_PKEY_get_octet_string_param(
            key: *const EvpPkey,
            name: *const c_char,
            out: *mut u8,
            max: usize,
            len: *mut usize,
        ) -> c_int;
        fn EVP_PKEY_encapsulate_init(c: *mut EvpPkeyCtx, p: *const Param) -> c_int;
        fn EVP_PKEY_encapsulate(
            c: *mut EvpPkeyCtx,
            ct: *mut u8,
            ctl: *mut usize,
            ss: *mut u8,
            ssl: *mut usize,
        ) -> c_int;
        fn EVP_PKEY_decapsulate_init(c: *mut EvpPkeyCtx, p: *const Param) -> c_int;
        fn EVP_PKEY_decapsulate(c: *mut EvpPkeyCtx, ss: *mut u8, ssl: *mut usize, ct: *const u8, ctl: usize) -> c_int;
        fn EVP_PKEY_derive_init(c: *mut EvpPkeyCtx) -> c_int;
        fn EVP_PKEY_derive_set_peer(c: *mut EvpPkeyCtx, peer: *mut EvpPkey) -> c_int;
        fn EVP_PKEY_derive(c: *mut EvpPkeyCtx, out: *mut u8, len: *mut usize) -> c_int;
        fn EVP_MD_CTX_new() -> *mut EvpMdCtx;
        fn EVP_MD_CTX_free(c: *mut EvpMdCtx);
        fn EVP_DigestSignInit_ex(
            c: *mut EvpMdCtx,
            pc: *mut c_void,
            md: *const c_char,
            l: *mut c_void,
            q: *const c_char,
            key: *mut EvpPkey,
            p: *const Param,
        ) -> c_int;
        fn EVP_DigestVerifyInit_ex(
            c: *mut EvpMdCtx,
            pc: *mut c_void,
            md: *const c_char,
            l: *mut c_void,
            q: *const c_char,
            key: *mut EvpPkey,
            p: *const Param,
        ) -> c_int;
        fn EVP_DigestSign(c: *mut EvpMdCtx, sig: *mut u8, len: *mut usize, m: *const u8, ml: usize) -> c_int;
        fn EVP_DigestVerify(c: *mut EvpMdCtx, sig: *const u8, len: usize, m: *const u8, ml: usize) -> c_int;
        fn RAND_bytes(out: *mut u8, len: c_int) -> c_int;
    }

    pub fn random(out: &mut [u8]) -> Result {
        outcome(unsafe { RAND_bytes(out.as_mut_ptr(), out.len() as c_int) } == 1)
    }

    pub fn array<const N: usize>() -> [u8; N] {
        let mut out = [0; N];
        random(&mut out).unwrap();
        out
    }

    pub struct Key(*mut EvpPkey);

    impl Drop for Key {
        fn drop(&mut self) {
            unsafe { EVP_PKEY_free(self.0) }
        }
    }

    impl Key {
        pub fn make<const N: usize>(algorithm: &CStr, params: [Param; N]) -> Option<Key> {
            const KEY_PAIR: c_int = 0x87; // EVP_PKEY_KEYPAIR
            let mut key = null_mut();
            unsafe {
                let c = EVP_PKEY_CTX_new_from_name(null_mut(), algorithm.as_ptr(), null());
                assert_eq!(EVP_PKEY_fromdata_init(c), 1);
                EVP_PKEY_fromdata(c, &mut key, KEY_PAIR, list(params).as_ptr());
                EVP_PKEY_CTX_free(c);
            }
            (!key.is_null()).then_some(Key(key))
        }

        pub fn get(&self, name: &CStr) -> Vec<u8> {
            let mut out = vec![0; 8192];
            let mut len = 0;
            let ok = unsafe {
                EVP_PKEY_get_octet_string_param(self.0, name.as_ptr(), out.as_mut_ptr(), out.len(), &mut len)
            };
            assert_eq!(ok, 1, "{name:?}");
            out.truncate(len);
            out
        }

        pub fn encapsulate(&self, entropy: &[u8]) -> (Vec<u8>, Vec<u8>) {
            let (mut ciphertext, mut shared) = (vec![0; 4096], vec![0; 256]);
            let (mut ctl, mut ssl) = (ciphertext.len(), shared.len());
            unsafe {
                let c = EVP_PKEY_CTX_new_from_pkey(null_mut(), self.0, null());
                assert_eq!(EVP_PKEY_encapsulate_init(c, list([octets(c"ikme", entropy)]).as_ptr()), 1);
                assert_eq!(
                    EVP_PKEY_encapsulate(c, ciphertext.as_mut_ptr(), &mut ctl, shared.as_mut_ptr(), &mut ssl),
                    1
                );
                EVP_PKEY_CTX_free(c);
            }
            ciphertext.truncate(ctl);
            shared.truncate(ssl);
            (ciphertext, shared)
        }

        pub fn decapsulate(&self, ciphertext: &[u8]) -> Vec<u8> {
            let mut shared = vec![0; 256];
            let mut len = shared.len();
            unsafe {
                let c = EVP_PKEY_CTX_new_from_pkey(null_mut(), self.0, null());
                assert_eq!(EVP_PKEY_decapsulate_init(c, null()), 1);
                assert_eq!(
                    EVP_PKEY_decapsulate(c, shared.as_mut_ptr(), &mut len, ciphertext.as_ptr(), ciphertext.len()),
                    1
                );
                EVP_PKEY_CTX_free(c);
            }
            shared.truncate(len);
            shared
        }

        pub fn derive(&self, peer: &Key) -> Vec<u8> {
            let mut shared = vec![0; 256];
            let mut len = shared.len();
            unsafe {
                let c = EVP_PKEY_CTX_new_from_pkey(null_mut(), self.0, null());
                assert_eq!(EVP_PKEY_derive_init(c), 1);
                assert_eq!(EVP_PKEY_derive_set_peer(c, peer.0), 1);
                assert_eq!(EVP_PKEY_derive(c, shared.as_mut_ptr(), &mut len), 1);
                EVP_PKEY_CTX_free(c);
            }
            shared.truncate(len);
            shared
        }

        pub fn sign<const N: usize>(&self, message: &[u8], params: [Param; N]) -> Vec<u8> {
            let mut signature = vec![0; 8192];
            let mut len = signature.len();
            unsafe {
                let c = EVP_MD_CTX_new();
                let params = list(params);
                assert_eq!(
                    EVP_DigestSignInit_ex(c, null_mut(), null(), null_mut(), null(), self.0, params.as_ptr()),
                    1
                );
                assert_eq!(EVP_DigestSign(c, signature.as_mut_ptr(), &mut len, message.as_ptr(), message.len()), 1);
                EVP_MD_CTX_free(c);
            }
            signature.truncate(len);
            signature
        }

        pub fn verify<const N: usize>(&self, message: &[u8], signature: &[u8], params: [Param; N]) -> bool {
            unsafe {
                let c = EVP_MD_CTX_new();
                let params = list(params);
                assert_eq!(
                    EVP_DigestVerifyInit_ex(c, null_mut(), null(), null_mut(), null(), self.0, params.as_ptr()),
                    1
                );
                let ok = EVP_DigestVerify(c, signature.as_ptr(), signature.len(), message.as_ptr(), message.len()) == 1;
                EVP_MD_CTX_free(c);
                ok
            }
        }
    }
}
use openssl::{array, integer, octets, random, string};

static YES: c_int = 1;
static NO: c_int = 0;

/// Flips one bit, about at a fraction of the way through.
fn flipped(bytes: &[u8], eighths: usize) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let at = (bytes.len() - 1) * eighths / 8;
    out[at] ^= 1 << (eighths % 8);
    out
}

const KEMS: [(&CStr, &MlKem); 3] =
    [(c"ML-KEM-512", &ML_KEM_512), (c"ML-KEM-768", &ML_KEM_768), (c"ML-KEM-1024", &ML_KEM_1024)];

struct KemPair {
    public: Vec<u8>,
    private: Vec<u8>,
}

fn kem_pair(kem: &MlKem, seed: &[u8; 64]) -> KemPair {
    let mut pair = KemPair { public: vec![0; kem.public_key], private: vec![0; kem.private_key] };
    kem.keypair(seed, &mut pair.public, &mut pair.private).unwrap();
    pair
}

fn encapsulate(kem: &MlKem, entropy: &[u8; 32], public: &[u8]) -> std::result::Result<(Vec<u8>, Vec<u8>), Failed> {
    let (mut ciphertext, mut shared) = (vec![0; kem.ciphertext], vec![0; 32]);
    kem.encapsulate(entropy, public, &mut ciphertext, &mut shared)?;
    Ok((ciphertext, shared))
}

fn decapsulate(kem: &MlKem, private: &[u8], ciphertext: &[u8]) -> std::result::Result<Vec<u8>, Failed> {
    let mut shared = vec![0; 32];
    kem.decapsulate(private, ciphertext, &mut shared)?;
    Ok(shared)
}

#[test]
fn ml_kem_makes_the_keys_of_openssl() {
    for (name, kem) in KEMS {
        for _ in 0..8 {
            let seed = array();
            let theirs = openssl::Key::make(name, [octets(c"seed", &seed)]).unwrap();
            let ours = kem_pair(kem, &seed);
            assert_eq!(ours.public, theirs.get(c"pub"), "{name:?}");
            assert_eq!(ours.private, theirs.get(c"priv"), "{name:?}");
            assert_eq!(kem.public_of(&ours.private).unwrap(), ours.public);
            assert_eq!((kem.check_public(&ours.public), kem.check_private(&ours.private)), (Ok(()), Ok(())));
        }
    }
}

#[test]
fn ml_kem_encapsulates_and_decapsulates_as_openssl() {
    for (name, kem) in KEMS {
        for _ in 0..8 {
            let (seed, entropy) = (array(), array());
            let theirs = openssl::Key::make(name, [octets(c"seed", &seed)]).unwrap();
            let ours = kem_pair(kem, &seed);
            let (ciphertext, shared) = encapsulate(kem, &entropy, &ours.public).unwrap();
            assert_eq!(
                (&ciphertext, &shared),
                (&theirs.encapsulate(&entropy).0, &theirs.encapsulate(&entropy).1),
                "{name:?}"
            );
            assert_eq!(decapsulate(kem, &ours.private, &ciphertext).unwrap(), shared);
        }
    }
}

#[test]
fn ml_kem_rejects_implicitly_as_openssl() {
    for (name, kem) in KEMS {
        let (seed, entropy) = (array(), array());
        let theirs = openssl::Key::make(name, [octets(c"seed", &seed)]).unwrap();
        let ours = kem_pair(kem, &seed);
        let (ciphertext, shared) = encapsulate(kem, &entropy, &ours.public).unwrap();
        let forged =
            (0..=8).map(|i| flipped(&ciphertext, i)).chain([vec![0; kem.ciphertext], vec![0xff; kem.ciphertext]]);
        for ciphertext in forged {
            let rejected = decapsulate(kem, &ours.private, &ciphertext).unwrap();
            assert_ne!(rejected, shared, "{name:?}");
            assert_eq!(rejected, theirs.decapsulate(&ciphertext), "{name:?}");
        }
    }
}

#[test]
fn ml_kem_refuses_keys_that_are_not_valid() {
    for (name, kem) in KEMS {
        let ours = kem_pair(kem, &array());
        let mut unreduced = ours.public.clone();
        unreduced[..2].fill(0xff); // a coefficient of 4095, where 3328 is the greatest
        assert_eq!(kem.check_public(&unreduced), Err(Failed), "{name:?}");
        assert_eq!(encapsulate(kem, &array(), &unreduced), Err(Failed), "{name:?}");
        assert!(openssl::Key::make(name, [octets(c"pub", &unreduced)]).is_none(), "{name:?}");

        let mut inconsistent = ours.private.clone();
        inconsistent[kem.private_key - 64] ^= 1; // the hash of the public key
        assert_eq!(kem.check_private(&inconsistent), Err(Failed), "{name:?}");
        let (ciphertext, _) = encapsulate(kem, &array(), &ours.public).unwrap();
        assert_eq!(decapsulate(kem, &inconsistent, &ciphertext), Err(Failed), "{name:?}");
    }
}

#[test]
fn ml_kem_refuses_other_lengths() {
    for (_, kem) in KEMS {
        let ours = kem_pair(kem, &array());
        let (ciphertext, _) = encapsulate(kem, &array(), &ours.public).unwrap();
        let (public, private) = (&ours.public[1..], &ours.private[1..]);
        assert_eq!(encapsulate(kem, &array(), public), Err(Failed));
        assert_eq!(decapsulate(kem, private, &ciphertext), Err(Failed));
        assert_eq!(decapsulate(kem, &ours.private, &ciphertext[1..]), Err(Failed));
        assert_eq!(kem.decapsulate(&ours.private, &ciphertext, &mut [0; 31]), Err(Failed));
        assert_eq!((kem.check_public(public), kem.check_private(private)), (Err(Failed), Err(Failed)));
        assert_eq!(kem.public_of(private), Err(Failed));
        assert_eq!(kem.keypair(&array(), &mut vec![0; kem.public_key], &mut vec![0; kem.private_key + 1]), Err(Failed));
    }
}

const DSAS: [(&CStr, &MlDsa); 3] = [(c"ML-DSA-44", &ML_DSA_44), (c"ML-DSA-65", &ML_DSA_65), (c"ML-DSA-87", &ML_DSA_87)];

struct DsaPair {
    public: Vec<u8>,
    private: Vec<u8>,
}

fn dsa_pair(dsa: &MlDsa, seed: &[u8; 32]) -> DsaPair {
    let mut pair = DsaPair { public: vec![0; dsa.public_key], private: vec![0; dsa.private_key] };
    dsa.keypair(seed, &mut pair.public, &mut pair.private).unwrap();
    pair
}

fn sign(dsa: &MlDsa, entropy: &[u8; 32], private: &[u8], input: Input) -> std::result::Result<Vec<u8>, Failed> {
    let mut signature = vec![0; dsa.signature];
    dsa.sign(entropy, private, input, &mut signature)?;
    Ok(signature)
}

#[test]
fn ml_dsa_makes_the_keys_of_openssl() {
    for (name, dsa) in DSAS {
        for _ in 0..8 {
            let seed = array();
            let theirs = openssl::Key::make(name, [octets(c"seed", &seed)]).unwrap();
            let ours = dsa_pair(dsa, &seed);
            assert_eq!(ours.public, theirs.get(c"pub"), "{name:?}");
            assert_eq!(ours.private, theirs.get(c"priv"), "{name:?}");
            let mut public = vec![0; dsa.public_key];
            dsa.public_of(&ours.private, &mut public).unwrap();
            assert_eq!(public, ours.public, "{name:?}");
        }
    }
}

#[test]
fn ml_dsa_signs_as_openssl() {
    for (name, dsa) in DSAS {
        let seed = array();
        let theirs = openssl::Key::make(name, [octets(c"seed", &seed)]).unwrap();
        let ours = dsa_pair(dsa, &seed);
        let long = array::<255>();
        for (message, context) in
            [(&b""[..], &b""[..]), (b"TLS 1.3, server CertificateVerify", b""), (b"m", b"c"), (&long, &long)]
        {
            let input = Input::Message { message, context };

            let deterministic = sign(dsa, &MlDsa::DETERMINISTIC, &ours.private, input).unwrap();
            let params = || [octets(c"context-string", context), integer(c"deterministic", &YES)];
            assert_eq!(deterministic, theirs.sign(message, params()), "{name:?}");

            let entropy = array();
            let hedged = sign(dsa, &entropy, &ours.private, input).unwrap();
            let params = [octets(c"context-string", context), octets(c"test-entropy", &entropy)];
            assert_eq!(hedged, theirs.sign(message, params), "{name:?}");
            assert!(theirs.verify(message, &hedged, [octets(c"context-string", context)]), "{name:?}");

            let signature = theirs.sign(message, [octets(c"context-string", context)]);
            assert_eq!(dsa.verify(&ours.public, input, &signature), Ok(()), "{name:?}");
        }
    }
}

#[test]
fn ml_dsa_signs_formatted_messages_and_mu_as_openssl() {
    for (name, dsa) in DSAS {
        let seed = array();
        let theirs = openssl::Key::make(name, [octets(c"seed", &seed)]).unwrap();
        let ours = dsa_pair(dsa, &seed);
        let message = array::<64>();

        let formatted = sign(dsa, &MlDsa::DETERMINISTIC, &ours.private, Input::Formatted(&message)).unwrap();
        let raw = || [integer(c"message-encoding", &NO), integer(c"deterministic", &YES)];
        assert_eq!(formatted, theirs.sign(&message, raw()), "{name:?}");
        assert_eq!(dsa.verify(&ours.public, Input::Formatted(&message), &formatted), Ok(()));

        let mu = sign(dsa, &MlDsa::DETERMINISTIC, &ours.private, Input::Mu(&message)).unwrap();
        let params = || [integer(c"mu", &YES), integer(c"deterministic", &YES)];
        assert_eq!(mu, theirs.sign(&message, params()), "{name:?}");
        assert_eq!(dsa.verify(&ours.public, Input::Mu(&message), &mu), Ok(()));

        assert_eq!(dsa.verify(&ours.public, Input::Mu(&message), &formatted), Err(Failed));
        assert_eq!(sign(dsa, &MlDsa::DETERMINISTIC, &ours.private, Input::Mu(&message[1..])), Err(Failed));
        assert_eq!(dsa.verify(&ours.public, Input::Mu(&message[1..]), &mu), Err(Failed));
    }
}

#[test]
fn ml_dsa_refuses_what_was_not_signed() {
    for (name, dsa) in DSAS {
        let ours = dsa_pair(dsa, &array());
        let (message, context) = (&b"message"[..], &b"context"[..]);
        let input = Input::Message { message, context };
        let signature = sign(dsa, &array(), &ours.private, input).unwrap();
        assert_eq!(dsa.verify(&ours.public, input, &signature), Ok(()));
        for i in 0..=8 {
            assert_eq!(dsa.verify(&ours.public, input, &flipped(&signature, i)), Err(Failed), "{name:?} {i}/8");
            assert_eq!(dsa.verify(&flipped(&ours.public, i), input, &signature), Err(Failed), "{name:?} {i}/8");
        }
        for other in [
            Input::Message { message: b"massage", context },
            Input::Message { message, context: b"" },
            Input::Message { message: b"contextmessage", context: b"" },
            Input::Formatted(message),
        ] {
            assert_eq!(dsa.verify(&ours.public, other, &signature), Err(Failed), "{name:?}");
        }
        for wrong in [&signature[1..], &[&signature[..], &[0]].concat(), &[]] {
            assert_eq!(dsa.verify(&ours.public, input, wrong), Err(Failed), "{name:?}");
        }
    }
}

#[test]
fn ml_dsa_refuses_long_contexts_and_private_keys_that_are_not_valid() {
    for (name, dsa) in DSAS {
        let ours = dsa_pair(dsa, &array());
        let input = Input::Message { message: b"", context: &[0; 256] };
        assert_eq!(sign(dsa, &array(), &ours.private, input), Err(Failed), "{name:?}");
        assert_eq!(dsa.verify(&ours.public, input, &vec![0; dsa.signature]), Err(Failed), "{name:?}");
        assert_eq!(sign(dsa, &array(), &ours.private[1..], Input::Formatted(b"")), Err(Failed), "{name:?}");
        let mut public = vec![0; dsa.public_key];
        for at in [64, 200, dsa.private_key - 1] {
            // the hash of the public key, s1, t0
            let mut private = ours.private.clone();
            private[at] ^= 1;
            assert_eq!(dsa.public_of(&private, &mut public), Err(Failed), "{name:?}, byte {at}");
        }
    }
}

const CURVES: [(Curve, &CStr, Option<&CStr>); 3] =
    [(Curve::P256, c"EC", Some(c"P-256")), (Curve::P384, c"EC", Some(c"P-384")), (Curve::X25519, c"X25519", None)];

fn curve_pair(curve: Curve) -> (Vec<u8>, Vec<u8>) {
    let (mut public, mut private) = (vec![0; curve.public_key()], vec![0; curve.secret()]);
    curve.generate(random, &mut public, &mut private).unwrap();
    (public, private)
}

fn agree(curve: Curve, private: &[u8], peer: &[u8]) -> std::result::Result<Vec<u8>, Failed> {
    let mut shared = vec![0; curve.secret()];
    curve.agree(private, peer, &mut shared)?;
    Ok(shared)
}

/// OpenSSL takes scalars as integers in the machine's byte order.
fn openssl_pair(
    name: &'static CStr,
    group: Option<&'static CStr>,
    public: &[u8],
    private: &[u8],
) -> Option<openssl::Key> {
    let number: Vec<u8> = private.iter().rev().copied().collect();
    match group {
        Some(group) => openssl::Key::make(
            name,
            [string(c"group", group), octets(c"pub", public), openssl::unsigned(c"priv", &number)],
        ),
        None => openssl::Key::make(name, [octets(c"pub", public), octets(c"priv", private)]),
    }
}

#[test]
fn curves_agree_with_openssl() {
    for (curve, name, group) in CURVES {
        for _ in 0..16 {
            let ((public_a, private_a), (public_b, private_b)) = (curve_pair(curve), curve_pair(curve));
            let shared = agree(curve, &private_a, &public_b).unwrap();
            assert_eq!(agree(curve, &private_b, &public_a).unwrap(), shared);
            let a = openssl_pair(name, group, &public_a, &private_a).unwrap();
            let b = openssl_pair(name, group, &public_b, &private_b).unwrap();
            assert_eq!(a.derive(&b), shared, "{curve:?}");
        }
    }
}

#[test]
fn curves_refuse_points_that_are_not_theirs() {
    for (curve, ..) in CURVES {
        let (public, private) = curve_pair(curve);
        assert_eq!(agree(curve, &private, &public[1..]), Err(Failed), "{curve:?}");
        let bad = match curve {
            Curve::X25519 => vec![vec![0; 32], [&[1][..], &[0; 31]].concat()], // of small order
            _ => {
                let compressed = [&[2][..], &public[1..]].concat();
                let hybrid = [&[6 | public[public.len() - 1] & 1][..], &public[1..]].concat();
                vec![
                    flipped(&public, 7),
                    vec![0; public.len()],
                    compressed,
                    hybrid,
                    [&[4][..], &vec![0xff; public.len() - 1]].concat(),
                ]
            }
        };
        for point in bad {
            assert_eq!(agree(curve, &private, &point), Err(Failed), "{curve:?} {point:02x?}");
        }
    }
}

#[test]
fn curves_refuse_private_keys_out_of_range() {
    for curve in [Curve::P256, Curve::P384] {
        let (public, _) = curve_pair(curve);
        for private in [vec![0; curve.secret()], vec![0xff; curve.secret()]] {
            assert_eq!(agree(curve, &private, &public), Err(Failed), "{curve:?}");
            assert_eq!(curve.public_of(&private, &mut vec![0; curve.public_key()]), Err(Failed), "{curve:?}");
        }
    }
}

#[test]
fn no_randomness_no_key() {
    for (curve, ..) in CURVES {
        let outcome = curve.generate(|_| Err(Failed), &mut vec![0; curve.public_key()], &mut vec![0; curve.secret()]);
        assert_eq!(outcome, Err(Failed), "{curve:?}");
    }
}

/// The other tests once more, in a process whose CPU has no AVX2, BMI2 and ADX as far as AWS-LC and OpenSSL can tell.
#[cfg(target_arch = "x86_64")]
#[test]
fn portable_code_does_the_same() {
    const MASK: &str = "~0:~0x80120"; // EBX of CPUID leaf 7: bits 5, 8 and 19
    if std::env::var("OPENSSL_ia32cap").as_deref() == Ok(MASK) {
        return assert!(!uses_avx2());
    }
    let (_crate, module) = module_path!().split_once("::").unwrap();
    let run = Command::new(std::env::current_exe().unwrap()).arg(module).env("OPENSSL_ia32cap", MASK).output().unwrap();
    let output = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && output.contains("portable_code_does_the_same ... ok"), "{output}");
}

/// More than OpenSSL's ASYNC fibres have, and far less than crate::stack.
#[test]
fn stack_is_bounded() {
    const BOUND: usize = 192 << 10;
    let mut worst = 0;
    for (_, kem) in KEMS {
        worst = worst.max(stack_of(|| {
            let pair = kem_pair(kem, &array());
            let (ciphertext, shared) = encapsulate(kem, &array(), &pair.public).unwrap();
            assert_eq!(decapsulate(kem, &pair.private, &ciphertext).unwrap(), shared);
        }));
    }
    for (name, dsa) in DSAS {
        let pair = dsa_pair(dsa, &array());
        let input = Input::Formatted(b"message");
        let mut signature = vec![];
        let keypair = stack_of(|| drop(dsa_pair(dsa, &array())));
        let signing = stack_of(|| signature = sign(dsa, &array(), &pair.private, input).unwrap());
        let verifying = stack_of(|| dsa.verify(&pair.public, input, &signature).unwrap());
        println!("{name:?}: keypair {keypair}, sign {signing}, verify {verifying} bytes of stack");
        worst = worst.max(keypair).max(signing).max(verifying);
    }
    for (curve, ..) in CURVES {
        worst = worst.max(stack_of(|| {
            let (public, private) = curve_pair(curve);
            agree(curve, &private, &public).unwrap();
        }));
    }
    println!("at most {worst} bytes of stack");
    assert!(worst < BOUND, "{worst} bytes of stack, of {BOUND}");
}

/// How much of a new thread's stack, painted before, an operation wrote to.
fn stack_of(operation: impl FnOnce()) -> usize {
    const SIZE: usize = 1 << 20;
    const PAINT: u8 = 0xa5;
    extern "C" fn start<F: FnOnce()>(f: *mut c_void) -> *mut c_void {
        // SAFETY: `run` passes it.
        let f = unsafe { (*f.cast::<Option<F>>()).take() };
        f.unwrap()();
        null_mut()
    }
    fn run<F: FnOnce()>(f: F) -> usize {
        let mut f = Some(f);
        // SAFETY: the thread is joined before what it uses goes away.
        unsafe {
            let base = libc::mmap(
                null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            std::slice::from_raw_parts_mut(base.cast::<u8>(), SIZE).fill(PAINT);
            let (mut attributes, mut thread) = (std::mem::zeroed(), 0);
            assert_eq!(libc::pthread_attr_init(&mut attributes), 0);
            assert_eq!(libc::pthread_attr_setstack(&mut attributes, base, SIZE), 0);
            assert_eq!(libc::pthread_create(&mut thread, &attributes, start::<F>, (&raw mut f).cast()), 0);
            assert_eq!(libc::pthread_join(thread, null_mut()), 0);
            let stack = std::slice::from_raw_parts(base.cast::<u8>(), SIZE);
            let used = SIZE - stack.iter().position(|&b| b != PAINT).unwrap();
            libc::munmap(base, SIZE);
            used
        }
    }
    run(operation)
}
