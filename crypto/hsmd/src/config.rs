//! hsmd's configuration file: where it listens, its token, and which clients may do what with which keys.

use qtls_pkcs11::config::{error, member, sections, Error, Member, Place, Section};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// What a client may be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    Status,
    Find,
    Sign,
    Generate,
    Retire,
}

pub const RIGHTS: [(&str, Right); 5] = [
    ("status", Right::Status),
    ("find", Right::Find),
    ("sign", Right::Sign),
    ("generate", Right::Generate),
    ("retire", Right::Retire),
];

/// A client by a DNS name of its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    pub name: String,
    /// Labels; one with a star at its end stands for all that begin so.
    pub keys: Vec<String>,
    pub may: Vec<Right>,
}

impl Client {
    pub fn may_use(&self, label: &str) -> bool {
        self.keys.iter().any(|key| match key.strip_suffix('*') {
            Some(prefix) => label.starts_with(prefix),
            None => label == key,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub listen: SocketAddr,
    /// Where metrics and probes are, if anywhere.
    pub metrics: Option<SocketAddr>,
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
    pub client_ca_file: PathBuf,
    pub connections: usize,
    /// Requests of one connection that are not answered yet.
    pub in_flight: usize,
    pub idle_timeout: Duration,
    pub handshake_timeout: Duration,
    pub write_timeout: Duration,
    /// How long the end of the daemon waits for what is in flight.
    pub drain: Duration,
    pub token: Member,
    pub clients: Vec<Client>,
}

const MOST_CLIENTS: usize = 1024;

/// Items between commas, blanks around them aside.
fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn address(section: &mut Section, field: &str) -> Result<Option<SocketAddr>, Error> {
    let Some((line, value)) = section.take(field) else { return Ok(None) };
    match value.parse() {
        Ok(address) => Ok(Some(address)),
        Err(_) => error(line, format!("[daemon]: {field} = {value}: want ADDRESS:PORT, as in [::]:7443")),
    }
}

fn client(section: &mut Section) -> Result<Client, Error> {
    let title = section.title();
    let keys = section.take("keys").map_or(vec![], |(_, value)| list(value).map(String::from).collect());
    let (line, value) = section.need("may", "status, find, sign")?;
    let mut may = vec![];
    for item in list(value) {
        match RIGHTS.iter().find(|r| r.0 == item) {
            Some((_, right)) => may.push(*right),
            None => return error(line, format!("{title}: may = {item}: want status, find, sign, generate and retire")),
        }
    }
    section.end("keys and may")?;
    Ok(Client { name: section.name.into(), keys, may })
}

impl Config {
    pub fn parse(text: &str) -> Result<Config, Error> {
        let (mut daemon, mut token, mut clients) = (None, None, vec![]);
        for mut section in sections(text)? {
            match (section.kind, section.name) {
                ("daemon", "") => daemon = Some(section),
                ("token", "") => token = Some(section),
                ("client", name) if !name.is_empty() => clients.push(client(&mut section)?),
                _ => {
                    let title = section.title();
                    return error(section.line, format!("{title}: want [daemon], [token] or [client NAME]"));
                }
            }
        }
        let Some(mut d) = daemon else { return error(0, "there is no section [daemon]; write one") };
        let Some(mut t) = token else { return error(0, "there is no section [token]; write one") };
        if clients.is_empty() || clients.len() > MOST_CLIENTS {
            let count = clients.len();
            return error(0, format!("{count} clients; write 1 to {MOST_CLIENTS} sections [client NAME]"));
        }
        if t.has("address") {
            return error(t.line, "[token]: address: a daemon serves a token of its own machine; name its module");
        }
        let token = Member { name: "token".into(), ..member(&mut t)? };
        let config = Config {
            listen: address(&mut d, "listen")?.unwrap_or_else(|| SocketAddr::from(([0u16; 8], 7443))),
            metrics: address(&mut d, "metrics")?,
            certificate_file: d.path("certificate-file", "/path/to/tls.crt")?.1,
            key_file: d.path("key-file", "/path/to/tls.key")?.1,
            client_ca_file: d.path("client-ca-file", "/path/to/ca.crt")?.1,
            connections: d.number("connections", 256, 1, 4096)?,
            in_flight: d.number("in-flight", 64, 1, 1024)?,
            idle_timeout: d.time("idle-timeout", 60_000, 100, 3_600_000)?,
            handshake_timeout: d.time("handshake-timeout", 5000, 100, 60_000)?,
            write_timeout: d.time("write-timeout", 5000, 100, 60_000)?,
            drain: d.time("drain", 20_000, 0, 600_000)?,
            token,
            clients,
        };
        d.end(
            "listen, metrics, certificate-file, key-file, client-ca-file, connections, in-flight, idle-timeout, \
             handshake-timeout, write-timeout and drain",
        )?;
        Ok(config)
    }

    /// Whether only what may change under a running daemon is different.
    pub fn same_daemon(&self, other: &Config) -> bool {
        let with = |clients: &[Client]| Config { clients: clients.to_vec(), ..other.clone() };
        *self == with(&self.clients)
    }

    pub fn module(&self) -> Option<&qtls_pkcs11::config::Module> {
        match &self.token.place {
            Place::Module(module) => Some(module),
            Place::Daemon(_) => None,
        }
    }
}
