//! Signatures made through the module, and verified by OpenSSL without it.

use super::{call, folder, run, Module};
use cryptoki_sys::*;
use std::{fs, path::Path, ptr::null_mut};

/// A mechanism with its parameter.
pub enum How {
    Plain(CK_MECHANISM_TYPE),
    Pss(CK_RSA_PKCS_PSS_PARAMS),
    MlDsa(Vec<u8>),
}

/// RSA-PSS as TLS has it with SHA-256.
pub fn pss() -> How {
    How::Pss(CK_RSA_PKCS_PSS_PARAMS { hashAlg: CKM_SHA256, mgf: CKG_MGF1_SHA256, sLen: 32 })
}

/// Makes a signature in a session of the module.
pub fn sign(
    table: &CK_FUNCTION_LIST,
    session: CK_SESSION_HANDLE,
    key: CK_OBJECT_HANDLE,
    how: &How,
    data: &[u8],
) -> Result<Vec<u8>, CK_RV> {
    let mut context = CK_SIGN_ADDITIONAL_CONTEXT { hedgeVariant: CKH_HEDGE_PREFERRED, ..Default::default() };
    let mut mechanism = CK_MECHANISM { mechanism: CKM_ML_DSA, pParameter: null_mut(), ulParameterLen: 0 };
    match how {
        How::Plain(type_) => mechanism.mechanism = *type_,
        How::Pss(parameter) => {
            mechanism.mechanism = CKM_RSA_PKCS_PSS;
            mechanism.pParameter = (&raw const *parameter).cast_mut().cast();
            mechanism.ulParameterLen = size_of_val(parameter) as CK_ULONG;
        }
        How::MlDsa(bytes) => {
            context.pContext = bytes.as_ptr().cast_mut();
            context.ulContextLen = bytes.len() as CK_ULONG;
            mechanism.pParameter = (&raw mut context).cast();
            mechanism.ulParameterLen = size_of_val(&context) as CK_ULONG;
        }
    }
    match call!(table, C_SignInit(session, &mut mechanism, key)) {
        CKR_OK => {}
        code => return Err(code),
    }
    let (mut signature, mut len) = (vec![0; 8192], 8192);
    let data = (data.as_ptr().cast_mut(), data.len() as CK_ULONG);
    match call!(table, C_Sign(session, data.0, data.1, signature.as_mut_ptr(), &mut len)) {
        CKR_OK => {
            signature.truncate(len as usize);
            Ok(signature)
        }
        code => Err(code),
    }
}

impl Module {
    /// Makes a signature with the key of a label, in a session of its own.
    pub fn sign(&self, key: &str, how: &How, data: &[u8]) -> Result<Vec<u8>, CK_RV> {
        let session = self.session();
        let key = self.find(session, CKO_PRIVATE_KEY, key)[0];
        let result = sign(self.table, session, key, how, data);
        assert_eq!(call!(self.table, C_CloseSession(session)), CKR_OK);
        result
    }
}

/// ECDSA's two numbers, as OpenSSL wants them: a SEQUENCE of INTEGERs.
fn der(signature: &[u8]) -> Vec<u8> {
    let integer = |half: &[u8]| {
        let zeros = half.iter().take_while(|b| **b == 0).count().min(half.len() - 1);
        let sign: &[u8] = if half[zeros] & 0x80 != 0 { &[0] } else { &[] };
        let value = [sign, &half[zeros..]].concat();
        [&[2, value.len() as u8], &value[..]].concat()
    };
    let (r, s) = signature.split_at(signature.len() / 2);
    let body = [integer(r), integer(s)].concat();
    let len: &[u8] = if body.len() < 0x80 { &[body.len() as u8] } else { &[0x81, body.len() as u8] };
    [&[0x30], len, &body].concat()
}

/// Says whether OpenSSL takes a signature for one of this data under a public key.
pub fn verifies(public: &Path, how: &How, data: &[u8], signature: &[u8]) -> bool {
    let dir = folder("verify");
    let mut options: Vec<String> = vec![];
    let mut signature = signature.to_vec();
    match how {
        How::Plain(CKM_ECDSA) => signature = der(&signature),
        How::Plain(CKM_RSA_X_509) => options.extend(["-pkeyopt", "rsa_padding_mode:none"].map(Into::into)),
        How::Plain(_) => {}
        How::Pss(p) => {
            let digest = match p.hashAlg {
                CKM_SHA256 => "sha256",
                CKM_SHA384 => "sha384",
                _ => "sha512",
            };
            for option in
                ["rsa_padding_mode:pss".into(), format!("digest:{digest}"), format!("rsa_pss_saltlen:{}", p.sLen)]
            {
                options.extend(["-pkeyopt".into(), option]);
            }
        }
        How::MlDsa(context) if context.is_empty() => options.push("-rawin".into()),
        How::MlDsa(context) => {
            let text = String::from_utf8_lossy(context);
            options.extend(["-rawin".into(), "-pkeyopt".into(), format!("context-string:{text}")]);
        }
    }
    fs::write(dir.join("data"), data).unwrap();
    fs::write(dir.join("signature"), signature).unwrap();
    let output = std::process::Command::new("openssl")
        .args(["pkeyutl", "-verify", "-in", "data", "-sigfile", "signature", "-pubin", "-inkey"])
        .arg(public)
        .args(&options)
        .current_dir(&dir)
        .output()
        .unwrap();
    fs::remove_dir_all(&dir).unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let success = text.contains("Signature Verified Successfully");
    assert!(
        success == output.status.success() && (success || text.contains("Signature Verification Failure")),
        "{text}"
    );
    success
}
