package resolve

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
)

// Groups are the server groups that a gateway's pods may need endpoints of:
// those of the spec's backends, and those of revisions, for pods go on with an
// earlier one until they run the next. Sorted, each once.
func Groups(g *v1alpha1.QTLSGateway, revisions map[string]dataplane.Revision) []string {
	var names []string
	for _, l := range g.Spec.Listeners {
		for _, b := range l.Backends {
			names = append(names, GroupName(b))
		}
	}
	for _, r := range revisions {
		for _, b := range r.Backends {
			for _, group := range b.Groups {
				names = append(names, group.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ServicesOf are the names of the Services of groups, sorted, each once.
func ServicesOf(groups []string) []string {
	var names []string
	for _, group := range groups {
		service, _ := servicePortOf(group)
		names = append(names, service)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Endpoints flattens the EndpointSlices of Services, by group. Each group is
// named: one whose Service or port does not exist has no endpoints. An endpoint
// that serves while it terminates counts only where no other is ready, as
// kube-proxy has it.
func Endpoints(groups []string, services map[string]*corev1.Service, endpointSlices []discoveryv1.EndpointSlice) dataplane.Endpoints {
	out := dataplane.Endpoints{}
	for _, group := range groups {
		out[group] = []dataplane.Endpoint{}
		name, number := servicePortOf(group)
		service := services[name]
		if service == nil {
			continue
		}
		if port, ok := findPort(service, number); ok {
			out[group] = endpointsOf(name, port.Name, endpointSlices)
		}
	}
	return out
}

func endpointsOf(service, portName string, endpointSlices []discoveryv1.EndpointSlice) []dataplane.Endpoint {
	ready, terminating := []dataplane.Endpoint{}, []dataplane.Endpoint{}
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
