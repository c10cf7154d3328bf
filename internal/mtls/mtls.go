// Package mtls is how the operator and the agents know each other: TLS 1.3
// with hybrid key exchange and a certificate on both sides. The operator's
// names OperatorName, an agent's the AgentName of its gateway.
package mtls

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// OperatorName is the DNS name in the operator's client certificate.
	OperatorName = "qtls-operator"

	// StatusPort is where an agent answers the operator, over mutual TLS.
	StatusPort = 8404
	// HealthPort is where an agent answers probes and Prometheus, in plain
	// HTTP.
	HealthPort = 8405

	// AgentDir is where an agent finds its certificate, key and the
	// authorities that it trusts: a mounted Secret.
	AgentDir = "/etc/qtls/agent-tls"

	certificateFile = "tls.crt"
	keyFile         = "tls.key"
	authoritiesFile = "ca.crt"
)

// AgentName is the DNS name in the certificate of a gateway's agents.
func AgentName(namespace, gateway string) string {
	return gateway + "." + namespace + ".agent.qtls.dev"
}

// groups of the key exchange. Both sides are this project's own, so nothing
// classical is needed.
var groups = []tls.CurveID{tls.X25519MLKEM768, tls.SecP384r1MLKEM1024}

// ClientConfig lets the operator reach the agents that have the name.
func ClientConfig(agentName string, authorities *x509.CertPool, operator tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		CurvePreferences: groups,
		ServerName:       agentName,
		RootCAs:          authorities,
		Certificates:     []tls.Certificate{operator},
	}
}

// ServerConfig lets an agent serve the operator and nobody else. It reads the
// certificate, the key and the authorities from dir, at the first handshake
// and whenever they change: a rotation needs no restart.
func ServerConfig(dir string) *tls.Config {
	r := &reader{dir: dir}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.config(time.Now()) },
	}
}

// lookAgain is how often, at most, the files are read.
const lookAgain = 5 * time.Second

// reader keeps the configuration that the files of dir make.
type reader struct {
	dir string

	mu      sync.Mutex
	looked  time.Time
	content [3][]byte
	current *tls.Config
}

// config is that of the files now; where they cannot be read or do not fit
// together, the one before.
func (r *reader) config(now time.Time) (*tls.Config, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil && now.Sub(r.looked) < lookAgain {
		return r.current, nil
	}
	content, err := r.read()
	if err == nil && (r.current == nil || !same(content, r.content)) {
		var config *tls.Config
		if config, err = serverConfig(content); err == nil {
			r.content, r.current = content, config
		}
	}
	r.looked = now
	if r.current == nil {
		return nil, err
	}
	return r.current, nil
}

func (r *reader) read() (content [3][]byte, err error) {
	for i, name := range [...]string{certificateFile, keyFile, authoritiesFile} {
		if content[i], err = os.ReadFile(filepath.Join(r.dir, name)); err != nil {
			return content, err
		}
	}
	return content, nil
}

func same(a, b [3][]byte) bool {
	return bytes.Equal(a[0], b[0]) && bytes.Equal(a[1], b[1]) && bytes.Equal(a[2], b[2])
}

func serverConfig(content [3][]byte) (*tls.Config, error) {
	certificate, err := tls.X509KeyPair(content[0], content[1])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", certificateFile, keyFile, err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(content[2]) {
		return nil, fmt.Errorf("%s holds no certificate", authoritiesFile)
	}
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		CurvePreferences: groups,
		Certificates:     []tls.Certificate{certificate},
		ClientAuth:       tls.RequireAndVerifyClientCert,
		ClientCAs:        authorities,
		// Checked on each connection, resumed ones too.
		VerifyConnection: isOperator,
	}, nil
}

// isOperator refuses a client whose certificate is valid but not the
// operator's: an agent's own, for one.
func isOperator(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("mtls: no client certificate")
	}
	if err := state.PeerCertificates[0].VerifyHostname(OperatorName); err != nil {
		return fmt.Errorf("mtls: the client is not the operator: %w", err)
	}
	return nil
}
