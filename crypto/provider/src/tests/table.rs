//! The table itself, and what the environment may change about it.

use super::support::provider_with;
use crate::{
    algorithm::{Algorithm, ALGORITHMS},
    error::Reason,
    standard,
};
use std::collections::HashMap;

fn unique<K: std::hash::Hash + Eq + std::fmt::Debug>(what: &str, key: impl Fn(&Algorithm) -> Vec<K>) {
    let mut seen = HashMap::new();
    for a in &ALGORITHMS {
        for k in key(a) {
            if let Some(other) = seen.insert(k, a.name) {
                panic!("{} and {other} have the same {what}", a.name);
            }
        }
    }
}

#[test]
fn nothing_is_there_twice() {
    unique("name", |a| a.aliases.iter().chain([&a.name]).map(|n| n.to_lowercase()).collect());
    unique("code point", |a| vec![a.code_point]);
    unique("object identifier", |a| a.oid.into_iter().collect());
}

#[test]
fn every_signature_has_an_object_identifier() {
    for a in ALGORITHMS.iter().filter(|a| a.is_signature()) {
        assert!(a.oid.is_some(), "{} cannot sign certificates", a.name);
    }
}

#[test]
fn names_tell_the_classical_half() {
    for a in &ALGORITHMS {
        let prefix = a.classical.map(|c| format!("{c:?}_").to_lowercase());
        match prefix {
            Some(p) => assert!(a.name.starts_with(&p), "{} has the classical half {p}", a.name),
            None => assert!(!a.name.starts_with(['p', 'x', 'r']), "{} has no classical half", a.name),
        }
    }
}

#[test]
fn the_environment_changes_code_points_and_object_identifiers() {
    let p = provider_with(|name| match name {
        "OQS_CODEPOINT_FRODO640AES" => Some("0x1234".into()),
        "OQS_OID_P256_FALCON512" => Some("1.2.3.4".into()),
        "OQS_OID_FRODO640AES" => Some("1.2.3.5".into()),
        _ => None,
    })
    .unwrap();
    let of = |name: &str| p.registered.iter().find(|r| r.algorithm.name == name).unwrap();
    assert_eq!(of("frodo640aes").code_point, 0x1234);
    assert_eq!(of("frodo640aes").oid.as_deref(), Some(c"1.2.3.5"), "also where the table has none");
    assert_eq!(of("p256_falcon512").oid.as_deref(), Some(c"1.2.3.4"));
    assert_eq!(of("falcon512").code_point, 0xfed7, "the others stay");
    assert_eq!(of("falcon512").oid.as_deref(), Some(c"1.3.9999.3.11"));
}

#[test]
fn a_wrong_override_is_refused_by_its_name() {
    for (variable, value) in [
        ("OQS_CODEPOINT_HAETAE2", "0"),
        ("OQS_CODEPOINT_HAETAE2", "65536"),
        ("OQS_CODEPOINT_HAETAE2", "haetae"),
        ("OQS_CODEPOINT_HAETAE2", ""),
        ("OQS_OID_HAETAE2", "1"),
        ("OQS_OID_HAETAE2", "1.2.x"),
        ("OQS_OID_HAETAE2", ""),
    ] {
        let error = provider_with(|name| (name == variable).then(|| value.into())).err().expect(value);
        assert_eq!(error.reason, Reason::Internal);
        assert!(error.detail.contains(&format!("{variable}={value:?}")), "{}", error.detail);
    }
}

/// The algorithms that OpenSSL has too, from the same table.
#[test]
fn the_standard_algorithms_are_the_tables() {
    let text = include_str!("../../../algorithms.csv");
    let columns: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    let rows: Vec<HashMap<&str, &str>> =
        text.lines().skip(1).map(|l| columns.iter().copied().zip(l.split(',')).collect()).collect();
    for s in &standard::ALGORITHMS {
        let name = s.tls_name.to_str().unwrap();
        let row = rows.iter().find(|r| r["name"] == name && r["library"] == "openssl").expect(name);
        let number = |column| row[column].parse().unwrap_or(0);
        assert_eq!(s.code_point, u32::from_str_radix(&row["code_point"][2..], 16).unwrap(), "{name}");
        assert_eq!(s.public_size(), number("public_key"), "{name}");
        let output = if s.is_signature() { "signature" } else { "ciphertext" };
        assert_eq!(s.output_size(), number(output), "{name}");
        assert_eq!(s.secret_size(), number("shared_secret"), "{name}");
        let names: Vec<&str> = s.names.to_str().unwrap().split(':').collect();
        assert!(
            !row["hybrid"].is_empty() || names.contains(&row["primitive"]),
            "{name} is {names:?}, not {}",
            row["primitive"]
        );
        assert!(row["oid"].is_empty() || names.contains(&row["oid"]), "{name} is {names:?}, not {}", row["oid"]);
    }
    let fast = rows.iter().filter(|r| r["library"] == "openssl" && ["ML-KEM", "ML-DSA"].contains(&r["family"]));
    assert_eq!(fast.count(), standard::ALGORITHMS.len());
}
