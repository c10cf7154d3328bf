package main

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestTheCollectorLeavesRoomBelowTheContainersLimit(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	for given, want := range map[int64]int64{
		1000 << 20:    900 << 20,
		math.MaxInt64: math.MaxInt64, // no limit is given
	} {
		debug.SetMemoryLimit(given)
		limitMemory()
		if got := debug.SetMemoryLimit(-1); got != want {
			t.Errorf("of %d bytes the collector keeps to %d, want %d", given, got, want)
		}
	}
}
