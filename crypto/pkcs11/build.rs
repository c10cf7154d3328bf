fn main() {
    // The members' threads run in the module's code: it must stay mapped after dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // AWS-LC asks whether the program has functions for its memory, jemalloc's sdallocx for instance. HAProxy has that one, and
    // by RTLD_DEEPBIND the module has libc's malloc none the less: one would free what the other allocated. So there are none.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodynamic-undefined-weak");
    println!("cargo:rerun-if-changed=build.rs");
}
