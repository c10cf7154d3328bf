//! A member's token in the library of its vendor.

use crate::{
    config::{self, Key, TokenName},
    spki::{self, Kind, LONGEST_SIGNATURE},
    token::{Algorithm, Failure, Found, KeyName, Mechanism, Request, Result, Session, Token, GENERATE_TIME},
};
use cryptoki_sys::*;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::{
    collections::HashMap,
    fs::{self, File},
    io, mem,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    ptr::{null_mut, NonNull},
    sync::{
        atomic::{AtomicBool, Ordering},
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
    },
    thread,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

/// A panic while a lock was held ends the process in the product; in tests the data behind these locks is still whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A loaded library: members with the same path share it, because it has one C_Initialize.
pub struct Module {
    path: PathBuf,
    state: Mutex<Loaded>,
    /// Somebody has left it, or has a session now.
    changed: Condvar,
    /// A device of it failed since it was initialised: that is done anew as soon as nobody uses it, for some libraries look
    /// for their devices only then. Not behind the lock, which a library that hangs while it is initialised never returns.
    stale: AtomicBool,
    /// Told when a library may have put another handler before the end of the program: when it is loaded, and initialised.
    loaded: fn(),
}

const MOST_TOLD: u32 = 16;

#[derive(Default)]
struct Loaded {
    functions: Option<Functions>,
    initialised: bool,
    /// How often that was told.
    told: u32,
    /// It was initialised already: somebody else in the program uses it, and it is not ours to finalise.
    shared: bool,
    /// Those that are in it to open a session, and those that have one. While there is any it stays initialised. Whoever
    /// waits to be let in is none of them.
    opening: usize,
    open: usize,
}

impl Loaded {
    fn is_used(&self) -> bool {
        self.opening + self.open > 0
    }
}

/// Keeps a library initialised.
struct User {
    module: Arc<Module>,
    /// It has a session.
    open: bool,
}

impl User {
    fn opened(&mut self) {
        self.open = true;
        let mut state = lock(&self.module.state);
        state.opening -= 1;
        state.open += 1;
        self.module.changed.notify_all();
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut state = lock(&self.module.state);
        match self.open {
            true => state.open -= 1,
            false => state.opening -= 1,
        }
        self.module.changed.notify_all();
    }
}

#[derive(Clone, Copy)]
struct Functions(NonNull<CK_FUNCTION_LIST>);

// SAFETY: the table is constant, and its functions are made for several threads after CKF_OS_LOCKING_OK.
unsafe impl Send for Functions {}

/// Calls a function of the table; a table with a hole in it is an old library.
macro_rules! call {
    ($functions:expr, $name:ident ( $($arg:expr),* )) => {{
        // SAFETY: the table stays, for libraries are never unloaded; the arguments are as PKCS#11 has them.
        let code = unsafe { $functions.0.as_ref().$name.map_or(CKR_FUNCTION_NOT_SUPPORTED, |f| f($($arg),*)) };
        match code {
            CKR_OK => Ok(()),
            code => Err(Failure::new(code, stringify!($name))),
        }
    }};
}

impl Module {
    fn load(path: &Path) -> Result<Functions> {
        let failed = |e: libloading::Error| Failure::new(CKR_LIBRARY_LOAD_FAILED, e.to_string());
        // SAFETY: the configuration names the library; what it does when it is loaded is its vendor's business.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
        // SAFETY: PKCS#11 gives this name this type.
        let get =
            unsafe { library.get::<unsafe extern "C" fn(*mut *mut CK_FUNCTION_LIST) -> CK_RV>(b"C_GetFunctionList\0") };
        let mut table = null_mut();
        // SAFETY: a place for one pointer.
        let code = unsafe { get.map_err(failed)?(&mut table) };
        // It is never unloaded: it may have threads.
        mem::forget(library);
        match NonNull::new(table) {
            Some(table) if code == CKR_OK => Ok(Functions(table)),
            _ => Err(Failure::new(code, "C_GetFunctionList")),
        }
    }

    /// Says whether somebody else had done it already.
    fn initialise(functions: Functions) -> Result<bool> {
        let mut args = CK_C_INITIALIZE_ARGS { flags: CKF_OS_LOCKING_OK, ..Default::default() };
        match call!(functions, C_Initialize((&raw mut args).cast())) {
            Err(e) if e.code == CKR_CRYPTOKI_ALREADY_INITIALIZED => Ok(true),
            result => result.map(|()| false),
        }
    }

    /// The table of functions, of a library that is loaded but not yet initialised.
    fn table(&self, state: &mut Loaded) -> Result<Functions> {
        match state.functions {
            Some(functions) => Ok(functions),
            None => {
                let functions = Module::load(&self.path)?;
                state.functions = Some(functions);
                (self.loaded)();
                Ok(functions)
            }
        }
    }

    /// Lets somebody in who is to open a session. If a device failed, and nobody has a session, the library is initialised
    /// anew before. That wants it empty: whoever comes waits for those that are in it, or under load somebody would always
    /// be. But one of them may hang, and then the others go on without.
    fn enter(self: &Arc<Module>, patience: Duration) -> Result<(User, Functions)> {
        let mut state = lock(&self.state);
        let functions = self.table(&mut state)?;
        let waits = |state: &mut Loaded| self.stale.load(Ordering::SeqCst) && state.open == 0 && state.opening > 0;
        state = self.changed.wait_timeout_while(state, patience, waits).unwrap_or_else(PoisonError::into_inner).0;
        if !state.is_used() && self.stale.swap(false, Ordering::SeqCst) {
            Module::finalise(&mut state);
        }
        if !state.initialised {
            state.shared = Module::initialise(functions)?;
            state.initialised = true;
            // A token that stays away has it done anew with each attempt: handlers would pile up.
            if state.told < MOST_TOLD {
                state.told += 1;
                (self.loaded)();
            }
        }
        state.opening += 1;
        Ok((User { module: self.clone(), open: false }, functions))
    }

    /// Nobody may be in the library: whoever becomes a user does so behind this lock, before the first call.
    fn finalise(state: &mut Loaded) {
        if !state.initialised || state.shared {
            return;
        }
        if let Some(functions) = state.functions {
            let _ = call!(functions, C_Finalize(null_mut()));
        }
        state.initialised = false;
    }
}

/// The modules of a configuration, each once.
pub struct Modules {
    by_path: HashMap<PathBuf, Arc<Module>>,
    loaded: fn(),
}

impl Modules {
    /// `loaded` is called whenever a library may have asked to be told of the end of the program.
    pub fn new(loaded: fn()) -> Modules {
        Modules { by_path: HashMap::new(), loaded }
    }

    /// Finalises all that nobody uses.
    pub fn finalise(&self) {
        for module in self.by_path.values() {
            let mut state = lock(&module.state);
            if !state.is_used() {
                Module::finalise(&mut state);
            }
        }
    }

    /// The token of a member. Its library is loaded here and now, not by a worker: the destructors of a library that is
    /// loaded while the program ends would run while the worker is in it. If it cannot be loaded, the worker will say so.
    /// `timeout` is what one signature may take.
    pub fn token(&mut self, member: &config::Module, timeout: Duration) -> LibraryToken {
        let path = &member.module;
        let loaded = self.loaded;
        let new = || {
            let module = Module {
                path: path.clone(),
                state: Mutex::default(),
                changed: Condvar::new(),
                stale: AtomicBool::new(false),
                loaded,
            };
            let _ = module.table(&mut lock(&module.state));
            Arc::new(module)
        };
        let module = self.by_path.entry(path.clone()).or_insert_with(new).clone();
        LibraryToken {
            module,
            name: member.token.clone(),
            pin_file: member.pin_file.clone(),
            login: Mutex::new(Login::default()),
            patience: timeout / 4,
            turn: GENERATE_TIME / 2,
        }
    }
}

/// A file that was read, as far as one can tell that it changed: a Secret's files are replaced, not written to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stamp(u64, u64, i64, i64, u64);

impl Stamp {
    pub fn of(path: &Path) -> io::Result<Stamp> {
        let about = fs::metadata(path)?;
        Ok(Stamp(about.dev(), about.ino(), about.mtime(), about.mtime_nsec(), about.len()))
    }
}

#[derive(Default)]
struct Login {
    /// The PIN in this file was refused, with this code.
    refused: Option<(Stamp, CK_RV)>,
}

pub struct LibraryToken {
    module: Arc<Module>,
    name: TokenName,
    pin_file: PathBuf,
    /// One login at a time: as many wrong ones as there are sessions would lock the token.
    login: Mutex<Login>,
    /// How long others that are in the library are waited for, where it is to be initialised anew.
    patience: Duration,
    /// How long another process that makes a key is waited for: the rest of the time is for the key itself.
    pub turn: Duration,
}

/// Text that PKCS#11 fills up with blanks.
fn padded(text: &[u8]) -> &[u8] {
    text.trim_ascii_end()
}

impl LibraryToken {
    fn slot(&self, functions: Functions) -> Result<CK_SLOT_ID> {
        let mut slots = [0; 256];
        let mut count = slots.len() as CK_ULONG;
        call!(functions, C_GetSlotList(CK_TRUE, slots.as_mut_ptr(), &mut count))?;
        for &slot in &slots[..slots.len().min(count as usize)] {
            let mut info = CK_TOKEN_INFO::default();
            // A slot whose token went in between is none that we look for.
            if call!(functions, C_GetTokenInfo(slot, &mut info)).is_err() {
                continue;
            }
            let found = match &self.name {
                TokenName::Label(label) => padded(&info.label) == label.as_bytes(),
                TokenName::Serial(serial) => padded(&info.serialNumber) == serial.as_bytes(),
            };
            if found && info.flags & CKF_TOKEN_INITIALIZED != 0 {
                return Ok(slot);
            }
        }
        Err(Failure::new(CKR_TOKEN_NOT_PRESENT, format!("the module shows no token with {}", self.name)))
    }

    fn stamp(&self) -> Result<Stamp> {
        Stamp::of(&self.pin_file).map_err(|e| self.no_pin(&e.to_string()))
    }

    fn no_pin(&self, why: &str) -> Failure {
        Failure::new(CKR_GENERAL_ERROR, format!("pin-file {}: {why}", self.pin_file.display()))
    }

    fn pin(&self) -> Result<Zeroizing<Vec<u8>>> {
        read_pin(&self.pin_file).map_err(|e| self.no_pin(&e.to_string()))
    }

    /// Logs in, unless this very PIN was refused before.
    fn log_in(&self, session: &LibrarySession) -> Result<()> {
        let mut login = lock(&self.login);
        let mut info = CK_SESSION_INFO::default();
        call!(session.functions, C_GetSessionInfo(session.handle, &mut info))?;
        if logged_in(&info) {
            return Ok(());
        }
        let stamp = self.stamp()?;
        if let Some((_, code)) = login.refused.filter(|r| r.0 == stamp) {
            let path = self.pin_file.display();
            return Err(Failure::new(
                code,
                format!("the PIN in {path} was refused; correct the file to have it tried"),
            ));
        }
        let mut pin = self.pin()?;
        match call!(session.functions, C_Login(session.handle, CKU_USER, pin.as_mut_ptr(), pin.len() as CK_ULONG)) {
            Err(e) if e.code == CKR_USER_ALREADY_LOGGED_IN => Ok(()),
            Err(e) if e.verdict() == crate::verdict::Verdict::Pin => {
                login.refused = Some((stamp, e.code));
                Err(Failure::new(e.code, format!("C_Login with the PIN in {}", self.pin_file.display())))
            }
            result => result,
        }
    }
}

fn logged_in(info: &CK_SESSION_INFO) -> bool {
    matches!(info.state, CKS_RO_USER_FUNCTIONS | CKS_RW_USER_FUNCTIONS)
}

impl Token for LibraryToken {
    fn open(&self) -> Result<Box<dyn Session>> {
        let (user, functions) = self.module.enter(self.patience)?;
        let slot = self.slot(functions)?;
        let mut handle = 0;
        call!(functions, C_OpenSession(slot, CKF_SERIAL_SESSION, null_mut(), None, &mut handle))?;
        let mut session = LibrarySession { functions, handle, user, turn: self.turn };
        self.log_in(&session)?;
        session.user.opened();
        Ok(Box::new(session))
    }

    fn failed(&self) {
        self.module.stale.store(true, Ordering::SeqCst);
    }
}

struct LibrarySession {
    functions: Functions,
    handle: CK_SESSION_HANDLE,
    user: User,
    /// The token's.
    turn: Duration,
}

impl Drop for LibrarySession {
    fn drop(&mut self) {
        let _ = call!(self.functions, C_CloseSession(self.handle));
    }
}

/// While this lives no other process makes a key by way of a library, if it asks here, too: tokens take two keys of one label,
/// and between the look whether a label is free and the key under it another process may have looked.
struct Alone(File);

impl Alone {
    /// Waits until nobody else is, for some time. The library's file is what all have in common who use it. Where it cannot be
    /// locked, as on some network file systems, there is None, and keys are made all the same.
    fn with(library: &Path, time: Duration) -> Result<Option<Alone>> {
        let (Ok(file), start) = (File::open(library), Instant::now()) else { return Ok(None) };
        // SAFETY: the descriptor is open.
        while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            if io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
                return Ok(None);
            }
            if start.elapsed() > time {
                let what = format!("another process makes a key with {}", library.display());
                return Err(Failure::new(CKR_SESSION_COUNT, what));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(Alone(file)))
    }
}

impl Drop for Alone {
    /// A child process that was forked meanwhile has the descriptor as well: closing it is not enough.
    fn drop(&mut self) {
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// A session that may change the token's objects. It is logged in because the other sessions are.
struct Writing {
    functions: Functions,
    handle: CK_SESSION_HANDLE,
}

impl Drop for Writing {
    fn drop(&mut self) {
        let _ = call!(self.functions, C_CloseSession(self.handle));
    }
}

impl LibrarySession {
    /// The objects of a class with a label, and an ID unless that is empty.
    fn objects(&self, class: CK_OBJECT_CLASS, key: &KeyName) -> Result<Vec<CK_OBJECT_HANDLE>> {
        let mut template = vec![attribute(CKA_CLASS, &class), attribute(CKA_LABEL, key.label.as_bytes())];
        if !key.id.is_empty() {
            template.push(attribute(CKA_ID, &key.id[..]));
        }
        self.search(&mut template)
    }

    /// The objects that have all of a template. Of more than a few there is no need to know.
    fn search(&self, template: &mut [CK_ATTRIBUTE]) -> Result<Vec<CK_OBJECT_HANDLE>> {
        call!(self.functions, C_FindObjectsInit(self.handle, template.as_mut_ptr(), template.len() as CK_ULONG))?;
        let (mut found, mut count) = ([0; 8], 0);
        let search = call!(self.functions, C_FindObjects(self.handle, found.as_mut_ptr(), 8, &mut count));
        call!(self.functions, C_FindObjectsFinal(self.handle))?;
        search.map(|()| found[..found.len().min(count as usize)].to_vec())
    }

    /// The private key with a name: one that stands for two is of no use. A session whose login is gone sees none, without an
    /// error.
    fn private(&self, key: &KeyName) -> Result<Option<CK_OBJECT_HANDLE>> {
        match self.objects(CKO_PRIVATE_KEY, key)?[..] {
            [] => self.alive().map(|()| None),
            [handle] => Ok(Some(handle)),
            _ => Err(Failure::ambiguous(key)),
        }
    }

    /// Fails if the session, its login or its device is gone.
    fn alive(&self) -> Result<()> {
        let mut info = CK_SESSION_INFO::default();
        call!(self.functions, C_GetSessionInfo(self.handle, &mut info))?;
        if !logged_in(&info) {
            return Err(Failure::new(CKR_USER_NOT_LOGGED_IN, "C_GetSessionInfo"));
        }
        // A session's state may be the library's memory; the token's is more often the device's word.
        let mut token = CK_TOKEN_INFO::default();
        call!(self.functions, C_GetTokenInfo(info.slotID, &mut token))
    }

    /// An attribute of an object; None where it has none.
    fn value(&self, object: CK_OBJECT_HANDLE, type_: CK_ATTRIBUTE_TYPE) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; 4096];
        let mut wanted = CK_ATTRIBUTE { type_, pValue: value.as_mut_ptr().cast(), ulValueLen: value.len() as CK_ULONG };
        match call!(self.functions, C_GetAttributeValue(self.handle, object, &mut wanted, 1)) {
            Ok(()) if wanted.ulValueLen as usize <= value.len() => {
                value.truncate(wanted.ulValueLen as usize);
                Ok(Some(value).filter(|v| !v.is_empty()))
            }
            Ok(()) => Ok(None),
            Err(e) if matches!(e.code, CKR_ATTRIBUTE_TYPE_INVALID | CKR_ATTRIBUTE_SENSITIVE) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn number(&self, object: CK_OBJECT_HANDLE, type_: CK_ATTRIBUTE_TYPE) -> Result<Option<CK_ULONG>> {
        let value = self.value(object, type_)?;
        Ok(value.and_then(|v| v.try_into().ok()).map(CK_ULONG::from_ne_bytes))
    }

    /// The SubjectPublicKeyInfo of a private key: what the token says itself, or what its public object tells.
    fn public_info(&self, private: CK_OBJECT_HANDLE, key: &KeyName) -> Result<Vec<u8>> {
        let mut public = key.clone();
        if public.id.is_empty() {
            public.id = self.value(private, CKA_ID)?.unwrap_or_default();
        }
        let mut objects = self.objects(CKO_PUBLIC_KEY, &public)?;
        // A private object has a modulus, too, and some have a point.
        objects.push(private);
        for object in objects {
            let value = |type_| self.value(object, type_);
            let told = match self.number(object, CKA_KEY_TYPE)? {
                Some(CKK_RSA) => value(CKA_MODULUS)?.zip(value(CKA_PUBLIC_EXPONENT)?).map(|(n, e)| spki::rsa(&n, &e)),
                Some(CKK_EC) => value(CKA_EC_PARAMS)?.zip(value(CKA_EC_POINT)?).map(|(c, p)| spki::ec(&c, &p)),
                Some(CKK_ML_DSA) => self
                    .number(object, CKA_PARAMETER_SET)?
                    .zip(if object == private { None } else { value(CKA_VALUE)? })
                    .and_then(|(set, v)| spki::ml_dsa(set, &v)),
                _ => None,
            };
            let all = [told, value(CKA_PUBLIC_KEY_INFO)?];
            if let Some(der) = all.into_iter().flatten().find(|der| spki::PublicKey::from_der(der).is_ok()) {
                return Ok(der);
            }
        }
        let what = format!("there is no public key for {key}, or one of a type that is not served; import it, too");
        Err(Failure::new(CKR_KEY_TYPE_INCONSISTENT, what))
    }

    fn found(&self, private: CK_OBJECT_HANDLE, key: &KeyName) -> Result<Found> {
        let is = |type_| Ok::<_, Failure>(self.value(private, type_)?.is_some_and(|v| v == [CK_TRUE]));
        Ok(Found {
            public: self.public_info(private, key)?,
            sensitive: is(CKA_SENSITIVE)?,
            // Of what is not said the worst is assumed.
            extractable: self.value(private, CKA_EXTRACTABLE)? != Some(vec![CK_FALSE]),
            local: is(CKA_LOCAL)?,
        })
    }

    fn writing(&self) -> Result<Writing> {
        let mut info = CK_SESSION_INFO::default();
        call!(self.functions, C_GetSessionInfo(self.handle, &mut info))?;
        let mut handle = 0;
        let flags = CKF_SERIAL_SESSION | CKF_RW_SESSION;
        call!(self.functions, C_OpenSession(info.slotID, flags, null_mut(), None, &mut handle))?;
        Ok(Writing { functions: self.functions, handle })
    }

    fn generate_pair(&self, algorithm: Algorithm, key: &KeyName) -> Result<CK_OBJECT_HANDLE> {
        let (yes, no) = (CK_TRUE, CK_FALSE);
        let (bits, set);
        let mut public = vec![attribute(CKA_TOKEN, &yes), attribute(CKA_PRIVATE, &no), attribute(CKA_VERIFY, &yes)];
        let mechanism = match algorithm {
            Algorithm::Rsa { bits: n } => {
                bits = n;
                public.push(attribute(CKA_MODULUS_BITS, &bits));
                public.push(attribute(CKA_PUBLIC_EXPONENT, &[1u8, 0, 1]));
                CKM_RSA_PKCS_KEY_PAIR_GEN
            }
            Algorithm::Ec { curve } => {
                public.push(attribute(CKA_EC_PARAMS, curve));
                CKM_EC_KEY_PAIR_GEN
            }
            Algorithm::MlDsa { set: n } => {
                set = n;
                public.push(attribute(CKA_PARAMETER_SET, &set));
                CKM_ML_DSA_KEY_PAIR_GEN
            }
        };
        let mut private = vec![
            attribute(CKA_TOKEN, &yes),
            attribute(CKA_PRIVATE, &yes),
            attribute(CKA_SENSITIVE, &yes),
            attribute(CKA_EXTRACTABLE, &no),
            attribute(CKA_SIGN, &yes),
        ];
        if let Algorithm::Rsa { .. } = algorithm {
            private.extend([attribute(CKA_DECRYPT, &no), attribute(CKA_UNWRAP, &no)]);
        }
        if let Algorithm::Ec { .. } = algorithm {
            private.push(attribute(CKA_DERIVE, &no));
        }
        for template in [&mut public, &mut private] {
            template.push(attribute(CKA_LABEL, key.label.as_bytes()));
            if !key.id.is_empty() {
                template.push(attribute(CKA_ID, &key.id[..]));
            }
        }
        let mut mechanism = CK_MECHANISM { mechanism, pParameter: null_mut(), ulParameterLen: 0 };
        let session = self.writing()?;
        let (mut verifies, mut signs) = (0, 0);
        call!(
            self.functions,
            C_GenerateKeyPair(
                session.handle,
                &mut mechanism,
                public.as_mut_ptr(),
                public.len() as CK_ULONG,
                private.as_mut_ptr(),
                private.len() as CK_ULONG,
                &mut verifies,
                &mut signs
            )
        )?;
        Ok(signs)
    }
}

fn attribute<T: ?Sized>(type_: CK_ATTRIBUTE_TYPE, value: &T) -> CK_ATTRIBUTE {
    let len = size_of_val(value) as CK_ULONG;
    CK_ATTRIBUTE { type_, pValue: (&raw const *value).cast_mut().cast(), ulValueLen: len }
}

/// What a token is given. Of a digest that is longer than the curve's order ECDSA takes the first bytes (FIPS 186-5, 6.4.1), and
/// some tokens leave that to who asks.
fn input(request: &Request) -> &[u8] {
    match (&request.mechanism, &request.key.public.kind) {
        (Mechanism::Ecdsa, Kind::Ec { half, .. }) => &request.data[..request.data.len().min(*half)],
        _ => &request.data,
    }
}

impl Session for LibrarySession {
    fn find(&mut self, key: &Key) -> Result<Option<CK_OBJECT_HANDLE>> {
        self.private(&key.name())
    }

    fn sign(&mut self, key: CK_OBJECT_HANDLE, request: &Request, len: usize) -> Result<Vec<u8>> {
        // The parameters live here until the call that reads them is over.
        let mut pss;
        let mut context = CK_SIGN_ADDITIONAL_CONTEXT::default();
        let mut mechanism = CK_MECHANISM::default();
        match &request.mechanism {
            Mechanism::RsaPkcs => mechanism.mechanism = CKM_RSA_PKCS,
            Mechanism::RsaRaw => mechanism.mechanism = CKM_RSA_X_509,
            Mechanism::Ecdsa => mechanism.mechanism = CKM_ECDSA,
            Mechanism::RsaPss { hash, mgf, salt } => {
                pss = CK_RSA_PKCS_PSS_PARAMS { hashAlg: *hash, mgf: *mgf, sLen: *salt };
                mechanism.mechanism = CKM_RSA_PKCS_PSS;
                mechanism.pParameter = (&raw mut pss).cast();
                mechanism.ulParameterLen = size_of_val(&pss) as CK_ULONG;
            }
            Mechanism::MlDsa(parameter) => {
                mechanism.mechanism = CKM_ML_DSA;
                if let Some((hedge, bytes)) = parameter {
                    context.hedgeVariant = *hedge;
                    if !bytes.is_empty() {
                        context.pContext = bytes.as_ptr().cast_mut();
                        context.ulContextLen = bytes.len() as CK_ULONG;
                    }
                    mechanism.pParameter = (&raw mut context).cast();
                    mechanism.ulParameterLen = size_of_val(&context) as CK_ULONG;
                }
            }
        }
        call!(self.functions, C_SignInit(self.handle, &mut mechanism, key))?;
        let data = input(request);
        let (data, data_len) = (data.as_ptr().cast_mut(), data.len() as CK_ULONG);
        // Room for any signature: with too little of it the operation would not end.
        let mut signature = vec![0; LONGEST_SIGNATURE];
        let mut written = LONGEST_SIGNATURE as CK_ULONG;
        match call!(self.functions, C_Sign(self.handle, data, data_len, signature.as_mut_ptr(), &mut written)) {
            Ok(()) if written as usize == len => {
                signature.truncate(len);
                Ok(signature)
            }
            Err(e) if e.code != CKR_BUFFER_TOO_SMALL => Err(e),
            _ => {
                let made = format!("C_Sign makes {written} bytes where the public key has {len}");
                Err(Failure::new(CKR_KEY_SIZE_RANGE, format!("{made}: another key is under its label")))
            }
        }
    }

    fn check(&mut self) -> Result<()> {
        self.alive()
    }

    fn has_keys(&mut self) -> Result<bool> {
        let class = CKO_PRIVATE_KEY;
        Ok(!self.search(&mut [attribute(CKA_CLASS, &class)])?.is_empty())
    }

    fn public(&mut self, key: &KeyName) -> Result<Option<Found>> {
        match self.private(key)? {
            Some(private) => self.found(private, key).map(Some),
            None => Ok(None),
        }
    }

    fn generate(&mut self, algorithm: Algorithm, key: &KeyName) -> Result<Found> {
        let alone = Alone::with(&self.user.module.path, self.turn)?;
        let label = KeyName { label: key.label.clone(), id: vec![] };
        for class in [CKO_PRIVATE_KEY, CKO_PUBLIC_KEY] {
            if !self.objects(class, &label)?.is_empty() {
                let what = format!("an object is labelled {label} already; choose another label, or retire it");
                return Err(Failure::new(CKR_ATTRIBUTE_VALUE_INVALID, what));
            }
        }
        let private = self.generate_pair(algorithm, key)?;
        drop(alone);
        let found = self.found(private, key)?;
        if !found.sensitive || found.extractable || !found.local {
            // Whatever kept it from being destroyed, the token did not say no before it made it.
            let what = match self.retire(key) {
                Ok(()) => format!("the token made {key} so that it can leave; that key is destroyed"),
                Err(e) => format!("the token made {key} so that it can leave; destroy that key, which failed: {e}"),
            };
            return Err(Failure::new(CKR_FUNCTION_FAILED, what));
        }
        Ok(found)
    }

    fn retire(&mut self, key: &KeyName) -> Result<()> {
        let Some(private) = self.private(key)? else {
            return Err(Failure::new(CKR_KEY_HANDLE_INVALID, format!("there is no private key {key}")));
        };
        let mut public = key.clone();
        if public.id.is_empty() {
            public.id = self.value(private, CKA_ID)?.unwrap_or_default();
        }
        let public = self.objects(CKO_PUBLIC_KEY, &public)?;
        let session = self.writing()?;
        // The private one last: until it is gone, the key is found and can be retired again.
        for object in public.into_iter().chain([private]) {
            call!(self.functions, C_DestroyObject(session.handle, object))?;
        }
        Ok(())
    }
}

/// Makes a token with a label in a module that has an empty slot, and gives it a PIN: soft tokens, for development. What is
/// done already is left as it is. Says whether there was something to do.
pub fn initialise_token(module: &Path, label: &str, so_pin: &[u8], pin: &[u8]) -> Result<bool> {
    let functions = Module::load(module)?;
    Module::initialise(functions)?;
    let done = initialise_slot(functions, label, so_pin, pin);
    let _ = call!(functions, C_Finalize(null_mut()));
    done
}

fn initialise_slot(functions: Functions, label: &str, so_pin: &[u8], pin: &[u8]) -> Result<bool> {
    let tokens = || -> Result<Vec<(CK_SLOT_ID, CK_TOKEN_INFO)>> {
        let (mut slots, mut count) = ([0; 256], 256);
        call!(functions, C_GetSlotList(CK_TRUE, slots.as_mut_ptr(), &mut count))?;
        let mut tokens = vec![];
        for &slot in &slots[..slots.len().min(count as usize)] {
            let mut info = CK_TOKEN_INFO::default();
            if call!(functions, C_GetTokenInfo(slot, &mut info)).is_ok() {
                tokens.push((slot, info));
            }
        }
        Ok(tokens)
    };
    let named =
        |info: &CK_TOKEN_INFO| info.flags & CKF_TOKEN_INITIALIZED != 0 && padded(&info.label) == label.as_bytes();
    let mut found = tokens()?.into_iter().find(|(_, info)| named(info));
    if found.is_none() {
        let empty = tokens()?.into_iter().find(|(_, info)| info.flags & CKF_TOKEN_INITIALIZED == 0);
        let Some((slot, _)) = empty else {
            return Err(Failure::new(CKR_TOKEN_NOT_PRESENT, format!("no slot is free for a token {label:?}")));
        };
        let mut name = [b' '; 32];
        name[..label.len()].copy_from_slice(label.as_bytes());
        let (so_pin, len) = (so_pin.as_ptr().cast_mut(), so_pin.len() as CK_ULONG);
        call!(functions, C_InitToken(slot, so_pin, len, name.as_mut_ptr()))?;
        // Its slot may have another number now.
        found = tokens()?.into_iter().find(|(_, info)| named(info));
    }
    let Some((slot, info)) = found else {
        return Err(Failure::new(CKR_TOKEN_NOT_PRESENT, format!("the new token {label:?} is not there")));
    };
    if info.flags & CKF_USER_PIN_INITIALIZED != 0 {
        return Ok(false);
    }
    let mut handle = 0;
    let flags = CKF_SERIAL_SESSION | CKF_RW_SESSION;
    call!(functions, C_OpenSession(slot, flags, null_mut(), None, &mut handle))?;
    let session = Writing { functions, handle };
    call!(functions, C_Login(session.handle, CKU_SO, so_pin.as_ptr().cast_mut(), so_pin.len() as CK_ULONG))?;
    call!(functions, C_InitPIN(session.handle, pin.as_ptr().cast_mut(), pin.len() as CK_ULONG))?;
    let _ = call!(functions, C_Logout(session.handle));
    Ok(true)
}

/// A PIN from its file.
pub fn read_pin(path: &Path) -> std::io::Result<Zeroizing<Vec<u8>>> {
    let mut pin = Zeroizing::new(fs::read(path)?);
    // Editors end a file with a newline; no PIN has one.
    while let Some(b'\n' | b'\r') = pin.last() {
        pin.pop();
    }
    match pin.is_empty() {
        true => Err(std::io::Error::other("it is empty")),
        false => Ok(pin),
    }
}
