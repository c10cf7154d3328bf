fn main() {
    // The members' threads run in the module's code: it must stay mapped after dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
