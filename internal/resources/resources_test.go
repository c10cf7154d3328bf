package resources

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/haproxy"
)

var update = flag.Bool("update", false, "write the golden files anew")

func example() *v1alpha1.QTLSGateway {
	return &v1alpha1.QTLSGateway{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "4e0f", Generation: 2},
		Spec: v1alpha1.QTLSGatewaySpec{
			Replicas: ptr.To[int32](3),
			Listeners: []v1alpha1.Listener{
				{Name: "https", Port: 443, Protocol: v1alpha1.ProtocolHTTPS},
				{Name: "other", Port: 443, Protocol: v1alpha1.ProtocolHTTPS, Hostnames: []v1alpha1.Hostname{"other.example.com"}},
				{Name: "db", Port: 5432, Protocol: v1alpha1.ProtocolTLS},
			},
			Service: v1alpha1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Annotations: map[string]string{"cloud": "internal"}},
		},
	}
}

var settings = Settings{Image: "registry.example/gateway:1", RedisImage: "registry.example/redis:1", HSMImage: "registry.example/hsm:1", ImagePullPolicy: corev1.PullIfNotPresent,
	ImagePullSecrets: []string{"pull"}, OperatorNamespace: "qtls-system"}

func TestTheObjectsAreTheGoldenOnes(t *testing.T) {
	g := example()
	for name, object := range map[string]client.Object{
		"deployment":          Deployment(g, settings),
		"service":             Service(g, nil),
		"budget":              PodDisruptionBudget(g),
		"serviceaccount":      ServiceAccount(g),
		"role":                Role(g, []string{"web-ml-dsa-65", "web-ecdsa-p256", "web-ml-dsa-65"}),
		"rolebinding":         RoleBinding(g),
		"redis-statefulset":   RedisStatefulSet(available(example()), settings, files()),
		"redis-service":       RedisService(g),
		"redis-networkpolicy": RedisNetworkPolicy(g, settings),
		"redis-budget":        RedisPodDisruptionBudget(g),
		"redis-secret":        RedisSecret(g, files()),
		"dataplane":           DataPlane(g, map[string]string{"assignment.json": "{}"}),
	} {
		golden(t, name, object)
	}
}

// golden compares an object with the file of that name.
func golden(t *testing.T, name string, object client.Object) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		got, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name+".yaml")
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatalf("%v; run with -update to write it", err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got; -update writes it anew):\n%s", name, diff)
		}
	})
}

func TestTheDefaultMemoryIsForAllConnections(t *testing.T) {
	limit := Deployment(example(), settings).Spec.Template.Spec.Containers[0].Resources.Limits.Memory()
	if got := haproxy.Descriptors(limit.Value()); got != haproxy.MostDescriptors {
		t.Errorf("with %s HAProxy has %d descriptors, want %d", limit, got, haproxy.MostDescriptors)
	}
}

func TestEveryObjectIsOwnedByTheGateway(t *testing.T) {
	g := example()
	for _, o := range []client.Object{Deployment(g, settings), Service(g, nil), PodDisruptionBudget(g), ServiceAccount(g), Role(g, nil), RoleBinding(g), DataPlane(g, nil), AgentSecret(g, nil)} {
		if !metav1.IsControlledBy(o, g) {
			t.Errorf("%T is not controlled by the gateway: deleting it would leave the object behind", o)
		}
		if o.GetNamespace() != "shop" || o.GetLabels()[v1alpha1.LabelGateway] != "web" {
			t.Errorf("%T: namespace %s, labels %v", o, o.GetNamespace(), o.GetLabels())
		}
	}
}

func TestARoleWithoutSecretsNamesNone(t *testing.T) {
	for _, rule := range Role(example(), nil).Rules {
		if slices.Contains(rule.Resources, "secrets") {
			t.Errorf("rule %+v: a rule on Secrets without names would mean all of them", rule)
		}
		if len(rule.ResourceNames) == 0 {
			t.Errorf("rule %+v names no object", rule)
		}
	}
}

func TestAChangeOfListenersRestartsNoPod(t *testing.T) {
	before := Deployment(example(), settings)
	g := example()
	g.Spec.Listeners = g.Spec.Listeners[:1]
	g.Spec.Listeners[0].Port = 8443
	g.Spec.PolicyRef.Name = "cnsa2-v1"
	if diff := cmp.Diff(before.Spec.Template, Deployment(g, settings).Spec.Template); diff != "" {
		t.Errorf("the pod template changed:\n%s", diff)
	}
}

func TestThePodIsRestricted(t *testing.T) {
	spec := Deployment(example(), settings).Spec.Template.Spec
	if !*spec.SecurityContext.RunAsNonRoot || spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("pod security context %+v", spec.SecurityContext)
	}
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		s := c.SecurityContext
		if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
			t.Errorf("container %s: security context %+v", c.Name, s)
		}
		holdsToken := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == tokenVolume })
		if holdsToken != (c.Name == "agent") {
			t.Errorf("container %s holds the API token: %v; the agent's alone does", c.Name, holdsToken)
		}
	}
}

func TestThePodOutlivesItsDrain(t *testing.T) {
	g := example()
	g.Spec.Drain = v1alpha1.DrainSpec{DelaySeconds: ptr.To[int32](20), TimeoutSeconds: ptr.To[int32](100)}
	if got := *Deployment(g, settings).Spec.Template.Spec.TerminationGracePeriodSeconds; got <= 120 {
		t.Errorf("terminationGracePeriodSeconds %d, want more than the drain's 120", got)
	}
}

func TestServiceTypesCarryOnlyTheirOwnFields(t *testing.T) {
	g := example()
	g.Spec.Service = v1alpha1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ExternalTrafficPolicy: "Local", LoadBalancerClass: ptr.To("x")}
	s := Service(g, nil).Spec
	if s.ExternalTrafficPolicy != "" || s.LoadBalancerClass != nil {
		t.Errorf("a ClusterIP Service has externalTrafficPolicy %q and loadBalancerClass %v, which the API server refuses", s.ExternalTrafficPolicy, s.LoadBalancerClass)
	}
	if len(s.Ports) != 2 || s.Ports[0].Port != 443 || s.Ports[1].Port != 5432 {
		t.Errorf("ports %+v, want 443 and 5432, each once", s.Ports)
	}
}

// While pods run another configuration than the spec's, clients reach them where
// they are.
func TestTheServiceHasThePortsThatArePublished(t *testing.T) {
	var ports []int32
	for _, p := range Service(example(), []int32{443, 8443}).Spec.Ports {
		ports = append(ports, p.Port)
	}
	if want := []int32{443, 5432, 8443}; !slices.Equal(ports, want) {
		t.Errorf("ports %v, want %v", ports, want)
	}
}

func TestAUsersSpreadGetsTheGatewaysSelector(t *testing.T) {
	g := example()
	own := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	g.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: "rack"}, {TopologyKey: "row", LabelSelector: own}}
	got := Deployment(g, settings).Spec.Template.Spec.TopologySpreadConstraints
	if len(got) != 2 || !cmp.Equal(got[0].LabelSelector.MatchLabels, Selector("web")) || !cmp.Equal(got[1].LabelSelector, own) {
		t.Errorf("constraints %+v", got)
	}
}

func TestTheBudgetTakesAPercentage(t *testing.T) {
	g := example()
	g.Spec.DisruptionBudget.MaxUnavailable = ptr.To(intstr.FromString("25%"))
	if got := PodDisruptionBudget(g).Spec.MaxUnavailable.String(); got != "25%" {
		t.Errorf("maxUnavailable %s, want 25%%", got)
	}
}
