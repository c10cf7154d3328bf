package validity

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func share(f float64) *float64 { return &f }

// capacity is a good measurement of two replicas at their quotas.
func capacity() Evidence {
	replica := Replica{Name: "gateway-a", Quota: 0.05, Periods: 300, ThrottledPeriods: 298, CPU: 1500 * time.Millisecond, Handshakes: 1200, Memory: 60 << 20, MemoryLimit: 256 << 20}
	other := replica
	other.Name = "gateway-b"
	return Evidence{
		Phase: Capacity, Window: 30 * time.Second, Common: 29 * time.Second,
		Handshakes: 2400, MachineIdle: share(0.4),
		Generator: Generator{Periods: 300, Use: share(0.5), MachineIdle: share(0.3)},
		Replicas:  []Replica{replica, other}, WantedReplicas: 2,
	}
}

// latency is a good one at half of the rate.
func latency() Evidence {
	e := capacity()
	e.Phase, e.Rate, e.WantedRate, e.StartLagP99 = Latency, 40, 40, time.Millisecond
	for i := range e.Replicas {
		e.Replicas[i].ThrottledPeriods = 20
	}
	return e
}

// useWholeCPUs gives each replica a quota of two CPUs, of which its two threads used a
// share: they cannot use more than the quota, and are not throttled.
func useWholeCPUs(e *Evidence, share float64) {
	for i := range e.Replicas {
		r := &e.Replicas[i]
		r.Quota, r.Observed, r.ThrottledPeriods = 2, 30*time.Second, 0
		r.CPU = time.Duration(share * r.Quota * float64(r.Observed))
	}
}

// A quota that is as many CPUs as HAProxy has threads is used up without a throttled period.
func TestReplicasThatUseWholeCPUsAreAtTheirQuotas(t *testing.T) {
	e := capacity()
	if useWholeCPUs(&e, 0.97); len(Judge(e)) > 0 {
		t.Errorf("%+v", Judge(e))
	}
}

func TestGoodMeasurementsAreResults(t *testing.T) {
	few, inPlace := latency(), capacity()
	few.WantedRate, few.Rate = 2, 58/few.Window.Seconds() // one less than 98 % of 60 are
	inPlace.InPlace = true
	for i := range inPlace.Replicas {
		inPlace.Replicas[i].Others = share(0)
	}
	for name, e := range map[string]Evidence{"capacity": capacity(), "latency": latency(), "one handshake less": few, "without other clients": inPlace} {
		if reasons := Judge(e); len(reasons) != 0 {
			t.Errorf("%s: %v", name, reasons)
		}
		if remarks := Remarks(5, e); len(remarks) != 0 {
			t.Errorf("%s: %v", name, remarks)
		}
	}
}

func TestBadMeasurementsAreNone(t *testing.T) {
	for _, c := range []struct {
		name   string
		from   func() Evidence
		change func(e *Evidence)
		rule   Rule
		says   string
	}{
		{"dropped iterations", latency, func(e *Evidence) { e.Dropped = 1 }, DroppedIterations, "1 iterations were dropped, want 0"},
		{"late starts", latency, func(e *Evidence) { e.StartLagP99 = 10*time.Millisecond + 1 }, LateStarts, "want at most 10ms"},
		{"rate not reached", latency, func(e *Evidence) { e.Rate = 39 }, RateMissed, "39.0 handshakes a second of the 40.0"},
		{"rate missed in a short window", latency, func(e *Evidence) {
			e.Window, e.Common, e.WantedRate, e.Rate = 1500*time.Millisecond, 1500*time.Millisecond, 11, 14/1.5
		}, RateMissed, "9.3 handshakes a second of the 11.0"},
		{"a rate of no capacity", latency, func(e *Evidence) { e.CapacityInvalid = "NotSaturated: it could do more" }, CapacityInvalid, "a capacity that is no result: NotSaturated: it could do more"},
		{"failures", capacity, func(e *Evidence) { e.Failures = 3 }, TooManyFailures, "3 of 2403 attempts failed, want at most 0.1 %"},
		{"nothing but failures", capacity, func(e *Evidence) { e.Handshakes = 0 }, NoHandshakes, "no handshake succeeded"},
		{"a replica that did not answer", capacity, func(e *Evidence) {
			e.Replicas[0] = Replica{Name: "gateway-a", Quota: 0.05, Disturbed: true, Silent: true}
		}, ReplicasDisturbed, "gateway-a did not say what it used"},
		{"machine busy", capacity, func(e *Evidence) { e.MachineIdle = share(0.0999) }, MachineBusy, "idle for 9.99 %, want 10 %"},
		{"machine not looked at", capacity, func(e *Evidence) { e.MachineIdle = nil }, NotObserved, "not observed"},
		{"generator's machine busy", capacity, func(e *Evidence) { e.Generator.MachineIdle = share(0.05) }, GeneratorLimited, "machine of the load generator was idle for 5 %, want 10 %"},
		{"generator's machine not looked at", latency, func(e *Evidence) { e.Generator.MachineIdle = nil }, NotObserved, "the load generator's machines were was not observed"},
		{"generator at its limit", capacity, func(e *Evidence) { e.Generator.Use = share(0.9) }, GeneratorLimited, "the generator used 90 % of the CPU that it may have, want less than 90 %"},
		{"generator throttled", capacity, func(e *Evidence) { e.Generator.ThrottledPeriods = 1 }, GeneratorLimited, "throttled in 1 of 300 CPU periods"},
		{"another image", capacity, func(e *Evidence) { e.OtherImages = []string{"haproxy", "k6"} }, OtherImages, "the image of haproxy, k6 is another one than in the run's first measurement"},
		{"replica observed for a part of the window", capacity, func(e *Evidence) { e.Replicas[1].Observed = 14 * time.Second }, NotObserved, "replica gateway-b was observed for 14s, and the window is of 30s"},
		{"replica observed for longer than the window", latency, func(e *Evidence) { e.Replicas[1].Observed = 38 * time.Second }, NotObserved, "replica gateway-b was observed for 38s, and the window is of 30s"},
		{"replica not saturated, by its CPU time", capacity, func(e *Evidence) {
			r := &e.Replicas[1]
			r.Periods, r.ThrottledPeriods, r.Quota, r.Observed, r.CPU = 0, 0, 0.05, 20*time.Second, 940*time.Millisecond
		}, NotSaturated, "replica gateway-b used 94 % of its CPU quota, want 95 %"},
		{"replica of a whole CPU not saturated", capacity, func(e *Evidence) {
			r := &e.Replicas[1]
			r.ThrottledPeriods, r.Quota, r.Observed, r.CPU = 3, 1, 20*time.Second, 18800*time.Millisecond
		}, NotSaturated, "replica gateway-b used 94 % of its CPU quota, want 95 %"},
		{"replica not saturated", capacity, func(e *Evidence) { e.Replicas[1].ThrottledPeriods = 284 }, NotSaturated, "replica gateway-b was throttled in 94.67 % of its CPU periods, want 95 %"},
		{"replica without quota", capacity, func(e *Evidence) { e.Replicas[1].Quota = 0 }, NotSaturated, "set resources.limits.cpu"},
		{"another limit", capacity, func(e *Evidence) {
			e.Limit, e.Network.Retransmitted = HSM, share(0.05)
			idle(e)
		}, OtherLimit, "the HSM was meant to limit this point, and it was the network"},
		{"an HSM that is far away", capacity, func(e *Evidence) {
			e.Limit, e.HSM = HSM, &Dependency{Use: share(0.06), WaitShare: share(0.9)}
			idle(e)
		}, NotSaturated, "the HSM was meant to limit this point, and was waited for without being full: HSM was busy for 6 % of what it has, want 90 %: it could have done more; add virtual users"},
		{"a network that is slow", capacity, func(e *Evidence) {
			e.Limit, e.Network = Network, Path{Share: share(0.9), Retransmitted: share(0.001)}
			idle(e)
		}, NotSaturated, "0.1 % of the segments were lost, want 1 %"},
		{"a network that nobody looked at", capacity, func(e *Evidence) {
			e.Limit, e.Network = Network, Path{Share: share(0.9)}
			idle(e)
		}, NotSaturated, "nobody observed whether segments were lost"},
		{"short of memory", capacity, func(e *Evidence) { e.Replicas[1].MemoryStalled = share(0.4) }, OtherLimit, "the replicas' CPU quota was meant to limit this point, and it was the replicas' memory: replica gateway-b waited for memory for 40 % of the time; raise resources.limits.memory"},
		{"replica restarted", latency, func(e *Evidence) { e.Replicas[0].Disturbed = true }, ReplicasDisturbed, "replica gateway-a restarted"},
		{"replica killed", latency, func(e *Evidence) { e.Replicas[0].OOMKills = 1 }, ReplicasDisturbed, "replica gateway-a was killed for lack of memory: raise resources.limits.memory"},
		{"replica missing", latency, func(e *Evidence) { e.Replicas = e.Replicas[:1] }, ReplicasDisturbed, "1 replicas were observed, want 2"},
		{"resumed instead of full", capacity, func(e *Evidence) { e.Resumed = 1 }, OtherMode, "1 handshakes were resumed"},
		{"full instead of resumed", latency, func(e *Evidence) { e.Resumes, e.Resumed = true, 2200 }, OtherMode, "91.67 % of the handshakes were resumed, want 95 %"},
		{"other clients", capacity, func(e *Evidence) { e.Replicas[0].Others, e.Replicas[1].Others = share(0.5), share(0.4) }, OtherTraffic, "just before the load the replicas had 0.9 TLS connections a second, 1.125 % of its rate, want at most 1 %: the gateway has clients of its own; measure a copy"},
		{"clients that nobody looked for", capacity, func(e *Evidence) {
			e.InPlace, e.Replicas[0].Others = true, share(0)
		}, NotObserved, "replica gateway-b had just before the load was not observed"},
		{"another group", latency, func(e *Evidence) { e.Strays = 7 }, OtherMode, "7 handshakes used another group"},
		{"generators apart", capacity, func(e *Evidence) { e.Common = 26 * time.Second }, WindowsApart, "together for 86.67 % of the window, want 90 %"},
		{"no window", capacity, func(e *Evidence) { e.Window = 0 }, NotObserved, "the window was not observed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := c.from()
			c.change(&e)
			reasons := Judge(e)
			if len(reasons) != 1 || reasons[0].Rule != c.rule || !strings.Contains(reasons[0].Message, c.says) {
				t.Errorf("%v, want %s with %q", reasons, c.rule, c.says)
			}
		})
	}
}

// A gateway may have a hundred replicas. What is so of many is one reason.
func TestWhatIsSoOfManyReplicasIsSaidOnce(t *testing.T) {
	e := capacity()
	for i := range 98 {
		r := e.Replicas[1]
		r.Name = fmt.Sprintf("gateway-%d", i)
		e.Replicas = append(e.Replicas, r)
	}
	e.WantedReplicas = len(e.Replicas)
	for i := range e.Replicas[1:] {
		e.Replicas[1+i].ThrottledPeriods = 284
	}
	e.Replicas[0].Disturbed = true
	reasons := Judge(e)
	if len(reasons) != 2 || !strings.HasSuffix(reasons[0].Message, "look at the pod's events") ||
		!strings.HasPrefix(reasons[1].Message, "replica gateway-b was throttled in 94.67 %") || !strings.HasSuffix(reasons[1].Message, " (98 more replicas too)") {
		t.Errorf("%q", reasons)
	}
	for i := range e.Replicas[1:] {
		e.Replicas[1+i].MemoryStalled = share(0.4)
	}
	if f := Name(e); len(f.Evidence) != 1 || f.Evidence[0] != "replica gateway-b waited for memory for 40 % of the time (98 more replicas too)" {
		t.Errorf("%q", f.Evidence)
	}
}

func TestMeasurementsAtTheRulesLimitsAreResults(t *testing.T) {
	e := latency()
	e.StartLagP99, e.MachineIdle, e.Handshakes, e.Failures, e.Rate = StartLagP99, share(LeastIdle), 999, 1, 39.2
	if reasons := Judge(e); len(reasons) != 0 {
		t.Error(reasons)
	}
	e = capacity()
	e.Replicas[0].ThrottledPeriods, e.Replicas[1].ThrottledPeriods, e.Common = 285, 285, 27*time.Second
	e.Replicas[0].Others = share(0.8) // of 80 a second
	if reasons := Judge(e); len(reasons) != 0 {
		t.Error(reasons)
	}
}

// With an HSM or a network as the deliberate limit replicas are not throttled, and need not be.
func TestADeliberateLimitTakesTheQuotasPlace(t *testing.T) {
	for limit, change := range map[Bottleneck]func(*Evidence){
		HSM:     func(e *Evidence) { e.HSM = &Dependency{Use: share(0.97), WaitShare: share(0.8)} },
		Network: func(e *Evidence) { e.Network = Path{Share: share(0.3), Retransmitted: share(0.02)} },
	} {
		e := capacity()
		e.Limit = limit
		change(&e)
		idle(&e)
		if reasons := Judge(e); len(reasons) != 0 {
			t.Errorf("%s: %v", limit, reasons)
		}
	}
}

// idle replicas have CPU to spare.
func idle(e *Evidence) {
	for i := range e.Replicas {
		e.Replicas[i].ThrottledPeriods = 10
	}
}

// Few replicas do not reach the limit that many are meant to have: their points are
// where the curve begins that the others bend.
func TestReplicasAtTheirQuotasHaveNotReachedADeliberateLimit(t *testing.T) {
	e := capacity()
	e.Limit, e.HSM = HSM, &Dependency{Use: share(0.4), WaitShare: share(0.2)}
	if reasons := Judge(e); len(reasons) != 0 {
		t.Error(reasons)
	}
}

func TestBottlenecksAreNamedFromEvidence(t *testing.T) {
	spare := func() Evidence { // replicas with CPU to spare, at an unknown limit
		e := capacity()
		for i := range e.Replicas {
			e.Replicas[i].ThrottledPeriods = 30
		}
		return e
	}
	for _, c := range []struct {
		name   string
		from   func() Evidence
		change func(e *Evidence)
		want   Bottleneck
		says   string
		others []Bottleneck
	}{
		{"quota", capacity, func(*Evidence) {}, CPUQuota, "every replica was throttled in 99.33 % of its CPU periods or more", nil},
		{"quota, of which all was used", capacity, func(e *Evidence) {
			for i := range e.Replicas {
				e.Replicas[i].Observed = 30 * time.Second
			}
		}, CPUQuota, "every replica was throttled in 99.33 % of its CPU periods or more", nil},
		{"quotas of whole CPUs", capacity, func(e *Evidence) { useWholeCPUs(e, 0.97) }, CPUQuota, "every replica used 97 % of its CPU quota or more", nil},
		{"quotas of which one is a whole CPU", capacity, func(e *Evidence) {
			throttled := e.Replicas[1]
			useWholeCPUs(e, 0.97)
			e.Replicas[1] = throttled
		}, CPUQuota, "every replica used 97 % of its CPU quota or more", nil},
		{"quotas of whole CPUs that were not used", capacity, func(e *Evidence) { useWholeCPUs(e, 0.9) }, Unknown, "", nil},
		{"nothing seen", spare, func(*Evidence) {}, Unknown, "", nil},
		{"below the limits", latency, func(*Evidence) {}, None, "", nil},
		{"client throttled", spare, func(e *Evidence) { e.Generator.ThrottledPeriods = 200 }, Client, "throttled in 200 of 300", nil},
		{"client throttled now and then", spare, func(e *Evidence) { e.Generator.ThrottledPeriods = 29 }, Unknown, "", nil},
		{"client throttled now and then, and gateway always", capacity, func(e *Evidence) { e.Generator.ThrottledPeriods = 29 }, CPUQuota, "every replica", nil},
		{"client without CPU", spare, func(e *Evidence) { e.Generator.Use = share(0.98) }, Client, "used 98 % of its CPU", nil},
		{"client's machine without CPU", spare, func(e *Evidence) { e.Generator.MachineIdle = share(0.05) }, Client, "the busiest machine of the generator was idle for 5 % of the time", nil},
		{"client's machine, which is the gateway's too", spare, func(e *Evidence) { e.Generator.MachineIdle, e.MachineIdle = share(0.05), share(0.05) }, Machine, "the busiest machine was idle for 5 % of the time", nil},
		{"client's machine, where nobody looked at the gateway's", spare, func(e *Evidence) { e.Generator.MachineIdle, e.MachineIdle = share(0.05), nil }, Unknown, "", nil},
		{"client without virtual users", spare, func(e *Evidence) { e.Dropped = 5 }, Client, "5 iterations were dropped while the replicas had CPU to spare", nil},
		{"gateway that makes the client drop", capacity, func(e *Evidence) { e.Dropped = 5 }, CPUQuota, "every replica", nil},
		{"machine", capacity, func(e *Evidence) { e.MachineIdle = share(0.02) }, Machine, "idle for 2 %", []Bottleneck{CPUQuota}},
		{"HSM's sessions", spare, func(e *Evidence) { e.HSM = &Dependency{Use: share(0.95)} }, HSM, "HSM was busy for 95 %", nil},
		{"HSM's latency", spare, func(e *Evidence) { e.HSM = &Dependency{WaitShare: share(0.7)} }, HSM, "70 % of the server's time was spent waiting for HSM", nil},
		{"HSM beside the quota", capacity, func(e *Evidence) { e.HSM = &Dependency{Use: share(0.95), WaitShare: share(0.7)} }, CPUQuota, "every replica", []Bottleneck{HSM}},
		{"idle HSM", spare, func(e *Evidence) { e.HSM = &Dependency{Use: share(0.3), WaitShare: share(0.1)} }, Unknown, "", nil},
		{"Redis that gives no ticket keys", capacity, func(e *Evidence) {
			e.Resumes, e.Resumed, e.Redis = true, 1200, &Dependency{Without: 2}
		}, Redis, "2 of 2 replicas had no ticket keys of the store, and 50 % of the handshakes were resumed", []Bottleneck{CPUQuota}},
		{"Redis that gives none, and nobody needs them", spare, func(e *Evidence) {
			e.Resumes, e.Resumed, e.Redis = true, 2400, &Dependency{Without: 1}
		}, Unknown, "", nil},
		{"network delay", spare, func(e *Evidence) { e.Network.Share = share(0.8) }, Network, "80 % of a handshake's time is the network's", nil},
		{"network loss", spare, func(e *Evidence) { e.Network.Retransmitted = share(0.05) }, Network, "5 % of the segments were lost", nil},
		{"killed for memory", spare, func(e *Evidence) { e.Replicas[0].OOMKills = 2 }, Memory, "replica gateway-a was killed 2 times", nil},
		{"short of memory", capacity, func(e *Evidence) {
			e.Replicas[0].MemoryStalled, e.Replicas[0].Memory = share(0.4), 255<<20
		}, Memory, "replica gateway-a used 99.61 % of its memory limit", []Bottleneck{CPUQuota}},
		{"memory full of caches", spare, func(e *Evidence) { e.Replicas[0].Memory = 255 << 20 }, Unknown, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := c.from()
			c.change(&e)
			f := Name(e)
			if f.Bottleneck != c.want || !strings.Contains(strings.Join(f.Evidence, "; "), c.says) || !slices.Equal(f.Others, c.others) {
				t.Errorf("%+v, want %s with %q, others %v", f, c.want, c.says, c.others)
			}
			if (len(f.Evidence) == 0) != (c.want == Unknown || c.want == None) {
				t.Errorf("evidence %q for %s", f.Evidence, c.want)
			}
		})
	}
}

func TestShortRunsAndImbalanceAreRemarked(t *testing.T) {
	e := capacity()
	e.Window = 10 * time.Second
	if r := Remarks(5, e); len(r) != 1 || r[0] != "indicative only: 5 measurements of 10s; a conclusive result has 5 of 30s" {
		t.Errorf("%q", r)
	}
	ofAll := func(first int64) Evidence {
		e := capacity()
		e.Replicas[0].Handshakes = first
		e.Replicas[0].Observed, e.Replicas[1].Observed = 30*time.Second, 30*time.Second
		return e
	}
	e = ofAll(3600)
	if r := Remarks(4, e); len(r) != 2 || !strings.HasPrefix(r[0], "indicative only: 4 ") || r[1] != "the busiest replica did 50 % more than its part" {
		t.Errorf("%q", r)
	}
	// Of several repetitions the greatest, once.
	worse := ofAll(6000)
	if r := Remarks(5, e, worse, e); len(r) != 1 || r[0] != "the busiest replica did 66.67 % more than its part" {
		t.Errorf("%q", r)
	}
	if r := Remarks(5); len(r) != 0 {
		t.Errorf("of nothing: %q", r)
	}
	// One whose agent answered late was observed for longer, and did no more than the other.
	late := ofAll(1320)
	late.Replicas[0].Observed = 33 * time.Second
	if share, known := Imbalance(late.Replicas); !known || share > 1e-9 {
		t.Errorf("%v, %v, want none", share, known)
	}
	if _, known := Imbalance([]Replica{{}, {}}); known {
		t.Error("the balance of nothing")
	}
}

func TestThePageOnTheMethodHasTheRulesAndTheirLimits(t *testing.T) {
	page, err := os.ReadFile("../../../docs/benchmarks/method.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range Rules {
		if !strings.Contains(string(page), fmt.Sprintf("| `%s` |", rule)) {
			t.Errorf("rule %s is not in it", rule)
		}
	}
	for _, text := range []string{
		fmt.Sprintf("for less than %.0f %% of the window", CommonShare*100),
		fmt.Sprintf("began more than %.0f ms late", StartLagP99.Seconds()*1000),
		fmt.Sprintf("less than %.0f %% of the rate", RateShare*100),
		fmt.Sprintf("more than %g %% of the attempts", FailureShare*100),
		fmt.Sprintf("or less than %.0f %% resumed", ResumedShare*100),
		fmt.Sprintf("at more than %.0f %% of its rate", OthersShare*100),
		fmt.Sprintf("a machine was idle for less than %.0f %%", LeastIdle*100),
		fmt.Sprintf("throttled in less than %.0f %% of its CPU periods and used less than %.0f %% of its quota", Saturated*100, Saturated*100),
		fmt.Sprintf("fewer than %d repetitions or windows of less than %.0f s", ConclusiveRepetitions, ConclusiveWindow.Seconds()),
		fmt.Sprintf("%.0f %% busy, or half of the server's time", busy*100),
		fmt.Sprintf("stalls for %.0f %% of the time", stalled*100),
		fmt.Sprintf("%.0f %% of segments lost", retransmitted*100),
	} {
		if !strings.Contains(string(page), text) {
			t.Errorf("%q is not in it", text)
		}
	}
}

// Of another server nobody knows what its pods used; the other rules hold for it.
func TestAPeerIsJudgedByWhatIsObservedOfIt(t *testing.T) {
	e := capacity()
	e.Peer, e.Replicas = true, nil
	if reasons := Judge(e); len(reasons) > 0 {
		t.Errorf("got %+v", reasons)
	}
	idle := 0.01
	e.MachineIdle = &idle
	if reasons := Judge(e); len(reasons) != 1 || reasons[0].Rule != MachineBusy {
		t.Errorf("on a full machine: %+v", reasons)
	}
	if remarks := Remarks(ConclusiveRepetitions, e); len(remarks) != 1 || !strings.Contains(remarks[0], "is not observed") {
		t.Errorf("remarks %q", remarks)
	}
}
