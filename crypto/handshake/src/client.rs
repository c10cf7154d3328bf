//! The client's side of a handshake, by libssl.

use crate::Result;
use openssl::ssl::{
    ShutdownState, Ssl, SslContext, SslContextBuilder, SslMethod, SslSession, SslSessionCacheMode, SslVerifyMode,
    SslVersion,
};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// A client that offers one group and trusts one certificate.
pub struct Client {
    context: SslContext,
    /// The latest ticket of the connection that is open.
    ticket: Arc<Mutex<Option<SslSession>>>,
}

/// A connection on which a request was answered.
pub struct Connection {
    /// How long the handshake took.
    pub took: Duration,
    /// Whether the server took the ticket that it was offered.
    pub resumed: bool,
    /// The server's latest ticket, for one later connection.
    pub ticket: Option<SslSession>,
}

impl Client {
    pub fn new(group: &str, trusted: &Path) -> Result<Client> {
        let ticket = Arc::new(Mutex::new(None));
        let mut b = SslContextBuilder::new(SslMethod::tls_client())?;
        b.set_min_proto_version(Some(SslVersion::TLS1_3))?;
        b.set_groups_list(group)?;
        b.set_ca_file(trusted)?;
        b.set_verify(SslVerifyMode::PEER);
        b.set_session_cache_mode(SslSessionCacheMode::CLIENT | SslSessionCacheMode::NO_INTERNAL);
        let latest = ticket.clone();
        b.set_new_session_callback(move |_, session| *latest.lock().unwrap() = Some(session));
        Ok(Client { context: b.build(), ticket })
    }

    /// One new connection without a ticket: a full handshake, with the certificate and its name verified, and a request.
    /// It says how long the handshake took.
    pub fn handshake(&self, address: SocketAddr) -> Result<Duration> {
        Ok(self.connect(address, None)?.took)
    }

    /// One new connection, with a request. A ticket, which must be of this client, is offered to the server.
    pub fn connect(&self, address: SocketAddr, ticket: Option<SslSession>) -> Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut ssl = Ssl::new(&self.context)?;
        ssl.set_hostname("localhost")?;
        ssl.param_mut().set_host("localhost")?;
        if let Some(session) = ticket {
            // SAFETY: the session is of this context.
            unsafe { ssl.set_session(&session)? };
        }
        *self.ticket.lock().unwrap() = None;
        let start = Instant::now();
        let mut tls = ssl.connect(stream).map_err(|e| e.to_string())?;
        let took = start.elapsed();
        tls.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = [0; 12];
        tls.read_exact(&mut answer)?;
        if &answer != b"HTTP/1.1 200" {
            return Err(format!("the answer begins with {:?}", String::from_utf8_lossy(&answer)).into());
        }
        // A session whose connection ends without this is one that OpenSSL does not resume.
        tls.set_shutdown(ShutdownState::SENT | ShutdownState::RECEIVED);
        // Tickets come before the answer.
        Ok(Connection { took, resumed: tls.ssl().session_reused(), ticket: self.ticket.lock().unwrap().take() })
    }
}

/// Several clients at a time: each makes one connection after another, until it is told that there are enough.
pub fn load(clients: usize, next: impl Fn() -> Option<Result<Duration>> + Sync) -> Tally {
    let tally = Mutex::new(Tally::default());
    thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                while let Some(outcome) = next() {
                    tally.lock().unwrap().count(outcome);
                }
            });
        }
    });
    tally.into_inner().unwrap()
}

/// What became of several handshakes.
#[derive(Default)]
pub struct Tally {
    /// How long those took that succeeded, in milliseconds.
    pub times: Vec<f64>,
    pub failed: usize,
    pub first_error: Option<String>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use openssl::{
        asn1::Asn1Time,
        ec::{EcGroup, EcKey},
        hash::MessageDigest,
        nid::Nid,
        pkey::{PKey, Private},
        x509::{extension::SubjectAlternativeName, X509NameBuilder, X509},
    };
    use std::{fs, net::TcpListener};

    fn certificate() -> (X509, PKey<Private>) {
        let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
        let mut name = X509NameBuilder::new().unwrap();
        name.append_entry_by_text("CN", "localhost").unwrap();
        let name = name.build();
        let mut b = X509::builder().unwrap();
        b.set_version(2).unwrap();
        b.set_subject_name(&name).unwrap();
        b.set_issuer_name(&name).unwrap();
        b.set_pubkey(&key).unwrap();
        b.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
        b.set_not_after(&Asn1Time::days_from_now(1).unwrap()).unwrap();
        let names = SubjectAlternativeName::new().dns("localhost").build(&b.x509v3_context(None, None)).unwrap();
        b.append_extension(names).unwrap();
        b.sign(&key, MessageDigest::sha256()).unwrap();
        (b.build(), key)
    }

    /// Serves some connections, with ticket keys of its own, or without tickets.
    fn serve((certificate, key): &(X509, PKey<Private>), connections: usize, tickets: bool) -> SocketAddr {
        let mut b = SslContextBuilder::new(SslMethod::tls_server()).unwrap();
        b.set_certificate(certificate).unwrap();
        b.set_private_key(key).unwrap();
        b.set_session_id_context(b"test").unwrap();
        b.set_session_cache_mode(SslSessionCacheMode::OFF);
        if !tickets {
            b.set_num_tickets(0).unwrap();
        }
        let context = b.build();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().take(connections) {
                let mut tls = Ssl::new(&context).unwrap().accept(stream.unwrap()).unwrap();
                let mut request = [0; 1024];
                assert_ne!(tls.read(&mut request).unwrap(), 0);
                tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
                let _ = tls.read(&mut request); // until the client has gone
            }
        });
        address
    }

    #[test]
    fn a_ticket_is_resumed_where_its_key_is_known() {
        let certificate = certificate();
        let trusted = std::env::temp_dir().join(format!("qtls-handshake-test-{}.crt", std::process::id()));
        fs::write(&trusted, certificate.0.to_pem().unwrap()).unwrap();
        let client = Client::new("X25519", &trusted).unwrap();
        fs::remove_file(&trusted).unwrap();
        let (server, other, without) =
            (serve(&certificate, 3, true), serve(&certificate, 1, true), serve(&certificate, 1, false));

        let first = client.connect(server, None).unwrap();
        assert!(!first.resumed, "without a ticket there is nothing to resume");
        let second = client.connect(server, first.ticket).unwrap();
        assert!(second.resumed, "the server's own ticket");
        let third = client.connect(server, second.ticket).unwrap();
        assert!(third.resumed, "the ticket of a connection that was resumed itself");
        let elsewhere = client.connect(other, third.ticket).unwrap();
        assert!(!elsewhere.resumed, "a ticket under another key");
        let last = client.connect(without, elsewhere.ticket).unwrap();
        assert!(!last.resumed && last.ticket.is_none(), "a server without tickets");
    }
}
