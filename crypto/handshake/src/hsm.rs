//! What keys in an HSM cost, and what a slow HSM does to those who do not use it: side by side, in turns.
//!
//! Whose signature it was is counted by the tokens; the clients verify each against the certificate. What is to fail is
//! seen to fail.

use crate::{
    client::{load, Client, Tally},
    pki,
    server::{cpu, scratch, setting, Providers, Server, Settings},
    stats::{quantile, spread},
    token::{until, Daemon, Environment, Fake, Parts},
    Result,
};
use std::{
    net::SocketAddr,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

const GROUP: &str = "X25519MLKEM768";

/// Clients at a time of a token that takes no time of its own.
const CLIENTS: usize = 8;
/// Clients at a time of a slow one: more than it has sessions.
const MANY: usize = 48;
/// What a signature of the slow token takes.
const DELAY: Duration = Duration::from_millis(10);
/// Those that do not use it: so many clients, which make a handshake each time.
const OTHERS: usize = 4;
const PACE: Duration = Duration::from_millis(25);
/// How many handshakes show whether something works at all.
const FEW: usize = 20;

/// Labels of keys in kryoptic, and what they are: as the software key's file has it, and as `openssl genpkey` takes it.
type Key = (&'static str, &'static str, &'static [&'static str]);
const KEYS: [Key; 2] = [
    ("ecdsa", "ECDSA-P256", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]),
    ("mldsa", "ML-DSA-65", &["-algorithm", "ML-DSA-65"]),
];

/// The order of a round: each row has each place, and each of its neighbours before it and behind it.
fn order(rows: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows).map(|i| (i + round / 2) % rows).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// What handshakes of one kind were like: an entry for each round, but for the times of all.
#[derive(Default)]
struct Seen {
    rate: Vec<f64>,
    median: Vec<f64>,
    cpu: Vec<f64>,
    times: Vec<f64>,
    handshakes: usize,
    failures: Vec<String>,
}

impl Seen {
    fn add(&mut self, name: &str, tally: Tally, took: Duration, cpu: f64) {
        let made = tally.times.len();
        self.handshakes += made;
        self.failures.extend(tally.failure(GROUP, name));
        if made > 0 {
            self.rate.push(made as f64 / took.as_secs_f64());
            self.median.push(quantile(&tally.times, 0.5));
            self.cpu.push(cpu / made as f64 * 1e6);
            self.times.extend(tally.times);
        }
    }

    fn p99(&self) -> f64 {
        quantile(&self.times, 0.99)
    }
}

/// An HAProxy, the processes that work for it, and what was seen of it.
struct Row {
    name: String,
    client: Client,
    server: Server,
    daemons: Vec<Daemon>,
    fakes: Vec<Fake>,
    /// Its key is one that libqtls_pkcs11.so has a member sign with.
    counted: bool,
    seen: Seen,
    /// Those that use another key.
    others: Seen,
    /// All handshakes with the key, those before the measurement too.
    made: usize,
}

impl Row {
    /// An HAProxy with certificates, the first of which is measured.
    fn new(dir: &Path, name: &str, certificates: &[&Path], settings: &Settings) -> Result<Row> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Ok(Row {
            name: name.into(),
            client: Client::new(GROUP, &certificates[0].with_extension("crt"))?,
            server: Server::start(dir, &format!("haproxy-{}", NEXT.fetch_add(1, Relaxed)), settings, certificates)?,
            daemons: vec![],
            fakes: vec![],
            counted: false,
            seen: Seen::default(),
            others: Seen::default(),
            made: 0,
        })
    }

    fn processes(&self) -> Result<f64> {
        self.daemons.iter().try_fold(self.server.cpu()?, |sum, daemon| Ok(sum + cpu(daemon.id())?))
    }

    /// Measures what a load costs.
    fn measure(&mut self, load: impl FnOnce(&Client, &Server) -> Tally) -> Result<()> {
        let (before, start) = (self.processes()?, Instant::now());
        let tally = load(&self.client, &self.server);
        let (took, cpu) = (start.elapsed(), self.processes()? - before);
        self.made += tally.times.len();
        self.seen.add(&self.name, tally, took, cpu);
        Ok(())
    }

    /// Forgets what was seen: the first connections also fill caches, and open sessions.
    fn forget(&mut self) {
        for seen in [&mut self.seen, &mut self.others] {
            let failures = std::mem::take(&mut seen.failures);
            *seen = Seen { failures, ..Seen::default() };
        }
    }

    /// Who made the signatures. All who count them have to count the same.
    fn signed_by(&self, parts: &Parts) -> Result<String> {
        if !self.counted {
            return Ok("-".into());
        }
        let made = self.made as u64;
        // The module writes its counters once a second.
        let members = until(&format!("{}: {made} signatures are counted", self.name), || {
            let members = parts.signatures(self.server.id())?;
            Ok((members.iter().map(|m| m.1).sum::<u64>() >= made).then_some(members))
        })?;
        let mut counts = vec![members.iter().map(|m| m.1).sum::<u64>()];
        let behind = self.daemons.iter().map(Daemon::signatures).collect::<Result<Vec<_>>>()?;
        let tokens = self.fakes.iter().map(Fake::signatures).collect::<Result<Vec<_>>>()?;
        counts.extend(
            [behind, tokens].iter().filter(|counts| !counts.is_empty()).map(|counts| counts.iter().sum::<u64>()),
        );
        if counts.iter().any(|count| *count != made) {
            let name = &self.name;
            return Err(format!("{name}: {made} handshakes, and as members and tokens count them: {counts:?}").into());
        }
        Ok(members.iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", "))
    }
}

/// So many handshakes, by several clients at a time.
fn count(client: &Client, address: SocketAddr, clients: usize, handshakes: usize) -> Tally {
    let left = AtomicUsize::new(handshakes);
    load(clients, || {
        left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).ok()?;
        Some(client.handshake(address))
    })
}

/// As many handshakes as there are in a time; one at least, on a machine that stands still for as long.
fn press(client: &Client, address: SocketAddr, time: Duration) -> Tally {
    let (end, first) = (Instant::now() + time, AtomicBool::new(true));
    load(MANY, || (first.swap(false, Relaxed) || Instant::now() < end).then(|| client.handshake(address)))
}

/// Handshakes at their times, if those before are over by then; one at least.
fn pace(client: &Client, address: SocketAddr, time: Duration) -> Tally {
    let (start, turn) = (Instant::now(), AtomicU32::new(0));
    load(OTHERS, || {
        let at = PACE * turn.fetch_add(1, Relaxed);
        if !at.is_zero() && (at >= time || start.elapsed() >= time) {
            return None;
        }
        thread::sleep(at.saturating_sub(start.elapsed()));
        Some(client.handshake(address))
    })
}

/// The quotients of two rows, round by round, if there are any: a row without a handshake has none.
fn compared(a: &[f64], b: &[f64], digits: usize) -> String {
    let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
    match ratios.is_empty() {
        true => "-".into(),
        false => format!("{:.digits$}", spread(&ratios)),
    }
}

pub fn run(rounds: usize, handshakes: usize, seconds: usize) -> Result<()> {
    let dir = scratch()?;
    let parts = Parts::new(dir.path())?;
    println!("{}\n", setting()?);
    let mut failures = cost(dir.path(), &parts, rounds, handshakes)?;
    let time = Duration::from_secs(seconds as u64);
    failures.extend(slow(dir.path(), &parts, rounds, time)?);
    failures.extend(threads(dir.path(), &parts, rounds, time)?);
    if failures.is_empty() {
        return Ok(());
    }
    Err(failures.join("\n").into())
}

/// Rounds of all rows, after one that fills caches and opens sessions.
fn measure(rows: &mut [Row], rounds: usize, mut round: impl FnMut(&mut Row) -> Result<()>) -> Result<()> {
    for row in rows.iter_mut() {
        round(row)?;
        row.forget();
    }
    for n in 0..rounds {
        for i in order(rows.len(), n) {
            round(&mut rows[i])?;
        }
    }
    Ok(())
}

/// The same token, reached in each way there is.
fn cost(dir: &Path, parts: &Parts, rounds: usize, handshakes: usize) -> Result<Vec<String>> {
    println!(
        "A handshake and its request, {CLIENTS} clients at a time: median (quartiles) of {rounds} rounds of {handshakes}, all by turns.\n\
         CPU of HAProxy and of what works for it, in microseconds.\n"
    );
    let token = parts.kryoptic(&KEYS.map(|(label, _, how)| (label, how)))?;
    let labels = KEYS.map(|key| key.0);
    let (directly, copied) = (parts.directly(&token, false)?, parts.directly(&token, true)?);
    let member = parts.member_kryoptic("kryoptic", CLIENTS);
    let module = [parts.slot("module", "ordered", &[member], &labels)?, token.environment()].concat();
    let waiting = Settings::new(Providers::Stock, GROUP);
    let paused = Settings { asynchronous: true, ..Settings::new(Providers::Stock, GROUP) };
    let fast = Settings { asynchronous: true, ..Settings::new(Providers::Preferred, GROUP) };
    let mut rows: Vec<Row> = vec![];
    for (label, algorithm, _) in KEYS {
        let software = pki::certificate(dir, algorithm)?.file;
        let certificate = parts.certificate(&directly, label)?;
        let name = |way: &str| format!("{algorithm:<11} {way}");
        let in_process = |way: &str, settings: &Settings, environment: &Environment| {
            Row::new(dir, &name(way), &[&certificate], &Settings { environment, ..*settings })
        };
        // Each token has the same keys, and an hsmd of its own.
        let behind = |way: &str, members: usize| -> Result<Row> {
            let (mut daemons, mut sections) = (vec![], vec![]);
            for i in 0..members {
                let (member, at) = ((b'a' + i as u8) as char, format!("{label}-{members}-{i}"));
                let copy = token.copy(&format!("kryoptic-{at}"))?;
                let daemon = parts.hsmd_kryoptic(&format!("hsmd-{at}"), &copy, CLIENTS)?;
                sections.push(parts.member_hsmd(&format!("hsmd-{member}"), &daemon, CLIENTS));
                daemons.push(daemon);
            }
            let environment = parts.slot(&format!("behind-{label}-{members}"), "spread", &sections, &labels)?;
            Ok(Row { daemons, counted: true, ..in_process(way, &paused, &environment)? })
        };
        rows.extend([
            Row::new(dir, &name(SOFTWARE), &[&software], &waiting)?,
            in_process(DIRECTLY, &waiting, &directly)?,
            in_process("direct, key copied", &waiting, &copied)?,
            Row { counted: true, ..in_process("module, threads wait", &waiting, &module)? },
            Row { counted: true, ..in_process("module", &paused, &module)? },
            behind("hsmd", 1)?,
            behind("two hsmds, spread", 2)?,
        ]);
        if algorithm == "ML-DSA-65" {
            rows.push(Row { counted: true, ..in_process("module, fast path", &fast, &module)? });
        }
    }
    measure(&mut rows, rounds, |row| {
        row.measure(|client, server| count(client, server.address(), CLIENTS, handshakes))
    })?;
    println!(
        "{:<33} {:>18} {:>21} {:>7} {:>21}   {:<20} signatures",
        "key", "handshakes/s", "median, ms", "99 %", "CPU", "of the direct way's"
    );
    let mut failures = vec![];
    let mut direct = vec![];
    for row in &rows {
        failures.extend(row.seen.failures.iter().cloned());
        if row.seen.rate.is_empty() {
            continue; // it is among the failures
        }
        if row.name.ends_with(DIRECTLY) {
            direct.clone_from(&row.seen.cpu);
        }
        let compared = match row.name.ends_with(SOFTWARE) {
            true => "-".into(),
            false => compared(&row.seen.cpu, &direct, 2),
        };
        println!(
            "{:<33} {:>18} {:>21} {:>7.2} {:>21}   {compared:<20} {}",
            row.name,
            format!("{:.0}", spread(&row.seen.rate)),
            format!("{:.2}", spread(&row.seen.median)),
            row.seen.p99(),
            format!("{:.0}", spread(&row.seen.cpu)),
            row.signed_by(parts)?
        );
    }
    println!("\nThe aim is 1.25 of the direct way's CPU at most.\n");
    // One of two that is gone costs nothing.
    if let Some(row) = rows.iter_mut().find(|row| row.daemons.len() == 2) {
        row.daemons[0].kill()?;
        let tally = count(&row.client, row.server.address(), 1, FEW);
        println!("one of two hsmds is killed: {tally} handshakes succeed");
        failures.extend(tally.failure(GROUP, "one of two hsmds killed"));
    }
    Ok(failures)
}

const SOFTWARE: &str = "software key";
const DIRECTLY: &str = "token, direct";

/// A token that takes its time, and those who do not use it.
fn slow(dir: &Path, parts: &Parts, rounds: usize, time: Duration) -> Result<Vec<String>> {
    let delay = DELAY.as_millis();
    println!(
        "\nA token that takes {delay} ms, {MANY} clients at a time, HAProxy on one thread; and {OTHERS} clients that make a handshake every {} ms\n\
         at another port with a software key. Median (quartiles) of {rounds} rounds of {} s, all by turns.\n",
        PACE.as_millis(),
        time.as_secs()
    );
    let (key, other) = (pki::certificate(dir, "ECDSA-P384")?.file, pki::certificate(dir, "ECDSA-P256")?.file);
    let certificate = parts.certificate_of("slow", &key.with_extension("key"))?;
    let others = Client::new(GROUP, &other.with_extension("crt"))?;
    let mut rows: Vec<Row> = vec![];
    for (name, asynchronous, hsmd, tokens, sessions) in [
        (WAITING, false, false, 1, 16),
        ("ASYNC, 1 session", true, false, 1, 1),
        ("ASYNC, 4 sessions", true, false, 1, 4),
        ("ASYNC, 4 and 4 of two tokens", true, false, 2, 4),
        (PAUSED, true, false, 1, 16),
        (BEHIND, true, true, 1, 16),
    ] {
        let (mut fakes, mut daemons, mut members) = (vec![], vec![], vec![]);
        for i in 0..tokens {
            let (member, at) = ((b'a' + i as u8) as char, format!("slow-{}-{i}", rows.len()));
            let fake = parts.fake(&at, "slow", &key.with_extension("key"))?;
            fake.takes(DELAY)?;
            if hsmd {
                let daemon = parts.hsmd_fake(&format!("hsmd-{at}"), &fake, sessions)?;
                members.push(parts.member_hsmd(&member.to_string(), &daemon, sessions));
                daemons.push(daemon);
            } else {
                members.push(parts.member_fake(&member.to_string(), &fake, sessions));
            }
            fakes.push(fake);
        }
        let environment = parts.slot(&format!("slot-{}", rows.len()), "spread", &members, &["slow"])?;
        let settings = Settings { asynchronous, environment: &environment, ..Settings::new(Providers::Stock, GROUP) };
        let row = Row::new(dir, name, &[&certificate, &other], &settings)?;
        rows.push(Row { fakes, daemons, counted: true, ..row });
    }
    measure(&mut rows, rounds, |row| {
        let address = row.server.addresses[1];
        let tally = thread::scope(|scope| -> Result<Tally> {
            let paced = scope.spawn(|| pace(&others, address, time));
            row.measure(|client, server| press(client, server.address(), time))?;
            paced.join().map_err(|_| "a client panicked".into())
        })?;
        row.others.add(&format!("{}, the other port", row.name), tally, time, 0.0);
        Ok(())
    })?;
    let blocked = rows[0].seen.rate.clone(); // of the threads that wait
    println!(
        "{:<33} {:>18} {:>21} {:>21} {:>8} {:>21} {:>8}   signatures",
        "", "handshakes/s", "of what waits", "median, ms", "99 %", "other port's, ms", "99 %"
    );
    let mut failures = vec![];
    for row in &rows {
        failures.extend([&row.seen, &row.others].into_iter().flat_map(|seen| seen.failures.iter().cloned()));
        if row.seen.rate.is_empty() || row.others.rate.is_empty() {
            continue; // it is among the failures
        }
        println!(
            "{:<33} {:>18} {:>21} {:>21} {:>8.1} {:>21} {:>8.1}   {}",
            row.name,
            format!("{:.0}", spread(&row.seen.rate)),
            compared(&row.seen.rate, &blocked, 1),
            format!("{:.1}", spread(&row.seen.median)),
            row.seen.p99(),
            format!("{:.1}", spread(&row.others.median)),
            row.others.p99(),
            row.signed_by(parts)?
        );
    }
    println!("\nThe aim is 8 times the handshakes of threads that wait, with as many sessions.\n");
    let last = rows.last_mut().ok_or("no rows")?;
    failures.extend(controls(dir, parts, last, &others, &other)?);
    Ok(failures)
}

/// What a second thread of HAProxy is worth where a slow token has sessions for all clients.
fn threads(dir: &Path, parts: &Parts, rounds: usize, time: Duration) -> Result<Vec<String>> {
    println!(
        "\nHAProxy's threads and a token that takes {} ms, ASYNC, {MANY} sessions and clients. Median (quartiles) of {rounds} rounds of {} s, all by turns.\n",
        DELAY.as_millis(),
        time.as_secs()
    );
    let key = pki::certificate(dir, "ECDSA-P384")?.file.with_extension("key");
    let certificate = parts.certificate_of("threads", &key)?;
    let mut rows: Vec<Row> = vec![];
    for threads in [1, 2] {
        let name = format!("threads-{threads}");
        let fake = parts.fake(&name, "threads", &key)?;
        fake.takes(DELAY)?;
        let environment = parts.slot(&name, "ordered", &[parts.member_fake("a", &fake, MANY)], &["threads"])?;
        let settings = Settings {
            asynchronous: true,
            threads,
            environment: &environment,
            ..Settings::new(Providers::Stock, GROUP)
        };
        let row = Row::new(dir, &name.replace('-', " "), &[&certificate], &settings)?;
        rows.push(Row { fakes: vec![fake], counted: true, ..row });
    }
    measure(&mut rows, rounds, |row| row.measure(|client, server| press(client, server.address(), time)))?;
    println!(
        "{:<33} {:>18} {:>21} {:>21} {:>8} {:>21}   signatures",
        "", "handshakes/s", "of one thread's", "median, ms", "99 %", "CPU"
    );
    let one = rows[0].seen.rate.clone();
    let mut failures = vec![];
    for row in &rows {
        failures.extend(row.seen.failures.iter().cloned());
        if row.seen.rate.is_empty() {
            continue; // it is among the failures
        }
        println!(
            "{:<33} {:>18} {:>21} {:>21} {:>8.1} {:>21}   {}",
            row.name,
            format!("{:.0}", spread(&row.seen.rate)),
            compared(&row.seen.rate, &one, 2),
            format!("{:.1}", spread(&row.seen.median)),
            row.seen.p99(),
            format!("{:.0}", spread(&row.seen.cpu)),
            row.signed_by(parts)?
        );
    }
    Ok(failures)
}

const WAITING: &str = "threads wait, 16 sessions";
const PAUSED: &str = "ASYNC, 16 sessions";
const BEHIND: &str = "ASYNC, 16 sessions, hsmd";

/// What has to fail, and does.
fn controls(dir: &Path, parts: &Parts, row: &mut Row, others: &Client, other: &Path) -> Result<Vec<String>> {
    let mut failures = vec![];
    // The only hsmd is killed: nobody can have the key's signatures from elsewhere, and the other port has no need of it.
    row.daemons[0].kill()?;
    let (dead, alive) =
        (count(&row.client, row.server.address(), 1, FEW), count(others, row.server.addresses[1], 1, FEW));
    println!("the only hsmd is killed: {dead} handshakes succeed, and {alive} at the other port");
    if !dead.times.is_empty() {
        failures.push(format!("the only hsmd is killed, and {dead} handshakes succeed"));
    }
    failures.extend(alive.failure(GROUP, "the only hsmd killed, the other port"));
    if !row.server.log()?.contains("member a is down: hsmd 127.0.0.1") {
        failures.push(format!("HAProxy's log does not name the member that is down: {}", row.server.log()?));
    }
    // A certificate that is not the key's.
    let wrong = dir.join("wrong.pem");
    let reference = std::fs::read_to_string(dir.join("slow.pem"))?;
    let reference = reference.split_inclusive("-----END CERTIFICATE-----\n").last().unwrap_or_default();
    std::fs::write(&wrong, std::fs::read_to_string(other.with_extension("crt"))? + reference)?;
    let environment = parts.slot("wrong", "ordered", &[parts.member_kryoptic("a", 1)], &["slow"])?;
    let settings = Settings { environment: &environment, ..Settings::new(Providers::Stock, GROUP) };
    match Server::start(dir, "wrong", &settings, &[&wrong]) {
        Ok(_) => failures.push("HAProxy starts with a certificate that is not the key's".into()),
        Err(e) if e.to_string().contains("inconsistencies between private key and certificate") => {
            println!("a certificate that is not the key's: HAProxy refuses it")
        }
        Err(e) => failures.push(format!("a certificate that is not the key's is refused for another reason: {e}")),
    }
    Ok(failures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn in_as_many_rounds_as_rows_each_row_is_first_and_last() {
        let rounds: Vec<Vec<usize>> = (0..10).map(|round| order(5, round)).collect();
        for place in [0, 4] {
            assert_eq!(rounds.iter().map(|order| order[place]).collect::<HashSet<_>>().len(), 5);
        }
        assert!(rounds.iter().all(|order| order.iter().collect::<HashSet<_>>().len() == 5), "all rows in every round");
    }
}
