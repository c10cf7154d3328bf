// Package dataplane is what the operator and the agents say to each other: the
// one object per gateway that an agent reads, and the status that it answers
// with. It holds types and their encoding only.
//
// The operator publishes a ConfigMap for each gateway (see ObjectName). Its
// keys are the assignment (which revision to run), the revisions named there,
// and the endpoints of the backends. A revision is immutable and named by a
// hash of its content; endpoints change without one. Certificates are not in
// it: the agent reads the Secrets that the revision names.
package dataplane

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/tickets"
	"qtls.dev/qtls/internal/ticketstore"
)

const (
	// KeyAssignment, KeyEndpoints and KeyRevisionPrefix are the keys of the
	// gateway's ConfigMap. A revision lies under KeyRevisionPrefix + its name
	// + ".json".
	KeyAssignment     = "assignment.json"
	KeyEndpoints      = "endpoints.json"
	KeyRevisionPrefix = "revision-"
)

// ObjectName is the name of the ConfigMap that carries a gateway's data plane.
func ObjectName(gateway string) string { return gateway + "-dataplane" }

// RevisionKey is the ConfigMap key of a revision.
func RevisionKey(name string) string { return KeyRevisionPrefix + name + ".json" }

// Revision is a configuration: immutable, named by Name().
type Revision struct {
	// Config is haproxy.cfg: global, defaults, frontends and the internal
	// backends between them. The backends that reach Services are not in it:
	// the agent renders them, with their current endpoints, into backends.cfg.
	Config string `json:"config"`
	// Files that Config names, by path relative to its folder: CA bundles,
	// certificate lists, the ClientHello reader.
	Files map[string]string `json:"files,omitempty"`
	// Certificates that Config names as certs/<name>.pem.
	Certificates []Certificate `json:"certificates,omitempty"`
	// Backends that Config names.
	Backends []Backend `json:"backends,omitempty"`
	// Observe is set in policy mode Observe: what Require would accept.
	Observe *Acceptable `json:"observe,omitempty"`
	// Tickets is nil where no session is resumed.
	Tickets *Tickets `json:"tickets,omitempty"`
	// HSM is nil where every private key is in a Secret.
	HSM *HSM `json:"hsm,omitempty"`
}

// HSM is a pool of tokens, any of which can sign with the private keys that
// are not in Secrets. The keys are those that the certificates' Secrets refer
// to.
type HSM struct {
	// Pool is the name of the HSMPool.
	Pool string `json:"pool"`
	// TimeoutMilliseconds of a signature in one member.
	TimeoutMilliseconds int64 `json:"timeoutMilliseconds"`
	// Spread asks members by turns, instead of the first that is up.
	Spread bool `json:"spread,omitempty"`
	// Members in order of preference.
	Members []HSMMember `json:"members"`
}

// HSMMember is a token: behind an hsmd, or of a library in the pod.
type HSMMember struct {
	Name string `json:"name"`
	// InPod says that the pod has its library (Libraries), and so that it has no
	// address and no Secret.
	InPod bool `json:"inPod,omitempty"`
	// Address is host:port, and ServerName what the daemon's certificate is
	// checked for.
	Address    string `json:"address"`
	ServerName string `json:"serverName"`
	// Secret, in the gateway's namespace, with ca.crt, tls.crt and tls.key.
	Secret string `json:"secret"`
	// Sessions are how many signatures HAProxy asks it for at a time, 1 to
	// v1alpha1.MostHSMSessions; each is a connection.
	Sessions int32 `json:"sessions"`
}

// LibrariesEnvironment is the variable of the agent that has the pod's
// Libraries. They are the pod's, and not a revision's: another library is another
// pod, and one that runs goes on with what it has.
const LibrariesEnvironment = "QTLS_HSM_LIBRARIES"

// Libraries of vendors in a pod, by the member of the HSMPool whose token they
// reach.
type Libraries map[string]Library

// Library is a vendor's PKCS #11 library, and a token of it.
type Library struct {
	// Module is its path in HAProxy's container.
	Module string `json:"module"`
	// Token is the token's label; Serial, where that is empty, its serial number.
	Token  string `json:"token,omitempty"`
	Serial string `json:"serial,omitempty"`
}

// ParseLibraries reads LibrariesEnvironment; "" are none.
func ParseLibraries(text string) (Libraries, error) {
	if text == "" {
		return nil, nil
	}
	var all Libraries
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("%s: %w", LibrariesEnvironment, err)
	}
	for member, l := range all {
		unprintable := func(r rune) bool { return r < ' ' || r > '~' }
		// In pkcs11.conf a # at the beginning or after a blank begins a comment.
		comment := func(value string) bool { return strings.Contains(" "+value, " #") }
		if !strings.HasPrefix(l.Module, "/") || (l.Token == "") == (l.Serial == "") || strings.ContainsFunc(member+l.Module+l.Token+l.Serial, unprintable) ||
			comment(l.Module) || comment(l.Token) || comment(l.Serial) {
			return nil, fmt.Errorf("%s: member %q has the library %+v: want an absolute path, and a token's label or serial number, of printable characters, without # at the beginning or after a blank", LibrariesEnvironment, member, l)
		}
	}
	return all, nil
}

// Tickets says which keys session tickets are encrypted with.
type Tickets struct {
	// Ring of keys (package tickets), by its ID.
	Ring string `json:"ring"`
	// RotationSeconds is how long a key encrypts.
	RotationSeconds int `json:"rotationSeconds"`
	// Files that Config names as tickets/<name>.keys. The agent writes them,
	// with keys derived for the scope.
	Files []TicketFile `json:"files"`
}

// TicketFile is a file of ticket keys.
type TicketFile struct {
	// Name of the file, without folder and .keys.
	Name string `json:"name"`
	// Scope that its keys are derived for.
	Scope string `json:"scope"`
}

// Certificate is one chain and key that HAProxy serves.
type Certificate struct {
	// Name is the file's name without folder and .pem.
	Name string `json:"name"`
	// Secret of type kubernetes.io/tls, in the gateway's namespace.
	Secret string `json:"secret"`
	// Algorithm of the key, as in the API (ML-DSA-65).
	Algorithm string `json:"algorithm"`
	// HSMPool that has the private key; empty where the Secret has it.
	HSMPool string `json:"hsmPool,omitempty"`
}

// Backend is a set of servers that share their settings.
type Backend struct {
	// Name of the HAProxy backend.
	Name string `json:"name"`
	// HTTP or (false) the byte stream.
	HTTP bool `json:"http"`
	// Groups of servers, one for each backend reference of the listener.
	Groups []ServerGroup `json:"groups"`
}

// ServerGroup is the endpoints of one Service port.
type ServerGroup struct {
	// Name: unique within the gateway; the key of Endpoints.
	Name string `json:"name"`
	// Weight of each server, 0 to 256.
	Weight int `json:"weight"`
	// TLS encrypts to the servers; nil is plain text.
	TLS *ServerTLS `json:"tls,omitempty"`
}

// ServerTLS says how servers are verified.
type ServerTLS struct {
	// Hostname for SNI and for the certificate check.
	Hostname string `json:"hostname"`
	// CAFile relative to the configuration's folder.
	CAFile string `json:"caFile"`
}

// Acceptable is what a policy accepts, in the names that HAProxy's log uses.
type Acceptable struct {
	Versions   []string `json:"versions"`   // TLSv1.3
	Groups     []string `json:"groups"`     // X25519MLKEM768
	Suites     []string `json:"suites"`     // TLS_AES_256_GCM_SHA384
	Algorithms []string `json:"algorithms"` // ML-DSA-65
}

// TicketsSecretName is the name of the Secret from which a gateway's agents
// learn where the rings of ticket keys are and how to open them.
func TicketsSecretName(gateway string) string { return gateway + "-tickets" }

// KeyTickets is the key of that Secret; its value is a TicketAccess.
const KeyTickets = "tickets.json"

// TicketAccess is what an agent needs for the rings of its revisions.
type TicketAccess struct {
	// Store that the rings are in; nil while there is none.
	Store *ticketstore.Connection `json:"store,omitempty"`
	// Rings by ID.
	Rings map[string]RingAccess `json:"rings"`
}

// RingAccess opens the documents of one ring.
type RingAccess struct {
	// Stored is the name that the ring has in the store.
	Stored       string               `json:"stored"`
	WrappingKeys tickets.WrappingKeys `json:"wrappingKeys"`
	// LeastEpoch: a ring of a lower one is not used, and not used on.
	LeastEpoch uint64 `json:"leastEpoch"`
	// RotationSeconds is how long a key encrypts: of gateways that share the
	// ring, the longest time that one of them says.
	RotationSeconds int `json:"rotationSeconds"`
}

// Name is the revision's name: the first 16 hex digits of the SHA-256 of its
// JSON form (which is deterministic: encoding/json sorts map keys).
func (r Revision) Name() string {
	b, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("dataplane: a revision does not encode: %v", err)) // strings and slices always do
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// Target is a revision and the generation of the gateway that it stands for.
type Target struct {
	Revision   string `json:"revision"`
	Generation int64  `json:"generation"`
}

// Assignment says what to run.
type Assignment struct {
	// Stable is what every pod runs: the last revision found good, or, before
	// any was, the first.
	Stable Target `json:"stable"`
	// Candidate, when set, is tried by CandidatePod alone. When that pod runs
	// it, it becomes Stable.
	Candidate    *Target `json:"candidate,omitempty"`
	CandidatePod string  `json:"candidatePod,omitempty"`
}

// For is the target of one pod.
func (a Assignment) For(pod string) Target {
	if a.Candidate != nil && a.CandidatePod == pod {
		return *a.Candidate
	}
	return a.Stable
}

// Endpoints are the ready endpoints of each server group, by its name. A group
// without any is there, with none; of one that is not there nothing is known,
// and who serves it goes on with those that it has.
type Endpoints map[string][]Endpoint

// Endpoint is an address and port that takes connections.
type Endpoint struct {
	Address string `json:"address"`
	Port    int32  `json:"port"`
}

// Status is what an agent answers: what its pod really runs.
type Status struct {
	// Pod name and the agent's version.
	Pod     string `json:"pod"`
	Version string `json:"version"`
	// Sequence grows with every change of the status; a reader that has seen N
	// may wait for more than N.
	Sequence uint64 `json:"sequence"`
	// Running is the target that HAProxy serves now; zero before the first.
	Running Target `json:"running"`
	// Rejected is the last target that HAProxy refused, until it is replaced.
	Rejected *Rejection `json:"rejected,omitempty"`
	// Waiting is what keeps the agent from running its target, or from knowing
	// a newer one: an object that it cannot read, HAProxy that does not run.
	Waiting string `json:"waiting,omitempty"`
	// Certificates as HAProxy holds them.
	Certificates []CertificateStatus `json:"certificates,omitempty"`
	// Tickets is nil where HAProxy resumes no session.
	Tickets *TicketStatus `json:"tickets,omitempty"`
	// HSM members as HAProxy sees them; none where it has no key in one.
	HSM []HSMMemberStatus `json:"hsm,omitempty"`
	// HSMProblems are those of the Secrets with credentials for members, with the
	// remedy.
	HSMProblems []string `json:"hsmProblems,omitempty"`
	// HSMKeys are the private keys in HSMs that HAProxy signs with, or that it would
	// when it starts again: PKCS #11 URIs, sorted. It is empty where there are none,
	// and nil in what agents say that do not tell, of former releases.
	HSMKeys []string `json:"hsmKeys,omitzero"`
	// HAProxy's version and how often it was reloaded since the pod started.
	HAProxyVersion string `json:"haproxyVersion,omitempty"`
	Reloads        int    `json:"reloads"`
}

// HSMMemberStatus is a member of the HSMPool as HAProxy sees it.
type HSMMemberStatus struct {
	Name string `json:"name"`
	// State is Up, Down or Starting.
	State v1alpha1.HSMMemberState `json:"state"`
	// Error is why it is not up, if anything says so.
	Error string `json:"error,omitempty"`
}

// TicketStatus says which keys HAProxy has for session tickets.
type TicketStatus struct {
	Ring string `json:"ring"`
	// Epoch of the ring's newest key; 0 while the keys are the pod's own, and
	// no other replica opens its tickets.
	Epoch uint64 `json:"epoch"`
	// Problem is why the keys are the pod's own, or why newer ones may be
	// missed.
	Problem string `json:"problem,omitempty"`
}

// Rejection says why a target is not served.
type Rejection struct {
	Target Target `json:"target"`
	// Message is HAProxy's own, or the agent's.
	Message string    `json:"message"`
	Time    time.Time `json:"time"`
}

// CertificateStatus is one certificate as HAProxy holds it.
type CertificateStatus struct {
	Name string `json:"name"`
	// Secret and the resourceVersion that is served.
	Secret          string `json:"secret"`
	ResourceVersion string `json:"resourceVersion"`
	// SerialNumber in lower-case hex, and the end of validity, of the leaf
	// that is served.
	SerialNumber string    `json:"serialNumber"`
	NotAfter     time.Time `json:"notAfter"`
	// Error, when the Secret's present content is not served: why. The former
	// certificate is served on.
	Error string `json:"error,omitempty"`
}
