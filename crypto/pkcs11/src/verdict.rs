//! What an error of a member means: whose fault it is decides who tries again. The README has the same table.

use cryptoki_sys::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request is at fault: every member would say the same. The caller gets it.
    Request,
    /// The session, or its login, is gone: the same member again, once, with a new one.
    Session,
    /// The object's handle is not valid any more: the same member again, once, after a new search; then the next one.
    Handle,
    /// The member is well but has no room: the next one, and this one keeps being asked.
    Busy,
    /// The PIN was refused: the next one, and no login here until the PIN file changes. A token locks itself after a few.
    Pin,
    /// The device failed, or its library: the next one, and this one is left alone for a while.
    Device,
}

use Verdict::*;

/// Every code that is not a failed device. One that is in no table, a vendor's own among them, counts as a failed device:
/// a wrong request that is made again costs a signature, a failed device that is taken for a wrong request a handshake.
pub const TABLE: [(CK_RV, &str, Verdict); 36] = [
    (CKR_ARGUMENTS_BAD, "CKR_ARGUMENTS_BAD", Request),
    (CKR_ATTRIBUTE_TYPE_INVALID, "CKR_ATTRIBUTE_TYPE_INVALID", Request),
    (CKR_ATTRIBUTE_VALUE_INVALID, "CKR_ATTRIBUTE_VALUE_INVALID", Request),
    (CKR_ACTION_PROHIBITED, "CKR_ACTION_PROHIBITED", Request),
    (CKR_DATA_INVALID, "CKR_DATA_INVALID", Request),
    (CKR_DATA_LEN_RANGE, "CKR_DATA_LEN_RANGE", Request),
    (CKR_FUNCTION_NOT_SUPPORTED, "CKR_FUNCTION_NOT_SUPPORTED", Request),
    (CKR_KEY_SIZE_RANGE, "CKR_KEY_SIZE_RANGE", Request),
    (CKR_KEY_TYPE_INCONSISTENT, "CKR_KEY_TYPE_INCONSISTENT", Request),
    (CKR_KEY_FUNCTION_NOT_PERMITTED, "CKR_KEY_FUNCTION_NOT_PERMITTED", Request),
    (CKR_MECHANISM_INVALID, "CKR_MECHANISM_INVALID", Request),
    (CKR_MECHANISM_PARAM_INVALID, "CKR_MECHANISM_PARAM_INVALID", Request),
    (CKR_TEMPLATE_INCOMPLETE, "CKR_TEMPLATE_INCOMPLETE", Request),
    (CKR_TEMPLATE_INCONSISTENT, "CKR_TEMPLATE_INCONSISTENT", Request),
    (CKR_DOMAIN_PARAMS_INVALID, "CKR_DOMAIN_PARAMS_INVALID", Request),
    (CKR_CURVE_NOT_SUPPORTED, "CKR_CURVE_NOT_SUPPORTED", Request),
    (CKR_SESSION_HANDLE_INVALID, "CKR_SESSION_HANDLE_INVALID", Session),
    (CKR_SESSION_CLOSED, "CKR_SESSION_CLOSED", Session),
    (CKR_USER_NOT_LOGGED_IN, "CKR_USER_NOT_LOGGED_IN", Session),
    (CKR_OPERATION_ACTIVE, "CKR_OPERATION_ACTIVE", Session),
    (CKR_OPERATION_NOT_INITIALIZED, "CKR_OPERATION_NOT_INITIALIZED", Session),
    (CKR_KEY_HANDLE_INVALID, "CKR_KEY_HANDLE_INVALID", Handle),
    (CKR_OBJECT_HANDLE_INVALID, "CKR_OBJECT_HANDLE_INVALID", Handle),
    (CKR_KEY_CHANGED, "CKR_KEY_CHANGED", Handle),
    (CKR_SESSION_COUNT, "CKR_SESSION_COUNT", Busy),
    (CKR_HOST_MEMORY, "CKR_HOST_MEMORY", Busy),
    (CKR_DEVICE_MEMORY, "CKR_DEVICE_MEMORY", Busy),
    (CKR_TOKEN_RESOURCE_EXCEEDED, "CKR_TOKEN_RESOURCE_EXCEEDED", Busy),
    (CKR_FUNCTION_CANCELED, "CKR_FUNCTION_CANCELED", Busy),
    (CKR_PIN_INCORRECT, "CKR_PIN_INCORRECT", Pin),
    (CKR_PIN_INVALID, "CKR_PIN_INVALID", Pin),
    (CKR_PIN_LEN_RANGE, "CKR_PIN_LEN_RANGE", Pin),
    (CKR_PIN_EXPIRED, "CKR_PIN_EXPIRED", Pin),
    (CKR_PIN_LOCKED, "CKR_PIN_LOCKED", Pin),
    (CKR_PIN_TOO_WEAK, "CKR_PIN_TOO_WEAK", Pin),
    (CKR_USER_PIN_NOT_INITIALIZED, "CKR_USER_PIN_NOT_INITIALIZED", Pin),
];

/// Failed devices that have a name in messages.
const DEVICE_NAMES: [(CK_RV, &str); 12] = [
    (CKR_GENERAL_ERROR, "CKR_GENERAL_ERROR"),
    (CKR_FUNCTION_FAILED, "CKR_FUNCTION_FAILED"),
    (CKR_FUNCTION_REJECTED, "CKR_FUNCTION_REJECTED"),
    (CKR_DEVICE_ERROR, "CKR_DEVICE_ERROR"),
    (CKR_DEVICE_REMOVED, "CKR_DEVICE_REMOVED"),
    (CKR_TOKEN_NOT_PRESENT, "CKR_TOKEN_NOT_PRESENT"),
    (CKR_TOKEN_NOT_RECOGNIZED, "CKR_TOKEN_NOT_RECOGNIZED"),
    (CKR_TOKEN_NOT_INITIALIZED, "CKR_TOKEN_NOT_INITIALIZED"),
    (CKR_SLOT_ID_INVALID, "CKR_SLOT_ID_INVALID"),
    (CKR_CRYPTOKI_NOT_INITIALIZED, "CKR_CRYPTOKI_NOT_INITIALIZED"),
    (CKR_BUFFER_TOO_SMALL, "CKR_BUFFER_TOO_SMALL"),
    (CKR_LIBRARY_LOAD_FAILED, "CKR_LIBRARY_LOAD_FAILED"),
];

pub fn verdict(code: CK_RV) -> Verdict {
    TABLE.iter().find(|row| row.0 == code).map_or(Device, |row| row.2)
}

/// The code as messages write it.
pub fn name(code: CK_RV) -> String {
    let known = TABLE.iter().map(|row| (row.0, row.1)).chain(DEVICE_NAMES).find(|row| row.0 == code);
    match known {
        Some((_, name)) => format!("{name} (0x{code:x})"),
        None => format!("0x{code:x}"),
    }
}
