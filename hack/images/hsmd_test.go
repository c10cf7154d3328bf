package main

import (
	"maps"
	"testing"
)

// keyCovers tests that a library's key changes with each of its sources, and with none of the others.
func keyCovers(t *testing.T, l rustLibrary, sources, others []string) {
	t.Helper()
	keyOf := func(files map[string]string) key {
		t.Helper()
		k, err := l.key("t", tree(t, files))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	files := map[string]string{}
	for _, name := range sources {
		files[name] = name
	}
	k := keyOf(files)
	for _, name := range sources {
		changed := maps.Clone(files)
		changed[name] = "changed"
		if k == keyOf(changed) {
			t.Errorf("another %s gives the same key", name)
		}
	}
	for _, name := range others {
		more := maps.Clone(files)
		more[name] = "added"
		if k != keyOf(more) {
			t.Errorf("the key depends on %s", name)
		}
	}
}

func TestHsmdsKeyCoversTheModuleThatItIsMadeOf(t *testing.T) {
	keyCovers(t, hsmd,
		[]string{"Cargo.toml", "Cargo.lock", "hsmd/src/main.rs", "pkcs11/src/lib.rs"},
		[]string{"provider/src/lib.rs", "hsmd/README.md", "hsmd/tests/rights.rs", "kryoptic/src/lib.rs"})
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
