package v1alpha1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// QTLSBenchmark measures the TLS handshakes of a gateway, at several numbers of
// replicas, and how well it scales. Like a Job it runs once: to measure again,
// create another one.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=qbench,categories=qtls
// +kubebuilder:printcolumn:name="Gateway",type=string,JSONPath=`.spec.gatewayRef.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.progress`,description="Measurements that were made, of those planned"
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Passed",type=string,JSONPath=`.status.conditions[?(@.type=="Passed")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Complete")].reason`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40",message="metadata.name: at most 40 characters, so that the names of the benchmark's own objects fit"
type QTLSBenchmark struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what is to be measured.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.gatewayRef == oldSelf.gatewayRef && self.target == oldSelf.target && self.replicas == oldSelf.replicas && self.modes == oldSelf.modes && self.load == oldSelf.load && self.generator == oldSelf.generator && has(self.thresholds) == has(oldSelf.thresholds) && (!has(self.thresholds) || self.thresholds == oldSelf.thresholds) && has(self.baselineRef) == has(oldSelf.baselineRef) && (!has(self.baselineRef) || self.baselineRef == oldSelf.baselineRef) && duration(self.maxDuration) == duration(oldSelf.maxDuration) && has(self.peers) == has(oldSelf.peers) && (!has(self.peers) || self.peers == oldSelf.peers)",message="spec: a QTLSBenchmark is immutable but for cancel, for it runs once; create another one"
	// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cancel) || !oldSelf.cancel || has(self.cancel) && self.cancel",message="cancel: a run that was cancelled is not taken up again; create another QTLSBenchmark"
	Spec QTLSBenchmarkSpec `json:"spec"`
	// status is what was measured, and how far that is.
	// +optional
	Status QTLSBenchmarkStatus `json:"status,omitempty"`
}

// QTLSBenchmarkSpec says what is measured and how.
type QTLSBenchmarkSpec struct {
	// gatewayRef names the QTLSGateway to measure.
	// +required
	GatewayRef BenchmarkGateway `json:"gatewayRef"`

	// target is what the clients ask of it.
	// +required
	Target BenchmarkTarget `json:"target"`

	// replicas are the numbers of gateway pods to measure with. The scaling
	// efficiency is relative to 1: without it there is none.
	// +optional
	// +listType=set
	// +kubebuilder:default={1,2,4,8,16}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:XValidation:rule="self.all(n, n >= 1 && n <= 100)",message="replicas: numbers of pods from 1 to 100"
	Replicas []int32 `json:"replicas,omitempty"`

	// modes are the kinds of handshake to measure, each on its own.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Modes []BenchmarkMode `json:"modes"`

	// load says how hard and how long.
	// +optional
	// +kubebuilder:default={}
	Load BenchmarkLoad `json:"load,omitzero"`

	// generator shapes the pods that make the load.
	// +optional
	// +kubebuilder:default={}
	Generator BenchmarkGenerator `json:"generator,omitzero"`

	// peers are other servers that are measured in the same run, by the same load,
	// so that a comparison is a ratio of one run. Each is a Deployment of as many
	// replicas as the gateway has, on the same nodes, with the same certificates and
	// resources.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	Peers []BenchmarkPeer `json:"peers,omitempty"`

	// thresholds decide the condition Passed, each as
	// [MODE/]METRIC[@REPLICAS] OPERATOR LIMIT: `p99 <= 5ms`,
	// `hybrid/efficiency@8 >= 0.95`, `failures == 0`. Metrics: min, mean, p50, p95,
	// p99, p99.9, max, serverCPU, handshakesPerSecond, efficiency, resumption,
	// failures. What is measured with an interval passes when all of that does.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Thresholds []BenchmarkThreshold `json:"thresholds,omitempty"`

	// baselineRef names an earlier report, which this one is compared with point by
	// point.
	// +optional
	BaselineRef *BenchmarkBaseline `json:"baselineRef,omitempty"`

	// maxDuration of the run. One that is planned to take longer does not begin,
	// and one that takes longer ends there. So does one that has waited as long
	// for what it needs to begin, such as an authority or a baseline.
	// +optional
	// +kubebuilder:default="60m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="maxDuration: 1m to 24h"
	MaxDuration *metav1.Duration `json:"maxDuration,omitempty"`

	// cancel ends the run: the gateway is put back, and what was measured is
	// reported. It is the only field that may change, from false to true.
	// +optional
	Cancel bool `json:"cancel,omitempty"`
}

// BenchmarkUse says which pods are measured.
// +kubebuilder:validation:Enum=Copy;InPlace
type BenchmarkUse string

const (
	// BenchmarkUseCopy measures a temporary copy of the gateway.
	BenchmarkUseCopy BenchmarkUse = "Copy"
	// BenchmarkUseInPlace scales and loads the gateway itself.
	BenchmarkUseInPlace BenchmarkUse = "InPlace"
)

// BenchmarkGateway names a gateway, of the benchmark's namespace.
//
// +kubebuilder:validation:XValidation:rule="!has(self.resources) || !has(self.use) || self.use == 'Copy'",message="resources: only with use Copy; those of the gateway itself are in its own spec"
type BenchmarkGateway struct {
	// name of the QTLSGateway.
	// +required
	// +kubebuilder:validation:MaxLength=48
	Name ObjectName `json:"name"`
	// use: Copy makes a gateway of the same spec, measures that, and deletes it:
	// the gateway's pods and its Service are not touched, but what both use is under
	// load too: nodes, backends, HSMs, a ticket store that is not the gateway's own.
	// InPlace scales the gateway itself, down to 1 replica too, and puts its
	// replicas back in the end, unless somebody else has changed them by then.
	// +optional
	// +kubebuilder:default=Copy
	Use BenchmarkUse `json:"use,omitempty"`
	// resources of the copy's haproxy containers. Where a few nodes have to hold
	// many replicas, a limit on CPU (such as 50m) makes each a small machine of
	// its own. Default: the gateway's.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
}

// BenchmarkTarget is what the clients ask of the gateway. They verify its
// certificate, always.
type BenchmarkTarget struct {
	// listener of the gateway, by name. Default: its first.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	Listener string `json:"listener,omitempty"`
	// serverName that clients ask for (SNI) and verify. Default: the listener's
	// first host name, where that is no wildcard.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('*')",message="serverName: a full name, not a wildcard"
	ServerName Hostname `json:"serverName,omitempty"`
	// caRefs hold the certificates of the authorities that clients trust.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	CARefs []CAReference `json:"caRefs"`
}

// BenchmarkHandshake is a kind of handshake.
// +kubebuilder:validation:Enum=Full;Resumed
type BenchmarkHandshake string

const (
	// BenchmarkHandshakeFull is one with certificates and signatures.
	BenchmarkHandshakeFull BenchmarkHandshake = "Full"
	// BenchmarkHandshakeResumed is one that a session ticket makes shorter.
	BenchmarkHandshakeResumed BenchmarkHandshake = "Resumed"
)

// BenchmarkOperation is what clients do on a connection.
// +kubebuilder:validation:Enum=Handshake;Request;Transfer
type BenchmarkOperation string

const (
	// BenchmarkOperationHandshake is nothing but a handshake.
	BenchmarkOperationHandshake BenchmarkOperation = "Handshake"
	// BenchmarkOperationRequest is a GET over HTTP/1.1 after it, and its response.
	BenchmarkOperationRequest BenchmarkOperation = "Request"
	// BenchmarkOperationTransfer is a POST with a body after it, and its response.
	BenchmarkOperationTransfer BenchmarkOperation = "Transfer"
)

// BenchmarkSize is a number of bytes: 1Ki to 1024Ki, or 1Mi.
// +kubebuilder:validation:MaxLength=6
// +kubebuilder:validation:Pattern=`^(([1-9][0-9]{0,2}|10[01][0-9]|102[0-4])Ki|1Mi)$`
type BenchmarkSize string

// Bytes that it is; 0 where there is none.
func (s BenchmarkSize) Bytes() int {
	q, err := resource.ParseQuantity(string(s))
	if err != nil {
		return 0
	}
	return int(q.Value())
}

// BenchmarkBottleneck is what a mode's handshakes are meant to be limited by.
// +kubebuilder:validation:Enum=CPUQuota;HSM;Network
type BenchmarkBottleneck string

// BenchmarkMode is what clients of one kind offer, and do.
//
// +kubebuilder:validation:XValidation:rule="has(self.size) == (has(self.operation) && self.operation == 'Transfer')",message="size: needed with operation Transfer, and only there"
// +kubebuilder:validation:XValidation:rule="!has(self.path) || has(self.operation) && self.operation != 'Handshake'",message="path: only with operation Request or Transfer"
type BenchmarkMode struct {
	// name of the mode: unique in its benchmark, a DNS label.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=30
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// groups that clients offer, best first. They send a key share for the first.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Groups []Group `json:"groups"`
	// signatureSchemes that clients accept, and that choose among the listener's
	// certificates.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	SignatureSchemes []SignatureScheme `json:"signatureSchemes"`
	// handshake: Full, or Resumed, where each client resumes the session of its
	// handshake before.
	// +optional
	// +kubebuilder:default=Full
	Handshake BenchmarkHandshake `json:"handshake,omitempty"`
	// operation on each connection: Handshake makes nothing but that; Request has
	// a GET follow it; Transfer a POST with a body of size. The listener's backend
	// has to answer them with a status of 200 to 299.
	// +optional
	// +kubebuilder:default=Handshake
	Operation BenchmarkOperation `json:"operation,omitempty"`
	// path of the requests. Default: /.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[!-~]*$`
	Path string `json:"path,omitempty"`
	// size of a transfer's body: 1Ki to 1Mi.
	// +optional
	Size BenchmarkSize `json:"size,omitempty"`
	// bottleneck that is meant to limit the mode's handshakes: CPUQuota, the
	// replicas' own; HSM, where their keys lie; Network. Fewer replicas than reach
	// that limit are at their quotas. A capacity that something else has limited is
	// no result.
	// +optional
	// +kubebuilder:default=CPUQuota
	Bottleneck BenchmarkBottleneck `json:"bottleneck,omitempty"`
	// listener of the gateway that the mode is measured at, by name: one whose
	// certificate has another algorithm, or its key in an HSM. Default: the target's.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	Listener string `json:"listener,omitempty"`
	// serverName that the mode's clients ask for (SNI) and verify. Default: with a
	// listener of its own, that one's first host name; else the target's.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('*')",message="serverName: a full name, not a wildcard"
	ServerName Hostname `json:"serverName,omitempty"`
}

// BenchmarkPeerServer is a program that terminates TLS.
// +kubebuilder:validation:Enum=HAProxy;NGINX
type BenchmarkPeerServer string

const (
	// BenchmarkPeerHAProxy is HAProxy with a configuration as anybody writes it.
	BenchmarkPeerHAProxy BenchmarkPeerServer = "HAProxy"
	// BenchmarkPeerNGINX is nginx with one.
	BenchmarkPeerNGINX BenchmarkPeerServer = "NGINX"
)

// BenchmarkPeer is a server to compare the gateway with. It answers requests
// itself, and shares no keys of session tickets among its replicas. What its pods
// use is not observed.
//
// +kubebuilder:validation:XValidation:rule="self.server != 'NGINX' || has(self.image)",message="image: needed for NGINX"
type BenchmarkPeer struct {
	// name of the peer: unique in its benchmark, a DNS label.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// server that the image has, under its usual name in PATH.
	// +required
	Server BenchmarkPeerServer `json:"server"`
	// image with the server, on an OpenSSL that has the modes' algorithms (3.5 for
	// ML-KEM and ML-DSA). It runs as user 65532 with a read-only root, and has the
	// private keys of the gateway's listeners that it stands in for, unless they are
	// in HSMs. So it has to be one that the operator's installation allows (value
	// benchmarks.peerImages of the chart). Default for HAProxy: the gateway's, which
	// always may.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
	// modes that it is measured in, by name. Default: all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Modes []string `json:"modes,omitempty"`
}

// MeasuredIn says whether the peer is measured in a mode.
func (p BenchmarkPeer) MeasuredIn(mode string) bool {
	return len(p.Modes) == 0 || slices.Contains(p.Modes, mode)
}

// BenchmarkPreset is a choice of durations and repetitions.
// +kubebuilder:validation:Enum=Short;Normal;Thorough
type BenchmarkPreset string

const (
	// BenchmarkPresetShort shows that everything works.
	BenchmarkPresetShort BenchmarkPreset = "Short"
	// BenchmarkPresetNormal gives figures with an interval.
	BenchmarkPresetNormal BenchmarkPreset = "Normal"
	// BenchmarkPresetThorough gives figures to publish.
	BenchmarkPresetThorough BenchmarkPreset = "Thorough"
)

// BenchmarkLoad says how hard and how long each mode is measured at each number
// of replicas. Each measurement has two phases: Capacity, in which as many
// clients as virtualUsersPerReplica says make one handshake after the other; and
// Latency, in which handshakes begin at a fixed rate, of latencyLoad percent of
// that capacity.
type BenchmarkLoad struct {
	// preset of what is not said here: Short warms up for 2s, measures for 5s, 2
	// times; Normal 5s, 20s, 3 times; Thorough 10s, 30s, 5 times.
	// +optional
	// +kubebuilder:default=Normal
	Preset BenchmarkPreset `json:"preset,omitempty"`
	// virtualUsersPerReplica are the clients for each replica. They meet replicas
	// at random: with few of them, some replica has nothing to do at times, and is
	// not saturated.
	// +optional
	// +kubebuilder:default=32
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	VirtualUsersPerReplica *int32 `json:"virtualUsersPerReplica,omitempty"`
	// latencyLoad is the rate of the Latency phase, in percent of the capacity.
	// +optional
	// +kubebuilder:default=50
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=95
	LatencyLoad *int32 `json:"latencyLoad,omitempty"`
	// warmUp is how long load is made before it is measured. Pods of the load
	// generator may begin as late as 2s into it.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('2s') && duration(self) <= duration('5m')",message="warmUp: 2s to 5m"
	WarmUp *metav1.Duration `json:"warmUp,omitempty"`
	// duration of one phase of a measurement, after the warm-up.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('30m')",message="duration: 1s to 30m"
	Duration *metav1.Duration `json:"duration,omitempty"`
	// repetitions of everything, each in an order of its own. An interval needs
	// at least 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=20
	Repetitions *int32 `json:"repetitions,omitempty"`
	// seed of the order. Default: one is drawn; the status has it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	Seed *int64 `json:"seed,omitempty"`
}

// BenchmarkGenerator shapes the pods that make the load. They keep away from
// nodes with pods of the gateway where there are others.
type BenchmarkGenerator struct {
	// pods that share the load of each measurement.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Pods *int32 `json:"pods,omitempty"`
	// resources of each. A limit on CPU makes measurements invalid when it is
	// reached. Default: requests of 250m CPU and 256Mi memory, a limit of 1Gi
	// memory and none on CPU.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// nodeSelector restricts the nodes that they run on.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// tolerations let them run on tainted nodes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
}

// BenchmarkThreshold is a limit of a figure.
// +kubebuilder:validation:MaxLength=128
// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?(min|mean|p50|p95|p99|p99\.9|max|serverCPU|handshakesPerSecond|efficiency|resumption|failures)(@[1-9][0-9]{0,2})? *(<=|>=|==|!=|<|>) *[0-9][0-9a-zµ.%]*$`
type BenchmarkThreshold string

// BenchmarkBaseline names an earlier report.
type BenchmarkBaseline struct {
	// name of a ConfigMap with the key report.json: that of an earlier
	// QTLSBenchmark (`<name>-report`), or a copy of it, which stays when that is
	// deleted.
	// +required
	Name ObjectName `json:"name"`
	// force a comparison with a report of other machines, quotas or load, which is
	// refused otherwise: the difference may be theirs.
	// +optional
	Force bool `json:"force,omitempty"`
	// tolerance in percent: a figure is better or worse when all of its interval is
	// by more than that. The same machine differs by some from one run to another.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Tolerance *int32 `json:"tolerance,omitempty"`
}

// BenchmarkPhase is how far a benchmark is.
type BenchmarkPhase string

const (
	// BenchmarkPending has not begun.
	BenchmarkPending BenchmarkPhase = "Pending"
	// BenchmarkRunning measures.
	BenchmarkRunning BenchmarkPhase = "Running"
	// BenchmarkRestoring has measured everything and puts the gateway back.
	BenchmarkRestoring BenchmarkPhase = "Restoring"
	// BenchmarkAborting cannot go on and puts the gateway back.
	BenchmarkAborting BenchmarkPhase = "Aborting"
	// BenchmarkCompleted is over, and its report is there.
	BenchmarkCompleted BenchmarkPhase = "Completed"
	// BenchmarkFailed is over without having measured everything.
	BenchmarkFailed BenchmarkPhase = "Failed"
	// BenchmarkCancelled is over because somebody wanted that.
	BenchmarkCancelled BenchmarkPhase = "Cancelled"
)

// Over says whether nothing more comes after a phase.
func (p BenchmarkPhase) Over() bool {
	return p == BenchmarkCompleted || p == BenchmarkFailed || p == BenchmarkCancelled
}

// QTLSBenchmarkStatus is what was measured, and how far that is.
type QTLSBenchmarkStatus struct {
	// observedGeneration is the generation that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase: Pending, Running, Restoring, Aborting, Completed, Failed, Cancelled.
	// +optional
	Phase BenchmarkPhase `json:"phase,omitempty"`
	// conditions: Complete, Failed when it is over, Valid, Restored, Compared where
	// there is a baseline, Passed where there is that or thresholds, and PeersCompared
	// where there are peers.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// startTime is when the first number of replicas was set.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// replicasBefore are those of the gateway before the benchmark scaled it, with
	// use InPlace. They are here before anything is touched, so that they can be
	// put back even where somebody removes the gateway's annotation.
	// +optional
	ReplicasBefore *int32 `json:"replicasBefore,omitempty"`
	// replicasSet are those that the benchmark gives the gateway, with use InPlace, or
	// gave it last. Where the gateway's annotation is gone, any other number is
	// somebody else's and stays.
	// +optional
	ReplicasSet *int32 `json:"replicasSet,omitempty"`
	// gatewayUID is that of the gateway with these replicas: another one of its name
	// is not the benchmark's to scale.
	// +optional
	GatewayUID types.UID `json:"gatewayUID,omitempty"`
	// completionTime is when the gateway was put back.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// plan of the run.
	// +optional
	Plan *BenchmarkPlan `json:"plan,omitempty"`
	// progress is the number of measurements that were made, of those planned,
	// as in `12/60`.
	// +optional
	Progress string `json:"progress,omitempty"`
	// points are the results, by mode and number of replicas.
	// +optional
	// +listType=map
	// +listMapKey=mode
	// +listMapKey=replicas
	// +kubebuilder:validation:MaxItems=160
	Points []BenchmarkPoint `json:"points,omitempty"`
	// scaling is the law that each mode's points follow, once all are measured.
	// +optional
	// +listType=map
	// +listMapKey=mode
	// +kubebuilder:validation:MaxItems=16
	Scaling []BenchmarkScaling `json:"scaling,omitempty"`
	// peers are the comparisons with other servers, when the run is over.
	// +optional
	// +listType=map
	// +listMapKey=peer
	// +listMapKey=mode
	// +listMapKey=replicas
	// +kubebuilder:validation:MaxItems=480
	Peers []BenchmarkComparison `json:"peers,omitempty"`
	// reportRef names the ConfigMap with the report.
	// +optional
	ReportRef *BenchmarkReportReference `json:"reportRef,omitempty"`
}

// BenchmarkPlan is what a run intends.
type BenchmarkPlan struct {
	// seed of the order: the same seed and spec give the same order.
	// +required
	Seed int64 `json:"seed"`
	// measurements: modes times numbers of replicas, repetitions and phases.
	// +required
	Measurements int32 `json:"measurements"`
	// duration that is planned for.
	// +required
	Duration metav1.Duration `json:"duration"`
}

// BenchmarkPoint is what was measured of one mode at one number of replicas.
type BenchmarkPoint struct {
	// mode, by its name in the spec.
	// +required
	Mode string `json:"mode"`
	// replicas that were measured.
	// +required
	Replicas int32 `json:"replicas"`
	// repetitions that were measured in both phases.
	// +required
	Repetitions int32 `json:"repetitions"`
	// valid: what was measured is the gateway, and nothing else.
	// +required
	Valid bool `json:"valid"`
	// invalidBecause says why it is not.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	InvalidBecause []string `json:"invalidBecause,omitempty"`
	// handshakesPerSecond that the replicas made together, phase Capacity.
	// +optional
	HandshakesPerSecond *BenchmarkEstimate `json:"handshakesPerSecond,omitempty"`
	// efficiency is the handshakes per second, relative to as many times those
	// of 1 replica: 1 is perfect scaling.
	// +optional
	Efficiency *BenchmarkEstimate `json:"efficiency,omitempty"`
	// latency of a handshake as clients see it, phase Latency.
	// +optional
	Latency *BenchmarkLatency `json:"latency,omitempty"`
	// failures are handshakes that failed, of both phases.
	// +optional
	Failures int64 `json:"failures"`
	// failuresByClass are the same, by why.
	// +optional
	// +listType=map
	// +listMapKey=class
	// +kubebuilder:validation:MaxItems=8
	FailuresByClass []BenchmarkFailures `json:"failuresByClass,omitempty"`
	// resumption is the share of the handshakes that were resumed, of both phases,
	// as a decimal number from 0 to 1.
	// +optional
	Resumption string `json:"resumption,omitempty"`
	// server is what the replicas needed, phase Capacity.
	// +optional
	Server *BenchmarkServer `json:"server,omitempty"`
	// limitedBy is what limited the handshakes per second: CPUQuota, Client,
	// Machine, HSM, Redis, Network, Memory, or Unknown. The report has the evidence.
	// +optional
	LimitedBy string `json:"limitedBy,omitempty"`
}

// BenchmarkFailures are handshakes that failed for one reason.
type BenchmarkFailures struct {
	// class: Connect, Timeout, Handshake, Verify, HTTP, Reset or Other.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	Class string `json:"class"`
	// count of them.
	// +required
	Count int64 `json:"count"`
}

// BenchmarkServer is what replicas needed. What was not observed is left out.
type BenchmarkServer struct {
	// cpuPerHandshake is the CPU time of all replicas for a handshake.
	// +optional
	CPUPerHandshake *metav1.Duration `json:"cpuPerHandshake,omitempty"`
	// handshakesPerCPUSecond are those for each CPU-second that the replicas'
	// quotas granted.
	// +optional
	HandshakesPerCPUSecond *BenchmarkEstimate `json:"handshakesPerCPUSecond,omitempty"`
	// memory of HAProxy's container at most, of the replica with the most.
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
	// memoryPerConnection is by how much that grew for each open connection, where
	// there were 16 and more.
	// +optional
	MemoryPerConnection *resource.Quantity `json:"memoryPerConnection,omitempty"`
	// imbalance is by which share the busiest replica did more than its part: 0 is
	// perfect balance.
	// +optional
	Imbalance string `json:"imbalance,omitempty"`
	// machineIdle is the least share of a machine's CPU time that nobody used.
	// +optional
	MachineIdle string `json:"machineIdle,omitempty"`
}

// BenchmarkScaling is the law that the points of a mode follow: Gunther's universal
// scalability law, X(N) = λN / (1 + σ(N-1) + κN(N-1)).
type BenchmarkScaling struct {
	// mode, by its name in the spec.
	// +required
	Mode string `json:"mode"`
	// curve says what kind of curve it is: replicas with a CPU quota on one machine
	// add up in another way than machines do.
	// +required
	Curve string `json:"curve"`
	// lambda are the handshakes per second of one replica.
	// +optional
	Lambda string `json:"lambda,omitempty"`
	// sigma is the share of the work that does not spread over replicas.
	// +optional
	Sigma string `json:"sigma,omitempty"`
	// kappa is what replicas cost each other.
	// +optional
	Kappa string `json:"kappa,omitempty"`
	// predictions for more replicas than were measured, if the law holds.
	// +optional
	// +listType=map
	// +listMapKey=replicas
	// +kubebuilder:validation:MaxItems=4
	Predictions []BenchmarkPrediction `json:"predictions,omitempty"`
	// unavailable says why there is no law: four numbers of replicas have to be
	// valid.
	// +optional
	Unavailable string `json:"unavailable,omitempty"`
}

// BenchmarkPrediction is what the law gives for some replicas.
type BenchmarkPrediction struct {
	// replicas that it is for.
	// +required
	Replicas int32 `json:"replicas"`
	// handshakesPerSecond that they would make together.
	// +required
	HandshakesPerSecond BenchmarkEstimate `json:"handshakesPerSecond"`
}

// BenchmarkComparison of the gateway with a peer, in one mode at one number of
// replicas of each.
type BenchmarkComparison struct {
	// peer, by its name in the spec.
	// +required
	Peer string `json:"peer"`
	// mode, by its name in the spec.
	// +required
	Mode string `json:"mode"`
	// replicas of each.
	// +required
	Replicas int32 `json:"replicas"`
	// ratio of the gateway's handshakes per second to the peer's: 2 is twice as
	// many. It is there where both were measured validly in one repetition at least.
	// +optional
	Ratio *BenchmarkEstimate `json:"ratio,omitempty"`
	// invalidBecause says why there is none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	InvalidBecause []string `json:"invalidBecause,omitempty"`
}

// BenchmarkEstimate is a mean over the repetitions and the bounds between which
// it lies with a confidence of 95 %, as decimal numbers.
type BenchmarkEstimate struct {
	// mean of the repetitions.
	// +required
	Mean string `json:"mean"`
	// low is the lower bound; none where there was one repetition.
	// +optional
	Low string `json:"low,omitempty"`
	// high is the upper bound; none where there was one repetition.
	// +optional
	High string `json:"high,omitempty"`
}

// BenchmarkLatency is how long handshakes took, all repetitions together.
type BenchmarkLatency struct {
	// mean of all.
	// +required
	Mean metav1.Duration `json:"mean"`
	// min is the shortest.
	// +required
	Min metav1.Duration `json:"min"`
	// max is the longest of those that succeeded.
	// +required
	Max metav1.Duration `json:"max"`
	// p50: half of them took no longer. This, as the others, is there only where
	// there were enough handshakes to tell: 100 that took longer.
	// +optional
	P50 *metav1.Duration `json:"p50,omitempty"`
	// p95: so did 95 % of them.
	// +optional
	P95 *metav1.Duration `json:"p95,omitempty"`
	// p99: so did 99 % of them.
	// +optional
	P99 *metav1.Duration `json:"p99,omitempty"`
	// p999: so did 99.9 % of them.
	// +optional
	P999 *metav1.Duration `json:"p999,omitempty"`
}

// BenchmarkReportReference names a ConfigMap.
type BenchmarkReportReference struct {
	// name of the ConfigMap, with the key report.json.gz. Beside it, where there is
	// room, are report.html.gz and report.md.gz, which else have the ConfigMaps
	// `<name>-html` and `<name>-md`; and report.json, report.html and report.md.
	// +required
	Name string `json:"name"`
}

// QTLSBenchmarkList is a list of QTLSBenchmarks.
// +kubebuilder:object:root=true
type QTLSBenchmarkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []QTLSBenchmark `json:"items"`
}
