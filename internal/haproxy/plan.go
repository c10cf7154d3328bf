package haproxy

import (
	"fmt"
	"slices"
	"strings"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/model"
)

// listener is a model.Listener and the binds that it needs.
type listener struct {
	model.Listener
	// binds in the order in which they are offered to a client. A
	// TLSPassthrough listener has none.
	binds []bind
	// fallback is the bind for clients that none was chosen for: those that can
	// verify none of the chains, or of whom nothing is known.
	fallback bind
}

// bind serves certificates between which HAProxy itself can choose: one of a
// post-quantum algorithm, or classical ones.
type bind struct {
	// name of the frontend: listener.<listener>.<algorithm, or classical>.
	name         string
	certificates []model.Certificate
	postQuantum  bool
}

// short is the name without what all frontends of listeners begin with.
func (b bind) short() string { return strings.TrimPrefix(b.name, listenerPrefix) }

// abstract socket on which the stage that chooses hands connections to it.
func (b bind) abstractSocket() string { return "abns@qtls." + b.name }

// plan gives certificates their binds. HAProxy prefers ECDSA, then RSA, then
// what it does not know, so each post-quantum certificate gets a bind of its
// own. Among classical ones it chooses between one ECDSA and one RSA
// certificate by what the client offers, but not between two curves.
func plan(l model.Listener, t model.TLS) (listener, error) {
	out := listener{Listener: l}
	if l.Protocol == v1alpha1.ProtocolTLSPassthrough {
		return out, nil
	}
	var postQuantum, classical []bind
	for _, c := range l.Certificates {
		switch {
		case c.PostQuantum && t.MaxVersion == "TLSv1.2":
			// Post-quantum signatures are of TLS 1.3 alone.
		case c.PostQuantum:
			postQuantum = append(postQuantum, bind{listenerPrefix + l.Name + "." + strings.ToLower(string(c.Algorithm)), []model.Certificate{c}, true})
		default:
			last := len(classical) - 1
			if last < 0 || slices.ContainsFunc(classical[last].certificates, sameKind(c)) {
				name := listenerPrefix + l.Name + ".classical"
				if last >= 0 {
					name = fmt.Sprintf("%s-%d", name, len(classical)+1)
				}
				classical = append(classical, bind{name: name})
				last++
			}
			classical[last].certificates = append(classical[last].certificates, c)
		}
	}
	if l.Preference == v1alpha1.PreferClassical {
		out.binds = append(classical, postQuantum...)
	} else {
		out.binds = append(postQuantum, classical...)
	}
	switch {
	case len(classical) > 0:
		out.fallback = classical[len(classical)-1]
	case len(postQuantum) > 0:
		out.fallback = postQuantum[len(postQuantum)-1]
	default:
		return out, fmt.Errorf("listener %q has no certificate that %s to %s can serve", l.Name, t.MinVersion, t.MaxVersion)
	}
	return out, nil
}

func sameKind(c model.Certificate) func(model.Certificate) bool {
	kind := func(c model.Certificate) string { k, _, _ := strings.Cut(string(c.Algorithm), "-"); return k }
	return func(other model.Certificate) bool { return kind(c) == kind(other) }
}

// direct says whether a port needs no choice among binds: one listener that
// terminates TLS with one bind.
func direct(listeners []listener) bool { return len(listeners) == 1 && len(listeners[0].binds) == 1 }

// handsOn says whether a port hands connections on inside the pod: it chooses, and
// does not pass all of them through.
func handsOn(listeners []listener) bool {
	return !direct(listeners) && slices.ContainsFunc(listeners, func(l listener) bool { return !passesThrough(l) })
}

// readsHellos says whether a port chooses by what a ClientHello says; it need
// not where one listener passes everything through.
func readsHellos(listeners []listener) bool {
	if direct(listeners) {
		return false
	}
	return len(listeners) > 1 || len(listeners[0].binds) > 1 || len(listeners[0].Hostnames) > 0
}
