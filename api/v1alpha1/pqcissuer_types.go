package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PQCIssuer signs approved cert-manager CertificateRequests of its namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pqissuer,categories=qtls
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Algorithms",type=string,JSONPath=`.status.algorithms`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
type PQCIssuer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is wanted.
	// +required
	Spec IssuerSpec `json:"spec"`
	// status is what was last observed.
	// +optional
	Status IssuerStatus `json:"status,omitempty"`
}

// PQCClusterIssuer signs approved cert-manager CertificateRequests of every
// namespace. Its Secrets and HSMPools lie in the operator's namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=pqclusterissuer,categories=qtls
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Algorithms",type=string,JSONPath=`.status.algorithms`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
type PQCClusterIssuer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is wanted.
	// +required
	Spec IssuerSpec `json:"spec"`
	// status is what was last observed.
	// +optional
	Status IssuerStatus `json:"status,omitempty"`
}

// IssuerSpec says how an issuer signs: exactly one of its fields is set.
//
// +kubebuilder:validation:XValidation:rule="has(self.selfSigned) != has(self.ca)",message="set exactly one of selfSigned and ca"
type IssuerSpec struct {
	// selfSigned signs each certificate with its own key.
	// +optional
	SelfSigned *SelfSignedIssuer `json:"selfSigned,omitempty"`
	// ca signs with the keys of certificate authorities.
	// +optional
	CA *CAIssuer `json:"ca,omitempty"`
}

// SelfSignedIssuer has no settings.
type SelfSignedIssuer struct{}

// CAIssuer signs with certificate authorities: one for post-quantum keys, one
// for classical ones, or either alone. A certificate is signed by the
// authority of its own family, for a client that cannot verify the CA's
// signature cannot use the certificate either.
type CAIssuer struct {
	// secretRefs name Secrets of type kubernetes.io/tls that hold a CA
	// certificate (with those above it, if it is an intermediate) and its key, or
	// the name of its key in an HSMPool, as PQCCertificates with keyStorage HSM
	// have it; at most one of each family. A PQCIssuer's Secrets and HSMPools lie
	// in its namespace, a PQCClusterIssuer's in the operator's.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	SecretRefs []SecretReference `json:"secretRefs"`
	// hsmRef names the HSMPool that the keys of all these authorities are in: a
	// Secret with a key in it, or with the name of one in another pool, is refused.
	// Without, either may be.
	// +optional
	HSMRef *HSMPoolReference `json:"hsmRef,omitempty"`
	// subordinateAuthorities says what becomes of requests for certificates of
	// authorities (isCA): Allow signs them, Refuse does not. Who has the key of
	// one may sign certificates for any name, which all who trust this issuer's
	// authorities take. Default: Allow in a PQCIssuer, whose authorities are the
	// namespace's own; Refuse in a PQCClusterIssuer, which signs for who may
	// create requests in any namespace.
	// +optional
	SubordinateAuthorities SubordinateAuthorities `json:"subordinateAuthorities,omitempty"`
}

// SubordinateAuthorities says whether certificates of authorities are signed.
// +kubebuilder:validation:Enum=Allow;Refuse
type SubordinateAuthorities string

const (
	// SubordinatesAllow signs them.
	SubordinatesAllow SubordinateAuthorities = "Allow"
	// SubordinatesRefuse signs none.
	SubordinatesRefuse SubordinateAuthorities = "Refuse"
)

// SecretReference names a Secret.
type SecretReference struct {
	// name of the Secret.
	// +required
	Name ObjectName `json:"name"`
}

// IssuerStatus is what was last observed of an issuer.
type IssuerStatus struct {
	// observedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// algorithms of its authorities, as in `ML-DSA-65,ECDSA-P256`; empty if it
	// signs with each certificate's own key.
	// +optional
	Algorithms string `json:"algorithms,omitempty"`
	// authorities that the issuer signs with.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	Authorities []Authority `json:"authorities,omitempty"`
}

// Authority is a certificate authority of an issuer.
type Authority struct {
	// secretName is the Secret that holds it.
	// +required
	SecretName string `json:"secretName"`
	// hsmPool that its key lies in; empty if it lies in the Secret.
	// +optional
	HSMPool string `json:"hsmPool,omitempty"`
	// algorithm of its key.
	// +required
	Algorithm string `json:"algorithm"`
	// subject of its certificate (RFC 2253).
	// +required
	Subject string `json:"subject"`
	// notAfter is when it expires.
	// +required
	NotAfter metav1.Time `json:"notAfter"`
}

// PQCIssuerList is a list of PQCIssuers.
// +kubebuilder:object:root=true
type PQCIssuerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PQCIssuer `json:"items"`
}

// PQCClusterIssuerList is a list of PQCClusterIssuers.
// +kubebuilder:object:root=true
type PQCClusterIssuerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PQCClusterIssuer `json:"items"`
}
