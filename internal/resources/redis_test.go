package resources

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/ticketstore/embedded"
)

// files of a store, the same in each run.
func files() map[string][]byte {
	data := map[string][]byte{"operator-password": []byte("secret")}
	for _, name := range embedded.ServerFiles() {
		data[name] = []byte("content of " + name)
	}
	return data
}

func available(g *v1alpha1.QTLSGateway) *v1alpha1.QTLSGateway {
	g.Spec.SessionResumption.Store.Embedded = &v1alpha1.EmbeddedStore{HighAvailability: true}
	return g
}

func credentials(t *testing.T, g *v1alpha1.QTLSGateway) *embedded.Credentials {
	t.Helper()
	c, err := embedded.New(RedisHosts(g), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAllObjectsOfAStoreAreOwnedByTheGatewayAndOfOneName(t *testing.T) {
	g := example()
	objects, err := Redis(g, settings, credentials(t, g))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, o := range objects {
		kinds = append(kinds, o.GetObjectKind().GroupVersionKind().Kind)
		if !metav1.IsControlledBy(o, g) || o.GetName() != "web-redis" || o.GetNamespace() != "shop" || o.GetLabels()[v1alpha1.LabelGateway] != "web" {
			t.Errorf("%T %s: owners %v, labels %v", o, o.GetName(), o.GetOwnerReferences(), o.GetLabels())
		}
	}
	slices.Sort(kinds)
	if want := []string{"NetworkPolicy", "PodDisruptionBudget", "Secret", "Service", "StatefulSet"}; !slices.Equal(kinds, want) {
		t.Errorf("kinds %v, want %v", kinds, want)
	}
}

func TestAStoresPodsAreNotTakenForTheGateways(t *testing.T) {
	pod := labels.Set(RedisStatefulSet(example(), settings, files()).Spec.Template.Labels)
	if labels.SelectorFromSet(Selector("web")).Matches(pod) {
		t.Errorf("labels %v are selected by the gateway's Service and Deployment", pod)
	}
	if _, there := pod[v1alpha1.LabelGateway]; there {
		t.Errorf("labels %v: the operator keeps pods with the label %s in memory", pod, v1alpha1.LabelGateway)
	}
	for _, other := range []string{"web2", "shop"} {
		if labels.SelectorFromSet(RedisSelector(other)).Matches(pod) {
			t.Errorf("labels %v are selected by the store of gateway %s", pod, other)
		}
	}
	if !labels.SelectorFromSet(RedisSelector("web")).Matches(pod) {
		t.Errorf("labels %v are not selected by the store's own Service", pod)
	}
}

func TestMembersOfAStore(t *testing.T) {
	for name, tc := range map[string]struct {
		replicas  int32
		available bool
		want      int32
		addresses []string
	}{
		"one":                             {replicas: 3, want: 1, addresses: []string{"web-redis-0.web-redis.shop.svc:6379"}},
		"two with high availability":      {replicas: 1, available: true, want: 2, addresses: []string{"web-redis-0.web-redis.shop.svc:6379", "web-redis-1.web-redis.shop.svc:6379"}},
		"none for a gateway without pods": {replicas: 0, available: true, want: 0, addresses: []string{"web-redis-0.web-redis.shop.svc:6379"}},
		"nor for one without both":        {replicas: 0, want: 0, addresses: []string{"web-redis-0.web-redis.shop.svc:6379"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := example()
			if g.Spec.Replicas = ptr.To(tc.replicas); tc.available {
				available(g)
			}
			if got := *RedisStatefulSet(g, settings, files()).Spec.Replicas; got != tc.want {
				t.Errorf("%d members, want %d", got, tc.want)
			}
			c := RedisConnection(g, credentials(t, g), embedded.Agent)
			if err := c.Validate(); err != nil {
				t.Errorf("the agents' connection: %v", err)
			}
			if !slices.Equal(c.Addresses, tc.addresses) {
				t.Errorf("addresses %v, want %v", c.Addresses, tc.addresses)
			}
		})
	}
}

func TestMembersStayWhenHighAvailabilityIsTurnedOn(t *testing.T) {
	one, two := RedisStatefulSet(example(), settings, files()), RedisStatefulSet(available(example()), settings, files())
	if diff := cmp.Diff(one.Spec.Template, two.Spec.Template); diff != "" {
		t.Errorf("the pod template changed: the member there is would restart\n%s", diff)
	}
}

func TestMembersRestartWhenTheirFilesChangeAndOnlyThen(t *testing.T) {
	hash := func(change string) string {
		data := files()
		if change != "" {
			data[change] = []byte("changed")
		}
		return RedisStatefulSet(example(), settings, data).Spec.Template.Annotations[AnnotationRedisFiles]
	}
	before := hash("")
	for _, name := range embedded.ServerFiles() {
		if hash(name) == before {
			t.Errorf("%s changed, and no pod restarts", name)
		}
	}
	if hash("operator-password") != before {
		t.Error("what the servers do not see changed, and pods restart")
	}
}

func TestServersSeeNeitherPasswordsNorTheAuthoritysKey(t *testing.T) {
	g := example()
	data, err := credentials(t, g).Data()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, v := range RedisStatefulSet(g, settings, data).Spec.Template.Spec.Volumes {
		if v.Secret != nil {
			if len(v.Secret.Items) == 0 {
				t.Fatal("the whole Secret is mounted")
			}
			for _, item := range v.Secret.Items {
				if _, there := data[item.Key]; !there {
					t.Errorf("%s is mounted, but not in the Secret: the pod would not start", item.Key)
				}
				seen[item.Key] = true
			}
		}
	}
	if len(seen) != 5 {
		t.Errorf("mounted: %v", slices.Sorted(maps.Keys(seen)))
	}
	for key, content := range data {
		if seen[key] {
			for _, password := range []string{"operator-password", "agent-password"} {
				if strings.Contains(string(content), string(data[password])) {
					t.Errorf("%s, which is mounted, holds %s", key, password)
				}
			}
		}
	}
	if seen["ca.key"] {
		t.Error("the authority's key is mounted")
	}
}

func TestAStoresPodIsRestricted(t *testing.T) {
	spec := RedisStatefulSet(example(), settings, files()).Spec.Template.Spec
	if !*spec.SecurityContext.RunAsNonRoot || spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("pod security context %+v", spec.SecurityContext)
	}
	if *spec.AutomountServiceAccountToken {
		t.Error("the pod has a token of the API, which it has no use for")
	}
	c := spec.Containers[0]
	if s := c.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("security context %+v", s)
	}
	for _, v := range spec.Volumes {
		if v.EmptyDir != nil && (v.EmptyDir.Medium != corev1.StorageMediumMemory || v.EmptyDir.SizeLimit == nil) {
			t.Errorf("volume %s is on the node's disk, or without a limit", v.Name)
		}
		if v.PersistentVolumeClaim != nil {
			t.Errorf("volume %s outlives the pod", v.Name)
		}
	}
}

func TestAStoresResourcesCanBeSet(t *testing.T) {
	g := example()
	own := &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")}}
	g.Spec.SessionResumption.Store.Embedded = &v1alpha1.EmbeddedStore{Resources: own}
	if got := RedisStatefulSet(g, settings, files()).Spec.Template.Spec.Containers[0].Resources; !cmp.Equal(got, *own) {
		t.Errorf("resources %+v", got)
	}
}

func TestNamesOfAStoreFit(t *testing.T) {
	seen := map[string]bool{}
	for _, gateway := range []string{"a", strings.Repeat("a", 46), strings.Repeat("a", 47), strings.Repeat("a", 48), strings.Repeat("a", 47) + "b"} {
		name := RedisName(gateway)
		if seen[name] {
			t.Errorf("%s: two gateways have it", name)
		}
		seen[name] = true
		// A pod's label is the name and a revision of up to ten characters.
		if len(name)+len("-0123456789") > 63 || !strings.HasSuffix(name, "-redis") {
			t.Errorf("%s: %d characters leave no room for a revision", name, len(name))
		}
	}
}
