package benchmark

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/cgroup"
	"qtls.dev/qtls/internal/dataplane"
)

// A result that no ConfigMap holds is recorded as none: what is not recorded would be
// tried for ever.
func TestARecordThatIsTooLargeSaysSo(t *testing.T) {
	for name, c := range map[string]struct {
		bytes  int
		reason string
		says   string
	}{
		"it fits":     {corev1.MaxSecretSize - 100, "", ""},
		"it does not": {corev1.MaxSecretSize, v1alpha1.ReasonResultUnreadable, "a ConfigMap holds 1048576"},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := json.Marshal(strings.Repeat("a", c.bytes-2))
			if err != nil {
				t.Fatal(err)
			}
			text, err := record{Attempt: 2, PerSecond: 3, Result: result}.text()
			if err != nil || len(text) > corev1.MaxSecretSize {
				t.Fatalf("%d bytes, %v", len(text), err)
			}
			var r record
			if err := json.Unmarshal([]byte(text), &r); err != nil || r.Attempt != 2 || r.Reason != c.reason || !strings.Contains(r.Message, c.says) {
				t.Errorf("%d, %s: %s, %v", r.Attempt, r.Reason, r.Message, err)
			}
			if (r.Result == nil) != (c.reason != "") {
				t.Errorf("%d bytes of a result, and the reason %q", len(r.Result), r.Reason)
			}
		})
	}
}

// The most replicas that a benchmark may measure, each on a machine of its own.
func TestSamplesOfAllMomentsFitIntoTheAnnotationsOfAJob(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	some := func() int64 { return random.Int64N(1e15) }
	taken := samples{}
	for i := range 100 {
		stalled := time.Duration(some())
		uid := types.UID(fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", random.Uint32(), random.Uint32()>>16, random.Uint32()>>20, random.Uint32()>>16, random.Uint64()>>16))
		taken[uid] = sample{Name: fmt.Sprintf("web-gateway-%08x", random.Uint32()), Node: fmt.Sprintf("node-%d.example.com", i), ReadySince: &metav1.Time{Time: time.Unix(some()/1e6, 0)},
			Usage: dataplane.Usage{Time: some(), Worker: fmt.Sprintf("8@%d", some()), CPU: some(), TLSConnections: some(), Connections: some(), MachineTotal: some(), MachineIdle: some(),
				Container: &cgroup.Usage{Memory: some(), MemoryPeak: some(), MemoryLimit: some(), MemoryStalled: &stalled, Throttled: stalled, Periods: some(), ThrottledPeriods: some()},
				Network:   &dataplane.Network{Segments: some(), Retransmitted: some(), BytesReceived: some(), BytesSent: some()},
				HSM:       &dataplane.HSMUsage{Time: some(), Sessions: some(), Signatures: some(), Waited: stalled},
				Tickets:   &dataplane.TicketUsage{StoreWaited: stalled},
				Machine:   dataplane.Machine{CPUModel: "AMD EPYC 9454P 48-Core Processor", CPUs: 96, Kernel: "6.8.0-71-generic", Flags: strings.Fields(strings.Repeat("avx512_vpopcntdq ", 40))},
				Versions:  map[string]string{"haproxy": "3.2.4-98813a1", "openssl": "3.5.2", "oqsprovider": "0.9.0", "qtls-agent": "v0.4.0"}}}
	}
	text, err := taken.text()
	if err != nil {
		t.Fatal(err)
	}
	if all := len(moments) * len(text); all > 200<<10 { // the API server takes 256 KiB
		t.Errorf("%d bytes", all)
	}
	got, err := samplesIn(text)
	if err != nil || len(got) != len(taken) {
		t.Fatalf("%d samples of %d, %v", len(got), len(taken), err)
	}
	for uid, want := range taken {
		if one := got[uid]; one.Name != want.Name || !one.ReadySince.Equal(want.ReadySince) || !reflect.DeepEqual(one.Usage, want.Usage) {
			t.Errorf("%+v has become %+v", want, one)
		}
	}
	for _, text := range []string{"", "{}", text[:len(text)/2]} {
		if s, err := samplesIn(text); err == nil {
			t.Errorf("%.20q is taken for %d samples", text, len(s))
		}
	}
}
