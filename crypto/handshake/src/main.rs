//! `qtls-handshake` runs HAProxy with the provider and shakes hands with it:
//!
//! - `qtls-handshake demo`: the KpqC cases, with certificate sizes and times beside those of classical and NIST's.
//! - `qtls-handshake cost`: CPU of HAProxy for each handshake, with and without the provider's fast path.
//! - `qtls-handshake resumption`: CPU of HAProxy for a full handshake and for one that a ticket resumes, by mode.
//! - `qtls-handshake hsm`: handshakes, their times and CPU with keys in tokens: in each way there is, with a slow one, and
//!   with one that has sessions for all while HAProxy has one thread or two.
//! - `qtls-handshake operations`: what single operations cost, of every algorithm and provider.
//!
//! It needs haproxy and openssl on PATH, and oqsprovider.so where OpenSSL looks for modules (OPENSSL_MODULES). `hsm`
//! and `resumption` need pkcs11-provider, and libqtls_pkcs11.so, libkryoptic_pkcs11.so and hsmd beside itself.

mod client;
mod cost;
mod demo;
mod hsm;
mod operations;
mod pki;
mod resumption;
mod server;
mod stats;
mod token;

use std::{env, process::ExitCode};

/// What went wrong, for people.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "usage: qtls-handshake demo [--handshakes N] [--seconds S]
       qtls-handshake cost [--rounds N] [--handshakes N]
       qtls-handshake resumption [--rounds N] [--handshakes N]
       qtls-handshake hsm [--rounds N] [--handshakes N] [--seconds S]
       qtls-handshake operations [TEXT]     (only rows of the table that have the text)";

/// The number after an option.
fn option(args: &[String], name: &str, otherwise: usize) -> Result<usize> {
    match args.iter().position(|a| a == name) {
        None => Ok(otherwise),
        Some(i) => match args.get(i + 1).map(|v| v.parse()) {
            Some(Ok(n)) if n > 0 => Ok(n),
            _ => Err(format!("{name} takes a whole number from 1").into()),
        },
    }
}

fn run(args: &[String]) -> Result<()> {
    if let [command, rest @ ..] = args {
        if command == "operations" && rest.len() <= 1 {
            return operations::run(rest.first().map_or("", String::as_str));
        }
    }
    let known: &[&str] = match args.first().map(String::as_str) {
        Some("demo") => &["--handshakes", "--seconds"],
        Some("cost" | "resumption") => &["--rounds", "--handshakes"],
        Some("hsm") => &["--rounds", "--handshakes", "--seconds"],
        _ => return Err(USAGE.into()),
    };
    if let Some(unknown) = args[1..].iter().step_by(2).find(|a| !known.contains(&a.as_str())) {
        return Err(format!("{unknown} is no option\n{USAGE}").into());
    }
    let (handshakes, rounds) = (option(args, "--handshakes", 200)?, option(args, "--rounds", 7)?);
    match args[0].as_str() {
        "demo" => demo::run(handshakes, option(args, "--seconds", 10)?),
        "cost" => cost::run(rounds, handshakes),
        "hsm" => hsm::run(rounds, handshakes, option(args, "--seconds", 2)?),
        _ => resumption::run(rounds, handshakes),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("qtls-handshake: {e}");
            ExitCode::FAILURE
        }
    }
}
