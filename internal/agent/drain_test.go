package agent

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/haproxy/runtime"
)

func TestConnectionsThatWaitForTheirBind(t *testing.T) {
	for name, c := range map[string]struct {
		port, toPostQuantum, postQuantum, toClassical, classical, passed int
		want                                                             int
	}{
		"none":                                  {12, 4, 4, 5, 5, 3, 0},
		"for their hello":                       {20, 4, 4, 5, 5, 3, 8},
		"for a bind":                            {20, 4, 4, 13, 5, 3, 8},
		"for both":                              {20, 6, 4, 7, 5, 3, 8},
		"a client that has gone":                {11, 4, 5, 4, 4, 3, 0},
		"some of an old worker's beside them":   {20, 4, 40, 5, 5, 3, 8},
		"all, and nobody has got further":       {5, 0, 0, 0, 0, 0, 5},
		"fewer than those that are passed on":   {2, 0, 0, 0, 0, 3, 0},
		"none, while others' requests are open": {0, 0, 9, 0, 9, 0, 0},
	} {
		proxies := []runtime.Proxy{
			{Name: "port.443", Frontend: true, Sessions: c.port},
			{Name: "to.web.ml-dsa-65", Sessions: c.toPostQuantum},
			{Name: "to.web.classical", Sessions: c.toClassical},
			{Name: "listener.web.ml-dsa-65", Frontend: true, Sessions: c.postQuantum},
			{Name: "listener.web.classical", Frontend: true, Sessions: c.classical},
			{Name: "backend.web", Sessions: 9},
			{Name: "backend.through", Sessions: c.passed},
			// Another port, whose connections are handed on to nobody.
			{Name: "listener.direct.classical", Frontend: true, Sessions: 7},
			{Name: "backend.direct", Sessions: 7},
		}
		if got := waiting(proxies); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		if got := selectionFrontends(proxies); !slices.Equal(got, []string{"port.443"}) {
			t.Errorf("%s: they wait in %v", name, got)
		}
	}
}

// Whatever is known of the connections that come, nodes have the whole delay to
// learn that the pod leaves.
func TestTheDelayIsSleptOutWhereNoWorkerAnswers(t *testing.T) {
	for _, delay := range []time.Duration{0, 300 * time.Millisecond, haproxy.DrainQuiet, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			started := time.Now()
			if err := stayOpen(t.Context(), trees{dir: t.TempDir()}, delay, slog.New(slog.DiscardHandler)); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(started); took != delay {
				t.Errorf("the ports close after %s, want %s", took, delay)
			}
		})
	}
}

// What is published during the delay is taken up.
func TestThePodLeavesTowardsTheEndOfTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trees := trees{dir: t.TempDir()}
		const delay = 5 * time.Second
		var early, late bool
		time.AfterFunc(delay-haproxy.DrainQuiet-time.Millisecond, func() { early = trees.leaving() })
		time.AfterFunc(delay-time.Millisecond, func() { late = trees.leaving() })
		if err := stayOpen(t.Context(), trees, delay, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if early || !late {
			t.Errorf("leaving during the delay: %v, shortly before its end: %v", early, late)
		}
	})
}

func TestConnectionsAreOpenUntilTheWorkerSaysOtherwise(t *testing.T) {
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	lives, ends := os.Getpid(), ended.Process.Pid
	none := runtime.Master{Socket: runtime.Socket(filepath.Join(t.TempDir(), "none"))}
	info := func(connections string) []string {
		return []string{"Version: 3.2.26\nPid: 7\nCurrConns: " + connections + "\n"}
	}
	for _, c := range []struct {
		name    string
		answers []string
		master  int
		want    bool
	}{
		{"it has one", info("1"), lives, true},
		{"it has none", info("0"), lives, false},
		{"it has ended", nil, lives, false},
		{"it says what is not understood", []string{"busy\n"}, lives, true},
		{"it did, and its master has ended", []string{"busy\n"}, ends, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			hold := holdOf(t, c.answers...)
			if got := anyConnections(t.Context(), hold, none, c.master); got != c.want {
				t.Errorf("open: %v", got)
			}
		})
	}
	if !anyConnections(t.Context(), nil, none, lives) || anyConnections(t.Context(), nil, none, ends) {
		t.Error("where no worker was found, the master's life counts")
	}
}

// holdOf a worker that gives these answers, and ends.
func holdOf(t *testing.T, answers ...string) *runtime.Hold {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		commands := bufio.NewScanner(conn)
		for _, answer := range append([]string{""}, answers...) { // the first is to `prompt`
			commands.Scan()
			_, _ = io.WriteString(conn, answer+"\n> ")
		}
	}()
	hold, err := (runtime.Admin{Socket: runtime.Socket(path)}).Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return hold
}
