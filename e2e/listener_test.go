//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
)

// One gateway with a listener of every kind.
func TestListeners(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	a := n.withIssuer()
	clientCA, strangerCA := newCA(t, "Client CA", ecdsaP256), newCA(t, "Stranger CA", ecdsaP256)
	ca := n.give("ca.pem", a.bundle())
	n.create(
		a.classical.issue(t, ecdsaP256, "backend.example", "inside.example", "elsewhere.example").secret(t, "echo-tls"),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "client-ca"}, Data: map[string]string{"ca.crt": string(clientCA.certPEM())}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "backend-ca"}, Data: map[string][]byte{"roots.pem": a.classical.certPEM()}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "wrong-ca"}, Data: map[string][]byte{"ca.crt": strangerCA.certPEM()}},
	)
	n.startEcho("echo", 1, "echo-tls")
	n.startEcho("other", 1, "")
	names := []v1alpha1.Hostname{"web.example", "shop.example", "*.wild.example", "tcp.example", "inner.example", "broken.example", "mutual.example", "maybe.example"}
	n.create(certificate("web", dual, names...))

	web := []v1alpha1.CertificateReference{{Name: "web"}}
	listener := func(name string, port int32, protocol v1alpha1.ListenerProtocol, hostname v1alpha1.Hostname, b v1alpha1.BackendReference) v1alpha1.Listener {
		l := v1alpha1.Listener{Name: name, Port: port, Protocol: protocol, Hostnames: []v1alpha1.Hostname{hostname}, Backends: []v1alpha1.BackendReference{b}}
		if protocol != v1alpha1.ProtocolTLSPassthrough {
			l.CertificateRefs = web
		}
		return l
	}
	encrypted := func(hostname v1alpha1.Hostname, secret, key string) v1alpha1.BackendReference {
		b := backend("echo", "https")
		b.TLS = &v1alpha1.BackendTLS{Hostname: hostname, CARefs: []v1alpha1.CAReference{{Name: secret, Key: key}}}
		return b
	}
	authenticated := func(l v1alpha1.Listener, mode v1alpha1.ClientAuthenticationMode) v1alpha1.Listener {
		l.ClientAuthentication = &v1alpha1.ClientAuthentication{
			Mode: mode, CARefs: []v1alpha1.CAReference{{Kind: v1alpha1.CAKindConfigMap, Name: "client-ca"}},
			ForwardCertificate: l.Protocol == v1alpha1.ProtocolHTTPS,
		}
		return l
	}
	plain := backend("echo", "http")
	g := gateway("all",
		listener("web", 443, v1alpha1.ProtocolHTTPS, "web.example", plain),
		listener("shop", 443, v1alpha1.ProtocolHTTPS, "shop.example", backend("other", "http")),
		listener("wild", 443, v1alpha1.ProtocolHTTPS, "*.wild.example", plain),
		listener("tcp", 9443, v1alpha1.ProtocolTLS, "tcp.example", backend("echo", "tcp")),
		listener("pass", 443, v1alpha1.ProtocolTLSPassthrough, "inside.example", backend("echo", "https")),
		listener("pass-alone", 8443, v1alpha1.ProtocolTLSPassthrough, "elsewhere.example", backend("echo", "https")),
		listener("inner", 7443, v1alpha1.ProtocolHTTPS, "inner.example", encrypted("backend.example", "backend-ca", "roots.pem")),
		listener("wrong-ca", 7444, v1alpha1.ProtocolHTTPS, "broken.example", encrypted("backend.example", "wrong-ca", "")),
		listener("wrong-name", 7445, v1alpha1.ProtocolHTTPS, "broken.example", encrypted("nobody.example", "backend-ca", "roots.pem")),
		authenticated(listener("mutual", 6443, v1alpha1.ProtocolHTTPS, "mutual.example", plain), v1alpha1.ClientAuthenticationRequired),
		authenticated(listener("maybe", 6444, v1alpha1.ProtocolHTTPS, "maybe.example", plain), v1alpha1.ClientAuthenticationOptional),
		authenticated(listener("mutual-tcp", 6445, v1alpha1.ProtocolTLS, "tcp.example", backend("echo", "tcp")), v1alpha1.ClientAuthenticationRequired),
	)
	n.create(g)
	waitReady(t, g, forReady)
	n.waitServed(openssl35, request{address: address(g, 443), name: "web.example", ca: ca})
	to := func(port int32, name string) request { return request{address: address(g, port), name: name, ca: ca} }

	t.Run("host names on one port", func(t *testing.T) {
		n := namespace{t, n.name}
		for _, c := range allClients {
			for name, pod := range map[string]string{"web.example": "echo", "shop.example": "other", "a.wild.example": "echo"} {
				if got := n.mustServe(c, to(443, name)); got.Served && !strings.HasPrefix(got.Pod, pod+"-") {
					t.Errorf("%s, %s: pod %q answered, want one of %s", c.name, name, got.Pod, pod)
				}
			}
		}
		for _, name := range []string{"unknown.example", "wild.example", "a.b.wild.example"} {
			for _, c := range []tlsClient{openssl30, openssl35, go126} {
				got := n.mustRefuse(c, to(443, name))
				if !strings.Contains(strings.ReplaceAll(got.Reason, " ", ""), "unrecognizedname") {
					t.Errorf("%s, %s: %s, want the alert unrecognized_name", c.name, name, got)
				}
				result(t, "name that no listener has, %s: %s", c.name, got)
			}
		}
	})

	t.Run("misdirected requests", func(t *testing.T) {
		n := namespace{t, n.name}
		for _, c := range []struct {
			sni, host string
			want      int
		}{
			{"web.example", "web.example", 200},
			{"web.example", "web.example:443", 200},
			{"web.example", "WEB.example", 200},
			{"web.example", "shop.example", 421},
			{"web.example", "inside.example", 421},
			{"web.example", "unknown.example", 421},
			{"web.example", "a.wild.example", 421},
			{"a.wild.example", "b.wild.example", 200},
			{"a.wild.example", "web.example", 421},
		} {
			for _, client := range []tlsClient{openssl35, curl30} {
				r := to(443, c.sni)
				r.host = c.host
				if got := client.send(n, r); got.Status != c.want {
					t.Errorf("%s, SNI %s and authority %s: status %d, want %d (%s)", client.name, c.sni, c.host, got.Status, c.want, got)
				}
			}
			result(t, "SNI %s, authority %s: %d", c.sni, c.host, c.want)
		}
		// HTTP/2 coalesces: one connection, another authority.
		host, port, _ := strings.Cut(address(g, 443), ":")
		out := n.shell(trixie, fmt.Sprintf(`curl -sS --http2 --cacert %s --resolve web.example:%[3]s:%[2]s -H 'Host: shop.example' -o /dev/null -w '%%{http_version} %%{http_code}' https://web.example:%[3]s/`, ca, host, port))
		if out.stdout != "2 421" {
			t.Errorf("HTTP/2 with another authority: %q, want %q (%s)", out.stdout, "2 421", out.stderr)
		}
		result(t, "HTTP/2, SNI web.example, authority shop.example: %s", out.stdout)
	})

	t.Run("TLS to TCP", func(t *testing.T) {
		n := namespace{t, n.name}
		for _, release := range []string{"1.26", "1.27"} {
			p := n.runProbe(release, to(9443, "tcp.example"), "-echo", "hello over TCP")
			if !p.OK || p.Certificate.Algorithm != "ECDSA-P256" {
				t.Errorf("Go %s: %s %s", release, p.Class, p.Error)
			}
			result(t, "Go %s: %s, %s, %s", release, p.Class, p.Group, p.Certificate.Algorithm)
		}
		eventually(t, forChange, "OpenSSL 3.5 gets its line back before it hangs up", func(context.Context) (bool, string) {
			out := n.shell(trixie, fmt.Sprintf(`(echo hello; sleep 2) | timeout 60 openssl s_client -quiet -no_ign_eof -connect %s -servername tcp.example -verify_hostname tcp.example -verify_return_error -CAfile %s`, address(g, 9443), ca))
			return strings.Contains(out.stdout, "hello"), out.stdout + out.stderr
		})
	})

	t.Run("passthrough", func(t *testing.T) {
		n := namespace{t, n.name}
		for _, r := range []request{to(443, "inside.example"), to(8443, "elsewhere.example")} {
			for _, c := range allClients {
				got := n.mustServe(c, r)
				// The backend itself ended the TLS connection, and saw the client's server name.
				if got.Served && (got.Algorithm != "ECDSA-P256" || got.Backend.ServerName != r.name) {
					t.Errorf("%s: got %s, the backend saw %+v", c.name, got, got.Backend)
				}
				result(t, "%s, %s: %s, ended at the backend", r.name, c.name, got)
			}
		}
		got := n.mustRefuse(openssl35, to(8443, "web.example"))
		result(t, "passthrough, name that no listener has: %s", got)
	})

	t.Run("encrypted to the backend", func(t *testing.T) {
		n := namespace{t, n.name}
		got := n.mustServe(openssl35, to(7443, "inner.example"))
		if got.Backend.ServerName != "backend.example" || got.Backend.Version != "TLS 1.3" {
			t.Errorf("the backend saw %+v, want TLS 1.3 for backend.example", got.Backend)
		}
		result(t, "the backend saw %s, %s for %s", got.Backend.Version, got.Backend.Group, got.Backend.ServerName)
		for port, why := range map[int32]string{7444: "another CA", 7445: "another name"} {
			r := to(port, "broken.example")
			if got := openssl35.send(n, r); got.Status != 503 {
				t.Errorf("backend whose certificate is of %s: %s, status %d, want 503", why, got, got.Status)
			}
			result(t, "backend whose certificate is of %s: 503", why)
		}
	})

	t.Run("client certificates", func(t *testing.T) {
		n := namespace{t, n.name}
		alice, stranger := clientCA.issue(t, ecdsaP256, "alice.example"), strangerCA.issue(t, ecdsaP256, "alice.example")
		with := func(r request, p *pair, name string) request {
			if p != nil {
				r.cert, r.key = n.give(name+".crt", p.certPEM()), n.give(name+".key", p.keyPEM(t))
			}
			r.headers = forged
			return r
		}
		for _, c := range allClients {
			for _, x := range []struct {
				name     string
				r        request
				p        *pair
				served   bool
				verified string
			}{
				{"required, valid", to(6443, "mutual.example"), &alice, true, "SUCCESS"},
				{"required, none", to(6443, "mutual.example"), nil, false, ""},
				{"required, of a stranger", to(6443, "mutual.example"), &stranger, false, ""},
				{"optional, valid", to(6444, "maybe.example"), &alice, true, "SUCCESS"},
				{"optional, none", to(6444, "maybe.example"), nil, true, "NONE"},
				{"optional, of a stranger", to(6444, "maybe.example"), &stranger, false, ""},
			} {
				got := c.send(n, with(x.r, x.p, strings.NewReplacer(" ", "-", ",", "").Replace(x.name)))
				if got.Served != x.served {
					t.Errorf("%s, %s: %s, want served %v", c.name, x.name, got, x.served)
				}
				result(t, "%-19s | %-24s | %s %s", c.name, x.name, got, strings.Join(got.Headers["X-Client-Cert-Verified"], ","))
				if got.Served {
					identity(t, c.name+", "+x.name, got.Headers, x.verified, x.p)
				}
			}
			// A listener that asks for no certificate lets none of these headers through, either.
			r := to(443, "web.example")
			r.headers = forged
			if got := n.mustServe(c, r); got.Served {
				identity(t, c.name+", listener without client authentication", got.Headers, "", nil)
			}
		}
		p := n.runProbe("1.27", with(to(6445, "tcp.example"), &alice, "tcp-alice"), "-echo", "hi")
		if !p.OK {
			t.Errorf("TLS to TCP with a client certificate: %s %s", p.Class, p.Error)
		}
		p = n.runProbe("1.27", to(6445, "tcp.example"), "-echo", "hi")
		if p.OK {
			t.Error("TLS to TCP without a client certificate was served")
		}
	})
}

// forged are headers by which a client would claim to be somebody.
var forged = []string{
	"X-Client-Cert-Verified: SUCCESS", "X-Client-Cert-Subject: CN=root", "X-Client-Cert-Serial: 666", "X-Client-Cert-Fingerprint: 666", "Client-Cert: :Zm9yZ2Vk:",
}

// identity holds the headers that reached the backend to what the client proved.
func identity(t *testing.T, who string, headers map[string][]string, verified string, p *pair) {
	t.Helper()
	want := map[string]string{"X-Client-Cert-Verified": verified, "X-Client-Cert-Subject": "", "X-Client-Cert-Serial": "", "X-Client-Cert-Fingerprint": "", "Client-Cert": ""}
	if p != nil {
		want["X-Client-Cert-Subject"] = "CN=alice.example"
		want["X-Client-Cert-Serial"] = fmt.Sprintf("%x", p.cert.SerialNumber.Bytes())
		want["X-Client-Cert-Fingerprint"] = fingerprint(*p)
		want["Client-Cert"] = structuredField(*p)
	}
	for name, value := range want {
		got := strings.Join(headers[name], ",")
		if !strings.EqualFold(got, value) && !(name == "Client-Cert" && got == value) {
			t.Errorf("%s: the backend saw %s %q, want %q", who, name, got, value)
		}
	}
}
