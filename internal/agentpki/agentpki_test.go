package agentpki

import (
	"crypto/tls"
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

func newAuthority(t *testing.T, earlier *Authority, now time.Time) *Authority {
	t.Helper()
	a, err := NewAuthority(earlier, now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAnAuthorityReadsBackFromItsSecret(t *testing.T) {
	now := time.Now()
	a := newAuthority(t, nil, now)
	data, err := a.Data()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseAuthority(data)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := again.Agent(gateway, now)
	if err != nil {
		t.Fatal(err)
	}
	if !a.AgentCurrent(agent, gateway, now) {
		t.Error("what it issues after that is not current to the one before")
	}
}

func TestAnAgentsCertificateIsRenewedInTime(t *testing.T) {
	now := time.Now()
	a := newAuthority(t, nil, now)
	data, err := a.Agent(gateway, now)
	if err != nil {
		t.Fatal(err)
	}
	other := types.NamespacedName{Namespace: "shop", Name: "other"}
	next := newAuthority(t, a, now)
	broken := map[string][]byte{"tls.crt": data["tls.crt"], "tls.key": []byte("x"), "ca.crt": data["ca.crt"]}
	for _, tc := range []struct {
		name      string
		authority *Authority
		data      map[string][]byte
		gateway   types.NamespacedName
		at        time.Time
		want      bool
	}{
		{"new", a, data, gateway, now, true},
		{"after half its life", a, data, gateway, now.Add(leafLife / 2), true},
		{"with less than a third of its life left", a, data, gateway, now.Add(leafLife*2/3 + time.Hour), false},
		{"of another gateway", a, data, other, now, false},
		{"of the authority before", next, data, gateway, now, false},
		{"tampered with", a, broken, gateway, now, false},
		{"missing", a, nil, gateway, now, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.authority.AgentCurrent(tc.data, tc.gateway, tc.at); got != tc.want {
				t.Errorf("current: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestANewAuthorityTrustsTheOneBeforeUntilItsEnd(t *testing.T) {
	now := time.Now()
	first := newAuthority(t, nil, now)
	if first.Aged(now) || !first.Aged(now.Add(caLife/2+time.Hour)) {
		t.Error("an authority is aged when half its life is over, and not before")
	}
	second := newAuthority(t, first, now.Add(caLife/2))
	if len(second.bundle) != 2 {
		t.Errorf("bundle of %d, want the new and the one before", len(second.bundle))
	}
	third := newAuthority(t, second, now.Add(caLife+time.Hour))
	if len(third.bundle) != 2 {
		t.Errorf("bundle of %d, want the new and the second: the first is over", len(third.bundle))
	}
}

// serve runs an agent's side of the mutual TLS.
func serve(t *testing.T, a *Authority) *httptest.Server {
	t.Helper()
	data, err := a.Agent(gateway, time.Now())
	if err != nil {
		t.Fatal(err)
	}
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
	a := newAuthority(t, nil, now)
	server := serve(t, a)
	operator, err := a.Operator(now)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := newAuthority(t, nil, now).Operator(now)
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
	name := mtls.AgentName(gateway.Namespace, gateway.Name)
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
	agents, err := a.Agent(gateway, now)
	if err != nil {
		t.Fatal(err)
	}
	asAgent, err := tls.X509KeyPair(agents["tls.crt"], agents["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	if err := get(name, asAgent); err == nil {
		t.Error("another agent is let in as the operator")
	}
}
