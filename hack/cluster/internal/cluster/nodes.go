package cluster

import (
	"context"
	"fmt"

	"qtls.dev/qtls/hack/cluster/internal/cgroup"
	"qtls.dev/qtls/hack/cluster/internal/netns"
	"qtls.dev/qtls/hack/cluster/internal/topology"
)

// KillNode ends a node as a power cut does: nothing in it is told.
func (c *Cluster) KillNode(ctx context.Context, name string) error {
	return c.change(ctx, name, func(s *state, n topology.Node, m *machineState) error {
		if m.Off {
			return fmt.Errorf("node %s is off already; boot it with: qtls-cluster node boot %s", name, name)
		}
		if err := m.Process.Kill(patience); err != nil {
			return err
		}
		m.Process, m.Off = nil, true
		if err := c.save(s); err != nil {
			return err
		}
		return cgroup.RemoveChildren(cgroup.Paths(s.Hierarchies, s.cgroupName(name)), patience)
	})
}

// BootNode starts a node that was killed. Its disk is as it was.
func (c *Cluster) BootNode(ctx context.Context, name string) error {
	return c.change(ctx, name, func(s *state, n topology.Node, m *machineState) error {
		if !m.Off {
			return fmt.Errorf("node %s is on already; kill it with: qtls-cluster node kill %s", name, name)
		}
		nodes, err := topology.Nodes(s.Params.Nodes)
		if err != nil {
			return err
		}
		return c.startNode(s, n, nodes)
	})
}

// CutNode unplugs a node's network; all that runs in it goes on.
func (c *Cluster) CutNode(ctx context.Context, name string) error {
	return c.setCable(ctx, name, false)
}

// HealNode plugs a node's network in again.
func (c *Cluster) HealNode(ctx context.Context, name string) error {
	return c.setCable(ctx, name, true)
}

func (c *Cluster) setCable(ctx context.Context, name string, connected bool) error {
	return c.change(ctx, name, func(s *state, n topology.Node, m *machineState) error {
		if m.Off {
			return fmt.Errorf("node %s is off and has no network; boot it with: qtls-cluster node boot %s", name, name)
		}
		return netns.SetCable(s.controlPlane().Process.PID, n, connected)
	})
}

// change does something to a node of a running cluster while no other command changes it.
func (c *Cluster) change(ctx context.Context, name string, do func(*state, topology.Node, *machineState) error) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := c.loadUp()
	if err != nil {
		return err
	}
	n, m, err := s.node(name)
	if err != nil {
		return err
	}
	return do(s, n, m)
}
