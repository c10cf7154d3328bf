package xqtls

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/cgroup"
	"qtls.dev/qtls/internal/machine"
	"qtls.dev/qtls/k6/openssl"
	"qtls.dev/qtls/k6/options"
)

var start = time.Unix(1_600_000_000, 0)

// measuring is a load of two pods that is measured from the 10th second to the 40th.
func measuring() load.Load {
	return load.Load{
		Version: load.Version, Point: "p", Pods: 2, Start: start.UnixNano(), WarmUp: 10 * time.Second, Window: 30 * time.Second,
		Phase: load.Capacity, VUs: 8, Operation: load.Handshake, Client: load.Client{Host: "gateway", Port: 443, SNI: "a.example"},
	}
}

// ended is an outcome of a full handshake that ended some time after the start.
func ended(after time.Duration) outcome {
	return outcome{
		begin: start.Add(after - 5*time.Millisecond), end: start.Add(after),
		report: openssl.Report{
			Group: "X25519MLKEM768", SignatureAlgorithm: "mldsa65", Version: "TLSv1.3",
			Connect: 3 * time.Millisecond, Handshake: 4 * time.Millisecond, Client: time.Millisecond, Network: time.Millisecond, Server: 2 * time.Millisecond,
			BytesSent: 1400, BytesReceived: 9000, CertificateBytes: 5500,
		},
	}
}

// longest is a histogram's longest time, without what its buckets add.
func longest(h *shard.Histogram) time.Duration { return h.Max().Round(100 * time.Microsecond) }

// measured reads back what a recorder prints.
func measured(t *testing.T, r *recorder) shard.Shard {
	t.Helper()
	line, err := r.line(r.load.End())
	if err != nil {
		t.Fatal(err)
	}
	s, err := shard.Parse(line)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOnlyWhatEndsInTheWindowCounts(t *testing.T) {
	r := newRecorder(measuring(), shard.Segment{Index: 1, Count: 2})
	for _, after := range []time.Duration{9999 * time.Millisecond, 10 * time.Second, 25 * time.Second, 40*time.Second - 1, 40 * time.Second} {
		r.call(ended(after), true, 0, start)
		r.dropped(start.Add(after), 1)
	}
	s := measured(t, r)
	if s.Iterations != 3 || s.Dropped != 3 || len(s.Handshakes) != 1 || s.Handshakes[0].Count != 3 {
		t.Errorf("got %+v", s)
	}
	if s.Point != "p" || s.Segment.String() != "1/2" || s.Target != (shard.Target{Host: "gateway:443", SNI: "a.example"}) ||
		s.Start != start.Add(10*time.Second).UnixNano() || s.Window() != 30*time.Second || s.StartLag != nil {
		t.Errorf("got %+v", s)
	}
	if h := s.Handshakes[0]; longest(h.Handshake) != 4*time.Millisecond || h.Client.Count() != 3 || h.Network.Count() != 3 || longest(h.Server) != 2*time.Millisecond ||
		h.BytesSent != 4200 || h.BytesReceived != 27000 || h.CertificateBytes != 16500 || h.Exchange != nil || s.CPU.Client != int64(3*time.Millisecond) {
		t.Errorf("got %+v", h)
	}
}

// A slow one that began in the window is there, whenever it ends: without it the percentiles would be too low.
func TestALatencyIsOfWhatBeginsInTheWindow(t *testing.T) {
	l := measuring()
	l.Phase, l.Rate = load.Latency, 100
	r := newRecorder(l, shard.Segment{Count: 2})
	for begin, end := range map[time.Duration]time.Duration{
		9999 * time.Millisecond: 15 * time.Second, // in the warm-up
		10 * time.Second:        10*time.Second + 1,
		40*time.Second - 1:      70 * time.Second,
		40 * time.Second:        41 * time.Second,
	} {
		o := ended(end)
		o.begin, o.report.Handshake = start.Add(begin), end-begin
		r.call(o, true, uint64(begin/(10*time.Millisecond)), start)
	}
	s := measured(t, r)
	if s.Iterations != 2 || s.Handshakes[0].Count != 2 || s.Handshakes[0].Handshake.Max() < 29*time.Second {
		t.Errorf("%d iterations, %+v", s.Iterations, s.Handshakes)
	}
}

// k6 counts the iterations that it begins, and not those that it drops: after a drop, in the warm-up say, each has a lower
// number than its place in the schedule. Pods that share a load each take every so many-th place.
func TestAnIterationIsDueAtItsPlaceInTheSchedule(t *testing.T) {
	l := measuring()
	l.Phase, l.Rate = load.Latency, 100 // a place each 10 ms, of two pods
	r := newRecorder(l, shard.Segment{Count: 2})
	begins := func(number uint64, at time.Duration) {
		o := ended(at + 5*time.Millisecond)
		o.begin = start.Add(at)
		r.call(o, true, number, start)
	}
	begins(1200, 12*time.Second+time.Millisecond)
	// Of these k6 tells when it likes to: after what it began afterwards, too.
	begins(1202, 12*time.Second+62*time.Millisecond) // 1204 and 1206 are dropped before
	r.dropped(start.Add(12*time.Second+20*time.Millisecond), 1)
	r.dropped(start.Add(12*time.Second+40*time.Millisecond), 1)
	begins(1204, 12*time.Second+80*time.Millisecond)
	if lag := measured(t, r).StartLag; lag.Count() != 3 || longest(lag) != 2*time.Millisecond {
		t.Errorf("%d lags up to %v, want 3 up to 2ms", lag.Count(), lag.Max())
	}

	r = newRecorder(l, shard.Segment{Count: 2})
	begins(0, 0)
	r.dropped(start.Add(500*time.Millisecond), 3) // in the warm-up
	begins(1194, 12*time.Second+time.Millisecond)
	if s := measured(t, r); s.Dropped != 0 || s.StartLag.Count() != 1 || longest(s.StartLag) != time.Millisecond {
		t.Errorf("%d dropped in the window, %d lags up to %v; want 0, and 1 of 1ms", s.Dropped, s.StartLag.Count(), s.StartLag.Max())
	}
}

// A window may last for half an hour, at thousands of iterations a second.
func TestTheMemoryOfALongLoadDoesNotGrow(t *testing.T) {
	l := measuring()
	l.Phase, l.Rate, l.Window = load.Latency, 1000, 10*time.Minute
	r := newRecorder(l, shard.Segment{Count: 1})
	const dropped = 50 // in the warm-up
	for i := range dropped {
		r.dropped(start.Add(time.Duration(i)*time.Millisecond), 1)
	}
	most := 0
	for i := range int(l.Window / time.Millisecond) {
		at := 10*time.Second + time.Duration(i)*time.Millisecond
		o := ended(at + 5*time.Millisecond)
		o.begin = start.Add(at + 2*time.Millisecond)
		r.call(o, true, uint64(10_000+i-dropped), start)
		most = max(most, cap(r.starts))
	}
	if seconds := most / l.Rate; seconds > 20 {
		t.Errorf("the iterations of %d s are kept", seconds)
	}
	if s := measured(t, r); s.StartLag.Count() != s.Iterations || longest(s.StartLag) != 2*time.Millisecond || s.StartLag.Min() < 1900*time.Microsecond {
		t.Errorf("%d lags of %v to %v of %d iterations; want 2ms of each", s.StartLag.Count(), s.StartLag.Min(), s.StartLag.Max(), s.Iterations)
	}

	r = newRecorder(l, shard.Segment{Count: 1})
	for i := range 60_000 {
		r.dropped(start.Add(time.Duration(i)*time.Millisecond), 1)
	}
	if last := len(r.drops) - 1; last > 6000 || r.drops[last].n != 60_000 {
		t.Errorf("of 60000 drops in a minute %d times are kept, the last of %d", last+1, r.drops[last].n)
	}
}

// The others have measured without it by then: who merges judges of that.
func TestAPodThatBeginsInsideTheWindowSaysSince(t *testing.T) {
	r := newRecorder(measuring(), shard.Segment{Count: 2})
	r.call(ended(14*time.Second), true, 0, start.Add(13*time.Second))
	if s := measured(t, r); s.Start != start.Add(13*time.Second).UnixNano() || s.Window() != 27*time.Second {
		t.Errorf("a window of %v from %v", s.Window(), time.Unix(0, s.Start))
	}
}

func TestHandshakesOfOtherKindsAreSeriesOfTheirOwn(t *testing.T) {
	r := newRecorder(measuring(), shard.Segment{Count: 2})
	for _, change := range []func(*openssl.Report){
		func(*openssl.Report) {},
		func(o *openssl.Report) { o.Resumed, o.SignatureAlgorithm = true, "" },
		func(o *openssl.Report) { o.HelloRetry = true },
		func(o *openssl.Report) { o.Group = "MLKEM1024" },
		func(o *openssl.Report) { o.Version = "TLSv1.2" },
		func(o *openssl.Report) { o.SignatureAlgorithm = "ecdsa_secp256r1_sha256" },
	} {
		o := ended(15 * time.Second)
		change(&o.report)
		r.call(o, true, 0, start)
		r.call(o, true, 0, start)
	}
	s := measured(t, r)
	if len(s.Handshakes) != 6 || slices.ContainsFunc(s.Handshakes, func(h shard.Series) bool { return h.Count != 2 }) {
		t.Errorf("got %+v", s.Handshakes)
	}
}

func TestConnectingIsTimedApartFromTheHandshake(t *testing.T) {
	r := newRecorder(measuring(), shard.Segment{Count: 2})
	r.call(ended(15*time.Second), true, 0, start)
	h := measured(t, r).Handshakes[0]
	if longest(h.Connect) != 3*time.Millisecond || longest(h.Handshake) != 4*time.Millisecond {
		t.Errorf("connected in %v, handshake of %v", h.Connect.Max(), h.Handshake.Max())
	}
}

func TestFailuresAreCountedByClassAndNotAsHandshakes(t *testing.T) {
	r := newRecorder(measuring(), shard.Segment{Count: 2})
	for _, f := range []shard.Failure{shard.Connect, shard.Connect, shard.Alert("handshake_failure")} {
		o := ended(15 * time.Second)
		o.report.Failure = f
		r.call(o, true, 0, start)
	}
	s := measured(t, r)
	if s.Iterations != 3 || len(s.Handshakes) != 0 || !reflect.DeepEqual(s.Failures, map[shard.Failure]int64{"Connect": 2, "Handshake(handshake_failure)": 1}) {
		t.Errorf("got %+v", s)
	}
}

func TestSeveralCallsOfAnIterationAreOneIteration(t *testing.T) {
	r := newRecorder(measuring(), shard.Segment{Count: 2})
	r.call(ended(15*time.Second), true, 0, start)
	r.call(ended(15*time.Second), false, 0, start)
	if s := measured(t, r); s.Iterations != 1 || s.Handshakes[0].Count != 2 {
		t.Errorf("got %+v", s)
	}
}

// At 100 in a second over all pods, number 1200 is due 12 seconds after the scenario began.
func TestTheLagIsBehindTheScheduleOfTheWholeLoad(t *testing.T) {
	l := measuring()
	l.Phase, l.Rate = load.Latency, 100
	r := newRecorder(l, shard.Segment{Count: 2})
	o := ended(12*time.Second + 10*time.Millisecond)
	o.begin = start.Add(12*time.Second + 7*time.Millisecond)
	r.call(o, true, 1200, start)
	s := measured(t, r)
	if s.StartLag.Count() != 1 || longest(s.StartLag) != 7*time.Millisecond {
		t.Errorf("%d lags, the longest %v", s.StartLag.Count(), s.StartLag.Max())
	}
}

func TestAnExchangeIsTimedAndCounted(t *testing.T) {
	r := newRecorder(measuring(), shard.Segment{Count: 2})
	o := ended(15 * time.Second)
	o.exchange = exchange{time: 3 * time.Millisecond, status: 200, sent: 100, received: 1000}
	r.call(o, true, 0, start)
	if h := measured(t, r).Handshakes[0]; longest(h.Exchange) != 3*time.Millisecond || h.ExchangeBytesSent != 100 || h.ExchangeBytesReceived != 1000 {
		t.Errorf("got %+v", h)
	}
}

func TestARunThatIsNotWholeHasNoResult(t *testing.T) {
	for want, test := range map[string]struct {
		began time.Duration
		now   time.Duration
	}{
		"the run ended 1s before its window":       {0, 39 * time.Second},
		"the load began 500ms after its window: g": {40500 * time.Millisecond, time.Minute},
	} {
		r := newRecorder(measuring(), shard.Segment{Count: 2})
		r.call(ended(15*time.Second), true, 0, start.Add(test.began))
		if line, err := r.line(start.Add(test.now)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %q, %v", want, line, err)
		}
	}
	r := newRecorder(measuring(), shard.Segment{Count: 2})
	if _, err := r.line(start.Add(time.Minute)); err == nil || !strings.Contains(err.Error(), "no connection was tried") {
		t.Errorf("without a call: %v", err)
	}
}

func TestARunThatFailedHasNoResult(t *testing.T) {
	r := newRecorder(measuring(), shard.Segment{Count: 2})
	r.call(ended(15*time.Second), true, 0, start)
	var out strings.Builder
	o := &resultOutput{&out, r}
	if err := o.print(errors.New("script exception")); err == nil || !strings.Contains(err.Error(), "script exception") || out.Len() > 0 {
		t.Errorf("printed %q, %v", out.String(), err)
	}
	if err := o.print(nil); err != nil || !strings.HasPrefix(out.String(), shard.Prefix) || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("printed %q, %v", out.String(), err)
	}
}

func TestWhatTheGeneratorAndItsMachineUseIsRead(t *testing.T) {
	group, kernel := t.TempDir(), t.TempDir()
	from := files{filepath.Join(kernel, "stat"), filepath.Join(kernel, "snmp"), filepath.Join(kernel, "netstat")}
	for path, text := range map[string]string{
		filepath.Join(group, "cpu.stat"):       "usage_usec 5\nuser_usec 4\nnr_periods 70\nnr_throttled 3\nthrottled_usec 9\n",
		filepath.Join(group, "memory.current"): "10\n",
		filepath.Join(group, "memory.stat"):    "inactive_file 1\n",
		from.stat:                              "cpu  100 1 50 800 40 2 3 4 60 0\ncpu0 100 1 50 800 40 2 3 4 60 0\nintr 12\n",
		from.snmp:                              "Tcp: OutSegs RetransSegs\nTcp: 990 10\n",
		from.netstat:                           "TcpExt: TCPDSACKRecv\nTcpExt: 3\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	first := readCPUTime(group, from)
	if want := (cpuTime{periods: 70, throttled: 3, used: first.used, machine: 1000, idle: 840, tcp: shard.TCP{Segments: 1000, Retransmitted: 7}}); first != want || first.used <= 0 {
		t.Errorf("got %+v, want %+v", first, want)
	}
	if got := readCPUTime(t.TempDir(), files{group, group, group}); got != (cpuTime{used: got.used}) || got.used < first.used {
		t.Errorf("where there is neither: %+v", got)
	}
	r := newRecorder(measuring(), shard.Segment{Count: 2})
	r.call(ended(15*time.Second), true, 0, start)
	r.cpu = [2]cpuTime{{70, 3, 1000, 500, 400, shard.TCP{Segments: 1000, Retransmitted: 10}}, {370, 5, 9000, 6500, 4400, shard.TCP{Segments: 5000, Retransmitted: 90}}}
	if s := measured(t, r); s.Machine == nil || s.Machine.CPUs < 1 || s.Machine.Kernel == "" {
		t.Errorf("the machine is %+v", s.Machine)
	}
	want := shard.CPU{Client: int64(time.Millisecond), Periods: 300, ThrottledPeriods: 2, Used: 8000, MachineTotal: 6000, MachineIdle: 4000}
	if s := measured(t, r); s.CPU != want || s.TCP != (shard.TCP{Segments: 4000, Retransmitted: 80}) {
		t.Errorf("got %+v, want %+v; sent %+v", s.CPU, want, s.TCP)
	}
	r.cpu[1] = cpuTime{} // nobody has looked yet
	r.cpu[0] = readCPUTime(cgroup.Dir, proc)
	if r.cpu[0].machine == 0 {
		t.Skip(machine.StatFile + " does not tell the machine's time")
	}
	for r.cpu[0].machine == readCPUTime(cgroup.Dir, proc).machine {
		time.Sleep(shard.Tick)
	}
	if s := measured(t, r); s.CPU.MachineTotal <= 0 || s.CPU.Used < 0 || s.CPU.Periods < 0 {
		t.Errorf("an end that comes too late: %+v", s.CPU)
	}
	r.cpu = [2]cpuTime{{}, {370, 5, 9000, 6500, 4400, shard.TCP{Segments: 5000}}}
	if s := measured(t, r); s.CPU != (shard.CPU{Client: want.Client}) || s.TCP != (shard.TCP{}) {
		t.Errorf("of no beginning: %+v, %+v", s.CPU, s.TCP)
	}
	r.cpu = [2]cpuTime{{70, 3, 1000, 0, 0, shard.TCP{}}, {370, 5, 9000, 6500, 4400, shard.TCP{}}} // no machine
	if s := measured(t, r); s.CPU.MachineTotal != 0 || s.CPU.Used != 0 {
		t.Errorf("half observed: %+v", s.CPU)
	}
}

func TestK6GetsTheSegmentOfThePod(t *testing.T) {
	for s, want := range map[shard.Segment]string{
		{Index: 0, Count: 4}: "--execution-segment=0:1/4 --execution-segment-sequence=0,1/4,2/4,3/4,1",
		{Index: 3, Count: 4}: "--execution-segment=3/4:1 --execution-segment-sequence=0,1/4,2/4,3/4,1",
		{Index: 0, Count: 1}: "--out=qtls",
	} {
		if got := strings.Join(arguments(s), " "); !strings.HasSuffix(got, want) {
			t.Errorf("%v: %s, want %s at the end", s, got, want)
		}
	}
}

// Whatever the operator can ask for reaches the client's options.
func TestEveryFieldOfALoadsClientIsAnOption(t *testing.T) {
	two := 2
	c := load.Client{
		Host: "gateway", Port: 443, SNI: "a.example", Groups: []string{"X25519"}, SignatureAlgorithms: []string{"mldsa65"}, MinVersion: "1.2", MaxVersion: "1.3",
		Resumption: true, Tickets: &two, CAFile: "/ca", CertificateFile: "/certificate", KeyFile: "/key", Provider: "/lib/oqsprovider.so",
		Properties: "?provider=oqsprovider", Timeout: "5s",
	}
	for field, value := range reflect.ValueOf(c).Fields() {
		if value.IsZero() && field.Name != "InsecureSkipVerify" {
			t.Errorf("this test leaves %s out", field.Name)
		}
	}
	object, err := clientObject(c, func(path string) ([]byte, error) { return []byte("-----BEGIN " + path), nil })
	if err != nil {
		t.Fatal(err)
	}
	got, err := options.Parse(object)
	want := options.Options{
		Host: "gateway", Port: 443, SNI: "a.example", Groups: []string{"X25519"}, SignatureAlgorithms: []string{"mldsa65"}, MinVersion: "1.2", MaxVersion: "1.3",
		Resumption: true, Tickets: 2, CA: "-----BEGIN /ca", Certificate: "-----BEGIN /certificate", Key: "-----BEGIN /key", Provider: "/lib/oqsprovider.so",
		Properties: "?provider=oqsprovider", Timeout: 5 * time.Second,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	object, err = clientObject(load.Client{Host: "gateway", Port: 443, InsecureSkipVerify: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := options.Parse(object); err != nil || !got.InsecureSkipVerify {
		t.Errorf("got %+v, %v", got, err)
	}
}
