//! Post-quantum reference code puts large arrays on the stack: more than OpenSSL's ASYNC fibres (32 KiB, no guard page)
//! and some threads have. It runs on a stack of its own here, one for each thread, with a guard page below.

use std::{cell::Cell, ptr};

/// The size of that stack, in bytes: four times what the hungriest algorithm was measured to need (tests/stack.rs).
pub const SIZE: usize = 8 << 20;

struct Stack {
    base: *mut u8,
    len: usize,
}

impl Stack {
    fn new() -> Option<Stack> {
        // SAFETY: a new mapping; only what is touched of it takes memory.
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let len = SIZE + page;
            let base = libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
                -1,
                0,
            );
            if base == libc::MAP_FAILED {
                return None;
            }
            let stack = Stack { base: base.cast(), len };
            if libc::mprotect(base, page, libc::PROT_NONE) != 0 {
                return None;
            }
            Some(stack)
        }
    }

    /// Forgets what was on it: the kernel hands out zeros afterwards.
    fn wipe(&self) {
        // SAFETY: the mapping is ours, and nothing runs on it.
        unsafe { libc::madvise(self.base.cast(), self.len, libc::MADV_DONTNEED) };
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing runs on it.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

thread_local! {
    static IDLE: Cell<Option<Stack>> = const { Cell::new(None) };
}

/// Runs f on a large stack, and wipes that afterwards: secrets were on it. None if there is no memory for one.
pub fn run<T>(f: impl FnOnce() -> T) -> Option<T> {
    on_large_stack(f, true)
}

/// The same for an f that leaves no secrets on its stack. Wiping costs more than such an operation itself: each page is
/// taken from the kernel anew.
pub fn run_tidy<T>(f: impl FnOnce() -> T) -> Option<T> {
    on_large_stack(f, false)
}

fn on_large_stack<T>(f: impl FnOnce() -> T, wipe: bool) -> Option<T> {
    let stack = match IDLE.take() {
        Some(stack) => stack,
        None => Stack::new()?,
    };
    // SAFETY: the stack is ours alone while it is taken; f does not unwind out of a program that aborts on panic, and
    // in tests a panic on it ends the test's process.
    let result = unsafe { psm::on_stack(stack.base, stack.len, f) };
    if wipe {
        stack.wipe();
    }
    IDLE.set(Some(stack));
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deep(n: usize) -> usize {
        let a = std::hint::black_box([n as u8; 4096]);
        if n == 0 {
            return 0;
        }
        1 + deep(n - 1) + a[4095] as usize - a[0] as usize
    }

    #[test]
    fn small_stacks_are_enough_outside() {
        let handle = std::thread::Builder::new().stack_size(32 << 10).spawn(|| run(|| deep(1000))).unwrap();
        assert_eq!(handle.join().unwrap(), Some(1000));
    }

    #[test]
    fn nothing_stays_on_it() {
        let mut at = 0;
        run(|| {
            let secret = std::hint::black_box([0xa5u8; 64]);
            at = secret.as_ptr() as usize;
        });
        let found = run(|| {
            // SAFETY: the address is in this very stack, below what is in use.
            unsafe { std::ptr::read_volatile(at as *const [u8; 16]) }
        });
        assert_ne!(found, Some([0xa5; 16]));
    }
}
