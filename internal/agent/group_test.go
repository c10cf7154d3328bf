//go:build crypto

package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// controlGroup is one that a container runs in: a folder in each hierarchy of
// version 1, or the one of version 2, whose name is empty.
type controlGroup struct {
	t    *testing.T
	dirs map[string]string // by hierarchy
}

// newControlGroup for a container. A machine may not let a test make any.
func newControlGroup(t *testing.T) *controlGroup {
	t.Helper()
	const root = "/sys/fs/cgroup"
	g := &controlGroup{t: t, dirs: map[string]string{"cpu": root + "/cpu", "memory": root + "/memory"}}
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		g.dirs = map[string]string{"": root}
		_ = os.WriteFile(root+"/cgroup.subtree_control", []byte("+cpu +memory"), 0)
	}
	for hierarchy, parent := range g.dirs {
		dir, err := os.MkdirTemp(parent, "qtls-test-") //nolint:usetesting // a folder there is a control group
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EROFS) {
			t.Skipf("no control group can be made here, so no container can be given a quota: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		g.dirs[hierarchy] = dir
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			// The kernel lets go of processes that have ended when it likes to.
			for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
				if err := os.Remove(dir); err == nil {
					return
				} else if time.Now().After(deadline) {
					t.Errorf("a control group stays: %v", err)
					return
				}
			}
		})
	}
	return g
}

// mountControlGroups is the part of a container's script that enters the group of
// $CGROUPS and shows it to the container, as the only one.
const mountControlGroups = `mount -t tmpfs none "$ROOT/sys"
for hierarchy in $CGROUPS; do
	echo 0 >"${hierarchy#*=}/cgroup.procs"
	mkdir -p "$ROOT/sys/fs/cgroup/${hierarchy%%=*}"
	mount --bind "${hierarchy#*=}" "$ROOT/sys/fs/cgroup/${hierarchy%%=*}"
done`

// hierarchies for a container's script: NAME=FOLDER.
func (g *controlGroup) hierarchies() string {
	var all []string
	for hierarchy, dir := range g.dirs {
		all = append(all, hierarchy+"="+dir)
	}
	return strings.Join(all, " ")
}

// limitCPU to a share of one CPU, in periods of 100 ms. Up to that the container
// comes before all else that the machine does.
func (g *controlGroup) limitCPU(share float64) {
	g.t.Helper()
	quota := strconv.Itoa(int(100000 * share))
	if dir, ok := g.dirs[""]; ok {
		g.write(filepath.Join(dir, "cpu.weight"), "10000")
		g.write(filepath.Join(dir, "cpu.max"), quota+" 100000")
		return
	}
	g.write(filepath.Join(g.dirs["cpu"], "cpu.shares"), "262144")
	g.write(filepath.Join(g.dirs["cpu"], "cpu.cfs_quota_us"), quota)
}

func (g *controlGroup) write(path, value string) {
	g.t.Helper()
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		g.t.Fatal(err)
	}
}
