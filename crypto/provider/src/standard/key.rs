//! A key of a standard algorithm.

use super::table::{
    Primitive::{Kem, Signature},
    Standard,
};
use crate::{
    error::{expect_length, Error, Reason, Result},
    primitives::{
        fast::{Input, MlDsa, MlKem},
        Failed,
    },
    provider::Provider,
    stack,
};
use zeroize::Zeroizing;

/// A key, of which parts may be missing: libssl makes an empty one first and sets the peer's share then.
#[derive(Clone)]
pub(super) struct Key<'a> {
    pub(super) provider: &'a Provider,
    pub(super) algorithm: &'static Standard,
    /// As a key share has it: a hybrid's holds both halves.
    pub(super) public: Vec<u8>,
    pub(super) private: Zeroizing<Vec<u8>>,
    pub(super) seed: Option<Zeroizing<Vec<u8>>>,
    /// The private key of a hybrid's classical half.
    pub(super) classical: Zeroizing<Vec<u8>>,
}

impl<'a> Key<'a> {
    pub(super) fn empty(provider: &'a Provider, algorithm: &'static Standard) -> Key<'a> {
        let (private, classical) = (Zeroizing::default(), Zeroizing::default());
        Key { provider, algorithm, public: vec![], private, seed: None, classical }
    }

    pub(super) fn has_public(&self) -> bool {
        !self.public.is_empty()
    }

    pub(super) fn has_private(&self) -> bool {
        !self.private.is_empty()
    }

    fn error(&self, reason: Reason, what: &str) -> Error {
        self.algorithm.error(reason, what)
    }

    fn random(&self, out: &mut [u8]) -> std::result::Result<(), Failed> {
        self.provider.library.random(out).map_err(|_| Failed)
    }

    pub(super) fn entropy<const N: usize>(&self) -> Result<Zeroizing<[u8; N]>> {
        let mut out = Zeroizing::new([0; N]);
        self.random(&mut out[..]).map_err(|Failed| Error::internal("the random generator failed"))?;
        Ok(out)
    }

    /// Runs a primitive on a stack that is large enough for it.
    fn operate<T>(&self, doing: &str, f: impl FnOnce() -> std::result::Result<T, Failed>) -> Result<T> {
        stack::run_tidy(f)
            .ok_or_else(|| Error::internal("no memory for a stack"))?
            .map_err(|Failed| self.error(Reason::PrimitiveFailed, doing))
    }

    pub(super) fn generate(&mut self, seed: Option<&[u8]>) -> Result<()> {
        match (seed, self.algorithm.primitive) {
            (Some(seed), _) => self.set_seed(seed)?,
            (None, Kem(..)) => self.set_seed(&self.entropy::<{ MlKem::SEED }>()?[..])?,
            (None, Signature(_)) => self.set_seed(&self.entropy::<{ MlDsa::SEED }>()?[..])?,
        }
        if let Kem(_, Some(h)) = self.algorithm.primitive {
            let mut share = vec![0; self.algorithm.public_size()];
            let mut private = Zeroizing::new(vec![0; h.curve.secret()]);
            let (classical, post_quantum) = h.split_mut(&mut share, h.curve.public_key());
            post_quantum.copy_from_slice(&self.public);
            self.operate("key generation", || h.curve.generate(|b| self.random(b), classical, &mut private))?;
            (self.public, self.classical) = (share, private);
        }
        Ok(())
    }

    /// The key pair of a seed; of a hybrid, its post-quantum half.
    fn set_seed(&mut self, seed: &[u8]) -> Result<()> {
        let wrong = |_| self.error(Reason::InvalidLength, "a seed");
        let (public, private) = match self.algorithm.primitive {
            Kem(k, _) => {
                let seed = seed.try_into().map_err(wrong)?;
                let (mut public, mut private) = (vec![0; k.public_key], Zeroizing::new(vec![0; k.private_key]));
                self.operate("key generation", || k.keypair(seed, &mut public, &mut private))?;
                (public, private)
            }
            Signature(s) => {
                let seed = seed.try_into().map_err(wrong)?;
                let (mut public, mut private) = (vec![0; s.public_key], Zeroizing::new(vec![0; s.private_key]));
                self.operate("key generation", || s.keypair(seed, &mut public, &mut private))?;
                (public, private)
            }
        };
        (self.public, self.private, self.seed) = (public, private, Some(Zeroizing::new(seed.to_vec())));
        Ok(())
    }

    /// Takes an expanded private key, if it is valid. Hybrids' are never handed over.
    fn set_private(&mut self, private: &[u8]) -> Result<()> {
        let mut public = vec![0; self.algorithm.public_size()];
        let checked = match self.algorithm.primitive {
            Kem(_, Some(_)) => Ok(Err(Failed)),
            Kem(k, None) => self.operate("import", || {
                Ok(k.check_private(private).and_then(|()| {
                    public.copy_from_slice(k.public_of(private)?);
                    k.check_public(&public)
                }))
            }),
            Signature(s) => self.operate("import", || Ok(s.public_of(private, &mut public))),
        }?;
        checked.map_err(|Failed| self.error(Reason::InvalidKey, "the private key"))?;
        (self.public, self.private, self.seed) = (public, Zeroizing::new(private.to_vec()), None);
        Ok(())
    }

    pub(super) fn set_public(&mut self, public: &[u8]) -> Result<()> {
        let a = self.algorithm;
        expect_length("the public key", a.label(), public.len(), a.public_size())?;
        let checked = match a.primitive {
            Kem(k, Some(h)) => {
                let (classical, post_quantum) = h.split(public, h.curve.public_key());
                h.curve.check_public(classical).and_then(|()| k.check_public(post_quantum))
            }
            Kem(k, None) => k.check_public(public),
            Signature(_) => Ok(()),
        };
        checked.map_err(|Failed| self.error(Reason::InvalidKey, "the public key"))?;
        self.public = public.to_vec();
        Ok(())
    }

    /// Takes what another provider's key consists of. Parts that do not belong together are refused.
    pub(super) fn import(&mut self, seed: Option<&[u8]>, private: Option<&[u8]>, public: Option<&[u8]>) -> Result<()> {
        match (seed, private, public) {
            (Some(seed), ..) => self.set_seed(seed)?,
            (None, Some(private), _) => self.set_private(private)?,
            (None, None, Some(public)) => self.set_public(public)?,
            (None, None, None) => return Err(self.error(Reason::MissingKey, "the key")),
        }
        if private.is_some_and(|p| p != &self.private[..]) || public.is_some_and(|p| p != self.public) {
            *self = Key::empty(self.provider, self.algorithm);
            return Err(self.error(Reason::InvalidKey, "parts that do not belong together, the key"));
        }
        Ok(())
    }

    /// Writes a ciphertext and the shared secret, into buffers of output_size and secret_size.
    pub(super) fn encapsulate(
        &self,
        entropy: &[u8; MlKem::ENTROPY],
        ciphertext: &mut [u8],
        secret: &mut [u8],
    ) -> Result<()> {
        let Kem(k, hybrid) = self.algorithm.primitive else { return Err(self.misused()) };
        if !self.has_public() {
            return Err(self.error(Reason::MissingKey, "the public key"));
        }
        self.operate("encapsulation", || {
            let Some(h) = hybrid else { return k.encapsulate(entropy, &self.public, ciphertext, secret) };
            let (peer, public) = h.split(&self.public, h.curve.public_key());
            let (share, ciphertext) = h.split_mut(ciphertext, h.curve.public_key());
            let (agreed, secret) = h.split_mut(secret, h.curve.secret());
            let mut ephemeral = Zeroizing::new(vec![0; h.curve.secret()]);
            k.encapsulate(entropy, public, ciphertext, secret)?;
            h.curve.generate(|b| self.random(b), share, &mut ephemeral)?;
            h.curve.agree(&ephemeral, peer, agreed)
        })
    }

    pub(super) fn decapsulate(&self, ciphertext: &[u8], secret: &mut [u8]) -> Result<()> {
        let a = self.algorithm;
        let Kem(k, hybrid) = a.primitive else { return Err(self.misused()) };
        if !self.has_private() {
            return Err(self.error(Reason::MissingKey, "the private key"));
        }
        expect_length("the ciphertext", a.label(), ciphertext.len(), a.output_size())?;
        self.operate("decapsulation", || {
            let Some(h) = hybrid else { return k.decapsulate(&self.private, ciphertext, secret) };
            let (peer, ciphertext) = h.split(ciphertext, h.curve.public_key());
            let (agreed, secret) = h.split_mut(secret, h.curve.secret());
            k.decapsulate(&self.private, ciphertext, secret)?;
            h.curve.agree(&self.classical, peer, agreed)
        })
    }

    pub(super) fn sign(&self, entropy: &[u8; MlDsa::ENTROPY], input: Input, signature: &mut [u8]) -> Result<()> {
        let Signature(s) = self.algorithm.primitive else { return Err(self.misused()) };
        self.operate("signing", || s.sign(entropy, &self.private, input, signature))
    }

    pub(super) fn verify(&self, input: Input, signature: &[u8]) -> Result<()> {
        let Signature(s) = self.algorithm.primitive else { return Err(self.misused()) };
        let outcome = self.operate("verification", || Ok(s.verify(&self.public, input, signature)))?;
        outcome.map_err(|Failed| self.error(Reason::SignatureMismatch, "the signature"))
    }

    /// Whether the two keys belong together, by using them once.
    pub(super) fn validate(&self) -> Result<()> {
        let invalid = || self.error(Reason::InvalidKey, "the two keys");
        if let Signature(s) = self.algorithm.primitive {
            let (input, mut signature) = (Input::Formatted(b"pairwise consistency"), vec![0; s.signature]);
            self.sign(&MlDsa::DETERMINISTIC, input, &mut signature)?;
            return self.verify(input, &signature).map_err(|_| invalid());
        }
        let mut ciphertext = vec![0; self.algorithm.output_size()];
        let mut secrets = [(); 2].map(|()| Zeroizing::new(vec![0; self.algorithm.secret_size()]));
        self.encapsulate(&*self.entropy()?, &mut ciphertext, &mut secrets[0])?;
        self.decapsulate(&ciphertext, &mut secrets[1])?;
        if secrets[0] == secrets[1] {
            Ok(())
        } else {
            Err(invalid())
        }
    }

    fn misused(&self) -> Error {
        Error::internal(format!("{} has no such operation", self.algorithm.label()))
    }
}

/// A key as OpenSSL holds it.
pub(super) type OwnedKey = Key<'static>;

#[cfg(test)]
mod tests {
    use super::{super::ALGORITHMS, *};
    use crate::{primitives::fast::Curve, tests::support::provider};

    #[test]
    fn an_empty_key_does_nothing() {
        for a in &ALGORITHMS {
            let empty = Key::empty(provider(), a);
            let (mut output, mut secret) = (vec![0; a.output_size()], vec![0; a.secret_size()]);
            if a.is_signature() {
                let input = Input::Formatted(b"message");
                assert!(empty.sign(&MlDsa::DETERMINISTIC, input, &mut output).is_err());
                assert!(empty.verify(input, &output).is_err());
                continue;
            }
            let errors = [
                empty.encapsulate(&[7; MlKem::ENTROPY], &mut output, &mut secret).unwrap_err(),
                empty.decapsulate(&output, &mut secret).unwrap_err(),
                empty.validate().unwrap_err(),
            ];
            for e in errors {
                assert_eq!(e.reason, Reason::MissingKey, "{e:?}");
                assert!(e.detail.contains(a.label()), "{e:?}");
            }
        }
    }

    /// libssl then tells the peer that its share was at fault (illegal_parameter), not this side.
    #[test]
    fn a_share_that_is_no_point_of_the_curve_is_refused_when_it_comes() {
        for a in &ALGORITHMS {
            let Kem(_, Some(h)) = a.primitive else { continue };
            if h.curve == Curve::X25519 {
                continue; // each of its shares is one
            }
            let mut peer = Key::empty(provider(), a);
            peer.generate(None).unwrap();
            Key::empty(provider(), a).set_public(&peer.public).unwrap();
            let [mut off, mut hybrid_form] = [(); 2].map(|()| peer.public.clone());
            off[h.curve.public_key() - 1] ^= 1;
            hybrid_form[0] = 6 + (peer.public[h.curve.public_key() - 1] & 1);
            for share in [off, hybrid_form] {
                let mut key = Key::empty(provider(), a);
                assert_eq!(key.set_public(&share).unwrap_err().reason, Reason::InvalidKey, "{}", a.label());
                assert!(!key.has_public());
            }
        }
    }
}
