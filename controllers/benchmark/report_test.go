package benchmark

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/bench/load"
	"qtls.dev/qtls/internal/bench/plan"
	"qtls.dev/qtls/internal/bench/report"
	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/validity"
	"qtls.dev/qtls/internal/machine"
)

// saturating usage of so many replicas: each has used all of its quota, and the
// machine has CPU to spare.
func saturating(p plan.Plan, replicas int32) *usage {
	idle := 0.5
	u := &usage{MachineIdle: &idle}
	for range replicas {
		u.Replicas = append(u.Replicas, validity.Replica{Name: "web", Quota: 0.05, Observed: p.Load.Duration, CPU: p.Load.Duration / 20, Others: ptr.To(0.0)})
	}
	return u
}

func TestALatencyAtAPartOfNoCapacityIsNoResult(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*usage)
		says  string
	}{
		"the capacity is a result":        {func(*usage) {}, ""},
		"the replicas could do more":      {func(u *usage) { u.Replicas[0].CPU /= 2 }, "NotSaturated: replica web used 50 %"},
		"the machine had no CPU to spare": {func(u *usage) { *u.MachineIdle = 0.01 }, "MachineBusy: the busiest machine was idle for 1 %"},
	} {
		s := stateIn(t, inPlace("Running"), 2)
		capacity, latency := s.plan.Measurements[0], s.plan.Measurements[1]
		for _, m := range []plan.Measurement{capacity, latency} {
			one := s.records[m.Name()]
			if one.Usage = saturating(s.plan, m.Replicas); m.Phase == plan.Capacity {
				c.spoil(one.Usage)
			}
			s.records[m.Name()] = one
		}
		s.plan.Load.LatencyLoad = 50
		all := measurements(s, func(plan.Measurement) bool { return true })
		if len(all) != 2 {
			t.Fatalf("%d measurements", len(all))
		}
		if e := all[1].Evidence; all[1].Phase != validity.Latency || !strings.HasPrefix(e.CapacityInvalid, c.says) || (c.says == "") != (e.CapacityInvalid == "") {
			t.Errorf("%s: %q, want %q", name, e.CapacityInvalid, c.says)
		}
		if reasons := validity.Judge(all[1].Evidence); (len(reasons) == 0) != (c.says == "") {
			t.Errorf("%s: %+v", name, reasons)
		}
		if all[0].Evidence.CapacityInvalid != "" {
			t.Errorf("%s: the capacity itself is no part of one: %q", name, all[0].Evidence.CapacityInvalid)
		}
	}
}

// An operator that is upgraded meanwhile rolls the copy, and starts another load generator.
func TestFiguresOfTwoImagesAreNoResult(t *testing.T) {
	s := stateIn(t, inPlace("Running"), 4)
	images := func(n int, generator, haproxy string) {
		name := s.plan.Measurements[n].Name()
		one := s.records[name]
		one.Images = []report.Image{{Name: "k6", Digest: generator}}
		one.Usage = saturating(s.plan, s.plan.Measurements[n].Replicas)
		one.Usage.Images = []report.Image{{Name: "agent", Digest: "sha256:a"}, {Name: "haproxy", Digest: haproxy}}
		s.records[name] = one
	}
	images(0, "sha256:k", "sha256:1")
	images(1, "sha256:k", "sha256:1")
	images(2, "sha256:k", "sha256:2")
	images(3, "sha256:l", "sha256:2")
	want := [][]string{nil, nil, {"haproxy"}, {"k6", "haproxy"}}
	of := func(n int) []string {
		some := measurements(s, func(m plan.Measurement) bool { return m == s.plan.Measurements[n] }) // as a report asks, point by point
		if len(some) != 1 {
			t.Fatalf("%d measurements", len(some))
		}
		return some[0].Evidence.OtherImages
	}
	for n := range want {
		if got := of(n); !slices.Equal(got, want[n]) {
			t.Errorf("measurement %d: %q, want %q", n, got, want[n])
		}
	}
}

// What somebody has made of a capacity's record is no result, nor is a latency at a part of it.
func TestALatencyAtAPartOfACapacityThatIsNotReadIsNoResult(t *testing.T) {
	s := stateIn(t, inPlace("Running"), 2)
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "record"}}
	for name, text := range map[string]string{"it is no JSON": "{", "it is empty": "{}", "its result is none": `{"perSecond":20,"result":{"handshakes":7}}`} {
		c.Data = map[string]string{s.plan.Measurements[0].Name(): text}
		s.records.read(c)
		all := measurements(s, func(plan.Measurement) bool { return true })
		if len(all) != 2 || all[0].Result != nil || !strings.HasPrefix(all[0].Missing, v1alpha1.ReasonResultUnreadable+": ") || all[1].Result == nil || !strings.HasPrefix(all[1].Evidence.CapacityInvalid, "NotMeasured: ResultUnreadable: ") {
			t.Errorf("%s: %+v", name, all)
		}
		if _, err := fullReport(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A pod that began late measured a load that the others made without it.
func TestPodsThatMeasuredApartHaveNoResult(t *testing.T) {
	s := stateIn(t, inPlace("Running"), 1)
	m := s.plan.Measurements[0]
	l := load.Load{Start: time.Unix(1_700_000_000, 0).UnixNano(), WarmUp: 2 * time.Second, Window: s.plan.Load.Duration}
	pod := func(i int, late time.Duration) shard.Shard {
		return shard.Shard{Version: shard.Version, Point: m.Name(), Segment: shard.Segment{Index: i, Count: 2}, Start: l.Begin().Add(late).UnixNano(), End: l.End().UnixNano(),
			Target: shard.Target{Host: "web:443"}}
	}
	for late, apart := range map[time.Duration]bool{0: false, l.Window / 20: false, l.Window / 5: true} {
		merged, err := shard.Merge([]shard.Shard{pod(0, 0), pod(1, late)})
		if err != nil {
			t.Fatal(err)
		}
		reasons := validity.Judge(evidenceOf(modeOf(s.benchmark, m.Mode), m, s.plan, merged, nil, 0))
		if got := slices.ContainsFunc(reasons, func(r validity.Reason) bool { return r.Rule == validity.WindowsApart }); got != apart {
			t.Errorf("one began %v late in a window of %v: %+v", late, l.Window, reasons)
		}
	}
}

// What a load asks for is what it gets: another listener has another certificate.
func TestTheReportSaysWhatTheLoadAskedFor(t *testing.T) {
	b := inPlace("Running")
	b.Spec.Target.Listener, b.Spec.Target.ServerName = "https", "shop.example.com"
	mode := b.Spec.Modes[0]
	mode.Operation = v1alpha1.BenchmarkOperationHandshake
	request, own := mode, mode
	request.Name, request.Operation, request.Path = "request", v1alpha1.BenchmarkOperationRequest, "/large"
	own.Name, own.Operation, own.Listener = "own", v1alpha1.BenchmarkOperationTransfer, "admin"
	b.Spec.Modes = []v1alpha1.BenchmarkMode{mode, request, own}
	gateway := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: "web"}, Spec: v1alpha1.QTLSGatewaySpec{Listeners: []v1alpha1.Listener{
		{Name: "first", Port: 443, Hostnames: []v1alpha1.Hostname{"first.example.com"}},
		{Name: "https", Port: 8443, Hostnames: []v1alpha1.Hostname{"www.example.com"}},
		{Name: "admin", Port: 9443, Hostnames: []v1alpha1.Hostname{"admin.example.com"}},
	}}}
	type asked struct{ Listener, ServerName, Path string }
	for name, c := range map[string]struct {
		s    state
		want []asked
	}{
		"measured":                   {state{benchmark: b, measured: gateway}, []asked{{"https", "shop.example.com", ""}, {"https", "shop.example.com", "/large"}, {"admin", "admin.example.com", "/"}}},
		"the copy of it is gone":     {state{benchmark: b, source: gateway}, []asked{{"https", "shop.example.com", ""}, {"https", "shop.example.com", "/large"}, {"admin", "admin.example.com", "/"}}},
		"the gateway itself is, too": {state{benchmark: b}, []asked{{}, {Path: "/large"}, {Path: "/"}}},
	} {
		c.s.plan = plan.Of(b.Spec, 7)
		var got []asked
		for _, m := range head(c.s).Modes {
			got = append(got, asked{m.Listener, m.ServerName, m.Path})
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// The load was made somewhere, with some image: another client's machine makes another
// figure.
func TestTheReportSaysWhereTheLoadWasMade(t *testing.T) {
	s := stateIn(t, inPlace("Running"), 0)
	m := s.plan.Measurements[0]
	job := batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: "load", UID: "job"}, Spec: batchv1.JobSpec{Completions: ptr.To[int32](3)}}
	s.jobs, s.measured = []batchv1.Job{job}, &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: "web"}}
	r := onFake(t, interceptor.Funcs{})
	logs := map[string]string{}
	for i, node := range []string{"n2", "n1", "n2"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: fmt.Sprintf("load-%d", i), Labels: map[string]string{batchv1.JobNameLabel: "load"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(&job, batchv1.SchemeGroupVersion.WithKind("Job"))}},
			Spec:   corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{Name: generator.Container, ImageID: "sha256:60303ae2"}}}}
		if err := r.Client.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		begin := noon.UnixNano()
		line, err := shard.Shard{Version: shard.Version, Point: generator.Point(s.benchmark, m), Segment: shard.Segment{Index: i, Count: 3}, Start: begin, End: begin + int64(time.Second),
			Target: shard.Target{Host: "web:443"}, Machine: &machine.Machine{CPUModel: "CPU of " + node, CPUs: 4, Flags: []string{"aes"}, Kernel: "6.18.0"}}.Line()
		if err != nil {
			t.Fatal(err)
		}
		logs[pod.Name] = line
	}
	r.Logs = func(_ context.Context, _, pod, _ string) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(logs[pod])), nil
	}
	one, err := r.collect(t.Context(), s, plan.Action{Job: "load", Measurements: []plan.Measurement{m}})
	if err != nil || one.Reason != "" {
		t.Fatalf("%+v, %v", one, err)
	}
	s.records[m.Name()] = one
	e := environment(s)
	if diff := cmp.Diff([]report.Machine{{Name: "n1", CPUModel: "CPU of n1", CPUs: 4, Flags: []string{"aes"}, Kernel: "6.18.0"}, {Name: "n2", CPUModel: "CPU of n2", CPUs: 4, Flags: []string{"aes"}, Kernel: "6.18.0"}}, e.Generators); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]report.Image{{Name: generator.Container, Digest: "sha256:60303ae2"}}, e.Images); diff != "" || len(e.Machines) > 0 {
		t.Error(diff, e.Machines)
	}
}
