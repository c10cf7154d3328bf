package resolve

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/policy"
)

// Problem is something that a gateway asks for and does not get.
type Problem struct {
	// Listener that has it; empty for the gateway as a whole.
	Listener string
	// Condition that it makes False: Accepted or ResolvedRefs.
	Condition string
	Reason    string
	// Message names the object, the field, what was found and the remedy.
	Message string
	// Holds says that the last good configuration is to be kept while the
	// problem lasts, because the model lacks something that clients may be
	// using. Without an earlier configuration what is left is served.
	Holds bool
	// Fatal says that there is no model at all.
	Fatal bool
}

// Resolve builds the model of a gateway as of now. A listener that cannot be
// served safely is left out of the model, with a Problem that says why.
func Resolve(g *v1alpha1.QTLSGateway, o Objects, now time.Time) (model.Gateway, []Problem) {
	r := &resolver{gateway: g, objects: o, now: now}
	return r.resolve(), r.problems
}

type resolver struct {
	gateway  *v1alpha1.QTLSGateway
	objects  Objects
	now      time.Time
	accepted func(v1alpha1.SignatureScheme) bool
	// preferred says what of that the named policy itself accepts.
	preferred func(v1alpha1.SignatureScheme) bool
	// provider says that what was resolved needs the OpenSSL provider.
	provider bool
	problems []Problem
	// times at which certificates begin and end to be valid.
	times []time.Time
	// hsm that the gateway's keys may lie in; nil where it names none, or one that
	// cannot be used, and then hsmReason says why.
	hsm       *model.HSM
	hsmReason string
}

func (r *resolver) problem(p Problem) { r.problems = append(r.problems, p) }

func (r *resolver) resolve() model.Gateway {
	spec := r.gateway.Spec
	m := model.Gateway{Namespace: r.gateway.Namespace, Name: r.gateway.Name, DrainTimeoutSeconds: int(ptr.Deref(spec.Drain.TimeoutSeconds, v1alpha1.DefaultDrainTimeoutSeconds))}

	named, fallback := r.objects.Policies[spec.PolicyRef.Name], r.objects.Policies[FallbackPolicy]
	if named == nil {
		r.problem(Problem{Condition: v1alpha1.ConditionAccepted, Reason: v1alpha1.ReasonPolicyNotFound, Holds: true, Fatal: true,
			Message: fmt.Sprintf("spec.policyRef.name: there is no QTLSPolicy %q; `kubectl get qtlspolicies` lists those there are", spec.PolicyRef.Name)})
		return m
	}
	if fallback == nil && spec.PolicyRef.Mode != v1alpha1.PolicyModeRequire {
		r.problem(Problem{Condition: v1alpha1.ConditionAccepted, Reason: v1alpha1.ReasonFallbackNotFound, Holds: true, Fatal: true,
			Message: fmt.Sprintf("spec.policyRef.mode: %s falls back to QTLSPolicy %q, which does not exist; the operator creates it when it starts: restart the operator, or use mode Require", spec.PolicyRef.Mode, FallbackPolicy)})
		return m
	}
	m.TLS, m.Observe = policy.Resolve(named, fallback, spec.PolicyRef.Mode)
	r.accepted = policy.Accepts(named, fallback, spec.PolicyRef.Mode)
	r.preferred = r.accepted
	if spec.PolicyRef.Mode == v1alpha1.PolicyModePrefer {
		r.preferred = policy.Accepts(named, nil, v1alpha1.PolicyModeRequire)
	}

	r.hsmPool()
	byPort := map[int32][]model.Listener{}
	for _, l := range spec.Listeners {
		if listener, ok := r.listener(l); ok {
			byPort[l.Port] = append(byPort[l.Port], listener)
		}
	}
	for number, listeners := range byPort {
		slices.SortFunc(listeners, func(a, b model.Listener) int { return cmp.Compare(a.Name, b.Name) })
		m.Ports = append(m.Ports, model.Port{Number: number, Listeners: listeners})
	}
	slices.SortFunc(m.Ports, func(a, b model.Port) int { return cmp.Compare(a.Number, b.Number) })
	m.TLS.Provider = m.TLS.Provider || r.provider
	m.TLS.Vectorized = spec.PostQuantumImplementation == v1alpha1.ImplementationVectorized
	m.Tickets = tickets(r.gateway, m)
	m.Times = r.times
	if usesHSM(m) {
		m.HSM = r.hsm
	}
	return m
}

func (r *resolver) listener(l v1alpha1.Listener) (model.Listener, bool) {
	m := model.Listener{Name: l.Name, Protocol: l.Protocol, Preference: cmp.Or(l.Preference, v1alpha1.PreferPostQuantum)}
	for _, h := range l.Hostnames {
		name, err := model.ParseHostname(string(h))
		if err != nil {
			r.problem(Problem{Listener: l.Name, Condition: v1alpha1.ConditionAccepted, Reason: v1alpha1.ReasonInvalid, Holds: true,
				Message: fmt.Sprintf("listeners[%s].hostnames: %v", l.Name, err)})
			return m, false
		}
		m.Hostnames = append(m.Hostnames, name)
	}
	slices.Sort(m.Hostnames)

	if l.Protocol != v1alpha1.ProtocolTLSPassthrough {
		m.Certificates = r.certificates(l)
		if len(m.Certificates) == 0 {
			return m, false
		}
	}
	if a := l.ClientAuthentication; a != nil {
		cas, ok := r.authorities(l.Name, "clientAuthentication.caRefs", a.CARefs)
		if !ok {
			return m, false // never served without the authentication that was asked for
		}
		m.ClientAuthentication = &model.ClientAuthentication{
			Required: a.Mode != v1alpha1.ClientAuthenticationOptional, CAs: cas, ForwardCertificate: a.ForwardCertificate}
	}
	for i, b := range l.Backends {
		backend, ok := r.backend(l.Name, i, b)
		if !ok {
			return m, false
		}
		m.Backends = append(m.Backends, backend)
	}
	return m, true
}

// certificates resolves a listener's certificates: those that the policy itself
// accepts before those that only its fallback does, strongest first.
func (r *resolver) certificates(l v1alpha1.Listener) []model.Certificate {
	var found []model.Certificate
	problem := func(reason, format string, args ...any) {
		r.problem(Problem{Listener: l.Name, Condition: v1alpha1.ConditionResolvedRefs, Reason: reason, Holds: true,
			Message: fmt.Sprintf("listeners[%s].certificateRefs: ", l.Name) + fmt.Sprintf(format, args...)})
	}
	add := func(secret string, missing func()) {
		s := r.objects.Secrets[secret]
		if s == nil {
			missing()
			return
		}
		c, warnings, err := r.certificate(s, l.Hostnames)
		if err != nil {
			reason := v1alpha1.ReasonCertificateInvalid
			if errors.Is(err, keypair.ErrKeyMismatch) {
				reason = v1alpha1.ReasonKeyMismatch
			}
			problem(reason, "Secret %q: %v; put a certificate chain in tls.crt and its key in tls.key", secret, err)
			return
		}
		for _, w := range warnings {
			w.Listener, w.Message = l.Name, fmt.Sprintf("listeners[%s].certificateRefs: Secret %q: %s", l.Name, secret, w.Message)
			r.problem(w)
		}
		if p := r.unusableHSM(c); p != nil {
			p.Listener, p.Message = l.Name, fmt.Sprintf("listeners[%s].certificateRefs: Secret %q: %s", l.Name, secret, p.Message)
			r.problem(*p)
			return
		}
		found = append(found, c)
	}
	for _, ref := range l.CertificateRefs {
		if ref.Kind == v1alpha1.CertificateKindSecret {
			add(ref.Name, func() {
				problem(v1alpha1.ReasonCertificateNotFound, "there is no Secret %q in namespace %q; create it (type kubernetes.io/tls) or name another", ref.Name, r.gateway.Namespace)
			})
			continue
		}
		cert := r.objects.Certificates[ref.Name]
		if cert == nil {
			problem(v1alpha1.ReasonCertificateNotFound, "there is no PQCCertificate %q in namespace %q; create it or name another", ref.Name, r.gateway.Namespace)
			continue
		}
		if len(cert.Spec.Usages) > 0 && !slices.Contains(cert.Spec.Usages, v1alpha1.UsageServerAuth) {
			problem(v1alpha1.ReasonCertificateInvalid, "PQCCertificate %q is for clients alone, and every client refuses it; add ServerAuth to its spec.usages, or name another", ref.Name)
			continue
		}
		for _, secret := range SecretsOf(cert) {
			add(secret, func() {
				problem(v1alpha1.ReasonCertificateNotReady, "PQCCertificate %q has not issued Secret %q yet; its own conditions say why", ref.Name, secret)
			})
		}
	}
	slices.SortStableFunc(found, func(a, b model.Certificate) int {
		return cmp.Or(r.rank(a.Algorithm)-r.rank(b.Algorithm), algorithms.Strength(b.Algorithm)-algorithms.Strength(a.Algorithm))
	})

	var served []model.Certificate
	var refused []string
	for _, c := range found {
		switch {
		case len(c.HandshakeSchemes) == 0:
			refused = append(refused, fmt.Sprintf("%s (%s)", c.Secret, c.Algorithm))
		case slices.ContainsFunc(served, func(s model.Certificate) bool { return s.Algorithm == c.Algorithm }):
			r.problem(Problem{Listener: l.Name, Condition: v1alpha1.ConditionAccepted, Reason: v1alpha1.ReasonInvalid, Holds: true,
				Message: fmt.Sprintf("listeners[%s].certificateRefs: Secret %q is a second %s certificate; a listener has one of each algorithm: give its names a listener of their own", l.Name, c.Secret, c.Algorithm)})
		default:
			served = append(served, c)
			r.provider = r.provider || c.Provider
			if schemes := r.unaccepted(c.ChainSchemes); r.gateway.Spec.PolicyRef.Mode == v1alpha1.PolicyModeRequire && len(schemes) > 0 {
				r.problem(Problem{Listener: l.Name, Condition: v1alpha1.ConditionAccepted, Reason: v1alpha1.ReasonCertificateAgainstPolicy,
					Message: fmt.Sprintf("listeners[%s].certificateRefs: Secret %q: policy %s (Require) does not accept %s, by which certificates of the chain are signed; it is served on: have it issued by an authority whose own key the policy accepts, or use another policy",
						l.Name, c.Secret, r.gateway.Spec.PolicyRef.Name, strings.Join(schemes, ", "))})
			}
		}
	}
	if len(served) == 0 && len(refused) > 0 {
		r.problem(Problem{Listener: l.Name, Condition: v1alpha1.ConditionAccepted, Reason: v1alpha1.ReasonCertificateAgainstPolicy, Holds: true,
			Message: fmt.Sprintf("listeners[%s].certificateRefs: policy %s (%s) accepts none of %s; add a certificate of an algorithm in its signatureSchemes, or use mode Prefer",
				l.Name, r.gateway.Spec.PolicyRef.Name, r.gateway.Spec.PolicyRef.Mode, strings.Join(refused, ", "))})
	}
	return served
}

// unaccepted are the names of those of a chain's signature schemes that the policy
// does not accept. Certificates have RSA signatures of PKCS #1 v1.5, which handshakes
// of TLS 1.3 do not: they count as their RSA-PSS.
func (r *resolver) unaccepted(chain []uint16) []string {
	asPSS := map[uint16]uint16{0x0401: 0x0804, 0x0501: 0x0805, 0x0601: 0x0806}
	var names []string
	for _, code := range chain {
		i := slices.IndexFunc(algorithms.SignatureSchemes, func(s algorithms.SignatureScheme) bool { return s.CodePoint == cmp.Or(asPSS[code], code) })
		switch {
		case i < 0:
			names = append(names, fmt.Sprintf("the scheme %#04x", code))
		case !r.accepted(algorithms.SignatureSchemes[i].Name):
			names = append(names, string(algorithms.SignatureSchemes[i].Name))
		}
	}
	return names
}

// rank is 0 of what the policy itself accepts, else 1.
func (r *resolver) rank(a v1alpha1.KeyAlgorithm) int {
	k, _ := algorithms.LookupKeyAlgorithm(a)
	if slices.ContainsFunc(k.Schemes, r.preferred) {
		return 0
	}
	return 1
}

// certificate looks at one Secret. The warnings do not keep it from being
// served.
func (r *resolver) certificate(s *corev1.Secret, hostnames []v1alpha1.Hostname) (model.Certificate, []Problem, error) {
	pair, err := keypair.ParseStored(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return model.Certificate{}, nil, err
	}
	chain, err := pair.ChainSchemes()
	if err != nil {
		return model.Certificate{}, nil, err
	}
	var warnings []Problem
	warn := func(reason, format string, args ...any) {
		warnings = append(warnings, Problem{Condition: v1alpha1.ConditionResolvedRefs, Reason: reason, Message: fmt.Sprintf(format, args...)})
	}
	leaf := pair.Chain[0]
	r.boundaries(pair.Chain)
	for i, c := range pair.Chain {
		which := "the certificate"
		if i > 0 {
			which = fmt.Sprintf("the certificate of the authority %q in its chain", c.Subject)
		}
		if c.NotAfter.Before(r.now) {
			warn(v1alpha1.ReasonCertificateExpired, "%s expired at %s; it is served on, and clients will refuse it: renew it", which, c.NotAfter.UTC().Format(time.RFC3339))
		}
		if r.now.Before(c.NotBefore) {
			warn(v1alpha1.ReasonCertificateNotYetValid, "%s is not valid before %s; it is served, and clients will refuse it till then: put the former one back", which, c.NotBefore.UTC().Format(time.RFC3339))
		}
	}
	if !forServers(leaf) {
		warn(v1alpha1.ReasonCertificateInvalid, "the certificate is not one for servers (extended key usage); it is served, and clients will refuse it: have one issued with the usage of TLS servers")
	}
	for _, h := range hostnames {
		probe := string(h)
		if below, ok := model.Hostname(h).Wildcard(); ok {
			probe = "any." + below
		}
		if leaf.VerifyHostname(probe) != nil {
			warn(v1alpha1.ReasonHostnameNotCovered, "the certificate has names %v, which do not cover the listener's host name %q; clients will refuse it: add the name", leaf.DNSNames, h)
		}
	}
	algorithm, _ := algorithms.LookupKeyAlgorithm(pair.Algorithm)
	return model.Certificate{
		Secret: s.Name, Algorithm: pair.Algorithm, HSMPool: keypair.PoolOf(pair.Key), PostQuantum: algorithm.Family == algorithms.PostQuantum, Provider: keypair.NeedsProvider(pair.Chain...),
		HandshakeSchemes: pair.HandshakeSchemes(r.accepted), ChainSchemes: chain,
		SerialNumber: pair.SerialNumber(), NotAfter: leaf.NotAfter.Unix(),
	}, warnings, nil
}

// forServers says whether a certificate's usages, if it names any, are those of a TLS
// server.
func forServers(c *x509.Certificate) bool {
	named := len(c.ExtKeyUsage) > 0 || len(c.UnknownExtKeyUsage) > 0
	return !named || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny)
}

// boundaries are when certificates begin and end to be valid.
func (r *resolver) boundaries(certificates []*x509.Certificate) {
	for _, c := range certificates {
		r.times = append(r.times, c.NotBefore, c.NotAfter)
	}
}

// authorities joins CA certificates into one PEM bundle. Of several it is enough that
// some are valid: old ones stay in bundles.
func (r *resolver) authorities(listener, field string, refs []v1alpha1.CAReference) (string, bool) {
	var bundle strings.Builder
	var all []*x509.Certificate
	ok := true
	for _, ref := range refs {
		data, exists := r.objects.authority(ref)
		problem := Problem{Listener: listener, Condition: v1alpha1.ConditionResolvedRefs, Holds: true}
		if !exists {
			problem.Reason = v1alpha1.ReasonAuthorityNotFound
			problem.Message = fmt.Sprintf("listeners[%s].%s: there is no %s %q with key %q in namespace %q; create it or name another", listener, field, ref.Kind, ref.Name, ref.Key, r.gateway.Namespace)
			r.problem(problem)
			ok = false
			continue
		}
		certs, err := keypair.ParseCertificates(data)
		if err != nil {
			problem.Reason = v1alpha1.ReasonAuthorityInvalid
			problem.Message = fmt.Sprintf("listeners[%s].%s: %s %q, key %q: %v", listener, field, ref.Kind, ref.Name, ref.Key, err)
			r.problem(problem)
			ok = false
			continue
		}
		r.provider = r.provider || keypair.NeedsProvider(certs...)
		bundle.Write((&keypair.KeyPair{Chain: certs}).ChainPEM())
		all = append(all, certs...)
	}
	r.boundaries(all)
	valid := func(c *x509.Certificate) bool { return !r.now.Before(c.NotBefore) && !c.NotAfter.Before(r.now) }
	if ok && !slices.ContainsFunc(all, valid) {
		r.problem(Problem{Listener: listener, Condition: v1alpha1.ConditionResolvedRefs, Reason: v1alpha1.ReasonAuthorityExpired,
			Message: fmt.Sprintf("listeners[%s].%s: none of the authorities is valid at this time; the certificate of %q is from %s to %s: every certificate of theirs is refused; put the ones there that are in force",
				listener, field, all[0].Subject, all[0].NotBefore.UTC().Format(time.RFC3339), all[0].NotAfter.UTC().Format(time.RFC3339))})
	}
	return bundle.String(), ok
}

func (r *resolver) backend(listener string, index int, b v1alpha1.BackendReference) (model.Backend, bool) {
	m := model.Backend{Group: GroupName(b), Weight: 1}
	if b.Weight != nil {
		m.Weight = int(*b.Weight)
	}
	field := fmt.Sprintf("listeners[%s].backends[%d]", listener, index)
	if p := unnameable(b); p != "" {
		r.problem(Problem{Listener: listener, Condition: v1alpha1.ConditionAccepted, Reason: v1alpha1.ReasonInvalid, Holds: true,
			Message: field + p})
		return m, false
	}
	if b.TLS != nil {
		host, err := model.ParseHostname(string(b.TLS.Hostname))
		if err != nil {
			r.problem(Problem{Listener: listener, Condition: v1alpha1.ConditionAccepted, Reason: v1alpha1.ReasonInvalid, Holds: true,
				Message: fmt.Sprintf("listeners[%s].backends[%d].tls.hostname: %v", listener, index, err)})
			return m, false
		}
		cas, ok := r.authorities(listener, fmt.Sprintf("backends[%d].tls.caRefs", index), b.TLS.CARefs)
		if !ok {
			return m, false // never sent in the clear, nor to an unverified server
		}
		m.TLS = &model.BackendTLS{Hostname: host, CAs: cas}
	}
	warn := func(reason, format string, args ...any) {
		r.problem(Problem{Listener: listener, Condition: v1alpha1.ConditionResolvedRefs, Reason: reason, Message: field + ": " + fmt.Sprintf(format, args...)})
	}
	service := r.objects.Services[b.Name]
	switch {
	case service == nil:
		warn(v1alpha1.ReasonBackendNotFound, "there is no Service %q in namespace %q; create it or name another", b.Name, r.gateway.Namespace)
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		warn(v1alpha1.ReasonBackendNotSupported, "Service %q is of type ExternalName, which has no endpoints; use a Service with a selector or with EndpointSlices of its own", b.Name)
	default:
		if _, ok := findPort(service, b.Port.String()); !ok {
			warn(v1alpha1.ReasonBackendPortNotFound, "Service %q has no TCP port %s; it has %s", b.Name, b.Port.String(), portNames(service))
		}
	}
	return m, true
}

// word is what a group's name may be made of, as render takes it: without `..`.
var word = regexp.MustCompile(`^[A-Za-z0-9](\.?[-_A-Za-z0-9])*$`)

// unnameable says what of a backend no configuration can carry: the group's name is
// one word there. The API refuses such names; objects of before it did are there
// still. What else there cannot be, as Shop, is not there.
func unnameable(b v1alpha1.BackendReference) string {
	if !word.MatchString(b.Name) {
		return fmt.Sprintf(".name: %q is no name of a Service; write letters in lower case, digits and '-'", b.Name)
	}
	if b.Port.Type == intstr.String && !word.MatchString(b.Port.StrVal) {
		return fmt.Sprintf(".port: %q is no name of a Service's port; write letters in lower case, digits and '-', or its number", b.Port.StrVal)
	}
	return ""
}

// GroupName names the endpoints of a backend: `<service>:<port>`.
func GroupName(b v1alpha1.BackendReference) string { return b.Name + ":" + b.Port.String() }

// servicePortOf is what GroupName joins.
func servicePortOf(group string) (service, port string) {
	service, port, _ = strings.Cut(group, ":")
	return service, port
}

// findPort finds a TCP port of a Service by its number or its name, in which
// there is always a letter.
func findPort(s *corev1.Service, port string) (corev1.ServicePort, bool) {
	for _, p := range s.Spec.Ports {
		if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
			continue
		}
		if strconv.Itoa(int(p.Port)) == port || p.Name == port {
			return p, true
		}
	}
	return corev1.ServicePort{}, false
}

func portNames(s *corev1.Service) string {
	var names []string
	for _, p := range s.Spec.Ports {
		name := fmt.Sprint(p.Port)
		if p.Name != "" {
			name += " (" + p.Name + ")"
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
