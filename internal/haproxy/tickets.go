package haproxy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/model"
)

// tickets is the bind line's part about session tickets. All binds of a
// listener share its keys, and no two listeners do: a client that one of them
// let in is nobody to another. HAProxy itself keeps a session from a bind that
// verifies clients in another way, but not from one that verifies none.
func (r *renderer) tickets(l listener) []string {
	t := r.revision.Tickets
	if t == nil {
		return []string{"no-tls-tickets"}
	}
	file := dataplane.TicketFile{Name: r.label(l.Name), Scope: ticketScope(l.Listener, r.gateway.Tickets.LifetimeSeconds)}
	if !slices.Contains(t.Files, file) {
		t.Files = append(t.Files, file)
	}
	return []string{"tls-ticket-keys", TicketFile(file.Name)}
}

// ticketScope is different where a session of one listener must not be resumed
// on another, also of another gateway that shares the ring: by the listener's
// name, by whom it asks its clients to be, and by how long it lets them come back,
// in seconds. A ticket says itself how long it is good for: one that was issued
// for longer is not to outlive a lifetime that is lowered. The listener's host
// names are not in it: a name that it has no more is refused by itself, and one
// that is added is no reason for a full handshake of everybody.
func ticketScope(l model.Listener, lifetime int) string {
	scope := struct {
		Name     string
		Client   *model.ClientAuthentication
		Lifetime int
	}{Name: l.Name, Lifetime: lifetime}
	if a := l.ClientAuthentication; a != nil {
		scope.Client = &model.ClientAuthentication{Required: a.Required, CAs: a.CAs}
	}
	b, err := json.Marshal(scope)
	if err != nil {
		panic(err) // strings always encode
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
