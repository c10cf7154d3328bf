package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"qtls.dev/qtls/hack/cluster/internal/build"
	"qtls.dev/qtls/hack/cluster/internal/process"
)

// endWithin is how long a command has, once it was told to end, before it is killed.
const endWithin = 30 * time.Second

// Run starts a cluster, runs a command with KUBECONFIG set and takes the cluster down, whatever
// happens in between; even if this process is killed the machines end with it. The code is the
// command's, or 128 and the number of the signal that ended it, as a shell's is.
func (c *Cluster) Run(b *build.Builder, p Params, command []string) (code int, err error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return 127, err // as a shell says of a command that is not found
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	// Processes that outlive the command become this one's children, so that they can be ended.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1, err
	}
	if err := c.upUnless(signals, b, p); err != nil {
		return 1, err
	}
	defer func() {
		err = errors.Join(err, c.Down(context.Background()))
		if err != nil && code == 0 {
			code = 1
		}
	}()
	cmd := exec.Command(path, command[1:]...)
	cmd.Args[0] = command[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.KubeconfigPath())
	if err := cmd.Start(); err != nil {
		return 126, err
	}
	return c.supervise(cmd, signals), nil
}

// upUnless starts the cluster; a signal ends the attempt.
func (c *Cluster) upUnless(signals <-chan os.Signal, b *build.Builder, p Params) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- c.Up(ctx, b, p, true) }()
	for {
		select {
		case err := <-done:
			return err
		case sig := <-signals:
			cancel(fmt.Errorf("stopped by the signal %s", sig))
		}
	}
}

// supervise passes signals on to the command, waits for its end and ends what it left running.
func (c *Cluster) supervise(cmd *exec.Cmd, signals <-chan os.Signal) int {
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var late <-chan time.Time
	for {
		select {
		case err := <-done:
			c.endStragglers()
			return exitCode(cmd.ProcessState, err)
		case sig := <-signals:
			_ = cmd.Process.Signal(sig) // an error means that it has just ended
			if late == nil {
				late = time.After(endWithin)
			}
		case <-late:
			_ = cmd.Process.Kill()
		}
	}
}

// endStragglers kills the processes below this one that are not machines of the cluster.
func (c *Cluster) endStragglers() {
	var machines []int
	if s, err := c.load(); err == nil {
		for _, m := range s.Machines {
			if m.Process != nil {
				machines = append(machines, m.Process.PID)
				machines = append(machines, process.Descendants(m.Process.PID)...)
			}
		}
	}
	for _, pid := range process.Descendants(os.Getpid()) {
		if slices.Contains(machines, pid) {
			continue
		}
		if id, err := process.Find(pid); err == nil && id.Alive() {
			c.Out.Say("Ending process %d, which the command left running.", pid)
			_ = id.Kill(time.Second)
		}
	}
}

func exitCode(state *os.ProcessState, err error) int {
	if state == nil {
		return 1
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	if err != nil && state.ExitCode() == 0 {
		return 1 // its output could not be passed on
	}
	return state.ExitCode()
}
