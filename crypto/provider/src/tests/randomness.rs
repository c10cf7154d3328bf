//! Where randomness comes from: from the source of the operation, and from nowhere else.

use super::support::{every_primitive, new_key, provider, provider_of};
use crate::{
    algorithm::{Algorithm, Primitive, ALGORITHMS},
    error::Reason,
    key::Key,
    openssl::evp::Library,
    primitives::{
        random::{self, Source},
        Failed,
    },
    provider::Provider,
    stack,
};
use std::{
    cell::{Cell, RefCell},
    env,
    os::unix::process::ExitStatusExt,
    process::Command,
};

/// Fails from the n-th request on.
struct Failing(Cell<usize>);

impl Source for Failing {
    fn fill(&self, out: &mut [u8]) -> Result<(), Failed> {
        let left = self.0.get().checked_sub(1).ok_or(Failed)?;
        self.0.set(left);
        provider().fill(out)
    }
}

/// Repeats itself, and counts what it gave.
struct Repeating(RefCell<u64>, Cell<usize>);

impl Repeating {
    fn from(seed: u64) -> Repeating {
        Repeating(RefCell::new(seed), Cell::new(0))
    }
}

impl Source for Repeating {
    fn fill(&self, out: &mut [u8]) -> Result<(), Failed> {
        let mut x = self.0.borrow_mut();
        for b in out.iter_mut() {
            *x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *b = (*x >> 56) as u8;
        }
        self.1.set(self.1.get() + out.len());
        Ok(())
    }
}

/// What an algorithm's operations put out that need randomness: generation, and encapsulation or signing.
type Operation = fn(&dyn Source, &Algorithm) -> Result<Vec<u8>, Failed>;

fn generate(source: &dyn Source, a: &Algorithm) -> Result<Vec<u8>, Failed> {
    let (public, secret) = a.key_sizes();
    let (mut public, mut secret) = (vec![0; public], vec![0; secret]);
    let run = || match a.primitive {
        Primitive::Kem(k) => k.generate(&mut public, &mut secret),
        Primitive::Signature(s) => s.generate(&mut public, &mut secret),
    };
    stack::run(|| random::with(source, run)).unwrap()?;
    Ok([secret, public].concat())
}

fn use_it(source: &dyn Source, a: &Algorithm) -> Result<Vec<u8>, Failed> {
    let keys = generate(&Repeating::from(7), a).unwrap();
    let (secret, public) = keys.split_at(a.key_sizes().1);
    match a.primitive {
        Primitive::Kem(k) => {
            let (mut ciphertext, mut shared) = (vec![0; k.sizes().ciphertext], vec![0; k.sizes().shared_secret]);
            stack::run(|| random::with(source, || k.encapsulate(public, &mut ciphertext, &mut shared))).unwrap()?;
            Ok([ciphertext, shared].concat())
        }
        Primitive::Signature(s) => {
            let mut out = vec![0; s.sizes().signature];
            let len = stack::run(|| random::with(source, || s.sign(secret, b"message", &mut out))).unwrap()?;
            out.truncate(len);
            Ok(out)
        }
    }
}

const OPERATIONS: [(&str, Operation); 2] = [("generate", generate), ("use", use_it)];

fn is_kpqc(a: &Algorithm) -> bool {
    ["ntru_plus", "smaug", "haetae", "aimer"].iter().any(|family| a.name.contains(family))
}

#[test]
fn all_of_it_comes_from_the_source() {
    every_primitive(
        |_| true,
        |a| {
            for (name, operation) in OPERATIONS {
                let source = Repeating::from(1);
                let once = operation(&source, a).unwrap();
                assert!(source.1.get() >= 16, "{name} asks for {} bytes", source.1.get());
                assert_eq!(operation(&Repeating::from(1), a).unwrap(), once, "{name} with the same randomness");
                assert_ne!(operation(&Repeating::from(2), a).unwrap(), once, "{name} with other randomness");
            }
        },
    );
}

#[test]
fn kpqc_fails_without_it() {
    every_primitive(is_kpqc, |a| {
        for (name, operation) in OPERATIONS {
            assert_eq!(operation(&Failing(Cell::new(0)), a), Err(Failed), "{name}");
            let mut requests = 1;
            while operation(&Failing(Cell::new(requests)), a).is_err() {
                requests += 1;
                assert!(requests < 100, "{name} never succeeds");
            }
        }
    });
}

const CHILD: &str = "OQSPROVIDER_TEST_WITHOUT_RANDOMNESS";

/// liboqs cannot be told, so the process ends: a test in a process of its own for each algorithm.
#[test]
fn liboqs_ends_the_process_without_it() {
    const NAME: &str = "tests::randomness::liboqs_ends_the_process_without_it";
    if let Ok(case) = env::var(CHILD) {
        let (name, operation) = case.split_once(' ').unwrap();
        let algorithm = ALGORITHMS.iter().find(|a| a.name == name).unwrap();
        // No file of what was in its memory.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
        let run = OPERATIONS.iter().find(|o| o.0 == operation).unwrap().1;
        let result = run(&Failing(Cell::new(0)), algorithm).map(|out| out.len());
        panic!("{case} went on without randomness: {result:?}");
    }
    every_primitive(
        |a| !is_kpqc(a),
        |a| {
            for (operation, _) in OPERATIONS {
                let out = Command::new(env::current_exe().unwrap())
                    .args([NAME, "--exact", "--nocapture"])
                    .env(CHILD, format!("{} {operation}", a.name))
                    .output()
                    .unwrap();
                let text = String::from_utf8_lossy(&out.stderr);
                assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{operation}: {}: {text}", out.status);
                assert!(!text.contains("went on"), "{operation}: {text}");
            }
        },
    );
}

#[test]
fn without_a_source_there_is_none() {
    let kem = ::kpqc::smaugt128;
    assert!(kem.generate_key_pair().is_err());
    assert!(random::with(provider(), || kem.generate_key_pair()).is_ok());
    assert!(kem.generate_key_pair().is_err(), "a source is gone when its operation is over");
}

#[test]
fn sources_nest_and_belong_to_their_thread() {
    let kem = ::kpqc::smaugt128;
    let one = || kem.generate_key_pair().unwrap().public_key.clone();
    let with = |seed| random::with(&Repeating::from(seed), one);
    let (first, second) = (with(1), with(2));
    let nested = random::with(&Repeating::from(1), || {
        assert_eq!(with(2), second);
        std::thread::scope(|s| assert!(s.spawn(|| kem.generate_key_pair().is_err()).join().unwrap()));
        one()
    });
    assert_eq!(nested, first, "what happens inside and elsewhere changes nothing");
}

/// A test that fails does so in each run.
#[test]
fn tests_repeat_themselves() {
    for name in ["p256_haetae2", "rsa3072_mldsa44", "x25519_smaug_t1", "CROSSrsdp128fast"] {
        let algorithm = ALGORITHMS.iter().find(|a| a.name == name).unwrap();
        let all = || {
            let key = new_key(algorithm);
            let output = if algorithm.is_signature() { key.sign(b"") } else { key.encapsulate().map(|out| out.0) };
            (key.private_bytes().unwrap(), output.unwrap())
        };
        let first = std::thread::scope(|s| s.spawn(all).join().unwrap());
        let (second, third) = std::thread::scope(|s| s.spawn(|| (all(), all())).join().unwrap());
        assert!(first == second, "{name}: two threads do the same");
        assert!(second != third, "{name}: one thread goes on to other keys");
    }
}

#[test]
fn each_library_context_has_its_own() {
    let without: &'static Provider = Box::leak(Box::new(provider_of(Library::without_randomness(), |_| None).unwrap()));
    for name in ["haetae2", "smaug_t1", "p256_aimer128f"] {
        let algorithm = ALGORITHMS.iter().find(|a| a.name == name).unwrap();
        let own = new_key(algorithm);
        for _ in 0..3 {
            let error = Key::empty(without, algorithm).generate().unwrap_err();
            assert!(matches!(error.reason, Reason::PrimitiveFailed | Reason::ClassicalFailed), "{error:?}");
            // The other context has not noticed; nor does its key help where there is no randomness.
            new_key(algorithm).validate().unwrap();
            let moved = Key::from_private_bytes(without, algorithm, &own.private_bytes().unwrap()).unwrap();
            assert!(moved.validate().is_err());
        }
    }
}
