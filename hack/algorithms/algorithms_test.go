package main

import (
	"bytes"
	"crypto/ecdh"
	"crypto/mldsa"
	"crypto/mlkem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func table(t *testing.T) []row {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "crypto", "algorithms.csv"))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := parse(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func find(t *testing.T, name string) row {
	t.Helper()
	rows := table(t)
	i := slices.IndexFunc(rows, func(r row) bool { return r.Name == name })
	if i < 0 {
		t.Fatalf("the table has no %s", name)
	}
	return rows[i]
}

func TestGeneratedFilesAreThoseOfTheTable(t *testing.T) {
	for path, generate := range outputs {
		want, err := generate(table(t))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if got, err := os.ReadFile(filepath.Join("..", "..", path)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the table gives (%v): run make generate", path, err)
		}
	}
}

// header and a good row, which the cases of refused tables change.
const (
	columnsLine = "name,aliases,kind,family,level,library,primitive,hybrid,first,code_point,oid,status,key,public_key,secret_key,ciphertext,shared_secret,signature,certificate\n"
	goodLine    = "haetae2,,signature,HAETAE,2,kpqc,haetae2,,,0xFE4D,1.3.9999.14.1.1,unaudited,,992,1408,,,1474,2800\n"
)

func TestATableIsRefusedThat(t *testing.T) {
	if _, err := parse(strings.NewReader(columnsLine + goodLine)); err != nil {
		t.Fatalf("the good one is refused: %v", err)
	}
	for _, tc := range []struct{ name, from, to, says string }{
		{"lacks a column", ",certificate\n", "\n", "wrong number of fields"},
		{"has other columns", "name,", "names,", "line 1: the columns are not name,"},
		{"has a kind that there is not", "signature,HAETAE", "signatures,HAETAE", `kind "signatures" is none of kem, group, signature, scheme, key`},
		{"has a library that there is not", "kpqc,", "pqclean,", `library "pqclean" is none of openssl, liboqs, kpqc`},
		{"has a status that there is not", "unaudited", "fine", `status "fine" is none of standard, experimental, unaudited`},
		{"has a level above 5", "HAETAE,2,", "HAETAE,9,", `level "9" is no number from 1 to 7`},
		{"has a code point of more than 16 bits", "0xFE4D", "0x1FE4D", `code_point "0x1FE4D" is no number from 1 to 65535`},
		{"lacks an OID", "1.3.9999.14.1.1", "", "oid is empty; a signature of library kpqc has one"},
		{"lacks a size", ",1474,", ",,", "signature is empty; a signature of library kpqc has one"},
		{"names one twice", goodLine, goodLine + goodLine, `line 3, algorithm "haetae2": it is there already`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := strings.Replace(columnsLine+goodLine, tc.from, tc.to, 1)
			if _, err := parse(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v; want an error that says %q", err, tc.says)
			}
		})
	}
}

func TestAFamilyWithoutASectionIsRefused(t *testing.T) {
	if _, err := page(append(table(t), row{Name: "hqc1", Kind: "kem", Family: "HQC"})); err == nil || !strings.Contains(err.Error(), "no section has hqc1") {
		t.Errorf("%v", err)
	}
}

func TestTheAPINamesWhatCanBeServed(t *testing.T) {
	out, err := enumerations(table(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		kind, name string
		want       bool
	}{
		{"Group", "p256_smaug_t1", true},
		{"Group", "secp256r1", true},
		{"Group", "efrodo640aes", false}, // one name each
		{"SignatureScheme", "haetae3", true},
		{"SignatureScheme", "rsa_pss_rsae_sha256", true},
		{"SignatureScheme", "OV_Ip_pkc", true},
		{"SignatureScheme", "OV_V", false}, // its certificates are too large
		{"KeyAlgorithm", "ML-DSA-65", true},
		{"KeyAlgorithm", "p384_haetae3", true},
		{"KeyAlgorithm", "OV_V", false},
		{"KeyAlgorithm", "mldsa65", false},
	} {
		_, rest, _ := strings.Cut(string(out), "// "+tc.kind+" is")
		_, rest, _ = strings.Cut(rest, "Enum=")
		values, _, _ := strings.Cut(rest, "\n")
		if got := slices.Contains(strings.Split(values, ";"), tc.name); got != tc.want {
			t.Errorf("%s may be %s: %t, want %t", tc.kind, tc.name, got, tc.want)
		}
	}
}

// The provider's sizes are held to its primitives by crypto/provider.
func TestOpenSSLsAlgorithmsHaveTheSizesThatGoKnows(t *testing.T) {
	curves := map[string]ecdh.Curve{"x25519": ecdh.X25519(), "secp256r1": ecdh.P256(), "secp384r1": ecdh.P384(), "secp521r1": ecdh.P521()}
	share := map[string]int{}
	for name, curve := range curves {
		key, err := curve.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		secret, err := key.ECDH(key.PublicKey())
		if err != nil {
			t.Fatal(err)
		}
		share[name] = len(key.PublicKey().Bytes())
		want := row{PublicKey: share[name], SecretKey: len(key.Bytes()), Ciphertext: share[name], SharedSecret: len(secret)}
		sizesAre(t, name, want)
	}
	kems := map[string]row{
		"MLKEM768":  {PublicKey: mlkem.EncapsulationKeySize768, Ciphertext: mlkem.CiphertextSize768, SharedSecret: mlkem.SharedKeySize},
		"MLKEM1024": {PublicKey: mlkem.EncapsulationKeySize1024, Ciphertext: mlkem.CiphertextSize1024, SharedSecret: mlkem.SharedKeySize},
	}
	for name, want := range kems {
		want.SecretKey = find(t, name).SecretKey // Go keeps the seed alone
		sizesAre(t, name, want)
	}
	for name, halves := range map[string][2]string{"X25519MLKEM768": {"x25519", "MLKEM768"}, "SecP256r1MLKEM768": {"secp256r1", "MLKEM768"}, "SecP384r1MLKEM1024": {"secp384r1", "MLKEM1024"}} {
		a, b := find(t, halves[0]), find(t, halves[1])
		sizesAre(t, name, row{PublicKey: a.PublicKey + b.PublicKey, SecretKey: a.SecretKey + b.SecretKey, Ciphertext: a.Ciphertext + b.Ciphertext, SharedSecret: a.SharedSecret + b.SharedSecret})
	}
	for name, p := range map[string]mldsa.Parameters{"mldsa44": mldsa.MLDSA44(), "mldsa65": mldsa.MLDSA65(), "mldsa87": mldsa.MLDSA87()} {
		sizesAre(t, name, row{PublicKey: p.PublicKeySize(), SecretKey: find(t, name).SecretKey, Signature: p.SignatureSize()})
	}
}

func sizesAre(t *testing.T, name string, want row) {
	t.Helper()
	r := find(t, name)
	sizes := func(r row) string {
		return fmt.Sprintf("public key %d, secret key %d, ciphertext %d, shared secret %d, signature %d", r.PublicKey, r.SecretKey, r.Ciphertext, r.SharedSecret, r.Signature)
	}
	if sizes(r) != sizes(want) {
		t.Errorf("%s has in the table %s; in Go %s", name, sizes(r), sizes(want))
	}
}
