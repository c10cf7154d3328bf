package haproxy

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
