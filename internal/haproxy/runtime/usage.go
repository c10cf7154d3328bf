package runtime

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Usage is the worker's state, and what its threads have used since they began, in one
// answer: a worker without CPU takes seconds for each.
func (a Admin) Usage(ctx context.Context) (Info, time.Duration, error) {
	answer, err := a.do(ctx, "show info;show threads")
	if err != nil {
		return Info{}, 0, err
	}
	info, err := parseInfo(answer)
	if err != nil {
		return Info{}, 0, err
	}
	used, err := parseThreads(answer)
	return info, used, err
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
