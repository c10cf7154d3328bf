//! What the tests share: a provider without OpenSSL's core, keys that are made once, and a way to go through all
//! algorithms on all processors.
//!
//! All randomness repeats itself: a test does the same in each run, whichever thread runs it and whatever ran before.
//! OQSPROVIDER_SEED=1, 2, ... has other keys, signatures and ciphertexts.

use crate::{
    algorithm::{Algorithm, Primitive, ALGORITHMS, COUNT},
    error::Result,
    key::Key,
    openssl::{
        abi::{c_char, c_int, c_void, entry, from_core, Dispatch},
        core::Core,
        evp::Library,
    },
    provider::Provider,
};
use std::{
    any::Any,
    env,
    panic::{catch_unwind, AssertUnwindSafe},
    ptr::null,
    sync::{
        atomic::{AtomicUsize, Ordering},
        LazyLock, Mutex, OnceLock,
    },
    thread::{self, ScopedJoinHandle},
};

unsafe extern "C" fn known(_: *const c_void, _: *const c_char, _: *const c_char, _: *const c_char) -> c_int {
    1
}

/// A core for which every object identifier is fine already.
static CORE: [Dispatch; 3] =
    [entry!(from_core::OBJ_CREATE, known), entry!(from_core::OBJ_ADD_SIGID, known), Dispatch::END];

pub fn provider_with(environment: impl Fn(&str) -> Option<String>) -> Result<Provider> {
    provider_of(Library::without_randomness(), environment)
}

pub fn provider_of(library: Library, environment: impl Fn(&str) -> Option<String>) -> Result<Provider> {
    // SAFETY: the table ends with Dispatch::END, and its functions have the types of their numbers.
    let core = unsafe { Core::new(null(), CORE.as_ptr()) };
    Provider::new(core, library, environment).map_err(|(_, e)| e)
}

/// What randomness is for: each has a stream of its own.
#[derive(Clone, Copy)]
enum Use {
    Test,
    Key,
    OtherKey,
    Signature,
}

/// How many uses there are, at least.
const USES: usize = 4;

pub fn seed() -> usize {
    static SEED: LazyLock<usize> =
        LazyLock::new(|| env::var("OQSPROVIDER_SEED").map_or(0, |v| v.parse().expect("OQSPROVIDER_SEED")));
    *SEED
}

fn repeat(p: &Provider, what: Use) {
    p.library.repeat(seed() * USES + what as usize);
}

/// Has this thread's randomness begin anew.
pub fn begin() {
    repeat(provider(), Use::Test);
}

/// The provider of a test, whose randomness begins anew on each thread, and with each algorithm of `every`.
pub fn provider() -> &'static Provider {
    static PROVIDER: LazyLock<Provider> = LazyLock::new(|| provider_with(|_| None).unwrap());
    thread_local! {
        static BEGIN: () = repeat(&PROVIDER, Use::Test);
    }
    BEGIN.with(|()| &*PROVIDER)
}

/// The provider of what tests share: what it puts out does not depend on which of them asks first.
fn maker(what: Use) -> &'static Provider {
    static MAKER: LazyLock<Provider> = LazyLock::new(|| provider_with(|_| None).unwrap());
    repeat(&MAKER, what);
    &MAKER
}

fn generated(p: &'static Provider, algorithm: &'static Algorithm) -> Key<'static> {
    let mut key = Key::empty(p, algorithm);
    key.generate().unwrap();
    key
}

/// The same key, of another provider.
pub fn moved<'a>(p: &'a Provider, key: &Key) -> Key<'a> {
    Key::from_private_bytes(p, key.algorithm, &key.private_bytes().unwrap()).unwrap()
}

pub fn new_key(algorithm: &'static Algorithm) -> Key<'static> {
    generated(provider(), algorithm)
}

/// The algorithm's key that all tests share.
pub fn key(algorithm: &'static Algorithm) -> &'static Key<'static> {
    static KEYS: [OnceLock<Key>; COUNT] = [const { OnceLock::new() }; COUNT];
    KEYS[provider().index_of(algorithm)].get_or_init(|| moved(provider(), &generated(maker(Use::Key), algorithm)))
}

/// Another key of the algorithm, that all tests share too.
pub fn other_key(algorithm: &'static Algorithm) -> &'static Key<'static> {
    static KEYS: [OnceLock<Key>; COUNT] = [const { OnceLock::new() }; COUNT];
    KEYS[provider().index_of(algorithm)].get_or_init(|| moved(provider(), &generated(maker(Use::OtherKey), algorithm)))
}

pub const MESSAGE: &[u8] =
    b"a message that is somewhat longer than any of the digests that go with the classical halves";

/// A signature of MESSAGE by the algorithm's key, which all tests share.
pub fn signature(algorithm: &'static Algorithm) -> &'static [u8] {
    static SIGNATURES: [OnceLock<Vec<u8>>; COUNT] = [const { OnceLock::new() }; COUNT];
    SIGNATURES[provider().index_of(algorithm)].get_or_init(|| {
        let key = key(algorithm);
        moved(maker(Use::Signature), key).sign(MESSAGE).unwrap()
    })
}

pub fn is_kem(a: &Algorithm) -> bool {
    !a.is_signature()
}

/// Checks each algorithm of a kind, and tells of all that fail.
pub fn every(kind: impl Fn(&Algorithm) -> bool, check: impl Fn(&'static Algorithm) + Sync) {
    all(ALGORITHMS.iter().filter(|a| kind(a)).collect(), check)
}

/// As `every`, with each post-quantum primitive once: in the first algorithm that has it.
pub fn every_primitive(kind: impl Fn(&Algorithm) -> bool, check: impl Fn(&'static Algorithm) + Sync) {
    let address = |a: &Algorithm| match a.primitive {
        Primitive::Kem(k) => (k as *const dyn crate::primitives::Kem).cast::<()>(),
        Primitive::Signature(s) => (s as *const dyn crate::primitives::Signature).cast::<()>(),
    };
    let mut chosen: Vec<&'static Algorithm> = vec![];
    for a in ALGORITHMS.iter().filter(|a| kind(a)) {
        if chosen.iter().all(|c| address(c) != address(a)) {
            chosen.push(a);
        }
    }
    all(chosen, check)
}

fn all(chosen: Vec<&'static Algorithm>, check: impl Fn(&'static Algorithm) + Sync) {
    assert!(!chosen.is_empty(), "there is no such algorithm");
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(vec![]);
    let work = || {
        while let Some(algorithm) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            begin();
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(algorithm))) {
                failures.lock().unwrap().push(format!("{}: {}", algorithm.name, message(panic)));
            }
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, Into::into);
        join((0..threads).map(|_| scope.spawn(work)).collect());
    });
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} of {} fail with OQSPROVIDER_SEED={}:\n{}",
        failures.len(),
        chosen.len(),
        seed(),
        failures.join("\n")
    );
}

/// Waits for all that threads do. A scope does not wait for what libcrypto does when a thread ends, and should that meet the
/// end of the process, both free the same memory.
pub fn join(threads: Vec<ScopedJoinHandle<()>>) {
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// What a panic says.
pub fn message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(s) => *s,
        Err(panic) => panic.downcast::<&str>().map_or("a panic".into(), |s| s.to_string()),
    }
}

/// Bits of a text of that many bytes to change: some spread over it, and all of its last byte, where padding may be.
pub fn some_bits(bytes: usize) -> Vec<usize> {
    let bits = 8 * bytes;
    let mut chosen: Vec<usize> = (0..8).map(|i| i * (bits / 8) + i * 3 % 8).filter(|b| *b < bits).collect();
    chosen.extend(bits.saturating_sub(8)..bits);
    chosen.dedup();
    chosen
}

pub fn flipped(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut v = bytes.to_vec();
    v[bit / 8] ^= 1 << (bit % 8);
    v
}

/// The halves of what begins with the length of the first in four bytes.
pub fn halves(bytes: &[u8]) -> (&[u8], &[u8]) {
    let len = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
    bytes[4..].split_at(len)
}

pub fn joined(classical: &[u8], post_quantum: &[u8]) -> Vec<u8> {
    [&(classical.len() as u32).to_be_bytes(), classical, post_quantum].concat()
}
