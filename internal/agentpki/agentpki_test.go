package agentpki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"qtls.dev/qtls/internal/mtls"
)

var gateway = types.NamespacedName{Namespace: "shop", Name: "web"}

func TestACertificateIsRenewedInTime(t *testing.T) {
	now := time.Now()
	s, _, _ := succeed(t, nil, now)
	another, _, _ := succeed(t, nil, now)
	name := mtls.AgentName(gateway.Namespace, gateway.Name)
	data, err := s.Keep(nil, name, x509.ExtKeyUsageServerAuth, now)
	if err != nil {
		t.Fatal(err)
	}
	broken := map[string][]byte{"tls.crt": data["tls.crt"], "tls.key": []byte("x"), "ca.crt": data["ca.crt"]}
	for _, tc := range []struct {
		name       string
		succession *Succession
		data       map[string][]byte
		of         string
		at         time.Time
		kept       bool
	}{
		{"new", s, data, name, now, true},
		{"after half its life", s, data, name, now.Add(leafLife / 2), true},
		{"with less than a third of its life left", s, data, name, now.Add(leafLife*2/3 + time.Hour), false},
		{"of another gateway", s, data, mtls.AgentName("shop", "other"), now, false},
		{"of another authority", another, data, name, now, false},
		{"tampered with", s, broken, name, now, false},
		{"missing", s, nil, name, now, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.succession.Keep(tc.data, tc.of, x509.ExtKeyUsageServerAuth, tc.at)
			if err != nil {
				t.Fatal(err)
			}
			if kept := maps.EqualFunc(got, tc.data, bytes.Equal); kept != tc.kept {
				t.Errorf("kept: %v, want %v", kept, tc.kept)
			}
		})
	}
}

func TestANewAuthorityTrustsTheOneBeforeUntilItsEnd(t *testing.T) {
	now := time.Now()
	made := func(earlier *authority, now time.Time) *authority {
		t.Helper()
		a, err := newAuthority(earlier, now)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	first := made(nil, now)
	if first.aged(now) || !first.aged(now.Add(caLife/2+time.Hour)) {
		t.Error("an authority is aged when half its life is over, and not before")
	}
	second := made(first, now.Add(caLife/2))
	if len(second.bundle) != 2 {
		t.Errorf("bundle of %d, want the new and the one before", len(second.bundle))
	}
	third := made(second, now.Add(caLife+time.Hour))
	if len(third.bundle) != 2 {
		t.Errorf("bundle of %d, want the new and the second: the first is over", len(third.bundle))
	}
}

// serve runs an agent's side of the mutual TLS.
func serve(t *testing.T, data map[string][]byte) *httptest.Server {
	t.Helper()
	dir := t.TempDir()
	for name, content := range data {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.TLS.CurveID.String()))
	}))
	s.TLS = mtls.ServerConfig(dir)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func TestOperatorAndAgentKnowEachOther(t *testing.T) {
	now := time.Now()
	a, _, _ := succeed(t, nil, now)
	another, _, _ := succeed(t, nil, now)
	name := mtls.AgentName(gateway.Namespace, gateway.Name)
	agents, err := a.Issue(name, x509.ExtKeyUsageServerAuth, now)
	if err != nil {
		t.Fatal(err)
	}
	server := serve(t, agents)
	operator, err := a.Certificate(mtls.OperatorName, x509.ExtKeyUsageClientAuth, now)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := another.Certificate(mtls.OperatorName, x509.ExtKeyUsageClientAuth, now)
	if err != nil {
		t.Fatal(err)
	}
	get := func(name string, certificate tls.Certificate) error {
		c := http.Client{Transport: &http.Transport{TLSClientConfig: mtls.ClientConfig(name, a.Pool(), certificate)}, Timeout: time.Minute}
		response, err := c.Get(server.URL)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	if err := get(name, *operator); err != nil {
		t.Errorf("the operator is refused: %v", err)
	}
	if err := get(mtls.AgentName("shop", "other"), *operator); err == nil || !strings.Contains(err.Error(), "not other.shop.agent.qtls.dev") {
		t.Errorf("another gateway's agent is taken for this one's: %v", err)
	}
	if err := get(name, *stranger); err == nil {
		t.Error("a stranger's certificate is let in")
	}
	if err := get(name, tls.Certificate{}); err == nil {
		t.Error("a client without a certificate is let in")
	}
	asAgent, err := tls.X509KeyPair(agents["tls.crt"], agents["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	if err := get(name, asAgent); err == nil {
		t.Error("another agent is let in as the operator")
	}
}
