//! How the module is loaded, and what the environment changes.

mod common;

use common::{run, Dir, Done, Server};

fn with(dir: &Dir, variables: &[(&str, &str)], arguments: &str, input: &str) -> Done {
    let line = format!("openssl {arguments}");
    let mut command = dir.command(&line);
    command.envs(variables.iter().copied());
    run(command, format!("{variables:?} {line}"), input)
}

/// The configuration of a system without the provider.
const NONE: (&str, &str) = ("OPENSSL_CONF", "/dev/null");

#[test]
fn a_configuration_file_loads_it() {
    let dir = Dir::new();
    dir.openssl("list -providers").shows("oqsprovider").shows("status: active").ok();
    dir.openssl("genpkey -algorithm haetae2 -out key").ok();
    let error = with(&dir, &[NONE], "genpkey -algorithm haetae2 -out key", "").fails();
    assert!(error.contains("haetae2"), "{error}");
}

#[test]
fn the_command_line_loads_it() {
    let dir = Dir::new();
    let path = dir.path().display().to_string();
    let both = "-provider default -provider oqsprovider";
    with(&dir, &[NONE], &format!("genpkey {both} -algorithm haetae2 -out key"), "").ok();
    with(&dir, &[NONE, ("OPENSSL_MODULES", "/")], &format!("pkey -provider-path {path} {both} -in key -noout"), "")
        .ok();
    let error = with(&dir, &[NONE, ("OPENSSL_MODULES", "/")], &format!("pkey {both} -in key -noout"), "").fails();
    assert!(error.contains("unable to load provider oqsprovider"), "{error}");
}

/// With the module alone there is no randomness and no elliptic curve; that is an error, no crash.
#[test]
fn alone_it_says_what_it_misses() {
    let dir = Dir::new();
    with(&dir, &[NONE], "list -providers -provider oqsprovider", "").shows("oqsprovider").ok();
    for name in ["haetae2", "p256_haetae2", "smaug_t1"] {
        let error =
            with(&dir, &[NONE], &format!("genpkey -provider oqsprovider -algorithm {name} -out key"), "").fails();
        assert!(error.contains("oqsprovider"), "{error}");
    }
}

#[test]
fn a_property_query_finds_it() {
    let dir = Dir::new();
    dir.openssl("genpkey -algorithm haetae2 -propquery provider=oqsprovider -out key").ok();
    dir.openssl("pkey -propquery ?provider=oqsprovider -in key -noout").ok();
    dir.openssl("genpkey -algorithm haetae2 -propquery provider=default -out key").fails();
}

/// Both sides must have the same code point.
#[test]
fn a_code_point_is_overridden() {
    let dir = Dir::new();
    dir.openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ec.key -out ec.crt -subj /CN=x")
        .ok();
    let server = Server::start(&dir, "-cert ec.crt -key ec.key -groups smaug_t1:smaug_t3");
    let connect = |variables: &[(&str, &str)], group: &str| {
        let port = server.port;
        let arguments = format!("s_client -connect 127.0.0.1:{port} -ign_eof -groups {group}");
        with(&dir, variables, &arguments, "GET / HTTP/1.0\r\n\r\n")
    };
    connect(&[], "smaug_t1").shows("Negotiated TLS1.3 group: smaug_t1\n").ok();
    let error = connect(&[("OQS_CODEPOINT_SMAUG_T1", "0xFEFF")], "smaug_t1").fails();
    assert!(error.contains("alert handshake failure"), "{error}");
    // What the client calls smaug_t1 is smaug_t3 to the server, which does not fit.
    let swapped = [("OQS_CODEPOINT_SMAUG_T1", "0xFE48"), ("OQS_CODEPOINT_SMAUG_T3", "0xFE45")];
    let error = connect(&swapped, "smaug_t1").fails();
    assert!(error.contains("alert"), "{error}");
    connect(&[("OQS_CODEPOINT_SMAUG_T3", "65097")], "smaug_t1").shows("Negotiated TLS1.3 group: smaug_t1\n").ok();
}

#[test]
fn an_object_identifier_is_overridden() {
    let dir = Dir::new();
    let other = [("OQS_OID_HAETAE2", "1.2.3.4.5")];
    with(&dir, &other, "genpkey -algorithm haetae2 -out key", "").ok();
    dir.openssl("asn1parse -in key").shows(":1.2.3.4.5").ok();
    with(&dir, &other, "pkey -in key -noout -text", "").shows("haetae2 Private-Key").ok();
    dir.openssl("pkey -in key -noout").fails();
    with(&dir, &other, "req -x509 -new -key key -subj /CN=x -out crt", "").ok();
    with(&dir, &other, "verify -CAfile crt -check_ss_sig crt", "").shows("crt: OK").ok();
    // One where the table has none: the group's keys then have a file form.
    let new = [("OQS_OID_FRODO640AES", "1.2.3.4.6")];
    with(&dir, &new, "genpkey -algorithm frodo640aes -out key", "").ok();
    with(&dir, &new, "pkey -in key -check -noout", "").shows("Key is valid").ok();
}

#[test]
fn a_wrong_override_keeps_it_from_loading() {
    let dir = Dir::new();
    for variable in [
        ("OQS_CODEPOINT_HAETAE2", "0"),
        ("OQS_CODEPOINT_P256_SMAUG_T1", "70000"),
        ("OQS_CODEPOINT_SMAUG_T1", "smaug"),
        ("OQS_OID_HAETAE2", "9.9"),
        ("OQS_OID_OV_IS", ""),
    ] {
        let error = with(&dir, &[NONE, variable], "list -providers -provider oqsprovider", "").fails();
        let want = format!("{}={:?} is no", variable.0, variable.1);
        assert!(error.contains(&want), "{want}: {error}");
        // OpenSSL forgets what fails in a configuration file: the provider is not there then.
        let listed = with(&dir, &[variable], "list -providers", "").ok();
        assert!(!listed.contains("oqsprovider"), "{listed}");
    }
}
