package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTheClosingLine(t *testing.T) {
	var out strings.Builder
	ok := report(&out, []result{
		{suite: "unit", passed: 5, skipped: 1, elapsed: 2 * time.Second},
		{suite: "e2e", passed: 2, failures: []failure{{"TestA", "why\n\n"}}},
	})
	if ok {
		t.Error("a failure is reported as a success")
	}
	lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	if last := lines[len(lines)-1]; last != "7 passed, 1 failed" {
		t.Errorf("the last line is %q", last)
	}
	for _, want := range []string{"--- FAIL: e2e: TestA\nwhy\n", "unit               5       0        1     2.0 s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if !report(&out, []result{{suite: "unit", passed: 1}}) {
		t.Error("a success is reported as a failure")
	}
}

func TestSuitesAreChosenByNameInTheirOrder(t *testing.T) {
	all := suites(settings{})
	chosen, err := choose(all, []string{"e2e", "lint"})
	if err != nil || len(chosen) != 2 || chosen[0].name != "lint" || chosen[1].name != "e2e" {
		t.Errorf("chosen %v, %v", chosen, err)
	}
	if chosen, err = choose(all, nil); err != nil || len(chosen) != len(all)-1 || slices.ContainsFunc(chosen, func(s suite) bool { return s.byName }) {
		t.Errorf("no name chose %d of %d suites, %v", len(chosen), len(all), err)
	}
	if chosen, err = choose(all, []string{"asan"}); err != nil || len(chosen) != 1 {
		t.Errorf("one that is run by its name alone: chosen %v, %v", chosen, err)
	}
	if _, err := choose(all, []string{"integartion"}); err == nil || !strings.Contains(err.Error(), "integration") {
		t.Errorf("an unknown name: %v", err)
	}
}

func TestAPatternNarrowsTheEndToEndTests(t *testing.T) {
	for _, s := range suites(settings{e2e: "TestFaults"}) {
		if s.name == "e2e" && (len(s.steps) != 1 || !strings.Contains(strings.Join(s.steps[0].command, " "), "-run=TestFaults")) {
			t.Errorf("steps %v", s.steps)
		}
	}
}

func TestFuzzTargetsAreFoundAndGivenTheirTime(t *testing.T) {
	t.Chdir(t.TempDir())
	writeFile(t, "internal/p/p_test.go", "package p\n\nfunc FuzzName(f *testing.F) {}\nfunc TestFuzzy(t *testing.T) {}\n")
	steps := fuzzing(time.Minute)
	if len(steps) != 1 || strings.Join(steps[0].command, " ") != "go -C ./internal/p test -vet=off -run=^$ -fuzz=^FuzzName$ -fuzztime=1m0s ." || steps[0].timeout <= time.Minute {
		t.Errorf("steps %+v", steps)
	}
}

func TestPackagesAreFoundByBuildTag(t *testing.T) {
	t.Chdir(t.TempDir())
	writeFile(t, "a/a_test.go", "//go:build integration\n\npackage a\n")
	writeFile(t, "a/b_test.go", "//go:build integration\n\npackage a\n")
	writeFile(t, "b/b_test.go", "package b\n")
	if got := packagesWithTag("integration"); len(got) != 1 || got[0] != "./a" {
		t.Errorf("found %v", got)
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSettings(t *testing.T) {
	none, err := settingsFrom(func(string) string { return "" })
	if err != nil || none.fuzzTime != 2*time.Second {
		t.Errorf("by default %+v, %v", none, err)
	}
	if _, err := settingsFrom(func(name string) string { return map[string]string{"FUZZTIME": "long"}[name] }); err == nil || !strings.Contains(err.Error(), "FUZZTIME") {
		t.Errorf("FUZZTIME=long: %v", err)
	}
}
