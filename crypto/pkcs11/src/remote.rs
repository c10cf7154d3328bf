//! A member's token behind an hsmd on another machine.
//!
//! Each session is a connection of its own, with one request at a time: a member's workers are made for sessions that
//! block, a connection that is lost loses one signature's time and no other's, and TLS is negotiated once for thousands of
//! signatures. So a member's `sessions` are its requests in flight.

use crate::{
    config::{Daemon, Key},
    protocol::{self, Answer, PREFIX},
    tls::{self, Timed, Timeouts},
    token::{Algorithm, Failure, Found, KeyName, Request, Result, Session, Token, GENERATE_TIME},
    verdict::Verdict,
};
use cryptoki_sys::*;
use rustls::{client::Resumption, pki_types::ServerName, version::TLS13, ClientConfig, ClientConnection, Stream};
use std::{
    io::{self, Read, Write},
    mem::size_of_val,
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    os::fd::AsRawFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long whoever replaces a connection's files may take from the first to the last.
const REPLACED: Duration = Duration::from_millis(100);

/// How long nothing may be acknowledged: with more than two transmissions lost, the machine is gone, or the way to it. A
/// machine's kernel acknowledges whatever its hsmd is at: one that waits for a slow token has its whole time-out. Where nothing
/// is left to acknowledge, a kernel is asked whether it is there after PROBED.
const ACKNOWLEDGED: Duration = Duration::from_secs(3);
const PROBED: Duration = Duration::from_secs(2);

pub struct RemoteToken {
    daemon: Arc<Daemon>,
    /// For connecting, and for each answer.
    timeout: Duration,
}

impl RemoteToken {
    pub fn new(daemon: Daemon, timeout: Duration) -> RemoteToken {
        RemoteToken { daemon: Arc::new(daemon), timeout }
    }

    /// The files are read for each connection: Secrets rotate. They are replaced one by one, and so a certificate and a key that
    /// do not belong together are read once more.
    fn configuration(&self) -> std::result::Result<ClientConfig, String> {
        self.read().or_else(|_| {
            thread::sleep(REPLACED);
            self.read()
        })
    }

    fn read(&self) -> std::result::Result<ClientConfig, String> {
        let daemon = &self.daemon;
        let chain = tls::certificates(&daemon.certificate_file)?;
        let key = tls::private_key(&daemon.key_file)?;
        let mut config = ClientConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| e.to_string())?
            .with_root_certificates(tls::authorities(&daemon.ca_file)?)
            .with_client_auth_cert(chain, key)
            .map_err(|e| {
                let (certificate, key) = (daemon.certificate_file.display(), daemon.key_file.display());
                format!("{certificate} and {key}: {e}")
            })?;
        config.alpn_protocols = vec![protocol::ALPN.into()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    fn connect(&self, deadline: Instant) -> io::Result<TcpStream> {
        let addresses: Vec<SocketAddr> = self.daemon.address.to_socket_addrs()?.collect();
        let tcp = connect_any(&addresses, deadline)?;
        tcp.set_nodelay(true)?;
        watch(&tcp)?;
        Ok(tcp)
    }

    fn failure(&self, what: &dyn std::fmt::Display) -> Failure {
        Failure::new(CKR_DEVICE_ERROR, format!("hsmd {}: {what}", self.daemon.address))
    }
}

/// Has a connection fail (ETIMEDOUT) when the other machine has acknowledged nothing for ACKNOWLEDGED: neither what was sent
/// (TCP_USER_TIMEOUT, RFC 5482), nor, where an answer is waited for, that the connection is there (keep-alives, RFC 9293, 3.8.4).
fn watch(tcp: &TcpStream) -> io::Result<()> {
    let (time, idle) = (ACKNOWLEDGED.as_millis() as libc::c_int, PROBED.as_secs() as libc::c_int);
    for (level, option, value) in [
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, time),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    ] {
        let (value, len) = (&raw const value, size_of_val(&value) as libc::socklen_t);
        // SAFETY: the descriptor is open, and the value has the length that is said.
        if unsafe { libc::setsockopt(tcp.as_raw_fd(), level, option, value.cast(), len) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Connects to the first address that answers. Each has its share of the time that is left: one that does not answer, a
/// machine's that is gone for instance, leaves as much to each of the others. None has longer than a kernel takes to answer: in
/// a cluster a service's address may lead to a pod that is gone already, and then it is another member's turn.
fn connect_any(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for (n, address) in addresses.iter().enumerate() {
        let share = deadline.saturating_duration_since(Instant::now()) / (addresses.len() - n) as u32;
        if share.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(address, share.min(ACKNOWLEDGED)) {
            Ok(tcp) => return Ok(tcp),
            Err(e) => last = e,
        }
    }
    Err(last)
}

impl Token for RemoteToken {
    fn open(&self) -> Result<Box<dyn Session>> {
        let deadline = Instant::now() + self.timeout;
        let config = self.configuration().map_err(|e| self.failure(&e))?;
        let name = ServerName::try_from(self.daemon.server_name.clone()).map_err(|e| self.failure(&e))?;
        let tls = ClientConnection::new(Arc::new(config), name).map_err(|e| self.failure(&e))?;
        let tcp = self.connect(deadline).map_err(|e| self.failure(&e))?;
        let (daemon, timeouts) = (self.daemon.clone(), Timeouts::default());
        let mut session = RemoteSession { daemon, timeout: self.timeout, tls, tcp, timeouts, last: 0, broken: false };
        // In TLS 1.3 a client is told with the first answer only that its certificate is not wanted.
        session.check().map_err(|e| match e.code {
            CKR_SESSION_CLOSED => Failure::new(CKR_DEVICE_ERROR, e.detail),
            _ => e,
        })?;
        if session.tls.alpn_protocol() != Some(protocol::ALPN) {
            return Err(self.failure(&"it speaks another protocol"));
        }
        Ok(Box::new(session))
    }

    fn failed(&self) {}
}

struct RemoteSession {
    daemon: Arc<Daemon>,
    timeout: Duration,
    tls: ClientConnection,
    tcp: TcpStream,
    timeouts: Timeouts,
    /// The last request's ID.
    last: u64,
    /// It failed in the middle of something: what is read next may be the answer to another question.
    broken: bool,
}

impl RemoteSession {
    fn failure(&self, code: CK_RV, what: &dyn std::fmt::Display) -> Failure {
        Failure::new(code, format!("hsmd {}: {what}", self.daemon.address))
    }

    fn ask(&mut self, request: &protocol::Request) -> Result<Answer> {
        let id = self.last + 1;
        // What does not fit is the caller's error, as the README has it: no other member is asked.
        let frame = protocol::write_request(id, request)
            .map_err(|_| self.failure(CKR_DATA_LEN_RANGE, &"the request is too long for its protocol"))?;
        if self.broken {
            return Err(self.failure(CKR_SESSION_CLOSED, &"the connection is lost"));
        }
        self.last = id;
        self.broken = true;
        let time = match request {
            protocol::Request::Generate { .. } => GENERATE_TIME + self.timeout,
            _ => self.timeout,
        };
        let answer = self.exchange(&frame, time).map_err(|e| self.lost(&e, time))?;
        let read = protocol::answer_id(&answer).and_then(|id| Ok((id, protocol::read_answer(&answer, request)?)));
        match read {
            // It is not about this request: the connection is closed, and it may say that there is no room for one more.
            Ok((0, Answer::Failed(f))) => {
                let code = if f.code == CKR_SESSION_COUNT { f.code } else { CKR_DEVICE_ERROR };
                Err(self.failure(code, &f))
            }
            Ok((found, answer)) if found == id => {
                self.broken = false;
                match answer {
                    Answer::Failed(f) => Err(self.refusal(f)),
                    answer => Ok(answer),
                }
            }
            _ => Err(self.failure(CKR_DEVICE_ERROR, &"an answer that is not one of its protocol")),
        }
    }

    /// What is said of a connection that ended. The next one may work: an hsmd that restarts closes its connections.
    fn lost(&self, e: &io::Error, time: Duration) -> Failure {
        use io::ErrorKind::*;
        match e.kind() {
            TimedOut if e.raw_os_error() == Some(libc::ETIMEDOUT) => {
                let seconds = ACKNOWLEDGED.as_secs();
                let what =
                    format!("its machine acknowledged nothing for {seconds} s: it is gone, or the network between");
                self.failure(CKR_DEVICE_ERROR, &what)
            }
            TimedOut => self.failure(CKR_DEVICE_ERROR, &format!("no answer in {} ms", time.as_millis())),
            UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe if self.tls.is_handshaking() => {
                let what =
                    "it closed the connection before TLS was agreed on: others came, it is ending, or it is no hsmd";
                self.failure(CKR_SESSION_CLOSED, &what)
            }
            UnexpectedEof => self.failure(CKR_SESSION_CLOSED, &"it closed the connection"),
            _ => self.failure(CKR_SESSION_CLOSED, e),
        }
    }

    fn exchange(&mut self, frame: &[u8], time: Duration) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + time;
        let mut timed = Timed { tcp: &self.tcp, deadline, timeouts: &mut self.timeouts };
        let mut stream = Stream::new(&mut self.tls, &mut timed);
        stream.write_all(frame)?;
        stream.flush()?;
        let mut prefix = [0; PREFIX];
        stream.read_exact(&mut prefix)?;
        let malformed = |_| io::Error::from(io::ErrorKind::InvalidData);
        let mut answer = vec![0; protocol::length(prefix).map_err(malformed)?];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    /// What an hsmd says of its token is not this session's.
    fn refusal(&self, failure: Failure) -> Failure {
        let code = match failure.verdict() {
            // Its own session, or that of its token: it has tried again already.
            Verdict::Session => CKR_DEVICE_ERROR,
            // A PIN is its business: no file of this member's can correct it.
            Verdict::Pin => CKR_DEVICE_ERROR,
            _ => failure.code,
        };
        self.failure(code, &failure)
    }
}

impl Session for RemoteSession {
    /// The key's name goes with every request: hsmd keeps the handles.
    fn find(&mut self, _: &Key) -> Result<Option<CK_OBJECT_HANDLE>> {
        Ok(Some(1))
    }

    fn sign(&mut self, _: CK_OBJECT_HANDLE, request: &Request, len: usize) -> Result<Vec<u8>> {
        let key: KeyName = request.key.name();
        let (mechanism, data) = (request.mechanism.clone(), request.data.clone());
        match self.ask(&protocol::Request::Sign { key, mechanism, data })? {
            Answer::Signature(signature) if signature.len() == len => Ok(signature),
            Answer::Signature(signature) => {
                let made = signature.len();
                let what = format!("{made} bytes where the public key has {len}: another key is under its label");
                Err(self.failure(CKR_KEY_SIZE_RANGE, &what))
            }
            _ => Err(self.failure(CKR_DEVICE_ERROR, &"no signature in the answer")),
        }
    }

    fn check(&mut self) -> Result<()> {
        match self.ask(&protocol::Request::Status) {
            // The JSON's text has no quotes in it that are not escaped: this can only be the field.
            Ok(Answer::Status(json)) if json.contains(r#""state":"Up""#) => Ok(()),
            Ok(_) => Err(self.failure(CKR_DEVICE_REMOVED, &"its token is not up")),
            // It may not ask. It will learn with the next signature.
            Err(e) if e.code == CKR_ACTION_PROHIBITED => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn public(&mut self, key: &KeyName) -> Result<Option<Found>> {
        match self.ask(&protocol::Request::Find(key.clone())) {
            Ok(Answer::Found(found)) => Ok(Some(found)),
            Ok(_) => Err(self.failure(CKR_DEVICE_ERROR, &"no key in the answer")),
            Err(e) if e.code == CKR_KEY_HANDLE_INVALID => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether it may is for hsmd's list of clients to say.
    fn generate(&mut self, algorithm: Algorithm, key: &KeyName) -> Result<Found> {
        let (algorithm, key) = (algorithm.name().into(), key.clone());
        match self.ask(&protocol::Request::Generate { algorithm, key })? {
            Answer::Found(found) => Ok(found),
            _ => Err(self.failure(CKR_DEVICE_ERROR, &"no key in the answer")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A machine that is gone answers nothing, and no more does a listener whose queue is full.
    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next_one() {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [silent, live] = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::listen(listeners[0].as_raw_fd(), 1) }, 0, "its queue is short");
        let second = Duration::from_secs(1);
        let queue: Vec<_> = (0..16).map_while(|_| TcpStream::connect_timeout(&silent, second).ok()).collect();
        assert!((1..16).contains(&queue.len()), "{} in the queue", queue.len());
        // No more time than one address may have at most. A machine that stands still may take the second one's share: then once
        // more.
        let reached = (0..5).find_map(|_| {
            let start = Instant::now();
            match connect_any(&[silent, live], start + ACKNOWLEDGED) {
                Err(e) if e.kind() == io::ErrorKind::TimedOut && start.elapsed() >= ACKNOWLEDGED => None,
                other => Some(other.expect("the second one answers")),
            }
        });
        assert_eq!(reached.expect("there is time for the second one").peer_addr().unwrap(), live);
        let none = connect_any(&[silent, silent], Instant::now() + second).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::TimedOut);
        let long = Instant::now() + 1000 * second;
        assert_eq!(connect_any(&[silent], long).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(Instant::now() < long - 900 * second, "it waits as long as a signature may take");
    }
}
