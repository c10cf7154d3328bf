//! `libqtls_pkcs11.so`: a PKCS#11 module that shows one slot with the keys of its configuration, and has signatures made by
//! whichever member (a token in another module) can make them.
//!
//! A program enters through [`C_GetFunctionList`]. The entry points are here, thin and unsafe, over the safe [`slot`], whose
//! objects come from the [`config`]uration alone; a signature goes to the [`pool`], which asks one [`member`] after the
//! other as the [`verdict`] on the last one's error says. A member's threads call its [`token`]: its vendor's [`library`], or
//! an hsmd by [`remote`].

pub mod asynchronous;
pub mod config;
mod generate;
mod inputs;
pub mod keys;
pub mod library;
pub mod member;
pub mod pool;
pub mod protocol;
pub mod remote;
pub mod slot;
pub mod spki;
pub mod status;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod token;
pub mod turns;
pub mod verdict;

use cryptoki_sys::*;
use inputs::{bytes, mechanism, place, room, template};
use slot::{Attribute, Rv, Slot, SLOT};
use std::{
    ffi::{c_void, CStr},
    path::PathBuf,
    ptr::null_mut,
    sync::{
        atomic::{AtomicBool, AtomicPtr, Ordering},
        Arc, OnceLock,
    },
    time::{Duration, Instant},
};

/// What C_Initialize made, and for which process: threads do not survive a fork.
struct Instance {
    process: i32,
    slot: Slot,
    modules: library::Modules,
    status: Option<status::Writer>,
    finalised: AtomicBool,
    /// Until when the end of the program waits for its threads, once it has begun.
    end: OnceLock<Instant>,
    /// The one before: finalised, or of the process that this one was forked from.
    _before: *mut Instance,
}

impl Instance {
    /// Ends its threads. True if none of them is in a library any more.
    fn stop(&self, time: Duration) -> bool {
        let stopped = self.slot.pool.stop(time);
        if let Some(status) = &self.status {
            status.stop(time);
        }
        stopped
    }
}

/// Never freed once it was here: a thread may still be in a call. No lock, because a fork may happen while it is held.
static INSTANCE: AtomicPtr<Instance> = AtomicPtr::new(null_mut());

fn process() -> i32 {
    // SAFETY: it cannot fail.
    unsafe { libc::getpid() }
}

fn instance() -> Rv<&'static Instance> {
    // SAFETY: null, or an instance that stays.
    match unsafe { INSTANCE.load(Ordering::Acquire).as_ref() } {
        Some(i) if i.process == process() && !i.finalised.load(Ordering::Acquire) => Ok(i),
        _ => Err(CKR_CRYPTOKI_NOT_INITIALIZED),
    }
}

fn slot() -> Rv<&'static Slot> {
    instance().map(|instance| &instance.slot)
}

fn slot_of(id: CK_SLOT_ID) -> Rv<&'static Slot> {
    slot().and_then(|slot| if id == SLOT { Ok(slot) } else { Err(CKR_SLOT_ID_INVALID) })
}

fn code(result: Rv<()>) -> CK_RV {
    result.err().unwrap_or(CKR_OK)
}

/// A message as one line: others' words, such as an hsmd's, may have line breaks in them.
pub fn one_line(message: &str) -> String {
    message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// One line to standard error, past the lock that Rust puts around it: a fork may happen while it is held.
fn log(message: &str) {
    let line = format!("qtls-pkcs11: {}\n", one_line(message));
    // SAFETY: so many bytes are there. Whether they were written does not matter here.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Where the configuration is: the init argument `config=PATH`, or else the environment.
fn config_path(argument: Option<&CStr>) -> Result<PathBuf, String> {
    const REMEDY: &str = "set QTLS_PKCS11_CONFIG, or the init argument config=PATH";
    match argument.map(|a| a.to_bytes()) {
        None | Some([]) => match std::env::var_os("QTLS_PKCS11_CONFIG") {
            Some(path) if !path.is_empty() => Ok(path.into()),
            _ => Err(format!("no configuration: {REMEDY}")),
        },
        Some(argument) => match std::str::from_utf8(argument).ok().and_then(|a| a.strip_prefix("config=/")) {
            Some(path) => Ok(format!("/{path}").into()),
            None => {
                Err(format!("init argument {:?}: {REMEDY}, with an absolute path", String::from_utf8_lossy(argument)))
            }
        },
    }
}

/// How a member's token is reached.
pub fn token(modules: &mut library::Modules, member: &config::Member) -> Box<dyn token::Token> {
    match &member.place {
        config::Place::Module(module) => Box::new(modules.token(module, member.timeout)),
        config::Place::Daemon(daemon) => Box::new(remote::RemoteToken::new(daemon.clone(), member.timeout)),
    }
}

fn start(argument: Option<&CStr>, before: *mut Instance) -> Result<Instance, String> {
    if let Err(e) = asynchronous::prepare() {
        log(e);
    }
    let path = config_path(argument)?;
    let (config, file) = keys::read(&path, log)?;
    let config = Arc::new(config);
    // Made before there are threads: a child that is forked while one of them makes it would wait for it for ever.
    verdict::table();
    asynchronous::limit_descriptors(config.descriptors.unwrap_or(u64::MAX));
    let mut modules = library::Modules::new(stop_at_exit);
    let pool = pool::Pool::start(&config, |m| token(&mut modules, m), member::CHECK_INTERVAL, log);
    let status = config.status_dir.as_ref().map(|dir| {
        stop_at_exit();
        status::Writer::start(dir, &config.label, status::INTERVAL, pool.observer(), log)
    });
    let slot = Slot::new(&config, keys::Keys::new(&config.keys, Some(file)), pool);
    let (finalised, end) = (AtomicBool::new(false), OnceLock::new());
    Ok(Instance { process: process(), slot, modules, status, finalised, end, _before: before })
}

/// How long the end of a program waits for members.
const STOP_TIME: Duration = Duration::from_secs(1);

/// Libraries tidy up when a program ends. None of our threads must be in one then, and the last handler is called first:
/// this one is added again after each library's. All of them together wait as long as one.
fn stop_at_exit() {
    extern "C" fn stop() {
        if let Ok(instance) = instance() {
            let end = *instance.end.get_or_init(|| Instant::now() + STOP_TIME);
            instance.stop(end.saturating_duration_since(Instant::now()));
        }
    }
    // SAFETY: the module stays mapped. Without room for the handler there is nothing to be done.
    unsafe { libc::atexit(stop) };
}

unsafe extern "C" fn initialize(args: *mut c_void) -> CK_RV {
    let mut argument = None;
    if let Some(args) = args.cast::<CK_C_INITIALIZE_ARGS>().as_ref() {
        if args.flags & CKF_LIBRARY_CANT_CREATE_OS_THREADS != 0 {
            return CKR_NEED_TO_CREATE_THREADS;
        }
        if args.CreateMutex.is_some() && args.flags & CKF_OS_LOCKING_OK == 0 {
            return CKR_CANT_LOCK;
        }
        if !args.pReserved.is_null() {
            argument = Some(CStr::from_ptr(args.pReserved.cast()));
        }
    }
    let before = INSTANCE.load(Ordering::Acquire);
    if slot().is_ok() {
        return CKR_CRYPTOKI_ALREADY_INITIALIZED;
    }
    match start(argument, before) {
        Ok(instance) => {
            let new = Box::into_raw(Box::new(instance));
            match INSTANCE.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => CKR_OK,
                Err(_) => {
                    // Another thread was faster.
                    (*new).stop(STOP_TIME);
                    CKR_CRYPTOKI_ALREADY_INITIALIZED
                }
            }
        }
        Err(message) => {
            log(&message);
            CKR_ARGUMENTS_BAD
        }
    }
}

unsafe extern "C" fn finalize(reserved: *mut c_void) -> CK_RV {
    if !reserved.is_null() {
        return CKR_ARGUMENTS_BAD;
    }
    code(instance().map(|instance| {
        instance.finalised.store(true, Ordering::Release);
        instance.slot.close_all_sessions();
        if instance.stop(STOP_TIME) {
            instance.modules.finalise();
        }
    }))
}

/// Text filled up with blanks, as PKCS#11 has it.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    let len = text.len().min(N);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}

const MANUFACTURER: &str = "Q-TLS";
const CRYPTOKI: CK_VERSION = CK_VERSION { major: 2, minor: 40 };
const VERSION: CK_VERSION = CK_VERSION { major: 0, minor: 1 };

unsafe extern "C" fn get_info(info: *mut CK_INFO) -> CK_RV {
    code(slot().and_then(|_| {
        *place(info)? = CK_INFO {
            cryptokiVersion: CRYPTOKI,
            manufacturerID: padded(MANUFACTURER),
            flags: 0,
            libraryDescription: padded("Tokens with failover"),
            libraryVersion: VERSION,
        };
        Ok(())
    }))
}

/// Fills a list whose length the caller may only be asking for.
unsafe fn fill<T: Copy>(list: *mut T, count: *mut CK_ULONG, values: &[T]) -> Rv<()> {
    let count = place(count)?;
    let fits = list.is_null() || *count >= values.len() as CK_ULONG;
    *count = values.len() as CK_ULONG;
    if !fits {
        return Err(CKR_BUFFER_TOO_SMALL);
    }
    if !list.is_null() {
        list.copy_from_nonoverlapping(values.as_ptr(), values.len());
    }
    Ok(())
}

unsafe extern "C" fn get_slot_list(_present: CK_BBOOL, list: *mut CK_SLOT_ID, count: *mut CK_ULONG) -> CK_RV {
    code(slot().and_then(|_| fill(list, count, &[SLOT])))
}

unsafe extern "C" fn get_slot_info(id: CK_SLOT_ID, info: *mut CK_SLOT_INFO) -> CK_RV {
    code(slot_of(id).and_then(|_| {
        *place(info)? = CK_SLOT_INFO {
            slotDescription: padded("Q-TLS virtual slot"),
            manufacturerID: padded(MANUFACTURER),
            flags: CKF_TOKEN_PRESENT,
            hardwareVersion: VERSION,
            firmwareVersion: VERSION,
        };
        Ok(())
    }))
}

/// No CKF_LOGIN_REQUIRED: the members' PINs come from files, and no program is to ask anybody for one.
unsafe extern "C" fn get_token_info(id: CK_SLOT_ID, info: *mut CK_TOKEN_INFO) -> CK_RV {
    code(slot_of(id).and_then(|slot| {
        *place(info)? = CK_TOKEN_INFO {
            label: padded(&slot.label),
            manufacturerID: padded(MANUFACTURER),
            model: padded("failover"),
            serialNumber: padded("1"),
            flags: CKF_TOKEN_INITIALIZED | if slot.generates { 0 } else { CKF_WRITE_PROTECTED },
            // Without a number, pkcs11-provider stops at 1024.
            ulMaxSessionCount: slot::MOST_SESSIONS as CK_ULONG,
            ulSessionCount: slot.session_count() as CK_ULONG,
            ulMaxRwSessionCount: if slot.generates { slot::MOST_SESSIONS as CK_ULONG } else { 0 },
            ulRwSessionCount: slot.writing_session_count() as CK_ULONG,
            ulMaxPinLen: 0,
            ulMinPinLen: 0,
            ulTotalPublicMemory: CK_UNAVAILABLE_INFORMATION,
            ulFreePublicMemory: CK_UNAVAILABLE_INFORMATION,
            ulTotalPrivateMemory: CK_UNAVAILABLE_INFORMATION,
            ulFreePrivateMemory: CK_UNAVAILABLE_INFORMATION,
            hardwareVersion: VERSION,
            firmwareVersion: VERSION,
            utcTime: padded(""),
        };
        Ok(())
    }))
}

unsafe extern "C" fn get_mechanism_list(id: CK_SLOT_ID, list: *mut CK_MECHANISM_TYPE, count: *mut CK_ULONG) -> CK_RV {
    code(slot_of(id).and_then(|slot| {
        let types: Vec<_> = slot.mechanisms().iter().map(|m| m.0).collect();
        fill(list, count, &types)
    }))
}

unsafe extern "C" fn get_mechanism_info(
    id: CK_SLOT_ID,
    type_: CK_MECHANISM_TYPE,
    info: *mut CK_MECHANISM_INFO,
) -> CK_RV {
    code(slot_of(id).and_then(|slot| {
        let mechanisms = slot.mechanisms();
        *place(info)? = mechanisms.iter().find(|m| m.0 == type_).ok_or(CKR_MECHANISM_INVALID)?.1;
        Ok(())
    }))
}

unsafe extern "C" fn open_session(
    id: CK_SLOT_ID,
    flags: CK_FLAGS,
    _application: *mut c_void,
    _notify: CK_NOTIFY,
    session: *mut CK_SESSION_HANDLE,
) -> CK_RV {
    code(slot_of(id).and_then(|slot| {
        // A session whose handle there is no place for would stay open.
        let session = place(session)?;
        *session = slot.open_session(flags)?;
        Ok(())
    }))
}

unsafe extern "C" fn close_session(session: CK_SESSION_HANDLE) -> CK_RV {
    code(slot().and_then(|slot| slot.close_session(session)))
}

unsafe extern "C" fn close_all_sessions(id: CK_SLOT_ID) -> CK_RV {
    code(slot_of(id).map(Slot::close_all_sessions))
}

unsafe extern "C" fn get_session_info(session: CK_SESSION_HANDLE, info: *mut CK_SESSION_INFO) -> CK_RV {
    code(slot().and_then(|slot| {
        let session = slot.session(session)?;
        let state = if session.writes() { CKS_RW_USER_FUNCTIONS } else { CKS_RO_USER_FUNCTIONS };
        *place(info)? = CK_SESSION_INFO { slotID: SLOT, state, flags: session.flags, ulDeviceError: 0 };
        Ok(())
    }))
}

/// Whoever logs in all the same is told that this has happened already. The PIN is not looked at.
unsafe extern "C" fn login(session: CK_SESSION_HANDLE, user: CK_USER_TYPE, _pin: *mut u8, _len: CK_ULONG) -> CK_RV {
    match slot().and_then(|slot| slot.session(session)) {
        Ok(_) if user == CKU_USER => CKR_USER_ALREADY_LOGGED_IN,
        Ok(_) => CKR_USER_TYPE_INVALID,
        Err(e) => e,
    }
}

/// A program's end of business: members stay logged in, for other sessions.
unsafe extern "C" fn logout(session: CK_SESSION_HANDLE) -> CK_RV {
    code(slot().and_then(|slot| slot.session(session)).map(|_| ()))
}

unsafe extern "C" fn get_attribute_value(
    session: CK_SESSION_HANDLE,
    object: CK_OBJECT_HANDLE,
    attributes: *mut CK_ATTRIBUTE,
    count: CK_ULONG,
) -> CK_RV {
    code(slot().and_then(|slot| {
        slot.session(session)?;
        let (object, key) = slot::object(&slot.keys, object).ok_or(CKR_OBJECT_HANDLE_INVALID)?;
        if attributes.is_null() && count != 0 {
            return Err(CKR_ARGUMENTS_BAD);
        }
        let mut result = Ok(());
        // Every attribute is answered, whatever became of the others; one of the errors is the call's.
        for i in 0..usize::try_from(count).map_err(|_| CKR_ARGUMENTS_BAD)? {
            let place = attributes.add(i);
            let wanted = *place;
            let answer = match slot::attribute(&key, object.private, wanted.type_) {
                Attribute::Value(value) => {
                    let len = value.len() as CK_ULONG;
                    // Whoever says that there is room for more than memory holds hands an earlier answer in again.
                    let fits = wanted.pValue.is_null() || (len..=isize::MAX as CK_ULONG).contains(&wanted.ulValueLen);
                    if fits && !wanted.pValue.is_null() {
                        wanted.pValue.cast::<u8>().copy_from_nonoverlapping(value.as_ptr(), value.len());
                    }
                    if fits {
                        Ok(len)
                    } else {
                        Err(CKR_BUFFER_TOO_SMALL)
                    }
                }
                Attribute::Sensitive => Err(CKR_ATTRIBUTE_SENSITIVE),
                Attribute::Absent => Err(CKR_ATTRIBUTE_TYPE_INVALID),
            };
            (*place).ulValueLen = answer.unwrap_or(CK_UNAVAILABLE_INFORMATION);
            result = result.and(answer.map(drop));
        }
        result
    }))
}

unsafe extern "C" fn find_objects_init(
    session: CK_SESSION_HANDLE,
    attributes: *mut CK_ATTRIBUTE,
    count: CK_ULONG,
) -> CK_RV {
    code(slot().and_then(|slot| slot.find_init(session, &template(attributes, count)?)))
}

unsafe extern "C" fn find_objects(
    session: CK_SESSION_HANDLE,
    objects: *mut CK_OBJECT_HANDLE,
    most: CK_ULONG,
    count: *mut CK_ULONG,
) -> CK_RV {
    code(slot().and_then(|slot| {
        let count = place(count)?;
        *count = slot.find(session, room(objects, most)?)? as CK_ULONG;
        Ok(())
    }))
}

unsafe extern "C" fn find_objects_final(session: CK_SESSION_HANDLE) -> CK_RV {
    code(slot().and_then(|slot| slot.find_final(session)))
}

unsafe extern "C" fn sign_init(session: CK_SESSION_HANDLE, how: *mut CK_MECHANISM, key: CK_OBJECT_HANDLE) -> CK_RV {
    code(slot().and_then(|slot| match how.as_ref() {
        None => slot.sign_cancel(session),
        Some(how) => slot.sign_init(session, mechanism(how)?, key),
    }))
}

/// Hands over the signature that `sign` makes if it is told that there is room for it. Who gives no place for it asks for its
/// length, and who gives too little room is told it.
unsafe fn hand_over(
    slot: &Slot,
    session: CK_SESSION_HANDLE,
    signature: *mut u8,
    len: *mut CK_ULONG,
    sign: impl FnOnce(usize) -> Rv<Vec<u8>>,
) -> Rv<()> {
    let len = place(len)?;
    if signature.is_null() {
        *len = slot.signature_len(session)? as CK_ULONG;
        return Ok(());
    }
    match sign(usize::try_from(*len).unwrap_or(usize::MAX)) {
        Ok(made) => {
            signature.copy_from_nonoverlapping(made.as_ptr(), made.len());
            *len = made.len() as CK_ULONG;
            Ok(())
        }
        Err(CKR_BUFFER_TOO_SMALL) => {
            *len = slot.signature_len(session)? as CK_ULONG;
            Err(CKR_BUFFER_TOO_SMALL)
        }
        Err(e) => Err(e),
    }
}

unsafe extern "C" fn sign(
    session: CK_SESSION_HANDLE,
    data: *mut u8,
    data_len: CK_ULONG,
    signature: *mut u8,
    len: *mut CK_ULONG,
) -> CK_RV {
    code(slot().and_then(|slot| {
        let data = bytes(data, data_len)?;
        hand_over(slot, session, signature, len, |room| slot.sign(session, data, room))
    }))
}

unsafe extern "C" fn sign_update(session: CK_SESSION_HANDLE, part: *mut u8, len: CK_ULONG) -> CK_RV {
    code(slot().and_then(|slot| slot.sign_update(session, bytes(part, len)?)))
}

unsafe extern "C" fn sign_final(session: CK_SESSION_HANDLE, signature: *mut u8, len: *mut CK_ULONG) -> CK_RV {
    code(slot().and_then(|slot| hand_over(slot, session, signature, len, |room| slot.sign_final(session, room))))
}

unsafe extern "C" fn generate_key_pair(
    session: CK_SESSION_HANDLE,
    how: *mut CK_MECHANISM,
    public: *mut CK_ATTRIBUTE,
    public_count: CK_ULONG,
    private: *mut CK_ATTRIBUTE,
    private_count: CK_ULONG,
    public_key: *mut CK_OBJECT_HANDLE,
    private_key: *mut CK_OBJECT_HANDLE,
) -> CK_RV {
    code(slot().and_then(|slot| {
        if !slot.generates {
            return Err(CKR_FUNCTION_NOT_SUPPORTED);
        }
        let how = how.as_ref().ok_or(CKR_ARGUMENTS_BAD)?;
        if !how.pParameter.is_null() || how.ulParameterLen != 0 {
            return Err(CKR_MECHANISM_PARAM_INVALID);
        }
        let (public, private) = (template(public, public_count)?, template(private, private_count)?);
        // A key whose handle there is no place for is not made, nor one for whose two handles there is one place.
        let (public_key, private_key) = (place(public_key)?, place(private_key)?);
        if public_key == private_key {
            return Err(CKR_ARGUMENTS_BAD);
        }
        (*public_key, *private_key) = slot.generate(session, how.mechanism, &public, &private)?;
        Ok(())
    }))
}

/// A function of PKCS#11 that says it is not supported, of whichever type a place in the table has.
trait NotSupported {
    const NOT_SUPPORTED: Self;
}

macro_rules! not_supported {
    ($($arg:ident)*) => {
        impl<$($arg),*> NotSupported for Option<unsafe extern "C" fn($($arg),*) -> CK_RV> {
            const NOT_SUPPORTED: Self = {
                unsafe extern "C" fn not_supported<$($arg),*>($(_: $arg),*) -> CK_RV {
                    CKR_FUNCTION_NOT_SUPPORTED
                }
                Some(not_supported::<$($arg),*>)
            };
        }
    };
}
not_supported!(A);
not_supported!(A B);
not_supported!(A B C);
not_supported!(A B C D);
not_supported!(A B C D E);
not_supported!(A B C D E F);
not_supported!(A B C D E F G);
not_supported!(A B C D E F G H);

/// The table of functions: those that are there, and all others as not supported.
macro_rules! table {
    ({ $($name:ident: $function:expr,)* } not supported: $($missing:ident),*) => {
        CK_FUNCTION_LIST {
            version: CRYPTOKI,
            $($name: Some($function),)*
            $($missing: NotSupported::NOT_SUPPORTED,)*
        }
    };
}

static FUNCTIONS: CK_FUNCTION_LIST = table! {
    {
    C_Initialize: initialize,
    C_Finalize: finalize,
    C_GetInfo: get_info,
    C_GetFunctionList: C_GetFunctionList,
    C_GetSlotList: get_slot_list,
    C_GetSlotInfo: get_slot_info,
    C_GetTokenInfo: get_token_info,
    C_GetMechanismList: get_mechanism_list,
    C_GetMechanismInfo: get_mechanism_info,
    C_OpenSession: open_session,
    C_CloseSession: close_session,
    C_CloseAllSessions: close_all_sessions,
    C_GetSessionInfo: get_session_info,
    C_Login: login,
    C_Logout: logout,
    C_GetAttributeValue: get_attribute_value,
    C_FindObjectsInit: find_objects_init,
    C_FindObjects: find_objects,
    C_FindObjectsFinal: find_objects_final,
    C_SignInit: sign_init,
    C_Sign: sign,
    C_SignUpdate: sign_update,
    C_SignFinal: sign_final,
    C_GenerateKeyPair: generate_key_pair,
    }
    not supported:
    C_InitToken, C_InitPIN, C_SetPIN, C_GetOperationState, C_SetOperationState, C_CreateObject, C_CopyObject,
    C_DestroyObject, C_GetObjectSize, C_SetAttributeValue, C_EncryptInit, C_Encrypt, C_EncryptUpdate, C_EncryptFinal,
    C_DecryptInit, C_Decrypt, C_DecryptUpdate, C_DecryptFinal, C_DigestInit, C_Digest, C_DigestUpdate, C_DigestKey,
    C_DigestFinal, C_SignRecoverInit, C_SignRecover, C_VerifyInit, C_Verify, C_VerifyUpdate, C_VerifyFinal,
    C_VerifyRecoverInit, C_VerifyRecover, C_DigestEncryptUpdate, C_DecryptDigestUpdate, C_SignEncryptUpdate,
    C_DecryptVerifyUpdate, C_GenerateKey, C_WrapKey, C_UnwrapKey, C_DeriveKey, C_SeedRandom, C_GenerateRandom,
    C_GetFunctionStatus, C_CancelFunction, C_WaitForSlotEvent
};

/// The entry point of the module: its table of functions.
///
/// # Safety
/// `list` is a place for one pointer, or null.
#[no_mangle]
pub unsafe extern "C" fn C_GetFunctionList(list: *mut *mut CK_FUNCTION_LIST) -> CK_RV {
    code(place(list).map(|list| *list = (&raw const FUNCTIONS).cast_mut()))
}
