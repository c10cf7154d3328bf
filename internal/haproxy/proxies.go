package haproxy

import (
	"strings"

	"qtls.dev/qtls/internal/haproxy/runtime"
)

// What the names of frontends and backends begin with. A listener's name has no
// dot.
const (
	selectionPrefix   = "port."     // port.443 chooses the bind
	destinationPrefix = "to."       // to.web.classical hands connections on to it,
	listenerPrefix    = "listener." // listener.web.classical, which terminates TLS
	backendPrefix     = "backend."  // backend.web has the Services
)

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

// Selections are the frontends that choose a bind, and how many connections
// wait in them: for their ClientHello, or for the bind to take them.
func Selections(proxies []runtime.Proxy) (frontends []string, waiting int) {
	taken, terminates := map[string]int{}, map[string]bool{}
	for _, p := range proxies {
		if listener, ok := ListenerOfFrontend(p.Name); ok && p.Frontend {
			taken[p.Name] = p.Sessions
			terminates[listener] = true
		}
	}
	undecided := 0
	for _, p := range proxies {
		if p.Frontend && strings.HasPrefix(p.Name, selectionPrefix) {
			frontends = append(frontends, p.Name)
			undecided += p.Sessions
		}
		if bind, ok := strings.CutPrefix(p.Name, destinationPrefix); ok && !p.Frontend {
			undecided -= p.Sessions
			waiting += max(p.Sessions-taken[listenerPrefix+bind], 0) // it may have some of an old worker's, too
		}
		if listener, ok := ListenerOfBackend(p.Name); ok && !p.Frontend && !terminates[listener] { // passed through
			undecided -= p.Sessions
		}
	}
	return frontends, waiting + max(undecided, 0)
}
