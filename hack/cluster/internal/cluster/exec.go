package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"qtls.dev/qtls/hack/cluster/internal/netns"
	"qtls.dev/qtls/hack/cluster/internal/node"
	"qtls.dev/qtls/hack/cluster/internal/pki"
)

// Exec replaces this program by a command in the network namespace of a node, where Services have
// their cluster IPs and names their cluster DNS, or, with an empty name, of the control plane, from
// where the addresses of nodes and pods are reached. KUBECONFIG is set to one that works there. It
// returns only on failure.
func (c *Cluster) Exec(nodeName string, command []string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("this needs root: a network namespace is entered; run it with sudo")
	}
	s, err := c.loadUp()
	if err != nil {
		return err
	}
	m, resolvConf := s.controlPlane(), ""
	if nodeName != "" {
		if _, m, err = s.node(nodeName); err != nil {
			return err
		}
		if m.Off {
			return fmt.Errorf("node %s is off; boot it with: qtls-cluster node boot %s", nodeName, nodeName)
		}
		resolvConf = filepath.Join(c.host(s.Bin, nodeName).Dir, "etc", node.ResolvConf)
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	if err := os.Setenv("KUBECONFIG", filepath.Join(c.pkiDir(), pki.Admin+".kubeconfig")); err != nil {
		return err
	}
	return netns.Exec(m.Process.PID, resolvConf, path, command, os.Environ())
}
