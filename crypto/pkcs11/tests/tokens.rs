//! The module over real tokens: signatures that OpenSSL verifies, and members that go and come back, counted.
//!
//! The tokens are softhsm2's, of Debian's package of that name. Without it they fail: they are ignored unless asked for.

mod common;

use common::{call, Module};
use cryptoki_sys::*;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    ptr::null_mut,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

const SOFTHSM: &str = "/usr/lib/softhsm/libsofthsm2.so";

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {text}");
    text
}

/// A folder with two softhsm2 tokens that hold the same keys.
struct Tokens {
    dir: PathBuf,
    members: Vec<PathBuf>,
    /// softhsm2 finds its tokens by the environment: one test at a time.
    _turn: MutexGuard<'static, ()>,
}

impl Tokens {
    fn path(&self, file: &str) -> String {
        self.dir.join(file).to_str().unwrap().into()
    }

    fn softhsm(test: &str) -> Tokens {
        assert!(Path::new(SOFTHSM).exists(), "{SOFTHSM} is missing; install softhsm2");
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        fs::create_dir_all(dir.join("tokens")).unwrap();
        let mut tokens = Tokens { dir, members: vec![], _turn: turn };
        let conf = format!("directories.tokendir = {}\nlog.level = ERROR\n", tokens.path("tokens"));
        fs::write(tokens.path("softhsm2.conf"), conf).unwrap();
        env::set_var("SOFTHSM2_CONF", tokens.path("softhsm2.conf"));
        fs::write(tokens.path("pin"), "1234\n").unwrap();
        tokens.key("rsa", &["-algorithm", "RSA"]);
        tokens.key("p256", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        for member in ["a", "b"] {
            run("softhsm2-util", &["--init-token", "--free", "--label", member, "--pin", "1234", "--so-pin", "4321"]);
            // Each member has a library of its own: one that both shared would not be initialised anew while one lives.
            fs::copy(SOFTHSM, tokens.path(&format!("{member}.so"))).unwrap();
            let mut all = fs::read_dir(tokens.path("tokens")).unwrap().map(|e| e.unwrap().path());
            let new = all.find(|p| !tokens.members.contains(p)).unwrap();
            tokens.members.push(new);
            for (id, key) in [("01", "rsa"), ("02", "p256")] {
                let file = tokens.path(&format!("{key}.pem"));
                let import = ["--import", &file, "--token", member, "--label", key, "--id", id, "--pin", "1234"];
                run("softhsm2-util", &import);
            }
        }
        tokens
    }

    fn key(&self, name: &str, how: &[&str]) {
        let (private, public) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.pub")));
        run("openssl", &[&["genpkey", "-out", &private], how].concat());
        run("openssl", &["pkey", "-in", &private, "-pubout", "-out", &public]);
    }

    fn configuration(&self, keys: &[&str], order: &str) -> PathBuf {
        let mut text = format!("[slot]\nlabel = gw\norder = {order}\n");
        for member in ["a", "b"] {
            let (pin, module) = (self.path("pin"), self.path(&format!("{member}.so")));
            text +=
                &format!("[member {member}]\nmodule = {module}\ntoken = {member}\npin-file = {pin}\nretry = 50ms\n");
        }
        for key in keys {
            text += &format!("[key {key}]\npublic-key = {}\n", self.path(&format!("{key}.pub")));
        }
        let path = self.dir.join("qtls.conf");
        fs::write(&path, text).unwrap();
        path
    }

    /// Takes a member's token away, as pulling a USB token does.
    fn remove(&self, member: usize) {
        fs::rename(&self.members[member], self.dir.join(format!("away-{member}"))).unwrap();
    }

    fn put_back(&self, member: usize) {
        fs::rename(self.dir.join(format!("away-{member}")), &self.members[member]).unwrap();
    }

    fn verify(&self, key: &str, data: &[u8], signature: &[u8], options: &[&str]) {
        fs::write(self.path("data"), data).unwrap();
        fs::write(self.path("signature"), signature).unwrap();
        let (data, signature, key) = (self.path("data"), self.path("signature"), self.path(&format!("{key}.pub")));
        let verify = ["pkeyutl", "-verify", "-in", &data, "-sigfile", &signature, "-pubin", "-inkey", &key];
        run("openssl", &[&verify[..], options].concat());
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn plain(mechanism: CK_MECHANISM_TYPE) -> CK_MECHANISM {
    CK_MECHANISM { mechanism, pParameter: null_mut(), ulParameterLen: 0 }
}

fn sign(
    module: &Module,
    session: CK_SESSION_HANDLE,
    mut how: CK_MECHANISM,
    key: &str,
    data: &[u8],
) -> Result<Vec<u8>, CK_RV> {
    let key = module.find(session, CKO_PRIVATE_KEY, key)[0];
    assert_eq!(call!(module.table, C_SignInit(session, &mut how, key)), CKR_OK);
    let (mut signature, mut len) = (vec![0; 8192], 8192);
    let data = (data.as_ptr().cast_mut(), data.len() as CK_ULONG);
    match call!(module.table, C_Sign(session, data.0, data.1, signature.as_mut_ptr(), &mut len)) {
        CKR_OK => {
            signature.truncate(len as usize);
            Ok(signature)
        }
        code => Err(code),
    }
}

/// ECDSA's two numbers, as OpenSSL wants them: a SEQUENCE of INTEGERs.
fn der(signature: &[u8]) -> Vec<u8> {
    let integer = |half: &[u8]| {
        let zeros = half.iter().take_while(|b| **b == 0).count();
        let sign: &[u8] = if half[zeros] & 0x80 != 0 { &[0] } else { &[] };
        let value = [sign, &half[zeros..]].concat();
        [&[2, value.len() as u8], &value[..]].concat()
    };
    let (r, s) = signature.split_at(signature.len() / 2);
    let body = [integer(r), integer(s)].concat();
    [&[0x30, body.len() as u8], &body[..]].concat()
}

#[test]
#[ignore = "needs softhsm2"]
fn openssl_verifies_what_softhsm_signs() {
    let tokens = Tokens::softhsm("verifies");
    let module = Module::started(&tokens.configuration(&["rsa", "p256"], "spread"));
    let session = module.session();
    let digest = [0x5a; 32];
    for _ in 0..4 {
        let signature = sign(&module, session, plain(CKM_RSA_PKCS), "rsa", &digest).unwrap();
        tokens.verify("rsa", &digest, &signature, &[]);
        let mut pss = CK_RSA_PKCS_PSS_PARAMS { hashAlg: CKM_SHA256, mgf: CKG_MGF1_SHA256, sLen: 32 };
        let how = CK_MECHANISM {
            mechanism: CKM_RSA_PKCS_PSS,
            pParameter: (&raw mut pss).cast(),
            ulParameterLen: size_of_val(&pss) as CK_ULONG,
        };
        let signature = sign(&module, session, how, "rsa", &digest).unwrap();
        let options =
            ["-pkeyopt", "rsa_padding_mode:pss", "-pkeyopt", "digest:sha256", "-pkeyopt", "rsa_pss_saltlen:32"];
        tokens.verify("rsa", &digest, &signature, &options);
        let signature = sign(&module, session, plain(CKM_ECDSA), "p256", &digest).unwrap();
        tokens.verify("p256", &digest, &der(&signature), &[]);
    }
}

#[test]
#[ignore = "needs softhsm2"]
fn softhsm_tokens_are_taken_away_in_turn_and_no_signature_fails() {
    let tokens = Tokens::softhsm("failover");
    let module = Module::started(&tokens.configuration(&["rsa", "p256"], "spread"));
    let session = module.session();
    let mut made = 0;
    let mut sign_for = |time: u64| {
        let end = Instant::now() + Duration::from_millis(time);
        while Instant::now() < end {
            let data = [made as u8; 32];
            let signature = sign(&module, session, plain(CKM_RSA_PKCS), "rsa", &data).expect("a signature failed");
            if made % 50 == 0 {
                tokens.verify("rsa", &data, &signature, &[]);
            }
            made += 1;
        }
    };
    for round in 0..4 {
        sign_for(200);
        tokens.remove(round % 2);
        sign_for(500);
        tokens.put_back(round % 2);
    }
    sign_for(200);
    println!("{made} signatures, 0 failed, 4 times a token taken away");
    assert!(made > 100, "{made}");
}

#[test]
#[ignore = "needs softhsm2"]
fn a_wrong_pin_is_corrected_in_its_file() {
    let tokens = Tokens::softhsm("pin");
    fs::write(tokens.path("pin"), "9999").unwrap();
    let module = Module::started(&tokens.configuration(&["p256"], "ordered"));
    let session = module.session();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        assert_eq!(sign(&module, session, plain(CKM_ECDSA), "p256", &[1; 32]), Err(CKR_DEVICE_ERROR));
    }
    // As a Secret's files change: by another file in its place.
    fs::write(tokens.path("new"), "1234").unwrap();
    fs::rename(tokens.path("new"), tokens.path("pin")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(code) = sign(&module, session, plain(CKM_ECDSA), "p256", &[1; 32]) {
        assert!(Instant::now() < deadline, "{code:#x}");
        sleep(Duration::from_millis(10));
    }
}
