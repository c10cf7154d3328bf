//! The module in this process: what the integration tests share. One process has one instance: tests take turns.
#![allow(dead_code)] // no test uses all of it

use cryptoki_sys::*;
use std::{
    path::Path,
    ptr::null_mut,
    sync::{Mutex, MutexGuard, PoisonError},
};

type GetFunctionList = unsafe extern "C" fn(*mut *mut CK_FUNCTION_LIST) -> CK_RV;

/// The module that cargo built for these tests.
fn functions() -> &'static CK_FUNCTION_LIST {
    let path = std::env::current_exe().unwrap().with_file_name("libqtls_pkcs11.so");
    // SAFETY: it is our own, and stays loaded.
    unsafe {
        let library = Box::leak(Box::new(libloading::Library::new(path).unwrap()));
        let get: libloading::Symbol<GetFunctionList> = library.get(b"C_GetFunctionList").unwrap();
        let mut list = null_mut();
        assert_eq!(get(null_mut()), CKR_ARGUMENTS_BAD);
        assert_eq!(get(&mut list), CKR_OK);
        &*list
    }
}

/// Calls a function that the table must have.
macro_rules! call {
    ($table:expr, $name:ident($($arg:expr),*)) => {
        // SAFETY: the arguments are as PKCS#11 has them.
        unsafe { ($table.$name.expect(stringify!($name)))($($arg),*) }
    };
}
pub(crate) use call;

pub struct Module {
    pub table: &'static CK_FUNCTION_LIST,
    _turn: MutexGuard<'static, ()>,
}

impl Module {
    /// Not yet initialised.
    pub fn new() -> Module {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Module { table: functions(), _turn: turn }
    }

    pub fn initialise(argument: &str) -> (Module, CK_RV) {
        let module = Module::new();
        let argument = std::ffi::CString::new(argument).unwrap();
        let mut args = CK_C_INITIALIZE_ARGS { flags: CKF_OS_LOCKING_OK, ..Default::default() };
        args.pReserved = argument.as_ptr().cast_mut().cast();
        let code = call!(module.table, C_Initialize((&raw mut args).cast()));
        (module, code)
    }

    pub fn started(configuration: &Path) -> Module {
        let (module, code) = Module::initialise(&format!("config={}", configuration.display()));
        assert_eq!(code, CKR_OK);
        module
    }

    pub fn session(&self) -> CK_SESSION_HANDLE {
        let mut session = 0;
        assert_eq!(call!(self.table, C_OpenSession(0, CKF_SERIAL_SESSION, null_mut(), None, &mut session)), CKR_OK);
        session
    }

    pub fn find(&self, session: CK_SESSION_HANDLE, class: CK_OBJECT_CLASS, label: &str) -> Vec<CK_OBJECT_HANDLE> {
        let mut template = [
            CK_ATTRIBUTE { type_: CKA_CLASS, pValue: (&raw const class).cast_mut().cast(), ulValueLen: 8 },
            CK_ATTRIBUTE {
                type_: CKA_LABEL,
                pValue: label.as_ptr().cast_mut().cast(),
                ulValueLen: label.len() as CK_ULONG,
            },
        ];
        let (mut found, mut count) = ([0; 8], 0);
        assert_eq!(call!(self.table, C_FindObjectsInit(session, template.as_mut_ptr(), 2)), CKR_OK);
        assert_eq!(call!(self.table, C_FindObjects(session, found.as_mut_ptr(), 8, &mut count)), CKR_OK);
        assert_eq!(call!(self.table, C_FindObjectsFinal(session)), CKR_OK);
        found[..count as usize].to_vec()
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        call!(self.table, C_Finalize(null_mut()));
    }
}
