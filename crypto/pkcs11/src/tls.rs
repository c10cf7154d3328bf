//! TLS between the module and an hsmd, the same on both sides: TLS 1.3 with X25519MLKEM768 and nothing else.

use rustls::{
    crypto::{aws_lc_rs, CryptoProvider},
    pki_types::{pem::PemObject, CertificateDer, PrivateKeyDer},
    RootCertStore,
};
use std::{
    fs,
    io::{self, Read, Write},
    net::TcpStream,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

/// What may be negotiated. Neither side has anything older to fall back to.
pub fn provider() -> Arc<CryptoProvider> {
    let kx_groups = vec![aws_lc_rs::kx_group::X25519MLKEM768];
    Arc::new(CryptoProvider { kx_groups, ..aws_lc_rs::default_provider() })
}

fn wrong(path: &Path, what: &dyn std::fmt::Display) -> String {
    format!("{}: {what}", path.display())
}

/// The certificates of a PEM file, the program's own first.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = fs::read(path).map_err(|e| wrong(path, &e))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(wrong(path, &"want certificates in PEM")),
    }
}

pub fn authorities(path: &Path) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| wrong(path, &e))?;
    }
    Ok(Arc::new(roots))
}

pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let pem = Zeroizing::new(fs::read(path).map_err(|e| wrong(path, &e))?);
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| wrong(path, &"want one private key in PEM"))
}

/// A connection that is given up at a point in time, to the millisecond, however slowly bytes trickle.
pub struct Timed<'a> {
    pub tcp: &'a TcpStream,
    pub deadline: Instant,
    /// Of this socket: nobody else sets them, in the same direction.
    pub timeouts: &'a mut Timeouts,
}

/// A socket's timeouts as they were set last. Who asks and answers a thousand times a second sets them once.
#[derive(Default)]
pub struct Timeouts {
    read: Option<Duration>,
    write: Option<Duration>,
}

impl Timed<'_> {
    /// In whole milliseconds, rounded up.
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(Duration::from_millis(left.as_micros().div_ceil(1000).max(1) as u64))),
        }
    }
}

/// The system says that the time is over as if the caller had not wanted to wait.
fn timed_out(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => e,
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left()?;
        if self.timeouts.read != left {
            self.tcp.set_read_timeout(left)?;
            self.timeouts.read = left;
        }
        self.tcp.read(buffer).map_err(timed_out)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left()?;
        if self.timeouts.write != left {
            self.tcp.set_write_timeout(left)?;
            self.timeouts.write = left;
        }
        self.tcp.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
