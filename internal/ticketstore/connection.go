package ticketstore

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Mode is how the servers of a store belong together.
type Mode string

// The modes.
const (
	// Members are servers that know nothing of each other: each holds all.
	Members Mode = "Members"
	// Sentinel is one primary with replicas; sentinels, whose addresses these
	// are, say which it is.
	Sentinel Mode = "Sentinel"
	// Cluster is a Redis Cluster; some of its nodes' addresses are enough.
	Cluster Mode = "Cluster"
)

// Connection says how a store is reached. As JSON it travels in Secrets.
type Connection struct {
	Mode Mode `json:"mode"`
	// Addresses are host:port.
	Addresses []string `json:"addresses"`
	// Master is the sentinels' name of the primary.
	Master string `json:"master,omitempty"`
	// CA holds the authorities that servers' certificates may be of, in PEM.
	// Empty: those of the system.
	CA []byte `json:"ca,omitempty"`
	// ServerName is the name in every server's certificate. Empty: the host of
	// each address.
	ServerName string `json:"serverName,omitempty"`
	// RequireHybrid offers X25519MLKEM768 and nothing else.
	RequireHybrid bool `json:"requireHybrid,omitempty"`

	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
	// SentinelUsername and SentinelPassword are for the sentinels themselves.
	SentinelUsername string `json:"sentinelUsername,omitempty"`
	SentinelPassword string `json:"sentinelPassword,omitempty"`

	// Prefix of every key and channel.
	Prefix string `json:"prefix"`
}

// maxMembers is how many addresses a store may have. Each member is asked in
// each read.
const maxMembers = 16

// Validate says which field is wrong, and what it takes. It shows no password.
func (c Connection) Validate() error {
	switch c.Mode {
	case Members, Sentinel, Cluster:
	default:
		return fmt.Errorf("mode is %q, want %s, %s or %s", c.Mode, Members, Sentinel, Cluster)
	}
	if len(c.Addresses) == 0 || len(c.Addresses) > maxMembers {
		return fmt.Errorf("addresses has %d entries, want 1 to %d of the form host:port", len(c.Addresses), maxMembers)
	}
	for i, a := range c.Addresses {
		if err := validateAddress(a); err != nil {
			return fmt.Errorf("addresses[%d] %w", i, err)
		}
	}
	switch {
	case c.Mode == Sentinel && c.Master == "":
		return fmt.Errorf("master is empty: mode %s needs the name by which the sentinels know the primary", Sentinel)
	case c.Mode != Sentinel && (c.Master != "" || c.SentinelUsername != "" || c.SentinelPassword != ""):
		return fmt.Errorf("master and the sentinels' credentials are for mode %s, not %s", Sentinel, c.Mode)
	case c.Username != "" && c.Password == "":
		return fmt.Errorf("password is empty, but username is %q", c.Username)
	case c.SentinelUsername != "" && c.SentinelPassword == "":
		return fmt.Errorf("sentinelPassword is empty, but sentinelUsername is %q", c.SentinelUsername)
	case len(c.CA) > 0 && !x509.NewCertPool().AppendCertsFromPEM(c.CA):
		return fmt.Errorf("ca holds no certificate in PEM")
	case !ordinary(c.Prefix, 128, "-._:/"):
		return fmt.Errorf("prefix is %q, want 1 to 128 letters, digits and -._:/", c.Prefix)
	}
	return nil
}

// validateAddress does not repeat an address that may have credentials in it.
func validateAddress(a string) error {
	if strings.ContainsAny(a, "@/") {
		return fmt.Errorf("is a URL, or has credentials in it: want host:port alone")
	}
	host, port, err := net.SplitHostPort(a)
	if err != nil || host == "" {
		return fmt.Errorf("is %q, want host:port", a)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("is %q: its port is not a number from 1 to 65535", a)
	}
	return nil
}

// ordinary says whether s is of letters, digits and the others.
func ordinary(s string, most int, others string) bool {
	for _, r := range s {
		if (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && !strings.ContainsRune(others, r) {
			return false
		}
	}
	return s != "" && len(s) <= most
}

// Equal says whether a store that was opened with o is one that c describes.
func (c Connection) Equal(o Connection) bool {
	if len(c.Addresses) != len(o.Addresses) || !bytes.Equal(c.CA, o.CA) {
		return false
	}
	for i := range c.Addresses {
		if c.Addresses[i] != o.Addresses[i] {
			return false
		}
	}
	return c.Mode == o.Mode && c.Master == o.Master && c.ServerName == o.ServerName && c.RequireHybrid == o.RequireHybrid &&
		c.Username == o.Username && c.Password == o.Password &&
		c.SentinelUsername == o.SentinelUsername && c.SentinelPassword == o.SentinelPassword && c.Prefix == o.Prefix
}

// tlsConfig is for a server at addr.
func (c Connection) tlsConfig(addr string) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: c.ServerName}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(addr)
	}
	if len(c.CA) > 0 {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(c.CA)
	}
	if c.RequireHybrid {
		config.CurvePreferences = []tls.CurveID{tls.X25519MLKEM768}
	}
	return config
}
