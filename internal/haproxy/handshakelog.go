package haproxy

import (
	"errors"
	"strings"

	"qtls.dev/qtls/internal/algorithms"
)

// The lines that HAProxy sends for each finished and each failed handshake.
// They say nothing of who the client is or what it asked for. A failure's does
// not ask for the group: HAProxy 3.2 ends with a segmentation fault when
// ssl_fc_curve is asked for before one was agreed on.
const (
	handshakeFormat = "handshake %f %sslv %sslc %[ssl_fc_curve] %[ssl_f_key_alg] %[ssl_fc_is_resumed]"
	failureFormat   = "failure %f %OG %[fc_err_name] %[ssl_fc_err_str]"
)

// killed is where HAProxy says that a failure comes from (%OG) when there was a
// connection but no request on it yet. Lines from elsewhere tell of requests
// that were cut or refused, after a good handshake.
const killed = "sess_killed"

// Handshake is what a line of the log says.
type Handshake struct {
	// Listener by its name in the gateway.
	Listener string
	// Failed handshakes have a Reason (HAProxy's name for the error, such as
	// SSL_HANDSHAKE) and a Detail (OpenSSL's), and nothing below.
	Failed         bool
	Reason, Detail string
	// Version in HAProxy's form (TLSv1.3); CipherSuite and KeyAlgorithm (of the
	// server's certificate) in OpenSSL's. Group as package algorithms has it
	// for OpenSSL; one that is not there, as it was logged.
	Version, CipherSuite, Group, KeyAlgorithm string
	Resumed                                   bool
}

// ErrNotHandshake says that a line of the log is about something else: a
// connection that ended before it sent a request, for one.
var ErrNotHandshake = errors.New("not about a handshake")

// ParseHandshake reads a line of the log, with or without the syslog header.
func ParseHandshake(line string) (Handshake, error) {
	line = strings.TrimRight(line, "\r\n\x00")
	if i := strings.Index(line, "]: "); i >= 0 && strings.HasPrefix(line, "<") {
		line = line[i+len("]: "):]
	}
	fields := strings.SplitN(line, " ", 4)
	switch {
	case len(fields) == 4 && fields[0] == "failure":
		listener, ok := listenerOf(fields[1])
		reason, text, more := strings.Cut(fields[3], " ")
		if !ok || !more || fields[2] != killed || reason == "-" {
			return Handshake{}, ErrNotHandshake
		}
		return Handshake{Listener: listener, Failed: true, Reason: reason, Detail: detail(text)}, nil
	case len(fields) == 4 && fields[0] == "handshake":
		listener, ok := listenerOf(fields[1])
		rest := strings.Split(fields[3], " ")
		if !ok || len(rest) != 4 || rest[3] != "0" && rest[3] != "1" {
			return Handshake{}, ErrNotHandshake
		}
		return Handshake{Listener: listener, Version: fields[2], CipherSuite: rest[0], Group: groupName(rest[1]), KeyAlgorithm: rest[2], Resumed: rest[3] == "1"}, nil
	}
	return Handshake{}, ErrNotHandshake
}

// groupName undoes OpenSSL's other names of a group: what it reports as
// SECP384R1 is the P-384 of its configuration.
func groupName(s string) string {
	if g, ok := algorithms.GroupReportedAs(s); ok {
		return g.OpenSSL
	}
	return s
}

// listenerOf takes the listener's name out of a frontend's, as the log has it. A
// line may say anything: what it takes is a whole name, listener.<name>.<bind>.
func listenerOf(frontend string) (string, bool) {
	frontend = strings.TrimSuffix(frontend, "~")
	listener, ok := ListenerOfFrontend(frontend)
	return listener, ok && listener != "" && strings.Count(frontend, ".") == 2
}

// detail is the reason at the end of an OpenSSL error string:
// error:0A000076:SSL routines::no suitable signature algorithm.
func detail(s string) string {
	if i := strings.LastIndex(s, ":"); i >= 0 {
		s = s[i+1:]
	}
	return strings.TrimSpace(strings.TrimPrefix(s, "-"))
}
