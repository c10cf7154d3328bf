//! Failover: stand-ins for members die, hang, lose sessions and come back, and who makes the signatures is counted.

use super::{config, files, CONFIG};
use crate::{
    config::{Config, Key},
    library::lock,
    member::{Order, State},
    pool::Pool,
    token::{Failure, Mechanism, Request, Result, Session, Token},
};
use cryptoki_sys::*;
use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
        mpsc, Arc, Mutex,
    },
    thread,
    time::{Duration, Instant},
};

/// A token that does as it is told.
#[derive(Default)]
pub struct Fake {
    /// It is there, and answers.
    pub gone: AtomicBool,
    /// Calls wait until this is over.
    pub hangs: AtomicBool,
    /// How many do.
    pub hanging: AtomicUsize,
    hangs_in_open: AtomicBool,
    /// So many of the sessions that are asked for next do not come before the test ends, and so many did not.
    opens_to_hang: AtomicUsize,
    opens_hanging: AtomicUsize,
    checked: AtomicUsize,
    /// Sessions and handles of an earlier generation are not valid.
    generation: AtomicU64,
    /// The next signature fails with this code.
    pub next_error: Mutex<Option<CK_RV>>,
    /// What comes after that hangs.
    hangs_then: AtomicBool,
    without_keys: AtomicBool,
    /// The most sessions that it gives, if not 0, and those that there are.
    room: AtomicUsize,
    sessions: AtomicUsize,
    /// The next session that is asked for fails with this code.
    next_open_error: Mutex<Option<CK_RV>>,
    /// Sessions that were asked for, and those that were given.
    asked: AtomicUsize,
    opened: AtomicUsize,
    signed: AtomicUsize,
}

impl Fake {
    fn answer(&self, call: &str) -> Result<()> {
        if self.hangs.load(SeqCst) {
            self.hanging.fetch_add(1, SeqCst);
            while self.hangs.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            self.hanging.fetch_sub(1, SeqCst);
        }
        match self.gone.load(SeqCst) {
            true => Err(Failure::new(CKR_DEVICE_REMOVED, call)),
            false => Ok(()),
        }
    }
}

struct FakeToken(Arc<Fake>);

struct FakeSession {
    token: Arc<Fake>,
    generation: u64,
}

impl Token for FakeToken {
    fn open(&self) -> Result<Box<dyn Session>> {
        if self.0.opens_to_hang.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok() {
            self.0.opens_hanging.fetch_add(1, SeqCst);
            while self.0.opens_hanging.load(SeqCst) > 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        while self.0.hangs_in_open.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        self.0.answer("open")?;
        self.0.asked.fetch_add(1, SeqCst);
        if let Some(code) = lock(&self.0.next_open_error).take() {
            return Err(Failure::new(code, "open"));
        }
        let room = self.0.room.load(SeqCst);
        if self.0.sessions.fetch_add(1, SeqCst) >= room && room > 0 {
            self.0.sessions.fetch_sub(1, SeqCst);
            return Err(Failure::new(CKR_SESSION_COUNT, "open"));
        }
        self.0.opened.fetch_add(1, SeqCst);
        Ok(Box::new(FakeSession { token: self.0.clone(), generation: self.0.generation.load(SeqCst) }))
    }

    fn failed(&self) {}
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        self.token.sessions.fetch_sub(1, SeqCst);
    }
}

impl FakeSession {
    fn valid(&self) -> Result<()> {
        match self.generation == self.token.generation.load(SeqCst) {
            true => Ok(()),
            false => Err(Failure::new(CKR_USER_NOT_LOGGED_IN, "session")),
        }
    }
}

impl Session for FakeSession {
    fn find(&mut self, _: &Key) -> Result<Option<CK_OBJECT_HANDLE>> {
        self.token.answer("find")?;
        self.valid()?;
        Ok((!self.token.without_keys.load(SeqCst)).then_some(100 + self.generation as CK_OBJECT_HANDLE))
    }

    fn sign(&mut self, key: CK_OBJECT_HANDLE, _: &Request, len: usize) -> Result<Vec<u8>> {
        self.token.answer("sign")?;
        self.valid()?;
        if key != 100 + self.generation as CK_OBJECT_HANDLE {
            return Err(Failure::new(CKR_KEY_HANDLE_INVALID, "sign"));
        }
        if let Some(code) = lock(&self.token.next_error).take() {
            self.token.hangs.fetch_or(self.token.hangs_then.load(SeqCst), SeqCst);
            return Err(Failure::new(code, "sign"));
        }
        self.token.signed.fetch_add(1, SeqCst);
        Ok(vec![7; len])
    }

    fn check(&mut self) -> Result<()> {
        self.token.answer("check")?;
        self.token.checked.fetch_add(1, SeqCst);
        self.valid()
    }

    fn has_keys(&mut self) -> Result<bool> {
        Ok(!self.token.without_keys.load(SeqCst))
    }
}

/// A pool of two stand-ins, a and b.
pub struct Two {
    pub a: Arc<Fake>,
    pub b: Arc<Fake>,
    pub pool: Pool,
}

/// The first member's in tests of time-outs. All others are waited for however slow the machine is.
pub const TIMEOUT: Duration = Duration::from_millis(1000);

/// Waits until something is so. The time is a guard against hanging.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < deadline, "not in a minute: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Between checks.
const OFTEN: Duration = Duration::from_millis(20);
const NEVER: Duration = Duration::from_secs(3600);
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn parse(config: &str) -> Config {
    Config::parse(&config.replace("timeout = 2000ms", "timeout = 60000ms"), &files).unwrap()
}

fn impatient(time: Duration) -> String {
    CONFIG.replacen("timeout = 2000ms", &format!("timeout = {}ms", time.as_millis()), 1)
}

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn log(message: &str) {
    lock(&LOG).push(message.into());
}

impl Two {
    pub fn new() -> Two {
        Two::with(CONFIG, |_, _| {})
    }

    /// Only the first member is given so little time that it matters.
    pub fn impatient(prepare: impl Fn(&Fake, &Fake)) -> Two {
        Two::with_timeout(TIMEOUT, prepare)
    }

    /// The first member's.
    pub fn with_timeout(time: Duration, prepare: impl Fn(&Fake, &Fake)) -> Two {
        Two::with(&impatient(time), prepare)
    }

    /// Nor is it checked: what it is found out by is a signature.
    pub fn unchecked(prepare: impl Fn(&Fake, &Fake)) -> Two {
        Two::start(parse(&impatient(TIMEOUT)), NEVER, prepare)
    }

    /// The first member has one session, and more time than any test waits.
    fn narrow(checks: Duration, prepare: impl Fn(&Fake, &Fake)) -> Two {
        let mut config = parse(CONFIG);
        config.members[0].sessions = 1;
        config.members[0].timeout = NEVER;
        Two::start(config, checks, prepare)
    }

    /// The first member is impatient, and has three sessions.
    fn wide() -> Two {
        let mut config = parse(&impatient(TIMEOUT));
        config.members[0].sessions = 3;
        Two::start(config, OFTEN, |_, _| {})
    }

    fn with(config: &str, prepare: impl Fn(&Fake, &Fake)) -> Two {
        Two::start(parse(config), OFTEN, prepare)
    }

    fn start(config: Config, checks: Duration, prepare: impl Fn(&Fake, &Fake)) -> Two {
        Two::telling(config, checks, prepare, log)
    }

    fn telling(config: Config, checks: Duration, prepare: impl Fn(&Fake, &Fake), log: fn(&str)) -> Two {
        let (a, b) = (Arc::new(Fake::default()), Arc::new(Fake::default()));
        prepare(&a, &b);
        let config = Arc::new(config);
        let token = |m: &crate::config::Member| -> Box<dyn Token> {
            Box::new(FakeToken(if m.name == config.members[0].name { a.clone() } else { b.clone() }))
        };
        let pool = Pool::start(&config, token, checks, log);
        Two { a, b, pool }
    }

    pub fn sign(&self) -> std::result::Result<(), CK_RV> {
        let request = Request { key: config().keys[0].clone(), mechanism: Mechanism::Ecdsa, data: vec![1; 32] };
        match self.pool.sign(request) {
            Ok(signature) => {
                assert_eq!(signature, [7; 64]);
                Ok(())
            }
            Err(e) => Err(e.code),
        }
    }

    /// Has the impatient member alone make one, for a minute: a machine may stand still for longer than its time-out.
    fn a_signs(&self) {
        let (to, told) = mpsc::channel();
        let request = Request { key: config().keys[0].clone(), mechanism: Mechanism::Ecdsa, data: vec![1; 32] };
        let start = Instant::now() + Duration::from_secs(60);
        self.pool.members()[0].sign_for(Arc::new(request), PEER, start, Box::new(Told(to)));
        assert_eq!(told.recv().unwrap(), Ok(vec![7; 64]));
    }

    pub fn signed(&self) -> (usize, usize) {
        (self.a.signed.load(SeqCst), self.b.signed.load(SeqCst))
    }

    pub fn await_states(&self, a: State, b: State) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while [a, b] != [self.pool.states()[0].1, self.pool.states()[1].1] {
            assert!(Instant::now() < deadline, "{:?}, want {a:?} and {b:?}", self.pool.states());
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        self.a.hangs.store(false, SeqCst);
        self.a.hangs_in_open.store(false, SeqCst);
        self.a.opens_hanging.store(0, SeqCst);
        self.b.hangs.store(false, SeqCst);
        assert!(self.pool.stop(Duration::from_secs(60)), "all workers end");
    }
}

#[test]
fn the_first_member_makes_the_signatures() {
    let two = Two::new();
    two.await_states(State::Up, State::Up);
    (0..10).for_each(|_| two.sign().unwrap());
    assert_eq!(two.signed(), (10, 0));
}

#[test]
fn members_take_turns_if_told_to() {
    let two = Two::with(&CONFIG.replace("= ordered", "= spread"), |_, _| {});
    two.await_states(State::Up, State::Up);
    (0..10).for_each(|_| two.sign().unwrap());
    assert_eq!(two.signed(), (5, 5));
}

#[test]
fn a_member_that_is_down_leaves_its_turns_to_all_others() {
    let mut config = parse(&CONFIG.replace("= ordered", "= spread"));
    config.members.push(crate::config::Member { name: "c".into(), ..config.members[1].clone() });
    let fakes: [Arc<Fake>; 3] = Default::default();
    fakes[0].gone.store(true, SeqCst);
    let config = Arc::new(config);
    let token = |m: &crate::config::Member| -> Box<dyn Token> {
        Box::new(FakeToken(fakes[config.members.iter().position(|o| o.name == m.name).unwrap()].clone()))
    };
    let pool = Pool::start(&config, token, NEVER, log);
    let states =
        |want: [State; 3]| until("members are as they shall be", || pool.states().iter().map(|s| s.1).eq(want));
    states([State::Down, State::Up, State::Up]);
    for _ in 0..10 {
        pool.sign(Request { key: config.keys[0].clone(), mechanism: Mechanism::Ecdsa, data: vec![1; 32] }).unwrap();
    }
    assert_eq!(fakes.each_ref().map(|f| f.signed.load(SeqCst)), [0, 5, 5]);
    assert!(pool.stop(Duration::from_secs(60)), "all workers end");
}

#[test]
fn a_member_that_dies_in_mid_signature_costs_none() {
    let two = Two::new();
    two.await_states(State::Up, State::Up);
    *lock(&two.a.next_error) = Some(CKR_DEVICE_REMOVED);
    two.sign().unwrap();
    assert_eq!(two.signed(), (0, 1));
    two.await_states(State::Up, State::Up);
    two.sign().unwrap();
    assert_eq!(two.signed(), (1, 1), "it is back");
}

#[test]
fn no_signature_is_lost_while_members_are_killed_in_turn() {
    let two = Two::new();
    let (done, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    assert_eq!(two.sign(), Ok(()));
                    made.fetch_add(1, SeqCst);
                }
            });
        }
        for round in 0..6u64 {
            let (dying, other) = if round % 2 == 0 { (&two.a, &two.b) } else { (&two.b, &two.a) };
            let before = other.signed.load(SeqCst);
            dying.gone.store(true, SeqCst);
            while other.signed.load(SeqCst) < before + 50 {
                thread::sleep(Duration::from_millis(1));
            }
            dying.generation.fetch_add(1, SeqCst); // as after a reboot
            dying.gone.store(false, SeqCst);
            two.await_states(State::Up, State::Up);
        }
        done.store(true, SeqCst);
    });
    let (a, b) = two.signed();
    assert_eq!(a + b, made.load(SeqCst), "each signature was made once");
    assert!(a >= 150 && b >= 150, "{a} and {b}");
}

#[test]
fn a_member_that_hangs_is_given_up_after_its_time_out_and_left_alone() {
    let two = Two::unchecked(|_, _| {});
    two.await_states(State::Up, State::Up);
    two.a.hangs.store(true, SeqCst);
    let start = Instant::now();
    two.sign().unwrap();
    assert!(start.elapsed() >= TIMEOUT, "{:?}: its time-out", start.elapsed());
    let start = Instant::now();
    (0..100).for_each(|_| two.sign().unwrap());
    assert!(start.elapsed() < 90 * TIMEOUT, "{:?}: each waited for it", start.elapsed());
    assert_eq!(two.signed(), (0, 101));

    two.a.hangs.store(false, SeqCst);
    two.await_states(State::Up, State::Up);
    two.sign().unwrap();
    assert!(two.signed().0 >= 1, "it is used again");
}

/// It was not begun: there is no risk in it, and nothing to wait for.
#[test]
fn what_waits_for_its_turn_at_a_member_that_goes_down_is_made_by_the_next_one_at_once() {
    let two = Two::narrow(OFTEN, |_, _| {});
    two.await_states(State::Up, State::Up);
    two.a.hangs.store(true, SeqCst);
    until("its session is checked", || two.a.hanging.load(SeqCst) == 1);
    thread::scope(|scope| {
        let signatures: Vec<_> = (0..6).map(|_| scope.spawn(|| two.sign())).collect();
        until("all wait for the session", || two.pool.members()[0].queued() == 6);
        // The check fails; and then who would take up the next signature is held up, as where a machine is gone.
        two.a.hangs_in_open.store(true, SeqCst);
        two.a.gone.store(true, SeqCst);
        two.a.hangs.store(false, SeqCst);
        until("they are made", || signatures.iter().all(|s| s.is_finished()));
        signatures.into_iter().for_each(|s| assert_eq!(s.join().unwrap(), Ok(())));
    });
    let first = &two.pool.observer()()[0];
    assert_eq!((two.signed(), first.failures, first.failovers), ((0, 6), 6, 6));
}

#[test]
fn what_waits_for_its_turn_at_the_only_member_stays_there_when_that_goes_down() {
    let two = Two::narrow(OFTEN, |_, b| b.gone.store(true, SeqCst));
    two.await_states(State::Up, State::Down);
    two.a.hangs.store(true, SeqCst);
    until("its session is checked", || two.a.hanging.load(SeqCst) == 1);
    thread::scope(|scope| {
        let signatures: Vec<_> = (0..6).map(|_| scope.spawn(|| two.sign())).collect();
        until("all wait for the session", || two.pool.members()[0].queued() == 6);
        *lock(&two.a.next_error) = Some(CKR_DEVICE_REMOVED);
        two.a.hangs.store(false, SeqCst);
        let made = signatures.into_iter().filter_map(|s| s.join().unwrap().ok()).count();
        assert!(made >= 5, "{made}: all but the one that failed");
    });
}

#[test]
fn what_comes_while_the_only_member_is_busy_after_a_failure_waits_for_it() {
    let two = Two::narrow(NEVER, |_, b| b.gone.store(true, SeqCst));
    two.await_states(State::Up, State::Down);
    two.a.hangs.store(true, SeqCst);
    thread::scope(|scope| {
        let fails = scope.spawn(|| two.sign());
        until("it is being made", || two.a.hanging.load(SeqCst) == 1);
        let busy = scope.spawn(|| two.sign());
        until("it waits for the session", || two.pool.members()[0].queued() == 1);
        *lock(&two.a.next_error) = Some(CKR_DEVICE_REMOVED);
        two.a.hangs_then.store(true, SeqCst);
        two.a.hangs.store(false, SeqCst);
        fails.join().unwrap().unwrap_err();
        until("the next one is being made", || two.a.hanging.load(SeqCst) == 1);
        two.await_states(State::Down, State::Down);
        let comes = scope.spawn(|| two.sign());
        until("it waits", || two.pool.members()[0].queued() == 1 || comes.is_finished());
        two.a.hangs.store(false, SeqCst);
        assert_eq!((busy.join().unwrap(), comes.join().unwrap()), (Ok(()), Ok(())));
    });
}

struct Told(mpsc::Sender<Result<Vec<u8>>>);

impl Order for Told {
    fn wanted(&self) -> bool {
        true
    }

    fn done(self: Box<Self>, result: Result<Vec<u8>>) {
        let _ = self.0.send(result);
    }
}

/// As hsmd does it, whose clients may have other members.
#[test]
fn what_waits_behind_sessions_that_all_hang_is_given_back_when_that_is_known() {
    let two = Two::narrow(NEVER, |_, _| {});
    two.await_states(State::Up, State::Up);
    two.a.hangs.store(true, SeqCst);
    let (member, (to, told)) = (&two.pool.members()[0], mpsc::channel());
    let request = Request { key: config().keys[0].clone(), mechanism: Mechanism::Ecdsa, data: vec![1; 32] };
    for _ in 0..6 {
        member.sign_for(Arc::new(request.clone()), PEER, Instant::now(), Box::new(Told(to.clone())));
    }
    until("the session hangs", || two.a.hanging.load(SeqCst) == 1);
    until("it is noticed by one that has not as much time", || {
        member.call(TIMEOUT / 10, |session| session.check()).is_err() && member.state() == State::Down
    });
    for _ in 0..5 {
        assert_eq!(told.recv_timeout(Duration::from_secs(60)).expect("one waits").unwrap_err().code, CKR_DEVICE_ERROR);
    }
    two.a.hangs.store(false, SeqCst);
    assert_eq!(told.recv_timeout(Duration::from_secs(60)).expect("one waits"), Ok(vec![7; 64]));
}

#[test]
fn a_member_that_is_still_starting_is_asked_after_one_that_is_up() {
    let two = Two::with(CONFIG, |a, _| a.hangs_in_open.store(true, SeqCst)); // and has a minute to begin
    two.await_states(State::Starting, State::Up);
    (0..10).for_each(|_| two.sign().unwrap());
    assert_eq!(two.signed(), (0, 10));
    let first = &two.pool.observer()()[0];
    assert_eq!((first.state, first.failures, first.failovers), (State::Starting, 0, 0), "it was not asked");

    two.b.gone.store(true, SeqCst);
    two.await_states(State::Starting, State::Down);
    thread::scope(|scope| {
        let signature = scope.spawn(|| two.sign());
        two.a.hangs_in_open.store(false, SeqCst);
        assert_eq!(signature.join().unwrap(), Ok(()));
    });
    assert_eq!((two.signed(), two.pool.observer()()[1].failures), ((1, 10), 0), "one that is down was not asked");
}

#[test]
fn a_member_that_hangs_when_it_is_opened_is_given_up_too() {
    let two = Two::impatient(|a, b| {
        a.hangs_in_open.store(true, SeqCst);
        b.gone.store(true, SeqCst);
    });
    assert_eq!(two.sign(), Err(CKR_DEVICE_ERROR));
    two.await_states(State::Down, State::Down);
    two.b.gone.store(false, SeqCst);
    two.await_states(State::Down, State::Up);
    let start = Instant::now();
    (0..100).for_each(|_| two.sign().unwrap());
    assert!(start.elapsed() < 90 * TIMEOUT, "{:?}: each waited for it", start.elapsed());
}

/// Nobody asks it, for the other is up: its status tells it all the same.
#[test]
fn a_member_that_hangs_when_it_is_opened_is_down_when_its_time_is_over() {
    let two = Two::impatient(|a, _| a.hangs_in_open.store(true, SeqCst));
    two.await_states(State::Down, State::Up);
    assert_eq!(two.pool.observer()()[0].last_error, "no answer in 1000 ms: CKR_DEVICE_ERROR (0x30)");
    two.a.hangs_in_open.store(false, SeqCst);
    two.await_states(State::Up, State::Up);
    until("its sessions are open", || two.pool.observer()()[0].sessions == 2);
    assert_eq!(two.a.opened.load(SeqCst), 2, "what was at it went on with it");
}

/// Nobody asks it for a signature.
#[test]
fn an_idle_member_that_hangs_is_down_when_a_check_has_taken_too_long() {
    let two = Two::impatient(|_, _| {});
    two.await_states(State::Up, State::Up);
    two.a.hangs.store(true, SeqCst);
    two.await_states(State::Down, State::Up);
    two.sign().unwrap();
    let first = &two.pool.observer()()[0];
    assert_eq!(first.last_error, "no answer to a check in 1250 ms: CKR_DEVICE_ERROR (0x30)");
    assert_eq!(
        (two.signed(), first.failures, first.failovers),
        ((0, 1), 0, 0),
        "the first signature did not pay for it"
    );
    two.a.hangs.store(false, SeqCst);
    until("it signs again", || {
        two.sign().unwrap();
        two.signed().0 > 0
    });
}

#[test]
fn a_check_that_hangs_alone_is_no_sign_of_a_member_that_hangs() {
    let two = Two::unchecked(|_, _| {});
    two.await_states(State::Up, State::Up);
    let member = &two.pool.members()[0];
    let ready = || until("both sessions wait", || member.ready() == 2);
    ready();
    let before = two.a.checked.load(SeqCst);
    member.check_hangs();
    assert_eq!(member.state(), State::Up);
    until("another is asked", || two.a.checked.load(SeqCst) == before + 1);
    ready();
    assert_eq!(member.state(), State::Up);

    two.a.hangs.store(true, SeqCst);
    member.check_hangs();
    until("another is asked", || two.a.hanging.load(SeqCst) == 1);
    until("it is down: that one hangs as well", || member.state() == State::Down);
    assert_eq!(member.status().last_error, "no answer to a check in 1250 ms: CKR_DEVICE_ERROR (0x30)");
}

/// A login may take longer than a check.
#[test]
fn a_session_that_is_opened_anew_by_a_check_takes_as_long_as_it_likes() {
    let two = Two::impatient(|_, _| {});
    // A slow machine may take as long for a check by itself.
    until("it is up before, after and meanwhile", || {
        two.await_states(State::Up, State::Up);
        until("its sessions are open", || two.a.sessions.load(SeqCst) == 2);
        let since = two.pool.observer()()[0].since;
        two.a.hangs_in_open.store(true, SeqCst);
        two.a.generation.fetch_add(1, SeqCst);
        until("its sessions are closed", || two.a.sessions.load(SeqCst) == 0);
        thread::sleep(2 * TIMEOUT);
        two.a.hangs_in_open.store(false, SeqCst);
        until("its sessions are open again", || two.a.sessions.load(SeqCst) == 2);
        two.pool.observer()()[0].since == since
    });
}

#[test]
fn a_check_that_is_slow_takes_no_member_down() {
    let two = Two::impatient(|_, _| {});
    let is_as_it_was_after_slow_checks = || {
        two.await_states(State::Up, State::Up);
        until("its sessions are open", || two.pool.observer()()[0].sessions == 2);
        let before = two.pool.observer()()[0].clone();
        two.a.hangs.store(true, SeqCst);
        until("both sessions are checked", || two.a.hanging.load(SeqCst) == 2);
        thread::sleep(TIMEOUT); // a quarter more is too long
        two.a.hangs.store(false, SeqCst);
        until("they are answered", || two.a.hanging.load(SeqCst) == 0);
        two.pool.observer()()[0] == before
    };
    for _ in 0..3 {
        // A slow machine may take too long by itself.
        until("up, since then, and nothing failed", is_as_it_was_after_slow_checks);
    }
}

/// A call into a device that was pulled out may never return, though the device is back.
#[test]
fn a_member_is_up_again_though_the_first_that_tried_it_hangs() {
    let two = Two::wide();
    two.await_states(State::Up, State::Up);
    two.a.opens_to_hang.store(1, SeqCst);
    two.a.gone.store(true, SeqCst);
    until("it hangs", || two.a.opens_hanging.load(SeqCst) == 1);
    two.a.gone.store(false, SeqCst);
    two.await_states(State::Up, State::Up);
    two.a_signs();
    assert_eq!(two.signed(), (1, 0));
}

/// Without it the member would be lost until the end of the program.
#[test]
fn where_call_after_call_hangs_a_session_is_left_for_who_asks() {
    let two = Two::wide();
    two.await_states(State::Up, State::Up);
    two.a.opens_to_hang.store(usize::MAX, SeqCst);
    two.a.gone.store(true, SeqCst);
    until("two hang", || two.a.opens_hanging.load(SeqCst) == 2);
    thread::sleep(4 * TIMEOUT); // longer than a third would wait
    assert_eq!(two.a.opens_hanging.load(SeqCst), 2);
    two.a.opens_to_hang.store(0, SeqCst);
    two.a.gone.store(false, SeqCst);
    two.a_signs();
    assert_eq!(two.signed(), (1, 0));
}

/// A library may do one thing at a time, and a key take it long.
#[test]
fn a_member_that_makes_a_key_is_not_down_because_its_checks_wait() {
    let two = Two::impatient(|_, _| {});
    let make = |token: Arc<Fake>| {
        move |_: &mut dyn Session| {
            token.hangs.store(true, SeqCst);
            until("the other session is checked", || token.hanging.load(SeqCst) == 1);
            thread::sleep(2 * TIMEOUT);
            token.hangs.store(false, SeqCst);
            Ok(())
        }
    };
    // A slow machine may take as long for a check by itself.
    until("it is up before, after and meanwhile", || {
        two.await_states(State::Up, State::Up);
        let since = two.pool.observer()()[0].since;
        two.pool.members()[0].call(Duration::from_secs(300), make(two.a.clone())).unwrap();
        two.pool.observer()()[0].since == since
    });
}

/// A login may take longer than a signature may. Who asks meanwhile waits for it, as long as for a signature.
#[test]
fn a_member_that_has_yet_to_begin_is_waited_for_and_does_not_refuse_at_once() {
    let two = Two::impatient(|a, b| {
        a.hangs_in_open.store(true, SeqCst);
        b.gone.store(true, SeqCst);
    });
    two.await_states(State::Down, State::Down);
    assert_eq!(two.sign(), Err(CKR_DEVICE_ERROR));
    assert_eq!(two.pool.observer()()[0].last_error, "no answer in 1000 ms: CKR_DEVICE_ERROR (0x30)");
    two.a.hangs_in_open.store(false, SeqCst);
    two.await_states(State::Up, State::Down);
    two.a_signs();
}

#[test]
fn a_lost_login_is_made_good_on_the_same_member() {
    let two = Two::new();
    two.await_states(State::Up, State::Up);
    two.sign().unwrap();
    two.a.generation.fetch_add(1, SeqCst);
    two.sign().unwrap();
    assert_eq!(two.signed(), (2, 0));
}

#[test]
fn a_handle_that_is_no_longer_valid_is_searched_again() {
    let two = Two::new();
    two.await_states(State::Up, State::Up);
    two.sign().unwrap();
    *lock(&two.a.next_error) = Some(CKR_KEY_HANDLE_INVALID);
    two.sign().unwrap();
    assert_eq!(two.signed(), (2, 0));
}

/// As with an hsmd that has as many connections as it may. Nobody else makes what it does not.
#[test]
fn a_member_without_room_for_all_sessions_signs_with_those_that_it_has() {
    let mut config = parse(CONFIG);
    config.members.truncate(1);
    config.members[0].sessions = 4;
    let one = Two::start(config, NEVER, |a, _| a.room.store(1, SeqCst));
    until("all sessions were asked for", || one.a.asked.load(SeqCst) == 4);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..25).for_each(|_| assert_eq!(one.sign(), Ok(()))));
        }
    });
    let status = &one.pool.observer()()[0];
    assert_eq!((status.state, status.sessions, status.signatures, status.failures), (State::Up, 1, 200, 0));
    assert_eq!(one.a.asked.load(SeqCst), 4, "who was refused one does not ask again for each signature");
}

#[test]
fn a_session_that_cannot_be_opened_does_not_end_those_that_are() {
    for code in [CKR_SESSION_COUNT, CKR_DEVICE_ERROR, CKR_SESSION_CLOSED] {
        let two = Two::with(CONFIG, |a, _| a.room.store(1, SeqCst));
        two.await_states(State::Up, State::Up);
        let before = two.pool.observer()()[0].clone();
        *lock(&two.a.next_open_error) = Some(code);
        until("it fails", || lock(&two.a.next_open_error).is_none());
        two.a.room.store(0, SeqCst);
        until("it is open at last", || two.a.sessions.load(SeqCst) == 2);
        let after = &two.pool.observer()()[0];
        assert_eq!((after.since, after.last_error.as_str()), (before.since, ""), "{code:#x}: it was up all the time");
        assert_eq!(two.a.opened.load(SeqCst), 2, "{code:#x}");
    }
}

/// It is not tried with each of the others' sessions: the token would lock itself.
#[test]
fn a_pin_that_is_refused_when_one_more_session_is_opened_takes_the_member_down() {
    let two = Two::with(CONFIG, |a, _| a.room.store(1, SeqCst));
    two.await_states(State::Up, State::Up);
    *lock(&two.a.next_open_error) = Some(CKR_PIN_INCORRECT);
    until("it is down", || two.pool.observer()()[0].last_error.contains("CKR_PIN_INCORRECT"));
}

#[test]
fn an_error_of_the_request_is_the_callers() {
    let two = Two::new();
    two.await_states(State::Up, State::Up);
    for code in [CKR_DATA_LEN_RANGE, CKR_DATA_INVALID] {
        *lock(&two.a.next_error) = Some(code);
        assert_eq!(two.sign(), Err(code));
    }
    assert_eq!(two.signed(), (0, 0), "the other was not asked");
    assert_eq!(two.pool.states()[0].1, State::Up);
}

/// Its key was restored without the right to sign, or its firmware has dropped a mechanism.
#[test]
fn what_one_member_cannot_do_another_may() {
    let two = Two::new();
    two.await_states(State::Up, State::Up);
    let unfit = [
        CKR_FUNCTION_NOT_SUPPORTED,
        CKR_KEY_SIZE_RANGE,
        CKR_KEY_TYPE_INCONSISTENT,
        CKR_KEY_FUNCTION_NOT_PERMITTED,
        CKR_MECHANISM_INVALID,
        CKR_MECHANISM_PARAM_INVALID,
    ];
    for (i, code) in unfit.into_iter().enumerate() {
        *lock(&two.a.next_error) = Some(code);
        two.sign().unwrap();
        assert_eq!(two.signed(), (0, i + 1));
    }
    let first = &two.pool.observer()()[0];
    assert_eq!((first.state, first.failures), (State::Up, 6), "it is counted, and keeps being asked");
}

#[test]
fn what_no_member_can_do_is_answered_as_the_first_one_did() {
    let two = Two::new();
    two.await_states(State::Up, State::Up);
    *lock(&two.a.next_error) = Some(CKR_MECHANISM_INVALID);
    *lock(&two.b.next_error) = Some(CKR_KEY_FUNCTION_NOT_PERMITTED);
    assert_eq!(two.sign(), Err(CKR_MECHANISM_INVALID));
    *lock(&two.a.next_error) = Some(CKR_MECHANISM_PARAM_INVALID);
    *lock(&two.b.next_error) = Some(CKR_MECHANISM_INVALID);
    assert_eq!(two.sign(), Err(CKR_MECHANISM_PARAM_INVALID));
    two.b.without_keys.store(true, SeqCst);
    two.b.generation.fetch_add(1, SeqCst);
    *lock(&two.a.next_error) = Some(CKR_KEY_TYPE_INCONSISTENT);
    assert_eq!(two.sign(), Err(CKR_KEY_TYPE_INCONSISTENT), "the other has not the key");
}

#[test]
fn a_member_without_the_key_stays_up() {
    let two = Two::with(CONFIG, |a, _| a.without_keys.store(true, SeqCst));
    two.await_states(State::Up, State::Up);
    (0..3).for_each(|_| two.sign().unwrap());
    assert_eq!(two.signed(), (0, 3));
    assert_eq!(two.pool.states()[0].1, State::Up);
}

#[test]
fn a_member_whose_key_is_gone_is_down_until_it_is_asked_anew() {
    let config = CONFIG.replace("[member a]", "[member emptied]");
    let two = Two::with(&config, |_, _| {});
    two.await_states(State::Up, State::Up);
    two.sign().unwrap();
    two.a.without_keys.store(true, SeqCst);
    two.a.generation.fetch_add(1, SeqCst);
    two.sign().unwrap();
    assert_eq!(two.signed(), (1, 1));
    let told = lock(&LOG).iter().any(|m| m.starts_with("member emptied is down: no private key with label \"web\""));
    assert!(told);
    two.a.without_keys.store(false, SeqCst);
    two.await_states(State::Up, State::Up);
    two.sign().unwrap();
    assert_eq!(two.signed(), (2, 1));
}

#[test]
fn with_all_members_gone_a_signature_fails_soon_and_works_when_one_is_back() {
    let two = Two::with(CONFIG, |a, b| [a, b].iter().for_each(|f| f.gone.store(true, SeqCst)));
    let start = Instant::now();
    (0..10).for_each(|_| assert_eq!(two.sign(), Err(CKR_DEVICE_ERROR)));
    assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
    two.b.gone.store(false, SeqCst);
    two.sign().expect("whoever is down is asked when nobody else is left");
}

/// The first is lost and comes back while a signature waits for the second, which is then lost too.
#[test]
fn a_member_that_came_back_meanwhile_is_asked_again() {
    let two = Two::new();
    two.await_states(State::Up, State::Up);
    *lock(&two.a.next_error) = Some(CKR_DEVICE_REMOVED);
    two.b.hangs.store(true, SeqCst);
    thread::scope(|scope| {
        let signature = scope.spawn(|| two.sign());
        let deadline = Instant::now() + Duration::from_secs(60);
        while two.pool.observer()()[0].failovers == 0 {
            assert!(Instant::now() < deadline, "the first member was not asked");
            thread::sleep(Duration::from_millis(1));
        }
        while two.pool.states()[0].1 != State::Up {
            assert!(Instant::now() < deadline, "the first member did not come back");
            thread::sleep(Duration::from_millis(1));
        }
        two.b.gone.store(true, SeqCst);
        two.b.hangs.store(false, SeqCst);
        assert_eq!(signature.join().unwrap(), Ok(()));
    });
    assert_eq!(two.signed(), (1, 0));
}

#[test]
fn a_failure_is_told_once_and_so_is_its_end() {
    let config = CONFIG.replace("[member a]", "[member told]");
    let two = Two::with(&config, |a, _| a.gone.store(true, SeqCst));
    two.await_states(State::Down, State::Up);
    thread::sleep(Duration::from_millis(100)); // several attempts
    two.a.gone.store(false, SeqCst);
    two.await_states(State::Up, State::Up);
    let told: Vec<_> = lock(&LOG).iter().filter(|m| m.starts_with("member told ")).cloned().collect();
    assert_eq!(told, ["member told is down: open: CKR_DEVICE_REMOVED (0x32)", "member told is up again"]);
}

/// Standard error may be a pipe that nobody reads.
#[test]
fn a_message_that_nobody_takes_holds_up_no_signature() {
    static SHUT: AtomicBool = AtomicBool::new(true);
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    fn wait_at_the_gate(message: &str) {
        lock(&TOLD).push(message.into());
        let start = Instant::now(); // so that the test ends in any case
        while SHUT.load(SeqCst) && start.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(1));
        }
    }
    let two = Two::telling(parse(CONFIG), OFTEN, |_, _| {}, wait_at_the_gate);
    two.await_states(State::Up, State::Up);
    until("its sessions are open", || two.pool.observer()()[0].sessions == 2);
    let start = Instant::now();
    two.a.gone.store(true, SeqCst);
    until("it is told", || lock(&TOLD).len() == 1);
    two.await_states(State::Down, State::Up);
    two.sign().unwrap();
    two.a.gone.store(false, SeqCst);
    two.await_states(State::Up, State::Up);
    assert!(start.elapsed() < Duration::from_secs(50), "{:?}: it waited at the gate", start.elapsed());
    assert_eq!((two.signed(), lock(&TOLD).len()), ((0, 1), 1));
    SHUT.store(false, SeqCst);
    until("the rest is told, in its order", || lock(&TOLD).last().is_some_and(|last| last == "member a is up again"));
    assert_eq!(lock(&TOLD)[0], "member a is down: check: CKR_DEVICE_REMOVED (0x32)");
}

#[test]
fn a_member_counts_its_signatures_and_what_became_of_the_others() {
    let two = Two::new();
    two.await_states(State::Up, State::Up);
    let observe = two.pool.observer();
    let before = observe();
    assert_eq!((before[0].signatures, before[0].last_error.as_str()), (0, ""));
    (0..3).for_each(|_| two.sign().unwrap());
    *lock(&two.a.next_error) = Some(CKR_DATA_INVALID);
    two.sign().unwrap_err();
    *lock(&two.a.next_error) = Some(CKR_DEVICE_REMOVED);
    two.sign().unwrap();
    let (a, b) = (&observe()[0], &observe()[1]);
    assert_eq!((a.name.as_str(), a.signatures, a.failures, a.failovers), ("a", 3, 1, 1));
    assert_eq!(a.last_error, "sign: CKR_DEVICE_REMOVED (0x32)");
    assert!(a.since > before[0].since, "its state has changed");
    assert_eq!((a.latency.count, a.latency.sum >= a.latency.max, a.latency.max > Duration::ZERO), (3, true, true));
    assert_eq!((b.signatures, b.failures, b.failovers, b.last_error.as_str()), (1, 0, 0, ""));
    two.await_states(State::Up, State::Up);
    two.b.gone.store(true, SeqCst);
    two.a.gone.store(true, SeqCst);
    two.sign().unwrap_err();
    let status = observe();
    assert_eq!(status[0].failovers + status[1].failovers, 2, "the last of them had nobody left");
}
