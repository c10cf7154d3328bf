//! A queue whose askers take turns: who asks for much waits longer, and nobody else does.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    mem,
};

/// Each asker's items, in the order in which they came. The next one is of whoever had none for longest.
pub struct Turns<K, T> {
    items: HashMap<K, VecDeque<T>>,
    /// Those that have items, the next one first.
    askers: VecDeque<K>,
}

impl<K, T> Default for Turns<K, T> {
    fn default() -> Self {
        Turns { items: HashMap::new(), askers: VecDeque::new() }
    }
}

impl<K: Copy + Eq + Hash, T> Turns<K, T> {
    pub fn push(&mut self, asker: K, item: T) {
        let items = self.items.entry(asker).or_default();
        if items.is_empty() {
            self.askers.push_back(asker);
        }
        items.push_back(item);
    }

    pub fn pop(&mut self) -> Option<T> {
        let asker = self.askers.pop_front()?;
        let items = self.items.get_mut(&asker)?;
        let item = items.pop_front();
        match items.is_empty() {
            true => drop(self.items.remove(&asker)),
            false => self.askers.push_back(asker),
        }
        item
    }

    /// Takes the asker's first such item out.
    pub fn remove(&mut self, asker: K, such: impl Fn(&T) -> bool) -> Option<T> {
        let items = self.items.get_mut(&asker)?;
        let item = items.iter().position(such).and_then(|at| items.remove(at));
        if items.is_empty() {
            self.items.remove(&asker);
            self.askers.retain(|other| *other != asker);
        }
        item
    }

    /// Takes all such items out.
    pub fn extract(&mut self, such: impl Fn(&T) -> bool) -> Vec<T> {
        let mut all = vec![];
        for items in self.items.values_mut() {
            let (out, kept): (VecDeque<T>, _) = mem::take(items).into_iter().partition(&such);
            all.extend(out);
            *items = kept;
        }
        self.items.retain(|_, items| !items.is_empty());
        self.askers.retain(|asker| self.items.contains_key(asker));
        all
    }

    pub fn is_empty(&self) -> bool {
        self.askers.is_empty()
    }

    pub fn len(&self) -> usize {
        self.items.values().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(items: &[(char, u32)]) -> Turns<char, u32> {
        let mut turns = Turns::default();
        items.iter().for_each(|(asker, item)| turns.push(*asker, *item));
        turns
    }

    fn rest(mut turns: Turns<char, u32>) -> Vec<u32> {
        let all = std::iter::from_fn(|| turns.pop()).collect();
        assert!(turns.is_empty() && turns.items.is_empty(), "nothing is left of them");
        all
    }

    #[test]
    fn one_asker_is_answered_in_order() {
        assert_eq!(rest(turns(&[('a', 1), ('a', 2), ('a', 3)])), [1, 2, 3]);
    }

    #[test]
    fn askers_take_turns() {
        let many: Vec<_> = (0..100).map(|n| ('a', n)).collect();
        let mut turns = turns(&many);
        assert_eq!(turns.pop(), Some(0));
        turns.push('b', 200);
        turns.push('c', 300);
        turns.push('b', 201);
        assert_eq!(turns.len(), 102);
        assert_eq!(rest(turns)[..7], [1, 200, 300, 2, 201, 3, 4]);
    }

    #[test]
    fn what_is_taken_out_takes_no_turn() {
        let items = [('a', 1), ('a', 2), ('b', 3), ('b', 4), ('c', 5)];
        let mut one = turns(&items);
        assert_eq!(one.remove('b', |n| *n == 4), Some(4));
        assert_eq!(one.remove('b', |n| *n == 4), None);
        assert_eq!(one.remove('c', |n| *n == 5), Some(5));
        assert_eq!(one.remove('d', |_| true), None);
        assert_eq!(rest(one), [1, 3, 2]);

        let mut some = turns(&items);
        let mut out = some.extract(|n| [2, 3, 4].contains(n));
        out.sort_unstable();
        assert_eq!(out, [2, 3, 4]);
        assert_eq!(rest(some), [1, 5]);
    }
}
