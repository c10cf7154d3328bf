//! The post-quantum primitives: key encapsulation and signatures of liboqs and KpqC, behind two traits.

pub mod fast;
pub mod kpqc;
pub mod liboqs;
pub mod random;

/// A failure of a primitive; it says no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

pub type Result = std::result::Result<(), Failed>;

/// Lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KemSizes {
    pub public_key: usize,
    pub secret_key: usize,
    pub ciphertext: usize,
    pub shared_secret: usize,
}

/// A key encapsulation mechanism. Every slice has the length that sizes() says.
pub trait Kem: Sync {
    fn sizes(&self) -> KemSizes;
    fn generate(&self, public: &mut [u8], secret: &mut [u8]) -> Result;
    fn encapsulate(&self, public: &[u8], ciphertext: &mut [u8], shared: &mut [u8]) -> Result;
    /// Decapsulates. Failed says that the ciphertext is not one of this key's, where the algorithm tells; to the peer
    /// that must look like any other secret (see crate::key).
    fn decapsulate(&self, secret: &[u8], ciphertext: &[u8], shared: &mut [u8]) -> Result;
}

/// Lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureSizes {
    pub public_key: usize,
    pub secret_key: usize,
    /// The greatest length of a signature.
    pub signature: usize,
}

/// A signature algorithm. Keys have the length that sizes() says.
pub trait Signature: Sync {
    fn sizes(&self) -> SignatureSizes;
    fn generate(&self, public: &mut [u8], secret: &mut [u8]) -> Result;
    /// Signs into a buffer of the greatest length, and says how much of it the signature is.
    fn sign(&self, secret: &[u8], message: &[u8], signature: &mut [u8]) -> std::result::Result<usize, Failed>;
    fn verify(&self, public: &[u8], message: &[u8], signature: &[u8]) -> Result;
}
