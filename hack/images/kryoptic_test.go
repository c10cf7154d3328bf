package main

import "testing"

func TestKryopticsKeyCoversItsFolderAlone(t *testing.T) {
	keyCovers(t, kryoptic,
		[]string{"kryoptic/Cargo.toml", "kryoptic/Cargo.lock", "kryoptic/src/lib.rs"},
		[]string{"Cargo.lock", "provider/src/lib.rs", "kryoptic/README.md"})
}
