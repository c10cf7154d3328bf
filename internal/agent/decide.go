package agent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/haproxy/runtime"
	"qtls.dev/qtls/internal/tickets"
)

// observed is what was last learnt of the world.
type observed struct {
	// published by the operator; nil while it has not been read, or is not
	// usable.
	published *published
	secrets   map[string]secret
	proxy     proxy
	// access says where rings of ticket keys are and how to open them; nil
	// before it is known. accessProblem is what is wrong with knowing it now.
	access        *dataplane.TicketAccess
	accessProblem string
	// rings that are needed, by ID.
	rings map[string]seenRing
	// credentials for the members of HSMPools, by Secret; nothing before the Secret
	// was read.
	credentials map[string]credentials
	// hsm is what hsmWorker says of the members; nil where it says nothing.
	hsm       *hsmStatus
	hsmWorker worker
	// hsmAge of that worker.
	hsmAge time.Duration
	// leaving: the pod's ports close, or have closed.
	leaving bool
	// now, by the clock sinceBoot.
	now time.Duration
}

// proxy is what HAProxy runs.
type proxy struct {
	// up: a worker takes connections.
	up bool
	// tree that the worker runs.
	tree    string
	worker  worker
	version string
}

// worker tells one process from another.
type worker struct {
	pid     int
	started int64
}

// own is what the agent has done.
type own struct {
	// current is the tree that HAProxy starts from; nil before the first. Untried: it
	// was installed, and no worker is known to run it yet.
	current *tree
	untried bool
	// synchronised is the worker that is known to run what is in current.
	synchronised worker
	// refusals are the installations that HAProxy refused since it last took up one.
	refusals refusals
	// refusedCertificates are those that HAProxy refused at run time, by name.
	refusedCertificates map[string]refusedCertificate
	// written credentials, by Secret: their digests.
	written map[string]string
	// spare keys that nobody has used, for when the pod needs some of its own.
	spare tickets.Ring
}

// mostRefusals is how many are remembered: the first of more than that are forgotten,
// and may be tried again.
const mostRefusals = 16

type refusals []refusal

// refusal says that an installation was refused; the same is not tried again.
type refusal struct {
	rejection dataplane.Rejection
	// key of what is not tried again; empty: it is.
	key string
	// until is when the reason may have passed; zero: it is for good.
	until time.Time
}

// with adds a refusal, in the place of an earlier one of the same, or whose time is over.
func (all refusals) with(r refusal) refusals {
	kept := slices.DeleteFunc(slices.Clone(all), func(old refusal) bool { return old.key == r.key || old.key == "" })
	return append(kept[max(0, len(kept)-mostRefusals+1):], r)
}

// of an installation tells whether there is one that holds.
func (all refusals) of(a install) bool {
	return slices.ContainsFunc(all, func(r refusal) bool { return r.key != "" && (r.key == a.key() || r.key == a.shape()) })
}

// last of a revision is what is told of it; nil where none was refused.
func (all refusals) last(revision string) *dataplane.Rejection {
	for _, r := range slices.Backward(all) {
		if r.rejection.Target.Revision == revision {
			return &r.rejection
		}
	}
	return nil
}

type refusedCertificate struct{ digest, message string }

// action is the next thing to do: one of the types below.
type action interface{ describe() string }

type (
	// install writes a whole tree, has HAProxy check it, and makes it current.
	install struct {
		revision dataplane.Revision
		state    state
	}
	// load has a running HAProxy take up the current tree: a reload.
	load struct{}
	// synchronise compares a worker that the agent has not set up with current,
	// and makes good what differs.
	synchronise struct{}
	// setCertificate has HAProxy serve another chain and key, without a reload.
	setCertificate struct {
		name        string
		certificate *certificate
	}
	// setServers moves servers, without a reload.
	setServers struct {
		slots   haproxy.Slots
		changes []haproxy.Change
	}
	// setTickets has HAProxy use other ticket keys, without a reload.
	setTickets struct{ keys ticketKeys }
	// clearOld rids old workers of ticket keys before the epoch, which were
	// dropped.
	clearOld struct{ least uint64 }
	// note changes only what the agent says of itself: a new generation with
	// the same configuration, a Secret written again with the same content.
	note struct{ state state }
)

func (a install) describe() string        { return "install " + a.state.Target.Revision }
func (a load) describe() string           { return "load" }
func (a synchronise) describe() string    { return "synchronise" }
func (a setCertificate) describe() string { return "set certificate " + a.name }
func (a setServers) describe() string     { return fmt.Sprintf("set %d servers", len(a.changes)) }
func (a note) describe() string           { return "note" }

// decide says what to do next, or nil when all is as it should be or has to
// wait. What it chooses first matters: a worker is brought to a known state
// before it is changed, and a new revision comes before repairs of the old.
func decide(in observed, me own) action {
	current := me.current
	if current != nil && in.proxy.up {
		if in.proxy.tree != current.Name {
			if in.leaving {
				return nil
			}
			return load{}
		}
		if in.proxy.worker != me.synchronised {
			return synchronise{}
		}
	}
	if a := decideCredentials(in, me); a != nil {
		return a
	}
	if current != nil { // first: it is short, and may be urgent
		if a := decideTickets(in, me); a != nil {
			return a
		}
	}
	if a := decideInstall(in, me); a != nil {
		return a
	}
	if current == nil {
		return nil
	}
	for _, c := range current.Revision.Certificates {
		served := current.Certificates[c.Name]
		now, _ := candidate(c, in, me)
		switch {
		case now == nil || served == nil:
		case now.Digest != served.Digest && len(now.PEM) > runtime.MaxCertificate:
			next := current.clone()
			next.Certificates[c.Name] = now
			if a := installable(in, install{current.Revision, next}, me); a != nil {
				return a
			}
		case now.Digest != served.Digest && replacesKey(now, current.Certificates):
			if a := installable(in, install{current.Revision, withKeyOf(now, c.Name, in, me)}, me); a != nil {
				return a
			}
		case now.Digest != served.Digest:
			return setCertificate{c.Name, now}
		case now.ResourceVersion != served.ResourceVersion:
			next := current.clone()
			next.Certificates[c.Name] = now
			return note{next}
		}
	}
	if a := decideRenewal(in, me); a != nil {
		return a
	}
	if in.published == nil {
		return decideClearing(in, me)
	}
	endpoints := in.published.endpointsFor(current.Slots)
	slots := haproxy.Assign(current.Revision, current.Slots, endpoints)
	changes, ok := haproxy.Changes(current.Revision, current.Slots, slots)
	if !ok {
		next := current.clone()
		next.Slots = slots
		if a := installable(in, install{current.Revision, next}, me); a != nil {
			return a
		}
		slots = haproxy.Fit(current.Revision, current.Slots, endpoints)
		changes, _ = haproxy.Changes(current.Revision, current.Slots, slots) // of the same size: always ok
	}
	if len(changes) > 0 {
		return setServers{slots, changes}
	}
	if t := in.published.Target; t != current.Target && t.Revision == current.Target.Revision {
		next := current.clone()
		next.Target = t
		return note{next}
	}
	return decideClearing(in, me)
}

// decideInstall installs the published revision where another one runs, or
// none, once all its certificates are to be had, and its ticket keys are, or
// were waited for long enough.
func decideInstall(in observed, me own) action {
	p := in.published
	if p == nil || me.current != nil && me.current.Target.Revision == p.Target.Revision {
		return nil
	}
	next := state{Target: p.Target, Certificates: map[string]*certificate{}}
	var slots haproxy.Slots
	if me.current != nil {
		slots, next.Reloads = me.current.Slots, me.current.Reloads
	}
	for _, c := range p.Revision.Certificates {
		chosen, _ := choose(c, in, me)
		if chosen == nil {
			return nil
		}
		next.Certificates[c.Name] = chosen
	}
	if t := p.Revision.Tickets; t != nil {
		if awaited(in, me, t.Ring) {
			return nil
		}
		keys := ticketsFor(in, me, *t)
		next.Tickets = &keys
	}
	if credentialsAwaited(in, p.Revision) {
		return nil
	}
	next.Slots = haproxy.Assign(p.Revision, slots, p.endpointsFor(slots))
	return installable(in, install{p.Revision, next}, me)
}

// installable drops an installation that HAProxy has refused already. A pod that
// drains takes up nothing that needs another worker: that would open the ports
// again.
func installable(in observed, a install, me own) action {
	if in.leaving || me.refusals.of(a) {
		return nil
	}
	return a
}

// key tells installations apart whose check may end differently: the revision,
// the number of servers (not where these are) and the certificates.
func (a install) key() string {
	var b strings.Builder
	b.WriteString(a.shape())
	for _, c := range a.revision.Certificates {
		if has := a.state.Certificates[c.Name]; has != nil {
			b.WriteString(" " + c.Name + "=" + has.Digest)
		}
	}
	return b.String()
}

// shape tells installations apart whose loading may end differently, once they
// have passed the check. A try that fails disturbs the worker that serves: a
// renewed certificate is no reason for another.
func (a install) shape() string {
	sizes := []string{a.state.Target.Revision}
	for group, slots := range a.state.Slots {
		sizes = append(sizes, fmt.Sprintf("%s:%d", group, len(slots)))
	}
	slices.Sort(sizes)
	return strings.Join(sizes, " ")
}

// candidate is the certificate that the Secret has now, or why it cannot be
// served.
func candidate(c dataplane.Certificate, in observed, me own) (*certificate, string) {
	now, problem := in.secrets[c.Secret].usable(c)
	if now == nil {
		return nil, problem
	}
	if r, ok := me.refusedCertificates[c.Name]; ok && r.digest == now.Digest {
		return nil, fmt.Sprintf("HAProxy refuses the content of Secret %q: %s", c.Secret, r.message)
	}
	return now, problem
}

// choose is the certificate to serve: that of the Secret, or, where it is of no
// use, the one that is served already.
func choose(c dataplane.Certificate, in observed, me own) (*certificate, string) {
	now, problem := candidate(c, in, me)
	if now == nil && me.current != nil {
		if served := me.current.Certificates[c.Name]; served != nil && served.Secret == c.Secret && served.Algorithm == c.Algorithm && served.HSMPool == c.HSMPool {
			return served, problem
		}
	}
	return now, problem
}

// secretsNeeded are the names of the Secrets to watch: those of the published
// revision and those of the running one.
func secretsNeeded(in observed, me own) []string {
	var names []string
	add := func(r dataplane.Revision) {
		for _, c := range r.Certificates {
			names = append(names, c.Secret)
		}
	}
	if in.published != nil {
		add(in.published.Revision)
	}
	if me.current != nil {
		add(me.current.Revision)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
