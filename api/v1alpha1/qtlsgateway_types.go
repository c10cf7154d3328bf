package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// QTLSGateway runs replicas of HAProxy that terminate (or pass through) TLS
// for its listeners and forward to Services of its own namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:shortName=qgw,categories=qtls
// +kubebuilder:printcolumn:name="Pods",type=string,JSONPath=`.status.pods`,description="Ready pods that run the configuration published for them, of those desired"
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.status.addresses[0].value`
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.status.policy`
// +kubebuilder:printcolumn:name="Certificate",type=string,JSONPath=`.status.certificateAlgorithms`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 48",message="metadata.name: at most 48 characters, so that the names of the gateway's own objects fit"
type QTLSGateway struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is wanted.
	// +required
	Spec QTLSGatewaySpec `json:"spec"`
	// status is what was last observed.
	// +optional
	Status QTLSGatewayStatus `json:"status,omitempty"`
}

// QTLSGatewaySpec is what a user asks of a gateway.
type QTLSGatewaySpec struct {
	// listeners are the ports and host names that the gateway serves.
	// Listeners may share a port when their host names differ.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(l, self.exists_one(m, m.port == l.port && (has(m.hostnames) ? m.hostnames : ['']).exists(h, h in (has(l.hostnames) ? l.hostnames : ['']))))",message="two listeners have the same port and host name: each pair of port and host name belongs to one listener (a listener without hostnames takes every name that no other listener of its port has)"
	Listeners []Listener `json:"listeners"`

	// policyRef names the QTLSPolicy that says which groups, signature schemes,
	// versions and cipher suites are acceptable, and how hard it is meant.
	// +optional
	// +kubebuilder:default={name: "hybrid-v1", mode: "Prefer"}
	PolicyRef PolicyReference `json:"policyRef,omitzero"`

	// sessionResumption lets clients that come back resume their TLS session, on
	// whichever replica they meet: a handshake without certificates and
	// signatures. There is no 0-RTT: early data could be replayed.
	// +optional
	// +kubebuilder:default={}
	SessionResumption SessionResumption `json:"sessionResumption,omitzero"`

	// postQuantumImplementation says whose ML-KEM and ML-DSA are used. They are
	// compatible to the byte; Vectorized takes about half the CPU of a full
	// handshake, OpenSSL is the code that OpenSSL's own validations cover.
	// +optional
	// +kubebuilder:default=OpenSSL
	PostQuantumImplementation PostQuantumImplementation `json:"postQuantumImplementation,omitempty"`

	// hsmRef names the HSMPool, in the same namespace, that has the private keys
	// of certificates with keyStorage HSM. Any member that has the keys can sign.
	// Certificates whose keys are in Secrets may be served beside them.
	// +optional
	HSMRef *HSMPoolReference `json:"hsmRef,omitempty"`

	// replicas is the number of gateway pods.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`

	// resources are those of the haproxy container. Default: requests of 100m
	// CPU and 192Mi memory, a limit of 2Gi memory and none on CPU. HAProxy
	// accepts a connection for each 100Ki of the limit on memory beyond 64Mi, at
	// least 1000 and at most 20000; the others wait.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// service shapes the Service in front of the pods.
	// +optional
	Service ServiceSpec `json:"service,omitzero"`

	// topologySpreadConstraints place the pods; a constraint without a
	// labelSelector gets the gateway's. Default: spread over nodes and zones
	// with maxSkew 1, ScheduleAnyway.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`

	// nodeSelector restricts the nodes that the pods run on.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// tolerations let the pods run on tainted nodes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// disruptionBudget bounds voluntary disruptions, such as a node's drain.
	// +optional
	DisruptionBudget DisruptionBudget `json:"disruptionBudget,omitzero"`

	// drain says how a pod that is to end lets go of its connections.
	// +optional
	Drain DrainSpec `json:"drain,omitzero"`
}

// ListenerProtocol says what a listener does with TLS.
// +kubebuilder:validation:Enum=HTTPS;TLS;TLSPassthrough
type ListenerProtocol string

const (
	// ProtocolHTTPS terminates TLS and forwards HTTP requests.
	ProtocolHTTPS ListenerProtocol = "HTTPS"
	// ProtocolTLS terminates TLS and forwards the byte stream.
	ProtocolTLS ListenerProtocol = "TLS"
	// ProtocolTLSPassthrough forwards the TLS records unopened, chosen by SNI.
	ProtocolTLSPassthrough ListenerProtocol = "TLSPassthrough"
)

// Hostname is a DNS name in lower case, or one whose first label is `*`, which
// stands for exactly one label (RFC 6125, 6.4.3).
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:Pattern=`^(\*\.)?[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`
type Hostname string

// Listener is one port and set of host names of a gateway.
// +kubebuilder:validation:XValidation:rule="self.protocol == 'TLSPassthrough' ? !has(self.certificateRefs) : has(self.certificateRefs)",message="certificateRefs: needed for HTTPS and TLS listeners; a TLSPassthrough listener has none, for its backends hold the certificates"
// +kubebuilder:validation:XValidation:rule="self.protocol != 'TLSPassthrough' || !has(self.clientAuthentication)",message="clientAuthentication: not possible for TLSPassthrough, where the gateway does not open the TLS connection"
// +kubebuilder:validation:XValidation:rule="self.protocol != 'TLSPassthrough' || !self.backends.exists(b, has(b.tls))",message="backends[].tls: not possible for TLSPassthrough, where the connection is encrypted end to end already"
// +kubebuilder:validation:XValidation:rule="self.protocol == 'HTTPS' || !has(self.clientAuthentication) || !has(self.clientAuthentication.forwardCertificate) || !self.clientAuthentication.forwardCertificate",message="clientAuthentication.forwardCertificate: only an HTTPS listener has request headers to carry a certificate"
type Listener struct {
	// name of the listener: unique in its gateway, a DNS label.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// port is the TCP port of the Service and of the pods. 8404 and 8405 are
	// the agent's own.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:validation:XValidation:rule="self != 8404 && self != 8405",message="port: 8404 and 8405 are used by the gateway's agent"
	Port int32 `json:"port"`

	// protocol: HTTPS terminates TLS and forwards HTTP; TLS terminates TLS and
	// forwards the byte stream; TLSPassthrough forwards the TLS records.
	// +required
	Protocol ListenerProtocol `json:"protocol"`

	// hostnames are the server names (SNI) that choose this listener. Empty:
	// every name that no other listener of the port has, and clients that send
	// none. A name that no listener of the port takes is refused with the TLS
	// alert unrecognized_name.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Hostnames []Hostname `json:"hostnames,omitempty"`

	// certificateRefs are the certificates to serve. With several, of several
	// algorithms, each client gets the strongest chain that it says it can
	// verify (signature_algorithms and signature_algorithms_cert of RFC 8446).
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	CertificateRefs []CertificateReference `json:"certificateRefs,omitempty"`

	// preference decides for clients that can verify both a post-quantum and a
	// classical chain.
	// +optional
	// +kubebuilder:default=PostQuantum
	Preference CertificatePreference `json:"preference,omitempty"`

	// clientAuthentication asks clients for a certificate.
	// +optional
	ClientAuthentication *ClientAuthentication `json:"clientAuthentication,omitempty"`

	// backends are the Services that receive what the listener accepts.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Backends []BackendReference `json:"backends"`
}

// CertificatePreference decides between two chains that a client takes both.
// +kubebuilder:validation:Enum=PostQuantum;Classical
type CertificatePreference string

const (
	PreferPostQuantum CertificatePreference = "PostQuantum"
	PreferClassical   CertificatePreference = "Classical"
)

// CertificateReferenceKind is the kind of object that holds a certificate.
// +kubebuilder:validation:Enum=PQCCertificate;Secret
type CertificateReferenceKind string

const (
	CertificateKindPQCCertificate CertificateReferenceKind = "PQCCertificate"
	CertificateKindSecret         CertificateReferenceKind = "Secret"
)

// CertificateReference names a PQCCertificate (all its algorithms are served)
// or a Secret of type kubernetes.io/tls, in the gateway's namespace.
type CertificateReference struct {
	// kind of the object.
	// +optional
	// +kubebuilder:default=PQCCertificate
	Kind CertificateReferenceKind `json:"kind,omitempty"`
	// name of the object.
	// +required
	Name ObjectName `json:"name"`
}

// ClientAuthenticationMode says whether a client must present a certificate.
// +kubebuilder:validation:Enum=Required;Optional
type ClientAuthenticationMode string

const (
	ClientAuthenticationRequired ClientAuthenticationMode = "Required"
	ClientAuthenticationOptional ClientAuthenticationMode = "Optional"
)

// ClientAuthentication asks clients for a certificate and verifies it.
//
// On an HTTPS listener the backend learns the verified identity from the
// request headers X-Client-Cert-Verified (SUCCESS or NONE),
// X-Client-Cert-Subject (RFC 2253), X-Client-Cert-Serial (hex) and
// X-Client-Cert-Fingerprint (SHA-256 of the DER form, hex). Headers of these
// names that a client sends are removed.
type ClientAuthentication struct {
	// mode: Required refuses a client without a valid certificate; Optional
	// asks for one, and refuses only one that is not valid.
	// +optional
	// +kubebuilder:default=Required
	Mode ClientAuthenticationMode `json:"mode,omitempty"`
	// caRefs hold the certificates of the authorities that client certificates
	// must chain up to.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	CARefs []CAReference `json:"caRefs"`
	// forwardCertificate also passes the whole client certificate on, as the
	// header Client-Cert of RFC 9440. A post-quantum certificate makes that
	// header 5 to 10 KB long: raise the backend's header limit.
	// +optional
	ForwardCertificate bool `json:"forwardCertificate,omitempty"`
}

// CAReferenceKind is the kind of object that holds CA certificates.
// +kubebuilder:validation:Enum=Secret;ConfigMap
type CAReferenceKind string

const (
	CAKindSecret    CAReferenceKind = "Secret"
	CAKindConfigMap CAReferenceKind = "ConfigMap"
)

// CAReference names a key of a Secret or ConfigMap, in the same namespace,
// that holds CA certificates in PEM form.
type CAReference struct {
	// kind of the object.
	// +optional
	// +kubebuilder:default=Secret
	Kind CAReferenceKind `json:"kind,omitempty"`
	// name of the object.
	// +required
	Name ObjectName `json:"name"`
	// key within the object.
	// +optional
	// +kubebuilder:default="ca.crt"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// BackendReference names a port of a Service in the gateway's namespace.
type BackendReference struct {
	// name of the Service.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// port of the Service, by number or by name.
	// +required
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 65535 : self.size() <= 63 && self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="port: a number from 1 to 65535 or the name of a port of the Service"
	Port intstr.IntOrString `json:"port"`
	// weight is the share of connections, relative to the other backends of
	// the listener, of each of the Service's endpoints. 0 takes none.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	Weight *int32 `json:"weight,omitempty"`
	// tls encrypts the connections to the backend again.
	// +optional
	TLS *BackendTLS `json:"tls,omitempty"`
}

// BackendTLS says how a backend's certificate is verified. There is no way to
// leave it unverified.
type BackendTLS struct {
	// hostname is sent as SNI and must be a name of the backend's certificate.
	// +required
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('*')",message="hostname: a full name, not a wildcard"
	Hostname Hostname `json:"hostname"`
	// caRefs hold the certificates of the authorities to trust.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	CARefs []CAReference `json:"caRefs"`
}

// PolicyMode says how hard a policy is meant.
// +kubebuilder:validation:Enum=Prefer;Require;Observe
type PolicyMode string

const (
	// PolicyModePrefer chooses the policy's best that the client offers and
	// falls back to what compatible-v1 accepts.
	PolicyModePrefer PolicyMode = "Prefer"
	// PolicyModeRequire refuses what the policy does not name.
	PolicyModeRequire PolicyMode = "Require"
	// PolicyModeObserve serves as compatible-v1 and counts what Require would
	// have refused.
	PolicyModeObserve PolicyMode = "Observe"
)

// PolicyReference names a QTLSPolicy.
type PolicyReference struct {
	// name of the QTLSPolicy.
	// +optional
	// +kubebuilder:default="hybrid-v1"
	Name ObjectName `json:"name,omitempty"`
	// mode: Prefer chooses the policy's best that the client offers and falls
	// back to compatible-v1; Require refuses the rest; Observe serves as
	// compatible-v1 and counts what Require would have refused.
	// +optional
	// +kubebuilder:default=Prefer
	Mode PolicyMode `json:"mode,omitempty"`
}

// PostQuantumImplementation says whose ML-KEM and ML-DSA are used.
// +kubebuilder:validation:Enum=OpenSSL;Vectorized
type PostQuantumImplementation string

const (
	// ImplementationOpenSSL is OpenSSL's own.
	ImplementationOpenSSL PostQuantumImplementation = "OpenSSL"
	// ImplementationVectorized is that of AWS-LC, in the provider that the
	// gateway's image carries: AVX2 where the CPU has it.
	ImplementationVectorized PostQuantumImplementation = "Vectorized"
)

// SessionResumptionMode says whether sessions are resumed.
// +kubebuilder:validation:Enum=Enabled;Disabled
type SessionResumptionMode string

const (
	// SessionResumptionEnabled resumes sessions on every replica.
	SessionResumptionEnabled SessionResumptionMode = "Enabled"
	// SessionResumptionDisabled makes every handshake a full one.
	SessionResumptionDisabled SessionResumptionMode = "Disabled"
)

// SessionResumption is by tickets (RFC 8446, 4.6.1), under keys that the
// operator makes, renews and shares among the replicas through a store. The
// store has them encrypted: it is not trusted with them. While it is away the
// replicas go on with the keys that they have.
//
// +kubebuilder:validation:XValidation:rule="!has(self.rotationPeriod) || duration(self.rotationPeriod) >= duration(has(self.ticketLifetime) ? self.ticketLifetime : '2h')",message="rotationPeriod: at least ticketLifetime, so that a ticket can be used as long as it says"
type SessionResumption struct {
	// mode: Enabled, or Disabled, which makes every handshake a full one.
	// +optional
	// +kubebuilder:default=Enabled
	Mode SessionResumptionMode `json:"mode,omitempty"`
	// ticketLifetime is how long a client may come back with a ticket, from 10s
	// to 168h, in whole seconds. RFC 8446 allows no more. Tickets that were issued
	// under another lifetime are not accepted any more when it changes.
	// +optional
	// +kubebuilder:default="2h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s') && duration(self) <= duration('168h')",message="ticketLifetime: 10s to 168h (seven days)"
	TicketLifetime *metav1.Duration `json:"ticketLifetime,omitempty"`
	// rotationPeriod is how long one key encrypts tickets: at least
	// ticketLifetime, which is the default. For the period after that it opens
	// tickets still, then it is forgotten.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('720h')",message="rotationPeriod: at most 720h (thirty days)"
	RotationPeriod *metav1.Duration `json:"rotationPeriod,omitempty"`
	// ring names keys that are shared with other gateways of this namespace
	// that name them too and have the same policy: a client of one resumes on
	// another of the same ticketLifetime, where a listener of the same name, host
	// names, certificates and client authentication takes it. Gateways that share
	// keys can pretend to be each other to clients that resume. Default: keys of
	// the gateway's own.
	// +optional
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Ring string `json:"ring,omitempty"`
	// store through which the replicas share the keys.
	// +optional
	// +kubebuilder:default={type: "Embedded"}
	Store TicketStore `json:"store,omitzero"`
}

// TicketStoreType says who runs the store.
// +kubebuilder:validation:Enum=Embedded;RedisOperator;External
type TicketStoreType string

const (
	// TicketStoreEmbedded is a small Redis of the gateway's own, which the
	// operator runs.
	TicketStoreEmbedded TicketStoreType = "Embedded"
	// TicketStoreRedisOperator is one of the gateway's own too, which the Redis
	// Operator (OT-CONTAINER-KIT/redis-operator) runs.
	TicketStoreRedisOperator TicketStoreType = "RedisOperator"
	// TicketStoreExternal is one that exists already.
	TicketStoreExternal TicketStoreType = "External"
)

// TicketStore is a Redis (or Valkey), through which the replicas share keys.
//
// +kubebuilder:validation:XValidation:rule="has(self.embedded) ? self.type == 'Embedded' : true",message="embedded: only with type Embedded"
// +kubebuilder:validation:XValidation:rule="has(self.redisOperator) ? self.type == 'RedisOperator' : true",message="redisOperator: only with type RedisOperator"
// +kubebuilder:validation:XValidation:rule="self.type == 'External' ? has(self.external) : !has(self.external)",message="external: needed with type External, and only there"
type TicketStore struct {
	// type: Embedded, RedisOperator, or External.
	// +optional
	// +kubebuilder:default=Embedded
	Type TicketStoreType `json:"type,omitempty"`
	// embedded shapes a store of type Embedded.
	// +optional
	Embedded *EmbeddedStore `json:"embedded,omitempty"`
	// redisOperator shapes a store of type RedisOperator.
	// +optional
	RedisOperator *RedisOperatorStore `json:"redisOperator,omitempty"`
	// external says where a store of type External is.
	// +optional
	External *ExternalStore `json:"external,omitempty"`
}

// EmbeddedStore is a Redis of the gateway's own: it holds a kilobyte, in memory
// alone, and the operator writes that again after a restart.
type EmbeddedStore struct {
	// highAvailability runs two, on two nodes where there are. The operator
	// writes to both, and the replicas read from whichever answers.
	// +optional
	HighAvailability bool `json:"highAvailability,omitempty"`
	// resources of its container. Default: requests of 10m CPU and 16Mi memory,
	// a limit of 64Mi memory.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// RedisOperatorKind is a kind of the Redis Operator's.
// +kubebuilder:validation:Enum=RedisReplication;RedisCluster
type RedisOperatorKind string

const (
	// RedisOperatorReplication is a primary with replicas.
	RedisOperatorReplication RedisOperatorKind = "RedisReplication"
	// RedisOperatorCluster is a Redis Cluster.
	RedisOperatorCluster RedisOperatorKind = "RedisCluster"
)

// RedisOperatorStore is an object of the Redis Operator's group
// redis.redis.opstreelabs.in/v1beta2, which has to be installed. Its servers
// have TLS, a user for the operator and one for the gateway's pods, the
// gateway's nodeSelector and tolerations, and write nothing to any disk.
//
// +kubebuilder:validation:XValidation:rule="!has(self.sentinel) || !has(self.kind) || self.kind == 'RedisReplication'",message="sentinel: only with kind RedisReplication; a RedisCluster chooses its primaries itself"
// +kubebuilder:validation:XValidation:rule="!has(self.kind) || self.kind != 'RedisCluster' || !has(self.clusterSize) || self.clusterSize >= 3",message="clusterSize: at least 3 with kind RedisCluster, of which a majority has to be up"
type RedisOperatorStore struct {
	// kind of the object: RedisReplication, a primary with replicas, is enough
	// for a kilobyte. RedisCluster is for where nothing else may be made.
	// +optional
	// +kubebuilder:default=RedisReplication
	Kind RedisOperatorKind `json:"kind,omitempty"`
	// clusterSize is the number of servers of a RedisReplication, or that of the
	// leaders of a RedisCluster, each of which has a follower.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	ClusterSize *int32 `json:"clusterSize,omitempty"`
	// image of the servers: one made for the Redis Operator, of Redis 7 or later.
	// Default: `quay.io/opstree/redis:v8.6.2`.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._/:@+-]+$`
	Image string `json:"image,omitempty"`
	// resources of each server, and of each Sentinel. Default: requests of 20m
	// CPU and 32Mi memory, a limit of 128Mi memory.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// sentinel has Sentinels choose the primary of a RedisReplication. Without,
	// the Redis Operator does. They need a release of it that hands TLS on to
	// them, which v0.26 does not (its issue 1699).
	// +optional
	Sentinel *RedisSentinels `json:"sentinel,omitempty"`
}

// RedisSentinels choose the primary of a RedisReplication.
type RedisSentinels struct {
	// size is their number; more than half of them have to agree.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9
	Size *int32 `json:"size,omitempty"`
	// image made for the Redis Operator. Default:
	// `quay.io/opstree/redis-sentinel:v8.6.2`.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._/:@+-]+$`
	Image string `json:"image,omitempty"`
}

// ExternalStore is a Redis, or a Valkey, that exists already: one server, or
// several that Sentinels or a cluster make one of. It is spoken to over TLS 1.3
// alone.
//
// +kubebuilder:validation:XValidation:rule="has(self.sentinelMaster) ? !has(self.cluster) || !self.cluster : true",message="cluster: not together with sentinelMaster"
// +kubebuilder:validation:XValidation:rule="(has(self.sentinelMaster) || (has(self.cluster) && self.cluster)) || size(self.addresses) == 1",message="addresses: one, unless they are of Sentinels (sentinelMaster) or of a cluster (cluster: true)"
type ExternalStore struct {
	// addresses, as host:port: of the server, of its Sentinels, or of some nodes
	// of its cluster.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Addresses []StoreAddress `json:"addresses"`
	// sentinelMaster is what the Sentinels call the server: addresses are theirs.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._-]+$`
	SentinelMaster string `json:"sentinelMaster,omitempty"`
	// cluster: addresses are of nodes of a Redis Cluster.
	// +optional
	Cluster bool `json:"cluster,omitempty"`
	// caRefs hold the certificates of the authorities to trust. Default: those
	// of the operator's and gateway's images.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	CARefs []CAReference `json:"caRefs,omitempty"`
	// serverName that the servers' certificates are checked for. Default: the
	// host of each address.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('*')",message="serverName: a full name, not a wildcard"
	ServerName Hostname `json:"serverName,omitempty"`
	// keyPrefix begins the names of all keys and channels. Default: `qtls:`.
	// +optional
	// +kubebuilder:default="qtls:"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9:._-]+$`
	KeyPrefix string `json:"keyPrefix,omitempty"`
	// credentialsRef names the Secret with which the operator writes. Its type is
	// kubernetes.io/basic-auth (username, password), and it has the label
	// `qtls.dev/ticket-store: "true"`, by which who may write it allows that
	// gateways of its namespace send its password to the store that they name.
	// +required
	CredentialsRef SecretReference `json:"credentialsRef"`
	// agentCredentialsRef names the Secret with which the gateway's pods read, of
	// the same type and with the same label.
	// Its user needs no more than PING, GETRANGE, PTTL and SUBSCRIBE, and to see
	// no more than the prefix.
	// +required
	AgentCredentialsRef SecretReference `json:"agentCredentialsRef"`
}

// StoreAddress is host:port: a DNS name, an IPv4 address, or an IPv6 address in
// brackets.
// +kubebuilder:validation:MaxLength=261
// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*|\[[0-9a-f:.]+\]):([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$`
type StoreAddress string

// ServiceSpec shapes the Service in front of a gateway.
//
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'LoadBalancer' || !has(oldSelf.type) || oldSelf.type != 'LoadBalancer' || has(self.loadBalancerClass) == has(oldSelf.loadBalancerClass) && (!has(self.loadBalancerClass) || self.loadBalancerClass == oldSelf.loadBalancerClass)",message="loadBalancerClass: Kubernetes does not change it while the type is LoadBalancer; change the type to ClusterIP before, which takes the load balancer away, or make another gateway"
type ServiceSpec struct {
	// type of the Service.
	// +optional
	// +kubebuilder:default=ClusterIP
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	Type corev1.ServiceType `json:"type,omitempty"`
	// annotations of the Service, such as a cloud's load-balancer settings.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Annotations map[string]string `json:"annotations,omitempty"`
	// externalTrafficPolicy of a NodePort or LoadBalancer Service. Local keeps
	// the client's address.
	// +optional
	// +kubebuilder:validation:Enum=Cluster;Local
	ExternalTrafficPolicy corev1.ServiceExternalTrafficPolicy `json:"externalTrafficPolicy,omitempty"`
	// loadBalancerClass of a LoadBalancer Service; immutable while it is one.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	LoadBalancerClass *string `json:"loadBalancerClass,omitempty"`
}

// DisruptionBudget bounds how many pods a voluntary disruption may take.
type DisruptionBudget struct {
	// maxUnavailable pods at a time, a number or a percentage.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : self.matches('^(100|[0-9]{1,2})%$')",message="maxUnavailable: a number of pods or a percentage such as 25%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// DrainSpec says how a pod that is to end lets go of its connections.
type DrainSpec struct {
	// delaySeconds is how long the pod still accepts connections after it was
	// told to end, so that every node learns that it is leaving.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=300
	DelaySeconds *int32 `json:"delaySeconds,omitempty"`
	// timeoutSeconds is how long open connections may go on after that, and
	// how long a process of an earlier configuration may live.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
}

// QTLSGatewayStatus is what was last observed of a gateway.
type QTLSGatewayStatus struct {
	// observedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Accepted, ResolvedRefs, Programmed, SessionResumption, Ready;
	// HSM where private keys lie in one.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// replicas is the number of pods there are.
	// +optional
	Replicas int32 `json:"replicas"`
	// readyReplicas is the number of ready pods that run the configuration
	// published for them. While a newer one is tried or held back, that is the
	// last good one: the condition Programmed says whether it is of this
	// generation.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`
	// pods is readyReplicas and the desired number, as in `2/2`.
	// +optional
	Pods string `json:"pods,omitempty"`
	// selector of the gateway's pods, in string form, for the scale
	// subresource.
	// +optional
	Selector string `json:"selector,omitempty"`
	// revision is the name (a content hash) of the configuration that every
	// pod starts from: the last that was found good.
	// +optional
	Revision string `json:"revision,omitempty"`
	// addresses where clients reach the gateway: those of the load balancer where
	// its Service has one, and none before it has.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Addresses []GatewayAddress `json:"addresses,omitempty"`
	// policy in force and its mode, as in `hybrid-v1 (Prefer)`.
	// +optional
	Policy string `json:"policy,omitempty"`
	// certificateAlgorithms that are served, strongest first, as in
	// `ML-DSA-65,ECDSA-P256`.
	// +optional
	CertificateAlgorithms string `json:"certificateAlgorithms,omitempty"`
	// certificates that are served. Where pods serve different ones of a Secret,
	// as when some refuse a renewed one, it is the one that expires first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Certificates []ServedCertificate `json:"certificates,omitempty"`
	// listeners and how each is doing.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Listeners []ListenerStatus `json:"listeners,omitempty"`
}

// GatewayAddress is where clients reach a gateway.
type GatewayAddress struct {
	// type: IPAddress or Hostname.
	// +required
	// +kubebuilder:validation:Enum=IPAddress;Hostname
	Type string `json:"type"`
	// value is the address.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Value string `json:"value"`
}

// ServedCertificate is one certificate of a gateway.
type ServedCertificate struct {
	// secretName is the Secret that holds it.
	// +required
	SecretName string `json:"secretName"`
	// algorithm of its key.
	// +required
	Algorithm string `json:"algorithm"`
	// serialNumber in lower-case hex.
	// +required
	SerialNumber string `json:"serialNumber"`
	// notAfter is when it expires.
	// +required
	NotAfter metav1.Time `json:"notAfter"`
}

// ListenerStatus is how one listener is doing.
type ListenerStatus struct {
	// name of the listener.
	// +required
	Name string `json:"name"`
	// endpoints is the number of ready endpoints behind it.
	// +optional
	Endpoints int32 `json:"endpoints"`
	// conditions: ResolvedRefs.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// QTLSGatewayList is a list of QTLSGateways.
// +kubebuilder:object:root=true
type QTLSGatewayList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []QTLSGateway `json:"items"`
}
