// Package haproxy renders a gateway's model into HAProxy's configuration. It
// is pure: what an operator publishes and what an agent writes are functions
// of their inputs, held to golden files and to `haproxy -c`.
package haproxy

// Where things lie in a gateway pod.
const (
	// RunDir is the memory-backed volume that HAProxy and the agent share.
	RunDir = "/run/qtls"
	// CurrentDir is a symbolic link to the folder of the configuration in use.
	// Every path within a configuration is relative to that folder.
	CurrentDir = RunDir + "/current"
	// ConfigFile and BackendsFile are the two parts of a configuration.
	ConfigFile   = "haproxy.cfg"
	BackendsFile = "backends.cfg"
	// MasterSocket takes `reload`. AdminSocket is the runtime API of the newest
	// worker, for people; the agent has one in each tree, so that no command
	// reaches a worker of another configuration.
	MasterSocket = RunDir + "/master.sock"
	AdminSocket  = RunDir + "/admin.sock"
	// LogSocket is the stream socket on which the agent hears of handshakes, a
	// line for each. Each worker makes a connection of its own.
	LogSocket = RunDir + "/log.sock"
	// LoanSocket is where HAProxy's container lends the agent its control group.
	LoanSocket = RunDir + "/loan.sock"
)

// Command starts HAProxy in a gateway pod: a master that stays in the
// foreground and a worker for each configuration.
func Command() []string {
	return []string{"/usr/sbin/haproxy", "-W", "-db", "-S", MasterSocket + ",mode,600",
		"-f", CurrentDir + "/" + ConfigFile, "-f", CurrentDir + "/" + BackendsFile}
}

// CertificateFile is where a certificate lies, and what the runtime API calls
// it: `default-path config` makes HAProxy keep names as the configuration has
// them.
func CertificateFile(name string) string { return "certs/" + name + ".pem" }

// PKCS11File configures libqtls_pkcs11.so: the HSMs, and the keys in them. Its
// path is in the environment of HAProxy.
const (
	PKCS11File        = "pkcs11.conf"
	PKCS11Environment = "QTLS_PKCS11_CONFIG"
)

// PINFile is where, in HAProxy's container alone, the PIN of a member of an
// HSMPool lies whose library is in the pod.
func PINFile(member string) string { return "/run/secrets/hsm/" + member + "/pin" }

// TicketFile is where the keys of session tickets lie, and what the runtime API
// calls them.
func TicketFile(name string) string { return "tickets/" + name + ".keys" }

// ThreadsEnvironment is the variable of HAProxy's container that has how many
// threads HAProxy starts at most, MostThreads without it. It starts one for each
// CPU that it sees, which are the node's: threads in excess of a quota use it up
// at once, and then all wait for the next period.
const (
	ThreadsEnvironment = "QTLS_THREADS"
	MostThreads        = 1024
)

// AddressEnvironment is the variable of HAProxy's container that has the address
// of its ports where that is not ::, which takes IPv4 and IPv6.
const AddressEnvironment = "QTLS_ADDRESS"
