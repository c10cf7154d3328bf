package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// result is what came of a suite.
type result struct {
	suite    string
	passed   int
	skipped  int
	failures []failure
	elapsed  time.Duration
}

// failure is one test, or something else that counts as one, and what it said.
type failure struct{ name, output string }

func (r *result) fail(name, output string) { r.failures = append(r.failures, failure{name, output}) }

// add adds what came of a part of the suite.
func (r *result) add(part result) {
	r.passed += part.passed
	r.skipped += part.skipped
	r.failures = append(r.failures, part.failures...)
}

// report prints the failures, a table and the closing line, and reports whether
// nothing failed.
func report(out io.Writer, results []result) bool {
	passed, failed := 0, 0
	for _, r := range results {
		passed += r.passed
		failed += len(r.failures)
		for _, f := range r.failures {
			fmt.Fprintf(out, "\n--- FAIL: %s: %s\n%s\n", r.suite, f.name, strings.TrimRight(f.output, "\n"))
		}
	}
	fmt.Fprintf(out, "\n%-12s %7s %7s %8s %9s\n", "suite", "passed", "failed", "skipped", "time")
	for _, r := range results {
		fmt.Fprintf(out, "%-12s %7d %7d %8d %9s\n", r.suite, r.passed, len(r.failures), r.skipped, seconds(r.elapsed))
	}
	fmt.Fprintf(out, "\n%d passed, %d failed\n", passed, failed)
	return failed == 0
}
