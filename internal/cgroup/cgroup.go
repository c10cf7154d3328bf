// Package cgroup reads what a container has used, and had to wait for, where it
// sees that itself: in its own control group, version 2 or 1.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Dir is where a container sees its control group.
const Dir = "/sys/fs/cgroup"

// Usage up to now. What only grows tells, taken twice, what was in between. Times
// are nanoseconds in JSON.
type Usage struct {
	// Periods of the CPU quota, those in which it was used up, and for how long
	// threads then waited in total. All are 0 without a quota.
	Periods          int64         `json:"periods,omitempty"`
	ThrottledPeriods int64         `json:"throttledPeriods,omitempty"`
	Throttled        time.Duration `json:"throttled,omitempty"`
	// Memory is the working set in bytes: what the kernel cannot take back at once.
	// MemoryPeak is the most that was ever charged, caches included, 0 where the
	// kernel does not tell; MemoryLimit is 0 without one.
	Memory      int64 `json:"memory"`
	MemoryPeak  int64 `json:"memoryPeak,omitempty"`
	MemoryLimit int64 `json:"memoryLimit,omitempty"`
	// OOMKills of processes, for lack of memory.
	OOMKills int64 `json:"oomKills,omitempty"`
	// MemoryStalled is for how long no thread could go on for lack of memory (PSI,
	// "full"); nil where the kernel does not tell.
	MemoryStalled *time.Duration `json:"memoryStalled,omitempty"`
}

// hierarchy is how the two versions call their files, and the fields in them.
type hierarchy struct {
	cpu, throttled string
	unit           time.Duration // of throttled
	memory, peak   string
	limit, stat    string
	inactive       string
	events         string
}

var (
	version2 = hierarchy{"cpu.stat", "throttled_usec", time.Microsecond, "memory.current", "memory.peak", "memory.max", "memory.stat", "inactive_file", "memory.events"}
	version1 = hierarchy{"cpu/cpu.stat", "throttled_time", time.Nanosecond, "memory/memory.usage_in_bytes", "memory/memory.max_usage_in_bytes",
		"memory/memory.limit_in_bytes", "memory/memory.stat", "total_inactive_file", "memory/memory.oom_control"}
)

// Read the control group that a folder shows, as Dir does.
func Read(dir string) (Usage, error) {
	h := version2
	if _, err := os.Stat(filepath.Join(dir, version2.memory)); err != nil {
		h = version1
	}
	var u Usage
	current, err := number(dir, h.memory)
	if err != nil {
		return Usage{}, fmt.Errorf("the control group in %s tells of no memory: %w", dir, err)
	}
	stat, err := fields(dir, h.stat)
	if err != nil {
		return Usage{}, err
	}
	u.Memory = max(current-stat[h.inactive], 0)
	// What follows is not there everywhere: a group without the controller, a kernel
	// that is too old.
	var errs []error
	optional := func(err error) {
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	cpu, err := fields(dir, h.cpu)
	optional(err)
	u.Periods, u.ThrottledPeriods, u.Throttled = cpu["nr_periods"], cpu["nr_throttled"], time.Duration(cpu[h.throttled])*h.unit
	u.MemoryPeak, err = number(dir, h.peak)
	optional(err)
	u.MemoryLimit, err = number(dir, h.limit)
	optional(err)
	if u.MemoryLimit > math.MaxInt64/2 { // version 1's way to say that there is none
		u.MemoryLimit = 0
	}
	events, err := fields(dir, h.events)
	optional(err)
	u.OOMKills = events["oom_kill"]
	pressure, err := read(dir, "memory.pressure")
	if err == nil {
		u.MemoryStalled, err = stalled(pressure)
	}
	// A kernel that does not keep it has the file and refuses to read it.
	if err != nil && errors.Is(err, errMalformed) {
		errs = append(errs, err)
	}
	return u, errors.Join(errs...)
}

var errMalformed = errors.New("malformed")

// most of a file that is read: none is a tenth as large.
const most = 64 << 10

func read(dir, name string) (string, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most))
	return string(bytes.TrimSpace(text)), err
}

// number is that of a file with one; 0 for "max".
func number(dir, name string) (int64, error) {
	text, err := read(dir, name)
	if err != nil || text == "max" {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %.80q: %w", name, text, errMalformed)
	}
	return n, nil
}

// fields of a file with a name and a number in each line.
func fields(dir, name string) (map[string]int64, error) {
	text, err := read(dir, name)
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for line := range strings.Lines(text) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %.80q: %w", name, line, errMalformed)
		}
		all[field] = n
	}
	return all, nil
}

// stalled reads the line `full avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS`.
func stalled(pressure string) (*time.Duration, error) {
	for line := range strings.Lines(pressure) {
		rest, full := strings.CutPrefix(strings.TrimSpace(line), "full ")
		if !full {
			continue
		}
		_, total, _ := strings.Cut(rest, "total=")
		n, err := strconv.ParseInt(total, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("memory.pressure: %.80q: %w", line, errMalformed)
		}
		d := time.Duration(n) * time.Microsecond
		return &d, nil
	}
	return nil, nil
}
