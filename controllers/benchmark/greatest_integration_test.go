//go:build integration

package benchmark

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/algorithms"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/validity"
)

// greatest is a spec whose lists are as long as the API allows, and whose plan is as
// long as a run may take.
func greatest(s *v1alpha1.QTLSBenchmarkSpec) {
	s.Replicas, s.Modes, s.Peers, s.Thresholds = nil, nil, nil, nil
	for n := range int32(10) {
		s.Replicas = append(s.Replicas, 91+n)
	}
	for i := range 16 {
		m := v1alpha1.BenchmarkMode{Name: fmt.Sprintf("%s-%02d", strings.Repeat("m", 27), i)}
		for _, g := range algorithms.Groups[:8] {
			m.Groups = append(m.Groups, g.Name)
		}
		for _, scheme := range algorithms.SignatureSchemes[:8] {
			m.SignatureSchemes = append(m.SignatureSchemes, scheme.Name)
		}
		s.Modes = append(s.Modes, m)
	}
	for i := range 3 {
		s.Peers = append(s.Peers, v1alpha1.BenchmarkPeer{Name: fmt.Sprintf("%s-%02d", strings.Repeat("p", 12), i), Server: v1alpha1.BenchmarkPeerHAProxy})
	}
	for i := range 32 {
		s.Thresholds = append(s.Thresholds, v1alpha1.BenchmarkThreshold(fmt.Sprintf("%s <= %dms", []string{"p50", "p95", "p99", "mean"}[i%4], 1+i)))
	}
	s.BaselineRef = &v1alpha1.BenchmarkBaseline{Name: "earlier-report"}
	s.MaxDuration = &metav1.Duration{Duration: 24 * time.Hour}
	s.Load.WarmUp, s.Load.Duration = &metav1.Duration{Duration: 2 * time.Second}, &metav1.Duration{Duration: time.Second}
	for n := int32(1); ; n++ {
		more := *s
		if more.Load.Repetitions = &n; plan.Of(more, 1).Expected > s.MaxDuration.Duration {
			return
		}
		s.Load.Repetitions = &n
	}
}

// bad records of all measurements of a plan: each breaks as many rules as one can.
func bad(t *testing.T, b *v1alpha1.QTLSBenchmark, p plan.Plan) records {
	t.Helper()
	random := rand.New(rand.NewPCG(3, 4))
	some := func(most float64) float64 { return most * (0.5 + random.Float64()/2) }
	// Enough for all percentiles, of few and small values: what a histogram takes is no
	// part of a report.
	var histograms []*shard.Histogram
	for range 4 {
		h := &shard.Histogram{}
		for range 100 {
			d := time.Duration(some(float64(300 * time.Microsecond)))
			for range 1200 {
				h.Record(d)
			}
		}
		histograms = append(histograms, h)
	}
	var machines []report.Machine
	for i := range 100 {
		machines = append(machines, report.Machine{Name: fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", random.IntN(256), i), CPUModel: "Intel(R) Xeon(R) Platinum 8488C", CPUs: 96, Memory: 1 << 38, Kernel: "6.8.0-1021-aws",
			Flags: strings.Fields("adx aes avx avx2 avx512bw avx512dq avx512f avx512ifma avx512vbmi avx512vl bmi1 bmi2 gfni pclmulqdq rdrand rdseed sha_ni sse4_1 sse4_2 vaes vpclmulqdq")})
	}
	replicas := func(n int32) []validity.Replica {
		var all []validity.Replica
		for range n {
			r := validity.Replica{Name: fmt.Sprintf("scaling-gateway-gateway-%08x-%05x", random.Uint32(), random.Uint32()>>12), Node: machines[random.IntN(len(machines))].Name,
				Quota: 0.05, Periods: 10, ThrottledPeriods: random.Int64N(9), CPU: time.Duration(some(float64(50 * time.Millisecond))), Observed: time.Second, Handshakes: random.Int64N(1000), Disturbed: random.IntN(2) == 0,
				Memory: 60<<20 + random.Int64N(1<<20), IdleMemory: 50 << 20, LoadedMemory: 60 << 20, MemoryLimit: 256 << 20, MemoryStalled: ptr.To(some(0.01)), Connections: 32,
				Traffic: &validity.Traffic{Segments: 1e6, Retransmitted: random.Int64N(1000), BytesReceived: random.Int64N(1e9), BytesSent: random.Int64N(1e9)}}
			all = append(all, r)
		}
		return all[1:] // one is missing
	}
	usages := map[int32][]*usage{}
	for _, n := range b.Spec.Replicas {
		for range 4 {
			usages[n] = append(usages[n], &usage{Replicas: replicas(n), Machines: machines, Versions: map[string]string{"HAProxy": "3.2.26", "OpenSSL": "3.5.7", "oqsprovider": "0.9.0"},
				Images: []report.Image{{Name: "haproxy", Digest: "sha256:" + strings.Repeat("9f86d081", 8)}, {Name: "agent", Digest: "sha256:" + strings.Repeat("9f86d081", 8)}}})
		}
	}
	mode := b.Spec.Modes[0]
	one := func(m plan.Measurement) record {
		h := histograms[random.IntN(len(histograms))]
		result := shard.Result{Pods: 1, Common: p.Load.Duration / 2, PerSecond: some(100) * float64(m.Replicas), Dropped: random.Int64N(1e6), StartLag: h,
			CPU: shard.CPU{Periods: 10, ThrottledPeriods: 1 + random.Int64N(9)}, CPUOfPods: []shard.CPU{{Used: int64(95e9 + some(1e9)), MachineTotal: 9600, MachineIdle: random.Int64N(900)}}, Failures: map[shard.Failure]int64{},
			Handshakes: []shard.Series{
				{Kind: shard.Kind{Group: string(mode.Groups[0]), SignatureAlgorithm: string(mode.SignatureSchemes[0]), Version: "TLSv1.3"}, Count: h.Count(), Handshake: h,
					BytesSent: random.Int64N(1e9), BytesReceived: random.Int64N(1e10), CertificateBytes: random.Int64N(1e9)},
				{Kind: shard.Kind{Group: "another", Version: "TLSv1.3", Resumed: true}, Count: 1 + random.Int64N(1e6)}}}
		if m.Phase == plan.Latency {
			result.PerSecond /= 10 // of that half is asked for
			result.Handshakes[0].Server = h
		}
		for _, f := range append(slices.Clone(shard.Failures), shard.Alert("handshake_failure"), shard.Alert("insufficient_security")) {
			result.Failures[f] = 1 + random.Int64N(1e6)
		}
		u := *usages[m.Replicas][random.IntN(4)]
		u.MachineIdle = ptr.To(some(0.09))
		r, err := measured(1, result, &u)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// Records are alike at such a distance that the report is compressed as if none were.
	type kind struct {
		phase    plan.Phase
		replicas int32
	}
	made := map[kind][]record{}
	all := records{}
	for i, m := range p.Measurements {
		k := kind{m.Phase, m.Replicas}
		if len(made[k]) < 13 {
			made[k] = append(made[k], one(m))
		}
		all[m.Name()] = made[k][i/2%len(made[k])]
	}
	return all
}

// Of the greatest run there is, and where nothing is a result, the API server takes all
// that is left: the ConfigMaps of the report, which has all three forms, and the
// status.
func TestWhatTheGreatestRunLeavesIsStored(t *testing.T) {
	w := newWorld(t)
	b := &v1alpha1.QTLSBenchmark{}
	b.Namespace, b.Name, b.Spec = w.namespace, strings.Repeat("b", 40), w.spec()
	greatest(&b.Spec)
	w.create(b)
	w.steps(b, 1)
	s := state{benchmark: b, plan: plan.Of(b.Spec, b.Status.Plan.Seed), source: w.gateway("web")}
	s.records = bad(t, b, s.plan)
	s.observed = plan.Observed{Now: noon.AddDate(0, 0, 1), Phase: v1alpha1.BenchmarkRestoring, Records: s.records.summary(), Started: noon}
	full, err := fullReport(s)
	if err != nil {
		t.Fatal(err)
	}
	valid, gateways := full.ValidPoints()
	if len(full.Points) != 640 || valid != 0 || gateways != 160 || len(full.Points[0].Latency.Reasons()) < 9 {
		t.Fatalf("%d points, %d of %d valid, and %q", len(full.Points), valid, gateways, full.Points[0].Latency.Reasons())
	}
	full.Compare(full, 0.1, true)
	places, err := full.Files()
	if err != nil {
		t.Fatal(err)
	}
	forms := 0
	for ending, files := range places {
		for file, content := range files {
			t.Logf("report%s has %s: %d bytes", ending, file, len(content))
			if strings.HasSuffix(file, report.Compressed) {
				forms++
			}
		}
		w.create(stored(b, ending, files))
	}
	text, _, err := places[""].JSON()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d measurements; the JSON has %d bytes", len(s.plan.Measurements), len(text))
	if read, err := report.Parse(text); err != nil || len(read.Points) != 640 || forms != 3 {
		t.Errorf("%d points, %v; %d forms of the report, of 3", len(read.Points), err, forms)
	}

	s.benchmark = b.DeepCopy()
	s.benchmark.Status.Phase = v1alpha1.BenchmarkRestoring
	after := summarised(t, s, plan.Action{Kind: plan.Finish}, outcome{report: &full})
	if err := w.reconciler(w.Client, w.Client, events.NewFakeRecorder(100)).report(t.Context(), b, after); err != nil {
		t.Fatal(err)
	}
	if w.get(b); b.Status.Phase != v1alpha1.BenchmarkCompleted || len(b.Status.Points) != 160 || len(b.Status.Peers) != 480 {
		t.Errorf("%s, %d points, %d comparisons", b.Status.Phase, len(b.Status.Points), len(b.Status.Peers))
	}
}
