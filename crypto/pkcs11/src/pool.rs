//! The members of a slot, and which of them makes a signature or a key.

use crate::{
    config::{Config, Order},
    library::lock,
    member::{Member, NotMade, State},
    spki::PublicKey,
    status::Status,
    token::{Algorithm, Failure, KeyName, Request, Result, Session, Token, GENERATE_TIME},
    verdict::Verdict,
};
use cryptoki_sys::*;
use std::{
    collections::HashSet,
    sync::{
        atomic::{AtomicUsize, Ordering},
        Arc, Mutex,
    },
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

    #[cfg(test)]
    pub fn members(&self) -> &[Arc<Member>] {
        &self.members
    }

    /// What says how the members are, for as long as they are there.
    pub fn observer(&self) -> impl Fn() -> Vec<Status> + Send + 'static {
        let members = self.members.clone();
        move || members.iter().map(|m| m.status()).collect()
    }

    /// Members that are up, in order of preference or by turns, then those that may be up soon, and at last those that are
    /// down: one of them may have come back just now.
    fn candidates(&self) -> Vec<usize> {
        let rank = |i: &usize| match self.members[*i].state() {
            State::Up => 0,
            State::Starting => 1,
            State::Down => 2,
        };
        let mut candidates: Vec<(i32, usize)> = (0..self.members.len()).map(|i| (rank(&i), i)).collect();
        candidates.sort();
        if self.order == Order::Spread {
            // Only among themselves: the one after a member that is down would have its turns, too.
            let alike = candidates.iter().take_while(|c| c.0 == candidates[0].0).count();
            candidates[..alike].rotate_left(self.turn.fetch_add(1, Ordering::Relaxed) % alike);
        }
        candidates.into_iter().map(|c| c.1).collect()
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
            let elsewhere = order[n + 1..].iter().any(|&i| self.members[i].state() == State::Up);
            let failure = match self.members[i].sign(&request, elsewhere) {
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

    /// Has the first member make a key, and tells its public half.
    ///
    /// No member may have a key with that label, so each is asked, and none is made while one gives no answer: were it another
    /// key that it has, it would sign with that when it is back. The making is asked for once: neither the member is asked
    /// again nor another one, for an answer that is lost must not make two keys.
    pub fn generate(&self, algorithm: Algorithm, name: &KeyName) -> Result<PublicKey> {
        let made = self.nobody_has(&name.label).and_then(|()| self.made(&self.members[0], algorithm, name));
        let kind = algorithm.name();
        match &made {
            Ok(_) => (self.log)(&format!("member {} made {kind} key {name}", self.members[0].name())),
            Err((member, e)) => (self.log)(&format!("{kind} key {name} is not made: member {}: {e}", member.name())),
        }
        made.map_err(|(_, failure)| failure)
    }

    fn nobody_has(&self, label: &str) -> Outcome<'_, ()> {
        for member in &self.members {
            let name = KeyName { label: label.into(), id: vec![] };
            let has = member.call(member.timeout(), move |session| has(session, &name));
            match has {
                Ok(false) => {}
                Ok(true) => {
                    let what = "it has a key with that label already; choose another";
                    return Err((member, Failure::new(CKR_ATTRIBUTE_VALUE_INVALID, what)));
                }
                Err(e) => {
                    let what = format!("whether it has a key with that label is not known: {e}");
                    return Err((member, Failure::new(programs(&e), what)));
                }
            }
        }
        Ok(())
    }

    fn made<'a>(&self, member: &'a Arc<Member>, algorithm: Algorithm, name: &KeyName) -> Outcome<'a, PublicKey> {
        let made = member.generate(algorithm, name, GENERATE_TIME + member.timeout());
        member.key_changed(name);
        let found = made.map_err(|NotMade { failure: e, asked }| {
            let what = match asked && !refused(&e) {
                true => {
                    format!("{e}; it may have made the key all the same: look for it there before it is asked again")
                }
                false => e.to_string(),
            };
            (member, Failure::new(programs(&e), what))
        })?;
        if !found.sensitive || found.extractable || !found.local {
            let what = "it made the key so that it can leave: destroy that key";
            return Err((member, Failure::new(CKR_FUNCTION_FAILED, what)));
        }
        PublicKey::from_der(&found.public).map_err(|e| (member, Failure::new(CKR_FUNCTION_FAILED, e)))
    }

    /// Tells each failure once: with every signature it would drown the rest.
    fn tell(&self, member: usize, failure: &Failure) {
        let message = failure.to_string();
        let news = {
            let mut told = lock(&self.told);
            told.len() < 256 && told.insert((member, message.clone()))
        };
        if news {
            (self.log)(&format!("member {} did not sign: {message}", self.members[member].name()));
        }
    }

    /// Ends the workers that end in time. True if all did: none of them is in a library any more.
    pub fn stop(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        // All are told before one is waited for.
        for member in &self.members {
            member.stop(Duration::ZERO);
        }
        self.members.iter().all(|m| m.stop(deadline.saturating_duration_since(Instant::now())))
    }
}

/// What became of a key that was to be made, or which member is why not.
type Outcome<'a, T> = std::result::Result<T, (&'a Arc<Member>, Failure)>;

/// What a program is told of a failure: of members' sessions and PINs it knows nothing.
fn programs(failure: &Failure) -> CK_RV {
    match failure.verdict() {
        Verdict::Request | Verdict::Unable => failure.code,
        _ => CKR_DEVICE_ERROR,
    }
}

/// Whether a token that was to make a key said no before it did anything.
fn refused(failure: &Failure) -> bool {
    const BEFORE: [CK_RV; 6] = [
        CKR_ACTION_PROHIBITED,
        CKR_FUNCTION_NOT_SUPPORTED,
        CKR_MECHANISM_INVALID,
        CKR_MECHANISM_PARAM_INVALID,
        CKR_SESSION_COUNT, // an hsmd is full, or another process makes a key
        CKR_TOKEN_WRITE_PROTECTED,
    ];
    failure.verdict() == Verdict::Request || BEFORE.contains(&failure.code)
}

/// Whether a token has a key with a name: one that it cannot tell the public half of, or more than one, among them.
fn has(session: &mut dyn Session, name: &KeyName) -> Result<bool> {
    match session.public(name) {
        Err(e) if e.code == CKR_KEY_TYPE_INCONSISTENT => Ok(true),
        found => Ok(found?.is_some()),
    }
}
