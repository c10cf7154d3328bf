// Package embedded is the ticket store that the operator runs for a gateway:
// one or two servers that know nothing of each other and write nothing to any
// disk. It makes what they are configured with, and how the operator and the
// agents connect to them.
package embedded

import (
	"net"
	"strconv"

	"qtls.dev/qtls/internal/ticketstore"
)

// Port on which servers listen, with TLS.
const Port = 6379

// Prefix of every key and channel: the store holds nothing but rings.
const Prefix = "qtls:"

// Role is who connects. It is also the user's name at the server.
type Role string

// The roles.
const (
	// Operator reads and writes.
	Operator Role = "operator"
	// Agent reads.
	Agent Role = "agent"
	// Probe finds out whether the server answers, and needs no password.
	Probe Role = "probe"
)

// Connection of a role to the servers on these hosts.
func (c *Credentials) Connection(role Role, hosts []string) ticketstore.Connection {
	connection := ticketstore.Connection{
		Mode: ticketstore.Members, CA: c.authority.ChainPEM(), RequireHybrid: true,
		Username: string(role), Password: c.passwords[role], Prefix: Prefix,
	}
	for _, host := range hosts {
		connection.Addresses = append(connection.Addresses, net.JoinHostPort(host, strconv.Itoa(Port)))
	}
	return connection
}
