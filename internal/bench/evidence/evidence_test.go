package evidence

import (
	"math"
	"reflect"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/cgroup"
	"qtls.dev/qtls/internal/dataplane"
)

// used is a pod's usage after so many seconds under a load of 100 handshakes a second.
func used(seconds int64) dataplane.Usage {
	stalled := time.Duration(seconds) * 100 * time.Millisecond
	return dataplane.Usage{Time: seconds * int64(time.Second), Worker: "8@1", CPU: seconds * int64(50*time.Millisecond), TLSConnections: 100 * seconds, Connections: seconds % 7,
		Container: &cgroup.Usage{Periods: 10 * seconds, ThrottledPeriods: 9 * seconds, Throttled: time.Duration(seconds) * 800 * time.Millisecond,
			Memory: 50 << 20, MemoryPeak: 60 << 20, MemoryLimit: 100 << 20, MemoryStalled: &stalled},
		Network: &dataplane.Network{Segments: 1000 * seconds, Retransmitted: 10 * seconds, BytesReceived: 5000 * seconds, BytesSent: 9000 * seconds},
		HSM: &dataplane.HSMUsage{Time: seconds * int64(time.Second), Members: []dataplane.HSMMemberUsage{
			{Name: "second", Sessions: 16, Signatures: 7, Waited: time.Second}, // which another one's failure had sign, once
			{Name: "first", Sessions: 4, Signatures: 100 * seconds, Waited: time.Duration(seconds) * 2 * time.Second}}},
		Tickets: &dataplane.TicketUsage{StoreWaited: time.Duration(seconds) * time.Millisecond}}
}

func TestAReplicaIsWhatItUsedBetweenTwoLooks(t *testing.T) {
	stalled := 0.1
	want := validity.Replica{Observed: 20 * time.Second, CPU: time.Second, Handshakes: 2000, Connections: 3,
		Periods: 200, ThrottledPeriods: 180, Throttled: 16 * time.Second, Memory: 50 << 20, LoadedMemory: 50 << 20, MemoryLimit: 100 << 20, MemoryStalled: &stalled,
		Traffic: &validity.Traffic{Segments: 20000, Retransmitted: 200, BytesReceived: 100000, BytesSent: 180000},
		HSM:     &validity.HSMWait{Observed: 20 * time.Second, Sessions: 4, Signatures: 2000, Waited: 40 * time.Second},
		Tickets: &validity.TicketWait{StoreWaited: 20 * time.Millisecond}}
	if got := Replica(used(10), used(30)); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Libraries' threads, which sign in HSMs, are not HAProxy's.
func TestAReplicasCPUIsThatOfAllThreadsInItsContainer(t *testing.T) {
	before, after := used(10), used(30)
	before.Container.CPU, after.Container.CPU = 700*time.Millisecond, 2200*time.Millisecond
	if r := Replica(before, after); r.CPU != 1500*time.Millisecond {
		t.Errorf("%v, want the container's", r.CPU)
	}
	after.Container.CPU, before.Container.CPU = 0, 0
	if r := Replica(before, after); r.CPU != time.Second {
		t.Errorf("%v, want that of HAProxy's threads, where the kernel does not tell", r.CPU)
	}
}

// A duplicate SACK that was under way at the first look makes what was lost fewer.
func TestNoSegmentsAreNotFewerThanNone(t *testing.T) {
	before, after := used(10), used(30)
	after.Network.Retransmitted = before.Network.Retransmitted - 1
	if r := Replica(before, after); r.Traffic.Retransmitted != 0 {
		t.Errorf("%d segments", r.Traffic.Retransmitted)
	}
}

func TestMemoryIsTheMostInBetween(t *testing.T) {
	before, after := used(10), used(30)
	after.Container.Memory = 55 << 20
	if r := Replica(before, after); r.Memory != 55<<20 {
		t.Errorf("%d, want that of the second look: the peak was before the first", r.Memory)
	}
	after.Container.MemoryPeak, after.Container.OOMKills = 99<<20, 2
	if r := Replica(before, after); r.Memory != 99<<20 || r.OOMKills != 2 {
		t.Errorf("%d, want the peak, which is new; %d killed", r.Memory, r.OOMKills)
	}
}

func TestTheMemoryOfConnectionsIsThatOfTheLookThatSawThem(t *testing.T) {
	before, after := used(10), used(30) // with 3 and 2 connections
	before.Container.Memory, after.Container.Memory, after.Container.MemoryPeak = 52<<20, 57<<20, 99<<20
	if r := Replica(before, after); r.LoadedMemory != 52<<20 || r.Connections != 3 {
		t.Errorf("%d bytes with %d connections, want those of the first look", r.LoadedMemory, r.Connections)
	}
	after.Connections = 40
	if r := Replica(before, after); r.LoadedMemory != 57<<20 || r.Connections != 40 {
		t.Errorf("%d bytes with %d connections, want those of the second look", r.LoadedMemory, r.Connections)
	}
}

func TestTwoWorkersTellNothing(t *testing.T) {
	other := used(30)
	other.Worker = "9@20"
	for name, after := range map[string]dataplane.Usage{"another worker": other, "the same moment": used(10), "an earlier one": used(9)} {
		if got := Replica(used(10), after); !reflect.DeepEqual(got, validity.Replica{Disturbed: true}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A pod whose agent began anew, or whose container did, has not lent its group.
func TestWhatIsNotObservedIsNotEvidence(t *testing.T) {
	bare := dataplane.Usage{Time: 30 * int64(time.Second), Worker: "8@1", CPU: int64(2 * time.Second), TLSConnections: 1500}
	want := validity.Replica{Observed: 20 * time.Second, CPU: 1500 * time.Millisecond, Handshakes: 500, Connections: 3}
	if got := Replica(used(10), bare); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	lower := used(30)
	lower.Container.Periods = 5
	if got := Replica(used(10), lower); got.Periods != 0 || got.Memory != 0 {
		t.Errorf("of another group: %+v", got)
	}
	e := validity.Evidence{Replicas: []validity.Replica{want}}
	if Complete(&e, shard.Result{}); e.HSM != nil || e.Redis != nil || e.Network != (validity.Path{}) {
		t.Errorf("%+v", e)
	}
}

// result of so many handshakes a second, each of 10 ms: 1 ms the client's, 3 ms the
// network's, 6 ms the server's.
func result(perSecond float64) shard.Result {
	s := shard.Series{Handshake: &shard.Histogram{}, Client: &shard.Histogram{}, Network: &shard.Histogram{}, Server: &shard.Histogram{}}
	for range 10 {
		s.Count++
		s.Handshake.Record(10 * time.Millisecond)
		s.Client.Record(time.Millisecond)
		s.Network.Record(3 * time.Millisecond)
		s.Server.Record(6 * time.Millisecond)
	}
	return shard.Result{Handshakes: []shard.Series{s}, PerSecond: perSecond}
}

func TestTheHSMIsAsBusyAsHandshakesWaitForIt(t *testing.T) {
	near := func(p *float64, want float64) bool { return p != nil && math.Abs(*p-want) < 0.01 }
	replica := func(waitedASecond time.Duration) validity.Replica {
		return validity.Replica{HSM: &validity.HSMWait{Observed: 10 * time.Second, Sessions: 4, Waited: 10 * waitedASecond}}
	}
	for name, c := range map[string]struct {
		replicas   []validity.Replica
		perSecond  float64
		use, share float64
	}{
		// 1000 in a second, 6 ms each at the server, are 6 at a time there.
		"half of the sessions":            {[]validity.Replica{replica(2 * time.Second)}, 1000, 0.5, 1. / 3},
		"two, and the second is the full": {[]validity.Replica{replica(time.Second), replica(3800 * time.Millisecond)}, 1000, 0.95, 0.8},
		"a queue":                         {[]validity.Replica{replica(40 * time.Second)}, 1000, 1, 1},
		"nothing was signed":              {[]validity.Replica{{HSM: &validity.HSMWait{Sessions: 4}}}, 1000, 0, 0},
	} {
		e := validity.Evidence{Replicas: c.replicas}
		if Complete(&e, result(c.perSecond)); e.HSM == nil || !near(e.HSM.Use, c.use) || !near(e.HSM.WaitShare, c.share) {
			t.Errorf("%s: %+v, want %v and %v", name, e.HSM, c.use, c.share)
		}
	}
}

func TestTheStoreIsMissedByReplicasWithKeysOfTheirOwn(t *testing.T) {
	own, shared := validity.Replica{Tickets: &validity.TicketWait{Own: true}}, validity.Replica{Tickets: &validity.TicketWait{}}
	for without, replicas := range [][]validity.Replica{{shared, shared}, {own, shared}, {own, own}} {
		e := validity.Evidence{Replicas: replicas}
		if Complete(&e, result(100)); e.Redis == nil || e.Redis.Without != without || e.Redis.Use != nil {
			t.Errorf("%+v, want %d without", e.Redis, without)
		}
	}
	before, after := used(10), used(30)
	before.Tickets.Own = true
	if r := Replica(before, after); !r.Tickets.Own {
		t.Error("keys of its own at the first look are forgotten")
	}
}

func TestTheNetworksPartIsOfAllHandshakesAndSegments(t *testing.T) {
	e := validity.Evidence{Replicas: []validity.Replica{{Traffic: &validity.Traffic{Segments: 900, Retransmitted: 9}}, {Traffic: &validity.Traffic{Segments: 100, Retransmitted: 11}}, {}}}
	Complete(&e, result(100))
	if n := e.Network; n.Share == nil || math.Abs(*n.Share-0.3) > 0.01 || n.Retransmitted == nil || *n.Retransmitted != 0.02 {
		t.Errorf("%+v", n)
	}
}

// A link that is full one way has one side alone send again.
func TestSegmentsAreLostOnTheirWayToEitherSide(t *testing.T) {
	quiet := validity.Replica{Traffic: &validity.Traffic{Segments: 1000, Retransmitted: 2}}
	for name, c := range map[string]struct {
		replicas  []validity.Replica
		generator shard.TCP
		want      float64
	}{
		"to the gateway":                   {[]validity.Replica{quiet}, shard.TCP{Segments: 2000, Retransmitted: 60}, 0.03},
		"to the generator":                 {[]validity.Replica{{Traffic: &validity.Traffic{Segments: 1000, Retransmitted: 50}}}, shard.TCP{Segments: 2000, Retransmitted: 1}, 0.05},
		"and the generator does not say":   {[]validity.Replica{quiet}, shard.TCP{}, 0.002},
		"and nobody asks the replicas":     {nil, shard.TCP{Segments: 100, Retransmitted: 4}, 0.04},
		"and none is, as both sides think": {[]validity.Replica{{Traffic: &validity.Traffic{Segments: 1000}}}, shard.TCP{Segments: 100}, 0},
	} {
		made := result(100)
		made.TCP = c.generator
		e := validity.Evidence{Replicas: c.replicas}
		if Complete(&e, made); e.Network.Retransmitted == nil || *e.Network.Retransmitted != c.want {
			t.Errorf("%s: %+v, want %v", name, e.Network, c.want)
		}
	}
}

// Between two looks 20 seconds apart a pod has made 100 TLS connections a second.
func TestConnectionsBeforeALoadAreOthers(t *testing.T) {
	other := used(30)
	other.Worker = "9@20"
	for name, c := range map[string]struct {
		idle, quiet dataplane.Usage
		begins      int64 // in seconds
		known       bool
	}{
		"both before it":             {used(10), used(30), 30, true},
		"the second came too late":   {used(10), used(30), 29, false},
		"of two workers":             {used(10), other, 40, false},
		"without the first":          {dataplane.Usage{}, used(30), 40, false},
		"without the second":         {used(10), dataplane.Usage{}, 40, false},
		"as older operators measure": {dataplane.Usage{}, dataplane.Usage{}, 40, false},
	} {
		got := Others(c.idle, c.quiet, time.Unix(c.begins, 0))
		if known := got != nil; known != c.known || known && *got != 100 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// In 10 seconds a machine of two CPUs has 2000 ticks.
func TestTheGeneratorIsAsBusyAsItsBusiestPodAndMachine(t *testing.T) {
	const none = -1
	one := shard.CPU{Used: int64(5 * time.Second), MachineTotal: 2000, MachineIdle: 1000}
	for name, c := range map[string]struct {
		pods      []shard.CPU
		limit     float64
		use, idle float64
	}{
		"one pod":                    {[]shard.CPU{one}, 0, 0.25, 0.5},
		"one with a limit":           {[]shard.CPU{one}, 0.8, 0.625, 0.5},
		"a limit above the machine":  {[]shard.CPU{one}, 8, 0.25, 0.5},
		"two, the second is busier":  {[]shard.CPU{one, {Used: int64(8 * time.Second), MachineTotal: 2000, MachineIdle: 1900}}, 0, 0.4, 0.5},
		"two, its machine is busier": {[]shard.CPU{one, {Used: int64(time.Second), MachineTotal: 2000, MachineIdle: 20}}, 0, 0.25, 0.01},
		"one of two did not look":    {[]shard.CPU{one, {}}, 0, none, none},
		"nobody did":                 {nil, 0, none, none},
	} {
		got := Generator(shard.Result{CPUOfPods: c.pods}, 10*time.Second, c.limit)
		is := func(f *float64, want float64) bool {
			return f == nil && want == none || f != nil && math.Abs(*f-want) < 1e-9
		}
		if !is(got.Use, c.use) || !is(got.MachineIdle, c.idle) {
			t.Errorf("%s: %v, %v, want %v, %v", name, got.Use, got.MachineIdle, c.use, c.idle)
		}
	}
}
