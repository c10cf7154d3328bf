// Package redisoperator is the ticket store that the Redis Operator
// (OT-CONTAINER-KIT/redis-operator) runs for a gateway: what its servers are
// given, and how the operator and the agents connect to them. The Redis Operator
// makes neither passwords nor certificates: it takes Secrets.
package redisoperator

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
)

// GroupVersion of the Redis Operator's kinds.
var GroupVersion = schema.GroupVersion{Group: "redis.redis.opstreelabs.in", Version: "v1beta2"}

// Keys of the Secret that the servers are given. The Redis Operator reads the
// first three by these names, whatever the object says.
const (
	KeyCertificate = corev1.TLSCertKey
	KeyPrivateKey  = corev1.TLSPrivateKeyKey
	KeyAuthority   = corev1.ServiceAccountRootCAKey
	// KeyUsers is the name under which the list of users is mounted.
	KeyUsers    = "user.acl"
	KeyPassword = "password"
)

// KeyConfig is the key of the ConfigMap whose content the servers include.
const KeyConfig = "redis-additional.conf"

// Config is what servers are told besides what the Redis Operator tells them.
const Config = `# Nothing outlives the process: the operator of the gateway writes it again.
save ""
appendonly no
tls-protocols "TLSv1.3"

# A ring takes some hundred bytes. Rather say that there is no room than lose one.
maxmemory 32mb
maxmemory-policy noeviction
maxclients 500
`

// defaultUser is as whom the servers speak to each other, and the Redis Operator
// and its probes to them. Which commands that takes differs from release to
// release.
const defaultUser = "default"

// passwordOfDefault is the key under which the operator keeps that user's
// password. Those of the others, the certificate and the authority are where an
// embedded store has them.
const passwordOfDefault = defaultUser + "-password"

// kept is what the operator's own Secret has of an embedded store's.
var kept = []string{KeyAuthority, KeyCertificate, KeyPrivateKey, "ca.key", string(embedded.Operator) + "-password", string(embedded.Agent) + "-password"}

// Credentials of one gateway's store.
type Credentials struct {
	*embedded.Credentials
	password   string
	serverName string
}

// Ensure reads the data of the operator's own Secret and sees to it that it is
// as it has to be for servers of these names, as embedded.Ensure does. The first
// name is that by which clients know every server: Sentinels and clusters give
// out addresses that no certificate has.
func Ensure(data map[string][]byte, names []string, now time.Time) (c *Credentials, reason error, err error) {
	c = &Credentials{serverName: names[0]}
	if c.Credentials, reason, err = embedded.Ensure(data, names, now); err != nil {
		return nil, reason, err
	}
	c.password = string(data[passwordOfDefault])
	if secret, err := base64.RawURLEncoding.DecodeString(c.password); err != nil || len(secret) < 32 {
		secret = make([]byte, 32)
		if _, err := rand.Read(secret); err != nil {
			return nil, reason, err
		}
		c.password = base64.RawURLEncoding.EncodeToString(secret)
		if reason == nil {
			reason = fmt.Errorf("%s is not one that the operator has made", passwordOfDefault)
		}
	}
	return c, reason, nil
}

// Data of the operator's own Secret.
func (c *Credentials) Data() (map[string][]byte, error) {
	all, err := c.Credentials.Data()
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{passwordOfDefault: []byte(c.password)}
	for _, key := range kept {
		data[key] = all[key]
	}
	return data, nil
}

// ServerData is of the Secret that the servers are given.
func (c *Credentials) ServerData() (map[string][]byte, error) {
	all, err := c.Credentials.Data()
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{KeyUsers: []byte(c.users()), KeyPassword: []byte(c.password)}
	for _, key := range []string{KeyAuthority, KeyCertificate, KeyPrivateKey} {
		data[key] = all[key]
	}
	return data, nil
}

// users is the access control list. A default user that is not in it would have
// no password, whatever the configuration says.
func (c *Credentials) users() string {
	var b strings.Builder
	fmt.Fprintf(&b, "user %s reset on #%x ~* &* +@all\n", defaultUser, sha256.Sum256([]byte(c.password)))
	for _, role := range []embedded.Role{embedded.Operator, embedded.Agent} {
		fmt.Fprintln(&b, c.User(role, "+cluster|slots")) // where a ring is, in a cluster
	}
	return b.String()
}

// Connection of a role to the servers. It does without hybrid key exchange where
// the image's OpenSSL has none: what it carries is sealed.
func (c *Credentials) Connection(role embedded.Role, at Location) ticketstore.Connection {
	connection := c.Credentials.Connection(role, nil)
	connection.Mode, connection.Addresses, connection.Master = at.Mode, []string{at.Address}, at.Master
	connection.ServerName, connection.RequireHybrid = c.serverName, false
	return connection
}

// Location is where the Redis Operator says that the servers are.
type Location struct {
	Mode ticketstore.Mode
	// Address is host:port.
	Address string
	// Master is what the Sentinels call the primary, where the address is theirs.
	Master string
}
