package haproxy

import (
	"fmt"
	"slices"
	"strings"
)

// selection is the stage in front of a port that needs a choice: it reads the
// ClientHello and hands the connection, with the client's address, to the bind
// of the listener that the server name chooses, with the best chain that the
// client can verify. Policy is not enforced here.
func (r *renderer) selection(port int32, listeners []listener) {
	r.line("frontend %s%d from tcp", selectionPrefix, port)
	r.line("    bind %s", everyAddress(port))
	if handsOn(listeners) {
		r.line("    # The others wait in the kernel: what waits here keeps a connection from")
		r.line("    # the bind that it waits for.")
		r.line("    maxconn \"${%s-%d}\"", selectionEnvironment(r.selecting), MostDescriptors/2)
		r.line("    backlog 4096")
	}
	if readsHellos(listeners) {
		r.readHello(listeners)
		r.chooseListener(port, listeners)
		for _, l := range listeners {
			r.chooseBind(l, len(listeners) > 1)
		}
	}
	if destination := r.unknown(listeners); destination != "" {
		r.line("    default_backend %s", destination)
	}
	r.line("")
	for _, l := range listeners {
		for _, b := range l.binds {
			r.line("backend %s from tcp", r.destination(b))
			r.line("    server bind %s send-proxy-v2", b.abstractSocket())
			r.line("")
		}
	}
}

func (r *renderer) destination(b bind) string { return destinationPrefix + r.label(b.short()) }

// readHello waits for the ClientHello, 3 seconds at most, and leaves what it
// says in variables. HAProxy reads the server name itself, so a client that
// has none of the schemes between which there is a choice costs no Lua. It
// does not read signature_algorithms_cert, nor hellos that come in several
// records (of which it then sees no signature_algorithms).
func (r *renderer) readHello(listeners []listener) {
	r.line("    tcp-request inspect-delay 3s")
	r.line("    acl hello req.ssl_hello_type 1")
	r.line("    acl in_one_record req.ssl_sigalgs -m found")
	choice := ""
	if list := schemesOfChoice(listeners); len(list) > 0 {
		r.line("    acl has_choice req.ssl_sigalgs,be2hex(:,2) -m sub %s", codes(list))
		choice = " || has_choice"
	}
	r.line("    tcp-request content lua.read_client_hello if !hello || !in_one_record%s", choice)
	r.line("    tcp-request content set-var(txn.name) req.ssl_sni,lower if !{ var(txn.name) -m found }")
}

// schemesOfChoice are the code points without which a client gets the fallback
// of whatever listener it asks for.
func schemesOfChoice(listeners []listener) []uint16 {
	var list []uint16
	for _, l := range listeners {
		for _, b := range l.binds {
			if b.name == l.fallback.name {
				continue
			}
			for _, c := range b.certificates {
				list = append(list, c.HandshakeSchemes...)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func (r *renderer) chooseListener(port int32, listeners []listener) {
	if len(listeners) == 1 && !passesThrough(listeners[0]) {
		return // its binds answer another name with unrecognized_name
	}
	r.names(port, listeners)
	r.lookUp("tcp-request content", "txn.name", "txn.listener", port, listeners)
	if catchAll(listeners) < 0 { // what could be read, and is for nobody
		r.line("    acl known var(txn.listener) -m found")
		r.line("    tcp-request content use-service lua.unrecognized_name if !known { var(txn.name) -m found } || !known hello in_one_record")
	}
}

// chooseBind writes the rules that pick a bind of a listener; the last takes
// who is left.
func (r *renderer) chooseBind(l listener, among bool) {
	mine := ""
	if among {
		mine = fmt.Sprintf(" { var(txn.listener) -m str %s }", r.label(l.Name))
	}
	use := func(destination, conditions string) {
		if conditions != "" {
			r.line("    use_backend %s if%s", destination, conditions)
		}
	}
	if passesThrough(l) {
		use(backendName(l), mine)
		if !among {
			r.line("    use_backend %s if { var(txn.listener) -m found }", backendName(l))
		}
		return
	}
	last := l.binds[len(l.binds)-1].name
	for _, b := range l.binds {
		if b.name == l.fallback.name && b.name == last {
			continue // it takes all who are left anyway
		}
		for _, c := range b.certificates {
			conditions := mine
			if b.postQuantum { // signatures of TLS 1.3 alone, whatever a hello of TLS 1.2 lists
				conditions += " { var(txn.tls13) -m bool }"
			}
			conditions += " { var(txn.schemes),be2hex(:,2) -m sub " + codes(c.HandshakeSchemes) + " }"
			for _, code := range c.ChainSchemes {
				conditions += " { var(txn.cert_schemes),be2hex(:,2) -m sub " + codes([]uint16{code}) + " }"
			}
			use(r.destination(b), conditions)
		}
	}
	use(r.destination(l.fallback), mine)
}

// unknown is where a connection goes whose ClientHello could not be read, or
// not in time: to the fallback of the listener that takes every name, or else
// of the first that terminates TLS, whose bind answers other names with
// unrecognized_name. It is empty where there is neither.
func (r *renderer) unknown(listeners []listener) string {
	i := catchAll(listeners)
	if i < 0 {
		i = slices.IndexFunc(listeners, func(l listener) bool { return !passesThrough(l) })
	}
	switch {
	case i < 0:
		return ""
	case passesThrough(listeners[i]):
		return backendName(listeners[i])
	}
	return r.destination(listeners[i].fallback)
}

// codes in the form that be2hex(:,2) gives lists. A pattern of four digits
// matches one whole code point there, for colons stand between them.
func codes(list []uint16) string {
	var words []string
	for _, c := range list {
		words = append(words, fmt.Sprintf("%04X", c))
	}
	return strings.Join(words, " ")
}
