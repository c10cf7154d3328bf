// Package machine describes the one that a process runs on, as a container sees it.
package machine

import (
	"slices"
	"strings"
)

// Machine is what figures of CPU time belong to.
type Machine struct {
	CPUModel string `json:"cpuModel"`
	CPUs     int    `json:"cpus"`
	// Flags of the CPUs that cryptography uses.
	Flags  []string `json:"flags,omitempty"`
	Kernel string   `json:"kernel"`
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
	m := Machine{Kernel: strings.TrimSpace(string(kernel))}
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
