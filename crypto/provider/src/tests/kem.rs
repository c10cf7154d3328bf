//! Key encapsulation: what agrees, and that a changed ciphertext tells its sender nothing.

use super::support::{every, every_primitive, flipped, is_kem, key, other_key, provider, some_bits};
use crate::{
    algorithm::{Algorithm, Primitive},
    classical::Classical,
    error::Reason,
    key::Key,
    primitives::{random, Failed},
    stack,
};

/// The classical and the post-quantum half of a share or ciphertext, as ranges of bytes.
fn ranges(a: &Algorithm, len: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let classical = a.classical.map_or(0, |c| c.public_length());
    if a.post_quantum_first {
        (len - classical..len, 0..len - classical)
    } else {
        (0..classical, classical..len)
    }
}

/// X25519 does not look at the uppermost bit (RFC 7748, section 5).
fn is_without_meaning(a: &Algorithm, bit: usize) -> bool {
    a.classical == Some(Classical::X25519) && bit == 255
}

#[test]
fn both_sides_agree() {
    every(is_kem, |a| {
        let key = key(a);
        let mut peer = Key::empty(provider(), a);
        peer.set_share(&key.share().unwrap()).unwrap();
        let (ciphertext, secret) = peer.encapsulate().unwrap();
        assert_eq!(ciphertext.len(), a.output_size());
        assert_eq!(secret.len(), a.secret_size());
        assert_eq!(key.decapsulate(&ciphertext).unwrap(), secret);
        let (other_ciphertext, other_secret) = peer.encapsulate().unwrap();
        assert_ne!(ciphertext, other_ciphertext);
        assert_ne!(secret, other_secret);
    });
}

#[test]
fn another_key_gets_another_secret() {
    every(is_kem, |a| {
        let (ciphertext, secret) = key(a).encapsulate().unwrap();
        assert_ne!(other_key(a).decapsulate(&ciphertext).unwrap(), secret);
    });
}

#[test]
fn the_secret_has_the_halves_in_the_groups_order() {
    every(
        |a| a.classical.is_some() && is_kem(a),
        |a| {
            let (ciphertext, secret) = key(a).encapsulate().unwrap();
            let (_, post_quantum) = ranges(a, ciphertext.len());
            let changed = key(a).decapsulate(&flipped(&ciphertext, 8 * post_quantum.start)).unwrap();
            let classical = a.classical.unwrap().secret_length();
            let same = if a.post_quantum_first { secret.len() - classical..secret.len() } else { 0..classical };
            for (i, (x, y)) in secret.iter().zip(changed.iter()).enumerate() {
                assert!(!same.contains(&i) || x == y, "byte {i} is of the classical half, which did not change");
            }
            let other = if a.post_quantum_first { 0..secret.len() - classical } else { classical..secret.len() };
            assert_ne!(secret[other.clone()], changed[other]);
        },
    );
}

#[test]
fn a_changed_ciphertext_gives_another_secret_or_no_classical_one() {
    every(is_kem, |a| {
        let (ciphertext, secret) = key(a).encapsulate().unwrap();
        let (classical, post_quantum) = ranges(a, ciphertext.len());
        for bit in some_bits(post_quantum.len()) {
            let changed = flipped(&ciphertext, 8 * post_quantum.start + bit);
            assert_ne!(key(a).decapsulate(&changed).unwrap(), secret, "bit {bit} of the post-quantum half");
        }
        for bit in some_bits(classical.len()).into_iter().filter(|b| !is_without_meaning(a, *b)) {
            let changed = flipped(&ciphertext, 8 * classical.start + bit);
            match key(a).decapsulate(&changed) {
                Ok(s) => assert_ne!(s, secret, "bit {bit} of the classical half"),
                Err(e) => assert!(matches!(e.reason, Reason::InvalidKey | Reason::ClassicalFailed), "{e:?}"),
            }
        }
    });
}

#[test]
fn a_rejection_is_always_the_same_and_the_keys_own() {
    every(is_kem, |a| {
        let (ciphertext, _) = key(a).encapsulate().unwrap();
        let (_, post_quantum) = ranges(a, ciphertext.len());
        let changed = flipped(&ciphertext, 8 * post_quantum.start + 1);
        let again = flipped(&ciphertext, 8 * post_quantum.start + 2);
        let rejected = key(a).decapsulate(&changed).unwrap();
        assert_eq!(key(a).decapsulate(&changed).unwrap(), rejected);
        assert_ne!(key(a).decapsulate(&again).unwrap(), rejected, "of another ciphertext");
        assert_ne!(other_key(a).decapsulate(&changed).unwrap(), rejected, "of another key");
        assert!(rejected.windows(8).all(|w| w != [0; 8]), "{rejected:?}");
    });
}

/// NTRU+ says so itself, and leaves no secret: what the test above sees of it is the rejection of Key.
#[test]
fn only_ntru_plus_tells_of_a_changed_ciphertext() {
    every_primitive(is_kem, |a| {
        let Primitive::Kem(kem) = a.primitive else { unreachable!() };
        let sizes = kem.sizes();
        let mut public = vec![0; sizes.public_key];
        let mut secret = vec![0; sizes.secret_key];
        let mut ciphertext = vec![0; sizes.ciphertext];
        let mut shared = vec![0; sizes.shared_secret];
        let run = |f: &mut dyn FnMut() -> Result<(), Failed>| stack::run(|| random::with(provider(), f)).unwrap();
        run(&mut || kem.generate(&mut public, &mut secret)).unwrap();
        run(&mut || kem.encapsulate(&public, &mut ciphertext, &mut shared)).unwrap();
        let mut got = vec![0; sizes.shared_secret];
        run(&mut || kem.decapsulate(&secret, &ciphertext, &mut got)).unwrap();
        assert_eq!(got, shared);
        for bit in some_bits(ciphertext.len()) {
            let changed = flipped(&ciphertext, bit);
            let outcome = run(&mut || kem.decapsulate(&secret, &changed, &mut got));
            if a.name.contains("ntru_plus") {
                assert_eq!(outcome, Err(Failed), "bit {bit}");
            } else {
                assert_eq!(outcome, Ok(()), "bit {bit}");
                assert_ne!(got, shared, "bit {bit}");
            }
        }
    });
}

#[test]
fn a_ciphertext_of_another_length_is_refused() {
    every(is_kem, |a| {
        let (ciphertext, _) = key(a).encapsulate().unwrap();
        let longer = [&ciphertext[..], &[0]].concat();
        for wrong in [&longer[..], &ciphertext[..ciphertext.len() - 1], &ciphertext[1..], &ciphertext[..1], &[]] {
            let e = key(a).decapsulate(wrong).unwrap_err();
            assert_eq!(e.reason, Reason::InvalidLength, "{e:?}");
            assert!(e.detail.contains(a.name) && e.detail.contains(&wrong.len().to_string()), "{e:?}");
        }
    });
}

#[test]
fn a_changed_share_leads_to_no_agreement() {
    every(is_kem, |a| {
        let share = key(a).share().unwrap();
        let (classical, post_quantum) = ranges(a, share.len());
        let bits = some_bits(post_quantum.len()).into_iter().map(|b| ("post-quantum", 8 * post_quantum.start + b));
        let more = some_bits(classical.len()).into_iter().filter(|b| !is_without_meaning(a, *b));
        for (half, bit) in bits.chain(more.map(|b| ("classical", 8 * classical.start + b))) {
            let mut peer = Key::empty(provider(), a);
            if peer.set_share(&flipped(&share, bit)).is_err() {
                assert_eq!(half, "classical");
                continue;
            }
            // A primitive may refuse a public key, too.
            if let Ok((ciphertext, secret)) = peer.encapsulate() {
                assert_ne!(key(a).decapsulate(&ciphertext).ok(), Some(secret), "bit {bit} of the {half} half");
            }
        }
    });
}

#[test]
fn a_share_of_small_order_is_refused() {
    every(
        |a| matches!(a.classical, Some(Classical::X25519 | Classical::X448)),
        |a| {
            let mut share = key(a).share().unwrap();
            let (classical, _) = ranges(a, share.len());
            share[classical].fill(0);
            let mut peer = Key::empty(provider(), a);
            let result = peer.set_share(&share).and_then(|()| peer.encapsulate().map(drop));
            assert!(matches!(result.unwrap_err().reason, Reason::InvalidKey | Reason::ClassicalFailed));
        },
    );
}

#[test]
fn a_kem_does_not_sign() {
    every(is_kem, |a| {
        assert_eq!(key(a).sign(b"").unwrap_err().reason, Reason::Internal);
        assert_eq!(key(a).verify(b"", b"").unwrap_err().reason, Reason::Internal);
    });
}
