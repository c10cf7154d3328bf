package main

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// cargoOutput reads what `cargo test` writes and counts tests. A program of
// tests ends with a summary, also one with a harness of its own; one without has
// crashed.
type cargoOutput struct {
	*lineWriter
	step    step
	out     io.Writer
	other   io.Writer
	result  *result
	program string // that runs; empty between two
	tests   int    // that it said it would run; -1: it did not say
	lines   []string
	// failed are the tests that did, in their order; output is what each wrote.
	failed []string
	output map[string]*strings.Builder
	of     *strings.Builder // whose output is being read
}

func readCargoTest(s step, out, other io.Writer, r *result) testOutput {
	c := &cargoOutput{step: s, out: out, other: other, result: r}
	c.lineWriter = newLineWriter(c.line)
	return c
}

var (
	//      Running tests/kat.rs (/target/release/deps/kat-0f3e4c5b6a798081)
	cargoRunning = regexp.MustCompile(`^ +Running .*\(.*/([^/]+?)(-[0-9a-f]{16})?\)$`)
	cargoDocs    = regexp.MustCompile(`^ +Doc-tests (\S+)$`)
	cargoTests   = regexp.MustCompile(`^running (\d+) tests?$`)
	// test kem::round_trip ... FAILED
	cargoFailed = regexp.MustCompile(`^test (.+) \.\.\. FAILED$`)
	cargoOf     = regexp.MustCompile(`^---- (.+) stdout ----$`)
	// test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.50s
	cargoSummary = regexp.MustCompile(`^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored; .* finished in ([0-9.]+)s$`)
)

func (c *cargoOutput) line(raw []byte) {
	line := strings.TrimRight(string(raw), "\n")
	if m := cargoRunning.FindStringSubmatch(line); m != nil {
		c.begin(m[1])
		return
	}
	if m := cargoDocs.FindStringSubmatch(line); m != nil {
		c.begin("doc-tests of " + m[1])
		return
	}
	if c.program == "" {
		_, _ = io.WriteString(c.other, line+"\n") // a terminal or a buffer
		return
	}
	c.lines = append(c.lines, line)
	if strings.HasPrefix(line, "RESULT ") { // a measurement
		fmt.Fprintln(c.out, "        "+line)
	}
	switch m := cargoSummary.FindStringSubmatch(line); {
	case m != nil && c.ownSummary(m):
		c.end(m)
	case c.tests < 0 && cargoTests.MatchString(line):
		c.tests = number(cargoTests.FindStringSubmatch(line)[1])
	case cargoOf.MatchString(line):
		c.of = &strings.Builder{}
		c.output[cargoOf.FindStringSubmatch(line)[1]] = c.of
	case line == "failures:", line == "successes:":
		c.of = nil
	case c.of != nil:
		c.of.WriteString(line + "\n")
	case cargoFailed.MatchString(line):
		c.failed = append(c.failed, cargoFailed.FindStringSubmatch(line)[1])
	}
}

// begin is the start of a program of tests.
func (c *cargoOutput) begin(program string) {
	c.crashed()
	c.program, c.tests, c.lines, c.failed, c.of, c.output = program, -1, nil, nil, nil, map[string]*strings.Builder{}
}

// ownSummary tells the running program's summary from that of a program which one
// of its tests ran: the own one is of as many tests as it said.
func (c *cargoOutput) ownSummary(summary []string) bool {
	return c.tests < 0 || c.tests == number(summary[1])+number(summary[2])+number(summary[3])
}

// end is the summary of the running program.
func (c *cargoOutput) end(summary []string) {
	passed, failed, ignored := number(summary[1]), number(summary[2]), number(summary[3])
	c.result.passed += passed
	c.result.skipped += ignored
	for _, test := range c.failed {
		output := ""
		if b := c.output[test]; b != nil {
			output = b.String()
		}
		c.result.fail(c.name()+" "+test, output)
	}
	for range failed - len(c.failed) { // never less than cargo counts
		c.result.fail(c.name(), strings.Join(c.lines, "\n"))
	}
	switch {
	case failed > 0:
		fmt.Fprintf(c.out, "  FAIL  %s (%d passed, %d failed, %s s)\n", c.name(), passed, failed, summary[4])
	case passed > 0:
		fmt.Fprintf(c.out, "  ok    %s (%d passed, %s s)\n", c.name(), passed, summary[4])
	}
	c.program = ""
}

// crashed counts a program that began and did not end as a failure.
func (c *cargoOutput) crashed() {
	if c.program == "" {
		return
	}
	last := c.lines[max(0, len(c.lines)-tailLines):]
	c.result.fail(c.name(), strings.Join(last, "\n")+"\n(did not end)")
	fmt.Fprintf(c.out, "  FAIL  %s (did not end)\n", c.name())
	c.program = ""
}

// number reads what a pattern took for digits.
func number(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}

func (c *cargoOutput) name() string { return "crypto " + c.program }

func (c *cargoOutput) close() {
	c.finish()
	c.crashed()
}
