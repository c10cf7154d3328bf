package cgroup

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const v1Mounts = `23 1 0:1 / / rw - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`

func TestHybridHostsUseTheirV1Hierarchies(t *testing.T) {
	got, err := parse(v1Mounts, "3:name=systemd:/\n2:memory:/jobs/7\n1:cpu,cpuacct:/\n0::/\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []Hierarchy{
		{"name=systemd", "/sys/fs/cgroup/systemd"},
		{"memory", "/sys/fs/cgroup/memory/jobs/7"},
		{"cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestAControllerThatIsNotMountedIsLeftOut(t *testing.T) {
	got, err := parse(v1Mounts, "9:rdma:/\n2:memory:/\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Controllers != "memory" {
		t.Errorf("got %v", got)
	}
}

func TestV2HostsUseTheOneHierarchy(t *testing.T) {
	got, err := parse("30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n", "0::/user.slice/a\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || !got[0].V2() || got[0].Dir != "/sys/fs/cgroup" {
		t.Errorf("got %v", got)
	}
}

func TestAContainersMountRootIsCutOff(t *testing.T) {
	got, err := parse("35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n", "2:memory:/docker/abc/x\n")
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Dir != "/sys/fs/cgroup/memory/x" {
		t.Errorf("got %v", got)
	}
}

func TestNoMemoryControllerIsAnError(t *testing.T) {
	if _, err := parse("", "2:memory:/\n0::/\n"); err == nil || !strings.Contains(err.Error(), "memory controller") {
		t.Errorf("err = %v", err)
	}
}

func TestOptionsAreWholeWords(t *testing.T) {
	for _, c := range []struct {
		options, wanted string
		want            bool
	}{
		{"rw,cpu,cpuacct", "cpu", true},
		{"rw,cpuacct", "cpu", false},
		{"rw,cpuset", "cpu,cpuset", false},
		{"rw,xattr,name=systemd", "name=systemd", true},
	} {
		if got := hasOptions(c.options, c.wanted); got != c.want {
			t.Errorf("hasOptions(%q, %q) = %v", c.options, c.wanted, got)
		}
	}
}

func TestRemoveTakesTheWholeTreeAndMayBeRepeated(t *testing.T) {
	top := filepath.Join(t.TempDir(), "node")
	if err := os.MkdirAll(filepath.Join(top, "kubepods", "burstable", "pod1"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Remove([]string{top}, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(top); !os.IsNotExist(err) {
		t.Error("still there")
	}
}
