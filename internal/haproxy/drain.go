package haproxy

import "time"

// What a pod's drain may take beyond the delay and the time-out of the gateway's
// spec. The agent keeps to these times, and the pod's grace period has room for
// them.
const (
	// DrainQuiet is how long no connection comes when all nodes know that the pod
	// leaves, and DrainLate by how much more than the delay they may learn of it.
	DrainQuiet, DrainLate = time.Second, 5 * time.Second
	// DrainHandOver is how long a connection that is being handed on inside the pod
	// may take: a ClientHello is waited for 3 seconds at most.
	DrainHandOver = 4 * time.Second
	// DrainExtra is all of it.
	DrainExtra = DrainQuiet + DrainLate + DrainHandOver
)
