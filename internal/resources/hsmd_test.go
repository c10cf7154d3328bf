package resources

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"qtls.dev/qtls/api/v1alpha1"
)

func softPool() *v1alpha1.HSMPool {
	return &v1alpha1.HSMPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "dev", UID: "51ab"},
		Spec: v1alpha1.HSMPoolSpec{Members: []v1alpha1.HSMMember{
			{Name: "soft-a", SoftToken: &v1alpha1.SoftToken{}},
			{Name: "soft-b", SoftToken: &v1alpha1.SoftToken{Storage: v1alpha1.SoftTokenStorage{Ephemeral: true}}},
		}},
	}
}

// vendor is a member with a library that needs all that one may need.
func vendor() v1alpha1.HSMMember {
	return v1alpha1.HSMMember{Name: "luna", Daemon: &v1alpha1.HSMDaemon{
		Module: v1alpha1.HSMModule{
			Image: "registry.example/luna:10", Folder: "/opt/luna", Path: "/opt/luna/lib/libCryptoki2.so",
			Files: []v1alpha1.HSMModuleFiles{
				{Folder: "/etc/luna", ConfigMapRef: &v1alpha1.ConfigMapReference{Name: "luna-config"}},
				{Folder: "/etc/luna-cert", SecretRef: &v1alpha1.SecretReference{Name: "luna-cert"}},
			},
			Environment: []v1alpha1.HSMModuleVariable{{Name: "ChrystokiConfigurationPath", Value: "/etc/luna"}},
		},
		HSMToken:     v1alpha1.HSMToken{Token: "gateways", PINSecretRef: v1alpha1.SecretReference{Name: "luna-pin"}, Sessions: 16},
		NodeSelector: map[string]string{"hsm": "luna"}, Tolerations: []corev1.Toleration{{Key: "hsm", Operator: corev1.TolerationOpExists}},
		SupplementalGroups: []int64{987},
		Resources:          &corev1.ResourceRequirements{Limits: corev1.ResourceList{"vendor.example/hsm": resource.MustParse("1")}},
	}}
}

func TestTheObjectsOfADaemonAreTheGoldenOnes(t *testing.T) {
	pool := softPool()
	soft, ephemeral := pool.Spec.Members[0], pool.Spec.Members[1]
	golden(t, "hsmd-statefulset", HsmdStatefulSet(pool, soft, settings))
	golden(t, "hsmd-statefulset-ephemeral", HsmdStatefulSet(pool, ephemeral, settings))
	golden(t, "hsmd-config", HsmdConfig(pool, soft))
	golden(t, "hsmd-networkpolicy", HsmdNetworkPolicy(pool, soft, settings))
	golden(t, "hsmd-service", HsmdService(pool, soft))
	golden(t, "hsmd-serviceaccount", HsmdServiceAccount(pool, soft))
	golden(t, "hsmd-claim", SoftTokenClaim(pool, soft))
	golden(t, "hsmd-secret", HsmdSecret(pool, "soft-a", map[string][]byte{corev1.TLSCertKey: []byte("certificate")}))
	golden(t, "hsmd-pin", PINSecret(pool, soft, map[string][]byte{KeyUserPIN: []byte("pin")}))
	golden(t, "hsm-secret", HSMSecret(pool, "dev-hsm-operator", map[string][]byte{corev1.TLSCertKey: []byte("certificate")}))
	golden(t, "hsm-budget", HSMPodDisruptionBudget(pool))
	golden(t, "hsmd-vendor-statefulset", HsmdStatefulSet(pool, vendor(), settings))
	golden(t, "hsmd-vendor-config", HsmdConfig(pool, vendor()))
	golden(t, "hsmd-vendor-networkpolicy", HsmdNetworkPolicy(pool, vendor(), settings))
	copied := vendor()
	copied.Daemon.Module.Copy, copied.Daemon.Token, copied.Daemon.Serial = true, "", "1234"
	golden(t, "hsmd-vendor-copy-statefulset", HsmdStatefulSet(pool, copied, settings))
	golden(t, "hsmd-vendor-serial-config", HsmdConfig(pool, copied))
}

func TestAllObjectsOfADaemonAreOwnedByThePool(t *testing.T) {
	pool := softPool()
	for _, m := range append(pool.Spec.Members, vendor()) {
		var kinds []string
		for _, o := range append(Hsmd(pool, m, settings), HsmdConfig(pool, m), HsmdStatefulSet(pool, m, settings)) {
			kinds = append(kinds, o.GetObjectKind().GroupVersionKind().Kind)
			if !metav1.IsControlledBy(o, pool) || o.GetName() != "dev-"+m.Name+"-hsmd" || o.GetNamespace() != "shop" || o.GetLabels()[v1alpha1.LabelHSMPool] != "dev" {
				t.Errorf("%T %s: owners %v, labels %v", o, o.GetName(), o.GetOwnerReferences(), o.GetLabels())
			}
		}
		slices.Sort(kinds)
		want := []string{"ConfigMap", "NetworkPolicy", "PersistentVolumeClaim", "Service", "ServiceAccount", "StatefulSet"}
		if m.SoftToken == nil || m.SoftToken.Storage.Ephemeral {
			want = slices.Delete(want, 2, 3)
		}
		if !slices.Equal(kinds, want) {
			t.Errorf("member %s: kinds %v, want %v", m.Name, kinds, want)
		}
	}
}

func TestEachDaemonHasItsOwnPod(t *testing.T) {
	pool := softPool()
	pod := labels.Set(HsmdStatefulSet(pool, pool.Spec.Members[0], settings).Spec.Template.Labels)
	for name, c := range map[string]struct {
		selector map[string]string
		matches  bool
	}{
		"its Service":                       {HsmdService(pool, pool.Spec.Members[0]).Spec.Selector, true},
		"the pool's disruption budget":      {HSMPodDisruptionBudget(pool).Spec.Selector.MatchLabels, true},
		"another member's Service":          {HsmdService(pool, pool.Spec.Members[1]).Spec.Selector, false},
		"a gateway of the pool's name":      {Selector("dev"), false},
		"a ticket store of the pool's name": {RedisSelector("dev"), false},
	} {
		if got := labels.SelectorFromSet(c.selector).Matches(pod); got != c.matches {
			t.Errorf("%s: the labels %v match: %t, want %t", name, pod, got, c.matches)
		}
	}
}

func TestADaemonsPodIsRestricted(t *testing.T) {
	pool, copied := softPool(), vendor()
	copied.Daemon.Module.Copy = true
	for _, m := range append(pool.Spec.Members, vendor(), copied) {
		restrictedPod(t, HsmdStatefulSet(pool, m, settings).Spec.Template.Spec)
	}
	// The daemon has no use for the security officer's PIN.
	for _, m := range HsmdStatefulSet(pool, pool.Spec.Members[0], settings).Spec.Template.Spec.Containers[0].VolumeMounts {
		if m.Name == "pins" {
			t.Errorf("the daemon sees both PINs: %+v", m)
		}
	}
}

func restrictedPod(t *testing.T, spec corev1.PodSpec) {
	t.Helper()
	if *spec.AutomountServiceAccountToken || !*spec.SecurityContext.RunAsNonRoot || spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("pod: %+v", spec.SecurityContext)
	}
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		if s := c.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("container %s: %+v", c.Name, s)
		}
	}
}

// With the other policy a typo in an image's name would stay: its pod never
// becomes ready, and the controller waits for that before it replaces it.
func TestADaemonThatNeverBecameReadyCanBeCorrected(t *testing.T) {
	pool := softPool()
	for _, m := range append(pool.Spec.Members, vendor()) {
		if policy := HsmdStatefulSet(pool, m, settings).Spec.PodManagementPolicy; policy != appsv1.ParallelPodManagement {
			t.Errorf("member %s: %q", m.Name, policy)
		}
	}
}

// A client that gives up first takes a queue that is too long for an HSM that
// hangs.
func TestADaemonGivesUpBeforeItsClients(t *testing.T) {
	pool := softPool()
	for timeout, want := range map[time.Duration]string{100 * time.Millisecond: "80ms", 5 * time.Second: "4000ms", time.Minute: "48000ms"} {
		pool.Spec.Timeout = &metav1.Duration{Duration: timeout}
		config := HsmdConfig(pool, pool.Spec.Members[0]).Data[hsmdConfigFile]
		if line := "\ntimeout = " + want + "\n"; !strings.Contains(config, line) {
			t.Errorf("a pool with %s: no line %q in\n%s", timeout, line, config)
		}
	}
}

// The set's annotation tells the controller so, before it does.
func TestANewConfigurationRestartsADaemon(t *testing.T) {
	pool, s := softPool(), settings
	hashes := func() [2]string {
		set := HsmdStatefulSet(pool, pool.Spec.Members[0], s)
		return [2]string{set.Spec.Template.Annotations[AnnotationHsmdFiles], set.Annotations[AnnotationHsmdTemplate]}
	}
	before := hashes()
	if before[0] == "" || before[1] == "" || before != hashes() {
		t.Errorf("hashes %q, and then %q", before, hashes())
	}
	pool.Spec.Timeout = &metav1.Duration{Duration: 7e9}
	timeout := hashes()
	if timeout[0] == before[0] || timeout[1] == before[1] {
		t.Errorf("another timeout: hashes %q, and then %q", before, timeout)
	}
	s.HSMImage = "registry.example/hsm:2"
	if image := hashes(); image[0] != timeout[0] || image[1] == timeout[1] {
		t.Errorf("another image: hashes %q, and then %q", timeout, image)
	}
}
