package xqtls

import (
	"runtime/debug"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/load"
)

// A virtual user waits in C, on a thread of its own, and as many as a load may have are as many as Go lets a program have.
func TestThereIsAThreadForEachVirtualUser(t *testing.T) {
	const usual = 10000 // Go's
	was := debug.SetMaxThreads(usual)
	t.Cleanup(func() {
		debug.SetMaxThreads(was)
		current.recorder, current.err = nil, nil
	})
	l := measuring()
	l.Start, l.Client.InsecureSkipVerify = time.Now().Add(time.Hour).UnixNano(), true
	text, err := l.Text()
	if err != nil {
		t.Fatal(err)
	}
	environment := map[string]string{load.Variable: text, load.IndexVariable: "1"}
	if _, err := Prepare(func(name string) string { return environment[name] }); err != nil {
		t.Fatal(err)
	}
	if most := debug.SetMaxThreads(usual); most <= load.MostVUs {
		t.Errorf("%d threads at most, for %d virtual users and what else the program does", most, load.MostVUs)
	}
}
