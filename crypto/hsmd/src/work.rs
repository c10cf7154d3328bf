//! What needs the token: a bounded queue, and the threads that have its member do it.
//!
//! As many threads wait for signatures as the member has sessions, and one for keys that are made or destroyed, which takes
//! longer and is done one at a time. A request that waited longer than the member's time-out is given back: another member
//! of the client's may make the signature in time.

use crate::{
    log::log,
    metrics::{Metrics, Outcome},
};
use cryptoki_sys::*;
use qtls_pkcs11::{
    config::{Key, Member as Settings},
    library::lock,
    member::{Member, State, CHECK_INTERVAL},
    protocol::{Answer, Request},
    slot::{fits, longest},
    spki::PublicKey,
    status::{quoted, timestamp, Status},
    token::{self, Algorithm, Failure, KeyName, Token},
};
use std::{
    collections::{HashMap, VecDeque},
    sync::{atomic::Ordering::Relaxed, Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

/// One request on its way, and who gets the answer.
pub struct Order {
    pub client: Arc<str>,
    pub request: Request,
    pub received: Instant,
    /// Whether the client is still there.
    pub wanted: Box<dyn Fn() -> bool + Send>,
    pub answer: Box<dyn FnOnce(Answer) + Send>,
}

/// What waits may not take more memory than this.
const MOST_BYTES: usize = 32 << 20;
/// Generating RSA keys takes tokens long, minutes sometimes.
const GENERATE_TIME: Duration = Duration::from_secs(300);
/// Public keys that are remembered.
const MOST_KEYS: usize = 4096;

#[derive(Default)]
struct Queue {
    orders: VecDeque<Order>,
    bytes: usize,
}

#[derive(Default)]
struct Line {
    queue: Mutex<Queue>,
    more: Condvar,
}

fn bytes(request: &Request) -> usize {
    match request {
        Request::Sign { data, .. } => 512 + data.len(),
        _ => 512,
    }
}

impl Line {
    /// Gives back what there is no room for.
    fn push(&self, order: Order) -> Option<Order> {
        let mut queue = lock(&self.queue);
        let bytes = bytes(&order.request);
        if queue.bytes + bytes > MOST_BYTES {
            return Some(order);
        }
        queue.bytes += bytes;
        queue.orders.push_back(order);
        drop(queue);
        self.more.notify_one();
        None
    }

    fn pop(&self) -> Order {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(order) = queue.orders.pop_front() {
                queue.bytes -= bytes(&order.request);
                return order;
            }
            queue = self.more.wait(queue).unwrap_or_else(|e| e.into_inner());
        }
    }
}

pub struct Work {
    settings: Settings,
    member: Arc<Member>,
    signing: Line,
    managing: Line,
    /// Public keys of the token: what a request may be is told by the key's type.
    keys: Mutex<HashMap<KeyName, Arc<Key>>>,
    pub metrics: Arc<Metrics>,
}

fn refused(code: CK_RV, what: impl Into<String>) -> Failure {
    Failure::new(code, what)
}

impl Work {
    /// Connects to the token in the background, and starts the threads.
    pub fn start(settings: Settings, token: Box<dyn Token>, metrics: Arc<Metrics>) -> Arc<Work> {
        let member = Member::start(settings.clone(), token, CHECK_INTERVAL, log);
        let work = Work {
            member,
            signing: Line::default(),
            managing: Line::default(),
            keys: Mutex::default(),
            metrics,
            settings,
        };
        let work = Arc::new(work);
        let start = |name: &str, f: fn(&Work)| {
            let work = work.clone();
            if let Err(e) = thread::Builder::new().name(name.into()).spawn(move || f(&work)) {
                log(&format!("a thread cannot be started: {e}"));
            }
        };
        for _ in 0..work.settings.sessions {
            start("hsmd-sign", |work| loop {
                work.serve(work.signing.pop(), work.settings.timeout);
            });
        }
        start("hsmd-manage", |work| loop {
            work.serve(work.managing.pop(), GENERATE_TIME);
        });
        work
    }

    /// Takes a request; its answer comes from another thread, or from this one if there is no room.
    pub fn take(&self, order: Order) {
        let line = match order.request {
            Request::Generate { .. } | Request::Retire(_) => &self.managing,
            _ => &self.signing,
        };
        if let Some(order) = line.push(order) {
            let what = "too many requests wait for the token; send fewer at a time, or add members";
            self.metrics.request(operation(&order.request), Outcome::Refused);
            (order.answer)(Answer::Failed(refused(CKR_SESSION_COUNT, what)));
        }
    }

    fn serve(&self, order: Order, patience: Duration) {
        let Order { client, request, received, wanted, answer } = order;
        let operation = operation(&request);
        if !wanted() {
            self.metrics.request(operation, Outcome::Refused);
            return answer(Answer::Failed(refused(CKR_FUNCTION_CANCELED, "the client is gone")));
        }
        let waited = received.elapsed();
        let result = if waited > patience {
            let what = format!("no free session in {} ms", waited.as_millis());
            Err(Failure::new(CKR_FUNCTION_CANCELED, what))
        } else {
            self.done(&request)
        };
        if let (Ok(_), Request::Sign { .. }) = (&result, &request) {
            self.metrics.signature_took(received.elapsed());
        }
        self.tell(&client, &request, &result);
        self.metrics.request(operation, if result.is_ok() { Outcome::Ok } else { Outcome::Failed });
        answer(result.unwrap_or_else(Answer::Failed));
    }

    /// One line for each change of the token's keys, and for each failure: who, what, which key.
    fn tell(&self, client: &str, request: &Request, result: &token::Result<Answer>) {
        let (what, key) = match request {
            Request::Status => return,
            Request::Find(key) => ("find".into(), key),
            Request::Sign { key, .. } => ("sign".into(), key),
            Request::Generate { algorithm, key } => (format!("generate {algorithm:?}"), key),
            Request::Retire(key) => ("retire".into(), key),
        };
        let changes = matches!(request, Request::Generate { .. } | Request::Retire(_));
        match result {
            Ok(_) if changes => log(&format!("{client}: {what}: key {key}: done")),
            Ok(_) => {}
            Err(e) => log(&format!("{client}: {what}: key {key}: {e}")),
        }
    }

    fn done(&self, request: &Request) -> token::Result<Answer> {
        match request {
            Request::Status => Ok(Answer::Status(self.status())),
            Request::Find(name) => {
                let key = name.clone();
                match self.member.call(self.settings.timeout, move |session| session.public(&key))? {
                    Some(found) => Ok(Answer::Found(found)),
                    None => Err(absent(name)),
                }
            }
            Request::Sign { key: name, mechanism, data } => {
                let key = self.key(name)?;
                if !fits(mechanism, &key.public.kind) {
                    let what = format!("key {name} is of another type");
                    return Err(refused(CKR_KEY_TYPE_INCONSISTENT, what));
                }
                if data.len() > longest(mechanism, &key.public.kind) {
                    let what = format!("{} bytes are too many for key {name}", data.len());
                    return Err(refused(CKR_DATA_LEN_RANGE, what));
                }
                let (mechanism, data) = (mechanism.clone(), data.clone());
                let signature = self.member.sign(&Arc::new(token::Request { key, mechanism, data }));
                if signature.is_err() {
                    lock(&self.keys).remove(name);
                }
                signature.map(Answer::Signature)
            }
            Request::Generate { algorithm, key } => {
                let Some(algorithm) = Algorithm::by_name(algorithm) else {
                    let what = format!(
                        "there is no algorithm {algorithm:?}; there are ML-DSA-44, ML-DSA-65, ML-DSA-87, ECDSA-P256, \
                         ECDSA-P384, RSA-2048, RSA-3072 and RSA-4096"
                    );
                    return Err(refused(CKR_ARGUMENTS_BAD, what));
                };
                let name = key.clone();
                let made = self.member.call(GENERATE_TIME, move |session| session.generate(algorithm, &name));
                self.changed(key);
                made.map(Answer::Found)
            }
            Request::Retire(key) => {
                let name = key.clone();
                let retired = self.member.call(self.settings.timeout, move |session| session.retire(&name));
                self.changed(key);
                retired.map(|()| Answer::Retired)
            }
        }
    }

    fn changed(&self, key: &KeyName) {
        self.member.key_changed(key);
        lock(&self.keys).retain(|name, _| name.label != key.label);
    }

    /// A key with its public half, which is asked for once.
    fn key(&self, name: &KeyName) -> token::Result<Arc<Key>> {
        if let Some(key) = lock(&self.keys).get(name) {
            return Ok(key.clone());
        }
        let wanted = name.clone();
        let found = self.member.call(self.settings.timeout, move |session| session.public(&wanted))?;
        let found = found.ok_or_else(|| absent(name))?;
        let public = PublicKey::from_der(&found.public).map_err(|e| refused(CKR_KEY_TYPE_INCONSISTENT, e))?;
        let key = Arc::new(Key { label: name.label.clone(), id: name.id.clone(), public });
        let mut keys = lock(&self.keys);
        if keys.len() >= MOST_KEYS {
            keys.clear();
        }
        keys.insert(name.clone(), key.clone());
        Ok(key)
    }

    pub fn up(&self) -> bool {
        self.member.state() == State::Up
    }

    pub fn sessions(&self) -> usize {
        self.member.status().sessions
    }

    pub fn token_name(&self) -> String {
        match &self.settings.place {
            qtls_pkcs11::config::Place::Module(module) => match &module.token {
                qtls_pkcs11::config::TokenName::Label(name) | qtls_pkcs11::config::TokenName::Serial(name) => {
                    name.clone()
                }
            },
            qtls_pkcs11::config::Place::Daemon(daemon) => daemon.address.clone(),
        }
    }

    /// What Status answers, without waiting for the token.
    pub fn status(&self) -> String {
        let Status { state, sessions, last_error, since, .. } = self.member.status();
        let signed = self.metrics.requests("sign", Outcome::Ok);
        let failed = self.metrics.requests("sign", Outcome::Failed);
        let (p50, p99) = self.metrics.percentiles();
        format!(
            r#"{{"member":{},"token":{},"state":"{state:?}","sessions":{sessions},"signatures":{signed},"failures":{failed},"latencyMicros":{{"p50":{p50},"p99":{p99}}},"lastError":{},"since":"{}"}}"#,
            quoted(self.member.name()),
            quoted(&self.token_name()),
            quoted(&last_error),
            timestamp(since),
        )
    }

    /// Requests that are not answered yet.
    pub fn in_flight(&self) -> usize {
        self.metrics.in_flight.load(Relaxed)
    }

    /// Has the member's workers close their sessions.
    pub fn stop(&self, time: Duration) -> bool {
        self.member.stop();
        let deadline = Instant::now() + time;
        while !self.member.stopped() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        self.member.stopped()
    }
}

fn absent(key: &KeyName) -> Failure {
    Failure::new(CKR_KEY_HANDLE_INVALID, format!("the token has no private key {key}"))
}

/// An operation's place among the names of operations.
pub fn operation(request: &Request) -> usize {
    match request {
        Request::Status => 0,
        Request::Find(_) => 1,
        Request::Sign { .. } => 2,
        Request::Generate { .. } => 3,
        Request::Retire(_) => 4,
    }
}
