package dataplane

import (
	"time"

	"qtls.dev/qtls/internal/cgroup"
	"qtls.dev/qtls/internal/machine"
)

// UsagePath is where an agent says what its pod has used.
const UsagePath = "/v1/usage"

// Usage is what HAProxy's worker, its container, the pod and its node have used up
// to now. Two of them tell what was used in between. What a pointer stands for was
// not observed.
type Usage struct {
	// Time is when, in Unix nanoseconds of the node's clock.
	Time int64 `json:"time"`
	// Worker tells one from another: what they used is not to be compared.
	Worker string `json:"worker"`
	// CPU that HAProxy's own threads in the worker have used, in nanoseconds. Those of
	// libraries, which sign in HSMs, are in the container's alone.
	CPU int64 `json:"cpu"`
	// TLSConnections that it has made, to clients and to servers; Connections to
	// clients are open. One that is handed on inside the pod counts twice.
	TLSConnections int64 `json:"tlsConnections"`
	Connections    int64 `json:"connections"`
	// Container is HAProxy's.
	Container *cgroup.Usage `json:"container,omitempty"`
	// Network is the pod's.
	Network *Network `json:"network,omitempty"`
	// HSM is what the worker waited for; nil where it has no key in one.
	HSM *HSMUsage `json:"hsm,omitempty"`
	// Tickets are nil where no session is resumed.
	Tickets *TicketUsage `json:"tickets,omitempty"`
	// MachineTotal and MachineIdle are the node's CPU time and the part of it that
	// nobody used, in ticks.
	MachineTotal int64 `json:"machineTotal"`
	MachineIdle  int64 `json:"machineIdle"`
	// Machine is the node.
	Machine machine.Machine `json:"machine"`
	// Versions of the programs in the pod, by name.
	Versions map[string]string `json:"versions,omitempty"`
}

// Network is what went through a pod's network, loopback but for TCP left out.
type Network struct {
	// Segments of TCP that were sent, and those of them that were sent again for not
	// having arrived.
	Segments      int64 `json:"segments"`
	Retransmitted int64 `json:"retransmitted"`
	BytesReceived int64 `json:"bytesReceived"`
	BytesSent     int64 `json:"bytesSent"`
}

// HSMUsage is what a worker had of the members of its pool.
type HSMUsage struct {
	// Time at which the worker wrote this, in Unix nanoseconds: once a second.
	Time    int64            `json:"time"`
	Members []HSMMemberUsage `json:"members"`
}

// HSMMemberUsage is what a worker had of one member.
type HSMMemberUsage struct {
	Name string `json:"name"`
	// Sessions are open: so many signatures can be made at a time.
	Sessions int64 `json:"sessions"`
	// Signatures that were made, and for how long handshakes waited for theirs in
	// total, in the queue too.
	Signatures int64         `json:"signatures"`
	Waited     time.Duration `json:"waited"`
}

// TicketUsage is how a pod came by the keys of its session tickets.
type TicketUsage struct {
	// Own: it has none of the store's, and no other replica opens its tickets.
	Own bool `json:"own,omitempty"`
	// StoreWaited is for how long the agent has waited for the store in total. No
	// handshake did.
	StoreWaited time.Duration `json:"storeWaited"`
}
