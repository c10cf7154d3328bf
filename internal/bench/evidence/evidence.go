// Package evidence makes of what was observed beside a measurement what it is
// judged by: two looks at each pod of the gateway, and what the load generator saw.
package evidence

import (
	"slices"
	"time"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/cgroup"
	"qtls.dev/qtls/internal/dataplane"
)

// Replica is what a pod used between two looks at it; Disturbed where they are of
// two workers, and so tell nothing. Who calls adds its name, node and quota, and
// whether it was ready.
func Replica(before, after dataplane.Usage) validity.Replica {
	var r validity.Replica
	if after.Worker != before.Worker || after.Time <= before.Time {
		r.Disturbed = true
		return r
	}
	r.Observed = time.Duration(after.Time - before.Time)
	r.CPU = time.Duration(after.CPU - before.CPU)
	r.Handshakes = after.TLSConnections - before.TLSConnections
	r.Connections = max(before.Connections, after.Connections)
	if b, a := before.Container, after.Container; b != nil && a != nil && a.Periods >= b.Periods {
		container(&r, *b, *a)
		if r.LoadedMemory = a.Memory; before.Connections > after.Connections {
			r.LoadedMemory = b.Memory
		}
	}
	if b, a := before.Network, after.Network; b != nil && a != nil {
		r.Traffic = &validity.Traffic{Segments: a.Segments - b.Segments, Retransmitted: max(a.Retransmitted-b.Retransmitted, 0),
			BytesReceived: a.BytesReceived - b.BytesReceived, BytesSent: a.BytesSent - b.BytesSent}
	}
	// A worker that signed nothing in between has not written anything either.
	if b, a := before.HSM, after.HSM; b != nil && a != nil {
		r.HSM = hsmWait(*b, *a)
	}
	if b, a := before.Tickets, after.Tickets; b != nil && a != nil {
		r.Tickets = &validity.TicketWait{Own: b.Own || a.Own, StoreWaited: a.StoreWaited - b.StoreWaited}
	}
	return r
}

// hsmWait of the members that signed meanwhile: one that is there for when another fails
// has sessions, and nothing to do.
func hsmWait(before, after dataplane.HSMUsage) *validity.HSMWait {
	w := &validity.HSMWait{Observed: time.Duration(after.Time - before.Time)}
	for _, a := range after.Members {
		var b dataplane.HSMMemberUsage
		if i := slices.IndexFunc(before.Members, func(m dataplane.HSMMemberUsage) bool { return m.Name == a.Name }); i >= 0 {
			b = before.Members[i]
		}
		if a.Signatures > b.Signatures {
			w.Sessions, w.Signatures, w.Waited = w.Sessions+a.Sessions, w.Signatures+a.Signatures-b.Signatures, w.Waited+a.Waited-b.Waited
		}
	}
	return w
}

func container(r *validity.Replica, before, after cgroup.Usage) {
	if used := after.CPU - before.CPU; used > 0 { // that of libraries' threads, too
		r.CPU = used
	}
	r.Periods, r.ThrottledPeriods, r.Throttled = after.Periods-before.Periods, after.ThrottledPeriods-before.ThrottledPeriods, after.Throttled-before.Throttled
	r.Memory, r.MemoryLimit = max(before.Memory, after.Memory), after.MemoryLimit
	if after.MemoryPeak > before.MemoryPeak { // it was reached in between
		r.Memory = max(r.Memory, after.MemoryPeak)
	}
	r.OOMKills = after.OOMKills - before.OOMKills
	if before.MemoryStalled != nil && after.MemoryStalled != nil {
		share := float64(*after.MemoryStalled-*before.MemoryStalled) / float64(r.Observed)
		r.MemoryStalled = &share
	}
}

// Generator is what the pods that made a load, in a window, have used of what they
// may, limit CPUs each, 0 for none; and how idle their machines were. What one of
// them did not observe is not known.
func Generator(result shard.Result, window time.Duration, limit float64) validity.Generator {
	g := validity.Generator{Periods: result.CPU.Periods, ThrottledPeriods: result.CPU.ThrottledPeriods}
	use, idle := 0.0, 1.0
	for _, c := range result.CPUOfPods {
		if c.MachineTotal == 0 {
			return g
		}
		may := float64(c.MachineTotal) * float64(shard.Tick)
		if limit > 0 {
			may = min(may, limit*float64(window))
		}
		use, idle = max(use, float64(c.Used)/may), min(idle, float64(c.MachineIdle)/float64(c.MachineTotal))
	}
	if len(result.CPUOfPods) > 0 {
		g.Use, g.MachineIdle = &use, &idle
	}
	return g
}

// Complete adds to evidence what its replicas and a result tell together: how busy
// the HSM was, what replicas had to do without, what the network's part is, and what it lost.
func Complete(e *validity.Evidence, result shard.Result) {
	all := result.Total(func(shard.Kind) bool { return true })
	e.HSM = hsm(e.Replicas, result.PerSecond*all.Server.Mean().Seconds())
	e.Redis = store(e.Replicas)
	if total := all.Handshake.Mean(); total > 0 && all.Network.Count() > 0 {
		share := float64(all.Network.Mean()) / float64(total)
		e.Network.Share = &share
	}
	var replicas shard.TCP
	for _, r := range e.Replicas {
		if r.Traffic != nil {
			replicas.Segments, replicas.Retransmitted = replicas.Segments+r.Traffic.Segments, replicas.Retransmitted+r.Traffic.Retransmitted
		}
	}
	// A link that is full one way loses the segments of one side alone.
	for _, side := range []shard.TCP{replicas, result.TCP} {
		if side.Segments == 0 {
			continue
		}
		share := float64(side.Retransmitted) / float64(side.Segments)
		if known := e.Network.Retransmitted; known == nil || share > *known {
			e.Network.Retransmitted = &share
		}
	}
}

// Others are how many TLS connections a second a pod made between two looks before a load,
// which are none of the load's; nil where they are of two workers, or one was not taken, or
// the load may have begun.
func Others(idle, quiet dataplane.Usage, begins time.Time) *float64 {
	if quiet.Worker != idle.Worker || quiet.Time <= idle.Time || quiet.Time > begins.UnixNano() {
		return nil
	}
	perSecond := float64(quiet.TLSConnections-idle.TLSConnections) / time.Duration(quiet.Time-idle.Time).Seconds()
	return &perSecond
}

// hsm of all replicas. The time that handshakes waited in a second is how many
// waited at a time (Little's law): as many as there are sessions, and all of those
// were busy. atServer are the handshakes that were at the server at a time, by the
// same law.
func hsm(replicas []validity.Replica, atServer float64) *validity.Dependency {
	var use, waiting float64
	known := false
	for _, r := range replicas {
		if r.HSM == nil {
			continue
		}
		known = true
		if r.HSM.Observed <= 0 {
			continue
		}
		at := float64(r.HSM.Waited) / float64(r.HSM.Observed)
		waiting += at
		if r.HSM.Sessions > 0 {
			use = max(use, min(at/float64(r.HSM.Sessions), 1))
		}
	}
	if !known {
		return nil
	}
	d := &validity.Dependency{Use: &use}
	if atServer > 0 {
		share := min(waiting/atServer, 1)
		d.WaitShare = &share
	}
	return d
}

// store of the ticket keys: no handshake waits for it, and its use is not known.
func store(replicas []validity.Replica) *validity.Dependency {
	var d *validity.Dependency
	for _, r := range replicas {
		if r.Tickets == nil {
			continue
		}
		if d == nil {
			d = &validity.Dependency{}
		}
		if r.Tickets.Own {
			d.Without++
		}
	}
	return d
}
