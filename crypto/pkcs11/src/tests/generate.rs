//! Keys that are made, and keys that are destroyed: what is asked for by templates; and who makes it, over stand-ins that
//! count.

use super::{
    config, files,
    fuzz::{rounds, Random},
    pool::until,
    public, CONFIG,
};
use crate::{
    config::{can_name, Config, Key},
    generate::{wanted, Template, MECHANISMS},
    keys::{self, Keys},
    library::lock,
    member::State,
    pool::Pool,
    slot::{attribute, mechanisms, object, Attribute, Rv, Slot},
    token::{Algorithm, Failure, Found, KeyName, Mechanism, Request, Result, Session, Token},
};
use cryptoki_sys::*;
use std::{
    fs,
    sync::{
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
        Arc, Mutex,
    },
    thread,
    time::Duration,
};

type Pair = (CK_ATTRIBUTE_TYPE, Vec<u8>);

fn yes(type_: CK_ATTRIBUTE_TYPE) -> Pair {
    (type_, vec![CK_TRUE])
}

fn no(type_: CK_ATTRIBUTE_TYPE) -> Pair {
    (type_, vec![CK_FALSE])
}

fn ulong(type_: CK_ATTRIBUTE_TYPE, n: CK_ULONG) -> Pair {
    (type_, n.to_ne_bytes().into())
}

fn label(text: &str) -> Pair {
    (CKA_LABEL, text.into())
}

/// A request as pkcs11-provider 1.3 makes it: with every use of the key that there is.
#[derive(Clone)]
struct Asked {
    mechanism: CK_MECHANISM_TYPE,
    public: Vec<Pair>,
    private: Vec<Pair>,
}

const P256: [u8; 10] = [6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];

impl Asked {
    fn rsa(bits: CK_ULONG) -> Asked {
        let bits = [ulong(CKA_MODULUS_BITS, bits), (CKA_PUBLIC_EXPONENT, vec![1, 0, 1])];
        Asked {
            mechanism: CKM_RSA_PKCS_KEY_PAIR_GEN,
            public: [&[yes(CKA_ENCRYPT), yes(CKA_VERIFY), yes(CKA_WRAP), yes(CKA_TOKEN)], &bits[..]].concat(),
            private: [CKA_TOKEN, CKA_PRIVATE, CKA_SENSITIVE, CKA_DECRYPT, CKA_SIGN, CKA_UNWRAP].map(yes).into(),
        }
        .named()
    }

    fn ec(curve: &[u8]) -> Asked {
        let uses = [CKA_TOKEN, CKA_DERIVE, CKA_VERIFY, CKA_WRAP].map(yes);
        Asked {
            mechanism: CKM_EC_KEY_PAIR_GEN,
            public: [&uses[..], &[(CKA_EC_PARAMS, curve.into())]].concat(),
            private: [CKA_TOKEN, CKA_DERIVE, CKA_PRIVATE, CKA_SENSITIVE, CKA_SIGN, CKA_UNWRAP].map(yes).into(),
        }
        .named()
    }

    fn ml_dsa(set: CK_ULONG) -> Asked {
        Asked {
            mechanism: CKM_ML_DSA_KEY_PAIR_GEN,
            public: vec![yes(CKA_TOKEN), yes(CKA_VERIFY), ulong(CKA_PARAMETER_SET, set)],
            private: [CKA_TOKEN, CKA_PRIVATE, CKA_SENSITIVE, CKA_SIGN].map(yes).into(),
        }
        .named()
    }

    fn named(mut self) -> Asked {
        for template in [&mut self.public, &mut self.private] {
            template.extend([(CKA_ID, vec![1, 255]), label("new")]);
        }
        self
    }

    /// With an attribute of both halves, of the public or of the private one as it says, in place of the former if there is one.
    fn with(mut self, halves: &str, pair: Pair) -> Asked {
        for (half, template) in [("public", &mut self.public), ("private", &mut self.private)] {
            if halves == half || halves == "both" {
                template.retain(|p| p.0 != pair.0);
                template.push(pair.clone());
            }
        }
        self
    }

    fn without(mut self, type_: CK_ATTRIBUTE_TYPE) -> Asked {
        [&mut self.public, &mut self.private].into_iter().for_each(|template| template.retain(|p| p.0 != type_));
        self
    }

    fn wanted(&self) -> Rv<(Algorithm, KeyName)> {
        self.to(wanted)
    }

    fn to<T>(&self, f: impl FnOnce(CK_MECHANISM_TYPE, &Template, &Template) -> T) -> T {
        f(self.mechanism, &borrowed(&self.public), &borrowed(&self.private))
    }
}

fn borrowed(template: &[Pair]) -> Vec<(CK_ATTRIBUTE_TYPE, &[u8])> {
    template.iter().map(|(type_, value)| (*type_, value.as_slice())).collect()
}

#[test]
fn what_openssl_asks_for_is_understood() {
    let name = KeyName { label: "new".into(), id: vec![1, 255] };
    for (algorithm, kind) in Algorithm::ALL {
        let asked = match kind {
            Algorithm::Rsa { bits } => Asked::rsa(bits),
            Algorithm::Ec { curve } => Asked::ec(curve),
            Algorithm::MlDsa { set } => Asked::ml_dsa(set),
        };
        assert_eq!(asked.wanted(), Ok((kind, name.clone())), "{algorithm}");
        assert_eq!(Algorithm::by_name(algorithm), Some(kind));
        assert_eq!(kind.name(), algorithm);
    }
}

#[test]
fn what_is_left_out_is_as_every_key_is() {
    let of_the_template =
        [CKA_TOKEN, CKA_PRIVATE, CKA_SENSITIVE, CKA_SIGN, CKA_VERIFY, CKA_DERIVE, CKA_WRAP, CKA_UNWRAP];
    let asked = of_the_template.into_iter().fold(Asked::ec(&P256), Asked::without).without(CKA_ID);
    assert_eq!(asked.wanted(), Ok((Algorithm::Ec { curve: &P256 }, KeyName { label: "new".into(), id: vec![] })));
    let asked = Asked::rsa(2048).without(CKA_PUBLIC_EXPONENT);
    assert_eq!(asked.wanted().unwrap().0, Algorithm::Rsa { bits: 2048 });
    let asked = Asked::rsa(2048).with("public", (CKA_PUBLIC_EXPONENT, vec![0, 0, 1, 0, 1]));
    assert!(asked.wanted().is_ok(), "65537 with zeros before it");
    let explicit = [("public", CKO_PUBLIC_KEY), ("private", CKO_PRIVATE_KEY)]
        .into_iter()
        .fold(Asked::ec(&P256).with("both", ulong(CKA_KEY_TYPE, CKK_EC)), |a, (h, c)| a.with(h, ulong(CKA_CLASS, c)))
        .with("private", no(CKA_EXTRACTABLE))
        .with("public", no(CKA_PRIVATE));
    assert!(explicit.wanted().is_ok());
}

#[test]
fn what_a_key_cannot_be_is_refused_and_not_left_out() {
    let (ec, rsa, pq) = (|| Asked::ec(&P256), || Asked::rsa(2048), || Asked::ml_dsa(CKP_ML_DSA_65));
    let inconsistent = [
        ("a session's key", ec().with("private", no(CKA_TOKEN))),
        ("its public half", ec().with("public", no(CKA_TOKEN))),
        ("one that can be read", ec().with("private", no(CKA_SENSITIVE))),
        ("one that can leave", ec().with("private", yes(CKA_EXTRACTABLE))),
        ("one that anybody sees", ec().with("private", no(CKA_PRIVATE))),
        ("a public key that nobody sees", ec().with("public", yes(CKA_PRIVATE))),
        ("one that cannot sign", ec().with("private", no(CKA_SIGN))),
        ("nor verify", ec().with("public", no(CKA_VERIFY))),
        ("one that wants a PIN each time", ec().with("private", yes(CKA_ALWAYS_AUTHENTICATE))),
        ("of another type", ec().with("private", ulong(CKA_KEY_TYPE, CKK_RSA))),
        ("of another class", ec().with("private", ulong(CKA_CLASS, CKO_PUBLIC_KEY))),
        ("halves with two labels", ec().with("public", label("other"))),
        ("halves with two IDs", ec().with("private", (CKA_ID, vec![2]))),
        ("two parameter sets", pq().with("private", ulong(CKA_PARAMETER_SET, CKP_ML_DSA_87))),
    ];
    for (what, asked) in inconsistent {
        assert_eq!(asked.wanted(), Err(CKR_TEMPLATE_INCONSISTENT), "{what}");
    }
    let incomplete = [
        ("no label", ec().without(CKA_LABEL)),
        ("an empty one", ec().with("both", label(""))),
        ("no curve", ec().without(CKA_EC_PARAMS)),
        ("no size", rsa().without(CKA_MODULUS_BITS)),
        ("no parameter set", pq().without(CKA_PARAMETER_SET)),
    ];
    for (what, asked) in incomplete {
        assert_eq!(asked.wanted(), Err(CKR_TEMPLATE_INCOMPLETE), "{what}");
    }
    let values = [
        ("a size that is not served", Asked::rsa(1024)),
        ("an exponent of 3", rsa().with("public", (CKA_PUBLIC_EXPONENT, vec![3]))),
        ("no exponent", rsa().with("public", (CKA_PUBLIC_EXPONENT, vec![]))),
        ("no such set", Asked::ml_dsa(4)),
        ("a boolean of 2", ec().with("private", (CKA_SENSITIVE, vec![2]))),
        ("a boolean of eight bytes", ec().with("private", ulong(CKA_DERIVE, 1))),
        ("a number of one byte", rsa().with("public", yes(CKA_MODULUS_BITS))),
        ("a label that is no UTF-8", ec().with("both", (CKA_LABEL, vec![0xff]))),
        ("a label that no file can name", ec().with("both", label("a\n[key b]"))),
        ("a label that is too long", ec().with("both", label(&"a".repeat(256)))),
        ("an ID that is too long", ec().with("both", (CKA_ID, vec![1; 256]))),
    ];
    for (what, asked) in values {
        assert_eq!(asked.wanted(), Err(CKR_ATTRIBUTE_VALUE_INVALID), "{what}");
    }
    let types = [
        ("a restriction that would be lost", rsa().with("private", (CKA_ALLOWED_MECHANISMS, vec![0; 8]))),
        ("a value of its own", ec().with("private", (CKA_VALUE, vec![1; 32]))),
        ("what another type has", ec().with("public", ulong(CKA_MODULUS_BITS, 2048))),
        ("what the other half has", ec().with("public", yes(CKA_SENSITIVE))),
    ];
    for (what, asked) in types {
        assert_eq!(asked.wanted(), Err(CKR_ATTRIBUTE_TYPE_INVALID), "{what}");
    }
    assert_eq!(Asked::ec(&[6, 5, 0x2b, 0x81, 4, 0, 0x0a]).wanted(), Err(CKR_CURVE_NOT_SUPPORTED), "secp256k1");
    let another = |mechanism| Asked { mechanism, ..ec() };
    assert_eq!(another(CKM_EC_EDWARDS_KEY_PAIR_GEN).wanted(), Err(CKR_MECHANISM_INVALID));
    assert_eq!(another(CKM_ECDSA).wanted(), Err(CKR_MECHANISM_INVALID));
}

#[test]
fn a_label_is_one_that_a_file_can_have() {
    for label in ["web", "acme web 2026", "a#b", "a]", "[key a]", "é", "="] {
        let text =
            format!("[member a]\nmodule = /a\ntoken = t\npin-file = /p\n[key {label}]\npublic-key = /keys/rsa.pem");
        assert!(can_name(label), "{label:?}");
        assert_eq!(Config::parse(&text, &files).unwrap().keys[0].label, label);
    }
    for label in ["", "#", " web", "web ", "a # b", "a\nb", "a]\nid = 01", "a]\n[key b", "web\r\n"] {
        assert!(!can_name(label), "{label:?}");
    }
}

#[test]
fn templates_of_anything() {
    const TYPES: [CK_ATTRIBUTE_TYPE; 20] = [
        CKA_CLASS,
        CKA_KEY_TYPE,
        CKA_TOKEN,
        CKA_PRIVATE,
        CKA_SENSITIVE,
        CKA_EXTRACTABLE,
        CKA_SIGN,
        CKA_VERIFY,
        CKA_DERIVE,
        CKA_WRAP,
        CKA_UNWRAP,
        CKA_ENCRYPT,
        CKA_DECRYPT,
        CKA_LABEL,
        CKA_ID,
        CKA_MODULUS_BITS,
        CKA_EC_PARAMS,
        CKA_PARAMETER_SET,
        CKA_ALLOWED_MECHANISMS,
        CK_ULONG::MAX,
    ];
    let mut random = Random(5);
    let (mut understood, mut refused) = (0, 0);
    for round in 0..rounds() {
        let mut asked = [Asked::rsa(2048), Asked::ec(&P256), Asked::ml_dsa(CKP_ML_DSA_44)][round % 3].clone();
        for _ in 0..random.below(3) {
            let type_ = TYPES[random.below(TYPES.len())];
            let value = match random.below(5) {
                0 => vec![CK_FALSE],
                1 | 2 => vec![CK_TRUE],
                3 => (random.below(6) as CK_ULONG).to_ne_bytes().into(),
                _ => random.damage(b"new"),
            };
            asked = asked.with(["public", "private", "both"][random.below(3)], (type_, value));
        }
        let says = |template: &[Pair], pair: Pair| template.contains(&pair);
        match asked.wanted() {
            Ok((algorithm, name)) => {
                assert!(!algorithm.name().is_empty() && can_name(&name.label) && name.id.len() <= 255);
                let refusable = [no(CKA_TOKEN), no(CKA_PRIVATE), no(CKA_SENSITIVE), no(CKA_SIGN), yes(CKA_EXTRACTABLE)];
                assert!(refusable.into_iter().all(|pair| !says(&asked.private, pair)), "{:?}", asked.private);
                assert!(!says(&asked.public, no(CKA_TOKEN)), "{:?}", asked.public);
                understood += 1;
            }
            Err(code) => {
                let codes = [CKR_TEMPLATE_INCONSISTENT, CKR_TEMPLATE_INCOMPLETE, CKR_CURVE_NOT_SUPPORTED];
                let of_one = [CKR_ATTRIBUTE_VALUE_INVALID, CKR_ATTRIBUTE_TYPE_INVALID];
                assert!(codes.contains(&code) || of_one.contains(&code), "{code:#x}");
                refused += 1;
            }
        }
    }
    assert!(understood > rounds() / 10 && refused > rounds() / 10, "{understood} understood and {refused} refused");
}

#[test]
fn where_keys_may_be_made_their_mechanisms_are_there_before_any_key() {
    let list = mechanisms(&Keys::new(&[], None), true);
    for (type_, ..) in MECHANISMS {
        let info = list.iter().find(|m| m.0 == type_).unwrap().1;
        assert_eq!(info.flags, CKF_GENERATE_KEY_PAIR, "{type_:#x}");
    }
    for type_ in [CKM_RSA_PKCS, CKM_RSA_PKCS_PSS, CKM_RSA_X_509, CKM_ECDSA, CKM_ML_DSA] {
        assert_eq!(list.iter().find(|m| m.0 == type_).unwrap().1.flags, CKF_SIGN, "{type_:#x}");
    }
    let sizes = |type_| list.iter().find(|m| m.0 == type_).map(|m| (m.1.ulMinKeySize, m.1.ulMaxKeySize)).unwrap();
    assert_eq!((sizes(CKM_RSA_PKCS), sizes(CKM_ECDSA)), ((2048, 4096), (256, 521)));
    let all = mechanisms(&Keys::new(&config().keys, None), true);
    assert_eq!(all.len(), list.len(), "each of them once");
}

/// A token that makes keys as it is told. All have one public key.
#[derive(Default)]
struct Device {
    keys: Mutex<Vec<String>>,
    /// How often it was asked to make one.
    asked: AtomicUsize,
    /// Each name stands for two keys.
    twice: AtomicBool,
    /// It refuses, with this code.
    refuses: Mutex<Option<CK_RV>>,
    /// It makes the key, and its answer is this code.
    loses: Mutex<Option<CK_RV>>,
    /// It makes keys that can leave.
    careless: AtomicBool,
    /// It takes its time, until this is over.
    slow: AtomicBool,
    gone: AtomicBool,
    /// It goes as soon as it has said whether it has a key.
    goes: AtomicBool,
    /// Checks wait until this is over.
    stuck: AtomicBool,
    /// Sessions of an earlier generation are lost.
    generation: AtomicU64,
}

struct DeviceToken(Arc<Device>);

struct DeviceSession {
    device: Arc<Device>,
    generation: u64,
}

impl Token for DeviceToken {
    fn open(&self) -> Result<Box<dyn Session>> {
        let mut session = DeviceSession { device: self.0.clone(), generation: self.0.generation.load(SeqCst) };
        session.check()?;
        Ok(Box::new(session))
    }

    fn failed(&self) {}
}

impl Device {
    fn has(&self, label: &str) -> bool {
        lock(&self.keys).iter().any(|key| key == label)
    }
}

impl Session for DeviceSession {
    fn find(&mut self, key: &Key) -> Result<Option<CK_OBJECT_HANDLE>> {
        self.check()?;
        Ok(self.device.has(&key.label).then_some(1))
    }

    fn sign(&mut self, _: CK_OBJECT_HANDLE, request: &Request, len: usize) -> Result<Vec<u8>> {
        self.check()?;
        match self.device.has(&request.key.label) {
            true => Ok(vec![7; len]),
            false => Err(Failure::new(CKR_KEY_HANDLE_INVALID, "sign")),
        }
    }

    fn check(&mut self) -> Result<()> {
        while self.device.stuck.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        if self.device.gone.load(SeqCst) {
            return Err(Failure::new(CKR_DEVICE_REMOVED, "stand-in"));
        }
        match self.generation == self.device.generation.load(SeqCst) {
            true => Ok(()),
            false => Err(Failure::new(CKR_SESSION_HANDLE_INVALID, "stand-in")),
        }
    }

    fn has_keys(&mut self) -> Result<bool> {
        self.check()?;
        Ok(!lock(&self.device.keys).is_empty())
    }

    fn public(&mut self, key: &KeyName) -> Result<Option<Found>> {
        self.check()?;
        self.device.gone.fetch_or(self.device.goes.load(SeqCst), SeqCst);
        if self.device.twice.load(SeqCst) {
            return Err(Failure::ambiguous(key));
        }
        let found = Found { public: public("/keys/p256.pem").der, sensitive: true, extractable: false, local: true };
        Ok(self.device.has(&key.label).then_some(found))
    }

    fn generate(&mut self, algorithm: Algorithm, key: &KeyName) -> Result<Found> {
        assert_eq!(algorithm.name(), "ECDSA-P256");
        self.device.asked.fetch_add(1, SeqCst);
        while self.device.slow.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        if let Some(code) = *lock(&self.device.refuses) {
            return Err(Failure::new(code, "generate"));
        }
        lock(&self.device.keys).push(key.label.clone());
        if let Some(code) = *lock(&self.device.loses) {
            return Err(Failure::new(code, "generate"));
        }
        let found = self.public(key)?.unwrap();
        Ok(Found { extractable: self.device.careless.load(SeqCst), ..found })
    }
}

fn named(label: &str) -> KeyName {
    KeyName { label: label.into(), id: vec![] }
}

/// A slot over two of them.
struct Two {
    a: Arc<Device>,
    b: Arc<Device>,
    slot: Slot,
    session: CK_SESSION_HANDLE,
}

impl Two {
    fn new() -> Two {
        let (a, b) = (Arc::new(Device::default()), Arc::new(Device::default()));
        let text =
            CONFIG.replacen("[slot]", "[slot]\ngenerate = true", 1).replace("timeout = 2000ms", "timeout = 60000ms");
        let config = Arc::new(Config::parse(&text, &files).unwrap());
        let token = |m: &crate::config::Member| -> Box<dyn Token> {
            Box::new(DeviceToken(if m.name == "a" { a.clone() } else { b.clone() }))
        };
        let pool = Pool::start(&config, token, Duration::from_secs(3600), |_| {});
        let slot = Slot::new(&config, Keys::new(&config.keys, None), pool);
        let session = slot.open_session(CKF_SERIAL_SESSION | CKF_RW_SESSION).unwrap();
        Two { a, b, slot, session }
    }

    fn generate(&self, name: &str) -> Rv<(CK_OBJECT_HANDLE, CK_OBJECT_HANDLE)> {
        let asked = Asked::ec(&P256).with("both", label(name));
        asked.to(|mechanism, public, private| self.slot.generate(self.session, mechanism, public, private))
    }

    fn asked(&self) -> (usize, usize) {
        (self.a.asked.load(SeqCst), self.b.asked.load(SeqCst))
    }

    /// What is said of a key that is not made.
    fn why_not(&self) -> String {
        let algorithm = Algorithm::by_name("ECDSA-P256").unwrap();
        self.slot.pool.generate(algorithm, &named("new")).unwrap_err().detail
    }

    fn sign(&self, name: &str) -> Result<Vec<u8>> {
        let key = Arc::new(Key { label: name.into(), id: vec![], public: public("/keys/p256.pem") });
        self.slot.pool.sign(Request { key, mechanism: Mechanism::Ecdsa, data: vec![1; 32] })
    }

    /// What the first member said last.
    fn last_error(&self) -> String {
        self.slot.pool.observer()()[0].last_error.clone()
    }

    fn shown(&self, name: &str) -> usize {
        self.slot.keys.all().iter().filter(|(_, key)| key.label == name).count()
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        self.a.slow.store(false, SeqCst);
        assert!(self.slot.pool.stop(Duration::from_secs(60)), "all workers end");
    }
}

#[test]
fn the_first_member_makes_a_key_that_signs_at_once() {
    let two = Two::new();
    let (public, private) = two.generate("new").unwrap();
    assert_eq!(two.asked(), (1, 0), "the other has it when somebody copies it");
    for (handle, is_private) in [(public, false), (private, true)] {
        let (object, key) = object(&two.slot.keys, handle).unwrap();
        assert_eq!((object.private, key.label.as_str(), key.id.as_slice()), (is_private, "new", &[1, 255][..]));
        assert_eq!(attribute(&key, is_private, CKA_ID), Attribute::Value(vec![1, 255]));
    }
    let key = object(&two.slot.keys, private).unwrap().1;
    assert_eq!(attribute(&key, true, CKA_EXTRACTABLE), Attribute::Value(vec![CK_FALSE]));
    assert_eq!(attribute(&key, true, CKA_DERIVE), Attribute::Value(vec![CK_FALSE]), "it is for signatures alone");
    two.slot.find_init(two.session, &[(CKA_LABEL, b"new")]).unwrap();
    let mut found = [0; 4];
    assert_eq!(two.slot.find(two.session, &mut found), Ok(2));
    assert_eq!((found[0], found[1]), (private, public));
    two.slot.find_final(two.session).unwrap();
    two.slot.sign_init(two.session, Mechanism::Ecdsa, private).unwrap();
    assert_eq!(two.slot.sign(two.session, &[1; 32], 64), Ok(vec![7; 64]));
}

#[test]
fn a_session_that_only_reads_makes_none() {
    let mut two = Two::new();
    let writing = two.session;
    two.session = two.slot.open_session(CKF_SERIAL_SESSION).unwrap();
    assert_eq!((two.generate("new"), two.asked()), (Err(CKR_SESSION_READ_ONLY), (0, 0)));
    two.session = writing;
    assert!(two.generate("new").is_ok());
}

#[test]
fn a_label_that_any_member_or_the_file_has_is_refused() {
    let two = Two::new();
    lock(&two.b.keys).push("new".into());
    assert_eq!(two.generate("new"), Err(CKR_ATTRIBUTE_VALUE_INVALID), "b has it");
    assert_eq!(two.generate("web"), Err(CKR_ATTRIBUTE_VALUE_INVALID), "the file has it");
    lock(&two.b.keys).clear();
    two.b.twice.store(true, SeqCst);
    assert_eq!(two.generate("new"), Err(CKR_ATTRIBUTE_VALUE_INVALID), "b has two of it");
    assert_eq!((two.asked(), two.shown("new")), ((0, 0), 0));
    two.b.twice.store(false, SeqCst);
    assert!(two.generate("new").is_ok());
    assert_eq!(two.generate("new"), Err(CKR_ATTRIBUTE_VALUE_INVALID), "it is made already");
    assert_eq!(two.asked(), (1, 0));
}

/// Somebody has put another program's key into it since it was read.
#[test]
fn a_label_that_the_file_has_by_now_is_refused() {
    let mut two = Two::new();
    let dir = std::env::temp_dir().join(format!("qtls-labels-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let text = &CONFIG[..CONFIG.find("[key").unwrap()].replacen("[slot]", "[slot]\ngenerate = true", 1);
    let (path, new) = (dir.join("conf"), dir.join("new"));
    fs::write(&path, text).unwrap();
    let (config, file) = keys::read(&path, |_| {}).unwrap();
    two.slot.keys = Keys::new(&config.keys, Some(file));
    let public = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/p256.pem");
    fs::write(&new, format!("{text}[key new]\npublic-key = {public}\n")).unwrap();
    fs::rename(&new, &path).unwrap();
    assert_eq!(two.generate("new"), Err(CKR_ATTRIBUTE_VALUE_INVALID));
    assert_eq!((two.asked(), two.shown("new")), ((0, 0), 1), "and it is shown");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn while_a_member_gives_no_answer_no_key_is_made() {
    let two = Two::new();
    two.b.gone.store(true, SeqCst);
    two.b.generation.fetch_add(1, SeqCst); // sessions that were open already
    for _ in 0..3 {
        assert_eq!(two.generate("new"), Err(CKR_DEVICE_ERROR));
    }
    assert_eq!((two.asked(), two.shown("new")), ((0, 0), 0));
    two.b.gone.store(false, SeqCst);
    until("b is back, and a makes it", || two.generate("new").is_ok());
    assert_eq!(two.asked(), (1, 0));
}

#[test]
fn what_a_member_refuses_no_other_is_asked_for() {
    for code in [CKR_ACTION_PROHIBITED, CKR_MECHANISM_INVALID, CKR_DEVICE_MEMORY, CKR_TOKEN_WRITE_PROTECTED] {
        let two = Two::new();
        *lock(&two.a.refuses) = Some(code);
        assert_eq!(two.generate("new"), Err(code));
        assert_eq!((two.asked(), two.shown("new")), ((1, 0), 0));
        *lock(&two.a.refuses) = None;
        assert!(two.generate("new").is_ok(), "the member is up: {code:#x}");
    }
}

#[test]
fn an_answer_that_is_lost_makes_no_second_key() {
    let lost =
        [CKR_SESSION_CLOSED, CKR_SESSION_HANDLE_INVALID, CKR_OBJECT_HANDLE_INVALID, CKR_DEVICE_ERROR, 0x8000_0001];
    for code in lost {
        let two = Two::new();
        *lock(&two.a.loses) = Some(code);
        assert_eq!(two.generate("new"), Err(CKR_DEVICE_ERROR), "{code:#x}");
        assert_eq!((two.asked(), two.shown("new")), ((1, 0), 0), "{code:#x}");
        *lock(&two.a.loses) = None;
        // Who asks again is told that there is one, as soon as the member answers.
        until("it is found", || two.generate("new") == Err(CKR_ATTRIBUTE_VALUE_INVALID));
        assert_eq!((two.asked(), lock(&two.a.keys).len()), ((1, 0), 1), "{code:#x}");
    }
}

#[test]
fn only_what_the_token_was_asked_for_may_have_been_made() {
    const MAY: &str = "it may have made the key all the same";
    let two = Two::new();
    *lock(&two.a.loses) = Some(CKR_DEVICE_ERROR);
    assert!(two.why_not().contains(MAY), "the control: it has made it");
    for code in [CKR_ACTION_PROHIBITED, CKR_MECHANISM_INVALID, CKR_MECHANISM_PARAM_INVALID, CKR_SESSION_COUNT] {
        let two = Two::new();
        *lock(&two.a.refuses) = Some(code);
        assert!(!two.why_not().contains(MAY), "{code:#x}: it refuses before it makes anything");
    }
    let two = Two::new();
    two.a.goes.store(true, SeqCst);
    assert!(!two.why_not().contains(MAY), "it is gone when it is to be asked");
    assert_eq!(two.asked(), (0, 0));
}

/// Nor afterwards: whoever gave up was told that there is none.
#[test]
fn a_key_is_not_made_if_its_time_was_over_before_the_token_was_asked() {
    let two = Two::new();
    let member = &two.slot.pool.members()[0];
    until("it is up", || member.state() == State::Up);
    two.a.stuck.store(true, SeqCst);
    let algorithm = Algorithm::by_name("ECDSA-P256").unwrap();
    let made = member.generate(algorithm, &named("new"), Duration::from_millis(100));
    assert!(made.is_err_and(|e| !e.asked));
    two.a.stuck.store(false, SeqCst);
    let device = two.a.clone();
    drop(two); // its workers have ended
    assert_eq!(device.asked.load(SeqCst), 0);
}

#[test]
fn a_session_that_was_lost_before_costs_nothing() {
    let two = Two::new();
    two.generate("first").unwrap();
    two.a.generation.fetch_add(1, SeqCst);
    two.b.generation.fetch_add(1, SeqCst);
    two.generate("second").unwrap();
    assert_eq!(*lock(&two.a.keys), ["first", "second"]);
    assert_eq!(two.asked(), (2, 0));
}

#[test]
fn a_key_that_could_leave_is_not_shown() {
    let two = Two::new();
    two.a.careless.store(true, SeqCst);
    assert_eq!(two.generate("new"), Err(CKR_FUNCTION_FAILED));
    assert_eq!(two.shown("new"), 0);
}

#[test]
fn two_that_ask_for_one_label_at_a_time_get_one_key() {
    let two = Two::new();
    two.a.slow.store(true, SeqCst);
    thread::scope(|scope| {
        let first = scope.spawn(|| two.generate("new"));
        until("it is being made", || two.asked() == (1, 0));
        assert_eq!(two.generate("new"), Err(CKR_ATTRIBUTE_VALUE_INVALID));
        two.a.slow.store(false, SeqCst);
        assert!(first.join().unwrap().is_ok());
    });
    assert_eq!((two.asked(), two.shown("new")), ((1, 0), 1));
}

#[test]
fn a_key_that_was_made_stays_until_the_file_has_its_label() {
    let [web, mail, pq]: [Arc<Key>; 3] = config().keys.clone().try_into().unwrap();
    let keys = Keys::new(&[web.clone()], None);
    let made = Arc::new(Key { label: "new".into(), id: vec![], public: mail.public.clone() });
    let number = keys.add(made.clone());
    keys.set(&[pq.clone()]);
    assert_eq!(keys.get(number), Some(made.clone()), "the file does not know of it yet");
    let labels = |keys: &Keys| keys.all().iter().map(|(_, key)| key.label.clone()).collect::<Vec<_>>();
    assert_eq!(labels(&keys), ["new", "pq"]);
    keys.set(&[pq.clone(), made.clone()]);
    assert_eq!(keys.get(number), Some(made.clone()), "it keeps its handle");
    assert_eq!(labels(&keys), ["new", "pq"]);
    let named = Arc::new(Key { id: vec![9], ..(*made).clone() });
    keys.set(&[pq, named.clone()]);
    assert_eq!(labels(&keys), ["pq", "new"]);
    assert_eq!(keys.all()[1].1, named, "as the file has it");
}

/// In-pod members, or who destroys keys with the HSM's own tools: a straggler asks for one that is gone.
#[test]
fn a_key_that_was_destroyed_elsewhere_is_missed_alone() {
    let two = Two::new();
    let keys: Vec<String> = (0..10).map(|n| format!("key-{n}")).collect();
    for device in [&two.a, &two.b] {
        lock(&device.keys).extend(keys.clone());
    }
    lock(&two.a.keys).push("another program's".into());
    until("the first is asked before the second", || two.slot.pool.observer()()[0].state == State::Up);
    for name in keys.iter().cycle().take(20) {
        two.sign(name).unwrap();
    }
    lock(&two.a.keys).retain(|key| !keys[..9].contains(key));
    two.sign("key-0").expect("b makes it");
    assert!(two.last_error().contains("CKR_KEY_HANDLE_INVALID"), "{}", two.last_error());
    lock(&two.a.keys).retain(|key| key == "another program's");
    two.sign("key-1").expect("b makes it");
    assert!(two.last_error().contains("CKR_KEY_HANDLE_INVALID"), "{}", two.last_error());
    // The control: with the last of them the token is taken for gone.
    lock(&two.a.keys).clear();
    two.sign("key-9").expect("b makes it");
    assert!(two.last_error().contains("CKR_TOKEN_NOT_PRESENT"), "{}", two.last_error());
}
