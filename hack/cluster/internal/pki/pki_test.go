package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/hack/cluster/internal/topology"
)

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func newCluster(t *testing.T) (dir string, admin []byte) {
	t.Helper()
	dir = t.TempDir()
	nodes, err := topology.Nodes(2)
	if err != nil {
		t.Fatal(err)
	}
	admin, err = Write(dir, nodes, "https://127.0.0.1:16443", now)
	if err != nil {
		t.Fatal(err)
	}
	return dir, admin
}

func TestEveryCertificateIsSignedByItsAuthorityAndMatchesItsKey(t *testing.T) {
	dir, _ := newCluster(t)
	for name, want := range map[string]struct {
		ca, cn, org string
		usage       x509.ExtKeyUsage
	}{
		"apiserver":                {"ca", "kube-apiserver", "", x509.ExtKeyUsageServerAuth},
		"apiserver-kubelet-client": {"ca", "kube-apiserver-kubelet-client", "system:masters", x509.ExtKeyUsageClientAuth},
		"front-proxy-client":       {"front-proxy-ca", "front-proxy-client", "", x509.ExtKeyUsageClientAuth},
		"admin":                    {"ca", "kubernetes-admin", "system:masters", x509.ExtKeyUsageClientAuth},
		"kube-scheduler":           {"ca", "system:kube-scheduler", "", x509.ExtKeyUsageClientAuth},
		"kubelet-n2":               {"ca", "system:node:n2", "system:nodes", x509.ExtKeyUsageClientAuth},
		"kubelet-serving-n2":       {"ca", "system:node:n2", "system:nodes", x509.ExtKeyUsageServerAuth},
	} {
		cert := parse(t, dir, name)
		roots := x509.NewCertPool()
		roots.AddCert(parse(t, dir, want.ca))
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{want.usage}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if cert.Subject.CommonName != want.cn || strings.Join(cert.Subject.Organization, ",") != want.org {
			t.Errorf("%s: subject %s", name, cert.Subject)
		}
		if _, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheTwoAuthoritiesDoNotTrustEachOther(t *testing.T) {
	dir, _ := newCluster(t)
	roots := x509.NewCertPool()
	roots.AddCert(parse(t, dir, "ca"))
	opts := x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := parse(t, dir, "front-proxy-client").Verify(opts); err == nil {
		t.Error("a front-proxy certificate would pass as a user's")
	}
}

func TestTheAPIServerIsValidForEveryWayToReachIt(t *testing.T) {
	dir, _ := newCluster(t)
	cert := parse(t, dir, "apiserver")
	for _, name := range []string{"127.0.0.1", "10.70.0.1", "10.72.0.1", "localhost", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"} {
		if err := cert.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if err := cert.VerifyHostname("example.com"); err == nil {
		t.Error("valid for any name")
	}
}

func TestKeysAreTheOwnersAlone(t *testing.T) {
	dir, _ := newCluster(t)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	secret := 0
	for _, e := range entries {
		if !slices.Contains([]string{".key", ".kubeconfig"}, filepath.Ext(e.Name())) {
			continue
		}
		secret++
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}
	if secret == 0 {
		t.Error("no key was written")
	}
}

func TestKubeconfigsNameTheServerThatTheirReaderReaches(t *testing.T) {
	dir, admin := newCluster(t)
	if !strings.Contains(string(admin), "server: https://127.0.0.1:16443\n") {
		t.Errorf("the host's kubeconfig:\n%s", admin)
	}
	for _, name := range []string{Scheduler, ControllerManager, Proxy, "kubelet-n1"} {
		b, err := os.ReadFile(filepath.Join(dir, name+".kubeconfig"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), "server: https://10.70.0.1:6443\n") {
			t.Errorf("%s:\n%s", name, b)
		}
	}
}

func parse(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name+".crt"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		t.Fatalf("%s is not PEM", name)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
