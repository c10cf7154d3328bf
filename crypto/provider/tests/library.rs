//! The module in a program: library contexts, threads, fork, unloading, fibres; and what it exports.

mod common;
#[path = "common/libcrypto.rs"]
mod libcrypto;

use common::{module, Dir};
use libcrypto::{fibre, Context, Key};
use oqsprovider::{
    algorithm::{Algorithm, ALGORITHMS},
    der,
    openssl::abi::{
        select::{KEYPAIR, PRIVATE_KEY, PUBLIC_KEY},
        Param,
    },
};
use std::{
    collections::HashSet,
    env, fs,
    io::{Read, Write},
    os::fd::FromRawFd,
    process::Command,
    sync::{Barrier, Mutex},
    thread,
};

fn algorithm(name: &str) -> &'static Algorithm {
    ALGORITHMS.iter().find(|a| a.name == name).unwrap_or_else(|| panic!("no algorithm {name}"))
}

/// One of each family.
fn families() -> impl Iterator<Item = &'static Algorithm> {
    [
        "p256_frodo640aes",
        "bikel1",
        "x25519_mlkem512",
        "ntru_plus_kem768",
        "x448_smaug_t3",
        "p256_mldsa44",
        "falcon512",
        "sphincssha2128fsimple",
        "p256_mayo1",
        "CROSSrsdp128fast",
        "OV_Ip_pkc",
        "haetae2",
        "p256_aimer128f",
    ]
    .into_iter()
    .map(algorithm)
}

fn is_slow(a: &Algorithm) -> bool {
    a.name.contains("ssimple") || a.name.starts_with("rsa3072")
}

/// Runs something on eight threads, and waits until libcrypto has tidied up after them: a scope does not wait for that, and
/// should it meet the end of the process, both free the same memory.
fn on_eight_threads(work: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..8).map(|t| scope.spawn(move || work(t))).collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

/// Runs a test again in a process where no other runs.
fn alone(name: &str, test: impl FnOnce()) {
    const VARIABLE: &str = "OQSPROVIDER_TEST_ALONE";
    if env::var(VARIABLE).is_ok_and(|v| v == name) {
        return test();
    }
    module(); // so that it does not build there
    let out = Command::new(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, name)
        .env("OQSPROVIDER_MODULE", module())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("1 passed"), "{}: {text}{error}", out.status);
    print!("{text}");
}

#[test]
fn it_exports_its_entry_point_only() {
    let elf = fs::read(module()).unwrap();
    let u16_at = |at: usize| u16::from_le_bytes(elf[at..at + 2].try_into().unwrap()) as usize;
    let u32_at = |at: usize| u32::from_le_bytes(elf[at..at + 4].try_into().unwrap()) as usize;
    let u64_at = |at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().unwrap()) as usize;
    assert_eq!(&elf[..5], b"\x7fELF\x02");
    let section = |i: usize| u64_at(0x28) + i * u16_at(0x3a);
    let dynsym = (0..u16_at(0x3c)).map(section).find(|s| u32_at(s + 4) == 11).expect("a section of dynamic symbols");
    let strings = u64_at(section(u32_at(dynsym + 0x28)) + 0x18);
    let (start, size) = (u64_at(dynsym + 0x18), u64_at(dynsym + 0x20));
    let name = |symbol: usize| {
        let text = &elf[strings + u32_at(symbol)..];
        String::from_utf8_lossy(&text[..text.iter().position(|b| *b == 0).unwrap()]).into_owned()
    };
    let symbols = (start..start + size).step_by(24);
    let defined: Vec<String> = symbols.filter(|s| u16_at(s + 6) != 0).map(name).collect();
    assert_eq!(defined, ["OSSL_provider_init"]);
}

#[test]
fn many_threads_use_several_library_contexts() {
    let dir = Dir::new();
    let contexts = [(); 3].map(|()| Context::new(dir.path()));
    let shared: Vec<(&Algorithm, Key)> = families().map(|a| (a, contexts[0].generate(a).unwrap())).collect();
    let shares = Mutex::new(HashSet::new());
    on_eight_threads(|t| {
        let quick: Vec<_> = ALGORITHMS.iter().filter(|a| !is_slow(a)).collect();
        // Each thread has its own part, and begins at its own place of the shared one.
        for a in quick.iter().skip(t).step_by(8) {
            let key = contexts[t % 3].generate(a).unwrap();
            key.work(a).unwrap_or_else(|e| panic!("{}: {e}", a.name));
            if !a.is_signature() {
                assert!(shares.lock().unwrap().insert(key.share()), "{}: a key twice", a.name);
            }
        }
        for i in 0..shared.len() {
            let (a, key) = &shared[(i + t) % shared.len()];
            key.work(a).unwrap_or_else(|e| panic!("{}: {e}", a.name));
        }
    });
}

/// Object identifiers are the process's: the first contexts all want to make them known.
#[test]
fn contexts_are_made_and_unmade_at_once() {
    alone("contexts_are_made_and_unmade_at_once", || {
        let dir = Dir::new();
        let start = Barrier::new(8);
        on_eight_threads(|t| {
            let a = families().nth(t).unwrap();
            start.wait();
            for _ in 0..10 {
                let context = Context::new(dir.path());
                context.generate(a).unwrap().work(a).unwrap();
            }
        });
    });
}

#[test]
fn a_key_of_one_context_works_in_another() {
    let dir = Dir::new();
    let (one, other) = (Context::new(dir.path()), Context::new(dir.path()));
    for a in families().filter(|a| a.oid.is_some()) {
        let key = one.generate(a).unwrap();
        let copy = other.decode(&key.private_der(), true).unwrap();
        assert_eq!(copy.public_der(), key.public_der());
        drop(key);
        copy.work(a).unwrap();
    }
}

#[test]
fn a_child_process_works_with_randomness_of_its_own() {
    alone("a_child_process_works_with_randomness_of_its_own", || {
        let dir = Dir::new();
        let context = Context::new(dir.path());
        let a = algorithm("p256_smaug_t1");
        let key = context.generate(a).unwrap(); // the generator is in use
        let mut shares = vec![key.share()];
        for _ in 0..3 {
            let mut ends = [0; 2];
            // SAFETY: no other thread of this process has a lock that the child needs.
            let child = unsafe {
                assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
                libc::fork()
            };
            if child == 0 {
                let mut out = unsafe { fs::File::from_raw_fd(ends[1]) };
                let worked = families().all(|a| context.generate(a).is_ok_and(|k| k.work(a).is_ok()));
                let worked = worked && key.work(a).is_ok();
                let _ = out.write_all(&context.generate(a).unwrap().share());
                // SAFETY: no more is done here, not even by handlers of exit.
                unsafe { libc::_exit(if worked { 0 } else { 1 }) };
            }
            // SAFETY: both are ours.
            let mut input = unsafe {
                libc::close(ends[1]);
                fs::File::from_raw_fd(ends[0])
            };
            let mut share = vec![];
            input.read_to_end(&mut share).unwrap();
            let mut status = 0;
            // SAFETY: it is our child.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(status, 0, "the child failed");
            shares.push(share);
            shares.push(context.generate(a).unwrap().share());
        }
        let different: HashSet<_> = shares.iter().collect();
        assert_eq!(different.len(), shares.len(), "two processes made one key");
    });
}

/// Resident memory in bytes, without what is in files, which the kernel takes and gives back, and the number of mappings.
fn memory() -> (usize, usize) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let anonymous = status.lines().find_map(|l| l.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"));
    let kilobytes: usize = anonymous.expect("RssAnon").parse().unwrap();
    (kilobytes * 1024, fs::read_to_string("/proc/self/maps").unwrap().lines().count())
}

fn use_once(dir: &Dir) -> Context {
    let context = Context::new(dir.path());
    for name in ["p256_smaug_t1", "haetae2", "falcon512", "bikel1"] {
        context.generate(algorithm(name)).unwrap().work(algorithm(name)).unwrap();
    }
    context
}

/// What a hundred times of something add to memory and mappings, after some to warm up.
fn growth(mut f: impl FnMut()) -> (isize, isize) {
    (0..20).for_each(|_| f());
    let before = memory();
    (0..100).for_each(|_| f());
    let after = memory();
    (after.0 as isize - before.0 as isize, after.1 as isize - before.1 as isize)
}

#[test]
fn unloading_gives_everything_back() {
    alone("unloading_gives_everything_back", || {
        let dir = Dir::new();
        let (bytes, mappings) = growth(|| drop(use_once(&dir)));
        println!("100 times loaded and unloaded: {bytes} bytes, {mappings} mappings more");
        assert!(bytes < 300_000 && mappings <= 2, "{bytes} bytes, {mappings} mappings");
    });
}

/// As libssl does when it only makes its tables.
#[test]
fn unloading_after_a_look_gives_everything_back() {
    alone("unloading_after_a_look_gives_everything_back", || {
        let dir = Dir::new();
        let (bytes, mappings) = growth(|| {
            let (groups, schemes) = Context::new(dir.path()).capabilities();
            assert!(groups > 40 && schemes > 80);
        });
        println!("100 times loaded, looked at and unloaded: {bytes} bytes, {mappings} mappings more");
        assert!(bytes < 300_000 && mappings <= 2, "{bytes} bytes, {mappings} mappings");
    });
}

/// When a thread ends, so does what the module keeps for it.
#[test]
fn unloading_in_a_thread_gives_everything_back() {
    alone("unloading_in_a_thread_gives_everything_back", || {
        let dir = Dir::new();
        let (bytes, mappings) = growth(|| thread::scope(|scope| scope.spawn(|| drop(use_once(&dir))).join().unwrap()));
        println!("100 times loaded and unloaded in a thread: {bytes} bytes, {mappings} mappings more");
        assert!(bytes < 300_000 && mappings <= 2, "{bytes} bytes, {mappings} mappings");
    });
}

#[test]
fn a_context_that_is_not_unloaded_is_seen_to_stay() {
    alone("a_context_that_is_not_unloaded_is_seen_to_stay", || {
        let dir = Dir::new();
        let (bytes, _) = growth(|| use_once(&dir).forget());
        println!("100 times loaded and not unloaded: {bytes} bytes more");
        assert!(bytes > 10_000_000, "{bytes} bytes: the tests above would see nothing");
    });
}

#[test]
fn keys_and_operations_leave_nothing() {
    alone("keys_and_operations_leave_nothing", || {
        let dir = Dir::new();
        let context = Context::new(dir.path());
        let (bytes, mappings) = growth(|| {
            for a in families() {
                let key = context.generate(a).unwrap();
                key.work(a).unwrap();
                if a.oid.is_some() {
                    context.decode(&key.private_der(), true).unwrap();
                    context.decode(&key.public_der(), false).unwrap();
                    assert!(context.decode(&key.private_der()[..100], true).is_err());
                }
            }
        });
        println!("100 times each family: {bytes} bytes, {mappings} mappings more");
        assert!(bytes < 500_000 && mappings <= 2, "{bytes} bytes, {mappings} mappings");
    });
}

#[test]
fn a_key_that_is_none_is_refused_with_the_reason() {
    let dir = Dir::new();
    let context = Context::new(dir.path());
    for a in families().filter(|a| a.oid.is_some()) {
        let identifier = der::algorithm_identifier(a.oid.unwrap()).unwrap();
        let key = context.generate(a).unwrap();
        let (private, public) = (key.private_der(), key.public_der());
        let refused = |der: &[u8], private: bool, reason: &str| {
            let error = context.decode(der, private).err().expect("an error");
            assert!(error.contains(&format!("{reason}: ")) && error.contains(a.name), "{}: {error}", a.name);
        };
        let bytes = der::parse_private_key_info(&private, &identifier).unwrap();
        refused(&der::private_key_info(&identifier, &bytes[..bytes.len() - 1]), true, "invalid length");
        refused(&der::private_key_info(&identifier, &[bytes, &[0]].concat()), true, "invalid length");
        let bytes = der::parse_subject_public_key_info(&public, &identifier).unwrap();
        refused(&der::subject_public_key_info(&identifier, &bytes[..bytes.len() - 1]), false, "invalid length");
        if a.classical.is_some() {
            refused(&der::private_key_info(&identifier, &[0xff; 9]), true, "invalid encoding");
        }
    }
}

#[test]
fn an_encrypted_key_is_never_written_without_a_cipher() {
    let dir = Dir::new();
    let context = Context::new(dir.path());
    for a in families().filter(|a| a.oid.is_some()) {
        let key = context.generate(a).unwrap();
        assert_eq!(key.encode(PRIVATE_KEY, Some(c"PrivateKeyInfo"), &[]).unwrap(), key.private_der());
        let error = key.encode(PRIVATE_KEY, Some(c"EncryptedPrivateKeyInfo"), &[]).unwrap_err();
        assert!(error.contains("without a cipher") && error.contains(a.name), "{error}");
    }
}

/// As by OpenSSL's own encoders and decoders: a private key has its public one with it, not the other way round.
#[test]
fn who_asks_for_a_pair_does_not_get_the_public_key_alone() {
    let dir = Dir::new();
    let context = Context::new(dir.path());
    let names = families().filter(|a| a.oid.is_some()).map(|a| a.name);
    for name in names.chain(["ML-DSA-44"]) {
        let key = context.generate_by_name(name).unwrap();
        let (private, public) = (key.private_der(), key.public_der());
        for (selection, want) in [(PRIVATE_KEY, &private), (KEYPAIR, &private), (PUBLIC_KEY, &public)] {
            assert!(key.encode(selection, None, &[]).unwrap() == *want, "{name}: {selection}");
        }
        for selection in [0, PUBLIC_KEY] {
            assert_eq!(context.decode_selected(&public, selection).unwrap().public_der(), public, "{name}");
        }
        for selection in [0, PRIVATE_KEY, KEYPAIR] {
            assert!(context.decode_selected(&private, selection).unwrap().private_der() == private, "{name}");
        }
        assert!(context.decode_selected(&public, KEYPAIR).is_err(), "{name}: there is no private key");
    }
}

/// Or a key that was to be encrypted would be in plain in a file.
#[test]
fn a_cipher_is_used_or_refused_whatever_its_type() {
    let dir = Dir::new();
    let context = Context::new(dir.path());
    let cipher = c"AES-256-CBC";
    let pointer = cipher.as_ptr();
    for name in ["falcon512", "ML-DSA-44"] {
        let key = context.generate_by_name(name).unwrap();
        let encoded = |param: Param| key.encode(PRIVATE_KEY, Some(c"PrivateKeyInfo"), &[param, Param::END]);
        let by_pointer = Param {
            data: (&raw const pointer).cast_mut().cast(),
            data_size: cipher.count_bytes(),
            ..Param::string_pointer_named(c"cipher")
        };
        for param in [Param::string(c"cipher", cipher), by_pointer] {
            let sealed = encoded(param).unwrap();
            assert!(sealed.len() > key.private_der().len(), "{name}");
            let pkcs5 = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0d]; // PBES2
            assert!(sealed[..40].windows(pkcs5.len()).any(|w| w == pkcs5), "{name}");
        }
        assert!(encoded(Param::octets(c"cipher", cipher.to_bytes())).is_err(), "{name}");
        assert_eq!(encoded(Param::string_named(c"cipher")).unwrap(), key.private_der(), "{name}: no cipher");
    }
}

#[test]
fn a_buffer_that_is_too_small_is_refused_with_the_size() {
    let dir = Dir::new();
    let context = Context::new(dir.path());
    for a in families() {
        let key = context.generate(a).unwrap();
        let mut small = [0; 8];
        let error = if a.is_signature() {
            key.sign(&mut small).unwrap_err()
        } else {
            let (mut ciphertext, mut secret) = (vec![0; a.output_size()], vec![0; a.secret_size()]);
            key.encapsulate(&mut ciphertext, &mut secret).unwrap();
            assert!(key.encapsulate(&mut small, &mut secret).is_err());
            assert!(key.encapsulate(&mut ciphertext, &mut small).is_err());
            key.decapsulate(&ciphertext, &mut small).unwrap_err()
        };
        assert!(error.contains("invalid length: the buffer has 8 bytes"), "{}: {error}", a.name);
    }
}

#[test]
fn every_algorithm_works_on_the_stack_of_a_fibre() {
    alone("every_algorithm_works_on_the_stack_of_a_fibre", || {
        let dir = Dir::new();
        let context: &'static Context = Box::leak(Box::new(Context::new(dir.path())));
        fibre::prepare();
        let mut most = vec![];
        for a in &ALGORITHMS {
            let mut job = fibre::Job::new(move || {
                let result = context.generate(a).and_then(|key| key.work(a));
                result.map_err(|e| eprintln!("{}: {e}", a.name)).is_ok().into()
            });
            assert_eq!(job.run(), Some(1), "{}", a.name);
            let (size, touched) = fibre::touched()[0];
            assert_eq!(size, 32 << 10);
            most.push((touched, a.name));
            fibre::forget();
        }
        fibre::finish();
        most.sort();
        println!("Of a fibre's 32768 bytes, most by:");
        for (touched, name) in most.iter().rev().take(10) {
            println!("{touched:6} {name}");
        }
        assert_eq!(fibre::touched().len(), 1);
        assert!(most.last().unwrap().0 < 24 << 10, "less than a quarter is left");
    });
}

#[test]
fn fibres_take_turns() {
    alone("fibres_take_turns", || {
        let dir = Dir::new();
        let context: &'static Context = Box::leak(Box::new(Context::new(dir.path())));
        fibre::prepare();
        let job = |a: &'static Algorithm| {
            fibre::Job::new(move || {
                let key = context.generate(a);
                fibre::pause();
                let key = key.map_err(|e| eprintln!("{}: {e}", a.name));
                let worked = key.as_ref().is_ok_and(|k| k.work(a).is_ok());
                fibre::pause();
                (worked && key.is_ok_and(|k| k.work(a).is_ok())).into()
            })
        };
        let (mut one, mut other) = (job(algorithm("p256_haetae2")), job(algorithm("x25519_frodo640aes")));
        for _ in 0..2 {
            assert_eq!((one.run(), other.run()), (None, None));
        }
        assert_eq!((other.run(), one.run()), (Some(1), Some(1)));
        drop((one, other));
        fibre::finish();
    });
}

const FAULT: &str = "OQSPROVIDER_TEST_FAULT";

#[test]
fn each_family_once() {
    let dir = Dir::new();
    let context = Context::new(dir.path());
    for a in families() {
        let key = context.generate(a).unwrap();
        key.work(a).unwrap();
        if a.oid.is_some() {
            let private = key.private_der();
            context.decode(&private, true).unwrap().work(a).unwrap();
            context.decode(&key.public_der(), false).unwrap();
            assert!(context.decode(&private[..private.len() - 1], true).is_err());
            let identifier = der::algorithm_identifier(a.oid.unwrap()).unwrap();
            assert!(context.decode(&der::private_key_info(&identifier, &private[100..]), true).is_err());
        }
        if env::var_os(FAULT).is_some() {
            std::mem::forget(key);
        }
    }
}

/// The test above in another program, which watches or emulates it.
fn each_family_in(program: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let out = Command::new(program[0])
        .args(&program[1..])
        .arg(env::current_exe().unwrap())
        .args(["each_family_once", "--exact", "--test-threads=1"])
        .env("OQSPROVIDER_MODULE", module())
        .envs(variables.iter().copied())
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", program[0]));
    let text = [out.stdout, out.stderr].concat();
    (out.status.code(), String::from_utf8_lossy(&text).into_owned())
}

const VALGRIND: [&str; 7] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=99",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
    "--num-callers=30",
];

#[test]
fn valgrind_finds_nothing() {
    let (code, text) = each_family_in(&VALGRIND, &[]);
    assert!(code == Some(0) && !text.contains("definitely lost") && !text.contains("Invalid"), "{text}");
}

#[test]
fn valgrind_would_find_a_key_that_is_not_freed() {
    let (code, text) = each_family_in(&VALGRIND, &[(FAULT, "1")]);
    assert!(code == Some(99) && text.contains("definitely lost"), "{text}");
}

/// src/tests/without_avx.rs has all primitives.
#[cfg(target_arch = "x86_64")]
#[test]
fn it_works_on_a_processor_without_avx() {
    let (code, text) = each_family_in(&["qemu-x86_64", "-cpu", "Nehalem"], &[]);
    assert!(code == Some(0) && text.contains("1 passed"), "{text}");
}
