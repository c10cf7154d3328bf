package validity

import "fmt"

// Bottleneck is what limited a measurement.
type Bottleneck string

const (
	CPUQuota Bottleneck = "CPUQuota"
	Client   Bottleneck = "Client"
	Machine  Bottleneck = "Machine"
	HSM      Bottleneck = "HSM"
	Redis    Bottleneck = "Redis"
	Network  Bottleneck = "Network"
	Memory   Bottleneck = "Memory"
	// Unknown: nothing that was observed was at its limit.
	Unknown Bottleneck = "Unknown"
	// None: the measurement was meant to stay below every limit, and did.
	None Bottleneck = "None"
)

// Text is what a sentence calls it.
func (b Bottleneck) Text() string {
	switch b {
	case CPUQuota:
		return "replicas' CPU quota"
	case Client:
		return "load generator"
	case Machine:
		return "machines' CPU"
	case Network:
		return "network"
	case Memory:
		return "replicas' memory"
	case Unknown:
		return "unknown"
	case None:
		return "nothing"
	default:
		return string(b)
	}
}

// When something counts as at its limit.
const (
	busy          = 0.90 // of a dependency, a link, a generator's CPU
	waiting       = 0.50 // of the server's time for a dependency, of a handshake's for the network
	retransmitted = 0.01 // of segments: more is a network that loses them
	stalled       = 0.10 // of the time for memory
	throttled     = 0.10 // of a generator's CPU periods: less is a burst, which invalidates, and is not what limits
	nearlyFull    = 0.95 // of the memory limit
)

// Finding is what was at its limit, with the evidence.
type Finding struct {
	Bottleneck Bottleneck `json:"bottleneck"`
	Evidence   []string   `json:"evidence,omitempty"`
	// Others were at their limits too.
	Others []Bottleneck `json:"others,omitempty"`
}

// Name finds what limited a measurement. Where several things were at their
// limits, it is the one that makes the others look bad: memory, which stops
// everything; the client, which no gateway can make up for, or its machine; ticket keys that are not
// there, for which there are full handshakes; the machine, as the client; the
// replicas' quotas, which leave nothing to wait for; and only then what replicas
// wait for.
func Name(e Evidence) Finding {
	var found Finding
	at := func(b Bottleneck, format string, args ...any) {
		if found.Bottleneck == "" {
			found.Bottleneck = b
		}
		if found.Bottleneck == b {
			found.Evidence = append(found.Evidence, fmt.Sprintf(format, args...))
		} else if len(found.Others) == 0 || found.Others[len(found.Others)-1] != b {
			found.Others = append(found.Others, b)
		}
	}

	var memory eachReplica
	for _, r := range e.Replicas {
		if r.OOMKills > 0 {
			times := "once"
			if r.OOMKills > 1 {
				times = fmt.Sprintf("%d times", r.OOMKills)
			}
			memory.add("replica %s was killed %s for lack of memory", r.Name, times)
		}
		if over(r.MemoryStalled, stalled) {
			memory.add("replica %s waited for memory for %s of the time", r.Name, percent(*r.MemoryStalled))
		}
		// Full by itself limits nothing: caches fill what there is.
		if len(memory.texts) > 0 && r.MemoryLimit > 0 && float64(r.Memory) >= nearlyFull*float64(r.MemoryLimit) {
			memory.add("replica %s used %s of its memory limit", r.Name, percent(float64(r.Memory)/float64(r.MemoryLimit)))
		}
	}
	for _, text := range memory.told() {
		at(Memory, "%s", text)
	}

	if g := e.Generator; g.Periods > 0 && float64(g.ThrottledPeriods) >= throttled*float64(g.Periods) {
		at(Client, "the generator was throttled in %d of %d CPU periods", e.Generator.ThrottledPeriods, e.Generator.Periods)
	}
	if over(e.Generator.Use, busy) {
		at(Client, "the generator used %s of its CPU", percent(*e.Generator.Use))
	}
	// One that the gateway has too is full for both, and told as that.
	if idle, gateway := e.Generator.MachineIdle, e.MachineIdle; idle != nil && *idle < LeastIdle && gateway != nil && *gateway >= LeastIdle {
		at(Client, "the busiest machine of the generator was idle for %s of the time", percent(*idle))
	}
	// A gateway at its limit makes an open loop drop iterations too.
	saturated := e.saturated()
	if e.Dropped > 0 && !saturated {
		at(Client, "%d iterations were dropped while the replicas had CPU to spare", e.Dropped)
	}
	// Full handshakes where a session should have been resumed take CPU that would
	// else be to spare.
	if e.Redis != nil && e.Redis.Without > 0 && e.resumesTooFew() {
		at(Redis, "%d of %d replicas had no ticket keys of the store, and %s of the handshakes were resumed", e.Redis.Without, len(e.Replicas), percent(e.resumedShare()))
	}
	if e.MachineIdle != nil && *e.MachineIdle < LeastIdle {
		at(Machine, "the busiest machine was idle for %s of the time", percent(*e.MachineIdle))
	}
	if saturated {
		least, throttled := e.leastQuotaUse()
		text := "every replica used %s of its CPU quota or more"
		if throttled {
			text = "every replica was throttled in %s of its CPU periods or more"
		}
		at(CPUQuota, text, percent(least))
	}
	if e.HSM != nil {
		if over(e.HSM.Use, busy) {
			at(HSM, "HSM was busy for %s of what it has", percent(*e.HSM.Use))
		}
		if over(e.HSM.WaitShare, waiting) {
			at(HSM, "%s of the server's time was spent waiting for HSM", percent(*e.HSM.WaitShare))
		}
	}
	if over(e.Network.Retransmitted, retransmitted) {
		at(Network, "%s of the segments were lost", percent(*e.Network.Retransmitted))
	}
	if over(e.Network.Share, waiting) {
		at(Network, "%s of a handshake's time is the network's", percent(*e.Network.Share))
	}

	if found.Bottleneck == "" {
		found.Bottleneck = Unknown
		if e.Phase == Latency {
			found.Bottleneck = None
		}
	}
	return found
}

// spare says what a deliberate limit had left, so that more clients would have made more
// handshakes; empty where that is nothing. To be waited for is not to be full: with few
// clients and a signature, or a way, that takes long, throughput is that of the clients.
func (e Evidence) spare(limit Bottleneck) string {
	switch {
	case limit == HSM && (e.HSM == nil || !over(e.HSM.Use, busy)):
		use := 0.0
		if e.HSM != nil && e.HSM.Use != nil {
			use = *e.HSM.Use
		}
		return fmt.Sprintf("HSM was busy for %s of what it has, want %s", percent(use), percent(busy))
	case limit == Network && e.Network.Retransmitted == nil:
		return "nobody observed whether segments were lost, as in a network that is full"
	case limit == Network && !over(e.Network.Retransmitted, retransmitted):
		return fmt.Sprintf("%s of the segments were lost, want %s: a network that is full loses them", percent(*e.Network.Retransmitted), percent(retransmitted))
	}
	return ""
}

func over(share *float64, limit float64) bool { return share != nil && *share >= limit }

// saturated tells whether every replica was at its quota.
func (e Evidence) saturated() bool {
	least, _ := e.leastQuotaUse()
	return len(e.Replicas) > 0 && least >= Saturated
}

// leastQuotaUse of all replicas, and whether all of them were throttled in that share
// of their periods: a replica that was has used that share of its quota, too.
func (e Evidence) leastQuotaUse() (least float64, throttled bool) {
	least, throttled = 1, true
	for _, r := range e.Replicas {
		share, periods := r.quotaUse()
		least, throttled = min(least, share), throttled && periods
	}
	return least, throttled
}
