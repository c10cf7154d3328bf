package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"qtls.dev/qtls/hack/cluster/internal/build"
	"qtls.dev/qtls/hack/cluster/internal/cgroup"
	"qtls.dev/qtls/hack/cluster/internal/controlplane"
	"qtls.dev/qtls/hack/cluster/internal/machine"
	"qtls.dev/qtls/hack/cluster/internal/manifests"
	"qtls.dev/qtls/hack/cluster/internal/netns"
	"qtls.dev/qtls/hack/cluster/internal/node"
	"qtls.dev/qtls/hack/cluster/internal/pki"
	"qtls.dev/qtls/hack/cluster/internal/process"
	"qtls.dev/qtls/hack/cluster/internal/topology"
)

const (
	// readyWithin bounds each wait of a start; all of them together take seconds, on a machine that does nothing else.
	readyWithin = 10 * time.Minute
	pollEvery   = 50 * time.Millisecond
	stateGiB    = 2
)

// errAlreadyUp says that there is nothing to start.
var errAlreadyUp = errors.New("the cluster is already up")

// Up starts a cluster and returns when its nodes and its DNS are ready. A cluster of the same
// parameters that is up is left as it is. With owned, the cluster ends with this process. What a
// failed start has made is removed again, except for the logs.
func (c *Cluster) Up(ctx context.Context, b *build.Builder, p Params, owned bool) error {
	if err := p.Validate(); err != nil {
		return err
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.makeRoom(ctx, p); err != nil {
		if errors.Is(err, errAlreadyUp) && !owned {
			c.Out.Say("The cluster is already up.")
			return nil
		}
		return err
	}
	if err := build.CheckRuntime(p.ProxyMode); err != nil {
		return err
	}
	s, parts, err := c.prepare(ctx, b, p)
	if err != nil {
		return err
	}
	if err := c.start(ctx, s, parts, owned); err != nil {
		c.Out.Say("The start failed; the cluster is taken down again.")
		if downErr := c.teardown(s); downErr != nil {
			err = errors.Join(err, downErr)
		}
		return fmt.Errorf("%w\nThe logs are in %s", err, c.LogDir())
	}
	return nil
}

// makeRoom decides what to do about a cluster that is there already.
func (c *Cluster) makeRoom(ctx context.Context, p Params) error {
	s, err := c.load()
	if errors.Is(err, errNotUp) {
		return nil
	}
	if err != nil {
		return err
	}
	if s.stale() {
		c.Out.Say("Cleaning up what an earlier cluster left behind.")
		return c.teardown(s)
	}
	if s.Owner != nil {
		return fmt.Errorf("a cluster is up that belongs to `qtls-cluster run`, process %d; wait for that to end or end it", s.Owner.PID)
	}
	if dead := s.dead(); len(dead) > 0 {
		return fmt.Errorf("the cluster is up but not whole: %s ended; see the logs in %s, and end it with: qtls-cluster down", strings.Join(dead, ", "), c.LogDir())
	}
	if s.Params != p {
		return fmt.Errorf("a cluster with other parameters is up: %+v, wanted are %+v; end it first with: qtls-cluster down", s.Params, p)
	}
	a, err := c.api(s.Params.Port)
	if err != nil {
		return err
	}
	if err := a.healthy(ctx); err != nil {
		return fmt.Errorf("the cluster is up but its API server does not answer: %w; see the logs in %s, or end it with: qtls-cluster down", err, c.LogDir())
	}
	return fmt.Errorf("%w; use it with: export KUBECONFIG=%s, or end it first with: qtls-cluster down", errAlreadyUp, c.KubeconfigPath())
}

// parts are what was built for a start besides the programs.
type parts struct {
	// archives are the images that every node is given.
	archives []string
	// kwokStages is the content of kwok's configuration; empty without kwok.
	kwokStages string
}

// prepare builds what the cluster needs; nothing of the cluster exists yet.
func (c *Cluster) prepare(ctx context.Context, b *build.Builder, p Params) (*state, *parts, error) {
	if err := build.CheckDisk(c.Dir, stateGiB, "a cluster"); err != nil {
		return nil, nil, err
	}
	bin, err := b.Folder(ctx, "machines", build.ForMachines(p.Kwok)...)
	if err != nil {
		return nil, nil, err
	}
	wanted := []build.ImageName{build.PauseImage, build.CoreDNSImage}
	if p.MetricsServer {
		wanted = append(wanted, build.MetricsServerImage)
	}
	var made parts
	if made.archives, err = b.Images(ctx, wanted...); err != nil {
		return nil, nil, err
	}
	if p.Kwok {
		file, err := b.KwokStages(ctx)
		if err != nil {
			return nil, nil, err
		}
		stages, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		made.kwokStages = string(stages)
	}
	hierarchies, err := cgroup.Own()
	if err != nil {
		return nil, nil, err
	}
	return &state{Params: p, Bin: bin, Hierarchies: hierarchies}, &made, nil
}

// start makes the machines and waits until they are a cluster.
func (c *Cluster) start(ctx context.Context, s *state, made *parts, owned bool) error {
	began := time.Now()
	listener, err := listen(s.Params.Port)
	if err != nil {
		return err
	}
	defer listener.Close()
	nodes, err := topology.Nodes(s.Params.Nodes)
	if err != nil {
		return err
	}
	if err := c.record(s, nodes, owned); err != nil {
		return err
	}
	if err := c.makeFolders(owned); err != nil {
		return err
	}
	admin, err := pki.Write(c.pkiDir(), nodes, fmt.Sprintf("https://127.0.0.1:%d", s.Params.Port), time.Now())
	if err != nil {
		return fmt.Errorf("making certificates: %w", err)
	}
	if err := os.WriteFile(c.KubeconfigPath(), admin, 0o600); err != nil {
		return err
	}
	if err := c.startControlPlane(s, made.kwokStages, listener); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := c.startNode(s, n, nodes); err != nil {
			return err
		}
	}
	if err := c.settle(ctx, s, nodes, made.archives); err != nil {
		return err
	}
	s.Ready = true
	if err := c.save(s); err != nil {
		return err
	}
	c.Out.Say("The cluster is up after %.1f s. Use it with:\n  export KUBECONFIG=%s", time.Since(began).Seconds(), c.KubeconfigPath())
	return nil
}

// settle waits for the API server, gives the cluster its objects and images, and waits for all.
func (c *Cluster) settle(ctx context.Context, s *state, nodes []topology.Node, archives []string) error {
	a, err := c.api(s.Params.Port)
	if err != nil {
		return err
	}
	tasks := []func() error{func() error {
		if err := c.Out.Step("API server", func() error { return until(ctx, readyWithin, pollEvery, a.healthy) }); err != nil {
			return fmt.Errorf("the API server does not answer: %w", err)
		}
		return c.applyManifests(ctx, s)
	}}
	for _, n := range nodes {
		tasks = append(tasks, func() error {
			return c.Out.Step("node "+n.Name(), func() error {
				if err := c.importImages(ctx, s, s.machine(n.Name()), archives); err != nil {
					return err
				}
				return until(ctx, readyWithin, pollEvery, func(ctx context.Context) error { return a.nodeReady(ctx, n.Name()) })
			})
		})
	}
	if err := all(tasks); err != nil {
		return err
	}
	return c.Out.Step("DNS", func() error {
		return until(ctx, readyWithin, pollEvery, func(ctx context.Context) error {
			return a.deploymentAvailable(ctx, "kube-system", "coredns")
		})
	})
}

func (c *Cluster) applyManifests(ctx context.Context, s *state) error {
	objects, err := manifests.Base(build.CoreDNSImage.Reference())
	if err != nil {
		return err
	}
	if s.Params.MetricsServer {
		more, err := manifests.MetricsServer(build.MetricsServerImage.Reference())
		if err != nil {
			return err
		}
		objects = append(append(objects, "---\n"...), more...)
	}
	// Just after its start the API server still makes what an apply needs, such as the namespace.
	return until(ctx, readyWithin, pollEvery, func(ctx context.Context) error {
		_, err := c.kubectl(ctx, s, objects, "apply", "--server-side", "--force-conflicts", "--validate=false", "--filename=-")
		return err
	})
}

// record writes down everything that start is going to make.
func (c *Cluster) record(s *state, nodes []topology.Node, owned bool) error {
	s.Machines = []machineState{{Name: topology.ControlPlane}}
	for _, n := range nodes {
		s.Machines = append(s.Machines, machineState{Name: n.Name()})
	}
	if owned {
		id, err := process.Find(os.Getpid())
		if err != nil {
			return err
		}
		s.Owner = &id
	}
	return c.save(s)
}

func (c *Cluster) makeFolders(owned bool) error {
	if err := os.RemoveAll(c.LogDir()); err != nil { // those of the cluster before
		return err
	}
	for dir, mode := range map[string]fs.FileMode{c.LogDir(): 0o755, c.pkiDir(): 0o700, c.machinesDir(): 0o755, c.sharedDir(): 0o777} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return err
		}
		if err := os.Chmod(dir, mode); err != nil { // beyond the umask
			return err
		}
	}
	if !owned {
		return nil
	}
	if err := unix.Mkfifo(c.lifeline(), 0o600); err != nil {
		return fmt.Errorf("making %s: %w", c.lifeline(), err)
	}
	// Open for as long as this process lives, whatever ends it. Reading as well as writing opens at
	// once; nothing is ever written.
	_, err := unix.Open(c.lifeline(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	return err
}

func listen(port int) (*os.File, error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %d of 127.0.0.1 is taken by another program; end it, or choose another with --port", port)
	}
	if err != nil {
		return nil, fmt.Errorf("listening for the API: %w", err)
	}
	defer l.Close()
	return l.File()
}

func (c *Cluster) startControlPlane(s *state, kwokStages string, listener *os.File) error {
	host := c.host(s.Bin, topology.ControlPlane)
	spec := controlplane.Spec(host, s.Hierarchies, s.cgroupName(topology.ControlPlane), controlplane.Options{KwokStages: kwokStages, Lifeline: s.Owner != nil})
	return c.startMachine(s, host, spec, listener, netns.WireControlPlane)
}

func (c *Cluster) startNode(s *state, n topology.Node, nodes []topology.Node) error {
	host := c.host(s.Bin, n.Name())
	snapshotter, err := snapshotterFor(c.Dir)
	if err != nil {
		return err
	}
	spec, err := node.Spec(n, host, s.Hierarchies, s.cgroupName(n.Name()), node.Options{
		StaticCPUs:  s.Params.StaticCPUs,
		ProxyMode:   s.Params.ProxyMode,
		Snapshotter: snapshotter,
		PauseImage:  build.PauseImage.Reference(),
		Lifeline:    s.Owner != nil,
	})
	if err != nil {
		return err
	}
	return c.startMachine(s, host, spec, nil, func(pid int) error {
		return netns.WireNode(s.controlPlane().Process.PID, pid, n, nodes)
	})
}

// startMachine makes a machine, records it, wires its network and lets it boot.
func (c *Cluster) startMachine(s *state, host machine.Host, spec machine.Spec, listener *os.File, wire func(pid int) error) error {
	if err := machine.Prepare(host, spec); err != nil {
		return fmt.Errorf("preparing %s: %w", spec.Name, err)
	}
	if err := cgroup.Create(s.Hierarchies, spec.Cgroup); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(c.LogDir(), spec.Name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	var lifeline *os.File
	if spec.Lifeline {
		if lifeline, err = os.OpenFile(c.lifeline(), os.O_RDONLY, 0); err != nil {
			return err
		}
		defer lifeline.Close()
	}
	starting, err := machine.Start(host, log, listener, lifeline)
	if err != nil {
		return err
	}
	m := s.machine(spec.Name)
	m.Process, m.Off = &starting.ID, false
	if err := c.save(s); err != nil {
		return err
	}
	if err := wire(starting.ID.PID); err != nil {
		return fmt.Errorf("wiring %s: %w", spec.Name, err)
	}
	return starting.Go()
}

// snapshotterFor chooses how containerd keeps layers below dir: an overlay cannot be laid on an
// overlay, which is what a container's own file system often is.
func snapshotterFor(dir string) (string, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", err
	}
	if fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native", nil
	}
	return "overlayfs", nil
}

// all runs the tasks at once and returns their errors.
func all(tasks []func() error) error {
	errs := make([]error, len(tasks))
	var wg sync.WaitGroup
	for i, t := range tasks {
		wg.Go(func() { errs[i] = t() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
