package main

import (
	"context"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	"github.com/cert-manager/cert-manager/pkg/util"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func runCAInjector(ctx context.Context, args []string) error {
	flags := newFlags("cainjector")
	leases := flags.String("leader-election-namespace", "kube-system", "namespace of the leader's Lease")
	metricsAddress := flags.String("metrics-listen-address", "0.0.0.0:9402", "address of the metrics; 0 means none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, certmanager.AddToScheme, apiextensions.AddToScheme, apiregistration.AddToScheme} {
		if err := add(types); err != nil {
			return err
		}
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	// Server-side apply takes the field manager from the user agent and fails without one.
	manager, err := ctrl.NewManager(util.RestConfigWithUserAgent(config, "cainjector"), ctrl.Options{
		Scheme:                        types,
		Metrics:                       metrics.Options{BindAddress: *metricsAddress},
		LeaderElection:                true,
		LeaderElectionID:              "cert-manager-cainjector-leader-election",
		LeaderElectionNamespace:       *leases,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	err = cainjector.RegisterAllInjectors(ctx, manager, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor: map[string]bool{
			cainjector.MutatingWebhookConfigurationName:   true,
			cainjector.ValidatingWebhookConfigurationName: true,
			cainjector.APIServiceName:                     true,
			cainjector.CustomResourceDefinitionName:       true,
		},
	})
	if err != nil {
		return err
	}
	return manager.Start(ctx)
}
