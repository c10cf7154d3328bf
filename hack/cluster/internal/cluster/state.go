// Package cluster starts, changes and ends a cluster. What it makes on the host is recorded before
// it is made, so that an interrupted start can be cleaned up as well as a finished one.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"qtls.dev/qtls/hack/cluster/internal/cache"
	"qtls.dev/qtls/hack/cluster/internal/cgroup"
	"qtls.dev/qtls/hack/cluster/internal/machine"
	"qtls.dev/qtls/hack/cluster/internal/process"
	"qtls.dev/qtls/hack/cluster/internal/progress"
	"qtls.dev/qtls/hack/cluster/internal/topology"
)

// A Cluster is the one cluster of this host; it need not be up.
type Cluster struct {
	// Dir is the folder of its state.
	Dir string
	Out *progress.Reporter
}

// DefaultDir is the folder of the cluster's state: $QTLS_CLUSTER_STATE, else /var/lib/qtls-cluster.
// It does not depend on the user, because there is one cluster a host.
func DefaultDir() (string, error) {
	if d := os.Getenv("QTLS_CLUSTER_STATE"); d != "" {
		return filepath.Abs(d)
	}
	return "/var/lib/qtls-cluster", nil
}

// Params are what a user chooses at a cluster's start.
type Params struct {
	Nodes         int    `json:"nodes"`
	MetricsServer bool   `json:"metricsServer"`
	Kwok          bool   `json:"kwok"`
	StaticCPUs    bool   `json:"staticCPUs"`
	ProxyMode     string `json:"proxyMode"`
	// Port is where the API is reached on the host's loopback.
	Port int `json:"port"`
}

// DefaultParams are those of an `up` without flags.
func DefaultParams() Params { return Params{Nodes: 1, ProxyMode: "nftables", Port: 16443} }

// Validate says what is wrong with the parameters.
func (p Params) Validate() error {
	if _, err := topology.Nodes(p.Nodes); err != nil {
		return fmt.Errorf("--nodes: %w", err)
	}
	if modes := []string{"nftables", "iptables"}; !slices.Contains(modes, p.ProxyMode) {
		return fmt.Errorf("--proxy-mode is %q; accepted are %s", p.ProxyMode, strings.Join(modes, " and "))
	}
	if p.Port < 1 || p.Port > 65535 {
		return fmt.Errorf("--port is %d; accepted are 1 to 65535", p.Port)
	}
	return nil
}

// A state is the record of a cluster that is up, or half up.
type state struct {
	Params Params `json:"params"`
	// Bin is the folder of programs that the machines run.
	Bin string `json:"bin"`
	// Hierarchies are where the machines' cgroups are.
	Hierarchies []cgroup.Hierarchy `json:"hierarchies"`
	// Machines are the control plane first, then the nodes.
	Machines []machineState `json:"machines"`
	// Owner is the process of a `run`: the cluster ends with it.
	Owner *process.ID `json:"owner,omitempty"`
	// Ready says that the start was finished.
	Ready bool `json:"ready"`
}

type machineState struct {
	Name string `json:"name"`
	// Process is the machine's PID 1; nil before it is started and after it was killed on purpose.
	Process *process.ID `json:"process,omitempty"`
	// Off says that the machine was killed on purpose.
	Off bool `json:"off,omitempty"`
}

// Errors that callers tell apart.
var errNotUp = errors.New("no cluster is up; start one with: qtls-cluster up")

func (c *Cluster) stateFile() string   { return filepath.Join(c.Dir, "state.json") }
func (c *Cluster) pkiDir() string      { return filepath.Join(c.Dir, "pki") }
func (c *Cluster) machinesDir() string { return filepath.Join(c.Dir, "machines") }
func (c *Cluster) sharedDir() string   { return filepath.Join(c.Dir, "hostpath") }
func (c *Cluster) lifeline() string    { return filepath.Join(c.Dir, "lifeline") }

// LogDir is the folder of logs, which stays after the cluster's end until the next start.
func (c *Cluster) LogDir() string { return filepath.Join(c.Dir, "logs") }

// KubeconfigPath is the administrator's kubeconfig for programs on the host.
func (c *Cluster) KubeconfigPath() string { return filepath.Join(c.Dir, "kubeconfig") }

func (c *Cluster) host(bin, name string) machine.Host {
	return machine.Host{
		Dir:    filepath.Join(c.machinesDir(), name),
		Bin:    bin,
		PKI:    c.pkiDir(),
		Log:    c.LogDir(),
		Shared: c.sharedDir(),
	}
}

// load returns the recorded state, or errNotUp.
func (c *Cluster) load() (*state, error) {
	b, err := os.ReadFile(c.stateFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, errNotUp
	}
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w; end what runs, remove the folder %s and try again", c.stateFile(), err, c.Dir)
	}
	return &s, nil
}

// loadUp returns the state of a cluster that runs.
func (c *Cluster) loadUp() (*state, error) {
	s, err := c.load()
	if err != nil {
		return nil, err
	}
	if dead := s.dead(); len(dead) > 0 || !s.Ready {
		return nil, fmt.Errorf("the cluster is not whole (ended: %s); clean up with: qtls-cluster down", orNone(dead))
	}
	return s, nil
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none, but its start was not finished"
	}
	return strings.Join(names, ", ")
}

// save replaces the record as a whole.
func (c *Cluster) save(s *state) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	tmp := c.stateFile() + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, c.stateFile())
}

// lock keeps other commands that change the cluster away until unlock.
func (c *Cluster) lock(ctx context.Context) (unlock func(), err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("this needs root: namespaces, cgroups and mounts are made; run it with sudo")
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("the state folder: %w; set QTLS_CLUSTER_STATE to one that can be made", err)
	}
	return cache.Lock(ctx, filepath.Join(c.Dir, "lock"), func() {
		c.Out.Say("waiting for another qtls-cluster command to finish")
	})
}

// dead are the machines that should run and do not.
func (s *state) dead() []string {
	var names []string
	for _, m := range s.Machines {
		if !m.Off && (m.Process == nil || !m.Process.Alive()) {
			names = append(names, m.Name)
		}
	}
	return names
}

// stale says whether nothing of value is left of the cluster.
func (s *state) stale() bool {
	return !s.Ready || s.Owner != nil && !s.Owner.Alive() || slices.Contains(s.dead(), topology.ControlPlane)
}

func (s *state) machine(name string) *machineState {
	for i := range s.Machines {
		if s.Machines[i].Name == name {
			return &s.Machines[i]
		}
	}
	return nil
}

func (s *state) controlPlane() *machineState { return s.machine(topology.ControlPlane) }

// node finds a node of the cluster by its name.
func (s *state) node(name string) (topology.Node, *machineState, error) {
	nodes, err := topology.Nodes(s.Params.Nodes)
	if err != nil {
		return topology.Node{}, nil, err
	}
	var names []string
	for _, n := range nodes {
		if n.Name() == name {
			return n, s.machine(name), nil
		}
		names = append(names, n.Name())
	}
	return topology.Node{}, nil, fmt.Errorf("no node is called %q; the nodes are: %s", name, strings.Join(names, ", "))
}

// cgroupName is the name of a machine's cgroup. No two clusters of a host have the same port.
func (s *state) cgroupName(machine string) string {
	return fmt.Sprintf("qtls-cluster-%d-%s", s.Params.Port, machine)
}
