// Package policy turns a QTLSPolicy and the mode that it is meant in into what
// a listener negotiates. It is pure.
package policy

import (
	"slices"
	"strings"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/model"
)

// Resolve says what listeners negotiate under a policy in a mode. fallback is
// what the modes Prefer and Observe fall back to; Require does not look at it.
// What the policy would accept is returned in mode Observe alone.
//
// The policy's groups come first, each a preference of its own: a client that
// supports a better one than it sent a key share for gets a
// HelloRetryRequest. The fallback's other groups share the last preference,
// where the client's key share decides.
func Resolve(p, fallback *v1alpha1.QTLSPolicy, mode v1alpha1.PolicyMode) (model.TLS, *model.Acceptable) {
	switch mode {
	case v1alpha1.PolicyModeRequire:
		return parameters(p.Spec, v1alpha1.QTLSPolicySpec{}), nil
	case v1alpha1.PolicyModeObserve:
		return parameters(fallback.Spec, v1alpha1.QTLSPolicySpec{}), acceptable(p.Spec)
	}
	return parameters(p.Spec, fallback.Spec), nil
}

// Accepts says which signature schemes server certificates may have. The
// post-quantum ones are of TLS 1.3 alone.
func Accepts(p, fallback *v1alpha1.QTLSPolicy, mode v1alpha1.PolicyMode) func(v1alpha1.SignatureScheme) bool {
	var schemes []v1alpha1.SignatureScheme
	var versions []v1alpha1.TLSVersion
	if mode != v1alpha1.PolicyModeObserve {
		schemes, versions = p.Spec.SignatureSchemes, p.Spec.Versions
	}
	if mode != v1alpha1.PolicyModeRequire {
		schemes, versions = union(schemes, fallback.Spec.SignatureSchemes), union(versions, fallback.Spec.Versions)
	}
	return func(name v1alpha1.SignatureScheme) bool {
		s, _ := algorithms.LookupSignatureScheme(name)
		return slices.Contains(schemes, name) && (s.Family == algorithms.Classical || slices.Contains(versions, v1alpha1.TLS13))
	}
}

func parameters(first, then v1alpha1.QTLSPolicySpec) model.TLS {
	versions := union(first.Versions, then.Versions)
	t := model.TLS{MinVersion: "TLSv1.3", MaxVersion: "TLSv1.3"}
	if slices.Contains(versions, v1alpha1.TLS12) {
		t.MinVersion = "TLSv1.2"
		if !slices.Contains(versions, v1alpha1.TLS13) {
			t.MaxVersion = "TLSv1.2"
		}
	}

	t.Curves = strings.Join(append(groupNames(first.Groups), fallbackTuples(first.Groups, then.Groups)...), "/")
	for _, name := range union(first.Groups, then.Groups) {
		g, _ := algorithms.LookupGroup(name)
		t.Provider = t.Provider || g.Provider
	}

	var schemes []string
	for _, name := range union(first.SignatureSchemes, then.SignatureSchemes) {
		if s, ok := algorithms.LookupSignatureScheme(name); ok {
			schemes = append(schemes, string(s.Name))
			t.Provider = t.Provider || s.Provider
		}
	}
	t.SignatureAlgorithms = strings.Join(schemes, ":")

	suites := union(first.CipherSuites, then.CipherSuites)
	t.CipherSuites = strings.Join(suiteNames(suites, v1alpha1.TLS13), ":")
	t.Ciphers = strings.Join(suiteNames(suites, v1alpha1.TLS12), ":")
	return t
}

// fallbackTuples are the groups that only the fallback has: the post-quantum
// ones, then the classical ones. Within a tuple a client's key share decides,
// which saves a round trip; between the two it must not, or a client that
// supports a post-quantum group but sent a share for a classical one would get
// the latter.
func fallbackTuples(first, then []v1alpha1.Group) []string {
	var tuples []string
	for _, family := range []algorithms.Family{algorithms.PostQuantum, algorithms.Classical} {
		rest := slices.DeleteFunc(slices.Clone(then), func(name v1alpha1.Group) bool {
			g, known := algorithms.LookupGroup(name)
			return !known || g.Family != family || slices.Contains(first, name)
		})
		if len(rest) > 0 {
			tuples = append(tuples, strings.Join(groupNames(rest), ":"))
		}
	}
	return tuples
}

func acceptable(p v1alpha1.QTLSPolicySpec) *model.Acceptable {
	a := &model.Acceptable{
		Groups: groupNames(p.Groups),
		Suites: append(suiteNames(p.CipherSuites, v1alpha1.TLS13), suiteNames(p.CipherSuites, v1alpha1.TLS12)...),
	}
	for _, v := range p.Versions {
		a.Versions = append(a.Versions, strings.Replace(string(v), "TLS", "TLSv", 1))
	}
	for _, k := range algorithms.KeyAlgorithms {
		if slices.ContainsFunc(k.Schemes, func(s v1alpha1.SignatureScheme) bool { return slices.Contains(p.SignatureSchemes, s) }) {
			a.Algorithms = append(a.Algorithms, k.Name)
		}
	}
	return a
}

func groupNames(groups []v1alpha1.Group) []string {
	var names []string
	for _, name := range groups {
		if g, ok := algorithms.LookupGroup(name); ok {
			names = append(names, g.OpenSSL)
		}
	}
	return names
}

func suiteNames(suites []v1alpha1.CipherSuite, version v1alpha1.TLSVersion) []string {
	var names []string
	for _, name := range suites {
		if s, ok := algorithms.LookupCipherSuite(name); ok && s.Version == version {
			names = append(names, s.OpenSSL)
		}
	}
	return names
}

// union keeps the order: the first list's, then what the second adds.
func union[T comparable](a, b []T) []T {
	out := slices.Clone(a)
	for _, e := range b {
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}
