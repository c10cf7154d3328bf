//! The configuration file: the slot, its members in order of preference, and the keys that it shows.
//!
//! ```text
//! [slot]
//! label = gateway
//! order = ordered                       # or spread
//! status-dir = /run/qtls/hsm            # counters for whoever watches, a file for each process
//! descriptors = 40000                   # the most that the program uses, if less than its limit
//! generate = false                      # whether programs may have keys made
//!
//! [member hsm-a]
//! module = /usr/lib/softhsm/libsofthsm2.so
//! token = gw                            # or serial = 0123456789abcdef
//! pin-file = /run/secrets/hsm-a/pin
//! sessions = 4
//! timeout = 2000ms
//! retry = 500ms
//!
//! [member hsm-b]                        # a token elsewhere, behind an hsmd
//! address = hsm-b.tls.svc:7443
//! ca-file = /run/secrets/hsm-b/ca.crt
//! certificate-file = /run/secrets/hsm-b/tls.crt
//! key-file = /run/secrets/hsm-b/tls.key
//!
//! [key web]
//! id = 01
//! public-key = /etc/qtls/keys/web.pem
//! ```
//!
//! Reading it is a pure function of the text and the files of public keys. PIN files are not read here: a PIN that is
//! missing concerns one member, and must not stop a program from starting.

use crate::{spki::PublicKey, token::KeyName};
use rustls::pki_types::ServerName;
use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// The most sessions of a member: each is a thread. v1alpha1.MostHSMSessions of the API is the same.
pub const MOST_SESSIONS: usize = 64;

/// In which order members are asked for a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The first that is up, always.
    Ordered,
    /// All that are up, by turns.
    Spread,
}

/// Which of the tokens of a module is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenName {
    Label(String),
    Serial(String),
}

impl fmt::Display for TokenName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            TokenName::Label(l) => write!(f, "label {l:?}"),
            TokenName::Serial(s) => write!(f, "serial number {s:?}"),
        }
    }
}

/// A token in a vendor's library, in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub module: PathBuf,
    pub token: TokenName,
    pub pin_file: PathBuf,
}

/// An hsmd, and what TLS needs to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// `host:port`; an IPv6 address is in brackets.
    pub address: String,
    pub server_name: String,
    pub ca_file: PathBuf,
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
}

/// Where a member's token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Module(Module),
    Daemon(Daemon),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub place: Place,
    /// How many sessions are open, and so how many signatures are made at a time.
    pub sessions: usize,
    /// How long one signature may take, waiting for a session included.
    pub timeout: Duration,
    /// How long a member that is down is left alone.
    pub retry: Duration,
}

/// A key that the slot shows. Members know it by its label, and by its ID too if one is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub label: String,
    pub id: Vec<u8>,
    pub public: PublicKey,
}

impl Key {
    pub fn name(&self) -> KeyName {
        KeyName { label: self.label.clone(), id: self.id.clone() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub label: String,
    pub order: Order,
    /// Where the process says how its members are, if anywhere.
    pub status_dir: Option<PathBuf>,
    /// The most file descriptors that the program can use, if that is less than the system's limit.
    pub descriptors: Option<u64>,
    /// Whether programs may have keys made.
    pub generate: bool,
    pub members: Vec<Member>,
    pub keys: Vec<Arc<Key>>,
}

/// What is wrong with the file, and where.
#[derive(Debug, PartialEq, Eq)]
pub struct Error {
    pub line: usize,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.message),
            n => write!(f, "line {n}: {}", self.message),
        }
    }
}

pub fn error<T>(line: usize, message: impl Into<String>) -> Result<T, Error> {
    Err(Error { line, message: message.into() })
}

/// One `[kind name]` with its fields, each used once.
pub struct Section<'a> {
    pub line: usize,
    pub kind: &'a str,
    pub name: &'a str,
    fields: Vec<(usize, &'a str, &'a str)>,
}

impl<'a> Section<'a> {
    pub fn title(&self) -> String {
        if self.name.is_empty() {
            format!("[{}]", self.kind)
        } else {
            format!("[{} {}]", self.kind, self.name)
        }
    }

    pub fn take(&mut self, field: &str) -> Option<(usize, &'a str)> {
        let at = self.fields.iter().position(|f| f.1 == field)?;
        let (line, _, value) = self.fields.remove(at);
        Some((line, value))
    }

    pub fn has(&self, field: &str) -> bool {
        self.fields.iter().any(|f| f.1 == field)
    }

    pub fn need(&mut self, field: &str, example: &str) -> Result<(usize, &'a str), Error> {
        match self.take(field) {
            Some(f) => Ok(f),
            None => error(self.line, format!("{}: {field} is missing; add {field} = {example}", self.title())),
        }
    }

    pub fn path(&mut self, field: &str, example: &str) -> Result<(usize, PathBuf), Error> {
        let (line, value) = self.need(field, example)?;
        if !value.starts_with('/') || value.contains('\0') {
            return error(line, format!("{}: {field} = {value}: want an absolute path", self.title()));
        }
        Ok((line, value.into()))
    }

    /// A time in milliseconds (`ms`) or seconds (`s`).
    pub fn time(&mut self, field: &str, default: u64, least: u64, most: u64) -> Result<Duration, Error> {
        let Some((line, value)) = self.take(field) else { return Ok(Duration::from_millis(default)) };
        let seconds = || value.strip_suffix("s").and_then(decimal)?.checked_mul(1000);
        match value.strip_suffix("ms").and_then(decimal).or_else(seconds) {
            Some(n) if (least..=most).contains(&n) => Ok(Duration::from_millis(n)),
            _ => error(line, format!("{}: {field} = {value}: want {least}ms to {most}ms", self.title())),
        }
    }

    pub fn number(&mut self, field: &str, default: usize, least: usize, most: usize) -> Result<usize, Error> {
        let Some((line, value)) = self.take(field) else { return Ok(default) };
        match decimal(value) {
            Some(n) if (least as u64..=most as u64).contains(&n) => Ok(n as usize),
            _ => error(line, format!("{}: {field} = {value}: want a number from {least} to {most}", self.title())),
        }
    }

    pub fn end(&self, known: &str) -> Result<(), Error> {
        match self.fields.first() {
            Some((line, name, _)) => {
                error(*line, format!("{}: {name}: there is no such field; there are {known}", self.title()))
            }
            None => Ok(()),
        }
    }
}

/// Digits only: no sign, no space, no number that does not fit.
fn decimal(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    if text.len() % 2 != 0 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok()).collect()
}

pub fn sections(text: &str) -> Result<Vec<Section<'_>>, Error> {
    let mut sections: Vec<Section> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let number = i + 1;
        // A comment is a line of its own, or what follows a blank and a #: labels may contain one.
        let line = match line.trim_start().starts_with('#') {
            true => "",
            false => line.find(" #").map_or(line, |at| &line[..at]).trim(),
        };
        if line.is_empty() {
            continue;
        }
        if let Some(title) = line.strip_prefix('[') {
            let Some(title) = title.strip_suffix(']') else {
                return error(number, format!("{line}: want ] at the end"));
            };
            let (kind, name) = title.split_once(' ').map_or((title, ""), |(k, n)| (k, n.trim()));
            if let Some(s) = sections.iter().find(|s| s.kind == kind && s.name == name) {
                return error(number, format!("{} is there already, in line {}; keep one", s.title(), s.line));
            }
            sections.push(Section { line: number, kind, name, fields: Vec::new() });
            continue;
        }
        let Some((field, value)) = line.split_once('=').map(|(f, v)| (f.trim(), v.trim())) else {
            return error(number, format!("{line}: want [kind name] or field = value"));
        };
        let Some(section) = sections.last_mut() else {
            return error(
                number,
                format!("{field} is in no section; put [slot], [member NAME] or [key LABEL] above it"),
            );
        };
        if let Some((first, ..)) = section.fields.iter().find(|f| f.1 == field) {
            return error(number, format!("{}: {field} is there already, in line {first}; keep one", section.title()));
        }
        if value.is_empty() {
            return error(number, format!("{}: {field} is empty; give it a value or remove the line", section.title()));
        }
        section.fields.push((number, field, value));
    }
    Ok(sections)
}

/// Whether a file can have a section for a key with this label.
pub fn can_name(label: &str) -> bool {
    let title = format!("[key {label}]");
    let section = sections(&title);
    matches!(section.as_deref(), Ok([only]) if only.kind == "key" && only.name == label && !label.is_empty())
}

/// The most members and keys that a file may have: it is read before anything else is checked.
const MOST_MEMBERS: usize = 16;
const MOST_KEYS: usize = 1024;

impl Config {
    /// Reads the text of a configuration; `read` gets the files of public keys.
    pub fn parse(text: &str, read: &dyn Fn(&Path) -> io::Result<Vec<u8>>) -> Result<Config, Error> {
        let mut config = Config {
            label: "qtls".into(),
            order: Order::Ordered,
            status_dir: None,
            descriptors: None,
            generate: false,
            members: vec![],
            keys: vec![],
        };
        for mut section in sections(text)? {
            match (section.kind, section.name) {
                ("slot", "") => config.read_slot(&mut section)?,
                ("member", name) if !name.is_empty() => config.members.push(member(&mut section)?),
                ("key", label) if !label.is_empty() => config.keys.push(Arc::new(key(&mut section, read)?)),
                _ => {
                    let title = section.title();
                    return error(section.line, format!("{title}: want [slot], [member NAME] or [key LABEL]"));
                }
            }
        }
        let (members, keys) = (config.members.len(), config.keys.len());
        if members == 0 || members > MOST_MEMBERS {
            return error(0, format!("{members} members; write 1 to {MOST_MEMBERS} sections [member NAME]"));
        }
        // Who makes the first one has none yet.
        let least = !config.generate as usize;
        if keys < least || keys > MOST_KEYS {
            return error(0, format!("{keys} keys; write {least} to {MOST_KEYS} sections [key LABEL]"));
        }
        Ok(config)
    }

    fn read_slot(&mut self, section: &mut Section) -> Result<(), Error> {
        if let Some((line, label)) = section.take("label") {
            if label.len() > 32 {
                return error(line, format!("[slot]: label = {label}: PKCS#11 has room for 32 bytes; shorten it"));
            }
            self.label = label.into();
        }
        if let Some((line, order)) = section.take("order") {
            self.order = match order {
                "ordered" => Order::Ordered,
                "spread" => Order::Spread,
                _ => return error(line, format!("[slot]: order = {order}: want ordered or spread")),
            };
        }
        if section.has("status-dir") {
            self.status_dir = Some(section.path("status-dir", "/path/to/folder")?.1);
        }
        if let Some((line, value)) = section.take("descriptors") {
            match decimal(value) {
                Some(n) if n > 0 => self.descriptors = Some(n),
                _ => return error(line, format!("[slot]: descriptors = {value}: want a number from 1")),
            }
        }
        if let Some((line, value)) = section.take("generate") {
            self.generate = match value {
                "true" => true,
                "false" => false,
                _ => return error(line, format!("[slot]: generate = {value}: want true or false")),
            };
        }
        section.end("label, order, status-dir, descriptors and generate")
    }
}

pub fn member(section: &mut Section) -> Result<Member, Error> {
    let (place, fields) = match section.has("address") {
        false => (Place::Module(module(section)?), "module, token, serial, pin-file"),
        true => (Place::Daemon(daemon(section)?), "address, server-name, ca-file, certificate-file, key-file"),
    };
    let sessions = section.number("sessions", 4, 1, MOST_SESSIONS)?;
    let timeout = section.time("timeout", 2000, 10, 60_000)?;
    let retry = section.time("retry", 500, 10, 600_000)?;
    section.end(&format!("{fields}, sessions, timeout and retry"))?;
    Ok(Member { name: section.name.into(), place, sessions, timeout, retry })
}

fn daemon(section: &mut Section) -> Result<Daemon, Error> {
    let title = section.title();
    let (line, address) = section.need("address", "host:port")?;
    let wrong = || format!("{title}: address = {address}: want host:port, an IPv6 address in brackets");
    let Some((host, port)) = address.rsplit_once(':') else { return error(line, wrong()) };
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let port = decimal(port).filter(|p| (1..=65535).contains(p));
    let host = match bare {
        Some(v6) if v6.parse::<std::net::Ipv6Addr>().is_ok() => v6,
        None if !host.contains([':', '[', ']']) => host,
        _ => return error(line, wrong()),
    };
    if port.is_none() || ServerName::try_from(host).is_err() {
        return error(line, wrong());
    }
    let server_name = match section.take("server-name") {
        None => host,
        Some((_, name)) if ServerName::try_from(name).is_ok() => name,
        Some((line, name)) => {
            return error(line, format!("{title}: server-name = {name}: want a DNS name or an IP address"))
        }
    };
    let (_, ca_file) = section.path("ca-file", "/path/to/ca.crt")?;
    let (_, certificate_file) = section.path("certificate-file", "/path/to/tls.crt")?;
    let (_, key_file) = section.path("key-file", "/path/to/tls.key")?;
    Ok(Daemon { address: address.into(), server_name: server_name.into(), ca_file, certificate_file, key_file })
}

fn module(section: &mut Section) -> Result<Module, Error> {
    let title = section.title();
    let (_, module) = section.path("module", "/path/to/module.so")?;
    let token = match (section.take("token"), section.take("serial")) {
        (Some((_, label)), None) => TokenName::Label(label.into()),
        (None, Some((_, serial))) => TokenName::Serial(serial.into()),
        (Some(_), Some((line, _))) => return error(line, format!("{title}: token and serial are both set; keep one")),
        (None, None) => {
            return error(
                section.line,
                format!("{title}: which token is missing; add token = LABEL or serial = NUMBER"),
            )
        }
    };
    let (_, pin_file) = section.path("pin-file", "/path/to/pin")?;
    Ok(Module { module, token, pin_file })
}

fn key(section: &mut Section, read: &dyn Fn(&Path) -> io::Result<Vec<u8>>) -> Result<Key, Error> {
    let title = section.title();
    let id = match section.take("id") {
        None => vec![],
        Some((line, value)) => match hexadecimal(value) {
            Some(id) if id.len() <= 255 => id,
            _ => return error(line, format!("{title}: id = {value}: want hexadecimal digits, two for each byte")),
        },
    };
    let (line, path) = section.path("public-key", "/path/to/public-key.pem")?;
    let refuse = |what: String| error(line, format!("{title}: public-key = {}: {what}", path.display()));
    let public = match read(&path) {
        Ok(pem) => match PublicKey::from_pem(&pem) {
            Ok(public) => public,
            Err(e) => return refuse(e),
        },
        Err(e) => return refuse(e.to_string()),
    };
    section.end("id and public-key")?;
    Ok(Key { label: section.name.into(), id, public })
}
