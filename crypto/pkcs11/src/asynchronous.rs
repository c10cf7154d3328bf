//! Waiting for an answer, in either of two ways: a thread sleeps, or a job of OpenSSL's ASYNC is paused and the thread goes on
//! with other connections.
//!
//! A paused job is woken by an eventfd in its wait context, which the program polls. There is one for each context, for as
//! long as that lives: programs keep descriptors that they were told of, and HAProxy ends itself when one that it polls is
//! reused. Nothing is locked while a job is paused, and nothing of the thread is kept: whoever runs next may be another job
//! of the same thread that wants the same member.

use crate::library::lock;
use libloading::os::unix::Library;
use std::{
    collections::{BTreeMap, VecDeque},
    ffi::{c_char, c_int, c_void},
    fs::File,
    io::{Read, Write},
    os::fd::FromRawFd,
    process,
    ptr::{null_mut, NonNull},
    sync::{
        atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering},
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
    },
    thread,
    time::{Duration, Instant},
};

type Allocate = unsafe extern "C" fn(*mut usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type Cleanup = unsafe extern "C" fn(*mut c_void, *const c_void, c_int, *mut c_void);

/// The functions of libcrypto that this takes.
#[derive(Clone, Copy)]
struct Libcrypto {
    current_job: unsafe extern "C" fn() -> *mut c_void,
    wait_context: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    descriptor: unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_int, *mut *mut c_void) -> c_int,
    set_descriptor: unsafe extern "C" fn(*mut c_void, *const c_void, c_int, *mut c_void, Cleanup) -> c_int,
    pause: unsafe extern "C" fn() -> c_int,
}

/// The program's own libcrypto: the first in the order in which the program itself looks names up. No library's, and none
/// at all in a program that has loaded it for a plugin alone.
static LIBCRYPTO: OnceLock<Option<Libcrypto>> = OnceLock::new();

fn load() -> Option<Libcrypto> {
    let program = Library::this();
    macro_rules! function {
        ($name:literal) => {
            // SAFETY: OpenSSL gives these names these types, since 1.1.0.
            *unsafe { program.get($name) }.ok()?
        };
    }
    Some(Libcrypto {
        current_job: function!(b"ASYNC_get_current_job\0"),
        wait_context: function!(b"ASYNC_get_wait_ctx\0"),
        descriptor: function!(b"ASYNC_WAIT_CTX_get_fd\0"),
        set_descriptor: function!(b"ASYNC_WAIT_CTX_set_wait_fd\0"),
        pause: function!(b"ASYNC_pause_job\0"),
    })
}

/// Looks for the program's libcrypto, and gives its jobs larger stacks. To be called before the first job. An error says why
/// they have OpenSSL's own.
pub fn prepare() -> Result<(), &'static str> {
    static STACKS: OnceLock<Result<(), &str>> = OnceLock::new();
    if LIBCRYPTO.get_or_init(load).is_none() {
        return Ok(());
    }
    // Not with the first job: HAProxy lets no thread start once it serves (RLIMIT_NPROC), and without the timer's, jobs cannot
    // be paused.
    Timer::of_process();
    *STACKS.get_or_init(|| {
        let program = Library::this();
        // SAFETY: OpenSSL gives this name this type.
        let set = unsafe { program.get::<unsafe extern "C" fn(Allocate, Free) -> c_int>(b"ASYNC_set_mem_functions\0") };
        let set = set.map_err(|_| "ASYNC jobs have stacks of 32 KiB: use OpenSSL 3.2 or later for larger ones")?;
        // SAFETY: both functions stay: the module is never unmapped.
        match unsafe { set(allocate_stack, free_stack) } {
            1 => Ok(()),
            _ => Err("ASYNC jobs have stacks of 32 KiB, for one has run already: load the module earlier"),
        }
    })
}

/// What a job may use of its stack. Only pages that it touched take memory.
pub const STACK: usize = 1 << 20;
/// Below it lies as much that nobody may touch: functions with large frames must not step over it. It is as wide as what
/// Linux keeps free below the stack of a program.
pub const GUARD: usize = 1 << 20;

/// The stacks of jobs.
struct Stacks {
    /// Where they begin, and which of all that there ever were they are.
    live: BTreeMap<usize, u64>,
    /// Stacks of abandoned jobs, which OpenSSL never gives back. They lie here some time before they are used again: should
    /// it do so one day, then at once.
    spare: VecDeque<usize>,
    number: u64,
}

static STACKS: Mutex<Stacks> = Mutex::new(Stacks { live: BTreeMap::new(), spare: VecDeque::new(), number: 0 });

const MOST_SPARE: usize = 64;

impl Stacks {
    /// The stack that an address is in, if it is one of ours.
    fn of(&self, address: usize) -> Option<(usize, u64)> {
        let (start, number) = self.live.range(..=address).next_back()?;
        (address - start < STACK).then_some((*start, *number))
    }

    /// Nothing of it is needed any more.
    fn abandon(&mut self, (start, number): (usize, u64)) {
        if self.live.get(&start) == Some(&number) {
            self.live.remove(&start);
            // SAFETY: the job on it never runs again. It reads as zeros from now on, and takes no memory.
            unsafe { libc::madvise(start as *mut c_void, STACK, libc::MADV_DONTNEED) };
            self.spare.push_back(start);
        }
    }
}

unsafe fn map_stack() -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let guard = libc::mmap(null_mut(), GUARD + STACK, libc::PROT_NONE, flags, -1, 0);
    if guard == libc::MAP_FAILED {
        return None;
    }
    let stack = guard.byte_add(GUARD);
    if libc::mprotect(stack, STACK, libc::PROT_READ | libc::PROT_WRITE) != 0 {
        libc::munmap(guard, GUARD + STACK);
        return None;
    }
    Some(stack as usize)
}

unsafe extern "C" fn allocate_stack(size: *mut usize) -> *mut c_void {
    let mut stacks = lock(&STACKS);
    let spare = if stacks.spare.len() > MOST_SPARE { stacks.spare.pop_front() } else { None };
    match spare.or_else(|| map_stack()) {
        Some(stack) if *size <= STACK => {
            *size = STACK;
            stacks.number += 1;
            let number = stacks.number;
            stacks.live.insert(stack, number);
            stack as *mut c_void
        }
        _ => null_mut(),
    }
}

unsafe extern "C" fn free_stack(stack: *mut c_void) {
    if lock(&STACKS).live.remove(&(stack as usize)).is_some() {
        libc::munmap(stack.byte_sub(GUARD), GUARD + STACK);
    }
}

/// A job whose wait context went while it was paused can never run again, and nobody gives back what it holds: its caller's
/// session, a handshake's buffers. HAProxy leaves one for each client that goes while its signature is made. So that
/// clients cannot use a program up, there may be only so many: after that, threads wait for signatures.
pub const MOST_ABANDONED: usize = 4096;

static ABANDONED: AtomicUsize = AtomicUsize::new(0);

/// Whether a stack with this address was given back by a job that was abandoned.
#[cfg(test)]
pub fn given_back(address: usize) -> bool {
    lock(&STACKS).spare.iter().any(|stack| (*stack..stack + STACK).contains(&address))
}

/// How many jobs were abandoned in this process.
pub fn abandoned() -> usize {
    ABANDONED.load(Ordering::Relaxed)
}

/// The most descriptors that the program can use, if that is less than the system's limit.
static DESCRIPTORS: AtomicU64 = AtomicU64::new(u64::MAX);

pub fn limit_descriptors(most: u64) {
    DESCRIPTORS.store(most, Ordering::Relaxed);
}

/// The number from which on descriptors are left to the program. HAProxy ends itself when a wait context has one that is
/// larger than its table, which it makes as large as the limit, or nearly so: some are kept for its connections.
fn descriptors() -> c_int {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the answer. Without one there is none for us.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let most = limit.rlim_cur.min(DESCRIPTORS.load(Ordering::Relaxed));
    (most - most / 16).saturating_sub(1).min(c_int::MAX as u64) as c_int
}

/// The eventfd of a wait context. It is open as long as the context lives: whoever else may write to it shares this value,
/// and the number behind it may be something else's afterwards.
#[derive(Default)]
struct Event(Mutex<Context>);

#[derive(Default)]
struct Context {
    file: Option<File>,
    set: bool,
    /// A job is paused in it, and on which stack, if it is one of ours.
    paused: Option<Option<(usize, u64)>>,
}

impl Event {
    fn new() -> Option<(Arc<Event>, c_int)> {
        // SAFETY: a descriptor of our own, or an error.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        // SAFETY: as above.
        let file = unsafe { File::from_raw_fd(fd) };
        let context = Context { file: Some(file), ..Context::default() };
        (fd < descriptors()).then(|| (Arc::new(Event(Mutex::new(context))), fd))
    }

    fn set(&self) {
        self.turn(true);
    }

    fn clear(&self) {
        self.turn(false);
    }

    /// Nothing is asked of the system for what is so already.
    fn turn(&self, on: bool) {
        let mut context = lock(&self.0);
        if context.set == on {
            return;
        }
        context.set = on;
        if let Some(file) = context.file.as_mut() {
            let _ = match on {
                true => file.write(&1u64.to_ne_bytes()),
                false => file.read(&mut [0; 8]),
            };
        }
    }

    fn pauses(&self, stack: Option<Option<(usize, u64)>>) {
        lock(&self.0).paused = stack;
    }

    fn closed(&self) -> bool {
        lock(&self.0).file.is_none()
    }

    fn close(&self) {
        let paused = {
            let mut context = lock(&self.0);
            context.file.take();
            context.paused.take()
        };
        let Some(stack) = paused else { return };
        if let Some(stack) = stack {
            lock(&STACKS).abandon(stack);
        }
        if ABANDONED.fetch_add(1, Ordering::Relaxed) + 1 == MOST_ABANDONED {
            crate::log(&format!(
                "{MOST_ABANDONED} clients left while their signatures were made, and what their jobs held is lost: threads \
                 wait for signatures from now on; reload the program"
            ));
        }
    }
}

/// The address tells our descriptor from others' in a wait context.
static KEY: c_char = 0;

/// The context goes. A job that was paused in it and is never woken may still have a reference.
unsafe extern "C" fn close_event(_: *mut c_void, _: *const c_void, _: c_int, event: *mut c_void) {
    Arc::from_raw(event.cast::<Event>().cast_const()).close();
}

/// A job that can be paused.
struct Pausable {
    libcrypto: Libcrypto,
    event: Arc<Event>,
}

impl Pausable {
    /// The job that the caller runs in, if it runs in one. Without a descriptor left for it the thread waits.
    fn current() -> Option<Pausable> {
        let libcrypto = (*LIBCRYPTO.get()?)?;
        if abandoned() >= MOST_ABANDONED {
            return None;
        }
        let key = (&raw const KEY).cast();
        // SAFETY: the job and its context stay as long as the caller runs in it. What the context holds under our key is an
        // Event, whose reference stays in it.
        unsafe {
            let job = NonNull::new((libcrypto.current_job)())?;
            let context = NonNull::new((libcrypto.wait_context)(job.as_ptr()))?.as_ptr();
            let (mut fd, mut event) = (-1, null_mut());
            if (libcrypto.descriptor)(context, key, &mut fd, &mut event) == 1 {
                let event = event.cast::<Event>().cast_const();
                Arc::increment_strong_count(event);
                return Some(Pausable { libcrypto, event: Arc::from_raw(event) });
            }
            let (event, fd) = Event::new()?;
            let theirs = Arc::into_raw(event.clone());
            if (libcrypto.set_descriptor)(context, key, fd, theirs.cast_mut().cast(), close_event) != 1 {
                drop(Arc::from_raw(theirs));
                return None;
            }
            Some(Pausable { libcrypto, event })
        }
    }

    /// Lets the thread go on with something else. It may be woken for nothing.
    fn pause(&self) -> bool {
        let here = 0u8;
        let stack = lock(&STACKS).of((&raw const here) as usize);
        self.event.pauses(Some(stack));
        // SAFETY: no lock is held here.
        let paused = unsafe { (self.libcrypto.pause)() == 1 };
        self.event.pauses(None);
        paused
    }
}

/// What is to happen when a time is over.
pub trait Alarm: Send + Sync {
    /// With nothing locked: it may be about to ring when it is cancelled. It must not block.
    fn ring(&self);
}

/// Names an alarm.
pub type AlarmId = (Instant, u64);

/// Gives up what paused jobs and hsmd wait for when its time is over: neither has a thread that could sleep until then, and a
/// job whose client left is never resumed.
pub struct Timer {
    process: u32,
    alarms: Mutex<Alarms>,
    changed: Condvar,
}

#[derive(Default)]
struct Alarms {
    by_time: BTreeMap<AlarmId, Arc<dyn Alarm>>,
    number: u64,
    /// When the thread looks again by itself. It sleeps on when an alarm is cancelled: most are, and their times are all as
    /// far away, so that it wakes once in such a time and not with each of them.
    looks: Option<Instant>,
}

impl Timer {
    /// The timer of this process, started when it is needed first: threads do not survive a fork. None if no thread can be
    /// started.
    pub fn of_process() -> Option<&'static Timer> {
        /// Never freed: a thread looks at it.
        static TIMER: AtomicPtr<Timer> = AtomicPtr::new(null_mut());
        let before = TIMER.load(Ordering::Acquire);
        // SAFETY: null, or a timer that stays.
        if let Some(timer) = unsafe { before.as_ref() }.filter(|t| t.process == process::id()) {
            return Some(timer);
        }
        let timer: &'static Timer =
            Box::leak(Box::new(Timer { process: process::id(), alarms: Mutex::default(), changed: Condvar::new() }));
        // Two threads that start one each at the same time both get one that works: the other is of no further use.
        thread::Builder::new().name("qtls-pkcs11".into()).spawn(|| timer.run()).ok()?;
        let _ = TIMER.compare_exchange(before, (&raw const *timer).cast_mut(), Ordering::AcqRel, Ordering::Acquire);
        Some(timer)
    }

    pub fn set(&self, time: Instant, alarm: Arc<dyn Alarm>) -> AlarmId {
        let mut alarms = lock(&self.alarms);
        alarms.number += 1;
        let id = (time, alarms.number);
        alarms.by_time.insert(id, alarm);
        if alarms.looks.is_none_or(|looks| time < looks) {
            alarms.looks = Some(time);
            self.changed.notify_one();
        }
        id
    }

    pub fn cancel(&self, alarm: AlarmId) {
        lock(&self.alarms).by_time.remove(&alarm);
    }

    fn run(&self) {
        let mut alarms = lock(&self.alarms);
        loop {
            let now = Instant::now();
            alarms.looks = alarms.by_time.first_key_value().map(|(next, _)| next.0);
            alarms = match (alarms.looks, alarms.by_time.first_entry()) {
                (Some(time), Some(next)) if time <= now => {
                    let alarm = next.remove();
                    drop(alarms);
                    alarm.ring();
                    lock(&self.alarms)
                }
                (Some(time), _) => self.changed.wait_timeout(alarms, time - now).unwrap_or_else(|e| e.into_inner()).0,
                _ => self.changed.wait(alarms).unwrap_or_else(|e| e.into_inner()),
            };
        }
    }
}

/// How long a thread waits that may not pause before it looks whether it may: it must not take the processor meanwhile.
const MOMENT: Duration = Duration::from_millis(1);

/// How somebody waits for a change of what a mutex guards.
pub struct Waiter {
    changed: Condvar,
    /// A thread waits for `changed`, or is about to: written and read with the mutex locked.
    blocked: AtomicBool,
    job: Option<(Pausable, &'static Timer)>,
}

impl Waiter {
    /// The way in which the caller can wait.
    pub fn for_caller() -> Waiter {
        let job = Pausable::current().and_then(|job| Some((job, Timer::of_process()?)));
        Waiter { changed: Condvar::new(), blocked: AtomicBool::new(false), job }
    }

    /// Whether anybody still waits, or may: a job whose context went is never resumed.
    pub fn waits(&self) -> bool {
        self.job.as_ref().is_none_or(|(job, _)| !job.event.closed())
    }

    /// Says that it is over. To be called with the mutex locked, and before the waiting has ended: a paused job's event must
    /// not be set afterwards, for that would wake whoever waits next in its context.
    pub fn tell(&self) {
        if self.blocked.load(Ordering::Relaxed) {
            self.changed.notify_one();
        }
        if let Some((job, _)) = &self.job {
            job.event.set();
        }
    }

    /// Waits until it is over. At the deadline the alarm rings, whether the caller is ever resumed or not: it has to see to
    /// it that it is over then.
    pub fn wait<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        deadline: Instant,
        alarm: Arc<dyn Alarm>,
        over: impl Fn(&T) -> bool,
    ) -> MutexGuard<'a, T> {
        let Some((job, timer)) = &self.job else { return self.block(mutex, Some((deadline, alarm)), over) };
        let alarm = timer.set(deadline, alarm);
        let mut woken = false;
        let state = loop {
            job.event.clear();
            let mut state = lock(mutex);
            if woken {
                // For nothing, perhaps; or at once, because the program has forbidden pauses just now: OpenSSL does not say.
                state = self.doze(state, &over);
            }
            if over(&state) {
                break state;
            }
            drop(state);
            woken = true;
            if !job.pause() {
                break self.block(mutex, None, over);
            }
        };
        // Whoever says that it is over does so once, and with this lock: after this the event is clear and stays so.
        timer.cancel(alarm);
        job.event.clear();
        state
    }

    /// Waits for a moment at most.
    fn doze<'a, T>(&self, state: MutexGuard<'a, T>, over: &impl Fn(&T) -> bool) -> MutexGuard<'a, T> {
        self.blocked.store(true, Ordering::Relaxed);
        let dozed = self.changed.wait_timeout_while(state, MOMENT, |state| !over(state));
        self.blocked.store(false, Ordering::Relaxed);
        dozed.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Without an alarm: who else has set one.
    fn block<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        mut alarm: Option<(Instant, Arc<dyn Alarm>)>,
        over: impl Fn(&T) -> bool,
    ) -> MutexGuard<'a, T> {
        let mut state = lock(mutex);
        self.blocked.store(true, Ordering::Relaxed);
        while !over(&state) {
            state = match alarm.take() {
                None => self.changed.wait(state).unwrap_or_else(|e| e.into_inner()),
                Some((deadline, ring)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        drop(state);
                        ring.ring();
                        lock(mutex)
                    } else {
                        alarm = Some((deadline, ring));
                        self.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0
                    }
                }
            };
        }
        state
    }
}
