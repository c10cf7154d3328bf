//! How answers come back: whoever has one sends it, and nobody waits for a client that is slow or gone, or for a token whose
//! time is over.

mod common;

use common::*;
use cryptoki_sys::*;
use qtls_hsmd::{metrics::Outcome, work::Order};
use qtls_pkcs11::protocol::{self, Answer, Request};
use std::{
    fs, mem,
    net::{SocketAddr, TcpStream},
    os::fd::{AsRawFd, FromRawFd},
    sync::{atomic::Ordering::SeqCst, mpsc},
    time::Instant,
};

fn signature() -> Answer {
    Answer::Signature(vec![0x5a; 64])
}

/// A buffer of the socket holds 32 KiB, and the system's own notes as much again.
fn narrow(socket: &impl AsRawFd, buffer: i32) {
    let bytes = 32i32 << 10;
    // SAFETY: the socket and the number live.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            buffer,
            (&raw const bytes).cast(),
            mem::size_of_val(&bytes) as libc::socklen_t,
        )
    };
    assert_eq!(done, 0);
}

/// A connection whose other side can be ahead of its reader by little: that is agreed on when it begins.
fn narrow_connection(address: SocketAddr) -> TcpStream {
    let SocketAddr::V4(to) = address else { panic!("{address}") };
    // SAFETY: a socket of our own, and an address that lives.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(socket >= 0);
        let tcp = TcpStream::from_raw_fd(socket);
        narrow(&tcp, libc::SO_RCVBUF);
        let mut at: libc::sockaddr_in = mem::zeroed();
        at.sin_family = libc::AF_INET as libc::sa_family_t;
        at.sin_port = to.port().to_be();
        at.sin_addr.s_addr = u32::from(*to.ip()).to_be();
        assert_eq!(libc::connect(socket, (&raw const at).cast(), mem::size_of_val(&at) as libc::socklen_t), 0);
        tcp
    }
}

#[test]
fn answers_to_a_client_whose_socket_is_full_are_kept_for_it_and_hold_nobody_up() {
    let daemon = Inside::start("in-flight = 1024");
    narrow(&*daemon.listener, libc::SO_SNDBUF); // connections have it from there
    let mut slow = Client::over(pki(), narrow_connection(daemon.address), "gateway").unwrap();
    daemon.token.shut();
    let signing: Vec<u64> = (0..8).map(|_| slow.send(&sign("web")).unwrap()).collect();
    // No more answers may wait than twice those in flight: fewer would not be more than the sockets hold.
    let status: Vec<u64> = (0..2000).map(|_| slow.send(&Request::Status).unwrap()).collect();
    until("all but the signatures are answered", || daemon.metrics.requests("status", Outcome::Ok) == 2000);

    // The token has four threads. Each of them has answers for the one that does not read, and then serves another.
    daemon.token.open();
    until("all is signed", || daemon.token.signed.load(SeqCst) == 8);
    assert_eq!(daemon.connect("gateway").ask(&sign("web")).unwrap(), signature());
    until("nobody is left with an answer", || daemon.metrics.in_flight.load(SeqCst) == 0);

    let (mut signed, mut told, mut bytes) = (vec![], vec![], 0);
    for _ in 0..2008 {
        let frame = slow.receive().unwrap();
        bytes += frame.len();
        let id = protocol::answer_id(&frame).unwrap();
        if signing.contains(&id) {
            assert_eq!(protocol::read_answer(&frame, &sign("web")).unwrap(), signature());
            signed.push(id);
        } else {
            assert!(matches!(protocol::read_answer(&frame, &Request::Status), Ok(Answer::Status(_))));
            told.push(id);
        }
    }
    signed.sort_unstable();
    assert_eq!((signed, told), (signing, status), "none is lost, and what one thread answered is in its order");
    assert!(bytes > 300 << 10, "{bytes} bytes: all of them fit the sockets, and nothing had to wait");
    slow.status();
}

/// A request whose time is over when it comes.
fn overdue(daemon: &Inside, to: mpsc::Sender<Answer>) -> Order {
    Order { received: Instant::now() - daemon.config.token.timeout, ..order(sign("web"), to) }
}

#[test]
fn a_request_whose_time_passes_in_the_queue_is_given_back_and_not_made() {
    let daemon = Inside::start("");
    daemon.token.shut();
    let mut busy = daemon.connect("gateway");
    for _ in 0..4 {
        busy.send(&sign("web")).unwrap();
    }
    until("no session is free", || daemon.token.waiting.load(SeqCst) == 4);
    let (to, answer) = mpsc::channel();
    daemon.work.take(overdue(&daemon, to));
    match answer.recv_timeout(GUARD).unwrap() {
        Answer::Failed(f) => {
            assert_eq!((f.code, &*f.detail), (CKR_FUNCTION_CANCELED, "no free session in 60000 ms"));
        }
        answer => panic!("{answer:?}"),
    }
    let counted = [Outcome::Refused, Outcome::Failed].map(|outcome| daemon.metrics.requests("sign", outcome));
    assert_eq!(counted, [1, 0], "the token has not said anything");
    assert!(daemon.work.up(), "a token that is busy is well");
    daemon.token.open();
    for _ in 0..4 {
        busy.receive().unwrap();
    }
    // It would have come before this one.
    assert_eq!(busy.ask(&sign("web")).unwrap(), signature());
    assert_eq!(daemon.token.signed.load(SeqCst), 5);
    assert_eq!(answer.recv(), Err(mpsc::RecvError), "it was answered once, and nothing is left of it");
}

#[test]
fn a_request_that_waited_too_long_forgets_no_key_and_one_that_failed_does() {
    let daemon = Inside::start_with("", "timeout = 60s\nretry = 10ms");
    let mut client = daemon.connect("gateway");
    assert_eq!(client.ask(&sign("web")).unwrap(), signature());
    assert_eq!(daemon.token.looked.load(SeqCst), 1, "the key is known now");
    daemon.token.shut();
    for _ in 0..4 {
        client.send(&sign("web")).unwrap();
    }
    until("no session is free", || daemon.token.waiting.load(SeqCst) == 4);
    let (to, answer) = mpsc::channel();
    daemon.work.take(overdue(&daemon, to));
    match answer.recv_timeout(GUARD).unwrap() {
        Answer::Failed(f) => assert_eq!(f.code, CKR_FUNCTION_CANCELED, "{f}"),
        answer => panic!("{answer:?}"),
    }
    daemon.token.open();
    for _ in 0..4 {
        client.receive().unwrap();
    }
    assert_eq!(client.ask(&sign("web")).unwrap(), signature());
    assert_eq!(daemon.token.looked.load(SeqCst), 1, "it was not asked for again");

    daemon.token.gone.store(true, SeqCst);
    assert_eq!(client.refused(&sign("web")).0, CKR_DEVICE_REMOVED);
    daemon.token.gone.store(false, SeqCst);
    until("the token signs again", || client.ask(&sign("web")).unwrap() == signature());
    assert!(daemon.token.looked.load(SeqCst) >= 2, "another token may be there");
}

#[test]
fn a_signature_that_the_token_does_not_make_in_time_is_given_back_and_nobodys_when_it_comes() {
    let daemon = Inside::start_with("", "timeout = 200ms\nretry = 10ms");
    let mut client = daemon.connect("gateway");
    until("its key is known", || client.ask(&sign("web")).unwrap() == signature());
    daemon.token.shut();
    // A slow machine may take that long to begin with one.
    until("one is given up", || client.refused(&sign("web")) == (CKR_DEVICE_ERROR, "no answer in 200 ms".into()));
    daemon.token.open();
    until("the token signs again", || client.ask(&sign("web")).unwrap() == signature());
    until("nothing is in flight", || daemon.metrics.in_flight.load(SeqCst) == 0);
}

/// The daemon's socket of a client, by its number in the kernel.
fn socket(daemon: &Inside, client: &Client) -> String {
    let ports = [daemon.address.port(), client.tls.sock.local_addr().unwrap().port()].map(|p| format!(":{p:04X}"));
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row[1].ends_with(&ports[0]) && row[2].ends_with(&ports[1])).unwrap();
    format!("socket:[{}]", row[9])
}

/// Whether any of this process's descriptors is it.
fn open(socket: &str) -> bool {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| fs::read_link(entry.path()));
    links.flatten().any(|link| link.to_str() == Some(socket))
}

#[test]
fn what_a_client_asked_for_that_left_is_not_done_and_keeps_nothing_of_it() {
    let daemon = Inside::start("");
    daemon.token.shut();
    let mut client = daemon.connect("gateway");
    for _ in 0..20 {
        client.send(&sign("web")).unwrap();
    }
    // The token has four sessions; the rest waits.
    until("all are in flight", || daemon.metrics.in_flight.load(SeqCst) == 20);
    until("four are being signed", || daemon.token.waiting.load(SeqCst) == 4);
    let socket = socket(&daemon, &client);
    assert!(open(&socket));
    drop(client);
    until("it left", || daemon.metrics.connections.load(SeqCst) == 0);
    until("its socket is closed", || !open(&socket));
    assert_eq!(daemon.metrics.in_flight.load(SeqCst), 20, "while all of its requests wait");

    daemon.token.open();
    until("none is in flight", || daemon.metrics.in_flight.load(SeqCst) == 0);
    let counted = [Outcome::Ok, Outcome::Refused, Outcome::Failed].map(|o| daemon.metrics.requests("sign", o));
    assert_eq!((daemon.token.signed.load(SeqCst), counted), (4, [4, 16, 0]));
    let mut next = daemon.connect("gateway");
    assert_eq!(next.ask(&sign("web")).unwrap(), signature());
    let status = next.status();
    assert!(status.contains(r#""lastError":"""#), "the token did nothing wrong: {status}");
}
