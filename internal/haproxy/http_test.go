//go:build crypto

package haproxy

import (
	"bufio"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/testnet"
	"qtls.dev/qtls/internal/tickets"
)

// mirror answers with its name and the request's headers, as JSON.
func mirror(t testing.TB, name string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(mirrorHandler(name))
	t.Cleanup(s.Close)
	return s
}

type reflection struct {
	Name, Host string
	Header     http.Header
	Trailer    http.Header
	Body       int64
	Group      tls.CurveID // of a request over TLS
}

func mirrorHandler(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		seen := reflection{Name: name, Host: r.Host, Header: r.Header, Trailer: r.Trailer, Body: n}
		if r.TLS != nil {
			seen.Group = r.TLS.CurveID
		}
		_ = json.NewEncoder(w).Encode(seen)
	})
}

func endpoint(t testing.TB, s *httptest.Server) dataplane.Endpoint {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	address, err := net.ResolveTCPAddr("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	return dataplane.Endpoint{Address: "127.0.0.1", Port: int32(address.Port)}
}

// raw sends a request of HTTP/1 as it is, and returns the answer.
func (p *pod) raw(port int, server, request string, change func(*tls.Config)) (*http.Response, reflection, error) {
	p.t.Helper()
	conn, err := p.dial(port, server, change)
	if err != nil {
		return nil, reflection{}, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, reflection{}, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, reflection{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	var seen reflection
	if response.StatusCode == http.StatusOK && err == nil {
		err = json.Unmarshal(body, &seen)
	} else {
		seen.Name = strings.TrimSpace(string(body))
	}
	return response, seen, err
}

func TestARequestForAnotherListenersNameIsMisdirected(t *testing.T) {
	p := newPod(t)
	i := newIssuer(t, "ECDSA-P256")
	all := p.certificate(i, "ECDSA-P256", anyScheme, "a.example.com", "*.example.com", "example.com", "other.test")
	listener := func(name string, hostnames ...model.Hostname) model.Listener {
		return with(https(name, hostnames, all), func(l *model.Listener) { l.Backends = []model.Backend{{Group: "mirror:1", Weight: 1}} })
	}
	p.start(gateway(prefer,
		model.Port{Number: port, Listeners: []model.Listener{listener("any"), listener("exact", "a.example.com"), listener("wild", "*.example.com")}},
		model.Port{Number: port + 1, Listeners: []model.Listener{listener("alone", "a.example.com", "*.example.com")}},
		model.Port{Number: port + 2, Listeners: []model.Listener{listener("everything")}},
	), dataplane.Endpoints{"mirror:1": {endpoint(t, mirror(t, "mirror"))}})

	get := func(host string) string { return "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }
	for _, tc := range []struct {
		port    int
		server  string
		request string
		want    int
	}{
		{port, "a.example.com", get("a.example.com"), 200},
		{port, "a.example.com", get("A.EXAMPLE.com:8443"), 200},
		{port, "a.example.com", get("a.example.com."), 200},
		{port, "a.example.com", get("b.example.com"), 421},
		{port, "a.example.com", get("other.test"), 421},
		{port, "a.example.com", get("a.example.com.evil.test"), 421},
		{port, "a.example.com", get("x.a.example.com"), 421},
		{port, "a.example.com", get("127.0.0.1"), 421},
		{port, "a.example.com", get("[::1]:8443"), 421},
		{port, "a.example.com", get(""), 421},
		{port, "a.example.com", get("a.example.com@b.example.com"), 400},
		{port, "a.example.com", get("b.example.com,a.example.com"), 400},
		{port, "a.example.com", get("b.example.com:,a.example.com"), 400},
		{port, "a.example.com", get("b.example.com:443,a.example.com:443"), 400},
		{port, "a.example.com", "GET http://b.example.com:,a.example.com/ HTTP/1.1\r\nHost: b.example.com:,a.example.com\r\n\r\n", 400},
		{port, "a.example.com", "GET / HTTP/1.1\r\n\r\n", 400}, // RFC 9112, 3.2
		{port, "a.example.com", "GET / HTTP/1.0\r\n\r\n", 421},
		{port, "a.example.com", "GET / HTTP/1.1\r\nHost: a.example.com\r\nHost: b.example.com\r\n\r\n", 400},
		{port, "a.example.com", "GET http://b.example.com/ HTTP/1.1\r\nHost: a.example.com\r\n\r\n", 400},
		{port, "a.example.com", "GET http://b.example.com/ HTTP/1.1\r\nHost: b.example.com\r\n\r\n", 421},
		{port, "b.example.com", get("b.example.com"), 200},
		{port, "b.example.com", get("c.example.com"), 200},
		{port, "b.example.com", get("a.example.com"), 421},
		{port, "b.example.com", get("a.b.example.com"), 421},
		{port, "b.example.com", get(".example.com"), 421},
		{port, "other.test", get("other.test"), 200},
		{port, "other.test", get("a.b.example.com"), 200},
		{port, "other.test", get("127.0.0.1:8443"), 200},
		{port, "other.test", "GET / HTTP/1.1\r\n\r\n", 400},
		{port, "other.test", "GET / HTTP/1.0\r\n\r\n", 200},
		{port, "other.test", get("[::1]:8443"), 200},
		{port, "other.test", get("a.example.com"), 421},
		{port, "other.test", get("a.example.com:"), 421},
		{port, "other.test", get("a.example.com%2e"), 400},
		{port, "other.test", get("a.example.com;x"), 400},
		{port, "other.test", "GET http://a.example.com/ HTTP/1.0\r\n\r\n", 400}, // the target alone says what it is for
		{port, "other.test", "GET http://a.example.com/ HTTP/1.0\r\nHost: \r\n\r\n", 400},
		{port, "other.test", "GET http://a.example.com/ HTTP/1.0\r\nHost: other.test\r\n\r\n", 400},
		{port, "other.test", "GET http://other.test/ HTTP/1.0\r\nHost: other.test\r\n\r\n", 200},
		{port, "other.test", "CONNECT a.example.com:443 HTTP/1.0\r\n\r\n", 400},
		{port, "other.test", get("b.example.com"), 421},
		{port + 1, "a.example.com", get("b.example.com"), 200},
		{port + 1, "a.example.com", get("example.com"), 421},
		{port + 2, "a.example.com", get("whatever.test"), 200},
		{port + 2, "a.example.com", get("whatever.test%2e"), 200},
	} {
		response, seen, err := p.raw(tc.port, tc.server, tc.request, nil)
		if err != nil {
			t.Errorf("port %d, SNI %s, %q: %v", tc.port, tc.server, tc.request, err)
			continue
		}
		t.Logf("port %d, SNI %-14s %-75q %d", tc.port, tc.server, tc.request, response.StatusCode)
		if response.StatusCode != tc.want {
			t.Errorf("port %d, SNI %s, %q: status %d (%+v), want %d", tc.port, tc.server, tc.request, response.StatusCode, seen, tc.want)
		}
	}

	// HTTP/2 has the authority in a pseudo-header.
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(p.roots)
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "a.example.com"}}
	defer transport.CloseIdleConnections()
	for authority, want := range map[string]int{"a.example.com": 200, "a.example.com:8443": 200, "b.example.com": 421, "b.example.com;a": 400, "b.example.com:443:a.example.com": 400} {
		request, _ := http.NewRequest("GET", fmt.Sprintf("https://127.0.0.1:%d/", port), nil)
		request.Host = authority
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		t.Logf("%s, authority %q: %d", response.Proto, authority, response.StatusCode)
		if response.StatusCode != want || response.ProtoMajor != 2 {
			t.Errorf("%s, authority %q: status %d, want %d over HTTP/2", response.Proto, authority, response.StatusCode, want)
		}
	}
	// And curl, which verifies for itself.
	if curl, err := exec.LookPath("curl"); err == nil {
		out, err := exec.Command(curl, "-sS", "--fail", "--cacert", filepath.Join(p.dir, "roots.pem"), "--resolve", fmt.Sprintf("a.example.com:%d:127.0.0.1", port),
			"-w", "%{http_version} %{http_code}", "-o", os.DevNull, fmt.Sprintf("https://a.example.com:%d/", port)).CombinedOutput()
		t.Logf("curl: %s", out)
		if err != nil || string(out) != "2 200" {
			t.Errorf("curl: %s, %v", out, err)
		}
	}
}

const forged = "X-Client-Cert-Verified: SUCCESS\r\nx-client-cert-subject: CN=forged\r\nX_Client_Cert_Verified: SUCCESS\r\nX-Client_Cert-Serial: forged\r\n" +
	"X-Client-Cert-Fingerprint: forged\r\nClient-Cert: :Zm9yZ2Vk:\r\nCLIENT_CERT: forged\r\nClient-Cert-Chain: :Zm9yZ2Vk:\r\n" +
	"X-SSL-Client-Cert: forged\r\nSSL-Client-Verify: forged\r\nX-SSL-Client-DN: forged\r\nX-Forwarded-Client-Cert: forged\r\nX-ARR-ClientCert: forged\r\n" +
	"X-Forwarded-For: 192.0.2.1\r\nX_Forwarded_For: 192.0.2.1\r\nX-Forwarded-Proto: forged\r\nX-Forwarded-Host: forged\r\nX-Real-IP: 192.0.2.1\r\nForwarded: for=192.0.2.1\r\nProxy: forged\r\n"

func TestABackendLearnsWhoTheClientIsAndOnlyFromTheGateway(t *testing.T) {
	p := newPod(t)
	servers, clients := newIssuer(t, "ECDSA-P256"), newIssuer(t, "ML-DSA-87")
	ecdsa := p.certificate(servers, "ECDSA-P256", anyScheme, host, "optional.example.com", "none.example.com")
	listener := func(name string, hostname model.Hostname, a *model.ClientAuthentication) model.Listener {
		return with(https(name, []model.Hostname{hostname}, ecdsa), func(l *model.Listener) {
			l.ClientAuthentication = a
			l.Backends = []model.Backend{{Group: "mirror:1", Weight: 1}}
		})
	}
	listeners := []model.Listener{
		listener("none", "none.example.com", nil),
		listener("optional", "optional.example.com", &model.ClientAuthentication{CAs: string(clients.pem())}),
		listener("required", host, &model.ClientAuthentication{Required: true, CAs: string(clients.pem()), ForwardCertificate: true}),
	}
	p.start(gateway(prefer, model.Port{Number: port, Listeners: listeners}, model.Port{Number: port + 1, Listeners: []model.Listener{with(listeners[2], func(l *model.Listener) { l.Name = "alone" })}}),
		dataplane.Endpoints{"mirror:1": {endpoint(t, mirror(t, "mirror"))}})

	subject := pkix.Name{Organization: []string{"A, \"B\" + C\r\nX-Evil: 1"}, CommonName: "clïent <1>"}
	certPEM, keyPEM := clients.issue(t, "ML-DSA-87", subject, "client.test")
	own, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	strangerCert, strangerKey := newIssuer(t, "ECDSA-P256").issue(t, "ECDSA-P256", subject, "client.test")
	stranger, err := tls.X509KeyPair(strangerCert, strangerKey)
	if err != nil {
		t.Fatal(err)
	}
	present := func(c tls.Certificate) func(*tls.Config) {
		return func(config *tls.Config) {
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }
		}
	}
	digest := sha256.Sum256(own.Certificate[0])
	leaf, _ := x509.ParseCertificate(own.Certificate[0])

	request := func(host string, body int) string {
		return "POST / HTTP/1.1\r\nHost: " + host + "\r\n" + forged + fmt.Sprintf("Content-Length: %d\r\nConnection: X-Client-Cert-Verified, X-Forwarded-For\r\n\r\n", body) + strings.Repeat("x", body)
	}
	check := func(t *testing.T, seen reflection, want map[string]string) {
		t.Helper()
		for name, values := range seen.Header {
			if text := strings.Join(values, ","); strings.Contains(text, "orged") || strings.Contains(text, "192.0.2") || strings.Contains(text, "Zm9y") || strings.Contains(name, "_") || strings.Contains(name, "Evil") {
				t.Errorf("the backend sees %s: %s", name, text)
			}
		}
		for name, value := range want {
			if got := seen.Header.Values(name); value == "" && len(got) > 0 || value != "" && (len(got) != 1 || got[0] != value) {
				t.Errorf("the backend sees %s: %q, want %q", name, got, value)
			}
		}
	}
	common := map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "https"}
	identity := map[string]string{
		"X-Client-Cert-Verified":    "SUCCESS",
		"X-Client-Cert-Serial":      fmt.Sprintf("%x", leaf.SerialNumber.Bytes()),
		"X-Client-Cert-Fingerprint": fmt.Sprintf("%x", digest),
	}
	for _, port := range []int{port, port + 1} { // through the stage that chooses, and directly
		t.Run(fmt.Sprintf("required, port %d", port), func(t *testing.T) {
			if _, _, err := p.raw(port, host, request(host, 0), nil); err == nil {
				t.Error("a client without a certificate is served")
			}
			if _, _, err := p.raw(port, host, request(host, 0), present(stranger)); err == nil {
				t.Error("a client with a stranger's certificate is served")
			}
			for _, body := range []int{0, 1 << 20} { // a body fills HAProxy's buffer before headers are set
				response, seen, err := p.raw(port, host, request(host, body), present(own))
				if err != nil || response.StatusCode != http.StatusOK || seen.Body != int64(body) {
					t.Fatalf("%v: %+v, %+v", err, response, seen)
				}
				check(t, seen, common)
				check(t, seen, identity)
				check(t, seen, map[string]string{"X-Forwarded-Host": host, "Client-Cert": ":" + base64.StdEncoding.EncodeToString(own.Certificate[0]) + ":"})
				t.Logf("subject: %s", seen.Header.Get("X-Client-Cert-Subject"))
				if s := seen.Header.Get("X-Client-Cert-Subject"); !strings.HasPrefix(s, `CN=cl\C3\AFent \<1\>,O=A\, \"B\" \+ C\0D\0AX-Evil: 1`) {
					t.Errorf("subject %q", s)
				}
			}
		})
	}
	t.Run("optional", func(t *testing.T) {
		_, seen, err := p.raw(port, "optional.example.com", request("optional.example.com", 0), nil)
		if err != nil {
			t.Fatal(err)
		}
		check(t, seen, common)
		check(t, seen, map[string]string{"X-Client-Cert-Verified": "NONE", "X-Client-Cert-Subject": "", "X-Client-Cert-Serial": "", "X-Client-Cert-Fingerprint": "", "Client-Cert": ""})
		_, seen, err = p.raw(port, "optional.example.com", request("optional.example.com", 0), present(own))
		if err != nil {
			t.Fatal(err)
		}
		check(t, seen, identity)
		check(t, seen, map[string]string{"Client-Cert": ""})
		if _, _, err := p.raw(port, "optional.example.com", request("optional.example.com", 0), present(stranger)); err == nil {
			t.Error("a client with a stranger's certificate is served")
		}
	})
	t.Run("none", func(t *testing.T) {
		_, seen, err := p.raw(port, "none.example.com", request("none.example.com", 0), nil)
		if err != nil {
			t.Fatal(err)
		}
		check(t, seen, common)
		check(t, seen, map[string]string{"X-Client-Cert-Verified": "", "X-Client-Cert-Subject": "", "Client-Cert": ""})
	})
	t.Run("resumed", func(t *testing.T) { // the certificate is in the ticket
		cache := tls.NewLRUClientSessionCache(4)
		for n := range 2 {
			conn, err := p.dial(port+1, host, func(c *tls.Config) { present(own)(c); c.ClientSessionCache = cache })
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			var seen reflection
			if err := json.NewDecoder(response.Body).Decode(&seen); err != nil {
				t.Fatal(err)
			}
			if resumed := conn.ConnectionState().DidResume; resumed != (n == 1) {
				t.Errorf("connection %d resumed: %v", n+1, resumed)
			}
			check(t, seen, identity)
			conn.Close()
		}
	})
	t.Run("trailers and upgrades", func(t *testing.T) {
		_, seen, err := p.raw(port, "none.example.com", "POST / HTTP/1.1\r\nHost: none.example.com\r\nTransfer-Encoding: chunked\r\nTrailer: X-Client-Cert-Verified\r\n\r\n1\r\nx\r\n0\r\nX-Client-Cert-Verified: SUCCESS\r\n\r\n", nil)
		if err != nil || len(seen.Trailer.Get("X-Client-Cert-Verified")) > 0 {
			t.Errorf("trailers %v, %v", seen.Trailer, err)
		}
		_, seen, err = p.raw(port, "none.example.com", "GET / HTTP/1.1\r\nHost: none.example.com\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", nil)
		if err != nil || seen.Header.Get("Upgrade") != "" || seen.Header.Get("Http2-Settings") != "" {
			t.Errorf("an upgrade to clear-text HTTP/2 goes through: %v, %v", seen.Header, err)
		}
		_, seen, err = p.raw(port, "none.example.com", "GET / HTTP/1.1\r\nHost: none.example.com\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", nil)
		if err != nil || seen.Header.Get("Upgrade") != "websocket" || !strings.EqualFold(seen.Header.Get("Connection"), "upgrade") {
			t.Errorf("an upgrade to WebSocket does not go through: %v, %v", seen, err)
		}
	})
}

func TestASlowRequestIsLetGo(t *testing.T) {
	p := newPod(t)
	p.start(gateway(prefer, model.Port{Number: port, Listeners: []model.Listener{https("web", nil, p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", anyScheme, host))}}), nil)
	conn, err := p.dial(port, host, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	start := time.Now()
	go func() { // a byte a second, without end
		for t.Context().Err() == nil {
			if _, err := io.WriteString(conn, "G"); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}()
	_ = conn.SetReadDeadline(start.Add(2 * patience))
	answer, err := io.ReadAll(conn)
	took := time.Since(start)
	t.Logf("after %s: %.30q, %v", took.Round(time.Second), answer, err)
	if took >= 2*patience {
		t.Errorf("a request that does not end is read for %s", took)
	}
}

func TestWithoutServersTheGatewayAnswersItself(t *testing.T) {
	p := newPod(t)
	p.start(gateway(prefer, model.Port{Number: port, Listeners: []model.Listener{https("web", nil, p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", anyScheme, host))}}), nil)
	response, seen, err := p.raw(port, host, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n", nil)
	if err != nil || response.StatusCode != 503 || !strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain") || len(seen.Name) > 120 {
		t.Errorf("%v: %+v %q", err, response, seen.Name)
	}
	t.Logf("%d %s", response.StatusCode, seen.Name)
}

func TestABackendIsVerified(t *testing.T) {
	p := newPod(t)
	servers, inside := newIssuer(t, "ECDSA-P256"), newIssuer(t, "ML-DSA-65")
	serve := func(name string, certPEM, keyPEM []byte) dataplane.Endpoint {
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(mirrorHandler(name))
		s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		s.Config.ErrorLog = nil
		s.StartTLS()
		t.Cleanup(s.Close)
		return endpoint(t, s)
	}
	goodCert, goodKey := inside.issue(t, "ML-DSA-65", pkix.Name{CommonName: "good"}, "shop.internal")
	otherCert, otherKey := inside.issue(t, "ML-DSA-65", pkix.Name{CommonName: "other"}, "other.internal")
	strangeCert, strangeKey := newIssuer(t, "ECDSA-P256").issue(t, "ECDSA-P256", pkix.Name{CommonName: "stranger"}, "shop.internal")
	ecdsa := p.certificate(servers, "ECDSA-P256", anyScheme, host)
	var listeners []model.Port
	for n, group := range []string{"good:1", "other:1", "stranger:1", "plain:1"} {
		listeners = append(listeners, model.Port{Number: int32(port + n), Listeners: []model.Listener{
			with(https(strings.TrimSuffix(group, ":1"), nil, ecdsa), func(l *model.Listener) {
				l.Backends = []model.Backend{{Group: group, Weight: 1, TLS: &model.BackendTLS{Hostname: "shop.internal", CAs: string(inside.pem())}}}
			})}})
	}
	p.start(gateway(prefer, listeners...), dataplane.Endpoints{
		"good:1": {serve("good", goodCert, goodKey)}, "other:1": {serve("other", otherCert, otherKey)},
		"stranger:1": {serve("stranger", strangeCert, strangeKey)}, "plain:1": {endpoint(t, mirror(t, "plain"))},
	})
	for n, want := range []int{200, 503, 503, 503} {
		response, seen, err := p.raw(port+n, host, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d %s", listeners[n].Listeners[0].Name, response.StatusCode, seen.Name)
		if response.StatusCode != want {
			t.Errorf("%s: status %d, want %d", listeners[n].Listeners[0].Name, response.StatusCode, want)
		}
		// OpenSSL's own choice: a policy is about clients.
		if response.StatusCode == http.StatusOK && seen.Group != tls.X25519MLKEM768 {
			t.Errorf("%s: the key exchange is %s, want %s", listeners[n].Listeners[0].Name, seen.Group, tls.X25519MLKEM768)
		}
	}
}

// A session of one listener is worth nothing at another: neither its ticket,
// nor its ID.
func TestASessionIsResumedOnItsOwnListenerAlone(t *testing.T) {
	p := newPod(t)
	i, clients := newIssuer(t, "ECDSA-P256"), newIssuer(t, "ECDSA-P256")
	ecdsa := p.certificate(i, "ECDSA-P256", anyScheme, host)
	secured := func(name string) model.Listener {
		return with(https(name, nil, ecdsa), func(l *model.Listener) {
			l.ClientAuthentication = &model.ClientAuthentication{Required: true, CAs: string(clients.pem())}
		})
	}
	p.start(gateway(prefer,
		model.Port{Number: port, Listeners: []model.Listener{https("open", nil, ecdsa)}},
		model.Port{Number: port + 1, Listeners: []model.Listener{secured("closed")}},
		model.Port{Number: port + 2, Listeners: []model.Listener{https("also-open", nil, ecdsa)}}), nil)
	for _, version := range []string{"-tls1_3", "-tls1_2"} {
		for _, tickets := range []string{"", "-no_ticket"} { // which in TLS 1.3 says nothing
			session := filepath.Join(p.dir, "session"+version+tickets)
			_ = os.Remove(session)
			connect := func(port int, args ...string) (string, error) {
				args = append([]string{version}, args...)
				if tickets != "" {
					args = append(args, tickets)
				}
				cmd := program("client", "usr/bin/openssl", append([]string{"s_client", "-connect", fmt.Sprintf("127.0.0.1:%d", port), "-servername", host,
					"-CAfile", filepath.Join(p.dir, "roots.pem"), "-verify_return_error", "-ign_eof"}, args...)...) // until the server ends it
				cmd.Stdin = strings.NewReader("GET / HTTP/1.0\r\n\r\n")
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			p.forget()
			if out, err := connect(port, "-sess_out", session); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if h := p.handshake(); h.Resumed {
				t.Errorf("%s %s: the first connection is resumed", version, tickets)
			}
			if _, err := os.Stat(session); err != nil {
				t.Logf("%s %-10s there is no session to resume", version, tickets)
				continue
			}
			for _, tc := range []struct {
				port    int
				where   string
				resumed bool
				served  bool
			}{
				{port, "the same listener", true, true},
				{port + 2, "another listener", false, true},
				{port + 1, "one that asks for client certificates", false, false},
			} {
				out, err := connect(tc.port, "-sess_in", session)
				h := p.handshake()
				t.Logf("%s %-10s %-40s resumed %-5v served %v", version, tickets, tc.where, h.Resumed, !h.Failed)
				if h.Resumed != tc.resumed || h.Failed == tc.served {
					t.Errorf("%s %s, %s: resumed %v, served %v (%v)\n%s", version, tickets, tc.where, h.Resumed, !h.Failed, err, out)
				}
			}
		}
	}
}

// A ticket that comes back under an older key is answered with one under the new
// key. That one is good for the rest of the time: a client that returns once in
// each rotation, and its certificate, are looked at again all the same.
func TestARenewedTicketEndsWithTheFirst(t *testing.T) {
	p := newPod(t)
	i := newIssuer(t, "ECDSA-P256")
	g := gateway(prefer, model.Port{Number: port, Listeners: []model.Listener{https("web", nil, p.certificate(i, "ECDSA-P256", anyScheme, host))}})
	const lifetime = 30 * time.Second // more than two reloads take on a busy machine
	g.Tickets.LifetimeSeconds = int(lifetime.Seconds())
	p.start(g, nil)
	ring := tickets.New(1)
	rotate := func() {
		ring = ring.Next(ring.Epoch + 1)
		p.write(filepath.Join("rev-1", TicketFile("web")), ring.File())
		p.reload()
	}
	var start time.Time
	over := func() bool { return time.Since(start) >= lifetime-time.Second } // tickets count in seconds
	var caches map[uint16]tls.ClientSessionCache
	visit := func(want bool) {
		t.Helper()
		for version, cache := range caches {
			conn, err := p.dial(port, host, func(c *tls.Config) {
				c.MaxVersion, c.ClientSessionCache = version, cache
				c.Time = func() time.Time { return start } // a client that does not count the time
			})
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
			_, _ = io.ReadAll(conn) // the tickets come before the answer
			conn.Close()
			if got := conn.ConnectionState().DidResume; got != want && !(want && over()) {
				t.Errorf("%s: resumed %v, want %v", tls.VersionName(version), got, want)
			}
		}
	}
	const most = 5
	for n := range most {
		rotate()
		caches = map[uint16]tls.ClientSessionCache{tls.VersionTLS12: tls.NewLRUClientSessionCache(1), tls.VersionTLS13: tls.NewLRUClientSessionCache(1)}
		start = time.Now()
		visit(false)
		issued := time.Now()
		for range 2 { // a ring has one key that is older than that of new tickets
			rotate()
			visit(true)
		}
		if over() {
			t.Logf("try %d of %d tells nothing: the tickets ended before the last visit", n+1, most)
			continue
		}
		time.Sleep(time.Until(issued.Add(lifetime + 2*time.Second)))
		visit(false)
		return
	}
	t.Errorf("none of %d tries tells anything", most)
}

func TestAGatewayServesWhereThereIsNoIPv6(t *testing.T) {
	testnet.WithoutIPv6(t)
	p := newPod(t)
	p.environment = []string{AddressEnvironment + "=0.0.0.0"} // as qtls-agent has it then
	i := newIssuer(t, "ECDSA-P256")
	dual := []model.Certificate{p.certificate(newIssuer(t, "ML-DSA-65"), "ML-DSA-65", anyScheme, host), p.certificate(i, "ECDSA-P256", anyScheme, host)}
	toMirror := func(l *model.Listener) { l.Backends = []model.Backend{{Group: "mirror:1", Weight: 1}} }
	p.start(gateway(prefer,
		model.Port{Number: port, Listeners: []model.Listener{with(https("direct", nil, dual[1]), toMirror)}},
		model.Port{Number: port + 1, Listeners: []model.Listener{with(https("chosen", nil, dual...), toMirror)}},
	), dataplane.Endpoints{"mirror:1": {endpoint(t, mirror(t, "one"))}})
	for _, port := range []int{port, port + 1} {
		if _, err := p.get(port, nil); err != nil {
			t.Errorf("port %d: %v", port, err)
		}
	}
}
