//! Who has a place among the connections. Peers whose handshake is not done have those that no client has, and few of their
//! own besides. When all are taken they lose them to others that come: whoever has no certificate takes none from a client.
//! Clients share what there is by their addresses, which tell pods apart: a gateway's all have the same certificate.

use crate::shares::may_have;
use qtls_pkcs11::library::lock;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Shutdown, TcpStream},
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

/// How long a handshake has at least, when others wait for its place. A client's takes some milliseconds.
pub const GRACE: Duration = Duration::from_millis(50);

pub struct Places {
    /// For clients.
    most: usize,
    /// Those of them that are kept for who may make keys.
    kept: usize,
    /// Those that peers whose handshake is not done have in any case, besides the clients'.
    newcomers: usize,
    /// How long a peer has its place at least.
    grace: Duration,
    taken: Mutex<Taken>,
    changed: Condvar,
}

#[derive(Default)]
struct Taken {
    /// By number, and so in the order in which they came.
    newcomers: BTreeMap<u64, Newcomer>,
    clients: HashMap<u64, (Arc<TcpStream>, IpAddr)>,
    last: u64,
}

/// Why a client has no place.
#[derive(Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// Of as many clients as there may be (such ones) so many are there, and its address has its share of them.
    Full { most: usize, taken: usize, has: usize },
    /// It was needed for another, just before the handshake was done.
    Dismissed,
}

struct Newcomer {
    tcp: Arc<TcpStream>,
    address: IpAddr,
    since: Instant,
    /// Its place is needed.
    dismissed: bool,
}

impl Places {
    pub fn new(connections: usize, grace: Duration) -> Places {
        let (kept, newcomers) = ((connections / 16).min(8), (connections / 4).max(4));
        Places { most: connections, kept, newcomers, grace, taken: Mutex::default(), changed: Condvar::new() }
    }

    /// Gives a peer that has yet to shake hands a place, and a number. If there is none, it waits until another has lost its.
    pub fn enter(&self, tcp: &Arc<TcpStream>, address: IpAddr) -> u64 {
        let mut taken = lock(&self.taken);
        // As many clients as there may be shake hands at a time when an hsmd restarts: none is cut off.
        while taken.newcomers.len() >= self.newcomers && taken.newcomers.len() + taken.clients.len() >= self.most {
            let time = taken.make_room(address, self.grace);
            taken = self.changed.wait_timeout(taken, time).unwrap_or_else(|e| e.into_inner()).0;
        }
        taken.last += 1;
        let id = taken.last;
        let newcomer = Newcomer { tcp: tcp.clone(), address, since: Instant::now(), dismissed: false };
        taken.newcomers.insert(id, newcomer);
        id
    }

    /// The peer is a client, which may make keys or not. If there is no place for it, it keeps the one it has.
    pub fn admit(&self, id: u64, makes_keys: bool) -> Result<(), NoPlace> {
        let mut taken = lock(&self.taken);
        if taken.dismissed(id) {
            return Err(NoPlace::Dismissed);
        }
        let Some(Newcomer { address, tcp, .. }) = taken.newcomers.get(&id) else { return Err(NoPlace::Dismissed) };
        let (address, client) = (*address, (tcp.clone(), *address));
        let most = if makes_keys { self.most } else { self.most - self.kept };
        let has = taken.clients.values().filter(|client| client.1 == address).count();
        let kept = makes_keys && has < self.kept && taken.clients.len() < most;
        if !kept && !may_have(has, 1, taken.clients.len(), most) {
            return Err(NoPlace::Full { most, taken: taken.clients.len(), has });
        }
        taken.newcomers.remove(&id);
        taken.clients.insert(id, client);
        self.changed.notify_one();
        Ok(())
    }

    /// Its place was needed: its socket is shut.
    pub fn dismissed(&self, id: u64) -> bool {
        lock(&self.taken).dismissed(id)
    }

    pub fn leave(&self, id: u64) {
        let mut taken = lock(&self.taken);
        taken.newcomers.remove(&id);
        taken.clients.remove(&id);
        self.changed.notify_one();
    }

    /// Nothing more is read from anybody.
    pub fn shut(&self) {
        let taken = lock(&self.taken);
        for tcp in taken.newcomers.values().map(|n| &n.tcp).chain(taken.clients.values().map(|c| &c.0)) {
            let _ = tcp.shutdown(Shutdown::Read);
        }
    }
}

impl Taken {
    fn dismissed(&self, id: u64) -> bool {
        self.newcomers.get(&id).is_some_and(|n| n.dismissed)
    }

    /// Has somebody leave for a peer of that address, but one at a time: there are never more of them than places. It returns
    /// how long there is to wait.
    fn make_room(&mut self, address: IpAddr, grace: Duration) -> Duration {
        const LEAVES: Duration = Duration::from_secs(1);
        if self.newcomers.values().any(|n| n.dismissed) {
            return LEAVES;
        }
        let waiting: Vec<_> = self.newcomers.iter().map(|(id, n)| (*id, n.address)).collect();
        let Some(newcomer) = superfluous(&waiting, address).and_then(|id| self.newcomers.get_mut(&id)) else {
            return LEAVES;
        };
        let age = newcomer.since.elapsed();
        if age < grace {
            return grace - age;
        }
        newcomer.dismissed = true;
        let _ = newcomer.tcp.shutdown(Shutdown::Both);
        LEAVES
    }
}

/// Who loses its place to a peer of that address: of the address with most of them, the coming one included, who came first.
pub fn superfluous(waiting: &[(u64, IpAddr)], coming: IpAddr) -> Option<u64> {
    let mut counts = HashMap::from([(coming, 1)]);
    for (_, address) in waiting {
        *counts.entry(*address).or_insert(0) += 1;
    }
    let rank = |(id, address): &&(u64, IpAddr)| (counts[address], *address == coming, Reverse(*id));
    waiting.iter().max_by_key(rank).map(|(id, _)| *id)
}
