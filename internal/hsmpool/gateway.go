package hsmpool

import (
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
)

// ForGateways is what the pods of a gateway need to use a pool.
type ForGateways struct {
	// Timeout of a signature in one member.
	Timeout time.Duration
	Members []GatewayMember
}

// GatewayMember is a member as gateway pods reach it.
type GatewayMember struct {
	Name string
	// Address of its hsmd, host:port, and the name that its certificate is
	// checked for.
	Address, ServerName string
	// Secret in the pool's namespace with ca.crt, tls.crt and tls.key for its
	// clients in gateway pods.
	Secret string
}

// GatewayMembers says how the pods of gateways reach a pool's members. It is
// pure. The error is a *conditions.Problem.
func GatewayMembers(pool *v1alpha1.HSMPool) (ForGateways, error) {
	f := ForGateways{Timeout: Timeout(pool)}
	for _, m := range pool.Spec.Members {
		d := daemonOf(pool, m)
		g := GatewayMember{Name: m.Name, Address: d.address, ServerName: d.serverName, Secret: GatewaysSecretName(pool.Name)}
		if m.Remote != nil {
			if m.Remote.GatewayTLSSecretRef == nil {
				return ForGateways{}, conditions.Stalled(v1alpha1.ReasonSecretNotFound,
					"HSMPool %q: spec.members[%s].remote.gatewayTLSSecretRef is not set; name a Secret with ca.crt, tls.crt and tls.key of a client that may find and sign", pool.Name, m.Name)
			}
			g.Secret = m.Remote.GatewayTLSSecretRef.Name
		}
		f.Members = append(f.Members, g)
	}
	return f, nil
}
