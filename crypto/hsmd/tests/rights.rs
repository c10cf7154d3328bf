//! Who may do what with which keys: each refusal beside what succeeds.

mod common;

use common::*;
use cryptoki_sys::*;
use qtls_hsmd::{
    config::Config,
    metrics::{Outcome, Refusal},
    server::Live,
};
use qtls_pkcs11::{
    protocol::{Answer, Request},
    token::{Found, Mechanism},
};

#[test]
fn a_client_signs_with_its_keys_and_no_others() {
    let daemon = Inside::start("");
    let mut gateway = daemon.connect("gateway");
    for label in ["web", "shop-1"] {
        assert_eq!(gateway.ask(&sign(label)).unwrap(), Answer::Signature(vec![0x5a; 64]));
    }
    let prohibited = "client gateway may not use key \"secret\"; [client gateway] keys lists them";
    assert_eq!(gateway.refused(&sign("secret")), (CKR_ACTION_PROHIBITED, prohibited.into()));
    assert_eq!(gateway.refused(&sign("web-1")).0, CKR_ACTION_PROHIBITED, "web stands for itself alone");
    assert_eq!(gateway.refused(&Request::Find(key("secret"))).0, CKR_ACTION_PROHIBITED);
    assert_eq!(daemon.connect("operator").ask(&sign("secret")).unwrap(), Answer::Signature(vec![0x5a; 64]));
    assert_eq!(daemon.metrics.requests("sign", Outcome::Refused), 2);
    assert_eq!(daemon.metrics.requests("sign", Outcome::Ok), 3);
}

#[test]
fn keys_are_made_and_destroyed_by_those_who_may() {
    let daemon = Inside::start("");
    let generate = Request::Generate { algorithm: "ML-DSA-65".into(), key: key("shop-2") };
    let retire = Request::Retire(key("shop-2"));
    let mut gateway = daemon.connect("gateway");
    let prohibited = "client gateway may not generate; [client gateway] may says who";
    assert_eq!(gateway.refused(&generate), (CKR_ACTION_PROHIBITED, prohibited.into()));
    assert_eq!(gateway.refused(&retire).0, CKR_ACTION_PROHIBITED);
    assert_eq!(gateway.refused(&sign("shop-2")).0, CKR_KEY_HANDLE_INVALID);

    let mut operator = daemon.connect("operator");
    let found = Found { public: public().der, sensitive: true, extractable: false, local: true };
    assert_eq!(operator.ask(&generate).unwrap(), Answer::Found(found.clone()));
    assert_eq!(operator.refused(&generate).0, CKR_ATTRIBUTE_VALUE_INVALID, "a label is used once");
    assert_eq!(gateway.ask(&Request::Find(key("shop-2"))).unwrap(), Answer::Found(found));
    assert_eq!(gateway.ask(&sign("shop-2")).unwrap(), Answer::Signature(vec![0x5a; 64]));
    assert_eq!(operator.ask(&retire).unwrap(), Answer::Retired);
    assert_eq!(operator.refused(&retire).0, CKR_KEY_HANDLE_INVALID);
    assert_eq!(gateway.refused(&sign("shop-2")).0, CKR_KEY_HANDLE_INVALID);
    assert_eq!(gateway.ask(&sign("web")).unwrap(), Answer::Signature(vec![0x5a; 64]), "the member is still up");
    let unknown = Request::Generate { algorithm: "DSA".into(), key: key("x") };
    assert_eq!(operator.refused(&unknown).0, CKR_ARGUMENTS_BAD);
    let counted = [Outcome::Ok, Outcome::Refused, Outcome::Failed].map(|o| daemon.metrics.requests("generate", o));
    assert_eq!(counted, [1, 2, 1], "a label that is there is the token's word, an algorithm that is not there hsmd's");
    operator.status();
}

#[test]
fn what_does_not_fit_a_key_never_reaches_the_token() {
    let daemon = Inside::start("");
    let mut gateway = daemon.connect("gateway");
    let sign = |mechanism, len| Request::Sign { key: key("web"), mechanism, data: vec![1; len] };
    assert_eq!(gateway.refused(&sign(Mechanism::RsaPkcs, 32)).0, CKR_KEY_TYPE_INCONSISTENT);
    assert_eq!(gateway.refused(&sign(Mechanism::Ecdsa, 67)).0, CKR_DATA_LEN_RANGE);
    let pss = |hash, mgf, salt| Mechanism::RsaPss { hash, mgf, salt };
    let parameters = [
        (pss(CKM_SHA256, CKG_MGF1_SHA256, 32), CKR_KEY_TYPE_INCONSISTENT),
        (pss(CKM_SHA256, CKG_MGF1_SHA256, CK_ULONG::MAX), CKR_MECHANISM_PARAM_INVALID),
        (pss(CKM_SHA256, CKG_MGF1_SHA256, 1025), CKR_MECHANISM_PARAM_INVALID),
        (pss(CKM_ECDSA, CKG_MGF1_SHA256, 32), CKR_MECHANISM_PARAM_INVALID),
        (pss(CKM_SHA256, 0, 32), CKR_MECHANISM_PARAM_INVALID),
        (Mechanism::MlDsa(Some((CKH_HEDGE_REQUIRED, vec![1; 255]))), CKR_KEY_TYPE_INCONSISTENT),
        (Mechanism::MlDsa(Some((CKH_HEDGE_REQUIRED, vec![1; 256]))), CKR_MECHANISM_PARAM_INVALID),
        (Mechanism::MlDsa(Some((CKH_HEDGE_REQUIRED, vec![1; 60_000]))), CKR_MECHANISM_PARAM_INVALID),
        (Mechanism::MlDsa(Some((3, vec![]))), CKR_MECHANISM_PARAM_INVALID),
    ];
    for (mechanism, code) in parameters {
        assert_eq!(gateway.refused(&sign(mechanism.clone(), 32)).0, code, "{mechanism:?}");
    }
    // Tokens that take it say of it what they say of a fault of their own, and who is told that counts them as lost.
    for (mechanism, len, code) in [
        (Mechanism::RsaRaw, 10, CKR_DATA_LEN_RANGE),
        (pss(CKM_SHA256, CKG_MGF1_SHA256, 1024), 32, CKR_MECHANISM_PARAM_INVALID),
        (pss(CKM_SHA256, CKG_MGF1_SHA256, 32), 20, CKR_DATA_LEN_RANGE),
        (Mechanism::Ecdsa, 32, CKR_KEY_TYPE_INCONSISTENT),
    ] {
        let request = Request::Sign { key: key(RSA_KEY), mechanism: mechanism.clone(), data: vec![1; len] };
        assert_eq!(gateway.refused(&request).0, code, "{mechanism:?} of {len} bytes");
    }
    let counted = [Outcome::Refused, Outcome::Failed].map(|outcome| daemon.metrics.requests("sign", outcome));
    assert_eq!(counted, [15, 0], "none of that was the token's word");
    assert_eq!(gateway.refused(&Request::Find(key("shop-missing"))).0, CKR_KEY_HANDLE_INVALID);
    assert_eq!(daemon.connect("operator").refused(&Request::Find(key(""))).0, CKR_ARGUMENTS_BAD);
    assert_eq!(daemon.token.signed.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!(gateway.ask(&sign(Mechanism::Ecdsa, 32)).unwrap(), Answer::Signature(vec![0x5a; 64]));
}

#[test]
fn a_certificate_that_is_not_listed_or_of_another_authority_gets_nothing() {
    let daemon = Inside::start("");
    // In TLS 1.3 a client learns with its first read that it is not wanted.
    let stranger = "no section [client] has one of the names [\"stranger\", \"stranger.tls.svc\"] of its certificate";
    assert_eq!(daemon.connect("stranger").turned_away(), (CKR_ACTION_PROHIBITED, stranger.into()));
    let forger = Client::connect(daemon.address, "forger").and_then(|mut c| c.ask(&Request::Status));
    assert!(forger.is_err(), "it says to be the operator");
    assert_eq!(daemon.metrics.refused(Refusal::Unlisted), 1);
    until("it is counted", || daemon.metrics.refused(Refusal::Handshake) == 1);
    daemon.connect("operator").status();
}

#[test]
fn rights_that_change_hold_for_connections_that_are_open() {
    let daemon = Inside::start("");
    let mut gateway = daemon.connect("gateway");
    let mut operator = daemon.connect("operator");
    operator.status(); // it is in: a client has done its part of the handshake before hsmd looks at its names
    assert_eq!(gateway.refused(&sign("secret")).0, CKR_ACTION_PROHIBITED);
    let mut config: Config = daemon.config.clone();
    config.clients.retain(|c| c.name != "operator");
    config.clients[0].keys = vec!["secret".into()];
    daemon.server.replace(Live::new(&config).unwrap());
    assert_eq!(gateway.ask(&sign("secret")).unwrap(), Answer::Signature(vec![0x5a; 64]));
    assert_eq!(gateway.refused(&sign("web")).0, CKR_ACTION_PROHIBITED);
    assert_eq!(
        operator.refused(&Request::Status),
        (CKR_ACTION_PROHIBITED, "client operator is not listed any more".into())
    );
}

#[test]
fn certificates_of_ml_dsa_serve_where_openssl_makes_them() {
    // OpenSSL 3.5 is the first that does.
    if !run("openssl", &["list", "-public-key-algorithms"]).contains("ML-DSA-65") {
        return println!("left out: this OpenSSL makes no ML-DSA keys");
    }
    let pki = Pki::new("ML-DSA-65", &[]);
    let daemon = Daemon::start(&(pki.daemon("") + NO_TOKEN));
    assert!(Client::of(&pki, daemon.address, "operator").unwrap().status().contains(r#""token":"t""#));
    assert!(Client::of(&pki, daemon.address, "forger").and_then(|mut c| c.ask(&Request::Status)).is_err());
}
