//! Real tokens in software: softhsm2 of Debian's package of that name, and kryoptic as `images kryoptic` builds it. They are
//! made, and given keys, by their own PKCS#11 functions.

use super::{call, folder, functions_of, run};
use cryptoki_sys::*;
use std::{
    env, fs,
    path::{Path, PathBuf},
    ptr::null_mut,
    sync::{Mutex, MutexGuard, PoisonError},
};

const SOFTHSM: &str = "/usr/lib/softhsm/libsofthsm2.so";

/// Which software a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Software {
    Softhsm,
    Kryoptic,
}

impl Software {
    pub fn module(self) -> PathBuf {
        let path = match self {
            Software::Softhsm => SOFTHSM.into(),
            Software::Kryoptic => match env::var_os("QTLS_KRYOPTIC") {
                Some(path) => PathBuf::from(path),
                None => panic!("set QTLS_KRYOPTIC to what `go -C hack/images run . kryoptic` prints"),
            },
        };
        assert!(path.exists(), "{} is missing; install softhsm2, or build kryoptic", path.display());
        path
    }

    /// What a token of it can make: labels, and what to ask C_GenerateKeyPair for.
    pub fn keys(self) -> &'static [(&'static str, Kind)] {
        const ALL: [(&str, Kind); 6] = [
            ("rsa", Kind::Rsa(2048)),
            ("p256", Kind::Ec(&[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7])),
            ("p384", Kind::Ec(&[6, 5, 0x2b, 0x81, 4, 0, 0x22])),
            ("mldsa44", Kind::MlDsa(CKP_ML_DSA_44)),
            ("mldsa65", Kind::MlDsa(CKP_ML_DSA_65)),
            ("mldsa87", Kind::MlDsa(CKP_ML_DSA_87)),
        ];
        match self {
            Software::Softhsm => &ALL[..3],
            Software::Kryoptic => &ALL,
        }
    }
}

#[derive(Clone, Copy)]
pub enum Kind {
    Rsa(CK_ULONG),
    /// The curve's object identifier in DER.
    Ec(&'static [u8]),
    MlDsa(CK_ULONG),
}

/// A folder with tokens of one software. Where the tokens are is in the environment: one test at a time.
pub struct Tokens {
    pub dir: PathBuf,
    pub software: Software,
    labels: Vec<String>,
    _turn: MutexGuard<'static, ()>,
}

fn attribute<T: ?Sized>(type_: CK_ATTRIBUTE_TYPE, value: &T) -> CK_ATTRIBUTE {
    let len = size_of_val(value) as CK_ULONG;
    CK_ATTRIBUTE { type_, pValue: (&raw const *value).cast_mut().cast(), ulValueLen: len }
}

impl Tokens {
    pub fn new(software: Software) -> Tokens {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let tokens = Tokens { dir: folder("tokens"), software, labels: vec![], _turn: turn };
        fs::create_dir(tokens.dir.join("tokens")).unwrap();
        fs::write(tokens.dir.join("pin"), "1234\n").unwrap();
        let at = tokens.dir.display();
        let (variable, text) = match software {
            Software::Softhsm => ("SOFTHSM2_CONF", format!("directories.tokendir = {at}/tokens\nlog.level = ERROR\n")),
            Software::Kryoptic => {
                let slot =
                    |n| format!("[[slots]]\nslot = {n}\ndbtype = \"sqlite\"\ndbargs = \"{at}/tokens/{n}.sql\"\n");
                ("KRYOPTIC_CONF", slot(1) + &slot(2))
            }
        };
        fs::write(tokens.dir.join("conf"), text).unwrap();
        env::set_var(variable, tokens.dir.join("conf"));
        fs::copy(software.module(), tokens.module("setup")).unwrap();
        tokens
    }

    /// A copy of the module for a member: its own, so that it is initialised apart from the others'.
    pub fn module(&self, member: &str) -> PathBuf {
        self.dir.join(member).with_extension("so")
    }

    pub fn public_key(&self, key: &str) -> PathBuf {
        self.dir.join(key).with_extension("pub")
    }

    /// Makes a token with keys of its own, and writes their public keys to files.
    pub fn token(&mut self, label: &str, keys: &[(&str, Kind)]) {
        let table = functions_of(&self.module("setup"));
        assert_eq!(call!(table, C_Initialize(null_mut())), CKR_OK);
        let mut padded = padded(label);
        let (mut so_pin, mut pin) = (*b"87654321", *b"1234");
        let free = slot(table, |info| info.flags & CKF_TOKEN_INITIALIZED == 0);
        assert_eq!(call!(table, C_InitToken(free, so_pin.as_mut_ptr(), 8, padded.as_mut_ptr())), CKR_OK);
        let slot = slot(table, |info| info.label == padded);
        let mut session = 0;
        let flags = CKF_SERIAL_SESSION | CKF_RW_SESSION;
        assert_eq!(call!(table, C_OpenSession(slot, flags, null_mut(), None, &mut session)), CKR_OK);
        assert_eq!(call!(table, C_Login(session, CKU_SO, so_pin.as_mut_ptr(), 8)), CKR_OK);
        assert_eq!(call!(table, C_InitPIN(session, pin.as_mut_ptr(), 4)), CKR_OK);
        assert_eq!(call!(table, C_Logout(session)), CKR_OK);
        assert_eq!(call!(table, C_Login(session, CKU_USER, pin.as_mut_ptr(), 4)), CKR_OK);
        for (label, kind) in keys {
            let der = generate(table, session, label, *kind).unwrap_or_else(|code| panic!("{label}: {code:#x}"));
            self.publish(label, &der);
        }
        assert_eq!(call!(table, C_Finalize(null_mut())), CKR_OK);
        self.labels.push(label.into());
    }

    /// Writes a public key to its file.
    pub fn publish(&self, label: &str, der: &[u8]) {
        fs::write(self.dir.join("der"), der).unwrap();
        let (der, public) = (self.dir.join("der"), self.public_key(label));
        let (der, public) = (der.to_str().unwrap(), public.to_str().unwrap());
        // OpenSSL reads it, and so the public key is one.
        run("openssl", &["pkey", "-pubin", "-inform", "DER", "-in", der, "-pubout", "-out", public]);
    }

    /// A session of a token itself, until C_Finalize.
    fn session(&self, table: &CK_FUNCTION_LIST, token: &str) -> CK_SESSION_HANDLE {
        assert_eq!(call!(table, C_Initialize(null_mut())), CKR_OK);
        let name = padded(token);
        let slot = slot(table, |info| info.label == name);
        let (mut session, mut pin) = (0, *b"1234");
        let flags = CKF_SERIAL_SESSION | CKF_RW_SESSION;
        assert_eq!(call!(table, C_OpenSession(slot, flags, null_mut(), None, &mut session)), CKR_OK);
        assert_eq!(call!(table, C_Login(session, CKU_USER, pin.as_mut_ptr(), 4)), CKR_OK);
        session
    }

    /// Has a token make one more key, without the module under test.
    pub fn make(&self, token: &str, label: &str, kind: Kind) {
        let table = functions_of(&self.module("setup"));
        let session = self.session(table, token);
        generate(table, session, label, kind).unwrap_or_else(|code| panic!("{label}: {code:#x}"));
        assert_eq!(call!(table, C_Finalize(null_mut())), CKR_OK);
    }

    /// What a token itself says of its only private key with a label: whether each of these attributes is true.
    pub fn private_key(&self, token: &str, label: &str, types: &[CK_ATTRIBUTE_TYPE]) -> Vec<bool> {
        let table = functions_of(&self.module("setup"));
        let session = self.session(table, token);
        let class = CKO_PRIVATE_KEY;
        let mut template = [attribute(CKA_CLASS, &class), attribute(CKA_LABEL, label.as_bytes())];
        let (mut found, mut count) = ([0; 2], 0);
        assert_eq!(call!(table, C_FindObjectsInit(session, template.as_mut_ptr(), 2)), CKR_OK);
        assert_eq!(call!(table, C_FindObjects(session, found.as_mut_ptr(), 2, &mut count)), CKR_OK);
        assert_eq!(call!(table, C_FindObjectsFinal(session)), CKR_OK);
        assert_eq!(count, 1, "private keys with the label {label}");
        let is = |type_| {
            let mut value = 9u8;
            let mut wanted = CK_ATTRIBUTE { type_, pValue: (&raw mut value).cast(), ulValueLen: 1 };
            assert_eq!(
                call!(table, C_GetAttributeValue(session, found[0], &mut wanted, 1)),
                CKR_OK,
                "{label}: {type_:#x}"
            );
            value == CK_TRUE
        };
        let said = types.iter().map(|type_| is(*type_)).collect();
        assert_eq!(call!(table, C_Finalize(null_mut())), CKR_OK);
        said
    }

    /// A configuration over members that are named as their tokens.
    pub fn configuration(&self, members: &[&str], keys: &[&str], more: &str) -> PathBuf {
        let mut text = "[slot]\nlabel = gw\norder = spread\n".to_string();
        for member in members {
            if !self.module(member).exists() {
                fs::copy(self.software.module(), self.module(member)).unwrap();
            }
            let (pin, module) = (self.dir.join("pin"), self.module(member));
            let (pin, module) = (pin.display(), module.display());
            text += &format!("[member {member}]\nmodule = {module}\ntoken = {member}\npin-file = {pin}\n{more}");
        }
        for key in keys {
            text += &format!("[key {key}]\npublic-key = {}\n", self.public_key(key).display());
        }
        let path = self.dir.join("qtls.conf");
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn padded(label: &str) -> [u8; 32] {
    let mut padded = [b' '; 32];
    padded[..label.len()].copy_from_slice(label.as_bytes());
    padded
}

/// The first slot with such a token.
fn slot(table: &CK_FUNCTION_LIST, wanted: impl Fn(&CK_TOKEN_INFO) -> bool) -> CK_SLOT_ID {
    let (mut slots, mut count) = ([0; 16], 16);
    assert_eq!(call!(table, C_GetSlotList(CK_TRUE, slots.as_mut_ptr(), &mut count)), CKR_OK);
    let found = slots[..count as usize].iter().find(|slot| {
        let mut info = CK_TOKEN_INFO::default();
        call!(table, C_GetTokenInfo(**slot, &mut info)) == CKR_OK && wanted(&info)
    });
    *found.expect("no slot with such a token")
}

/// Generates a pair of keys that signs, and returns the public one as its SubjectPublicKeyInfo.
pub fn generate(
    table: &CK_FUNCTION_LIST,
    session: CK_SESSION_HANDLE,
    label: &str,
    kind: Kind,
) -> Result<Vec<u8>, CK_RV> {
    let (yes, no): (CK_BBOOL, CK_BBOOL) = (CK_TRUE, CK_FALSE);
    let exponent = [1u8, 0, 1];
    let mut public = vec![
        attribute(CKA_TOKEN, &yes),
        attribute(CKA_LABEL, label.as_bytes()),
        attribute(CKA_ID, label.as_bytes()),
        attribute(CKA_VERIFY, &yes),
    ];
    let mut private = vec![
        attribute(CKA_TOKEN, &yes),
        attribute(CKA_PRIVATE, &yes),
        attribute(CKA_LABEL, label.as_bytes()),
        attribute(CKA_ID, label.as_bytes()),
        attribute(CKA_SENSITIVE, &yes),
        attribute(CKA_EXTRACTABLE, &no),
        attribute(CKA_SIGN, &yes),
    ];
    let type_ = match &kind {
        Kind::Rsa(bits) => {
            public.extend([attribute(CKA_MODULUS_BITS, bits), attribute(CKA_PUBLIC_EXPONENT, &exponent[..])]);
            CKM_RSA_PKCS_KEY_PAIR_GEN
        }
        Kind::Ec(curve) => {
            public.push(attribute(CKA_EC_PARAMS, *curve));
            CKM_EC_KEY_PAIR_GEN
        }
        Kind::MlDsa(set) => {
            public.push(attribute(CKA_PARAMETER_SET, set));
            private.push(attribute(CKA_PARAMETER_SET, set));
            CKM_ML_DSA_KEY_PAIR_GEN
        }
    };
    let mut mechanism = CK_MECHANISM { mechanism: type_, pParameter: null_mut(), ulParameterLen: 0 };
    let (mut public_key, mut private_key) = (0, 0);
    let made = call!(
        table,
        C_GenerateKeyPair(
            session,
            &mut mechanism,
            public.as_mut_ptr(),
            public.len() as CK_ULONG,
            private.as_mut_ptr(),
            private.len() as CK_ULONG,
            &mut public_key,
            &mut private_key
        )
    );
    if made != CKR_OK {
        return Err(made);
    }
    let value = |type_| {
        let mut room = vec![0u8; 4096];
        let mut wanted = CK_ATTRIBUTE { type_, pValue: room.as_mut_ptr().cast(), ulValueLen: 4096 };
        assert_eq!(call!(table, C_GetAttributeValue(session, public_key, &mut wanted, 1)), CKR_OK, "{label}");
        room.truncate(wanted.ulValueLen as usize);
        room
    };
    let info = |algorithm: &[&[u8]], key: &[u8]| der(0x30, &[&der(0x30, algorithm), &der(3, &[&[0], key])]);
    Ok(match kind {
        Kind::Rsa(_) => {
            let positive = |number: Vec<u8>| der(2, &[&[0][..number[0] as usize >> 7], &number]);
            let (modulus, exponent) = (positive(value(CKA_MODULUS)), positive(value(CKA_PUBLIC_EXPONENT)));
            let rsa = der(6, &[&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1]]);
            info(&[&rsa, &[5, 0]], &der(0x30, &[&modulus, &exponent]))
        }
        Kind::Ec(curve) => {
            let ec = der(6, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1]]);
            let point = value(CKA_EC_POINT);
            info(&[&ec, curve], &point[2..]) // in an OCTET STRING of less than 128 bytes
        }
        Kind::MlDsa(set) => {
            let arc = 16 + set as u8; // CKP_ML_DSA_44 is 1, id-ml-dsa-44 is 2.16.840.1.101.3.4.3.17
            info(&[&der(6, &[&[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 3, arc]])], &value(CKA_VALUE))
        }
    })
}

/// An element of DER.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let len = match body.len() {
        n @ 0..=0x7f => vec![n as u8],
        n @ 0x80..=0xff => vec![0x81, n as u8],
        n => vec![0x82, (n >> 8) as u8, n as u8],
    };
    [&[tag][..], &len, &body].concat()
}
