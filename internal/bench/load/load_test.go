package load

import (
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/bench/shard"
)

func valid() Load {
	return Load{
		Version: 1, Point: "run/4/capacity/1", Pods: 4, Start: 1_800_000_000_000_000_000, WarmUp: 10 * time.Second, Window: 30 * time.Second,
		Phase: Capacity, VUs: 16, Operation: Handshake, Client: Client{Host: "gateway", Port: 443},
	}
}

func TestALoadIsReadAsItWasWritten(t *testing.T) {
	for _, change := range []func(*Load){
		func(*Load) {},
		func(l *Load) { l.Phase, l.Rate = Latency, 100 },
		func(l *Load) { l.Operation, l.Path = Request, "/" },
		func(l *Load) { l.Operation, l.Path, l.Size = Transfer, "/upload", 1<<20 },
	} {
		l := valid()
		change(&l)
		text, err := l.Text()
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if again, _ := got.Text(); again != text {
			t.Errorf("read\n%s\nwant\n%s", again, text)
		}
	}
}

func TestWhatIsWrongWithALoadIsSaid(t *testing.T) {
	for want, change := range map[string]func(*Load){
		"version 2: want 1":         func(l *Load) { l.Version = 2 },
		`point "": want`:            func(l *Load) { l.Point = "" },
		"pods 0: want 1 to 1024":    func(l *Load) { l.Pods = 0 },
		"start 0: want":             func(l *Load) { l.Start = 0 },
		"warmUp 0s: want 2s to 1h":  func(l *Load) { l.WarmUp = 0 },
		"warmUp 1.999s: want 2s to": func(l *Load) { l.WarmUp = Late - time.Millisecond },
		"window 0s: want 100ms":     func(l *Load) { l.Window = 0 },
		"vus 3: want 4 to":          func(l *Load) { l.VUs = 3 }, // fewer than pods: one would have none
		"rate 5: want none":         func(l *Load) { l.Rate = 5 },
		"rate 0: want 1 to":         func(l *Load) { l.Phase = Latency },
		`phase "Warm": want`:        func(l *Load) { l.Phase = "Warm" },
		`operation "Echo": want`:    func(l *Load) { l.Operation = "Echo" },
		"path /x: want none":        func(l *Load) { l.Path = "/x" },
		`path "": want one`:         func(l *Load) { l.Operation = Request },
		"size 1: want 1024":         func(l *Load) { l.Operation, l.Path, l.Size = Transfer, "/", 1 },
		"size 2048: want none":      func(l *Load) { l.Size = 2048 },
		`client.host "": want`:      func(l *Load) { l.Client.Host = "" },
		"client.port 70000: want 1": func(l *Load) { l.Client.Port = 70000 },
	} {
		l := valid()
		change(&l)
		if _, err := l.Text(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v", want, err)
		}
	}
	for text, want := range map[string]string{
		`{"version":1,"burst":3}`: `unknown field "burst"`,
		`{"version":1} {}`:        "something behind it",
		`[]`:                      "not a load",
		``:                        "not a load",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestEachPodTakesTheSegmentOfItsIndex(t *testing.T) {
	l := valid()
	if s, err := l.Segment("3"); err != nil || s != (shard.Segment{Index: 3, Count: 4}) {
		t.Errorf("got %v, %v", s, err)
	}
	for _, index := range []string{"", "4", "-1", "x"} {
		if _, err := l.Segment(index); err == nil || !strings.Contains(err.Error(), "want 0 to 3") {
			t.Errorf("%q: got %v", index, err)
		}
	}
}

func TestAPodWaitsForTheStartAndRefusesToComeTooLate(t *testing.T) {
	l := valid()
	start := time.Unix(0, l.Start)
	for early, want := range map[time.Duration]time.Duration{5 * time.Second: 5 * time.Second, 0: 0, -Late: 0} {
		if wait, err := l.Wait(start.Add(-early)); err != nil || wait != want {
			t.Errorf("%v before the start it waits %v, %v", early, wait, err)
		}
	}
	if _, err := l.Wait(start.Add(Late + time.Second)); err == nil || !strings.Contains(err.Error(), "start passed 3s ago, and a pod may be 2s late") {
		t.Errorf("late: %v", err)
	}
	l.WarmUp = Late // the least: even the latest pod is there when the window begins
	if err := l.Validate(); err != nil {
		t.Error(err)
	}
	if l.Begin() != start.Add(Late) || l.End() != start.Add(Late+30*time.Second) || !l.Deadline().After(l.End()) {
		t.Errorf("the window is %v to %v, the deadline %v", l.Begin(), l.End(), l.Deadline())
	}
}
