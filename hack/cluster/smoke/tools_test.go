package smoke

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A result is what a command printed and how it ended.
type result struct {
	out string
	err error
}

// sub makes a test of a function on the tools.
func (x *tools) sub(test func(*tools)) func(*testing.T) {
	return func(t *testing.T) {
		mine := *x
		mine.t = t
		test(&mine)
	}
}

// run runs qtls-cluster and returns its standard output.
func (x *tools) run(args ...string) string {
	x.t.Helper()
	cmd := exec.Command(x.cluster, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		x.t.Fatalf("qtls-cluster %s: %v: %s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String()
}

// try runs qtls-cluster and returns all that it printed.
func (x *tools) try(args ...string) result {
	out, err := exec.Command(x.cluster, args...).CombinedOutput()
	return result{string(out), err}
}

func (x *tools) kubectl(args ...string) string {
	x.t.Helper()
	out, err := x.tryKubectl(args...)
	if err != nil {
		x.t.Fatal(err)
	}
	return out
}

func (x *tools) tryKubectl(args ...string) (string, error) { return x.kubectlIn("", args...) }

func (x *tools) kubectlIn(stdin string, args ...string) (string, error) {
	cmd := exec.Command(x.kubectlPath, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+x.kubeconfig)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

func (x *tools) apply(objects string) {
	x.t.Helper()
	if _, err := x.kubectlIn(objects, "apply", "--server-side", "--filename=-"); err != nil {
		x.t.Fatal(err)
	}
}

// dump shows the cluster's objects after a failure.
func (x *tools) dump() {
	for _, args := range [][]string{{"get", "nodes,pods", "--all-namespaces", "--output=wide"}, {"get", "events", "--sort-by=.lastTimestamp"}} {
		out, err := x.tryKubectl(args...)
		x.t.Logf("%s%v", out, err)
	}
}

// patience is how long anything may take: much longer than it does, for a machine may be busy with other things.
const patience = 5 * time.Minute

func (x *tools) eventually(check func() error) {
	x.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("not within %s: %v", patience, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (x *tools) waitPhase(pod, phase string) {
	x.t.Helper()
	x.kubectl("wait", "--for=jsonpath={.status.phase}="+phase, "pod/"+pod, "--timeout="+patience.String())
}

// waitNode waits until the node's condition Ready has a status, and says how long that took.
func (x *tools) waitNode(name, status string) {
	x.t.Helper()
	begin := time.Now()
	x.eventually(func() error {
		out, err := x.tryKubectl("get", "node", name, "--output=jsonpath={.status.conditions[?(@.type=='Ready')].status}")
		if err == nil && out != status {
			err = fmt.Errorf("Ready of %s is %q", name, out)
		}
		return err
	})
	x.t.Logf("%s became Ready=%s after %.1f s", name, status, time.Since(begin).Seconds())
}

// waitSchedulable waits until no node keeps pods away: that ends a moment after it is ready.
func (x *tools) waitSchedulable() {
	x.t.Helper()
	x.eventually(func() error {
		out, err := x.tryKubectl("get", "nodes", "n1", "n2", "--output=jsonpath={.items[*].spec.taints}")
		if err == nil && out != "" {
			err = fmt.Errorf("taints %s", out)
		}
		return err
	})
}

// expect is an error unless the command succeeded and printed the text.
func expect(r result, text string) error {
	if !strings.Contains(r.out, text) {
		return fmt.Errorf("printed %q, %w", r.out, errors.Join(r.err, errors.New("not what was expected")))
	}
	return nil
}

func mustSay(t *testing.T, r result, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(r.out, text) {
			t.Errorf("%q is not in %q (%v)", text, r.out, r.err)
		}
	}
}

func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

func dial(address string) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	return c.Close()
}

// copyTo copies a program to a folder below parent that every user may enter.
func copyTo(t *testing.T, program, parent string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "smoke") //nolint:usetesting // every user may enter parent, but not t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(program)), content, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A view is what can be seen of a cluster on the host.
type view struct {
	processes, cgroups, files []string
	port                      bool
	mounts, links             string
}

// look looks for everything that a cluster makes, whoever recorded it.
func look(t *testing.T, program string) view {
	t.Helper()
	var v view
	procs, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		exe, err := os.Readlink(p)
		if err == nil && (strings.Contains(exe, "/entries/machines/") || strings.HasPrefix(exe, "/run/qtls/") ||
			strings.HasPrefix(exe, program) && filepath.Dir(p) != "/proc/self") {
			cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "cmdline"))
			v.processes = append(v.processes, fmt.Sprintf("%s %q", filepath.Dir(p), cmdline))
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "qtls-cluster-") {
			v.cgroups = append(v.cgroups, path)
		}
		return nil
	})
	state := os.Getenv("QTLS_CLUSTER_STATE")
	if state == "" {
		state = "/var/lib/qtls-cluster"
	}
	entries, _ := os.ReadDir(state)
	for _, e := range entries {
		if !slices.Contains([]string{"lock", "logs"}, e.Name()) {
			v.files = append(v.files, filepath.Join(state, e.Name()))
		}
	}
	for _, f := range []string{"/tmp/hostpath_pv", "/var/lib/kubelet", "/var/lib/containerd", "/run/containerd", "/run/netns"} {
		if left, err := os.ReadDir(f); err == nil && len(left) > 0 {
			v.files = append(v.files, f)
		}
	}
	v.port = dial("127.0.0.1:16443") == nil
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	v.mounts = string(mounts)
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		v.links += l.Name + "\n"
	}
	return v
}

func (v view) mustBeEmpty(t *testing.T) {
	t.Helper()
	if len(v.processes) > 0 || len(v.cgroups) > 0 || len(v.files) > 0 || v.port {
		t.Errorf("of a cluster there are\nprocesses %v\ncgroups %v\nfiles %v\nlistening %v", v.processes, v.cgroups, v.files, v.port)
	}
	if strings.Contains(v.mounts, "qtls-cluster") || strings.Contains(v.mounts, "kubelet") {
		t.Errorf("of a cluster there are mounts:\n%s", v.mounts)
	}
}
