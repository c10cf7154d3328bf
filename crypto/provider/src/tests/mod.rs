//! Every algorithm of the table: what its keys, ciphertexts and signatures are like, and what is refused.

#[cfg(asan)] // `make test-asan` sets it
mod asan;
mod fuzz;
mod kat;
mod kem;
mod keys;
mod loading;
mod randomness;
mod signature;
mod stack_use;
pub mod support;
mod table;
#[cfg(target_arch = "x86_64")]
mod without_avx;
