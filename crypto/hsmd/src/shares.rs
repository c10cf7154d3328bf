//! What peers share: nobody may have more of it than is left free. So there is some for who comes, however much others
//! take, and one that is alone has half.

use qtls_pkcs11::library::lock;
use std::{collections::HashMap, net::IpAddr, sync::Mutex};

/// Whether who has so much may have more, of what there is and what all have taken.
pub fn may_have(has: usize, more: usize, taken: usize, most: usize) -> bool {
    has.saturating_add(more) <= most.saturating_sub(taken)
}

/// Memory, by the address of whom it is for.
pub struct Shares {
    most: usize,
    taken: Mutex<(usize, HashMap<IpAddr, usize>)>,
}

impl Shares {
    pub fn new(most: usize) -> Shares {
        Shares { most, taken: Mutex::default() }
    }

    /// Takes more for a peer, unless it has its share.
    pub fn take(&self, peer: IpAddr, more: usize) -> bool {
        let mut taken = lock(&self.taken);
        let (all, of) = &mut *taken;
        let has = of.get(&peer).copied().unwrap_or(0);
        if !may_have(has, more, *all, self.most) {
            return false;
        }
        *all += more;
        of.insert(peer, has + more);
        true
    }

    pub fn give_back(&self, peer: IpAddr, some: usize) {
        let mut taken = lock(&self.taken);
        let (all, of) = &mut *taken;
        *all -= some;
        let has = of.remove(&peer).unwrap_or(some) - some;
        if has > 0 {
            of.insert(peer, has);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    /// How much of it one gets that takes what it can, one by one.
    fn takes(shares: &Shares, peer: IpAddr) -> usize {
        (0..1000).take_while(|_| shares.take(peer, 1)).count()
    }

    #[test]
    fn each_gets_half_of_what_is_left() {
        let shares = Shares::new(64);
        let got = [1, 2, 3, 4, 5, 6, 7, 8].map(|n| takes(&shares, peer(n)));
        assert_eq!(got, [32, 16, 8, 4, 2, 1, 1, 0]);
    }

    #[test]
    fn those_that_take_in_turn_get_the_same_and_leave_as_much() {
        let shares = Shares::new(64);
        let mut got = [0; 3];
        for _ in 0..64 {
            (0..3).for_each(|n| got[n] += shares.take(peer(n as u8), 1) as usize);
        }
        assert_eq!(got, [16, 16, 16]);
        assert_eq!(takes(&shares, peer(9)), 8);
    }

    #[test]
    fn what_is_given_back_is_there_again_and_nobody_is_remembered() {
        let shares = Shares::new(64);
        for _ in 0..3 {
            assert!(shares.take(peer(1), 30));
            assert!(!shares.take(peer(2), 35) && shares.take(peer(2), 34));
            shares.give_back(peer(1), 30);
            shares.give_back(peer(2), 34);
            assert_eq!(*lock(&shares.taken), (0, HashMap::new()));
        }
        assert!(shares.take(peer(1), 64) && !shares.take(peer(2), 1));
        assert!(!shares.take(peer(1), usize::MAX));
    }
}
