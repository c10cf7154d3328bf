//! What the daemon counts, as Prometheus reads it and as Status tells it.

use crate::{log::log, places::Places};
use qtls_pkcs11::{
    library::lock,
    tls::{Timed, Timeouts},
};
use std::{
    collections::VecDeque,
    fmt::Write as _,
    io::{Read, Write},
    iter,
    net::{TcpListener, TcpStream},
    sync::{
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        Arc, Mutex,
    },
    thread,
    time::{Duration, Instant},
};

/// The operations, in the order of their numbers in the protocol.
pub const OPERATIONS: [&str; 5] = ["status", "find", "sign", "generate", "retire"];
/// How a request ended: refused is this daemon's own word, failed the token's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    Failed,
    Refused,
}
const OUTCOMES: [&str; 3] = ["ok", "failed", "refused"];

/// Why a connection was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There are as many as there may be, or its handshake was not done when others came.
    Full,
    /// No TLS, not in time, or without a certificate of the authority.
    Handshake,
    /// No section [client] has one of its names.
    Unlisted,
    /// What it sent is no frame, or none of the requests.
    Malformed,
    /// It does not read its answers.
    Slow,
}
const REFUSALS: [&str; 5] = ["full", "handshake", "unlisted", "malformed", "slow"];

/// Upper bounds of the signatures' time, in microseconds.
const BUCKETS: [u64; 12] = [100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 500_000, 2_000_000];
/// The latest signatures, of which Status tells percentiles.
const LATEST: usize = 1024;

#[derive(Default)]
pub struct Metrics {
    pub connections: AtomicUsize,
    pub accepted: AtomicU64,
    refused: [AtomicU64; REFUSALS.len()],
    requests: [[AtomicU64; OUTCOMES.len()]; OPERATIONS.len()],
    pub in_flight: AtomicUsize,
    buckets: [AtomicU64; BUCKETS.len() + 1],
    micros: AtomicU64,
    latest: Mutex<VecDeque<u32>>,
}

impl Metrics {
    pub fn refuse(&self, why: Refusal) {
        self.refused[why as usize].fetch_add(1, Relaxed);
    }

    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize].load(Relaxed)
    }

    pub fn request(&self, operation: usize, outcome: Outcome) {
        self.requests[operation][outcome as usize].fetch_add(1, Relaxed);
    }

    pub fn requests(&self, operation: &str, outcome: Outcome) -> u64 {
        let at = OPERATIONS.iter().position(|o| *o == operation);
        at.map_or(0, |at| self.requests[at][outcome as usize].load(Relaxed))
    }

    pub fn signature_took(&self, time: Duration) {
        let micros = time.as_micros() as u64;
        let bucket = BUCKETS.iter().position(|b| micros <= *b).unwrap_or(BUCKETS.len());
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.micros.fetch_add(micros, Relaxed);
        let mut latest = lock(&self.latest);
        if latest.len() == LATEST {
            latest.pop_front();
        }
        latest.push_back(micros.try_into().unwrap_or(u32::MAX));
    }

    /// The median and the 99th percentile of the latest signatures, in microseconds.
    pub fn percentiles(&self) -> (u32, u32) {
        let mut sorted: Vec<u32> = lock(&self.latest).iter().copied().collect();
        sorted.sort_unstable();
        let at = |percent: usize| sorted.get((sorted.len() * percent / 100).min(sorted.len().max(1) - 1)).copied();
        (at(50).unwrap_or(0), at(99).unwrap_or(0))
    }

    /// The text that Prometheus reads.
    pub fn text(&self, token: &str, up: bool, sessions: usize) -> String {
        let mut text = String::new();
        let mut head = |name: &str, kind: &str, help: &str, rows: &[(String, u64)]| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in rows {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let plain = |value: u64| vec![(String::new(), value)];
        head(
            "qtls_hsmd_connections",
            "gauge",
            "Connections that are open.",
            &plain(self.connections.load(Relaxed) as u64),
        );
        head(
            "qtls_hsmd_connections_total",
            "counter",
            "Connections whose TLS handshake succeeded.",
            &plain(self.accepted.load(Relaxed)),
        );
        let refused: Vec<_> = REFUSALS
            .iter()
            .zip(&self.refused)
            .map(|(why, n)| (format!("{{reason=\"{why}\"}}"), n.load(Relaxed)))
            .collect();
        head("qtls_hsmd_refusals_total", "counter", "Connections that were refused or closed, by reason.", &refused);
        let mut requests = vec![];
        for (operation, counts) in OPERATIONS.iter().zip(&self.requests) {
            for (result, n) in OUTCOMES.iter().zip(counts) {
                requests.push((format!("{{operation=\"{operation}\",result=\"{result}\"}}"), n.load(Relaxed)));
            }
        }
        head("qtls_hsmd_requests_total", "counter", "Requests by operation and result.", &requests);
        head(
            "qtls_hsmd_requests_in_flight",
            "gauge",
            "Requests that are not answered yet.",
            &plain(self.in_flight.load(Relaxed) as u64),
        );
        let labels = format!("{{token={token:?}}}");
        head(
            "qtls_hsmd_sessions",
            "gauge",
            "Sessions of the token that are open.",
            &[(labels.clone(), sessions as u64)],
        );
        head("qtls_hsmd_member_up", "gauge", "Whether the token answers.", &[(labels, up as u64)]);
        let _ = writeln!(
            text,
            "# HELP qtls_hsmd_sign_seconds Time from a request to its signature.\n\
             # TYPE qtls_hsmd_sign_seconds histogram"
        );
        let mut count = 0;
        for (i, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Relaxed);
            let bound = BUCKETS.get(i).map_or("+Inf".into(), |b| format!("{}", *b as f64 / 1e6));
            let _ = writeln!(text, "qtls_hsmd_sign_seconds_bucket{{le=\"{bound}\"}} {count}");
        }
        let sum = self.micros.load(Relaxed) as f64 / 1e6;
        let _ = writeln!(text, "qtls_hsmd_sign_seconds_sum {sum}\nqtls_hsmd_sign_seconds_count {count}");
        text
    }
}

/// How long a scrape or a probe may take, and how many there may be at a time.
const HTTP_TIME: Duration = Duration::from_secs(2);
const HTTP_CONNECTIONS: usize = 8;

/// Serves /metrics, /livez and /readyz until the process ends. Anybody may come, and a kubelet whose probes are not answered
/// kills the process: when there are too many, who came first of the address with most of them has to go, at once.
pub fn serve(
    listener: TcpListener,
    text: impl Fn() -> String + Send + Sync + 'static,
    ready: impl Fn() -> bool + Send + Sync + 'static,
) {
    let (text, ready) = (Arc::new(text), Arc::new(ready));
    let places = Arc::new(Places::new(HTTP_CONNECTIONS, Duration::ZERO));
    let accept = move || {
        for accepted in iter::repeat_with(|| listener.accept()) {
            let Ok((tcp, peer)) = accepted else {
                thread::sleep(Duration::from_millis(10)); // no file descriptors left, for instance
                continue;
            };
            let tcp = Arc::new(tcp);
            let id = places.enter(&tcp, peer.ip().to_canonical());
            let (text, ready, entered) = (text.clone(), ready.clone(), places.clone());
            let answer = move || {
                let _ = answer(&tcp, &*text, &*ready);
                entered.leave(id);
            };
            if thread::Builder::new().name("hsmd-http".into()).stack_size(256 << 10).spawn(answer).is_err() {
                places.leave(id);
            }
        }
    };
    if let Err(e) = thread::Builder::new().name("hsmd-metrics".into()).spawn(accept) {
        log(&format!("no metrics: {e}"));
    }
}

fn answer(mut tcp: &TcpStream, text: &dyn Fn() -> String, ready: &dyn Fn() -> bool) -> std::io::Result<()> {
    let deadline = Instant::now() + HTTP_TIME;
    let mut head = Vec::new();
    let mut timeouts = Timeouts::default();
    let mut timed = Timed { tcp, deadline, timeouts: &mut timeouts };
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let mut part = [0; 1024];
        let n = timed.read(&mut part)?;
        head.extend(&part[..n]);
        if n == 0 || head.len() > 8192 {
            return Ok(());
        }
    }
    let (status, body) = match head.split(|b| *b == b' ').nth(1) {
        Some(b"/metrics") => ("200 OK", text()),
        Some(b"/livez") => ("200 OK", "ok\n".into()),
        Some(b"/readyz") if ready() => ("200 OK", "ok\n".into()),
        Some(b"/readyz") => ("503 Service Unavailable", "not listening\n".into()),
        _ => ("404 Not Found", "want /metrics, /livez or /readyz\n".into()),
    };
    let len = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    tcp.set_write_timeout(Some(HTTP_TIME))?;
    tcp.write_all(head.as_bytes())?;
    tcp.write_all(body.as_bytes())
}
