//! The virtual slot: its objects, sessions and signatures. The objects are made from the configuration alone, so they are
//! there with no member up, and only a signature, or a key that is to be made, asks a member.

use crate::{
    config::{Config, Key},
    generate::{self, Template},
    keys::Keys,
    library::lock,
    pool::Pool,
    spki::Kind,
    token::{digest_len, Mechanism, Request},
};
use cryptoki_sys::*;
use std::{
    collections::{HashMap, HashSet},
    sync::{
        atomic::{AtomicU64, Ordering},
        Arc, Mutex,
    },
};

pub type Rv<T> = Result<T, CK_RV>;

pub const SLOT: CK_SLOT_ID = 0;

/// The longest message of ML-DSA, which is signed whole: a certificate's or a revocation list's body.
const LONGEST_MESSAGE: usize = 16 << 20;
/// The most that CKM_ECDSA is given: a digest. Longer input is cut by some tokens and refused by others.
const LONGEST_DIGEST: usize = 66;
pub const MOST_SESSIONS: usize = 1 << 16;

/// A key's private or public object. Handles are the same in every process that reads the same configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    pub key: usize,
    pub private: bool,
}

impl Object {
    fn handle(self) -> CK_OBJECT_HANDLE {
        (2 * self.key + 1 + !self.private as usize) as CK_OBJECT_HANDLE
    }
}

/// The object behind a handle, and its key.
pub fn object(keys: &Keys, handle: CK_OBJECT_HANDLE) -> Option<(Object, Arc<Key>)> {
    let number = usize::try_from(handle).ok()?.checked_sub(1)?;
    let object = Object { key: number / 2, private: number % 2 == 0 };
    Some((object, keys.get(object.key)?))
}

/// An attribute of an object.
#[derive(Debug, PartialEq, Eq)]
pub enum Attribute {
    Value(Vec<u8>),
    /// It is there, and never leaves.
    Sensitive,
    Absent,
}

fn ulong(value: CK_ULONG) -> Attribute {
    Attribute::Value(value.to_ne_bytes().into())
}

fn yes(value: bool) -> Attribute {
    Attribute::Value(vec![value as u8])
}

/// DER's OCTET STRING around a point: P-521's has 133 bytes.
fn octet_string(value: &[u8]) -> Vec<u8> {
    let len = value.len() as u8;
    let mut der = if len < 0x80 { vec![4, len] } else { vec![4, 0x81, len] };
    der.extend(value);
    der
}

fn bits(number: &[u8]) -> CK_ULONG {
    let top = number.first().map_or(0, |b| b.leading_zeros() as usize);
    (8 * number.len() - top) as CK_ULONG
}

pub fn attribute(key: &Key, private: bool, type_: CK_ATTRIBUTE_TYPE) -> Attribute {
    use Attribute::*;
    match (type_, &key.public.kind) {
        (CKA_CLASS, _) => ulong(if private { CKO_PRIVATE_KEY } else { CKO_PUBLIC_KEY }),
        (CKA_TOKEN, _) => yes(true),
        (CKA_PRIVATE, _) => yes(private),
        (CKA_MODIFIABLE | CKA_COPYABLE | CKA_DESTROYABLE, _) => yes(false),
        (CKA_LABEL, _) => Value(key.label.clone().into()),
        // With none, pkcs11-provider would not find the public key of a private one: `s_server` refuses ML-DSA keys then.
        (CKA_ID, _) if key.id.is_empty() => Value(key.label.clone().into()),
        (CKA_ID, _) => Value(key.id.clone()),
        (CKA_PUBLIC_KEY_INFO, _) => Value(key.public.der.clone()),
        (CKA_SIGN, _) if private => yes(true),
        (CKA_SENSITIVE, _) if private => yes(true),
        (CKA_EXTRACTABLE | CKA_ALWAYS_AUTHENTICATE, _) if private => yes(false),
        (CKA_DECRYPT | CKA_SIGN_RECOVER | CKA_UNWRAP | CKA_DERIVE, _) if private => yes(false),
        (CKA_VERIFY | CKA_ENCRYPT | CKA_VERIFY_RECOVER | CKA_WRAP | CKA_DERIVE | CKA_TRUSTED, _) if !private => {
            yes(false)
        }
        (CKA_VALUE, Kind::MlDsa { value, .. }) if !private => Value(value.clone()),
        (CKA_VALUE | CKA_PRIVATE_EXPONENT | CKA_PRIME_1 | CKA_PRIME_2 | CKA_SEED, _) if private => Sensitive,
        (CKA_EXPONENT_1 | CKA_EXPONENT_2 | CKA_COEFFICIENT, _) if private => Sensitive,
        (CKA_KEY_TYPE, Kind::Rsa { .. }) => ulong(CKK_RSA),
        (CKA_KEY_TYPE, Kind::Ec { .. }) => ulong(CKK_EC),
        (CKA_KEY_TYPE, Kind::MlDsa { .. }) => ulong(CKK_ML_DSA),
        (CKA_MODULUS, Kind::Rsa { modulus, .. }) => Value(modulus.clone()),
        (CKA_MODULUS_BITS, Kind::Rsa { modulus, .. }) if !private => ulong(bits(modulus)),
        (CKA_PUBLIC_EXPONENT, Kind::Rsa { exponent, .. }) => Value(exponent.clone()),
        (CKA_EC_PARAMS, Kind::Ec { curve, .. }) => Value(curve.clone()),
        // A private key has none in the standard; pkcs11-provider asks, and is spared the search for the public one.
        (CKA_EC_POINT, Kind::Ec { point, .. }) => Value(octet_string(point)),
        (CKA_PARAMETER_SET, Kind::MlDsa { set, .. }) => ulong(*set),
        _ => Absent,
    }
}

/// The mechanisms that the keys have a use for, with the sizes of those keys; and, where keys may be made, those that make
/// them and all that such keys have a use for. Digests are the caller's: tokens differ in which of them they can, and OpenSSL
/// is faster.
pub fn mechanisms(keys: &Keys, generates: bool) -> Vec<(CK_MECHANISM_TYPE, CK_MECHANISM_INFO)> {
    let mut list: Vec<(CK_MECHANISM_TYPE, CK_MECHANISM_INFO)> = Vec::new();
    let mut sizes: Vec<(CK_KEY_TYPE, CK_ULONG)> = keys
        .all()
        .iter()
        .map(|(_, key)| match &key.public.kind {
            Kind::Rsa { modulus, .. } => (CKK_RSA, bits(modulus)),
            Kind::Ec { half: 66, .. } => (CKK_EC, 521),
            Kind::Ec { half, .. } => (CKK_EC, 8 * *half as CK_ULONG),
            Kind::MlDsa { set, .. } => (CKK_ML_DSA, *set),
        })
        .collect();
    if generates {
        for (type_, key_type, least, most) in generate::MECHANISMS {
            sizes.extend([(key_type, least), (key_type, most)]);
            let info = CK_MECHANISM_INFO { ulMinKeySize: least, ulMaxKeySize: most, flags: CKF_GENERATE_KEY_PAIR };
            list.push((type_, info));
        }
    }
    for (key_type, size) in sizes {
        let types: &[CK_MECHANISM_TYPE] = match key_type {
            CKK_RSA => &[CKM_RSA_PKCS, CKM_RSA_PKCS_PSS, CKM_RSA_X_509],
            CKK_EC => &[CKM_ECDSA],
            _ => &[CKM_ML_DSA],
        };
        for &type_ in types {
            match list.iter_mut().find(|m| m.0 == type_) {
                Some((_, info)) => {
                    info.ulMinKeySize = info.ulMinKeySize.min(size);
                    info.ulMaxKeySize = info.ulMaxKeySize.max(size);
                }
                None => {
                    list.push((type_, CK_MECHANISM_INFO { ulMinKeySize: size, ulMaxKeySize: size, flags: CKF_SIGN }))
                }
            }
        }
    }
    list
}

pub fn fits(mechanism: &Mechanism, kind: &Kind) -> bool {
    match mechanism {
        Mechanism::RsaPkcs | Mechanism::RsaRaw | Mechanism::RsaPss { .. } => matches!(kind, Kind::Rsa { .. }),
        Mechanism::Ecdsa => matches!(kind, Kind::Ec { .. }),
        Mechanism::MlDsa(_) => matches!(kind, Kind::MlDsa { .. }),
    }
}

/// The longest input of a mechanism with a key.
fn longest(mechanism: &Mechanism, kind: &Kind) -> usize {
    match (mechanism, kind) {
        // PKCS #1 v1.5 padding takes 11 bytes.
        (Mechanism::RsaPkcs, Kind::Rsa { modulus, .. }) => modulus.len() - 11,
        (Mechanism::RsaRaw, Kind::Rsa { modulus, .. }) => modulus.len(),
        (Mechanism::MlDsa(_), _) => LONGEST_MESSAGE,
        _ => LONGEST_DIGEST,
    }
}

/// Whether a key can sign such data so. What cannot be signed many a token tells like a failure of its own, and would be taken
/// for lost.
pub fn signable(mechanism: &Mechanism, data: &[u8], kind: &Kind) -> Rv<()> {
    if data.len() > longest(mechanism, kind) {
        return Err(CKR_DATA_LEN_RANGE);
    }
    match (mechanism, kind) {
        (Mechanism::Ecdsa, _) if data.is_empty() => Err(CKR_DATA_LEN_RANGE),
        (Mechanism::RsaRaw, Kind::Rsa { modulus, .. }) if data.len() < modulus.len() => Err(CKR_DATA_LEN_RANGE),
        (Mechanism::RsaRaw, Kind::Rsa { modulus, .. }) if data >= modulus => Err(CKR_DATA_INVALID),
        (Mechanism::RsaPss { hash, salt, .. }, Kind::Rsa { modulus, .. }) => {
            let digest = digest_len(*hash).ok_or(CKR_MECHANISM_PARAM_INVALID)?;
            // The encoded message has a bit less than the modulus (RFC 8017, 8.1.1 and 9.1.1).
            let bits = 8 * modulus.len() - modulus[0].leading_zeros() as usize - 1;
            match (bits.div_ceil(8)).checked_sub(digest + 2) {
                _ if data.len() != digest => Err(CKR_DATA_LEN_RANGE),
                Some(room) if *salt <= room as CK_ULONG => Ok(()),
                _ => Err(CKR_MECHANISM_PARAM_INVALID),
            }
        }
        _ => Ok(()),
    }
}

struct Signing {
    key: Arc<Key>,
    mechanism: Mechanism,
    data: Vec<u8>,
    /// C_SignUpdate was called: C_Sign is wrong then.
    parts: bool,
}

#[derive(Default)]
struct Operations {
    search: Option<Vec<CK_OBJECT_HANDLE>>,
    signing: Option<Signing>,
}

pub struct Session {
    pub flags: CK_FLAGS,
    operations: Mutex<Operations>,
}

impl Session {
    pub fn writes(&self) -> bool {
        self.flags & CKF_RW_SESSION != 0
    }
}

pub struct Slot {
    pub label: String,
    /// Programs may have keys made.
    pub generates: bool,
    /// The labels of keys that are being made.
    making: Mutex<HashSet<String>>,
    pub keys: Keys,
    pub pool: Pool,
    sessions: Mutex<HashMap<CK_SESSION_HANDLE, Arc<Session>>>,
    next: AtomicU64,
}

impl Slot {
    pub fn new(config: &Config, keys: Keys, pool: Pool) -> Slot {
        Slot {
            label: config.label.clone(),
            generates: config.generate,
            making: Mutex::default(),
            keys,
            pool,
            sessions: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }

    pub fn mechanisms(&self) -> Vec<(CK_MECHANISM_TYPE, CK_MECHANISM_INFO)> {
        mechanisms(&self.keys, self.generates)
    }

    pub fn open_session(&self, flags: CK_FLAGS) -> Rv<CK_SESSION_HANDLE> {
        if flags & CKF_SERIAL_SESSION == 0 {
            return Err(CKR_SESSION_PARALLEL_NOT_SUPPORTED);
        }
        if flags & CKF_RW_SESSION != 0 && !self.generates {
            return Err(CKR_TOKEN_WRITE_PROTECTED);
        }
        let mut sessions = lock(&self.sessions);
        if sessions.len() >= MOST_SESSIONS {
            return Err(CKR_SESSION_COUNT);
        }
        let handle = self.next.fetch_add(1, Ordering::Relaxed) as CK_SESSION_HANDLE;
        sessions.insert(handle, Arc::new(Session { flags, operations: Mutex::default() }));
        Ok(handle)
    }

    pub fn session(&self, handle: CK_SESSION_HANDLE) -> Rv<Arc<Session>> {
        lock(&self.sessions).get(&handle).cloned().ok_or(CKR_SESSION_HANDLE_INVALID)
    }

    pub fn close_session(&self, handle: CK_SESSION_HANDLE) -> Rv<()> {
        lock(&self.sessions).remove(&handle).map(drop).ok_or(CKR_SESSION_HANDLE_INVALID)
    }

    pub fn close_all_sessions(&self) {
        lock(&self.sessions).clear();
    }

    pub fn session_count(&self) -> usize {
        lock(&self.sessions).len()
    }

    pub fn writing_session_count(&self) -> usize {
        lock(&self.sessions).values().filter(|session| session.writes()).count()
    }

    /// Starts a search for objects that have all attributes of a template. If there are none, the configuration may have
    /// changed.
    pub fn find_init(&self, session: CK_SESSION_HANDLE, template: &[(CK_ATTRIBUTE_TYPE, &[u8])]) -> Rv<()> {
        let session = self.session(session)?;
        let mut operations = lock(&session.operations);
        if operations.search.is_some() {
            return Err(CKR_OPERATION_ACTIVE);
        }
        let mut found = self.matching(template);
        if found.is_empty() && self.keys.reload() {
            found = self.matching(template);
        }
        found.reverse();
        operations.search = Some(found);
        Ok(())
    }

    fn matching(&self, template: &[(CK_ATTRIBUTE_TYPE, &[u8])]) -> Vec<CK_OBJECT_HANDLE> {
        let matches = |key: &Key, private| {
            template.iter().all(|(type_, value)| match attribute(key, private, *type_) {
                Attribute::Value(v) => v == *value,
                _ => false,
            })
        };
        let objects = |(number, key): (usize, Arc<Key>)| {
            let halves = [true, false].into_iter().filter(move |private| matches(&key, *private));
            halves.map(move |private| Object { key: number, private }.handle())
        };
        self.keys.all().into_iter().flat_map(objects).collect()
    }

    pub fn find(&self, session: CK_SESSION_HANDLE, room: &mut [CK_OBJECT_HANDLE]) -> Rv<usize> {
        let session = self.session(session)?;
        let mut operations = lock(&session.operations);
        let found = operations.search.as_mut().ok_or(CKR_OPERATION_NOT_INITIALIZED)?;
        let mut count = 0;
        while let Some((place, handle)) = room.get_mut(count).and_then(|place| found.pop().map(|h| (place, h))) {
            *place = handle;
            count += 1;
        }
        Ok(count)
    }

    pub fn find_final(&self, session: CK_SESSION_HANDLE) -> Rv<()> {
        let session = self.session(session)?;
        let search = lock(&session.operations).search.take();
        search.map(drop).ok_or(CKR_OPERATION_NOT_INITIALIZED)
    }

    /// Has a member make a key, and shows both its halves: the public one's handle and the private one's. Other members have
    /// it when somebody has copied it there.
    pub fn generate(
        &self,
        session: CK_SESSION_HANDLE,
        mechanism: CK_MECHANISM_TYPE,
        public: &Template,
        private: &Template,
    ) -> Rv<(CK_OBJECT_HANDLE, CK_OBJECT_HANDLE)> {
        let session = self.session(session)?;
        let (algorithm, name) = generate::wanted(mechanism, public, private)?;
        if !session.writes() {
            return Err(CKR_SESSION_READ_ONLY);
        }
        // Nothing is locked while a member works. Another thread, or a job that is paused, may be at the same label.
        let _making = Making::begin(&self.making, &name.label).ok_or(CKR_ATTRIBUTE_VALUE_INVALID)?;
        // Other programs' keys are in the file as soon as somebody has put them there.
        self.keys.reload();
        if self.keys.all().iter().any(|(_, key)| key.label == name.label) {
            return Err(CKR_ATTRIBUTE_VALUE_INVALID);
        }
        let public = self.pool.generate(algorithm, &name).map_err(|e| e.code)?;
        let key = self.keys.add(Arc::new(Key { label: name.label, id: name.id, public }));
        Ok((Object { key, private: false }.handle(), Object { key, private: true }.handle()))
    }

    pub fn sign_init(&self, session: CK_SESSION_HANDLE, mechanism: Mechanism, key: CK_OBJECT_HANDLE) -> Rv<()> {
        let session = self.session(session)?;
        let mut operations = lock(&session.operations);
        if operations.signing.is_some() {
            return Err(CKR_OPERATION_ACTIVE);
        }
        let (object, key) = object(&self.keys, key).ok_or(CKR_KEY_HANDLE_INVALID)?;
        if !object.private {
            return Err(CKR_KEY_TYPE_INCONSISTENT);
        }
        if !fits(&mechanism, &key.public.kind) {
            return Err(CKR_KEY_TYPE_INCONSISTENT);
        }
        operations.signing = Some(Signing { key, mechanism, data: vec![], parts: false });
        Ok(())
    }

    /// C_SignInit without a mechanism gives an operation up (PKCS#11 3.0).
    pub fn sign_cancel(&self, session: CK_SESSION_HANDLE) -> Rv<()> {
        let session = self.session(session)?;
        lock(&session.operations).signing = None;
        Ok(())
    }

    pub fn sign_update(&self, session: CK_SESSION_HANDLE, part: &[u8]) -> Rv<()> {
        let session = self.session(session)?;
        let mut operations = lock(&session.operations);
        let signing = operations.signing.as_mut().ok_or(CKR_OPERATION_NOT_INITIALIZED)?;
        let longest = longest(&signing.mechanism, &signing.key.public.kind);
        if part.len() > longest - signing.data.len() {
            operations.signing = None;
            return Err(CKR_DATA_LEN_RANGE);
        }
        signing.parts = true;
        signing.data.extend(part);
        Ok(())
    }

    /// The length of the signature that was begun.
    pub fn signature_len(&self, session: CK_SESSION_HANDLE) -> Rv<usize> {
        let session = self.session(session)?;
        let operations = lock(&session.operations);
        let signing = operations.signing.as_ref().ok_or(CKR_OPERATION_NOT_INITIALIZED)?;
        Ok(signing.key.public.signature_len())
    }

    pub fn sign(&self, session: CK_SESSION_HANDLE, data: &[u8], room: usize) -> Rv<Vec<u8>> {
        self.finish(session, Some(data), room)
    }

    pub fn sign_final(&self, session: CK_SESSION_HANDLE, room: usize) -> Rv<Vec<u8>> {
        self.finish(session, None, room)
    }

    /// Makes the signature, of data or of the parts that came before. Too little room for it does not end the operation; all
    /// else does.
    fn finish(&self, session: CK_SESSION_HANDLE, data: Option<&[u8]>, room: usize) -> Rv<Vec<u8>> {
        let session = self.session(session)?;
        let mut operations = lock(&session.operations);
        let signing = operations.signing.take().ok_or(CKR_OPERATION_NOT_INITIALIZED)?;
        let key = signing.key.clone();
        let public = &key.public;
        let len = public.signature_len();
        if room < len {
            operations.signing = Some(signing);
            return Err(CKR_BUFFER_TOO_SMALL);
        }
        let data = match data {
            Some(_) if signing.parts => return Err(CKR_OPERATION_ACTIVE),
            Some(data) => {
                signable(&signing.mechanism, data, &public.kind)?;
                data.to_vec()
            }
            None => {
                signable(&signing.mechanism, &signing.data, &public.kind)?;
                signing.data
            }
        };
        // The session is not locked while a member works: nobody may wait for an HSM who does not use it.
        drop(operations);
        let request = Request { key: signing.key, mechanism: signing.mechanism, data };
        let signature = self.pool.sign(request).map_err(|e| e.code)?;
        // Members see to that; but it is copied into the program's memory.
        (signature.len() == len).then_some(signature).ok_or(CKR_DEVICE_ERROR)
    }
}

/// A key with this label is being made, for as long as it lives.
struct Making<'a> {
    labels: &'a Mutex<HashSet<String>>,
    label: String,
}

impl<'a> Making<'a> {
    /// None if one is being made already.
    fn begin(labels: &'a Mutex<HashSet<String>>, label: &str) -> Option<Making<'a>> {
        lock(labels).insert(label.into()).then(|| Making { labels, label: label.into() })
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        lock(self.labels).remove(&self.label);
    }
}
