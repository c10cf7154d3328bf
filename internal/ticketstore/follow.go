package ticketstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"qtls.dev/qtls/internal/ticketstore/internal/limit"
)

const (
	// quiet is after how long without a message a server is asked whether it is
	// still there.
	quiet = 5 * time.Second
	// firstPause and longestPause are between attempts to reach one.
	firstPause   = 100 * time.Millisecond
	longestPause = 3 * time.Second
)

// Follow calls wake when a ring may have changed: when a member says so, and
// when the connection over which it does is made, or made again. It returns when
// the context ends. Several members may call wake at once; it should not take
// long. A message can be lost: who follows also reads from time to time.
func (s *Store) Follow(ctx context.Context, rings []string, wake func(ring string)) {
	if len(rings) == 0 {
		<-ctx.Done()
		return
	}
	channels := make([]string, len(rings))
	for i, ring := range rings {
		channels[i] = s.key(ring)
	}
	var all sync.WaitGroup
	for _, m := range s.members {
		all.Go(func() {
			pause := firstPause
			for ctx.Err() == nil {
				m.listen(ctx, channels, func(channel string) {
					pause = firstPause
					wake(strings.TrimPrefix(channel, s.key("")))
				})
				select {
				case <-ctx.Done():
				case <-time.After(pause/2 + rand.N(pause/2)): // not all agents at once
				}
				pause = min(2*pause, longestPause)
			}
		})
	}
	all.Wait()
}

// listen until the connection fails.
func (m member) listen(ctx context.Context, channels []string, heard func(channel string)) {
	subscription := m.client.Subscribe(ctx, channels...)
	defer subscription.Close()
	defer context.AfterFunc(ctx, func() { subscription.Close() })() // a read does not notice
	for asked := false; ; {
		timeout := quiet
		if asked {
			timeout = limit.Command
		}
		message, err := subscription.ReceiveTimeout(ctx, timeout)
		var network net.Error
		switch {
		case err == nil:
			asked = false
		case !asked && errors.As(err, &network) && network.Timeout() && subscription.Ping(ctx) == nil:
			asked = true
			continue
		default:
			return
		}
		switch message := message.(type) {
		case *redis.Subscription:
			heard(message.Channel)
		case *redis.Message:
			heard(message.Channel)
		}
	}
}
