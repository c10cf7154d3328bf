//go:build chart

package charts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// rights lists what rules grant, one verb on one resource a line.
func rights(rules ...rbacv1.PolicyRule) []string {
	var all []string
	for _, r := range rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					all = append(all, fmt.Sprintf("%s %s/%s %s", verb, group, resource, strings.Join(r.ResourceNames, ",")))
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// fromMarkers are the rights that controller-gen found in the operator's code.
func fromMarkers(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "config", "rbac", "role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict(data, &role); err != nil {
		t.Fatal(err)
	}
	return rights(role.Rules...)
}

func TestTheOperatorMayDoWhatItsCodeSaysAndNoMore(t *testing.T) {
	r := render(t, "")
	cluster := get[*rbacv1.ClusterRole](r, "ClusterRole qtls")
	own := get[*rbacv1.Role](r, "Role qtls-system/qtls:leader")
	if d := cmp.Diff(fromMarkers(t), rights(slices.Concat(cluster.Rules, own.Rules)...)); d != "" {
		t.Errorf("markers (-) and chart (+) differ; run make generate\n%s", d)
	}
	for _, right := range rights(cluster.Rules...) {
		if strings.Contains(right, "leases") || strings.HasPrefix(right, "create /events") || strings.HasPrefix(right, "patch /events") {
			t.Errorf("in every namespace, where the operator needs it in its own only: %s", right)
		}
	}
}

// Both would serve the namespace: Helm refuses what another release has there.
func TestANamespaceTakesOneRelease(t *testing.T) {
	first := render(t, "watchNamespaces: [one]")
	second := renderAs(t, "second", "watchNamespaces: [two]\ncrds: {install: false}\ncertManager: {approver: {enabled: false}}")
	var both []string
	for key := range second.objects {
		if first.objects[key] != nil {
			both = append(both, key)
		}
	}
	slices.Sort(both)
	if d := cmp.Diff([]string{"Role qtls-system/qtls:leader", "RoleBinding qtls-system/qtls:leader"}, both); d != "" {
		t.Error(d)
	}
}

func TestWithoutBenchmarksTheOperatorHasNoRightsOfTheirs(t *testing.T) {
	for _, values := range []string{"", "watchNamespaces: [one]\n"} {
		granted := func(benchmarks string) []string {
			r := render(t, values+benchmarks)
			rules := slices.Clone(get[*rbacv1.ClusterRole](r, "ClusterRole qtls").Rules)
			if values != "" {
				rules = append(rules, get[*rbacv1.Role](r, "Role one/qtls").Rules...)
			}
			return rights(rules...)
		}
		with, without := granted(""), granted("benchmarks: {enabled: false}")
		want := slices.DeleteFunc(slices.Clone(with), func(right string) bool {
			verb, resource, _ := strings.Cut(strings.TrimSpace(right), " ")
			changes := verb == "create" || verb == "patch" || verb == "delete"
			return resource == "/pods/log" || resource == "batch/jobs" || strings.HasPrefix(resource, "qtls.dev/qtlsbenchmark") || resource == "qtls.dev/qtlsgateways" && changes
		})
		if d := cmp.Diff(want, without); d != "" || len(with)-len(without) < 20 {
			t.Errorf("with %q, of %d rights %d are left: wanted (-) and there (+)\n%s", values, len(with), len(without), d)
		}
	}
}

// All else is patched: what somebody else has in an object stays.
func TestWhatTheOperatorMayReplace(t *testing.T) {
	for _, right := range fromMarkers(t) {
		verb, resource, _ := strings.Cut(strings.TrimSpace(right), " ")
		if verb == "update" && resource != "/secrets" && resource != "coordination.k8s.io/leases qtls-operator" && !strings.HasSuffix(resource, "/finalizers") {
			t.Errorf("%s", right)
		}
	}
}

func TestNothingIsGrantedByWildcard(t *testing.T) {
	for key, o := range render(t, "").objects {
		var rules []rbacv1.PolicyRule
		switch role := o.(type) {
		case *rbacv1.ClusterRole:
			rules = role.Rules
		case *rbacv1.Role:
			rules = role.Rules
		}
		for _, rule := range rules {
			if slices.Contains(slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs), "*") {
				t.Errorf("%s: %v", key, rule)
			}
		}
	}
}

func TestNamespacedOperatorHasRightsThereOnly(t *testing.T) {
	r := render(t, "watchNamespaces: [one, two]")
	cluster := get[*rbacv1.ClusterRole](r, "ClusterRole qtls")
	for _, right := range rights(cluster.Rules...) {
		if !strings.Contains(right, "qtls.dev/qtlspolicies") && !strings.Contains(right, "/pqcclusterissuers") && !strings.Contains(right, "cert-manager.io/clusterissuers") {
			t.Errorf("cluster-wide: %s", right)
		}
	}
	all := rights(slices.Concat(cluster.Rules, get[*rbacv1.Role](r, "Role qtls-system/qtls:leader").Rules, get[*rbacv1.Role](r, "Role one/qtls").Rules)...)
	if d := cmp.Diff(fromMarkers(t), all); d != "" {
		t.Errorf("markers (-) and what the operator may do in a served namespace (+) differ\n%s", d)
	}
	for _, namespace := range []string{"one", "two", "qtls-system"} {
		role := get[*rbacv1.Role](r, "Role "+namespace+"/qtls")
		if d := cmp.Diff(get[*rbacv1.Role](r, "Role one/qtls").Rules, role.Rules); d != "" {
			t.Errorf("namespace %s has other rules: %s", namespace, d)
		}
		binding := get[*rbacv1.RoleBinding](r, "RoleBinding "+namespace+"/qtls")
		if s := binding.Subjects[0]; s.Name != "qtls" || s.Namespace != "qtls-system" {
			t.Errorf("namespace %s: the rights are given to %v", namespace, s)
		}
	}
}

// Kubernetes keeps the events of what has no namespace in namespace default.
func TestEventsOfClusterIssuersMayBeWritten(t *testing.T) {
	r := render(t, "watchNamespaces: [one]")
	want := []string{"create events.k8s.io/events ", "patch events.k8s.io/events "}
	if d := cmp.Diff(want, rights(get[*rbacv1.Role](r, "Role default/qtls-events").Rules...)); d != "" {
		t.Error(d)
	}
	if s := get[*rbacv1.RoleBinding](r, "RoleBinding default/qtls-events").Subjects[0]; s.Name != "qtls" || s.Namespace != "qtls-system" {
		t.Errorf("the rights are given to %v", s)
	}
	for _, values := range []string{"", "watchNamespaces: [default]"} {
		if _, there := render(t, values).objects["Role default/qtls-events"]; there {
			t.Errorf("with %q the operator has the right twice", values)
		}
	}
}

func TestTheOperatorsOwnNamespaceIsServedOnceWhenItIsNamedToo(t *testing.T) {
	if n := render(t, "watchNamespaces: [qtls-system]").count("Role"); n != 3 {
		t.Errorf("%d Roles, want the one of the served namespace, the operator's own, and that for events", n)
	}
}

func TestCertManagersApproverMayApproveOurIssuersOnly(t *testing.T) {
	r := render(t, "certManager: {approver: {namespace: pki, serviceAccount: cm}}")
	role := get[*rbacv1.ClusterRole](r, "ClusterRole qtls-approver")
	want := []string{"approve cert-manager.io/signers pqcissuers.qtls.dev/*,pqcclusterissuers.qtls.dev/*"}
	if d := cmp.Diff(want, rights(role.Rules...)); d != "" {
		t.Error(d)
	}
	binding := get[*rbacv1.ClusterRoleBinding](r, "ClusterRoleBinding qtls-approver")
	if s := binding.Subjects[0]; s.Kind != "ServiceAccount" || s.Namespace != "pki" || s.Name != "cm" {
		t.Errorf("bound to %v", s)
	}
	if _, there := render(t, "certManager: {approver: {enabled: false}}").objects["ClusterRole qtls-approver"]; there {
		t.Error("an approver's role in spite of certManager.approver.enabled=false")
	}
}

func TestRolesForPeopleCoverOurKinds(t *testing.T) {
	r := render(t, "")
	kinds := map[string]bool{}
	paths, err := filepath.Glob(filepath.Join("..", "config", "crd", "qtls.dev_*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		kinds[strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "qtls.dev_"), ".yaml")] = true
	}
	view := get[*rbacv1.ClusterRole](r, "ClusterRole qtls-view")
	for kind := range kinds {
		if !slices.Contains(rights(view.Rules...), "get qtls.dev/"+kind+" ") {
			t.Errorf("view does not cover %s", kind)
		}
	}
	for _, right := range rights(get[*rbacv1.ClusterRole](r, "ClusterRole qtls-edit").Rules...) {
		if strings.Contains(right, "cluster") || strings.Contains(right, "policies") {
			t.Errorf("edit, which is given within a namespace, covers what is the cluster's: %s", right)
		}
	}
	for key := range render(t, "rbac: {aggregate: false}").objects {
		if strings.HasSuffix(key, "-view") || strings.HasSuffix(key, "-edit") {
			t.Errorf("%s in spite of rbac.aggregate=false", key)
		}
	}
}
