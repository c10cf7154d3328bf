//! Messages: one line each to standard error, never a secret, and not more in a second than anybody can read.

use qtls_pkcs11::{library::lock, one_line};
use std::{
    io::{self, Write},
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        Mutex,
    },
    time::{Duration, Instant},
};

const MOST_A_SECOND: usize = 50;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A key was made or destroyed: other lines, however many, leave none of these out.
    Change,
    Other,
}

/// The lines of a second, those that are left out among them. Changes do not count.
struct Second {
    began: Option<Instant>,
    lines: usize,
}

impl Second {
    const NONE: Second = Second { began: None, lines: 0 };

    /// Whether a line is written: how many were left out since the last one, if so.
    fn admit(&mut self, now: Instant, kind: Kind) -> Option<usize> {
        if kind == Kind::Change {
            return Some(0);
        }
        self.lines += 1;
        match self.began {
            Some(began) if now - began < Duration::from_secs(1) => (self.lines <= MOST_A_SECOND).then_some(0),
            _ => {
                let left_out = self.lines.saturating_sub(1 + MOST_A_SECOND);
                *self = Second { began: Some(now), lines: 1 };
                Some(left_out)
            }
        }
    }
}

/// Whether this process is the daemon. Its lines go past eprint!, which ends a process whose standard error cannot be written:
/// a disk is full, or nobody reads the pipe. In tests, which have no main, eprint! leaves them with the output of the test.
static OF_DAEMON: AtomicBool = AtomicBool::new(false);

pub fn of_daemon() {
    OF_DAEMON.store(true, Relaxed);
}

pub fn log(message: &str) {
    write(message, Kind::Other);
}

/// As log, of a key that was made or destroyed.
pub fn log_change(message: &str) {
    write(message, Kind::Change);
}

fn write(message: &str, kind: Kind) {
    static SECOND: Mutex<Second> = Mutex::new(Second::NONE);
    let admitted = lock(&SECOND).admit(Instant::now(), kind);
    let Some(left_out) = admitted else { return };
    let told = if left_out > 0 { format!("hsmd: {left_out} messages left out\n") } else { String::new() };
    let lines = format!("{told}hsmd: {}\n", one_line(message));
    match OF_DAEMON.load(Relaxed) {
        true => drop(io::stderr().write_all(lines.as_bytes())),
        false => eprint!("{lines}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_second_fifty_lines_are_written_and_all_of_keys_that_change() {
        let (mut second, start) = (Second::NONE, Instant::now());
        let mut admit = |millis, kind| second.admit(start + Duration::from_millis(millis), kind);
        for line in 1..=80 {
            assert_eq!(admit(line, Kind::Other), (line <= 50).then_some(0), "line {line}");
        }
        for _ in 0..80 {
            assert_eq!(admit(1000, Kind::Change), Some(0));
        }
        assert_eq!(admit(1000, Kind::Other), None, "a second began with the first line");
        assert_eq!(admit(1001, Kind::Other), Some(31), "what was left out is told");
        assert_eq!(admit(1002, Kind::Other), Some(0));
        assert_eq!(admit(5000, Kind::Other), Some(0), "and once");
    }
}
