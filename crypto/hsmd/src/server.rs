//! Connections: mutual TLS, frames in, answers out in whatever order they come, and all of it bounded.

use crate::{
    config::{Client, Config, Right},
    log::log,
    metrics::{Metrics, Outcome, Refusal},
    places::{NoPlace, Places, GRACE},
    work::{operation, Order, Reply, Work},
};
use cryptoki_sys::*;
use qtls_pkcs11::{
    library::lock,
    protocol::{self, Answer, Malformed, Request, LONGEST, PREFIX},
    tls::{self, Timed, Timeouts},
    token::Failure,
};
use rustls::{
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::TLS13,
    ServerConfig, ServerConnection,
};
use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    mem,
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst},
        Arc, Condvar, Mutex, MutexGuard, Weak,
    },
    thread,
    time::{Duration, Instant},
};

/// The stack of a connection's threads: TLS handshakes need most of it.
const STACK: usize = 512 << 10;
/// How long a connection that is closed is read from, so that its last answer is not lost to a reset.
const LINGER: Duration = Duration::from_secs(1);
/// How often in turn a thread that has an answer writes what others have meanwhile: a client that never stops asking does not
/// keep one of the token's threads.
const ROUNDS: usize = 4;

/// What may change while the daemon runs.
pub struct Live {
    tls: Arc<ServerConfig>,
    clients: Vec<Client>,
}

impl Live {
    pub fn new(config: &Config) -> Result<Live, String> {
        let chain = tls::certificates(&config.certificate_file)?;
        let key = tls::private_key(&config.key_file)?;
        let authorities = tls::authorities(&config.client_ca_file)?;
        let clients = WebPkiClientVerifier::builder_with_provider(authorities, tls::provider())
            .build()
            .map_err(|e| format!("client-ca-file {}: {e}", config.client_ca_file.display()))?;
        let mut server = ServerConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| e.to_string())?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)
            .map_err(|e| {
                let (certificate, key) = (config.certificate_file.display(), config.key_file.display());
                format!("{certificate} and {key}: {e}")
            })?;
        server.alpn_protocols = vec![protocol::ALPN.into()];
        // Who is let in is decided anew for each connection.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Live { tls: Arc::new(server), clients: config.clients.clone() })
    }

    /// The first section [client] with one of the names.
    fn client(&self, names: &[String]) -> Option<&Client> {
        self.clients.iter().find(|client| names.contains(&client.name))
    }
}

pub struct Server {
    config: Config,
    live: Mutex<Arc<Live>>,
    work: Arc<Work>,
    metrics: Arc<Metrics>,
    draining: AtomicBool,
    places: Places,
}

impl Server {
    pub fn new(config: Config, live: Live, work: Arc<Work>) -> Arc<Server> {
        let (metrics, live) = (work.metrics.clone(), Mutex::new(Arc::new(live)));
        let (draining, places) = (AtomicBool::new(false), Places::new(config.connections, GRACE));
        Arc::new(Server { config, live, work, metrics, draining, places })
    }

    /// New connections have these certificates, and all requests from now on these rights.
    pub fn replace(&self, live: Live) {
        *lock(&self.live) = Arc::new(live);
    }

    fn live(&self) -> Arc<Live> {
        lock(&self.live).clone()
    }

    pub fn serving(&self) -> bool {
        !self.draining.load(SeqCst)
    }

    /// Accepts connections until the drain.
    pub fn accept(self: &Arc<Server>, listener: &TcpListener) {
        while self.serving() {
            let (tcp, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(_) if !self.serving() => break,
                Err(e) => {
                    log(&format!("accept: {e}"));
                    thread::sleep(Duration::from_millis(100)); // no file descriptors left, for instance
                    continue;
                }
            };
            let (server, tcp) = (self.clone(), Arc::new(tcp));
            self.metrics.connections.fetch_add(1, SeqCst);
            let id = self.places.enter(&tcp, peer.ip().to_canonical());
            let serve = move || {
                // A drain that began before it had its place has not seen it.
                if server.serving() {
                    server.serve(id, tcp, peer);
                }
                server.left(id);
            };
            if thread::Builder::new().name("hsmd-read".into()).stack_size(STACK).spawn(serve).is_err() {
                self.metrics.refuse(Refusal::Full);
                self.left(id);
            }
        }
    }

    fn left(&self, id: u64) {
        self.places.leave(id);
        self.metrics.connections.fetch_sub(1, SeqCst);
    }

    /// Ends in order: no new connection, an answer to what is in flight, and then the end of each connection. True if
    /// that was done in time.
    pub fn drain(&self, listener: &TcpListener, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        self.draining.store(true, SeqCst);
        // SAFETY: the listener lives; this wakes the thread that accepts, and refuses who comes later.
        unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
        self.places.shut();
        while self.metrics.connections.load(SeqCst) > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        // Connections give up what the token does not answer in time.
        self.metrics.in_flight.load(SeqCst) == 0
    }

    fn serve(self: &Arc<Server>, id: u64, tcp: Arc<TcpStream>, peer: SocketAddr) {
        let dismissed = || {
            self.metrics.refuse(Refusal::Full);
            log(&format!("{peer}: closed: its handshake was not done when others came"));
        };
        let (tls, names) = match self.handshake(&tcp) {
            Ok(done) => done,
            Err(_) if self.places.dismissed(id) => return dismissed(),
            Err(e) => {
                self.metrics.refuse(Refusal::Handshake);
                log(&format!("{peer}: handshake: {e}"));
                return;
            }
        };
        let refuse = |why: Refusal, failure: Failure| {
            self.metrics.refuse(why);
            log(&format!("{peer}: refused: {}", failure.detail));
            failure
        };
        let client = self.live().client(&names).map(|c| (Arc::from(c.name.as_str()), c.may.contains(&Right::Generate)));
        let Some((name, makes_keys)) = client else {
            let what = format!("no section [client] has one of the names {names:?} of its certificate");
            let failure = refuse(Refusal::Unlisted, Failure::new(CKR_ACTION_PROHIBITED, what));
            return turn_away(tls, &tcp, failure);
        };
        match self.places.admit(id, makes_keys) {
            Ok(()) => {}
            Err(NoPlace::Dismissed) => return dismissed(),
            Err(NoPlace::Full { most, taken, has }) => {
                let kept = match self.config.connections - most {
                    0 => String::new(),
                    n => format!(" and {n} more for clients that may generate"),
                };
                let what = format!(
                    "{taken} of {most}{kept} connections are taken, {has} of them by {}, which may have no more than are \
                     free; raise connections",
                    peer.ip().to_canonical()
                );
                let failure = refuse(Refusal::Full, Failure::new(CKR_SESSION_COUNT, what));
                return turn_away(tls, &tcp, failure);
            }
        }
        self.metrics.accepted.fetch_add(1, Relaxed);
        let connection = Arc::new(Connection {
            name,
            peer: peer.ip().to_canonical(),
            names,
            tcp,
            tls: Mutex::new(tls),
            outbox: Mutex::default(),
            changed: Condvar::new(),
        });
        let (writing, time, metrics) = (connection.clone(), self.config.write_timeout, self.metrics.clone());
        let write = move || writing.write(time, &metrics);
        match thread::Builder::new().name("hsmd-write".into()).stack_size(STACK).spawn(write) {
            Ok(writer) => {
                let end = self.read(&connection);
                connection.close();
                let _ = writer.join();
                if let Err(e) = end {
                    log(&format!("{peer}: {}: closed: {e}", connection.name));
                }
            }
            Err(_) => self.metrics.refuse(Refusal::Full),
        }
    }

    /// The connection, and the DNS names of its client's certificate.
    fn handshake(&self, tcp: &TcpStream) -> Result<(ServerConnection, Vec<String>), String> {
        tcp.set_nodelay(true).map_err(|e| e.to_string())?;
        let mut tls = ServerConnection::new(self.live().tls.clone()).map_err(|e| e.to_string())?;
        // What waits to be sent is bounded here, by frames.
        tls.set_buffer_limit(None);
        let mut timeouts = Timeouts::default();
        let deadline = Instant::now() + self.config.handshake_timeout;
        let mut timed = Timed { tcp, deadline, timeouts: &mut timeouts };
        while tls.is_handshaking() {
            match tls.complete_io(&mut timed) {
                Ok((0, 0)) => return Err("closed by the client".into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                    return Err(format!("not done in {} ms", self.config.handshake_timeout.as_millis()))
                }
                Err(e) => return Err(e.to_string()),
            }
        }
        if tls.alpn_protocol() != Some(protocol::ALPN) {
            return Err("the client speaks another protocol".into());
        }
        let certificate = tls.peer_certificates().and_then(|all| all.first()).ok_or("no certificate")?;
        let certificate = webpki::EndEntityCert::try_from(certificate).map_err(|e| e.to_string())?;
        let names = certificate.valid_dns_names().take(16).map(String::from).collect();
        Ok((tls, names))
    }

    fn allowed(&self, connection: &Connection, request: &Request) -> Result<(), Failure> {
        let (right, what, key) = match request {
            Request::Status => (Right::Status, "status", None),
            Request::Find(key) => (Right::Find, "find", Some(key)),
            Request::Sign { key, .. } => (Right::Sign, "sign", Some(key)),
            Request::Generate { key, .. } => (Right::Generate, "generate", Some(key)),
            Request::Retire(key) => (Right::Retire, "retire", Some(key)),
        };
        let prohibited = |what: String| Err(Failure::new(CKR_ACTION_PROHIBITED, what));
        let live = self.live();
        let Some(client) = live.client(&connection.names) else {
            return prohibited(format!("client {} is not listed any more", connection.name));
        };
        if !client.may.contains(&right) {
            return prohibited(format!("client {} may not {what}; [client {}] may says who", client.name, client.name));
        }
        match key {
            Some(key) if !client.may_use(&key.label) => {
                let (name, label) = (&client.name, &key.label);
                prohibited(format!("client {name} may not use key {label:?}; [client {name}] keys lists them"))
            }
            Some(key) if key.label.is_empty() || key.label.len() > 255 || key.id.len() > 255 => {
                Err(Failure::new(CKR_ARGUMENTS_BAD, "a key's label has 1 to 255 bytes, and its ID 255 at most"))
            }
            _ => Ok(()),
        }
    }

    /// Reads requests until the connection ends. An error is worth a line in the log.
    fn read(&self, connection: &Arc<Connection>) -> Result<(), String> {
        let mut inbox = Vec::new();
        let mut buffer = vec![0; 16 << 10];
        let mut timeouts = Timeouts::default();
        let mut deadline = Instant::now() + self.config.idle_timeout;
        lock(&connection.tls).take(&mut inbox).map_err(|e| e.to_string())?;
        loop {
            let mut rest = &inbox[..];
            while let Some(frame) = next_frame(&mut rest).map_err(|Malformed| self.malformed(connection, 0))? {
                deadline = Instant::now() + self.config.idle_timeout;
                let (id, request) = protocol::read_request(frame).map_err(|Malformed| self.malformed(connection, 0))?;
                let request = request.map_err(|Malformed| self.malformed(connection, id))?;
                if !connection.has_room(2 * self.config.in_flight) {
                    return Ok(());
                }
                self.request(connection, id, request);
            }
            let read = inbox.len() - rest.len();
            inbox.drain(..read);
            let mut timed = Timed { tcp: &connection.tcp, deadline, timeouts: &mut timeouts };
            let n = match timed.read(&mut buffer) {
                Ok(0) => {
                    if !self.serving() {
                        connection.wait_for_answers(self.config.drain);
                    }
                    return Ok(());
                }
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::TimedOut && connection.in_flight() > 0 => {
                    deadline = Instant::now() + self.config.idle_timeout;
                    continue;
                }
                Err(_) => return Ok(()),
            };
            let mut rest = &buffer[..n];
            while !rest.is_empty() {
                let mut tls = lock(&connection.tls);
                let result = tls.read_tls(&mut rest).map_err(|e| e.to_string()).and_then(|_| {
                    tls.process_new_packets().map_err(|e| e.to_string())?;
                    tls.take(&mut inbox).map_err(|e| e.to_string())
                });
                let writes = tls.wants_write();
                drop(tls);
                if writes {
                    connection.write_soon(lock(&connection.outbox));
                }
                result?;
            }
        }
    }

    fn malformed(&self, connection: &Arc<Connection>, id: u64) -> String {
        self.metrics.refuse(Refusal::Malformed);
        let failure = Failure::new(CKR_ARGUMENTS_BAD, "it is no request of qtls-hsm/1");
        connection.send(id, &Answer::Failed(failure), false);
        "it sent no request of qtls-hsm/1".into()
    }

    fn request(&self, connection: &Arc<Connection>, id: u64, request: Request) {
        if let Err(failure) = self.allowed(connection, &request) {
            self.metrics.request(operation(&request), Outcome::Refused);
            log(&format!("{}: refused: {}", connection.name, failure.detail));
            return connection.send(id, &Answer::Failed(failure), false);
        }
        if let Request::Status = request {
            self.metrics.request(operation(&request), Outcome::Ok);
            return connection.send(id, &Answer::Status(self.work.status()), false);
        }
        if !connection.begin(self.config.in_flight) {
            self.metrics.request(operation(&request), Outcome::Refused);
            let most = self.config.in_flight;
            let failure = Failure::new(CKR_SESSION_COUNT, format!("{most} requests of this connection are in flight"));
            return connection.send(id, &Answer::Failed(failure), false);
        }
        self.metrics.in_flight.fetch_add(1, SeqCst);
        let to = Box::new(Asker { connection: Arc::downgrade(connection), id, metrics: self.metrics.clone() });
        let (client, peer) = (connection.name.clone(), connection.peer);
        self.work.take(Order { client, peer, request, received: Instant::now(), to });
    }
}

/// Who sent a request that waits for the token. It does not keep the connection of a client that left, nor its socket.
struct Asker {
    connection: Weak<Connection>,
    id: u64,
    metrics: Arc<Metrics>,
}

impl Reply for Asker {
    fn wanted(&self) -> bool {
        self.connection.upgrade().is_some_and(|connection| !lock(&connection.outbox).closed)
    }

    fn answer(self: Box<Self>, answer: Answer) {
        // Before it is sent: the connection may be the last that the drain waits for, and end with it.
        self.metrics.in_flight.fetch_sub(1, SeqCst);
        if let Some(connection) = self.connection.upgrade() {
            connection.send(self.id, &answer, true);
        }
    }
}

/// Cuts the next frame off, if it is whole.
fn next_frame<'a>(inbox: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
    let Some((prefix, rest)) = inbox.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let Some((frame, rest)) = rest.split_at_checked(protocol::length(*prefix)?) else { return Ok(None) };
    *inbox = rest;
    Ok(Some(frame))
}

/// Tells a client why its connection is closed: in an answer to no request of it.
fn turn_away(mut tls: ServerConnection, tcp: &TcpStream, why: Failure) {
    let mut timeouts = Timeouts::default();
    let mut timed = Timed { tcp, deadline: Instant::now() + LINGER, timeouts: &mut timeouts };
    let tell = || {
        let mut records = Vec::new();
        if let Ok(frame) = protocol::write_answer(0, &Answer::Failed(why)) {
            tls.writer().write_all(&frame)?;
        }
        tls.send_close_notify();
        while tls.wants_write() {
            tls.write_tls(&mut records)?;
        }
        timed.write_all(&records)
    };
    match tell() {
        Ok(()) => hang_up(tcp),
        Err(_) => drop(tcp.shutdown(Shutdown::Both)),
    }
}

/// Bytes that were not read when a socket is closed reset it, and the last answer may be lost: they are read first.
fn hang_up(tcp: &TcpStream) {
    let _ = tcp.shutdown(Shutdown::Write);
    let mut timeouts = Timeouts::default();
    let mut timed = Timed { tcp, deadline: Instant::now() + LINGER, timeouts: &mut timeouts };
    let (mut buffer, mut left) = ([0; 4096], 1 << 20);
    while let Ok(n @ 1..) = timed.read(&mut buffer) {
        left -= n.min(left);
        if left == 0 {
            break;
        }
    }
    let _ = tcp.shutdown(Shutdown::Both);
}

trait Take {
    fn take(&mut self, inbox: &mut Vec<u8>) -> io::Result<()>;
}

impl Take for ServerConnection {
    /// Moves what was decrypted.
    fn take(&mut self, inbox: &mut Vec<u8>) -> io::Result<()> {
        let mut reader = self.reader();
        let mut part = [0; 4096];
        loop {
            match reader.read(&mut part) {
                Ok(0) => return Ok(()),
                Ok(n) => inbox.extend(&part[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The client hung up without a word: the socket's end says so as well.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }
}

/// Who writes. Nobody else does, so records stay in their order.
#[derive(Default, PartialEq, Eq)]
enum Turn {
    /// Nothing waits to be written.
    #[default]
    Nobody,
    /// Who had an answer: it looks for more before its turn ends.
    Somebody,
    /// The connection's writer.
    Writer,
}

#[derive(Default)]
struct Outbox {
    frames: VecDeque<(Vec<u8>, bool)>,
    /// Requests that were taken and whose answers are not yet handed to the socket.
    in_flight: usize,
    turn: Turn,
    /// What the socket had no room for, or would not take. The writer goes on with it.
    left: Vec<u8>,
    /// TLS cannot go on.
    broken: Option<io::Error>,
    /// How many wait for room, or for answers.
    waiting: usize,
    closing: bool,
    closed: bool,
}

/// One client's connection: its reader's thread, its writer's, and whoever has an answer for it.
///
/// Who has an answer writes it at once, as far as the socket takes it without waiting. For a client that does not read the
/// writer's thread waits, and nobody else.
struct Connection {
    /// By its section [client].
    name: Arc<str>,
    peer: IpAddr,
    names: Vec<String>,
    tcp: Arc<TcpStream>,
    tls: Mutex<ServerConnection>,
    outbox: Mutex<Outbox>,
    changed: Condvar,
}

impl Connection {
    fn in_flight(&self) -> usize {
        lock(&self.outbox).in_flight
    }

    /// Counts one more request in flight, if it may be.
    fn begin(&self, most: usize) -> bool {
        let mut outbox = lock(&self.outbox);
        if outbox.in_flight >= most {
            return false;
        }
        outbox.in_flight += 1;
        true
    }

    /// Has an answer written, of a request that counts as in flight or of one that was answered at once.
    fn send(&self, id: u64, answer: &Answer, counted: bool) {
        let frame = protocol::write_answer(id, answer).or_else(|Malformed| {
            protocol::write_answer(id, &Answer::Failed(Failure::new(CKR_GENERAL_ERROR, "the answer is too long")))
        });
        let mut outbox = lock(&self.outbox);
        match frame {
            Ok(frame) if !outbox.closed => outbox.frames.push_back((frame, counted)),
            _ => outbox.in_flight -= counted as usize,
        }
        self.write_soon(outbox);
    }

    /// Writes what there is to write, unless somebody does. The writer goes on with what cannot be written at once.
    fn write_soon<'a>(&'a self, mut outbox: MutexGuard<'a, Outbox>) {
        if outbox.turn != Turn::Nobody || outbox.closed {
            return self.wake(&outbox);
        }
        outbox.turn = Turn::Somebody;
        let mut records = Vec::new();
        for _ in 0..ROUNDS {
            if let Err(e) = self.seal(&mut outbox, &mut records) {
                outbox.broken = Some(e);
                break;
            }
            self.wake(&outbox);
            if records.is_empty() {
                outbox.turn = Turn::Nobody;
                if outbox.closing {
                    self.changed.notify_all();
                }
                return;
            }
            drop(outbox);
            let written = self.write_now(&records);
            outbox = lock(&self.outbox);
            if written < records.len() {
                outbox.left = records.split_off(written);
                break;
            }
            records.clear();
        }
        outbox.turn = Turn::Writer;
        self.changed.notify_all();
    }

    /// Wakes those that wait for room or answers.
    fn wake(&self, outbox: &Outbox) {
        if outbox.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// How much the socket takes. Its errors come again when the rest is written.
    fn write_now(&self, records: &[u8]) -> usize {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the socket and the bytes live.
        let n = unsafe { libc::send(self.tcp.as_raw_fd(), records.as_ptr().cast(), records.len(), flags) };
        usize::try_from(n).unwrap_or(0)
    }

    /// Makes records of the frames that wait, and of what TLS itself has to say.
    fn seal(&self, outbox: &mut Outbox, records: &mut Vec<u8>) -> io::Result<()> {
        let mut tls = lock(&self.tls);
        while records.len() < LONGEST {
            let Some((frame, counted)) = outbox.frames.pop_front() else { break };
            tls.writer().write_all(&frame)?;
            // Before it is written: a client that has its answers may ask again at once.
            outbox.in_flight -= counted as usize;
            while tls.wants_write() {
                tls.write_tls(records)?;
            }
        }
        while tls.wants_write() {
            tls.write_tls(records)?;
        }
        Ok(())
    }

    fn sleep<'a>(&self, mut outbox: MutexGuard<'a, Outbox>, time: Duration) -> MutexGuard<'a, Outbox> {
        outbox.waiting += 1;
        outbox = self.changed.wait_timeout(outbox, time).unwrap_or_else(|e| e.into_inner()).0;
        outbox.waiting -= 1;
        outbox
    }

    /// Waits until fewer answers than that wait to be read by the client. False if it is too slow, or gone.
    fn has_room(&self, most: usize) -> bool {
        let mut outbox = lock(&self.outbox);
        while outbox.frames.len() >= most && !outbox.closed {
            outbox = self.sleep(outbox, Duration::MAX);
        }
        !outbox.closed
    }

    fn wait_for_answers(&self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut outbox = lock(&self.outbox);
        while outbox.in_flight > 0 && !outbox.closed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            outbox = self.sleep(outbox, left);
        }
    }

    fn close(&self) {
        lock(&self.outbox).closing = true;
        self.changed.notify_all();
    }

    /// The writer's thread: it writes what clients are slow to read, and ends the connection.
    fn write(&self, time: Duration, metrics: &Metrics) {
        let end = self.write_all(time);
        {
            let mut outbox = lock(&self.outbox);
            outbox.closed = true;
            let answered = outbox.frames.drain(..).filter(|f| f.1).count();
            outbox.in_flight -= answered;
        }
        self.changed.notify_all();
        match end {
            Ok(()) => hang_up(&self.tcp),
            Err(e) => {
                if e.kind() == io::ErrorKind::TimedOut {
                    metrics.refuse(Refusal::Slow);
                    log(&format!("{}: closed: it did not read its answers in {} ms", self.name, time.as_millis()));
                }
                let _ = self.tcp.shutdown(Shutdown::Both);
            }
        }
    }

    fn write_all(&self, time: Duration) -> io::Result<()> {
        let mut timeouts = Timeouts::default();
        let mut write = |records: &[u8]| {
            let deadline = Instant::now() + time;
            Timed { tcp: &self.tcp, deadline, timeouts: &mut timeouts }.write_all(records)
        };
        let mut outbox = lock(&self.outbox);
        loop {
            match outbox.turn {
                Turn::Writer => {
                    if let Some(e) = outbox.broken.take() {
                        return Err(e);
                    }
                    let mut records = mem::take(&mut outbox.left);
                    self.seal(&mut outbox, &mut records)?;
                    self.wake(&outbox);
                    if records.is_empty() {
                        outbox.turn = Turn::Nobody;
                        continue;
                    }
                    drop(outbox);
                    write(&records)?;
                    outbox = lock(&self.outbox);
                }
                Turn::Nobody if outbox.closing => {
                    outbox.closed = true; // nothing is sent after it
                    let mut records = Vec::new();
                    lock(&self.tls).send_close_notify();
                    self.seal(&mut outbox, &mut records)?;
                    drop(outbox);
                    return write(&records);
                }
                _ => outbox = self.changed.wait(outbox).unwrap_or_else(|e| e.into_inner()),
            }
        }
    }
}
