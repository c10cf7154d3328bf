package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HSMPool is a set of HSM tokens that hold the same keys: what needs a
// signature takes it from any of them that can make it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=hsm,categories=qtls
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Up",type=string,JSONPath=`.status.up`,description="Members that can sign, of those in the spec"
// +kubebuilder:printcolumn:name="Development",type=string,JSONPath=`.status.conditions[?(@.type=="Development")].status`,description="Whether keys are in software, and the pool is not for production"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40",message="metadata.name: at most 40 characters, so that the names of the pool's own objects fit"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') || self.spec.members.all(m, has(m.remote))",message="metadata.name: a letter, and then letters, digits and '-', where the operator runs a member: a Service is named after it"
type HSMPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is wanted.
	// +required
	Spec HSMPoolSpec `json:"spec"`
	// status is what was last observed.
	// +optional
	Status HSMPoolStatus `json:"status,omitempty"`
}

// HSMPoolSpec says which tokens there are and how they are asked.
type HSMPoolSpec struct {
	// members in order of preference: the first that can signs.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Members []HSMMember `json:"members"`

	// timeout is how long a member may take to answer before the next one is
	// asked.
	// +optional
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('60s')",message="timeout: 100ms to 60s"
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// HSMMember is one token.
// +kubebuilder:validation:XValidation:rule="[has(self.remote), has(self.softToken)].filter(kind, kind).size() == 1",message="a member is either remote or softToken"
type HSMMember struct {
	// name of the member: unique in its pool, a DNS label.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// remote is a token behind an hsmd that runs already, such as on the host
	// that an HSM is attached to.
	// +optional
	Remote *RemoteHSM `json:"remote,omitempty"`
	// softToken is a token in software that the operator runs, for development
	// and tests. Not for production: whoever reads its volume and its PIN has its
	// keys.
	// +optional
	SoftToken *SoftToken `json:"softToken,omitempty"`
}

// SoftToken is a token in software: kryoptic, behind an hsmd of its own.
type SoftToken struct {
	// storage of the token's keys. It stays as it is: another storage is another
	// member.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="storage: it cannot be changed, for the keys are there; add a member with another name"
	Storage SoftTokenStorage `json:"storage,omitempty"`
	// resources of the daemon. Default: 10m CPU and 32Mi memory requested, 256Mi
	// memory at most.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// SoftTokenStorage says where the keys of a token in software lie: in a
// PersistentVolumeClaim, which is deleted with the pool or the member.
// +kubebuilder:validation:XValidation:rule="!(has(self.ephemeral) && self.ephemeral && (has(self.size) || has(self.storageClassName) || (has(self.shared) && self.shared)))",message="storage: ephemeral storage has no size and no storageClassName, and is not shared"
type SoftTokenStorage struct {
	// size of the volume. Default: 64Mi.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// storageClassName of the volume. Default: the cluster's own.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`
	// shared: the members of the pool that say so are one token with several
	// daemons. Each has every key, and signs when the others' pods are gone; the
	// volume is one, of the mode ReadWriteMany, as the first of them describes it.
	// +optional
	Shared bool `json:"shared,omitempty"`
	// ephemeral keeps the keys in the pod, and loses them with it: for tests, and
	// for clusters that provide no volumes.
	// +optional
	Ephemeral bool `json:"ephemeral,omitempty"`
}

// RemoteHSM says where an hsmd is. It is spoken to over mutual TLS 1.3 with
// X25519MLKEM768, and nothing else.
type RemoteHSM struct {
	// address of the daemon, as host:port.
	// +required
	Address StoreAddress `json:"address"`
	// serverName that its certificate is checked for. Default: the host of the
	// address.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('*')",message="serverName: a full name, not a wildcard"
	ServerName Hostname `json:"serverName,omitempty"`
	// tlsSecretRef names the Secret with the client's certificate and key
	// (tls.crt, tls.key) and the authorities that the daemon's certificate may
	// be of (ca.crt). The daemon's configuration says what a client of that name
	// may do.
	// +required
	TLSSecretRef SecretReference `json:"tlsSecretRef"`
	// gatewayTLSSecretRef names the Secret with what gateway pods use instead:
	// the daemon should let them find and sign, and nothing else. Needed where a
	// gateway names the pool.
	// +optional
	GatewayTLSSecretRef *SecretReference `json:"gatewayTLSSecretRef,omitempty"`
}

// HSMPoolStatus is what was last observed of a pool.
type HSMPoolStatus struct {
	// observedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready, and Development where a member is a token in software.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// up is the number of members that can sign and of all, as in `2/3`.
	// +optional
	Up string `json:"up,omitempty"`
	// members and how each is doing.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Members []HSMMemberStatus `json:"members,omitempty"`
}

// HSMMemberState says whether a member can sign.
// +kubebuilder:validation:Enum=Up;Down;Starting;Unknown
type HSMMemberState string

const (
	// HSMMemberUp can sign.
	HSMMemberUp HSMMemberState = "Up"
	// HSMMemberDown has a daemon that answers, and a token that cannot sign.
	HSMMemberDown HSMMemberState = "Down"
	// HSMMemberStarting has a daemon that has not reached its token yet.
	HSMMemberStarting HSMMemberState = "Starting"
	// HSMMemberUnknown has a daemon that gives no answer.
	HSMMemberUnknown HSMMemberState = "Unknown"
)

// HSMMemberStatus is what was last observed of a member.
type HSMMemberStatus struct {
	// name of the member.
	// +required
	Name string `json:"name"`
	// state: Up, Down, Starting, or Unknown.
	// +required
	State HSMMemberState `json:"state"`
	// since is when the state became what it is.
	// +required
	Since metav1.Time `json:"since"`
	// reason why it is not up, one of those of the condition Ready.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says what is wrong, and the remedy.
	// +optional
	Message string `json:"message,omitempty"`
	// token is its label.
	// +optional
	Token string `json:"token,omitempty"`
	// sessions that are open in the token.
	// +optional
	Sessions int64 `json:"sessions,omitempty"`
	// signatures that the daemon has made since it started.
	// +optional
	Signatures int64 `json:"signatures,omitempty"`
	// failures are signatures that it could not make.
	// +optional
	Failures int64 `json:"failures,omitempty"`
	// latency of its latest signatures.
	// +optional
	Latency *SignatureLatency `json:"latency,omitempty"`
}

// SignatureLatency is how long signatures take.
type SignatureLatency struct {
	// p50: half of them take no longer.
	// +optional
	P50 metav1.Duration `json:"p50,omitempty"`
	// p99: one in a hundred takes longer.
	// +optional
	P99 metav1.Duration `json:"p99,omitempty"`
}

// HSMPoolList is a list of HSMPools.
// +kubebuilder:object:root=true
type HSMPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []HSMPool `json:"items"`
}
