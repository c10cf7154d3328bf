// Package resources builds the Kubernetes objects of a gateway, and of the
// daemons of an HSMPool: one pure function for each. A gateway's hold nothing
// that changes when only the data plane's configuration does, so that a new
// configuration restarts no pod.
package resources

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
)

// UID is the user and the group that the images run as, and so all pods.
const UID = 65532

// Settings are the operator's own, the same for every gateway.
type Settings struct {
	// Image of the gateway: HAProxy and the agent.
	Image string
	// RedisImage is that of embedded ticket stores: Valkey.
	RedisImage string
	// HSMImage is that of an HSMPool's daemons: hsmd, and a token in software.
	HSMImage         string
	ImagePullPolicy  corev1.PullPolicy
	ImagePullSecrets []string
	// OperatorNamespace is where the operator's own pods are.
	OperatorNamespace string
}

func pullSecrets(s Settings) []corev1.LocalObjectReference {
	var references []corev1.LocalObjectReference
	for _, name := range s.ImagePullSecrets {
		references = append(references, corev1.LocalObjectReference{Name: name})
	}
	return references
}

// Name of a gateway's own objects: a suffix keeps them apart from the user's,
// such as the Service that a gateway of the same name forwards to.
func Name(gateway string) string { return gateway + "-gateway" }

// ReadySince says whether a pod is ready, and since when it is, or is not; zero
// where that is not known.
func ReadySince(p *corev1.Pod) (since time.Time, ready bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.LastTransitionTime.Time, c.Status == corev1.ConditionTrue
		}
	}
	return time.Time{}, false
}

// AgentSecretName is the name of the Secret with the agents' side of their
// mutual TLS with the operator.
func AgentSecretName(gateway string) string { return gateway + "-agent-tls" }

// Labels of everything that belongs to a gateway.
func Labels(gateway string) map[string]string {
	labels := Selector(gateway)
	labels[v1alpha1.LabelManagedBy] = v1alpha1.LabelManagedByValue
	labels["app.kubernetes.io/component"] = "data-plane"
	return labels
}

// Selector of a gateway's pods.
func Selector(gateway string) map[string]string {
	selector := SelectorOfAll()
	selector[v1alpha1.LabelGateway] = gateway
	return selector
}

// SelectorOfAll selects the pods of all gateways.
func SelectorOfAll() map[string]string {
	return map[string]string{"app.kubernetes.io/name": "qtls-gateway"}
}

func meta(g *v1alpha1.QTLSGateway, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: g.Namespace,
		Name:      name,
		Labels:    Labels(g.Name),
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(g, v1alpha1.GroupVersion.WithKind("QTLSGateway")),
		},
	}
}

// DataPlane is the one ConfigMap that the gateway's agents read.
func DataPlane(g *v1alpha1.QTLSGateway, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: meta(g, dataplane.ObjectName(g.Name)),
		Data:       data,
	}
}

// AgentSecret holds the agents' side of their mutual TLS with the operator.
func AgentSecret(g *v1alpha1.QTLSGateway, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: meta(g, AgentSecretName(g.Name)),
		Type:       corev1.SecretTypeTLS,
		Data:       data,
	}
}

// TicketsSecret holds what the agents need to share the keys of session tickets.
func TicketsSecret(g *v1alpha1.QTLSGateway, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: meta(g, dataplane.TicketsSecretName(g.Name)),
		Type:       corev1.SecretTypeOpaque,
		Data:       data,
	}
}
