// Package netns wires the machines' network namespaces. The namespaces have no name: each lives as
// long as the processes in it, so a machine's end takes its links and routes with it.
package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"qtls.dev/qtls/hack/cluster/internal/topology"
)

const (
	bridge    = "lan"
	nodeIface = "eth0"
	loopback  = "lo"
)

// port is the control plane's end of a node's cable.
func port(n topology.Node) string { return "port-" + n.Name() }

// WireControlPlane gives the control plane, whose PID 1 is pid, its bridge and address.
func WireControlPlane(pid int) error {
	return with(pid, func(h *netlink.Handle, _ vns.NsHandle) error {
		if err := up(h, loopback); err != nil {
			return err
		}
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}); err != nil {
			return fmt.Errorf("adding the bridge: %w", err)
		}
		if err := address(h, bridge, fmt.Sprintf("%s/%d", topology.ControlPlaneIP, topology.NodeNetwork.Bits())); err != nil {
			return err
		}
		return up(h, bridge)
	})
}

// WireNode connects the node, whose PID 1 is nodePID, to the control plane's bridge and tells both
// the ways to the pods of every node. It may be called again for a node that was killed.
func WireNode(controlPlanePID, nodePID int, n topology.Node, all []topology.Node) error {
	return with(nodePID, func(node *netlink.Handle, nodeNS vns.NsHandle) error {
		if err := with(controlPlanePID, func(h *netlink.Handle, _ vns.NsHandle) error {
			return plug(h, nodeNS, n)
		}); err != nil {
			return err
		}
		if err := up(node, loopback); err != nil {
			return err
		}
		if err := address(node, nodeIface, fmt.Sprintf("%s/%d", n.IP(), topology.NodeNetwork.Bits())); err != nil {
			return err
		}
		if err := up(node, nodeIface); err != nil {
			return err
		}
		// Nothing answers beyond the node network, but kube-proxy and the kubelet want a default route.
		if err := node.RouteReplace(&netlink.Route{Gw: topology.ControlPlaneIP.AsSlice()}); err != nil {
			return fmt.Errorf("adding the default route: %w", err)
		}
		for _, other := range all {
			if other != n {
				if err := routeToPods(node, other); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// plug connects the node's namespace to the bridge in h.
func plug(h *netlink.Handle, nodeNS vns.NsHandle, n topology.Node) error {
	lan, err := h.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("finding the bridge: %w", err)
	}
	cable := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: port(n), MasterIndex: lan.Attrs().Index},
		PeerName:         nodeIface,
		PeerNamespace:    netlink.NsFd(nodeNS),
		PeerHardwareAddr: n.MAC(),
	}
	// A killed node's cable goes with its namespace, which the kernel takes down a little later.
	if old, err := h.LinkByName(port(n)); err == nil {
		if err := h.LinkDel(old); err != nil {
			return fmt.Errorf("removing the old cable of %s: %w", n.Name(), err)
		}
	}
	if err := h.LinkAdd(cable); err != nil {
		return fmt.Errorf("adding the cable of %s: %w", n.Name(), err)
	}
	if err := up(h, port(n)); err != nil {
		return err
	}
	return routeToPods(h, n)
}

// SetCable cuts (false) or heals (true) the cable between a node and the control plane.
func SetCable(controlPlanePID int, n topology.Node, connected bool) error {
	return with(controlPlanePID, func(h *netlink.Handle, _ vns.NsHandle) error {
		link, err := h.LinkByName(port(n))
		if err != nil {
			return fmt.Errorf("finding the cable of %s: %w", n.Name(), err)
		}
		if connected {
			return h.LinkSetUp(link)
		}
		return h.LinkSetDown(link)
	})
}

// Connected says whether the node's cable is whole.
func Connected(controlPlanePID int, n topology.Node) (connected bool, err error) {
	err = with(controlPlanePID, func(h *netlink.Handle, _ vns.NsHandle) error {
		link, err := h.LinkByName(port(n))
		if err != nil {
			return err
		}
		connected = link.Attrs().RawFlags&unix.IFF_UP != 0
		return nil
	})
	return connected, err
}

func routeToPods(h *netlink.Handle, n topology.Node) error {
	_, pods, err := net.ParseCIDR(n.PodCIDR().String())
	if err != nil {
		return err
	}
	if err := h.RouteReplace(&netlink.Route{Dst: pods, Gw: n.IP().AsSlice()}); err != nil {
		return fmt.Errorf("adding the route to the pods of %s: %w", n.Name(), err)
	}
	return nil
}

func address(h *netlink.Handle, name, cidr string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding the link %s: %w", name, err)
	}
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	if err := h.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("adding the address %s to %s: %w", cidr, name, err)
	}
	return nil
}

func up(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding the link %s: %w", name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("switching %s on: %w", name, err)
	}
	return nil
}

// with runs do on the network namespace of a process, without entering it.
func with(pid int, do func(*netlink.Handle, vns.NsHandle) error) error {
	ns, err := vns.GetFromPid(pid)
	if err != nil {
		return fmt.Errorf("the network namespace of process %d: %w", pid, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("the network namespace of process %d: %w", pid, err)
	}
	defer h.Close()
	return do(h, ns)
}

// Exec replaces this program by argv inside the network namespace of a process. When resolvConf is
// not empty, the program sees that file as /etc/resolv.conf. It returns only on failure.
func Exec(pid int, resolvConf, path string, argv, env []string) error {
	runtime.LockOSThread() // namespaces belong to a thread; execve keeps those of the calling one
	ns, err := vns.GetFromPid(pid)
	if err != nil {
		return fmt.Errorf("the network namespace of process %d: %w", pid, err)
	}
	if err := vns.Set(ns); err != nil {
		return fmt.Errorf("entering the network namespace of process %d: %w", pid, err)
	}
	if err := ns.Close(); err != nil {
		return err
	}
	if resolvConf != "" {
		if err := showResolvConf(resolvConf); err != nil {
			return err
		}
	}
	return unix.Exec(path, argv, env)
}

// showResolvConf puts a file over /etc/resolv.conf in a mount namespace of this thread's own.
func showResolvConf(file string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	const target = "/etc/resolv.conf"
	if _, err := os.Stat(target); errors.Is(err, os.ErrNotExist) {
		return nil // nothing on this machine resolves names through it
	}
	if err := unix.Mount(file, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("showing %s as %s: %w", file, target, err)
	}
	return nil
}
