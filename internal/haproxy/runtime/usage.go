package runtime

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// CPUTime is what the worker's threads have used since they began.
func (a Admin) CPUTime(ctx context.Context) (time.Duration, error) {
	answer, err := a.do(ctx, "show threads")
	if err != nil {
		return 0, err
	}
	return parseThreads(answer)
}

// threadTime is each thread's own clock (CLOCK_THREAD_CPUTIME_ID), in nanoseconds.
var threadTime = regexp.MustCompile(`(?m)^\s*cpu_ns: poll=[0-9]+ now=([0-9]+) `)

func parseThreads(answer string) (time.Duration, error) {
	var total time.Duration
	times := threadTime.FindAllStringSubmatch(answer, -1)
	for _, t := range times {
		n, err := strconv.ParseInt(t[1], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("show threads: cpu_ns %s: %w", t[1], errUnparsed)
		}
		total += time.Duration(n)
	}
	if len(times) == 0 {
		return 0, fmt.Errorf("show threads: no cpu_ns: %w", errUnparsed)
	}
	return total, nil
}
