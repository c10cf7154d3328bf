package hsmpool

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
)

// ForGateways is what the pods of a gateway need to use a pool.
type ForGateways struct {
	// Timeout of a signature in one member.
	Timeout time.Duration
	// Spread asks members by turns, instead of the first that is up.
	Spread  bool
	Members []GatewayMember
}

// GatewayMember is a member as gateway pods reach it.
type GatewayMember struct {
	Name string
	// InPod says that the pod has the member's library, and its PIN. What follows
	// but Sessions is then empty.
	InPod bool
	// Address of its hsmd, host:port, and the name that its certificate is
	// checked for.
	Address, ServerName string
	// Secret in the pool's namespace with ca.crt, tls.crt and tls.key for its
	// clients in gateway pods.
	Secret string
	// Sessions are how many signatures a pod asks it for at a time.
	Sessions int32
}

// GatewayMembers says how the pods of gateways reach a pool's members. It is
// pure. The error is a *conditions.Problem.
func GatewayMembers(pool *v1alpha1.HSMPool) (ForGateways, error) {
	f := ForGateways{Timeout: Timeout(pool), Spread: pool.Spec.Order == v1alpha1.HSMSpread}
	if _, err := InPods(pool); err != nil {
		return ForGateways{}, err
	}
	for _, m := range pool.Spec.Members {
		if m.Module != nil {
			f.Members = append(f.Members, GatewayMember{Name: m.Name, InPod: true, Sessions: cmp.Or(m.Module.Sessions, v1alpha1.DefaultHSMSessions)})
			continue
		}
		d := daemonOf(pool, m)
		g := GatewayMember{Name: m.Name, Address: d.address, ServerName: d.serverName, Secret: GatewaysSecretName(pool.Name), Sessions: v1alpha1.DefaultRemoteHSMSessions}
		if m.Daemon != nil && m.Daemon.Sessions > 0 {
			g.Sessions = m.Daemon.Sessions // more would wait there
		}
		if m.Remote != nil {
			if m.Remote.GatewayTLSSecretRef == nil {
				return ForGateways{}, conditions.Stalled(v1alpha1.ReasonSecretNotFound,
					"HSMPool %q: spec.members[%s].remote.gatewayTLSSecretRef is not set; name a Secret with ca.crt, tls.crt and tls.key of a client that may find and sign", pool.Name, m.Name)
			}
			if err := checkRemote(pool, m); err != nil {
				return ForGateways{}, err
			}
			g.Secret, g.Sessions = m.Remote.GatewayTLSSecretRef.Name, cmp.Or(m.Remote.Sessions, g.Sessions)
		}
		f.Members = append(f.Members, g)
	}
	return f, nil
}

// checkRemote refuses what the PKCS #11 module of gateways would: that refuses
// all that it is told for one value.
func checkRemote(pool *v1alpha1.HSMPool, m v1alpha1.HSMMember) error {
	refuse := func(field, value, want string) error {
		return conditions.Stalled(v1alpha1.ReasonInvalid, "HSMPool %q: spec.members[%s].remote.%s: %.300q is not %s; correct it", pool.Name, m.Name, field, value, want)
	}
	address := string(m.Remote.Address)
	host, port, err := net.SplitHostPort(address)
	if err != nil || !isHost(host) || strings.Contains(host, ":") != strings.HasPrefix(address, "[") {
		return refuse("address", address, "host:port with a DNS name, an IPv4 address, or an IPv6 address in brackets")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return refuse("address", address, "host:port with a port from 1 to 65535")
	}
	if name := string(m.Remote.ServerName); name != "" && !isHost(name) {
		return refuse("serverName", name, "a DNS name or an IP address")
	}
	return nil
}

// isHost says whether a name is one of DNS, or an IP address. A name whose last
// label is a number is neither.
func isHost(name string) bool {
	if ip, err := netip.ParseAddr(name); err == nil {
		return ip.Zone() == ""
	}
	labels := strings.Split(name, ".")
	return strings.Trim(labels[len(labels)-1], "0123456789") != "" && len(name) <= validation.DNS1123SubdomainMaxLength &&
		!slices.ContainsFunc(labels, func(l string) bool { return len(validation.IsDNS1123Label(l)) > 0 })
}
