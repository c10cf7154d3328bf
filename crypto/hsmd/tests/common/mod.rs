//! What the tests share: certificates, a client that may misbehave, a token that does as it is told, and daemons.
#![allow(dead_code)] // no test uses all of it

use cryptoki_sys::*;
use qtls_hsmd::{
    config::Config,
    metrics::Metrics,
    server::{Live, Server},
    work::{Order, Reply, Work},
};
use qtls_pkcs11::{
    config::Key,
    library::lock,
    protocol::{self, Answer, Request, PREFIX},
    spki::PublicKey,
    tls,
    token::{self, Algorithm, Failure, Found, KeyName, Mechanism, Session, Token},
};
use rustls::{pki_types::ServerName, version::TLS13, ClientConfig, ClientConnection, StreamOwned};
use std::{
    collections::HashSet,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    mem,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd, FromRawFd},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
        mpsc, Arc, Condvar, Mutex, OnceLock,
    },
    thread,
    time::{Duration, Instant},
};

/// No test waits longer than that for anything: it is a guard, and says nothing about speed.
pub const GUARD: Duration = Duration::from_secs(600);

pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {text}");
    text
}

/// Waits until something is so.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + GUARD;
    while !so() {
        assert!(Instant::now() < deadline, "{what}: not in {GUARD:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A folder of this process, with whatever is below it.
pub fn folder(name: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// An authority, and certificates by the name of whom they are for: `gateway`, `operator`, `stranger`, and `server`. Those
/// of `forger` come from another authority.
pub struct Pki(PathBuf);

const NAMES: [&str; 5] = ["server", "gateway", "operator", "stranger", "forger"];

pub fn pki() -> &'static Pki {
    static PKI: OnceLock<Pki> = OnceLock::new();
    PKI.get_or_init(|| Pki::new("EC", &["-pkeyopt", "ec_paramgen_curve:P-256"]))
}

impl Pki {
    pub fn new(algorithm: &str, options: &[&str]) -> Pki {
        let pki = Pki(folder("pki"));
        let key = |name: &str| {
            let path = pki.text(&format!("{name}.key"));
            run("openssl", &[&["genpkey", "-algorithm", algorithm, "-out", &path], options].concat());
            path
        };
        for ca in ["ca", "other"] {
            let (key, crt, subject) = (key(ca), pki.text(&format!("{ca}.crt")), format!("/CN={ca}"));
            run("openssl", &["req", "-x509", "-new", "-key", &key, "-subj", &subject, "-days", "100", "-out", &crt]);
        }
        for name in NAMES {
            let ca = if name == "forger" { "other" } else { "ca" };
            let (ca_key, ca_crt) = (pki.text(&format!("{ca}.key")), pki.text(&format!("{ca}.crt")));
            let (key, crt) = (key(name), pki.text(&format!("{name}.crt")));
            let (request, extensions) = (pki.text("csr"), pki.text("ext"));
            let dns = if name == "forger" { "operator" } else { name };
            fs::write(&extensions, format!("subjectAltName = DNS:{dns}, DNS:{dns}.tls.svc\n")).unwrap();
            run("openssl", &["req", "-new", "-key", &key, "-subj", "/CN=any", "-out", &request]);
            let sign = ["x509", "-req", "-in", &request, "-CA", &ca_crt, "-CAkey", &ca_key, "-days", "90"];
            run("openssl", &[&sign[..], &["-extfile", &extensions, "-out", &crt]].concat());
        }
        pki
    }

    pub fn text(&self, file: &str) -> String {
        self.0.join(file).to_str().unwrap().into()
    }

    /// The sections of hsmd's configuration but [token].
    pub fn daemon(&self, settings: &str) -> String {
        let (certificate, key, ca) = (self.text("server.crt"), self.text("server.key"), self.text("ca.crt"));
        // A machine may be slow: only tests of a time that is over make it short.
        let generous = ["handshake-timeout", "write-timeout", "idle-timeout", "drain"]
            .map(|field| if settings.contains(field) { String::new() } else { format!("{field} = 60s\n") })
            .concat();
        format!(
            "[daemon]\n{generous}listen = 127.0.0.1:0\nmetrics = 127.0.0.1:0\ncertificate-file = {certificate}\nkey-file = {key}\n\
             client-ca-file = {ca}\n{settings}\n\
             [client gateway]\nkeys = web, shop-*\nmay = status, find, sign\n\
             [client operator]\nkeys = *\nmay = status, find, sign, generate, retire\n"
        )
    }

    /// A section [member NAME] of the module's configuration.
    pub fn member(&self, name: &str, address: SocketAddr, client: &str) -> String {
        let (ca, crt, key) =
            (self.text("ca.crt"), self.text(&format!("{client}.crt")), self.text(&format!("{client}.key")));
        format!(
            "[member {name}]\naddress = {address}\nserver-name = server\nca-file = {ca}\ncertificate-file = {crt}\n\
             key-file = {key}\nretry = 50ms\ntimeout = 30s\n"
        )
    }
}

/// Needs a token that is not there: enough for all that does not sign.
pub const NO_TOKEN: &str = "[token]\nmodule = /nonexistent.so\ntoken = t\npin-file = /nonexistent\nsessions = 2\n";

pub fn key(label: &str) -> KeyName {
    KeyName { label: label.into(), id: vec![] }
}

pub fn sign(label: &str) -> Request {
    Request::Sign { key: key(label), mechanism: Mechanism::Ecdsa, data: vec![7; 32] }
}

/// A request that comes past the server, from a client that stays.
pub fn order(request: Request, to: mpsc::Sender<Answer>) -> Order {
    Order {
        client: "gateway".into(),
        peer: IpAddr::from([127, 0, 0, 1]),
        request,
        received: Instant::now(),
        to: Box::new(Stays(to)),
    }
}

struct Stays(mpsc::Sender<Answer>);

impl Reply for Stays {
    fn wanted(&self) -> bool {
        true
    }

    fn answer(self: Box<Self>, answer: Answer) {
        self.0.send(answer).unwrap();
    }
}

pub struct Client {
    pub tls: StreamOwned<ClientConnection, TcpStream>,
    next: u64,
}

impl Client {
    pub fn connect(address: SocketAddr, who: &str) -> io::Result<Client> {
        Client::of(pki(), address, who)
    }

    pub fn of(pki: &Pki, address: SocketAddr, who: &str) -> io::Result<Client> {
        Client::over(pki, TcpStream::connect(address)?, who)
    }

    pub fn over(pki: &Pki, mut tcp: TcpStream, who: &str) -> io::Result<Client> {
        let path = |file: String| PathBuf::from(pki.text(&file));
        let chain = tls::certificates(&path(format!("{who}.crt"))).unwrap();
        let key = tls::private_key(&path(format!("{who}.key"))).unwrap();
        let mut config = ClientConfig::builder_with_provider(tls::provider())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(tls::authorities(&path("ca.crt".into())).unwrap())
            .with_client_auth_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![protocol::ALPN.into()];
        let name = ServerName::try_from("server").unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
        connection.set_buffer_limit(None);
        tcp.set_read_timeout(Some(GUARD))?;
        tcp.set_write_timeout(Some(GUARD))?;
        tcp.set_nodelay(true)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut tcp)?;
        }
        Ok(Client { tls: StreamOwned::new(connection, tcp), next: 1 })
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tls.write_all(bytes)?;
        self.tls.flush()
    }

    pub fn send(&mut self, request: &Request) -> io::Result<u64> {
        let id = self.next;
        self.next += 1;
        self.send_bytes(&protocol::write_request(id, request).unwrap())?;
        Ok(id)
    }

    /// What follows the next frame's length.
    pub fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut prefix = [0; PREFIX];
        self.tls.read_exact(&mut prefix)?;
        let mut frame = vec![0; protocol::length(prefix).unwrap()];
        self.tls.read_exact(&mut frame)?;
        Ok(frame)
    }

    /// An error if the connection ends, whether hsmd says why or not.
    pub fn ask(&mut self, request: &Request) -> io::Result<Answer> {
        let id = self.send(request)?;
        let frame = self.receive()?;
        let answer = protocol::read_answer(&frame, request).unwrap();
        match protocol::answer_id(&frame).unwrap() {
            0 => Err(io::Error::other(format!("{answer:?}"))),
            answered => {
                assert_eq!(answered, id);
                Ok(answer)
            }
        }
    }

    /// What it is told that is let in no further than its handshake.
    pub fn turned_away(mut self) -> (CK_RV, String) {
        self.send(&Request::Status).unwrap();
        let frame = self.receive().unwrap();
        assert_eq!(protocol::answer_id(&frame), Ok(0), "it is to no request");
        assert!(self.ends());
        match protocol::read_answer(&frame, &Request::Status) {
            Ok(Answer::Failed(f)) => (f.code, f.detail),
            answer => panic!("{answer:?}"),
        }
    }

    pub fn refused(&mut self, request: &Request) -> (CK_RV, String) {
        match self.ask(request).unwrap() {
            Answer::Failed(f) => (f.code, f.detail),
            answer => panic!("{request:?}: {answer:?}"),
        }
    }

    /// It works.
    pub fn status(&mut self) -> String {
        match self.ask(&Request::Status).unwrap() {
            Answer::Status(json) => json,
            answer => panic!("{answer:?}"),
        }
    }

    /// The connection is closed by the other side.
    pub fn ends(mut self) -> bool {
        let mut rest = vec![];
        match self.tls.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(e) => !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
        }
    }
}

/// A token with keys that are all the same, and a gate that signatures and new keys wait at while it is shut.
#[derive(Default)]
pub struct StandIn {
    pub keys: Mutex<HashSet<String>>,
    shut: Mutex<bool>,
    opened: Condvar,
    pub waiting: AtomicUsize,
    pub signed: AtomicUsize,
    /// Labels of the keys that signed, in that order.
    pub signers: Mutex<Vec<String>>,
    /// How often a public key was asked for.
    pub looked: AtomicUsize,
    /// What is answered then, if not the key that it is.
    pub shows: Mutex<Option<token::Result<PublicKey>>>,
    /// It makes the key that is asked for, and its answer is this code.
    pub loses: Mutex<Option<CK_RV>>,
    /// How often it was asked to make one.
    pub asked: AtomicUsize,
    /// Calls fail as if it was pulled out.
    pub gone: AtomicBool,
}

impl StandIn {
    pub fn new() -> Arc<StandIn> {
        let token = StandIn::default();
        lock(&token.keys).extend(["web", "shop-1", RSA_KEY, "secret"].map(String::from));
        Arc::new(token)
    }

    pub fn shut(&self) {
        *lock(&self.shut) = true;
    }

    pub fn open(&self) {
        *lock(&self.shut) = false;
        self.opened.notify_all();
    }

    /// Waits at the gate.
    fn pass(&self) {
        self.waiting.fetch_add(1, SeqCst);
        let mut shut = lock(&self.shut);
        while *shut {
            shut = self.opened.wait(shut).unwrap();
        }
        drop(shut);
        self.waiting.fetch_sub(1, SeqCst);
    }

    fn answer(&self) -> token::Result<()> {
        match self.gone.load(SeqCst) {
            true => Err(Failure::new(CKR_DEVICE_REMOVED, "stand-in")),
            false => Ok(()),
        }
    }
}

pub fn public() -> PublicKey {
    PublicKey::from_pem(include_bytes!("../../../pkcs11/testdata/p256.pem")).unwrap()
}

/// The token's key of this label.
pub const RSA_KEY: &str = "shop-rsa";

fn public_of(label: &str) -> PublicKey {
    match label {
        RSA_KEY => PublicKey::from_pem(include_bytes!("../../../pkcs11/testdata/rsa.pem")).unwrap(),
        _ => public(),
    }
}

struct StandInToken(Arc<StandIn>);
struct StandInSession(Arc<StandIn>);

impl Token for StandInToken {
    fn open(&self) -> token::Result<Box<dyn Session>> {
        self.0.answer()?;
        Ok(Box::new(StandInSession(self.0.clone())))
    }

    fn failed(&self) {}
}

impl Session for StandInSession {
    fn find(&mut self, key: &Key) -> token::Result<Option<CK_OBJECT_HANDLE>> {
        self.0.answer()?;
        Ok(lock(&self.0.keys).contains(&key.label).then_some(1))
    }

    fn sign(&mut self, _: CK_OBJECT_HANDLE, request: &token::Request, len: usize) -> token::Result<Vec<u8>> {
        self.0.pass();
        self.0.answer()?;
        lock(&self.0.signers).push(request.key.label.clone());
        self.0.signed.fetch_add(1, SeqCst);
        Ok(vec![0x5a; len])
    }

    fn check(&mut self) -> token::Result<()> {
        self.0.answer()
    }

    fn has_keys(&mut self) -> token::Result<bool> {
        self.0.answer()?;
        Ok(!lock(&self.0.keys).is_empty())
    }

    fn public(&mut self, key: &KeyName) -> token::Result<Option<Found>> {
        self.0.answer()?;
        self.0.looked.fetch_add(1, SeqCst);
        let shown = lock(&self.0.shows).clone().unwrap_or_else(|| Ok(public_of(&key.label)))?;
        let found = Found { public: shown.der, sensitive: true, extractable: false, local: true };
        Ok(lock(&self.0.keys).contains(&key.label).then_some(found))
    }

    fn generate(&mut self, _: Algorithm, key: &KeyName) -> token::Result<Found> {
        self.0.pass();
        self.0.asked.fetch_add(1, SeqCst);
        if !lock(&self.0.keys).insert(key.label.clone()) {
            return Err(Failure::new(CKR_ATTRIBUTE_VALUE_INVALID, "it is there"));
        }
        if let Some(code) = lock(&self.0.loses).take() {
            return Err(Failure::new(code, "stand-in"));
        }
        Ok(self.public(key)?.unwrap())
    }

    fn retire(&mut self, key: &KeyName) -> token::Result<()> {
        match lock(&self.0.keys).remove(&key.label) {
            true => Ok(()),
            false => Err(Failure::new(CKR_KEY_HANDLE_INVALID, "it is not there")),
        }
    }
}

/// A daemon in this process, with a stand-in for its token.
pub struct Inside {
    pub token: Arc<StandIn>,
    pub work: Arc<Work>,
    pub server: Arc<Server>,
    pub metrics: Arc<Metrics>,
    pub address: SocketAddr,
    pub listener: Arc<TcpListener>,
    pub config: Config,
}

impl Inside {
    pub fn start(settings: &str) -> Inside {
        Inside::start_with(settings, "timeout = 60s")
    }

    /// With settings of its token, too.
    pub fn start_with(settings: &str, token: &str) -> Inside {
        let sessions = if token.contains("sessions = ") { "" } else { "sessions = 4\n" };
        let token = format!("[token]\nmodule = /stand-in.so\ntoken = t\npin-file = /none\n{sessions}{token}\n");
        let config = Config::parse(&(pki().daemon(settings) + &token)).unwrap();
        let (token, metrics) = (StandIn::new(), Arc::new(Metrics::default()));
        let work = Work::start(config.token.clone(), Box::new(StandInToken(token.clone())), metrics.clone());
        until("the token is up", || work.up());
        let server = Server::new(config.clone(), Live::new(&config).unwrap(), work.clone());
        let listener = Arc::new(TcpListener::bind(config.listen).unwrap());
        let address = listener.local_addr().unwrap();
        let (accepting, listening) = (server.clone(), listener.clone());
        thread::spawn(move || accepting.accept(&listening));
        Inside { token, work, server, metrics, address, listener, config }
    }

    pub fn connect(&self, who: &str) -> Client {
        Client::connect(self.address, who).unwrap()
    }

    /// From an address of its own, as each pod has one.
    pub fn connect_from(&self, pod: u8, who: &str) -> Client {
        Client::over(pki(), connect_from([127, 0, 1, pod], self.address), who).unwrap()
    }
}

/// A daemon of its own process.
pub struct Daemon {
    pub child: Child,
    pub address: SocketAddr,
    pub metrics: SocketAddr,
    pub configuration: PathBuf,
    lines: Mutex<mpsc::Receiver<String>>,
}

impl Daemon {
    pub fn start(text: &str) -> Daemon {
        Daemon::start_with(text, &[])
    }

    pub fn start_with(text: &str, environment: &[(&str, &str)]) -> Daemon {
        let configuration = folder("daemon").join("hsmd.conf");
        fs::write(&configuration, text).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_hsmd"))
            .args(["--config", configuration.to_str().unwrap()])
            .envs(environment.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, lines) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
        let nowhere = SocketAddr::from(([0; 4], 0));
        let (address, metrics, lines) = (nowhere, nowhere, Mutex::new(lines));
        let mut daemon = Daemon { child, address, metrics, configuration, lines };
        let at = |line: String, what: &str| line.strip_prefix(what).and_then(|a| a.parse().ok()).unwrap();
        daemon.metrics = at(daemon.line("metrics on"), "hsmd: metrics on ");
        daemon.address = at(daemon.line("listening on"), "hsmd: listening on ");
        daemon
    }

    /// The next line of its log that has a text in it.
    pub fn line(&self, text: &str) -> String {
        loop {
            let line = lock(&self.lines).recv_timeout(GUARD).unwrap_or_else(|e| panic!("{text}: {e}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: it is our child, and not yet waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the daemon ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// A number of /proc: its threads, or its memory in KiB.
    pub fn counted(&self, field: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub fn get(&self, path: &str) -> String {
        let once = || -> io::Result<String> {
            let mut tcp = TcpStream::connect(self.metrics)?;
            tcp.set_read_timeout(Some(GUARD))?;
            tcp.write_all(format!("GET {path} HTTP/1.1\r\nHost: hsmd\r\n\r\n").as_bytes())?;
            let mut text = String::new();
            tcp.read_to_string(&mut text)?;
            Ok(text)
        };
        let whole = |text: &str| {
            let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
            let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: ")?.parse().ok());
            length == Some(body.len())
        };
        // It has 2 s for each, and a machine may stand still for longer: then it is asked again. Sooner, or each time, it is
        // the daemon's fault.
        for _ in 0..10 {
            let start = Instant::now();
            match once() {
                Ok(text) if whole(&text) => return text,
                other => assert!(start.elapsed() >= Duration::from_secs(2), "{path}: {other:?}"),
            }
        }
        panic!("{path}: ten times no answer");
    }

    pub fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics");
        let line = text.lines().find(|l| l.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.unwrap_or_else(|| panic!("{name} in {text}")).split_whitespace().last().unwrap().parse().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection from another address of this machine's than others have.
pub fn connect_from(source: [u8; 4], to: SocketAddr) -> TcpStream {
    let address = |ip: [u8; 4], port: u16| {
        // SAFETY: numbers, all of which may be 0.
        let mut at: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        at.sin_family = libc::AF_INET as libc::sa_family_t;
        at.sin_port = port.to_be();
        at.sin_addr.s_addr = u32::from_ne_bytes(ip);
        at
    };
    let SocketAddr::V4(v4) = to else { panic!("{to}") };
    let (from, to) = (address(source, 0), address(v4.ip().octets(), to.port()));
    let len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: a socket of our own, and addresses that live.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(socket >= 0);
        let tcp = TcpStream::from_raw_fd(socket);
        assert_eq!(libc::bind(socket, (&raw const from).cast(), len), 0);
        assert_eq!(libc::connect(socket, (&raw const to).cast(), len), 0);
        tcp
    }
}

/// An address that stays, in front of daemons that come and go.
pub struct Relay {
    pub address: SocketAddr,
    listener: TcpListener,
    behind: Arc<Mutex<(Option<SocketAddr>, Vec<TcpStream>)>>,
}

impl Relay {
    pub fn new() -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let relay = Relay { address, listener: listener.try_clone().unwrap(), behind: Arc::default() };
        let behind = relay.behind.clone();
        let copy = |mut from: TcpStream, mut to: TcpStream| {
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Both);
                let _ = from.shutdown(std::net::Shutdown::Both);
            })
        };
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut behind = lock(&behind);
                let Some(Ok(server)) = behind.0.map(TcpStream::connect) else { continue };
                for tcp in [&client, &server] {
                    let _ = tcp.set_nodelay(true);
                    behind.1.push(tcp.try_clone().unwrap());
                }
                copy(client.try_clone().unwrap(), server.try_clone().unwrap());
                copy(server, client);
            }
        });
        relay
    }

    pub fn point_to(&self, address: SocketAddr) {
        lock(&self.behind).0 = Some(address);
    }

    /// As if its machine lost its power, or the network to it: nothing comes or goes any more, and nobody is told.
    pub fn silence(&self) {
        let drop_all = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: (&raw const drop_all).cast_mut() };
        let (value, len) = (&raw const program, mem::size_of_val(&program) as libc::socklen_t);
        for socket in
            std::iter::once(self.listener.as_raw_fd()).chain(lock(&self.behind).1.iter().map(AsRawFd::as_raw_fd))
        {
            // SAFETY: the descriptor is open, and the program of one instruction is copied.
            let set = unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value.cast(), len) };
            assert_eq!(set, 0, "{}", io::Error::last_os_error());
        }
    }

    /// As if the hsmd behind it were killed.
    pub fn cut(&self) {
        let mut behind = lock(&self.behind);
        behind.0 = None;
        for tcp in behind.1.drain(..) {
            let _ = tcp.shutdown(std::net::Shutdown::Both);
        }
    }
}
