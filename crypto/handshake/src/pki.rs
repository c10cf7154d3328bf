//! Keys and self-signed certificates for the servers, made by the openssl command.

use crate::Result;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A certificate and its key in one file, as HAProxy wants them.
pub struct Certificate {
    pub file: PathBuf,
    /// The length of the certificate, in bytes of DER.
    pub size: usize,
}

/// What `openssl genpkey -algorithm` takes, where that is more than a name.
fn options(algorithm: &str) -> Vec<String> {
    let (name, option) = match algorithm {
        "ECDSA-P256" => ("EC", "ec_paramgen_curve:P-256"),
        "ECDSA-P384" => ("EC", "ec_paramgen_curve:P-384"),
        "ECDSA-P521" => ("EC", "ec_paramgen_curve:P-521"),
        "RSA-4096" => ("RSA", "rsa_keygen_bits:4096"),
        other => return vec![other.into()],
    };
    vec![name.into(), "-pkeyopt".into(), option.into()]
}

fn openssl(args: &[&str]) -> Result<()> {
    let out = Command::new("openssl").args(args).args(["-provider", "default", "-provider", "oqsprovider"]).output()?;
    if !out.status.success() {
        return Err(format!("openssl {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr)).into());
    }
    Ok(())
}

/// Makes a key of an algorithm and a certificate for localhost.
pub fn certificate(dir: &Path, algorithm: &str) -> Result<Certificate> {
    let at = |suffix: &str| dir.join(format!("{algorithm}.{suffix}"));
    let (key, pem, der) = (at("key"), at("crt"), at("der"));
    let text = |p: &Path| p.to_string_lossy().into_owned();
    let mut generate = vec!["genpkey".to_string(), "-algorithm".into()];
    generate.extend(options(algorithm));
    generate.extend(["-out".into(), text(&key)]);
    openssl(&generate.iter().map(String::as_str).collect::<Vec<_>>())?;
    openssl(&[
        "req",
        "-x509",
        "-new",
        "-key",
        &text(&key),
        "-out",
        &text(&pem),
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
    ])?;
    openssl(&["x509", "-in", &text(&pem), "-outform", "DER", "-out", &text(&der)])?;
    let file = at("pem");
    fs::write(&file, [fs::read(&pem)?, fs::read(&key)?].concat())?;
    Ok(Certificate { file, size: fs::metadata(&der)?.len() as usize })
}
