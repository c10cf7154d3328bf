//! Every primitive on a processor without AVX, as qemu-user emulates it: an instruction that it has not ends the process.

use crate::primitives::fast;
use std::{
    arch::asm,
    env,
    os::unix::process::ExitStatusExt,
    process::{Command, Output},
};

/// Runs tests of this program on a processor of 2008, with SSE 4.2.
fn on_nehalem(tests: &[&str]) -> (Output, String) {
    let out = Command::new("qemu-x86_64")
        .args(["-cpu", "Nehalem"])
        .arg(env::current_exe().unwrap())
        .args(tests)
        .env(ON_NEHALEM, "1")
        .output()
        .expect("qemu-user");
    let text = String::from_utf8_lossy(&[&out.stdout[..], &out.stderr].concat()).into_owned();
    (out, text)
}

const ON_NEHALEM: &str = "OQSPROVIDER_TEST_ON_NEHALEM";

fn is_there() -> bool {
    env::var_os(ON_NEHALEM).is_some()
}

#[test]
fn the_known_answers_are_the_same() {
    let (out, text) = on_nehalem(&["tests::kat", "primitives::fast"]);
    assert!(out.status.success(), "{}: {text}", out.status);
    for test in ["kems_of_kpqc", "signatures_of_kpqc", "liboqs_prints_its_first_records", "ml_dsa_signs_as_openssl"] {
        assert!(text.contains(&format!("{test} ... ok")), "no {test}: {text}");
    }
}

#[test]
fn the_processor_is_said_to_have_no_avx2() {
    const NAME: &str = "tests::without_avx::the_processor_is_said_to_have_no_avx2";
    if is_there() {
        return assert!(!fast::uses_avx2());
    }
    let (out, text) = on_nehalem(&[NAME, "--exact"]);
    assert!(out.status.success() && text.contains("1 passed"), "{}: {text}", out.status);
}

#[test]
fn an_instruction_of_avx2_would_be_seen() {
    const NAME: &str = "tests::without_avx::an_instruction_of_avx2_would_be_seen";
    if is_there() {
        // SAFETY: registers alone change.
        unsafe { asm!("vpaddd ymm0, ymm0, ymm0", out("xmm0") _) };
        return;
    }
    let (out, text) = on_nehalem(&[NAME, "--exact"]);
    assert_eq!(out.status.signal(), Some(libc::SIGILL), "{}: {text}", out.status);
}
