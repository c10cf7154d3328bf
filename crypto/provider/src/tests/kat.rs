//! Known answers, of testdata/: what the primitives put out for known randomness.

use super::support::join;
use crate::{
    openssl::evp::Library,
    primitives::{kpqc, liboqs, random, Failed, Kem, Signature},
    stack,
};
use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    ffi::CString,
    fmt::Write,
    sync::Mutex,
};

/// NIST's AES-256 CTR_DRBG without derivation function, as the generators of known answers use it.
#[derive(Clone)]
struct Drbg {
    key: [u8; 32],
    counter: u128,
}

impl Drbg {
    fn new(seed: &[u8]) -> Drbg {
        let mut d = Drbg { key: [0; 32], counter: 0 };
        d.update(seed.try_into().expect("a seed of 48 bytes"));
        d
    }

    fn blocks<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        for block in out.chunks_mut(16) {
            self.counter = self.counter.wrapping_add(1);
            block.copy_from_slice(&aes256(&self.key, &self.counter.to_be_bytes()));
        }
        out
    }

    fn update(&mut self, data: &[u8; 48]) {
        let mut state = self.blocks::<48>();
        state.iter_mut().zip(data).for_each(|(s, d)| *s ^= d);
        self.key.copy_from_slice(&state[..32]);
        self.counter = u128::from_be_bytes(state[32..].try_into().unwrap());
    }

    fn fill(&mut self, out: &mut [u8]) {
        for block in out.chunks_mut(16) {
            block.copy_from_slice(&self.blocks::<16>()[..block.len()]);
        }
        self.update(&[0; 48]);
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut out = vec![0; n];
        self.fill(&mut out);
        out
    }
}

/// One block of AES-256, by libcrypto.
fn aes256(key: &[u8; 32], block: &[u8; 16]) -> [u8; 16] {
    use crate::openssl::abi::{c_int, c_void};
    extern "C" {
        fn EVP_CIPHER_CTX_new() -> *mut c_void;
        fn EVP_CIPHER_CTX_free(ctx: *mut c_void);
        fn EVP_aes_256_ecb() -> *const c_void;
        fn EVP_EncryptInit(ctx: *mut c_void, cipher: *const c_void, key: *const u8, iv: *const u8) -> c_int;
        fn EVP_EncryptUpdate(ctx: *mut c_void, out: *mut u8, len: *mut c_int, input: *const u8, n: c_int) -> c_int;
    }
    let mut out = [0; 16];
    let mut len = 0;
    // SAFETY: ECB puts out each block at once.
    unsafe {
        let ctx = EVP_CIPHER_CTX_new();
        assert_eq!(EVP_EncryptInit(ctx, EVP_aes_256_ecb(), key.as_ptr(), std::ptr::null()), 1);
        assert_eq!(EVP_EncryptUpdate(ctx, out.as_mut_ptr(), &mut len, block.as_ptr(), 16), 1);
        EVP_CIPHER_CTX_free(ctx);
    }
    assert_eq!(len, 16);
    out
}

struct Known(RefCell<Drbg>);

impl random::Source for Known {
    fn fill(&self, out: &mut [u8]) -> Result<(), Failed> {
        self.0.borrow_mut().fill(out);
        Ok(())
    }
}

impl Known {
    fn run<T>(&self, f: impl FnOnce() -> T) -> T {
        stack::run(|| random::with(self, f)).unwrap()
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    bytes.iter().for_each(|b| write!(out, "{b:02X}").unwrap());
    out
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

struct Keys {
    public: Vec<u8>,
    secret: Vec<u8>,
}

fn keys(
    known: &Known,
    (public, secret): (usize, usize),
    f: impl FnOnce(&mut [u8], &mut [u8]) -> Result<(), Failed>,
) -> Keys {
    let mut k = Keys { public: vec![0; public], secret: vec![0; secret] };
    known.run(|| f(&mut k.public, &mut k.secret)).unwrap();
    k
}

/// Key pair, ciphertext and shared secret.
fn kem(known: &Known, kem: &dyn Kem) -> (Keys, Vec<u8>, Vec<u8>) {
    let s = kem.sizes();
    let k = keys(known, (s.public_key, s.secret_key), |p, s| kem.generate(p, s));
    let (mut ciphertext, mut shared, mut got) =
        (vec![0; s.ciphertext], vec![0; s.shared_secret], vec![0; s.shared_secret]);
    known.run(|| kem.encapsulate(&k.public, &mut ciphertext, &mut shared)).unwrap();
    known.run(|| kem.decapsulate(&k.secret, &ciphertext, &mut got)).unwrap();
    assert_eq!(got, shared);
    (k, ciphertext, shared)
}

fn sign(known: &Known, signature: &dyn Signature, k: &Keys, message: &[u8]) -> Vec<u8> {
    let mut out = vec![0; signature.sizes().signature];
    let len = known.run(|| signature.sign(&k.secret, message, &mut out)).unwrap();
    out.truncate(len);
    known.run(|| signature.verify(&k.public, message, &out)).unwrap();
    out
}

/// The records of a response file.
fn records(text: &str) -> Vec<HashMap<&str, &str>> {
    text.split("count = ").skip(1).map(|r| r.lines().filter_map(|l| l.split_once(" = ")).collect()).collect()
}

macro_rules! kpqc {
    ($($name:ident)*) => { [$((&::kpqc::$name, include_str!(concat!("../../testdata/", stringify!($name), ".rsp")))),*] };
}

#[test]
fn kems_of_kpqc() {
    let sets = kpqc!(ntruplus768 ntruplus864 ntruplus1152 smaugt128 smaugt192 smaugt256);
    for (algorithm, text) in sets {
        let records = records(text);
        assert!(!records.is_empty());
        for (i, r) in records.iter().enumerate() {
            let known = Known(RefCell::new(Drbg::new(&unhex(r["seed"]))));
            let (k, ciphertext, shared) = kem(&known, &kpqc::Kem(algorithm));
            let got = [("pk", &k.public), ("sk", &k.secret), ("ct", &ciphertext), ("ss", &shared)];
            for (field, value) in got {
                assert_eq!(hex(value), r[field], "{field} of record {i} of {}", algorithm.id);
            }
        }
    }
}

#[test]
fn signatures_of_kpqc() {
    let sets = kpqc!(haetae2 haetae3 haetae5 aimer128s aimer128f aimer192s aimer192f aimer256s aimer256f);
    for (algorithm, text) in sets {
        let records = records(text);
        assert!(!records.is_empty());
        let primitive = kpqc::Signature(algorithm);
        for r in &records {
            let message = unhex(r["msg"]);
            let known = Known(RefCell::new(Drbg::new(&unhex(r["seed"]))));
            let s = primitive.sizes();
            let k = keys(&known, (s.public_key, s.secret_key), |p, s| primitive.generate(p, s));
            assert_eq!(hex(&k.public), r["pk"], "pk of {}", algorithm.id);
            assert_eq!(hex(&k.secret), r["sk"], "sk of {}", algorithm.id);
            let (signature, want) = if algorithm.id.starts_with("haetae") {
                // Its generator draws a context, of a random length, after the 32 bytes of the signature's own randomness.
                let mut ahead = known.0.borrow().clone();
                ahead.bytes(32);
                let len = ahead.bytes(1)[0].into();
                let context = ahead.bytes(len);
                let signed = known.run(|| algorithm.sign_with_context(&message, &k.secret, &context)).unwrap();
                (signed, r["sig"])
            } else {
                (sign(&known, &primitive, &k, &message), &r["sm"][2 * message.len()..])
            };
            assert_eq!(hex(&signature), want, "signature of {}", algorithm.id);
        }
    }
}

/// A record as liboqs prints the first, from its KAT generators' seed.
fn liboqs_record(name: &'static std::ffi::CStr, is_kem: bool) -> String {
    let mut outer = Drbg::new(&std::array::from_fn::<u8, 48, _>(|i| i as u8));
    let seed = outer.bytes(48);
    let known = Known(RefCell::new(Drbg::new(&seed)));
    let mut out = format!("count = 0\nseed = {}\n", hex(&seed));
    let mut line = |field: &str, bytes: &[u8]| writeln!(out, "{field} = {}", hex(bytes)).unwrap();
    if is_kem {
        let (k, ciphertext, shared) = kem(&known, &liboqs::Kem::new(name));
        line("pk", &k.public);
        line("sk", &k.secret);
        line("ct", &ciphertext);
        line("ss", &shared);
        return out;
    }
    let primitive = liboqs::Signature::new(name);
    let message = outer.bytes(33);
    let s = primitive.sizes();
    let k = keys(&known, (s.public_key, s.secret_key), |p, s| primitive.generate(p, s));
    let signature = sign(&known, &primitive, &k, &message);
    // Each family's submission has its own order of message and signature.
    let name = name.to_str().unwrap();
    let signed = match name {
        "Falcon-512" | "Falcon-1024" => {
            let (nonce, rest) = signature[1..].split_at(40);
            let kind = if name == "Falcon-512" { 0x29 } else { 0x2a };
            [&((signature.len() - 40) as u16).to_be_bytes(), nonce, &message, &[kind], rest].concat()
        }
        _ if name.starts_with("cross") || name.starts_with("OV-") => [&message[..], &signature].concat(),
        _ => [&signature[..], &message].concat(),
    };
    write!(out, "mlen = 33\nmsg = {}\npk = {}\nsk = {}\n", hex(&message), hex(&k.public), hex(&k.secret)).unwrap();
    write!(out, "smlen = {}\nsm = {}\n", signed.len(), hex(&signed)).unwrap();
    out
}

#[test]
fn liboqs_prints_its_first_records() {
    let known: Vec<(&str, &str)> =
        include_str!("../../testdata/liboqs.txt").lines().map(|l| l.split_once(' ').unwrap()).collect();
    // Every one of the table must be among them.
    let mut table = include_str!("../../../algorithms.csv").lines().map(|l| l.split(',').collect::<Vec<_>>());
    let header = table.next().unwrap();
    let column = |name: &str| header.iter().position(|c| *c == name).unwrap();
    let (library, kind, primitive) = (column("library"), column("kind"), column("primitive"));
    let rows: HashMap<&str, &str> = table.filter(|r| r[library] == "liboqs").map(|r| (r[primitive], r[kind])).collect();
    let names: HashSet<&str> = known.iter().map(|k| k.0).collect();
    assert_eq!(rows.keys().copied().collect::<HashSet<_>>(), names, "testdata/liboqs.txt has what the table has");

    let failures = Mutex::new(vec![]);
    let (left, right) = known.split_at(known.len() / 2);
    let check = |part: &[(&'static str, &str)]| {
        for (name, want) in part {
            let leaked = Box::leak(CString::new(*name).unwrap().into_boxed_c_str());
            let mut digest = Library::process_default().digest(c"SHA256").unwrap();
            digest.update(liboqs_record(leaked, rows[name] == "kem").as_bytes()).unwrap();
            if hex(&digest.value().unwrap()).to_lowercase() != *want {
                failures.lock().unwrap().push(*name);
            }
        }
    };
    std::thread::scope(|scope| join([left, right].map(|part| scope.spawn(move || check(part))).into()));
    assert_eq!(failures.into_inner().unwrap(), [""; 0]);
}

#[test]
fn the_generator_is_nists() {
    // FIPS 197, C.3.
    let key = std::array::from_fn(|i| i as u8);
    let block = std::array::from_fn(|i| 0x11 * i as u8);
    assert_eq!(hex(&aes256(&key, &block)), "8EA2B7CA516745BFEAFC49904B496089");
    // The first seed of every response file of NIST's competition.
    let seed = Drbg::new(&std::array::from_fn::<u8, 48, _>(|i| i as u8)).bytes(48);
    assert!(hex(&seed).starts_with("061550234D158C5EC95595FE04EF7A25767F2E24CC2BC479D09D86DC9ABCFDE7"));
}
