package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"syscall"
	"time"

	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/haproxy/runtime"
)

// drainLook is how often a drain is looked at.
const drainLook = 100 * time.Millisecond

// lastConnection to the worker that drains is a variable of the process, for its
// end closes it, and not a garbage collection before that.
var lastConnection *runtime.Hold

// Drain has the HAProxy of a container let go of its connections. For the delay
// it still takes new ones, so that every node learns that the pod is leaving,
// and a little longer while some come. Then ports close; those whose connections
// are handed on inside the pod first, for HAProxy would close the binds behind
// them at the same moment, and what is between the two would be lost. Last its
// master is told to end when the open connections have, and Drain returns when
// they have: HAProxy's own hard-stop-after bounds that.
//
// It is the container's preStop hook, and the master is process 1 of the
// container: when that ends the kernel kills the hook too, and a killed hook is
// reported as a failed one. So Drain holds the last connection itself, until its
// process ends, which it has to when Drain returns: a process that is killed
// while it ends has ended by itself.
func Drain(ctx context.Context, delay time.Duration, runDir string, master int, log *slog.Logger) error {
	trees := trees{dir: runDir}
	log.Info("still accepting connections", "delay", delay.String())
	if err := stayOpen(ctx, trees, delay, log); err != nil {
		return err
	}
	lastConnection = handOver(ctx, trees, log)
	if err := syscall.Kill(master, syscall.SIGUSR1); err != nil {
		return fmt.Errorf("telling HAProxy's master, process %d, to drain: %w", master, err)
	}
	log.Info("draining")
	started := time.Now()
	for open := true; open; open = anyConnections(ctx, lastConnection, masterIn(runDir), master) {
		if err := sleep(ctx, drainLook); err != nil {
			return err
		}
	}
	log.Info("drained", "took", time.Since(started).String())
	return nil
}

// stayOpen lets HAProxy take connections for the delay, and a little longer while
// some come. Towards its end the agent stops to load what is published: a worker
// that came later would open ports again that have closed.
func stayOpen(ctx context.Context, t trees, delay time.Duration, log *slog.Logger) error {
	awaits := delay >= haproxy.DrainQuiet
	if awaits {
		delay -= haproxy.DrainQuiet
	}
	if err := sleep(ctx, delay); err != nil {
		return err
	}
	if err := t.leave(); err != nil {
		log.Warn("a change of the configuration may cut connections now", "error", err)
	}
	if !awaits {
		return nil
	}
	return awaitQuiet(ctx, t)
}

// awaitQuiet returns when no connection has come for a while, or does not stop
// to come: somebody knows the pod by its address.
func awaitQuiet(ctx context.Context, t trees) error {
	for started, before := time.Now(), -1; time.Since(started) < haproxy.DrainQuiet+haproxy.DrainLate; {
		now := came(ctx, t)
		if now == before {
			return nil
		}
		before = now
		if err := sleep(ctx, haproxy.DrainQuiet); err != nil {
			return err
		}
	}
	return nil
}

// came are the connections that the worker has taken so far; none while no worker
// tells. It is another worker's number after a load that was on its way.
func came(ctx context.Context, t trees) (all int) {
	name, _, ok := t.running(ctx)
	if !ok {
		return 0
	}
	proxies, _ := t.admin(name).Proxies(ctx)
	for _, p := range proxies {
		if p.Frontend {
			all += p.AllSessions
		}
	}
	return all
}

// handOver closes the ports whose connections are handed on, and holds the worker
// that takes them; nil while none answers.
func handOver(ctx context.Context, t trees, log *slog.Logger) *runtime.Hold {
	name, _, ok := t.running(ctx)
	if !ok {
		log.Warn("no worker answers; its master is told to end all the same")
		return nil
	}
	admin := t.admin(name)
	hold, err := admin.Hold(ctx)
	if err != nil {
		log.Warn("the worker may end before this hook does", "error", err)
	}
	if err := closeSelections(ctx, admin, masterIn(t.dir)); err != nil {
		log.Warn("connections that no listener has taken yet may be lost", "error", err)
	}
	return hold
}

// closeSelections closes the ports whose connections are handed on, and returns
// when all that they have taken are. An old worker's are handed to the same binds.
func closeSelections(ctx context.Context, admin runtime.Admin, master runtime.Master) error {
	ctx, cancel := context.WithTimeout(ctx, haproxy.DrainHandOver)
	defer cancel()
	proxies, err := admin.Proxies(ctx)
	if err != nil {
		return err
	}
	selections := selectionFrontends(proxies)
	if len(selections) == 0 {
		return nil
	}
	var failed error // it is closed already, or closes with the others
	for _, f := range selections {
		if err := admin.DisableFrontend(ctx, f); err != nil {
			failed = errors.Join(failed, fmt.Errorf("frontend %s: %w", f, err))
		}
	}
	for ctx.Err() == nil {
		if proxies, err := admin.Proxies(ctx); err == nil && waiting(proxies) == 0 && !oldWorkers(ctx, master) {
			return failed
		}
		_ = sleep(ctx, drainLook)
	}
	return errors.Join(failed, fmt.Errorf("some wait for longer than %s", haproxy.DrainHandOver))
}

// selectionFrontends are those that choose a bind.
func selectionFrontends(proxies []runtime.Proxy) (names []string) {
	for _, p := range proxies {
		if p.Frontend && haproxy.IsSelection(p.Name) {
			names = append(names, p.Name)
		}
	}
	return names
}

// waiting is how many connections wait in them: for their ClientHello, or for the
// bind to take them.
func waiting(proxies []runtime.Proxy) (n int) {
	taken, terminates := map[string]int{}, map[string]bool{}
	for _, p := range proxies {
		if listener, ok := haproxy.ListenerOfFrontend(p.Name); ok && p.Frontend {
			taken[p.Name] = p.Sessions
			terminates[listener] = true
		}
	}
	undecided := 0
	for _, p := range proxies {
		if p.Frontend {
			if haproxy.IsSelection(p.Name) {
				undecided += p.Sessions
			}
			continue
		}
		if frontend, ok := haproxy.FrontendOfDestination(p.Name); ok {
			undecided -= p.Sessions
			n += max(p.Sessions-taken[frontend], 0) // it may have some of an old worker's, too
		}
		if listener, ok := haproxy.ListenerOfBackend(p.Name); ok && !terminates[listener] { // passed through
			undecided -= p.Sessions
		}
	}
	return n + max(undecided, 0)
}

// anyConnections says whether the worker has connections, or one of an earlier
// configuration lives. One that has ended has none; of one that does not answer
// nothing is known before its master has ended.
func anyConnections(ctx context.Context, hold *runtime.Hold, socket runtime.Master, master int) bool {
	lives := func() bool { return syscall.Kill(master, 0) == nil }
	if hold == nil {
		return lives()
	}
	info, err := hold.Info()
	switch {
	case errors.Is(err, io.EOF):
		return false
	case err != nil:
		return lives()
	}
	return info.Connections > 0 || oldWorkers(ctx, socket)
}

// oldWorkers says whether workers of earlier configurations still end their
// connections.
func oldWorkers(ctx context.Context, master runtime.Master) bool {
	processes, err := master.Processes(ctx)
	return err == nil && len(processes.Workers) > 1
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// masterSocket in the folder that HAProxy and the agent share.
var masterSocket = filepath.Base(haproxy.MasterSocket)

// masterIn is the master's socket.
func masterIn(runDir string) runtime.Master {
	return runtime.Master{Socket: runtime.Socket(runDir + "/" + masterSocket)}
}
