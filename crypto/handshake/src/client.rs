//! The client's side of a handshake, by libssl.

use crate::Result;
use openssl::ssl::{Ssl, SslContext, SslContextBuilder, SslMethod, SslVerifyMode, SslVersion};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    time::{Duration, Instant},
};

/// A client that offers one group and trusts one certificate.
pub struct Client(SslContext);

impl Client {
    pub fn new(group: &str, trusted: &Path) -> Result<Client> {
        let mut b = SslContextBuilder::new(SslMethod::tls_client())?;
        b.set_min_proto_version(Some(SslVersion::TLS1_3))?;
        b.set_groups_list(group)?;
        b.set_ca_file(trusted)?;
        b.set_verify(SslVerifyMode::PEER);
        Ok(Client(b.build()))
    }

    /// One new connection: a full handshake, with the certificate and its name verified, and a request. It says how
    /// long the handshake took.
    pub fn handshake(&self, address: SocketAddr) -> Result<Duration> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut ssl = Ssl::new(&self.0)?;
        ssl.set_hostname("localhost")?;
        ssl.param_mut().set_host("localhost")?;
        let start = Instant::now();
        let mut tls = ssl.connect(stream).map_err(|e| e.to_string())?;
        let took = start.elapsed();
        tls.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = [0; 12];
        tls.read_exact(&mut answer)?;
        if &answer != b"HTTP/1.1 200" {
            return Err(format!("the answer begins with {:?}", String::from_utf8_lossy(&answer)).into());
        }
        Ok(took)
    }
}

/// What became of several handshakes.
#[derive(Default)]
pub struct Tally {
    /// How long those took that succeeded, in milliseconds.
    pub times: Vec<f64>,
    failed: usize,
    first_error: Option<String>,
}

impl Tally {
    pub fn count(&mut self, outcome: Result<Duration>) {
        match outcome {
            Ok(t) => self.times.push(t.as_secs_f64() * 1e3),
            Err(e) => {
                self.failed += 1;
                self.first_error.get_or_insert(e.to_string());
            }
        }
    }

    /// What to say of failures, if there were any.
    pub fn failure(&self, group: &str, algorithm: &str) -> Option<String> {
        let first = self.first_error.as_ref()?;
        Some(format!("{group} with {algorithm}: {} handshakes failed, the first: {first}", self.failed))
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.pad(&format!("{}/{}", self.times.len(), self.times.len() + self.failed))
    }
}
