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
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 32",message="metadata.name: at most 32 characters, the room that PKCS #11 has for a token's label: keys are named by it"
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
	// members in order of preference.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Members []HSMMember `json:"members"`

	// order in which gateways ask members for signatures. What the operator has
	// signed, requests and certificates, is rare: always Ordered.
	// +optional
	// +kubebuilder:default=Ordered
	Order HSMOrder `json:"order,omitempty"`

	// timeout is how long a member may take to answer before the next one is
	// asked. An hsmd that the operator runs gives up after four fifths of it. A
	// handshake may take 10s, or this for each member and 2s where that is more.
	// +optional
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('60s')",message="timeout: 100ms to 60s"
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// HSMOrder is the order in which members are asked for a signature.
// +kubebuilder:validation:Enum=Ordered;Spread
type HSMOrder string

const (
	// HSMOrdered asks the first of the members that is up: the others are there
	// for when it is not.
	HSMOrdered HSMOrder = "Ordered"
	// HSMSpread asks those that are up by turns, so that together they make more
	// signatures than one could.
	HSMSpread HSMOrder = "Spread"
)

// HSMMember is one token.
// +kubebuilder:validation:XValidation:rule="[has(self.remote), has(self.daemon), has(self.module), has(self.softToken)].filter(kind, kind).size() == 1",message="a member is one of remote, daemon, module and softToken"
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
	// daemon is a token that a vendor's PKCS #11 library reaches from a pod: a
	// device of a node, or an HSM in the network. The operator runs an hsmd with
	// that library.
	// +optional
	Daemon *HSMDaemon `json:"daemon,omitempty"`
	// module is a token that a vendor's PKCS #11 library reaches from the pods of
	// gateways themselves: an HSM in the network. Each pod has the library and
	// the PIN. The operator runs an hsmd with them for itself.
	// +optional
	Module *HSMModuleMember `json:"module,omitempty"`
	// softToken is a token in software that the operator runs, for development
	// and tests. Not for production: whoever reads its volume and its PIN has its
	// keys.
	// +optional
	SoftToken *SoftToken `json:"softToken,omitempty"`
}

// HSMToken is a token of a vendor's library.
// +kubebuilder:validation:XValidation:rule="has(self.token) != has(self.serial)",message="name the token by either token or serial"
type HSMToken struct {
	// token is the token's label, without # at its beginning or after a blank.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[!-~]([ -~]*[!-~])?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^| )#')",message="token: # at the beginning or after a blank begins a comment in hsmd's configuration; name the token by its serial, or give it another label"
	Token string `json:"token,omitempty"`
	// serial is its serial number, without # at its beginning or after a blank.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[!-~]([ -~]*[!-~])?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^| )#')",message="serial: # at the beginning or after a blank begins a comment in hsmd's configuration; name the token by its label"
	Serial string `json:"serial,omitempty"`
	// pinSecretRef names the Secret with the user's PIN under the key `pin`. A
	// process that was refused a PIN does not try it again before it changes.
	// +required
	PINSecretRef SecretReference `json:"pinSecretRef"`
	// sessions of the token that a process has open: signatures at a time. A
	// daemon is one process. Of a module each gateway pod is one, two for as long
	// as HAProxy drains after a reload, and the operator's daemon is another.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Sessions int32 `json:"sessions,omitempty"`
}

// HSMModuleMember is a vendor's library in the pods of gateways, in HAProxy's
// own process, and its token. A library that starts threads, or needs others
// than the C library that it does not find by itself, is one for a daemon.
// +kubebuilder:validation:XValidation:rule="!has(self.environment) || !self.environment.exists(v, v.name.matches('^(QTLS|HAPROXY|OPENSSL|LD)_'))",message="environment: variables that begin with QTLS_, HAPROXY_, OPENSSL_ or LD_ are about HAProxy itself; a library that needs one is to be a daemon's"
type HSMModuleMember struct {
	HSMModule `json:",inline"`
	HSMToken  `json:",inline"`
}

// HSMDaemon is an hsmd with a vendor's library, in a pod of its own.
type HSMDaemon struct {
	// module is the vendor's library, and what it needs.
	// +required
	Module   HSMModule `json:"module"`
	HSMToken `json:",inline"`
	// nodeSelector of the pod: where the device is.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// tolerations of the pod.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// supplementalGroups of the pod, such as the one that may use the device.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=2147483647
	SupplementalGroups []int64 `json:"supplementalGroups,omitempty"`
	// resources of the daemon, such as that of a device plugin, which is how a
	// pod gets a device without further rights. Default: 10m CPU and 32Mi memory
	// requested, 512Mi memory at most.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// HSMModule is a vendor's PKCS #11 library, out of an image of the vendor's or
// of your own, and what it needs besides.
// +kubebuilder:validation:XValidation:rule="self.path.startsWith(self.folder + '/')",message="module: path is a file below folder"
// +kubebuilder:validation:XValidation:rule="!has(self.files) || !self.files.exists(f, f.folder == self.folder || self.folder.startsWith(f.folder + '/'))",message="files: their folder would hide module.folder; name another one"
type HSMModule struct {
	// image that the library is in. It needs no program, and nothing of it runs
	// unless `copy` is set. The libraries that this one needs, but for the C
	// library, are to be there, too.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image"`
	// folder of the image that the library's container sees, under the same path.
	// +required
	Folder HSMModuleFolder `json:"folder"`
	// path of the library, below folder.
	// +required
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)+$`
	Path string `json:"path"`
	// copy the folder, by the image's own `cp`, instead of mounting the image:
	// for clusters without image volumes, which Kubernetes has by default since
	// 1.35.
	// +optional
	Copy bool `json:"copy,omitempty"`
	// files are mounted for the library: its configuration, certificates, what it
	// keeps.
	// +optional
	// +listType=map
	// +listMapKey=folder
	// +kubebuilder:validation:MaxItems=16
	Files []HSMModuleFiles `json:"files,omitempty"`
	// environment variables for the library.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Environment []HSMModuleVariable `json:"environment,omitempty"`
}

// HSMModuleFolder is a folder of the library's container that the vendor's
// library, or a file of it, has to itself: what the image has there is hidden.
// +kubebuilder:validation:MaxLength=256
// +kubebuilder:validation:Pattern=`^(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)+$`
// +kubebuilder:validation:XValidation:rule="!self.matches('^/(etc(/hosts|/hostname|/resolv[.]conf)?|run(/secrets)?|tmp|usr|var(/lib)?)$|^(/usr)?/lib[0-9]*(/[a-z0-9_]+-linux-[a-z0-9]+)?$|^(/usr)?/s?bin(/|$)|^/(dev|etc/hsmd|etc/ssl|proc|run/qtls|run/secrets/(hsm|hsmd|token)|sys|usr/lib/(qtls|ssl)|usr/lib/[a-z0-9_]+-linux-[a-z0-9]+/ossl-modules|var/run)(/|$)')",message="folder: the container needs its own; name one further down or elsewhere, such as /opt/vendor or /etc/vendor"
type HSMModuleFolder string

// HSMModuleFiles are the keys of a Secret or ConfigMap as files in a folder, or
// a volume.
// +kubebuilder:validation:XValidation:rule="[has(self.secretRef), has(self.configMapRef), has(self.persistentVolumeClaimRef)].filter(source, source).size() == 1",message="files: name one of a Secret, a ConfigMap and a PersistentVolumeClaim"
type HSMModuleFiles struct {
	// folder that the files appear in; of what else is there they see nothing.
	// +required
	Folder HSMModuleFolder `json:"folder"`
	// secretRef names a Secret of the pool's namespace.
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
	// configMapRef names a ConfigMap of the pool's namespace.
	// +optional
	ConfigMapRef *ConfigMapReference `json:"configMapRef,omitempty"`
	// persistentVolumeClaimRef names a PersistentVolumeClaim of the pool's
	// namespace, for libraries that keep keys or state in files, which they may
	// write: of an nShield the Security World. The claim has to be one that all
	// the library's pods can have, on their nodes, at a time (ReadWriteMany), and
	// its files of the group 65532, which a volume's driver may see to.
	// +optional
	PersistentVolumeClaimRef *PersistentVolumeClaimReference `json:"persistentVolumeClaimRef,omitempty"`
}

// PersistentVolumeClaimReference names a PersistentVolumeClaim of the same
// namespace.
type PersistentVolumeClaimReference struct {
	// name of the PersistentVolumeClaim.
	// +required
	Name ObjectName `json:"name"`
}

// ConfigMapReference names a ConfigMap of the same namespace.
type ConfigMapReference struct {
	// name of the ConfigMap.
	// +required
	Name ObjectName `json:"name"`
}

// HSMModuleVariable is an environment variable.
type HSMModuleVariable struct {
	// name of the variable.
	// +required
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	Name string `json:"name"`
	// value of the variable; no secret.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value,omitempty"`
}

// SoftToken is a token in software: kryoptic, behind an hsmd of its own.
type SoftToken struct {
	// storage of the token's keys. It stays as it is: another storage is another
	// member.
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="storage: it cannot be changed, for the keys are there; add a member with another name"
	Storage SoftTokenStorage `json:"storage,omitempty"`
	// resources of the daemon. Default: 10m CPU and 32Mi memory requested, 512Mi
	// memory at most.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// SoftTokenStorage says where the keys of a token in software lie: in a
// PersistentVolumeClaim, which is deleted with the pool or the member.
// +kubebuilder:validation:XValidation:rule="!(has(self.ephemeral) && self.ephemeral && (has(self.size) || has(self.storageClassName) || (has(self.shared) && self.shared)))",message="storage: ephemeral storage has no size and no storageClassName, and is not shared"
// +kubebuilder:validation:XValidation:rule="!has(self.size) || (type(self.size) == int ? self.size > 0 : quantity(self.size).isGreaterThan(quantity('0')))",message="size: more than 0"
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
	// sessions that each gateway pod has with the daemon, two pods' for as long as
	// HAProxy drains after a reload: signatures that it asks for at a time. Each is
	// a connection, of which the daemon takes only so many.
	// +optional
	// +kubebuilder:default=16
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Sessions int32 `json:"sessions,omitempty"`
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

// MostHSMSessions is how many sessions of a member there may be; each is a
// thread of libqtls_pkcs11.so.
const MostHSMSessions = 64

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
	// lastError of the token, whenever that was, as the daemon tells it; empty if
	// there was none since the daemon started. It stays when the member is up
	// again. While the daemon gives no answer it is not known.
	// +optional
	LastError string `json:"lastError,omitempty"`
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
