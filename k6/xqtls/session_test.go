package xqtls

import (
	"testing"
	"time"
)

// A sample that takes long makes the next one late, and those due before that are missed.
func TestSamplesThatAreDueMeanwhileAreMissed(t *testing.T) {
	was := time.Unix(1_700_000_000, 0)
	at := func(seconds float64) time.Time { return was.Add(time.Duration(seconds * float64(time.Second))) }
	for took, want := range map[float64]struct {
		due    float64
		missed int64
	}{0.1: {1, 0}, 1: {1, 0}, 1.9: {1, 0}, 2: {2, 1}, 3.5: {3, 2}, 10.2: {10, 9}} {
		if due, missed := next(was, at(took), time.Second); !due.Equal(at(want.due)) || missed != want.missed {
			t.Errorf("one that took %v s: the next after %v, %d missed, want %+v", took, due.Sub(was), missed, want)
		}
	}
}
