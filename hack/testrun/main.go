// Command testrun runs the project's test suites, one after the other, and beside
// them, one after the other, those that use a cluster; shows how far it is, and sums up: a table,
// the output of what failed, and a last line `N passed, N failed`. The exit code
// is 1 when anything failed.
//
//	go run ./hack/testrun [SUITE...]      (from the root of the repository; no SUITE: all but asan)
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	set, err := settingsFrom(os.Getenv)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(2)
	}
	chosen, err := choose(suites(set), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(2)
	}
	out := os.Stdout
	if !report(out, runSuites(ctx, chosen, out)) {
		os.Exit(1)
	}
}

// settingsFrom reads E2E and FUZZTIME.
func settingsFrom(getenv func(string) string) (settings, error) {
	fuzzTime, err := time.ParseDuration(cmp.Or(getenv("FUZZTIME"), "2s"))
	if err != nil {
		return settings{}, fmt.Errorf("FUZZTIME: %w", err)
	}
	return settings{e2e: getenv("E2E"), fuzzTime: fuzzTime}, nil
}

// choose picks suites by name, in the order of the table.
func choose(all []suite, names []string) ([]suite, error) {
	if len(names) == 0 {
		return slices.DeleteFunc(slices.Clone(all), func(s suite) bool { return s.byName }), nil
	}
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	var chosen []suite
	var known []string
	for _, s := range all {
		known = append(known, s.name)
		if wanted[s.name] {
			chosen = append(chosen, s)
			delete(wanted, s.name)
		}
	}
	for name := range wanted {
		return nil, fmt.Errorf("no suite %q: there are %s", name, strings.Join(known, ", "))
	}
	return chosen, nil
}

// runSuites runs suites in two rows, each one after the other: those that use the
// cluster, and those that do not. The results are in the order of the suites.
func runSuites(ctx context.Context, chosen []suite, out *os.File) []result {
	results := make([]result, len(chosen))
	begun := map[string]chan struct{}{} // closed when the suite of that name begins, or never will
	for _, s := range chosen {
		begun[s.name] = make(chan struct{})
	}
	row := func(cluster bool) {
		for i, s := range chosen {
			if s.cluster != cluster {
				continue
			}
			if earlier, ok := begun[s.notBefore]; ok {
				<-earlier
			}
			close(begun[s.name])
			if ctx.Err() != nil {
				continue
			}
			fmt.Fprintf(out, "==> %s\n", s.name)
			start := time.Now()
			results[i] = runSuite(ctx, s, out)
			results[i].elapsed = time.Since(start)
		}
	}
	var rows sync.WaitGroup
	rows.Go(func() { row(true) })
	rows.Go(func() { row(false) })
	rows.Wait()
	return slices.DeleteFunc(results, func(r result) bool { return r.suite == "" }) // not come to
}

// runSuite prepares and runs a suite. What cannot be prepared is a failure of
// its own, and so is a suite that ran no test.
func runSuite(ctx context.Context, s suite, out *os.File) result {
	r := result{suite: s.name}
	env := os.Environ()
	for _, p := range s.prepare {
		value, err := p.run(ctx, env, out)
		if err != nil {
			r.fail(p.name, err.Error())
			return r
		}
		if p.variable != "" {
			env = append(env, p.variable+"="+value)
		}
	}
	var besides sync.WaitGroup
	var parts []*result
	for _, step := range s.steps {
		if step.beside {
			part := &result{}
			parts = append(parts, part)
			besides.Go(func() { step.run(ctx, env, out, part) })
			continue
		}
		step.run(ctx, env, out, &r)
		if ctx.Err() != nil {
			r.fail(step.name, "interrupted")
			break
		}
	}
	besides.Wait()
	for _, part := range parts {
		r.add(*part)
	}
	if r.passed == 0 && len(r.failures) == 0 {
		r.fail("no test", "the suite ran no test")
	}
	return r
}
