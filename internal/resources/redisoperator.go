package resources

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/ticketstore/redisoperator"
)

// Images of a store that the Redis Operator runs, where the spec names none.
const (
	redisOperatorImage         = "quay.io/opstree/redis:v8.6.2"
	redisOperatorSentinelImage = "quay.io/opstree/redis-sentinel:v8.6.2"
)

// redisOperatorUID is the user of those images, and the owner of what they write.
const redisOperatorUID = 1000

// RedisOperatorName of the objects of a store that the Redis Operator runs. It
// makes Services and StatefulSets of that name, and of longer ones:
// `<name>-follower-additional`. None is an embedded store's.
func RedisOperatorName(gateway string) string { return suffixed(gateway, "-ticket-store", 40) }

// RedisOperatorServerName is the Secret that the servers are given. That of
// RedisOperatorName is the operator's alone.
func RedisOperatorServerName(gateway string) string { return RedisOperatorName(gateway) + "-server" }

// RedisOperatorKind of a gateway's store.
func RedisOperatorKind(g *v1alpha1.QTLSGateway) v1alpha1.RedisOperatorKind {
	return cmp.Or(redisOperatorSpec(g).Kind, v1alpha1.RedisOperatorReplication)
}

func redisOperatorSpec(g *v1alpha1.QTLSGateway) v1alpha1.RedisOperatorStore {
	return ptr.Deref(g.Spec.SessionResumption.Store.RedisOperator, v1alpha1.RedisOperatorStore{})
}

// RedisOperatorHosts are the names in the servers' certificate: the Services of
// both kinds, and the pods behind them.
func RedisOperatorHosts(g *v1alpha1.QTLSGateway) []string {
	name, domain := RedisOperatorName(g.Name), "."+g.Namespace+".svc"
	hosts := []string{name + domain}
	for _, service := range []string{"-master", "-replica", "-leader", "-follower"} {
		hosts = append(hosts, name+service+domain)
	}
	for _, headless := range []string{"-headless", "-leader-headless", "-follower-headless", "-s-hl"} {
		hosts = append(hosts, name+headless+domain, "*."+name+headless+domain)
	}
	return hosts
}

// RedisOperator is all objects of a store that the Redis Operator runs; the last
// is its own.
func RedisOperator(g *v1alpha1.QTLSGateway, s Settings, c *redisoperator.Credentials) ([]client.Object, error) {
	own, err := c.Data()
	if err != nil {
		return nil, err
	}
	server, err := c.ServerData()
	if err != nil {
		return nil, err
	}
	object, err := RedisOperatorObject(g, s, server)
	if err != nil {
		return nil, err
	}
	return []client.Object{
		RedisOperatorSecret(g, RedisOperatorName(g.Name), own), RedisOperatorSecret(g, RedisOperatorServerName(g.Name), server),
		RedisOperatorConfigMap(g), object,
	}, nil
}

// RedisOperatorSecret is either of the two.
func RedisOperatorSecret(g *v1alpha1.QTLSGateway, name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: redisOperatorMeta(g, name),
		Type:       corev1.SecretTypeOpaque,
		Data:       data,
	}
}

// RedisOperatorConfigMap is what the servers include. While it is there, the
// other objects may be.
func RedisOperatorConfigMap(g *v1alpha1.QTLSGateway) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: redisOperatorMeta(g, RedisOperatorName(g.Name)),
		Data:       map[string]string{redisoperator.KeyConfig: redisoperator.Config},
	}
}

func redisOperatorMeta(g *v1alpha1.QTLSGateway, name string) metav1.ObjectMeta {
	m := meta(g, name)
	m.Labels = redisOperatorLabels(g.Name)
	m.Labels[v1alpha1.LabelGateway] = g.Name
	return m
}

// redisOperatorSelector finds the servers' pods: the Redis Operator gives them
// the object's labels.
func redisOperatorSelector(gateway string) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":     "qtls-ticket-store",
		"app.kubernetes.io/instance": gateway,
	}
}

func redisOperatorLabels(gateway string) map[string]string {
	labels := redisOperatorSelector(gateway)
	labels[v1alpha1.LabelManagedBy] = v1alpha1.LabelManagedByValue
	labels["app.kubernetes.io/component"] = "ticket-store"
	return labels
}

// What is written of the Redis Operator's types, of those of its release v0.26.
// Server-side apply refuses a field that the installed release does not have.
type (
	operatedReplication struct {
		ClusterSize        int32                      `json:"clusterSize"`
		KubernetesConfig   operatedConfig             `json:"kubernetesConfig"`
		RedisConfig        operatedInclude            `json:"redisConfig"`
		TLS                operatedTLS                `json:"TLS"`
		ACL                operatedUsers              `json:"acl"`
		PodSecurityContext *corev1.PodSecurityContext `json:"podSecurityContext"`
		PDB                operatedBudget             `json:"pdb"`
		Sentinel           *operatedSentinels         `json:"sentinel,omitempty"`
		operatedContainer
		operatedPlacement
	}
	operatedCluster struct {
		ClusterSize        int32                      `json:"clusterSize"`
		KubernetesConfig   operatedConfig             `json:"kubernetesConfig"`
		TLS                operatedTLS                `json:"TLS"`
		ACL                operatedUsers              `json:"acl"`
		PodSecurityContext *corev1.PodSecurityContext `json:"podSecurityContext"`
		PersistenceEnabled bool                       `json:"persistenceEnabled"`
		RedisLeader        operatedRole               `json:"redisLeader"`
		RedisFollower      operatedRole               `json:"redisFollower"`
	}
	operatedRole struct {
		RedisConfig operatedInclude `json:"redisConfig"`
		PDB         operatedBudget  `json:"pdb"`
		operatedContainer
		operatedPlacement
	}
	operatedContainer struct {
		SecurityContext *corev1.SecurityContext `json:"securityContext"`
	}
	operatedPlacement struct {
		NodeSelector              map[string]string                 `json:"nodeSelector,omitempty"`
		Tolerations               []corev1.Toleration               `json:"tolerations,omitempty"`
		TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints"`
	}
	operatedConfig struct {
		Image            string                        `json:"image"`
		ImagePullPolicy  corev1.PullPolicy             `json:"imagePullPolicy"`
		ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
		Resources        corev1.ResourceRequirements   `json:"resources"`
		RedisSecret      *operatedPassword             `json:"redisSecret,omitempty"`
	}
	operatedPassword struct {
		Name string `json:"name"`
		Key  string `json:"key"`
	}
	operatedInclude struct {
		AdditionalRedisConfig string `json:"additionalRedisConfig"`
	}
	operatedTLS struct {
		CA     string                    `json:"ca"`
		Cert   string                    `json:"cert"`
		Key    string                    `json:"key"`
		Secret corev1.SecretVolumeSource `json:"secret"`
	}
	operatedUsers struct {
		Secret corev1.SecretVolumeSource `json:"secret"`
	}
	operatedBudget struct {
		Enabled        bool  `json:"enabled"`
		MaxUnavailable int32 `json:"maxUnavailable"`
	}
	operatedSentinels struct {
		operatedConfig
		Size int32 `json:"size"`
	}
)

// RedisOperatorObject is the RedisReplication or RedisCluster. Its annotations
// are those of the servers' pods too: they restart one by one when their files
// change.
func RedisOperatorObject(g *v1alpha1.QTLSGateway, s Settings, server map[string][]byte) (*unstructured.Unstructured, error) {
	e := redisOperatorSpec(g)
	files := func(keys ...string) corev1.SecretVolumeSource {
		var items []corev1.KeyToPath
		for _, key := range keys {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
		return corev1.SecretVolumeSource{SecretName: RedisOperatorServerName(g.Name), Items: items}
	}
	selector := &metav1.LabelSelector{MatchLabels: redisOperatorSelector(g.Name)}
	placement := operatedPlacement{NodeSelector: g.Spec.NodeSelector, Tolerations: g.Spec.Tolerations}
	for _, key := range []string{corev1.LabelHostname, corev1.LabelTopologyZone} {
		placement.TopologySpreadConstraints = append(placement.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector,
		})
	}
	var (
		size      = ptr.Deref(e.ClusterSize, v1alpha1.DefaultRedisServers)
		config    = operatedInclude{RedisOperatorName(g.Name)}
		budget    = operatedBudget{Enabled: true, MaxUnavailable: 1}
		encrypted = operatedTLS{redisoperator.KeyAuthority, redisoperator.KeyCertificate, redisoperator.KeyPrivateKey,
			files(redisoperator.KeyAuthority, redisoperator.KeyCertificate, redisoperator.KeyPrivateKey)}
		users = operatedUsers{files(redisoperator.KeyUsers)}
		pod   = &corev1.PodSecurityContext{
			RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](redisOperatorUID), RunAsGroup: ptr.To[int64](redisOperatorUID), FSGroup: ptr.To[int64](redisOperatorUID),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
		// The images write their configuration beside what they are made of.
		container = operatedContainer{&corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}
		servers   = operatedKubernetesConfig(e, s, cmp.Or(e.Image, redisOperatorImage))
	)
	servers.RedisSecret = &operatedPassword{Name: RedisOperatorServerName(g.Name), Key: redisoperator.KeyPassword}
	var spec any
	if RedisOperatorKind(g) == v1alpha1.RedisOperatorCluster {
		role := operatedRole{RedisConfig: config, PDB: budget, operatedContainer: container, operatedPlacement: placement}
		spec = &operatedCluster{ClusterSize: size, KubernetesConfig: servers, TLS: encrypted, ACL: users, PodSecurityContext: pod,
			RedisLeader: role, RedisFollower: role}
	} else {
		replication := &operatedReplication{ClusterSize: size, KubernetesConfig: servers, RedisConfig: config, TLS: encrypted, ACL: users,
			PodSecurityContext: pod, PDB: budget, operatedContainer: container, operatedPlacement: placement}
		if e.Sentinel != nil {
			replication.Sentinel = &operatedSentinels{operatedKubernetesConfig(e, s, cmp.Or(e.Sentinel.Image, redisOperatorSentinelImage)), ptr.Deref(e.Sentinel.Size, v1alpha1.DefaultSentinels)}
		}
		spec = replication
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		return nil, err
	}
	u := RedisOperatorReference(g, RedisOperatorKind(g))
	m := redisOperatorMeta(g, u.GetName())
	u.SetOwnerReferences(m.OwnerReferences)
	// Not the label by which the operator finds the gateways' own pods: the
	// servers' would have it.
	u.SetLabels(redisOperatorLabels(g.Name))
	u.SetAnnotations(map[string]string{AnnotationRedisFiles: hashOf(server, []string{
		redisoperator.KeyAuthority, redisoperator.KeyCertificate, redisoperator.KeyPrivateKey, redisoperator.KeyUsers, redisoperator.KeyPassword})})
	u.Object["spec"] = content
	return u, nil
}

// RedisOperatorReference is a gateway's object of one of the Redis Operator's
// kinds, by name alone.
func RedisOperatorReference(g *v1alpha1.QTLSGateway, kind v1alpha1.RedisOperatorKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(redisoperator.GroupVersion.WithKind(string(kind)))
	u.SetNamespace(g.Namespace)
	u.SetName(RedisOperatorName(g.Name))
	return u
}

func operatedKubernetesConfig(e v1alpha1.RedisOperatorStore, s Settings, image string) operatedConfig {
	c := operatedConfig{Image: image, ImagePullPolicy: corev1.PullIfNotPresent, ImagePullSecrets: pullSecrets(s), Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
	}}
	if e.Resources != nil {
		c.Resources = *e.Resources
	}
	return c
}
