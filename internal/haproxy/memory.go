package haproxy

import "fmt"

// MemoryEnvironment is the variable of HAProxy's container that has its memory
// limit, in bytes.
const MemoryEnvironment = "QTLS_MEMORY_LIMIT"

// MostDescriptors are the file descriptors that HAProxy takes at most: two for a
// connection.
const MostDescriptors = 40000

// What HAProxy takes of its container's memory, in bytes.
const (
	// processMemory is for the master, and for two workers without connections:
	// one that is being replaced, and the next.
	processMemory = 64 << 20
	// connectionMemory is for a connection: 64 KiB are the buffer of a request
	// that is being read (tune.bufsize), the rest is TLS and what HAProxy knows of
	// it, 31 kB as measured.
	connectionMemory = 100 << 10
	// leastConnections are accepted, however little memory there is.
	leastConnections = 1000
)

// Descriptors are how many file descriptors HAProxy may have in a container with
// so much memory, in bytes. Of them HAProxy derives how many connections it
// accepts: so many as the container has memory for while all of them send a
// request. The others wait in the kernel.
func Descriptors(memory int64) uint64 {
	connections := (memory - processMemory) / connectionMemory
	return 2 * uint64(min(max(connections, leastConnections), MostDescriptors/2))
}

const (
	// mostPorts of a gateway: it has no more listeners.
	mostPorts = 32
	// ownConnections are what HAProxy's own descriptors would be enough for.
	ownConnections = 200
)

// selectionEnvironment is the variable of HAProxy's container that has how many
// connections each of so many ports takes that hand them on inside the pod.
// HAProxy has one number of connections for those that it accepts and those that
// it hands on to itself: if it accepted so many that none is left to hand one on,
// none of them would end before its time is out.
func selectionEnvironment(ports int) string {
	return fmt.Sprintf("QTLS_SELECTED_CONNECTIONS_%d", min(ports, mostPorts))
}

// SelectionEnvironment is what HAProxy's container knows of that when HAProxy has
// so many file descriptors: all ports together hold half of its connections.
func SelectionEnvironment(descriptors uint64) []string {
	half := (int(min(descriptors, MostDescriptors)/2) - ownConnections) / 2
	var all []string
	for ports := 1; ports <= mostPorts; ports++ {
		all = append(all, fmt.Sprintf("%s=%d", selectionEnvironment(ports), max(half/ports, 1)))
	}
	return all
}
