//! The module over real tokens, with one list of tests for softhsm2 and kryoptic: signatures that OpenSSL verifies, a wrong
//! PIN, and members that go and come back, counted.
//!
//! Without softhsm2 and kryoptic they fail: they are ignored unless asked for. `images cargo -- test` brings both.

mod common;

use common::{
    fake::until,
    run,
    signing::{pss, verifies, How},
    token::{
        generate, Kind,
        Software::{self, Kryoptic, Softhsm},
        Tokens,
    },
    Module,
};
use cryptoki_sys::*;
use qtls_pkcs11::{
    config::{Config, Place},
    library::Modules,
    member::{Member, State, CHECK_INTERVAL},
    token::{Algorithm, KeyName},
};
use std::{fs, os::fd::AsRawFd, path::PathBuf, thread, time::Duration};

/// Makes every kind of signature with every key of a token, and has OpenSSL verify each.
fn every_key_signs(software: Software) {
    let mut tokens = Tokens::new(software);
    tokens.token("a", software.keys());
    let labels: Vec<_> = software.keys().iter().map(|k| k.0).collect();
    let module = Module::started(&tokens.configuration(&["a"], &labels, "timeout = 60000ms\n"));
    let made = signatures(&tokens, &module);
    println!("{software:?}: {made} signatures, all of them verified");
}

/// How many signatures were made and verified, of every kind and with every key.
fn signatures(tokens: &Tokens, module: &Module) -> usize {
    let mut made = 0;
    for (label, kind) in tokens.software.keys() {
        let (how, data) = match kind {
            Kind::Rsa(_) => (vec![How::Plain(CKM_RSA_PKCS), pss()], vec![0x5a; 32]),
            Kind::Ec(_) => (vec![How::Plain(CKM_ECDSA)], vec![0x5a; 32]),
            Kind::MlDsa(_) => {
                let how = vec![How::Plain(CKM_ML_DSA), How::MlDsa(vec![]), How::MlDsa(b"a context".to_vec())];
                (how, b"a whole message, as long as it likes to be".repeat(100))
            }
        };
        for how in how {
            for round in 0..3u8 {
                let data = [&data[..data.len() - 1], &[round]].concat();
                let signature = module.sign(label, &how, &data).unwrap_or_else(|code| panic!("{label}: {code:#x}"));
                assert!(verifies(&tokens.public_key(label), &how, &data, &signature), "{label}");
                let other = [&data[..data.len() - 1], &[round + 1]].concat();
                assert!(!verifies(&tokens.public_key(label), &how, &other, &signature), "{label}: of other data");
                made += 1;
            }
        }
    }
    made
}

/// A configuration in which keys may be made in the token a.
fn generating(tokens: &Tokens) -> PathBuf {
    let path = tokens.configuration(&["a"], &[], "timeout = 60000ms\n");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("[slot]\n", "[slot]\ngenerate = true\n", 1)).unwrap();
    path
}

/// Keys that a program has made by way of the module are in the token, and nothing gets them out. They sign at once.
fn keys_are_made_that_never_leave(software: Software) {
    let mut tokens = Tokens::new(software);
    tokens.token("a", &[]);
    let path = generating(&tokens);
    let module = Module::started(&path);
    let session = module.session_with(CKF_SERIAL_SESSION | CKF_RW_SESSION);
    for (label, kind) in software.keys() {
        let make = || generate(module.table, session, label, *kind);
        let public = make().unwrap_or_else(|code| panic!("{label}: {code:#x}"));
        tokens.publish(label, &public);
        assert_eq!(make(), Err(CKR_ATTRIBUTE_VALUE_INVALID), "{label}: there is one");
    }
    let made = signatures(&tokens, &module);
    drop(module);
    for (label, _) in software.keys() {
        let types =
            [CKA_TOKEN, CKA_PRIVATE, CKA_SENSITIVE, CKA_NEVER_EXTRACTABLE, CKA_LOCAL, CKA_SIGN, CKA_EXTRACTABLE];
        let said = tokens.private_key("a", label, &types);
        assert_eq!(said, [true, true, true, true, true, true, false], "{label}: what the token itself says");
    }
    // Another process knows them when its file does, and only then.
    let labels: Vec<_> = software.keys().iter().map(|k| k.0).collect();
    let module = Module::started(&path);
    assert_eq!(module.find(module.session(), CKO_PRIVATE_KEY, labels[0]), []);
    drop(module);
    let module = Module::started(&tokens.configuration(&["a"], &labels, "timeout = 60000ms\n"));
    let again = signatures(&tokens, &module);
    println!("{software:?}: {} keys made, {} signatures, all of them verified", labels.len(), made + again);
}

/// A member whose PIN is wrong is used as soon as its file has the right one.
fn a_wrong_pin_is_corrected(software: Software) {
    let mut tokens = Tokens::new(software);
    tokens.token("a", &software.keys()[1..2]);
    fs::write(tokens.dir.join("pin"), "9999").unwrap();
    let module = Module::started(&tokens.configuration(&["a"], &["p256"], "timeout = 60000ms\nretry = 10ms\n"));
    let sign = || module.sign("p256", &How::Plain(CKM_ECDSA), &[1; 32]);
    // More often than any token has patience for.
    for _ in 0..50 {
        assert_eq!(sign(), Err(CKR_DEVICE_ERROR));
    }
    // As a Secret's files change: by another file in its place.
    fs::write(tokens.dir.join("new"), "1234").unwrap();
    fs::rename(tokens.dir.join("new"), tokens.dir.join("pin")).unwrap();
    until("the right PIN is tried", || sign().is_ok());
}

/// One member's token was never made: the other makes all signatures.
fn a_token_that_is_not_there_costs_nothing(software: Software) {
    let mut tokens = Tokens::new(software);
    tokens.token("a", &software.keys()[1..2]);
    let settings = "timeout = 60000ms\nretry = 10ms\n";
    let module = Module::started(&tokens.configuration(&["none", "a"], &["p256"], settings));
    for _ in 0..50 {
        assert!(module.sign("p256", &How::Plain(CKM_ECDSA), &[1; 32]).is_ok());
    }
}

macro_rules! list {
    ($($test:ident),*) => {
        mod softhsm2 {
            $(#[test] #[ignore = "needs softhsm2"] fn $test() { super::$test(super::Softhsm) })*
        }
        mod kryoptic {
            $(#[test] #[ignore = "needs kryoptic"] fn $test() { super::$test(super::Kryoptic) })*
        }
    };
}
list!(
    every_key_signs,
    keys_are_made_that_never_leave,
    a_wrong_pin_is_corrected,
    a_token_that_is_not_there_costs_nothing
);

/// Another process has found a label free, as this one does, and makes a key under it.
#[test]
#[ignore = "needs softhsm2"]
fn two_processes_that_ask_for_one_label_at_a_time_get_one_key() {
    let mut tokens = Tokens::new(Softhsm);
    tokens.token("a", &[]);
    let module = Module::started(&generating(&tokens));
    let session = module.session_with(CKF_SERIAL_SESSION | CKF_RW_SESSION);
    let (table, (label, kind)) = (module.table, Softhsm.keys()[1]);
    let library = fs::File::open(tokens.module("a")).unwrap();
    // SAFETY: the descriptor is open.
    let lock = |how| assert_eq!(unsafe { libc::flock(library.as_raw_fd(), how) }, 0);
    lock(libc::LOCK_EX);
    thread::scope(|scope| {
        let asked = scope.spawn(|| generate(table, session, label, kind));
        thread::sleep(Duration::from_secs(1)); // it could be done by now
        tokens.make("a", label, kind);
        lock(libc::LOCK_UN);
        assert_eq!(asked.join().unwrap(), Err(CKR_ATTRIBUTE_VALUE_INVALID));
    });
    let (other, kind) = Softhsm.keys()[2];
    generate(table, session, other, kind).expect("the control: another label");
}

/// It is making one of its own that takes long, or hangs. Whoever has given up must not be made a key, least of all without the
/// lock.
#[test]
#[ignore = "needs softhsm2"]
fn a_process_that_keeps_others_from_making_keys_is_waited_for_some_time_and_then_none_is_made() {
    let mut tokens = Tokens::new(Softhsm);
    tokens.token("a", &[]);
    let config = Config::parse(&fs::read_to_string(generating(&tokens)).unwrap(), &|path| fs::read(path)).unwrap();
    let settings = config.members[0].clone();
    let Place::Module(place) = &settings.place else { panic!("{settings:?}") };
    let library = fs::File::open(&place.module).unwrap();
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::flock(library.as_raw_fd(), libc::LOCK_EX) }, 0);

    let mut modules = Modules::new(|| {});
    let mut token = modules.token(place, settings.timeout);
    token.turn = Duration::from_millis(200);
    let member = Member::start(settings.clone(), Box::new(token), CHECK_INTERVAL, |line| eprintln!("{line}"));
    until("it is up", || member.state() == State::Up);
    let (algorithm, minute) = (Algorithm::by_name("ECDSA-P256").unwrap(), Duration::from_secs(60));
    let name = KeyName { label: "new".into(), id: vec![] };
    let has = |name: KeyName| member.call(minute, move |session| session.public(&name)).unwrap().is_some();
    let refused = member.generate(algorithm, &name, minute).map_err(|e| e.failure);
    assert_eq!(refused.unwrap_err().code, CKR_SESSION_COUNT);
    assert!(!has(name.clone()) && member.state() == State::Up);

    drop(library);
    member.generate(algorithm, &name, minute).map_err(|e| e.failure).expect("the control: with the lock");
    assert!(has(name));
    assert!(member.stop(minute));
    modules.finalise();
}

/// The folder in which softhsm2 keeps a token.
fn home(tokens: &Tokens, before: &[PathBuf]) -> PathBuf {
    let mut all = fs::read_dir(tokens.dir.join("tokens")).unwrap().map(|e| e.unwrap().path());
    all.find(|p| !before.contains(p)).expect("a token's folder")
}

/// As pulling a USB token does. Each token has a key of its own besides the one that both have: with it each says whether
/// it is there.
#[test]
#[ignore = "needs softhsm2"]
fn tokens_are_taken_away_in_turn_and_no_signature_fails() {
    let mut tokens = Tokens::new(Softhsm);
    let private = tokens.dir.join("both.pem");
    let (private, public) = (private.to_str().unwrap(), tokens.public_key("both"));
    run("openssl", &["genpkey", "-algorithm", "RSA", "-out", private]);
    run("openssl", &["pkey", "-in", private, "-pubout", "-out", public.to_str().unwrap()]);
    let p256 = Softhsm.keys()[1].1;
    let mut homes = vec![];
    for (member, own) in [("a", "only-a"), ("b", "only-b")] {
        tokens.token(member, &[(own, p256)]);
        homes.push(home(&tokens, &homes));
        run(
            "softhsm2-util",
            &["--import", private, "--token", member, "--label", "both", "--id", "01", "--pin", "1234"],
        );
    }
    let settings = "timeout = 60000ms\nretry = 10ms\n";
    let module = Module::started(&tokens.configuration(&["a", "b"], &["both", "only-a", "only-b"], settings));
    let is_there = |own: &str| module.sign(own, &How::Plain(CKM_ECDSA), &[1; 32]).is_ok();
    let mut made = 0;
    let mut sign = |times: u8| {
        for _ in 0..times {
            let data = [made as u8; 32];
            let signature = module.sign("both", &How::Plain(CKM_RSA_PKCS), &data).expect("a signature failed");
            if made % 50 == 0 {
                assert!(verifies(&public, &How::Plain(CKM_RSA_PKCS), &data, &signature));
            }
            made += 1;
        }
    };
    let away = tokens.dir.join("away");
    for round in 0..6 {
        let (own, home) = [("only-a", &homes[0]), ("only-b", &homes[1])][round % 2];
        until("both are there", || is_there("only-a") && is_there("only-b"));
        sign(20);
        fs::rename(home, &away).unwrap();
        sign(20);
        until("it is missed", || !is_there(own));
        sign(20);
        fs::rename(&away, home).unwrap();
        sign(20);
        until("it is back", || is_there(own));
    }
    println!("{made} signatures, 0 failed, 6 times a token taken away");
    assert_eq!(made, 480);
    // The control: without either there is nobody left.
    homes.iter().for_each(|home| fs::remove_dir_all(home).unwrap());
    until("both are missed", || module.sign("both", &How::Plain(CKM_RSA_PKCS), &[1; 32]).is_err());
}
