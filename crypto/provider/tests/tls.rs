//! TLS 1.3 by `openssl s_server` and `openssl s_client`: every group, and every signature algorithm on both sides.

mod common;

use common::{every, is_kem, Dir, Server};
use oqsprovider::algorithm::{Algorithm, ALGORITHMS};

/// A server with an ECDSA certificate and some groups.
fn server_with_groups(dir: &Dir, groups: &str) -> Server {
    dir.openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ec.key -out ec.crt -subj /CN=localhost",
    )
    .ok();
    Server::start(dir, &format!("-cert ec.crt -key ec.key -groups {groups}"))
}

fn names(kind: impl Fn(&Algorithm) -> bool) -> String {
    ALGORITHMS.iter().filter(|a| kind(a)).map(|a| a.name).collect::<Vec<_>>().join(":")
}

#[test]
fn every_group_agrees() {
    let own = Dir::new();
    let server = server_with_groups(&own, &names(is_kem));
    every(is_kem, |a, _| {
        server
            .request(&own, &format!("-groups {} -CAfile ec.crt -verify_return_error", a.name))
            .shows(&format!("Negotiated TLS1.3 group: {}\n", a.name))
            .shows("Verification: OK")
            .shows("HTTP/1.0 200 ok")
            .ok();
    });
}

#[test]
fn a_group_that_the_server_does_not_offer_is_refused() {
    let dir = Dir::new();
    let server = server_with_groups(&dir, "p256_smaug_t1:smaug_t3");
    server.request(&dir, "-groups p256_smaug_t1").shows("HTTP/1.0 200 ok").ok();
    let error = server.request(&dir, "-groups smaug_t1:p256_frodo640aes").fails();
    assert!(error.contains("alert handshake failure"), "{error}");
    // What both have is found by a second hello, when the first comes with another's share.
    server
        .request(&dir, "-groups smaug_t1:smaug_t3")
        .shows("Negotiated TLS1.3 group: smaug_t3\n")
        .shows("HTTP/1.0 200 ok")
        .ok();
}

#[test]
fn every_signature_authenticates_server_and_client() {
    every(
        |a| a.is_signature() && a.fits_tls(),
        |a, dir| {
            for side in ["server", "client"] {
                dir.openssl(&format!("genpkey -algorithm {} -out {side}.key", a.name)).ok();
                dir.openssl(&format!("req -x509 -new -key {side}.key -subj /CN={side} -out {side}.crt")).ok();
            }
            // A ticket holds the client's certificate, and has 65,535 bytes at most: OpenSSL fails with one that does
            // not fit, unless it keeps sessions itself.
            let tickets = if dir.read("client.crt").len() > 80_000 { "-no_ticket" } else { "" };
            let server = Server::start(
                dir,
                &format!(
                    "-cert server.crt -key server.key -Verify 1 -verify_return_error -CAfile client.crt {tickets}"
                ),
            );
            let trust = "-CAfile server.crt -verify_return_error";
            server
                .request(dir, &format!("{trust} -cert client.crt -key client.key"))
                .shows(&format!("Peer signature type: {}\n", a.name))
                .shows("Verification: OK")
                .shows("HTTP/1.0 200 ok")
                .shows("Client certificate\n")
                .ok();
            if a.name.contains("ssimple") {
                return; // signing takes a second
            }
            // Controls: no certificate, one that the server does not know, and a server that the client does not know.
            server.request(dir, trust).fails();
            server.request(dir, &format!("{trust} -cert server.crt -key server.key")).fails();
            let error = server.request(dir, "-CAfile client.crt -verify_return_error").fails();
            assert!(error.contains("certificate verify failed"), "{error}");
            let log = dir.text("server.log");
            assert!(log.contains("peer did not return a certificate"), "{log}");
            assert!(log.contains("certificate verify failed"), "{log}");
        },
    );
}

#[test]
fn a_certificate_too_large_for_tls_is_no_scheme() {
    let dir = Dir::new();
    for a in ALGORITHMS.iter().filter(|a| a.is_signature() && !a.fits_tls()) {
        let error = dir.openssl(&format!("s_client -connect 127.0.0.1:1 -sigalgs {}", a.name)).fails();
        assert!(error.contains(a.name), "{}: {error}", a.name);
    }
}

#[test]
fn a_session_is_resumed() {
    let dir = Dir::new();
    let server = server_with_groups(&dir, "p256_smaug_t1:x25519_mlkem512");
    for group in ["p256_smaug_t1", "x25519_mlkem512"] {
        let groups = format!("-groups {group} -CAfile ec.crt -verify_return_error");
        server.request(&dir, &format!("{groups} -sess_out session")).shows("New, TLSv1.3").ok();
        server
            .request(&dir, &format!("{groups} -sess_in session"))
            .shows("Reused, TLSv1.3")
            .shows(&format!("Negotiated TLS1.3 group: {group}\n"))
            .ok();
    }
}

#[test]
fn a_session_of_a_client_certificate_is_resumed() {
    let dir = Dir::new();
    for side in ["server", "client"] {
        dir.openssl(&format!("genpkey -algorithm p256_haetae2 -out {side}.key")).ok();
        dir.openssl(&format!("req -x509 -new -key {side}.key -subj /CN={side} -out {side}.crt")).ok();
    }
    let server =
        Server::start(&dir, "-cert server.crt -key server.key -Verify 1 -verify_return_error -CAfile client.crt");
    let client = "-CAfile server.crt -verify_return_error -cert client.crt -key client.key -groups smaug_t1:X25519";
    server.request(&dir, &format!("{client} -sess_out session")).shows("New, TLSv1.3").shows("HTTP/1.0 200 ok").ok();
    server.request(&dir, &format!("{client} -sess_in session")).shows("Reused, TLSv1.3").shows("HTTP/1.0 200 ok").ok();
}
