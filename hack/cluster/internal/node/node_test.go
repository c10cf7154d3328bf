package node

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"qtls.dev/qtls/hack/cluster/internal/machine"
	"qtls.dev/qtls/hack/cluster/internal/topology"
)

var update = flag.Bool("update", false, "write the golden files anew")

var options = Options{ProxyMode: "nftables", Snapshotter: "overlayfs", PauseImage: "qtls.local/cluster/pause:1"}

// TestFilesOfANode compares what a node is given with testdata; run with -update after a change.
func TestFilesOfANode(t *testing.T) {
	files, err := render(topology.Node{Index: 2}, options)
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range files {
		golden := filepath.Join("testdata", "n2", name)
		if *update {
			if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs from %s:\n%s", name, golden, got)
		}
	}
}

func TestTheCNIConfigurationIsJSON(t *testing.T) {
	files, err := render(topology.Node{Index: 1}, options)
	if err != nil {
		t.Fatal(err)
	}
	var c struct{ Plugins []struct{ Type string } }
	if err := json.Unmarshal([]byte(files[cniFile]), &c); err != nil || len(c.Plugins) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestStaticCPUsReserveOneForTheSystem(t *testing.T) {
	for _, static := range []bool{false, true} {
		o := options
		o.StaticCPUs = static
		files, err := render(topology.Node{Index: 1}, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"cpuManagerPolicy: static", "cpu: 100m"} {
			if strings.Contains(files[kubeletFile], want) != static {
				t.Errorf("static %v: %q in\n%s", static, want, files[kubeletFile])
			}
		}
	}
}

func TestTheKubeletWaitsForContainerd(t *testing.T) {
	s, err := Spec(topology.Node{Index: 1}, machine.Host{Dir: "/h"}, nil, "c", options)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range s.Daemons {
		if d.Name == "kubelet" && d.After != "unix://"+ContainerdSocket {
			t.Errorf("starts after %q", d.After)
		}
	}
}

func TestOnlyNetworkSysctlsAreWritten(t *testing.T) {
	s, err := Spec(topology.Node{Index: 1}, machine.Host{Dir: "/h"}, nil, "c", options)
	if err != nil {
		t.Fatal(err)
	}
	for name := range s.Sysctls {
		if !strings.HasPrefix(name, "net.") {
			t.Errorf("%s belongs to the whole host", name)
		}
	}
}
