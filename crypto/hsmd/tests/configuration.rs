//! hsmd's configuration file, and what is said of one that is wrong.

use qtls_hsmd::config::{Config, Right};
use std::time::Duration;

const CONFIG: &str = "\
[daemon]
listen = [::1]:7000
certificate-file = /d/tls.crt
key-file = /d/tls.key
client-ca-file = /d/ca.crt
idle-timeout = 90s
[token]
module = /lib/a.so
token = gw
pin-file = /secrets/a
[client web-gateway]
keys = web, shop-*
may = status, sign
";

fn refused(text: &str) -> String {
    Config::parse(text).expect_err(text).to_string()
}

#[test]
fn all_of_a_file_is_read_and_the_rest_has_defaults() {
    let config = Config::parse(CONFIG).unwrap();
    assert_eq!((config.listen.to_string().as_str(), config.metrics), ("[::1]:7000", None));
    assert_eq!((config.connections, config.in_flight), (256, 64));
    let times = [config.idle_timeout, config.handshake_timeout, config.write_timeout, config.drain];
    assert_eq!(times, [90, 5, 5, 20].map(Duration::from_secs));
    assert_eq!((config.token.name.as_str(), config.token.sessions), ("token", 4));
    let client = &config.clients[0];
    assert_eq!((client.name.as_str(), &client.may[..]), ("web-gateway", &[Right::Status, Right::Sign][..]));
    assert!(["web", "shop-", "shop-1"].iter().all(|label| client.may_use(label)));
    assert!(["", "web-1", "we", "shop", "*"].iter().all(|label| !client.may_use(label)));
    let listen = Config::parse(&CONFIG.replace("listen = [::1]:7000\n", "")).unwrap().listen;
    assert_eq!(listen.to_string(), "[::]:7443");
}

#[test]
fn a_client_without_keys_may_use_none() {
    let config = Config::parse(&CONFIG.replace("keys = web, shop-*\n", "")).unwrap();
    assert!(!config.clients[0].may_use("web") && !config.clients[0].may_use(""));
}

#[test]
fn an_error_names_line_field_value_and_remedy() {
    let cases = [
        ("listen = [::1]:7000", "listen = 7443", "line 2: [daemon]: listen = 7443: want ADDRESS:PORT, as in [::]:7443"),
        ("key-file = /d/tls.key", "", "line 1: [daemon]: key-file is missing; add key-file = /path/to/tls.key"),
        ("idle-timeout = 90s", "idle-timeout = 90", "line 6: [daemon]: idle-timeout = 90: want 100ms to 3600000ms"),
        ("idle-timeout = 90s", "in-flight = 0", "line 6: [daemon]: in-flight = 0: want a number from 1 to 1024"),
        (
            "idle-timeout = 90s",
            "timeout = 90s",
            "line 6: [daemon]: timeout: there is no such field; there are listen, metrics, certificate-file, key-file, \
             client-ca-file, connections, in-flight, idle-timeout, handshake-timeout, write-timeout and drain",
        ),
        ("module = /lib/a.so", "", "line 7: [token]: module is missing; add module = /path/to/module.so"),
        (
            "module = /lib/a.so",
            "address = hsm-b:7443",
            "line 7: [token]: address: a daemon serves a token of its own machine; name its module",
        ),
        (
            "may = status, sign",
            "may = status, fly",
            "line 13: [client web-gateway]: may = fly: want status, find, sign, generate and retire",
        ),
        ("may = status, sign", "", "line 11: [client web-gateway]: may is missing; add may = status, find, sign"),
        ("[client web-gateway]", "[client]", "line 11: [client]: want [daemon], [token] or [client NAME]"),
        ("[token]", "[tokens]", "line 7: [tokens]: want [daemon], [token] or [client NAME]"),
    ];
    for (line, replacement, message) in cases {
        assert!(CONFIG.contains(line), "{line}");
        assert_eq!(refused(&CONFIG.replacen(line, replacement, 1)), message);
    }
    assert_eq!(refused("[token]\n[client a]\nmay = sign\n"), "there is no section [daemon]; write one");
    let none = &CONFIG[..CONFIG.find("[client").unwrap()];
    assert_eq!(refused(none), "0 clients; write 1 to 1024 sections [client NAME]");
}
