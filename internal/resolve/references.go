// Package resolve turns a QTLSGateway and the objects that it names into the
// validated model, or into problems that say what to do. It is pure: the
// controller fetches, this decides.
package resolve

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/api/v1alpha1"
)

// FallbackPolicy is the policy that the modes Prefer and Observe fall back to.
const FallbackPolicy = "compatible-v1"

// References are the names of the objects that a gateway mentions: policies
// are cluster-scoped, the others lie in its namespace.
type References struct {
	Policies     []string
	Certificates []string
	Secrets      []string
	ConfigMaps   []string
	Services     []string
	HSMPools     []string
}

// Objects are what References were found to be. What does not exist is absent.
type Objects struct {
	Policies     map[string]*v1alpha1.QTLSPolicy
	Certificates map[string]*v1alpha1.PQCCertificate
	Secrets      map[string]*corev1.Secret
	ConfigMaps   map[string]*corev1.ConfigMap
	Services     map[string]*corev1.Service
	HSMPools     map[string]*v1alpha1.HSMPool
}

// ReferencesOf lists what a gateway names directly, sorted and without
// repeats. The Secrets of its PQCCertificates are SecretsOf those.
func ReferencesOf(g *v1alpha1.QTLSGateway) References {
	r := References{Policies: []string{g.Spec.PolicyRef.Name, FallbackPolicy}}
	authorities := func(refs []v1alpha1.CAReference) {
		for _, ref := range refs {
			if ref.Kind == v1alpha1.CAKindConfigMap {
				r.ConfigMaps = append(r.ConfigMaps, ref.Name)
			} else {
				r.Secrets = append(r.Secrets, ref.Name)
			}
		}
	}
	for _, l := range g.Spec.Listeners {
		for _, c := range l.CertificateRefs {
			if c.Kind == v1alpha1.CertificateKindSecret {
				r.Secrets = append(r.Secrets, c.Name)
			} else {
				r.Certificates = append(r.Certificates, c.Name)
			}
		}
		if l.ClientAuthentication != nil {
			authorities(l.ClientAuthentication.CARefs)
		}
		for _, b := range l.Backends {
			r.Services = append(r.Services, b.Name)
			if b.TLS != nil {
				authorities(b.TLS.CARefs)
			}
		}
	}
	if e := g.Spec.SessionResumption.Store.External; e != nil {
		authorities(e.CARefs)
		r.Secrets = append(r.Secrets, e.CredentialsRef.Name, e.AgentCredentialsRef.Name)
	}
	if g.Spec.HSMRef != nil {
		r.HSMPools = append(r.HSMPools, g.Spec.HSMRef.Name)
	}
	for _, names := range []*[]string{&r.Policies, &r.Certificates, &r.Secrets, &r.ConfigMaps, &r.Services} {
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
	return r
}

// SecretsOf lists the Secrets of a PQCCertificate, one for each algorithm.
func SecretsOf(c *v1alpha1.PQCCertificate) []string {
	var names []string
	for _, a := range c.Spec.Algorithms {
		names = append(names, v1alpha1.CertificateSecretName(c.Name, a))
	}
	return names
}
