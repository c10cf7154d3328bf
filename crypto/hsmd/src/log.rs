//! Messages: one line each to standard error, never a secret, and not more in a second than anybody can read.

use qtls_pkcs11::{library::lock, one_line};
use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

const MOST_A_SECOND: usize = 50;

struct Second {
    began: Option<Instant>,
    lines: usize,
}

static SECOND: Mutex<Second> = Mutex::new(Second { began: None, lines: 0 });

pub fn log(message: &str) {
    let left_out = {
        let mut second = lock(&SECOND);
        second.lines += 1;
        match second.began {
            Some(began) if began.elapsed() < Duration::from_secs(1) => {
                if second.lines > MOST_A_SECOND {
                    return;
                }
                0
            }
            _ => {
                let left_out = second.lines.saturating_sub(1 + MOST_A_SECOND);
                *second = Second { began: Some(Instant::now()), lines: 1 };
                left_out
            }
        }
    };
    if left_out > 0 {
        eprintln!("hsmd: {left_out} messages left out");
    }
    eprintln!("hsmd: {}", one_line(message));
}
