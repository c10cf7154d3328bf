package main

import (
	"context"
	"io"
	"net"
	"time"
)

// relay accepts one connection at o.relay and passes it on to the server, in the pieces that o.wire says: so the hello of
// another client, such as openssl, can be cut up, too. It ends when the connection does.
func relay(ctx context.Context, o options) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.relay)
	if err != nil {
		return err
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	if o.delay > 0 {
		return relayLate(ctx, l, o)
	}
	client, err := l.Accept()
	if err != nil {
		return err
	}
	defer client.Close()
	tcp, err := new(net.Dialer).DialContext(ctx, "tcp", o.addresses[0])
	if err != nil {
		return err
	}
	defer tcp.Close()
	go func() {
		_, _ = io.Copy(client, tcp) // the end of either side ends both
		client.Close()
	}()
	server := &wiredConn{Conn: tcp, wire: o.wire}
	for {
		record, err := readRecord(client)
		if err != nil {
			return nil // the client is done
		}
		if _, err := server.Write(record); err != nil {
			return nil // the server is
		}
	}
}

// relayLate passes any number of connections on, and what the server says so much later, as if it were slow. It ends when
// the context does.
func relayLate(ctx context.Context, l net.Listener, o options) error {
	for {
		client, err := l.Accept()
		if err != nil {
			return ctx.Err()
		}
		go func() {
			defer client.Close()
			server, err := new(net.Dialer).DialContext(ctx, "tcp", o.addresses[0])
			if err != nil {
				return
			}
			defer server.Close()
			go func() {
				_, _ = io.Copy(server, client) // the end of either side ends both
				server.Close()
			}()
			buffer := make([]byte, 64<<10)
			for {
				n, err := server.Read(buffer)
				if err != nil {
					return
				}
				time.Sleep(o.delay)
				if _, err := client.Write(buffer[:n]); err != nil {
					return
				}
			}
		}()
	}
}

// readRecord reads one TLS record with its header.
func readRecord(r io.Reader) ([]byte, error) {
	header := make([]byte, recordHeader)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	record := append(header, make([]byte, int(header[3])<<8+int(header[4]))...)
	_, err := io.ReadFull(r, record[recordHeader:])
	return record, err
}
