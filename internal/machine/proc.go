package machine

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Where a container sees its node's CPU time, and its pod's own counters of TCP.
const (
	StatFile    = "/proc/stat"
	SNMPFile    = "/proc/self/net/snmp"
	NetstatFile = "/proc/self/net/netstat"
)

// ParseStat reads the first line of /proc/stat, in ticks (USER_HZ): user, nice, system, idle,
// iowait, irq, softirq and steal; guests are in user and nice already. Time that
// another virtual machine has stolen is not idle.
func ParseStat(stat string) (total, idle int64, err error) {
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

// ParseTCP reads from /proc/net/snmp how many segments were sent, and from
// /proc/net/netstat which of them were sent again for not having arrived. A kernel that
// waits for an acknowledgement also sends again what a busy receiver has taken already (a
// tail loss probe, RFC 8985), and learns by a duplicate SACK (RFC 2883) that it had: such
// ones are left out. At a moment that acknowledgement may be under way yet.
func ParseTCP(snmp, netstat string) (segments, again int64, err error) {
	tcp, err := counters(snmp, "Tcp:")
	if err != nil {
		return 0, 0, fmt.Errorf("/proc/net/snmp: %w", err)
	}
	sent, known := tcp["OutSegs"]
	again, too := tcp["RetransSegs"] // which are not among the former
	if !known || !too {
		return 0, 0, errors.New("/proc/net/snmp does not tell how many segments TCP has sent")
	}
	extensions, err := counters(netstat, "TcpExt:")
	if err != nil {
		return 0, 0, fmt.Errorf("/proc/net/netstat: %w", err)
	}
	needless, known := extensions["TCPDSACKRecv"]
	if !known {
		return 0, 0, errors.New("/proc/net/netstat does not tell which segments were sent again needlessly")
	}
	return sent + again, max(again-needless, 0), nil
}

// counters of a protocol: a line with their names, and one with their values.
func counters(text, protocol string) (map[string]int64, error) {
	var names []string
	all := map[string]int64{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] != protocol:
		case names == nil:
			names = fields
		default:
			for i := 1; i < min(len(names), len(fields)); i++ {
				n, err := strconv.ParseInt(fields[i], 10, 64)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", names[i], err)
				}
				all[names[i]] = n
			}
			return all, nil
		}
	}
	return all, nil
}
