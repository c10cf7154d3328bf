// Package machine runs the machines of a cluster. A machine is a set of namespaces (process IDs,
// mounts, network, host name, IPC, cgroups) with a PID 1 that is this program itself: it arranges
// the file system, starts the daemons and restarts those that end. Killing PID 1 ends the machine
// whole, its mounts and network included.
package machine

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"qtls.dev/qtls/hack/cluster/internal/cgroup"
)

// Where a machine finds its things. The paths are the same in every machine, so that what is
// rendered for one does not depend on where the host keeps it.
const (
	base   = "/run/qtls"
	BinDir = base + "/bin" // the programs
	EtcDir = base + "/etc" // this machine's files
	PKIDir = base + "/pki" // the cluster's certificates and keys
	LogDir = base + "/log" // the cluster's logs

	// SharedDir is where Kubernetes' hostpath provisioner puts volumes (the path is its own). All
	// machines share it.
	SharedDir = "/tmp/hostpath_pv"
)

// specFile is the name of a machine's Spec in EtcDir.
const specFile = "machine.json"

// A Spec says what a machine is.
type Spec struct {
	// Name is the host name, and the beginning of the logs' names.
	Name string `json:"name"`
	// Cgroup is the name of the machine's cgroup in each hierarchy.
	Cgroup      string             `json:"cgroup"`
	Hierarchies []cgroup.Hierarchy `json:"hierarchies"`
	// Binds are folders of the host shown in the machine, in the order of mounting.
	Binds []Bind `json:"binds"`
	// Sysctls are written: only those that belong to the network namespace are fit for it.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// ShownSysctls are those of the whole host that a daemon insists on: reading them in the machine
	// gives the value, the host keeps its own.
	ShownSysctls map[string]string `json:"shownSysctls,omitempty"`
	// Files are written to EtcDir.
	Files map[string]string `json:"files,omitempty"`
	// Daemons are started in this order.
	Daemons []Daemon `json:"daemons"`
	// Relay, when not empty, is the TCP address that connections to the machine's inherited
	// listener are passed on to.
	Relay string `json:"relay,omitempty"`
	// Lifeline says that the machine ends when the process that started it does.
	Lifeline bool `json:"lifeline,omitempty"`
}

// A Bind shows a file or folder of the host at a path of the machine.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// A Daemon is a program that a machine keeps running.
type Daemon struct {
	// Name is that of its log.
	Name string `json:"name"`
	// Args are the program, in BinDir, and its arguments.
	Args []string `json:"args"`
	// After must answer before the daemon starts: a UNIX socket (unix:///path) by accepting a
	// connection, or a page of the API server (https://...) with 200.
	After string `json:"after,omitempty"`
}

// LogFile is the name of a daemon's log in the folder of logs.
func (s Spec) LogFile(daemon string) string { return s.Name + "-" + daemon + ".log" }

// Host is where the host keeps the things of a machine.
type Host struct {
	// Dir is the machine's own folder.
	Dir string
	// Bin, PKI, Log and Shared are those of the cluster.
	Bin, PKI, Log, Shared string
}

// HostBinds are the binds that every machine has.
func HostBinds(h Host) []Bind {
	return []Bind{
		{h.Dir + "/etc", EtcDir},
		{h.Bin, BinDir},
		{h.PKI, PKIDir},
		{h.Log, LogDir},
		{h.Dir + "/var", "/var"},
		{h.Dir + "/tmp", "/tmp"},
		{h.Shared, SharedDir},
	}
}

// Prepare makes the machine's folders on the host and writes its files and its Spec there.
func Prepare(h Host, s Spec) error {
	for _, d := range []string{"etc", "var/lib", "var/log", "tmp/" + path.Base(SharedDir)} {
		if err := os.MkdirAll(filepath.Join(h.Dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(h.Dir, "tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	spec, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	etc := filepath.Join(h.Dir, "etc")
	for name, content := range s.Files {
		file := filepath.Join(etc, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(etc, specFile), spec, 0o644)
}

func readSpec(file string) (Spec, error) {
	var s Spec
	b, err := os.ReadFile(file)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}
