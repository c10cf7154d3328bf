package xqtls

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.k6.io/k6/v2/lib"

	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/cgroup"
	"qtls.dev/qtls/internal/machine"
	"qtls.dev/qtls/k6/openssl"
)

// outcome is what became of a call.
type outcome struct {
	begin, end time.Time
	report     openssl.Report
	exchange   exchange
}

func (o outcome) result() *Result {
	r, x := o.report, o.exchange
	return &Result{
		Ok: r.Failure == "", Failure: string(r.Failure), Message: r.Message,
		Group: r.Group, SignatureAlgorithm: r.SignatureAlgorithm, Version: r.Version,
		Resumed: r.Resumed, HelloRetryRequest: r.HelloRetry, Tickets: r.Tickets,
		Connect: milliseconds(r.Connect), Handshake: milliseconds(r.Handshake),
		Client: milliseconds(r.Client), Network: milliseconds(r.Network), Server: milliseconds(r.Server),
		BytesSent: r.BytesSent, BytesReceived: r.BytesReceived, CertificateBytes: r.CertificateBytes,
		Exchange: milliseconds(x.time), Status: x.status, ExchangeSent: x.sent, ExchangeReceived: x.received,
	}
}

// recorder keeps what is seen inside the measured window of a load.
type recorder struct {
	load load.Load

	mu     sync.Mutex
	shard  shard.Shard
	series map[shard.Kind]*shard.Series
	// began is the latest beginning of a scenario.
	began time.Time
	// starts are the iterations of the phase Latency that began in the window, of the last moments: k6 tells a little later
	// of those that it dropped, and only then is known which place in the schedule an iteration had. lags are of those before.
	starts []startedAt
	lags   *shard.Histogram
	// drops are those that were dropped, ever, in order.
	drops []droppedAt
	// cpu is what was used up to the window's ends.
	cpu [2]cpuTime
}

// startedAt is when an iteration began, and by how much later than it were due if none had been dropped.
type startedAt struct {
	at  time.Time
	lag time.Duration
}

// droppedAt is how many iterations were dropped up to a time.
type droppedAt struct {
	at time.Time
	n  int64
}

const (
	// told is after how long k6 has told of what it dropped: it does so each 50 ms, unless it has no CPU.
	told = 5 * time.Second
	// together are drops that are kept as one, so that those of a long load take little memory. Drops in the window make
	// a measurement no result, whatever the lags are.
	together = 10 * time.Millisecond
)

func newRecorder(l load.Load, s shard.Segment) *recorder {
	return &recorder{
		load: l, series: map[shard.Kind]*shard.Series{},
		shard: shard.Shard{
			Version: shard.Version, Point: l.Point, Segment: s, Start: l.Begin().UnixNano(), End: l.End().UnixNano(),
			Target:   shard.Target{Host: hostPort(l.Client.Host, l.Client.Port), SNI: l.Client.SNI},
			Failures: map[shard.Failure]int64{}, Versions: versions(),
		},
	}
}

// versions of what makes the load.
func versions() map[string]string {
	all := map[string]string{"OpenSSL": openssl.Version()}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, m := range build.Deps {
			if m.Path == "go.k6.io/k6/v2" {
				all["k6"] = m.Version
			}
		}
	}
	return all
}

// inside says whether something happened in the window.
func (r *recorder) inside(t time.Time) bool {
	return !t.Before(r.load.Begin()) && t.Before(r.load.End())
}

// call takes the outcome of a call. first says that it is the first one of its iteration, number is the iteration's in the
// whole load, and began when its scenario did.
func (r *recorder) call(o outcome, first bool, number uint64, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if began.After(r.began) {
		r.began = began
	}
	// A throughput is of what ends in the window. A latency is of what begins in it: by their ends, the slowest would be
	// missing, and those be there that began before it.
	at := o.end
	if r.load.Phase == load.Latency {
		at = o.begin
	}
	if !r.inside(at) {
		return
	}
	if first {
		r.shard.Iterations++
		if r.load.Phase == load.Latency {
			due := began.Add(time.Duration(number) * r.interval())
			r.starts = append(r.starts, startedAt{o.begin, o.begin.Sub(due)})
			r.place(o.end.Add(-told))
		}
	}
	r.shard.CPU.Client += int64(o.report.Client)
	if o.report.Failure != "" {
		r.shard.Failures[o.report.Failure]++
		return
	}
	r.add(o)
}

// add counts a success.
func (r *recorder) add(o outcome) {
	kind := shard.Kind{
		Group: o.report.Group, SignatureAlgorithm: o.report.SignatureAlgorithm, Version: o.report.Version,
		Resumed: o.report.Resumed, HelloRetry: o.report.HelloRetry,
	}
	s := r.series[kind]
	if s == nil {
		s = &shard.Series{Kind: kind, Connect: &shard.Histogram{}, Handshake: &shard.Histogram{}, Client: &shard.Histogram{}, Network: &shard.Histogram{}, Server: &shard.Histogram{}}
		r.series[kind] = s
	}
	s.Count++
	s.Connect.Record(o.report.Connect)
	s.Handshake.Record(o.report.Handshake)
	s.Client.Record(o.report.Client)
	s.Network.Record(o.report.Network)
	s.Server.Record(o.report.Server)
	s.BytesSent += o.report.BytesSent
	s.BytesReceived += o.report.BytesReceived
	s.CertificateBytes += o.report.CertificateBytes
	if o.exchange.time > 0 {
		if s.Exchange == nil {
			s.Exchange = &shard.Histogram{}
		}
		s.Exchange.Record(o.exchange.time)
		s.ExchangeBytesSent += o.exchange.sent
		s.ExchangeBytesReceived += o.exchange.received
	}
}

// dropped counts iterations that found no virtual user free.
func (r *recorder) dropped(at time.Time, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch last := len(r.drops) - 1; {
	case last < 0:
		r.drops = append(r.drops, droppedAt{at, n})
	case at.Sub(r.drops[last].at) < together:
		r.drops[last].n += n
	default:
		r.drops = append(r.drops, droppedAt{at, r.drops[last].n + n})
	}
	if r.inside(at) {
		r.shard.Dropped += n
	}
}

// interval is that of the whole load's schedule.
func (r *recorder) interval() time.Duration { return time.Second / time.Duration(r.load.Rate) }

// place iterations that began before a time in the schedule: it says by how much they began later than they were due. k6
// numbers those that it begins, and each that it drops before one puts that one off by a place of this pod: by as many places
// of the whole load as there are pods.
func (r *recorder) place(before time.Time) {
	for ; len(r.starts) > 0 && r.starts[0].at.Before(before); r.starts = r.starts[1:] {
		s := r.starts[0]
		i, _ := slices.BinarySearchFunc(r.drops, s.at, func(d droppedAt, at time.Time) int { return d.at.Compare(at) })
		if i > 0 {
			s.lag -= time.Duration(r.drops[i-1].n) * time.Duration(r.shard.Segment.Count) * r.interval()
		}
		if r.lags == nil {
			r.lags = &shard.Histogram{}
		}
		r.lags.Record(s.lag)
	}
}

// watch reads what was used at both ends of the window.
func (r *recorder) watch() {
	for i, at := range []time.Time{r.load.Begin(), r.load.End()} {
		time.AfterFunc(time.Until(at), func() {
			c := readCPUTime(cgroup.Dir, proc)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.cpu[i] = c
		})
	}
}

// line is what the pod prints, once the window is over.
func (r *recorder) line(now time.Time) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case now.Before(r.load.End()):
		return "", fmt.Errorf("the run ended %v before its window", r.load.End().Sub(now).Round(time.Millisecond))
	case r.began.IsZero():
		return "", errors.New("no connection was tried: does the script call its client?")
	case !r.began.Before(r.load.End()):
		return "", fmt.Errorf("the load began %v after its window: give the pods a longer warm-up", r.began.Sub(r.load.End()).Round(time.Millisecond))
	}
	s := r.shard
	// This pod's own window: whether it has enough in common with the others', who puts them together judges.
	s.Start = max(s.Start, r.began.UnixNano())
	r.place(r.load.End())
	s.StartLag = r.lags
	if here, err := machine.Describe(os.ReadFile); err == nil {
		s.Machine = &here
	}
	// A pod without CPU comes too late to look as well, and it is just that pod which is to be told of.
	from, to := r.cpu[0], r.cpu[1]
	if to == (cpuTime{}) {
		to = readCPUTime(cgroup.Dir, proc)
	}
	if from == (cpuTime{}) {
		to = from
	}
	s.CPU.Periods, s.CPU.ThrottledPeriods = to.periods-from.periods, to.throttled-from.throttled
	if total := to.machine - from.machine; from.machine > 0 && total > 0 {
		s.CPU.Used = to.used - from.used
		// The kernel takes some of the idle time back at times.
		s.CPU.MachineTotal, s.CPU.MachineIdle = total, min(max(to.idle-from.idle, 0), total)
	}
	s.TCP = shard.TCP{Segments: to.tcp.Segments - from.tcp.Segments, Retransmitted: max(to.tcp.Retransmitted-from.tcp.Retransmitted, 0)}
	for _, series := range r.series {
		s.Handshakes = append(s.Handshakes, *series)
	}
	return s.Line()
}

// measure records an outcome of this virtual user.
func (m *module) measure(o outcome) {
	scenario := lib.GetScenarioState(m.vu.Context())
	if scenario == nil {
		return // setup() and the like are no part of the load
	}
	state := m.vu.State()
	first := state.Iteration+1 != m.iteration
	m.iteration = state.Iteration + 1
	var number uint64
	if state.GetScenarioGlobalVUIter != nil {
		number = state.GetScenarioGlobalVUIter()
	}
	current.recorder.call(o, first, number, scenario.StartTime)
}

// cpuTime is what was used up to a moment, and sent.
type cpuTime struct {
	// periods of the pod's CPU quota, and those in which it was throttled: zeros where there is no quota.
	periods, throttled int64
	// used by this process, in nanoseconds: the pod has no other.
	used int64
	// machine is the CPU time of the machine, and idle the part of it that nobody used, in ticks.
	machine, idle int64
	// tcp is what the pod has sent.
	tcp shard.TCP
}

// files of the kernel's that tell of the machine's CPU time, and of the pod's TCP.
type files struct{ stat, snmp, netstat string }

var proc = files{machine.StatFile, machine.SNMPFile, machine.NetstatFile}

// readCPUTime leaves zeros for what is not there.
func readCPUTime(group string, from files) cpuTime {
	var c cpuTime
	if u, err := cgroup.Read(group); err == nil {
		c.periods, c.throttled = u.Periods, u.ThrottledPeriods
	}
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) == nil {
		c.used = usage.Utime.Nano() + usage.Stime.Nano()
	}
	text, _ := os.ReadFile(from.stat)
	if total, idle, err := machine.ParseStat(string(text)); err == nil {
		c.machine, c.idle = total, idle
	}
	snmp, _ := os.ReadFile(from.snmp)
	netstat, _ := os.ReadFile(from.netstat)
	if sent, again, err := machine.ParseTCP(string(snmp), string(netstat)); err == nil {
		c.tcp = shard.TCP{Segments: sent, Retransmitted: again}
	}
	return c
}
