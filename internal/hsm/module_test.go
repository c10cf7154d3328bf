//go:build crypto

package hsm_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/hsm/hsmtest"
	"qtls.dev/qtls/internal/pki"
)

// module is an openssl of the gateway's image, whose keys lie behind an hsmd: by
// way of pkcs11-provider and libqtls_pkcs11.so.
type module struct {
	t                  *testing.T
	root, dir, address string
}

func newModule(t *testing.T, address string) *module {
	t.Helper()
	root, library := os.Getenv("QTLS_GATEWAY_ROOTFS"), os.Getenv("QTLS_PKCS11_MODULE")
	if root == "" || library == "" {
		t.Skip("QTLS_GATEWAY_ROOTFS and QTLS_PKCS11_MODULE are not set: `make test-crypto` sets them to the gateway image's root file system and to libqtls_pkcs11.so (crypto/pkcs11)")
	}
	m := &module{t: t, root: root, dir: t.TempDir(), address: address}
	providers, err := filepath.Glob(filepath.Join(root, "usr/lib/*/ossl-modules/pkcs11.so"))
	if err != nil || len(providers) != 1 {
		t.Fatalf("pkcs11-provider in %s: %v, %v", root, providers, err)
	}
	m.write("openssl.cnf", fmt.Appendf(nil, `openssl_conf = init
[init]
providers = list
[list]
default = on
pkcs11 = pkcs11
[on]
activate = 1
[pkcs11]
module = %s
pkcs11-module-path = %s
pkcs11-module-quirks = no-deinit no-operation-state
pkcs11-module-encode-provider-uri-to-pem = true
activate = 1
[req]
distinguished_name = name
[name]
`, providers[0], library))
	return m
}

func (m *module) path(name string) string { return filepath.Join(m.dir, name) }

func (m *module) write(name string, content []byte) {
	m.t.Helper()
	if err := os.WriteFile(m.path(name), content, 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// configure the module: as which of hsmd's clients, whether it may have keys made,
// and the sections [key].
func (m *module) configure(a *hsmtest.Authority, client string, generate bool, keys string) {
	m.t.Helper()
	certificate, key := a.Issue(m.t, client)
	m.write("ca.crt", a.PEM())
	m.write("tls.crt", certificate)
	m.write("tls.key", key)
	m.write("qtls.conf", fmt.Appendf(nil, `[slot]
label = gw
generate = %t
[member a]
address = %s
server-name = %s
ca-file = %s
certificate-file = %s
key-file = %s
timeout = 60s
%s`, generate, m.address, hsmtest.ServerName, m.path("ca.crt"), m.path("tls.crt"), m.path("tls.key"), keys))
}

func (m *module) openssl(arguments ...string) (string, error) {
	m.t.Helper()
	program := []string{"--library-path", filepath.Join(m.root, "usr/lib/x86_64-linux-gnu"), filepath.Join(m.root, "usr/bin/openssl")}
	cmd := exec.CommandContext(m.t.Context(), filepath.Join(m.root, "lib64/ld-linux-x86-64.so.2"), append(program, arguments...)...)
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "OPENSSL_CONF="+m.path("openssl.cnf"), "QTLS_PKCS11_CONFIG="+m.path("qtls.conf"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// genpkey has a key made in the token.
func (m *module) genpkey(label, algorithm string, options ...string) (string, error) {
	m.t.Helper()
	arguments := append([]string{"genpkey", "-propquery", "provider=pkcs11", "-algorithm", algorithm}, options...)
	return m.openssl(append(arguments, "-pkeyopt", "pkcs11_uri:pkcs11:token=gw;object="+label, "-out", label+".pem", "-outpubkey", label+".pub")...)
}

// A module's configuration and hsmd's list of clients both have to allow that a
// program has keys made.
func TestOpenSSLMakesKeysWhereTheModuleAndHSMDAllowIt(t *testing.T) {
	a := hsmtest.NewAuthority(t)
	m := newModule(t, hsmtest.Daemon(t, a, fmt.Sprintf(`[client %s]
keys = *
may = status, find
[client maker]
keys = web-*
may = status, find, sign, generate
[client gateways]
keys = web-*
may = status, find, sign
`, hsmtest.ClientName)))
	operator := client(t, a, m.address)
	curve := []string{"-pkeyopt", "ec_paramgen_curve:P-256"}
	// Where no key may be made, there has to be one.
	some, err := filepath.Abs("../../crypto/pkcs11/testdata/p256.pem")
	if err != nil {
		t.Fatal(err)
	}
	other := fmt.Sprintf("[key web-other]\npublic-key = %s\n", some)
	for _, c := range []struct {
		client, label, says string
		generate            bool
	}{
		{"gateways", "web-1", "client gateways may not generate", true},
		{"maker", "root-1", "client maker may not use key", true},
		{"maker", "web-1", "", false},
	} {
		m.configure(a, c.client, c.generate, other)
		out, err := m.genpkey(c.label, "EC", curve...)
		if err == nil || !strings.Contains(out, c.says) {
			t.Errorf("%+v: %v, %s", c, err, out)
		}
		if _, err := operator.Find(patient(t), hsm.Key{Label: c.label}); hsm.CodeOf(err) != hsm.KeyHandleInvalid {
			t.Errorf("%+v: there is a key: %v", c, err)
		}
	}

	// The control: with both it is made. Who may only sign makes its request.
	for _, c := range []struct {
		label, algorithm string
		options          []string
	}{
		{"web-1", "EC", curve},
		{"web-2", "ML-DSA-65", nil},
	} {
		m.configure(a, "maker", true, "")
		if out, err := m.genpkey(c.label, c.algorithm, c.options...); err != nil {
			t.Errorf("%s: %v: %s", c.label, err, out)
			continue
		}
		found, err := operator.Find(patient(t), hsm.Key{Label: c.label})
		if err != nil || !found.Sensitive || found.Extractable || !found.Local {
			t.Errorf("%s: %+v, %v", c.label, found, err)
		}
		m.configure(a, "gateways", false, fmt.Sprintf("[key %s]\npublic-key = %s\n", c.label, m.path(c.label+".pub")))
		name := "pkcs11:token=gw;object=" + c.label + ";type=private"
		if out, err := m.openssl("req", "-new", "-key", name, "-subj", "/CN=of the token", "-out", "request.pem"); err != nil {
			t.Errorf("%s: %v: %s", c.label, err, out)
			continue
		}
		content, err := os.ReadFile(m.path("request.pem"))
		if err != nil {
			t.Fatal(err)
		}
		request, err := pki.ParseRequest(content)
		if err != nil || !bytes.Equal(request.RawSubjectPublicKeyInfo, found.PublicKey) {
			t.Errorf("%s: the request is not of the token's key: %v", c.label, err)
		}
	}
}
