package main

import (
	"fmt"
	"regexp"
	"strings"
)

// haproxyVersions are the versions that `haproxy -vv` tells: its own and that of the OpenSSL it runs on, which may differ
// from the one it was built with.
type haproxyVersions struct{ haproxy, openssl string }

var (
	haproxyLine   = regexp.MustCompile(`(?m)^HAProxy version (\d+\.\d+\.\d+)`)
	runningOnLine = regexp.MustCompile(`(?m)^Running on SSL library version : OpenSSL (\d+\.\d+\.\d+)`)
	opensslLine   = regexp.MustCompile(`^OpenSSL (\d+\.\d+\.\d+)`)
)

func parseHAProxy(output string) (haproxyVersions, error) {
	h, o := haproxyLine.FindStringSubmatch(output), runningOnLine.FindStringSubmatch(output)
	if h == nil || o == nil {
		return haproxyVersions{}, fmt.Errorf("no version of HAProxy or of OpenSSL in %q", output)
	}
	return haproxyVersions{h[1], o[1]}, nil
}

// parseOpenSSL reads the output of `openssl version`.
func parseOpenSSL(output string) (string, error) {
	m := opensslLine.FindStringSubmatch(output)
	if m == nil {
		return "", fmt.Errorf("no version of OpenSSL in %q", output)
	}
	return m[1], nil
}

// parseHandshake reads the output of `openssl s_client` and says which group and signature scheme it used; an error
// when they are not the wanted ones or when the chain was not verified.
func parseHandshake(output, group, scheme string) (string, error) {
	for _, want := range []string{
		"Negotiated TLS1.3 group: " + group, "Peer signature type: " + scheme, "Verify return code: 0 (ok)",
	} {
		if !strings.Contains(output, want) {
			return "", fmt.Errorf("openssl s_client did not say %q: %s", want, lastLines([]byte(output), 40))
		}
	}
	return group + ", " + scheme + ", chain verified", nil
}
