//! Malformed keys, key shares, ciphertexts, signatures and files: nothing crashes, nothing hangs, nothing is accepted.
//!
//! Each case follows from the algorithm and its number, with the keys of the seed (`support`). OQSPROVIDER_FUZZ says how many
//! there are for each algorithm, OQSPROVIDER_FUZZ_ONLY=<name> or <name>:<number> leaves the others out, and
//! OQSPROVIDER_FUZZ_TRACE=1 names each before it begins: the last one of a thread that crashed is the culprit.

use super::support::{begin, every, key, message, new_key, other_key, provider, seed};
use crate::{
    algorithm::{Algorithm, Primitive},
    classical::Classical,
    der,
    error::Reason,
    key::Key,
};
use std::{
    env,
    panic::{catch_unwind, AssertUnwindSafe},
    sync::{
        atomic::{AtomicUsize, Ordering},
        Mutex,
    },
    thread,
    time::{Duration, Instant},
};

const MESSAGE: &[u8] = b"message";

/// SplitMix64: numbers that follow from a seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// A place in a text: as often near its beginning, where lengths and classical halves are, as anywhere, or at its end.
    fn place(&mut self, len: usize) -> usize {
        match self.below(4) {
            0 => self.below(len.min(8)),
            1 => self.below(len.min(200)),
            2 => len.saturating_sub(1 + self.below(len.min(64))),
            _ => self.below(len),
        }
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }

    /// Another text: one that was changed in some way, or made of another of its kind.
    fn change(&mut self, text: &[u8], other: &[u8]) -> Vec<u8> {
        let mut v = text.to_vec();
        for _ in 0..1 + self.below(3) {
            let len = v.len();
            let at = self.place(len);
            let greatest = 1 << self.below(10);
            let run = 1 + self.below(greatest);
            let end = (at + run).min(len);
            match self.below(12) {
                0..=2 if len > 0 => v[at] ^= 1 << self.below(8),
                3 if len > 0 => v[at] = [0, 1, 0x7f, 0x80, 0xfe, 0xff][self.below(6)],
                4 => v[at.min(end)..end].fill(0),
                5 => v[at.min(end)..end].fill(0xff),
                6 => v[at.min(end)..end].iter_mut().for_each(|b| *b = self.next() as u8),
                7 => v.truncate(at),
                8 => drop(v.drain(at.min(end)..end)),
                9 => {
                    let more = self.bytes(run);
                    v.splice(at.min(len)..at.min(len), more);
                }
                10 => v.extend(vec![0; run]),
                _ => {
                    let end = end.min(other.len());
                    if at < end {
                        v[at..end].copy_from_slice(&other[at..end]);
                    }
                }
            }
        }
        v
    }
}

/// What a valid key of an algorithm can do: the seeds of all cases.
struct Seeds {
    key: &'static Key<'static>,
    public: [Vec<u8>; 2],
    private: [Vec<u8>; 2],
    /// Ciphertexts, or signatures.
    outputs: [Vec<u8>; 2],
    secret: Vec<u8>,
}

fn seeds(a: &'static Algorithm) -> Seeds {
    let (key, other) = (key(a), other_key(a));
    let both = |f: &dyn Fn(&Key) -> Vec<u8>| [f(key), f(other)];
    let (outputs, secret) = if a.is_signature() {
        (both(&|k| k.sign(MESSAGE).unwrap()), vec![])
    } else {
        let (ciphertext, secret) = key.encapsulate().unwrap();
        ([ciphertext, other.encapsulate().unwrap().0], secret.to_vec())
    };
    Seeds {
        key,
        public: both(&|k| k.public_bytes().unwrap()),
        private: both(&|k| k.private_bytes().unwrap().to_vec()),
        outputs,
        secret,
    }
}

/// A public key of CROSS: a seed, and the numbers of a syndrome modulo 127 in 7 bits each (RSDP), or modulo 509 in 9 (RSDP-G).
struct Cross {
    seed: usize,
    bits: usize,
    modulus: usize,
}

fn cross(a: &Algorithm) -> Option<Cross> {
    let (bits, modulus) = if a.name.starts_with("CROSSrsdpg") { (9, 509) } else { (7, 127) };
    let seed = [32, 48, 64][a.level as usize / 2];
    a.name.starts_with("CROSS").then_some(Cross { seed, bits, modulus })
}

impl Cross {
    /// The places of a number's bits in the key, the lowest first: bytes, and bits in them.
    fn places(&self, number: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let start = 8 * self.seed + self.bits * number;
        (start..start + self.bits).map(|bit| (bit / 8, bit % 8))
    }

    fn get(&self, key: &[u8], number: usize) -> usize {
        self.places(number).enumerate().map(|(i, (byte, bit))| usize::from((key[byte] >> bit) & 1) << i).sum()
    }

    fn set(&self, key: &mut [u8], number: usize, value: usize) {
        for (i, (byte, bit)) in self.places(number).enumerate() {
            key[byte] = (key[byte] & !(1 << bit)) | ((((value >> i) & 1) as u8) << bit);
        }
    }

    fn count(&self, key: &[u8]) -> usize {
        8 * (key.len() - self.seed) / self.bits
    }

    /// The key with all numbers less than the modulus: what is the same then is the same to liboqs.
    fn reduced(&self, key: &[u8]) -> Vec<u8> {
        let mut out = key.to_vec();
        for i in 0..self.count(key) {
            self.set(&mut out, i, self.get(key, i) % self.modulus);
        }
        out
    }
}

/// liboqs reduces the numbers of a public key of CROSS, and does not ask for them to be reduced. That does no harm: what it
/// verifies with is the same key. When this fails because it refuses such keys, `same_key` need not know CROSS any more.
#[test]
fn a_public_key_of_cross_has_several_encodings() {
    every(
        |a| cross(a).is_some(),
        |a| {
            let cross = cross(a).unwrap();
            let fits = |value: usize| value + cross.modulus < 1 << cross.bits;
            let (key, bytes, number) = (0..100)
                .find_map(|_| {
                    let key = new_key(a);
                    let bytes = key.public_bytes().unwrap();
                    let number = (0..cross.count(&bytes)).find(|i| fits(cross.get(&bytes, *i)))?;
                    Some((key, bytes, number))
                })
                .expect("a key with a number that is small enough");
            let signature = key.sign(MESSAGE).unwrap();
            let verify = |bytes: &[u8]| {
                assert_eq!(bytes.len(), key.public_bytes().unwrap().len());
                Key::from_public_bytes(provider(), a, bytes).unwrap().verify(MESSAGE, &signature)
            };
            let with = |value| {
                let mut changed = bytes.clone();
                cross.set(&mut changed, number, value);
                changed
            };
            let value = cross.get(&bytes, number);
            let other = with(value + cross.modulus);
            verify(&other).expect("the same number, not reduced");
            assert!(other != bytes && same_key(a, &other, &bytes));
            for different in [value + 1, cross.modulus - 1] {
                assert!(verify(&with(different)).is_err(), "{different} for {value} is another key");
                assert!(!same_key(a, &with(different), &bytes));
            }
        },
    );
}

/// Whether two public keys, of one length, say the same in two encodings.
fn same_key(a: &Algorithm, one: &[u8], other: &[u8]) -> bool {
    match cross(a) {
        Some(cross) => cross.reduced(one) == cross.reduced(other),
        None => same(a, one, other, 4),
    }
}

/// The uppermost bit of an X25519 share has no meaning (RFC 7748, section 5).
fn same(a: &Algorithm, one: &[u8], other: &[u8], offset: usize) -> bool {
    let normal = |bytes: &[u8]| {
        let mut v = bytes.to_vec();
        if a.classical == Some(Classical::X25519) {
            let start = if a.post_quantum_first && offset == 0 { v.len().saturating_sub(32) } else { offset };
            if let Some(b) = v.get_mut(start + 31) {
                *b &= 0x7f;
            }
        }
        v
    };
    normal(one) == normal(other)
}

fn case(a: &'static Algorithm, s: &Seeds, n: &mut Numbers) {
    match n.below(5) {
        0 => {
            let bytes = n.change(&s.public[0], &s.public[1]);
            if let Ok(key) = Key::from_public_bytes(provider(), a, &bytes) {
                assert!(!key.has_secret());
                check_public(a, s, &key, same_key(a, &bytes, &s.public[0]));
            }
        }
        1 => {
            let bytes = n.change(&s.private[0], &s.private[1]);
            if let Ok(key) = Key::from_private_bytes(provider(), a, &bytes) {
                // Whatever it does with it, it comes to an end.
                match a.primitive {
                    Primitive::Kem(_) => drop(key.decapsulate(&s.outputs[0])),
                    // HAETAE rejects its own signatures until one is short enough: with a private key that is too
                    // long, for ever. SPHINCS+ "s" is slow.
                    Primitive::Signature(_) if a.name.contains("haetae") || a.name.contains("ssimple") => {}
                    Primitive::Signature(_) => drop(key.sign(MESSAGE)),
                }
                let _ = key.public_bytes().and_then(|_| key.private_bytes());
            }
        }
        2 => {
            let output = n.change(&s.outputs[0], &s.outputs[1]);
            if a.is_signature() {
                match s.key.verify(MESSAGE, &output) {
                    Err(e) => assert_eq!(e.reason, Reason::SignatureMismatch),
                    Ok(()) => assert!(same(a, &output, &s.outputs[0], 0), "a changed signature is accepted"),
                }
            } else {
                match s.key.decapsulate(&output) {
                    Err(e) => {
                        assert!(output.len() != s.outputs[0].len() || a.classical.is_some(), "{e:?}: no oracle");
                    }
                    Ok(secret) => {
                        assert_eq!(output.len(), s.outputs[0].len());
                        if !same(a, &output, &s.outputs[0], 0) {
                            assert!(secret[..] != s.secret[..], "a changed ciphertext has the same secret");
                        }
                    }
                }
            }
        }
        3 if !a.is_signature() => {
            let share = s.key.share().unwrap();
            let bytes = n.change(&share, &other_key(a).share().unwrap());
            let mut key = Key::empty(provider(), a);
            if key.set_share(&bytes).is_ok() {
                check_public(a, s, &key, same(a, &bytes, &share, 0));
            }
        }
        _ => {
            let identifier = der::algorithm_identifier(a.oid.unwrap_or("1.2.3")).unwrap();
            let public = der::subject_public_key_info(&identifier, &s.public[0]);
            let private = der::private_key_info(&identifier, &s.private[0]);
            let bytes = n.change(&public, &private);
            if let Some(inner) = der::parse_subject_public_key_info(&bytes, &identifier) {
                assert_eq!(der::subject_public_key_info(&identifier, inner), bytes, "one key has one encoding");
                let _ = Key::from_public_bytes(provider(), a, inner);
            }
            let bytes = n.change(&private, &public);
            if let Some(inner) = der::parse_private_key_info(&bytes, &identifier) {
                let _ = Key::from_private_bytes(provider(), a, inner);
            }
            let _ = der::rsa_public_key(&bytes);
        }
    }
}

/// A public key that is not `s.key`'s verifies none of its signatures, and agrees on nothing with it.
fn check_public(a: &Algorithm, s: &Seeds, key: &Key, is_same: bool) {
    if is_same {
        return;
    }
    if a.is_signature() {
        let accepted = key.verify(MESSAGE, &s.outputs[0]).is_ok();
        // A few coefficients of a multivariate public key need not matter to one signature, nor one of Falcon's by one.
        let tolerant = ["OV_", "mayo", "falcon"].iter().any(|family| a.name.contains(family));
        assert!(!accepted || tolerant, "a changed public key verifies");
    } else if let Ok((ciphertext, secret)) = key.encapsulate() {
        assert!(s.key.decapsulate(&ciphertext).ok() != Some(secret), "a changed public key agrees");
    }
}

/// What each thread is at, and since when.
static AT_WORK: Mutex<Vec<(thread::ThreadId, String, Instant)>> = Mutex::new(vec![]);

fn note(case: String) {
    let id = thread::current().id();
    let mut all = AT_WORK.lock().unwrap();
    all.retain(|w| w.0 != id);
    all.push((id, case, Instant::now()));
}

#[test]
fn nothing_malformed_is_accepted_or_does_harm() {
    let number = |name: &str| env::var(name).ok().map(|v| v.parse::<usize>().expect(name));
    let cases = number("OQSPROVIDER_FUZZ").unwrap_or(50);
    let trace = env::var_os("OQSPROVIDER_FUZZ_TRACE").is_some();
    let only = env::var("OQSPROVIDER_FUZZ_ONLY").ok();
    let only = only.as_deref().map(|o| o.split_once(':').unwrap_or((o, "")));
    let count = AtomicUsize::new(0);
    thread::spawn(|| loop {
        thread::sleep(Duration::from_secs(5));
        let all = AT_WORK.lock().unwrap();
        if let Some(late) = all.iter().find(|w| w.2.elapsed() > Duration::from_secs(1800)) {
            eprintln!("{} does not come to an end", late.1);
            std::process::abort();
        }
    });
    every(
        |a| only.is_none_or(|(name, _)| name == a.name),
        |a| {
            note(format!("{}: keys", a.name));
            let s = seeds(a);
            let numbers = match only {
                Some((_, number)) if !number.is_empty() => number.parse().map(|n| n..n + 1).expect("a number"),
                _ => 0..cases,
            };
            for i in numbers {
                note(format!("{}:{i}", a.name));
                if trace {
                    eprintln!("{}:{i}", a.name);
                }
                let mut numbers =
                    Numbers(a.name.bytes().fold(i as u64, |h, b| h.wrapping_mul(0x100000001b3) ^ u64::from(b)));
                begin();
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(a, &s, &mut numbers))) {
                    panic!(
                        "case {i}: {}; to repeat it: OQSPROVIDER_SEED={} OQSPROVIDER_FUZZ_ONLY={}:{i}",
                        message(panic),
                        seed(),
                        a.name
                    );
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
            let id = thread::current().id();
            AT_WORK.lock().unwrap().retain(|w| w.0 != id);
        },
    );
    println!("{} cases", count.into_inner());
}
