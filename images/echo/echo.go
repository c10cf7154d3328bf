package main

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// reply is what the HTTP server answers to every request.
type reply struct {
	// Pod is the name of the pod that answered.
	Pod    string `json:"pod"`
	Method string `json:"method"`
	// Host is the request's authority.
	Host string `json:"host"`
	// Path is the request target, with its query.
	Path    string      `json:"path"`
	Headers http.Header `json:"headers"`
	// RemoteAddress is the peer of the connection: the gateway's, behind a gateway.
	RemoteAddress string `json:"remoteAddress"`
	// BodyBytes is the length of the request's body.
	BodyBytes int64 `json:"bodyBytes"`
	// TLS is there when the connection to this server was TLS.
	TLS *replyTLS `json:"tls,omitempty"`
}

type replyTLS struct {
	Version     string `json:"version"`
	CipherSuite string `json:"cipherSuite"`
	Group       string `json:"group"`
	ServerName  string `json:"serverName"`
}

// handler answers each request with a description of it in JSON.
func handler(pod string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			http.Error(w, "read the body: "+err.Error(), http.StatusBadRequest)
			return
		}
		answer := reply{
			Pod: pod, Method: r.Method, Host: r.Host, Path: r.URL.RequestURI(), Headers: r.Header,
			RemoteAddress: r.RemoteAddr, BodyBytes: n,
		}
		if s := r.TLS; s != nil {
			answer.TLS = &replyTLS{tls.VersionName(s.Version), tls.CipherSuiteName(s.CipherSuite), s.CurveID.String(), s.ServerName}
		}
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(answer) // the client is gone; there is nobody to tell
	})
}

// maxLine bounds a line of the TCP server in bytes; idleTime how long it waits for one.
const (
	maxLine  = 64 << 10
	idleTime = 10 * time.Minute
)

// serveLines sends each line back as it came, until the listener is closed.
func serveLines(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go echoLines(conn)
	}
}

// echoLines ends when the peer closes its side, stays silent for idleTime, or sends a line longer than maxLine.
func echoLines(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewReaderSize(conn, maxLine)
	for {
		if err := conn.SetDeadline(time.Now().Add(idleTime)); err != nil {
			return
		}
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return
		}
		if _, writeErr := conn.Write(line); writeErr != nil || err != nil {
			return
		}
	}
}
