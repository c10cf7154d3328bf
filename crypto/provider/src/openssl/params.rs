//! OSSL_PARAM arrays: reading what OpenSSL passes, and answering what it asks for (OSSL_PARAM(3)).

use super::abi::{c_char, c_int, c_uint, c_void, Param};
use std::{ffi::CStr, marker::PhantomData, ptr};

const INTEGER: c_uint = 1;
const UNSIGNED_INTEGER: c_uint = 2;
const UTF8_STRING: c_uint = 4;
const OCTET_STRING: c_uint = 5;
const UTF8_PTR: c_uint = 6;
/// OSSL_PARAM_UNMODIFIED.
const UNMODIFIED: usize = usize::MAX;

/// Parameters that OpenSSL passes: to read (set, import), or to answer (get).
#[derive(Clone, Copy)]
pub struct Params<'a>(*mut Param, PhantomData<&'a Param>);

/// A parameter has another type, or does not fit.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch;

impl<'a> Params<'a> {
    /// # Safety
    /// Null, or an array of parameters that ends with one without key and outlives 'a.
    pub unsafe fn new(params: *const Param) -> Self {
        Params(params.cast_mut(), PhantomData)
    }

    fn find(self, key: &CStr) -> Option<&'a mut Param> {
        let mut p = self.0;
        // SAFETY: `new` vouches for the array.
        unsafe {
            while !p.is_null() && !(*p).key.is_null() {
                if CStr::from_ptr((*p).key) == key {
                    return Some(&mut *p);
                }
                p = p.add(1);
            }
        }
        None
    }

    pub fn asks_for(self, key: &CStr) -> bool {
        self.find(key).is_some()
    }

    // What is there and cannot be read is an error: it was asked for, and nobody would know that it was not done.

    pub fn octets(self, key: &CStr) -> Result<Option<&'a [u8]>, Mismatch> {
        let Some(p) = self.find(key) else { return Ok(None) };
        if p.data_type != OCTET_STRING || p.data.is_null() {
            return Err(Mismatch);
        }
        // SAFETY: OpenSSL says how long its data is.
        Ok(Some(unsafe { std::slice::from_raw_parts(p.data.cast(), p.data_size) }))
    }

    /// An integer of up to eight bytes: the length is the caller's choice (openssl-pkeyutl(1) has one byte for 1).
    pub fn integer(self, key: &CStr) -> Result<Option<i64>, Mismatch> {
        let Some(p) = self.find(key) else { return Ok(None) };
        if ![INTEGER, UNSIGNED_INTEGER].contains(&p.data_type) || p.data.is_null() || !(1..=8).contains(&p.data_size) {
            return Err(Mismatch);
        }
        // SAFETY: OpenSSL says how long its data is.
        let bytes = unsafe { std::slice::from_raw_parts(p.data.cast::<u8>(), p.data_size) };
        let high = bytes[bytes.len() - 1] & 0x80 != 0; // in the order of little-endian machines
        let negative = high && p.data_type == INTEGER;
        let mut extended = [if negative { 0xff } else { 0 }; 8];
        extended[..bytes.len()].copy_from_slice(bytes);
        let value = i64::from_le_bytes(extended);
        if (value < 0) == negative {
            Ok(Some(value))
        } else {
            Err(Mismatch)
        }
    }

    /// Without data there is none: OSSL_ENCODER_CTX_set_cipher(3) takes a cipher away in this way.
    pub fn string(self, key: &CStr) -> Result<Option<&'a CStr>, Mismatch> {
        let Some(p) = self.find(key) else { return Ok(None) };
        let text = match p.data_type {
            UTF8_STRING => p.data.cast_const().cast::<c_char>(),
            UTF8_PTR if p.data.is_null() => ptr::null(),
            // SAFETY: it points to a pointer.
            UTF8_PTR => unsafe { p.data.cast::<*const c_char>().read_unaligned() },
            _ => return Err(Mismatch),
        };
        // SAFETY: OpenSSL ends its strings with a zero.
        Ok((!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }))
    }

    /// Answers an integer, if it is asked for.
    pub fn set_integer(self, key: &CStr, value: usize) -> Result<(), Mismatch> {
        let Some(p) = self.find(key) else { return Ok(()) };
        if p.data.is_null() {
            p.return_size = size_of::<usize>();
            return Ok(());
        }
        // SAFETY: data_size bytes are there to write.
        unsafe {
            match p.data_size {
                4 => p.data.cast::<u32>().write_unaligned(value.try_into().map_err(|_| Mismatch)?),
                8 => p.data.cast::<u64>().write_unaligned(value as u64),
                _ => return Err(Mismatch),
            }
        }
        p.return_size = p.data_size;
        Ok(())
    }

    pub fn set_octets(self, key: &CStr, value: &[u8]) -> Result<(), Mismatch> {
        let Some(p) = self.find(key) else { return Ok(()) };
        p.return_size = value.len();
        if p.data.is_null() {
            return Ok(());
        }
        if p.data_type != OCTET_STRING || p.data_size < value.len() {
            return Err(Mismatch);
        }
        // SAFETY: data_size bytes are there to write.
        unsafe { ptr::copy_nonoverlapping(value.as_ptr(), p.data.cast(), value.len()) };
        Ok(())
    }

    pub fn set_string(self, key: &CStr, value: &CStr) -> Result<(), Mismatch> {
        let Some(p) = self.find(key) else { return Ok(()) };
        p.return_size = value.count_bytes();
        if p.data.is_null() {
            return Ok(());
        }
        if p.data_type == UTF8_PTR {
            // SAFETY: it points to a pointer; who asks this way keeps it for as long as the provider.
            unsafe { p.data.cast::<*const c_char>().write_unaligned(value.as_ptr()) };
            return Ok(());
        }
        let bytes = value.to_bytes_with_nul();
        if p.data_type != UTF8_STRING || p.data_size < value.count_bytes() {
            return Err(Mismatch);
        }
        // SAFETY: data_size bytes are there to write; the final zero goes where it fits (OSSL_PARAM(3)).
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), p.data.cast(), bytes.len().min(p.data_size)) };
        Ok(())
    }
}

/// A parameter that is handed to OpenSSL, or the mark of one that it may ask for.
impl Param {
    pub const END: Param =
        Param { key: ptr::null(), data_type: 0, data: ptr::null_mut(), data_size: 0, return_size: 0 };

    const fn of(key: &CStr, data_type: c_uint, data: *const c_void, data_size: usize) -> Param {
        Param { key: key.as_ptr(), data_type, data: data.cast_mut(), data_size, return_size: UNMODIFIED }
    }

    pub const fn integer_named(key: &'static CStr) -> Param {
        Param::of(key, INTEGER, ptr::null(), 0)
    }

    pub const fn octets_named(key: &'static CStr) -> Param {
        Param::of(key, OCTET_STRING, ptr::null(), 0)
    }

    pub const fn string_named(key: &'static CStr) -> Param {
        Param::of(key, UTF8_STRING, ptr::null(), 0)
    }

    pub const fn string_pointer_named(key: &'static CStr) -> Param {
        Param::of(key, UTF8_PTR, ptr::null(), 0)
    }

    // The following borrow their value: the array must not outlive it.

    pub fn integer(key: &CStr, value: &c_int) -> Param {
        Param::of(key, INTEGER, (value as *const c_int).cast(), size_of::<c_int>())
    }

    pub fn unsigned(key: &CStr, value: &c_uint) -> Param {
        Param::of(key, UNSIGNED_INTEGER, (value as *const c_uint).cast(), size_of::<c_uint>())
    }

    /// A non-negative integer of any length, in the machine's byte order.
    pub fn big_integer(key: &CStr, value: &[u8]) -> Param {
        Param::of(key, UNSIGNED_INTEGER, value.as_ptr().cast(), value.len())
    }

    pub fn octets(key: &CStr, value: &[u8]) -> Param {
        Param::of(key, OCTET_STRING, value.as_ptr().cast(), value.len())
    }

    pub fn string(key: &CStr, value: &CStr) -> Param {
        Param::of(key, UTF8_STRING, value.as_ptr().cast(), value.count_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null;

    /// What is read of one parameter.
    fn of<T>(param: Param, read: impl FnOnce(Params<'static>) -> T) -> T {
        // SAFETY: it ends with Param::END, and lives for the call; what is borrowed is the callers'.
        read(unsafe { Params::new([param, Param::END].as_ptr()) })
    }

    #[test]
    fn what_is_of_another_type_is_told_apart_from_what_is_not_there() {
        let octets = || Param::octets(c"k", b"value");
        let string = || Param::string(c"k", c"value");
        let integer = || Param::integer(c"k", &1);
        assert_eq!(of(octets(), |p| p.octets(c"other")), Ok(None));
        assert_eq!(of(octets(), |p| p.octets(c"k")), Ok(Some(&b"value"[..])));
        assert_eq!(of(string(), |p| p.octets(c"k")), Err(Mismatch));
        assert_eq!(of(Param::octets_named(c"k"), |p| p.octets(c"k")), Err(Mismatch), "no data");

        assert_eq!(of(string(), |p| p.string(c"other")), Ok(None));
        assert_eq!(of(string(), |p| p.string(c"k")), Ok(Some(c"value")));
        assert_eq!(of(octets(), |p| p.string(c"k")), Err(Mismatch));
        for named in [Param::string_named(c"k"), Param::string_pointer_named(c"k")] {
            assert_eq!(of(named, |p| p.string(c"k")), Ok(None), "no data");
        }
        for (text, want) in [(c"value".as_ptr(), Some(c"value")), (null(), None)] {
            let pointer = Param::of(c"k", UTF8_PTR, (&raw const text).cast(), size_of_val(&text));
            assert_eq!(of(pointer, |p| p.string(c"k")), Ok(want));
        }

        assert_eq!(of(integer(), |p| p.integer(c"other")), Ok(None));
        assert_eq!(of(octets(), |p| p.integer(c"k")), Err(Mismatch));
        let numbers: [(c_uint, &[u8], _); 8] = [
            (INTEGER, &[1], Ok(Some(1))),
            (INTEGER, &[0xff], Ok(Some(-1))),
            (INTEGER, &[0xfe, 0xff, 0xff, 0xff], Ok(Some(-2))),
            (UNSIGNED_INTEGER, &[0xff], Ok(Some(255))),
            (UNSIGNED_INTEGER, &[1, 0, 0, 0], Ok(Some(1))),
            (UNSIGNED_INTEGER, &[0xff; 8], Err(Mismatch)),
            (INTEGER, &[], Err(Mismatch)),
            (INTEGER, &[1, 0, 0, 0, 0, 0, 0, 0, 0], Err(Mismatch)),
        ];
        for (kind, bytes, want) in numbers {
            let number = Param::of(c"k", kind, bytes.as_ptr().cast(), bytes.len());
            assert_eq!(of(number, |p| p.integer(c"k")), want, "{bytes:?}");
        }
    }

    /// OSSL_PARAM(3): who has no room for an answer asks for its size.
    #[test]
    fn an_answer_without_room_is_its_size() {
        for named in [Param::string_named(c"k"), Param::string_pointer_named(c"k")] {
            let mut asked = [named, Param::END];
            // SAFETY: it ends with Param::END.
            assert_eq!(unsafe { Params::new(asked.as_mut_ptr()) }.set_string(c"k", c"value"), Ok(()));
            assert_eq!(asked[0].return_size, 5);
        }
    }
}
