//! The `openssl` command with the module: what the integration tests share.
#![allow(dead_code)] // no test uses all of it

use oqsprovider::algorithm::{Algorithm, ALGORITHMS};
use std::{
    any::Any,
    env, fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::symlink, process::ExitStatusExt},
    panic::{catch_unwind, AssertUnwindSafe},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicUsize, Ordering},
        Mutex, OnceLock,
    },
    thread,
};

/// The module under test: OQSPROVIDER_MODULE, or what `cargo build --release` makes. (The module that cargo builds for
/// these tests is another one: it unwinds on panic.)
pub fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        if let Some(path) = env::var_os("OQSPROVIDER_MODULE") {
            return fs::canonicalize(&path).unwrap_or_else(|e| panic!("OQSPROVIDER_MODULE={path:?}: {e}"));
        }
        // This test is target/release/deps/<name>.
        let exe = env::current_exe().unwrap();
        let target = exe.ancestors().nth(3).unwrap();
        let status = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
            .args(["build", "--quiet", "--release", "--locked", "--package", "oqsprovider", "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(status.success(), "cargo build --release: {status}");
        target.join("release/liboqsprovider.so")
    })
}

/// A directory of a test's own, gone with it.
pub struct Dir {
    path: PathBuf,
    on_nehalem: bool,
}

impl Dir {
    /// With the module, and a configuration that loads it beside OpenSSL's own provider.
    pub fn new() -> Dir {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", std::process::id()));
        // A process that was killed left its directory, and numbers of processes come again.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        symlink(module(), path.join("oqsprovider.so")).unwrap();
        fs::write(path.join("openssl.cnf"), CONFIGURATION).unwrap();
        Dir { path, on_nehalem: false }
    }

    /// The same, for commands on a processor without AVX: one of 2008, with SSE 4.2. An instruction that it has not ends
    /// them.
    pub fn on_nehalem() -> Dir {
        let mut dir = Dir::new();
        dir.on_nehalem = true;
        dir
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.path.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
    }

    pub fn text(&self, file: &str) -> String {
        String::from_utf8(self.read(file)).unwrap()
    }

    pub fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path.join(file), content).unwrap()
    }

    /// A command line, split at spaces.
    pub fn command(&self, line: &str) -> Command {
        let mut words = line.split_whitespace();
        // Against what would hang. A server lives for as long as its clients take, on whatever machine.
        let mut command = Command::new("timeout");
        command.arg("3600");
        if self.on_nehalem {
            let program = words.next().unwrap();
            let folders = env::var_os("PATH").unwrap();
            let found = env::split_paths(&folders).map(|f| f.join(program)).find(|p| p.is_file()).expect(program);
            command.args(["qemu-x86_64", "-cpu", "Nehalem"]).arg(found);
        }
        command.args(words).current_dir(&self.path);
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OQS_")) {
            command.env_remove(name);
        }
        command.env("OPENSSL_MODULES", &self.path).env("OPENSSL_CONF", self.path.join("openssl.cnf"));
        command
    }

    /// Runs `openssl` with these arguments.
    pub fn openssl(&self, arguments: &str) -> Done {
        self.openssl_with(arguments, "")
    }

    /// The same with standard input.
    pub fn openssl_with(&self, arguments: &str, input: &str) -> Done {
        run(self.command(&format!("openssl {arguments}")), format!("openssl {arguments}"), input)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

const CONFIGURATION: &str = "\
openssl_conf = init
[init]
providers = providers
[providers]
default = active
oqsprovider = active
[active]
activate = 1
[req]
distinguished_name = name
x509_extensions = authority
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign, digitalSignature
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = DNS:localhost
[ca]
default_ca = ca_files
[ca_files]
database = index.txt
default_md = default
default_crl_days = 1
crlnumber = crlnumber
";

/// What a command did.
pub struct Done {
    line: String,
    status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

pub fn run(mut command: Command, line: String, input: &str) -> Done {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("coreutils");
    // A command that does not read closes it: no failure.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let out = child.wait_with_output().unwrap();
    Done {
        line,
        status: out.status,
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

impl Done {
    /// Its output, if it succeeded.
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{self}");
        self.stdout
    }

    /// Its errors, if it failed as a command should: by itself.
    pub fn fails(self) -> String {
        assert!(!self.crashed(), "it crashed: {self}");
        assert!(!self.status.success(), "it succeeded: {self}");
        self.stderr
    }

    /// Whether a signal ended it, or the time.
    pub fn crashed(&self) -> bool {
        self.status.signal().is_some() || self.status.code().is_none_or(|code| code >= 124)
    }

    pub fn shows(self, text: &str) -> Done {
        assert!(self.stdout.contains(text), "no {text:?}: {self}");
        self
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        // Without what only a program reads.
        let is_base64 = |l: &&str| l.len() > 40 && !l.contains([' ', ':']);
        let short = |s: &str| s.lines().filter(|l| !is_base64(l)).take(60).collect::<Vec<_>>().join("\n");
        write!(f, "{}\n{}: {}\n{}", self.line, self.status, short(&self.stdout), short(&self.stderr))
    }
}

/// An `openssl s_server` that answers HTTP requests, on a port of its own.
pub struct Server {
    child: Child,
    pub port: u16,
}

impl Server {
    pub fn start(dir: &Dir, arguments: &str) -> Server {
        let line = format!("openssl s_server -accept 127.0.0.1:0 -www {arguments}");
        let log = fs::File::create(dir.path().join("server.log")).unwrap();
        let child =
            dir.command(&line).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().expect("coreutils");
        let mut server = Server { child, port: 0 };
        let output = server.child.stdout.take().unwrap();
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let port = lines.by_ref().find_map(|l| l.strip_prefix("ACCEPT ")?.rsplit(':').next()?.parse().ok());
        server.port = port.unwrap_or_else(|| panic!("{line} does not listen: {}", dir.text("server.log")));
        thread::spawn(move || lines.for_each(drop)); // so that it never waits for a reader
        server
    }

    /// One request by `openssl s_client`.
    pub fn request(&self, dir: &Dir, arguments: &str) -> Done {
        let port = self.port;
        dir.openssl_with(&format!("s_client -connect 127.0.0.1:{port} -ign_eof {arguments}"), "GET / HTTP/1.0\r\n\r\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // `timeout` hands the signal on.
        // SAFETY: it is our child, which has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let _ = self.child.wait();
    }
}

pub fn is_kem(a: &Algorithm) -> bool {
    !a.is_signature()
}

/// Checks each algorithm of a kind, two at a time, in a directory for each, and tells of all that fail.
pub fn every(kind: impl Fn(&Algorithm) -> bool, check: impl Fn(&'static Algorithm, &Dir) + Sync) {
    let mut chosen: Vec<_> = ALGORITHMS.iter().filter(|a| kind(a)).collect();
    assert!(!chosen.is_empty(), "there is no such algorithm");
    // The slowest first, so that none is left alone at the end.
    chosen.sort_by_key(|a| !a.name.contains("ssimple"));
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(vec![]);
    let work = || {
        while let Some(algorithm) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(algorithm, &Dir::new()))) {
                failures.lock().unwrap().push(format!("{}: {}", algorithm.name, message(panic)));
            }
        }
    };
    // Joined: a scope does not wait for what libcrypto does when a thread ends.
    thread::scope(|scope| [scope.spawn(work), scope.spawn(work)].map(|t| t.join().unwrap()));
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), chosen.len(), failures.join("\n"));
}

fn message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(s) => *s,
        Err(panic) => panic.downcast::<&str>().map_or("a panic".into(), |s| s.to_string()),
    }
}
