package haproxy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"qtls.dev/qtls/internal/dataplane"
)

// terminate writes the frontend of one bind, which terminates TLS. listeners
// are all those of its port.
func (r *renderer) terminate(l listener, b bind, address string, port int32, listeners []listener) {
	mode := "tcp"
	if isHTTP(l) {
		mode = "http"
	}
	r.line("frontend %s from %s", r.label(b.name), mode)
	r.line("    log ring@handshakes format raw profile handshakes local0")
	r.line("    bind %s %s", address, r.tls(l, b))
	r.handshakeTime(b)
	r.line("    tcp-request session do-log")
	if isHTTP(l) {
		r.line("    http-request set-log-level silent")
		r.host()
		r.authority(l, port, listeners)
		r.headers(l)
	} else {
		r.serverName(l, port, listeners)
		r.line("    tcp-request content set-log-level silent")
	}
	r.line("    default_backend %s", backendName(l))
	r.line("")
}

// serverName refuses, on the listener that takes every other name, a client
// whose hello came so late that it was not read before: its name may be
// another listener's. What serves HTTPS looks at each request's authority, and
// what has names has strict-sni.
func (r *renderer) serverName(l listener, port int32, listeners []listener) {
	if len(l.Hostnames) > 0 || !named(listeners) {
		return
	}
	r.line("    tcp-request session set-var(sess.name) ssl_fc_sni,lower")
	r.lookUp("tcp-request session", "sess.name", "sess.listener", port, listeners)
	r.line("    tcp-request session reject unless { var(sess.listener) -m str %s }", r.label(l.Name))
}

// tls is the bind line's part that says what is negotiated.
func (r *renderer) tls(l listener, b bind) string {
	t := r.gateway.TLS
	words := []string{"ssl", "crt-list", r.certificateList(l, b)}
	if len(l.Hostnames) > 0 {
		words = append(words, "strict-sni") // other names get the alert unrecognized_name
	}
	least := t.MinVersion
	if b.postQuantum {
		least = "TLSv1.3"
	}
	words = append(words, "ssl-min-ver", r.word(least), "ssl-max-ver", r.word(t.MaxVersion),
		"curves", r.word(t.Curves), "sigalgs", r.word(t.SignatureAlgorithms))
	if t.CipherSuites != "" {
		words = append(words, "ciphersuites", r.word(t.CipherSuites))
	}
	if t.Ciphers != "" {
		words = append(words, "ciphers", r.word(t.Ciphers))
	}
	if isHTTP(l) {
		words = append(words, "alpn", "h2,http/1.1")
	}
	words = append(words, r.tickets(l)...)
	if a := l.ClientAuthentication; a != nil {
		verify := "optional"
		if a.Required {
			verify = "required"
		}
		words = append(words, "ca-file", r.authorities(a.CAs), "verify", verify)
	}
	return strings.Join(words, " ")
}

// certificateList writes the bind's certificates and the names that each is
// for, whatever names are in it: what a listener serves is what its spec says.
// "*" makes a certificate one of those for every name.
func (r *renderer) certificateList(l listener, b bind) string {
	file := fmt.Sprintf("lists/%s.list", r.label(b.short()))
	names := " *"
	if len(l.Hostnames) > 0 {
		names = ""
		for _, h := range l.Hostnames {
			names += " " + r.hostname(string(h))
		}
	}
	var entries strings.Builder
	for _, c := range b.certificates {
		certificate := dataplane.Certificate{Name: certificateName(r.label(c.Secret)), Secret: c.Secret, Algorithm: string(c.Algorithm), HSMPool: c.HSMPool}
		if h := r.gateway.HSM; c.HSMPool != "" && (h == nil || h.Pool != c.HSMPool) {
			r.fail(fmt.Errorf("the key of certificate %q lies in HSMPool %q, which the gateway does not use", c.Secret, c.HSMPool))
		}
		entries.WriteString(CertificateFile(certificate.Name) + names + "\n")
		if !slices.Contains(r.revision.Certificates, certificate) {
			r.revision.Certificates = append(r.revision.Certificates, certificate)
		}
	}
	r.revision.Files[file] = entries.String()
	return file
}

// certificateName is the Secret's name, or what of it a file's name can hold,
// of at most 255 bytes: a Secret's has up to 253.
func certificateName(secret string) string {
	const most = 200
	if len(secret) <= most {
		return secret
	}
	sum := sha256.Sum256([]byte(secret))
	return secret[:most-17] + "-" + hex.EncodeToString(sum[:8])
}
