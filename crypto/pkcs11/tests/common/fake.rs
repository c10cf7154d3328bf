//! A member that does as it is told: tests/fake/token.c, a PKCS#11 module, compiled once and copied for each member.

use super::{folder, run, Module};
use cryptoki_sys::{CK_RV, CK_ULONG};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicU64, Ordering::SeqCst},
        OnceLock,
    },
    thread::sleep,
    time::{Duration, Instant},
};

/// What the token is told of a call, and what it counts of it. As in token.c.
#[repr(C)]
pub struct Call {
    /// How many there were.
    pub calls: AtomicU64,
    /// How many there are now, and were at most at a time.
    pub inside: AtomicU64,
    pub peak: AtomicU64,
    /// Each call waits until this is over.
    pub hang: AtomicU64,
    /// Each call takes as many microseconds.
    pub micros: AtomicU64,
    code: AtomicU64,
    times: AtomicU64,
}

impl Call {
    /// The next calls answer with a code.
    pub fn answer(&self, code: CK_RV, times: u64) {
        self.code.store(code, SeqCst);
        self.times.store(times, SeqCst);
    }
}

#[repr(C)]
pub struct State {
    pub initialize: Call,
    pub finalize: Call,
    pub get_slot_list: Call,
    pub get_token_info: Call,
    pub open_session: Call,
    pub close_session: Call,
    pub get_session_info: Call,
    pub login: Call,
    pub find_objects: Call,
    pub sign_init: Call,
    pub sign: Call,
    absent: AtomicU64,
    /// It is not in the list of slots; its sessions are as they were.
    pub hidden: AtomicU64,
    epoch: AtomicU64,
    lost: AtomicU64,
    /// Its PIN; 0 is 1234.
    pub pin: AtomicU64,
    /// Wrong PINs in a row: it locks itself at the third.
    pub refused: AtomicU64,
    /// Sessions at a time; 0: as many as are wanted.
    pub most: AtomicU64,
    /// Sessions that are open.
    pub open: AtomicU64,
    pub signatures: AtomicU64,
    violations: AtomicU64,
    /// Once it was missed, C_Initialize alone finds it again.
    pub missed: AtomicU64,
    /// Logins from before this one are lost, and nobody is told: private keys are not seen.
    pub logouts: AtomicU64,
    violation: [u8; 128],
}

impl State {
    /// Its sessions are lost, and answer so from now on. Those that are opened later are well.
    pub fn lose_sessions(&self, code: CK_RV) {
        self.lost.store(code, SeqCst);
        self.epoch.fetch_add(1, SeqCst);
    }

    /// The token is taken away: its sessions with it, and every call that needs it says so.
    pub fn take_away(&self, code: CK_RV) {
        self.absent.store(code, SeqCst);
        self.lose_sessions(code);
    }

    pub fn put_back(&self) {
        self.absent.store(0, SeqCst);
    }

    pub fn signatures(&self) -> u64 {
        self.signatures.load(SeqCst)
    }
}

impl State {
    fn map(path: &Path) -> &'static State {
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len(size_of::<State>() as u64).unwrap();
        use std::os::fd::AsRawFd;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the file is as long as that, and stays mapped; all in it is atomic but the last message.
        unsafe {
            let place =
                libc::mmap(std::ptr::null_mut(), size_of::<State>(), access, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(place, libc::MAP_FAILED);
            &*place.cast::<State>()
        }
    }
}

/// The module as cc makes it.
fn compiled() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/token.c");
        let module = folder("fake-module").join("token.so");
        let options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"];
        run("cc", &[&options[..], &[module.to_str().unwrap(), source, "-lcrypto"]].concat());
        module
    })
}

/// Keys that all tests of a process share: names and the options of `openssl genpkey`.
pub const KEYS: [(&str, &[&str]); 5] = [
    ("rsa", &["-algorithm", "RSA"]),
    ("p256", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]),
    ("p384", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"]),
    ("p521", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"]),
    ("mldsa65", &["-algorithm", "ML-DSA-65"]),
];

fn keys() -> &'static Path {
    static KEYS_IN: OnceLock<PathBuf> = OnceLock::new();
    KEYS_IN.get_or_init(|| {
        let dir = folder("fake-keys");
        for (name, how) in KEYS {
            let private = dir.join(name).with_extension("pem");
            let public = dir.join(name).with_extension("pub");
            let (private, public) = (private.to_str().unwrap(), public.to_str().unwrap());
            run("openssl", &[&["genpkey", "-out", private], how].concat());
            run("openssl", &["pkey", "-in", private, "-pubout", "-out", public]);
        }
        dir
    })
}

/// A slot over members that do as they are told.
pub struct Slot {
    pub dir: PathBuf,
    pub members: Vec<&'static State>,
}

/// How a member is set up, but for its module and its PIN.
pub const PATIENT: &str = "timeout = 60000ms\nretry = 10ms\n";
pub const IMPATIENT: &str = "timeout = 200ms\nretry = 10ms\n";

impl Slot {
    /// With a member for each of the settings: a, b and so on.
    pub fn new(order: &str, settings: &[&str]) -> Slot {
        let dir = folder("fake");
        let mut text = format!("[slot]\nlabel = gw\norder = {order}\n");
        let mut members = vec![];
        for (i, settings) in settings.iter().enumerate() {
            let name = (b'a' + i as u8) as char;
            let home = dir.join(name.to_string());
            fs::create_dir(&home).unwrap();
            fs::write(home.join("pin"), "1234\n").unwrap();
            fs::copy(compiled(), home.join("token.so")).unwrap();
            for (key, _) in KEYS {
                fs::copy(keys().join(key).with_extension("pem"), home.join(key).with_extension("pem")).unwrap();
            }
            members.push(State::map(&home.join("token.so.state")));
            let at = home.display();
            text += &format!("[member {name}]\nmodule = {at}/token.so\ntoken = fake\npin-file = {at}/pin\n{settings}");
        }
        for (key, _) in KEYS {
            text += &format!("[key {key}]\npublic-key = {}/{key}.pub\n", keys().display());
        }
        fs::write(dir.join("qtls.conf"), text).unwrap();
        Slot { dir, members }
    }

    pub fn start(&self) -> Module {
        Module::started(&self.dir.join("qtls.conf"))
    }

    pub fn public_key(&self, key: &str) -> PathBuf {
        keys().join(key).with_extension("pub")
    }

    /// A file of a member's: its PIN, a key.
    pub fn file(&self, member: &str, name: &str) -> PathBuf {
        self.dir.join(member).join(name)
    }

    /// As a Secret's files change: by another file in its place.
    pub fn replace(&self, member: &str, name: &str, content: &str) {
        fs::write(self.file(member, "new"), content).unwrap();
        fs::rename(self.file(member, "new"), self.file(member, name)).unwrap();
    }

    /// How many signatures each member has made.
    pub fn signatures(&self) -> Vec<u64> {
        self.members.iter().map(|m| m.signatures()).collect()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        for (i, m) in self.members.iter().enumerate() {
            // Nothing of ours is to hang in a call after its test.
            for call in [&m.initialize, &m.open_session, &m.get_token_info, &m.login, &m.find_objects, &m.sign] {
                call.hang.store(0, SeqCst);
            }
            if !std::thread::panicking() {
                let text = String::from_utf8_lossy(&m.violation);
                let text = text.trim_end_matches('\0');
                assert_eq!(m.violations.load(SeqCst), 0, "member {i} was used against the rules: {text}");
            }
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Waits until something is so. The time is a guard against hanging, and generous.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !so() {
        assert!(Instant::now() < deadline, "not in two minutes: {what}");
        sleep(Duration::from_millis(1));
    }
}

/// The layout is the C file's: eleven calls of seven numbers, twelve numbers, a text.
const _: () = assert!(size_of::<State>() == (11 * 7 + 12) * 8 + 128);
const _: () = assert!(size_of::<CK_ULONG>() == 8);
