//! Who tries again after which error.

use crate::verdict::{name, verdict, Verdict, TABLE};
use cryptoki_sys::*;

#[test]
fn the_table_has_each_code_once() {
    let mut codes: Vec<_> = TABLE.iter().map(|row| row.0).collect();
    codes.sort();
    codes.dedup();
    assert_eq!(codes.len(), TABLE.len());
}

#[test]
fn the_readme_has_the_same_table() {
    let readme = include_str!("../../README.md");
    for (_, name, verdict) in TABLE {
        let row = readme.lines().find(|l| l.contains(&format!("`{name}`"))).unwrap_or_else(|| panic!("{name}"));
        assert!(row.starts_with(&format!("| {verdict:?} ")), "{name} is not in the row of {verdict:?}: {row}");
    }
}

#[test]
fn a_failed_device_is_whatever_is_not_known_to_be_something_else() {
    let device = [
        CKR_GENERAL_ERROR,
        CKR_FUNCTION_FAILED,
        CKR_DEVICE_ERROR,
        CKR_DEVICE_REMOVED,
        CKR_TOKEN_NOT_PRESENT,
        CKR_TOKEN_NOT_RECOGNIZED,
        CKR_SLOT_ID_INVALID,
        CKR_CRYPTOKI_NOT_INITIALIZED,
        CKR_VENDOR_DEFINED,
        CKR_VENDOR_DEFINED + 77,
        12345,
    ];
    for code in device {
        assert_eq!(verdict(code), Verdict::Device, "{}", name(code));
    }
}

#[test]
fn codes_are_written_by_their_names() {
    assert_eq!(name(CKR_PIN_LOCKED), "CKR_PIN_LOCKED (0xa4)");
    assert_eq!(name(CKR_DEVICE_REMOVED), "CKR_DEVICE_REMOVED (0x32)");
    assert_eq!(name(CKR_VENDOR_DEFINED + 1), "0x80000001");
}
