package main

import (
	"strings"
	"testing"
)

const haproxyOutput = `HAProxy version 3.2.26-1 2026/10/14 - https://haproxy.org/
Status: long-term supported branch - will stop receiving fixes around Q2 2030.
Built with SSL library version : OpenSSL 3.6.5 29 Sep 2026
Running on SSL library version : OpenSSL 3.5.7 9 Jun 2026 (VERSIONS DIFFER!)
`

func TestHAProxyTellsTheOpenSSLItRunsOn(t *testing.T) {
	got, err := parseHAProxy(haproxyOutput)
	if want := (haproxyVersions{"3.2.26", "3.5.7"}); err != nil || got != want {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
	for _, output := range []string{"", "HAProxy version 3.2.26-1\n", "Running on SSL library version : OpenSSL 3.5.7\n"} {
		if got, err := parseHAProxy(output); err == nil {
			t.Errorf("%q gives %v", output, got)
		}
	}
}

func TestNGINXTellsTheOpenSSLItRunsOn(t *testing.T) {
	const built = "nginx version: nginx/1.26.3\nbuilt with OpenSSL 3.5.1 1 Jul 2025\nTLS SNI support enabled\n"
	for output, want := range map[string]string{
		built: "1.26.3 3.5.1",
		strings.Replace(built, "2025\n", "2025 (running with OpenSSL 3.5.7 9 Jun 2026)\n", 1): "1.26.3 3.5.7",
	} {
		if nginx, openssl, err := parseNGINX(output); err != nil || nginx+" "+openssl != want {
			t.Errorf("got %s %s (%v), want %s", nginx, openssl, err, want)
		}
	}
	for _, output := range []string{"", "nginx version: nginx/1.26.3\n", "built with OpenSSL 3.5.1 1 Jul 2025\n"} {
		if nginx, openssl, err := parseNGINX(output); err == nil {
			t.Errorf("%q gives %s on %s", output, nginx, openssl)
		}
	}
}

func TestOpenSSLVersion(t *testing.T) {
	if got, err := parseOpenSSL("OpenSSL 3.0.22 9 Jun 2026 (Library: OpenSSL 3.0.22 9 Jun 2026)\n"); err != nil || got != "3.0.22" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := parseOpenSSL("LibreSSL 4.1.0\n"); err == nil {
		t.Errorf("another library passes as OpenSSL %q", got)
	}
}

func TestOnlyAnActiveProviderCounts(t *testing.T) {
	list := `Providers:
  default
    name: OpenSSL Default Provider
    version: 3.5.7
    status: active
  oqsprovider
    name: Q-TLS provider
    version: 0.1.0
    status: active
`
	if got, err := parseProvider(list, "oqsprovider"); err != nil || got != "Q-TLS provider 0.1.0" {
		t.Errorf("got %q, %v", got, err)
	}
	for what, output := range map[string]string{
		"missing": strings.Replace(list, "oqsprovider", "legacy", 1), "inactive": strings.TrimSuffix(list, "active\n") + "inactive\n", "empty": "",
	} {
		if got, err := parseProvider(output, "oqsprovider"); err == nil {
			t.Errorf("%s: it passes as %q", what, got)
		}
	}
}

func TestHandshakeMustHaveUsedTheWantedGroupAndScheme(t *testing.T) {
	good := "Peer signature type: mldsa65\nNegotiated TLS1.3 group: X25519MLKEM768\nVerify return code: 0 (ok)\n"
	if got, err := parseHandshake(good); err != nil || got != "X25519MLKEM768, mldsa65, chain verified" {
		t.Errorf("got %q, %v", got, err)
	}
	for what, output := range map[string]string{
		"group":       strings.Replace(good, "X25519MLKEM768", "X25519", 1),
		"scheme":      strings.Replace(good, "mldsa65", "ecdsa_secp256r1_sha256", 1),
		"return code": strings.Replace(good, "0 (ok)", "18 (self-signed certificate)", 1),
	} {
		if got, err := parseHandshake(output); err == nil {
			t.Errorf("another %s passes: %q", what, got)
		}
	}
}
