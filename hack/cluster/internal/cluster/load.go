package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"qtls.dev/qtls/hack/cluster/internal/build"
	"qtls.dev/qtls/hack/cluster/internal/node"
)

// Load gives image archives (docker-archive or OCI) to the containerd of every node that is on.
func (c *Cluster) Load(ctx context.Context, archives []string) error {
	var names []string
	for _, a := range archives {
		names = append(names, filepath.Base(a))
		const remedy = "make an image archive with: buildah push IMAGE docker-archive:FILE"
		info, err := os.Stat(a)
		if err != nil {
			return fmt.Errorf("%w; %s", err, remedy)
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a file; %s", a, remedy)
		}
	}
	s, err := c.loadUp()
	if err != nil {
		return err
	}
	var tasks []func() error
	for i := range s.Machines[1:] {
		m := &s.Machines[1+i]
		if m.Off {
			c.Out.Say("Node %s is off and does not get the images.", m.Name)
			continue
		}
		tasks = append(tasks, func() error {
			return c.Out.Step("loading "+strings.Join(names, ", ")+" into "+m.Name, func() error {
				return c.importImages(ctx, s, m, archives)
			})
		})
	}
	return all(tasks)
}

// importImages reads the archives here and hands them to the node's containerd through its socket,
// which is reached by the machine's root folder: no namespace is entered.
func (c *Cluster) importImages(ctx context.Context, s *state, m *machineState, archives []string) error {
	socket := fmt.Sprintf("/proc/%d/root%s", m.Process.PID, node.ContainerdSocket)
	if err := until(ctx, readyWithin, pollEvery, func(context.Context) error { return dialable(socket) }); err != nil {
		return fmt.Errorf("containerd of %s does not answer: %w; see %s", m.Name, err, filepath.Join(c.LogDir(), m.Name+"-containerd.log"))
	}
	for _, a := range archives {
		// --local unpacks by containerd's snapshot and diff services, which need no second copy.
		cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, string(build.Ctr)), "--address", socket, "--namespace", "k8s.io", "images", "import", "--local", a)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		cmd.WaitDelay = time.Second
		if err := cmd.Run(); err != nil {
			return errors.Join(context.Cause(ctx), fmt.Errorf("importing %s into %s: %w: %s", a, m.Name, err, bytes.TrimSpace(out.Bytes())))
		}
	}
	return nil
}

func dialable(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	return conn.Close()
}
