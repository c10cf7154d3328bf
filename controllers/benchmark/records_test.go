package benchmark

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/cgroup"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/machine"
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

// pages makes a list of ConfigMaps come in pages of two, as an API server makes it of so
// many as are asked for, and tells of each object that is read whole.
func pages(t *testing.T, whole *[]string) interceptor.Funcs {
	return interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			o := client.ListOptions{}
			o.ApplyOptions(opts)
			limit, next := o.Limit, o.Continue
			o.Limit, o.Continue = 0, ""
			if err := c.List(ctx, list, &o); err != nil {
				return err
			}
			items, err := meta.ExtractList(list)
			if err != nil {
				return err
			}
			switch list.(type) {
			case *corev1.ConfigMapList, *metav1.PartialObjectMetadataList:
			default:
				return nil
			}
			if limit < 1 {
				t.Errorf("all %d objects of %T are asked for at once", len(items), list)
			}
			first := 0
			if next != "" {
				if first, err = strconv.Atoi(next); err != nil {
					return err
				}
			}
			last := min(first+2, len(items))
			if err := meta.SetList(list, items[first:last]); err != nil {
				return err
			}
			if last < len(items) {
				list.SetContinue(strconv.Itoa(last))
			}
			if some, is := list.(*corev1.ConfigMapList); is {
				for _, c := range some.Items {
					*whole = append(*whole, c.Name)
				}
			}
			return nil
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, is := o.(*corev1.ConfigMap); is {
				*whole = append(*whole, key.Name)
			}
			return c.Get(ctx, key, o, opts...)
		},
	}
}

// A run may have thousands of records of many kilobytes: what comes next follows from what
// is known of them without reading them.
func TestAStepReadsNoRecords(t *testing.T) {
	b := inPlace(v1alpha1.BenchmarkRunning)
	var whole []string
	r := onFake(t, pages(t, &whole), b)
	want := records{}
	p := plan.Of(b.Spec, b.Status.Plan.Seed)
	good := recorded(t, p, len(p.Measurements))
	for i, m := range p.Measurements[:5] {
		one := good[m.Name()]
		if one.PerSecond = float64(100 + i); i == 3 {
			one = record{Attempt: 3, Reason: v1alpha1.ReasonGeneratorFailed, Message: "exit code 107"}
		}
		want[m.Name()] = one
		if _, err := r.keep(t.Context(), b, []plan.Measurement{m}, one); err != nil {
			t.Fatal(err)
		}
	}
	// One of another benchmark of this name, which is gone.
	other := b.DeepCopy()
	other.UID = "another"
	if _, err := r.keep(t.Context(), other, p.Measurements[6:7], record{Reason: "Another"}); err != nil {
		t.Fatal(err)
	}

	s, err := r.fetch(t.Context(), b, noon)
	if err != nil || len(whole) > 0 || s.records != nil {
		t.Errorf("%q are read, %v", whole, err)
	}
	if diff := cmp.Diff(want.summary(), s.observed.Records); diff != "" {
		t.Error(diff)
	}
	got, err := r.records(t.Context(), b)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}

	// An operator of before has left a record of which nothing is known but itself.
	old := &corev1.ConfigMap{}
	if err := r.Get(t.Context(), client.ObjectKey{Namespace: b.Namespace, Name: recordName(b, p.Measurements[3])}, old); err != nil {
		t.Fatal(err)
	}
	old.Annotations = nil
	if err := r.Update(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	for _, read := range [][]string{{old.Name}, nil} { // the next step knows it
		whole = nil
		if s, err = r.fetch(t.Context(), b, noon); err != nil || !slices.Equal(whole, read) {
			t.Errorf("%q are read, %v; want %q", whole, err, read)
		}
		if diff := cmp.Diff(want.summary(), s.observed.Records); diff != "" {
			t.Error(diff)
		}
	}
}

// The points of a status are made anew, of all records, when there is one more of those.
func TestTheStatusIsRetoldWhenThereIsMoreToTell(t *testing.T) {
	s := stateIn(t, inPlace(v1alpha1.BenchmarkRunning), 3)
	another := outcome{recorded: records{s.plan.Measurements[3].Name(): {}}}
	same := outcome{recorded: records{s.plan.Measurements[2].Name(): {}}}
	for name, c := range map[string]struct {
		progress string
		phase    v1alpha1.BenchmarkPhase
		kind     plan.Kind
		done     outcome
		want     bool
	}{
		"nothing is new":                {"3/8", v1alpha1.BenchmarkRunning, plan.WaitJob, outcome{}, false},
		"one was recorded":              {"3/8", v1alpha1.BenchmarkRunning, plan.Collect, another, true},
		"it was recorded already":       {"3/8", v1alpha1.BenchmarkRunning, plan.Collect, same, false},
		"and the status did not say so": {"2/8", v1alpha1.BenchmarkRunning, plan.WaitJob, outcome{}, true},
		"all is in the report":          {"3/8", v1alpha1.BenchmarkRestoring, plan.Finish, outcome{}, false},
		"no more is to come":            {"3/8", v1alpha1.BenchmarkAborting, plan.Finish, outcome{}, true},
		"it is over":                    {"2/8", v1alpha1.BenchmarkFailed, plan.Nothing, outcome{}, false},
	} {
		s.benchmark.Status.Progress, s.benchmark.Status.Phase = c.progress, c.phase
		if got := s.retold(plan.Action{Kind: c.kind}, c.done); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
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
				HSM:       &dataplane.HSMUsage{Time: some(), Members: []dataplane.HSMMemberUsage{{Name: "a", Sessions: some(), Signatures: some(), Waited: stalled}}},
				Tickets:   &dataplane.TicketUsage{StoreWaited: stalled},
				Machine:   machine.Machine{CPUModel: "AMD EPYC 9454P 48-Core Processor", CPUs: 96, Kernel: "6.8.0-71-generic", Flags: strings.Fields(strings.Repeat("avx512_vpopcntdq ", 40))},
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
