//! Tokens for HAProxy's keys: kryoptic, one that takes as long as it is told, either of them behind an hsmd, and what
//! pkcs11-provider and libqtls_pkcs11.so are told of them.

use crate::{server::ending_with_us, Result};
use openssl::base64::encode_block;
use std::{
    env,
    fs::{self, File},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread::sleep,
    time::{Duration, Instant},
};

/// Variables of an environment.
pub type Environment = Vec<(&'static str, PathBuf)>;

/// The label of every token, and of the module's slot: one reference to a key serves them all.
const LABEL: &str = "hsm";

/// How long anything may take to become so. It is a guard, and says nothing about speed.
const GUARD: Duration = Duration::from_secs(300);

/// Waits until something is there.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + GUARD;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(format!("not in {GUARD:?}: {what}").into());
        }
        sleep(Duration::from_millis(5));
    }
}

fn run(program: &Path, environment: &Environment, args: &[&str]) -> Result<()> {
    let envs = environment.iter().map(|(name, value)| (name, value));
    let out =
        Command::new(program).args(args).envs(envs).output().map_err(|e| format!("{}: {e}", program.display()))?;
    if !out.status.success() {
        let (program, errors) = (program.display(), String::from_utf8_lossy(&out.stderr));
        return Err(format!("{program} {}: {errors}", args.join(" ")).into());
    }
    Ok(())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are ours")
}

/// The programs and libraries, and a folder for what they need.
pub struct Parts {
    dir: PathBuf,
    module: PathBuf,
    hsmd: PathBuf,
    kryoptic: PathBuf,
    provider: PathBuf,
}

impl Parts {
    /// Ours lie beside this program, pkcs11-provider where Debian has OpenSSL's modules.
    pub fn new(dir: &Path) -> Result<Parts> {
        let here = env::current_exe()?;
        let ours = |name: &str| {
            let path = here.with_file_name(name);
            if path.exists() {
                Ok(path)
            } else {
                Err(format!("{} is missing", path.display()))
            }
        };
        let libraries = fs::read_dir("/usr/lib")?.filter_map(|e| Some(e.ok()?.path().join("ossl-modules/pkcs11.so")));
        let provider = libraries.filter(|p| p.exists()).last().ok_or("/usr/lib: no ossl-modules/pkcs11.so in it")?;
        let parts = Parts {
            dir: dir.into(),
            module: ours("libqtls_pkcs11.so")?,
            hsmd: ours("hsmd")?,
            kryoptic: ours("libkryoptic_pkcs11.so")?,
            provider,
        };
        fs::write(parts.pin(), "12345678")?;
        fs::create_dir(parts.status())?;
        fs::write(parts.path("plain.cnf"), "[req]\ndistinguished_name = name\n[name]\n")?;
        parts.certificates()?;
        Ok(parts)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn pin(&self) -> PathBuf {
        self.path("pin")
    }

    fn status(&self) -> PathBuf {
        self.path("status")
    }

    pub fn openssl(&self, environment: &Environment, args: &[&str]) -> Result<()> {
        run(Path::new("openssl"), environment, args)
    }

    /// An authority, and certificates for hsmd and its client.
    fn certificates(&self) -> Result<()> {
        let environment = vec![("OPENSSL_CONF", self.path("plain.cnf"))];
        let (ca, ca_key) = (self.path("ca.crt"), self.path("ca.key"));
        for (name, extension) in [
            ("ca", "basicConstraints=critical,CA:TRUE"),
            ("localhost", "subjectAltName=DNS:localhost"),
            ("gateway", "subjectAltName=DNS:gateway"),
        ] {
            let (key, certificate) = (self.path(&format!("{name}.key")), self.path(&format!("{name}.crt")));
            let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-keyout", text(&key)];
            let subject =
                ["-subj", &format!("/CN={name}"), "-addext", extension, "-days", "2", "-out", text(&certificate)];
            let authority: &[&str] = if name == "ca" { &[] } else { &["-CA", text(&ca), "-CAkey", text(&ca_key)] };
            self.openssl(&environment, &[&["req", "-x509"], &curve[..], &subject, authority].concat())?;
        }
        Ok(())
    }

    /// A configuration of OpenSSL with a module's keys.
    fn openssl_conf(&self, name: &str, module: &Path, more: &str) -> Result<PathBuf> {
        let (provider, module) = (self.provider.display(), module.display());
        let path = self.path(&format!("{name}.cnf"));
        fs::write(
            &path,
            format!(
                "openssl_conf = init\n[init]\nproviders = list\n[list]\ndefault = on\npkcs11 = pkcs11\n[on]\nactivate = 1\n\
                 [pkcs11]\nmodule = {provider}\npkcs11-module-path = {module}\n{more}\
                 pkcs11-module-quirks = no-deinit no-operation-state\nactivate = 1\n\
                 [req]\ndistinguished_name = name\n[name]\n"
            ),
        )?;
        Ok(path)
    }

    /// A kryoptic token with keys that it makes itself: their labels, and what `openssl genpkey` takes for them.
    pub fn kryoptic(&self, keys: &[(&str, &[&str])]) -> Result<Kryoptic> {
        let token = Kryoptic { folder: self.path("kryoptic") };
        fs::create_dir(&token.folder)?;
        token.configure()?;
        let (pin, so_pin) = (self.pin(), self.pin());
        let init = ["--module", text(&self.kryoptic), "--label", LABEL, "--pin-file", text(&pin)];
        let init = [&["init-soft-token"], &init[..], &["--so-pin-file", text(&so_pin)]].concat();
        run(&self.hsmd, &token.environment(), &init)?;
        let environment = self.directly(&token, false)?;
        for (label, algorithm) in keys {
            let (key, public) = (self.path("made.key"), self.path(&format!("{label}.pub")));
            let uri = format!("pkcs11_uri:pkcs11:token={LABEL};object={label}");
            let made = ["-pkeyopt", &uri, "-out", text(&key)];
            self.openssl(&environment, &[&["genpkey", "-propquery", "provider=pkcs11"], *algorithm, &made].concat())?;
            self.openssl(&environment, &["pkey", "-in", text(&key), "-pubout", "-out", text(&public)])?;
        }
        Ok(token)
    }

    /// An environment in which pkcs11-provider calls kryoptic itself: with the token's own key, as all that can lose its
    /// session has to, or with a copy that pkcs11-provider keeps in its session unless it is told not to.
    pub fn directly(&self, token: &Kryoptic, copied: bool) -> Result<Environment> {
        let more = format!(
            "pkcs11-module-token-pin = file:{}\npkcs11-module-encode-provider-uri-to-pem = true\npkcs11-module-cache-keys = {copied}\n",
            self.pin().display()
        );
        let conf = self.openssl_conf(&format!("directly-{copied}"), &self.kryoptic, &more)?;
        Ok([vec![("OPENSSL_CONF", conf)], token.environment()].concat())
    }

    /// A copy of the fake token, with a key that is in a file.
    pub fn fake(&self, name: &str, label: &str, key: &Path) -> Result<Fake> {
        let folder = self.path(name);
        fs::create_dir(&folder)?;
        fs::write(folder.join("token.so"), include_bytes!(concat!(env!("OUT_DIR"), "/token.so")))?;
        fs::copy(key, folder.join(label).with_extension("pem"))?;
        let state = File::options().read(true).write(true).create_new(true).open(folder.join("token.so.state"))?;
        state.set_len(Fake::STATE)?;
        state.write_all_at(&12_345_678u64.to_ne_bytes(), Fake::PIN)?;
        Ok(Fake { module: folder.join("token.so"), state })
    }

    /// A section of a token in a module: hsmd's, or a member's of libqtls_pkcs11.so.
    fn token_section(&self, section: &str, module: &Path, token: &str, sessions: usize) -> String {
        let (module, pin) = (module.display(), self.pin());
        let pin = pin.display();
        format!(
            "[{section}]\nmodule = {module}\ntoken = {token}\npin-file = {pin}\nsessions = {sessions}\ntimeout = 60s\n"
        )
    }

    pub fn member_kryoptic(&self, name: &str, sessions: usize) -> String {
        self.token_section(&format!("member {name}"), &self.kryoptic, LABEL, sessions)
    }

    pub fn member_fake(&self, name: &str, token: &Fake, sessions: usize) -> String {
        self.token_section(&format!("member {name}"), &token.module, Fake::LABEL, sessions)
    }

    /// A token behind an hsmd. Its connections, and so its requests at a time, are as many as the token's sessions.
    pub fn member_hsmd(&self, name: &str, daemon: &Daemon, sessions: usize) -> String {
        let (ca, certificate, key) = (self.path("ca.crt"), self.path("gateway.crt"), self.path("gateway.key"));
        format!(
            "[member {name}]\naddress = {}\nserver-name = localhost\nca-file = {}\ncertificate-file = {}\nkey-file = {}\n\
             sessions = {sessions}\ntimeout = 60s\n",
            daemon.address,
            ca.display(),
            certificate.display(),
            key.display()
        )
    }

    pub fn hsmd_kryoptic(&self, name: &str, token: &Kryoptic, sessions: usize) -> Result<Daemon> {
        self.hsmd(name, &self.token_section("token", &self.kryoptic, LABEL, sessions), &token.environment())
    }

    pub fn hsmd_fake(&self, name: &str, token: &Fake, sessions: usize) -> Result<Daemon> {
        self.hsmd(name, &self.token_section("token", &token.module, Fake::LABEL, sessions), &vec![])
    }

    fn hsmd(&self, name: &str, token: &str, environment: &Environment) -> Result<Daemon> {
        let (conf, log) = (self.path(&format!("{name}.conf")), self.path(&format!("{name}.log")));
        let [certificate, key, ca] = ["localhost.crt", "localhost.key", "ca.crt"].map(|f| self.path(f));
        fs::write(
            &conf,
            format!(
                "[daemon]\nlisten = 127.0.0.1:0\nmetrics = 127.0.0.1:0\ncertificate-file = {}\nkey-file = {}\n\
                 client-ca-file = {}\nhandshake-timeout = 60s\nwrite-timeout = 60s\n\
                 {token}[client gateway]\nkeys = *\nmay = status, find, sign\n",
                certificate.display(),
                key.display(),
                ca.display()
            ),
        )?;
        let envs = environment.iter().map(|(name, value)| (name, value));
        let mut process = ending_with_us(text(&self.hsmd))
            .arg("--config")
            .arg(&conf)
            .envs(envs)
            .stderr(File::create(&log)?)
            .spawn()?;
        let listens = until("hsmd listens", || {
            let lines = fs::read_to_string(&log)?;
            if let Some(status) = process.try_wait()? {
                return Err(format!("hsmd ended with {status}: {lines}").into());
            }
            let at = |what: &str| lines.lines().find_map(|l| l.strip_prefix(what)?.parse::<SocketAddr>().ok());
            Ok(at("hsmd: metrics on ").zip(at("hsmd: listening on ")))
        });
        match listens {
            Ok((metrics, address)) => Ok(Daemon { process, address, metrics }),
            Err(e) => {
                let _ = process.kill();
                let _ = process.wait();
                Err(e)
            }
        }
    }

    /// An environment in which pkcs11-provider has a slot over members, with keys whose public halves are LABEL.pub.
    pub fn slot(&self, name: &str, order: &str, members: &[String], keys: &[&str]) -> Result<Environment> {
        let conf = self.path(&format!("{name}.conf"));
        // Twice HAProxy's maxconn.
        let mut slot = format!(
            "[slot]\nlabel = {LABEL}\norder = {order}\nstatus-dir = {}\ndescriptors = 4000\n{}",
            self.status().display(),
            members.concat()
        );
        for label in keys {
            slot += &format!("[key {label}]\npublic-key = {}\n", self.path(&format!("{label}.pub")).display());
        }
        fs::write(&conf, slot)?;
        Ok(vec![("OPENSSL_CONF", self.openssl_conf("slot", &self.module, "")?), ("QTLS_PKCS11_CONFIG", conf)])
    }

    /// The signatures that each member made for a process, by its name, as the module counts them.
    pub fn signatures(&self, process: u32) -> Result<Vec<(String, u64)>> {
        let Ok(json) = fs::read_to_string(self.status().join(format!("{process}.json"))) else { return Ok(vec![]) };
        members(&json).ok_or_else(|| format!("no status: {json}").into())
    }

    /// A certificate for localhost with a key of a token, and its reference: a file as HAProxy wants it.
    pub fn certificate(&self, environment: &Environment, label: &str) -> Result<PathBuf> {
        let (key, certificate, both) = (
            self.path(&format!("{label}.key")),
            self.path(&format!("{label}.crt")),
            self.path(&format!("{label}.pem")),
        );
        fs::write(&key, reference(&uri(label)))?;
        let subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"];
        let files = ["-key", text(&key), "-out", text(&certificate)];
        self.openssl(environment, &[&["req", "-x509", "-new"], &subject[..], &files].concat())?;
        fs::write(&both, [fs::read(&certificate)?, fs::read(&key)?].concat())?;
        Ok(both)
    }

    /// The same for a key that is in a file as well, which HAProxy does not see.
    pub fn certificate_of(&self, label: &str, key: &Path) -> Result<PathBuf> {
        let (certificate, public, both) = (
            self.path(&format!("{label}.crt")),
            self.path(&format!("{label}.pub")),
            self.path(&format!("{label}.pem")),
        );
        let environment = vec![("OPENSSL_CONF", self.path("plain.cnf"))];
        self.openssl(&environment, &["pkey", "-in", text(key), "-pubout", "-out", text(&public)])?;
        let subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"];
        let files = ["-key", text(key), "-out", text(&certificate)];
        self.openssl(&environment, &[&["req", "-x509", "-new"], &subject[..], &files].concat())?;
        fs::write(&both, [fs::read(&certificate)?, reference(&uri(label)).into()].concat())?;
        Ok(both)
    }
}

fn uri(label: &str) -> String {
    format!("pkcs11:token={LABEL};object={label};type=private")
}

/// A reference to a key, in the PEM form that pkcs11-provider reads.
fn reference(uri: &str) -> String {
    let element =
        |tag: u8, content: &[u8]| [&[tag, u8::try_from(content.len()).expect("a short URI")], content].concat();
    let content = [element(0x1a, b"PKCS#11 Provider URI v1.0"), element(0x0c, uri.as_bytes())].concat();
    let der = element(0x30, &content);
    assert!(content.len() < 0x80, "{uri} is too long for a length of one byte");
    let lines: Vec<String> =
        encode_block(&der).as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into()).collect();
    format!("-----BEGIN PKCS#11 PROVIDER URI-----\n{}\n-----END PKCS#11 PROVIDER URI-----\n", lines.join("\n"))
}

/// Names and signatures of the members in a status file, whose fields come in that order.
fn members(json: &str) -> Option<Vec<(String, u64)>> {
    let part = |member: &str| {
        let (name, rest) = member.split_once('"')?;
        let number = rest.split_once("\"signatures\":")?.1;
        let end = number.find(|c: char| !c.is_ascii_digit())?;
        Some((name.to_string(), number[..end].parse().ok()?))
    };
    json.split("{\"name\":\"").skip(1).map(part).collect()
}

/// A folder with a kryoptic token.
pub struct Kryoptic {
    folder: PathBuf,
}

impl Kryoptic {
    fn configure(&self) -> Result<()> {
        let database = self.folder.join("token.sql");
        let slot = format!("[[slots]]\nslot = 1\ndbtype = \"sqlite\"\ndbargs = \"{}\"\n", database.display());
        Ok(fs::write(self.folder.join("conf"), slot)?)
    }

    pub fn environment(&self) -> Environment {
        vec![("KRYOPTIC_CONF", self.folder.join("conf"))]
    }

    /// Another token with the same keys, as two HSMs of a pool have them.
    pub fn copy(&self, name: &str) -> Result<Kryoptic> {
        let copy = Kryoptic { folder: self.folder.with_file_name(name) };
        fs::create_dir(&copy.folder)?;
        fs::copy(self.folder.join("token.sql"), copy.folder.join("token.sql"))?;
        copy.configure()?;
        Ok(copy)
    }
}

/// The token of ../pkcs11/tests/fake/token.c, whose state is a file. Numbers are where its structure has them.
pub struct Fake {
    module: PathBuf,
    state: File,
}

impl Fake {
    const LABEL: &str = "fake";
    /// Seven numbers for each of eleven calls, of which C_Sign is the last, and then the token's own.
    const CALL: u64 = 7 * 8;
    const SIGN_MICROS: u64 = 10 * Fake::CALL + 4 * 8;
    const PIN: u64 = 11 * Fake::CALL + 4 * 8;
    const SIGNATURES: u64 = 11 * Fake::CALL + 8 * 8;
    const STATE: u64 = 11 * Fake::CALL + 12 * 8 + 128;

    /// Each signature takes as long from now on.
    pub fn takes(&self, time: Duration) -> Result<()> {
        Ok(self.state.write_all_at(&(time.as_micros() as u64).to_ne_bytes(), Fake::SIGN_MICROS)?)
    }

    /// How many it made.
    pub fn signatures(&self) -> Result<u64> {
        let mut number = [0; 8];
        self.state.read_exact_at(&mut number, Fake::SIGNATURES)?;
        Ok(u64::from_ne_bytes(number))
    }
}

/// An hsmd of its own process; it ends with this value.
pub struct Daemon {
    process: Child,
    address: SocketAddr,
    metrics: SocketAddr,
}

impl Daemon {
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// How many signatures it answered with.
    pub fn signatures(&self) -> Result<u64> {
        // It has 2 s for each scrape, and a machine may stand still for longer: then it is asked again. Sooner, or each time,
        // it is hsmd's fault.
        let mut tries = 0;
        let text = loop {
            tries += 1;
            let start = Instant::now();
            match self.metrics() {
                Ok(text) => break text,
                Err(_) if tries < 10 && start.elapsed() >= Duration::from_secs(2) => {}
                Err(e) => return Err(e),
            }
        };
        let name = "qtls_hsmd_requests_total{operation=\"sign\",result=\"ok\"} ";
        let number = text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok());
        number.ok_or_else(|| format!("no {name}in hsmd's metrics: {text}").into())
    }

    /// Its metrics, if they are whole.
    fn metrics(&self) -> Result<String> {
        let mut stream = TcpStream::connect(self.metrics)?;
        stream.set_read_timeout(Some(GUARD))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: hsmd\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: ")?.parse().ok());
        if length != Some(body.len()) {
            return Err(format!("hsmd's metrics are not whole: {text:?}").into());
        }
        Ok(text)
    }

    /// As a machine that loses its power.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_what_the_operator_writes() {
        let pem = "-----BEGIN PKCS#11 PROVIDER URI-----\n\
                   MEUaGVBLQ1MjMTEgUHJvdmlkZXIgVVJJIHYxLjAMKHBrY3MxMTp0b2tlbj1oc207\n\
                   b2JqZWN0PXdlYjt0eXBlPXByaXZhdGU=\n\
                   -----END PKCS#11 PROVIDER URI-----\n";
        assert_eq!(reference(&uri("web")), pem);
    }

    #[test]
    fn signatures_are_the_members_own() {
        let json = r#"{"pid":7,"members":[{"name":"a","state":"Up","sessions":4,"signatures":12,"failures":0},{"name":"b","state":"Down","sessions":0,"signatures":3,"failures":1}]}"#;
        assert_eq!(members(json).unwrap(), [("a".to_string(), 12), ("b".to_string(), 3)]);
        assert_eq!(members(r#"{"members":[{"name":"a"}]}"#), None);
    }
}
