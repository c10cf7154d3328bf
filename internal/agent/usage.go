package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy/runtime"
)

// usage answers GET /v1/usage.
func (a *Agent) usage(w http.ResponseWriter, r *http.Request) {
	admin := a.Metrics.admin.Load()
	if admin == nil {
		http.Error(w, "HAProxy does not run", http.StatusServiceUnavailable)
		return
	}
	u, err := usageOf(r.Context(), *admin)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(u)
}

func usageOf(ctx context.Context, admin runtime.Admin) (dataplane.Usage, error) {
	info, err := admin.Info(ctx)
	if err != nil {
		return dataplane.Usage{}, err
	}
	cpu, err := admin.CPUTime(ctx)
	if err != nil {
		return dataplane.Usage{}, err
	}
	now := time.Now()
	// A container sees its node's: /proc/stat is of no namespace.
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return dataplane.Usage{}, err
	}
	total, idle, err := parseStat(string(stat))
	if err != nil {
		return dataplane.Usage{}, err
	}
	machine, err := machineOf(os.ReadFile)
	if err != nil {
		return dataplane.Usage{}, err
	}
	return dataplane.Usage{Machine: machine, Time: now.UnixNano(), Worker: fmt.Sprintf("%d@%d", info.PID, info.Started), CPU: int64(cpu),
		TLSConnections: int64(info.TLSConnections), MachineTotal: total, MachineIdle: idle}, nil
}

// parseStat reads the first line of /proc/stat: user, nice, system, idle, iowait,
// irq, softirq and steal; guests are in user and nice already. Time that another
// virtual machine has stolen is not idle.
func parseStat(stat string) (total, idle int64, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("/proc/stat begins with %.80q, not with the CPU times of the machine", line)
	}
	for i, field := range fields[1:9] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat: %.80q: %w", line, err)
		}
		if total += n; i == 3 || i == 4 {
			idle += n
		}
	}
	return total, idle, nil
}

// cryptographic are the CPU flags that cryptography uses.
var cryptographic = []string{"adx", "aes", "asimd", "avx2", "avx512f", "avx512ifma", "bmi2", "pclmulqdq", "sha2", "sha3", "sha_ni", "sve", "vaes", "vpclmulqdq"}

func machineOf(read func(string) ([]byte, error)) (dataplane.Machine, error) {
	kernel, err := read("/proc/sys/kernel/osrelease")
	if err != nil {
		return dataplane.Machine{}, err
	}
	cpus, err := read("/proc/cpuinfo")
	if err != nil {
		return dataplane.Machine{}, err
	}
	m := dataplane.Machine{Kernel: strings.TrimSpace(string(kernel))}
	for line := range strings.Lines(string(cpus)) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); strings.TrimSpace(name) {
		case "processor":
			m.CPUs++
		case "model name":
			m.CPUModel = value
		case "flags", "Features": // of x86 and of Arm
			m.Flags = slices.DeleteFunc(strings.Fields(value), func(flag string) bool { return !slices.Contains(cryptographic, flag) })
		}
	}
	slices.Sort(m.Flags)
	return m, nil
}
