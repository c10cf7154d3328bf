//! `hsmd init-soft-token`: makes a development token's storage ready, once.

use qtls_pkcs11::library::{initialise_token, read_pin};
use std::{
    fs::File,
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

pub const USAGE: &str =
    "hsmd init-soft-token --module PATH --label LABEL --pin-file PATH --so-pin-file PATH [--lock PATH]";

/// Waits until no other process has the lock. Closing the file, as the end of the process does, gives it back.
fn lock(path: &str) -> io::Result<File> {
    let file = File::create(path)?;
    // SAFETY: the descriptor is open.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs the command. PINs come from files: arguments are seen by everybody.
pub fn run(args: &[String]) -> Result<String, String> {
    let mut values: [Option<&str>; 5] = [None; 5];
    const NAMES: [&str; 5] = ["--module", "--label", "--pin-file", "--so-pin-file", "--lock"];
    for pair in args.chunks(2) {
        let at = NAMES.iter().position(|n| *n == pair[0]).ok_or(format!("{}: want {USAGE}", pair[0]))?;
        values[at] = Some(pair.get(1).ok_or(format!("{}: its value is missing; want {USAGE}", pair[0]))?);
    }
    let value =
        |at: usize| values[at].filter(|v| !v.is_empty()).ok_or(format!("{} is missing; want {USAGE}", NAMES[at]));
    let (module, label) = (PathBuf::from(value(0)?), value(1)?);
    if label.len() > 32 {
        return Err(format!("--label {label}: PKCS#11 has room for 32 bytes; shorten it"));
    }
    let pin = |at: usize| {
        read_pin(Path::new(value(at)?)).map_err(|e| format!("{} {}: {e}", NAMES[at], value(at).unwrap_or("")))
    };
    let _lock = values[4].map(|path| lock(path).map_err(|e| format!("--lock {path}: {e}"))).transpose()?;
    match initialise_token(&module, label, &pin(3)?, &pin(2)?) {
        Ok(true) => Ok(format!("token {label:?} is initialised")),
        Ok(false) => Ok(format!("token {label:?} is initialised already")),
        Err(e) => Err(format!("{}: token {label:?}: {e}", module.display())),
    }
}
