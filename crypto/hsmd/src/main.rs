use qtls_hsmd::{
    config::Config,
    log::{self, log},
    metrics::{self, Metrics},
    server::{Live, Server},
    soft_token,
    work::Work,
};
use qtls_pkcs11::library::Modules;
use std::{
    fs, io,
    mem::MaybeUninit,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::unix::fs::MetadataExt,
    path::Path,
    process::ExitCode,
    sync::Arc,
    thread,
    time::Duration,
};

const USAGE: &str = "hsmd --config PATH";

fn main() -> ExitCode {
    log::of_daemon();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match &args[..] {
        [command, rest @ ..] if command == "init-soft-token" => soft_token::run(rest).map(|done| log(&done)),
        [option, path] if option == "--config" => run(Path::new(path)),
        _ => Err(format!("want {USAGE} or {}", soft_token::USAGE)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            log(&e);
            ExitCode::FAILURE
        }
    }
}

/// The signals that are waited for, and blocked in every thread.
const SIGNALS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

fn signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call makes a set of it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in SIGNALS {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// The next signal, or None after a second.
fn next_signal(set: &libc::sigset_t) -> Option<i32> {
    let second = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    // SAFETY: both live; nothing more is asked for.
    match unsafe { libc::sigtimedwait(set, std::ptr::null_mut(), &second) } {
        -1 => None,
        signal => Some(signal),
    }
}

fn read(path: &Path) -> Result<Config, String> {
    let told = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let text = fs::read_to_string(path).map_err(|e| told(&e))?;
    Config::parse(&text).map_err(|e| told(&e))
}

/// The files that are read again when they change: a Secret's are replaced, not written to.
fn stamps(path: &Path, config: &Config) -> Vec<Option<(u64, u64, i64, i64)>> {
    [path, &config.certificate_file, &config.key_file, &config.client_ca_file]
        .map(|file| fs::metadata(file).ok().map(|m| (m.dev(), m.ino(), m.mtime(), m.mtime_nsec())))
        .to_vec()
}

/// All addresses are those of IPv4 where the kernel has nothing else.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address) {
        Err(e) if e.raw_os_error() == Some(libc::EAFNOSUPPORT) && address.ip() == Ipv6Addr::UNSPECIFIED => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
        }
        bound => bound,
    }
}

fn run(path: &Path) -> Result<(), String> {
    let set = signals();
    // SAFETY: the set lives. Threads, those of libraries too, inherit what is blocked.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    let config = read(path)?;
    let mut seen = stamps(path, &config);
    let live = Live::new(&config)?;
    let listener = bind(config.listen).map_err(|e| format!("listen = {}: {e}", config.listen))?;
    let scraped = match config.metrics {
        Some(address) => Some(bind(address).map_err(|e| format!("metrics = {address}: {e}"))?),
        None => None,
    };
    let mut modules = Modules::new(|| {});
    let token = qtls_pkcs11::token(&mut modules, &config.token);
    let work = Work::start(config.token.clone(), token, Arc::new(Metrics::default()));
    let server = Server::new(config.clone(), live, work.clone());
    let address = |l: &TcpListener| l.local_addr().map_or_else(|e| e.to_string(), |a| a.to_string());
    if let Some(listener) = scraped {
        log(&format!("metrics on {}", address(&listener)));
        let (counted, serving) = (work.clone(), server.clone());
        let text = move || counted.metrics.text(&counted.token_name(), counted.up(), counted.sessions());
        metrics::serve(listener, text, move || serving.serving());
    }
    log(&format!("listening on {}", address(&listener)));
    let listener = Arc::new(listener);
    let (accepting, listening) = (server.clone(), listener.clone());
    let accept = move || accepting.accept(&listening);
    thread::Builder::new().name("hsmd-accept".into()).spawn(accept).map_err(|e| format!("no thread: {e}"))?;
    loop {
        let signal = next_signal(&set);
        let now = stamps(path, &config);
        if signal == Some(libc::SIGHUP) || now != seen {
            seen = now;
            match reload(path, &config, &server) {
                Ok(()) => log("certificates and clients are read anew"),
                Err(e) => log(&format!("what was read last stays: {e}")),
            }
        }
        if let Some(libc::SIGTERM | libc::SIGINT) = signal {
            break;
        }
    }
    log(&format!("{} requests are in flight; ending", work.in_flight()));
    let done = server.drain(&listener, config.drain);
    if work.stop(Duration::from_secs(1)) {
        modules.finalise();
    }
    log(if done { "ended" } else { "ended before all was answered; a longer drain would have waited" });
    Ok(())
}

fn reload(path: &Path, running: &Config, server: &Server) -> Result<(), String> {
    let config = read(path)?;
    if !running.same_daemon(&config) {
        log("[daemon] and [token] changed; they are read when hsmd starts");
    }
    // Certificates are where they were when the daemon started.
    server.replace(Live::new(&Config { clients: config.clients, ..running.clone() })?);
    Ok(())
}
