package report

import (
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/threshold"
	"qtls.dev/qtls/internal/bench/validity"
)

// A run that was never made: figures of the right size, from a law and a noise
// that are known.
type made struct {
	mode    Mode
	rate    float64 // of one replica
	sigma   float64
	kappa   float64
	latency time.Duration // median
	spread  float64
	client  float64 // share of the time
	cpu     time.Duration
	bytes   Bytes
}

var madeModes = []made{
	{Mode{Name: "classical-full", Groups: []string{"X25519"}, SignatureSchemes: []string{"rsa_pss_rsae_sha256"}}, 33, 0.004, 0.0002, 3100 * time.Microsecond, 0.30, 0.12, 1300 * time.Microsecond, Bytes{517, 5400, 4100}},
	{Mode{Name: "hybrid-full", Groups: []string{"X25519MLKEM768"}, SignatureSchemes: []string{"mldsa65"}, Listener: "https", ServerName: "www.example.com"}, 41, 0.004, 0.0002, 2600 * time.Microsecond, 0.35, 0.32, 1100 * time.Microsecond, Bytes{1700, 19800, 17300}},
	{Mode{Name: "hybrid-resumed", Groups: []string{"X25519MLKEM768"}, SignatureSchemes: []string{"mldsa65"}, Resumed: true, Transfer: 16 << 10, Path: "/upload"}, 104, 0.006, 0.0004, 900 * time.Microsecond, 0.40, 0.41, 410 * time.Microsecond, Bytes{2100, 1400, 0}},
	{Mode{Name: "hybrid-hsm", Groups: []string{"X25519MLKEM768"}, SignatureSchemes: []string{"mldsa65"}, HSM: true}, 38, 0.05, 0.012, 7400 * time.Microsecond, 0.45, 0.12, 1200 * time.Microsecond, Bytes{1700, 19800, 17300}},
	{Mode{Name: "pqc-only", Groups: []string{"MLKEM768"}, SignatureSchemes: []string{"mldsa65"}}, 43, 0.004, 0.0001, 2500 * time.Microsecond, 0.34, 0.31, 1050 * time.Microsecond, Bytes{1660, 19760, 17300}},
	{Mode{Name: "nginx-hybrid", Groups: []string{"X25519MLKEM768"}, SignatureSchemes: []string{"mldsa65"}, Peer: "nginx 1.28", PeerOf: "hybrid-full"}, 37, 0.004, 0.0002, 2800 * time.Microsecond, 0.38, 0.31, 1200 * time.Microsecond, Bytes{1700, 19800, 17300}},
}

const madeBlocks = 5

// tolerance of comparisons.
const tolerance = 0.05

var start = time.Date(2026, 3, 14, 9, 26, 53, 0, time.UTC)

func madeHead() Report {
	r := Report{
		Name: "march", Namespace: "bench", UID: "5b0e8d0c-7a52-4b39-9c4e-1d2f3a4b5c6d", Gateway: "edge", Started: start, Finished: start.Add(52 * time.Minute), Preset: "Thorough", Seed: 20260314,
		Load: &Load{ClientsPerReplica: 4, Percent: 50, Pods: 1, WarmUp: 10 * time.Second, Window: 30 * time.Second, Repetitions: madeBlocks},
		Environment: Environment{
			Versions: []Program{{"Kubernetes", "v1.37.0"}, {"HAProxy", "3.2.1"}, {"OpenSSL", "3.5.7"}, {"k6", "v2.2.0"}},
			Images:   []Image{{"qtls-gateway", "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}, {"qtls-k6", "sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752"}},
			Machines: []Machine{{Name: "n1", CPUModel: "AMD EPYC 7R13 Processor", CPUs: 2, Flags: []string{"adx", "aes", "avx2", "vaes"}, Memory: 24 << 30, Kernel: "6.1.0"}},
			Quotas:   []Quota{{"haproxy", "50m", "256Mi"}, {"k6", "", "1Gi"}},
		},
	}
	for _, m := range madeModes {
		r.Modes = append(r.Modes, m.mode)
	}
	return r
}

// madeMeasurements are all the same from run to run.
func madeMeasurements() []Measurement {
	rng := rand.New(rand.NewPCG(9, 10))
	spare := 0.6
	noise := func(width float64) float64 { return math.Exp(width * rng.NormFloat64()) }
	var all []Measurement
	for block := 1; block <= madeBlocks; block++ {
		machine := noise(0.03)
		for _, m := range madeModes {
			for _, n := range []int{1, 2, 4, 8, 16} {
				if m.mode.Peer != "" && n == 8 { // there was no room for so many
					for _, phase := range []validity.Phase{validity.Capacity, validity.Latency} {
						all = append(all, Measurement{Mode: m.mode.Name, Replicas: n, Phase: phase, Block: block, Missing: "PeerNotReady: peer \"nginx\": 6 of 8 pods of Deployment \"march-peer-nginx\" are ready, 8 are there: pod \"march-peer-nginx-7d9c5\" has no node: 0/1 nodes are available: 1 Insufficient memory"})
					}
				}
				if m.mode.Peer != "" && n > 4 {
					continue
				}
				f := float64(n)
				rate := m.rate * f / (1 + m.sigma*(f-1) + m.kappa*f*(f-1)) * machine * noise(0.012)
				for _, phase := range []validity.Phase{validity.Capacity, validity.Latency} {
					handshakes := int64(rate * 30)
					if phase == validity.Latency {
						handshakes = int64(rate * 15)
					}
					e := validity.Evidence{Phase: phase, Window: 30 * time.Second, Common: 30 * time.Second, Handshakes: handshakes, Resumes: m.mode.Resumed, WantedReplicas: n}
					idle := 0.82 - 0.045*f + 0.01*rng.Float64()
					if m.mode.Name == "pqc-only" && n == 16 {
						idle = 0.031
					}
					e.MachineIdle = &idle
					use := 0.3
					e.Generator.Use, e.Generator.MachineIdle = &use, &spare
					for i := range n {
						r := validity.Replica{Name: "edge-" + string(rune('a'+i)), Node: "n1", Quota: 0.05, Periods: 300, ThrottledPeriods: 297, Observed: 30 * time.Second, CPU: time.Duration(float64(handshakes) * float64(m.cpu) / f * noise(0.01)), Handshakes: int64(float64(handshakes) / f * noise(0.02)), Memory: 61 << 20, IdleMemory: 58 << 20, LoadedMemory: 61 << 20, MemoryLimit: 256 << 20, Connections: 40}
						if phase == validity.Latency {
							r.ThrottledPeriods = 40
						} else if m.mode.HSM && n >= 8 {
							r.ThrottledPeriods = 120
						}
						e.Replicas = append(e.Replicas, r)
					}
					if m.mode.HSM {
						use, wait := min(0.12*f, 0.97), 0.3
						e.HSM = &validity.Dependency{Use: &use, WaitShare: &wait}
						if n >= 8 {
							e.Limit = validity.HSM
						}
					}
					if phase == validity.Latency {
						e.Rate, e.WantedRate, e.StartLagP99 = float64(handshakes)/30, float64(handshakes)/30, 800*time.Microsecond
						if m.mode.Name == "classical-full" && n == 8 && block == 2 {
							e.StartLagP99 = 14 * time.Millisecond
						}
					}
					k := shard.Series{
						Kind:  shard.Kind{Group: m.mode.Groups[0], Version: "TLSv1.3", Resumed: m.mode.Resumed},
						Count: handshakes, Connect: &shard.Histogram{}, Handshake: &shard.Histogram{}, Client: &shard.Histogram{}, Network: &shard.Histogram{}, Server: &shard.Histogram{},
						BytesSent: handshakes * int64(m.bytes.Sent), BytesReceived: handshakes * int64(m.bytes.Received), CertificateBytes: handshakes * int64(m.bytes.Certificate),
					}
					if m.mode.Resumed {
						e.Resumed = handshakes
					}
					// Of what the report takes only the mean, fewer are enough.
					recorded := handshakes
					if phase == validity.Capacity {
						recorded = 50
					}
					for i := range recorded {
						d := time.Duration(float64(m.latency) * noise(m.spread))
						client, network := time.Duration(m.client*float64(d)), 90*time.Microsecond
						k.Handshake.Record(d)
						k.Connect.Record(80 * time.Microsecond)
						if m.mode.Transfer > 0 {
							if k.Exchange == nil {
								k.Exchange = &shard.Histogram{}
							}
							k.Exchange.Record(d / 3)
							k.ExchangeBytesSent += m.mode.Transfer + 190 // the request's head
							k.ExchangeBytesReceived += 310
						}
						if i%20 != 0 {
							continue
						}
						k.Client.Record(client)
						k.Network.Record(network)
						k.Server.Record(d - client - network)
					}
					result := &shard.Result{Pods: 1, Iterations: handshakes, Handshakes: []shard.Series{k}, PerSecond: float64(handshakes) / 30}
					if m.mode.Name == "hybrid-full" && n == 4 && phase == validity.Capacity && block == 3 {
						result.Failures = map[shard.Failure]int64{shard.Timeout: 1, shard.Alert("handshake_failure"): 1}
						e.Failures = 2
					}
					all = append(all, Measurement{Mode: m.mode.Name, Replicas: n, Phase: phase, Block: block, Result: result, Evidence: e})
				}
			}
		}
	}
	return all
}

var measurements = sync.OnceValue(madeMeasurements)

// baseline is an earlier report: the hybrid mode was slower, the rest the same.
var baseline = sync.OnceValue(func() Report {
	head := madeHead()
	head.Name, head.Started, head.Finished = "february", start.AddDate(0, -1, 0), start.AddDate(0, -1, 0).Add(50*time.Minute)
	head.Environment.Images = []Image{{"qtls-gateway", "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"}, head.Environment.Images[1]}
	var ms []Measurement
	for _, m := range measurements() {
		if m.Mode == "hybrid-full" {
			result := *m.Result
			result.PerSecond *= 0.9
			m.Result = &result
		}
		if m.Mode == "hybrid-hsm" {
			continue
		}
		ms = append(ms, m)
	}
	r, err := Build(head, ms)
	if err != nil {
		panic(err)
	}
	return r
})

// madeReport is the report of the made run with everything in it.
var madeReport = sync.OnceValue(func() Report {
	r, err := Build(madeHead(), measurements())
	if err != nil {
		panic(err)
	}
	var ts []threshold.Threshold
	for _, text := range []string{"hybrid-full/p99 <= 10ms", "efficiency@8 >= 0.95", "failures == 0", "hybrid-full/p99@1 <= 5ms", "hybrid-full/efficiency@8 >= 0.955", "resumption >= 99%"} {
		t, err := threshold.Parse(text)
		if err != nil {
			panic(err)
		}
		ts = append(ts, t)
	}
	r.Evaluate(ts)
	r.Compare(baseline(), tolerance, false)
	return r
})

func fullReport(t testing.TB) Report {
	t.Helper()
	return madeReport()
}

// injected is put wherever a report takes text from somebody else.
const injected = "<script>alert(1)</script>'\"`|*_[x](javascript:alert(1))\n\r\x00</style></title></svg>{{.}}"

// awkwardReport has the text above everywhere, and little else.
func awkwardReport(t testing.TB) Report {
	t.Helper()
	long := strings.Repeat("w", 30)
	r := Report{
		Name: injected, Namespace: injected, UID: injected, Gateway: injected, Started: start, Finished: start, Preset: injected, Notes: []string{injected, strings.Repeat("x", 300)},
		Environment: Environment{
			Versions: []Program{{injected, injected}}, Images: []Image{{injected, injected}}, Quotas: []Quota{{injected, injected, injected}},
			Machines: []Machine{{Name: injected, CPUModel: injected, CPUs: 2, Flags: []string{injected}, Kernel: injected}, {Name: "n2", CPUModel: "other"}},
		},
		Modes: []Mode{{Name: injected, Groups: []string{injected}, SignatureSchemes: []string{injected}, Listener: injected, ServerName: injected, Path: injected}, {Name: long, PeerOf: injected, Peer: injected}, {Name: "nothing"}},
	}
	var ms []Measurement
	for _, mode := range []string{injected, long} {
		for block := 1; block <= 2; block++ {
			for _, phase := range []validity.Phase{validity.Capacity, validity.Latency} {
				h := &shard.Histogram{}
				for range 300 {
					h.Record(time.Duration(block) * time.Millisecond)
				}
				idle := 0.5
				ms = append(ms, Measurement{Mode: mode, Replicas: 1, Phase: phase, Block: block,
					Result: &shard.Result{PerSecond: 10 * float64(block), Failures: map[shard.Failure]int64{shard.Failure(injected): 1},
						Handshakes: []shard.Series{{Kind: shard.Kind{Group: injected}, Count: 300, Handshake: h, Server: h, Client: h, Network: h, BytesSent: 300 * 1000}}},
					Evidence: validity.Evidence{Phase: phase, Window: time.Second, Common: time.Second, Handshakes: 300, Failures: 1, MachineIdle: &idle, Generator: validity.Generator{MachineIdle: &idle}, WantedReplicas: 1,
						Replicas: []validity.Replica{{Name: injected, Disturbed: mode == long, Periods: 10, ThrottledPeriods: 10, Quota: 0.05}}},
				})
			}
		}
		ms = append(ms, Measurement{Mode: mode, Replicas: 2, Phase: validity.Capacity, Block: 1, Missing: injected})
	}
	r, err := Build(r, ms)
	if err != nil {
		t.Fatal(err)
	}
	before := r
	before.Environment.Machines = nil
	r.Compare(before, tolerance, true)
	r.Thresholds = []Threshold{{Text: injected, Verdict: "Failed", Message: injected}, {Text: injected, Verdict: "Passed", Details: []Detail{{Mode: injected, Message: injected}}}}
	return r
}
