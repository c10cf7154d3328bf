// Package node says what a node's machine runs: containerd, the kubelet and kube-proxy.
package node

import (
	"bytes"
	"embed"
	"fmt"
	"text/template"

	"qtls.dev/qtls/hack/cluster/internal/cgroup"
	"qtls.dev/qtls/hack/cluster/internal/machine"
	"qtls.dev/qtls/hack/cluster/internal/pki"
	"qtls.dev/qtls/hack/cluster/internal/topology"
)

// ContainerdSocket is where a node's containerd listens, in the node.
const ContainerdSocket = "/run/containerd/containerd.sock"

// ResolvConf is the name of the node's resolv.conf in machine.EtcDir.
const ResolvConf = "resolv.conf"

// Options are what a user chooses.
type Options struct {
	// StaticCPUs gives containers of Guaranteed pods that ask for whole CPUs those CPUs alone.
	StaticCPUs bool
	// ProxyMode is kube-proxy's: "nftables" or "iptables".
	ProxyMode string
	// Snapshotter is containerd's: "overlayfs", or "native" where overlays cannot be stacked.
	Snapshotter string
	// PauseImage is the image of the first process of every pod.
	PauseImage string
	// Lifeline says that the node ends with the process that started it.
	Lifeline bool
}

//go:embed templates
var templates embed.FS

var parsed = template.Must(template.ParseFS(templates, "templates/*"))

// Spec is a node's machine.
func Spec(n topology.Node, host machine.Host, hierarchies []cgroup.Hierarchy, cgroupName string, o Options) (machine.Spec, error) {
	files, err := render(n, o)
	if err != nil {
		return machine.Spec{}, err
	}
	return machine.Spec{
		Name:        n.Name(),
		Cgroup:      cgroupName,
		Hierarchies: hierarchies,
		Binds:       append(machine.HostBinds(host), machine.Bind{Source: host.Dir + "/etc/" + ResolvConf, Target: "/etc/resolv.conf"}),
		Sysctls:     map[string]string{"net.ipv4.ip_forward": "1"},
		ShownSysctls: map[string]string{
			// The kubelet sets these at its start. They are the whole host's, so it finds them set.
			"vm.overcommit_memory":      "1",
			"vm.panic_on_oom":           "0",
			"kernel.panic":              "10",
			"kernel.panic_on_oops":      "1",
			"kernel.keys.root_maxkeys":  "1000000",
			"kernel.keys.root_maxbytes": "25000000",
		},
		Files: files,
		Daemons: []machine.Daemon{
			{Name: "containerd", Args: []string{"containerd", "--config=" + etc(containerdFile)}},
			{Name: "kubelet", After: "unix://" + ContainerdSocket, Args: []string{
				"kubelet",
				"--config=" + etc(kubeletFile),
				"--kubeconfig=" + machine.PKIDir + "/" + pki.Kubelet(n) + ".kubeconfig",
				"--hostname-override=" + n.Name(),
				"--node-ip=" + n.IP().String(),
			}},
			{Name: "kube-proxy", Args: []string{"kube-proxy", "--config=" + etc(proxyFile)}},
		},
		Lifeline: o.Lifeline,
	}, nil
}

// The files of a node and the templates that they are made from.
const (
	containerdFile = "containerd.toml"
	kubeletFile    = "kubelet.yaml"
	proxyFile      = "kube-proxy.yaml"
	cniFile        = "cni/10-pods.conflist"
)

func render(n topology.Node, o Options) (map[string]string, error) {
	data := struct {
		Options
		Name, PodCIDR, PodNetwork, DNS, Domain, Socket string
		Bin, CNI, PKI, ServingCert, ProxyConfig        string
	}{
		Options:     o,
		Name:        n.Name(),
		PodCIDR:     n.PodCIDR().String(),
		PodNetwork:  topology.PodNetwork.String(),
		DNS:         topology.DNSServiceIP.String(),
		Domain:      topology.ClusterDomain,
		Socket:      ContainerdSocket,
		Bin:         machine.BinDir,
		CNI:         etc("cni"),
		PKI:         machine.PKIDir,
		ServingCert: machine.PKIDir + "/" + pki.KubeletServing(n),
		ProxyConfig: machine.PKIDir + "/" + pki.Proxy + ".kubeconfig",
	}
	files := map[string]string{}
	for file, name := range map[string]string{
		containerdFile: "containerd.toml",
		kubeletFile:    "kubelet.yaml",
		proxyFile:      "kube-proxy.yaml",
		cniFile:        "pods.conflist",
		ResolvConf:     "resolv.conf",
	} {
		var buf bytes.Buffer
		if err := parsed.ExecuteTemplate(&buf, name, data); err != nil {
			return nil, fmt.Errorf("rendering %s of %s: %w", file, n.Name(), err)
		}
		files[file] = buf.String()
	}
	return files, nil
}

func etc(file string) string { return machine.EtcDir + "/" + file }
