package main

import (
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// scopedRules are the operator's rules by where they are needed.
type scopedRules struct {
	// Cluster are those for cluster-scoped resources: always in a ClusterRole.
	Cluster []rbacv1.PolicyRule `json:"cluster"`
	// Namespaced are those for the namespaces that the operator serves: in the
	// ClusterRole, or in a Role of each namespace.
	Namespaced []rbacv1.PolicyRule `json:"namespaced"`
	// Own are those for the operator's own namespace alone.
	Own []rbacv1.PolicyRule `json:"own"`
}

// resource is a resource of a group, without its subresource.
type resource struct{ group, name string }

// own are resources that the operator uses in its own namespace only: the lease, and
// the events that are about it. Those about other objects are of events.k8s.io.
var own = map[resource]bool{{"coordination.k8s.io", "leases"}: true, {"", "events"}: true}

// clusterScoped are our own cluster-scoped resources and those of others that
// the operator may read.
func clusterScoped(definitions []apiextensionsv1.CustomResourceDefinition) map[resource]bool {
	scoped := map[resource]bool{{"cert-manager.io", "clusterissuers"}: true}
	for _, d := range definitions {
		if d.Spec.Scope == apiextensionsv1.ClusterScoped {
			scoped[resource{d.Spec.Group, d.Spec.Names.Plural}] = true
		}
	}
	return scoped
}

// split sorts rules, and the resources within a rule, by where they are needed.
func split(rules []rbacv1.PolicyRule, clusterScoped map[resource]bool) scopedRules {
	var s scopedRules
	for _, r := range rules {
		for _, group := range r.APIGroups {
			var cluster, namespaced, inOwn []string
			for _, name := range r.Resources {
				base, _, _ := strings.Cut(name, "/")
				switch key := (resource{group, base}); {
				case own[key]:
					inOwn = append(inOwn, name)
				case clusterScoped[key]:
					cluster = append(cluster, name)
				default:
					namespaced = append(namespaced, name)
				}
			}
			s.Cluster = appendRule(s.Cluster, r, group, cluster)
			s.Namespaced = appendRule(s.Namespaced, r, group, namespaced)
			s.Own = appendRule(s.Own, r, group, inOwn)
		}
	}
	return s
}

// appendRule appends the part of a rule that is about the resources, if any.
func appendRule(rules []rbacv1.PolicyRule, of rbacv1.PolicyRule, group string, resources []string) []rbacv1.PolicyRule {
	if len(resources) == 0 {
		return rules
	}
	part := *of.DeepCopy()
	part.APIGroups, part.Resources = []string{group}, resources
	return append(rules, part)
}
