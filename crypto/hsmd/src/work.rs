//! What needs the token: it is handed to the member, whose threads answer it.
//!
//! Nobody waits for a signature: the member's thread that made it sends it, and goes on. One thread is there for keys that
//! are made or destroyed, which takes longer and is done one at a time. A request that takes longer than the member's
//! time-out is given back: another member of the client's may make the signature in time. Peers take turns at the token, and
//! share the memory of what waits.

use crate::{
    log::{log, log_change},
    metrics::{Metrics, Outcome},
    shares::Shares,
};
use cryptoki_sys::*;
use qtls_pkcs11::{
    config::{Key, Member as Settings},
    library::lock,
    member::{self, Member, State, CHECK_INTERVAL},
    protocol::{Answer, Request},
    slot::{fits, signable},
    spki::PublicKey,
    status::{quoted, timestamp, Status},
    token::{self, Algorithm, Failure, Found, KeyName, Mechanism, Token, GENERATE_TIME},
};
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{atomic::Ordering::Relaxed, mpsc, Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// One request on its way, and who gets the answer.
pub struct Order {
    pub client: Arc<str>,
    /// Where it is.
    pub peer: IpAddr,
    pub request: Request,
    pub received: Instant,
    pub to: Box<dyn Reply>,
}

pub trait Reply: Send {
    /// Whether the client is still there.
    fn wanted(&self) -> bool;
    /// It must not block.
    fn answer(self: Box<Self>, answer: Answer);
}

/// What becomes of an order: an answer, or why there is none, and whose word that is.
type Done = Result<Answer, (Outcome, Failure)>;

/// Our own word: the token was not asked, or not for this.
fn refused(code: CK_RV, what: impl Into<String>) -> (Outcome, Failure) {
    (Outcome::Refused, Failure::new(code, what))
}

/// The token's word. But what waited for a session until its time was over never came to it.
fn failed(failure: Failure) -> (Outcome, Failure) {
    match failure.code {
        CKR_FUNCTION_CANCELED => (Outcome::Refused, failure),
        _ => (Outcome::Failed, failure),
    }
}

/// What is not answered yet may not take more memory than this, signatures and what manages keys each: a token that takes
/// minutes for a key is no reason to refuse signatures.
const MOST_BYTES: usize = 32 << 20;
/// Public keys that are remembered.
const MOST_KEYS: usize = 4096;

/// What is kept of a request: it, as it came and as a session gets it, and who waits for it until when.
fn bytes(request: &Request) -> usize {
    match request {
        Request::Sign { mechanism: Mechanism::MlDsa(Some((_, context))), data, .. } => {
            1024 + 2 * (data.len() + context.len())
        }
        Request::Sign { data, .. } => 1024 + 2 * data.len(),
        Request::Generate { algorithm, .. } => 1024 + algorithm.len(),
        _ => 1024,
    }
}

/// Whether it makes or destroys a key.
fn manages(request: &Request) -> bool {
    matches!(request, Request::Generate { .. } | Request::Retire(_))
}

pub struct Work {
    settings: Settings,
    member: Arc<Member>,
    /// To the one thread that makes and destroys keys.
    managing: mpsc::Sender<Order>,
    /// What orders that are not answered yet take, those for signatures and those that manage keys.
    bytes: [Shares; 2],
    /// Public keys of the token: what a request may be is told by the key's type.
    keys: Mutex<HashMap<KeyName, Arc<Key>>>,
    pub metrics: Arc<Metrics>,
}

impl Work {
    /// Connects to the token in the background, and starts the threads.
    pub fn start(settings: Settings, token: Box<dyn Token>, metrics: Arc<Metrics>) -> Arc<Work> {
        let member = Member::start(settings.clone(), token, CHECK_INTERVAL, log);
        let (managing, orders) = mpsc::channel();
        let (keys, bytes) = (Mutex::default(), [Shares::new(MOST_BYTES), Shares::new(MOST_BYTES)]);
        let work = Arc::new(Work { member, managing, bytes, keys, metrics, settings });
        let managed = work.clone();
        let manage = move || orders.into_iter().for_each(|order| managed.manage(order));
        if let Err(e) = thread::Builder::new().name("hsmd-manage".into()).spawn(manage) {
            log(&format!("a thread cannot be started: {e}"));
        }
        work
    }

    /// Takes a request; its answer comes from another thread, or from this one if there is no room.
    pub fn take(self: &Arc<Self>, order: Order) {
        if !self.bytes[manages(&order.request) as usize].take(order.peer, bytes(&order.request)) {
            let what = "too many requests wait for the token; send fewer at a time, or add members";
            self.metrics.request(operation(&order.request), Outcome::Refused);
            return order.to.answer(Answer::Failed(Failure::new(CKR_SESSION_COUNT, what)));
        }
        match &order.request {
            Request::Sign { key, .. } => match self.known(key) {
                Some(key) => self.sign(order, key),
                None => self.find(key.clone(), order),
            },
            Request::Find(key) => self.find(key.clone(), order),
            // What no thread could be started for is answered, too.
            _ => self.managing.send(order).unwrap_or_else(|e| self.finish(e.0, Err(no_thread()))),
        }
    }

    /// Has a key's public half looked up, and goes on with the order.
    fn find(self: &Arc<Self>, name: KeyName, order: Order) {
        let (found, peer, received) = (Arc::new(Mutex::new(None)), order.peer, order.received);
        let finding = Finding { work: self.clone(), name: name.clone(), found: found.clone(), order };
        let look = move |session: &mut dyn token::Session| {
            *lock(&found) = session.public(&name)?;
            Ok(())
        };
        self.member.call_for(self.settings.timeout, look, peer, received, Box::new(finding));
    }

    /// Has a signature made, if the request fits the key.
    fn sign(self: &Arc<Self>, order: Order, key: Arc<Key>) {
        let Request::Sign { key: name, mechanism, data } = &order.request else { return };
        let refusal = if !mechanism.has_valid_parameter() {
            Some(refused(CKR_MECHANISM_PARAM_INVALID, "the parameter of the mechanism fits no key"))
        } else if !fits(mechanism, &key.public.kind) {
            Some(refused(CKR_KEY_TYPE_INCONSISTENT, format!("key {name} is of another type")))
        } else {
            let what = || format!("key {name} signs no such {} bytes with this mechanism and parameter", data.len());
            signable(mechanism, data, &key.public.kind).err().map(|code| refused(code, what()))
        };
        if let Some(refusal) = refusal {
            return self.finish(order, Err(refusal));
        }
        let request = token::Request { key, mechanism: mechanism.clone(), data: data.clone() };
        let (peer, received) = (order.peer, order.received);
        let signing = Signing { work: self.clone(), order };
        self.member.sign_for(Arc::new(request), peer, received, Box::new(signing));
    }

    /// Makes or destroys a key.
    fn manage(&self, order: Order) {
        let waited = order.received.elapsed();
        let done = if waited > GENERATE_TIME {
            let what = format!("no free session in {} ms", waited.as_millis());
            Err(refused(CKR_FUNCTION_CANCELED, what))
        } else if order.to.wanted() {
            self.managed(&order.request)
        } else {
            Err(refused(CKR_FUNCTION_CANCELED, "the client is gone"))
        };
        self.finish(order, done);
    }

    fn finish(&self, order: Order, done: Done) {
        let Order { client, peer, request, received, to } = order;
        self.bytes[manages(&request) as usize].give_back(peer, bytes(&request));
        if let (Ok(_), Request::Sign { .. }) = (&done, &request) {
            self.metrics.signature_took(received.elapsed());
        }
        // Of what was given up because its client left there is nothing to tell.
        let gone = matches!(&done, Err((_, e)) if e.code == CKR_FUNCTION_CANCELED) && !to.wanted();
        if !gone {
            self.tell(&client, &request, &done);
        }
        let (outcome, answer) = match done {
            Ok(answer) => (Outcome::Ok, answer),
            Err((outcome, failure)) => (outcome, Answer::Failed(failure)),
        };
        self.metrics.request(operation(&request), outcome);
        to.answer(answer);
    }

    /// One line for each change of the token's keys, and for each failure: who, what, which key.
    fn tell(&self, client: &str, request: &Request, done: &Done) {
        let (what, key) = match request {
            Request::Status => return,
            Request::Find(key) => ("find".into(), key),
            Request::Sign { key, .. } => ("sign".into(), key),
            Request::Generate { algorithm, key } => (format!("generate {algorithm:?}"), key),
            Request::Retire(key) => ("retire".into(), key),
        };
        match done {
            Ok(_) if manages(request) => log_change(&format!("{client}: {what}: key {key}: done")),
            Ok(_) => {}
            Err((_, e)) => log(&format!("{client}: {what}: key {key}: {e}")),
        }
    }

    fn managed(&self, request: &Request) -> Done {
        match request {
            Request::Generate { algorithm, key } => {
                let Some(algorithm) = Algorithm::by_name(algorithm) else {
                    let names = Algorithm::ALL.map(|a| a.0).join(", ");
                    let what = format!("there is no algorithm {algorithm:?}; there are {names}");
                    return Err(refused(CKR_ARGUMENTS_BAD, what));
                };
                let made = self.member.generate(algorithm, key, GENERATE_TIME);
                self.changed(key);
                made.map(Answer::Found).map_err(|e| failed(e.failure))
            }
            Request::Retire(key) => {
                let name = key.clone();
                let retired = self.member.call(self.settings.timeout, move |session| session.retire(&name));
                self.changed(key);
                retired.map(|()| Answer::Retired).map_err(failed)
            }
            _ => Err(refused(CKR_GENERAL_ERROR, "it is not for the thread that makes keys")),
        }
    }

    fn changed(&self, key: &KeyName) {
        self.member.key_changed(key);
        lock(&self.keys).retain(|name, _| name.label != key.label);
    }

    /// A key whose public half is known: it is asked for once.
    fn known(&self, name: &KeyName) -> Option<Arc<Key>> {
        lock(&self.keys).get(name).cloned()
    }

    fn learn(&self, name: KeyName, found: &Found) -> token::Result<Arc<Key>> {
        let public = PublicKey::from_der(&found.public).map_err(|e| Failure::new(CKR_KEY_TYPE_INCONSISTENT, e))?;
        let key = Arc::new(Key { label: name.label.clone(), id: name.id.clone(), public });
        let mut keys = lock(&self.keys);
        if keys.len() >= MOST_KEYS {
            keys.clear();
        }
        keys.insert(name, key.clone());
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
        self.member.stop(time)
    }
}

/// An order whose key is looked up.
struct Finding {
    work: Arc<Work>,
    name: KeyName,
    found: Arc<Mutex<Option<Found>>>,
    order: Order,
}

impl member::Order for Finding {
    fn wanted(&self) -> bool {
        self.order.to.wanted()
    }

    fn done(self: Box<Self>, result: token::Result<Vec<u8>>) {
        let Finding { work, name, found, order } = *self;
        let found = match result.map(|_| lock(&found).take()) {
            Ok(Some(found)) => found,
            Ok(None) => return work.finish(order, Err(failed(absent(&name)))),
            Err(e) => return work.finish(order, Err(failed(e))),
        };
        match order.request {
            Request::Sign { .. } => match work.learn(name, &found) {
                Ok(key) => work.sign(order, key),
                Err(e) => work.finish(order, Err(failed(e))),
            },
            _ => work.finish(order, Ok(Answer::Found(found))),
        }
    }
}

/// An order whose signature is made.
struct Signing {
    work: Arc<Work>,
    order: Order,
}

impl member::Order for Signing {
    fn wanted(&self) -> bool {
        self.order.to.wanted()
    }

    fn done(self: Box<Self>, result: token::Result<Vec<u8>>) {
        let Signing { work, order } = *self;
        // A request that had to wait too long says nothing of the key.
        if let (Err(e), Request::Sign { key, .. }) = (&result, &order.request) {
            if e.code != CKR_FUNCTION_CANCELED {
                lock(&work.keys).remove(key);
            }
        }
        work.finish(order, result.map(Answer::Signature).map_err(failed));
    }
}

fn no_thread() -> (Outcome, Failure) {
    refused(CKR_HOST_MEMORY, "no thread could be started")
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
