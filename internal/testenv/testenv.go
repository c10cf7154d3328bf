// Package testenv gives integration tests the real kube-apiserver and etcd,
// with the CRDs of Q-TLS and of cert-manager. No controller of Kubernetes' or
// cert-manager's runs: what they would do, a test does itself.
//
// A test package starts it once:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
package testenv

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cert-manager/cert-manager/pkg/apis/certmanager"
	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"qtls.dev/qtls/api/v1alpha1"
)

// patience is how long anything may take: much longer than it does, for a
// machine may be busy with other things.
const patience = 2 * time.Minute

// environment is what Main started.
var environment *envtest.Environment

// Main runs a package's tests against one apiserver, whose programs lie in
// $KUBEBUILDER_ASSETS.
func Main(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	// The kernel kills kube-apiserver and etcd with the thread that started them (bound):
	// that is to be this one, which this goroutine keeps until the process ends.
	goruntime.LockOSThread()
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		fmt.Fprintln(os.Stderr, "testenv: KUBEBUILDER_ASSETS is not set: it names the folder with kube-apiserver and etcd; run `make test-integration`, or set it to what `go -C hack/cluster run . assets` prints")
		return 1
	}
	ours, certManagers, err := modules()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		return 1
	}
	for try := 1; ; try++ {
		err := start(filepath.Join(ours, "internal", "testenv", "bound"), append(crds(certManagers), filepath.Join(ours, "config", "crd")))
		if err == nil {
			break
		}
		fmt.Fprintln(os.Stderr, "testenv: kube-apiserver and etcd do not start:", err)
		stop() // what started half way
		if try == starts {
			return 1
		}
	}
	defer stop()
	return m.Run()
}

// starts is how often a start is tried: another process may take a port that
// was free a moment before.
const starts = 3

// start with programs that end when this process does, however that ends: one that
// is killed stops nothing.
func start(bound string, crds []string) error {
	environment = &envtest.Environment{
		CRDInstallOptions:        envtest.CRDInstallOptions{Paths: crds, ErrorIfPathMissing: true, MaxTime: patience},
		ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience}
	environment.ControlPlane.Etcd = &envtest.Etcd{Path: filepath.Join(bound, "etcd")}
	apiserver := environment.ControlPlane.GetAPIServer()
	apiserver.Path = filepath.Join(bound, "kube-apiserver")
	apiserver.Configure().Append("max-requests-inflight", "2000")
	_, err := environment.Start()
	return err
}

func stop() {
	if err := environment.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv: kube-apiserver and etcd do not stop:", err)
	}
}

// modules are the folders of this module and of cert-manager's, whose files are not
// copied into this tree.
func modules() (ours, certManagers string, err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "qtls.dev/qtls", "github.com/cert-manager/cert-manager").Output()
	if err != nil {
		return "", "", fmt.Errorf("the folders of the modules qtls.dev/qtls and github.com/cert-manager/cert-manager: %w", err)
	}
	dirs := strings.Fields(string(out))
	if len(dirs) != 2 {
		return "", "", fmt.Errorf("the module github.com/cert-manager/cert-manager is not in the module cache; run `go mod download`")
	}
	return dirs[0], dirs[1], nil
}

// crds of cert-manager.
func crds(certManagers string) []string {
	var paths []string
	for _, resource := range []string{"certificaterequests", "certificates", "issuers", "clusterissuers"} {
		paths = append(paths, filepath.Join(certManagers, "deploy", "crds", certmanager.GroupName+"_"+resource+".yaml"))
	}
	return paths
}

// WithoutCertManager takes cert-manager's CRDs away; install puts them back,
// at the latest when the test ends.
func WithoutCertManager(t testing.TB) (install func()) {
	t.Helper()
	_, certManagers, err := modules()
	if err != nil {
		t.Fatal(err)
	}
	options := envtest.CRDInstallOptions{Paths: crds(certManagers), MaxTime: patience}
	// Of what is there the apiserver deletes each object first, and tries again after a minute.
	c := Client(t)
	Eventually(t, func(ctx context.Context) error {
		left := &cmapi.CertificateRequestList{}
		if err := c.List(ctx, left); err != nil {
			return err
		}
		for i := range left.Items {
			if err := client.IgnoreNotFound(c.Delete(ctx, &left.Items[i])); err != nil {
				return err
			}
		}
		if len(left.Items) > 0 {
			return fmt.Errorf("%d CertificateRequests are left, such as %s with finalizers %v", len(left.Items), client.ObjectKeyFromObject(&left.Items[0]), left.Items[0].Finalizers)
		}
		return nil
	})
	if err := envtest.UninstallCRDs(Config(), options); err != nil {
		t.Fatalf("taking cert-manager's CRDs away: %v", err)
	}
	discover, err := discovery.NewDiscoveryClientForConfig(Config())
	if err != nil {
		t.Fatal(err)
	}
	Eventually(t, func(context.Context) error {
		_, err := discover.ServerResourcesForGroupVersion(cmapi.SchemeGroupVersion.String())
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("cert-manager's group is still served, %v; of its CRDs there are%s", err, certManagersCRDs(t, c))
		}
		return nil
	})
	install = sync.OnceFunc(func() {
		if _, err := envtest.InstallCRDs(Config(), options); err != nil {
			t.Errorf("installing cert-manager's CRDs: %v", err)
		}
	})
	t.Cleanup(install)
	return install
}

// certManagersCRDs that are there, and what they say of themselves.
func certManagersCRDs(t testing.TB, c client.Client) string {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinitionList"})
	if err := c.List(t.Context(), list); err != nil {
		return " " + err.Error()
	}
	var all strings.Builder
	for _, o := range list.Items {
		if strings.HasSuffix(o.GetName(), "."+certmanager.GroupName) {
			conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			fmt.Fprintf(&all, " %s, deleted at %v: %v;", o.GetName(), o.GetDeletionTimestamp(), conditions)
		}
	}
	return all.String()
}

// Config of a client that may do everything.
func Config() *rest.Config { return environment.Config }

// Kubectl writes a kubeconfig of a client that may do everything in a namespace, and
// returns the environment in which kubectl, and what calls it, find both.
func Kubectl(t testing.TB, namespace string) []string {
	t.Helper()
	config, err := clientcmd.Load(environment.KubeConfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Contexts[config.CurrentContext].Namespace = namespace
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return append(os.Environ(), "KUBECONFIG="+file, "PATH="+os.Getenv("KUBEBUILDER_ASSETS")+":"+os.Getenv("PATH"))
}

// Scheme knows every kind that the operator deals with.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, cmapi.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // two types of one name: a mistake in the code
		}
	}
	return s
}

// Client reads and writes the apiserver directly.
func Client(t testing.TB) client.Client {
	t.Helper()
	c, err := client.New(Config(), client.Options{Scheme: Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Namespace makes a namespace of the test's own.
func Namespace(t testing.TB, c client.Client) string {
	t.Helper()
	n := &corev1.Namespace{}
	n.GenerateName = "test-"
	if err := c.Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	return n.Name
}

// Manager makes a manager that serves neither metrics nor probes. Change its
// options with the functions given.
func Manager(t testing.TB, change ...func(*ctrl.Options)) ctrl.Manager {
	t.Helper()
	options := ctrl.Options{
		Scheme:  Scheme(),
		Metrics: metricsserver.Options{BindAddress: "0"},
		// Tests start several managers in one process.
		Controller:              config.Controller{SkipNameValidation: new(true), CacheSyncTimeout: patience},
		GracefulShutdownTimeout: new(patience),
	}
	for _, f := range change {
		f(&options)
	}
	c := rest.CopyConfig(Config())
	c.QPS, c.Burst = -1, -1
	mgr, err := ctrl.NewManager(c, options)
	if err != nil {
		t.Fatal(err)
	}
	return mgr
}

// Counting is a client that counts what is applied with it.
type Counting struct {
	client.Client
	Applied int
}

func (c *Counting) Apply(ctx context.Context, o runtime.ApplyConfiguration, options ...client.ApplyOption) error {
	c.Applied++
	return c.Client.Apply(ctx, o, options...)
}

// Start runs a manager until stop is called or the test ends; stop waits until
// it has ended.
func Start(t testing.TB, mgr ctrl.Manager) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stop = func() {
		if ctx.Err() != nil {
			return
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("manager: %v", err)
		}
	}
	t.Cleanup(stop)
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the manager's caches do not fill")
	}
	return stop
}

// Eventually waits until check is content: until it returns no error. It fails
// the test with the last one when patience is at its end.
func Eventually(t testing.TB, check func(context.Context) error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check(t.Context())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still, after %s: %v", patience, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Never watches for a while that check stays content.
func Never(t testing.TB, during time.Duration, check func(context.Context) error) {
	t.Helper()
	for deadline := time.Now().Add(during); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err := check(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
