package keypair

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"qtls.dev/qtls/api/v1alpha1"
)

// The bytes are what pkcs11-provider reads: a VisibleString and a UTF8String.
func TestAReferenceIsPKCS11ProvidersURI(t *testing.T) {
	r := Reference{Pool: "pool", Label: "web-1"}
	block, rest := pem.Decode(r.PEM())
	if block == nil || block.Type != "PKCS#11 PROVIDER URI" || len(rest) > 0 {
		t.Fatalf("%s", r.PEM())
	}
	uri := "pkcs11:token=pool;object=web-1;type=private"
	want := "3048" + "1a19" + hex.EncodeToString([]byte("PKCS#11 Provider URI v1.0")) + "0c2b" + hex.EncodeToString([]byte(uri))
	if got := hex.EncodeToString(block.Bytes); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	for _, r := range []Reference{r, {"a b", "100% ; = ü/"}} {
		if got, err := ParseReference(r.PEM()); err != nil || got != r {
			t.Errorf("%+v is read as %+v, %v", r, got, err)
		}
	}
}

func TestOtherReferencesAreRefused(t *testing.T) {
	der := func(uri string) []byte {
		b := append([]byte{0x1a, 1, 'x', 0x0c, byte(len(uri))}, uri...)
		return pem.EncodeToMemory(&pem.Block{Type: referenceType, Bytes: append([]byte{0x30, byte(len(b))}, b...)})
	}
	good := Reference{"pool", "web"}.PEM()
	for name, data := range map[string][]byte{
		"nothing":           nil,
		"a key":             pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte{1}}),
		"two":               append(bytes.Clone(good), good...),
		"no DER":            pem.EncodeToMemory(&pem.Block{Type: referenceType, Bytes: []byte{1}}),
		"no URI":            der("web"),
		"no label":          der("pkcs11:token=pool;type=private"),
		"no pool":           der("pkcs11:object=web;type=private"),
		"no type":           der("pkcs11:token=pool;object=web"),
		"a public key":      der("pkcs11:token=pool;object=web;type=public"),
		"a PIN":             der("pkcs11:token=pool;object=web;type=private?pin-value=1234"),
		"another attribute": der("pkcs11:token=pool;object=web;id=%01;type=private"),
		"a line's end":      der("pkcs11:token=pool;object=web%0A[key%20other];type=private"),
		"a broken escape":   der("pkcs11:token=pool;object=%zz;type=private"),
	} {
		if r, err := ParseReference(data); err == nil {
			t.Errorf("%s: read as %+v", name, r)
		} else if strings.Contains(err.Error(), "1234") {
			t.Errorf("%s: the PIN is told: %v", name, err)
		}
	}
}

// They are names in the configuration of the PKCS #11 module, which is refused as
// a whole where one of them is not read as it was written.
func TestLabelsThatCannotStandInTheModulesConfiguration(t *testing.T) {
	for _, label := range []string{"web", "shop/web-1", "ein Schlüssel", "a#b", "x[1] y", "[x", "한국"} {
		r := Reference{"pool", label}
		got, err := ParseReference(r.PEM())
		if err != nil || got != r {
			t.Errorf("%q: %+v, %v", label, got, err)
		}
	}
	for label, says := range map[string]string{
		" web":        "white space",
		"web ":        "white space",
		"web\u00a0":   "white space",
		"\u3000web":   "white space",
		"web\u0085":   "white space",
		"a\nb":        "control character",
		"a\x00b":      "control character",
		"a\u200bb":    "control character",
		"a\u2028b":    "line separator",
		"a\u2029b":    "line separator",
		"#web":        "# at the beginning",
		"web #1":      "# at the beginning or after a blank",
		"a]":          "ends with ]",
		"\xff\xfeweb": "UTF-8",
	} {
		if r, err := ParseReference(Reference{"pool", label}.PEM()); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), strconv.Quote(label)) {
			t.Errorf("%q: %+v, %v; want one that says %q", label, r, err, says)
		}
	}
}

// Whoever needs the key itself is told where it is.
func TestAReferenceIsNoPrivateKey(t *testing.T) {
	certificate := certPEM(issue(t, "leaf", "ECDSA-P256", nil))
	reference := Reference{"pool", "web"}.PEM()
	if _, err := Parse(certificate, reference); !errors.Is(err, ErrInHSM) || !strings.Contains(err.Error(), "pkcs11:token=pool;object=web;type=private") {
		t.Errorf("%v", err)
	}
	stored, err := ParseStored(certificate, reference)
	if err != nil {
		t.Fatal(err)
	}
	key, ok := stored.Key.(*ReferencedKey)
	if !ok || key.Reference != (Reference{"pool", "web"}) || !stored.Chain[0].PublicKey.(interface{ Equal(crypto.PublicKey) bool }).Equal(key.Public()) {
		t.Errorf("%+v", stored.Key)
	}
	if _, err := key.Sign(nil, nil, crypto.SHA256); !errors.Is(err, ErrInHSM) {
		t.Errorf("it signs: %v", err)
	}
	if _, err := MarshalKey(key); err == nil {
		t.Error("it is written as a private key")
	}
}

// The module refuses its whole configuration for a public key that it does not
// know.
func TestAlgorithmsThatNoHSMHas(t *testing.T) {
	reference := Reference{"pool", "web"}.PEM()
	if _, err := ParseStored(file(t, "haetae2.crt"), reference); err == nil || !strings.Contains(err.Error(), `pool "pool" cannot have the key of a certificate of haetae2`) {
		t.Errorf("a certificate of the OpenSSL provider's: %v", err)
	}
	for bits, served := range map[uint]bool{2048: true, 4096: true, 8192: true, 8193: false, 16384: false} {
		modulus := new(big.Int).Lsh(big.NewInt(1), bits-1)
		if servedByHSM(&rsa.PublicKey{N: modulus, E: 65537}) != served {
			t.Errorf("RSA of %d bits: want %t", bits, served)
		}
	}
	for _, algorithm := range []v1alpha1.KeyAlgorithm{"ML-DSA-44", "ML-DSA-65", "ML-DSA-87", "ECDSA-P256", "ECDSA-P384", "RSA-2048"} {
		if _, err := ParseStored(certPEM(issue(t, "leaf", algorithm, nil)), reference); err != nil {
			t.Errorf("%s: %v", algorithm, err)
		}
	}
}

// FuzzParseURI: what is accepted is read back from a line of the PKCS #11
// module's configuration, whose rules (crypto/pkcs11/src/config.rs) these are.
func FuzzParseURI(f *testing.F) {
	for _, label := range []string{"web", "#web", "web #1", "web\u3000", "a]", "a\nb", "\xff"} {
		f.Add(Reference{"pool", label}.URI())
	}
	f.Add("pkcs11:token=pool;object=web;type=private?pin-value=1234")
	f.Fuzz(func(t *testing.T, uri string) {
		r, err := ParseURI(uri)
		if err != nil {
			return
		}
		if r.URI() != uri {
			t.Errorf("%q is read as %+v", uri, r)
		}
		for _, name := range []string{r.Pool, r.Label} {
			line, _, _ := strings.Cut("[key "+name+"]", " #")
			line = strings.TrimSpace(line)
			_, read, _ := strings.Cut(strings.TrimSuffix(line, "]"), " ")
			if read = strings.TrimSpace(read); read != name || !utf8.ValidString(name) || strings.Contains(name, "\n") {
				t.Errorf("%q is read as %q", name, read)
			}
		}
	})
}
