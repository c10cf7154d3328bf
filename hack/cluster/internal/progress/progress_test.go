package progress

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

// fake is a Reporter whose clock and ticks are the test's.
func fake(tty bool) (r *Reporter, out *bytes.Buffer, advance func(time.Duration)) {
	out = &bytes.Buffer{}
	now := time.Unix(0, 0)
	ticks := make(chan time.Time)
	r = &Reporter{out: out, tty: tty, now: func() time.Time { return now }}
	r.tick = func(time.Duration) (<-chan time.Time, func()) { return ticks, func() {} }
	advance = func(d time.Duration) {
		for range d / time.Second {
			r.mu.Lock()
			now = now.Add(time.Second)
			r.mu.Unlock()
			ticks <- now
		}
		r.mu.Lock() // the last tick has been taken; wait until it is drawn
		r.mu.Unlock()
	}
	return r, out, advance
}

func TestALogGetsALineAtFirstThenEveryTwentySecondsAndAtTheEnd(t *testing.T) {
	r, out, advance := fake(false)
	err := r.Step("building kube", func() error { advance(43 * time.Second); return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := "... building kube (1.0 s)\n... building kube (21 s)\n... building kube (41 s)\n ok building kube (43 s)\n"
	if out.String() != want {
		t.Errorf("got\n%s", out)
	}
}

func TestAShortStepLeavesNoTraceInALogUnlessItFails(t *testing.T) {
	r, out, _ := fake(false)
	if err := r.Step("a", func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if out.Len() > 0 {
		t.Errorf("got %q", out)
	}
	broken := errors.New("broken")
	if err := r.Step("b", func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("err = %v", err)
	}
	if out.String() != "  x b (0.0 s)\n" {
		t.Errorf("got %q", out)
	}
}

func TestATerminalShowsAllStepsInOneLine(t *testing.T) {
	r, out, _ := fake(true)
	err := r.Step("a", func() error {
		return r.Step("b", func() error { r.Say("note"); return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	const clear = "\r\x1b[K"
	want := clear + "... a (0.0 s)" +
		clear + "... a (0.0 s), b (0.0 s)" +
		clear + "note\n" + clear + "... a (0.0 s), b (0.0 s)" +
		clear + " ok b (0.0 s)\n" + clear + "... a (0.0 s)" +
		clear + " ok a (0.0 s)\n"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}

func TestDurationsHaveTheDigitsThatAPersonWants(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1234 * time.Millisecond: "1.2 s",
		34 * time.Second:        "34 s",
		125 * time.Second:       "2 min 05 s",
	} {
		if got := seconds(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}
