package resources

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/ticketstore/redisoperator"
	"qtls.dev/qtls/internal/ticketstore/redisoperator/operatortest"
)

// operated is a gateway whose store the Redis Operator runs.
func operated(store v1alpha1.RedisOperatorStore) *v1alpha1.QTLSGateway {
	g := example()
	g.Spec.SessionResumption.Store = v1alpha1.TicketStore{Type: v1alpha1.TicketStoreRedisOperator, RedisOperator: &store}
	return g
}

// everything is a gateway that says all that it can about a kind.
func everything(kind v1alpha1.RedisOperatorKind) *v1alpha1.QTLSGateway {
	store := v1alpha1.RedisOperatorStore{Kind: kind, ClusterSize: ptr.To[int32](5), Image: "registry.example/redis:2",
		Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}}
	if kind == v1alpha1.RedisOperatorReplication {
		store.Sentinel = &v1alpha1.RedisSentinels{Size: ptr.To[int32](5), Image: "registry.example/sentinel:2"}
	}
	g := operated(store)
	g.Spec.NodeSelector = map[string]string{"disk": "none"}
	g.Spec.Tolerations = []corev1.Toleration{{Key: "edge", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	return g
}

// given is what servers are given, the same in each run.
func given() map[string][]byte {
	data := map[string][]byte{}
	for _, key := range []string{"ca.crt", "tls.crt", "tls.key", "user.acl", "password"} {
		data[key] = []byte("content of " + key)
	}
	return data
}

func object(t *testing.T, g *v1alpha1.QTLSGateway, server map[string][]byte) *unstructured.Unstructured {
	t.Helper()
	o, err := RedisOperatorObject(g, settings, server)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// field of an object, which has to be there.
func field(t *testing.T, o *unstructured.Unstructured, path string) any {
	t.Helper()
	value, found, err := unstructured.NestedFieldNoCopy(o.Object, strings.Split(path, ".")...)
	if err != nil || !found {
		t.Fatalf("%s %s: no %s (%v)", o.GetKind(), o.GetName(), path, err)
	}
	return value
}

func TestTheRedisOperatorsObjectsAreTheGoldenOnes(t *testing.T) {
	for name, o := range map[string]any{
		"redisoperator-default":     object(t, operated(v1alpha1.RedisOperatorStore{}), given()),
		"redisoperator-replication": object(t, everything(v1alpha1.RedisOperatorReplication), given()),
		"redisoperator-cluster":     object(t, everything(v1alpha1.RedisOperatorCluster), given()),
		"redisoperator-secret":      RedisOperatorSecret(example(), RedisOperatorServerName("web"), given()),
		"redisoperator-configmap":   RedisOperatorConfigMap(example()),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := yaml.Marshal(o)
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
}

func TestOnlyFieldsAreWrittenThatTheRedisOperatorDocuments(t *testing.T) {
	for _, kind := range []v1alpha1.RedisOperatorKind{v1alpha1.RedisOperatorReplication, v1alpha1.RedisOperatorCluster} {
		o := object(t, everything(kind), given())
		if o.GetAPIVersion() != "redis.redis.opstreelabs.in/v1beta2" || o.GetKind() != string(kind) {
			t.Errorf("it is %s %s", o.GetAPIVersion(), o.GetKind())
		}
		if paths := operatortest.Undocumented(o); len(paths) > 0 {
			t.Errorf("%s: not documented: %v", kind, paths)
		}
	}
	// The test can fail.
	o := object(t, operated(v1alpha1.RedisOperatorStore{}), given())
	config := o.Object["spec"].(map[string]any)["kubernetesConfig"].(map[string]any)
	config["imageName"], config["image"] = "x", int64(1)
	want := []string{"kubernetesConfig.image: integer, not string", "kubernetesConfig.imageName"}
	if paths := operatortest.Undocumented(o); !slices.Equal(slices.Sorted(slices.Values(paths)), want) {
		t.Errorf("of fields that are wrong: %v", paths)
	}
}

func TestServersOfTheRedisOperatorsAreNotTakenForTheGateways(t *testing.T) {
	o := object(t, everything(v1alpha1.RedisOperatorReplication), given())
	if _, there := o.GetLabels()[v1alpha1.LabelGateway]; there {
		t.Errorf("labels %v: the Redis Operator gives them to the pods, and the operator would keep those in memory", o.GetLabels())
	}
	for _, selector := range []map[string]string{Selector("web"), RedisSelector("web")} {
		if labels.SelectorFromSet(selector).Matches(labels.Set(o.GetLabels())) {
			t.Errorf("labels %v are selected by %v", o.GetLabels(), selector)
		}
	}
	if !metav1.IsControlledBy(o, example()) {
		t.Error("deleting the gateway would leave the object behind")
	}
}

func TestServersOfTheRedisOperatorsRestartWhenTheirFilesChange(t *testing.T) {
	g := operated(v1alpha1.RedisOperatorStore{})
	before := object(t, g, given()).GetAnnotations()[AnnotationRedisFiles]
	for key := range given() {
		data := given()
		data[key] = []byte("changed")
		if object(t, g, data).GetAnnotations()[AnnotationRedisFiles] == before {
			t.Errorf("%s changed, and no pod restarts", key)
		}
	}
}

func TestTheRedisOperatorIsGivenNoMoreThanServersNeed(t *testing.T) {
	for _, kind := range []v1alpha1.RedisOperatorKind{v1alpha1.RedisOperatorReplication, v1alpha1.RedisOperatorCluster} {
		g := everything(kind)
		c, _, err := redisoperator.Ensure(nil, RedisOperatorHosts(g), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		objects, err := RedisOperator(g, settings, c)
		if err != nil {
			t.Fatal(err)
		}
		secret := map[string]map[string][]byte{}
		var config string
		for _, o := range objects {
			if !metav1.IsControlledBy(o, g) || o.GetNamespace() != "shop" {
				t.Errorf("%T %s: owners %v", o, o.GetName(), o.GetOwnerReferences())
			}
			switch o := o.(type) {
			case *corev1.Secret:
				secret[o.Name] = o.Data
			case *corev1.ConfigMap:
				config = o.Data["redis-additional.conf"]
			}
		}
		o := objects[len(objects)-1].(*unstructured.Unstructured)
		server := secret[field(t, o, "spec.TLS.secret.secretName").(string)]
		for _, path := range []string{"spec.TLS.ca", "spec.TLS.cert", "spec.TLS.key"} {
			if key := field(t, o, path).(string); len(server[key]) == 0 {
				t.Errorf("%s names %q, which the Secret lacks", path, key)
			}
		}
		if field(t, o, "spec.acl.secret.secretName") != field(t, o, "spec.kubernetesConfig.redisSecret.name") || len(server["user.acl"]) == 0 ||
			len(server[field(t, o, "spec.kubernetesConfig.redisSecret.key").(string)]) == 0 {
			t.Error("the list of users or the password is not where the object says")
		}
		if !strings.Contains(config, `save ""`) {
			t.Errorf("the servers include %q: rings would be written to disks", config)
		}
		for key, content := range server {
			for _, private := range []string{"operator-password", "agent-password", "ca.key"} {
				if len(secret["web-ticket-store"][private]) == 0 {
					t.Fatalf("the operator's own Secret has no %s", private)
				}
				if strings.Contains(string(content), string(secret["web-ticket-store"][private])) {
					t.Errorf("%s of the servers' Secret holds %s", key, private)
				}
			}
		}
	}
}

// The Redis Operator makes longer names of the object's: of a StatefulSet's, a
// label of 63 characters has to leave room for a revision's 11; a Service's has
// 63 itself.
func TestLongNamesLeaveTheRedisOperatorRoom(t *testing.T) {
	seen := map[string]string{}
	for _, gateway := range []string{"web", strings.Repeat("a", 27), strings.Repeat("a", 28), strings.Repeat("a", 48), strings.Repeat("a", 47) + "b"} {
		name := RedisOperatorName(gateway)
		if other, twice := seen[name]; twice {
			t.Errorf("gateways %s and %s have stores of one name, %s", gateway, other, name)
		}
		seen[name] = gateway
		if len(name+"-follower")+11 > 63 || len(name+"-follower-additional") > 63 || name == RedisName(gateway) {
			t.Errorf("name %s of gateway %s", name, gateway)
		}
	}
}

func TestTheCertificateIsForEveryService(t *testing.T) {
	hosts := RedisOperatorHosts(example())
	for _, want := range []string{"", "-master", "-replica", "-headless", "-leader", "-follower", "-leader-headless", "-follower-headless", "-s-hl"} {
		if host := fmt.Sprintf("web-ticket-store%s.shop.svc", want); !slices.Contains(hosts, host) {
			t.Errorf("no %s in %v", host, hosts)
		}
	}
	if hosts[0] != "web-ticket-store.shop.svc" {
		t.Errorf("clients know the servers as %s", hosts[0])
	}
}
