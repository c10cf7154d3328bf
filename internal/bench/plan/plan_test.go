package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
)

func spec(replicas []int32, modes ...string) v1alpha1.QTLSBenchmarkSpec {
	s := v1alpha1.QTLSBenchmarkSpec{Replicas: replicas}
	for _, m := range modes {
		s.Modes = append(s.Modes, v1alpha1.BenchmarkMode{Name: m})
	}
	return s
}

func names(p Plan) []string {
	var all []string
	for _, m := range p.Measurements {
		all = append(all, m.Name())
	}
	return all
}

func TestEveryModeIsMeasuredAtEveryNumberOfReplicasInEveryRepetition(t *testing.T) {
	p := Of(spec([]int32{1, 4, 2}, "full", "resumed"), 7)
	if len(p.Measurements) != 3*3*2*2 {
		t.Fatalf("%d measurements", len(p.Measurements))
	}
	seen := map[string]bool{}
	for i, m := range p.Measurements {
		seen[m.Name()] = true
		if m.Number != i+1 {
			t.Errorf("measurement %d has number %d", i+1, m.Number)
		}
		// The rate of the latency phase is a part of the capacity just measured.
		if m.Phase == Latency && p.Measurements[i-1] != (Measurement{Number: m.Number - 1, Repetition: m.Repetition, Replicas: m.Replicas, Mode: m.Mode, Phase: Capacity}) {
			t.Errorf("%s comes after %s", m, p.Measurements[i-1])
		}
		// A repetition visits a number of replicas once, and one ends before the next.
		if i%12 >= 4 && i%4 == 0 && p.Measurements[i-1].Replicas == m.Replicas || m.Repetition != int32(i/12+1) {
			t.Errorf("%s at %d", m, i)
		}
	}
	if len(seen) != len(p.Measurements) {
		t.Errorf("%d names for %d measurements", len(seen), len(p.Measurements))
	}
}

// A peer is measured in each repetition at each number of replicas, in its modes, so
// that there is a pair for each.
func TestPeersAreMeasuredBetweenTheGatewaysModes(t *testing.T) {
	s := spec([]int32{1, 2}, "full", "resumed")
	s.Peers = []v1alpha1.BenchmarkPeer{{Name: "plain"}, {Name: "nginx", Modes: []string{"full"}}}
	s.Load.Repetitions = ptr.To[int32](4)
	p := Of(s, 7)
	if len(p.Measurements) != 4*2*(2+2+1)*2 || p.Expected <= Of(spec([]int32{1, 2}, "full", "resumed"), 7).Expected {
		t.Fatalf("%d measurements in %v", len(p.Measurements), p.Expected)
	}
	seen, orders := map[string]int{}, map[string]bool{}
	order := ""
	for i, m := range p.Measurements {
		if m.Phase == Latency {
			if before := p.Measurements[i-1]; before.Subject() != m.Subject() || before.Phase != Capacity {
				t.Errorf("%s comes after %s", m, before)
			}
			continue
		}
		seen[m.Subject()]++
		if order += " " + m.Subject(); i%10 == 8 {
			orders[order], order = true, ""
		}
	}
	for _, subject := range []string{"full", "resumed", "full.plain", "resumed.plain", "full.nginx"} {
		if seen[subject] != 8 {
			t.Errorf("%s is measured %d times, want 8", subject, seen[subject])
		}
	}
	if len(seen) != 5 || len(orders) < 2 {
		t.Errorf("subjects %v in %d orders", seen, len(orders))
	}
	if got := (Measurement{Repetition: 1, Replicas: 2, Mode: "full", Peer: "nginx", Phase: Capacity}).Name(); got != "r1-n2-full.nginx-Capacity" {
		t.Error(got)
	}
}

// The order is part of what a status promises: releases of Go and of the operator
// keep it.
func TestASeedGivesOneOrder(t *testing.T) {
	s := spec([]int32{1, 2, 4}, "a", "b")
	s.Load.Repetitions = ptr.To[int32](1)
	var order []string
	for _, m := range Of(s, 42).Measurements {
		if m.Phase == Capacity {
			order = append(order, strings.TrimSuffix(strings.TrimPrefix(m.Name(), "r1-"), "-Capacity"))
		}
	}
	if got, want := strings.Join(order, " "), "n2-a n2-b n1-a n1-b n4-a n4-b"; got != want {
		t.Errorf("the order of seed 42 is %q, want %q", got, want)
	}
	// The list's own order says nothing.
	s2 := spec([]int32{4, 1, 2}, "a", "b")
	s2.Load.Repetitions = s.Load.Repetitions
	if !slices.Equal(names(Of(s, 42)), names(Of(s2, 42))) {
		t.Error("the order of spec.replicas, which is a set, changes that of the plan")
	}
	different := 0
	for seed := int64(1); seed <= 20; seed++ {
		if !slices.Equal(names(Of(s, seed)), names(Of(s, 42))) {
			different++
		}
	}
	if different == 0 {
		t.Error("twenty seeds give one order")
	}
	// Repetitions differ in theirs.
	s.Load.Repetitions = ptr.To[int32](5)
	orders := map[string]bool{}
	p := Of(s, 42)
	for r := range 5 {
		var one []string
		for _, m := range p.Measurements[r*12 : (r+1)*12] {
			m.Repetition = 0
			one = append(one, m.Name())
		}
		orders[strings.Join(one, " ")] = true
	}
	if len(orders) < 2 {
		t.Error("five repetitions have one order")
	}
}

func TestThePresetIsWhatTheSpecDoesNotSay(t *testing.T) {
	for name, c := range map[string]struct {
		load v1alpha1.BenchmarkLoad
		want Load
	}{
		"nothing is said": {v1alpha1.BenchmarkLoad{}, Load{32, 50, 5 * time.Second, 20 * time.Second, 3}},
		"short":           {v1alpha1.BenchmarkLoad{Preset: v1alpha1.BenchmarkPresetShort}, Load{32, 50, 2 * time.Second, 5 * time.Second, 2}},
		"thorough":        {v1alpha1.BenchmarkLoad{Preset: v1alpha1.BenchmarkPresetThorough}, Load{32, 50, 10 * time.Second, 30 * time.Second, 5}},
		"a warm-up is said": {v1alpha1.BenchmarkLoad{Preset: v1alpha1.BenchmarkPresetShort, WarmUp: &metav1.Duration{Duration: 3 * time.Second}, VirtualUsersPerReplica: ptr.To[int32](2)},
			Load{2, 50, 3 * time.Second, 5 * time.Second, 2}},
		"all is said": {v1alpha1.BenchmarkLoad{WarmUp: &metav1.Duration{Duration: 1}, Duration: &metav1.Duration{Duration: 2}, Repetitions: ptr.To[int32](6), LatencyLoad: ptr.To[int32](70)},
			Load{32, 70, 1, 2, 6}},
	} {
		if got := LoadOf(c.load); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestTheTimeOfAPlanIsThatOfItsParts(t *testing.T) {
	s := spec([]int32{1, 2}, "a")
	s.Load = v1alpha1.BenchmarkLoad{WarmUp: &metav1.Duration{Duration: 2 * time.Second}, Duration: &metav1.Duration{Duration: 10 * time.Second}, Repetitions: ptr.To[int32](1)}
	// Scaled to 1, to 2 and back; four measurements.
	if got, want := Of(s, 1).Expected, 3*scaling+4*(10*time.Second+12*time.Second+overhead); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.Generator.Pods = ptr.To[int32](2)
	if got, want := Of(s, 1).Expected, 3*scaling+4*(20*time.Second+12*time.Second+overhead); got != want {
		t.Errorf("with two pods, which wait longer for each other: %s, want %s", got, want)
	}
	// 512 clients of a pod take a second more, and two where all are one pod's.
	s.Load.VirtualUsersPerReplica, s.Replicas = ptr.To[int32](512), []int32{2}
	if got, want := Of(s, 1).Expected, 2*scaling+2*(21*time.Second+12*time.Second+overhead); got != want {
		t.Errorf("with 1024 clients of two pods: %s, want %s", got, want)
	}
	s.Generator.Pods = nil
	if got, want := Of(s, 1).Expected, 2*scaling+2*(12*time.Second+12*time.Second+overhead); got != want {
		t.Errorf("with 1024 clients of one: %s, want %s", got, want)
	}
	s.Load.VirtualUsersPerReplica = nil
	s.Replicas, s.Load.Repetitions, s.Generator.Pods = []int32{3}, ptr.To[int32](4), nil
	if got, want := Of(s, 1).Expected, 2*scaling+8*(10*time.Second+12*time.Second+overhead); got != want {
		t.Errorf("with one number of replicas there is nothing to scale in between: %s, want %s", got, want)
	}
}
