package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"qtls.dev/qtls/hack/cluster/internal/cgroup"
)

// patience bounds the wait for one thing to go at the cluster's end. Tests shorten it.
var patience = time.Minute

// Down ends the cluster and removes all that it made on the host but the logs. It is no error when
// there is none, or only the remains of one.
func (c *Cluster) Down(ctx context.Context) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := c.load()
	if errors.Is(err, errNotUp) {
		c.Out.Say("No cluster is up.")
		return nil
	}
	if err != nil {
		return err
	}
	return c.teardown(s)
}

// An action is one step of the teardown.
type action struct {
	what string
	do   func() error
}

// teardown removes everything that the record names. Every step is tried even when one fails; the
// record stays until all have succeeded, so that the next attempt knows of the rest.
func (c *Cluster) teardown(s *state) error {
	return c.Out.Step("taking the cluster down", func() error {
		var errs []error
		for _, a := range c.teardownPlan(s) {
			if err := a.do(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", a.what, err))
			}
		}
		if len(errs) > 0 {
			return fmt.Errorf("%w\nRepeat it with: qtls-cluster down", errors.Join(errs...))
		}
		return os.Remove(c.stateFile())
	})
}

// teardownPlan is the order: processes, which hold mounts, network and sockets; then their cgroups,
// which must be empty; then the folders that they wrote to.
func (c *Cluster) teardownPlan(s *state) []action {
	var plan []action
	// Nodes first: without the API server they would only retry.
	for _, m := range slices.Backward(s.Machines) {
		if m.Process != nil {
			plan = append(plan, action{"ending " + m.Name, func() error { return m.Process.Kill(patience) }})
		}
	}
	for _, m := range slices.Backward(s.Machines) {
		plan = append(plan, action{"removing the cgroups of " + m.Name, func() error {
			return cgroup.Remove(cgroup.Paths(s.Hierarchies, s.cgroupName(m.Name)), patience)
		}})
	}
	for _, dir := range []string{c.machinesDir(), c.sharedDir(), c.pkiDir(), c.KubeconfigPath(), c.lifeline()} {
		plan = append(plan, action{"removing " + dir, func() error { return os.RemoveAll(dir) }})
	}
	return plan
}
