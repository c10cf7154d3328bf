// Package cgroup gives each machine of the cluster a control group of its own in every hierarchy
// that the kernel has mounted: the v1 hierarchies, or the one of v2.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Hierarchy is one mounted cgroup tree and the place in it for machines.
type Hierarchy struct {
	// Controllers are the names of a v1 hierarchy as mount options ("cpu", "cpu,cpuacct",
	// "name=systemd"); empty means version 2.
	Controllers string
	// Dir is where machines' cgroups are made, as a folder of this mount namespace: in v1 the
	// caller's own cgroup, so that its limits hold for the cluster too; in v2 the root.
	Dir string
}

// V2 says whether the hierarchy is that of version 2.
func (h Hierarchy) V2() bool { return h.Controllers == "" }

// Own returns the hierarchies that a machine needs. Where v1
// hierarchies hold the controllers, a v2 hierarchy beside them (a "hybrid" host) has none to offer
// and is left out.
func Own() ([]Hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	membership, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	return parse(string(mounts), string(membership))
}

type mount struct{ root, point, kind, options string }

func parse(mountinfo, membership string) ([]Hierarchy, error) {
	var v1, v2 []Hierarchy
	mounts := cgroupMounts(mountinfo)
	for line := range strings.Lines(membership) {
		// "4:memory:/path", see cgroups(7)
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			return nil, fmt.Errorf("cannot read the line %q of /proc/self/cgroup", line)
		}
		h := Hierarchy{Controllers: parts[1]}
		for _, m := range mounts {
			if h.V2() != (m.kind == "cgroup2") || !h.V2() && !hasOptions(m.options, h.Controllers) {
				continue
			}
			rel, err := filepath.Rel(m.root, parts[2]) // the root is not "/" in a container
			if err != nil || strings.HasPrefix(rel, "..") {
				continue
			}
			h.Dir = filepath.Join(m.point, rel)
			if h.V2() {
				// A v2 cgroup that has processes cannot hand controllers to its children, and the
				// caller's has; the root of the hierarchy is the exception.
				h.Dir = m.point
			}
			break
		}
		switch {
		case h.Dir == "":
			// Not mounted here, so of no use to a container either.
		case h.V2():
			v2 = append(v2, h)
		default:
			v1 = append(v1, h)
		}
	}
	if slices.ContainsFunc(v1, func(h Hierarchy) bool { return hasOptions(h.Controllers, "memory") }) {
		return v1, nil
	}
	if len(v2) == 1 {
		return v2, nil
	}
	return nil, errors.New("no cgroup hierarchy with the memory controller is mounted; mount cgroups below /sys/fs/cgroup")
}

func cgroupMounts(mountinfo string) []mount {
	var mounts []mount
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		if !ok {
			continue
		}
		b, a := strings.Fields(before), strings.Fields(after)
		if len(b) < 5 || len(a) < 3 || a[0] != "cgroup" && a[0] != "cgroup2" {
			continue
		}
		mounts = append(mounts, mount{root: b[3], point: b[4], kind: a[0], options: a[2]})
	}
	return mounts
}

// hasOptions says whether every one of the wanted comma-separated words is among the options.
func hasOptions(options, wanted string) bool {
	have := strings.Split(options, ",")
	for w := range strings.SplitSeq(wanted, ",") {
		if !slices.Contains(have, w) {
			return false
		}
	}
	return true
}

// Paths returns where the cgroup called name lies in each hierarchy.
func Paths(own []Hierarchy, name string) []string {
	var paths []string
	for _, h := range own {
		paths = append(paths, filepath.Join(h.Dir, name))
	}
	return paths
}

// Create makes the cgroups. It is no error when they are there.
func Create(own []Hierarchy, name string) error {
	for _, h := range own {
		dir := filepath.Join(h.Dir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("making a cgroup: %w", err)
		}
		if h.V2() {
			if err := delegate(h.Dir); err != nil {
				return err
			}
		}
		if hasOptions(h.Controllers, "cpuset") {
			// A new v1 cpuset is empty, and an empty one accepts no process.
			for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
				value, err := os.ReadFile(filepath.Join(h.Dir, f))
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(dir, f), value, 0o644); err != nil {
					return fmt.Errorf("setting %s: %w", f, err)
				}
			}
		}
	}
	return nil
}

// delegate hands every controller of a v2 cgroup to its children.
func delegate(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for c := range strings.FieldsSeq(string(available)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("handing the controller %s on from %s: %w", c, dir, err)
		}
	}
	return nil
}

// Join moves the calling process into the cgroups.
func Join(paths []string) error {
	for _, p := range paths {
		if err := os.WriteFile(filepath.Join(p, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return fmt.Errorf("joining the cgroup %s: %w", p, err)
		}
	}
	return nil
}

// Mount mounts the hierarchies anew at /sys/fs/cgroup. In a cgroup namespace their roots are the
// cgroups that the process was in when it made the namespace.
func Mount(own []Hierarchy) error {
	const root = "/sys/fs/cgroup"
	if len(own) == 1 && own[0].V2() {
		if err := unix.Mount("cgroup2", root, "cgroup2", 0, ""); err != nil {
			return fmt.Errorf("mounting cgroup2: %w", err)
		}
		// Processes may not stay in a cgroup that hands controllers on.
		leaf := filepath.Join(root, "init")
		if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := Join([]string{leaf}); err != nil {
			return err
		}
		return delegate(root)
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mounting %s: %w", root, err)
	}
	for _, h := range own {
		name := strings.TrimPrefix(h.Controllers, "name=")
		options := h.Controllers
		if name != options {
			options = "none," + options // a hierarchy with a name and no controller
		}
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("cgroup", dir, "cgroup", 0, options); err != nil {
			return fmt.Errorf("mounting the cgroup hierarchy %s: %w", h.Controllers, err)
		}
		for c := range strings.SplitSeq(name, ",") {
			if c != name {
				if err := os.Symlink(name, filepath.Join(root, c)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Remove removes the cgroups and all below them, killing what is still in them. It is no error
// when they are gone.
func Remove(paths []string, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for _, p := range paths {
		for {
			err := removeTree(p)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("removing the cgroup %s: %w", p, err)
			}
			killAll(p)
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

// RemoveChildren empties the cgroups without removing them.
func RemoveChildren(paths []string, patience time.Duration) error {
	var children []string
	for _, p := range paths {
		entries, err := os.ReadDir(p)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.IsDir() {
				children = append(children, filepath.Join(p, e.Name()))
			}
		}
	}
	return Remove(children, patience)
}

// removeTree removes the folders of a cgroup, children first: its files cannot be removed.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}

func killAll(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return nil
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if pid, err := strconv.Atoi(s.Text()); err == nil && pid > 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		return nil
	})
}
