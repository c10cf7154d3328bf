//! The members of a slot, and which of them makes a signature.

use crate::{
    config::{Config, Order},
    library::lock,
    member::{Member, State},
    status::Status,
    token::{Failure, Request, Result, Token},
    verdict::Verdict,
};
use cryptoki_sys::CKR_DEVICE_ERROR;
use std::{
    collections::HashSet,
    sync::{
        atomic::{AtomicUsize, Ordering},
        Arc, Mutex,
    },
    thread,
    time::{Duration, Instant},
};

pub struct Pool {
    order: Order,
    members: Vec<Arc<Member>>,
    turn: AtomicUsize,
    /// What was told of a member that is up and yet could not sign: of a key that it has not, for instance.
    told: Mutex<HashSet<(usize, String)>>,
    log: fn(&str),
}

impl Pool {
    /// Connects to all members in the background. `token` says how each is reached.
    pub fn start(
        config: &Arc<Config>,
        mut token: impl FnMut(&crate::config::Member) -> Box<dyn Token>,
        check_interval: Duration,
        log: fn(&str),
    ) -> Pool {
        let start = |m: &crate::config::Member| Member::start(m.clone(), token(m), check_interval, log);
        let members = config.members.iter().map(start).collect();
        Pool { order: config.order, members, turn: AtomicUsize::new(0), told: Mutex::default(), log }
    }

    pub fn states(&self) -> Vec<(&str, State)> {
        self.members.iter().map(|m| (m.name(), m.state())).collect()
    }

    /// What says how the members are, for as long as they are there.
    pub fn observer(&self) -> impl Fn() -> Vec<Status> + Send + 'static {
        let members = self.members.clone();
        move || members.iter().map(|m| m.status()).collect()
    }

    /// Members that are up, in order of preference, then those that may be up soon, and at last those that are down: one of
    /// them may have come back just now.
    fn candidates(&self) -> Vec<usize> {
        let count = self.members.len();
        let first = match self.order {
            Order::Ordered => 0,
            Order::Spread => self.turn.fetch_add(1, Ordering::Relaxed) % count,
        };
        let mut candidates: Vec<usize> = (0..count).map(|i| (first + i) % count).collect();
        candidates.sort_by_key(|&i| match self.members[i].state() {
            State::Up => 0,
            State::Starting => 1,
            State::Down => 2,
        });
        candidates
    }

    /// Makes one signature with whichever member can.
    pub fn sign(&self, request: Request) -> Result<Vec<u8>> {
        let request = Arc::new(request);
        let mut order = self.candidates();
        let members = order.len();
        let (mut lost, mut unable) = (Vec::new(), None);
        for n in 0.. {
            if n == members {
                // Who was lost first may be back by now: the others may have taken their time-outs. Whoever took its own is
                // not asked again, for the caller waits.
                order.extend(lost.iter().filter(|&&i: &&usize| self.members[i].state() == State::Up));
            }
            let Some(&i) = order.get(n) else { break };
            if n > 0 && order[n - 1] != i {
                self.members[order[n - 1]].failed_over();
            }
            let asked = Instant::now();
            let failure = match self.members[i].sign(&request) {
                Ok(signature) => return Ok(signature),
                Err(e) => e,
            };
            match failure.verdict() {
                Verdict::Request => return Err(failure),
                // The member has told it.
                Verdict::Device | Verdict::Pin | Verdict::Session if asked.elapsed() < self.members[i].timeout() => {
                    lost.push(i)
                }
                Verdict::Device | Verdict::Pin | Verdict::Session => {}
                Verdict::Handle => self.tell(i, &failure),
                Verdict::Unable => {
                    self.tell(i, &failure);
                    unable.get_or_insert(failure);
                }
            }
        }
        Err(unable.unwrap_or_else(|| Failure::new(CKR_DEVICE_ERROR, "no member made the signature")))
    }

    /// Tells each failure once: with every signature it would drown the rest.
    fn tell(&self, member: usize, failure: &Failure) {
        let message = failure.to_string();
        let mut told = lock(&self.told);
        if told.len() < 256 && told.insert((member, message.clone())) {
            (self.log)(&format!("member {} did not sign: {message}", self.members[member].name()));
        }
    }

    /// Ends the workers that end in time. True if all did: none of them is in a library any more.
    pub fn stop(&self, time: Duration) -> bool {
        self.members.iter().for_each(|m| m.stop());
        let deadline = Instant::now() + time;
        loop {
            if self.members.iter().all(|m| m.stopped()) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}
