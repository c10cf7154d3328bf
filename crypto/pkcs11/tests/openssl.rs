//! OpenSSL's commands with keys in a token: by way of pkcs11-provider, as the gateway's image has it, and this module. The
//! token is kryoptic's. What they make is checked by an OpenSSL that knows of no token.
//!
//! They need kryoptic and pkcs11-provider, which `images cargo -- test` brings, and are ignored unless asked for.

mod common;

use common::{
    fake::until,
    module,
    token::{Kind, Software::Kryoptic, Tokens},
};
use cryptoki_sys::{CKA_EXTRACTABLE, CKA_LOCAL};
use std::{
    env, fs,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

const KEYS: [&str; 5] = ["rsa", "p256", "p384", "mldsa65", "mldsa87"];

/// A token with a key of each kind, and what OpenSSL needs to use it.
struct Setup {
    tokens: Tokens,
}

impl Setup {
    fn new() -> Setup {
        Setup::with(&KEYS)
    }

    /// With these keys alone.
    fn with(labels: &[&str]) -> Setup {
        let mut tokens = Tokens::new(Kryoptic);
        let keys: Vec<(&str, Kind)> = Kryoptic.keys().iter().filter(|k| labels.contains(&k.0)).copied().collect();
        tokens.token("a", &keys);
        tokens.configuration(&["a"], labels, "timeout = 60000ms\nretry = 10ms\n");
        let provider =
            env::var("QTLS_PKCS11_PROVIDER").expect("set QTLS_PKCS11_PROVIDER to pkcs11-provider's pkcs11.so");
        let text = format!(
            "openssl_conf = init\n[init]\nproviders = list\n[list]\ndefault = on\npkcs11 = pkcs11\n[on]\nactivate = 1\n\
             [pkcs11]\nmodule = {provider}\npkcs11-module-path = {}\npkcs11-module-quirks = no-deinit no-operation-state\n\
             pkcs11-module-encode-provider-uri-to-pem = true\nactivate = 1\n[req]\ndistinguished_name = name\n[name]\n",
            module().display()
        );
        fs::write(tokens.dir.join("openssl.cnf"), text).unwrap();
        fs::write(tokens.dir.join("data"), "what is signed").unwrap();
        fs::write(tokens.dir.join("other"), "what is not signed").unwrap();
        Setup { tokens }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.tokens.dir.join(name)
    }

    /// openssl with the token; its files are in the tokens' folder.
    fn with_token(&self, args: &[&str]) -> Command {
        let mut command = self.software(args);
        command.env("OPENSSL_CONF", self.path("openssl.cnf")).env("QTLS_PKCS11_CONFIG", self.path("qtls.conf"));
        command
    }

    /// openssl without.
    fn software(&self, args: &[&str]) -> Command {
        let mut command = Command::new("openssl");
        command.args(args).current_dir(&self.tokens.dir).env("OPENSSL_CONF", "/dev/null").stdin(Stdio::null());
        command
    }

    fn make(&self, args: &[&str]) {
        let (output, text) = done(&mut self.with_token(args));
        assert!(output.status.success(), "openssl {args:?}: {text}");
    }

    fn check(&self, args: &[&str]) -> bool {
        let (output, text) = done(&mut self.software(args));
        println!("openssl {args:?}: {text}");
        output.status.success()
    }

    /// Whether programs may have keys made.
    fn generate(&self, may: bool) {
        let text = fs::read_to_string(self.path("qtls.conf")).unwrap();
        let text = ["true", "false"].iter().fold(text, |text, was| text.replace(&format!("generate = {was}\n"), ""));
        let text = text.replacen("[slot]\n", &format!("[slot]\ngenerate = {may}\n"), 1);
        fs::write(self.path("qtls.conf"), text).unwrap();
    }

    /// A certificate of a key in the token, signed by itself.
    fn certificate(&self, key: &str) -> String {
        let file = format!("{key}.crt");
        let name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "30"];
        let authority = ["-addext", "basicConstraints=critical,CA:TRUE"];
        self.make(&[&["req", "-x509", "-new", "-key", &uri(key), "-out", &file][..], &name, &authority].concat());
        file
    }
}

fn uri(key: &str) -> String {
    format!("pkcs11:token=gw;object={key};type=private")
}

fn done(command: &mut Command) -> (Output, String) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    (output, text)
}

/// An s_server at a socket of its own: no port that another process could have.
struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    fn start(setup: &Setup, key: &str, certificate: &str) -> Server {
        let log = setup.path("server.log");
        let socket = setup.path("socket");
        let _ = fs::remove_file(&socket);
        let out = fs::File::create(&log).unwrap();
        let child = setup
            .with_token(&[
                "s_server",
                "-unix",
                "socket",
                "-key",
                key,
                "-cert",
                certificate,
                "-tls1_3",
                "-naccept",
                "1000",
            ])
            .stdin(Stdio::piped()) // open for as long as it lives
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .spawn()
            .unwrap();
        let mut server = Server { child, log };
        until("s_server listens", || {
            if let Some(status) = server.child.try_wait().unwrap() {
                panic!("s_server {key}: {status}: {}", server.output());
            }
            server.output().contains("ACCEPT")
        });
        server
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "needs kryoptic and pkcs11-provider"]
fn keys_requests_certificates_and_signatures_are_what_software_takes_for_right() {
    let setup = Setup::new();
    for key in KEYS {
        // The public key. Of RSA pkcs11-provider writes the older form, RSA PUBLIC KEY, which any OpenSSL reads.
        setup.make(&["pkey", "-in", &uri(key), "-pubout", "-out", "provider.pem"]);
        assert!(setup.check(&["pkey", "-pubin", "-in", "provider.pem", "-pubout", "-out", "public.pem"]), "{key}");
        let public = setup.tokens.public_key(key);
        assert_eq!(fs::read(setup.path("public.pem")).unwrap(), fs::read(&public).unwrap(), "{key}");

        // A request, and a certificate that a key in the token signs.
        setup.make(&["req", "-new", "-key", &uri(key), "-subj", "/CN=of the token", "-out", "request.pem"]);
        assert!(setup.check(&["req", "-in", "request.pem", "-verify", "-noout"]), "{key}");
        let own = setup.certificate(key);
        assert!(setup.check(&["verify", "-CAfile", &own, &own]), "{key}");
        setup.make(&[
            "x509",
            "-req",
            "-in",
            "request.pem",
            "-CA",
            &own,
            "-CAkey",
            &uri(key),
            "-days",
            "30",
            "-out",
            "leaf.crt",
        ]);
        assert!(setup.check(&["verify", "-CAfile", &own, "leaf.crt"]), "{key}");

        // Signatures, of data and of a message of CMS.
        let public = public.to_str().unwrap();
        let verify = |data: &str| {
            setup.check(&[
                "pkeyutl",
                "-verify",
                "-rawin",
                "-in",
                data,
                "-sigfile",
                "signature",
                "-pubin",
                "-inkey",
                public,
            ])
        };
        setup.make(&["pkeyutl", "-sign", "-rawin", "-in", "data", "-inkey", &uri(key), "-out", "signature"]);
        assert!(verify("data"), "{key}");
        assert!(!verify("other"), "{key}: other data");
        if !key.starts_with("mldsa") {
            setup.make(&["dgst", "-sha384", "-sign", &uri(key), "-out", "signature", "data"]);
            let verify = |data| setup.check(&["dgst", "-sha384", "-verify", public, "-signature", "signature", data]);
            assert!(verify("data"), "{key}");
            assert!(!verify("other"), "{key}: other data");
        }
        setup.make(&[
            "cms",
            "-sign",
            "-binary",
            "-in",
            "data",
            "-signer",
            &own,
            "-inkey",
            &uri(key),
            "-md",
            "sha512",
            "-outform",
            "DER",
            "-out",
            "data.cms",
        ]);
        let verify = |data| {
            let message = ["cms", "-verify", "-binary", "-inform", "DER", "-in", "data.cms", "-CAfile", &own];
            setup.check(&[&message[..], &["-purpose", "any", "-content", data, "-out", "read"]].concat())
        };
        assert!(verify("data"), "{key}");
        assert!(!verify("other"), "{key}: other data");
    }
}

/// What keys `openssl` makes: names, the algorithm and its options.
const MADE: [(&str, &str, &[&str]); 7] = [
    ("new-rsa", "RSA", &["-pkeyopt", "rsa_keygen_bits:2048"]),
    ("new-p256", "EC", &["-pkeyopt", "ec_paramgen_curve:P-256"]),
    ("new-p384", "EC", &["-pkeyopt", "ec_paramgen_curve:P-384"]),
    ("new-p521", "EC", &["-pkeyopt", "ec_paramgen_curve:P-521"]),
    ("new-mldsa44", "ML-DSA-44", &[]),
    ("new-mldsa65", "ML-DSA-65", &[]),
    ("new-mldsa87", "ML-DSA-87", &[]),
];

/// genpkey's arguments for a key in the token, under a name and with an ID.
fn genpkey<'a>(algorithm: &'a str, options: &[&'a str], name: &'a str) -> Vec<&'a str> {
    let token = ["genpkey", "-propquery", "provider=pkcs11", "-algorithm", algorithm];
    [&token[..], options, &["-pkeyopt", name, "-out", "made.pem", "-outpubkey", "made.pub"]].concat()
}

#[test]
#[ignore = "needs kryoptic and pkcs11-provider"]
fn keys_that_genpkey_makes_in_the_token_are_certified() {
    let setup = Setup::with(&["p256"]);
    setup.generate(true);
    for (i, (key, algorithm, options)) in MADE.iter().enumerate() {
        let name = format!("pkcs11_uri:pkcs11:token=gw;object={key};id=%0{i}");
        setup.make(&genpkey(algorithm, options, &name));
        let secret = fs::read_to_string(setup.path("made.pem")).unwrap();
        assert!(secret.contains("BEGIN PKCS#11 PROVIDER URI"), "{key}: a name, and no key: {secret}");
        let public = setup.tokens.public_key(key);
        assert!(
            setup.check(&["pkey", "-pubin", "-in", "made.pub", "-pubout", "-out", public.to_str().unwrap()]),
            "{key}"
        );

        // The label is taken now.
        let (output, text) = done(&mut setup.with_token(&genpkey(algorithm, options, &name)));
        assert!(!output.status.success() && text.contains("has a key with that label"), "{key}: {text}");

        // In another process, by the file that names the key.
        let text = fs::read_to_string(setup.path("qtls.conf")).unwrap();
        let section = format!("[key {key}]\nid = 0{i}\npublic-key = {}\n", public.display());
        fs::write(setup.path("qtls.conf"), text + &section).unwrap();
        fs::write(setup.path("named.pem"), secret).unwrap();
        setup.make(&["req", "-new", "-key", "named.pem", "-subj", "/CN=of the token", "-out", "request.pem"]);
        assert!(setup.check(&["req", "-in", "request.pem", "-verify", "-noout"]), "{key}");
        assert!(setup.check(&["req", "-in", "request.pem", "-noout", "-pubkey", "-out", "certified.pub"]), "{key}");
        assert_eq!(fs::read(setup.path("certified.pub")).unwrap(), fs::read(&public).unwrap(), "{key}");
    }
}

#[test]
#[ignore = "needs kryoptic and pkcs11-provider"]
fn req_makes_a_key_in_the_token_and_its_request_at_once() {
    let setup = Setup::with(&["p256"]);
    setup.generate(true);
    for (key, algorithm, options) in [MADE[0], MADE[1], MADE[5]] {
        let name = format!("pkcs11_uri:pkcs11:token=gw;object={key}");
        let new = ["req", "-new", "-propquery", "?provider=pkcs11", "-newkey", algorithm];
        let rest = ["-pkeyopt", &name, "-noenc", "-keyout", "made.pem", "-subj", "/CN=new", "-out", "request.pem"];
        setup.make(&[&new[..], options, &rest].concat());
        assert!(setup.check(&["req", "-in", "request.pem", "-verify", "-noout"]), "{key}");
        let secret = fs::read_to_string(setup.path("made.pem")).unwrap();
        assert!(secret.contains("BEGIN PKCS#11 PROVIDER URI"), "{key}: {secret}");
        // It was made in the token: what the request is for is what the token has.
        assert_eq!(setup.tokens.private_key("a", key, &[CKA_LOCAL, CKA_EXTRACTABLE]), [true, false], "{key}");
    }
}

#[test]
#[ignore = "needs kryoptic and pkcs11-provider"]
fn no_key_is_made_where_the_configuration_does_not_allow_it_or_without_a_label() {
    let setup = Setup::with(&["p256"]);
    let (key, algorithm, options) = MADE[1];
    let name = format!("pkcs11_uri:pkcs11:token=gw;object={key}");
    for _ in 0..2 {
        let (output, text) = done(&mut setup.with_token(&genpkey(algorithm, options, &name)));
        assert!(!output.status.success() && !setup.path("made.pem").exists(), "{text}");
        setup.generate(false);
    }
    setup.make(&["pkeyutl", "-sign", "-rawin", "-in", "data", "-inkey", &uri("p256"), "-out", "signature"]);
    setup.generate(true);
    let (output, text) = done(&mut setup.with_token(&genpkey(algorithm, options, "pkcs11_uri:pkcs11:token=gw")));
    assert!(!output.status.success() && !setup.path("made.pem").exists(), "without a label: {text}");
    // The control: all that was missing is the permission and the label, and nothing was made before.
    setup.make(&genpkey(algorithm, options, &name));
}

#[test]
#[ignore = "needs kryoptic and pkcs11-provider"]
fn a_tls_server_has_its_key_in_the_token() {
    let setup = Setup::new();
    let trusted = setup.certificate("p384");
    for (key, scheme) in [("rsa", "rsa_pss_rsae_sha256"), ("p256", "ecdsa_secp256r1_sha256"), ("mldsa65", "mldsa65")] {
        let own = setup.certificate(key);
        let server = Server::start(&setup, &uri(key), &own);
        let client = |trusted: &str| {
            let client = ["s_client", "-unix", "socket", "-servername", "localhost", "-verify_return_error"];
            done(&mut setup.software(&[&client[..], &["-CAfile", trusted, "-sigalgs", scheme]].concat()))
        };
        for _ in 0..3 {
            let (output, text) = client(&own);
            let ok = output.status.success() && text.contains("Verify return code: 0 (ok)");
            assert!(ok && text.contains(&format!("Peer signature type: {scheme}")), "{key}: {text}{}", server.output());
        }
        let (output, text) = client(&trusted);
        assert!(!output.status.success(), "{key}: a client that trusts another: {text}");
    }
}

#[test]
#[ignore = "needs kryoptic and pkcs11-provider"]
fn a_pin_file_that_is_missing_is_named_and_nobody_is_asked_for_the_pin() {
    let setup = Setup::new();
    let sign = |stdin: Stdio| {
        let args = ["pkeyutl", "-sign", "-rawin", "-in", "data", "-inkey", &uri("p256"), "-out", "signature"];
        // In a session of its own, so that there is no terminal to ask at.
        let mut command = Command::new("setsid");
        let openssl = setup.with_token(&args);
        command.args(["--wait", "openssl"]).args(args).current_dir(&setup.tokens.dir).stdin(stdin);
        for (name, value) in openssl.get_envs() {
            command.env(name, value.unwrap());
        }
        done(&mut command)
    };
    let (output, text) = sign(Stdio::null());
    assert!(output.status.success(), "{text}");
    fs::remove_file(setup.path("signature")).unwrap();
    let pin = setup.path("pin");
    fs::rename(&pin, setup.path("elsewhere")).unwrap();
    // Whoever asked would get the right answer.
    let (output, text) = sign(fs::File::open(setup.path("elsewhere")).unwrap().into());
    assert!(!output.status.success(), "{text}");
    let message = format!("pin-file {}: No such file or directory", pin.display());
    assert!(text.contains(&message), "{text}");
    assert!(!text.to_lowercase().contains("enter"), "{text}");
}

#[test]
#[ignore = "needs kryoptic and pkcs11-provider"]
fn without_any_member_a_server_with_a_software_key_starts_and_public_keys_are_there() {
    let setup = Setup::new();
    let text = fs::read_to_string(setup.path("qtls.conf")).unwrap();
    let module = setup.tokens.module("a");
    fs::write(setup.path("qtls.conf"), text.replace(module.to_str().unwrap(), "/none.so")).unwrap();
    setup.make(&["pkey", "-in", &uri("mldsa65"), "-pubout", "-out", "public.pem"]);
    let name = ["-subj", "/CN=localhost", "-days", "30", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
    setup.make(&[&["req", "-x509", "-nodes", "-keyout", "soft.pem", "-out", "soft.crt"][..], &name].concat());
    let server = Server::start(&setup, "soft.pem", "soft.crt");
    let (output, text) =
        done(&mut setup.software(&["s_client", "-unix", "socket", "-CAfile", "soft.crt", "-verify_return_error"]));
    assert!(output.status.success() && text.contains("Verify return code: 0 (ok)"), "{text}{}", server.output());
    // The control: with a key in the token it cannot sign.
    let (output, text) = done(&mut setup.with_token(&[
        "pkeyutl",
        "-sign",
        "-rawin",
        "-in",
        "data",
        "-inkey",
        &uri("p256"),
        "-out",
        "none",
    ]));
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("/none.so"), "{text}");
}
