package hsm_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/hsm/hsmtest"
	"qtls.dev/qtls/internal/pki"
)

// hsmd starts the daemon itself with a new token, and returns its address.
func hsmd(t *testing.T, a *hsmtest.Authority) string {
	t.Helper()
	daemon, module := os.Getenv("QTLS_HSMD"), os.Getenv("QTLS_HSM_MODULE")
	if daemon == "" || module == "" {
		t.Skip("QTLS_HSMD and QTLS_HSM_MODULE are not set: they name hsmd (crypto/hsmd), and the PKCS #11 module of kryoptic or softhsm2")
	}
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := os.Mkdir(filepath.Join(dir, "tokens"), 0o700); err != nil {
		t.Fatal(err)
	}
	environment := append(os.Environ(),
		"SOFTHSM2_CONF="+file("softhsm2.conf", "directories.tokendir = "+filepath.Join(dir, "tokens")+"\n"),
		"KRYOPTIC_CONF="+file("kryoptic.conf", "[[slots]]\nslot = 1\ndbtype = \"sqlite\"\ndbargs = \""+filepath.Join(dir, "tokens", "token.sql")+"\"\n"))
	pin := file("pin", "a-pin-of-a-test")
	initialise := exec.Command(daemon, "init-soft-token", "--module", module, "--label", "gw", "--pin-file", pin, "--so-pin-file", file("so-pin", "another-pin-of-a-test"))
	initialise.Env = environment
	if out, err := initialise.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	certificate, key := a.Issue(t, hsmtest.ServerName)
	config := file("hsmd.conf", fmt.Sprintf(`[daemon]
listen = 127.0.0.1:0
certificate-file = %s
key-file = %s
client-ca-file = %s
[token]
module = %s
token = gw
pin-file = %s
timeout = 60000ms
[client %s]
keys = test-*
may = status, find, sign, generate, retire
[client web-gateway]
keys = test-1
may = status, sign
`, file("tls.crt", string(certificate)), file("tls.key", string(key)), file("ca.crt", string(a.PEM())), module, pin, hsmtest.ClientName))
	command := exec.Command(daemon, "--config", config)
	command.Env = environment
	stderr, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	listening, ended := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			t.Log(lines.Text())
			if _, address, ok := strings.Cut(lines.Text(), "listening on "); ok {
				listening <- address
			}
		}
	}()
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		<-ended
		_ = command.Wait()
	})
	select {
	case address := <-listening:
		return address
	case <-ended:
		t.Fatal("hsmd ended before it listened")
		return ""
	}
}

// The contract, with the daemon and a real token.
func TestHSMD(t *testing.T) {
	a := hsmtest.NewAuthority(t)
	address := hsmd(t, a)
	c := client(t, a, address)
	ctx := patient(t)
	algorithms := held
	if strings.Contains(os.Getenv("QTLS_HSM_MODULE"), "softhsm") {
		algorithms = held[3:] // it has no ML-DSA
	}
	var status hsm.Status
	for status.State != hsm.Up {
		var err error
		if status, err = c.Status(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if status.Token != "gw" {
		t.Errorf("status %+v", status)
	}
	for n, algorithm := range algorithms {
		key := hsm.Key{Label: fmt.Sprintf("test-%d", n), ID: []byte{byte(n)}}
		made, err := c.Generate(ctx, algorithm, key)
		if err != nil {
			t.Errorf("%s: %v", algorithm, err)
			continue
		}
		if !made.Sensitive || made.Extractable || !made.Local {
			t.Errorf("%s: %+v", algorithm, made)
		}
		signer, err := hsm.NewSigner(ctx, hsm.Key{Label: key.Label}, c)
		if err != nil {
			t.Errorf("%s: %v", algorithm, err)
			continue
		}
		request, err := pki.NewRequest(signer, pki.Names{DNSNames: []string{"www.example.com"}})
		if err == nil {
			_, err = pki.ParseRequest(request)
		}
		if err != nil {
			t.Errorf("%s: %v", algorithm, err)
		}
	}
	if after, err := c.Status(ctx); err != nil || after.Signatures < int64(len(algorithms)) {
		t.Errorf("status %+v, %v; want %d signatures", after, err, len(algorithms))
	}

	// Refusals.
	_, err := c.Generate(ctx, "ECDSA-P256", hsm.Key{Label: "test-1"})
	if hsm.CodeOf(err) == 0 {
		t.Errorf("a label that is taken: %v", err)
	}
	if _, err = c.Find(ctx, hsm.Key{Label: "test-none"}); hsm.CodeOf(err) != hsm.KeyHandleInvalid {
		t.Errorf("a key that is not there: %v", err)
	}
	if _, err = c.Find(ctx, hsm.Key{Label: "other"}); hsm.CodeOf(err) != hsm.ActionProhibited {
		t.Errorf("a key that is not this client's: %v", err)
	}
	if err := c.Retire(ctx, hsm.Key{Label: "test-1"}); err != nil {
		t.Error(err)
	}
	if _, err = c.Find(ctx, hsm.Key{Label: "test-1"}); hsm.CodeOf(err) != hsm.KeyHandleInvalid {
		t.Errorf("a key that was retired: %v", err)
	}

	// Other clients: of one section [client] that may less, and of none.
	for name, want := range map[string]string{"web-gateway": "may not generate", "stranger": "the connection ended"} {
		config, err := credentials(t, a, name).Config(hsmtest.ServerName)
		if err != nil {
			t.Fatal(err)
		}
		other := hsm.New(address, config, patience)
		defer other.Close()
		if _, err = other.Generate(ctx, "ECDSA-P256", hsm.Key{Label: "test-1"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
