package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"syscall"
	"time"

	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/haproxy/runtime"
)

const (
	// drainLook is how often a drain is looked at.
	drainLook = 100 * time.Millisecond
	// quiet is how long no connection comes when all nodes know that the pod
	// leaves, and late by how much more than the delay they may learn of it.
	quiet, late = time.Second, 5 * time.Second
	// handOver is how long a connection that is being handed on may take: a
	// ClientHello is waited for 3 seconds at most.
	handOver = 4 * time.Second
)

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
// reported as a failed one. So Drain holds the last connection itself.
func Drain(ctx context.Context, delay time.Duration, runDir string, master int, log *slog.Logger) error {
	trees := trees{dir: runDir}
	if err := trees.leave(); err != nil {
		log.Warn("a change of the configuration may cut connections now", "error", err)
	}
	log.Info("still accepting connections", "delay", delay.String())
	if err := sleep(ctx, max(delay-quiet, 0)); err != nil {
		return err
	}
	if delay >= quiet {
		if err := awaitQuiet(ctx, trees); err != nil {
			return err
		}
	}
	hold, err := holdWorker(ctx, trees)
	if err != nil {
		log.Warn("no worker answers; its master is told to end all the same", "error", err)
	} else {
		defer hold.Release()
		if err := closeSelections(ctx, trees); err != nil {
			log.Warn("connections that no listener has taken yet may be lost", "error", err)
		}
	}
	if err := syscall.Kill(master, syscall.SIGUSR1); err != nil {
		return fmt.Errorf("telling HAProxy's master, process %d, to drain: %w", master, err)
	}
	log.Info("draining")
	started := time.Now()
	for open := true; open; {
		if err := sleep(ctx, drainLook); err != nil {
			return err
		}
		if hold == nil {
			open = syscall.Kill(master, 0) == nil
		} else {
			open = anyConnections(ctx, hold, masterIn(runDir))
		}
	}
	log.Info("drained", "took", time.Since(started).String())
	return nil
}

// awaitQuiet returns when no connection has come for a while, or does not stop
// to come: somebody knows the pod by its address.
func awaitQuiet(ctx context.Context, t trees) error {
	came := func() (all int, known bool) {
		proxies, err := t.proxies(ctx)
		for _, p := range proxies {
			if p.Frontend {
				all += p.AllSessions
			}
		}
		return all, err == nil
	}
	for started, before := time.Now(), -1; time.Since(started) < quiet+late; {
		now, known := came()
		if !known || now == before {
			return nil
		}
		before = now
		if err := sleep(ctx, quiet); err != nil {
			return err
		}
	}
	return nil
}

// closeSelections closes the ports whose connections are handed on, and returns
// when all that they have taken are.
func closeSelections(ctx context.Context, t trees) error {
	ctx, cancel := context.WithTimeout(ctx, handOver)
	defer cancel()
	proxies, err := t.proxies(ctx)
	if err != nil {
		return err
	}
	frontends, _ := haproxy.Selections(proxies)
	if len(frontends) == 0 {
		return nil
	}
	name, err := t.current()
	if err != nil {
		return err
	}
	var failed error // it is closed already, or closes with the others
	for _, f := range frontends {
		if err := t.admin(name).DisableFrontend(ctx, f); err != nil {
			failed = errors.Join(failed, fmt.Errorf("frontend %s: %w", f, err))
		}
	}
	for ctx.Err() == nil {
		if proxies, err := t.proxies(ctx); err == nil && !waits(ctx, t, proxies) {
			return failed
		}
		_ = sleep(ctx, drainLook)
	}
	return errors.Join(failed, fmt.Errorf("some wait for longer than %s", handOver))
}

// waits says whether any connection waits for its bind. An old worker's are
// handed to the same binds.
func waits(ctx context.Context, t trees, proxies []runtime.Proxy) bool {
	_, waiting := haproxy.Selections(proxies)
	processes, err := masterIn(t.dir).Processes(ctx)
	return waiting > 0 || err == nil && len(processes.Workers) > 1
}

// proxies of the worker that runs the current tree.
func (t trees) proxies(ctx context.Context) ([]runtime.Proxy, error) {
	name, err := t.current()
	if err != nil {
		return nil, err
	}
	return t.admin(name).Proxies(ctx)
}

func holdWorker(ctx context.Context, t trees) (*runtime.Hold, error) {
	name, err := t.current()
	if err != nil {
		return nil, err
	}
	return t.admin(name).Hold(ctx)
}

// anyConnections says whether the worker has connections, or one of an earlier
// configuration lives. Who does not answer any more has none.
func anyConnections(ctx context.Context, hold *runtime.Hold, master runtime.Master) bool {
	info, err := hold.Info()
	if err != nil {
		return false
	}
	processes, err := master.Processes(ctx)
	return info.Connections > 0 || err == nil && len(processes.Workers) > 1
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
