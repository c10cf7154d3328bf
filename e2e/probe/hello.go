package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Hello is what a ClientHello offers, by the names of IANA's registries (RFC 8446, 4.1.2).
type Hello struct {
	ServerName          string   `json:"serverName,omitempty"`
	Versions            []string `json:"versions,omitempty"`
	Groups              []string `json:"groups,omitempty"`
	KeyShares           []string `json:"keyShares,omitempty"`
	SignatureAlgorithms []string `json:"signatureAlgorithms,omitempty"`
	// SignatureAlgorithmsCert is extension 50; nil when the client did not send it.
	SignatureAlgorithmsCert []string `json:"signatureAlgorithmsCert,omitempty"`
	// Bytes of the handshake message.
	Bytes int `json:"bytes"`
}

const (
	extServerName    = 0
	extGroups        = 10
	extSignatures    = 13
	extVersions      = 43
	extSignatureCert = 50
	extKeyShare      = 51
)

// field reads TLS's presentation language: numbers, and vectors with their length in front (RFC 8446, 3). After a short
// read every further one is empty and bad is set.
type field struct {
	b   []byte
	bad bool
}

func (f *field) take(n int) []byte {
	if n > len(f.b) {
		f.b, f.bad = nil, true
		return nil
	}
	head := f.b[:n]
	f.b = f.b[n:]
	return head
}

func (f *field) number(size int) int {
	n := 0
	for _, b := range f.take(size) {
		n = n<<8 | int(b)
	}
	return n
}

func (f *field) vector(size int) field { return field{b: f.take(f.number(size))} }

func (f *field) names(name func(uint16) string) []string {
	var all []string
	for len(f.b) > 0 {
		all = append(all, name(uint16(f.number(2))))
	}
	return all
}

// readHello reads the TLS records that carry a ClientHello.
func readHello(records []byte) (*Hello, error) {
	message, err := handshakeMessage(records)
	if err != nil {
		return nil, err
	}
	f := field{b: message}
	f.take(4 + 2 + 32) // type and length, legacy_version, random
	f.vector(1)        // legacy_session_id
	f.vector(2)        // cipher_suites
	f.vector(1)        // legacy_compression_methods
	h := &Hello{Bytes: len(message)}
	extensions := f.vector(2)
	for len(extensions.b) > 0 {
		id, body := extensions.number(2), extensions.vector(2)
		switch id {
		case extServerName:
			list := body.vector(2)
			list.take(1) // name_type host_name
			name := list.vector(2)
			h.ServerName = string(name.b)
		case extGroups:
			list := body.vector(2)
			h.Groups = list.names(groupName)
		case extSignatures:
			list := body.vector(2)
			h.SignatureAlgorithms = list.names(schemeName)
		case extSignatureCert:
			list := body.vector(2)
			h.SignatureAlgorithmsCert = list.names(schemeName)
		case extVersions:
			list := body.vector(1)
			h.Versions = list.names(func(v uint16) string { return fmt.Sprintf("%#04x", v) })
		case extKeyShare:
			for list := body.vector(2); len(list.b) > 0; {
				h.KeyShares = append(h.KeyShares, groupName(uint16(list.number(2))))
				list.vector(2)
			}
		}
	}
	if f.bad || extensions.bad {
		return nil, errors.New("the ClientHello ends early")
	}
	return h, nil
}

var errIncomplete = errors.New("the ClientHello is not complete")

// handshakeMessage joins the fragments of the first handshake message.
func handshakeMessage(records []byte) ([]byte, error) {
	var message []byte
	for f := (field{b: records}); ; {
		if len(message) >= 4 {
			length := 4 + int(message[1])<<16 + int(message[2])<<8 + int(message[3])
			if message[0] != 1 {
				return nil, fmt.Errorf("handshake message of type %d, not a ClientHello", message[0])
			}
			if len(message) >= length {
				return message[:length], nil
			}
		}
		if len(f.b) == 0 || f.bad {
			return nil, errIncomplete
		}
		if kind := f.number(1); kind != recordHandshake {
			return nil, fmt.Errorf("TLS record of type %d, not a handshake", kind)
		}
		f.take(2)
		fragment := f.vector(2)
		message = append(message, fragment.b...)
	}
}

// observe accepts one connection, reads its ClientHello and closes.
func observe(ctx context.Context, address string, timeout time.Duration) (*Hello, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	deadline := time.Now().Add(timeout)
	if err := l.(*net.TCPListener).SetDeadline(deadline); err != nil {
		return nil, err
	}
	conn, err := l.Accept()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	var records []byte
	buffer := make([]byte, 4096)
	for {
		n, err := conn.Read(buffer)
		records = append(records, buffer[:n]...)
		h, helloErr := readHello(records)
		if helloErr == nil {
			return h, nil
		}
		if !errors.Is(helloErr, errIncomplete) {
			return nil, helloErr
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if err != nil {
			return nil, helloErr
		}
	}
}
