// Package topology says which machines a cluster has and which addresses they use. All of them live
// in network namespaces without an uplink, so they cannot clash with the host's networks.
package topology

import (
	"fmt"
	"net"
	"net/netip"
)

// MaxNodes bounds how many nodes a cluster has. The node network would take more; one machine's
// memory is the limit.
const MaxNodes = 3

// ControlPlane is the name of the machine that runs etcd, the API server and the controllers.
const ControlPlane = "cp"

// ClusterDomain is the DNS domain of Services.
const ClusterDomain = "cluster.local"

// APIPort is where the API server listens inside the control plane's network namespace.
const APIPort = 6443

var (
	// NodeNetwork connects the control plane and the nodes.
	NodeNetwork = netip.MustParsePrefix("10.70.0.0/24")
	// PodNetwork holds one /24 a node.
	PodNetwork = netip.MustParsePrefix("10.71.0.0/16")
	// ServiceNetwork holds the cluster IPs, which exist only in the nodes' packet filters.
	ServiceNetwork = netip.MustParsePrefix("10.72.0.0/16")
	// ControlPlaneIP is the control plane's address in NodeNetwork.
	ControlPlaneIP = netip.MustParseAddr("10.70.0.1")
	// APIServiceIP is the cluster IP of the Service kubernetes.default: the API server takes the
	// first address of ServiceNetwork.
	APIServiceIP = netip.MustParseAddr("10.72.0.1")
	// DNSServiceIP is the cluster IP of the cluster's DNS.
	DNSServiceIP = netip.MustParseAddr("10.72.0.10")
)

// A Node is one worker of the cluster.
type Node struct {
	// Index counts from 1.
	Index int
}

// Nodes returns the n nodes of a cluster, n1 first.
func Nodes(n int) ([]Node, error) {
	if n < 1 || n > MaxNodes {
		return nil, fmt.Errorf("a cluster has 1 to %d nodes, not %d", MaxNodes, n)
	}
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i] = Node{Index: i + 1}
	}
	return nodes, nil
}

// Name is the node's name in Kubernetes and its host name.
func (n Node) Name() string { return fmt.Sprintf("n%d", n.Index) }

// IP is the node's address in NodeNetwork.
func (n Node) IP() netip.Addr {
	b := NodeNetwork.Addr().As4()
	b[3] = byte(10 + n.Index)
	return netip.AddrFrom4(b)
}

// PodCIDR is the network of the node's pods.
func (n Node) PodCIDR() netip.Prefix {
	b := PodNetwork.Addr().As4()
	b[2] = byte(10 + n.Index)
	return netip.PrefixFrom(netip.AddrFrom4(b), 24)
}

// MAC is the hardware address of the node's interface. It is fixed, so that the neighbours' ARP
// entries stay right when the node is killed and booted.
func (n Node) MAC() net.HardwareAddr {
	ip := n.IP().As4()
	return net.HardwareAddr{0x02, 0x71, ip[0], ip[1], ip[2], ip[3]} // 0x02: locally administered
}
