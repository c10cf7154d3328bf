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
	binds, terminates := map[string]bool{}, map[string]bool{}
	for _, p := range proxies {
		if bind, ok := strings.CutPrefix(p.Name, destinationPrefix); ok && !p.Frontend {
			binds[listenerPrefix+bind] = true
		}
		if listener, ok := ListenerOfFrontend(p.Name); ok && p.Frontend {
			terminates[listener] = true
		}
	}
	for _, p := range proxies {
		if p.Frontend && strings.HasPrefix(p.Name, selectionPrefix) {
			frontends = append(frontends, p.Name)
			waiting += p.Sessions
		}
		if p.Frontend && binds[p.Name] {
			waiting -= p.Sessions
		}
		if listener, ok := ListenerOfBackend(p.Name); ok && !p.Frontend && !terminates[listener] { // passed through
			waiting -= p.Sessions
		}
	}
	return frontends, max(waiting, 0)
}
