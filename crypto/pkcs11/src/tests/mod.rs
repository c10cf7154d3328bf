mod asynchronous;
mod config;
mod fuzz;
mod generate;
mod objects;
mod pool;
mod protocol;
mod verdict;

use crate::{config::Config, spki::PublicKey};
use std::{io, path::Path, sync::Arc};

/// The files of public keys that configurations here name.
pub fn files(path: &Path) -> io::Result<Vec<u8>> {
    match path.to_str() {
        Some("/keys/rsa.pem") => Ok(include_bytes!("../../testdata/rsa.pem").into()),
        Some("/keys/p256.pem") => Ok(include_bytes!("../../testdata/p256.pem").into()),
        Some("/keys/p384.pem") => Ok(include_bytes!("../../testdata/p384.pem").into()),
        Some("/keys/mldsa65.pem") => Ok(include_bytes!("../../testdata/mldsa65.pem").into()),
        Some("/keys/text.pem") => Ok(b"no key".into()),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

pub const CONFIG: &str = "\
[slot]
label = gateway
order = ordered

[member a]
module = /lib/a.so
token = gw           # by its label
pin-file = /secrets/a
sessions = 2
timeout = 2000ms
retry = 20ms

# The second one is known by its number.
[member b]
module = /lib/b.so
serial = 0123456789abcdef
pin-file = /secrets/b
sessions = 2
timeout = 2000ms
retry = 20ms

[key web]
id = 01ff
public-key = /keys/p256.pem

[key mail]
public-key = /keys/rsa.pem

[key pq]
public-key = /keys/mldsa65.pem
";

pub fn config() -> Arc<Config> {
    Arc::new(Config::parse(CONFIG, &files).unwrap())
}

pub fn public(file: &str) -> PublicKey {
    PublicKey::from_pem(&files(Path::new(file)).unwrap()).unwrap()
}

#[test]
fn a_message_is_one_line_whatever_others_wrote_into_it() {
    assert_eq!(
        crate::one_line("hsmd a: no key\nqtls-pkcs11: member a is up\r\u{1b}[2J"),
        "hsmd a: no key qtls-pkcs11: member a is up  [2J"
    );
}
