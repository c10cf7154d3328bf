//! One loaded instance of the provider: each library context of the application has its own.

use crate::{
    algorithm::{Algorithm, ALGORITHMS},
    decoder, der, encoder,
    error::{Error, Result},
    kem, keymgmt,
    openssl::{
        abi::{operation, AlgorithmEntry, Dispatch, Opaque},
        core::Core,
        evp::Library,
    },
    primitives::{random, Failed},
    signature, standard,
};
use std::{
    ffi::{CStr, CString},
    sync::Mutex,
};

const PROPERTIES: &str = "provider=oqsprovider";

/// An algorithm with what this instance calls it.
pub struct Registered {
    pub algorithm: &'static Algorithm,
    pub name: CString,
    /// Names for OpenSSL's registries: the name, aliases, and the OID, with colons between.
    names: CString,
    pub oid: Option<CString>,
    /// The DER of its AlgorithmIdentifier.
    pub identifier: Option<Vec<u8>>,
    pub code_point: u32,
}

/// The provider as one library context has it.
pub struct Provider {
    pub core: Core,
    pub library: Library,
    pub registered: Vec<Registered>,
    keymgmt: Vec<AlgorithmEntry>,
    kem: Vec<AlgorithmEntry>,
    signature: Vec<AlgorithmEntry>,
    encoder: Vec<AlgorithmEntry>,
    decoder: Vec<AlgorithmEntry>,
    /// What the entries point to.
    _properties: Vec<CString>,
}

// SAFETY: nothing changes it once it is made; the core and the library context may be used by several threads.
unsafe impl Send for Provider {}
unsafe impl Sync for Provider {}

impl random::Source for Provider {
    fn fill(&self, out: &mut [u8]) -> std::result::Result<(), Failed> {
        self.library.random(out).map_err(|_| Failed)
    }
}

impl Provider {
    /// `environment` tells of overrides. A failure gives the core back, to report it.
    pub fn new(
        core: Core,
        library: Library,
        environment: impl Fn(&str) -> Option<String>,
    ) -> std::result::Result<Provider, (Core, Error)> {
        let registered: Result<Vec<Registered>> = ALGORITHMS.iter().map(|a| register(&core, a, &environment)).collect();
        let registered = match registered {
            Ok(r) => r,
            Err(e) => return Err((core, e)),
        };
        let mut p = Provider {
            core,
            library,
            registered,
            keymgmt: vec![],
            kem: vec![],
            signature: vec![],
            encoder: vec![],
            decoder: vec![],
            _properties: vec![],
        };
        p.fill_tables();
        Ok(p)
    }

    fn fill_tables(&mut self) {
        let mut properties = Vec::new();
        let mut keep = |text: String| {
            let c = CString::new(text).unwrap_or_default();
            let p = c.as_ptr(); // stays where it is when the CString moves
            properties.push(c);
            p
        };
        let plain = keep(PROPERTIES.into());
        let entry = |r: &Registered, properties, implementation: &'static [Dispatch]| AlgorithmEntry {
            names: r.names.as_ptr(),
            properties,
            implementation: implementation.as_ptr(),
            description: std::ptr::null(),
        };
        let mut coded = |operation: &str, format: &str, structure: &str| {
            let structure = if structure.is_empty() { String::new() } else { format!(",structure={structure}") };
            keep(format!("{PROPERTIES},{operation}={format}{structure}"))
        };
        let encoders: Vec<_> =
            encoder::FORMS.iter().map(|f| (coded("output", f.format, f.structure), f.functions)).collect();
        let private_input = coded("input", "der", "PrivateKeyInfo");
        let public_input = coded("input", "der", "SubjectPublicKeyInfo");
        for (i, r) in self.registered.iter().enumerate() {
            self.keymgmt.push(entry(r, plain, keymgmt::FUNCTIONS[i]));
            match r.algorithm.is_signature() {
                true => self.signature.push(entry(r, plain, &signature::FUNCTIONS)),
                false => self.kem.push(entry(r, plain, &kem::FUNCTIONS)),
            }
            if r.oid.is_none() {
                continue;
            }
            for (properties, functions) in &encoders {
                self.encoder.push(entry(r, *properties, functions));
            }
            self.decoder.push(entry(r, private_input, decoder::PRIVATE_FUNCTIONS[i]));
            self.decoder.push(entry(r, public_input, decoder::PUBLIC_FUNCTIONS[i]));
        }
        for (s, &functions) in standard::ALGORITHMS.iter().zip(&standard::keymgmt::FUNCTIONS) {
            let entry = |implementation: &'static [Dispatch]| AlgorithmEntry {
                names: s.names.as_ptr(),
                properties: plain,
                implementation: implementation.as_ptr(),
                description: std::ptr::null(),
            };
            self.keymgmt.push(entry(functions));
            match s.is_signature() {
                true => self.signature.push(entry(&standard::signature::FUNCTIONS)),
                false => self.kem.push(entry(&standard::kem::FUNCTIONS)),
            }
        }
        for table in [&mut self.keymgmt, &mut self.kem, &mut self.signature, &mut self.encoder, &mut self.decoder] {
            table.push(AlgorithmEntry::END);
        }
        self._properties = properties;
    }

    /// The table of an operation.
    pub fn query(&self, operation: libc::c_int) -> Option<&[AlgorithmEntry]> {
        match operation {
            operation::KEYMGMT => Some(&self.keymgmt),
            operation::KEM => Some(&self.kem),
            operation::SIGNATURE => Some(&self.signature),
            operation::ENCODER => Some(&self.encoder),
            operation::DECODER => Some(&self.decoder),
            _ => None,
        }
    }

    /// The algorithm's place in `registered`.
    pub fn index_of(&self, algorithm: &'static Algorithm) -> usize {
        // SAFETY: every &'static Algorithm is an element of ALGORITHMS.
        unsafe { (algorithm as *const Algorithm).offset_from(ALGORITHMS.as_ptr()) as usize }
    }

    pub fn registered(&self, algorithm: &'static Algorithm) -> &Registered {
        &self.registered[self.index_of(algorithm)]
    }

    /// Puts the reason of a failure on OpenSSL's error queue; None then.
    pub fn reported<T>(&self, result: Result<T>) -> Option<T> {
        result.map_err(|e| self.core.raise(&e)).ok()
    }

    /// # Safety
    /// `context` is what `into_context` returned, and the provider has not been torn down.
    pub unsafe fn from_context<'a>(context: Opaque) -> &'a Provider {
        &*context.cast::<Provider>()
    }

    pub fn into_context(self) -> Opaque {
        Box::into_raw(Box::new(self)).cast()
    }
}

fn register(
    core: &Core,
    algorithm: &'static Algorithm,
    environment: &impl Fn(&str) -> Option<String>,
) -> Result<Registered> {
    let name = algorithm.name;
    let code_point = match environment(&override_name("CODEPOINT", name)) {
        Some(text) => parse_code_point(&text).ok_or_else(|| {
            Error::internal(format!("{}={text:?} is no code point from 1 to 65535", override_name("CODEPOINT", name)))
        })?,
        None => algorithm.code_point.into(),
    };
    let oid = environment(&override_name("OID", name)).or(algorithm.oid.map(String::from));
    let identifier = match &oid {
        None => None,
        Some(oid) => Some(der::algorithm_identifier(oid).ok_or_else(|| {
            Error::internal(format!("{}={oid:?} is no object identifier", override_name("OID", name)))
        })?),
    };
    let c = |s: &str| CString::new(s).map_err(|_| Error::internal(format!("{s:?} has a zero in it")));
    let mut names: Vec<&str> = vec![name];
    names.extend(algorithm.aliases);
    names.extend(oid.as_deref());
    let r = Registered {
        algorithm,
        name: c(name)?,
        names: c(&names.join(":"))?,
        oid: oid.as_deref().map(c).transpose()?,
        identifier,
        code_point,
    };
    if let Some(oid) = &r.oid {
        // The core looks whether an object is known, and then makes it: of two contexts that do so at once, one fails.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock();
        core.register(oid, &r.name, algorithm.is_signature())?;
    }
    Ok(r)
}

/// OQS_CODEPOINT_<NAME>, OQS_OID_<NAME>: as in oqs-provider, which settles collisions between its releases with them.
fn override_name(kind: &str, name: &str) -> String {
    format!("OQS_{kind}_{}", name.to_uppercase())
}

fn parse_code_point(text: &str) -> Option<u32> {
    let value = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16).ok()?,
        None => text.parse().ok()?,
    };
    (1..=0xffff).contains(&value).then_some(value)
}

/// The environment, but for programs that run with others' rights.
pub fn environment(name: &str) -> Option<String> {
    extern "C" {
        fn secure_getenv(name: *const libc::c_char) -> *const libc::c_char;
    }
    let name = CString::new(name).ok()?;
    // SAFETY: the result is a string that is copied at once.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_points() {
        for (text, want) in
            [("65024", Some(0xfe00)), ("0xFE00", Some(0xfe00)), ("0", None), ("65536", None), ("x", None), ("", None)]
        {
            assert_eq!(parse_code_point(text), want, "{text:?}");
        }
    }

    #[test]
    fn names_of_overrides() {
        assert_eq!(override_name("CODEPOINT", "p256_frodo640aes"), "OQS_CODEPOINT_P256_FRODO640AES");
    }
}
