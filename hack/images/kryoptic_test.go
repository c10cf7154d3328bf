package main

import (
	"maps"
	"testing"
)

func TestKryopticsKeyCoversItsFolderAlone(t *testing.T) {
	keyOf := func(files map[string]string) key {
		t.Helper()
		k, err := kryoptic.key("t", tree(t, files))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	sources := map[string]string{"kryoptic/Cargo.toml": "a", "kryoptic/Cargo.lock": "b", "kryoptic/src/lib.rs": "c"}
	k := keyOf(sources)
	for name := range sources {
		changed := maps.Clone(sources)
		changed[name] = "changed"
		if k == keyOf(changed) {
			t.Errorf("another %s gives the same key", name)
		}
	}
	for _, name := range []string{"Cargo.lock", "provider/src/lib.rs", "kryoptic/README.md"} {
		more := maps.Clone(sources)
		more[name] = "added"
		if k != keyOf(more) {
			t.Errorf("the key depends on %s", name)
		}
	}
}
