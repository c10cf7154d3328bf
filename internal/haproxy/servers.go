package haproxy

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"qtls.dev/qtls/internal/dataplane"
)

// minSlots is the least number of servers that a group has in a configuration.
const minSlots = 8

// Slots are the servers of each server group, by the group's name. A slot
// keeps its place; which endpoint it holds changes at run time.
type Slots map[string][]Slot

// Slot is a server of a configuration. A nil Endpoint is a free one.
type Slot struct {
	Endpoint *dataplane.Endpoint
}

// Assign places the endpoints: one that has a slot keeps it, a new one takes a
// free one. A group has slots for twice the endpoints that it had when it was
// made, so that its application can be rolled or scaled without a reload. One
// that outgrows them is made anew, which needs a reload. Groups that the revision
// does not name are left out.
func Assign(revision dataplane.Revision, current Slots, endpoints dataplane.Endpoints) Slots {
	return assignEach(revision, current, endpoints, roomFor)
}

// Fit is Assign for where there can be no reload: the groups keep the slots that
// they have, and what does not fit is left out.
func Fit(revision dataplane.Revision, current Slots, endpoints dataplane.Endpoints) Slots {
	return assignEach(revision, current, endpoints, func(slots, _ int) int { return slots })
}

// assignEach group has size tell its slots, by those that it has and by its
// endpoints.
func assignEach(revision dataplane.Revision, current Slots, endpoints dataplane.Endpoints, size func(slots, endpoints int) int) Slots {
	next := Slots{}
	for _, b := range revision.Backends {
		for _, g := range b.Groups {
			if _, done := next[g.Name]; !done {
				wanted := addressed(endpoints[g.Name])
				next[g.Name] = assign(current[g.Name], wanted, size(len(current[g.Name]), len(wanted)))
			}
		}
	}
	return next
}

// addressed leaves out what is no address: names would be looked up, and other
// words would be options.
func addressed(endpoints []dataplane.Endpoint) []dataplane.Endpoint {
	return slices.DeleteFunc(slices.Clone(endpoints), func(e dataplane.Endpoint) bool {
		address, err := netip.ParseAddr(e.Address)
		return err != nil || address.Zone() != "" || e.Port < 1 || e.Port > 65535
	})
}

// roomFor endpoints: the slots that there are, or where those are too few, twice as
// many as the endpoints.
func roomFor(slots, endpoints int) int {
	if slots > 0 && endpoints <= slots {
		return slots
	}
	twice := 2 * endpoints
	return max(minSlots, 1<<bits.Len(uint(max(twice-1, 0)))) // a power of two
}

func assign(current []Slot, endpoints []dataplane.Endpoint, size int) []Slot {
	next := make([]Slot, size)
	var homeless []dataplane.Endpoint
	for _, e := range endpoints {
		i := slices.IndexFunc(current, func(s Slot) bool { return s.Endpoint != nil && *s.Endpoint == e })
		if i >= 0 {
			next[i].Endpoint = &e
		} else {
			homeless = append(homeless, e)
		}
	}
	// A slot that was free already comes before one that has just become so:
	// the new server can then be there before the old one goes.
	for _, wasFree := range []bool{true, false} {
		for i := range next {
			free := i >= len(current) || current[i].Endpoint == nil
			if len(homeless) > 0 && next[i].Endpoint == nil && free == wasFree {
				next[i].Endpoint, homeless = &homeless[0], homeless[1:]
			}
		}
	}
	return next
}

// ServerName of a slot: g<group's place in the backend>-<slot>, from 1.
func ServerName(group, slot int) string { return fmt.Sprintf("g%d-%d", group+1, slot+1) }

// Change is a server to be changed at run time. A nil Endpoint takes it out of
// service; its connections go on.
type Change struct {
	Backend, Server string
	Endpoint        *dataplane.Endpoint
}

// Changes lists what has to be told to a HAProxy that runs the revision with
// the current slots, for it to have the next. ok is false when that needs a
// reload, because a group has another number of slots.
func Changes(revision dataplane.Revision, current, next Slots) (changes []Change, ok bool) {
	for _, b := range revision.Backends {
		for i, g := range b.Groups {
			if len(current[g.Name]) != len(next[g.Name]) {
				return nil, false
			}
			for n, s := range next[g.Name] {
				if old := current[g.Name][n].Endpoint; !sameEndpoint(old, s.Endpoint) {
					changes = append(changes, Change{Backend: b.Name, Server: ServerName(i, n), Endpoint: s.Endpoint})
				}
			}
		}
	}
	return changes, true
}

func sameEndpoint(a, b *dataplane.Endpoint) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// Backends renders backends.cfg: the backends that reach Services, with their
// present endpoints.
func Backends(revision dataplane.Revision, slots Slots) string {
	var out strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	line("# Backends and their present endpoints. Written by qtls-agent.")
	for _, b := range revision.Backends {
		mode := "tcp"
		if b.HTTP {
			mode = "http"
		}
		line("")
		line("backend %s from %s", b.Name, mode)
		line("    balance %s", balance(b))
		if b.HTTP {
			line("    http-reuse safe")
		}
		for i, g := range b.Groups {
			settings := fmt.Sprintf("weight %d", g.Weight)
			if t := g.TLS; t != nil {
				settings += fmt.Sprintf(" ssl ssl-min-ver TLSv1.2 verify required ca-file %s sni str(%s) verifyhost %s", t.CAFile, t.Hostname, t.Hostname)
				if b.HTTP {
					settings += " alpn http/1.1"
				}
			}
			for n, s := range slots[g.Name] {
				if s.Endpoint == nil {
					// An address that takes nothing: it is set when the slot is.
					line("    server %s 0.0.0.0:1 %s disabled", ServerName(i, n), settings)
				} else {
					line("    server %s %s %s", ServerName(i, n), Address(*s.Endpoint), settings)
				}
			}
		}
	}
	return out.String()
}

// balance takes the less loaded of two servers, so that a slow one does not
// fill up; and turns where weights differ, for that alone gives each its share.
func balance(b dataplane.Backend) string {
	weight := 0
	for _, g := range b.Groups {
		if weight != 0 && g.Weight != 0 && g.Weight != weight {
			return "roundrobin"
		}
		weight = max(weight, g.Weight)
	}
	return "random(2)"
}

// Address of an endpoint as HAProxy takes it.
func Address(e dataplane.Endpoint) string {
	if strings.Contains(e.Address, ":") {
		return fmt.Sprintf("[%s]:%d", e.Address, e.Port)
	}
	return fmt.Sprintf("%s:%d", e.Address, e.Port)
}
