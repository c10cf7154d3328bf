//! The standard algorithms, which OpenSSL has too: ML-KEM, ML-DSA and the hybrid groups of TLS 1.3, from the vectorised
//! code of [`fast`](crate::primitives::fast), under OpenSSL's own names. A property query chooses them, such as
//! `?provider=oqsprovider`; without one OpenSSL's serve, if its default provider was activated first.
//!
//! There are no encoders and decoders of these keys. OpenSSL's read and write them, so that files are the same to the
//! byte, and hand the keys over as parameters (import, export). A decoder here would not wait for a query: those of all
//! providers take part in every decoding.

use crate::{
    error::{expect_length, Error, Reason, Result},
    openssl::{
        abi::{
            c_char, c_int, c_uint, entry, kem as kem_id, keymgmt as id, select, signature as signature_id, Dispatch,
            Opaque, Param, ParamCallback,
        },
        params::{Mismatch, Params},
    },
    primitives::{
        fast::{Curve, Input, MlDsa, MlKem, ML_DSA_44, ML_DSA_65, ML_DSA_87, ML_KEM_1024, ML_KEM_512, ML_KEM_768},
        Failed,
    },
    provider::Provider,
    stack,
};
use std::{
    ffi::CStr,
    ptr::{self, null, null_mut},
};
use zeroize::Zeroizing;

/// A standard algorithm as OpenSSL knows it.
pub struct Standard {
    /// Every name, with colons between.
    pub names: &'static CStr,
    pub name: &'static CStr,
    /// The TLS group or signature scheme.
    pub tls_name: &'static CStr,
    pub code_point: c_uint,
    pub security_bits: c_uint,
    /// Empty for groups, whose keys are in no certificate.
    pub oid: &'static CStr,
    /// The DER of its AlgorithmIdentifier.
    identifier: &'static [u8],
    primitive: Primitive,
}

#[derive(Clone, Copy)]
enum Primitive {
    Kem(&'static MlKem, Option<Hybrid>),
    Signature(&'static MlDsa),
}
use Primitive::{Kem, Signature};

/// The classical half of a group.
#[derive(Clone, Copy)]
struct Hybrid {
    curve: Curve,
    /// Whether its share, ciphertext and secret come first.
    first: bool,
}

pub static ALGORITHMS: [Standard; 9] = [
    kem(
        c"ML-KEM-512:MLKEM512:id-alg-ml-kem-512:2.16.840.1.101.3.4.4.1",
        c"ML-KEM-512",
        c"MLKEM512",
        0x0200,
        128,
        Kem(&ML_KEM_512, None),
    ),
    kem(
        c"ML-KEM-768:MLKEM768:id-alg-ml-kem-768:2.16.840.1.101.3.4.4.2",
        c"ML-KEM-768",
        c"MLKEM768",
        0x0201,
        192,
        Kem(&ML_KEM_768, None),
    ),
    kem(
        c"ML-KEM-1024:MLKEM1024:id-alg-ml-kem-1024:2.16.840.1.101.3.4.4.3",
        c"ML-KEM-1024",
        c"MLKEM1024",
        0x0202,
        256,
        Kem(&ML_KEM_1024, None),
    ),
    kem(
        c"X25519MLKEM768",
        c"X25519MLKEM768",
        c"X25519MLKEM768",
        0x11ec,
        192,
        Kem(&ML_KEM_768, Some(Hybrid { curve: Curve::X25519, first: false })),
    ),
    kem(
        c"SecP256r1MLKEM768",
        c"SecP256r1MLKEM768",
        c"SecP256r1MLKEM768",
        0x11eb,
        192,
        Kem(&ML_KEM_768, Some(Hybrid { curve: Curve::P256, first: true })),
    ),
    kem(
        c"SecP384r1MLKEM1024",
        c"SecP384r1MLKEM1024",
        c"SecP384r1MLKEM1024",
        0x11ed,
        256,
        Kem(&ML_KEM_1024, Some(Hybrid { curve: Curve::P384, first: true })),
    ),
    Standard {
        names: c"ML-DSA-44:MLDSA44:2.16.840.1.101.3.4.3.17:id-ml-dsa-44",
        name: c"ML-DSA-44",
        tls_name: c"mldsa44",
        code_point: 0x0904,
        security_bits: 128,
        oid: c"2.16.840.1.101.3.4.3.17",
        identifier: &ml_dsa_identifier(17),
        primitive: Signature(&ML_DSA_44),
    },
    Standard {
        names: c"ML-DSA-65:MLDSA65:2.16.840.1.101.3.4.3.18:id-ml-dsa-65",
        name: c"ML-DSA-65",
        tls_name: c"mldsa65",
        code_point: 0x0905,
        security_bits: 192,
        oid: c"2.16.840.1.101.3.4.3.18",
        identifier: &ml_dsa_identifier(18),
        primitive: Signature(&ML_DSA_65),
    },
    Standard {
        names: c"ML-DSA-87:MLDSA87:2.16.840.1.101.3.4.3.19:id-ml-dsa-87",
        name: c"ML-DSA-87",
        tls_name: c"mldsa87",
        code_point: 0x0906,
        security_bits: 256,
        oid: c"2.16.840.1.101.3.4.3.19",
        identifier: &ml_dsa_identifier(19),
        primitive: Signature(&ML_DSA_87),
    },
];

const fn kem(
    names: &'static CStr,
    name: &'static CStr,
    tls_name: &'static CStr,
    code_point: c_uint,
    security_bits: c_uint,
    primitive: Primitive,
) -> Standard {
    Standard { names, name, tls_name, code_point, security_bits, oid: c"", identifier: &[], primitive }
}

/// SEQUENCE { OBJECT IDENTIFIER 2.16.840.1.101.3.4.3.last }: no parameters (RFC 9881, section 2).
const fn ml_dsa_identifier(last: u8) -> [u8; 13] {
    [0x30, 11, 0x06, 9, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, last]
}

impl Standard {
    pub fn is_signature(&self) -> bool {
        matches!(self.primitive, Signature(_))
    }

    fn label(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    pub(crate) fn public_size(&self) -> usize {
        match self.primitive {
            Kem(k, h) => k.public_key + h.map_or(0, |h| h.curve.public_key()),
            Signature(s) => s.public_key,
        }
    }

    /// The length of a ciphertext or signature.
    pub(crate) fn output_size(&self) -> usize {
        match self.primitive {
            Kem(k, h) => k.ciphertext + h.map_or(0, |h| h.curve.public_key()),
            Signature(s) => s.signature,
        }
    }

    pub(crate) fn secret_size(&self) -> usize {
        match self.primitive {
            Kem(_, h) => MlKem::SHARED_SECRET + h.map_or(0, |h| h.curve.secret()),
            Signature(_) => 0,
        }
    }

    /// OpenSSL counts the bits of ML-DSA's public keys, and has names of ML-KEM's.
    fn bits(&self) -> usize {
        match self.primitive {
            Kem(k, _) => k.public_key / 384 * 256, // 256 coefficients of 12 bits, for each of the rank's polynomials
            Signature(s) => 8 * s.public_key,
        }
    }

    fn error(&self, reason: Reason, what: &str) -> Error {
        Error::new(reason, format!("{what} of {}", self.label()))
    }
}

impl Hybrid {
    /// The classical and the post-quantum half of a share, ciphertext or secret.
    fn split<'a>(&self, whole: &'a [u8], classical: usize) -> (&'a [u8], &'a [u8]) {
        if self.first {
            return whole.split_at(classical);
        }
        let (post_quantum, classical) = whole.split_at(whole.len() - classical);
        (classical, post_quantum)
    }

    fn split_mut<'a>(&self, whole: &'a mut [u8], classical: usize) -> (&'a mut [u8], &'a mut [u8]) {
        if self.first {
            return whole.split_at_mut(classical);
        }
        let (post_quantum, classical) = whole.split_at_mut(whole.len() - classical);
        (classical, post_quantum)
    }
}

/// A key, of which parts may be missing: libssl makes an empty one first and sets the peer's share then.
#[derive(Clone)]
struct Key<'a> {
    provider: &'a Provider,
    algorithm: &'static Standard,
    /// As a key share has it: a hybrid's holds both halves.
    public: Vec<u8>,
    private: Zeroizing<Vec<u8>>,
    seed: Option<Zeroizing<Vec<u8>>>,
    /// The private key of a hybrid's classical half.
    classical: Zeroizing<Vec<u8>>,
}

impl<'a> Key<'a> {
    fn empty(provider: &'a Provider, algorithm: &'static Standard) -> Key<'a> {
        let (private, classical) = (Zeroizing::default(), Zeroizing::default());
        Key { provider, algorithm, public: vec![], private, seed: None, classical }
    }

    fn has_public(&self) -> bool {
        !self.public.is_empty()
    }

    fn has_private(&self) -> bool {
        !self.private.is_empty()
    }

    fn error(&self, reason: Reason, what: &str) -> Error {
        self.algorithm.error(reason, what)
    }

    fn random(&self, out: &mut [u8]) -> std::result::Result<(), Failed> {
        self.provider.library.random(out).map_err(|_| Failed)
    }

    fn entropy<const N: usize>(&self) -> Result<Zeroizing<[u8; N]>> {
        let mut out = Zeroizing::new([0; N]);
        self.random(&mut out[..]).map_err(|Failed| Error::internal("the random generator failed"))?;
        Ok(out)
    }

    /// Runs a primitive on a stack that is large enough for it.
    fn operate<T>(&self, doing: &str, f: impl FnOnce() -> std::result::Result<T, Failed>) -> Result<T> {
        stack::run_tidy(f)
            .ok_or_else(|| Error::internal("no memory for a stack"))?
            .map_err(|Failed| self.error(Reason::PrimitiveFailed, doing))
    }

    fn generate(&mut self, seed: Option<&[u8]>) -> Result<()> {
        match (seed, self.algorithm.primitive) {
            (Some(seed), _) => self.set_seed(seed)?,
            (None, Kem(..)) => self.set_seed(&self.entropy::<{ MlKem::SEED }>()?[..])?,
            (None, Signature(_)) => self.set_seed(&self.entropy::<{ MlDsa::SEED }>()?[..])?,
        }
        if let Kem(_, Some(h)) = self.algorithm.primitive {
            let mut share = vec![0; self.algorithm.public_size()];
            let mut private = Zeroizing::new(vec![0; h.curve.secret()]);
            let (classical, post_quantum) = h.split_mut(&mut share, h.curve.public_key());
            post_quantum.copy_from_slice(&self.public);
            self.operate("key generation", || h.curve.generate(|b| self.random(b), classical, &mut private))?;
            (self.public, self.classical) = (share, private);
        }
        Ok(())
    }

    /// The key pair of a seed; of a hybrid, its post-quantum half.
    fn set_seed(&mut self, seed: &[u8]) -> Result<()> {
        let wrong = |_| self.error(Reason::InvalidLength, "a seed");
        let (public, private) = match self.algorithm.primitive {
            Kem(k, _) => {
                let seed = seed.try_into().map_err(wrong)?;
                let (mut public, mut private) = (vec![0; k.public_key], Zeroizing::new(vec![0; k.private_key]));
                self.operate("key generation", || k.keypair(seed, &mut public, &mut private))?;
                (public, private)
            }
            Signature(s) => {
                let seed = seed.try_into().map_err(wrong)?;
                let (mut public, mut private) = (vec![0; s.public_key], Zeroizing::new(vec![0; s.private_key]));
                self.operate("key generation", || s.keypair(seed, &mut public, &mut private))?;
                (public, private)
            }
        };
        (self.public, self.private, self.seed) = (public, private, Some(Zeroizing::new(seed.to_vec())));
        Ok(())
    }

    /// Takes an expanded private key, if it is valid. Hybrids' are never handed over.
    fn set_private(&mut self, private: &[u8]) -> Result<()> {
        let mut public = vec![0; self.algorithm.public_size()];
        let checked = match self.algorithm.primitive {
            Kem(_, Some(_)) => Ok(Err(Failed)),
            Kem(k, None) => self.operate("import", || {
                Ok(k.check_private(private).and_then(|()| {
                    public.copy_from_slice(k.public_of(private)?);
                    k.check_public(&public)
                }))
            }),
            Signature(s) => self.operate("import", || Ok(s.public_of(private, &mut public))),
        }?;
        checked.map_err(|Failed| self.error(Reason::InvalidKey, "the private key"))?;
        (self.public, self.private, self.seed) = (public, Zeroizing::new(private.to_vec()), None);
        Ok(())
    }

    fn set_public(&mut self, public: &[u8]) -> Result<()> {
        let a = self.algorithm;
        expect_length("the public key", a.label(), public.len(), a.public_size())?;
        if let Kem(k, h) = a.primitive {
            let post_quantum = h.map_or(public, |h| h.split(public, h.curve.public_key()).1);
            k.check_public(post_quantum).map_err(|Failed| self.error(Reason::InvalidKey, "the public key"))?;
        }
        self.public = public.to_vec();
        Ok(())
    }

    /// Takes what another provider's key consists of. Parts that do not belong together are refused.
    fn import(&mut self, seed: Option<&[u8]>, private: Option<&[u8]>, public: Option<&[u8]>) -> Result<()> {
        match (seed, private, public) {
            (Some(seed), ..) => self.set_seed(seed)?,
            (None, Some(private), _) => self.set_private(private)?,
            (None, None, Some(public)) => self.set_public(public)?,
            (None, None, None) => return Err(self.error(Reason::MissingKey, "the key")),
        }
        if private.is_some_and(|p| p != &self.private[..]) || public.is_some_and(|p| p != self.public) {
            *self = Key::empty(self.provider, self.algorithm);
            return Err(self.error(Reason::InvalidKey, "parts that do not belong together, the key"));
        }
        Ok(())
    }

    /// Writes a ciphertext and the shared secret, into buffers of output_size and secret_size.
    fn encapsulate(&self, entropy: &[u8; MlKem::ENTROPY], ciphertext: &mut [u8], secret: &mut [u8]) -> Result<()> {
        let Kem(k, hybrid) = self.algorithm.primitive else { return Err(self.misused()) };
        self.operate("encapsulation", || {
            let Some(h) = hybrid else { return k.encapsulate(entropy, &self.public, ciphertext, secret) };
            let (peer, public) = h.split(&self.public, h.curve.public_key());
            let (share, ciphertext) = h.split_mut(ciphertext, h.curve.public_key());
            let (agreed, secret) = h.split_mut(secret, h.curve.secret());
            let mut ephemeral = Zeroizing::new(vec![0; h.curve.secret()]);
            k.encapsulate(entropy, public, ciphertext, secret)?;
            h.curve.generate(|b| self.random(b), share, &mut ephemeral)?;
            h.curve.agree(&ephemeral, peer, agreed)
        })
    }

    fn decapsulate(&self, ciphertext: &[u8], secret: &mut [u8]) -> Result<()> {
        let a = self.algorithm;
        let Kem(k, hybrid) = a.primitive else { return Err(self.misused()) };
        expect_length("the ciphertext", a.label(), ciphertext.len(), a.output_size())?;
        self.operate("decapsulation", || {
            let Some(h) = hybrid else { return k.decapsulate(&self.private, ciphertext, secret) };
            let (peer, ciphertext) = h.split(ciphertext, h.curve.public_key());
            let (agreed, secret) = h.split_mut(secret, h.curve.secret());
            k.decapsulate(&self.private, ciphertext, secret)?;
            h.curve.agree(&self.classical, peer, agreed)
        })
    }

    fn sign(&self, entropy: &[u8; MlDsa::ENTROPY], input: Input, signature: &mut [u8]) -> Result<()> {
        let Signature(s) = self.algorithm.primitive else { return Err(self.misused()) };
        self.operate("signing", || s.sign(entropy, &self.private, input, signature))
    }

    fn verify(&self, input: Input, signature: &[u8]) -> Result<()> {
        let Signature(s) = self.algorithm.primitive else { return Err(self.misused()) };
        let outcome = self.operate("verification", || Ok(s.verify(&self.public, input, signature)))?;
        outcome.map_err(|Failed| self.error(Reason::SignatureMismatch, "the signature"))
    }

    /// Whether the two keys belong together, by using them once.
    fn validate(&self) -> Result<()> {
        let invalid = || self.error(Reason::InvalidKey, "the two keys");
        if let Signature(s) = self.algorithm.primitive {
            let (input, mut signature) = (Input::Formatted(b"pairwise consistency"), vec![0; s.signature]);
            self.sign(&MlDsa::DETERMINISTIC, input, &mut signature)?;
            return self.verify(input, &signature).map_err(|_| invalid());
        }
        let mut ciphertext = vec![0; self.algorithm.output_size()];
        let mut secrets = [(); 2].map(|()| Zeroizing::new(vec![0; self.algorithm.secret_size()]));
        self.encapsulate(&*self.entropy()?, &mut ciphertext, &mut secrets[0])?;
        self.decapsulate(&ciphertext, &mut secrets[1])?;
        if secrets[0] == secrets[1] {
            Ok(())
        } else {
            Err(invalid())
        }
    }

    fn misused(&self) -> Error {
        Error::internal(format!("{} has no such operation", self.algorithm.label()))
    }
}

// OSSL_OP_KEYMGMT.

/// The functions of an algorithm; OpenSSL does not say for which it calls `new` and `gen_init`.
pub static KEYMGMT: [&[Dispatch]; ALGORITHMS.len()] = {
    macro_rules! functions {
        ($index:literal $($transfer:tt)*) => {
            &[
                entry!(id::NEW, new::<$index>),
                entry!(id::FREE, free),
                entry!(id::GEN_INIT, gen_init::<$index>),
                entry!(id::GEN_SET_PARAMS, gen_set_params),
                entry!(id::GEN_SETTABLE_PARAMS, gen_settable),
                entry!(id::GEN, gen),
                entry!(id::GEN_CLEANUP, gen_cleanup),
                entry!(id::GET_PARAMS, get_params),
                entry!(id::GETTABLE_PARAMS, gettable),
                entry!(id::SET_PARAMS, set_params),
                entry!(id::SETTABLE_PARAMS, settable),
                entry!(id::HAS, has),
                entry!(id::VALIDATE, validate),
                entry!(id::MATCH, matches),
                entry!(id::DUP, dup),
                $($transfer)*
                Dispatch::END,
            ]
        };
        (transferable $index:literal) => {
            functions!($index
                entry!(id::IMPORT, import),
                entry!(id::IMPORT_TYPES, transfer_types),
                entry!(id::EXPORT, export),
                entry!(id::EXPORT_TYPES, transfer_types),
            )
        };
    }
    // Hybrids' keys live for one handshake and have no common form outside a provider. That they cannot be exported has
    // OpenSSL use this provider's KEM with them, whatever a fetch without a query would find.
    [
        functions!(transferable 0),
        functions!(transferable 1),
        functions!(transferable 2),
        functions!(3),
        functions!(4),
        functions!(5),
        functions!(transferable 6),
        functions!(transferable 7),
        functions!(transferable 8),
    ]
};

type OwnedKey = Key<'static>;

fn into_raw(key: OwnedKey) -> Opaque {
    Box::into_raw(Box::new(key)).cast()
}

/// # Safety
/// `key` is one of `into_raw`, not freed yet, and nobody else changes it meanwhile.
unsafe fn borrow<'a>(key: Opaque) -> &'a mut OwnedKey {
    &mut *key.cast()
}

unsafe extern "C" fn new<const INDEX: usize>(context: Opaque) -> Opaque {
    into_raw(Key::empty(Provider::from_context(context), &ALGORITHMS[INDEX]))
}

unsafe extern "C" fn free(key: Opaque) {
    if !key.is_null() {
        drop(Box::from_raw(key.cast::<OwnedKey>()));
    }
}

/// A generation under way: an empty key, and whether and from what to fill it.
struct Generation {
    key: OwnedKey,
    wanted: bool,
    seed: Option<Zeroizing<Vec<u8>>>,
}

unsafe extern "C" fn gen_init<const INDEX: usize>(context: Opaque, selection: c_int, params: *const Param) -> Opaque {
    let key = Key::empty(Provider::from_context(context), &ALGORITHMS[INDEX]);
    // libssl asks for nothing to be generated when it only wants a place for the peer's share.
    let generation = Generation { key, wanted: selection & select::KEYPAIR != 0, seed: None };
    let generation = Box::into_raw(Box::new(generation)).cast();
    if gen_set_params(generation, params) == 0 {
        gen_cleanup(generation);
        return null_mut();
    }
    generation
}

unsafe extern "C" fn gen_set_params(generation: Opaque, params: *const Param) -> c_int {
    let generation = &mut *generation.cast::<Generation>();
    let algorithm = generation.key.algorithm;
    let Some(seed) = Params::new(params).octets(c"seed") else { return 1 };
    let want = match algorithm.primitive {
        Kem(_, None) => MlKem::SEED,
        Kem(_, Some(_)) => return 0,
        Signature(_) => MlDsa::SEED,
    };
    let checked = expect_length("a seed", algorithm.label(), seed.len(), want);
    if generation.key.provider.reported(checked).is_none() {
        return 0;
    }
    generation.seed = Some(Zeroizing::new(seed.to_vec()));
    1
}

unsafe extern "C" fn gen_settable(_: Opaque, _: Opaque) -> *const Param {
    static SETTABLE: [Param; 3] = [Param::octets_named(c"seed"), Param::string_named(c"group"), Param::END];
    SETTABLE.as_ptr()
}

unsafe extern "C" fn gen(generation: Opaque, _: Opaque, _: Opaque) -> Opaque {
    let generation = &mut *generation.cast::<Generation>();
    let mut key = generation.key.clone();
    if generation.wanted {
        let seed = generation.seed.take(); // each key needs its own
        let generated = key.generate(seed.as_ref().map(|s| s.as_slice()));
        if key.provider.reported(generated).is_none() {
            return null_mut();
        }
    }
    into_raw(key)
}

unsafe extern "C" fn gen_cleanup(generation: Opaque) {
    if !generation.is_null() {
        drop(Box::from_raw(generation.cast::<Generation>()));
    }
}

unsafe extern "C" fn gettable(_: Opaque) -> *const Param {
    static GETTABLE: [Param; 9] = [
        Param::integer_named(c"bits"),
        Param::integer_named(c"security-bits"),
        Param::integer_named(c"max-size"),
        Param::string_named(c"mandatory-digest"),
        Param::octets_named(c"encoded-pub-key"),
        Param::octets_named(c"pub"),
        Param::octets_named(c"priv"),
        Param::octets_named(c"seed"),
        Param::END,
    ];
    GETTABLE.as_ptr()
}

unsafe extern "C" fn get_params(key: Opaque, params: *const Param) -> c_int {
    get(borrow(key), Params::new(params)).is_ok() as c_int
}

fn get(key: &OwnedKey, params: Params) -> std::result::Result<(), Mismatch> {
    let a = key.algorithm;
    params.set_integer(c"bits", a.bits())?;
    params.set_integer(c"security-bits", a.security_bits as usize)?;
    params.set_integer(c"max-size", a.output_size())?;
    if a.is_signature() {
        // It signs messages, not digests: X.509 then names no digest.
        params.set_string(c"mandatory-digest", c"")?;
    } else if key.has_public() {
        params.set_octets(c"encoded-pub-key", &key.public)?;
    }
    if matches!(a.primitive, Kem(_, Some(_))) {
        return Ok(());
    }
    if key.has_public() {
        params.set_octets(c"pub", &key.public)?;
    }
    if key.has_private() {
        params.set_octets(c"priv", &key.private)?;
    }
    if let Some(seed) = &key.seed {
        params.set_octets(c"seed", seed)?;
    }
    Ok(())
}

unsafe extern "C" fn settable(_: Opaque) -> *const Param {
    static SETTABLE: [Param; 2] = [Param::octets_named(c"encoded-pub-key"), Param::END];
    SETTABLE.as_ptr()
}

unsafe extern "C" fn set_params(key: Opaque, params: *const Param) -> c_int {
    let key = borrow(key);
    let Some(share) = Params::new(params).octets(c"encoded-pub-key") else { return 1 };
    if key.has_public() {
        return 0; // a key does not change
    }
    let result = key.set_public(share);
    key.provider.reported(result).is_some() as c_int
}

unsafe extern "C" fn has(key: Opaque, selection: c_int) -> c_int {
    if key.is_null() {
        return 0;
    }
    let key = borrow(key);
    let public = selection & select::PUBLIC_KEY == 0 || key.has_public();
    let private = selection & select::PRIVATE_KEY == 0 || key.has_private();
    (public && private) as c_int
}

unsafe extern "C" fn validate(key: Opaque, selection: c_int, _check: c_int) -> c_int {
    if has(key, selection) == 0 {
        return 0;
    }
    let key = borrow(key);
    if selection & select::KEYPAIR != select::KEYPAIR {
        return 1; // each half was checked when it came
    }
    key.provider.reported(key.validate()).is_some() as c_int
}

unsafe extern "C" fn matches(a: Opaque, b: Opaque, selection: c_int) -> c_int {
    let (a, b) = (borrow(a), borrow(b));
    (ptr::eq(a.algorithm, b.algorithm) && (selection & select::KEYPAIR == 0 || a.public == b.public)) as c_int
}

unsafe extern "C" fn transfer_types(selection: c_int) -> *const Param {
    static TYPES: [Param; 4] =
        [Param::octets_named(c"seed"), Param::octets_named(c"pub"), Param::octets_named(c"priv"), Param::END];
    if selection & select::KEYPAIR == 0 {
        return null();
    }
    TYPES.as_ptr()
}

unsafe extern "C" fn import(key: Opaque, selection: c_int, params: *const Param) -> c_int {
    let (key, params) = (borrow(key), Params::new(params));
    if selection & select::KEYPAIR == 0 || key.has_public() {
        return 0;
    }
    let private = |name| (selection & select::PRIVATE_KEY != 0).then(|| params.octets(name)).flatten();
    let result = key.import(private(c"seed"), private(c"priv"), params.octets(c"pub"));
    key.provider.reported(result).is_some() as c_int
}

unsafe extern "C" fn export(key: Opaque, selection: c_int, callback: ParamCallback, arg: Opaque) -> c_int {
    let key = borrow(key);
    let mut params = Vec::new();
    if selection & select::PRIVATE_KEY != 0 && key.has_private() {
        params.extend(key.seed.as_ref().map(|seed| Param::octets(c"seed", seed)));
        params.push(Param::octets(c"priv", &key.private));
    }
    if selection & select::PUBLIC_KEY != 0 && key.has_public() {
        params.push(Param::octets(c"pub", &key.public));
    }
    if params.is_empty() {
        return 0;
    }
    params.push(Param::END);
    callback(params.as_ptr(), arg)
}

unsafe extern "C" fn dup(key: Opaque, selection: c_int) -> Opaque {
    let key = borrow(key);
    let mut copy = Key::empty(key.provider, key.algorithm);
    if selection & select::KEYPAIR != 0 {
        copy.public = key.public.clone();
    }
    if selection & select::PRIVATE_KEY != 0 {
        (copy.private, copy.seed, copy.classical) = (key.private.clone(), key.seed.clone(), key.classical.clone());
    }
    into_raw(copy)
}

/// What an operation works with; OpenSSL keeps the key alive for as long.
struct Operation<T> {
    key: *mut OwnedKey,
    settings: T,
}

impl<T: Clone + Default> Operation<T> {
    unsafe extern "C" fn new_kem(_: Opaque) -> Opaque {
        Box::into_raw(Box::new(Operation { key: null_mut(), settings: T::default() })).cast()
    }

    unsafe extern "C" fn new_signature(context: Opaque, _properties: *const c_char) -> Opaque {
        Self::new_kem(context)
    }

    unsafe extern "C" fn free(operation: Opaque) {
        if !operation.is_null() {
            drop(Box::from_raw(operation.cast::<Self>()));
        }
    }

    unsafe extern "C" fn dup(operation: Opaque) -> Opaque {
        let Operation { key, settings } = Self::borrow(operation);
        Box::into_raw(Box::new(Operation { key: *key, settings: settings.clone() })).cast()
    }

    unsafe fn borrow<'a>(operation: Opaque) -> &'a mut Self {
        &mut *operation.cast()
    }

    /// Takes a key, or keeps the one it has.
    fn set_key(&mut self, key: Opaque) -> bool {
        if !key.is_null() {
            self.key = key.cast();
        }
        !self.key.is_null()
    }

    fn key(&self) -> Option<&'static OwnedKey> {
        // SAFETY: OpenSSL keeps it alive.
        unsafe { self.key.as_ref() }
    }
}

unsafe fn slice<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, len)
    }
}

// OSSL_OP_KEM.

/// The randomness of the next encapsulation, for tests.
type Ikme = Option<Zeroizing<[u8; MlKem::ENTROPY]>>;
type Encapsulation = Operation<Ikme>;

pub static KEM: [Dispatch; 10] = [
    entry!(kem_id::NEWCTX, Encapsulation::new_kem),
    entry!(kem_id::FREECTX, Encapsulation::free),
    entry!(kem_id::DUPCTX, Encapsulation::dup),
    entry!(kem_id::ENCAPSULATE_INIT, kem_init),
    entry!(kem_id::ENCAPSULATE, encapsulate),
    entry!(kem_id::DECAPSULATE_INIT, kem_init),
    entry!(kem_id::DECAPSULATE, decapsulate),
    entry!(kem_id::SET_CTX_PARAMS, kem_set_params),
    entry!(kem_id::SETTABLE_CTX_PARAMS, kem_settable),
    Dispatch::END,
];

unsafe extern "C" fn kem_init(operation: Opaque, key: Opaque, params: *const Param) -> c_int {
    (Encapsulation::borrow(operation).set_key(key) && kem_set_params(operation, params) == 1) as c_int
}

unsafe extern "C" fn kem_set_params(operation: Opaque, params: *const Param) -> c_int {
    let Some(ikme) = Params::new(params).octets(c"ikme") else { return 1 };
    let Ok(ikme) = ikme.try_into() else { return 0 };
    Encapsulation::borrow(operation).settings = Some(Zeroizing::new(ikme));
    1
}

unsafe extern "C" fn kem_settable(_: Opaque, _: Opaque) -> *const Param {
    static SETTABLE: [Param; 2] = [Param::octets_named(c"ikme"), Param::END];
    SETTABLE.as_ptr()
}

unsafe extern "C" fn encapsulate(
    operation: Opaque,
    out: *mut u8,
    out_len: *mut usize,
    secret: *mut u8,
    secret_len: *mut usize,
) -> c_int {
    let operation = Encapsulation::borrow(operation);
    let Some(key) = operation.key() else { return 0 };
    let (size, secret_size) = (key.algorithm.output_size(), key.algorithm.secret_size());
    let (out_len, secret_len) = (out_len.as_mut(), secret_len.as_mut());
    let enough =
        out_len.as_ref().is_some_and(|l| **l >= size) && secret_len.as_ref().is_some_and(|l| **l >= secret_size);
    if let Some(l) = out_len {
        *l = size;
    }
    if let Some(l) = secret_len {
        *l = secret_size;
    }
    if out.is_null() {
        return 1;
    }
    if !enough || secret.is_null() {
        return 0;
    }
    let out = std::slice::from_raw_parts_mut(out, size);
    let secret = std::slice::from_raw_parts_mut(secret, secret_size);
    let result = match operation.settings.take() {
        Some(entropy) => key.encapsulate(&entropy, out, secret),
        None => key.entropy().and_then(|entropy| key.encapsulate(&entropy, out, secret)),
    };
    key.provider.reported(result).is_some() as c_int
}

unsafe extern "C" fn decapsulate(
    operation: Opaque,
    out: *mut u8,
    out_len: *mut usize,
    ciphertext: *const u8,
    ciphertext_len: usize,
) -> c_int {
    let Some(key) = Encapsulation::borrow(operation).key() else { return 0 };
    let size = key.algorithm.secret_size();
    let enough = out_len.as_ref().is_none_or(|l| *l >= size);
    if let Some(l) = out_len.as_mut() {
        *l = size;
    }
    if out.is_null() {
        return 1;
    }
    if !enough {
        return 0;
    }
    let secret = std::slice::from_raw_parts_mut(out, size);
    let result = key.decapsulate(slice(ciphertext, ciphertext_len), secret);
    key.provider.reported(result).is_some() as c_int
}

// OSSL_OP_SIGNATURE.

/// The parameters of EVP_SIGNATURE-ML-DSA(7).
#[derive(Clone, Default)]
struct Signing {
    context: Vec<u8>,
    /// For tests.
    entropy: Option<[u8; MlDsa::ENTROPY]>,
    deterministic: bool,
    formatted: bool,
    mu: bool,
}
type SignatureOperation = Operation<Signing>;

pub static SIGNATURE: [Dispatch; 16] = [
    entry!(signature_id::NEWCTX, SignatureOperation::new_signature),
    entry!(signature_id::FREECTX, SignatureOperation::free),
    entry!(signature_id::DUPCTX, SignatureOperation::dup),
    entry!(signature_id::SIGN_MESSAGE_INIT, signature_init),
    entry!(signature_id::SIGN, sign),
    entry!(signature_id::VERIFY_MESSAGE_INIT, signature_init),
    entry!(signature_id::VERIFY, verify),
    entry!(signature_id::DIGEST_SIGN_INIT, digest_init),
    entry!(signature_id::DIGEST_SIGN, sign),
    entry!(signature_id::DIGEST_VERIFY_INIT, digest_init),
    entry!(signature_id::DIGEST_VERIFY, verify),
    entry!(signature_id::GET_CTX_PARAMS, signature_get_params),
    entry!(signature_id::GETTABLE_CTX_PARAMS, signature_gettable),
    entry!(signature_id::SET_CTX_PARAMS, signature_set_params),
    entry!(signature_id::SETTABLE_CTX_PARAMS, signature_settable),
    Dispatch::END,
];

unsafe extern "C" fn signature_init(operation: Opaque, key: Opaque, params: *const Param) -> c_int {
    let o = SignatureOperation::borrow(operation);
    o.settings.mu = false;
    (o.set_key(key) && signature_set_params(operation, params) == 1) as c_int
}

unsafe extern "C" fn digest_init(operation: Opaque, name: *const c_char, key: Opaque, params: *const Param) -> c_int {
    if !name.is_null() && *name != 0 {
        return 0; // it signs messages
    }
    signature_init(operation, key, params)
}

unsafe extern "C" fn signature_set_params(operation: Opaque, params: *const Param) -> c_int {
    let (settings, params) = (&mut SignatureOperation::borrow(operation).settings, Params::new(params));
    if let Some(context) = params.octets(c"context-string") {
        if context.len() > 255 {
            return 0;
        }
        settings.context = context.to_vec();
    }
    if let Some(entropy) = params.octets(c"test-entropy") {
        let Ok(entropy) = entropy.try_into() else { return 0 };
        settings.entropy = Some(entropy);
    }
    if let Some(n) = params.integer(c"deterministic") {
        settings.deterministic = n == 1;
    }
    if let Some(n) = params.integer(c"message-encoding") {
        settings.formatted = n == 0;
    }
    if let Some(n) = params.integer(c"mu") {
        settings.mu = n != 0;
    }
    1
}

unsafe extern "C" fn signature_settable(_: Opaque, _: Opaque) -> *const Param {
    static SETTABLE: [Param; 6] = [
        Param::octets_named(c"context-string"),
        Param::octets_named(c"test-entropy"),
        Param::integer_named(c"deterministic"),
        Param::integer_named(c"message-encoding"),
        Param::integer_named(c"mu"),
        Param::END,
    ];
    SETTABLE.as_ptr()
}

impl Signing {
    fn input<'a>(&'a self, message: &'a [u8]) -> Input<'a> {
        match self {
            Signing { mu: true, .. } => Input::Mu(message),
            Signing { formatted: true, .. } => Input::Formatted(message),
            _ => Input::Message { message, context: &self.context },
        }
    }
}

unsafe extern "C" fn sign(
    operation: Opaque,
    out: *mut u8,
    len: *mut usize,
    size: usize,
    message: *const u8,
    message_len: usize,
) -> c_int {
    let o = SignatureOperation::borrow(operation);
    let Some(key) = o.key() else { return 0 };
    *len = key.algorithm.output_size();
    if out.is_null() {
        return 1;
    }
    if size < *len {
        return 0;
    }
    let signature = std::slice::from_raw_parts_mut(out, *len);
    let entropy = match o.settings.entropy {
        Some(entropy) => Ok(Zeroizing::new(entropy)),
        None if o.settings.deterministic => Ok(Zeroizing::new(MlDsa::DETERMINISTIC)),
        None => key.entropy(),
    };
    let message = o.settings.input(slice(message, message_len));
    let result = entropy.and_then(|entropy| key.sign(&entropy, message, signature));
    key.provider.reported(result).is_some() as c_int
}

unsafe extern "C" fn verify(
    operation: Opaque,
    signature: *const u8,
    len: usize,
    message: *const u8,
    message_len: usize,
) -> c_int {
    let o = SignatureOperation::borrow(operation);
    let Some(key) = o.key() else { return 0 };
    let message = o.settings.input(slice(message, message_len));
    key.provider.reported(key.verify(message, slice(signature, len))).is_some() as c_int
}

unsafe extern "C" fn signature_gettable(_: Opaque, _: Opaque) -> *const Param {
    static GETTABLE: [Param; 2] = [Param::octets_named(c"algorithm-id"), Param::END];
    GETTABLE.as_ptr()
}

unsafe extern "C" fn signature_get_params(operation: Opaque, params: *const Param) -> c_int {
    let Some(key) = SignatureOperation::borrow(operation).key() else { return 0 };
    Params::new(params).set_octets(c"algorithm-id", key.algorithm.identifier).is_ok() as c_int
}
