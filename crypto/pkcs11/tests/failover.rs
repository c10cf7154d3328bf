//! The whole library over tokens that do as they are told: who makes each signature, how often a PIN is tried, what becomes
//! of calls that hang. The tokens count; and any use of them against PKCS#11's rules fails the test.

mod common;

use common::{
    call,
    fake::{until, Slot, State, IMPATIENT, PATIENT},
    signing::{pss, sign, verifies, How},
    Module,
};
use cryptoki_sys::*;
use qtls_pkcs11::verdict::{name, table, Verdict};
use std::{
    env, fs,
    io::{self, Write},
    process::{exit, Command, Stdio},
    ptr::null_mut,
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

const ECDSA: How = How::Plain(CKM_ECDSA);
const DIGEST: [u8; 32] = [0x5a; 32];

fn one(module: &Module) -> Result<(), CK_RV> {
    module.sign("p256", &ECDSA, &DIGEST).map(drop)
}

/// Signs until a member has made another signature: it may be down for a while yet. None may fail.
fn until_it_signs(module: &Module, member: &State) {
    let before = member.signatures();
    until("the member signs again", || {
        assert_eq!(one(module), Ok(()));
        member.signatures() > before
    });
}

#[test]
fn every_mechanism_makes_what_openssl_verifies() {
    let slot = Slot::new("ordered", &[PATIENT]);
    let module = slot.start();
    let rsa_block = [&[0, 1][..], &[0xff; 221], &[0], &DIGEST].concat();
    let cases: [(&str, How, &[u8]); 10] = [
        ("rsa", How::Plain(CKM_RSA_PKCS), &DIGEST),
        ("rsa", How::Plain(CKM_RSA_X_509), &rsa_block),
        ("rsa", pss(), &DIGEST),
        ("p256", ECDSA, &DIGEST),
        // TLS 1.2 binds no hash to a curve, and this token refuses what is longer than that.
        ("p256", ECDSA, &[0x5a; 48]),
        ("p384", ECDSA, &[0x5a; 48]),
        ("p521", ECDSA, &[0x5a; 64]),
        ("mldsa65", How::Plain(CKM_ML_DSA), b"a message"),
        ("mldsa65", How::MlDsa(vec![]), b"a message"),
        ("mldsa65", How::MlDsa(b"a context".to_vec()), b"a message"),
    ];
    for (i, (key, how, data)) in cases.iter().enumerate() {
        let signature = module.sign(key, how, data).unwrap_or_else(|code| panic!("{key}, case {i}: {}", name(code)));
        if matches!(how, How::Plain(CKM_RSA_X_509)) {
            continue; // OpenSSL verifies no RSA without padding; the PKCS #1 padding above is the other case's
        }
        let public = slot.public_key(key);
        assert!(verifies(&public, how, data, &signature), "{key}, case {i}");
        let mut damaged = signature.clone();
        *damaged.last_mut().unwrap() ^= 1;
        assert!(!verifies(&public, how, data, &damaged), "{key}, case {i}: one bit is another");
    }
    let digest_of_pkcs1 = module.sign("rsa", &How::Plain(CKM_RSA_PKCS), &DIGEST).unwrap();
    let padded_by_hand = module.sign("rsa", &How::Plain(CKM_RSA_X_509), &rsa_block).unwrap();
    assert_eq!(digest_of_pkcs1, padded_by_hand);
    assert_eq!(slot.signatures(), [cases.len() as u64 + 2]);
}

#[test]
fn a_wrong_pin_is_tried_once_by_all_sessions_until_its_file_changes() {
    let settings = "timeout = 60000ms\nretry = 10ms\nsessions = 8\n";
    let slot = Slot::new("ordered", &[settings]);
    let token = slot.members[0];
    slot.replace("a", "pin", "9999");
    let module = slot.start();
    let attempts = |more: u64| {
        let from = token.open_session.calls.load(SeqCst);
        until("sessions are opened again and again", || {
            assert_eq!(one(&module), Err(CKR_DEVICE_ERROR));
            token.open_session.calls.load(SeqCst) >= from + more
        });
    };
    attempts(40);
    assert_eq!(token.login.calls.load(SeqCst), 1, "eight sessions, and one attempt");

    slot.replace("a", "pin", "8888");
    until("the next one is tried", || token.login.calls.load(SeqCst) > 1);
    attempts(40);
    assert_eq!(token.login.calls.load(SeqCst), 2, "another file, and one attempt");
    assert_eq!(token.refused.load(SeqCst), 2, "the token locks itself at the third");

    slot.replace("a", "pin", "1234\n");
    until("the right one is tried", || one(&module).is_ok());
    assert_eq!(token.refused.load(SeqCst), 0);

    // The token's PIN becomes another while nobody looks, and its sessions are lost: again one attempt.
    token.pin.store(4711, SeqCst);
    token.lose_sessions(CKR_SESSION_HANDLE_INVALID);
    until("its sessions are missed", || one(&module).is_err());
    attempts(40);
    assert_eq!(token.refused.load(SeqCst), 1);
    slot.replace("a", "pin", "4711");
    until("the new one is tried", || one(&module).is_ok());
}

#[test]
fn a_token_that_has_locked_itself_is_tried_again_with_another_pin_alone() {
    let slot = Slot::new("ordered", &[PATIENT]);
    let token = slot.members[0];
    token.refused.store(2, SeqCst); // by others
    slot.replace("a", "pin", "9999");
    let module = slot.start();
    let tried = |logins: u64| {
        until("that PIN is tried", || token.login.calls.load(SeqCst) == logins);
        let from = token.open_session.calls.load(SeqCst);
        until("sessions are opened again and again", || {
            assert_eq!(one(&module), Err(CKR_DEVICE_ERROR));
            token.open_session.calls.load(SeqCst) >= from + 20
        });
        assert_eq!(token.login.calls.load(SeqCst), logins, "and once only");
        assert!(token.refused.load(SeqCst) >= 3, "it is locked");
    };
    tried(1);
    slot.replace("a", "pin", "1234"); // it is locked all the same
    tried(2);
    token.pin.store(4711, SeqCst); // its security officer sets a new one
    token.refused.store(0, SeqCst);
    slot.replace("a", "pin", "4711");
    until("the new one is tried", || one(&module).is_ok());
    assert_eq!(token.refused.load(SeqCst), 0);
}

#[test]
fn without_a_pin_file_no_pin_is_tried() {
    let slot = Slot::new("ordered", &[PATIENT, PATIENT]);
    fs::remove_file(slot.file("a", "pin")).unwrap();
    let module = slot.start();
    until("the member was tried", || {
        assert_eq!(one(&module), Ok(()));
        slot.members[0].open_session.calls.load(SeqCst) >= 5
    });
    assert_eq!(slot.members[0].login.calls.load(SeqCst), 0);
    fs::write(slot.file("a", "pin"), "1234").unwrap();
    until_it_signs(&module, slot.members[0]);
}

#[test]
fn each_code_that_a_token_may_answer_with_has_its_consequence() {
    let slot = Slot::new("ordered", &["timeout = 60000ms\nretry = 10ms\nsessions = 1\n", PATIENT]);
    let (a, b) = (slot.members[0], slot.members[1]);
    let module = slot.start();
    let unknown = [CKR_VENDOR_DEFINED + 1, 12345].map(|code| (code, Verdict::Device));
    let all: Vec<_> = table().iter().map(|row| (row.code, row.verdict)).chain(unknown).collect();
    for (code, verdict) in all {
        for (which, call) in [("C_SignInit", &a.sign_init), ("C_Sign", &a.sign)] {
            until_it_signs(&module, a);
            let what = format!("{which}: {}: {verdict:?}", name(code));
            let before = (a.signatures(), b.signatures());
            call.answer(code, 1);
            let result = one(&module);
            let made = (a.signatures() - before.0, b.signatures() - before.1);
            match verdict {
                Verdict::Request => assert_eq!((result, made), (Err(code), (0, 0)), "{what}"),
                Verdict::Session | Verdict::Handle => assert_eq!((result, made), (Ok(()), (1, 0)), "{what}"),
                _ => assert_eq!((result, made), (Ok(()), (0, 1)), "{what}"),
            }
            // Twice in a row: the same member is asked once more, and then the next one.
            if matches!(verdict, Verdict::Session | Verdict::Handle) {
                call.answer(code, 2);
                assert_eq!((one(&module), b.signatures() - before.1), (Ok(()), 1), "{what}, twice");
            }
        }
    }
}

#[test]
fn whatever_call_fails_no_signature_does() {
    let slot = Slot::new("ordered", &[PATIENT, PATIENT]);
    let a = slot.members[0];
    let module = slot.start();
    let calls = [
        ("C_GetSlotList", &a.get_slot_list),
        ("C_GetTokenInfo", &a.get_token_info),
        ("C_OpenSession", &a.open_session),
        ("C_GetSessionInfo", &a.get_session_info),
        ("C_Login", &a.login),
        ("C_FindObjects", &a.find_objects),
        ("C_SignInit", &a.sign_init),
        ("C_Sign", &a.sign),
        ("C_Initialize", &a.initialize),
    ];
    for (name, call) in calls {
        for code in [CKR_DEVICE_ERROR, CKR_HOST_MEMORY, CKR_SESSION_COUNT, CKR_FUNCTION_FAILED] {
            until_it_signs(&module, a);
            call.answer(code, 20);
            let before = call.calls.load(SeqCst);
            let mut tried = 0;
            until(&format!("{name} is called"), || {
                // All sessions are opened anew, and so all calls are made. The library is initialised anew if none was
                // opened before the last one was closed: not each time.
                if tried % 50 == 0 {
                    a.lose_sessions(CKR_DEVICE_REMOVED);
                }
                tried += 1;
                assert_eq!(one(&module), Ok(()), "{name}: {code:#x}");
                call.calls.load(SeqCst) > before
            });
            call.answer(0, 0);
        }
    }
    until_it_signs(&module, a);
}

#[test]
fn lost_sessions_cost_a_single_member_no_signature() {
    let slot = Slot::new("ordered", &[PATIENT]);
    let token = slot.members[0];
    let module = slot.start();
    for code in [CKR_SESSION_HANDLE_INVALID, CKR_SESSION_CLOSED, CKR_USER_NOT_LOGGED_IN] {
        for _ in 0..10 {
            assert_eq!(one(&module), Ok(()), "{}", name(code));
            token.lose_sessions(code);
            assert_eq!(one(&module), Ok(()), "{}", name(code));
        }
    }
    assert_eq!(token.signatures(), 60);
}

#[test]
fn tokens_are_taken_away_in_turn_and_each_signature_is_made_once() {
    let slot = Slot::new("spread", &[PATIENT, PATIENT, PATIENT]);
    let module = slot.start();
    let (done, made) = (AtomicBool::new(false), AtomicU64::new(0));
    let codes = [CKR_DEVICE_REMOVED, CKR_TOKEN_NOT_PRESENT, CKR_DEVICE_ERROR];
    thread::scope(|scope| {
        for _ in 0..4 {
            let (table, session) = (module.table, module.session());
            let key = module.find(session, CKO_PRIVATE_KEY, "p256")[0];
            let (done, made) = (&done, &made);
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    sign(table, session, key, &ECDSA, &DIGEST).expect("a signature failed");
                    made.fetch_add(1, SeqCst);
                }
            });
        }
        let each_signs = |who: &[&State]| {
            let before: Vec<_> = who.iter().map(|m| m.signatures()).collect();
            until("each of them signs", || who.iter().zip(&before).all(|(m, b)| m.signatures() > b + 5));
        };
        for round in 0..9 {
            each_signs(&slot.members);
            let others: Vec<_> = (0..3).filter(|i| *i != round % 3).map(|i| slot.members[i]).collect();
            slot.members[round % 3].take_away(codes[round / 3]);
            each_signs(&others);
            slot.members[round % 3].put_back();
        }
        each_signs(&slot.members);
        done.store(true, Relaxed);
    });
    let total: u64 = slot.signatures().iter().sum();
    assert_eq!(total, made.load(SeqCst), "signatures that the tokens made, and that arrived");
    println!("{total} signatures, 0 failed, 9 times a token taken away");
}

#[test]
fn a_token_that_is_not_in_the_list_any_more_is_found_again() {
    let slot = Slot::new("ordered", &[PATIENT, PATIENT]);
    let module = slot.start();
    until_it_signs(&module, slot.members[0]);
    slot.members[0].hidden.store(1, SeqCst);
    slot.members[0].lose_sessions(CKR_SESSION_HANDLE_INVALID);
    until_it_signs(&module, slot.members[1]);
    slot.members[0].hidden.store(0, SeqCst);
    until_it_signs(&module, slot.members[0]);
}

/// Without a login a token shows no private key, and that is no error.
#[test]
fn a_login_that_is_lost_without_a_word_costs_no_signature() {
    let slot = Slot::new("ordered", &[PATIENT]);
    let module = slot.start();
    until_it_signs(&module, slot.members[0]);
    let logins = || slot.members[0].login.calls.load(SeqCst);
    // One that was found before, and two that have yet to be.
    let cases: [(&str, How, &[u8]); 3] =
        [("p256", ECDSA, &DIGEST), ("p384", ECDSA, &[0x5a; 48]), ("mldsa65", How::MlDsa(vec![]), b"a message")];
    for (key, how, data) in &cases {
        let before = logins();
        slot.members[0].logouts.fetch_add(1, SeqCst);
        module.sign(key, how, data).unwrap_or_else(|code| panic!("{key}: {}", name(code)));
        assert!(logins() > before, "{key}: somebody has logged in anew");
    }
}

#[test]
fn a_call_that_hangs_costs_no_signature_whichever_it_is() {
    for which in ["C_Initialize", "C_GetTokenInfo", "C_OpenSession", "C_Login", "C_FindObjects", "C_Sign"] {
        let slot = Slot::new("ordered", &[IMPATIENT, PATIENT]);
        let a = slot.members[0];
        let call = match which {
            "C_Initialize" => &a.initialize,
            "C_GetTokenInfo" => &a.get_token_info,
            "C_OpenSession" => &a.open_session,
            "C_Login" => &a.login,
            "C_FindObjects" => &a.find_objects,
            _ => &a.sign,
        };
        call.hang.store(1, SeqCst);
        let module = slot.start();
        until(which, || {
            assert_eq!(one(&module), Ok(()), "{which}");
            call.inside.load(SeqCst) > 0
        });
        for _ in 0..50 {
            assert_eq!(one(&module), Ok(()), "{which}");
        }
        assert_eq!(slot.signatures(), [0, slot.members[1].signatures()], "{which}");
        call.hang.store(0, SeqCst);
        until_it_signs(&module, a);
    }
}

#[test]
fn all_sessions_that_hang_in_mid_work_cost_no_signature() {
    let slot = Slot::new("ordered", &[&format!("{IMPATIENT}sessions = 3\n"), PATIENT]);
    let a = slot.members[0];
    let module = slot.start();
    until_it_signs(&module, a);
    a.sign.hang.store(1, SeqCst);
    until("all three hang", || {
        assert_eq!(one(&module), Ok(()));
        a.sign.inside.load(SeqCst) == 3
    });
    for _ in 0..50 {
        assert_eq!(one(&module), Ok(()));
    }
    a.sign.hang.store(0, SeqCst);
    until_it_signs(&module, a);
}

#[test]
fn as_many_signatures_are_made_at_a_time_as_a_member_has_sessions() {
    let slot = Slot::new("ordered", &["timeout = 60000ms\nretry = 10ms\nsessions = 3\n"]);
    let token = slot.members[0];
    let module = slot.start();
    until_it_signs(&module, token);
    token.sign.hang.store(1, SeqCst);
    thread::scope(|scope| {
        for _ in 0..8 {
            let (table, session) = (module.table, module.session());
            let key = module.find(session, CKO_PRIVATE_KEY, "p256")[0];
            scope.spawn(move || sign(table, session, key, &ECDSA, &DIGEST).expect("a signature failed"));
        }
        until("three are made", || token.sign.inside.load(SeqCst) == 3);
        token.sign.hang.store(0, SeqCst);
    });
    assert_eq!(token.sign.peak.load(SeqCst), 3);
}

#[test]
fn a_token_with_fewer_sessions_than_wanted_serves_with_those() {
    let slot = Slot::new("ordered", &["timeout = 60000ms\nretry = 10ms\nsessions = 8\n", PATIENT]);
    let a = slot.members[0];
    a.most.store(1, SeqCst);
    let module = slot.start();
    until("others are wanted, too", || {
        until_it_signs(&module, a);
        a.open_session.calls.load(SeqCst) >= 8
    });
}

#[test]
fn a_key_that_a_member_lacks_is_used_there_as_soon_as_it_is_there() {
    let slot = Slot::new("ordered", &[PATIENT, PATIENT]);
    let (a, b) = (slot.members[0], slot.members[1]);
    let pem = fs::read_to_string(slot.file("a", "p384.pem")).unwrap();
    fs::remove_file(slot.file("a", "p384.pem")).unwrap();
    let module = slot.start();
    until_it_signs(&module, a);
    let before = b.signatures();
    assert!(module.sign("p384", &ECDSA, &DIGEST).is_ok());
    assert_eq!(b.signatures(), before + 1, "the other has it");
    slot.replace("a", "p384.pem", &pem);
    let before = a.signatures();
    assert!(module.sign("p384", &ECDSA, &DIGEST).is_ok());
    assert_eq!(a.signatures(), before + 1);
}

/// Somebody has replaced it, under its label, by one of another size. What the others sign is no matter of it.
#[test]
fn a_key_that_is_another_ones_at_one_member_ends_no_other_keys_signatures() {
    let slot = Slot::new("ordered", &[PATIENT, PATIENT]);
    let (a, b) = (slot.members[0], slot.members[1]);
    let module = slot.start();
    until_it_signs(&module, a);
    until("all sessions are open", || a.open.load(SeqCst) == 4);
    let (opened, made) = (a.open_session.calls.load(SeqCst), b.signatures());
    slot.replace("a", "p256.pem", &fs::read_to_string(slot.file("a", "p384.pem")).unwrap());
    for more in 1..=3 {
        assert_eq!((one(&module), b.signatures()), (Ok(()), made + more));
        let before = a.signatures();
        assert!(module.sign("p384", &ECDSA, &DIGEST).is_ok());
        assert_eq!(a.signatures(), before + 1, "it is well");
    }
    assert_eq!(a.open_session.calls.load(SeqCst), opened, "and its sessions are as they were");
    slot.replace("b", "p256.pem", &fs::read_to_string(slot.file("b", "p384.pem")).unwrap());
    assert_eq!(one(&module), Err(CKR_KEY_SIZE_RANGE), "neither has the key");
}

/// As with softhsm2. Whoever asks is in the library to open a session, or about to be.
#[test]
fn a_token_that_initialising_alone_finds_again_signs_again_while_all_ask_for_it() {
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let slot = Slot::new("ordered", &["timeout = 60000ms\nretry = 10ms\nsessions = 8\n"]);
    let token = slot.members[0];
    token.missed.store(1, SeqCst);
    token.get_slot_list.micros.store(20_000, SeqCst);
    let module = slot.start();
    let (done, looks) = (AtomicBool::new(false), || token.get_slot_list.calls.load(SeqCst));
    thread::scope(|scope| {
        let _ends = Ends(&done); // a test that fails must not wait for them
        for _ in 0..8 {
            let (table, session, done) = (module.table, module.session(), &done);
            let key = module.find(session, CKO_PRIVATE_KEY, "p256")[0];
            scope.spawn(move || {
                while !done.load(SeqCst) {
                    let _ = sign(table, session, key, &ECDSA, &DIGEST);
                }
            });
        }
        for _ in 0..5 {
            let before = token.signatures();
            until("it signs", || token.signatures() > before + 20);
            token.take_away(CKR_TOKEN_NOT_PRESENT);
            let before = looks();
            until("all look for it", || looks() > before + 50);
            token.put_back();
        }
        let before = token.signatures();
        until("it signs again", || token.signatures() > before);
    });
}

/// It inherits the library as it is, and none of the threads that were in it.
#[test]
fn a_child_process_signs_with_a_library_that_was_initialised_before() {
    let slot = Slot::new("ordered", &[PATIENT]);
    let token = slot.members[0];
    let module = slot.start();
    until_it_signs(&module, token);
    until("all sessions are open", || token.open.load(SeqCst) == 4);
    // Nobody is in the library, also on a machine that stood still: locks of it would stay locked in the child.
    thread::sleep(Duration::from_millis(200));
    until("all calls are over", || {
        let t = token;
        let (session, key) = ([&t.open_session, &t.close_session, &t.get_session_info, &t.login], &t.find_objects);
        let calls = [&t.initialize, &t.finalize, &t.get_slot_list, &t.get_token_info, key, &t.sign_init, &t.sign];
        calls.iter().chain(&session).all(|call| call.inside.load(SeqCst) == 0)
    });
    let (made, loaded) = (token.signatures(), token.initialize.calls.load(SeqCst));
    let key = module.find(module.session(), CKO_PRIVATE_KEY, "p256")[0]; // handles are the same in all processes
    let path = std::ffi::CString::new(format!("config={}/qtls.conf", slot.dir.display())).unwrap();
    // SAFETY: the child calls nothing but the module, and ends without tidying up: by a signal if it hangs.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(100);
            let mut args = CK_C_INITIALIZE_ARGS { flags: CKF_OS_LOCKING_OK, ..Default::default() };
            args.pReserved = path.as_ptr().cast_mut().cast();
            let mut session = 0;
            let signs = module.table.C_Initialize.unwrap()((&raw mut args).cast()) == CKR_OK
                && module.table.C_OpenSession.unwrap()(0, CKF_SERIAL_SESSION, null_mut(), None, &mut session) == CKR_OK
                && sign(module.table, session, key, &ECDSA, &DIGEST).is_ok()
                && module.table.C_Finalize.unwrap()(null_mut()) == CKR_OK;
            libc::_exit(if signs { 0 } else { 1 });
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        status
    };
    assert_eq!((status, token.signatures()), (0, made + 1));
    assert!(token.initialize.calls.load(SeqCst) > loaded, "the child has asked for it");
    assert_eq!(one(&module), Ok(()), "and this process is as it was");
}

/// Some libraries show a token that was taken away as an empty one.
#[test]
fn a_token_is_gone_without_an_error_only_if_it_shows_no_key_at_all() {
    let slot = Slot::new("ordered", &[PATIENT, PATIENT]);
    let (a, b) = (slot.members[0], slot.members[1]);
    let module = slot.start();
    until_it_signs(&module, a);
    until("all sessions are open", || a.open.load(SeqCst) == 4);
    let remove = |key: &str| fs::remove_file(slot.file("a", &format!("{key}.pem"))).unwrap();
    let (opened, made) = (a.open_session.calls.load(SeqCst), b.signatures());
    remove("p256");
    assert_eq!(one(&module), Ok(()));
    assert_eq!(b.signatures(), made + 1);
    assert!(module.sign("p384", &ECDSA, &DIGEST).is_ok());
    assert_eq!((a.open_session.calls.load(SeqCst), b.signatures()), (opened, made + 1), "it is as it was");
    ["rsa", "p384", "p521", "mldsa65"].into_iter().for_each(remove);
    assert!(module.sign("p384", &ECDSA, &DIGEST).is_ok());
    assert_eq!(b.signatures(), made + 2);
    until("it is looked for anew", || a.open_session.calls.load(SeqCst) > opened);
}

/// A program may have no use for the data any more, and no other memory.
#[test]
fn a_signature_may_take_the_place_of_its_data() {
    let slot = Slot::new("ordered", &[PATIENT]);
    let module = slot.start();
    until_it_signs(&module, slot.members[0]);
    let session = module.session();
    let key = module.find(session, CKO_PRIVATE_KEY, "p256")[0];
    let mut mechanism = CK_MECHANISM { mechanism: CKM_ECDSA, ..Default::default() };
    assert_eq!(call!(module.table, C_SignInit(session, &mut mechanism, key)), CKR_OK);
    let (mut place, mut len) = ([0; 64], 64);
    place[..32].copy_from_slice(&DIGEST);
    let at = place.as_mut_ptr();
    assert_eq!(call!(module.table, C_Sign(session, at, 32, at, &mut len)), CKR_OK);
    assert!(verifies(&slot.public_key("p256"), &ECDSA, &DIGEST, &place[..len as usize]));
}

#[test]
fn the_end_does_not_wait_for_a_call_that_hangs() {
    let slot = Slot::new("ordered", &[IMPATIENT, PATIENT]);
    let (a, b) = (slot.members[0], slot.members[1]);
    let module = slot.start();
    until_it_signs(&module, a);
    a.sign.hang.store(1, SeqCst);
    until("it hangs", || {
        assert_eq!(one(&module), Ok(()));
        a.sign.inside.load(SeqCst) > 0
    });
    let start = Instant::now();
    assert_eq!(call!(module.table, C_Finalize(null_mut())), CKR_OK);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert_eq!(a.finalize.calls.load(SeqCst), 0, "nobody finalises a library while a call is in it");
    until("the other's sessions are closed", || b.open.load(SeqCst) == 0);
    a.sign.hang.store(0, SeqCst);
    until("the call is over, and its session closed", || a.open.load(SeqCst) == 0);
}

/// Libraries may put handlers before the end of a program whenever they are initialised.
#[test]
fn the_end_of_a_program_waits_for_a_call_that_hangs_once() {
    const PROGRAM: &str = "QTLS_PKCS11_TEST_PROGRAM";
    if let Some(configuration) = env::var_os(PROGRAM) {
        // It signs when it is told to, and ends.
        let module = Module::started(configuration.as_ref());
        for _ in io::stdin().lines().map_while(Result::ok) {
            let _ = one(&module);
        }
        exit(0);
    }
    let slot = Slot::new("ordered", &[IMPATIENT, PATIENT]);
    let a = slot.members[0];
    a.take_away(CKR_TOKEN_NOT_PRESENT);
    let mut program = Command::new(env::current_exe().unwrap())
        .args(["the_end_of_a_program_waits_for_a_call_that_hangs_once", "--exact", "--nocapture"])
        .env(PROGRAM, slot.dir.join("qtls.conf"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = program.stdin.take().unwrap();
    // Waiting a second for each would take longer than a slow machine does.
    until("it is initialised again and again", || a.initialize.calls.load(SeqCst) > 120);
    a.put_back();
    a.sign.hang.store(1, SeqCst);
    until("it hangs", || {
        input.write_all(b"sign\n").unwrap();
        thread::sleep(Duration::from_millis(20));
        a.sign.inside.load(SeqCst) > 0
    });
    drop(input);
    let start = Instant::now();
    assert!(program.wait().unwrap().success());
    assert!(start.elapsed() < Duration::from_secs(100), "{:?}", start.elapsed());
}

#[test]
fn it_starts_and_ends_again_and_again() {
    let slot = Slot::new("spread", &[PATIENT, PATIENT]);
    for round in 1..=5 {
        let module = slot.start();
        slot.members.iter().for_each(|m| until_it_signs(&module, m));
        drop(module);
        // Whatever is still at work after a second is not waited for.
        until("all sessions are closed", || slot.members.iter().all(|m| m.open.load(SeqCst) == 0));
        for m in &slot.members {
            assert!(m.finalize.calls.load(SeqCst) <= round && m.initialize.calls.load(SeqCst) <= round);
        }
    }
}
