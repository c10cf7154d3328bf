// Package algorithms is what Q-TLS knows about cryptographic algorithms: names
// in IANA's registries and in OpenSSL, code points, families and security
// levels. Its tables are generated from crypto/algorithms.csv, as the API's
// enumerations, the provider's registry and the documentation are; only the
// cipher suites, which the provider has none of, are written here.
package algorithms

import (
	"slices"
	"strings"

	"qtls.dev/qtls/api/v1alpha1"
)

// Family says what an algorithm withstands.
type Family string

const (
	// PostQuantum algorithms withstand a quantum computer (alone or as a
	// hybrid's one half).
	PostQuantum Family = "PostQuantum"
	// Classical algorithms do not.
	Classical Family = "Classical"
)

// Provider is the OpenSSL provider that has the algorithms that OpenSSL lacks.
const Provider = "oqsprovider"

// Group is a key exchange group of TLS; a post-quantum one is of TLS 1.3 alone.
type Group struct {
	// Name in IANA's TLS Supported Groups registry, or the provider's.
	Name v1alpha1.Group
	// OpenSSL is the name that HAProxy's `curves` takes, and that metrics have.
	OpenSSL string
	// Aliases are other names that OpenSSL has for it.
	Aliases []string
	// CodePoint in the registry.
	CodePoint uint16
	Family    Family
	// Provider says that it is the provider's.
	Provider bool
}

// SignatureScheme is a signature scheme of TLS; a post-quantum one is of TLS
// 1.3 alone.
type SignatureScheme struct {
	// Name in IANA's TLS SignatureScheme registry, or the provider's; also in
	// OpenSSL.
	Name v1alpha1.SignatureScheme
	// CodePoint in the registry.
	CodePoint uint16
	Family    Family
	// Provider says that it is the provider's.
	Provider bool
}

// KeyAlgorithm is an algorithm of certificate keys.
type KeyAlgorithm struct {
	// Name in the API; of the provider's, also in OpenSSL.
	Name   v1alpha1.KeyAlgorithm
	Family Family
	// Schemes that a server with such a key can sign a handshake with.
	Schemes []v1alpha1.SignatureScheme
	// Provider says how the provider writes its keys; nil of those that are not
	// the provider's.
	Provider *ProviderKey
}

// ProviderKey is what has to be known of the keys of the provider's algorithms
// to read them, for crypto/x509 does not.
type ProviderKey struct {
	// OID of the keys and of the signatures.
	OID string
	// Hybrid keys have a classical half before the other.
	Hybrid bool
	// PublicSize and SecretSize of the post-quantum half, in bytes.
	PublicSize, SecretSize int
}

// CipherSuite is an AEAD cipher suite.
type CipherSuite struct {
	// Name in IANA's TLS Cipher Suites registry.
	Name v1alpha1.CipherSuite
	// OpenSSL is the name that OpenSSL and HAProxy take and `ssl_fc_cipher`
	// reports.
	OpenSSL string
	Version v1alpha1.TLSVersion
}

// CipherSuites lists every suite that a QTLSPolicy may name.
var CipherSuites = []CipherSuite{
	{"TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384", v1alpha1.TLS13},
	{"TLS_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256", v1alpha1.TLS13},
	{"TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256", v1alpha1.TLS13},
	{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384", v1alpha1.TLS12},
	{"TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384", v1alpha1.TLS12},
	{"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305", v1alpha1.TLS12},
	{"TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305", v1alpha1.TLS12},
	{"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256", v1alpha1.TLS12},
	{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256", v1alpha1.TLS12},
}

// LookupGroup finds a group by its name in the API.
func LookupGroup(name v1alpha1.Group) (Group, bool) {
	return find(Groups, func(g Group) bool { return g.Name == name })
}

// GroupReportedAs finds a group by what OpenSSL calls it: any of its names, in
// whatever case.
func GroupReportedAs(name string) (Group, bool) {
	return find(Groups, func(g Group) bool {
		same := func(s string) bool { return strings.EqualFold(s, name) }
		return same(string(g.Name)) || slices.ContainsFunc(g.Aliases, same)
	})
}

// LookupSignatureScheme finds a scheme by its name in the API.
func LookupSignatureScheme(name v1alpha1.SignatureScheme) (SignatureScheme, bool) {
	return find(SignatureSchemes, func(s SignatureScheme) bool { return s.Name == name })
}

// LookupKeyAlgorithm finds a key algorithm by its API name.
func LookupKeyAlgorithm(name v1alpha1.KeyAlgorithm) (KeyAlgorithm, bool) {
	return find(KeyAlgorithms, func(k KeyAlgorithm) bool { return k.Name == name })
}

// LookupOID finds one of the provider's key algorithms by its object identifier.
func LookupOID(oid string) (KeyAlgorithm, bool) {
	return find(KeyAlgorithms, func(k KeyAlgorithm) bool { return k.Provider != nil && k.Provider.OID == oid })
}

// Strength orders key algorithms: the greater, the stronger. What the table
// does not have is the weakest.
func Strength(name v1alpha1.KeyAlgorithm) int {
	i := slices.IndexFunc(KeyAlgorithms, func(k KeyAlgorithm) bool { return k.Name == name })
	if i < 0 {
		return 0
	}
	return len(KeyAlgorithms) - i
}

// LookupCipherSuite finds a suite by its name in the API.
func LookupCipherSuite(name v1alpha1.CipherSuite) (CipherSuite, bool) {
	return find(CipherSuites, func(s CipherSuite) bool { return s.Name == name })
}

func find[T any](list []T, match func(T) bool) (T, bool) {
	for _, e := range list {
		if match(e) {
			return e, true
		}
	}
	var zero T
	return zero, false
}
