// Package generator builds the Kubernetes objects of a load generator: one pure
// function for each.
package generator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/resources"
)

// Settings are the operator's own, the same for every benchmark.
type Settings struct {
	// Image of the load generator: k6 with the module k6/x/qtls.
	Image            string
	ImagePullPolicy  corev1.PullPolicy
	ImagePullSecrets []string
	// GatewayImage has the HAProxy of peers that name no image.
	GatewayImage string
	// PeerImages are the patterns of the images that peers may have besides.
	PeerImages []string
}

// Container of the pods, whose log has the result.
const Container = "k6"

const (
	// folder of the files that a pod reads.
	folder = "/etc/qtls-benchmark"
	// CAFile has the authorities that clients trust.
	CAFile = "ca.crt"

	// patience is how long a Job may take beyond its load: to be scheduled, to
	// pull the image, and to end.
	patience = 3 * time.Minute
)

// Target is where clients connect to.
type Target struct {
	Host       string
	Port       int32
	ServerName string
}

// TargetOf a mode, in the gateway that is measured.
func TargetOf(b *v1alpha1.QTLSBenchmark, mode v1alpha1.BenchmarkMode, gateway *v1alpha1.QTLSGateway) (Target, error) {
	listener, err := ListenerOf(b, mode, gateway)
	if err != nil {
		return Target{}, err
	}
	if listener.Protocol == v1alpha1.ProtocolTLSPassthrough {
		return Target{}, fmt.Errorf("listener %q of QTLSGateway %q passes TLS on to its backends, whose handshakes are not the gateway's; name another listener", listener.Name, b.Spec.GatewayRef.Name)
	}
	if c := listener.ClientAuthentication; c != nil && c.Mode != v1alpha1.ClientAuthenticationOptional {
		return Target{}, fmt.Errorf("listener %q of QTLSGateway %q requires certificates of clients, and the load's have none; name another listener, or one whose clientAuthentication.mode is Optional", listener.Name, b.Spec.GatewayRef.Name)
	}
	t := Target{Host: fmt.Sprintf("%s.%s.svc", resources.Name(gateway.Name), gateway.Namespace), Port: listener.Port, ServerName: string(mode.ServerName)}
	field := "spec.target.serverName"
	switch {
	case t.ServerName != "":
	case mode.Listener != "": // the target's name is another listener's
		field = fmt.Sprintf("spec.modes: mode %q: serverName", mode.Name)
	default:
		t.ServerName = string(b.Spec.Target.ServerName)
	}
	if t.ServerName == "" && len(listener.Hostnames) > 0 {
		t.ServerName = string(listener.Hostnames[0])
	}
	if t.ServerName == "" || strings.HasPrefix(t.ServerName, "*") {
		return Target{}, fmt.Errorf("%s: listener %q of QTLSGateway %q has no host name that is no wildcard; say which name clients ask for", field, listener.Name, b.Spec.GatewayRef.Name)
	}
	return t, nil
}

// ListenerOf a mode, in the gateway that is measured or the one that it is a copy of.
func ListenerOf(b *v1alpha1.QTLSBenchmark, mode v1alpha1.BenchmarkMode, gateway *v1alpha1.QTLSGateway) (*v1alpha1.Listener, error) {
	name, field := b.Spec.Target.Listener, "spec.target.listener"
	if mode.Listener != "" {
		name, field = mode.Listener, fmt.Sprintf("spec.modes: mode %q: listener", mode.Name)
	}
	if name == "" {
		return &gateway.Spec.Listeners[0], nil
	}
	var names []string
	for i := range gateway.Spec.Listeners {
		l := &gateway.Spec.Listeners[i]
		if names = append(names, l.Name); l.Name == name {
			return l, nil
		}
	}
	return nil, fmt.Errorf("%s: QTLSGateway %q has no listener %q; it has %s", field, b.Spec.GatewayRef.Name, name, strings.Join(names, ", "))
}

// PathOf a mode's requests.
func PathOf(mode v1alpha1.BenchmarkMode) string { return cmp.Or(mode.Path, "/") }

// Point names a measurement of a benchmark: one that was deleted and made again
// is another.
func Point(b *v1alpha1.QTLSBenchmark, m plan.Measurement) string {
	return string(b.UID) + "/" + m.Name()
}

// Pods that share the load.
func Pods(b *v1alpha1.QTLSBenchmark) int32 { return ptr.Deref(b.Spec.Generator.Pods, 1) }

// Resources of each of them.
func Resources(b *v1alpha1.QTLSBenchmark) corev1.ResourceRequirements {
	if r := b.Spec.Generator.Resources; r != nil {
		return *r
	}
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
}

// LoadOf a measurement of a gateway at a rate, by the pods of an attempt that is
// made now.
func LoadOf(b *v1alpha1.QTLSBenchmark, p plan.Plan, m plan.Measurement, gateway *v1alpha1.QTLSGateway, attempt int32, rate float64, now time.Time) (load.Load, error) {
	i := slices.IndexFunc(b.Spec.Modes, func(mode v1alpha1.BenchmarkMode) bool { return mode.Name == m.Mode })
	if i < 0 {
		return load.Load{}, fmt.Errorf("spec.modes has no mode %q", m.Mode)
	}
	mode, needsProvider := b.Spec.Modes[i], false
	t, err := TargetOf(b, mode, gateway)
	if err != nil {
		return load.Load{}, err
	}
	l := load.Load{
		Version: load.Version, Point: Point(b, m), Pods: int(Pods(b)),
		WarmUp: p.Load.WarmUp, Window: p.Load.Duration,
		Phase: load.Capacity, VUs: max(int(p.Load.VirtualUsersPerReplica*m.Replicas), int(Pods(b))),
		Operation: load.Handshake,
		Client:    load.Client{Host: t.Host, Port: int(t.Port), SNI: t.ServerName, CAFile: folder + "/" + CAFile},
	}
	if l.VUs > load.MostVUs {
		return load.Load{}, fmt.Errorf("spec.load.virtualUsersPerReplica: %d for each of %d replicas are %d clients, and a load has %d at most; have fewer", p.Load.VirtualUsersPerReplica, m.Replicas, l.VUs, load.MostVUs)
	}
	if m.Phase == plan.Latency {
		l.Phase, l.Rate = load.Latency, max(1, int(math.Round(rate)))
		// Enough for handshakes that take a second, as far as twice the capacity's
		// are; who finds none free is counted as dropped. More would have no session
		// to resume when the window begins, for they take turns.
		l.VUs = min(max(l.Rate, int(Pods(b))), 2*l.VUs, load.MostVUs)
	}
	l.Start = now.Add(plan.StartDelay(Pods(b), int32(l.VUs), attempt)).UnixNano()
	switch mode.Operation {
	case v1alpha1.BenchmarkOperationRequest:
		l.Operation, l.Path = load.Request, PathOf(mode)
	case v1alpha1.BenchmarkOperationTransfer:
		l.Operation, l.Path, l.Size = load.Transfer, PathOf(mode), mode.Size.Bytes()
	}
	l.Client.Resumption = mode.Handshake == v1alpha1.BenchmarkHandshakeResumed
	for _, name := range mode.Groups {
		g, ok := algorithms.LookupGroup(name)
		if !ok {
			return load.Load{}, fmt.Errorf("spec.modes: mode %q has the group %q, which this operator does not know", mode.Name, name)
		}
		l.Client.Groups = append(l.Client.Groups, g.OpenSSL)
		needsProvider = needsProvider || g.Provider
	}
	for _, name := range mode.SignatureSchemes {
		if scheme, ok := algorithms.LookupSignatureScheme(name); ok {
			needsProvider = needsProvider || scheme.Provider
		}
		l.Client.SignatureAlgorithms = append(l.Client.SignatureAlgorithms, string(name))
	}
	if needsProvider {
		l.Client.Provider = algorithms.Provider
	}
	return l, l.Validate()
}

// Labels of everything that belongs to a benchmark.
func Labels(benchmark string) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":      "qtls-benchmark",
		v1alpha1.LabelBenchmark:       v1alpha1.LabelValue(benchmark),
		v1alpha1.LabelManagedBy:       v1alpha1.LabelManagedByValue,
		"app.kubernetes.io/component": "load-generator",
	}
}

// Meta of an object that belongs to a benchmark.
func Meta(b *v1alpha1.QTLSBenchmark, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: b.Namespace, Name: name, Labels: Labels(b.Name),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(b, v1alpha1.GroupVersion.WithKind("QTLSBenchmark"))},
	}
}

// FilesName of the ConfigMap with the files that pods read.
func FilesName(benchmark string) string { return benchmark + "-generator" }

// Files that pods read.
func Files(b *v1alpha1.QTLSBenchmark, ca string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: Meta(b, FilesName(b.Name)),
		Data:       map[string]string{CAFile: ca},
	}
}

// JobName of an attempt at a measurement.
func JobName(benchmark string, m plan.Measurement, attempt int32) string {
	return fmt.Sprintf("%s-%04d-%d", benchmark, m.Number, attempt)
}

// Identity is what a Job's annotation says of it.
type Identity struct {
	Measurement string `json:"measurement"`
	Attempt     int32  `json:"attempt"`
}

// IdentityOf a Job.
func IdentityOf(job *batchv1.Job) (Identity, error) {
	var i Identity
	err := json.Unmarshal([]byte(job.Annotations[v1alpha1.AnnotationMeasurement]), &i)
	return i, err
}

// LoadIn a Job.
func LoadIn(job *batchv1.Job) (load.Load, error) {
	for _, c := range job.Spec.Template.Spec.Containers {
		for _, e := range c.Env {
			if e.Name == load.Variable {
				return load.Parse(e.Value)
			}
		}
	}
	return load.Load{}, fmt.Errorf("Job %s has no load", job.Name)
}

// Job that makes a load.
func Job(b *v1alpha1.QTLSBenchmark, gateway string, m plan.Measurement, attempt int32, l load.Load, s Settings) (*batchv1.Job, error) {
	text, err := l.Text()
	if err != nil {
		return nil, err
	}
	identity, err := json.Marshal(Identity{m.Name(), attempt})
	if err != nil {
		return nil, err
	}
	meta := Meta(b, JobName(b.Name, m, attempt))
	meta.Annotations = map[string]string{v1alpha1.AnnotationMeasurement: string(identity)}
	takes := patience + plan.StartDelay(int32(l.Pods), int32(l.VUs), attempt) + l.WarmUp + l.Window
	return &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job"},
		ObjectMeta: meta,
		Spec: batchv1.JobSpec{
			CompletionMode:        ptr.To(batchv1.IndexedCompletion), // the index says which segment of the load is a pod's
			Completions:           ptr.To(int32(l.Pods)),
			Parallelism:           ptr.To(int32(l.Pods)),
			BackoffLimit:          ptr.To[int32](0), // a part of the load that comes later measures something else
			ActiveDeadlineSeconds: ptr.To(int64(takes.Seconds())),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: Labels(b.Name)},
				Spec:       podSpec(b, gateway, text, s),
			},
		},
	}, nil
}

func podSpec(b *v1alpha1.QTLSBenchmark, gateway, text string, s Settings) corev1.PodSpec {
	var pullSecrets []corev1.LocalObjectReference
	for _, name := range s.ImagePullSecrets {
		pullSecrets = append(pullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		TerminationGracePeriodSeconds: ptr.To[int64](5),
		ImagePullSecrets:              pullSecrets,
		NodeSelector:                  b.Spec.Generator.NodeSelector,
		Tolerations:                   b.Spec.Generator.Tolerations,
		// What makes the load and what bears it should not share a machine.
		Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: resources.Selector(gateway)},
			}}},
		}},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](resources.UID), RunAsGroup: ptr.To[int64](resources.UID),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name:            Container,
			Image:           s.Image,
			ImagePullPolicy: s.ImagePullPolicy,
			Env:             []corev1.EnvVar{{Name: load.Variable, Value: text}},
			Resources:       Resources(b),
			// Why it failed is in the pod's status too.
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "files", MountPath: folder, ReadOnly: true}},
		}},
		Volumes: []corev1.Volume{{Name: "files", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: FilesName(b.Name)},
		}}}},
	}
}
