// Package process names running processes so that a reused process ID is never mistaken for them.
package process

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An ID names one process of one boot of the machine.
type ID struct {
	PID int `json:"pid"`
	// Start is when the process began, in clock ticks since boot (field 22 of /proc/PID/stat).
	Start uint64 `json:"start"`
	// Boot is the kernel's boot ID.
	Boot string `json:"boot"`
}

// Find returns the ID of a running process.
func Find(pid int) (ID, error) {
	_, start, err := stat(pid)
	if err != nil {
		return ID{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ID{}, err
	}
	return ID{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, nil
}

// Alive says whether the process still runs. A zombie does not: all that it held is freed.
func (id ID) Alive() bool {
	now, err := Find(id.PID)
	if err != nil || now != id {
		return false
	}
	state, _, err := stat(id.PID)
	return err == nil && state != 'Z' && state != 'X'
}

// Kill ends the process with SIGKILL and waits until it is gone. It is no error when it was.
func (id ID) Kill(patience time.Duration) error {
	for deadline := time.Now().Add(patience); id.Alive(); time.Sleep(5 * time.Millisecond) {
		if err := unix.Kill(id.PID, unix.SIGKILL); err != nil && err != unix.ESRCH {
			return fmt.Errorf("killing process %d: %w", id.PID, err)
		}
		reap(id.PID)
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d is still there %s after SIGKILL", id.PID, patience)
		}
	}
	reap(id.PID)
	return nil
}

// reap collects the process if it is a child of this one.
func reap(pid int) {
	var ws unix.WaitStatus
	_, _ = unix.Wait4(pid, &ws, unix.WNOHANG, nil) // ECHILD: another's child
}

// Descendants returns the processes below pid, parents before their children.
func Descendants(pid int) []int {
	var all []int
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, t := range tasks {
		list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		if err != nil {
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(list)) {
			if child, err := strconv.Atoi(f); err == nil {
				all = append(all, child)
			}
		}
	}
	for _, child := range slices.Clone(all) {
		all = append(all, Descendants(child)...)
	}
	return all
}

func stat(pid int) (state byte, start uint64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	return parseStat(string(b))
}

// parseStat reads the state and the start time from /proc/PID/stat. The program's name, in
// parentheses, may hold spaces and parentheses itself (proc(5)).
func parseStat(line string) (state byte, start uint64, err error) {
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(fields) < 20 || len(fields[0]) != 1 {
		return 0, 0, fmt.Errorf("cannot read /proc/PID/stat %q", line)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0][0], start, err
}
