package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"qtls.dev/qtls/hack/cluster/internal/cgroup"
	"qtls.dev/qtls/hack/cluster/internal/process"
	"qtls.dev/qtls/hack/cluster/internal/progress"
)

func newCluster(t *testing.T) *Cluster {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	return &Cluster{Dir: t.TempDir(), Out: progress.New(null)}
}

func self(t *testing.T) *process.ID {
	t.Helper()
	id, err := process.Find(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return &id
}

// gone is a process that has ended.
func gone(t *testing.T) *process.ID {
	t.Helper()
	id := *self(t)
	id.Start--
	return &id
}

func TestParamsAreChecked(t *testing.T) {
	if err := DefaultParams().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for want, change := range map[string]func(*Params){
		"--nodes":      func(p *Params) { p.Nodes = 4 },
		"--proxy-mode": func(p *Params) { p.ProxyMode = "ipvs" },
		"--port":       func(p *Params) { p.Port = 0 },
	} {
		p := DefaultParams()
		change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

func TestTheStateFolderFollowsTheEnvironment(t *testing.T) {
	t.Setenv("QTLS_CLUSTER_STATE", "")
	if d, err := DefaultDir(); err != nil || d != "/var/lib/qtls-cluster" {
		t.Errorf("%q, %v", d, err)
	}
	t.Setenv("QTLS_CLUSTER_STATE", "/elsewhere/")
	if d, err := DefaultDir(); err != nil || d != "/elsewhere" {
		t.Errorf("%q, %v", d, err)
	}
}

func TestStateSurvivesWriting(t *testing.T) {
	c := newCluster(t)
	if _, err := c.load(); !errors.Is(err, errNotUp) {
		t.Errorf("an empty folder: %v", err)
	}
	want := &state{Params: DefaultParams(), Machines: []machineState{{Name: "cp", Process: self(t)}}, Owner: self(t), Ready: true}
	if err := c.save(want); err != nil {
		t.Fatal(err)
	}
	got, err := c.load()
	if err != nil {
		t.Fatal(err)
	}
	if got.Params != want.Params || *got.Machines[0].Process != *want.Machines[0].Process || *got.Owner != *want.Owner || !got.Ready {
		t.Errorf("got %+v", got)
	}
}

func TestABrokenRecordSaysWhatToDo(t *testing.T) {
	c := newCluster(t)
	if err := os.WriteFile(c.stateFile(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.load(); err == nil || !strings.Contains(err.Error(), c.stateFile()) || !strings.Contains(err.Error(), "remove the folder") {
		t.Errorf("err = %v", err)
	}
}

func TestWhatIsLeftOfAClusterIsStale(t *testing.T) {
	for _, c := range []struct {
		name  string
		state state
		stale bool
	}{
		{"all run", state{Ready: true, Machines: []machineState{{Name: "cp", Process: self(t)}, {Name: "n1", Process: self(t)}}}, false},
		{"a node was killed on purpose", state{Ready: true, Machines: []machineState{{Name: "cp", Process: self(t)}, {Name: "n1", Off: true}}}, false},
		{"a node ended by itself: a person should look", state{Ready: true, Machines: []machineState{{Name: "cp", Process: self(t)}, {Name: "n1", Process: gone(t)}}}, false},
		{"the control plane ended, as after a reboot", state{Ready: true, Machines: []machineState{{Name: "cp", Process: gone(t)}}}, true},
		{"the start was interrupted", state{Machines: []machineState{{Name: "cp", Process: self(t)}}}, true},
		{"its owner was killed", state{Ready: true, Owner: gone(t), Machines: []machineState{{Name: "cp", Process: self(t)}}}, true},
	} {
		if got := c.state.stale(); got != c.stale {
			t.Errorf("%s: stale is %v", c.name, got)
		}
	}
}

func TestOnlyMachinesThatShouldRunAreMissed(t *testing.T) {
	s := state{Machines: []machineState{{Name: "cp", Process: self(t)}, {Name: "n1", Off: true}, {Name: "n2", Process: gone(t)}, {Name: "n3"}}}
	if got := s.dead(); !slices.Equal(got, []string{"n2", "n3"}) {
		t.Errorf("dead: %v", got)
	}
}

func TestAnUnknownNodeIsAnsweredWithTheKnown(t *testing.T) {
	s := state{Params: Params{Nodes: 2}, Machines: []machineState{{Name: "cp"}, {Name: "n1"}, {Name: "n2"}}}
	if n, m, err := s.node("n2"); err != nil || n.Index != 2 || m.Name != "n2" {
		t.Errorf("%v, %v, %v", n, m, err)
	}
	for _, name := range []string{"n3", "cp", ""} {
		if _, _, err := s.node(name); err == nil || !strings.Contains(err.Error(), "n1, n2") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTeardownEndsProcessesThenCgroupsThenFiles(t *testing.T) {
	c := newCluster(t)
	s := &state{Machines: []machineState{{Name: "cp", Process: self(t)}, {Name: "n1", Process: self(t)}, {Name: "n2", Off: true}}}
	var got []string
	for _, a := range c.teardownPlan(s) {
		got = append(got, strings.ReplaceAll(a.what, c.Dir, "DIR"))
	}
	want := []string{
		"ending n1", "ending cp",
		"removing the cgroups of n2", "removing the cgroups of n1", "removing the cgroups of cp",
		"removing DIR/machines", "removing DIR/hostpath", "removing DIR/pki", "removing DIR/kubeconfig", "removing DIR/lifeline",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestTeardownRemovesAllButTheLogs(t *testing.T) {
	c := newCluster(t)
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := process.Find(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	hierarchies := []cgroup.Hierarchy{{Controllers: "memory", Dir: t.TempDir()}}
	if err := os.MkdirAll(filepath.Join(cgroup.Paths(hierarchies, new(state).cgroupName("cp"))[0], "kubepods"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{c.machinesDir(), c.sharedDir(), c.pkiDir(), c.LogDir()} {
		if err := os.MkdirAll(filepath.Join(d, "content"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := &state{Hierarchies: hierarchies, Machines: []machineState{{Name: "cp", Process: &id}}}
	if err := c.save(s); err != nil {
		t.Fatal(err)
	}
	if err := c.teardown(s); err != nil {
		t.Fatal(err)
	}
	if id.Alive() {
		t.Error("the process is alive")
	}
	if left := list(t, c.Dir); !slices.Equal(left, []string{"logs"}) {
		t.Errorf("left: %v", left)
	}
	if left := list(t, hierarchies[0].Dir); len(left) > 0 {
		t.Errorf("cgroups left: %v", left)
	}
}

func TestTeardownKeepsItsRecordUntilAllIsGone(t *testing.T) {
	defer func(p time.Duration) { patience = p }(patience)
	patience = 50 * time.Millisecond
	c := newCluster(t)
	dir := t.TempDir()
	stuck := []cgroup.Hierarchy{{Controllers: "memory", Dir: dir}}
	// A folder with a file in it cannot be removed as a cgroup can.
	path := cgroup.Paths(stuck, new(state).cgroupName("cp"))[0]
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := &state{Hierarchies: stuck, Machines: []machineState{{Name: "cp"}}}
	if err := c.save(s); err != nil {
		t.Fatal(err)
	}
	if err := c.teardown(s); err == nil || !strings.Contains(err.Error(), "removing the cgroups of cp") || !strings.Contains(err.Error(), "qtls-cluster down") {
		t.Errorf("err = %v", err)
	}
	if _, err := c.load(); err != nil {
		t.Errorf("the record is gone: %v", err)
	}
}

func TestUntilGivesTheLastReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		err := until(t.Context(), 35*time.Second, 10*time.Second, func(context.Context) error {
			n++
			return fmt.Errorf("try %d says not yet", n)
		})
		if err == nil || err.Error() != "not within 35s: try 4 says not yet" {
			t.Errorf("after %d tries: %v", n, err)
		}
	})
	ctx, cancel := context.WithCancelCause(context.Background())
	stopped := errors.New("stopped by the signal interrupt")
	cancel(stopped)
	if err := until(ctx, time.Minute, time.Millisecond, func(context.Context) error { return errors.New("x") }); !errors.Is(err, stopped) {
		t.Errorf("err = %v", err)
	}
}

func TestNodesAreReadyWhenTheirConditionSaysSo(t *testing.T) {
	var n nodeObject
	n.Metadata.Name = "n1"
	if err := n.ready(); err == nil {
		t.Error("a node without conditions is ready")
	}
	n.Status.Conditions = []struct{ Type, Status, Reason, Message string }{{"Ready", "False", "KubeletNotReady", "no CNI"}}
	if err := n.ready(); err == nil || !strings.Contains(err.Error(), "no CNI") {
		t.Errorf("err = %v", err)
	}
	n.Status.Conditions[0].Status = "True"
	if err := n.ready(); err != nil {
		t.Error(err)
	}
}

func TestATakenPortIsNamedWithTheRemedy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if _, err := listen(port); err == nil || !strings.Contains(err.Error(), "taken") || !strings.Contains(err.Error(), "--port") {
		t.Errorf("err = %v", err)
	}
}

func TestLoadWantsArchives(t *testing.T) {
	c := newCluster(t)
	for _, a := range []string{filepath.Join(c.Dir, "missing.tar"), c.Dir} {
		if err := c.Load(context.Background(), []string{a}); err == nil || !strings.Contains(err.Error(), "docker-archive") {
			t.Errorf("%s: %v", a, err)
		}
	}
}

func TestNoClusterIsSaidSo(t *testing.T) {
	c := newCluster(t)
	if err := c.Status(context.Background(), io.Discard); !errors.Is(err, errNotUp) {
		t.Errorf("status: %v", err)
	}
	if _, err := c.loadUp(); !errors.Is(err, errNotUp) {
		t.Errorf("the rest: %v", err)
	}
}

func TestExitCodesAreThoseOfAShell(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 42": 42, "kill -TERM $$": 143} {
		cmd := exec.Command("sh", "-c", script)
		err := cmd.Run()
		if got := exitCode(cmd.ProcessState, err); got != want {
			t.Errorf("%s: %d, want %d", script, got, want)
		}
	}
}

func TestCertManagerRunsOnlyOurImages(t *testing.T) {
	values := strings.Join(certManagerValues(), ",")
	for _, want := range []string{"imageRegistry=qtls.local", "imageNamespace=cluster", "startupapicheck.enabled=false"} {
		if !strings.Contains(values, want) {
			t.Errorf("%s is not in %s", want, values)
		}
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
