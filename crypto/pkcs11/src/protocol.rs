//! `qtls-hsm/1`, which the module and an hsmd speak inside TLS: frames with requests, and with answers in any order.
//!
//! A frame is its length, and then a request's ID, an operation or a status, and a body. Both sides read and write it here,
//! with pure functions: what is on the wire cannot be understood in two ways.

use crate::token::{Failure, Found, KeyName, Mechanism};
use cryptoki_sys::*;

/// What TLS calls the protocol (ALPN).
pub const ALPN: &[u8] = b"qtls-hsm/1";
/// The longest frame, without the four bytes that say its length.
pub const LONGEST: usize = 65_536;
/// The length itself.
pub const PREFIX: usize = 4;
/// An ID and an operation or status: no frame is shorter.
const SHORTEST: usize = 9;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Status,
    Find(KeyName),
    Sign {
        key: KeyName,
        mechanism: Mechanism,
        data: Vec<u8>,
    },
    /// Algorithms have the names of the API.
    Generate {
        algorithm: String,
        key: KeyName,
    },
    Retire(KeyName),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Status(String),
    Found(Found),
    Signature(Vec<u8>),
    Retired,
    Failed(Failure),
}

/// It is no frame of this protocol, or none of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

type Read<T> = Result<T, Malformed>;

const STATUS: u8 = 1;
const FIND: u8 = 2;
const SIGN: u8 = 3;
const GENERATE: u8 = 4;
const RETIRE: u8 = 5;

const OK: u8 = 0;
const FAILED: u8 = 1;

const RSA_PKCS: u8 = 1;
const RSA_RAW: u8 = 2;
const RSA_PSS: u8 = 3;
const ECDSA: u8 = 4;
const ML_DSA: u8 = 5;
/// No hedging was asked for.
const NO_HEDGE: u8 = 255;

const SENSITIVE: u8 = 1;
const EXTRACTABLE: u8 = 2;
const LOCAL: u8 = 4;

/// How many bytes follow the first four.
pub fn length(prefix: [u8; PREFIX]) -> Read<usize> {
    match u32::from_be_bytes(prefix) as usize {
        n @ SHORTEST..=LONGEST => Ok(n),
        _ => Err(Malformed),
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(id: u64, code: u8) -> Writer {
        let mut frame = vec![0; PREFIX];
        frame.extend(id.to_be_bytes());
        frame.push(code);
        Writer(frame)
    }

    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_be_bytes());
    }

    fn bytes(&mut self, value: &[u8]) -> Read<()> {
        let len = u16::try_from(value.len()).map_err(|_| Malformed)?;
        self.0.extend(len.to_be_bytes());
        self.0.extend(value);
        Ok(())
    }

    fn key(&mut self, key: &KeyName) -> Read<()> {
        self.bytes(key.label.as_bytes())?;
        self.bytes(&key.id)
    }

    fn end(mut self) -> Read<Vec<u8>> {
        let len = self.0.len() - PREFIX;
        if len > LONGEST {
            return Err(Malformed);
        }
        self.0[..PREFIX].copy_from_slice(&(len as u32).to_be_bytes());
        Ok(self.0)
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    fn u8(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u64(&mut self) -> Read<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn bytes(&mut self) -> Read<Vec<u8>> {
        let len = u16::from_be_bytes(self.array()?);
        Ok(self.take(len.into())?.into())
    }

    fn string(&mut self) -> Read<String> {
        String::from_utf8(self.bytes()?).map_err(|_| Malformed)
    }

    fn key(&mut self) -> Read<KeyName> {
        Ok(KeyName { label: self.string()?, id: self.bytes()? })
    }

    fn end(self) -> Read<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}

/// The frame of a request; there is none for what is longer than one may be.
pub fn write_request(id: u64, request: &Request) -> Read<Vec<u8>> {
    let mut to;
    match request {
        Request::Status => to = Writer::new(id, STATUS),
        Request::Find(key) => {
            to = Writer::new(id, FIND);
            to.key(key)?;
        }
        Request::Sign { key, mechanism, data } => {
            to = Writer::new(id, SIGN);
            to.key(key)?;
            write_mechanism(&mut to, mechanism)?;
            to.bytes(data)?;
        }
        Request::Generate { algorithm, key } => {
            to = Writer::new(id, GENERATE);
            to.bytes(algorithm.as_bytes())?;
            to.key(key)?;
        }
        Request::Retire(key) => {
            to = Writer::new(id, RETIRE);
            to.key(key)?;
        }
    }
    to.end()
}

fn write_mechanism(to: &mut Writer, mechanism: &Mechanism) -> Read<()> {
    match mechanism {
        Mechanism::RsaPkcs => to.u8(RSA_PKCS),
        Mechanism::RsaRaw => to.u8(RSA_RAW),
        Mechanism::RsaPss { hash, mgf, salt } => {
            to.u8(RSA_PSS);
            [*hash, *mgf, *salt].into_iter().for_each(|n| to.u64(n));
        }
        Mechanism::Ecdsa => to.u8(ECDSA),
        Mechanism::MlDsa(None) => {
            to.u8(ML_DSA);
            to.u8(NO_HEDGE);
            to.bytes(&[])?;
        }
        Mechanism::MlDsa(Some((hedge, context))) => {
            let hedge = u8::try_from(*hedge).ok().filter(|h| *h != NO_HEDGE).ok_or(Malformed)?;
            to.u8(ML_DSA);
            to.u8(hedge);
            to.bytes(context)?;
        }
    }
    Ok(())
}

fn read_mechanism(from: &mut Reader) -> Read<Mechanism> {
    Ok(match from.u8()? {
        RSA_PKCS => Mechanism::RsaPkcs,
        RSA_RAW => Mechanism::RsaRaw,
        RSA_PSS => Mechanism::RsaPss { hash: from.u64()?, mgf: from.u64()?, salt: from.u64()? },
        ECDSA => Mechanism::Ecdsa,
        ML_DSA => match (from.u8()?, from.bytes()?) {
            (NO_HEDGE, context) if context.is_empty() => Mechanism::MlDsa(None),
            (NO_HEDGE, _) => return Err(Malformed),
            (hedge, context) => Mechanism::MlDsa(Some((hedge.into(), context))),
        },
        _ => return Err(Malformed),
    })
}

/// Reads what follows a frame's length. The ID is there even if the rest is no request: its sender is told so.
pub fn read_request(frame: &[u8]) -> Read<(u64, Read<Request>)> {
    let mut from = Reader(frame);
    let (id, operation) = (from.u64()?, from.u8()?);
    let read = move || {
        let request = match operation {
            STATUS => Request::Status,
            FIND => Request::Find(from.key()?),
            SIGN => Request::Sign { key: from.key()?, mechanism: read_mechanism(&mut from)?, data: from.bytes()? },
            GENERATE => Request::Generate { algorithm: from.string()?, key: from.key()? },
            RETIRE => Request::Retire(from.key()?),
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(request)
    };
    Ok((id, read()))
}

/// The longest message of a failure: it is for people.
const LONGEST_MESSAGE: usize = 1024;

/// The frame of an answer; there is none for what is longer than one may be.
pub fn write_answer(id: u64, answer: &Answer) -> Read<Vec<u8>> {
    let mut to = Writer::new(id, if matches!(answer, Answer::Failed(_)) { FAILED } else { OK });
    match answer {
        Answer::Status(json) => to.bytes(json.as_bytes())?,
        Answer::Found(found) => {
            to.bytes(&found.public)?;
            let flag = |set: bool, flag: u8| if set { flag } else { 0 };
            to.u8(flag(found.sensitive, SENSITIVE) | flag(found.extractable, EXTRACTABLE) | flag(found.local, LOCAL));
        }
        Answer::Signature(signature) => to.bytes(signature)?,
        Answer::Retired => {}
        Answer::Failed(failure) => {
            to.u64(failure.code);
            let mut len = failure.detail.len().min(LONGEST_MESSAGE);
            while !failure.detail.is_char_boundary(len) {
                len -= 1;
            }
            to.bytes(&failure.detail.as_bytes()[..len])?;
        }
    }
    to.end()
}

/// The ID in what follows a frame's length.
pub fn answer_id(frame: &[u8]) -> Read<u64> {
    Reader(frame).u64()
}

/// Reads the answer to a request in what follows a frame's length.
pub fn read_answer(frame: &[u8], request: &Request) -> Read<Answer> {
    let mut from = Reader(frame);
    from.u64()?;
    let answer = match (from.u8()?, request) {
        (OK, Request::Status) => Answer::Status(from.string()?),
        (OK, Request::Find(_) | Request::Generate { .. }) => {
            let (public, flags) = (from.bytes()?, from.u8()?);
            Answer::Found(Found {
                public,
                sensitive: flags & SENSITIVE != 0,
                extractable: flags & EXTRACTABLE != 0,
                local: flags & LOCAL != 0,
            })
        }
        (OK, Request::Sign { .. }) => Answer::Signature(from.bytes()?),
        (OK, Request::Retire(_)) => Answer::Retired,
        (_, _) => {
            let code = from.u64()?;
            // A failure that says that all is well would be taken for a signature.
            let code = if code == CKR_OK { CKR_GENERAL_ERROR } else { code };
            Answer::Failed(Failure::new(code, from.string()?))
        }
    };
    from.end()?;
    Ok(answer)
}
