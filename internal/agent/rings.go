package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/tickets"
	"qtls.dev/qtls/internal/ticketstore"
)

// RingStore is where sealed rings lie: a *ticketstore.Store.
type RingStore interface {
	Read(ctx context.Context, ring string) (ticketstore.Document, error)
	Follow(ctx context.Context, rings []string, wake func(ring string))
	Close() error
}

func openStore(c ticketstore.Connection) (RingStore, error) { return ticketstore.Open(c) }

const (
	// ringPoll is how often rings are read without a message that they have
	// changed; a message can be lost.
	ringPoll = 10 * time.Second
	// ringRetry is the first of the pauses between readings that fail.
	ringRetry = 200 * time.Millisecond
)

// reading is what reading a ring came to.
type reading struct {
	ring     string
	document ticketstore.Document
	err      error
	// until when the document is good.
	until time.Duration
	// took is how long reading did.
	took time.Duration
}

// followRings reads rings, whose names in the store are given, at once, whenever
// one may have changed, and from time to time, until the context ends.
func followRings(ctx context.Context, store RingStore, rings []string, stored map[string]string, now func() time.Duration, deliver func(reading)) {
	defer store.Close()
	wake := make(chan struct{}, 1)
	go store.Follow(ctx, slices.Sorted(maps.Values(stored)), func(string) {
		select {
		case wake <- struct{}{}:
		default: // it is awake
		}
	})
	retry := ringRetry
	for {
		failed := false
		for _, ring := range rings {
			asked := time.Now()
			document, err := store.Read(ctx, stored[ring])
			if ctx.Err() != nil {
				return
			}
			failed = failed || err != nil
			deliver(reading{ring, document, err, now() + document.ExpiresIn, time.Since(asked)})
		}
		pause := ringPoll
		if failed {
			pause, retry = retry, min(2*retry, ringPoll)
		} else {
			retry = ringRetry
		}
		timer := time.NewTimer(pause*4/5 + rand.N(pause*2/5)) // not all agents at once
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// ringsNeeded are those of the published revision and of the running one.
func ringsNeeded(in observed, me own) []string {
	var rings []string
	for _, t := range ticketsNeeded(in, me) {
		rings = append(rings, t.Ring)
	}
	slices.Sort(rings)
	return slices.Compact(rings)
}

func ticketsNeeded(in observed, me own) (all []*dataplane.Tickets) {
	if p := in.published; p != nil && p.Revision.Tickets != nil {
		all = append(all, p.Revision.Tickets)
	}
	if me.current != nil && me.current.Revision.Tickets != nil {
		all = append(all, me.current.Revision.Tickets)
	}
	return all
}

// follower of rings, of which there is at most one.
type follower struct {
	// access and rings that it was started with.
	access *dataplane.TicketAccess
	rings  []string
	cancel context.CancelFunc
}

// watchRings watches the rings that are needed, and the Secret that says where
// they are.
func (a *Agent) watchRings(ctx context.Context) {
	rings := ringsNeeded(a.observed, a.own)
	for id := range a.rings {
		if !slices.Contains(rings, id) {
			delete(a.rings, id)
		}
	}
	for _, id := range rings {
		if _, ok := a.rings[id]; !ok {
			a.rings[id] = seenRing{asked: a.clock()}
		}
	}
	switch {
	case len(rings) == 0 && a.stopAccess != nil:
		a.stopAccess()
		a.stopAccess, a.access, a.accessProblem = nil, nil, ""
	case len(rings) > 0 && a.stopAccess == nil:
		var watchCtx context.Context
		watchCtx, a.stopAccess = context.WithCancel(ctx)
		go a.Objects.Secret(watchCtx, dataplane.TicketsSecretName(a.Gateway), func(s *corev1.Secret, err error) {
			a.post(watchCtx, func() {
				if watchCtx.Err() == nil {
					a.ticketAccess(s, err)
				}
			})
		})
	}
	if f := a.follower; f.access == a.access && slices.Equal(f.rings, rings) {
		return
	}
	if a.follower.cancel != nil {
		a.follower.cancel()
	}
	a.follower = follower{access: a.access, rings: rings}
	for id, seen := range a.rings {
		seen.kind = nil // what goes wrong from now on is told anew
		a.rings[id] = seen
	}
	if len(rings) == 0 || a.access == nil || a.access.Store == nil {
		return
	}
	store, err := a.OpenStore(*a.access.Store)
	if err != nil {
		for _, id := range rings {
			a.ringRead(reading{ring: id, err: err})
		}
		return
	}
	stored := map[string]string{}
	for _, id := range rings {
		stored[id] = cmp.Or(a.access.Rings[id].Stored, id) // one that the Secret does not tell of is nowhere
	}
	followCtx, cancel := context.WithCancel(ctx)
	a.follower.cancel = cancel
	go followRings(followCtx, store, rings, stored, a.clock, func(r reading) {
		a.post(followCtx, func() {
			if followCtx.Err() == nil {
				a.ringRead(r)
			}
		})
	})
}

// ticketAccess takes in the Secret that says where rings are. What it said
// before stands while it cannot be read.
func (a *Agent) ticketAccess(s *corev1.Secret, err error) {
	name := dataplane.TicketsSecretName(a.Gateway)
	before := a.accessProblem
	defer func() {
		if a.accessProblem != before && a.accessProblem != "" {
			a.Log.Warn("where ticket keys are cannot be learnt; what is known stays in force", "problem", a.accessProblem)
		}
	}()
	switch {
	case err != nil:
		a.accessProblem = fmt.Sprintf("Secret %q, which says where the ticket keys are, cannot be read: %v", name, err)
		return
	case s == nil:
		a.accessProblem = fmt.Sprintf("Secret %q, which says where the ticket keys are, does not exist; the operator writes it", name)
		return
	}
	content := s.Data[dataplane.KeyTickets]
	if a.access != nil && bytes.Equal(content, a.accessContent) {
		a.accessProblem = ""
		return
	}
	var access dataplane.TicketAccess
	// The decoder's error could show what it read.
	if json.Unmarshal(content, &access) != nil {
		a.accessProblem = fmt.Sprintf("Secret %q has no readable %s; delete the Secret, and the operator writes it anew", name, dataplane.KeyTickets)
		return
	}
	a.access, a.accessContent, a.accessProblem = &access, content, ""
}

// ringRead takes in what reading a ring came to.
func (a *Agent) ringRead(r reading) {
	a.Metrics.storeWaited.Add(int64(r.took))
	seen, needed := a.rings[r.ring]
	if !needed {
		return
	}
	err := r.err
	if err == nil || errors.Is(err, ticketstore.ErrNotFound) || errors.Is(err, ticketstore.ErrMalformed) {
		a.Metrics.storeReached.Store(time.Now().Unix())
	}
	if err == nil {
		var ring tickets.Ring
		if ring, err = a.openRing(r, seen); err == nil {
			if seen.first == 0 || seen.Epoch != ring.Epoch {
				seen.first = a.clock()
			}
			if has := keysOf(a.current, r.ring); has != nil && has.Epoch == ring.Epoch {
				seen.first = min(seen.first, has.Since)
			}
			seen.Ring, seen.until, seen.problem, seen.kind = ring, min(r.until, seen.first+a.longest(r.ring)), "", nil
		}
	}
	if err != nil {
		// Another text of the same kind, as of the next try's port, is no news.
		if kind := kindOf(err); seen.kind == nil || !errors.Is(kind, seen.kind) {
			problem := ringError(r.ring, err, kind)
			if problem != seen.problem {
				a.Log.Warn("a ring of ticket keys is not to be had", "problem", problem)
			}
			seen.problem, seen.kind = problem, kind
		}
	}
	a.rings[r.ring] = seen
}

// longest is for how long a ring may be used at most, whatever its store says.
func (a *Agent) longest(id string) time.Duration {
	seconds := 0
	if a.access != nil {
		seconds = a.access.Rings[id].RotationSeconds
	}
	for _, t := range ticketsNeeded(a.observed, a.own) {
		if t.Ring == id {
			seconds = max(seconds, t.RotationSeconds)
		}
	}
	return tickets.MostPeriods * time.Duration(seconds) * time.Second
}

// openRing opens a document, unless it is older than what was had before: a
// ring that is made anew has a higher epoch, too.
func (a *Agent) openRing(r reading, seen seenRing) (tickets.Ring, error) {
	access, ok := a.access.Rings[r.ring]
	if !ok {
		return tickets.Ring{}, tickets.ErrWrappingKey // ringProblem tells
	}
	least := max(access.LeastEpoch, seen.Epoch)
	if has := keysOf(a.current, r.ring); has != nil {
		least = max(least, has.Epoch)
	}
	return tickets.Open(r.document.Content, r.ring, access.WrappingKeys, least)
}

// errOther stands for errors that have no kind.
var errOther = errors.New("another error")

// remedies by what went wrong.
var remedies = []struct {
	kind   error
	remedy string
}{
	{ticketstore.ErrCertificate, "give the store a certificate of the authority and name that its connection says"},
	{ticketstore.ErrTLS, "have the store serve TLS 1.3 on that port, with the key exchange that its connection asks for"},
	{ticketstore.ErrCredentials, "correct the user name and password in the Secret that its connection names"},
	{ticketstore.ErrPermission, "allow the user to read the keys, and subscribe to the channels, under the prefix"},
	{ticketstore.ErrUnreachable, "see that the store runs, and that this pod may connect to it"},
	{ticketstore.ErrMalformed, "see who else writes to the store; the operator writes the ring again"},
	{ticketstore.ErrNotFound, "the operator writes it; see its log if it does not"},
	{tickets.ErrWrappingKey, "the operator writes it to the gateway's Secret; see its log if it does not"},
	{tickets.ErrDropped, "the operator writes a newer one; see its log if it does not"},
	{tickets.ErrDamaged, "see who else writes to the store; the operator writes the ring again"},
}

func kindOf(err error) error {
	for _, r := range remedies {
		if errors.Is(err, r.kind) {
			return r.kind
		}
	}
	return errOther
}

// ringError says what is wrong with a ring, and what to do.
func ringError(id string, err, kind error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if !strings.Contains(text, "ring "+id) {
		text = fmt.Sprintf("ring %s cannot be read from its store: %s", id, text)
	}
	for _, r := range remedies {
		if errors.Is(kind, r.kind) {
			return text + "; " + r.remedy
		}
	}
	return text
}
