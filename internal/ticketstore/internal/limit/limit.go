// Package limit says how long a store's servers are waited for. Tests wait
// longer: their machine may be so busy that a server that is there looks away.
package limit

import "time"

var (
	// Dial is for a connection, Command for an answer.
	Dial, Command = 2 * time.Second, 2 * time.Second
	// Operation bounds all that is done to one member in one call.
	Operation = 5 * time.Second
)
