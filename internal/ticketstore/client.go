package ticketstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"qtls.dev/qtls/internal/ticketstore/internal/limit"
)

const (
	// poolSize is for each server: calls are few, and never in anyone's way.
	poolSize = 2
	// idleTime is after how long an unused connection is closed.
	idleTime = 2 * time.Minute
)

// member is a server that holds all, or the one store that Sentinel or Cluster
// makes of several.
type member struct {
	name   string
	client redis.UniversalClient
}

// silence keeps the client from writing to standard error by itself.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

var beSilent = sync.OnceFunc(func() { redis.SetLogger(silence{}) })

// members makes the clients. None connects before it is used.
func (c Connection) members() []member {
	beSilent()
	switch c.Mode {
	case Sentinel:
		return []member{{"primary " + c.Master + " of sentinels " + strings.Join(c.Addresses, ", "), redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: c.Master, SentinelAddrs: c.Addresses, Dialer: c.dialer,
			SentinelUsername: c.SentinelUsername, SentinelPassword: c.SentinelPassword,
			Username: c.Username, Password: c.Password, Protocol: 2,
			MaxRetries: -1, DialTimeout: limit.Dial, DialerRetries: 1, ReadTimeout: limit.Command, WriteTimeout: limit.Command,
			ContextTimeoutEnabled: true, PoolSize: poolSize, MaxActiveConns: poolSize, ConnMaxIdleTime: idleTime, DisableIdentity: true,
		})}}
	case Cluster:
		return []member{{"cluster " + strings.Join(c.Addresses, ", "), redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: c.Addresses, Dialer: c.dialer, Username: c.Username, Password: c.Password, Protocol: 2,
			MaxRedirects: 3, MaxRetries: -1, DialTimeout: limit.Dial, DialerRetries: 1, ReadTimeout: limit.Command, WriteTimeout: limit.Command,
			ContextTimeoutEnabled: true, PoolSize: poolSize, MaxActiveConns: poolSize, ConnMaxIdleTime: idleTime, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})}}
	}
	var members []member
	for _, a := range c.Addresses {
		members = append(members, member{a, redis.NewClient(&redis.Options{
			Addr: a, Dialer: c.dialer, Username: c.Username, Password: c.Password, Protocol: 2,
			MaxRetries: -1, DialTimeout: limit.Dial, DialerRetries: 1, ReadTimeout: limit.Command, WriteTimeout: limit.Command,
			ContextTimeoutEnabled: true, PoolSize: poolSize, MaxActiveConns: poolSize, ConnMaxIdleTime: idleTime, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})})
	}
	return members
}

// dialer gives the client a connection that reports, when it is first used, why
// it could not be made. To a pool of the client, which counts failed dials, it
// would go on saying so for up to a second after the server is back.
func (c Connection) dialer(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := c.dial(ctx, network, addr)
	if err != nil {
		return failed{&dialError{err}}, nil
	}
	return conn, nil
}

func (c Connection) dial(ctx context.Context, network, addr string) (*tls.Conn, error) {
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: limit.Dial, KeepAlive: 15 * time.Second}, Config: c.tlsConfig(addr)}
	conn, err := d.DialContext(ctx, network, addr)
	switch {
	case err != nil && c.RequireHybrid && strings.HasSuffix(err.Error(), "handshake failure"): // the alert
		return nil, fmt.Errorf("%w (only %s was offered)", err, tls.X25519MLKEM768)
	case err != nil:
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

// failed is a connection that does not exist.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error)         { return 0, f.err }
func (f failed) Write([]byte) (int, error)        { return 0, f.err }
func (f failed) Close() error                     { return nil }
func (f failed) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (f failed) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (f failed) SetDeadline(time.Time) error      { return nil }
func (f failed) SetReadDeadline(time.Time) error  { return nil }
func (f failed) SetWriteDeadline(time.Time) error { return nil }
