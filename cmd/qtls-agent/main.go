// Command qtls-agent runs in every gateway pod: it keeps HAProxy at what the
// operator publishes, and tells the operator what HAProxy serves.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/agent"
	"qtls.dev/qtls/internal/cgroup"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/mtls"
	"qtls.dev/qtls/internal/version"
)

const usage = `Usage: qtls-agent COMMAND

Commands:
  run      keep HAProxy running what the operator publishes
  haproxy  become HAProxy, after the agent may see what the container uses
  drain    have HAProxy end when its connections have; the container's preStop hook
  version  print the version

qtls-agent COMMAND -h tells the flags of a command.
`

// Exit codes: 0 done, 1 failed, 2 called in a wrong way.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	name := ""
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	var err error
	switch name {
	case "run":
		err = run(ctx, args, stderr, log)
	case "haproxy":
		err = become(args, stderr, log)
	case "drain":
		err = drain(ctx, args, stderr, log)
	case "version":
		fmt.Fprintln(stdout, version.Version)
	case "-h", "--help", "help":
		fmt.Fprint(stdout, usage)
	default:
		if name != "" {
			fmt.Fprintf(stderr, "qtls-agent: there is no command %q\n\n", name)
		}
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return exitUsage
	}
	log.Error("ends", "command", name, "error", err)
	return exitFailed
}

// errUsage says that the flags were wrong; what was wrong is printed already.
var errUsage = errors.New("usage")

func parse(flags *flag.FlagSet, args []string, stderr io.Writer, valid func() error) error {
	flags.SetOutput(stderr)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	err := valid()
	if flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", flags.Name(), err)
		flags.Usage()
		return errUsage
	}
	return nil
}

// become HAProxy. What the container uses is for benchmarks to see: HAProxy starts
// where the agent may not see it, too.
func become(args []string, stderr io.Writer, log *slog.Logger) error {
	flags := flag.NewFlagSet("qtls-agent haproxy", flag.ContinueOnError)
	if err := parse(flags, args, stderr, func() error { return nil }); err != nil {
		return err
	}
	if err := agent.LendControlGroup(haproxy.LoanSocket, cgroup.Dir); err != nil {
		log.Warn("the agent does not see what this container uses", "error", err)
	}
	if err := agent.Stay(haproxy.RunDir); err != nil {
		return err
	}
	if err := limitDescriptors(os.Getenv(haproxy.MemoryEnvironment)); err != nil {
		log.Warn("HAProxy accepts connections without regard to the container's memory", "error", err)
	}
	command := haproxy.Command()
	variables := append(os.Environ(), environment(cgroup.Dir, log)...)
	return fmt.Errorf("%s: %w", command[0], syscall.Exec(command[0], command, variables))
}

// environment is what HAProxy's configuration takes from its environment: what it
// may use of the container whose control group a folder shows, and of the node.
func environment(controlGroup string, log *slog.Logger) (variables []string) {
	var descriptors syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &descriptors); err != nil {
		log.Warn("clients that send nothing may keep others from HAProxy", "error", err)
	} else {
		variables = haproxy.SelectionEnvironment(descriptors.Cur)
	}
	cpus, err := cgroup.CPUs(controlGroup)
	if err != nil {
		log.Warn("HAProxy starts threads without regard to the container's CPU quota", "error", err)
	}
	if cpus > 0 {
		variables = append(variables, fmt.Sprintf("%s=%d", haproxy.ThreadsEnvironment, min(cpus, haproxy.MostThreads)))
	}
	if !ipv6() {
		log.Info("the node has no IPv6: HAProxy listens on addresses of IPv4")
		variables = append(variables, haproxy.AddressEnvironment+"=0.0.0.0")
	}
	return variables
}

// ipv6 says whether there are sockets of IPv6. There are none where the kernel was
// started with ipv6.disable=1. With addresses of IPv4 alone, or with the sysctl
// disable_ipv6, :: takes IPv4.
func ipv6() bool {
	socket, err := syscall.Socket(syscall.AF_INET6, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		_ = syscall.Close(socket)
	}
	return !errors.Is(err, syscall.EAFNOSUPPORT)
}

// limitDescriptors of this process, and so of HAProxy, to what the container has
// memory for, in bytes. Without a word of that they stay as they are.
func limitDescriptors(memory string) error {
	if memory == "" {
		return nil
	}
	bytes, err := strconv.ParseInt(memory, 10, 64)
	if err != nil {
		return fmt.Errorf("%s: %w", haproxy.MemoryEnvironment, err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("file descriptors: %w", err)
	}
	limit.Max = min(limit.Max, haproxy.Descriptors(bytes))
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("%d file descriptors: %w", limit.Max, err)
	}
	return nil
}

func run(ctx context.Context, args []string, stderr io.Writer, log *slog.Logger) error {
	var o agent.Options
	flags := flag.NewFlagSet("qtls-agent run", flag.ContinueOnError)
	flags.StringVar(&o.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of the gateway; default: the environment's POD_NAMESPACE")
	flags.StringVar(&o.Gateway, "gateway", "", "name of the gateway")
	flags.StringVar(&o.Pod, "pod", os.Getenv("POD_NAME"), "name of this pod; default: the environment's POD_NAME")
	flags.StringVar(&o.HAProxy, "haproxy", haproxy.Command()[0], "the HAProxy that checks configurations")
	agentTLS := flags.String("agent-tls", mtls.AgentDir, "folder of the certificate, key and authorities for the status")
	err := parse(flags, args, stderr, func() error {
		for name, value := range map[string]string{"namespace": o.Namespace, "gateway": o.Gateway, "pod": o.Pod} {
			if value == "" {
				return fmt.Errorf("--%s is needed", name)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if o.Libraries, err = dataplane.ParseLibraries(os.Getenv(dataplane.LibrariesEnvironment)); err != nil {
		return err
	}
	// The heap is small and lives long: collecting it more often costs next to
	// no time and keeps the process small.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	klog.SetSlogLogger(log) // client-go's
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	config.UserAgent = "qtls-agent/" + version.Version
	if o.Objects, err = agent.NewKubernetesObjects(config, o.Namespace); err != nil {
		return err
	}
	o.RunDir = haproxy.RunDir
	o.Log = log
	o.Metrics = agent.NewMetrics()

	status, err := net.Listen("tcp", ":"+strconv.Itoa(mtls.StatusPort))
	if err != nil {
		return err
	}
	health, err := net.Listen("tcp", ":"+strconv.Itoa(mtls.HealthPort))
	if err != nil {
		return err
	}
	log.Info("starts", "version", version.Version, "namespace", o.Namespace, "gateway", o.Gateway, "pod", o.Pod)
	a := agent.New(o)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		defer cancel()
		served <- a.Serve(ctx, status, health, *agentTLS)
	}()
	err = a.Run(ctx)
	cancel()
	return errors.Join(err, <-served)
}

func drain(ctx context.Context, args []string, stderr io.Writer, log *slog.Logger) error {
	flags := flag.NewFlagSet("qtls-agent drain", flag.ContinueOnError)
	delay := flags.Duration("delay", time.Duration(v1alpha1.DefaultDrainDelaySeconds)*time.Second, "how long connections are still accepted")
	err := parse(flags, args, stderr, func() error {
		if *delay < 0 {
			return fmt.Errorf("--delay %s: not below 0s", *delay)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return agent.Drain(ctx, *delay, haproxy.RunDir, 1, log)
}
