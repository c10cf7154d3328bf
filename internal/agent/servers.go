package agent

import (
	"context"
	"net/netip"
	"slices"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/haproxy/runtime"
)

func setServer(ctx context.Context, admin runtime.Admin, c haproxy.Change) error {
	if c.Endpoint == nil {
		return admin.DisableServer(ctx, c.Backend, c.Server)
	}
	to, err := addressOf(*c.Endpoint)
	if err != nil {
		return err
	}
	return admin.SetServer(ctx, c.Backend, c.Server, to)
}

// additionsFirst has new servers take connections before old ones no longer do:
// a backend never has none in between.
func additionsFirst(changes []haproxy.Change) []haproxy.Change {
	out := slices.Clone(changes)
	slices.SortStableFunc(out, func(a, b haproxy.Change) int {
		rank := func(c haproxy.Change) int {
			if c.Endpoint == nil {
				return 1
			}
			return 0
		}
		return rank(a) - rank(b)
	})
	return out
}

func addressOf(e dataplane.Endpoint) (netip.AddrPort, error) {
	address, err := netip.ParseAddr(e.Address)
	return netip.AddrPortFrom(address, uint16(e.Port)), err
}

// differences are the changes that bring a worker's servers to where the slots
// have them.
func differences(revision dataplane.Revision, slots haproxy.Slots, servers []runtime.Server) []haproxy.Change {
	is := map[[2]string]runtime.Server{}
	for _, s := range servers {
		is[[2]string{s.Backend, s.Name}] = s
	}
	var changes []haproxy.Change
	for _, b := range revision.Backends {
		for i, g := range b.Groups {
			for n, slot := range slots[g.Name] {
				change := haproxy.Change{Backend: b.Name, Server: haproxy.ServerName(i, n), Endpoint: slot.Endpoint}
				server, known := is[[2]string{change.Backend, change.Server}]
				if known && !agrees(server, slot.Endpoint) {
					changes = append(changes, change)
				}
			}
		}
	}
	return changes
}

func agrees(s runtime.Server, wanted *dataplane.Endpoint) bool {
	if wanted == nil {
		return s.Disabled
	}
	to, err := addressOf(*wanted)
	return err == nil && !s.Disabled && netip.AddrPortFrom(s.Address, s.Port) == to
}
