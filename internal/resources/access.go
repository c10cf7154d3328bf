package resources

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
)

// ServiceAccount of the gateway's pods.
func ServiceAccount(g *v1alpha1.QTLSGateway) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta:                     metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta:                   meta(g, Name(g.Name)),
		AutomountServiceAccountToken: ptr.To(false), // the agent's container alone gets one, projected
	}
}

// Role lets the agents read the gateway's ConfigMap and exactly the Secrets
// named.
func Role(g *v1alpha1.QTLSGateway, secrets []string) *rbacv1.Role {
	read := []string{"get", "list", "watch"}
	rules := []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: read,
		ResourceNames: []string{dataplane.ObjectName(g.Name)},
	}}
	if len(secrets) > 0 { // without names the rule would mean every Secret
		names := slices.Clone(secrets)
		slices.Sort(names)
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: read,
			ResourceNames: slices.Compact(names),
		})
	}
	return &rbacv1.Role{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
		ObjectMeta: meta(g, Name(g.Name)),
		Rules:      rules,
	}
}

// RoleBinding gives the Role to the ServiceAccount.
func RoleBinding(g *v1alpha1.QTLSGateway) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
		ObjectMeta: meta(g, Name(g.Name)),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: Name(g.Name)},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: g.Namespace, Name: Name(g.Name)}},
	}
}
