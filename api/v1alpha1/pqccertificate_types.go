package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PQCCertificate keeps certificates for a set of names, one for each of its
// algorithms, issued through cert-manager CertificateRequests and renewed
// before they expire.
//
// Each certificate lies in a Secret of type kubernetes.io/tls named
// `<name>-<algorithm in lower case>`, such as `web-ml-dsa-65`, with hyphens for
// underscores, such as `web-p384-haetae3`.
// Annotate the object with qtls.dev/renew (any new value) to renew at once.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pqcert,categories=qtls
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Algorithms",type=string,JSONPath=`.spec.algorithms`
// +kubebuilder:printcolumn:name="Issuer",type=string,JSONPath=`.spec.issuerRef.name`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.status.notAfter`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 200",message="metadata.name: at most 200 characters, so that the names of its Secrets fit"
type PQCCertificate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is wanted.
	// +required
	Spec PQCCertificateSpec `json:"spec"`
	// status is what was last observed.
	// +optional
	Status PQCCertificateStatus `json:"status,omitempty"`
}

// PQCCertificateSpec is what a user asks of a certificate.
//
// +kubebuilder:validation:XValidation:rule="has(self.isCA) && self.isCA ? has(self.commonName) : (has(self.dnsNames) || has(self.ipAddresses) || (has(self.commonName) && has(self.usages) && !('ServerAuth' in self.usages)))",message="dnsNames or ipAddresses: a server certificate needs at least one name; commonName: a CA certificate (isCA) needs one, and a client's (usages) that has no other name"
// +kubebuilder:validation:XValidation:rule="!(has(self.isCA) && self.isCA && has(self.usages))",message="usages: not of a CA certificate (isCA), which is for what it signs"
// +kubebuilder:validation:XValidation:rule="!(has(self.isCA) && self.isCA && has(oldSelf.commonName)) || (has(self.commonName) && self.commonName == oldSelf.commonName)",message="commonName: immutable with isCA, for what the CA signed names it; create another PQCCertificate"
// +kubebuilder:validation:XValidation:rule="!has(self.renewBefore) || duration(self.renewBefore) < (has(self.duration) ? duration(self.duration) : duration('2160h'))",message="renewBefore: must be shorter than duration (default 2160h)"
// +kubebuilder:validation:XValidation:rule="!has(self.keyStorage) || self.keyStorage.type != 'HSM' || self.algorithms.all(a, a in ['ML-DSA-44','ML-DSA-65','ML-DSA-87','ECDSA-P256','ECDSA-P384','RSA-2048','RSA-3072','RSA-4096'])",message="algorithms: HSMs have ML-DSA, ECDSA and RSA; the OpenSSL provider's need keyStorage.type Secret"
// +kubebuilder:validation:XValidation:rule="!has(self.keyStorage) || !has(self.keyStorage.existingKeys) || self.keyStorage.existingKeys.all(k, k.algorithm in self.algorithms)",message="keyStorage.existingKeys: each of an algorithm in algorithms"
type PQCCertificateSpec struct {
	// dnsNames of the certificate (subjectAltName), wildcards allowed.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	DNSNames []Hostname `json:"dnsNames,omitempty"`

	// ipAddresses of the certificate (subjectAltName).
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="ipAddresses: each an IPv4 or IPv6 address"
	IPAddresses []string `json:"ipAddresses,omitempty"`

	// commonName of the subject. Clients do not look at it for host names, and a
	// certificate for servers alone that comes without it is taken.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	CommonName string `json:"commonName,omitempty"`

	// isCA makes certificates that may sign others, for a PQCIssuer. A CA
	// certificate keeps its key when it is renewed, so that what it signed
	// stays valid: only who deletes its Secret, or changes keyStorage, gets
	// another.
	// +optional
	// +kubebuilder:default=false
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="isCA: immutable; create another PQCCertificate"
	IsCA bool `json:"isCA,omitempty"`

	// usages: whether the certificate's holder proves with it who it is as a server
	// (ServerAuth), as a client (ClientAuth), or as both: its extended key usages
	// (RFC 5280, 4.2.1.12). Default: ServerAuth.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	Usages []CertificateUsage `json:"usages,omitempty"`

	// duration of validity.
	// +optional
	// +kubebuilder:default="2160h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('5m') && duration(self) <= duration('262800h')",message="duration: from 5m to 262800h (30 years)"
	Duration *metav1.Duration `json:"duration,omitempty"`

	// renewBefore is how long before its end a certificate is renewed.
	// Default: a third of its duration.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="renewBefore: at least 1m"
	RenewBefore *metav1.Duration `json:"renewBefore,omitempty"`

	// algorithms of the keys: one certificate each. Those in lower case are the
	// OpenSSL provider's, experimental all of them
	// (docs/reference/algorithms.md): PQCIssuers sign them, other issuers need
	// not know them. The Secret of one that is taken away goes when all others are
	// there and no gateway has it in its configuration; a CA's stays.
	// +optional
	// +listType=set
	// +kubebuilder:default={"ML-DSA-65","ECDSA-P256"}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Algorithms []KeyAlgorithm `json:"algorithms,omitempty"`

	// issuerRef names who signs.
	// +required
	IssuerRef IssuerReference `json:"issuerRef"`

	// keyStorage says where the private keys are made and lie.
	// +optional
	// +kubebuilder:default={type: "Secret"}
	KeyStorage KeyStorage `json:"keyStorage,omitzero"`
}

// CertificateUsage is what a certificate proves.
// +kubebuilder:validation:Enum=ServerAuth;ClientAuth
type CertificateUsage string

const (
	// UsageServerAuth is for TLS servers, such as a gateway's listeners.
	UsageServerAuth CertificateUsage = "ServerAuth"
	// UsageClientAuth is for TLS clients, such as those of a listener with
	// clientAuthentication or of an hsmd.
	UsageClientAuth CertificateUsage = "ClientAuth"
)

// KeyStorageType says where private keys lie.
// +kubebuilder:validation:Enum=Secret;HSM
type KeyStorageType string

const (
	// KeyStorageSecret keeps each key in the Secret of its certificate.
	KeyStorageSecret KeyStorageType = "Secret"
	// KeyStorageHSM keeps it in the tokens of an HSMPool, which made it.
	KeyStorageHSM KeyStorageType = "HSM"
)

// KeyStorage says where private keys are made and lie.
//
// +kubebuilder:validation:XValidation:rule="has(self.hsmRef) == (self.type == 'HSM')",message="hsmRef: needed with type HSM, and only there"
// +kubebuilder:validation:XValidation:rule="!has(self.existingKeys) || self.type == 'HSM'",message="existingKeys: only with type HSM"
// +kubebuilder:validation:XValidation:rule="!has(self.existingKeys) || self.existingKeys.all(a, self.existingKeys.exists_one(b, b.label == a.label))",message="existingKeys: a key is of one algorithm; each label once"
type KeyStorage struct {
	// type: Secret, or HSM, where keys never leave the token that they were made
	// in: the Secret has in tls.key what names the key (a PKCS #11 URI, as
	// pkcs11-provider reads it). A renewal makes a new key, and destroys the one
	// before the last; an authority's (isCA) is kept. What is deleted leaves its
	// keys in the token.
	// +optional
	// +kubebuilder:default=Secret
	Type KeyStorageType `json:"type,omitempty"`
	// hsmRef names the HSMPool, in the same namespace. A new key is made in its
	// first member, and is used when every member has it.
	// +optional
	HSMRef *HSMPoolReference `json:"hsmRef,omitempty"`
	// existingKeys are keys that the pool has already, to use instead of making
	// some. Renewals keep them, and nothing here ever destroys them. For other
	// algorithms keys are made.
	// +optional
	// +listType=map
	// +listMapKey=algorithm
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	ExistingKeys []ExistingKey `json:"existingKeys,omitempty"`
}

// ExistingKey is a key in an HSMPool.
type ExistingKey struct {
	// algorithm of the key.
	// +required
	Algorithm KeyAlgorithm `json:"algorithm"`
	// label of the private and the public key in the tokens (CKA_LABEL). They have
	// to be sensitive, not extractable, and the same in every member.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._:@+/-]+( [A-Za-z0-9._:@+/-]+)*$`
	Label string `json:"label"`
}

// HSMPoolReference names an HSMPool.
type HSMPoolReference struct {
	// name of the HSMPool.
	// +required
	// +kubebuilder:validation:MaxLength=32
	Name ObjectName `json:"name"`
}

// IssuerReference names a PQCIssuer, a PQCClusterIssuer, or any other issuer
// that signs cert-manager CertificateRequests.
//
// +kubebuilder:validation:XValidation:rule="self.group != 'qtls.dev' || self.kind in ['PQCIssuer','PQCClusterIssuer']",message="kind: PQCIssuer or PQCClusterIssuer in group qtls.dev; for a cert-manager issuer set group to cert-manager.io"
// +kubebuilder:validation:XValidation:rule="self.group != 'cert-manager.io' || self.kind in ['Issuer','ClusterIssuer']",message="kind: Issuer or ClusterIssuer in group cert-manager.io"
type IssuerReference struct {
	// name of the issuer.
	// +required
	Name ObjectName `json:"name"`
	// kind of the issuer.
	// +optional
	// +kubebuilder:default=PQCIssuer
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind,omitempty"`
	// group of the issuer.
	// +optional
	// +kubebuilder:default="qtls.dev"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`
}

// PQCCertificateStatus is what was last observed of a certificate.
type PQCCertificateStatus struct {
	// observedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready, Issuing.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// notAfter is the earliest end of the certificates.
	// +optional
	NotAfter *metav1.Time `json:"notAfter,omitempty"`
	// renewed is the value of the annotation qtls.dev/renew that was last
	// fulfilled.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Renewed string `json:"renewed,omitempty"`
	// certificates, one for each algorithm.
	// +optional
	// +listType=map
	// +listMapKey=algorithm
	// +kubebuilder:validation:MaxItems=8
	Certificates []IssuedCertificate `json:"certificates,omitempty"`
}

// IssuedCertificate is one certificate of a PQCCertificate.
type IssuedCertificate struct {
	// algorithm of the key.
	// +required
	Algorithm KeyAlgorithm `json:"algorithm"`
	// secretName is the Secret that holds key and chain.
	// +required
	SecretName string `json:"secretName"`
	// serialNumber in lower-case hex.
	// +optional
	SerialNumber string `json:"serialNumber,omitempty"`
	// notBefore is the start of its validity.
	// +optional
	NotBefore *metav1.Time `json:"notBefore,omitempty"`
	// notAfter is the end of its validity.
	// +optional
	NotAfter *metav1.Time `json:"notAfter,omitempty"`
	// renewalTime is when it will be renewed.
	// +optional
	RenewalTime *metav1.Time `json:"renewalTime,omitempty"`
	// revision counts the certificates issued, from 1.
	// +optional
	Revision int64 `json:"revision,omitempty"`
	// requestName is the CertificateRequest under way, if any.
	// +optional
	RequestName string `json:"requestName,omitempty"`
}

// PQCCertificateList is a list of PQCCertificates.
// +kubebuilder:object:root=true
type PQCCertificateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PQCCertificate `json:"items"`
}
