package haproxy

import (
	"fmt"
	"slices"
	"strings"

	"qtls.dev/qtls/api/v1alpha1"
)

// Which listener of a port takes a name is said in one place, for the SNI of a
// ClientHello and for the authority of a request alike: a map from names to
// listeners, with wildcards under their whole name (*.example.com). An exact
// name beats a wildcard, which stands for one label; a listener without names
// takes the rest.

// namesFile is the port's map.
func namesFile(port int32) string { return fmt.Sprintf("lists/port.%d.map", port) }

// names writes the port's map. A port whose one listener takes every name has
// none.
func (r *renderer) names(port int32, listeners []listener) {
	var entries []string
	for _, l := range listeners {
		for _, h := range l.Hostnames {
			entries = append(entries, r.hostname(string(h))+" "+r.label(l.Name)+"\n")
		}
	}
	slices.Sort(entries)
	if len(entries) > 0 {
		r.revision.Files[namesFile(port)] = strings.Join(entries, "")
	}
}

func (r *renderer) hostname(s string) string {
	below, _ := strings.CutPrefix(s, "*.")
	r.label(below)
	return s
}

// named says whether any listener has names.
func named(listeners []listener) bool {
	return slices.ContainsFunc(listeners, func(l listener) bool { return len(l.Hostnames) > 0 })
}

// catchAll is the index of the listener without names, or -1.
func catchAll(listeners []listener) int {
	return slices.IndexFunc(listeners, func(l listener) bool { return len(l.Hostnames) == 0 })
}

// lookUp writes the rules that set a variable to the listener that takes the
// name in another variable; it stays unset where none does. action is
// tcp-request content or http-request.
func (r *renderer) lookUp(action, name, found string, port int32, listeners []listener) {
	file := namesFile(port)
	r.line("    %s set-var(%s) var(%s),map_str(%s)", action, found, name, file)
	r.line("    %s set-var(%s) var(%s),regsub(^[a-z0-9_-]+,*),map_str(%s) if !{ var(%s) -m found }", action, found, name, file, found)
	if i := catchAll(listeners); i >= 0 {
		r.line("    %s set-var(%s) str(%s) if !{ var(%s) -m found }", action, found, r.label(listeners[i].Name), found)
	}
}

func isHTTP(l listener) bool { return l.Protocol == v1alpha1.ProtocolHTTPS }

func passesThrough(l listener) bool { return l.Protocol == v1alpha1.ProtocolTLSPassthrough }
