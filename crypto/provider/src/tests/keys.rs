//! Keys and their encodings.

use super::support::{every, is_kem, key, new_key, other_key, provider};
use crate::{
    algorithm::Algorithm,
    der,
    error::{Error, Reason},
    key::Key,
};

fn refused(algorithm: &'static Algorithm, public: bool, bytes: &[u8]) -> Error {
    let result = if public { Key::from_public_bytes } else { Key::from_private_bytes }(provider(), algorithm, bytes);
    result.err().unwrap_or_else(|| panic!("{} bytes were taken for a key", bytes.len()))
}

#[test]
fn keys_have_the_sizes_of_the_primitives() {
    every(
        |_| true,
        |a| {
            let (public, secret) = a.key_sizes();
            let key = key(a);
            assert!(public > 0 && secret > 0);
            assert!(key.has_public() && key.has_secret());
            match a.classical {
                None => {
                    assert_eq!(key.public_bytes().unwrap().len(), public);
                    assert_eq!(key.private_bytes().unwrap().len(), secret + public);
                }
                Some(c) => {
                    assert_eq!(key.public_bytes().unwrap().len(), 4 + c.public_length() + public);
                    let private = key.private_bytes().unwrap();
                    let classical = u32::from_be_bytes(private[..4].try_into().unwrap()) as usize;
                    assert_eq!(private.len(), 4 + classical + secret + public);
                }
            }
        },
    );
}

#[test]
fn two_keys_differ() {
    every(
        |_| true,
        |a| {
            assert!(!key(a).has_same_public(other_key(a)));
            assert_ne!(key(a).public_bytes().unwrap(), other_key(a).public_bytes().unwrap());
            assert_ne!(key(a).private_bytes().unwrap(), other_key(a).private_bytes().unwrap());
        },
    );
}

#[test]
fn keys_survive_export_and_import() {
    every(
        |_| true,
        |a| {
            let key = key(a);
            let public = Key::from_public_bytes(provider(), a, &key.public_bytes().unwrap()).unwrap();
            assert!(public.has_same_public(key));
            assert!(!public.has_secret());
            assert_eq!(public.public_bytes().unwrap(), key.public_bytes().unwrap());
            assert_eq!(public.private_bytes().unwrap_err().reason, Reason::MissingKey);

            let private = Key::from_private_bytes(provider(), a, &key.private_bytes().unwrap()).unwrap();
            assert!(private.has_same_public(key));
            assert_eq!(private.private_bytes().unwrap(), key.private_bytes().unwrap());
            assert_eq!(private.public_bytes().unwrap(), key.public_bytes().unwrap());
        },
    );
}

#[test]
fn a_whole_key_is_valid_and_mixed_halves_are_not() {
    every(
        |_| true,
        |a| {
            let (key, other) = (key(a), other_key(a));
            key.validate().unwrap();
            let public = a.key_sizes().0;
            let mut mixed = key.private_bytes().unwrap();
            let start = mixed.len() - public;
            let bytes = other.public_bytes().unwrap();
            mixed[start..].copy_from_slice(&bytes[bytes.len() - public..]);
            let mixed = Key::from_private_bytes(provider(), a, &mixed).unwrap();
            assert_eq!(mixed.validate().unwrap_err().reason, Reason::InvalidKey);
        },
    );
}

#[test]
fn a_copy_has_what_was_asked_for() {
    every(
        |_| true,
        |a| {
            let key = key(a);
            let whole = key.copy(true, true).unwrap();
            assert!(whole.has_same_public(key));
            assert_eq!(whole.private_bytes().unwrap(), key.private_bytes().unwrap());
            let public = key.copy(true, false).unwrap();
            assert!(public.has_same_public(key));
            assert!(!public.has_secret());
            assert_eq!(public.private_bytes().unwrap_err().reason, Reason::MissingKey);
            let nothing = key.copy(false, false).unwrap();
            assert!(!nothing.has_public() && !nothing.has_secret());
        },
    );
}

#[test]
fn a_copy_without_the_secret_has_no_classical_private_key_either() {
    every(
        |a| a.classical.is_some(),
        |a| {
            let public = key(a).copy(true, false).unwrap();
            let failed = match a.is_signature() {
                true => public.sign(b"").unwrap_err(),
                false => {
                    let (ciphertext, _) = public.encapsulate().unwrap();
                    public.decapsulate(&ciphertext).unwrap_err()
                }
            };
            assert_eq!(failed.reason, Reason::MissingKey);
        },
    );
}

#[test]
fn an_empty_key_does_nothing() {
    every(
        |_| true,
        |a| {
            let empty = Key::empty(provider(), a);
            let mut errors = vec![
                empty.share().unwrap_err(),
                empty.public_bytes().unwrap_err(),
                empty.private_bytes().unwrap_err(),
                empty.validate().unwrap_err(),
            ];
            if a.is_signature() {
                errors.push(empty.sign(b"").unwrap_err());
                errors.push(empty.verify(b"", b"").unwrap_err());
            } else {
                errors.push(empty.encapsulate().unwrap_err());
                errors.push(empty.decapsulate(&vec![0; a.output_size()]).unwrap_err());
            }
            for e in errors {
                assert_eq!(e.reason, Reason::MissingKey, "{e:?}");
                assert!(e.detail.contains(a.name), "{e:?}");
            }
        },
    );
}

#[test]
fn wrong_lengths_are_refused_with_the_length() {
    every(
        |_| true,
        |a| {
            for public in [true, false] {
                let bytes = match public {
                    true => key(a).public_bytes().unwrap(),
                    false => key(a).private_bytes().unwrap().to_vec(),
                };
                for wrong in [&bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat()] {
                    let e = refused(a, public, wrong);
                    assert_eq!(e.reason, Reason::InvalidLength, "{e:?}");
                    assert!(e.detail.contains(a.name), "{e:?}");
                }
                let e = refused(a, public, &[]);
                let want = if a.classical.is_some() { Reason::InvalidEncoding } else { Reason::InvalidLength };
                assert_eq!(e.reason, want, "{e:?}");
            }
        },
    );
}

#[test]
fn a_hybrid_needs_the_length_of_its_classical_half() {
    every(
        |a| a.classical.is_some(),
        |a| {
            for public in [true, false] {
                let bytes = match public {
                    true => key(a).public_bytes().unwrap(),
                    false => key(a).private_bytes().unwrap().to_vec(),
                };
                let with_length = |len: u32| [&len.to_be_bytes(), &bytes[4..]].concat();
                for cut in 0..4 {
                    assert_eq!(refused(a, public, &bytes[..cut]).reason, Reason::InvalidEncoding);
                }
                for beyond in [bytes.len() as u32 - 3, u32::MAX] {
                    assert_eq!(refused(a, public, &with_length(beyond)).reason, Reason::InvalidEncoding);
                }
                let len = u32::from_be_bytes(bytes[..4].try_into().unwrap());
                for wrong in [0, 1, len - 1, len + 1] {
                    assert_eq!(refused(a, public, &with_length(wrong)).reason, Reason::InvalidKey, "{wrong} for {len}");
                }
            }
        },
    );
}

#[test]
fn a_hybrid_refuses_a_classical_key_of_another_kind() {
    every(
        |a| a.classical.is_some(),
        |a| {
            let post_quantum = &key(a).private_bytes().unwrap();
            let post_quantum = &post_quantum[post_quantum.len() - a.key_sizes().0 - a.key_sizes().1..];
            use crate::classical::Classical::*;
            for other in [P256, P384, P521, X25519, X448, Rsa3072].into_iter().filter(|o| Some(*o) != a.classical) {
                if other == Rsa3072 && !a.name.contains("falcon512") {
                    continue; // their generation is slow
                }
                let foreign = other.generate(&provider().library).unwrap();
                let foreign = other.private_bytes(&foreign).unwrap();
                let bytes = super::support::joined(&foreign, post_quantum);
                assert_eq!(refused(a, false, &bytes).reason, Reason::InvalidKey, "{other:?}");
            }
        },
    );
}

#[test]
fn a_share_becomes_the_public_key_of_a_peer() {
    every(is_kem, |a| {
        let key = key(a);
        let share = key.share().unwrap();
        assert_eq!(share.len(), a.classical.map_or(0, |c| c.public_length()) + a.key_sizes().0);
        let mut peer = Key::empty(provider(), a);
        peer.set_share(&share).unwrap();
        assert!(peer.has_same_public(key));
        assert!(!peer.has_secret());
        assert_eq!(peer.share().unwrap(), share);

        let mut former = new_key(a);
        former.set_share(&share).unwrap();
        assert!(!former.has_secret(), "a secret that belongs to another public key is gone");

        for wrong in [&share[..share.len() - 1], &[&share[..], &[0]].concat(), &[]] {
            let e = Key::empty(provider(), a).set_share(wrong).unwrap_err();
            assert_eq!(e.reason, Reason::InvalidLength, "{e:?}");
        }
    });
}

#[test]
fn a_share_has_the_halves_in_the_groups_order() {
    every(
        |a| !a.is_signature() && a.classical.is_some(),
        |a| {
            let bytes = key(a).public_bytes().unwrap();
            let (classical, post_quantum) = super::support::halves(&bytes);
            let want = match a.name {
                "x25519_mlkem512" | "x448_mlkem768" => [post_quantum, classical],
                _ => [classical, post_quantum],
            };
            assert_eq!(key(a).share().unwrap(), want.concat());
        },
    );
}

#[test]
fn der_carries_every_key() {
    every(
        |a| a.oid.is_some(),
        |a| {
            let identifier = der::algorithm_identifier(a.oid.unwrap()).unwrap();
            let public = key(a).public_bytes().unwrap();
            let spki = der::subject_public_key_info(&identifier, &public);
            assert_eq!(der::parse_subject_public_key_info(&spki, &identifier), Some(&public[..]));
            let private = key(a).private_bytes().unwrap();
            let info = der::private_key_info(&identifier, &private);
            assert_eq!(der::parse_private_key_info(&info, &identifier), Some(&private[..]));
        },
    );
}
