package ticketstore

import (
	"context"
	"crypto/tls"
)

// Dial connects as the store does.
func (c Connection) Dial(ctx context.Context, addr string) (*tls.Conn, error) {
	return c.dial(ctx, "tcp", addr)
}

// MaxValue is the most that a value may take.
const MaxValue = maxValue
