package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// parseCargo reads the output of a `cargo test`.
func parseCargo(t *testing.T, output string) (r result, shown, other string) {
	t.Helper()
	var out, rest strings.Builder
	c := readCargoTest(step{}, &out, &rest, &r)
	if _, err := io.WriteString(c, output); err != nil {
		t.Fatal(err)
	}
	c.close()
	return r, out.String(), rest.String()
}

const cargoOutputSample = `   Compiling oqsprovider v0.1.0 (/src/provider)
    Finished ` + "`release`" + ` profile [optimized] target(s) in 4.02s
     Running unittests src/lib.rs (/target/release/deps/oqsprovider-0f3e4c5b6a798081)

running 4 tests
test kem::round_trip ... ok
test kem::slow ... ignored, takes an hour
test sig::size - should panic ... ok
test sig::verify ... FAILED

successes:

---- kem::round_trip stdout ----
RESULT smaug_t1: 31 us


successes:
    kem::round_trip

failures:

---- sig::verify stdout ----

thread 'sig::verify' panicked at src/sig.rs:3:5:
signature of 2 bytes


failures:
    sig::verify

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.50s

error: test failed, to rerun pass ` + "`-p oqsprovider --lib`" + `
     Running tests/kat.rs (/target/release/deps/kat-1f3e4c5b6a798081)

running 1 test
test haetae2 ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s

   Doc-tests algorithms

running 0 tests

test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

error: 1 target failed:
    ` + "`-p oqsprovider --lib`" + `
`

func TestRustTestsAreCounted(t *testing.T) {
	r, shown, other := parseCargo(t, cargoOutputSample)
	if r.passed != 3 || r.skipped != 1 || !slices.Equal(names(r), []string{"crypto oqsprovider sig::verify"}) {
		t.Errorf("got %+v", r)
	}
	if len(r.failures) == 1 && (!strings.Contains(r.failures[0].output, "signature of 2 bytes") || strings.Contains(r.failures[0].output, "RESULT")) {
		t.Errorf("the failure says %q", r.failures[0].output)
	}
	want := "        RESULT smaug_t1: 31 us\n  FAIL  crypto oqsprovider (2 passed, 1 failed, 0.50 s)\n  ok    crypto kat (1 passed, 1.00 s)\n"
	if shown != want {
		t.Errorf("shown is\n%swant\n%s", shown, want)
	}
	if !strings.Contains(other, "Compiling oqsprovider") || strings.Contains(other, "round_trip") {
		t.Errorf("the rest is\n%s", other)
	}
}

func TestARustTestProgramThatCrashesIsAFailure(t *testing.T) {
	r, shown, _ := parseCargo(t, `     Running tests/fork.rs (/target/release/deps/fork-0f3e4c5b6a798081)

running 2 tests
test one ... ok
error: test failed, to rerun pass `+"`--test fork`"+`

Caused by:
  process didn't exit successfully: (signal: 11, SIGSEGV: invalid memory reference)
     Running tests/kat.rs (/target/release/deps/kat-1f3e4c5b6a798081)

running 1 test
test haetae2 ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
`)
	if r.passed != 1 || !slices.Equal(names(r), []string{"crypto fork"}) || !strings.Contains(r.failures[0].output, "SIGSEGV") {
		t.Errorf("got %+v", r)
	}
	if !strings.Contains(shown, "FAIL  crypto fork (did not end)") {
		t.Errorf("shown is\n%s", shown)
	}
}

// A test may run the very program that it is part of, and show what that said.
func TestTheSummaryOfAProgramWithinATestDoesNotCount(t *testing.T) {
	r, _, other := parseCargo(t, `     Running tests/library.rs (/target/release/deps/library-0f3e4c5b6a798081)

running 3 tests
test one ... ok
test two ... ok
test three ... FAILED

successes:

---- one stdout ----

running 1 test
test one ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 2.76s


successes:
    one
    two

failures:

---- three stdout ----
the reason

failures:
    three

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 3.00s
`)
	if r.passed != 2 || !slices.Equal(names(r), []string{"crypto library three"}) || !strings.Contains(r.failures[0].output, "the reason") {
		t.Errorf("got %+v", r)
	}
	if other != "" {
		t.Errorf("the rest is\n%s", other)
	}
}

func TestRustTestsThatDoNotCompileAreAFailure(t *testing.T) {
	r := runStep(t.Context(), step{name: "cargo test", tests: readCargoTest, command: []string{"sh", "-c", "echo 'error[E0425]: cannot find value'; exit 101"}})
	if len(r.failures) != 1 || !strings.Contains(r.failures[0].output, "E0425") {
		t.Errorf("got %+v", r)
	}
}

func TestWhatCargoCountsAsFailedIsAFailureWhateverItPrints(t *testing.T) {
	r, _, _ := parseCargo(t, `     Running tests/own.rs (/target/release/deps/own-0f3e4c5b6a798081)
not a line of a test
test result: FAILED. 0 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
`)
	if len(r.failures) != 2 || !strings.Contains(r.failures[0].output, "not a line of a test") {
		t.Errorf("got %+v", r)
	}
}
