//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/internal/dataplane"
)

// An agent may read its own ConfigMap and the Secrets that its gateway serves, and nothing else of anything.
func TestRightsOfAnAgent(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	a := n.withIssuer()
	n.startEcho("echo", 1, "")
	n.create(certificate("web", dual, "web.example"), a.classical.issue(t, ecdsaP256, "x.example").secret(t, "unrelated"))
	g := gateway("rights", https("web", 443, "web.example"))
	n.create(g)
	waitReady(t, g, forReady)
	pod := n.gatewayPods(g)[0]
	user := fmt.Sprintf("system:serviceaccount:%s:%s", n.name, pod.Spec.ServiceAccountName)
	may := func(verb, group, resource, name, namespace string) bool {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + n.name, "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Name: name, Namespace: namespace},
		}}
		if err := cluster.Create(t.Context(), review); err != nil {
			t.Fatal(err)
		}
		return review.Status.Allowed
	}
	allowed, denied := 0, 0
	check := func(want bool, verb, group, resource, name, namespace string) {
		if got := may(verb, group, resource, name, namespace); got != want {
			t.Errorf("%s may %s %s %q in namespace %q: %v, want %v", user, verb, resource, name, namespace, got, want)
		}
		if want {
			allowed++
		} else {
			denied++
		}
	}
	for _, verb := range []string{"get", "list", "watch"} {
		check(true, verb, "", "configmaps", dataplane.ObjectName(g.Name), n.name)
		for _, secret := range []string{"web-ml-dsa-65", "web-ecdsa-p256"} {
			check(true, verb, "", "secrets", secret, n.name)
		}
		for _, secret := range []string{"unrelated", "ca-pq", "ca-classical", g.Name + "-agent-tls", ""} {
			check(false, verb, "", "secrets", secret, n.name)
		}
		check(false, verb, "", "secrets", "web-ml-dsa-65", "default")
		check(false, verb, "", "secrets", "qtls-agent-ca", systemNamespace)
		check(false, verb, "", "configmaps", "kube-root-ca.crt", n.name)
		check(false, verb, "", "configmaps", "", n.name)
		check(false, verb, "qtls.dev", "qtlsgateways", g.Name, n.name)
		check(false, verb, "", "pods", "", n.name)
		check(false, verb, "", "nodes", "", "")
	}
	for _, verb := range []string{"create", "update", "patch", "delete"} {
		check(false, verb, "", "configmaps", dataplane.ObjectName(g.Name), n.name)
		check(false, verb, "", "secrets", "web-ml-dsa-65", n.name)
		check(false, verb, "", "pods", pod.Name, n.name)
	}
	result(t, "%d things allowed, %d denied, as they should be", allowed, denied)

	// The token is the agent's alone.
	for container, want := range map[string]int{"agent": 0, "haproxy": 1} {
		r, err := execIn(t.Context(), n.name, pod.Name, container, nil, "test", "-e", "/var/run/secrets/kubernetes.io/serviceaccount/token")
		if err != nil || r.code != want {
			t.Errorf("container %s: `test -e token` gave %d, want %d (%v %s)", container, r.code, want, err, r.stderr)
		}
	}
	// HAProxy's containers cannot read the certificate by which the agent answers the operator, either.
	r, err := execIn(t.Context(), n.name, pod.Name, "haproxy", nil, "test", "-e", "/etc/qtls/agent-tls")
	if err != nil || r.code != 1 {
		t.Errorf("container haproxy sees the agent's certificate (%d, %v)", r.code, err)
	}
}

// The pods of a gateway, and of the operator, meet the restricted pod security standard.
func TestPodsAreRestricted(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.withIssuer()
	n.create(certificate("web", dual, "web.example"))
	g := gateway("restricted", https("web", 443, "web.example")) // on a privileged port
	n.create(g)
	var warned warnings
	// What enforces is the API server: the namespace's label is restricted for every test here.
	ns := &corev1.Namespace{}
	if err := cluster.Get(t.Context(), client.ObjectKey{Name: n.name}, ns); err != nil || ns.Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
		t.Fatalf("namespace %s does not enforce: %v %v", n.name, ns.Labels, err)
	}
	waitCondition(t, g, "Programmed", metav1.ConditionTrue, "Programmed", forReady)
	// The operator's namespace: would restricted let its pods in?
	system := &corev1.Namespace{}
	if err := cluster.Get(t.Context(), client.ObjectKey{Name: systemNamespace}, system); err != nil {
		t.Fatal(err)
	}
	if err := dryRunEnforce(t.Context(), systemNamespace, &warned); err != nil {
		t.Fatal(err)
	}
	for _, w := range warned {
		t.Errorf("the operator's namespace would not pass: %s", w)
	}
	result(t, "restricted is enforced in every namespace of these tests; the operator's namespace would pass, too: %v", len(warned) == 0)
}
