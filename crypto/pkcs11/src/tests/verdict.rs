//! Who tries again after which error.

use crate::verdict::{name, table, verdict, Verdict};
use cryptoki_sys::*;

#[test]
fn the_table_has_each_code_once_by_the_name_that_the_standard_gives_it() {
    macro_rules! standard {
        ($($name:ident)*) => { vec![$((stringify!($name), $name)),*] };
    }
    let mut standard = standard! {
        CKR_ARGUMENTS_BAD CKR_ATTRIBUTE_TYPE_INVALID CKR_ATTRIBUTE_VALUE_INVALID CKR_DATA_INVALID CKR_DATA_LEN_RANGE
        CKR_FUNCTION_NOT_SUPPORTED CKR_KEY_SIZE_RANGE CKR_KEY_TYPE_INCONSISTENT CKR_KEY_FUNCTION_NOT_PERMITTED
        CKR_MECHANISM_INVALID CKR_MECHANISM_PARAM_INVALID CKR_TEMPLATE_INCOMPLETE CKR_TEMPLATE_INCONSISTENT
        CKR_DOMAIN_PARAMS_INVALID CKR_CURVE_NOT_SUPPORTED CKR_SESSION_CLOSED CKR_SESSION_HANDLE_INVALID
        CKR_USER_NOT_LOGGED_IN CKR_OPERATION_ACTIVE CKR_OPERATION_NOT_INITIALIZED CKR_KEY_HANDLE_INVALID
        CKR_KEY_CHANGED CKR_OBJECT_HANDLE_INVALID CKR_HOST_MEMORY CKR_DEVICE_MEMORY CKR_FUNCTION_CANCELED
        CKR_SESSION_COUNT CKR_TOKEN_RESOURCE_EXCEEDED CKR_ACTION_PROHIBITED CKR_PIN_INCORRECT CKR_PIN_INVALID
        CKR_PIN_LEN_RANGE CKR_PIN_EXPIRED CKR_PIN_LOCKED CKR_USER_PIN_NOT_INITIALIZED CKR_PIN_TOO_WEAK
        CKR_SLOT_ID_INVALID CKR_GENERAL_ERROR CKR_FUNCTION_FAILED CKR_DEVICE_ERROR CKR_DEVICE_REMOVED
        CKR_TOKEN_NOT_PRESENT CKR_TOKEN_NOT_RECOGNIZED CKR_TOKEN_NOT_INITIALIZED CKR_TOKEN_WRITE_PROTECTED
        CKR_BUFFER_TOO_SMALL CKR_CRYPTOKI_NOT_INITIALIZED CKR_LIBRARY_LOAD_FAILED CKR_FUNCTION_REJECTED
    };
    let mut ours: Vec<_> = table().iter().map(|row| (row.name, row.code)).collect();
    standard.sort();
    ours.sort();
    assert_eq!(ours, standard);
}

#[test]
fn the_readme_has_the_same_table() {
    let readme = include_str!("../../README.md");
    for row in table() {
        if row.verdict == Verdict::Device {
            continue; // "every other code"
        }
        let line = readme.lines().find(|l| l.starts_with("| ") && l.contains(&format!("`{}`", row.name)));
        let line = line.unwrap_or_else(|| panic!("{} is missing", row.name));
        assert!(line.starts_with(&format!("| {:?} |", row.verdict)), "{} is not {:?}: {line}", row.name, row.verdict);
    }
}

#[test]
fn a_code_that_no_row_has_is_a_failed_device() {
    for code in [CKR_VENDOR_DEFINED, CKR_VENDOR_DEFINED + 77, 12345] {
        assert_eq!(verdict(code), Verdict::Device, "{}", name(code));
    }
}

#[test]
fn codes_are_written_by_their_names() {
    assert_eq!(name(CKR_PIN_LOCKED), "CKR_PIN_LOCKED (0xa4)");
    assert_eq!(name(CKR_DEVICE_REMOVED), "CKR_DEVICE_REMOVED (0x32)");
    assert_eq!(name(CKR_VENDOR_DEFINED + 1), "0x80000001");
}
