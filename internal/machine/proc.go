package machine

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Where a container sees its node's CPU time, and its pod's own counters of TCP.
const (
	StatFile = "/proc/stat"
	SNMPFile = "/proc/self/net/snmp"
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

// ParseTCP reads from /proc/net/snmp how many segments were sent, and sent again: a
// line with the names of TCP's counters, and one with their values. The kernel does
// not count the latter among the former.
func ParseTCP(snmp string) (segments, again int64, err error) {
	var names []string
	for line := range strings.Lines(snmp) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] != "Tcp:":
		case names == nil:
			names = fields
		default:
			counters := map[string]int64{}
			for i := 1; i < min(len(names), len(fields)); i++ {
				if counters[names[i]], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
					return 0, 0, fmt.Errorf("/proc/net/snmp: %s: %w", names[i], err)
				}
			}
			sent, known := counters["OutSegs"]
			again, too := counters["RetransSegs"]
			if known && too {
				return sent + again, again, nil
			}
		}
	}
	return 0, 0, errors.New("/proc/net/snmp does not tell how many segments TCP has sent")
}
