//! kryoptic as a PKCS#11 module: the three names that programs look for in one. The crate `kryoptic` has the same, but
//! nothing can depend on a crate that is a shared library alone, and so no lock file of ours would hold for it.

use kryoptic_lib::{fns::general, pkcs11::*};

#[no_mangle]
pub extern "C" fn C_GetFunctionList(list: CK_FUNCTION_LIST_PTR_PTR) -> CK_RV {
    general::fn_get_function_list(list)
}

#[no_mangle]
pub extern "C" fn C_GetInterface(
    name: CK_UTF8CHAR_PTR,
    version: CK_VERSION_PTR,
    interface: CK_INTERFACE_PTR_PTR,
    flags: CK_FLAGS,
) -> CK_RV {
    general::fn_get_interface(name, version, interface, flags)
}

#[no_mangle]
pub extern "C" fn C_GetInterfaceList(list: CK_INTERFACE_PTR, count: CK_ULONG_PTR) -> CK_RV {
    general::fn_get_interface_list(list, count)
}
