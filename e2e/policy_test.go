//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
)

// policyCase is a client and what it gets: `GROUP ALGORITHM`, or "" when it is to be refused.
type policyCase struct {
	client tlsClient
	offers string
	with   request
	want   map[string]string // by "policy mode"; Observe is the same for each policy, and the same as compatible-v1
}

const (
	cnsaRequire   = "cnsa2-v1 Require"
	cnsaPrefer    = "cnsa2-v1 Prefer"
	hybridRequire = "hybrid-v1 Require"
	hybridPrefer  = "hybrid-v1 Prefer"
	pqcRequire    = "pqc-only-v1 Require"
	pqcPrefer     = "pqc-only-v1 Prefer"
	compatible    = "compatible-v1 Require"
	observe       = "cnsa2-v1 Observe"
)

var everywhere = []string{cnsaRequire, cnsaPrefer, hybridRequire, hybridPrefer, pqcRequire, pqcPrefer, compatible, observe}

// but is the same outcome for every policy and mode, with exceptions.
func but(outcome string, exceptions map[string]string) map[string]string {
	want := map[string]string{}
	for _, p := range everywhere {
		want[p] = outcome
	}
	maps.Copy(want, exceptions)
	return want
}

// refusedBy is an outcome that some policies and modes refuse.
func refusedBy(outcome string, refusing ...string) map[string]string {
	want := but(outcome, nil)
	for _, p := range refusing {
		want[p] = ""
	}
	return want
}

// Every certificate is there (ML-DSA-87, ML-DSA-65, ECDSA-P256), so that what a client gets is the policy's doing.
var policyCases = []policyCase{
	{openssl30, "its default", request{}, refusedBy("X25519 ECDSA-P256", cnsaRequire, hybridRequire, pqcRequire)},
	{curl30, "its default", request{}, refusedBy("? ECDSA-P256", cnsaRequire, hybridRequire, pqcRequire)},
	{openssl35, "its default", request{}, refusedBy("X25519MLKEM768 ML-DSA-87", cnsaRequire, pqcRequire)},
	{curl35, "its default", request{}, refusedBy("X25519MLKEM768 ML-DSA-87", cnsaRequire, pqcRequire)},
	{openssl35, "a share for X25519, and MLKEM1024", request{groups: "X25519:MLKEM1024"}, but("X25519 ML-DSA-87", map[string]string{
		cnsaRequire: "MLKEM1024 ML-DSA-87", cnsaPrefer: "MLKEM1024 ML-DSA-87", pqcRequire: "MLKEM1024 ML-DSA-87", pqcPrefer: "MLKEM1024 ML-DSA-87", hybridRequire: ""})},
	{openssl35, "a share for X25519, and X25519MLKEM768", request{groups: "X25519:X25519MLKEM768"}, refusedBy("X25519MLKEM768 ML-DSA-87", cnsaRequire, pqcRequire)},
	{openssl35, "MLKEM768", request{groups: "MLKEM768"}, but("", map[string]string{pqcRequire: "MLKEM768 ML-DSA-87", pqcPrefer: "MLKEM768 ML-DSA-87"})},
	{openssl35, "classical groups", request{groups: "X25519:P-256"}, refusedBy("X25519 ML-DSA-87", cnsaRequire, hybridRequire, pqcRequire)},
	{openssl35, "MLKEM1024 and classical signatures", request{groups: "MLKEM1024", sigalgs: "ecdsa_secp256r1_sha256"}, but("", map[string]string{
		cnsaPrefer: "MLKEM1024 ECDSA-P256", pqcPrefer: "MLKEM1024 ECDSA-P256"})},
	{openssl35, "ChaCha20 alone", request{suites: "TLS_CHACHA20_POLY1305_SHA256"}, refusedBy("X25519MLKEM768 ML-DSA-87", cnsaRequire, pqcRequire)},
	{openssl35, "MLKEM1024 and ChaCha20 alone", request{groups: "MLKEM1024", suites: "TLS_CHACHA20_POLY1305_SHA256"}, but("", map[string]string{
		cnsaPrefer: "MLKEM1024 ML-DSA-87", pqcRequire: "MLKEM1024 ML-DSA-87", pqcPrefer: "MLKEM1024 ML-DSA-87"})},
	{openssl35, "TLS 1.2", request{version: "1.2"}, refusedBy("? ECDSA-P256", cnsaRequire, hybridRequire, pqcRequire)},
	{openssl35, "TLS 1.2 with CBC", request{version: "1.2", ciphers: "ECDHE-ECDSA-AES128-SHA"}, but("", nil)},
	{openssl30, "TLS 1.1", request{version: "1.1", ciphers: "ALL:@SECLEVEL=0"}, but("", nil)},
	// Go's hello has a share for X25519MLKEM768; a policy that likes another of its groups better asks it again. It does
	// not verify chains that ML-DSA signed: 1.26 has no ML-DSA, and 1.27 leaves it out of signature_algorithms_cert.
	{go126, "its default", request{}, but("X25519MLKEM768 ECDSA-P256", map[string]string{cnsaRequire: "", pqcRequire: "", cnsaPrefer: "SecP384r1MLKEM1024 ECDSA-P256"})},
	{go127, "its default", request{}, but("X25519MLKEM768 ECDSA-P256", map[string]string{cnsaRequire: "", pqcRequire: "", cnsaPrefer: "SecP384r1MLKEM1024 ECDSA-P256"})},
}

// outcome is an answer in the words of policyCase.want. A client that cannot name its group has "?" for it.
func outcome(a answer, known bool) string {
	if !a.Served {
		return ""
	}
	group := a.Group
	if !known {
		group = "?"
	}
	return group + " " + a.Algorithm
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	pq, classical := newCA(t, "Test PQ CA", mlDSA87), newCA(t, "Test classical CA", ecdsaP256)
	n.create(pq.secret(t, "ca-pq"), classical.secret(t, "ca-classical"), caIssuer("ca", "ca-pq", "ca-classical"))
	ca := n.give("ca.pem", bundle(pq, classical))
	n.create(certificate("web", []v1alpha1.KeyAlgorithm{mlDSA87, mlDSA65, ecdsaP256}, "web.example"))
	n.startEcho("echo", 1, "")
	g := gateway("policies", https("web", 443, "web.example"))
	n.create(g)
	waitReady(t, g, forReady)
	n.waitServed(openssl35, request{address: address(g, 443), name: "web.example", ca: ca})
	pods := n.gatewayPods(g)

	for _, combination := range everywhere {
		policy, mode, _ := strings.Cut(combination, " ")
		update(t, g, func(g *v1alpha1.QTLSGateway) {
			g.Spec.PolicyRef = v1alpha1.PolicyReference{Name: policy, Mode: v1alpha1.PolicyMode(mode)}
		})
		waitReady(t, g, forChange)
		// The worker of the policy before takes connections until it is told to stop, and has got round to it.
		first := policyCases[0]
		eventually(t, forChange, "the policy is in force", func(context.Context) (bool, string) {
			r := first.with
			r.address, r.name, r.ca = address(g, 443), "web.example", ca
			a := first.client.send(n, r)
			return a.Served == (first.want[combination] != ""), a.String()
		})
		served, wouldRefuse := n.metric(pods[0], "qtls_handshakes_total"), n.metric(pods[0], "qtls_policy_would_refuse_total", `aspect="group"`)
		expected := 0.0
		for _, c := range policyCases {
			r := c.with
			r.address, r.name, r.ca = address(g, 443), "web.example", ca
			a := c.client.send(n, r)
			want, asked := c.want[combination]
			if !asked {
				t.Fatalf("nothing is expected of %s under %s", c.client.name, combination)
			}
			knowsGroup := !strings.HasPrefix(want, "? ")
			if got := outcome(a, knowsGroup); !strings.EqualFold(got, want) {
				t.Errorf("%s, %s (%s): got %q (%s), want %q", combination, c.client.name, c.offers, got, a, want)
			}
			result(t, "%-22s | %-19s | %-36s | %s", combination, c.client.name, c.offers, a)
			if a.Served {
				expected++
			}
		}
		eventually(t, forChange, "every handshake is counted", func(context.Context) (bool, string) {
			counted := n.metric(pods[0], "qtls_handshakes_total") - served
			return counted >= expected, fmt.Sprintf("%v of %v", counted, expected)
		})
		refusals := n.metric(pods[0], "qtls_policy_would_refuse_total", `aspect="group"`) - wouldRefuse
		result(t, "%s: %v served, %v of them counted as what Require would refuse for their group", combination, expected, refusals)
		if (refusals > 0) != (combination == observe) {
			t.Errorf("%s: %v handshakes are counted as what Require would refuse", combination, refusals)
		}
	}
	// A policy is a matter of the configuration alone.
	if now := n.gatewayPods(g); len(now) != 1 || now[0].UID != pods[0].UID || now[0].Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the changes of policy restarted or replaced the pod")
	}
}

// A gateway with one of the two certificates serves those who take it; with both, each client its own.
func TestDualCertificates(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	a := n.withIssuer()
	ca := n.give("ca.pem", a.bundle())
	n.startEcho("echo", 1, "")
	n.create(
		certificate("both", dual, "both.example"),
		certificate("pq", []v1alpha1.KeyAlgorithm{mlDSA65}, "pq.example"),
		certificate("classical", []v1alpha1.KeyAlgorithm{ecdsaP256}, "classical.example"),
		certificate("reluctant", dual, "reluctant.example"),
	)
	reluctant := https("reluctant", 443, "reluctant.example")
	reluctant.Preference = v1alpha1.PreferClassical
	g := gateway("dual", https("both", 443, "both.example"), https("pq", 443, "pq.example"), https("classical", 443, "classical.example"), reluctant,
		v1alpha1.Listener{ // one bind alone: no choice is made here, and a client that cannot take it is told so by TLS
			Name: "alone", Port: 8443, Protocol: v1alpha1.ProtocolHTTPS, Hostnames: []v1alpha1.Hostname{"pq.example"},
			CertificateRefs: []v1alpha1.CertificateReference{{Name: "pq"}}, Backends: []v1alpha1.BackendReference{backend("echo", "http")},
		})
	n.create(g)
	waitReady(t, g, forReady)
	n.waitServed(openssl35, request{address: address(g, 443), name: "both.example", ca: ca})

	pqClients := []tlsClient{openssl35, curl35}
	for _, c := range allClients {
		takesPQ := slices.ContainsFunc(pqClients, func(p tlsClient) bool { return p.name == c.name })
		for _, name := range []string{"both", "pq", "classical", "reluctant", "alone"} {
			r := request{address: address(g, 443), name: name + ".example", ca: ca}
			if name == "alone" {
				r.address, r.name = address(g, 8443), "pq.example"
			}
			want := map[bool]map[string]string{
				true:  {"both": "ML-DSA-65", "pq": "ML-DSA-65", "classical": "ECDSA-P256", "reluctant": "ECDSA-P256", "alone": "ML-DSA-65"},
				false: {"both": "ECDSA-P256", "classical": "ECDSA-P256", "reluctant": "ECDSA-P256"},
			}[takesPQ][name]
			got := c.send(n, r)
			if got.Served != (want != "") || got.Served && got.Algorithm != want {
				t.Errorf("%s, certificate %s: got %s, want %q", c.name, name, got, want)
			}
			result(t, "%-19s | %-9s | %s", c.name, name, got)
		}
	}

	t.Run("signature algorithms", func(t *testing.T) {
		for _, c := range []struct{ name, sigalgs, want string }{
			{"both", "ecdsa_secp256r1_sha256:mldsa65", "ML-DSA-65"},
			{"both", "ecdsa_secp256r1_sha256", "ECDSA-P256"},
			{"both", "mldsa65", "ML-DSA-65"},
			{"both", "mldsa44:mldsa87:ecdsa_secp256r1_sha256", "ECDSA-P256"}, // ML-DSA, but not of this certificate
			{"reluctant", "mldsa65", "ML-DSA-65"},
			{"reluctant", "mldsa65:ecdsa_secp256r1_sha256", "ECDSA-P256"},
		} {
			got := n.mustServe(openssl35, request{address: address(g, 443), name: c.name + ".example", ca: ca, sigalgs: c.sigalgs})
			if got.Algorithm != c.want {
				t.Errorf("%s, client with %s: got %s, want %s", c.name, c.sigalgs, got, c.want)
			}
		}
	})

	t.Run("offers", func(t *testing.T) {
		port := 4000
		for name, c := range map[string][2]string{
			"OpenSSL 3.0":         {bookworm, "openssl s_client -connect 127.0.0.1:%d"},
			"OpenSSL 3.5":         {trixie, "openssl s_client -connect 127.0.0.1:%d"},
			"curl on OpenSSL 3.5": {trixie, "curl https://127.0.0.1:%d"},
			"Go 1.26":             {trixie, "qtls-probe-go1.26 -ca " + ca + " -sni x.example 127.0.0.1:%d"},
			"Go 1.27":             {trixie, "qtls-probe-go1.27 -ca " + ca + " -sni x.example 127.0.0.1:%d"},
		} {
			port++
			o := n.offerOf(c[0], fmt.Sprintf(c[1], port), port)
			has := func(list []string) string {
				switch {
				case list == nil:
					return "not sent"
				case slices.Contains(list, "mldsa65"):
					return "with mldsa65"
				}
				return "without mldsa65"
			}
			result(t, "%-19s | groups %s | shares %s | signature_algorithms %s | signature_algorithms_cert %s | %d bytes",
				name, strings.Join(o.Groups, ","), strings.Join(o.KeyShares, ","), has(o.SignatureAlgorithms), has(o.SignatureAlgorithmsCert), o.Bytes)
			if name == "Go 1.27" && (has(o.SignatureAlgorithms) != "with mldsa65" || has(o.SignatureAlgorithmsCert) != "without mldsa65") {
				t.Errorf("Go 1.27 is here as the client whose signature_algorithms_cert leaves ML-DSA out, and is not: %+v", o)
			}
		}
	})

	t.Run("hellos in pieces", func(t *testing.T) { helloInPieces(n, g, ca) })
}

// helloInPieces: whatever its framing, a hello gets the certificate that it asks for; one that never ends costs nobody
// else anything and is given up.
func helloInPieces(n namespace, g *v1alpha1.QTLSGateway, ca string) {
	n.Helper()
	r := request{address: address(g, 443), name: "both.example", ca: ca}
	port := 5000
	for _, pieces := range []string{"-segment 1 -pause 0s", "-segment 16", "-segment 100", "-segment 1000", "-fragment 1", "-fragment 100", "-fragment 700 -segment 333"} {
		p := n.runProbe("1.27", r, append(strings.Fields(pieces), "-http", "/")...)
		if !p.OK || p.Certificate.Algorithm != "ECDSA-P256" {
			n.Errorf("Go 1.27 with %s: %s %s", pieces, p.Class, p.Error)
		}
		// OpenSSL cannot cut its hello up; a relay on the client's side does.
		port++
		relay := fmt.Sprintf("127.0.0.1:%d", port)
		out := n.sClient(trixie, "GET / HTTP/1.1\r\nHost: "+r.name+"\r\nConnection: close\r\n\r\n",
			fmt.Sprintf("timeout 60 qtls-probe-go1.27 -relay %s %s %s & %s", relay, pieces, r.address, untilListening(port)),
			"-connect", relay, "-servername", r.name, "-verify_hostname", r.name, "-verify_return_error", "-CAfile", ca)
		var a answer
		a.leaf(out.stdout)
		want := "ML-DSA-65"
		if pieces == "-fragment 1" {
			want = "ECDSA-P256" // a hello of 1,500 records: the reader stops at 64, and who is not understood gets what all take
		}
		if a.Algorithm != want || !strings.Contains(out.stdout, "HTTP/1.1 200") {
			n.Errorf("OpenSSL 3.5 with %s: got certificate %q, want %q, and\n%s%s", pieces, a.Algorithm, want, out.stdout, out.stderr)
		}
		result(n.T, "%-26s | Go 1.27: %s, ECDSA-P256 | OpenSSL 3.5: %s", pieces, p.Class, a.Algorithm)
	}
	hrr := n.mustServe(openssl35, request{address: r.address, name: r.name, ca: ca, groups: "X25519:X25519MLKEM768"})
	if hrr.Group != "X25519MLKEM768" || hrr.Algorithm != "ML-DSA-65" {
		n.Errorf("HelloRetryRequest: got %s, want X25519MLKEM768 and ML-DSA-65", hrr)
	}
	result(n.T, "HelloRetryRequest, OpenSSL 3.5 | %s", hrr)
	again := n.runProbe("1.27", request{address: r.address, name: r.name, ca: ca, groups: "SecP256r1MLKEM768:SecP384r1MLKEM1024"}, "-http", "/")
	if !again.OK || !again.HelloRetryRequest || again.Group != "SecP384r1MLKEM1024" {
		n.Errorf("HelloRetryRequest: Go 1.27 got %+v, want SecP384r1MLKEM1024 after a retry", again)
	}
	result(n.T, "HelloRetryRequest, Go 1.27 | %s, retried %v", again.Group, again.HelloRetryRequest)

	n.Run("given up", func(t *testing.T) {
		for _, partial := range []string{"-stop-after 1", "-stop-after 300", "-stop-after 300 -hang-up", "-stop-after 1400"} {
			t.Run(partial, func(t *testing.T) {
				t.Parallel() // each takes until the gateway loses patience
				const patience = time.Minute
				p := namespace{t, n.name}.runProbe("1.27", r, append(strings.Fields(partial), "-timeout", patience.String())...)
				if p.Closed == nil || p.Closed.StillOpen {
					t.Errorf("a hello with %s was not given up within %s: %+v", partial, patience, p)
					return
				}
				result(t, "closed after %.1f s, received %q", p.Closed.AfterMs/1000, p.Closed.Received)
			})
		}
	})
	n.mustServe(openssl35, r)
	n.mustServe(go126, r)
}
