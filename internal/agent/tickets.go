package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/haproxy/runtime"
	"qtls.dev/qtls/internal/tickets"
	"qtls.dev/qtls/internal/ticketstore"
)

// ticketKeys are those of a tree's session tickets: a ring's that the replicas
// share, or, with epoch 0, the pod's own in its place.
type ticketKeys struct {
	// ID of the ring.
	ID string `json:"id"`
	tickets.Ring
	// Floor was the ring's LeastEpoch when these keys were taken up: the pod's
	// own keys have no other number by which to drop them.
	Floor uint64 `json:"floor,omitempty"`
	// Cleared is the LeastEpoch whose dropped keys old workers are rid of.
	Cleared uint64 `json:"cleared,omitempty"`
	// Until when a ring's keys are good without news of it, and since when the
	// present one encrypts, as sinceBoot tells.
	Until time.Duration `json:"until,omitempty"`
	Since time.Duration `json:"since"`
}

// sinceBoot is a clock that nobody sets, and that goes on when the agent is
// started anew. What is told by it never leaves the pod: clocks of different
// machines are not compared.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // Linux has had it since 2.6.39
	}
	return time.Duration(t.Nano())
}

// ringWait is how long an installation waits for a ring that has not been read
// yet. Then it goes on without: no store holds up what is served.
const ringWait = 2 * time.Second

// seenRing is what is known of a ring.
type seenRing struct {
	// asked is since when it is needed.
	asked time.Duration
	// Ring as it was last read; epoch 0: never. It is good until then.
	tickets.Ring
	until time.Duration
	// first is since when it has been this one.
	first time.Duration
	// problem with the last reading, and its kind: of the same kind, the next
	// one changes nothing.
	problem string
	kind    error
}

// leastEpoch is the ring's, as far as it is known.
func leastEpoch(in observed, id string, has *ticketKeys) uint64 {
	if in.access != nil {
		if ring, ok := in.access.Rings[id]; ok {
			return ring.LeastEpoch
		}
	}
	if has != nil {
		return max(has.Floor, has.Cleared)
	}
	return 0
}

// keysOf are the keys in use, if they are of that ring.
func keysOf(current *tree, id string) *ticketKeys {
	if current == nil || current.Tickets == nil || current.Tickets.ID != id {
		return nil
	}
	return current.Tickets
}

// ticketsFor says which keys a revision's tickets are to be under: the ring's
// where it is to be had, else those in use while they are good, else the pod's
// own.
func ticketsFor(in observed, me own, wanted dataplane.Tickets) ticketKeys {
	has := keysOf(me.current, wanted.Ring)
	least := leastEpoch(in, wanted.Ring, has)
	seen := in.rings[wanted.Ring]
	shared := has != nil && has.Epoch > 0 && has.Epoch >= least && in.now < has.Until

	next := ticketKeys{ID: wanted.Ring, Floor: least, Cleared: least, Since: in.now}
	if has != nil {
		next.Cleared = has.Cleared
	}
	switch {
	case seen.Epoch > 0 && seen.Epoch >= least && in.now < seen.until && (!shared || seen.Epoch >= has.Epoch):
		next.Ring, next.Until = seen.Ring, seen.until
	case shared:
		return *has
	case has != nil && has.Epoch == 0 && has.Floor >= least:
		if in.now-has.Since < time.Duration(wanted.RotationSeconds)*time.Second {
			return *has
		}
		next.Keys = [tickets.Size]tickets.Key{has.Keys[1], has.Keys[2], me.spare.Keys[2]}
	default:
		next.Keys = me.spare.Keys
	}
	if has != nil && has.Keys[1] == next.Keys[1] {
		next.Since = has.Since
	}
	return next
}

// awaited says whether a ring may still be read in time for an installation. A
// store that does not answer, as that of a new gateway may not yet, is not
// waited for; one in which the ring is yet to be written is.
func awaited(in observed, me own, id string) bool {
	seen, asked := in.rings[id]
	failed := seen.kind != nil && !errors.Is(seen.kind, ticketstore.ErrNotFound)
	return seen.Epoch == 0 && keysOf(me.current, id) == nil && !failed && (!asked || in.now < seen.asked+ringWait)
}

// decideTickets brings HAProxy to the keys that it should have.
func decideTickets(in observed, me own) action {
	t := me.current.Revision.Tickets
	if t == nil {
		return nil
	}
	next := ticketsFor(in, me, *t)
	if has := me.current.Tickets; has != nil && has.ID == next.ID && has.Ring == next.Ring {
		return nil
	}
	return setTickets{next}
}

// decideClearing has old workers rid of keys that were dropped. It comes after
// everything else: one that hangs keeps nothing from being done.
func decideClearing(in observed, me own) action {
	has := me.current.Tickets
	if has == nil || !in.proxy.up {
		return nil
	}
	if least := leastEpoch(in, has.ID, has); has.Cleared < least {
		return clearOld{least}
	}
	return nil
}

func (a setTickets) describe() string {
	if a.keys.Epoch == 0 {
		return "set the pod's own ticket keys"
	}
	return fmt.Sprintf("set ticket keys of epoch %d", a.keys.Epoch)
}

func (a clearOld) describe() string {
	return fmt.Sprintf("clear old workers' ticket keys before epoch %d", a.least)
}

// setTickets replaces ticket keys, in HAProxy and then in the tree. A try that
// is cut short is gone on with by the next: it asks HAProxy what it has.
func (a *Agent) setTickets(ctx context.Context, next setTickets) error {
	if a.proxy.up {
		if err := a.pushTickets(ctx, next.keys); err != nil {
			return err
		}
	}
	state := a.current.clone()
	state.Tickets = &next.keys
	changed := *a.current
	changed.state = state
	if err := a.trees.writeTickets(&changed); err != nil {
		return err
	}
	a.current.state = state
	a.spare = tickets.New(0)
	a.Metrics.ticketRotations.Inc()
	return a.trees.writeState(a.current)
}

// pushTickets gives the worker of the current tree the keys that it lacks, in
// their order.
func (a *Agent) pushTickets(ctx context.Context, keys ticketKeys) error {
	admin := a.trees.admin(a.current.Name)
	for _, f := range a.current.Revision.Tickets.Files {
		file := haproxy.TicketFile(f.Name)
		has, err := admin.TicketKeys(ctx, file)
		if errors.Is(err, runtime.ErrNoTicketFile) {
			continue // no bind uses it
		}
		if err != nil {
			return err
		}
		for _, key := range tickets.Pushes(tickets.Ring{Keys: has}, keys.For(f.Scope)) {
			if err := admin.PushTicketKey(ctx, file, key); err != nil {
				return err
			}
		}
	}
	return nil
}

// clearOld gives the workers that end their connections keys that open no
// ticket.
func (a *Agent) clearOld(ctx context.Context, next clearOld) error {
	processes, err := a.master.Processes(ctx)
	if err != nil {
		return err
	}
	var failed error
	for _, w := range processes.Workers {
		if w.Old && w.PID != a.proxy.worker.pid { // that which serves may be among the old
			failed = errors.Join(failed, a.clearWorker(ctx, w.PID))
		}
	}
	if failed != nil {
		return failed
	}
	state := a.current.clone()
	keys := *state.Tickets
	keys.Cleared = next.least
	state.Tickets = &keys
	a.current.state = state
	return a.trees.writeState(a.current)
}

func (a *Agent) clearWorker(ctx context.Context, pid int) error {
	files, err := a.master.TicketFiles(ctx, pid)
	for _, file := range files {
		for range tickets.Size {
			if err == nil {
				err = a.master.PushTicketKey(ctx, pid, file, tickets.NewKey())
			}
		}
	}
	if err == nil {
		return nil
	}
	if processes, e := a.master.Processes(ctx); e == nil {
		for _, w := range processes.Workers {
			if w.PID == pid {
				return fmt.Errorf("old worker %d: %w", pid, err)
			}
		}
		return nil // it has ended
	}
	return err
}

// ticketStatusOf tells of the keys of the tree that HAProxy runs.
func ticketStatusOf(in observed, running *tree, secret string) *dataplane.TicketStatus {
	if running == nil || running.Revision.Tickets == nil || running.Tickets == nil {
		return nil
	}
	has := running.Tickets
	s := &dataplane.TicketStatus{Ring: has.ID, Epoch: has.Epoch, Problem: ringProblem(in, has.ID, secret)}
	switch {
	case s.Problem == "":
	case has.Epoch == 0:
		s.Problem += "; meanwhile session tickets are under this pod's own keys, and no other pod opens them"
	default:
		s.Problem += fmt.Sprintf("; meanwhile the keys of epoch %d stay in use", has.Epoch)
	}
	return s
}

// ringProblem is why a ring is not to be had; empty when it is.
func ringProblem(in observed, id, secret string) string {
	if in.accessProblem != "" {
		return in.accessProblem
	}
	if in.access == nil {
		return fmt.Sprintf("Secret %q, which says where the ticket keys are, has not been read yet", secret)
	}
	if in.access.Store == nil {
		return fmt.Sprintf("Secret %q names no store of ticket keys yet; the operator writes it when there is one", secret)
	}
	if _, ok := in.access.Rings[id]; !ok {
		return fmt.Sprintf("Secret %q has no key for ring %s; the operator writes it", secret, id)
	}
	seen := in.rings[id]
	if seen.problem == "" && seen.Epoch == 0 {
		return fmt.Sprintf("ring %s has not been read from its store yet", id)
	}
	return seen.problem
}
