package resources

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/ticketstore"
	"qtls.dev/qtls/internal/ticketstore/embedded"
)

const (
	redisFilesVolume = "files"
	redisDataVolume  = "data"

	// redisMembers is the most that a store has. Its certificate is for so many,
	// so that another member needs no other.
	redisMembers = 2

	// AnnotationRedisFiles is, on the pods of an embedded store, a hash of the
	// files that they started with: they restart one by one when those change.
	AnnotationRedisFiles = v1alpha1.GroupName + "/files"
)

// RedisName of the objects of a gateway's embedded ticket store. The name of a
// StatefulSet has to leave room, in a label of 63 characters, for a revision.
func RedisName(gateway string) string { return suffixed(gateway, "-redis", 52) }

// suffixed is a gateway's name and a suffix in so many characters at most; a
// hash takes the place of what is too much.
func suffixed(gateway, suffix string, most int) string {
	if len(gateway)+len(suffix) > most {
		sum := sha256.Sum256([]byte(gateway))
		gateway = fmt.Sprintf("%s-%x", gateway[:most-len(suffix)-9], sum[:4])
	}
	return gateway + suffix
}

// RedisSelector of the pods of a gateway's embedded store. The label by which
// the gateway's own pods are found is not theirs.
func RedisSelector(gateway string) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":     "qtls-redis",
		"app.kubernetes.io/instance": gateway,
	}
}

func redisPodLabels(gateway string) map[string]string {
	labels := RedisSelector(gateway)
	labels[v1alpha1.LabelManagedBy] = v1alpha1.LabelManagedByValue
	labels["app.kubernetes.io/component"] = "ticket-store"
	return labels
}

func redisMeta(g *v1alpha1.QTLSGateway) metav1.ObjectMeta {
	m := meta(g, RedisName(g.Name))
	m.Labels = redisPodLabels(g.Name)
	m.Labels[v1alpha1.LabelGateway] = g.Name
	return m
}

// RedisReplicas is how many members the store has; none while the gateway has
// no pods.
func RedisReplicas(g *v1alpha1.QTLSGateway) int32 {
	e := g.Spec.SessionResumption.Store.Embedded
	switch {
	case Replicas(g) == 0:
		return 0
	case e != nil && e.HighAvailability:
		return redisMembers
	}
	return 1
}

// RedisHosts are the names of as many members as there can be.
func RedisHosts(g *v1alpha1.QTLSGateway) []string {
	name := RedisName(g.Name)
	hosts := make([]string, redisMembers)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("%s-%d.%s.%s.svc", name, i, name, g.Namespace)
	}
	return hosts
}

// RedisConnection of a role to the members there are, or, while there is none,
// to the first.
func RedisConnection(g *v1alpha1.QTLSGateway, c *embedded.Credentials, role embedded.Role) ticketstore.Connection {
	return c.Connection(role, RedisHosts(g)[:max(1, RedisReplicas(g))])
}

// Redis is all objects of a gateway's embedded store.
func Redis(g *v1alpha1.QTLSGateway, s Settings, c *embedded.Credentials) ([]client.Object, error) {
	data, err := c.Data()
	if err != nil {
		return nil, err
	}
	return []client.Object{
		RedisSecret(g, data), RedisNetworkPolicy(g, s), RedisService(g), RedisPodDisruptionBudget(g), RedisStatefulSet(g, s, data),
	}, nil
}

// RedisSecret holds the files of the servers, and the passwords and the
// authority's key, which only the operator reads.
func RedisSecret(g *v1alpha1.QTLSGateway, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: redisMeta(g),
		Type:       corev1.SecretTypeOpaque,
		Data:       data,
	}
}

// RedisService gives each member a name.
func RedisService(g *v1alpha1.QTLSGateway) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: redisMeta(g),
		Spec: corev1.ServiceSpec{
			Type:      corev1.ServiceTypeClusterIP,
			ClusterIP: corev1.ClusterIPNone,
			Selector:  RedisSelector(g.Name),
			// Who connects finds out by himself, and sooner.
			PublishNotReadyAddresses: true,
			Ports: []corev1.ServicePort{{
				Name: "redis", Protocol: corev1.ProtocolTCP, Port: embedded.Port, TargetPort: intstr.FromString("redis"),
			}},
		},
	}
}

// RedisNetworkPolicy lets the gateway's pods and the operator in, and nothing
// out.
func RedisNetworkPolicy(g *v1alpha1.QTLSGateway, s Settings) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy"},
		ObjectMeta: redisMeta(g),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: RedisSelector(g.Name)},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				Ports: []networkingv1.NetworkPolicyPort{{
					Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(intstr.FromString("redis")),
				}},
				From: []networkingv1.NetworkPolicyPeer{
					{PodSelector: &metav1.LabelSelector{MatchLabels: Selector(g.Name)}},
					{
						NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.OperatorNamespace}},
						PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/component": "operator"}},
					},
				},
			}},
		},
	}
}

// RedisPodDisruptionBudget keeps one of two. A single one may go: the operator
// writes again what it held, and the gateway's pods do without meanwhile.
func RedisPodDisruptionBudget(g *v1alpha1.QTLSGateway) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"},
		ObjectMeta: redisMeta(g),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(1)),
			Selector:       &metav1.LabelSelector{MatchLabels: RedisSelector(g.Name)},
			// A pod that is not ready takes no new clients: it holds up no drain of a node.
			UnhealthyPodEvictionPolicy: ptr.To(policyv1.AlwaysAllow),
		},
	}
}

// RedisStatefulSet runs the members. They know nothing of each other: a
// StatefulSet only for the names.
func RedisStatefulSet(g *v1alpha1.QTLSGateway, s Settings, data map[string][]byte) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "StatefulSet"},
		ObjectMeta: redisMeta(g),
		Spec: appsv1.StatefulSetSpec{
			Replicas:             ptr.To(RedisReplicas(g)),
			ServiceName:          RedisName(g.Name),
			Selector:             &metav1.LabelSelector{MatchLabels: RedisSelector(g.Name)},
			PodManagementPolicy:  appsv1.ParallelPodManagement,
			UpdateStrategy:       appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
			RevisionHistoryLimit: ptr.To[int32](2),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Labels:      redisPodLabels(g.Name),
					Annotations: map[string]string{AnnotationRedisFiles: hashOf(data, embedded.ServerFiles())},
				},
				Spec: redisPodSpec(g, s),
			},
		},
	}
}

func redisPodSpec(g *v1alpha1.QTLSGateway, s Settings) corev1.PodSpec {
	selector := &metav1.LabelSelector{MatchLabels: RedisSelector(g.Name)}
	var constraints []corev1.TopologySpreadConstraint
	for _, key := range []string{corev1.LabelHostname, corev1.LabelTopologyZone} {
		constraints = append(constraints, corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector,
		})
	}
	var items []corev1.KeyToPath
	for _, name := range embedded.ServerFiles() {
		items = append(items, corev1.KeyToPath{Key: name, Path: name})
	}
	return corev1.PodSpec{
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		TerminationGracePeriodSeconds: ptr.To[int64](10),
		ImagePullSecrets:              pullSecrets(s),
		NodeSelector:                  g.Spec.NodeSelector,
		Tolerations:                   g.Spec.Tolerations,
		TopologySpreadConstraints:     constraints,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   ptr.To(true),
			RunAsUser:      ptr.To[int64](UID),
			RunAsGroup:     ptr.To[int64](UID),
			FSGroup:        ptr.To[int64](UID),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{redisContainer(g, s)},
		Volumes: []corev1.Volume{
			{Name: redisFilesVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName: RedisName(g.Name), DefaultMode: ptr.To[int32](0o440), Items: items,
			}}},
			{Name: redisDataVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
				Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("16Mi")), // nothing touches the node's disk
			}}},
		},
	}
}

func redisContainer(g *v1alpha1.QTLSGateway, s Settings) corev1.Container {
	resources := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
	}
	if e := g.Spec.SessionResumption.Store.Embedded; e != nil && e.Resources != nil {
		resources = *e.Resources
	}
	// A process of its own for each: seldom, but often while it starts.
	probe := func(period, timeout, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:     corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: embedded.ProbeCommand(embedded.FilesDir, embedded.Port)}},
			PeriodSeconds:    period,
			TimeoutSeconds:   timeout,
			FailureThreshold: failures,
		}
	}
	return corev1.Container{
		Name:            "redis",
		Image:           s.RedisImage,
		ImagePullPolicy: s.ImagePullPolicy,
		Command:         embedded.ServerCommand(),
		Ports:           []corev1.ContainerPort{{Name: "redis", ContainerPort: embedded.Port}},
		StartupProbe:    probe(1, 5, 60),
		ReadinessProbe:  probe(10, 5, 2),
		LivenessProbe:   probe(20, 10, 3),
		Resources:       resources,
		SecurityContext: restricted(),
		VolumeMounts: []corev1.VolumeMount{
			{Name: redisFilesVolume, MountPath: embedded.FilesDir, ReadOnly: true},
			{Name: redisDataVolume, MountPath: embedded.DataDir},
		},
	}
}

func hashOf(data map[string][]byte, keys []string) string {
	h := sha256.New()
	for _, key := range keys {
		fmt.Fprintf(h, "%s %d\n", key, len(data[key]))
		h.Write(data[key])
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
