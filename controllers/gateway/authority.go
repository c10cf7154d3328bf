package gateway

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/agentpki"
	"qtls.dev/qtls/internal/mtls"
)

// AuthoritySecret, in the operator's namespace, keeps the authority of the
// mutual TLS between operator and agents.
const AuthoritySecret = "qtls-agent-ca"

// lookAtAuthority is how often the Secret is read again.
const lookAtAuthority = time.Hour

// Authority keeps the authority of the agents' certificates in a Secret, and
// the operator's own certificate in memory.
type Authority struct {
	Client    client.Client
	APIReader client.Reader
	Namespace string
	Clock     clock.PassiveClock

	mu      sync.Mutex
	current *agentpki.Succession
	read    time.Time
	clients map[types.NamespacedName]*http.Client
}

// Get reads the authority, makes it when there is none and has it followed by a
// new one when it is old.
func (a *Authority) Get(ctx context.Context) (*agentpki.Succession, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.Clock.Now()
	if a.current != nil && now.Sub(a.read) < lookAtAuthority {
		return a.current, nil
	}
	authority, err := a.load(ctx, now)
	if err != nil {
		return nil, fmt.Errorf("Secret %s/%s: %w", a.Namespace, AuthoritySecret, err)
	}
	a.current, a.read = authority, now
	a.clients = map[types.NamespacedName]*http.Client{} // with a new certificate of the operator's
	return authority, nil
}

func (a *Authority) load(ctx context.Context, now time.Time) (*agentpki.Succession, error) {
	secret := &corev1.Secret{}
	err := a.APIReader.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: AuthoritySecret}, secret)
	exists := !apierrors.IsNotFound(err)
	if exists && err != nil {
		return nil, err
	}
	authority, changed, reason, err := agentpki.Succeed(secret.Data, now)
	if err != nil {
		return nil, err
	}
	if reason != nil {
		ctrl.LoggerFrom(ctx).Error(reason, "the agents' authority does not parse; a new one takes its place", "secret", AuthoritySecret)
	}
	if !changed {
		return authority, nil
	}
	if secret.Data, err = authority.Data(); err != nil {
		return nil, err
	}
	if exists {
		return authority, a.Client.Update(ctx, secret) // of the version read: two operators cannot both
	}
	secret.ObjectMeta = metav1.ObjectMeta{Namespace: a.Namespace, Name: AuthoritySecret,
		Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.LabelManagedByValue}}
	secret.Type = corev1.SecretTypeTLS
	return authority, a.Client.Create(ctx, secret)
}

// HTTPClient reaches the agents of one gateway, and nobody else.
func (a *Authority) HTTPClient(gateway types.NamespacedName) *http.Client {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.clients[gateway]; c != nil {
		return c
	}
	if a.current == nil {
		return &http.Client{Transport: refusing("the agents' authority is not loaded yet")}
	}
	certificate, err := a.current.Certificate(mtls.OperatorName, x509.ExtKeyUsageClientAuth, a.Clock.Now())
	if err != nil {
		return &http.Client{Transport: refusing(err.Error())}
	}
	c := &http.Client{Transport: &http.Transport{
		TLSClientConfig:     mtls.ClientConfig(mtls.AgentName(gateway.Namespace, gateway.Name), a.current.Pool(), *certificate),
		DialContext:         (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 1,
		IdleConnTimeout:     time.Minute,
	}}
	a.clients[gateway] = c
	return c
}

// refusing is a transport that says why there is none.
type refusing string

func (r refusing) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("%s", string(r))
}
