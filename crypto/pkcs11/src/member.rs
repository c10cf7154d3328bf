//! A member: a queue of requests, and as many worker threads as it has sessions. Each thread owns one session.
//!
//! Nothing interrupts a call into a vendor's library. So callers never make one: they wait for a worker, with a deadline,
//! and go to another member when it has passed. A worker that hangs is one session less until its call returns. hsmd does
//! not wait: the worker itself has its answers sent, or the timer does when a deadline has passed. A deadline has its
//! consequences whether anybody still waits or not.

use crate::{
    asynchronous::{Alarm, AlarmId, Timer, Waiter},
    config::Member as Settings,
    library::lock,
    status::Status,
    token::{Algorithm, Failure, Found, KeyName, Request, Result, Session, Token},
    turns::Turns,
    verdict::Verdict,
};
use cryptoki_sys::*;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    mem,
    net::IpAddr,
    sync::{
        atomic::{AtomicBool, Ordering::SeqCst},
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No worker has had an answer yet.
    Starting,
    Up,
    Down,
}

/// How often an idle session is checked.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A worker that was refused a session tries again with the next check, and then half as often each time, as often as this.
const LONGEST_WAIT: u32 = 3;

/// The most messages that are kept while whoever takes them is slow.
const MOST_UNTOLD: usize = 16;

/// One request on its way: whoever waits looks at the answer, and whoever works at whether anybody still waits.
struct Job {
    work: Work,
    start: Instant,
    progress: Mutex<Progress>,
    asker: Asker,
    /// Another member can do it at once: it does not wait here for its turn while this one is down.
    elsewhere: bool,
    /// Whose turn it takes: that of hsmd's peer, or of this process.
    of: Option<IpAddr>,
}

/// Who gets a job's result.
enum Asker {
    Waits(Waiter),
    /// Whoever takes the order tells the result.
    Told(Mutex<Option<Told>>),
}

struct Told {
    order: Box<dyn Order>,
    /// Until when it waits, once that is known.
    alarm: Option<(&'static Timer, AlarmId)>,
}

/// Why there is no key that was to be made.
pub struct NotMade {
    pub failure: Failure,
    /// The token was asked for it: it may be there all the same. Else it has made none, and will not.
    pub asked: bool,
}

/// What is told a result, for it does not wait for it.
pub trait Order: Send {
    /// Whether anybody still wants the result.
    fn wanted(&self) -> bool;
    /// It is told by a worker, or by the timer, and must not block.
    fn done(self: Box<Self>, result: Result<Vec<u8>>);
}

impl Job {
    fn new(work: Work, start: Instant, asker: Asker, elsewhere: bool, of: Option<IpAddr>) -> Arc<Job> {
        Arc::new(Job { work, start, progress: Mutex::new(Progress::Queued), asker, elsewhere, of })
    }

    /// Whoever ends it answers it; nobody else does. What it was before, unless it has ended already.
    fn end(&self) -> Option<Progress> {
        let mut progress = lock(&self.progress);
        match *progress {
            Progress::Queued | Progress::Started(_) => Some(mem::replace(&mut *progress, Progress::Ended)),
            Progress::Ended | Progress::Answered(_) => None,
        }
    }

    fn wanted(&self) -> bool {
        match &self.asker {
            Asker::Waits(waiter) => waiter.waits(),
            Asker::Told(told) => lock(told).as_ref().is_none_or(|told| told.order.wanted()),
        }
    }
}

/// The end of a job's time.
struct Expiry {
    member: Arc<Member>,
    job: Arc<Job>,
    time: Duration,
}

impl Alarm for Expiry {
    fn ring(&self) {
        let Some(before) = self.job.end() else { return };
        let failure = self.member.give_up(&self.job, before.hangs(self.time), self.time);
        self.member.answer(&self.job, Err(failure));
    }
}

/// The end of the time in which a member is to have begun. Nobody's time-out would tell it, for others are asked before it.
/// What it is at goes on: it may be long over a login.
struct Beginning(Weak<Member>);

impl Alarm for Beginning {
    fn ring(&self) {
        let Some(member) = self.0.upgrade() else { return };
        let failure = no_answer(member.settings.timeout);
        let mut queue = lock(&member.queue);
        if queue.state == State::Starting {
            queue.wake_all(); // who waits for another's session does so no longer
            queue.go_down(&failure);
            member.tell(queue);
        }
    }
}

/// The end of the time that a check may take. Nobody else's time-out tells that a member hangs that no signature is asked of.
struct Checking {
    member: Weak<Member>,
    since: Instant,
    time: Duration,
    /// Another check hangs already.
    doubted: bool,
}

impl Alarm for Checking {
    fn ring(&self) {
        let Some(member) = self.member.upgrade() else { return };
        {
            let mut queue = lock(&member.queue);
            // Another session may be well. And where a key is being made, that may keep the others waiting, and has a time of
            // its own.
            if queue.state != State::Up || queue.answered >= self.since || queue.calls > 0 {
                return;
            }
            // It may hang alone. One whose session waits tells how the token is, once.
            if queue.ready() > 0 && !self.doubted {
                queue.doubted = true;
                return queue.wake_all();
            }
        }
        let what = format!("no answer to a check in {} ms", self.time.as_millis());
        member.went_down(&Failure::new(CKR_DEVICE_ERROR, what), true);
    }
}

fn no_answer(time: Duration) -> Failure {
    Failure::new(CKR_DEVICE_ERROR, format!("no answer in {} ms", time.as_millis()))
}

#[derive(Clone)]
enum Work {
    Sign(Arc<Request>),
    /// What hsmd does besides signing. Its result is left where it knows.
    Call(Arc<Call>),
}

type Call = dyn Fn(&mut dyn Session) -> Result<()> + Send + Sync;

enum Progress {
    Queued,
    Started(Instant),
    /// It is done, or its time is over.
    Ended,
    /// For who waits.
    Answered(Result<Vec<u8>>),
}

impl Progress {
    /// Whether the device, and not the queue before it, took the job's time. Where more is asked of it than it can do, jobs
    /// are begun just before their time is over: that is no failure of the device.
    fn hangs(&self, time: Duration) -> bool {
        matches!(self, Progress::Started(since) if since.elapsed() >= time / 2)
    }
}

struct Queue {
    jobs: Turns<Option<IpAddr>, Arc<Job>>,
    state: State,
    /// Workers that wait for a job, the latest last.
    idle: Vec<Arc<Idle>>,
    /// Sessions that are open, and those that are being opened.
    open: usize,
    opening: usize,
    /// When a member that is down is tried again.
    retry_at: Instant,
    /// The latest worker that does so, by its number, and until when the others leave it to that one.
    probing: Option<(u64, Instant)>,
    probes: u64,
    /// Workers that do so: those before the latest have had no answer in time.
    probers: u32,
    /// Time-outs since the last signature: a member that answers checks and hangs in signatures is left alone ever longer.
    hangs: u32,
    /// How often the member went down: sessions from before are closed.
    failures: u64,
    /// Keys that were found: if one of them is not any more, nor any other key, the token is gone, whatever its library says.
    found: HashSet<KeyName>,
    /// How often a key was made or destroyed through this member: handles from before are searched anew.
    changes: u64,
    /// When a worker last came back from the library.
    answered: Instant,
    /// Workers that do something else than to sign.
    calls: usize,
    /// A check hangs, and one that waits is to check its session at once.
    doubted: bool,
    /// The last failure that was told, so that it is not told with every attempt.
    told: String,
    /// Messages that nobody has taken yet, and whether somebody is at it.
    untold: VecDeque<String>,
    telling: bool,
    stopping: bool,
    workers: usize,
    /// Its state and sessions are those above.
    status: Status,
}

/// A worker that waits for a job.
struct Idle {
    changed: Condvar,
    /// It has a session.
    ready: bool,
    /// It is woken for a job: the next one is for another worker. Read and written with the queue locked.
    woken: AtomicBool,
}

impl Queue {
    /// Idle workers with a session.
    fn ready(&self) -> usize {
        self.idle.iter().filter(|idle| idle.ready).count()
    }

    /// The one to be woken for a job: with a session, and the last to have worked. Its stack, its connection and hsmd's threads
    /// at the other end of that are the likeliest to be in the processor's caches.
    fn to_be_woken(&self) -> Option<Arc<Idle>> {
        let idle = self.idle.iter().rfind(|idle| idle.ready && !idle.woken.load(SeqCst))?;
        idle.woken.store(true, SeqCst);
        Some(idle.clone())
    }

    fn wake_all(&self) {
        self.idle.iter().for_each(|idle| idle.changed.notify_one());
    }

    /// Whether there are sessions without one more, or are about to be.
    fn others(&self) -> bool {
        self.state != State::Down && self.open + self.opening > 0
    }

    /// When a member that is down is tried again by a worker that waits. A call may hang alone, as a check may, while the token
    /// is back for all others.
    fn probe_at(&self) -> Instant {
        self.probing.map_or(self.retry_at, |(_, until)| until.max(self.retry_at))
    }

    /// A worker tries a member that is down: its number. Where call after call hangs, the next one is made ever later.
    fn probe(&mut self, now: Instant, timeout: Duration) -> u64 {
        self.probes += 1;
        self.probing = Some((self.probes, now + timeout * 5 / 4 * (1 << self.probers.min(6))));
        self.probers += 1;
        self.probes
    }

    fn probed(&mut self, number: u64) {
        self.probers -= 1;
        if self.probing.is_some_and(|(latest, _)| latest == number) {
            self.probing = None;
        }
    }

    fn enter(&mut self, state: State) {
        if self.state != state {
            self.state = state;
            self.status.since = SystemTime::now();
        }
    }

    fn go_down(&mut self, failure: &Failure) {
        self.enter(State::Down);
        let message = failure.to_string();
        self.status.last_error.clone_from(&message);
        if self.told != message && !self.stopping {
            self.say(format!("member {} is down: {message}", self.status.name));
            self.told = message;
        }
    }

    fn go_up(&mut self) {
        self.enter(State::Up);
        if !self.told.is_empty() {
            self.say(format!("member {} is up again", self.status.name));
            self.told.clear();
        }
    }

    /// It is for `tell`. Where nobody takes messages, they do not pile up.
    fn say(&mut self, message: String) {
        if self.untold.len() < MOST_UNTOLD {
            self.untold.push_back(message);
        }
    }
}

pub struct Member {
    settings: Settings,
    token: Box<dyn Token>,
    queue: Mutex<Queue>,
    /// A worker has ended.
    ended: Condvar,
    check_interval: Duration,
    log: fn(&str),
}

impl Member {
    /// Starts the workers; they connect at once.
    pub fn start(settings: Settings, token: Box<dyn Token>, check_interval: Duration, log: fn(&str)) -> Arc<Member> {
        let queue = Queue {
            jobs: Turns::default(),
            state: State::Starting,
            idle: vec![],
            open: 0,
            opening: 0,
            retry_at: Instant::now(),
            probing: None,
            probes: 0,
            probers: 0,
            hangs: 0,
            failures: 0,
            found: HashSet::new(),
            changes: 0,
            answered: Instant::now(),
            calls: 0,
            doubted: false,
            told: String::new(),
            untold: VecDeque::new(),
            telling: false,
            stopping: false,
            workers: 0,
            status: Status::new(&settings.name),
        };
        let (queue, ended) = (Mutex::new(queue), Condvar::new());
        let member = Arc::new(Member { settings, token, queue, ended, check_interval, log });
        for _ in 0..member.settings.sessions {
            let worker = member.clone();
            lock(&member.queue).workers += 1;
            let name = "qtls-pkcs11".to_string();
            if thread::Builder::new().name(name).spawn(move || worker.work()).is_err() {
                lock(&member.queue).workers -= 1;
            }
        }
        if lock(&member.queue).workers == 0 {
            member.went_down(&Failure::new(CKR_HOST_MEMORY, "no thread can be started"), false);
        }
        if let Some(timer) = Timer::of_process() {
            let beginning = Beginning(Arc::downgrade(&member));
            timer.set(Instant::now() + member.settings.timeout, Arc::new(beginning));
        }
        member
    }

    pub fn name(&self) -> &str {
        &self.settings.name
    }

    pub fn state(&self) -> State {
        lock(&self.queue).state
    }

    /// Has a worker make one signature, and waits for it until the time-out. Where another member can make it, it does not wait
    /// for its turn at one that goes down.
    pub fn sign(self: &Arc<Member>, request: &Arc<Request>, elsewhere: bool) -> Result<Vec<u8>> {
        self.wait(Work::Sign(request.clone()), self.settings.timeout, elsewhere)
    }

    /// Has a worker make one signature; the order is told it, or that there is none when the time-out has passed. Peers take
    /// turns.
    pub fn sign_for(self: &Arc<Member>, request: Arc<Request>, peer: IpAddr, start: Instant, order: Box<dyn Order>) {
        self.submit(Work::Sign(request), peer, start, self.settings.timeout, order);
    }

    fn count(&self, start: Instant, result: &Result<Vec<u8>>) {
        let status = &mut lock(&self.queue).status;
        match result {
            Ok(_) => {
                status.signatures += 1;
                status.latency.add(start.elapsed());
            }
            Err(e) if e.verdict() == Verdict::Request => {}
            Err(e) => {
                status.failures += 1;
                status.last_error = e.to_string();
            }
        }
    }

    /// How long a signature may take.
    pub fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    /// A signature that it did not make is asked of another member.
    pub fn failed_over(&self) {
        lock(&self.queue).status.failovers += 1;
    }

    pub fn status(&self) -> Status {
        let queue = lock(&self.queue);
        Status { state: queue.state, sessions: queue.open, ..queue.status.clone() }
    }

    /// Has a worker do something else with its session, which may take longer than a signature, and more than once if the
    /// session is lost under it.
    pub fn call<T: Send + 'static>(
        self: &Arc<Member>,
        time: Duration,
        f: impl Fn(&mut dyn Session) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        let call = move |session: &mut dyn Session| {
            let done = f(session)?;
            *lock(&place) = Some(done);
            Ok(())
        };
        self.wait(Work::Call(Arc::new(call)), time, false)?;
        let done = lock(&result).take();
        done.ok_or_else(|| Failure::new(CKR_GENERAL_ERROR, "no result"))
    }

    /// Has a worker make a key. Nobody tries that again, for an answer that is lost must not make two keys.
    pub fn generate(
        self: &Arc<Member>,
        algorithm: Algorithm,
        name: &KeyName,
        time: Duration,
    ) -> std::result::Result<Found, NotMade> {
        // Set by the worker when it asks the token, or else by who gives up: it does not ask then.
        let asked = Arc::new(AtomicBool::new(false));
        let (asks, name) = (asked.clone(), name.clone());
        let made = self.call(time, move |session| {
            // A session that was lost before is one that fails its check: the worker runs this once more with a new one.
            session.check()?;
            if asks.swap(true, SeqCst) {
                return Err(Failure::new(CKR_FUNCTION_CANCELED, "nobody waits for it any more"));
            }
            match session.generate(algorithm, &name) {
                Err(e) if matches!(e.verdict(), Verdict::Session | Verdict::Handle) => Ok(Err(e)),
                done => done.map(Ok),
            }
        });
        made.and_then(|made| made).map_err(|failure| NotMade { failure, asked: asked.swap(true, SeqCst) })
    }

    /// As call, for an order that does not wait: f leaves its result where the order knows.
    pub fn call_for(
        self: &Arc<Member>,
        time: Duration,
        f: impl Fn(&mut dyn Session) -> Result<()> + Send + Sync + 'static,
        peer: IpAddr,
        start: Instant,
        order: Box<dyn Order>,
    ) {
        self.submit(Work::Call(Arc::new(f)), peer, start, time, order);
    }

    /// A key was made or destroyed through this member: it is no sign of a lost token if it is not found any more.
    pub fn key_changed(&self, key: &KeyName) {
        let mut queue = lock(&self.queue);
        queue.found.retain(|found| found.label != key.label);
        queue.changes += 1;
    }

    /// Has a worker take a job, if there is any that may come to it.
    fn enqueue(&self, job: &Arc<Job>) -> Result<()> {
        let mut queue = lock(&self.queue);
        // One that has yet to begin may be long over a login: it is waited for. So are those that work.
        let down = queue.state == State::Down;
        let hang = queue.idle.is_empty() && queue.answered.elapsed() >= self.settings.timeout;
        if queue.stopping || down && queue.failures > 0 && hang {
            return Err(Failure::new(CKR_DEVICE_ERROR, "all sessions hang in the module"));
        }
        if down && job.elsewhere {
            return Err(Failure::new(CKR_DEVICE_ERROR, "it is down"));
        }
        queue.jobs.push(job.of, job.clone());
        match queue.to_be_woken() {
            Some(idle) => {
                drop(queue);
                idle.changed.notify_one();
            }
            // Who works looks into the queue before it waits. But others may have to open a session.
            None => queue.wake_all(),
        }
        Ok(())
    }

    fn submit(self: &Arc<Member>, work: Work, peer: IpAddr, start: Instant, time: Duration, order: Box<dyn Order>) {
        let asker = Asker::Told(Mutex::new(Some(Told { order, alarm: None })));
        let job = Job::new(work, start, asker, false, Some(peer));
        let Some(timer) = Timer::of_process() else {
            return self.finish(&job, Err(Failure::new(CKR_HOST_MEMORY, "no thread can be started")));
        };
        let expiry = Arc::new(Expiry { member: self.clone(), job: job.clone(), time });
        let alarm = timer.set(start + time, expiry);
        if let Asker::Told(told) = &job.asker {
            match lock(told).as_mut() {
                Some(told) => told.alarm = Some((timer, alarm)),
                None => return, // its time is over already
            }
        }
        if let Err(failure) = self.enqueue(&job) {
            self.finish(&job, Err(failure));
        }
    }

    fn wait(self: &Arc<Member>, work: Work, time: Duration, elsewhere: bool) -> Result<Vec<u8>> {
        let job = Job::new(work, Instant::now(), Asker::Waits(Waiter::for_caller()), elsewhere, None);
        let Asker::Waits(waiter) = &job.asker else { unreachable!() };
        if let Err(failure) = self.enqueue(&job) {
            self.finish(&job, Err(failure));
        }
        let expiry = Arc::new(Expiry { member: self.clone(), job: job.clone(), time });
        let answered = |progress: &Progress| matches!(progress, Progress::Answered(_));
        let mut progress = waiter.wait(&job.progress, job.start + time, expiry, answered);
        match mem::replace(&mut *progress, Progress::Ended) {
            Progress::Answered(result) => result,
            _ => Err(Failure::new(CKR_GENERAL_ERROR, "no answer")),
        }
    }

    /// A job is done: whoever asked for it gets the result, unless its time was over before.
    fn finish(&self, job: &Job, result: Result<Vec<u8>>) {
        if job.end().is_some() {
            self.answer(job, result);
        }
    }

    /// Gives whoever asked for a job its result. Who has ended the job does so, once.
    fn answer(&self, job: &Job, result: Result<Vec<u8>>) {
        // What was given up and nobody wanted any more says nothing of the token.
        let nobodys = matches!(&result, Err(e) if e.code == CKR_FUNCTION_CANCELED) && !job.wanted();
        if matches!(job.work, Work::Sign(_)) && !nobodys {
            self.count(job.start, &result);
        }
        match &job.asker {
            Asker::Waits(waiter) => {
                let mut progress = lock(&job.progress);
                *progress = Progress::Answered(result);
                waiter.tell();
            }
            Asker::Told(told) => {
                let Some(Told { order, alarm }) = lock(told).take() else { return };
                if let Some((timer, alarm)) = alarm {
                    timer.cancel(alarm);
                }
                order.done(result);
            }
        }
    }

    /// What is said of a job whose time is over.
    fn give_up(&self, job: &Arc<Job>, hangs: bool, time: Duration) -> Failure {
        // All workers may hang in a check, or in the library's first call: then nobody has answered for as long.
        let (hangs, all_hang, news) = {
            let mut queue = lock(&self.queue);
            // It is the first, as a rule: their times are over in the order in which they came.
            queue.jobs.remove(job.of, |j| Arc::ptr_eq(j, job));
            let all_hang = queue.answered.elapsed() >= time;
            // Of the thousands that may wait, one is enough to tell it.
            let news = hangs || all_hang && queue.state != State::Down;
            queue.hangs = (queue.hangs + news as u32).min(6);
            (hangs || all_hang, all_hang, news)
        };
        if hangs {
            let failure = no_answer(time);
            if news {
                self.went_down(&failure, all_hang);
            }
            return failure;
        }
        Failure::new(CKR_FUNCTION_CANCELED, format!("no free session in {} ms", time.as_millis()))
    }

    /// Has the workers end, and waits some time for it. True if all have: none is in a call any more.
    pub fn stop(&self, time: Duration) -> bool {
        let mut queue = lock(&self.queue);
        queue.stopping = true;
        queue.wake_all();
        let ended = self.ended.wait_timeout_while(queue, time, |queue| queue.workers > 0);
        ended.unwrap_or_else(PoisonError::into_inner).0.workers == 0
    }

    /// Workers that wait with a session.
    #[cfg(test)]
    pub fn ready(&self) -> usize {
        lock(&self.queue).ready()
    }

    /// As if a check had begun now and taken too long.
    #[cfg(test)]
    pub fn check_hangs(self: &Arc<Member>) {
        let (since, time) = (Instant::now(), self.settings.timeout * 5 / 4);
        Checking { member: Arc::downgrade(self), since, time, doubted: false }.ring();
    }

    /// Jobs that wait for their turn.
    #[cfg(test)]
    pub fn queued(&self) -> usize {
        lock(&self.queue).jobs.len()
    }

    /// `all_hang` says that no worker has come back from the library for as long as a signature may take.
    fn went_down(&self, failure: &Failure, all_hang: bool) {
        // A wrong PIN is no reason to end other members' use of the library.
        if failure.verdict() == Verdict::Device {
            self.token.failed();
        }
        let mut queue = lock(&self.queue);
        queue.failures += 1;
        queue.wake_all(); // to close their sessions, and to see when to try again
        queue.retry_at = Instant::now() + self.settings.retry * (1 << queue.hangs);
        // Jobs that no worker will begin with, and those that another member can do, do not wait for their time-out here. Of
        // the latter none comes while it is down.
        let nobody = all_hang && queue.idle.is_empty();
        let back = match nobody || queue.state != State::Down {
            true => queue.jobs.extract(|job| nobody || job.elsewhere),
            false => vec![],
        };
        queue.go_down(failure);
        drop(queue);
        back.iter().for_each(|job| self.finish(job, Err(failure.clone())));
        self.tell(lock(&self.queue));
    }

    fn went_up(&self) {
        let mut queue = lock(&self.queue);
        queue.go_up();
        self.tell(queue);
    }

    fn signed(&self) {
        let mut queue = lock(&self.queue);
        queue.hangs = 0;
        queue.go_up();
        self.tell(queue);
    }

    /// Says what there is to say, with nothing locked: whoever takes messages may be slow. Who finds another at it leaves it
    /// to that one, so that they come in their order.
    fn tell<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) {
        if mem::replace(&mut queue.telling, true) {
            return;
        }
        while let Some(message) = queue.untold.pop_front() {
            drop(queue);
            (self.log)(&message);
            queue = lock(&self.queue);
        }
        queue.telling = false;
    }

    fn work(self: &Arc<Member>) {
        let mut connection = Connection {
            member: self,
            session: None,
            handles: HashMap::new(),
            failures: 0,
            changes: 0,
            refusals: 0,
            open_at: Instant::now(),
            watch: None,
        };
        if self.attempt(&mut connection).is_ok() {
            self.went_up();
        }
        loop {
            lock(&self.queue).answered = Instant::now();
            match self.next(&connection) {
                Task::Sign(job) if !job.wanted() => {
                    self.finish(&job, Err(Failure::new(CKR_FUNCTION_CANCELED, "nobody waits for it any more")));
                }
                Task::Sign(job) => {
                    let result = match &job.work {
                        Work::Sign(request) => connection.sign(request),
                        Work::Call(call) => {
                            lock(&self.queue).calls += 1;
                            let done = connection.with_session(|c| call(&mut **c.session()?));
                            lock(&self.queue).calls -= 1;
                            done.map(|()| vec![])
                        }
                    };
                    if let Err(e) = &result {
                        if matches!(e.verdict(), Verdict::Device | Verdict::Pin) {
                            self.went_down(e, false);
                        }
                    } else {
                        self.signed();
                    }
                    self.finish(&job, result);
                }
                Task::Probe(number) => {
                    let up = self.attempt(&mut connection).is_ok();
                    lock(&self.queue).probed(number);
                    if up {
                        self.went_up();
                    }
                }
                Task::Check { doubted } => {
                    self.watch_check(&mut connection, doubted);
                    let _ = self.attempt(&mut connection);
                    connection.watch_no_longer();
                }
                Task::Close => connection.close(),
                Task::Stop => break,
            }
        }
        connection.close();
        lock(&self.queue).workers -= 1;
        self.ended.notify_all();
    }

    /// Has an alarm ring if a check takes too long: somewhat longer than a signature may, for a session that has a time-out of
    /// its own says more. One that is opened, anew for instance, may be long over a login: it is not watched.
    fn watch_check(self: &Arc<Member>, connection: &mut Connection, doubted: bool) {
        let Some(timer) = Timer::of_process().filter(|_| connection.session.is_some()) else { return };
        let (since, time) = (Instant::now(), self.settings.timeout * 5 / 4);
        let checking = Checking { member: Arc::downgrade(self), since, time, doubted };
        connection.watch = Some((timer, timer.set(since + time, Arc::new(checking))));
    }

    /// Checks the session, or opens one.
    fn attempt(&self, connection: &mut Connection) -> Result<()> {
        let opens = connection.session.is_none();
        let result = connection.check();
        match &result {
            Ok(()) => connection.refusals = 0,
            // A token that has no session left to give serves with those it gave, and so does one that gives none for another
            // reason: the others tell how it is. A PIN that was refused is tried by nobody.
            Err(e)
                if (e.verdict() == Verdict::Unable || opens && e.verdict() != Verdict::Pin)
                    && lock(&self.queue).others() =>
            {
                connection.open_at = Instant::now() + self.check_interval * (1 << connection.refusals);
                connection.refusals = (connection.refusals + 1).min(LONGEST_WAIT);
            }
            Err(e) => self.went_down(e, false),
        }
        result
    }

    fn next(&self, connection: &Connection) -> Task {
        let mut queue = lock(&self.queue);
        let check_at = Instant::now() + self.check_interval;
        loop {
            if queue.stopping {
                return Task::Stop;
            }
            // A job is for who has a session, and not for who may be refused one.
            let waits = connection.session.is_none() && queue.others();
            while let Some(job) = if waits { None } else { queue.jobs.pop() } {
                let mut progress = lock(&job.progress);
                if matches!(*progress, Progress::Queued) {
                    *progress = Progress::Started(Instant::now());
                    drop(progress);
                    return Task::Sign(job);
                }
            }
            if connection.session.is_some() && connection.failures != queue.failures {
                return Task::Close;
            }
            let now = Instant::now();
            let mut wake_at = check_at;
            if waits && connection.was_refused(&queue, now) {
                wake_at = wake_at.max(connection.open_at);
            }
            match queue.state {
                State::Down => {
                    let probe_at = queue.probe_at();
                    // While others hang, the last one is there for who asks: that, too, tells whether the token is back.
                    let last = queue.probers > 0 && queue.idle.is_empty();
                    if probe_at <= now && !last {
                        return Task::Probe(queue.probe(now, self.settings.timeout));
                    }
                    wake_at = now + self.check_interval;
                    if !last {
                        wake_at = wake_at.min(probe_at);
                    }
                }
                State::Up if queue.doubted && connection.session.is_some() => {
                    queue.doubted = false;
                    return Task::Check { doubted: true };
                }
                State::Up if wake_at <= now => return Task::Check { doubted: false },
                State::Up if waits && !queue.jobs.is_empty() && !connection.was_refused(&queue, now) => {
                    return Task::Check { doubted: false };
                }
                _ => {}
            }
            let wait = wake_at.saturating_duration_since(now).max(Duration::from_millis(1));
            let (changed, ready, woken) = (Condvar::new(), connection.session.is_some(), AtomicBool::new(false));
            let idle = Arc::new(Idle { changed, ready, woken });
            queue.idle.push(idle.clone());
            queue = idle.changed.wait_timeout(queue, wait).unwrap_or_else(|e| e.into_inner()).0;
            queue.idle.retain(|other| !Arc::ptr_eq(other, &idle));
        }
    }
}

enum Task {
    Sign(Arc<Job>),
    /// Its number.
    Probe(u64),
    Check {
        /// Another check hangs.
        doubted: bool,
    },
    Close,
    Stop,
}

/// A worker's session, and where its keys are. Handles hold for the session: with a new one they are searched anew.
struct Connection<'a> {
    member: &'a Member,
    session: Option<Box<dyn Session>>,
    handles: HashMap<KeyName, CK_OBJECT_HANDLE>,
    /// The member's when the session was opened.
    failures: u64,
    /// The member's when the handles were found.
    changes: u64,
    /// How often in turn it was refused a session that others have, and when it tries again.
    refusals: u32,
    open_at: Instant,
    /// What rings if the check takes too long.
    watch: Option<(&'static Timer, AlarmId)>,
}

impl Connection<'_> {
    fn close(&mut self) {
        self.handles.clear();
        if self.session.take().is_some() {
            let mut queue = lock(&self.member.queue);
            queue.open -= 1;
            self.left(&queue);
        }
    }

    /// Without any other session who has none takes jobs, too.
    fn left(&self, queue: &Queue) {
        if !queue.others() && !queue.jobs.is_empty() {
            queue.wake_all();
        }
    }

    /// It waits for a session longer than until the next check, if the member was not down since.
    fn was_refused(&self, queue: &Queue, now: Instant) -> bool {
        self.failures == queue.failures && now < self.open_at
    }

    fn watch_no_longer(&mut self) {
        if let Some((timer, alarm)) = self.watch.take() {
            timer.cancel(alarm);
        }
    }

    fn session(&mut self) -> Result<&mut Box<dyn Session>> {
        if self.session.is_none() {
            self.watch_no_longer();
            {
                let mut queue = lock(&self.member.queue);
                self.failures = queue.failures;
                queue.opening += 1;
            }
            let opened = self.member.token.open();
            let mut queue = lock(&self.member.queue);
            queue.opening -= 1;
            queue.open += opened.is_ok() as usize;
            self.left(&queue);
            drop(queue);
            self.session = Some(opened?);
        }
        match &mut self.session {
            Some(session) => Ok(session),
            None => Err(Failure::new(CKR_GENERAL_ERROR, "no session")),
        }
    }

    /// Runs f on the session, and once more on a new one if the session was at fault, or the handle.
    fn with_session<T>(&mut self, mut f: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        let result = f(self);
        let again = match &result {
            Err(e) if e.verdict() == Verdict::Session => {
                self.close();
                f(self)
            }
            Err(e) if e.verdict() == Verdict::Handle => {
                self.handles.clear();
                f(self)
            }
            _ => return self.keep(result),
        };
        self.keep(again)
    }

    /// After an error that is not the request's own the session is not to be trusted.
    fn keep<T>(&mut self, result: Result<T>) -> Result<T> {
        match result {
            Err(e) if e.verdict() == Verdict::Session => {
                self.close();
                // A new session is lost as well: that is the device.
                Err(Failure::new(CKR_DEVICE_ERROR, e.to_string()))
            }
            Err(e) => {
                if matches!(e.verdict(), Verdict::Device | Verdict::Pin) {
                    self.close();
                }
                Err(e)
            }
            ok => ok,
        }
    }

    fn check(&mut self) -> Result<()> {
        self.with_session(|c| c.session()?.check())
    }

    /// What it means that a key is not found. One that was found before, while no key at all is there any more, went with its
    /// token. Where there is any, somebody has destroyed that one.
    fn token_is_gone(&mut self, name: &KeyName) -> Result<bool> {
        let was_there = lock(&self.member.queue).found.remove(name);
        Ok(was_there && !self.session()?.has_keys()?)
    }

    fn sign(&mut self, request: &Request) -> Result<Vec<u8>> {
        let key = &request.key;
        let name = key.name();
        let changes = lock(&self.member.queue).changes;
        if self.changes != changes {
            self.changes = changes;
            self.handles.clear();
        }
        self.with_session(|c| {
            let handle = match c.handles.get(&name) {
                Some(handle) => *handle,
                None => {
                    let found = c.session()?.find(key)?;
                    let Some(handle) = found else {
                        let code = match c.token_is_gone(&name)? {
                            true => CKR_TOKEN_NOT_PRESENT,
                            false => CKR_KEY_HANDLE_INVALID,
                        };
                        return Err(Failure::new(
                            code,
                            format!("no private key with label {:?} and its ID", key.label),
                        ));
                    };
                    lock(&c.member.queue).found.insert(name.clone());
                    c.handles.insert(name.clone(), handle);
                    handle
                }
            };
            c.session()?.sign(handle, request, key.public.signature_len())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With more to do than it can, a member begins jobs just before their time is over.
    #[test]
    fn a_job_that_waited_for_its_turn_does_not_hang() {
        let minute = Duration::from_secs(60);
        assert!(!Progress::Queued.hangs(Duration::ZERO));
        assert!(!Progress::Started(Instant::now()).hangs(minute));
        assert!(!Progress::Started(Instant::now() - minute / 4).hangs(minute));
        assert!(Progress::Started(Instant::now() - minute / 2).hangs(minute));
    }
}
