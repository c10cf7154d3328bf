//! How much stack the primitives take: the stacks of crate::stack are four times as large as the most.

use super::support::{every_primitive, provider};
use crate::{
    algorithm::{Algorithm, Primitive},
    primitives::{random, Failed},
    stack,
};
use std::sync::Mutex;

/// A stack of stack::SIZE, all of one pattern.
struct Measured(Vec<u64>);

const PATTERN: u64 = 0xa5a5_a5a5_a5a5_a5a5;

impl Measured {
    fn new() -> Measured {
        Measured(vec![PATTERN; stack::SIZE / 8])
    }

    /// Runs an operation on it, and says how many bytes of it are not what they were.
    fn run(&mut self, f: impl FnOnce() -> Result<(), Failed>) -> usize {
        self.0.fill(PATTERN);
        let base = self.0.as_mut_ptr().cast();
        // SAFETY: the stack is ours alone meanwhile, and f does not unwind.
        unsafe { psm::on_stack(base, stack::SIZE, || random::with(provider(), f)) }.unwrap();
        stack::SIZE - 8 * self.0.iter().position(|w| *w != PATTERN).unwrap()
    }
}

fn measure(a: &Algorithm) -> Vec<(usize, String)> {
    let mut stack = Measured::new();
    let (public, secret) = a.key_sizes();
    let (mut public, mut secret) = (vec![0; public], vec![0; secret]);
    let mut out = vec![];
    let mut note = |operation: &str, touched| out.push((touched, format!("{} {operation}", a.name)));
    match a.primitive {
        Primitive::Kem(k) => {
            let s = k.sizes();
            let (mut ciphertext, mut shared) = (vec![0; s.ciphertext], vec![0; s.shared_secret]);
            note("generate", stack.run(|| k.generate(&mut public, &mut secret)));
            note("encapsulate", stack.run(|| k.encapsulate(&public, &mut ciphertext, &mut shared)));
            note("decapsulate", stack.run(|| k.decapsulate(&secret, &ciphertext, &mut shared)));
            ciphertext[0] ^= 1;
            note(
                "reject",
                stack.run(|| {
                    let _ = k.decapsulate(&secret, &ciphertext, &mut shared); // whether it tells is its own affair
                    Ok(())
                }),
            );
        }
        Primitive::Signature(s) => {
            let mut signature = vec![0; s.sizes().signature];
            let mut len = 0;
            note("generate", stack.run(|| s.generate(&mut public, &mut secret)));
            note("sign", stack.run(|| s.sign(&secret, b"message", &mut signature).map(|n| len = n)));
            note("verify", stack.run(|| s.verify(&public, b"message", &signature[..len])));
        }
    }
    out
}

#[test]
fn no_primitive_takes_more_than_a_quarter() {
    let all = Mutex::new(vec![]);
    every_primitive(|_| true, |a| all.lock().unwrap().extend(measure(a)));
    let mut all = all.into_inner().unwrap();
    all.sort();
    println!("Stack of the hungriest, in bytes, of {}:", stack::SIZE);
    for (touched, what) in all.iter().rev().take(10) {
        println!("{touched:9} {what}");
    }
    let (most, what) = all.last().unwrap();
    assert!(*most < stack::SIZE / 4, "{what} takes {most} bytes of {}", stack::SIZE);
    assert!(*most > 100_000, "the measurement sees nothing");
}
