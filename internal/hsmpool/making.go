package hsmpool

import (
	"context"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsm"
	"qtls.dev/qtls/internal/keypair"
)

// namedKey is a key of a pool.
type namedKey struct {
	namespace string
	keypair.Reference
}

// making is the making of a key pair. Tokens take minutes for some, so that it
// goes on while nobody waits.
type making struct {
	member string
	since  time.Time
	// done is closed at its end. After that, err is why there is no key.
	done chan struct{}
	err  error
}

func (m *making) ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// wait for its end. It says whether that came.
func (m *making) wait(ctx context.Context, most time.Duration) bool {
	timeout := time.NewTimer(most)
	defer timeout.Stop()
	select {
	case <-m.done:
	case <-ctx.Done():
	case <-timeout.C:
	}
	return m.ended()
}

// underWay is the making of a key that has not ended, or that failed and was not
// settled yet; nil where there is none.
func (c *Clients) underWay(k namedKey) *making {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.making[k]
}

// make a key pair in a member, unless it is being made: never twice at a time.
func (c *Clients) make(k namedKey, algorithm v1alpha1.KeyAlgorithm, in Member) *making {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.making[k]; m != nil {
		return m
	}
	m := &making{member: in.Name, since: time.Now(), done: make(chan struct{})}
	if c.making == nil {
		c.making = map[namedKey]*making{}
	}
	c.making[k] = m
	go func() {
		_, err := in.Client.Generate(context.Background(), algorithm, hsm.Key{Label: k.Label})
		c.mu.Lock()
		defer c.mu.Unlock()
		if m.err = err; err == nil {
			delete(c.making, k)
		}
		close(m.done)
	}()
	return m
}

// settle what has ended: it may be made again.
func (c *Clients) settle(k namedKey, m *making) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.making[k] == m {
		delete(c.making, k)
	}
}

// beingMade is the problem that a key takes its time.
func beingMade(r keypair.Reference, m *making) error {
	return conditions.Waiting(lookAgain, v1alpha1.ReasonIssuing, "HSMPool %q, member %q: key %q is being made since %s; tokens may take minutes for one of RSA",
		r.Pool, m.member, r.Label, m.since.UTC().Format(time.RFC3339))
}
