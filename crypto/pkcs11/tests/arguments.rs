//! Calls with arguments that no program should make, by the thousand: they are refused, and what is right works all the same.
//! QTLS_PKCS11_FUZZ says how many.

mod common;

use common::{call, folder, valgrind, Module};
use cryptoki_sys::*;
use std::{fs, path::Path, ptr::null_mut};

/// xorshift64*: the same calls in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// A number that is small, or one at the end of the range.
    fn number(&mut self) -> CK_ULONG {
        match self.below(4) {
            0 => self.of(&[CK_ULONG::MAX, CK_ULONG::MAX - 1, 1 << 63, CK_UNAVAILABLE_INFORMATION]),
            _ => self.below(10) as CK_ULONG,
        }
    }
}

const ATTRIBUTES: [CK_ATTRIBUTE_TYPE; 14] = [
    CKA_CLASS,
    CKA_TOKEN,
    CKA_LABEL,
    CKA_ID,
    CKA_KEY_TYPE,
    CKA_MODULUS,
    CKA_EC_POINT,
    CKA_VALUE,
    CKA_PRIVATE_EXPONENT,
    CKA_PUBLIC_KEY_INFO,
    CKA_ALLOWED_MECHANISMS,
    CKA_WRAP_TEMPLATE,
    CKA_VENDOR_DEFINED + 1,
    CK_ULONG::MAX,
];
const MECHANISMS: [CK_MECHANISM_TYPE; 10] = [
    CKM_RSA_PKCS,
    CKM_RSA_PKCS_PSS,
    CKM_RSA_X_509,
    CKM_ECDSA,
    CKM_ML_DSA,
    CKM_SHA256_RSA_PKCS,
    CKM_EC_KEY_PAIR_GEN,
    CKM_ML_DSA_KEY_PAIR_GEN,
    CKM_VENDOR_DEFINED + 1,
    CK_ULONG::MAX,
];

fn started() -> Module {
    let dir = folder("arguments");
    let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut text =
        "[slot]\ngenerate = true\n[member none]\nretry = 60s\nmodule = /none.so\ntoken = t\npin-file = /none\n"
            .to_string();
    for key in ["rsa", "p256", "mldsa65"] {
        text += &format!("[key {key}]\npublic-key = {}/{key}.pem\n", keys.display());
    }
    fs::write(dir.join("conf"), text).unwrap();
    let module = Module::started(&dir.join("conf"));
    fs::remove_dir_all(dir).unwrap();
    module
}

/// Attributes, each with as much room as it says, with none, or with a size that nothing can have. The room is on the heap,
/// and no larger: there valgrind sees what is beside it.
fn attributes(random: &mut Random, room: &mut [Vec<u8>; 4]) -> Vec<CK_ATTRIBUTE> {
    room.iter_mut()
        .take(random.below(5))
        .map(|room| {
            *room = vec![random.below(3) as u8; random.of(&[0, 1, 8, 64, 300])];
            let (value, len) = match random.below(4) {
                0 => (null_mut(), random.number()),
                1 => (room.as_mut_ptr().cast(), random.of(&[CK_ULONG::MAX, 1 << 63])),
                _ => (room.as_mut_ptr().cast(), room.len() as CK_ULONG),
            };
            CK_ATTRIBUTE { type_: random.of(&ATTRIBUTES), pValue: value, ulValueLen: len }
        })
        .collect()
}

/// A key is asked for, with the right attributes and others, and with places for its handles or none.
fn generate(random: &mut Random, table: &CK_FUNCTION_LIST, session: CK_SESSION_HANDLE) -> CK_RV {
    let mut rooms = [const { [const { vec![] }; 4] }; 2];
    let mut curve = [6u8, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
    let mut label = *b"new";
    let mut templates =
        rooms.each_mut().map(|room| if random.below(2) == 0 { vec![] } else { attributes(random, room) });
    let curve = CK_ATTRIBUTE { type_: CKA_EC_PARAMS, pValue: curve.as_mut_ptr().cast(), ulValueLen: 10 };
    let label = CK_ATTRIBUTE { type_: CKA_LABEL, pValue: label.as_mut_ptr().cast(), ulValueLen: 3 };
    templates[0].extend([curve, label]);
    let count = |random: &mut Random, template: &[CK_ATTRIBUTE]| match random.below(8) {
        0 => random.of(&[0, CK_ULONG::MAX]),
        _ => template.len() as CK_ULONG,
    };
    let (public, private) = (count(random, &templates[0]), count(random, &templates[1]));
    let mut mechanism = CK_MECHANISM { mechanism: random.of(&MECHANISMS), ..Default::default() };
    if random.below(2) == 0 {
        mechanism.mechanism = CKM_EC_KEY_PAIR_GEN;
    }
    let how = if random.below(8) == 0 { null_mut() } else { &raw mut mechanism };
    let (mut verifies, mut signs) = (0, 0);
    let verifies = &raw mut verifies;
    let signs = random.of(&[null_mut(), verifies, &raw mut signs, &raw mut signs, &raw mut signs, &raw mut signs]);
    let [of_public, of_private] = templates.each_mut().map(|template| template.as_mut_ptr());
    call!(table, C_GenerateKeyPair(session, how, of_public, public, of_private, private, verifies, signs))
}

#[test]
fn no_argument_ends_the_process_or_spoils_what_is_right() {
    let rounds = std::env::var("QTLS_PKCS11_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let module = started();
    let table = module.table;
    let mut random = Random(4);
    let (mut sessions, mut begun) = (vec![0], None);
    let (mut fine, mut refused) = ([0; 13], [0; 13]);
    for round in 0..rounds {
        // What was begun is gone on with, as often as not.
        let (session, which) = match begun.take() {
            Some(session) if random.below(2) == 0 => (session, random.of(&[7, 7, 8, 9])),
            _ => (random.of(&sessions), random.of(&[0, 1, 2, 3, 4, 5, 6, 6, 6, 7, 8, 9, 10, 11, 12])),
        };
        let object = random.number();
        let mut room = [const { vec![] }; 4];
        let mut bytes = vec![7u8; random.below(70)];
        let mut len = random.of(&[0, 1, 63, 64, 256, 3309, 5000]);
        let (pointer, given) = match random.below(4) {
            0 => (null_mut(), random.number()),
            1 => (bytes.as_mut_ptr(), random.of(&[CK_ULONG::MAX, 1 << 63])),
            _ => (bytes.as_mut_ptr(), bytes.len() as CK_ULONG),
        };
        let mut out = vec![0u8; len as usize];
        let out = if random.below(3) == 0 { null_mut() } else { out.as_mut_ptr() };
        let length = if random.below(8) == 0 { null_mut() } else { &raw mut len };
        let code = match which {
            0 => {
                let mut new = 0;
                let flags = random.of(&[CKF_SERIAL_SESSION, CKF_SERIAL_SESSION | CKF_RW_SESSION, 0, CK_ULONG::MAX]);
                let slot = random.of(&[0, 0, 0, 1, CK_ULONG::MAX]);
                let code = call!(table, C_OpenSession(slot, flags, null_mut(), None, &mut new));
                if code == CKR_OK && sessions.len() > 4 {
                    assert_eq!(call!(table, C_CloseSession(new)), CKR_OK);
                } else if code == CKR_OK {
                    sessions.push(new);
                }
                code
            }
            1 if sessions.len() < 4 => continue,
            1 => {
                sessions.retain(|s| *s != session || *s == 0);
                call!(table, C_CloseSession(session))
            }
            2 => {
                let mut wanted = attributes(&mut random, &mut room);
                let count = if random.below(10) == 0 { 0 } else { wanted.len() as CK_ULONG };
                let code = call!(table, C_GetAttributeValue(session, object, wanted.as_mut_ptr(), count));
                // What did not fit was not written, and says so.
                let whole = |a: &CK_ATTRIBUTE| a.ulValueLen <= 4096 || a.ulValueLen == CK_UNAVAILABLE_INFORMATION;
                let answered = code == CKR_OK || code == CKR_ATTRIBUTE_SENSITIVE || code == CKR_ATTRIBUTE_TYPE_INVALID;
                assert!(!answered || count == 0 || wanted.iter().all(whole), "round {round}");
                code
            }
            3 => {
                let mut wanted = attributes(&mut random, &mut room);
                let (template, count) = match random.below(8) {
                    0 => (null_mut(), random.number()),
                    1 => (wanted.as_mut_ptr(), CK_ULONG::MAX),
                    _ => (wanted.as_mut_ptr(), wanted.len() as CK_ULONG),
                };
                call!(table, C_FindObjectsInit(session, template, count))
            }
            4 => {
                let mut found = vec![0; random.below(9)];
                let (place, most) = match random.below(8) {
                    0 => (null_mut(), random.number()),
                    _ => (found.as_mut_ptr(), found.len() as CK_ULONG),
                };
                call!(table, C_FindObjects(session, place, most, length))
            }
            5 => call!(table, C_FindObjectsFinal(session)),
            6 => {
                let mut parameter = vec![random.below(256) as u8; random.of(&[0, 1, 8, 23, 24, 24, 25, 64])];
                // The address of a context, and its length.
                parameter.iter_mut().skip(8).take(16).for_each(|b| *b = 0);
                let (place, size) = match random.below(4) {
                    0 => (null_mut(), random.number()),
                    1 => (parameter.as_mut_ptr(), random.of(&[CK_ULONG::MAX, 1 << 63])),
                    _ => (parameter.as_mut_ptr(), parameter.len() as CK_ULONG),
                };
                let mut how =
                    CK_MECHANISM { mechanism: random.of(&MECHANISMS), pParameter: place.cast(), ulParameterLen: size };
                if random.below(2) == 0 {
                    (how.pParameter, how.ulParameterLen) = (null_mut(), 0);
                }
                let how = if random.below(8) == 0 { null_mut() } else { &raw mut how };
                call!(table, C_SignInit(session, how, object))
            }
            7 => call!(table, C_Sign(session, pointer, given, out, length)),
            8 => call!(table, C_SignUpdate(session, pointer, given)),
            9 => call!(table, C_SignFinal(session, out, length)),
            10 => {
                len = random.below(17) as CK_ULONG;
                let mut list = vec![0; len as usize];
                let list = if random.below(3) == 0 { null_mut() } else { list.as_mut_ptr() };
                match random.below(2) {
                    0 => call!(table, C_GetMechanismList(random.of(&[0, 1]), list, length)),
                    _ => call!(table, C_GetSlotList(CK_TRUE, list, length)),
                }
            }
            12 => generate(&mut random, table, session),
            _ => match random.below(3) {
                0 => call!(table, C_GetMechanismInfo(0, random.of(&MECHANISMS), null_mut())),
                1 => call!(table, C_Login(session, random.number(), pointer, given)),
                _ => call!(table, C_GetSessionInfo(session, null_mut())),
            },
        };
        *if code == CKR_OK { &mut fine[which] } else { &mut refused[which] } += 1;
        if matches!(which, 6 | 8) && code == CKR_OK {
            begun = Some(session);
        }
        if round % 500 == 0 {
            let session = module.session();
            assert_eq!(module.find(session, CKO_PRIVATE_KEY, "rsa").len(), 1, "round {round}");
            assert_eq!(call!(table, C_CloseSession(session)), CKR_OK);
        }
    }
    println!("of each function: {fine:?} were fine and {refused:?} refused");
    // Without members no signature and no key is made; all else has been reached both ways.
    let reached = |i: usize| refused[i] > 0 && (fine[i] > 0 || i >= 11);
    assert!((0..13).all(reached), "of each function: {fine:?} were fine and {refused:?} refused");
}

#[test]
#[ignore = "needs valgrind"]
fn valgrind_finds_nothing_in_them() {
    let (code, text) = valgrind(&[("QTLS_PKCS11_FUZZ", "5000")]);
    assert!(code == Some(0) && text.contains(" passed; 0 failed") && !text.contains("Invalid"), "{text}");
}
