// Package cli is the command line of qtls-cluster.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"qtls.dev/qtls/hack/cluster/internal/build"
	"qtls.dev/qtls/hack/cluster/internal/cache"
	"qtls.dev/qtls/hack/cluster/internal/cluster"
	"qtls.dev/qtls/hack/cluster/internal/machine"
	"qtls.dev/qtls/hack/cluster/internal/progress"
)

// Main runs a command line and returns the exit code.
func Main(args []string) int {
	if len(args) > 0 && args[0] == machine.Internal {
		if err := machine.Main(args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "qtls-cluster:", err)
			return 1
		}
		return 0
	}
	root := newRoot()
	root.SetArgs(args)
	if err := root.Execute(); err != nil {
		var code exitCode
		if errors.As(err, &code) {
			return int(code)
		}
		fmt.Fprintln(os.Stderr, "qtls-cluster:", err)
		return 1
	}
	return 0
}

// An exitCode is a code that a command of the user's ended with: not an error to tell of.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "qtls-cluster",
		Short:         "Build and run a real Kubernetes cluster on this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{
			DisableDefaultCmd: true,
		},
	}
	root.AddCommand(upCommand(), downCommand(), statusCommand(), nodeCommand(), loadCommand(), runCommand(),
		execCommand(), certManagerCommand(), kubeconfigCommand(), buildCommand(), binCommand(), assetsCommand())
	return root
}

func upCommand() *cobra.Command {
	p := cluster.DefaultParams()
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the cluster and wait until it is ready",
		Args:  cobra.NoArgs,
		RunE: withCluster(func(ctx context.Context, c *cluster.Cluster, b *build.Builder, _ []string) error {
			return c.Up(ctx, b, p, false)
		}),
	}
	addParams(cmd, &p)
	return cmd
}

func downCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End the cluster and remove all that it made but the logs",
		Args:  cobra.NoArgs,
		RunE: withCluster(func(ctx context.Context, c *cluster.Cluster, _ *build.Builder, _ []string) error {
			return c.Down(ctx)
		}),
	}
}

func statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the machines; the exit code says whether the cluster is up and well",
		Args:  cobra.NoArgs,
		RunE: withCluster(func(ctx context.Context, c *cluster.Cluster, _ *build.Builder, _ []string) error {
			return c.Status(ctx, os.Stdout)
		}),
	}
}

func nodeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Break a node, or mend it"}
	for _, sub := range []struct {
		use, short string
		do         func(*cluster.Cluster, context.Context, string) error
	}{
		{"kill", "Cut the node's power", (*cluster.Cluster).KillNode},
		{"boot", "Switch a killed node on again", (*cluster.Cluster).BootNode},
		{"cut", "Unplug the node's network", (*cluster.Cluster).CutNode},
		{"heal", "Plug the node's network in again", (*cluster.Cluster).HealNode},
	} {
		cmd.AddCommand(&cobra.Command{
			Use:   sub.use + " NAME",
			Short: sub.short,
			Args:  cobra.ExactArgs(1),
			RunE: withCluster(func(ctx context.Context, c *cluster.Cluster, _ *build.Builder, args []string) error {
				return sub.do(c, ctx, args[0])
			}),
		})
	}
	return cmd
}

func loadCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "load IMAGE.tar...",
		Short: "Give image archives to every node",
		Args:  cobra.MinimumNArgs(1),
		RunE: withCluster(func(ctx context.Context, c *cluster.Cluster, _ *build.Builder, args []string) error {
			return c.Load(ctx, args)
		}),
	}
}

func runCommand() *cobra.Command {
	p := cluster.DefaultParams()
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT...]",
		Short: "Start a cluster, run a command with KUBECONFIG set, and take the cluster down",
		Long: `Start a cluster, run a command with KUBECONFIG set, and take the cluster down, whatever happens
in between. The exit code is the command's.`,
		Args: afterDashes,
		RunE: func(_ *cobra.Command, args []string) error {
			c, b, err := open()
			if err != nil {
				return err
			}
			code, err := c.Run(b, p, args)
			if err != nil {
				fmt.Fprintln(os.Stderr, "qtls-cluster:", err)
			}
			if code != 0 {
				return exitCode(code)
			}
			return nil
		},
	}
	addParams(cmd, &p)
	return cmd
}

func execCommand() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "exec [--node NAME] -- COMMAND [ARGUMENT...]",
		Short: "Run a command of the host in the cluster's network",
		Long: `Run a command of the host in the network of the control plane, from where the addresses of nodes
and pods are reached, or with --node in that of a node, where Services and their names work too.`,
		Args: afterDashes,
		RunE: withCluster(func(_ context.Context, c *cluster.Cluster, _ *build.Builder, args []string) error {
			return c.Exec(node, args)
		}),
	}
	cmd.Flags().StringVar(&node, "node", "", "the node whose network is used")
	return cmd
}

func certManagerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cert-manager",
		Short: "Install cert-manager from its own chart and wait until its webhook answers",
		Args:  cobra.NoArgs,
		RunE: withCluster(func(ctx context.Context, c *cluster.Cluster, b *build.Builder, _ []string) error {
			return c.InstallCertManager(ctx, b)
		}),
	}
}

func kubeconfigCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the kubeconfig",
		Args:  cobra.NoArgs,
		RunE: withCluster(func(_ context.Context, c *cluster.Cluster, _ *build.Builder, _ []string) error {
			fmt.Println(c.KubeconfigPath())
			return nil
		}),
	}
}

func buildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build all programs and images into the cache",
		Args:  cobra.NoArgs,
		RunE: withCluster(func(ctx context.Context, _ *cluster.Cluster, b *build.Builder, _ []string) error {
			return b.All(ctx)
		}),
	}
}

func binCommand() *cobra.Command {
	return folderCommand("bin", "Print a folder with kubectl and helm, for PATH", build.ForUsers())
}

func assetsCommand() *cobra.Command {
	return folderCommand("assets", "Print a folder with kube-apiserver, etcd and kubectl, for KUBEBUILDER_ASSETS", build.ForEnvtest())
}

func folderCommand(name, short string, programs []build.Program) *cobra.Command {
	return &cobra.Command{
		Use:   name,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: withCluster(func(ctx context.Context, _ *cluster.Cluster, b *build.Builder, _ []string) error {
			dir, err := b.Folder(ctx, name, programs...)
			if err != nil {
				return err
			}
			fmt.Println(dir)
			return nil
		}),
	}
}

func addParams(cmd *cobra.Command, p *cluster.Params) {
	f := cmd.Flags()
	f.IntVar(&p.Nodes, "nodes", p.Nodes, "number of nodes, 1 to 3")
	f.BoolVar(&p.MetricsServer, "metrics-server", p.MetricsServer, "run metrics-server (kubectl top, autoscaling)")
	f.BoolVar(&p.Kwok, "kwok", p.Kwok, "run kwok, which plays nodes with the annotation kwok.x-k8s.io/node=fake")
	f.BoolVar(&p.StaticCPUs, "static-cpus", p.StaticCPUs, "give Guaranteed pods that ask for whole CPUs those CPUs alone")
	f.StringVar(&p.ProxyMode, "proxy-mode", p.ProxyMode, "how kube-proxy works: nftables or iptables")
	f.IntVar(&p.Port, "port", p.Port, "port of 127.0.0.1 where the API is reached")
}

// afterDashes accepts a command after "--" and nothing before it.
func afterDashes(cmd *cobra.Command, args []string) error {
	switch at := cmd.ArgsLenAtDash(); {
	case at > 0:
		return fmt.Errorf("unknown argument %q before --", args[0])
	case at < 0 && len(args) > 0:
		return fmt.Errorf("put -- before the command %q: %s", args[0], cmd.UseLine())
	case len(args) == 0:
		return fmt.Errorf("say which command to run: %s", cmd.UseLine())
	}
	return nil
}

// open makes the cluster and the builder of this host.
func open() (*cluster.Cluster, *build.Builder, error) {
	out := progress.New(os.Stderr)
	dir, err := cluster.DefaultDir()
	if err != nil {
		return nil, nil, err
	}
	root, err := cache.Default()
	if err != nil {
		return nil, nil, err
	}
	sources, err := build.FindSources()
	if err != nil {
		return nil, nil, err
	}
	store := cache.Store{Root: filepath.Clean(root), Waiting: func(what string) { out.Say("waiting: %s", what) }}
	return &cluster.Cluster{Dir: dir, Out: out}, &build.Builder{Cache: store, Sources: sources, Out: out}, nil
}

// withCluster runs a command until it ends or a signal asks it to.
func withCluster(do func(context.Context, *cluster.Cluster, *build.Builder, []string) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		c, b, err := open()
		if err != nil {
			return err
		}
		return do(ctx, c, b, args)
	}
}
