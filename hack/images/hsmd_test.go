package main

import (
	"maps"
	"testing"
)

func TestHsmdsKeyCoversTheModuleThatItIsMadeOf(t *testing.T) {
	keyOf := func(files map[string]string) key {
		t.Helper()
		k, err := hsmd.key("t", tree(t, files))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	sources := map[string]string{"Cargo.toml": "a", "Cargo.lock": "b", "hsmd/src/main.rs": "c", "pkcs11/src/lib.rs": "d"}
	k := keyOf(sources)
	for name := range sources {
		changed := maps.Clone(sources)
		changed[name] = "changed"
		if k == keyOf(changed) {
			t.Errorf("another %s gives the same key", name)
		}
	}
	for _, name := range []string{"provider/src/lib.rs", "hsmd/README.md", "hsmd/tests/rights.rs", "kryoptic/src/lib.rs"} {
		more := maps.Clone(sources)
		more[name] = "added"
		if k != keyOf(more) {
			t.Errorf("the key depends on %s", name)
		}
	}
}

func TestTheCratesOfAProgramAreListed(t *testing.T) {
	metadata := []byte(`{
		"packages": [
			{"id": "d", "name": "qtls-hsmd", "version": "0.1.0", "targets": [{"name": "hsmd", "kind": ["bin"]}]},
			{"id": "r", "name": "rustls", "version": "0.23.46", "license": "MIT", "source": "registry", "targets": []}
		],
		"resolve": {"nodes": [{"id": "d", "deps": [{"pkg": "r", "dep_kinds": [{"kind": null}]}]}]}
	}`)
	crates, err := linkedCrates(metadata, "hsmd", map[crateID]string{{"rustls", "0.23.46"}: "sum"})
	if err != nil {
		t.Fatal(err)
	}
	if want := (crate{"rustls", "0.23.46", "MIT", "sum"}); len(crates) != 1 || crates[0] != want {
		t.Errorf("%v, want %v alone", crates, want)
	}
}
