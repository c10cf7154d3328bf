//! The KpqC cases.

use crate::{
    client::{Client, Tally},
    pki,
    server::{Providers, Server, Settings},
    stats::spread,
    Result,
};
use openssl::provider::Provider;
use std::time::{Duration, Instant};

/// The three cases of the KpqC migration.
const CASES: [(&str, &str, &str); 3] = [
    ("classical certificate, hybrid key exchange", "ECDSA-P256", "p256_smaug_t1"),
    ("KpqC certificate, hybrid key exchange", "haetae2", "p256_smaug_t1"),
    ("KpqC certificate, KpqC key exchange", "haetae2", "smaug_t1"),
];

/// By level: family, group and certificate.
const LEVELS: [(&str, &str, &str, &str); 13] = [
    ("1", "classical", "P-256", "ECDSA-P256"),
    ("1-2", "NIST", "MLKEM512", "ML-DSA-44"),
    ("1-2", "KpqC", "smaug_t1", "haetae2"),
    ("1", "KpqC", "smaug_t1", "aimer128f"),
    ("3", "classical", "P-384", "ECDSA-P384"),
    ("3", "NIST", "MLKEM768", "ML-DSA-65"),
    ("3", "KpqC", "smaug_t3", "haetae3"),
    ("3", "KpqC", "ntru_plus_kem768", "haetae3"),
    ("3", "KpqC", "ntru_plus_kem864", "aimer192f"),
    ("5", "classical", "P-521", "ECDSA-P521"),
    ("5", "NIST", "MLKEM1024", "ML-DSA-87"),
    ("5", "KpqC", "smaug_t5", "haetae5"),
    ("5", "KpqC", "ntru_plus_kem1152", "aimer256f"),
];

/// How many handshakes each row of the second table takes.
const FOR_TIMES: usize = 50;

pub fn run(handshakes: usize, seconds: usize) -> Result<()> {
    let _default = Provider::load(None, "default")?;
    let _ours = Provider::load(None, "oqsprovider")?;
    let dir = crate::server::scratch()?;
    let mut failures = Vec::new();

    println!("KpqC with HAProxy: {handshakes} handshakes each, then as many as there are in {seconds} s; no retries\n");
    println!(
        "{:<42} {:<11} {:<14} {:>9} {:>11}",
        "case",
        "certificate",
        "key exchange",
        "succeeded",
        format!("in {seconds} s")
    );
    for (case, algorithm, group) in CASES {
        let certificate = pki::certificate(dir.path(), algorithm)?;
        let server = Server::start(dir.path(), "demo", &Settings::new(Providers::Loaded, group), &[&certificate.file])?;
        let client = Client::new(group, &certificate.file)?;
        let (mut counted, mut timed) = (Tally::default(), Tally::default());
        for _ in 0..handshakes {
            counted.count(client.handshake(server.address()));
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(seconds as u64) {
            timed.count(client.handshake(server.address()));
        }
        println!("{case:<42} {algorithm:<11} {group:<14} {counted:>9} {timed:>11}");
        failures.extend([counted, timed].into_iter().filter_map(|t| t.failure(group, algorithm)));
    }

    println!("\nCertificate sizes, and a handshake's time as the client sees it: median (quartiles) of {FOR_TIMES}\n");
    println!(
        "{:<5} {:<9} {:<17} {:<11} {:>11}   time, ms",
        "level", "family", "key exchange", "certificate", "size, bytes"
    );
    for (level, family, group, algorithm) in LEVELS {
        let certificate = pki::certificate(dir.path(), algorithm)?;
        let server = Server::start(dir.path(), "demo", &Settings::new(Providers::Loaded, group), &[&certificate.file])?;
        let client = Client::new(group, &certificate.file)?;
        let mut tally = Tally::default();
        for _ in 0..FOR_TIMES {
            tally.count(client.handshake(server.address()));
        }
        let time =
            if tally.times.is_empty() { "none succeeded".into() } else { format!("{:.2}", spread(&tally.times)) };
        println!("{level:<5} {family:<9} {group:<17} {algorithm:<11} {:>11}   {time}", certificate.size);
        failures.extend(tally.failure(group, algorithm));
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(failures.join("\n").into())
}
