package peer

import (
	"fmt"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/resources"
)

// Component is the label app.kubernetes.io/component of what belongs to peers.
const Component = "peer"

// AnnotationConfig on the pods is their server's configuration, which they have as a
// file: no object of its own has to be taken away with them.
const AnnotationConfig = v1alpha1.GroupName + "/config"

// Name of a peer's objects.
func Name(benchmark, peer string) string { return benchmark + "-peer-" + peer }

// Certificate is one that the gateway serves.
type Certificate struct {
	// Secret that holds it, with its key.
	Secret string
	// Algorithm of the key.
	Algorithm v1alpha1.KeyAlgorithm
	// HSM says that the key lies in one. No peer can serve it.
	HSM bool
}

// Choose the certificate for a mode, of those of its listener: the strongest that its
// clients accept, of the family that the listener prefers if they accept any of that, as
// the gateway does.
func Choose(mode v1alpha1.BenchmarkMode, preference v1alpha1.CertificatePreference, listener []Certificate) (Certificate, error) {
	rank := func(k algorithms.KeyAlgorithm) int {
		if preference == v1alpha1.PreferClassical && k.Family == algorithms.Classical {
			return len(algorithms.KeyAlgorithms) + algorithms.Strength(k.Name)
		}
		return algorithms.Strength(k.Name)
	}
	best, highest := -1, -1
	for i, c := range listener {
		k, _ := algorithms.LookupKeyAlgorithm(c.Algorithm)
		accepted := slices.ContainsFunc(k.Schemes, func(s v1alpha1.SignatureScheme) bool { return slices.Contains(mode.SignatureSchemes, s) })
		if accepted && rank(k) > highest {
			best, highest = i, rank(k)
		}
	}
	if best < 0 {
		return Certificate{}, fmt.Errorf("spec.peers: mode %q accepts none of the certificates that a peer could serve; name the modes of the peer without it", mode.Name)
	}
	return listener[best], nil
}

// Groups that a peer offers: what its modes ask for, by OpenSSL's names. Those that
// only the provider has are refused, for a peer does not load it.
func Groups(p v1alpha1.BenchmarkPeer, modes []v1alpha1.BenchmarkMode) ([]string, error) {
	var names []string
	for _, name := range p.Modes {
		if !slices.ContainsFunc(modes, func(m v1alpha1.BenchmarkMode) bool { return m.Name == name }) {
			return nil, fmt.Errorf("spec.peers: mode %q of peer %q is none of spec.modes", name, p.Name)
		}
	}
	for _, m := range modes {
		if !p.MeasuredIn(m.Name) {
			continue
		}
		if m.Operation != "" && m.Operation != v1alpha1.BenchmarkOperationHandshake {
			return nil, fmt.Errorf("spec.peers: mode %q has the operation %s, and peer %q has nothing behind it: name the modes of the peer without it", m.Name, m.Operation, p.Name)
		}
		for _, name := range m.Groups {
			g, ok := algorithms.LookupGroup(name)
			if !ok || g.Provider {
				return nil, fmt.Errorf("spec.peers: peer %q has no group %s, which mode %q asks for: peers have what OpenSSL has; name the modes of the peer without it", p.Name, name, m.Name)
			}
			if !slices.Contains(names, g.OpenSSL) {
				names = append(names, g.OpenSSL)
			}
		}
	}
	return names, nil
}

// Server is a peer with all that its objects need.
type Server struct {
	Peer v1alpha1.BenchmarkPeer
	// Image that it runs.
	Image string
	// Secrets of the certificates, each at the Port of its index.
	Secrets []string
	Groups  []string
	// Replicas, as many as the gateway has.
	Replicas int32
}

func labels(b *v1alpha1.QTLSBenchmark, peer string) map[string]string {
	l := generator.Labels(b.Name)
	l["app.kubernetes.io/component"] = Component
	l[v1alpha1.LabelPeer] = peer
	return l
}

// Selector of a peer's pods.
func Selector(benchmark, peer string) map[string]string {
	return map[string]string{v1alpha1.LabelBenchmark: v1alpha1.LabelValue(benchmark), v1alpha1.LabelPeer: peer}
}

func meta(b *v1alpha1.QTLSBenchmark, peer string) metav1.ObjectMeta {
	m := generator.Meta(b, Name(b.Name, peer))
	m.Labels = labels(b, peer)
	return m
}

// Service that the load generator connects to.
func Service(b *v1alpha1.QTLSBenchmark, s Server) *corev1.Service {
	var ports []corev1.ServicePort
	for i := range s.Secrets {
		ports = append(ports, corev1.ServicePort{Name: "tls-" + strconv.Itoa(i), Port: Port(i), TargetPort: intstr.FromInt32(Port(i)), Protocol: corev1.ProtocolTCP})
	}
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: meta(b, s.Peer.Name),
		Spec:       corev1.ServiceSpec{Selector: Selector(b.Name, s.Peer.Name), Ports: ports},
	}
}

// Deployment of the peer's pods: where the gateway's are, and with their resources.
func Deployment(b *v1alpha1.QTLSBenchmark, gateway *v1alpha1.QTLSGateway, s Server, settings generator.Settings) *appsv1.Deployment {
	beside := resources.Deployment(gateway, resources.Settings{}).Spec.Template.Spec
	var pullSecrets []corev1.LocalObjectReference
	for _, name := range settings.ImagePullSecrets {
		pullSecrets = append(pullSecrets, corev1.LocalObjectReference{Name: name})
	}
	volumes := []corev1.Volume{
		{Name: "config", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{
			Path: configFile[s.Peer.Server], FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + AnnotationConfig + "']"},
		}}}}},
		{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("16Mi"))}}},
	}
	mounts := []corev1.VolumeMount{{Name: "config", MountPath: folder, ReadOnly: true}, {Name: "tmp", MountPath: "/tmp"}}
	for i, secret := range s.Secrets {
		name := "certificate-" + strconv.Itoa(i)
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: secret, DefaultMode: ptr.To[int32](0o440),
			Items: []corev1.KeyToPath{{Key: corev1.TLSCertKey, Path: chainFile}, {Key: corev1.TLSPrivateKeyKey, Path: keyFile}},
		}}})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: certificates + "/" + strconv.Itoa(i), ReadOnly: true})
	}
	podLabels := labels(b, s.Peer.Name)
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"},
		ObjectMeta: meta(b, s.Peer.Name),
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(s.Replicas),
			Selector: &metav1.LabelSelector{MatchLabels: Selector(b.Name, s.Peer.Name)},
			// Available then says that all are.
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1))}},
			RevisionHistoryLimit: ptr.To[int32](0),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: podLabels, Annotations: map[string]string{AnnotationConfig: Config(s.Peer.Server, threads(beside.Containers[0].Resources.Limits.Cpu()), len(s.Secrets), s.Groups)}},
				Spec: corev1.PodSpec{
					AutomountServiceAccountToken:  ptr.To(false),
					EnableServiceLinks:            ptr.To(false),
					TerminationGracePeriodSeconds: ptr.To[int64](1),
					ImagePullSecrets:              pullSecrets,
					NodeSelector:                  beside.NodeSelector,
					Tolerations:                   beside.Tolerations,
					Affinity: &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
							TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: resources.Selector(gateway.Name)}}},
					}},
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
						LabelSelector: &metav1.LabelSelector{MatchLabels: Selector(b.Name, s.Peer.Name)}}},
					SecurityContext: &corev1.PodSecurityContext{
						RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](resources.UID), RunAsGroup: ptr.To[int64](resources.UID), FSGroup: ptr.To[int64](resources.UID),
						SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					Containers: []corev1.Container{{
						Name:            s.Peer.Name,
						Image:           s.Image,
						ImagePullPolicy: settings.ImagePullPolicy,
						Command:         command(s.Peer.Server),
						Resources:       beside.Containers[0].Resources,
						// Why it does not run is in the pod's status too.
						TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
						ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(Port(0))}},
							PeriodSeconds: 2, TimeoutSeconds: 10},
						SecurityContext: &corev1.SecurityContext{
							AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
							Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
						},
						VolumeMounts: mounts,
					}},
					Volumes: volumes,
				},
			},
		},
	}
}
