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
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Dir is where a container sees its control group.
const Dir = "/sys/fs/cgroup"

// Usage up to now. What only grows tells, taken twice, what was in between. Times
// are nanoseconds in JSON.
type Usage struct {
	// CPU time that was used, by every thread; 0 where the kernel does not tell.
	CPU time.Duration `json:"cpu,omitempty"`
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

// CPUs are how many the control group that a folder shows may use, rounded up; 0
// without a quota.
func CPUs(dir string) (int, error) {
	folder, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer folder.Close()
	text, err := read(folder, "cpu.max") // version 2: "QUOTA PERIOD"
	if errors.Is(err, fs.ErrNotExist) {
		var quota, period string
		if quota, err = read(folder, "cpu/cpu.cfs_quota_us"); err == nil {
			period, err = read(folder, "cpu/cpu.cfs_period_us")
		}
		text = quota + " " + period
	}
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // the root group, or a kernel without quotas
	}
	if err != nil {
		return 0, err
	}
	var quota, period int64
	if strings.HasPrefix(text, "max ") || strings.HasPrefix(text, "-1 ") {
		return 0, nil
	}
	if n, err := fmt.Sscanf(text, "%d %d", &quota, &period); n != 2 || err != nil || quota < 1 || period < 1 {
		return 0, fmt.Errorf("CPU quota %.80q: %w", text, errMalformed)
	}
	return int((quota-1)/period) + 1, nil
}

// hierarchy is how the two versions call their files, and the fields in them.
type hierarchy struct {
	cpu, throttled string
	unit           time.Duration // of throttled
	used           string        // a file of its own, in nanoseconds, where cpu does not tell
	memory, peak   string
	limit, stat    string
	inactive       string
	events         string
}

var (
	version2 = hierarchy{"cpu.stat", "throttled_usec", time.Microsecond, "", "memory.current", "memory.peak", "memory.max", "memory.stat", "inactive_file", "memory.events"}
	version1 = hierarchy{"cpu/cpu.stat", "throttled_time", time.Nanosecond, "cpuacct/cpuacct.usage", "memory/memory.usage_in_bytes", "memory/memory.max_usage_in_bytes",
		"memory/memory.limit_in_bytes", "memory/memory.stat", "total_inactive_file", "memory/memory.oom_control"}
)

// Check that a folder shows a control group of the kernel's, as Dir does, and not
// what somebody made to look like one.
func Check(dir string) error {
	folder, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer folder.Close()
	// Version 1 has a folder for each controller in one that may be of any kind.
	for at, kind := range map[string]int64{".": unix.CGROUP2_SUPER_MAGIC, "memory": unix.CGROUP_SUPER_MAGIC} {
		f, err := folder.OpenFile(at, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		var s unix.Statfs_t
		err = unix.Fstatfs(int(f.Fd()), &s)
		f.Close()
		if err == nil && int64(s.Type) == kind { //nolint:unconvert // it is of 32 bits elsewhere
			return nil
		}
	}
	return fmt.Errorf("%s is no control group of the kernel's", dir)
}

// Read the control group that a folder shows, as Dir does. Nothing is read outside
// of the folder, and nothing in it that could keep the reader waiting.
func Read(dir string) (Usage, error) {
	folder, err := os.OpenRoot(dir)
	if err != nil {
		return Usage{}, err
	}
	defer folder.Close()
	h := version2
	if _, err := folder.Stat(version2.memory); err != nil {
		h = version1
	}
	var u Usage
	current, err := number(folder, h.memory)
	if err != nil {
		return Usage{}, fmt.Errorf("the control group in %s tells of no memory: %w", dir, err)
	}
	stat, err := fields(folder, h.stat)
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
	cpu, err := fields(folder, h.cpu)
	optional(err)
	u.Periods, u.ThrottledPeriods, u.Throttled = cpu["nr_periods"], cpu["nr_throttled"], time.Duration(cpu[h.throttled])*h.unit
	u.CPU = time.Duration(cpu["usage_usec"]) * time.Microsecond
	if h.used != "" {
		used, err := number(folder, h.used)
		optional(err)
		u.CPU = time.Duration(used)
	}
	u.MemoryPeak, err = number(folder, h.peak)
	optional(err)
	u.MemoryLimit, err = number(folder, h.limit)
	optional(err)
	if u.MemoryLimit > math.MaxInt64/2 { // version 1's way to say that there is none
		u.MemoryLimit = 0
	}
	events, err := fields(folder, h.events)
	optional(err)
	u.OOMKills = events["oom_kill"]
	pressure, err := read(folder, "memory.pressure")
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

func read(folder *os.Root, name string) (string, error) {
	f, err := folder.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for its writer
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, fmt.Errorf("%s: no regular file: %w", name, errMalformed))
	}
	text, err := io.ReadAll(io.LimitReader(f, most))
	return string(bytes.TrimSpace(text)), err
}

// number is that of a file with one; 0 for "max".
func number(folder *os.Root, name string) (int64, error) {
	text, err := read(folder, name)
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
func fields(folder *os.Root, name string) (map[string]int64, error) {
	text, err := read(folder, name)
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
