//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/version"
)

const (
	systemNamespace = "qtls-system"
	registry        = "ghcr.io/qtls-dev/"
)

// cluster is what the tests work on.
var cluster struct {
	client.Client
	config    *rest.Config
	clientset *kubernetes.Clientset
}

// artifacts is the folder for what a failure leaves behind.
var artifacts string

func TestMain(m *testing.M) {
	code, err := runSuite(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func runSuite(m *testing.M) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	if err := connect(); err != nil {
		return 0, err
	}
	if err := chooseArtifacts(); err != nil {
		return 0, err
	}
	if os.Getenv("E2E_INSTALL") != "none" {
		start := time.Now()
		if err := install(ctx); err != nil {
			return 0, err
		}
		fmt.Printf("RESULT setup images, cert-manager and chart installed in %.1f s\n", time.Since(start).Seconds())
	}
	if err := startClients(ctx); err != nil {
		return 0, fmt.Errorf("the pods that hold the TLS clients: %w", err)
	}
	code := m.Run()
	if err := stopClients(); err != nil {
		return 0, err
	}
	return code, nil
}

func connect() error {
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		return fmt.Errorf("KUBECONFIG is not set: run the tests by `make test-e2e`, or set it to a cluster that may be changed")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 200, 400
	log.SetLogger(logr.Discard()) // what the client logs, such as warnings, the tests look at themselves
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	cluster.config = config
	if cluster.Client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	cluster.clientset, err = kubernetes.NewForConfig(config)
	return err
}

func chooseArtifacts() error {
	if artifacts = os.Getenv("ARTIFACTS"); artifacts != "" {
		return os.MkdirAll(artifacts, 0o755)
	}
	var err error
	artifacts, err = os.MkdirTemp("", "qtls-e2e-")
	return err
}

// install does what the quickstart does, and brings two more images to the nodes: the clients that have no post-quantum
// cryptography, and another server to measure gateways beside, which benchmarks may run.
func install(ctx context.Context) error {
	cluster, err := filepath.Abs(cmp.Or(os.Getenv("QTLS_CLUSTER"), "../bin/qtls-cluster"))
	if err != nil {
		return err
	}
	if err := os.Setenv("QTLS_CLUSTER", cluster); err != nil {
		return err
	}
	if err := os.Setenv("PEER_IMAGES", image("nginx")); err != nil {
		return err
	}
	if _, err := output(ctx, "../hack/install"); err != nil {
		return err
	}
	if _, err := output(ctx, "go", "-C", "../hack/images", "run", ".", "build", "client-bookworm", "nginx"); err != nil {
		return err
	}
	archives, err := output(ctx, "go", "-C", "../hack/images", "run", ".", "list", "-tars", "client-bookworm", "nginx")
	if err != nil {
		return err
	}
	_, err = output(ctx, cluster, append([]string{"load"}, strings.Fields(archives)...)...)
	return err
}

// output runs a program and returns what it printed; an error has what it printed on standard error.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()+"\n"+string(out)))
	}
	return string(out), nil
}

// result prints a line with a count or a figure.
func result(t *testing.T, format string, args ...any) {
	t.Helper()
	fmt.Printf("RESULT %s: %s\n", t.Name(), fmt.Sprintf(format, args...))
}

// image is the reference of one of the project's own images.
func image(name string) string { return registry + "qtls-" + name + ":" + version.Version }

// isReady tells whether a pod passes its readiness probes.
func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}
