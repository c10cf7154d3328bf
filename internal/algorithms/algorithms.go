// Package algorithms is the one table of what Q-TLS knows about cryptographic
// algorithms: names in IANA's registries and in OpenSSL, code points, families
// and security levels. The API's enumerations, the policies' checks, the
// HAProxy configuration and the documentation are held to it by tests.
package algorithms

import "qtls.dev/qtls/api/v1alpha1"

// Family says what an algorithm withstands.
type Family string

const (
	// PostQuantum algorithms withstand a quantum computer (alone or as a
	// hybrid's one half).
	PostQuantum Family = "PostQuantum"
	// Classical algorithms do not.
	Classical Family = "Classical"
)

// Group is a key exchange group of TLS.
type Group struct {
	// Name in IANA's TLS Supported Groups registry.
	Name v1alpha1.Group
	// OpenSSL is the name that OpenSSL 3.5 and HAProxy's `curves` take and
	// `ssl_fc_curve` reports.
	OpenSSL string
	// CodePoint in the registry.
	CodePoint uint16
	Family    Family
	// TLS13Only groups have no meaning in TLS 1.2.
	TLS13Only bool
}

// Groups lists every group that a QTLSPolicy may name.
var Groups = []Group{
	{"X25519MLKEM768", "X25519MLKEM768", 0x11ec, PostQuantum, true},
	{"SecP256r1MLKEM768", "SecP256r1MLKEM768", 0x11eb, PostQuantum, true},
	{"SecP384r1MLKEM1024", "SecP384r1MLKEM1024", 0x11ed, PostQuantum, true},
	{"MLKEM512", "MLKEM512", 0x0200, PostQuantum, true},
	{"MLKEM768", "MLKEM768", 0x0201, PostQuantum, true},
	{"MLKEM1024", "MLKEM1024", 0x0202, PostQuantum, true},
	{"x25519", "X25519", 0x001d, Classical, false},
	{"x448", "X448", 0x001e, Classical, false},
	{"secp256r1", "P-256", 0x0017, Classical, false},
	{"secp384r1", "P-384", 0x0018, Classical, false},
	{"secp521r1", "P-521", 0x0019, Classical, false},
}

// SignatureScheme is a signature scheme of TLS.
type SignatureScheme struct {
	// Name in IANA's TLS SignatureScheme registry.
	Name v1alpha1.SignatureScheme
	// OpenSSL is the name that OpenSSL 3.5 and HAProxy's `sigalgs` take.
	OpenSSL string
	// CodePoint in the registry.
	CodePoint uint16
	Family    Family
}

// SignatureSchemes lists every scheme that a QTLSPolicy may name.
var SignatureSchemes = []SignatureScheme{
	{"mldsa44", "mldsa44", 0x0904, PostQuantum},
	{"mldsa65", "mldsa65", 0x0905, PostQuantum},
	{"mldsa87", "mldsa87", 0x0906, PostQuantum},
	{"ecdsa_secp256r1_sha256", "ecdsa_secp256r1_sha256", 0x0403, Classical},
	{"ecdsa_secp384r1_sha384", "ecdsa_secp384r1_sha384", 0x0503, Classical},
	{"rsa_pss_rsae_sha256", "rsa_pss_rsae_sha256", 0x0804, Classical},
	{"rsa_pss_rsae_sha384", "rsa_pss_rsae_sha384", 0x0805, Classical},
	{"rsa_pss_rsae_sha512", "rsa_pss_rsae_sha512", 0x0806, Classical},
}

// KeyAlgorithm is an algorithm of certificate keys.
type KeyAlgorithm struct {
	// Name in the API.
	Name   v1alpha1.KeyAlgorithm
	Family Family
	// Schemes that a server with such a key can sign a handshake with.
	Schemes []v1alpha1.SignatureScheme
	// Strength orders certificates, strongest first; post-quantum ones come
	// before classical ones.
	Strength int
}

// KeyAlgorithms lists every algorithm that a PQCCertificate may name.
var KeyAlgorithms = []KeyAlgorithm{
	{"ML-DSA-87", PostQuantum, []v1alpha1.SignatureScheme{"mldsa87"}, 80},
	{"ML-DSA-65", PostQuantum, []v1alpha1.SignatureScheme{"mldsa65"}, 70},
	{"ML-DSA-44", PostQuantum, []v1alpha1.SignatureScheme{"mldsa44"}, 60},
	{"ECDSA-P384", Classical, []v1alpha1.SignatureScheme{"ecdsa_secp384r1_sha384"}, 50},
	{"ECDSA-P256", Classical, []v1alpha1.SignatureScheme{"ecdsa_secp256r1_sha256"}, 40},
	{"RSA-4096", Classical, rsaSchemes, 30},
	{"RSA-3072", Classical, rsaSchemes, 20},
	{"RSA-2048", Classical, rsaSchemes, 10},
}

var rsaSchemes = []v1alpha1.SignatureScheme{"rsa_pss_rsae_sha256", "rsa_pss_rsae_sha384", "rsa_pss_rsae_sha512"}

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

// LookupGroup finds a group by its IANA name.
func LookupGroup(name v1alpha1.Group) (Group, bool) {
	return find(Groups, func(g Group) bool { return g.Name == name })
}

// LookupSignatureScheme finds a scheme by its IANA name.
func LookupSignatureScheme(name v1alpha1.SignatureScheme) (SignatureScheme, bool) {
	return find(SignatureSchemes, func(s SignatureScheme) bool { return s.Name == name })
}

// LookupKeyAlgorithm finds a key algorithm by its API name.
func LookupKeyAlgorithm(name v1alpha1.KeyAlgorithm) (KeyAlgorithm, bool) {
	return find(KeyAlgorithms, func(k KeyAlgorithm) bool { return k.Name == name })
}

// LookupCipherSuite finds a suite by its IANA name.
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
