//go:build crypto

package main

import (
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"qtls.dev/qtls/internal/openssl/openssltest"
)

// A certificate's size in the table is that of a self-signed one for one DNS
// name. Signatures of ECDSA, and of Falcon without padding, vary in length.
func TestCertificatesHaveTheSizeOfTheTable(t *testing.T) {
	openssltest.Use(t)
	key, cert := filepath.Join(t.TempDir(), "key"), filepath.Join(t.TempDir(), "cert")
	for _, r := range table(t) {
		if !r.hasKey() {
			continue
		}
		generate := []string{"-algorithm", r.keyName()}
		if family, rest, _ := strings.Cut(r.keyName(), "-"); family == "RSA" {
			generate = []string{"-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:" + rest}
		} else if family == "ECDSA" {
			generate = []string{"-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-" + strings.TrimPrefix(rest, "P")}
		}
		for _, arguments := range [][]string{
			append([]string{"genpkey", "-out", key}, generate...),
			{"req", "-x509", "-new", "-key", key, "-out", cert, "-days", "90", "-subj", "/CN=www.example.com", "-addext", "subjectAltName=DNS:www.example.com"},
		} {
			if out, err := exec.Command("openssl", append(arguments, "-provider", "default", "-provider", "oqsprovider")...).CombinedOutput(); err != nil {
				t.Fatalf("%s: openssl %s: %v\n%s", r.Name, arguments[0], err, out)
			}
		}
		data, err := os.ReadFile(cert)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(data)
		if off := max(len(block.Bytes)-r.Certificate, r.Certificate-len(block.Bytes)); off > max(10, r.Certificate/50) {
			t.Errorf("%s: a certificate has %d bytes, the table says %d", r.Name, len(block.Bytes), r.Certificate)
		}
	}
}
