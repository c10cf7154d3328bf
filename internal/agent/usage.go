package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy/runtime"
	"qtls.dev/qtls/internal/machine"
	"qtls.dev/qtls/internal/version"
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
	// What follows is evidence of what limits the pod: without it, it is not observed.
	missing := func(what string, err error) {
		a.Log.Debug("not observed", "what", what, "error", err)
	}
	if c, err := a.lent.usage(); err == nil {
		u.Container = &c
	} else {
		missing("container", err)
	}
	if n, err := networkOf(os.ReadFile); err == nil {
		u.Network = &n
	} else {
		missing("network", err)
	}
	if s := a.Metrics.hsm.Load(); s != nil {
		if u.HSM, err = hsmUsageOf(s.path); err != nil {
			missing("HSM", err)
		}
	}
	if t := a.Metrics.tickets.Load(); t != nil {
		u.Tickets = &dataplane.TicketUsage{Own: t.epoch == 0, StoreWaited: time.Duration(a.Metrics.storeWaited.Load())}
	}
	u.Versions = a.programs.versions(a.HAProxy)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(u)
}

func usageOf(ctx context.Context, admin runtime.Admin) (dataplane.Usage, error) {
	info, cpu, err := admin.Usage(ctx)
	if err != nil {
		return dataplane.Usage{}, err
	}
	now := time.Now()
	// A container sees its node's: /proc/stat is of no namespace.
	stat, err := os.ReadFile(machine.StatFile)
	if err != nil {
		return dataplane.Usage{}, err
	}
	total, idle, err := machine.ParseStat(string(stat))
	if err != nil {
		return dataplane.Usage{}, err
	}
	here, err := machine.Describe(os.ReadFile)
	if err != nil {
		return dataplane.Usage{}, err
	}
	return dataplane.Usage{Machine: here, Time: now.UnixNano(), Worker: fmt.Sprintf("%d@%d", info.PID, info.Started), CPU: int64(cpu),
		TLSConnections: int64(info.TLSConnections), Connections: int64(info.Connections), MachineTotal: total, MachineIdle: idle}, nil
}

// networkOf this process, which is its pod's: TCP's counters, and the bytes of all
// interfaces but loopback.
func networkOf(read func(string) ([]byte, error)) (dataplane.Network, error) {
	snmp, err := read(machine.SNMPFile)
	if err != nil {
		return dataplane.Network{}, err
	}
	netstat, err := read(machine.NetstatFile)
	if err != nil {
		return dataplane.Network{}, err
	}
	dev, err := read("/proc/self/net/dev")
	if err != nil {
		return dataplane.Network{}, err
	}
	var n dataplane.Network
	if n.Segments, n.Retransmitted, err = machine.ParseTCP(string(snmp), string(netstat)); err != nil {
		return dataplane.Network{}, err
	}
	for line := range strings.Lines(string(dev)) {
		name, counters, found := strings.Cut(line, ":")
		if !found || strings.TrimSpace(name) == "lo" {
			continue
		}
		// Bytes received, seven more of the receiver, bytes sent.
		fields := strings.Fields(counters)
		if len(fields) < 9 {
			return dataplane.Network{}, fmt.Errorf("/proc/net/dev: %.80q: want 16 counters", line)
		}
		received, err1 := strconv.ParseInt(fields[0], 10, 64)
		sent, err2 := strconv.ParseInt(fields[8], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return dataplane.Network{}, fmt.Errorf("/proc/net/dev: %w", err)
		}
		n.BytesReceived, n.BytesSent = n.BytesReceived+received, n.BytesSent+sent
	}
	return n, nil
}

// hsmUsageOf what the worker last wrote; nil when it has ended meanwhile.
func hsmUsageOf(path string) (*dataplane.HSMUsage, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s, err := readHSMStatus(path)
	if s == nil || err != nil {
		return nil, err
	}
	u := &dataplane.HSMUsage{Time: info.ModTime().UnixNano()}
	for _, m := range s.Members {
		u.Members = append(u.Members, dataplane.HSMMemberUsage{Name: m.Name, Sessions: int64(m.Sessions),
			Signatures: int64(m.Latency.Count), Waited: time.Duration(m.Latency.Sum) * time.Microsecond})
	}
	return u, nil
}

// programs of the pod.
type programs struct {
	once  sync.Once
	known atomic.Pointer[map[string]string]
}

// versions by name. To ask the programs takes a while: until they have answered
// there are none.
func (p *programs) versions(haproxy string) map[string]string {
	p.once.Do(func() {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			known := map[string]string{"qtls-agent": version.Version}
			text, _ := exec.CommandContext(ctx, haproxy, "-vv").Output()
			maps.Copy(known, parseHAProxyVersions(string(text)))
			text, _ = exec.CommandContext(ctx, "openssl", "list", "-providers", "-provider", algorithms.Provider).Output()
			maps.Copy(known, parseProviderVersion(string(text)))
			p.known.Store(&known)
		}()
	})
	if known := p.known.Load(); known != nil {
		return *known
	}
	return nil
}

var (
	haproxyVersion = regexp.MustCompile(`(?m)^HAProxy version (\S+)`)
	opensslVersion = regexp.MustCompile(`(?m)^Running on SSL library version : OpenSSL (\S+)`)
	// providerVersion follows the provider's name in a list of them.
	providerVersion = regexp.MustCompile(`(?m)^\s+` + algorithms.Provider + `\n(?:\s{4,}.*\n)*?\s+version: (\S+)`)
)

// parseHAProxyVersions reads `haproxy -vv`.
func parseHAProxyVersions(text string) map[string]string {
	known := map[string]string{}
	if m := haproxyVersion.FindStringSubmatch(text); m != nil {
		known["HAProxy"] = m[1]
	}
	if m := opensslVersion.FindStringSubmatch(text); m != nil {
		known["OpenSSL"] = m[1]
	}
	return known
}

// parseProviderVersion reads `openssl list -providers`.
func parseProviderVersion(text string) map[string]string {
	if m := providerVersion.FindStringSubmatch(text); m != nil {
		return map[string]string{algorithms.Provider: m[1]}
	}
	return nil
}
