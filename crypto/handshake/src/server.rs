//! HAProxy on loopback, that answers each request itself.

use crate::Result;
use std::{
    fs::{self, File},
    io::{self, Read},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{self, Child, Command},
    time::Duration,
};

/// A running HAProxy; it ends with this value.
pub struct Server {
    process: Child,
    /// One for each certificate.
    pub addresses: Vec<SocketAddr>,
    log: PathBuf,
}

/// How HAProxy comes to its algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Providers {
    /// OpenSSL's own only.
    Stock,
    /// The provider's where OpenSSL has none.
    Loaded,
    /// The provider's wherever it has one: the fast path.
    Preferred,
}

impl Providers {
    fn configuration(self) -> &'static str {
        match self {
            Providers::Stock => "",
            Providers::Loaded => "    ssl-provider default\n    ssl-provider oqsprovider\n",
            Providers::Preferred => {
                "    ssl-propquery ?provider=oqsprovider\n    ssl-provider default\n    ssl-provider oqsprovider\n"
            }
        }
    }
}

/// How HAProxy is set up, besides its certificates.
pub struct Settings<'a> {
    pub providers: Providers,
    pub group: &'a str,
    /// Tickets under the keys of a file, if there is one.
    pub ticket_keys: Option<&'a Path>,
    /// Jobs of OpenSSL's ASYNC: `ssl-mode-async`.
    pub asynchronous: bool,
    pub threads: usize,
    pub environment: &'a [(&'static str, PathBuf)],
}

impl<'a> Settings<'a> {
    /// One thread, no tickets.
    pub fn new(providers: Providers, group: &'a str) -> Settings<'a> {
        Settings { providers, group, ticket_keys: None, asynchronous: false, threads: 1, environment: &[] }
    }
}

impl Server {
    /// Starts HAProxy with a port for each certificate, which is a file with its key.
    pub fn start(dir: &Path, name: &str, settings: &Settings, certificates: &[&Path]) -> Result<Server> {
        // As the gateway's own configuration has it.
        let tickets = match settings.ticket_keys {
            None => "no-tls-tickets".into(),
            Some(file) => format!("tls-ticket-keys {}", file.display()),
        };
        let mut text = format!(
            "global\n{}{}    tune.ssl.cachesize 0\n    tune.ssl.lifetime 7200\n    nbthread {}\n    maxconn 2000\n\
             defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
             frontend f\n    http-request return status 200\n",
            settings.providers.configuration(),
            if settings.asynchronous { "    ssl-mode-async\n" } else { "" },
            settings.threads,
        );
        let (mut listeners, mut addresses) = (vec![], vec![]);
        for certificate in certificates {
            // A port of the kernel's choice, which HAProxy gets as a socket: nobody else can take it meanwhile.
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let socket = listener.as_raw_fd();
            // SAFETY: the socket is ours, and no other thread starts a process.
            if unsafe { libc::fcntl(socket, libc::F_SETFD, 0) } != 0 {
                return Err(io::Error::last_os_error().into());
            }
            let (certificate, group) = (certificate.display(), settings.group);
            text +=
                &format!("    bind fd@{socket} ssl crt {certificate} curves {group} ssl-min-ver TLSv1.3 {tickets}\n");
            addresses.push(listener.local_addr()?);
            listeners.push(listener);
        }
        let (configuration, log) = (dir.join(format!("{name}.cfg")), dir.join(format!("{name}.log")));
        fs::write(&configuration, text)?;
        let output = File::create(&log)?;
        let process = ending_with_us("haproxy")
            .args(["-db", "-f"])
            .arg(&configuration)
            .envs(settings.environment.iter().map(|(name, value)| (name, value)))
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .map_err(|e| format!("haproxy does not start: {e}"))?;
        drop(listeners);
        let mut server = Server { process, addresses, log };
        // A connection waits at the socket until HAProxy has started, and has seen that it is over, or has ended.
        if let Ok(mut first) = TcpStream::connect(server.address()) {
            first.set_read_timeout(Some(Duration::from_secs(60)))?;
            let _ = first.shutdown(Shutdown::Write).and_then(|()| first.read_to_end(&mut vec![]));
        }
        if TcpStream::connect(server.address()).is_err() {
            let status = server.process.wait()?;
            return Err(format!("{name}: haproxy ended with {status}: {}", server.log()?).into());
        }
        Ok(server)
    }

    /// That of the first certificate.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// What it wrote so far.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.log)?)
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// CPU time of the process so far, in seconds.
    pub fn cpu(&self) -> Result<f64> {
        cpu(self.process.id())
    }
}

/// CPU time of a process so far, all its threads together, in seconds: to the nanosecond.
pub fn cpu(process: u32) -> Result<f64> {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: places for the answers.
    let failed = unsafe {
        libc::clock_getcpuclockid(process as libc::pid_t, &mut clock) != 0 || libc::clock_gettime(clock, &mut time) != 0
    };
    match failed {
        true => Err(format!("process {process} has no clock: it has ended").into()),
        false => Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended
        let _ = self.process.wait();
    }
}

/// What is measured, and on what, in one line.
pub fn setting() -> Result<String> {
    let words = |program: &str, option: &str| -> Result<Vec<String>> {
        let out = Command::new(program).arg(option).output().map_err(|e| format!("{program} does not start: {e}"))?;
        Ok(String::from_utf8_lossy(&out.stdout).split_whitespace().take(3).map(String::from).collect())
    };
    let (haproxy, openssl) = (words("haproxy", "-v")?, words("openssl", "version")?); // HAProxy version 3.2.1, OpenSSL 3.5.1
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpuinfo
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .map_or("unknown", |m| m.trim_matches([':', '\t', ' ']));
    let load = fs::read_to_string("/proc/loadavg")?;
    Ok(format!(
        "HAProxy {}, OpenSSL {}; {} processors ({model}), load {} before",
        haproxy.last().map_or("unknown", String::as_str),
        openssl.get(1).map_or("unknown", String::as_str),
        std::thread::available_parallelism()?,
        load.split_whitespace().next().unwrap_or("unknown"),
    ))
}

/// A command that the kernel kills when the thread that started it ends, even one that was killed and dropped nothing.
pub fn ending_with_us(program: &str) -> Command {
    let us = process::id();
    let mut command = Command::new(program);
    // SAFETY: both are system calls, and nothing is allocated between fork and exec.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            if libc::getppid() as u32 != us {
                return Err(io::ErrorKind::BrokenPipe.into()); // that was too late
            }
            Ok(())
        });
    }
    command
}

/// A folder for one run, which goes with the value; keys lie in it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes a folder that only its owner can read.
pub fn scratch() -> Result<Scratch> {
    use std::os::unix::fs::DirBuilderExt;
    let path = std::env::temp_dir().join(format!("qtls-handshake-{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&path)?;
    Ok(Scratch(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        env,
        io::{BufRead, BufReader},
        process::Stdio,
        time::Instant,
    };

    #[test]
    fn a_server_ends_when_we_are_killed() {
        const NAME: &str = "server::tests::a_server_ends_when_we_are_killed";
        const CHILD: &str = "QTLS_TEST_STARTS_A_SERVER";
        if env::var_os(CHILD).is_some() {
            let mut server = ending_with_us("sleep").arg("600").spawn().unwrap();
            println!("started");
            server.wait().unwrap();
            return;
        }
        let mut child = Command::new(env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("started") {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "it started nothing");
        }
        let start = Instant::now();
        child.kill().unwrap();
        child.wait().unwrap();
        // Its server has the other end of the pipe, too.
        output.read_to_end(&mut vec![]).unwrap();
        assert!(start.elapsed() < Duration::from_secs(300), "its server went on");
    }
}
