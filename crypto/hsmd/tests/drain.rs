//! The end of a daemon: what is in flight is answered, and nobody new is let in.

mod common;

use common::*;
use qtls_pkcs11::protocol::{self, Answer, Request};
use std::{net::TcpStream, sync::atomic::Ordering::SeqCst, thread};

#[test]
fn every_request_in_flight_is_answered_and_new_connections_are_refused() {
    let daemon = Inside::start("");
    daemon.token.shut();
    let mut clients: Vec<Client> = (0..3).map(|_| daemon.connect("gateway")).collect();
    let idle = daemon.connect("operator");
    for client in &mut clients {
        for _ in 0..10 {
            client.send(&sign("web")).unwrap();
        }
    }
    until("all are in flight", || daemon.metrics.in_flight.load(SeqCst) == 30);
    let (server, listener, time) = (daemon.server.clone(), daemon.listener.clone(), daemon.config.drain);
    let drain = thread::spawn(move || server.drain(&listener, time));
    until("the drain began", || !daemon.server.serving());
    assert!(idle.ends(), "a connection without requests ends at once");
    until("new ones are refused", || TcpStream::connect(daemon.address).is_err());
    daemon.token.open();
    let mut answered = 0;
    for mut client in clients {
        for _ in 0..10 {
            let frame = client.receive().unwrap();
            assert_eq!(protocol::read_answer(&frame, &sign("web")), Ok(Answer::Signature(vec![0x5a; 64])));
            answered += 1;
        }
        assert!(client.ends());
    }
    assert!(drain.join().unwrap(), "all was done in time");
    assert_eq!((answered, daemon.token.signed.load(SeqCst)), (30, 30));
    println!("{answered} of 30 requests in flight were answered");
}

#[test]
fn a_token_that_hangs_holds_the_end_up_no_longer_than_the_drain() {
    let daemon = Inside::start("drain = 100ms");
    daemon.token.shut();
    let mut client = daemon.connect("gateway");
    client.send(&sign("web")).unwrap();
    until("it is in flight", || daemon.token.waiting.load(SeqCst) == 1);
    assert!(!daemon.server.drain(&daemon.listener, daemon.config.drain));
    daemon.token.open();
}

#[test]
fn sigterm_ends_the_daemon_with_clients_that_are_idle_or_not_yet_in() {
    let mut daemon = Daemon::start(&(pki().daemon("") + NO_TOKEN));
    assert!(daemon.get("/readyz").starts_with("HTTP/1.1 200 "));
    assert!(daemon.get("/livez").starts_with("HTTP/1.1 200 "));
    let silent = TcpStream::connect(daemon.address).unwrap();
    let mut idle = Client::connect(daemon.address, "operator").unwrap();
    idle.status();
    daemon.signal(libc::SIGTERM);
    daemon.line("ended");
    assert!(daemon.wait().success());
    assert!(idle.ends());
    drop(silent);
}

#[test]
fn files_that_change_are_read_again_and_a_wrong_one_is_told() {
    let daemon = Daemon::start(&(pki().daemon("") + NO_TOKEN));
    let mut operator = Client::connect(daemon.address, "operator").unwrap();
    operator.status();
    let path = &daemon.configuration;
    let replace = |text: String| {
        std::fs::write(path.with_extension("new"), text).unwrap();
        std::fs::rename(path.with_extension("new"), path).unwrap();
    };
    let text = std::fs::read_to_string(path).unwrap();
    replace(text.replace("may = status, find, sign", "may = fly"));
    let line = daemon.line("what was read last stays");
    assert!(line.contains("may = fly: want status, find, sign, generate and retire"), "{line}");
    operator.status();
    replace(text.replace("[client operator]", "[client stranger]"));
    daemon.line("are read anew");
    assert!(operator.refused(&Request::Status).1.contains("is not listed any more"));
    Client::connect(daemon.address, "stranger").unwrap().status();
    // And at once when it is asked to.
    daemon.signal(libc::SIGHUP);
    daemon.line("are read anew");
}
