package topology

import "testing"

func TestNodesAreBounded(t *testing.T) {
	for _, n := range []int{-1, 0, MaxNodes + 1} {
		if _, err := Nodes(n); err == nil {
			t.Errorf("Nodes(%d) was accepted", n)
		}
	}
	nodes, err := Nodes(MaxNodes)
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) != MaxNodes || nodes[0].Name() != "n1" {
		t.Errorf("Nodes(%d) = %v", MaxNodes, nodes)
	}
}

func TestAddressesLieInTheirNetworksAndDiffer(t *testing.T) {
	nodes, err := Nodes(MaxNodes)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{ControlPlaneIP.String(): ControlPlane}
	for _, n := range nodes {
		if !NodeNetwork.Contains(n.IP()) {
			t.Errorf("%s: %s is not in %s", n.Name(), n.IP(), NodeNetwork)
		}
		if !PodNetwork.Contains(n.PodCIDR().Addr()) || n.PodCIDR().Bits() != 24 {
			t.Errorf("%s: %s is not a /24 of %s", n.Name(), n.PodCIDR(), PodNetwork)
		}
		for _, v := range []string{n.IP().String(), n.PodCIDR().String(), n.MAC().String()} {
			if other, ok := seen[v]; ok {
				t.Errorf("%s and %s share %s", other, n.Name(), v)
			}
			seen[v] = n.Name()
		}
	}
}

func TestNetworksDoNotOverlap(t *testing.T) {
	if NodeNetwork.Overlaps(PodNetwork) || PodNetwork.Overlaps(ServiceNetwork) || NodeNetwork.Overlaps(ServiceNetwork) {
		t.Error("the node, pod and service networks overlap")
	}
	if !ServiceNetwork.Contains(DNSServiceIP) || ServiceNetwork.Addr().Next() != APIServiceIP {
		t.Errorf("cluster IPs %s and %s do not fit %s", APIServiceIP, DNSServiceIP, ServiceNetwork)
	}
}

func TestHardwareAddressesAreLocallyAdministeredUnicast(t *testing.T) {
	mac := Node{Index: 1}.MAC()
	if mac[0]&0x02 == 0 || mac[0]&0x01 != 0 {
		t.Errorf("%s must have the local bit and not the multicast bit", mac)
	}
}
