package hsmtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Daemon starts hsmd itself, with a new token named "gw", and returns its
// address. The sections [client] say who may do what.
func Daemon(t *testing.T, a *Authority, sections string) string {
	t.Helper()
	return DaemonIn(t, a, sections, t.TempDir())
}

// PIN of a Daemon's token, and TokenFile of kryoptic's in its folder.
const (
	PIN       = "a-pin-of-a-test"
	TokenFile = "token.sql"
)

// DaemonIn is a Daemon whose token is in a folder, for others to have it, too.
func DaemonIn(t *testing.T, a *Authority, sections, tokens string) string {
	t.Helper()
	root, daemon, module := os.Getenv("QTLS_GATEWAY_ROOTFS"), os.Getenv("QTLS_HSMD"), os.Getenv("QTLS_HSM_MODULE")
	if root == "" || daemon == "" || module == "" {
		t.Skip("QTLS_GATEWAY_ROOTFS, QTLS_HSMD and QTLS_HSM_MODULE are not set: `make test-unit` sets them to the gateway image's root file system, to hsmd and to the PKCS #11 module of kryoptic, which are built for it")
	}
	hsmd := func(arguments ...string) *exec.Cmd {
		return exec.Command(filepath.Join(root, "lib64/ld-linux-x86-64.so.2"), append([]string{"--library-path", filepath.Join(root, "usr/lib/x86_64-linux-gnu"), daemon}, arguments...)...)
	}
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	environment := append(os.Environ(),
		"SOFTHSM2_CONF="+file("softhsm2.conf", "directories.tokendir = "+tokens+"\n"),
		"KRYOPTIC_CONF="+file("kryoptic.conf", "[[slots]]\nslot = 1\ndbtype = \"sqlite\"\ndbargs = \""+filepath.Join(tokens, TokenFile)+"\"\n"))
	pin := file("pin", PIN)
	initialise := hsmd("init-soft-token", "--module", module, "--label", "gw", "--pin-file", pin, "--so-pin-file", file("so-pin", "another-pin-of-a-test"))
	initialise.Env = environment
	if out, err := initialise.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	certificate, key := a.Issue(t, ServerName)
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
%s`, file("tls.crt", string(certificate)), file("tls.key", string(key)), file("ca.crt", string(a.PEM())), module, pin, sections))
	command := hsmd("--config", config)
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
