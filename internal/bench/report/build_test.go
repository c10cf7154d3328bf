package report

import (
	"fmt"
	"math"
	"testing"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/validity"
)

// In each repetition the replica has 20 connections.
func TestTheMemoryOfAConnectionIsThatOfRepetitionsInWhichItGrew(t *testing.T) {
	for name, c := range map[string]struct {
		each  []int64 // bytes a connection, by repetition
		want  int64
		times float64 // the interval's, above the mean and below it; 0: none
		says  string
	}{
		"two":                         {[]int64{1000, 3000}, 2000, 1074.48, "70.0 MiB (2.00 kB a connection, 2 B to 2.15 MB)"}, // t is 12.7
		"two that agree":              {[]int64{2000, 2000}, 2000, 1, "70.0 MiB (2.00 kB a connection, 2.00 to 2.00 kB)"},
		"two, and one that shrank":    {[]int64{1000, -100, 3000}, 2000, 1074.48, "70.0 MiB (2.00 kB a connection, 2 B to 2.15 MB)"},
		"one, and one that has stood": {[]int64{0, 3000}, 3000, 0, "70.0 MiB (3.00 kB a connection)"},
		"none that grew":              {[]int64{-100, 0}, 0, 0, "70.0 MiB"},
	} {
		var all []Measurement
		for i, each := range c.each {
			r := validity.Replica{Name: "web-1", Connections: 20, Memory: 70 << 20, IdleMemory: 50 << 20, LoadedMemory: 50<<20 + 20*each}
			all = append(all, Measurement{Mode: "hybrid", Replicas: 1, Phase: validity.Capacity, Block: i + 1, Result: &shard.Result{PerSecond: 100}, Evidence: validity.Evidence{Phase: validity.Capacity, Replicas: []validity.Replica{r}}})
		}
		made, err := Build(Report{Modes: []Mode{{Name: "hybrid"}}}, all)
		if err != nil {
			t.Fatal(err)
		}
		p := made.Points[0]
		got := p.Capacity
		near := func(value, want float64) bool { return math.Abs(value/want-1) < 1e-4 }
		i := got.MemoryInterval
		if got.MemoryPerConnection != c.want || (i != nil) != (c.times > 0) || i != nil && !(near(i.Low, float64(c.want)/c.times) && near(i.High, float64(c.want)*c.times)) {
			t.Errorf("%s: %d bytes, %+v; want %d, times %v", name, got.MemoryPerConnection, i, c.want, c.times)
		}
		if told := fmt.Sprint(made.row(p).Memory); told != c.says {
			t.Errorf("%s: %s, want %s", name, told, c.says)
		}
	}
}
