package haproxy

import (
	"errors"
	"strings"
	"testing"
)

func TestHandshakesAreReadFromTheLog(t *testing.T) {
	for _, tc := range []struct {
		line string
		want Handshake
	}{
		{"handshake listener.web.ml-dsa-65 TLSv1.3 TLS_AES_256_GCM_SHA384 X25519MLKEM768 id-ml-dsa-65 0\n",
			Handshake{Listener: "web", Version: "TLSv1.3", CipherSuite: "TLS_AES_256_GCM_SHA384", Group: "X25519MLKEM768", KeyAlgorithm: "id-ml-dsa-65"}},
		{"handshake listener.web.classical-2~ TLSv1.2 ECDHE-RSA-AES256-GCM-SHA384 SECP384R1 rsaEncryption 1",
			Handshake{Listener: "web", Version: "TLSv1.2", CipherSuite: "ECDHE-RSA-AES256-GCM-SHA384", Group: "P-384", KeyAlgorithm: "rsaEncryption", Resumed: true}},
		{"handshake listener.web.classical TLSv1.3 TLS_AES_256_GCM_SHA384 SECP384R1MLKEM1024 id-ecPublicKey 0",
			Handshake{Listener: "web", Version: "TLSv1.3", CipherSuite: "TLS_AES_256_GCM_SHA384", Group: "SecP384r1MLKEM1024", KeyAlgorithm: "id-ecPublicKey"}},
		{"handshake listener.web.classical TLSv1.3 TLS_AES_256_GCM_SHA384 prime256v1 id-ecPublicKey 0",
			Handshake{Listener: "web", Version: "TLSv1.3", CipherSuite: "TLS_AES_256_GCM_SHA384", Group: "P-256", KeyAlgorithm: "id-ecPublicKey"}},
		{"handshake listener.web.classical TLSv1.3 TLS_AES_256_GCM_SHA384 brainpool id-ecPublicKey 0",
			Handshake{Listener: "web", Version: "TLSv1.3", CipherSuite: "TLS_AES_256_GCM_SHA384", Group: "brainpool", KeyAlgorithm: "id-ecPublicKey"}},
		{"failure listener.web.ml-dsa-65 sess_killed SSL_HANDSHAKE error:0A000065:SSL routines::no suitable key share\n",
			Handshake{Listener: "web", Failed: true, Reason: "SSL_HANDSHAKE", Detail: "no suitable key share"}},
		{"failure listener.web.classical sess_killed SSL_TIMEOUT -", Handshake{Listener: "web", Failed: true, Reason: "SSL_TIMEOUT"}},
		{"<134>Nov 21 10:00:00 haproxy[7]: failure listener.web.classical sess_killed SSL_EMPTY -", Handshake{Listener: "web", Failed: true, Reason: "SSL_EMPTY"}},
	} {
		got, err := ParseHandshake(tc.line)
		if err != nil || got != tc.want {
			t.Errorf("%q: %+v, %v; want %+v", tc.line, got, err, tc.want)
		}
	}
}

func TestOtherLinesAreNoHandshakes(t *testing.T) {
	for _, line := range []string{
		"", "\n", "handshake", "failure", "handshake listener.web.classical TLSv1.3",
		"failure listener.web.classical sess_error - -",         // a connection that ended without a request
		"failure port.443 sess_killed SSL_HANDSHAKE -",          // not a listener's
		"failure listener.web.classical sess_error ERESET -",    // the same
		"failure listener..classical sess_killed SSL_TIMEOUT -", // nor this
		"handshake listener.web.classical TLSv1.3 TLS_AES_256_GCM_SHA384 X25519 id-ecPublicKey 2",
		"handshake listener.web.classical TLSv1.3 TLS_AES_256_GCM_SHA384 X25519 id-ecPublicKey 0 more",
		"Proxy listener.web.classical stopped (cumulated conns: FE: 12, BE: 0).",
	} {
		if h, err := ParseHandshake(line); !errors.Is(err, ErrNotHandshake) {
			t.Errorf("%q: %+v, %v", line, h, err)
		}
	}
}

func FuzzParseHandshake(f *testing.F) {
	f.Add("handshake listener.web.ml-dsa-65 TLSv1.3 TLS_AES_256_GCM_SHA384 X25519MLKEM768 id-ml-dsa-65 0\n")
	f.Add("<134>Nov 21 10:00:00 haproxy[7]: failure listener.web.classical sess_killed SSL_HANDSHAKE error:0A000065:SSL routines::no suitable key share")
	f.Add("failure listener.web.classical sess_error - -")
	f.Fuzz(func(t *testing.T, line string) {
		h, err := ParseHandshake(line)
		if err != nil {
			if h != (Handshake{}) {
				t.Errorf("%q: %+v with %v", line, h, err)
			}
			return
		}
		if h.Listener == "" || strings.ContainsAny(h.Listener, " .") {
			t.Errorf("%q: listener %q", line, h.Listener)
		}
		if h.Failed && (h.Version != "" || h.Group != "" || h.Resumed) || !h.Failed && h.Reason+h.Detail != "" {
			t.Errorf("%q: failed and served: %+v", line, h)
		}
	})
}
