package pki

import (
	"bytes"
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/keypair"
)

// gatewayOpenSSL returns a function that runs the gateway image's OpenSSL 3.5, the
// one that reads these keys and certificates in earnest. Its root file system
// is found by QTLS_GATEWAY_ROOTFS, which `make` sets.
func gatewayOpenSSL(t *testing.T) func(arguments ...string) (string, error) {
	t.Helper()
	root := os.Getenv("QTLS_GATEWAY_ROOTFS")
	if root == "" {
		if os.Getenv("QTLS_REQUIRE_ROOTFS") != "" {
			t.Fatal("QTLS_GATEWAY_ROOTFS is not set")
		}
		t.Skip("QTLS_GATEWAY_ROOTFS is not set: `make test-unit` sets it to the gateway image's root file system")
	}
	return func(arguments ...string) (string, error) {
		cmd := exec.Command(filepath.Join(root, "lib64/ld-linux-x86-64.so.2"), append([]string{"--library-path", filepath.Join(root, "usr/lib/x86_64-linux-gnu"),
			filepath.Join(root, "usr/bin/openssl")}, arguments...)...)
		cmd.Env = append(os.Environ(), "OPENSSL_CONF="+filepath.Join(root, "etc/ssl/openssl.cnf"), "OPENSSL_MODULES="+filepath.Join(root, "usr/lib/x86_64-linux-gnu/ossl-modules"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// A chain of three of each algorithm is one to OpenSSL, also when it looks for
// every deviation from RFC 5280; so are the keys and the requests.
func TestOpenSSLTakesWhatWeMake(t *testing.T) {
	run := gatewayOpenSSL(t)
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	at := strconv.FormatInt(now.Unix(), 10)
	for _, a := range issued {
		t.Run(string(a.Name), func(t *testing.T) {
			top := root(t, a.Name)
			middleKey := newKey(t, authorityOf[a.Family])
			middle := authority(t, middleKey, sign(t, top, orderCA(t, middleKey, "Intermediate")))
			issued := sign(t, middle, order(t, key(t, a.Name)))
			rootFile := write("root.pem", CertificatesPEM(issued.Chain.Anchor))
			chainFile := write("chain.pem", CertificatesPEM(issued.Chain.Certificates...))

			verify := []string{"verify", "-x509_strict", "-check_ss_sig", "-policy_check", "-purpose", "sslserver", "-attime", at, "-CAfile", rootFile, "-untrusted", chainFile}
			if out, err := run(append(verify, "-verify_hostname", "www.example.com", chainFile)...); err != nil {
				t.Errorf("openssl verify: %v\n%s", err, out)
			}
			if out, err := run(append(verify, "-verify_hostname", "bank.example.com", chainFile)...); err == nil {
				t.Errorf("openssl verify takes it for another host:\n%s", out)
			}

			keyPEM, err := keypair.MarshalKey(key(t, a.Name))
			if err != nil {
				t.Fatal(err)
			}
			keyFile := write("key.pem", keyPEM)
			// OpenSSL writes the public key that it makes of the private one.
			out, err := run("pkey", "-in", keyFile, "-pubout")
			if err != nil {
				t.Fatalf("openssl pkey: %v", err)
			}
			own, err := run("x509", "-in", chainFile, "-noout", "-pubkey")
			if err != nil || out != own {
				t.Errorf("OpenSSL finds another public key in the private key than in the certificate: %v", err)
			}

			request, err := NewRequest(key(t, a.Name), Names{CommonName: "a", DNSNames: []string{"a.b"}})
			if err != nil {
				t.Fatal(err)
			}
			if out, err := run("req", "-in", write("request.pem", request), "-noout", "-verify"); err != nil || !bytes.Contains([]byte(out), []byte("verify OK")) {
				t.Errorf("openssl req: %v\n%s", err, out)
			}
		})
	}
}

// What OpenSSL makes is ours to use: an authority that an administrator brings.
func TestAuthoritiesThatOpenSSLMade(t *testing.T) {
	run := gatewayOpenSSL(t)
	dir := t.TempDir()
	for _, c := range []struct {
		name      string
		algorithm []string
		family    algorithms.Family
	}{
		{"ML-DSA", []string{"-algorithm", "ML-DSA-65"}, algorithms.PostQuantum},
		{"EC", []string{"-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"}, algorithms.Classical},
		{"RSA", []string{"-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"}, algorithms.Classical},
	} {
		t.Run(c.name, func(t *testing.T) {
			keyFile, certFile := filepath.Join(dir, c.name+".key"), filepath.Join(dir, c.name+".crt")
			if out, err := run(append([]string{"genpkey", "-out", keyFile}, c.algorithm...)...); err != nil {
				t.Fatalf("openssl genpkey: %v\n%s", err, out)
			}
			if out, err := run("req", "-x509", "-new", "-key", keyFile, "-subj", "/CN=OpenSSL CA", "-not_before", "20300101000000Z", "-not_after", "20400101000000Z",
				"-addext", "basicConstraints=critical,CA:TRUE,pathlen:1", "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-out", certFile); err != nil {
				t.Fatalf("openssl req: %v\n%s", err, out)
			}
			keyPEM, err := os.ReadFile(keyFile)
			if err != nil {
				t.Fatal(err)
			}
			certPEM, err := os.ReadFile(certFile)
			if err != nil {
				t.Fatal(err)
			}
			ca, err := ParseAuthority(certPEM, keyPEM, nil, now)
			if err != nil || ca.Family != c.family {
				t.Fatalf("%+v, %v", ca, err)
			}
			below := newKey(t, authorityOf[c.family])
			issued := sign(t, ca, orderCA(t, below, "Below"))
			if leaf := issued.Chain.Leaf(); leaf.MaxPathLen != 0 || !leaf.MaxPathLenZero {
				t.Errorf("pathLenConstraint %d below one of 1", leaf.MaxPathLen)
			}
			roots := x509.NewCertPool()
			roots.AddCert(ca.Certificate())
			if _, err := issued.Chain.Leaf().Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
				t.Error(err)
			}
		})
	}
}
