package embedded

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
)

// Where a server finds its files, and where it may write.
const (
	FilesDir = "/etc/valkey"
	DataDir  = "/data"
)

// rights of each role. A command that is not named here is refused, CONFIG,
// DEBUG and the scripts among them.
var rights = map[Role]string{
	Operator: "~" + Prefix + "* &" + Prefix + "* +ping +getrange +pttl +watch +unwatch +multi +exec +discard +set +publish +subscribe",
	Agent:    "%R~" + Prefix + "* &" + Prefix + "* +ping +getrange +pttl +subscribe",
	Probe:    "nopass +ping",
}

// users is the access control list of the servers.
func (c *Credentials) users() string {
	var b strings.Builder
	fmt.Fprintln(&b, "user default reset") // off, without rights
	for _, role := range []Role{Operator, Agent, Probe} {
		fmt.Fprintln(&b, c.User(role))
	}
	return b.String()
}

// User is a role's line in an access control list, with more rights. Servers see
// hashes alone; the passwords are random, so that nothing is found by guessing.
func (c *Credentials) User(role Role, more ...string) string {
	words := []string{"user", string(role), "reset", "on"}
	if password := c.passwords[role]; password != "" {
		words = append(words, fmt.Sprintf("#%x", sha256.Sum256([]byte(password))))
	}
	return strings.Join(append(append(words, rights[role]), more...), " ")
}

// Config of a server with its files in one folder and its data in another.
func Config(files, data string, port int) string {
	return fmt.Sprintf(`# TLS alone, and hybrid key exchange with whom knows it: the first of OpenSSL's groups.
port 0
tls-port %[3]d
tls-protocols TLSv1.3
tls-cert-file %[1]s/%[4]s
tls-key-file %[1]s/%[5]s
tls-ca-cert-file %[1]s/%[6]s
tls-auth-clients no
bind * -::*
protected-mode no
aclfile %[1]s/%[7]s

# Nothing outlives the process.
dir %[2]s
save ""
appendonly no

# A ring takes some hundred bytes. Rather say that there is no room than lose one.
databases 1
maxmemory 8mb
maxmemory-policy noeviction
# Some 70 KiB each, for TLS: together they fit into the pod's 64 MiB. An agent has two or three.
maxclients 500
tcp-keepalive 60
loglevel notice
`, files, data, port, KeyCertificate, KeyPrivateKey, KeyAuthority, KeyUsers)
}

// ServerCommand starts a server in its container.
func ServerCommand() []string {
	return []string{"/usr/bin/valkey-server", FilesDir + "/" + KeyConfig}
}

// ProbeCommand ends with an error unless the server there answers. The password
// of its user is any.
func ProbeCommand(files string, port int) []string {
	return []string{"/usr/bin/valkey-cli", "-e", "-p", strconv.Itoa(port), "--tls", "--cacert", files + "/" + KeyAuthority,
		"--user", string(Probe), "--pass", "any", "--no-auth-warning", "ping"}
}
