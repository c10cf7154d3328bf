//! Where the primitives' randomness comes from. Their C code asks a function without arguments for it; what it answers
//! with is set for the length of one operation, by thread: several library contexts may be at work at once.

use std::cell::Cell;

/// A source of secret random bytes.
pub trait Source {
    /// Fills the buffer, or fails: then nothing in it may be used.
    fn fill(&self, out: &mut [u8]) -> super::Result;
}

thread_local! {
    static SOURCE: Cell<Option<*const dyn Source>> = const { Cell::new(None) };
}

/// Runs an operation whose randomness comes from a source.
pub fn with<T>(source: &dyn Source, operation: impl FnOnce() -> T) -> T {
    // SAFETY: only the lifetime changes; the reference is gone before `source` is.
    let erased = unsafe { std::mem::transmute::<*const dyn Source, *const (dyn Source + 'static)>(source) };
    let former = SOURCE.replace(Some(erased));
    let result = operation();
    SOURCE.set(former);
    result
}

fn fill(out: &mut [u8]) -> super::Result {
    let source = SOURCE.get().ok_or(super::Failed)?;
    // SAFETY: `with` keeps it alive for as long as it is set.
    unsafe { (*source).fill(out) }
}

/// For liboqs, whose callback cannot say that it failed: a process without randomness ends rather than going on with
/// predictable keys.
pub(super) unsafe extern "C" fn liboqs(out: *mut u8, len: usize) {
    if fill(std::slice::from_raw_parts_mut(out, len)).is_err() {
        std::process::abort();
    }
}

/// For KpqC, whose operations fail with it.
unsafe extern "C" fn kpqc(out: *mut u8, len: usize) -> libc::c_int {
    match fill(std::slice::from_raw_parts_mut(out, len)) {
        Ok(()) => 0,
        Err(_) => -1,
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {kpqc}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {kpqc}"
    };
}

/// KpqC's code calls a function of its own name for each parameter set. These take the place of the crate's, which ask
/// the operating system; being hidden, they are no symbols of the module.
macro_rules! kpqc_randomness {
    ($($set:literal)*) => {
        std::arch::global_asm!(
            $(
                concat!(".globl kpqc_", $set, "_randombytes"),
                concat!(".hidden kpqc_", $set, "_randombytes"),
                concat!(".type kpqc_", $set, "_randombytes, @function"),
                concat!("kpqc_", $set, "_randombytes:"),
            )*
            jump!(),
            kpqc = sym kpqc,
        );
    };
}
kpqc_randomness! {
    "smaugt128" "smaugt192" "smaugt256" "ntruplus768" "ntruplus864" "ntruplus1152" "haetae2" "haetae3" "haetae5"
    "aimer128s" "aimer128f" "aimer192s" "aimer192f" "aimer256s" "aimer256f"
}
