//! Bad clients: what they get is bounded, and good ones are served beside them.

mod common;

use common::*;
use cryptoki_sys::*;
use qtls_hsmd::{
    metrics::{Outcome, Refusal},
    places::{superfluous, NoPlace, Places, GRACE},
    work::Order,
};
use qtls_pkcs11::{
    library::lock,
    protocol::{self, Answer, Request},
    token::Mechanism,
};
use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    sync::{
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc, Arc,
    },
    thread,
    time::Duration,
};

fn tcp(daemon: &Daemon) -> TcpStream {
    let tcp = TcpStream::connect(daemon.address).unwrap();
    tcp.set_read_timeout(Some(GUARD)).unwrap();
    tcp
}

/// The other side closes it, whatever it says before.
fn ends(mut tcp: TcpStream) -> bool {
    let mut rest = vec![];
    match tcp.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(e) => !matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

/// A good client is served, sooner or later: where times are short, a slow machine needs more than one attempt.
fn served(address: std::net::SocketAddr) {
    until("a good client is served", || {
        Client::connect(address, "operator").is_ok_and(|mut c| c.ask(&Request::Status).is_ok())
    });
}

#[test]
fn clients_that_send_nothing_or_not_all_are_closed_when_their_time_is_over() {
    let daemon = Daemon::start(&(pki().daemon("handshake-timeout = 1s\nidle-timeout = 1s") + NO_TOKEN));
    let silent = tcp(&daemon);
    let mut half = tcp(&daemon);
    let _ = half.write_all(b"\x16\x03\x01\x02\x00\x01"); // a ClientHello's first bytes
    let mut garbage = tcp(&daemon);
    let _ = garbage.write_all(&[0x47; 4096]);
    assert!(ends(silent) && ends(half) && ends(garbage));
    until("they are counted", || daemon.metric("qtls_hsmd_refusals_total{reason=\"handshake\"}") >= 3);
    let connect = || {
        let mut client = None;
        until("a client connects", || {
            client = Client::connect(daemon.address, "operator").ok();
            client.is_some()
        });
        client.unwrap()
    };
    let (idle, mut half_frame) = (connect(), connect());
    let _ = half_frame.send_bytes(b"\0\0\0\x09\0\0\0");
    assert!(idle.ends() && half_frame.ends());
    until("no connection is left", || daemon.metric("qtls_hsmd_connections") == 0);
    served(daemon.address);
}

#[test]
fn what_is_no_frame_is_answered_once_and_closed() {
    let daemon = Inside::start("");
    let whole = protocol::write_request(7, &Request::Status).unwrap();
    let cases: [(&str, Vec<u8>, u64); 5] = [
        ("a frame of 4 GiB", vec![0xff; 4], 0),
        ("one byte more than there may be", 65_537u32.to_be_bytes().into(), 0),
        ("a frame without an operation", vec![0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1], 0),
        ("an operation that is not there", [&whole[..12], &[99]].concat(), 7),
        ("a request with more behind it", [&[0, 0, 0, 10], &whole[4..], &[0]].concat(), 7),
    ];
    for (what, bytes, id) in cases {
        let mut client = daemon.connect("operator");
        client.status();
        client.send_bytes(&bytes).unwrap();
        let frame = client.receive().unwrap();
        assert_eq!(protocol::answer_id(&frame), Ok(id), "{what}");
        match protocol::read_answer(&frame, &Request::Status) {
            Ok(Answer::Failed(f)) => assert_eq!(f.code, CKR_ARGUMENTS_BAD, "{what}"),
            answer => panic!("{what}: {answer:?}"),
        }
        assert!(client.ends(), "{what}");
    }
    assert_eq!(daemon.metrics.refused(Refusal::Malformed), 5);
    daemon.connect("operator").status();
}

#[test]
fn frames_may_come_in_any_pieces() {
    let daemon = Inside::start("");
    let mut client = daemon.connect("gateway");
    let frames: Vec<u8> = (1..=5).flat_map(|id| protocol::write_request(id, &sign("web")).unwrap()).collect();
    for piece in frames.chunks(11) {
        client.send_bytes(piece).unwrap();
    }
    let mut answered: Vec<u64> = (0..5).map(|_| protocol::answer_id(&client.receive().unwrap()).unwrap()).collect();
    answered.sort_unstable();
    assert_eq!(answered, [1, 2, 3, 4, 5]);
}

#[test]
fn the_longest_frame_is_taken() {
    let daemon = Inside::start("");
    let mut client = daemon.connect("gateway");
    let mechanism = qtls_pkcs11::token::Mechanism::MlDsa(None);
    let sign = |len| Request::Sign { key: key("web"), mechanism: mechanism.clone(), data: vec![1; len] };
    let overhead = protocol::write_request(1, &sign(0)).unwrap().len() - protocol::PREFIX;
    // The stand-in's key is another kind: what matters is that hsmd read all of it.
    assert_eq!(client.refused(&sign(protocol::LONGEST - overhead)).0, CKR_KEY_TYPE_INCONSISTENT);
}

#[test]
fn more_requests_in_flight_than_allowed_are_refused_one_by_one() {
    let daemon = Inside::start("in-flight = 8");
    daemon.token.shut();
    let mut client = daemon.connect("gateway");
    for _ in 0..20 {
        client.send(&sign("web")).unwrap();
    }
    // Twelve answers come while no signature is made: refusals.
    for _ in 0..12 {
        let frame = client.receive().unwrap();
        assert!(protocol::answer_id(&frame).unwrap() > 8);
        match protocol::read_answer(&frame, &sign("web")) {
            Ok(Answer::Failed(f)) => assert_eq!(f.code, CKR_SESSION_COUNT),
            answer => panic!("{answer:?}"),
        }
    }
    assert!(client.status().contains(r#""state":"Up""#), "Status waits for nobody");
    assert!(daemon.connect("operator").status().contains(r#""state":"Up""#), "nor does another's");
    daemon.token.open();
    let mut signed: Vec<u64> = (0..8).map(|_| protocol::answer_id(&client.receive().unwrap()).unwrap()).collect();
    signed.sort_unstable();
    assert_eq!(signed, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(client.ask(&sign("web")).unwrap(), Answer::Signature(vec![0x5a; 64]), "and there is room again");
    assert_eq!(daemon.metrics.requests("sign", Outcome::Refused), 12);
}

/// What is refused for lack of room, at once, of as many requests of one pod.
fn without_room(
    daemon: &Inside,
    pod: u8,
    request: &Request,
    count: usize,
    to: &mpsc::Sender<Answer>,
    answers: &mpsc::Receiver<Answer>,
) -> usize {
    let peer = IpAddr::from([127, 0, 0, pod]);
    (0..count).for_each(|_| daemon.work.take(Order { peer, ..order(request.clone(), to.clone()) }));
    let refused: Vec<Answer> = answers.try_iter().collect();
    for answer in &refused {
        assert!(matches!(answer, Answer::Failed(f) if f.code == CKR_SESSION_COUNT), "{answer:?}");
    }
    refused.len()
}

/// Codes of answers, or none for what succeeded.
fn codes(answers: &mpsc::Receiver<Answer>, count: usize) -> Vec<CK_RV> {
    let code = |answer| match answer {
        Answer::Failed(f) => f.code,
        _ => CKR_OK,
    };
    (0..count).map(|_| code(answers.recv_timeout(GUARD).unwrap())).collect()
}

#[test]
fn what_waits_takes_no_more_memory_than_its_share_and_keys_and_signatures_have_room_of_their_own() {
    let daemon = Inside::start("");
    let mut busy = daemon.connect("gateway");
    daemon.token.shut();
    for _ in 0..4 {
        busy.send(&sign("web")).unwrap();
    }
    until("no session is free", || daemon.token.waiting.load(SeqCst) == 4);

    // One makes a key, and waits for a session; each of the others is 1 MiB, of 32 MiB that there are. A pod has half of what
    // the others leave.
    let (to, made) = mpsc::channel();
    let generate = |algorithm: String| Request::Generate { algorithm, key: key("new") };
    assert_eq!(without_room(&daemon, 1, &generate("ML-DSA-65".into()), 1, &to, &made), 0);
    let large = generate("x".repeat(1 << 20));
    let refused = [1, 2, 3].map(|pod| without_room(&daemon, pod, &large, 40, &to, &made));
    assert_eq!(refused, [24, 32, 36]);

    // A request for a signature is kept as it came and as the token gets it: 2 MiB each, its context as well as its data.
    let (to, signed) = mpsc::channel();
    let large = |mechanism, data| Request::Sign { key: key("shop-1"), mechanism, data };
    let context = Mechanism::MlDsa(Some((CKH_HEDGE_PREFERRED, vec![1; 1 << 20])));
    assert_eq!(without_room(&daemon, 1, &large(context, vec![]), 7, &to, &signed), 0);
    assert_eq!(without_room(&daemon, 2, &large(Mechanism::Ecdsa, vec![1; 1 << 20]), 20, &to, &signed), 16);

    daemon.token.open();
    (0..4).for_each(|_| drop(busy.receive().unwrap()));
    let mut expected = vec![CKR_ARGUMENTS_BAD; 16 + 8 + 4];
    expected.insert(0, CKR_OK);
    assert_eq!(codes(&made, 29), expected, "the key is made; the others name no algorithm");
    let mut found = codes(&signed, 11);
    found.sort_unstable();
    let refused = [vec![CKR_DATA_LEN_RANGE; 4], vec![CKR_MECHANISM_PARAM_INVALID; 7]].concat();
    assert_eq!(
        found, refused,
        "once their key is known, that of P-256 signs no such digest, and none with such a context"
    );
    assert_eq!(busy.ask(&sign("web")).unwrap(), Answer::Signature(vec![0x5a; 64]));
    daemon.work.take(order(generate("x".repeat(30 << 20)), to));
    assert_eq!(codes(&signed, 1), [CKR_ARGUMENTS_BAD], "there is room again");
}

#[test]
fn a_client_that_does_not_read_its_answers_is_closed() {
    let daemon = Inside::start("write-timeout = 300ms");
    let mut client = daemon.connect("operator");
    let requests = protocol::write_request(1, &Request::Status).unwrap().repeat(1000);
    client.tls.sock.set_write_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
    // Answers fill the sockets' buffers; then requests are not read any more either.
    let (mut sent, mut full) = (0, false);
    until("it is closed", || {
        if !full {
            full = client.send_bytes(&requests).is_err();
            sent += 1000;
        }
        daemon.metrics.refused(Refusal::Slow) == 1
    });
    println!("closed after about {sent} requests");
    until("its threads are gone", || daemon.metrics.connections.load(SeqCst) == 0);
    served(daemon.address);
}

#[test]
fn there_are_as_many_connections_as_allowed() {
    let daemon = Daemon::start(&(pki().daemon("connections = 4") + NO_TOKEN));
    let from = |pod: u8| Client::over(pki(), connect_from([127, 0, 1, pod], daemon.address), "operator").unwrap();
    let mut clients: Vec<Client> = (1..=4).map(from).collect();
    clients.iter_mut().for_each(|c| drop(c.status()));
    let threads = daemon.counted("Threads:");
    for _ in 0..50 {
        let why = Client::connect(daemon.address, "operator").unwrap().turned_away();
        let told = "4 of 4 connections are taken, 0 of them by 127.0.0.1, which may have no more than are free; raise connections";
        assert_eq!(why, (CKR_SESSION_COUNT, told.into()));
    }
    assert_eq!(daemon.metric("qtls_hsmd_refusals_total{reason=\"full\"}"), 50);
    until("the four are left", || daemon.metric("qtls_hsmd_connections") == 4);
    until("no thread is left of them", || daemon.counted("Threads:") <= threads);
    clients.iter_mut().for_each(|c| drop(c.status()));
    drop(clients.pop());
    until("there is room for one", || {
        Client::connect(daemon.address, "operator").is_ok_and(|mut c| c.ask(&Request::Status).is_ok())
    });
}

#[test]
fn a_place_is_kept_for_who_makes_keys() {
    let daemon = Inside::start("connections = 16");
    let mut gateways: Vec<Client> = (1..=15).map(|pod| daemon.connect_from(pod, "gateway")).collect();
    gateways.iter_mut().for_each(|c| drop(c.status()));
    let full = |taken, pod| {
        let why =
            format!("{taken} connections are taken, 0 of them by 127.0.1.{pod}, which may have no more than are free");
        (CKR_SESSION_COUNT, why + "; raise connections")
    };
    let without = "15 of 15 and 1 more for clients that may generate";
    assert_eq!(daemon.connect_from(16, "gateway").turned_away(), full(without, 16));
    let mut operator = daemon.connect_from(17, "operator");
    operator.status();
    assert_eq!(daemon.connect_from(18, "operator").turned_away(), full("16 of 16", 18), "there is one");
    gateways.iter_mut().for_each(|c| drop(c.status()));
    assert_eq!(daemon.metrics.refused(Refusal::Full), 2);
}

/// The operator has a connection for each pool, all from one address.
#[test]
fn one_address_may_have_all_places_that_are_kept() {
    let daemon = Inside::start("connections = 64"); // 4 are kept
    let _gateways: Vec<Client> = (1..=60).map(|pod| daemon.connect_from(pod, "gateway")).collect();
    let mut operators: Vec<Client> = (0..4).map(|_| daemon.connect_from(100, "operator")).collect();
    operators.iter_mut().for_each(|c| drop(c.status()));
    assert_eq!(daemon.connect_from(100, "operator").turned_away().0, CKR_SESSION_COUNT);
}

/// One pod, with the certificate that all have, asks for all that there is.
#[test]
fn a_client_takes_from_others_neither_places_nor_their_turns_at_the_token() {
    // One session: of several one could stand still with another's request, and the rest make a thousand meanwhile.
    let daemon = Inside::start_with("connections = 64", "timeout = 60s\nsessions = 1");
    let mut greedy = vec![];
    until("it is let in no further", || {
        let mut client = daemon.connect_from(1, "gateway");
        let let_in = matches!(client.ask(&Request::Status), Ok(Answer::Status(_)));
        if let_in {
            greedy.push(client);
        }
        !let_in
    });
    assert_eq!(greedy.len(), 30, "half of those that are for gateways");
    let mut others = [daemon.connect_from(2, "gateway"), daemon.connect_from(3, "operator")];

    // All that it may have in flight waits for the token when the others ask for one signature each.
    daemon.token.shut();
    let most = daemon.config.in_flight * greedy.len();
    for client in &mut greedy {
        for _ in 0..daemon.config.in_flight {
            client.send(&sign("web")).unwrap();
        }
    }
    until("its requests wait", || daemon.work.in_flight() == most);
    for client in &mut others {
        client.send(&sign("shop-1")).unwrap();
    }
    until("and theirs", || daemon.work.in_flight() == most + 2);
    daemon.token.open();
    until("all are answered", || daemon.work.in_flight() == 0);
    let signers = lock(&daemon.token.signers);
    let theirs: Vec<usize> = (0..signers.len()).filter(|n| signers[*n] == "shop-1").collect();
    println!("of {} signatures the other pods' are those after {theirs:?}", signers.len());
    assert_eq!((signers.len(), theirs.len()), (most + 2, 2));
    // The session has one of its requests, and then a third of the turns are its own: for the key is looked up first.
    assert!(theirs[1] < 8, "{theirs:?}");
}

/// It was none too many: the other's place was wanted before it was known for a client.
#[test]
fn a_client_whose_place_was_needed_meanwhile_is_told_apart_from_one_too_many() {
    let (places, listener) = (Places::new(1, GRACE), TcpListener::bind("127.0.0.1:0").unwrap());
    let tcp = || Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    let here = IpAddr::from([127, 0, 0, 1]);
    let [first, second, ..] = [(); 4].map(|()| places.enter(&tcp(), here));
    thread::scope(|scope| {
        scope.spawn(|| places.enter(&tcp(), here));
        until("it is to leave", || places.dismissed(first));
        assert_eq!(places.admit(first, true), Err(NoPlace::Dismissed));
        places.leave(first);
    });
    assert_eq!(places.admit(second, false), Ok(()));
    let third = places.enter(&tcp(), here);
    assert_eq!(places.admit(third, true), Err(NoPlace::Full { most: 1, taken: 1, has: 1 }));
}

#[test]
fn who_came_first_from_where_most_come_from_has_to_go() {
    let [a, b, c] = [1, 2, 3].map(|n| IpAddr::from([10, 0, 0, n]));
    assert_eq!(superfluous(&[], a), None, "nobody is there");
    assert_eq!(superfluous(&[(1, a), (2, b), (3, b)], c), Some(2), "most are of b");
    assert_eq!(superfluous(&[(1, a), (2, b), (3, b)], a), Some(1), "as many are of a, with the one that comes");
    assert_eq!(superfluous(&[(1, a), (2, b)], b), Some(2), "b has two, with the one that comes");
    assert_eq!(superfluous(&[(1, b), (2, a)], c), Some(1), "all have one");
    assert_eq!(superfluous(&[(7, b)], a), Some(7), "there is one place");
    assert_eq!(superfluous(&[(4, a), (5, a), (6, b), (8, a)], b), Some(4), "most are of a");
}

/// As when an hsmd restarts that has many clients, on a slow machine. They are behind one address, which may have half.
#[test]
fn as_many_clients_as_an_address_may_have_can_shake_hands_at_a_time() {
    let daemon = Inside::start("connections = 64");
    let slow: Vec<TcpStream> = (0..32).map(|_| TcpStream::connect(daemon.address).unwrap()).collect();
    until("all shake hands", || daemon.metrics.connections.load(SeqCst) == 32);
    thread::sleep(Duration::from_millis(200)); // longer than a peer that is in the way of another has
    let clients = slow.into_iter().map(|tcp| Client::over(pki(), tcp, "operator").expect("it is not cut off"));
    let mut clients: Vec<Client> = clients.collect();
    clients.iter_mut().for_each(|client| drop(client.status()));
    assert_eq!(daemon.metrics.refused(Refusal::Full), 0);
}

/// Or the kubelet would kill the daemon: its probes come from another address than theirs.
#[test]
fn probes_are_answered_while_others_take_all_connections_for_metrics() {
    let daemon = Daemon::start(&(pki().daemon("") + NO_TOKEN));
    let mut silent = VecDeque::new();
    for _ in 0..20 {
        silent.extend((0..8).map(|_| connect_from([127, 0, 0, 2], daemon.metrics)));
        silent.drain(..silent.len().saturating_sub(16)); // those that were closed are opened anew
        for path in ["/livez", "/readyz", "/metrics"] {
            assert!(daemon.get(path).starts_with("HTTP/1.1 200 OK\r\n"), "{path}");
        }
    }
    assert!(daemon.counted("Threads:") < 30, "{} threads", daemon.counted("Threads:"));
}

/// They come from another address, as a rule of networks is; and there are always more of them than places.
#[test]
fn peers_without_a_certificate_take_no_place_of_clients_that_have_one() {
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let (daemon, done) = (Inside::start("connections = 64"), AtomicBool::new(false));
    let cut_off = || daemon.metrics.refused(Refusal::Full);
    thread::scope(|scope| {
        let _ends = Ends(&done);
        scope.spawn(|| {
            let mut silent = VecDeque::new();
            while !done.load(SeqCst) {
                silent.push_back(connect_from([127, 0, 0, 2], daemon.address));
                silent.drain(..silent.len().saturating_sub(200));
                thread::sleep(Duration::from_millis(1));
            }
        });
        for _ in 0..10 {
            let before = cut_off();
            until("there are more of them than places", || cut_off() > before + 10);
            assert_eq!(daemon.connect("gateway").ask(&sign("web")).unwrap(), Answer::Signature(vec![0x5a; 64]));
            // 64 at a time, and 16 more, besides some whose threads are about to end.
            let open = daemon.metrics.connections.load(SeqCst);
            assert!(open <= 128, "{open} connections");
        }
    });
    println!("10 clients were served while {} peers without a certificate were cut off", cut_off());
    until("all are gone", || daemon.metrics.connections.load(SeqCst) == 0);
}

#[test]
fn ten_thousand_connections_in_turn_leave_nothing_behind() {
    let daemon = Daemon::start(&(pki().daemon("handshake-timeout = 60s") + NO_TOKEN));
    let mut good = Client::connect(daemon.address, "operator").unwrap();
    let connect = |count: usize, good: &mut Client| {
        for i in 0..count {
            match i % 4 {
                0 => drop(tcp(&daemon)),
                1 => drop(tcp(&daemon).write_all(b"GET / HTTP/1.1\r\n\r\n")),
                2 => drop(tcp(&daemon).write_all(b"\x16\x03\x01\x40\x00")),
                _ if i % 100 == 3 => drop(Client::connect(daemon.address, "operator")),
                _ => drop(tcp(&daemon).write_all(&[0; 600])),
            }
            if i % 500 == 0 {
                good.status();
            }
        }
        until("all are closed", || daemon.metric("qtls_hsmd_connections") == 1);
    };
    connect(2000, &mut good);
    let (threads, memory) = (daemon.counted("Threads:"), daemon.counted("VmRSS:"));
    connect(8000, &mut good);
    // The accepting thread, the token's workers, the reader and writer of one connection, and those of metrics.
    until("no thread is left of them", || daemon.counted("Threads:") <= threads);
    let memory_now = daemon.counted("VmRSS:");
    println!("{threads} threads before and after, memory {memory} KiB and then {memory_now} KiB");
    // One connection's buffers are 32 KiB: 8000 that were kept would be 250 MiB.
    assert!(memory_now < memory + (32 << 10), "{memory} KiB became {memory_now}");
    good.status();
}
