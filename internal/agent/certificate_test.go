package agent

import (
	"bytes"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/keypair"
)

func TestACertificateIsWrittenAsHAProxyReadsIt(t *testing.T) {
	for _, algorithm := range []v1alpha1.KeyAlgorithm{"ML-DSA-65", "ECDSA-P256"} {
		t.Run(string(algorithm), func(t *testing.T) {
			f := newFamily(t, algorithm)
			s, serial := f.secret(t, "web")
			s.ResourceVersion = "7"
			c, err := parseCertificate(s)
			if err != nil {
				t.Fatal(err)
			}
			if c.Algorithm != string(algorithm) || c.SerialNumber != serial || c.Secret != "web" || c.ResourceVersion != "7" || c.NotAfter.IsZero() {
				t.Errorf("certificate: %+v", c)
			}
			var kinds []string
			rest := c.PEM
			for block, after := pem.Decode(rest); block != nil; block, after = pem.Decode(rest) {
				kinds, rest = append(kinds, block.Type), after
				if block.Type == "PRIVATE KEY" && algorithm == "ML-DSA-65" && len(block.Bytes) > 60 {
					t.Errorf("the key has %d bytes, want the seed alone", len(block.Bytes))
				}
			}
			if got := strings.Join(kinds, ", "); got != "CERTIFICATE, PRIVATE KEY" { // the root is left out
				t.Errorf("the file holds %s", got)
			}
			if again, err := keypair.Parse(c.PEM[:bytes.Index(c.PEM, []byte("-----BEGIN PRIVATE"))], c.PEM[bytes.Index(c.PEM, []byte("-----BEGIN PRIVATE")):]); err != nil || again.SerialNumber() != serial {
				t.Errorf("the file does not read back: %v", err)
			}
		})
	}
}

// Go cannot use keys of the OpenSSL provider's algorithms: HAProxy gets them as
// the Secret has them.
func TestACertificateOfTheProvidersIsWrittenAsItIs(t *testing.T) {
	file := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join("..", "keypair", "testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	c, err := parseCertificate(tlsSecret("web", append(file("haetae2.crt"), file("middle.crt")...), file("haetae2.key")))
	if err != nil {
		t.Fatal(err)
	}
	if c.Algorithm != "haetae2" || !bytes.HasSuffix(c.PEM, file("haetae2.key")) || bytes.Count(c.PEM, []byte("BEGIN CERTIFICATE")) != 2 {
		t.Errorf("algorithm %s, %d certificates", c.Algorithm, bytes.Count(c.PEM, []byte("BEGIN CERTIFICATE")))
	}
}

func TestASecretThatCannotBeServed(t *testing.T) {
	f := newFamily(t, "ECDSA-P256")
	certPEM, keyPEM, _ := f.leaf(t, testHost)
	_, otherKey, _ := f.leaf(t, testHost)
	for _, c := range []struct {
		name      string
		cert, key []byte
		want      string
	}{
		{"another key", certPEM, otherKey, "does not belong"},
		{"no key", certPEM, nil, "no tls.key"},
		{"no certificate", nil, keyPEM, "no tls.crt"},
		{"a key for a certificate", keyPEM, keyPEM, "PRIVATE KEY"},
		{"no PEM", []byte("x"), keyPEM, "no certificate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseCertificate(tlsSecret("web", c.cert, c.key))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `Secret "web"`) {
				t.Errorf("error %v, want %q in it and the Secret's name", err, c.want)
			}
		})
	}
}

// FuzzSecret holds the parser to an error without key material, or to a file
// that reads back as the same pair.
func FuzzSecret(f *testing.F) {
	// ECDSA's pairs are short, so that there are many tries a second.
	certPEM, keyPEM, _ := newFamily(f, "ECDSA-P256").leaf(f, testHost)
	f.Add(certPEM, keyPEM)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, certPEM, keyPEM []byte) {
		c, err := parseCertificate(&corev1.Secret{Data: map[string][]byte{"tls.crt": certPEM, "tls.key": keyPEM}})
		if err != nil {
			if block, _ := pem.Decode(keyPEM); block != nil && len(block.Bytes) > 8 && bytes.Contains([]byte(err.Error()), block.Bytes) {
				t.Errorf("the error tells the key: %q", err)
			}
			return
		}
		i := bytes.Index(c.PEM, []byte("-----BEGIN PRIVATE KEY"))
		if i < 0 {
			t.Fatalf("no key in the file")
		}
		if _, err := keypair.Parse(c.PEM[:i], c.PEM[i:]); err != nil {
			t.Errorf("the file does not read back: %v", err)
		}
	})
}
