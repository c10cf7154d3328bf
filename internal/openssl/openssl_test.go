package openssl

import (
	"bytes"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/openssl/openssltest"
)

func TestWhatIsSignedVerifies(t *testing.T) {
	openssltest.Use(t)
	for _, algorithm := range []string{"haetae2", "p256_aimer128f", "falcon512", "sphincssha2256fsimple"} { // the last has signatures of 50 KB
		t.Run(algorithm, func(t *testing.T) {
			key, err := GenerateKey(algorithm)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := keypair.ParseKey(key); err != nil {
				t.Fatalf("the key does not parse: %v", err)
			}
			public, err := run(command{name: "pkey", arguments: []string{"-in", input(0), "-pubout"}, inputs: [][]byte{key}})
			if err != nil {
				t.Fatal(err)
			}
			block, _ := pem.Decode(public)
			message := bytes.Repeat([]byte("to be signed "), 1000)
			signature, err := Sign(key, message)
			if err != nil {
				t.Fatal(err)
			}
			if err := Verify(block.Bytes, message, signature); err != nil {
				t.Errorf("its own signature: %v", err)
			}
			if err := Verify(block.Bytes, message[1:], signature); !errors.Is(err, ErrWrongSignature) {
				t.Errorf("of another message: %v", err)
			}
			signature[len(signature)/2] ^= 1
			if err := Verify(block.Bytes, message, signature); !errors.Is(err, ErrWrongSignature) {
				t.Errorf("one bit changed: %v", err)
			}
		})
	}
}

func TestChainsAreVerified(t *testing.T) {
	openssltest.Use(t)
	file := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join("..", "keypair", "testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	leaf, middle, root := file("haetae2.crt"), file("middle.crt"), file("root.crt")
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name         string
		others, root []byte
		at           time.Time
		want         bool
	}{
		{"the whole", middle, root, at, true},
		{"an anchor in the middle", nil, middle, at, true},
		{"one missing", nil, root, at, false},
		{"another root", middle, file("p521_mldsa87.crt"), at, false},
		{"before its time", middle, root, at.AddDate(-10, 0, 0), false},
	} {
		err := VerifyChain(leaf, tc.others, tc.root, "sslserver", tc.at)
		if (err == nil) != tc.want || err != nil && !errors.Is(err, ErrWrongSignature) {
			t.Errorf("%s: %v, want it to verify: %t", tc.name, err, tc.want)
		}
	}
}

func TestErrorsSayWhatIsWrongAndNothingSecret(t *testing.T) {
	openssltest.Use(t)
	if _, err := GenerateKey("rot13"); err == nil || !strings.Contains(err.Error(), "openssl genpkey") || !strings.Contains(err.Error(), "rot13") {
		t.Errorf("an algorithm that there is not: %v", err)
	}
	const secret = "c2VjcmV0IHNlY3JldCBzZWNyZXQ="
	_, err := Sign([]byte("-----BEGIN PRIVATE KEY-----\n"+secret+"\n-----END PRIVATE KEY-----\n"), nil)
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("a key that is none: %v", err)
	}
}

func TestWhereItCannotBeRunNothingIsSaidOfTheSignature(t *testing.T) {
	fake := func(script string) {
		dir := t.TempDir()
		if script != "" {
			if err := os.WriteFile(filepath.Join(dir, "openssl"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", dir)
	}
	for name, script := range map[string]string{
		"without openssl":      "",
		"without the provider": "echo 'dgst: unable to load provider oqsprovider' >&2; exit 1",
		"killed":               "kill -9 $$",
	} {
		fake(script)
		err := Verify(nil, nil, nil)
		if !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrWrongSignature) || !strings.Contains(err.Error(), "the operator's image has both") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
