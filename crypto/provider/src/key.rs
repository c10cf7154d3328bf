//! Keys: their two halves, and their wire formats, which are oqs-provider's.

use crate::{
    algorithm::{Algorithm, Primitive},
    error::{expect_length, Error, Reason, Result},
    openssl::evp::Pkey,
    primitives::{random, Failed},
    provider::Provider,
    stack,
};
use zeroize::Zeroizing;

/// A key, of which parts may be missing: libssl makes an empty one first and sets the peer's share then.
pub struct Key<'a> {
    pub provider: &'a Provider,
    pub algorithm: &'static Algorithm,
    /// The classical half: a private key where there is `secret`.
    classical: Option<Pkey>,
    public: Option<Vec<u8>>,
    secret: Option<Zeroizing<Vec<u8>>>,
}

impl<'a> Key<'a> {
    pub fn empty(provider: &'a Provider, algorithm: &'static Algorithm) -> Key<'a> {
        Key { provider, algorithm, classical: None, public: None, secret: None }
    }

    pub fn has_public(&self) -> bool {
        self.public.is_some()
    }

    pub fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    pub fn has_same_public(&self, other: &Key) -> bool {
        std::ptr::eq(self.algorithm, other.algorithm)
            && self.public == other.public
            && self.classical == other.classical
    }

    /// A copy of its public part, or of all of it.
    pub fn copy(&self, public: bool, secret: bool) -> Result<Key<'a>> {
        let mut copy = Key::empty(self.provider, self.algorithm);
        if public || secret {
            copy.public = self.public.clone();
            copy.classical = match (self.algorithm.classical, &self.classical) {
                (Some(c), Some(key)) if !secret => Some(c.from_public(&self.provider.library, &c.public_bytes(key)?)?),
                _ => self.classical.clone(),
            };
        }
        if secret {
            copy.secret = self.secret.clone();
        }
        Ok(copy)
    }

    pub fn generate(&mut self) -> Result<()> {
        let (public_size, secret_size) = self.algorithm.key_sizes();
        let mut public = vec![0; public_size];
        let mut secret = Zeroizing::new(vec![0; secret_size]);
        let classical = match self.algorithm.classical {
            Some(c) => Some(c.generate(&self.provider.library)?),
            None => None,
        };
        self.operate("key generation", || match self.algorithm.primitive {
            Primitive::Kem(k) => k.generate(&mut public, &mut secret),
            Primitive::Signature(s) => s.generate(&mut public, &mut secret),
        })?;
        (self.classical, self.public, self.secret) = (classical, Some(public), Some(secret));
        Ok(())
    }

    /// Runs a primitive: with this library context's randomness, on a stack that is large enough.
    fn operate<T>(&self, doing: &str, f: impl FnOnce() -> std::result::Result<T, Failed>) -> Result<T> {
        stack::run(|| random::with(self.provider, f))
            .ok_or_else(|| Error::internal("no memory for a stack"))?
            .map_err(|Failed| Error::new(Reason::PrimitiveFailed, format!("{doing} with {}", self.algorithm.name)))
    }

    fn public(&self) -> Result<&[u8]> {
        self.public.as_deref().ok_or_else(|| self.missing("public"))
    }

    fn secret(&self) -> Result<&[u8]> {
        self.secret.as_ref().map(|s| s.as_slice()).ok_or_else(|| self.missing("private"))
    }

    fn classical(&self) -> Result<&Pkey> {
        self.classical.as_ref().ok_or_else(|| self.missing("classical"))
    }

    fn missing(&self, part: &str) -> Error {
        Error::new(Reason::MissingKey, format!("the key of {} has no {part} part", self.algorithm.name))
    }

    // What TLS sends.

    /// Puts the halves of a key share, ciphertext or shared secret in the group's order.
    fn in_order(&self, classical: &[u8], post_quantum: &[u8]) -> Vec<u8> {
        if self.algorithm.post_quantum_first {
            [post_quantum, classical].concat()
        } else {
            [classical, post_quantum].concat()
        }
    }

    /// The halves of a key share or ciphertext, whose classical one has a fixed length.
    fn split<'b>(&self, what: &str, whole: &'b [u8], post_quantum: usize) -> Result<(&'b [u8], &'b [u8])> {
        let classical = self.algorithm.classical.map_or(0, |c| c.public_length());
        expect_length(what, self.algorithm.name, whole.len(), classical + post_quantum)?;
        Ok(if self.algorithm.post_quantum_first {
            let (p, c) = whole.split_at(post_quantum);
            (c, p)
        } else {
            whole.split_at(classical)
        })
    }

    /// The public key as a TLS key share has it: the halves without lengths.
    pub fn share(&self) -> Result<Vec<u8>> {
        let classical = match self.algorithm.classical {
            Some(c) => c.public_bytes(self.classical()?)?,
            None => vec![],
        };
        Ok(self.in_order(&classical, self.public()?))
    }

    /// Takes a peer's key share as the public key.
    pub fn set_share(&mut self, share: &[u8]) -> Result<()> {
        let (classical, post_quantum) = self.split("the key share", share, self.algorithm.key_sizes().0)?;
        self.classical = match self.algorithm.classical {
            Some(c) => Some(c.from_public(&self.provider.library, classical)?),
            None => None,
        };
        self.public = Some(post_quantum.to_vec());
        self.secret = None;
        Ok(())
    }

    // What files hold.

    /// The public key as a SubjectPublicKeyInfo has it: the classical half after its length, in four bytes.
    pub fn public_bytes(&self) -> Result<Vec<u8>> {
        let mut out = vec![];
        if let Some(c) = self.algorithm.classical {
            let classical = c.public_bytes(self.classical()?)?;
            out.extend((classical.len() as u32).to_be_bytes());
            out.extend(classical);
        }
        out.extend(self.public()?);
        Ok(out)
    }

    pub fn from_public_bytes(provider: &'a Provider, algorithm: &'static Algorithm, bytes: &[u8]) -> Result<Key<'a>> {
        let mut key = Key::empty(provider, algorithm);
        let mut post_quantum = bytes;
        if let Some(c) = algorithm.classical {
            let (classical, rest) = split_length(bytes).ok_or_else(|| key.malformed("public"))?;
            key.classical = Some(c.from_public(&provider.library, classical)?);
            post_quantum = rest;
        }
        expect_length("the public key", algorithm.name, post_quantum.len(), algorithm.key_sizes().0)?;
        key.public = Some(post_quantum.to_vec());
        Ok(key)
    }

    /// The private key as a PrivateKeyInfo has it: the classical half after its length, the secret key, the public key.
    pub fn private_bytes(&self) -> Result<Zeroizing<Vec<u8>>> {
        let (public, secret) = (self.public()?, self.secret()?);
        let classical = match self.algorithm.classical {
            Some(c) => c.private_bytes(self.classical()?)?,
            None => Zeroizing::default(),
        };
        let mut out = Zeroizing::new(Vec::with_capacity(4 + classical.len() + secret.len() + public.len())); // never grows
        if self.algorithm.classical.is_some() {
            out.extend((classical.len() as u32).to_be_bytes());
            out.extend_from_slice(&classical);
        }
        out.extend_from_slice(secret);
        out.extend_from_slice(public);
        Ok(out)
    }

    pub fn from_private_bytes(provider: &'a Provider, algorithm: &'static Algorithm, bytes: &[u8]) -> Result<Key<'a>> {
        let mut key = Key::empty(provider, algorithm);
        let mut post_quantum = bytes;
        if let Some(c) = algorithm.classical {
            let (classical, rest) = split_length(bytes).ok_or_else(|| key.malformed("private"))?;
            key.classical = Some(c.from_private(&provider.library, classical)?);
            post_quantum = rest;
        }
        let (public, secret) = algorithm.key_sizes();
        expect_length("the private key with its public one", algorithm.name, post_quantum.len(), secret + public)?;
        let (secret, public) = post_quantum.split_at(secret);
        key.secret = Some(Zeroizing::new(secret.to_vec()));
        key.public = Some(public.to_vec());
        Ok(key)
    }

    fn malformed(&self, part: &str) -> Error {
        Error::new(
            Reason::InvalidEncoding,
            format!("the {part} key of {} does not begin with the length of its classical half", self.algorithm.name),
        )
    }

    // Operations.

    /// A ciphertext to this public key, and the shared secret.
    pub fn encapsulate(&self) -> Result<(Vec<u8>, Zeroizing<Vec<u8>>)> {
        let Primitive::Kem(kem) = self.algorithm.primitive else { return Err(self.misused()) };
        let sizes = kem.sizes();
        let mut ciphertext = vec![0; sizes.ciphertext];
        let mut shared = Zeroizing::new(vec![0; sizes.shared_secret]);
        let public = self.public()?;
        self.operate("encapsulation", || kem.encapsulate(public, &mut ciphertext, &mut shared))?;
        let Some(c) = self.algorithm.classical else { return Ok((ciphertext, shared)) };
        let library = &self.provider.library;
        let ephemeral = c.generate(library)?;
        let mut agreed = Zeroizing::new(vec![0; c.secret_length()]);
        c.derive(library, &ephemeral, self.classical()?, &mut agreed)?;
        Ok((self.in_order(&c.public_bytes(&ephemeral)?, &ciphertext), Zeroizing::new(self.in_order(&agreed, &shared))))
    }

    /// The shared secret of a ciphertext. One that is not this key's gives a secret that its sender cannot know,
    /// also where the primitive would tell (NTRU+): no answer of ours is to be an oracle.
    pub fn decapsulate(&self, ciphertext: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        let Primitive::Kem(kem) = self.algorithm.primitive else { return Err(self.misused()) };
        let sizes = kem.sizes();
        let (peer, post_quantum) = self.split("the ciphertext", ciphertext, sizes.ciphertext)?;
        let secret = self.secret()?;
        let mut shared = Zeroizing::new(vec![0; sizes.shared_secret]);
        let outcome = self.operate("decapsulation", || Ok(kem.decapsulate(secret, post_quantum, &mut shared)))?;
        self.reject_implicitly(outcome, secret, post_quantum, &mut shared)?;
        let Some(c) = self.algorithm.classical else { return Ok(shared) };
        let library = &self.provider.library;
        let peer = c.from_public(library, peer)?;
        let mut agreed = Zeroizing::new(vec![0; c.secret_length()]);
        c.derive(library, self.classical()?, &peer, &mut agreed)?;
        Ok(Zeroizing::new(self.in_order(&agreed, &shared)))
    }

    /// Replaces the secret where decapsulation failed, by one that depends on the secret key and the ciphertext. It is
    /// computed either way, and chosen without a branch.
    fn reject_implicitly(
        &self,
        outcome: std::result::Result<(), Failed>,
        secret: &[u8],
        ciphertext: &[u8],
        shared: &mut [u8],
    ) -> Result<()> {
        let failed = |_| Error::internal("HMAC-SHA-256 failed");
        let library = &self.provider.library;
        let key = library.hmac_sha256(b"implicit rejection", secret).map_err(failed)?;
        let chosen = 0u8.wrapping_sub(std::hint::black_box(outcome.is_err()) as u8);
        for (i, block) in shared.chunks_mut(32).enumerate() {
            let mut message = vec![i as u8];
            message.extend_from_slice(ciphertext);
            let substitute = library.hmac_sha256(&key[..], &message).map_err(failed)?;
            for (s, r) in block.iter_mut().zip(substitute.iter()) {
                *s ^= chosen & (*s ^ *r);
            }
        }
        Ok(())
    }

    /// A signature: for hybrids the classical one after its length, in four bytes, then the other.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>> {
        let Primitive::Signature(primitive) = self.algorithm.primitive else { return Err(self.misused()) };
        let secret = self.secret()?;
        let mut out = vec![];
        if let Some(c) = self.algorithm.classical {
            let classical = c.sign(&self.provider.library, self.classical()?, self.algorithm.level, message)?;
            out.extend((classical.len() as u32).to_be_bytes());
            out.extend(classical);
        }
        let start = out.len();
        out.resize(start + primitive.sizes().signature, 0);
        let len = self.operate("signing", || primitive.sign(secret, message, &mut out[start..]))?;
        out.truncate(start + len);
        Ok(out)
    }

    pub fn verify(&self, message: &[u8], signature: &[u8]) -> Result<()> {
        let Primitive::Signature(primitive) = self.algorithm.primitive else { return Err(self.misused()) };
        let wrong =
            || Error::new(Reason::SignatureMismatch, format!("the signature of {} is wrong", self.algorithm.name));
        let public = self.public()?;
        let mut post_quantum = signature;
        if let Some(c) = self.algorithm.classical {
            let (classical, rest) = split_length(signature).ok_or_else(wrong)?;
            if !c.verify(&self.provider.library, self.classical()?, self.algorithm.level, message, classical) {
                return Err(wrong());
            }
            post_quantum = rest;
        }
        if post_quantum.len() > primitive.sizes().signature {
            return Err(wrong());
        }
        let ok = self.operate("verification", || Ok(primitive.verify(public, message, post_quantum).is_ok()))?;
        if ok {
            Ok(())
        } else {
            Err(wrong())
        }
    }

    /// Whether the halves belong together, by using them once.
    pub fn validate(&self) -> Result<()> {
        let invalid = || {
            Error::new(Reason::InvalidKey, format!("the two keys of {} do not belong together", self.algorithm.name))
        };
        match self.algorithm.primitive {
            Primitive::Kem(_) => {
                let (ciphertext, shared) = self.encapsulate()?;
                if self.decapsulate(&ciphertext)? == shared {
                    Ok(())
                } else {
                    Err(invalid())
                }
            }
            Primitive::Signature(_) => {
                let message = b"pairwise consistency";
                self.verify(message, &self.sign(message)?).map_err(|_| invalid())
            }
        }
    }

    fn misused(&self) -> Error {
        Error::internal(format!("{} has no such operation", self.algorithm.name))
    }
}

/// Splits off what a length in four bytes, big-endian, precedes.
fn split_length(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*len) as usize)
}
