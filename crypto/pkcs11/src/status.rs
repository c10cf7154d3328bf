//! How the members are, for whoever watches the process: a file that a thread of its own writes, so that no signature waits
//! for a disk.

use crate::{asynchronous::abandoned, library::lock, member::State};
use std::{
    fmt::Write,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A member's counters, since the module was initialised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub name: String,
    pub state: State,
    /// Since when it is in this state.
    pub since: SystemTime,
    /// Sessions that are open.
    pub sessions: usize,
    pub signatures: u64,
    /// Signatures that it was asked for and did not make, for no fault of the request.
    pub failures: u64,
    /// Those of them that another member was asked for then.
    pub failovers: u64,
    /// Of the signatures that it made: waiting for a session included.
    pub latency: Latency,
    /// The last failure, whenever that was; empty if there was none.
    pub last_error: String,
}

impl Status {
    pub fn new(name: &str) -> Status {
        Status {
            name: name.into(),
            state: State::Starting,
            since: SystemTime::now(),
            sessions: 0,
            signatures: 0,
            failures: 0,
            failovers: 0,
            latency: Latency::default(),
            last_error: String::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    pub count: u64,
    pub sum: Duration,
    pub max: Duration,
}

impl Latency {
    pub fn add(&mut self, time: Duration) {
        self.count += 1;
        self.sum += time;
        self.max = self.max.max(time);
    }
}

/// As JSON has it.
pub fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            '\0'..=' ' if c != ' ' => {
                let _ = write!(json, "\\u{:04x}", c as u32);
            }
            _ => json.push(c),
        }
    }
    json + "\""
}

/// RFC 3339, in UTC.
pub fn timestamp(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, in eras of 400: a leap day is the last of its year, and all eras are alike.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = 400 * era + year + next;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

fn json(process: u32, started: SystemTime, slot: &str, abandoned: usize, members: &[Status]) -> String {
    let member = |m: &Status| {
        format!(
            "{{\"name\":{},\"state\":\"{:?}\",\"sessions\":{},\"signatures\":{},\"failures\":{},\"failovers\":{},\
             \"latencyMicros\":{{\"count\":{},\"sum\":{},\"max\":{}}},\"lastError\":{},\"since\":\"{}\"}}",
            quoted(&m.name),
            m.state,
            m.sessions,
            m.signatures,
            m.failures,
            m.failovers,
            m.latency.count,
            m.latency.sum.as_micros(),
            m.latency.max.as_micros(),
            quoted(&m.last_error),
            timestamp(m.since),
        )
    };
    format!(
        "{{\"pid\":{process},\"started\":\"{}\",\"slot\":{},\"abandonedJobs\":{abandoned},\"members\":[{}]}}\n",
        timestamp(started),
        quoted(slot),
        members.iter().map(member).collect::<Vec<_>>().join(",")
    )
}

/// What is written, and when that is over.
struct Shared {
    state: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Writing,
    Stopping,
    /// The file is removed.
    Stopped,
}

/// The thread that writes the file of this process.
pub struct Writer(Arc<Shared>);

/// How often the file is written, at most.
pub const INTERVAL: Duration = Duration::from_secs(1);

impl Writer {
    /// Starts it, for the process that calls. A file that cannot be written is told once.
    pub fn start(
        dir: &Path,
        slot: &str,
        interval: Duration,
        members: impl Fn() -> Vec<Status> + Send + 'static,
        log: fn(&str),
    ) -> Writer {
        let shared = Arc::new(Shared { state: Mutex::new(Progress::Writing), changed: Condvar::new() });
        let (writer, dir, slot) = (Writer(shared.clone()), dir.to_path_buf(), slot.to_string());
        let (process, started) = (std::process::id(), SystemTime::now());
        let write = move || {
            remove_stale(&dir);
            let file = File { path: dir.join(format!("{process}.json")), new: dir.join(format!(".{process}.json")) };
            let (mut written, mut told) = (String::new(), false);
            while *lock(&shared.state) == Progress::Writing {
                let text = json(process, started, &slot, abandoned(), &members());
                if text != written {
                    match file.write(&text) {
                        Ok(()) => (written, told) = (text, false),
                        Err(e) if !told => {
                            log(&format!("status-dir {}: {e}", dir.display()));
                            told = true;
                        }
                        Err(_) => {}
                    }
                }
                let goes_on = |state: &mut Progress| *state == Progress::Writing;
                drop(shared.changed.wait_timeout_while(lock(&shared.state), interval, goes_on));
            }
            file.remove();
            *lock(&shared.state) = Progress::Stopped;
            shared.changed.notify_all();
        };
        if let Err(e) = thread::Builder::new().name("qtls-pkcs11".into()).spawn(write) {
            log(&format!("no status is written: {e}"));
            *lock(&writer.0.state) = Progress::Stopped;
        }
        writer
    }

    /// Has the file removed, and waits for that some time: the disk may hang.
    pub fn stop(&self, time: Duration) {
        let mut state = lock(&self.0.state);
        if *state == Progress::Writing {
            *state = Progress::Stopping;
            self.0.changed.notify_all();
        }
        drop(self.0.changed.wait_timeout_while(state, time, |state| *state != Progress::Stopped));
    }
}

struct File {
    path: PathBuf,
    new: PathBuf,
}

impl File {
    /// Whoever reads it finds all of the old or all of the new text.
    fn write(&self, text: &str) -> io::Result<()> {
        fs::write(&self.new, text)?;
        fs::rename(&self.new, &self.path)
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.new);
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes what processes left that were killed. All that write here see each other's numbers: those of one container.
fn remove_stale(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().map(|n| n.trim_start_matches('.')).and_then(|n| n.strip_suffix(".json"));
        if let Some(process) = number.and_then(|n| n.parse::<i32>().ok()) {
            // SAFETY: it asks only whether there is such a process.
            let gone = unsafe { libc::kill(process, 0) } != 0
                && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            if gone {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicU64, Ordering::SeqCst},
        time::Instant,
    };

    fn status() -> Status {
        Status {
            name: "hsm-a".into(),
            state: State::Up,
            since: UNIX_EPOCH + Duration::from_secs(1_709_210_096), // a leap day
            sessions: 4,
            signatures: 7,
            failures: 2,
            failovers: 1,
            latency: Latency { count: 7, sum: Duration::from_micros(7500), max: Duration::from_millis(2) },
            last_error: "C_Sign: \"gone\"\n".into(),
        }
    }

    #[test]
    fn the_file_is_json() {
        let started = UNIX_EPOCH + Duration::from_secs(1_735_689_599);
        assert_eq!(
            json(12, started, "gw", 3, &[status()]),
            "{\"pid\":12,\"started\":\"2024-12-31T23:59:59Z\",\"slot\":\"gw\",\"abandonedJobs\":3,\"members\":[{\"name\":\"hsm-a\",\
             \"state\":\"Up\",\"sessions\":4,\"signatures\":7,\"failures\":2,\"failovers\":1,\"latencyMicros\":\
             {\"count\":7,\"sum\":7500,\"max\":2000},\"lastError\":\"C_Sign: \\\"gone\\\"\\u000a\",\
             \"since\":\"2024-02-29T12:34:56Z\"}]}\n"
        );
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds| timestamp(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(951_868_800), "2000-03-01T00:00:00Z");
        assert_eq!(at(4_102_444_800), "2100-01-01T00:00:00Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    fn until<T>(what: &str, f: impl Fn() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(value) = f() {
                return value;
            }
            assert!(Instant::now() < deadline, "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A folder for one test.
    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("qtls-status-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn the_file_follows_the_counters_and_goes_with_the_writer() {
        let dir = folder("follows");
        let mine = dir.join(format!("{}.json", std::process::id()));
        // No process has a number that large.
        let (stale, other) = (dir.join("2147483647.json"), dir.join("notes.json"));
        fs::write(&stale, "{}").unwrap();
        fs::write(&other, "{}").unwrap();
        let signatures = Arc::new(AtomicU64::new(1));
        let counter = signatures.clone();
        let members = move || vec![Status { signatures: counter.load(SeqCst), ..status() }];
        let writer = Writer::start(&dir, "gw", Duration::from_millis(1), members, |m| panic!("{m}"));
        for n in 1..4 {
            signatures.store(n, SeqCst);
            let wanted = format!("\"signatures\":{n},");
            until(&wanted, || fs::read_to_string(&mine).ok().filter(|text| text.contains(&wanted)));
        }
        assert!(!stale.exists(), "its process is gone");
        assert!(other.exists(), "it is nobody's");
        writer.stop(Duration::from_secs(60));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "only the other file is left");
        writer.stop(Duration::from_secs(60)); // a second time it is done already
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_folder_that_is_missing_is_told_once_and_written_to_when_it_is_there() {
        static TOLD: AtomicU64 = AtomicU64::new(0);
        let dir = folder("missing");
        fs::remove_dir_all(&dir).unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let counter = asked.clone();
        let members = move || {
            counter.fetch_add(1, SeqCst);
            vec![]
        };
        let writer = Writer::start(&dir, "gw", Duration::from_millis(1), members, |_| {
            TOLD.fetch_add(1, SeqCst);
        });
        until("it tries again", || (asked.load(SeqCst) > 3).then_some(()));
        assert_eq!(TOLD.load(SeqCst), 1);
        fs::create_dir_all(&dir).unwrap();
        let mine = dir.join(format!("{}.json", std::process::id()));
        until("it writes", || mine.exists().then_some(()));
        writer.stop(Duration::from_secs(60));
        assert!(!mine.exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
