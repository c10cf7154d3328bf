package resolve

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
)

// Endpoints flattens the EndpointSlices of the Services that a gateway's
// backends name, by group. An endpoint that serves while it terminates counts
// only where no other is ready, as kube-proxy has it.
func Endpoints(g *v1alpha1.QTLSGateway, services map[string]*corev1.Service, endpointSlices []discoveryv1.EndpointSlice) dataplane.Endpoints {
	out := dataplane.Endpoints{}
	for _, l := range g.Spec.Listeners {
		for _, b := range l.Backends {
			service := services[b.Name]
			if service == nil {
				continue
			}
			port, ok := ServicePort(service, b.Port)
			if !ok {
				continue
			}
			out[GroupName(b)] = endpointsOf(service.Name, port.Name, endpointSlices)
		}
	}
	return out
}

func endpointsOf(service, portName string, endpointSlices []discoveryv1.EndpointSlice) []dataplane.Endpoint {
	var ready, terminating []dataplane.Endpoint
	for _, s := range endpointSlices {
		if s.Labels[discoveryv1.LabelServiceName] != service || s.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		port := slicePort(s, portName)
		if port == 0 {
			continue
		}
		for _, e := range s.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			endpoint := dataplane.Endpoint{Address: e.Addresses[0], Port: port}
			switch c := e.Conditions; {
			case c.Ready == nil || *c.Ready:
				ready = append(ready, endpoint)
			case c.Serving != nil && *c.Serving && c.Terminating != nil && *c.Terminating:
				terminating = append(terminating, endpoint)
			}
		}
	}
	if len(ready) == 0 {
		ready = terminating
	}
	slices.SortFunc(ready, func(a, b dataplane.Endpoint) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(ready)
}

func slicePort(s discoveryv1.EndpointSlice, name string) int32 {
	for _, p := range s.Ports {
		if p.Port != nil && (p.Name == nil && name == "" || p.Name != nil && *p.Name == name) {
			return *p.Port
		}
	}
	return 0
}
