//go:build e2e

package e2e

import (
	"sync"
	"testing"
)

// TestUnrest has the tests that disturb the whole cluster, for they end the operator or bring kinds, and those with
// connections all the time. They wait for most of theirs, so two are under way at once: each holds whatever the other
// does. Those that begin earlier take longer. None runs beside a test of a figure, nor beside the parallel ones.
func TestUnrest(t *testing.T) {
	type test struct {
		name string
		run  func(*testing.T)
	}
	tests := make(chan test)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			for next := range tests {
				t.Run(next.name, next.run)
			}
		})
	}
	for _, next := range []test{
		{"resumption through change", resumptionThroughChange},
		{"zero failed handshakes", zeroFailedHandshakes},
		{"operator killed", operatorKilled},
		{"operator killed during a benchmark", operatorKilledDuringABenchmark},
		{"redis operator", redisOperator},
		{"control without drain", controlWithoutDrain},
	} {
		tests <- next
	}
	close(tests)
	both.Wait()
}
