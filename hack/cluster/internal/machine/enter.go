package machine

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"qtls.dev/qtls/hack/cluster/internal/cgroup"
)

// enterMachine arranges the machine around this process and then becomes its supervisor.
func enterMachine(file string) error {
	// The cgroup namespace is unshared by this thread alone; execve at the end keeps this thread.
	runtime.LockOSThread()
	start, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if string(start) != goAhead {
		return errors.New("whoever started the machine ended before it was wired")
	}
	spec, err := readSpec(file)
	if err != nil {
		return err
	}
	if err := cgroup.Join(cgroup.Paths(spec.Hierarchies, spec.Cgroup)); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("making a cgroup namespace: %w", err)
	}
	if err := unix.Sethostname([]byte(spec.Name)); err != nil {
		return err
	}
	if err := arrange(spec); err != nil {
		return err
	}
	// What the daemons and the containers may open is bounded by the host's hard limit alone.
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	files.Cur = files.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	// Files that the caller had open, such as a lock, are not for the machine to hold.
	if err := unix.CloseRange(lifelineFD+1, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("closing inherited files: %w", err)
	}
	env := []string{"PATH=" + BinDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "TMPDIR=/tmp"}
	return unix.Exec("/proc/self/exe", []string{"qtls-cluster", Internal, initd, filepath.Join(EtcDir, specFile)}, env)
}

// arrange makes the machine's file system out of the host's.
func arrange(spec Spec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	// A fresh /sys shows this network namespace.
	if err := unix.Unmount("/sys", unix.MNT_DETACH); err != nil && err != unix.EINVAL {
		return fmt.Errorf("unmounting /sys: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /sys: %w", err)
	}
	if err := cgroup.Mount(spec.Hierarchies); err != nil {
		return err
	}
	if err := bind(spec.Binds); err != nil {
		return err
	}
	for name, value := range spec.Sysctls {
		if err := os.WriteFile(sysctlPath(name), []byte(value), 0o644); err != nil {
			return fmt.Errorf("setting the sysctl %s: %w", name, err)
		}
	}
	if err := showSysctls(spec.ShownSysctls); err != nil {
		return err
	}
	// The kubelet's mounts for pods must be seen by containers that ask for it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("making mounts shared: %w", err)
	}
	return nil
}

// bind shows the host's folders in the machine. Every source is opened before anything is mounted,
// because a target such as /tmp may hide a later source.
func bind(binds []Bind) error {
	trees := make([]int, len(binds))
	for i, b := range binds {
		fd, err := unix.OpenTree(unix.AT_FDCWD, b.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return fmt.Errorf("opening %s: %w", b.Source, err)
		}
		trees[i] = fd
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mounting /run: %w", err)
	}
	for i, b := range binds {
		if strings.HasPrefix(b.Target, base) {
			if err := os.MkdirAll(b.Target, 0o755); err != nil {
				return err
			}
		}
		if err := unix.MoveMount(trees[i], "", unix.AT_FDCWD, b.Target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("showing %s at %s: %w", b.Source, b.Target, err)
		}
		if err := unix.Close(trees[i]); err != nil {
			return err
		}
	}
	return nil
}

// showSysctls puts a file with the value over each sysctl.
func showSysctls(values map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		file := filepath.Join(base, "sysctl", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(values[name]+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, sysctlPath(name), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("showing the sysctl %s: %w", name, err)
		}
	}
	return nil
}

// sysctlPath is the file of a sysctl named with dots.
func sysctlPath(name string) string {
	return "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
}
