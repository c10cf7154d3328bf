package model

import (
	"fmt"
	"regexp"
	"strings"
)

var hostnamePattern = regexp.MustCompile(`^(\*\.)?[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`)

// ParseHostname accepts a DNS name in lower case of at most 253 characters,
// with `*` allowed as the whole first label. The API's own validation says the
// same; this holds also for objects that came past it.
func ParseHostname(s string) (Hostname, error) {
	if len(s) > 253 || !hostnamePattern.MatchString(s) {
		return "", fmt.Errorf("%q is not a host name: lower-case letters, digits, hyphens and dots, at most 253 characters, `*` only as the whole first label", s)
	}
	return Hostname(s), nil
}

// Wildcard is the name below the `*` of a wildcard name, and whether it is one.
func (h Hostname) Wildcard() (below string, ok bool) {
	return strings.CutPrefix(string(h), "*.")
}
