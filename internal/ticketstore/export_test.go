package ticketstore

import (
	"context"
	"crypto/tls"
	"time"
)

// Dial connects as the store does.
func (c Connection) Dial(ctx context.Context, addr string) (*tls.Conn, error) {
	return c.dial(ctx, "tcp", addr)
}

// MaxValue is the most that a value may take.
const MaxValue = maxValue

// CommandTimeout is how long a server is waited for in these tests: so long that
// a busy machine is not taken for a server that is away.
const CommandTimeout = 10 * time.Second

func init() {
	dialTimeout, commandTimeout, operationTimeout = CommandTimeout, CommandTimeout, 5*CommandTimeout/2
}
