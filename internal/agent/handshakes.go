package agent

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
)

// handshakes counts what HAProxy's log tells of handshakes.
type handshakes struct {
	metrics *Metrics
	// acceptable is what the policy accepts, in mode Observe; else nil.
	acceptable atomic.Pointer[dataplane.Acceptable]
}

func newHandshakes(m *Metrics) *handshakes { return &handshakes{metrics: m} }

func (h *handshakes) setAcceptable(a *dataplane.Acceptable) { h.acceptable.Store(a) }

// maxLine of the log, in bytes; HAProxy's are a fraction of it.
const maxLine = 8 << 10

// listenForLog opens the socket that HAProxy's workers send their log to. A new agent
// takes it over from an earlier one; what is logged in between waits in the
// workers' rings.
func listenForLog(path string) (*net.UnixListener, error) {
	return listenOn(path, func() (*net.UnixListener, error) {
		return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	})
}

// listenOn opens a socket that only this user may use, in place of an earlier one.
func listenOn[S io.Closer](path string, listen func() (S, error)) (S, error) {
	var none S
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return none, err
	}
	socket, err := listen()
	if err != nil {
		return none, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		socket.Close()
		return none, err
	}
	return socket, nil
}

// readLines has each line that a worker sends taken, until the listener is
// closed.
func readLines(listener *net.UnixListener, take func(string)) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			lines := bufio.NewScanner(conn)
			lines.Buffer(nil, maxLine)
			for lines.Scan() {
				take(lines.Text())
			}
		}()
	}
}

// take counts what a line of the log tells; those about something else are
// passed over.
func (h *handshakes) take(line string) {
	if seen, err := haproxy.ParseHandshake(line); err == nil {
		h.count(seen)
	}
}

func (h *handshakes) count(seen haproxy.Handshake) {
	if seen.Failed {
		h.metrics.handshakeFailures.WithLabelValues(seen.Listener, failureReason(seen)).Inc()
		return
	}
	h.metrics.handshakes.WithLabelValues(seen.Listener, known(versions, seen.Version), known(groups, seen.Group),
		keyAlgorithm(seen.KeyAlgorithm), resumedLabel(seen.Resumed)).Inc()
	if acceptable := h.acceptable.Load(); acceptable != nil {
		for _, aspect := range wouldRefuse(*acceptable, seen) {
			h.metrics.wouldRefuse.WithLabelValues(seen.Listener, aspect).Inc()
		}
	}
}

// other stands for every value that is not known, so that labels are bounded.
const other = "other"

var versions = []string{"TLSv1.2", "TLSv1.3"}

var groups = func() (names []string) {
	for _, g := range algorithms.Groups {
		names = append(names, g.OpenSSL)
	}
	return names
}()

func known(names []string, name string) string {
	if slices.Contains(names, name) {
		return name
	}
	return other
}

// keyAlgorithm is OpenSSL's short name of a key's type in the terms of the API.
// It does not tell the sizes of RSA and ECDSA keys.
func keyAlgorithm(name string) string {
	switch name = strings.TrimPrefix(name, "id-"); name {
	case "ecPublicKey":
		return "ECDSA"
	case "rsaEncryption", "rsassaPss", "RSASSA-PSS":
		return "RSA"
	}
	for _, k := range algorithms.KeyAlgorithms {
		if k.Family == algorithms.PostQuantum && strings.EqualFold(name, string(k.Name)) {
			return string(k.Name)
		}
	}
	return other
}

// wouldRefuse lists the aspects of a handshake that are not acceptable.
func wouldRefuse(a dataplane.Acceptable, h haproxy.Handshake) (aspects []string) {
	if !slices.Contains(a.Versions, h.Version) {
		aspects = append(aspects, "version")
	}
	if !slices.Contains(a.Groups, h.Group) {
		aspects = append(aspects, "group")
	}
	if !slices.Contains(a.Suites, h.CipherSuite) {
		aspects = append(aspects, "suite")
	}
	certificate := keyAlgorithm(h.KeyAlgorithm)
	if !slices.ContainsFunc(a.Algorithms, func(name string) bool {
		return name == certificate || strings.HasPrefix(name, certificate+"-")
	}) {
		aspects = append(aspects, "certificate")
	}
	return aspects
}

// failureReasons are the reasons that failures are counted under, by OpenSSL's
// words for them.
var failureReasons = map[string]string{
	"no suitable key share":               "no_common_group",
	"no suitable groups":                  "no_common_group",
	"no suitable signature algorithm":     "no_common_signature_scheme",
	"no shared signature algorithms":      "no_common_signature_scheme",
	"no shared cipher":                    "no_common_cipher_suite",
	"unsupported protocol":                "no_common_version",
	"version too low":                     "no_common_version",
	"peer did not return a certificate":   "client_certificate_missing",
	"certificate verify failed":           "client_certificate_invalid",
	"unrecognized name":                   "unknown_server_name",
	"callback failed":                     "unknown_server_name", // how strict-sni refuses
	"cert cb error":                       "unknown_server_name",
	"http request":                        "not_tls",
	"https proxy request":                 "not_tls",
	"wrong version number":                "not_tls",
	"packet length too long":              "not_tls",
	"unexpected eof while reading":        "closed_by_client",
	"tlsv1 alert unknown ca":              "refused_by_client",
	"tlsv1 alert decrypt error":           "refused_by_client",
	"sslv3 alert bad certificate":         "refused_by_client",
	"sslv3 alert certificate unknown":     "refused_by_client",
	"ssl/tls alert bad certificate":       "refused_by_client",
	"ssl/tls alert certificate unknown":   "refused_by_client",
	"ssl/tls alert certificate expired":   "refused_by_client",
	"ssl/tls alert handshake failure":     "refused_by_client",
	"ssl/tls alert illegal parameter":     "refused_by_client",
	"tlsv1 alert no application protocol": "refused_by_client",
}

// errorReasons are those that HAProxy's own name for the error tells.
var errorReasons = map[string]string{
	"SSL_TIMEOUT":      "timeout",
	"SSL_EMPTY":        "closed_by_client",
	"SSL_ABORT":        "closed_by_client",
	"SSL_CA_FAIL":      "client_certificate_invalid",
	"SSL_CRT_FAIL":     "client_certificate_invalid",
	"SSL_HANDSHAKE":    "closed_by_client", // without a detail: the connection is gone
	"SSL_MISMATCH_SNI": "unknown_server_name",
	"CIP_ABORT":        "closed_by_client",
	"PRX_ABORT":        "closed_by_client",
}

func failureReason(h haproxy.Handshake) string {
	if r, ok := failureReasons[strings.ToLower(h.Detail)]; ok {
		return r
	}
	if r, ok := errorReasons[h.Reason]; ok && (h.Detail == "" || h.Reason != "SSL_HANDSHAKE") {
		return r
	}
	return other
}
