package cluster

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"qtls.dev/qtls/hack/cluster/internal/netns"
	"qtls.dev/qtls/hack/cluster/internal/topology"
)

// Status writes what is up. The error says what is wrong with it; none is up is an error too.
func (c *Cluster) Status(ctx context.Context, out io.Writer) error {
	s, err := c.load()
	if err != nil {
		return err
	}
	nodes, err := topology.Nodes(s.Params.Nodes)
	if err != nil {
		return err
	}
	var apiErr error
	a, err := c.api(s.Params.Port)
	if err != nil {
		apiErr = err
	} else {
		apiErr = a.healthy(ctx)
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "MACHINE\tADDRESS\tPOWER\tCABLE\tKUBERNETES")
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", topology.ControlPlane, topology.ControlPlaneIP, power(s.controlPlane()), "-", word(apiErr))
	for _, n := range nodes {
		m := s.machine(n.Name())
		cable, ready := "-", "-"
		if m.Process != nil && m.Process.Alive() {
			cable = "cut"
			connected, err := netns.Connected(s.controlPlane().Process.PID, n)
			if err != nil {
				cable = "?"
			} else if connected {
				cable = "whole"
			}
		}
		if apiErr == nil {
			ready = word(a.nodeReady(ctx, n.Name()))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", n.Name(), n.IP(), power(m), cable, ready)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nKUBECONFIG  %s\nLogs        %s\n", c.KubeconfigPath(), c.LogDir())
	if s.Owner != nil {
		fmt.Fprintf(out, "Belongs to  qtls-cluster run, process %d\n", s.Owner.PID)
	}
	if _, err := c.loadUp(); err != nil {
		return err
	}
	if apiErr != nil {
		return fmt.Errorf("the API server does not answer: %w; see the logs in %s", apiErr, c.LogDir())
	}
	return nil
}

func power(m *machineState) string {
	switch {
	case m.Off:
		return "off"
	case m.Process != nil && m.Process.Alive():
		return "on"
	}
	return "dead"
}

func word(err error) string {
	if err == nil {
		return "ready"
	}
	return err.Error()
}
