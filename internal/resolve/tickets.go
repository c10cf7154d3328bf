package resolve

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/model"
)

// tickets says how sessions are resumed; nil where none is.
func tickets(g *v1alpha1.QTLSGateway, m model.Gateway) *model.Tickets {
	if !Resumes(g) {
		return nil
	}
	lifetime, rotation := TicketTimes(g)
	return &model.Tickets{Ring: ringID(g, m.TLS), LifetimeSeconds: int(lifetime.Seconds()), RotationSeconds: int(rotation.Seconds())}
}

// TicketTimes are the lifetime of a gateway's tickets, and how long a key
// encrypts them, which is never less.
func TicketTimes(g *v1alpha1.QTLSGateway) (lifetime, rotation time.Duration) {
	lifetime = v1alpha1.DefaultTicketLifetime
	if d := g.Spec.SessionResumption.TicketLifetime; d != nil {
		lifetime = d.Duration
	}
	rotation = lifetime
	if d := g.Spec.SessionResumption.RotationPeriod; d != nil {
		rotation = max(rotation, d.Duration)
	}
	return lifetime, rotation
}

// TicketStoreType is Embedded where the spec names none.
func TicketStoreType(g *v1alpha1.QTLSGateway) v1alpha1.TicketStoreType {
	return cmp.Or(g.Spec.SessionResumption.Store.Type, v1alpha1.TicketStoreEmbedded)
}

// Resumes says whether there are sessions to resume.
func Resumes(g *v1alpha1.QTLSGateway) bool {
	return g.Spec.SessionResumption.Mode != v1alpha1.SessionResumptionDisabled &&
		slices.ContainsFunc(g.Spec.Listeners, func(l v1alpha1.Listener) bool { return l.Protocol != v1alpha1.ProtocolTLSPassthrough })
}

// RingName names a gateway's ring among those of its namespace. The first part
// keeps a gateway's own ring apart from a shared one of that name.
func RingName(g *v1alpha1.QTLSGateway) string {
	if name := g.Spec.SessionResumption.Ring; name != "" {
		return "shared/" + name
	}
	return "own/" + g.Name
}

// ringID belongs to a namespace, a name and all that a policy decides: a session
// that one policy allowed is not resumed under another.
func ringID(g *v1alpha1.QTLSGateway, t model.TLS) string {
	t.Provider, t.Vectorized = false, false // who computes does not matter
	return digest("ring", g.Namespace, RingName(g), t)
}

// digest is 128 bits in hex, of values that encode as JSON.
func digest(values ...any) string {
	b, err := json.Marshal(values)
	if err != nil {
		panic(fmt.Sprintf("resolve: %v does not encode: %v", values, err)) // strings and numbers do
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
