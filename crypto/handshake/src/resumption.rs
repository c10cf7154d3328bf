//! What a handshake costs HAProxy in full, and when a ticket resumes it: side by side, in every mode.

use crate::{
    client::Client,
    pki,
    server::{scratch, setting, Providers, Server, Settings},
    stats::spread,
    token::{until, Parts},
    Result,
};
use openssl::{base64::encode_block, rand::rand_bytes, ssl::SslSession};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// How a gateway may be run.
struct Mode {
    name: &'static str,
    group: &'static str,
    certificate: &'static str,
    providers: &'static [Providers],
}

const BOTH: &[Providers] = &[Providers::Stock, Providers::Preferred];
const HYBRID: &str = "X25519MLKEM768";

/// RSA-4096 with X25519 is what most servers have today. The fast path has nothing for it.
const MODES: [Mode; 4] = [
    Mode { name: "hybrid", group: HYBRID, certificate: "ML-DSA-65", providers: BOTH },
    Mode { name: "hybrid", group: HYBRID, certificate: "ECDSA-P256", providers: BOTH },
    Mode { name: "classical", group: "X25519", certificate: "RSA-4096", providers: &[Providers::Stock] },
    Mode { name: "PQC only", group: "MLKEM1024", certificate: "ML-DSA-87", providers: BOTH },
];

/// What handshakes of one kind cost, in microseconds of CPU, and how many of them were resumed.
#[derive(Default)]
struct Kind {
    cost: Vec<f64>,
    resumed: usize,
    handshakes: usize,
}

/// One line of the table: a mode and whose algorithms it uses.
struct Row {
    name: String,
    client: Client,
    server: Server,
    full: Kind,
    resumed: Kind,
}

impl Row {
    /// An HAProxy with a certificate that the client trusts.
    fn new(dir: &Path, name: String, settings: &Settings, certificate: &Path, trusted: &Path) -> Result<Row> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = format!("haproxy-{}", NEXT.fetch_add(1, Relaxed));
        Ok(Row {
            name,
            client: Client::new(settings.group, trusted)?,
            server: Server::start(dir, &server, settings, &[certificate])?,
            full: Kind::default(),
            resumed: Kind::default(),
        })
    }

    /// As many handshakes in full, and then as many that the tickets of these resume, each a ticket of its own.
    fn round(&mut self, handshakes: usize) -> Result<()> {
        let none = (0..handshakes).map(|_| None).collect();
        let tickets = self.full.measure(&self.client, &self.server, none)?;
        self.resumed.measure(&self.client, &self.server, tickets)?;
        Ok(())
    }
}

/// What the client saw that makes a row worthless, if anything.
fn failure(name: &str, full: &Kind, resumed: &Kind) -> Option<String> {
    if full.resumed == 0 && resumed.resumed == resumed.handshakes {
        return None;
    }
    Some(format!(
        "{}: {} of {} handshakes with a ticket were resumed, and {} of {} without one",
        name.split_whitespace().collect::<Vec<_>>().join(" "),
        resumed.resumed,
        resumed.handshakes,
        full.resumed,
        full.handshakes,
    ))
}

impl Kind {
    /// Measures a connection with each of the tickets, and returns those that came in exchange.
    fn measure(
        &mut self,
        client: &Client,
        server: &Server,
        tickets: Vec<Option<SslSession>>,
    ) -> Result<Vec<Option<SslSession>>> {
        let (handshakes, mut next) = (tickets.len(), Vec::with_capacity(tickets.len()));
        let before = server.cpu()?;
        for ticket in tickets {
            let connection = client.connect(server.address(), ticket)?;
            self.resumed += connection.resumed as usize;
            next.push(connection.ticket);
        }
        self.cost.push((server.cpu()? - before) / handshakes as f64 * 1e6);
        self.handshakes += handshakes;
        Ok(next)
    }
}

/// Three keys of 80 bytes, as the gateway's agent writes them.
fn ticket_keys(dir: &Path) -> Result<PathBuf> {
    let mut text = String::new();
    for _ in 0..3 {
        let mut key = [0; 80];
        rand_bytes(&mut key)?;
        text += &encode_block(&key);
        text.push('\n');
    }
    let file = dir.join("ticket-keys");
    fs::write(&file, text)?;
    Ok(file)
}

fn name(mode: &str, group: &str, certificate: &str, by: &str) -> String {
    format!("{mode:<10} {group:<15} {certificate:<11} {by:<9}")
}

pub fn run(rounds: usize, handshakes: usize) -> Result<()> {
    let dir = scratch()?;
    let keys = ticket_keys(dir.path())?;
    println!("CPU of HAProxy for one handshake and request, in microseconds: median (quartiles) of {rounds} rounds of {handshakes}, all by turns");
    println!("{}\n", setting()?);
    let mut rows = vec![];
    for mode in &MODES {
        let certificate = pki::certificate(dir.path(), mode.certificate)?;
        for &providers in mode.providers {
            let by = if providers == Providers::Stock { "OpenSSL" } else { "fast path" };
            let settings = Settings { ticket_keys: Some(&keys), ..Settings::new(providers, mode.group) };
            let file = &certificate.file;
            rows.push(Row::new(dir.path(), name(mode.name, mode.group, mode.certificate, by), &settings, file, file)?);
        }
    }
    // A resumed handshake has no signature: a key in a token is not asked for.
    let parts = Parts::new(dir.path())?;
    let token = parts.kryoptic(&[("key", &["-algorithm", "ML-DSA-65"])])?;
    let certificate = parts.certificate(&parts.directly(&token, false)?, "key")?;
    let member = parts.member_kryoptic("kryoptic", 1);
    let environment = [parts.slot("module", "ordered", &[member], &["key"])?, token.environment()].concat();
    let settings = Settings {
        ticket_keys: Some(&keys),
        asynchronous: true,
        environment: &environment,
        ..Settings::new(Providers::Stock, HYBRID)
    };
    let in_token = name("hybrid", HYBRID, "ML-DSA-65", "token");
    rows.push(Row::new(dir.path(), in_token, &settings, &certificate, &certificate.with_extension("crt"))?);
    for row in &mut rows {
        row.round(handshakes)?; // the first connections also fill caches
        (row.full, row.resumed) = Default::default();
    }
    for _ in 0..rounds {
        for row in &mut rows {
            row.round(handshakes)?;
        }
    }
    println!(
        "{:<10} {:<15} {:<11} {:<9} {:>22} {:>22}   {:<22} {:>9}",
        "mode", "key exchange", "certificate", "by", "full", "resumed", "full / resumed", "reused"
    );
    for row in &rows {
        let ratios: Vec<f64> =
            row.full.cost.iter().zip(&row.resumed.cost).map(|(full, resumed)| full / resumed).collect();
        println!(
            "{} {:>22} {:>22}   {:<22} {:>9}",
            row.name,
            format!("{:.0}", spread(&row.full.cost)),
            format!("{:.0}", spread(&row.resumed.cost)),
            format!("{:.2}", spread(&ratios)),
            format!("{}/{}", row.resumed.resumed, row.resumed.handshakes)
        );
    }
    let mut failures: Vec<String> = rows.iter().filter_map(|r| failure(&r.name, &r.full, &r.resumed)).collect();
    let process = rows.last().ok_or("no rows")?.server.id();
    let full = (handshakes * (rounds + 1)) as u64; // with those that filled caches
    let signed = until("the token's signatures are counted", || {
        let signed = parts.signatures(process)?.iter().map(|member| member.1).sum::<u64>();
        Ok((signed >= full).then_some(signed))
    })?;
    println!("\nThe token made {signed} signatures, for {full} handshakes in full and as many that were resumed.");
    if signed != full {
        failures.push(format!("the token made {signed} signatures for {full} handshakes in full"));
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(failures.join("\n").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(resumed: usize) -> Kind {
        Kind { resumed, handshakes: 20, ..Kind::default() }
    }

    #[test]
    fn a_row_is_of_full_handshakes_and_of_resumed_ones() {
        assert_eq!(failure("hybrid", &kind(0), &kind(20)), None);
        let one_in_full = failure("PQC only   MLKEM1024", &kind(0), &kind(19)).unwrap();
        assert_eq!(
            one_in_full,
            "PQC only MLKEM1024: 19 of 20 handshakes with a ticket were resumed, and 0 of 20 without one"
        );
        assert!(failure("hybrid", &kind(1), &kind(20)).is_some(), "a full one that was none");
    }
}
