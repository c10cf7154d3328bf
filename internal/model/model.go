// Package model is a gateway after validation: every reference resolved, every
// name parsed, every default filled in. It is a value: resolve.Resolve
// makes it, nothing changes it, and it is all that the renderers read.
package model

import (
	"time"

	"qtls.dev/qtls/api/v1alpha1"
)

// Gateway is a validated gateway.
type Gateway struct {
	Namespace string
	Name      string
	// Ports in ascending order.
	Ports []Port
	// TLS parameters of every terminating listener.
	TLS TLS
	// Observe is what the policy would accept, in mode Observe; else nil.
	Observe *Acceptable
	// Tickets of session resumption; nil where no session is resumed.
	Tickets *Tickets
	// HSM that private keys lie in; nil where all are in Secrets.
	HSM *HSM
	// DrainTimeoutSeconds bounds the life of a process of an earlier
	// configuration, and of connections of a pod that ends.
	DrainTimeoutSeconds int
	// Times at which a certificate of the gateway's, of its chain's or of an authority
	// begins or ends to be valid: what is told of them changes then.
	Times []time.Time
}

// Port is a TCP port and the listeners that share it, in the order of their
// names.
type Port struct {
	Number    int32
	Listeners []Listener
}

// Listener is a validated listener.
type Listener struct {
	Name     string
	Protocol v1alpha1.ListenerProtocol
	// Hostnames it takes; empty takes what no other listener of the port does.
	Hostnames []Hostname
	// Certificates, strongest first. A TLSPassthrough listener has none.
	Certificates []Certificate
	Preference   v1alpha1.CertificatePreference
	// ClientAuthentication, or nil.
	ClientAuthentication *ClientAuthentication
	Backends             []Backend
}

// Hostname is a DNS name that ParseHostname accepted: lower case, letters,
// digits, hyphens and dots, with `*` only as the whole first label.
type Hostname string

// Certificate is a chain and key in a Secret, looked at and found sound.
type Certificate struct {
	// Secret that holds it; also names the file.
	Secret    string
	Algorithm v1alpha1.KeyAlgorithm
	// HSMPool that has the private key; empty where the Secret has it.
	HSMPool string
	// PostQuantum is the family of its key.
	PostQuantum bool
	// Provider says that its key, or a signature of its chain, is of an algorithm
	// of the OpenSSL provider's.
	Provider bool
	// HandshakeSchemes are the TLS code points one of which a client must have
	// in signature_algorithms: what the key can sign a handshake with (within
	// the policy).
	HandshakeSchemes []uint16
	// ChainSchemes are the TLS code points that a client must all have in
	// signature_algorithms_cert (or, when it sends none, in
	// signature_algorithms): what signs the chain that is sent. RFC 8446,
	// 4.2.3.
	ChainSchemes []uint16
	// SerialNumber, in lower-case hex, and end of the leaf: for the status.
	SerialNumber string
	NotAfter     int64 // Unix seconds
}

// ClientAuthentication is what a listener asks of clients.
type ClientAuthentication struct {
	Required bool
	// CAs in PEM form.
	CAs                string
	ForwardCertificate bool
}

// Backend is a Service port, or what stands in for one that does not exist.
type Backend struct {
	// Group names the endpoints: `<service>:<port>`.
	Group  string
	Weight int
	// TLS re-encrypts; nil is plain text.
	TLS *BackendTLS
}

// BackendTLS says how a backend is verified.
type BackendTLS struct {
	Hostname Hostname
	// CAs in PEM form.
	CAs string
}

// TLS is what listeners negotiate, in OpenSSL's names.
type TLS struct {
	// MinVersion and MaxVersion in HAProxy's names: TLSv1.2, TLSv1.3.
	MinVersion, MaxVersion string
	// Curves in OpenSSL's tuple syntax: each tuple is a preference, and within
	// a tuple the client's key share decides.
	Curves string
	// SignatureAlgorithms, colon separated, for HAProxy's `sigalgs`.
	SignatureAlgorithms string
	// CipherSuites are those of TLS 1.3, colon separated; Ciphers those of TLS
	// 1.2, empty when it is not offered.
	CipherSuites, Ciphers string
	// Provider says that some of these, or of the algorithms of a certificate,
	// are those of the OpenSSL provider (package algorithms).
	Provider bool
	// Vectorized says that the provider's ML-KEM and ML-DSA are to be used, where
	// OpenSSL has its own.
	Vectorized bool
}

// Tickets say how sessions are resumed.
type Tickets struct {
	// Ring is the ID of the ring of ticket keys: of another policy, it is another
	// one.
	Ring string
	// LifetimeSeconds of a ticket, and how long a key encrypts.
	LifetimeSeconds, RotationSeconds int
}

// HSM is a pool of tokens that hold the same private keys.
type HSM struct {
	Pool string
	// Timeout of a signature in one member.
	Timeout time.Duration
	// Spread asks members by turns, instead of the first that is up.
	Spread bool
	// Members in order of preference.
	Members []HSMMember
}

// HSMMember is a token: behind an hsmd, or of a library in the gateway's pods.
type HSMMember struct {
	Name string
	// InPod says that the pods have its library: they need no address, and no
	// Secret.
	InPod bool
	// Address of the daemon, host:port, and the name that its certificate is
	// checked for.
	Address, ServerName string
	// Secret with ca.crt, tls.crt and tls.key for the daemon's clients in the
	// gateway's pods.
	Secret string
	// Sessions are how many signatures a pod asks it for at a time.
	Sessions int32
}

// Acceptable is what a policy accepts.
type Acceptable struct {
	Versions, Groups, Suites []string
	Algorithms               []v1alpha1.KeyAlgorithm
}
