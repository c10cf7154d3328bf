package resources

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
)

// Service in front of the gateway's pods: one port for each port of the
// listeners, and for each of those that pods listen on by what is published.
func Service(g *v1alpha1.QTLSGateway, published []int32) *corev1.Service {
	spec := g.Spec.Service
	s := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: meta(g, Name(g.Name)),
		Spec: corev1.ServiceSpec{
			Type:                  spec.Type,
			Selector:              Selector(g.Name),
			ExternalTrafficPolicy: spec.ExternalTrafficPolicy,
			LoadBalancerClass:     spec.LoadBalancerClass,
		},
	}
	if s.Spec.Type == "" {
		s.Spec.Type = corev1.ServiceTypeClusterIP
	}
	if s.Spec.Type == corev1.ServiceTypeClusterIP {
		s.Spec.ExternalTrafficPolicy = "" // the API refuses it there
	}
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		s.Spec.LoadBalancerClass = nil
	}
	s.Annotations = maps.Clone(spec.Annotations)
	for _, port := range ports(g, published) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: fmt.Sprintf("tls-%d", port), Protocol: corev1.ProtocolTCP, Port: port, TargetPort: intstr.FromInt32(port),
		})
	}
	return s
}

func ports(g *v1alpha1.QTLSGateway, published []int32) []int32 {
	numbers := slices.Clone(published)
	for _, l := range g.Spec.Listeners {
		numbers = append(numbers, l.Port)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// PodDisruptionBudget bounds voluntary disruptions.
func PodDisruptionBudget(g *v1alpha1.QTLSGateway) *policyv1.PodDisruptionBudget {
	max := intstr.FromInt32(1)
	if m := g.Spec.DisruptionBudget.MaxUnavailable; m != nil {
		max = *m
	}
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"},
		ObjectMeta: meta(g, Name(g.Name)),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &max,
			Selector:       &metav1.LabelSelector{MatchLabels: Selector(g.Name)},
			// A pod that is not ready takes no new clients: it holds up no drain of a node.
			UnhealthyPodEvictionPolicy: ptr.To(policyv1.AlwaysAllow),
		},
	}
}
