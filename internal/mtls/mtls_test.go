package mtls

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/testcert"
)

// authority signs certificates for one test.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{key: testcert.Key(t, "ECDSA-P256")}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	a.cert = testcert.Sign(t, template, template, a.key.Public(), a.key)
	return a
}

func (a *authority) issue(t *testing.T, name string, usage x509.ExtKeyUsage) (certPEM, keyPEM []byte) {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	key := testcert.Key(t, "ECDSA-P256")
	cert := testcert.Sign(t, &x509.Certificate{SerialNumber: serial, DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}, a.cert, key.Public(), a.key)
	return testcert.PEM(cert), testcert.KeyPEM(t, key)
}

func (a *authority) client(t *testing.T, name string, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(a.issue(t, name, usage))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// agentDir is a mounted Secret of an agent.
func (a *authority) agentDir(t *testing.T, dir, name string) {
	t.Helper()
	certPEM, keyPEM := a.issue(t, name, x509.ExtKeyUsageServerAuth)
	for file, content := range map[string][]byte{
		certificateFile: certPEM, keyFile: keyPEM,
		authoritiesFile: testcert.PEM(a.cert),
	} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// connect makes one connection and exchanges a byte, so that a refusal of the
// client's certificate is seen: in TLS 1.3 it comes after the client's Finished.
func connect(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = tls.Server(c, server).Write([]byte("x")) // its error is the client's too
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer c.Close()
	_, err = io.ReadFull(c, make([]byte, 1))
	return c.ConnectionState(), err
}

func TestOnlyTheOperatorIsLetIn(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	ours.agentDir(t, dir, AgentName("shop", "web"))
	name := AgentName("shop", "web")

	for _, c := range []struct {
		name    string
		client  *tls.Config
		refused string
	}{
		{"the operator", ClientConfig(name, ours.pool(), ours.client(t, OperatorName, x509.ExtKeyUsageClientAuth)), ""},
		{"an agent's certificate", ClientConfig(name, ours.pool(), ours.client(t, name, x509.ExtKeyUsageClientAuth)), "bad certificate"},
		{"the operator's name, for servers", ClientConfig(name, ours.pool(), ours.client(t, OperatorName, x509.ExtKeyUsageServerAuth)), "bad certificate"},
		{"the operator's name from another authority", ClientConfig(name, ours.pool(), theirs.client(t, OperatorName, x509.ExtKeyUsageClientAuth)), "unknown certificate authority"},
		{"no certificate", &tls.Config{RootCAs: ours.pool(), ServerName: name}, "certificate required"},
		{"an agent of another gateway", ClientConfig(AgentName("shop", "other"), ours.pool(), ours.client(t, OperatorName, x509.ExtKeyUsageClientAuth)), "not other.shop.agent.qtls.dev"},
		{"an agent of another authority", ClientConfig(name, theirs.pool(), ours.client(t, OperatorName, x509.ExtKeyUsageClientAuth)), "unknown authority"},
		{"TLS 1.2", &tls.Config{RootCAs: ours.pool(), ServerName: name, MaxVersion: tls.VersionTLS12}, "protocol version"},
		{"a classical group", &tls.Config{RootCAs: ours.pool(), ServerName: name, CurvePreferences: []tls.CurveID{tls.X25519}}, "handshake failure"},
	} {
		t.Run(c.name, func(t *testing.T) {
			state, err := connect(t, ServerConfig(dir), c.client)
			if c.refused == "" {
				if err != nil {
					t.Fatal(err)
				}
				if state.CurveID != tls.X25519MLKEM768 || state.Version != tls.VersionTLS13 {
					t.Errorf("negotiated %v with %v, want TLS 1.3 with X25519MLKEM768", tls.VersionName(state.Version), state.CurveID)
				}
				return
			}
			if err == nil {
				t.Fatal("let in")
			}
			if !strings.Contains(err.Error(), c.refused) {
				t.Errorf("refused with %q, want %q in it", err, c.refused)
			}
		})
	}
}

func TestARotationNeedsNoRestart(t *testing.T) {
	a := newAuthority(t)
	dir := t.TempDir()
	name := AgentName("shop", "web")
	r := &reader{dir: dir}
	now := time.Now()

	if _, err := r.config(now); err == nil {
		t.Fatal("a configuration out of an empty folder")
	}
	a.agentDir(t, dir, name)
	first, err := r.config(now)
	if err != nil {
		t.Fatal(err)
	}
	a.agentDir(t, dir, name)
	if again, _ := r.config(now.Add(lookAgain / 2)); again != first {
		t.Error("the files were read again at once")
	}
	second, err := r.config(now.Add(lookAgain))
	if err != nil || second == first {
		t.Fatalf("the new certificate is not used (error: %v)", err)
	}
	if err := os.WriteFile(filepath.Join(dir, keyFile), []byte("half a write"), 0o600); err != nil {
		t.Fatal(err)
	}
	if third, err := r.config(now.Add(3 * lookAgain)); err != nil || third != second {
		t.Errorf("a certificate and key that do not fit end the service: %v", err)
	}
}
