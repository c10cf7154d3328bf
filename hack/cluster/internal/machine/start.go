package machine

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"qtls.dev/qtls/hack/cluster/internal/process"
)

// The hidden arguments by which this program becomes a machine's PID 1.
const (
	Internal = "internal"
	enter    = "machine-enter" // outside the machine's cgroup namespace, arranging
	initd    = "machine-init"  // inside, supervising
)

// The files that a machine inherits besides the standard three.
const (
	listenerFD = 3
	lifelineFD = 4
)

// A Starting machine has its namespaces, so that its network can be wired, and waits for Go.
type Starting struct {
	ID process.ID

	cmd  *exec.Cmd
	wait io.WriteCloser
}

// Start makes the machine that Prepare wrote to h. listener (with Spec.Relay) and lifeline (with
// Spec.Lifeline) may be nil; the caller keeps its own ends. stdout and stderr of PID 1 go to log.
func Start(h Host, log, listener, lifeline *os.File) (*Starting, error) {
	cmd := exec.Command("/proc/self/exe", Internal, enter, filepath.Join(h.Dir, "etc", specFile))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // a signal to the caller's terminal is not for the cluster
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	cmd.ExtraFiles = []*os.File{null, null}
	if listener != nil {
		cmd.ExtraFiles[listenerFD-3] = listener
	}
	if lifeline != nil {
		cmd.ExtraFiles[lifelineFD-3] = lifeline
	}
	wait, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("making the namespaces of a machine: %w", err)
	}
	id, err := process.Find(cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("the machine ended at once: %w; see %s", err, log.Name())
	}
	return &Starting{ID: id, cmd: cmd, wait: wait}, nil
}

// Go lets the machine boot. If the caller ends before, the machine ends too.
func (s *Starting) Go() error {
	if _, err := s.wait.Write([]byte(goAhead)); err != nil {
		return fmt.Errorf("the machine ended before it booted: %w", err)
	}
	return s.wait.Close()
}

const goAhead = "go"

// Main is PID 1's main function; args are those after Internal.
func Main(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("this command is for the program itself")
	}
	switch args[0] {
	case enter:
		return enterMachine(args[1])
	case initd:
		return supervise(args[1])
	}
	return fmt.Errorf("unknown internal command %q", args[0])
}
