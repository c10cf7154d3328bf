//! Messages that cannot be written.

mod common;

use common::*;
use std::{
    fs::{self, File},
    net::TcpListener,
    process::{Command, Stdio},
};

/// As on a disk that is full, or with a pipe whose reader is gone.
#[test]
fn a_daemon_whose_messages_nobody_takes_serves_on() {
    // It cannot say which port it has. Nobody else listens at this address.
    let address = TcpListener::bind("127.0.3.1:0").unwrap().local_addr().unwrap();
    let configuration = folder("silent").join("hsmd.conf");
    let text = pki().daemon("").replace("listen = 127.0.0.1:0", &format!("listen = {address}"));
    fs::write(&configuration, text + NO_TOKEN).unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_hsmd"))
        .args(["--config", configuration.to_str().unwrap()])
        .stderr(Stdio::from(full))
        .spawn()
        .unwrap();
    let mut serves = false;
    until("it serves, or has ended", || {
        serves = Client::connect(address, "operator").is_ok();
        serves || child.try_wait().unwrap().is_some()
    });
    if serves {
        // What it has to say by now: that it listens, that its token is down, and who was refused.
        assert!(Client::connect(address, "stranger").unwrap().turned_away().1.contains("no section [client]"));
        Client::connect(address, "operator").unwrap().status();
    }
    let ended = child.try_wait().unwrap();
    let _ = child.kill();
    let _ = child.wait();
    assert!(serves && ended.is_none(), "{ended:?}");
}
