// Package controlplane says what the control plane's machine runs.
package controlplane

import (
	"fmt"

	"qtls.dev/qtls/hack/cluster/internal/cgroup"
	"qtls.dev/qtls/hack/cluster/internal/machine"
	"qtls.dev/qtls/hack/cluster/internal/pki"
	"qtls.dev/qtls/hack/cluster/internal/topology"
)

// Options are what a user chooses.
type Options struct {
	// KwokStages, when not empty, runs kwok with these stages. It plays the kubelets of nodes that
	// carry fakeNodeAnnotation.
	KwokStages string
	// Lifeline says that the control plane ends with the process that started it.
	Lifeline bool
}

// fakeNodeAnnotation is the annotation of the nodes that kwok plays.
const fakeNodeAnnotation = "kwok.x-k8s.io/node=fake"

// stagesFile is the name of kwok's stages in machine.EtcDir.
const stagesFile = "kwok-stages.yaml"

// Spec is the control plane's machine.
func Spec(host machine.Host, hierarchies []cgroup.Hierarchy, cgroupName string, o Options) machine.Spec {
	s := machine.Spec{
		Name:        topology.ControlPlane,
		Cgroup:      cgroupName,
		Hierarchies: hierarchies,
		Binds:       machine.HostBinds(host),
		Daemons: []machine.Daemon{
			{Name: "etcd", Args: etcd()},
			{Name: "kube-apiserver", Args: apiServer()},
			{Name: "kube-controller-manager", Args: controllerManager()},
			// Too early, it is refused its first reads and then pauses for seconds.
			{Name: "kube-scheduler", Args: scheduler(), After: fmt.Sprintf("https://127.0.0.1:%d/readyz", topology.APIPort)},
		},
		Relay:    fmt.Sprintf("127.0.0.1:%d", topology.APIPort),
		Lifeline: o.Lifeline,
	}
	if o.KwokStages != "" {
		s.Files = map[string]string{stagesFile: o.KwokStages}
		s.Daemons = append(s.Daemons, machine.Daemon{Name: "kwok", Args: kwok()})
	}
	return s
}

const etcdURL = "http://127.0.0.1:2379"

func etcd() []string {
	return []string{
		"etcd",
		"--data-dir=/var/lib/etcd",
		"--listen-client-urls=" + etcdURL,
		"--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--unsafe-no-fsync", // the data lives no longer than the machine
		"--log-level=warn",
		"--quota-backend-bytes=2147483648",
		"--auto-compaction-retention=5m",
	}
}

func apiServer() []string {
	return []string{
		"kube-apiserver",
		"--etcd-servers=" + etcdURL,
		"--bind-address=0.0.0.0",
		fmt.Sprintf("--secure-port=%d", topology.APIPort),
		"--advertise-address=" + topology.ControlPlaneIP.String(),
		"--service-cluster-ip-range=" + topology.ServiceNetwork.String(),
		"--tls-cert-file=" + cert("apiserver"),
		"--tls-private-key-file=" + key("apiserver"),
		"--client-ca-file=" + cert("ca"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--kubelet-client-certificate=" + cert("apiserver-kubelet-client"),
		"--kubelet-client-key=" + key("apiserver-kubelet-client"),
		"--kubelet-certificate-authority=" + cert("ca"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc." + topology.ClusterDomain,
		"--service-account-key-file=" + machine.PKIDir + "/sa.pub",
		"--service-account-signing-key-file=" + key("sa"),
		"--requestheader-client-ca-file=" + cert("front-proxy-ca"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + cert("front-proxy-client"),
		"--proxy-client-key-file=" + key("front-proxy-client"),
		// No kube-proxy runs here, so webhooks and aggregated APIs are called by their pods' addresses.
		"--enable-aggregator-routing=true",
		"--shutdown-delay-duration=0s",
	}
}

func controllerManager() []string {
	config := kubeconfig(pki.ControllerManager)
	return []string{
		"kube-controller-manager",
		"--kubeconfig=" + config,
		"--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
		"--use-service-account-credentials",
		"--root-ca-file=" + cert("ca"),
		"--service-account-private-key-file=" + key("sa"),
		"--cluster-signing-cert-file=" + cert("ca"),
		"--cluster-signing-key-file=" + key("ca"),
		"--requestheader-client-ca-file=" + cert("front-proxy-ca"),
		"--service-cluster-ip-range=" + topology.ServiceNetwork.String(),
		"--enable-hostpath-provisioner=true",
		// A machine that is busy with other things stands still for a while: its nodes are not lost by that. They renew
		// their leases every 10 s.
		"--node-monitor-period=2s",
		"--node-monitor-grace-period=60s",
		// A test does not wait as long for a new metric as an operator would.
		"--horizontal-pod-autoscaler-sync-period=5s",
		// The default limits are for clusters whose API server is shared.
		"--kube-api-qps=300",
		"--kube-api-burst=600",
	}
}

func scheduler() []string {
	config := kubeconfig(pki.Scheduler)
	return []string{
		"kube-scheduler",
		"--kubeconfig=" + config,
		"--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
		"--kube-api-qps=300",
		"--kube-api-burst=600",
	}
}

func kwok() []string {
	return []string{
		"kwok",
		"--kubeconfig=" + kubeconfig(pki.Kwok),
		"--config=" + machine.EtcDir + "/" + stagesFile,
		"--manage-all-nodes=false",
		"--manage-nodes-with-annotation-selector=" + fakeNodeAnnotation,
		"--node-ip=" + topology.ControlPlaneIP.String(),
		"--node-lease-duration-seconds=40",
		"--cidr=10.90.0.0/16", // addresses that nothing answers
	}
}

func cert(name string) string       { return machine.PKIDir + "/" + name + ".crt" }
func key(name string) string        { return machine.PKIDir + "/" + name + ".key" }
func kubeconfig(name string) string { return machine.PKIDir + "/" + name + ".kubeconfig" }
