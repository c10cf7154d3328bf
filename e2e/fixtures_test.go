//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
)

const (
	mlDSA65   = v1alpha1.KeyAlgorithm("ML-DSA-65")
	mlDSA87   = v1alpha1.KeyAlgorithm("ML-DSA-87")
	ecdsaP256 = v1alpha1.KeyAlgorithm("ECDSA-P256")
)

// How long things may take: much longer than they do, for a machine may be busy with other things.
const (
	forReady  = 5 * time.Minute
	forChange = 3 * time.Minute
)

// authorities are a test's own: one of each family, behind an issuer called "ca".
type authorities struct{ pq, classical pair }

func (a authorities) bundle() []byte { return bundle(a.pq, a.classical) }

// withIssuer makes the authorities and a PQCIssuer "ca" that signs with them.
func (n namespace) withIssuer() authorities {
	n.Helper()
	a := authorities{newCA(n.T, "Test PQ CA", mlDSA65), newCA(n.T, "Test classical CA", ecdsaP256)}
	n.create(a.pq.secret(n.T, "ca-pq"), a.classical.secret(n.T, "ca-classical"), caIssuer("ca", "ca-pq", "ca-classical"))
	return a
}

// certificate is a PQCCertificate of the issuer "ca".
func certificate(name string, algorithms []v1alpha1.KeyAlgorithm, dnsNames ...v1alpha1.Hostname) *v1alpha1.PQCCertificate {
	return &v1alpha1.PQCCertificate{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.PQCCertificateSpec{DNSNames: dnsNames, Algorithms: algorithms, IssuerRef: v1alpha1.IssuerReference{Name: "ca"}},
	}
}

var dual = []v1alpha1.KeyAlgorithm{mlDSA65, ecdsaP256}

// gateway is one with a single replica.
func gateway(name string, listeners ...v1alpha1.Listener) *v1alpha1.QTLSGateway {
	return &v1alpha1.QTLSGateway{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.QTLSGatewaySpec{
			Listeners: listeners, Replicas: ptr.To[int32](1),
		},
	}
}

// https is an HTTPS listener with the PQCCertificate of its own name, in front of the Service echo.
func https(name string, port int32, hostnames ...v1alpha1.Hostname) v1alpha1.Listener {
	return v1alpha1.Listener{
		Name: name, Port: port, Protocol: v1alpha1.ProtocolHTTPS, Hostnames: hostnames,
		CertificateRefs: []v1alpha1.CertificateReference{{Name: name}},
		Backends:        []v1alpha1.BackendReference{backend("echo", "http")},
	}
}

func backend(service, port string) v1alpha1.BackendReference {
	return v1alpha1.BackendReference{Name: service, Port: intstr.FromString(port)}
}

// startEcho runs replicas of the echo backend behind a Service of the name, with the ports http, tcp and, when there is
// a certificate for it, https.
func (n namespace) startEcho(name string, replicas int32, tlsSecret string) *appsv1.Deployment {
	n.Helper()
	labels := map[string]string{"app": name}
	args := []string{"-http", ":8080", "-tcp", ":9000"}
	ports := []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}, {Name: "tcp", Port: 9000}}
	var volumes []corev1.Volume
	var mounts []corev1.VolumeMount
	if tlsSecret != "" {
		args = append(args, "-https", ":8443", "-cert", "/tls/tls.crt", "-key", "/tls/tls.key")
		ports = append(ports, corev1.ServicePort{Name: "https", Port: 443, TargetPort: intstr.FromInt32(8443)})
		volumes = []corev1.Volume{{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: tlsSecret, DefaultMode: ptr.To[int32](0o440)}}}}
		mounts = []corev1.VolumeMount{{Name: "tls", MountPath: "/tls"}}
	}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					SecurityContext:               restrictedPod(),
					TerminationGracePeriodSeconds: ptr.To[int64](30),
					Volumes:                       volumes,
					Containers: []corev1.Container{{
						Name: "echo", Image: image("echo"), Args: args, SecurityContext: restrictedContainer(), VolumeMounts: mounts,
						// As backends are to: it serves until those that use it know that it goes.
						Lifecycle:      &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 15}}},
						ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 10, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}}},
					}},
				},
			},
		},
	}
	n.create(deployment, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Selector: labels, Ports: ports}})
	return deployment
}

func restrictedPod() *corev1.PodSecurityContext {
	return &corev1.PodSecurityContext{
		RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532), FSGroup: ptr.To[int64](65532),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

func restrictedContainer() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// waitPods waits until a Deployment has exactly so many pods and all are ready, and returns their names.
func (n namespace) waitPods(d *appsv1.Deployment, want int) []string {
	n.Helper()
	var names []string
	eventually(n.T, forReady, fmt.Sprintf("Deployment %s has %d ready pods", d.Name, want), func(ctx context.Context) (bool, string) {
		pods := n.pods(ctx, d.Spec.Selector.MatchLabels)
		names = nil
		for _, p := range pods {
			if isReady(&p) {
				names = append(names, p.Name)
			}
		}
		return len(pods) == want && len(names) == want, fmt.Sprintf("%d pods, %d ready", len(pods), len(names))
	})
	return names
}

func (n namespace) pods(ctx context.Context, labels map[string]string) []corev1.Pod {
	n.Helper()
	var pods corev1.PodList
	if err := cluster.List(ctx, &pods, client.InNamespace(n.name), client.MatchingLabels(labels)); err != nil {
		n.Logf("list pods: %v", err)
	}
	return pods.Items
}

// gatewayPods are those of a gateway that are not about to end.
func (n namespace) gatewayPods(g *v1alpha1.QTLSGateway) []corev1.Pod {
	n.Helper()
	var alive []corev1.Pod
	for _, p := range n.pods(n.Context(), map[string]string{v1alpha1.LabelGateway: g.Name}) {
		if p.DeletionTimestamp == nil {
			alive = append(alive, p)
		}
	}
	return alive
}

// address of a gateway's Service, with a port.
func address(g *v1alpha1.QTLSGateway, port int32) string {
	if len(g.Status.Addresses) == 0 {
		return ""
	}
	return join(g.Status.Addresses[0].Value, port)
}

func join(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

// caIssuer signs with the CAs in Secrets.
func caIssuer(name string, secrets ...string) *v1alpha1.PQCIssuer {
	i := &v1alpha1.PQCIssuer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IssuerSpec{CA: &v1alpha1.CAIssuer{}}}
	for _, s := range secrets {
		i.Spec.CA.SecretRefs = append(i.Spec.CA.SecretRefs, v1alpha1.SecretReference{Name: s})
	}
	return i
}
