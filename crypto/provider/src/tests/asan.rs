//! Whether AddressSanitizer sees into each library and into the provider's own code: what none of them may do ends the
//! process. `make test-asan` runs this; a program that is compiled without would go on, with its memory damaged.

use super::support::provider;
use crate::{
    primitives::{liboqs, random, Signature},
    stack,
};
use std::{env, hint::black_box, os::unix::process::ExitStatusExt, process::Command};

extern "C" {
    fn kpqc_haetae2_keypair(public: *mut u8, secret: *mut u8) -> libc::c_int;
    #[link_name = "aws_lc_0_47_0_ml_dsa_44_keypair_internal"]
    fn ml_dsa_44_keypair(public: *mut u8, private: *mut u8, seed: *const u8) -> libc::c_int;
}

/// Functions that write one byte beyond a buffer, by the name of one that AddressSanitizer then tells of.
const CASES: [(&str, fn()); 4] = [
    ("liboqs", || {
        let falcon = liboqs::Signature::new(c"Falcon-512");
        let (mut public, mut secret) = (vec![0; falcon.sizes().public_key - 1], vec![0; falcon.sizes().secret_key]);
        let _ = falcon.generate(&mut public, &mut secret);
    }),
    ("KpqC", || {
        let sizes = ::kpqc::haetae2.sizes;
        let (mut public, mut secret) = (vec![0; sizes.public_key - 1], vec![0; sizes.secret_key]);
        // SAFETY: none, for once.
        unsafe { kpqc_haetae2_keypair(public.as_mut_ptr(), secret.as_mut_ptr()) };
    }),
    ("AWS-LC", || {
        let (mut public, mut private) = (vec![0; 1312 - 1], vec![0; 2560]);
        // SAFETY: none, for once.
        unsafe { ml_dsa_44_keypair(public.as_mut_ptr(), private.as_mut_ptr(), [0; 32].as_ptr()) };
    }),
    ("the provider", || {
        let mut bytes = black_box(vec![0u8; 16]);
        // SAFETY: none, for once.
        unsafe { *black_box(bytes.as_mut_ptr().add(16)) = 1 };
        black_box(&bytes);
    }),
];

const CHILD: &str = "OQSPROVIDER_TEST_BEYOND_A_BUFFER";

#[test]
fn a_byte_beyond_a_buffer_is_seen() {
    const NAME: &str = "tests::asan::a_byte_beyond_a_buffer_is_seen";
    if let Ok(wanted) = env::var(CHILD) {
        let (library, write) = CASES[wanted.parse::<usize>().unwrap()];
        stack::run(|| random::with(provider(), write)).unwrap();
        panic!("{library} wrote beyond a buffer, and nobody saw it");
    }
    for (i, (library, _)) in CASES.iter().enumerate() {
        let out = Command::new(env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture"])
            .env(CHILD, i.to_string())
            .env("ASAN_OPTIONS", "abort_on_error=1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{library}: {}: {text}", out.status);
        let first = text.lines().find(|l| l.trim_start().starts_with("#0 ")).unwrap_or_default();
        assert!(text.contains("AddressSanitizer: heap-buffer-overflow"), "{library}: {text}");
        // It sees what libc's functions do, whoever calls them: that would be no proof.
        assert!(text.contains("WRITE of size") && !first.contains(" in mem"), "{library}: {text}");
        println!("{library}: {}", first.trim());
    }
}
