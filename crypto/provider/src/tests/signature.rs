//! Signatures: what verifies, and what does not.

use super::support::{every, flipped, halves, joined, key, other_key, provider, signature, some_bits, MESSAGE};
use crate::{algorithm::Algorithm, error::Reason, key::Key};

fn refuse(key: &Key, message: &[u8], signature: &[u8], why: &str) {
    match key.verify(message, signature) {
        Err(e) => assert_eq!(e.reason, Reason::SignatureMismatch, "{why}: {e:?}"),
        Ok(()) => panic!("accepted: {why}"),
    }
}

/// Falcon's signatures without padding are shorter than the greatest length by what compression gains.
fn has_variable_length(a: &Algorithm) -> bool {
    a.name.ends_with("falcon512") || a.name.ends_with("falcon1024")
}

#[test]
fn a_signature_verifies_and_has_the_size_of_the_primitive() {
    every(Algorithm::is_signature, |a| {
        let public = key(a).copy(true, false).unwrap();
        public.verify(MESSAGE, signature(a)).unwrap();
        let post_quantum = match a.classical {
            None => signature(a),
            Some(c) => {
                let (classical, post_quantum) = halves(signature(a));
                assert!(!classical.is_empty() && classical.len() <= c.signature_length());
                post_quantum
            }
        };
        let greatest = a.output_size() - a.classical.map_or(0, |c| 4 + c.signature_length());
        if has_variable_length(a) {
            assert!(post_quantum.len() <= greatest && post_quantum.len() > greatest * 3 / 4);
        } else {
            assert_eq!(post_quantum.len(), greatest);
        }
    });
}

#[test]
fn messages_of_any_length_are_signed() {
    // Where signing is slow, the longest will do: the primitives hash the message first.
    every(Algorithm::is_signature, |a| {
        let slow = a.name.contains("ssimple");
        for len in if slow { vec![100_000] } else { vec![0, 1, 100_000] } {
            let message = vec![0x5a; len];
            let signature = key(a).sign(&message).unwrap();
            key(a).verify(&message, &signature).unwrap();
            refuse(key(a), &vec![0x5a; len + 1], &signature, "a longer message");
            if len > 0 {
                refuse(key(a), &flipped(&message, 8 * len - 1), &signature, "another last byte");
            }
        }
    });
}

#[test]
fn another_message_or_key_is_refused() {
    every(Algorithm::is_signature, |a| {
        for bit in some_bits(MESSAGE.len()) {
            refuse(key(a), &flipped(MESSAGE, bit), signature(a), &format!("message with bit {bit} changed"));
        }
        refuse(key(a), b"", signature(a), "no message");
        refuse(other_key(a), MESSAGE, signature(a), "another key");
    });
}

#[test]
fn a_changed_signature_is_refused() {
    every(Algorithm::is_signature, |a| {
        let whole = signature(a);
        let classical = whole.len() - a.classical.map_or(whole.len(), |_| halves(whole).1.len());
        for bit in some_bits(classical) {
            refuse(key(a), MESSAGE, &flipped(whole, bit), &format!("bit {bit} of the classical half"));
        }
        for bit in some_bits(whole.len() - classical) {
            let changed = flipped(whole, 8 * classical + bit);
            refuse(key(a), MESSAGE, &changed, &format!("bit {bit} of the post-quantum half"));
        }
    });
}

#[test]
fn a_signature_of_another_length_is_refused() {
    every(Algorithm::is_signature, |a| {
        let whole = signature(a);
        for n in [0, 1, 3, 4, 5, 40, 41, 42, whole.len() / 2, whole.len() - 2, whole.len() - 1] {
            refuse(key(a), MESSAGE, &whole[..n], &format!("the first {n} bytes of {}", whole.len()));
        }
        for more in [1, 2, 1000] {
            for filler in [0, 1, 0xff] {
                let longer = [whole, &vec![filler; more]].concat();
                refuse(key(a), MESSAGE, &longer, &format!("{more} bytes {filler} more"));
            }
        }
    });
}

/// Padded Falcon ends in zeros, without which its C code accepts it: two signatures of one would be.
#[test]
fn padding_belongs_to_the_signature() {
    every(
        |a| a.name.contains("falconpadded"),
        |a| {
            let mut whole = signature(a).to_vec();
            while !whole.ends_with(&[0]) {
                whole = key(a).sign(MESSAGE).unwrap(); // one in some hundreds fills its length
            }
            let end = whole.iter().rposition(|b| *b != 0).unwrap() + 1;
            refuse(key(a), MESSAGE, &whole[..end], "a signature without its padding");
        },
    );
}

/// Falcon without padding is not padded Falcon, though its C code accepts that, too.
#[test]
fn padding_does_not_belong_to_a_signature_without() {
    every(has_variable_length, |a| {
        let whole = signature(a);
        let post_quantum = a.classical.map_or(whole, |_| halves(whole).1);
        let padded = if a.name.contains("512") { 666 } else { 1280 };
        assert_ne!(post_quantum.last(), Some(&0));
        for more in 1..=padded - post_quantum.len().min(padded) {
            refuse(key(a), MESSAGE, &[whole, &vec![0; more]].concat(), &format!("{more} zeros more"));
        }
    });
}

#[test]
fn a_changed_public_key_verifies_nothing() {
    every(Algorithm::is_signature, |a| {
        let bytes = key(a).public_bytes().unwrap();
        // Of a multivariate public key a few coefficients alone need not matter: some variables are zero. Nor need many
        // that change by the same: what is added to every equation may come to zero. Where a coefficient of Falcon's changes
        // by one, some signatures in ten thousand are short enough still; two bytes change one by more.
        let run = match a.name {
            n if n.contains("OV_") || n.contains("mayo") => bytes.len() / 8,
            n if n.contains("falcon") => 2,
            _ => 1,
        };
        for bit in some_bits(bytes.len() - (run - 1)) {
            let mut changed = bytes.clone();
            for (i, b) in changed[bit / 8..bit / 8 + run].iter_mut().enumerate() {
                *b ^= (1 << (bit % 8)) ^ (i.wrapping_mul(0x9e3779b97f4a7c15) >> 56) as u8;
            }
            if let Ok(public) = Key::from_public_bytes(provider(), a, &changed) {
                refuse(&public, MESSAGE, signature(a), &format!("public key with bit {bit} changed"));
            }
        }
    });
}

#[test]
fn both_halves_must_be_of_the_same_key() {
    every(
        |a| a.is_signature() && a.classical.is_some(),
        |a| {
            let mine = signature(a);
            let theirs = other_key(a).sign(MESSAGE).unwrap();
            let ((c1, p1), (c2, p2)) = (halves(mine), halves(&theirs));
            key(a).verify(MESSAGE, &joined(c1, p1)).unwrap();
            refuse(key(a), MESSAGE, &joined(c1, p2), "the post-quantum half of another key");
            refuse(key(a), MESSAGE, &joined(c2, p1), "the classical half of another key");
            refuse(key(a), MESSAGE, &joined(&[], p1), "no classical half");
            refuse(key(a), MESSAGE, &joined(c1, &[]), "no post-quantum half");
            refuse(key(a), MESSAGE, p1, "the post-quantum half alone");
            refuse(key(a), MESSAGE, c1, "the classical half alone");
            refuse(key(a), MESSAGE, &joined(p1, c1), "the halves the other way round");
        },
    );
}

#[test]
fn both_halves_must_be_of_the_same_message() {
    every(
        |a| a.is_signature() && a.classical.is_some() && !a.name.contains("ssimple"),
        |a| {
            let other = key(a).sign(b"another message").unwrap();
            let ((c1, p1), (c2, p2)) = (halves(signature(a)), halves(&other));
            for (signature, why) in [(joined(c1, p2), "post-quantum"), (joined(c2, p1), "classical")] {
                refuse(key(a), MESSAGE, &signature, &format!("the {why} half is of another message"));
                refuse(key(a), b"another message", &signature, "and the other way round");
            }
        },
    );
}

#[test]
fn a_signature_does_not_agree_on_keys() {
    every(Algorithm::is_signature, |a| {
        assert_eq!(key(a).encapsulate().unwrap_err().reason, Reason::Internal);
        assert_eq!(key(a).decapsulate(b"").unwrap_err().reason, Reason::Internal);
    });
}
