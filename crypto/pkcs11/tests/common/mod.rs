//! The module in this process: what the integration tests share. One process has one instance: tests take turns.
#![allow(dead_code, unused_macros, unused_imports)] // no test uses all of it

pub mod fake;
pub mod signing;
pub mod token;

use cryptoki_sys::*;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    ptr::null_mut,
    sync::{
        atomic::{AtomicU32, Ordering::SeqCst},
        Mutex, MutexGuard, PoisonError,
    },
};

/// Runs a program that has to succeed, and returns what it wrote.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {text}");
    text
}

/// A new folder, of a name of its own.
pub fn folder(name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("{name}-{}-{}", std::process::id(), COUNT.fetch_add(1, SeqCst));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // One may be left of an earlier process with this number.
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Runs the tests of this program under valgrind, but for those whose memory it cannot judge.
pub fn valgrind(environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = Command::new("valgrind")
        .args(["--quiet", "--error-exitcode=99", "--num-callers=30", "--leak-check=full"])
        .args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"])
        .arg(std::env::current_exe().unwrap())
        // Of a child process the threads are gone, and with them what pointed to their memory.
        .args(["--test-threads=1", "--skip", "valgrind", "--skip", "a_child_process"])
        .envs(environment.iter().copied())
        .output()
        .expect("valgrind is missing; install it");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code(), text)
}

type GetFunctionList = unsafe extern "C" fn(*mut *mut CK_FUNCTION_LIST) -> CK_RV;

/// The table of functions of a module, which stays loaded.
pub fn functions_of(path: &Path) -> &'static CK_FUNCTION_LIST {
    // SAFETY: it is ours, or one that a test is about.
    unsafe {
        let library = libloading::Library::new(path).unwrap();
        let get: libloading::Symbol<GetFunctionList> = library.get(b"C_GetFunctionList").unwrap();
        let mut list = null_mut();
        assert_eq!(get(&mut list), CKR_OK);
        std::mem::forget(library);
        &*list
    }
}

/// The module that cargo built for these tests.
pub fn module() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libqtls_pkcs11.so")
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
        Module { table: functions_of(&module()), _turn: turn }
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
        self.session_with(CKF_SERIAL_SESSION)
    }

    pub fn session_with(&self, flags: CK_FLAGS) -> CK_SESSION_HANDLE {
        let mut session = 0;
        assert_eq!(call!(self.table, C_OpenSession(0, flags, null_mut(), None, &mut session)), CKR_OK);
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
