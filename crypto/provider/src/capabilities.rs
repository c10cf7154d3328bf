//! What the provider offers to libssl (provider-base(7), CAPABILITIES): groups and signature schemes of TLS 1.3.

use crate::{
    openssl::abi::{c_int, c_uint, Opaque, Param, ParamCallback},
    provider::{Provider, Registered},
    standard::{self, Standard},
};
use std::ffi::CStr;

const TLS1_3: c_int = 0x0304;
const NO_LIMIT: c_int = 0;
const NEVER: c_int = -1;
const YES: c_uint = 1;

/// Tells of one algorithm.
type Describe = fn(&Registered, &mut dyn FnMut(&[Param]) -> c_int) -> c_int;

/// # Safety
/// The callback and its argument are OpenSSL's.
pub unsafe fn tell(provider: &Provider, capability: &CStr, callback: ParamCallback, arg: Opaque) -> c_int {
    let (signatures, describe): (bool, Describe) = if capability.to_bytes().eq_ignore_ascii_case(b"TLS-GROUP") {
        (false, group)
    } else if capability.to_bytes().eq_ignore_ascii_case(b"TLS-SIGALG") {
        (true, scheme)
    } else {
        return 1; // it has none of these
    };
    for s in standard::ALGORITHMS.iter().filter(|s| s.is_signature() == signatures) {
        if standard_capability(s, &mut |params| callback(params.as_ptr(), arg)) != 1 {
            return 0;
        }
    }
    for r in provider.registered.iter().filter(|r| r.algorithm.is_signature() == signatures && r.algorithm.fits_tls()) {
        if describe(r, &mut |params| callback(params.as_ptr(), arg)) != 1 {
            return 0;
        }
    }
    1
}

fn group(r: &Registered, tell: &mut dyn FnMut(&[Param]) -> c_int) -> c_int {
    let bits = r.algorithm.security_bits() as c_uint;
    tell(&[
        Param::string(c"tls-group-name", &r.name),
        Param::string(c"tls-group-name-internal", &r.name),
        Param::string(c"tls-group-alg", &r.name),
        Param::unsigned(c"tls-group-id", &r.code_point),
        Param::unsigned(c"tls-group-sec-bits", &bits),
        Param::unsigned(c"tls-group-is-kem", &YES),
        Param::integer(c"tls-min-tls", &TLS1_3),
        Param::integer(c"tls-max-tls", &NO_LIMIT),
        Param::integer(c"tls-min-dtls", &NEVER),
        Param::integer(c"tls-max-dtls", &NEVER),
        Param::END,
    ])
}

fn scheme(r: &Registered, tell: &mut dyn FnMut(&[Param]) -> c_int) -> c_int {
    let Some(oid) = &r.oid else { return 1 };
    let bits = r.algorithm.security_bits() as c_uint;
    tell(&[
        Param::string(c"tls-sigalg-iana-name", &r.name),
        Param::string(c"tls-sigalg-name", &r.name),
        Param::string(c"tls-sigalg-oid", oid),
        Param::unsigned(c"tls-sigalg-code-point", &r.code_point),
        Param::unsigned(c"tls-sigalg-sec-bits", &bits),
        Param::integer(c"tls-min-tls", &TLS1_3),
        Param::integer(c"tls-max-tls", &NO_LIMIT),
        Param::integer(c"tls-min-dtls", &NEVER),
        Param::integer(c"tls-max-dtls", &NEVER),
        Param::END,
    ])
}

/// What OpenSSL's default provider tells of the same algorithm. libssl drops a signature scheme whose keys are not those
/// of the provider that tells of it.
fn standard_capability(s: &Standard, tell: &mut dyn FnMut(&[Param]) -> c_int) -> c_int {
    let (min_tls, max_tls) = (Param::integer(c"tls-min-tls", &TLS1_3), Param::integer(c"tls-max-tls", &NO_LIMIT));
    let (min_dtls, max_dtls) = (Param::integer(c"tls-min-dtls", &NEVER), Param::integer(c"tls-max-dtls", &NEVER));
    if s.is_signature() {
        return tell(&[
            Param::string(c"tls-sigalg-iana-name", s.tls_name),
            Param::string(c"tls-sigalg-name", s.name),
            Param::string(c"tls-sigalg-oid", s.oid),
            Param::unsigned(c"tls-sigalg-code-point", &s.code_point),
            Param::unsigned(c"tls-sigalg-sec-bits", &s.security_bits),
            min_tls,
            max_tls,
            min_dtls,
            max_dtls,
            Param::END,
        ]);
    }
    tell(&[
        Param::string(c"tls-group-name", s.tls_name),
        Param::string(c"tls-group-name-internal", c""),
        Param::string(c"tls-group-alg", s.name),
        Param::unsigned(c"tls-group-id", &s.code_point),
        Param::unsigned(c"tls-group-sec-bits", &s.security_bits),
        Param::unsigned(c"tls-group-is-kem", &YES),
        min_tls,
        max_tls,
        min_dtls,
        max_dtls,
        Param::END,
    ])
}
