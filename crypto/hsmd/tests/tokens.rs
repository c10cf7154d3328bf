//! hsmd over tokens in software: keys are made in them, sign what OpenSSL verifies, and are destroyed.
//!
//! softhsm2 is Debian's; kryoptic, which has ML-DSA, is what QTLS_KRYOPTIC names. Tests are ignored unless asked for.

mod common;

use common::*;
use cryptoki_sys::*;
use qtls_pkcs11::{
    config::Config,
    member::CHECK_INTERVAL,
    pool::Pool,
    protocol::{Answer, Request},
    remote::RemoteToken,
    spki::{Kind, PublicKey},
    token::{Found, KeyName, Mechanism},
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        Arc,
    },
    thread,
};

#[derive(Clone, Copy)]
enum Software {
    Softhsm,
    Kryoptic,
}

impl Software {
    fn module(self) -> PathBuf {
        let path = match self {
            Software::Softhsm => "/usr/lib/softhsm/libsofthsm2.so".into(),
            Software::Kryoptic => match env::var_os("QTLS_KRYOPTIC") {
                Some(path) => PathBuf::from(path),
                None => panic!("set QTLS_KRYOPTIC to what `go -C hack/images run . kryoptic` prints"),
            },
        };
        assert!(path.exists(), "{} is missing; install softhsm2, or build kryoptic", path.display());
        path
    }
}

/// A token that `hsmd init-soft-token` made, as it is found by the environment of a daemon.
struct SoftToken {
    dir: PathBuf,
    software: Software,
}

impl SoftToken {
    fn new(software: Software) -> SoftToken {
        let token = SoftToken { dir: folder("token"), software };
        fs::create_dir(token.dir.join("tokens")).unwrap();
        let at = token.dir.display();
        let text = match software {
            Software::Softhsm => format!("directories.tokendir = {at}/tokens\nlog.level = ERROR\n"),
            Software::Kryoptic => {
                format!("[[slots]]\nslot = 1\ndbtype = \"sqlite\"\ndbargs = \"{at}/tokens/1.sql\"\n")
            }
        };
        fs::write(token.dir.join("conf"), text).unwrap();
        fs::write(token.dir.join("pin"), "123456\n").unwrap();
        fs::write(token.dir.join("so-pin"), "87654321\n").unwrap();
        token
    }

    fn environment(&self) -> (&'static str, PathBuf) {
        let variable = match self.software {
            Software::Softhsm => "SOFTHSM2_CONF",
            Software::Kryoptic => "KRYOPTIC_CONF",
        };
        (variable, self.dir.join("conf"))
    }

    fn initialise(&self) -> String {
        let path = |file: &str| self.dir.join(file).to_str().unwrap().to_string();
        let (variable, conf) = self.environment();
        let output = Command::new(env!("CARGO_BIN_EXE_hsmd"))
            .args(["init-soft-token", "--module", self.software.module().to_str().unwrap(), "--label", "soft"])
            .args(["--pin-file", &path("pin"), "--so-pin-file", &path("so-pin")])
            .env(variable, conf)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}");
        text
    }

    fn daemon(&self) -> Daemon {
        let (module, pin) = (self.software.module(), self.dir.join("pin"));
        let (module, pin) = (module.display(), pin.display());
        let token =
            format!("[token]\nmodule = {module}\ntoken = soft\npin-file = {pin}\ntimeout = 60s\nretry = 100ms\n");
        let (variable, conf) = self.environment();
        let conf = conf.to_str().unwrap().to_string();
        let daemon = Daemon::start_with(&(pki().daemon("") + &token), &[(variable, &conf)]);
        let mut operator = Client::connect(daemon.address, "operator").unwrap();
        until("the token is up", || operator.status().contains(r#""state":"Up""#));
        daemon
    }
}

/// ECDSA's two numbers, as OpenSSL wants them: a SEQUENCE of INTEGERs.
fn der(signature: &[u8]) -> Vec<u8> {
    let integer = |half: &[u8]| {
        let zeros = half.iter().take_while(|b| **b == 0).count();
        let sign: &[u8] = if half[zeros] & 0x80 != 0 { &[0] } else { &[] };
        let value = [sign, &half[zeros..]].concat();
        [&[2, value.len() as u8], &value[..]].concat()
    };
    let (r, s) = signature.split_at(signature.len() / 2);
    let body = [integer(r), integer(s)].concat();
    [&[0x30, body.len() as u8], &body[..]].concat()
}

fn verify(dir: &Path, public: &PublicKey, data: &[u8], signature: &[u8]) {
    let path = |file: &str| dir.join(file).to_str().unwrap().to_string();
    let signature = if let Kind::Ec { .. } = public.kind { der(signature) } else { signature.to_vec() };
    fs::write(path("public"), &public.der).unwrap();
    fs::write(path("data"), data).unwrap();
    fs::write(path("signature"), signature).unwrap();
    let raw: &[&str] = if let Kind::MlDsa { .. } = public.kind { &["-rawin"] } else { &[] };
    let (data, signature, key) = (path("data"), path("signature"), path("public"));
    let verify = ["pkeyutl", "-verify", "-in", &data, "-sigfile", &signature, "-pubin", "-keyform", "DER"];
    run("openssl", &[&verify[..], &["-inkey", &key], raw].concat());
}

fn keys_come_and_go(software: Software, algorithms: &[(&str, Mechanism)]) {
    let token = SoftToken::new(software);
    assert_eq!(token.initialise(), "hsmd: token \"soft\" is initialised\n");
    assert_eq!(token.initialise(), "hsmd: token \"soft\" is initialised already\n");
    let daemon = token.daemon();
    let mut operator = Client::connect(daemon.address, "operator").unwrap();
    for (n, (algorithm, mechanism)) in algorithms.iter().enumerate() {
        let key = KeyName { label: format!("key-{n}"), id: vec![n as u8 + 1] };
        let generate = Request::Generate { algorithm: (*algorithm).into(), key: key.clone() };
        let sign = Request::Sign { key: key.clone(), mechanism: mechanism.clone(), data: vec![n as u8; 32] };
        assert_eq!(operator.refused(&sign).0, CKR_KEY_HANDLE_INVALID, "{algorithm}: not yet there");
        let Answer::Found(found) = operator.ask(&generate).unwrap() else { panic!("{algorithm}: not generated") };
        let kept = Found { public: found.public.clone(), sensitive: true, extractable: false, local: true };
        assert_eq!(found, kept, "{algorithm}: it cannot leave, and was made in the token");
        assert_eq!(operator.ask(&Request::Find(key.clone())).unwrap(), Answer::Found(found.clone()));
        let by_label = Request::Find(KeyName { label: key.label.clone(), id: vec![] });
        assert_eq!(operator.ask(&by_label).unwrap(), Answer::Found(found.clone()), "{algorithm}: found by its label");
        let same_label = KeyName { label: key.label.clone(), id: vec![99] };
        let again = Request::Generate { algorithm: (*algorithm).into(), key: same_label };
        assert_eq!(operator.refused(&again).0, CKR_ATTRIBUTE_VALUE_INVALID, "{algorithm}: its label is taken");
        let public = PublicKey::from_der(&found.public).unwrap();
        let Answer::Signature(signature) = operator.ask(&sign).unwrap() else { panic!("{algorithm}: no signature") };
        verify(&token.dir, &public, &[n as u8; 32], &signature);
        assert_eq!(operator.ask(&Request::Retire(key.clone())).unwrap(), Answer::Retired);
        assert_eq!(operator.refused(&sign).0, CKR_KEY_HANDLE_INVALID, "{algorithm}: retired");
        assert_eq!(operator.refused(&Request::Retire(key)).0, CKR_KEY_HANDLE_INVALID);
        assert!(operator.status().contains(r#""state":"Up""#), "{algorithm}: a key that is retired is no lost token");
        println!("{algorithm}: generated, found, signed, verified by OpenSSL, retired");
    }
}

#[test]
#[ignore = "needs softhsm2"]
fn keys_come_and_go_in_softhsm() {
    let algorithms =
        [("ECDSA-P256", Mechanism::Ecdsa), ("ECDSA-P384", Mechanism::Ecdsa), ("RSA-2048", Mechanism::RsaPkcs)];
    keys_come_and_go(Software::Softhsm, &algorithms);
}

#[test]
#[ignore = "needs kryoptic"]
fn keys_come_and_go_in_kryoptic() {
    let hedged = Some((CKH_HEDGE_PREFERRED, vec![]));
    let algorithms = [
        ("ML-DSA-65", Mechanism::MlDsa(None)),
        ("ML-DSA-44", Mechanism::MlDsa(hedged)),
        ("ML-DSA-87", Mechanism::MlDsa(None)),
        ("ECDSA-P256", Mechanism::Ecdsa),
        ("RSA-2048", Mechanism::RsaPkcs),
    ];
    keys_come_and_go(Software::Kryoptic, &algorithms);
}

#[test]
#[ignore = "needs softhsm2"]
fn hsmds_are_killed_in_turn_and_no_signature_fails() {
    // Each has a token of its own, with the same key.
    let dir = folder("key");
    let path = |file: &str| dir.join(file).to_str().unwrap().to_string();
    let options = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"];
    run("openssl", &[&["genpkey", "-out", &path("web.pem")][..], &options].concat());
    run("openssl", &["pkey", "-in", &path("web.pem"), "-pubout", "-out", &path("web.pub")]);
    let tokens = [SoftToken::new(Software::Softhsm), SoftToken::new(Software::Softhsm)];
    for token in &tokens {
        token.initialise();
        let (variable, conf) = token.environment();
        let import =
            ["--import", &path("web.pem"), "--token", "soft", "--label", "web", "--id", "01", "--pin", "123456"];
        assert!(Command::new("softhsm2-util").args(import).env(variable, conf).output().unwrap().status.success());
    }
    let mut daemons = [tokens[0].daemon(), tokens[1].daemon()];
    let relays = [Relay::new(), Relay::new()];
    (0..2).for_each(|i| relays[i].point_to(daemons[i].address));
    let members: String =
        ["a", "b"].iter().zip(&relays).map(|(name, relay)| pki().member(name, relay.address, "gateway")).collect();
    let text = format!("[slot]\norder = spread\n{members}[key web]\npublic-key = {}\n", path("web.pub"));
    let config = Arc::new(Config::parse(&text, &|path| fs::read(path)).unwrap());
    let token = |member: &qtls_pkcs11::config::Member| match &member.place {
        qtls_pkcs11::config::Place::Daemon(d) => Box::new(RemoteToken::new(d.clone(), member.timeout)) as Box<_>,
        qtls_pkcs11::config::Place::Module(_) => panic!("{}", member.name),
    };
    let pool = Arc::new(Pool::start(&config, token, CHECK_INTERVAL, |line| eprintln!("module: {line}")));
    let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let signers: Vec<_> = (0..4)
        .map(|_| {
            let (pool, config, stop, made) = (pool.clone(), config.clone(), stop.clone(), made.clone());
            thread::spawn(move || {
                let mut failed = 0;
                while !stop.load(SeqCst) {
                    let (key, data) = (config.keys[0].clone(), vec![1; 32]);
                    match pool.sign(qtls_pkcs11::token::Request { key, mechanism: Mechanism::Ecdsa, data }) {
                        Ok(_) => made.fetch_add(1, SeqCst),
                        Err(_) => {
                            failed += 1;
                            0
                        }
                    };
                }
                failed
            })
        })
        .collect();
    let signs = |daemon: &Daemon| daemon.metric("qtls_hsmd_requests_total{operation=\"sign\",result=\"ok\"}");
    let signs_more = |daemon: &Daemon| {
        let before = signs(daemon);
        until("a daemon signs", || signs(daemon) >= before + 20);
    };
    for round in 0..4 {
        let (gone, there) = (round % 2, (round + 1) % 2);
        daemons.iter().for_each(signs_more);
        // By turns in good order, and without a word.
        daemons[gone].signal(if round < 2 { libc::SIGKILL } else { libc::SIGTERM });
        daemons[gone].wait();
        relays[gone].cut();
        signs_more(&daemons[there]);
        daemons[gone] = tokens[gone].daemon();
        relays[gone].point_to(daemons[gone].address);
        signs_more(&daemons[gone]);
    }
    stop.store(true, SeqCst);
    let failed: usize = signers.into_iter().map(|s| s.join().unwrap()).sum();
    println!("{} signatures, {failed} failed, 4 times an hsmd ended", made.load(SeqCst));
    assert_eq!(failed, 0);
}
