package resources

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/hsmpool"
)

// Names by which daemons know their clients: DNS names of certificates, all of
// the pool's own authority.
const (
	HsmdOperator = "operator"
	HsmdGateways = "gateways"
)

const (
	hsmdConfigDir = "/etc/hsmd"
	hsmdTLSDir    = "/run/secrets/hsmd"
	hsmdPINDir    = "/run/secrets/token"
	hsmdDataDir   = "/var/lib/token"

	hsmdConfigFile     = "hsmd.conf"
	kryopticConfigFile = "kryoptic.conf"
	kryopticModule     = "/usr/lib/pkcs11/libkryoptic_pkcs11.so"

	hsmdMetricsPort = 7444
	// hsmdDrain is how long a daemon that ends waits for what is in flight.
	hsmdDrain = 20

	// KeyUserPIN and KeyOfficerPIN are the Secret keys of a token's PINs.
	KeyUserPIN    = hsmpool.PINKey
	KeyOfficerPIN = "so-pin"

	// AnnotationHsmdFiles is, on a daemon's pod, a hash of the configuration that
	// it started with. Certificates are not in it: they are read anew.
	AnnotationHsmdFiles = v1alpha1.GroupName + "/files"
	// AnnotationHsmdPINs is, on the pod of an ephemeral token, the UID of the
	// Secret with the PINs that it was made with.
	AnnotationHsmdPINs = v1alpha1.GroupName + "/pins"
	// AnnotationHsmdTemplate is, on a daemon's StatefulSet, a hash of the pod's
	// template as it was wanted: another one replaces the pod.
	AnnotationHsmdTemplate = v1alpha1.GroupName + "/template"
)

// HsmdSelector of the pod of a member's daemon.
func HsmdSelector(pool, member string) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":     "qtls-hsmd",
		"app.kubernetes.io/instance": hsmpool.DaemonName(pool, member),
	}
}

// hsmdPoolSelector of the pods of all daemons of a pool.
func hsmdPoolSelector(pool string) map[string]string {
	return map[string]string{"app.kubernetes.io/name": "qtls-hsmd", v1alpha1.LabelHSMPool: pool}
}

func hsmdLabels(pool, member string) map[string]string {
	labels := HsmdSelector(pool, member)
	labels[v1alpha1.LabelHSMPool] = pool
	labels[v1alpha1.LabelHSMMember] = member
	labels[v1alpha1.LabelManagedBy] = v1alpha1.LabelManagedByValue
	labels["app.kubernetes.io/component"] = "hsm"
	return labels
}

func poolMeta(pool *v1alpha1.HSMPool, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: pool.Namespace,
		Name:      name,
		Labels: map[string]string{
			"app.kubernetes.io/name":      "qtls-hsmd",
			"app.kubernetes.io/component": "hsm",
			v1alpha1.LabelHSMPool:         pool.Name,
			v1alpha1.LabelManagedBy:       v1alpha1.LabelManagedByValue,
		},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pool, v1alpha1.GroupVersion.WithKind("HSMPool"))},
	}
}

func hsmdMeta(pool *v1alpha1.HSMPool, member string) metav1.ObjectMeta {
	m := poolMeta(pool, hsmpool.DaemonName(pool.Name, member))
	m.Labels = hsmdLabels(pool.Name, member)
	return m
}

// Hsmd is what a member's daemon needs around it, but its Secrets. What its pod is
// made of, HsmdConfig and HsmdStatefulSet, changes together.
func Hsmd(pool *v1alpha1.HSMPool, m v1alpha1.HSMMember, s Settings) []client.Object {
	objects := []client.Object{HsmdServiceAccount(pool, m), HsmdNetworkPolicy(pool, m, s), HsmdService(pool, m)}
	if claim := SoftTokenClaim(pool, m); claim != nil {
		objects = append(objects, claim)
	}
	return objects
}

// HSMSecret is a Secret of a pool whose daemons the operator runs: its
// authority, or what clients show.
func HSMSecret(pool *v1alpha1.HSMPool, name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: poolMeta(pool, name),
		Type:       corev1.SecretTypeTLS,
		Data:       data,
	}
}

// HsmdSecret holds the certificate of a member's daemon.
func HsmdSecret(pool *v1alpha1.HSMPool, member string, data map[string][]byte) *corev1.Secret {
	s := HSMSecret(pool, hsmpool.DaemonName(pool.Name, member), data)
	s.ObjectMeta = hsmdMeta(pool, member)
	return s
}

// PINSecret holds the PINs of a token in software.
func PINSecret(pool *v1alpha1.HSMPool, m v1alpha1.HSMMember, data map[string][]byte) *corev1.Secret {
	s := HSMSecret(pool, hsmpool.PINSecretName(pool.Name, m), data)
	s.Type = corev1.SecretTypeOpaque
	return s
}

// HsmdServiceAccount is nobody: a daemon does not speak to the API.
func HsmdServiceAccount(pool *v1alpha1.HSMPool, m v1alpha1.HSMMember) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta:                     metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta:                   hsmdMeta(pool, m.Name),
		AutomountServiceAccountToken: ptr.To(false),
	}
}

// hsmdConnections that a daemon takes: a gateway's pod opens as many as it may
// have signatures under way (hsmpool.GatewayMember.Sessions), and twice that
// while HAProxy reloads. An idle one costs the stacks of two threads.
const hsmdConnections = 1024

// HsmdConfig is the daemon's configuration, and its module's.
func HsmdConfig(pool *v1alpha1.HSMPool, m v1alpha1.HSMMember) *corev1.ConfigMap {
	var b strings.Builder
	section := func(title string, lines ...string) {
		fmt.Fprintf(&b, "[%s]\n%s\n", title, strings.Join(lines, "\n"))
	}
	section("daemon",
		fmt.Sprintf("listen = [::]:%d", hsmpool.DaemonPort),
		fmt.Sprintf("metrics = [::]:%d", hsmdMetricsPort),
		"certificate-file = "+hsmdTLSDir+"/"+corev1.TLSCertKey,
		"key-file = "+hsmdTLSDir+"/"+corev1.TLSPrivateKeyKey,
		"client-ca-file = "+hsmdTLSDir+"/"+corev1.ServiceAccountRootCAKey,
		fmt.Sprintf("connections = %d", hsmdConnections),
		fmt.Sprintf("drain = %ds", hsmdDrain),
	)
	section("token", append(tokenLines(m),
		"pin-file = "+hsmdPINDir+"/"+KeyUserPIN,
		// Shorter than its clients': they get its word, "no free session" perhaps,
		// instead of giving the member up as one that hangs.
		fmt.Sprintf("timeout = %dms", hsmpool.Timeout(pool).Milliseconds()*4/5),
	)...)
	section("client "+HsmdOperator, "keys = *", "may = status, find, sign, generate, retire")
	if m.Module == nil { // gateways have the library themselves
		section("client "+HsmdGateways, "keys = *", "may = status, find, sign")
	}
	files := map[string]string{hsmdConfigFile: b.String()}
	if m.SoftToken != nil {
		files[kryopticConfigFile] = fmt.Sprintf("[[slots]]\nslot = 1\ndbtype = \"sqlite\"\ndbargs = \"%s/token.sql\"\n", hsmdDataDir)
	}
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: hsmdMeta(pool, m.Name),
		Data:       files,
	}
}

// tokenLines say which token of which library.
func tokenLines(m v1alpha1.HSMMember) []string {
	l, ok := hsmpool.LibraryOf(m)
	if !ok {
		return []string{"module = " + kryopticModule, "token = " + softTokenLabel(m)}
	}
	token := "token = " + l.Token.Token
	if l.Token.Serial != "" {
		token = "serial = " + l.Token.Serial
	}
	return []string{"module = " + l.Module.Path, token, fmt.Sprintf("sessions = %d", cmp.Or(l.Token.Sessions, v1alpha1.DefaultHSMSessions))}
}

// softTokenLabel is the label of a token in software.
func softTokenLabel(m v1alpha1.HSMMember) string {
	if m.SoftToken.Storage.Shared {
		return "shared"
	}
	return m.Name
}

// HsmdNetworkPolicy lets the operator and, unless they have the library
// themselves, the pods of the namespace's gateways in, and anybody who scrapes metrics. Nothing gets out of a token in software;
// a vendor's library may have to reach its HSM.
func HsmdNetworkPolicy(pool *v1alpha1.HSMPool, m v1alpha1.HSMMember, s Settings) *networkingv1.NetworkPolicy {
	port := func(name string) []networkingv1.NetworkPolicyPort {
		return []networkingv1.NetworkPolicyPort{{Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(intstr.FromString(name))}}
	}
	clients := []networkingv1.NetworkPolicyPeer{{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.OperatorNamespace}},
		PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/component": "operator"}},
	}}
	if m.Module == nil {
		gateways := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: SelectorOfAll()}}
		clients = append([]networkingv1.NetworkPolicyPeer{gateways}, clients...)
	}
	directions := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	if m.SoftToken != nil {
		directions = append(directions, networkingv1.PolicyTypeEgress)
	}
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy"},
		ObjectMeta: hsmdMeta(pool, m.Name),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: HsmdSelector(pool.Name, m.Name)},
			PolicyTypes: directions,
			Ingress: []networkingv1.NetworkPolicyIngressRule{
				{Ports: port("hsm"), From: clients},
				{Ports: port("metrics")},
			},
		},
	}
}

// HsmdService is where a member's daemon is. While its pod is not ready,
// connections are refused at once.
func HsmdService(pool *v1alpha1.HSMPool, m v1alpha1.HSMMember) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: hsmdMeta(pool, m.Name),
		Spec: corev1.ServiceSpec{
			Type:     corev1.ServiceTypeClusterIP,
			Selector: HsmdSelector(pool.Name, m.Name),
			Ports: []corev1.ServicePort{{
				Name: "hsm", Protocol: corev1.ProtocolTCP, Port: hsmpool.DaemonPort, TargetPort: intstr.FromString("hsm"),
			}},
		},
	}
}

// HSMPodDisruptionBudget lets one daemon of a pool at a time be evicted.
func HSMPodDisruptionBudget(pool *v1alpha1.HSMPool) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"},
		ObjectMeta: poolMeta(pool, pool.Name+"-hsm"),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(1)),
			Selector:       &metav1.LabelSelector{MatchLabels: hsmdPoolSelector(pool.Name)},
			// A pod that is not ready takes no new clients: it holds up no drain of a node.
			UnhealthyPodEvictionPolicy: ptr.To(policyv1.AlwaysAllow),
		},
	}
}

// SoftTokenClaim is the volume of a token in software; nil for one that is
// ephemeral, and for other members. It is the pool's own rather than its StatefulSet's, and so goes
// when the PINs go, with the pool.
func SoftTokenClaim(pool *v1alpha1.HSMPool, m v1alpha1.HSMMember) *corev1.PersistentVolumeClaim {
	if m.SoftToken == nil {
		return nil
	}
	storage, mode := m.SoftToken.Storage, corev1.ReadWriteOnce
	switch {
	case storage.Ephemeral:
		return nil
	case storage.Shared:
		mode = corev1.ReadWriteMany
		for _, other := range slices.Backward(pool.Spec.Members) {
			if s := other.SoftToken; s != nil && s.Storage.Shared {
				storage = s.Storage
			}
		}
	}
	return &corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: poolMeta(pool, hsmpool.SoftTokenName(pool.Name, m)),
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{mode},
			StorageClassName: storage.StorageClassName,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: ptr.Deref(storage.Size, resource.MustParse("64Mi")),
			}},
		},
	}
}

// HsmdStatefulSet runs a member's daemon: one pod, and never two of one name.
func HsmdStatefulSet(pool *v1alpha1.HSMPool, m v1alpha1.HSMMember, s Settings) *appsv1.StatefulSet {
	files := map[string][]byte{}
	for name, content := range HsmdConfig(pool, m).Data {
		files[name] = []byte(content)
	}
	set := &appsv1.StatefulSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "StatefulSet"},
		ObjectMeta: hsmdMeta(pool, m.Name),
		Spec: appsv1.StatefulSetSpec{
			Replicas:             ptr.To[int32](1),
			ServiceName:          hsmpool.DaemonName(pool.Name, m.Name),
			Selector:             &metav1.LabelSelector{MatchLabels: HsmdSelector(pool.Name, m.Name)},
			PodManagementPolicy:  appsv1.ParallelPodManagement, // a pod that never becomes ready is replaced, too
			UpdateStrategy:       appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
			RevisionHistoryLimit: ptr.To[int32](2),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Labels:      hsmdLabels(pool.Name, m.Name),
					Annotations: map[string]string{AnnotationHsmdFiles: hashOf(files, []string{hsmdConfigFile, kryopticConfigFile})},
				},
				Spec: hsmdPodSpec(pool, m, s),
			},
		},
	}
	set.Annotations = map[string]string{AnnotationHsmdTemplate: hashOfTemplate(set.Spec.Template)}
	return set
}

// WithPINs has an ephemeral token made anew when its PINs are: other PINs open no
// token that is there.
func WithPINs(set *appsv1.StatefulSet, secret types.UID) *appsv1.StatefulSet {
	set.Spec.Template.Annotations[AnnotationHsmdPINs] = string(secret)
	set.Annotations[AnnotationHsmdTemplate] = hashOfTemplate(set.Spec.Template)
	return set
}

func hashOfTemplate(template corev1.PodTemplateSpec) string {
	text, err := json.Marshal(template)
	if err != nil {
		panic(err) // there is nothing in it that JSON does not have
	}
	const name = "template"
	return hashOf(map[string][]byte{name: text}, []string{name})
}

func hsmdPodSpec(pool *v1alpha1.HSMPool, m v1alpha1.HSMMember, s Settings) corev1.PodSpec {
	name := hsmpool.DaemonName(pool.Name, m.Name)
	var constraints []corev1.TopologySpreadConstraint
	for _, key := range []string{corev1.LabelHostname, corev1.LabelTopologyZone} {
		constraints = append(constraints, corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: hsmdPoolSelector(pool.Name)},
		})
	}
	spec := corev1.PodSpec{
		ServiceAccountName:            name,
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		TerminationGracePeriodSeconds: ptr.To[int64](hsmdDrain + graceBeyondDrain),
		ImagePullSecrets:              pullSecrets(s),
		TopologySpreadConstraints:     constraints,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:        ptr.To(true),
			RunAsUser:           ptr.To[int64](UID),
			RunAsGroup:          ptr.To[int64](UID),
			FSGroup:             ptr.To[int64](UID),
			FSGroupChangePolicy: ptr.To(corev1.FSGroupChangeOnRootMismatch),
			SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{hsmdContainer(m, s)},
		Volumes: []corev1.Volume{
			{Name: "config", VolumeSource: ofConfigMap(name)},
			{Name: "tls", VolumeSource: ofSecret(name)},
		},
	}
	if m.SoftToken != nil {
		addSoftToken(&spec, pool, m, s)
	} else {
		l, _ := hsmpool.LibraryOf(m)
		addModule(&spec, l, s)
	}
	if d := m.Daemon; d != nil { // where its device may be
		spec.NodeSelector, spec.Tolerations = d.NodeSelector, d.Tolerations
		spec.SecurityContext.SupplementalGroups = d.SupplementalGroups
	}
	return spec
}

func ofConfigMap(name string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
}

// ofSecret is a volume of a Secret's keys: of all if none is named.
func ofSecret(name string, keys ...string) corev1.VolumeSource {
	var items []corev1.KeyToPath
	for _, k := range keys {
		items = append(items, corev1.KeyToPath{Key: k, Path: k})
	}
	return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, DefaultMode: ptr.To[int32](0o440), Items: items}}
}

func mount(c *corev1.Container, mounts ...corev1.VolumeMount) {
	c.VolumeMounts = append(c.VolumeMounts, mounts...)
}

// addSoftToken gives a pod a token in software.
func addSoftToken(spec *corev1.PodSpec, pool *v1alpha1.HSMPool, m v1alpha1.HSMMember, s Settings) {
	data := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
		Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("64Mi")), // keys touch no node's disk
	}}
	if claim := SoftTokenClaim(pool, m); claim != nil {
		data = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}
	}
	pins := hsmpool.PINSecretName(pool.Name, m)
	spec.Volumes = append(spec.Volumes,
		corev1.Volume{Name: "pin", VolumeSource: ofSecret(pins, KeyUserPIN)},
		corev1.Volume{Name: "pins", VolumeSource: ofSecret(pins, KeyUserPIN, KeyOfficerPIN)},
		corev1.Volume{Name: "token", VolumeSource: data},
	)
	spec.InitContainers = append(spec.InitContainers, softTokenContainer(m, s))
	hsmd := &spec.Containers[0]
	hsmd.Env = kryopticEnvironment()
	mount(hsmd, corev1.VolumeMount{Name: "pin", MountPath: hsmdPINDir, ReadOnly: true}, corev1.VolumeMount{Name: "token", MountPath: hsmdDataDir})
}

// addModule gives a daemon's pod a vendor's library.
func addModule(spec *corev1.PodSpec, l hsmpool.Library, s Settings) {
	hsmd := &spec.Containers[0]
	addImage(spec, hsmd, "", l.Module, s)
	addTemporary(spec, hsmd, "tmp")
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "pin", VolumeSource: ofSecret(l.Token.PINSecretRef.Name, KeyUserPIN)})
	mount(hsmd, corev1.VolumeMount{Name: "pin", MountPath: hsmdPINDir, ReadOnly: true})
	addFiles(spec, hsmd, "", l.Module, false)
}

// softTokenContainer makes the token, unless it is there.
func softTokenContainer(m v1alpha1.HSMMember, s Settings) corev1.Container {
	return corev1.Container{
		Name:            "init-soft-token",
		Image:           s.HSMImage,
		ImagePullPolicy: s.ImagePullPolicy,
		Command: []string{"/usr/bin/hsmd", "init-soft-token", "--module", kryopticModule, "--label", softTokenLabel(m), "--lock", hsmdDataDir + "/lock",
			"--pin-file", hsmdPINDir + "/" + KeyUserPIN, "--so-pin-file", hsmdPINDir + "/" + KeyOfficerPIN},
		Env:             kryopticEnvironment(),
		Resources:       HSMDResources(m),
		SecurityContext: restricted(),
		VolumeMounts: []corev1.VolumeMount{
			{Name: "config", MountPath: hsmdConfigDir, ReadOnly: true},
			{Name: "pins", MountPath: hsmdPINDir, ReadOnly: true},
			{Name: "token", MountPath: hsmdDataDir},
		},
	}
}

func hsmdContainer(m v1alpha1.HSMMember, s Settings) corev1.Container {
	probe := func(path string, period, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:     corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("metrics")}},
			PeriodSeconds:    period,
			TimeoutSeconds:   10,
			FailureThreshold: failures,
		}
	}
	return corev1.Container{
		Name:            "hsmd",
		Image:           s.HSMImage,
		ImagePullPolicy: s.ImagePullPolicy,
		Command:         []string{"/usr/bin/hsmd", "--config", hsmdConfigDir + "/" + hsmdConfigFile},
		Ports: []corev1.ContainerPort{
			{Name: "hsm", ContainerPort: hsmpool.DaemonPort},
			{Name: "metrics", ContainerPort: hsmdMetricsPort},
		},
		StartupProbe:    probe("/readyz", 1, 120),
		ReadinessProbe:  probe("/readyz", 5, 2),
		LivenessProbe:   probe("/livez", 20, 3),
		Resources:       HSMDResources(m),
		SecurityContext: restricted(),
		VolumeMounts: []corev1.VolumeMount{
			{Name: "config", MountPath: hsmdConfigDir, ReadOnly: true},
			{Name: "tls", MountPath: hsmdTLSDir, ReadOnly: true},
		},
	}
}

func kryopticEnvironment() []corev1.EnvVar {
	return []corev1.EnvVar{{Name: "KRYOPTIC_CONF", Value: hsmdConfigDir + "/" + kryopticConfigFile}}
}

// HSMDResources of the daemon that the operator runs for a member.
func HSMDResources(m v1alpha1.HSMMember) corev1.ResourceRequirements {
	var wanted *corev1.ResourceRequirements
	switch {
	case m.SoftToken != nil:
		wanted = m.SoftToken.Resources
	case m.Daemon != nil:
		wanted = m.Daemon.Resources
	}
	if wanted != nil {
		return *wanted
	}
	return hsmdDefaults()
}

func hsmdDefaults() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
	}
}
