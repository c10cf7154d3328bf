package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// parse reads the lines of a `go test -json`.
func parse(t *testing.T, lines ...string) (result, string) {
	t.Helper()
	var r result
	var shown strings.Builder
	e := newEvents(step{eachTest: true}, &shown, io.Discard, &r)
	for _, line := range lines {
		if _, err := io.WriteString(e, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	e.close()
	return r, shown.String()
}

func names(r result) []string {
	var all []string
	for _, f := range r.failures {
		all = append(all, f.name)
	}
	return all
}

func TestTestsAreCounted(t *testing.T) {
	r, shown := parse(t,
		`{"Action":"start","Package":"p"}`,
		`{"Action":"run","Package":"p","Test":"A"}`, `{"Action":"pass","Package":"p","Test":"A","Elapsed":0.5}`,
		`{"Action":"run","Package":"p","Test":"B"}`, `{"Action":"skip","Package":"p","Test":"B"}`,
		`{"Action":"run","Package":"p","Test":"C"}`, `{"Action":"output","Package":"p","Test":"C","Output":"why\n"}`, `{"Action":"fail","Package":"p","Test":"C"}`,
		`{"Action":"fail","Package":"p","Elapsed":1.5}`,
	)
	if r.passed != 1 || r.skipped != 1 || !slices.Equal(names(r), []string{"p C"}) || r.failures[0].output != "why\n" {
		t.Errorf("got %+v", r)
	}
	for _, want := range []string{"ok    A (0.5 s)", "FAIL  C", "FAIL  p (1 passed, 1 failed, 1.5 s)"} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not shown in\n%s", want, shown)
		}
	}
}

func TestOfATestWithSubtestsOnlyTheseCount(t *testing.T) {
	r, _ := parse(t,
		`{"Action":"run","Package":"p","Test":"A"}`, `{"Action":"run","Package":"p","Test":"A/one"}`, `{"Action":"run","Package":"p","Test":"A/two"}`,
		`{"Action":"run","Package":"p","Test":"A/two/deep"}`,
		`{"Action":"pass","Package":"p","Test":"A/one"}`, `{"Action":"fail","Package":"p","Test":"A/two/deep"}`,
		`{"Action":"fail","Package":"p","Test":"A/two"}`, `{"Action":"fail","Package":"p","Test":"A"}`,
		`{"Action":"fail","Package":"p"}`,
	)
	if r.passed != 1 || !slices.Equal(names(r), []string{"p A/two/deep"}) {
		t.Errorf("got %+v", r)
	}
}

func TestATestThatFailsBesideItsSubtestsCounts(t *testing.T) {
	r, _ := parse(t,
		`{"Action":"run","Package":"p","Test":"A"}`, `{"Action":"run","Package":"p","Test":"A/one"}`,
		`{"Action":"pass","Package":"p","Test":"A/one"}`, `{"Action":"fail","Package":"p","Test":"A"}`, `{"Action":"fail","Package":"p"}`,
	)
	if r.passed != 1 || !slices.Equal(names(r), []string{"p A"}) {
		t.Errorf("got %+v", r)
	}
}

func TestABuildThatFailsIsAFailure(t *testing.T) {
	r, _ := parse(t,
		`{"ImportPath":"p [p.test]","Action":"build-output","Output":"p/a_test.go:3: undefined: x\n"}`,
		`{"ImportPath":"p [p.test]","Action":"build-fail"}`,
		`{"Action":"start","Package":"p"}`, `{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}`,
		`{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`,
	)
	if len(r.failures) != 1 || !strings.Contains(r.failures[0].output, "undefined: x") {
		t.Errorf("got %+v", r)
	}
}

func TestATestThatDoesNotEndIsAFailure(t *testing.T) {
	r, _ := parse(t,
		`{"Action":"run","Package":"p","Test":"A"}`, `{"Action":"output","Package":"p","Test":"A","Output":"panic: oh\n"}`,
		`{"Action":"fail","Package":"p"}`,
	)
	if !slices.Equal(names(r), []string{"p A"}) || !strings.Contains(r.failures[0].output, "panic: oh") {
		t.Errorf("got %+v", r)
	}
}

func TestAPackageThatDoesNotEndIsAFailure(t *testing.T) {
	r, _ := parse(t, `{"Action":"start","Package":"p"}`, `{"Action":"output","Package":"p","Output":"half a"}`)
	if !slices.Equal(names(r), []string{"p"}) || r.failures[0].output != "half a" {
		t.Errorf("got %+v", r)
	}
}

func TestAPackageWithoutTestsIsNeither(t *testing.T) {
	r, shown := parse(t, `{"Action":"start","Package":"p"}`, `{"Action":"output","Package":"p","Output":"?   \tp\t[no test files]\n"}`, `{"Action":"skip","Package":"p"}`)
	if r.passed != 0 || len(r.failures) != 0 || shown != "" {
		t.Errorf("got %+v, shown %q", r, shown)
	}
}

func TestFiguresAreShownAtOnce(t *testing.T) {
	_, shown := parse(t, `{"Action":"run","Package":"p","Test":"A"}`, `{"Action":"output","Package":"p","Test":"A","Output":"RESULT A: 7 ms\n"}`)
	if !strings.Contains(shown, "RESULT A: 7 ms\n") {
		t.Errorf("shown is %q", shown)
	}
}
