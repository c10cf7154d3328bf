// Command qtls-operator runs the controllers of Q-TLS.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/controllers/benchmark"
	"qtls.dev/qtls/controllers/certificate"
	"qtls.dev/qtls/controllers/gateway"
	hsmpoolcontroller "qtls.dev/qtls/controllers/hsmpool"
	"qtls.dev/qtls/controllers/issuer"
	"qtls.dev/qtls/controllers/policy"
	"qtls.dev/qtls/controllers/request"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/peer"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/metrics"
	"qtls.dev/qtls/internal/mtls"
	"qtls.dev/qtls/internal/observe"
	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/rings"
	"qtls.dev/qtls/internal/version"
)

// lease is what the leader holds, in the operator's own namespace. Each release
// serves that namespace, so that no two of its operators may work: a name of the
// release's own would let them.
const lease = "qtls-operator"

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,resourceNames=qtls-operator,verbs=get;update
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// options are what the command line says.
type options struct {
	namespace        string
	watchNamespaces  string
	gatewayImage     string
	redisImage       string
	hsmImage         string
	k6Image          string
	peerImages       []string
	imagePullPolicy  string
	imagePullSecrets string
	leaderElect      bool
	metricsAddress   string
	probeAddress     string
	logLevel         slog.Level
}

func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("qtls-operator", flag.ContinueOnError)
	fs.StringVar(&o.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of the operator itself: its lease, its own Secrets, and those of PQCClusterIssuers")
	fs.StringVar(&o.watchNamespaces, "watch-namespaces", "", "comma-separated namespaces to serve; empty serves all")
	fs.StringVar(&o.gatewayImage, "gateway-image", "", "image of the gateway pods: HAProxy and the agent")
	fs.StringVar(&o.redisImage, "redis-image", "", "image of the embedded ticket stores: Valkey")
	fs.StringVar(&o.hsmImage, "hsm-image", "", "image of the daemons of HSMPools: hsmd, and a token in software")
	fs.StringVar(&o.k6Image, "k6-image", "", "image of benchmarks' load generators: k6 with the module k6/x/qtls; without, QTLSBenchmarks are not looked at")
	fs.Func("peer-images", "comma-separated images that peers of QTLSBenchmarks may have besides the gateway's own, with its private keys; * stands for anything but /", func(text string) (err error) {
		o.peerImages, err = peer.ParseImages(text)
		return err
	})
	fs.StringVar(&o.imagePullPolicy, "gateway-image-pull-policy", string(corev1.PullIfNotPresent), "Always, IfNotPresent or Never")
	fs.StringVar(&o.imagePullSecrets, "gateway-image-pull-secrets", "", "comma-separated Secrets, of each gateway's namespace")
	fs.BoolVar(&o.leaderElect, "leader-elect", false, "let one of several replicas work")
	fs.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "address of /metrics; 0 turns it off")
	fs.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz")
	fs.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "DEBUG, INFO, WARN or ERROR")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case o.namespace == "":
		return o, fmt.Errorf("--namespace (or the variable POD_NAMESPACE) is needed: the namespace that the operator runs in")
	case o.gatewayImage == "":
		return o, fmt.Errorf("--gateway-image is needed: the image that gateway pods run")
	case o.redisImage == "":
		return o, fmt.Errorf("--redis-image is needed: the image that embedded ticket stores run")
	case o.hsmImage == "":
		return o, fmt.Errorf("--hsm-image is needed: the image that the daemons of HSMPools run")
	}
	return o, nil
}

// collectorShare of the container's memory, which the chart gives as GOMEMLIMIT, is the
// collector's to keep to: the kernel counts what Go does not, too, as the program's pages.
const collectorShare = 0.9

func limitMemory() {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		debug.SetMemoryLimit(int64(collectorShare * float64(limit)))
	}
}

func main() {
	limitMemory()
	o, err := parse(os.Args[1:])
	if err == nil {
		err = run(ctrl.SetupSignalHandler(), o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "qtls-operator:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: o.logLevel})))
	ctrl.Log.Info("starting", "version", version.Version, "gatewayImage", o.gatewayImage)

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, cmapi.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	cacheOptions, err := cacheFor(o)
	if err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 50, 100
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cacheOptions,
		Metrics:                       metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:        o.probeAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              lease,
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true, // the process ends right after
	})
	if err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	a := followAgents(ctx, mgr, o)
	if err := setUpCertificates(mgr, o, a.observer); err != nil {
		return err
	}
	if err := setUpGateways(ctx, mgr, o, a); err != nil {
		return fmt.Errorf("gateway controller: %w", err)
	}
	if err := mgr.Add(&policy.Installer{Client: mgr.GetClient()}); err != nil {
		return fmt.Errorf("shipped policies: %w", err)
	}
	objects := &metrics.Objects{Reader: mgr.GetCache(), Elected: mgr.Elected(), Benchmarks: o.k6Image != ""}
	if err := ctrlmetrics.Registry.Register(objects); err != nil {
		return fmt.Errorf("metrics of objects: %w", err)
	}
	return mgr.Start(ctx)
}

// agents of the gateways' pods, and what they say.
type agents struct {
	authority *gateway.Authority
	observer  *observe.Observer
	// changes are the gateways that there is news of; changed tells of one.
	changes chan event.GenericEvent
	changed func(types.NamespacedName)
}

func followAgents(ctx context.Context, mgr ctrl.Manager, o options) agents {
	a := agents{
		authority: &gateway.Authority{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Namespace: o.namespace, Clock: clock.RealClock{}},
		changes:   make(chan event.GenericEvent, 1024),
	}
	a.changed = func(name types.NamespacedName) {
		g := &v1alpha1.QTLSGateway{}
		g.Namespace, g.Name = name.Namespace, name.Name
		select {
		case a.changes <- event.GenericEvent{Object: g}:
		case <-ctx.Done():
		}
	}
	a.observer = observe.New(ctx, mtls.StatusPort, a.authority.HTTPClient, a.changed)
	return a
}

func setUpCertificates(mgr ctrl.Manager, o options, agents certificate.Agents) error {
	c, reader, now, recorder := mgr.GetClient(), mgr.GetAPIReader(), clock.RealClock{}, mgr.GetEventRecorder("qtls-operator")
	hsms := &hsmpool.Clients{}
	if err := (&certificate.Reconciler{Client: c, APIReader: reader, Namespaces: served(o), Clock: now, Recorder: recorder, HSMs: hsms, Agents: agents}).SetupWithManager(mgr); err != nil {
		return fmt.Errorf("certificate controller: %w", err)
	}
	if err := (&issuer.Reconciler{Client: c, APIReader: reader, Clock: now, Namespace: o.namespace, Recorder: recorder, HSMs: hsms}).SetupWithManager(mgr); err != nil {
		return fmt.Errorf("issuer controller: %w", err)
	}
	if err := (&request.Reconciler{Client: c, APIReader: reader, Clock: now, Namespace: o.namespace, Recorder: recorder, HSMs: hsms}).SetupWithManager(mgr); err != nil {
		return fmt.Errorf("request controller: %w", err)
	}
	pools := &hsmpoolcontroller.Reconciler{Client: c, APIReader: reader, Clock: now, Recorder: recorder, Clients: hsms, Settings: settings(o),
		Interval: hsmpoolcontroller.Interval}
	if err := pools.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("HSMPool controller: %w", err)
	}
	return nil
}

func setUpGateways(ctx context.Context, mgr ctrl.Manager, o options, a agents) error {
	keeper := rings.New(ctx, mgr.GetClient(), mgr.GetAPIReader(), clock.RealClock{}, a.changed)
	if o.k6Image != "" {
		if err := setUpBenchmarks(mgr, o, a.authority); err != nil {
			return fmt.Errorf("benchmark controller: %w", err)
		}
	}
	return (&gateway.Reconciler{
		Client:    mgr.GetClient(),
		APIReader: mgr.GetAPIReader(),
		Clock:     clock.RealClock{},
		Recorder:  mgr.GetEventRecorder("qtls-operator"),
		Settings:  settings(o),
		Observer:  a.observer,
		Authority: a.authority,
		Rings:     keeper,
		Changes:   a.changes,
	}).SetupWithManager(mgr)
}

func setUpBenchmarks(mgr ctrl.Manager, o options, authority *gateway.Authority) error {
	s := settings(o)
	logs, err := benchmark.PodLogs(mgr.GetConfig())
	if err != nil {
		return err
	}
	schedules := &benchmark.ScheduleReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Clock: clock.RealClock{}, Recorder: mgr.GetEventRecorder("qtls-operator")}
	if err := schedules.SetupWithManager(mgr); err != nil {
		return err
	}
	return (&benchmark.Reconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Clock: clock.RealClock{}, Recorder: mgr.GetEventRecorder("qtls-operator"),
		Settings: generator.Settings{Image: o.k6Image, GatewayImage: o.gatewayImage, PeerImages: o.peerImages, ImagePullPolicy: s.ImagePullPolicy, ImagePullSecrets: s.ImagePullSecrets},
		Limits:   plan.DefaultLimits, Logs: logs, Usages: benchmark.AskAgents(authority.HTTPClient), Kubernetes: kubernetesVersion(mgr.GetConfig()),
	}).SetupWithManager(mgr)
}

// kubernetesVersion for the reports; without it they do not have it.
func kubernetesVersion(config *rest.Config) string {
	c, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return ""
	}
	v, err := c.ServerVersion()
	if err != nil {
		return ""
	}
	return v.GitVersion
}

// settings are what the pods that the operator makes run with.
func settings(o options) resources.Settings {
	s := resources.Settings{Image: o.gatewayImage, RedisImage: o.redisImage, HSMImage: o.hsmImage,
		ImagePullPolicy: corev1.PullPolicy(o.imagePullPolicy), OperatorNamespace: o.namespace}
	if o.imagePullSecrets != "" {
		s.ImagePullSecrets = strings.Split(o.imagePullSecrets, ",")
	}
	return s
}

// cacheFor keeps memory small: of pods only the gateways', of Jobs only the
// benchmarks', of everything only what the controllers look at.
func cacheFor(o options) (cache.Options, error) {
	isGateways, err := labels.NewRequirement(v1alpha1.LabelGateway, selection.Exists, nil)
	if err != nil {
		return cache.Options{}, err
	}
	isBenchmarks, err := labels.NewRequirement(v1alpha1.LabelBenchmark, selection.Exists, nil)
	if err != nil {
		return cache.Options{}, err
	}
	isPools, err := labels.NewRequirement(v1alpha1.LabelHSMPool, selection.Exists, nil)
	if err != nil {
		return cache.Options{}, err
	}
	options := cache.Options{
		DefaultTransform: slim,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                   {Label: labels.NewSelector().Add(*isGateways), Transform: slimPod},
			&corev1.PersistentVolumeClaim{}: {Label: labels.NewSelector().Add(*isPools)},
			&discoveryv1.EndpointSlice{}:    {Transform: slimEndpointSlice},
			&batchv1.Job{}:                  {Label: labels.NewSelector().Add(*isBenchmarks)},
		},
		SyncPeriod: new(10 * time.Hour),
	}
	for _, n := range served(o) {
		if options.DefaultNamespaces == nil {
			options.DefaultNamespaces = map[string]cache.Config{}
		}
		options.DefaultNamespaces[n] = cache.Config{}
	}
	return options, nil
}

// served namespaces, each once: the operator's own and those that it is told to
// watch. None stands for all.
func served(o options) []string {
	if o.watchNamespaces == "" {
		return nil
	}
	namespaces := []string{o.namespace}
	for _, n := range strings.Split(o.watchNamespaces, ",") {
		namespaces = append(namespaces, strings.TrimSpace(n))
	}
	slices.Sort(namespaces)
	return slices.Compact(namespaces)
}

// slim drops what nobody reads: the fields' managers; what kubectl keeps for itself,
// which in a Secret's metadata is the Secret's content; and what requests to others'
// issuers hold. What is read so is written back by patches of the difference alone.
func slim(o any) (any, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return o, nil // a notice of what is gone
	}
	if cr, ok := o.(*cmapi.CertificateRequest); ok && !isOurs(cr) {
		cr.Annotations, cr.Spec.Request, cr.Status.Certificate, cr.Status.CA = nil, nil, nil, nil
	}
	if m.GetManagedFields() != nil {
		m.SetManagedFields(nil)
	}
	if a := m.GetAnnotations(); a[corev1.LastAppliedConfigAnnotation] != "" {
		delete(a, corev1.LastAppliedConfigAnnotation)
		m.SetAnnotations(a)
	}
	return o, nil
}

// isOurs says whether a request is to an issuer of ours, or made for a
// PQCCertificate. The cache cannot be told to have these alone, nor to treat
// CertificateRequests apart: that takes cert-manager to be there at the start.
func isOurs(cr *cmapi.CertificateRequest) bool {
	owner := metav1.GetControllerOf(cr)
	return cr.Spec.IssuerRef.Group == v1alpha1.GroupName || owner != nil && owner.Kind == "PQCCertificate"
}

// slimPod drops the spec, which nobody reads.
func slimPod(o any) (any, error) {
	if p, ok := o.(*corev1.Pod); ok {
		p.ManagedFields, p.Annotations = nil, nil
		p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName}
	}
	return o, nil
}

func slimEndpointSlice(o any) (any, error) {
	if s, ok := o.(*discoveryv1.EndpointSlice); ok {
		s.ManagedFields, s.Annotations = nil, nil
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			*e = discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions}
		}
	}
	return o, nil
}
