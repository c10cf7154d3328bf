package runtime

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Master is the socket of the master process.
type Master struct{ Socket }

// Processes are what the master runs.
type Processes struct {
	// PID of the master.
	PID int
	// Reloads since the master started, and how many of the last ones in a
	// row failed.
	Reloads, Failed int
	// Workers, the present one first. After a reload that failed HAProxy lists
	// the worker that serves on among the old ones.
	Workers []Worker
}

// Worker is a process that serves.
type Worker struct {
	PID int
	// Old workers end their connections, or serve on after a failed reload.
	Old bool
}

// Processes asks for the master's processes.
func (m Master) Processes(ctx context.Context) (Processes, error) {
	answer, err := m.do(ctx, "show proc")
	if err != nil {
		return Processes{}, err
	}
	return parseProcesses(answer)
}

func parseProcesses(answer string) (Processes, error) {
	var p Processes
	old := false
	for line := range strings.Lines(answer) {
		if strings.HasPrefix(line, "# old workers") {
			old = true
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		pid, err := strconv.Atoi(fields[0])
		if err != nil || pid <= 0 {
			return Processes{}, fmt.Errorf("show proc: %q: %w", line, errUnparsed)
		}
		switch fields[1] {
		case "master":
			p.PID = pid
			if len(fields) >= 5 {
				p.Reloads, _ = strconv.Atoi(fields[2])
				p.Failed, _ = strconv.Atoi(strings.TrimSuffix(fields[4], "]"))
			}
		case "worker":
			p.Workers = append(p.Workers, Worker{PID: pid, Old: old})
		}
	}
	if p.PID == 0 {
		return Processes{}, fmt.Errorf("show proc: no master: %w", errUnparsed)
	}
	return p, nil
}

// reloadTimeout bounds a reload: the new worker reads its configuration and
// certificates, and looks up nothing.
const reloadTimeout = 2 * time.Minute

// Reload has the master start a worker with the configuration as it is now in
// its files, and let the former worker finish its connections. It returns when
// the new worker serves, or a *Refusal when it does not start: then the former
// one serves on.
func (m Master) Reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	answer, err := m.exchange(ctx, "reload")
	if err != nil {
		return fmt.Errorf("HAProxy socket %s: reload: %w", m.Socket, err)
	}
	return parseReload(answer)
}

func parseReload(answer string) error {
	status, output, _ := strings.Cut(answer, "\n")
	_, output, _ = strings.Cut(output, "--\n")
	switch strings.TrimSpace(status) {
	case "Success=1":
		return nil
	case "Success=0":
		return &Refusal{Message(output)}
	}
	return fmt.Errorf("reload: %.100q: %w", status, errUnparsed)
}
