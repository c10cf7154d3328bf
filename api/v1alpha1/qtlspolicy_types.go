package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// QTLSPolicy says which TLS parameters are acceptable. It is immutable: a
// change is a new object under a new name, so that no upgrade cuts a client
// off.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=qpol,categories=qtls
// +kubebuilder:printcolumn:name="Versions",type=string,JSONPath=`.spec.versions`
// +kubebuilder:printcolumn:name="Groups",type=string,JSONPath=`.spec.groups`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type QTLSPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the policy accepts.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec: a QTLSPolicy is immutable; create one with a new name (a version suffix such as -v2) and point policyRef at it"
	Spec QTLSPolicySpec `json:"spec"`
}

// QTLSPolicySpec is what a policy accepts. Names are those of the IANA TLS
// registries, and of the provider's algorithms, which are not there. Lists whose
// order says what is preferred are atomic: sets are equal in any order.
//
// +kubebuilder:validation:XValidation:rule="!('TLS1.3' in self.versions) || self.cipherSuites.exists(s, s in ['TLS_AES_128_GCM_SHA256','TLS_AES_256_GCM_SHA384','TLS_CHACHA20_POLY1305_SHA256'])",message="cipherSuites: version TLS1.3 needs at least one of TLS_AES_128_GCM_SHA256, TLS_AES_256_GCM_SHA384, TLS_CHACHA20_POLY1305_SHA256"
// +kubebuilder:validation:XValidation:rule="!('TLS1.2' in self.versions) || self.cipherSuites.exists(s, s.startsWith('TLS_ECDHE_'))",message="cipherSuites: version TLS1.2 needs at least one suite whose name starts with TLS_ECDHE_"
// +kubebuilder:validation:XValidation:rule="'TLS1.2' in self.versions || !self.cipherSuites.exists(s, s.startsWith('TLS_ECDHE_'))",message="cipherSuites: a TLS_ECDHE_ suite is of TLS 1.2, which versions does not name"
// +kubebuilder:validation:XValidation:rule="!('TLS1.2' in self.versions) || self.groups.exists(g, g in ['x25519','x448','secp256r1','secp384r1','secp521r1'])",message="groups: version TLS1.2 has no post-quantum groups; name at least one of x25519, x448, secp256r1, secp384r1, secp521r1"
// +kubebuilder:validation:XValidation:rule="!('TLS1.2' in self.versions) || self.cipherSuites.exists(s, s.startsWith('TLS_ECDHE_ECDSA_')) && self.signatureSchemes.exists(s, s.startsWith('ecdsa_')) || self.cipherSuites.exists(s, s.startsWith('TLS_ECDHE_RSA_')) && self.signatureSchemes.exists(s, s.startsWith('rsa_pss_'))",message="signatureSchemes: version TLS1.2 has no post-quantum ones; name at least one that starts with ecdsa_ beside a suite that starts with TLS_ECDHE_ECDSA_, or one that starts with rsa_pss_ beside a suite that starts with TLS_ECDHE_RSA_"
type QTLSPolicySpec struct {
	// description for people who choose a policy.
	// +optional
	// +kubebuilder:validation:MaxLength=500
	Description string `json:"description,omitempty"`
	// versions of TLS.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	Versions []TLSVersion `json:"versions"`
	// groups for key exchange, best first. A client that supports a better one
	// but sent no key share for it gets a HelloRetryRequest.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, b == a))",message="groups: each once"
	Groups []Group `json:"groups"`
	// signatureSchemes of server certificates, best first.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, b == a))",message="signatureSchemes: each once"
	SignatureSchemes []SignatureScheme `json:"signatureSchemes"`
	// cipherSuites, best first.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, b == a))",message="cipherSuites: each once"
	CipherSuites []CipherSuite `json:"cipherSuites"`
}

// TLSVersion is a version of TLS.
// +kubebuilder:validation:Enum=TLS1.2;TLS1.3
type TLSVersion string

const (
	TLS12 TLSVersion = "TLS1.2"
	TLS13 TLSVersion = "TLS1.3"
)

// CipherSuite is an AEAD cipher suite, by its name in IANA's registry.
// +kubebuilder:validation:Enum=TLS_AES_128_GCM_SHA256;TLS_AES_256_GCM_SHA384;TLS_CHACHA20_POLY1305_SHA256;TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384;TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256;TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256;TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384;TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
type CipherSuite string

// QTLSPolicyList is a list of QTLSPolicies.
// +kubebuilder:object:root=true
type QTLSPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []QTLSPolicy `json:"items"`
}
