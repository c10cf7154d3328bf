package dataplane

// UsagePath is where an agent says what its pod has used.
const UsagePath = "/v1/usage"

// Usage is what HAProxy's worker and the pod's node have used up to now. Two of
// them tell what was used in between.
type Usage struct {
	// Time is when, in Unix nanoseconds of the node's clock.
	Time int64 `json:"time"`
	// Worker tells one from another: what they used is not to be compared.
	Worker string `json:"worker"`
	// CPU that the worker's threads have used, in nanoseconds.
	CPU int64 `json:"cpu"`
	// TLSConnections that it has made, to clients and to servers.
	TLSConnections int64 `json:"tlsConnections"`
	// MachineTotal and MachineIdle are the node's CPU time and the part of it that
	// nobody used, in ticks.
	MachineTotal int64 `json:"machineTotal"`
	MachineIdle  int64 `json:"machineIdle"`
	// Machine is the node.
	Machine Machine `json:"machine"`
}

// Machine is what figures of CPU time belong to.
type Machine struct {
	CPUModel string `json:"cpuModel"`
	CPUs     int    `json:"cpus"`
	// Flags of the CPUs that cryptography uses.
	Flags  []string `json:"flags,omitempty"`
	Kernel string   `json:"kernel"`
}
