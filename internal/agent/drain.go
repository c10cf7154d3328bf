package agent

import (
	"context"
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
	// handOver is how long a connection that is being handed on may take: a
	// ClientHello is waited for 3 seconds at most.
	handOver = 4 * time.Second
)

// Drain has the HAProxy of a container let go of its connections. For the delay
// it still takes new ones, so that every node learns that the pod is leaving.
// Then ports close; those whose connections are handed on inside the pod first,
// for HAProxy would close the binds behind them at the same moment, and what is
// between the two would be lost. Last its master is told to end when the open
// connections have, and Drain returns when they have: HAProxy's own
// hard-stop-after bounds that.
//
// It is the container's preStop hook, and the master is process 1 of the
// container: when that ends the kernel kills the hook too, and a killed hook is
// reported as a failed one. So Drain holds the last connection itself.
func Drain(ctx context.Context, delay time.Duration, runDir string, master int, log *slog.Logger) error {
	log.Info("still accepting connections", "delay", delay.String())
	if err := sleep(ctx, delay); err != nil {
		return err
	}
	hold, err := holdWorker(ctx, trees{dir: runDir})
	if err != nil {
		log.Warn("no worker answers; its master is told to end all the same", "error", err)
	} else {
		defer hold.Release()
		if err := closeSelections(ctx, trees{dir: runDir}); err != nil {
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

// closeSelections closes the ports whose connections are handed on, and returns
// when all that they have taken are.
func closeSelections(ctx context.Context, t trees) error {
	name, err := t.current()
	if err != nil {
		return err
	}
	admin := t.admin(name)
	proxies, err := admin.Proxies(ctx)
	if err != nil {
		return err
	}
	frontends, _ := haproxy.Selections(proxies)
	for _, f := range frontends {
		if err := admin.DisableFrontend(ctx, f); err != nil {
			return fmt.Errorf("frontend %s: %w", f, err)
		}
	}
	for closed := time.Now(); len(frontends) > 0; {
		if proxies, err = admin.Proxies(ctx); err != nil {
			return err
		}
		if _, waiting := haproxy.Selections(proxies); waiting == 0 || time.Since(closed) >= handOver {
			return nil
		}
		if err := sleep(ctx, drainLook); err != nil {
			return err
		}
	}
	return nil
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
