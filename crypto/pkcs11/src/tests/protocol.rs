//! The frames of `qtls-hsm/1`: as they are in the contract, to and fro, and damaged.

use super::fuzz::{rounds, Random};
use crate::{
    protocol::*,
    token::{Failure, Found, KeyName, Mechanism},
};
use cryptoki_sys::*;

fn key() -> KeyName {
    KeyName { label: "web".into(), id: vec![1, 255] }
}

fn requests() -> Vec<Request> {
    let mechanisms = [
        Mechanism::RsaPkcs,
        Mechanism::RsaRaw,
        Mechanism::RsaPss { hash: CKM_SHA256, mgf: CKG_MGF1_SHA256, salt: 32 },
        Mechanism::Ecdsa,
        Mechanism::MlDsa(None),
        Mechanism::MlDsa(Some((CKH_DETERMINISTIC_REQUIRED, b"context".into()))),
    ];
    let sign = |mechanism| Request::Sign { key: key(), mechanism, data: vec![7; 32] };
    let mut all = vec![
        Request::Status,
        Request::Find(key()),
        Request::Generate { algorithm: "ML-DSA-65".into(), key: key() },
        Request::Retire(KeyName { label: "old".into(), id: vec![] }),
    ];
    all.extend(mechanisms.map(sign));
    all
}

fn answer(to: &Request) -> Answer {
    match to {
        Request::Status => Answer::Status("{}".into()),
        Request::Find(_) => Answer::Found(Found { public: vec![1; 90], extractable: true, ..Found::default() }),
        Request::Generate { .. } => {
            Answer::Found(Found { public: vec![2; 90], sensitive: true, extractable: false, local: true })
        }
        Request::Sign { .. } => Answer::Signature(vec![3; 4627]),
        Request::Retire(_) => Answer::Retired,
    }
}

/// What follows the length, which is right.
fn body(frame: &[u8]) -> &[u8] {
    let (prefix, body) = frame.split_at(PREFIX);
    assert_eq!(length(prefix.try_into().unwrap()), Ok(body.len()));
    body
}

#[test]
fn frames_are_as_the_contract_has_them() {
    let sign = Request::Sign { key: key(), mechanism: Mechanism::MlDsa(None), data: b"data".into() };
    let frame = b"\0\0\0\x1c\0\0\0\0\0\0\0\x05\x03\0\x03web\0\x02\x01\xff\x05\xff\0\0\0\x04data";
    assert_eq!(write_request(5, &sign).unwrap(), frame);
    let found = Answer::Found(Found { public: b"DER".into(), sensitive: true, extractable: false, local: true });
    assert_eq!(write_answer(6, &found).unwrap(), b"\0\0\0\x0f\0\0\0\0\0\0\0\x06\0\0\x03DER\x05");
    let failed = Answer::Failed(Failure::new(CKR_SESSION_COUNT, "no"));
    assert_eq!(write_answer(7, &failed).unwrap(), b"\0\0\0\x15\0\0\0\0\0\0\0\x07\x01\0\0\0\0\0\0\0\xb1\0\x02no");
}

#[test]
fn what_one_side_writes_the_other_reads() {
    for (id, request) in (1u64 << 40..).zip(requests()) {
        let frame = write_request(id, &request).unwrap();
        assert_eq!(read_request(body(&frame)), Ok((id, Ok(request.clone()))));
        let failed = Answer::Failed(Failure::new(CKR_PIN_LOCKED, "a token"));
        for answer in [answer(&request), failed] {
            let frame = write_answer(id, &answer).unwrap();
            assert_eq!(answer_id(body(&frame)), Ok(id));
            assert_eq!(read_answer(body(&frame), &request), Ok(answer));
        }
    }
}

#[test]
fn lengths_that_no_frame_has_are_refused() {
    for len in [0, 8, LONGEST as u32 + 1, u32::MAX] {
        assert_eq!(length(len.to_be_bytes()), Err(Malformed), "{len}");
    }
    assert_eq!(length((LONGEST as u32).to_be_bytes()), Ok(LONGEST));
}

#[test]
fn what_is_too_long_is_not_written() {
    let sign = |len| Request::Sign { key: key(), mechanism: Mechanism::MlDsa(None), data: vec![0; len] };
    let overhead = write_request(1, &sign(0)).unwrap().len() - PREFIX;
    assert!(write_request(1, &sign(LONGEST - overhead)).is_ok());
    assert_eq!(write_request(1, &sign(LONGEST - overhead + 1)), Err(Malformed));
    assert_eq!(write_request(1, &sign(1 << 20)), Err(Malformed));
    let hedge = |hedge| Request::Sign { key: key(), mechanism: Mechanism::MlDsa(Some((hedge, vec![]))), data: vec![] };
    assert_eq!(write_request(1, &hedge(255)), Err(Malformed), "255 is that there is none");
    assert_eq!(write_request(1, &hedge(256)), Err(Malformed));
}

#[test]
fn a_request_that_is_cut_or_has_more_behind_it_is_refused_by_its_id() {
    for request in requests() {
        let frame = write_request(9, &request).unwrap();
        let body = body(&frame);
        for end in 9..body.len() {
            assert_eq!(read_request(&body[..end]), Ok((9, Err(Malformed))), "{request:?} cut at {end}");
        }
        assert_eq!(read_request(&[body, &[0]].concat()), Ok((9, Err(Malformed))), "{request:?} and one byte");
        assert_eq!(read_request(&body[..8]), Err(Malformed));
    }
}

#[test]
fn a_failure_is_never_taken_for_success_and_its_message_is_cut() {
    let failed = Answer::Failed(Failure::new(CKR_OK, "é".repeat(2000)));
    let frame = write_answer(1, &failed).unwrap();
    match read_answer(body(&frame), &Request::Status) {
        Ok(Answer::Failed(f)) => assert_eq!((f.code, f.detail), (CKR_GENERAL_ERROR, "é".repeat(512))),
        other => panic!("{other:?}"),
    }
}

#[test]
fn damaged_frames() {
    let mut random = Random(4);
    let (mut read, mut refused) = (0, 0);
    for round in 0..40 * rounds() {
        let request = &requests()[round % requests().len()];
        let damaged = random.damage(&write_request(round as u64, request).unwrap());
        if let Some((prefix, rest)) = damaged.split_first_chunk() {
            let _ = length(*prefix);
            match read_request(rest) {
                // What is understood is written in the same way: there is no second way to say it.
                Ok((id, Ok(request))) => {
                    assert_eq!(&write_request(id, &request).unwrap()[PREFIX..], rest);
                    read += 1;
                }
                _ => refused += 1,
            }
        }
        let damaged = random.damage(&write_answer(round as u64, &answer(request)).unwrap()[PREFIX..]);
        if let Ok(Answer::Failed(f)) = read_answer(&damaged, request) {
            assert_ne!(f.code, CKR_OK);
        }
    }
    assert!(read > 0 && refused > 0, "{read} were read and {refused} refused");
}
