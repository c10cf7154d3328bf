package build

// Versions of what the cluster is made of. Those in the kube and certmanager modules are pinned by
// their go.mod; what is named here besides goes into the programs' own version information.
const (
	KubernetesVersion  = "1.36.3"
	CertManagerVersion = "1.21.2"
	helmVersion        = "4.3.1"
	containerdVersion  = "2.4.2"
	runcVersion        = "1.5.2"
	cniVersion         = "1.9.1"

	goToolchain = "go1.27.4"
)

// A Program is one executable of the cluster by its file name.
type Program string

// The programs.
const (
	APIServer         Program = "kube-apiserver"
	ControllerManager Program = "kube-controller-manager"
	Scheduler         Program = "kube-scheduler"
	Kubelet           Program = "kubelet"
	Proxy             Program = "kube-proxy"
	Kubectl           Program = "kubectl"
	Etcd              Program = "etcd"
	CoreDNS           Program = "coredns"
	Helm              Program = "helm"
	MetricsServer     Program = "metrics-server"
	Kwok              Program = "kwok"
	Containerd        Program = "containerd"
	ContainerdShim    Program = "containerd-shim-runc-v2"
	Ctr               Program = "ctr"
	Runc              Program = "runc"
	CNIPtp            Program = "ptp"
	CNILoopback       Program = "loopback"
	CNIHostLocal      Program = "host-local"
	CNIPortmap        Program = "portmap"
	CertManager       Program = "cert-manager"
	Pause             Program = "pause"
)

// ForMachines are the programs that the control plane and the nodes run, and kubectl.
func ForMachines(kwok bool) []Program {
	p := []Program{
		Etcd, APIServer, ControllerManager, Scheduler, Kubelet, Proxy, Kubectl,
		Containerd, ContainerdShim, Ctr, Runc, CNIPtp, CNILoopback, CNIHostLocal, CNIPortmap,
	}
	if kwok {
		p = append(p, Kwok)
	}
	return p
}

// ForEnvtest are the programs that controller-runtime's envtest wants.
func ForEnvtest() []Program { return []Program{APIServer, Etcd, Kubectl} }

// ForUsers are the programs for a person's or a Makefile's PATH.
func ForUsers() []Program { return []Program{Kubectl, Helm} }

// A group is a set of programs that one compiler run makes with the same settings.
type group struct {
	name string
	// module is the folder of a Go module of ours below the sources; empty for a published module,
	// whose version is then in the packages' names, and for C.
	module string
	// packages maps programs to Go packages, as `go build` in module or `go install` elsewhere
	// takes them.
	packages map[Program]string
	tags     string
	ldflags  string
	cgo      bool
	// c maps programs to C files beside the module folders, instead of Go packages.
	c map[Program]string
	// diskGiB is what an empty build cache grows by.
	diskGiB int
}

func (g group) has(p Program) bool {
	_, isGo := g.packages[p]
	_, isC := g.c[p]
	return isGo || isC
}

// groups is the catalogue of all programs.
var groups = []group{
	{
		name:    "kube",
		module:  "kube",
		tags:    "grpcnotrace", // lets the linker drop unused methods
		ldflags: "-s -w" + kubernetesVersionFlags("k8s.io/component-base/version", "k8s.io/client-go/pkg/version") + " -X helm.sh/helm/v4/internal/version.version=v" + helmVersion,
		packages: map[Program]string{
			APIServer:         "k8s.io/kubernetes/cmd/kube-apiserver",
			ControllerManager: "k8s.io/kubernetes/cmd/kube-controller-manager",
			Scheduler:         "k8s.io/kubernetes/cmd/kube-scheduler",
			Kubelet:           "k8s.io/kubernetes/cmd/kubelet",
			Proxy:             "k8s.io/kubernetes/cmd/kube-proxy",
			Kubectl:           "k8s.io/kubernetes/cmd/kubectl",
			Etcd:              "go.etcd.io/etcd/server/v3",
			CoreDNS:           "./coredns",
			Helm:              "helm.sh/helm/v4/cmd/helm",
			MetricsServer:     "sigs.k8s.io/metrics-server/cmd/metrics-server",
			Kwok:              "sigs.k8s.io/kwok/cmd/kwok",
		},
		diskGiB: 5,
	},
	{
		name:    "containerd",
		tags:    "no_btrfs,no_devmapper,no_zfs,no_aufs,grpcnotrace",
		ldflags: "-s -w -X github.com/containerd/containerd/v2/version.Version=v" + containerdVersion,
		packages: map[Program]string{
			Containerd:     "github.com/containerd/containerd/v2/cmd/containerd@v" + containerdVersion,
			ContainerdShim: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2@v" + containerdVersion,
			Ctr:            "github.com/containerd/containerd/v2/cmd/ctr@v" + containerdVersion,
		},
		diskGiB: 1,
	},
	{
		name:     "runc",
		tags:     "seccomp",
		ldflags:  "-s -w -X main.version=" + runcVersion,
		packages: map[Program]string{Runc: "github.com/opencontainers/runc@v" + runcVersion},
		cgo:      true, // nsenter is C, and seccomp filters are libseccomp's
		diskGiB:  1,
	},
	{
		name:    "cni",
		ldflags: "-s -w",
		packages: map[Program]string{
			CNIPtp:       "github.com/containernetworking/plugins/plugins/main/ptp@v" + cniVersion,
			CNILoopback:  "github.com/containernetworking/plugins/plugins/main/loopback@v" + cniVersion,
			CNIHostLocal: "github.com/containernetworking/plugins/plugins/ipam/host-local@v" + cniVersion,
			CNIPortmap:   "github.com/containernetworking/plugins/plugins/meta/portmap@v" + cniVersion,
		},
		diskGiB: 1,
	},
	{
		name:     "cert-manager",
		module:   "certmanager",
		ldflags:  "-s -w -X github.com/cert-manager/cert-manager/pkg/util.AppVersion=v" + CertManagerVersion,
		packages: map[Program]string{CertManager: "."},
		diskGiB:  2,
	},
	{
		name: "pause",
		c:    map[Program]string{Pause: "pause/pause.c"},
	},
}

// kubernetesVersionFlags are the linker flags that stamp a program with Kubernetes' version, which
// a build from a module does not know.
func kubernetesVersionFlags(packages ...string) string {
	flags := ""
	for _, p := range packages {
		for _, kv := range []string{
			"gitVersion=v" + KubernetesVersion,
			"gitMajor=1",
			"gitMinor=36",
			"gitTreeState=clean",
			"buildDate=1970-01-01T00:00:00Z",
		} {
			flags += " -X " + p + "." + kv
		}
	}
	return flags
}
