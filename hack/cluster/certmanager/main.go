// Command cert-manager runs one of cert-manager's programs, put together from its own library
// packages: `cert-manager controller|webhook|cainjector [flags]`.
//
// Left out are the issuers that need the internet (ACME, Vault, Venafi), the ingress shim and the
// controllers of CertificateSigningRequests: the cluster has no use for them, and they bring three
// cloud SDKs with them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	logf "github.com/cert-manager/cert-manager/pkg/logs"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctrl.SetLogger(klog.Background())
	if err := run(logf.NewContext(ctx, klog.Background()), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cert-manager:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	components := map[string]func(context.Context, []string) error{
		"controller": runController,
		"webhook":    runWebhook,
		"cainjector": runCAInjector,
	}
	if len(args) == 0 || components[args[0]] == nil {
		return fmt.Errorf("usage: cert-manager controller|webhook|cainjector [flags]")
	}
	return components[args[0]](ctx, args[1:])
}

// newFlags are the flags of a component that has none of its own in the library: those of klog.
func newFlags(component string) *pflag.FlagSet {
	logging := flag.NewFlagSet(component, flag.ContinueOnError)
	klog.InitFlags(logging)
	flags := pflag.NewFlagSet(component, pflag.ContinueOnError)
	flags.AddGoFlagSet(logging)
	return flags
}
