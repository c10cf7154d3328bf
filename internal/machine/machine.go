// Package machine describes the one that a process runs on, as a container sees it.
package machine

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// Machine is what figures of CPU time belong to.
type Machine struct {
	CPUModel string `json:"cpuModel"`
	CPUs     int    `json:"cpus"`
	// Flags of the CPUs that cryptography uses.
	Flags []string `json:"flags,omitempty"`
	// Memory in bytes; 0 where it is not told.
	Memory int64  `json:"memory,omitempty"`
	Kernel string `json:"kernel"`
}

// cryptographic are the CPU flags that cryptography uses.
var cryptographic = []string{"adx", "aes", "asimd", "avx2", "avx512f", "avx512ifma", "bmi2", "pclmulqdq", "sha2", "sha3", "sha_ni", "sve", "vaes", "vpclmulqdq"}

// Describe the machine that this process runs on; read is os.ReadFile.
func Describe(read func(string) ([]byte, error)) (Machine, error) {
	kernel, err := read("/proc/sys/kernel/osrelease")
	if err != nil {
		return Machine{}, err
	}
	cpus, err := read("/proc/cpuinfo")
	if err != nil {
		return Machine{}, err
	}
	memory, err := read("/proc/meminfo")
	if err != nil {
		return Machine{}, err
	}
	m := Machine{Kernel: strings.TrimSpace(string(kernel)), Memory: total(string(memory))}
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

// total of /proc/meminfo, whose unit is always kB and means KiB.
func total(meminfo string) int64 {
	for line := range strings.Lines(meminfo) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "MemTotal:" {
			kibibytes, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil || kibibytes < 0 || kibibytes > math.MaxInt64>>10 {
				return 0
			}
			return kibibytes << 10
		}
	}
	return 0
}
