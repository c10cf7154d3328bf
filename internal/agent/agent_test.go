package agent

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
)

// answerWith has a socket answer commands as HAProxy does: one on each connection.
func answerWith(t *testing.T, socket string, answer func(command string) string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			command, _ := io.ReadAll(c)
			_, _ = io.WriteString(c, answer(string(command)))
			_ = c.Close()
		}
	}()
}

// onlyPublished is the API server of an operator that has published, and of no
// Secret.
type onlyPublished struct{ configMap *corev1.ConfigMap }

func (o onlyPublished) ConfigMap(_ context.Context, _ string, deliver func(*corev1.ConfigMap, error)) {
	deliver(o.configMap, nil)
}

func (onlyPublished) Secret(context.Context, string, func(*corev1.Secret, error)) {}

// HAProxy, which loads nothing more, is asked to load a new revision, then what it
// runs, and is left alone: the agent is there for what else happens.
func TestRefusedReloadsEnd(t *testing.T) {
	first, second := dataplane.Revision{Config: "first"}, dataplane.Revision{Config: "second"}
	target := dataplane.Target{Revision: second.Name(), Generation: 2}
	a := New(Options{Gateway: "web", Pod: "web-1", RunDir: t.TempDir(), HAProxy: "true", // which checks everything
		Objects: onlyPublished{publication{assignment: dataplane.Assignment{Stable: target}, revisions: []dataplane.Revision{second}}.configMap(t)},
		Log:     slog.New(slog.DiscardHandler), Metrics: NewMetrics()})
	runs, err := a.trees.write(first, state{Target: dataplane.Target{Revision: first.Name(), Generation: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.trees.use(runs.Name); err != nil {
		t.Fatal(err)
	}
	answerWith(t, string(a.trees.admin(runs.Name).Socket), func(command string) string {
		if strings.HasPrefix(command, "show info") {
			return "Version: 3.2.26\nPid: 7\nStart_time_sec: 100\nStopping: 0\n\n"
		}
		return "1\n\n" // of servers
	})
	var reloads atomic.Int64
	answerWith(t, string(a.master.Socket), func(command string) string {
		if strings.HasPrefix(command, "reload") {
			reloads.Add(1)
		}
		return "Success=0\n--\n[ALERT]    (7) : config : no more\n\n"
	})
	ended := make(chan error, 1)
	go func() { ended <- a.Run(t.Context()) }()
	t.Cleanup(func() { // the context has ended
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})

	rejected := func() bool {
		s, _ := a.status.get()
		return s.Rejected != nil && s.Rejected.Target == target && s.Rejected.Message == "no more" && s.Running == runs.Target
	}
	for deadline := time.Now().Add(patience); !rejected(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s, _ := a.status.get()
			t.Fatalf("status: %+v", s)
		}
	}
	taken := make(chan struct{})
	a.post(t.Context(), func() { close(taken) })
	select {
	case <-taken:
	case <-time.After(patience):
		t.Error("the agent takes in nothing more")
	}
	time.Sleep(time.Second)
	if n := reloads.Load(); n != 2 {
		t.Errorf("%d reloads; want one of the new revision, and one of what runs", n)
	}
	if !rejected() {
		s, _ := a.status.get()
		t.Errorf("status after a while: %+v", s)
	}
	if name, err := a.trees.current(); name != runs.Name || err != nil {
		t.Errorf("HAProxy would start from %s (%v), and runs %s", name, err, runs.Name)
	}
}

// The next process of an agent that ends while servers move goes on, not back.
func TestServersAreOnDiskBeforeTheyMove(t *testing.T) {
	a := New(Options{RunDir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics()})
	var err error
	if a.current, err = a.trees.write(firstRevision, testState(firstRevision)); err != nil {
		t.Fatal(err)
	}
	a.proxy = proxy{up: true, tree: a.current.Name, worker: worker{7, 100}}
	a.synchronised = a.proxy.worker
	told := 0
	answerWith(t, string(a.trees.admin(a.current.Name).Socket), func(string) string {
		if told++; told > 1 {
			return "" // it ends in mid-answer
		}
		return "\n\n"
	})
	slots := haproxy.Assign(firstRevision, a.current.Slots, dataplane.Endpoints{"shop:http": {there}})
	changes, ok := haproxy.Changes(firstRevision, a.current.Slots, slots)
	if !ok || len(changes) != 2 {
		t.Fatalf("changes: %v, %v", changes, ok)
	}
	if err := a.setServers(t.Context(), setServers{slots, changes}); err == nil {
		t.Fatal("the second server has moved, too")
	}
	read, err := a.trees.read(a.current.Name)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(read.Slots, slots) || !reflect.DeepEqual(a.current.Slots, slots) {
		t.Errorf("read are %+v, known %+v, want %+v", read.Slots, a.current.Slots, slots)
	}
	backends, err := os.ReadFile(a.trees.path(a.current.Name, haproxy.BackendsFile))
	if err != nil || !strings.Contains(string(backends), "server g1-2 10.0.0.2:80") {
		t.Errorf("%v; HAProxy would start from\n%s", err, backends)
	}
	if a.synchronised != (worker{}) {
		t.Error("the other servers are not looked at again")
	}
}
