//! Signatures under OpenSSL's ASYNC jobs: the thread goes on while a member works, and nobody waits for another's.

use super::{
    config,
    pool::{until, Two, TIMEOUT},
};
use crate::{
    asynchronous::{self, GUARD, STACK},
    library::lock,
    member::State,
    token::{Mechanism, Request},
};
use cryptoki_sys::*;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::{
    ffi::{c_int, c_void},
    process::Command,
    ptr::null_mut,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        OnceLock,
    },
    time::{Duration, Instant},
};

type Start = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_void,
    *mut c_int,
    unsafe extern "C" fn(*mut c_void) -> c_int,
    *mut c_void,
    usize,
) -> c_int;

/// What a program with libcrypto has.
struct Openssl {
    start_job: Start,
    new_context: unsafe extern "C" fn() -> *mut c_void,
    free_context: unsafe extern "C" fn(*mut c_void),
    descriptors: unsafe extern "C" fn(*mut c_void, *mut c_int, *mut usize) -> c_int,
    block_pause: unsafe extern "C" fn(),
    unblock_pause: unsafe extern "C" fn(),
}

const PAUSED: c_int = 2;
const FINISHED: c_int = 3;

/// Makes this a program with libcrypto, as HAProxy is one, that has loaded the module.
fn openssl() -> &'static Openssl {
    static OPENSSL: OnceLock<Openssl> = OnceLock::new();
    OPENSSL.get_or_init(|| {
        // SAFETY: it is no module that does anything when it is loaded, and these are its functions' types.
        let openssl = unsafe {
            let library = Library::open(Some("libcrypto.so.3"), RTLD_NOW | RTLD_GLOBAL).expect("install libssl3t64");
            let openssl = Openssl {
                start_job: *library.get(b"ASYNC_start_job\0").unwrap(),
                new_context: *library.get(b"ASYNC_WAIT_CTX_new\0").unwrap(),
                free_context: *library.get(b"ASYNC_WAIT_CTX_free\0").unwrap(),
                descriptors: *library.get(b"ASYNC_WAIT_CTX_get_all_fds\0").unwrap(),
                block_pause: *library.get(b"ASYNC_block_pause\0").unwrap(),
                unblock_pause: *library.get(b"ASYNC_unblock_pause\0").unwrap(),
            };
            std::mem::forget(library);
            openssl
        };
        asynchronous::prepare().unwrap();
        openssl
    })
}

/// A connection: its wait context lives as long as it, and its handshakes are jobs.
struct Connection(*mut c_void);

impl Connection {
    fn new() -> Connection {
        // SAFETY: it takes nothing.
        Connection(unsafe { (openssl().new_context)() })
    }

    fn descriptors(&self) -> Vec<c_int> {
        let (mut fds, mut count) = ([-1; 4], 0);
        // SAFETY: it has one descriptor at most.
        unsafe {
            assert_eq!((openssl().descriptors)(self.0, null_mut(), &mut count), 1);
            assert_eq!((openssl().descriptors)(self.0, fds.as_mut_ptr(), &mut count), 1);
        }
        fds[..count].to_vec()
    }

    /// Whether its descriptor says within some time that the job can go on.
    fn woken(&self, time: Duration) -> bool {
        let fd = self.descriptors()[0];
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor.
        unsafe { libc::poll(&mut poll, 1, time.as_millis() as c_int) == 1 }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: no job uses it any more.
        unsafe { (openssl().free_context)(self.0) };
    }
}

/// A job that calls a function of no arguments.
struct Job<'a> {
    connection: &'a Connection,
    job: *mut c_void,
    code: c_int,
}

type Body<'b> = &'b (dyn Fn() + Sync);

unsafe extern "C" fn call(body: *mut c_void) -> c_int {
    (*body.cast::<Body>())();
    1
}

impl<'a> Job<'a> {
    /// Runs it until it pauses or is done.
    fn start(connection: &'a Connection, body: Body) -> Job<'a> {
        let mut job = Job { connection, job: null_mut(), code: 0 };
        job.run(body);
        job
    }

    fn run(&mut self, mut body: Body) {
        let (mut result, argument) = (0, (&raw mut body).cast());
        // SAFETY: OpenSSL copies the argument; what it refers to lives as long as the caller waits for the job.
        self.code = unsafe {
            (openssl().start_job)(&mut self.job, self.connection.0, &mut result, call, argument, size_of::<Body>())
        };
    }

    /// Goes on whenever it is woken, until it is done.
    fn finish(mut self, body: Body) {
        while self.code == PAUSED {
            assert!(self.connection.woken(Duration::from_secs(180)), "the job is never woken");
            self.run(body);
        }
        assert_eq!(self.code, FINISHED);
    }
}

fn request() -> Request {
    Request { key: config().keys[0].clone(), mechanism: Mechanism::Ecdsa, data: vec![1; 32] }
}

#[test]
fn two_jobs_of_one_thread_wait_for_the_same_member_and_key() {
    let two = Two::new();
    let (a, b) = (Connection::new(), Connection::new());
    two.await_states(State::Up, State::Up);
    two.a.hangs.store(true, SeqCst);
    let body = || assert_eq!(two.sign(), Ok(()));
    let (first, second) = (Job::start(&a, &body), Job::start(&b, &body));
    assert_eq!((first.code, second.code), (PAUSED, PAUSED), "the thread goes on");
    two.a.hangs.store(false, SeqCst);
    second.finish(&body);
    first.finish(&body);
    assert_eq!(two.signed(), (2, 0));
}

#[test]
fn more_jobs_than_sessions_wait_in_a_queue() {
    let two = Two::new();
    let connections: Vec<_> = (0..20).map(|_| Connection::new()).collect();
    two.await_states(State::Up, State::Up);
    let body = || assert_eq!(two.sign(), Ok(()));
    let jobs: Vec<_> = connections.iter().map(|c| Job::start(c, &body)).collect();
    jobs.into_iter().for_each(|job| job.finish(&body));
    assert_eq!(two.signed(), (20, 0));
}

#[test]
fn a_paused_job_goes_to_the_next_member_when_its_time_is_over() {
    let two = Two::unchecked(|_, _| {});
    let connection = Connection::new();
    two.await_states(State::Up, State::Up);
    two.a.hangs.store(true, SeqCst);
    let body = || assert_eq!(two.sign(), Ok(()));
    let start = Instant::now();
    Job::start(&connection, &body).finish(&body);
    assert!(start.elapsed() >= TIMEOUT, "{:?}: the time-out", start.elapsed());
    assert_eq!(two.signed(), (0, 1));
}

#[test]
fn a_connection_keeps_one_descriptor_until_it_ends() {
    let two = Two::new();
    let connection = Connection::new();
    two.await_states(State::Up, State::Up);
    let body = || assert_eq!(two.sign(), Ok(()));
    assert_eq!(connection.descriptors(), []);
    Job::start(&connection, &body).finish(&body);
    let fds = connection.descriptors();
    let link = format!("/proc/self/fd/{}", fds[0]);
    for _ in 0..5 {
        Job::start(&connection, &body).finish(&body);
        assert_eq!(connection.descriptors(), fds);
        assert!(!connection.woken(Duration::ZERO), "nothing wakes whoever waits next");
    }
    assert_eq!(std::fs::read_link(&link).unwrap().to_str(), Some("anon_inode:[eventfd]"));
    // Whether the number is given to something else at once is up to other tests: the file behind it is what goes.
    // SAFETY: a second reference to the same eventfd.
    let copy = unsafe { libc::dup(fds[0]) };
    assert!(copy >= 0);
    drop(connection);
    let same = unsafe { libc::syscall(libc::SYS_kcmp, libc::getpid(), libc::getpid(), 0, copy, fds[0]) };
    assert_ne!(same, 0, "it is closed with the connection");
    // SAFETY: our own.
    unsafe { libc::close(copy) };
}

#[test]
fn a_job_that_is_woken_for_nothing_waits_on() {
    let two = Two::new();
    let connection = Connection::new();
    two.await_states(State::Up, State::Up);
    two.a.hangs.store(true, SeqCst);
    let body = || assert_eq!(two.sign(), Ok(()));
    let mut job = Job::start(&connection, &body);
    for _ in 0..10 {
        assert_eq!(job.code, PAUSED);
        job.run(&body);
    }
    two.a.hangs.store(false, SeqCst);
    job.finish(&body);
    assert_eq!(two.signed(), (1, 0));
}

/// How long this thread had a processor.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the answer.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// OpenSSL says that a job was paused and goes on, though it never was.
#[test]
fn where_pauses_are_forbidden_the_thread_waits_and_does_not_spin() {
    const WAITS: Duration = Duration::from_secs(1);
    let two = Two::new();
    let connection = Connection::new();
    two.await_states(State::Up, State::Up);
    two.a.hangs.store(true, SeqCst);
    until("both sessions are checked", || two.a.hanging.load(SeqCst) == 2);
    // SAFETY: they take nothing.
    let body = || unsafe {
        (openssl().block_pause)();
        assert_eq!(two.sign(), Ok(()));
        (openssl().unblock_pause)();
    };
    std::thread::scope(|scope| {
        let before = (Instant::now(), processor_time()); // it may take long until this thread goes on
        scope.spawn(|| {
            std::thread::sleep(WAITS);
            two.a.hangs.store(false, SeqCst);
        });
        assert_eq!(Job::start(&connection, &body).code, FINISHED);
        let (waited, worked) = (before.0.elapsed(), processor_time() - before.1);
        assert!(waited >= WAITS && worked < waited / 10, "{worked:?} of {waited:?} it had a processor");
    });
}

#[test]
fn an_error_of_the_request_reaches_a_paused_job() {
    let two = Two::new();
    let connection = Connection::new();
    two.await_states(State::Up, State::Up);
    *lock(&two.a.next_error) = Some(CKR_DATA_LEN_RANGE);
    let body = || assert_eq!(two.pool.sign(request()).unwrap_err().code, CKR_DATA_LEN_RANGE);
    Job::start(&connection, &body).finish(&body);
    assert_eq!(two.signed(), (0, 0));
}

/// Uses so much of the stack below an address. The frames are small: large ones would be probed.
#[inline(never)]
fn deep(top: usize, bytes: usize) -> usize {
    let frame = std::hint::black_box(&mut [0u8; 256]).as_ptr() as usize;
    match top - frame < bytes {
        true => deep(top, bytes) + 1,
        false => 0,
    }
}

fn here() -> usize {
    (&raw const *std::hint::black_box(&mut 0u8)) as usize
}

#[test]
fn a_job_may_use_most_of_a_mebibyte_of_stack() {
    let connection = Connection::new();
    let body = || assert_ne!(deep(here(), STACK - 65536), 0);
    assert_eq!(Job::start(&connection, &body).code, FINISHED);
}

/// Where the stack of a job begins, for the handler.
static TOP: AtomicUsize = AtomicUsize::new(0);
const IN_GUARD: c_int = 42;

extern "C" fn faulted(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel says where it was. The process ends without tidying up.
    unsafe {
        let depth = TOP.load(SeqCst) - (*info).si_addr() as usize;
        libc::_exit(if (STACK - 65536..STACK + GUARD).contains(&depth) { IN_GUARD } else { 1 });
    }
}

#[test]
fn a_job_that_uses_more_hits_the_guard_and_nothing_else() {
    const NAME: &str = "tests::asynchronous::a_job_that_uses_more_hits_the_guard_and_nothing_else";
    const CHILD: &str = "QTLS_TEST_OVERFLOWS";
    if std::env::var_os(CHILD).is_none() {
        let me = std::env::current_exe().unwrap();
        let status = Command::new(me).args([NAME, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert_eq!(status.status.code(), Some(IN_GUARD), "{}", String::from_utf8_lossy(&status.stderr));
        return;
    }
    // SAFETY: a stack for the handler, which nothing else uses.
    unsafe {
        let stack = Box::leak(vec![0u8; 65536].into_boxed_slice());
        let stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        assert_eq!(libc::sigaltstack(&stack, null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = faulted as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, null_mut()), 0);
    }
    let connection = Connection::new();
    let body = || {
        let top = here();
        TOP.store(top, SeqCst);
        assert_ne!(deep(top, 2 * STACK), 0);
    };
    Job::start(&connection, &body);
    unreachable!("it has a larger stack than it was given");
}

/// Starts a job whose connection is freed before it is done, and which is never resumed. (HAProxy frees it too, and resumes
/// no job of it; but when the job's event is set, and not when the client goes.)
fn leave(body: Body) {
    let connection = Connection::new();
    assert_eq!(Job::start(&connection, body).code, PAUSED);
}

#[test]
fn a_member_that_hangs_is_down_though_all_clients_have_left() {
    let two = Two::unchecked(|_, b| b.gone.store(true, SeqCst));
    two.await_states(State::Up, State::Down);
    two.a.hangs.store(true, SeqCst);
    let ask = || {
        let _ = two.sign();
    };
    until("it is down", || {
        // A slow machine may begin the first so late that the queue took its time: then others are begun earlier.
        let connection = Connection::new();
        Job::start(&connection, &ask);
        std::thread::sleep(TIMEOUT / 4);
        two.pool.states()[0].1 == State::Down
    });
    two.b.gone.store(false, SeqCst);
    two.await_states(State::Down, State::Up);
    let before = two.pool.observer()();
    let sign = || assert_eq!(two.sign(), Ok(()));
    let connection = Connection::new();
    Job::start(&connection, &sign).finish(&sign);
    assert_eq!(two.signed(), (0, 1));
    let after = two.pool.observer()();
    assert_eq!(after[0].failovers, before[0].failovers, "the next one was not held up by it");
}

#[test]
fn what_waits_for_clients_that_left_is_not_signed() {
    let two = Two::new();
    two.await_states(State::Up, State::Up);
    two.a.hangs.store(true, SeqCst);
    until("both sessions are checked", || two.a.hanging.load(SeqCst) == 2);
    let sign = || assert_eq!(two.sign(), Ok(()));
    (0..20).for_each(|_| leave(&sign));
    let connection = Connection::new();
    let job = Job::start(&connection, &sign);
    two.a.hangs.store(false, SeqCst);
    job.finish(&sign);
    assert_eq!(two.signed(), (1, 0), "the one that stayed, which came last");
    let first = &two.pool.observer()()[0];
    assert_eq!((first.state, first.signatures, first.failures), (State::Up, 1, 0), "nobody did anything wrong");
}

/// Time-outs and signatures come at about the same time. Each job gets one of them, and nothing wakes whoever waits next in its
/// context.
#[test]
fn a_job_whose_time_is_over_just_when_it_is_signed_is_answered_once() {
    const TIME: Duration = Duration::from_millis(10);
    let two = Two::with_timeout(TIME, |_, b| b.gone.store(true, SeqCst));
    two.await_states(State::Up, State::Down);
    let (done, made, connection) = (AtomicBool::new(false), AtomicUsize::new(0), Connection::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now(); // the other thread may panic
            while !done.load(SeqCst) && start.elapsed() < Duration::from_secs(60) {
                two.a.hangs.fetch_xor(true, SeqCst);
                std::thread::sleep(TIME);
            }
        });
        let sign = || {
            made.fetch_add(two.sign().is_ok() as usize, SeqCst);
        };
        for _ in 0..100 {
            Job::start(&connection, &sign).finish(&sign);
            assert!(!connection.woken(Duration::ZERO), "it was answered already");
        }
        done.store(true, SeqCst);
    });
    assert!(made.load(SeqCst) <= two.signed().0, "{made:?} of {:?}", two.signed());
}

#[test]
fn the_stack_of_a_job_that_is_abandoned_is_given_back() {
    let two = Two::new();
    two.await_states(State::Up, State::Up);
    two.a.hangs.store(true, SeqCst);
    let (before, on) = (asynchronous::abandoned(), AtomicUsize::new(0));
    let sign = || {
        on.store(here(), SeqCst);
        assert_eq!(two.sign(), Ok(()));
    };
    for _ in 0..3 {
        let connection = Connection::new();
        assert_eq!(Job::start(&connection, &sign).code, PAUSED);
        assert!(connection.descriptors()[0] >= 0);
        let stack = on.load(SeqCst);
        assert_eq!((asynchronous::given_back(stack), takes_memory(stack)), (false, true), "it goes on there");
        drop(connection); // as HAProxy does it when the client has gone
        assert_eq!((asynchronous::given_back(stack), takes_memory(stack)), (true, false));
    }
    assert!(asynchronous::abandoned() >= before + 3);
    two.a.hangs.store(false, SeqCst);
    let connection = Connection::new();
    Job::start(&connection, &sign).finish(&sign);
}

/// Whether the page of an address does.
fn takes_memory(address: usize) -> bool {
    let mut answer = 0u8;
    // SAFETY: nothing of the page is read, and there is a place for the answer.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        assert_eq!(libc::mincore((address & !(page - 1)) as *mut c_void, page, &mut answer), 0);
    }
    answer & 1 == 1
}
