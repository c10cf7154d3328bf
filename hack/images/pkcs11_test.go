package main

import "testing"

func TestThePKCS11ModulesKeyCoversItsCrate(t *testing.T) {
	keyCovers(t, pkcs11,
		[]string{"Cargo.toml", "Cargo.lock", "pkcs11/src/lib.rs", "pkcs11/build.rs"},
		[]string{"hsmd/src/main.rs", "provider/src/lib.rs", "pkcs11/README.md", "pkcs11/tests/module.rs"})
}
