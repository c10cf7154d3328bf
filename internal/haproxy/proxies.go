package haproxy

import "strings"

// What the names of frontends and backends begin with. A listener's name has no
// dot.
const (
	selectionPrefix   = "port."     // port.443 chooses the bind
	destinationPrefix = "to."       // to.web.classical hands connections on to it,
	listenerPrefix    = "listener." // listener.web.classical, which terminates TLS
	backendPrefix     = "backend."  // backend.web has the Services
)

// IsSelection says whether a frontend chooses the bind.
func IsSelection(frontend string) bool { return strings.HasPrefix(frontend, selectionPrefix) }

// FrontendOfDestination is the frontend that a backend hands connections on to.
func FrontendOfDestination(backend string) (frontend string, ok bool) {
	bind, ok := strings.CutPrefix(backend, destinationPrefix)
	return listenerPrefix + bind, ok
}

// ListenerOfFrontend is the listener that a frontend terminates TLS for.
func ListenerOfFrontend(name string) (listener string, ok bool) {
	bind, ok := strings.CutPrefix(name, listenerPrefix)
	listener, _, _ = strings.Cut(bind, ".")
	return listener, ok
}

// ListenerOfBackend is the listener whose Services a backend has.
func ListenerOfBackend(name string) (listener string, ok bool) {
	return strings.CutPrefix(name, backendPrefix)
}
