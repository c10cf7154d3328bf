package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func rule(group string, resources, verbs []string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
}

func TestRulesAreSplitByWhereTheyAreNeeded(t *testing.T) {
	read := []string{"get", "list", "watch"}
	scoped := map[resource]bool{{"qtls.dev", "qtlspolicies"}: true, {"qtls.dev", "pqcclusterissuers"}: true}

	got := split([]rbacv1.PolicyRule{
		rule("", []string{"secrets"}, read),
		rule("coordination.k8s.io", []string{"leases"}, []string{"create"}),
		rule("", []string{"events"}, []string{"create"}),
		rule("events.k8s.io", []string{"events"}, []string{"create"}),
		rule("qtls.dev", []string{"qtlsgateways", "qtlspolicies"}, read),
		rule("qtls.dev", []string{"pqcclusterissuers/status"}, []string{"patch"}),
	}, scoped)

	want := scopedRules{
		Cluster: []rbacv1.PolicyRule{
			rule("qtls.dev", []string{"qtlspolicies"}, read),
			rule("qtls.dev", []string{"pqcclusterissuers/status"}, []string{"patch"}),
		},
		Namespaced: []rbacv1.PolicyRule{
			rule("", []string{"secrets"}, read),
			rule("events.k8s.io", []string{"events"}, []string{"create"}),
			rule("qtls.dev", []string{"qtlsgateways"}, read),
		},
		Own: []rbacv1.PolicyRule{
			rule("coordination.k8s.io", []string{"leases"}, []string{"create"}),
			rule("", []string{"events"}, []string{"create"}),
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestResourceNamesStayWithTheirRule(t *testing.T) {
	r := rule("", []string{"secrets"}, []string{"get"})
	r.ResourceNames = []string{"one"}
	got := split([]rbacv1.PolicyRule{r}, nil)
	if d := cmp.Diff(scopedRules{Namespaced: []rbacv1.PolicyRule{r}}, got); d != "" {
		t.Error(d)
	}
}

func TestTheDefinitionsSayWhatIsClusterScoped(t *testing.T) {
	definition := func(plural string, scope apiextensionsv1.ResourceScope) apiextensionsv1.CustomResourceDefinition {
		return apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "qtls.dev", Scope: scope, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural},
		}}
	}
	scoped := clusterScoped([]apiextensionsv1.CustomResourceDefinition{
		definition("qtlspolicies", apiextensionsv1.ClusterScoped), definition("qtlsgateways", apiextensionsv1.NamespaceScoped),
	})
	if !scoped[resource{"qtls.dev", "qtlspolicies"}] || scoped[resource{"qtls.dev", "qtlsgateways"}] {
		t.Errorf("cluster-scoped are %v", scoped)
	}
}
