package resources

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/mtls"
)

const (
	runVolume      = "run"
	tokenVolume    = "token"
	agentTLSVolume = "agent-tls"

	// graceBeyondDrain is what a pod needs to end after its drain has.
	graceBeyondDrain = 10
)

// Deployment of the gateway's pods.
func Deployment(g *v1alpha1.QTLSGateway, s Settings) *appsv1.Deployment {
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"},
		ObjectMeta: meta(g, Name(g.Name)),
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(Replicas(g)),
			Selector: &metav1.LabelSelector{MatchLabels: Selector(g.Name)},
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxUnavailable: ptr.To(intstr.FromInt32(0)),
					MaxSurge:       ptr.To(intstr.FromString("25%")),
				},
			},
			RevisionHistoryLimit: ptr.To[int32](2),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Labels:      Labels(g.Name),
					Annotations: map[string]string{"kubectl.kubernetes.io/default-container": "haproxy"},
				},
				Spec: podSpec(g, s),
			},
		},
	}
}

// Replicas that are wanted.
func Replicas(g *v1alpha1.QTLSGateway) int32 {
	return ptr.Deref(g.Spec.Replicas, v1alpha1.DefaultReplicas)
}

func drain(g *v1alpha1.QTLSGateway) (delay, timeout int32) {
	return ptr.Deref(g.Spec.Drain.DelaySeconds, v1alpha1.DefaultDrainDelaySeconds), ptr.Deref(g.Spec.Drain.TimeoutSeconds, v1alpha1.DefaultDrainTimeoutSeconds)
}

func podSpec(g *v1alpha1.QTLSGateway, s Settings) corev1.PodSpec {
	delay, timeout := drain(g)
	return corev1.PodSpec{
		ServiceAccountName:            Name(g.Name),
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		TerminationGracePeriodSeconds: ptr.To(int64(delay + timeout + int32(haproxy.DrainExtra/time.Second) + graceBeyondDrain)),
		ImagePullSecrets:              pullSecrets(s),
		NodeSelector:                  g.Spec.NodeSelector,
		Tolerations:                   g.Spec.Tolerations,
		TopologySpreadConstraints:     spread(g),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   ptr.To(true),
			RunAsUser:      ptr.To[int64](UID),
			RunAsGroup:     ptr.To[int64](UID),
			FSGroup:        ptr.To[int64](UID),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			// Ports below 1024 without a capability. It is a safe sysctl, of
			// the pod's own network namespace.
			Sysctls: []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}},
		},
		InitContainers: []corev1.Container{agentContainer(g, s)},
		Containers:     []corev1.Container{haproxyContainer(g, s, delay)},
		Volumes: []corev1.Volume{
			{Name: runVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
				Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("64Mi")), // keys never touch the node's disk
			}}},
			{Name: agentTLSVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName: AgentSecretName(g.Name), DefaultMode: ptr.To[int32](0o440),
			}}},
			{Name: tokenVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				DefaultMode: ptr.To[int32](0o440),
				Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](3600)}},
					{ConfigMap: &corev1.ConfigMapProjection{
						LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
						Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
					}},
				},
			}}},
		},
	}
}

// agentContainer is a native sidecar: it starts before HAProxy, to write its
// configuration, and ends after it, to report its drain.
func agentContainer(g *v1alpha1.QTLSGateway, s Settings) corev1.Container {
	// What is wrong is answered at once. No answer says only that the node is
	// busy: taking its pods from their Service, or their agents' lives, helps nobody.
	probe := func(path string, period, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:     corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("health")}},
			PeriodSeconds:    period,
			TimeoutSeconds:   10,
			FailureThreshold: failures,
		}
	}
	return corev1.Container{
		Name:            "agent",
		Image:           s.Image,
		ImagePullPolicy: s.ImagePullPolicy,
		Command:         []string{"/usr/bin/qtls-agent", "run", "--namespace", g.Namespace, "--gateway", g.Name},
		Env: []corev1.EnvVar{
			{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
			{Name: "GOMEMLIMIT", Value: "96MiB"},
		},
		Ports: []corev1.ContainerPort{
			{Name: "status", ContainerPort: mtls.StatusPort},
			{Name: "health", ContainerPort: mtls.HealthPort},
		},
		RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
		// HAProxy starts when the first configuration is written and checked:
		// that may wait for a Secret, so it is given all the time it needs.
		StartupProbe:   probe("/startupz", 1, 86400),
		ReadinessProbe: probe("/readyz", 1, 2),
		LivenessProbe:  probe("/livez", 10, 3),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("48Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("192Mi")},
		},
		SecurityContext: restricted(),
		VolumeMounts: []corev1.VolumeMount{
			{Name: runVolume, MountPath: haproxy.RunDir},
			{Name: agentTLSVolume, MountPath: mtls.AgentDir, ReadOnly: true},
			{Name: tokenVolume, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
		},
	}
}

func haproxyContainer(g *v1alpha1.QTLSGateway, s Settings, delay int32) corev1.Container {
	resources := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("192Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}, // for all connections that HAProxy takes at most
	}
	if g.Spec.Resources != nil {
		resources = *g.Spec.Resources
	}
	return corev1.Container{
		Name:            "haproxy",
		Image:           s.Image,
		ImagePullPolicy: s.ImagePullPolicy,
		Command:         []string{"/usr/bin/qtls-agent", "haproxy"},
		Env: []corev1.EnvVar{
			{Name: haproxy.MemoryEnvironment, ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory"}}},
			{Name: haproxy.PKCS11Environment, Value: haproxy.CurrentDir + "/" + haproxy.PKCS11File},
		},
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
			Command: []string{"/usr/bin/qtls-agent", "drain", "--delay", fmt.Sprintf("%ds", delay)},
		}}},
		Resources:       resources,
		SecurityContext: restricted(),
		VolumeMounts:    []corev1.VolumeMount{{Name: runVolume, MountPath: haproxy.RunDir}},
	}
}

func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false),
		ReadOnlyRootFilesystem:   ptr.To(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// spread is what the user says, with the gateway's selector filled in, or over
// nodes and zones as well as it goes.
func spread(g *v1alpha1.QTLSGateway) []corev1.TopologySpreadConstraint {
	selector := &metav1.LabelSelector{MatchLabels: Selector(g.Name)}
	if len(g.Spec.TopologySpreadConstraints) == 0 {
		var constraints []corev1.TopologySpreadConstraint
		for _, key := range []string{corev1.LabelHostname, corev1.LabelTopologyZone} {
			constraints = append(constraints, corev1.TopologySpreadConstraint{
				MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector,
				// Only the pods of one rollout are counted: the old ones leave.
				MatchLabelKeys: []string{appsv1.DefaultDeploymentUniqueLabelKey},
			})
		}
		return constraints
	}
	constraints := make([]corev1.TopologySpreadConstraint, len(g.Spec.TopologySpreadConstraints))
	for i, c := range g.Spec.TopologySpreadConstraints {
		constraints[i] = *c.DeepCopy()
		if constraints[i].LabelSelector == nil {
			constraints[i].LabelSelector = selector
		}
	}
	return constraints
}
