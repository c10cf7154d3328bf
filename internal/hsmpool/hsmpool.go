// Package hsmpool is how the operator speaks with the members of an HSMPool,
// and what it makes of their answers.
package hsmpool

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsm"
)

// Member of a pool.
type Member struct {
	Name string
	// Client of its hsmd; nil if there is a Problem.
	Client *hsm.Client
	// Problem with what the spec says of it.
	Problem *conditions.Problem
	// in is where it is configured.
	in configured
	// timeout of a request to it, but for one that makes a key.
	timeout time.Duration
}

// configured says where the remedies for a member's problems are.
type configured struct {
	// pin, library and token of a member, each in words.
	pin, library, token string
}

// ofDaemon: by the configuration of its daemon, whosever that is.
var ofDaemon = configured{"the daemon's pin-file", "module in the daemon's configuration", "token or serial in the daemon's configuration"}

// configuration of a member.
func configuration(m v1alpha1.HSMMember) configured {
	l, ok := LibraryOf(m)
	if !ok {
		return ofDaemon
	}
	library, token := l.Field+".path", l.Field+".token or serial"
	if m.Daemon != nil {
		library = l.Field + ".module.path"
	}
	return configured{fmt.Sprintf("the key %q of Secret %q", PINKey, l.Token.PINSecretRef.Name), library, token}
}

// Clients keeps a client for each member of every pool, and makes it anew when
// its address or Secret changes. Clients that are not used any more close their
// connections themselves.
type Clients struct {
	// Redirect, if set, says where what has an address is: tests have no DNS for
	// daemons.
	Redirect func(address string) string

	mu    sync.Mutex
	pools map[types.NamespacedName]map[string]kept
	// making are the keys that members make now, or could not make and nobody has
	// been told yet.
	making map[namedKey]*making
}

// kept is a client, and a hash of what it was made of.
type kept struct {
	of     [sha256.Size]byte
	client *hsm.Client
}

// Open gives a client for each member, in the spec's order. An error is one of
// reading, not of what was read.
func (c *Clients) Open(ctx context.Context, reader client.Reader, pool *v1alpha1.HSMPool) ([]Member, error) {
	var members []Member
	for _, m := range pool.Spec.Members {
		d := daemonOf(pool, m)
		if c.Redirect != nil {
			d.address = c.Redirect(d.address)
		}
		secret := &corev1.Secret{}
		err := reader.Get(ctx, client.ObjectKey{Namespace: pool.Namespace, Name: d.secret}, secret)
		switch {
		case apierrors.IsNotFound(err):
			secret = nil
		case err != nil:
			return nil, fmt.Errorf("Secret %s/%s: %w", pool.Namespace, d.secret, err)
		}
		opened := Member{Name: m.Name, in: configuration(m), timeout: Timeout(pool)}
		if opened.Client, err = c.open(client.ObjectKeyFromObject(pool), d, Timeout(pool), secret); err != nil {
			opened.Problem, _ = conditions.AsProblem(err)
		}
		members = append(members, opened)
	}
	return members, nil
}

// Timeout of a pool's members.
func Timeout(pool *v1alpha1.HSMPool) time.Duration {
	if t := pool.Spec.Timeout; t != nil {
		return t.Duration
	}
	return v1alpha1.DefaultHSMTimeout
}

// Close forgets the clients of a pool.
func (c *Clients) Close(pool types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pools, pool)
	maps.DeleteFunc(c.making, func(k namedKey, m *making) bool {
		return k.namespace == pool.Namespace && k.Pool == pool.Name && m.ended()
	})
}

// daemon of a member: where it is, and the Secret with what the operator shows
// it.
type daemon struct {
	member              string
	address, serverName string
	secret              string
	// field that names the Secret, or the member whose it is.
	field string
	// missing says what to do where there is no such Secret.
	missing error
}

func daemonOf(pool *v1alpha1.HSMPool, m v1alpha1.HSMMember) daemon {
	if r := m.Remote; r != nil {
		field := fmt.Sprintf("spec.members[%s].remote.tlsSecretRef", m.Name)
		return daemon{m.Name, string(r.Address), serverName(r), r.TLSSecretRef.Name, field, conditions.Stalled(v1alpha1.ReasonSecretNotFound,
			"%s: Secret %q is not there in namespace %q; create it with ca.crt, tls.crt and tls.key", field, r.TLSSecretRef.Name, pool.Namespace)}
	}
	host, secret, field := DaemonHost(pool, m.Name), OperatorSecretName(pool.Name), fmt.Sprintf("member %q", m.Name)
	return daemon{m.Name, net.JoinHostPort(host, strconv.Itoa(DaemonPort)), host, secret, field, conditions.Waiting(lookAgain, v1alpha1.ReasonPending,
		"%s: the operator has not made Secret %q yet; wait", field, secret)}
}

// open finds the client of a member, or makes it. The error is a
// *conditions.Problem.
func (c *Clients) open(pool types.NamespacedName, d daemon, timeout time.Duration, secret *corev1.Secret) (*hsm.Client, error) {
	if secret == nil {
		return nil, d.missing
	}
	credentials := hsm.Credentials{
		CA:          secret.Data[corev1.ServiceAccountRootCAKey],
		Certificate: secret.Data[corev1.TLSCertKey],
		Key:         secret.Data[corev1.TLSPrivateKeyKey],
	}
	of := fingerprint([]byte(d.address), []byte(d.serverName), binary.BigEndian.AppendUint64(nil, uint64(timeout)),
		credentials.CA, credentials.Certificate, credentials.Key)

	c.mu.Lock()
	defer c.mu.Unlock()
	if k, ok := c.pools[pool][d.member]; ok && k.of == of {
		return k.client, nil
	}
	config, err := credentials.Config(d.serverName)
	if err != nil {
		return nil, conditions.Stalled(v1alpha1.ReasonSecretInvalid,
			"%s: Secret %q in namespace %q: %v; it needs ca.crt, tls.crt and tls.key in PEM form", d.field, secret.Name, pool.Namespace, err)
	}
	if c.pools == nil {
		c.pools = map[types.NamespacedName]map[string]kept{}
	}
	if c.pools[pool] == nil {
		c.pools[pool] = map[string]kept{}
	}
	made := hsm.New(d.address, config, timeout)
	c.pools[pool][d.member] = kept{of, made}
	return made, nil
}

// serverName that the certificate of a daemon is checked for.
func serverName(r *v1alpha1.RemoteHSM) string {
	if r.ServerName != "" {
		return string(r.ServerName)
	}
	host, _, _ := net.SplitHostPort(string(r.Address)) // its form is the API's matter
	return host
}

// fingerprint of several strings, each with its length.
func fingerprint(parts ...[]byte) [sha256.Size]byte {
	h := sha256.New()
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p))))
		h.Write(p)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
