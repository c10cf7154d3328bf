//! The module as a program sees it, without any member: its table of functions, its objects, its rules.

mod common;

use common::{call, valgrind, Module};
use cryptoki_sys::*;
use std::{
    fs,
    path::{Path, PathBuf},
    ptr::null_mut,
    sync::OnceLock,
};

/// A configuration whose members do not exist.
fn configuration() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
        let mut text =
            "[slot]\nlabel = gw\n[member none]\nmodule = /none.so\ntoken = t\npin-file = /none\n".to_string();
        for key in ["rsa", "p256", "mldsa65"] {
            text += &format!("[key {key}]\nid = 0a\npublic-key = {}/{key}.pem\n", keys.display());
        }
        written("module.conf", &text)
    })
}

/// A file of that text. Valgrind runs these tests while they run: neither process may find what the other has half written.
fn written(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let new = path.with_extension(std::process::id().to_string());
    fs::write(&new, text).unwrap();
    fs::rename(new, &path).unwrap();
    path
}

#[test]
fn every_function_is_there_and_those_not_needed_say_so() {
    let module = Module::started(configuration());
    let table = std::ptr::from_ref(module.table).cast::<Option<unsafe extern "C" fn() -> CK_RV>>();
    let count = size_of::<CK_FUNCTION_LIST>() / size_of::<usize>() - 1;
    assert_eq!(count, 68, "functions of PKCS#11 2.40");
    assert_eq!(call!(module.table, C_GetFunctionList(null_mut())), CKR_ARGUMENTS_BAD);
    for i in 1..=count {
        // SAFETY: after the version there are only functions.
        assert!(unsafe { *table.add(i) }.is_some(), "function {i} is missing");
    }
    let session = module.session();
    assert_eq!(call!(module.table, C_GenerateRandom(session, null_mut(), 0)), CKR_FUNCTION_NOT_SUPPORTED);
    assert_eq!(call!(module.table, C_DestroyObject(session, 1)), CKR_FUNCTION_NOT_SUPPORTED);
    assert_eq!(
        call!(
            module.table,
            C_GenerateKeyPair(session, null_mut(), null_mut(), 0, null_mut(), 0, null_mut(), null_mut())
        ),
        CKR_FUNCTION_NOT_SUPPORTED
    );
}

/// pkcs11-provider loads it with RTLD_DEEPBIND, and HAProxy has jemalloc: what it allocates by the one may not be freed by the
/// other. What a library takes if the program happens to have it is found in the program all the same.
#[test]
fn it_takes_nothing_that_only_some_programs_have() {
    let symbols = common::run("nm", &["-D", "--undefined-only", common::module().to_str().unwrap()]);
    let all: Vec<_> = symbols.lines().map(|line| line.trim()).collect();
    assert!(all.iter().any(|symbol| symbol.starts_with("U malloc")), "{symbols}");
    // What has a version is libc's.
    let optional: Vec<_> = all.iter().filter_map(|s| s.strip_prefix("w ")).filter(|s| !s.contains('@')).collect();
    let of_the_compiler =
        ["__cxa_thread_atexit_impl", "__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"];
    let others: Vec<_> = optional.iter().filter(|symbol| !of_the_compiler.contains(symbol)).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn nothing_works_before_it_is_initialised_and_nothing_twice() {
    let module = Module::new();
    let mut count = 0;
    assert_eq!(call!(module.table, C_GetSlotList(CK_TRUE, null_mut(), &mut count)), CKR_CRYPTOKI_NOT_INITIALIZED);
    assert_eq!(call!(module.table, C_Finalize(null_mut())), CKR_CRYPTOKI_NOT_INITIALIZED);
    drop(module);
    let module = Module::started(configuration());
    assert_eq!(call!(module.table, C_Initialize(null_mut())), CKR_CRYPTOKI_ALREADY_INITIALIZED);
    if std::env::var_os(FAULT).is_some() {
        std::mem::forget(std::hint::black_box(vec![1u8; 100]));
    }
}

#[test]
fn a_wrong_configuration_is_refused() {
    for argument in ["", "config=", "config=relative", "/etc/passwd", "config=/none", "config=/dev/null"] {
        assert_eq!(Module::initialise(argument).1, CKR_ARGUMENTS_BAD, "{argument}");
    }
}

#[test]
fn keys_are_found_with_no_member_up_and_no_login() {
    let module = Module::started(configuration());
    let mut token = CK_TOKEN_INFO::default();
    assert_eq!(call!(module.table, C_GetTokenInfo(0, &mut token)), CKR_OK);
    assert_eq!(token.flags & CKF_LOGIN_REQUIRED, 0, "nobody is asked for a PIN");
    let session = module.session();
    for label in ["rsa", "p256", "mldsa65"] {
        assert_eq!(module.find(session, CKO_PRIVATE_KEY, label).len(), 1, "{label}");
        assert_eq!(module.find(session, CKO_PUBLIC_KEY, label).len(), 1, "{label}");
    }
    assert_eq!(module.find(session, CKO_PRIVATE_KEY, "other"), []);
    assert_eq!(module.find(session, CKO_CERTIFICATE, "rsa"), []);
}

#[test]
fn attributes_are_answered_one_by_one() {
    let module = Module::started(configuration());
    let session = module.session();
    let key = module.find(session, CKO_PRIVATE_KEY, "p256")[0];
    let mut id = [0u8; 4];
    let attribute = |type_, value: *mut u8, len| CK_ATTRIBUTE { type_, pValue: value.cast(), ulValueLen: len };
    let mut wanted = [
        attribute(CKA_VALUE, null_mut(), 0),
        attribute(CKA_ID, id.as_mut_ptr(), 4),
        attribute(CKA_MODULUS, null_mut(), 0),
        attribute(CKA_EC_POINT, null_mut(), 0),
        attribute(CKA_LABEL, [0u8; 1].as_mut_ptr(), 1),
    ];
    assert_eq!(call!(module.table, C_GetAttributeValue(session, key, wanted.as_mut_ptr(), 5)), CKR_ATTRIBUTE_SENSITIVE);
    let lengths = wanted.map(|a| a.ulValueLen);
    let none = CK_UNAVAILABLE_INFORMATION;
    assert_eq!((lengths, id), ([none, 1, none, 67, none], [10, 0, 0, 0]));
    assert_eq!(call!(module.table, C_GetAttributeValue(session, 99, null_mut(), 0)), CKR_OBJECT_HANDLE_INVALID);
}

#[test]
fn a_signature_says_its_length_and_then_fails_for_want_of_members() {
    let module = Module::started(configuration());
    let session = module.session();
    let key = module.find(session, CKO_PRIVATE_KEY, "mldsa65")[0];
    let mut mechanism = CK_MECHANISM { mechanism: CKM_ML_DSA, pParameter: null_mut(), ulParameterLen: 0 };
    let (mut data, mut signature, mut len) = ([1u8; 32], [0u8; 5000], 0);
    assert_eq!(call!(module.table, C_SignInit(session, &mut mechanism, key)), CKR_OK);
    assert_eq!(call!(module.table, C_SignInit(session, &mut mechanism, key)), CKR_OPERATION_ACTIVE);
    assert_eq!(call!(module.table, C_Sign(session, data.as_mut_ptr(), 32, null_mut(), &mut len)), CKR_OK);
    assert_eq!(len, 3309);
    len = 100;
    let sign = |len: &mut CK_ULONG, data: &mut [u8; 32], signature: &mut [u8; 5000]| {
        call!(module.table, C_Sign(session, data.as_mut_ptr(), 32, signature.as_mut_ptr(), len))
    };
    assert_eq!(sign(&mut len, &mut data, &mut signature), CKR_BUFFER_TOO_SMALL);
    assert_eq!(len, 3309);
    len = 5000;
    assert_eq!(sign(&mut len, &mut data, &mut signature), CKR_DEVICE_ERROR);
    assert_eq!(sign(&mut len, &mut data, &mut signature), CKR_OPERATION_NOT_INITIALIZED, "an error ends it");
}

#[test]
fn a_mechanism_is_refused_with_a_key_of_another_type() {
    let module = Module::started(configuration());
    let session = module.session();
    let key = module.find(session, CKO_PRIVATE_KEY, "p256")[0];
    let init = |type_, key| {
        let mut mechanism = CK_MECHANISM { mechanism: type_, pParameter: null_mut(), ulParameterLen: 0 };
        call!(module.table, C_SignInit(session, &mut mechanism, key))
    };
    assert_eq!(init(CKM_RSA_PKCS, key), CKR_KEY_TYPE_INCONSISTENT);
    assert_eq!(init(CKM_SHA256_RSA_PKCS, key), CKR_MECHANISM_INVALID);
    assert_eq!(init(CKM_RSA_PKCS_PSS, key), CKR_MECHANISM_PARAM_INVALID);
    assert_eq!(init(CKM_ECDSA, module.find(session, CKO_PUBLIC_KEY, "p256")[0]), CKR_KEY_TYPE_INCONSISTENT);
    assert_eq!(init(CKM_ECDSA, 0), CKR_KEY_HANDLE_INVALID);
}

#[test]
fn only_sessions_that_read_are_opened() {
    let module = Module::started(configuration());
    let mut session = 0;
    let flags = CKF_SERIAL_SESSION | CKF_RW_SESSION;
    assert_eq!(call!(module.table, C_OpenSession(0, flags, null_mut(), None, &mut session)), CKR_TOKEN_WRITE_PROTECTED);
    assert_eq!(call!(module.table, C_OpenSession(1, flags, null_mut(), None, &mut session)), CKR_SLOT_ID_INVALID);
    assert_eq!(call!(module.table, C_CloseSession(12345)), CKR_SESSION_HANDLE_INVALID);
}

/// A configuration in which keys may be made, by a member that does not exist.
fn generating() -> PathBuf {
    let text = "[slot]\ngenerate = true\n[member none]\nmodule = /none.so\ntoken = t\npin-file = /none\n";
    written("generate.conf", text)
}

#[test]
fn sessions_are_counted_and_so_are_those_of_them_that_write() {
    let module = Module::started(&generating());
    let counts = || {
        let mut token = CK_TOKEN_INFO::default();
        assert_eq!(call!(module.table, C_GetTokenInfo(0, &mut token)), CKR_OK);
        (token.ulSessionCount, token.ulRwSessionCount)
    };
    let writes = CKF_SERIAL_SESSION | CKF_RW_SESSION;
    assert_eq!(counts(), (0, 0));
    let [reader, writer, _] = [CKF_SERIAL_SESSION, writes, writes].map(|flags| module.session_with(flags));
    assert_eq!(counts(), (3, 2));
    let nowhere = call!(module.table, C_OpenSession(0, writes, null_mut(), None, null_mut()));
    assert_eq!((nowhere, counts()), (CKR_ARGUMENTS_BAD, (3, 2)), "none stays open that nobody can close");
    assert_eq!(call!(module.table, C_CloseSession(writer)), CKR_OK);
    assert_eq!(counts(), (2, 1));
    assert_eq!(call!(module.table, C_CloseSession(reader)), CKR_OK);
    assert_eq!(counts(), (1, 1));
    assert_eq!(call!(module.table, C_CloseAllSessions(0)), CKR_OK);
    assert_eq!(counts(), (0, 0));
}

#[test]
fn no_key_is_made_with_one_place_for_both_its_handles() {
    let module = Module::started(&generating());
    let session = module.session_with(CKF_SERIAL_SESSION | CKF_RW_SESSION);
    let mut mechanism = CK_MECHANISM { mechanism: CKM_EC_KEY_PAIR_GEN, ..Default::default() };
    let (mut curve, mut label) = ([6u8, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7], *b"new");
    let attribute = |type_, value: &mut [u8]| CK_ATTRIBUTE {
        type_,
        pValue: value.as_mut_ptr().cast(),
        ulValueLen: value.len() as CK_ULONG,
    };
    let mut public = [attribute(CKA_EC_PARAMS, &mut curve), attribute(CKA_LABEL, &mut label)];
    let mut handles = [7; 2];
    let place = handles.as_mut_ptr();
    let mut make = |verifies, signs| {
        call!(
            module.table,
            C_GenerateKeyPair(session, &mut mechanism, public.as_mut_ptr(), 2, null_mut(), 0, verifies, signs)
        )
    };
    assert_eq!(make(place, place), CKR_ARGUMENTS_BAD);
    assert_eq!(make(place, null_mut()), CKR_ARGUMENTS_BAD);
    assert_eq!(make(place, place.wrapping_add(1)), CKR_DEVICE_ERROR, "the control: a member is asked");
    assert_eq!(handles, [7; 2]);
}

#[test]
fn where_keys_may_be_made_sessions_write_and_mechanisms_are_there() {
    let path = generating();
    let states = |path: &Path| {
        let module = Module::started(path);
        let (mut token, mut count) = (CK_TOKEN_INFO::default(), 0);
        assert_eq!(call!(module.table, C_GetTokenInfo(0, &mut token)), CKR_OK);
        assert_eq!(call!(module.table, C_GetMechanismList(0, null_mut(), &mut count)), CKR_OK);
        let mut info = CK_MECHANISM_INFO::default();
        let makes = call!(module.table, C_GetMechanismInfo(0, CKM_EC_KEY_PAIR_GEN, &mut info));
        (token.flags & CKF_WRITE_PROTECTED != 0, count, makes)
    };
    assert_eq!(states(configuration()), (true, 5, CKR_MECHANISM_INVALID));
    assert_eq!(states(&path), (false, 8, CKR_OK), "before there is any key");
    let module = Module::started(&path);
    let mut info = CK_SESSION_INFO::default();
    for (flags, state) in [(0, CKS_RO_USER_FUNCTIONS), (CKF_RW_SESSION, CKS_RW_USER_FUNCTIONS)] {
        let session = module.session_with(CKF_SERIAL_SESSION | flags);
        assert_eq!(call!(module.table, C_GetSessionInfo(session, &mut info)), CKR_OK);
        assert_eq!(
            (info.state, info.flags),
            (state, CKF_SERIAL_SESSION | flags),
            "pkcs11-provider wants no PIN for it"
        );
    }
}

#[test]
fn a_child_process_starts_anew() {
    let module = Module::started(configuration());
    let path = std::ffi::CString::new(format!("config={}", configuration().display())).unwrap();
    // SAFETY: the child calls nothing but the module, and ends without tidying up.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let mut count = 0;
            let slots = module.table.C_GetSlotList.unwrap();
            let forgotten = slots(CK_TRUE, null_mut(), &mut count) == CKR_CRYPTOKI_NOT_INITIALIZED;
            let mut args = CK_C_INITIALIZE_ARGS { flags: CKF_OS_LOCKING_OK, ..Default::default() };
            args.pReserved = path.as_ptr().cast_mut().cast();
            let again = module.table.C_Initialize.unwrap()((&raw mut args).cast()) == CKR_OK
                && slots(CK_TRUE, null_mut(), &mut count) == CKR_OK;
            libc::_exit(if forgotten && again { 0 } else { 1 });
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        status
    };
    assert_eq!(status, 0);
}

const FAULT: &str = "QTLS_PKCS11_TEST_FAULT";

#[test]
#[ignore = "needs valgrind"]
fn valgrind_finds_nothing() {
    let (code, text) = valgrind(&[]);
    assert!(code == Some(0) && text.contains(" passed; 0 failed") && !text.contains("Invalid"), "{text}");
}

#[test]
#[ignore = "needs valgrind"]
fn valgrind_would_find_what_is_not_freed() {
    let (code, text) = valgrind(&[(FAULT, "1")]);
    assert!(code == Some(99) && text.contains("definitely lost"), "{text}");
}
