package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// A testReader makes a writer for the output of a command that runs tests, which
// adds them to the result. What is no outcome of a test goes to other.
type testReader func(s step, out, other io.Writer, r *result) testOutput

type testOutput interface {
	io.Writer
	// close handles what is left.
	close()
}

func readGoTest(s step, out, other io.Writer, r *result) testOutput {
	return newEvents(s, out, other, r)
}

// event is one line of `go test -json` (see `go doc test2json`), or of its
// build output.
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// events reads the lines of `go test -json` and counts tests. Of a test with
// subtests only these are counted, unless it failed by itself.
type events struct {
	*lineWriter
	step     step
	out      io.Writer
	other    io.Writer // lines that are no events
	result   *result
	packages map[string]*packageState
	builds   map[string]*strings.Builder
}

type packageState struct {
	tests  map[string]*testState
	output strings.Builder
	failed int
	passed int
}

type testState struct {
	output      strings.Builder
	hasSubtests bool
	failedBelow bool
	ended       bool
}

func newEvents(s step, out, other io.Writer, r *result) *events {
	e := &events{step: s, out: out, other: other, result: r, packages: map[string]*packageState{}, builds: map[string]*strings.Builder{}}
	e.lineWriter = newLineWriter(e.line)
	return e
}

// close handles what is left; packages that never ended have failed.
func (e *events) close() {
	e.finish()
	for _, name := range slices.Sorted(maps.Keys(e.packages)) {
		e.endPackage(event{Action: "fail", Package: name})
	}
}

func (e *events) line(line []byte) {
	var ev event
	if json.Unmarshal(line, &ev) != nil || ev.Action == "" {
		_, _ = e.other.Write(line) // a terminal or a buffer
		return
	}
	switch {
	case ev.Action == "build-output":
		b := e.builds[ev.ImportPath]
		if b == nil {
			b = &strings.Builder{}
			e.builds[ev.ImportPath] = b
		}
		b.WriteString(ev.Output)
	case ev.Package == "":
	case ev.Test == "":
		e.ofPackage(ev)
	default:
		e.ofTest(ev)
	}
}

func (e *events) pkg(name string) *packageState {
	p := e.packages[name]
	if p == nil {
		p = &packageState{tests: map[string]*testState{}}
		e.packages[name] = p
	}
	return p
}

func (e *events) ofPackage(ev event) {
	switch ev.Action {
	case "output":
		e.pkg(ev.Package).output.WriteString(ev.Output)
		e.figure(ev.Output)
	case "pass", "fail", "skip":
		e.endPackage(ev)
	default:
		e.pkg(ev.Package)
	}
}

func (e *events) endPackage(ev event) {
	p := e.pkg(ev.Package)
	delete(e.packages, ev.Package)
	if ev.Action == "fail" {
		for _, name := range slices.Sorted(maps.Keys(p.tests)) {
			if t := p.tests[name]; !t.ended && !t.hasSubtests {
				e.failed(p, ev.Package, name, t.output.String()+"(did not end)\n")
			}
		}
		if p.failed == 0 { // its build, its TestMain, or the program as a whole
			output := p.output.String()
			if b := e.builds[ev.FailedBuild]; b != nil {
				output = b.String() + output
			}
			e.failed(p, ev.Package, "", output)
		}
		fmt.Fprintf(e.out, "  FAIL  %s (%d passed, %d failed, %s)\n", ev.Package, p.passed, p.failed, elapsed(ev))
		return
	}
	if p.passed > 0 {
		fmt.Fprintf(e.out, "  ok    %s (%d passed, %s)\n", ev.Package, p.passed, elapsed(ev))
	}
}

func (e *events) ofTest(ev event) {
	p := e.pkg(ev.Package)
	t := p.tests[ev.Test]
	if t == nil {
		t = &testState{}
		p.tests[ev.Test] = t
		for parent := range parents(ev.Test) {
			if above := p.tests[parent]; above != nil {
				above.hasSubtests = true
			}
		}
	}
	switch ev.Action {
	case "output":
		t.output.WriteString(ev.Output)
		e.figure(ev.Output)
		return
	case "pass":
		if !t.hasSubtests {
			p.passed++
			e.result.passed++
		}
	case "skip":
		if !t.hasSubtests {
			e.result.skipped++
		}
	case "fail":
		if !t.hasSubtests || !t.failedBelow {
			e.failed(p, ev.Package, ev.Test, t.output.String())
		}
		for parent := range parents(ev.Test) {
			if above := p.tests[parent]; above != nil {
				above.failedBelow = true
			}
		}
	default:
		return
	}
	t.ended = true
	if e.step.eachTest && !strings.Contains(ev.Test, "/") {
		fmt.Fprintf(e.out, "  %-5s %s (%s)\n", map[string]string{"pass": "ok", "fail": "FAIL", "skip": "skip"}[ev.Action], ev.Test, elapsed(ev))
	}
}

func (e *events) failed(p *packageState, pkg, test, output string) {
	p.failed++
	name := pkg
	if test != "" {
		name += " " + test
	}
	e.result.fail(name, output)
}

// figure shows a line that holds a measurement at once.
func (e *events) figure(output string) {
	if strings.HasPrefix(output, "RESULT ") {
		fmt.Fprint(e.out, "        "+output)
	}
}

// parents are the tests that a subtest is below of.
func parents(test string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for at := strings.LastIndex(test, "/"); at > 0; at = strings.LastIndex(test[:at], "/") {
			if !yield(test[:at]) {
				return
			}
		}
	}
}

func elapsed(ev event) string {
	return seconds(time.Duration(ev.Elapsed * float64(time.Second)))
}
