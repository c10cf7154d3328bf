//! Loading by an OpenSSL that is not the module's.

use crate::{
    openssl::abi::{c_char, c_int, c_void, entry, from_core, Dispatch, Opaque, Param},
    OSSL_provider_init,
};
use std::{
    cell::RefCell,
    ffi::CStr,
    ptr::{null, null_mut},
};

thread_local! {
    static RAISED: RefCell<String> = const { RefCell::new(String::new()) };
}

unsafe extern "C" fn is_version_4(_: *const c_void, params: *mut Param) -> c_int {
    assert_eq!(CStr::from_ptr((*params).key), c"openssl-version");
    *(*params).data.cast::<*const c_char>() = c"4.0.3".as_ptr();
    1
}

unsafe extern "C" fn new_error(_: *const c_void) {}

unsafe extern "C" fn set_debug(_: *const c_void, _: *const c_char, _: c_int, _: *const c_char) {}

unsafe extern "C" fn set_error(_: *const c_void, _: u32, text: *const c_char, _: Opaque) {
    RAISED.set(CStr::from_ptr(text).to_str().unwrap().into());
}

#[test]
fn the_openssl_of_another_major_version_is_refused() {
    let core = [
        entry!(from_core::GET_PARAMS, is_version_4),
        entry!(from_core::NEW_ERROR, new_error),
        entry!(from_core::SET_ERROR_DEBUG, set_debug),
        entry!(from_core::VSET_ERROR, set_error),
        Dispatch::END,
    ];
    let (mut functions, mut context) = (null(), null_mut());
    // SAFETY: the table is one of a core.
    let loaded = unsafe { OSSL_provider_init(null(), core.as_ptr(), &mut functions, &mut context) };
    assert_eq!(loaded, 0);
    assert_eq!(RAISED.take(), "this is OpenSSL 4.0.3, and the module was built for OpenSSL 3");
}
