// Package ticketstore is where sealed rings of ticket keys lie, so that the
// replicas of a gateway find them: servers that speak the Redis protocol. The
// operator writes, agents read.
//
// What is stored is small and can be written again at any time: a ring is one
// value that expires, and nothing is kept that a store could not lose. Servers
// that hold the same need not know each other: the operator writes to each, and
// who reads takes the newest.
package ticketstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"qtls.dev/qtls/internal/ticketstore/internal/limit"
)

// Store is an open store. Its methods may be called at the same time.
type Store struct {
	prefix  string
	members []member
}

// Open does not connect; what it returns is for use until Close.
func Open(c Connection) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("connection to a ticket store: %w", err)
	}
	return &Store{prefix: c.Prefix, members: c.members()}, nil
}

// Close ends every connection. Follow has to be ended by its context.
func (s *Store) Close() error {
	var all []error
	for _, m := range s.members {
		all = append(all, m.client.Close())
	}
	return errors.Join(all...)
}

// key of a ring, which is also the name of the channel about it.
func (s *Store) key(ring string) string { return s.prefix + "ring:" + ring }

func validateRing(ring string) error {
	if !ordinary(ring, 128, "-._") {
		return fmt.Errorf("ring %q: its ID is not of 1 to 128 letters, digits and -._", ring)
	}
	return nil
}

// each asks all members at once.
func (s *Store) each(ctx context.Context, do func(ctx context.Context, i int, m member) error) error {
	failed := make([]error, len(s.members))
	var all sync.WaitGroup
	for i, m := range s.members {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, limit.Operation)
			defer cancel()
			// The pool's connections may all have ended with the server's last life;
			// that shows when they are used. All that is done here may be done twice.
			for try := 0; try <= poolSize && (try == 0 || ended(failed[i])); try++ {
				failed[i] = do(ctx, i, m)
			}
		})
	}
	all.Wait()
	if failed = slices.DeleteFunc(failed, func(err error) bool { return err == nil }); len(failed) > 0 {
		return memberErrors(failed)
	}
	return nil
}

// Read returns the newest document of a ring that any member holds. An error
// means that none holds one: ErrNotFound is in it when no member that answered
// does, beside the errors of those that did not answer.
func (s *Store) Read(ctx context.Context, ring string) (Document, error) {
	if err := validateRing(ring); err != nil {
		return Document{}, err
	}
	found := make([]Document, len(s.members))
	err := s.each(ctx, func(ctx context.Context, i int, m member) error {
		var err error
		found[i], err = m.read(ctx, s.key(ring))
		return err
	})
	var newest Document
	for _, d := range found {
		// Of two copies, the one that was written last.
		if d.Epoch > newest.Epoch || d.Epoch == newest.Epoch && d.ExpiresIn > newest.ExpiresIn {
			newest = d
		}
	}
	if newest.Epoch > 0 {
		return newest, nil
	}
	return Document{}, err
}

// Unanswered is what an error of Read says of members that did not answer; nil
// when each has, and none holds the ring.
func Unanswered(err error) error {
	var members memberErrors
	if !errors.As(err, &members) {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(members), func(err error) bool { return errors.Is(err, ErrNotFound) || errors.Is(err, ErrMalformed) })
	if len(left) == 0 {
		return nil
	}
	return left
}

// read what a member holds.
func (m member) read(ctx context.Context, key string) (Document, error) {
	var value *redis.StringCmd
	var left *redis.DurationCmd
	sent := time.Now()
	// The life before the value: were it written in between, the life is that of
	// the earlier value and ends sooner. And not more of the value than is good.
	_, err := m.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		left = p.PTTL(ctx, key)
		value = p.GetRange(ctx, key, 0, maxValue)
		return nil
	})
	switch {
	case err != nil && left.Err() != nil:
		return Document{}, memberError(m.name, "PTTL "+key, left.Err())
	case err != nil && value.Err() != nil:
		return Document{}, m.valueError(key, value.Err())
	case err != nil: // not even asked
		return Document{}, memberError(m.name, "connecting", err)
	case left.Val() == -2: // nothing is there
		return Document{}, &MemberError{Member: m.name, Kind: ErrNotFound}
	}
	d, err := parseValue([]byte(value.Val()))
	if err == nil && left.Val() < 0 {
		err = errors.New("it has no expiry")
	}
	if err != nil {
		return Document{}, &MemberError{m.name, ErrMalformed, fmt.Errorf("key %s: %w", key, err)}
	}
	if d.ExpiresIn = left.Val() - time.Since(sent); d.ExpiresIn <= 0 {
		return Document{}, &MemberError{Member: m.name, Kind: ErrNotFound}
	}
	return d, nil
}

// valueError is for a command on the value; a list or the like in its place is
// as malformed as any.
func (m member) valueError(key string, err error) *MemberError {
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return &MemberError{m.name, ErrMalformed, fmt.Errorf("key %s: %w", key, err)}
	}
	return memberError(m.name, "GETRANGE "+key, err)
}

// Publish stores a document for d.ExpiresIn in every member, unless that has a
// newer one: then ErrNewer is in the error, and a NewerError with what it has.
// When it is not what was there, those who follow are told. What goes wrong at
// one member does not keep the others from it; the error joins a MemberError
// for each.
func (s *Store) Publish(ctx context.Context, ring string, d Document) error {
	if err := validateRing(ring); err != nil {
		return err
	}
	value, err := d.value()
	if err != nil {
		return fmt.Errorf("ring %s: the document cannot be stored: %w", ring, err)
	}
	return s.each(ctx, func(ctx context.Context, _ int, m member) error {
		return m.publish(ctx, s.key(ring), value, d)
	})
}

// attempts is how often a write is tried that another overtakes.
const attempts = 8

func (m member) publish(ctx context.Context, key string, value []byte, d Document) error {
	var command string
	write := func(tx *redis.Tx) error {
		command = "GETRANGE"
		stored, err := tx.GetRange(ctx, key, 0, maxValue).Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return err
		}
		// What is malformed has no epoch, and is overwritten.
		if there, err := parseValue([]byte(stored)); err == nil && there.Epoch > d.Epoch {
			return &MemberError{m.name, ErrNewer, &NewerError{there}}
		}
		command = "MULTI, SET, PUBLISH, EXEC"
		queued, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, key, value, d.ExpiresIn)
			if stored != string(value) {
				p.Publish(ctx, key, d.Epoch)
			}
			return nil
		})
		if redis.HasErrorPrefix(err, "EXECABORT") { // one of these says why
			for _, q := range queued {
				if q.Err() != nil && !redis.HasErrorPrefix(q.Err(), "EXECABORT") {
					return q.Err()
				}
			}
		}
		return err
	}
	var err error
	for i := range attempts {
		command = "WATCH"
		if err = m.client.Watch(ctx, write, key); !errors.Is(err, redis.TxFailedErr) {
			break
		}
		time.Sleep(rand.N(time.Millisecond << i)) // who overtook is not met again
	}
	if err != nil {
		return memberError(m.name, command+" "+key, err)
	}
	return nil
}
