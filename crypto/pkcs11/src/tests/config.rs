//! What a configuration file may say, and what is said of one that is wrong.

use super::{files, CONFIG};
use crate::config::{Config, Daemon, Module, Order, Place, TokenName};
use std::time::Duration;

fn refused(text: &str) -> String {
    Config::parse(text, &files).expect_err(text).to_string()
}

/// The configuration with one line replaced.
fn with(line: &str, replacement: &str) -> String {
    assert!(CONFIG.contains(line), "{line}");
    CONFIG.replacen(line, replacement, 1)
}

#[test]
fn all_of_a_file_is_read() {
    let config = Config::parse(CONFIG, &files).unwrap();
    assert_eq!(config.label, "gateway");
    assert_eq!(config.order, Order::Ordered);
    let a = &config.members[0];
    assert_eq!((a.name.as_str(), a.sessions), ("a", 2));
    assert_eq!((a.timeout, a.retry), (Duration::from_secs(2), Duration::from_millis(20)));
    let module = |module: &str, token, pin_file: &str| {
        Place::Module(Module { module: module.into(), token, pin_file: pin_file.into() })
    };
    let label = TokenName::Label("gw".into());
    assert_eq!(a.place, module("/lib/a.so", label, "/secrets/a"), "a comment ends with its line");
    let serial = TokenName::Serial("0123456789abcdef".into());
    assert_eq!(config.members[1].place, module("/lib/b.so", serial, "/secrets/b"));
    let keys: Vec<_> = config.keys.iter().map(|k| (k.label.as_str(), k.id.as_slice())).collect();
    assert_eq!(keys, [("web", &[1, 255][..]), ("mail", &[]), ("pq", &[])]);
}

#[test]
fn what_is_left_out_has_a_default() {
    let text = "[member a]\nmodule = /a\ntoken = t\npin-file = /p\n[key k]\npublic-key = /keys/rsa.pem";
    let config = Config::parse(text, &files).unwrap();
    assert_eq!((config.label.as_str(), config.order), ("qtls", Order::Ordered));
    let a = &config.members[0];
    assert_eq!((a.sessions, a.timeout, a.retry), (4, Duration::from_secs(2), Duration::from_millis(500)));
}

#[test]
fn a_slot_may_have_a_folder_for_its_status() {
    assert_eq!(Config::parse(CONFIG, &files).unwrap().status_dir, None);
    let config = Config::parse(&with("order = ordered", "status-dir = /run/qtls/hsm"), &files).unwrap();
    assert_eq!(config.status_dir.unwrap().to_str(), Some("/run/qtls/hsm"));
    assert_eq!(
        refused(&with("order = ordered", "status-dir = hsm")),
        "line 3: [slot]: status-dir = hsm: want an absolute path"
    );
}

#[test]
fn a_slot_may_say_how_many_descriptors_its_program_can_use() {
    assert_eq!(Config::parse(CONFIG, &files).unwrap().descriptors, None);
    let config = Config::parse(&with("order = ordered", "descriptors = 40000"), &files).unwrap();
    assert_eq!(config.descriptors, Some(40_000));
    assert_eq!(
        refused(&with("order = ordered", "descriptors = 0")),
        "line 3: [slot]: descriptors = 0: want a number from 1"
    );
}

#[test]
fn keys_are_made_for_programs_where_the_slot_says_so_alone() {
    let generate = |line: &str| Config::parse(&with("order = ordered", line), &files).unwrap().generate;
    assert!(!Config::parse(CONFIG, &files).unwrap().generate);
    assert!(generate("generate = true") && !generate("generate = false"));
    assert_eq!(
        refused(&with("order = ordered", "generate = yes")),
        "line 3: [slot]: generate = yes: want true or false"
    );
    // Who makes the first one has none yet.
    let without_keys = &CONFIG[..CONFIG.find("[key").unwrap()];
    let text = without_keys.replacen("order = ordered", "generate = true", 1);
    assert!(Config::parse(&text, &files).unwrap().keys.is_empty());
}

#[test]
fn members_may_take_turns() {
    assert_eq!(Config::parse(&with("ordered", "spread"), &files).unwrap().order, Order::Spread);
}

#[test]
fn an_error_names_line_field_value_and_remedy() {
    let cases = [
        ("order = ordered", "order = random", "line 3: [slot]: order = random: want ordered or spread"),
        ("sessions = 2", "sessions = 0", "line 9: [member a]: sessions = 0: want a number from 1 to 64"),
        ("sessions = 2", "sessions = +2", "line 9: [member a]: sessions = +2: want a number from 1 to 64"),
        ("timeout = 2000ms", "timeout = 2000", "line 10: [member a]: timeout = 2000: want 10ms to 60000ms"),
        ("timeout = 2000ms", "timeout = 9ms", "line 10: [member a]: timeout = 9ms: want 10ms to 60000ms"),
        ("retry = 20ms", "retry =", "line 11: [member a]: retry is empty; give it a value or remove the line"),
        ("module = /lib/a.so", "module = a.so", "line 6: [member a]: module = a.so: want an absolute path"),
        ("module = /lib/a.so", "", "line 5: [member a]: module is missing; add module = /path/to/module.so"),
        ("pin-file = /secrets/a", "pin = 1", "line 5: [member a]: pin-file is missing; add pin-file = /path/to/pin"),
        ("serial = 0123456789abcdef", "", "line 14: [member b]: which token is missing; add token = LABEL or serial = NUMBER"),
        (
            "serial = 0123456789abcdef",
            "serial = 1\ntoken = t",
            "line 16: [member b]: token and serial are both set; keep one",
        ),
        ("[member b]", "[member a]", "line 14: [member a] is there already, in line 5; keep one"),
        ("[member b]", "[members b]", "line 14: [members b]: want [slot], [member NAME] or [key LABEL]"),
        ("[member b]", "[member b", "line 14: [member b: want ] at the end"),
        (
            "retry = 20ms",
            "timeout = 1000ms",
            "line 11: [member a]: timeout is there already, in line 10; keep one",
        ),
        (
            "retry = 20ms",
            "retries = 3",
            "line 11: [member a]: retries: there is no such field; there are module, token, serial, pin-file, sessions, \
             timeout and retry",
        ),
        ("id = 01ff", "id = 1", "line 23: [key web]: id = 1: want hexadecimal digits, two for each byte"),
        ("id = 01ff", "id = é", "line 23: [key web]: id = é: want hexadecimal digits, two for each byte"),
        ("id = 01ff", "ID: 01", "line 23: ID: 01: want [kind name] or field = value"),
        ("[slot]", "", "line 2: label is in no section; put [slot], [member NAME] or [key LABEL] above it"),
        (
            "label = gateway",
            "label = 123456789012345678901234567890123",
            "line 2: [slot]: label = 123456789012345678901234567890123: PKCS#11 has room for 32 bytes; shorten it",
        ),
        (
            "/keys/p256.pem",
            "/keys/text.pem",
            "line 24: [key web]: public-key = /keys/text.pem: want one PEM block PUBLIC KEY, as `openssl pkey -pubout` \
             writes it",
        ),
        ("/keys/p256.pem", "/none", "line 24: [key web]: public-key = /none: entity not found"),
    ];
    for (line, replacement, message) in cases {
        assert_eq!(refused(&with(line, replacement)), message);
    }
}

#[test]
fn a_slot_without_members_or_keys_is_refused() {
    assert_eq!(refused(""), "0 members; write 1 to 16 sections [member NAME]");
    assert_eq!(refused(&CONFIG[..CONFIG.find("[key").unwrap()]), "0 keys; write 1 to 1024 sections [key LABEL]");
}

/// The configuration with a member that is an hsmd, and with one of its lines replaced.
fn with_daemon(line: &str, replacement: &str) -> String {
    const DAEMON: &str = "\
[member c]
address = hsm-c.tls.svc:7443
ca-file = /c/ca.crt
certificate-file = /c/tls.crt
key-file = /c/tls.key
timeout = 3s
";
    assert!(DAEMON.contains(line), "{line}");
    DAEMON.replacen(line, replacement, 1) + CONFIG
}

#[test]
fn a_member_may_be_an_hsmd() {
    let member = |text: &str| Config::parse(text, &files).unwrap().members.remove(0);
    let c = member(&with_daemon("", ""));
    let daemon = |address: &str, server_name: &str| {
        Place::Daemon(Daemon {
            address: address.into(),
            server_name: server_name.into(),
            ca_file: "/c/ca.crt".into(),
            certificate_file: "/c/tls.crt".into(),
            key_file: "/c/tls.key".into(),
        })
    };
    assert_eq!((c.name.as_str(), c.sessions, c.timeout), ("c", 4, Duration::from_secs(3)));
    assert_eq!(c.place, daemon("hsm-c.tls.svc:7443", "hsm-c.tls.svc"));
    let c = member(&with_daemon("hsm-c.tls.svc:7443", "[::1]:7443\nserver-name = hsm-c"));
    assert_eq!(c.place, daemon("[::1]:7443", "hsm-c"));
    assert_eq!(member(&with_daemon("hsm-c.tls.svc", "192.0.2.1")).place, daemon("192.0.2.1:7443", "192.0.2.1"));
}

#[test]
fn an_hsmd_that_cannot_be_reached_so_is_refused() {
    for address in
        ["hsm-c", "hsm-c:", "hsm-c:0", "hsm-c:65536", "hsm-c:+1", "::1:7443", "[::1:7443", "[hsm-c]:7443", "a_b c:1"]
    {
        let message = format!("line 2: [member c]: address = {address}: want host:port, an IPv6 address in brackets");
        assert_eq!(refused(&with_daemon("hsm-c.tls.svc:7443", address)), message);
    }
    let cases = [
        (
            "timeout = 3s",
            "server-name = a b",
            "line 6: [member c]: server-name = a b: want a DNS name or an IP address",
        ),
        ("timeout = 3s", "timeout = 61s", "line 6: [member c]: timeout = 61s: want 10ms to 60000ms"),
        ("ca-file = /c/ca.crt", "", "line 1: [member c]: ca-file is missing; add ca-file = /path/to/ca.crt"),
        (
            "key-file = /c/tls.key",
            "key-file = tls.key",
            "line 5: [member c]: key-file = tls.key: want an absolute path",
        ),
        (
            "timeout = 3s",
            "module = /lib/a.so",
            "line 6: [member c]: module: there is no such field; there are address, server-name, ca-file, \
             certificate-file, key-file, sessions, timeout and retry",
        ),
    ];
    for (line, replacement, message) in cases {
        assert_eq!(refused(&with_daemon(line, replacement)), message);
    }
}
