//! The module's members that are hsmds: what a gateway sees of daemons that end, hang and come back.

mod common;

use common::*;
use cryptoki_sys::*;
use qtls_hsmd::metrics::{Outcome, Refusal};
use qtls_pkcs11::{
    config::{Config, Place},
    library::lock,
    member::{State, CHECK_INTERVAL},
    pool::Pool,
    remote::RemoteToken,
    spki::PublicKey,
    token::{Algorithm, Failure, Mechanism, Request},
};
use std::{
    fs,
    io::Write,
    net::TcpListener,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        Arc,
    },
    thread,
};

struct Module {
    config: Arc<Config>,
    pool: Pool,
}

impl Module {
    fn start(members: &str, keys: &[&str]) -> Module {
        let public = concat!(env!("CARGO_MANIFEST_DIR"), "/../pkcs11/testdata/p256.pem");
        let mut text = format!("[slot]\norder = spread\n{members}");
        for key in keys {
            text += &format!("[key {key}]\npublic-key = {public}\n");
        }
        let config = Arc::new(Config::parse(&text, &|path| fs::read(path)).unwrap());
        let token = |member: &qtls_pkcs11::config::Member| match &member.place {
            Place::Daemon(daemon) => Box::new(RemoteToken::new(daemon.clone(), member.timeout)) as Box<_>,
            Place::Module(_) => panic!("{}", member.name),
        };
        let pool = Pool::start(&config, token, CHECK_INTERVAL, |line| eprintln!("module: {line}"));
        Module { config, pool }
    }

    fn sign(&self, key: usize) -> Result<Vec<u8>, cryptoki_sys::CK_RV> {
        let key = self.config.keys[key].clone();
        self.pool.sign(Request { key, mechanism: Mechanism::Ecdsa, data: vec![1; 32] }).map_err(|e| e.code)
    }

    fn generate(&self, label: &str) -> Result<PublicKey, CK_RV> {
        let algorithm = Algorithm::by_name("ECDSA-P256").unwrap();
        self.pool.generate(algorithm, &common::key(label)).map_err(|e| e.code)
    }
}

#[test]
fn a_key_is_made_for_a_client_that_may() {
    let daemon = Inside::start("");
    let module = |who| Module::start(&pki().member("a", daemon.address, who), &["web"]);
    assert_eq!(module("gateway").generate("shop-2"), Err(CKR_ACTION_PROHIBITED));
    let operator = module("operator");
    assert_eq!(operator.generate("shop-2"), Ok(public()));
    assert_eq!(operator.generate("shop-2"), Err(CKR_ATTRIBUTE_VALUE_INVALID), "a label is used once");
    assert_eq!(module("gateway").generate("shop-2"), Err(CKR_ATTRIBUTE_VALUE_INVALID), "who may find it is told so");
    assert_eq!(daemon.metrics.requests("generate", Outcome::Ok), 1);
    assert_eq!(daemon.metrics.requests("generate", Outcome::Failed), 0, "a label that is there is not asked for");
}

#[test]
fn an_answer_that_is_lost_on_the_way_makes_no_second_key() {
    let daemon = Inside::start("");
    let relay = Relay::new();
    relay.point_to(daemon.address);
    let module = Module::start(&pki().member("a", relay.address, "operator"), &["web"]);
    daemon.token.shut();
    thread::scope(|scope| {
        let asked = scope.spawn(|| module.generate("shop-2"));
        until("the token makes it", || daemon.token.waiting.load(SeqCst) == 1);
        relay.cut();
        assert_eq!(asked.join().unwrap(), Err(CKR_DEVICE_ERROR), "it does not wait for what cannot come");
    });
    relay.point_to(daemon.address);
    daemon.token.open();
    until("who asks again finds it", || module.generate("shop-2") == Err(CKR_ATTRIBUTE_VALUE_INVALID));
    until("it is counted", || daemon.metrics.requests("generate", Outcome::Ok) > 0);
    assert_eq!(daemon.metrics.requests("generate", Outcome::Ok), 1);
}

/// The token's, behind hsmd: whoever asked must not hear that a label is taken that it has just given.
#[test]
fn hsmd_asks_its_token_once_for_a_key() {
    let lost = [CKR_SESSION_CLOSED, CKR_SESSION_HANDLE_INVALID, CKR_OBJECT_HANDLE_INVALID];
    for code in lost {
        let daemon = Inside::start("");
        *lock(&daemon.token.loses) = Some(code);
        let module = Module::start(&pki().member("a", daemon.address, "operator"), &["web"]);
        let (algorithm, name) = (Algorithm::by_name("ECDSA-P256").unwrap(), common::key("shop-2"));
        let failure = module.pool.generate(algorithm, &name).unwrap_err();
        assert!(failure.detail.contains("it may have made the key all the same"), "{code:#x}: {failure}");
        assert_eq!(daemon.token.asked.load(SeqCst), 1, "{code:#x}");
    }
}

/// Nothing of it goes on connecting while the process ends.
impl Drop for Module {
    fn drop(&mut self) {
        assert!(self.pool.stop(GUARD) || thread::panicking());
    }
}

#[test]
fn hsmds_are_cut_off_in_turn_and_no_signature_fails() {
    let daemons = [Inside::start(""), Inside::start("")];
    let relays = [Relay::new(), Relay::new()];
    (0..2).for_each(|i| relays[i].point_to(daemons[i].address));
    let members: String =
        ["a", "b"].iter().zip(&relays).map(|(name, relay)| pki().member(name, relay.address, "gateway")).collect();
    let module = Arc::new(Module::start(&members, &["web"]));
    let (stop, made, failed) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let signers: Vec<_> = (0..4)
        .map(|_| {
            let (module, stop, made, failed) = (module.clone(), stop.clone(), made.clone(), failed.clone());
            thread::spawn(move || {
                while !stop.load(SeqCst) {
                    match module.sign(0) {
                        Ok(_) => made.fetch_add(1, SeqCst),
                        Err(_) => failed.fetch_add(1, SeqCst),
                    };
                }
            })
        })
        .collect();
    let signs_more = |i: usize| {
        let before = daemons[i].token.signed.load(SeqCst);
        until("a member signs", || daemons[i].token.signed.load(SeqCst) >= before + 20);
    };
    for round in 0..6 {
        let (gone, there) = (round % 2, (round + 1) % 2);
        signs_more(0);
        signs_more(1);
        relays[gone].cut();
        signs_more(there);
        relays[gone].point_to(daemons[gone].address);
        // It is found again without a restart.
        signs_more(gone);
    }
    stop.store(true, SeqCst);
    signers.into_iter().for_each(|s| s.join().unwrap());
    println!("{} signatures, {} failed, 6 times an hsmd cut off", made.load(SeqCst), failed.load(SeqCst));
    assert_eq!(failed.load(SeqCst), 0);
}

/// Its time-out is for a token that is slow: nobody waits that long for a machine that is gone.
#[test]
fn an_hsmd_whose_machine_is_gone_costs_seconds_and_no_signature() {
    let daemons = [Inside::start(""), Inside::start("")];
    let relay = Relay::new();
    relay.point_to(daemons[0].address);
    let gone = pki().member("a", relay.address, "gateway").replace("timeout = 30s", "timeout = 60s");
    let module = Module::start(&(gone + &pki().member("b", daemons[1].address, "gateway")), &["web"]);
    until("both are up", || module.pool.states().iter().all(|member| member.1 == State::Up));
    for _ in 0..4 {
        assert_eq!(module.sign(0), Ok(vec![0x5a; 64]));
    }
    let signed = || [0, 1].map(|i| daemons[i].token.signed.load(SeqCst));
    assert_eq!(signed(), [2, 2]);
    // Its kernel has acknowledged the one that is under way there: of that nothing is left to be sent again.
    daemons[0].token.shut();
    thread::scope(|scope| {
        let under_way = scope.spawn(|| (module.sign(0), module.sign(0)));
        until("its token is at it", || daemons[0].token.waiting.load(SeqCst) == 1);
        relay.silence();
        assert_eq!(under_way.join().unwrap(), (Ok(vec![0x5a; 64]), Ok(vec![0x5a; 64])));
    });
    assert_eq!(signed(), [2, 4]);
    daemons[0].token.open();
    for _ in 0..20 {
        assert_eq!(module.sign(0), Ok(vec![0x5a; 64]));
    }
    assert_eq!(signed()[1], 24);
    let first = &module.pool.observer()()[0];
    assert_eq!(first.state, State::Down);
    assert!(
        first.last_error.contains("acknowledged nothing for 3 s") || first.last_error.contains("connection timed out"),
        "{}",
        first.last_error
    );
}

/// The first has a place for one of the module's sessions: the member is up with that.
#[test]
fn an_hsmd_that_is_full_serves_with_the_connections_that_it_has() {
    let daemon = Inside::start("connections = 1");
    let module = Module::start(&pki().member("a", daemon.address, "gateway"), &["web"]);
    until("all sessions were asked for", || daemon.metrics.refused(Refusal::Full) >= 3);
    until("it is up with one session", || {
        let first = &module.pool.observer()()[0];
        (first.state, first.sessions) == (State::Up, 1)
    });
    for _ in 0..50 {
        assert_eq!(module.sign(0), Ok(vec![0x5a; 64]));
    }
    assert_eq!(daemon.token.signed.load(SeqCst), 50);
}

#[test]
fn why_an_hsmd_lets_nobody_in_is_told() {
    let daemon = Inside::start("connections = 1");
    let mut only = daemon.connect("operator");
    only.status();
    let told = |who: &str, at: std::net::SocketAddr| {
        let module = Module::start(&pki().member("a", at, who), &["web"]);
        assert!(module.sign(0).is_err());
        let mut told = String::new();
        until("the member says why", || {
            told = module.pool.observer()()[0].last_error.clone();
            !told.is_empty()
        });
        told
    };
    let full = told("gateway", daemon.address);
    assert!(full.contains("1 of 1 connections are taken, 1 of them by 127.0.0.1, "), "{full}");
    let unlisted = told("stranger", daemon.address);
    assert!(unlisted.contains("no section [client] has one of the names"), "{unlisted}");
    // Whatever listens there, it closes.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = other.local_addr().unwrap();
    thread::spawn(move || other.incoming().for_each(drop));
    let closed = told("gateway", at);
    assert!(closed.contains("before TLS was agreed on"), "{closed}");
    only.status();
}

#[test]
fn with_no_hsmd_left_a_signature_fails_and_works_when_one_is_back() {
    let (daemon, relay) = (Inside::start(""), Relay::new());
    let module = Module::start(&pki().member("a", relay.address, "gateway"), &["web"]);
    assert_eq!(module.sign(0), Err(CKR_DEVICE_ERROR));
    relay.point_to(daemon.address);
    until("it signs", || module.sign(0).is_ok());
}

#[test]
fn a_token_that_hangs_behind_its_hsmd_costs_its_time_out_and_no_signature() {
    let daemons = [Inside::start(""), Inside::start("")];
    let slow = pki().member("a", daemons[0].address, "gateway").replace("timeout = 30s", "timeout = 200ms");
    let module = Module::start(&(slow + &pki().member("b", daemons[1].address, "gateway")), &["web"]);
    daemons[0].token.shut();
    for _ in 0..10 {
        assert_eq!(module.sign(0), Ok(vec![0x5a; 64]));
    }
    assert_eq!(daemons[1].token.signed.load(SeqCst), 10);
    daemons[0].connect("operator").status();
    daemons[0].token.open();
}

#[test]
fn a_key_that_one_hsmd_does_not_allow_is_signed_with_by_the_other() {
    let daemons = [Inside::start(""), Inside::start("")];
    let mut config = daemons[1].config.clone();
    config.clients[0].keys.push("secret".into());
    daemons[1].server.replace(qtls_hsmd::server::Live::new(&config).unwrap());
    let members: String =
        ["a", "b"].iter().zip(&daemons).map(|(name, daemon)| pki().member(name, daemon.address, "gateway")).collect();
    let module = Module::start(&members, &["secret"]);
    for _ in 0..4 {
        assert_eq!(module.sign(0), Ok(vec![0x5a; 64]));
    }
    assert_eq!(daemons[1].token.signed.load(SeqCst), 4);
}

/// Somebody has given another key its label there, or put another in its place.
#[test]
fn a_key_that_is_none_of_one_hsmds_is_signed_with_by_the_other() {
    let another = PublicKey::from_pem(include_bytes!("../../pkcs11/testdata/p384.pem")).unwrap();
    for shown in [Err(Failure::ambiguous(&key("web"))), Ok(another)] {
        let daemons = [Inside::start(""), Inside::start("")];
        *lock(&daemons[0].token.shows) = Some(shown);
        let members: String = ["a", "b"]
            .iter()
            .zip(&daemons)
            .map(|(name, daemon)| pki().member(name, daemon.address, "gateway"))
            .collect();
        let module = Module::start(&members, &["web"]);
        let up = || module.pool.states().iter().all(|member| member.1 == State::Up);
        until("both are up", up);
        for _ in 0..4 {
            assert_eq!(module.sign(0), Ok(vec![0x5a; 64]));
        }
        let asked = module.pool.observer()().iter().map(|member| member.failovers).collect::<Vec<_>>();
        assert_eq!((asked, daemons[1].token.signed.load(SeqCst)), (vec![2, 0], 4));
        assert!(up(), "it is well");
    }
}

#[test]
fn credentials_are_read_for_each_connection() {
    let daemon = Inside::start("");
    let dir = folder("credentials");
    let give = |who: &str| {
        for suffix in ["crt", "key"] {
            let new = dir.join("new");
            fs::copy(pki().text(&format!("{who}.{suffix}")), &new).unwrap();
            fs::rename(new, dir.join(format!("tls.{suffix}"))).unwrap();
        }
    };
    give("stranger");
    let member = pki()
        .member("a", daemon.address, "gateway")
        .replace(&pki().text("gateway."), dir.join("tls.").to_str().unwrap());
    let module = Module::start(&member, &["web"]);
    assert_eq!(module.sign(0), Err(CKR_DEVICE_ERROR));
    give("gateway");
    until("it signs", || module.sign(0).is_ok());
}

#[test]
fn credentials_that_are_replaced_while_they_are_read_are_read_once_more() {
    let daemon = Inside::start("");
    let dir = folder("replaced");
    let file = |name: &str| dir.join(name).to_str().unwrap().to_string();
    let member = pki()
        .member("a", daemon.address, "gateway")
        .replace(&pki().text("gateway."), &file("tls."))
        .replace("retry", "sessions = 1\nretry");
    fs::copy(pki().text("gateway.crt"), file("tls.crt")).unwrap();
    fs::copy(pki().text("gateway.key"), file("new")).unwrap();
    run("mkfifo", &[&file("tls.key")]);
    let module = Module::start(&member, &["web"]);
    // It reads the key now, for the pipe has another end: the one of before, which does not fit.
    let mut pipe = fs::OpenOptions::new().write(true).open(file("tls.key")).unwrap();
    pipe.write_all(&fs::read(pki().text("stranger.key")).unwrap()).unwrap();
    fs::rename(file("new"), file("tls.key")).unwrap();
    drop(pipe);
    until("it signs", || module.sign(0).is_ok());
    assert_eq!(module.pool.observer()()[0].last_error, "", "it was not down before");
}
