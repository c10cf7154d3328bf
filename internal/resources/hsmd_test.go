package resources

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
}

func TestAllObjectsOfADaemonAreOwnedByThePool(t *testing.T) {
	pool := softPool()
	for _, m := range pool.Spec.Members {
		var kinds []string
		for _, o := range Hsmd(pool, m, settings) {
			kinds = append(kinds, o.GetObjectKind().GroupVersionKind().Kind)
			if !metav1.IsControlledBy(o, pool) || o.GetName() != "dev-"+m.Name+"-hsmd" || o.GetNamespace() != "shop" || o.GetLabels()[v1alpha1.LabelHSMPool] != "dev" {
				t.Errorf("%T %s: owners %v, labels %v", o, o.GetName(), o.GetOwnerReferences(), o.GetLabels())
			}
		}
		slices.Sort(kinds)
		want := []string{"ConfigMap", "NetworkPolicy", "PersistentVolumeClaim", "Service", "ServiceAccount", "StatefulSet"}
		if m.SoftToken.Storage.Ephemeral {
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
	pool := softPool()
	spec := HsmdStatefulSet(pool, pool.Spec.Members[0], settings).Spec.Template.Spec
	if *spec.AutomountServiceAccountToken || !*spec.SecurityContext.RunAsNonRoot || spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("pod: %+v", spec.SecurityContext)
	}
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		if s := c.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("container %s: %+v", c.Name, s)
		}
	}
	// The daemon has no use for the security officer's PIN.
	for _, m := range spec.Containers[0].VolumeMounts {
		if m.Name == "pins" {
			t.Errorf("the daemon sees both PINs: %+v", m)
		}
	}
}

func TestANewConfigurationRestartsADaemon(t *testing.T) {
	pool := softPool()
	files := func() string {
		return HsmdStatefulSet(pool, pool.Spec.Members[0], settings).Spec.Template.Annotations[AnnotationHsmdFiles]
	}
	before := files()
	if before == "" || before != files() {
		t.Errorf("hash %q, and then %q", before, files())
	}
	pool.Spec.Timeout = &metav1.Duration{Duration: 7e9}
	if files() == before {
		t.Error("another timeout, and the same hash")
	}
}
