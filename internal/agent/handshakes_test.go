package agent

import (
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
)

func TestHandshakesAreCounted(t *testing.T) {
	m := NewMetrics()
	h := newHandshakes(m)
	h.setAcceptable(&dataplane.Acceptable{Versions: []string{"TLSv1.3"}, Groups: []string{"X25519MLKEM768"},
		Suites: []string{"TLS_AES_256_GCM_SHA384"}, Algorithms: []string{"ML-DSA-65", "ECDSA-P256"}})
	full := haproxy.Handshake{Listener: "web", Version: "TLSv1.3", CipherSuite: "TLS_AES_256_GCM_SHA384", Group: "X25519MLKEM768", KeyAlgorithm: "id-ml-dsa-65"}
	resumed := full
	resumed.Resumed = true
	for _, seen := range []haproxy.Handshake{full, resumed,
		{Listener: "web", Version: "TLSv1.2", CipherSuite: "ECDHE-RSA-AES256-GCM-SHA384", Group: "P-256", KeyAlgorithm: "rsaEncryption"},
		{Listener: "web", Version: "TLSv1.3", CipherSuite: "TLS_AES_256_GCM_SHA384", Group: "p256_smaug_t1", KeyAlgorithm: "haetae3"},
		{Listener: "web", Failed: true, Reason: "SSL_HANDSHAKE", Detail: "no suitable key share"},
		{Listener: "web", Failed: true, Reason: "SSL_HANDSHAKE", Detail: "something new " + strings.Repeat("x", 100)},
	} {
		h.count(seen)
	}
	h.take("nonsense")
	want := `
# HELP qtls_handshake_failures_total TLS handshakes that failed, by why.
# TYPE qtls_handshake_failures_total counter
qtls_handshake_failures_total{listener="web",reason="no_common_group"} 1
qtls_handshake_failures_total{listener="web",reason="other"} 1
# HELP qtls_handshakes_total Completed TLS handshakes, by what was negotiated. certificate is the key algorithm of the certificate that was served.
# TYPE qtls_handshakes_total counter
qtls_handshakes_total{certificate="ML-DSA-65",group="X25519MLKEM768",listener="web",resumed="false",version="TLSv1.3"} 1
qtls_handshakes_total{certificate="ML-DSA-65",group="X25519MLKEM768",listener="web",resumed="true",version="TLSv1.3"} 1
qtls_handshakes_total{certificate="RSA",group="P-256",listener="web",resumed="false",version="TLSv1.2"} 1
qtls_handshakes_total{certificate="haetae3",group="p256_smaug_t1",listener="web",resumed="false",version="TLSv1.3"} 1
# HELP qtls_policy_would_refuse_total Completed handshakes that the gateway's policy, in mode Require, would have refused, by each aspect that it does not accept: version, group, suite or certificate.
# TYPE qtls_policy_would_refuse_total counter
qtls_policy_would_refuse_total{aspect="certificate",listener="web"} 2
qtls_policy_would_refuse_total{aspect="group",listener="web"} 2
qtls_policy_would_refuse_total{aspect="suite",listener="web"} 1
qtls_policy_would_refuse_total{aspect="version",listener="web"} 1
`
	if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want),
		"qtls_handshakes_total", "qtls_handshake_failures_total", "qtls_policy_would_refuse_total"); err != nil {
		t.Error(err)
	}
}

func TestWouldRefuse(t *testing.T) {
	accept := dataplane.Acceptable{Versions: []string{"TLSv1.3"}, Groups: []string{"P-384"}, Suites: []string{"A"}, Algorithms: []string{"ECDSA-P384"}}
	h := haproxy.Handshake{Version: "TLSv1.3", Group: "P-384", CipherSuite: "A", KeyAlgorithm: "id-ecPublicKey"}
	if got := wouldRefuse(accept, h); len(got) > 0 {
		t.Errorf("refuses %v of what is acceptable", got)
	}
	h.KeyAlgorithm = "id-ml-dsa-44"
	if got := wouldRefuse(accept, h); !slices.Equal(got, []string{"certificate"}) {
		t.Errorf("refuses %v", got)
	}
	h.KeyAlgorithm = "" // resumed without a certificate, or a name to come
	if got := wouldRefuse(accept, h); !slices.Equal(got, []string{"certificate"}) {
		t.Errorf("refuses %v", got)
	}
}

func TestANewAgentHearsTheLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.sock")
	for range 2 { // the second finds the first one's socket
		listener, err := listenForLog(path)
		if err != nil {
			t.Fatal(err)
		}
		heard := make(chan string, 4)
		go readLines(listener, func(line string) { heard <- line })
		for range 2 { // workers
			worker, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := worker.Write([]byte("one\ntwo\n")); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"one", "two"} {
				select {
				case line := <-heard:
					if line != want {
						t.Errorf("heard %q, want %q", line, want)
					}
				case <-time.After(patience):
					t.Fatal("a line was not heard")
				}
			}
			worker.Close()
		}
		listener.SetUnlinkOnClose(false) // a process that is killed leaves the socket's file
		listener.Close()
	}
}

func TestMetricsAreWellNamed(t *testing.T) {
	m := NewMetrics()
	m.setState(dataplane.Status{Running: dataplane.Target{Revision: "a", Generation: 2}, Certificates: []dataplane.CertificateStatus{
		{Secret: "web", SerialNumber: "1f", NotAfter: time.Unix(100, 0)}, {Secret: "other", Error: "bad"}}})
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	want := `
# HELP qtls_agent_certificate_not_after_timestamp_seconds End of validity of the certificate that is served, in Unix time.
# TYPE qtls_agent_certificate_not_after_timestamp_seconds gauge
qtls_agent_certificate_not_after_timestamp_seconds{secret="web",serial_number="1f"} 100
# HELP qtls_agent_certificate_problem 1 while the present content of the Secret cannot be served, else 0.
# TYPE qtls_agent_certificate_problem gauge
qtls_agent_certificate_problem{secret="other"} 1
qtls_agent_certificate_problem{secret="web"} 0
`
	if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want),
		"qtls_agent_certificate_not_after_timestamp_seconds", "qtls_agent_certificate_problem"); err != nil {
		t.Error(err)
	}
}
