//! The `openssl` command's work with keys, certificates and messages, for every algorithm that has an object identifier.

mod common;

use common::{every, Dir};
use oqsprovider::{
    algorithm::{Algorithm, ALGORITHMS},
    der, standard,
};

fn has_oid(a: &Algorithm) -> bool {
    a.oid.is_some()
}

/// Changes the byte at a distance from the end.
fn changed(bytes: &[u8], from_end: usize) -> Vec<u8> {
    let mut v = bytes.to_vec();
    let at = v.len() - 1 - from_end;
    v[at] ^= 1;
    v
}

#[test]
fn keys_are_written_and_read() {
    every(has_oid, |a, dir| {
        let name = a.name;
        dir.openssl(&format!("genpkey -algorithm {name} -out key")).ok();
        assert!(dir.text("key").starts_with("-----BEGIN PRIVATE KEY-----\n"));
        let text = dir.openssl("pkey -in key -text -noout").ok();
        assert!(text.starts_with(&format!("{name} Private-Key: (")), "{text:.200}");
        assert!(text.contains("\npriv:\n    ") && text.contains("\npub:\n    "), "{text:.200}");
        dir.openssl("pkey -in key -check -pubcheck -noout").shows("Key is valid").ok();

        // The same key in DER, and back.
        dir.openssl("pkey -in key -outform DER -out key.der").ok();
        dir.openssl("pkey -in key.der -inform DER -out again").ok();
        assert!(dir.read("again") == dir.read("key"));

        // Its public key, from PEM and from DER.
        dir.openssl("pkey -in key -pubout -out public").ok();
        assert!(dir.text("public").starts_with("-----BEGIN PUBLIC KEY-----\n"));
        dir.openssl("pkey -in key -pubout -outform DER -out public.der").ok();
        dir.openssl("pkey -pubin -in public.der -inform DER -out again").ok();
        assert!(dir.read("again") == dir.read("public"));
        let public = dir.openssl("pkey -pubin -in public -pubcheck -text -noout").shows("Key is valid").ok();
        assert!(public.contains(&format!("{name} Public-Key: (")), "{public:.200}");
        let hexdump = |text: &str| text[text.find("\npub:\n").unwrap()..].to_string();
        assert!(hexdump(&public) == hexdump(&text), "the public key is the private one's");

        // Encrypted.
        dir.openssl("pkey -in key -aes256 -passout pass:right -out sealed").ok();
        assert!(dir.text("sealed").starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----\n"));
        dir.openssl("pkey -in sealed -passin pass:right -out again").ok();
        assert!(dir.read("again") == dir.read("key"));
        let error = dir.openssl("pkey -in sealed -passin pass:wrong -noout").fails();
        // One time in 256 the padding looks right; what is in it then is no key.
        assert!(error.contains("maybe wrong password") || error.contains("No supported data to decode"), "{error}");
        dir.openssl("pkcs8 -topk8 -in key -v2 aes256 -passout pass:right -outform DER -out sealed.der").ok();
        dir.openssl("pkey -in sealed.der -inform DER -passin pass:right -out again").ok();
        assert!(dir.read("again") == dir.read("key"));
    });
}

/// Groups without object identifier are for TLS only.
#[test]
fn keys_without_object_identifier_have_no_file() {
    every(
        |a| a.oid.is_none(),
        |a, dir| {
            let error = dir.openssl(&format!("genpkey -algorithm {} -out key", a.name)).fails();
            assert!(error.contains("No encoders were found"), "{error}");
        },
    );
}

/// Why, the command cannot tell: OpenSSL's file store forgets the reasons of decoders (tests/library.rs has them).
#[test]
fn a_file_that_is_no_key_is_refused() {
    every(has_oid, |a, dir| {
        dir.openssl(&format!("genpkey -algorithm {} -outform DER -out key", a.name)).ok();
        dir.openssl("pkey -in key -pubout -outform DER -out public").ok();
        let (private, public) = (dir.read("key"), dir.read("public"));
        for n in [private.len() - 1, private.len() / 2, 20] {
            dir.write("bad", &private[..n]);
            dir.openssl("pkey -in bad -noout").fails();
        }
        dir.write("bad", &public[..public.len() - 1]);
        dir.openssl("pkey -pubin -in bad -noout").fails();
        let identifier = der::algorithm_identifier(a.oid.unwrap()).unwrap();
        let bytes = der::parse_private_key_info(&private, &identifier).unwrap();
        for wrong in [&bytes[..bytes.len() - 1], &[bytes, &[0]].concat(), &[]] {
            dir.write("bad", der::private_key_info(&identifier, wrong).as_slice());
            dir.openssl("pkey -in bad -noout").fails();
        }

        // The two keys in the file are not a pair.
        let mut bad = bytes.to_vec();
        let (end, public) = (bytes.len(), a.key_sizes().0);
        bad[end - public..end - public / 2].fill(0x11);
        dir.write("bad", der::private_key_info(&identifier, &bad).as_slice());
        dir.openssl("pkey -in bad -noout").ok();
        dir.openssl("pkey -in bad -check -noout").fails();
    });
}

#[test]
fn certificates_requests_and_messages() {
    // Of the slowest to sign, only those without a classical half.
    let kind = |a: &Algorithm| a.is_signature() && !(a.name.contains("ssimple") && a.classical.is_some());
    every(kind, |a, dir| {
        // An authority, and a certificate of it.
        dir.openssl(&format!("genpkey -algorithm {} -out ca.key", a.name)).ok();
        dir.openssl("req -x509 -new -key ca.key -subj /CN=ca -out ca.crt").ok();
        dir.openssl(&format!("genpkey -algorithm {} -out leaf.key", a.name)).ok();
        dir.openssl("req -new -key leaf.key -subj /CN=leaf -outform DER -out leaf.csr").ok();
        dir.openssl(
            "x509 -req -in leaf.csr -CA ca.crt -CAkey ca.key -extfile openssl.cnf -extensions leaf -outform DER -out leaf.crt",
        )
        .ok();
        dir.openssl("verify -CAfile ca.crt -check_ss_sig -x509_strict leaf.crt").shows("leaf.crt: OK").ok();
        dir.openssl("verify -CAfile ca.crt -check_ss_sig ca.crt").shows("ca.crt: OK").ok();
        let text = dir.openssl("x509 -in leaf.crt -text -noout").ok();
        assert_eq!(text.matches(&format!("Signature Algorithm: {}\n", a.name)).count(), 2, "{text:.500}");
        assert!(text.contains(&format!("Public Key Algorithm: {}\n", a.name)), "{text:.500}");

        // Controls: a byte of the signature, and one of what is signed.
        let leaf = dir.read("leaf.crt");
        dir.write("bad.crt", changed(&leaf, 7));
        let error = dir.openssl("verify -CAfile ca.crt bad.crt").fails();
        assert!(error.contains("certificate signature failure"), "{error}");
        let mut bad = leaf.clone();
        let at = bad.windows(4).position(|w| w == b"leaf").unwrap();
        bad[at] ^= 1;
        dir.write("bad.crt", bad);
        let error = dir.openssl("verify -CAfile ca.crt bad.crt").fails();
        assert!(error.contains("certificate signature failure"), "{error}");
        dir.openssl("x509 -in ca.crt -outform DER -out ca.der").ok();
        dir.write("bad.crt", changed(&dir.read("ca.der"), 7));
        let error = dir.openssl("verify -CAfile bad.crt -check_ss_sig bad.crt").fails();
        assert!(error.contains("certificate signature failure"), "{error}");

        // The request.
        dir.openssl("req -in leaf.csr -verify -noout").ok();
        dir.write("bad.csr", changed(&dir.read("leaf.csr"), 7));
        let error = dir.openssl("req -in bad.csr -verify -noout").fails();
        assert!(error.contains("self-signature verify failure"), "{error}");

        // Revocation.
        dir.write("index.txt", "");
        dir.write("crlnumber", "01\n");
        dir.openssl("x509 -in leaf.crt -out leaf.pem").ok();
        dir.openssl("ca -config openssl.cnf -revoke leaf.pem -keyfile ca.key -cert ca.crt").ok();
        dir.openssl("ca -config openssl.cnf -gencrl -keyfile ca.key -cert ca.crt -out crl").ok();
        let verified = dir.openssl("crl -in crl -CAfile ca.crt -noout");
        assert!(verified.stderr.contains("verify OK"), "{verified}");
        let error = dir.openssl("verify -CAfile ca.crt -CRLfile crl -crl_check leaf.crt").fails();
        assert!(error.contains("certificate revoked"), "{error}");
        dir.openssl("crl -in crl -outform DER -out crl.der").ok();
        dir.write("bad.crl", changed(&dir.read("crl.der"), 7));
        let verified = dir.openssl("crl -in bad.crl -CAfile ca.crt -noout");
        assert!(verified.stderr.contains("verify failure"), "{verified}");

        // A signed message: CMS digests it, so it needs the digest's name.
        dir.write("message", "what is signed\n");
        let signed =
            "cms -sign -signer leaf.crt -inkey leaf.key -md sha512 -in message -nodetach -outform DER -out signed";
        dir.openssl(signed).ok();
        let verify = "-verify -CAfile ca.crt -purpose any -inform DER";
        dir.openssl(&format!("cms {verify} -in signed -out got")).ok();
        assert_eq!(dir.text("got").trim_end(), "what is signed");
        dir.write("bad", changed(&dir.read("signed"), 7));
        dir.openssl(&format!("cms {verify} -in bad -out got")).fails();

        // The same with the signature alone; streamed, and in one.
        dir.openssl("pkey -in leaf.key -pubout -out leaf.pub").ok();
        dir.openssl("dgst -sign leaf.key -out signature message").ok();
        dir.openssl("dgst -verify leaf.pub -signature signature message").shows("Verified OK").ok();
        dir.openssl("pkeyutl -verify -pubin -inkey leaf.pub -rawin -in message -sigfile signature").ok();
        let error = dir.openssl("dgst -verify leaf.pub -signature signature ca.crt").fails();
        assert!(error.contains("oqsprovider::signature mismatch") && error.contains(a.name), "{error}");
    });
}

#[test]
fn digests_are_signed_where_they_are_named() {
    let dir = Dir::new();
    dir.write("message", "what is signed\n");
    for name in ["haetae2", "p256_falcon512"] {
        dir.openssl(&format!("genpkey -algorithm {name} -out key")).ok();
        dir.openssl("pkey -in key -pubout -out public").ok();
        dir.openssl("dgst -sha256 -sign key -out signature message").ok();
        dir.openssl("dgst -sha256 -verify public -signature signature message").shows("Verified OK").ok();
        dir.openssl("dgst -sha512 -verify public -signature signature message").fails();
        dir.openssl("dgst -verify public -signature signature message").fails();
        // What is signed is the digest.
        dir.openssl("dgst -sha256 -binary -out digest message").ok();
        dir.openssl("pkeyutl -verify -pubin -inkey public -in digest -sigfile signature").ok();
    }
}

#[test]
fn a_kem_key_encapsulates() {
    every(
        |a| has_oid(a) && common::is_kem(a),
        |a, dir| {
            for key in ["key", "other"] {
                dir.openssl(&format!("genpkey -algorithm {} -out {key}", a.name)).ok();
            }
            dir.openssl("pkey -in key -pubout -out public").ok();
            dir.openssl("pkeyutl -encap -pubin -inkey public -out ciphertext -secret secret").ok();
            dir.openssl("pkeyutl -decap -inkey key -in ciphertext -secret got").ok();
            assert!(dir.read("got") == dir.read("secret") && !dir.read("got").is_empty());
            dir.openssl("pkeyutl -decap -inkey other -in ciphertext -secret got").ok();
            assert!(dir.read("got") != dir.read("secret"));
            let ciphertext = dir.read("ciphertext");
            dir.write("ciphertext", &ciphertext[1..]);
            let error = dir.openssl("pkeyutl -decap -inkey key -in ciphertext -secret got").fails();
            assert!(error.contains("oqsprovider::invalid length") && error.contains(a.name), "{error}");
        },
    );
}

#[test]
fn everything_is_listed() {
    let dir = Dir::new();
    let list = |what: &str| -> Vec<String> {
        let ours = |l: &&str| l.contains("@ oqsprovider");
        let name = |l: &str| l.trim_matches([' ', '{']).split([' ', ',', '}']).next().unwrap().to_string();
        // "{ 1.2.3, name }" or "name".
        let last =
            |l: &str| l.split('@').next().unwrap().trim_matches([' ', '}']).rsplit(", ").next().map(name).unwrap();
        dir.openssl(&format!("list -{what}")).ok().lines().filter(ours).map(last).collect()
    };
    let names = |kind: &dyn Fn(&Algorithm) -> bool| -> Vec<String> {
        let mut v: Vec<String> = ALGORITHMS.iter().filter(|a| kind(a)).map(|a| a.name.into()).collect();
        v.sort();
        v
    };
    let check = |what: &str, want: Vec<String>| {
        let mut got = list(what);
        got.sort();
        got.dedup();
        // OpenSSL's own are tests/standard.rs's.
        got.retain(|g| !standard::ALGORITHMS.iter().any(|s| s.names.to_str().unwrap().split(':').any(|n| n == g)));
        let known: Vec<&Algorithm> = ALGORITHMS.iter().collect();
        // An alias may come last.
        for g in &mut got {
            if let Some(a) = known.iter().find(|a| a.aliases.contains(&g.as_str())) {
                *g = a.name.into();
            }
        }
        got.sort();
        assert_eq!(got, want, "{what}");
    };
    check("kem-algorithms", names(&|a| !a.is_signature()));
    check("signature-algorithms", names(&|a| a.is_signature()));
    check("encoders", names(&|a| a.oid.is_some()));
    check("decoders", names(&|a| a.oid.is_some()));

    let groups = dir.openssl("list -tls-groups").ok();
    let schemes = dir.openssl("list -tls-signature-algorithms").ok();
    for a in ALGORITHMS.iter() {
        let text = if a.is_signature() { &schemes } else { &groups };
        assert_eq!(text.trim().split(':').any(|n| n == a.name), a.fits_tls(), "{}", a.name);
    }
    dir.openssl("list -providers").shows("Q-TLS post-quantum provider").ok();
}

#[test]
fn speed_measures() {
    let dir = Dir::new();
    for (name, row) in [("p256_smaug_t1", "decaps/s"), ("p256_haetae2", "verify/s")] {
        let measured = |seconds: u32| {
            let out = dir.openssl(&format!("speed -seconds {seconds} {name}")).shows(row).ok();
            let numbers = out.lines().last().unwrap().trim().strip_prefix(name).expect(&out);
            let rates: Vec<f64> = numbers.split_whitespace().skip(3).map(|n| n.parse().expect(&out)).collect();
            assert!(rates.len() == 3, "{out}");
            rates.iter().all(|r| *r > 0.0)
        };
        // A busy machine may not give the command the time for one operation in a second.
        assert!([1, 10, 100].into_iter().any(measured), "{name} does nothing in 100 s");
    }
}
