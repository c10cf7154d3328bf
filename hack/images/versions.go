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
	nginxLine     = regexp.MustCompile(`(?m)^nginx version: nginx/(\d+\.\d+\.\d+)`)
	withOpenSSL   = regexp.MustCompile(`(?m)\b(?:built|running) with OpenSSL (\d+\.\d+\.\d+)`)
	opensslLine   = regexp.MustCompile(`^OpenSSL (\d+\.\d+\.\d+)`)
)

func parseHAProxy(output string) (haproxyVersions, error) {
	h, o := haproxyLine.FindStringSubmatch(output), runningOnLine.FindStringSubmatch(output)
	if h == nil || o == nil {
		return haproxyVersions{}, fmt.Errorf("no version of HAProxy or of OpenSSL in %q", output)
	}
	return haproxyVersions{h[1], o[1]}, nil
}

// parseNGINX reads the output of `nginx -V`: its version, and that of the OpenSSL it runs on, which it tells where that is
// not the one it was built with.
func parseNGINX(output string) (nginx, openssl string, err error) {
	n, o := nginxLine.FindStringSubmatch(output), withOpenSSL.FindAllStringSubmatch(output, -1)
	if n == nil || o == nil {
		return "", "", fmt.Errorf("no version of nginx or of OpenSSL in %q", output)
	}
	return n[1], o[len(o)-1][1], nil
}

// parseOpenSSL reads the output of `openssl version`.
func parseOpenSSL(output string) (string, error) {
	m := opensslLine.FindStringSubmatch(output)
	if m == nil {
		return "", fmt.Errorf("no version of OpenSSL in %q", output)
	}
	return m[1], nil
}

// parseProvider reads the output of `openssl list -providers` and returns the name and the version of a provider; an error
// when it is not there or not active.
func parseProvider(output, id string) (string, error) {
	fields, inside := map[string]string{}, false
	for line := range strings.Lines(output) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		switch {
		case !ok:
			inside = name == id // a line without a value begins a provider
		case inside:
			fields[name] = value
		}
	}
	if fields["status"] != "active" {
		return "", fmt.Errorf("openssl does not list %s as active: %s", id, lastLines([]byte(output), 15))
	}
	return fields["name"] + " " + fields["version"], nil
}

// parseHandshake reads the output of `openssl s_client` and says which group and signature scheme it used; an error
// when they are not those that servers are checked with, or when the chain was not verified.
func parseHandshake(output string) (string, error) {
	const group, scheme = "X25519MLKEM768", "mldsa65"
	for _, want := range []string{
		"Negotiated TLS1.3 group: " + group, "Peer signature type: " + scheme, "Verify return code: 0 (ok)",
	} {
		if !strings.Contains(output, want) {
			return "", fmt.Errorf("openssl s_client did not say %q: %s", want, lastLines([]byte(output), 40))
		}
	}
	return group + ", " + scheme + ", chain verified", nil
}
