//! The functions that OpenSSL's core offers to a provider.

use super::abi::{c_char, c_int, c_void, from_core, Dispatch, Function, Item, Opaque, Param};
use crate::error::Error;
use std::{
    ffi::{CStr, CString},
    mem::transmute,
    ptr::null,
};
use zeroize::Zeroizing;

type GetParams = unsafe extern "C" fn(*const c_void, *mut Param) -> c_int;
type NewError = unsafe extern "C" fn(*const c_void);
type SetErrorDebug = unsafe extern "C" fn(*const c_void, *const c_char, c_int, *const c_char);
type VsetError = unsafe extern "C" fn(*const c_void, u32, *const c_char, Opaque);
type ObjectCreate = unsafe extern "C" fn(*const c_void, *const c_char, *const c_char, *const c_char) -> c_int;
type ObjectAddSigid = unsafe extern "C" fn(*const c_void, *const c_char, *const c_char, *const c_char) -> c_int;
type BioReadEx = unsafe extern "C" fn(Opaque, Opaque, usize, *mut usize) -> c_int;
type BioWriteEx = unsafe extern "C" fn(Opaque, *const c_void, usize, *mut usize) -> c_int;

/// A function of the core before its type is known.
type Untyped = Option<Function>;

/// How much of a key file is read at most, in bytes: the largest key here has 2.9 MB.
const MAX_INPUT: usize = 8 << 20;

/// The core as one provider instance sees it.
pub struct Core {
    pub handle: *const c_void,
    get_params: Option<GetParams>,
    new_error: Option<NewError>,
    set_error_debug: Option<SetErrorDebug>,
    vset_error: Option<VsetError>,
    object_create: Option<ObjectCreate>,
    object_add_sigid: Option<ObjectAddSigid>,
    bio_read: Option<BioReadEx>,
    bio_write: Option<BioWriteEx>,
}

impl Core {
    /// # Safety
    /// `handle` and `functions` are what OpenSSL passed to OSSL_provider_init.
    pub unsafe fn new(handle: *const c_void, functions: *const Dispatch) -> Core {
        let mut core = Core {
            handle,
            get_params: None,
            new_error: None,
            set_error_debug: None,
            vset_error: None,
            object_create: None,
            object_add_sigid: None,
            bio_read: None,
            bio_write: None,
        };
        let mut f = functions;
        while (*f).id != 0 {
            let function = (*f).function;
            // SAFETY: the number stands for the type.
            match (*f).id {
                from_core::GET_PARAMS => core.get_params = transmute::<Untyped, Option<GetParams>>(function),
                from_core::NEW_ERROR => core.new_error = transmute::<Untyped, Option<NewError>>(function),
                from_core::SET_ERROR_DEBUG => {
                    core.set_error_debug = transmute::<Untyped, Option<SetErrorDebug>>(function)
                }
                from_core::VSET_ERROR => core.vset_error = transmute::<Untyped, Option<VsetError>>(function),
                from_core::OBJ_CREATE => core.object_create = transmute::<Untyped, Option<ObjectCreate>>(function),
                from_core::OBJ_ADD_SIGID => {
                    core.object_add_sigid = transmute::<Untyped, Option<ObjectAddSigid>>(function)
                }
                from_core::BIO_READ_EX => core.bio_read = transmute::<Untyped, Option<BioReadEx>>(function),
                from_core::BIO_WRITE_EX => core.bio_write = transmute::<Untyped, Option<BioWriteEx>>(function),
                _ => {}
            }
            f = f.add(1);
        }
        core
    }

    /// The version of the OpenSSL that the core is of, if it tells.
    pub fn version(&self) -> Option<String> {
        let mut version: *const c_char = null();
        let mut params =
            [Param { data: (&raw mut version).cast(), ..Param::string_pointer_named(c"openssl-version") }, Param::END];
        // SAFETY: it is the core's own function and handle, and the string lives as long as the core.
        unsafe {
            let answered = self.get_params?(self.handle, params.as_mut_ptr()) == 1 && !version.is_null();
            answered.then(|| CStr::from_ptr(version).to_string_lossy().into_owned())
        }
    }

    /// Puts an error on OpenSSL's error queue, so that its programs can print the reason.
    pub fn raise(&self, error: &Error) {
        let (Some(new), Some(debug), Some(vset)) = (self.new_error, self.set_error_debug, self.vset_error) else {
            return;
        };
        let detail = CString::new(error.detail.replace('\0', "?").replace('%', "%%")).unwrap_or_default();
        // The format names no argument, so that this list of arguments, whatever its ABI, is never read.
        let mut no_arguments = [0usize; 8];
        // SAFETY: these are the core's own functions and handle.
        unsafe {
            new(self.handle);
            debug(self.handle, c"oqsprovider".as_ptr(), 0, c"".as_ptr());
            vset(self.handle, error.reason as u32, detail.as_ptr(), no_arguments.as_mut_ptr().cast());
        }
    }

    /// Makes an object identifier known, also as that of a signature: X.509 looks there.
    pub fn register(&self, oid: &CStr, name: &CStr, is_signature: bool) -> Result<(), Error> {
        let (Some(create), Some(add)) = (self.object_create, self.object_add_sigid) else {
            return Err(Error::internal("this OpenSSL does not let a provider register object identifiers"));
        };
        // SAFETY: these are the core's own functions and handle. That an object is known already is no error.
        unsafe {
            if create(self.handle, oid.as_ptr(), name.as_ptr(), name.as_ptr()) != 1 {
                return Err(Error::internal(format!("object identifier {oid:?} of {name:?} cannot be registered")));
            }
            if is_signature && add(self.handle, oid.as_ptr(), c"".as_ptr(), oid.as_ptr()) != 1 {
                return Err(Error::internal(format!("signature identifier {oid:?} of {name:?} cannot be registered")));
            }
        }
        Ok(())
    }

    /// Reads all of a core BIO; it may be a private key.
    ///
    /// # Safety
    /// The BIO is one that the core handed over.
    pub unsafe fn read_all(&self, bio: Opaque) -> Option<Zeroizing<Vec<u8>>> {
        let read = self.bio_read?;
        let mut all = Zeroizing::new(Vec::new());
        let mut chunk = Zeroizing::new([0u8; 16 << 10]);
        loop {
            let mut n = 0;
            // SAFETY: the chunk has the size that is told.
            if read(bio, chunk.as_mut_ptr().cast(), chunk.len(), &mut n) != 1 || n == 0 {
                return Some(all);
            }
            if all.len() + n > MAX_INPUT {
                return None;
            }
            if all.len() + n > all.capacity() {
                // Growing leaves no copy behind.
                let mut larger = Zeroizing::new(Vec::with_capacity(2 * (all.len() + n)));
                larger.extend_from_slice(&all);
                all = larger;
            }
            all.extend_from_slice(&chunk[..n]);
        }
    }

    /// # Safety
    /// The BIO is one that the core handed over.
    pub unsafe fn write_all(&self, bio: Opaque, mut bytes: &[u8]) -> Result<(), Error> {
        let write = self.bio_write.ok_or_else(|| Error::internal("the core offers no BIO_write_ex"))?;
        while !bytes.is_empty() {
            let mut n = 0;
            // SAFETY: the length is the slice's.
            if write(bio, bytes.as_ptr().cast(), bytes.len(), &mut n) != 1 || n == 0 {
                return Err(Error::internal("writing the encoding failed"));
            }
            bytes = &bytes[n.min(bytes.len())..];
        }
        Ok(())
    }
}

/// The texts of the reasons, for ERR_reason_error_string.
pub static REASONS: &[Item] = &crate::error::REASON_ITEMS;
