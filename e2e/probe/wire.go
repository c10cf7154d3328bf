package main

import (
	"encoding/hex"
	"errors"
	"net"
	"time"
)

// wire says in which pieces the plain-text part of a handshake is sent. What is sent is what crypto/tls made: only its
// framing changes, which is not part of the handshake's transcript (RFC 8446, 5.1 and 4.4.1).
type wire struct {
	fragment  int           // bytes of a handshake message in one TLS record; 0 leaves records as they are
	segment   int           // bytes in one TCP segment; 0 does not split
	pause     time.Duration // between segments
	stopAfter int           // bytes after which nothing more is sent; 0 sends all
	hangUp    bool          // then close the sending side
}

var errStopped = errors.New("the ClientHello was cut off on purpose")

// wiredConn sends handshake records as its wire says.
type wiredConn struct {
	net.Conn
	wire    wire
	first   []byte // the first write: the ClientHello's record
	stopped bool
}

func (c *wiredConn) Write(b []byte) (int, error) {
	if c.first == nil {
		c.first = append(c.first, b...)
	}
	if c.stopped {
		return 0, errStopped
	}
	out := b
	if c.wire.fragment > 0 {
		out = refragment(b, c.wire.fragment)
	}
	if n := c.wire.stopAfter; n > 0 {
		if err := c.writeSegments(out[:min(n, len(out))]); err != nil {
			return 0, err
		}
		c.stopped = true
		return 0, errStopped
	}
	if err := c.writeSegments(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (c *wiredConn) writeSegments(b []byte) error {
	if c.wire.segment <= 0 {
		_, err := c.Conn.Write(b)
		return err
	}
	// Go sets TCP_NODELAY; the pause lets each piece leave, and be read, on its own.
	for len(b) > 0 {
		n := min(c.wire.segment, len(b))
		if _, err := c.Conn.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
		time.Sleep(c.wire.pause)
	}
	return nil
}

const (
	recordHeader    = 5
	recordHandshake = 22
)

// refragment splits the handshake records of b (type 22: those that are not encrypted) so that none carries more than
// size bytes. Other records stay as they are.
func refragment(b []byte, size int) []byte {
	var out []byte
	for len(b) >= recordHeader {
		length := recordHeader + int(b[3])<<8 + int(b[4])
		if length > len(b) {
			break
		}
		record, rest := b[:length], b[length:]
		if record[0] != recordHandshake {
			out, b = append(out, record...), rest
			continue
		}
		for body := record[recordHeader:]; len(body) > 0; {
			n := min(size, len(body))
			out = append(out, recordHandshake, record[1], record[2], byte(n>>8), byte(n))
			out, body = append(out, body[:n]...), body[n:]
		}
		b = rest
	}
	return append(out, b...)
}

// hello is what the first write offers, or nil when it is not a ClientHello.
func (c *wiredConn) hello() *Hello {
	h, err := readHello(c.first)
	if err != nil {
		return nil
	}
	return h
}

// waitForClose hangs up, if that is wanted, and reads until the server closes the connection or the time is over.
func (c *wiredConn) waitForClose(deadline time.Time) (*Closed, error) {
	start := time.Now()
	if tcp, ok := c.Conn.(*net.TCPConn); ok && c.wire.hangUp {
		if err := tcp.CloseWrite(); err != nil {
			return nil, err
		}
	}
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	var received []byte
	buffer := make([]byte, 4096)
	for {
		n, err := c.Read(buffer)
		received = append(received, buffer[:n]...)
		if err != nil {
			return &Closed{since(start), hex.EncodeToString(received), isTimeout(err)}, nil
		}
	}
}
