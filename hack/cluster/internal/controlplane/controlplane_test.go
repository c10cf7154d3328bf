package controlplane

import (
	"slices"
	"strings"
	"testing"

	"qtls.dev/qtls/hack/cluster/internal/machine"
)

func names(s machine.Spec) []string {
	var n []string
	for _, d := range s.Daemons {
		n = append(n, d.Name)
	}
	return n
}

func TestKwokFindsItsStages(t *testing.T) {
	s := Spec(machine.Host{}, nil, "c", Options{KwokStages: "kind: Stage"})
	file := machine.EtcDir + "/" + stagesFile
	if s.Files[stagesFile] != "kind: Stage" || !slices.Contains(s.Daemons[len(s.Daemons)-1].Args, "--config="+file) {
		t.Errorf("files %v, daemons %v", s.Files, s.Daemons)
	}
}

func TestKwokRunsOnlyWhenAskedFor(t *testing.T) {
	if n := names(Spec(machine.Host{}, nil, "c", Options{})); slices.Contains(n, "kwok") {
		t.Errorf("daemons %v", n)
	}
	if n := names(Spec(machine.Host{}, nil, "c", Options{KwokStages: "kind: Stage"})); !slices.Contains(n, "kwok") {
		t.Errorf("daemons %v", n)
	}
}

func TestEtcdStartsFirstAndTheAPIServerUsesIt(t *testing.T) {
	s := Spec(machine.Host{}, nil, "c", Options{})
	if n := names(s); n[0] != "etcd" || n[1] != "kube-apiserver" {
		t.Errorf("daemons %v", n)
	}
	if !slices.Contains(s.Daemons[1].Args, "--etcd-servers="+etcdURL) || !slices.Contains(s.Daemons[0].Args, "--listen-client-urls="+etcdURL) {
		t.Error("the API server does not use this etcd")
	}
}

func TestNothingThatIsRenderedDependsOnTheHostsFolders(t *testing.T) {
	host := machine.Host{Dir: "/host/m", Bin: "/host/b", PKI: "/host/p", Log: "/host/l", Shared: "/host/s"}
	for _, d := range Spec(host, nil, "c", Options{KwokStages: "kind: Stage"}).Daemons {
		for _, a := range d.Args {
			if strings.Contains(a, "/host") {
				t.Errorf("%s: %s", d.Name, a)
			}
		}
	}
}

func TestEtcdAndTheControllersAreNotReachableFromPods(t *testing.T) {
	for _, d := range Spec(machine.Host{}, nil, "c", Options{}).Daemons {
		if d.Name == "kube-apiserver" {
			continue
		}
		for _, a := range d.Args {
			if (strings.Contains(a, "listen") || strings.Contains(a, "bind-address")) && !strings.Contains(a, "127.0.0.1") {
				t.Errorf("%s listens beyond loopback: %s", d.Name, a)
			}
		}
	}
}
