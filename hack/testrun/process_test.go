package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func runStep(ctx context.Context, s step) result {
	var r result
	if s.timeout == 0 {
		s.timeout = time.Minute
	}
	s.run(ctx, os.Environ(), io.Discard, &r)
	return r
}

func TestACheckIsOneTest(t *testing.T) {
	if r := runStep(t.Context(), step{name: "good", command: []string{"true"}}); r.passed != 1 || len(r.failures) != 0 {
		t.Errorf("got %+v", r)
	}
	r := runStep(t.Context(), step{name: "bad", command: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}})
	if r.passed != 0 || len(r.failures) != 1 {
		t.Fatalf("got %+v", r)
	}
	for _, want := range []string{"out", "err", "exit status 3"} {
		if !strings.Contains(r.failures[0].output, want) {
			t.Errorf("the failure does not say %q: %s", want, r.failures[0].output)
		}
	}
}

func TestACommandThatCannotStartIsAFailure(t *testing.T) {
	if r := runStep(t.Context(), step{name: "x", command: []string{"/does/not/exist"}}); len(r.failures) != 1 {
		t.Errorf("got %+v", r)
	}
}

func TestAGoTestThatEndsWithoutAnyResultIsAFailure(t *testing.T) {
	r := runStep(t.Context(), step{name: "x", tests: readGoTest, command: []string{"sh", "-c", "echo no cluster >&2; exit 1"}})
	if len(r.failures) != 1 || !strings.Contains(r.failures[0].output, "no cluster") {
		t.Errorf("got %+v", r)
	}
}

func TestACommandThatTakesTooLongIsEndedWithItsChildren(t *testing.T) {
	began, ended := filepath.Join(t.TempDir(), "began"), filepath.Join(t.TempDir(), "ended")
	there := func(file string) bool {
		_, err := os.Stat(file)
		return err == nil
	}
	// A busy machine may need longer than the first of these to begin at all.
	for timeout := 200 * time.Millisecond; !there(began) && timeout < time.Minute; timeout *= 4 {
		start := time.Now()
		r := runStep(t.Context(), step{
			name: "slow", timeout: timeout,
			command: []string{"sh", "-c", `trap "touch ` + ended + `; exit 1" TERM; touch ` + began + `; sleep 600 & wait`},
		})
		if len(r.failures) != 1 || !strings.Contains(r.failures[0].output, "longer than "+timeout.String()) {
			t.Errorf("got %+v", r)
		}
		if d := time.Since(start); d > toTidyUp {
			t.Errorf("its child was waited for: %s", d)
		}
	}
	if !there(began) || !there(ended) {
		t.Errorf("it began: %v; it was given time to clean up: %v", there(began), there(ended))
	}
}

func TestPreparationsSetAVariable(t *testing.T) {
	s := suite{
		name:    "s",
		prepare: []preparation{{name: "p", variable: "PREPARED", suffix: "/helm", command: []string{"echo", "/bin"}}},
		steps:   []step{{name: "uses it", command: []string{"sh", "-c", `test "$PREPARED" = /bin/helm`}, timeout: time.Minute}},
	}
	if r := runSuite(t.Context(), s, devNull(t)); r.passed != 1 {
		t.Errorf("got %+v", r)
	}
}

func TestASuiteThatCannotBePreparedHasFailed(t *testing.T) {
	s := suite{name: "s", prepare: []preparation{{name: "p", command: []string{"false"}}}, steps: []step{{name: "never", command: []string{"true"}, timeout: time.Minute}}}
	if r := runSuite(t.Context(), s, devNull(t)); r.passed != 0 || len(r.failures) != 1 || r.failures[0].name != "p" {
		t.Errorf("got %+v", r)
	}
}

func TestASuiteThatRanNoTestHasFailed(t *testing.T) {
	s := suite{name: "s", steps: []step{{name: "nothing", tests: readGoTest, command: []string{"true"}, timeout: time.Minute}}}
	if r := runSuite(t.Context(), s, devNull(t)); len(r.failures) != 1 {
		t.Errorf("got %+v", r)
	}
}

func devNull(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestAnInterruptedSuiteHasFailedAndRunsNoFurther(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	s := suite{name: "s", steps: []step{
		{name: "first", command: []string{"sleep", "30"}, timeout: time.Minute},
		{name: "second", command: []string{"true"}, timeout: time.Minute},
	}}
	if r := runSuite(ctx, s, devNull(t)); r.passed != 0 || len(r.failures) == 0 {
		t.Errorf("got %+v", r)
	}
}

// rendezvous are two commands that each end well when the other runs meanwhile.
func rendezvous(t *testing.T) (one, other []string) {
	t.Helper()
	meet := func(here, there string) []string {
		return []string{"sh", "-c", "touch " + here + "; while [ ! -e " + there + " ]; do sleep 0.05; done"}
	}
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	return meet(a, b), meet(b, a)
}

func TestAStepRunsBesideThoseAfterIt(t *testing.T) {
	one, other := rendezvous(t)
	r := runSuite(t.Context(), suite{name: "s", steps: []step{
		{name: "beside", beside: true, command: one, timeout: time.Minute},
		{name: "meanwhile", command: other, timeout: time.Minute},
		{name: "fails beside", beside: true, command: []string{"false"}, timeout: time.Minute},
	}}, devNull(t))
	if r.passed != 2 || !slices.Equal(names(r), []string{"fails beside"}) {
		t.Errorf("got %+v", r)
	}
}

func TestSuitesOfTheClusterRunBesideTheOthers(t *testing.T) {
	one, other := rendezvous(t)
	onCluster := suite{name: "e2e", cluster: true, notBefore: "crypto", steps: []step{{name: "1", command: one, timeout: time.Minute}}}
	crypto := suite{name: "crypto", steps: []step{{name: "2", command: other, timeout: time.Minute}}}
	fails := suite{name: "fails", steps: []step{{name: "3", command: []string{"false"}, timeout: time.Minute}}}
	results := runSuites(t.Context(), []suite{fails, onCluster, crypto}, devNull(t))
	if len(results) != 3 || results[0].suite != "fails" || len(results[0].failures) != 1 ||
		results[1].suite != "e2e" || results[1].passed != 1 || results[2].suite != "crypto" || results[2].passed != 1 {
		t.Errorf("got %+v", results)
	}
	// Without the other it is one as any.
	alone := suite{name: "e2e", cluster: true, notBefore: "crypto", steps: []step{{name: "1", command: []string{"true"}, timeout: time.Minute}}}
	if results := runSuites(t.Context(), []suite{alone, fails}, devNull(t)); len(results) != 2 || results[0].passed != 1 {
		t.Errorf("alone: got %+v", results)
	}
}

// There is one cluster, and what a suite must not begin before may come last.
func TestSuitesOfTheClusterRunOneAfterTheOther(t *testing.T) {
	folder := t.TempDir()
	inTurn := func(name, script string) step {
		return step{name: name, command: []string{"sh", "-ec", "cd " + folder + "; " + script}, timeout: time.Minute}
	}
	results := runSuites(t.Context(), []suite{
		{name: "cluster", cluster: true, notBefore: "unit", steps: []step{inTurn("1", "test -e before; mkdir up; sleep 0.3; rmdir up")}},
		{name: "e2e", cluster: true, notBefore: "crypto", steps: []step{inTurn("2", "test -e between; mkdir up; rmdir up")}},
		{name: "lint", steps: []step{inTurn("3", "touch before")}},
		{name: "unit", steps: []step{inTurn("4", "touch between")}},
		{name: "crypto", steps: []step{inTurn("5", "true")}},
	}, devNull(t))
	if len(results) != 5 {
		t.Errorf("got %+v", results)
	}
	for _, r := range results {
		if r.passed != 1 || len(r.failures) != 0 {
			t.Errorf("%s: got %+v", r.suite, r)
		}
	}
}

func TestAnInterruptEndsBothRows(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	waits := []suite{
		{name: "e2e", cluster: true, notBefore: "crypto", steps: []step{{name: "1", command: []string{"true"}, timeout: time.Minute}}},
		{name: "crypto", steps: []step{{name: "2", command: []string{"true"}, timeout: time.Minute}}},
	}
	if results := runSuites(ctx, waits, devNull(t)); len(results) != 0 {
		t.Errorf("got %+v", results)
	}
}

func TestTheTailKeepsTheLastLines(t *testing.T) {
	last := newTail(io.Discard)
	for range 500 {
		if _, err := io.WriteString(last, "line\ngo: downloading x v1\n"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(last, "the end"); err != nil {
		t.Fatal(err)
	}
	text := last.text()
	if n := strings.Count(text, "\n"); n != tailLines || !strings.HasSuffix(text, "the end") || strings.Contains(text, "downloading") {
		t.Errorf("%d lines: %s", n, text)
	}
}
