package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	// Each of these registers itself with controller.Known.
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/metrics"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

// The defaults of cert-manager's own controller command.
const (
	concurrentWorkers = 5
	minimumBackoff    = time.Hour
	maximumBackoff    = 32 * time.Hour
	leaseDuration     = 60 * time.Second
	renewDeadline     = 40 * time.Second
	retryPeriod       = 5 * time.Second
	requestTimeout    = 20 * time.Second
)

func runController(ctx context.Context, args []string) error {
	flags := newFlags("controller")
	resources := flags.String("cluster-resource-namespace", "kube-system", "namespace of the Secrets of ClusterIssuers")
	leases := flags.String("leader-election-namespace", "kube-system", "namespace of the leader's Lease")
	healthz := flags.String("internal-healthz-listen-address", "0.0.0.0:9403", "address of the liveness probe")
	flags.String("acme-http01-solver-image", "", "accepted, because the chart gives it; there is no ACME issuer")
	flags.Int("max-concurrent-challenges", 0, "accepted, because the chart gives it; there is no ACME issuer")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	identity, err := os.Hostname()
	if err != nil {
		return err
	}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, *leases, "cert-manager-controller", resourcelock.ResourceLockConfig{Identity: identity}, config, requestTimeout)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serveLiveness(ctx, *healthz) })
	group.Go(func() error {
		return lead(ctx, lock, func(ctx context.Context) error { return runControllers(ctx, *resources) })
	})
	return group.Wait()
}

// lead runs do while this process holds the lock. Losing it is an error, after which the pod starts
// again as a candidate.
func lead(ctx context.Context, lock resourcelock.Interface, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		ReleaseOnCancel: true,
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { cancel(do(ctx)) },
			OnStoppedLeading: func() { cancel(errors.New("the leader's lease was lost")) },
		},
	})
	if err != nil {
		return err
	}
	elector.Run(ctx)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// runControllers runs every registered controller until ctx ends or one of them fails.
func runControllers(ctx context.Context, clusterResources string) error {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		KubernetesAPIQPS:   20,
		KubernetesAPIBurst: 50,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: clusterResources},
		CertificateOptions: controller.CertificateOptions{
			CopiedAnnotationPrefixes:                 []string{"*", "-kubectl.kubernetes.io/", "-fluxcd.io/", "-argocd.argoproj.io/"},
			CertificateRequestMinimumBackoffDuration: minimumBackoff,
			CertificateRequestMaximumBackoffDuration: maximumBackoff,
		},
	})
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	// All of them are built first: building registers the informers that are started then.
	controllers := map[string]controller.Interface{}
	for name, build := range controller.Known() {
		if controllers[name], err = build(factory); err != nil {
			return fmt.Errorf("controller %s: %w", name, err)
		}
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	group, ctx := errgroup.WithContext(ctx)
	for name, c := range controllers {
		group.Go(func() error {
			if err := c.Run(concurrentWorkers, ctx); err != nil {
				return fmt.Errorf("controller %s: %w", name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// serveLiveness answers the chart's liveness probe.
func serveLiveness(ctx context.Context, address string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
